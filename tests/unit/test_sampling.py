# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check which integration tests `make test` runs.

For each file that it samples, CONTRIBUTING must name unit tests that guard the same code.
"""

from __future__ import annotations

import ast
import collections
import itertools
import re
from pathlib import Path

import pytest
from sampling import sample, shard

ROOT = Path(__file__).parents[2]
INTEGRATION = ROOT / "tests" / "integration"
TABLE_ROW = re.compile(r"^\| `test_(?P<file>\w+)` \| (?P<all>\d+) \| (?P<sample>\d+) "
                       r"\| (?P<guards>.+) \|$",
                       re.MULTILINE)


def points(**axes):
    """Return all combinations, each as a set of pairs (axis, value)."""
    return [{*zip(axes, map(str, values), strict=True)}
            for values in itertools.product(*axes.values())]


@pytest.mark.parametrize("axes", [
    {"act": range(17), "moment": range(5)}, {"kind": range(2), "act": range(18)},
    {"way": range(3), "spec": range(2), "end": range(3)}, {"kind": range(2)}], ids=str)
def test_sample_covers_all_values_with_the_fewest_points(axes):
    all_points = points(**axes)

    chosen_points = sample(all_points, None, collections.Counter())

    assert len(chosen_points) == max(map(len, axes.values()))
    assert set().union(*(all_points[index] for index in chosen_points)) == set().union(*all_points)


def test_values_of_the_shorter_axis_are_chosen_equally_often():
    all_points = points(act=range(18), kind=range(2), moment=range(3))

    chosen_points = sample(all_points, None, collections.Counter())

    counts = collections.Counter(value for index in chosen_points for value in all_points[index])
    assert [counts["kind", str(kind)] for kind in range(2)] == [9, 9]
    assert [counts["moment", str(moment)] for moment in range(3)] == [6, 6, 6]


def test_values_of_a_common_parameter_are_distributed_over_tests():
    used_counts = collections.Counter()

    chosen_points = [sample(points(spec=range(5)), 2, used_counts) for _test in range(3)]

    assert chosen_points == [{0, 1}, {2, 3}, {4, 0}]


def test_sample_larger_than_a_test_has_all_its_points():
    assert sample(points(spec=range(2)), 3, collections.Counter()) == {0, 1}


def test_shards_have_each_item_once():
    shards = [shard(range(100), f"{number}/3") for number in (1, 2, 3)]

    assert sorted(itertools.chain(*shards)) == list(range(100))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def is_sampled(path):
    """Return whether `make test` runs only some tests of the file."""
    return any(isinstance(node, ast.Attribute) and node.attr in ("sample", "full")
               for node in ast.walk(ast.parse(path.read_text("utf-8"))))


def test_each_sampled_file_has_guards_in_contributing():
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    rows = {match["file"]: match for match in TABLE_ROW.finditer(contributing)}

    files = filter(is_sampled, INTEGRATION.glob("test_*.py"))
    assert set(rows) == {path.stem.removeprefix("test_") for path in files}
    for row in rows.values():
        guards = re.findall(r"`(\w[\w/]*\.py)(?:::(\w+))?`", row["guards"])
        assert guards, row[0]
        for file, test in guards:
            text = (ROOT / "tests" / "unit" / file).read_text("utf-8")
            assert not test or re.search(rf"^def {test}\(", text, re.MULTILINE), (
                f"{file} has no {test}")
        assert int(row["sample"]) < int(row["all"])

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that an integration test runs each suggested command.

next_commands.SITES names the test, or a reason, for each function that builds a command.
"""

from __future__ import annotations

import ast
from pathlib import Path

import next_commands
import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ROOT = Path(__file__).parents[2]
PASTING_TESTS = ast.parse((ROOT / "tests" / "integration"
                           / "test_next_commands.py").read_text(encoding="utf-8"))


def test_every_function_that_builds_a_command_is_listed():
    assert next_commands.sites(ROOT / "plugins") == next_commands.SITES.keys()


@pytest.mark.parametrize("site", next_commands.SITES)
def test_each_command_is_pasted_by_a_test_or_has_a_reason(site):
    tests = {node.name for node in PASTING_TESTS.body if isinstance(node, ast.FunctionDef)}

    assert (next_commands.SITES[site] in tests
            or next_commands.SITES[site].startswith(("not executed", "not a command: ")))


@pytest.mark.parametrize("command, exception", [
    ("ansible localhost -m baton.kubernetes.rolling_update -a 'name=foo image=a:1 nope=1'",
     AssertionError),
    ("ansible localhost -m baton.kubernetes.rolling_update -a 'name=foo image=a:1 nodes=x "
     "kind=DaemonSet'", RolloutError),
    ("ansible localhost -m baton.kubernetes.rolling_update -a 'image=a:1'", RolloutError),
    ("kubectl -n default explode rc foo", AssertionError),
])
def test_any_test_fails_on_a_command_that_the_module_refuses(command, exception):
    with pytest.raises(exception):
        _refused_at_once = RolloutError("it failed", next_command=command)

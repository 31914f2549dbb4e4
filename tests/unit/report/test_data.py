# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the types of the report's data with results and documentation."""

from __future__ import annotations

import ast
import re
import types
import typing
from pathlib import Path

import pytest
import yaml
from releases import Cluster, Controller, Run, variables
from results import analysis, failed, paused, soaked, updated

from ansible_collections.baton.kubernetes.plugins.modules import rolling_update, rollout_analysis
from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import data

ROOT = Path(__file__).parents[3]
SHAPES = {name: shape for name, shape in vars(data).items() if typing.is_typeddict(shape)}
#: Keys that the report adds for its template.
ADDED_KEYS = {"change", "decision", "soaks", "title"}


def mismatches(value, shape, path="data") -> list[str]:
    """Return a line for each part of `value` that does not fit `shape`. Keys may be absent."""
    alternatives = typing.get_args(shape) if isinstance(shape, types.UnionType) else [shape]
    if len(alternatives) > 1:
        return min((mismatches(value, option, path) for option in alternatives), key=len)
    if typing.is_typeddict(shape):
        hints = typing.get_type_hints(shape)
        return [line for key, element in value.items() if key in hints
                for line in mismatches(element, hints[key], f"{path}.{key}")] \
            if isinstance(value, dict) else [f"{path} is not a dictionary"]
    outer, inner = typing.get_origin(shape), typing.get_args(shape)
    if outer in (list, dict) and isinstance(value, outer):
        entries = value.items() if outer is dict else enumerate(value)
        return [line for key, element in entries
                for line in mismatches(element, inner[-1], f"{path}.{key}")]
    expected = (int, float) if shape is float else outer or shape
    return [] if shape is typing.Any or isinstance(value, expected) else [f"{path} is {value!r}"]


@pytest.mark.parametrize("value", [updated(), paused(), failed(), soaked()],
                         ids=["updated", "paused", "failed", "soaked"])
def test_sample_results_have_the_documented_types(value):
    assert mismatches(value, data.Result) == [] == mismatches(analysis(), data.Check)


@pytest.mark.parametrize("why", ["", "503"])
def test_data_of_the_role_has_the_documented_types(why):
    request = variables(stages=["10%", "100%"], verify=["smoke.yml"], analyses=[{}],
                        report="/out/page.html")
    run = Run(request, Cluster(a=Controller()), {"smoke.yml": lambda _cluster: why}).run()

    report_data = run.facts["report_data"]
    assert (mismatches(report_data, data.Run) == []
            and set(data.Run.__annotations__) <= set(report_data))
    assert (report_data["page"] == "page.html"
            and report_data["stages"][0]["checks"][0]["measured"]["name"] == "a")


def test_mismatches_reports_wrong_types():
    assert mismatches({"stages": [{"checks": [{"at": 5}]}]},
                      data.Run) == ["data.stages.0.checks.0.at is 5"]
    assert mismatches({"clusters": {"eu": []}},
                      data.Release) == ["data.clusters.eu is not a dictionary"]


def undocumented_keys(documented, shape) -> list[str]:
    """Return `Type.key` for each key that `documented` lacks, or documents with another type."""
    type_names = {str: "str", int: "int", float: "float", bool: "bool", list: "list", dict: "dict",
                  typing.Any: "raw"}
    missing = []
    for key, hint in typing.get_type_hints(shape).items():
        (hint,) = [arg for arg in typing.get_args(hint) if arg is not types.NoneType] \
            if isinstance(hint, types.UnionType) else [hint]
        is_list = typing.get_origin(hint) is list
        inner = typing.get_args(hint)[-1] if is_list else hint
        value = documented.get(key, {})
        kind = dict if typing.is_typeddict(hint) else typing.get_origin(hint) or hint
        if value.get("type") != type_names[kind]:
            missing.append(f"{shape.__name__}.{key}")
        elif typing.is_typeddict(inner):
            missing += undocumented_keys(value["contains"], inner)
    return missing


def test_types_equal_the_documented_return_values():
    update, analyzed = (yaml.safe_load(module.RETURN)
                        for module in (rolling_update, rollout_analysis))

    # Only a role that writes a report gets `sizes`.
    missing = ["Result.sizes"]
    # RETURN documents these keys of each entry at the top level only.
    shared = {key: update[key] for key in ("steps", "rollout", "failure")}
    assert undocumented_keys(update["results"]["contains"] | shared, data.Result) == missing
    assert sorted(undocumented_keys(update, data.Result)) == sorted(
        ["Result.name", "Result.failed", "Result.skipped", *missing])
    assert undocumented_keys(analyzed, data.AnalysisResult) == []


def test_code_reads_exactly_the_documented_keys():
    keys = {key for shape in SHAPES.values() for key in typing.get_type_hints(shape)}
    read_keys = set()
    for path in (ROOT / "plugins" / "plugin_utils" / "report").glob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text("utf-8")))
                     if isinstance(node, ast.Call)):
            name = getattr(call.func, "id", getattr(call.func, "attr", ""))
            if name in ("text", "mapping", "objects", "values", "number", "_number", "_bound",
                        "get"):
                arguments = call.args[:1] if name in ("get", "_bound") else call.args[1:]
                read_keys |= {argument.value for argument in arguments
                              if isinstance(argument, ast.Constant)
                              and isinstance(argument.value, str)}
    template = (ROOT / "roles" / "image_bump" / "templates" / "report.html.j2").read_text("utf-8")
    read_keys |= set(re.findall(r"(?:\.get|[\[ ])\('(\w+)'", template))

    assert read_keys - keys - ADDED_KEYS == set()
    assert keys - read_keys == set()

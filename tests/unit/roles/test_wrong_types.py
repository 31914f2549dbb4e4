# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Give each variable of the roles a value of another type, in each layer."""

from __future__ import annotations

import datetime
import json
import typing as t

import jinja2
import pytest
import yaml
from ansible.errors import AnsibleFilterError

from ansible_collections.baton.kubernetes.plugins.lookup import release_request
from ansible_collections.baton.kubernetes.plugins.module_utils.release import loop, next_steps
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import (
    Request,
    variable,
)
from ansible_collections.baton.kubernetes.plugins.plugin_utils.entries import entries, plain

Json = dict[str, t.Any]
ROLES = ("image_bump", "rollback")
LAYERS: dict[str, Json] = {"role": {}, "playbook": {"__{}_short_names": True},
                           "awx": {"__{}_short_names": True, "awx_job_id": 1}}
#: The variables that the playbooks pass through the filter `entries`.
FILTERED_OPTIONS = ("before_tasks", "verify_tasks", "after_tasks", "failure_tasks", "report")
CONTAINERS = ({"a": {"b": 1}}, {"a": ["b"]}, {1: None}, [{"a": 1}], [["a"]], [None, {}])
SCALARS = (5, -1, 0, 1.5, float("nan"), float("inf"), 10**400, True, False, "inf", "nan", "x",
           "\ud800", "{a: b}", "- [", "{{ x }}", "[" * 5000, datetime.date(2026, 1, 1), ["x"], [5],
           ["\ud800"], [True])
#: Each level doubles the number of elements.
ALIAS_BOMB = "[" + ", ".join(["&a0 [x]", *(f"&a{level} [*a{level - 1}, *a{level - 1}]"
                                           for level in range(1, 60))]) + "]"
YAML_TEXTS = (ALIAS_BOMB, "&a [*a]", "&a {b: *a}", "[" * 5000, "[" * 90 + "]" * 90, "2026-99-99",
              "!!timestamp x", "!!int x", "!!float ''", "{[a]: b}", "{{a: b}: c}", "!!python/x 1",
              "*a", "2026-01-01", ".inf", "[{metrics: 2026-01-01}]", "[{count: .inf}]", "\0",
              "a: b: c")


def is_container_of_wrong_type(spec: Json, value: t.Any) -> bool:
    if spec["type"] == "list":
        return isinstance(value, dict) or (spec["elements"] == "str" and isinstance(value, list)
                                           and any(isinstance(entry, (dict, list))
                                                   for entry in value))
    return (isinstance(value, list if spec["type"] == "dict" else (dict, list))
            and spec["type"] != "raw")


def template(value):
    return value() if callable(value) else value


def request_of(role: str, layer: str, values: Json) -> Request:
    """Return the request of a user who sets these options, as the role or a playbook reads it."""
    values = {"name": "foo", "image": "myimage:v2", **values}
    options: Json = dict(values)
    if layer != "role":
        options |= {option: lambda value=value: entries(value, inside=True)
                    for option, value in values.items() if option in FILTERED_OPTIONS}
    extra = {} if layer == "role" else {
        release_request.short_names(option)[0]: value for option, value in values.items()}
    variables = {**{key.format(role): value for key, value in LAYERS[layer].items()}, **extra,
                 **{f"{role}_{option}": value for option, value in options.items()}}
    request = release_request.Variables(role, variables, template, extra).request(lambda path: [])
    return Request.of(plain(request))


def errors_of(role: str, layer: str, values: Json) -> list[str]:
    """Return the errors of the request. Whatever it is, decide the first turn and give advice."""
    request = request_of(role, layer, values)
    decision = loop.decide(request, {}, {}, {}, "2026-01-01T00:00:00Z", {})
    if request.errors:
        assert all(f"{error.rstrip('.')}." in decision["state"]["message"]
                   for error in request.errors)
    else:
        json.dumps(decision)
        next_steps.commands(request, is_resumable=True, is_paused=True)
        next_steps.rollback_instruction(request)
        next_steps.lines_for_cluster(request)
    return request.errors


@pytest.mark.sample
@pytest.mark.parametrize("role, layer, option", [
    (role, layer, name.removeprefix(f"{role}_")) for role in ROLES for layer in LAYERS
    for name in release_request.argument_specs(role)])
def test_value_of_another_type_is_an_error_that_names_the_variable(role, layer, option):
    name = variable(role, layer, option)
    spec = release_request.argument_specs(role)[f"{role}_{option}"]
    assert errors_of(role, layer, {}) == []
    for value in (*CONTAINERS, *SCALARS):
        errors = errors_of(role, layer, {option: value})
        is_named = any(name in error for error in errors)
        assert is_named or not errors, (value, errors)
        assert is_named or not is_container_of_wrong_type(spec, value), value


@pytest.mark.sample
@pytest.mark.parametrize("text", YAML_TEXTS, ids=lambda text: text[:20])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("option", ["analysis", "traffic_match"])
def test_any_yaml_of_a_survey_is_an_error_that_names_the_variable(option, layer, text):
    errors = errors_of("image_bump", layer, {option: text, "route": "edge"})

    assert any(variable("image_bump", layer, option) in error for error in errors), errors
    assert max(map(len, errors)) < 5000


@pytest.mark.parametrize("value", CONTAINERS)
@pytest.mark.parametrize("cluster_variable", release_request.CLUSTER_VARIABLES)
@pytest.mark.parametrize("role", ROLES)
def test_commands_omit_a_cluster_of_another_type(role, cluster_variable, value):
    extra = {"controller": "foo", "image": "myimage:v2", cluster_variable: value}
    variables = {**extra, f"__{role}_short_names": True, f"{role}_name": "foo"}

    request = Request.of(release_request.Variables(role, variables, template, extra)
                         .request(lambda path: []))

    commands = next_steps.commands(request, is_resumable=True, is_paused=True)
    assert not any(command.startswith("ansible-playbook") for command in commands)


@pytest.mark.parametrize("value", CONTAINERS)
def test_entries_are_texts(value):
    with pytest.raises(AnsibleFilterError, match="a text or a list of texts"):
        entries(value)


def test_name_that_loads_the_filters_is_a_text():
    path = release_request.ROLES / "image_bump" / "tasks" / "release.yml"
    (name,) = [task["name"] for task in yaml.safe_load(path.read_text("utf-8"))
               if "entries" in task["name"]]
    environment = jinja2.Environment(autoescape=True)
    environment.filters["baton.kubernetes.entries"] = entries

    assert environment.from_string(name).render(
        __image_bump_request={"role": "image_bump"}, __image_bump_caller={}) == "Start the release"

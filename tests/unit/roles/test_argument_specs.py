# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the variables of the roles."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.vars.reserved import get_reserved_names

from ansible_collections.baton.kubernetes.plugins.lookup import release_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.commands import (
    repeated_options,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import (
    IMAGES,
    Request,
)

ROOT = Path(__file__).resolve().parents[3]

ROLE_ONLY_OPTIONS = {
    "image_bump": {"stages", "route", "route_kind", "service", "traffic_match",
                   "verify_tasks", "analysis", "approve_within", "keep_old_for", "before_tasks",
                   "after_tasks", "failure_tasks", "report"},
    "rollback": {"previous_images", "before_tasks", "after_tasks", "failure_tasks"},
}


@pytest.fixture(params=["image_bump", "rollback"])
def role(request) -> str:
    return request.param


def read(path: str):
    return yaml.safe_load((ROOT / path).read_text())


def options(role: str) -> dict:
    """Return the documented options of a role, by their names in the module."""
    documented = read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return {name.removeprefix(f"{role}_"): option for name, option in documented.items()}


def tasks(content):
    for task in content:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part, ()))


def module_options(role: str, variables: dict, extra=()) -> dict:
    """Return the options of the module for these variables, without templating."""
    return release_request.Variables(role, variables, lambda value: value, extra).options()


def non_default_values(role: str) -> dict:
    """Return a value other than the default for each option that role and module share."""
    specs = {name: option for name,
             option in options(role).items() if name not in ROLE_ONLY_OPTIONS[role]}
    examples = {"bool": "false", "dict": {"web": "7"}}
    return {name: next(choice for choice
                       in option.get("choices", [examples.get(option["type"], "7")])
                       if choice not in ("", option.get("default")))
            for name, option in specs.items()}


def test_defaults_equal_the_documentation(role):
    documented = {name: option["default"]
                  for name, option in options(role).items() if "default" in option}
    variables = {name.removeprefix(f"{role}_"): value
                 for name, value in read(f"roles/{role}/defaults/main.yml").items()}

    assert variables.items() <= documented.items()
    assert ROLE_ONLY_OPTIONS[role] & set(documented) <= set(variables)
    options_with_default = {name: value for name, value in documented.items()
                            if name not in ROLE_ONLY_OPTIONS[role] and value != []}
    assert module_options(role, {f"{role}_name": "foo"}) == {"name": "foo"} | options_with_default


@pytest.mark.parametrize("has_prefix", [True, False],
                         ids=["name of the role's variable", "short name of a playbook"])
def test_each_option_reaches_the_module(role, has_prefix):
    options = non_default_values(role)
    # For IMAGES, the playbook rollback uses the names of the role's variables.
    long_named_options = options if has_prefix else IMAGES if role == "rollback" else ()
    variables = {f"{role}_{name}" if name in long_named_options else name: value
                 for name, value in options.items()}
    variables |= {} if has_prefix else {f"__{role}_short_names": True}

    specs = {name: ARGUMENT_SPEC[name] for name in options} | {"kind": {"type": "str"}}
    typed_options = ArgumentSpecValidator(specs).validate(options).validated_parameters
    assert module_options(role, variables) == {name: typed_options[name] for name in options}


@pytest.mark.parametrize("variables, option, value", [
    ({"rollback_timeout": ""}, "timeout", None), ({"rollback_lock": False}, "lock", False),
    ({"rollback_timeout": 0}, "timeout", "0"),
    ({"rollback_max_failures": ""}, "max_failures", "100%"),
    ({"timeout": 5}, "timeout", None), ({"rollback_state": "x"}, "state", None),
    ({"__rollback_short_names": True, "state": "migrated"}, "state", None),
    ({"__rollback_short_names": True, "timeout": 5}, "timeout", "5"),
    ({"__rollback_short_names": True, "timeout": 5, "rollback_timeout": 6}, "timeout", "5"),
    ({"__rollback_short_names": True, "timeout": "", "rollback_timeout": 6}, "timeout", "6"),
    ({"__rollback_short_names": True, "lock": "false", "rollback_lock": "true"}, "lock", False),
], ids=["empty", "false", "zero", "empty with a default", "short name", "unknown option",
        "unknown option with a short name", "short name of a playbook",
        "both names", "empty short name", "short name over a default"])
def test_empty_and_short_named_variables(variables, option, value):
    assert module_options("rollback", {"rollback_name": "foo", **variables}).get(option) == value


@pytest.mark.parametrize("variables, option, value", [
    ({"controller": "foo"}, "name", "foo"), ({"controller": "foo", "name": "bar"}, "name", "foo"),
    ({"controller": "", "name": "foo"}, "name", "foo"),
    ({"controller_namespace": "shop"}, "namespace", "shop"),
    ({"time_limit": 5, "rollback_timeout": 6}, "timeout", "5"),
])
def test_options_with_reserved_names_have_other_names_in_playbooks(variables, option, value):
    assert module_options("rollback",
                          {"__rollback_short_names": True, **variables})[option] == value
    assert module_options("rollback", variables).get(option) != value


def test_each_option_has_an_unreserved_name(role):
    """Ansible warns about variables with reserved names."""
    assert [name for name in options(role)
            if set(release_request.short_names(name)) <= get_reserved_names()] == []


def test_extra_variable_of_the_role_takes_precedence():
    variables = {"rollback_name": "foo", "__rollback_short_names": True, "timeout": 5,
                 "rollback_timeout": 6}

    assert module_options("rollback", variables, extra={"rollback_timeout"})["timeout"] == "6"


@pytest.mark.parametrize("value", [True, "yes", "True", "1", "false", "no", "0", False, ""])
def test_keep_old_of_a_survey_may_be_a_text(value):
    """In Python, all strings except "" are true."""
    variables = {"image_bump_name": "foo", "image_bump_image": "a:2", "image_bump_keep_old": value}
    request = Request.of(release_request.Variables("image_bump", variables, lambda value: value)
                         .request(lambda path: []))
    is_true = str(value).lower() in ("true", "yes", "1")

    assert request.keeps_old is is_true and len(request.pauses) == is_true
    assert request.errors == []


@pytest.mark.parametrize("more_variables, name",
                         [({}, "rollback_autoscaler"),
                          ({"__rollback_short_names": True}, "autoscaler")])
def test_invalid_value_is_reported_in_the_request(more_variables, name):
    variables = {"rollback_name": "foo", "rollback_autoscaler": "never", **more_variables}
    request = release_request.Variables("rollback", variables,
                                        lambda value: value).request(load=lambda path: [])

    (error,) = request["errors"]
    assert error.startswith(f"value of {name} must be one of")


LABELS = {"label_selectors": "app=shop,tier=web"}


@pytest.mark.parametrize("artifacts, selection", [
    ({"controller": "", "names": ["a", "b"], "previous_images_by_name": {"a": {"web": "v1"}}},
     {"names": ["a", "b"]}),
    ({"controller": "", "names": ["a"], "previous_images_by_name": {}}, {"names": ["a"]}),
    ({"controller": "", "names": [], "previous_images_by_name": {}},
     {"label_selectors": ["app=shop,tier=web"]}),
    ({"names": ["a"]}, None),
    ({"controller": "a", "names": [], "previous_images_by_name": {}}, None),
], ids=["updated", "paused", "nothing selected", "no artifacts", "the user's own controller"])
def test_names_of_the_artifacts_replace_the_labels_of_the_launch(role, artifacts, selection):
    """AWX merges the artifacts of a job with the variables of the workflow's launch."""
    variables = {**LABELS, **artifacts, f"__{role}_short_names": True, f"{role}_image": "a:2"}
    variables |= {f"{role}_{option}": variables.get(variable, "")
                  for option, variable in (("name", "controller"), ("names", "names"),
                                           ("label_selectors", "label_selectors"))}

    request = Request.of(release_request.Variables(role, variables, lambda value: value).request(
        load=lambda path: []))

    assert request.selection == selection if selection else request.errors[0].startswith(
        "Give exactly one of controller, names and label_selectors (given: ")
    assert bool(request.errors) is (selection is None)


@pytest.mark.parametrize("start, is_check_mode", [
    ({"__image_bump_start": {"check_mode": True}}, True),
    ({"__image_bump_start": {"check_mode": False}}, False), ({}, False)])
def test_check_mode_is_that_of_the_first_task(role, start, is_check_mode):
    """The variable ansible_check_mode ignores the keyword check_mode."""
    variables = {f"{role}_name": "foo", "ansible_check_mode": not is_check_mode, **start}

    request = release_request.Variables(role, variables, lambda value: value).request(
        load=lambda path: [])

    assert request["check_mode"] is is_check_mode


def test_undefined_variable_is_reported_in_the_request():
    def template(value):
        if value == "{{ nothing }}":
            raise AnsibleError("'nothing' is undefined")
        return value

    request = release_request.Variables("rollback", {"rollback_name": "{{ nothing }}"},
                                        template).request(load=lambda path: [])

    assert request["errors"] == ["rollback_name: 'nothing' is undefined"]


@pytest.mark.parametrize("content, is_valid",
                         [([{"debug": {}}], True), ({"hosts": "all"}, False),
                          (AnsibleError("vault"), False)])
def test_task_file_must_be_a_list_of_tasks(tmp_path, content, is_valid):
    def load(_path):
        if isinstance(content, Exception):
            raise content
        return content

    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "smoke.yml").touch()
    variables = {"image_bump_name": "foo", "image_bump_verify_tasks": ["smoke.yml"],
                 "playbook_dir": str(tmp_path)}
    request = release_request.Variables("image_bump", variables, lambda value: value).request(load)

    assert request["files"]["verify"][0]["path"] == str(tmp_path / "tasks" / "smoke.yml")
    assert (request["errors"] == []) is is_valid


def test_task_file_is_not_stored_in_the_cache_of_ansible(tmp_path):
    """Ansible 2.19 does not evaluate the templates of cached tasks."""
    loads = []

    class Loader:
        def load_from_file(self, path, cache="all"):
            loads.append((path, cache))
            return [{"debug": {}}]

    file = tmp_path / "smoke.yml"
    file.touch()
    lookup = release_request.LookupModule(
        loader=Loader(), templar=SimpleNamespace(template=lambda value: value))
    variables = {"image_bump_name": "foo", "image_bump_verify_tasks": ["smoke.yml"],
                 "playbook_dir": str(tmp_path)}

    lookup.run(["image_bump"], variables)

    assert loads == [(str(file), "none")]


def share_request(layer="role", **other_options):
    """Return the request of image_bump for a stage with a share."""
    variables = {"name": "foo", "image": "myimage:v2", "stages": "10%/1%", "route": "edge",
                 **other_options}
    prefixed_options = {f"image_bump_{option}": value for option, value in variables.items()}
    short_names_flag = {"__image_bump_short_names": True} if layer == "playbook" else {}
    return release_request.Variables("image_bump", prefixed_options | short_names_flag,
                                     lambda value: value).request(lambda path: [])


@pytest.mark.parametrize("stages, texts", [
    ("10%/1%,50%/20%,100%", ["10%/1%", "50%/20%", "100%"]),
    ("10%/1%\n50%", ["10%/1%", "50%"]),
    (["10%/1%", "50%,100%"], ["10%/1%", "50%", "100%"]),
    ([{"pods": "10%", "traffic": 0.5}, {"pods": 3, "traffic": "20%"}, 50],
     ["10%/0.5%", "3/20%", "50"]),
    ([{"pods": "10%", "traffic": None}], ["10%"]),
    ({"pods": "10%", "traffic": "1%"}, ["10%/1%"]),
    ("", ["100%"]),
])
def test_stages_are_texts_or_dictionaries(stages, texts):
    request = Request.of(share_request(stages=stages))

    assert request.errors == [] and list(map(str, request.stages)) == texts


@pytest.mark.parametrize("layer, values, error", [
    ("role", {"stages": "10%/101%"}, "image_bump_stages: weight 101% is more than 100%"),
    ("playbook", {"stages": "10%/many"},
     "stages: weight must be a percentage such as 1, 0.5 or 10%, not many%"),
    ("role", {"route": "Edge_1"}, "image_bump_route: route Edge_1 is not a valid name"),
    ("role", {"route_kind": "Ingress"}, "image_bump_route_kind: value of route_kind must be one"),
    ("role", {"service": "A"}, "image_bump_service: service A is not a valid name"),
    ("role", {"route": "", "service": "foo"}, "image_bump_stages: a weight of 1% needs a route"),
    ("role", {"route": "", "service": "foo", "stages": "50%/0%",
              "traffic_match": "[{headers: [{name: a, value: b}]}]"},
     "image_bump_traffic_match: match and mirror need a route"),
    ("role", {"traffic_match": [{}]}, "image_bump_traffic_match: an entry of match has neither"),
    ("playbook", {"traffic_match": "- [", "route": "edge"}, "traffic_match is not YAML: "),
    ("role", {"traffic_match": "text"}, "image_bump_traffic_match: "),
    ("role", {"route_kind": "GRPCRoute",
              "traffic_match": "[{query_params: [{name: a, value: b}]}]"},
     "image_bump_traffic_match: a GRPCRoute has no query parameters"),
])
def test_invalid_share_is_reported_in_the_request(layer, values, error):
    assert Request.of(share_request()).errors == []
    request = Request.of(share_request(layer, **values))

    assert request.errors[0].startswith(error), request.errors


def test_traffic_match_in_a_survey_is_yaml():
    text = "- headers: [{name: x-tester, value: 'yes'}]"

    assert share_request(traffic_match=text)["traffic"] == {
        "route": "edge", "match": [{"headers": [{"name": "x-tester", "value": "yes"}]}]}


@pytest.mark.parametrize("extra, inventory, limit, is_repeatable", [
    ({}, None, None, True), ({}, "/etc/ansible/hosts", None, True),
    ({"context": "lyon"}, None, None, True),
    ({"kubeconfig": "kind: Config\nusers: [{token: s3cret}]"}, None, None, True),
    ({"kubeconfig": {"users": []}}, None, None, True),
    ({"shop_url": "x"}, None, None, False), ({}, "hosts.yml", None, False),
    ({}, None, "localhost", False),
    ({"analysis": "[{prometheus_token: secret}]"}, None, None, False),
])
def test_user_options_are_kept_only_if_a_command_can_repeat_all(
        monkeypatch, extra, inventory, limit, is_repeatable):
    monkeypatch.setattr(release_request.context, "CLIARGS",
                        {"inventory": inventory and (inventory,), "subset": limit})
    extra = {"controller": "foo", "stages": "10%,50%", "max_surge": "2", "image": "", **extra}
    variables = {**extra, "__image_bump_short_names": True, "image_bump_name": "foo",
                 "image_bump_stages": "10%,50%", "image_bump_analysis": extra.get("analysis", "")}
    request = release_request.Variables("image_bump", variables, lambda value: value,
                                        extra).request(lambda path: [])

    assert request["user_options"] == (
        {"name": "foo", "stages": "10%,50%", "max_surge": "2"} if is_repeatable else {})
    assert request["selects_hosts"] is bool(inventory == "hosts.yml" or limit)
    assert request["cluster"] == ({"kubeconfig": None} if "kubeconfig" in extra else
                                  {name: extra[name] for name in ("context",) if name in extra})


def test_role_rollback_has_each_option_that_a_rollback_repeats():
    repeated = repeated_options(module_options("image_bump", non_default_values("image_bump")),
                                State.ROLLED_BACK, is_fleet=True)

    assert repeated.keys() <= options("rollback").keys()


def test_unknown_role_is_an_error():
    with pytest.raises(AnsibleError, match="is not a role of this collection"):
        release_request.rolling_update_specs("nginx")


def test_playbook_passes_all_options_of_the_role(role):
    files = [ROOT / "playbooks" / f"{role}.yml", ROOT / "playbooks" / "tasks" / f"{role}.yml"]
    parts = [part for file in files if file.exists() for part in yaml.safe_load(file.read_text())]
    (include,) = (task for part in parts for task in tasks(part.get("tasks", [part]))
                  if "tasks_from" not in task.get("ansible.builtin.include_role",
                                                  {"tasks_from": ""}))

    variables = {name: value
                 for name, value in include["vars"].items() if not name.startswith("__")}
    assert include["vars"][f"__{role}_short_names"] is True
    assert include["vars"][f"__{role}_has_artifacts"] is True
    assert {f"{role}_{name}" for name in ROLE_ONLY_OPTIONS[role]} <= set(variables) <= {
        f"{role}_{name}" for name in options(role)}
    for variable, template in variables.items():
        assert variable.removeprefix(f"{role}_") in template


def test_module_is_called_by_one_task():
    updates = [task["baton.kubernetes.rolling_update"]
               for file in (ROOT / "roles").glob("*/tasks/*.yml")
               for task in tasks(yaml.safe_load(file.read_text()))
               if "baton.kubernetes.rolling_update" in task]

    assert [list(arguments) for arguments in updates] == [["_arguments"]]
    assert "baton.kubernetes.turn_options" in updates[0]["_arguments"]


def test_tasks_of_roles_have_no_conditions():
    """Only the rows of release/table.py decide which tasks run."""
    files = [file for file in (ROOT / "roles").glob("*/tasks/*.yml") if file.name != "gate.yml"]
    for file in files:
        for task in tasks(yaml.safe_load(file.read_text())):
            assert not {"when", "always", "ignore_errors"} & task.keys(), file


def test_variables_of_the_role_are_private():
    assert all(name.startswith("__image_bump_") for name in read("roles/image_bump/vars/main.yml"))

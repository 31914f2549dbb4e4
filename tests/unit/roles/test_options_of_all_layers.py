# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the layers' options. Differences must be listed in docs/reference/options.md."""

from __future__ import annotations

import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.baton.kubernetes.plugins.doc_fragments.connection import ModuleDocFragment
from ansible_collections.baton.kubernetes.plugins.lookup import release_request
from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import kinds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    REMOVED_FROM_ROLES,
    parse_request,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import Turn
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import (
    PLAYBOOK_NAMES,
    Request,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.turn_options import (
    module_options,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.fleet import Fleet
from ansible_collections.baton.kubernetes.plugins.modules import (
    migrate_to_deployment,
    rolling_update,
    rolling_update_info,
    rollout_analysis,
    traffic_split,
)

Json = dict[str, t.Any]

ROOT = Path(__file__).resolve().parents[3]
ROLES = ("image_bump", "rollback")
KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Layers, by their names in docs/reference/options.md.
LAYERS = {"role `image_bump`": ["role image_bump"], "role `rollback`": ["role rollback"],
          "roles": ["role image_bump", "role rollback"],
          "module `migrate_to_deployment`": ["module migrate_to_deployment"],
          "module `rollout_analysis`": ["module rollout_analysis"],
          "module `traffic_split`": ["module traffic_split"],
          "module `rolling_update_info`": ["module rolling_update_info"],
          "playbook `rollback`": ["playbook rollback"],
          "playbooks": ["playbook image_bump", "playbook rollback"],
          "survey of *Image bump*": ["survey image_bump"],
          "survey of *Rollback*": ["survey rollback"],
          "surveys": ["survey image_bump", "survey rollback"]}
#: Question types of options without choices, by option type. Other types: text.
QUESTION_TYPES = {"list": "textarea", "dict": "textarea", "raw": "textarea"}


class Difference(t.NamedTuple):
    layer: str
    option: str
    aspect: str
    before: t.Any
    after: t.Any


def documented_differences() -> list[Difference]:
    """Return the documented differences, one for each option and layer."""
    page = (ROOT / "docs" / "reference" / "options.md").read_text("utf-8")
    lines = page.partition("\n## Options by purpose\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines
            if line.startswith("| ")][1:]
    assert all(why for *_row, why in rows)
    return [Difference(layer, option, aspect, parse_cell(before), parse_cell(after))
            for layers, options, aspect, before, after, _why in rows
            for layer in LAYERS[layers] for option in re.findall(r"`(\w+)`", options)]


def parse_cell(cell: str) -> str | None:
    return None if cell == "-" else cell.strip("`").removeprefix("''")


def as_text(default: t.Any) -> str | None:
    return None if default is None else str(default)


def questions(role: str) -> dict[str, Json]:
    options = {short: option for option in role_options(role)
               for short in release_request.short_names(option)}
    spec = json.loads((ROOT / "examples/awx" / f"{role}.survey.json").read_text("utf-8"))["spec"]
    return {options[question["variable"]]: question for question in spec}


def role_options(role: str) -> dict[str, Json]:
    specs = yaml.safe_load((ROOT / "roles" / role / "meta"
                            / "argument_specs.yml").read_text("utf-8"))
    return {name.removeprefix(f"{role}_"): spec
            for name, spec in specs["argument_specs"]["main"]["options"].items()}


def differences(layer: str, before: dict[str, Json],
                after: dict[str, Json]) -> t.Iterator[Difference]:
    """Yield the differences of the options that two layers share."""
    for option in before.keys() & after.keys():
        first, second = before[option], after[option]
        for aspect in ("type", "elements", "required"):
            if (first.get(aspect) or None) != (second.get(aspect) or None):
                yield Difference(layer, option, aspect, as_text(first.get(aspect)),
                                 as_text(second.get(aspect)))
        aliases = [", ".join(spec.get("aliases", ())) or None for spec in (first, second)]
        if aliases[0] != aliases[1]:
            yield Difference(layer, option, "alias", *aliases)
        suboptions = [spec.get("options", spec.get("suboptions")) or {} for spec in (first, second)]
        yield from differences(layer, suboptions[0], suboptions[1])
        yield from (Difference(layer, f"{option}.{suboption}", "option", suboption in suboptions[0],
                               suboption in suboptions[1])
                    for suboption in suboptions[0].keys() ^ suboptions[1].keys())
        if first.get("default") != second.get("default"):
            yield Difference(layer, option, "default", as_text(first.get("default")),
                             as_text(second.get("default")))
        yield from choice_differences(layer, option, first.get("choices", ()),
                                      second.get("choices", ()))


def choice_differences(layer: str, option: str, before: t.Collection[str],
                       after: t.Collection[str]) -> t.Iterator[Difference]:
    yield from (Difference(layer, option, "choices", choice, None)
                for choice in set(before) - set(after))
    yield from (Difference(layer, option, "choices", None, choice)
                for choice in set(after) - set(before))


def role_differences(role: str) -> t.Iterator[Difference]:
    options, layer = role_options(role), f"role {role}"
    yield from differences(layer, ARGUMENT_SPEC, options)
    yield from (Difference(layer, option, "option", None, "own")
                for option in options.keys() - ARGUMENT_SPEC.keys())
    yield from (Difference(layer, option, "option", "module", None)
                for option in ARGUMENT_SPEC.keys() - options.keys())


def playbook_differences(role: str) -> t.Iterator[Difference]:
    for option in role_options(role):
        first, *_older = release_request.short_names(option)
        if first != option:
            yield Difference(f"playbook {role}", option, "name", option, first)


def other_module_differences(spec: dict[str, Json], module: str) -> t.Iterator[Difference]:
    yield from differences(f"module {module}", task.UPDATE_OPTIONS, spec)


def survey_differences(role: str) -> t.Iterator[Difference]:
    options = role_options(role)
    for option, question in questions(role).items():
        spec, layer = options[option], f"survey {role}"
        if spec["type"] == "bool":
            spec = {"choices": ["no", "yes"], "default": "yes" if spec["default"] else "no"}
        question_type = ("multiplechoice" if "choices" in spec
                         else QUESTION_TYPES.get(spec["type"], "text"))
        if question["type"] != question_type:
            yield Difference(layer, option, "type", question_type, question["type"])
        default = spec.get("default", "")
        if question["default"] not in ("", default):
            before = ",".join(default) if isinstance(default, list) else as_text(default)
            yield Difference(layer, option, "default", before, question["default"])
        if question["type"] == "multiplechoice":
            yield from choice_differences(layer, option, set(spec["choices"]) - {""},
                                          question["choices"].splitlines())


@pytest.mark.parametrize("layer, differences_of",
                         [("role", role_differences), ("playbook", playbook_differences),
                          ("survey", survey_differences)])
def test_layers_differ_only_as_documented(layer, differences_of):
    documented = [row for row in documented_differences() if row.layer.startswith(layer)]

    assert sorted(map(str, documented)) == sorted(str(difference) for role in ROLES
                                                  for difference in differences_of(role))


def test_modules_differ_only_as_documented():
    specs = {"rolling_update_info": task.INFO_OPTIONS, "rollout_analysis": task.ANALYSIS_OPTIONS,
             "migrate_to_deployment": task.MIGRATION_OPTIONS, "traffic_split": task.TRAFFIC_OPTIONS}
    documented = [row for row in documented_differences() if row.layer.startswith("module")]

    assert sorted(map(str, documented)) == sorted(
        str(difference) for module, spec in specs.items()
        for difference in other_module_differences(spec, module))


@pytest.mark.parametrize("option", REMOVED_FROM_ROLES)
@pytest.mark.parametrize("variables, extra, name", [
    ({"image_bump_{}": 1}, (), "image_bump_{}"),
    ({"__image_bump_short_names": True}, ("{}",), "{}"),
    ({"__image_bump_short_names": True, "{}": 1}, (), ""),
    ({}, ("{}",), ""),
], ids=["role", "extra variable of a playbook", "variable of a playbook that is no extra variable",
        "extra variable of a role"])
def test_a_removed_option_is_an_error_with_the_replacement(option, variables, extra, name):
    role_variables = release_request.Variables(
        "image_bump", {key.format(option): value for key, value in variables.items()}
        | {"image_bump_name": "foo", "image_bump_image": "myimage:v2"}, lambda template: template,
        [text.format(option) for text in extra])

    errors = Request.of(role_variables.request(lambda path: [])).errors
    assert errors == ([f"{name.format(option)} was removed: {REMOVED_FROM_ROLES[option]}"]
                      if name else [])
    assert option not in ARGUMENT_SPEC and option not in role_options("image_bump")


@pytest.mark.parametrize("role", ROLES)
def test_each_layer_describes_each_option(role):
    options, survey = role_options(role), questions(role)
    fragment = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    module = fragment | yaml.safe_load(rolling_update.DOCUMENTATION)["options"]

    descriptions = [*map(first_paragraph, options.values()), *map(first_paragraph, module.values()),
                    *(question["question_name"] for question in survey.values())]
    assert [text for text in descriptions if len(text) < 4] == []
    assert survey.keys() <= options.keys()


@pytest.mark.parametrize("playbook", ["image_bump", "regions"])
def test_a_playbook_passes_each_variable_that_only_the_role_has(playbook):
    path = ROOT / "playbooks" / "tasks" / "image_bump.yml"
    (_paths_of_reports, task_of_playbook) = yaml.safe_load(path.read_text("utf-8"))
    role_only = role_options("image_bump").keys() - ARGUMENT_SPEC.keys()

    assert {f"image_bump_{option}" for option in role_only} <= task_of_playbook["vars"].keys()
    assert "tasks/image_bump.yml" in (ROOT / "playbooks" / f"{playbook}.yml").read_text("utf-8")


@pytest.mark.parametrize("module, spec", [
    (rolling_update, task.UPDATE_OPTIONS), (rolling_update_info, task.INFO_OPTIONS),
    (rollout_analysis, task.ANALYSIS_OPTIONS), (migrate_to_deployment, task.MIGRATION_OPTIONS),
    (traffic_split, task.TRAFFIC_OPTIONS),
], ids=["rolling_update", "rolling_update_info", "rollout_analysis", "migrate_to_deployment",
        "traffic_split"])
def test_module_documentation_equals_the_options(module, spec):
    fragment = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    documented = fragment | yaml.safe_load(module.DOCUMENTATION)["options"]

    assert documented.keys() == spec.keys()
    assert list(differences("documentation", spec, documented)) == []


def grouped_options() -> list[str]:
    """Return the options in the order of the documented groups."""
    page = (ROOT / "docs" / "reference" / "options.md").read_text("utf-8")
    section = page.partition("\n## Options by purpose\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ")][1:]
    return [option for row in rows for option in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize("module", [rolling_update, migrate_to_deployment])
def test_the_options_of_a_module_are_in_the_order_of_the_groups(module):
    options = yaml.safe_load(module.DOCUMENTATION)["options"]

    assert list(options) == [option for option in grouped_options() if option in options]


@pytest.mark.parametrize("role", ROLES)
def test_the_options_of_a_role_are_in_the_order_of_the_groups(role):
    options = role_options(role)

    assert list(options) == [option for option in grouped_options() if option in options]


def first_paragraph(option: Json) -> str:
    description = option["description"]
    return " ".join(str(description[0] if isinstance(description, list) else description).split())


@pytest.mark.parametrize("role", ROLES)
def test_each_layer_names_the_unit_of_an_option(role):
    module, options, survey = yaml.safe_load(rolling_update.DOCUMENTATION)["options"], role_options(
        role), questions(role)
    texts = {option: [first_paragraph(spec)] for option, spec in options.items()}
    for option, question in survey.items():
        texts[option].append(f"{question['question_name']} {question['question_description']}")

    for option in options.keys() & module.keys():
        for unit in ("econds", "percentage"):  # Seconds or seconds
            if unit in first_paragraph(module[option]):
                assert [text for text in texts[option] if unit not in text] == [], option
    assert all(text[0].isupper() for descriptions in texts.values() for text in descriptions)


def params_of_survey_job(role: str, kind: str, answers: Json) -> t.Iterator[Json]:
    """Yield the parameters of each task of a job with this survey."""
    variables = ({question["variable"]: question["default"]
                  for question in questions(role).values()} | answers)
    options = {name: option for option, name in PLAYBOOK_NAMES.items()}
    # The playbook also sets the variables of the role.
    role_variables = {f"{role}_{options.get(name, name)}": value
                      for name, value in variables.items()}
    request_variables = release_request.Variables(role, {**variables, **role_variables,
                                                         f"__{role}_short_names": True},
                                                  lambda template: template)
    request = Request.of(request_variables.request(lambda path: []))
    assert request.errors == []
    pauses = [{"pause_at": stage.pods} for stage in request.pauses]
    for turn_options in [*pauses, {}, {"state": "rolled_back"}]:
        params = module_options(request, Turn("update", "", "update", options=turn_options))
        valid = ArgumentSpecValidator(ARGUMENT_SPEC).validate(params | {"kind": kind})
        assert valid.error_messages == []
        yield with_kinds(valid.validated_parameters)


@pytest.mark.parametrize("selection",
                         [{"controller": "foo"}, {"names": "foo\nbar"},
                          {"label_selectors": "app=shop,tier=web"}],
                         ids=["name", "names", "label_selectors"])
@pytest.mark.parametrize("has_kind", [False, True],
                         ids=["without kind", "with kind"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_defaults_of_surveys_are_valid_for_each_kind(role, kind, selection, has_kind):
    answers = selection | {"image": "myimage:v2"} | ({"kind": kind} if has_kind else {})
    params_of_tasks = list(params_of_survey_job(role, kind, answers))

    for params in params_of_tasks:
        Fleet.from_params(params)
        parse_request({**params, "name": params.get("name") or "any"})
    assert len(params_of_tasks) == (4 if role == "image_bump" else 2)


def test_surveys_name_each_kind():
    texts = {role: questions(role)["kind"]["question_description"] for role in ROLES}

    assert [(role, kind) for role in ROLES for kind in KINDS if kind not in texts[role]] == []
    assert {*KINDS, "DeploymentConfig"} == set(kinds.KINDS)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the options of a task, with one sentence for each refused value."""

from __future__ import annotations

import dataclasses
import datetime
import json
import string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from invalid_options import INVALID_OPTIONS, NO_CHANGE
from request_builders import (
    DEFINITION,
    PATCH,
    V2,
    build_request,
    definition_with,
    refusal,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    REMOVED,
    parse_request,
    refuse_removed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size


@pytest.mark.parametrize("params, what", INVALID_OPTIONS.values(), ids=INVALID_OPTIONS)
def test_invalid_options_are_refused_with_one_sentence(params, what):
    error = refusal(**params)

    assert error.what == what
    assert error.message == (what if what.endswith(".") else what + ".")


def test_defaults():
    assert build_request(**V2) == Request(
        name="foo", namespace="default", state=State.UPDATED, next_name=None,
        images={"": "myimage:v2"}, template=None,
        definition=None, label_key="kubernetes.io/deployment", max_surge=Size(1),
        max_unavailable=Size(0), min_ready_seconds=None, progress_deadline=600)


def test_all_options_are_parsed():
    request = build_request(
        name="a.b", namespace="prod", next_name="bar", image="myimage:v2", container="web",
        deployment_label_key="x.io/y",
        max_surge="25%", max_unavailable="3", min_ready_seconds=5,
        progress_deadline=60.5)

    assert request == Request(
        name="a.b", namespace="prod", next_name="bar", images={"web": "myimage:v2"},
        label_key="x.io/y",
        max_surge=Size(25, percent=True), max_unavailable=Size(3), overrides_strategy=True,
        min_ready_seconds=5, progress_deadline=60.5)


@pytest.mark.parametrize("option",
                         sorted(ARGUMENT_SPEC.keys()
                                - {"name", "image", "deployment_label_key", "progress"}))
def test_empty_text_counts_as_omitted(option):
    """AWX passes an empty survey field as ""."""
    assert build_request(**V2, **{option: ""}) == build_request(**V2)


@pytest.mark.parametrize("arguments, message", [
    ({"to_kind": "Deployment"}, "to_kind was removed: use the module baton.kubernetes.migrate_to"),
    ({"release_owner": "true"}, "release_owner was removed: use the module baton.kubernetes.migr"),
    ({"state": "migrated"}, "state=migrated was removed: use the module baton.kubernetes.migrat"),
    ({"return_sizes": True}, "return_sizes was removed: the roles collect the sizes for their"),
    ({"kinds": ["sts"]}, "kinds was removed: kind takes several kinds, as in kind=deploy,sts"),
    ({"revision_history_limit": 0},
     "revision_history_limit was removed: the last 10 templates are stored"),
    ({"max_steps": 3}, "max_steps was removed: pause_at ends a task at a number of new pods"),
    ({"update_period": "10s"}, "update_period was removed: min_ready_seconds sets how long a new"),
])
def test_a_removed_option_is_refused_with_its_replacement(arguments, message):
    with pytest.raises(RolloutError, match=message):
        refuse_removed(Module.ROLLING_UPDATE, {"name": "foo", **arguments})


@pytest.mark.parametrize("module", [Module.ROLLING_UPDATE, Module.MIGRATION])
@pytest.mark.parametrize("option", ["order_annotation", "record_events"])
def test_an_option_removed_from_all_modules_is_refused(module, option):
    with pytest.raises(RolloutError, match=f"{option} was removed: "):
        refuse_removed(module, {"name": "foo", option: "x"})


@pytest.mark.parametrize("module", [Module.ROLLING_UPDATE, Module.MIGRATION, None])
def test_the_option_kinds_is_refused_by_each_module(module):
    with pytest.raises(RolloutError, match="kinds was removed: kind takes several kinds"):
        refuse_removed(module, {"kinds": ["sts"]})


@pytest.mark.parametrize("module, arguments", [
    (None, {"kind": "sts", "state": "migrated"}),
    (Module.ROLLING_UPDATE, {"state": "rolled_back"}), (Module.ROLLING_UPDATE, {"state": ["x"]}),
    (Module.MIGRATION, {"state": "migrated", "release_owner": True}),
])
def test_a_current_option_is_not_refused_as_removed(module, arguments):
    refuse_removed(module, {"name": "foo", **arguments})


def test_argument_spec_has_no_removed_option():
    assert not REMOVED.keys() & ARGUMENT_SPEC.keys()


@pytest.mark.parametrize("params",
                         [{"image": ""}, {"images": {}}, {"template": {}}, {"definition": ""},
                          {"src": ""}], ids=str)
def test_empty_change_is_refused(params):
    assert refusal(**params).what == NO_CHANGE


@pytest.mark.parametrize("params", [V2, {"definition": DEFINITION}, {}],
                         ids=["image", "definition", "nothing"])
def test_rollback_is_accepted_with_and_without_a_change(params):
    """The roles also pass the options of an update to its rollback."""
    request = build_request(state="rolled_back", **params)

    assert request.state is State.ROLLED_BACK and not request.needs_dry_run


# Sizes


@given(st.integers(0, 10**9 - 1))
def test_size_as_a_number(number):
    request = build_request(**V2, max_surge=f" {number} ", max_unavailable="1")

    assert request.max_surge == Size(number)


@given(st.integers(0, 100))
def test_size_as_a_percentage(number):
    assert build_request(**V2, max_surge=f"{number}%", max_unavailable="1").max_surge == Size(
        number, percent=True)


@given(st.integers(101, 10**9 - 1))
def test_percentage_over_100_is_refused(number):
    assert refusal(**V2,
                   max_unavailable=f"{number}%").what == f"max_unavailable {number}% is over 100%"


@given(st.text(st.sampled_from(string.digits + "%.-+_ e٣²")))
def test_size_is_parsed_or_refused(text):
    digits = text.strip().removesuffix("%")
    try:
        size = build_request(**V2, max_surge=text, max_unavailable="1").max_surge
    except RolloutError:
        return
    assert (text == ""
            or (size.value == int(digits) and size.percent == text.strip().endswith("%")))


# Definitions


@pytest.mark.parametrize("content", [
    DEFINITION, [DEFINITION], yaml.safe_dump(DEFINITION), json.dumps(DEFINITION),
    "---\n" + yaml.safe_dump(DEFINITION) + "---\n",
], ids=["dict", "list with one element", "YAML", "JSON", "YAML with empty documents"])
def test_forms_of_a_definition(content):
    request = build_request(definition=content)

    assert (request.definition, request.next_name) == (DEFINITION, "bar")


def test_definition_from_a_file(tmp_path):
    path = tmp_path / "bar.yaml"
    path.write_text(yaml.safe_dump(DEFINITION))

    assert build_request(src=str(path)) == build_request(definition=DEFINITION)


def test_definition_without_a_name():
    assert build_request(definition={**DEFINITION, "metadata": {}}).next_name is None


def test_definition_with_the_name_and_namespace_of_the_task():
    definition = {**DEFINITION, "metadata": {"name": "bar", "namespace": "prod"}}

    request = build_request(definition=definition, namespace="prod", next_name="bar")

    assert request.next_name == "bar"


@pytest.mark.parametrize("content, what", [
    (None, "src {path} cannot be read"),
    (b"\xff\xfe", "src {path} cannot be read"),
    (b"a: [", "src is not valid YAML"),
    (b"", "src contains 0 documents: it must be exactly one ReplicationController"),
    (b"a: 1\n---\nb: 2\n",
     "src contains 2 documents: it must be exactly one ReplicationController"),
    (b"kind: Pod\n", "src is of kind Pod: it must be a ReplicationController"),
    (b"kind: ReplicationController\n", "src has no pod template (spec.template.spec)"),
], ids=["missing", "not text", "not YAML", "empty", "several documents", "another kind",
        "without template"])
def test_invalid_file(content, what, tmp_path):
    path = tmp_path / "bar.yaml"
    if content is not None:
        path.write_bytes(content)

    error = refusal(src=str(path))

    assert error.what == what.format(path=path)
    assert bool(error.why) == ("cannot" in what or "YAML" in what) and "\n" not in error.why


CIRCULAR = {}
CIRCULAR["x"] = CIRCULAR


@pytest.mark.parametrize("content, why", [
    (datetime.date(2026, 1, 1), "Object of type date is not JSON serializable"),
    ({1, 2}, "Object of type set is not JSON serializable"),
    (float("nan"), "Out of range float values are not JSON compliant"),
    ({1: 2, "a": 3}, "'<' not supported between instances of 'str' and 'int'"),
    (CIRCULAR, "Circular reference detected"),
    ("\ud83d", "surrogates not allowed"),
], ids=["date", "set", "NaN", "number as key", "circular reference", "surrogate"])
@pytest.mark.parametrize("option, build_value",
                         [("definition", lambda x: definition_with(x=x)),
                          ("template", lambda x: {"spec": {"x": x}})],
                         ids=["definition", "template"])
def test_yaml_that_is_not_json_is_refused(option, build_value, content, why):
    error = refusal(**{option: build_value(content)})

    assert error.what == f"{option} cannot be sent to the API server"
    assert why in error.why


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "a: 0000-00-00"],
                         ids=["deep nesting", "invalid date"])
def test_yaml_that_crashes_the_parser_is_refused(text):
    assert refusal(definition=text).what == "definition is not valid YAML"


@pytest.mark.parametrize("option",
                         sorted(ARGUMENT_SPEC.keys() & {
                             field.name for field in dataclasses.fields(Request)}))
def test_default_of_an_option_is_the_default_of_the_request(option):
    minimal_request = parse_request({"name": "foo", **V2})

    assert getattr(build_request(**V2), option) == getattr(minimal_request, option)


@pytest.mark.parametrize("change",
                         [{"template": PATCH}, {"definition": DEFINITION}, {"src": "/nowhere"}])
def test_rollback_ignores_the_requested_template(change):
    rollback = {"name": "foo", "state": "rolled_back", "to_revision": 1}

    assert parse_request(rollback | change) == parse_request(rollback)


def test_to_revision_is_a_number_or_previous():
    rollback = {"name": "foo", "state": "rolled_back"}
    requests = [parse_request({**rollback, "to_revision": value})
                for value in (3, "3", " 3 ", "previous", " previous\n", "")]

    assert [(request.to_revision, request.rolls_back_to_previous) for request in requests] == [
        *[(3, False)] * 3, *[(None, True)] * 2, (None, False)]


@pytest.mark.parametrize("text, seconds", [
    (None, 0), ("", 0), ("0", 0), (90, 90), ("90", 90), (" 1.5 ", 1.5), ("90s", 90), ("10m", 600),
    ("1h", 3600), ("1h30m", 5400),
    ("1h0m5s", 3605)])
def test_soak_is_seconds_or_a_duration(text, seconds):
    assert build_request(image="myimage:v2", soak=text).soak == seconds

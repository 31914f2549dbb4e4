# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a task may ask for, and the one sentence for everything that it may not."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shlex
import string

import pytest
import yaml
from ansible.parsing.splitter import parse_kv
from builders import template
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC, request_from
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import differ_in_images_only, images_of, repository
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

DEFINITION = {"kind": "ReplicationController", "metadata": {"name": "bar"}, "spec": {"template": template("myimage:v2")}}
PATCH = {"spec": {"hostNetwork": True}}


def ask(**params):
    """The request of a module that is given these options."""
    defaults = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    return request_from({**defaults, "name": "foo", **params})


def refusal(**params):
    with pytest.raises(RolloutError) as refused:
        ask(**params)
    return refused.value


def defined(**spec):
    """A definition whose spec has these fields too."""
    return {**DEFINITION, "spec": {**DEFINITION["spec"], **spec}}


def pods(*containers, **spec):
    """A template of containers, each as name=image."""
    pairs = [each.partition("=") for each in containers]
    return {"spec": {**spec, "containers": [{"name": name, "image": image} for name, _equals, image in pairs]}}


V2 = {"image": "myimage:v2"}
NAME = "small letters, digits, '-' and '.', at most 253"
NOTHING = "nothing to update: give one of image, images, template, definition or src"
BAD_INPUT = {
    "nothing asked for": ({}, NOTHING),
    "image and definition both given":
        (V2 | {"definition": DEFINITION}, "image and definition are both given: say what changes in one way only"),
    "image and images both given":
        (V2 | {"images": {"web": "a"}}, "image and images are both given: say what changes in one way only"),
    "three ways at once":
        (V2 | {"template": PATCH, "src": "x"}, "image and template and src are both given: say what changes in one way only"),
    "restarted with an image":
        (V2 | {"state": "restarted"}, "state=restarted keeps the template: remove image, or use state=updated"),
    "container without image": ({"images": {"web": "a"}, "container": "web"}, "container is given without image"),
    "no name": (V2 | {"name": ""}, f"name '' is no object's name: {NAME}"),
    "name with a capital letter": (V2 | {"name": "Foo"}, f"name 'Foo' is no object's name: {NAME}"),
    "name with an empty part": (V2 | {"name": "foo..a"}, f"name 'foo..a' is no object's name: {NAME}"),
    "name too long": (V2 | {"name": "a" * 254}, f"name '{'a' * 254}' is no object's name: {NAME}"),
    "name for a shell": (V2 | {"name": "foo;id"}, f"name 'foo;id' is no object's name: {NAME}"),
    "name with a line end": (V2 | {"name": "foo\n"}, f"name 'foo\\n' is no object's name: {NAME}"),
    "next_name that is none": (V2 | {"next_name": "-bar"}, f"next_name '-bar' is no object's name: {NAME}"),
    "next named like foo":
        (V2 | {"next_name": "foo"}, "the next controller may not be named foo as well: both exist during the update"),
    "definition named like foo": ({"definition": {**DEFINITION, "metadata": {"name": "foo"}}},
                                  "the next controller may not be named foo as well: both exist during the update"),
    "definition named otherwise than next_name": (
        {"definition": DEFINITION, "next_name": "baz"}, "next_name is baz and the definition is named bar: give one name"),
    "definition for another namespace": ({"definition": {**DEFINITION, "metadata": {"namespace": "other"}}},
                                         "the definition is for namespace other, the task for default"),
    "namespace that is none": (V2 | {"namespace": "a.b"}, "namespace 'a.b' is no namespace's name"),
    "namespace too long": (V2 | {"namespace": "a" * 64}, f"namespace '{'a' * 64}' is no namespace's name"),
    "definition of another kind": (
        {"definition": {**DEFINITION, "kind": "Deployment"}},
        "definition is of kind Deployment: it must be a ReplicationController"),
    "definition without kind": (
        {"definition": {"spec": {}}}, "definition is of kind None: it must be a ReplicationController"),
    "definition that is a word": ({"definition": "word"}, "definition is of kind str: it must be a ReplicationController"),
    "definition of several documents": (
        {"definition": "a: 1\n---\nb: 2\n"}, "definition holds 2 documents: it must be one ReplicationController"),
    "definition of several elements": (
        {"definition": [DEFINITION, DEFINITION]}, "definition holds 2 documents: it must be one ReplicationController"),
    "definition of comments only": (
        {"definition": "# nothing\n"}, "definition holds 0 documents: it must be one ReplicationController"),
    "definition without template": (
        {"definition": {**DEFINITION, "spec": {}}}, "definition has no pod template (spec.template.spec)"),
    "definition whose spec is a list": (
        {"definition": {**DEFINITION, "spec": [1]}}, "definition has no pod template (spec.template.spec)"),
    "definition whose metadata is a list": (
        {"definition": {**DEFINITION, "metadata": [1]}}, "definition has no pod template (spec.template.spec)"),
    "definition without labels": (
        {"definition": defined(template=pods("web=a"))}, "definition has no labels in its pod template"),
    "definition with a selector that its template does not match": (
        {"definition": defined(selector={"app": "bar", "tier": "x"})},
        "the selector app=bar,tier=x of definition does not match its own template's labels app=foo"),
    "definition whose name is a number": (
        {"definition": {**DEFINITION, "metadata": {"name": 5}}}, "name and namespace of definition must be texts"),
    "definition whose namespace is a number": (
        {"definition": {**DEFINITION, "metadata": {"namespace": 5}}}, "name and namespace of definition must be texts"),
    "definition whose selector is a list": (
        {"definition": defined(selector=["app"])}, "spec.selector of definition is no mapping of texts to texts"),
    "definition whose template's metadata is a list": (
        {"definition": defined(template={**template(), "metadata": ["app"]})},
        "spec.template.metadata.labels of definition is no mapping of texts to texts"),
    "definition with a label that is a number": (
        {"definition": {**DEFINITION, "metadata": {"labels": {"a": 1}}}},
        "metadata.labels of definition is no mapping of texts to texts"),
    "definition with an annotation that is no text": (
        {"definition": {**DEFINITION, "metadata": {"annotations": {"a": True}}}},
        "metadata.annotations of definition is no mapping of texts to texts"),
    "empty label key": (V2 | {"deployment_label_key": ""},
                        "deployment_label_key '' is no label's key, such as kubernetes.io/deployment"),
    "label key with two slashes": (V2 | {"deployment_label_key": "a/b/c"},
                                   "deployment_label_key 'a/b/c' is no label's key, such as kubernetes.io/deployment"),
    "label key without a name": (V2 | {"deployment_label_key": "a.io/"},
                                 "deployment_label_key 'a.io/' is no label's key, such as kubernetes.io/deployment"),
    "label key too long": (V2 | {"deployment_label_key": "a" * 64},
                           f"deployment_label_key '{'a' * 64}' is no label's key, such as kubernetes.io/deployment"),
    "percentage over 100": (V2 | {"max_surge": "101%"}, "max_surge 101% is over 100%"),
    "percentage that is no number": (
        V2 | {"max_surge": "oops%"}, "max_surge 'oops%' is neither a number nor a percentage such as \"25%\""),
    "percentage of nothing": (
        V2 | {"max_unavailable": "%"}, "max_unavailable '%' is neither a number nor a percentage such as \"25%\""),
    "size below 0": (
        V2 | {"max_unavailable": "-1"}, "max_unavailable '-1' is neither a number nor a percentage such as \"25%\""),
    "size with a fraction": (
        V2 | {"max_surge": "1.5"}, "max_surge '1.5' is neither a number nor a percentage such as \"25%\""),
    "surge and unavailable both 0": (
        V2 | {"max_surge": "0", "max_unavailable": "0"},
        "max_surge and max_unavailable are both 0: nothing could ever move; set one of them to 1"),
    "surge 0% and unavailable 0": (
        V2 | {"max_surge": "0%"}, "max_surge and max_unavailable are both 0: nothing could ever move; set one of them to 1"),
    "image with a space": ({"image": " a"}, "' a' is no image's name"),
    "image with a quote": ({"image": "a'b"}, '"a\'b" is no image\'s name'),
    "image for a shell": ({"image": "a;id"}, "'a;id' is no image's name"),
    "container that is none": (V2 | {"container": "a b"}, "'a b' is no container's name"),
    "image of a container that is empty": ({"images": {"web": ""}}, "'' is no image's name (container web)"),
    "image of a container that is a number": ({"images": {"web": 7}}, "7 is no image's name (container web)"),
    "min_ready_seconds below 0": (V2 | {"min_ready_seconds": -1}, "min_ready_seconds -1 is no number of seconds"),
    "update_period below 0": (V2 | {"update_period": -0.5}, "update_period -0.5 is no number of seconds"),
    "progress_deadline 0": (V2 | {"progress_deadline": 0}, "progress_deadline 0 is no number of seconds above 0"),
    "progress_deadline no number": (
        V2 | {"progress_deadline": float("nan")}, "progress_deadline nan is no number of seconds above 0"),
    "to another kind without migration": (V2 | {"to_kind": "Deployment"}, "to_kind is for state=migrated"),
    "a migration to nothing": ({"state": "migrated"}, "state=migrated needs to_kind=Deployment"),
    "a migration of a Deployment": (
        {"state": "migrated", "to_kind": "Deployment", "kind": "Deployment"},
        "state=migrated is for a ReplicationController: a Deployment is none"),
    "a migration to another image": (
        V2 | {"state": "migrated", "to_kind": "Deployment"},
        "state=migrated keeps the pods: remove image, and update the Deployment afterwards"),
    "a revision to update to": (
        V2 | {"kind": "Deployment", "to_revision": 1}, "to_revision is for state=rolled_back"),
    "a revision before the first": (
        {"kind": "Deployment", "state": "rolled_back", "to_revision": 0},
        "to_revision 0 is no revision's number: the first one is 1"),
    "a history without end": (V2 | {"revision_history_limit": 101}, "revision_history_limit 101 is no number from 0 to 100"),
    "a Deployment with another name": (
        V2 | {"kind": "Deployment", "next_name": "bar"},
        "next_name is not for kind=Deployment, whose steps are the server's: leave it out"),
    "a Deployment one step at a time": (
        V2 | {"kind": "Deployment", "max_steps": 1},
        "max_steps is not for kind=Deployment, whose steps are the server's: leave it out"),
    "a Deployment by another kind's definition": (
        {"kind": "Deployment", "definition": {"kind": "ReplicationController"}},
        "definition is of kind ReplicationController: it must be a Deployment"),
    "a Deployment by another's definition": (
        {"kind": "Deployment", "definition": {"kind": "Deployment", "metadata": {"name": "bar"}, "spec": {"template": {
            "metadata": {"labels": {"app": "foo"}}, "spec": {}}}}},
        "the definition is named bar, the task is for foo: a Deployment keeps its name"),
    "min_ready_seconds that no deadline allows": (
        V2 | {"min_ready_seconds": 600}, "progress_deadline (600 s) must be greater than min_ready_seconds (600 s)"),
}


@pytest.mark.parametrize("params, what", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_refused_with_one_sentence(params, what):
    error = refusal(**params)

    assert error.what == what
    assert error.message == (what if what.endswith(".") else what + ".")


def test_the_defaults_are_one_pod_more_and_none_less():
    assert ask(**V2) == Request(
        name="foo", namespace="default", state=State.UPDATED, next_name=None, images={"": "myimage:v2"}, template=None,
        definition=None, label_key="kubernetes.io/deployment", max_surge=Size(1), max_unavailable=Size(0),
        min_ready_seconds=None, update_period=0, progress_deadline=600)


def test_every_option_arrives():
    request = ask(
        name="a.b", namespace="prod", next_name="bar", image="myimage:v2", container="web", deployment_label_key="x.io/y",
        max_surge="25%", max_unavailable="3", min_ready_seconds=5, update_period=1.5, progress_deadline=60.5)

    assert request == Request(
        name="a.b", namespace="prod", next_name="bar", images={"web": "myimage:v2"}, label_key="x.io/y",
        max_surge=Size(25, percent=True), max_unavailable=Size(3), gives_pace=True, min_ready_seconds=5, update_period=1.5,
        progress_deadline=60.5)


@pytest.mark.parametrize("option", sorted(ARGUMENT_SPEC.keys() - {"name", "image", "deployment_label_key", "progress"}))
def test_an_empty_text_is_as_good_as_not_given(option):
    """AWX hands on what nobody filled in as "" (design, conventions)."""
    assert ask(**V2, **{option: ""}) == ask(**V2)


@pytest.mark.parametrize("params", [{"image": ""}, {"images": {}}, {"template": {}}, {"definition": ""}, {"src": ""}], ids=str)
def test_an_empty_change_is_no_change(params):
    assert refusal(**params).what == NOTHING


@pytest.mark.parametrize("params", [V2, {"definition": DEFINITION}, {}], ids=["image", "definition", "nothing"])
def test_a_rollback_needs_no_change_and_bears_one(params):
    """The role and the play are the same for both ways."""
    request = ask(state="rolled_back", **params)

    assert request.state is State.ROLLED_BACK and not request.asks_the_server


@pytest.mark.parametrize("params, expected", [
    (V2, False), ({"template": PATCH}, True), ({"definition": DEFINITION}, True),
    ({"state": "restarted"}, False), ({"state": "rolled_back", "template": PATCH}, False),
], ids=["image", "template", "definition", "restarted", "rolled_back"])
def test_the_server_is_asked_only_for_what_it_alone_knows(params, expected):
    assert ask(**params).asks_the_server is expected


# Sizes


@given(st.integers(0, 10**9 - 1))
def test_a_size_is_a_number_of_replicas(number):
    assert ask(**V2, max_surge=f" {number} ", max_unavailable="1").max_surge == Size(number)


@given(st.integers(0, 100))
def test_a_size_may_be_a_percentage(number):
    assert ask(**V2, max_surge=f"{number}%", max_unavailable="1").max_surge == Size(number, percent=True)


@given(st.integers(101, 10**9 - 1))
def test_a_percentage_over_100_is_refused(number):
    assert refusal(**V2, max_unavailable=f"{number}%").what == f"max_unavailable {number}% is over 100%"


@given(st.text(st.sampled_from(string.digits + "%.-+_ e٣²")))
def test_a_size_is_read_as_one_or_refused(text):
    """Digits of other alphabets, fractions, signs: nothing raises anything else."""
    well_formed = text.strip().removesuffix("%")
    try:
        size = ask(**V2, max_surge=text, max_unavailable="1").max_surge
    except RolloutError:
        return
    assert text == "" or size.value == int(well_formed) and size.percent == text.strip().endswith("%")


# Images


@pytest.mark.parametrize("image, expected", [
    ("myimage", "myimage"),
    ("myimage:v1", "myimage"),
    ("library/myimage:v1", "library/myimage"),
    ("localhost:5000/myimage", "localhost:5000/myimage"),
    ("localhost:5000/myimage:v1", "localhost:5000/myimage"),
    ("registry.example.com/team/myimage@sha256:abc", "registry.example.com/team/myimage"),
    ("registry.example.com:443/team/myimage:v1@sha256:abc", "registry.example.com:443/team/myimage"),
])
def test_a_repository_is_the_image_without_tag_and_digest(image, expected):
    assert repository(image) == expected


def changed(template, **params):
    return images_of(ask(**params).applied_to(template))


def test_the_only_container_gets_the_image_whatever_it_is():
    assert changed(pods("web=one:v1"), image="two:v2") == {"web": "two:v2"}


def test_the_only_container_that_runs_the_same_repository_gets_the_image():
    both = pods("web=localhost:5000/web:v1", "log=localhost:5000/log:v1")

    assert changed(both, image="localhost:5000/log:v2") == {"web": "localhost:5000/web:v1", "log": "localhost:5000/log:v2"}


def test_the_container_that_is_named_gets_the_image():
    assert changed(pods("web=a:1", "log=b:1"), image="c:2", container="log") == {"web": "a:1", "log": "c:2"}


def test_an_init_container_that_is_named_gets_the_image():
    both = pods("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    assert changed(both, image="b:2", container="prepare") == {"prepare": "b:2", "web": "a:1"}


def test_an_init_container_never_makes_the_choice_of_a_container_unclear():
    both = pods("web=a:1", initContainers=[{"name": "prepare", "image": "a:1"}])

    assert changed(both, image="a:2") == {"prepare": "a:1", "web": "a:2"}


def test_several_images_are_set_at_once_and_the_rest_stays():
    before = pods("web=a:1", "log=b:1", "mesh=c:1")

    assert changed(before, images={"web": "a:2", "log": "b:2"}) == {"web": "a:2", "log": "b:2", "mesh": "c:1"}


def test_setting_an_image_leaves_the_template_it_came_from_alone():
    before = pods("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])

    ask(image="a:2").applied_to(before)

    assert before == pods("web=a:1", initContainers=[{"name": "prepare", "image": "b:1"}])


@pytest.mark.parametrize("containers, params, what", [
    (["web=a:1", "log=b:1"], {"image": "c:2"},
     "which container of foo gets the image c:2? None runs c now; give container: one of web, log"),
    (["web=a:1", "log=a:1"], {"image": "a:2"},
     "which container of foo gets the image a:2? Several run a now; give container: one of web, log"),
    (["web=a:1", "log=b:1"], {"image": "a:2", "container": "nope"},
     "there is no container nope in the template of foo; it has: web, log"),
    (["web=a:1"], {"images": {"web": "a:2", "nope": "b:2"}}, "there is no container nope in the template of foo; it has: web"),
], ids=["none runs it", "several run it", "unknown container", "unknown container among several"])
def test_a_container_that_is_not_clear_is_refused(containers, params, what):
    with pytest.raises(RolloutError) as refused:
        ask(**params).applied_to(pods(*containers))

    assert refused.value.what == what


# Restart


def test_a_restart_changes_one_annotation_and_the_same_one_on_every_rerun():
    restart = ask(state="restarted")

    once, again = restart.applied_to(template()), restart.applied_to(template(label="differs"))

    token = once["metadata"].pop("annotations")[marks.RESTART]
    assert once == template()
    assert again["metadata"]["annotations"] == {marks.RESTART: token}


def test_a_restart_of_what_was_restarted_is_another_one():
    restart = ask(state="restarted")

    once = restart.applied_to(template())

    assert restart.applied_to(once) != once


# Definitions


@pytest.mark.parametrize("given_as", [
    DEFINITION, [DEFINITION], yaml.safe_dump(DEFINITION), json.dumps(DEFINITION), "---\n" + yaml.safe_dump(DEFINITION) + "---\n",
], ids=["dict", "list of one", "YAML", "JSON", "YAML with empty documents"])
def test_a_definition_may_be_given_as(given_as):
    request = ask(definition=given_as)

    assert (request.definition, request.next_name) == (DEFINITION, "bar")


def test_a_definition_from_a_file(tmp_path):
    path = tmp_path / "bar.yaml"
    path.write_text(yaml.safe_dump(DEFINITION))

    assert ask(src=str(path)) == ask(definition=DEFINITION)


def test_a_definition_without_a_name_leaves_the_name_to_the_hash():
    assert ask(definition={**DEFINITION, "metadata": {}}).next_name is None


def test_a_definition_may_repeat_the_name_and_namespace_of_the_task():
    definition = {**DEFINITION, "metadata": {"name": "bar", "namespace": "prod"}}

    assert ask(definition=definition, namespace="prod", next_name="bar").next_name == "bar"


@pytest.mark.parametrize("content, what", [
    (None, "src {path} cannot be read"),
    (b"\xff\xfe", "src {path} cannot be read"),
    (b"a: [", "src is not YAML"),
    (b"", "src holds 0 documents: it must be one ReplicationController"),
    (b"a: 1\n---\nb: 2\n", "src holds 2 documents: it must be one ReplicationController"),
    (b"kind: Pod\n", "src is of kind Pod: it must be a ReplicationController"),
    (b"kind: ReplicationController\n", "src has no pod template (spec.template.spec)"),
], ids=["missing", "not text", "not YAML", "empty", "of several documents", "of another kind", "without template"])
def test_a_file_that_is(content, what, tmp_path):
    path = tmp_path / "bar.yaml"
    if content is not None:
        path.write_bytes(content)

    error = refusal(src=str(path))

    assert error.what == what.format(path=path)
    assert bool(error.why) == ("cannot" in what or "not YAML" in what) and "\n" not in error.why


LOOP = {}
LOOP["x"] = LOOP


@pytest.mark.parametrize("content, why", [
    (datetime.date(2026, 1, 1), "Object of type date is not JSON serializable"),
    ({1, 2}, "Object of type set is not JSON serializable"),
    (float("nan"), "Out of range float values are not JSON compliant"),
    ({1: 2, "a": 3}, "'<' not supported between instances of 'str' and 'int'"),
    (LOOP, "Circular reference detected"),
    ("\ud83d", "surrogates not allowed"),
], ids=["a date", "a set", "not a number", "keys that are no texts", "itself", "half a character"])
@pytest.mark.parametrize("option, value", [("definition", lambda x: defined(x=x)), ("template", lambda x: {"spec": {"x": x}})],
                         ids=["definition", "template"])
def test_what_yaml_can_say_and_json_cannot_is_refused(option, value, content, why):
    error = refusal(**{option: value(content)})

    assert error.what == f"{option} cannot be sent to the API server"
    assert why in error.why


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "a: 0000-00-00"], ids=["nested too deeply", "no date"])
def test_text_that_the_parser_cannot_bear_is_not_yaml(text):
    assert refusal(definition=text).what == "definition is not YAML"


@pytest.mark.parametrize("of_primary, of_successor, is_refused", [
    ({"app": "foo"}, {"app": "bar"}, False),
    ({"app": "foo", "tier": "x"}, {"app": "foo", "tier": "y"}, False),
    ({"app": "foo"}, {"app": "foo"}, True),
    ({"app": "foo", "tier": "x"}, {"app": "foo"}, True),
    ({"app": "foo"}, {"app": "foo", "tier": "y"}, True),
    ({"app": "foo"}, None, False),
], ids=["another value", "another value of one", "the same", "a part of it", "more, but no other value", "none given"])
def test_a_selector_needs_a_key_of_foo_s_with_another_value(of_primary, of_successor, is_refused):
    request = Request("foo", definition={"spec": {"selector": of_successor}})

    if is_refused:
        with pytest.raises(RolloutError, match="^the definition's selector .* does not differ from the selector of foo"):
            request.refuse_selector_of(of_primary)
    else:
        request.refuse_selector_of(of_primary)


# The command to type


def typed(command):
    """The options that reach the module when a shell runs this ad-hoc command."""
    *words, arguments = shlex.split(command)
    assert words == ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a"]
    return json.loads(arguments) if arguments.startswith("{") else parse_kv(arguments)


@pytest.mark.parametrize("params, expected", [
    (V2, {"name": "foo", "image": "myimage:v2"}),
    (V2 | {"container": "web", "namespace": "prod"},
     {"name": "foo", "namespace": "prod", "image": "myimage:v2", "container": "web"}),
    (V2 | {"next_name": "bar", "deployment_label_key": "x.io/y"},
     {"name": "foo", "next_name": "bar", "deployment_label_key": "x.io/y", "image": "myimage:v2"}),
    ({"images": {"web": "a:2", "log": "b:2"}}, {"name": "foo", "images": {"web": "a:2", "log": "b:2"}}),
    ({"state": "restarted"}, {"name": "foo", "state": "restarted"}),
    ({"state": "rolled_back"}, {"name": "foo", "state": "rolled_back"}),
], ids=["image", "container", "next_name and label key", "images", "restarted", "rolled_back"])
def test_the_command_asks_for_the_same(params, expected):
    assert typed(ask(**params).command()) == expected


@pytest.mark.parametrize("change", [{"template": PATCH}, {"definition": DEFINITION}], ids=["template", "definition"])
def test_what_is_too_long_for_a_command_is_to_be_run_again(change):
    assert ask(**change).command() == "run the same task again"
    assert typed(ask(**change).command(State.ROLLED_BACK))["state"] == "rolled_back"


def test_the_command_may_ask_for_another_state_or_other_images():
    request = ask(**V2, next_name="bar", namespace="prod")

    assert typed(request.command(State.ROLLED_BACK)) == {
        "name": "foo", "namespace": "prod", "next_name": "bar", "state": "rolled_back"}
    assert typed(request.command(State.UPDATED, {"web": "myimage:v1"})) == {
        "name": "foo", "namespace": "prod", "image": "myimage:v1", "container": "web"}


IMAGE_TEXT = st.text(st.sampled_from(string.ascii_letters + string.digits + "/:@._-'\"$`\\{}= ;&|#!*\t\nä"), min_size=1)


def typed_or_refused(**params):
    try:
        request = ask(**params)
    except RolloutError:
        return
    for images in (None, dict(request.images)):
        command = request.command(State.UPDATED, images)
        options = typed(command)
        images = options.get("images") or {options.get("container", ""): options.get("image")}
        assert images == request.images, command
        assert options["name"] == request.name


@given(st.from_regex(r"[a-z0-9.:-]{1,20}(/[a-z0-9._-]{1,20}){0,2}(:[A-Za-z0-9._-]{1,20})?(@sha256:[0-9a-f]{8})?", fullmatch=True))
def test_an_image_is_accepted_and_reaches_the_module_as_it_was(image):
    assert ask(image=image).images == {"": image}
    typed_or_refused(image=image)
    typed_or_refused(images={"web": image, "log": "b:2"})


@given(IMAGE_TEXT, st.text(st.sampled_from("ab'\" =\\{"), max_size=4))
def test_any_text_that_is_accepted_as_an_image_or_container_reaches_the_module_as_it_was(image, container):
    typed_or_refused(image=image, container=container)
    typed_or_refused(images={"web": image, container or "log": "b:2"})


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_names_that_are_accepted_reach_the_module_as_they_were(name, namespace, next_name):
    try:
        request = ask(**V2, name=name, namespace=namespace, next_name=next_name)
    except RolloutError:
        return
    expected = {"name": name, "namespace": request.namespace, "next_name": request.next_name, "image": "myimage:v2"}
    assert {"namespace": "default", "next_name": None} | typed(request.command()) == expected


@given(st.text(max_size=70))
def test_a_label_key_that_is_accepted_reaches_the_module_as_it_was(key):
    try:
        request = ask(**V2, deployment_label_key=key)
    except RolloutError:
        return
    assert typed(request.command()).get("deployment_label_key", marks.DEPLOYMENT_LABEL) == key


# The same pods, or not


def with_init(image, command):
    return pods("web=a:1", initContainers=[{"name": "prepare", "image": image, "command": [command]}])


@pytest.mark.parametrize("other, expected", [
    (with_init("b:1", "x"), True),
    (with_init("b:2", "x"), True),
    ({**with_init("b:1", "x"), "metadata": {"labels": {marks.DEPLOYMENT_LABEL: "y"}}}, True),
    (with_init("b:1", "y"), False),
    (pods("web=a:1"), False),
    ({**with_init("b:1", "x"), "metadata": {"labels": {"a": "b"}}}, False),
], ids=["equal", "an image", "the deployment label", "a command", "a container fewer", "a label"])
def test_templates_that_differ_in_images_only(other, expected):
    assert differ_in_images_only(with_init("b:1", "x"), other, marks.DEPLOYMENT_LABEL) is expected


@pytest.mark.parametrize("params, is_same", [
    (V2 | {"max_surge": "3", "min_ready_seconds": 3, "update_period": 1, "progress_deadline": 9}, True),
    (V2 | {"next_name": "bar"}, True),
    ({"image": "myimage:v3"}, False),
    (V2 | {"container": "web"}, False),
    ({"template": PATCH}, False),
    ({"state": "restarted"}, False),
], ids=["another pace", "another name", "another image", "a container", "a template", "a restart"])
def test_a_fingerprint_tells_what_pods_are_asked_for(params, is_same):
    assert (ask(**params).fingerprint == ask(**V2).fingerprint) is is_same


def test_the_hash_of_a_definition_is_over_its_selector_and_template_alone():
    one = ask(definition=defined(selector={"app": "foo"}, replicas=3))
    other = dataclasses.replace(one, definition={**defined(selector={"app": "foo"}), "metadata": {"labels": {"x": "y"}}})

    assert one.content(template(), {}) == other.content(template("another:v1"), {"app": "x"})

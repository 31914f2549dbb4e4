# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a request asks for, whatever the controller looks like, and the command that asks for the same."""

from __future__ import annotations

import dataclasses
import json
import shlex
import string
import subprocess

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv
from ansible.template import Templar, trust_as_template
from builders import template
from hypothesis import given
from hypothesis import strategies as st
from wishes import DEFINITION, PATCH, V2, ask, defined

from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import each_text
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import is_image


@pytest.mark.parametrize("params, expected", [
    (V2, False), ({"template": PATCH}, True), ({"definition": DEFINITION}, True),
    ({"state": "restarted"}, False), ({"state": "rolled_back", "template": PATCH}, False),
], ids=["image", "template", "definition", "restarted", "rolled_back"])
def test_the_server_is_asked_only_for_what_it_alone_knows(params, expected):
    assert ask(**params).asks_the_server is expected


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
        with pytest.raises(RolloutError, match=r"^the definition's selector .* does not differ from the selector of foo"):
            request.refuse_selector_of(of_primary)
    else:
        request.refuse_selector_of(of_primary)


# The command to type

TEMPLAR = Templar(DataLoader())


def typed(command):
    """The options that reach the module when a shell runs this ad-hoc command."""
    *words, arguments = shlex.split(command)
    assert words == ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a"]
    options = json.loads(arguments) if arguments.startswith("{") else parse_kv(arguments)
    assert not TEMPLAR.is_template(each_text(options, trust_as_template))
    return options


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


#: What a shell, the splitting of key=value, or Jinja evaluates.
HOSTILE = ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "a' b=c '", "a\ntouch pwned", "!!", "&& id",
           "{{ lookup('pipe', 'id') }}", "{% for a in b %}", "{# a #}", "#jinja2: x:y", "\\", "a b", "state=rolled_back", "--help",
           "a\x00b", "~root", "*", "ä\u202e"]
PIECES = st.lists(st.sampled_from([*HOSTILE, "a", " ", "{", "%"]), max_size=3).map("".join)
ANYTHING = st.sampled_from(HOSTILE) | PIECES | st.text()


def printed_by_bash(words):
    """What a command gets for arguments when bash runs it."""
    shell = subprocess.run(["bash", "-c", f"set -- {words}\nprintf '%s\\0' \"$@\""], capture_output=True, check=True, text=True)
    return shell.stdout.removesuffix("\0").split("\0")


@given(ANYTHING, ANYTHING)
def test_whatever_an_image_of_the_cluster_says_it_is_typed_as_it_is_or_not_at_all(image, container):
    """A record, kubectl's annotations and templates hold any text."""
    for images in ({"": image}, {container: image}, {container: image, "b": "b:1"}):
        command = ask(**V2).command(State.UPDATED, images)
        if command != "run the same task again":
            options = typed(command)
            assert images == options.get("images") or images == {options.get("container", ""): options["image"]}
            assert all(map(is_image, images.values()))


@given(st.dictionaries(st.sampled_from(["context", "kubeconfig", "host"]), ANYTHING | st.none()))
def test_whatever_the_connection_is_commands_have_it_as_it_is_or_are_not_told(connection):
    request = ask(**V2, connection=connection)

    command = request.command()

    if command == "run the same task again":
        assert any(value is None or {"{", "#"} & set(value) or not value.isprintable() for value in connection.values())
    else:
        assert {"name": "foo", "image": "myimage:v2", **connection} == typed(command)
    flags = {"context": "--context", "kubeconfig": "--kubeconfig", "host": "--server"}
    told = {option: f"{option.upper()}-OF-THE-TASK" if value is None else value for option, value in connection.items()}
    assert shlex.split(request.kubectl) == [
        "kubectl", *(f"{flags[option]}={value}" for option, value in told.items()), "-n", "default"]


@pytest.mark.parametrize("value", [value for value in HOSTILE if "\0" not in value])
def test_bash_takes_a_command_as_it_is_meant(value):
    request = ask(**V2, connection={"context": value})

    assert printed_by_bash(request.kubectl)[1] == f"--context={value}"
    if (command := request.command()) != "run the same task again":
        assert printed_by_bash(command) == shlex.split(command)


@pytest.mark.parametrize("change, to_do", [
    ({}, "run the same task again with state=rolled_back"),
    ({"to_revision": 3}, "run the same task again with state=rolled_back to_revision=3"),
])
def test_a_command_that_cannot_be_typed_is_told_in_words(change, to_do):
    """A kubeconfig that was given as content has no path."""
    assert ask(**V2, connection={"kubeconfig": None}).command(State.ROLLED_BACK, **change) == to_do


# The same pods, or not


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

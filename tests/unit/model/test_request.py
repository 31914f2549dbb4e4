# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Apply requests to a template, and print the command that repeats a request."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import string
import subprocess

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv
from ansible.template import Templar, trust_as_template
from builders import template
from hypothesis import given
from hypothesis import strategies as st
from request_builders import DEFINITION, PATCH, V2, build_request, definition_with

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.refusals import (
    refuse_matching_selector,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import commands, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import map_texts
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    MIGRATION_SPEC,
    parse_request,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import is_image


@pytest.mark.parametrize("params, expected", [
    (V2, False), ({"template": PATCH}, True), ({"definition": DEFINITION}, True),
    ({"state": "restarted"}, False), ({"state": "rolled_back", "template": PATCH}, False),
], ids=["image", "template", "definition", "restarted", "rolled_back"])
def test_requests_that_need_a_dry_run(params, expected):
    assert build_request(**params).needs_dry_run is expected


# Restart


def test_restart_changes_one_annotation():
    restart = build_request(state="restarted")

    restarted_template = restart.apply_to(template())
    restarted_with_label = restart.apply_to(template(label="differs"))

    token = restarted_template["metadata"].pop("annotations")[object_meta.RESTART]
    assert restarted_template == template()
    assert restarted_with_label["metadata"]["annotations"] == {object_meta.RESTART: token}


def test_second_restart_changes_the_annotation():
    restart = build_request(state="restarted")

    restarted_template = restart.apply_to(template())

    assert restart.apply_to(restarted_template) != restarted_template


@pytest.mark.parametrize("primary_selector, successor_selector, is_refused", [
    ({"app": "foo"}, {"app": "bar"}, False),
    ({"app": "foo", "tier": "x"}, {"app": "foo", "tier": "y"}, False),
    ({"app": "foo"}, {"app": "foo"}, True),
    ({"app": "foo", "tier": "x"}, {"app": "foo"}, True),
    ({"app": "foo"}, {"app": "foo", "tier": "y"}, True),
    ({"app": "foo"}, None, False),
], ids=["other value", "other value of one label", "equal", "subset",
        "superset", "none"])
def test_selector_of_a_definition_must_differ(primary_selector, successor_selector,
                                              is_refused):
    request = Request("foo", definition={"spec": {"selector": successor_selector}})

    if is_refused:
        with pytest.raises(RolloutError,
                           match=r"^the definition's selector .* does not differ from the selector "
                                 r"of foo"):
            refuse_matching_selector(request, primary_selector)
    else:
        refuse_matching_selector(request, primary_selector)


# The suggested command

TEMPLAR = Templar(DataLoader())


def options_of(command, module=Module.ROLLING_UPDATE):
    """Return the options of the module in an ad-hoc command."""
    *words, arguments = shlex.split(command)
    assert words == ["ansible", "localhost", "-m", f"baton.kubernetes.{module}", "-a"]
    options = json.loads(arguments) if arguments.startswith("{") else parse_kv(arguments)
    assert not TEMPLAR.is_template(map_texts(options, trust_as_template))
    return options


@pytest.mark.parametrize("params, expected", [
    (V2, {"name": "foo", "image": "myimage:v2"}),
    (V2 | {"container": "web", "namespace": "prod"},
     {"name": "foo", "namespace": "prod", "image": "myimage:v2", "container": "web"}),
    (V2 | {"next_name": "bar", "deployment_label_key": "x.io/y"},
     {"name": "foo", "next_name": "bar", "deployment_label_key": "x.io/y", "image": "myimage:v2"}),
    ({"images": {"web": "a:2", "log": "b:2"}},
     {"name": "foo", "images": {"web": "a:2", "log": "b:2"}}),
    ({"state": "restarted"}, {"name": "foo", "state": "restarted"}),
    ({"state": "rolled_back"}, {"name": "foo", "state": "rolled_back"}),
], ids=["image", "container", "next_name and label key", "images", "restarted", "rolled_back"])
def test_command_repeats_the_request(params, expected):
    assert options_of(build_request(**params).command()) == expected


@pytest.mark.parametrize("change", [{"template": PATCH}, {"definition": DEFINITION}],
                         ids=["template", "definition"])
def test_no_command_for_templates_and_definitions(change):
    request = build_request(**change)

    assert request.command() == "run the same task again"
    assert request.command(max_surge="2") == "run the same task again with max_surge=2"
    assert options_of(build_request(**change).command(State.ROLLED_BACK))["state"] == "rolled_back"


def test_command_for_another_state_or_other_images():
    request = build_request(**V2, next_name="bar", namespace="prod")

    assert options_of(request.command(State.ROLLED_BACK)) == {
        "name": "foo", "namespace": "prod", "next_name": "bar", "state": "rolled_back"}
    assert options_of(request.command(State.UPDATED, images={"web": "myimage:v1"},
                                      next_name=None)) == {
        "name": "foo", "namespace": "prod", "image": "myimage:v1", "container": "web"}


NON_DEFAULT_OPTIONS = {
    "max_surge": "2", "max_unavailable": "25%", "min_ready_seconds": "5",
    "progress_deadline": "60.5", "timeout": "15m", "failure_grace": "3s",
    "on_failure": "rollback", "pause_at": "10%",
    "soak": "10m",
    "autoscaler": "refuse", "lock": False,
    "lock_timeout": "1h",
    "progress": False, "next_name": "bar", "deployment_label_key": "x.io/y", "namespace": "prod",
    "container": "web",
}
REPEATED_BY_ROLLBACK = {"name", "namespace", "next_name", "deployment_label_key", "max_surge",
                        "max_unavailable",
                        "progress_deadline", "failure_grace",
                        "autoscaler",
                        "lock",
                        "lock_timeout", "progress"}


def non_default_options_of(command):
    """Return the options in an ad-hoc command that are not defaults."""
    validation = ArgumentSpecValidator(ARGUMENT_SPEC).validate(options_of(command))
    assert not validation.error_messages
    return {option: value for option, value in with_kinds(validation.validated_parameters).items()
            if value != ARGUMENT_SPEC.get(option, {}).get("default")}


def test_command_repeats_all_options():
    task = {"name": "foo", **V2, **NON_DEFAULT_OPTIONS}

    assert non_default_options_of(build_request(**task).command()) == task


@pytest.mark.parametrize("option", sorted(NON_DEFAULT_OPTIONS))
def test_command_repeats_each_option(option):
    task = {"name": "foo", **V2, option: NON_DEFAULT_OPTIONS[option]}

    assert non_default_options_of(build_request(**task).command()) == task


def test_command_for_a_rollback_omits_options_of_the_update():
    task = {"name": "foo", **V2, **NON_DEFAULT_OPTIONS}

    assert non_default_options_of(build_request(**task).command(State.ROLLED_BACK)) == {
        **{option: task[option] for option in REPEATED_BY_ROLLBACK}, "state": "rolled_back"}


def test_command_of_an_automatic_rollback():
    request = build_request(**V2, **NON_DEFAULT_OPTIONS).rollback_request()

    assert request.command() == request.command(State.ROLLED_BACK)


@pytest.mark.parametrize("revision, to_revision",
                         [("3", {"to_revision": "3"}), ("previous", {"to_revision": "previous"}),
                          ("", {})])
def test_command_with_to_revision(revision, to_revision):
    """A rollback to a revision is an update that a task can pause and roll back."""
    request = build_request(state="rolled_back", to_revision=revision, pause_at="1")

    assert options_of(request.command()) == {"name": "foo", "state": "rolled_back", **to_revision,
                                             **({"pause_at": "1"} if to_revision else {})}
    assert options_of(request.command(State.ROLLED_BACK)) == {"name": "foo", "state": "rolled_back"}


def test_command_for_a_migration_omits_the_strategy():
    command = build_request(**V2, **NON_DEFAULT_OPTIONS).command(State.MIGRATED)

    assert options_of(command, Module.MIGRATION) == {
        "name": "foo", "namespace": "prod", "deployment_label_key": "x.io/y", "lock": "false",
        "progress_deadline": "60.5", "failure_grace": "3s",
        "autoscaler": "refuse", "lock_timeout": "1h", "progress": "false"}


def test_a_migration_without_a_pastable_command_names_the_module_to_run():
    request = build_request(**V2, connection={"kubeconfig": None})

    assert request.command(State.MIGRATED) == "run the module migrate_to_deployment with name=foo"


def test_each_command_of_a_migration_has_only_the_options_of_its_module():
    request = parse_request({"name": "foo", "module": "migrate_to_deployment",
                             "release_owner": True, "max_surge": "2", "lock": False})
    migration = {"name": "foo", "lock": "false", "release_owner": "true", "max_surge": "2"}

    assert options_of(request.command(), Module.MIGRATION) == migration
    assert request.rollback_request().command(State.MIGRATED) == request.command()
    assert options_of(request.command(State.ROLLED_BACK), Module.MIGRATION) == {
        "name": "foo", "lock": "false", "state": "rolled_back", "max_surge": "2"}
    assert options_of(request.command(State.UPDATED, images={"": "myimage:v2"})) == {
        "name": "foo", "lock": "false", "max_surge": "2", "image": "myimage:v2"}


TWO_IMAGES = {"web": "shop:2", "side": "x:2"}


@pytest.mark.parametrize("params, change, launch", [
    (V2, {}, "relaunch the job, or launch the job template *Shop* again"),
    (V2, {"lock_timeout": 600}, "launch the job template *Shop* again with lock_timeout=600"),
    (V2 | {"pause_at": "1"}, {"pause_at": None, "nodes": None},
     "launch the job template *Shop* again without pause_at"),
    (V2 | {"max_surge": "2", "pause_at": "1"}, {"state": State.ROLLED_BACK},
     "launch a job that runs baton.kubernetes.rolling_update with name=foo "
     "state=rolled_back max_surge=2"),
    ({"template": PATCH}, {"state": State.ROLLED_BACK},
     "launch a job that runs baton.kubernetes.rolling_update with name=foo state=rolled_back"),
    (V2 | {"kind": "DaemonSet", "nodes": "zone in (a)", "pause_at": "1"},
     {"state": State.RESTARTED},
     "launch a job that runs baton.kubernetes.rolling_update with name=foo kind=DaemonSet "
     'state=restarted pause_at=1 nodes="zone in (a)"'),
    (V2, {"state": State.UPDATED, "images": TWO_IMAGES},
     "launch a job that runs baton.kubernetes.rolling_update with name=foo "
     'images={"side":"x:2","web":"shop:2"}'),
    (V2, {"images": TWO_IMAGES},
     'launch the job template *Shop* again with images={"side":"x:2","web":"shop:2"} '
     "without image"),
    (V2 | {"connection": {"kubeconfig": None}}, {"state": State.MIGRATED},
     "launch a job that runs baton.kubernetes.migrate_to_deployment with name=foo"),
])
def test_command_in_awx_is_the_launch_of_a_job(params, change, launch):
    request = build_request(**params, job_template="Shop")

    assert request.command(**change) == launch
    assert RolloutError("x", next_command=["then:", launch]).commands == [launch]
    assert "*" not in dataclasses.replace(request, job_template="").command(**change)


@pytest.mark.parametrize("module, advice", [
    (Module.ROLLING_UPDATE, 'run the same task again with images={"side":"x:2","web":"shop:2"} '
                            "without image and container"),
    (Module.MIGRATION, 'run the module rolling_update with name=foo '
                       'images={"side":"x:2","web":"shop:2"}')])
def test_advice_without_a_command_names_all_images(module, advice):
    params = V2 | {"container": "web"} if module is Module.ROLLING_UPDATE else {}
    request = parse_request({"name": "foo", "module": module, **params,
                             "connection": {"kubeconfig": None}})

    assert request.command(State.UPDATED, images=TWO_IMAGES) == advice
    assert RolloutError("x", next_command=advice).commands == []


@pytest.mark.parametrize("job_template", [None, "Shop"])
@pytest.mark.parametrize("nodes", ["a={{ b }}", "a\u202e", "a\nb"])
def test_advice_without_an_unsafe_value_is_no_command(nodes, job_template):
    request = build_request(**V2, kind="DaemonSet", nodes=nodes, pause_at="1",
                            job_template=job_template, connection={"kubeconfig": None})

    advice = request.command(State.RESTARTED)

    assert RolloutError("x", next_command=advice).commands == [] and nodes not in advice
    assert advice == ("run the same task again with state=restarted" if job_template is None else
                      "with the same nodes, launch a job that runs "
                      "baton.kubernetes.rolling_update with name=foo kind=DaemonSet "
                      "state=restarted pause_at=1")


@pytest.mark.parametrize("job_template, images, advice", [
    (None, {"a;b": "x:1", "web": "y:1"},
     "with other values of images, run the same task again without image"),
    (None, {"a;b": "x:1"},
     "with other values of container, run the same task again with image=x:1"),
    ("Shop", {"a;b": "x:1", "web": "y:1"},
     "with the same nodes and other values of images, launch a job that runs "
     "baton.kubernetes.rolling_update with name=foo kind=DaemonSet pause_at=1"),
    ("Shop", {"web": "y:1"},
     "with the same nodes, launch a job that runs baton.kubernetes.rolling_update with name=foo "
     "kind=DaemonSet image=y:1 container=web pause_at=1")])
def test_advice_calls_only_an_equal_value_the_same(job_template, images, advice):
    """The names of containers may come from a template on the cluster."""
    request = build_request(**V2, kind="DaemonSet", nodes="a;b", pause_at="1",
                            job_template=job_template, connection={"kubeconfig": None})

    assert request.command(State.UPDATED, images=images) == advice


def test_command_omits_defaults():
    defaults = {option: spec["default"]
                for option, spec in ARGUMENT_SPEC.items() if "default" in spec}

    request = build_request(**V2, **defaults, kind="ReplicationController")

    assert request.command() == build_request(**V2).command()


def test_command_for_a_deployment_omits_the_label_key():
    request = build_request(**V2, kind="Deployment", deployment_label_key="x.io/y")

    assert "label" not in request.command()


FLEET = {"label_selectors": ["app in (a, b)", "tier=web"],
         "kinds": ["ReplicationController", "Deployment"], "concurrency": 2,
         "max_failures": "1"}


@pytest.mark.parametrize("selection, kind_option", [
    ({"names": ["foo", "bar"]}, {}),
    ({"names": ["foo"], "kind": "Deployment"}, {"kind": "Deployment"}),
    (FLEET, {"kind": "Deployment"}),
], ids=["names", "names of a kind", "kinds"])
def test_command_for_a_fleet_repeats_the_selection(
        selection, kind_option):
    params = {**V2, "pause_at": "1", "max_surge": "2"}
    request = build_request(**params, **selection | kind_option)

    assert non_default_options_of(request.command()) == {**params, **selection}
    assert non_default_options_of(request.command(pause_at=None)) == {**V2, "max_surge": "2",
                                                                      **selection}
    assert non_default_options_of(request.command(State.ROLLED_BACK)) == {
        "name": "foo", **kind_option, "state": "rolled_back", "max_surge": "2"}
    assert non_default_options_of(request.command(next_name="x")) == {
        "name": "foo", **kind_option, **params, "next_name": "x"}


def test_sentence_instead_of_a_command_for_a_fleet():
    request = build_request(**V2, names=["foo", "bar"], connection={"kubeconfig": None})

    assert request.command() == "run the same task again"
    assert request.command(State.ROLLED_BACK) == (
        "run the same task again with name=foo state=rolled_back without names")
    assert request.command(pause_at=None) == "run the same task again without pause_at"


def test_sentence_names_the_kind_of_one_controller_of_a_fleet_of_several_kinds():
    request = build_request(**V2, label_selectors=["a=b"], kinds=["Deployment", "StatefulSet"],
                            kind="StatefulSet", connection={"kubeconfig": None})

    assert request.command(State.ROLLED_BACK) == (
        "run the same task again with name=foo kind=StatefulSet state=rolled_back without "
        "label_selectors")


def test_each_option_has_a_row_for_commands():
    assert commands.OPTIONS.keys() == ARGUMENT_SPEC.keys() | MIGRATION_SPEC.keys()
    assert all(row.reason and row.reason == row.reason.strip(" .")
               for row in commands.OPTIONS.values())


IMAGE_TEXT = st.text(st.sampled_from(string.ascii_letters + string.digits
                                     + "/:@._-'\"$`\\{}= ;&|#!*\t\nä"), min_size=1)


def check_that_command_repeats_images(**params):
    try:
        request = build_request(**params)
    except RolloutError:
        return
    for images in (None, dict(request.images)):
        command = request.command(State.UPDATED, images=images) if images else request.command()
        options = options_of(command)
        images_ = options.get("images") or {options.get("container", ""): options.get("image")}
        assert images_ == request.images, command
        assert options["name"] == request.name


@given(st.from_regex(r"([A-Za-z0-9-]{1,9}(:[0-9]{1,5})?/)?[a-z0-9]{1,9}([._/]|__|-{1,3})"
                     r"[a-z0-9]{1,9}(:[A-Za-z0-9_][A-Za-z0-9._-]{0,19})?(@sha256:[0-9a-f]{64})?",
                     fullmatch=True).filter(lambda image: not re.search("(^|/)-|-[:/]", image)))
def test_valid_image_survives_the_command(image):
    assert build_request(image=image).images == {"": image}
    check_that_command_repeats_images(image=image)
    check_that_command_repeats_images(images={"web": image, "log": "b:2"})


@given(IMAGE_TEXT, st.text(st.sampled_from("ab'\" =\\{"), max_size=4))
def test_accepted_image_and_container_survive_the_command(
        image, container):
    check_that_command_repeats_images(image=image, container=container)
    check_that_command_repeats_images(images={"web": image, container or "log": "b:2"})


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_accepted_names_survive_the_command(name, namespace, next_name):
    try:
        request = build_request(**V2, name=name, namespace=namespace, next_name=next_name)
    except RolloutError:
        return
    expected = {"name": name, "namespace": request.namespace, "next_name": request.next_name,
                "image": "myimage:v2"}
    assert {"namespace": "default", "next_name": None} | options_of(request.command()) == expected


@given(st.text(max_size=70))
def test_accepted_label_key_survives_the_command(key):
    try:
        request = build_request(**V2, deployment_label_key=key)
    except RolloutError:
        return
    assert options_of(request.command()).get("deployment_label_key",
                                             object_meta.DEPLOYMENT_LABEL) == key


#: Texts that a shell, the parser of key=value, or Jinja would evaluate.
HOSTILE_TEXTS = ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "',
                 "a' b=c '", "a\ntouch pwned", "!!", "&& id",
                 "{{ lookup('pipe', 'id') }}", "{% for a in b %}", "{# a #}", "#jinja2: x:y", "\\",
                 "a b", "state=rolled_back", "--help",
                 "a\x00b", "~root", "*", "ä\u202e"]
JOINED_TEXT = st.lists(st.sampled_from([*HOSTILE_TEXTS, "a", " ", "{", "%"]),
                       max_size=3).map("".join)
ANY_TEXT = st.sampled_from(HOSTILE_TEXTS) | JOINED_TEXT | st.text()


def arguments_in_bash(words):
    """Return the arguments that bash makes of these words."""
    process = subprocess.run(["bash", "-c", f"set -- {words}\nprintf '%s\\0' \"$@\""],
                             capture_output=True, check=True, text=True)
    return process.stdout.removesuffix("\0").split("\0")


@given(ANY_TEXT, ANY_TEXT)
def test_image_from_the_cluster_is_quoted_or_left_out(image, container):
    for images in ({"": image}, {container: image}, {container: image, "b": "b:1"}):
        command = build_request(**V2).command(State.UPDATED, images=images)
        if command.startswith("ansible "):
            options = options_of(command)
            assert (images == options.get("images")
                    or images == {options.get("container", ""): options["image"]})
            assert all(map(is_image, images.values()))
        else:
            advice = re.sub("^with other values of (container|images), ", "", command)
            assert advice.startswith("run the same task again")
            assert not set("$`'\\;&|!*") & set(command) and "{{" not in command


@given(ANY_TEXT, st.lists(ANY_TEXT.filter(bool), min_size=1))
def test_option_is_quoted_or_left_out(nodes, selectors):
    request = build_request(**V2, kind="DaemonSet", label_selectors=selectors, pause_at="1",
                            nodes=nodes)

    if (command := request.command()) != "run the same task again":
        assert non_default_options_of(command) == {
            **V2, "kind": "DaemonSet", "label_selectors": selectors, "pause_at": "1",
            **({"nodes": nodes} if nodes else {})}


@given(st.dictionaries(st.sampled_from(["context", "kubeconfig", "host"]), ANY_TEXT | st.none()))
def test_connection_is_quoted_or_left_out(connection):
    request = build_request(**V2, connection=connection)

    command = request.command()

    if command == "run the same task again":
        assert any(value is None or {"{", "#"} & set(value) or not value.isprintable()
                   for value in connection.values())
    else:
        assert {"name": "foo", "image": "myimage:v2", **connection} == options_of(command)
    connection = dict(connection)
    environment = []
    if os.pathsep in (connection.get("kubeconfig") or ""):
        environment = ["env", f"KUBECONFIG={connection.pop('kubeconfig')}"]
    flags = {"context": "--context", "kubeconfig": "--kubeconfig", "host": "--server"}
    arguments = {option: f"{option.upper()}-OF-THE-TASK" if value is None else value
                 for option, value in connection.items()}
    assert shlex.split(request.kubectl) == [
        *environment, "kubectl",
        *(f"{flags[option]}={value}" for option, value in arguments.items()), "-n", "default"]


@pytest.mark.parametrize("value", [value for value in HOSTILE_TEXTS if "\0" not in value])
def test_commands_are_quoted_for_bash(value):
    request = build_request(**V2, connection={"context": value})

    assert arguments_in_bash(request.kubectl)[1] == f"--context={value}"
    if (command := request.command()) != "run the same task again":
        assert arguments_in_bash(command) == shlex.split(command)


@pytest.mark.parametrize("change, next_command", [
    ({}, "run the same task again with state=rolled_back"),
    ({"to_revision": 3}, "run the same task again with state=rolled_back to_revision=3"),
])
def test_sentence_instead_of_a_command(change, next_command):
    request = build_request(**V2, connection={"kubeconfig": None})

    assert request.command(State.ROLLED_BACK, **change) == next_command


# The fingerprint


@pytest.mark.parametrize("params, is_same", [
    (V2 | {"max_surge": "3", "min_ready_seconds": 3, "progress_deadline": 9}, True),
    (V2 | {"next_name": "bar"}, True),
    ({"image": "myimage:v3"}, False),
    (V2 | {"container": "web"}, False),
    ({"template": PATCH}, False),
    ({"state": "restarted"}, False),
], ids=["strategy", "next_name", "image", "container", "template", "restart"])
def test_fingerprint_depends_on_the_requested_pods(params, is_same):
    assert (build_request(**params).fingerprint == build_request(**V2).fingerprint) is is_same


def test_content_of_a_definition_is_its_selector_and_template():
    first = build_request(definition=definition_with(selector={"app": "foo"}, replicas=3))
    second = dataclasses.replace(first,
                                 definition={**definition_with(selector={"app": "foo"}),
                                             "metadata": {"labels": {"x": "y"}}})

    assert first.content(template(), {}) == second.content(template("another:v1"), {"app": "x"})

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse, before the first turn, what the module would refuse in any turn."""

from __future__ import annotations

import json
from unittest import mock

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from hypothesis import given, settings
from hypothesis import strategies as st
from invalid_options import INVALID_OPTIONS
from releases import Cluster, Controller, Run

from ansible_collections.baton.kubernetes.plugins.lookup import release_request
from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request

#: Options of the module -> options of the role.
ROLE_OPTIONS = {"pause_at": "stages"}


def role_request(role, layer="role", **options):
    """Return the request for these options of the role, as its variables."""
    role_variables = {f"{role}_{ROLE_OPTIONS.get(option, option)}": value
                      for option, value in options.items()}
    flags = {"__rollback_short_names": True, "__image_bump_short_names": True}
    return release_request.Variables(
        role, role_variables | (flags if layer == "playbook" else {}),
        lambda value: value).request(lambda path: [])


def is_for_role(params):
    """Return whether the role image_bump or rollback has all these options."""
    role = "rollback" if params.get("state") == "rolled_back" else "image_bump"
    specs = release_request.argument_specs(role)
    return (params.get("state") in (None, "rolled_back")
            and all(f"{role}_{ROLE_OPTIONS.get(option, option)}" in specs
                    for option in params if option != "state"))


#: The role itself pauses before it removes the old pods, and ignores an empty variable.
POSSIBLE_FOR_ROLES = {"keep_old without a pause", "empty label key"}
INVALID_REQUESTS = {case: params for case, (params, _what) in INVALID_OPTIONS.items()
                    if is_for_role(params) and case not in POSSIBLE_FOR_ROLES}


@pytest.mark.parametrize("params", INVALID_REQUESTS.values(), ids=INVALID_REQUESTS)
@pytest.mark.parametrize("check_mode", [False, True], ids=["run", "check mode"])
def test_options_that_the_module_refuses_are_refused_before_the_first_turn(params, check_mode):
    options = {"name": "foo", "kind": "ReplicationController", **params}
    role = "rollback" if options.pop("state", "") == "rolled_back" else "image_bump"
    request = role_request(role, **options) | {
        "check_mode": check_mode, "files": {"before": [{"typed": "b.yml", "path": "/b.yml"}]}}
    cluster = Cluster(foo=Controller())
    run = Run(request, cluster).run()

    assert run.turn_titles == [] and not cluster.changed_names
    assert run.ending.error.endswith("Nothing has been changed.")


@pytest.mark.parametrize("role, options, error", [
    ("image_bump", {"image": "a:2 "}, "image_bump_image: 'a:2 ' is not a valid image name"),
    ("image_bump", {"image": ""}, "Give image_bump_image or image_bump_images"),
    ("rollback", {"container": "web"}, "Give rollback_image or rollback_images"),
    ("rollback", {"image": "a:1 "}, "rollback_image: 'a:1 ' is not a valid image name"),
    ("image_bump", {"images": {"web": "a:1"}, "container": "web"},
     "image_bump_container, image_bump_images: container requires image"),
    ("image_bump", {"soak": "1m", "timeout": "10"},
     "image_bump_soak, image_bump_timeout: timeout (10 s) must be greater than soak (60 s)"),
    ("image_bump", {"kind": "ds", "max_surge": "1", "stages": "10%"},
     "image_bump_kind, image_bump_max_surge, image_bump_stages: max_surge cannot be used with "
     "pause_at and kind=DaemonSet"),
    ("image_bump", {"keep_old": "yes", "keep_old_for": "1m", "kind": "sts"},
     "image_bump_kind, image_bump_keep_old: keep_old cannot be used with kind=StatefulSet"),
    ("image_bump", {"name": "", "names": ["a", "B"]},
     "image_bump_names: name 'B' is not a valid object name"),
    ("image_bump", {"name": "", "names": ["a", "b"], "next_name": "c"},
     "image_bump_next_name, image_bump_names: next_name can only be used with a single controller"),
    ("image_bump", {"name": "", "label_selectors": ["app=a"], "concurrency": "0"},
     "image_bump_concurrency, image_bump_label_selectors: concurrency must be at least 1, not 0"),
    ("image_bump", {"max_surge": "0", "max_unavailable": "0"},
     "image_bump_max_surge, image_bump_max_unavailable: max_surge and max_unavailable are both 0"),
    ("image_bump", {"name": "", "names": ["a", "b"], "nodes": "a=b", "stages": "10%"},
     "image_bump_nodes, image_bump_names: nodes cannot be used with kind=ReplicationController"),
])
@pytest.mark.parametrize("layer", ["role", "playbook"])
def test_error_of_the_module_names_the_variables_of_the_user(role, options, error, layer):
    image = {"image": "a:2"} if role == "image_bump" and "images" not in options else {}
    request = Request.of(role_request(role, layer, **{"name": "a", **image, **options}))

    if layer == "playbook":
        error = error.replace("image_bump_timeout", "time_limit")
    assert request.errors and request.errors[0].startswith(
        error if layer == "role" else error.replace(f"{role}_", ""))


def test_all_errors_are_reported_at_once():
    options = {"timeout": "soon", "max_surge": "x", "max_unavailable": "-1", "soak": "1h",
               "image": "a b", "stages": ["10%", "100%"], "on_failure": "rollback"}
    request = Request.of(role_request("image_bump", name="a", **options))

    assert sorted(error.partition(" ")[0] for error in request.errors) == [
        "image_bump_image:", "image_bump_max_surge", "image_bump_max_unavailable",
        "image_bump_timeout"]


@pytest.mark.parametrize("options", [
    {"nodes": "a=b", "stages": "10%"}, {"image": 7}, {"keep_old": "no", "kind": "sts"},
    {"timeout": "90", "soak": "1m"}, {"keep_old": True, "keep_old_for": "2h", "timeout": "60"}],
    ids=["nodes of an unknown kind", "number as image", "no keep_old", "soak below timeout",
         "time limit without the time for old pods"])
def test_possible_request_is_not_refused(options):
    """Without the kind, the module looks for the controller."""
    assert Request.of(role_request("image_bump", name="a", **{"image": "a:2", **options})
                      ).errors == []


VALUES = {
    "image": ["myimage:v2", " a", "MyImage:v2"], "images": [{"web": "a:2"}, {"web": ""}],
    "container": ["web", "a b"], "namespace": ["shop", "a.b"], "next_name": ["b", "a", "-b"],
    "kind": ["rc", "ReplicaSet", "deploy", "sts", "DaemonSet", "pod"],
    "max_surge": ["0", 1, "25%", "101%"], "max_unavailable": ["0", 1, "x"],
    "pod_replacement_policy": ["TerminationStarted", "TerminationComplete"],
    "min_ready_seconds": ["5", "600", "0.5"], "progress_deadline": ["600", "5", "0"],
    "timeout": ["60", "1h", "0"], "soak": ["60", "1h", "1d"], "failure_grace": ["3s", "-1"],
    "keep_old": ["yes", "no", True], "nodes": ["a=b"], "suspend_gitops": ["yes", False],
    "concurrency": ["0", "1", 5], "max_failures": ["0", "100%"],
    "deployment_label_key": ["x.io/y", "/"], "lock": ["false"], "lock_timeout": ["10", "x"],
    "to_revision": ["previous", "3", "last"], "on_failure": ["rollback", "stop"],
}


@st.composite
def requests(draw):
    """Draw (role, options of the role)."""
    role = draw(st.sampled_from(["image_bump", "rollback"]))
    specs = release_request.argument_specs(role)
    options = draw(st.fixed_dictionaries({}, optional={
        option: st.sampled_from(choices) for option, choices in VALUES.items()
        if f"{role}_{option}" in specs and option != "image"}))
    if "to_revision" in options:
        options.pop("images", None)
    if role == "image_bump":
        options["stages"] = draw(st.sampled_from(["10%", "10%,100%", "100%"]))
    # The role itself refuses images together with to_revision.
    if role == "image_bump" or ("to_revision" not in options and draw(st.booleans())):
        options["image"] = draw(st.sampled_from(["myimage:v2", *VALUES["image"]]))
    selection = draw(st.sampled_from([{"name": "a"}, {"names": ["a", "b"]}]))
    return role, options | selection


class RecordingCluster(Cluster):
    """Cluster that records the options of each update."""

    def __init__(self, **controllers):
        super().__init__(**controllers)
        self.options_of_updates = []

    def update(self, options):
        self.options_of_updates.append(options)
        return super().update({**options, "image": "myimage:v2", "images": {}})


class ClusterRead(Exception):
    """The module has accepted its options, and reads the cluster."""


def is_refused_by_module(options):
    """Return whether the module refuses the options, whatever the kind of the controller is."""
    arguments = {option: value for option, value in options.items() if not option.startswith("_")}
    validation = ArgumentSpecValidator(task.UPDATE_OPTIONS).validate(
        json.loads(json.dumps(arguments)))
    if validation.error_messages:
        return True

    def is_refused(kind):
        # A fleet has no other kind.
        stored_kind = str(kind) if options.get("name") else None
        with (mock.patch.object(task, "_group", side_effect=ClusterRead),
              mock.patch.object(task, "_only_kind", return_value=stored_kind)):
            try:
                task.update(dict(validation.validated_parameters))
            except RolloutError:
                return True
            except ClusterRead:
                return False

    return all(map(is_refused, Module.ROLLING_UPDATE.kinds))


def options_of_updates(request, fails):
    """Return the options of all updates of a run, even if the request has errors."""
    new_image = "myimage:v3" if request["role"] == "rollback" else ""
    cluster = RecordingCluster(**{name: Controller(new_image=new_image, new_percent=10)
                                  for name in "ab"})
    run = Run(request, cluster, {"smoke.yml": lambda _cluster: "503" if fails else ""})
    run.request.errors.clear()
    run.run()
    return cluster.options_of_updates


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(2))
@settings(max_examples=100)
@given(drawn=requests())
def test_request_is_refused_if_the_module_refuses_a_turn(part, drawn):
    role, options = drawn
    request = role_request(role, **options)
    request["files"] = {"verify": [{"typed": "smoke.yml", "path": "/smoke.yml"}]}
    errors = Request.of(request).errors
    updates = [update for fails in (False, True) for update in options_of_updates(request, fails)]

    assert bool(errors) is any(map(is_refused_by_module, updates)), errors

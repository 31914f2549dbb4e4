# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run tasks without the option kind, with the permissions of several Roles."""

from __future__ import annotations

import urllib.parse

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from apiserver import answer, status

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind

pytestmark = pytest.mark.usefixtures("handlers")

KINDS = {kind.resource: kind for kind in Kind}
#: As with the Role in examples/rbac.yml.
ALL_BUT_DEPLOYMENTS = {kind.resource for kind in Kind} - {"deployments", "replicasets"} | {
    "get replicasets"}
RULES = [{"apiGroups": ["apps", "gateway.networking.k8s.io", "discovery.k8s.io"],
          "resources": ["*"], "verbs": ["*"]},
         {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["*"]}]
IMAGE = {"image": "myimage:v2"}
ROLLBACK = {"state": "rolled_back"}
LABELS = {"app": "foo"}
MANIFEST = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "foo"},
    "spec": {"selector": {"matchLabels": LABELS},
             "template": {"metadata": {"labels": LABELS},
                          "spec": {"containers": [{"name": "web", "image": "myimage:v2"}]}}}}


def serve(api, existing, forbidden):
    """Let `foo` exist as each of the kinds, and forbid resources.

    The lists are empty, so that the error of a task names its kind.
    """
    def send(handler, query):
        path = urllib.parse.urlsplit(handler.path).path.split("/namespaces/default/")[-1]
        resource, _slash, name = path.partition("/")
        if resource in forbidden or (name and f"get {resource}" in forbidden):
            return status(403, f"{resource} is forbidden")(handler, query)
        if path.endswith("/selfsubjectrulesreviews"):
            review = {"kind": "SelfSubjectRulesReview", "status": {"resourceRules": RULES}}
            return answer(review)(handler, query)
        if path == "/api/v1/namespaces/default":
            return answer({"kind": "Namespace", "metadata": {}})(handler, query)
        if resource not in KINDS or (name and resource not in existing):
            return status(404)(handler, query)
        content = {"kind": str(KINDS[resource]), "metadata": {"name": name}} if name else {
            "kind": f"{KINDS[resource]}List", "metadata": {"resourceVersion": "1"}, "items": []}
        return answer(content)(handler, query)

    api.answers = [send] * 200


def run(api, function, **arguments):
    validation = ArgumentSpecValidator(task.OPTIONS[function.__name__]).validate(
        {"host": api.url, "api_key": "s3cret", "name": "foo", **arguments})
    assert not validation.error_messages
    return task.result_or_error(function, dict(validation.validated_parameters), pytest.fail)


METRIC = {"metrics": [{"query": "$pods", "max": "1"}], "prometheus_url": "http://127.0.0.1:1"}
SPLIT = {"route": "foo", "weight": 10}


@pytest.mark.parametrize("function, arguments, what", [
    (task.update, IMAGE, "there is no such Deployment"),
    (task.update, ROLLBACK, "there is no such Deployment"),
    (task.analysis, METRIC, "there is no such Deployment"),
    (task.traffic, SPLIT, "there is no such route, or the cluster does not serve Gateway API"),
    (task.traffic, {"route": "foo", "state": "restored"},
     "there is no such route, or the cluster does not serve Gateway API"),
], ids=["update", "rollback", "analysis", "split", "restored split"])
def test_forbidden_default_kind_leads_to_the_kind_of_the_only_controller(
        api, function, arguments, what):
    serve(api, ["deployments"], ALL_BUT_DEPLOYMENTS)

    assert run(api, function, **arguments)["failure"]["what"] == what


@pytest.mark.parametrize("function, arguments", [
    (task.update, IMAGE), (task.update, ROLLBACK), (task.analysis, METRIC), (task.traffic, SPLIT),
    (task.traffic, {"route": "foo", "state": "restored"}), (task.info, {})],
    ids=["update", "rollback", "analysis", "split", "restored split", "info"])
def test_error_names_the_kinds_that_are_forbidden(api, function, arguments):
    serve(api, [], ALL_BUT_DEPLOYMENTS)

    failure = run(api, function, **arguments)["failure"]

    assert failure["what"] == "permission denied (403)"
    assert failure["why"].splitlines() == [
        "replicationcontrollers is forbidden",
        "no controller foo of another kind was found; not allowed: get on replicasets (apps); get "
        "on statefulsets (apps); get on daemonsets (apps)"]
    assert failure["next_command"].splitlines()[-1] == (
        "if the controller is of one of these kinds, set kind, and ask for its Role (see "
        "docs/reference/permissions.md)")


@pytest.mark.parametrize("existing, forbidden", [
    (["deployments"], ALL_BUT_DEPLOYMENTS), (["deployments"], {"replicationcontrollers"})])
def test_info_reads_the_kind_of_the_only_controller(api, existing, forbidden):
    serve(api, existing, forbidden)

    assert run(api, task.info) == {"changed": False, "rollouts": []}
    assert ("GET", f"{Kind.DEPLOYMENT.collection('default')}/foo") in api.sent


@pytest.mark.parametrize("arguments, existing, forbidden, what, why", [
    (IMAGE, ["deployments"], ALL_BUT_DEPLOYMENTS, "there is no such Deployment",
     ""),
    (ROLLBACK, ["deployments", "statefulsets"], {"replicationcontrollers"},
     "permission denied (403)",
     "replicationcontrollers is forbidden\n"
     "there is a Deployment foo (kind=Deployment) and a StatefulSet foo (kind=StatefulSet)"),
    (ROLLBACK, [], {"statefulsets"}, "there is no such ReplicationController",
     "no controller foo of another kind was found; not allowed: get on statefulsets (apps)"),
    (ROLLBACK, ["replicationcontrollers"], {"statefulsets"},
     "there is no such ReplicationController", ""),
    ({**IMAGE, "name": None, "names": ["foo"]}, ["deployments"], ALL_BUT_DEPLOYMENTS,
     "permission denied (403)", "replicationcontrollers is forbidden"),
    ({**IMAGE, "kind": "rc"}, ["deployments"], ALL_BUT_DEPLOYMENTS,
     "permission denied (403)", "replicationcontrollers is forbidden"),
    ({**IMAGE, "wait": False}, ["deployments"], (), "there is no such Deployment", ""),
    ({**IMAGE, "wait": False}, ["replicationcontrollers"], (),
     "wait=false cannot be used with kind=ReplicationController, because the task itself scales "
     "the pods: leave wait=false out", ""),
    ({**IMAGE, "wait": False, "pause_at": 1}, ["deployments"], (),
     "wait=false cannot be used with pause_at, because the task itself pauses the update: leave "
     "wait=false out", ""),
    ({**IMAGE, "nodes": "a=b", "pause_at": 1}, ["daemonsets"], (), "there is no such DaemonSet",
     ""),
    ({**IMAGE, "nodes": "a=b", "pause_at": 1}, ["deployments", "daemonsets"], (),
     "nodes cannot be used with kind=ReplicationController, which does not have one pod on each "
     "node: leave it out",
     "there is a Deployment foo (kind=Deployment) and a DaemonSet foo (kind=DaemonSet)"),
    ({**IMAGE, "max_surge": 0}, ["statefulsets"], (), "there is no such StatefulSet", ""),
    ({"definition": MANIFEST}, [], (), "there is no such Deployment", ""),
    ({"definition": MANIFEST, "api_version": "apps/v1"}, [], (), "there is no such Deployment",
     ""),
    ({"definition": MANIFEST, **ROLLBACK}, ["statefulsets"], (), "there is no such Deployment",
     "there is a StatefulSet foo (kind=StatefulSet)"),
    ({"definition": {**MANIFEST, "kind": "Job"}}, [], (),
     "definition is of kind Job: it must be a ReplicationController", ""),
    ({"src": "/no/file", **ROLLBACK}, ["statefulsets"], (), "there is no such StatefulSet", ""),
], ids=["forbidden default", "two kinds", "another kind may be forbidden",
        "created after the list", "names", "kind", "wait",
        "wait of a ReplicationController", "wait with another cause", "nodes",
        "nodes, two kinds", "max_surge", "definition", "api_version", "rollback of a definition",
        "unknown kind in a definition", "rollback of a missing file"])
def test_error_without_a_kind(api, arguments, existing, forbidden, what, why):
    serve(api, existing, forbidden)

    failure = run(api, task.update, **arguments)["failure"]

    assert (failure["what"], failure["why"]) == (what, why)

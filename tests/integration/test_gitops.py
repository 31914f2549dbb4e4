# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Other tools that write the same objects: our writes have our name in managedFields, and their
managers are reported.
"""

from __future__ import annotations

import collections
import json
import re
import urllib.parse

import pytest
from kubernetes.client.exceptions import ApiException
from objects import manifest, role
from test_preflight_warnings import about
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection

RC, RS, DEPLOYMENT = "ReplicationController", "ReplicaSet", "Deployment"
OURS = "baton.kubernetes"
#: Manager of our requests before the introduction of our name.
BEFORE = "python-urllib3"
SCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
ARGO = {"argocd.argoproj.io/tracking-id": "web:/ReplicationController:shop/foo"}
COMMAND = "argocd app set web --sync-policy none"


def heard(managers):
    """Return a fault that records, by resource, the managers in the answer to each write."""
    def arm(gateway):
        plain = gateway.http.once

        def once(method, path, *arguments, **options):
            status, headers, data = plain(method, path, *arguments, **options)
            place = re.match(r"/apis?/.*/namespaces/[^/]+/([a-z]+)[^?]*$", path)
            if method in ("POST", "PUT", "PATCH") and place and status < 300:
                metadata = json.loads(data)["metadata"]
                managers[place[1]].append({entry["manager"] for entry in metadata["managedFields"]})
            return status, headers, data

        gateway.http.once = once

    return arm


def of(item):
    return {entry["manager"] for entry in item["metadata"]["managedFields"]}


@pytest.mark.parametrize("kind, task, resources", [
    (RC, {"image": "myimage:v2"},
     {"replicationcontrollers", "pods", "controllerrevisions", "horizontalpodautoscalers"}),
    (RC, {"image": "myimage:v2", "next_name": "bar"}, {"replicationcontrollers"}),
    (RC, {"state": "migrated", "to_kind": DEPLOYMENT},
     {"replicationcontrollers", "pods", "controllerrevisions", "deployments",
      "replicasets"}),
    (RS, {"state": "restarted"}, {"replicasets", "pods", "controllerrevisions"}),
    (DEPLOYMENT, {"image": "myimage:v2"}, {"deployments"}),
], ids=["update", "next_name", "migration", "ReplicaSet", "Deployment"])
def test_each_write_has_the_field_manager_of_the_collection(namespace, kind, task, resources):
    namespace.allow(role("baton-migration"), "baton-migration")
    make(namespace, kind)
    namespace.call("POST", SCALERS.format(namespace.name), {"metadata": {"name": "foo"}, "spec": {
        "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": "foo"}}})
    managers = collections.defaultdict(list)

    assert namespace.roll(kind=kind, fault=heard(managers), **task)["changed"]

    assert managers.keys() >= {*resources, "leases", "events"}
    for resource, answers in managers.items():
        # A removed field, like an autoscaler's, has no manager.
        assert (OURS in answers[0]
                and (OURS in answers[-1] or resource == "horizontalpodautoscalers")), resource
        assert not set.union(*answers) & {BEFORE, "OpenAPI-Generator"}, resource


def make(namespace, kind):
    {RC: namespace.make_primary, RS: namespace.make_replica_set,
     DEPLOYMENT: namespace.make_deployment}[kind](2)


@pytest.mark.parametrize("kind, number", [(RC, 5), (RC, 11), (DEPLOYMENT, 1)],
                         ids=["sizes", "handover", "Deployment"])
def test_update_begun_under_the_older_field_manager_completes(namespace, monkeypatch, kind, number):
    """managedFields have both names then; no decision depends on them."""
    make(namespace, kind)
    with monkeypatch.context() as before, pytest.raises(Killed):
        before.setattr(connection, "USER_AGENT", f"{BEFORE}/2.8.0")
        namespace.roll(kind=kind, image="myimage:v2", fault=kill_at_write(number, True))
    item = namespace.rc() if kind == RC else namespace.deployment()
    assert BEFORE in of(item) and OURS not in of(item)

    result = namespace.roll(kind=kind, image="myimage:v2")

    item = namespace.rc() if kind == RC else namespace.deployment()
    assert result["changed"] and result["rollout"]["phase"] == "complete" and not result["warnings"]
    assert (OURS in of(item)
            and {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
            == {"myimage:v2"})


# Applied at the server


def apply(namespace, kind, image, has_selector=True, **query):
    """Apply the manifest like `kubectl apply --server-side`, and return the message of a refusal.
    """
    body, path = manifest(2, image, "foo"), namespace.path("replicationcontrollers", "foo")
    if kind == DEPLOYMENT:
        body |= {"apiVersion": "apps/v1", "kind": kind}
        body["spec"]["selector"], path = {"matchLabels": {"app": "foo"}}, namespace.apps_path(
            "deployments", "foo")
    if not has_selector:
        del body["spec"]["selector"]
    query = urllib.parse.urlencode({"fieldManager": "kubectl", **query})
    try:
        namespace.call("PATCH", f"{path}?{query}", body, "application/apply-patch+yaml")
    except ApiException as refused:
        return json.loads(refused.reason)["message"]
    return ""


@pytest.mark.parametrize("kind, version, has_selector",
                         [(RC, "v1", False), (DEPLOYMENT, "apps/v1", True)])
def test_old_manifest_conflicts_unless_forced(
        namespace, kind, version, has_selector):
    """See docs/gitops.md: the image is ours then; with the new image, the manifest applies as
    before.
    """
    assert apply(namespace, kind, "myimage:v1", has_selector) == ""
    namespace.until_available("foo", 2) if kind == RC else namespace.wait_for_rollout()
    namespace.roll(kind=kind, image="myimage:v2")

    refused = apply(namespace, kind, "myimage:v1", has_selector)

    assert (refused
            == ('Apply failed with 1 conflict: conflict with "baton.kubernetes" using ' + version
                + ': .spec.template.spec.containers[name="web"].image'))
    assert apply(namespace, kind, "myimage:v2", has_selector) == ""
    assert namespace.roll(kind=kind, image="myimage:v2")["changed"] is False


def test_manifest_with_a_selector_conflicts_unless_forced(namespace):
    """The selector is one field, with the deployment label since the update; without the label, the
    same pods are selected.
    """
    assert apply(namespace, RC, "myimage:v1") == ""
    namespace.until_available("foo", 2)
    namespace.roll(image="myimage:v2")

    refused = apply(namespace, RC, "myimage:v2")
    with namespace.observer() as observer:
        assert apply(namespace, RC, "myimage:v2", force="true") == ""
        again, on = namespace.roll(image="myimage:v2"), namespace.roll(image="myimage:v3")

    assert (refused
            == 'Apply failed with 1 conflict: conflict with "baton.kubernetes" using v1: '
               '.spec.selector')
    assert (namespace.rc()["spec"]["selector"].keys() > {"app"} and not again["changed"]
            and on["changed"])
    assert len(observer.new_pods) == 2 and observer.min_ready == 2


# Owners of a manifest


def test_gitops_controller_is_named_once_before_the_first_write(namespace):
    namespace.make_primary(2, annotations=ARGO)

    planned = namespace.check(image="myimage:v2", pause_at="1")
    begun, rest = namespace.roll(image="myimage:v2",
                                 pause_at="1"), namespace.roll(image="myimage:v2")

    for result in (planned, begun):
        assert about(result, "Argo CD (application web) manages foo", COMMAND)
    assert rest["changed"] and not rest["warnings"]
    assert not namespace.roll(image="myimage:v2")["warnings"], "there is nothing to do"


def test_flux_is_recognized_by_its_field_manager(namespace):
    """Recognized by the API server's record, not by a label; our own manager next to Flux causes no
    warning.
    """
    namespace.make_deployment(1)
    namespace.roll(kind=DEPLOYMENT, image="myimage:v2")
    query = "fieldManager=kustomize-controller&force=true"
    path = f"{namespace.apps_path('deployments', 'foo')}?{query}"
    namespace.call("PATCH", path,
                   {"apiVersion": "apps/v1", "kind": DEPLOYMENT,
                    "metadata": {"name": "foo", "labels": {"a": "b"}}},
                   "application/apply-patch+yaml")

    (warning,) = about(namespace.check(kind=DEPLOYMENT, image="myimage:v3"), "manages foo")

    assert (warning.startswith("Flux manages foo: at its next reconciliation")
            and "which replaces all pods" in warning)


def test_gitops_warning_of_a_migration(namespace):
    namespace.allow(role("baton-migration"), "baton-migration")
    namespace.make_primary(1, annotations=ARGO)

    result = namespace.roll(state="migrated", to_kind=DEPLOYMENT)

    assert about(result, "creates the ReplicationController foo again, in addition to the "
                         "Deployment")

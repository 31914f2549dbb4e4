# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of objects that other tools also manage."""

from __future__ import annotations

import collections
import json
import re
import urllib.parse

import pytest
from kubernetes.client.exceptions import ApiException
from objects import manifest, role_rules
from test_preflight_warnings import warnings_with
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.explain.gitops import FLUX_RECONCILE
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    SUSPENDED_GITOPS,
)

RC, RS, DEPLOYMENT = "ReplicationController", "ReplicaSet", "Deployment"
OUR_MANAGER = "baton.kubernetes"
FORMER_MANAGER = "python-urllib3"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
ARGO_ANNOTATION = {"argocd.argoproj.io/tracking-id": "web:/ReplicationController:shop/foo"}
ARGO_COMMAND = "argocd app set web --sync-policy none"


def record_managers(managers):
    """Return a fault that, after each write, appends the object's field managers to `managers`.

    `managers` maps a resource to a list of sets.
    """
    def record_writes(gateway):
        original = gateway.http.send_once

        def send_once(method, path, *arguments, **options):
            status, headers, data = original(method, path, *arguments, **options)
            match = re.match(r"/apis?/.*/namespaces/[^/]+/([a-z]+)[^?]*$", path)
            if method in ("POST", "PUT", "PATCH") and match and status < 300:
                metadata = json.loads(data)["metadata"]
                managers[match[1]].append({entry["manager"] for entry in metadata["managedFields"]})
            return status, headers, data

        gateway.http.send_once = send_once

    return record_writes


def managers_of(item):
    return {entry["manager"] for entry in item["metadata"]["managedFields"]}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind, task, resources", [
    (RC, {"image": "myimage:v2"},
     {"replicationcontrollers", "pods", "controllerrevisions", "horizontalpodautoscalers"}),
    (RC, {"image": "myimage:v2", "next_name": "bar"}, {"replicationcontrollers"}),
    (RC, {"module": "migrate_to_deployment", "state": "migrated"},
     {"replicationcontrollers", "pods", "controllerrevisions", "deployments",
      "replicasets"}),
    (RS, {"state": "restarted"}, {"replicasets", "pods", "controllerrevisions"}),
    (DEPLOYMENT, {"image": "myimage:v2"}, {"deployments"}),
], ids=["update", "next_name", "migration", "ReplicaSet", "Deployment"])
def test_each_write_has_the_field_manager_of_the_collection(namespace, kind, task, resources):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    make_controller(namespace, kind)
    namespace.call(
        "POST",
        AUTOSCALERS.format(namespace.name),
        {
            "metadata": {"name": "foo"},
            "spec": {
                "maxReplicas": 3,
                "scaleTargetRef": {"apiVersion": "v1", "kind": RC, "name": "foo"},
            },
        },
    )
    managers = collections.defaultdict(list)

    assert namespace.roll(kind=kind, fault=record_managers(managers), **task)["changed"]

    assert managers.keys() >= {*resources, "leases", "events"}
    for resource, manager_sets in managers.items():
        # The last write to the autoscaler only removes a field, and a removed field has no manager.
        assert OUR_MANAGER in manager_sets[0] and (
            OUR_MANAGER in manager_sets[-1] or resource == "horizontalpodautoscalers"
        ), resource
        assert not set.union(*manager_sets) & {FORMER_MANAGER, "OpenAPI-Generator"}, resource


def make_controller(namespace, kind):
    {RC: namespace.make_rc, RS: namespace.make_replica_set,
     DEPLOYMENT: namespace.make_deployment}[kind](2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind, write_number", [(RC, 5), (RC, 11), (DEPLOYMENT, 1)],
                         ids=["sizes", "handover", "Deployment"])
def test_update_completes_after_a_start_with_the_former_field_manager(
        namespace, monkeypatch, kind, write_number):
    make_controller(namespace, kind)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(connection, "USER_AGENT", f"{FORMER_MANAGER}/2.8.0")
        namespace.roll(kind=kind, image="myimage:v2", fault=kill_at_write(write_number, True))
    item = namespace.rc() if kind == RC else namespace.deployment()
    assert FORMER_MANAGER in managers_of(item) and OUR_MANAGER not in managers_of(item)

    result = namespace.roll(kind=kind, image="myimage:v2")

    item = namespace.rc() if kind == RC else namespace.deployment()
    assert result["changed"] and result["rollout"]["phase"] == "complete" and not result["warnings"]
    assert (OUR_MANAGER in managers_of(item)
            and {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}
            == {"myimage:v2"})


# Server-side apply


def apply(namespace, kind, image, has_selector=True, **query):
    """Apply a manifest of foo. Return the message of the error, or ""."""
    body, path = manifest(2, image, "foo"), namespace.path("replicationcontrollers", "foo")
    if kind == DEPLOYMENT:
        body |= {"apiVersion": "apps/v1", "kind": kind}
        body["spec"]["selector"] = {"matchLabels": {"app": "foo"}}
        path = namespace.apps_path("deployments", "foo")
    if not has_selector:
        del body["spec"]["selector"]
    encoded_query = urllib.parse.urlencode({"fieldManager": "kubectl", **query})
    try:
        namespace.call("PATCH", f"{path}?{encoded_query}", body, "application/apply-patch+yaml")
    except ApiException as error:
        return json.loads(error.reason)["message"]
    return ""


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind, version, has_selector",
                         [(RC, "v1", False), (DEPLOYMENT, "apps/v1", True)])
def test_apply_of_the_old_manifest_conflicts(
        namespace, kind, version, has_selector):
    """After the update, the collection manages the image (docs/how-to/gitops.md)."""
    assert apply(namespace, kind, "myimage:v1", has_selector) == ""
    if kind == RC:
        namespace.until_available("foo", 2)
    else:
        namespace.wait_for_rollout()
    namespace.roll(kind=kind, image="myimage:v2")

    conflict = apply(namespace, kind, "myimage:v1", has_selector)

    assert (conflict
            == ('Apply failed with 1 conflict: conflict with "baton.kubernetes" using ' + version
                + ': .spec.template.spec.containers[name="web"].image'))
    assert apply(namespace, kind, "myimage:v2", has_selector) == ""
    assert namespace.roll(kind=kind, image="myimage:v2")["changed"] is False


def test_apply_of_a_manifest_with_a_selector_conflicts(namespace):
    """The selector is managed as one field, which has the deployment label after an update. A
    forced apply removes the label but affects no pods; the next update sets it again.
    """
    assert apply(namespace, RC, "myimage:v1") == ""
    namespace.until_available("foo", 2)
    namespace.roll(image="myimage:v2")

    conflict = apply(namespace, RC, "myimage:v2")
    with namespace.observer() as observer:
        assert apply(namespace, RC, "myimage:v2", force="true") == ""
        rerun, next_update = namespace.roll(image="myimage:v2"), namespace.roll(image="myimage:v3")

    assert (conflict
            == 'Apply failed with 1 conflict: conflict with "baton.kubernetes" using v1: '
               '.spec.selector')
    assert (namespace.rc()["spec"]["selector"].keys() > {"app"} and not rerun["changed"]
            and next_update["changed"])
    assert len(observer.new_pods) == 2 and observer.min_ready == 2


# GitOps controllers


def test_each_task_with_changes_warns_of_a_gitops_controller(namespace):
    namespace.make_rc(2, annotations=ARGO_ANNOTATION)

    plan = namespace.check(image="myimage:v2", pause_at="1")
    paused_result = namespace.roll(image="myimage:v2", pause_at="1")
    completed_result = namespace.roll(image="myimage:v2")

    for result in (plan, paused_result, completed_result):
        assert warnings_with(result, "Argo CD (application web) manages foo", ARGO_COMMAND)
    assert completed_result["changed"]
    assert not namespace.roll(image="myimage:v2")["warnings"], (
        "a task with nothing to change must not warn")


@pytest.mark.full
def test_flux_is_recognized_by_its_field_manager(namespace):
    namespace.make_deployment(1)
    namespace.roll(kind=DEPLOYMENT, image="myimage:v2")
    query = "fieldManager=kustomize-controller&force=true"
    path = f"{namespace.apps_path('deployments', 'foo')}?{query}"
    namespace.call("PATCH", path,
                   {"apiVersion": "apps/v1", "kind": DEPLOYMENT,
                    "metadata": {"name": "foo", "labels": {"a": "b"}}},
                   "application/apply-patch+yaml")

    (warning,) = warnings_with(namespace.check(kind=DEPLOYMENT, image="myimage:v3"), "manages foo")

    assert (warning.startswith("Flux manages foo: at its next reconciliation")
            and "which replaces all pods" in warning)


@pytest.mark.full
def test_migration_warns_that_a_gitops_controller_recreates_the_controller(namespace):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    namespace.make_rc(1, annotations=ARGO_ANNOTATION)

    result = namespace.roll(module="migrate_to_deployment", state="migrated")

    assert warnings_with(result, "creates the ReplicationController foo again, in addition to the "
                         "Deployment")


# suspend_gitops

KUSTOMIZATION = {"kustomize.toolkit.fluxcd.io/name": "apps",
                 "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
EXCLUSION_ANNOTATIONS = {FLUX_RECONCILE: "disabled", SUSPENDED_GITOPS: FLUX_RECONCILE}
EXCLUSION_WARNING = "suspend_gitops excludes foo from the Kustomization until the update ends"


def make_controller_for_flux(namespace, kind):
    make_controller(namespace, kind)
    path = (namespace.path("replicationcontrollers", "foo") if kind == RC
            else namespace.apps_path("deployments", "foo"))
    namespace.call("PATCH", path, {"metadata": {"labels": KUSTOMIZATION}},
                   "application/merge-patch+json")


def exclusion_annotations(namespace, kind):
    item = namespace.rc() if kind == RC else namespace.deployment()
    annotations = item["metadata"].get("annotations", {})
    return {key: annotations[key] for key in EXCLUSION_ANNOTATIONS if key in annotations}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [RC, DEPLOYMENT])
def test_foo_is_excluded_from_flux_during_the_update_and_at_a_pause(namespace, kind):
    make_controller_for_flux(namespace, kind)
    task = {"kind": kind, "image": "myimage:v2", "suspend_gitops": True}
    assert warnings_with(namespace.check(**task), "Flux (Kustomization flux-system/apps) manages "
                         "foo", EXCLUSION_WARNING) and exclusion_annotations(namespace, kind) == {}

    paused = namespace.roll(**task, pause_at="1")

    assert warnings_with(paused, EXCLUSION_WARNING)
    assert exclusion_annotations(namespace, kind) == EXCLUSION_ANNOTATIONS
    completed_result = namespace.roll(**task)
    assert completed_result["rollout"]["phase"] == "complete"
    assert warnings_with(completed_result, EXCLUSION_WARNING)
    assert exclusion_annotations(namespace, kind) == {} and not namespace.roll(**task)["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task", [{"image": "myimage:v2"}, {"state": "rolled_back"}])
@pytest.mark.parametrize("kind, write_number", [(RC, 1), (RC, 4), (DEPLOYMENT, 1)])
def test_next_task_ends_the_exclusion_from_flux_after_a_kill(namespace, kind, write_number,
                                                             next_task):
    make_controller_for_flux(namespace, kind)
    with pytest.raises(Killed):
        namespace.roll(kind=kind, image="myimage:v2", suspend_gitops=True,
                       fault=kill_at_write(write_number, after=True))
    assert exclusion_annotations(namespace, kind) == EXCLUSION_ANNOTATIONS

    namespace.roll(kind=kind, **next_task)

    assert exclusion_annotations(namespace, kind) == {}

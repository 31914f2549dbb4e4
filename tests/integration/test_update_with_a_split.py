# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resume and roll back updates during a traffic split, on a real API server."""

from __future__ import annotations

import json

import pytest
import test_traffic_split
import writes
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from namespace import RBAC
from test_traffic_split import begin_update, is_without_split, ready_endpoint_count

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

_keep_signal_handlers = test_traffic_split._keep_signal_handlers
RESUME = {"image": "myimage:v2"}
ROLL_BACK = {"state": "rolled_back"}
KINDS = ["ReplicationController", "Deployment", "StatefulSet"]


def update(edge, check_mode=False, **options):
    """Run rolling_update in this process, and return its result, even if it fails."""
    arguments = {"name": "foo", "kind": [edge.kind], "namespace": edge.namespace.name,
                 "kubeconfig": edge.namespace.kubeconfig, **options}
    validation = ArgumentSpecValidator(task.UPDATE_OPTIONS).validate(arguments)
    assert not validation.error_messages, validation.error_messages
    warnings = []
    result = task.result_or_error(lambda params: task.update(params, check_mode),
                                  validation.validated_parameters, warnings.append)
    return {"failed": False, **result, "warnings": warnings}


def endpoints_check(edge):
    """Return a fault: after each write, assert that Services with weight > 0 have endpoints."""
    def check(_step, write):
        result = write()
        for item in edge.rules()[0]["backendRefs"]:
            assert not item["weight"] or ready_endpoint_count(edge, item["name"]), item
        return result

    return lambda gateway: writes.intercept_writes(gateway, check)


def images(edge):
    return {pod["spec"]["containers"][0]["image"] for pod in edge.namespace.pods()
            if "deletionTimestamp" not in pod["metadata"]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task, image", [(RESUME, "myimage:v2"), (ROLL_BACK, "myimage:v1")],
                         ids=["resume", "rollback"])
@pytest.mark.parametrize("kind", KINDS)
def test_split_follows_an_update_and_its_rollback(namespace, kind, next_task, image):
    edge = begin_update(namespace, kind)
    edge.split()
    assert edge.controller_annotations()[object_meta.TRAFFIC_ROUTES] == "HTTPRoute/edge"
    result = namespace.roll(endpoints_check(edge), kind=kind, **next_task)
    assert is_without_split(edge) and images(edge) == {image}
    first_step = result["steps"][0]
    assert (first_step["action"], first_step["kind"]) == ("update", "HTTPRoute")


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [1, 3, 7])
@pytest.mark.parametrize("killed_task", [RESUME, ROLL_BACK], ids=["resume", "rollback"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_is_rolled_back_after_a_kill(namespace, kind, killed_task, number):
    edge = begin_update(namespace, kind)
    edge.split()
    with pytest.raises(writes.Killed):
        namespace.roll(writes.kill_at_write(number, after=True), kind=kind, **killed_task)
    namespace.roll(endpoints_check(edge), kind=kind, **ROLL_BACK)
    assert is_without_split(edge) and images(edge) == {"myimage:v1"}


def test_split_follows_an_update_also_in_check_mode(namespace):
    edge = begin_update(namespace)
    edge.split()
    before = edge.get()
    plan = update(edge, check_mode=True, **RESUME)
    assert edge.get() == before and not plan["failed"], plan["msg"]
    paused_result = update(edge, **RESUME, pause_at="1")
    assert paused_result["msg"].endswith(
        "; 1% of the requests of HTTPRoute/edge go to the new pods")
    result = update(edge, **RESUME)
    assert not result["failed"] and is_without_split(edge), result["msg"]
    kinds = ("HTTPRoute", "Service")
    assert ([(step["action"], step["name"]) for step in plan["steps"] if step["kind"] in kinds]
            == [(step["action"], step["name"]) for step in result["steps"]
                if step["kind"] in kinds])


def test_missing_permission_is_reported_before_the_first_change(namespace):
    edge = begin_update(namespace)
    edge.split()
    namespace.call("DELETE", f"{RBAC}/namespaces/{namespace.name}/rolebindings/traffic")
    before = edge.get()
    for next_task in (RESUME, ROLL_BACK):
        result = update(edge, **next_task)
        assert result["failure"]["what"].startswith("the requests of HTTPRoute/edge are split")
        assert "get, patch on httproutes (gateway.networking.k8s.io)" in result["failure"]["why"]
        assert any("state=restored" in command for command in result["failure"]["commands"])
    assert edge.get() == before and images(edge) == {"myimage:v1", "myimage:v2"}
    assert not update(edge, **RESUME, pause_at="1")["failed"], "a pause needs no permission"


@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["HTTPRoute/edge", "HTTPRoute/absent", "HTTPRoute/../secrets/db"])
def test_forged_annotation_changes_no_split_of_another_controller(namespace, text):
    """The split belongs to foo, because its Services select only pods of foo."""
    edge = begin_update(namespace)
    edge.split()
    before = edge.get(), edge.services()
    namespace.make_rc(1, name="bar")
    path = namespace.path("replicationcontrollers", "bar")
    namespace.call("PATCH", path, {"metadata": {"annotations": {
        object_meta.TRAFFIC_ROUTES: text}}}, "application/merge-patch+json")
    namespace.roll(name="bar", kind="ReplicationController", image="myimage:v2")
    annotations = namespace.call("GET", path)["metadata"]["annotations"]
    assert (edge.get(), edge.services()) == before
    assert object_meta.TRAFFIC_ROUTES not in annotations, json.dumps(annotations)


@pytest.mark.full
def test_rollback_warns_and_continues_if_no_gateway_observes_the_route(namespace):
    edge = begin_update(namespace)
    edge.split()
    condition = {"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                 "lastTransitionTime": "2026-11-25T09:00:00Z", "observedGeneration": 1}
    namespace.call("PATCH", f"{edge.path}/status", {"status": {"parents": [{
        "parentRef": {"name": "gateway"}, "controllerName": "example.com/gateway",
        "conditions": [condition]}]}}, "application/merge-patch+json")
    with pytest.raises(RolloutError, match="each Gateway has observed the route") as error:
        namespace.roll(kind="Deployment", **ROLL_BACK)
    assert any("the rollback of the pods continues" in warning
               for warning in error.value.progress["warnings"])
    assert images(edge) == {"myimage:v1"}

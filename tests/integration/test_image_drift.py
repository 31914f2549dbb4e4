# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test a tag that moves during an update, so that new pods run images with different digests."""

from __future__ import annotations

import dataclasses

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, role_rules
from test_permissions import change_role, rules_without

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)

pytestmark = pytest.mark.fake_nodes("the test writes the imageIDs, which a kubelet would overwrite")
KINDS = ["ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet"]
#: Digests before and after a tag moves.
FIRST_DIGEST, SECOND_DIGEST = (f"sha256:{letter * 64}" for letter in "ab")
#: Fields of a pod's status, by the corresponding fields of its spec.
STATUS_FIELDS = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}


@dataclasses.dataclass
class Registry:
    """Simulates a registry in which a tag may move.

    It writes a digest into the status of each new pod before the code under test lists the pods,
    but only of ready pods: KWOK overwrites the status of a starting pod.
    """

    namespace: object
    #: Digests of the new pods, in order; further pods have the last digest.
    digests: tuple[str, ...]
    #: Containers whose tag moves.
    containers: tuple[str, ...] = ("web",)
    list_count: int = 0
    written_count: int = 0

    def write_before_each_list(self, gateway):
        all_pods = gateway.all_pods

        def write_and_list(*arguments):
            self.list_count += 1
            self.write_digests()
            return all_pods(*arguments)

        gateway.all_pods = write_and_list

    def write_digests(self, image="myimage:v2"):
        pods = [pod for pod in self.namespace.pods()
                if pod["spec"]["containers"][0]["image"] == image and is_ready(pod)]
        for pod in pods:
            operations = self.operations(pod)
            if operations:
                self.written_count += 1
                path = self.namespace.path("pods", pod["metadata"]["name"]) + "/status"
                self.namespace.call("PATCH", path, operations, "application/json-patch+json")

    def operations(self, pod):
        """Return a JSON patch that writes missing imageIDs."""
        digest = self.digests[min(self.written_count, len(self.digests) - 1)]
        operations = []
        for field, status_field in STATUS_FIELDS.items():
            statuses = pod["status"].get(status_field) or [
                {"name": container["name"], "image": container["image"], "imageID": "",
                 "ready": True, "restartCount": 0} for container in pod["spec"].get(field, ())]
            if any(not status["imageID"] for status in statuses):
                value = [{**status, "imageID": "registry.example.com/shop@"
                          + (digest if status["name"] in self.containers else FIRST_DIGEST)}
                         for status in statuses]
                operations.append({"op": "add", "path": f"/status/{status_field}", "value": value})
        return operations


def make_controller(namespace, kind, replicas=4):
    makers = {"ReplicationController": namespace.make_rc,
              "ReplicaSet": namespace.make_replica_set, "Deployment": namespace.make_deployment,
              "StatefulSet": namespace.make_stateful_set}
    if kind == "DaemonSet":
        namespace.allow(role_rules("baton-daemon-sets"), "daemon-sets")
        body = manifest(0)
        del body["spec"]["replicas"]
        namespace.create_controller(kind, body)
        eventually(lambda: len(namespace.pods()) >= 2 and all_pods_are_ready(namespace),
                   "ready pods")
    else:
        makers[kind](replicas)


def is_ready(pod):
    return any(condition["type"] == "Ready" and condition["status"] == "True"
               for condition in pod["status"].get("conditions", ()))


def all_pods_are_ready(namespace):
    return all(map(is_ready, namespace.pods()))


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def drift_warnings(texts):
    return [text for text in texts if "myimage:v2 is sha256:" in text]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_moved_tag_causes_a_warning_with_the_pods_of_each_digest(namespace, kind):
    make_controller(namespace, kind)
    registry, lines = Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST)), []

    result = namespace.roll(fault=registry.write_before_each_list, kind=kind, image="myimage:v2",
                            on_line=lines.append)

    assert result["rollout"]["phase"] == "complete" and images(namespace) == {"myimage:v2"}
    (warning,) = drift_warnings(result["warnings"])
    assert f"{FIRST_DIGEST} in " in warning and f"{SECOND_DIGEST} in " in warning
    assert any(pod["metadata"]["name"] in warning for pod in namespace.pods())
    assert len(drift_warnings(lines)) == 1
    # The flow of a DaemonSet also lists pods.
    assert registry.list_count <= (8 if kind == "DaemonSet" else 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_update_is_rolled_back_with_image_drift_fail(namespace, kind):
    make_controller(namespace, kind)
    registry = Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST))

    with pytest.raises(RolloutFailed) as error:
        namespace.roll(fault=registry.write_before_each_list, kind=kind, image="myimage:v2",
                       image_drift="fail", on_failure="rollback")

    assert error.value.what.startswith("a tag has moved: the new pods run different versions of an "
                                       "image; foo is rolled back to myimage:v1")
    assert len(drift_warnings([error.value.why])) == 1 and f"{SECOND_DIGEST} in " in error.value.why
    assert error.value.causes[0]["kind"] == "image-drift"
    assert "by its digest" in error.value.next_command
    eventually(lambda: images(namespace) == {"myimage:v1"}, "the old pods")


@pytest.mark.full
def test_update_stops_with_image_drift_fail(namespace):
    namespace.make_rc(6)
    registry = Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST))

    with pytest.raises(RolloutFailed) as error:
        namespace.roll(fault=registry.write_before_each_list, image="myimage:v2",
                       image_drift="fail")

    # The update fails at the second new pod.
    assert images(namespace) == {"myimage:v1", "myimage:v2"}
    assert "state=rolled_back" in error.value.next_command
    assert "image_drift=fail" in error.value.next_command
    assert namespace.roll(state="rolled_back")["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
def test_tag_that_moves_after_the_canary_fails_the_update(namespace, kind):
    make_controller(namespace, kind)
    options = {"kind": kind, "image": "myimage:v2", "image_drift": "fail"}
    namespace.roll(**options, pause_at=1)
    Registry(namespace, (FIRST_DIGEST,)).write_digests()

    with pytest.raises(RolloutFailed) as error:
        namespace.roll(fault=Registry(namespace, (SECOND_DIGEST,)).write_before_each_list,
                       **options)

    canary = error.value.why.partition(f"{FIRST_DIGEST} in 1 pod (")[2].partition(")")[0]
    assert canary in {pod["metadata"]["name"] for pod in namespace.pods()}


@pytest.mark.full
@pytest.mark.parametrize("container", ["setup", "sidecar"])
def test_init_containers_and_sidecars_are_compared(namespace, container):
    body = manifest(3)
    spec = body["spec"]["template"]["spec"]
    spec["initContainers"] = [{"name": "setup", "image": "setup:v1"}]
    spec["containers"].append({"name": "sidecar", "image": "proxy:v1"})
    namespace.create("replicationcontrollers", body)
    namespace.until_available("foo", 3)

    result = namespace.roll(
        fault=Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST),
                       (container,)).write_before_each_list,
        images={"web": "myimage:v2"})

    (warning,) = (text for text in result["warnings"] if "a tag has moved" in text)
    assert f"container {container}: " in warning


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"image_drift": "fail"}])
def test_tag_that_does_not_move_causes_no_warning(namespace, options):
    namespace.make_rc(4)
    registry = Registry(namespace, (FIRST_DIGEST,))

    result = namespace.roll(fault=registry.write_before_each_list, image="myimage:v2", **options)

    assert not drift_warnings(result["warnings"]) and 2 <= registry.list_count <= 3
    assert result["rollout"]["phase"] == "complete"


@pytest.mark.full
def test_no_pods_are_listed_with_image_drift_ignore(namespace):
    namespace.make_rc(2)
    registry = Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST))

    result = namespace.roll(fault=registry.write_before_each_list, image="myimage:v2",
                            image_drift="ignore")

    assert registry.list_count == 0 and not drift_warnings(result["warnings"])


@pytest.mark.full
def test_digests_are_compared_at_the_end_of_a_soak(namespace):
    namespace.make_deployment(4)
    registry = Registry(namespace, (FIRST_DIGEST, SECOND_DIGEST))

    result = namespace.roll(fault=registry.write_before_each_list, kind="Deployment",
                            image="myimage:v2", pause_at=2, soak=1)

    assert len(drift_warnings(result["warnings"])) == 1 and result["rollout"]["phase"] == "paused"


@pytest.mark.full
def test_check_mode_compares_nothing(namespace):
    namespace.make_rc(2)

    result = namespace.check(image="myimage:v2", image_drift="fail")

    assert result["changed"] and not drift_warnings(result["warnings"])


def test_missing_permission_is_an_error_only_with_image_drift_fail(namespace):
    namespace.make_rc(2)
    change_role(namespace, rules_without("list", "pods"), "list", "pods")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2", next_name="bar", image_drift="fail")

    assert (error.value.what == "permissions are missing; nothing was changed"
            and error.value.why == "not allowed: list on pods")
    assert namespace.roll(image="myimage:v2", next_name="bar")["changed"]


@pytest.mark.full
def test_hostile_status_is_escaped(namespace):
    namespace.make_rc(2)
    registry = Registry(namespace, ("\x1b[31m" + "x" * 5000, SECOND_DIGEST))

    try:
        result = namespace.roll(fault=registry.write_before_each_list, image="myimage:v2")
    except ApiException:
        pytest.fail("the API server refuses the status, so the test proves nothing")

    (warning,) = (text for text in result["warnings"] if "a tag has moved" in text)
    assert warning.isprintable() and len(warning) < 1000

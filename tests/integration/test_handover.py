# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the handover at the end of an update: a patch of each pod changes its owner."""

from __future__ import annotations

import contextlib
import json
import os
import threading

import embedded
import pytest
from kubernetes.client.exceptions import ApiException
from namespace import ADMISSION_PLUGINS, OWNER_REFERENCES_PLUGIN, Namespace
from objects import eventually, is_ready, manifest, owner_uid, role_rules, uids
from permitted_user import IMAGES, User, assert_each_permission_is_needed, summary
from writes import Killed, action_after_write, is_deletion, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 3
#: More writes than a handover has.
MAX_WRITES = 30
KINDS = ["ReplicationController", "ReplicaSet"]
UPDATE = {"image": "myimage:v2"}


class Controllers:
    def __init__(self, namespace, kind):
        self.namespace, self.kind = namespace, kind

    def path(self, name=""):
        is_core = self.kind == "ReplicationController"
        return (self.namespace.path("replicationcontrollers", name) if is_core
                else self.namespace.apps_path("replicasets", name))

    def make(self, replicas=REPLICAS, name="foo", labels=None, **spec):
        """Create a controller with available pods."""
        self.namespace.call("POST", self.path(), self.body(replicas, name, labels, **spec))
        eventually(lambda: self.is_available(name, replicas), f"{replicas} replicas of {name}")

    def body(self, replicas=REPLICAS, name="foo", labels=None, **spec):
        body = manifest(replicas, name=name)
        labels = labels or {"app": name}
        body["spec"]["template"]["metadata"]["labels"] = labels
        body["spec"]["template"]["spec"] |= spec
        body["spec"]["selector"] = labels
        if self.kind == "ReplicaSet":
            body |= {"apiVersion": "apps/v1", "kind": "ReplicaSet"}
            body["spec"]["selector"] = {"matchLabels": labels}
        return body

    def get(self, name="foo"):
        try:
            return self.namespace.call("GET", self.path(name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def names(self):
        return sorted(item["metadata"]["name"]
                      for item in self.namespace.call("GET", self.path())["items"])

    def successor_name(self):
        (name,) = (name for name in self.names() if name.startswith("foo-"))
        return name

    def patch(self, name, body):
        return self.namespace.call("PATCH", self.path(name), body, "application/merge-patch+json")

    def remove(self, name, policy="Background"):
        uid = self.get(name)["metadata"]["uid"]
        self.namespace.call("DELETE", self.path(name), {"propagationPolicy": policy})
        eventually(lambda: self.get(name) is None
                   and uid not in map(owner_uid, self.namespace.pods()),
                   f"the deletion of {name}")

    def is_available(self, name="foo", replicas=REPLICAS):
        status = (self.get(name) or {}).get("status", {})
        return status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas

    def has_unavailable_pods(self, name="foo"):
        status = self.get(name)["status"]
        return status.get("availableReplicas", 0) < status["replicas"]

    def is_observed(self, name="foo"):
        item = self.get(name)
        return item["status"].get("observedGeneration") == item["metadata"]["generation"]

    def pods(self, name="foo"):
        uid = self.get(name)["metadata"]["uid"]
        return [pod for pod in self.namespace.pods() if owner_uid(pod) == uid]

    def roll(self, **params):
        return self.namespace.roll(**{"kind": self.kind, **UPDATE, "progress_deadline": 20,
                                      **params})

    def kill_in_handover(self, **params):
        with pytest.raises(Killed):
            self.roll(fault=kill_at_write(1, True, is_reparenting), **params)
        assert len(self.pods()) == 1 and len(self.pods(self.successor_name())) == REPLICAS - 1

    def assert_updated(self, replicas=REPLICAS, image="myimage:v2"):
        item = self.get()
        own_pods = self.pods()
        assert (self.names() == ["foo"] and self.is_available("foo", replicas)
                and item["spec"]["replicas"] == replicas)
        assert ({pod["spec"]["containers"][0]["image"] for pod in own_pods} == {image}
                and len(own_pods) == replicas)
        assert "priorityClassName" not in item["spec"]["template"]["spec"]
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(item["metadata"]["annotations"])
        assert (json.loads(item["metadata"]["annotations"][object_meta.LAST_ROLLOUT])["outcome"]
                == "updated")
        assert not self.roll(image=image)["changed"]


@pytest.fixture(params=KINDS)
def controllers(namespace, request):
    return Controllers(namespace, request.param)


# Other controllers whose selectors match the same pods


@pytest.mark.sample(1)
@pytest.mark.parametrize("updated_name, other_name", [("foo", "canary"), ("canary", "foo")])
def test_controllers_with_a_shared_label_retain_their_pods(
        namespace, controllers, updated_name, other_name):
    """The selector of foo also matches the pods of the canary."""
    controllers.make(3)
    controllers.make(2, "canary", {"app": "foo", "track": "canary"})
    before = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
              for pod in controllers.pods(other_name)}
    size = len(controllers.pods(updated_name))

    with namespace.observer() as observer:
        result = controllers.roll(name=updated_name)

    assert (result["changed"] and controllers.names() == ["canary", "foo"]
            and len(observer.new_pods) == size)
    assert ({pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
             for pod in controllers.pods(other_name)} == before)
    assert (uids(controllers.pods(updated_name)) == observer.new_pods and observer.min_ready >= 5
            and observer.max_pods <= 6)


# The client is killed


class HandoverWrites:
    """Filter for the writes of the handover. The first one changes the template of foo."""

    def __init__(self):
        self.has_begun = False

    def __call__(self, step):
        operations = getattr(step, "operations", ())
        self.has_begun = (self.has_begun
                          or any(operation["path"] == "/spec/template" for operation in operations))
        return self.has_begun


@pytest.mark.sample(1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_handover_resumes_after_a_kill_at_each_write(namespace, controllers, after):
    controllers.make()
    for number in range(1, MAX_WRITES):
        image = f"myimage:v{number + 1}"
        moment = f"killed {'after' if after else 'before'} write {number} of the handover"
        uids_at_kill = set()
        with namespace.observer() as observer:
            try:
                controllers.roll(fault=kill_at_write(number, after, HandoverWrites()), image=image)
            except Killed:
                uids_at_kill = uids(namespace.pods())
                controllers.roll(image=image)
            else:
                break
        assert uids(controllers.pods()) == uids_at_kill == observer.new_pods, moment
        assert (len(observer.new_pods) == REPLICAS and not observer.new_pods & observer.deleted_pods
                and not observer.restarts), moment
        assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1, moment
        assert "foo" not in observer.controllers_deleted, moment
        controllers.assert_updated(image=image)
    # Rename, close, a patch for each pod, delete, open, and a task that is not killed.
    assert number == 4 + REPLICAS + 1


@pytest.mark.sample(1)
def test_handover_resumes_after_a_kill_at_each_pod(namespace, controllers):
    controllers.make()
    with namespace.observer() as observer:
        for count in range(1, REPLICAS + 1):
            with pytest.raises(Killed):
                controllers.roll(fault=kill_at_write(1, True, is_reparenting))
            assert len(controllers.pods()) == count and len(namespace.pods()) == REPLICAS
        controllers.roll()

    controllers.assert_updated()
    assert uids(controllers.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


# Another client acts during the handover


def name_of(pod):
    return pod["metadata"]["name"]


def delete_pods_of(target):
    def delete(controllers):
        owners = {"foo": ["foo"], "successor": [controllers.successor_name()],
                  "both": ["foo", controllers.successor_name()]}[target]
        for pod in [pod for name in owners for pod in controllers.pods(name)]:
            controllers.namespace.remove(name_of(pod), "pods")
        eventually(lambda: not any(controllers.pods(name) for name in owners),
                   "the deletion of the pods")
    return delete


def relabel_pod_of(target, key):
    """Return an action that changes a label, so that the controller releases the pod."""
    def relabel(controllers):
        pod = controllers.pods(controllers.successor_name() if target == "successor" else target)[0]
        controllers.namespace.patch(name_of(pod), {"metadata": {"labels": {key: "another"}}},
                                    "pods")
        eventually(lambda: (owner_uid(controllers.namespace.get("pods", name_of(pod)))
                            != owner_uid(pod)), "the release of the pod")
    return relabel


def adopt_pod(controllers):
    """Change the owner of a pod to another controller, which cannot create pods."""
    controllers.namespace.call("POST", controllers.path(),
                               controllers.body(1, "other", {"app": "foo"},
                                                priorityClassName="missing"))
    controller = controllers.get("other")
    pod = controllers.pods(controllers.successor_name())[0]
    reference = {"apiVersion": controller["apiVersion"], "kind": controllers.kind, "name": "other",
                 "uid": controller["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}
    controllers.namespace.patch(name_of(pod), {"metadata": {"ownerReferences": [reference]}},
                                "pods")
    eventually(lambda: controllers.is_available("other", 1), "the pod of the other controller")


def terminate_pod_of(target):
    """Return an action that deletes a pod, which a finalizer retains."""
    def terminate(controllers):
        name = name_of(
            controllers.pods(controllers.successor_name() if target == "successor" else target)[0])
        controllers.namespace.patch(name, {"metadata": {"finalizers": ["example.com/wait"]}},
                                    "pods")
        controllers.namespace.remove(name, "pods")
    return terminate


def scale_controller(name, size):
    def scale(controllers):
        controllers.patch(name or controllers.successor_name(), {"spec": {"replicas": size}})
        eventually(lambda: controllers.is_observed(name or controllers.successor_name()),
                   "the observation of the new size")
    return scale


def delete_controller(name, policy):
    return lambda controllers: controllers.remove(name or controllers.successor_name(), policy)


DEPLOYMENT_LABEL = object_meta.DEPLOYMENT_LABEL
#: Actions of another client, and how many available pods each of them removes.
ACTIONS = {
    "delete the pod of foo": (delete_pods_of("foo"), 1),
    "delete the pods of the successor": (delete_pods_of("successor"), REPLICAS - 1),
    "delete all pods": (delete_pods_of("both"), REPLICAS),
    "relabel the pod of foo": (relabel_pod_of("foo", "app"), 0),
    "relabel a pod of the successor": (relabel_pod_of("successor", "app"), 0),
    "change the deployment label of a pod of the successor":
        (relabel_pod_of("successor", DEPLOYMENT_LABEL), 0),
    "change the owner of a pod of the successor": (adopt_pod, 0),
    "terminate the pod of foo": (terminate_pod_of("foo"), 1),
    "terminate a pod of the successor": (terminate_pod_of("successor"), 1),
    "scale up foo": (scale_controller("foo", 5), 0),
    "scale down foo": (scale_controller("foo", 1), 0),
    "scale foo to 0": (scale_controller("foo", 0), 1),
    "scale up the successor": (scale_controller(None, 5), 0),
    "scale down the successor": (scale_controller(None, 1), 1),
    "delete foo": (delete_controller("foo", "Background"), 1),
    "delete foo with --cascade=orphan": (delete_controller("foo", "Orphan"), 0),
    "delete the successor": (delete_controller(None, "Background"), REPLICAS - 1),
    "delete the successor with --cascade=orphan": (delete_controller(None, "Orphan"), 0),
}


def is_orphaned_by(title):
    def is_orphaned(pod):
        return "orphan" in title or "another" in pod["metadata"]["labels"].values()
    return is_orphaned


@pytest.mark.sample(1)
@pytest.mark.parametrize("title", ACTIONS)
def test_handover_resumes_after_changes_of_other_clients(namespace, controllers, title):
    action, lost_count = ACTIONS[title]
    controllers.make()
    with namespace.observer(is_orphaned_by(title)) as observer:
        controllers.kill_in_handover()
        action(controllers)
        surviving_uids = uids(filter(is_ready, namespace.pods()))
        controllers.roll()

    adopted_uids = uids(controllers.pods("other")) if controllers.get("other") else set()
    foreign_uids = uids(pod for pod in namespace.pods() if not owner_uid(pod)) | adopted_uids
    if adopted_uids:
        controllers.remove("other")
    for item in namespace.call("GET", namespace.path("pods"))["items"]:
        if "finalizers" in item["metadata"]:
            namespace.patch(name_of(item), {"metadata": {"finalizers": None}}, "pods")
    controllers.assert_updated(5 if title == "scale up foo" else REPLICAS)
    assert observer.min_ready >= REPLICAS - lost_count
    assert surviving_uids - foreign_uids <= uids(controllers.pods()), (
        "the task has deleted a surviving pod")


@pytest.mark.full
def test_lost_takeover_annotation_of_foo_is_restored(namespace, controllers):
    controllers.make()
    with namespace.observer() as observer:
        controllers.kill_in_handover()
        controllers.patch("foo", {"metadata": {"annotations": None}})
        controllers.roll()

    controllers.assert_updated()
    assert uids(controllers.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


@pytest.mark.full
@pytest.mark.parametrize(
    "number", [1, 6], ids=["after the rename", "after the deletion of the successor"]
)
def test_lost_takeover_annotation_without_a_copy_is_an_error(namespace, controllers, number):
    controllers.make()
    with namespace.observer() as observer:
        with pytest.raises(Killed):
            controllers.roll(fault=kill_at_write(number, True, HandoverWrites()))
        controllers.patch("foo", {"metadata": {"annotations": None}})
        with pytest.raises(RolloutError, match="client removed the annotation") as error:
            controllers.roll()

    assert "remove priorityClassName from the template" in error.value.next_command
    assert (len(observer.new_pods) == REPLICAS == len(namespace.pods())
            and observer.min_ready >= REPLICAS)


# Another client applies the old manifest of foo


def apply_client_side(controllers):
    body = controllers.body()
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(body)}
    change = {"metadata": {"labels": body["metadata"]["labels"], "annotations": last_applied},
              "spec": body["spec"]}
    controllers.namespace.call("PATCH", controllers.path("foo"), change,
                               "application/strategic-merge-patch+json")


def apply_server_side(controllers):
    path = f"{controllers.path('foo')}?fieldManager=kubectl&force=true"
    controllers.namespace.call("PATCH", path, controllers.body(), "application/apply-patch+yaml")


def replace(controllers):
    controllers.namespace.call("PUT", controllers.path("foo"), controllers.body())


APPLY_FUNCTIONS = [apply_client_side, apply_server_side, replace]
#: The writes of a handover by number, except the last.
WRITES = {
    1: "rename",
    2: "close",
    3: "reparent one pod",
    4: "reparent two pods",
    5: "reparent all pods",
    6: "delete",
}
SAMPLED_WRITES = (3, 6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_task_running", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["task killed", "task running"])
@pytest.mark.parametrize("number",
                         [pytest.param(number, id=f"after {title}",
                                       marks=() if number in SAMPLED_WRITES else pytest.mark.long)
                          for number, title in WRITES.items()])
@pytest.mark.parametrize("apply", APPLY_FUNCTIONS)
def test_no_pod_is_lost_if_the_old_manifest_is_applied_in_a_handover(
        namespace, controllers, apply, number, is_task_running):
    controllers.make()
    warnings = []

    def action():
        apply(controllers)
        eventually(controllers.is_observed, "the observation of the applied manifest")

    with namespace.observer() as observer:
        if is_task_running:
            warnings += controllers.roll(
                fault=action_after_write(number, action, HandoverWrites()))["warnings"]
        else:
            with pytest.raises(Killed):
                controllers.roll(fault=kill_at_write(number, True, HandoverWrites()))
            action()
        warnings += controllers.roll()["warnings"]

    controllers.assert_updated()
    assert observer.min_ready >= REPLICAS
    # Annotations reveal the other client, but a PUT after rename or delete removes them.
    if apply is not replace or WRITES[number] not in ("rename", "delete"):
        assert any(warning.startswith("another client ") and "foo" in warning
                   for warning in warnings), warnings


@pytest.mark.full
@pytest.mark.parametrize("apply", APPLY_FUNCTIONS)
def test_no_pod_is_lost_if_the_old_manifest_is_applied_before_the_last_write(
        namespace, controllers, apply):
    controllers.make()
    with namespace.observer() as observer:
        controllers.roll(fault=action_after_write(6, lambda: apply(controllers), HandoverWrites()))

    controllers.assert_updated()
    assert observer.min_ready >= REPLICAS


@pytest.mark.sample(1)
def test_image_of_another_client_is_reported_in_a_warning_and_a_progress_line(
        namespace, controllers):
    controllers.make()
    lines = []
    controllers.kill_in_handover()
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image",
               "value": "myimage:by-hand"}]
    namespace.call("PATCH", controllers.path("foo"), change, "application/json-patch+json")

    (warning,) = controllers.roll(on_line=lines.append)["warnings"]

    assert ("another client applied another template to foo" in warning
            and "myimage:by-hand" in warning and "myimage:v2" in warning)
    assert "restore foo: myimage:v2; another client had set myimage:by-hand" in lines
    controllers.assert_updated()


# Unready pods


class Readiness:
    """Sets the condition Ready of all running pods: False for `unready_names`, True for others."""

    def __init__(self, namespace):
        self.namespace, self.unready_names, self._stop = namespace, set(), threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stop.set()
        self._thread.join()

    def _work(self):
        while not self._stop.wait(0.05):
            for pod in self.namespace.pods():
                if (pod["status"].get("phase") == "Running"
                        and is_ready(pod) == (name_of(pod) in self.unready_names)):
                    self.set(name_of(pod), name_of(pod) not in self.unready_names)

    def set(self, name, is_ready):
        change = {"status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}
        path = self.namespace.path("pods", name) + "/status"
        with contextlib.suppress(ApiException):  # the pod may have been deleted
            self.namespace.call("PATCH", path, change, "application/strategic-merge-patch+json")


@pytest.mark.sample(1)
@pytest.mark.fake_nodes("pods that run and never become ready")
@pytest.mark.parametrize(
    "matches_write",
    [is_reparenting, is_deletion],
    ids=["during the handover", "after the deletion of the successor"],
)
def test_template_is_restored_while_a_pod_is_unready(namespace, controllers, matches_write):
    """If the successor is already deleted, the update may end before the pod becomes unready."""
    controllers.make()
    was_opened = threading.Event()

    with Readiness(namespace) as readiness, namespace.observer() as observer:
        def make_unready():
            readiness.unready_names.add(name_of(controllers.pods()[0]))
            readiness.set(name_of(controllers.pods()[0]), False)
            eventually(controllers.has_unavailable_pods, "an unavailable pod in the status of foo")

        def on_line(line):
            if line == "restore foo: template":
                item = controllers.get()
                assert item["spec"]["template"]["spec"].get("priorityClassName") != handover.CLOSED
                was_opened.set()
                readiness.unready_names.clear()

        controllers.roll(fault=action_after_write(1, make_unready, matches_write), on_line=on_line,
                         image="myimage:v2-unready")

    assert was_opened.is_set() or matches_write is is_deletion
    assert "priorityClassName" not in controllers.get()["spec"]["template"]["spec"]
    assert len(observer.new_pods) == REPLICAS and observer.min_ready == REPLICAS - 1
    assert uids(controllers.pods()) == observer.new_pods


# A cluster with the admission plugin OwnerReferencesPermissionEnforcement


@pytest.fixture(scope="module")
def strict_cluster():
    if os.environ.get("KUBECONFIG"):
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: an external cluster keeps its admission plugins")
    with embedded.up(embedded.checkout_cluster_name("owners"),
                     admission_plugins=[*{*ADMISSION_PLUGINS, OWNER_REFERENCES_PLUGIN}]) as cluster:
        yield cluster


@pytest.fixture
def strict_namespace(strict_cluster, request):
    namespace = Namespace(
        strict_cluster.kubeconfig, request.node.originalname, admission_plugins=()
    )
    yield namespace
    namespace.delete()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_owner_permission_is_an_error_before_the_first_write(
        strict_namespace, kind):
    controllers = Controllers(strict_namespace, kind)
    controllers.make()
    before = controllers.get()

    with pytest.raises(RolloutError) as error:
        controllers.roll()

    assert ("not allowed to change the controller of pod" in error.value.what
            and "docs/reference/permissions.md" in error.value.next_command)
    assert "cannot set an ownerRef on a resource you can't delete" in error.value.why
    assert (controllers.names() == ["foo"]
            and controllers.get()["metadata"]["resourceVersion"]
            == before["metadata"]["resourceVersion"])
    assert controllers.roll(next_name="bar")["changed"] and controllers.names() == ["bar"]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_update_succeeds_with_owner_permission(strict_namespace, kind):
    controllers = Controllers(strict_namespace, kind)
    strict_namespace.allow(role_rules("baton-owner-references"), "baton-owner-references")
    controllers.make()

    with strict_namespace.observer() as observer:
        controllers.kill_in_handover()
        controllers.roll()

    controllers.assert_updated()
    assert uids(controllers.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


@pytest.mark.full
def test_each_permission_for_owner_references_is_needed(strict_namespace):
    user = User(strict_namespace)
    for name in ("update-replicationcontroller", "update-replicaset", "history",
                 "owner-references"):
        user.apply(name)
    for kind, name in (("ReplicationController", "foo"), ("ReplicaSet", "bar")):
        strict_namespace.create_controller(kind, manifest(1, "myimage:v1", name))
    eventually(lambda: len(strict_namespace.pods()) == 2, "the pods")

    def use(user):
        image = next(IMAGES)
        return [summary(user.run(name=name, kind=kind, image=image))
                for kind, name in (("ReplicationController", "foo"), ("ReplicaSet", "bar"))]

    assert_each_permission_is_needed(user, "owner-references", use)
    assert use(user) == [(False, None, None, ())] * 2


@pytest.mark.full
def test_migration_resumes_with_owner_permission(strict_namespace):
    strict_namespace.allow(role_rules("baton-migration"), "baton-migration")
    strict_namespace.make_rc(REPLICAS)
    before = uids(strict_namespace.pods())
    migration = {"module": "migrate_to_deployment", "state": "migrated"}

    with strict_namespace.observer() as observer:
        with pytest.raises(RolloutError, match="not allowed to change the controller of pod"):
            strict_namespace.roll(**migration)
        strict_namespace.allow(role_rules("baton-owner-references"), "baton-owner-references")
        strict_namespace.roll(**migration)

    assert strict_namespace.wait_for_rollout() and strict_namespace.rc_names() == []
    assert (
        uids(strict_namespace.pods()) == before
        and not observer.new_pods
        and not observer.deleted_pods
    )


@pytest.mark.full
def test_deployment_needs_no_owner_permission(strict_namespace):
    strict_namespace.make_deployment(2)
    assert strict_namespace.roll(kind="Deployment", **UPDATE)["changed"]
    assert strict_namespace.wait_for_rollout()

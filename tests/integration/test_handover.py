# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The last phase of an update: each pod changes its controller by one patch, and always has one.

Clients die at each write, other clients interfere between two writes, other controllers select the
same pods, and a cluster restricts changes of owners.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading

import embedded
import pytest
from kubernetes.client.exceptions import ApiException
from namespace import ADMISSION_PLUGINS, OWNER_REFERENCES, Namespace
from objects import eventually, is_ready, manifest, owner, role, uids
from writes import Killed, action_after_write, is_deletion, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 3
#: Far more than the writes of a handover.
NEVER = 30
KINDS = ["ReplicationController", "ReplicaSet"]
UPDATE = {"image": "myimage:v2"}


class Kind:
    """Controllers of a kind in a namespace."""

    def __init__(self, namespace, kind):
        self.namespace, self.kind = namespace, kind

    def path(self, name=""):
        is_core = self.kind == "ReplicationController"
        return (self.namespace.path("replicationcontrollers", name) if is_core
                else self.namespace.apps_path("replicasets", name))

    def make(self, replicas=REPLICAS, name="foo", labels=None, **spec):
        """Create a controller with these labels in its selector, and wait until all pods are
        available.
        """
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

    def successor(self):
        """Return the name of the successor."""
        (name,) = (name for name in self.names() if name.startswith("foo-"))
        return name

    def patch(self, name, body):
        return self.namespace.call("PATCH", self.path(name), body, "application/merge-patch+json")

    def remove(self, name, policy="Background"):
        """Delete a controller and wait for the garbage collector."""
        uid = self.get(name)["metadata"]["uid"]
        self.namespace.call("DELETE", self.path(name), {"propagationPolicy": policy})
        eventually(lambda: self.get(name) is None and uid not in map(owner, self.namespace.pods()),
                   f"the end of {name}")

    def is_available(self, name="foo", replicas=REPLICAS):
        status = (self.get(name) or {}).get("status", {})
        return status.get("replicas", 0) == status.get("availableReplicas", 0) == replicas

    def lacks_available_pods(self, name="foo"):
        status = self.get(name)["status"]
        return status.get("availableReplicas", 0) < status["replicas"]

    def is_observed(self, name="foo"):
        item = self.get(name)
        return item["status"].get("observedGeneration") == item["metadata"]["generation"]

    def pods(self, name="foo"):
        uid = self.get(name)["metadata"]["uid"]
        return [pod for pod in self.namespace.pods() if owner(pod) == uid]

    def roll(self, **params):
        return self.namespace.roll(**{"kind": self.kind, **UPDATE, "progress_deadline": 20,
                                      **params})

    def half_way(self, **params):
        """Run a client that dies after the handover of the first pod."""
        with pytest.raises(Killed):
            self.roll(fault=kill_at_write(1, True, is_reparenting), **params)
        assert len(self.pods()) == 1 and len(self.pods(self.successor())) == REPLICAS - 1

    def assert_updated(self, replicas=REPLICAS, image="myimage:v2"):
        """Assert that foo is alone, open, without annotations of the update, and complete.

        All its pods are available and have the image, and another task changes nothing.
        """
        item = self.get()
        mine = self.pods()
        assert (self.names() == ["foo"] and self.is_available("foo", replicas)
                and item["spec"]["replicas"] == replicas)
        assert ({pod["spec"]["containers"][0]["image"] for pod in mine} == {image}
                and len(mine) == replicas)
        assert "priorityClassName" not in item["spec"]["template"]["spec"]
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(item["metadata"]["annotations"])
        assert (json.loads(item["metadata"]["annotations"][object_meta.LAST_ROLLOUT])["outcome"]
                == "updated")
        assert not self.roll(image=image)["changed"]


@pytest.fixture(params=KINDS)
def kind(namespace, request):
    """The namespace's controllers of either kind."""
    return Kind(namespace, request.param)


# Other controllers with a selector for the same pods


@pytest.mark.sample
@pytest.mark.parametrize("rolled, neighbour", [("foo", "canary"), ("canary", "foo")])
def test_stable_and_canary_with_a_shared_label_need_no_next_name(
        namespace, kind, rolled, neighbour):
    """stable selects app=foo, a label of the canary's pods too: each keeps its own pods."""
    kind.make(3)
    kind.make(2, "canary", {"app": "foo", "track": "canary"})
    before = {pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
              for pod in kind.pods(neighbour)}
    size = len(kind.pods(rolled))

    with namespace.observer() as observer:
        result = kind.roll(name=rolled)

    assert (
        result["changed"] and kind.names() == ["canary", "foo"] and len(observer.new_pods) == size
    )
    assert ({pod["metadata"]["uid"]: pod["metadata"]["resourceVersion"]
             for pod in kind.pods(neighbour)} == before)
    assert (uids(kind.pods(rolled)) == observer.new_pods and observer.min_ready >= 5
            and observer.max_pods <= 6)


# The client dies


class SinceRename:
    """Selects the writes of the handover: from foo's change to next's template on."""

    def __init__(self):
        self.has_begun = False

    def __call__(self, what):
        operations = getattr(what, "operations", ())
        self.has_begun = (self.has_begun
                          or any(operation["path"] == "/spec/template" for operation in operations))
        return self.has_begun


@pytest.mark.sample(1)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_handover_resumes_after_a_kill_at_each_write(namespace, kind, after):
    """foo ends with exactly the pods that next created, and each pod always has a controller."""
    kind.make()
    for number in range(1, NEVER):
        image = f"myimage:v{number + 1}"
        where = f"killed {'after' if after else 'before'} write {number} of the handover"
        with_successor = set()
        with namespace.observer() as observer:
            try:
                kind.roll(fault=kill_at_write(number, after, SinceRename()), image=image)
            except Killed:
                with_successor = uids(namespace.pods())
                kind.roll(image=image)
            else:
                break
        assert uids(kind.pods()) == with_successor == observer.new_pods, where
        assert (len(observer.new_pods) == REPLICAS and not observer.new_pods & observer.deleted_pods
                and not observer.restarts), where
        assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1, where
        assert "foo" not in observer.controllers_deleted, where
        kind.assert_updated(image=image)
    assert number == 4 + REPLICAS + 1  # rename, close, a patch for each pod, delete, open


@pytest.mark.sample(1)
def test_handover_resumes_after_a_kill_at_each_pod(namespace, kind):
    """Each client hands over one pod; the last client ends the update."""
    kind.make()
    with namespace.observer() as observer:
        for count in range(1, REPLICAS + 1):
            with pytest.raises(Killed):
                kind.roll(fault=kill_at_write(1, True, is_reparenting))
            assert len(kind.pods()) == count and len(namespace.pods()) == REPLICAS
        kind.roll()

    kind.assert_updated()
    assert uids(kind.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


# Another client interferes half way


def name_of(pod):
    return pod["metadata"]["name"]


def deletes_pods(of):
    """Delete the pods of foo, of next, or of both."""
    def delete(kind):
        owners = {"foo": ["foo"], "next": [kind.successor()], "both": ["foo", kind.successor()]}[of]
        for pod in [pod for name in owners for pod in kind.pods(name)]:
            kind.namespace.remove(name_of(pod), "pods")
        eventually(lambda: not any(kind.pods(name) for name in owners), "the end of the pods")
    return delete


def relabels(key, of):
    def relabel(kind):
        pod = kind.pods(kind.successor() if of == "next" else of)[0]
        kind.namespace.patch(name_of(pod), {"metadata": {"labels": {key: "another"}}}, "pods")
        eventually(lambda: owner(kind.namespace.get("pods", name_of(pod))) != owner(pod),
                   "its release")
    return relabel


def adopts(kind):
    """Let another controller adopt a pod of next.

    Real controllers never take a pod with an owner. The API server refuses this controller's own
    pods, so that a pod is missing.
    """
    kind.namespace.call("POST", kind.path(),
                        kind.body(1, "other", {"app": "foo"},
                                  priorityClassName="none-of-that-name"))
    controller = kind.get("other")
    pod = kind.pods(kind.successor())[0]
    reference = {"apiVersion": controller["apiVersion"], "kind": kind.kind, "name": "other",
                 "uid": controller["metadata"]["uid"],
                 "controller": True, "blockOwnerDeletion": True}
    kind.namespace.patch(name_of(pod), {"metadata": {"ownerReferences": [reference]}}, "pods")
    eventually(lambda: kind.is_available("other", 1), "the other's pod")


def terminates(of):
    def terminate(kind):
        name = name_of(kind.pods(kind.successor() if of == "next" else of)[0])
        kind.namespace.patch(name, {"metadata": {"finalizers": ["example.com/wait"]}}, "pods")
        kind.namespace.remove(name, "pods")
    return terminate


def scales(name, size):
    def scale(kind):
        kind.patch(name or kind.successor(), {"spec": {"replicas": size}})
        eventually(lambda: kind.is_observed(name or kind.successor()), "the new size")
    return scale


def deletes_controller(name, policy):
    return lambda kind: kind.remove(name or kind.successor(), policy)


LABEL = object_meta.DEPLOYMENT_LABEL
#: Each action, and the number of available pods that are lost.
DEEDS = {
    "foo's pod is deleted": (deletes_pods("foo"), 1),
    "next's pods are deleted": (deletes_pods("next"), REPLICAS - 1),
    "all pods are deleted": (deletes_pods("both"), REPLICAS),
    "foo's pod is relabelled": (relabels("app", "foo"), 0),
    "a pod of next's is relabelled": (relabels("app", "next"), 0),
    "a pod of next's gets another deployment label": (relabels(LABEL, "next"), 0),
    "another controller takes a pod of next's": (adopts, 0),
    "foo's pod is terminating": (terminates("foo"), 1),
    "a pod of next's is terminating": (terminates("next"), 1),
    "foo is scaled up": (scales("foo", 5), 0),
    "foo is scaled down": (scales("foo", 1), 0),
    "foo is scaled to 0": (scales("foo", 0), 1),
    "next is scaled up": (scales(None, 5), 0),
    "next is scaled down": (scales(None, 1), 1),
    "foo is deleted": (deletes_controller("foo", "Background"), 1),
    "foo is deleted without its pods": (deletes_controller("foo", "Orphan"), 0),
    "next is deleted": (deletes_controller(None, "Background"), REPLICAS - 1),
    "next is deleted without its pods": (deletes_controller(None, "Orphan"), 0),
}


def is_the_deeds(what):
    """Return a predicate: the action itself, not the handover, has orphaned the pod."""
    def is_it(pod):
        return "without its pods" in what or "another" in pod["metadata"]["labels"].values()
    return is_it


@pytest.mark.sample(8)
@pytest.mark.parametrize("what", DEEDS)
def test_handover_resumes_after_changes_of_other_clients(namespace, kind, what):
    """The task ends with all pods available; the pods not killed by the action survive."""
    deed, cost = DEEDS[what]
    kind.make()
    with namespace.observer(is_the_deeds(what)) as observer:
        kind.half_way()
        deed(kind)
        surviving = {uid
                     for uid, pod in ((pod["metadata"]["uid"], pod) for pod in namespace.pods())
                     if is_ready(pod)}
        kind.roll()

    theirs = uids(kind.pods("other")) if kind.get("other") else set()
    strangers = uids(pod for pod in namespace.pods() if not owner(pod)) | theirs
    if theirs:
        kind.remove("other")
    for item in namespace.call("GET", namespace.path("pods"))["items"]:
        if "finalizers" in item["metadata"]:
            namespace.patch(name_of(item), {"metadata": {"finalizers": None}}, "pods")
    kind.assert_updated(5 if what == "foo is scaled up" else REPLICAS)
    assert observer.min_ready >= REPLICAS - cost
    assert surviving - strangers <= uids(kind.pods()), "a pod that nobody wanted to go"


@pytest.mark.sample(1)
def test_lost_takeover_annotation_of_foo_is_restored(namespace, kind):
    """next has a copy."""
    kind.make()
    with namespace.observer() as observer:
        kind.half_way()
        kind.patch("foo", {"metadata": {"annotations": None}})
        kind.roll()

    kind.assert_updated()
    assert uids(kind.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


@pytest.mark.sample
@pytest.mark.parametrize("number", [1, 6], ids=["renamed", "next deleted"])
def test_lost_takeover_annotation_of_both_is_an_error(namespace, kind, number):
    """No pod is lost or orphaned; the error shows the command to type."""
    kind.make()
    with namespace.observer() as observer:
        with pytest.raises(Killed):
            kind.roll(fault=kill_at_write(number, True, SinceRename()))
        kind.patch("foo", {"metadata": {"annotations": None}})
        with pytest.raises(RolloutError, match="client removed the annotation") as error:
            kind.roll()

    assert "remove priorityClassName from the template" in error.value.next_command
    assert (len(observer.new_pods) == REPLICAS == len(namespace.pods())
            and observer.min_ready >= REPLICAS)


# foo is applied again


def apply_at_the_client(kind):
    """Apply the manifest's fields like kubectl; none has been removed since the last apply."""
    body = kind.body()
    last_applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(body)}
    change = {"metadata": {"labels": body["metadata"]["labels"], "annotations": last_applied},
              "spec": body["spec"]}
    kind.namespace.call("PATCH", kind.path("foo"), change,
                        "application/strategic-merge-patch+json")


def apply_at_the_server(kind):
    path = f"{kind.path('foo')}?fieldManager=kubectl&force=true"
    kind.namespace.call("PATCH", path, kind.body(), "application/apply-patch+yaml")


def replace(kind):
    """Neither marks nor priority class are left: foo makes pods of the old template."""
    kind.namespace.call("PUT", kind.path("foo"), kind.body())


WAYS = [apply_at_the_client, apply_at_the_server, replace]
#: The writes of the handover by number, except the last write, which ends the update.
WRITES = {1: "rename", 2: "close", 3: "a pod", 4: "two pods", 5: "all pods", 6: "delete"}
FAST = (3, 6)


@pytest.mark.sample
@pytest.mark.parametrize("is_alive", [False, pytest.param(True, marks=pytest.mark.long)],
                         ids=["client dead", "client at work"])
@pytest.mark.parametrize("number",
                         [pytest.param(number, marks=() if number in FAST else pytest.mark.long,
                                       id=f"after {what}")
                          for number, what in WRITES.items()])
@pytest.mark.parametrize("way", WAYS)
def test_old_manifest_applied_in_a_handover_loses_no_pod(namespace, kind, way, number, is_alive):
    """The available pods never fall below the size; the same task makes all pods new and names the
    obstacle.
    """
    kind.make()
    warnings = []

    def deed():
        way(kind)
        eventually(kind.is_observed, "the controller manager's view of foo")

    with namespace.observer() as observer:
        if is_alive:
            warnings += kind.roll(fault=action_after_write(number, deed, SinceRename()))["warnings"]
        else:
            with pytest.raises(Killed):
                kind.roll(fault=kill_at_write(number, True, SinceRename()))
            deed()
        warnings += kind.roll()["warnings"]

    kind.assert_updated()
    assert observer.min_ready >= REPLICAS
    # then no mark is left, and foo is like any other
    if way is not replace or WRITES[number] not in ("rename", "delete"):
        assert any(warning.startswith("another client ") and "foo" in warning
                   for warning in warnings), warnings


@pytest.mark.sample
@pytest.mark.parametrize("way", WAYS)
def test_old_manifest_applied_before_the_last_write_is_reported(
        namespace, kind, way):
    """The client does not know of the change when it writes."""
    kind.make()
    with namespace.observer() as observer:
        kind.roll(fault=action_after_write(6, lambda: way(kind), SinceRename()))

    kind.assert_updated()
    assert observer.min_ready >= REPLICAS


@pytest.mark.sample(1)
def test_image_of_another_client_is_named_in_a_warning_and_a_line(namespace, kind):
    kind.make()
    lines = []
    kind.half_way()
    change = [{"op": "replace", "path": "/spec/template/spec/containers/0/image",
               "value": "myimage:by-hand"}]
    namespace.call("PATCH", kind.path("foo"), change, "application/json-patch+json")

    (warning,) = kind.roll(say=lines.append)["warnings"]

    assert ("another client applied another template to foo" in warning
            and "myimage:by-hand" in warning and "myimage:v2" in warning)
    assert "restore foo: myimage:v2; another client had set myimage:by-hand" in lines
    kind.assert_updated()


# A pod becomes unready


class Readiness:
    """Makes the unready pods of this image ready, apart from the pods named in `unready`."""

    def __init__(self, namespace):
        self.namespace, self.unready, self._stop = namespace, set(), threading.Event()

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
                        and is_ready(pod) == (name_of(pod) in self.unready)):
                    self.set(name_of(pod), name_of(pod) not in self.unready)

    def set(self, name, is_ready):
        change = {"status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}
        path = self.namespace.path("pods", name) + "/status"
        with contextlib.suppress(ApiException):  # the pod may have been deleted
            self.namespace.call("PATCH", path, change, "application/strategic-merge-patch+json")


@pytest.mark.sample
@pytest.mark.fake_nodes("pods that run and never become ready")
@pytest.mark.parametrize(
    "which", [is_reparenting, is_deletion], ids=["half way", "when next is gone"]
)
def test_unready_pod_leaves_no_template_closed(namespace, kind, which):
    """foo is opened while a pod is unready, so that dead pods are replaced; the update ends when
    all are available.

    If all pods were available when next was deleted, the update has already ended.
    """
    kind.make()
    opened = threading.Event()

    with Readiness(namespace) as readiness, namespace.observer() as observer:
        def falls_ill():
            readiness.unready.add(name_of(kind.pods()[0]))
            readiness.set(name_of(kind.pods()[0]), False)
            eventually(kind.lacks_available_pods, "foo's new status")

        def say(line):
            if line == "restore foo: template":
                item = kind.get()
                assert item["spec"]["template"]["spec"].get("priorityClassName") != handover.CLOSED
                opened.set()
                readiness.unready.clear()

        kind.roll(fault=action_after_write(1, falls_ill, which), say=say,
                  image="myimage:v2-unready")

    assert opened.is_set() or which is is_deletion
    assert "priorityClassName" not in kind.get()["spec"]["template"]["spec"]
    assert len(observer.new_pods) == REPLICAS and observer.min_ready == REPLICAS - 1
    assert uids(kind.pods()) == observer.new_pods


# A cluster with restricted changes of owners: only for clients with permission to delete the pod


@pytest.fixture(scope="module")
def strict():
    """A cluster with the admission plugin OwnerReferencesPermissionEnforcement."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: the plugins of a given one are not ours to choose")
    with embedded.up(embedded.checkout_cluster_name("owners"),
                     admission_plugins=[*{*ADMISSION_PLUGINS, OWNER_REFERENCES}]) as cluster:
        yield cluster


@pytest.fixture
def strict_namespace(strict, request):
    """Provide a namespace of the strict cluster, where the code under test has only the Role of
    docs/permissions.md.
    """
    provided = Namespace(strict.kubeconfig, request.node.originalname, admission_plugins=())
    yield provided
    provided.delete()


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_missing_owner_permission_is_an_error_before_the_first_write(
        strict_namespace, kind):
    controllers = Kind(strict_namespace, kind)
    controllers.make()
    before = controllers.get()

    with pytest.raises(RolloutError) as error:
        controllers.roll()

    assert ("not allowed to change the controller of pod" in error.value.what
            and "docs/permissions.md" in error.value.next_command)
    assert "cannot set an ownerRef on a resource you can't delete" in error.value.why
    assert (controllers.names() == ["foo"]
            and controllers.get()["metadata"]["resourceVersion"]
            == before["metadata"]["resourceVersion"])
    assert controllers.roll(next_name="bar")["changed"] and controllers.names() == ["bar"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_update_with_owner_permission(strict_namespace, kind):
    controllers = Kind(strict_namespace, kind)
    strict_namespace.allow(role("baton-owner-references"), "baton-owner-references")
    controllers.make()

    with strict_namespace.observer() as observer:
        controllers.half_way()
        controllers.roll()

    controllers.assert_updated()
    assert uids(controllers.pods()) == observer.new_pods and observer.min_ready >= REPLICAS


def test_migration_with_owner_permission(strict_namespace):
    """Without the role no pod is handed over or orphaned, and the same task resumes with the role.
    """
    strict_namespace.allow(role("baton-migration"), "baton-migration")
    strict_namespace.make_primary(REPLICAS)
    before = uids(strict_namespace.pods())
    wish = {"module": "migrate_to_deployment", "state": "migrated"}

    with strict_namespace.observer() as observer:
        with pytest.raises(RolloutError, match="not allowed to change the controller of pod"):
            strict_namespace.roll(**wish)
        strict_namespace.allow(role("baton-owner-references"), "baton-owner-references")
        strict_namespace.roll(**wish)

    assert strict_namespace.wait_for_rollout() and strict_namespace.rcs() == []
    assert (
        uids(strict_namespace.pods()) == before
        and not observer.new_pods
        and not observer.deleted_pods
    )


def test_deployment_needs_no_owner_permission(strict_namespace):
    strict_namespace.make_deployment(2)
    assert strict_namespace.roll(kind="Deployment", **UPDATE)["changed"]
    assert strict_namespace.wait_for_rollout()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test actions of another client during a task (see the table in how-it-works.md)."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, owner_uid, uids
from writes import action_after_write, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)

REPLICAS = 4

# Moments of the update. Each value is a part of a progress line. A closed template names a priority
# class that does not exist, so no pod is created from the template.
#: Half of the pods are new.
MIDDLE = "scale foo: 3 -> 2"
#: Foo has the new template. The template is closed.
FOO_CLOSED = "rename foo: "
#: The template of the successor is closed.
SUCCESSOR_CLOSED = "no more pods are created for it"
SUCCESSOR_DELETED = "it has no pods"
#: Half of the pods are handed over to foo. This moment has no progress line.
HANDING_OVER = "half of the pods"
#: The update can no longer be rolled back.
LATE_MOMENTS = (FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER, SUCCESSOR_DELETED)


class Action:
    """Runs an action of another client in a thread at a moment of the task.

    At the LATE_MOMENTS, which are short, or if `task_waits` is true, the task waits for the action.
    """

    def __init__(self, moment, act_as_client, task_waits=False):
        self.moment, self.act_as_client = moment, act_as_client
        self.task_waits = task_waits or moment in LATE_MOMENTS
        self.thread = None
        self.error = None

    def __call__(self, line):
        if self.thread is None and self.moment in line:
            self.act()

    def act(self):
        self.thread = threading.Thread(target=self._act)
        self.thread.start()
        if self.task_waits:
            self.thread.join()

    def _act(self):
        try:
            self.act_as_client()
        except Exception as error:
            self.error = error

    def join(self):
        assert self.thread, f"no progress line: {self.moment}"
        self.thread.join(20)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error


def update_during(namespace, moment, act_as_client, allow_orphan=lambda pod: False,
                  task_waits=False):
    """Update foo to v2 while another client acts, and return the result or the error."""
    action = Action(moment, act_as_client, task_waits)
    fault = (
        action_after_write(REPLICAS // 2, action.act, is_reparenting)
        if moment == HANDING_OVER
        else None
    )
    started_at = time.monotonic()
    with namespace.observer(allow_orphan):
        try:
            result = namespace.roll(on_line=action, fault=fault, image="myimage:v2",
                                    progress_deadline=30)
        except RolloutError as error:
            result = error
        action.join()
    assert time.monotonic() - started_at < 60
    return result


def successor_name(namespace):
    controllers = {name: namespace.rc(name) for name in namespace.rc_names() if name != "foo"}
    return next((name
                 for name, item in controllers.items() if item
                 and "deletionTimestamp" not in item["metadata"]), None)


def pods_of(namespace, name="foo"):
    uid = namespace.rc(name)["metadata"]["uid"]
    return [pod for pod in namespace.pods() if owner_uid(pod) == uid]


def is_finished(namespace, replicas=REPLICAS):
    if namespace.rc_names() != ["foo"]:
        return False
    item = namespace.rc()
    namespace.until_available("foo", item["spec"]["replicas"])
    (container,) = item["spec"]["template"]["spec"]["containers"]
    return (container["image"] == "myimage:v2"
            and len(pods_of(namespace)) == item["spec"]["replicas"] == replicas
            and all(pod["spec"]["containers"][0]["image"] == "myimage:v2"
                    for pod in pods_of(namespace))
            and "priorityClassName" not in item["spec"]["template"]["spec"]
            and not set(object_meta.UPDATE_ANNOTATIONS) & set(item["metadata"].get("annotations",
                                                                                   ())))


def assert_complete(namespace, result, replicas=REPLICAS):
    assert not isinstance(result, RolloutError), result.message
    assert result["rollout"]["phase"] == "complete", result["msg"]
    # The replacement of a deleted pod may become available after the end of the task.
    eventually(lambda: is_finished(namespace, replicas), "the completion of the update")
    assert not namespace.roll(image="myimage:v2")["changed"]


def name_or_successor(namespace, name):
    name = name or successor_name(namespace)
    assert name, "there is no successor"
    return name


# Each function is an action of another client, or returns an action. As the name of a controller,
# None means the successor.


def scale_controller(size, name="foo"):
    return lambda namespace: namespace.patch(
        name_or_successor(namespace, name), {"spec": {"replicas": size}}
    )


def delete_controller(name, policy="Background"):
    return lambda namespace: namespace.remove(name_or_successor(namespace, name), policy=policy)


def recreate_foo(namespace):
    uid = namespace.rc()["metadata"]["uid"]
    namespace.remove("foo")
    eventually(lambda: (namespace.rc() or {"metadata": {}})["metadata"].get("uid") != uid,
               "the deletion of foo")
    with contextlib.suppress(ApiException):  # the task may have acted first
        namespace.create("replicationcontrollers", manifest(REPLICAS))


def edit_template(namespace):
    operations = [{"op": "replace", "path": "/spec/template/spec/containers/0/image",
                   "value": "myimage:by-hand"}]
    namespace.call("PATCH", namespace.path("replicationcontrollers", "foo"), operations,
                   "application/json-patch+json")


def remove_annotations(*controller_names):
    def remove(namespace):
        for name in controller_names:
            namespace.patch(name_or_successor(namespace, name), {"metadata": {"annotations": None}})
    return remove


def delete_pods(count):
    def delete(namespace):
        for pod in namespace.pods()[:count]:
            with contextlib.suppress(ApiException):  # the task may have acted first
                namespace.remove(pod["metadata"]["name"], resource="pods")
    return delete


def change_label_of_pod(key, image):
    def relabel(namespace):
        for pod in namespace.pods():
            if pod["spec"]["containers"][0]["image"] == image:
                with contextlib.suppress(ApiException):  # the task has just deleted the pod
                    return namespace.patch(pod["metadata"]["name"],
                                           {"metadata": {"labels": {key: "another"}}},
                                           resource="pods")
        raise AssertionError(f"there is no pod of {image}")
    return relabel


def add_bare_pod(namespace):
    spec = manifest(image="other:v1")["spec"]["template"]["spec"]
    namespace.create("pods", {"metadata": {"name": "bare", "labels": {"app": "foo"}}, "spec": spec})


def add_bare_copy_of_new_pod(namespace):
    pod = next(pod for pod in namespace.pods()
               if pod["spec"]["containers"][0]["image"] == "myimage:v2")
    namespace.create("pods", {"metadata": {"name": "bare", "labels": pod["metadata"]["labels"]},
                              "spec": manifest(image="myimage:v2")["spec"]["template"]["spec"]})


#: By title: (action, {moment: limit}). After the action at the moment, the task completes. At the
#: end, at most `limit` pods do not belong to foo.
ACTIONS = {
    "scale up foo": (scale_controller(6), dict.fromkeys((MIDDLE, *LATE_MOMENTS), 0)),
    "scale foo to 0": (scale_controller(0), dict.fromkeys((MIDDLE, *LATE_MOMENTS), 0)),
    "scale up the successor": (
        scale_controller(7, None),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "scale the successor to 0": (
        scale_controller(0, None),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "delete the successor": (
        delete_controller(None),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "delete the successor with --cascade=orphan": (
        delete_controller(None, "Orphan"),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "delete foo": (
        delete_controller("foo"),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "delete foo with --cascade=orphan": (
        delete_controller("foo", "Orphan"),
        # The controller manager may not have deleted the third pod yet.
        {MIDDLE: 3, FOO_CLOSED: 0, SUCCESSOR_CLOSED: 0, HANDING_OVER: 0},
    ),
    "edit the template of foo": (edit_template, dict.fromkeys((MIDDLE, *LATE_MOMENTS), 0)),
    "remove the annotations of foo": (
        remove_annotations("foo"),
        dict.fromkeys((MIDDLE, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "remove the annotations of the successor": (
        remove_annotations(None),
        dict.fromkeys((MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER), 0),
    ),
    "delete a pod": (delete_pods(1), dict.fromkeys((MIDDLE, *LATE_MOMENTS), 0)),
    "delete all pods": (delete_pods(99), dict.fromkeys((MIDDLE, *LATE_MOMENTS), 0)),
    "relabel an old pod": (change_label_of_pod("app", "myimage:v1"), {MIDDLE: 1}),
    "relabel a new pod": (
        change_label_of_pod("app", "myimage:v2"),
        dict.fromkeys((MIDDLE, *LATE_MOMENTS), 1),
    ),
    "change the deployment label of a new pod": (
        change_label_of_pod(object_meta.DEPLOYMENT_LABEL, "myimage:v2"),
        {MIDDLE: 0, **dict.fromkeys(LATE_MOMENTS, 1)},
    ),
    "create a bare pod with the labels of foo": (
        add_bare_pod,
        {MIDDLE: 0, **dict.fromkeys(LATE_MOMENTS, 1)},
    ),
    "create a bare pod with the labels of the successor": (
        add_bare_copy_of_new_pod,
        dict.fromkeys((MIDDLE, *LATE_MOMENTS), 1),
    ),
}
ORPHANING_ACTIONS = ("delete the successor with --cascade=orphan",
                     "delete foo with --cascade=orphan")


def orphan_rule(title):
    return lambda pod: (title in ORPHANING_ACTIONS or pod["metadata"]["name"] == "bare"
                        or "another" in pod["metadata"]["labels"].values())


def size_after(title, moment):
    """Return the expected size of foo at the end.

    The task keeps a size that the client sets in the handover or later. The task keeps the size 0
    only after the deletion of the successor. Earlier, the size 0 would make foo delete pods.
    """
    if title == "scale up foo" and moment in LATE_MOMENTS:
        return 6
    return 0 if (title, moment) == ("scale foo to 0", SUCCESSOR_DELETED) else REPLICAS


@pytest.mark.sample(3)
@pytest.mark.parametrize("title, moment",
                         [(title, moment) for title, (_action, moments) in ACTIONS.items()
                          for moment in moments])
def test_task_completes_after_an_action_of_another_client(namespace, title, moment):
    action, moments = ACTIONS[title]
    namespace.make_rc(REPLICAS)

    result = update_during(
        namespace, moment, lambda: action(namespace), allow_orphan=orphan_rule(title)
    )

    assert_complete(namespace, result, size_after(title, moment))
    other_uids = uids(namespace.pods()) - uids(pods_of(namespace))
    # Foo may delete a relabeled pod before it releases the pod.
    assert len(other_uids) <= moments[moment]


@pytest.mark.full
def test_deletion_of_foo_after_deletion_of_the_successor_is_an_error(namespace):
    namespace.make_rc(REPLICAS)

    result = update_during(namespace, SUCCESSOR_DELETED,
                           lambda: delete_controller("foo")(namespace))

    assert (isinstance(result, RolloutError) and "no such ReplicationController" in result.what
            and namespace.rc_names() == [])
    namespace.wait_for_deletion("foo")
    namespace.make_rc(REPLICAS)
    assert_complete(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [MIDDLE, *LATE_MOMENTS])
def test_recreated_foo_is_refused_until_the_successor_is_deleted(namespace, moment):
    """At SUCCESSOR_DELETED, the task fails only if it sees foo deleted, but not yet recreated."""
    namespace.make_rc(REPLICAS)

    result = update_during(namespace, moment, lambda: recreate_foo(namespace), task_waits=True)

    if moment == SUCCESSOR_DELETED and isinstance(result, NoSuchController):
        result = namespace.roll(image="myimage:v2")
    successor = successor_name(namespace)
    assert (bool(successor) == isinstance(result, RolloutError)
            == (moment != SUCCESSOR_DELETED)), result
    if successor:
        assert "does not belong to this update" in result.what
        assert namespace.rc(successor)["spec"]["replicas"] >= 2
        eventually(lambda: len(pods_of(namespace, successor))
                   == namespace.rc(successor)["spec"]["replicas"], "the pods of the successor")
        with pytest.raises(RolloutError):
            namespace.roll(image="myimage:v2")
        namespace.remove(successor)  # the command that the error suggests
        result = namespace.roll(image="myimage:v2")
    assert_complete(namespace, result)


def test_task_completes_or_names_the_successor_if_all_annotations_are_removed(namespace):
    namespace.make_rc(REPLICAS)

    result = update_during(namespace, MIDDLE, lambda: remove_annotations("foo", None)(namespace))

    if isinstance(result, RolloutError):
        assert "does not belong to this update (no annotation names foo)" in result.what
        assert "delete it only if its pods are not needed" in result.next_command
        namespace.remove(successor_name(namespace))
        namespace.patch("foo", {"spec": {"replicas": REPLICAS}})
        result = namespace.roll(image="myimage:v2")
    assert_complete(namespace, result)


@pytest.mark.full
def test_removed_takeover_annotation_is_restored_from_the_successor(namespace):
    namespace.make_rc(REPLICAS)

    result = update_during(namespace, FOO_CLOSED, lambda: remove_annotations("foo")(namespace))

    assert_complete(namespace, result)


@pytest.mark.full
def test_removed_takeover_annotation_without_a_successor_is_an_error(namespace):
    namespace.make_rc(REPLICAS)

    result = update_during(namespace, SUCCESSOR_DELETED,
                           lambda: remove_annotations("foo")(namespace))

    assert isinstance(result, RolloutError) and successor_name(namespace) is None
    assert "another client removed the annotation baton.kubernetes/takeover" in result.what
    assert "--cascade=orphan" not in result.next_command
    pod_uids = uids(namespace.pods())
    namespace.until_available("foo", REPLICAS)
    patch = [{"op": "remove", "path": "/spec/template/spec/priorityClassName"}]
    namespace.call("PATCH", namespace.path("replicationcontrollers", "foo"), patch,
                   "application/json-patch+json")
    assert len(pod_uids) == REPLICAS and uids(pods_of(namespace)) == pod_uids
    assert_complete(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_repeated_scaling_of_the_successor_is_an_error(namespace):
    namespace.make_rc(REPLICAS)

    def on_line(line):
        if line.startswith("scale foo-"):
            scale_controller(7, None)(namespace)

    with pytest.raises(RolloutError) as error:
        namespace.roll(on_line=on_line, image="myimage:v2-slow", progress_deadline=30)

    assert ("another client keeps undoing this step (scale foo-" in error.value.what
            and "5 times" in error.value.what)
    assert "find out which client undoes this step" in error.value.next_command
    assert (namespace.roll(image="myimage:v2-slow")["rollout"]["phase"] == "complete"
            and len(namespace.pods()) == REPLICAS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [MIDDLE, SUCCESSOR_CLOSED, HANDING_OVER])
def test_task_ignores_another_owners_pod_with_labels_of_the_successor(namespace, moment):
    namespace.make_rc(REPLICAS)
    config_map = namespace.create("configmaps", {"metadata": {"name": "owner"}})
    created_pods = []

    def add_pod():
        labels = next(pod for pod in namespace.pods()
                      if object_meta.DEPLOYMENT_LABEL
                      in pod["metadata"]["labels"])["metadata"]["labels"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": True,
                     "uid": config_map["metadata"]["uid"]}
        spec = manifest(image="other:v1")["spec"]["template"]["spec"]
        created_pods.append(namespace.create("pods", {"spec": spec, "metadata": {
            "name": "other", "labels": labels, "ownerReferences": [reference]}}))

    assert_complete(namespace, update_during(namespace, moment, add_pod))

    (other_pod,) = (pod for pod in namespace.pods() if pod["metadata"]["name"] == "other")
    assert other_pod["metadata"]["uid"] == created_pods[0]["metadata"]["uid"]
    assert (other_pod["metadata"]["ownerReferences"]
            == created_pods[0]["metadata"]["ownerReferences"])
    assert other_pod["metadata"]["labels"] == created_pods[0]["metadata"]["labels"]

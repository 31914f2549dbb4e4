# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Another client interferes while the task runs: the table of docs/how-it-works.md, row by row.

Each action runs in its own thread, at the moment of one of the task's progress lines, or between
two of its writes. test_handover.py has the actions between a kill and the next task.
"""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, owner, uids
from writes import action_after_write, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)

REPLICAS = 4

#: Progress lines: half way; foo has next's template, closed; next is closed too; next is deleted,
#: and foo has all pods.
MIDDLE, RENAMED = "scale foo: 3 -> 2", "rename foo: "
CLOSED, DELETED = "no more pods are created for it", "it has no pods"
#: Half of the pods are foo's, the others next's; no progress line marks this moment.
HANDING_OVER = "half of the pods"
#: Moments after which the update cannot be rolled back.
LATE = (RENAMED, CLOSED, HANDING_OVER, DELETED)


class Action:
    """Runs an action at a moment in a separate thread while the task continues.

    From the handover on the task waits for the action: the moments are too short on a busy machine.
    With task_waits, the task waits at each moment, so that it observes all changes at once.
    """

    def __init__(self, moment, function, task_waits=False):
        self.moment, self.function = moment, function
        self.task_waits = task_waits or moment in LATE
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
            self.function()
        except Exception as error:
            self.error = error

    def join(self):
        """Raise the action's error, if any."""
        assert self.thread, f"no progress line: {self.moment}"
        self.thread.join(20)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error


def update_during(namespace, moment, function, allow_orphan=lambda pod: False,
                  task_waits=False):
    """Roll foo to v2 while another client acts, and return the result or the error. Asserts that no
    pod is orphaned.
    """
    action = Action(moment, function, task_waits)
    half_way = (
        action_after_write(REPLICAS // 2, action.act, is_reparenting)
        if moment == HANDING_OVER
        else None
    )
    began = time.monotonic()
    with namespace.observer(allow_orphan):
        try:
            end = namespace.roll(say=action, fault=half_way, image="myimage:v2",
                                 progress_deadline=30)
        except RolloutError as error:
            end = error
        action.join()
    assert time.monotonic() - began < 60
    return end


def successor_of(namespace):
    """Return the name of the successor, unless terminating, or None."""
    controllers = {name: namespace.rc(name) for name in namespace.rcs() if name != "foo"}
    return next((name
                 for name, item in controllers.items() if item
                 and "deletionTimestamp" not in item["metadata"]), None)


def pods_of(namespace, name="foo"):
    uid = namespace.rc(name)["metadata"]["uid"]
    return [pod for pod in namespace.pods() if owner(pod) == uid]


def is_finished(namespace, replicas=REPLICAS):
    """Return whether foo is alone, at v2, in its size, open, without annotations of the update."""
    if namespace.rcs() != ["foo"]:
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


def assert_complete(namespace, end, replicas=REPLICAS):
    """Assert that the task succeeds in one run and changes nothing when run again."""
    assert not isinstance(end, RolloutError), end.message
    assert end["rollout"]["phase"] == "complete", end["msg"]
    # The task is done at once where the status is still of before the pods were deleted: then the
    # cluster makes them anew.
    eventually(lambda: is_finished(namespace, replicas), "the update's end")
    assert not namespace.roll(image="myimage:v2")["changed"]


def named(namespace, name):
    """Return a controller's name; None stands for next, which must exist."""
    name = name or successor_of(namespace)
    assert name, "too late"
    return name


def scales(size, name="foo"):
    return lambda namespace: namespace.patch(named(namespace, name), {"spec": {"replicas": size}})


def is_deletion(name, policy="Background"):
    return lambda namespace: namespace.remove(named(namespace, name), policy=policy)


def recreates(namespace):
    uid = namespace.rc()["metadata"]["uid"]
    namespace.remove("foo")
    eventually(lambda: (namespace.rc() or {"metadata": {}})["metadata"].get("uid") != uid,
               "the end of foo")
    with contextlib.suppress(ApiException):  # the task may have been faster
        namespace.create("replicationcontrollers", manifest(REPLICAS))


def edits(namespace):
    operations = [{"op": "replace", "path": "/spec/template/spec/containers/0/image",
                   "value": "myimage:by-hand"}]
    namespace.call("PATCH", namespace.path("replicationcontrollers", "foo"), operations,
                   "application/json-patch+json")


def removes_annotations(*names):
    def remove(namespace):
        for name in names:
            namespace.patch(named(namespace, name), {"metadata": {"annotations": None}})
    return remove


def deletes_pods(number):
    def delete(namespace):
        for pod in namespace.pods()[:number]:
            with contextlib.suppress(ApiException):  # the task may have been faster
                namespace.remove(pod["metadata"]["name"], resource="pods")
    return delete


def relabels(key, image):
    """Change a label of a pod with this image."""
    def relabel(namespace):
        for pod in namespace.pods():
            if pod["spec"]["containers"][0]["image"] == image:
                with contextlib.suppress(ApiException):  # the task has just deleted this pod
                    return namespace.patch(pod["metadata"]["name"],
                                           {"metadata": {"labels": {key: "another"}}},
                                           resource="pods")
        raise AssertionError("too late")
    return relabel


def adds_pod(namespace):
    """Create a pod without a controller, with the labels of foo's pods."""
    spec = manifest(image="other:v1")["spec"]["template"]["spec"]
    namespace.create("pods", {"metadata": {"name": "bare", "labels": {"app": "foo"}}, "spec": spec})


# The task continues to the end. For each moment: the most pods that may exist in addition to foo's.
COMPLETED = {
    "foo is scaled up": (scales(6), dict.fromkeys((MIDDLE, *LATE), 0)),
    "foo is scaled to 0": (scales(0), dict.fromkeys((MIDDLE, *LATE), 0)),
    "next is scaled up": (
        scales(7, None),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "next is scaled to 0": (
        scales(0, None),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "next is deleted": (
        is_deletion(None),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "next is deleted without its pods": (
        is_deletion(None, "Orphan"),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "foo is deleted": (
        is_deletion("foo"),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "foo is deleted without its pods": (
        is_deletion("foo", "Orphan"),
        {MIDDLE: 2, RENAMED: 0, CLOSED: 0, HANDING_OVER: 0},
    ),
    "foo's template is edited": (edits, dict.fromkeys((MIDDLE, *LATE), 0)),
    "foo loses its annotations": (
        removes_annotations("foo"),
        dict.fromkeys((MIDDLE, CLOSED, HANDING_OVER), 0),
    ),
    "next loses its annotations": (
        removes_annotations(None),
        dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0),
    ),
    "a pod is deleted": (deletes_pods(1), dict.fromkeys((MIDDLE, *LATE), 0)),
    "all pods are deleted": (deletes_pods(99), dict.fromkeys((MIDDLE, *LATE), 0)),
    "one of foo's pods gets another label": (relabels("app", "myimage:v1"), {MIDDLE: 1}),
    "one of next's pods gets another label": (
        relabels("app", "myimage:v2"),
        dict.fromkeys((MIDDLE, *LATE), 1),
    ),
    "one of next's pods gets another deployment label": (
        relabels(object_meta.DEPLOYMENT_LABEL, "myimage:v2"),
        {MIDDLE: 0, **dict.fromkeys(LATE, 1)},
    ),
    "a pod of nobody's with foo's labels appears": (
        adds_pod,
        {MIDDLE: 0, **dict.fromkeys(LATE, 1)},
    ),
}
#: Actions that orphan pods.
ORPHANING = ("next is deleted without its pods", "foo is deleted without its pods")


def is_bare_by(what):
    """Return a predicate: the action has orphaned the pod."""
    return lambda pod: (what in ORPHANING or pod["metadata"]["name"] == "bare"
                        or "another" in pod["metadata"]["labels"].values())


def size_after(what, moment):
    """Return the expected size.

    From the handover on, a new size is the user's, unless foo would have to delete pods that the
    task can still keep.
    """
    if what == "foo is scaled up" and moment in LATE:
        return 6
    return 0 if (what, moment) == ("foo is scaled to 0", DELETED) else REPLICAS


@pytest.mark.sample(9)
@pytest.mark.parametrize("what, moment",
                         [(what, moment) for what, (_action, moments) in COMPLETED.items()
                          for moment in moments])
def test_task_completes_after_an_action_of_another_client(namespace, what, moment):
    action, moments = COMPLETED[what]
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, moment, lambda: action(namespace), allow_orphan=is_bare_by(what))

    assert_complete(namespace, end, size_after(what, moment))
    strangers = uids(namespace.pods()) - uids(pods_of(namespace))
    # fewer where foo was about to delete the relabelled pod
    assert len(strangers) <= moments[moment]


def test_deletion_of_foo_with_all_pods_is_an_error(namespace):
    """No controller is left, which the task reports; foo can be created again and rolled."""
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, DELETED, lambda: is_deletion("foo")(namespace))

    assert (isinstance(end, RolloutError) and "no such ReplicationController" in end.what
            and namespace.rcs() == [])
    namespace.wait_for_deletion("foo")
    namespace.make_primary(REPLICAS)
    assert_complete(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", [MIDDLE, *LATE])
def test_foo_is_deleted_and_created_again(namespace, moment):
    """Refused while next belongs to the deleted foo, and no pod of next is lost. Without next, the
    new foo is updated: by the same task, or by the next one if the watch reports the deletion
    before the creation.
    """
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, moment, lambda: recreates(namespace), task_waits=True)

    if moment == DELETED and isinstance(end, NoSuchController):
        end = namespace.roll(image="myimage:v2")
    successor = successor_of(namespace)
    assert bool(successor) == isinstance(end, RolloutError) == (moment != DELETED), end
    if successor:
        assert "does not belong to this update" in end.what
        assert namespace.rc(successor)["spec"]["replicas"] >= 2
        eventually(lambda: len(pods_of(namespace, successor))
                   == namespace.rc(successor)["spec"]["replicas"], "the pods of next")
        with pytest.raises(RolloutError):
            namespace.roll(image="myimage:v2")
        namespace.remove(successor)  # as the error says
        end = namespace.roll(image="myimage:v2")
    assert_complete(namespace, end)


def test_both_lose_their_annotations(namespace):
    """Restored if the task observes one controller before the other loses its annotations;
    otherwise next is a stranger.
    """
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, MIDDLE, lambda: removes_annotations("foo", None)(namespace))

    if isinstance(end, RolloutError):
        assert "does not belong to this update (no annotation names foo)" in end.what
        assert "delete it only if its pods are not needed" in end.next_command
        namespace.remove(successor_of(namespace))
        namespace.patch("foo", {"spec": {"replicas": REPLICAS}})
        end = namespace.roll(image="myimage:v2")
    assert_complete(namespace, end)


def test_lost_takeover_annotation_is_restored_from_next(namespace):
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, RENAMED, lambda: removes_annotations("foo")(namespace))

    assert_complete(namespace, end)


def test_lost_takeover_annotation_without_next_is_an_error(namespace):
    """No pod is lost, and the suggested command ends the update."""
    namespace.make_primary(REPLICAS)

    end = update_during(namespace, DELETED, lambda: removes_annotations("foo")(namespace))

    assert isinstance(end, RolloutError) and successor_of(namespace) is None
    assert "another client removed the annotation baton.kubernetes/takeover" in end.what
    assert "--cascade=orphan" not in end.next_command
    pods = uids(namespace.pods())
    namespace.until_available("foo", REPLICAS)
    opening = [{"op": "remove", "path": "/spec/template/spec/priorityClassName"}]
    namespace.call("PATCH", namespace.path("replicationcontrollers", "foo"), opening,
                   "application/json-patch+json")
    assert len(pods) == REPLICAS and uids(pods_of(namespace)) == pods
    assert_complete(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_endless_scaling_of_next_is_an_error(namespace):
    """Like an autoscaler: the task gives up after five repetitions of a step, and names the step.
    """
    namespace.make_primary(REPLICAS)

    def say(line):
        if line.startswith("scale foo-"):
            scales(7, None)(namespace)

    with pytest.raises(RolloutError) as error:
        namespace.roll(say=say, image="myimage:v2-slow", progress_deadline=30)

    assert ("another client keeps undoing this step (scale foo-" in error.value.what
            and "5 times" in error.value.what)
    assert "find out who changes it" in error.value.next_command
    assert (namespace.roll(image="myimage:v2-slow")["rollout"]["phase"] == "complete"
            and len(namespace.pods()) == REPLICAS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [MIDDLE, CLOSED, HANDING_OVER])
def test_pod_of_another_controller_with_the_labels_of_next_is_unchanged(namespace, moment):
    """Another controller's reference owns the pod."""
    namespace.make_primary(REPLICAS)
    owner = namespace.create("configmaps", {"metadata": {"name": "owner"}})
    created = []

    def add():
        labels = next(pod for pod in namespace.pods()
                      if object_meta.DEPLOYMENT_LABEL
                      in pod["metadata"]["labels"])["metadata"]["labels"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": True,
                     "uid": owner["metadata"]["uid"]}
        spec = manifest(image="other:v1")["spec"]["template"]["spec"]
        created.append(namespace.create("pods", {"spec": spec, "metadata": {
            "name": "stranger", "labels": labels, "ownerReferences": [reference]}}))

    assert_complete(namespace, update_during(namespace, moment, add))

    (stranger,) = (pod for pod in namespace.pods() if pod["metadata"]["name"] == "stranger")
    assert stranger["metadata"]["uid"] == created[0]["metadata"]["uid"]
    assert stranger["metadata"]["ownerReferences"] == created[0]["metadata"]["ownerReferences"]
    assert stranger["metadata"]["labels"] == created[0]["metadata"]["labels"]

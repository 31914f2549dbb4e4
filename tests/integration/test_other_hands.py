# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Somebody else has a hand in it while the task is at work: the table of docs/how-it-works.md, row by row.

Each deed is done by a thread of its own, at a moment that the task's own progress line tells, or between two of its writes. What
such deeds do between a kill and the next task is in test_handover.py.
"""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from kubernetes.client.exceptions import ApiException
from namespace import after_write, eventually, hands_over, manifest, owner, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 4

#: What progress lines tell: half way; foo has next's template, closed; next is closed too; next is gone, and foo has all pods.
MIDDLE, RENAMED, CLOSED, DELETED = "scale foo: 3 -> 2", "rename foo: ", "no more pods are created for it", "it has no pods"
#: Half of the pods are foo's, the others next's: no line tells that.
HANDING_OVER = "half of the pods"
#: The moments in which nothing brings the update back.
LATE = (RENAMED, CLOSED, HANDING_OVER, DELETED)


class Hand:
    """Does something at a moment, in a thread of its own, while the task goes on.

    But from the handover on the task waits for it: the moments are too short on a busy machine.
    """

    def __init__(self, moment, deed):
        self.moment, self.deed = moment, deed
        self.thread = None
        self.error = None

    def __call__(self, line):
        if self.thread is None and self.moment in line:
            self.act()

    def act(self):
        self.thread = threading.Thread(target=self._act)
        self.thread.start()
        if self.moment in LATE:
            self.thread.join()

    def _act(self):
        try:
            self.deed()
        except Exception as error:
            self.error = error

    def join(self):
        """Raises what went wrong with the deed."""
        assert self.thread, f"the task never said: {self.moment}"
        self.thread.join(20)
        assert not self.thread.is_alive()
        if self.error:
            raise self.error


def rolled(namespace, moment, deed, allow_without=lambda pod: False):
    """Roll foo to v2 while somebody else does something; the result, or the error. No pod is without a controller meanwhile."""
    hand = Hand(moment, deed)
    half_way = after_write(REPLICAS // 2, hand.act, hands_over) if moment == HANDING_OVER else None
    began = time.monotonic()
    with namespace.observer(allow_without):
        try:
            end = namespace.roll(say=hand, kill=half_way, image="myimage:v2", progress_deadline=30)
        except RolloutError as error:
            end = error
        hand.join()
    assert time.monotonic() - began < 60
    return end


def successor_of(namespace):
    """Its name, unless it is on its way out, or None."""
    others = {name: namespace.rc(name) for name in namespace.rcs() if name != "foo"}
    return next((name for name, it in others.items() if it and "deletionTimestamp" not in it["metadata"]), None)


def pods_of(namespace, name="foo"):
    uid = namespace.rc(name)["metadata"]["uid"]
    return [pod for pod in namespace.pods() if owner(pod) == uid]


def is_finished(namespace, replicas=REPLICAS):
    """foo alone, at v2, in its size, open, without marks."""
    if namespace.rcs() != ["foo"]:
        return False
    it = namespace.rc()
    namespace.until_available("foo", it["spec"]["replicas"])
    (container,) = it["spec"]["template"]["spec"]["containers"]
    return (container["image"] == "myimage:v2" and len(pods_of(namespace)) == it["spec"]["replicas"] == replicas
            and all(pod["spec"]["containers"][0]["image"] == "myimage:v2" for pod in pods_of(namespace))
            and "priorityClassName" not in it["spec"]["template"]["spec"]
            and not set(marks.MARKS) & set(it["metadata"].get("annotations", ())))


def goes_on(namespace, end, replicas=REPLICAS):
    """The task ends well, in one run, and is unchanged when it is run again."""
    assert not isinstance(end, RolloutError), end.message
    assert end["rollout"]["phase"] == "complete", end["msg"]
    # The task is done at once where the status is still of before the pods were deleted: then the cluster makes them anew.
    eventually(lambda: is_finished(namespace, replicas), "the update's end")
    assert not namespace.roll(image="myimage:v2")["changed"]


def named(namespace, name):
    """A controller's name; None stands for next, which must be there."""
    name = name or successor_of(namespace)
    assert name, "too late"
    return name


def scales(size, name="foo"):
    return lambda namespace: namespace.patch(named(namespace, name), {"spec": {"replicas": size}})


def deletes(name, policy="Background"):
    return lambda namespace: namespace.remove(named(namespace, name), policy=policy)


def recreates(namespace):
    uid = namespace.rc()["metadata"]["uid"]
    namespace.remove("foo")
    eventually(lambda: (namespace.rc() or {"metadata": {}})["metadata"].get("uid") != uid, "the end of foo")
    with contextlib.suppress(ApiException):  # the task may have been faster
        namespace.create("replicationcontrollers", manifest(REPLICAS))


def edits(namespace):
    operations = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "myimage:by-hand"}]
    namespace._call("PATCH", namespace._path("replicationcontrollers", "foo"), operations, "application/json-patch+json")


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
    """Give one of the pods with that image another value of a label."""
    def relabel(namespace):
        for pod in namespace.pods():
            if pod["spec"]["containers"][0]["image"] == image:
                with contextlib.suppress(ApiException):  # this one the task has just made superfluous
                    return namespace.patch(pod["metadata"]["name"], {"metadata": {"labels": {key: "another"}}}, resource="pods")
        raise AssertionError("too late")
    return relabel


def adds_pod(namespace):
    """A pod of nobody with the labels of foo's."""
    spec = manifest(image="other:v1")["spec"]["template"]["spec"]
    namespace.create("pods", {"metadata": {"name": "bare", "labels": {"app": "foo"}}, "spec": spec})


# Where the task goes on to its end. After each moment: how many pods may be there besides foo's.
GOES_ON = {
    "foo is scaled up": (scales(6), dict.fromkeys((MIDDLE, *LATE), 0)),
    "foo is scaled to 0": (scales(0), dict.fromkeys((MIDDLE, *LATE), 0)),
    "next is scaled up": (scales(7, None), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "next is scaled to 0": (scales(0, None), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "next is deleted": (deletes(None), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "next is deleted without its pods": (deletes(None, "Orphan"), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "foo is deleted": (deletes("foo"), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "foo is deleted without its pods": (deletes("foo", "Orphan"), {MIDDLE: 2, RENAMED: 0, CLOSED: 0, HANDING_OVER: 0}),
    "foo's template is edited": (edits, dict.fromkeys((MIDDLE, *LATE), 0)),
    "foo loses its annotations": (removes_annotations("foo"), dict.fromkeys((MIDDLE, CLOSED, HANDING_OVER), 0)),
    "next loses its annotations": (removes_annotations(None), dict.fromkeys((MIDDLE, RENAMED, CLOSED, HANDING_OVER), 0)),
    "a pod is deleted": (deletes_pods(1), dict.fromkeys((MIDDLE, *LATE), 0)),
    "all pods are deleted": (deletes_pods(99), dict.fromkeys((MIDDLE, *LATE), 0)),
    "one of foo's pods gets another label": (relabels("app", "myimage:v1"), {MIDDLE: 1}),
    "one of next's pods gets another label": (relabels("app", "myimage:v2"), dict.fromkeys((MIDDLE, *LATE), 1)),
    "one of next's pods gets another deployment label": (
        relabels(marks.DEPLOYMENT_LABEL, "myimage:v2"), {MIDDLE: 0, **dict.fromkeys(LATE, 1)}),
    "a pod of nobody's with foo's labels appears": (adds_pod, {MIDDLE: 0, **dict.fromkeys(LATE, 1)}),
}
#: Deeds that make pods somebody's who has none.
ORPHANING = ("next is deleted without its pods", "foo is deleted without its pods")


def is_bare_by(what):
    """Whether a pod has no controller because of that deed."""
    return lambda pod: (what in ORPHANING or pod["metadata"]["name"] == "bare" or "another" in pod["metadata"]["labels"].values())


def size_after(what, moment):
    """A size set from the handover on is the user's, unless foo would have to delete pods for it, and can be told to keep them."""
    if what == "foo is scaled up" and moment in LATE:
        return 6
    return 0 if (what, moment) == ("foo is scaled to 0", DELETED) else REPLICAS


@pytest.mark.sample
@pytest.mark.parametrize("what, moment", [(what, moment) for what, (_deed, moments) in GOES_ON.items() for moment in moments])
def test_the_task_goes_on(namespace, what, moment):
    deed, moments = GOES_ON[what]
    namespace.make_primary(REPLICAS)

    end = rolled(namespace, moment, lambda: deed(namespace), allow_without=is_bare_by(what))

    goes_on(namespace, end, size_after(what, moment))
    strangers = uids(namespace.pods()) - uids(pods_of(namespace))
    assert len(strangers) <= moments[moment]  # fewer where foo was about to delete the one that has got another label


def test_foo_is_deleted_when_it_has_all_pods(namespace):
    """No controller is left, and the task says so; who creates foo again has its size, and can roll it."""
    namespace.make_primary(REPLICAS)

    end = rolled(namespace, DELETED, lambda: deletes("foo")(namespace))

    assert isinstance(end, RolloutError) and "no such ReplicationController" in end.what and namespace.rcs() == []
    namespace.gone("foo")
    namespace.make_primary(REPLICAS)
    goes_on(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("moment", [MIDDLE, *LATE])
def test_foo_is_deleted_and_created_again(namespace, moment):
    """Refused where there is a next that was made for the other one; else the new one is rolled. No pod of next is lost."""
    namespace.make_primary(REPLICAS)

    end = rolled(namespace, moment, lambda: recreates(namespace))

    if (successor := successor_of(namespace)) and isinstance(end, RolloutError):
        assert "does not belong to this update" in end.what
        assert namespace.rc(successor)["spec"]["replicas"] >= 2
        eventually(lambda: len(pods_of(namespace, successor)) == namespace.rc(successor)["spec"]["replicas"], "the pods of next")
        with pytest.raises(RolloutError):
            namespace.roll(image="myimage:v2")
        namespace.remove(successor)  # as the error says
        end = namespace.roll(image="myimage:v2")
    elif isinstance(end, RolloutError):
        assert "no such ReplicationController" in end.what
        end = namespace.roll(image="myimage:v2")
    goes_on(namespace, end)


def test_both_lose_their_annotations(namespace):
    """Put back if the task sees one of them without before the other; else next is a stranger."""
    namespace.make_primary(REPLICAS)

    end = rolled(namespace, MIDDLE, lambda: removes_annotations("foo", None)(namespace))

    if isinstance(end, RolloutError):
        assert "does not belong to this update (it does not name foo)" in end.what
        assert "delete it only if its pods are not needed" in end.next_command
        namespace.remove(successor_of(namespace))
        namespace.patch("foo", {"spec": {"replicas": REPLICAS}})
        end = namespace.roll(image="myimage:v2")
    goes_on(namespace, end)


@pytest.mark.parametrize("moment", [RENAMED, DELETED])
def test_foo_loses_the_mark_of_its_handover_and_nobody_else_has_it(namespace, moment):
    """It is put back where the task has not seen it go; else no pod is lost, and what the error says to type ends it."""
    namespace.make_primary(REPLICAS)

    end = rolled(namespace, moment, lambda: removes_annotations("foo")(namespace))

    if not isinstance(end, RolloutError):
        return goes_on(namespace, end)
    assert "somebody removed the annotation baton.kubernetes/takeover" in end.what
    pods, successor = uids(namespace.pods()), successor_of(namespace)
    assert len(pods) == REPLICAS and (f"delete rc {successor} --cascade=orphan" in end.next_command) == bool(successor)
    if successor:
        namespace.remove(successor, policy="Orphan")
        eventually(lambda: namespace.rcs() == ["foo"], "the end of next")
    namespace.until_available("foo", REPLICAS)
    opening = [{"op": "remove", "path": "/spec/template/spec/priorityClassName"}]
    namespace._call("PATCH", namespace._path("replicationcontrollers", "foo"), opening, "application/json-patch+json")
    assert uids(pods_of(namespace)) == pods
    return goes_on(namespace, namespace.roll(image="myimage:v2"))


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_somebody_who_never_stops_scaling_next(namespace):
    """An autoscaler: the task gives up after the same step five times, and names it."""
    namespace.make_primary(REPLICAS)

    def say(line):
        if line.startswith("scale foo-"):
            scales(7, None)(namespace)

    with pytest.raises(RolloutError) as error:
        namespace.roll(say=say, image="myimage:v2-slow", progress_deadline=30)

    assert "somebody else keeps undoing this step (scale foo-" in error.value.what and "5 times" in error.value.what
    assert "find out who changes it" in error.value.next_command
    assert namespace.roll(image="myimage:v2-slow")["rollout"]["phase"] == "complete" and len(namespace.pods()) == REPLICAS


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [MIDDLE, CLOSED, HANDING_OVER])
def test_a_pod_of_somebody_elses_with_all_labels_of_nexts_is_not_touched(namespace, moment):
    """Another controller owns it, as a reference says."""
    namespace.make_primary(REPLICAS)
    owner = namespace.create("configmaps", {"metadata": {"name": "owner"}})
    created = []

    def add():
        labels = next(pod for pod in namespace.pods()
                      if marks.DEPLOYMENT_LABEL in pod["metadata"]["labels"])["metadata"]["labels"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "controller": True, "uid": owner["metadata"]["uid"]}
        spec = manifest(image="other:v1")["spec"]["template"]["spec"]
        created.append(namespace.create("pods", {"spec": spec, "metadata": {
            "name": "stranger", "labels": labels, "ownerReferences": [reference]}}))

    goes_on(namespace, rolled(namespace, moment, add))

    (stranger,) = (pod for pod in namespace.pods() if pod["metadata"]["name"] == "stranger")
    assert stranger["metadata"]["uid"] == created[0]["metadata"]["uid"]
    assert stranger["metadata"]["ownerReferences"] == created[0]["metadata"]["ownerReferences"]
    assert stranger["metadata"]["labels"] == created[0]["metadata"]["labels"]

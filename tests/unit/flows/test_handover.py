# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The steps of a handover: conditions, writes, preconditions, and the resumption after a kill."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import (
    BACK,
    LABEL,
    NOW,
    SUCCESSOR,
    UPDATE,
    apply,
    ended,
    look,
    new,
    old,
    patch_tests,
    rc,
    record,
    summary,
    template,
)
from cluster_models import ClusterModel

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.planner import (
    plan,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import (
    Controller,
    Pod,
    Terminating,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Handover,
    Patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import without_label

KEY = object_meta.DEPLOYMENT_LABEL
PRIMARY_UID, SUCCESSOR_UID = "uid of foo", f"uid of {SUCCESSOR}"
PRIORITY = "/spec/template/spec/priorityClassName"
MARK = {"next": SUCCESSOR, "uid": SUCCESSOR_UID, "label": KEY, "replicas": 3,
        "from": {"web": "myimage:v1"},
        "request": UPDATE.fingerprint, "priorityClassName": None,
        "template": identity.digest(without_label(template("myimage:v2"), KEY))}


#: Metadata of a controller with a finalizer that blocks the deletion.
KEPT_BY_A_FINALIZER = {"deletionTimestamp": NOW, "finalizers": ["example.com/a"]}


def decide(request, *items, **facts):
    return plan(request, look(request, *items, **facts))


def settled(item, observed=True, replicas=3, available=None):
    available = replicas if available is None else available
    status = {"observedGeneration": item["metadata"]["generation"] - (not observed),
              "replicas": replicas,
              "readyReplicas": available, "availableReplicas": available}
    return {**item, "status": status}


def changed(item, *, without=(), annotations=None, image=None, **spec):
    """Return a copy with another spec, other annotations, or without some."""
    remaining = {key: text
            for key, text in {**item["metadata"]["annotations"], **(annotations or {})}.items()
            if key not in without}
    if image:
        labels = item["spec"]["template"]["metadata"]["labels"]
        spec["template"] = {**template(image, priorityClassName=CLOSED),
                            "metadata": {"labels": labels}}
    return {**item, "metadata": {**item["metadata"], "annotations": remaining},
            "spec": {**item["spec"], **spec}}


def annotations(item):
    return item["metadata"]["annotations"]


def mark_of(item):
    return json.loads(annotations(item)[object_meta.TAKEOVER])


def parse(item):
    return Controller.from_api(item)


def pods(successor=0, primary=0, nobody=0, label=LABEL):
    """Return pods of each owner, all of next's template."""
    owners = [SUCCESSOR_UID] * successor + [PRIMARY_UID] * primary + [""] * nobody
    return tuple(Pod(f"pod-{number}", f"uid of pod-{number}", {"app": "foo", KEY: label}, owner)
                 for number, owner in enumerate(owners))


class World:
    """Both controllers of one kind, at each step."""

    def __init__(self, kind):
        self.kind = kind
        self.update, self.back = (dataclasses.replace(request, kind=kind)
                                  for request in (UPDATE, BACK))

    def of_kind(self, item):
        if self.kind is Kind.REPLICATION_CONTROLLER:
            return item
        return {**item, "kind": str(self.kind),
                "spec": {**item["spec"], "selector": {"matchLabels": item["spec"]["selector"]}}}

    def old(self, *args, **changes):
        return self.of_kind(old(*args, **changes))

    def new(self, *args, **changes):
        return self.of_kind(new(*args, **changes))

    def renamed(self, primary=None, successor=None, request=None, **status):
        """Return foo after the first step.

        The controller manager has observed the step unless the status differs.
        """
        primary, successor = primary or self.old(0), successor or self.new(3)
        return settled(apply(decide(request or self.update, primary, successor), primary,
                             successor)["foo"],
                       **{"replicas": 0, **status})

    def closed(self, primary=None, successor=None, observed=True, replicas=3, **metadata):
        """Return next after the second step."""
        primary, successor = primary or self.renamed(successor=successor), successor or self.new(3)
        item = settled(apply(decide(self.update, primary, successor), primary,
                             successor)[SUCCESSOR], observed, replicas)
        return {**item, "metadata": {**item["metadata"], **metadata}}

    def replaced(self, **changes):
        """Return foo with the old, open template, pods of the template, and the annotation."""
        world = self.renamed(replicas=3)
        return changed(world,
                       **{"template": template("myimage:v1"),
                          "selector": self.old()["spec"]["selector"], **changes})


REPLICATION_CONTROLLERS, REPLICA_SETS = World(Kind.REPLICATION_CONTROLLER), World(Kind.REPLICA_SET)
WORLDS = pytest.mark.parametrize("world", [REPLICATION_CONTROLLERS, REPLICA_SETS],
                                 ids=["ReplicationController", "ReplicaSet"])


# Decision per state: the controllers, the pods (None: not listed), the step.

TABLE = {
    "1 is done: next is closed":
        (lambda world: [world.renamed(), world.new(3)], None,
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),
    "1 is done, the controller manager has not seen it: next is closed all the same":
        (lambda world: [world.renamed(observed=False), world.new(3)], None,
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),
    "2 is done, foo has not been seen: wait":
        (lambda world: [world.renamed(observed=False), world.closed()], pods(3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "2 is done, next has not been seen: wait":
        (lambda world: [world.renamed(), world.closed(observed=False)], pods(3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "2 is done, both have been seen, nobody has looked at the pods: wait":
        (lambda world: [world.renamed(), world.closed()], None, ("wait", f"{SUCCESSOR} 3 pods")),
    "2 is done, both have been seen: hand over all pods":
        (lambda world: [world.renamed(), world.closed()], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "3 has begun: hand over those that are next's still":
        (lambda world: [world.renamed(), world.closed()], pods(1, primary=2),
         ("hand over", SUCCESSOR, 1, "foo")),
    "3 has begun, the controller manager has heard of some: hand over the rest":
        (lambda world: [world.renamed(replicas=2), world.closed(replicas=1)], pods(1, primary=2),
         ("hand over", SUCCESSOR, 1, "foo")),
    "3 is done, next's status has not come after it: wait":
        (lambda world: [world.renamed(replicas=2), world.closed(replicas=1)], pods(primary=3),
         ("wait", f"{SUCCESSOR} 1 pods")),
    "3 is done, next counts none, but nobody has looked: wait":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0)], None,
         ("wait", f"{SUCCESSOR} 0 pods")),
    "3 is done, next counts none: delete it":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0)], pods(primary=3),
         ("delete", SUCCESSOR, 0, None)),
    "3 is done, all of the pods have died: delete next":
        (lambda world: [world.renamed(), world.closed(replicas=0)], (),
         ("delete", SUCCESSOR, 0, None)),
    "4 is under way, next is not gone yet: foo is opened, since finalizers may keep it":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0, deletionTimestamp=NOW)],
         pods(primary=3),
         ("restore", "foo", "closed template", "template")),
    "4 is under way, a finalizer keeps next, whose status is not of its deletion: wait":
        (lambda world: [world.renamed(replicas=3),
                        world.closed(replicas=0, observed=False, **KEPT_BY_A_FINALIZER)],
         pods(primary=3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "4 is under way, a finalizer keeps next, foo has not heard of all pods: wait":
        (lambda world: [world.renamed(replicas=2), world.closed(replicas=0, **KEPT_BY_A_FINALIZER)],
         pods(primary=2, nobody=1),
         ("wait", f"{SUCCESSOR} is gone (its finalizers: example.com/a)")),
    "4 is under way, a finalizer keeps next, foo is opened: wait, and name it":
        (lambda world: [changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL)),
                     world.closed(replicas=0, **KEPT_BY_A_FINALIZER)], pods(primary=3),
         ("wait", f"{SUCCESSOR} is gone (its finalizers: example.com/a)")),
    "somebody deletes next in the foreground: its pods are handed over":
        (lambda world: [world.renamed(), world.closed(deletionTimestamp=NOW)], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "4 is done, foo has not heard of all pods: wait":
        (lambda world: [world.renamed(replicas=2)], pods(primary=3),
         ("wait", "foo 2/3 available after "
                                                                        "the handover")),
    "4 is done, nobody has looked: wait":
        (lambda world: [world.renamed(replicas=2)], None,
         ("wait", "foo 2/3 available after the handover")),
    "4 is done, foo has not been seen: wait":
        (lambda world: [world.renamed(observed=False, replicas=3)], pods(primary=3),
         ("wait", "foo 3/3 available after the handover")),
    "4 is done, a pod has died, every living one is foo's: foo is opened":
        (lambda world: [world.renamed(replicas=2)], pods(primary=2),
         ("restore", "foo", "closed template", "template")),
    "4 is done, all pods have died: foo is opened":
        (lambda world: [world.renamed()], (), ("restore", "foo", "closed template", "template")),
    "4 is done, a pod has lost its readiness: foo is opened":
        (lambda world: [world.renamed(replicas=3, available=2)], None,
         ("restore", "foo", "closed template", "template")),
    "4 is done, a pod has nobody and will be adopted: wait":
        (lambda world: [world.renamed(replicas=2)], pods(primary=2, nobody=1),
         ("wait", "foo 2/3 available after the handover")),
    "foo is opened, not all pods are available: wait":
        (lambda world: [changed(world.renamed(replicas=2), template=template("myimage:v2", LABEL))],
         pods(primary=2),
         ("wait", "foo 2/3 available after the handover")),
    "foo has all pods, all are available: the marks go":
        (lambda world: [world.renamed(replicas=3)], None,
         ("annotate", "foo", "taking over", "updated")),
    "foo is opened, all pods are available: the marks go":
        (lambda world: [changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL))],
         None,
         ("annotate", "foo", "taking over", "updated")),
    "another controller has next's name: it is none of this handover's":
        (lambda world: [world.renamed(replicas=3), world.new(1, uid="another")], None,
         ("annotate", "foo", "taking over", "updated")),

    # Another client deletes next
    "next is gone, its pods name it still: they are saved":
        (lambda world: [world.renamed()], pods(3), ("hand over", SUCCESSOR, 3, "foo")),
    "next is gone, some pods name it still, foo has the others: they are saved":
        (lambda world: [world.renamed(replicas=1)], pods(2, primary=1),
         ("hand over", SUCCESSOR, 2, "foo")),
    "next is gone, its pods name it still, foo has not been seen: wait":
        (lambda world: [world.renamed(observed=False)], pods(3),
         ("wait", "foo 0/3 available after the "
                                                                    "handover")),
    "another controller has next's name, the pods name the one of before: they are saved":
        (lambda world: [world.renamed(), world.new(1, uid="another")], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),

    # Another client scales foo
    "foo is scaled down before next is closed: back, or it would delete pods":
        (lambda world: [changed(world.renamed(), replicas=1), world.new(3)], None,
         ("restore", "foo", 1, 3)),
    "foo is scaled down before its pods come: back, or it would delete them":
        (lambda world: [changed(world.renamed(), replicas=0), world.closed()], pods(3),
         ("restore", "foo", 0, 3)),
    "foo is scaled up: its pods come first":
        (lambda world: [changed(world.renamed(), replicas=5), world.closed()], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "foo is scaled up, all pods are its own: it is opened":
        (lambda world: [changed(world.renamed(replicas=3), replicas=5)], pods(primary=3),
         ("restore", "foo", "closed template", "template")),
    "foo is scaled down when next has gone: that is its size":
        (lambda world: [settled(changed(world.renamed(), replicas=1), replicas=1)], None,
         ("annotate", "foo", "taking over", "updated")),

    # Another client changes foo, which stays closed
    "another image is applied to foo before next is closed: back":
        (lambda world: [changed(world.renamed(), image="myimage:v9"), world.new(3)], None,
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "another image is applied to foo before its pods come: back":
        (lambda world: [changed(world.renamed(), image="myimage:v9"), world.closed()], pods(3),
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "foo has lost its mark: next has a copy":
        (lambda world: [changed(world.renamed(), without=[object_meta.TAKEOVER]), world.closed()],
         pods(1, primary=2),
         ("restore", "foo", {"web": "myimage:v2"}, {"web": "myimage:v2"})),
    "foo has lost all marks: next has a copy":
        (lambda world: [changed(world.renamed(), without=object_meta.UPDATE_ANNOTATIONS),
                        world.closed()],
         pods(1, primary=2),
         ("restore", "foo", {"web": "myimage:v2"}, {"web": "myimage:v2"})),
    "foo has lost its mark and runs another image: next has a copy":
        (lambda world: [changed(world.renamed(), without=[object_meta.TAKEOVER],
                                image="myimage:v9"),
                        world.closed()],
         pods(3),
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "next has lost its mark: foo has it":
        (lambda world: [world.renamed(), changed(world.closed(), without=[object_meta.TAKEOVER])],
         pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "somebody has opened next: it is closed again":
        (lambda world: [world.renamed(), changed(world.closed(), template=template("myimage:v2",
                        LABEL))],
         pods(3),
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),

    # Another client replaces foo by an open manifest
    "foo is replaced: the pods that it had got go back to next":
        (lambda world: [world.replaced(), world.closed(replicas=1)], pods(1, primary=2),
         ("hand over", "foo", 2, SUCCESSOR)),
    "foo is replaced and has lost its marks: the pods that it had got go back to next":
        (lambda world: [world.replaced(without=object_meta.UPDATE_ANNOTATIONS),
                        world.closed(replicas=1)],
         pods(1, primary=2),
         ("hand over", "foo", 2, SUCCESSOR)),
    "foo is replaced, nobody has looked at the pods: wait":
        (lambda world: [world.replaced(), world.closed()], None,
         ("wait", f"the controller manager observes {SUCCESSOR}")),
    "foo is replaced, next has not been seen: wait":
        (lambda world: [world.replaced(), world.closed(observed=False)], pods(3),
         ("wait", f"the controller manager observes {SUCCESSOR}")),
    "foo is replaced, next has not heard of its pods: wait":
        (lambda world: [world.replaced(), world.closed(replicas=1)], pods(3),
         ("wait", f"{SUCCESSOR} 1/3 pods")),
    "foo is replaced, next has its pods: it is opened":
        (lambda world: [world.replaced(), world.closed()], pods(3),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo is replaced, one of next's pods has died: it is opened":
        (lambda world: [world.replaced(), world.closed(replicas=2)], pods(2),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo is replaced and makes pods, which stay its own: next is opened":
        (lambda world: [world.replaced(), world.closed()],
         pods(3) + pods(primary=2, label="of before"),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo is replaced, next is open: the mark goes from foo":
        (lambda world: [world.replaced(), world.new(3)], None,
         ("annotate", "foo", "taking over", "updating")),
}


@pytest.mark.parametrize("wish", ["update", "back"], ids=["updated", "rolled_back"])
@WORLDS
@pytest.mark.parametrize("items, seen_pods, expected", TABLE.values(), ids=TABLE)
def test_handover(items, seen_pods, expected, world, wish):
    """After the first step, an update and a rollback both finish the handover."""
    assert summary(decide(getattr(world, wish), *items(world), pods=seen_pods)) == expected


# 1: the first step, the point of no return


@WORLDS
def test_renaming_gives_foo_next_s_template_closed_its_size_and_the_mark(world):
    primary, successor = world.old(0), world.new(3)
    assert summary(decide(world.update, primary, successor)) == (
        "rename", "foo", {"web": "myimage:v1"}, {"web": "myimage:v2"})
    primary = world.renamed()

    assert primary["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)
    assert primary["spec"]["replicas"] == 3
    assert primary["metadata"]["labels"] == {"app": "foo", KEY: LABEL}
    assert mark_of(primary) == {**MARK, "request": world.update.fingerprint}
    assert annotations(primary).keys() == {*annotations(old()), object_meta.TAKEOVER}


@pytest.mark.parametrize("world, selector", [
    (REPLICATION_CONTROLLERS, {"app": "foo", KEY: LABEL}),
    (REPLICA_SETS, {"matchLabels": {"app": "foo"}}),
], ids=["next's", "its own, which cannot be changed and matches"])
def test_renaming_leaves_foo_with_a_selector_that_matches_next_s_pods(world, selector):
    assert world.renamed()["spec"]["selector"] == selector


def test_renaming_replaces_a_label_of_an_earlier_update():
    primary = REPLICATION_CONTROLLERS.renamed(primary=old(0, label="earlier"))

    assert primary["spec"]["selector"][KEY] == primary["spec"]["template"]["metadata"]["labels"][
        KEY] == LABEL


@WORLDS
def test_renaming_a_foo_without_labels_of_its_own_gives_it_the_deployment_label(world):
    primary = world.old(0)
    primary["metadata"].pop("labels")

    assert world.renamed(primary=primary)["metadata"]["labels"] == {KEY: LABEL}
    assert patch_tests(decide(world.update, primary, world.new(3)))["/metadata/labels"] is None


@WORLDS
def test_renaming_takes_min_ready_seconds_of_next(world):
    successor = world.new(3)
    successor["spec"]["minReadySeconds"] = 7

    assert world.renamed(successor=successor)["spec"]["minReadySeconds"] == 7


@WORLDS
def test_renaming_assumes_foo_empty_and_its_marks_as_seen(world):
    assert patch_tests(decide(world.update, world.old(0), world.new(3))) == {
        "/metadata/uid": PRIMARY_UID,
        "/spec/replicas": 0,
        **{f"/metadata/annotations/{mark.replace('/', '~1')}": annotations(old()).get(mark)
           for mark in object_meta.UPDATE_ANNOTATIONS},
    }


def test_renaming_writes_nothing_of_a_selector_that_cannot_be_changed():
    written = [operation["path"]
               for operation in decide(REPLICA_SETS.update, REPLICA_SETS.old(0),
                                       REPLICA_SETS.new(3)).write.operations]

    assert "/spec/template" in written and "/spec/selector" not in written


@pytest.mark.parametrize("change", [
    {"matchLabels": {"app": "foo", KEY: "earlier"}},
    {"matchLabels": {"app": "foo"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]},
], ids=["the deployment label", "expressions"])
def test_a_selector_that_the_new_pods_do_not_match_is_refused_before_the_first_write(change):
    primary = changed(REPLICA_SETS.of_kind(rc(label="earlier")), selector=change)

    with pytest.raises(RolloutError, match="its selector is immutable and does not") as refused:
        decide(REPLICA_SETS.update, primary)

    assert "next_name=" in refused.value.next_command
    assert summary(decide(dataclasses.replace(REPLICA_SETS.update, next_name="bar"),
                          primary))[:2] == ("annotate", "foo")


# 2: next is closed


@WORLDS
def test_next_is_closed_with_a_copy_of_the_mark(world):
    primary, successor = world.renamed(), world.closed()

    assert successor["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)
    assert annotations(successor) == {**annotations(world.new(3)),
                                      object_meta.TAKEOVER: annotations(primary)[
                                          object_meta.TAKEOVER]}
    assert patch_tests(decide(world.update, primary,
                              world.new(3)))["/metadata/uid"] == SUCCESSOR_UID


def test_closing_without_marks_changes_the_priority_class_only():
    step = handover.close(parse(rc()), {})

    assert summary(step) == ("annotate", "foo", None, "no more pods are created for it")
    closed = apply(step, rc())["foo"]
    assert (closed["spec"]["template"] == template(priorityClassName=CLOSED)
            and not annotations(closed))
    assert handover.is_closed(parse(closed)) and not handover.is_closed(parse(rc()))


# 3: a patch per pod


@WORLDS
def test_a_pod_s_patch_replaces_the_reference_to_next_by_one_to_foo_in_this_very_pod(world):
    step = decide(world.update, world.renamed(), world.closed(), pods=pods(2, primary=1))

    version = {Kind.REPLICATION_CONTROLLER: "v1", Kind.REPLICA_SET: "apps/v1"}[world.kind]
    reference = {"apiVersion": version, "kind": str(world.kind), "name": "foo", "uid": PRIMARY_UID,
                 "controller": True,
                 "blockOwnerDeletion": True}
    assert step.write == Handover(pods(2), SUCCESSOR_UID, reference, {})
    assert step.write.patches()[1:] == (Patch("pod-1", (
        {"op": "test", "path": "/metadata/uid", "value": "uid of pod-1"},
        {"op": "test", "path": "/metadata/ownerReferences/0/uid", "value": SUCCESSOR_UID},
        {"op": "replace", "path": "/metadata/ownerReferences/0", "value": reference}), "Pod"),)


def test_a_pod_s_other_owner_references_stay():
    pod = Pod("a", "uid of a", {}, SUCCESSOR_UID, position=2)

    (patch,) = handover.reparent_step((pod,), SUCCESSOR_UID, SUCCESSOR, parse(rc())).write.patches()

    assert [operation["path"] for operation in patch.operations] == [
        "/metadata/uid", "/metadata/ownerReferences/2/uid", "/metadata/ownerReferences/2"]


def test_labels_are_put_on_each_pod_in_the_same_patch():
    step = handover.reparent(pods(1), parse(rc(SUCCESSOR)), parse(rc()), {"example.com/hash": "x"})

    (patch,) = step.write.patches()
    assert patch.operations[2:] == (
        {"op": "add", "path": "/metadata/labels/example.com~1hash", "value": "x"},
        {"op": "replace", "path": "/metadata/ownerReferences/0",
         "value": step.write.target_reference})


@pytest.mark.parametrize("seen_pods, giver, taker, expected", [
    (pods(3), rc(SUCCESSOR, observed=False), rc(),
     ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    (pods(3), rc(SUCCESSOR), rc(observed=False),
     ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    (None, rc(SUCCESSOR), rc(), ("wait", f"{SUCCESSOR} 3 pods")),
    (pods(2, primary=1), rc(SUCCESSOR), rc(), ("hand over", SUCCESSOR, 2, "foo")),
    (pods(primary=1, nobody=1), rc(SUCCESSOR), rc(), None),
    ((), rc(SUCCESSOR), rc(), None),
], ids=["giver not seen", "taker not seen", "nobody has looked", "some are the giver's",
        "none is the giver's", "there are none"])
def test_handing_over(seen_pods, giver, taker, expected):
    decision = handover.reparent(seen_pods, parse(giver), parse(taker))

    assert (decision and summary(decision)) == expected


@WORLDS
def test_whose_the_pods_are_is_needed_only_while_that_decides_something(world):
    rows = {
        "no update": [world.of_kind(rc())],
        "an update": [world.old(1), world.new(2)],
        "1 is done": [world.renamed(), world.new(3)],
        "foo has not been seen": [world.renamed(observed=False), world.closed()],
        "next has not been seen": [world.renamed(), world.closed(observed=False)],
        "both have been seen": [world.renamed(), world.closed()],
        "next is gone": [world.renamed(replicas=2)],
        "next is gone, foo has not been seen": [world.renamed(replicas=2, observed=False)],
        "foo has all": [world.renamed(replicas=3, available=1)],
        "foo is open": [changed(world.renamed(replicas=2), template=template("myimage:v2", LABEL))],
        "foo is replaced": [settled(world.replaced(), observed=False), world.closed()],
        "foo is replaced, next is open": [world.replaced(), world.new(3)],
        "foo is gone": [world.closed()],
    }

    needed = {row for row, items in rows.items() if handover.needs_pods(look(world.update, *items))}
    assert needed == {"both have been seen", "next is gone", "foo is replaced"}


# 4: next is deleted


@WORLDS
def test_next_is_deleted_only_as_it_was_seen(world):
    successor = world.closed(replicas=0, resourceVersion="7")

    write = decide(world.update, world.renamed(replicas=3), successor, pods=pods(primary=3)).write

    assert write == Delete(SUCCESSOR, {"uid": SUCCESSOR_UID, "resourceVersion": "7"}, world.kind)


@pytest.mark.parametrize("giver, expected", [
    (rc(replicas=3, current=0), ("delete", "foo", 0, None)),
    (rc(replicas=3, current=1), ("wait", "foo 1 pods")),
    (rc(replicas=3, current=0, deletionTimestamp=NOW), ("wait", "foo is gone")),
], ids=["its status counts none", "its status counts one", "it goes already"])
def test_deletion_of_an_empty_controller(giver, expected):
    assert summary(handover.delete_empty(parse(giver))) == expected


# 5: foo is opened


@pytest.mark.parametrize("primary, seen_pods, expected", [
    (rc(), None, True),
    (rc(available=0), pods(3), True),
    (rc(observed=False), pods(primary=3), False),
    (rc(current=2), None, False),
    (rc(current=2), pods(primary=2), True),
    (rc(current=2), pods(primary=3), False),
    (rc(current=3, replicas=4), pods(primary=2), False),
    (rc(current=2), pods(1, primary=2), False),
    (rc(current=2), pods(primary=2, nobody=1), False),
    (rc(current=0), (), True),
    (rc(current=2), (*pods(primary=2), Pod("x", "uid of x", {}, "another")), True),
], ids=["it counts all: nobody needs to look", "it counts all, none is ready", "not seen",
        "nobody has looked",
        "it counts what there is", "it has not heard of one", "it has not heard of an end",
        "one is the giver's",
        "one has nobody", "all have died", "others are another controller's"])
def test_when_pods_may_be_made_again(primary, seen_pods, expected):
    assert handover.may_open(parse(primary), SUCCESSOR_UID, seen_pods) is expected


@pytest.mark.parametrize("original", [None, "high"])
def test_opening_puts_the_priority_class_of_before_back_and_assumes_a_closed_template(original):
    change = ({"op": "add", "path": PRIORITY, "value": original} if original
              else {"op": "remove", "path": PRIORITY})

    assert handover.opening(original) == ({"op": "test", "path": PRIORITY, "value": CLOSED}, change)


@WORLDS
def test_opening_the_template_early_keeps_the_marks(world):
    primary = world.renamed(replicas=2)

    opened = apply(decide(world.update, primary, pods=pods(primary=2)), primary)["foo"]

    assert opened["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(opened) == annotations(primary)


@pytest.mark.parametrize("count, expected", [
    (0, ("restore", "foo", "closed template", "template")),
    (1, ("restore", "foo", "closed template", "template")),
    (2, ("wait", "foo 2/3 available after the handover, 2 terminating pods are gone: a, b"))])
@WORLDS
def test_the_template_stays_closed_while_terminating_pods_leave_no_room_for_a_new_one(
        world, count, expected):
    """The surge is 1, and a pod of three has died."""
    terminating = Terminating(count, "2 terminating pods are gone: a, b" if count else "")

    decision = decide(world.update, world.renamed(replicas=2), pods=pods(primary=2),
                      terminating=terminating)

    assert summary(decision) == expected


@pytest.mark.parametrize("replicas, expected", [
    (2, ("wait", f"{SUCCESSOR} 2/3 pods, 2 terminating pods are gone: a, b")),
    (3, ("restore", SUCCESSOR, "closed template", "template"))])
@WORLDS
def test_next_stays_closed_while_terminating_pods_leave_no_room_for_a_new_one(
        world, replicas, expected):
    items = world.replaced(), world.closed(replicas=replicas)

    decision = decide(world.update, *items, pods=pods(replicas),
                      terminating=Terminating(2, "2 terminating pods are gone: a, b"))

    assert summary(decision) == expected


@WORLDS
def test_the_end_opens_the_template_and_clears_the_marks_in_one_patch(world):
    primary = world.renamed(replicas=3)

    primary = apply(decide(world.update, primary), primary)["foo"]

    assert primary["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(primary) == {object_meta.LAST_ROLLOUT: ended(world.update)}


@WORLDS
def test_a_priority_class_of_the_template_is_put_back(world):
    primary, successor = world.old(0), world.new(3)
    primary["spec"]["template"] = template("myimage:v1", priorityClassName="high")
    successor["spec"]["template"] = template("myimage:v2", LABEL, priorityClassName="high")
    primary = settled(world.renamed(primary=primary, successor=successor))

    assert apply(decide(world.update, primary),
                 primary)["foo"]["spec"]["template"]["spec"]["priorityClassName"] == "high"


@WORLDS
def test_an_opened_template_is_unchanged(world):
    primary = changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL))

    assert apply(decide(world.update, primary), primary)["foo"]["spec"] == primary["spec"]


@WORLDS
def test_an_edited_template_is_not_recorded_as_the_result_of_the_request(world):
    primary = changed(world.renamed(replicas=3), image="myimage:by-hand")

    step = decide(world.update, primary)

    assert summary(step) == ("annotate", "foo", "taking over", "updated") and not step.is_last
    primary = apply(step, primary)["foo"]
    assert annotations(primary) == {
        object_meta.LAST_ROLLOUT: record("updated", after="myimage:by-hand")}
    assert decide(world.update, primary).action == "annotate"


@pytest.mark.parametrize("request_, expected", [
    (UPDATE, True),
    (dataclasses.replace(UPDATE, max_surge=UPDATE.max_unavailable, min_ready_seconds=3), True),
    (Request("foo", images={"": "myimage:v3"}), False),
    (BACK, False),
], ids=["the same wish", "the same wish at another pace", "another image", "rolled_back"])
def test_the_end_of_the_handover_is_the_end_of_the_task(request_, expected):
    """Only the task with the same request ends: a repeated restart would begin again."""
    assert decide(request_, REPLICATION_CONTROLLERS.renamed(replicas=3)).is_last is expected


# Another client writes to the same controllers


@WORLDS
@pytest.mark.parametrize("mark_is_lost", [False, True])
def test_a_foo_that_got_another_image_is_as_the_first_step_has_left_it_and_a_warning_says_so(
        world, mark_is_lost):
    primary = changed(world.renamed(), image="myimage:v9",
                      without=[object_meta.TAKEOVER] if mark_is_lost else ())

    step = decide(world.update, primary, world.closed(), pods=pods(3))

    restored = apply(step, primary)["foo"]
    assert (restored["spec"] == world.renamed()["spec"]
            and annotations(restored) == annotations(world.renamed()))
    assert "another client applied another template to foo" in step.warning
    assert "myimage:v9. The template is restored to myimage:v2" in step.warning
    assert patch_tests(step)[PRIORITY] == CLOSED


@WORLDS
def test_a_mark_that_was_lost_is_written_again_without_a_warning(world):
    primary = changed(world.renamed(), without=object_meta.UPDATE_ANNOTATIONS)

    step = decide(world.update, primary, world.closed(), pods=pods(3))

    restored = apply(step, primary)["foo"]
    assert annotations(restored) == {key: annotations(world.renamed())[key]
                                     for key in (object_meta.TAKEOVER, object_meta.PARTNER)}
    assert step.warning == ""


def test_a_next_without_any_annotation_is_known_by_its_template_and_selector():
    """A ReplicaSet keeps another selector, so there is no evidence for the successor."""
    successor = changed(REPLICATION_CONTROLLERS.closed(),
                        without=[*object_meta.UPDATE_ANNOTATIONS, object_meta.LAST_ROLLOUT])

    assert summary(decide(UPDATE, REPLICATION_CONTROLLERS.renamed(), successor,
                          pods=pods(3))) == ("hand over", SUCCESSOR, 3, "foo")


@WORLDS
def test_the_update_continues_with_a_warning_after_the_primary_is_replaced(world):
    primary, successor = world.replaced(), world.closed()

    step = decide(world.update, primary, successor, pods=pods(3))

    assert "another client replaced foo at the end of its update" in step.warning
    successor = settled(apply(step, primary, successor)[SUCCESSOR])
    assert (successor["spec"]["template"] == template("myimage:v2", LABEL)
            and object_meta.TAKEOVER not in annotations(successor))
    primary = settled(apply(decide(world.update, primary, successor), primary, successor)["foo"])
    assert annotations(primary) == annotations(world.old())
    assert summary(decide(world.update, primary, successor)) == ("scale", "foo", 3, 0)
    assert summary(decide(world.back, primary, successor))[:2] == ("annotate", "foo")


@WORLDS
def test_the_pods_that_go_back_name_next_as_before(world):
    write = decide(world.update, world.replaced(), world.closed(replicas=1),
                   pods=pods(1, primary=2)).write

    assert (write.source_uid, write.target_reference["name"], write.target_reference["uid"]) == (
        PRIMARY_UID, SUCCESSOR, SUCCESSOR_UID)
    assert {pod.owner for pod in write.pods} == {PRIMARY_UID}


@WORLDS
def test_a_foo_that_is_replaced_before_next_is_closed_loses_the_mark(world):
    primary, successor = world.replaced(), world.new(3)

    assert object_meta.TAKEOVER not in annotations(
        apply(decide(world.update, primary, successor), primary, successor)["foo"])


@WORLDS
@pytest.mark.parametrize("named", [
    rc("bar"), rc("bar", annotations={object_meta.PARTNER: "another"}),
    rc("bar", annotations={object_meta.PARTNER: "foo"},
       ownerReferences=[{"kind": "Deployment", "name": "web", "controller": True}]),
], ids=["it names nobody", "it names another", "it is controlled by another"])
def test_a_mark_that_names_a_controller_that_is_no_next_is_refused(world, named):
    """A user with annotate permission could otherwise change foo's pods."""
    primary = changed(world.renamed(),
                      annotations={object_meta.TAKEOVER: json.dumps(
                          {**MARK, "next": "bar", "uid": "uid of bar"})})

    with pytest.raises(RolloutError) as refused:
        decide(world.update, primary, world.of_kind(named), pods=pods(3))

    assert refused.value.what == (
        f"the annotation {object_meta.TAKEOVER} names bar, which is not the successor in this "
        "update: "
        "its own annotations do not name foo")
    assert (refused.value.next_command
            == f"kubectl -n default get {world.kind.short} foo bar -o yaml")


UNREADABLE = {
    "nothing": "", "half an object": "{", "a list": "[]", "null": "null",
    "some fields": '{"next": "foo-1"}',
    **{f"no {field}": json.dumps({key: value for key, value in MARK.items() if key != field})
       for field in MARK if field != "priorityClassName"},
    **{f"a list as {field}": json.dumps({**MARK, field: ["x"]}) for field in MARK},
    "an object as the uid": json.dumps({**MARK, "uid": {"a": "b"}}),
    "a text as the size": json.dumps({**MARK, "replicas": "3"}),
    "a truth as the size": json.dumps({**MARK, "replicas": True}),
    "a fraction as the size": json.dumps({**MARK, "replicas": 1.5}),
    "a size below 0": json.dumps({**MARK, "replicas": -1}),
    "a size that the API does not take": json.dumps({**MARK, "replicas": 2**31}),
    "a huge size": f'{{"replicas": {"9" * 5000}}}',
    "a huge fraction": json.dumps({**MARK, "replicas": 1e999}),
    "a list as an image": json.dumps({**MARK, "from": {"web": ["x"]}}),
    "nested lists": "[" * 100_000, "nested objects": '{"from":' * 30_000,
}


@WORLDS
@pytest.mark.parametrize("mark", UNREADABLE.values(), ids=UNREADABLE)
def test_a_mark_that_cannot_be_read_is_an_error_that_shows_where_to_look(mark, world):
    with pytest.raises(RolloutError) as refused:
        decide(world.update, world.old(0, marks={object_meta.TAKEOVER: mark}), world.new(3))

    assert refused.value.what == (f"the annotation {object_meta.TAKEOVER} cannot be read, so the "
                                  "handover cannot be finished")
    assert refused.value.where == f"{world.kind} default/foo"
    assert refused.value.next_command == f"kubectl -n default get {world.kind.short} foo -o yaml"


# foo is gone


@WORLDS
def test_a_foo_that_is_gone_is_created_as_the_first_step_leaves_it(world):
    step = decide(world.update, world.new(3, desired=3))

    assert isinstance(step.write, Create) and step.write.kind == world.kind
    primary = step.write.manifest
    assert primary["metadata"] | {"annotations": {}} == {
        "name": "foo", "namespace": "default", "labels": {"app": "foo", KEY: LABEL},
        "annotations": {}}
    assert primary["metadata"]["annotations"].keys() == {object_meta.PARTNER, object_meta.TAKEOVER}
    assert primary["spec"] == {"replicas": 3, "selector": world.new()["spec"]["selector"],
                               "minReadySeconds": 0,
                               "template": template("myimage:v2", LABEL, priorityClassName=CLOSED)}
    assert mark_of(primary) == {**MARK, "request": world.update.fingerprint}


def test_a_foo_that_was_lost_half_way_is_created_for_all_of_its_pods():
    primary = decide(UPDATE, new(2, desired=3)).write.manifest

    assert mark_of(primary)["replicas"] == primary["spec"]["replicas"] == 3


@WORLDS
def test_a_foo_that_is_lost_when_next_is_closed_gets_the_priority_class_of_before(world):
    successor = world.new(3,
                          marks={object_meta.LAST_ROLLOUT: record(
                              "updating", request=world.update.fingerprint)})
    successor["spec"]["template"]["spec"]["priorityClassName"] = "high"
    primary, desired = world.old(0), successor["spec"]["template"]
    primary = settled(apply(decide(world.update, primary, successor, desired=desired), primary,
                            successor)["foo"], replicas=0)
    successor = apply(decide(world.update, primary, successor), primary, successor)[SUCCESSOR]
    (mark,) = {mark_of(item)["priorityClassName"] for item in (primary, successor)}
    assert mark == "high" and successor["spec"]["template"]["spec"]["priorityClassName"] == CLOSED

    again = apply(decide(world.update, successor), successor)["foo"]

    assert mark_of(again)["priorityClassName"] == "high" and again["spec"]["replicas"] == 3


@WORLDS
@pytest.mark.parametrize("primary_is_there", [True, False], ids=["foo is there", "foo is gone"])
def test_a_handover_ends_with_the_pods_of_before(world, primary_is_there):
    cluster = ClusterModel([world.new(3), *([world.old(0)] if primary_is_there else [])],
                           world.kind)
    lines = []
    for _turn in range(30):
        observation = look(world.update, *cluster.items.values())
        if handover.needs_pods(observation):
            observation = dataclasses.replace(observation,
                                              pods=cluster.live_pods((
                                           observation.successor or observation.primary).selector))
        decision = plan(world.update, observation)
        lines.append(summary(decision)[0])
        if lines[-1] == "done":
            break
        assert lines[-1] == "wait" or cluster.write(decision.write)
        cluster.settle()

    (primary,) = cluster.items.values()
    assert lines == ["rename" if primary_is_there else "create", "annotate", "hand over", "delete",
                     "annotate", "done"]
    assert primary["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(primary) == {object_meta.LAST_ROLLOUT: ended(world.update)}
    assert [(pod.owner, pod.ready)
            for pod in cluster.pods] == [(primary["metadata"]["uid"], True)] * 3

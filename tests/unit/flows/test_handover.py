# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the steps of a handover: conditions, writes, preconditions, and resumption after a kill."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import (
    LABEL,
    NOW,
    ROLLBACK,
    SUCCESSOR,
    UPDATE,
    apply,
    final_record,
    new,
    observe,
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

LABEL_KEY = object_meta.DEPLOYMENT_LABEL
PRIMARY_UID, SUCCESSOR_UID = "uid of foo", f"uid of {SUCCESSOR}"
PRIORITY_PATH = "/spec/template/spec/priorityClassName"
TAKEOVER = {"next": SUCCESSOR, "uid": SUCCESSOR_UID, "label": LABEL_KEY, "replicas": 3,
            "from": {"web": "myimage:v1"},
            "request": UPDATE.fingerprint, "priorityClassName": None,
            "template": identity.digest(without_label(template("myimage:v2"), LABEL_KEY))}


BLOCKED_BY_FINALIZER = {"deletionTimestamp": NOW, "finalizers": ["example.com/a"]}


def decide(request, *items, **facts):
    return plan(request, observe(request, *items, **facts))


def with_status(item, is_observed=True, replicas=3, available=None):
    """Return the controller with a status that counts these pods.

    is_observed: whether the status is of the current generation.
    """
    available = replicas if available is None else available
    status = {"observedGeneration": item["metadata"]["generation"] - (not is_observed),
              "replicas": replicas,
              "readyReplicas": available, "availableReplicas": available}
    return {**item, "status": status}


def changed(item, *, without=(), annotations=None, image=None, **spec):
    """Return a changed copy of a controller.

    without: annotations to remove. image: sets a closed template with this image.
    """
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


def takeover_of(item):
    return json.loads(annotations(item)[object_meta.TAKEOVER])


def parse(item):
    return Controller.from_api(item)


def pods(successor=0, primary=0, orphans=0, label=LABEL):
    """Return pods of these owners, created from the successor's template."""
    owners = [SUCCESSOR_UID] * successor + [PRIMARY_UID] * primary + [""] * orphans
    labels = {"app": "foo", LABEL_KEY: label}
    return tuple(Pod(f"pod-{number}", f"uid of pod-{number}", labels, owner)
                 for number, owner in enumerate(owners))


class World:
    """Builder of foo and its successor, of one kind, after each step of a handover."""

    def __init__(self, kind):
        self.kind = kind
        self.update, self.rollback = (dataclasses.replace(request, kind=kind)
                                      for request in (UPDATE, ROLLBACK))

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
        """Return foo after the first step. By default, its status is current and counts no pods."""
        primary, successor = primary or self.old(0), successor or self.new(3)
        return with_status(apply(decide(request or self.update, primary, successor), primary,
                                 successor)["foo"],
                           **{"replicas": 0, **status})

    def closed(self, primary=None, successor=None, is_observed=True, replicas=3, **metadata):
        """Return the successor after the second step."""
        primary, successor = primary or self.renamed(successor=successor), successor or self.new(3)
        item = with_status(apply(decide(self.update, primary, successor), primary,
                                 successor)[SUCCESSOR], is_observed, replicas)
        return {**item, "metadata": {**item["metadata"], **metadata}}

    def replaced(self, **changes):
        """Return foo with its annotations, after another client has applied foo's old manifest."""
        renamed_foo = self.renamed(replicas=3)
        return changed(renamed_foo,
                       **{"template": template("myimage:v1"),
                          "selector": self.old()["spec"]["selector"], **changes})


REPLICATION_CONTROLLERS, REPLICA_SETS = World(Kind.REPLICATION_CONTROLLER), World(Kind.REPLICA_SET)
FOR_EACH_KIND = pytest.mark.parametrize("world", [REPLICATION_CONTROLLERS, REPLICA_SETS],
                                        ids=["ReplicationController", "ReplicaSet"])


#: (controllers, pods or None if they are not listed, summary of the decision).
#: Steps: 1 rename foo, 2 close the successor, 3 reparent pods, 4 delete the successor, 5 open foo.
TABLE = {
    "step 1 done: close the successor":
        (lambda world: [world.renamed(), world.new(3)], None,
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),
    "step 1 done, not observed: close the successor":
        (lambda world: [world.renamed(is_observed=False), world.new(3)], None,
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),
    "step 2 done, foo not observed: wait":
        (lambda world: [world.renamed(is_observed=False), world.closed()], pods(3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "step 2 done, successor not observed: wait":
        (lambda world: [world.renamed(), world.closed(is_observed=False)], pods(3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "step 2 done, both observed, pods not listed: wait":
        (lambda world: [world.renamed(), world.closed()], None,
         ("wait", f"pods of {SUCCESSOR}: 3")),
    "step 2 done, both observed: reparent all pods":
        (lambda world: [world.renamed(), world.closed()], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "step 3 begun: reparent the remaining pods":
        (lambda world: [world.renamed(), world.closed()], pods(1, primary=2),
         ("hand over", SUCCESSOR, 1, "foo")),
    "step 3 begun, partly observed: reparent the remaining pods":
        (lambda world: [world.renamed(replicas=2), world.closed(replicas=1)], pods(1, primary=2),
         ("hand over", SUCCESSOR, 1, "foo")),
    "step 3 done, status of the successor outdated: wait":
        (lambda world: [world.renamed(replicas=2), world.closed(replicas=1)], pods(primary=3),
         ("wait", f"pods of {SUCCESSOR}: 1")),
    "step 3 done, successor counts no pods, pods not listed: wait":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0)], None,
         ("wait", f"pods of {SUCCESSOR}: 0")),
    "step 3 done, successor counts no pods: delete the successor":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0)], pods(primary=3),
         ("delete", SUCCESSOR, 0, None)),
    "step 3 done, all pods deleted: delete the successor":
        (lambda world: [world.renamed(), world.closed(replicas=0)], (),
         ("delete", SUCCESSOR, 0, None)),
    "step 4 begun, successor terminating: open foo":
        (lambda world: [world.renamed(replicas=3), world.closed(replicas=0, deletionTimestamp=NOW)],
         pods(primary=3),
         ("restore", "foo", "closed template", "template")),
    "step 4 begun, finalizer, status of the successor outdated: wait":
        (lambda world: [world.renamed(replicas=3),
                        world.closed(replicas=0, is_observed=False, **BLOCKED_BY_FINALIZER)],
         pods(primary=3),
         ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    "step 4 begun, finalizer, foo counts some pods: wait":
        (lambda world: [world.renamed(replicas=2),
                        world.closed(replicas=0, **BLOCKED_BY_FINALIZER)],
         pods(primary=2, orphans=1),
         ("wait", f"{SUCCESSOR} is gone (its finalizers: example.com/a)")),
    "step 4 begun, finalizer, foo open: wait":
        (lambda world: [changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL)),
                        world.closed(replicas=0, **BLOCKED_BY_FINALIZER)], pods(primary=3),
         ("wait", f"{SUCCESSOR} is gone (its finalizers: example.com/a)")),
    "successor deleted in the foreground: reparent its pods":
        (lambda world: [world.renamed(), world.closed(deletionTimestamp=NOW)], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "step 4 done, foo counts some pods: wait":
        (lambda world: [world.renamed(replicas=2)], pods(primary=3),
         ("wait", "foo 2/3 available after the handover")),
    "step 4 done, pods not listed: wait":
        (lambda world: [world.renamed(replicas=2)], None,
         ("wait", "foo 2/3 available after the handover")),
    "step 4 done, foo not observed: wait":
        (lambda world: [world.renamed(is_observed=False, replicas=3)], pods(primary=3),
         ("wait", "foo 3/3 available after the handover")),
    "step 4 done, pod deleted: open foo":
        (lambda world: [world.renamed(replicas=2)], pods(primary=2),
         ("restore", "foo", "closed template", "template")),
    "step 4 done, all pods deleted: open foo":
        (lambda world: [world.renamed()], (), ("restore", "foo", "closed template", "template")),
    "step 4 done, pod unready: open foo":
        (lambda world: [world.renamed(replicas=3, available=2)], None,
         ("restore", "foo", "closed template", "template")),
    "step 4 done, orphaned pod: wait":
        (lambda world: [world.renamed(replicas=2)], pods(primary=2, orphans=1),
         ("wait", "foo 2/3 available after the handover")),
    "foo open, pods unavailable: wait":
        (lambda world: [changed(world.renamed(replicas=2), template=template("myimage:v2", LABEL))],
         pods(primary=2),
         ("wait", "foo 2/3 available after the handover")),
    "foo has all pods, all available: remove the annotations":
        (lambda world: [world.renamed(replicas=3)], None,
         ("annotate", "foo", "taking over", "updated")),
    "foo open, all pods available: remove the annotations":
        (lambda world: [changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL))],
         None,
         ("annotate", "foo", "taking over", "updated")),
    "another controller with the successor's name is ignored":
        (lambda world: [world.renamed(replicas=3), world.new(1, uid="another")], None,
         ("annotate", "foo", "taking over", "updated")),

    # Another client deletes the successor
    "successor deleted with pods: reparent the pods":
        (lambda world: [world.renamed()], pods(3), ("hand over", SUCCESSOR, 3, "foo")),
    "successor deleted with some pods: reparent the pods":
        (lambda world: [world.renamed(replicas=1)], pods(2, primary=1),
         ("hand over", SUCCESSOR, 2, "foo")),
    "successor deleted with pods, foo not observed: wait":
        (lambda world: [world.renamed(is_observed=False)], pods(3),
         ("wait", "foo 0/3 available after the handover")),
    "successor recreated, pods of the deleted successor: reparent the pods":
        (lambda world: [world.renamed(), world.new(1, uid="another")], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),

    # Another client scales foo
    "foo scaled down before step 2: restore the size":
        (lambda world: [changed(world.renamed(), replicas=1), world.new(3)], None,
         ("restore", "foo", 1, 3)),
    "foo scaled down before step 3: restore the size":
        (lambda world: [changed(world.renamed(), replicas=0), world.closed()], pods(3),
         ("restore", "foo", 0, 3)),
    "foo scaled up: reparent the pods first":
        (lambda world: [changed(world.renamed(), replicas=5), world.closed()], pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "foo scaled up, with all pods: open foo":
        (lambda world: [changed(world.renamed(replicas=3), replicas=5)], pods(primary=3),
         ("restore", "foo", "closed template", "template")),
    "foo scaled down after step 4: keep the size":
        (lambda world: [with_status(changed(world.renamed(), replicas=1), replicas=1)], None,
         ("annotate", "foo", "taking over", "updated")),

    # Another client changes foo, which stays closed
    "another image on foo before step 2: restore the template":
        (lambda world: [changed(world.renamed(), image="myimage:v9"), world.new(3)], None,
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "another image on foo before step 3: restore the template":
        (lambda world: [changed(world.renamed(), image="myimage:v9"), world.closed()], pods(3),
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "takeover annotation of foo missing: restore it from the successor":
        (lambda world: [changed(world.renamed(), without=[object_meta.TAKEOVER]), world.closed()],
         pods(1, primary=2),
         ("restore", "foo", {"web": "myimage:v2"}, {"web": "myimage:v2"})),
    "all annotations of foo missing: restore them from the successor":
        (lambda world: [changed(world.renamed(), without=object_meta.UPDATE_ANNOTATIONS),
                        world.closed()],
         pods(1, primary=2),
         ("restore", "foo", {"web": "myimage:v2"}, {"web": "myimage:v2"})),
    "takeover annotation of foo missing, another image: restore both":
        (lambda world: [changed(world.renamed(), without=[object_meta.TAKEOVER],
                                image="myimage:v9"),
                        world.closed()],
         pods(3),
         ("restore", "foo", {"web": "myimage:v9"}, {"web": "myimage:v2"})),
    "takeover annotation of the successor missing: use foo's":
        (lambda world: [world.renamed(), changed(world.closed(), without=[object_meta.TAKEOVER])],
         pods(3),
         ("hand over", SUCCESSOR, 3, "foo")),
    "successor opened by another client: close it again":
        (lambda world: [world.renamed(), changed(world.closed(), template=template("myimage:v2",
                        LABEL))],
         pods(3),
         ("annotate", SUCCESSOR, None, "no more pods are created for it")),

    # Another client replaces foo by a manifest with an open template
    "foo replaced: return its pods to the successor":
        (lambda world: [world.replaced(), world.closed(replicas=1)], pods(1, primary=2),
         ("hand over", "foo", 2, SUCCESSOR)),
    "foo replaced without annotations: return its pods to the successor":
        (lambda world: [world.replaced(without=object_meta.UPDATE_ANNOTATIONS),
                        world.closed(replicas=1)],
         pods(1, primary=2),
         ("hand over", "foo", 2, SUCCESSOR)),
    "foo replaced, pods not listed: wait":
        (lambda world: [world.replaced(), world.closed()], None,
         ("wait", f"the controller manager observes {SUCCESSOR}")),
    "foo replaced, successor not observed: wait":
        (lambda world: [world.replaced(), world.closed(is_observed=False)], pods(3),
         ("wait", f"the controller manager observes {SUCCESSOR}")),
    "foo replaced, successor counts some pods: wait":
        (lambda world: [world.replaced(), world.closed(replicas=1)], pods(3),
         ("wait", f"pods of {SUCCESSOR}: 1/3")),
    "foo replaced, successor with its pods: open the successor":
        (lambda world: [world.replaced(), world.closed()], pods(3),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo replaced, pod of the successor deleted: open the successor":
        (lambda world: [world.replaced(), world.closed(replicas=2)], pods(2),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo replaced and creates pods: open the successor":
        (lambda world: [world.replaced(), world.closed()],
         pods(3) + pods(primary=2, label="earlier"),
         ("restore", SUCCESSOR, "closed template", "template")),
    "foo replaced, successor open: remove the annotation of foo":
        (lambda world: [world.replaced(), world.new(3)], None,
         ("annotate", "foo", "taking over", "updating")),
}


@pytest.mark.parametrize("request_name", ["update", "rollback"])
@FOR_EACH_KIND
@pytest.mark.parametrize("items, listed_pods, expected", TABLE.values(), ids=TABLE)
def test_handover(items, listed_pods, expected, world, request_name):
    request = getattr(world, request_name)

    assert summary(decide(request, *items(world), pods=listed_pods)) == expected


# 1: the first step, the point of no return


@FOR_EACH_KIND
def test_rename_closes_the_template_and_sets_size_and_annotation(world):
    primary, successor = world.old(0), world.new(3)
    assert summary(decide(world.update, primary, successor)) == (
        "rename", "foo", {"web": "myimage:v1"}, {"web": "myimage:v2"})
    primary = world.renamed()

    assert primary["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)
    assert primary["spec"]["replicas"] == 3
    assert primary["metadata"]["labels"] == {"app": "foo", LABEL_KEY: LABEL}
    assert takeover_of(primary) == {**TAKEOVER, "request": world.update.fingerprint}
    assert annotations(primary).keys() == {*annotations(old()), object_meta.TAKEOVER}


@pytest.mark.parametrize("world, selector", [
    (REPLICATION_CONTROLLERS, {"app": "foo", LABEL_KEY: LABEL}),
    (REPLICA_SETS, {"matchLabels": {"app": "foo"}}),
], ids=["selector of the successor", "immutable selector of foo"])
def test_rename_sets_a_selector_that_matches_the_new_pods(world, selector):
    assert world.renamed()["spec"]["selector"] == selector


def test_rename_replaces_the_label_of_an_earlier_update():
    primary = REPLICATION_CONTROLLERS.renamed(primary=old(0, label="earlier"))

    assert primary["spec"]["selector"][LABEL_KEY] == LABEL
    assert primary["spec"]["template"]["metadata"]["labels"][LABEL_KEY] == LABEL


@FOR_EACH_KIND
def test_rename_of_foo_without_labels(world):
    primary = world.old(0)
    primary["metadata"].pop("labels")

    assert world.renamed(primary=primary)["metadata"]["labels"] == {LABEL_KEY: LABEL}
    assert patch_tests(decide(world.update, primary, world.new(3)))["/metadata/labels"] is None


@FOR_EACH_KIND
def test_rename_takes_min_ready_seconds_of_the_successor(world):
    successor = world.new(3)
    successor["spec"]["minReadySeconds"] = 7

    assert world.renamed(successor=successor)["spec"]["minReadySeconds"] == 7


@FOR_EACH_KIND
def test_preconditions_of_the_rename(world):
    assert patch_tests(decide(world.update, world.old(0), world.new(3))) == {
        "/metadata/uid": PRIMARY_UID,
        "/spec/replicas": 0,
        **{f"/metadata/annotations/{key.replace('/', '~1')}": annotations(old()).get(key)
           for key in object_meta.UPDATE_ANNOTATIONS},
    }


def test_rename_does_not_write_an_immutable_selector():
    written_paths = [operation["path"]
                     for operation in decide(REPLICA_SETS.update, REPLICA_SETS.old(0),
                                             REPLICA_SETS.new(3)).write.operations]

    assert "/spec/template" in written_paths and "/spec/selector" not in written_paths


@pytest.mark.parametrize("selector, reason", [
    ({"matchLabels": {"app": "foo", LABEL_KEY: "earlier"}}, "does not match the new pods"),
    ({"matchLabels": {"app": "foo"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]},
     "has matchExpressions, which no update keeps: set next_name to replace the controller with "
     "another one$"),
], ids=["deployment label", "expressions"])
def test_selector_mismatch_with_the_new_pods_is_refused_before_the_first_write(selector, reason):
    primary = changed(REPLICA_SETS.of_kind(rc(label="earlier")), selector=selector)

    with pytest.raises(RolloutError, match=f"its selector is immutable and {reason}") as error:
        decide(REPLICA_SETS.update, primary)

    assert "next_name=" in error.value.next_command
    assert summary(decide(dataclasses.replace(REPLICA_SETS.update, next_name="bar"),
                          primary))[:2] == ("annotate", "foo")


# 2: the successor is closed


@FOR_EACH_KIND
def test_successor_is_closed_with_a_copy_of_the_annotation(world):
    primary, successor = world.renamed(), world.closed()

    assert successor["spec"]["template"] == template("myimage:v2", LABEL, priorityClassName=CLOSED)
    assert annotations(successor) == {**annotations(world.new(3)),
                                      object_meta.TAKEOVER: annotations(primary)[
                                          object_meta.TAKEOVER]}
    assert patch_tests(decide(world.update, primary,
                              world.new(3)))["/metadata/uid"] == SUCCESSOR_UID


def test_close_changes_only_the_priority_class():
    step = handover.close(parse(rc()), {})

    assert summary(step) == ("annotate", "foo", None, "no more pods are created for it")
    closed_item = apply(step, rc())["foo"]
    assert (closed_item["spec"]["template"] == template(priorityClassName=CLOSED)
            and not annotations(closed_item))
    assert handover.is_closed(parse(closed_item)) and not handover.is_closed(parse(rc()))


# 3: a patch per pod


@FOR_EACH_KIND
def test_patch_of_a_pod_replaces_the_controller_reference(world):
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


def test_other_owner_references_of_a_pod_stay():
    pod = Pod("a", "uid of a", {}, SUCCESSOR_UID, owner_index=2)

    (patch,) = handover.reparent_step((pod,), SUCCESSOR_UID, SUCCESSOR, parse(rc())).write.patches()

    assert [operation["path"] for operation in patch.operations] == [
        "/metadata/uid", "/metadata/ownerReferences/2/uid", "/metadata/ownerReferences/2"]


def test_labels_and_owner_of_a_pod_are_set_in_one_patch():
    step = handover.reparent_or_wait(pods(1), parse(rc(SUCCESSOR)), parse(rc()),
                                     {"example.com/hash": "x"})

    (patch,) = step.write.patches()
    assert patch.operations[2:] == (
        {"op": "add", "path": "/metadata/labels/example.com~1hash", "value": "x"},
        {"op": "replace", "path": "/metadata/ownerReferences/0",
         "value": step.write.target_reference})


@pytest.mark.parametrize("listed_pods, source, target, expected", [
    (pods(3), rc(SUCCESSOR, observed=False), rc(),
     ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    (pods(3), rc(SUCCESSOR), rc(observed=False),
     ("wait", f"the controller manager observes foo and {SUCCESSOR}")),
    (None, rc(SUCCESSOR), rc(), ("wait", f"pods of {SUCCESSOR}: 3")),
    (pods(2, primary=1), rc(SUCCESSOR), rc(), ("hand over", SUCCESSOR, 2, "foo")),
    (pods(primary=1, orphans=1), rc(SUCCESSOR), rc(), None),
    ((), rc(SUCCESSOR), rc(), None),
], ids=["source not observed", "target not observed", "pods not listed", "some pods of the source",
        "no pods of the source", "no pods"])
def test_reparent_step(listed_pods, source, target, expected):
    decision = handover.reparent_or_wait(listed_pods, parse(source), parse(target))

    assert (decision and summary(decision)) == expected


@FOR_EACH_KIND
def test_list_of_pods_is_needed_only_in_some_states(world):
    states = {
        "no update": [world.of_kind(rc())],
        "update in progress": [world.old(1), world.new(2)],
        "step 1 done": [world.renamed(), world.new(3)],
        "foo not observed": [world.renamed(is_observed=False), world.closed()],
        "successor not observed": [world.renamed(), world.closed(is_observed=False)],
        "both observed": [world.renamed(), world.closed()],
        "successor deleted": [world.renamed(replicas=2)],
        "successor deleted, foo not observed": [world.renamed(replicas=2, is_observed=False)],
        "foo counts all pods": [world.renamed(replicas=3, available=1)],
        "foo open": [changed(world.renamed(replicas=2), template=template("myimage:v2", LABEL))],
        "foo replaced": [with_status(world.replaced(), is_observed=False), world.closed()],
        "foo replaced, successor open": [world.replaced(), world.new(3)],
        "foo deleted": [world.closed()],
    }

    states_with_pods = {state for state, items in states.items()
                        if handover.depends_on_pod_owners(observe(world.update, *items))}
    assert states_with_pods == {"both observed", "successor deleted", "foo replaced"}


# 4: the successor is deleted


@FOR_EACH_KIND
def test_deletion_of_the_successor_has_preconditions(world):
    successor = world.closed(replicas=0, resourceVersion="7")

    write = decide(world.update, world.renamed(replicas=3), successor, pods=pods(primary=3)).write

    assert write == Delete(SUCCESSOR, {"uid": SUCCESSOR_UID, "resourceVersion": "7"}, world.kind)


@pytest.mark.parametrize("source, expected", [
    (rc(replicas=3, current=0), ("delete", "foo", 0, None)),
    (rc(replicas=3, current=1), ("wait", "pods of foo: 1")),
    (rc(replicas=3, current=0, deletionTimestamp=NOW), ("wait", "foo is gone")),
], ids=["no pods counted", "one pod counted", "terminating"])
def test_deletion_of_an_empty_controller(source, expected):
    assert summary(handover.delete_empty(parse(source))) == expected


# 5: foo is opened


@pytest.mark.parametrize("primary, listed_pods, expected", [
    (rc(), None, True),
    (rc(available=0), pods(3), True),
    (rc(observed=False), pods(primary=3), False),
    (rc(current=2), None, False),
    (rc(current=2), pods(primary=2), True),
    (rc(current=2), pods(primary=3), False),
    (rc(current=3, replicas=4), pods(primary=2), False),
    (rc(current=2), pods(1, primary=2), False),
    (rc(current=2), pods(primary=2, orphans=1), False),
    (rc(current=0), (), True),
    (rc(current=2), (*pods(primary=2), Pod("x", "uid of x", {}, "another")), True),
], ids=["all pods counted", "all pods counted, none ready", "status not observed",
        "pods not listed", "all existing pods counted", "pod not counted yet",
        "deleted pod still counted", "pod of the successor", "orphaned pod", "all pods died",
        "pod of another controller"])
def test_conditions_to_open_foo(primary, listed_pods, expected):
    assert handover.is_safe_to_open(parse(primary), SUCCESSOR_UID, listed_pods) is expected


@pytest.mark.parametrize("original", [None, "high"])
def test_open_restores_the_priority_class(original):
    change = ({"op": "add", "path": PRIORITY_PATH, "value": original} if original
              else {"op": "remove", "path": PRIORITY_PATH})

    assert handover.opening_operations(original) == (
        {"op": "test", "path": PRIORITY_PATH, "value": CLOSED}, change)


@FOR_EACH_KIND
def test_open_keeps_the_annotations(world):
    primary = world.renamed(replicas=2)

    opened_item = apply(decide(world.update, primary, pods=pods(primary=2)), primary)["foo"]

    assert opened_item["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(opened_item) == annotations(primary)


@pytest.mark.parametrize("count, expected", [
    (0, ("restore", "foo", "closed template", "template")),
    (1, ("restore", "foo", "closed template", "template")),
    (2, ("wait", "foo 2/3 available after the handover, 2 terminating pods are gone: a, b"))])
@FOR_EACH_KIND
def test_foo_stays_closed_while_terminating_pods_fill_the_surge(world, count, expected):
    terminating = Terminating(count, "2 terminating pods are gone: a, b" if count else "")

    decision = decide(world.update, world.renamed(replicas=2), pods=pods(primary=2),
                      terminating=terminating)

    assert summary(decision) == expected


@pytest.mark.parametrize("replicas, expected", [
    (2, ("wait", f"pods of {SUCCESSOR}: 2/3, 2 terminating pods are gone: a, b")),
    (3, ("restore", SUCCESSOR, "closed template", "template"))])
@FOR_EACH_KIND
def test_successor_stays_closed_while_terminating_pods_fill_the_surge(world, replicas, expected):
    items = world.replaced(), world.closed(replicas=replicas)

    decision = decide(world.update, *items, pods=pods(replicas),
                      terminating=Terminating(2, "2 terminating pods are gone: a, b"))

    assert summary(decision) == expected


@FOR_EACH_KIND
def test_last_patch_opens_the_template_and_removes_the_annotations(world):
    primary = world.renamed(replicas=3)

    primary = apply(decide(world.update, primary), primary)["foo"]

    assert primary["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(primary) == {object_meta.LAST_ROLLOUT: final_record(world.update)}


@FOR_EACH_KIND
def test_priority_class_is_restored(world):
    primary, successor = world.old(0), world.new(3)
    primary["spec"]["template"] = template("myimage:v1", priorityClassName="high")
    successor["spec"]["template"] = template("myimage:v2", LABEL, priorityClassName="high")
    primary = with_status(world.renamed(primary=primary, successor=successor))

    assert apply(decide(world.update, primary),
                 primary)["foo"]["spec"]["template"]["spec"]["priorityClassName"] == "high"


@FOR_EACH_KIND
def test_an_opened_template_is_unchanged(world):
    primary = changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL))

    assert apply(decide(world.update, primary), primary)["foo"]["spec"] == primary["spec"]


@FOR_EACH_KIND
def test_an_edited_template_is_not_recorded_as_the_result_of_the_request(world):
    primary = changed(world.renamed(replicas=3), image="myimage:by-hand")

    step = decide(world.update, primary)

    assert summary(step) == ("annotate", "foo", "taking over", "updated") and not step.ends_task
    primary = apply(step, primary)["foo"]
    assert annotations(primary) == {
        object_meta.LAST_ROLLOUT: record("updated", after="myimage:by-hand")}
    assert decide(world.update, primary).action == "annotate"


@pytest.mark.parametrize("request_, expected", [
    (UPDATE, True),
    (dataclasses.replace(UPDATE, max_surge=UPDATE.max_unavailable, min_ready_seconds=3), True),
    (Request("foo", images={"": "myimage:v3"}), False),
    (ROLLBACK, False),
], ids=["same request", "same request with another strategy", "another image", "rolled_back"])
def test_handover_is_the_end_of_a_task_with_the_same_request(request_, expected):
    """A task that repeats a restart must end here, not restart the pods again."""
    assert decide(request_, REPLICATION_CONTROLLERS.renamed(replicas=3)).ends_task is expected


@FOR_EACH_KIND
@pytest.mark.parametrize("is_handover_proven", [False, True])
def test_annotation_of_an_open_controller_is_no_evidence_for_the_end_of_the_task(
        world, is_handover_proven):
    """A user with annotate permission can forge the annotation with the hashes of the request."""
    primary = changed(world.renamed(replicas=3), template=template("myimage:v2", LABEL))

    step = decide(world.update, primary, is_handover_proven=is_handover_proven)

    assert summary(step) == ("annotate", "foo", "taking over", "updated")
    assert step.ends_task is is_handover_proven


# Another client writes to the same controllers


@FOR_EACH_KIND
@pytest.mark.parametrize("loses_annotation", [False, True])
def test_another_image_on_foo_is_replaced_with_a_warning(world, loses_annotation):
    primary = changed(world.renamed(), image="myimage:v9",
                      without=[object_meta.TAKEOVER] if loses_annotation else ())

    step = decide(world.update, primary, world.closed(), pods=pods(3))

    restored_item = apply(step, primary)["foo"]
    assert (restored_item["spec"] == world.renamed()["spec"]
            and annotations(restored_item) == annotations(world.renamed()))
    assert "another client applied another template to foo" in step.warning
    assert "myimage:v9. The template is restored to myimage:v2" in step.warning
    assert patch_tests(step)[PRIORITY_PATH] == CLOSED


@FOR_EACH_KIND
def test_missing_annotation_is_restored_without_a_warning(world):
    primary = changed(world.renamed(), without=object_meta.UPDATE_ANNOTATIONS)

    step = decide(world.update, primary, world.closed(), pods=pods(3))

    restored_item = apply(step, primary)["foo"]
    assert annotations(restored_item) == {key: annotations(world.renamed())[key]
                                          for key in (object_meta.TAKEOVER, object_meta.PARTNER)}
    assert step.warning == ""


def test_successor_without_annotations_is_recognized_by_template_and_selector():
    """A ReplicaSet is not tested: it cannot take over the selector of its successor."""
    successor = changed(REPLICATION_CONTROLLERS.closed(),
                        without=[*object_meta.UPDATE_ANNOTATIONS, object_meta.LAST_ROLLOUT])

    assert summary(decide(UPDATE, REPLICATION_CONTROLLERS.renamed(), successor,
                          pods=pods(3))) == ("hand over", SUCCESSOR, 3, "foo")


@FOR_EACH_KIND
def test_the_update_continues_with_a_warning_after_the_primary_is_replaced(world):
    primary, successor = world.replaced(), world.closed()

    step = decide(world.update, primary, successor, pods=pods(3))

    assert "another client replaced foo at the end of its update" in step.warning
    successor = with_status(apply(step, primary, successor)[SUCCESSOR])
    assert (successor["spec"]["template"] == template("myimage:v2", LABEL)
            and object_meta.TAKEOVER not in annotations(successor))
    primary = with_status(apply(decide(world.update, primary, successor), primary,
                                successor)["foo"])
    assert annotations(primary) == annotations(world.old())
    assert summary(decide(world.update, primary, successor)) == ("scale", "foo", 3, 0)
    assert summary(decide(world.rollback, primary, successor))[:2] == ("annotate", "foo")


@FOR_EACH_KIND
def test_pods_returned_to_the_successor_have_its_reference(world):
    write = decide(world.update, world.replaced(), world.closed(replicas=1),
                   pods=pods(1, primary=2)).write

    assert (write.source_uid, write.target_reference["name"], write.target_reference["uid"]) == (
        PRIMARY_UID, SUCCESSOR, SUCCESSOR_UID)
    assert {pod.owner_uid for pod in write.pods} == {PRIMARY_UID}


@FOR_EACH_KIND
def test_replaced_foo_before_step_2_loses_the_annotation(world):
    primary, successor = world.replaced(), world.new(3)

    assert object_meta.TAKEOVER not in annotations(
        apply(decide(world.update, primary, successor), primary, successor)["foo"])


@FOR_EACH_KIND
@pytest.mark.parametrize("other_controller", [
    rc("bar"), rc("bar", annotations={object_meta.PARTNER: "another"}),
    rc("bar", annotations={object_meta.PARTNER: "foo"},
       ownerReferences=[{"kind": "Deployment", "name": "web", "controller": True}]),
], ids=["no partner", "another partner", "another owner"])
def test_takeover_annotation_with_another_controller_is_refused(world, other_controller):
    """Otherwise, a user who may only annotate foo could change foo's pods."""
    primary = changed(world.renamed(),
                      annotations={object_meta.TAKEOVER: json.dumps(
                          {**TAKEOVER, "next": "bar", "uid": "uid of bar"})})

    with pytest.raises(RolloutError) as error:
        decide(world.update, primary, world.of_kind(other_controller), pods=pods(3))

    assert error.value.what == (
        f"the annotation {object_meta.TAKEOVER} names bar, which is not the successor in this "
        "update: "
        "its own annotations do not name foo")
    assert (error.value.next_command
            == f"kubectl -n default get {world.kind.kubectl_name} foo bar -o yaml")


UNREADABLE_TAKEOVERS = {
    "nothing": "", "half an object": "{", "a list": "[]", "null": "null",
    "some fields": '{"next": "foo-1"}',
    **{f"no {field}": json.dumps({key: value for key, value in TAKEOVER.items() if key != field})
       for field in TAKEOVER if field != "priorityClassName"},
    **{f"a list as {field}": json.dumps({**TAKEOVER, field: ["x"]}) for field in TAKEOVER},
    "an object as the uid": json.dumps({**TAKEOVER, "uid": {"a": "b"}}),
    "a text as the size": json.dumps({**TAKEOVER, "replicas": "3"}),
    "a boolean as the size": json.dumps({**TAKEOVER, "replicas": True}),
    "a fraction as the size": json.dumps({**TAKEOVER, "replicas": 1.5}),
    "a size below 0": json.dumps({**TAKEOVER, "replicas": -1}),
    "a size above the limit of the API": json.dumps({**TAKEOVER, "replicas": 2**31}),
    "a huge size": f'{{"replicas": {"9" * 5000}}}',
    "a huge fraction": json.dumps({**TAKEOVER, "replicas": 1e999}),
    "a list as an image": json.dumps({**TAKEOVER, "from": {"web": ["x"]}}),
    "nested lists": "[" * 100_000, "nested objects": '{"from":' * 30_000,
}


@FOR_EACH_KIND
@pytest.mark.parametrize("text", UNREADABLE_TAKEOVERS.values(), ids=UNREADABLE_TAKEOVERS)
def test_unreadable_takeover_annotation_is_an_error(text, world):
    with pytest.raises(RolloutError) as error:
        decide(world.update, world.old(0, annotate={object_meta.TAKEOVER: text}), world.new(3))

    assert error.value.what == (f"the annotation {object_meta.TAKEOVER} cannot be read, so the "
                                "handover cannot be finished")
    assert error.value.where == f"{world.kind} default/foo"
    assert (error.value.next_command
            == f"kubectl -n default get {world.kind.kubectl_name} foo -o yaml")


# foo is deleted


@FOR_EACH_KIND
def test_deleted_foo_is_recreated_in_its_state_after_step_1(world):
    step = decide(world.update, world.new(3, original=3))

    assert isinstance(step.write, Create) and step.write.kind == world.kind
    primary = step.write.manifest
    assert primary["metadata"] | {"annotations": {}} == {
        "name": "foo", "namespace": "default", "labels": {"app": "foo", LABEL_KEY: LABEL},
        "annotations": {}}
    assert primary["metadata"]["annotations"].keys() == {object_meta.PARTNER, object_meta.TAKEOVER}
    assert primary["spec"] == {"replicas": 3, "selector": world.new()["spec"]["selector"],
                               "minReadySeconds": 0,
                               "template": template("myimage:v2", LABEL, priorityClassName=CLOSED)}
    assert takeover_of(primary) == {**TAKEOVER, "request": world.update.fingerprint}


def test_recreated_foo_has_the_full_size():
    primary = decide(UPDATE, new(2, original=3)).write.manifest

    assert takeover_of(primary)["replicas"] == primary["spec"]["replicas"] == 3


@FOR_EACH_KIND
def test_recreated_foo_gets_the_original_priority_class(world):
    successor = world.new(3,
                          annotate={object_meta.LAST_ROLLOUT: record(
                              "updating", request=world.update.fingerprint)})
    successor["spec"]["template"]["spec"]["priorityClassName"] = "high"
    primary, desired = world.old(0), successor["spec"]["template"]
    step = decide(world.update, primary, successor, desired_template=desired)
    primary = with_status(apply(step, primary, successor)["foo"], replicas=0)
    successor = apply(decide(world.update, primary, successor), primary, successor)[SUCCESSOR]
    (priority_class,) = {takeover_of(item)["priorityClassName"] for item in (primary, successor)}
    assert priority_class == "high"
    assert successor["spec"]["template"]["spec"]["priorityClassName"] == CLOSED

    recreated_item = apply(decide(world.update, successor), successor)["foo"]

    assert takeover_of(recreated_item)["priorityClassName"] == "high"
    assert recreated_item["spec"]["replicas"] == 3


@FOR_EACH_KIND
@pytest.mark.parametrize("has_primary", [True, False], ids=["foo exists", "foo deleted"])
def test_handover_keeps_the_pods(world, has_primary):
    cluster = ClusterModel([world.new(3), *([world.old(0)] if has_primary else [])],
                           world.kind)
    actions = []
    for _turn in range(30):
        observation = observe(world.update, *cluster.items.values())
        if handover.depends_on_pod_owners(observation):
            owner = observation.successor or observation.primary
            observation = dataclasses.replace(observation, pods=cluster.live_pods(owner.selector))
        decision = plan(world.update, observation)
        actions.append(summary(decision)[0])
        if actions[-1] == "done":
            break
        assert actions[-1] == "wait" or cluster.write(decision.write)
        cluster.settle()

    (primary,) = cluster.items.values()
    assert actions == ["rename" if has_primary else "create", "annotate", "hand over", "delete",
                       "annotate", "done"]
    assert primary["spec"]["template"] == template("myimage:v2", LABEL)
    assert annotations(primary) == {object_meta.LAST_ROLLOUT: final_record(world.update)}
    assert [(pod.owner_uid, pod.ready)
            for pod in cluster.pods] == [(primary["metadata"]["uid"], True)] * 3

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan the next step from a request and observed controllers, for each row of the state table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess

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
    plan,
    rc,
    record,
    summary,
    template,
)
from cluster_models import ClusterModel
from clusters import Cluster
from hypothesis import given
from hypothesis import strategies as st
from request_builders import build_request

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Done,
    Patch,
    Step,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

WITH_NEXT_NAME = dataclasses.replace(UPDATE, next_name="bar")
ROLLBACK_WITH_NEXT_NAME = dataclasses.replace(ROLLBACK, next_name="bar")
RESTART = Request(name="foo", state=State.RESTARTED)
COLORED = dataclasses.replace(UPDATE, label_key="kubernetes.io/color")
RESUMPTION = dataclasses.replace(UPDATE, resumes_only=True)
V3 = build_request(image="myimage:v3")
V1, V2 = {"web": "myimage:v1"}, {"web": "myimage:v2"}


REMOVE_FINALIZER = ("let the program that set the finalizer remove it; if that program no longer "
                    "runs:\nkubectl -n "
                    "default patch rc foo --type=merge "
                    """-p '{"metadata": {"finalizers": null}}'""")


def name_of_successor(request):
    return expected_successor(request, Controller.from_api(rc()))[0]


def decide(request, *items, **facts):
    return plan(request, observe(request, *items, **facts))


def new_bar(replicas=0, goal=3, **changes):
    return new(replicas, goal, name="bar", **changes)


def primary_of_bar(replicas=3, goal=0, **changes):
    return old(replicas, goal,
               **{"annotate": {object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar"},
                  **changes})


UID_OF_BAR = {object_meta.PARTNER_UID: "uid of bar"}


def closed_foo(**changes):
    """Return foo with a closed template (see CLOSED), but without the takeover annotation."""
    primary = rc(**changes)
    primary["spec"]["template"]["spec"]["priorityClassName"] = CLOSED
    return primary


def foo_with_color(value):
    primary = rc()
    primary["spec"]["template"]["metadata"]["labels"]["kubernetes.io/color"] = value
    return primary


def successor_with_host_network():
    successor = new(1)
    successor["spec"]["template"]["spec"]["hostNetwork"] = True
    return successor


def annotations_of(item):
    return item["metadata"]["annotations"]


def update_with_pause(pause_at):
    return dataclasses.replace(UPDATE, pause_at=pause_at)


AT_TWO, ALL_NEW = Size(2), Size(100, percent=True)
PAUSED_AT = {number: {object_meta.PAUSED: number} for number in "123"}


#: A successor that another client has created concurrently.
CONCURRENT_SUCCESSOR = "foo-0123456789"


#: (request, observed controllers, summary of the decision).
UPDATES = {
    "pause_at: the successor grows only to the pause, despite a larger surge":
        (dataclasses.replace(update_with_pause(Size(1)), max_surge=Size(3)), [old(3), new(0)],
         ("scale", SUCCESSOR, 0, 1)),
    "pause_at: a percentage is rounded up":
        (dataclasses.replace(update_with_pause(Size(34, percent=True)), max_surge=Size(3)),
         [old(3), new(0)],
         ("scale", SUCCESSOR, 0, 2)),
    "pause_at: foo keeps the pods beyond the pause":
        (dataclasses.replace(update_with_pause(AT_TWO), max_unavailable=Size(3)), [old(3), new(2)],
         ("scale", "foo", 3, 1)),
    "pause_at: all new pods available: wait for the deletion of an old pod":
        (update_with_pause(AT_TWO), [old(1, current=2), new(2)],
         ("wait", f"{SUCCESSOR} 2/2 available, foo 2")),
    "pause_at: the number is stored on foo":
        (update_with_pause(AT_TWO), [old(1), new(2)],
         ("annotate", "foo", None, "paused at 2 of 3")),
    "pause_at: the same number changes nothing":
        (update_with_pause(AT_TWO), [old(1, annotate=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: a lower number changes nothing":
        (update_with_pause(Size(1)), [old(1, annotate=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: a scale-down by another client stays":
        (update_with_pause(AT_TWO), [old(0, annotate=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: a higher number resumes, and removes the annotation":
        (update_with_pause(AT_TWO), [old(2, annotate=PAUSED_AT["1"]), new(1)],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "pause_at: a task without pause_at resumes, and removes the annotation":
        (UPDATE, [old(2, annotate=PAUSED_AT["1"]), new(1)],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "pause_at 100%: the pause precedes the handover":
        (update_with_pause(ALL_NEW), [old(0), new(3)],
         ("annotate", "foo", None, "paused at 3 of 3")),
    "pause_at 100%: an update without pause_at continues with the handover":
        (UPDATE, [old(0, annotate=PAUSED_AT["3"]), new(3)], ("rename", "foo", V1, V2)),
    "foo only: annotate foo, with the current size":
        (UPDATE, [rc()], ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "foo only: after the annotations, create the successor":
        (UPDATE, [old(annotate={object_meta.PARTNER_UID: None})], ("create", SUCCESSOR, None, V2)),
    "foo only: foo already has the desired template: done, unchanged":
        (UPDATE, [rc(image="myimage:v2")], ("done", "foo already has the desired template")),
    "foo only: foo already has the desired template: the deployment label makes no difference":
        (UPDATE, [rc(image="myimage:v2", label="earlier")],
         ("done", "foo already has the desired template")),
    "foo only: foo already has the desired template: stale annotations are removed":
        (UPDATE, [old(image="myimage:v2")],
         ("annotate", "foo", "0 desired", "no update in progress")),
    "foo only: foo already has the desired template: the previous size is restored first":
        (UPDATE, [old(2, image="myimage:v2")], ("restore", "foo", 2, 3)),
    "foo only: foo already has the desired template: wait for missing pods":
        (UPDATE, [old(3, image="myimage:v2", available=2)], ("wait", "foo 2/3 available")),
    "foo only, may only resume: the successor was deleted: create the successor":
        (RESUMPTION, [old(annotate={object_meta.PARTNER_UID: None})],
         ("create", SUCCESSOR, None, V2)),
    "foo only, may only resume: foo already has the desired template: done":
        (RESUMPTION, [rc(image="myimage:v2")], ("done", "foo already has the desired template")),
    "both, may only resume: annotations of foo are missing":
        (RESUMPTION, [rc(), new(1)], ("annotate", "foo", None, "updating, 0 desired")),
    "foo only: annotations of a deleted successor are replaced":
        (V3, [old(2)],
         ("annotate", "foo", None, f"partner {name_of_successor(V3)}")),
    "successor only: foo is recreated first":
        (UPDATE, [new(2)], ("create", "foo", None, V2)),
    "successor only, next_name: the full size of the successor is restored":
        (WITH_NEXT_NAME, [new_bar(2)], ("scale", "bar", 2, 3)),
    "successor only, next_name: wait for available pods":
        (WITH_NEXT_NAME, [new_bar(3, available=1)], ("wait", "bar 1/3 available")),
    "successor only, next_name: annotations are removed":
        (WITH_NEXT_NAME, [new_bar(3)], ("annotate", "bar", "3 desired", "updated")),
    "successor only, next_name: desired template, no annotations: done":
        (WITH_NEXT_NAME, [rc("bar", image="myimage:v2")],
         ("done", "bar already has the desired template, and foo no longer exists")),
    "foo only: other controllers that select the same pods make no difference":
        (UPDATE, [rc(), rc("canary"), rc("apart", label="another")],
         ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "both: the successor is being deleted: wait":
        (UPDATE, [old(0), new(3, deletionTimestamp=NOW)], ("wait", f"{SUCCESSOR} is gone")),
    "both: another client deletes foo: wait for the deletion":
        (UPDATE, [old(2, deletionTimestamp=NOW), new(1)],
         ("wait", "foo is gone (another client deletes it)")),
    "both: finalizer blocks the deletion by another client: wait, and name the finalizer":
        (UPDATE, [old(2, deletionTimestamp=NOW, finalizers=["example.com/a"]), new(1)],
         ("wait", "foo is gone (another client deletes it; its finalizers: example.com/a)")),
    "both, next_name: finalizer blocks the deletion by the update: wait, and name the finalizer":
        (WITH_NEXT_NAME,
         [primary_of_bar(0, deletionTimestamp=NOW, finalizers=["example.com/a"]), new_bar(3)],
         ("wait", "foo is gone (its finalizers: example.com/a)")),
    "both: finalizer blocks the deletion by an update with next_name, another update "
    "requested: wait":
        (V3, [primary_of_bar(0, deletionTimestamp=NOW, finalizers=["example.com/a"]), new_bar(3)],
         ("wait", "foo is gone (its finalizers: example.com/a)")),
    "both: another client deletes foo after the last old pod: wait":
        (UPDATE, [old(0, deletionTimestamp=NOW), new(3)],
         ("wait", "foo is gone (another client deletes it)")),
    "both, next_name: another client deletes foo with pods: wait":
        (WITH_NEXT_NAME, [primary_of_bar(1, deletionTimestamp=NOW), new_bar(2)],
         ("wait", "foo is gone (another client deletes it)")),
    "both: uid of the successor missing on foo: add it":
        (UPDATE, [old(annotate={object_meta.PARTNER_UID: None}), new()],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "both: all annotations of foo missing: restore them":
        (UPDATE, [rc(), new()], ("annotate", "foo", None, "updating, 0 desired")),
    "both: the successor lacks the annotation desired: add it":
        (UPDATE, [old(), new(annotate={object_meta.DESIRED: None})],
         ("annotate", SUCCESSOR, None, "updating, 3 desired")),
    "both: both lack the annotation desired: add it from the original size":
        (UPDATE,
         [old(2, original=5, annotate={object_meta.DESIRED: None}),
          new(1, annotate={object_meta.DESIRED: None})],
         ("annotate", "foo", None, "updating, 0 desired")),
    "both: reversed rollback: foo is annotated first":
        (UPDATE, [old(1, 3), new(2, 0)], ("annotate", "foo", 3, "updating, 0 desired")),
    "both: reversed rollback: then the successor is annotated":
        (UPDATE, [old(1), new(2, 0)], ("annotate", SUCCESSOR, 0, "updating, 3 desired")),
    "both, scaling: the successor grows into the surge":
        (UPDATE, [old(3), new(0)], ("scale", SUCCESSOR, 0, 1)),
    "both, scaling: the successor grows by the number that foo has shrunk":
        (UPDATE, [old(1), new(1)], ("scale", SUCCESSOR, 1, 3)),
    "both, scaling: terminating pods of foo count":
        (UPDATE, [old(1, current=3), new(1, available=0)],
         ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
    "both, scaling: foo shrinks by the available pods of the successor":
        (UPDATE, [old(3), new(1)], ("scale", "foo", 3, 2)),
    "both, scaling: foo waits for unavailable pods of the successor":
        (UPDATE, [old(3), new(1, available=0)], ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
    "both, scaling: foo waits for the status of the successor":
        (UPDATE, [old(3), new(1, observed=False)], ("wait", f"{SUCCESSOR} 1/3 available, foo 3")),
    "both, scaling: the successor waits for the status of foo":
        (UPDATE, [old(1, observed=False), new(1, available=0)],
         ("wait", f"{SUCCESSOR} 0/3 available, foo 1")),
    "both: another client scaled foo down: its size is kept":
        (UPDATE, [old(1), new(0)], ("scale", SUCCESSOR, 0, 3)),
    "both: another client scaled foo up: its size is reduced":
        (UPDATE, [old(5, available=3), new(3)], ("scale", "foo", 5, 0)),
    "both: another client scaled the successor up: its size is reduced":
        (UPDATE, [old(3), new(5)], ("scale", SUCCESSOR, 5, 3)),
    "foo 0, successor not fully available: wait":
        (UPDATE, [old(0), new(3, available=2)], ("wait", f"{SUCCESSOR} 2/3 available, foo 0")),
    "foo 0, successor available: handover":
        (UPDATE, [old(0), new(3)], ("rename", "foo", V1, V2)),
    "foo 0, successor available: other controllers of the same pods make no "
    "difference":
        (UPDATE, [old(0), new(3), rc("canary")], ("rename", "foo", V1, V2)),
    "foo 0, successor available: wait while foo has a pod":
        (UPDATE, [old(0, current=1), new(3)], ("wait", f"{SUCCESSOR} 3/3 available, foo 1")),
    "foo 0, successor available, next_name: delete foo":
        (WITH_NEXT_NAME, [primary_of_bar(0), new_bar(3)], ("delete", "foo", 0, None)),
    "foo 0, desired 0: handover at once":
        (UPDATE, [old(0, original=0), new(0, 0, original=0)], ("rename", "foo", V1, V2)),
    "both: a concurrent successor without pods is deleted":
        (UPDATE, [old(), new(), new(name=CONCURRENT_SUCCESSOR, label="0123456789",
                                    image="myimage:v3")],
         ("delete", CONCURRENT_SUCCESSOR, 0, None)),
    "foo only: label value of an earlier update is replaced":
        (COLORED, [foo_with_color("0123456789")],
         ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "state restarted: the same image in a template that differs":
        (RESTART, [rc()], ("annotate", "foo", None, f"partner {name_of_successor(RESTART)}")),
}

ROLLBACKS = {
    "both: annotate foo with the full size":
        (ROLLBACK, [old(2), new(1)], ("annotate", "foo", 0, "rolling back, 3 desired")),
    "both: then annotate the successor with the size 0":
        (ROLLBACK, [old(2, 3), new(1)], ("annotate", SUCCESSOR, 3, "rolling back, 0 desired")),
    "both: foo grows into the surge":
        (ROLLBACK, [old(1, 3), new(2, 0)], ("scale", "foo", 1, 2)),
    "both: the successor shrinks by the available pods of foo":
        (ROLLBACK, [old(2, 3), new(2, 0)], ("scale", SUCCESSOR, 2, 1)),
    "both: the successor waits for unavailable pods of foo":
        (ROLLBACK, [old(2, 3, available=1), new(2, 0)],
         ("wait", "foo 1/3 available, " + SUCCESSOR + " 2")),
    "both: foo available and the successor without pods: delete the successor":
        (ROLLBACK, [old(3, 3), new(0, 0)], ("delete", SUCCESSOR, 0, None)),
    "the successor is being deleted: wait":
        (ROLLBACK, [old(3, 3), new(0, 0, deletionTimestamp=NOW)], ("wait", f"{SUCCESSOR} is gone")),
    "no successor: remove foo's annotations":
        (ROLLBACK, [old(3, 3)], ("annotate", "foo", "3 desired", "rolled_back")),
    "no successor, foo smaller: restore the size first":
        (ROLLBACK, [old(2)], ("restore", "foo", 2, 3)),
    "no successor: nothing changes after an ended rollback":
        (ROLLBACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})],
         ("done", "foo is already rolled back")),
    "next_name: foo available and bar without pods: delete bar":
        (ROLLBACK_WITH_NEXT_NAME, [primary_of_bar(3, 3), new_bar(0, 0)],
         ("delete", "bar", 0, None)),
}


@pytest.mark.parametrize("request_, items, expected", UPDATES.values(), ids=UPDATES)
def test_next_step_of_an_update(request_, items, expected):
    assert summary(decide(request_, *items)) == expected


@pytest.mark.parametrize("request_, items, expected", ROLLBACKS.values(), ids=ROLLBACKS)
def test_next_step_of_a_rollback(request_, items, expected):
    assert summary(decide(request_, *items)) == expected


COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a"
NOT_SUCCESSOR = "already exists and does not belong to this update"
DELETE = ("inspect it:\nkubectl -n default get rc {0} -o yaml\n"
          "delete it only if its pods are not needed, or set another next_name")
OWNER = {"ownerReferences": [{"kind": "DeploymentConfig", "name": "web", "controller": True}]}
KUBECTL_ANNOTATIONS = {"kubectl.kubernetes.io/next-controller-id": "bar",
                       "kubectl.kubernetes.io/original-replicas": "4"}

REMOVE_ANNOTATIONS = ("if not, remove the annotations that name bar:\nkubectl -n default annotate "
                      "rc foo "
                      f"{object_meta.PARTNER}- {object_meta.PARTNER_UID}- "
                      f"{object_meta.TAKEOVER}-")
UNCERTAIN_SIZE = ("its size at the start of the update is uncertain: an annotation of {} records "
                  "{}, and the controllers now request {} pods")
#: {0}: controller to scale, {1}: its new size, {2}: annotated controller, {3}: recorded size.
SCALE = ("if {3} is right:\nkubectl -n default scale rc {0} --replicas={1}\nif not:\nkubectl -n "
         "default annotate rc {2} "
         f"{object_meta.ORIGINAL}- {object_meta.DESIRED}-\nthen run the same task again")
CLOSED_TEMPLATE = (f"the priority class {CLOSED} closes its template, so failed pods "
                   "are not replaced: ")
WITHOUT_TAKEOVER = (f"{CLOSED_TEMPLATE}another client removed the annotation "
                    f"{object_meta.TAKEOVER} during a handover")
WITHOUT_TAKEOVER_OR_MIGRATING = (
    f"{CLOSED_TEMPLATE}its migration is not finished, or another client removed the annotation "
    f"{object_meta.TAKEOVER} during a handover")
MIGRATE = ("if its migration has begun, finish it first:\n"
           "ansible localhost -m baton.kubernetes.migrate_to_deployment -a name=foo\nif not:")
REPAIR = ("when its status counts all pods, remove priorityClassName from the template:\nkubectl "
          "-n default edit rc foo")


#: (request, controllers, what, why and next_command of the error).
UNDONE = ("its update was rolled back, or replaced by another update", "it has myimage:v1",
          "find out which client did this, and why; to begin the update again:\n"
          "run the whole release again")
REFUSALS = {
    "none: no such controller":
        (UPDATE, [], "there is no such ReplicationController", "", ""),
    "none: no such controller, with other controllers":
        (UPDATE, [rc("baz")], "there is no such ReplicationController", "", ""),
    "update: foo is controlled by another object":
        (UPDATE, [rc(**OWNER)],
         "it is controlled by DeploymentConfig/web, which would undo every step", "",
         "update DeploymentConfig/web instead"),
    "rollback: foo is controlled by another object":
        (ROLLBACK, [rc(**OWNER)],
         "it is controlled by DeploymentConfig/web, which would undo every step", "",
         "update DeploymentConfig/web instead"),
    "successor given as name: the command names the primary":
        (dataclasses.replace(UPDATE, name=SUCCESSOR), [old(), new()],
         "it is the temporary successor of foo: use name=foo", "",
         f"{COMMAND} 'name=foo image=myimage:v2'"),
    "both: foo has another uid":
        (UPDATE, [old(uid="another"), new()],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (it was created for an earlier foo, with uid uid of foo); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "both: the successor has another uid":
        (UPDATE, [old(), new(2, uid="another")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (foo names {SUCCESSOR} with uid uid of {SUCCESSOR}); "
         f"it has 2 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "both: the successor is the partner of another controller":
        (UPDATE, [old(), new(annotate={object_meta.PARTNER: "baz"})],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (it was created for baz); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "both: the successor has no annotations: another controller has the next_name":
        (WITH_NEXT_NAME, [rc(), rc("bar", 2, "other:v1")],
         f"bar {NOT_SUCCESSOR} (no annotation names foo); it has 2 replicas of other:v1", "",
         DELETE.format("bar")),
    "both: the successor has no annotations: another controller has the derived name":
        (UPDATE, [rc(), rc(SUCCESSOR, 2, "other:v1")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (no annotation names foo); "
         f"it has 2 replicas of other:v1", "", DELETE.format(SUCCESSOR)),
    "both, rollback: the successor has another uid":
        (ROLLBACK, [old(), new(uid="another")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (foo names {SUCCESSOR} with uid uid of {SUCCESSOR}); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "both: the successor's template is not the desired template: another update is in progress":
        (V3, [old(2), new(1)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{COMMAND} 'name=foo state=rolled_back'"),
    "foo only, may only resume: the update was rolled back":
        (RESUMPTION, [rc()], *UNDONE),
    "foo only, may only resume: the successor of a rollback was deleted":
        (RESUMPTION, [old(3, 3)], *UNDONE),
    "foo only, may only resume: the successor of another update was deleted":
        (dataclasses.replace(V3, resumes_only=True), [old(3)], *UNDONE),
    "both, may only resume: the update is being rolled back":
        (RESUMPTION, [old(2, 3), new(1, 0)], *UNDONE),
    "both: different next_name: another update is in progress":
        (WITH_NEXT_NAME, [old(2), new(1, available=0)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 0 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{COMMAND} 'name=foo state=rolled_back'"),
    "rollback, no successor: suggest an update to the old version":
        (ROLLBACK, [rc()], "there is no update in progress to roll back", "",
         f"{COMMAND} 'name=foo image=THE-EARLIER-IMAGE'"),
    "rollback, no successor, last update ended: no command from the record":
        (ROLLBACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("updated")})],
         "there is no update in progress to roll back", "",
         f"{COMMAND} 'name=foo image=THE-EARLIER-IMAGE'"),
    "rollback, no foo: not found":
        (ROLLBACK, [], "there is no such ReplicationController", "", ""),
    "rollback, successor only: not found, with the reason":
        (ROLLBACK, [new(3)], "there is no such ReplicationController",
         f"its update had begun: {SUCCESSOR} exists (myimage:v2)",
         f"{COMMAND} 'name=foo image=myimage:v2 container=web'"),
    "foo is being deleted":
        (UPDATE, [rc(deletionTimestamp=NOW)], "it is being deleted", "", ""),
    "foo is being deleted, with finalizers":
        (UPDATE, [rc(deletionTimestamp=NOW, finalizers=["example.com/a", "example.com/b"])],
         "it is being deleted",
         "finalizers of ReplicationController foo: example.com/a, example.com/b", REMOVE_FINALIZER),
    "foo is being deleted in the foreground":
        (UPDATE, [rc(deletionTimestamp=NOW, finalizers=["foregroundDeletion"])],
         "it is being deleted",
         "finalizers of ReplicationController foo: foregroundDeletion",
         "the garbage collector waits for these pods:\nkubectl -n default get pods -l app=foo"),
    "both, rollback: foo is being deleted":
        (ROLLBACK, [old(2, deletionTimestamp=NOW, finalizers=["example.com/a"]), new(1)],
         "it is being deleted",
         "finalizers of ReplicationController foo: example.com/a",
         f"{REMOVE_FINALIZER}\nthen:\n{COMMAND} 'name=foo image=myimage:v2 container=web'"),
    "foo's template is closed and the takeover annotation is deleted":
        (ROLLBACK, [closed_foo()], WITHOUT_TAKEOVER_OR_MIGRATING, "",
         f"{MIGRATE}\n{REPAIR}"),
    "foo's template is closed, the takeover annotation is deleted, and the successor exists":
        (ROLLBACK, [closed_foo(), new(3)], WITHOUT_TAKEOVER, "",
         f"kubectl -n default delete rc {SUCCESSOR} --cascade=orphan\n{REPAIR}"),
    "foo's template is closed, the takeover annotation is deleted, and its annotations name "
    "an unrelated controller: no deletion is suggested":
        (ROLLBACK,
         [closed_foo(annotations={object_meta.PARTNER: "bar",
                                  object_meta.PARTNER_UID: "uid of bar"}),
          rc("bar", 5)],
         WITHOUT_TAKEOVER_OR_MIGRATING, "", f"{MIGRATE}\n{REPAIR}"),
    "foo only: the user has set a value for the deployment label":
        (COLORED, [foo_with_color("blue")],
         "the label kubernetes.io/color=blue is already in use, and the update would change its "
         "value: set another deployment_label_key", "", ""),
    "successor only: another image":
        (V3, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{COMMAND} 'name=foo image=myimage:v2 container=web'"),
    "successor only: a restart":
        (RESTART, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{COMMAND} 'name=foo image=myimage:v2 container=web'"),
    "successor only: another next_name":
        (WITH_NEXT_NAME, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{COMMAND} 'name=foo image=myimage:v2 container=web'"),
    "successor only: started with another label key":
        (COLORED, [new(3)],
         "the update in progress was started with a deployment_label_key other than "
         "kubernetes.io/color", "",
         f"set deployment_label_key to the key in the selector of {SUCCESSOR}"),
    "both: another update is paused":
        (V3, [old(2, annotate={object_meta.PAUSED: "1"}), new(1)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it, with a higher pause_at or without pause_at\nor:\n{COMMAND} "
         "'name=foo state=rolled_back'"),
    "both: another update is being rolled back":
        (V3, [old(2, 3), new(1, 0)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"{COMMAND} 'name=foo state=rolled_back'"),
    "both: another update is in progress: its template has hostNetwork":
        (V3, [old(2), successor_with_host_network()],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{COMMAND} 'name=foo state=rolled_back'"),
    "kubectl rolling-update was interrupted after the deletion of foo: no deletion is suggested":
        (UPDATE, [rc("bar", 3, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
         "kubectl rolling-update was interrupted after it deleted this controller: bar has the "
         "pods, and was not renamed yet", "",
         "kubectl -n default annotate rc bar kubectl.kubernetes.io/update-source-id-\nthen update "
         "bar"),
    "an interrupted kubectl rolling-update":
        (UPDATE,
         [rc(annotations=KUBECTL_ANNOTATIONS),
          rc("bar", 1, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
         "kubectl rolling-update was interrupted, and bar has some of the pods: finish the update "
         "with the same kubectl command, or roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\n"
         "until kubectl -n default get rc foo -o jsonpath='{.status.availableReplicas}' "
         "| grep -qx 4; do sleep 1; done && kubectl -n default delete rc bar && "
         "kubectl -n default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "an interrupted kubectl rolling-update of a controller without pods: nothing to wait for":
        (UPDATE,
         [rc(annotations={**KUBECTL_ANNOTATIONS, object_meta.KUBECTL_ORIGINAL: "0"}),
          rc("bar", 1, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
         "kubectl rolling-update was interrupted, and bar has some of the pods: finish the update "
         "with the same kubectl command, or roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=0\nkubectl -n default delete rc bar\nkubectl "
         "-n default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "an interrupted kubectl rolling-update, two controllers name foo: no deletion is suggested":
        (UPDATE,
         [rc(annotations=KUBECTL_ANNOTATIONS),
          *(rc(name, 1, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})
            for name in ("bar", "payments"))],
         "kubectl rolling-update was interrupted, and bar, payments has some of the pods: finish "
         "the update with the same kubectl command, or roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\nkubectl -n default get rc bar "
         "payments\nkubectl -n default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "an interrupted kubectl rolling-update, only foo is annotated: no deletion is suggested":
        (UPDATE, [rc(annotations=KUBECTL_ANNOTATIONS), rc("bar", 1)],
         "kubectl rolling-update was interrupted, and bar has some of the pods: finish the update "
         "with the same kubectl command, or roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\nkubectl -n default get rc bar\nkubectl -n "
         "default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "rollback, without next_name, of an update with next_name: annotations are no proof":
        (ROLLBACK, [primary_of_bar(3, 3), new_bar(0, 0)],
         f"bar {NOT_SUCCESSOR} (its name is neither the next_name of this task, nor foo "
         "plus the value of the deployment label); it has 0 replicas of "
         "myimage:v2", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif bar was the next_name of "
         "this update:\n"
         f"{COMMAND} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_ANNOTATIONS}"),
    "rollback: foo's annotations name another controller":
        (ROLLBACK, [primary_of_bar(3, 3), rc("bar", 5, "other:v1")],
         f"bar {NOT_SUCCESSOR} (its selector has no deployment label); it has 5 replicas of "
         "other:v1", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif bar was the next_name of "
         "this update:\n"
         f"{COMMAND} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_ANNOTATIONS}"),
    "rollback: foo and another controller name each other":
        (ROLLBACK,
         [primary_of_bar(3, 3), rc("bar", 5, "other:v1", annotations=annotations_of(new_bar(5)))],
         f"bar {NOT_SUCCESSOR} (its selector has no deployment label); it has 5 replicas of "
         "other:v1", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif bar was the next_name of "
         "this update:\n"
         f"{COMMAND} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_ANNOTATIONS}"),
    "without next_name, foo records only the uid of the successor: the command has its name":
        (UPDATE, [primary_of_bar(2, annotate={**UID_OF_BAR, object_meta.PARTNER: None}),
                  new_bar(1)],
         f"bar {NOT_SUCCESSOR} (its name is neither the next_name of this task, nor foo plus the "
         "value of the deployment label); it has 1 replicas of myimage:v2", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif bar was the next_name of "
         "this update:\n"
         f"{COMMAND} 'name=foo next_name=bar image=myimage:v2'\n{REMOVE_ANNOTATIONS}"),
    "foo records the uid of the successor with another name: the name is removed":
        (WITH_NEXT_NAME, [primary_of_bar(2, annotate={**UID_OF_BAR, object_meta.PARTNER: "absent"}),
                          new_bar(1)],
         f"bar {NOT_SUCCESSOR} (foo names absent with uid uid of bar); it has 1 replicas of "
         "myimage:v2", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif bar is the successor in "
         "this update, remove the other name:\n"
         f"kubectl -n default annotate rc foo {object_meta.PARTNER}-\n"
         "then run the same task again"),
    "the size in foo's annotation is too large":
        (UPDATE, [old(2, original=300, image="myimage:v2")],
         UNCERTAIN_SIZE.format("foo", 300, 2), "",
         SCALE.format("foo", 300, "foo", 300)),
    "rollback, the size in foo's annotation is too large":
        (ROLLBACK, [old(2, original=300)], UNCERTAIN_SIZE.format("foo", 300, 2), "",
         SCALE.format("foo", 300, "foo", 300)),
    "first step with a larger size in the annotation of foo":
        (V3, [rc(replicas=2, annotations={object_meta.ORIGINAL: "300"})],
         UNCERTAIN_SIZE.format("foo", 300, 2), "", SCALE.format("foo", 300, "foo", 300)),
    "foo deleted, and the size in the successor's annotation is too large":
        (UPDATE, [new(1)], UNCERTAIN_SIZE.format(SUCCESSOR, 3, 1), "",
         SCALE.format(SUCCESSOR, 3, SUCCESSOR, 3)),
    "different sizes in the annotations of both, none plausible":
        (UPDATE, [old(2, original=300), new(1, original=40)],
         UNCERTAIN_SIZE.format("foo", 300, 3), "",
         SCALE.format("foo", 299, "foo", 300)),
    "an interrupted kubectl rolling-update with an invalid size":
        (UPDATE,
         [rc(annotations={**KUBECTL_ANNOTATIONS, object_meta.KUBECTL_ORIGINAL: "$(touch pwned)"}),
          rc("bar", 1)],
         "kubectl rolling-update was interrupted, and bar has some of the pods: finish the update "
         "with the same kubectl command, or roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=3\nkubectl -n default get rc bar\nkubectl -n "
         "default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "another update to an invalid image is in progress: no command contains it":
        (V3, [old(2), new(1, image="$(touch pwned)\x1b[2J")],
         f"another update is in progress: to $(touch pwned)\\x1b[2J ({SUCCESSOR}, 1 of 1 "
         "available); finish it or roll it back "
         "first", "", f"run the task that began it\nor:\n{COMMAND} 'name=foo state=rolled_back'"),
}


@pytest.mark.parametrize("request_, items, what, why, next_command", REFUSALS.values(),
                         ids=REFUSALS)
def test_refusal(request_, items, what, why, next_command):
    with pytest.raises(RolloutError) as error_info:
        decide(request_, *items)

    error = error_info.value
    assert (error.what, error.where) == (what, f"ReplicationController default/{request_.name}")
    assert (error.why, error.next_command) == (why, next_command)
    assert isinstance(error, NoSuchController) == (what == "there is no such ReplicationController")


#: A kubectl that reports no number of available pods, then 3, then 4.
KUBECTL_WITH_GROWING_STATUS = """#!/bin/sh
echo "$3" >> log
[ "$3" = get ] || exit 0
case "$(grep -c get log)" in 1) ;; 2) printf 3 ;; *) printf 4 ;; esac
"""


def test_pods_of_an_interrupted_kubectl_are_deleted_after_a_wait(tmp_path):
    next_command = REFUSALS["an interrupted kubectl rolling-update"][-1]
    for name, script in (("kubectl", KUBECTL_WITH_GROWING_STATUS), ("sleep", "#!/bin/sh\n")):
        (tmp_path / name).write_text(script, "utf-8")
        (tmp_path / name).chmod(0o755)

    subprocess.run(["sh"], input=next_command, text=True, cwd=tmp_path, check=True, timeout=60,
                   env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    assert (tmp_path / "log").read_text("utf-8").split() == [
        "scale", "get", "get", "get", "delete", "annotate"]


def with_pods(observation, cluster):
    """Return the observation, with the pods if the next decision depends on them."""
    return (dataclasses.replace(observation, pods=cluster.live_pods({"app": "foo"}))
            if handover.depends_on_pod_owners(observation) else observation)


def states_of(request, *items):
    """Yield (controllers, decision) for each decision of a task, in a cluster that settles at once.

    The last pair is (final controllers, error or None).
    """
    cluster = ClusterModel(items)
    while True:
        items = list(cluster.items.values())
        try:
            decision = plan(request, with_pods(observe(request, *items), cluster))
        except RolloutError as error:
            yield items, error
            return
        yield items, decision
        if isinstance(decision, Step):
            assert cluster.write(decision.write)
        cluster.settle()
        if isinstance(decision, Done) or (isinstance(decision, Step) and decision.ends_task):
            yield list(cluster.items.values()), None
            return


def run_task(request, *items):
    """Return (summaries of the decisions, final controllers by name) of a task.

    The message of an error follows the last summary.
    """
    *states, (items, error) = states_of(request, *items)
    summaries = [summary(decision) for _items, decision in states]
    return (summaries + ([error.what] if error is not None else []),
            {item["metadata"]["name"]: item for item in items})


def annotations(items, name="foo"):
    return items[name]["metadata"]["annotations"]


def test_steps_of_an_update():
    summaries, items = run_task(UPDATE, rc(replicas=2))

    assert summaries == [
        ("annotate", "foo", None, f"partner {SUCCESSOR}"),
        ("create", SUCCESSOR, None, V2),
        ("annotate", "foo", 0, "updating, 0 desired"),
        ("scale", SUCCESSOR, 0, 1), ("scale", "foo", 2, 1), ("scale", SUCCESSOR, 1, 2),
        ("scale", "foo", 1, 0),
        ("rename", "foo", V1, V2),
        ("annotate", SUCCESSOR, None, "no more pods are created for it"),
        ("hand over", SUCCESSOR, 2, "foo"),
        ("delete", SUCCESSOR, 0, None),
        ("annotate", "foo", "taking over", "updated"),
    ]
    assert items.keys() == {"foo"}
    assert annotations(items) == {object_meta.LAST_ROLLOUT: final_record(UPDATE)}


def test_steps_of_an_update_with_next_name():
    summaries, items = run_task(WITH_NEXT_NAME, rc(replicas=1))

    assert summaries[2:] == [
        ("annotate", "foo", 0, "updating, 0 desired"),
        ("scale", "bar", 0, 1), ("scale", "foo", 1, 0),
        ("delete", "foo", 0, None),
        ("annotate", "bar", "1 desired", "updated"),
    ]
    assert items.keys() == {"bar"}
    assert annotations(items, "bar") == {object_meta.LAST_ROLLOUT: final_record(WITH_NEXT_NAME)}


def test_steps_of_a_rollback():
    summaries, items = run_task(ROLLBACK, old(1), new(2))

    assert summaries == [
        ("annotate", "foo", 0, "rolling back, 3 desired"),
        ("annotate", SUCCESSOR, 3, "rolling back, 0 desired"),
        ("scale", "foo", 1, 2), ("scale", SUCCESSOR, 2, 1), ("scale", "foo", 2, 3),
        ("scale", SUCCESSOR, 1, 0),
        ("delete", SUCCESSOR, 0, None),
        ("annotate", "foo", "3 desired", "rolled_back"),
        ("done", "foo is already rolled back"),
    ]
    assert items.keys() == {"foo"}
    assert annotations(items) == {
        object_meta.LAST_ROLLOUT: record("rolled_back", "myimage:v2", "myimage:v1",
                                         template=identity.digest(template()))}


@pytest.mark.parametrize("request_", [UPDATE, WITH_NEXT_NAME, RESTART],
                         ids=["handover", "next_name", "restart"])
def test_reversed_update_and_rollback_can_be_resumed(request_):
    rollback = dataclasses.replace(request_, state=State.ROLLED_BACK)
    _summaries, items = run_task(request_, rc())
    cluster = ClusterModel([rc()])
    for request, steps in ((request_, 6), (rollback, 4), (request_, 4), (rollback, 2),
                           (request_, 0)):
        for _step in range(steps):
            decision = plan(request, with_pods(observe(request, *cluster.items.values()), cluster))
            assert not isinstance(decision, Step) or cluster.write(decision.write)
            cluster.settle()

    _summaries, resumed_items = run_task(request_, *cluster.items.values())

    assert {name: item["spec"] for name, item in resumed_items.items()} == {
        name: item["spec"] for name, item in items.items()}
    assert {name: annotations(resumed_items, name) for name in resumed_items} == {
        name: annotations(items, name) for name in items}


def test_rollback_during_the_handover_finishes_the_handover():
    items_after_rename = apply(decide(UPDATE, old(0), new(3)), old(0), new(3)).values()

    summaries, items = run_task(ROLLBACK, *items_after_rename)

    assert summaries[-2:] == [
        ("annotate", "foo", "taking over", "updated"),
        "there is no update in progress to roll back",
    ]
    assert annotations(items) == {object_meta.LAST_ROLLOUT: final_record(UPDATE)}


def test_update_to_another_image_during_the_handover_finishes_the_handover():
    items_after_rename = apply(decide(UPDATE, old(0), new(3)), old(0), new(3)).values()

    summaries, items = run_task(V3, *items_after_rename)

    assert ("annotate", "foo", "taking over", "updated") in summaries
    assert items["foo"]["spec"]["template"]["spec"] == template("myimage:v3")["spec"]
    assert annotations(items) == {object_meta.LAST_ROLLOUT: final_record(V3, "myimage:v2",
                                                                         "myimage:v3")}


def test_update_without_pods():
    summaries, items = run_task(UPDATE, rc(replicas=0))

    assert [step[0] for step in summaries] == ["annotate", "create", "annotate", "rename",
                                               "annotate", "delete", "annotate"]
    assert (items["foo"]["spec"]["replicas"] == 0
            and items["foo"]["spec"]["template"]["spec"] == template("myimage:v2")["spec"])


def test_restart_changes_only_the_template():
    summaries, items = run_task(RESTART, rc(replicas=1))

    restarted_template = items["foo"]["spec"]["template"]
    assert restarted_template["spec"] == template("myimage:v1")["spec"]
    assert set(restarted_template["metadata"]["annotations"]) == {object_meta.RESTART}
    assert summaries[-1] == ("annotate", "foo", "taking over", "updated")


# Writes of the steps


def test_first_step_annotates_partner_and_size():
    items = apply(decide(UPDATE, rc(replicas=5)), rc(replicas=5))

    assert annotations(items) == {object_meta.PARTNER: SUCCESSOR, object_meta.DESIRED: "0",
                                  object_meta.ORIGINAL: "5"}


def test_new_update_drops_the_deleted_partner():
    items = apply(decide(V3, old(2)), old(2))

    own_annotations = {object_meta.PARTNER: name_of_successor(V3), object_meta.DESIRED: "0",
                       object_meta.ORIGINAL: "3"}
    assert annotations(items) == own_annotations


def test_new_update_takes_the_size_set_by_another_client():
    primary = old(5, original=3, annotate={object_meta.PARTNER_UID: None})

    items = apply(decide(UPDATE, primary), primary)

    assert annotations(items)[object_meta.ORIGINAL] == "5"


def test_successor_copies_only_the_metadata_of_the_user():
    primary = old(2, original=2, annotate={
        object_meta.PARTNER_UID: None, object_meta.LAST_ROLLOUT: record("updated"), "note": "kept",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }, labels={"app": "foo", "tier": "front"}, finalizers=["wait"],
        ownerReferences=[{"kind": "App", "name": "app"}])
    primary["spec"]["minReadySeconds"] = 7

    decision = decide(UPDATE, primary)

    own_annotations = {object_meta.PARTNER: "foo", object_meta.PARTNER_UID: "uid of foo",
                       object_meta.DESIRED: "2", object_meta.ORIGINAL: "2",
                       object_meta.LAST_ROLLOUT: record("updating", request=UPDATE.fingerprint)}
    assert decision.write == Create({
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {
            "name": SUCCESSOR,
            "namespace": "default",
            "labels": {"app": "foo", "tier": "front", object_meta.DEPLOYMENT_LABEL: LABEL},
            "annotations": {"note": "kept", **own_annotations},
        },
        "spec": {
            "replicas": 0,
            "selector": {"app": "foo", object_meta.DEPLOYMENT_LABEL: LABEL},
            "template": template("myimage:v2", LABEL),
            "minReadySeconds": 7,
        },
    })


def successor_manifest(request, primary=None, **facts):
    primary = primary or rc()
    annotated_items = apply(decide(request, primary, **facts), primary).values()
    return decide(request, *annotated_items, **facts).write.manifest


def test_min_ready_seconds_of_the_request_take_precedence():
    assert successor_manifest(
        dataclasses.replace(UPDATE, min_ready_seconds=0))["spec"]["minReadySeconds"] == 0


def test_deployment_label_key_is_used_in_labels_and_selector():
    request = dataclasses.replace(UPDATE, label_key="example.com/color")

    successor = successor_manifest(request)

    assert successor["spec"]["selector"] == successor["spec"]["template"]["metadata"][
        "labels"] == successor["metadata"]["labels"]
    assert successor["spec"]["selector"] == {"app": "foo", "example.com/color": LABEL}


@pytest.mark.parametrize("selector, template_labels, expected", [
    ({"app": "foo"}, {"app": "foo", "version": "v1"}, {"app": "foo"}),
    ({"app": "foo", "version": "v2"}, {"app": "foo", "version": "v1"},
     {"app": "foo", "version": "v1"}),
    ({"app": "foo", "version": "v2"}, {"app": "foo"}, {"app": "foo"}),
    ({"version": "v2"}, {"app": "foo"}, {}),
    ({"app": "foo", object_meta.DEPLOYMENT_LABEL: "0123456789"}, {"app": "foo"}, {"app": "foo"}),
    ({"app": "foo", "example.com/color": "0123456789"},
     {"app": "foo", "example.com/color": "9876543210"},
     {"app": "foo", "example.com/color": "9876543210"}),
], ids=["same labels", "other value", "missing label", "only missing labels", "deployment label",
        "earlier label key"])
def test_selector_matches_the_template_of_an_earlier_revision(selector, template_labels, expected):
    primary, revision_template = rc(), template("myimage:v2")
    primary["spec"]["selector"] = primary["spec"]["template"]["metadata"]["labels"] = selector
    revision_template["metadata"]["labels"] = template_labels
    request = Request("foo", state=State.ROLLED_BACK, to_revision=1,
                      revision_template=revision_template)

    spec = successor_manifest(request, primary, desired_template=revision_template)["spec"]

    label = spec["template"]["metadata"]["labels"][object_meta.DEPLOYMENT_LABEL]
    assert spec["selector"] == {**expected, object_meta.DEPLOYMENT_LABEL: label}


def test_label_conflict_with_foo_is_resolved_deterministically():
    selectors = [successor_manifest(UPDATE, rc(label=LABEL))["spec"]["selector"]
                 for _round in range(2)]
    values = {selector[object_meta.DEPLOYMENT_LABEL] for selector in selectors}

    assert len(values) == 1
    assert values.pop().startswith(f"{LABEL}-")


DEFINITION = {
    "kind": "ReplicationController",
    "metadata": {"name": "bar", "labels": {"tier": "back"},
                 "annotations": {"by": "hand", object_meta.DESIRED: "9"}},
    "spec": {"replicas": 8, "minReadySeconds": 4, "template": template("myimage:v2")},
}


def test_definition_with_metadata_and_selector():
    definition = {**DEFINITION, "spec": {**DEFINITION["spec"], "selector": {"app": "bar"}}}
    definition["spec"]["template"] = {**template("myimage:v2"),
                                      "metadata": {"labels": {"app": "bar"}}}
    request = Request("foo", next_name="bar", definition=definition)

    successor = successor_manifest(request, desired_template=definition["spec"]["template"])

    label = successor["spec"]["selector"].pop(object_meta.DEPLOYMENT_LABEL)
    assert successor["metadata"]["labels"] == {"tier": "back", object_meta.DEPLOYMENT_LABEL: label}
    assert (successor["metadata"]["annotations"]["by"] == "hand"
            and successor["metadata"]["annotations"][object_meta.DESIRED] == "3")
    assert (successor["spec"]["replicas"], successor["spec"]["minReadySeconds"]) == (0, 4)
    assert successor["spec"]["selector"] == {"app": "bar"}


def test_definition_without_selector():
    successor = successor_manifest(Request("foo", next_name="bar", definition=DEFINITION),
                                   desired_template=DEFINITION["spec"]["template"])

    assert successor["spec"]["selector"] == successor["spec"]["template"]["metadata"]["labels"]
    assert successor["spec"]["selector"].keys() == {"app", object_meta.DEPLOYMENT_LABEL}


def test_definition_with_the_selector_of_foo_is_refused():
    definition = {**DEFINITION, "spec": {**DEFINITION["spec"], "selector": {"app": "foo"}}}

    with pytest.raises(RolloutError,
                       match="the definition's selector app=foo does not differ from the selector "
                             "of foo"):
        decide(Request("foo", next_name="bar", definition=definition), rc(),
               desired_template=definition["spec"]["template"])


def test_annotations_of_a_rollback_on_both_controllers():
    cluster = ClusterModel([rc(), new(1)])
    for _step in range(2):
        decision = decide(ROLLBACK, *cluster.items.values())
        assert cluster.write(decision.write)

    common = {object_meta.ORIGINAL: "3"}
    assert annotations(cluster.items) == {
        **common, object_meta.PARTNER: SUCCESSOR, object_meta.PARTNER_UID: f"uid of {SUCCESSOR}",
        object_meta.DESIRED: "3",
        object_meta.SUCCESSOR_HASH: handover.stored_template_hash(template("myimage:v2", LABEL)),
        object_meta.LAST_ROLLOUT: record("rolling back", "myimage:v2", "myimage:v1")}
    assert annotations(cluster.items, SUCCESSOR) == {
        **common, object_meta.PARTNER: "foo", object_meta.PARTNER_UID: "uid of foo",
        object_meta.DESIRED: "0", object_meta.LAST_ROLLOUT: record("updating")}
    assert summary(decide(ROLLBACK, *cluster.items.values()))[0] == "scale"


@pytest.mark.parametrize("free_bytes, action", [(1100, "annotate"), (500, "error"), (0, "error")])
def test_too_large_annotations_are_refused_before_the_first_write(free_bytes, action):
    """The API server accepts 256 KiB of annotations, including their keys."""
    primary = rc(annotations={"note": "x" * (256 * 1024 - free_bytes - len("note"))})

    if action == "error":
        with pytest.raises(RolloutError,
                           match="its annotations leave no room for the annotations of the update"):
            decide(UPDATE, primary)
    else:
        assert summary(decide(UPDATE, primary))[0] == action


MIRROR_IMAGE = "mirror.example.com/myimage:v2"


def with_mirror_image(item):
    """Return the manifest as changed by an admission webhook that replaces the registry."""
    item["spec"]["template"]["spec"]["containers"][0]["image"] = MIRROR_IMAGE
    return item


def hash_annotation(image):
    """Return the annotation of foo with the hash of the successor's template."""
    return {object_meta.SUCCESSOR_HASH: handover.stored_template_hash(template(image, LABEL))}


UNKNOWN_UID = {object_meta.PARTNER_UID: None}
CREATED_BY_THIS_TASK = {"is_created_by_this_task": True}
DRY_RUN_WITH_MIRROR = {"dry_run_template": template(MIRROR_IMAGE, LABEL)}
DRY_RUN_UNCHANGED = {"dry_run_template": template("myimage:v2", LABEL)}


@pytest.mark.parametrize("annotations, pods, facts, expected", [
    (hash_annotation(MIRROR_IMAGE), 1, DRY_RUN_UNCHANGED, ("scale", "foo", 3, 2)),
    (hash_annotation(MIRROR_IMAGE), 0, DRY_RUN_WITH_MIRROR, ("scale", SUCCESSOR, 0, 1)),
    (hash_annotation(MIRROR_IMAGE), 0, CREATED_BY_THIS_TASK, ("scale", SUCCESSOR, 0, 1)),
    (UNKNOWN_UID, 0, DRY_RUN_WITH_MIRROR, ("annotate", "foo", 0, "updating, 0 desired")),
    (UNKNOWN_UID, 0, CREATED_BY_THIS_TASK, ("annotate", "foo", 0, "updating, 0 desired")),
], ids=["pods created from the template", "result of a dry run", "created by this task",
        "unknown uid, result of a dry run", "unknown uid, created by this task"])
def test_a_successor_changed_by_admission_matches_the_request(annotations, pods, facts, expected):
    assert summary(decide(UPDATE, old(annotate=annotations), with_mirror_image(new(pods)),
                          **facts)) == expected


@pytest.mark.parametrize("annotations, pods, facts", [
    (hash_annotation("myimage:v2"), 1, DRY_RUN_UNCHANGED),
    (hash_annotation("myimage:v2"), 0, CREATED_BY_THIS_TASK),
    (hash_annotation(MIRROR_IMAGE), 0, DRY_RUN_UNCHANGED),
    (UNKNOWN_UID, 0, DRY_RUN_UNCHANGED), (UNKNOWN_UID, 1, DRY_RUN_UNCHANGED), (UNKNOWN_UID, 1, {}),
], ids=["edited", "edited after the creation by this task",
        "named by foo's annotation, without pods", "created before the update",
        "created before the update, with pods", "no evidence"])
def test_an_edited_or_forged_successor_is_another_update(annotations, pods, facts):
    with pytest.raises(RolloutError,
                       match=r"another update is in progress: to mirror\.example\.com/myimage:v2"):
        decide(UPDATE, old(annotate=annotations), with_mirror_image(new(pods)), **facts)


@pytest.mark.parametrize("request_, name", [(UPDATE, "foo"), (WITH_NEXT_NAME, "bar")],
                         ids=["after the handover", "next_name"])
def test_ended_update_changed_by_admission_needs_confirmation(request_, name):
    item = with_mirror_image(rc(name, annotations={
        object_meta.LAST_ROLLOUT: final_record(request_, after=MIRROR_IMAGE)}))

    assert summary(decide(request_, item, is_confirmed=True))[0] == "done"
    with contextlib.suppress(RolloutError):
        assert summary(decide(request_, item))[0] == "annotate", (
            "the annotation alone must not confirm the request")
    another_request = dataclasses.replace(request_, images={"": "myimage:v3"})
    with contextlib.suppress(RolloutError):
        assert summary(decide(another_request, item))[0] == "annotate"
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "myimage:by-hand"
    with contextlib.suppress(RolloutError):
        assert summary(decide(request_, item))[0] == "annotate"


def test_repeated_restart_starts_again():
    primary = rc(annotations={object_meta.LAST_ROLLOUT: final_record(RESTART, after="myimage:v1")})

    assert summary(decide(RESTART, primary))[0] == "annotate"


def test_successor_changed_by_admission_without_a_primary_needs_confirmation():
    successor = with_mirror_image(new(3))
    successor["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = record(
        "updating", request=UPDATE.fingerprint)

    assert summary(decide(UPDATE, successor, is_confirmed=True))[:2] == ("create", "foo")
    for request in (UPDATE, V3):
        with pytest.raises(RolloutError, match="another update is in progress"):
            decide(request, successor)


def test_successor_is_recognized_by_its_hash_if_dry_runs_differ():
    """A timestamp added by admission must not turn a rerun into another update."""
    request = Request("foo", template={"spec": {"priority": 1}})
    name, label = expected_successor(request, Controller.from_api(rc()))
    annotations = {object_meta.PARTNER: name, object_meta.PARTNER_UID: f"uid of {name}",
                   object_meta.SUCCESSOR_HASH: handover.stored_template_hash(
                       template("myimage:v2", label))}

    decision = decide(request, old(annotate=annotations), new(1, name=name, label=label),
                      desired_template=template(
                          priority=1, schedulerName="another at each dry run"))

    assert summary(decision) == ("scale", "foo", 3, 2)


@pytest.mark.parametrize("surge, unavailable, expected", [
    (Size(25, percent=True), Size(0), ("scale", SUCCESSOR, 0, 25)),
    (Size(0), Size(25, percent=True), ("scale", "foo", 100, 75)),
    (Size(0), Size(1, percent=True), ("scale", "foo", 100, 99)),
    (Size(200), Size(0), ("scale", SUCCESSOR, 0, 100)),
], ids=["surge 25%", "unavailable 25%", "unavailable 1%", "surge above the size"])
def test_first_scale_step_is_as_large_as_allowed(surge, unavailable, expected):
    request = dataclasses.replace(UPDATE, max_surge=surge, max_unavailable=unavailable)

    assert summary(decide(request, old(100, original=100), new(0, 100, original=100))) == expected


# Preconditions of the steps

PRIORITY_PATH = "/spec/template/spec/priorityClassName"
MISSING_ANNOTATIONS = st.fixed_dictionaries({}, optional={
    key: st.none() for key in object_meta.UPDATE_ANNOTATIONS[:4]})
SIZE = st.integers(0, 4)
ANNOTATED = {"goal": st.sampled_from([0, 3]), "annotate": MISSING_ANNOTATIONS,
             "observed": st.booleans()}
PRIMARY = st.one_of(st.builds(rc, replicas=SIZE),
                    st.builds(old, SIZE, available=SIZE, current=SIZE, **ANNOTATED))
ANY_SUCCESSOR = st.none() | st.builds(new, SIZE, available=SIZE, current=SIZE, **ANNOTATED)
HANDOVER = st.sampled_from([items for items, _decision in states_of(UPDATE, old(0), new(3))])


@given(st.sampled_from([UPDATE, ROLLBACK, RESTART]), HANDOVER | st.tuples(PRIMARY, ANY_SUCCESSOR))
def test_each_write_is_rejected_after_a_change_of_the_object(request_, items):
    """Each write tests uid and annotations. A write that depends on the size tests it, too."""
    items = [item for item in items if item]
    try:
        decision = decide(request_, *items)
    except RolloutError:
        return
    if not isinstance(decision, Step) or isinstance(decision.write, Create):
        return
    for change in conflicting_changes(decision):
        changed_items = [change(item) if item["metadata"]["name"] == decision.name else item
                         for item in items]

        assert not ClusterModel(changed_items).write(decision.write), decision


def conflicting_changes(step):
    """Yield changes of an object after which the API server must reject the step."""
    yield lambda item: with_metadata(item, uid="another")
    if isinstance(step.write, Delete):
        yield lambda item: with_metadata(item, resourceVersion="2")
        return
    assert isinstance(step.write, Patch)
    written_paths = {operation["path"] for operation in step.write.operations
                     if operation["op"] != "test"}
    if written_paths & {"/spec/replicas", "/spec/selector", "/spec/template"}:
        yield lambda item: {**item,
                            "spec": {**item["spec"], "replicas": item["spec"]["replicas"] + 1}}
    if any(operation["path"] == PRIORITY_PATH and operation.get("value") != CLOSED
           for operation in step.write.operations if operation["op"] != "test"):
        yield lambda item: {**item,
                            "spec": {**item["spec"],
                                     "template": template(priorityClassName="another")}}
    for key in object_meta.UPDATE_ANNOTATIONS:
        yield lambda item, key=key: with_metadata(
            item,
            annotations={**item["metadata"]["annotations"], key: "changed by another client"})


def with_metadata(item, **fields):
    return {**item, "metadata": {**item["metadata"], **fields}}


def test_scale_step_has_preconditions_on_uid_size_and_annotations():
    assert patch_tests(decide(UPDATE, old(3), new(0))) == {
        "/metadata/uid": f"uid of {SUCCESSOR}",
        "/spec/replicas": 0,
        **{"/metadata/annotations/"
           + key.replace("/", "~1"): new()["metadata"]["annotations"].get(key)
           for key in object_meta.UPDATE_ANNOTATIONS},
    }


@pytest.mark.parametrize("request_, items, preconditions", [
    (WITH_NEXT_NAME, [primary_of_bar(0), new_bar(3)],
     {"uid": "uid of foo", "resourceVersion": "1"}),
    (ROLLBACK, [old(3, 3), new(0, 0)], {"uid": f"uid of {SUCCESSOR}", "resourceVersion": "1"}),
], ids=["foo with next_name", "successor after a rollback"])
def test_deletion_has_preconditions(request_, items, preconditions):
    assert decide(request_, *items).write.preconditions == preconditions


# Suggested commands


def test_request_after_an_ended_update_suggests_the_new_name():
    with pytest.raises(NoSuchController,
                       match=r"it no longer exists, and bar has a different template "
                             r"\(myimage:v2\)") as error_info:
        decide(dataclasses.replace(V3, next_name="bar"), rc("bar", image="myimage:v2"))

    assert error_info.value.next_command == f"{COMMAND} 'name=bar image=myimage:v3'"


def test_rollback_command_has_the_next_name_of_the_update():
    with pytest.raises(RolloutError) as error_info:
        decide(V3, primary_of_bar(2), new_bar(1))

    assert "next_name=bar" in error_info.value.next_command


def test_command_names_the_primary_instead_of_the_successor():
    request = build_request(name=SUCCESSOR, images={"web": "myimage:v2", "side": "side:v2"})

    with pytest.raises(RolloutError) as error_info:
        plan(request, observe(dataclasses.replace(request, state=State.ROLLED_BACK), old(), new()))

    arguments = error_info.value.next_command.partition("-a ")[2].strip("'")
    assert json.loads(arguments)["name"] == "foo"


def test_unreadable_annotations_are_reported_and_replaced():
    unreadable = {object_meta.ORIGINAL: "9" * 5000, object_meta.DESIRED: "[" * 5000,
                  object_meta.LAST_ROLLOUT: "[7]", object_meta.PAUSED: "two"}
    cluster, lines = Cluster(rc(annotations=unreadable)), []

    result = cluster.run(UPDATE, print_line=lines.append)

    messages = {f"the annotation {key} of foo is not readable, and is ignored"
                for key in unreadable}
    assert messages <= set(result["warnings"])
    assert {f"warning: {message}" for message in messages} == set(
        lines[:len(messages)]), "the warnings must precede the first step"
    assert cluster.controllers()["foo"].images == V2 and cluster.controllers()["foo"].replicas == 3


# Autoscalers and PodDisruptionBudgets


def scaler(stored_settings=None):
    """Return a HorizontalPodAutoscaler, frozen if it has stored settings."""
    annotations = ({object_meta.FROZEN: identity.canonical(stored_settings)} if stored_settings
                   else {})
    behavior = {"behavior": {direction: {"selectPolicy": "Disabled"}
                             for direction in ("scaleUp", "scaleDown")}} if stored_settings else {}
    return {"metadata": {"name": "hpa", "uid": "u", "annotations": annotations},
            "spec": {"minReplicas": 2, "maxReplicas": 9, **behavior}}


FROZEN_HPA = scaler({"behavior": None, "minReplicas": 2})


@pytest.mark.parametrize("request_, items, autoscaler, expected", [
    (UPDATE, [rc()], scaler(), ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    (UPDATE, [old(), new()], scaler(),
     ("freeze", "hpa", "at work", "does nothing during the update")),
    (UPDATE, [old(), new()], FROZEN_HPA, ("scale", SUCCESSOR, 0, 1)),
    (UPDATE, [old(0), new(3)], scaler(),
     ("freeze", "hpa", "at work", "does nothing during the update")),
    (UPDATE, [old(image="myimage:v2")], FROZEN_HPA, ("restore", "hpa", "does nothing", "at work")),
    (UPDATE, [old(image="myimage:v2")], scaler(),
     ("annotate", "foo", "0 desired", "no update in progress")),
    (UPDATE, [rc(image="myimage:v2")], scaler(), ("done", "foo already has the desired template")),
    (ROLLBACK, [old(2, 3), new(1, 0)], FROZEN_HPA, ("scale", "foo", 2, 3)),
    (dataclasses.replace(UPDATE, autoscaler="ignore"), [old(), new()], scaler(),
     ("scale", SUCCESSOR, 0, 1)),
    (dataclasses.replace(UPDATE, autoscaler="refuse"), [rc(image="myimage:v2")], scaler(),
     ("done", "foo already has the desired template")),
    (dataclasses.replace(UPDATE, autoscaler="ignore"), [old(image="myimage:v2")], FROZEN_HPA,
     ("restore", "hpa", "does nothing", "at work")),
    (ROLLBACK, [rc()], FROZEN_HPA, ("restore", "hpa", "does nothing", "at work")),
    (ROLLBACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})], FROZEN_HPA,
     ("restore", "hpa", "does nothing", "at work")),
    (UPDATE, [rc(image="myimage:v2")], FROZEN_HPA, ("restore", "hpa", "does nothing", "at work")),
    (update_with_pause(Size(1)), [old(2, annotate=PAUSED_AT["1"]), new(1)], FROZEN_HPA,
     ("done", f"foo is already paused: {SUCCESSOR} has 1 of 3 replicas")),
], ids=["no change of a size", "before the first change of a size", "frozen already",
        "before the handover",
        "restored before the annotations are removed",
        "unfrozen autoscaler at the end", "no change", "rollback", "ignored",
        "refused only if there is something to do",
        "restored although ignored", "frozen by a killed task",
        "frozen by a killed task, after a rollback",
        "frozen by a killed task, no change", "pause"])
def test_autoscaler_is_frozen_during_the_update(request_, items, autoscaler, expected):
    assert summary(decide(request_, *items, autoscaler=autoscaler)) == expected


def test_update_is_refused_because_of_the_autoscaler_before_the_first_write():
    with pytest.raises(RolloutError,
                       match="the HorizontalPodAutoscaler hpa scales it and would fight"):
        decide(dataclasses.replace(UPDATE, autoscaler="refuse"), rc(), autoscaler=scaler())


def budget(**spec):
    return {"metadata": {"name": "pdb"}, "spec": spec}


@pytest.mark.parametrize("spec, expected", [
    ({"maxUnavailable": 1}, ("scale", "foo", 3, 2)),
    ({"minAvailable": 2}, ("scale", "foo", 3, 2)),
    ({"minAvailable": 1}, ("scale", "foo", 3, 1)),
    ({"maxUnavailable": "1%"}, ("scale", "foo", 3, 2)),
    ({"minAvailable": "100%"}, ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
    ({"minAvailable": 30}, ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
])
def test_budget_limits_unavailable_pods(spec, expected):
    request = dataclasses.replace(UPDATE, max_unavailable=Size(2))

    assert summary(decide(request, old(3), new(1, available=0),
                          budgets=(budget(), budget(**spec)))) == expected


def test_update_without_a_surge_is_refused_if_a_budget_allows_no_disruption():
    request = dataclasses.replace(UPDATE, max_surge=Size(0), max_unavailable=Size(1))

    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of the controller's 3 "
                             "pods to be unavailable") as error_info:
        decide(request, old(3), new(0), budgets=(budget(maxUnavailable=0),))

    assert "max_surge=1" in error_info.value.next_command

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of design section 4: per row, observed state and request, then the next step."""

from __future__ import annotations

import contextlib
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

KEPT = dataclasses.replace(UPDATE, next_name="bar")
KEPT_BACK = dataclasses.replace(BACK, next_name="bar")
RESTART = Request(name="foo", state=State.RESTARTED)
COLORED = dataclasses.replace(UPDATE, label_key="kubernetes.io/color")
V3 = build_request(image="myimage:v3")
V1, V2 = {"web": "myimage:v1"}, {"web": "myimage:v2"}


#: Command for a finalizer on foo.
RELEASE_FOO = ("let the program that set the finalizer remove it; if that program no longer "
               "runs:\nkubectl -n "
               "default patch rc foo --type=merge "
               """-p '{"metadata": {"finalizers": null}}'""")


def name_of_successor(request):
    """Return the name of the successor in this update of foo."""
    return expected_successor(request, Controller.from_api(rc()))[0]


def decide(request, *items, **facts):
    """Return the planner's decision on the observed controllers."""
    return plan(request, look(request, *items, **facts))


def new_bar(replicas=0, goal=3, **changes):
    """Return a successor with the user's next_name."""
    return new(replicas, goal, name="bar", **changes)


def foo_of_bar(replicas=3, goal=0, **changes):
    """foo in an update to bar."""
    return old(replicas, goal,
               **{"marks": {object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar"},
                  **changes})


def closed(**changes):
    """Return foo with a closed template and no annotation."""
    primary = rc(**changes)
    primary["spec"]["template"]["spec"]["priorityClassName"] = CLOSED
    return primary


def colored(value):
    """Return foo with a label of the user."""
    primary = rc()
    primary["spec"]["template"]["metadata"]["labels"]["kubernetes.io/color"] = value
    return primary


def new_with_more_than_an_image():
    successor = new(1)
    successor["spec"]["template"]["spec"]["hostNetwork"] = True
    return successor


def annotations_of(item):
    return item["metadata"]["annotations"]


def paused(pause_at):
    return dataclasses.replace(UPDATE, pause_at=pause_at)


AT_TWO, ALL_NEW = Size(2), Size(100, percent=True)
PAUSED_AT = {number: {object_meta.PAUSED: number} for number in "123"}


LOSER = "foo-0123456789"


FORWARD = {
    "pause_at: next grows no further, whatever the surge":
        (dataclasses.replace(paused(Size(1)), max_surge=Size(3)), [old(3), new(0)],
         ("scale", SUCCESSOR, 0, 1)),
    "pause_at: a percentage is rounded up":
        (dataclasses.replace(paused(Size(34, percent=True)), max_surge=Size(3)), [old(3), new(0)],
         ("scale", SUCCESSOR, 0, 2)),
    "pause_at: foo shrinks by as many":
        (dataclasses.replace(paused(AT_TWO), max_unavailable=Size(3)), [old(3), new(2)],
         ("scale", "foo", 3, 1)),
    "pause_at: all of them available, and foo's pods gone":
        (paused(AT_TWO), [old(1, current=2), new(2)],
         ("wait", f"{SUCCESSOR} 2/2 available, foo 2")),
    "pause_at: it is written on foo":
        (paused(AT_TWO), [old(1), new(2)], ("annotate", "foo", None, "paused at 2 of 3")),
    "pause_at: the same again is unchanged":
        (paused(AT_TWO), [old(1, marks=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: fewer than there are is where it stands":
        (paused(Size(1)), [old(1, marks=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: somebody scaled foo down in the pause, that is respected":
        (paused(AT_TWO), [old(0, marks=PAUSED_AT["2"]), new(2)],
         ("done", f"foo is already paused: {SUCCESSOR} has 2 of 3 replicas")),
    "pause_at: a higher one goes on, without the mark":
        (paused(AT_TWO), [old(2, marks=PAUSED_AT["1"]), new(1)],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "pause_at: none any more, goes on without the mark":
        (UPDATE, [old(2, marks=PAUSED_AT["1"]), new(1)],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "pause_at 100%: before the handover":
        (paused(ALL_NEW), [old(0), new(3)], ("annotate", "foo", None, "paused at 3 of 3")),
    "pause_at 100%: the handover comes without it":
        (UPDATE, [old(0, marks=PAUSED_AT["3"]), new(3)], ("rename", "foo", V1, V2)),
    "yes, -, else: mark foo, with the size of then as the goal":
        (UPDATE, [rc()], ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "yes, -, else: once foo is marked, create next":
        (UPDATE, [old(marks={object_meta.PARTNER_UID: None})], ("create", SUCCESSOR, None, V2)),
    "yes, -, foo already has the desired template: done, unchanged":
        (UPDATE, [rc(image="myimage:v2")], ("done", "foo already has the desired template")),
    "yes, -, foo already has the desired template: the deployment label makes no difference":
        (UPDATE, [rc(image="myimage:v2", label="earlier")],
         ("done", "foo already has the desired template")),
    "yes, -, foo already has the desired template: stale marks of a dead rollout are cleaned":
        (UPDATE, [old(image="myimage:v2")],
         ("annotate", "foo", "0 desired", "no update in progress")),
    "yes, -, foo already has the desired template: its size of before comes first":
        (UPDATE, [old(2, image="myimage:v2")], ("restore", "foo", 2, 3)),
    "yes, -, foo already has the desired template: and its pods":
        (UPDATE, [old(3, image="myimage:v2", available=2)], ("wait", "foo 2/3 available")),
    "yes, -, marked for an update whose next is gone, another wanted: foo is marked anew":
        (V3, [old(2)],
         ("annotate", "foo", None, f"partner {name_of_successor(V3)}")),
    "-, yes, next is foo's partner: foo is recreated first":
        (UPDATE, [new(2)], ("create", "foo", None, V2)),
    "-, yes, next is foo's partner, next_name given: what is missing of next's size is made up for":
        (KEPT, [new_bar(2)], ("scale", "bar", 2, 3)),
    "-, yes, next is foo's partner, next_name given: all of it available":
        (KEPT, [new_bar(3, available=1)], ("wait", "bar 1/3 available")),
    "-, yes, next is foo's partner, next_name given: then its marks go":
        (KEPT, [new_bar(3)], ("annotate", "bar", "3 desired", "updated")),
    "-, yes, next_name given, template as wanted, no marks: done, that update has ended":
        (KEPT, [rc("bar", image="myimage:v2")],
         ("done", "bar already has the desired template, and foo no longer exists")),
    "yes, -, else: other controllers that select the same pods make no difference":
        (UPDATE, [rc(), rc("canary"), rc("apart", label="another")],
         ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "yes, yes, next is being deleted: wait":
        (UPDATE, [old(0), new(3, deletionTimestamp=NOW)], ("wait", f"{SUCCESSOR} is gone")),
    "yes, yes, somebody deletes foo: wait until one of the rows without foo holds":
        (UPDATE, [old(2, deletionTimestamp=NOW), new(1)],
         ("wait", "foo is gone (another client deletes it)")),
    "yes, yes, a finalizer keeps foo, which somebody deletes: wait, and name it":
        (UPDATE, [old(2, deletionTimestamp=NOW, finalizers=["example.com/a"]), new(1)],
         ("wait", "foo is gone (another client deletes it; its finalizers: example.com/a)")),
    "yes, yes, next_name given, a finalizer keeps foo, which the update has deleted: wait, and "
    "name it":
        (KEPT, [foo_of_bar(0, deletionTimestamp=NOW, finalizers=["example.com/a"]), new_bar(3)],
         ("wait", "foo is gone (its finalizers: example.com/a)")),
    "yes, yes, a finalizer keeps foo, which an update with next_name has deleted, and another one "
    "is asked for: wait":
        (V3, [foo_of_bar(0, deletionTimestamp=NOW, finalizers=["example.com/a"]), new_bar(3)],
         ("wait", "foo is gone (its finalizers: example.com/a)")),
    "yes, yes, somebody deletes foo when all pods are next's: wait":
        (UPDATE, [old(0, deletionTimestamp=NOW), new(3)],
         ("wait", "foo is gone (another client deletes it)")),
    "yes, yes, next_name given, somebody deletes foo while it has pods: wait":
        (KEPT, [foo_of_bar(1, deletionTimestamp=NOW), new_bar(2)],
         ("wait", "foo is gone (another client deletes it)")),
    "yes, yes, next's uid not yet on foo: fill it in":
        (UPDATE, [old(marks={object_meta.PARTNER_UID: None}), new()],
         ("annotate", "foo", 0, "updating, 0 desired")),
    "yes, yes, foo has lost all its marks: they are repaired":
        (UPDATE, [rc(), new()], ("annotate", "foo", None, "updating, 0 desired")),
    "yes, yes, desired missing on next: fill it in":
        (UPDATE, [old(), new(marks={object_meta.DESIRED: None})],
         ("annotate", SUCCESSOR, None, "updating, 3 desired")),
    "yes, yes, desired missing on both: what foo's size was, from the other mark":
        (UPDATE,
         [old(2, desired=5, marks={object_meta.DESIRED: None}),
          new(1, marks={object_meta.DESIRED: None})],
         ("annotate", "foo", None, "updating, 0 desired")),
    "yes, yes, an interrupted rollback that turns round: first on foo":
        (UPDATE, [old(1, 3), new(2, 0)], ("annotate", "foo", 3, "updating, 0 desired")),
    "yes, yes, an interrupted rollback that turns round: then on next":
        (UPDATE, [old(1), new(2, 0)], ("annotate", SUCCESSOR, 0, "updating, 3 desired")),
    "yes, yes, sizes not there yet: next grows into the surge":
        (UPDATE, [old(3), new(0)], ("scale", SUCCESSOR, 0, 1)),
    "yes, yes, sizes not there yet: next grows by as many as foo has shrunk":
        (UPDATE, [old(1), new(1)], ("scale", SUCCESSOR, 1, 3)),
    "yes, yes, sizes not there yet: pods of foo that still go take up room":
        (UPDATE, [old(1, current=3), new(1, available=0)],
         ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
    "yes, yes, sizes not there yet: foo shrinks by what next has available":
        (UPDATE, [old(3), new(1)], ("scale", "foo", 3, 2)),
    "yes, yes, sizes not there yet: foo waits for what next has not available":
        (UPDATE, [old(3), new(1, available=0)], ("wait", f"{SUCCESSOR} 0/3 available, foo 3")),
    "yes, yes, sizes not there yet: foo waits while next's numbers are of an earlier size":
        (UPDATE, [old(3), new(1, observed=False)], ("wait", f"{SUCCESSOR} 1/3 available, foo 3")),
    "yes, yes, sizes not there yet: next waits while foo's numbers are of an earlier size":
        (UPDATE, [old(1, observed=False), new(1, available=0)],
         ("wait", f"{SUCCESSOR} 0/3 available, foo 1")),
    "yes, yes, foo's size was edited to a smaller one: respected":
        (UPDATE, [old(1), new(0)], ("scale", SUCCESSOR, 0, 3)),
    "yes, yes, foo's size was edited to a larger one: it goes again":
        (UPDATE, [old(5, available=3), new(3)], ("scale", "foo", 5, 0)),
    "yes, yes, next's size was edited beyond the goal: back to the goal":
        (UPDATE, [old(3), new(5)], ("scale", SUCCESSOR, 5, 3)),
    "yes (0), yes, not all available: wait":
        (UPDATE, [old(0), new(3, available=2)], ("wait", f"{SUCCESSOR} 2/3 available, foo 0")),
    "yes (0), yes (all available), no next_name: handover":
        (UPDATE, [old(0), new(3)], ("rename", "foo", V1, V2)),
    "yes (0), yes (all available), no next_name: others that select the same pods make no "
    "difference":
        (UPDATE, [old(0), new(3), rc("canary")], ("rename", "foo", V1, V2)),
    "yes (0), yes (all available), no next_name: not while a pod of foo is there":
        (UPDATE, [old(0, current=1), new(3)], ("wait", f"{SUCCESSOR} 3/3 available, foo 1")),
    "yes (0), yes (all available), next_name given: delete foo":
        (KEPT, [foo_of_bar(0), new_bar(3)], ("delete", "foo", 0, None)),
    "yes (0), yes, desired 0: handover at once":
        (UPDATE, [old(0, desired=0), new(0, 0, desired=0)], ("rename", "foo", V1, V2)),
    "yes, yes, a next that lost a race and has no pods: it goes":
        (UPDATE, [old(), new(), new(name=LOSER, label="0123456789", image="myimage:v3")],
         ("delete", LOSER, 0, None)),
    "yes, -, else: a value of the label that an earlier update gave is no user's own":
        (COLORED, [colored("0123456789")], ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    "state restarted: the same image in a template that differs":
        (RESTART, [rc()], ("annotate", "foo", None, f"partner {name_of_successor(RESTART)}")),
}

BACKWARD = {
    "both present: desired is N, first on foo":
        (BACK, [old(2), new(1)], ("annotate", "foo", 0, "rolling back, 3 desired")),
    "both present: then 0 on next":
        (BACK, [old(2, 3), new(1)], ("annotate", SUCCESSOR, 3, "rolling back, 0 desired")),
    "both present: foo grows into the surge":
        (BACK, [old(1, 3), new(2, 0)], ("scale", "foo", 1, 2)),
    "both present: next shrinks by what foo has available":
        (BACK, [old(2, 3), new(2, 0)], ("scale", SUCCESSOR, 2, 1)),
    "both present: next waits for what foo has not available":
        (BACK, [old(2, 3, available=1), new(2, 0)],
         ("wait", "foo 1/3 available, " + SUCCESSOR + " 2")),
    "both present: foo all available and next empty, next is deleted":
        (BACK, [old(3, 3), new(0, 0)], ("delete", SUCCESSOR, 0, None)),
    "next is being deleted: wait":
        (BACK, [old(3, 3), new(0, 0, deletionTimestamp=NOW)], ("wait", f"{SUCCESSOR} is gone")),
    "no next: foo's marks are cleared":
        (BACK, [old(3, 3)], ("annotate", "foo", "3 desired", "rolled_back")),
    "no next, and foo has shrunk before it was lost: its size of before comes first":
        (BACK, [old(2)], ("restore", "foo", 2, 3)),
    "no next: a rollback which has already ended is unchanged":
        (BACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})],
         ("done", "foo is already rolled back")),
    "next_name given: the same":
        (KEPT_BACK, [foo_of_bar(3, 3), new_bar(0, 0)], ("delete", "bar", 0, None)),
}


@pytest.mark.parametrize("request_, items, expected", FORWARD.values(), ids=FORWARD)
def test_forward(request_, items, expected):
    assert summary(decide(request_, *items)) == expected


@pytest.mark.parametrize("request_, items, expected", BACKWARD.values(), ids=BACKWARD)
def test_back(request_, items, expected):
    assert summary(decide(request_, *items)) == expected


ROLL = "ansible localhost -m baton.kubernetes.rolling_update -a"
NOT_SUCCESSOR = "already exists and does not belong to this update"
DELETE = ("inspect it:\nkubectl -n default get rc {0} -o yaml\n"
          "delete it only if its pods are not needed, or set another next_name")
OWNED = {"ownerReferences": [{"kind": "DeploymentConfig", "name": "web", "controller": True}]}
LEFT_BY_KUBECTL = {"kubectl.kubernetes.io/next-controller-id": "bar",
                   "kubectl.kubernetes.io/original-replicas": "4"}

REMOVE_MARKS = ("if not, remove the annotations that name it:\nkubectl -n default annotate rc foo "
                f"{object_meta.PARTNER}- {object_meta.PARTNER_UID}- "
                f"{object_meta.TAKEOVER}-")
UNCERTAIN = ("its size at the start of the update is uncertain: an annotation of {} records {}, "
             "and the controllers now request {} pods")
SCALE = ("if 300 is right:\nkubectl -n default scale rc {0} --replicas={1}\nif not:\nkubectl -n "
         "default annotate rc {2} "
         f"{object_meta.ORIGINAL}- {object_meta.DESIRED}-\nthen run the same task again")
CLOSED_FOR_NOTHING = (f"the priority class {CLOSED} closes its template, so failed pods "
                      "are not replaced: ")
UNMARKED = (f"{CLOSED_FOR_NOTHING}another client removed the annotation {object_meta.TAKEOVER} "
            "during a "
            "handover")
UNMARKED_OR_MIGRATED = (
    f"{CLOSED_FOR_NOTHING}its migration is not finished, or another client removed the annotation "
    f"{object_meta.TAKEOVER} "
    "during a handover")
MIGRATE = ("if its migration has begun, finish it first:\n"
           "ansible localhost -m baton.kubernetes.migrate_to_deployment -a name=foo\nif not:")
REPAIR = ("when its status counts all pods, remove priorityClassName from the template:\nkubectl "
          "-n default edit rc foo")


REFUSED = {
    "-, -: no such controller":
        (UPDATE, [], "there is no such ReplicationController", "", ""),
    "-, -: no such controller, where only others are":
        (UPDATE, [rc("baz")], "there is no such ReplicationController", "", ""),
    "foo is controlled by another object, forward":
        (UPDATE, [rc(**OWNED)],
         "it is controlled by DeploymentConfig/web, which would undo every step", "",
         "update DeploymentConfig/web instead"),
    "foo is controlled by another object, back":
        (BACK, [rc(**OWNED)],
         "it is controlled by DeploymentConfig/web, which would undo every step", "",
         "update DeploymentConfig/web instead"),
    "next is named as foo: the name to give":
        (dataclasses.replace(UPDATE, name=SUCCESSOR), [old(), new()],
         "it is the temporary successor of foo: use name=foo", "",
         f"{ROLL} 'name=foo image=myimage:v2'"),
    "yes, yes, foo has another uid: it was created anew":
        (UPDATE, [old(uid="another"), new()],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (it was created for an earlier foo, with uid uid of foo); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "yes, yes, next has another uid: it was created anew":
        (UPDATE, [old(), new(2, uid="another")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (foo names {SUCCESSOR} with uid uid of {SUCCESSOR}); "
         f"it has 2 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "yes, yes, next is the partner of another one":
        (UPDATE, [old(), new(marks={object_meta.PARTNER: "baz"})],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (it was created for baz); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "yes, yes, next has no marks: a stranger has the name that the user gave":
        (KEPT, [rc(), rc("bar", 2, "other:v1")],
         f"bar {NOT_SUCCESSOR} (no annotation names foo); it has 2 replicas of other:v1", "",
         DELETE.format("bar")),
    "yes, yes, next has no marks: a stranger has the name that next would get":
        (UPDATE, [rc(), rc(SUCCESSOR, 2, "other:v1")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (no annotation names foo); "
         f"it has 2 replicas of other:v1", "", DELETE.format(SUCCESSOR)),
    "yes, yes, back: next has another uid":
        (BACK, [old(), new(uid="another")],
         f"{SUCCESSOR} {NOT_SUCCESSOR} (foo names {SUCCESSOR} with uid uid of {SUCCESSOR}); "
         f"it has 0 replicas of myimage:v2", "", DELETE.format(SUCCESSOR)),
    "yes, yes, next's template is not the wanted one: another update is in progress":
        (V3, [old(2), new(1)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{ROLL} 'name=foo state=rolled_back'"),
    "yes, yes, another next_name than the one in progress: another update is in progress":
        (KEPT, [old(2), new(1, available=0)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 0 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{ROLL} 'name=foo state=rolled_back'"),
    "back, no next: a new update to the old version, with what to type":
        (BACK, [rc()], "there is no update in progress to roll back", "",
         f"{ROLL} 'name=foo image=THE-EARLIER-IMAGE'"),
    "back, no next, the last update has ended: what its record says is no image to type":
        (BACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("updated")})],
         "there is no update in progress to roll back", "",
         f"{ROLL} 'name=foo image=THE-EARLIER-IMAGE'"),
    "back, no foo: not found":
        (BACK, [], "there is no such ReplicationController", "", ""),
    "back, no foo but its next: not found, and that is said":
        (BACK, [new(3)], "there is no such ReplicationController",
         f"its update had begun: {SUCCESSOR} exists (myimage:v2)",
         f"{ROLL} 'name=foo image=myimage:v2 container=web'"),
    "foo is being deleted":
        (UPDATE, [rc(deletionTimestamp=NOW)], "it is being deleted", "", ""),
    "foo is being deleted, and finalizers keep it":
        (UPDATE, [rc(deletionTimestamp=NOW, finalizers=["example.com/a", "example.com/b"])],
         "it is being deleted",
         "finalizers of ReplicationController foo: example.com/a, example.com/b", RELEASE_FOO),
    "foo is being deleted in the foreground":
        (UPDATE, [rc(deletionTimestamp=NOW, finalizers=["foregroundDeletion"])],
         "it is being deleted",
         "finalizers of ReplicationController foo: foregroundDeletion",
         "the garbage collector waits for these pods:\nkubectl -n default get pods -l app=foo"),
    "back, yes, yes, foo is being deleted":
        (BACK, [old(2, deletionTimestamp=NOW, finalizers=["example.com/a"]), new(1)],
         "it is being deleted",
         "finalizers of ReplicationController foo: example.com/a",
         f"{RELEASE_FOO}\nthen:\n{ROLL} 'name=foo image=myimage:v2 container=web'"),
    "foo's template is closed and the mark of the handover is gone":
        (BACK, [closed()], UNMARKED_OR_MIGRATED, "",
         f"{MIGRATE}\n{REPAIR}"),
    "foo's template is closed, the mark of the handover is gone, and next is there":
        (BACK, [closed(), new(3)], UNMARKED, "",
         f"kubectl -n default delete rc {SUCCESSOR} --cascade=orphan\n{REPAIR}"),
    "foo's template is closed, the mark of the handover is gone, and its annotations name a "
    "stranger: he is not to be deleted":
        (BACK,
         [closed(annotations={object_meta.PARTNER: "bar", object_meta.PARTNER_UID: "uid of bar"}),
          rc("bar", 5)],
         UNMARKED_OR_MIGRATED, "", f"{MIGRATE}\n{REPAIR}"),
    "yes, -, else: the deployment label's key is one that the user has given a value":
        (COLORED, [colored("blue")],
         "the label kubernetes.io/color=blue is already in use, and the update would change its "
         "value: set another deployment_label_key", "", ""),
    "-, yes, next is foo's partner, another image wanted":
        (V3, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{ROLL} 'name=foo image=myimage:v2 container=web'"),
    "-, yes, next is foo's partner, a restart wanted":
        (RESTART, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{ROLL} 'name=foo image=myimage:v2 container=web'"),
    "-, yes, next is foo's partner, another name wanted":
        (KEPT, [new(3)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 3 of 3 available); finish it "
         "first", "",
         f"{ROLL} 'name=foo image=myimage:v2 container=web'"),
    "-, yes, next is foo's partner, begun with another label key":
        (COLORED, [new(3)],
         "the update in progress was started with a deployment_label_key other than "
         "kubernetes.io/color", "",
         f"set deployment_label_key to the key in the selector of {SUCCESSOR}"),
    "yes, yes, another update is paused":
        (V3, [old(2, marks={object_meta.PAUSED: "1"}), new(1)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it, with a higher pause_at or without pause_at\nor:\n{ROLL} "
         "'name=foo state=rolled_back'"),
    "yes, yes, another update is being rolled back":
        (V3, [old(2, 3), new(1, 0)],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"{ROLL} 'name=foo state=rolled_back'"),
    "yes, yes, another update is in progress":
        (V3, [old(2), new_with_more_than_an_image()],
         f"another update is in progress: to myimage:v2 ({SUCCESSOR}, 1 of 1 available); finish it "
         "or roll it back first", "",
         f"run the task that began it\nor:\n{ROLL} 'name=foo state=rolled_back'"),
    "kubectl rolling-update was interrupted when foo was deleted already: nothing is to be deleted "
    "then":
        (UPDATE, [rc("bar", 3, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
         "kubectl rolling-update was interrupted after it deleted this controller: bar has the "
         "pods, and was not renamed yet", "",
         "kubectl -n default annotate rc bar kubectl.kubernetes.io/update-source-id-\nthen update "
         "bar"),
    "an interrupted kubectl rolling-update":
        (UPDATE,
         [rc(annotations=LEFT_BY_KUBECTL),
          rc("bar", 1, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})],
         "kubectl rolling-update was interrupted: bar has some of its pods: finish it with the "
         "same kubectl command, or "
         "roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\nkubectl -n default delete rc bar\nkubectl "
         "-n default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "an interrupted kubectl rolling-update that a stranger speaks of too: he is not to be deleted":
        (UPDATE,
         [rc(annotations=LEFT_BY_KUBECTL),
          *(rc(name, 1, annotations={object_meta.KUBECTL_SOURCE: "foo:uid of foo"})
            for name in ("bar", "payments"))],
         "kubectl rolling-update was interrupted: bar, payments has some of its pods: finish it "
         "with the same kubectl command, or "
         "roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\nkubectl -n default get rc bar "
         "payments\nkubectl -n default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "an interrupted kubectl rolling-update that only foo speaks of: nothing is to be deleted then":
        (UPDATE, [rc(annotations=LEFT_BY_KUBECTL), rc("bar", 1)],
         "kubectl rolling-update was interrupted: bar has some of its pods: finish it with the "
         "same kubectl command, or "
         "roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=4\nkubectl -n default get rc bar\nkubectl -n "
         "default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "back, without next_name, of an update that had one: marks alone make nothing a successor":
        (BACK, [foo_of_bar(3, 3), new_bar(0, 0)],
         f"bar {NOT_SUCCESSOR} (its name is neither foo with that label, nor the next_name of this "
         "task); it has 0 replicas of "
         "myimage:v2", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif it was the next_name of "
         "this update:\n"
         f"{ROLL} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_MARKS}"),
    "back: foo's annotations name a stranger":
        (BACK, [foo_of_bar(3, 3), rc("bar", 5, "other:v1")],
         f"bar {NOT_SUCCESSOR} (its selector has no deployment label); it has 5 replicas of "
         "other:v1", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif it was the next_name of "
         "this update:\n"
         f"{ROLL} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_MARKS}"),
    "back: both annotations name each other":
        (BACK, [foo_of_bar(3, 3), rc("bar", 5, "other:v1", annotations=annotations_of(new_bar(5)))],
         f"bar {NOT_SUCCESSOR} (its selector has no deployment label); it has 5 replicas of "
         "other:v1", "",
         "inspect both:\nkubectl -n default get rc foo bar -o yaml\nif it was the next_name of "
         "this update:\n"
         f"{ROLL} 'name=foo next_name=bar state=rolled_back'\n{REMOVE_MARKS}"),
    "foo's size is said by nothing but its annotation":
        (UPDATE, [old(2, desired=300, image="myimage:v2")], UNCERTAIN.format("foo", 300, 2), "",
         SCALE.format("foo", 300, "foo")),
    "back, foo's size is said by nothing but its annotation":
        (BACK, [old(2, desired=300)], UNCERTAIN.format("foo", 300, 2), "",
         SCALE.format("foo", 300, "foo")),
    "an update begins, and an annotation of foo says that it was larger":
        (V3, [rc(replicas=2, annotations={object_meta.ORIGINAL: "300"})],
         UNCERTAIN.format("foo", 300, 2), "", SCALE.format("foo", 300, "foo")),
    "foo has gone, and next says more than it leaves room for":
        (UPDATE, [new(1)], UNCERTAIN.format(SUCCESSOR, 3, 1), "",
         SCALE.format(SUCCESSOR, 3, SUCCESSOR).replace("300 is", "3 is")),
    "both say another size, and neither leaves room for it":
        (UPDATE, [old(2, desired=300), new(1, desired=40)], UNCERTAIN.format("foo", 300, 3), "",
         SCALE.format("foo", 299, "foo")),
    "an interrupted kubectl rolling-update whose annotation is no size":
        (UPDATE,
         [rc(annotations={**LEFT_BY_KUBECTL, object_meta.KUBECTL_ORIGINAL: "$(touch pwned)"}),
          rc("bar", 1)],
         "kubectl rolling-update was interrupted: bar has some of its pods: finish it with the "
         "same kubectl command, or "
         "roll back by hand", "",
         "kubectl -n default scale rc foo --replicas=3\nkubectl -n default get rc bar\nkubectl -n "
         "default annotate rc foo "
         "kubectl.kubernetes.io/next-controller-id- kubectl.kubernetes.io/original-replicas-"),
    "another update is in progress, to what is no image: told, and not to be typed":
        (V3, [old(2), new(1, image="$(touch pwned)\x1b[2J")],
         f"another update is in progress: to $(touch pwned)\\x1b[2J ({SUCCESSOR}, 1 of 1 "
         "available); finish it or roll it back "
         "first", "", f"run the task that began it\nor:\n{ROLL} 'name=foo state=rolled_back'"),
}


@pytest.mark.parametrize("request_, items, what, why, next_command", REFUSED.values(), ids=REFUSED)
def test_refused(request_, items, what, why, next_command):
    with pytest.raises(RolloutError) as refused:
        decide(request_, *items)

    error = refused.value
    assert (error.what, error.where) == (what, f"ReplicationController default/{request_.name}")
    assert (error.why, error.next_command) == (why, next_command)
    assert isinstance(error, NoSuchController) == (what == "there is no such ReplicationController")


def with_pods(state, cluster):
    """Return the decision, with the pods if the decision depends on them."""
    return (dataclasses.replace(state, pods=cluster.live_pods({"app": "foo"}))
            if handover.needs_pods(state) else state)


def stages(request, *items):
    """Yield each state and decision of a task on a cluster that settles at once."""
    cluster = ClusterModel(items)
    while True:
        items = list(cluster.items.values())
        try:
            decision = plan(request, with_pods(look(request, *items), cluster))
        except RolloutError as error:
            yield items, error
            return
        yield items, decision
        if isinstance(decision, Step):
            assert cluster.write(decision.write)
        cluster.settle()
        if isinstance(decision, Done) or (isinstance(decision, Step) and decision.is_last):
            yield list(cluster.items.values()), None
            return


def play(request, *items):
    """Return the steps of a task on such a cluster, its end, and the final controllers by name."""
    *states, (items, last) = stages(request, *items)
    lines = [summary(decision) for _items, decision in states]
    return (lines + ([last.what] if last is not None else []),
            {item["metadata"]["name"]: item for item in items})


def annotations(items, name="foo"):
    return items[name]["metadata"]["annotations"]


def test_a_whole_update_ends_with_the_handover():
    lines, items = play(UPDATE, rc(replicas=2))

    assert lines == [
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
    assert annotations(items) == {object_meta.LAST_ROLLOUT: ended(UPDATE)}


def test_a_whole_update_to_a_next_that_keeps_its_name_ends_with_the_deletion_of_foo():
    lines, items = play(KEPT, rc(replicas=1))

    assert lines[2:] == [
        ("annotate", "foo", 0, "updating, 0 desired"),
        ("scale", "bar", 0, 1), ("scale", "foo", 1, 0),
        ("delete", "foo", 0, None),
        ("annotate", "bar", "1 desired", "updated"),
    ]
    assert items.keys() == {"bar"}
    assert annotations(items, "bar") == {object_meta.LAST_ROLLOUT: ended(KEPT)}


def test_a_whole_rollback_trades_places_and_ends_without_next():
    lines, items = play(BACK, old(1), new(2))

    assert lines == [
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
        object_meta.LAST_ROLLOUT: record("rolled_back", "myimage:v2", "myimage:v1")}


@pytest.mark.parametrize("request_", [UPDATE, KEPT, RESTART],
                         ids=["handover", "next_name", "restarted"])
def test_going_on_after_a_turn_each_way_ends_as_if_undisturbed(request_):
    back = dataclasses.replace(request_, state=State.ROLLED_BACK)
    _lines, items = play(request_, rc())
    cluster = ClusterModel([rc()])
    for wish, steps in ((request_, 6), (back, 4), (request_, 4), (back, 2), (request_, 0)):
        for _step in range(steps):
            decision = plan(wish, with_pods(look(wish, *cluster.items.values()), cluster))
            assert not isinstance(decision, Step) or cluster.write(decision.write)
            cluster.settle()

    _lines, again = play(request_, *cluster.items.values())

    assert {name: item["spec"] for name, item in again.items()} == {
        name: item["spec"] for name, item in items.items()}
    assert {name: annotations(again, name) for name in again} == {
        name: annotations(items, name) for name in items}


def test_a_rollback_after_the_point_of_no_return_finishes_the_handover_and_says_how_to_go_back():
    renamed = apply(decide(UPDATE, old(0), new(3)), old(0), new(3)).values()

    lines, items = play(BACK, *renamed)

    assert lines[-2:] == [
        ("annotate", "foo", "taking over", "updated"),
        "there is no update in progress to roll back",
    ]
    assert annotations(items) == {object_meta.LAST_ROLLOUT: ended(UPDATE)}


def test_an_update_to_a_third_image_during_the_handover_finishes_it_first():
    renamed = apply(decide(UPDATE, old(0), new(3)), old(0), new(3)).values()

    lines, items = play(V3, *renamed)

    assert ("annotate", "foo", "taking over", "updated") in lines
    assert items["foo"]["spec"]["template"]["spec"] == template("myimage:v3")["spec"]
    assert annotations(items) == {object_meta.LAST_ROLLOUT: ended(V3, "myimage:v2", "myimage:v3")}


def test_an_update_of_nothing_hands_over_nothing():
    lines, items = play(UPDATE, rc(replicas=0))

    assert [line[0] for line in lines] == ["annotate", "create", "annotate", "rename", "annotate",
                                           "delete", "annotate"]
    assert (items["foo"]["spec"]["replicas"] == 0
            and items["foo"]["spec"]["template"]["spec"] == template("myimage:v2")["spec"])


def test_a_restart_ends_with_the_same_image_in_another_template():
    lines, items = play(RESTART, rc(replicas=1))

    spec = items["foo"]["spec"]["template"]
    assert spec["spec"] == template("myimage:v1")["spec"]
    assert set(spec["metadata"]["annotations"]) == {object_meta.RESTART}
    assert lines[-1] == ("annotate", "foo", "taking over", "updated")


# Writes of the steps


def test_beginning_marks_foo_with_its_partner_and_its_size():
    items = apply(decide(UPDATE, rc(replicas=5)), rc(replicas=5))

    assert annotations(items) == {object_meta.PARTNER: SUCCESSOR, object_meta.DESIRED: "0",
                                  object_meta.ORIGINAL: "5"}


def test_a_new_start_drops_the_deleted_partner_and_keeps_the_initial_size():
    items = apply(decide(V3, old(2)), old(2))

    its_own = {object_meta.PARTNER: name_of_successor(V3), object_meta.DESIRED: "0",
               object_meta.ORIGINAL: "3"}
    assert annotations(items) == its_own


def test_a_new_start_takes_the_size_raised_by_another_client():
    its_next_is_gone = old(5, desired=3, marks={object_meta.PARTNER_UID: None})

    items = apply(decide(UPDATE, its_next_is_gone), its_next_is_gone)

    assert annotations(items)[object_meta.ORIGINAL] == "5"


def test_a_successor_copies_the_metadata_of_the_user_only():
    primary = old(2, desired=2, marks={
        object_meta.PARTNER_UID: None, object_meta.LAST_ROLLOUT: record("updated"), "note": "kept",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
    }, labels={"app": "foo", "tier": "front"}, finalizers=["wait"],
        ownerReferences=[{"kind": "App", "name": "app"}])
    primary["spec"]["minReadySeconds"] = 7

    decision = decide(UPDATE, primary)

    its_own = {object_meta.PARTNER: "foo", object_meta.PARTNER_UID: "uid of foo",
               object_meta.DESIRED: "2", object_meta.ORIGINAL: "2",
               object_meta.LAST_ROLLOUT: record("updating", request=UPDATE.fingerprint)}
    assert decision.write == Create({
        "apiVersion": "v1",
        "kind": "ReplicationController",
        "metadata": {
            "name": SUCCESSOR,
            "namespace": "default",
            "labels": {"app": "foo", "tier": "front", object_meta.DEPLOYMENT_LABEL: LABEL},
            "annotations": {"note": "kept", **its_own},
        },
        "spec": {
            "replicas": 0,
            "selector": {"app": "foo", object_meta.DEPLOYMENT_LABEL: LABEL},
            "template": template("myimage:v2", LABEL),
            "minReadySeconds": 7,
        },
    })


def manifest(request, primary=None, **facts):
    """Return the successor that a request creates from foo."""
    primary = primary or rc()
    marked = apply(decide(request, primary, **facts), primary).values()
    return decide(request, *marked, **facts).write.manifest


def test_min_ready_seconds_of_the_request_win_over_foo_s():
    assert manifest(dataclasses.replace(UPDATE,
                                        min_ready_seconds=0))["spec"]["minReadySeconds"] == 0


def test_another_label_key_is_used_everywhere():
    request = dataclasses.replace(UPDATE, label_key="example.com/color")

    successor = manifest(request)

    assert successor["spec"]["selector"] == successor["spec"]["template"]["metadata"][
        "labels"] == successor["metadata"]["labels"]
    assert successor["spec"]["selector"] == {"app": "foo", "example.com/color": LABEL}


def test_a_label_of_foo_that_equals_the_new_one_is_told_apart_the_same_way_each_time():
    values = {manifest(UPDATE, rc(label=LABEL))["spec"]["selector"][object_meta.DEPLOYMENT_LABEL]
              for _time in range(2)}

    assert len(values) == 1
    assert values.pop().startswith(f"{LABEL}-")


DEFINITION = {
    "kind": "ReplicationController",
    "metadata": {"name": "bar", "labels": {"tier": "back"},
                 "annotations": {"by": "hand", object_meta.DESIRED: "9"}},
    "spec": {"replicas": 8, "minReadySeconds": 4, "template": template("myimage:v2")},
}


def test_a_definition_brings_its_own_metadata_and_selector():
    definition = {**DEFINITION, "spec": {**DEFINITION["spec"], "selector": {"app": "bar"}}}
    definition["spec"]["template"] = {**template("myimage:v2"),
                                      "metadata": {"labels": {"app": "bar"}}}
    request = Request("foo", next_name="bar", definition=definition)

    successor = manifest(request, desired=definition["spec"]["template"])

    label = successor["spec"]["selector"].pop(object_meta.DEPLOYMENT_LABEL)
    assert successor["metadata"]["labels"] == {"tier": "back", object_meta.DEPLOYMENT_LABEL: label}
    assert (successor["metadata"]["annotations"]["by"] == "hand"
            and successor["metadata"]["annotations"][object_meta.DESIRED] == "3")
    assert (successor["spec"]["replicas"], successor["spec"]["minReadySeconds"]) == (0, 4)
    assert successor["spec"]["selector"] == {"app": "bar"}


def test_a_definition_without_selector_selects_by_the_labels_of_its_template():
    successor = manifest(Request("foo", next_name="bar", definition=DEFINITION),
                         desired=DEFINITION["spec"]["template"])

    assert successor["spec"]["selector"] == successor["spec"]["template"]["metadata"]["labels"]
    assert successor["spec"]["selector"].keys() == {"app", object_meta.DEPLOYMENT_LABEL}


def test_a_definition_whose_selector_is_foo_s_is_refused():
    definition = {**DEFINITION, "spec": {**DEFINITION["spec"], "selector": {"app": "foo"}}}

    with pytest.raises(RolloutError,
                       match="the definition's selector app=foo does not differ from the selector "
                             "of foo"):
        decide(Request("foo", next_name="bar", definition=definition), rc(),
               desired=definition["spec"]["template"])


def test_marks_on_both_name_the_other_and_tell_the_direction():
    cluster = ClusterModel([rc(), new(1)])
    for _mark in range(2):
        decision = decide(BACK, *cluster.items.values())
        assert cluster.write(decision.write)

    common = {object_meta.ORIGINAL: "3"}
    assert annotations(cluster.items) == {
        **common, object_meta.PARTNER: SUCCESSOR, object_meta.PARTNER_UID: f"uid of {SUCCESSOR}",
        object_meta.DESIRED: "3",
        object_meta.SUCCESSOR_SPEC: handover.stored_template_hash(template("myimage:v2", LABEL)),
        object_meta.LAST_ROLLOUT: record("rolling back", "myimage:v2", "myimage:v1")}
    assert annotations(cluster.items, SUCCESSOR) == {
        **common, object_meta.PARTNER: "foo", object_meta.PARTNER_UID: "uid of foo",
        object_meta.DESIRED: "0", object_meta.LAST_ROLLOUT: record("updating")}
    assert summary(decide(BACK, *cluster.items.values()))[0] == "scale"


@pytest.mark.parametrize("room, action", [(1100, "annotate"), (500, "error"), (0, "error")])
def test_marks_that_would_not_all_fit_are_refused_before_the_first(room, action):
    """The API server accepts 256 KiB of annotations, with keys; the handover's is the longest."""
    primary = rc(annotations={"note": "x" * (256 * 1024 - room - len("note"))})

    if action == "error":
        with pytest.raises(RolloutError,
                           match="its annotations leave no room for the annotations of the update"):
            decide(UPDATE, primary)
    else:
        assert summary(decide(UPDATE, primary))[0] == action


MIRRORED = "mirror.example.com/myimage:v2"


def mirrored(item):
    """Return the manifest as stored by an admission that rewrites image registries."""
    item["spec"]["template"]["spec"]["containers"][0]["image"] = MIRRORED
    return item


def stored(image):
    return {object_meta.SUCCESSOR_SPEC: handover.stored_template_hash(template(image, LABEL))}


UNHEARD, MADE_HERE = {object_meta.PARTNER_UID: None}, {"is_created_here": True}
BY_ADMISSION, OTHERWISE = {"stored": template(MIRRORED, LABEL)}, {
    "stored": template("myimage:v2", LABEL)}


@pytest.mark.parametrize("annotations, pods, facts, expected", [
    (stored(MIRRORED), 1, OTHERWISE, ("scale", "foo", 3, 2)),
    (stored(MIRRORED), 0, BY_ADMISSION, ("scale", SUCCESSOR, 0, 1)),
    (stored(MIRRORED), 0, MADE_HERE, ("scale", SUCCESSOR, 0, 1)),
    (UNHEARD, 0, BY_ADMISSION, ("annotate", "foo", 0, "updating, 0 desired")),
    (UNHEARD, 0, MADE_HERE, ("annotate", "foo", 0, "updating, 0 desired")),
], ids=["its pods were made from it", "the server would store it so", "made by this task",
        "unheard of, and the server would store it so", "unheard of, and made by this task"])
def test_a_successor_changed_by_admission_matches_the_request(annotations, pods, facts, expected):
    assert summary(decide(UPDATE, old(marks=annotations), mirrored(new(pods)), **facts)) == expected


@pytest.mark.parametrize("annotations, pods, facts", [
    (stored("myimage:v2"), 1, OTHERWISE), (stored("myimage:v2"), 0, MADE_HERE),
    (stored(MIRRORED), 0, OTHERWISE),
    (UNHEARD, 0, OTHERWISE), (UNHEARD, 1, OTHERWISE), (UNHEARD, 1, {}),
], ids=["edited since", "edited since this task made it",
        "foo's annotation says so, and there are no pods", "made beforehand",
        "made beforehand with pods", "nothing is known of it"])
def test_an_edited_or_forged_successor_is_another_update(annotations, pods, facts):
    with pytest.raises(RolloutError,
                       match=r"another update is in progress: to mirror\.example\.com/myimage:v2"):
        decide(UPDATE, old(marks=annotations), mirrored(new(pods)), **facts)


@pytest.mark.parametrize("request_, name", [(UPDATE, "foo"), (KEPT, "bar")],
                         ids=["taken over", "next_name"])
def test_an_update_that_an_admission_has_changed_has_ended_for_the_same_request_only(
        request_, name):
    item = mirrored(rc(name, annotations={
        object_meta.LAST_ROLLOUT: ended(request_, after=MIRRORED)}))

    assert summary(decide(request_, item, is_confirmed=True))[0] == "done"
    with contextlib.suppress(RolloutError):
        assert summary(decide(request_, item))[0] == "annotate", (
            "an annotation says so, and nothing else")
    another_request = dataclasses.replace(request_, images={"": "myimage:v3"})
    with contextlib.suppress(RolloutError):
        assert summary(decide(another_request, item))[0] == "annotate"
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "myimage:by-hand"
    with contextlib.suppress(RolloutError):
        assert summary(decide(request_, item))[0] == "annotate"


def test_a_restart_is_never_done_already():
    primary = rc(annotations={object_meta.LAST_ROLLOUT: ended(RESTART, after="myimage:v1")})

    assert summary(decide(RESTART, primary))[0] == "annotate"


def test_a_next_whose_foo_is_gone_is_known_by_its_request_where_an_admission_has_changed_it():
    successor = mirrored(new(3))
    successor["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = record(
        "updating", request=UPDATE.fingerprint)

    assert summary(decide(UPDATE, successor, is_confirmed=True))[:2] == ("create", "foo")
    for request in (UPDATE, V3):
        with pytest.raises(RolloutError, match="another update is in progress"):
            decide(request, successor)


def test_a_next_that_a_dry_run_would_make_differently_each_time_is_known_by_its_hash():
    """A timestamp added by admission must not turn a rerun into another update."""
    request = Request("foo", template={"spec": {"priority": 1}})
    name, label = expected_successor(request, Controller.from_api(rc()))
    annotations = {object_meta.PARTNER: name, object_meta.PARTNER_UID: f"uid of {name}",
                   object_meta.SUCCESSOR_SPEC: handover.stored_template_hash(
                       template("myimage:v2", label))}

    decision = decide(request, old(marks=annotations), new(1, name=name, label=label),
                      desired=template(priority=1, schedulerName="another at each dry run"))

    assert summary(decision) == ("scale", "foo", 3, 2)


@pytest.mark.parametrize("surge, unavailable, expected", [
    (Size(25, percent=True), Size(0), ("scale", SUCCESSOR, 0, 25)),
    (Size(0), Size(25, percent=True), ("scale", "foo", 100, 75)),
    (Size(0), Size(1, percent=True), ("scale", "foo", 100, 99)),
    (Size(200), Size(0), ("scale", SUCCESSOR, 0, 100)),
], ids=["surge 25%", "unavailable 25%", "unavailable 1%", "surge of more than all"])
def test_the_first_step_in_sizes_is_as_large_as_allowed(surge, unavailable, expected):
    request = dataclasses.replace(UPDATE, max_surge=surge, max_unavailable=unavailable)

    assert summary(decide(request, old(100, desired=100), new(0, 100, desired=100))) == expected


# Preconditions of the steps

PRIORITY = "/spec/template/spec/priorityClassName"
UPDATE_ANNOTATIONS = st.fixed_dictionaries({}, optional={
    key: st.none() for key in object_meta.UPDATE_ANNOTATIONS[:4]})
SIZE = st.integers(0, 4)
MARKED = {"goal": st.sampled_from([0, 3]), "marks": UPDATE_ANNOTATIONS, "observed": st.booleans()}
PRIMARY = st.one_of(st.builds(rc, replicas=SIZE),
                    st.builds(old, SIZE, available=SIZE, current=SIZE, **MARKED))
ANY_SUCCESSOR = st.none() | st.builds(new, SIZE, available=SIZE, current=SIZE, **MARKED)
HANDOVER = st.sampled_from([items for items, _decision in stages(UPDATE, old(0), new(3))])


@given(st.sampled_from([UPDATE, BACK, RESTART]), HANDOVER | st.tuples(PRIMARY, ANY_SUCCESSOR))
def test_every_write_is_refused_after_a_change_of_its_object(request_, items):
    """Check uid and annotations, and the size before a write of size, selector or template."""
    items = [item for item in items if item]
    try:
        decision = decide(request_, *items)
    except RolloutError:
        return
    if not isinstance(decision, Step) or isinstance(decision.write, Create):
        return
    for change in changes_that_matter(decision):
        changed = [change(item) if item["metadata"]["name"] == decision.name else item
                   for item in items]

        assert not ClusterModel(changed).write(decision.write), decision


def changes_that_matter(step):
    yield lambda item: with_metadata(item, uid="another")
    if isinstance(step.write, Delete):
        yield lambda item: with_metadata(item, resourceVersion="2")
        return
    assert isinstance(step.write, Patch)
    written = {operation["path"] for operation in step.write.operations
               if operation["op"] != "test"}
    if written & {"/spec/replicas", "/spec/selector", "/spec/template"}:
        yield lambda item: {**item,
                            "spec": {**item["spec"], "replicas": item["spec"]["replicas"] + 1}}
    if any(operation["path"] == PRIORITY and operation.get("value") != CLOSED
           for operation in step.write.operations if operation["op"] != "test"):
        yield lambda item: {**item,
                            "spec": {**item["spec"],
                                     "template": template(priorityClassName="another")}}
    for mark in object_meta.UPDATE_ANNOTATIONS:
        yield lambda item, mark=mark: with_metadata(
            item,
            annotations={**item["metadata"]["annotations"], mark: "changed by another client"})


def with_metadata(item, **fields):
    return {**item, "metadata": {**item["metadata"], **fields}}


def test_scaling_assumes_the_object_the_size_and_every_mark():
    assert patch_tests(decide(UPDATE, old(3), new(0))) == {
        "/metadata/uid": f"uid of {SUCCESSOR}",
        "/spec/replicas": 0,
        **{"/metadata/annotations/"
           + mark.replace("/", "~1"): new()["metadata"]["annotations"].get(mark)
           for mark in object_meta.UPDATE_ANNOTATIONS},
    }


@pytest.mark.parametrize("request_, items, preconditions", [
    (KEPT, [foo_of_bar(0), new_bar(3)], {"uid": "uid of foo", "resourceVersion": "1"}),
    (BACK, [old(3, 3), new(0, 0)], {"uid": f"uid of {SUCCESSOR}", "resourceVersion": "1"}),
], ids=["foo when next keeps its name", "next after a rollback"])
def test_a_controller_without_pods_is_deleted_if_nothing_about_it_has_changed(
        request_, items, preconditions):
    assert decide(request_, *items).write.preconditions == preconditions


# Commands to type that were wrong once


def test_the_command_after_an_ended_update_is_one_that_is_accepted():
    with pytest.raises(NoSuchController,
                       match=r"it no longer exists, and bar has a different template "
                             r"\(myimage:v2\)") as refused:
        decide(dataclasses.replace(V3, next_name="bar"), rc("bar", image="myimage:v2"))

    assert refused.value.next_command == f"{ROLL} 'name=bar image=myimage:v3'"


def test_the_command_that_rolls_back_another_update_keeps_its_next_name():
    with pytest.raises(RolloutError) as refused:
        decide(V3, foo_of_bar(2), new_bar(1))

    assert "next_name=bar" in refused.value.next_command


def test_the_controller_to_name_instead_of_next_is_in_the_command_with_several_images():
    request = build_request(name=SUCCESSOR, images={"web": "myimage:v2", "side": "side:v2"})

    with pytest.raises(RolloutError) as refused:
        plan(request, look(dataclasses.replace(request, state=State.ROLLED_BACK), old(), new()))

    arguments = refused.value.next_command.partition("-a ")[2].strip("'")
    assert json.loads(arguments)["name"] == "foo"


def test_unreadable_annotations_are_reported_with_their_controller_and_rewritten():
    forged = {object_meta.ORIGINAL: "9" * 5000, object_meta.DESIRED: "[" * 5000,
              object_meta.LAST_ROLLOUT: "[7]", object_meta.PAUSED: "two"}
    cluster, lines = Cluster(rc(annotations=forged)), []

    result = cluster.run(UPDATE, print_line=lines.append)

    messages = {f"the annotation {key} of foo is not readable, and is ignored" for key in forged}
    assert messages <= set(result["warnings"])
    assert {f"warning: {message}" for message in messages} == set(
        lines[:len(messages)]), "before the first step"
    assert cluster.controllers()["foo"].images == V2 and cluster.controllers()["foo"].replicas == 3


# Other clients that scale, and quotas


def scaler(frozen=None):
    """Return a HorizontalPodAutoscaler, frozen or not."""
    annotations = {object_meta.FROZEN: identity.canonical(frozen)} if frozen else {}
    disabled = {"behavior": {direction: {"selectPolicy": "Disabled"}
                             for direction in ("scaleUp", "scaleDown")}} if frozen else {}
    return {"metadata": {"name": "hpa", "uid": "u", "annotations": annotations},
            "spec": {"minReplicas": 2, "maxReplicas": 9, **disabled}}


FROZEN = scaler({"behavior": None, "minReplicas": 2})


@pytest.mark.parametrize("request_, items, autoscaler, expected", [
    (UPDATE, [rc()], scaler(), ("annotate", "foo", None, f"partner {SUCCESSOR}")),
    (UPDATE, [old(), new()], scaler(),
     ("freeze", "hpa", "at work", "does nothing during the update")),
    (UPDATE, [old(), new()], FROZEN, ("scale", SUCCESSOR, 0, 1)),
    (UPDATE, [old(0), new(3)], scaler(),
     ("freeze", "hpa", "at work", "does nothing during the update")),
    (UPDATE, [old(image="myimage:v2")], FROZEN, ("restore", "hpa", "does nothing", "at work")),
    (UPDATE, [old(image="myimage:v2")], scaler(),
     ("annotate", "foo", "0 desired", "no update in progress")),
    (UPDATE, [rc(image="myimage:v2")], scaler(), ("done", "foo already has the desired template")),
    (BACK, [old(2, 3), new(1, 0)], FROZEN, ("scale", "foo", 2, 3)),
    (dataclasses.replace(UPDATE, autoscaler="ignore"), [old(), new()], scaler(),
     ("scale", SUCCESSOR, 0, 1)),
    (dataclasses.replace(UPDATE, autoscaler="refuse"), [rc(image="myimage:v2")], scaler(),
     ("done", "foo already has the desired template")),
    (dataclasses.replace(UPDATE, autoscaler="ignore"), [old(image="myimage:v2")], FROZEN,
     ("restore", "hpa", "does nothing", "at work")),
    (BACK, [rc()], FROZEN, ("restore", "hpa", "does nothing", "at work")),
    (BACK, [rc(annotations={object_meta.LAST_ROLLOUT: record("rolled_back")})], FROZEN,
     ("restore", "hpa", "does nothing", "at work")),
    (UPDATE, [rc(image="myimage:v2")], FROZEN, ("restore", "hpa", "does nothing", "at work")),
    (paused(Size(1)), [old(2, marks=PAUSED_AT["1"]), new(1)], FROZEN,
     ("done", f"foo is already paused: {SUCCESSOR} has 1 of 3 replicas")),
], ids=["not before a size changes", "before the first size", "once", "before the handover",
        "restored before the marks go",
        "one that is at work stays so", "nothing to do", "on the way back", "ignored",
        "refused only if there is something to do",
        "restored though ignored", "left by a task that was killed before its first mark",
        "the same after a rollback",
        "the same, and nothing to do", "not in a pause"])
def test_an_autoscaler_does_nothing_while_the_update_lasts(request_, items, autoscaler, expected):
    assert summary(decide(request_, *items, autoscaler=autoscaler)) == expected


def test_an_autoscaler_is_refused_before_the_first_change():
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
def test_no_fewer_pods_than_a_budget_wants(spec, expected):
    request = dataclasses.replace(UPDATE, max_unavailable=Size(2))

    assert summary(decide(request, old(3), new(1, available=0),
                          budgets=(budget(), budget(**spec)))) == expected


def test_a_budget_that_lets_nothing_go_and_no_surge_is_refused():
    request = dataclasses.replace(UPDATE, max_surge=Size(0), max_unavailable=Size(1))

    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of its 3 pods to be "
                             "unavailable") as refused:
        decide(request, old(3), new(0), budgets=(budget(maxUnavailable=0),))

    assert "max_surge=1" in refused.value.next_command

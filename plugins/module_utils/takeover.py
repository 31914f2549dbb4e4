# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The last phase when the user gave no next_name: foo takes over next's template and pods, and next goes. Pure.

Measured on a real API server: no pod is created, deleted or restarted, and foo is never missing (design section 4).
Each function is one step; its docstring says what is true before and after it. A client that dies between two of them is
followed by one that reads the mark on foo and goes on: nothing else is needed.

From the first step to the last, foo's template is closed: it asks for a priority class that does not exist, so that the API
server refuses every pod made from it. The controller manager hears of controllers and of pods on two ways. Where it hears of
foo's new selector before it has heard of all the pods that lost their owner, it would make new pods for the missing ones
(305 for 500 pods were seen on a busy machine). Refused, it tries again, and adopts the rest when the news has come.
"""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import typing as t

from . import identity
from .errors import RolloutError
from .kinds import Kind
from .observed import Controller, Observed, own_label
from .request import Request, State, images_of
from .steps import (
    Action,
    Create,
    Decision,
    Delete,
    Step,
    Wait,
    annotate,
    annotation,
    patch,
    pointer,
    put,
    scale,
    test,
)

Json = dict[str, t.Any]

#: No cluster has a priority class of this name, and the API server refuses pods of a class that is not there.
CLOSED = "baton-kubernetes-takeover-in-progress"


def park(request: Request, foo: Controller, next: Controller, desired: int) -> Step:
    """Step 1: foo gets next's template and the mark.

    Before: foo has no pods, next has them all. After: foo still has none; its selector differs from next's pods in the
    deployment label, so that it cannot adopt (and, at 0 replicas, delete) them when they become orphans. A foo without
    the label gets it here, when there is no pod of its own left to label. This is the point of no return: foo's old
    template is gone but for its images, which the mark keeps for the sentence that says how to go back.
    """
    if foo.kind is Kind.REPLICA_SET:
        return _stand_by(request, foo, next, desired)
    own = _own_value(request, foo, next)
    labels = {request.label_key: own}
    operations = (
        test("/spec/replicas", 0),
        *annotate(foo, {identity.TAKEOVER: identity.canonical(mark_for(request, next, desired, foo.images))}),
        put("/spec/template", _closed(identity.with_label(next.template, request.label_key, own))),
        put("/spec/selector", {**next.selector, **labels}),
        put("/spec/minReadySeconds", next.min_ready_seconds),
    )
    return Step(Action.RENAME, foo.name, patch(foo, *operations), before=foo.images, after=next.images)


def _stand_by(request: Request, foo: Controller, next: Controller, desired: int) -> Step:
    """Step 1 of a ReplicaSet, whose selector cannot be changed, but matches next's pods as it is.

    Before: foo has no pods and wants none, next has them all. After: foo wants as many as next has, and can make none, since
    its template is closed. So it adopts them all when they have no owner, and has none too many to delete.
    """
    value = own_label(request, next)
    operations = (
        test("/spec/replicas", 0),
        *annotate(foo, {identity.TAKEOVER: identity.canonical(mark_for(request, next, desired, foo.images))}),
        *_label(foo, request.label_key, value),
        put("/spec/template", _closed(next.template)),
        put("/spec/minReadySeconds", next.min_ready_seconds),
        put("/spec/replicas", desired),
    )
    return Step(Action.RENAME, foo.name, patch(foo, *operations), before=foo.images, after=next.images)


def recreate(request: Request, next: Controller, desired: int) -> Step:
    """Step 1 when somebody deleted foo: create it parked, as step 1 would have left it, from what next carries.

    A ReplicaSet gets next's selector: by a wider one it would adopt old pods as well, which are left alone.
    """
    adopts = next.kind is Kind.REPLICA_SET
    own = own_label(request, next) or ""
    own = own if adopts else identity.label_value(own, own)
    kept = {key: value for key, value in next.annotations.items() if key not in identity.NOT_COPIED}
    mark = mark_for(request, next, desired, next.last_rollout.get("from") or {})
    manifest = {
        "apiVersion": next.kind.api_version,
        "kind": str(next.kind),
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            "labels": {**next.labels, request.label_key: own},
            "annotations": {**kept, identity.PARTNER: next.name, identity.TAKEOVER: identity.canonical(mark)},
        },
        "spec": {
            "replicas": desired if adopts else 0,
            "selector": next.kind.selector({**next.selector, request.label_key: own}),
            "template": _closed(identity.with_label(next.template, request.label_key, own)),
            "minReadySeconds": next.min_ready_seconds,
        },
    }
    return Step(Action.CREATE, request.name, Create(manifest), after=next.images)


def finish(request: Request, seen: Observed) -> Decision:
    """Steps 2 to 5, found from the mark on foo."""
    foo = t.cast(Controller, seen.foo)
    mark = foo.takeover
    complete = mark and {"next", "uid", "label", "selector", "replicas"} <= mark.keys() and mark["label"] in mark["selector"]
    if not mark or not complete:
        raise RolloutError(
            f"the annotation {identity.TAKEOVER} cannot be read, so the takeover cannot be finished",
            where=request.where,
            next_command=f"{request.kubectl} get {request.kind.short} {foo.name} -o yaml",
        )
    if foo.kind is Kind.REPLICA_SET:
        return _adopt(request, seen, foo, mark)
    if foo.selector == mark["selector"]:
        return _end(request, seen, foo, mark)
    if foo.replicas != 0:
        # Somebody scaled foo: flipped now, it would let go of the pods it has made meanwhile.
        return scale(foo, 0, Action.RESTORE)
    if not foo.is_empty:
        # Also before next goes: a controller manager that has not seen foo's new selector yet would adopt next's pods.
        return Wait(f"the controller manager sees that {foo.name} is empty")
    if seen.next is not None and seen.next.uid == mark["uid"]:
        return _release(seen.next)
    return _flip(foo, mark)


def _adopt(request: Request, seen: Observed, foo: Controller, mark: Json) -> Decision:
    """Steps 2 to 4 of a ReplicaSet: next goes when the controller manager knows that foo wants its pods.

    Known to want none, foo would adopt and delete them.
    """
    if seen.next is None or seen.next.uid != mark["uid"]:
        return _end(request, seen, foo, mark)
    if foo.replicas < mark["replicas"] and not seen.next.is_deleting:
        return scale(foo, mark["replicas"], Action.RESTORE)
    if not is_closed(seen.next) and not seen.next.is_deleting:
        return _close(seen.next, foo)
    if not (foo.is_observed and seen.next.is_observed):
        return Wait(f"the controller manager sees {foo.name} and {seen.next.name}")
    return _release(seen.next)


def _close(next: Controller, foo: Controller) -> Step:
    """Before a ReplicaSet's next goes, it is closed too, and carries foo's mark, which has the priority class of before.

    foo adopts the pods as soon as they have no owner. A controller manager that hears of that before it hears of the end of
    next would make new ones for next.
    """
    operations = (*annotate(next, {identity.TAKEOVER: foo.annotations[identity.TAKEOVER]}),
                  put("/spec/template/spec/priorityClassName", CLOSED))
    return Step(Action.ANNOTATE, next.name, patch(next, *operations), after="no pod is made for it any more")


def _release(next: Controller) -> Decision:
    """Step 2: next is deleted and its pods stay, without an owner.

    Before: foo is parked and the controller manager knows it. After, once next is really gone: the pods serve, but
    nobody replaces one that dies. Flipping foo any earlier would make it create pods of its own.
    """
    if next.is_deleting:
        return Wait(f"{next.name} is gone")
    return Step(Action.DELETE, next.name, Delete(next.name, "Orphan", {"uid": next.uid}, next.kind), before=next.replicas)


def _flip(foo: Controller, mark: Json) -> Step:
    """Step 3: foo gets next's selector, label and size in one patch, and adopts the pods.

    Before: the pods have no owner. After: they are foo's, and foo replaces what dies.
    """
    key, value = mark["label"], mark["selector"][mark["label"]]
    labels = foo.template.get("metadata", {}).get("labels") or {}
    operations = (
        test("/spec/replicas", 0),
        test(annotation(identity.TAKEOVER), foo.annotations[identity.TAKEOVER]),
        *_label(foo, key, value),
        put("/spec/template/metadata/labels", {**labels, key: value}),
        put("/spec/selector", mark["selector"]),
        put("/spec/replicas", mark["replicas"]),
    )
    return Step(Action.RESTORE, foo.name, patch(foo, *operations), before=0, after=mark["replicas"])


def _label(foo: Controller, key: str, value: str | None) -> tuple[Json, ...]:
    if foo.labels:
        return (put(f"/metadata/labels/{pointer(key)}", value),)
    return test("/metadata/labels", None), put("/metadata/labels", {key: value})


def _end(request: Request, seen: Observed, foo: Controller, mark: Json) -> Decision:
    """Step 4: when all pods are foo's and available, its template is opened and the marks go, in one patch.

    The marks stay until then so that a task that is run again after a kill waits for the pods as the first one did. When a
    pod has died meanwhile, the template is opened as soon as no pod is without an owner, so that foo can replace it.
    """
    is_open = not is_closed(foo)
    path = "/spec/template/spec/priorityClassName"
    original = mark.get("priorityClassName")
    opening: tuple[Json, ...] = ()
    if not is_open:
        opening = (test(path, CLOSED), put(path, original) if original else {"op": "remove", "path": path})
    if not foo.is_settled:
        if not is_open and seen.orphans == 0:
            return Step(Action.RESTORE, foo.name, patch(foo, *opening), before="closed template", after="template")
        return Wait(f"{foo.name} {foo.available}/{foo.replicas} available after the takeover")
    images = images_of(foo.template)
    record = {"outcome": "updated", "from": mark.get("from", {}), "to": images, **seen.stamp}
    is_next_s = mark.get("template") == _digest(foo.template, mark["label"])  # nobody has edited it meanwhile
    if is_next_s:
        record["request"] = became(mark.get("request", ""), foo, mark["label"])
    changes = {**dict.fromkeys(identity.MARKS), identity.LAST_ROLLOUT: identity.canonical(record)}
    changes = {key: value for key, value in changes.items() if value or key in foo.annotations}
    write = patch(foo, *annotate(foo, changes), *opening)
    return Step(Action.ANNOTATE, foo.name, write, before="taking over", after="updated", is_end=True,
                is_last=is_next_s and mark.get("request") == request.fingerprint)


def mark_for(request: Request, next: Controller, desired: int, before: Json) -> Json:
    """What foo must know to finish alone: who next was, what its pods look like, how many they are."""
    return {"next": next.name, "uid": next.uid, "label": request.label_key, "selector": next.selector,
            "replicas": desired, "from": before, "request": request.fingerprint,
            "template": _digest(next.template, request.label_key),
            "priorityClassName": (next.takeover or next.template["spec"]).get("priorityClassName")}


def became(fingerprint: str, controller: Controller, key: str) -> str:
    """What a request has led to, for the record: admission may have made something of it that no request names."""
    return f"{fingerprint}/{_digest(controller.template, key)}"


def is_what_became_of(request: Request, controller: Controller) -> bool:
    """Whether the last update was the same request, and nobody has changed the template since."""
    record = controller.last_rollout
    return ((request.state is State.UPDATED or request.revision is not None) and record.get("outcome") == "updated"
            and record.get("request") == became(request.fingerprint, controller, request.label_key))


def needs_orphans(foo: Controller) -> bool:
    """Whether the planner wants to know of pods without an owner: foo adopts, and is not complete."""
    return has_adopted(foo) and foo.is_observed and foo.current != foo.replicas


def has_adopted(foo: Controller) -> bool:
    """Whether foo takes what pods it finds: a ReplicaSet from the first step of its takeover, before next is gone."""
    mark = foo.takeover
    return bool(mark and (foo.kind is Kind.REPLICA_SET or foo.selector == mark.get("selector")))


def is_closed(foo: Controller) -> bool:
    return foo.template["spec"].get("priorityClassName") == CLOSED


def _digest(template: Json, key: str) -> str:
    """Tells whether somebody has changed foo's template during the takeover, whatever its priority class."""
    spec = {field: value for field, value in template["spec"].items() if field != "priorityClassName"}
    return identity.digest(identity.without_label({**template, "spec": spec}, key))


def _closed(template: Json) -> Json:
    return {**template, "spec": {**template["spec"], "priorityClassName": CLOSED}}


def _own_value(request: Request, foo: Controller, next: Controller) -> str:
    """The deployment label's value on foo while it is parked: never next's."""
    own, taken = own_label(request, foo), own_label(request, next)
    return own if own and own != taken else identity.label_value([foo.template, foo.selector], taken)

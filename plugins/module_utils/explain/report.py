# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The words of a task's result: the state of a rollout, one step, one line of progress (design section 6). Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ..flows.deployment import planner as deployment
from ..model import identity
from ..model.observed import Controller, Deployment, Observed, Revision
from ..model.request import Request, State, differ_in_images_only, images_of
from ..model.steps import Step
from . import surroundings

Json = dict[str, t.Any]

#: The most samples of the sizes that a result has.
SAMPLES = 500


def rollout(seen: Observed) -> Json:
    """Where the rollout stands: phase, direction, and both controllers in numbers.

    phase is complete (no update is in progress), progressing, paused, or taking_over.
    """
    primary, successor = seen.primary, seen.successor
    survivor = primary or successor
    phase, direction = "complete", None
    if primary and identity.TAKEOVER in primary.annotations:
        phase, direction = "taking_over", "forward"
    elif primary and (primary.is_marked or successor and successor.partner == primary.name):
        phase = "progressing" if primary.paused is None else "paused"
        direction = "back" if primary.desired else "forward"
    elif primary is None and successor and successor.is_marked:
        phase, direction = "progressing", "forward"
    began = (successor or survivor).last_rollout if survivor else {}
    if primary and (direction == "back" or isinstance(primary, Deployment)):
        began = primary.last_rollout
    controller_numbers, successor_numbers = _both(seen)
    return {
        "phase": phase,
        "direction": direction,
        "controller": controller_numbers,
        "next": successor_numbers if phase != "complete" else None,
        "desired": _goal(primary, successor),
        "since": began.get("time") if phase != "complete" else None,
        "last_rollout": _last(survivor) if survivor and phase == "complete" else None,
    }


def history(seen: Observed) -> list[Json]:
    """The templates that one can go back to, the newest first; one that has come again is told once."""
    newest: dict[str, Revision] = {}
    for it in seen.history:
        newest.setdefault(identity.canonical(it.template), it)
    return [{"revision": it.number, "images": images_of(it.template), "time": it.time, "who": it.who} for it in newest.values()]


def commands(seen: Observed, namespace: str) -> Json:
    """What to type to go on with an update in progress, and to go back; None where there is nothing to do."""
    primary, successor, state = seen.primary, seen.successor, rollout(seen)
    if state["phase"] == "complete" or primary is None and successor is None:
        return {"resume_command": None, "rollback_command": None}
    name = primary.name if primary else successor.partner or successor.name
    before, after = (primary.images if primary else {}), (successor or primary).images
    key, given_name, old = identity.DEPLOYMENT_LABEL, None, primary
    if isinstance(primary, Deployment):
        before, after, key = primary.last_rollout.get("from") or {}, primary.images, identity.HASH_LABEL
        old = {it.name: it for it in seen.sets}.get(primary.last_rollout.get("set"))
    elif primary and primary.takeover:
        before, after, key = primary.takeover.get("from", {}), primary.images, primary.takeover.get("label", key)
    elif primary and successor:
        differing = [each for each, value in successor.selector.items() if primary.selector.get(each) != value]
        key = key if key in differing or not differing else differing[0]
        given_name = None if successor.name == identity.successor_name(name, successor.selector.get(key, "")) else successor.name
    request = Request(name=name, namespace=namespace, kind=(primary or successor).kind, next_name=given_name, label_key=key)
    back = request.command(State.ROLLED_BACK)
    changed = {container: image for container, image in after.items() if before.get(container) != image}
    forward = dataclasses.replace(request, images=changed).command()
    if old and successor and not old.takeover and not differ_in_images_only(old.template, successor.template, key):
        forward = "run the task that began it"
    return {"resume_command": back if state["direction"] == "back" else forward,
            "rollback_command": None if state["phase"] == "taking_over" or primary is None else back}


def images(start: Observed, end: Observed) -> Json:
    """The images of the user's pods before the update and now."""
    mark = (start.primary.takeover or getattr(start.primary, "rollout", None)) if start.primary else None
    before, after = start.primary or start.successor, end.primary or end.successor
    return {"before": mark.get("from", {}) if mark else before.images if before else {},
            "after": after.images if after else {}}


def bounds(request: Request, start: Observed, budgets: t.Iterable[Json]) -> Json:
    """The fewest available pods and the most pods in all that the update allows, in replicas; None without a controller.

    The floor is no higher than what was available when the task began.
    """
    desired = _goal(start.primary, start.successor)
    if desired is None:
        return {"floor": None, "ceiling": None}
    surge, unavailable = (deployment.fenceposts(request, start.primary) if isinstance(start.primary, Deployment)
                          else surroundings.pace(request, budgets, desired))
    available = sum(it["available"] for it in _both(start) if it)
    return {"floor": max(0, min(desired - unavailable, available)), "ceiling": desired + surge}


def add_sample(sizes: list[Json], seen: Observed, at: str, is_end: bool = False) -> None:
    """Append both sizes to the samples so far if they have changed, and at the end, up to which they are the last one's.

    When there are too many, every second one goes, but for the first and the last.
    """
    controller, successor = map(_size, _both(seen))
    sample = {"phase": rollout(seen)["phase"], "controller": controller, "next": successor}
    if not is_end and sizes and sample == {key: sizes[-1][key] for key in sample}:
        return
    sizes.append({"at": at, **sample})
    if len(sizes) > SAMPLES:
        del sizes[1:-1:2]


def diff(start: Observed, end: Observed) -> Json:
    """The pod template before and after, for diff mode."""
    before, after = start.primary or start.successor, end.primary or end.successor
    return {"before": {"template": before.template} if before else {}, "after": {"template": after.template} if after else {}}


def entry(step: Step, at: str) -> Json:
    """One element of `steps`."""
    return {"action": str(step.action), "kind": step.write.kind, "name": step.name,
            "from": step.before, "to": step.after, "at": at}


def event(primary: Controller, namespace: str, kind: str, reason: str, message: str, now: str) -> Json:
    """An Event, for `kubectl describe`; kind is Normal or Warning."""
    involved = {"apiVersion": primary.kind.api_version, "kind": str(primary.kind), "name": primary.name, "namespace": namespace,
                "uid": primary.uid}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": f"{primary.name[:200]}.", "namespace": namespace},
            "involvedObject": involved, "type": kind, "reason": reason, "message": message[:1000], "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "baton.kubernetes"}}


def line(step: Step) -> str:
    """One line of progress: names, sizes and images only, never what could hold a secret."""
    if step.action in ("scale", "restore") and isinstance(step.after, int):
        change = f"{step.before} -> {step.after} replicas"
    elif step.action == "create":
        change = f"with {_images(step.after)}"
    elif step.action == "update":
        change = f"{_images(step.before)} -> {_images(step.after)}"
    elif step.action == "rename":
        change = f"takes over {_images(step.after)}"
    elif step.action == "hand over":
        change = f"{step.before} pod{'s' if step.before != 1 else ''} to {step.after}"
    elif step.action == "restore" and isinstance(step.after, dict):
        change = f"{_images(step.after)}, where somebody has applied {_images(step.before)}"
    elif step.action == "delete":
        change = step.after or "it has no pods"
    else:
        change = str(step.after)
    return f"{step.action} {step.name}: {change}"


def waiting(until: str, namespace: str, pod: str = "", cause: str = "") -> str:
    """One line of progress while there is nothing to do: the sizes, and why pods do not become available, where that is known.

    pod is the one that cause, a sentence, is about; "" where it is the controller.
    """
    if pod:
        cause = cause.replace(f"pod {pod}", f"pod {namespace}/{pod}", 1)
    return "; ".join(filter(None, (f"waiting: {until}", cause)))


def sentence(request: Request, seen: Observed) -> str:
    """What has become of the user's controller, when something was done."""
    survivor = seen.primary or seen.successor
    if survivor is None:
        return f"{request.name} is gone"
    done = {"updated": "is updated to", "rolled_back": "is rolled back to", "restarted": "is restarted with",
            "migrated": "is a Deployment now, with"}[request.state]
    if survivor.paused is not None and seen.successor:
        beside, old = survivor.replicas, survivor.images
        if isinstance(survivor, Deployment):
            beside, old = seen.old_pods, survivor.last_rollout["from"]
        return (f"{request.name} is paused at {survivor.paused} of {_goal(survivor, None)} replicas of "
                f"{_images(seen.successor.images)} ({seen.successor.name}), beside {beside} of {_images(old)}")
    taken = f" takes the place of {request.name} and" if survivor.name != request.name else ""
    return (f"{survivor.name}{taken} {done} {_images(survivor.images)}: "
            f"{survivor.available} of {survivor.replicas} replicas available")


def pod(item: Json, is_new: bool) -> Json:
    """What somebody who wants to try a pod must know of it."""
    status = item.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    return {"name": item["metadata"]["name"], "ip": status.get("podIP"), "node": item["spec"].get("nodeName"),
            "is_ready": conditions.get("Ready") == "True", "is_new": is_new}


def _last(it: Controller) -> Json | None:
    """The record of the last update, without what is only for the next task to compare."""
    return {field: value for field, value in it.last_rollout.items() if field not in ("request", "template")} or None


def standing(seen: Observed) -> str:
    """How far an update in progress is, in a few words."""
    return ", ".join(f"{it.name} has {it.available} of {it.replicas} available" for it in (seen.successor, seen.primary) if it)


def _numbers(it: Controller | None) -> Json | None:
    if it is None:
        return None
    return {"name": it.name, "uid": it.uid, "replicas": it.replicas, "available": it.available, "images": it.images}


def _size(numbers: Json | None) -> Json | None:
    return {field: numbers[field] for field in ("replicas", "available")} if numbers else None


def _both(seen: Observed) -> tuple[Json | None, Json | None]:
    """The user's controller and the successor in numbers.

    Those of a Deployment in the middle of an update are its ReplicaSets: what it had, and what it is to have.
    """
    primary = seen.primary
    if not isinstance(primary, Deployment):
        return _numbers(primary), _numbers(seen.successor)
    if not primary.is_marked:
        return _numbers(primary), None
    others = [it for it in seen.sets if it is not seen.successor]
    left = {"name": others[-1].name if others else primary.name, "uid": others[-1].uid if others else primary.uid,
            "replicas": sum(it.replicas for it in others), "available": sum(it.available for it in others),
            "images": primary.last_rollout.get("from") or {}}
    whole = {"name": primary.name, "uid": primary.uid}
    if primary.desired:  # on its way back
        return {**(_numbers(seen.successor) or _numbers(primary) or {}), **whole}, left
    return {**left, **whole}, _numbers(seen.successor)


def _goal(primary: Controller | None, successor: Controller | None) -> int | None:
    for it in (primary, successor):
        if it and it.original is not None:
            return it.original
    return primary.replicas if primary else successor.replicas if successor else None


def _images(images: t.Any) -> str:
    return ", ".join(dict.fromkeys(images.values())) if images else "no image"

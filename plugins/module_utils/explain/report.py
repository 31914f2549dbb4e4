# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the result (RETURN of the module rolling_update), lines and Events of a task. No I/O."""

from __future__ import annotations

import dataclasses
import typing as t

from ..flows.flow import RolloutStatus, Side
from ..model import identity
from ..model.fields import Json, seconds
from ..model.kinds import State
from ..model.object_meta import Revision
from ..model.observed import Controller, Observed, is_ready
from ..model.request import Request
from ..model.steps import Step
from ..model.template import image_names, images_of

MAX_SAMPLES = 500
_LAST_ROLLOUT_FIELDS = ("outcome", "from", "to", "time", "who", "to_revision")
#: The words before the images in summary(), by state.
_OUTCOMES = {"updated": "updated to", "rolled_back": "rolled back to",
             "restarted": "restarted with", "migrated": "a Deployment, with"}


def rollout(status: RolloutStatus) -> Json:
    """Return the phase, the direction and the numbers of pods of a rollout."""
    is_complete = status.phase == "complete"
    return {
        "phase": status.phase,
        "direction": status.direction,
        "controller": _side_fields(status.old),
        "successor": None if is_complete else _side_fields(status.new),
        "desired": status.goal,
        "since": _start(status),
        "last_rollout": _last_rollout(status.survivor) if status.survivor and is_complete else None,
    }


def _start(status: RolloutStatus) -> str | None:
    """Return when the update in progress began, in RFC 3339, or None if unknown.

    A user with annotate permission can forge the recorded time, but not the time at which the API
    server created a controller that has only new pods. The update began no earlier.
    """
    creation_times = [holder.controller.created for holder in status.holders
                      if holder.new_labels == {}]
    times = [time for time in (status.since, *creation_times) if seconds(time) is not None]
    return (max(times, key=lambda time: seconds(time) or 0.0) if status.since in times
            else status.since)


def history(revisions: t.Iterable[Revision]) -> list[Json]:
    """Return the revisions that a rollback can restore, newest first."""
    newest_by_template: dict[str, Revision] = {}
    for revision in revisions:
        newest_by_template.setdefault(identity.canonical(revision.template), revision)
    return [{"revision": revision.number, "images": images_of(revision.template),
             "time": revision.time, "who": revision.who}
            for revision in newest_by_template.values()]


def images(start: RolloutStatus, end: RolloutStatus) -> Json:
    """Return the images before the update and after the task."""
    return {"before": start.before, "after": end.after}


def pod_count_bounds(start: RolloutStatus) -> Json:
    """Return the minimum of available pods (floor) and the maximum of all pods (ceiling)."""
    if start.goal is None:
        return {"floor": None, "ceiling": None}
    available = sum(side.available for side in (start.old, start.new) if side)
    return {"floor": max(0, min(start.goal - start.unavailable, available)),
            "ceiling": start.goal + start.surge}


def add_sample(sizes: list[Json], status: RolloutStatus, at: str, is_end: bool = False,
               is_watched: bool = False) -> None:
    """Append a sample if it differs from the previous sample, or if the task ends.

    If there are more than MAX_SAMPLES samples, delete every other sample, except the first and the
    last.
    """
    sample = {"phase": status.phase, "is_watched": is_watched, "controller": _size(status.old),
              "successor": _size(status.new)}
    if not is_end and sizes and sample == {key: sizes[-1][key] for key in sample}:
        return
    sizes.append({"at": at, **sample})
    if len(sizes) > MAX_SAMPLES:
        del sizes[1:-1:2]


def diff(start: RolloutStatus, end: RolloutStatus) -> Json:
    """Return the pod template before and after the task, for diff mode."""
    before, after = ({"template": status.template} if status.template else {}
                     for status in (start, end))
    return {"before": before, "after": after}


def steps_entry(step: Step, at: str) -> Json:
    """Return an element of `steps` in the result."""
    return {"action": str(step.action), "kind": step.write.kind, "name": step.name,
            "from": step.before, "to": step.after, "at": at}


def event(primary: Controller, namespace: str, event_type: str, reason: str, message: str,
          now: str) -> Json:
    """Return an Event about the primary. event_type: Normal or Warning."""
    involved_object = {"apiVersion": primary.kind.api_version, "kind": str(primary.kind),
                       "name": primary.name, "namespace": namespace, "uid": primary.uid}
    return {"apiVersion": "v1", "kind": "Event",
            "metadata": {"generateName": f"{primary.name[:200]}.", "namespace": namespace},
            "involvedObject": involved_object, "type": event_type, "reason": reason,
            "message": message[:1000], "count": 1, "firstTimestamp": now, "lastTimestamp": now,
            "source": {"component": "baton.kubernetes"}}


def step_line(step: Step) -> str:
    """Return the progress line of a step, without secrets."""
    if step.action in ("scale", "restore") and isinstance(step.after, int):
        change = f"{step.before} -> {step.after} replicas"
    elif step.action == "create":
        change = f"with {image_names(step.after)}"
    elif step.action == "update":
        change = f"{image_names(step.before)} -> {image_names(step.after)}"
    elif step.action == "rename":
        change = f"takes over {image_names(step.after)}"
    elif step.action == "hand over":
        change = f"{step.before} pod{'s' if step.before != 1 else ''} to {step.after}"
    elif step.action == "restore" and isinstance(step.after, dict):
        change = f"{image_names(step.after)}; another client had set {image_names(step.before)}"
    elif step.action == "delete":
        change = step.after or "it has no pods"
    else:
        change = str(step.after)
    return f"{step.action} {step.name}: {change}"


def pause_commands(request: Request, status: RolloutStatus) -> Json:
    """Return the commands that resume or roll back an incomplete update."""
    if status.phase != "paused" and (request.waits or status.phase == "complete"):
        return {}
    changes: Json = {"pause_at": None, "nodes": None} if request.waits else {"wait": None}
    if request.keeps_old:
        changes["keep_old"] = None
    return {"resume_command": request.command(**changes),
            "rollback_command": request.command(State.ROLLED_BACK)}


def wait_line(wait: str, namespace: str, pod: str = "", cause: str = "") -> str:
    """Return the progress line of a wait."""
    if pod:
        cause = cause.replace(f"pod {pod}", f"pod {namespace}/{pod}", 1)
    return "; ".join(filter(None, (wait, cause)))


def summary(request: Request, status: RolloutStatus, is_real: bool = True) -> str:
    """Return the sentence that summarizes a task. is_real: False in check mode."""
    survivor, old, new = status.survivor, status.old, status.new
    verb = "is" if is_real else "would be"
    if survivor is None:
        return f"{request.name} {verb} deleted"
    if status.paused_at is not None and old and new:
        return (f"{request.name} {verb} paused at {status.paused_at} of {status.goal} replicas "
                f"of {image_names(new.images)} ({new.name}), alongside {old.replicas} of "
                f"{image_names(old.images)}")
    if not request.waits and status.phase == "progressing":
        return (f"the update of {survivor.name} to {image_names(survivor.images)} {verb} in "
                f"progress, and the cluster continues it: {new.available if new else 0} of "
                f"{status.goal} replicas available")
    replaces = "replaces" if is_real else "would replace"
    replacement = f" {replaces} {request.name} and" if survivor.name != request.name else ""
    final_verb = "is now" if is_real and request.state.migrates else verb
    return (f"{survivor.name}{replacement} {final_verb} {_OUTCOMES[request.state]} "
            f"{image_names(survivor.images)}: {survivor.available} of {survivor.replicas} replicas "
            "available")


def pod_fields(item: Json, is_new: bool | None) -> Json:
    """Return the element of `pods` in the result for one pod. is_new: None if unknown."""
    status = item.get("status") or {}
    return {"name": item["metadata"]["name"], "ip": status.get("podIP"),
            "node": item["spec"].get("nodeName"), "is_ready": is_ready(item),
            "is_new": is_new}


def _last_rollout(controller: Controller) -> Json | None:
    record = controller.last_rollout
    # Any client can write the annotation, also with the record of an update in progress.
    if record.get("outcome") not in ("updated", "rolled_back"):
        return None
    return {field: record[field] for field in _LAST_ROLLOUT_FIELDS if field in record}


def describe_progress(observed: Observed) -> str:
    """Describe how many pods of each controller are available."""
    return ", ".join(
        f"{controller.name} has {controller.available} of {controller.replicas} available"
        for controller in (observed.successor, observed.primary) if controller)


def _side_fields(side: Side | None) -> Json | None:
    return dataclasses.asdict(side) if side else None


def _size(side: Side | None) -> Json | None:
    return {"replicas": side.replicas, "available": side.available} if side else None

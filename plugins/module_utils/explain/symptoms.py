# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Extract symptoms from pods, Events and the annotation of a ReplicaSet. No I/O."""

from __future__ import annotations

import re
import typing as t

from ..model.fields import Json
from ..model.fields import mapping as _map
from ..model.fields import number as _number
from ..model.fields import objects as _list
from ..model.fields import seconds as _seconds
from ..model.fields import text as _text
from ..model.object_meta import SERVER_DESIRED, server_desired_replicas
from ..model.observed import Controller
from .failure_reasons import SIGNALS

#: Seconds. The kubelet repeats a failed mount, with its Event, after a delay that begins at half a
#: second and doubles up to this maximum (pkg/util/goroutinemap/exponentialbackoff).
MAX_MOUNT_DELAY = 122.0
#: Seconds. Covers the first delay, the time to mount, and the missing fraction of the times.
EVENT_TOLERANCE = 2.0
#: Seconds. The kubelet forgets the crashes of a container that runs for longer: its back-off begins
#: anew (MaxContainerBackOff in pkg/kubelet, twice).
MAX_CRASH_MEMORY = 600.0
#: Seconds. Covers the missing fraction of the times.
RUN_TOLERANCE = 2.0
#: A command with arguments, and an address with a query, in messages of the kubelet about probes.
_QUOTED_COMMAND = re.compile(r'(command (?:timed out: )?)"([^"\\\s]+)\s(?:[^"\\]|\\.)*(?:"|$)')
_URL_QUERY = re.compile(r"(https?://[^\s\"?]+)\?[^\s\"]+")
#: The key for the result of mark_outdated_mount_failures() in an Event.
_OUTDATED = "isOutdated"


class Symptom(t.NamedTuple):
    """A reason and a message from a status or an Event."""

    reason: str
    message: str
    occurrences: int = 1
    is_from_event: bool = False
    #: Whether an Event shows a failed mount that may have succeeded since.
    is_outdated: bool = False


def loss_symptoms(spec: Json, status: Json, conditions: dict[str, Json]) -> list[Symptom]:
    """Return the symptoms to compare with failure_reasons.LOST_OR_GATED."""
    symptoms = [condition_symptom(status)]
    if has_status(conditions, "DisruptionTarget", "True"):
        symptoms.append(condition_symptom(conditions["DisruptionTarget"]))
    if "Ready" in conditions and not has_status(conditions, "Ready", "True"):
        symptoms.append(condition_symptom(conditions["Ready"]))
        # If a node stops responding, the node controller sets the condition Ready to False, with no
        # `reason`, and the status of each container remains ready.
        container_statuses = _list(status, "containerStatuses")
        are_ready = bool(container_statuses) and all(
            container_status.get("ready") is True for container_status in container_statuses)
        if are_ready and not _text(conditions["Ready"], "reason"):
            node = _text(spec, "nodeName")
            symptoms.append(Symptom("NodeNotReady", f"node {node} has stopped responding"))
    return symptoms


def condition_symptom(condition: Json) -> Symptom:
    """Return the symptom in a condition, or in the status of a pod."""
    return Symptom(_text(condition, "reason"), _text(condition, "message"))


def finalizer_symptoms(metadata: Json) -> list[Symptom]:
    """Return a symptom that lists the finalizers of a terminating pod, or []."""
    # deletionGracePeriodSeconds is 0 after the kubelet has stopped the pod.
    names = metadata.get("finalizers")
    if not isinstance(names, list) or not names or metadata.get("deletionGracePeriodSeconds") != 0:
        return []
    return [Symptom("Terminating", "finalizers keep it: " + ", ".join(map(str, names)))]


def grace_period_symptom(metadata: Json) -> Symptom:
    """Return a symptom with the end of the grace period."""
    seconds = _number(metadata, "deletionGracePeriodSeconds")
    end = _text(metadata, "deletionTimestamp")
    return Symptom("Terminating", f"its grace period of {seconds} s ends at {end}")


def outdated_replica_set_symptom(replica_set: Controller, size: int) -> Symptom:
    """Return the symptom of a ReplicaSet's annotation that differs from the Deployment's size."""
    recorded_size = server_desired_replicas(replica_set.annotations)
    return Symptom("", f"its annotation {SERVER_DESIRED} is {recorded_size} instead of {size}, so "
                       "the Deployment controller replaces no pods")


def has_status(conditions: dict[str, Json], condition_type: str, value: str) -> bool:
    return _text(conditions.get(condition_type, {}), "status") == value


def termination_symptom(waiting_reason: str, termination: Json, restart_count: int) -> Symptom:
    """Return the symptom of a terminated container.

    waiting_reason: such as "CrashLoopBackOff"; "" if the container is not waiting.
    """
    reason, exit_code = _text(termination, "reason"), _number(termination, "exitCode")
    signal = (f" ({SIGNALS.get(exit_code - 128, f'signal {exit_code - 128}')})"
              if 128 < exit_code < 160 else "")
    if reason in ("StartError", "ContainerCannotRun"):
        return Symptom(reason, _text(termination, "message"))
    if reason in ("", "Error", "Completed"):
        reason = waiting_reason or reason or "Error"
    details = f"exit code {exit_code}{signal}, {restart_text(restart_count)}"
    return Symptom(reason, ": ".join(filter(None, (details, _text(termination, "message")))))


def restart_text(count: int) -> str:
    return {0: "not restarted yet", 1: "restarted once"}.get(count, f"restarted {count} times")


def probe_failures(events: list[Json]) -> dict[str, Symptom]:
    """Return the last failure of each probe, with `occurrences` as the count of all failures."""
    symptoms: dict[str, Symptom] = {}
    for symptom in event_symptoms(events):
        match = re.search(r"(Startup|Liveness|Readiness) probe (failed|errored)", symptom.message)
        if match and symptom.reason == "Unhealthy":
            probe = match[1].lower()
            earlier_count = symptoms[probe].occurrences if probe in symptoms else 0
            symptoms[probe] = symptom._replace(occurrences=symptom.occurrences + earlier_count)
    return symptoms


def probe_threshold(spec: Json, probe: str) -> int:
    """Return the failureThreshold of a probe; 1 if it is unknown."""
    return _number(_map(spec, f"{probe}Probe"), "failureThreshold") or 1


def event_symptoms(events: t.Iterable[Json]) -> list[Symptom]:
    """Return the symptoms of Events, oldest first."""
    symptoms = []
    for event in sorted(events, key=event_time):
        message = event_message(event)
        count = _number(event, "count") or _number(_map(event, "series"), "count") or 1
        # Omit messages such as "Error: ErrImagePull": another Event has the details.
        if not re.fullmatch(r"Error: \w+", message):
            is_outdated = event.get(_OUTDATED) is True
            suffix = " (not repeated lately, so possibly solved)" if is_outdated else ""
            symptoms.append(Symptom(_text(event, "reason"), f"{message}{suffix}", count,
                                    is_from_event=True, is_outdated=is_outdated))
    return symptoms


def event_time(event: Json) -> float:
    """Return when an Event was last repeated, in seconds since 1970; 0 if unknown."""
    return _seconds(_text(_map(event, "series"), "lastObservedTime")
                    or _text(event, "lastTimestamp") or _text(event, "eventTime")) or 0.0


def event_message(event: Json) -> str:
    """Return the message of an Event, about a probe without the arguments and the query.

    These may contain a password.
    """
    message = _text(event, "message").removeprefix("(combined from similar events): ")
    if _text(event, "reason") != "Unhealthy":
        return message
    return _URL_QUERY.sub(r"\1?...", _QUOTED_COMMAND.sub(r'\1"\2 ..."', message))


def mark_outdated_mount_failures(events: t.Iterable[Json], now: float) -> list[Json]:
    """Mark each Event about a missing object of a volume that the kubelet did not repeat in time.

    Either the volume has been mounted since, or the kubelet has sent too many Events about the pod.
    The kubelet then sends only one more Event about this pod in five minutes.
    now: the time of the API server, in seconds since 1970.
    """
    return [{**event, _OUTDATED: _is_outdated_mount_failure(event, now)} for event in events]


def _is_outdated_mount_failure(event: Json, now: float) -> bool:
    message = _text(event, "message")
    if _text(event, "reason") != "FailedMount" or not any(
            text in message for text in ("not found", "non-existent")):
        return False
    first, last = (_seconds(event.get(key)) for key in ("firstTimestamp", "lastTimestamp"))
    if first is None or last is None:
        return True
    # The delay doubles, so the next failure follows after the time since the first failure.
    return now - last > min(last - first, MAX_MOUNT_DELAY) + EVENT_TOLERANCE


def without_past_crashes(pods: t.Iterable[Json], now: float) -> list[Json]:
    """Return the pods without the crashes that are no longer a cause.

    A crash is no longer a cause once the container runs for more than twice as long as before the
    crash, or for longer than MAX_CRASH_MEMORY. If its start is unknown, the crash counts.
    now: the time of the API server, in seconds since 1970. (The times in a pod are of its node.)
    """
    return [{**pod, "status": _without_past_crashes(_map(pod, "status"), now)} for pod in pods]


def _without_past_crashes(status: Json, now: float) -> Json:
    return status | {
        key: [_without_past_crash(container_status, now) for container_status in _list(status, key)]
        for key in ("initContainerStatuses", "containerStatuses") if key in status}


def _without_past_crash(container_status: Json, now: float) -> Json:
    last_run = _map(_map(container_status, "lastState"), "terminated")
    last_start, last_end, start = (_seconds(_text(state, key)) for state, key in (
        (last_run, "startedAt"), (last_run, "finishedAt"),
        (_map(_map(container_status, "state"), "running"), "startedAt")))
    if start is None:
        return container_status
    limit = MAX_CRASH_MEMORY
    if last_start is not None and last_end is not None:
        # The runs before two crashes of the same cause have different lengths.
        limit = min(2 * (last_end - last_start) + RUN_TOLERANCE, MAX_CRASH_MEMORY)
    is_past = now - start > limit
    return {**container_status, "lastState": {}, "restartCount": 0} if is_past else container_status


def event_field(event: Json) -> str:
    """Return the fieldPath of an Event, such as "spec.containers{web}"."""
    return _text(_map(event, "involvedObject"), "fieldPath")


def waiting_reason_and_message(container_status: Json) -> tuple[str, str]:
    """Return the reason and the message of a waiting container, or ("", "")."""
    waiting = _map(_map(container_status, "state"), "waiting")
    return _text(waiting, "reason"), _text(waiting, "message")


def has_started(container_status: Json) -> bool:
    """Return whether the container runs or has run."""
    return any(key in _map(container_status, state) for state in ("state", "lastState")
               for key in ("running", "terminated"))

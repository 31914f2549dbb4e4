# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Failures of new pods since the beginning of a soak, in the cluster's own words. Pure.

The pod's status shows restarts and readiness; Events are only counted, and compared with the Events
about old pods.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ..model.fields import Json, mapping, number, objects, seconds, text
from ..model.request import Request
from . import diagnosis
from .diagnosis import Cause
from .failure_reasons import EVICTED, GONE, NODE, REJECTED, UNREADY, WARNED

#: The upper limit for the count of an Event.
MOST_TIMES = 10**6
_SEE = "{kubectl} describe pod {pod}"


class Vitals(t.NamedTuple):
    """Fields of a pod that a soak compares."""

    name: str
    #: Restart counts by container.
    restarts: dict[str, int]
    is_ready: bool
    #: The last transition of the condition Ready.
    since: str

    @classmethod
    def of(cls, pod: Json) -> Vitals:
        ready = _ready(pod)
        return cls(name_of(pod),
                   {text(status, "name"): number(status, "restartCount")
                    for status in _containers(pod)},
                   is_well(pod), text(ready, "lastTransitionTime"))


#: Pods by uid: at their first observation, and now.
First: t.TypeAlias = "t.Mapping[str, Vitals]"
Present: t.TypeAlias = "t.Mapping[str, Json]"


def is_well(pod: Json) -> bool:
    """Return whether a pod is ready, has not ended and does not terminate."""
    return is_lasting(pod) and text(_ready(pod), "status") == "True"


def is_lasting(pod: Json) -> bool:
    """Return whether a pod has not ended and does not terminate."""
    has_ended = text(mapping(pod, "status"), "phase") in ("Failed", "Succeeded")
    return not has_ended and "deletionTimestamp" not in mapping(pod, "metadata")


def healthy_since(pod: Json) -> float | None:
    """Return the time since which a pod is healthy, in seconds since 1970; None if unknown.

    An annotation on the controller may claim a longer soak: the pod's status proves since when the
    pod runs without a restart or a loss of readiness.
    """
    started = [text(mapping(status, "state", "running"), "startedAt") for status in _containers(pod)
               if mapping(status, "state", "running")]
    times = [seconds(time)
             for time in (created(pod), text(_ready(pod), "lastTransitionTime"), *started)]
    known_times = [time for time in times if time is not None]
    return max(known_times) if len(known_times) == len(times) and is_well(pod) else None


def last_warning_time(events: t.Iterable[Json], uids: t.Container[str]) -> float:
    """Return the time of the last Event about the pods, in seconds since 1970; 0 without Events."""
    times = (text(event, "lastTimestamp") or text(event, "eventTime") for event in events
             if _about(event) in uids)
    return max(filter(None, map(seconds, times)), default=0.0)


def created(pod: Json) -> str:
    return text(mapping(pod, "metadata"), "creationTimestamp")


def name_of(pod: Json) -> str:
    return text(mapping(pod, "metadata"), "name")


def event_counts(events: t.Iterable[Json]) -> dict[str, int]:
    """Return the count of event Event by uid."""
    return {text(mapping(event, "metadata"), "uid"): _times(event) for event in events}


def events_about(events: t.Iterable[Json], uids: t.Container[str]) -> list[Json]:
    return [event for event in events if _about(event) in uids]


def reasons(events: t.Iterable[Json], uids: t.Container[str]) -> frozenset[str]:
    """Return the reasons of the Events about these pods."""
    return frozenset(filter(None, (text(event, "reason") for event in events_about(events, uids))))


def lost_pods(first: First, pods: Present) -> dict[str, Vitals]:
    """Return the pods that were ready at first and are now deleted or terminating.

    A pod that was not ready yet does not count.
    """
    return {uid: before for uid, before in first.items()
            if before.is_ready
            and (uid not in pods or "deletionTimestamp" in mapping(pods[uid], "metadata"))}


def causes(request: Request, first: First, pods: Present, may_go: int = 0,
           changed: t.Container[str] | None = None) -> list[Cause]:
    """Return the causes of all failures of the first pods.

    Up to may_go deleted pods are no failure. changed: the uids of pods whose state differs from the
    last state without a failure; None means all pods.
    """
    gone = lost_pods(first, pods)
    are_too_many = len(gone) > may_go
    failures = [cause for uid, before in gone.items() if are_too_many
                for cause in _causes_of_loss(request, before.name, pods.get(uid))]
    for uid in first if changed is None else filter(changed.__contains__, first):
        if uid in pods and uid not in gone:
            failures += _causes_in(request, first[uid], pods[uid])
    return diagnosis.merged(dataclasses.replace(cause, is_fatal=True) for cause in failures)


def past_failures(request: Request, first: First, pods: t.Iterable[Json]) -> list[Cause]:
    """Return the causes of failures in past states of the first pods; deletions do not count."""
    pods_with_first = ((first.get(text(mapping(pod, "metadata"), "uid")), pod) for pod in pods
                       if "deletionTimestamp" not in pod["metadata"])
    failures = [cause for before, pod in pods_with_first if before
                for cause in _causes_in(request, before, pod)]
    return diagnosis.merged(dataclasses.replace(cause, is_fatal=True) for cause in failures)


def excess_warnings(request: Request, new: Present, old: Present, events: t.Iterable[Json],
                    before: t.Mapping[str, int], usual: t.Container[str] = ()) -> list[Cause]:
    """Return a cause if new pods have more warnings than old pods.

    Both the average and the maximum per pod must be higher. before: event_counts() at the beginning
    of the soak; usual: the reasons that do not count.
    """
    times: dict[str, int] = collections.defaultdict(int)
    last_events: dict[str, Json] = {}
    for event in events:
        grown = _times(event) - before.get(text(mapping(event, "metadata"), "uid"), 0)
        uid = _about(event)
        if grown > 0 and (uid in new or uid in old) and text(event, "reason") not in usual:
            times[uid] += grown
            last_events[uid] = event
    of_new, of_old = ([times[uid] for uid in pods if uid in times] for pods in (new, old))
    most_of_old = max(of_old, default=0)
    is_more = (sum(of_new) * max(1, len(old)) > sum(of_old) * max(1, len(new))
               and max(of_new, default=0) > most_of_old)
    if not is_more:
        return []
    worst = max((uid for uid in new if uid in times), key=lambda uid: (times[uid], uid))
    name, event = name_of(new[worst]), last_events[worst]
    than = (f"against at most {most_of_old} of an old pod" if old
            else "and there is no old pod to compare with")
    message = " ".join(text(event, "message").split())[:diagnosis.LONGEST_MESSAGE]
    return [_cause(request, WARNED, text(event, "reason"),
                   f"{_counted(times[worst])} during the soak, {than}; the last one: "
                   f"{message}", name)]


def _causes_of_loss(request: Request, name: str, pod: Json | None) -> list[Cause]:
    return _lost(request, pod or {}) or [
        _cause(request, GONE, "Deleted", "another client deleted it", name,
               suggestion="{kubectl} get events")]


def _lost(request: Request, pod: Json) -> list[Cause]:
    """Return the causes of a pod's end by eviction, rejection or the loss of the node."""
    going = {**pod, "metadata": {"deletionTimestamp": "going", **mapping(pod, "metadata")}}
    return [cause for cause in diagnosis.pod_causes(request, going, ())
            if cause.kind in (EVICTED, NODE, REJECTED)]


def _causes_in(request: Request, before: Vitals, pod: Json) -> list[Cause]:
    """Return the causes for an existing pod; none if the pod was not ready at first.

    The update itself waits for starting pods, and reports the causes of a failed start.
    """
    if not before.is_ready:
        return []
    now = Vitals.of(pod)
    again = [container
             for container, times in now.restarts.items()
             if times > before.restarts.get(container, 0)]
    if again and (restarted := diagnosis.restart_causes(request, pod, again)):
        return restarted
    if not is_lasting(pod) and (lost := _lost(request, pod)):
        return lost
    if not now.is_ready:
        condition = _ready(pod)
        message = text(condition, "message") or "it was ready, and no longer is"
        return diagnosis.pod_causes(request, pod, ()) or [
            _cause(request, UNREADY, text(condition, "reason") or "NotReady", message, now.name)]
    if now.since != before.since:
        return [_cause(request, UNREADY, "NotReady",
                       f"it was not ready for a while, and is ready again since {now.since}",
                       now.name)]
    return []


def _cause(request: Request, kind: str, reason: str, message: str, pod: str,
           suggestion: str = _SEE) -> Cause:
    return Cause(kind=kind, reason=reason, message=message, is_fatal=True, pod=pod,
                 place=f"pod {pod}",
                 suggestion=suggestion.format(kubectl=request.kubectl,
                                              pod=diagnosis.name_or_placeholder("pod", pod)))


def _counted(times: int) -> str:
    return f"{times} warning{'s' if times > 1 else ''}"


def _times(event: Json) -> int:
    return max(1,
               min(number(event, "count") or number(mapping(event, "series"), "count"), MOST_TIMES))


def _about(event: Json) -> str:
    return text(mapping(event, "involvedObject"), "uid")


def _ready(pod: Json) -> Json:
    return next((condition for condition in objects(mapping(pod, "status"), "conditions")
                 if text(condition, "type") == "Ready"), {})


def _containers(pod: Json) -> list[Json]:
    status = mapping(pod, "status")
    return [*objects(status, "initContainerStatuses"), *objects(status, "containerStatuses")]

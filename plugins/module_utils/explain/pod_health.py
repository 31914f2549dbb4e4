# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the failures of new pods since the start of a soak. No I/O.

During a soak, an update waits, and watches its new pods for failures.
"""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ..model.fields import Json, mapping, number, objects, seconds, text
from ..model.observed import is_ready, ready_condition
from ..model.request import Request
from . import diagnosis
from .diagnosis import Cause
from .failure_reasons import (
    DELETED,
    EVICTED,
    EVICTION_BY_API,
    NODE_LOST,
    REJECTED,
    UNREADY,
    WARNED,
)
from .symptoms import event_message, event_time

#: A higher count of an Event is lowered to this value: another client may write any count.
MAX_EVENT_COUNT = 10**6
_DESCRIBE_POD = "{kubectl} describe pod {pod}"


class Vitals(t.NamedTuple):
    """The fields of a pod that a soak compares."""

    name: str
    #: By container.
    restarts: dict[str, int]
    is_ready: bool
    #: lastTransitionTime of the condition Ready.
    transition_time: str

    @classmethod
    def from_api(cls, pod: Json) -> Vitals:
        return cls(name_of(pod),
                   {text(status, "name"): number(status, "restartCount")
                    for status in _container_statuses(pod)},
                   is_healthy(pod), text(ready_condition(pod), "lastTransitionTime"))


#: Each watched pod at the start of its watch, or when the pod became ready, by uid.
InitialPods: t.TypeAlias = "t.Mapping[str, Vitals]"
#: The pods as last read from the API, by uid.
CurrentPods: t.TypeAlias = "t.Mapping[str, Json]"


def is_healthy(pod: Json) -> bool:
    """Return whether a pod is active and ready."""
    return is_active(pod) and is_ready(pod)


def is_active(pod: Json) -> bool:
    """Return whether a pod has neither ended nor begun to terminate."""
    has_ended = text(mapping(pod, "status"), "phase") in ("Failed", "Succeeded")
    return not has_ended and "deletionTimestamp" not in mapping(pod, "metadata")


def healthy_since(pod: Json) -> float | None:
    """Return when a pod became healthy (seconds since 1970); None if unhealthy or unknown."""
    start_times = [text(mapping(status, "state", "running"), "startedAt")
                   for status in _container_statuses(pod) if mapping(status, "state", "running")]
    transition_time = text(ready_condition(pod), "lastTransitionTime")
    times = [seconds(time) for time in (creation_time(pod), transition_time, *start_times)]
    known_times = [time for time in times if time is not None]
    return max(known_times) if len(known_times) == len(times) and is_healthy(pod) else None


def last_warning_time(events: t.Iterable[Json], uids: t.Container[str]) -> float:
    """Return the time of the last warning about the pods (seconds since 1970), or 0."""
    return max((event_time(event) for event in events if _involved_uid(event) in uids),
               default=0.0)


def creation_time(pod: Json) -> str:
    return text(mapping(pod, "metadata"), "creationTimestamp")


def name_of(pod: Json) -> str:
    return text(mapping(pod, "metadata"), "name")


def event_counts(events: t.Iterable[Json]) -> dict[str, int]:
    """Return the count of each Event, by the uid of the Event."""
    return {text(mapping(event, "metadata"), "uid"): _count(event) for event in events}


def events_about(events: t.Iterable[Json], uids: t.Container[str]) -> list[Json]:
    return [event for event in events if _involved_uid(event) in uids]


def event_reasons(events: t.Iterable[Json], uids: t.Container[str]) -> frozenset[str]:
    """Return the reasons of the Events about the pods."""
    return frozenset(filter(None, (text(event, "reason") for event in events_about(events, uids))))


def is_evicted_by_client(pod: Json) -> bool:
    """Return whether a client of the Eviction API has evicted a pod."""
    return any(text(condition, "type") == "DisruptionTarget"
               and text(condition, "status") == "True"
               and text(condition, "reason") == EVICTION_BY_API
               for condition in objects(mapping(pod, "status"), "conditions"))


def lost_pods(initial_pods: InitialPods, pods: CurrentPods) -> dict[str, Vitals]:
    """Return the initially ready pods that are deleted or terminating, by uid."""
    return {uid: initial_pod for uid, initial_pod in initial_pods.items()
            if initial_pod.is_ready
            and (uid not in pods or "deletionTimestamp" in mapping(pods[uid], "metadata"))}


def causes(request: Request, initial_pods: InitialPods, pods: CurrentPods,
           allowed_deletions: int = 0,
           uids_to_check: t.Container[str] | None = None) -> list[Cause]:
    """Return the causes of failures of the initial pods.

    uids_to_check: the pods to check for failures other than a deletion. None means all pods.
    """
    lost_by_uid = lost_pods(initial_pods, pods)
    has_too_many_deletions = len(lost_by_uid) > allowed_deletions
    failures = [cause for uid, initial_pod in lost_by_uid.items() if has_too_many_deletions
                for cause in _loss_causes(request, initial_pod.name, pods.get(uid))]
    checked_uids = (initial_pods if uids_to_check is None
                    else filter(uids_to_check.__contains__, initial_pods))
    for uid in checked_uids:
        if uid in pods and uid not in lost_by_uid:
            failures += _pod_causes(request, initial_pods[uid], pods[uid])
    return diagnosis.merge(dataclasses.replace(cause, is_fatal=True) for cause in failures)


def past_failures(request: Request, initial_pods: InitialPods,
                  states: t.Iterable[Json]) -> list[Cause]:
    """Return the causes of failures in past states of pods, except for deletions."""
    pairs = ((initial_pods.get(text(mapping(pod, "metadata"), "uid")), pod) for pod in states
             if "deletionTimestamp" not in pod["metadata"])
    failures = [cause for initial_pod, pod in pairs if initial_pod
                for cause in _pod_causes(request, initial_pod, pod)]
    return diagnosis.merge(dataclasses.replace(cause, is_fatal=True) for cause in failures)


def excess_warnings(request: Request, new: CurrentPods, old: CurrentPods,
                    events: t.Iterable[Json], initial_counts: t.Mapping[str, int],
                    ignored_reasons: t.Container[str] = ()) -> list[Cause]:
    """Return one cause if the new pods have more warnings than the old pods, else [].

    New pods have more warnings if both the mean and the maximum per pod are higher.
    initial_counts: the result of event_counts() at the start of the soak.
    """
    counts: dict[str, int] = collections.defaultdict(int)
    last_events: dict[str, Json] = {}
    for event in sorted(events, key=event_time):
        increase = _count(event) - initial_counts.get(text(mapping(event, "metadata"), "uid"), 0)
        uid = _involved_uid(event)
        is_counted = (uid in new or uid in old) and text(event, "reason") not in ignored_reasons
        if increase > 0 and is_counted:
            counts[uid] += increase
            last_events[uid] = event
    new_counts, old_counts = ([counts[uid] for uid in pods if uid in counts]
                              for pods in (new, old))
    old_maximum = max(old_counts, default=0)
    is_excess = (sum(new_counts) * max(1, len(old)) > sum(old_counts) * max(1, len(new))
                 and max(new_counts, default=0) > old_maximum)
    if not is_excess:
        return []
    worst_uid = max((uid for uid in new if uid in counts), key=lambda uid: (counts[uid], uid))
    name, event = name_of(new[worst_uid]), last_events[worst_uid]
    comparison = (f"compared with at most {old_maximum} for an old pod" if old
                  else "and there is no old pod to compare with")
    message = " ".join(event_message(event).split())[:diagnosis.MAX_MESSAGE_LENGTH]
    return [_cause(request, WARNED, text(event, "reason"),
                   f"{counts[worst_uid]} warning{'s' if counts[worst_uid] > 1 else ''} during "
                   f"the soak, {comparison}; the last one: {message}", name)]


def _loss_causes(request: Request, name: str, pod: Json | None) -> list[Cause]:
    return _node_causes(request, pod or {}) or [
        _cause(request, DELETED, "Deleted", "another client deleted it", name,
               suggestion="{kubectl} get events")]


def _node_causes(request: Request, pod: Json) -> list[Cause]:
    """Return the causes if a pod was evicted, rejected or lost with its node."""
    # Add a deletionTimestamp, so that diagnosis.pod_causes() ignores the containers.
    deleted_pod = {**pod, "metadata": {"deletionTimestamp": "unknown",
                                       **mapping(pod, "metadata")}}
    return [cause for cause in diagnosis.pod_causes(request, deleted_pod, ())
            if cause.kind in (EVICTED, NODE_LOST, REJECTED)]


def _pod_causes(request: Request, initial_pod: Vitals, pod: Json) -> list[Cause]:
    """Return the causes of a failure; [] if the pod has not been ready yet."""
    if not initial_pod.is_ready:
        return []
    current = Vitals.from_api(pod)
    restarted_containers = [container for container, count in current.restarts.items()
                            if count > initial_pod.restarts.get(container, 0)]
    if restarted_containers and (restart_causes := diagnosis.restart_causes(
            request, pod, restarted_containers)):
        return restart_causes
    if not is_active(pod) and (node_causes := _node_causes(request, pod)):
        return node_causes
    if not current.is_ready:
        condition = ready_condition(pod)
        message = text(condition, "message") or "it was ready, and no longer is"
        return diagnosis.pod_causes(request, pod, ()) or [
            _cause(request, UNREADY, text(condition, "reason") or "NotReady", message,
                   current.name)]
    if current.transition_time != initial_pod.transition_time:
        return [_cause(request, UNREADY, "NotReady",
                       f"it was not ready for a while, and became ready again at "
                       f"{current.transition_time}", current.name)]
    return []


def _cause(request: Request, kind: str, reason: str, message: str, pod: str,
           suggestion: str = _DESCRIBE_POD) -> Cause:
    return Cause(kind=kind, reason=reason, message=message, is_fatal=True, pod=pod,
                 place=f"pod {pod}",
                 suggestion=suggestion.format(kubectl=request.kubectl,
                                              pod=diagnosis.name_or_placeholder("pod", pod)))


def _count(event: Json) -> int:
    count = number(event, "count") or number(mapping(event, "series"), "count")
    return max(1, min(count, MAX_EVENT_COUNT))


def _involved_uid(event: Json) -> str:
    return text(mapping(event, "involvedObject"), "uid")


def _container_statuses(pod: Json) -> list[Json]:
    status = mapping(pod, "status")
    return [*objects(status, "initContainerStatuses"), *objects(status, "containerStatuses")]

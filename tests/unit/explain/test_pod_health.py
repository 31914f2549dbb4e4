# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find failures of observed pods, and compare warnings about new and old pods."""

from __future__ import annotations

import copy
import typing as t

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import pod_health
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339, seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

Json = dict[str, t.Any]

REQUEST = Request(name="foo", namespace="shop")
SINCE = "2026-11-21T10:00:00Z"
LATER = "2026-11-21T10:05:00Z"


def pod(name="foo-1", restarts=0, ready="True", since=SINCE, last=None, metadata=None,
        condition=None, init=(), **status) -> Json:
    """Return a pod, by default running and ready.

    last: the end of the container's previous run. init: statuses of sidecar containers.
    """
    container = {"name": "web", "ready": ready == "True", "restartCount": restarts,
                 "state": {"running": {"startedAt": since}},
                 "lastState": {"terminated": last} if last else {}}
    return {"metadata": {"name": name, "uid": f"uid of {name}", "creationTimestamp": SINCE,
                         **(metadata or {})},
            "spec": {"nodeName": "real-1", "containers": [{"name": "web"}], "initContainers": [
                {"name": container_["name"], "restartPolicy": "Always"} for container_ in init]},
            "status": {"phase": "Running", "containerStatuses": [container],
                       "initContainerStatuses": list(init),
                       "conditions": [{"type": "Ready", "status": ready,
                                       "lastTransitionTime": since, **(condition or {})}],
                       **status}}


def by_uid(*pods: Json) -> dict[str, Json]:
    return {pod["metadata"]["uid"]: pod for pod in pods}


def vitals(*pods: Json) -> dict[str, pod_health.Vitals]:
    return {uid: pod_health.Vitals.from_api(pod_) for uid, pod_ in by_uid(*pods).items()}


def causes_of(before: Json, current: Json | None,
              allowed_deletions: int = 0) -> list[tuple[str, str]]:
    return [(cause.kind, cause.sentence)
            for cause in pod_health.causes(REQUEST, vitals(before),
                                           by_uid(current) if current else {}, allowed_deletions)]


OOM_KILLED = {"exitCode": 137, "reason": "OOMKilled"}
UNREADY = {"reason": "ContainersNotReady", "message": "containers with unready status: [web]"}
DISRUPTION = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
              "message": "Eviction API: evicting"}
SIDECAR = {"name": "proxy", "restartCount": 0, "state": {"running": {}}}

#: (current pod, or None if deleted; kind of the cause; sentence).
FAILURES: dict[str, tuple[Json | None, str, str]] = {
    "out of memory": (
        pod(restarts=1, last=OOM_KILLED), "memory",
        "pod foo-1, container web: OOMKilled: exit code 137 (SIGKILL), restarted once"),
    "crashed and not ready": (
        pod(restarts=2, ready="False", last={"exitCode": 1, "reason": "Error"}), "crash",
        "pod foo-1, container web: Error: exit code 1, restarted 2 times"),
    "restarted without a reason": (
        pod(restarts=1), "crash", "pod foo-1, container web: Restarted: restarted once"),
    "sidecar restarted": (
        pod(init=[{**SIDECAR, "restartCount": 1,
                   "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}}]), "crash",
        "pod foo-1, sidecar container proxy: Error: exit code 2, restarted once"),
    "not ready": (
        pod(ready="False", since=LATER, condition=UNREADY), "unready",
        "pod foo-1: ContainersNotReady: containers with unready status: [web]"),
    "Ready condition missing": (
        pod(conditions=[]), "unready", "pod foo-1: NotReady: it was ready, and no longer is"),
    "ready again": (
        pod(since=LATER), "unready",
        f"pod foo-1: NotReady: it was not ready for a while, and became ready again at {LATER}"),
    "evicted by the node": (
        pod(ready="False", phase="Failed", reason="Evicted",
            message="The node was low on resource: memory."), "evicted",
        "pod foo-1: Evicted: The node was low on resource: memory"),
    "evicted, Ready condition not yet updated": (
        pod(phase="Failed", reason="Evicted"), "evicted", "pod foo-1: Evicted"),
    "eviction by the API": (
        pod(metadata={"deletionTimestamp": LATER}, conditions=[DISRUPTION]), "evicted",
        "pod foo-1: EvictionByEvictionAPI: Eviction API: evicting"),
    "node lost": (
        pod(ready="False", condition={"reason": ""}), "node",
        "pod foo-1: NodeNotReady: node real-1 has stopped responding"),
    "terminating": (
        pod(metadata={"deletionTimestamp": LATER}), "gone",
        "pod foo-1: Deleted: another client deleted it"),
    "deleted": (None, "gone", "pod foo-1: Deleted: another client deleted it"),
}
# The kubelet sent this status before its node was lost, when the container was ready.
FAILURES["node lost"][0]["status"]["containerStatuses"][0]["ready"] = True


@pytest.mark.parametrize("current, kind, sentence", FAILURES.values(), ids=FAILURES)
def test_cause_and_sentence_of_each_failure(current, kind, sentence):
    assert causes_of(pod(init=[SIDECAR]), current) == [(kind, sentence)]


@pytest.mark.parametrize("current", [pod(), pod(restarts=3)],
                         ids=["never restarted", "restarted before the soak"])
def test_unchanged_pod_has_no_cause(current):
    assert causes_of(current, copy.deepcopy(current)) == []


def test_starting_pod_has_no_cause():
    before = pod(ready="False")

    assert causes_of(before, pod(ready="False", since=LATER)) == [] == causes_of(before, pod())
    assert causes_of(before, pod(restarts=1)) == [] == causes_of(before, None)


def test_scale_down_is_not_reported_as_a_failure():
    pods = [pod(f"foo-{number}") for number in range(3)]
    remaining = by_uid(pods[0])

    assert pod_health.causes(REQUEST, vitals(*pods), remaining, allowed_deletions=2) == []
    (cause,) = pod_health.causes(REQUEST, vitals(*pods), remaining, allowed_deletions=1)
    assert (cause.kind, cause.pods) == ("gone", 2)


def test_each_cause_is_fatal_and_has_a_suggestion():
    causes = [cause for current, _kind, _sentence in FAILURES.values()
              for cause in pod_health.causes(REQUEST, vitals(pod(init=[SIDECAR])),
                                             by_uid(current) if current else {})]

    assert len(causes) == len(FAILURES)
    assert all(cause.is_fatal and cause.suggestion for cause in causes)


# Warnings


def warning(about: str, count: int = 1, uid: str = "a", **more: t.Any) -> Json:
    return {"metadata": {"uid": uid}, "involvedObject": {"uid": f"uid of {about}"},
            "reason": "Unhealthy", "count": count,
            "message": "Readiness probe failed", **more}


NEW, OLD = by_uid(pod("new-1"), pod("new-2")), by_uid(
    pod("old-1"), pod("old-2"), pod("old-3"), pod("old-4"))


@pytest.mark.parametrize("events, before, is_excess", [
    ([], {}, False),
    ([warning("new-1")], {}, True),
    ([warning("new-1", 3)], {"a": 3}, False),
    ([warning("new-1", 4)], {"a": 3}, True),
    ([warning("new-1"), warning("old-1", uid="b")], {}, False),
    ([warning("new-1", 2), warning("old-1", uid="b")], {}, True),
    ([warning("new-1", 2),
      *(warning(f"old-{number}", uid=str(number)) for number in (1, 2, 3, 4))], {}, False),
    ([warning("new-1", 2), warning("new-2", uid="c"),
      *(warning(f"old-{number}", uid=str(number)) for number in (1, 2, 3, 4))], {}, True),
    ([warning("payments-1", 100)], {}, False),
    ([warning("new-1", 0, series={"count": 7}), warning("old-1", 6, uid="b")], {}, True),
    ([warning("new-1", -5), warning("old-1", 10**12, uid="b")], {}, False),
], ids=["none", "new pod", "all before the soak", "one more than before the soak",
        "as many as an old pod", "more than the worst old pod",
        "average not exceeded", "average and maximum exceeded", "other pods", "series",
        "invalid counts"])
def test_warnings_about_new_pods_are_compared_with_old_pods(
        events, before, is_excess):
    assert bool(pod_health.excess_warnings(REQUEST, NEW, OLD, events, before)) is is_excess


def test_reasons_of_warnings_before_the_update_are_ignored():
    events = [warning("new-1", 5), warning("new-1", 1, "b", reason="BackOff")]
    all_events = [*events, warning("old-1", 1, "c", reason="")]
    uids = by_uid(pod("new-1"), pod("old-1"))
    assert pod_health.event_reasons(all_events, uids) == {"Unhealthy", "BackOff"}

    (cause,) = pod_health.excess_warnings(REQUEST, NEW, {}, events, {},
                                          ignored_reasons={"Unhealthy"})
    assert cause.reason == "BackOff" and cause.message.startswith("1 warning during")
    assert pod_health.excess_warnings(REQUEST, NEW, {}, events, {},
                                      ignored_reasons={"Unhealthy", "BackOff"}) == []


def test_only_changed_and_missing_pods_are_checked():
    current_pods = by_uid(pod("foo-1", restarts=1), pod("foo-2", restarts=1))
    first_vitals = vitals(pod("foo-1"), pod("foo-2"), pod("foo-3"))

    causes = pod_health.causes(REQUEST, first_vitals, current_pods, uids_to_check={"uid of foo-2"})
    assert [(cause.kind, cause.pod) for cause in causes] == [("crash", "foo-2"), ("gone", "foo-3")]


@pytest.mark.parametrize("old, comparison", [
    (OLD, "compared with at most 1 for an old pod"),
    ({}, "and there is no old pod to compare with")])
def test_pod_with_the_most_warnings_is_named(old, comparison):
    events = [warning("new-1"), warning("new-2", 2, "b"), warning("old-4", 1, "c")]

    (cause,) = pod_health.excess_warnings(REQUEST, NEW, old, events, {})

    assert cause.sentence == (
        f"pod new-2: Unhealthy: 2 warnings during the soak, {comparison}; the last one: Readiness "
        "probe failed")


@pytest.mark.parametrize("order", [1, -1])
def test_last_warning_of_a_series_is_its_last_repetition(order):
    series = {"count": 20, "lastObservedTime": LATER}
    events = [warning("new-1", 1, eventTime=SINCE, lastTimestamp=None, series=series),
              warning("new-1", 1, "b", reason="BackOff", lastTimestamp=SINCE)]

    (cause,) = pod_health.excess_warnings(REQUEST, NEW, {}, events[::order], {})

    assert cause.reason == "Unhealthy"
    uids = by_uid(pod("new-1"))
    assert (pod_health.last_warning_time(events, uids)
            == pod_health.last_warning_time([warning("new-1", lastTimestamp=LATER)], uids) > 0)


@pytest.mark.parametrize("order", [1, -1])
def test_last_warning_is_the_warning_with_the_latest_time(order):
    events = [warning("new-1", 9, lastTimestamp=LATER),
              warning("new-1", 1, "b", reason="BackOff", lastTimestamp=SINCE)]

    (cause,) = pod_health.excess_warnings(REQUEST, NEW, {}, events[::order], {})

    assert cause.reason == "Unhealthy" and cause.message.startswith("10 warnings during")


# Time since the last change


@pytest.mark.parametrize("changes, since", [
    ({}, SINCE),
    ({"since": LATER}, LATER),
    ({"metadata": {"creationTimestamp": LATER}}, LATER),
    ({"init": [{**SIDECAR, "state": {"running": {"startedAt": LATER}}}]}, LATER),
    ({"init": [{**SIDECAR, "state": {"terminated": {"exitCode": 0}}}]}, SINCE),
    ({"ready": "False"}, None),
    ({"metadata": {"creationTimestamp": None}}, None),
    ({"metadata": {"deletionTimestamp": LATER}}, None),
    ({"condition": {"lastTransitionTime": "yesterday"}}, None),
    ({"init": [SIDECAR]}, SINCE),
    ({"init": [{**SIDECAR, "state": {"running": {"startedAt": 7}}}]}, None),
])
def test_healthy_since(changes, since):
    assert pod_health.healthy_since(pod(**changes)) == seconds(since)


def test_time_of_the_last_warning():
    events = [warning("new-1", lastTimestamp=SINCE),
              warning("new-2", eventTime=LATER, lastTimestamp=None), warning("new-2"),
              warning("old-1", lastTimestamp="2026-11-21T11:00:00Z")]

    assert (pod_health.last_warning_time(events, NEW) == seconds(LATER)
            and pod_health.last_warning_time([], NEW) == 0)


@pytest.mark.parametrize("text, timestamp", [
    ("1970-01-01T00:00:00Z", 0.0), ("2026-11-21T10:00:00.250000Z", 1795255200.25),
    ("2026-11-21T12:00:00+02:00", 1795255200.0),
    ("2026-11-21T10:00:00", None), ("", None), (None, None), (7, None), ("x" * 100, None),
    ("0001-01-01T00:00:00+14:00", None)])
def test_timestamps(text, timestamp):
    assert seconds(text) == timestamp or (timestamp is None and (seconds(text) or 0) <= 0)
    assert timestamp is None or seconds(rfc3339(timestamp)) == int(timestamp)


# Malformed objects

ANY_VALUE = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                         lambda inner: st.lists(inner, max_size=2)
                         | st.dictionaries(st.text(max_size=5), inner, max_size=2),
                         max_leaves=4)


def paths_in(value: t.Any, *path: t.Any) -> t.Iterator[tuple]:
    elements = (value.items() if isinstance(value, dict)
                else enumerate(value) if isinstance(value, list) else ())
    for key, element in elements:
        yield (*path, key)
        yield from paths_in(element, *path, key)


@given(st.data())
def test_malformed_objects_never_raise(data):
    current = data.draw(st.sampled_from([current for current, _kind, _sentence in FAILURES.values()
                                         if current]))
    objects: list[Json] = [copy.deepcopy(current), warning("foo-1", 2, lastTimestamp=LATER)]
    for _round in range(data.draw(st.integers(1, 4))):
        *path, last_key = data.draw(st.sampled_from([path for path in paths_in(objects)
                                                     if len(path) > 1 and path[-1] != "uid"]))
        parent: t.Any = objects
        for key in path:
            parent = parent[key]
        parent[last_key] = data.draw(ANY_VALUE)
    malformed_pod, event = objects

    causes = pod_health.causes(REQUEST, vitals(pod()), {"uid of foo-1": malformed_pod})
    causes += pod_health.excess_warnings(REQUEST, {"uid of foo-1": malformed_pod}, {}, [event], {})

    assert all(isinstance(cause.sentence, str) for cause in causes)
    assert (isinstance(pod_health.healthy_since(malformed_pod), (float, type(None)))
            and pod_health.last_warning_time([event], ["uid of foo-1"]) >= 0)


@pytest.mark.parametrize("event, expected", [
    ({"count": 3}, 3), ({"series": {"count": 4}}, 4), ({"count": 2, "series": {"count": 9}}, 2),
    ({}, 1), ({"count": 0}, 1),
    ({"count": -5}, 1), ({"count": 10**9}, pod_health.MAX_EVENT_COUNT),
    ({"count": pod_health.MAX_EVENT_COUNT - 1}, pod_health.MAX_EVENT_COUNT - 1)])
def test_event_counts(event, expected):
    """Read the counts of both Event APIs, and clamp forged ones."""
    assert pod_health.event_counts([{"metadata": {"uid": "e"}, **event}]) == {"e": expected}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Failures of observed pods, and the comparison of warnings about new and old pods."""

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

FOO = Request(name="foo", namespace="shop")
SINCE = "2026-11-21T10:00:00Z"
LATER = "2026-11-21T10:05:00Z"


def pod(name="foo-1", restarts=0, ready="True", since=SINCE, last=None, metadata=None,
        condition=None, init=(), **status) -> Json:
    """Return a pod, running and ready by default."""
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


def first(*pods: Json) -> dict[str, pod_health.Vitals]:
    return {uid: pod_health.Vitals.from_api(pod_) for uid, pod_ in by_uid(*pods).items()}


def told(before: Json, now: Json | None, may_go: int = 0) -> list[tuple[str, str]]:
    return [(cause.kind, cause.sentence)
            for cause in pod_health.causes(FOO, first(before), by_uid(now) if now else {}, may_go)]


KILLED = {"exitCode": 137, "reason": "OOMKilled"}
UNREADY = {"reason": "ContainersNotReady", "message": "containers with unready status: [web]"}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
             "message": "Eviction API: evicting"}
SIDECAR = {"name": "proxy", "restartCount": 0, "state": {"running": {}}}

#: State of a pod (None: deleted), kind of the cause, and sentence.
CASES: dict[str, tuple[Json | None, str, str]] = {
    "it was killed for memory": (
        pod(restarts=1, last=KILLED), "memory",
        "pod foo-1, container web: OOMKilled: exit code 137 (SIGKILL), restarted once"),
    "it crashed, and is not ready yet": (
        pod(restarts=2, ready="False", last={"exitCode": 1, "reason": "Error"}), "crash",
        "pod foo-1, container web: Error: exit code 1, restarted 2 times"),
    "it was restarted, and nothing says why": (
        pod(restarts=1), "crash", "pod foo-1, container web: Restarted: restarted once"),
    "a sidecar was restarted": (
        pod(init=[{**SIDECAR, "restartCount": 1,
                   "lastState": {"terminated": {"exitCode": 2, "reason": "Error"}}}]), "crash",
        "pod foo-1, sidecar container proxy: Error: exit code 2, restarted once"),
    "it is not ready": (
        pod(ready="False", since=LATER, condition=UNREADY), "unready",
        "pod foo-1: ContainersNotReady: containers with unready status: [web]"),
    "it says nothing of readiness any more": (
        pod(conditions=[]), "unready", "pod foo-1: NotReady: it was ready, and no longer is"),
    "it was not ready for a while": (
        pod(since=LATER), "unready",
        f"pod foo-1: NotReady: it was not ready for a while, and is ready again since {LATER}"),
    "it was evicted": (
        pod(ready="False", phase="Failed", reason="Evicted",
            message="The node was low on resource: memory."), "evicted",
        "pod foo-1: Evicted: The node was low on resource: memory"),
    "it was evicted, and has not said yet that it is not ready": (
        pod(phase="Failed", reason="Evicted"), "evicted", "pod foo-1: Evicted"),
    "somebody evicts it": (
        pod(metadata={"deletionTimestamp": LATER}, conditions=[DISRUPTED]), "evicted",
        "pod foo-1: EvictionByEvictionAPI: Eviction API: evicting"),
    "its node is lost": (
        pod(ready="False", condition={"reason": ""}), "node",
        "pod foo-1: NodeNotReady: node real-1 has stopped responding"),
    "somebody deletes it": (
        pod(metadata={"deletionTimestamp": LATER}), "gone",
        "pod foo-1: Deleted: another client deleted it"),
    "it is gone": (None, "gone", "pod foo-1: Deleted: another client deleted it"),
}
# The last status from the kubelet, before the loss of the node.
CASES["its node is lost"][0]["status"]["containerStatuses"][0]["ready"] = True


@pytest.mark.parametrize("now, kind, sentence", CASES.values(), ids=CASES)
def test_what_has_happened_is_told_in_the_words_of_the_cluster(now, kind, sentence):
    assert told(pod(init=[SIDECAR]), now) == [(kind, sentence)]


@pytest.mark.parametrize("now", [pod(), pod(restarts=3)],
                         ids=["never restarted", "restarted before"])
def test_of_a_pod_that_is_as_it_was_nothing_is_told(now):
    assert told(now, copy.deepcopy(now)) == []


def test_how_a_pod_starts_that_was_not_ready_yet_is_not_told_and_neither_that_it_goes():
    before = pod(ready="False")

    assert told(before, pod(ready="False", since=LATER)) == [] == told(before, pod())
    assert told(before, pod(restarts=1)) == [] == told(before, None)


def test_as_many_may_go_as_it_has_become_smaller_by():
    pods = [pod(f"foo-{number}") for number in range(3)]
    remaining = by_uid(pods[0])

    assert pod_health.causes(FOO, first(*pods), remaining, allowed_deletions=2) == []
    (cause,) = pod_health.causes(FOO, first(*pods), remaining, allowed_deletions=1)
    assert (cause.kind, cause.pods) == ("gone", 2)


def test_each_cause_fails_the_task_and_says_what_to_look_at():
    causes = [cause for now, _kind, _sentence in CASES.values()
              for cause in pod_health.causes(FOO, first(pod(init=[SIDECAR])),
                                             by_uid(now) if now else {})]

    assert len(causes) == len(CASES)
    assert all(cause.is_fatal and cause.suggestion for cause in causes)


# Warnings


def warning(about: str, count: int = 1, name: str = "a", **more: t.Any) -> Json:
    return {"metadata": {"uid": name}, "involvedObject": {"uid": f"uid of {about}"},
            "reason": "Unhealthy", "count": count,
            "message": "Readiness probe failed", **more}


NEW, OLD = by_uid(pod("new-1"), pod("new-2")), by_uid(
    pod("old-1"), pod("old-2"), pod("old-3"), pod("old-4"))


@pytest.mark.parametrize("events, before, is_more", [
    ([], {}, False),
    ([warning("new-1")], {}, True),
    ([warning("new-1", 3)], {"a": 3}, False),
    ([warning("new-1", 4)], {"a": 3}, True),
    ([warning("new-1"), warning("old-1", name="b")], {}, False),
    ([warning("new-1", 2), warning("old-1", name="b")], {}, True),
    ([warning("new-1", 2),
      *(warning(f"old-{number}", name=str(number)) for number in (1, 2, 3, 4))], {}, False),
    ([warning("new-1", 2), warning("new-2", name="c"),
      *(warning(f"old-{number}", name=str(number)) for number in (1, 2, 3, 4))], {}, True),
    ([warning("payments-1", 100)], {}, False),
    ([warning("new-1", 0, series={"count": 7}), warning("old-1", 6, name="b")], {}, True),
    ([warning("new-1", -5), warning("old-1", 10**12, name="b")], {}, False),
], ids=["none", "of a new one", "all from before", "one more than before", "as many of an old one",
        "more, of the worst",
        "no more, on average", "more, on average and of the worst", "of others", "in a series",
        "odd numbers"])
def test_warnings_about_new_pods_count_where_they_are_more_than_about_old_ones(
        events, before, is_more):
    assert bool(pod_health.excess_warnings(FOO, NEW, OLD, events, before)) is is_more


def test_what_pods_are_usually_warned_of_does_not_count():
    events = [warning("new-1", 5), warning("new-1", 1, "b", reason="BackOff")]
    about = [*events, warning("old-1", 1, "c", reason="")]
    assert pod_health.reasons(about, by_uid(pod("new-1"), pod("old-1"))) == {"Unhealthy", "BackOff"}

    (cause,) = pod_health.excess_warnings(FOO, NEW, {}, events, {}, ignored_reasons={"Unhealthy"})
    assert cause.reason == "BackOff" and cause.message.startswith("1 warning during")
    assert pod_health.excess_warnings(FOO, NEW, {}, events, {},
                                      ignored_reasons={"Unhealthy", "BackOff"}) == []


def test_of_pods_that_have_not_changed_nothing_is_found():
    now = by_uid(pod("foo-1", restarts=1), pod("foo-2", restarts=1))
    first_ = first(pod("foo-1"), pod("foo-2"), pod("foo-3"))

    causes = pod_health.causes(FOO, first_, now, changed={"uid of foo-2"})
    assert [(cause.kind, cause.pod) for cause in causes] == [("crash", "foo-2"), ("gone", "foo-3")]


@pytest.mark.parametrize("old, than", [
    (OLD, "against at most 1 of an old pod"), ({}, "and there is no old pod to compare with")])
def test_the_pod_with_the_most_warnings_is_named(old, than):
    events = [warning("new-1"), warning("new-2", 2, "b"), warning("old-4", 1, "c")]

    (cause,) = pod_health.excess_warnings(FOO, NEW, old, events, {})

    assert cause.sentence == (
        f"pod new-2: Unhealthy: 2 warnings during the soak, {than}; the last one: Readiness probe "
        "failed")


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
def test_a_pod_says_itself_since_when_nothing_has_happened_to_it(changes, since):
    assert pod_health.healthy_since(pod(**changes)) == seconds(since)


def test_the_last_warning_about_one_of_them():
    events = [warning("new-1", lastTimestamp=SINCE),
              warning("new-2", eventTime=LATER, lastTimestamp=None), warning("new-2"),
              warning("old-1", lastTimestamp="2026-11-21T11:00:00Z")]

    assert (pod_health.last_warning_time(events, NEW) == seconds(LATER)
            and pod_health.last_warning_time([], NEW) == 0)


@pytest.mark.parametrize("text, moment", [
    ("1970-01-01T00:00:00Z", 0.0), ("2026-11-21T10:00:00.250000Z", 1795255200.25),
    ("2026-11-21T12:00:00+02:00", 1795255200.0),
    ("2026-11-21T10:00:00", None), ("", None), (None, None), (7, None), ("x" * 100, None),
    ("0001-01-01T00:00:00+14:00", None)])
def test_times(text, moment):
    assert seconds(text) == moment or (moment is None and (seconds(text) or 0) <= 0)
    assert moment is None or seconds(rfc3339(moment)) == int(moment)


# Malformed objects

ANYTHING = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                        lambda inner: st.lists(inner, max_size=2)
                        | st.dictionaries(st.text(max_size=5), inner, max_size=2),
                        max_leaves=4)


def places(value: t.Any, *path: t.Any) -> t.Iterator[tuple]:
    for key, element in value.items() if isinstance(value,
                                                    dict) else enumerate(value) if isinstance(
                                                        value, list) else ():
        yield (*path, key)
        yield from places(element, *path, key)


@given(st.data())
def test_no_mutilated_object_raises(data):
    now = data.draw(st.sampled_from([now for now, _kind, _sentence in CASES.values() if now]))
    values: list[Json] = [copy.deepcopy(now), warning("foo-1", 2, lastTimestamp=LATER)]
    for _time in range(data.draw(st.integers(1, 4))):
        *path, last = data.draw(st.sampled_from([place for place in places(values)
                                                 if len(place) > 1 and place[-1] != "uid"]))
        inner: t.Any = values
        for key in path:
            inner = inner[key]
        inner[last] = data.draw(ANYTHING)
    changed, event = values

    causes = pod_health.causes(FOO, first(pod()), {"uid of foo-1": changed})
    causes += pod_health.excess_warnings(FOO, {"uid of foo-1": changed}, {}, [event], {})

    assert all(isinstance(cause.sentence, str) for cause in causes)
    assert (isinstance(pod_health.healthy_since(changed), (float, type(None)))
            and pod_health.last_warning_time([event], ["uid of foo-1"]) >= 0)


@pytest.mark.parametrize("event, times", [
    ({"count": 3}, 3), ({"series": {"count": 4}}, 4), ({"count": 2, "series": {"count": 9}}, 2),
    ({}, 1), ({"count": 0}, 1),
    ({"count": -5}, 1), ({"count": 10**9}, pod_health.MAX_EVENT_COUNT),
    ({"count": pod_health.MAX_EVENT_COUNT - 1}, pod_health.MAX_EVENT_COUNT - 1)])
def test_how_often_an_event_was_seen(event, times):
    """Both Event APIs are read. A forged count is limited to 1 to MAX_EVENT_COUNT."""
    assert pod_health.event_counts([{"metadata": {"uid": "e"}, **event}]) == {"e": times}

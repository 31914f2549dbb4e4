# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List and watch pods, reparent pods, and select the pods that explain a wait."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import sys
import threading
import time
import urllib.parse

import pytest
from apiserver import (
    CAUSES,
    PRIMARY,
    always_continue,
    answer,
    item,
    pod,
    pods,
    reparent_to_bar,
    reset,
    status,
    stream,
    truncated_answer,
)
from objects import eventually

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import (
    handovers,
    http,
    informer,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import pods as pods_module
from ansible_collections.baton.kubernetes.plugins.module_utils.model import fields
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import parse

# Reasons for a wait

PODS_OF_FOO_PATH = "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=500"


def pod_of_primary(name, is_ready=False, restarts=0):
    pod_status = {"conditions": [{"type": "Ready", "status": str(is_ready)}],
                  "containerStatuses": [{"restartCount": restarts}]}
    return {**pod(name, "uid of foo", uid=f"uid of {name}", resourceVersion="11"),
            "status": pod_status}


def with_version(item, version="12"):
    return {**item, "metadata": {**item["metadata"], "resourceVersion": version}}


def names(items):
    return sorted(item["metadata"]["name"] for item in items)


def test_unready_pods_are_listed_once_and_watched(gateway, api):
    api.answers.append(pods(pod_of_primary("a"), pod_of_primary("ready", is_ready=True),
                            pod_of_primary("restarted", is_ready=True, restarts=1),
                            pod("stranger", "another", uid="u")))
    may_report = threading.Event()
    events = stream(*({"type": "MODIFIED", "object": with_version(pod)}
                      for pod in (pod_of_primary("a", is_ready=True), pod_of_primary("b"))),
                    {"type": "DELETED", "object": pod_of_primary("restarted")})
    api.watches.append(lambda handler, query: may_report.wait(10) and events(handler, query))

    assert names(gateway.troubled_pods(PRIMARY)) == ["a", "restarted"]
    may_report.set()
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["b"])
    assert api.sent == [("GET", PODS_OF_FOO_PATH)]
    assert (api.watch_queries[0]["labelSelector"] == "app=foo"
            and api.watch_queries[0]["resourceVersion"] == "11")


def test_pods_of_two_controllers_are_watched(gateway, api):
    api.answers += [pods(pod_of_primary("a")), pods()]
    other_controller = dataclasses.replace(PRIMARY, selector={"app": "bar"})

    assert [names(gateway.troubled_pods(controller))
            for controller in (PRIMARY, other_controller, PRIMARY)] == [["a"], [], ["a"]]
    assert len(api.sent) == 2


def table(*rows, columns=("Name", "Ready", "Status", "Restarts", "Age"), **metadata):
    """Return a response with the table of `kubectl get pods`."""
    return answer({"kind": "Table", "metadata": {"resourceVersion": "1", **metadata},
                   "columnDefinitions": [{"name": column} for column in columns],
                   "rows": [{"cells": list(row)} for row in rows]})


EXPECTED_ROWS = [("a", "0/1", "ContainerCreating", "0", "3s"), ("b", "1/1", "Running", 0, "3s"),
                 ("c", "0/2", "Init:0/1", "0", "3s"),
                 ("d", "0/1", "Terminating", "0", "3s"), ("e", "0/1", "Pending", "0", "3s")]


@pytest.mark.parametrize("answers, expected", [
    ([table(*EXPECTED_ROWS)], True),
    ([table(*EXPECTED_ROWS[:2], **{"continue": "more"}), table(*EXPECTED_ROWS[2:])], True),
    ([table(*EXPECTED_ROWS[:2], **{"continue": "more"}),
      table(("f", "0/1", "ImagePullBackOff", "0", "3s"))], False),
    ([table(("f", "0/1", "Init:Error", "0", "3s"))], False),
    ([table(("f", "1/1", "Running", "3 (2m ago)", "5m"))], False),
    ([table(("f", "1/1", "Running", 3, "5m"))], False),
    ([table(("f", ))], False),
    ([table(("f", "1/1", ["Running"], "0", "3s"))], False),
    ([table(*EXPECTED_ROWS, columns=("Name", "Age"))], False),
    ([answer({"kind": "Table", "metadata": [], "rows": "none"})], False),
    ([pods(pod_of_primary("a"))], False),
    ([status(406)], False),
    ([table(*EXPECTED_ROWS[:1], **{"continue": "more"})] * 20, False),
], ids=["expected pods", "two pages", "image error on the second page", "init container",
        "restarted", "restarts as a number",
        "short row", "status is no text", "missing columns", "malformed table",
        "list of pods instead of a table", "refused",
        "endless pages"])
def test_has_only_expected_pods_reads_the_table_of_pods(gateway, api, answers, expected):
    api.answers += answers

    assert gateway.has_only_expected_pods(PRIMARY) is expected
    assert gateway.has_only_expected_pods(PRIMARY) is expected, "the second call must use the cache"
    assert len(api.sent) == len(answers)
    assert all("labelSelector=app%3Dfoo&includeObject=None&limit=500" in path
               for _method, path in api.sent)


def test_has_only_expected_pods_is_false_for_watched_pods(gateway, api):
    api.answers += [pods()]
    gateway.troubled_pods(PRIMARY)

    assert not gateway.has_only_expected_pods(PRIMARY) and len(api.sent) == 1


def test_pods_are_listed_again_after_an_expired_watch(gateway, api):
    api.answers += [pods(pod_of_primary("a")), pods(pod_of_primary("b"))]
    api.watches.append(stream({"type": "ERROR", "object": {"code": 410}}))

    # The thread of the watch may list the pods before the first call returns.
    assert names(gateway.troubled_pods(PRIMARY)) in (["a"], ["b"])
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["b"])


def test_watched_pods_include_the_last_state_of_deleted_pods(gateway, api):
    """The gateway adds a deletionTimestamp: without a grace period, the API server sets none."""
    api.answers += [pods(pod_of_primary("a", is_ready=True), **{"continue": "more"}),
                    pods(pod_of_primary("b"), pod("stranger", "another", uid="u"))]
    api.watches.append(stream(
        {"type": "MODIFIED", "object": with_version(pod_of_primary("b", is_ready=True))},
        {"type": "DELETED", "object": pod_of_primary("a", restarts=1)},
        {"type": "DELETED", "object": pod("stranger", "another", uid="u", resourceVersion="11")}))

    eventually(lambda: "deletionTimestamp" in gateway.watched_pods(PRIMARY)[0]["metadata"])
    deleted_pod, *_other_pods, remaining_pod = gateway.watched_pods(PRIMARY)
    assert (deleted_pod["status"] == pod_of_primary("a", restarts=1)["status"]
            and names([deleted_pod, remaining_pod]) == ["a", "b"])
    assert remaining_pod == with_version(pod_of_primary("b", is_ready=True)) and len(api.sent) == 2


def test_watched_pods_include_states_since_the_last_call(gateway, api):
    api.answers.append(pods(pod_of_primary("a", is_ready=True)))
    gateway.watched_pods(PRIMARY)
    informer_, changes = gateway._informers["watched", "app=foo", PRIMARY.uid], [
        pod_of_primary("a"), pod_of_primary("a", is_ready=True)]
    eventually(lambda: informer_._watch is not None)
    for state in changes:
        informer_._watch._queue.put({"type": "MODIFIED", "object": state})

    assert gateway.watched_pods(PRIMARY) == [*changes, changes[-1]]
    assert gateway.watched_pods(PRIMARY) == [changes[-1]]


def test_forbidden_list_of_pods_is_not_an_empty_list(gateway, api):
    api.answers.append(status(403))

    assert gateway.watched_pods(PRIMARY) is None
    api.answers.append(pods())
    assert gateway.watched_pods(dataclasses.replace(PRIMARY, selector={"app": "bar"})) == []


@pytest.mark.parametrize("responses", [[status(410)] * 2, [status(400)]])
def test_other_refusal_is_not_a_missing_permission(gateway, api, responses):
    api.answers += responses

    with pytest.raises(RolloutError) as error:
        gateway.watched_pods(PRIMARY)
    assert error.value.what == (
        "the API server refused GET /api/v1/namespaces/default/pods "
        f"({410 if len(responses) > 1 else 400})")


def test_expired_list_of_pods_is_restarted(gateway, api):
    page = pods(pod_of_primary("a"), **{"continue": "more"})
    api.answers += [page, status(410), page, pods(pod_of_primary("b"))]

    assert names(gateway.watched_pods(PRIMARY)) == ["a", "b"]
    assert ["continue" in path for _method, path in api.sent] == [False, True, False, True]


@pytest.fixture
def fast_relists(monkeypatch):
    """List watched objects again after 50 ms of silence."""
    monkeypatch.setattr(informer, "MAX_SILENCE", 0.05)
    monkeypatch.setattr(informer, "MAX_RELIST_SHARE", float("inf"))


def drop_events(handler, query):
    """Send no events, like a proxy that drops them."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.flush()
    handler.server.closing.wait(10)


@pytest.mark.usefixtures("fast_relists")
def test_dropped_events_are_found_by_a_list_and_a_new_watch(gateway, api):
    unready_pod = with_version(pod_of_primary("a"))
    ready_pod = with_version(pod_of_primary("a", is_ready=True), "32")
    unchanged_pod = pod_of_primary("b", is_ready=True)

    def send_ready_pod(handler, query):
        api.answers[:] = [pods(ready_pod, unchanged_pod, resourceVersion="32")] * 200
        stream({"type": "MODIFIED", "object": ready_pod})(handler, query)

    api.watches += [drop_events, send_ready_pod]
    api.answers += [pods(pod_of_primary("a", is_ready=True), unchanged_pod, pod_of_primary("c")),
                    *[pods(unready_pod, unchanged_pod, resourceVersion="30")] * 200]

    before = gateway.watched_pods(PRIMARY)
    eventually(lambda: any("deletionTimestamp" in item["metadata"]
                           for item in gateway.watched_pods(PRIMARY)))
    eventually(lambda: ready_pod in gateway.watched_pods(PRIMARY))
    after = {item["metadata"]["name"]: item for item in gateway.watched_pods(PRIMARY)}

    assert after == {"a": ready_pod, "b": before[1], "c": after["c"]} and after["b"] is before[1]
    assert api.watch_queries[0]["resourceVersion"] == "30"


@pytest.mark.usefixtures("fast_relists")
def test_unready_pods_and_warnings_without_events_are_found_by_a_list(gateway, api):
    api.watches += [drop_events] * 2
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [pods()] * 200

    assert gateway.troubled_pods(PRIMARY) == gateway.warnings() == []
    api.answers[:] = [pods(pod_of_primary("a"))] * 200
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["a"])
    api.answers[:] = [pods(event)] * 200
    eventually(lambda: names(gateway.warnings()) == ["e"])


@pytest.mark.usefixtures("fast_relists")
def test_silent_watch_stays_open_and_unchanged_pods_stay_the_same_objects(gateway, api):
    api.answers += [pods(pod_of_primary("a", is_ready=True))] * 200
    api.watches += [drop_events]
    (before,) = gateway.watched_pods(PRIMARY)
    watch = gateway._informers["watched", "app=foo", PRIMARY.uid]._watch

    eventually(lambda: gateway.watched_pods(PRIMARY) and len(api.sent) > 2)

    assert (gateway.watched_pods(PRIMARY)[0] is before
            and gateway._informers["watched", "app=foo", PRIMARY.uid]._watch is watch)


@pytest.mark.usefixtures("fast_relists")
def test_expensive_lists_are_not_repeated(gateway, api, monkeypatch):
    monkeypatch.setattr(informer, "MAX_RELIST_SHARE", 1e-9)
    api.answers += [pods(pod_of_primary("a", is_ready=True))] * 2
    gateway.watched_pods(PRIMARY)

    time.sleep(0.1)

    gateway.watched_pods(PRIMARY)
    assert len(api.sent) == 1


@pytest.mark.usefixtures("fast_relists")
def test_incomplete_list_of_warnings_is_not_repeated(gateway, api):
    """The list contains only the first page of Events. The watch receives new ones."""
    api.answers += [pods({"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}},
                         **{"continue": "more"})] * 2

    assert gateway.warnings()
    time.sleep(0.1)
    assert gateway.warnings() and len(api.sent) == 1


def test_no_list_after_an_event_of_the_watch(gateway, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers.append(pods(event))
    gateway.warnings()
    informer_ = gateway._informers["warnings",]
    informer_._listed_at -= 2 * informer.MAX_SILENCE
    informer_._watch._queue.put({"type": "MODIFIED", "object": with_version(event, "12")})

    assert ([event["metadata"]["resourceVersion"] for event in gateway.warnings()] == ["12"]
            and len(api.sent) == 1)


@pytest.mark.usefixtures("fast_relists")
def test_warnings_are_listed_again_after_a_failed_list(gateway, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [status(400), *[pods(event)] * 200]

    assert gateway.warnings() == []
    eventually(lambda: names(gateway.warnings()) == ["e"])


def test_event_older_than_a_list_is_returned_as_an_earlier_state(gateway, api):
    api.answers += [pods(pod_of_primary("a", is_ready=True)),
                    pods(with_version(pod_of_primary("a", is_ready=True), "15"))]
    gateway.watched_pods(PRIMARY)
    gateway.relist_pods()
    informer_ = gateway._informers["watched", "app=foo", PRIMARY.uid]
    informer_._watch._queue.put({"type": "MODIFIED", "object": with_version(pod_of_primary("a"))})

    assert [item["metadata"]["resourceVersion"] for item in gateway.watched_pods(PRIMARY)] == [
        "12", "15"]


def test_deletion_of_a_pod_hides_its_earlier_states(gateway, api):
    api.answers.append(pods(pod_of_primary("a", is_ready=True)))
    gateway.watched_pods(PRIMARY)
    informer_ = gateway._informers["watched", "app=foo", PRIMARY.uid]
    for verb in ("MODIFIED", "DELETED"):
        informer_._watch._queue.put({"type": verb, "object": pod_of_primary("a", is_ready=True)})

    assert ["deletionTimestamp" in item["metadata"]
            for item in gateway.watched_pods(PRIMARY)] == [True]


def test_list_finds_a_deletion_without_an_event(gateway, api):
    api.answers += [pods(pod_of_primary("a", is_ready=True)), pods(pod_of_primary("b"))]
    gateway.watched_pods(PRIMARY)

    gateway.relist_pods()

    deleted, remaining = gateway.watched_pods(PRIMARY)
    assert "deletionTimestamp" in deleted["metadata"] and names([deleted, remaining]) == ["a", "b"]


def test_pods_warnings_and_logs_are_empty_without_permission(gateway, api):
    api.answers += [status(403)] * 4

    assert gateway.troubled_pods(PRIMARY) == gateway.troubled_pods(
        PRIMARY) == gateway.warnings() == []
    assert gateway.log("a", "web", previous=True) == []


def test_last_lines_of_a_log(gateway, api):
    api.answers.append(answer(b"one\ntwo \xff\n"))

    assert gateway.log("a", "web", previous=True) == ["one", "two \ufffd"]
    assert api.sent[0][1] == (
        "/api/v1/namespaces/default/pods/a/log?container=web&previous=true&tailLines=5&"
        "limitBytes=4096")


HOSTILE = "\x1b[2J\x9b31m\u202e\u2028\nNext:\r"
VISIBLE = r"\x1b[2J\x9b31m\u202e\u2028\nNext:"


def test_new_pods_after_the_first_page_are_listed(gateway, api):
    """The names of a StatefulSet's new pods come last, and other owners' pods may come first."""
    api.answers += [pods(pod("a", uid="a"), **{"continue": "x"}), pods(pod_of_primary("web-9"))]

    listed_pods = gateway.pods(PRIMARY, {"controller-revision-hash": "new"})

    assert names(listed_pods) == ["web-9"]
    assert [query_of(request)["labelSelector"] for request in api.requests] == [
        "app=foo,controller-revision-hash=new"] * 2


def test_texts_of_pods_events_and_logs_are_sanitized(gateway, api):
    hostile_pod = {**pod_of_primary("a"),
                   "status": {"message": HOSTILE,
                              "containerStatuses": [{"image": HOSTILE, "ready": False}]}}
    event = {"metadata": {"name": "e", "uid": "e"}, "message": "secret " * 20_000,
             "reason": HOSTILE}
    api.answers += [pods(hostile_pod), pods(hostile_pod), pods(event),
                    answer(f"one\n{HOSTILE}\ntwo\r\n".encode())]

    (unready_pod,), (listed_pod,), (warning,) = gateway.troubled_pods(PRIMARY), gateway.pods(
        PRIMARY, {}), gateway.warnings()

    for entry in (unready_pod, listed_pod):
        assert entry["status"] == {"message": VISIBLE,
                                   "containerStatuses": [{"image": VISIBLE, "ready": False}]}
    assert warning["reason"] == VISIBLE and len(warning["message"]) <= fields.MAX_TEXT_LENGTH
    assert gateway.log("a", "web", previous=False) == [
        "one", r"\x1b[2J\x9b31m\u202e", "Next:", "two"]


def test_log_is_cut_to_the_limits(gateway, api):
    api.answers += [answer(b"a\n" * 10_000),
                    answer(b"b" * pods_module.LOG_BYTES + b"a" * (pods_module.LOG_BYTES - 2)
                           + b"\nc")]

    assert gateway.log("a", "web", previous=False) == ["a"] * pods_module.LOG_LINES
    assert gateway.log("a", "web", previous=False) == ["a" * (pods_module.LOG_BYTES - 2), "c"]


# Pods and their controllers


def test_live_pods_exclude_finished_and_terminating_pods(gateway, api):
    api.answers += [pods(pod("a", uid="1"), pod("b", "uid of foo", uid="2", labels={"app": "foo"}),
                         pod("c", uid="3", deletionTimestamp="now"), **{"continue": "x"}),
                    pods({"metadata": {"name": "d", "uid": "4"}})]

    assert gateway.live_pods({"app": "foo"}) == (
        Pod("a", "1", {}, ""), Pod("b", "2", {"app": "foo"}, "uid of foo"), Pod("d", "4", {}, ""))
    _method, path, headers, _body = api.requests[0]
    assert ("labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path
            and "status.phase%21%3DSucceeded" in path)
    assert "as=PartialObjectMetadataList" in headers["Accept"]


def test_terminating_pods_have_deadline_and_finalizers(gateway, api):
    api.answers.append(pods(pod("a", uid="1"),
                            pod("b", "uid of foo", uid="2", labels={"app": "foo"},
                                deletionTimestamp="2026-11-21T10:00:30Z",
                                finalizers=["example.com/hold"])))

    (terminating,) = gateway.terminating_pods({"app": "foo"})

    assert (terminating[0] == "b"
            and terminating[2:] == ("uid of foo", "2026-11-21T10:00:30Z", ("example.com/hold",),
                                    {"app": "foo"}))
    path = api.requests[0][1]
    assert ("labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path
            and "status.phase%21%3DSucceeded" in path)


def test_null_is_an_empty_list_of_pods(gateway, api):
    api.answers.append(answer({"kind": "PartialObjectMetadataList",
                               "metadata": {"resourceVersion": "1"}, "items": None}))

    assert gateway.live_pods({"app": "foo"}) == ()


def test_forbidden_list_of_live_pods_is_an_error(gateway, api):
    """A handover without pods would count as complete."""
    api.answers.append(status(403, 'User "x" cannot list resource "pods"'))

    with pytest.raises(RolloutError) as error:
        gateway.live_pods({"app": "foo"})

    assert (error.value.what, error.value.where) == ("permission denied (403)", "namespace default")


# Handover


PATCHED_POD = answer({"kind": "PartialObjectMetadata", "metadata": {}})


def names_of_patched_pods(api):
    return [path.rpartition("/")[2] for method, path in api.sent if method == "PATCH"]


def test_each_pod_is_reparented_by_one_patch(gateway, api):
    api.answers += [PATCHED_POD] * 2
    write = reparent_to_bar("a", "b")

    assert gateway.hand_over(write, always_continue) == 2
    assert [(method, path, body) for method, path, _headers, body in api.requests] == [
        ("PATCH", f"/api/v1/namespaces/default/pods/{patch.name}", list(patch.operations))
        for patch in write.patches()]
    headers = api.requests[0][2]
    assert (headers["Content-Type"] == "application/json-patch+json"
            and "as=PartialObjectMetadata;" in headers["Accept"])


@pytest.mark.parametrize("response", [
    status(404, "not found"), status(409, "the object has been modified"),
    status(422, "testing value failed"), reset, truncated_answer, status(504),
], ids=["deleted", "conflict", "another pod or owner", "reset",
        "cut response", "504"])
def test_failed_patch_of_a_pod_is_left_to_the_next_observation(gateway, api, response):
    api.answers += [PATCHED_POD, response, PATCHED_POD]

    assert gateway.hand_over(reparent_to_bar("a", "b", "c"), always_continue) == 2
    assert names_of_patched_pods(api) == ["a", "b", "c"] and len(api.sent) == 3


@pytest.mark.parametrize("response, reason", [
    (status(403, 'pods "b" is forbidden: cannot set blockOwnerDeletion in this case'),
     "cannot set blockOwnerDeletion"),
    (status(403, 'pods "b" is forbidden: User "x" cannot patch resource "pods"'), "cannot patch"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
    (status(422, "metadata.ownerReferences: Invalid", **CAUSES), "Invalid"),
], ids=["admission plugin", "no permission", "webhook", "invalid patch"])
def test_forbidden_patch_of_a_pod_is_an_error_with_the_reason(gateway, api, response, reason):
    api.answers += [PATCHED_POD, response, PATCHED_POD]

    with pytest.raises(RolloutError) as error:
        gateway.hand_over(reparent_to_bar("a", "b", "c"), always_continue)

    assert (error.value.what.startswith("not allowed to change the controller of pod b (4")
            and reason in error.value.why)
    assert (error.value.where == "namespace default"
            and "docs/reference/permissions.md" in error.value.next_command)
    assert names_of_patched_pods(api) == ["a", "b"]


def test_error_about_rejected_credentials_names_no_pod(gateway, api):
    api.answers += [status(401, "Unauthorized")] * 2

    with pytest.raises(RolloutError, match="the API server does not accept the credentials"):
        gateway.hand_over(reparent_to_bar("a"), always_continue)


def test_patch_of_a_pod_is_retried_on_an_overloaded_server(gateway, api):
    api.answers += [status(429), status(503), PATCHED_POD]

    assert gateway.hand_over(reparent_to_bar("a"), always_continue) == 1
    assert names_of_patched_pods(api) == ["a"] * 3


def patched_pod_answer(version):
    return answer({"kind": "PartialObjectMetadata", "metadata": {"resourceVersion": version}})


def query_of(request):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(request[1]).query))


def test_the_list_after_a_handover_waits_only_for_its_patches(gateway, api):
    api.answers += [patched_pod_answer("9"), patched_pod_answer("10"),
                    pods(pod("a", uid="1"), **{"continue": "x"}), pods(), pods()]

    gateway.hand_over(reparent_to_bar("a", "b"), always_continue)
    gateway.live_pods({})
    gateway.live_pods({})

    first_page, second_page, next_list = map(query_of, api.requests[2:])
    assert (first_page["resourceVersion"], first_page["resourceVersionMatch"]) == (
        "10", "NotOlderThan")
    assert second_page["continue"] == "x" and "resourceVersion" not in second_page
    assert not any(key.startswith("resourceVersion") for key in (*second_page, *next_list))


@pytest.mark.parametrize("response", [status(409), reset, PATCHED_POD],
                         ids=["conflict", "reset", "no version"])
def test_the_list_after_an_incomplete_handover_shows_the_present_state(gateway, api, response):
    api.answers += [patched_pod_answer("7"), response, pods()]

    gateway.hand_over(reparent_to_bar("a", "b"), always_continue)
    gateway.live_pods({})

    assert "resourceVersion" not in query_of(api.requests[-1])


def test_a_handover_affects_no_list_of_other_pods(gateway, api):
    api.answers += [patched_pod_answer("7"), pods(), pods(), pods()]

    gateway.hand_over(reparent_to_bar("a"), always_continue)
    gateway.live_pods({"app": "other"})
    gateway.terminating_pods({})
    gateway.live_pods({})

    assert [query_of(request).get("resourceVersion") for request in api.requests[1:]] == [
        None, None, "7"]


@pytest.mark.parametrize("responses", [[status(504, "Too large resource version")],
                                       [status(410)] * 2], ids=["too large", "expired"])
def test_present_state_is_listed_if_the_server_lacks_the_version(gateway, api, responses):
    api.answers += [patched_pod_answer("7"), *responses, pods(pod("a", uid="1"))]

    gateway.hand_over(reparent_to_bar("a"), always_continue)

    assert [pod.name for pod in gateway.live_pods({})] == ["a"]
    assert [query_of(request).get("resourceVersion") for request in api.requests[1:]] == [
        *["7"] * len(responses), None]


def test_refusal_ends_all_connections_of_a_handover(gateway, api):
    """After the refusal, each worker begins at most one more pod."""
    worker_count = 3
    pod_names = [f"pod-{number}" for number in range(worker_count * handovers.PODS_PER_CONNECTION)]

    def answer_slowly(handler, query):
        time.sleep(0.5)
        PATCHED_POD(handler, query)

    api.answers += [status(403), *[answer_slowly] * len(pod_names)]

    with pytest.raises(RolloutError, match="not allowed to change the controller of pod"):
        gateway.hand_over(reparent_to_bar(*pod_names), always_continue)

    assert len(api.sent) <= 2 * worker_count


def test_handover_uses_several_connections(gateway, api):
    pod_names = [f"pod-{number}" for number in range(3 * handovers.PODS_PER_CONNECTION)]
    clients = set()

    def answer_slowly(handler, query):
        clients.add(handler.client_address)
        time.sleep(0.01)
        PATCHED_POD(handler, query)

    api.answers += [answer_slowly] * len(pod_names)

    assert gateway.hand_over(reparent_to_bar(*pod_names), always_continue) == len(pod_names)
    assert sorted(names_of_patched_pods(api)) == sorted(pod_names)
    assert len(clients) >= 3


def test_handover_on_a_slow_network_has_one_connection_per_pod(gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    pod_names = [f"pod-{number}" for number in range(handovers.MAX_CONNECTIONS_ON_HIGH_LATENCY)]
    barrier = threading.Barrier(len(pod_names), timeout=10)

    def wait_for_all(handler, query):
        barrier.wait()
        PATCHED_POD(handler, query)

    api.answers += [wait_for_all] * len(pod_names)

    assert gateway.hand_over(reparent_to_bar(*pod_names), always_continue) == len(pod_names)


def test_handover_stops_if_may_continue_is_false(gateway, api, monkeypatch):
    monkeypatch.setattr(handovers, "MAY_CONTINUE_PERIOD", 0.02)
    checks = []

    def answer_slowly(handler, query):
        api.closing.wait(0.05)
        PATCHED_POD(handler, query)

    api.answers += [answer_slowly] * 20

    reparented_count = gateway.hand_over(reparent_to_bar(*map(str, range(20))),
                                         lambda: checks.append(1) or len(checks) < 3)

    assert 0 < reparented_count == len(names_of_patched_pods(api)) < 10 and len(checks) == 3


def test_lost_lease_ends_a_handover_with_an_error(gateway, api, monkeypatch):
    monkeypatch.setattr(handovers, "MAY_CONTINUE_PERIOD", 0.02)

    def answer_slowly(handler, query):
        api.closing.wait(0.05)
        PATCHED_POD(handler, query)

    def lose_lease():
        raise RolloutError("another task has the Lease")

    api.answers += [answer_slowly] * 20

    with pytest.raises(RolloutError, match="another task has the Lease"):
        gateway.hand_over(reparent_to_bar(*map(str, range(20))), lose_lease)

    assert len(names_of_patched_pods(api)) < 10


# Permission for a handover, before the first write


POD_LIST = pods(pod("a", "uid of foo", uid="1", labels={"app": "foo"}))


def test_dry_run_with_one_pod_before_a_handover(gateway, api):
    api.answers += [POD_LIST, PATCHED_POD]

    gateway.refuse_forbidden_handover(PRIMARY)

    assert api.sent == [("GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=1"),
                        ("PATCH", "/api/v1/namespaces/default/pods/a?dryRun=All")]
    new_owner = api.requests[1][3][-1]["value"]
    assert (new_owner["blockOwnerDeletion"] and new_owner["controller"]
            and new_owner["uid"] not in ("uid of foo", ""))


@pytest.mark.parametrize("response, reason", [
    (status(403, 'pods "a" is forbidden: cannot set blockOwnerDeletion in this case'),
     "cannot set blockOwnerDeletion"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
], ids=["admission plugin", "webhook"])
def test_rejected_dry_run_is_an_error_before_the_first_write(gateway, api, response, reason):
    api.answers += [POD_LIST, response]

    with pytest.raises(RolloutError) as error:
        gateway.refuse_forbidden_handover(PRIMARY)

    assert (error.value.what.startswith("not allowed to change the controller of pod a (4")
            and reason in error.value.why)
    assert error.value.what.endswith("; nothing was changed")


@pytest.mark.parametrize("answers", [
    [pods()], [status(403)], [pods(pod("a", "uid of another", uid="1"))], [pods(pod("a", uid="1"))],
    [POD_LIST, status(404)], [POD_LIST, status(409)],
    [POD_LIST, status(422, "testing value failed")],
    [POD_LIST, status(400, "admission webhook does not support dry run")],
], ids=["no pod", "pods not listed", "pod of another controller", "pod without a controller",
        "deleted pod", "conflict", "pod with another owner",
        "webhook without dry run"])
def test_inconclusive_dry_run_is_ignored(gateway, api, answers):
    api.answers += answers

    gateway.refuse_forbidden_handover(PRIMARY)

    assert len(api.sent) == len(answers)


def test_concurrent_reads_share_one_list_and_one_watch(gateway, api):
    def answer_slowly(handler, query):
        time.sleep(0.2)
        pods(pod_of_primary("a"))(handler, query)

    api.answers.append(answer_slowly)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        lists = list(executor.map(gateway.troubled_pods, [PRIMARY, PRIMARY]))

    assert list(map(names, lists)) == [["a"], ["a"]]
    assert len(api.sent) == 1 and gateway.requests["WATCH"] == 1


def test_pods_are_listed_while_other_threads_add_watches(gateway, api):
    api.answers += [pods(*(pod_of_primary(str(number)) for number in range(50)))] * 500
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as executor:
            futures = [executor.submit(watch_ten_selectors, gateway, thread) for thread in range(3)]
            while not all(future.done() for future in futures):
                gateway.relist_pods()
                gateway.has_only_expected_pods(
                    dataclasses.replace(PRIMARY, selector={"app": "none"}))
            lists = [future.result() for future in futures]
    finally:
        sys.setswitchinterval(switch_interval)

    assert all(len(list_) == 50 for list_ in itertools.chain(*lists))


def watch_ten_selectors(cluster, thread):
    """Return the pods of ten label selectors that no other thread watches."""
    controllers = (dataclasses.replace(PRIMARY, selector={"app": f"foo-{thread}-{number}"})
                   for number in range(10))
    return [cluster.watched_pods(controller) for controller in controllers]


def test_event_older_than_a_list_does_not_restore_a_deleted_pod(gateway, api):
    api.answers += [pods(pod_of_primary("a")), pods(resourceVersion="30")]
    gateway.troubled_pods(PRIMARY)
    (informer_,) = gateway._informers.values()
    informer_.relist()
    informer_._watch._queue.put({"type": "MODIFIED", "object": pod_of_primary("a")})

    assert gateway.troubled_pods(PRIMARY) == []


@pytest.mark.parametrize("kind, expected",
                         [(Kind.STATEFUL_SET, ["a", "b", "c"]),
                          (Kind.REPLICATION_CONTROLLER, ["a", "c"])])
def test_all_pages_of_a_stateful_set_are_read(gateway, api, kind, expected):
    """For other kinds, the first page and later changes are enough."""
    answers = [pods(pod_of_primary("a"), **{"continue": "more"}), pods(pod_of_primary("b"))]
    api.answers += answers if kind is Kind.STATEFUL_SET else answers[:1]
    api.watches.append(stream({"type": "MODIFIED", "object": pod_of_primary("c")}))
    controller = parse(kind, item())

    eventually(lambda: names(gateway.troubled_pods(controller)) == expected)
    assert len(api.sent) == len(expected) - 1

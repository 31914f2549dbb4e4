# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods: their controllers, their handover, and the pods that explain a wait."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import sys
import threading
import time

import pytest
from apiserver import (
    CAUSES,
    PRIMARY,
    answer,
    item,
    never_stop,
    pod,
    pods,
    reparent_to_bar,
    reset,
    status,
    stream,
    truncated,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import (
    handovers,
    http,
    informer,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import pods as room
from ansible_collections.baton.kubernetes.plugins.module_utils.model import fields
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import parse

# Reasons for a wait

TROUBLED = "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=500"


def of_primary(name, ready=False, restarts=0):
    status = {"conditions": [{"type": "Ready", "status": str(ready)}],
              "containerStatuses": [{"restartCount": restarts}]}
    return {**pod(name, "uid of foo", uid=f"uid of {name}", resourceVersion="11"), "status": status}


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def changed(item, version="12"):
    return {**item, "metadata": {**item["metadata"], "resourceVersion": version}}


def names(items):
    return sorted(item["metadata"]["name"] for item in items)


def test_troubled_pods_are_listed_once_and_followed(gateway, api):
    api.answers.append(pods(of_primary("a"), of_primary("ready", ready=True),
                            of_primary("restarted", ready=True, restarts=1),
                            pod("stranger", "another", uid="u")))
    may_report = threading.Event()
    events = stream(*({"type": "MODIFIED", "object": changed(pod)}
                      for pod in (of_primary("a", ready=True), of_primary("b"))),
                    {"type": "DELETED", "object": of_primary("restarted")})
    api.watches.append(lambda handler, query: may_report.wait(10) and events(handler, query))

    assert names(gateway.troubled_pods(PRIMARY)) == ["a", "restarted"]
    may_report.set()
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["b"])
    assert api.sent == [("GET", TROUBLED)]
    assert (api.watched[0]["labelSelector"] == "app=foo"
            and api.watched[0]["resourceVersion"] == "11")


def test_pods_of_another_controller_are_followed_as_well(gateway, api):
    api.answers += [pods(of_primary("a")), pods()]
    bar = dataclasses.replace(PRIMARY, selector={"app": "bar"})

    assert [names(gateway.troubled_pods(controller)) for controller in (PRIMARY, bar, PRIMARY)] == [
        ["a"], [], ["a"]]
    assert len(api.sent) == 2


def table(*rows, columns=("Name", "Ready", "Status", "Restarts", "Age"), **metadata):
    """Return the table of kubectl get pods."""
    return answer({"kind": "Table", "metadata": {"resourceVersion": "1", **metadata},
                   "columnDefinitions": [{"name": column} for column in columns],
                   "rows": [{"cells": list(row)} for row in rows]})


STARTS = [("a", "0/1", "ContainerCreating", "0", "3s"), ("b", "1/1", "Running", 0, "3s"),
          ("c", "0/2", "Init:0/1", "0", "3s"),
          ("d", "0/1", "Terminating", "0", "3s"), ("e", "0/1", "Pending", "0", "3s")]


@pytest.mark.parametrize("answers, expected", [
    ([table(*STARTS)], True),
    ([table(*STARTS[:2], **{"continue": "more"}), table(*STARTS[2:])], True),
    ([table(*STARTS[:2], **{"continue": "more"}),
      table(("f", "0/1", "ImagePullBackOff", "0", "3s"))], False),
    ([table(("f", "0/1", "Init:Error", "0", "3s"))], False),
    ([table(("f", "1/1", "Running", "3 (2m ago)", "5m"))], False),
    ([table(("f", "1/1", "Running", 3, "5m"))], False),
    ([table(("f", ))], False),
    ([table(("f", "1/1", ["Running"], "0", "3s"))], False),
    ([table(*STARTS, columns=("Name", "Age"))], False),
    ([answer({"kind": "Table", "metadata": [], "rows": "none"})], False),
    ([pods(of_primary("a"))], False),
    ([status(406)], False),
    ([table(*STARTS[:1], **{"continue": "more"})] * 20, False),
], ids=["they start", "on two pages", "an image on the second page", "an init container",
        "restarted", "restarted, as a number",
        "cut", "no text", "no such columns", "no table", "pods", "refused", "without an end"])
def test_a_glance_at_many_pods_tells_whether_they_only_start(gateway, api, answers, expected):
    api.answers += answers

    assert gateway.are_starting(PRIMARY) is expected
    assert gateway.are_starting(PRIMARY) is expected, "asked now and then"
    assert len(api.sent) == len(answers)
    assert all("labelSelector=app%3Dfoo&includeObject=None&limit=500" in path
               for _method, path in api.sent)


def test_no_glance_at_pods_that_are_followed(gateway, api):
    api.answers += [pods()]
    gateway.troubled_pods(PRIMARY)

    assert not gateway.are_starting(PRIMARY) and len(api.sent) == 1


def test_a_watch_of_pods_that_has_ended_is_listed_anew(gateway, api):
    api.answers += [pods(of_primary("a")), pods(of_primary("b"))]
    api.watches.append(stream({"type": "ERROR", "object": {"code": 410}}))

    assert names(gateway.troubled_pods(PRIMARY)) == ["a"]
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["b"])


def test_pods_that_are_watched_are_all_of_them_and_those_that_have_gone_as_they_were(gateway, api):
    """A pod without a grace period never had a deletionTimestamp."""
    api.answers += [pods(of_primary("a", ready=True), **{"continue": "more"}),
                    pods(of_primary("b"), pod("stranger", "another", uid="u"))]
    api.watches.append(stream(
        {"type": "MODIFIED", "object": changed(of_primary("b", ready=True))},
        {"type": "DELETED", "object": of_primary("a", restarts=1)},
        {"type": "DELETED", "object": pod("stranger", "another", uid="u", resourceVersion="11")}))

    eventually(lambda: "deletionTimestamp" in gateway.watched_pods(PRIMARY)[0]["metadata"])
    gone, *_meanwhile, rest = gateway.watched_pods(PRIMARY)
    assert (gone["status"] == of_primary("a", restarts=1)["status"]
            and names([gone, rest]) == ["a", "b"])
    assert rest == changed(of_primary("b", ready=True)) and len(api.sent) == 2


def test_how_they_have_been_since_the_last_call_is_told_before_how_they_are(gateway, api):
    api.answers.append(pods(of_primary("a", ready=True)))
    gateway.watched_pods(PRIMARY)
    followed, news = gateway._informers["watched", "app=foo", PRIMARY.uid], [
        of_primary("a"), of_primary("a", ready=True)]
    eventually(lambda: followed._watch is not None)
    for message in news:
        followed._watch._queue.put({"type": "MODIFIED", "object": message})

    assert gateway.watched_pods(PRIMARY) == [*news, news[-1]]
    assert gateway.watched_pods(PRIMARY) == [news[-1]]


def test_no_pods_that_may_be_seen_are_not_none_of_them(gateway, api):
    api.answers.append(status(403))

    assert gateway.watched_pods(PRIMARY) is None
    api.answers.append(pods())
    assert gateway.watched_pods(dataclasses.replace(PRIMARY, selector={"app": "bar"})) == []


@pytest.mark.parametrize("bad", [[status(410)] * 2, [status(400)]])
def test_an_api_server_with_a_problem_is_no_lack_of_permission(gateway, api, bad):
    api.answers += bad

    with pytest.raises(RolloutError) as refused:
        gateway.watched_pods(PRIMARY)
    assert refused.value.what == (
        "the API server refused GET /api/v1/namespaces/default/pods "
        f"({410 if len(bad) > 1 else 400})")


def test_a_list_that_the_server_has_forgotten_meanwhile_is_begun_once_more(gateway, api):
    page = pods(of_primary("a"), **{"continue": "more"})
    api.answers += [page, status(410), page, pods(of_primary("b"))]

    assert names(gateway.watched_pods(PRIMARY)) == ["a", "b"]
    assert ["continue" in path for _method, path in api.sent] == [False, True, False, True]


@pytest.fixture
def relists(monkeypatch):
    """List watched objects again after 50 ms of silence, also on a busy machine."""
    monkeypatch.setattr(informer, "MAX_SILENCE", 0.05)
    monkeypatch.setattr(informer, "MAX_RELIST_SHARE", float("inf"))


def swallowed(handler, query):
    """Answer a watch like a proxy that swallows events: by an open connection."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.flush()
    handler.server.closing.wait(10)


@pytest.mark.usefixtures("relists")
def test_what_something_in_between_has_swallowed_is_listed_and_another_watch_is_opened(
        gateway, api):
    now, later = changed(of_primary("a")), changed(of_primary("a", ready=True), "32")
    unchanged = of_primary("b", ready=True)

    def told(handler, query):
        # later lists return the same pods
        api.answers[:] = [pods(later, unchanged, resourceVersion="32")] * 200
        stream({"type": "MODIFIED", "object": later})(handler, query)

    api.watches += [swallowed, told]
    api.answers += [pods(of_primary("a", ready=True), unchanged, of_primary("c")),
                    *[pods(now, unchanged, resourceVersion="30")] * 200]

    before = gateway.watched_pods(PRIMARY)
    eventually(lambda: any("deletionTimestamp" in item["metadata"]
                           for item in gateway.watched_pods(PRIMARY)))
    eventually(lambda: later in gateway.watched_pods(PRIMARY))
    after = {item["metadata"]["name"]: item for item in gateway.watched_pods(PRIMARY)}

    assert after == {"a": later, "b": before[1], "c": after["c"]} and after["b"] is before[1]
    assert api.watched[0]["resourceVersion"] == "30"


@pytest.mark.usefixtures("relists")
def test_the_same_holds_for_warnings_and_for_pods_in_trouble(gateway, api):
    api.watches += [swallowed] * 2
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [pods()] * 200

    assert gateway.troubled_pods(PRIMARY) == gateway.warnings() == []
    api.answers[:] = [pods(of_primary("a"))] * 200
    eventually(lambda: names(gateway.troubled_pods(PRIMARY)) == ["a"])
    api.answers[:] = [pods(event)] * 200
    eventually(lambda: names(gateway.warnings()) == ["e"])


@pytest.mark.usefixtures("relists")
def test_a_quiet_watch_is_kept_and_what_has_not_changed_is_the_same_object(gateway, api):
    api.answers += [pods(of_primary("a", ready=True))] * 200
    api.watches += [swallowed]
    (before,) = gateway.watched_pods(PRIMARY)
    followed = gateway._informers["watched", "app=foo", PRIMARY.uid]._watch

    eventually(lambda: gateway.watched_pods(PRIMARY) and len(api.sent) > 2)

    assert (gateway.watched_pods(PRIMARY)[0] is before
            and gateway._informers["watched", "app=foo", PRIMARY.uid]._watch is followed)


@pytest.mark.usefixtures("relists")
def test_thousands_are_not_listed_every_few_seconds(gateway, api, monkeypatch):
    monkeypatch.setattr(informer, "MAX_RELIST_SHARE", 1e-9)
    api.answers += [pods(of_primary("a", ready=True))] * 2
    gateway.watched_pods(PRIMARY)

    time.sleep(0.1)

    gateway.watched_pods(PRIMARY)
    assert len(api.sent) == 1


@pytest.mark.usefixtures("relists")
def test_more_warnings_than_a_list_shows_are_not_listed_again(gateway, api):
    """A list shows the first Events only, and the watch the last."""
    api.answers += [pods({"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}},
                         **{"continue": "more"})] * 2

    assert gateway.warnings()
    time.sleep(0.1)
    assert gateway.warnings() and len(api.sent) == 1


def test_what_the_watch_tells_of_is_not_listed_again(gateway, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers.append(pods(event))
    gateway.warnings()
    followed = gateway._informers["warnings",]
    followed._listed_at -= 2 * informer.MAX_SILENCE
    followed._watch._queue.put({"type": "MODIFIED", "object": changed(event, "12")})

    assert ([event["metadata"]["resourceVersion"] for event in gateway.warnings()] == ["12"]
            and len(api.sent) == 1)


@pytest.mark.usefixtures("relists")
def test_what_could_not_be_listed_for_a_moment_is_seen_later(gateway, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [status(400), *[pods(event)] * 200]

    assert gateway.warnings() == []
    eventually(lambda: names(gateway.warnings()) == ["e"])


def test_news_that_are_older_than_a_list_tell_how_one_has_been_and_not_how_it_is(gateway, api):
    api.answers += [pods(of_primary("a", ready=True)),
                    pods(changed(of_primary("a", ready=True), "15"))]
    gateway.watched_pods(PRIMARY)
    gateway.relist_pods()
    followed = gateway._informers["watched", "app=foo", PRIMARY.uid]
    followed._watch._queue.put({"type": "MODIFIED", "object": changed(of_primary("a"))})

    assert [item["metadata"]["resourceVersion"] for item in gateway.watched_pods(PRIMARY)] == [
        "12", "15"]


def test_how_one_has_been_before_it_went_does_not_hide_that_it_went(gateway, api):
    api.answers.append(pods(of_primary("a", ready=True)))
    gateway.watched_pods(PRIMARY)
    followed = gateway._informers["watched", "app=foo", PRIMARY.uid]
    for verb in ("MODIFIED", "DELETED"):
        followed._watch._queue.put({"type": verb, "object": of_primary("a", ready=True)})

    assert ["deletionTimestamp" in item["metadata"]
            for item in gateway.watched_pods(PRIMARY)] == [True]


def test_one_that_went_without_a_word_is_gone_when_they_are_listed_again(gateway, api):
    api.answers += [pods(of_primary("a", ready=True)), pods(of_primary("b"))]
    gateway.watched_pods(PRIMARY)

    gateway.relist_pods()

    gone, rest = gateway.watched_pods(PRIMARY)
    assert "deletionTimestamp" in gone["metadata"] and names([gone, rest]) == ["a", "b"]


def test_what_may_not_be_seen_is_none(gateway, api):
    api.answers += [status(403)] * 4

    assert gateway.troubled_pods(PRIMARY) == gateway.troubled_pods(
        PRIMARY) == gateway.warnings() == []
    assert gateway.log("a", "web", previous=True) == []


def test_the_end_of_a_log(gateway, api):
    api.answers.append(answer(b"one\ntwo \xff\n"))

    assert gateway.log("a", "web", previous=True) == ["one", "two \ufffd"]
    assert api.sent[0][1] == (
        "/api/v1/namespaces/default/pods/a/log?container=web&previous=true&tailLines=5&"
        "limitBytes=4096")


HOSTILE = "\x1b[2J\x9b31m\u202e\u2028\nNext:\r"
VISIBLE = r"\x1b[2J\x9b31m\u202e\u2028\nNext:"


def test_texts_come_in_as_they_may_be_told(gateway, api):
    """The patterns of failure reasons read these texts, too."""
    shouting = {**of_primary("a"),
                "status": {"message": HOSTILE,
                           "containerStatuses": [{"image": HOSTILE, "ready": False}]}}
    event = {"metadata": {"name": "e", "uid": "e"}, "message": "secret " * 20_000,
             "reason": HOSTILE}
    api.answers += [pods(shouting), pods(shouting), pods(event),
                    answer(f"one\n{HOSTILE}\ntwo\r\n".encode())]

    (troubled,), (rc_list,), (warning,) = gateway.troubled_pods(PRIMARY), gateway.pods(
        PRIMARY), gateway.warnings()

    for entry in (troubled, rc_list):
        assert entry["status"] == {"message": VISIBLE,
                                   "containerStatuses": [{"image": VISIBLE, "ready": False}]}
    assert warning["reason"] == VISIBLE and len(warning["message"]) <= fields.MAX_TEXT_LENGTH
    assert gateway.log("a", "web", previous=False) == [
        "one", r"\x1b[2J\x9b31m\u202e", "Next:", "two"]


def test_a_log_is_no_longer_than_what_was_asked_for(gateway, api):
    api.answers += [answer(b"a\n" * 10_000),
                    answer(b"b" * room.LOG_BYTES + b"a" * (room.LOG_BYTES - 2) + b"\nc")]

    assert gateway.log("a", "web", previous=False) == ["a"] * room.LOG_LINES
    assert gateway.log("a", "web", previous=False) == ["a" * (room.LOG_BYTES - 2), "c"]


# Pods and their controllers


def test_live_pods_are_those_that_have_not_ended_and_stay_with_their_owners(gateway, api):
    api.answers += [pods(pod("a", uid="1"), pod("b", "uid of foo", uid="2", labels={"app": "foo"}),
                         pod("c", uid="3", deletionTimestamp="now"), **{"continue": "x"}),
                    pods({"metadata": {"name": "d", "uid": "4"}})]

    assert gateway.live_pods({"app": "foo"}) == (
        Pod("a", "1", {}, ""), Pod("b", "2", {"app": "foo"}, "uid of foo"), Pod("d", "4", {}, ""))
    _method, path, headers, _body = api.requests[0]
    assert ("labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path
            and "status.phase%21%3DSucceeded" in path)
    assert "as=PartialObjectMetadataList" in headers["Accept"]


def test_terminating_pods_tell_when_their_grace_ends_and_what_keeps_them(gateway, api):
    api.answers.append(pods(pod("a", uid="1"),
                            pod("b", "uid of foo", uid="2",
                                deletionTimestamp="2026-11-21T10:00:30Z",
                                finalizers=["example.com/hold"])))

    (terminating,) = gateway.terminating_pods({"app": "foo"})

    assert (terminating[0] == "b"
            and terminating[2:] == ("uid of foo", "2026-11-21T10:00:30Z", ("example.com/hold",)))
    path = api.requests[0][1]
    assert ("labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path
            and "status.phase%21%3DSucceeded" in path)


def test_no_pods_at_all_may_be_a_null(gateway, api):
    api.answers.append(answer({"kind": "PartialObjectMetadataList",
                               "metadata": {"resourceVersion": "1"}, "items": None}))

    assert gateway.live_pods({"app": "foo"}) == ()


def test_live_pods_that_may_not_be_seen_are_an_error(gateway, api):
    """A handover without pods would count as complete."""
    api.answers.append(status(403, 'User "x" cannot list resource "pods"'))

    with pytest.raises(RolloutError) as error:
        gateway.live_pods({"app": "foo"})

    assert (error.value.what, error.value.where) == ("permission denied (403)", "namespace default")


# Handover


POD = answer({"kind": "PartialObjectMetadata", "metadata": {}})


def patched_pods(api):
    return [path.rpartition("/")[2] for method, path in api.sent if method == "PATCH"]


def test_each_pod_is_handed_over_by_one_patch(gateway, api):
    api.answers += [POD] * 2
    write = reparent_to_bar("a", "b")

    assert gateway.hand_over(write, never_stop) == 2
    assert [(method, path, body) for method, path, _headers, body in api.requests] == [
        ("PATCH", f"/api/v1/namespaces/default/pods/{patch.name}", list(patch.operations))
        for patch in write.patches()]
    headers = api.requests[0][2]
    assert (headers["Content-Type"] == "application/json-patch+json"
            and "as=PartialObjectMetadata;" in headers["Accept"])


@pytest.mark.parametrize("refused", [
    status(404, "not found"), status(409, "the object has been modified"),
    status(422, "testing value failed"), reset, truncated, status(504),
], ids=["it is gone", "a conflict", "it is another pod, or another's", "no answer",
        "half an answer", "504"])
def test_a_pod_that_cannot_be_handed_over_now_is_left_for_the_next_look(gateway, api, refused):
    api.answers += [POD, refused, POD]

    assert gateway.hand_over(reparent_to_bar("a", "b", "c"), never_stop) == 2
    assert patched_pods(api) == ["a", "b", "c"] and len(api.sent) == 3


@pytest.mark.parametrize("refused, reason", [
    (status(403, 'pods "b" is forbidden: cannot set blockOwnerDeletion in this case'),
     "cannot set blockOwnerDeletion"),
    (status(403, 'pods "b" is forbidden: User "x" cannot patch resource "pods"'), "cannot patch"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
    (status(422, "metadata.ownerReferences: Invalid", **CAUSES), "Invalid"),
], ids=["an admission plugin", "no permission", "a webhook", "it makes no sense"])
def test_a_pod_that_may_not_be_handed_over_is_named_with_the_reason(gateway, api, refused, reason):
    api.answers += [POD, refused, POD]

    with pytest.raises(RolloutError) as error:
        gateway.hand_over(reparent_to_bar("a", "b", "c"), never_stop)

    assert (error.value.what.startswith("not allowed to change the controller of pod b (4")
            and reason in error.value.why)
    assert (error.value.where == "namespace default"
            and "docs/permissions.md" in error.value.next_command)
    assert patched_pods(api) == ["a", "b"]


def test_credentials_that_have_ended_are_no_fault_of_a_pod(gateway, api):
    api.answers += [status(401, "Unauthorized")] * 2

    with pytest.raises(RolloutError, match="the API server does not accept the credentials"):
        gateway.hand_over(reparent_to_bar("a"), never_stop)


def test_a_server_that_has_too_much_to_do_gets_the_patch_again(gateway, api):
    api.answers += [status(429), status(503), POD]

    assert gateway.hand_over(reparent_to_bar("a"), never_stop) == 1
    assert patched_pods(api) == ["a"] * 3


def test_after_a_refusal_no_other_connection_goes_on(gateway, api):
    """Each worker finishes its present pod, without another check of may_continue()."""
    workers, looks = 3, []
    names = [f"pod-{number}" for number in range(workers * handovers.PODS_PER_CONNECTION)]

    def slow(handler, query):
        time.sleep(0.5)
        POD(handler, query)

    api.answers += [status(403), *[slow] * len(names)]

    with pytest.raises(RolloutError, match="not allowed to change the controller of pod"):
        gateway.hand_over(reparent_to_bar(*names), lambda: not looks.append(1))

    assert len(api.sent) <= 2 * workers


def test_many_pods_are_handed_over_on_several_connections(gateway, api):
    names = [f"pod-{number}" for number in range(3 * handovers.PODS_PER_CONNECTION)]
    clients = set()

    def slow(handler, query):
        clients.add(handler.client_address)
        time.sleep(0.01)
        POD(handler, query)

    api.answers += [slow] * len(names)

    assert gateway.hand_over(reparent_to_bar(*names), never_stop) == len(names)
    assert sorted(patched_pods(api)) == sorted(names)
    assert len(clients) >= 3


def test_on_a_slow_line_each_pod_is_worth_a_connection(gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    names = [f"pod-{number}" for number in range(handovers.MAX_CONNECTIONS_ON_HIGH_LATENCY)]
    together = threading.Barrier(len(names), timeout=10)

    def meet(handler, query):
        together.wait()
        POD(handler, query)

    api.answers += [meet] * len(names)

    assert gateway.hand_over(reparent_to_bar(*names), never_stop) == len(names)


def test_a_handover_ends_early_where_it_may_not_go_on(gateway, api, monkeypatch):
    monkeypatch.setattr(handovers, "CHECK_PERIOD", 0.02)
    checks = []

    def slow(handler, query):
        api.closing.wait(0.05)
        POD(handler, query)

    api.answers += [slow] * 20

    landed = gateway.hand_over(reparent_to_bar(*map(str, range(20))),
                               lambda: checks.append(1) or len(checks) < 3)

    assert 0 < landed == len(patched_pods(api)) < 10 and len(checks) == 3


def test_a_lease_that_is_lost_ends_a_handover_with_its_error(gateway, api, monkeypatch):
    monkeypatch.setattr(handovers, "CHECK_PERIOD", 0.02)

    def slow(handler, query):
        api.closing.wait(0.05)
        POD(handler, query)

    def lose():
        raise RolloutError("another task has the Lease")

    api.answers += [slow] * 20

    with pytest.raises(RolloutError, match="another task has the Lease"):
        gateway.hand_over(reparent_to_bar(*map(str, range(20))), lose)

    assert len(patched_pods(api)) < 10


# Permission of a handover, before the first write


LISTED = pods(pod("a", "uid of foo", uid="1", labels={"app": "foo"}))


def test_a_dry_run_with_one_pod_tells_that_it_may_be_handed_over(gateway, api):
    api.answers += [LISTED, POD]

    gateway.refuse_hand_over(PRIMARY)

    assert api.sent == [("GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=1"),
                        ("PATCH", "/api/v1/namespaces/default/pods/a?dryRun=All")]
    taker = api.requests[1][3][-1]["value"]
    assert (taker["blockOwnerDeletion"] and taker["controller"]
            and taker["uid"] not in ("uid of foo", ""))


@pytest.mark.parametrize("refused, reason", [
    (status(403, 'pods "a" is forbidden: cannot set blockOwnerDeletion in this case'),
     "cannot set blockOwnerDeletion"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
], ids=["an admission plugin", "a webhook"])
def test_a_dry_run_that_is_refused_is_an_error_before_anything_is_changed(
        gateway, api, refused, reason):
    api.answers += [LISTED, refused]

    with pytest.raises(RolloutError) as error:
        gateway.refuse_hand_over(PRIMARY)

    assert (error.value.what.startswith("not allowed to change the controller of pod a (4")
            and reason in error.value.why)
    assert error.value.what.endswith("; nothing was changed")


@pytest.mark.parametrize("answers", [
    [pods()], [status(403)], [pods(pod("a", "uid of another", uid="1"))], [pods(pod("a", uid="1"))],
    [LISTED, status(404)], [LISTED, status(409)], [LISTED, status(422, "testing value failed")],
    [LISTED, status(400, "admission webhook does not support dry run")],
], ids=["no pod", "pods may not be seen", "a pod of another", "a pod of nobody", "it is gone",
        "a conflict", "it is another one's",
        "a webhook that takes no dry run"])
def test_what_a_dry_run_cannot_tell_is_no_reason_to_refuse(gateway, api, answers):
    api.answers += answers

    gateway.refuse_hand_over(PRIMARY)

    assert len(api.sent) == len(answers)


def test_threads_that_ask_at_once_share_one_list_and_one_watch(gateway, api):
    def slow(handler, query):
        time.sleep(0.2)
        pods(of_primary("a"))(handler, query)

    api.answers.append(slow)
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        answers = list(executor.map(gateway.troubled_pods, [PRIMARY, PRIMARY]))

    assert list(map(names, answers)) == [["a"], ["a"]]
    assert len(api.sent) == 1 and gateway.requests["WATCH"] == 1


def test_pods_may_be_read_and_listed_again_while_another_thread_follows_more_of_them(gateway, api):
    """The drivers of a fleet share the informers."""
    api.answers += [pods(*(of_primary(str(number)) for number in range(50)))] * 500
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as executor:
            threads = [executor.submit(follow_ten, gateway, first) for first in range(3)]
            while not all(thread.done() for thread in threads):
                gateway.relist_pods()
                gateway.are_starting(dataclasses.replace(PRIMARY, selector={"app": "none"}))
            lists = [thread.result() for thread in threads]
    finally:
        sys.setswitchinterval(interval)

    assert all(len(list_) == 50 for list_ in itertools.chain(*lists))


def follow_ten(cluster, first):
    """Follow the pods of ten other label selectors."""
    controllers = (dataclasses.replace(PRIMARY, selector={"app": f"foo-{first}-{number}"})
                   for number in range(10))
    return [cluster.watched_pods(controller) for controller in controllers]


def test_an_event_from_before_a_list_does_not_bring_back_what_has_gone(gateway, api):
    api.answers += [pods(of_primary("a")), pods(resourceVersion="30")]
    gateway.troubled_pods(PRIMARY)
    (followed,) = gateway._informers.values()
    followed.relist()
    followed._watch._queue.put({"type": "MODIFIED", "object": of_primary("a")})

    assert gateway.troubled_pods(PRIMARY) == []


@pytest.mark.parametrize("kind, expected",
                         [(Kind.STATEFUL_SET, ["a", "b", "c"]),
                          (Kind.REPLICATION_CONTROLLER, ["a", "c"])])
def test_all_pods_of_a_stateful_set_are_read_since_steps_depend_on_each(
        gateway, api, kind, expected):
    """Other kinds need the first page and later changes only."""
    answers = [pods(of_primary("a"), **{"continue": "more"}), pods(of_primary("b"))]
    api.answers += answers if kind is Kind.STATEFUL_SET else answers[:1]
    api.watches.append(stream({"type": "MODIFIED", "object": of_primary("c")}))
    controller = parse(kind, item())

    eventually(lambda: names(gateway.troubled_pods(controller)) == expected)
    assert len(api.sent) == len(expected) - 1

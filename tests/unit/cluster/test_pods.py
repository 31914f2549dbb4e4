# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods: whose they are, how each changes its controller, and those that explain a wait."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
from apiserver import CAUSES, PRIMARY, answer, cut, going_on, half, pod, pods, status, stream, to_bar

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http, watch
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import pods as room
from ansible_collections.baton.kubernetes.plugins.module_utils.model import fields
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod

# What explains a wait

TROUBLED = "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=500"


def of_primary(name, ready=False, restarts=0):
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "containerStatuses": [{"restartCount": restarts}]}
    return {**pod(name, "uid of foo", uid=f"uid of {name}", resourceVersion="11"), "status": status}


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def names(items):
    return sorted(each["metadata"]["name"] for each in items)


def test_troubled_pods_are_listed_once_and_followed(known, api):
    api.answers.append(pods(of_primary("a"), of_primary("ready", ready=True), of_primary("restarted", ready=True, restarts=1),
                            pod("stranger", "another", uid="u")))
    api.watches.append(stream(*({"type": "MODIFIED", "object": it} for it in (of_primary("a", ready=True), of_primary("b"))),
                              {"type": "DELETED", "object": of_primary("restarted")}))

    assert names(known.troubled_pods(PRIMARY)) == ["a", "restarted"]
    eventually(lambda: names(known.troubled_pods(PRIMARY)) == ["b"])
    assert api.sent == [("GET", TROUBLED)]
    assert api.watched[0]["labelSelector"] == "app=foo" and api.watched[0]["resourceVersion"] == "1"


def test_pods_of_another_controller_are_followed_as_well(known, api):
    api.answers += [pods(of_primary("a")), pods()]
    other = dataclasses.replace(PRIMARY, selector={"app": "bar"})

    assert [names(known.troubled_pods(each)) for each in (PRIMARY, other, PRIMARY)] == [["a"], [], ["a"]]
    assert len(api.sent) == 2


def table(*rows, columns=("Name", "Ready", "Status", "Restarts", "Age"), **metadata):
    """As kubectl get pods has it."""
    return answer({"kind": "Table", "metadata": {"resourceVersion": "1", **metadata},
                   "columnDefinitions": [{"name": each} for each in columns], "rows": [{"cells": list(each)} for each in rows]})


STARTS = [("a", "0/1", "ContainerCreating", "0", "3s"), ("b", "1/1", "Running", 0, "3s"), ("c", "0/2", "Init:0/1", "0", "3s"),
          ("d", "0/1", "Terminating", "0", "3s"), ("e", "0/1", "Pending", "0", "3s")]


@pytest.mark.parametrize("answers, expected", [
    ([table(*STARTS)], True),
    ([table(*STARTS[:2], **{"continue": "more"}), table(*STARTS[2:])], True),
    ([table(*STARTS[:2], **{"continue": "more"}), table(("f", "0/1", "ImagePullBackOff", "0", "3s"))], False),
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
], ids=["they start", "on two pages", "an image on the second page", "an init container", "restarted", "restarted, as a number",
        "cut", "no text", "no such columns", "no table", "pods", "refused", "without an end"])
def test_a_glance_at_many_pods_tells_whether_they_only_start(known, api, answers, expected):
    api.answers += answers

    assert known.are_starting(PRIMARY) is expected
    assert known.are_starting(PRIMARY) is expected, "asked now and then"
    assert len(api.sent) == len(answers)
    assert all("labelSelector=app%3Dfoo&includeObject=None&limit=500" in path for _method, path in api.sent)


def test_no_glance_at_pods_that_are_followed(known, api):
    api.answers += [pods()]
    known.troubled_pods(PRIMARY)

    assert not known.are_starting(PRIMARY) and len(api.sent) == 1


def test_a_watch_of_pods_that_has_ended_is_listed_anew(known, api):
    api.answers += [pods(of_primary("a")), pods(of_primary("b"))]
    api.watches.append(stream({"type": "ERROR", "object": {"code": 410}}))

    assert names(known.troubled_pods(PRIMARY)) == ["a"]
    eventually(lambda: names(known.troubled_pods(PRIMARY)) == ["b"])


def test_pods_that_are_watched_are_all_of_them_and_those_that_have_gone_as_they_were(known, api):
    """Of one that went without a grace period, nothing else says that it has gone."""
    api.answers += [pods(of_primary("a", ready=True), **{"continue": "more"}),
                    pods(of_primary("b"), pod("stranger", "another", uid="u"))]
    api.watches.append(stream({"type": "MODIFIED", "object": of_primary("b", ready=True)},
                              {"type": "DELETED", "object": of_primary("a", restarts=1)},
                              {"type": "DELETED", "object": pod("stranger", "another", uid="u", resourceVersion="11")}))

    eventually(lambda: "deletionTimestamp" in known.watched_pods(PRIMARY)[0]["metadata"])
    gone, *_meanwhile, left = known.watched_pods(PRIMARY)
    assert gone["status"] == of_primary("a", restarts=1)["status"] and names([gone, left]) == ["a", "b"]
    assert left == of_primary("b", ready=True) and len(api.sent) == 2


def test_how_they_have_been_since_the_last_call_is_told_before_how_they_are(known, api):
    api.answers.append(pods(of_primary("a", ready=True)))
    known.watched_pods(PRIMARY)
    followed, news = known._pods._watched["app=foo", PRIMARY.uid], [of_primary("a"), of_primary("a", ready=True)]
    eventually(lambda: followed._watch is not None)
    for item in news:
        followed._watch._queue.put({"type": "MODIFIED", "object": item})

    assert known.watched_pods(PRIMARY) == [*news, news[-1]]
    assert known.watched_pods(PRIMARY) == [news[-1]]


def test_no_pods_that_may_be_seen_are_not_none_of_them(known, api):
    api.answers.append(status(403))

    assert known.watched_pods(PRIMARY) is None
    api.answers.append(pods())
    assert known.watched_pods(dataclasses.replace(PRIMARY, selector={"app": "bar"})) == []


@pytest.mark.parametrize("bad", [[status(410)] * 2, [status(400)]])
def test_an_api_server_with_a_problem_is_no_lack_of_permission(known, api, bad):
    api.answers += bad

    with pytest.raises(RolloutError) as refused:
        known.watched_pods(PRIMARY)
    assert refused.value.what == f"the API server refused GET /api/v1/namespaces/default/pods ({410 if len(bad) > 1 else 400})"


def test_a_list_that_the_server_has_forgotten_meanwhile_is_begun_once_more(known, api):
    page = pods(of_primary("a"), **{"continue": "more"})
    api.answers += [page, status(410), page, pods(of_primary("b"))]

    assert names(known.watched_pods(PRIMARY)) == ["a", "b"]
    assert ["continue" in path for _method, path in api.sent] == [False, True, False, True]


@pytest.fixture
def relists(monkeypatch):
    """List what is watched again after a moment of silence, however long a list takes on a busy machine."""
    monkeypatch.setattr(watch, "RELIST_SECONDS", 0.05)
    monkeypatch.setattr(watch, "MOST_OF_THE_TIME", float("inf"))


def swallowed(handler, query):
    """What something in between makes of a watch: the connection stays, and nothing comes."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.flush()
    handler.server.closing.wait(10)


def changed(item, version="12"):
    return {**item, "metadata": {**item["metadata"], "resourceVersion": version}}


@pytest.mark.usefixtures("relists")
def test_what_something_in_between_has_swallowed_is_listed_and_another_watch_is_opened(known, api):
    now, later = changed(of_primary("a")), changed(of_primary("a", ready=True), "32")
    unchanged = of_primary("b", ready=True)

    def told(handler, query):
        api.answers[:] = [pods(later, unchanged, resourceVersion="32")] * 200  # lists that come after it say the same
        stream({"type": "MODIFIED", "object": later})(handler, query)

    api.watches += [swallowed, told]
    api.answers += [pods(of_primary("a", ready=True), unchanged, of_primary("c")),
                    *[pods(now, unchanged, resourceVersion="30")] * 200]

    before = known.watched_pods(PRIMARY)
    eventually(lambda: any("deletionTimestamp" in each["metadata"] for each in known.watched_pods(PRIMARY)))
    eventually(lambda: later in known.watched_pods(PRIMARY))
    after = {each["metadata"]["name"]: each for each in known.watched_pods(PRIMARY)}

    assert after == {"a": later, "b": before[1], "c": after["c"]} and after["b"] is before[1]
    assert api.watched[0]["resourceVersion"] == "30"


@pytest.mark.usefixtures("relists")
def test_the_same_holds_for_warnings_and_for_pods_in_trouble(known, api):
    api.watches += [swallowed] * 2
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [pods()] * 200

    assert known.troubled_pods(PRIMARY) == known.warnings() == []
    api.answers[:] = [pods(of_primary("a"))] * 200
    eventually(lambda: names(known.troubled_pods(PRIMARY)) == ["a"])
    api.answers[:] = [pods(event)] * 200
    eventually(lambda: names(known.warnings()) == ["e"])


@pytest.mark.usefixtures("relists")
def test_a_quiet_watch_is_kept_and_what_has_not_changed_is_the_same_object(known, api):
    api.answers += [pods(of_primary("a", ready=True))] * 200
    api.watches += [swallowed]
    (before,) = known.watched_pods(PRIMARY)
    followed = known._pods._watched["app=foo", PRIMARY.uid]._watch

    eventually(lambda: known.watched_pods(PRIMARY) and len(api.sent) > 2)

    assert known.watched_pods(PRIMARY)[0] is before and known._pods._watched["app=foo", PRIMARY.uid]._watch is followed


@pytest.mark.usefixtures("relists")
def test_thousands_are_not_listed_every_few_seconds(known, api, monkeypatch):
    monkeypatch.setattr(watch, "MOST_OF_THE_TIME", 1e-9)
    api.answers += [pods(of_primary("a", ready=True))] * 2
    known.watched_pods(PRIMARY)

    time.sleep(0.1)

    known.watched_pods(PRIMARY)
    assert len(api.sent) == 1


@pytest.mark.usefixtures("relists")
def test_more_warnings_than_a_list_shows_are_not_listed_again(known, api):
    """The first of them only, while the watch tells the last."""
    api.answers += [pods({"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}, **{"continue": "more"})] * 2

    assert known.warnings()
    time.sleep(0.1)
    assert known.warnings() and len(api.sent) == 1


def test_what_the_watch_tells_of_is_not_listed_again(known, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers.append(pods(event))
    known.warnings()
    followed = known._pods._warnings[""]
    followed._listed_at -= 2 * watch.RELIST_SECONDS
    followed._watch._queue.put({"type": "MODIFIED", "object": changed(event, "12")})

    assert [each["metadata"]["resourceVersion"] for each in known.warnings()] == ["12"] and len(api.sent) == 1


@pytest.mark.usefixtures("relists")
def test_what_could_not_be_listed_for_a_moment_is_seen_later(known, api):
    event = {"metadata": {"name": "e", "uid": "e", "resourceVersion": "11"}}
    api.answers += [status(400), *[pods(event)] * 200]

    assert known.warnings() == []
    eventually(lambda: names(known.warnings()) == ["e"])


def test_news_that_are_older_than_a_list_tell_how_one_has_been_and_not_how_it_is(known, api):
    api.answers += [pods(of_primary("a", ready=True)), pods(changed(of_primary("a", ready=True), "15"))]
    known.watched_pods(PRIMARY)
    known.look_at_pods_again()
    followed = known._pods._watched["app=foo", PRIMARY.uid]
    followed._watch._queue.put({"type": "MODIFIED", "object": changed(of_primary("a"))})

    assert [each["metadata"]["resourceVersion"] for each in known.watched_pods(PRIMARY)] == ["12", "15"]


def test_how_one_has_been_before_it_went_does_not_hide_that_it_went(known, api):
    api.answers.append(pods(of_primary("a", ready=True)))
    known.watched_pods(PRIMARY)
    followed = known._pods._watched["app=foo", PRIMARY.uid]
    for verb in ("MODIFIED", "DELETED"):
        followed._watch._queue.put({"type": verb, "object": of_primary("a", ready=True)})

    assert ["deletionTimestamp" in each["metadata"] for each in known.watched_pods(PRIMARY)] == [True]


def test_one_that_went_without_a_word_is_gone_when_they_are_listed_again(known, api):
    api.answers += [pods(of_primary("a", ready=True)), pods(of_primary("b"))]
    known.watched_pods(PRIMARY)

    known.look_at_pods_again()

    gone, left = known.watched_pods(PRIMARY)
    assert "deletionTimestamp" in gone["metadata"] and names([gone, left]) == ["a", "b"]


def test_what_may_not_be_seen_is_none(known, api):
    api.answers += [status(403)] * 4

    assert known.troubled_pods(PRIMARY) == known.troubled_pods(PRIMARY) == known.warnings() == []
    assert known.log("a", "web", previous=True) == []


def test_the_end_of_a_log(known, api):
    api.answers.append(answer(b"one\ntwo \xff\n"))

    assert known.log("a", "web", previous=True) == ["one", "two \ufffd"]
    assert api.sent[0][1] == "/api/v1/namespaces/default/pods/a/log?container=web&previous=true&tailLines=5&limitBytes=4096"


HOSTILE = "\x1b[2J\x9b31m\u202e\u2028\nNext:\r"
VISIBLE = r"\x1b[2J\x9b31m\u202e\u2028\nNext:"


def test_texts_come_in_as_they_may_be_told(known, api):
    """Also into the patterns that look for a cause: nothing else cuts them."""
    shouting = {**of_primary("a"), "status": {"message": HOSTILE, "containerStatuses": [{"image": HOSTILE, "ready": False}]}}
    event = {"metadata": {"name": "e", "uid": "e"}, "message": "secret " * 20_000, "reason": HOSTILE}
    api.answers += [pods(shouting), pods(shouting), pods(event), answer(f"one\n{HOSTILE}\ntwo\r\n".encode())]

    (troubled,), (listed,), (warning,) = known.troubled_pods(PRIMARY), known.pods(PRIMARY), known.warnings()

    for item in (troubled, listed):
        assert item["status"] == {"message": VISIBLE, "containerStatuses": [{"image": VISIBLE, "ready": False}]}
    assert warning["reason"] == VISIBLE and len(warning["message"]) <= fields.LONGEST
    assert known.log("a", "web", previous=False) == ["one", r"\x1b[2J\x9b31m\u202e", "Next:", "two"]


def test_a_log_is_no_longer_than_what_was_asked_for(known, api):
    api.answers += [answer(b"a\n" * 10_000), answer(b"b" * room.LOG_BYTES + b"a" * (room.LOG_BYTES - 2) + b"\nc")]

    assert known.log("a", "web", previous=False) == ["a"] * room.LOG_LINES
    assert known.log("a", "web", previous=False) == ["a" * (room.LOG_BYTES - 2), "c"]


# Whose they are


def test_live_pods_are_those_that_have_not_ended_and_stay_with_their_owners(known, api):
    api.answers += [pods(pod("a", uid="1"), pod("b", "uid of foo", uid="2", labels={"app": "foo"}),
                         pod("c", uid="3", deletionTimestamp="now"), **{"continue": "x"}),
                    pods({"metadata": {"name": "d", "uid": "4"}})]

    assert known.live_pods({"app": "foo"}) == (
        Pod("a", "1", {}, ""), Pod("b", "2", {"app": "foo"}, "uid of foo"), Pod("d", "4", {}, ""))
    _method, path, headers, _body = api.requests[0]
    assert "labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path and "status.phase%21%3DSucceeded" in path
    assert "as=PartialObjectMetadataList" in headers["Accept"]


def test_terminating_pods_tell_when_their_grace_ends_and_what_keeps_them(known, api):
    api.answers.append(pods(pod("a", uid="1"), pod("b", "uid of foo", uid="2", deletionTimestamp="2026-11-21T10:00:30Z",
                                                   finalizers=["example.com/hold"])))

    (terminating,) = known.terminating_pods({"app": "foo"})

    assert terminating[0] == "b" and terminating[2:] == ("uid of foo", "2026-11-21T10:00:30Z", ("example.com/hold",))
    path = api.requests[0][1]
    assert "labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path and "status.phase%21%3DSucceeded" in path


def test_no_pods_at_all_may_be_a_null(known, api):
    api.answers.append(answer({"kind": "PartialObjectMetadataList", "metadata": {"resourceVersion": "1"}, "items": None}))

    assert known.live_pods({"app": "foo"}) == ()


def test_live_pods_that_may_not_be_seen_are_an_error(known, api):
    """Without them a handover would take itself for done."""
    api.answers.append(status(403, 'User "x" cannot list resource "pods"'))

    with pytest.raises(RolloutError) as error:
        known.live_pods({"app": "foo"})

    assert (error.value.what, error.value.where) == ("permission denied (403)", "namespace default")


# Pods change their controller


POD = answer({"kind": "PartialObjectMetadata", "metadata": {}})


def patched_pods(api):
    return [path.rpartition("/")[2] for method, path in api.sent if method == "PATCH"]


def test_each_pod_is_handed_over_by_one_patch(known, api):
    api.answers += [POD] * 2
    write = to_bar("a", "b")

    assert known.hand_over(write, going_on) == 2
    assert [(method, path, body) for method, path, _headers, body in api.requests] == [
        ("PATCH", f"/api/v1/namespaces/default/pods/{each.name}", list(each.operations)) for each in write.patches()]
    headers = api.requests[0][2]
    assert headers["Content-Type"] == "application/json-patch+json" and "as=PartialObjectMetadata;" in headers["Accept"]


@pytest.mark.parametrize("refused", [
    status(404, "not found"), status(409, "the object has been modified"), status(422, "testing value failed"),
    cut, half, status(504),
], ids=["it is gone", "a conflict", "it is another pod, or another's", "no answer", "half an answer", "504"])
def test_a_pod_that_cannot_be_handed_over_now_is_left_for_the_next_look(known, api, refused):
    api.answers += [POD, refused, POD]

    assert known.hand_over(to_bar("a", "b", "c"), going_on) == 2
    assert patched_pods(api) == ["a", "b", "c"] and len(api.sent) == 3


@pytest.mark.parametrize("refused, reason", [
    (status(403, 'pods "b" is forbidden: cannot set blockOwnerDeletion in this case'), "cannot set blockOwnerDeletion"),
    (status(403, 'pods "b" is forbidden: User "x" cannot patch resource "pods"'), "cannot patch"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
    (status(422, "metadata.ownerReferences: Invalid", **CAUSES), "Invalid"),
], ids=["an admission plugin", "no permission", "a webhook", "it makes no sense"])
def test_a_pod_that_may_not_be_handed_over_is_named_with_the_reason(known, api, refused, reason):
    api.answers += [POD, refused, POD]

    with pytest.raises(RolloutError) as error:
        known.hand_over(to_bar("a", "b", "c"), going_on)

    assert error.value.what.startswith("not allowed to change the controller of pod b (4") and reason in error.value.why
    assert error.value.where == "namespace default" and "docs/permissions.md" in error.value.next_command
    assert patched_pods(api) == ["a", "b"]


def test_credentials_that_have_ended_are_no_fault_of_a_pod(known, api):
    api.answers += [status(401, "Unauthorized")] * 2

    with pytest.raises(RolloutError, match="the API server does not accept the credentials"):
        known.hand_over(to_bar("a"), going_on)


def test_a_server_that_has_too_much_to_do_gets_the_patch_again(known, api):
    api.answers += [status(429), status(503), POD]

    assert known.hand_over(to_bar("a"), going_on) == 1
    assert patched_pods(api) == ["a"] * 3


def test_after_a_refusal_no_other_connection_goes_on(known, api):
    """Each ends with the pod that it is at, without another look whether the task may go on."""
    workers, looks = 3, []
    names = [f"pod-{number}" for number in range(workers * room.PODS_PER_CONNECTION)]

    def slow(handler, query):
        time.sleep(0.5)
        POD(handler, query)

    api.answers += [status(403), *[slow] * len(names)]

    with pytest.raises(RolloutError, match="not allowed to change the controller of pod"):
        known.hand_over(to_bar(*names), lambda: not looks.append(1))

    assert len(api.sent) <= 2 * workers


def test_many_pods_are_handed_over_on_several_connections(known, api):
    names = [f"pod-{number}" for number in range(3 * room.PODS_PER_CONNECTION)]
    clients = set()

    def slow(handler, query):
        clients.add(handler.client_address)
        time.sleep(0.01)
        POD(handler, query)

    api.answers += [slow] * len(names)

    assert known.hand_over(to_bar(*names), going_on) == len(names)
    assert sorted(patched_pods(api)) == sorted(names)
    assert len(clients) >= 3


def test_on_a_slow_line_each_pod_is_worth_a_connection(known, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    names = [f"pod-{number}" for number in range(room.SLOW_CONNECTIONS)]
    together = threading.Barrier(len(names), timeout=10)

    def meet(handler, query):
        together.wait()
        POD(handler, query)

    api.answers += [meet] * len(names)

    assert known.hand_over(to_bar(*names), going_on) == len(names)


def test_a_handover_ends_early_where_it_may_not_go_on(known, api, monkeypatch):
    monkeypatch.setattr(room, "TURN", 0.02)
    asked = []

    def slow(handler, query):
        api.closing.wait(0.05)
        POD(handler, query)

    api.answers += [slow] * 20

    landed = known.hand_over(to_bar(*map(str, range(20))), lambda: asked.append(1) or len(asked) < 3)

    assert 0 < landed == len(patched_pods(api)) < 10 and len(asked) == 3


def test_a_lease_that_is_lost_ends_a_handover_with_its_error(known, api, monkeypatch):
    monkeypatch.setattr(room, "TURN", 0.02)

    def slow(handler, query):
        api.closing.wait(0.05)
        POD(handler, query)

    def lose():
        raise RolloutError("another task has the Lease")

    api.answers += [slow] * 20

    with pytest.raises(RolloutError, match="another task has the Lease"):
        known.hand_over(to_bar(*map(str, range(20))), lose)

    assert len(patched_pods(api)) < 10


# Whether they may, before the first write


LISTED = pods(pod("a", "uid of foo", uid="1", labels={"app": "foo"}))


def test_a_dry_run_with_one_pod_tells_that_it_may_be_handed_over(known, api):
    api.answers += [LISTED, POD]

    known.refuse_hand_over(PRIMARY)

    assert api.sent == [("GET", "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=1"),
                        ("PATCH", "/api/v1/namespaces/default/pods/a?dryRun=All")]
    taker = api.requests[1][3][-1]["value"]
    assert taker["blockOwnerDeletion"] and taker["controller"] and taker["uid"] not in ("uid of foo", "")


@pytest.mark.parametrize("refused, reason", [
    (status(403, 'pods "a" is forbidden: cannot set blockOwnerDeletion in this case'), "cannot set blockOwnerDeletion"),
    (status(422, 'admission webhook "w" denied the request: keep'), "keep"),
], ids=["an admission plugin", "a webhook"])
def test_a_dry_run_that_is_refused_is_an_error_before_anything_is_changed(known, api, refused, reason):
    api.answers += [LISTED, refused]

    with pytest.raises(RolloutError) as error:
        known.refuse_hand_over(PRIMARY)

    assert error.value.what.startswith("not allowed to change the controller of pod a (4") and reason in error.value.why
    assert error.value.what.endswith("; nothing was changed")


@pytest.mark.parametrize("answers", [
    [pods()], [status(403)], [pods(pod("a", "uid of another", uid="1"))], [pods(pod("a", uid="1"))],
    [LISTED, status(404)], [LISTED, status(409)], [LISTED, status(422, "testing value failed")],
    [LISTED, status(400, "admission webhook does not support dry run")],
], ids=["no pod", "pods may not be seen", "a pod of another", "a pod of nobody", "it is gone", "a conflict", "it is another one's",
        "a webhook that takes no dry run"])
def test_what_a_dry_run_cannot_tell_is_no_reason_to_refuse(known, api, answers):
    api.answers += answers

    known.refuse_hand_over(PRIMARY)

    assert len(api.sent) == len(answers)


def test_of_threads_that_ask_first_at_once_one_list_is_kept(known, api, monkeypatch):
    """A watch whose list nobody keeps would be read for as long as the task lasts."""
    both, all_followed, follow = threading.Barrier(2), [], room.Followed
    monkeypatch.setattr(room, "Followed", lambda *args, **kwargs: all_followed.append(follow(*args, **kwargs)) or all_followed[-1])

    def page(handler, query):
        both.wait(5)
        pods(of_primary("a"))(handler, query)

    api.answers += [page, page]
    threads = [threading.Thread(target=known.troubled_pods, args=(PRIMARY,)) for _thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert names(known.troubled_pods(PRIMARY)) == ["a"]
    assert sorted(each._watch._stopped.is_set() for each in all_followed) == [False, True]


def test_an_event_from_before_a_list_does_not_bring_back_what_has_gone(known, api):
    api.answers += [pods(of_primary("a")), pods(resourceVersion="30")]
    known.troubled_pods(PRIMARY)
    (followed,) = known._pods._troubled.values()
    followed.look_again()
    followed._watch._queue.put({"type": "MODIFIED", "object": of_primary("a")})

    assert known.troubled_pods(PRIMARY) == []


@pytest.mark.parametrize("kind, expected", [(Kind.STATEFUL_SET, ["a", "b", "c"]), (Kind.REPLICATION_CONTROLLER, ["a", "c"])])
def test_all_pods_of_a_stateful_set_are_read_since_steps_depend_on_each(known, api, kind, expected):
    """Of others, what explains a wait: the first page, and what happens later."""
    answers = [pods(of_primary("a"), **{"continue": "more"}), pods(of_primary("b"))]
    api.answers += answers if kind is Kind.STATEFUL_SET else answers[:1]
    api.watches.append(stream({"type": "MODIFIED", "object": of_primary("c")}))
    controller = dataclasses.replace(PRIMARY, kind=kind)

    eventually(lambda: names(known.troubled_pods(controller)) == expected)
    assert len(api.sent) == len(expected) - 1

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests on the wire, and every kind of bad answer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import json
import threading
import time
from http.server import HTTPServer

import pytest
from apiserver import (
    BASE,
    CAUSES,
    CREATE,
    DELETE,
    PRIMARY,
    TO_2,
    Handler,
    answer,
    item,
    pod,
    pods,
    rc_answer,
    rc_list,
    reset,
    status,
    truncated,
)
from builders import new

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import annotate, patch

# Requests


def test_long_lists_come_in_pages(cluster, api):
    api.answers += [rc_list(item(), **{"continue": "more of it"}), rc_list(item(name="bar"))]

    assert cluster.controllers().keys() == {"foo", "bar"}
    assert api.sent == [("GET", f"{BASE}?limit=500"),
                        ("GET", f"{BASE}?limit=500&continue=more+of+it")]


def test_every_request_proves_who_asks(gateway, api):
    api.answers.append(rc_answer())

    gateway.look_up("foo")

    ((method, path, headers, body),) = api.requests
    assert (method, path, body) == ("GET", f"{BASE}/foo", None)
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer k", "application/json")


def test_requests_are_counted_by_method(gateway, api):
    api.answers += [rc_answer(), rc_answer("2")]

    gateway.look_up("foo")
    gateway.write(TO_2)

    assert gateway.requests == {"GET": 2, "PATCH": 1}


def test_a_body_is_written_as_the_api_server_writes_it_which_compares_bytes():
    """Go's json.Marshal is the reference; test_odd_objects.py compares with a real server."""
    assert http._encode({"a": "x && y > z < \u2028\u2029\n\"\\", "ö": "日本 \ud800"}) == (
        b'{"a":"x \\u0026\\u0026 y \\u003e z \\u003c '
        b'\\u2028\\u2029\\n\\"\\\\","\xc3\xb6":"\xe6\x97\xa5\xe6\x9c\xac ?"}')


@pytest.mark.parametrize("name, path",
                         [("foo.bar-1", "foo.bar-1"), ("../secrets/db", "..%2Fsecrets%2Fdb"),
                          ("..", "%2E%2E"),
                          (".", "%2E"), ("x?y#z%2f", "x%3Fy%23z%252f"), ("ö", "%C3%B6")])
def test_a_name_is_one_segment_of_a_path_whatever_it_holds(gateway, api, name, path):
    api.answers.append(status(404))

    gateway.look_up(name)

    assert api.sent == [("GET", f"{BASE}/{path}")]


# Unsuccessful answers


ANNOTATE = patch(PRIMARY, *annotate(PRIMARY, {"a": "b"}))
RENAME = handover.rename(Request("foo"), PRIMARY, Controller.from_api(new(3)), 3).write


@pytest.mark.parametrize("write, refused, what, why", [
    (TO_2, status(422, "spec.replicas: Invalid", **CAUSES),
     "the change of its size was refused (422)",
     "spec.replicas: Invalid"),
    (handover.close(PRIMARY, {}).write, status(403, "denied"),
     "the closing of its template was refused (403)", "denied"),
    (patch(PRIMARY, *handover.opening(None)), status(403, "denied"),
     "the opening of its template was refused (403)", "denied"),
    (CREATE, status(422, "name: Invalid"), "its creation was refused (422)", "name: Invalid"),
    (CREATE, status(404, 'namespaces "default" not found'), "its creation was refused (404)",
     'namespaces "default" not found'),
    (TO_2, status(400, "bad request"), "the change of its size was refused (400)", "bad request"),
    (TO_2, answer(b"<html>" + b"x" * 999, 418), "the change of its size was refused (418)",
     "<html>" + "x" * 250),
    (TO_2, answer(b"", 405), "the change of its size was refused (405)", "status 405"),
    (TO_2, answer(["no", "Status"], 405), "the change of its size was refused (405)",
     '["no", "Status"]'),
    (CREATE, status(403, "exceeded quota: rcs"), "its creation was refused (403)",
     "exceeded quota: rcs"),
    (CREATE, status(403, 'admission webhook "x" denied the request'),
     "its creation was refused (403)",
     'admission webhook "x" denied the request'),
    (TO_2, status(422, 'admission webhook "x" denied the request'),
     "the change of its size was refused (422)",
     'admission webhook "x" denied the request'),
    (TO_2, status(403, "ValidatingAdmissionPolicy 'x' denied request: no"),
     "the change of its size was refused (403)",
     "ValidatingAdmissionPolicy 'x' denied request: no"),
    (DELETE, status(403, "no"), "its deletion was refused (403)", "no"),
    (DELETE, status(403, "no\n\x1b[2J\u202e"), "its deletion was refused (403)",
     r"no\n\x1b[2J\u202e"),
    (DELETE, answer(b"no\x1b" * 99, 403), "its deletion was refused (403)", r"no\x1b" * 85 + "n"),
    (RENAME, status(403, "no"), "the change of its template was refused (403)", "no"),
    (ANNOTATE, status(403, "no"), "the change of its annotations was refused (403)", "no"),
], ids=["a value that makes no sense", "a closing", "an opening", "a manifest that makes no sense",
        "no such namespace",
        "a bad request", "no Status",
        "an empty body", "JSON of another kind", "a quota", "an admission",
        "an admission that says 422", "a policy",
        "a deletion", "escapes in a Status", "escapes in no Status", "a handover", "marks"])
def test_a_write_that_makes_no_sense_is_an_error_in_the_server_s_words(
        gateway, api, write, refused, what, why):
    api.answers.append(refused)

    with pytest.raises(RolloutError) as error:
        gateway.write(write)

    assert (error.value.what, error.value.why) == (what, why)
    assert error.value.where == f"ReplicationController default/{write.name}"
    assert error.value.next_command == "fix the cause of the refusal, then run the same task again"
    assert len(api.sent) == 1


def test_a_lack_of_permission_names_verb_and_resource(gateway, api):
    words = ('replicationcontrollers "foo" is forbidden: User "me" cannot patch resource '
             '"replicationcontrollers"')
    api.answers.append(status(403, words))

    with pytest.raises(RolloutError) as error:
        gateway.write(TO_2)

    assert (error.value.what, error.value.why) == ("permission denied (403)", words)
    assert error.value.where == "ReplicationController default/foo"
    assert "Role" in error.value.next_command


def test_a_lack_of_permission_to_list_names_the_namespace(cluster, api):
    api.answers.append(status(403, "cannot list"))

    with pytest.raises(RolloutError, match="permission denied") as error:
        cluster.controllers()

    assert (error.value.where, error.value.why) == ("namespace default", "cannot list")


# Tries


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_read_is_tried_again_when_the_server_is_in_trouble(gateway, api, pauses, code):
    api.answers += [status(code), status(code), rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2
    assert [0.05 <= pauses[0] <= 0.1, 0.15 <= pauses[1] <= 0.3] == [True, True] and len(pauses) == 2


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_a_write_is_tried_again_when_the_server_is_in_trouble(gateway, api, code):
    """Preconditions refuse the second attempt of a write that has landed."""
    api.answers += [status(code), rc_answer("2", replicas=2)]

    assert gateway.write(TO_2) is True
    assert [method for method, _path in api.sent] == ["PATCH", "PATCH"]


def test_tries_are_bounded_and_the_last_answer_is_told(gateway, api, pauses):
    api.answers += [status(503, f"no {number}") for number in range(20)]

    with pytest.raises(RolloutError) as error:
        gateway.write(TO_2)

    assert (error.value.what, error.value.why) == (f"the API server refused PATCH {BASE}/foo (503)",
                                                   "no 7")
    assert error.value.next_command == "run the same task again when the API server is healthy"
    assert len(api.sent) == len(http.BACKOFF) + 1 == 8
    assert all(limit / 2 <= pause <= limit
               for pause, limit in zip(pauses, http.BACKOFF, strict=True))


@pytest.mark.parametrize("header, expected",
                         [("3", 3.0), ("5", 5.0), ("999", 30.0), ("0", 0.1), ("soon", 0.1)])
def test_the_server_s_own_wish_for_a_pause_is_obeyed_within_reason(
        gateway, api, pauses, header, expected):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), rc_answer()]

    gateway.look_up("foo")

    (pause,) = pauses
    assert pause == expected if expected > 1 else expected / 2 <= pause <= expected


@pytest.mark.parametrize("header", ["1", "2", "4", "8"])
def test_the_server_s_own_wish_for_a_pause_is_never_cut_short(gateway, api, pauses, header):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), rc_answer()]

    gateway.look_up("foo")

    assert pauses == [float(header)]


@pytest.mark.parametrize("later", [status(500), reset], ids=["500", "reset"])
def test_the_server_s_wish_for_a_pause_is_for_one_pause(gateway, api, pauses, later):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After="20"), later, later, rc_answer()]

    gateway.look_up("foo")

    assert pauses[0] == 20 and max(pauses[1:]) <= 1


@pytest.mark.parametrize("host", ["ftp://one", "http://", "http://one:999999", "http://o ne"])
def test_an_address_that_is_none_is_an_error_at_once(host, pauses):
    cluster = KubernetesGateway(Connection({"host": host, "api_key": "k"}, {}), "default")

    with pytest.raises(RolloutError, match="is not a valid API server address"):
        cluster.controllers()
    assert pauses == []


def test_an_expired_token_is_renewed_once(gateway, api, connection, monkeypatch):
    monkeypatch.setattr(connection, "_options", {**connection._options, "api_key": "renewed"})
    api.answers += [status(401), rc_answer("2")]

    gateway.look_up("foo")

    assert [headers["Authorization"]
            for _method, _path, headers, _body in api.requests] == ["Bearer k", "Bearer renewed"]


def test_a_token_that_is_not_accepted_after_it_was_renewed_is_an_error(gateway, api):
    api.answers += [status(401, "Unauthorized"), status(401, "Unauthorized")]

    with pytest.raises(RolloutError) as error:
        gateway.write(TO_2)

    assert error.value.what == "the API server does not accept the credentials (401)"
    assert (error.value.where, error.value.why) == (api.url, "Unauthorized")
    assert len(api.sent) == 2


def test_a_request_whose_tries_take_long_is_given_up_sooner(gateway, api, pauses, monkeypatch):
    """An API server without etcd delays every attempt."""
    monkeypatch.setattr(http, "MAX_RETRY_SECONDS", -1.0)
    api.answers += [reset, rc_answer()]

    with pytest.raises(RolloutError) as error:
        gateway.look_up("foo")

    assert "cannot be reached" in error.value.what and len(api.sent) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_just_after_an_outage_is_tried_again(gateway, api, pauses, code):
    """A starting API server answers before it has read Roles and ServiceAccounts."""
    api.answers += [reset, *(status(code) for _time in range(4)), rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2 and 4 <= len(pauses) <= 5


def test_a_refusal_that_lasts_after_an_outage_is_an_error(gateway, api, pauses):
    api.answers += [reset, *(status(403, "may not") for _time in range(20))]

    with pytest.raises(RolloutError) as error:
        gateway.look_up("foo")

    assert error.value.what == "permission denied (403)" and len(pauses) == len(http.BACKOFF)


def test_a_refusal_long_after_an_outage_is_an_error_at_once(gateway, api, pauses):
    gateway.http.record_outage()
    gateway.http._unreachable_at -= http.WARM_UP_SECONDS
    api.answers += [status(403, "may not")]

    with pytest.raises(RolloutError):
        gateway.look_up("foo")

    assert pauses == []


def test_a_list_whose_rest_is_forgotten_is_begun_once_more_and_no_more(gateway, api):
    first, rest = pods(pod("a", uid="a"), **{"continue": "x"}), pods(pod("b", uid="b"))

    api.answers += [first, status(410), first, rest]
    assert [pod.name for pod in gateway.live_pods({"app": "foo"})] == ["a", "b"]
    assert ["continue=x" in path for _method, path in api.sent] == [False, True, False, True]

    api.answers += [first, status(410), first, status(410, "the continue parameter is too old")]
    with pytest.raises(RolloutError) as error:
        gateway.live_pods({"app": "foo"})
    assert "the continue parameter is too old" in error.value.message


COMPRESSED = {"Content-Encoding": "gzip"}


def compressed(content, end=None):
    """Return a compressed answer, as the API server sends long answers to kubectl."""
    return answer(gzip.compress(json.dumps(content).encode())[:end], **COMPRESSED)


def test_a_long_answer_comes_compressed(gateway, api):
    api.answers.append(compressed(item("2", replicas=2)))

    gateway.look_up("foo")

    assert (api.requests[0][2]["Accept-Encoding"] == "gzip"
            and gateway.controllers()["foo"].replicas == 2)


def test_a_compressed_answer_has_the_same_limit(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers.append(compressed({"kind": "x" * 2 * 10**6}))

    with pytest.raises(RolloutError, match="has more than 1000000 bytes"):
        gateway.look_up("foo")


@pytest.mark.parametrize("bad",
                         [reset, truncated, answer(b"{"), answer(b""),
                          compressed({"kind": "x" * 999}, end=-20),
                          answer(b'{"kind": "x"}', **COMPRESSED)],
                         ids=["reset", "cut short", "no JSON", "empty", "half of it compressed",
                              "not compressed as it says"])
def test_a_read_whose_answer_is_lost_is_tried_again(gateway, api, bad):
    api.answers += [bad, rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2


@pytest.mark.parametrize("content", [{"items": []}, [], "text", 7],
                         ids=["no kind", "a list", "a text", "a number"])
def test_what_is_no_api_server_is_said_to_be_none(gateway, api, content):
    api.answers.append(answer(content))

    with pytest.raises(RolloutError,
                       match=f"^{api.url} does not respond like a Kubernetes API server$"):
        gateway.look_up("foo")


@pytest.mark.parametrize("was_known, tries", [(False, 4), (True, 8)],
                         ids=["never heard of", "known to be there"])
def test_a_server_that_is_not_there_is_waited_for_longer_if_it_has_been_there(
        cluster, api, pauses, was_known, tries):
    if was_known:
        api.answers.append(rc_list())
        cluster.controllers()
    api.shutdown()
    api.server_close()

    with pytest.raises(RolloutError) as error:
        cluster.look_up("foo")

    assert error.value.what == f"the API server at {api.url} cannot be reached"
    assert "Connection refused" in error.value.why and "0x" not in error.value.why
    assert error.value.next_command == "run the same task again when it is back"
    assert len(pauses) == tries - 1


def test_a_server_that_comes_back_is_gone_on_with(gateway, api, monkeypatch):
    """No byte was sent: even a write is repeated."""
    port = api.server_port
    api.shutdown()
    api.server_close()
    later = []

    def come_back(seconds):
        if not later:
            later.append(HTTPServer(("127.0.0.1", port), Handler))
            later[0].answers = [rc_answer("2", replicas=2)]
            later[0].watches, later[0].requests = [], []
            threading.Thread(target=later[0].handle_request, daemon=True).start()

    monkeypatch.setattr(http.time, "sleep", come_back)

    assert gateway.write(TO_2) is True
    assert len(later[0].requests) == 1
    later[0].server_close()


# Reading of answers: only the requested object, and a limited size


def an_object(**changes):
    metadata = {"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "1",
                **changes.pop("metadata", {})}
    return {"kind": "Lease", "metadata": metadata, "spec": {}, **changes}


@pytest.mark.parametrize("another", [
    an_object(kind="Secret"), an_object(metadata={"name": "y"}),
    an_object(metadata={"namespace": "kube-system"}),
    an_object(metadata={"namespace": None}), an_object(metadata={"name": ["x"]}),
    {"kind": "Lease", "metadata": "x"},
    {"kind": ["Lease"]},
], ids=["another kind", "another name", "another namespace", "no namespace", "a list",
        "no metadata", "a list of kinds"])
def test_an_answer_that_is_another_object_is_refused(gateway, api, another):
    api.answers.append(answer(another))

    with pytest.raises(RolloutError,
                       match=r"^the API server answered with another object than the Lease "
                             r"default/x$"):
        gateway.lease("x")


@pytest.mark.parametrize("ask",
                         [lambda gateway: gateway.look_up("foo"),
                          lambda gateway: gateway.find("HorizontalPodAutoscaler", "hpa")])
def test_whatever_is_asked_for_by_name_an_answer_that_is_another_object_is_refused(
        gateway, api, ask):
    api.answers.append(answer(an_object(kind="Secret")))

    with pytest.raises(RolloutError, match="answered with another object than the "):
        ask(gateway)


def endless(piece, pause=0.0):
    """Return an answer without an end: in chunks, or with a large Content-Length."""
    def send(handler, query):
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not handler.server.closing.wait(pause):
                handler.wfile.write(piece)
    return send


def test_an_answer_without_an_end_is_not_read_to_the_end(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers += [endless(b"x" * 65536), rc_answer("2", replicas=2)]

    with pytest.raises(RolloutError,
                       match=r"^the answer to GET .*/replicationcontrollers/foo has more than "
                             r"1000000 bytes$"):
        gateway.look_up("foo")

    gateway.look_up("foo")
    assert gateway.controllers()["foo"].replicas == 2


def test_an_answer_that_trickles_is_no_answer(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "BODY_TIMEOUT", 0.3)
    api.answers += [endless(b" ", pause=0.05), rc_answer("2", replicas=2)]

    began = time.monotonic()
    gateway.look_up("foo")

    assert time.monotonic() - began < 5 and gateway.controllers()["foo"].replicas == 2


def test_a_log_without_an_end_is_none(gateway, api):
    api.answers.append(endless(b"line\n" * 1000))

    assert gateway.log("pod", "web", previous=False) == []


def test_a_page_of_objects_that_are_too_large_has_fewer(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers += [endless(b"x" * 2**20), answer({"kind": "ServiceList", "items": [{"a": 1}]})]

    assert gateway.objects("services") == [{"a": 1}]
    assert [path.partition("?")[2] for _method, path in api.sent] == ["limit=500", "limit=20"]


def test_a_list_without_an_end_is_an_error(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_OBJECTS", 3)
    api.answers += [rc_list(item(), **{"continue": "x"}) for _page in range(9)]

    with pytest.raises(RolloutError, match="there are more than 3 objects at "):
        gateway.http.pages("/x", {})


def test_connections_of_answers_that_were_given_up_are_used_again(connection, api, monkeypatch):
    client = http.Http(connection)
    monkeypatch.setitem(connection.pool.connection_pool_kw, "maxsize", 1)
    for _time in range(3):
        api.answers += [endless(b"x" * 100), rc_answer()]
        with pytest.raises(http.ResponseTooLarge):
            client.send_once("GET", "/x", max_bytes=1000)
        assert client.send_once("GET", "/x")[0] == 200


# A slow line


def slowly(content):
    """Return a late answer."""
    def send(handler, query):
        handler.server.closing.wait(0.6)
        answer(content)(handler, query)
    return send


@pytest.mark.parametrize("answers, is_slow", [
    ([slowly(item("2"))] * 2, True),
    ([slowly(item("2")), rc_answer("3"), slowly(item("4"))], False),
], ids=["all", "not all"])
def test_it_is_the_line_where_every_answer_takes_long(cluster, api, monkeypatch, answers, is_slow):
    monkeypatch.setattr(http, "HIGH_LATENCY", 0.5)
    api.answers += answers

    for _answer in answers:
        cluster.find("ReplicationController", "foo")

    assert cluster.http.is_slow == is_slow


def test_what_nobody_waits_for_is_sent_beside_on_a_slow_line_alone(gateway, api, monkeypatch):
    threads = []

    def work():
        threads.append(threading.current_thread())
        return 1

    assert gateway.start_in_background(work) is None and threads == []
    monkeypatch.setattr(http.Http, "is_slow", True)
    assert gateway.start_in_background(work).result() == 1
    assert threads != [threading.current_thread()]


def test_an_event_is_sent_beside_and_the_next_one_is_told_that_it_was_refused(
        gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    may_answer = threading.Event()

    def late(handler, query):
        may_answer.wait(10)
        status(403)(handler, query)

    api.answers += [late, answer({"kind": "Event"})]

    assert gateway.record({"message": "one"})
    may_answer.set()
    concurrent.futures.wait([gateway._event])
    assert not gateway.record({"message": "two"})


def test_the_end_waits_for_what_is_still_under_way(gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    api.answers.append(slowly({"kind": "Event"}))

    gateway.record({"message": "the last one"})
    gateway.close()

    assert gateway._event.done() and gateway._event.result()

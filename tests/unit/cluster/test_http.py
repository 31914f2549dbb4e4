# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send requests to a small HTTP server that also sends bad responses."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import json
import threading
import time
from http.server import HTTPServer

import handshakes
import pytest
from apiserver import (
    CAUSES,
    CREATE,
    DELETE,
    PRIMARY,
    RC_PATH,
    SCALE_TO_2,
    Handler,
    answer,
    item,
    pod,
    pods,
    rc_answer,
    rc_list,
    reset,
    status,
    truncated_answer,
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


def test_long_lists_are_paged(cluster, api):
    api.answers += [rc_list(item(), **{"continue": "more of it"}), rc_list(item(name="bar"))]

    assert cluster.controllers().keys() == {"foo", "bar"}
    assert api.sent == [("GET", f"{RC_PATH}?limit=500"),
                        ("GET", f"{RC_PATH}?limit=500&continue=more+of+it")]


def test_lists_omit_field_sets_in_managed_fields(gateway, api):
    controller = item()
    controller["metadata"]["managedFields"] = [
        {"manager": "kubectl", "time": "2026-11-26T08:00:00Z", "fieldsV1": {"f:spec": {}}}]
    api.answers.append(rc_list(controller))

    (listed_item,), _version = gateway.http.list_all("/x", {})
    assert listed_item["metadata"]["managedFields"] == [
        {"manager": "kubectl", "time": "2026-11-26T08:00:00Z"}]


def test_requests_are_authenticated(gateway, api):
    api.answers.append(rc_answer())

    gateway.look_up("foo")

    ((method, path, headers, body),) = api.requests
    assert (method, path, body) == ("GET", f"{RC_PATH}/foo", None)
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer k", "application/json")


def test_requests_are_counted_by_method(gateway, api):
    api.answers += [rc_answer(), rc_answer("2")]

    gateway.look_up("foo")
    gateway.write(SCALE_TO_2)

    assert gateway.requests == {"GET": 2, "PATCH": 1}


def test_request_body_is_encoded_as_in_go():
    assert http._encode({"a": "x && y > z < \u2028\u2029\n\"\\", "ö": "日本 \ud800"}) == (
        b'{"a":"x \\u0026\\u0026 y \\u003e z \\u003c '
        b'\\u2028\\u2029\\n\\"\\\\","\xc3\xb6":"\xe6\x97\xa5\xe6\x9c\xac ?"}')


@pytest.mark.parametrize("name, path",
                         [("foo.bar-1", "foo.bar-1"), ("../secrets/db", "..%2Fsecrets%2Fdb"),
                          ("..", "%2E%2E"),
                          (".", "%2E"), ("x?y#z%2f", "x%3Fy%23z%252f"), ("ö", "%C3%B6")])
def test_name_is_one_segment_of_the_path(gateway, api, name, path):
    api.answers.append(status(404))

    gateway.look_up(name)

    assert api.sent == [("GET", f"{RC_PATH}/{path}")]


# Refused requests


ANNOTATE = patch(PRIMARY, *annotate(PRIMARY, {"a": "b"}))
RENAME = handover.rename(Request("foo"), PRIMARY, Controller.from_api(new(3)), 3).write


@pytest.mark.parametrize("write, response, what, why", [
    (SCALE_TO_2, status(422, "spec.replicas: Invalid", **CAUSES),
     "the change of its size was refused (422)",
     "spec.replicas: Invalid"),
    (handover.close(PRIMARY, {}).write, status(403, "denied"),
     "blocking the creation of pods from its template (for the handover) was refused (403)",
     "denied"),
    (patch(PRIMARY, *handover.opening_operations(None)), status(403, "denied"),
     "unblocking the creation of pods from its template (for the handover) was refused (403)",
     "denied"),
    (CREATE, status(422, "name: Invalid"), "its creation was refused (422)", "name: Invalid"),
    (CREATE, status(404, 'namespaces "default" not found'), "its creation was refused (404)",
     'namespaces "default" not found'),
    (SCALE_TO_2, status(400, "bad request"), "the change of its size was refused (400)",
     "bad request"),
    (SCALE_TO_2, answer(b"<html>" + b"x" * 999, 418), "the change of its size was refused (418)",
     "<html>" + "x" * 250),
    (SCALE_TO_2, answer(b"", 405), "the change of its size was refused (405)", "status 405"),
    (SCALE_TO_2, answer(["no", "Status"], 405), "the change of its size was refused (405)",
     '["no", "Status"]'),
    (CREATE, status(403, "exceeded quota: rcs"), "its creation was refused (403)",
     "exceeded quota: rcs"),
    (CREATE, status(403, 'admission webhook "x" denied the request'),
     "its creation was refused (403)",
     'admission webhook "x" denied the request'),
    (SCALE_TO_2, status(422, 'admission webhook "x" denied the request'),
     "the change of its size was refused (422)",
     'admission webhook "x" denied the request'),
    (SCALE_TO_2, status(403, "ValidatingAdmissionPolicy 'x' denied request: no"),
     "the change of its size was refused (403)",
     "ValidatingAdmissionPolicy 'x' denied request: no"),
    (DELETE, status(403, "no"), "its deletion was refused (403)", "no"),
    (DELETE, status(403, "no\n\x1b[2J\u202e"), "its deletion was refused (403)",
     r"no\n\x1b[2J\u202e"),
    (DELETE, answer(b"no\x1b" * 99, 403), "its deletion was refused (403)", r"no\x1b" * 85 + "n"),
    (RENAME, status(403, "no"), "the change of its template was refused (403)", "no"),
    (ANNOTATE, status(403, "no"), "the change of its annotations was refused (403)", "no"),
], ids=["invalid value", "closed template", "opened template", "invalid manifest",
        "no such namespace",
        "bad request", "no Status",
        "empty body", "JSON of another kind", "quota", "admission",
        "admission with 422", "policy",
        "deletion", "escapes in a Status", "escapes in a body", "handover", "annotations"])
def test_rejected_write_quotes_the_reason_of_the_server(gateway, api, write, response, what, why):
    api.answers.append(response)

    with pytest.raises(RolloutError) as error:
        gateway.write(write)

    assert (error.value.what, error.value.why) == (what, why)
    assert error.value.where == f"ReplicationController default/{write.name}"
    assert error.value.next_command == "fix the cause of the refusal, then run the same task again"
    assert len(api.sent) == 1


def test_missing_permission_names_verb_and_resource(gateway, api):
    reason = ('replicationcontrollers "foo" is forbidden: User "me" cannot patch resource '
              '"replicationcontrollers"')
    api.answers.append(status(403, reason))

    with pytest.raises(RolloutError) as error:
        gateway.write(SCALE_TO_2)

    assert (error.value.what, error.value.why) == ("permission denied (403)", reason)
    assert error.value.where == "ReplicationController default/foo"
    assert "Role" in error.value.next_command


def test_missing_permission_to_list_names_the_namespace(cluster, api):
    api.answers.append(status(403, "cannot list"))

    with pytest.raises(RolloutError, match="permission denied") as error:
        cluster.controllers()

    assert (error.value.where, error.value.why) == ("namespace default", "cannot list")


# Retries


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_read_is_retried_after_a_server_error(gateway, api, pauses, code):
    api.answers += [status(code), status(code), rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2
    assert [0.05 <= pauses[0] <= 0.1, 0.15 <= pauses[1] <= 0.3] == [True, True] and len(pauses) == 2


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_write_is_retried_after_a_server_error(gateway, api, code):
    """Preconditions reject the second attempt if the server has stored the first."""
    api.answers += [status(code), rc_answer("2", replicas=2)]

    assert gateway.write(SCALE_TO_2) is True
    assert [method for method, _path in api.sent] == ["PATCH", "PATCH"]


def test_error_after_the_last_retry_quotes_the_last_response(gateway, api, pauses):
    api.answers += [status(503, f"no {number}") for number in range(20)]

    with pytest.raises(RolloutError) as error:
        gateway.write(SCALE_TO_2)

    assert (error.value.what, error.value.why) == (
        f"the API server refused PATCH {RC_PATH}/foo (503)", "no 7")
    assert error.value.next_command == "run the same task again when the API server is healthy"
    assert len(api.sent) == len(http.BACKOFF) + 1 == 8
    assert all(limit / 2 <= pause <= limit
               for pause, limit in zip(pauses, http.BACKOFF, strict=True))


@pytest.mark.parametrize("write, what", [
    (SCALE_TO_2, "the change of its size was refused (500)"),
    (CREATE, "its creation was refused (500)")])
def test_error_after_the_last_retry_names_an_unreachable_webhook(
        gateway, api, pauses, write, what):
    reason = ('Internal error occurred: failed calling webhook "mutate.example.com": failed to '
              'call webhook: Post "https://127.0.0.1:1/?timeout=2s": context deadline exceeded')
    api.answers += [status(500, reason) for _attempt in range(20)]

    with pytest.raises(RolloutError) as error:
        gateway.write(write)

    assert (error.value.what, error.value.why) == (what, reason)
    assert error.value.next_command == (
        "check that the service behind the webhook mutate.example.com is running\n"
        "then run the same task again")
    assert len(api.sent) == len(http.BACKOFF) + 1


@pytest.mark.parametrize("header, expected",
                         [("3", 3.0), ("5", 5.0), ("999", 30.0), ("0", 0.1), ("soon", 0.1)])
def test_retry_after_is_honored_up_to_a_limit(gateway, api, pauses, header, expected):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), rc_answer()]

    gateway.look_up("foo")

    (pause,) = pauses
    # Without a positive number, the pause is the first backoff, which is partly random.
    assert pause == expected if expected > 1 else expected / 2 <= pause <= expected


@pytest.mark.parametrize("header", ["1", "2", "4", "8"])
def test_retry_after_is_not_shortened(gateway, api, pauses, header):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), rc_answer()]

    gateway.look_up("foo")

    assert pauses == [float(header)]


@pytest.mark.parametrize("later_response", [status(500), reset], ids=["500", "reset"])
def test_retry_after_applies_to_one_retry(gateway, api, pauses, later_response):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After="20"), later_response,
                    later_response, rc_answer()]

    gateway.look_up("foo")

    assert pauses[0] == 20 and max(pauses[1:]) <= 1


@pytest.mark.parametrize("host", ["ftp://one", "http://", "http://one:999999", "http://o ne"])
def test_invalid_address_is_an_error_without_retry(host, pauses):
    cluster = KubernetesGateway(Connection({"host": host, "api_key": "k"}, {}), "default")

    with pytest.raises(RolloutError, match="is not a valid API server address"):
        cluster.controllers()
    assert pauses == []


def test_expired_token_is_renewed_once(gateway, api, connection, monkeypatch):
    monkeypatch.setattr(connection, "_options", {**connection._options, "api_key": "renewed"})
    api.answers += [status(401), rc_answer("2")]

    gateway.look_up("foo")

    assert [headers["Authorization"]
            for _method, _path, headers, _body in api.requests] == ["Bearer k", "Bearer renewed"]


def test_rejected_renewed_token_is_an_error(gateway, api):
    api.answers += [status(401, "Unauthorized"), status(401, "Unauthorized")]

    with pytest.raises(RolloutError) as error:
        gateway.write(SCALE_TO_2)

    assert error.value.what == "the API server does not accept the credentials (401)"
    assert (error.value.where, error.value.why) == (api.url, "Unauthorized")
    assert len(api.sent) == 2


def test_slow_attempts_reduce_the_number_of_retries(gateway, api, pauses, monkeypatch):
    """An API server without etcd delays each attempt."""
    monkeypatch.setattr(http, "MAX_RETRY_SECONDS", -1.0)
    api.answers += [reset, rc_answer()]

    with pytest.raises(RolloutError) as error:
        gateway.look_up("foo")

    assert "cannot be reached" in error.value.what and len(api.sent) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_refusal_after_an_outage_is_retried(gateway, api, pauses, code):
    """A starting API server responds before it has read Roles and ServiceAccounts."""
    api.answers += [reset, *(status(code) for _round in range(4)), rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2 and 4 <= len(pauses) <= 5


def test_lasting_refusal_after_an_outage_is_an_error(gateway, api, pauses):
    api.answers += [reset, *(status(403, "may not") for _round in range(20))]

    with pytest.raises(RolloutError) as error:
        gateway.look_up("foo")

    assert error.value.what == "permission denied (403)" and len(pauses) == len(http.BACKOFF)


def test_refusal_long_after_an_outage_is_not_retried(gateway, api, pauses):
    gateway.http.record_outage()
    gateway.http._unreachable_at -= http.WARM_UP_SECONDS
    api.answers += [status(403, "may not")]

    with pytest.raises(RolloutError):
        gateway.look_up("foo")

    assert pauses == []


def test_list_with_an_expired_continue_token_restarts_once(gateway, api):
    first, last = pods(pod("a", uid="a"), **{"continue": "x"}), pods(pod("b", uid="b"))

    api.answers += [first, status(410), first, last]
    assert [pod.name for pod in gateway.live_pods({"app": "foo"})] == ["a", "b"]
    assert ["continue=x" in path for _method, path in api.sent] == [False, True, False, True]

    api.answers += [first, status(410), first, status(410, "the continue parameter is too old")]
    with pytest.raises(RolloutError) as error:
        gateway.live_pods({"app": "foo"})
    assert "the continue parameter is too old" in error.value.message


GZIP_HEADERS = {"Content-Encoding": "gzip"}


def compressed_answer(content, end=None):
    """Return a compressed response, cut at the index `end`."""
    return answer(gzip.compress(json.dumps(content).encode())[:end], **GZIP_HEADERS)


def test_responses_may_be_compressed(gateway, api):
    api.answers.append(compressed_answer(item("2", replicas=2)))

    gateway.look_up("foo")

    assert (api.requests[0][2]["Accept-Encoding"] == "gzip"
            and gateway.controllers()["foo"].replicas == 2)


def test_size_limit_applies_to_the_uncompressed_body(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers.append(compressed_answer({"kind": "x" * 2 * 10**6}))

    with pytest.raises(RolloutError, match="has more than 1000000 bytes"):
        gateway.look_up("foo")


@pytest.mark.parametrize("failure",
                         [reset, truncated_answer, answer(b"{"), answer(b""),
                          compressed_answer({"kind": "x" * 999}, end=-20),
                          answer(b'{"kind": "x"}', **GZIP_HEADERS)],
                         ids=["reset", "cut body", "no JSON", "empty", "cut compressed body",
                              "uncompressed body"])
def test_read_with_a_lost_response_is_retried(gateway, api, failure):
    api.answers += [failure, rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2


@pytest.mark.parametrize("response, attempts", [
    *((answer(content), 1) for content in ({"items": []}, [], "text", 7)),
    *((response, 8) for response in (answer(b"<!doctype html><title>Console</title>"), answer(b""),
                                     answer(b"{", 201))),
], ids=["no kind", "list", "text", "number", "HTML", "empty", "cut body"])
def test_server_without_the_kubernetes_api_is_reported(gateway, api, pauses, response, attempts):
    api.answers += [response] * attempts

    with pytest.raises(RolloutError,
                       match=f"^{api.url} does not respond like a Kubernetes API server$"):
        gateway.look_up("foo")


@pytest.mark.parametrize("was_connected, attempts", [(False, 4), (True, 8)],
                         ids=["never connected", "connected before"])
def test_unreachable_server_is_retried_longer_after_a_connection(
        cluster, api, pauses, was_connected, attempts):
    if was_connected:
        api.answers.append(rc_list())
        cluster.controllers()
    api.shutdown()
    api.server_close()

    with pytest.raises(RolloutError) as error:
        cluster.look_up("foo")

    assert error.value.what == f"the API server at {api.url} cannot be reached"
    assert "Connection refused" in error.value.why and "0x" not in error.value.why
    assert error.value.next_command == "run the same task again when it responds"
    assert len(pauses) == attempts - 1


@pytest.mark.parametrize("response", handshakes.TEMPORARY.values(), ids=handshakes.TEMPORARY)
@pytest.mark.parametrize("method, error_type", [("GET", RolloutError),
                                                ("POST", http.OutcomeUnknown)])
def test_handshake_without_a_refusal_is_an_outage(pauses, method, error_type, response):
    with handshakes.server(response) as server:
        client = http.Http(Connection({"host": server.url, "api_key": "k"}, {}))
        with pytest.raises(error_type) as error:
            client.send(method, "/version")

    assert server.connection_count == (1 + len(http.FIRST_BACKOFF) if method == "GET" else 1)
    assert method == "POST" or (
        error.value.what == f"the API server at {server.url} cannot be reached")


@pytest.mark.parametrize("response", handshakes.PERMANENT.values(), ids=handshakes.PERMANENT)
def test_refused_handshake_is_not_retried(pauses, response):
    with handshakes.server(response) as server:
        client = http.Http(Connection({"host": server.url, "api_key": "k"}, {}))
        with pytest.raises(RolloutError) as error:
            client.send("GET", "/version")

    assert error.value.what == f"the certificate of {server.url} is not accepted"
    assert server.connection_count == 1 and not pauses


def test_write_succeeds_after_a_restart_of_the_server(gateway, api, monkeypatch):
    """No byte was sent, so even a write is repeated."""
    port = api.server_port
    api.shutdown()
    api.server_close()
    restarted_servers = []

    def restart_server(seconds):
        if not restarted_servers:
            restarted_servers.append(HTTPServer(("127.0.0.1", port), Handler))
            restarted_servers[0].answers = [rc_answer("2", replicas=2)]
            restarted_servers[0].watches, restarted_servers[0].requests = [], []
            threading.Thread(target=restarted_servers[0].handle_request, daemon=True).start()

    monkeypatch.setattr(http.time, "sleep", restart_server)

    assert gateway.write(SCALE_TO_2) is True
    assert len(restarted_servers[0].requests) == 1
    restarted_servers[0].server_close()


# Unexpected and endless responses


def lease_with(**changes):
    metadata = {"name": "x", "namespace": "default", "uid": "u", "resourceVersion": "1",
                **changes.pop("metadata", {})}
    return {"kind": "Lease", "metadata": metadata, "spec": {}, **changes}


@pytest.mark.parametrize("other_object", [
    lease_with(kind="Secret"), lease_with(metadata={"name": "y"}),
    lease_with(metadata={"namespace": "kube-system"}),
    lease_with(metadata={"namespace": None}), lease_with(metadata={"name": ["x"]}),
    {"kind": "Lease", "metadata": "x"},
    {"kind": ["Lease"]},
], ids=["another kind", "another name", "another namespace", "no namespace", "list as name",
        "no metadata", "list as kind"])
def test_response_with_another_object_is_refused(gateway, api, other_object):
    api.answers.append(answer(other_object))

    with pytest.raises(RolloutError,
                       match=r"^the API server returned an object other than the Lease "
                             r"default/x$"):
        gateway.lease("x")


@pytest.mark.parametrize("read",
                         [lambda gateway: gateway.look_up("foo"),
                          lambda gateway: gateway.find("HorizontalPodAutoscaler", "hpa")])
def test_every_read_by_name_refuses_another_object(gateway, api, read):
    api.answers.append(answer(lease_with(kind="Secret")))

    with pytest.raises(RolloutError, match="returned an object other than the "):
        read(gateway)


def endless_answer(piece, pause=0.0):
    def send(handler, query):
        handler.send_response(200)
        handler.send_header("Content-Length", str(10**12))
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not handler.server.closing.wait(pause):
                handler.wfile.write(piece)
    return send


def test_endless_response_is_cut(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers += [endless_answer(b"x" * 65536), rc_answer("2", replicas=2)]

    with pytest.raises(RolloutError,
                       match=r"^the response to GET .*/replicationcontrollers/foo has more than "
                             r"1000000 bytes$"):
        gateway.look_up("foo")

    gateway.look_up("foo")
    assert gateway.controllers()["foo"].replicas == 2


def test_slow_response_is_retried(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "BODY_TIMEOUT", 0.3)
    api.answers += [endless_answer(b" ", pause=0.05), rc_answer("2", replicas=2)]

    start = time.monotonic()
    gateway.look_up("foo")

    assert time.monotonic() - start < 5 and gateway.controllers()["foo"].replicas == 2


def test_endless_log_counts_as_empty(gateway, api):
    api.answers.append(endless_answer(b"line\n" * 1000))

    assert gateway.log("pod", "web", previous=False) == []


def test_page_above_the_size_limit_is_requested_with_fewer_objects(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 10**6)
    api.answers += [endless_answer(b"x" * 2**20),
                    answer({"kind": "ServiceList", "items": [{"a": 1}]})]

    assert gateway.objects("services") == [{"a": 1}]
    assert [path.partition("?")[2] for _method, path in api.sent] == ["limit=500", "limit=20"]


def test_endless_list_is_an_error(gateway, api, monkeypatch):
    monkeypatch.setattr(http, "MAX_OBJECTS", 3)
    api.answers += [rc_list(item(), **{"continue": "x"}) for _page in range(9)]

    with pytest.raises(RolloutError, match="there are more than 3 objects at "):
        gateway.http.list_all("/x", {})


def test_connection_of_a_cut_response_is_released(connection, api, monkeypatch):
    client = http.Http(connection)
    monkeypatch.setitem(connection.pool.connection_pool_kw, "maxsize", 1)
    for _round in range(3):
        api.answers += [endless_answer(b"x" * 100), rc_answer()]
        with pytest.raises(http.ResponseTooLarge):
            client.send_once("GET", "/x", max_bytes=1000)
        assert client.send_once("GET", "/x")[0] == 200


# Slow connections


def delayed_answer(content):
    """Return a response that the server sends after 0.6 seconds."""
    def send(handler, query):
        handler.server.closing.wait(0.6)
        answer(content)(handler, query)
    return send


@pytest.mark.parametrize("answers, is_slow", [
    ([delayed_answer(item("2"))] * 2, True),
    ([delayed_answer(item("2")), rc_answer("3"), delayed_answer(item("4"))], False),
], ids=["all responses", "some responses"])
def test_connection_is_slow_if_all_responses_are_late(cluster, api, monkeypatch, answers, is_slow):
    monkeypatch.setattr(http, "HIGH_LATENCY", 0.5)
    api.answers += answers

    for _answer in answers:
        cluster.find("ReplicationController", "foo")

    assert cluster.http.is_slow == is_slow


def test_background_requests_are_sent_only_on_a_slow_connection(gateway, api, monkeypatch):
    threads = []

    def work():
        threads.append(threading.current_thread())
        return 1

    assert gateway.start_in_background(work) is None and threads == []
    monkeypatch.setattr(http.Http, "is_slow", True)
    assert gateway.start_in_background(work).result() == 1
    assert threads != [threading.current_thread()]


def test_rejected_background_event_stops_the_next_event(gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    may_respond = threading.Event()

    def respond_late(handler, query):
        may_respond.wait(10)
        status(403)(handler, query)

    api.answers += [respond_late, answer({"kind": "Event"})]

    assert gateway.record({"message": "one"})
    may_respond.set()
    concurrent.futures.wait([gateway._event_future])
    assert not gateway.record({"message": "two"})


def test_close_waits_for_background_requests(gateway, api, monkeypatch):
    monkeypatch.setattr(http.Http, "is_slow", True)
    api.answers.append(delayed_answer({"kind": "Event"}))

    gateway.record({"message": "the last one"})
    gateway.close()

    future = gateway._event_future
    assert future.done() and future.result()

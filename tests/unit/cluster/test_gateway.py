# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What goes over the wire, and what comes of each way in which an answer can be bad: against a small HTTP server."""

from __future__ import annotations

import dataclasses
import http.server
import json
import socket
import struct
import threading
import time
import urllib.parse

import pytest
from builders import new, rc, template

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import gateway
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.gateway import KubernetesGateway, SimulatedGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import autoscaler, handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.stepped.simulated import patched
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create, Delete, HandOver, annotate, patch, scale

BASE = "/api/v1/namespaces/default/replicationcontrollers"


class Api(http.server.ThreadingHTTPServer):
    """Gives the answers that a test has prepared, one for each request, and keeps the requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.watches, self.requests = [], [], []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.closing = threading.Event()

    @property
    def sent(self):
        """Method and path of each request that was no watch."""
        return [(method, path) for method, path, _headers, _body in self.requests]

    def handle_error(self, request, client_address):
        """Connections that a test cuts are no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    def handle_one(self):
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = dict(urllib.parse.parse_qsl(url.query))
        if "watch" in query:
            answers = self.server.watches
            if not answers:
                self.server.closing.wait(10)
                return
        else:
            self.server.requests.append((self.command, self.path, self.headers, json.loads(body) if body else None))
            answers = self.server.answers
        answer = answers.pop(0) if answers else status(404, f"unexpected: {self.command} {self.path}")
        answer(self, query)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def log_message(self, *args):
        pass


def answer(content, code=200, **headers):
    """An answer with this content as JSON, or as these bytes."""
    def send(handler, query):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
    return send


def status(code, message="no", **fields):
    """A failure in the API server's own words."""
    return answer({"kind": "Status", "code": code, "message": message, **fields}, code)


def cut(handler, query):
    """The connection is reset instead of an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def half(handler, query):
    """An answer that ends before it is complete."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"kind": "ReplicationC')


def listed(*items, version="10", **metadata):
    return answer({"kind": "ReplicationControllerList", "metadata": {"resourceVersion": version, **metadata},
                   "items": list(items)})


def item(version="1", **changes):
    """A ReplicationController as the API server shows it."""
    return {"kind": "ReplicationController", **rc(**{"resourceVersion": version, **changes})}


def shown(version="1", **changes):
    return answer(item(version, **changes))


@pytest.fixture
def api():
    server = Api()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def pauses(monkeypatch):
    """The seconds that were slept between tries, without sleeping."""
    slept = []
    monkeypatch.setattr(gateway.time, "sleep", slept.append)
    return slept


@pytest.fixture
def connection(api):
    return Connection({"host": api.url, "api_key": "k"}, {})


@pytest.fixture
def cluster(connection, pauses):
    """A gateway that has never had an answer."""
    it = KubernetesGateway(connection, "default")
    yield it
    it.close()


@pytest.fixture
def known(cluster, api):
    """A gateway that knows foo, with three replicas."""
    api.answers.append(listed(item()))
    cluster.controllers()
    api.requests.clear()
    return cluster


PRIMARY = Controller.from_api(item())
TO_2 = scale(PRIMARY, 2).write
DELETE = Delete("foo", {"uid": "uid of foo"})


# Requests


def test_controllers_are_listed_once(known, api):
    assert known.controllers() == {"foo": PRIMARY}
    assert known.items() == [item()]
    assert api.sent == []


def test_long_lists_come_in_pages(cluster, api):
    api.answers += [listed(item(), **{"continue": "more of it"}), listed(item(name="bar"))]

    assert cluster.controllers().keys() == {"foo", "bar"}
    assert api.sent == [("GET", f"{BASE}?limit=500"), ("GET", f"{BASE}?limit=500&continue=more+of+it")]


def test_every_request_proves_who_asks(known, api):
    api.answers.append(shown())

    known.look_up("foo")

    ((method, path, headers, body),) = api.requests
    assert (method, path, body) == ("GET", f"{BASE}/foo", None)
    assert (headers["Authorization"], headers["Accept"]) == ("Bearer k", "application/json")


@pytest.mark.parametrize("write, expected", [
    (TO_2, ("PATCH", f"{BASE}/foo", "application/json-patch+json", list(TO_2.operations))),
    (Create(new()), ("POST", BASE, "application/json", new())),
    (DELETE, ("DELETE", f"{BASE}/foo", "application/json", {
        "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background", "preconditions": {"uid": "uid of foo"}})),
], ids=["a patch", "a creation", "a deletion with its policy and preconditions"])
def test_a_write_is_one_request(known, api, write, expected):
    api.answers.append(shown("2", replicas=2))

    assert known.write(write) is True
    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"], body) == expected


def test_a_write_is_known_from_its_answer(known, api):
    api.answers.append(shown("2", replicas=2))

    known.write(TO_2)

    assert known.controllers()["foo"].replicas == 2


def test_a_deletion_that_is_done_at_once_is_known(known, api):
    api.answers.append(status(200))

    assert known.write(DELETE)
    assert known.controllers() == {}


def test_a_deletion_that_waits_for_its_finalizer_is_known(known, api):
    api.answers.append(shown("2", deletionTimestamp="now"))

    assert known.write(DELETE)
    assert known.controllers()["foo"].is_deleting


def test_an_answer_that_is_older_than_what_is_known_is_not_kept(known, api):
    api.answers += [shown("9", replicas=5), shown("10", replicas=6), shown("2", replicas=2)]
    for _time in range(3):
        known.look_up("foo")

    assert known.controllers()["foo"].replicas == 6


# Answers that are no success


CREATE = Create(new(name="bar"))


@pytest.mark.parametrize("write, refused", [
    (TO_2, status(422, "testing value failed")), (TO_2, status(409, "the object has been modified")), (TO_2, status(404)),
    (DELETE, status(409, "the uid is another")), (DELETE, status(404)), (CREATE, status(409, "already exists")),
], ids=["a test of a patch fails", "a patch conflicts", "what is patched is gone", "a precondition fails",
        "what is deleted is gone", "a name is taken"])
def test_a_write_whose_assumption_does_not_hold_is_false_and_its_object_looked_up(known, api, write, refused):
    api.answers += [refused, shown("7", name=write.name, replicas=7)]

    assert known.write(write) is False
    assert api.sent[1:] == [("GET", f"{BASE}/{write.name}")]
    assert known.controllers()[write.name].replicas == 7


def test_what_is_gone_when_it_is_looked_up_is_forgotten(known, api):
    api.answers += [status(404), status(404)]

    assert known.write(TO_2) is False
    assert known.controllers() == {}


ANNOTATE = patch(PRIMARY, *annotate(PRIMARY, {"a": "b"}))
RENAME = handover.rename(Request("foo"), PRIMARY, Controller.from_api(new(3)), 3).write
CAUSES = {"details": {"causes": [{"field": "spec.replicas"}]}}


@pytest.mark.parametrize("write, refused, what, why", [
    (TO_2, status(422, "spec.replicas: Invalid", **CAUSES), "the change of its size was refused (422)",
     "spec.replicas: Invalid"),
    (CREATE, status(422, "name: Invalid"), "its creation was refused (422)", "name: Invalid"),
    (CREATE, status(404, 'namespaces "default" not found'), "its creation was refused (404)",
     'namespaces "default" not found'),
    (TO_2, status(400, "bad request"), "the change of its size was refused (400)", "bad request"),
    (TO_2, answer(b"<html>" + b"x" * 999, 418), "the change of its size was refused (418)", "<html>" + "x" * 250),
    (TO_2, answer(b"", 405), "the change of its size was refused (405)", "status 405"),
    (TO_2, answer(["no", "Status"], 405), "the change of its size was refused (405)", '["no", "Status"]'),
    (CREATE, status(403, "exceeded quota: rcs"), "its creation was refused (403)", "exceeded quota: rcs"),
    (CREATE, status(403, 'admission webhook "x" denied the request'), "its creation was refused (403)",
     'admission webhook "x" denied the request'),
    (TO_2, status(422, 'admission webhook "x" denied the request'), "the change of its size was refused (422)",
     'admission webhook "x" denied the request'),
    (TO_2, status(403, "ValidatingAdmissionPolicy 'x' denied request: no"), "the change of its size was refused (403)",
     "ValidatingAdmissionPolicy 'x' denied request: no"),
    (DELETE, status(403, "no"), "its deletion was refused (403)", "no"),
    (RENAME, status(403, "no"), "the change of its template was refused (403)", "no"),
    (ANNOTATE, status(403, "no"), "the change of its annotations was refused (403)", "no"),
], ids=["a value that makes no sense", "a manifest that makes no sense", "no such namespace", "a bad request", "no Status",
        "an empty body", "JSON of another kind", "a quota", "an admission", "an admission that says 422", "a policy",
        "a deletion", "a handover", "marks"])
def test_a_write_that_makes_no_sense_is_an_error_in_the_server_s_words(known, api, write, refused, what, why):
    api.answers.append(refused)

    with pytest.raises(RolloutError) as error:
        known.write(write)

    assert (error.value.what, error.value.why) == (what, why)
    assert error.value.where == f"ReplicationController default/{write.name}"
    assert error.value.next_command == "see to what refuses it, then run the same task again"
    assert len(api.sent) == 1


def test_a_lack_of_permission_names_verb_and_resource(known, api):
    words = 'replicationcontrollers "foo" is forbidden: User "me" cannot patch resource "replicationcontrollers"'
    api.answers.append(status(403, words))

    with pytest.raises(RolloutError) as error:
        known.write(TO_2)

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
def test_a_read_is_tried_again_when_the_server_is_in_trouble(known, api, pauses, code):
    api.answers += [status(code), status(code), shown("2", replicas=2)]

    known.look_up("foo")

    assert known.controllers()["foo"].replicas == 2
    assert [0.05 <= pauses[0] <= 0.1, 0.15 <= pauses[1] <= 0.3] == [True, True] and len(pauses) == 2


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_a_write_is_tried_again_when_the_server_is_in_trouble(known, api, code):
    """It carries what it assumes: a second one of a write that has landed is refused."""
    api.answers += [status(code), shown("2", replicas=2)]

    assert known.write(TO_2) is True
    assert [method for method, _path in api.sent] == ["PATCH", "PATCH"]


def test_tries_are_bounded_and_the_last_answer_is_told(known, api, pauses):
    api.answers += [status(503, f"no {number}") for number in range(20)]

    with pytest.raises(RolloutError) as error:
        known.write(TO_2)

    assert (error.value.what, error.value.why) == (f"the API server refused PATCH {BASE}/foo (503)", "no 7")
    assert error.value.next_command == "run the same task again when the API server is well"
    assert len(api.sent) == len(gateway.BACKOFF) + 1 == 8
    assert all(limit / 2 <= pause <= limit for pause, limit in zip(pauses, gateway.BACKOFF, strict=True))


@pytest.mark.parametrize("header, expected", [("3", 3.0), ("5", 5.0), ("999", 30.0), ("0", 0.1), ("soon", 0.1)])
def test_the_server_s_own_wish_for_a_pause_is_obeyed_within_reason(known, api, pauses, header, expected):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), shown()]

    known.look_up("foo")

    (pause,) = pauses
    assert pause == expected if expected > 1 else expected / 2 <= pause <= expected


@pytest.mark.parametrize("header", ["1", "2", "4", "8"])
def test_the_server_s_own_wish_for_a_pause_is_never_cut_short(known, api, pauses, header):
    api.answers += [answer({"kind": "Status"}, 429, Retry_After=header), shown()]

    known.look_up("foo")

    assert pauses == [float(header)]


@pytest.mark.parametrize("host", ["ftp://one", "http://", "http://one:999999", "http://o ne"])
def test_an_address_that_is_none_is_an_error_at_once(host, pauses):
    cluster = KubernetesGateway(Connection({"host": host, "api_key": "k"}, {}), "default")

    with pytest.raises(RolloutError, match="is no address of an API server"):
        cluster.controllers()
    assert pauses == []


def test_an_expired_token_is_renewed_once(known, api, connection, monkeypatch):
    monkeypatch.setattr(connection, "_options", {**connection._options, "api_key": "renewed"})
    api.answers += [status(401), shown("2")]

    known.look_up("foo")

    assert [headers["Authorization"] for _method, _path, headers, _body in api.requests] == ["Bearer k", "Bearer renewed"]


def test_a_token_that_is_not_accepted_after_it_was_renewed_is_an_error(known, api):
    api.answers += [status(401, "Unauthorized"), status(401, "Unauthorized")]

    with pytest.raises(RolloutError) as error:
        known.write(TO_2)

    assert error.value.what == "the API server does not accept the credentials (401)"
    assert (error.value.where, error.value.why) == (api.url, "Unauthorized")
    assert len(api.sent) == 2


def test_a_request_whose_tries_take_long_is_given_up_sooner(known, api, pauses, monkeypatch):
    """An API server without etcd lets each of them wait."""
    monkeypatch.setattr(gateway, "PATIENCE", -1.0)
    api.answers += [cut, shown()]

    with pytest.raises(RolloutError) as error:
        known.look_up("foo")

    assert "cannot be reached" in error.value.what and len(api.sent) == 1


@pytest.mark.parametrize("code", [401, 403])
def test_a_refusal_just_after_an_outage_is_tried_again(known, api, pauses, code):
    """An API server that has just started answers before it knows Roles and ServiceAccounts."""
    api.answers += [cut, *(status(code) for _time in range(4)), shown("2", replicas=2)]

    known.look_up("foo")

    assert known.controllers()["foo"].replicas == 2 and 4 <= len(pauses) <= 5


def test_a_refusal_that_lasts_after_an_outage_is_an_error(known, api, pauses):
    api.answers += [cut, *(status(403, "may not") for _time in range(20))]

    with pytest.raises(RolloutError) as error:
        known.look_up("foo")

    assert error.value.what == "permission denied (403)" and len(pauses) == len(gateway.BACKOFF)


def test_a_refusal_long_after_an_outage_is_an_error_at_once(known, api, pauses):
    known.note_outage()
    known._unreachable_at -= gateway.STARTING
    api.answers += [status(403, "may not")]

    with pytest.raises(RolloutError):
        known.look_up("foo")

    assert pauses == []


@pytest.mark.parametrize("bad", [cut, half, answer(b"{"), answer(b"")], ids=["reset", "cut short", "no JSON", "empty"])
def test_a_read_whose_answer_is_lost_is_tried_again(known, api, bad):
    api.answers += [bad, shown("2", replicas=2)]

    known.look_up("foo")

    assert known.controllers()["foo"].replicas == 2


@pytest.mark.parametrize("other", [{"items": []}, [], "text", 7], ids=["no kind", "a list", "a text", "a number"])
def test_what_is_no_api_server_is_said_to_be_none(known, api, other):
    api.answers.append(answer(other))

    with pytest.raises(RolloutError, match=f"^what answers at {api.url} is no Kubernetes API server$"):
        known.look_up("foo")


@pytest.mark.parametrize("was_known, tries", [(False, 4), (True, 8)], ids=["never heard of", "known to be there"])
def test_a_server_that_is_not_there_is_waited_for_longer_if_it_has_been_there(cluster, api, pauses, was_known, tries):
    if was_known:
        api.answers.append(listed())
        cluster.controllers()
    api.shutdown()
    api.server_close()

    with pytest.raises(RolloutError) as error:
        cluster.look_up("foo")

    assert error.value.what == f"the API server at {api.url} cannot be reached"
    assert "Connection refused" in error.value.why and "0x" not in error.value.why
    assert error.value.next_command == "run the same task again when it is back"
    assert len(pauses) == tries - 1


def test_a_server_that_comes_back_is_gone_on_with(known, api, monkeypatch):
    """Nothing has been sent, so that even a write is tried again."""
    port = api.server_port
    api.shutdown()
    api.server_close()
    later = []

    def come_back(seconds):
        if not later:
            later.append(http.server.HTTPServer(("127.0.0.1", port), Handler))
            later[0].answers, later[0].watches, later[0].requests = [shown("2", replicas=2)], [], []
            threading.Thread(target=later[0].handle_request, daemon=True).start()

    monkeypatch.setattr(gateway.time, "sleep", come_back)

    assert known.write(TO_2) is True
    assert len(later[0].requests) == 1
    later[0].server_close()


# Writes whose answer is lost


PRIMARY_MARKED = Controller.from_api(item(annotations={"note": "x"}))
MARK = patch(PRIMARY, *annotate(PRIMARY, {"a/b": "c"}))
UNMARK = patch(PRIMARY_MARKED, *annotate(PRIMARY_MARKED, {"note": None}))
DELETE_EMPTY = Delete("foo", {"uid": "uid of foo", "resourceVersion": "1"})
LANDED = {
    "a size, as written": (TO_2, shown("2", replicas=2), True),
    "a size, as before": (TO_2, shown("1", replicas=3), False),
    "a size, as another one wrote": (TO_2, shown("2", replicas=9), False),
    "a size, of what is gone": (TO_2, status(404), False),
    "an annotation, as written": (MARK, shown("2", annotations={"a/b": "c", "more": "d"}), True),
    "an annotation, as before": (MARK, shown("1"), False),
    "an annotation removed, as written": (UNMARK, shown("2", annotations={}), True),
    "an annotation removed, as before": (UNMARK, shown("2", annotations={"note": "x"}), False),
    "a deletion, as written": (DELETE_EMPTY, status(404), True),
    "a deletion, under way": (DELETE, shown("2", deletionTimestamp="now"), True),
    "a deletion, of what was made anew since": (DELETE, shown("2", uid="another"), True),
    "a deletion, as before": (DELETE, shown("1"), False),
    "a creation, as written": (CREATE, answer({**new(name="bar"), "kind": "ReplicationController"}), True),
    "a creation, as before": (CREATE, status(404), False),
    "a creation, of what another one made": (CREATE, shown("2", name="bar"), False),
}


@pytest.mark.parametrize("lost", [cut, half, answer(b"{"), status(504)], ids=["reset", "cut short", "no JSON", "504"])
@pytest.mark.parametrize("write, found, landed", LANDED.values(), ids=LANDED)
def test_a_write_whose_answer_is_lost_is_looked_up_and_not_repeated(known, api, write, found, landed, lost):
    api.answers += [lost, found]

    assert known.write(write) is landed
    assert [method for method, _path in api.sent][1:] == ["GET"]
    assert api.sent[1][1] == f"{BASE}/{write.name}"


def test_a_creation_of_what_was_there_before_has_not_landed(known, api):
    """Another client has made it: it looks the same, and this one has done nothing."""
    api.answers += [answer({**new(name="bar"), "kind": "ReplicationController"})]
    known.look_up("bar")
    api.answers += [cut, answer({**new(name="bar"), "kind": "ReplicationController"})]

    assert known.write(CREATE) is False


# The watch


def event(kind, version, **changes):
    return {"type": kind, "object": item(version, **changes)}


def stream(*events, tail=b""):
    """A watch that brings these events and then ends."""
    def send(handler, query):
        handler.server.watched = [*getattr(handler.server, "watched", ()), query]
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"".join(json.dumps(each).encode() + b"\n" for each in events) + tail)
        handler.wfile.flush()
    return send


def wait_until(cluster, condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        cluster.wait(0.05)


def test_events_are_followed_from_the_list_s_version(known, api):
    api.watches.append(stream(event("ADDED", "11", name="bar"), event("MODIFIED", "12", replicas=5),
                              {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}},
                              event("DELETED", "21", name="bar")))
    api.watches.append(stream(event("MODIFIED", "22", replicas=6)))

    wait_until(known, lambda: known.controllers()["foo"].replicas == 6)

    assert known.controllers().keys() == {"foo"}
    assert [query["resourceVersion"] for query in api.watched] == ["10", "21"]
    assert api.watched[0]["allowWatchBookmarks"] == "1"


def test_who_is_told_of_news_and_that_an_answer_told_it_before(known, api):
    api.answers.append(shown("12", replicas=2))
    known.write(TO_2)
    api.watches.append(stream(event("MODIFIED", "12", replicas=2), event("ADDED", "13", name="bar")))

    heard = set().union(*(known.wait(0.5) for _time in range(3)))

    assert heard == {"bar", ""}  # and of its partner, which it has not


def test_a_bookmark_moves_the_version_on(known, api):
    api.watches += [stream({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}),
                    stream(event("MODIFIED", "22", replicas=6))]

    wait_until(known, lambda: known.controllers()["foo"].replicas == 6)

    assert [query["resourceVersion"] for query in api.watched] == ["10", "20"]


def test_news_of_a_deletion_of_an_earlier_one_of_that_name_change_nothing(known, api):
    api.watches.append(stream(event("DELETED", "11", uid="another"), event("MODIFIED", "12", replicas=5)))

    wait_until(known, lambda: known.controllers()["foo"].replicas == 5)


@pytest.mark.parametrize("bad", [
    stream({"type": "ERROR", "object": {"kind": "Status", "code": 410}}), status(410), status(500), status(403)],
    ids=["410 in the stream", "410", "500", "403"])
def test_a_watch_that_is_refused_leads_to_a_new_list_and_a_watch_from_there(known, api, bad):
    api.watches += [bad, stream(event("MODIFIED", "31", replicas=6))]
    api.answers.append(listed(item("30", replicas=5), version="30"))

    wait_until(known, lambda: known.controllers()["foo"].replicas == 6)

    assert api.sent == [("GET", f"{BASE}?limit=500")]
    assert api.watched[-1]["resourceVersion"] == "30"


@pytest.mark.parametrize("bad", [stream(tail=b'{"type": "MODI'), stream(tail=b"no JSON\n"), stream(tail=b'{"no": "event"}\n'), cut],
                         ids=["a cut line", "no JSON", "no event", "reset"])
def test_a_watch_that_breaks_is_opened_again_where_it_was(known, api, bad):
    api.watches += [bad, stream(event("MODIFIED", "11", replicas=6))]

    wait_until(known, lambda: known.controllers()["foo"].replicas == 6)

    assert api.watched[-1]["resourceVersion"] == "10"
    assert api.sent == []


def test_a_lack_of_permission_that_comes_up_while_watching_is_an_error(known, api):
    api.watches.append(status(403))
    api.answers.append(status(403, "cannot list"))

    with pytest.raises(RolloutError, match="permission denied"):
        wait_until(known, lambda: False)


def test_waiting_ends_after_its_time_when_nothing_happens(known, api):
    began = time.monotonic()

    known.wait(0.05)

    assert 0.05 <= time.monotonic() - began < 1


def test_a_watch_that_is_silent_for_long_is_checked_by_a_list(known, api, monkeypatch):
    """Something in between may swallow what comes."""
    monkeypatch.setattr(gateway, "RELIST_SECONDS", 0.05)
    api.answers.append(listed(item("30", replicas=5), version="30"))

    wait_until(known, lambda: known.controllers()["foo"].replicas == 5)

    assert api.sent == [("GET", f"{BASE}?limit=500")]


def test_a_watch_that_has_not_told_what_the_list_shows_is_opened_anew(known, api, monkeypatch):
    """Half-open: else every change would be heard of by the next list only, until the connection is given up."""
    monkeypatch.setattr(gateway, "RELIST_SECONDS", 0.05)
    api.answers.append(listed(item("30", replicas=5), version="30"))
    api.watches += [lambda handler, query: handler.server.closing.wait(10), stream(event("MODIFIED", "31", replicas=6))]

    wait_until(known, lambda: known.controllers()["foo"].replicas == 6)

    assert api.watched[0]["resourceVersion"] == "30"


# Looking around


def test_a_partial_template_is_merged_by_a_dry_run(known, api):
    api.answers.append(shown(replicas=3))

    wanted = known.stored_template(Request("foo", template={"spec": {"hostNetwork": True}}), PRIMARY)

    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"]) == (
        "PATCH", f"{BASE}/foo?dryRun=All&fieldValidation=Strict", "application/strategic-merge-patch+json")
    assert body == {"spec": {"template": {"spec": {"hostNetwork": True}}}}
    assert wanted == template()


def test_a_definition_is_completed_by_a_dry_run_under_a_name_that_is_free(known, api):
    definition = {"metadata": {"name": "bar", "labels": {"a": "b"}, "annotations": {"c": "d"}},
                  "spec": {"replicas": 9, "template": template()}}
    api.answers.append(shown())

    wanted = known.stored_template(Request("foo", definition=definition), PRIMARY)

    ((method, path, _headers, body),) = api.requests
    assert (method, path) == ("POST", f"{BASE}?dryRun=All&fieldValidation=Strict")
    assert body["metadata"] == {"generateName": "foo-", "labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert body["spec"] == {"replicas": 0, "template": template()}
    assert wanted == template()


def test_a_template_that_the_server_refuses_is_an_error_in_its_words(known, api):
    api.answers.append(status(422, "spec.containers[0].image: Required value"))

    with pytest.raises(RolloutError) as error:
        known.stored_template(Request("foo", template={"spec": {}}), PRIMARY)

    assert (error.value.what, error.value.why) == (
        "the wanted template is refused", "spec.containers[0].image: Required value")


def test_a_dry_run_whose_answer_is_lost_is_tried_again(known, api):
    api.answers += [cut, shown()]

    assert known.stored_template(Request("foo", template={"spec": {}}), PRIMARY) == template()


def pod(name, owner=None, **metadata):
    owners = [{"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "ownerReferences": owners, **metadata}}


def pods(*items, **metadata):
    return answer({"kind": "PodList", "metadata": {"resourceVersion": "1", **metadata}, "items": list(items)})


TROUBLED = "/api/v1/namespaces/default/pods?labelSelector=app%3Dfoo&limit=500"


def of_primary(name, ready=False, restarts=0):
    status = {"conditions": [{"type": "Ready", "status": str(ready)}], "containerStatuses": [{"restartCount": restarts}]}
    return {**pod(name, "uid of foo", uid=f"uid of {name}", resourceVersion="11"), "status": status}


def eventually(condition):
    deadline = time.monotonic() + 5
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


def test_a_watch_of_pods_that_has_ended_is_listed_anew(known, api):
    api.answers += [pods(of_primary("a")), pods(of_primary("b"))]
    api.watches.append(stream({"type": "ERROR", "object": {"code": 410}}))

    assert names(known.troubled_pods(PRIMARY)) == ["a"]
    eventually(lambda: names(known.troubled_pods(PRIMARY)) == ["b"])


def test_what_may_not_be_seen_is_none(known, api):
    api.answers += [status(403)] * 4

    assert known.troubled_pods(PRIMARY) == known.troubled_pods(PRIMARY) == known.warnings() == []
    assert known.log("a", "web", previous=True) == []


def test_the_end_of_a_log(known, api):
    api.answers.append(answer(b"one\ntwo \xff\n"))

    assert known.log("a", "web", previous=True) == ["one", "two \ufffd"]
    assert api.sent[0][1] == "/api/v1/namespaces/default/pods/a/log?container=web&previous=true&tailLines=5&limitBytes=4096"


# The lease, and what is allowed

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def a_lease(version=None, holder="me"):
    metadata = {"name": "x", "annotations": {"holder": holder}, **({"uid": "u", "resourceVersion": version} if version else {})}
    return {"kind": "Lease", "metadata": metadata, "spec": {}}


def test_a_lease_is_created_replaced_and_deleted_as_the_version_that_was_seen(known, api):
    api.answers += [status(404), answer(a_lease("1")), answer(a_lease("2")), answer(a_lease("2"))]

    assert known.lease("x") is None
    assert known.put_lease(known.put_lease(a_lease())) == a_lease("2")
    known.drop_lease(a_lease("2"))

    assert api.sent == [("GET", f"{LEASES}/x"), ("POST", LEASES), ("PUT", f"{LEASES}/x"), ("DELETE", f"{LEASES}/x")]
    assert api.requests[3][3]["preconditions"] == {"uid": "u", "resourceVersion": "2"}


@pytest.mark.parametrize("version, code", [(None, 409), ("1", 409), ("1", 404)])
def test_a_lease_that_somebody_else_was_faster_with(known, api, version, code):
    api.answers.append(status(code))

    assert known.put_lease(a_lease(version)) is None


@pytest.mark.parametrize("holder, lost", [("me", False), ("another", True)])
def test_a_lease_whose_answer_was_lost_is_looked_up(known, api, holder, lost):
    api.answers += [cut, answer(a_lease("1", holder))]

    assert (known.put_lease(a_lease()) is None) is lost


def test_leases_that_are_not_allowed_name_the_way_without(known, api):
    api.answers += [status(403), status(403)]
    for call in (lambda: known.lease("x"), lambda: known.put_lease(a_lease())):
        with pytest.raises(RolloutError) as error:
            call()
        assert "lock=false" in error.value.next_command


@pytest.mark.parametrize("trouble", [status(409), status(500), cut])
def test_a_lease_that_cannot_be_deleted_is_no_error(known, api, trouble):
    api.answers.append(trouble)

    known.drop_lease(a_lease("1"))

    assert len(api.sent) == 1


@pytest.mark.parametrize("given, rules", [
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": False}}), [{"verbs": ["*"]}]),
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": True}}), None),
    (status(403), None),
])
def test_what_is_allowed_as_far_as_the_server_tells(known, api, given, rules):
    api.answers.append(given)

    assert known.rules() == rules
    assert api.requests[0][3]["spec"] == {"namespace": "default"}


SCALER = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"


def a_scaler(**spec):
    return {"kind": "HorizontalPodAutoscaler", "metadata": {"name": "hpa", "uid": "u", "annotations": {}},
            "spec": {"minReplicas": 2, **spec}}


FREEZE = autoscaler.freeze(a_scaler()).write
FROZEN = patched(a_scaler(), FREEZE)


@pytest.mark.parametrize("answers, landed", [
    ([answer(a_scaler())], True),
    ([status(422)], False),
    ([status(404)], False),
    ([cut, answer(FROZEN)], True),
    ([cut, answer(a_scaler())], False),
], ids=["written", "changed meanwhile", "gone", "answer lost, and it landed", "answer lost, and it did not"])
def test_an_autoscaler_is_changed_as_it_was_seen(known, api, answers, landed):
    api.answers += answers

    assert known.write(FREEZE) is landed
    assert api.sent[0] == ("PATCH", f"{SCALER}/hpa") and "hpa" not in known.controllers()


def test_an_autoscaler_that_may_not_be_changed_names_the_way_without(known, api):
    api.answers.append(status(403))

    with pytest.raises(RolloutError) as error:
        known.write(FREEZE)

    assert "autoscaler=ignore" in error.value.next_command


@pytest.mark.parametrize("resource, path", [
    ("nodes", "/api/v1/nodes"), ("services", "/api/v1/namespaces/default/services"), ("horizontalpodautoscalers", SCALER)])
def test_what_is_around_as_far_as_it_may_be_seen(known, api, resource, path):
    api.answers += [answer({"kind": "List", "items": [{"a": 1}]}), answer({"kind": "List", "items": None}), status(403)]

    assert [known.objects(resource) for _time in range(3)] == [[{"a": 1}], [], None]
    assert api.sent[0] == ("GET", f"{path}?limit=500")


@pytest.mark.parametrize("uids, selector", [
    (["u1", "u2"], "baton.kubernetes%2Fhistory-of+in+%28u1%2Cu2%29"), ([], "baton.kubernetes%2Fhistory-of"),
], ids=["of two", "of all"])
def test_the_history_as_far_as_it_may_be_seen(known, api, uids, selector):
    revisions = {"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"}, "items": [{"a": 1}]}
    api.answers += [answer(revisions), status(403)]

    assert [known.revisions(uids) for _time in range(2)] == [[{"a": 1}], None]
    assert api.sent[0] == ("GET", f"/apis/apps/v1/namespaces/default/controllerrevisions?labelSelector={selector}&limit=500")


def test_a_server_that_answers_no_more_is_not_asked_for_every_kind(known, api, pauses):
    """Each would take as long again as all the tries of the first."""
    api.answers += [status(503, "no") for _number in range(20)]

    with pytest.raises(RolloutError) as error:
        known.objects("services")

    assert error.value.next_command == "run the same task again when the API server is well"


@pytest.mark.parametrize("trouble, recorded", [(answer({"kind": "Event"}), True), (status(403), False), (cut, False)])
def test_an_event_is_never_tried_again(known, api, trouble, recorded):
    api.answers.append(trouble)

    assert known.record({"reason": "x"}) is recorded
    assert api.sent == [("POST", "/api/v1/namespaces/default/events")]


def test_check_mode_freezes_a_copy(known, api):
    api.answers += [answer({"kind": "List", "items": [a_scaler()]})] * 3
    simulated = SimulatedGateway(known, lambda seconds: None)

    assert simulated.objects("horizontalpodautoscalers") == [a_scaler()]
    assert simulated.write(FREEZE)
    assert simulated.objects("horizontalpodautoscalers") == [FROZEN]
    assert {method for method, _path in api.sent} == {"GET"}


def test_the_servers_clock_is_told_by_its_answers(known, api):
    api.answers.append(answer(a_lease("1")))
    known.lease("x")

    assert abs(known.server_time() - time.time()) < 2


def test_live_pods_are_those_that_have_not_ended_and_stay_with_their_owners(known, api):
    api.answers += [pods(pod("a", uid="1"), pod("b", "uid of foo", uid="2", labels={"app": "foo"}),
                         pod("c", uid="3", deletionTimestamp="now"), **{"continue": "x"}),
                    pods({"metadata": {"name": "d", "uid": "4"}})]

    assert known.live_pods({"app": "foo"}) == (
        Pod("a", "1", {}, ""), Pod("b", "2", {"app": "foo"}, "uid of foo"), Pod("d", "4", {}, ""))
    _method, path, headers, _body = api.requests[0]
    assert "labelSelector=app%3Dfoo" in path and "status.phase%21%3DFailed" in path and "status.phase%21%3DSucceeded" in path
    assert "as=PartialObjectMetadataList" in headers["Accept"]


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

TAKER = {"apiVersion": "v1", "kind": "ReplicationController", "name": "bar", "uid": "uid of bar", "controller": True}
POD = answer({"kind": "PartialObjectMetadata", "metadata": {}})


def to_bar(*names):
    return HandOver(tuple(Pod(name, f"uid of {name}", {}, "uid of foo") for name in names), "uid of foo", TAKER, {})


def going_on():
    return True


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

    assert error.value.what.startswith("the pod b may not get another controller (4") and reason in error.value.why
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


def test_many_pods_are_handed_over_on_several_connections(known, api):
    names = [f"pod-{number}" for number in range(3 * gateway.PODS_PER_CONNECTION)]
    clients = set()

    def slow(handler, query):
        clients.add(handler.client_address)
        time.sleep(0.01)
        POD(handler, query)

    api.answers += [slow] * len(names)

    assert known.hand_over(to_bar(*names), going_on) == len(names)
    assert sorted(patched_pods(api)) == sorted(names)
    assert len(clients) >= 3


def test_a_handover_ends_early_where_it_may_not_go_on(known, api, monkeypatch):
    monkeypatch.setattr(gateway, "TURN", 0.02)
    asked = []

    def slow(handler, query):
        api.closing.wait(0.05)
        POD(handler, query)

    api.answers += [slow] * 20

    landed = known.hand_over(to_bar(*map(str, range(20))), lambda: asked.append(1) or len(asked) < 3)

    assert 0 < landed == len(patched_pods(api)) < 10 and len(asked) == 3


def test_a_lease_that_is_lost_ends_a_handover_with_its_error(known, api, monkeypatch):
    monkeypatch.setattr(gateway, "TURN", 0.02)

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

    assert error.value.what.startswith("the pod a may not get another controller (4") and reason in error.value.why
    assert error.value.next_command.endswith("nothing was changed")


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


NO = status(404)


@pytest.mark.parametrize("answers, expected", [
    ([shown(), NO, NO, NO], "there is a Deployment foo: kind=Deployment"),
    ([shown(), shown(), NO, NO], "there is a Deployment foo: kind=Deployment and a ReplicaSet foo: kind=ReplicaSet"),
    ([NO, NO, NO, shown()], "there is a DaemonSet foo"),
    ([NO, NO, NO, NO, NO], "there is no namespace default"),
    ([NO, NO, NO, NO, shown()], ""),
    ([status(403)] * 5, ""),
], ids=["a Deployment", "its ReplicaSet too", "a DaemonSet", "no namespace", "nothing of that name", "nothing may be seen"])
def test_why_there_is_no_such_controller(known, api, answers, expected):
    api.answers += answers

    assert known.why_absent("foo") == expected


def test_requests_are_counted_by_method(known, api):
    api.answers += [shown(), shown("2")]

    known.look_up("foo")
    known.write(TO_2)

    assert known.requests == {"GET": 2, "PATCH": 1}


# Check mode


def test_check_mode_changes_a_cluster_in_memory(known, api):
    simulated = SimulatedGateway(known, lambda seconds: None)

    assert simulated.write(TO_2)
    simulated.wait(1)
    assert simulated.controllers()["foo"].is_settled and simulated.controllers()["foo"].replicas == 2
    assert known.controllers()["foo"].replicas == 3
    assert api.sent == []


def test_check_mode_lets_time_pass_only_when_nothing_can_happen_any_more(known):
    passed = []
    simulated = SimulatedGateway(known, passed.append)
    simulated.write(TO_2)

    simulated.wait(1)
    assert passed == []
    simulated.wait(2)
    assert passed == [2]


def test_check_mode_still_asks_the_server_for_what_it_alone_knows(known, api):
    api.answers += [shown(), *[status(404)] * 5]
    simulated = SimulatedGateway(known, lambda seconds: None)

    assert simulated.stored_template(Request("foo", template={"spec": {}}), PRIMARY) == template()
    assert simulated.why_absent("foo") == "there is no namespace default"
    assert simulated.troubled_pods(PRIMARY) == [] and len(simulated.live_pods({"app": "foo"})) == 3
    assert simulated.look_up("foo") is None and len(api.sent) == 6


def test_check_mode_hands_over_pods_in_memory(known, api):
    simulated = SimulatedGateway(known, lambda seconds: None)

    assert simulated.hand_over(to_bar("0", "1"), going_on) == 2
    assert sorted(pod.owner for pod in simulated.live_pods({"app": "foo"})) == ["uid of bar", "uid of bar", "uid of foo"]
    assert simulated.hand_over(dataclasses.replace(to_bar("0"), giver="uid of nobody"), going_on) == 0
    assert simulated.refuse_hand_over(PRIMARY) is None and api.sent == []

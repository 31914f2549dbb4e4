# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send queries to Prometheus, with responses that a real server does not send on demand."""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
import urllib.parse

import handshakes
import pytest
import urllib3
from apiserver import answer, reset, truncated_answer

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import prometheus
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import Reading
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.prometheus import (
    ARGUMENT_SPEC,
    Prometheus,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

QUERY = 'sum(up{pod=~"(?:a|b)"}) + 1%'


class Server(http.server.ThreadingHTTPServer):
    """Server that returns prepared responses in order, repeats the last, and records requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests = [], []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Ignore cut connections."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self.server.requests.append((self.path, self.headers,
                                     urllib.parse.parse_qs(body, strict_parsing=True)))
        answers = self.server.answers
        (answers.pop(0) if len(answers) > 1 else answers[0])(self, {})

    def log_message(self, *_unused):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(prometheus, "BACKOFF", (0, 0))
    fake_server = Server()
    thread = threading.Thread(target=fake_server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake_server
    fake_server.shutdown()
    thread.join()
    fake_server.server_close()


def client(url, **options):
    params = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    return Prometheus({**params, "prometheus_url": url,
                       **{f"prometheus_{option}": value for option, value in options.items()}})


def vector(*values):
    return answer({"status": "success", "data": {"resultType": "vector", "result": [
        {"metric": {"pod": f"p{number}"}, "value": [1, value]}
        for number, value in enumerate(values)]}})


def failure(code, error_type, error):
    return answer({"status": "error", "errorType": error_type, "error": error}, code)


def test_request_of_a_query(server):
    server.answers.append(vector("0.5"))

    assert client(f"{server.url}/behind/a/path/", token=" t0ken\n").query(QUERY) == Reading(0.5)

    ((path, headers, form),) = server.requests
    assert (path == "/behind/a/path/api/v1/query"
            and form == {"query": [QUERY], "timeout": ["10000ms"]})
    assert (headers["Authorization"] == "Bearer t0ken"
            and headers["User-Agent"].startswith("baton.kubernetes/"))


@pytest.mark.parametrize("url, options, credentials", [
    ("http://me:p%40ss@", {}, "me:p@ss"),
    ("http://", {"username": "me", "password": "päss"}, "me:päss"),
    ("http://a:b@", {"username": "me", "password": "x"}, "me:x"), ("http://", {}, None)])
def test_basic_authentication(server, url, options, credentials):
    server.answers.append(vector("1"))

    client(url + server.url.partition("://")[2], **options).query(QUERY)

    header = server.requests[0][1]["Authorization"]
    assert header == (credentials
                      and f"Basic {base64.b64encode(credentials.encode()).decode()}")


@pytest.mark.parametrize("seconds, timeout",
                         [(2.5, "2500ms"), (1 / 3, "334ms"), (0.0001, "1ms"), (3599, "3599000ms")])
def test_timeout_in_the_syntax_of_prometheus(server, monkeypatch, seconds, timeout):
    monkeypatch.setattr(prometheus, "read_body", lambda response, *_limits: response.data)
    monkeypatch.setattr(urllib3, "Timeout", lambda **_seconds: None)
    server.answers.append(vector("1"))

    client(server.url, timeout=seconds).query(QUERY)

    assert server.requests[0][2]["timeout"] == [timeout]


@pytest.mark.parametrize("content, reading", [
    ({"resultType": "vector", "result": []}, Reading(None, "no data")),
    ({"resultType": "vector", "result": [{"metric": {}, "value": [1, "NaN"]}]},
     Reading(None, "NaN")),
    ({"resultType": "vector", "result": [{"metric": {}, "value": [1, "-Inf"]}]},
     Reading(-float("inf"))),
    ({"resultType": "scalar", "result": [1, "1e3"]}, Reading(1000.0)),
])
def test_values_of_responses(server, content, reading):
    server.answers.append(answer({"status": "success", "data": content}))

    assert client(server.url).query(QUERY) == reading


def test_warnings_are_part_of_the_reading(server):
    """Thanos warns of a store that does not answer."""
    server.answers.append(answer({"status": "success",
                                  "data": {"resultType": "scalar", "result": [1, "5"]},
                                  "warnings": ["no store\n", 5, "x", "y"]}))

    reading = client(server.url).query(QUERY)

    assert (reading.value == 5
            and reading.warnings
            == ("Prometheus warns: no store", "Prometheus warns: 5", "Prometheus warns: x"))


HTML = answer(b"<html><title>Log in</title></html>")
HISTOGRAM = {"metric": {}, "histogram": [1, {}]}
NOT_PROMETHEUS = "{url} does not respond like Prometheus"
#: (response, `what` and `why` of the error). None stands for any `why`.
PERMANENT_FAILURES = {
    "login page": (HTML, NOT_PROMETHEUS, "status 200: <html><title>Log in</title></html>"),
    "redirect": (answer(b"", 302, Location="http://127.0.0.1:1/"), NOT_PROMETHEUS,
                 "status 302: nothing"),
    "unknown path": (answer(b"404 page not found\n", 404), NOT_PROMETHEUS,
                     "status 404: 404 page not found"),
    "list": (answer([1]), NOT_PROMETHEUS, "status 200: [1]"),
    "empty body": (answer(b""), NOT_PROMETHEUS, "status 200: nothing"),
    "deep nesting": (answer(b"[" * 100_000), NOT_PROMETHEUS, None),
    "no result": (answer({"status": "success"}),
                  "the query returns a result of type unknown, not a number", ""),
    "no value": (answer({"status": "success",
                         "data": {"resultType": "vector", "result": [{"metric": {}}]}}),
                 NOT_PROMETHEUS, None),
    "histogram": (answer({"status": "success",
                          "data": {"resultType": "vector", "result": [HISTOGRAM]}}), NOT_PROMETHEUS,
                  None),
    "not a number": (vector("many"), NOT_PROMETHEUS, None),
    "several series": (vector("1", "2", "3", "4"),
                       "the query returns 4 numbers, instead of one",
                       "the first numbers have the labels pod=p0; pod=p1; pod=p2"),
    "range": (answer({"status": "success", "data": {"resultType": "matrix", "result": []}}),
              "the query returns a result of type matrix, not a number", ""),
    "invalid query": (failure(400, "bad_data", "parse error: \x1b[31m"),
                      "Prometheus rejects the query",
                      r"bad_data: parse error: \x1b[31m"),
    "too many samples": (failure(422, "execution", "too many samples"),
                         "Prometheus rejects the query",
                         "execution: too many samples"),
    "401": (answer(b"Unauthorized", 401), "Prometheus does not accept the credentials (401)",
            "Unauthorized"),
    "403": (answer({"message": "no"}, 403), "Prometheus does not accept the credentials (403)",
            '{{"message": "no"}}'),
    "too many bytes": (answer(b" " * (prometheus.MAX_RESPONSE_BYTES + 1)),
                       "the answer of Prometheus has more than 1048576 bytes", ""),
}


@pytest.mark.parametrize("response, what, why", PERMANENT_FAILURES.values(), ids=PERMANENT_FAILURES)
def test_permanent_failure_is_not_retried(server, response, what, why):
    server.answers.append(response)

    with pytest.raises(RolloutError) as error:
        client(server.url).query(QUERY)

    assert len(server.requests) == 1
    assert error.value.what == what.format(url=server.url)
    assert why is None or error.value.why == why.format()
    assert (error.value.message.isprintable()
            or all(line.isprintable() for line in error.value.message.splitlines()))


TEMPORARY_FAILURES = {
    "server starting": (answer(b"Service Unavailable", 503),
                        "answers with status 503: Service Unavailable"),
    "server overloaded": (failure(503, "timeout", "query timed out"),
                          "answers with status 503: timeout: query timed out"),
    "bad gateway": (answer(b"<html>\n502</html>", 502),
                    "answers with status 502: <html> 502</html>"),
    "too many requests": (answer(b"", 429), "answers with status 429: nothing"),
    "connection reset": (reset, "cannot be reached: "),
    "cut response": (truncated_answer, "cannot be reached: "),
}


@pytest.mark.parametrize("response, message", TEMPORARY_FAILURES.values(), ids=TEMPORARY_FAILURES)
def test_temporary_failure_is_retried(server, response, message):
    server.answers += [response, response, vector("7")]
    assert client(server.url).query(QUERY) == Reading(7.0)

    server.answers[:] = [response]
    server.requests.clear()
    reading = client(server.url).query(QUERY)

    assert (reading.value is None and not reading.is_answer and message in reading.why
            and len(server.requests) == 3)


@pytest.mark.parametrize("response", handshakes.TEMPORARY.values(), ids=handshakes.TEMPORARY)
def test_handshake_without_a_refusal_is_retried(monkeypatch, response):
    monkeypatch.setattr(prometheus, "BACKOFF", (0, 0))

    with handshakes.server(response) as server:
        reading = client(server.url).query(QUERY)

    assert not reading.is_answer and server.connection_count == 3
    assert reading.why.startswith(f"Prometheus at {server.url} cannot be reached: ")


@pytest.mark.parametrize("response", handshakes.PERMANENT.values(), ids=handshakes.PERMANENT)
def test_refused_handshake_is_not_retried(response):
    with handshakes.server(response) as server, pytest.raises(RolloutError) as error:
        client(server.url).query(QUERY)

    assert error.value.what == f"the certificate of Prometheus at {server.url} is not accepted"
    assert server.connection_count == 1


@pytest.mark.parametrize("option", ["ca_cert", "client_cert"])
def test_invalid_certificate_file_is_not_retried(option, tmp_path):
    path = tmp_path / "invalid.pem"
    path.write_text("no certificate", "utf-8")

    with (handshakes.server(b"") as server,
          pytest.raises(RolloutError, match=r"certificate of Prometheus at .* is not accepted")):
        client(server.url, **{option: str(path)}).query(QUERY)


@pytest.mark.parametrize("option", ["client_cert", "client_key"])
def test_encrypted_key_is_refused_before_a_prompt(option, tmp_path):
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", "utf-8")

    with pytest.raises(RolloutError, match=f"^the client key in {path} is encrypted"):
        client("https://x", **{option: str(path)})


def test_signal_ends_the_retries(server):
    server.answers.append(answer(b"", 503))

    assert (not client(server.url).query(QUERY, reason_to_stop=lambda: "SIGTERM").is_answer
            and len(server.requests) == 1)


def test_unreachable_server_is_retried(monkeypatch):
    pauses = []
    monkeypatch.setattr(prometheus.time, "sleep", pauses.append)

    reading = client("http://127.0.0.1:1").query(QUERY)

    # the pauses in seconds; 0 after the last attempt
    assert not reading.is_answer and pauses == [0.2, 1.0, 0]
    assert (reading.why.startswith("Prometheus at http://127.0.0.1:1 cannot be reached: ")
            and "refused" in reading.why)


def test_endless_response_ends_at_the_timeout(server):
    def send_slowly(handler, _query):
        handler.send_response(200)
        handler.end_headers()
        for _byte in range(400):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    server.answers += [send_slowly]
    start = time.monotonic()

    assert "is not complete after 1 s" in client(server.url, timeout=1).query(QUERY).why
    assert time.monotonic() - start < 10


#: Passwords that must be escaped in a URL. Some errors of urllib would quote parts of them.
UNESCAPED_PASSWORDS = ["s3cret/b", "s3cret#b", "s3cret?b", "s3cret:/b", "s3cret://b", "s3cret[b",
                       "s3cret]b", "1/s3cret", "s3cret@/b", "s3cret/b@c", "s3cret\u2100"]


@pytest.mark.parametrize("url, options, message", [
    ("ftp://x", {}, "prometheus_url 'ftp://x' is not a valid address"),
    ("x:9090", {}, "is not a valid address"),
    ("http://x:port", {}, "is not a valid address"), ("http://", {}, "is not a valid address"),
    ("", {}, "is not a valid address"),
    ("http://me:s3cret@x?a=b", {},
     "prometheus_url 'http://x?a=b' is not a valid address"),
    ("http://[x", {}, "is not a valid address"),
    *((f"http://me:{password}@x:9090", {},
       "prometheus_url 'http://x:9090' is not a valid address")
      for password in UNESCAPED_PASSWORDS),
    ("me:s3cret://b@x:9090", {},
     "prometheus_url 'x:9090' is not a valid address"),
    ("http://x", {"username": "me"}, "must be used together"),
    ("http://x", {"password": "s3cret"}, "must be used together"),
    ("http://me:s3cret@x", {"token": "s3cret"}, "prometheus_token cannot be combined"),
    ("http://x", {"token": "s3cret\nX-Other: 1"}, "prometheus_token is not valid"),
    ("http://x", {"ca_cert": "/nowhere"}, "prometheus_ca_cert /nowhere does not exist"),
    ("http://x", {"client_key": "-----BEGIN\ns3cret"},
     "prometheus_client_key must be the path of a file"),
    ("http://x", {"timeout": 0}, "prometheus_timeout must be more than 0"),
    ("http://x", {"timeout": "nan"}, "prometheus_timeout 'nan' is neither"),
])
def test_invalid_options(url, options, message):
    with pytest.raises(RolloutError) as error:
        client(url, **options)

    assert message in error.value.message and "s3cret" not in error.value.message


def test_secrets_of_options():
    secrets = prometheus.secrets({"prometheus_url": "http://me:p%40ss@x",
                                  "prometheus_token": "t0ken",
                                  "prometheus_username": "you",
                                  "prometheus_password": "pass", "prometheus_client_key": "a\nb"})

    assert {"p@ss", "p%40ss", "t0ken", "pass", base64.b64encode(b"you:pass").decode(),
            "a\nb"} <= secrets
    assert prometheus.secrets({"prometheus_url": "http://x",
                               "name": "foo"}) == prometheus.secrets({}) == set()


def test_long_query_is_shortened_in_the_error(server):
    server.answers.append(failure(400, "bad_data", "no"))

    with pytest.raises(RolloutError) as error:
        client(server.url).query(f"begin {'x' * 10_000} end")

    assert (len(error.value.next_command) < 600
            and json.dumps(error.value.next_command).endswith(' end"'))

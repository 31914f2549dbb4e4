# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A request to the API server: retries where they are safe, and the meaning of refusals.

Refusals never leave this package: a write with a failed precondition returns False (the driver
observes and plans again), any other refusal becomes a RolloutError. Source for the rules: the API
conventions (Retry-After, 410).
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import email.utils
import json
import random
import threading
import time
import typing as t
from urllib.parse import quote, urlencode

from ..flows.handover import CLOSED, PRIORITY
from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, text
from ..model.steps import Create, Delete, Patch, Write
from .connection import Connection

#: Seconds to connect, and to wait for an answer.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 10.0, 35.0
#: Seconds between two attempts, half of them random; about 25 s until a request is given up.
BACKOFF = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0)
#: Seconds while the server has never answered: rather a wrong address than a restart.
FIRST_BACKOFF = BACKOFF[:3]
#: Seconds until the last attempt, if each attempt waits long for an answer.
PATIENCE = 60.0
#: Seconds after an outage in which a refusal may be temporary: an API server answers before it
#: has read the Roles and the ServiceAccounts.
STARTING = 30.0
#: Largest Retry-After in seconds.
LONGEST_RETRY_AFTER = 30.0
#: Seconds until an answer must be complete.
WHOLE_TIMEOUT = 120.0
#: Bytes of an answer: about ten pages of large controllers.
MOST_BYTES = 64 * 2**20
#: Seconds of the fastest answer on a slow line. A background request is worth a connection of its
#: own there; elsewhere the handshake costs more than the wait.
SLOW = 0.1
#: Largest number of background requests.
BACKGROUND_REQUESTS = 8
#: Objects of one page, of a page of very large objects (up to 3 MiB each), and of one list.
PAGE, SMALL_PAGE, MOST_OBJECTS = 500, 20, 200_000

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
#: Metadata of a list of objects, and of one object.
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONE_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: Columns of kubectl get.
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
#: Statuses of a temporary problem.
RETRIED = {408, 429, 500, 502, 503, 504}

Answer = t.TypeVar("Answer")


class Refused(Exception):
    """A refusal of the API server: the HTTP status and the Status object."""

    def __init__(self, server: str, method: str, path: str, status: int, body: bytes) -> None:
        try:
            answer = json.loads(body)
            is_status = isinstance(answer, dict) and answer.get("kind") == "Status"
            self.details = answer if is_status else {}
        except ValueError:
            self.details = {}
        self.server, self.status = server, status
        self.request = f"{method} {path.partition('?')[0]}"
        message = text(self.details, "message") or body[:256].decode(errors="replace")
        self.reason = display_text(message) or f"status {status}"
        super().__init__(self.reason)

    def is_stale(self, write: Write) -> bool:
        """Return whether a precondition of the write failed: another version, a deleted object.

        422 is both a failed test and an invalid manifest, or the denial of a policy: only the
        invalid manifest has causes, and only a webhook writes "denied the request".
        """
        if self.status == 422:
            causes = (self.details.get("details") or {}).get("causes")
            is_denied = causes or "denied the request" in self.reason
            return isinstance(write, Patch) and not is_denied
        return self.status == 409 or (self.status == 404 and not isinstance(write, Create))

    def as_error(self, where: str, what: str = "", next_command: str = "",
                 write: Write | None = None) -> RolloutError:
        """Return the error for the user.

        The request names the failure, unless `what` or the write does.
        """
        if self.status == 401:
            return RolloutError("the API server does not accept the credentials (401)",
                                where=self.server, why=self.reason,
                                next_command="renew the token, or check api_key and kubeconfig")
        # A policy, a webhook or a quota may refuse an object in admission, also with 403.
        is_admitted = write or what
        is_rbac = 'User "' in self.reason and '" cannot ' in self.reason
        if self.status == 403 and (not is_admitted or is_rbac):
            hint = ("ask for that verb and resource in a Role in this namespace "
                    "(see docs/permissions.md)")
            return RolloutError("permission denied (403)", where=where, why=self.reason,
                                next_command=next_command or hint)
        if self.status in RETRIED:
            next_command = (next_command
                            or "run the same task again when the API server is healthy")
        elif write:
            what = f"{_action(write)} was refused ({self.status})"
            next_command = "fix what refuses it, then run the same task again"
        return RolloutError(what or f"the API server refused {self.request} ({self.status})",
                            where=where, why=self.reason, next_command=next_command)


class AnswerLost(Exception):
    """A write was sent, with an unknown outcome."""


class TooLarge(RolloutError):
    """An answer larger than any legitimate answer."""


class Unreachable(Exception):
    """An attempt without an answer."""

    def __init__(self, reason: str, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class Http:
    """Requests to one API server; several threads may send requests at once."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Number of requests by method, for benchmarks and tests.
        self.requests: collections.Counter[str] = collections.Counter()
        #: Seconds that the API server's clock is ahead of the local clock.
        self.clock_difference = 0.0
        self._lock = threading.Lock()
        self._has_answered = False
        self._unreachable_at = -STARTING
        #: Seconds until the fastest answer.
        self._fastest = float("inf")
        self._background = concurrent.futures.ThreadPoolExecutor(BACKGROUND_REQUESTS)

    def count(self, method: str) -> None:
        """Count a request that is about to be sent."""
        with self._lock:
            self.requests[method] += 1

    @property
    def is_slow(self) -> bool:
        """Whether every answer takes long: the line is slow, not the server."""
        return self._has_answered and self._fastest > SLOW

    def start_in_background(
            self, work: t.Callable[[], Answer]) -> concurrent.futures.Future[Answer] | None:
        """Begin requests in the background on a slow line; None on a fast line."""
        return self._background.submit(work) if self.is_slow else None

    def close(self) -> None:
        """Wait for the requests in the background."""
        self._background.shutdown()

    def note_outage(self) -> None:
        """Record that the API server could not be reached just now."""
        self._unreachable_at = time.monotonic()

    def send(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             is_write: bool | None = None, accept: str = JSON) -> Json:
        """Send a request, repeat it where that is safe, and return the answer.

        Raises Refused, AnswerLost (a write that may have landed), or RolloutError when the server
        cannot be reached.
        """
        is_write = method != "GET" if is_write is None else is_write
        is_renewed, began = False, time.monotonic()
        for delay in (*(BACKOFF if self._has_answered else FIRST_BACKOFF), None):
            is_last = delay is None or time.monotonic() - began > PATIENCE
            generation, retry_after = self.connection.generation, 0.0
            try:
                status, headers, data = self.once(method, path, body, content_type, accept)
            except Unreachable as failure:
                self._raise_if_final(failure, is_write, is_last)
            else:
                if status < 300:
                    answer = _parsed(data, self.connection.server)
                    if answer is not None:
                        return answer
                    if is_write:
                        raise AnswerLost
                    status = 500  # a truncated answer is no answer
                if status == 401 and not is_renewed:
                    is_renewed = True
                    self.connection.renew(generation)
                    continue
                if is_last or not self._is_temporary(status):
                    raise Refused(self.connection.server, method, path, status, data)
                if status == 504 and is_write:
                    raise AnswerLost
                retry_after = _retry_after(headers)
            time.sleep(max((delay or 0.0) * random.uniform(0.5, 1.0), retry_after))
        raise RolloutError(f"{method} {path.partition('?')[0]} still failed after "
                           f"{len(BACKOFF) + 1} attempts")

    def _raise_if_final(self, failure: Unreachable, is_write: bool, is_last: bool) -> None:
        """Raise the error of an attempt without an answer, unless the next attempt is safe."""
        self.note_outage()
        if failure.was_sent and is_write:
            raise AnswerLost from failure
        if is_last:
            raise RolloutError(f"the API server at {self.connection.server} cannot be reached",
                               why=str(failure),
                               next_command="run the same task again when it is back") from failure

    def _is_temporary(self, status: int) -> bool:
        """Return whether the same request may succeed later."""
        is_starting = time.monotonic() - self._unreachable_at < STARTING
        return status in RETRIED or (status in (401, 403) and is_starting)

    def get(self, collection: str, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object by its name, or None if it does not exist.

        Raises Refused; RolloutError if the answer is another object.
        """
        try:
            item = self.send("GET", f"{collection}/{quoted(name)}")
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        metadata = mapping(item, "metadata")
        identity = item["kind"], text(metadata, "namespace"), text(metadata, "name")
        if identity != (kind, namespace, name):
            raise RolloutError(
                f"the API server answered with another object than the {kind} {namespace}/{name}",
                where=self.connection.server, next_command="check host, proxy and kubeconfig")
        return item

    def once(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             accept: str = JSON, most: int = 0, seconds: float = 0) -> tuple[int, t.Any, bytes]:
        """Send a request once; return status, headers and content of the answer.

        most: bytes, seconds: time limit of the answer. Raises Unreachable; RolloutError where
        another attempt is useless.
        """
        import urllib3

        headers = self.connection.headers()
        # As kubectl: the server compresses answers of more than 128 KiB.
        headers["Accept"], headers["Accept-Encoding"] = accept, "gzip"
        if body is not None:
            headers["Content-Type"] = content_type
        self.count(method)
        began = time.monotonic()
        try:
            # request() of urllib3 1.26 drops duplicate headers (Impersonate-Group).
            answer = self.connection.pool.request_encode_url(
                method, self.connection.server + path,
                body=None if body is None else _encoded(body), headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=seconds or ANSWER_TIMEOUT),
                retries=False, redirect=False, preload_content=False)
            data = whole(answer, most or MOST_BYTES, seconds)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _as_failure(error, self.connection.server) from error
        if data is None:
            raise TooLarge(f"the answer to {method} {path.partition('?')[0]} has more than "
                           f"{most or MOST_BYTES} bytes", where=self.connection.server)
        self._has_answered = True
        self._fastest = min(self._fastest, time.monotonic() - began)
        with contextlib.suppress(TypeError, ValueError):  # without a date, or not a date
            date = email.utils.parsedate_to_datetime(answer.headers.get("Date", ""))
            self.clock_difference = date.timestamp() - time.time()
        return answer.status, answer.headers, data

    def page(self, path: str, query: Json, accept: str = JSON, token: str = "") -> Json:
        """Return the first page of a list, or the page of a continue token. Raises as send()."""
        def ask(limit: int) -> Json:
            parameters = {**query, "limit": limit, **({"continue": token} if token else {})}
            return self.send("GET", f"{path}?{urlencode(parameters)}", accept=accept)

        try:
            return ask(PAGE)
        except TooLarge:
            return ask(SMALL_PAGE)

    def pages(self, path: str, query: Json, accept: str = JSON) -> tuple[list[Json], str]:
        """Return all objects of a list, read in pages, and the resourceVersion for a watch.

        Raises as send().
        """
        items: list[Json] = []
        token, is_repeated = "", False
        while len(items) <= MOST_OBJECTS:
            try:
                page = self.page(path, query, accept, token)
            except Refused as refused:
                if refused.status != 410 or is_repeated:
                    raise
                items, token, is_repeated = [], "", True  # the continue token has expired
                continue
            items += page.get("items") or []  # null in an empty list of metadata
            token = page["metadata"].get("continue")
            if not token:
                return items, page["metadata"]["resourceVersion"]
        raise TooLarge(f"there are more than {MOST_OBJECTS} objects at {path}")


class Namespaced:
    """Base class of the parts of a gateway: requests for the objects of one namespace."""

    def __init__(self, http: Http, namespace: str) -> None:
        self.http, self._namespace = http, namespace
        #: The place of an error.
        self._where = f"namespace {namespace}"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"


def _parsed(data: bytes, server: str) -> Json | None:
    """Parse a successful answer; None for a truncated answer.

    Raises RolloutError for an answer of another kind of server.
    """
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    # /version is the only answer without a kind.
    if isinstance(answer, dict) and {"kind", "gitVersion"} & answer.keys():
        return answer
    raise RolloutError(f"{server} does not respond like a Kubernetes API server")


def _as_failure(error: Exception, server: str) -> Exception:
    """Return the exception for an error of urllib3: Unreachable or RolloutError."""
    from urllib3 import exceptions

    why = brief(error)
    if isinstance(error, exceptions.SSLError):
        return RolloutError(f"the certificate of {server} is not accepted", why=why,
                            next_command="give ca_cert, or check validate_certs")
    if isinstance(error, (exceptions.NewConnectionError, exceptions.ConnectTimeoutError,
                          exceptions.ProxyError)):
        return Unreachable(why, was_sent=False)
    is_invalid = isinstance(error, exceptions.LocationValueError)
    if isinstance(error, (exceptions.HTTPError, OSError)) and not is_invalid:
        return Unreachable(why, was_sent=True)
    return RolloutError(f"{server} is not a valid API server address", why=why)


def whole(answer: t.Any, most: int, seconds: float = 0) -> bytes | None:
    """Read the content of an answer; None for more than that many bytes.

    Raises the exceptions of urllib3, and TimeoutError.
    """
    # read1 returns the received bytes without waiting for more; urllib3 1 lacks it.
    read = getattr(answer, "read1", answer.read)
    parts: list[bytes] = []
    seconds = seconds or WHOLE_TIMEOUT
    end = time.monotonic() + seconds
    try:
        while part := read(65536):
            most -= len(part)
            parts.append(part)
            if most < 0:
                return None
            if time.monotonic() > end:
                raise TimeoutError(f"the answer is not complete after {seconds:g} s")
        return b"".join(parts)
    finally:
        if most < 0 or time.monotonic() > end:
            answer.close()
        answer.release_conn()


def pause(failures: int) -> float:
    """Return the seconds to wait after that number of failures in a row."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] * random.uniform(0.5, 1.0)


def _action(write: Write) -> str:
    """Return the words for a write in the error of its refusal."""
    if isinstance(write, Create):
        return "its creation"
    if isinstance(write, Delete):
        return "its deletion"
    operations = t.cast(Patch, write).operations
    paths = {operation["path"]: operation.get("value") for operation in operations
             if operation["op"] != "test"}
    closing = "closing" if paths.get(PRIORITY) == CLOSED else "opening"
    actions = {"/spec/template": "the change of its template",
               "/spec/selector": "the change of its selector",
               "/spec/replicas": "the change of its size",
               PRIORITY: f"the {closing} of its template",
               "/spec/strategy": "the change of its strategy",
               "/spec/paused": "pausing or resuming it"}
    return next((action for path, action in actions.items() if path in paths),
                "the change of its annotations")


def _encoded(body: t.Any) -> bytes:
    """Encode JSON as the API server does (Go's encoding/json).

    The server compares the bytes of a JSON patch's test, and of a ControllerRevision's immutable
    data. Half a surrogate pair is no text, and becomes a question mark.
    """
    document = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    for character, escape in _GO_ESCAPES:
        document = document.replace(character, escape)
    return document


def quoted(name: str) -> str:
    """Return a name, percent-encoded, as one segment of a path."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


#: Characters that Go escapes; in a JSON document they are only inside texts.
_GO_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode())
                    for character in "&<>\u2028\u2029")


def selection(labels: Json) -> str:
    """Return a label selector for these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _retry_after(headers: t.Any) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), LONGEST_RETRY_AFTER) if value.isdigit() else 0.0


def brief(error: BaseException) -> str:
    """Return the innermost reason: urllib3 puts the address of a Python object before it."""
    while isinstance(reason := getattr(error, "reason", None), BaseException):
        error = reason
    message = display_text(" ".join(str(error).split()))
    return message.rpartition(">: ")[2][:300] or type(error).__name__

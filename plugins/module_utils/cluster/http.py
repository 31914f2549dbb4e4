# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send requests to the API server, and retry them if a retry is safe.

Retry-After and status 410 are handled as the Kubernetes API conventions require.
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

from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, objects, text
from .connection import Connection
from .refused import RETRIED, Refused

#: In seconds. READ_TIMEOUT applies to each read of a response.
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 35.0
#: Seconds between two attempts. Each pause is shortened at random, by up to a half.
BACKOFF = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0)
#: Used instead of BACKOFF until the server has responded once: its address may be wrong.
FIRST_BACKOFF = BACKOFF[:3]
#: Seconds after which no further attempt begins.
MAX_RETRY_SECONDS = 60.0
#: For so many seconds after an outage, status 401 or 403 may be temporary: a restarted API server
#: accepts requests before it has loaded the Roles and the ServiceAccounts.
WARM_UP_SECONDS = 30.0
#: In seconds. A longer Retry-After is reduced to this value.
MAX_RETRY_AFTER = 30.0
#: In seconds, for the whole body of a response.
BODY_TIMEOUT = 120.0
#: About ten times the size of a page (PAGE_SIZE) of large controllers.
MAX_RESPONSE_BYTES = 64 * 2**20
#: The network counts as slow if even the fastest response took longer than this number of seconds.
#: Background requests then save more time than the TLS handshakes of additional connections cost.
HIGH_LATENCY = 0.1
MAX_BACKGROUND_REQUESTS = 8
#: Numbers of objects. SMALL_PAGE_SIZE is for very large objects (up to 3 MiB each).
PAGE_SIZE, SMALL_PAGE_SIZE, MAX_OBJECTS = 500, 20, 200_000

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
#: Media types for only the metadata of the objects in a list, and of a single object.
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
OBJECT_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: Media type for a table with the columns of kubectl get.
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"

Result = t.TypeVar("Result")


class OutcomeUnknown(Exception):
    """The response to a write was lost, so it is unknown whether the object has changed."""


class ResponseTooLarge(RolloutError):
    """A response, or a list of several pages, is larger than any legitimate one."""


class Unreachable(Exception):
    """An attempt to send a request got no response."""

    def __init__(self, reason: str, was_sent: bool) -> None:
        super().__init__(reason)
        #: Whether the API server may have received it.
        self.was_sent = was_sent


class Http:
    """A thread-safe client of one API server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Number of requests by method, for benchmarks and tests.
        self.requests: collections.Counter[str] = collections.Counter()
        #: Seconds by which the clock of the API server is ahead of the local clock.
        self.clock_difference = 0.0
        self._lock = threading.Lock()
        self._has_responded = False
        #: The last outage, by time.monotonic().
        self._unreachable_at = -WARM_UP_SECONDS
        #: In seconds.
        self._min_latency = float("inf")
        self._background = concurrent.futures.ThreadPoolExecutor(MAX_BACKGROUND_REQUESTS)

    def count(self, method: str) -> None:
        """Count a request."""
        with self._lock:
            self.requests[method] += 1

    @property
    def is_slow(self) -> bool:
        """Whether even the fastest response took more than HIGH_LATENCY."""
        return self._has_responded and self._min_latency > HIGH_LATENCY

    def start_in_background(
            self, send: t.Callable[[], Result]) -> concurrent.futures.Future[Result] | None:
        """Call send() in a background thread; do nothing and return None on a fast network."""
        return self._background.submit(send) if self.is_slow else None

    def close(self) -> None:
        """Wait for the requests in the background."""
        self._background.shutdown()

    def record_outage(self) -> None:
        """Record an outage of the API server."""
        self._unreachable_at = time.monotonic()

    def send(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             is_write: bool | None = None, accept: str = JSON) -> Json:
        """Send a request, retry it if a retry is safe, and return the object in the response.

        is_write: whether a retry could repeat a change. By default, any method but GET
        is a write.

        Raises Refused, OutcomeUnknown, or RolloutError if the server cannot be reached.
        """
        is_write = method != "GET" if is_write is None else is_write
        has_renewed_token, start = False, time.monotonic()
        # No delay follows the last attempt.
        for delay in (*(BACKOFF if self._has_responded else FIRST_BACKOFF), None):
            is_last = delay is None or time.monotonic() - start > MAX_RETRY_SECONDS
            generation, retry_after = self.connection.generation, 0.0
            try:
                status, headers, data = self.send_once(method, path, body, content_type, accept)
            except Unreachable as failure:
                self._raise_if_final(failure, is_write, is_last)
            else:
                if status < 300:
                    response = _parse(data, self.connection.server)
                    if response is not None:
                        return response
                    if is_write:
                        raise OutcomeUnknown
                    status = 500  # retry after a truncated response as after a server error
                if status == 401 and not has_renewed_token:
                    has_renewed_token = True
                    self.connection.renew(generation)
                    continue
                if is_last or not self._is_temporary(status):
                    raise Refused(self.connection.server, method, path, status, data)
                if status == 504 and is_write:
                    raise OutcomeUnknown
                retry_after = _retry_after(headers)
            time.sleep(max((delay or 0.0) * random.uniform(0.5, 1.0), retry_after))
        raise RolloutError(f"{method} {path.partition('?')[0]} still failed after "
                           f"{len(BACKOFF) + 1} attempts")

    def _raise_if_final(self, failure: Unreachable, is_write: bool, is_last: bool) -> None:
        """Raise an error for an attempt without a response, unless a retry is possible."""
        self.record_outage()
        if failure.was_sent and is_write:
            raise OutcomeUnknown from failure
        if is_last:
            raise RolloutError(f"the API server at {self.connection.server} cannot be reached",
                               next_command="run the same task again when it responds",
                               why=str(failure)) from failure

    def _is_temporary(self, status: int) -> bool:
        is_warming_up = time.monotonic() - self._unreachable_at < WARM_UP_SECONDS
        return status in RETRIED or (status in (401, 403) and is_warming_up)

    def get(self, collection: str, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object by its name, or None if it does not exist.

        Raises Refused, or RolloutError if the response is another object.
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
                f"the API server returned an object other than the {kind} {namespace}/{name}",
                where=self.connection.server, next_command="check host, proxy and kubeconfig")
        return item

    def send_once(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
                  accept: str = JSON, max_bytes: int = 0,
                  timeout: float = 0) -> tuple[int, t.Any, bytes]:
        """Send a request without retries; return the status, headers and body of the response.

        max_bytes, timeout (in seconds): limits for the body; 0 stands for the default. Raises
        Unreachable, or RolloutError if a retry is useless.
        """
        import urllib3

        headers = self.connection.headers()
        # The API server compresses responses of more than 128 KiB if the client accepts gzip.
        headers["Accept"], headers["Accept-Encoding"] = accept, "gzip"
        if body is not None:
            headers["Content-Type"] = content_type
        self.count(method)
        start = time.monotonic()
        try:
            # request() of urllib3 1.26 drops duplicate headers (Impersonate-Group).
            response = self.connection.pool.request_encode_url(
                method, self.connection.server + path,
                body=None if body is None else _encode(body), headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=timeout or READ_TIMEOUT),
                retries=False, redirect=False, preload_content=False)
            data = read_body(response, max_bytes or MAX_RESPONSE_BYTES, timeout)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise _translate_error(error, self.connection.server) from error
        if data is None:
            raise ResponseTooLarge(
                f"the response to {method} {path.partition('?')[0]} has more than "
                f"{max_bytes or MAX_RESPONSE_BYTES} bytes", where=self.connection.server)
        self._has_responded = True
        self._min_latency = min(self._min_latency, time.monotonic() - start)
        with contextlib.suppress(TypeError, ValueError):  # a missing or invalid Date header
            date = email.utils.parsedate_to_datetime(response.headers.get("Date", ""))
            self.clock_difference = date.timestamp() - time.time()
        return response.status, response.headers, data

    def page(self, path: str, query: Json, accept: str = JSON, continue_token: str = "") -> Json:
        """Return the first page of a list, or the page of a token. Raises the errors of send()."""
        def send(limit: int) -> Json:
            continuation = {"continue": continue_token} if continue_token else {}
            parameters = {**query, "limit": limit, **continuation}
            return self.send("GET", f"{path}?{urlencode(parameters)}", accept=accept)

        try:
            return send(PAGE_SIZE)
        except ResponseTooLarge:
            return send(SMALL_PAGE_SIZE)

    def pages(self, path: str, query: Json, accept: str = JSON) -> tuple[list[Json], str]:
        """Return all objects of a list, and its resourceVersion. Raises the errors of send()."""
        items: list[Json] = []
        continue_token, is_repeated = "", False
        while len(items) <= MAX_OBJECTS:
            try:
                page = self.page(path, query, accept, continue_token)
            except Refused as refused:
                if refused.status != 410 or is_repeated:
                    raise
                items, continue_token, is_repeated = [], "", True  # the token has expired
                continue
            # An empty PartialObjectMetadataList has null as items.
            items += map(_without_field_sets, page.get("items") or [])
            continue_token = page["metadata"].get("continue")
            if not continue_token:
                return items, page["metadata"]["resourceVersion"]
        raise ResponseTooLarge(f"there are more than {MAX_OBJECTS} objects at {path}")


class Namespaced:
    """Base class for each part of the gateway to a namespace."""

    def __init__(self, http: Http, namespace: str) -> None:
        self.http, self._namespace = http, namespace
        self._where = f"namespace {namespace}"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"


def _without_field_sets(item: Json) -> Json:
    """Remove the field sets in managedFields from an object, and return the object.

    For thousands of objects, they would take half of the memory.
    """
    for entry in objects(mapping(item, "metadata"), "managedFields"):
        entry.pop("fieldsV1", None)
    return item


def _parse(data: bytes, server: str) -> Json | None:
    """Return the object in a response, or None if the response is truncated.

    Raises RolloutError if the server is not a Kubernetes API server.
    """
    try:
        response = json.loads(data)
    except ValueError:
        return None
    # Only the response of /version has no kind.
    if isinstance(response, dict) and {"kind", "gitVersion"} & response.keys():
        return response
    raise RolloutError(f"{server} does not respond like a Kubernetes API server")


def _translate_error(error: Exception, server: str) -> Exception:
    """Return the Unreachable or RolloutError for an error of urllib3."""
    from urllib3 import exceptions

    why = innermost_reason(error)
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


def read_body(response: t.Any, max_bytes: int, timeout: float = 0) -> bytes | None:
    """Return the body of a response, or None if the body has more than max_bytes.

    Raises the exceptions of urllib3, and TimeoutError.
    """
    # read1 returns the received bytes without waiting for more; urllib3 1 lacks it.
    read = getattr(response, "read1", response.read)
    parts: list[bytes] = []
    timeout = timeout or BODY_TIMEOUT
    deadline = time.monotonic() + timeout
    try:
        while part := read(65536):
            max_bytes -= len(part)
            parts.append(part)
            if max_bytes < 0:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError(f"the response is not complete after {timeout:g} s")
        return b"".join(parts)
    finally:
        if max_bytes < 0 or time.monotonic() > deadline:
            response.close()
        response.release_conn()


def backoff(failures: int) -> float:
    """Return the seconds to wait after this number of consecutive failures."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] * random.uniform(0.5, 1.0)


def _encode(body: t.Any) -> bytes:
    """Encode JSON exactly as Go's encoding/json does.

    The API server compares bytes, not values, in a "test" operation of a JSON patch, and in the
    immutable data of a ControllerRevision. A lone surrogate becomes a question mark.
    """
    document = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    for character, escape in _GO_ESCAPES:
        document = document.replace(character, escape)
    return document


def quoted(name: str) -> str:
    """Return a name as one segment of a path, in percent-encoding ("." and ".." as well)."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


#: Characters that Go escapes. In a JSON document, they occur only inside strings.
_GO_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode())
                    for character in "&<>\u2028\u2029")


def label_selector(labels: Json) -> str:
    """Return a label selector that requires all of the labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _retry_after(headers: t.Any) -> float:
    """Return the seconds in the header Retry-After; 0 for a date, or without the header."""
    value = headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isdigit() else 0.0


def innermost_reason(error: BaseException) -> str:
    """Return the innermost message of a urllib3 error, without the repr of its Python object."""
    while isinstance(reason := getattr(error, "reason", None), BaseException):
        error = reason
    message = display_text(" ".join(str(error).split()))
    return message.rpartition(">: ")[2][:300] or type(error).__name__

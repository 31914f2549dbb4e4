# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send requests to the API server, and retry them if a retry is safe.

The handling of Retry-After (up to MAX_RETRY_AFTER) and 410 follows the Kubernetes API conventions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import email.utils
import json
import random
import ssl
import threading
import time
import typing as t
from urllib.parse import quote, urlencode

from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, objects, text
from . import discovery, json_text
from .connection import Connection
from .refused import RETRIED_STATUSES, Refused

#: Seconds. READ_TIMEOUT applies to each read of a response.
CONNECT_TIMEOUT, READ_TIMEOUT = 10.0, 35.0
#: Maximum seconds between two attempts without Retry-After. The minimum is half of each number.
BACKOFF = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0)
#: Until the server has responded once, these few delays replace BACKOFF, because the address of the
#: server may be wrong.
FIRST_BACKOFF = BACKOFF[:3]
MAX_RETRY_SECONDS = 60.0
#: Seconds. A restarted API server may respond with 401 or 403 until its caches are filled.
WARM_UP_SECONDS = 30.0
#: Seconds.
MAX_RETRY_AFTER = 30.0
#: Seconds.
BODY_TIMEOUT = 120.0
#: About ten times the size of a page of large controllers.
MAX_RESPONSE_BYTES = 64 * 2**20
#: Seconds. With a higher latency, background requests are worth the additional TLS handshakes.
HIGH_LATENCY = 0.1
MAX_BACKGROUND_REQUESTS = 8
#: Numbers of objects. SMALL_PAGE_SIZE objects of up to 3 MiB each fit in MAX_RESPONSE_BYTES.
PAGE_SIZE, SMALL_PAGE_SIZE, MAX_OBJECTS = 500, 20, 200_000

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
#: Media types that request only the metadata of a list (METADATA) or object (OBJECT_METADATA).
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
OBJECT_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: The media type that requests the columns of kubectl get.
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"

Result = t.TypeVar("Result")


class OutcomeUnknown(Exception):
    """The response to a write is lost, truncated or 504. The write may have succeeded."""


class ResponseTooLarge(RolloutError):
    """A response or a list is too large."""


class Unreachable(Exception):
    """An attempt to send a request got no complete response."""

    def __init__(self, reason: str, was_sent: bool) -> None:
        super().__init__(reason)
        #: Whether the API server may have received the request.
        self.was_sent = was_sent


class Http:
    """A thread-safe client of an API server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.requests: collections.Counter[str] = collections.Counter()
        #: Time of the API server minus local time, in seconds.
        self.clock_difference = 0.0
        self._lock = threading.Lock()
        self._has_responded = False
        #: Time of the last outage, from time.monotonic().
        self._unreachable_at = -WARM_UP_SECONDS
        #: Seconds.
        self._min_latency = float("inf")
        self._executor = concurrent.futures.ThreadPoolExecutor(MAX_BACKGROUND_REQUESTS)

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
        """Call the function in a background thread, or return None if the network is not slow."""
        return self._executor.submit(send) if self.is_slow else None

    def close(self) -> None:
        """Wait until all background requests have ended."""
        self._executor.shutdown()

    def record_outage(self) -> None:
        """Record an outage of the API server."""
        self._unreachable_at = time.monotonic()

    def send(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             is_write: bool | None = None, accept: str = JSON) -> Json:
        """Send a request, retry it if a retry is safe, and return the object in the response.

        is_write: by default, True for every method except GET.
        Raises Refused and OutcomeUnknown. Raises RolloutError, for example if the server cannot be
        reached.
        """
        is_write = method != "GET" if is_write is None else is_write
        has_renewed_token, start = False, time.monotonic()
        for delay in (*(BACKOFF if self._has_responded else FIRST_BACKOFF), None):
            is_last = delay is None or time.monotonic() - start > MAX_RETRY_SECONDS
            # The generation of the token that this attempt sends, for renew().
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
                    if is_last:
                        raise _other_server_error(self.connection.server)
                    status = 500  # the response may be truncated: retry
                if status == 401 and not has_renewed_token:
                    has_renewed_token = True
                    self.connection.renew(generation)
                    continue
                # This server's cache lacks the requested version; the caller sends another query.
                is_outdated = status == 504 and "resourceVersionMatch=" in path
                if is_last or is_outdated or not self._is_temporary(status):
                    raise Refused(self.connection.server, method, path, status, data)
                if status == 504 and is_write:
                    raise OutcomeUnknown
                retry_after = _retry_after(headers)
            time.sleep(max((delay or 0.0) * random.uniform(0.5, 1.0), retry_after))
        raise RolloutError(f"{method} {path.partition('?')[0]} still failed after "
                           f"{len(BACKOFF) + 1} attempts")

    def _raise_if_final(self, failure: Unreachable, is_write: bool, is_last: bool) -> None:
        self.record_outage()
        if failure.was_sent and is_write:
            raise OutcomeUnknown from failure
        if is_last:
            raise RolloutError(f"the API server at {self.connection.server} cannot be reached",
                               next_command="run the same task again when it responds",
                               why=str(failure)) from failure

    def _is_temporary(self, status: int) -> bool:
        is_warming_up = time.monotonic() - self._unreachable_at < WARM_UP_SECONDS
        return status in RETRIED_STATUSES or (status in (401, 403) and is_warming_up)

    def get(self, collection: str, kind: str, namespace: str, name: str) -> Json | None:
        """Return an object, or None if the server lacks the object or its API.

        Retries status 404 without a Status object: a proxy without a backend may have sent it.
        Raises Refused, RolloutError.
        """
        for delay in (*BACKOFF, None):
            try:
                item = self.send("GET", f"{collection}/{path_segment(name)}")
                break
            except Refused as refused:
                if refused.status != 404:
                    raise
                if refused.status_object or discovery.lacks_resource(self.send, collection):
                    return None
                if delay is None:
                    raise
                time.sleep(delay * random.uniform(0.5, 1.0))
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

        max_bytes: of the body. timeout: seconds, for each read and for the body. 0: the default.
        Raises Unreachable, or RolloutError if a retry is useless.
        """
        import urllib3

        headers = self.connection.headers()
        headers["Accept"], headers["Accept-Encoding"] = accept, "gzip"
        if body is not None:
            headers["Content-Type"] = content_type
        self.count(method)
        start = time.monotonic()
        try:
            # In POST, PUT and PATCH, request() of urllib3 1.26 joins Impersonate-Group headers.
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
        with contextlib.suppress(TypeError, ValueError):
            date = email.utils.parsedate_to_datetime(response.headers.get("Date", ""))
            self.clock_difference = date.timestamp() - time.time()
        return response.status, response.headers, data

    def page(self, path: str, query: Json, accept: str = JSON, continue_token: str = "") -> Json:
        """Return one page of a list, by default the first page. Raises Refused, RolloutError."""
        def send(limit: int) -> Json:
            parameters = {**query, "limit": limit}
            if continue_token:  # a token contains the resourceVersion
                parameters = {key: value for key, value in parameters.items()
                              if not key.startswith("resourceVersion")}
                parameters["continue"] = continue_token
            return self.send("GET", f"{path}?{urlencode(parameters)}", accept=accept)

        try:
            return send(PAGE_SIZE)
        except ResponseTooLarge:
            return send(SMALL_PAGE_SIZE)

    def list_all(self, path: str, query: Json, accept: str = JSON) -> tuple[list[Json], str]:
        """Return all objects of a list, and its resourceVersion. Raises Refused, RolloutError."""
        items: list[Json] = []
        continue_token, was_restarted = "", False
        while len(items) <= MAX_OBJECTS:
            try:
                page = self.page(path, query, accept, continue_token)
            except Refused as refused:
                if refused.status != 410 or was_restarted:
                    raise
                items, continue_token, was_restarted = [], "", True  # the token has expired
                continue
            # In an empty PartialObjectMetadataList, items is null.
            items += map(_drop_large_fields, page.get("items") or [])
            metadata = mapping(page, "metadata")
            continue_token = text(metadata, "continue")
            if not continue_token:
                return items, text(metadata, "resourceVersion")
        raise ResponseTooLarge(f"there are more than {MAX_OBJECTS} objects at {path}")


class GatewayPart:
    """Base class of the parts of KubernetesGateway."""

    def __init__(self, http: Http, namespace: str) -> None:
        self.http, self._namespace = http, namespace
        self._where = f"namespace {namespace}"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        #: The completed handovers after which the pods have not been listed again. The key is the
        #: uid of the old owner. The value is (labels of the first pod, highest resourceVersion of
        #: the patches).
        self._completed_handovers: dict[str, tuple[t.Mapping[str, str], str]] = {}


def _drop_large_fields(item: Json) -> Json:
    """Remove the field sets in managedFields, and the images of a node: most of the memory."""
    mapping(item, "status").pop("images", None)
    for entry in objects(mapping(item, "metadata"), "managedFields"):
        entry.pop("fieldsV1", None)
    return item


def _parse(data: bytes, server: str) -> Json | None:
    """Return the object in a response, or None if the JSON is invalid. Raises RolloutError."""
    try:
        response = json_text.parse(data)
    except ValueError:
        return None
    # Only the response of /version has no kind.
    if isinstance(response, dict) and {"kind", "gitVersion"} & response.keys():
        return response
    raise _other_server_error(server)


def _other_server_error(server: str) -> RolloutError:
    return RolloutError(f"{server} does not respond like a Kubernetes API server")


def _translate_error(error: Exception, server: str) -> Exception:
    from urllib3 import exceptions

    why = innermost_reason(error)
    if is_refused_handshake(error):
        return RolloutError(f"the certificate of {server} is not accepted", why=why,
                            next_command="give ca_cert, or check validate_certs")
    if isinstance(error, (exceptions.NewConnectionError, exceptions.ConnectTimeoutError,
                          exceptions.ProxyError)):
        return Unreachable(why, was_sent=False)
    is_invalid_url = isinstance(error, exceptions.LocationValueError)
    # urllib3 does not report whether the handshake or a later part of the connection has failed.
    if isinstance(error, (exceptions.HTTPError, OSError)) and not is_invalid_url:
        return Unreachable(why, was_sent=True)
    return RolloutError(f"{server} is not a valid API server address", why=why)


def read_body(response: t.Any, max_bytes: int, timeout: float = 0) -> bytes | None:
    """Return the body of a response, or None if the body has more than max_bytes.

    timeout: seconds, or 0 for BODY_TIMEOUT. Raises TimeoutError, and the exceptions of urllib3.
    """
    # Prefer read1(), since read() waits for all 65536 bytes. urllib3 1.26 has no read1().
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


def backoff(failure_count: int) -> float:
    """Return the seconds to wait after `failure_count` consecutive failures."""
    return BACKOFF[min(failure_count, len(BACKOFF)) - 1] * random.uniform(0.5, 1.0)


def _encode(body: t.Any) -> bytes:
    """Encode JSON with the escapes of Go's encoding/json.

    The API server compares the bytes of strings in a "test" operation of a JSON patch.
    """
    document = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    for character, escape in _GO_ESCAPES:
        document = document.replace(character, escape)
    return document


def path_segment(name: str) -> str:
    """Return a name in percent-encoding, as one segment of a path."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


#: Characters that only Go escapes, and the escapes.
_GO_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode())
                    for character in "&<>\u2028\u2029")


def label_selector(labels: Json) -> str:
    """Return a selector that requires all labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _retry_after(headers: t.Any) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER) if value.isdigit() else 0.0


def innermost_reason(error: BaseException) -> str:
    """Return the innermost message of a urllib3 error, without the repr at its start."""
    while isinstance(reason := getattr(error, "reason", None), BaseException):
        error = reason
    message = display_text(" ".join(str(error).split()))
    return message.rpartition(">: ")[2][:300] or type(error).__name__


def is_refused_handshake(error: Exception) -> bool:
    """Return whether TLS cannot be established, so that a retry is useless.

    error: any exception. The cause may be the certificate of the server or of the client. A server
    that closes the connection, or sends the alert internal_error, may be restarting.
    """
    from urllib3 import exceptions

    cause = error.args[0] if isinstance(error, exceptions.SSLError) and error.args else None
    has_ended = isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError))
    has_failed = getattr(cause, "reason", None) == "TLSV1_ALERT_INTERNAL_ERROR"
    return cause is not None and not has_ended and not has_failed

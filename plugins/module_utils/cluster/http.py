# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One request to the API server, tried again where that is safe, and what its refusals mean.

What the API server refuses is told apart here and never leaves this room: a write whose assumption does not hold returns
False (the driver looks again and plans again), everything else becomes a RolloutError. Source for the rules: the API
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
from ..model.fields import Json, mapping, text, told
from ..model.steps import Create, Delete, Patch, Write
from .connection import Connection

#: Seconds to connect and to wait for an answer.
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 10.0, 35.0
#: Seconds between two tries of a request; half of each is chance. About 25 s in all before a request is given up.
BACKOFF = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 8.0)
#: The same as long as the server has never answered: then it is rather a wrong address than a restart.
FIRST_BACKOFF = BACKOFF[:3]
#: Seconds after which a request is not tried again, where each try waits long for its answer.
PATIENCE = 60.0
#: Seconds after an outage in which a refusal may mean that the API server is not yet ready: it answers before it has read
#: the Roles and the ServiceAccounts.
STARTING = 30.0
#: The longest Retry-After that is obeyed, in seconds.
LONGEST_RETRY_AFTER = 30.0
#: Seconds within which an answer that has begun has to be whole.
WHOLE_TIMEOUT = 120.0
#: Bytes of an answer that are read: about ten times what a page of large controllers has.
MOST_BYTES = 64 * 2**20
#: Seconds that even the fastest answer takes on a slow line. There a request that nobody has to wait for is worth a connection of
#: its own, and as many are sent at once; elsewhere its handshake costs more than the wait.
SLOW = 0.1
#: Requests that are sent beside others.
BESIDE = 8
#: Objects of one page of a list, of one with objects that are too large for that (the server takes 3 MiB for one), and of a list.
PAGE, SMALL_PAGE, MOST_OBJECTS = 500, 20, 200_000

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
#: Of objects, and of one object, the metadata alone.
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
ONE_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: Of objects, what kubectl get shows.
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
#: Statuses of a server that may be well again in a moment.
RETRIED = {408, 429, 500, 502, 503, 504}


Anything = t.TypeVar("Anything")


class Refused(Exception):
    """An answer that is no success: status and the server's own Status object."""

    def __init__(self, server: str, method: str, path: str, status: int, body: bytes) -> None:
        try:
            answer = json.loads(body)
            self.details = answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}
        except ValueError:
            self.details = {}
        self.server, self.status = server, status
        self.request = f"{method} {path.partition('?')[0]}"
        self.reason = told(text(self.details, "message") or body[:256].decode(errors="replace")) or f"status {status}"
        super().__init__(self.reason)

    def is_stale(self, write: Write) -> bool:
        """The object is not what the write assumed: a failed test, another uid, a name that is taken, or gone.

        422 is both a failed test and a manifest that makes no sense, or that somebody's policy denies; only the latter name
        causes, but for a webhook.
        """
        if self.status == 422:
            is_told = (self.details.get("details") or {}).get("causes") or "denied the request" in self.reason
            return isinstance(write, Patch) and not is_told
        return self.status == 409 or (self.status == 404 and not isinstance(write, Create))

    def as_error(self, where: str, what: str = "", next_command: str = "", write: Write | None = None) -> RolloutError:
        """The same for the user; what failed is told by the request where neither `what` nor the write tells it."""
        if self.status == 401:
            return RolloutError("the API server does not accept the credentials (401)", where=self.server,
                                why=self.reason, next_command="renew the token, or check api_key and kubeconfig")
        is_admitted = write or what  # what goes through admission may be refused by a policy, a webhook or a quota as well
        if self.status == 403 and (not is_admitted or ('User "' in self.reason and '" cannot ' in self.reason)):
            return RolloutError("permission denied (403)", where=where, why=self.reason,
                                next_command=next_command
                                or "ask for that verb and resource in a Role in this namespace (see docs/permissions.md)")
        if self.status in RETRIED:
            next_command = next_command or "run the same task again when the API server is healthy"
        elif write:
            what = f"{_deed(write)} was refused ({self.status})"
            next_command = "fix what refuses it, then run the same task again"
        return RolloutError(what or f"the API server refused {self.request} ({self.status})", where=where,
                            why=self.reason, next_command=next_command)


class AnswerLost(Exception):
    """A write was sent, and nobody knows whether it landed."""


class TooLarge(RolloutError):
    """An answer that is longer than anybody needs."""


class Unreachable(Exception):
    """There is no answer to this try."""

    def __init__(self, reason: str, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class Http:
    """The requests to one API server; several threads may send some at once."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Requests sent, by method; for benchmarks and tests.
        self.requests: collections.Counter[str] = collections.Counter()
        #: Seconds that the API server's clock is ahead of this machine's.
        self.clock_difference = 0.0
        self._lock = threading.Lock()
        self._has_answered = False
        self._unreachable_at = -STARTING
        #: Seconds that the fastest answer so far took.
        self._fastest = float("inf")
        self._beside = concurrent.futures.ThreadPoolExecutor(BESIDE)

    def count(self, method: str) -> None:
        """A request is about to be sent."""
        with self._lock:
            self.requests[method] += 1

    @property
    def is_slow(self) -> bool:
        """Whether it is the line that takes long, whatever is asked."""
        return self._has_answered and self._fastest > SLOW

    def beside(self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        """As said in gateway.py."""
        return self._beside.submit(work) if self.is_slow else None

    def close(self) -> None:
        """Wait for what is still under way."""
        self._beside.shutdown()

    def note_outage(self) -> None:
        """The API server could not be reached just now."""
        self._unreachable_at = time.monotonic()

    def send(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             is_write: bool | None = None, accept: str = JSON) -> Json:
        """Send a request, again and again where that is safe, and return the answer.

        Raises Refused, AnswerLost (a write that may have landed), or RolloutError when the server cannot be reached.
        """
        is_write = method != "GET" if is_write is None else is_write
        renewed, began = False, time.monotonic()
        for limit in (*(BACKOFF if self._has_answered else FIRST_BACKOFF), None):
            if time.monotonic() - began > PATIENCE:
                limit = None
            credentials, asked_to_wait = self.connection.generation, 0.0
            try:
                status, headers, data = self.once(method, path, body, content_type, accept)
            except Unreachable as failure:
                self.note_outage()
                if failure.was_sent and is_write:
                    raise AnswerLost from failure
                if limit is None:
                    raise RolloutError(f"the API server at {self.connection.server} cannot be reached",
                                       why=str(failure), next_command="run the same task again when it is back") from failure
            else:
                if status < 300:
                    try:
                        answer = json.loads(data)
                    except ValueError as error:
                        if is_write:
                            raise AnswerLost from error
                        status = 500  # an answer that was cut: as good as none
                    else:
                        if isinstance(answer, dict) and {"kind", "gitVersion"} & answer.keys():  # /version alone has no kind
                            return answer
                        raise RolloutError(f"{self.connection.server} does not respond like a Kubernetes API server")
                if status == 401 and not renewed:
                    renewed = True
                    self.connection.renew(credentials)
                    continue
                is_starting = status in (401, 403) and time.monotonic() - self._unreachable_at < STARTING
                if not (status in RETRIED or is_starting) or limit is None:
                    raise Refused(self.connection.server, method, path, status, data)
                if status == 504 and is_write:
                    raise AnswerLost
                asked_to_wait = _retry_after(headers)
            time.sleep(max(limit * random.uniform(0.5, 1.0), asked_to_wait))
        raise RolloutError(f"{method} {path.partition('?')[0]} still failed after {len(BACKOFF) + 1} attempts")

    def get(self, collection: str, kind: str, namespace: str, name: str) -> Json | None:
        """An object by its name, None where there is none. Raises Refused; RolloutError where another object has come."""
        try:
            found = self.send("GET", f"{collection}/{quoted(name)}")
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        metadata = mapping(found, "metadata")
        if (found["kind"], text(metadata, "namespace"), text(metadata, "name")) != (kind, namespace, name):
            raise RolloutError(f"the API server answered with another object than the {kind} {namespace}/{name}",
                               where=self.connection.server, next_command="check host, proxy and kubeconfig")
        return found

    def once(self, method: str, path: str, body: t.Any = None, content_type: str = JSON,
             accept: str = JSON, most: int = 0, seconds: float = 0) -> tuple[int, t.Any, bytes]:
        """Status, headers and content of the answer to a single try. Raises Unreachable; RolloutError where no other try helps."""
        import urllib3

        headers = self.connection.headers()
        headers["Accept"], headers["Accept-Encoding"] = accept, "gzip"  # of answers of more than 128 KiB, as kubectl has it
        if body is not None:
            headers["Content-Type"] = content_type
        self.count(method)
        began = time.monotonic()
        try:
            # Nothing is to be encoded; but what urllib3 1.26 calls request() loses headers that are there twice.
            answer = self.connection.pool.request_encode_url(
                method, self.connection.server + path, body=None if body is None else _encoded(body), headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=seconds or ANSWER_TIMEOUT), retries=False,
                redirect=False, preload_content=False)
            data = whole(answer, most or MOST_BYTES, seconds)
        except urllib3.exceptions.LocationValueError as error:
            raise RolloutError(f"{self.connection.server} is not a valid API server address", why=brief(error)) from error
        except urllib3.exceptions.SSLError as error:
            raise RolloutError(f"the certificate of {self.connection.server} is not accepted", why=brief(error),
                               next_command="give ca_cert, or check validate_certs") from error
        except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError,
                urllib3.exceptions.ProxyError) as error:
            raise Unreachable(brief(error), was_sent=False) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(brief(error), was_sent=True) from error
        except ValueError as error:
            raise RolloutError(f"{self.connection.server} is not a valid API server address", why=brief(error)) from error
        if data is None:
            raise TooLarge(f"the answer to {method} {path.partition('?')[0]} has more than {most or MOST_BYTES} bytes",
                           where=self.connection.server)
        self._has_answered = True
        self._fastest = min(self._fastest, time.monotonic() - began)
        with contextlib.suppress(TypeError, ValueError):  # no date, or none that can be read
            self.clock_difference = email.utils.parsedate_to_datetime(answer.headers.get("Date", "")).timestamp() - time.time()
        return answer.status, answer.headers, data

    def page(self, path: str, query: Json, accept: str = JSON, goes_on: str = "") -> Json:
        """The first objects of a list, or those that it goes on with. Raises as send() does."""
        def ask(limit: int) -> Json:
            whole = {**query, "limit": limit, **({"continue": goes_on} if goes_on else {})}
            return self.send("GET", f"{path}?{urlencode(whole)}", accept=accept)

        try:
            return ask(PAGE)
        except TooLarge:
            return ask(SMALL_PAGE)

    def pages(self, path: str, query: Json, accept: str = JSON) -> tuple[list[Json], str]:
        """All objects of a kind, a limited number at a time, and the resourceVersion that a watch can go on from.

        Raises as send() does.
        """
        items: list[Json] = []
        goes_on, is_again = "", False
        while len(items) <= MOST_OBJECTS:
            try:
                page = self.page(path, query, accept, goes_on)
            except Refused as refused:
                if refused.status != 410 or is_again:
                    raise
                items, goes_on, is_again = [], "", True  # it goes on from a time that the server has forgotten: once more
                continue
            items += page.get("items") or []  # an empty list of metadata alone is a null
            goes_on = page["metadata"].get("continue")
            if not goes_on:
                return items, page["metadata"]["resourceVersion"]
        raise TooLarge(f"there are more than {MOST_OBJECTS} objects at {path}")


def whole(answer: t.Any, most: int, seconds: float = 0) -> bytes | None:
    """The content of an answer, None where it is longer than that. Raises what urllib3 does, and TimeoutError."""
    read = getattr(answer, "read1", answer.read)  # read1 has what has come, and does not wait for more; urllib3 1 lacks it
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
    """Seconds to wait after so many failures, one after the other."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1] * random.uniform(0.5, 1.0)


def _deed(write: Write) -> str:
    """What a write does, for the error that it is refused."""
    if isinstance(write, Create):
        return "its creation"
    if isinstance(write, Delete):
        return "its deletion"
    operations = t.cast(Patch, write).operations
    paths = {operation["path"]: operation.get("value") for operation in operations if operation["op"] != "test"}
    of_template = "closing" if paths.get(PRIORITY) == CLOSED else "opening"
    deeds = {"/spec/template": "the change of its template", "/spec/selector": "the change of its selector",
             "/spec/replicas": "the change of its size", PRIORITY: f"the {of_template} of its template",
             "/spec/strategy": "the change of its strategy", "/spec/paused": "pausing or resuming it"}
    return next((deed for path, deed in deeds.items() if path in paths), "the change of its annotations")


def _encoded(body: t.Any) -> bytes:
    """JSON as the API server writes it itself (Go's encoding/json): what a JSON patch tests, it compares byte by byte.

    So is the data of a ControllerRevision, which may not change. Half a surrogate pair, which is no text, becomes a question mark.
    """
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    for character, spelling in _GO_ESCAPES:
        text = text.replace(character, spelling)
    return text


def quoted(name: str) -> str:
    """A name as one segment of a path, whatever somebody has written where a name is expected."""
    return quote(name, safe="") if name.strip(".") else "%2E" * len(name)


#: Inside a JSON document these stand in texts only.
_GO_ESCAPES = tuple((character.encode(), f"\\u{ord(character):04x}".encode()) for character in "&<>\u2028\u2029")


def _retry_after(headers: t.Any) -> float:
    value = headers.get("Retry-After", "")
    return min(float(value), LONGEST_RETRY_AFTER) if value.isdigit() else 0.0


def brief(error: BaseException) -> str:
    """The innermost reason: urllib3 wraps it in the address of a Python object."""
    while isinstance(reason := getattr(error, "reason", None), BaseException):
        error = reason
    said = told(" ".join(str(error).split()))
    return said.rpartition(">: ")[2][:300] or type(error).__name__

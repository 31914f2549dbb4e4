# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define faults: functions that handle a client's request in place of the API server.

To add a fault, write a function, and append a row to FAULTS or WATCH_FAULTS.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from proxy import Exchange, Fault, Response

Json = dict[str, Any]
RequestFilter = Callable[[Exchange], bool]

OUTAGE = 0.5
"""Seconds for which connections are refused."""

DELAY = 5.0
"""Delay of a response in seconds."""

FOREIGN_ANNOTATION = "example.com/touched"
"""Annotation of another client."""


class Script:
    """Trigger a fault at the nth matching request (from 1). is_permanent: at all later ones too."""

    def __init__(
        self, number: int, applies: RequestFilter, fault: Fault, is_permanent: bool = False
    ) -> None:
        self._number, self._applies, self._fault, self._is_permanent = (
            number,
            applies,
            fault,
            is_permanent,
        )
        self._lock = threading.Lock()
        self.count = 0
        self.was_triggered = False

    def __call__(self, exchange: Exchange) -> Fault | None:
        if not self._applies(exchange):
            return None
        with self._lock:
            self.count += 1
            is_triggered = self.count == self._number or (
                self._is_permanent and self.count > self._number
            )
            self.was_triggered = self.was_triggered or is_triggered
        return self._fault if is_triggered else None


class WatchScript:
    """Trigger a fault at the nth event (from 1) of the first watch of ReplicationControllers."""

    def __init__(self, number: int,
                 fault: Callable[[Exchange, WatchScript], Iterator[bytes]]) -> None:
        self.number, self._fault = number, fault
        self._has_seen_watch = False
        self.was_triggered = False

    def __call__(self, exchange: Exchange) -> Fault | None:
        if self._has_seen_watch or not any_rc_watch(exchange):
            return None
        self._has_seen_watch = True
        return lambda exchange: exchange.stream(self._fault(exchange, self))

    def events(self, exchange: Exchange) -> Iterator[tuple[bytes, bool]]:
        for number, line in enumerate(exchange.events(), 1):
            is_nth = number == self.number
            self.was_triggered = self.was_triggered or is_nth
            yield line, is_nth


# Kills of the client


def kill_before(kill: Callable[[], None]) -> Fault:
    def fault(exchange: Exchange) -> None:
        kill()
        exchange.reset()

    return fault


def kill_after(kill: Callable[[], None]) -> Fault:
    def fault(exchange: Exchange) -> None:
        exchange.forward()
        kill()
        exchange.reset()

    return fault


# Responses of the server


def status_response(code: int, reason: str, message: str, *headers: tuple[str, str]) -> Response:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason,
            "code": code}
    return Response(code, [("Content-Type", "application/json"), *headers],
                    json.dumps(body).encode())


CONFLICT = status_response(409, "Conflict",
                           "Operation cannot be fulfilled on replicationcontrollers: the object "
                           "has been modified")
BUSY = status_response(429, "TooManyRequests",
                       "the server has received too many requests and has asked us to try "
                       "again later",
                       ("Retry-After", "1"))
INTERNAL = status_response(500, "InternalError",
                           "Internal error occurred: etcdserver: leader changed")
UNAVAILABLE = status_response(503, "ServiceUnavailable",
                              "the server is currently unable to handle the request")
TIMEOUT = status_response(504, "Timeout",
                          "Timeout: request did not complete within the allotted duration")
GONE_STATUS = json.loads(status_response(410, "Expired", "too old resource version: 1 (2)").body)


def respond(response: Response) -> Fault:
    return lambda exchange: exchange.reply(response)


def respond_after_forwarding(response: Response) -> Fault:
    def fault(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reply(response)

    return fault


def fail_json_patch_test(exchange: Exchange) -> None:
    """Add a failing test operation to a JSON patch, so that the server rejects it."""
    operations = [*json.loads(exchange.body),
                  {"op": "test", "path": "/metadata/uid", "value": "another"}]
    exchange.reply(exchange.forward(json.dumps(operations).encode()))


def change_object_before(exchange: Exchange) -> None:
    exchange.proxy.annotate(exchange.path, {FOREIGN_ANNOTATION: str(time.time())})
    exchange.reply(exchange.forward())


# The network


def reset(exchange: Exchange) -> None:
    exchange.reset()


def reset_after(exchange: Exchange) -> None:
    exchange.forward()
    exchange.reset()


def truncate(exchange: Exchange) -> None:
    exchange.reply(exchange.forward(), body_share=0.5)


def delay(exchange: Exchange) -> None:
    response = exchange.forward()
    time.sleep(DELAY)
    exchange.reply(response)


def refuse_connections(exchange: Exchange) -> None:
    """Forward the request, and refuse connections for OUTAGE seconds."""
    response = exchange.forward()
    exchange.proxy.stop_listening()
    threading.Timer(OUTAGE, exchange.proxy.listen).start()
    exchange.close_connection = True
    exchange.reply(response, ("Connection", "close"))


def refuse_connections_permanently(exchange: Exchange) -> None:
    response = exchange.forward()
    exchange.proxy.stop_listening()
    exchange.close_connection = True
    exchange.reply(response, ("Connection", "close"))


# Watches


def expire(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    for line, is_nth in script.events(exchange):
        if is_nth:
            yield _event("ERROR", GONE_STATUS)
            return
        yield line


def close(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    for line, is_nth in script.events(exchange):
        if is_nth:
            return
        yield line


def break_line(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    for line, is_nth in script.events(exchange):
        if is_nth:
            yield line[: len(line) // 2]
            exchange.reset()
            return
        yield line


def stall(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """Send no events from the nth on, but keep the connection open."""
    for line, _is_nth in script.events(exchange):
        if not script.was_triggered:
            yield line


def duplicate(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """Send the nth and each later event twice, followed by a bookmark."""
    for line, _is_nth in script.events(exchange):
        yield line
        if script.was_triggered:
            version = json.loads(line)["object"]["metadata"]["resourceVersion"]
            bookmark = {"kind": "ReplicationController", "apiVersion": "v1",
                        "metadata": {"resourceVersion": version}}
            yield line
            yield _event("BOOKMARK", bookmark)


def _event(event_type: str, item: Json) -> bytes:
    return json.dumps({"type": event_type, "object": item}).encode() + b"\n"


# Filters of requests


def any_request_except_watches(exchange: Exchange) -> bool:
    return not exchange.is_watch


def any_write(exchange: Exchange) -> bool:
    return exchange.is_write


def any_write_except_events(exchange: Exchange) -> bool:
    """Return whether the request writes an object other than an Event."""
    return exchange.is_write and not exchange.path.endswith("/events")


def any_json_patch(exchange: Exchange) -> bool:
    return (exchange.is_write
            and exchange.headers.get("Content-Type") == "application/json-patch+json")


def any_write_except_post(exchange: Exchange) -> bool:
    return exchange.is_write and exchange.command != "POST"


def any_rc_watch(exchange: Exchange) -> bool:
    return exchange.is_watch and "/replicationcontrollers" in exchange.path


@dataclass(frozen=True)
class FaultKind:
    name: str
    fault: Fault
    applies: RequestFilter = any_request_except_watches


FAULTS = [
    FaultKind("409", respond(CONFLICT), any_write),
    FaultKind("422, failed test operation", fail_json_patch_test, any_json_patch),
    FaultKind("object changed before the write", change_object_before, any_write_except_post),
    FaultKind("429 with Retry-After", respond(BUSY)),
    FaultKind("500", respond(INTERNAL)),
    FaultKind("500 after the write took effect", respond_after_forwarding(INTERNAL), any_write),
    FaultKind("503", respond(UNAVAILABLE)),
    FaultKind("504", respond(TIMEOUT)),
    FaultKind("504 after the write took effect", respond_after_forwarding(TIMEOUT), any_write),
    FaultKind("connection refused", refuse_connections),
    FaultKind("reset before the server receives the request", reset),
    FaultKind("reset after the request took effect", reset_after),
    FaultKind("answer 5 s late", delay),
    FaultKind("answer truncated", truncate),
    FaultKind("watch refused with 410",
              respond(Response(410, [], json.dumps(GONE_STATUS).encode())),
              any_rc_watch),
    FaultKind("watch refused with 503", respond(UNAVAILABLE), any_rc_watch),
]

PERMANENT_FAULTS = [
    FaultKind("409", respond(CONFLICT), any_write),
    FaultKind("422, failed test operation", fail_json_patch_test, any_json_patch),
    FaultKind("429 with Retry-After", respond(BUSY)),
    FaultKind("503", respond(UNAVAILABLE)),
    FaultKind("connection refused", refuse_connections_permanently),
    FaultKind("reset before the server receives the request", reset),
    FaultKind("reset after the request took effect", reset_after),
    FaultKind("answer truncated", truncate),
]

WATCH_FAULTS = {
    "watch expires (410)": expire,
    "watch closed": close,
    "watch closed within a line": break_line,
    "watch half-open": stall,
    "duplicate events, with bookmarks": duplicate,
}

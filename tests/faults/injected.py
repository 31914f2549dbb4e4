# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Inject faults: each fault is a function that handles a request in place of the API server.

A script selects a request by number, or all requests from a number on. To add a fault, write its
function, and give it a row in FAULTS (or in WATCH_FAULTS).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from proxy import Answer, Exchange, Fault

Json = dict[str, Any]
Applies = Callable[[Exchange], bool]

MOMENT = 0.5
"""Seconds for which nobody listens."""

DELAY = 5.0
"""Seconds by which an answer is late."""

TOUCHED = "example.com/touched"
"""An annotation that somebody else writes on the controllers."""


class Script:
    """Trigger a fault at the request of this number (from 1), or at all requests from it on.

    Only requests that the fault applies to are counted.
    """

    def __init__(self, number: int, applies: Applies, fault: Fault, for_good: bool = False) -> None:
        self._number, self._applies, self._fault, self._for_good = number, applies, fault, for_good
        self._lock = threading.Lock()
        #: The number of such requests so far.
        self.count = 0
        #: Whether the fault has been triggered.
        self.hit = False

    def __call__(self, exchange: Exchange) -> Fault | None:
        if not self._applies(exchange):
            return None
        with self._lock:
            self.count += 1
            happens = self.count == self._number or (self._for_good and self.count > self._number)
            self.hit = self.hit or happens
        return self._fault if happens else None


class WatchScript:
    """Trigger a fault at the event of this number (from 1) in the first watch of controllers."""

    def __init__(self, number: int,
                 fault: Callable[[Exchange, WatchScript], Iterator[bytes]]) -> None:
        self.number, self._fault = number, fault
        self._is_over = False
        self.hit = False

    def __call__(self, exchange: Exchange) -> Fault | None:
        if self._is_over or not any_watch(exchange):
            return None
        self._is_over = True
        return lambda exchange: exchange.stream(self._fault(exchange, self))

    def until(self, exchange: Exchange) -> Iterator[tuple[bytes, bool]]:
        """Yield the events up to this number, each with whether it is the last."""
        for number, line in enumerate(exchange.events(), 1):
            is_it = number == self.number
            self.hit = self.hit or is_it
            yield line, is_it


# The client dies


def before(kill: Callable[[], None]) -> Fault:
    """Kill the client before the request reaches the server."""

    def fault(exchange: Exchange) -> None:
        kill()
        exchange.reset()

    return fault


def after(kill: Callable[[], None]) -> Fault:
    """Kill the client before the server's response arrives."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        kill()
        exchange.reset()

    return fault


# Responses of the server


def status(code: int, reason: str, message: str, *headers: tuple[str, str]) -> Answer:
    """Return an error in the API server's form."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason,
            "code": code}
    return Answer(code, [("Content-Type", "application/json"), *headers], json.dumps(body).encode())


CONFLICT = status(409, "Conflict",
                  "Operation cannot be fulfilled on replicationcontrollers: the object has been "
                  "modified")
BUSY = status(429, "TooManyRequests",
              "the server has received too many requests and has asked us to try again later",
              ("Retry-After", "1"))
INTERNAL = status(500, "InternalError", "Internal error occurred: etcdserver: leader changed")
UNAVAILABLE = status(503, "ServiceUnavailable",
                     "the server is currently unable to handle the request")
TIMEOUT = status(504, "Timeout", "Timeout: request did not complete within the allotted duration")
GONE = json.loads(status(410, "Expired", "too old resource version: 1 (2)").body)


def answer(what: Answer) -> Fault:
    """Respond with this status in the server's place: the request has no effect."""
    return lambda exchange: exchange.reply(what)


def answer_after(what: Answer) -> Fault:
    """Respond with this status after the request has taken effect."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reply(what)

    return fault


def failed_test(exchange: Exchange) -> None:
    """Let the server refuse a JSON patch: add a failing test to the patch."""
    operations = [*json.loads(exchange.body),
                  {"op": "test", "path": "/metadata/uid", "value": "another"}]
    exchange.reply(exchange.forward(json.dumps(operations).encode()))


def changed(exchange: Exchange) -> None:
    """Write to the object as another client first; the server decides."""
    exchange.proxy.change(exchange.path, {TOUCHED: str(time.time())})
    exchange.reply(exchange.forward())


# The network


def reset(exchange: Exchange) -> None:
    """The connection breaks before the request has reached the server."""
    exchange.reset()


def reset_after(exchange: Exchange) -> None:
    """The connection breaks after the request has taken effect."""
    exchange.forward()
    exchange.reset()


def cut(exchange: Exchange) -> None:
    """Half of the answer's body comes, after the request has taken effect."""
    exchange.reply(exchange.forward(), only=0.5)


def late(exchange: Exchange) -> None:
    """The answer comes late."""
    late_answer = exchange.forward()
    time.sleep(DELAY)
    exchange.reply(late_answer)


def refused(exchange: Exchange) -> None:
    """Respond, then refuse connections for a moment: the next request is refused."""
    last = exchange.forward()
    exchange.proxy.stop_listening()
    threading.Timer(MOMENT, exchange.proxy.listen).start()
    exchange.close_connection = True
    exchange.reply(last, ("Connection", "close"))


def refused_for_good(exchange: Exchange) -> None:
    """Refuse connections for good; World.run lets the proxy listen again."""
    last = exchange.forward()
    exchange.proxy.stop_listening()
    exchange.close_connection = True
    exchange.reply(last, ("Connection", "close"))


# Watches


def expires(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """410 in place of the event, as when the server has forgotten the resourceVersion."""
    for line, is_it in script.until(exchange):
        if is_it:
            yield _event("ERROR", GONE)
            return
        yield line


def closes(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """The server ends the watch in place of the event."""
    for line, is_it in script.until(exchange):
        if is_it:
            return
        yield line


def breaks(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """The connection breaks in the middle of the event."""
    for line, is_it in script.until(exchange):
        if is_it:
            yield line[: len(line) // 2]
            exchange.reset()
            return
        yield line


def stalls(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """Stall half-open: send no event from this one on, without closing the connection."""
    for line, _is_it in script.until(exchange):
        if not script.hit:
            yield line


def doubles(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """Send every event from this one on twice, followed by a bookmark."""
    for line, _is_it in script.until(exchange):
        yield line
        if script.hit:
            version = json.loads(line)["object"]["metadata"]["resourceVersion"]
            mark = {"kind": "ReplicationController", "apiVersion": "v1",
                    "metadata": {"resourceVersion": version}}
            yield line
            yield _event("BOOKMARK", mark)


def _event(kind: str, what: Json) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


# Requests that a fault applies to


def any_request(exchange: Exchange) -> bool:
    return not exchange.is_watch


def any_write(exchange: Exchange) -> bool:
    return exchange.is_write


def any_step(exchange: Exchange) -> bool:
    """Select writes that change the update; a client killed at an Event dies between two steps."""
    return exchange.is_write and not exchange.path.endswith("/events")


def any_json_patch(exchange: Exchange) -> bool:
    return (exchange.is_write
            and exchange.headers.get("Content-Type") == "application/json-patch+json")


def any_change(exchange: Exchange) -> bool:
    # a created object does not exist before
    return exchange.is_write and exchange.command != "POST"


def any_watch(exchange: Exchange) -> bool:
    return exchange.is_watch and "/replicationcontrollers" in exchange.path


@dataclass(frozen=True)
class Kind:
    """Fault with its name in the table, and the requests that the fault applies to."""

    name: str
    fault: Fault
    applies: Applies = any_request


FAULTS = [
    Kind("409", answer(CONFLICT), any_write),
    Kind("422, a test has failed", failed_test, any_json_patch),
    Kind("the object was changed before", changed, any_change),
    Kind("429 with Retry-After", answer(BUSY)),
    Kind("500", answer(INTERNAL)),
    Kind("500 though it took effect", answer_after(INTERNAL), any_write),
    Kind("503", answer(UNAVAILABLE)),
    Kind("504", answer(TIMEOUT)),
    Kind("504 though it took effect", answer_after(TIMEOUT), any_write),
    Kind("connection refused", refused),
    Kind("reset before the server has it", reset),
    Kind("reset after it took effect", reset_after),
    Kind("answer 5 s late", late),
    Kind("answer cut", cut),
    Kind("watch refused with 410", answer(Answer(410, [], json.dumps(GONE).encode())), any_watch),
    Kind("watch refused with 503", answer(UNAVAILABLE), any_watch),
]

FOR_GOOD = [
    Kind("409", answer(CONFLICT), any_write),
    Kind("422, a test has failed", failed_test, any_json_patch),
    Kind("429 with Retry-After", answer(BUSY)),
    Kind("503", answer(UNAVAILABLE)),
    Kind("connection refused", refused_for_good),
    Kind("reset before the server has it", reset),
    Kind("reset after it took effect", reset_after),
    Kind("answer cut", cut),
]

WATCH_FAULTS = {
    "watch expires (410)": expires,
    "watch closed": closes,
    "watch broken in the middle of a line": breaks,
    "watch half-open": stalls,
    "events doubled, with bookmarks": doubles,
}

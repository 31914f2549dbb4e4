# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What can go wrong with one request: each fault is a function that is given the request in place of the API server.

A script chooses the request: the one of a number, or all from that number on. To add a fault, write its function and give it
a row in FAULTS (or in WATCH_FAULTS).
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
    """Let a fault happen to the request of a number (from 1) among those that it applies to, or to all from that on."""

    def __init__(self, number: int, applies: Applies, fault: Fault, for_good: bool = False) -> None:
        self._number, self._applies, self._fault, self._for_good = number, applies, fault, for_good
        self._lock = threading.Lock()
        #: Requests it applies to, so far.
        self.count = 0
        #: Whether it has happened.
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
    """Let a fault happen at the event of a number (from 1) of the first watch on the controllers; later ones are left alone."""

    def __init__(self, number: int, fault: Callable[[Exchange, WatchScript], Iterator[bytes]]) -> None:
        self.number, self._fault = number, fault
        self._is_over = False
        self.hit = False

    def __call__(self, exchange: Exchange) -> Fault | None:
        if self._is_over or not any_watch(exchange):
            return None
        self._is_over = True
        return lambda exchange: exchange.stream(self._fault(exchange, self))

    def until(self, exchange: Exchange) -> Iterator[tuple[bytes, bool]]:
        """The events up to that one, and whether this is it."""
        for number, line in enumerate(exchange.events(), 1):
            is_it = number == self.number
            self.hit = self.hit or is_it
            yield line, is_it


# The client dies


def before(kill: Callable[[], None]) -> Fault:
    """Kill the client when the request has come, which never reaches the server."""

    def fault(exchange: Exchange) -> None:
        kill()
        exchange.reset()

    return fault


def after(kill: Callable[[], None]) -> Fault:
    """Kill the client when the server has answered; the client never hears of it."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        kill()
        exchange.reset()

    return fault


# Answers that the server gives


def status(code: int, reason: str, message: str, *headers: tuple[str, str]) -> Answer:
    """An error as the API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
            "code": code}
    return Answer(code, [("Content-Type", "application/json"), *headers], json.dumps(body).encode())


CONFLICT = status(409, "Conflict", "Operation cannot be fulfilled on replicationcontrollers: the object has been modified")
BUSY = status(429, "TooManyRequests", "the server has received too many requests and has asked us to try again later",
              ("Retry-After", "1"))
INTERNAL = status(500, "InternalError", "Internal error occurred: etcdserver: leader changed")
UNAVAILABLE = status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
TIMEOUT = status(504, "Timeout", "Timeout: request did not complete within the allotted duration")
GONE = json.loads(status(410, "Expired", "too old resource version: 1 (2)").body)


def answer(what: Answer) -> Fault:
    """That answer instead of the server's: the request has no effect."""
    return lambda exchange: exchange.reply(what)


def answer_after(what: Answer) -> Fault:
    """That answer, though the request has taken effect."""

    def fault(exchange: Exchange) -> None:
        exchange.forward()
        exchange.reply(what)

    return fault


def failed_test(exchange: Exchange) -> None:
    """The server's own refusal of a JSON patch: it gets the patch with one more test, which fails."""
    operations = [*json.loads(exchange.body), {"op": "test", "path": "/metadata/uid", "value": "another"}]
    exchange.reply(exchange.forward(json.dumps(operations).encode()))


def changed(exchange: Exchange) -> None:
    """Somebody else has written on the object since the client has seen it; the server judges."""
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
    """The answer comes, and then nobody listens for a moment: the next request is refused."""
    last = exchange.forward()
    exchange.proxy.stop_listening()
    threading.Timer(MOMENT, exchange.proxy.listen).start()
    exchange.close_connection = True
    exchange.reply(last, ("Connection", "close"))


def refused_for_good(exchange: Exchange) -> None:
    """The same for ever; World.run lets the proxy listen again."""
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
    """Half-open: from the event on nothing comes any more, and nobody says so."""
    for line, _is_it in script.until(exchange):
        if not script.hit:
            yield line


def doubles(exchange: Exchange, script: WatchScript) -> Iterator[bytes]:
    """From the event on each comes twice, and a bookmark after it."""
    for line, _is_it in script.until(exchange):
        yield line
        if script.hit:
            version = json.loads(line)["object"]["metadata"]["resourceVersion"]
            mark = {"kind": "ReplicationController", "apiVersion": "v1", "metadata": {"resourceVersion": version}}
            yield line
            yield _event("BOOKMARK", mark)


def _event(kind: str, what: Json) -> bytes:
    return json.dumps({"type": kind, "object": what}).encode() + b"\n"


# Which requests they apply to


def any_request(exchange: Exchange) -> bool:
    return not exchange.is_watch


def any_write(exchange: Exchange) -> bool:
    return exchange.is_write


def any_step(exchange: Exchange) -> bool:
    """A write that counts: an Event only tells of one, so that a client killed at it dies between two steps."""
    return exchange.is_write and not exchange.path.endswith("/events")


def any_json_patch(exchange: Exchange) -> bool:
    return exchange.is_write and exchange.headers.get("Content-Type") == "application/json-patch+json"


def any_change(exchange: Exchange) -> bool:
    return exchange.is_write and exchange.command != "POST"  # what is created is not there before


def any_watch(exchange: Exchange) -> bool:
    return exchange.is_watch and "/replicationcontrollers" in exchange.path


@dataclass(frozen=True)
class Kind:
    """A fault with its name in the table, and what it can happen to."""

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

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many controllers of a namespace in one task: which, in which order, how many at once, and when no further one is begun.

Each is rolled by a driver of its own, in a thread of its own: they wait on the API server, not on each other, and one that waits
for its Lease or for a request's next try keeps nobody. They share one gateway, and with it one watch.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import math
import threading
import typing as t

from ..cluster.gateway import Gateway, KubernetesGateway
from ..model import identity
from ..model.errors import RolloutError
from ..model.observed import Controller
from ..model.request import Request, State, repository, size
from ..model.steps import AUTOSCALER, Write
from ..model.thresholds import Size
from . import driver

Json = dict[str, t.Any]

#: What only one controller can be given.
FOR_ONE = ("next_name", "definition", "src", "to_revision")
#: Seconds after which a driver that has heard nothing looks up, and after which the watch is asked for news.
LOOK_UP, NEWS = 1.0, 0.1
#: What is no step comes more seldom than from one driver alone: from so many it would be a load of its own.
INTERVALS = driver.Intervals(renew=7.0, look_at_pods=5.0, events=20.0, joins_events=True)
#: Names in a sentence.
NAMES_TOLD = 5


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Which controllers a task is for, and how they are rolled together."""

    #: By name, in the order of the list; empty where labels choose them.
    names: tuple[str, ...]
    #: Label selectors (kubectl's syntax), all of which must match.
    label_selectors: tuple[str, ...]
    #: Controllers rolled at the same time.
    concurrency: int
    #: Failures, or percent of the controllers (rounded down), that do not keep further ones from being begun.
    max_failures: Size
    #: Annotation whose value is the place in the order, or None.
    order_annotation: str | None

    @classmethod
    def from_params(cls, params: Json) -> Fleet | None:
        """Read a module's parameters; None for a task that names one controller.

        Raises RolloutError with one sentence for whatever makes no sense.
        """
        given = [option for option in ("name", "names", "label_selectors") if params.get(option)]
        if len(given) != 1:
            raise RolloutError(f"{' and '.join(given) or 'no controller'} is given: give one of name, names and label_selectors")
        if given == ["name"]:
            return None
        for option in FOR_ONE:
            if params.get(option):
                raise RolloutError(f"{option} is for one controller: give its name")
        concurrency = params.get("concurrency") or 5
        if concurrency < 1:
            raise RolloutError(f"concurrency {concurrency} is no number of controllers above 0")
        return cls(
            names=tuple(dict.fromkeys(params.get("names") or ())),
            label_selectors=tuple(params.get("label_selectors") or ()),
            concurrency=concurrency,
            max_failures=size("max_failures", params.get("max_failures") or "0"),
            order_annotation=params.get("order_annotation") or None,
        )

    def requests(self, params: Json, gateway: KubernetesGateway) -> list[Request]:
        """One request for each controller, in the order in which they are begun.

        A controller that carries the new pods of an update stands for the one that is updated. Raises RolloutError.
        """
        wishes = {**params, "name": None, "names": None}
        controllers = gateway.controllers()
        found = self.names or [controllers[name].partner or name if controllers[name].is_successor else name
                               for name in sorted(gateway.names(self.label_selectors)) if name in controllers]
        requests = [Request.from_params({**wishes, "name": name}) for name in dict.fromkeys(found)]
        if not requests:
            raise RolloutError(f"no {gateway.kind} matches {','.join(self.label_selectors)}",
                               where=f"namespace {params.get('namespace') or 'default'}")
        return sorted(requests, key=lambda request: self._place(controllers.get(request.name)))

    def _place(self, controller: Controller | None) -> tuple[float, str]:
        """Numbers by their value, then texts, then those that have none."""
        text = controller.annotations.get(self.order_annotation or "", "") if controller else ""
        try:
            return (float(text), "")
        except ValueError:
            return (math.inf, text or "\U0010ffff")

    def why_skipped(self, request: Request, controller: Controller | None) -> str:
        """Why a controller that its labels have chosen is not meant, or "".

        An image is for those that run another one of its repository; a rollback for those that an update is in progress of.
        """
        if self.names or controller is None:
            return ""
        if request.state is State.ROLLED_BACK and not controller.is_marked:
            return "no update is in progress"
        image = request.images.get("")
        if image and repository(image) not in map(repository, controller.images.values()):
            return f"it does not run {repository(image)}"
        return ""


class _Rolling:
    """The controllers of one task, one after the other or at once, and what has become of each."""

    def __init__(self, fleet: Fleet, requests: list[Request], controllers: t.Mapping[str, Controller],
                 roll: t.Callable[[Request], Json]) -> None:
        self.fleet, self.controllers, self.roll = fleet, controllers, roll
        self.failures = 0
        self.failures_allowed = fleet.max_failures.of(len(requests), round_up=False)

    def one(self, request: Request) -> Json:
        """The result of one controller."""
        entry = {"name": request.name, "changed": False, "failed": False, "skipped": False}
        if self.failures > self.failures_allowed:
            return entry | {"skipped": True, "msg": f"not begun, as {self.failures} of the others have failed"}
        if why := self.fleet.why_skipped(request, self.controllers.get(request.name)):
            return entry | {"skipped": True, "msg": why}
        try:
            return entry | self.roll(request)
        except RolloutError as error:
            self.failures += 1
            return entry | error.as_result() | {"failed": True}


def run(fleet: Fleet, requests: list[Request], gateway: KubernetesGateway, clock: driver.Clock,
        say: t.Callable[[str], None] = lambda line: None, stop: t.Callable[[], str] = lambda: "") -> Json:
    """Bring all controllers to what is asked for and return the task's result; one driver.run() for each.

    Raises RolloutError that has all results when one of them fails.
    """
    shared = _Shared(gateway, [request.name for request in requests])

    def roll(request: Request) -> Json:
        view = t.cast(Gateway, shared.views[request.name])
        return driver.run(request, view, clock, lambda line: say(f"{request.name}: {line}"), stop, INTERVALS)

    rolling = _Rolling(fleet, requests, gateway.controllers(), roll)
    with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
        futures = [executor.submit(rolling.one, request) for request in requests]
        try:
            for future in futures:
                while concurrent.futures.wait([future], NEWS if shared.broken else 0).not_done:
                    shared.pass_on_news(NEWS)
        finally:
            shared.end(RolloutError("stopped"))  # before the executor waits for them
        return _result([future.result() for future in futures])


def simulate(fleet: Fleet, requests: list[Request], gateway: KubernetesGateway) -> Json:
    """Check mode: the same, one after the other, each on a simulated cluster that starts as the real one stands."""

    rolling = _Rolling(fleet, requests, gateway.controllers(), lambda request: driver.simulate(request, gateway))
    return _result([rolling.one(request) for request in requests])


def look(fleet: Fleet, requests: list[Request], gateway: KubernetesGateway, clock: driver.Clock) -> Json | None:
    """The task's result if there is nothing to do for any of them, None if there is. Raises RolloutError."""

    class _SomethingToDo(Exception):
        pass

    def roll(request: Request) -> Json:
        result = driver.look(request, gateway, clock)
        if result is None:
            raise _SomethingToDo
        return result

    rolling = _Rolling(fleet, requests, gateway.controllers(), roll)
    try:
        return _result([rolling.one(request) for request in requests])
    except _SomethingToDo:
        return None


def _result(results: list[Json]) -> Json:
    """All results as one. Raises RolloutError when one of them is a failure."""
    failed = [each for each in results if each["failed"]]
    skipped = [each["name"] for each in results if each["skipped"]]
    well = [each["name"] for each in results if not each["failed"] and not each["skipped"]]
    changed = sum(each["changed"] for each in results)
    diffs = [{**diff, "before_header": each["name"], "after_header": each["name"]}
             for each in results if (diff := each.pop("diff", {}))]
    warnings = dict.fromkeys(f"{each['name']}: {warning}" for each in results for warning in each.pop("warnings", ()))
    whole = {"changed": bool(changed), "results": results, "warnings": list(warnings)}
    told = [f"{len(well)} of {len(results)} controllers are as wanted ({changed} changed)"]
    if skipped:
        told.append(f"{len(skipped)} skipped ({_some(skipped)})")
    if not failed:
        return whole | {"msg": ", ".join(told), "diff": diffs}
    first = failed[0]
    error = RolloutError(f"{len(failed)} of {len(results)} controllers failed ({_some([each['name'] for each in failed])})",
                         why=f"the first: {first['msg']}")
    error.standing, error.progress = ", ".join(told), whole
    error.causes = [cause for each in failed for cause in each["failure"]["causes"]]
    raise error


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_TOLD
    return ", ".join(names[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")


class _Shared:
    """One gateway for many drivers: whoever asked first has asked for all, and news wake only those whom they concern."""

    def __init__(self, gateway: KubernetesGateway, names: list[str]) -> None:
        self.gateway = gateway
        self.broken: RolloutError | None = None
        self.views = {name: _View(self) for name in names}
        self._lock = threading.Lock()
        self._objects: dict[str, list[Json] | None] = {}
        self._rules: list[list[Json] | None] = []
        self._revisions: list[Json] | None = None
        #: The uids of those that have been told of these revisions.
        self._told: set[str] = set()

    def pass_on_news(self, seconds: float) -> None:
        """Wait for news that long, and wake the drivers of what they are about."""
        if self.broken:
            return
        try:
            heard = self.gateway.wait(seconds)
        except RolloutError as error:
            self.end(error)
            return
        for name in self.views.keys() & heard if heard is not None else self.views:
            self.views[name].woken.set()

    def end(self, error: RolloutError) -> None:
        """There will be no more news: every driver that still waits for some ends with that error."""
        self.broken = self.broken or error
        for view in self.views.values():
            view.woken.set()

    def rules(self) -> list[Json] | None:
        with self._lock:
            if not self._rules:
                self._rules = [self.gateway.rules()]
            return self._rules[0]

    def objects(self, resource: str) -> list[Json] | None:
        with self._lock:
            if resource not in self._objects:
                self._objects[resource] = self.gateway.objects(resource)
            return self._objects[resource]

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Asked for once for all controllers, and again by the one whose write was refused."""
        with self._lock:
            if self._revisions is None or self._told.issuperset(uids):
                self._revisions, self._told = self.gateway.revisions(()), set()
            self._told.update(uids)
            if self._revisions is None:
                return None
            return [item for item in self._revisions if item["metadata"]["labels"][identity.HISTORY] in uids]

    def forget(self, resource: str) -> None:
        with self._lock:
            self._objects.pop(resource, None)


class _View:
    """What the driver of one controller has for a gateway."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self.woken = threading.Event()
        self.rules, self.objects, self.revisions = shared.rules, shared.objects, shared.revisions

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._shared.gateway, name)

    def wait(self, seconds: float) -> None:
        self.woken.wait(max(seconds, LOOK_UP))
        self.woken.clear()
        if self._shared.broken:
            raise copy.copy(self._shared.broken)

    def write(self, write: Write) -> bool:
        try:
            return self._shared.gateway.write(write)
        finally:
            if write.kind == AUTOSCALER:
                self._shared.forget("horizontalpodautoscalers")

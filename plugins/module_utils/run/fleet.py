# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Many controllers of a namespace in one task: which, in which order, how many at once, and when no further one is begun.

All are looked at before the first one is begun: what is wrong with a name is told while nothing is changed yet. Then each is
rolled by a driver of its own, in a thread of its own: they wait on the API server, not on each other, and one that waits for its
Lease or for a request's next try keeps nobody. They share one gateway, and with it one watch.
"""

from __future__ import annotations

import concurrent.futures
import copy
import dataclasses
import math
import threading
import typing as t

from ..cluster.gateway import RealGateway
from ..cluster.kubernetes import KubernetesGateway
from ..flows.flow import Flow
from ..model import marks
from ..model.errors import InternalError, RolloutError
from ..model.fields import Json
from ..model.identity import digest
from ..model.kinds import Kind, State
from ..model.label_selectors import matches
from ..model.observed import Controller
from ..model.options import CONCURRENCY, MAX_FAILURES, request_from, size
from ..model.request import Request
from ..model.steps import AUTOSCALER, Create, Merge, Patch, Write
from ..model.template import containers_with, repository
from ..model.thresholds import Size
from . import driver
from .clock import Clock, Intervals

#: What only one controller can be given.
FOR_ONE = ("next_name", "definition", "src", "to_revision")
#: Seconds after which a driver that has heard nothing looks up, and after which the watch is asked for news.
LOOK_UP, NEWS = 1.0, 0.1
#: What is no step comes more seldom than from one driver alone: from so many it would be a load of its own.
INTERVALS = Intervals(renew=7.0, look_at_pods=5.0, events=20.0, joins_events=True)
#: Names, or reasons, in a sentence.
SOME = 5


class Group(t.NamedTuple):
    """The controllers of one kind: the way they are rolled, and where they are."""

    flow: Flow
    gateway: KubernetesGateway


Groups: t.TypeAlias = t.Mapping[Kind, Group]


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
    #: The kinds that are chosen from, in the order in which they are begun.
    kinds: tuple[Kind, ...]

    @classmethod
    def from_params(cls, params: Json) -> Fleet | None:
        """Read a module's parameters; None for a task that names one controller.

        Raises RolloutError with one sentence for whatever makes no sense.
        """
        given = [option for option in ("name", "names", "label_selectors") if params.get(option)]
        if len(given) != 1:
            raise RolloutError(f"give exactly one of name, names and label_selectors (given: {' and '.join(given) or 'none'})")
        if params.get("kinds"):
            if params.get("kind"):
                raise RolloutError("kind and kinds cannot be combined: give only one of them")
            if given != ["label_selectors"]:
                raise RolloutError(f"kinds can only be used with label_selectors: give kind with {given[0]}")
        if given == ["name"]:
            return None
        for option in FOR_ONE:
            if params.get(option):
                raise RolloutError(f"{option} can only be used with a single controller: give name")
        concurrency = CONCURRENCY if params.get("concurrency") is None else params["concurrency"]
        if concurrency < 1:
            raise RolloutError(f"concurrency must be at least 1, not {concurrency}")
        return cls(
            names=tuple(dict.fromkeys(params.get("names") or ())),
            label_selectors=tuple(params.get("label_selectors") or ()),
            concurrency=concurrency,
            max_failures=size("max_failures", params.get("max_failures") or MAX_FAILURES),
            order_annotation=params.get("order_annotation") or None,
            kinds=tuple(dict.fromkeys(map(Kind, params.get("kinds") or [params.get("kind") or Request.kind]))),
        )

    def requests(self, params: Json, groups: Groups) -> list[Request]:
        """One request for each controller, in the order in which they are begun. Raises RolloutError."""
        requests = [request_from({**params, "kind": kind, "name": name})
                    for kind in self.kinds for name in self.names or (*self._chosen(groups[kind].gateway),
                                                                      *self._gone(params, kind, groups[kind]))]
        if not requests:
            raise RolloutError(f"no {' or '.join(self.kinds)} matches {','.join(self.label_selectors)}",
                               where=f"namespace {params.get('namespace') or Request.namespace}")
        controllers = {kind: groups[kind].gateway.controllers() for kind in self.kinds}
        return sorted(requests, key=lambda request: self._place(controllers[request.kind].get(request.name)))

    def _chosen(self, gateway: KubernetesGateway) -> list[str]:
        """The names of those that have the labels.

        A controller that carries the new pods of an update stands for the one that is updated: that is chosen too, or gone. Of
        several kinds, one that is a part of another object is not meant.
        """
        controllers = gateway.controllers()
        chosen = [name for name in sorted(gateway.names(self.label_selectors)) if name in controllers and not (
            len(self.kinds) > 1 and controllers[name].owner and gateway.kind.is_made_by_others)]
        stand_for = {name: controllers[name].primary(controllers) or name for name in chosen}
        outside = controllers.keys() - set(chosen)
        return list(dict.fromkeys(name if primary in outside else primary for name, primary in stand_for.items()))

    def _gone(self, params: Json, kind: Kind, group: Group) -> list[str]:
        """Return the names of those that an update has deleted before it was interrupted, and that had the labels."""
        begun = group.flow.begun(request_from({**params, "kind": kind, "name": "any"}), group.gateway)
        existing = group.gateway.controllers()
        return sorted(name for name, labels in begun.items() if name not in existing and matches(self.label_selectors, labels))

    def _place(self, controller: Controller | None) -> tuple[float, str]:
        """Numbers by their value, then texts (and nan and inf, which are no place in an order), then those that have none."""
        text = controller.annotations.get(self.order_annotation or "", "") if controller else ""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        return (number, "") if math.isfinite(number) else (math.inf, text or "\U0010ffff")

    def why_skipped(self, request: Request, controller: Controller | None, is_idle: bool) -> str:
        """Why a controller that its labels have chosen is not meant, or "".

        An image is for those that run another one of its repository; a rollback for those that an update is in progress of. What
        belongs to another object is updated with that.
        """
        if self.names or controller is None:
            return ""
        if controller.owner and controller.kind.is_made_by_others:
            return f"it belongs to {controller.owner}"
        if is_idle:
            return "no update is in progress"
        image = request.images.get("")
        if image and not containers_with(image, controller.template):
            return f"it does not run {repository(image)}"
        return ""


def run(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock,
        say: t.Callable[[str], None] = lambda line: None, stop: t.Callable[[], str] = lambda: "") -> Json:
    """Bring all controllers to what is asked for and return the task's result; one driver.run() for each.

    Raises RolloutError that has all results when one of them fails.
    """
    rolling = _Rolling(fleet, requests, groups, clock)

    def roll(request: Request) -> Json:
        shared = rolling.shared[request.kind]
        return driver.run(shared.flow, request, shared.view(request), clock, lambda line: say(f"{rolling.called(request)}: {line}"),
                          stop, INTERVALS)

    with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
        futures = [executor.submit(rolling.begin, request, roll) for request in rolling.left]
        try:
            for future in futures:
                while concurrent.futures.wait([future], NEWS if rolling.is_broken else 0).not_done:
                    rolling.pass_on_news()
        finally:
            rolling.end(RolloutError("stopped"))  # before the executor waits for them
        for future in futures:
            future.result()
    return rolling.result()


def simulate(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> Json:
    """Check mode: the same, one after the other, each on a simulated cluster that starts as the real one stands."""
    rolling = _Rolling(fleet, requests, groups, clock)

    def roll(request: Request) -> Json:
        shared = rolling.shared[request.kind]
        return driver.simulate(shared.flow, request, shared.view(request))

    for request in rolling.left:
        rolling.begin(request, roll)
    return rolling.result("would be")


def look(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> Json | None:
    """The task's result if none of them has to be begun, None if one has. Raises RolloutError as run() does."""
    rolling = _Rolling(fleet, requests, groups, clock)
    return None if rolling.left else rolling.result()


class _Rolling:
    """The controllers of one task, and what has become of each.

    All of them are looked at before one is begun, so that a name that is wrong is told before anything of the others is changed.
    """

    def __init__(self, fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> None:
        self.requests = requests
        self.failures_allowed = fleet.max_failures.of(len(requests), round_up=False)
        self.shared = {kind: _Shared(group, [request.name for request in requests if request.kind is kind])
                       for kind, group in groups.items()}
        #: What there is to say of a controller; of those that are still to be begun, nothing.
        self._entries: dict[tuple[Kind, str], Json] = {}
        for request in requests:
            flow, gateway = groups[request.kind]
            is_idle = request.undoes and not flow.find(request, gateway).in_progress
            if why := fleet.why_skipped(request, gateway.controllers().get(request.name), is_idle):
                self._skip(request, why)

        def look_at(request: Request) -> None:
            shared = self.shared[request.kind]
            self._note(request, lambda it: driver.look(shared.flow, it, shared.view(it), clock))

        with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
            list(executor.map(look_at, self.left))
        for request in self.left if self._has_to_end else ():
            self._skip_after_failures(request)

    @property
    def left(self) -> list[Request]:
        """Those that something must be written or waited for."""
        return [request for request in self.requests if (request.kind, request.name) not in self._entries]

    @property
    def is_broken(self) -> bool:
        """Whether there will be no more news of any."""
        return all(shared.broken for shared in self.shared.values())

    def pass_on_news(self) -> None:
        """Wait for news, of each kind in turn, and wake the drivers of what they are about."""
        for shared in self.shared.values():
            shared.pass_on_news(NEWS / len(self.shared))

    def end(self, error: RolloutError) -> None:
        """Every driver that still waits for news ends with that error."""
        for shared in self.shared.values():
            shared.end(error)

    def called(self, request: Request) -> str:
        """A controller in a sentence: two of different kinds may have one name."""
        return request.name if len(self.shared) == 1 else f"{request.kind} {request.name}"

    def begin(self, request: Request, roll: t.Callable[[Request], Json]) -> None:
        """Let one be rolled, unless too many have failed by now."""
        if self._has_to_end:
            self._skip_after_failures(request)
        else:
            self._note(request, roll)

    def result(self, are: str = "are") -> Json:
        """All results as one. Raises RolloutError when one of them is a failure."""
        entries = {self.called(request): self._entries[request.kind, request.name] for request in self.requests}
        return _result(entries, self._next_command(), are)

    @property
    def _failed(self) -> list[str]:
        return [self.called(request) for request in self.requests
                if self._entries.get((request.kind, request.name), {}).get("failed")]

    @property
    def _has_to_end(self) -> bool:
        return len(self._failed) > self.failures_allowed

    def _next_command(self) -> list[str]:
        """Return what the first failure suggests, with one rollback for all of its kind that suggest theirs."""
        failed = [(request, request.command(State.ROLLED_BACK), entry["failure"]["next_command"].splitlines())
                  for request in self.requests if (entry := self._entries[request.kind, request.name])["failed"]]
        if not failed:
            return []
        first, own, lines = failed[0]
        names = [request.name for request, back, others in failed if request.kind is first.kind and back in others]
        joint = first.command(State.ROLLED_BACK, name=None, names=names) if len(names) > 1 else own
        return [joint if line == own else line for line in lines]

    def _note(self, request: Request, do: t.Callable[[Request], Json | None]) -> None:
        try:
            result = do(request)
        except RolloutError as error:
            result = error.as_result() | {"failed": True}
        except Exception as surprise:
            result = InternalError.of(surprise, request.where, request.command()).as_result() | {"failed": True}
        if result is not None:
            self._entries[request.kind, request.name] = {
                "name": request.name, "kind": str(request.kind), "changed": False, "failed": False, "skipped": False} | result

    def _skip(self, request: Request, why: str) -> None:
        self._note(request, lambda _request: {"skipped": True, "msg": why})

    def _skip_after_failures(self, request: Request) -> None:
        failed = self._failed
        self._skip(request, f"not started, because {len(failed)} of the others failed ({_some(failed)})")


def _result(results: dict[str, Json], next_command: t.Sequence[str] = (), are: str = "are") -> Json:
    """All results as one, by what they are of. Raises RolloutError when one of them is a failure."""
    failed = {name: each["failure"] for name, each in results.items() if each["failed"]}
    skipped = [name for name, each in results.items() if each["skipped"]]
    well = [name for name, each in results.items() if not each["failed"] and not each["skipped"]]
    changed = sum(each["changed"] for each in results.values())
    diffs = [{**diff, "before_header": name, "after_header": name}
             for name, each in results.items() if (diff := each.pop("diff", {}))]
    warnings = _joined((name, warning) for name, each in results.items() for warning in each.pop("warnings", ()))
    whole = {"changed": bool(changed), "results": list(results.values()), "warnings": warnings}
    told = [f"{len(well)} of {len(results)} controllers {are if changed else 'are'} as requested ({changed} changed)"]
    if skipped:
        told.append(f"{len(skipped)} skipped ({_some(skipped)})")
    if not failed:
        return whole | {"msg": ", ".join(told), "diff": diffs}
    names, failures = list(failed), list(failed.values())
    reasons = [": ".join(filter(None, [it["what"], "; ".join(it["why"].splitlines())])) for it in failures]
    is_one = len(set(reasons)) == 1  # then the names have just been told
    first = failures[0]["why"].splitlines()
    of_one = reasons[0] if len(first) < 2 else "\n".join([failures[0]["what"], *first])
    error = RolloutError(f"{len(failed)} of {len(results)} controllers failed ({_some(names)})",
                         why=of_one if is_one else _some(_joined(zip(names, reasons)), "\n"),
                         next_command=next_command)
    error.standing, error.progress = ", ".join(told), whole
    raise error


def _joined(told: t.Iterable[tuple[str, str]]) -> list[str]:
    """What is told of controllers by name; what is the same for several of them comes once."""
    names: dict[str, list[str]] = {}
    for name, text in told:
        names.setdefault(text, []).append(name)
    return [f"{_some(those)}: {text}" for text, those in names.items()]


def _some(texts: list[str], between: str = ", ") -> str:
    more = len(texts) - SOME
    return between.join(texts[:SOME]) + (f"{between if between.isspace() else ' '}and {more} more" if more > 0 else "")


class _Shared:
    """One gateway for many drivers: whoever asked first has asked for all, and news wake only those whom they concern."""

    def __init__(self, group: Group, names: list[str]) -> None:
        self.flow, self.gateway = group
        self.broken: RolloutError | None = None
        self._views = {name: _View(self) for name in names}
        self._lock = threading.Lock()
        self._objects: dict[str, list[Json] | None] = {}
        self._rules: list[list[Json] | None] = []
        self._revisions: list[Json] | None = None
        #: The uids of those that have been told of these revisions.
        self._told: set[str] = set()

    def view(self, request: Request) -> RealGateway:
        """What the driver of one controller has for a gateway."""
        return t.cast(RealGateway, self._views[request.name])

    def pass_on_news(self, seconds: float) -> None:
        """Wait for news that long, and wake the drivers of what they are about."""
        if self.broken:
            return
        try:
            heard = self.gateway.wait(seconds)
        except RolloutError as error:
            self.end(error)
            return
        except Exception as surprise:
            self.end(InternalError.of(surprise, str(self.gateway.kind)))
            return
        for name in self._views.keys() & heard if heard is not None else self._views:
            self._views[name].woken.set()

    def end(self, error: RolloutError) -> None:
        """There will be no more news: every driver that still waits for some ends with that error."""
        self.broken = self.broken or error
        for view in self._views.values():
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
            return [item for item in self._revisions if marks.owner_uid(item) in uids]

    def forget(self, resource: str) -> None:
        with self._lock:
            self._objects.pop(resource, None)


class _View:
    """What the drivers of one controller, first one that only looks, have for a gateway."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._stored: tuple[tuple[str, str] | None, Json] | None = None
        self.woken = threading.Event()
        self.rules, self.objects, self.revisions = shared.rules, shared.objects, shared.revisions

    def __getattr__(self, name: str) -> t.Any:
        return getattr(self._shared.gateway, name)

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Asked for once for each template that it is applied to, by whoever looks and by the driver after it."""
        base = self._shared.gateway.controllers().get(write.name)
        key = (base.uid + digest(base.template), repr(write)) if base else None
        if key is None or self._stored is None or self._stored[0] != key:
            self._stored = key, self._shared.gateway.dry_run(write)
        return self._stored[1]

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

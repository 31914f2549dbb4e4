# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Updates of many controllers of a namespace in one task: selection, order, concurrency, failures.

The task observes all controllers before the first update begins: a wrong name is reported while
nothing is changed yet. Then each controller has a driver and a thread: drivers wait for the API
server, not for each other, and a driver that waits for a Lease or retries a request blocks no other
driver. All drivers of a kind share a gateway, and with the gateway a watch.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import typing as t

from ..cluster.kubernetes import KubernetesGateway
from ..flows.flow import Flow
from ..model.errors import InternalError, RolloutError
from ..model.fields import Json
from ..model.kinds import Kind, State
from ..model.label_selectors import matches
from ..model.observed import Controller
from ..model.options import CONCURRENCY, MAX_FAILURES, parse_request, size
from ..model.request import Request
from ..model.template import containers_with, repository
from ..model.thresholds import Size
from . import driver
from .clock import Clock, Intervals
from .shared import SharedCluster

#: Options of a task for a single controller.
SINGLE_OPTIONS = ("next_name", "definition", "src", "to_revision")
#: Options that select controllers by their labels and fields.
SELECTORS = ("label_selectors", "field_selectors")
#: Seconds between two reads of the watch.
CHANGES_INTERVAL = 0.1
#: Requests other than steps are rarer than from a single driver: many drivers would load the API
#: server.
INTERVALS = Intervals(renew=7.0, look_at_pods=5.0, events=20.0, joins_events=True)
#: Names, or reasons, in a sentence.
LISTED_LIMIT = 5


class Group(t.NamedTuple):
    """The flow and the gateway for the controllers of a kind."""

    flow: Flow
    gateway: KubernetesGateway


Groups: t.TypeAlias = t.Mapping[Kind, Group]


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The selection of a task's controllers, with the order and concurrency of the updates."""

    #: Names in the order of the list; empty if label selectors choose the controllers.
    names: tuple[str, ...]
    #: Label selectors in kubectl's syntax; a controller must match all selectors.
    label_selectors: tuple[str, ...]
    #: Field selectors in kubectl's syntax, likewise.
    field_selectors: tuple[str, ...]
    #: Controllers updated at the same time.
    concurrency: int
    #: Failures, or percent of the controllers (rounded down), up to which the task begins further
    #: updates.
    max_failures: Size
    #: Annotation with the place in the order, or None.
    order_annotation: str | None
    #: Kinds in the order of their updates.
    kinds: tuple[Kind, ...]

    @classmethod
    def from_params(cls, params: Json) -> Fleet | None:
        """Read a module's parameters; None for a task that names one controller.

        Raises RolloutError for an invalid combination of options.
        """
        options = [option for option in ("name", "names", *SELECTORS) if params.get(option)]
        if len(options) != 1 and options != list(SELECTORS):
            raise RolloutError("give exactly one of name, names and label_selectors (given: "
                               f"{' and '.join(options) or 'none'})")
        if params.get("kinds"):
            if params.get("kind"):
                raise RolloutError("kind and kinds cannot be combined: give only one of them")
            if options[0] not in SELECTORS:
                raise RolloutError("kinds can only be used with label_selectors: give kind with "
                                   f"{options[0]}")
        if options == ["name"]:
            return None
        for option in SINGLE_OPTIONS:
            if params.get(option):
                raise RolloutError(f"{option} can only be used with a single controller: give name")
        if params.get("wait") is False:
            raise RolloutError("wait=false can only be used with a single controller: give name")
        concurrency = CONCURRENCY if params.get("concurrency") is None else params["concurrency"]
        if concurrency < 1:
            raise RolloutError(f"concurrency must be at least 1, not {concurrency}")
        return cls(
            names=tuple(dict.fromkeys(params.get("names") or ())),
            label_selectors=tuple(params.get("label_selectors") or ()),
            field_selectors=tuple(params.get("field_selectors") or ()),
            concurrency=concurrency,
            max_failures=size("max_failures", params.get("max_failures") or MAX_FAILURES),
            order_annotation=params.get("order_annotation") or None,
            kinds=tuple(dict.fromkeys(map(Kind,
                                          params.get("kinds")
                                          or [params.get("kind") or Request.kind]))),
        )

    def requests(self, params: Json, groups: Groups) -> list[Request]:
        """Return a request per controller, in the order of the updates. Raises RolloutError."""
        requests = [parse_request({**params, "kind": kind, "name": name})
                    for kind in self.kinds
                    for name in self.names or (*self._selected_names(groups[kind].gateway),
                                               *self._deleted_names(params, kind, groups[kind]))]
        if not requests:
            raise RolloutError(f"no {' or '.join(self.kinds)} matches "
                               f"{','.join((*self.label_selectors, *self.field_selectors))}",
                               where=f"namespace {params.get('namespace') or Request.namespace}")
        controllers = {kind: groups[kind].gateway.controllers() for kind in self.kinds}
        return sorted(requests, key=lambda request: self._sort_key(
            controllers[request.kind].get(request.name)))

    def _selected_names(self, gateway: KubernetesGateway) -> list[str]:
        """Return the names of the controllers that match the selectors.

        A successor stands for the primary of the update if labels chose the primary too, or if the
        primary is deleted. With several kinds, controllers that belong to another object are left
        out.
        """
        controllers = gateway.controllers()
        chosen = [name for name in sorted(gateway.names(self.label_selectors, self.field_selectors))
                  if name in controllers and not (
            len(self.kinds) > 1 and controllers[name].is_part_of_owner)]
        stand_for = {name: controllers[name].primary(controllers) or name for name in chosen}
        outside = controllers.keys() - set(chosen)
        return list(dict.fromkeys(name if primary in outside else primary
                                  for name, primary in stand_for.items()))

    def _deleted_names(self, params: Json, kind: Kind, group: Group) -> list[str]:
        """Return the names of matching controllers that an interrupted update has deleted."""
        request = parse_request({**params, "kind": kind, "name": "any"})
        begun = group.flow.deleted_controller_labels(request, group.gateway)
        existing = group.gateway.controllers()
        return sorted(name
                      for name, labels in begun.items() if name not in existing
                      and matches(self.label_selectors, labels)
                      and matches(self.field_selectors, {"metadata.name": name,
                                                         "metadata.namespace": request.namespace}))

    def _sort_key(self, controller: Controller | None) -> tuple[float, str]:
        """Return the sort key of a controller.

        Numbers come first, by value; then texts (nan and inf count as texts); then controllers
        without the annotation.
        """
        text = controller.annotations.get(self.order_annotation or "", "") if controller else ""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        return (number, "") if math.isfinite(number) else (math.inf, text or "\U0010ffff")

    def why_skipped(self, request: Request, controller: Controller | None, is_idle: bool) -> str:
        """Return the reason to skip a controller that labels chose, or "".

        A request for an image applies to controllers with a container from the image's repository,
        a rollback to controllers with an update in progress. The update of an owner includes the
        controllers that belong to the owner.
        """
        if self.names or controller is None:
            return ""
        if controller.is_part_of_owner:
            return f"it belongs to {controller.owner}"
        if is_idle:
            return "no update is in progress"
        image = request.images.get("")
        if image and not containers_with(image, controller.template):
            return f"it does not run {repository(image)}"
        return ""


def run(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock,
        say: t.Callable[[str], None] = lambda line: None,
        stop: t.Callable[[], str] = lambda: "") -> Json:
    """Run the update of every controller with driver.run() and return the task's result.

    Raises RolloutError with all results if the update of a controller fails.
    """
    rolling = _Rolling(fleet, requests, groups, clock)

    def roll(request: Request) -> Json:
        shared = rolling.shared[request.kind]
        return driver.run(shared.flow, request, shared.gateway_for(request.name), clock,
                          lambda line: say(f"{request.namespace} | "
                                           f"{rolling.display_name(request)}: {line}"),
                          stop, INTERVALS)

    with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
        futures = [executor.submit(rolling.begin, request, roll) for request in rolling.remaining]
        try:
            for future in futures:
                while concurrent.futures.wait([future], CHANGES_INTERVAL if rolling.is_broken
                                              else 0).not_done:
                    rolling.dispatch_changes()
        finally:
            rolling.end(RolloutError("stopped"))  # before the executor waits for the threads
        for future in futures:
            future.result()
    return rolling.result()


def simulate(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> Json:
    """Run the task in check mode: each update in turn, on a simulated copy of the real cluster.

    Raises RolloutError as run() does.
    """
    rolling = _Rolling(fleet, requests, groups, clock)

    def roll(request: Request) -> Json:
        shared = rolling.shared[request.kind]
        return driver.simulate(shared.flow, request, shared.gateway_for(request.name))

    for request in rolling.remaining:
        rolling.begin(request, roll)
    return rolling.result("would be")


def look(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> Json | None:
    """Return the task's result if no controller needs an update, else None.

    Raises RolloutError as run() does.
    """
    rolling = _Rolling(fleet, requests, groups, clock)
    return None if rolling.remaining else rolling.result()


class _Rolling:
    """The controllers of a task, with the result for each.

    The constructor observes all controllers, so that a wrong name is reported before the first
    write.
    """

    def __init__(self, fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> None:
        self.requests = requests
        self.failures_allowed = fleet.max_failures.resolve(len(requests), round_up=False)
        self.shared = {kind: SharedCluster(group.flow, group.gateway,
                                           [request.name for request in requests
                                            if request.kind is kind])
                       for kind, group in groups.items()}
        #: Results by kind and name; controllers that still need an update have no entry.
        self._entries: dict[tuple[Kind, str], Json] = {}
        for request in requests:
            flow, gateway = groups[request.kind]
            is_idle = request.undoes and not flow.find(request, gateway).in_progress
            if why := fleet.why_skipped(request, gateway.controllers().get(request.name), is_idle):
                self._skip(request, why)

        def look_at(request: Request) -> None:
            shared = self.shared[request.kind]
            self._note(request, lambda request: driver.look(
                shared.flow, request, shared.gateway_for(request.name), clock))

        with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
            list(executor.map(look_at, self.remaining))
        for request in self.remaining if self._has_to_end else ():
            self._skip_after_failures(request)

    @property
    def remaining(self) -> list[Request]:
        """Requests that still need a write or a wait."""
        return [request for request in self.requests
                if (request.kind, request.name) not in self._entries]

    @property
    def is_broken(self) -> bool:
        """Whether the watches of all kinds have ended."""
        return all(shared.error for shared in self.shared.values())

    def dispatch_changes(self) -> None:
        """Wait for changes of each kind in turn; wake the drivers of the changed controllers."""
        for shared in self.shared.values():
            shared.dispatch_changes(CHANGES_INTERVAL / len(self.shared))

    def end(self, error: RolloutError) -> None:
        """End every driver that still waits for changes with this error."""
        for shared in self.shared.values():
            shared.end(error)

    def display_name(self, request: Request) -> str:
        """Return a controller's name in messages, with the kind where kinds may share a name."""
        return request.name if len(self.shared) == 1 else f"{request.kind} {request.name}"

    def begin(self, request: Request, roll: t.Callable[[Request], Json]) -> None:
        """Update a controller, or skip the controller after more failures than max_failures."""
        if self._has_to_end:
            self._skip_after_failures(request)
        else:
            self._note(request, roll)

    def result(self, are: str = "are") -> Json:
        """Return the joint result of the task. Raises RolloutError for a failed controller."""
        entries = {self.display_name(request): self._entries[request.kind, request.name]
                   for request in self.requests}
        return _result(entries, self._next_command(), are)

    @property
    def _failed(self) -> list[str]:
        return [self.display_name(request) for request in self.requests
                if self._entries.get((request.kind, request.name), {}).get("failed")]

    @property
    def _has_to_end(self) -> bool:
        return len(self._failed) > self.failures_allowed

    def _next_command(self) -> list[str]:
        """Return the commands that the first failure suggests.

        A suggested rollback covers all failed controllers of the kind that suggest a rollback.
        """
        failed = [(request, request.command(State.ROLLED_BACK),
                   entry["failure"]["next_command"].splitlines())
                  for request in self.requests
                  if (entry := self._entries[request.kind, request.name])["failed"]]
        if not failed:
            return []
        first, single, lines = failed[0]
        names = [request.name
                 for request, back, commands in failed if request.kind is first.kind
                 and back in commands]
        joint = (first.command(State.ROLLED_BACK, name=None, names=names) if len(names) > 1
                 else single)
        return [joint if line == single else line for line in lines]

    def _note(self, request: Request, do: t.Callable[[Request], Json | None]) -> None:
        try:
            result = do(request)
        except RolloutError as error:
            result = error.as_result() | {"failed": True}
        except Exception as surprise:
            result = (InternalError.from_exception(surprise, request.where,
                                                   request.command()).as_result()
                      | {"failed": True})
        if result is not None:
            self._entries[request.kind, request.name] = entry(request.namespace, request.name,
                                                              request.kind, result)

    def _skip(self, request: Request, why: str) -> None:
        self._note(request, lambda _request: {"skipped": True, "msg": why})

    def _skip_after_failures(self, request: Request) -> None:
        failed = self._failed
        self._skip(request,
                   f"not started, because {len(failed)} of the others failed "
                   f"({_first_names(failed)})")


def entry(namespace: str, name: str, kind: str, result: Json) -> Json:
    """Return the entry of the task's results for the result of a controller."""
    return {"namespace": namespace, "name": name, "kind": str(kind), "changed": False,
            "failed": False, "skipped": False, **result}


def _result(results: dict[str, Json], next_command: t.Sequence[str] = (), are: str = "are") -> Json:
    """Join results by controller name into the result of the task.

    Raises RolloutError for a failed controller.
    """
    failed = {name: result["failure"] for name, result in results.items() if result["failed"]}
    skipped = [name for name, result in results.items() if result["skipped"]]
    well = [name for name, result in results.items()
            if not result["failed"] and not result["skipped"]]
    changed = sum(result["changed"] for result in results.values())
    diffs = [{**diff, "before_header": name, "after_header": name}
             for name, result in results.items() if (diff := result.pop("diff", {}))]
    warnings = _join_messages((name, warning) for name, result in results.items()
                              for warning in result.pop("warnings", ()))
    whole = {"changed": bool(changed), "results": list(results.values()), "warnings": warnings}
    counts = [f"{len(well)} of {len(results)} controllers {are if changed else 'are'} as requested "
              f"({changed} changed)"]
    if skipped:
        counts.append(f"{len(skipped)} skipped ({_first_names(skipped)})")
    if not failed:
        return whole | {"msg": ", ".join(counts), "diff": diffs}
    names, failures = list(failed), list(failed.values())
    reasons = [": ".join(filter(None, [failure["what"], "; ".join(failure["why"].splitlines())]))
               for failure in failures]
    is_one = len(set(reasons)) == 1  # the summary already has the names
    first = failures[0]["why"].splitlines()
    of_one = reasons[0] if len(first) < 2 else "\n".join([failures[0]["what"], *first])
    error = RolloutError(f"{len(failed)} of {len(results)} controllers failed "
                         f"({_first_names(names)})",
                         why=of_one if is_one
                         else _first_names(_join_messages(zip(names, reasons)), "\n"),
                         next_command=next_command)
    error.status, error.progress = ", ".join(counts), whole
    raise error


def _join_messages(messages: t.Iterable[tuple[str, str]]) -> list[str]:
    """Return the messages with the controllers' names; equal messages are joined."""
    names: dict[str, list[str]] = {}
    for name, text in messages:
        names.setdefault(text, []).append(name)
    return [f"{_first_names(controllers)}: {text}" for text, controllers in names.items()]


def _first_names(texts: list[str], between: str = ", ") -> str:
    more = len(texts) - LISTED_LIMIT
    return (between.join(texts[:LISTED_LIMIT])
            + (f"{between if between.isspace() else ' '}and {more} more" if more > 0 else ""))

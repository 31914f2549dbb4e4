# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The update of several controllers by one task: selection, order, concurrency, failures.

All controllers are observed before the first update: with max_failures 0, a task with a wrong name
changes nothing. At most `concurrency` drivers run at a time, each in a thread.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import typing as t

from ..cluster.kubernetes import KubernetesGateway
from ..flows.flow import AnyFlow
from ..model.errors import InternalError, RolloutError
from ..model.fields import MAX_LISTED, Json, join_first
from ..model.impossible import refuse_impossible_selection
from ..model.kinds import Kind, State
from ..model.label_selectors import matches
from ..model.observed import Controller
from ..model.options import DEFAULT_CONCURRENCY, DEFAULT_MAX_FAILURES, parse_request, parse_size
from ..model.request import Request
from ..model.template import containers_with, repository
from ..model.thresholds import Size
from . import driver
from .clock import Clock, Intervals
from .fleet_result import joint_result, results_entry
from .places import Place
from .shared import SharedCluster
from .splits import NO_SPLITS, Splits

#: One round of waiting for changes takes at most this many seconds, divided equally among the
#: watches.
CHANGES_INTERVAL = 0.1
#: Long intervals limit the load on the API server.
INTERVALS = Intervals(renew=7.0, look_at_pods=5.0, events=20.0, joins_events=True)


class Group(t.NamedTuple):
    """The flow and the gateway for the controllers of one kind in one namespace."""

    flow: AnyFlow
    gateway: KubernetesGateway
    #: The argument is False for the simulated run of check mode.
    make_splits: t.Callable[[bool], Splits] = lambda is_real: NO_SPLITS


#: The groups of a task, in the order of their updates.
Groups: t.TypeAlias = t.Mapping[Place, Group]


@dataclasses.dataclass(frozen=True)
class Fleet:
    """The controllers of a task."""

    #: Empty if selectors choose the controllers.
    names: tuple[str, ...]
    #: A controller must match all selectors.
    label_selectors: tuple[str, ...]
    field_selectors: tuple[str, ...]
    concurrency: int
    #: If more controllers than this have failed, no further update begins. A percentage is rounded
    #: down, and is of the controllers that skip_reason() does not skip.
    max_failures: Size
    kinds: tuple[Kind, ...]

    @classmethod
    def from_params(cls, params: Json) -> Fleet | None:
        """Return the fleet, or None for a task with a single controller (option name).

        Raises RolloutError for an invalid combination of options.
        """
        refuse_impossible_selection(params)
        if params.get("name"):
            return None
        concurrency = params.get("concurrency")
        return cls(
            names=tuple(dict.fromkeys(params.get("names") or ())),
            label_selectors=tuple(params.get("label_selectors") or ()),
            field_selectors=tuple(params.get("field_selectors") or ()),
            concurrency=DEFAULT_CONCURRENCY if concurrency is None else concurrency,
            max_failures=parse_size("max_failures",
                                    params.get("max_failures") or DEFAULT_MAX_FAILURES),
            kinds=tuple(dict.fromkeys(map(Kind,
                                          params.get("kinds")
                                          or [params.get("kind") or Request.kind]))),
        )

    def requests(self, params: Json, groups: Groups) -> list[Request]:
        requests = []
        for place, group in groups.items():
            names = self.names or (*self._selected_names(group.gateway),
                                   *self._deleted_names(params, place, group))
            requests += [parse_request({**params, **place._asdict(), "name": name})
                         for name in names]
        self._refuse_empty_selection(params, requests, groups)
        return requests

    def _refuse_empty_selection(self, params: Json, requests: t.Sequence[Request],
                                groups: Groups) -> None:
        namespaces = list(dict.fromkeys(place.namespace for place in groups))
        empty_namespaces = [namespace for namespace in namespaces
                            if all(request.namespace != namespace for request in requests)]
        if empty_namespaces and (params.get("namespaces")
                                 or len(empty_namespaces) == len(namespaces)):
            raise RolloutError(f"no {' or '.join(self.kinds)} matches "
                               f"{','.join((*self.label_selectors, *self.field_selectors))}",
                               where=f"namespace {join_first(empty_namespaces)}", page="fleet")

    def _selected_names(self, gateway: KubernetesGateway) -> list[str]:
        controllers = gateway.controllers()
        matching_names = gateway.names(self.label_selectors, self.field_selectors)
        # With several kinds, a ReplicaSet is updated through its owner.
        selected_names = [name for name in sorted(matching_names) if name in controllers
                          and not (len(self.kinds) > 1 and controllers[name].is_updated_by_owner)]
        primary_by_name = {name: controllers[name].primary(controllers) or name
                           for name in selected_names}
        names_not_selected = controllers.keys() - set(selected_names)
        # Instead of a successor, select its primary, unless the primary exists and is not selected.
        return list(dict.fromkeys(name if primary in names_not_selected else primary
                                  for name, primary in primary_by_name.items()))

    def _deleted_names(self, params: Json, place: Place, group: Group) -> list[str]:
        """Return the names of controllers that an interrupted migration has deleted."""
        request = parse_request({**params, **place._asdict(), "name": "any"})
        labels_by_name = group.flow.labels_of_stored_controllers(request, group.gateway)
        existing_controllers = group.gateway.controllers()
        return sorted(name
                      for name, labels in labels_by_name.items() if name not in existing_controllers
                      and matches(self.label_selectors, labels)
                      and matches(self.field_selectors, {"metadata.name": name,
                                                         "metadata.namespace": request.namespace}))

    def skip_reason(self, request: Request, controller: Controller | None,
                    has_nothing_to_roll_back: bool) -> str:
        """Return why a selected controller is skipped, or ""."""
        if self.names or controller is None:
            return ""
        if controller.is_updated_by_owner:
            return f"it belongs to {controller.owner}"
        if has_nothing_to_roll_back:
            return "no update is in progress"
        image = request.images.get("")
        if image and not containers_with(image, controller.template):
            return f"it does not run {repository(image)}"
        return ""


def run(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock,
        print_line: t.Callable[[str], None] = lambda line: None,
        reason_to_stop: t.Callable[[], str] = lambda: "") -> Json:
    """Update every controller, and return the task's result. Raises RolloutError."""
    fleet_run = _FleetRun(fleet, requests, groups, clock)

    def update(request: Request) -> Json:
        cluster = fleet_run.shared_clusters[Place.of(request)]
        name = fleet_run.name_with_kind(request)

        def reason_to_stop_or_error() -> str:
            # Without a watch, the update would end at its first wait: do not begin or continue.
            cluster.raise_error()
            return reason_to_stop()

        return driver.run(cluster.flow, request, cluster.gateway_for(request.name), clock,
                          lambda line: print_line(f"{request.namespace} | {name}: {line}"),
                          reason_to_stop_or_error, INTERVALS,
                          groups[Place.of(request)].make_splits(True))

    with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
        futures = [executor.submit(fleet_run.update_or_skip, request, update)
                   for request in fleet_run.remaining_requests]
        try:
            for future in futures:
                while concurrent.futures.wait(
                        [future],
                        CHANGES_INTERVAL if fleet_run.have_all_watches_failed else 0).not_done:
                    fleet_run.dispatch_changes()
        finally:
            # Wake the drivers, so that the executor can shut down.
            fleet_run.end_drivers(RolloutError("stopped", page="other-clients"))
        for future in futures:
            future.result()
    return fleet_run.result()


def simulate(fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> Json:
    """Run the task in check mode. Raises RolloutError."""
    fleet_run = _FleetRun(fleet, requests, groups, clock)

    def update(request: Request) -> Json:
        cluster = fleet_run.shared_clusters[Place.of(request)]
        return driver.simulate(cluster.flow, request, cluster.gateway_for(request.name),
                               groups[Place.of(request)].make_splits(False))

    for request in fleet_run.remaining_requests:
        fleet_run.update_or_skip(request, update)
    return fleet_run.result("would be")


def result_if_done(fleet: Fleet, requests: list[Request], groups: Groups,
                   clock: Clock) -> Json | None:
    """Return the task's result if no controller needs an update, else None. Raises RolloutError."""
    fleet_run = _FleetRun(fleet, requests, groups, clock)
    return None if fleet_run.remaining_requests else fleet_run.result()


class _FleetRun:
    def __init__(self, fleet: Fleet, requests: list[Request], groups: Groups, clock: Clock) -> None:
        self.requests = requests
        self.shared_clusters = {place: SharedCluster(group.flow, group.gateway,
                                                     [request.name for request in requests
                                                      if Place.of(request) == place])
                                for place, group in groups.items()}
        #: A controller without an entry still needs an update.
        self._entries: dict[tuple[Place, str], Json] = {}
        for request in requests:
            flow, gateway, _make_splits = groups[Place.of(request)]
            has_nothing_to_roll_back = (request.rolls_back_update
                                        and not flow.find(request, gateway).in_progress)
            if why := fleet.skip_reason(request, gateway.controllers().get(request.name),
                                        has_nothing_to_roll_back):
                self._skip(request, why)
        self.max_failed_count = fleet.max_failures.resolve(len(self.remaining_requests),
                                                           round_up=False)

        def observe(request: Request) -> None:
            cluster = self.shared_clusters[Place.of(request)]
            self._run_and_record(request, lambda request: driver.result_if_done(
                cluster.flow, request, cluster.gateway_for(request.name), clock,
                groups[Place.of(request)].make_splits(True)))

        with concurrent.futures.ThreadPoolExecutor(fleet.concurrency) as executor:
            list(executor.map(observe, self.remaining_requests))
        for request in self.remaining_requests if self._has_too_many_failures else ():
            self._skip_after_failures(request)
        self._refuse_small_quotas(clock)

    def _refuse_small_quotas(self, clock: Clock) -> None:
        """Raise RolloutError if the new pods of a namespace's updates with keep_old exceed a quota.

        Each driver checks the quotas for a single controller only.
        """
        requests_by_namespace: dict[str, list[Request]] = {}
        for request in self.remaining_requests:
            if request.keeps_old and not request.rolls_back_update:
                requests_by_namespace.setdefault(request.namespace, []).append(request)
        for requests in requests_by_namespace.values():
            clusters = [self.shared_clusters[Place.of(request)] for request in requests]
            stored_quotas = clusters[0].objects("resourcequotas")
            if not stored_quotas or len(requests) == 1:
                continue
            from ..explain import quotas

            needed_amounts = sum(
                (driver.needed_quota(cluster.flow, request, cluster.gateway_for(request.name),
                                     clock)
                 for cluster, request in zip(clusters, requests)), quotas.Amounts())
            quotas.refuse_small_quotas(requests, needed_amounts, stored_quotas)

    @property
    def remaining_requests(self) -> list[Request]:
        return [request for request in self.requests
                if _key(request) not in self._entries]

    @property
    def have_all_watches_failed(self) -> bool:
        return all(shared.error for shared in self.shared_clusters.values())

    def dispatch_changes(self) -> None:
        for shared in self.shared_clusters.values():
            shared.dispatch_changes(CHANGES_INTERVAL / len(self.shared_clusters))

    def end_drivers(self, error: RolloutError) -> None:
        for shared in self.shared_clusters.values():
            shared.end_drivers(error)

    def name_with_kind(self, request: Request) -> str:
        return self._with_kind(request, request.name)

    def display_name(self, request: Request) -> str:
        has_several_namespaces = len({place.namespace for place in self.shared_clusters}) > 1
        name = f"{request.namespace}/{request.name}" if has_several_namespaces else request.name
        return self._with_kind(request, name)

    def update_or_skip(self, request: Request, update: t.Callable[[Request], Json]) -> None:
        if self._has_too_many_failures:
            self._skip_after_failures(request)
        else:
            self._run_and_record(request, update)

    def result(self, verb: str = "are") -> Json:
        entries = {self.display_name(request): self._entries[_key(request)]
                   for request in self.requests}
        return joint_result(entries, self._next_commands(), verb)

    def _with_kind(self, request: Request, name: str) -> str:
        has_several_kinds = len({place.kind for place in self.shared_clusters}) > 1
        return f"{request.kind} {name}" if has_several_kinds else name

    @property
    def _failed_names(self) -> list[str]:
        return [self.display_name(request) for request in self.requests
                if self._entries.get(_key(request), {}).get("failed")]

    @property
    def _has_too_many_failures(self) -> bool:
        return len(self._failed_names) > self.max_failed_count

    def _next_commands(self) -> list[str]:
        """Return the next commands of the first failed controller.

        Replace the rollback command of this controller by one command for each of the first
        MAX_LISTED namespaces. A replacement rolls back the failed controllers of the same kind in
        the namespace whose next commands include a rollback. A hint names the other failed
        controllers that can be rolled back.
        """
        failures = [(request, self._entries[_key(request)]["failure"]["next_command"].splitlines())
                    for request in self.requests if self._entries[_key(request)]["failed"]]
        if not failures:
            return []
        first, first_commands = failures[0]
        first_rollback = first.command(State.ROLLED_BACK)
        requests_by_namespace: dict[str, list[Request]] = {}
        omitted_names = []
        for request, commands in failures:
            rollback = request.command(State.ROLLED_BACK)
            if rollback not in commands:
                continue
            if (first_rollback in first_commands and request.kind is first.kind
                    and (request.namespace in requests_by_namespace
                         or len(requests_by_namespace) < MAX_LISTED)):
                requests_by_namespace.setdefault(request.namespace, []).append(request)
            else:
                omitted_names.append(self.display_name(request))
        commands = []
        for line in first_commands:
            commands += (map(_joint_rollback, requests_by_namespace.values())
                         if line == first_rollback else [line])
        if omitted_names:
            commands.append(f"{'and ' if commands else ''}the rollback of "
                            f"{join_first(omitted_names)}: see failure.commands in results")
        return commands

    def _run_and_record(self, request: Request, work: t.Callable[[Request], Json | None]) -> None:
        try:
            result = work(request)
        except RolloutError as error:
            result = error.as_result() | {"failed": True}
        except Exception as exception:
            result = (InternalError.from_exception(exception, request.where,
                                                   request.command()).as_result()
                      | {"failed": True})
        if result is not None:
            self._entries[_key(request)] = results_entry(request.namespace, request.name,
                                                         request.kind, result)

    def _skip(self, request: Request, why: str) -> None:
        self._run_and_record(request, lambda _request: {"skipped": True, "msg": why})

    def _skip_after_failures(self, request: Request) -> None:
        failed_names = self._failed_names
        self._skip(request,
                   f"not started, because {len(failed_names)} of the others failed "
                   f"({join_first(failed_names)})")


def _key(request: Request) -> tuple[Place, str]:
    return Place.of(request), request.name


def _joint_rollback(requests: t.Sequence[Request]) -> str:
    """Return the command that rolls back the controllers of all requests."""
    first_request, names = requests[0], [request.name for request in requests]
    changes: Json = {"name": None, "names": names} if len(names) > 1 else {}
    return first_request.command(State.ROLLED_BACK, **changes)

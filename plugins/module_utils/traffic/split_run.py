# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a traffic split: observe, plan, apply and wait."""

from __future__ import annotations

import collections
import dataclasses
import typing as t

from ..cluster.http import JSON_PATCH, label_selector, path_segment
from ..cluster.kubernetes import KubernetesGateway
from ..cluster.refused import Refused
from ..explain import report
from ..flows.flow import AnyFlow, RolloutStatus, Rule, own_live_pods
from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, pairs
from ..model.identity import digest
from ..model.kinds import Kind
from ..model.observed import Controller, Pod
from ..model.request import Request
from ..model.steps import Action, Decision, Done, Step, Wait, Write, put
from ..run.clock import Clock, SimulatedClock
from . import rules, switch
from .objects import SERVICE_NAME, Objects, SimulatedObjects
from .observed import Observed, Route, Versions, find_versions
from .planner import DRAIN, WAIT_FOR_SERVICES, is_skipped, plan
from .reader import NoReader, Reader
from .record import GATEWAY_API, TRAFFIC_SELECTOR, without_version
from .related import Related
from .request import TrafficRequest

#: Seconds between two observations.
POLL_INTERVAL = 0.5
#: Duration of the waits WAIT_FOR_SERVICES and DRAIN.
DRAIN_SECONDS = 5.0
#: Maximum number of consecutive writes with a failed precondition.
MAX_REJECTIONS = 10
#: A run fails if the run applies an action more often to objects with the same name. A split needs
#: at most four applications.
MAX_REPETITIONS = 10
_SERVICES_OF_ROUTE: Rule = ("", "services", ("list", "create", "delete"))
_SERVICE_WITH_SELECTOR: Rule = ("", "services", ("get", "patch"))
_PODS: Rule = ("", "pods", ("list", "patch"))
_ENDPOINTS: Rule = ("discovery.k8s.io", "endpointslices", ("list",))


if t.TYPE_CHECKING:
    from .causes import Cause


class Cluster(t.Protocol):
    """The access to the objects of a split."""

    def read(self) -> Objects:
        """Return the objects. Raises RolloutError."""

    def write(self, write: Write) -> bool:
        """Send a write; return False if a precondition fails."""

    def settle(self) -> None:
        """Run the controllers of a simulated cluster."""


class Subject(t.NamedTuple):
    """The controller of a split, and the versions of the pods (see Observed)."""

    controller: Controller | None
    versions: Versions | None = None
    is_updating: bool = False
    is_updated: bool = False


class RealObjects:
    """The objects of a split in a cluster."""

    def __init__(self, request: TrafficRequest, gateway: KubernetesGateway,
                 subject: t.Callable[[], Subject]) -> None:
        self.request, self._gateway, self._subject = request, gateway, subject
        self._stores_mirror_share: bool | None = None

    def read(self) -> Objects:
        route = self._gateway.find(self.request.route_kind, self.request.route)
        if route is None:
            route = self.replace_missing_route()
        changes_selector = self.request.changes_selector
        # With changes_selector, the route is a Service.
        services = (route,) if changes_selector else self._items("services")
        slices = self._items("endpointslices", f"{SERVICE_NAME}={self.request.route}"
                             if changes_selector else SERVICE_NAME)
        subject = self._subject()
        return Objects(route, services, slices, subject.versions, self._can_store_mirror(route),
                       subject.controller, subject.is_updating, subject.is_updated,
                       self._pods_of(route) if changes_selector else ())

    def replace_missing_route(self) -> Json:
        """Return an object in place of the missing route. By default, raise RolloutError."""
        request = self.request
        if request.changes_selector:
            raise RolloutError("there is no such Service",
                               where=f"Service {request.namespace}/{request.route}",
                               next_command=f"{request.kubectl} get services -o wide")
        raise RolloutError("there is no such route, or the cluster does not serve Gateway API",
                           where=f"{request.route_kind} {request.namespace}/{request.route}",
                           next_command=f"{request.kubectl} get httproutes,grpcroutes")

    def write(self, write: Write) -> bool:
        return self._gateway.write(write)

    def settle(self) -> None:
        return

    def _can_store_mirror(self, route: Json) -> bool:
        """Return whether the API server would store the share of the mirror."""
        mirror = self.request.mirror
        if mirror is None or mirror.new == mirror.total:
            return True
        if self._stores_mirror_share is None:
            stored_rules = self._dry_run(rules.mirror_probe(Route.from_api(route).rules, mirror))
            self._stores_mirror_share = rules.has_mirror_share(stored_rules, mirror)
        return self._stores_mirror_share

    def _dry_run(self, changed_rules: t.Sequence[Json]) -> tuple[Json, ...]:
        """Return the rules as the API server would store them. Raises RolloutError."""
        request = self.request
        path = (f"{self._gateway.collection_path(f'{request.route_kind.lower()}s')}/"
                f"{path_segment(request.route)}?dryRun=All")
        try:
            response = self._gateway.http.send(
                "PATCH", path, [put("/spec/rules", list(changed_rules))], JSON_PATCH,
                is_write=False)
        except Refused as refused:
            where = f"{request.route_kind} {request.namespace}/{request.route}"
            raise refused.as_error(where, "a mirror in the rules is refused") from refused
        return Route.from_api(response).rules

    def _pods_of(self, service: Json) -> tuple[Json, ...]:
        selector = without_version(mapping(service, "spec", "selector"), self.request.label_key)
        return self._items("pods", label_selector(selector)) if selector else ()

    def _items(self, resource: str, selector: str = "") -> tuple[Json, ...]:
        query = {"labelSelector": selector} if selector else {}
        try:
            return tuple(self._gateway.http.list_all(self._gateway.collection_path(resource),
                                                     query)[0])
        except Refused as refused:
            raise refused.as_error(f"namespace {self.request.namespace}") from refused


def versions(flow: AnyFlow, request: Request, gateway: KubernetesGateway, status: RolloutStatus,
             needs_new: bool = True) -> Versions:
    """Return the versions of the pods. Raises RolloutError."""
    is_updating = status.phase != "complete"
    if needs_new and not is_updating:
        raise RolloutError("no update is in progress, so there are no old and new pods",
                           where=request.where,
                           next_command="begin an update with pause_at, then run the same task "
                                        "again; before an update, only weight=0% without "
                                        "match and mirror is possible")
    pods: list[tuple[Pod, bool]] = []
    fallback = ""
    for holder in status.holders:
        if not holder.has_known_labels:
            raise RolloutError("the new pods are unknown without permission to list the "
                               "ControllerRevisions", where=request.where,
                               next_command="see docs/reference/permissions.md")
        controller = holder.controller
        is_old = holder.new_labels is None or not is_updating
        if is_old and flow.creates_successor:
            # Before the first update, the pods lack the label of the version: use this digest.
            fallback = digest([controller.uid, controller.template])
        pods += [(pod, is_updating and holder.is_new(pod.labels))
                 for pod in own_live_pods(gateway, controller)]
    return find_versions(request.label_key, pods, fallback, request.where, needs_new)


def subject(split_request: TrafficRequest, flow: AnyFlow, request: Request,
            gateway: KubernetesGateway, status: RolloutStatus) -> Subject:
    """Return a Subject; the caller adds the controller and is_updated.

    The versions of the pods are not needed to restore the route, nor if a role prepares an update
    (is_before_update) that is already in progress.
    """
    is_updating = status.phase != "complete"
    needs_versions = not (split_request.restores
                          or (split_request.is_before_update and is_updating))
    pod_versions = (versions(flow, request, gateway, status,
                             needs_new=not split_request.excludes_new_pods)
                    if needs_versions else None)
    return Subject(None, pod_versions, is_updating)


@dataclasses.dataclass
class SplitRun:
    """The loop of a task."""

    request: TrafficRequest
    cluster: Cluster
    clock: Clock
    print_line: t.Callable[[str], None]
    #: Returns "" as long as the task may continue.
    reason_to_stop: t.Callable[[], str]
    reader: Reader = dataclasses.field(default_factory=NoReader)
    steps: list[Json] = dataclasses.field(default_factory=list)
    #: None means the planner for the request.
    decide: t.Callable[[Observed], Decision] | None = None
    #: The value of Observed.is_drained for the next observation.
    is_drained: bool = False
    #: Observed.state in the first and in the last observation.
    states: list[Json] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    _rejection_count: int = 0
    _applied_counts: collections.Counter[tuple[Action, str]] = dataclasses.field(
        default_factory=collections.Counter)
    #: The texts of Step.after of the steps UPDATE since the last step RESTORE.
    _written_texts: list[str] = dataclasses.field(default_factory=list)
    _wait: Wait | None = None
    _wait_start: float = 0.0

    def run(self) -> Json:
        """Return the result of the task. Raises RolloutError."""
        try:
            while True:
                observed = self.cluster.read().observed(self.is_drained)
                self.states = [*self.states[:1], observed.state]
                if reason := self.reason_to_stop():
                    raise RolloutError(f"stopped ({reason})", where=observed.route.where,
                                       next_command="run the same task again")
                decision = (self.decide or self._plan)(observed)
                if isinstance(decision, Done):
                    return self._result(observed, decision)
                if isinstance(decision, Step):
                    self._apply(observed, decision)
                elif isinstance(decision, Wait):
                    self._wait_for(observed, decision)
        except RolloutError as error:
            # Another client may have deleted the controller after the first observation.
            error.depends_on_kind = error.depends_on_kind and not self.states
            error.progress = {"changed": bool(self.steps), "steps": self.steps,
                              "warnings": self.warnings}
            raise

    def _plan(self, observed: Observed) -> Decision:
        return (switch.plan if self.request.changes_selector else plan)(self.request, observed)

    def _apply(self, observed: Observed, step: Step) -> None:
        route, self._wait = observed.route, None
        is_update = step.action is Action.UPDATE
        if is_update and str(step.after) in self._written_texts:
            (field,) = observed.state
            raise RolloutError(f"another client has changed the {field} after this task",
                               where=route.where,
                               next_command=("run the same task again, or:",
                                             self.request.restore_command))
        if not self.steps and self.decide is None:
            self._print_warnings(observed)
        if not self.cluster.write(step.write):
            self._rejection_count += 1
            if self._rejection_count > MAX_REJECTIONS:
                raise RolloutError(f"the {step.write.kind} {step.name} was changed before each of "
                                   f"{self._rejection_count} writes", where=route.where,
                                   next_command="run the same task again")
            self.clock.sleep(POLL_INTERVAL)
            return
        self._rejection_count = 0
        self._applied_counts[step.action, step.name] += 1
        if self._applied_counts[step.action, step.name] > MAX_REPETITIONS:
            raise RolloutError(f"another client keeps undoing changes of the {step.write.kind} "
                               f"{step.name}", where=route.where,
                               next_command="find out who changes it, then run the same task again")
        if is_update:
            self._written_texts.append(str(step.after))
            self.is_drained = False
        elif step.action is Action.RESTORE:
            self._written_texts.clear()
        self.steps.append(report.steps_entry(step, self.clock.timestamp_seconds()))
        self.print_line(_progress_line(step))

    def _adds_mirror(self, observed: Observed) -> bool:
        route = observed.route
        names = rules.mirror_targets(route.rules, route.namespace)
        return self.request.mirror is not None and observed.split_services.keys().isdisjoint(names)

    def _print_warnings(self, observed: Observed) -> None:
        """Print the warnings of warnings.py before the first step. Raises RolloutError."""
        from .warnings import added_services, refuse_missing_policies

        if self.request.changes_selector:
            self._warn(observed, Related(), is_beginning=(
                TRAFFIC_SELECTOR not in observed.route.annotations))
            return
        is_beginning = observed.route.record is None or self._adds_mirror(observed)
        adds_services = bool(added_services(self.request, observed))
        if observed.versions is None or not (is_beginning or adds_services):
            return
        related = self.reader.related()
        refuse_missing_policies(self.request, observed, related)
        if is_beginning and self.request.mirror:
            related = related._replace(features=self.reader.features(observed))
        self._warn(observed, related, is_beginning=is_beginning)

    def _warn(self, observed: Observed, related: Related, *, is_beginning: bool) -> None:
        from .warnings import warnings

        if not is_beginning:
            return
        self.warnings = warnings(self.request, observed, related)
        for warning in self.warnings:
            self.print_line(f"warning: {warning}")

    def _causes(self, observed: Observed) -> list[Cause]:
        from .causes import causes

        unready_names = ([observed.route.name] if observed.service
                         else observed.needed_unready_services)
        return causes(self.request, observed,
                      self.reader.gateways_and_pods(observed, unready_names))

    def _wait_for(self, observed: Observed, wait: Wait) -> None:
        """Sleep until the next observation, or end a timed wait. Raises RolloutError."""
        now = self.clock.monotonic()
        if wait != self._wait:
            self._wait, self._wait_start = wait, now
            self.print_line(f"{observed.route.name}: {wait.line}")
        self.cluster.settle()
        waited_seconds = now - self._wait_start
        ends_by_time = wait in (DRAIN, WAIT_FOR_SERVICES)
        if ends_by_time and waited_seconds >= (DRAIN_SECONDS if observed.route.parents else 0):
            self.is_drained = True
            return
        if not ends_by_time and waited_seconds > self.request.timeout:
            causes = self._causes(observed)
            raise RolloutError(f"timed out after {self.request.timeout:g} s, waiting until "
                               f"{wait.until}", where=observed.route.where,
                               why="\n".join(cause.sentence for cause in causes),
                               next_command=(*_next_commands(causes),
                                             "run the same task again, or:",
                                             self.request.restore_command))
        self.clock.sleep(POLL_INTERVAL)

    def _result(self, observed: Observed, done: Done) -> Json:
        route, request = observed.route, self.request
        has_no_weight = request.restores or is_skipped(request, observed)
        causes = self._causes(observed) if self.steps and not request.changes_selector else []
        name_and_kind = (None, None) if request.changes_selector else (route.name, route.kind)
        return {"changed": bool(self.steps), "steps": self.steps, "msg": done.message,
                "namespace": route.namespace, **dict(zip(("route", "route_kind"), name_and_kind)),
                "services": (switch.split_services(request, observed)
                             or sorted(observed.split_services)),
                "weight": None if has_no_weight else str(request.share),
                "mirror": str(request.mirror) if request.mirror else None,
                "diff": {"before": self.states[0], "after": observed.state},
                "warnings": [*self.warnings, *(cause.sentence for cause in causes)]}


def required_permissions(request: TrafficRequest, kind: Kind) -> tuple[Rule, ...]:
    """Return the permissions that the task needs."""
    controller_rule: Rule = (kind.group, kind.resource, ("get", "list", "patch"))
    if request.changes_selector:
        return (controller_rule, _SERVICE_WITH_SELECTOR, _ENDPOINTS,
                ("", "pods", ("list",)) if request.restores else _PODS)
    route_rule: Rule = (GATEWAY_API, f"{request.route_kind.lower()}s", ("get", "patch"))
    return (controller_rule, route_rule, _SERVICES_OF_ROUTE, _ENDPOINTS,
            *(() if request.restores else (_PODS,)))


def run(request: TrafficRequest, cluster: Cluster, check_mode: bool,
        print_line: t.Callable[[str], None], reason_to_stop: t.Callable[[], str],
        reader: Reader | None = None) -> Json:
    """Run or simulate the task. Raises RolloutError."""
    if check_mode:
        simulated_objects, clock = SimulatedObjects(cluster.read()), SimulatedClock()
        return SplitRun(request, simulated_objects, clock, lambda line: None, reason_to_stop,
                        reader or NoReader()).run()
    return SplitRun(request, cluster, Clock(), print_line, reason_to_stop,
                    reader or NoReader()).run()


def _next_commands(causes: t.Sequence[Cause]) -> list[str]:
    return list(dict.fromkeys(line for cause in causes
                              for line in cause.next_step.splitlines()))


def _progress_line(step: Step) -> str:
    texts = [pairs(value) if isinstance(value, dict) else str(value)
             for value in (step.before, step.after) if value]
    return display_text(f"{step.action} {step.write.kind} {step.name}: {' -> '.join(texts)}")

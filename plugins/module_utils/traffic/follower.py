# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Change the traffic splits of a controller during its update (see run/splits.py)."""

from __future__ import annotations

import contextlib
import functools
import typing as t

from ..cluster.gateway import Gateway
from ..cluster.kubernetes import KubernetesGateway
from ..explain import permissions
from ..flows.flow import AnyFlow, Rule
from ..model import object_meta
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request
from ..model.steps import Decision, Write
from ..run.splits import SplitContext, Tools
from . import split_run, switch
from .follow import Goal, goal_of, plan, remove_unreadable_annotation, share_of
from .objects import Objects, SimulatedObjects
from .observed import Observed, Versions
from .reader import ClusterReader, NoReader
from .record import GATEWAY_API, SERVICE, RouteName, parse_routes
from .request import TrafficRequest, command_options

#: The permissions besides the permission for the route. If the route is a Service, the first is not
#: needed.
_COMMON_PERMISSIONS: tuple[Rule, ...] = (("", "services", ("list", "delete")),
                                         ("discovery.k8s.io", "endpointslices", ("list",)),
                                         ("", "pods", ("list",)))
#: Maximum number of calls of follow() in a run. An update needs two, and with a rollback three.
MAX_FOLLOW_CALLS = 5


class Follower:
    """The traffic splits of a controller during an update."""

    def __init__(self, flow: AnyFlow, real: KubernetesGateway, is_real: bool = True) -> None:
        """Initialize the splits.

        real: the gateway of the real cluster, even in check mode. is_real: False in check mode.
        """
        self._flow, self._real, self._is_real = flow, real, is_real
        self._simulated_objects: dict[RouteName, SimulatedObjects] = {}
        #: Goals not to repeat: after follow(), the route was still split, or could not be changed.
        self._finished_goals: set[tuple[Goal, RouteName]] = set()
        self._follow_count = 0

    def check_permissions(self, context: SplitContext) -> None:
        routes = parse_routes(context.primary.annotations)
        is_needed = self._goal(context) is not Goal.ANY or context.request.rolls_back_on_failure
        granted_rules = self._real.rules() if routes and is_needed and self._is_real else None
        if granted_rules is None:
            return
        needed_rules = [*dict.fromkeys(rule for route in routes for rule in _permissions(route))]
        if missing := permissions.describe_missing(granted_rules, needed_rules):
            names = " and ".join(map(str, routes))
            files = " and ".join(dict.fromkeys(
                f"docs/reference/permissions/traffic{'-service' * (route.kind == SERVICE)}.yaml"
                for route in routes))
            raise RolloutError(
                f"the requests of {names} are split between the old and the new pods, and "
                "permissions to follow the update are missing; nothing was changed",
                where=context.request.where, why=f"not allowed: {missing}",
                next_command=(f"ask for the permissions of {files}, or let a user with these "
                              "permissions restore the route:",
                              *(_split_request(context.request, route).restore_command
                                for route in routes)))

    def is_route_change_due(self, context: SplitContext) -> bool:
        goal, routes = self._goal(context), parse_routes(context.primary.annotations)
        if not routes:
            # follow() also removes an annotation without a valid route.
            return goal is Goal.RESTORED
        return goal is not Goal.ANY and bool(self._unfinished(goal, routes))

    def follow(self, context: SplitContext, tools: Tools) -> None:
        goal = self._goal(context)
        routes = parse_routes(context.primary.annotations)
        if not routes and tools.gateway.write(
                (step := remove_unreadable_annotation(context.primary)).write):
            tools.recorder.report_step(step)
        for route in self._unfinished(goal, routes):
            try:
                is_finished = self._run(goal, route, context, tools)
            except RolloutError as error:
                must_succeed = (goal in (Goal.RESTORED, Goal.SWITCHED)
                                and not tools.is_after_failure)
                # If a Service selects only new pods, the rollback must not continue: a rollback
                # deletes the new pods.
                if tools.reason_to_stop_after_renewal() or must_succeed or route.kind == SERVICE:
                    raise
                is_finished = True
                reason = "; ".join(filter(None, (error.what, error.why)))
                restore_command = _split_request(context.request, route).restore_command
                tools.warn(f"{route} could not be changed, and the rollback of the pods continues: "
                           f"{reason}. Next: {restore_command}")
            # A restored route is not finished: if another client then splits the requests again,
            # the goal is due again.
            if is_finished:
                self._finished_goals.add((goal, route))
        self._follow_count += 1
        if self._follow_count > MAX_FOLLOW_CALLS:
            raise RolloutError(
                f"another client keeps writing the annotation {object_meta.TRAFFIC_ROUTES}",
                where=context.request.where,
                next_command=("find out who changes it, then:", context.request.command()))

    def describe(self, context: SplitContext) -> str:
        if context.status.phase != "paused":
            return ""
        texts = []
        routes = parse_routes(context.primary.annotations)
        versions = self._versions(context) if routes else None
        for route in routes:
            # The user may lack permission to read the route.
            with contextlib.suppress(RolloutError):
                objects = self._cluster(context, route, self._real, versions).read()
                observed = objects._replace(controller=context.primary).observed(is_drained=True)
                share = _share(_split_request(context.request, route), observed)
                if share:
                    texts.append(f"; {share} of the requests of {route} go to the new pods")
        return "".join(texts)

    def _goal(self, context: SplitContext) -> Goal:
        return goal_of(context.request, context.status, context.decision)

    def _unfinished(self, goal: Goal, routes: t.Iterable[RouteName]) -> list[RouteName]:
        return [route for route in routes if (goal, route) not in self._finished_goals]

    def _run(self, goal: Goal, route: RouteName, context: SplitContext, tools: Tools) -> bool:
        """Change a route until it reaches the goal; return whether the route is still split.

        Raises RolloutError.
        """
        request, changes_selector = _split_request(context.request, route), route.kind == SERVICE
        needs_versions = goal is not Goal.RESTORED or changes_selector
        versions = self._versions(context) if needs_versions else None
        plan_step = (functools.partial(switch.follow, goal, request) if changes_selector
                     else functools.partial(plan, goal, context.primary.name))
        is_split = False

        def decide(observed: Observed) -> Decision:
            nonlocal is_split
            is_split = observed.is_route_named_by_controller
            return plan_step(observed)

        run = split_run.SplitRun(
            request,
            self._cluster(context, route, tools.gateway, versions), tools.clock,
            tools.recorder.print_line, tools.reason_to_stop_after_renewal,
            ClusterReader(self._real, context.request.namespace) if self._is_real else NoReader(),
            tools.recorder.steps, decide=decide)
        tools.recorder.print_line(run.run()["msg"])
        return is_split

    def _versions(self, context: SplitContext) -> Versions | None:
        """Return the versions of the pods, or None if no label distinguishes them."""
        try:
            return split_run.versions(self._flow, context.request, self._real, context.status,
                                      needs_new=False)
        except RolloutError:
            return None

    def _cluster(self, context: SplitContext, route: RouteName, gateway: Gateway,
                 versions: Versions | None) -> split_run.Cluster:
        def subject() -> split_run.Subject:
            gateway.look_up(context.primary.name)
            return split_run.Subject(gateway.controllers().get(context.primary.name), versions)

        real_objects = _RealCluster(_split_request(context.request, route), self._real, subject)
        if self._is_real:
            return real_objects
        if route not in self._simulated_objects:
            self._simulated_objects[route] = SimulatedObjects(real_objects.read())
        return _SimulatedCluster(self._simulated_objects[route], gateway, subject)


class _RealCluster(split_run.RealObjects):
    """The objects of a split in a cluster, with an empty route in place of a deleted route."""

    def replace_missing_route(self) -> Json:
        request = self.request
        return {"kind": request.route_kind,
                "metadata": {"name": request.route, "namespace": request.namespace}}


class _SimulatedCluster(t.NamedTuple):
    """The objects of a split in check mode."""

    objects: SimulatedObjects
    gateway: Gateway
    subject: t.Callable[[], split_run.Subject]

    def read(self) -> Objects:
        subject = self.subject()
        return self.objects.read()._replace(**subject._asdict())

    def write(self, write: Write) -> bool:
        controller = self.subject().controller
        is_controller_write = controller is not None and write.kind == controller.kind
        return (self.gateway if is_controller_write else self.objects).write(write)

    def settle(self) -> None:
        self.objects.settle()


def _permissions(route: RouteName) -> tuple[Rule, ...]:
    if route.kind == SERVICE:
        return (("", "services", ("get", "patch")), *_COMMON_PERMISSIONS[1:])
    return ((GATEWAY_API, f"{route.kind.lower()}s", ("get", "patch")), *_COMMON_PERMISSIONS)


def _share(request: TrafficRequest, observed: Observed) -> str:
    """Return the new pods' share of the requests, such as "1%", or "" if unknown."""
    if request.changes_selector:
        is_own_split = switch.selects_controller_pods(request, observed)
        return switch.share_of(request, observed) if is_own_split else ""
    return share_of(observed) if observed.selects_controller_pods else ""


def _split_request(request: Request, route: RouteName) -> TrafficRequest:
    """Return the TrafficRequest for a route, with the options to restore the route."""
    options = command_options({
        "name": request.name, "kind": str(request.kind), "namespace": request.namespace,
        "default_namespace": request.default_namespace, "route_kind": route.kind,
        "service" if route.kind == SERVICE else "route": route.name,
        "deployment_label_key": request.label_key})
    return TrafficRequest(request.name, request.namespace, route.name, route.kind, restores=True,
                          label_key=request.label_key,
                          options={**request.connection, **options}, connection=request.connection)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide how a traffic split follows the update of its controller. No I/O.

An "update to the end" does not pause while old pods exist. Before this update begins, the route is
restored. If a paused update continues to the end, the route is restored or sends all requests to
the new pods; before the last step, the route is restored. Before a rollback, the route stops
sending requests to the new pods, which may be defective.

Any user with annotate permission can name any route in the annotation of a controller, so the task
changes a split only if a Service of the split, or the original Service, selects pods of this
controller.

The comments `| ... |` are the rows of two tables in docs/how-to/traffic-split.md (a test compares
comments and tables). The first comment of each table has the titles of the columns. The first row
that applies decides. "Restore the route" means the next step of planner.restore(). The page also
defines the "old Service".
"""

from __future__ import annotations

import dataclasses

from ..flows.flow import RolloutStatus
from ..model.kinds import StrEnum
from ..model.observed import Controller
from ..model.request import Request
from ..model.steps import Action, Decision, Done, Step
from . import rules
from .observed import Observed, Route, creations_of
from .planner import (
    WAIT_FOR_GATEWAYS,
    patch_routes_annotation,
    remove_route_from_annotation,
    restore,
    update_rules,
)
from .record import Record
from .rules import Share


class Goal(StrEnum):
    """The required state of a route before the next step of an update.

    ANY allows every state. SWITCHED allows a restored route, too.
    """

    ANY = "any"
    OLD_ONLY = "no requests for the new pods"
    RESTORED = "restored"
    SWITCHED = "restored, or all requests for the new pods"


def goal_of(request: Request, status: RolloutStatus, decision: Decision | None) -> Goal:
    """Return the required state of the routes before the decision is applied."""
    # | the update | required state of the route |
    # | no update is in progress, and the task begins one that pauses with old pods | any |
    if begins_pausing_update(request, status, decision):
        return Goal.ANY
    # | no update is in progress, or the update can no longer be rolled back | restored |
    if status.phase == "complete" or status.is_irreversible:
        return Goal.RESTORED
    is_last_step = isinstance(decision, Step) and (decision.completes_update or decision.ends_task)
    if request.rolls_back_update:
        # | a rollback, before its last step | no requests for the new pods |
        # | a rollback, at its last step | restored |
        return Goal.RESTORED if is_last_step else Goal.OLD_ONLY
    # | an update that pauses with old pods | any |
    if pauses_with_old_pods(request, status):
        return Goal.ANY
    # | an update to the end, before its last step | restored, or all requests for the new pods |
    # | an update to the end, at its last step | restored |
    return Goal.RESTORED if is_last_step else Goal.SWITCHED


def begins_pausing_update(request: Request, status: RolloutStatus,
                          decision: Decision | None) -> bool:
    """Return whether the task begins an update that will pause with old pods."""
    return (status.phase == "complete" and not isinstance(decision, Done)
            and not request.rolls_back_update and pauses_with_old_pods(request, status))


def pauses_with_old_pods(request: Request, status: RolloutStatus) -> bool:
    """Return whether the update will pause before it has deleted all old pods."""
    if request.pause_at is None or status.goal is None:
        return False
    if request.keeps_old:
        return True
    # No pod counts as new until the controller manager has observed the start of the update.
    counts_new_pods = status.phase != "complete" and status.is_observed
    new_pod_count = status.new.replicas if status.new and counts_new_pods else 0
    return max(request.pause_at.resolve(status.goal, round_up=True), new_pod_count) < status.goal


def remove_unreadable_annotation(controller: Controller) -> Step:
    """Return the step that removes an invalid list of routes from the controller."""
    # | required state | condition | step |
    # | restored | the annotation is not a valid list of routes | remove the annotation |
    return Step(Action.RESTORE, controller.name, patch_routes_annotation(controller, ()),
                before="an unreadable list of routes")


def plan(goal: Goal, controller_name: str, observed: Observed) -> Decision:
    """Return the next step towards the goal, a wait or the end. Raises RolloutError."""
    controller = observed.controller
    # | every | the split selects no pods of the controller | remove the route from the annotation |
    if controller and not observed.selects_controller_pods:
        if observed.is_route_named_by_controller:
            return remove_route_from_annotation(controller, observed.route.full_name)
        return Done(f"{observed.route.name} has no traffic split of {controller_name}")
    # | restored | any other case | restore the route |
    # | restored, or all requests for the new pods | old pods may get requests | restore the route |
    if goal is Goal.RESTORED or (goal is Goal.SWITCHED and not sends_all_to_new_pods(observed)):
        return restore(observed)
    step = _take_requests_from_new_pods(observed) if goal is Goal.OLD_ONLY else None
    share = "no" if goal is Goal.OLD_ONLY else "all"
    return step or _wait_for_gateways(observed.route, Done(
        f"{share} requests of {observed.route.name} go to the new pods of {controller_name}"))


def sends_all_to_new_pods(observed: Observed) -> bool:
    """Return whether all requests of the split go to the new pods; False during a restoration."""
    route, pair = observed.route, _known_pair(observed)
    if pair is None:
        return False
    return (rules.has_weight(route.rules, pair.names[1:], route.namespace)
            and not rules.has_weight(route.rules, (observed.original, pair.old), route.namespace))


def _take_requests_from_new_pods(observed: Observed) -> Decision | None:
    """Return the next step that takes the requests of a split from the new pods, or None."""
    route = observed.route
    if not rules.has_requests(route.rules, observed.split_names, route.namespace):
        return None
    # | no requests for the new pods | requests of a split lack an old Service | restore the route |
    # The Service of the new pods need not be ready: the new pods may be defective, and get no
    # requests.
    pair = _known_pair(observed)
    if pair is None or pair.old not in observed.ready & {*route.service_names}:
        return restore(observed)
    original_name = observed.original
    record = route.record or Record(original_name, route.resource_version)
    changed_rules = rules.send_to_old(route.rules, original_name, route.namespace,
                                      observed.split_names, record, pair.old)
    # | no requests for the new pods | new pods get requests of a split | send all to the old pods |
    if changed_rules == list(route.rules):
        return None
    return update_rules(route, dataclasses.replace(record, match=()), changed_rules,
                        {original_name, *pair.names})


def _wait_for_gateways(route: Route, done: Done) -> Decision:
    # A Gateway sends requests by the rules of its last observation.
    # | every | a Gateway has not observed the rules | wait |
    # | every | all Gateways have observed the rules | done |
    return done if route.is_current else WAIT_FOR_GATEWAYS


def _known_pair(observed: Observed) -> rules.ServicePair | None:
    """Return the names of the split's Services.

    Returns None if a restoration has begun, if the original Service or the versions are unknown, or
    if the Services of the split do not belong to the versions.
    """
    service = observed.services.get(observed.original)
    record = observed.route.record
    if service is None or observed.versions is None or (record and record.is_restoring):
        return None
    names = [creation.name for creation in creations_of(observed.route, service, observed.versions)]
    needed_names = [name for position, name in enumerate(names)
                    if position == 0 or name in observed.route.targets]
    is_certain = (observed.split_names <= set(names)
                  and set(needed_names) <= observed.split_services.keys())
    return rules.ServicePair(*needed_names) if is_certain else None


def share_of(observed: Observed) -> str:
    """Return the new pods' share of the requests, such as "1%".

    Returns "" if the Services of the versions are unknown, if no rule is split, or if the rules
    have different shares.
    """
    route, pair = observed.route, _known_pair(observed)
    if pair is None:
        return ""
    shares = set()
    for rule in route.rules:
        new, total = (sum(weight for name in names
                          for weight in rules.weights_of([rule], name, route.namespace))
                      for names in (pair.names[1:], (observed.original, *pair.names)))
        # A rule for `match` does not name the Service of the old pods.
        if pair.old in rules.services_of([rule], route.namespace) and total:
            shares.add(str(Share(new, total)))
    return shares.pop() if len(shares) == 1 else ""

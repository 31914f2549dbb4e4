# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the next step of a traffic split from the observation alone. No I/O.

If two tasks run at the same time, neither can delete a Service that the rules name. A split writes
the record before it creates the Services, and changes the rules only if the record is unchanged. A
restoration marks the record as restoring before it deletes the Services.

Comments `| record of the split | condition | step |` are rows of the tables in
docs/how-to/traffic-split.md (a test compares the comments with the tables). The page also defines
the terms. The first row that applies decides. In the first cell, "restoring" is the record of a
restoration that has begun, and "splitting" is any other record. "none" means that the record is
missing or invalid. In a split, a record for another Service also counts as "none". A wait without a
duration ends with an error after `timeout`.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, join_first
from ..model.object_meta import TRAFFIC_ROUTES
from ..model.observed import Controller
from ..model.steps import (
    Action,
    Create,
    Decision,
    Delete,
    Done,
    Patch,
    Step,
    Wait,
    annotation,
    escape_key,
    put,
    test,
)
from . import rules
from .observed import Observed, Route, Service, Versions, creations_of
from .record import MAX_ROUTES, TRAFFIC_SPLIT, Record, RouteName, parse_routes
from .request import TrafficRequest

#: The wait after a change of the rules.
WAIT_FOR_GATEWAYS = Wait("each Gateway has observed the route", is_condition=True,
                         is_ended_by_server=True)
#: The wait before the first requests to a Service.
WAIT_FOR_SERVICES = Wait("each Gateway knows the Services", is_condition=True)
#: The wait after the last requests to a Service.
DRAIN = Wait("requests in progress have ended", is_condition=True)


def plan(request: TrafficRequest, observed: Observed) -> Decision:
    """Return the next step, a wait or the end. Raises RolloutError."""
    # | record of the split | condition | step |
    # | any | a role prepares an update, and an update is already in progress | done |
    # | any | a role prepares an update, and nothing has to be updated | done |
    if is_skipped(request, observed):
        return end_of_skipped_task(request, observed)
    # | any | the route has a split, which selects no pods of the controller | error |
    _refuse_split_of_another_controller(request, observed)
    if observed.versions is None:
        return restore(observed)
    return _split(request, observed, observed.versions)


def is_skipped(request: TrafficRequest, observed: Observed) -> bool:
    """Return whether the task prepares an update that has begun or is not needed."""
    return request.is_before_update and (observed.is_updating or observed.is_updated)


def end_of_skipped_task(request: TrafficRequest, observed: Observed) -> Done:
    """Return the end of a task that changes nothing, because is_skipped() is True."""
    reason = (f"an update of {request.name} is in progress" if observed.is_updating
              else f"{request.name} needs no update")
    return Done(f"{reason}, so the requests for {observed.route.name} stay as they are")


def _refuse_split_of_another_controller(request: TrafficRequest, observed: Observed) -> None:
    services = join_first(sorted(set(observed.originals.values())))
    if observed.has_split and not observed.selects_controller_pods:
        raise RolloutError(
            f"the requests for {services} are already split, and a route has one split at a time",
            where=observed.route.where, why=f"{services} selects no pods of {request.name}",
            next_command=(f"restore the route with the controller of {services} as name, or give "
                          f"the Service of {request.name} a route of its own:",
                          f"{request.kubectl} get services -o wide"))


# A split

def _split(request: TrafficRequest, observed: Observed, versions: Versions) -> Decision:
    route = observed.route
    if route.is_deleting:
        raise RolloutError("the route is being deleted", where=route.where)
    service = service_of_split(request, observed, versions)
    creations = creations_of(route, service, versions)
    record = route.record
    # | any | a restoration has begun, or Services of an earlier split remain | restore the route |
    has_earlier_split = ((record and record.is_restoring)
                         or observed.split_names - {creation.name for creation in creations})
    if has_earlier_split and (restoration := _remove_split(observed)):
        return restoration
    creations = needed_creations(request, route, creations)
    pair = rules.ServicePair(*(creation.name for creation in creations))
    unsplit_rules = rules.without_split(route.rules, service.name, route.namespace,
                                        observed.split_names, record)
    # | any | the API server cannot store the share in `mirror` (Gateway API before v1.3) | error |
    requested_rules = _requested_rules(request, observed, unsplit_rules, service.name, pair)
    is_beginning = record is None or record.service != service.name
    if is_beginning:
        # | none | all Gateways have observed the route, and one refuses it | error |
        _refuse_rejected_route(request, route)
    # | any | the controller's annotation lacks the route | add the route to the annotation |
    if observed.controller and not observed.is_route_named_by_controller:
        return annotate(request, route, observed.controller)
    if record is None or is_beginning:
        # | none | any other case | write the record to the route |
        new_record = Record(service.name, route.resource_version)
        return Step(Action.ANNOTATE, route.name, patch_route(route, new_record),
                    after=f"split of {service.name}")
    # | splitting | an old pod lacks the version label | add the label to the pod |
    if versions.unlabeled:
        return label(versions)
    # | splitting | the Service of the old or of the new pods does not exist | create this Service |
    for creation in creations:
        if creation.name not in observed.services:
            return Step(Action.CREATE, creation.name, creation,
                        after=dict(creation.manifest["spec"]["selector"]))
    _refuse_foreign_services(observed, creations)
    # | splitting | a Service of the split has no ready endpoint | wait |
    for name, age in zip(pair[:1] if request.excludes_new_pods else pair.names, ("old", "new")):
        if name not in observed.ready:
            return Wait(f"the Service {name} of the {age} pods has a ready endpoint",
                        is_condition=True)
    return _change_rules(request, observed, record,
                         RulesChange(service.name, pair, unsplit_rules, requested_rules))


def needed_creations(request: TrafficRequest, route: Route,
                     creations: tuple[Create, ...]) -> tuple[Create, ...]:
    """Return the creations, without the Service of the new pods if the split does not need it."""
    return tuple(creation for position, creation in enumerate(creations)
                 if position == 0 or not request.excludes_new_pods
                 or creation.name in route.targets)


def _requested_rules(request: TrafficRequest, observed: Observed, unsplit_rules: t.Sequence[Json],
                     service: str, pair: rules.ServicePair) -> list[Json]:
    namespace, where = observed.route.namespace, observed.route.where
    rules.refuse_unsplittable_rules(unsplit_rules, service, namespace, where)
    if request.mirror:
        rules.refuse_mirrors(unsplit_rules, service, namespace, where)
        if not observed.stores_mirror_share:
            raise RolloutError(
                f"the cluster can mirror all requests, but not {request.mirror} of the requests",
                where=where, why="the API server does not store the fields percent and fraction "
                "of the filter RequestMirror, which Gateway API has since v1.3",
                next_command="update the CustomResourceDefinitions of Gateway API, or give "
                             "mirror=100%")
    requested_rules = rules.split(unsplit_rules, service, namespace, pair, request.share,
                                  request.match, request.mirror)
    rules.refuse_exceeded_limits(requested_rules, where)
    return requested_rules


class RulesChange(t.NamedTuple):
    """A change of the rules of a route."""

    #: The name of the original Service.
    service: str
    pair: rules.ServicePair
    unsplit_rules: list[Json]
    requested_rules: list[Json]


def _change_rules(request: TrafficRequest, observed: Observed, record: Record,
                  change: RulesChange) -> Decision:
    route, names = observed.route, {change.service, *change.pair.names}
    new_record = dataclasses.replace(
        record,
        weights=rules.weights_of(change.unsplit_rules, change.service, route.namespace),
        match=request.match)
    # | splitting | the rules lack a Service of the split | add this Service with weight 0 |
    rules_with_all_services = _rules_with_all_services(route, change)
    if rules_with_all_services != list(route.rules):
        return update_rules(route, new_record, rules_with_all_services, names)
    if _gives_first_requests(route, change):
        # | splitting | first requests are due, and a Gateway has not observed the rules | wait |
        if not route.is_current:
            return WAIT_FOR_GATEWAYS
        # | splitting | first requests are due, and a Gateway refuses the rules | error |
        _refuse_rejected_route(request, route)
        # | splitting | first requests are due, and Gateways might not know the Service | wait 5 s |
        # is_drained is False until this wait has ended.
        if not observed.is_drained:
            return WAIT_FOR_SERVICES
    # | splitting | the rules or the record differ from the request | write both in one patch |
    if change.requested_rules != list(route.rules) or new_record != record:
        return update_rules(route, new_record, change.requested_rules, names)
    # | splitting | a Gateway has not observed the rules | wait |
    if not route.is_current:
        return WAIT_FOR_GATEWAYS
    # | splitting | a Gateway refuses the rules | error |
    _refuse_rejected_route(request, route)
    # | splitting | the rules are as requested, and no Gateway refuses them | done |
    return Done(f"{request.share} of the requests for {change.service} go to the new pods of "
                f"{request.name}{', plus all requests that match' if request.match else ''}"
                + (f", plus copies of {request.mirror} of the requests" if request.mirror else ""))


def _rules_with_all_services(route: Route, change: RulesChange) -> list[Json]:
    pair, namespace = change.pair, route.namespace
    if not rules.has_weight(route.rules, pair.names, namespace):
        return rules.add_pair(change.unsplit_rules, change.service, namespace, pair)
    if set(pair.names) <= set(route.service_names):
        return list(route.rules)
    return rules.add_pair(route.rules, change.service, namespace, pair)


def _gives_first_requests(route: Route, change: RulesChange) -> bool:
    """Return whether the change sends the first requests to a Service of the split.

    The rows of the table then say "first requests are due".
    """
    return any(rules.has_requests(change.requested_rules, (name,), route.namespace)
               and not rules.has_requests(route.rules, (name,), route.namespace)
               for name in change.pair.names)


def update_rules(route: Route, record: Record, changed_rules: t.Sequence[Json],
                 described_names: t.Collection[str]) -> Step:
    """Return the step that writes the rules and the record."""
    return Step(Action.UPDATE, route.name, patch_route(route, record, changed_rules),
                before=rules.describe(route.rules, described_names, route.namespace),
                after=rules.describe(changed_rules, described_names, route.namespace))


def _refuse_rejected_route(request: TrafficRequest, route: Route) -> None:
    problems = [f"{parent.name}: {problem}" for parent in route.parents
                for problem in parent.problems]
    if route.is_current and problems:
        raise RolloutError("a Gateway does not accept the route", where=route.where,
                           why=join_first(problems, "\n"),
                           next_command=("fix the route, or:", request.restore_command))


def service_of_split(request: TrafficRequest, observed: Observed, versions: Versions) -> Service:
    """Return the original Service of the split. Raises RolloutError."""
    route = observed.route
    names = dict.fromkeys(observed.original if name in observed.split_names else name
                          for name in route.service_names)
    services_of_pods = [observed.services[name] for name in names if name in observed.services
                        and all(map(observed.services[name].selects, versions.labels))]
    candidates = [service for service in services_of_pods
                  if request.service in ("", service.name) and "selector" in service.spec]
    if len(candidates) > 1:
        raise RolloutError(
            f"the route names several Services of the pods of {request.name}", where=route.where,
            why=f"they are {join_first([service.name for service in candidates])}",
            next_command="give one of them as service")
    if not candidates:
        raise RolloutError(
            f"no rule of the route sends requests to a Service of the old and new pods of "
            f"{request.name}", where=route.where,
            why=f"its rules name {join_first(list(names)) or 'no Service'}",
            next_command=f"{request.kubectl} get service -o wide")
    (service,) = candidates
    if versions.key in service.selector:
        raise RolloutError(f"the Service {service.name} selects one version only",
                           where=route.where, next_command=f"remove {versions.key} from its "
                           "selector")
    return service


def _refuse_foreign_services(observed: Observed, creations: t.Iterable[Create]) -> None:
    """Raise RolloutError if another client changed or deletes a Service of the split."""
    # The keys of observed.originals are the names of the Services that a split has created.
    for creation in creations:
        service = observed.services[creation.name]
        if service.name not in observed.originals or service.is_deleting:
            raise RolloutError(
                f"the Service {service.name} is not the Service of this split",
                where=observed.route.where, why="it is being deleted" if service.is_deleting else
                "its owner, its selector or its ports were changed",
                next_command="run the same task again with state=restored, then delete the Service")


def label(versions: Versions) -> Step:
    """Return the step that labels the first unlabeled pod."""
    pod, path = versions.unlabeled[0], "/metadata/labels"
    escaped_key = escape_key(versions.key)
    write = Patch(pod.name, (test("/metadata/uid", pod.uid), test(f"{path}/{escaped_key}", None),
                             put(f"{path}/{escaped_key}", versions.old)), "Pod")
    return Step(Action.ANNOTATE, pod.name, write, after=f"{versions.key}={versions.old}")


def annotate(request: TrafficRequest, route: Route, controller: Controller) -> Step:
    """Return the step that adds the route to the controller's annotation. Raises RolloutError."""
    routes = parse_routes(controller.annotations)
    if len(routes) >= MAX_ROUTES:
        raise RolloutError(f"the requests of {MAX_ROUTES} routes are already split",
                           where=f"{controller.kind} {route.namespace}/{controller.name}",
                           why=f"they are {', '.join(map(str, routes))}",
                           next_command="restore one of these routes")
    return Step(Action.ANNOTATE, controller.name,
                patch_routes_annotation(controller, (*routes, route.full_name)),
                after=str(route.full_name))


# A restoration

def _restore_rules(observed: Observed) -> Decision:
    route, original = observed.route, observed.original
    if original not in observed.services:
        raise RolloutError(
            f"the rules cannot be restored: the Service {original or 'before the split'} does not "
            "exist", where=route.where,
            next_command="create the Service, or change the rules of the route")
    record = dataclasses.replace(route.record or Record(original, route.resource_version),
                                 is_restoring=True)
    names = {original, *observed.split_names}
    if rules.has_requests(route.rules, observed.split_names, route.namespace):
        # | record of the split | condition | step |
        # | any | requests go to a split, and only Services of a split have ready endpoints | wait |
        if original not in observed.ready and observed.ready & set(observed.split_names_in_rules):
            return Wait(f"the Service {original} has a ready endpoint", is_condition=True)
        # | any | a split gets requests | send all to the Service and mark the record as restoring |
        rules_with_weight_0 = rules.without_split(
            route.rules, original, route.namespace, observed.split_names, route.record,
            retained=observed.services)
        return update_rules(route, record, rules_with_weight_0, names)
    # | any | the rules name a split, and a Gateway has not observed them | wait |
    if not route.is_current:
        return WAIT_FOR_GATEWAYS
    # | any | the rules name a split, and requests in progress may use older rules | wait 5 s |
    if not observed.is_drained:
        return DRAIN
    # | any | the rules still name a Service of a split | restore the rules without the split |
    restored_rules = rules.without_split(route.rules, original, route.namespace,
                                         observed.split_names, route.record)
    write = patch_route(route, record, restored_rules)
    return Step(Action.RESTORE, route.name, write,
                before=rules.describe(route.rules, names, route.namespace),
                after=rules.describe(restored_rules, names, route.namespace))


def _remove_split(observed: Observed) -> Decision | None:
    """Return the next step to restore the route; None if nothing remains of a split."""
    route, record, services = observed.route, observed.route.record, observed.split_services
    if observed.split_names_in_rules:
        return _restore_rules(observed)
    if not services:
        # | splitting, restoring | no Service of a split exists | remove the record from the route |
        if record is None:
            return None
        return Step(Action.RESTORE, route.name, patch_route(route, None),
                    before=f"split of {record.service}")
    # | none, splitting | a Service of a split exists | write the record as restoring |
    if record is None or not record.is_restoring:
        record_to_mark = record or Record(observed.unrecorded_original, route.resource_version)
        return Step(Action.ANNOTATE, route.name,
                    patch_route(route, dataclasses.replace(record_to_mark, is_restoring=True)),
                    after="restoring")
    # | restoring | a Gateway has not observed the rules | wait |
    if not route.is_current:
        return WAIT_FOR_GATEWAYS
    # | restoring | requests in progress may use older rules | wait 5 s |
    if not observed.is_drained:
        return DRAIN
    # | restoring | a Service of a split exists | delete this Service |
    service = services[min(services)]
    if service.is_deleting:
        return Wait(f"the Service {service.name} is gone", is_condition=True)
    preconditions = {"uid": service.uid, "resourceVersion": service.resource_version}
    return Step(Action.DELETE, service.name, Delete(service.name, preconditions, "Service"),
                before=dict(service.selector))


def restore(observed: Observed) -> Decision:
    """Return the next step of a restoration, a wait or the end. Raises RolloutError."""
    route, controller = observed.route, observed.controller
    if decision := _remove_split(observed):
        return decision
    # | none | the controller's annotation names the route | remove the route from the annotation |
    if controller and observed.is_route_named_by_controller:
        return remove_route_from_annotation(controller, route.full_name)
    return Done(f"{route.name} has no traffic split")


def remove_route_from_annotation(controller: Controller, route: RouteName) -> Step:
    """Return the step that removes the route from the controller's annotation."""
    routes = tuple(name for name in parse_routes(controller.annotations) if name != route)
    return Step(Action.RESTORE, controller.name, patch_routes_annotation(controller, routes),
                before=str(route))


def patch_routes_annotation(controller: Controller, routes: t.Sequence[RouteName]) -> Patch:
    """Return the patch that writes the annotation TRAFFIC_ROUTES.

    routes: () removes the annotation.
    """
    annotations, path = controller.annotations, annotation(TRAFFIC_ROUTES)
    operations = [test("/metadata/uid", controller.uid)]
    if annotations:
        operations.append(test(path, annotations.get(TRAFFIC_ROUTES)))
    else:
        operations += [test("/metadata/annotations", None), put("/metadata/annotations", {})]
    operations.append(put(path, ",".join(map(str, routes))) if routes
                      else {"op": "remove", "path": path})
    return Patch(controller.name, tuple(operations), controller.kind)


def patch_route(route: Route, record: Record | None,
                changed_rules: t.Sequence[Json] | None = None) -> Patch:
    """Return the patch that writes the record and the rules.

    record: None removes the record. changed_rules: None keeps the rules.
    """
    return patch_with_record(route, (TRAFFIC_SPLIT, record.text if record else None), "/spec/rules",
                             list(route.rules),
                             None if changed_rules is None else list(changed_rules))


def patch_with_record(route: Route, entry: tuple[str, str | None], path: str,
                      observed_value: t.Any, new_value: t.Any) -> Patch:
    """Return the patch that writes a record and a field.

    The patch fails if the record or the field has changed since the observation.
    entry: key and value of the annotation. The value None removes the annotation.
    new_value: None keeps the field.
    """
    key, value = entry
    stored_value = route.annotations.get(key)
    operations = [test("/metadata/uid", route.uid), test(path, observed_value)]
    if route.annotations:
        operations.append(test(annotation(key), stored_value))
    else:
        operations += [test("/metadata/annotations", None), put("/metadata/annotations", {})]
    if new_value is not None:
        operations.append(put(path, new_value))
    if value is not None:
        operations.append(put(annotation(key), value))
    elif stored_value is not None:
        operations.append({"op": "remove", "path": annotation(key)})
    return Patch(route.name, tuple(operations), route.kind)

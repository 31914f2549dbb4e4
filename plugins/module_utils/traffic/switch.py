# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the next step of blue/green without a route, by the selector of a Service. No I/O.

One write adds the label of a version (such as pod-template-hash=1a2b) to the selector, and stores
the record in an annotation. The record is the selector without this label. A restoration removes
the label and the record.

Any user with annotate permission can forge the record, or name any Service in the annotation of the
controller. So the selector in the record is never written to the Service, and an update changes
only a Service that selects pods of the controller.

Comments `| record of the split | condition | step |` are rows of the tables in
docs/how-to/blue-green.md (a test compares the comments with the tables). The page also defines the
terms. The first row that applies decides. The record is "none" if the record is missing or invalid.
A write is needed if the selector lacks the requested version, or if there is no valid record. A
wait ends with an error after `timeout`. In follow(), the first column is the required state (Goal),
and "restore the Service" means the next step of _restore().
"""

from __future__ import annotations

from ..explain.pod_health import is_healthy
from ..model.errors import RolloutError
from ..model.fields import Json, mapping, pairs, text
from ..model.identity import canonical
from ..model.steps import Action, Decision, Done, Patch, Step, Wait
from ..model.template import labels_of
from .follow import Goal
from .observed import Observed, Service, Versions
from .planner import (
    annotate,
    end_of_skipped_task,
    is_skipped,
    label,
    patch_with_record,
    remove_route_from_annotation,
)
from .record import TRAFFIC_SELECTOR, parse_selector, without_version
from .request import TrafficRequest

#: The wait after a write of the selector.
WAIT_FOR_ENDPOINTS = Wait("the EndpointSlices have the pods that the Service selects",
                          is_condition=True)


def plan(request: TrafficRequest, observed: Observed) -> Decision:
    """Return the next step, a wait or the end. Raises RolloutError."""
    # | record of the split | condition | step |
    # | any | a role prepares an update, and an update is already in progress | done |
    # | any | a role prepares an update, and nothing has to be updated | done |
    if is_skipped(request, observed):
        return end_of_skipped_task(request, observed)
    service = observed.service
    if service is None or observed.versions is None:
        return _restore(request, observed)
    return _switch(request, observed, service, observed.versions)


def _refuse_unsuitable_service(request: TrafficRequest, observed: Observed,
                               service: Service) -> None:
    """Raise RolloutError if the Service cannot switch between the versions."""
    where, versions = observed.route.where, observed.versions
    common_selector = without_version(service.selector, request.label_key)
    if service.is_deleting:
        raise RolloutError("the Service is being deleted", where=where)
    # | any | without the version label, the selector does not select old and new pods | error |
    if not (common_selector and versions
            and all(common_selector.items() <= labels.items() for labels in versions.labels)):
        raise RolloutError(
            f"the Service does not select the old and new pods of {request.name}", where=where,
            why=f"its selector is {pairs(service.selector) or 'empty'}",
            next_command=f"{request.kubectl} get service -o wide")
    # | none | the selector has a version label, and no annotation proves a split | error |
    if common_selector != service.selector and not _is_split(request, observed, service):
        raise RolloutError(f"the Service {service.name} selects one version only", where=where,
                           why=f"its selector is {pairs(service.selector)}",
                           next_command="remove the label of the version from its selector")


def _switch(request: TrafficRequest, observed: Observed, service: Service,
            versions: Versions) -> Decision:
    version = versions.new if request.share.new else versions.old
    selector = {**without_version(service.selector, request.label_key), versions.key: version}
    _refuse_unsuitable_service(request, observed, service)
    # | any | the controller's annotation lacks the Service | add the Service to the annotation |
    if observed.controller and not observed.is_route_named_by_controller:
        return annotate(request, observed.route, observed.controller)
    # | any | an old pod lacks the version label | add the label to the pod |
    if versions.unlabeled:
        return label(versions)
    if selector != service.selector or not _has_record(service):
        # | any | a write is needed, and the Service has a ready pod of neither version | error |
        _refuse_foreign_pods(request, observed, versions)
        # | any | a write is needed, and no pod of the requested version is ready | wait |
        if not _ready_uids(observed, selector):
            return Wait(f"a pod with the label {versions.key}={version} is ready",
                        is_condition=True)
        # | any | a write is needed | write the selector and the record |
        return _select(request, observed, service, selector)
    # | any | the EndpointSlices lack a ready selected pod, or have an unselected pod | wait |
    # | any | the EndpointSlices have all ready selected pods, and no unselected pod | done |
    done = Done(f"{request.share} of the requests for {service.name} go to the new pods of "
                f"{request.name}")
    return _wait_for_endpoints(observed, service, done)


def _refuse_foreign_pods(request: TrafficRequest, observed: Observed, versions: Versions) -> None:
    """Raise RolloutError if the Service selects a ready pod that is neither old nor new."""
    own_versions = {versions.old, versions.new} - {""}  # "" while there are no new pods
    foreign_pods = [pod for pod in observed.pods if is_healthy(pod)
                    and text(labels_of(pod), versions.key) not in own_versions]
    if foreign_pods:
        names = sorted(text(mapping(pod, "metadata"), "name") for pod in foreign_pods)
        raise RolloutError("the Service also selects pods of other controllers or versions",
                           where=observed.route.where,
                           why=f"they would get no requests: {', '.join(names[:3])}"
                               f"{', ...' if len(names) > 3 else ''}",
                           next_command=f"{request.kubectl} get pods -L {versions.key}")


def _select(request: TrafficRequest, observed: Observed, service: Service, selector: Json) -> Step:
    record = canonical(without_version(service.selector, request.label_key))
    return Step(Action.UPDATE, service.name, _patch(observed, service, record, selector),
                before=dict(service.selector), after=selector)


def _patch(observed: Observed, service: Service, record: str | None, selector: Json) -> Patch:
    return patch_with_record(observed.route, (TRAFFIC_SELECTOR, record), "/spec/selector",
                             dict(service.selector), selector)


# A restoration

def _restore(request: TrafficRequest, observed: Observed) -> Decision:
    service, controller = observed.service, observed.controller
    if service is None:
        return Done(f"{observed.route.name} has no traffic split")
    common_selector = without_version(service.selector, request.label_key)
    # | record of the split | condition | step |
    # | any | a split has added a version label to the selector | remove the label and the record |
    # | any | the Service still has a record, even an invalid one | remove the record |
    if (is_split := _is_split(request, observed, service)) or (
            TRAFFIC_SELECTOR in service.annotations):
        restored_selector = common_selector if is_split else dict(service.selector)
        write = _patch(observed, service, None, restored_selector)
        return Step(Action.RESTORE, service.name, write,
                    before=dict(service.selector), after=restored_selector)
    # | any | the controller's annotation has the Service, and EndpointSlices are outdated | wait |
    # | any | the controller's annotation has the Service | remove this entry |
    if controller and observed.is_route_named_by_controller:
        step = remove_route_from_annotation(controller, observed.route.full_name)
        return _wait_for_endpoints(observed, service, step)
    # | any | nothing of a split remains | done |
    return Done(f"{service.name} has no traffic split")


# During an update

def follow(goal: Goal, request: TrafficRequest, observed: Observed) -> Decision:
    """Return the next step towards the goal, a wait or the end. Raises RolloutError."""
    service, versions = observed.service, observed.versions
    # | required state | condition | step |
    # | any | the Service is missing, or selects other pods only | remove it from the annotation |
    if service is None or not selects_controller_pods(request, observed):
        if observed.controller and observed.is_route_named_by_controller:
            return remove_route_from_annotation(observed.controller, observed.route.full_name)
        return Done(f"{observed.route.name} has no traffic split of {request.name}")
    selected_version = _selected_version(request, service)
    # | any | the selector has a version label, but the Service has no valid record | error |
    if selected_version and not _has_record(service):
        raise RolloutError(
            f"the Service {service.name} selects one version only, and has no valid record",
            where=observed.route.where, why=f"another client has changed the annotation "
            f"{TRAFFIC_SELECTOR}, or the selector",
            next_command=("to let the Service select all pods:", request.restore_command))
    # | restored, or all requests for the new pods | only the new pods are selected | done |
    # Without new pods, versions.new is "", too.
    if (goal is Goal.SWITCHED and selected_version and versions
            and selected_version == versions.new):
        message = f"all requests of {service.name} go to the new pods of {request.name}"
        return _wait_for_endpoints(observed, service, Done(message))
    if goal is Goal.OLD_ONLY and selected_version and versions:
        selector = {**service.selector, versions.key: versions.old}
        if _ready_uids(observed, selector):
            # | no requests for the new pods | a ready old pod is unselected | select the old pods |
            if selector != service.selector:
                return _select(request, observed, service, selector)
            # | no requests for the new pods | only old pods are selected, and one is ready | done |
            message = f"no requests of {service.name} go to the new pods of {request.name}"
            return _wait_for_endpoints(observed, service, Done(message))
    # | any | any other case | restore the Service |
    return _restore(request, observed)


def selects_controller_pods(request: TrafficRequest, observed: Observed) -> bool:
    """Return whether the selector without the version label selects pods of the controller."""
    if observed.service is None or observed.controller is None:
        return False
    common_selector = without_version(observed.service.selector, request.label_key)
    labels = labels_of(observed.controller.template)
    return bool(common_selector) and common_selector.items() <= labels.items()


def share_of(request: TrafficRequest, observed: Observed) -> str:
    """Return the new pods' share of the requests: "0%", "100%", or "" if unknown."""
    versions, service = observed.versions, observed.service
    version = _selected_version(request, service) if service else ""
    shares = {versions.old: "0%", versions.new: "100%"} if version and versions else {}
    return shares.get(version, "")


def split_services(request: TrafficRequest, observed: Observed) -> list[str]:
    """Return [name] if the selector of the Service has a version label, or else []."""
    service = observed.service
    return [service.name] if service and _selected_version(request, service) else []


# The state

def _selected_version(request: TrafficRequest, service: Service) -> str:
    """Return the version in the selector, such as "1a2b", or "" if none."""
    common_selector = without_version(service.selector, request.label_key)
    return next((text(service.selector, key) for key in service.selector
                 if key not in common_selector), "")


def _has_record(service: Service) -> bool:
    return parse_selector(service.annotations.get(TRAFFIC_SELECTOR)) is not None


def _is_split(request: TrafficRequest, observed: Observed, service: Service) -> bool:
    """Return whether a split has added the label of a version to the selector."""
    has_other_labels = bool(without_version(service.selector, request.label_key))
    return (has_other_labels and bool(_selected_version(request, service))
            and (_has_record(service) or observed.is_route_named_by_controller))


def _ready_uids(observed: Observed, selector: Json) -> frozenset[str]:
    return frozenset(text(mapping(pod, "metadata"), "uid") for pod in observed.pods
                     if is_healthy(pod) and selector.items() <= labels_of(pod).items())


def _wait_for_endpoints(observed: Observed, service: Service, decision: Decision) -> Decision:
    """Return the decision if the EndpointSlices are up to date, or else WAIT_FOR_ENDPOINTS."""
    selector = service.selector
    unselected_uids = {text(mapping(pod, "metadata"), "uid") for pod in observed.pods
                       if not selector.items() <= labels_of(pod).items()}
    is_current = (_ready_uids(observed, selector) <= observed.endpoint_uids
                  and observed.endpoint_uids.isdisjoint(unselected_uids))
    return decision if is_current else WAIT_FOR_ENDPOINTS

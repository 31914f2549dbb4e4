# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks before the first write: permissions, and warnings about related objects."""

from __future__ import annotations

import functools
import typing as t

from ..cluster.gateway import Gateway, prefetch
from ..flows import argo_rollouts, roll_on, soak
from ..flows.flow import AnyFlow, Memory
from ..model.fields import Json
from ..model.observed import Observed
from ..model.request import Request
from . import image_drift

if t.TYPE_CHECKING:
    from ..explain.quotas import Amounts

#: Maps a field of preflight_warnings.RelatedObjects to a resource.
RESOURCES = {"services": "services", "budgets": "poddisruptionbudgets",
             "autoscalers": "horizontalpodautoscalers", "quotas": "resourcequotas",
             "nodes": "nodes"}
#: The resource of Argo Rollouts, and its key in Responses.
ROLLOUTS = "rollouts"
#: Fields to read under the Lease, since the previous holder may have changed these objects.
FIELDS_READ_UNDER_LEASE = ("budgets", "autoscalers")
#: Functions that wait for a response, by field of RelatedObjects or by another key.
Responses: t.TypeAlias = "dict[str, t.Callable[[], t.Any]]"


def check_permissions_and_send_requests(flow: AnyFlow, request: Request, gateway: Gateway,
                                        memory: Memory, observed: Observed) -> Responses:
    """Check the permissions of the task, and request the related objects.

    Disables optional features that lack permissions. Returns the responses to requests that need
    no Lease. Raises RolloutError.
    """
    from ..explain import permissions

    responses: Responses = {}
    if _begins_update_with_new_pods(flow, observed):
        responses = _send_requests(gateway, "services", "quotas", "nodes")
    if source := flow.handover_source(request, observed):
        # This response raises RolloutError if the handover is forbidden.
        responses["refusal"] = prefetch(
            gateway, functools.partial(gateway.refuse_forbidden_handover, source))
    rules = gateway.rules()
    if _should_read_rollouts(request, observed, rules):
        responses[ROLLOUTS] = prefetch(gateway, functools.partial(gateway.objects, ROLLOUTS))
    if rules is None:
        return responses
    has_soak = soak.is_requested(request)
    required_rules = [*flow.required_permissions(request), *roll_on.required_permissions(request),
                      *image_drift.required_permissions(request),
                      *(soak.REQUIRED_PERMISSIONS if has_soak else ())]
    permissions.refuse_missing(rules, required_rules, request)
    if missing := permissions.describe_missing(rules, flow.optional_permissions(request)):
        flow.disable_optional_features(memory, f"not allowed: {missing}")
    if has_soak and (missing := permissions.describe_missing(rules, soak.OPTIONAL_PERMISSIONS)):
        memory.warnings.append("the soak does not compare the warnings (Events) of new and old "
                               f"pods, because permissions are missing: {missing}")
    return responses


def _should_read_rollouts(request: Request, observed: Observed,
                          rules: t.Sequence[Json] | None) -> bool:
    from ..explain import permissions

    if observed.in_progress or not argo_rollouts.may_be_referenced(request):
        return False
    return rules is None or not permissions.describe_missing(rules, [argo_rollouts.LIST_RULE])


def send_requests_under_lease(
        flow: AnyFlow, request: Request, gateway: Gateway, observed: Observed) -> Responses:
    """Request the objects for the planner. The task must hold the Lease.

    The previous holder of the Lease may have changed these objects.
    """
    responses = _send_requests(gateway, *FIELDS_READ_UNDER_LEASE)
    if (flow.optional_permissions(request) and _begins_update_with_new_pods(flow, observed)
            and observed.primary):
        pending_revisions = gateway.start_in_background(
            functools.partial(gateway.revisions, [observed.primary.uid]))
        responses |= {"revisions": pending_revisions.result} if pending_revisions else {}
    return responses


def _begins_update_with_new_pods(flow: AnyFlow, observed: Observed) -> bool:
    """Return whether an update that creates pods is about to begin."""
    return bool(flow.creates_pods and observed.primary and not observed.in_progress)


def _send_requests(gateway: Gateway, *fields: str) -> Responses:
    return {field: prefetch(gateway, functools.partial(gateway.objects, RESOURCES[field]))
            for field in fields}


def read_autoscalers_before_rollback(request: Request, gateway: Gateway, memory: Memory) -> None:
    """Read the autoscaler before a rollback: a killed task may have left it frozen."""
    if request.state.rolls_back and not memory.has_begun:
        read_autoscalers(gateway, memory)


def store_related_objects(flow: AnyFlow, request: Request, gateway: Gateway, memory: Memory,
                          observed: Observed, responses: Responses) -> list[str]:
    """Store the related objects and the preflight warnings in `memory`.

    Returns the warnings of the flow, which the driver prints. Raises RolloutError.
    """
    from ..explain import gitops
    from ..explain.preflight_warnings import RelatedObjects, warnings

    if "budgets" not in responses:
        responses = {**_send_requests(gateway, *FIELDS_READ_UNDER_LEASE), **responses}
    values: dict[str, list[Json] | None] = {
        field: response() for field, response in responses.items()}
    memory.budgets, memory.autoscalers = values["budgets"], values["autoscalers"]
    values.pop("refusal", None)
    argo_rollouts.refuse_referenced_controller(request, observed, values.pop(ROLLOUTS, None))
    if "revisions" in values:
        memory.revisions = values.pop("revisions")
    related = RelatedObjects(**values) if "services" in values else None
    # Do not warn before a rollback of the update in progress: this rollback restores the template
    # that the GitOps tool applies.
    if observed.controller_in_git and not (observed.in_progress and request.rolls_back_update):
        memory.warnings += gitops.warnings(flow, request, observed.controller_in_git)
    if related and observed.primary:
        template = observed.desired_template or observed.primary.template
        memory.warnings += warnings(flow, request, observed.primary, template, related)
    flow_warnings = flow.warnings(request, memory)
    memory.warnings += flow_warnings
    return flow_warnings


def needed_quota(flow: AnyFlow, request: Request, observed: Observed) -> Amounts:
    """Return the resources that an update with keep_old adds to the usage of a quota.

    Empty for an update in progress: the usage already includes some of the new pods.
    """
    from ..explain.preflight_warnings import added_usage
    from ..explain.quotas import Amounts

    if not (_begins_update_with_new_pods(flow, observed) and observed.primary):
        return Amounts()
    template = observed.desired_template or observed.primary.template
    return added_usage(flow, request, observed.primary, template)


def read_autoscalers(gateway: Gateway, memory: Memory) -> None:
    """Store the HorizontalPodAutoscalers in `memory`; None if the task may not list them."""
    memory.autoscalers = gateway.objects(RESOURCES["autoscalers"])

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks before the first write: permissions, and objects related to the update."""

from __future__ import annotations

import functools
import typing as t

from ..cluster.gateway import Gateway, prefetch
from ..flows import soak
from ..flows.flow import Flow, Memory
from ..model.fields import Json
from ..model.observed import Observed
from ..model.request import Request

#: Resources of the fields of RelatedObjects.
RESOURCES = {"services": "services", "budgets": "poddisruptionbudgets",
             "autoscalers": "horizontalpodautoscalers", "quotas": "resourcequotas",
             "nodes": "nodes"}
#: Resources of steps, which a previous holder of the Lease may have changed.
REREAD = ("budgets", "autoscalers")
#: Pending answers of the API server by name; a call waits for the answer.
Answers: t.TypeAlias = "dict[str, t.Callable[[], t.Any]]"


def check_permissions(flow: Flow, request: Request, gateway: Gateway, memory: Memory,
                      observed: Observed) -> Answers:
    """Raise RolloutError for missing permissions; disable optional features that are not allowed.

    Returns the answers of requests sent meanwhile, for objects that no step depends on: safe to
    read before the Lease is held.
    """
    from ..explain import permissions

    answers: Answers = {}
    if _makes_new_pods(flow, observed):
        answers = _request(gateway, "services", "quotas", "nodes")
    if source := flow.handover_source(request, observed):
        answers["refusal"] = prefetch(gateway, functools.partial(gateway.refuse_hand_over, source))
    rules = gateway.rules()
    if rules is None:
        return answers
    watches = soak.is_requested(request)
    needs = [*flow.needs(request), *(soak.NEEDS if watches else ())]
    permissions.refuse_missing(rules, needs, request)
    if missing := permissions.missing(rules, flow.optional_permissions(request)):
        flow.disable_optional_features(memory, f"not allowed: {missing}")
    if watches and (missing := permissions.missing(rules, soak.OPTIONAL_PERMISSIONS)):
        memory.warnings.append("the soak does not compare warnings of new and old pods, which are "
                               f"Events: not allowed: {missing}")
    return answers


def request_related(flow: Flow, request: Request, gateway: Gateway, observed: Observed) -> Answers:
    """Request the objects that a previous holder of the Lease may have changed.

    The history, which is only needed later, is included on a slow connection.
    """
    answers = _request(gateway, *REREAD)
    if flow.optional_permissions(request) and _makes_new_pods(flow, observed) and observed.primary:
        pending = gateway.start_in_background(
            functools.partial(gateway.revisions, [observed.primary.uid]))
        answers |= {"revisions": pending.result} if pending else {}
    return answers


def _makes_new_pods(flow: Flow, observed: Observed) -> bool:
    return bool(flow.makes_pods and observed.primary and not observed.in_progress)


def _request(gateway: Gateway, *fields: str) -> Answers:
    return {field: prefetch(gateway, functools.partial(gateway.objects, RESOURCES[field]))
            for field in fields}


def note_frozen_autoscaler(request: Request, gateway: Gateway, memory: Memory) -> None:
    """Read the autoscalers for a rollback, in case a killed task had frozen one."""
    if request.state.undoes and not memory.has_begun:
        read_autoscalers(gateway, memory)


def note_related(flow: Flow, request: Request, gateway: Gateway, memory: Memory, observed: Observed,
                 answers: Answers) -> list[str]:
    """Note related objects and preflight warnings.

    Raises RolloutError if pods cannot be reparented.

    Returns the flow's own warnings, which are about irreversible steps.
    """
    from ..explain import gitops
    from ..explain.preflight_warnings import RelatedObjects, warnings

    if "budgets" not in answers:
        answers = {**_request(gateway, *REREAD), **answers}
    values: dict[str, list[Json] | None] = {field: answer() for field, answer in answers.items()}
    memory.budgets, memory.autoscalers = values["budgets"], values["autoscalers"]
    values.pop("refusal", None)
    if "revisions" in values:
        memory.revisions = values.pop("revisions")
    related = RelatedObjects(**values) if "services" in values else None
    if observed.named_controller and not observed.in_progress:
        memory.warnings += gitops.warnings(flow, request, observed.named_controller)
    if related and observed.primary:
        template = observed.desired or observed.primary.template
        memory.warnings += warnings(flow, request, observed.primary, template, related)
    flow_warnings = flow.warnings(request, memory)
    memory.warnings += flow_warnings
    return flow_warnings


def read_autoscalers(gateway: Gateway, memory: Memory) -> None:
    """Read the HorizontalPodAutoscalers; without permission, none exist."""
    memory.autoscalers = gateway.objects(RESOURCES["autoscalers"])

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Before the first write: is all of it allowed, and what around it will not work?"""

from __future__ import annotations

import functools
import typing as t

from ..cluster.gateway import Gateway, ahead
from ..flows import soak
from ..flows.flow import Flow, Memory
from ..model.fields import Json
from ..model.observed import Observed
from ..model.request import Request

#: The resources that the fields of Surroundings are lists of.
AROUND = {"services": "services", "budgets": "poddisruptionbudgets", "autoscalers": "horizontalpodautoscalers",
          "quotas": "resourcequotas", "nodes": "nodes"}


#: Those that a task that held the Lease before may have changed, and steps depend on.
CHANGING = ("budgets", "autoscalers")
#: What is asked of the cluster before the first write, each by its own name; called, it tells.
Asked: t.TypeAlias = "dict[str, t.Callable[[], t.Any]]"


def allowed(flow: Flow, request: Request, gateway: Gateway, memory: Memory, seen: Observed) -> Asked:
    """Raise RolloutError for what is needed and not allowed, as far as the API server tells; do without what is only wished for.

    Returns what has been asked beside that: what may be known before the Lease is held, since no step depends on it.
    """
    from ..explain import permissions

    asked: Asked = _ask_for(gateway, "services", "quotas", "nodes") if _makes_new_pods(flow, seen) else {}
    if giver := flow.gives_pods(request, seen):
        asked["refusal"] = ahead(gateway, functools.partial(gateway.refuse_hand_over, giver))
    rules = gateway.rules()
    if rules is None:
        return asked
    watches = soak.is_asked(request)
    permissions.refuse_missing(rules, [*flow.needs(request), *(soak.NEEDS if watches else ())], request)
    if missing := permissions.missing(rules, flow.wishes(request)):
        flow.forgo(memory, f"not allowed: {missing}")
    if watches and (missing := permissions.missing(rules, soak.WISHES)):
        memory.warnings.append(f"the soak does not compare warnings of new and old pods, which are Events: not allowed: {missing}")
    return asked


def ask_meanwhile(flow: Flow, request: Request, gateway: Gateway, seen: Observed) -> Asked:
    """What tasks write that have held the Lease before; of the history, which is needed later, only where answers take long."""
    asked = _ask_for(gateway, *CHANGING)
    if flow.wishes(request) and _makes_new_pods(flow, seen) and seen.primary:
        begun = gateway.beside(functools.partial(gateway.revisions, [seen.primary.uid]))
        asked |= {"revisions": begun.result} if begun else {}
    return asked


def _makes_new_pods(flow: Flow, seen: Observed) -> bool:
    return bool(flow.makes_pods and seen.primary and not seen.in_progress)


def _ask_for(gateway: Gateway, *fields: str) -> Asked:
    return {field: ahead(gateway, functools.partial(gateway.objects, AROUND[field])) for field in fields}


def look_for_the_frozen(request: Request, gateway: Gateway, memory: Memory) -> None:
    """The autoscaler, where an update is to be undone: a task may have been killed that had frozen it and done nothing else."""
    if request.state.undoes and not memory.has_begun:
        note_around(gateway, memory, "autoscalers")


def look_around(flow: Flow, request: Request, gateway: Gateway, memory: Memory, seen: Observed, asked: Asked) -> list[str]:
    """What the update depends on, with warnings of what will not work. Raises RolloutError where pods may not be handed over.

    Returns those of them that the flow itself has: they are about what cannot be undone.
    """
    from ..explain import gitops
    from ..explain.surroundings import Surroundings, warnings

    asked = {**(_ask_for(gateway, *CHANGING) if "budgets" not in asked else {}), **asked}
    found: dict[str, list[Json] | None] = {field: tell() for field, tell in asked.items()}
    for field in CHANGING:
        setattr(memory, field, found[field])
    found.pop("refusal", None)
    if "revisions" in found:
        memory.revisions = found.pop("revisions")
    around = Surroundings(**found) if "services" in found else None
    if seen.named and not seen.in_progress:
        memory.warnings += gitops.warnings(request, seen.named)
    if around and seen.primary:
        memory.warnings += warnings(request, seen.primary, seen.wanted or seen.primary.template, around)
    own = flow.warnings(request, memory)
    memory.warnings += own
    return own


def note_around(gateway: Gateway, memory: Memory, *fields: str) -> None:
    """Budgets and autoscalers as they are now; what may not be seen counts as not there."""
    for field in fields:
        setattr(memory, field, gateway.objects(AROUND[field]))

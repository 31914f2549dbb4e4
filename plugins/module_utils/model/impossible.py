# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse requests with options that are impossible together."""

from __future__ import annotations

from .errors import RolloutError
from .fields import Json
from .request import Request

#: Values of pod_replacement_policy, as in spec.podReplacementPolicy of a Deployment (KEP-5882).
TERMINATION_STARTED, TERMINATION_COMPLETE = "TerminationStarted", "TerminationComplete"

SELECTORS = ("label_selectors", "field_selectors")
SINGLE_CONTROLLER_OPTIONS = ("next_name", "definition", "src", "to_revision")


def refuse_impossible_selection(params: Json) -> None:
    """Refuse an invalid selection of controllers, and options that the selection excludes.

    Raises RolloutError.
    """
    options = [option for option in ("name", "names", *SELECTORS) if params.get(option)]
    if len(options) != 1 and options != list(SELECTORS):
        raise RolloutError("give exactly one of name, names, or selectors (label_selectors, "
                           f"field_selectors); given: {' and '.join(options) or 'none'}")
    if params.get("kinds") and options[0] not in SELECTORS:
        raise RolloutError("several kinds require label_selectors or field_selectors: give one "
                           f"kind with {options[0]}")
    if options == ["name"]:
        return
    for option in SINGLE_CONTROLLER_OPTIONS:
        if params.get(option):
            raise RolloutError(f"{option} can only be used with a single controller: give name")
    if params.get("wait") is False:
        raise RolloutError("wait=false can only be used with a single controller: give name")
    concurrency = params.get("concurrency")
    if concurrency is not None and concurrency < 1:
        raise RolloutError(f"concurrency must be at least 1, not {concurrency}")


def refuse_impossible_request(request: Request) -> None:
    """Refuse a request that cannot be fulfilled. Raises RolloutError."""
    _refuse_unsupported_limits(request)
    if request.keeps_old and (request.is_unresolved or not request.rolls_back_update):
        _check_keep_old(request)
    if request.suspends_gitops and request.next_name:
        raise RolloutError("suspend_gitops cannot be used with next_name, because the update "
                           "deletes the controller, and Flux creates it again from its manifest: "
                           "leave suspend_gitops out, and change the manifest first")
    if not request.waits:
        _check_wait_false(request)
    if request.nodes:
        _check_nodes(request)
    if request.definition is not None:
        namespace = request.definition["metadata"].get("namespace") or request.namespace
        if namespace != request.namespace:
            raise RolloutError(f"the definition is for namespace {namespace}, but the task is for "
                               f"{request.namespace}")
    if request.max_surge.value == 0 and request.max_unavailable.value == 0:
        raise RolloutError("max_surge and max_unavailable are both 0, so no pod could ever be "
                           "replaced: set one of them to at least 1", depends_on_kind=True)
    _check_durations(request)


def _refuse_unsupported_limits(request: Request) -> None:
    """Refuse max_surge, max_unavailable and pod_replacement_policy if the kind lacks support."""
    if request.kind.replaces_in_place and (request.max_surge.value
                                           or not request.max_unavailable.value):
        option = "max_surge" if request.max_surge.value else "max_unavailable=0"
        raise RolloutError(f"{option} cannot be used with kind={request.kind}, because a pod is "
                           "deleted before its replacement is created: leave it out")
    if request.kind.has_exclusive_surge and request.max_surge.value:
        if request.max_unavailable.value:
            raise RolloutError("max_surge and max_unavailable cannot be combined for "
                               f"kind={request.kind}: the API server takes only one of them")
        if request.pause_at is not None and not request.state.rolls_back:
            raise RolloutError(f"max_surge cannot be used with pause_at and kind={request.kind}, "
                               "because with pause_at, an old pod is deleted before its "
                               "replacement is created: set max_unavailable instead")
    has_replica_sets = (request.kind.is_server_driven
                        and not request.kind.uses_controller_revisions)
    if request.waits_for_termination and has_replica_sets:
        raise RolloutError(f"pod_replacement_policy={TERMINATION_COMPLETE} cannot be used with "
                           f"kind={request.kind}, because the cluster itself performs the update: "
                           "leave it out, and where the cluster has the feature gate "
                           "DeploymentPodReplacementPolicy, set spec.podReplacementPolicy of the "
                           "Deployment")


def _check_keep_old(request: Request) -> None:
    if request.kind.uses_controller_revisions:
        raise RolloutError(f"keep_old cannot be used with kind={request.kind}, because an old pod "
                           "is deleted before its replacement is created: leave it out")
    if request.pause_at is None:
        raise RolloutError("keep_old keeps the old pods until a pause: set pause_at as well, for "
                           "example pause_at=100%")
    if request.overrides_strategy:
        raise RolloutError("max_surge and max_unavailable cannot be used with keep_old, which "
                           "removes no old pod and therefore adds all new pods: leave them out")


def _check_nodes(request: Request) -> None:
    if not request.kind.runs_on_each_node:
        raise RolloutError(f"nodes cannot be used with kind={request.kind}, which does not have "
                           f"one pod on each node: leave it out", depends_on_kind=True)
    if request.pause_at is None:
        raise RolloutError("nodes selects the pods to replace before a pause: set pause_at as well")


def _check_durations(request: Request) -> None:
    if (request.timeout is not None and request.soak >= request.timeout
            and not request.state.rolls_back):
        raise RolloutError(f"timeout ({request.timeout:g} s) must be greater than soak "
                           f"({request.soak:g} s)")
    if (request.min_ready_seconds or 0) >= request.progress_deadline:
        # Otherwise, no pod could become available in time. The API server has the same rule for
        # Deployments.
        raise RolloutError(f"progress_deadline ({request.progress_deadline:g} s) must be greater "
                           f"than min_ready_seconds ({request.min_ready_seconds} s)")


def _check_wait_false(request: Request) -> None:
    """Refuse wait=false for an update in which the task itself has work to do."""
    # Each key is a part of an error message: an option, and why the option needs wait=true.
    reasons_to_wait = {
        f"kind={request.kind}, because the task itself scales the pods":
            not request.kind.is_server_driven,
        "pause_at, because the task itself pauses the update": request.pause_at is not None,
        "soak, because the task itself watches the pods": bool(request.soak),
        "suspend_gitops, because the task itself ends the suspension":
            request.suspends_gitops,
        "on_failure=rollback, because only a task that waits observes a failure":
            request.rolls_back_on_failure,
        f"state={request.state} and kind={request.kind}, because the task deletes the pods that "
        "the cluster does not replace":
            request.state.rolls_back and request.kind.uses_controller_revisions,
    }
    for reason, applies in reasons_to_wait.items():
        if applies:
            raise RolloutError(f"wait=false cannot be used with {reason}: leave wait=false out",
                               depends_on_kind=not request.kind.is_server_driven)

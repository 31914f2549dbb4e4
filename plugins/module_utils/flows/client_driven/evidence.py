# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Collect the evidence that a template is the result of a request.

Source of the rules: docs/internals/forged-annotations.md.
"""

from __future__ import annotations

from ...model.object_meta import RESTART
from ...model.observed import Controller, deployment_label
from ...model.request import Request
from .. import handover, provenance
from ..provenance import Match
from .observed import ClientDrivenObserved, expected_successor


def match(request: Request, observed: ClientDrivenObserved) -> Match:
    """Return how the template of the successor matches the request.

    Without a successor, compare the template of the primary.
    """
    primary, successor = observed.primary, observed.successor
    if successor is None:
        return Match.NO if primary is None else provenance.match(
            request, primary.template, observed.desired_template or {},
            is_recorded=provenance.is_end_recorded(request, primary),
            is_confirmed=observed.is_confirmed)
    if primary is None:
        return _match_without_primary(request, observed, successor)
    return _match_with_primary(request, observed, primary, successor)


def _match_with_primary(request: Request, observed: ClientDrivenObserved, primary: Controller,
                        successor: Controller) -> Match:
    """Return how the successor's template matches the request while the primary exists.

    The deployment label of the successor contains a hash of the request. A user who can create
    controllers can compute this hash, so another fact must confirm the template.
    """
    has_expected_name = (successor.name == request.next_name if request.next_name
                         else successor.is_named_for(primary.name))
    if not has_expected_name:
        return Match.NO
    template_hash = handover.stored_template_hash(successor.template)
    hash_recorded_by_primary = (
        primary.successor_hash if primary.partner_uid == successor.uid else None)
    is_confirmed_by_primary = (
        hash_recorded_by_primary == template_hash and bool(successor.current))
    is_confirmed_by_task = (
        hash_recorded_by_primary in (None, template_hash) and observed.is_created_by_this_task)
    dry_run_hash = (observed.dry_run_template
                    and handover.stored_template_hash(observed.dry_run_template))
    # expected_successor()[1] is the value of the deployment label.
    return provenance.match(
        request, successor.template, observed.desired_template or {},
        is_recorded=deployment_label(request, successor) == expected_successor(request, primary)[1],
        is_confirmed=(is_confirmed_by_primary or is_confirmed_by_task
                      or dry_run_hash == template_hash))


def _match_without_primary(request: Request, observed: ClientDrivenObserved,
                           successor: Controller) -> Match:
    """Return how the successor's template matches the request after the primary's deletion.

    The controller's annotations can be forged, but not its template. In the template, the priority
    class of a handover confirms the recorded request, and the annotation RESTART shows a restart.
    """
    # is_restart: the request is a restart. is_restarted: the template has the annotation RESTART.
    has_begun, is_restart = provenance.is_start_recorded(request, successor), request.state.restarts
    is_restarted = RESTART in (successor.template["metadata"].get("annotations") or {})
    is_recorded = has_begun or provenance.is_end_recorded(request, successor)
    is_confirmed = observed.is_confirmed or (has_begun and handover.is_closed(successor))
    return provenance.match(request, successor.template, observed.desired_template or {},
                            is_recorded=is_restarted if is_restart else is_recorded,
                            is_confirmed=is_restart or is_confirmed)


def is_handover_proven(primary: Controller | None, was_proven: bool) -> bool:
    """Return whether the task has observed the primary closed since the handover began.

    A user with annotate permission can forge the takeover annotation, but cannot close a template.
    """
    return bool(primary and primary.has_takeover and (was_proven or handover.is_closed(primary)))

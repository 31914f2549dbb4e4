# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List all series, longest first, so that the workers finish at about the same time.

HANDOVER_FLOW has faults at all its requests. Three other flows have faults only at their writes,
because they send the same reads.
"""

from __future__ import annotations

import dataclasses

import peer
from clients import ansible
from flows import DEPLOYMENT_PAUSE_FLOW, FLOWS, HANDOVER_FLOW, NEXT_NAME_FLOW, STUCK_FLOW
from injected import (
    FAULTS,
    PERMANENT_FAULTS,
    WATCH_FAULTS,
    FaultKind,
    any_json_patch,
    any_write,
    any_write_except_events,
    any_write_except_post,
)
from series import (
    ReferenceStates,
    Series,
    series_of_faults,
    series_of_kills,
    series_of_watch_faults,
)


def without_event_writes(kind: FaultKind) -> FaultKind | None:
    """Return the fault, limited to writes of objects other than Events, or None if it applies to
    reads.
    """
    if kind.applies not in (any_write, any_write_except_post, any_json_patch):
        return None
    return dataclasses.replace(kind,
                               applies=lambda exchange: kind.applies(exchange)
                               and any_write_except_events(exchange))


def series(with_peer: bool) -> list[Series]:
    references = ReferenceStates()
    return [
        *(peer.series() if with_peer else ()),
        series_of_kills(HANDOVER_FLOW, references, ansible),
        *(series_of_faults(HANDOVER_FLOW, references, kind, is_permanent=True)
          for kind in PERMANENT_FAULTS),
        *(series_of_watch_faults(HANDOVER_FLOW, references, name) for name in WATCH_FAULTS),
        *(series_of_kills(flow, references, runs_opposite=runs_opposite) for flow in FLOWS
          for runs_opposite in (False, True)
          if flow.opposite or not runs_opposite),
        *(series_of_faults(HANDOVER_FLOW, references, kind) for kind in FAULTS),
        *(series_of_faults(flow, references, kind)
          for flow in (NEXT_NAME_FLOW, DEPLOYMENT_PAUSE_FLOW, STUCK_FLOW)
          for kind in map(without_event_writes, FAULTS) if kind),
    ]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List all series, the longest first, so that none runs alone at the end.

Slow points run in a single flow: Events. With next_name, a Deployment or a StatefulSet, the reads
are the same: only writes are disturbed.
"""

from __future__ import annotations

import dataclasses

import peer
from clients import ansible
from flows import FLOWS, HANDOVER, PAUSE, STUCK, SUCCESSOR_NAME
from injected import (
    FAULTS,
    FOR_GOOD,
    WATCH_FAULTS,
    Kind,
    any_change,
    any_json_patch,
    any_step,
    any_write,
)
from series import References, Series, crash, disturb, disturb_watch


def at_steps_only(kind: Kind) -> Kind | None:
    """Return the fault limited to writes without Events; None for other faults."""
    if kind.applies not in (any_write, any_change, any_json_patch):
        return None
    return dataclasses.replace(kind,
                               applies=lambda exchange: kind.applies(exchange)
                               and any_step(exchange))


def series(with_peer: bool) -> list[Series]:
    references = References()
    return [
        *(peer.series() if with_peer else ()),
        crash(HANDOVER, references, ansible),
        *(disturb(HANDOVER, references, kind, for_good=True) for kind in FOR_GOOD),
        *(disturb_watch(HANDOVER, references, name) for name in WATCH_FAULTS),
        *(crash(flow, references, turns_round=turns_round) for flow in FLOWS
          for turns_round in (False, True)
          if flow.back or not turns_round),
        *(disturb(HANDOVER, references, kind) for kind in FAULTS),
        *(disturb(flow, references, fault) for flow in (SUCCESSOR_NAME, PAUSE, STUCK)
          for fault in map(at_steps_only, FAULTS) if fault),
    ]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All series, the longest first so that none is left alone at the end.

With a next_name the reads are the same as with a takeover: there only what concerns writes is tried.
"""

from __future__ import annotations

import peer
from clients import ansible
from flows import FLOWS, NEXT_NAME, TAKEOVER
from injected import FAULTS, FOR_GOOD, WATCH_FAULTS, any_change, any_json_patch, any_write
from series import References, Series, crash, disturb, disturb_watch


def series(with_peer: bool) -> list[Series]:
    references = References()
    return [
        *(peer.series() if with_peer else ()),
        crash(TAKEOVER, references, ansible),
        *(disturb(TAKEOVER, references, kind, for_good=True) for kind in FOR_GOOD),
        *(disturb_watch(TAKEOVER, references, name) for name in WATCH_FAULTS),
        *(crash(flow, references, turns_round=turns_round) for flow in FLOWS for turns_round in (False, True)),
        *(disturb(TAKEOVER, references, kind) for kind in FAULTS),
        *(disturb(NEXT_NAME, references, kind) for kind in FAULTS if kind.applies in (any_write, any_change, any_json_patch)),
    ]

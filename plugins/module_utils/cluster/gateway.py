# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the rest of the house may ask of a cluster, and of whom: kubernetes.py has a real one, simulated.py serves check mode."""

from __future__ import annotations

import concurrent.futures
import typing as t

from ..flows.flow import Anything, Cluster, RealCluster
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, Pod, TerminatingPod
from ..model.steps import HandOver, Write


class Reads(Cluster, t.Protocol):
    """What is there, and what would be; what a flow looks at, and what else is told of a rollout."""

    def wait(self, seconds: float) -> t.Any:
        """Return when something may have changed, or after that time."""

    def refuse_hand_over(self, controller: Controller) -> None:
        """Raise RolloutError where a dry run tells that its pods may not get another controller."""

    def warnings(self) -> list[Json]:
        """What the cluster warns of in the namespace: Events."""

    def are_starting(self, controller: Controller) -> bool:
        """Whether all pods of its labels are ready, or start or end as pods do, as far as a glance at them tells.

        Of many pods, that is much less to read than the pods.
        """

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        """The last lines of a container's log; none where they cannot be had."""

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """All pods of a controller, whole: those that have gone, as they were; then as each has been since the last call, and is.

        None where they may not be seen.
        """

    def look_at_pods_again(self) -> None:
        """Make sure that what watched_pods() and warnings() tell next is no older than this call. Raises RolloutError."""

    def rules(self) -> list[Json] | None:
        """What the user may do in the namespace; None when the server cannot tell all of it."""

    def objects(self, resource: str) -> list[Json] | None:
        """The first page of the objects of that kind in the namespace (nodes: of all); None where they may not be seen."""

    def why_absent(self, name: str) -> str:
        """What explains that there is no controller of that name: a Deployment that has it, a namespace that is not there."""


class Writes(t.Protocol):
    """What changes something."""

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold any more."""

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        """Let pods change their controller, and return how many have; it ends early where may_go_on() says no."""

    def record(self, event: Json) -> bool:
        """Create an Event; False when that is not possible, whatever the reason, or was not the last time."""


class Leases(t.Protocol):
    """What keeps two tasks apart."""

    def lease(self, name: str) -> Json | None:
        """A Lease of the namespace."""

    def put_lease(self, lease: Json) -> Json | None:
        """Create a Lease, or replace the version that it names; None when somebody was faster."""

    def drop_lease(self, lease: Json) -> bool:
        """Delete that version of a Lease if that is possible at once; False when somebody has written another one."""

    def server_time(self) -> float:
        """Seconds since 1970 by the API server's clock, as far as it has told."""


class Gateway(Reads, Writes, Leases, t.Protocol):
    """What the driver needs of a cluster."""


def ahead(gateway: Gateway, read: t.Callable[[], Anything]) -> t.Callable[[], Anything]:
    """The same read, begun already where answers take long: then what it has brought, or raised, is there when it is called."""
    begun = gateway.beside(read)
    return begun.result if begun else read


class RealGateway(Gateway, RealCluster, t.Protocol):
    """What check mode needs, to make a model of it."""


class Alone:
    """The part of a Gateway that a cluster has where nobody else is at work, everything is allowed, and no pod is in trouble."""

    kind = Kind.REPLICATION_CONTROLLER

    def rules(self) -> list[Json] | None:
        return None

    def objects(self, resource: str) -> list[Json] | None:
        return []

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return None

    def migrations(self) -> list[Json] | None:
        return []

    def record(self, event: Json) -> bool:
        return True

    def lease(self, name: str) -> Json | None:
        return None

    def put_lease(self, lease: Json) -> Json | None:
        return {**lease, "metadata": {**lease["metadata"], "uid": "", "resourceVersion": "1"}}

    def drop_lease(self, lease: Json) -> bool:
        return True

    def server_time(self) -> float:
        return 0.0

    def beside(self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        return None

    def find(self, kind: str, name: str) -> Json | None:
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return ()

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        return ()

    def refuse_hand_over(self, controller: Controller) -> None:
        return

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return []

    def are_starting(self, controller: Controller) -> bool:
        return False

    def all_pods(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        return []

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        return []

    def look_at_pods_again(self) -> None:
        return

    def nodes(self, selector: str) -> frozenset[str]:
        return frozenset()

    def tells_changes(self) -> bool:
        return True

    def warnings(self) -> list[Json]:
        return []

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        return []

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The largest step of each controller in one turn. No I/O; all numbers are replicas.

Names and rounding are the Deployment controller's (pkg/controller/deployment/rolling.go and
util/deployment_util.go). The growing controller is the successor during an update, and the user's
own controller during a rollback.
"""

from __future__ import annotations

import typing as t


class Size(t.NamedTuple):
    """A number of replicas, or a percentage of the desired replicas."""

    value: int
    percent: bool = False

    @classmethod
    def from_api(cls, value: int | str) -> Size:
        """Return the size from the API's number, or text with a percentage.

        >>> Size.from_api(3), Size.from_api("25%")
        (Size(value=3, percent=False), Size(value=25, percent=True))
        """
        text = str(value)
        return cls(int(text.removesuffix("%")), percent=text.endswith("%"))

    @property
    def for_api(self) -> int | str:
        """The number, or the text with the percentage.

        >>> Size(3).for_api, Size(25, percent=True).for_api
        (3, '25%')
        """
        return f"{self.value}%" if self.percent else self.value

    def resolve(self, desired: int, *, round_up: bool) -> int:
        """Return the number of replicas.

        >>> Size(25, percent=True).resolve(10, round_up=True)
        3
        >>> Size(25, percent=True).resolve(10, round_up=False)
        2
        >>> Size(3).resolve(10, round_up=True)
        3
        """
        if not self.percent:
            return self.value
        return (self.value * desired + (99 if round_up else 0)) // 100


def resolve_fenceposts(max_surge: Size, max_unavailable: Size, desired: int) -> tuple[int, int]:
    """Return surge (rounded up) and unavailable (rounded down), but (0, 1) if both would be 0.

    Source: ResolveFenceposts of the Deployment controller.

    >>> percent = lambda value: Size(value, percent=True)
    >>> resolve_fenceposts(percent(25), percent(25), 10)
    (3, 2)
    >>> resolve_fenceposts(Size(0), percent(1), 10)
    (0, 1)
    >>> resolve_fenceposts(percent(0), percent(50), 1)
    (0, 1)
    """
    surge = max_surge.resolve(desired, round_up=True)
    unavailable = max_unavailable.resolve(desired, round_up=False)
    return (0, 1) if surge == 0 and unavailable == 0 else (surge, unavailable)


def grow_to(*, desired: int, surge: int, shrinking_pods: int) -> int:
    """Return the largest number of replicas for the growing controller.

    The ceiling: at most desired + surge pods in all. shrinking_pods counts existing pods, not
    requested pods: pods still to be deleted take up room. Source: NewRSNewReplicas of the
    Deployment controller.

    10 desired, surge 3, 10 old pods exist: 10 + 3 - 10 = 3.

    >>> grow_to(desired=10, surge=3, shrinking_pods=10)
    3
    >>> grow_to(desired=10, surge=3, shrinking_pods=2)
    10
    >>> grow_to(desired=10, surge=0, shrinking_pods=13)
    0
    """
    return max(0, min(desired, desired + surge - shrinking_pods))


def shrink_to(*, desired: int, unavailable: int, shrinking: int, growing_available: int) -> int:
    """Return the smallest number of replicas for the shrinking controller.

    The floor: at least desired - unavailable pods are available. Each available pod of the growing
    controller allows one pod less here; its unavailable pods do not count. The controller manager
    deletes unready pods first, so the shrinking controller loses broken pods before serving pods.
    Source: reconcileOldReplicaSets of the Deployment controller (maxScaledDown = all pods - minimum
    available - unavailable pods of the new ReplicaSet).

    10 desired, 2 unavailable allowed, 10 old, none new available: 10 + 0 - 8 = 2 may be deleted.

    >>> shrink_to(desired=10, unavailable=2, shrinking=10, growing_available=0)
    8
    >>> shrink_to(desired=10, unavailable=0, shrinking=10, growing_available=0)
    10
    >>> shrink_to(desired=10, unavailable=0, shrinking=4, growing_available=9)
    1
    >>> shrink_to(desired=10, unavailable=0, shrinking=4, growing_available=10)
    0
    """
    surplus = shrinking + growing_available - (desired - unavailable)
    return max(0, min(shrinking, shrinking - surplus))

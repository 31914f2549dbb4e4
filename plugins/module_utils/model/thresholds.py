# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compute the sizes to which the two controllers of an update may now be scaled.

Formulas and rounding follow the Deployment controller (pkg/controller/deployment/rolling.go and
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
        """Return the size for an IntOrString of the API.

        >>> Size.from_api(3), Size.from_api("25%")
        (Size(value=3, percent=False), Size(value=25, percent=True))
        """
        text = str(value)
        return cls(int(text.removesuffix("%")), percent=text.endswith("%"))

    @property
    def for_api(self) -> int | str:
        """Return the size as an IntOrString of the API.

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
    """Return (surge, unavailable): how many additional and how many unavailable pods may exist.

    Source: ResolveFenceposts.

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


def max_grown_size(*, desired: int, surge: int, shrinking_pods: int) -> int:
    """Return the largest number of replicas for the growing controller.

    shrinking_pods: the number of existing pods of the shrinking controller, including those
    about to be deleted. Source: NewRSNewReplicas.

    >>> max_grown_size(desired=10, surge=3, shrinking_pods=10)
    3
    >>> max_grown_size(desired=10, surge=3, shrinking_pods=2)
    10
    >>> max_grown_size(desired=10, surge=0, shrinking_pods=13)
    0
    """
    return max(0, min(desired, desired + surge - shrinking_pods))


def min_shrunk_size(*, desired: int, unavailable: int, shrinking: int,
                    growing_available: int) -> int:
    """Return the smallest number of replicas for the shrinking controller.

    shrinking: spec.replicas of the shrinking controller. Unready pods count as well, because they
    are deleted first. Source: reconcileOldReplicaSets.

    >>> min_shrunk_size(desired=10, unavailable=2, shrinking=10, growing_available=0)
    8
    >>> min_shrunk_size(desired=10, unavailable=0, shrinking=10, growing_available=0)
    10
    >>> min_shrunk_size(desired=10, unavailable=0, shrinking=4, growing_available=9)
    1
    >>> min_shrunk_size(desired=10, unavailable=0, shrinking=4, growing_available=10)
    0
    """
    surplus = shrinking + growing_available - (desired - unavailable)
    return max(0, min(shrinking, shrinking - surplus))

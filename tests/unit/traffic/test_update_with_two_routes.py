# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers with two routes. Another client splits the second route after each write.

After each change, each backend with a weight must have a ready pod, so no request is lost.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
from split_cluster import KINDS, MAX_WRITES, PAUSE, RESUME, ROLLBACK, SplitCluster
from traffic_objects import World, backend, rule

from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import TRAFFIC_SPLIT


class TwoRouteCluster(SplitCluster):
    """Simulated cluster with foo and the routes edge and second."""

    def __init__(self, kind):
        self.second, self.target = None, "edge"
        super().__init__(kind)
        self.second = World(rule(backend("foo", 3)))
        metadata = {**self.second.route["metadata"], "name": "second", "uid": "uid of second"}
        self.second.route = {**self.second.route, "metadata": metadata}
        self.share_services()

    def copy(self):
        duplicate = super().copy()
        duplicate.second = self.second.copy()
        duplicate.share_services()
        return duplicate

    def share_services(self):
        self.second.services, self.second.ready = self.world.services, self.world.ready

    def in_second(self, method, *args):
        """Call a method of SplitCluster with the second route in place of the first."""
        first, self.world = self.world, self.second
        try:
            return method(*args)
        finally:
            self.world = first

    def settle_and_observe(self):
        super().settle_and_observe()
        if self.is_observing:
            self.second.observe_route()

    def find(self, kind, name):
        if (kind, name) == ("HTTPRoute", "second"):
            return self.second.route
        return super().find(kind, name)

    def write(self, write):
        if (write.kind, write.name) == ("HTTPRoute", "second"):
            return self.in_second(super().write, write)
        return super().write(write)

    def check_receivers(self):
        super().check_receivers()
        if self.second:
            self.in_second(super().check_receivers)

    def traffic_request(self, restores, share, label_key):
        request = super().traffic_request(restores, share, label_key)
        return dataclasses.replace(request, route=self.target)

    def split_route(self, name, weight):
        self.target = name
        return self.split(weight)

    def assert_nothing_left(self):
        super().assert_nothing_left()
        assert self.second.rules == [rule(backend("foo", 3))]
        assert TRAFFIC_SPLIT not in (self.second.route["metadata"].get("annotations") or {})


@functools.cache
def _cached_cluster(kind):
    """Return the cached cluster of split_cluster(). Tests must change only copies."""
    cluster = TwoRouteCluster(kind)
    for result in (cluster.roll(**PAUSE), cluster.split_route("edge", "1%")):
        assert isinstance(result, dict), result
    return cluster


def split_cluster(kind):
    """Return a cluster with a paused update, and a split of the requests of the route edge."""
    cluster = _cached_cluster(kind).copy()
    assert cluster.routes_annotation == "HTTPRoute/edge"
    return cluster


def split_second_after_write(cluster, number):
    """Let another client split the second route after a write. Return the list of its results."""
    write, results, counts = cluster.write, [], itertools.count(1)

    def write_and_split(change):
        is_applied = write(change)
        if next(counts) == number:
            cluster.write = write
            results.append(cluster.split_route("second", "10%"))
        return is_applied

    cluster.write = write_and_split
    return results


@pytest.mark.sample
@pytest.mark.parametrize("task", [RESUME, ROLLBACK], ids=["resume", "roll back"])
@pytest.mark.parametrize("kind", KINDS)
def test_split_of_a_second_route_during_an_update_loses_no_request(kind, task):
    for number in range(1, MAX_WRITES):
        cluster = split_cluster(kind)
        results = split_second_after_write(cluster, number)
        result = cluster.roll(**task)
        if not results:
            break
        assert isinstance(result, dict), (number, result.message)
        cluster.assert_nothing_left()
    assert number > 7

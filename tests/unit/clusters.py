# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate a cluster in memory behind the gateway, and a clock."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
from builders import NOW, UPDATE
from cluster_models import ClusterModel
from idle_gateway import IdleGateway

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Patch, put
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock


class FakeClock(Clock):
    """Clock that advances during sleeps and waits only; the time of day stands still."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    elapsed = monotonic

    def stamp(self):
        return NOW

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class Cluster(IdleGateway):
    """Cluster that settles during each wait and accepts every write by default."""

    def __init__(self, *items):
        self.cluster, self.clock, self.lock = ClusterModel(
            items), FakeClock(), threading.RLock()
        #: Called during each wait, and before each write to allow or refuse the write.
        self.happens = self.cluster.settle
        self.allows = lambda write: True
        #: Image assigned by the server to every template; without an image, dry runs are
        #: forbidden.
        self.stores = None
        #: The reason why unavailable pods wait.
        self.trouble = "ContainerCreating"
        #: Controllers with no event so far.
        self.hidden = set()
        #: Attempted writes, applied writes with times, and some requests, as verb and argument.
        self.tries, self.writes, self.calls = [], [], []

    def controllers(self, kind=None):
        with self.lock:
            return {name: controller
                    for name, controller in self.cluster.controllers(kind).items()
                    if name not in self.hidden}

    def items(self, kind=None):
        with self.lock:
            return list(self.cluster.items.values())

    def look_up(self, name):
        self.calls.append(("look_up", name))
        self.hidden.discard(name)

    def wait(self, seconds):
        assert 0 < seconds <= driver.POLL_INTERVAL
        with self.lock:
            self.clock.sleep(seconds)
            self.happens()
        return set(self.controllers())

    def write(self, write):
        with self.lock:
            self.tries.append(write)
            if self.allows(write) and self.cluster.write(write):
                self.writes.append((self.clock.now, write))
                return True
            return False

    def hand_over(self, write, may_continue):
        return len(write.pods) if self.write(write) else 0

    def dry_run(self, write):
        assert self.stores, "only for a template or a definition"
        item = copy.deepcopy(self.cluster.items[write.name])
        self.calls.append(("dry_run", copy.deepcopy(item["spec"]["template"])))
        item["spec"]["template"]["spec"]["containers"][0]["image"] = self.stores
        return item

    def live_pods(self, selector):
        self.calls.append(("live_pods", selector))
        with self.lock:
            return self.cluster.live_pods(selector)

    def terminating_pods(self, selector):
        self.calls.append(("terminating_pods", selector))
        with self.lock:
            return self.cluster.terminating_pods(selector)

    def troubled_pods(self, controller):
        self.calls.append(("troubled_pods", controller.name))
        waiting = {"reason": self.trouble, "message": "no such image"}
        return [{"metadata": {"name": f"{controller.name}-1", "uid": "u"},
                 "spec": {"containers": [{"name": "web"}]},
                 "status": {"phase": "Pending",
                            "containerStatuses": [{"name": "web", "state": {"waiting": waiting}}]}}]

    def log(self, pod, container, previous):
        return ["the last words"]

    def absence_reason(self, name):
        return ""

    def called(self, verb):
        """Return the arguments of calls by verb, in order."""
        return [argument for name, argument in self.calls if name == verb]

    def run(self, request=UPDATE, **more):
        return driver.run(choose(request), request, self, self.clock, **more)

    def refusal(self, request=UPDATE, **more):
        with pytest.raises(RolloutError) as refused:
            self.run(request, **more)
        return refused.value

    def stall(self):
        """Settle everything except the readiness of pods."""
        while moves := [move for move in self.cluster.moves() if move.verb != "ready"]:
            self.cluster.make(moves[0])

    def patch(self, name, path, value):
        """Patch a controller as another client."""
        assert self.cluster.write(Patch(name, (put(path, value),)))


def troubled(*items, trouble="ErrImagePull"):
    """Return a cluster with new pods that wait for the given reason."""
    cluster = Cluster(*items)
    cluster.happens, cluster.trouble, cluster.lines = cluster.stall, trouble, []
    return cluster


def fails(cluster, **options):
    """Return the error of a failing update; record progress lines with times."""
    return cluster.refusal(dataclasses.replace(UPDATE, **options),
                           print_line=lambda line: cluster.lines.append((cluster.clock.now, line)))

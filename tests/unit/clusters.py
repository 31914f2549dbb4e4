# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate a cluster and a clock in memory."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
from builders import NOW, UPDATE
from cluster_models import ClusterModel
from documented import with_documented_keys
from idle_gateway import IdleGateway

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Patch, put
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock


class FakeClock(Clock):
    """Clock that advances only during sleeps and waits."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    elapsed = monotonic

    def timestamp_seconds(self):
        return NOW

    def sleep(self, seconds):
        assert seconds > 0
        self.now += seconds


class Cluster(IdleGateway):
    """Cluster that settles during each wait, and accepts every write by default."""

    def __init__(self, *items):
        self.cluster, self.clock, self.lock = ClusterModel(
            items), FakeClock(), threading.RLock()
        self.on_wait = self.cluster.settle
        #: Whether the API server accepts a write.
        self.allow_write = lambda write: True
        #: The image that admission sets. None: a dry run fails the test.
        self.admission_image = None
        self.waiting_reason = "ContainerCreating"
        #: Controllers that the watch has not reported yet.
        self.unreported_names = set()
        #: attempts: all writes. writes: accepted ones as (time, write). calls: other calls as
        #: (verb, argument).
        self.attempts, self.writes, self.calls = [], [], []

    def controllers(self, kind=None):
        with self.lock:
            return {name: controller
                    for name, controller in self.cluster.controllers(kind).items()
                    if name not in self.unreported_names}

    def items(self, kind=None):
        with self.lock:
            return list(self.cluster.items.values())

    def look_up(self, name):
        self.calls.append(("look_up", name))
        self.unreported_names.discard(name)

    def wait(self, seconds):
        assert 0 < seconds <= driver.POLL_INTERVAL
        with self.lock:
            self.clock.sleep(seconds)
            self.on_wait()
        return set(self.controllers())

    def write(self, write):
        with self.lock:
            self.attempts.append(write)
            if self.allow_write(write) and self.cluster.write(write):
                self.writes.append((self.clock.now, write))
                return True
            return False

    def hand_over(self, write, may_continue):
        return len(write.pods) if self.write(write) else 0

    def dry_run(self, write):
        assert self.admission_image, "unexpected dry run: admission_image is not set"
        item = copy.deepcopy(self.cluster.items[write.name])
        self.calls.append(("dry_run", copy.deepcopy(item["spec"]["template"])))
        item["spec"]["template"]["spec"]["containers"][0]["image"] = self.admission_image
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
        waiting = {"reason": self.waiting_reason, "message": "no such image"}
        return [{"metadata": {"name": f"{controller.name}-1", "uid": "u"},
                 "spec": {"containers": [{"name": "web"}]},
                 "status": {"phase": "Pending",
                            "containerStatuses": [{"name": "web", "state": {"waiting": waiting}}]}}]

    def log(self, pod, container, previous):
        return ["the last words"]

    def absence_reason(self, name):
        return ""

    def called(self, verb):
        return [argument for name, argument in self.calls if name == verb]

    def run(self, request=UPDATE, **more):
        return with_documented_keys(
            driver.run(choose(request), request, self, self.clock, **more))

    def error(self, request=UPDATE, **more):
        with pytest.raises(RolloutError) as error:
            self.run(request, **more)
        with_documented_keys(error.value.as_result())
        return error.value

    def stall(self):
        """Settle everything but the readiness of pods."""
        while moves := [move for move in self.cluster.moves() if move.verb != "ready"]:
            self.cluster.make(moves[0])

    def patch(self, name, path, value):
        """Patch a controller as another client."""
        assert self.cluster.write(Patch(name, (put(path, value),)))


def stalled_cluster(*items, waiting_reason="ErrImagePull"):
    cluster = Cluster(*items)
    cluster.on_wait, cluster.waiting_reason, cluster.lines = cluster.stall, waiting_reason, []
    return cluster


def update_error(cluster, **options):
    """Return the error of a failing update. Add (time, progress line) to cluster.lines."""
    return cluster.error(dataclasses.replace(UPDATE, **options),
                         print_line=lambda line: cluster.lines.append((cluster.clock.now, line)))

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate a cluster with a controller and a route. Each Service with requests needs ready pods."""

from __future__ import annotations

import copy
import functools

import pytest
from clusters import FakeClock
from simulated import KINDS_WITH_PODS_BY_NAME, PodCountingCluster
from traffic_objects import World, backend, rule
from writes import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Patch
from ansible_collections.baton.kubernetes.plugins.module_utils.overview import read_status
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import split_run
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.follower import Follower
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.objects import SERVICE_NAME
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import TRAFFIC_SPLIT
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    TrafficRequest,
    parse_share,
)

SIZE = 4
RESUME = {"image": "myimage:v2"}
PAUSE = {"image": "myimage:v2", "pause_at": "1"}
HIGHER_PAUSE = {"image": "myimage:v2", "pause_at": "2"}
ROLLBACK = {"state": "rolled_back"}
KEEP_OLD = {"image": "myimage:v2", "pause_at": "100%", "keep_old": True}

KINDS = ["ReplicationController", "Deployment", "StatefulSet"]
MAX_WRITES = 60
KEEP_OLD_KINDS = ["ReplicationController", "ReplicaSet", "Deployment"]
#: Whether the API server has applied the last write of a killed task.
KILL_MOMENTS = [pytest.param(False, id="before"),
                pytest.param(True, id="after", marks=pytest.mark.full)]


class SettlingClock(FakeClock):
    def __init__(self, act):
        super().__init__()
        self._act = act

    def sleep(self, seconds):
        super().sleep(seconds)
        self._act()


class SplitCluster(PodCountingCluster):
    """Simulated cluster with foo and a route. Each change calls check_receivers()."""

    def __init__(self, kind):
        self.world = None
        super().__init__(Kind(kind), SIZE)
        self.world = World(rule(backend("foo", 3)))
        self.clock = SettlingClock(self.settle_and_observe)
        self.http = self
        self.lines = []
        #: Whether the Gateway observes changes of the route.
        self.is_observing = True
        self.requests = []
        #: The only Service that may get requests, or "". In SwitchCluster: the only version
        #: whose pods may get requests.
        self.only_receiver = ""

    def copy(self):
        duplicate = copy.copy(self)
        duplicate.cluster, duplicate.world = self.cluster.copy(), self.world.copy()
        duplicate.clock, duplicate.http = SettlingClock(duplicate.settle_and_observe), duplicate
        duplicate.on_wait = duplicate.settle
        duplicate.attempts, duplicate.writes, duplicate.calls = [], [], []
        duplicate.lines, duplicate.requests = [], []
        return duplicate

    def settle_and_observe(self):
        self.on_wait()
        if self.is_observing:
            self.world.observe_route()

    # The access to the API server

    def collection_path(self, resource):
        return resource

    def list_all(self, path, query):
        self.requests.append(path)
        if path not in ("services", "endpointslices"):
            return [], ""
        if path == "services":
            return list(self.world.services.values()), ""
        return [{"metadata": {"labels": {SERVICE_NAME: name},
                              "ownerReferences": [{"uid": item["metadata"]["uid"],
                                                   "controller": True}]},
                 "endpoints": [{"conditions": {"ready": ready}}
                               for ready in self.endpoint_readiness(item)]}
                for name, item in self.world.services.items()], ""

    def get(self, path, kind, namespace, name):
        return None

    def find(self, kind, name):
        if kind != "HTTPRoute":
            return super().find(kind, name)
        self.requests.append(kind)
        return self.world.route if name == "edge" else None

    def live_pods(self, selector):
        return tuple(pod for pod, _ready in self.labeled_pods()
                     if selector.items() <= pod.labels.items())

    def write(self, write):
        is_label_patch = write.kind == "Pod" and isinstance(write, Patch)
        if write.kind not in ("HTTPRoute", "Service") and not is_label_patch:
            return super().write(write)
        number, is_after_write = self.death or (0, False)
        self.attempts.append(write)
        if len(self.attempts) == number and not is_after_write:
            raise Killed
        is_applied = self.apply_label_patch(write) if is_label_patch else self.world.write(write)
        self.check_receivers()
        if len(self.attempts) == number:
            raise Killed
        return is_applied

    # The pods

    def labeled_pods(self):
        if self.kind in KINDS_WITH_PODS_BY_NAME:
            uid = self.cluster.items["foo"]["metadata"]["uid"]
            return [(Pod(pod.name, pod.uid,
                         {"app": "foo", object_meta.POD_REVISION: pod.revision}, uid), pod.ready)
                    for pod in self.pods]
        return [(Pod(str(number), str(number), dict(pod.labels), pod.owner_uid), pod.ready)
                for number, pod in enumerate(self.pods)]

    def apply_label_patch(self, write):
        value, number = write.operations[-1]["value"], int(write.name)
        pod = self.cluster.pods[number]
        labels = {**dict(pod.labels), object_meta.DEPLOYMENT_LABEL: value}
        self.cluster.pods[number] = pod._replace(labels=tuple(sorted(labels.items())))
        return True

    def endpoint_readiness(self, service):
        """Return for each endpoint of the Service whether it is ready.

        Pods of other controllers are always ready.
        """
        selector = service["spec"]["selector"]
        if selector["app"] != "foo":
            return [True]
        return [ready for pod, ready in self.labeled_pods()
                if selector.items() <= pod.labels.items()]

    def check_pods(self):
        super().check_pods()
        if self.world:
            self.check_receivers()

    def check_receivers(self):
        """Assert that each Service with a weight exists and has a ready pod.

        The Gateway sends requests by the rules of its last observation.
        """
        for rule_ in (*self.world.rules, *self.world.gateway_rules):
            for item in rule_["backendRefs"]:
                if item["weight"]:
                    name = item["name"]
                    assert name in self.world.services, f"{name} does not exist"
                    assert self.only_receiver in ("", name), f"{name} gets requests"
                    assert any(self.endpoint_readiness(self.world.services[name])), (
                        f"{name} has a weight and no ready pod")

    # Tasks

    def roll(self, death=None, **params):
        """Run rolling_update, and return its result, its error, or None after a kill.

        death: (number of the write at which to kill the task, True to kill it after the write).
        """
        request = parse_request({"name": "foo", "kind": str(self.kind), **params})
        flow = choose(request)
        return self._outcome(lambda: driver.run(
            flow, request, self, self.clock, self.lines.append,
            splits=Follower(flow, self)), death)

    def plan(self, **params):
        request = parse_request({"name": "foo", "kind": str(self.kind), **params})
        flow = choose(request)
        return driver.simulate(flow, request, self, Follower(flow, self, is_real=False))

    def split(self, weight="1%", restores=False, death=None):
        """Run traffic_split, like roll()."""
        request = parse_request({"name": "foo", "kind": str(self.kind), **ROLLBACK})
        flow = choose(request)
        target = self.traffic_request(restores, parse_share(weight), label_key=request.label_key)

        def subject():
            primary, observed, status = read_status(flow, request, self)
            versions = None if restores else split_run.versions(
                flow, primary, self, status, needs_new=not target.excludes_new_pods)
            return split_run.Subject(observed.primary, versions)

        split = split_run.SplitRun(target, split_run.RealObjects(target, self, subject), self.clock,
                                   self.lines.append, lambda: "")
        return self._outcome(split.run, death)

    def traffic_request(self, restores, share, label_key):
        return TrafficRequest("foo", "default", "edge", restores=restores, share=share)

    def _outcome(self, work, death):
        self.attempts, self.death = [], death
        try:
            return work()
        except Killed:
            return None
        except RolloutError as error:
            return error
        finally:
            self.death = None

    # State for assertions

    @property
    def weights(self):
        """Return the weights of the old and of the new pods, or None without a split."""
        weights = [item["weight"] for item in self.world.rules[0]["backendRefs"]
                   if item["name"] != "foo"]
        return weights or None

    @property
    def routes_annotation(self):
        annotations = self.cluster.items["foo"]["metadata"].get("annotations") or {}
        return annotations.get(object_meta.TRAFFIC_ROUTES)

    def assert_nothing_left(self):
        """Assert that the split and the update have left nothing."""
        assert self.world.rules == [rule(backend("foo", 3))]
        assert self.world.services.keys() == {"foo", "bar"}
        assert TRAFFIC_SPLIT not in (self.world.route["metadata"].get("annotations") or {})
        assert self.routes_annotation is None
        assert not self.controllers()["foo"].is_updating

    @property
    def images(self):
        return self.controllers()["foo"].images


@functools.cache
def _cached_paused_cluster(kind, splits):
    """Return the cached cluster of paused_cluster(). Tests must change only copies."""
    cluster = SplitCluster(kind)
    for result in (cluster.roll(**PAUSE), *([cluster.split()] if splits else [])):
        assert isinstance(result, dict), result
    return cluster


def paused_cluster(kind, splits=True):
    """Return a cluster with a paused update, and a split of the requests if `splits`."""
    cluster = _cached_paused_cluster(kind, splits).copy()
    assert cluster.weights == ([99, 1] if splits else None)
    assert cluster.routes_annotation == ("HTTPRoute/edge" if splits else None)
    return cluster


@functools.cache
def _cached_old_pods_only_cluster(kind):
    """Return the cached cluster of old_pods_only_cluster(). Tests must change only copies."""
    cluster = SplitCluster(kind)
    result = cluster.split("0%")
    assert isinstance(result, dict), result
    return cluster


def old_pods_only_cluster(kind):
    """Return a cluster before an update. Only the Service of the old pods gets requests."""
    cluster = _cached_old_pods_only_cluster(kind).copy()
    assert cluster.weights == [100] and cluster.routes_annotation == "HTTPRoute/edge"
    cluster.only_receiver = cluster.world.rules[0]["backendRefs"][1]["name"]
    return cluster


def forge_routes_annotation(cluster, text):
    """Set the annotation about the controller's routes, as another client would."""
    item = cluster.cluster.items["foo"]
    annotations = {**(item["metadata"].get("annotations") or {}), object_meta.TRAFFIC_ROUTES: text}
    cluster.cluster.items["foo"] = {**item, "metadata": {**item["metadata"],
                                                         "annotations": annotations}}

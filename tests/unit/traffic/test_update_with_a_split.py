# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers whose requests are split; kill the task at each write, and run another task.

The driver, the flows and the loop of a split are the real ones. The controllers and their pods are
those of the simulated cluster; endpoints follow from the labels of the pods. After each write and
each move of the cluster, no request may be lost: each backend with a weight has a ready pod.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import types

import pytest
from clusters import FakeClock
from forged import KEYS
from simulated import BY_NAME, CheckedCluster
from traffic_objects import SPLIT, VERSIONS, World, backend, rule, run, service
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

KINDS = ["ReplicationController", "Deployment", "StatefulSet"]
SIZE = 4
#: More writes than a task needs.
MAX_WRITES = 60
RESUME = {"image": "myimage:v2"}
PAUSE = {"image": "myimage:v2", "pause_at": "1"}
FURTHER = {"image": "myimage:v2", "pause_at": "2"}
BACK = {"state": "rolled_back"}
KEEP = {"image": "myimage:v2", "pause_at": "100%", "keep_old": True}
#: The kinds of controllers with old and new pods side by side.
KEEPING = ["ReplicationController", "ReplicaSet", "Deployment"]
#: Whether the task dies after the API server has applied the write.
MOMENTS = [pytest.param(False, id="before"),
           pytest.param(True, id="after", marks=pytest.mark.full)]


class SettlingClock(FakeClock):
    """Clock whose sleeps give the cluster time to act."""

    def __init__(self, act):
        super().__init__()
        self._act = act

    def sleep(self, seconds):
        super().sleep(seconds)
        self._act()


class SplitCluster(CheckedCluster):
    """Simulated cluster with foo and a route, which checks the requests after each change."""

    def __init__(self, kind):
        self.world = None
        super().__init__(Kind(kind), SIZE)
        self.world = World(rule(backend("foo", 3)))
        self.clock = SettlingClock(self.act)
        self.http = self
        self.lines = []
        #: Whether the Gateway observes changes of the route.
        self.is_observing = True
        self.requests = []
        #: The only Service that may get requests, or "".
        self.only = ""

    def copy(self):
        """Return an independent cluster in the same state."""
        duplicate = copy.copy(self)
        duplicate.cluster, duplicate.world = self.cluster.copy(), self.world.copy()
        duplicate.clock, duplicate.http = SettlingClock(duplicate.act), duplicate
        duplicate.on_wait = duplicate.settle
        duplicate.attempts, duplicate.writes, duplicate.calls = [], [], []
        duplicate.lines, duplicate.requests = [], []
        return duplicate

    def act(self):
        self.on_wait()
        if self.is_observing:
            self.world.observe_route()

    # The gateway

    def collection(self, resource):
        return resource

    def pages(self, path, query):
        self.requests.append(path)
        if path == "services":
            return list(self.world.services.values()), ""
        return [{"metadata": {"labels": {SERVICE_NAME: name},
                              "ownerReferences": [{"uid": item["metadata"]["uid"],
                                                   "controller": True}]},
                 "endpoints": [{"conditions": {"ready": ready}}
                               for ready in self.endpoints(item)]}
                for name, item in self.world.services.items()], ""

    def get(self, path, kind, namespace, name):
        return None

    def page(self, path, query):
        return {}

    def find(self, kind, name):
        if kind != "HTTPRoute":
            return super().find(kind, name)
        self.requests.append(kind)
        return self.world.route if name == "edge" else None

    def live_pods(self, selector):
        return tuple(pod for pod, _ready in self.labeled_pods()
                     if selector.items() <= pod.labels.items())

    def write(self, write):
        is_label = write.kind == "Pod" and isinstance(write, Patch)
        if write.kind not in ("HTTPRoute", "Service") and not is_label:
            return super().write(write)
        number, after = self.death or (0, False)
        self.attempts.append(write)
        if len(self.attempts) == number and not after:
            raise Killed
        landed = self.label(write) if is_label else self.world.write(write)
        self.check_requests()
        if len(self.attempts) == number:
            raise Killed
        return landed

    # The pods

    def labeled_pods(self):
        """Return the pods, each with whether it is ready."""
        if self.kind in BY_NAME:
            uid = self.cluster.items["foo"]["metadata"]["uid"]
            return [(Pod(pod.name, pod.uid,
                         {"app": "foo", object_meta.POD_REVISION: pod.revision}, uid), pod.ready)
                    for pod in self.pods]
        return [(Pod(str(number), str(number), dict(pod.labels), pod.owner), pod.ready)
                for number, pod in enumerate(self.pods)]

    def label(self, write):
        value, number = write.operations[-1]["value"], int(write.name)
        pod = self.cluster.pods[number]
        labels = {**dict(pod.labels), object_meta.DEPLOYMENT_LABEL: value}
        self.cluster.pods[number] = pod._replace(labels=tuple(sorted(labels.items())))
        return True

    def endpoints(self, service):
        """Return whether each endpoint of the Service is ready."""
        selector = service["spec"]["selector"]
        return [ready for pod, ready in self.labeled_pods()
                if selector.items() <= pod.labels.items()]

    def check_pods(self):
        super().check_pods()
        if self.world:
            self.check_requests()

    def check_requests(self):
        """Assert that each request reaches a ready pod."""
        for entry in self.world.rules:
            for item in entry["backendRefs"]:
                if item["weight"]:
                    assert item["name"] in self.world.services, f"{item['name']} does not exist"
                    assert self.only in ("", item["name"]), f"{item['name']} gets requests"
                    ready = self.endpoints(self.world.services[item["name"]])
                    assert any(ready), f"{item['name']} has a weight and no ready pod"

    # Tasks

    def roll(self, death=None, **params):
        """Run the module rolling_update; return the result, or an error, or None if killed."""
        request = parse_request({"name": "foo", "kind": str(self.kind), **params})
        flow = choose(request)
        return self._outcome(lambda: driver.run(
            flow, request, self, self.clock, self.lines.append,
            splits=Follower(flow, self)), death)

    def plan(self, **params):
        """Run the module rolling_update in check mode."""
        request = parse_request({"name": "foo", "kind": str(self.kind), **params})
        flow = choose(request)
        return driver.simulate(flow, request, self, Follower(flow, self, is_real=False))

    def split(self, weight="1%", restores=False, death=None):
        """Run the module traffic_split."""
        request = parse_request({"name": "foo", "kind": str(self.kind), **BACK})
        flow = choose(request)
        target = TrafficRequest("foo", "default", "edge", restores=restores,
                                share=parse_share(weight))

        def subject():
            primary, observed, status = read_status(flow, request, self)
            versions = None if restores else split_run.versions(
                flow, primary, self, status, needs_new=not target.holds)
            return split_run.Subject(observed.primary, versions)

        split = split_run.SplitRun(target, split_run.RealObjects(target, self, subject), self.clock,
                                   self.lines.append, lambda: "")
        return self._outcome(split.run, death)

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

    # What a test asserts

    @property
    def weights(self):
        """The weights of the Services of the old and of the new pods; None without a split."""
        weights = [item["weight"] for item in self.world.rules[0]["backendRefs"]
                   if item["name"] != "foo"]
        return weights or None

    @property
    def annotation(self):
        annotations = self.cluster.items["foo"]["metadata"].get("annotations") or {}
        return annotations.get(object_meta.TRAFFIC_ROUTES)

    def assert_plain(self):
        """Assert that neither a split nor an update has left anything."""
        assert self.world.rules == [rule(backend("foo", 3))]
        assert self.world.services.keys() == {"foo", "bar"}
        assert TRAFFIC_SPLIT not in (self.world.route["metadata"].get("annotations") or {})
        assert self.annotation is None
        assert not self.controllers()["foo"].is_updating

    @property
    def images(self):
        return self.controllers()["foo"].images


@functools.cache
def first(kind, splits):
    """Return a cluster with a paused update, and with or without a split; copy before use."""
    cluster = SplitCluster(kind)
    for result in (cluster.roll(**PAUSE), *([cluster.split()] if splits else [])):
        assert isinstance(result, dict), result
    return cluster


def paused(kind, splits=True):
    """Return a cluster with a paused update and a split."""
    cluster = first(kind, splits).copy()
    assert cluster.weights == ([99, 1] if splits else None)
    assert cluster.annotation == ("HTTPRoute/edge" if splits else None)
    return cluster


@functools.cache
def first_held(kind):
    """Return a cluster whose requests are held; copy before use."""
    cluster = SplitCluster(kind)
    result = cluster.split("0%")
    assert isinstance(result, dict), result
    return cluster


def held(kind):
    """Return a cluster before an update, with requests for the Service of the old pods alone."""
    cluster = first_held(kind).copy()
    assert cluster.weights == [100] and cluster.annotation == "HTTPRoute/edge"
    cluster.only = cluster.world.rules[0]["backendRefs"][1]["name"]
    return cluster


def finished(kind, **task):
    """Return a cluster after a task that ends the paused update and its split, and the result."""
    cluster = paused(kind)
    result = cluster.roll(**task)
    assert isinstance(result, dict), result
    cluster.assert_plain()
    return cluster, result


@pytest.mark.parametrize("kind", KINDS)
def test_update_to_the_end_restores_the_route_first(kind):
    cluster, result = finished(kind, **RESUME)
    assert cluster.images == {"web": "myimage:v2"}
    assert [(step["action"], step["kind"]) for step in result["steps"]][:6] == [
        ("update", "HTTPRoute"), ("restore", "HTTPRoute"),
        ("delete", "Service"), ("delete", "Service"),
        ("restore", "HTTPRoute"), ("restore", kind)]


@pytest.mark.parametrize("kind", KINDS)
def test_update_to_a_further_pause_keeps_the_split(kind):
    cluster = paused(kind)
    before = cluster.world.key()
    result = cluster.roll(**FURTHER)
    assert cluster.world.key() == before
    assert result["msg"].endswith("; 1% of the requests of HTTPRoute/edge go to its new pods")
    again = cluster.roll(**FURTHER)
    assert not again["changed"] and "; 1% of the requests" in again["msg"]


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_takes_the_requests_from_the_new_pods_first(kind):
    cluster, result = finished(kind, **BACK)
    assert cluster.images == {"web": "myimage:v1"}
    first, *steps = result["steps"]
    assert (first["action"], first["kind"]) == ("update", "HTTPRoute")
    assert sorted(entry.split()[1] for entry in first["to"].split(", ")) == ["0", "0", "100"]
    changed = [step["kind"] for step in steps]
    assert changed.index("HTTPRoute") > changed.index(
        "Deployment" if kind == "Deployment" else kind)
    assert cluster.lines.count("no requests of edge go to the new pods of foo") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_failed_update_is_rolled_back_without_requests_for_the_new_pods(kind):
    cluster = paused(kind)
    settle, cluster.on_wait = cluster.on_wait, cluster.stall
    weights, write = [], cluster.write

    def note(change):
        weights.append(cluster.weights)
        if change.kind == "HTTPRoute":
            cluster.on_wait = settle  # the old pods become ready
        return write(change)

    cluster.write = note
    error = cluster.roll(**FURTHER, on_failure="rollback", progress_deadline="5")
    assert "is rolled back to" in error.what, error.message
    assert [99, 1] in weights and [100, 0] in weights
    cluster.assert_plain()


@pytest.mark.sample
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("task, then", [
    (RESUME, RESUME), (RESUME, BACK), (BACK, BACK), (BACK, RESUME), (FURTHER, BACK),
    (FURTHER, RESUME)], ids=["resume", "resume then back", "back", "back then resume",
                             "pause then back", "pause then resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_killed_task_and_the_next_task_lose_no_request(kind, task, then, after):
    for number in range(1, MAX_WRITES):
        cluster = paused(kind)
        if cluster.roll(death=(number, after), **task) is not None:
            break
        result = cluster.roll(**then)
        if isinstance(result, RolloutError):  # past the point of return, or nothing to roll back
            assert then is BACK, result.message
            cluster.roll(**RESUME)
        cluster.assert_plain()
    else:
        pytest.fail("the task does not end")
    assert number > 3 or task is FURTHER


# Blue/green


@functools.cache
def first_switch(kind):
    """Return a cluster with all old and all new pods, whose requests go to the new pods."""
    cluster = SplitCluster(kind)
    for result in (cluster.roll(**KEEP), cluster.split("0%"), cluster.split("100%")):
        assert isinstance(result, dict), result
    return cluster


def switched(kind):
    """Return a copy of the cluster after a switch, which checks that no request is answered by an
    old pod as long as the weights or the pods are not those of a rollback.
    """
    cluster = first_switch(kind).copy()
    assert cluster.weights == [0, 100] and len(cluster.pods) == 2 * SIZE
    return cluster


def refuse_requests_for_old_pods(cluster):
    old = cluster.world.services[cluster.world.rules[0]["backendRefs"][1]["name"]]["spec"]
    check = cluster.check_requests

    def check_versions():
        check()
        answering = [cluster.world.services[item["name"]]["spec"]["selector"]
                     for item in cluster.world.rules[0]["backendRefs"] if item["weight"]]
        assert not [pod for pod, _ready in cluster.labeled_pods() for selector in answering
                    if selector.items() | old["selector"].items() <= pod.labels.items()]

    cluster.check_requests = check_versions


@pytest.mark.parametrize("kind", KEEPING)
def test_switch_and_back_are_one_write_each(kind):
    cluster = switched(kind)
    for weight, weights in (("0%", [100, 0]), ("100%", [0, 100])):
        assert isinstance(cluster.split(weight), dict) and cluster.weights == weights
        assert [write.kind for write in cluster.attempts] == ["HTTPRoute"]


@pytest.mark.parametrize("kind", KEEPING)
def test_old_pods_answer_no_request_after_the_switch(kind):
    cluster = switched(kind)
    refuse_requests_for_old_pods(cluster)
    result = cluster.roll(**RESUME)
    assert isinstance(result, dict), result
    cluster.assert_plain()
    assert cluster.images == {"web": "myimage:v2"} and len(cluster.pods) == SIZE


@pytest.mark.sample
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("task, then", [(RESUME, RESUME), (RESUME, BACK), (BACK, BACK),
                                        (BACK, RESUME), (RESUME, KEEP), (KEEP, RESUME)],
                         ids=["finish", "finish then back", "back", "back then finish",
                              "finish then keep", "keep then finish"])
@pytest.mark.parametrize("kind", KEEPING)
def test_killed_task_after_the_switch_and_the_next_task_lose_no_request(kind, task, then, after):
    for number in range(1, MAX_WRITES):
        cluster = switched(kind)
        if task is then is RESUME:
            refuse_requests_for_old_pods(cluster)
        if cluster.roll(death=(number, after), **task) is not None:
            break
        result = cluster.roll(**then)
        if isinstance(result, RolloutError) or then is KEEP:
            assert then in (BACK, KEEP), result.message
            cluster.roll(**RESUME)
        cluster.assert_plain()
    else:
        pytest.fail("the task does not end")
    assert number > 3 or task is KEEP


@pytest.mark.sample
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("then", [RESUME, BACK], ids=["resume", "back"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_follows_a_split_that_was_killed_at_any_write(kind, then, after):
    """The annotation is written first, and removed last."""
    for restores in (False, True):
        for number in range(1, MAX_WRITES):
            cluster = paused(kind, splits=restores)
            if cluster.split(restores=restores, death=(number, after)) is not None:
                break
            result = cluster.roll(**then)
            assert isinstance(result, dict), result
            cluster.assert_plain()
        assert number > 5


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_plans_the_steps_of_the_route(kind):
    for params in (RESUME, BACK):
        cluster = paused(kind)
        before, attempts = cluster.world.key(), len(cluster.attempts)
        planned = cluster.plan(**params)
        assert (cluster.world.key(), len(cluster.attempts)) == (before, attempts)
        result = cluster.roll(**params)
        for kinds in (("HTTPRoute",), ("Service",)):
            assert ([(step["action"], step["name"]) for step in planned["steps"]
                     if step["kind"] in kinds]
                    == [(step["action"], step["name"]) for step in result["steps"]
                        if step["kind"] in kinds])


def test_controller_without_the_annotation_costs_no_request():
    cluster = SplitCluster("Deployment")
    cluster.roll(**PAUSE)
    cluster.roll(**BACK)
    assert cluster.requests == []
    cluster.roll(**PAUSE)
    cluster.split()
    cluster.requests.clear()
    cluster.roll(**FURTHER)
    assert len(cluster.requests) == 3, "one read of the share at the end"


@pytest.mark.parametrize("kind", KINDS)
def test_rollback_continues_if_the_gateway_does_not_observe_the_route(kind):
    cluster = paused(kind)
    cluster.is_observing = False
    error = cluster.roll(**BACK)
    assert isinstance(error, RolloutError) and "each Gateway has observed" in error.what
    (warning,) = error.progress["warnings"][-1:]
    assert "HTTPRoute/edge could not be changed, and the rollback of the pods continues" in warning
    assert "state=restored" in warning
    cluster.is_observing = True
    result = cluster.roll(**BACK)
    assert isinstance(result, dict), result
    cluster.assert_plain()


@pytest.mark.parametrize("kind", KINDS)
def test_update_to_the_end_does_not_begin_without_the_route(kind):
    cluster = paused(kind)
    cluster.is_observing = False
    before = len(cluster.pods), cluster.images
    error = cluster.roll(**RESUME)
    assert isinstance(error, RolloutError) and "each Gateway has observed" in error.what
    assert (len(cluster.pods), cluster.images) == before
    cluster.is_observing = True
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_plain()


def test_deleted_route_is_removed_from_the_annotation():
    cluster = paused("Deployment")
    cluster.find = lambda kind, name: None
    cluster.world.services = {"foo": cluster.world.services["foo"]}
    cluster.check_requests = lambda: None
    assert isinstance(cluster.roll(**RESUME), dict)
    assert cluster.annotation is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("then", [RESUME, FURTHER, BACK], ids=["resume", "pause", "back"])
def test_forged_annotation_changes_no_split_of_another_controller(kind, then):
    cluster = paused(kind, splits=False)
    labels = tuple({**entry, "app": "payments"} for entry in VERSIONS.labels)
    payments = World(rule(backend("payments")), services=[service("payments", {"app": "payments"})],
                     versions=dataclasses.replace(VERSIONS, labels=labels))
    run(payments, SPLIT)
    cluster.world, cluster.check_requests = payments, lambda: None
    before = payments.key()
    forge(cluster, "HTTPRoute/edge")
    assert isinstance(cluster.roll(**then), dict)
    assert payments.key() == before
    assert cluster.annotation == ("HTTPRoute/edge" if then is FURTHER else None)


@pytest.mark.parametrize("text", KEYS[object_meta.TRAFFIC_ROUTES][:60])
def test_forged_annotations_end_no_update_early(text):
    cluster = paused("Deployment", splits=False)
    forge(cluster, text)
    assert isinstance(cluster.roll(**RESUME), dict)
    assert cluster.images == {"web": "myimage:v2"} and not cluster.controllers()["foo"].is_updating
    assert cluster.annotation is None


@pytest.mark.parametrize("at_once, what", [
    (True, "another client keeps undoing changes of the Deployment foo"),
    (False, "another client keeps writing the annotation baton.kubernetes/traffic-routes"),
])
def test_annotation_that_another_client_writes_again_ends_the_task(at_once, what):
    cluster = paused("Deployment", splits=False)
    forge(cluster, "HTTPRoute/absent")
    write, print_line = cluster.write, cluster.lines.append

    def forged_again(change):
        landed = write(change)
        if at_once:
            forge(cluster, "HTTPRoute/absent")
        return landed

    def forged_after_each_change(line):
        print_line(line)
        if not at_once and "no traffic split" in line:
            forge(cluster, "HTTPRoute/absent")

    cluster.write = forged_again
    cluster.lines = types.SimpleNamespace(append=forged_after_each_change)
    assert what in cluster.roll(**RESUME).what


def forge(cluster, text):
    item = cluster.cluster.items["foo"]
    annotations = {**(item["metadata"].get("annotations") or {}), object_meta.TRAFFIC_ROUTES: text}
    cluster.cluster.items["foo"] = {**item, "metadata": {**item["metadata"],
                                                         "annotations": annotations}}


def test_split_whose_old_service_is_empty_is_restored_before_a_rollback():
    cluster = paused("Deployment")
    old = cluster.world.rules[0]["backendRefs"][1]["name"]
    cluster.check_requests = lambda: None
    endpoints = cluster.endpoints
    cluster.endpoints = lambda item: [] if item["metadata"]["name"] == old else endpoints(item)
    result = cluster.roll(**BACK)
    assert "foo 3" in result["steps"][0]["to"].split(", ")
    cluster.assert_plain()


def test_pause_of_all_pods_restores_the_route():
    cluster = paused("ReplicationController")
    assert isinstance(cluster.roll(image="myimage:v2", pause_at="100%"), dict)
    assert cluster.weights is None and cluster.annotation is None


def test_task_that_does_not_wait_leaves_the_new_pods_without_requests():
    cluster = paused("Deployment")
    result = cluster.roll(**BACK, wait=False)
    assert isinstance(result, dict) and cluster.weights == [100, 0]
    cluster.settle()
    assert isinstance(cluster.roll(**BACK), dict)
    cluster.assert_plain()


# Requests that are held before the update


@pytest.mark.parametrize("kind", KINDS)
def test_held_requests_reach_no_new_pod_before_the_first_share(kind):
    cluster = held(kind)
    result = cluster.roll(**PAUSE)
    assert isinstance(result, dict), result
    assert result["msg"].endswith("; 0% of the requests of HTTPRoute/edge go to its new pods")
    assert cluster.weights == [100] and not cluster.split("0%")["changed"]
    cluster.only = ""
    assert isinstance(cluster.split(), dict) and cluster.weights == [99, 1]
    assert isinstance(cluster.roll(**RESUME), dict)
    cluster.assert_plain()


@pytest.mark.parametrize("kind", KINDS)
def test_update_to_the_end_or_without_a_change_restores_held_requests(kind):
    for params in (RESUME, {"image": "myimage:v1", "pause_at": "1"},
                   {"image": "myimage:v2", "pause_at": "100%"}):
        cluster = held(kind)
        cluster.only = ""
        assert isinstance(cluster.roll(**params), dict)
        assert cluster.weights is None and cluster.annotation is None
        if "v1" in params["image"]:
            cluster.assert_plain()


@pytest.mark.sample
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("then", [RESUME, BACK], ids=["resume", "back"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_that_was_killed_with_held_requests(kind, then, after):
    """The new pods get no requests until another task restores the route."""
    for number in range(1, MAX_WRITES):
        cluster = held(kind)
        if cluster.roll(death=(number, after), **PAUSE) is not None:
            break
        if then is BACK:
            result = cluster.roll(**PAUSE)
            assert isinstance(result, dict) and cluster.weights == [100]
        cluster.only = ""
        result = cluster.roll(**then)
        assert isinstance(result, dict), result
        cluster.assert_plain()
    assert number > 1


@pytest.mark.sample
@pytest.mark.parametrize("after", MOMENTS)
@pytest.mark.parametrize("then", [PAUSE, RESUME], ids=["pause", "resume"])
@pytest.mark.parametrize("kind", KINDS)
def test_update_follows_a_hold_that_was_killed_at_any_write(kind, then, after):
    for number in range(1, MAX_WRITES):
        cluster = SplitCluster(kind)
        if cluster.split("0%", death=(number, after)) is not None:
            break
        assert isinstance(cluster.roll(**then), dict)
        if then is PAUSE:
            assert isinstance(cluster.split(), dict) and cluster.weights == [99, 1]
            assert isinstance(cluster.roll(**RESUME), dict)
        cluster.assert_plain()
    assert number > 4


@pytest.mark.parametrize("kind", KINDS)
def test_failed_update_is_rolled_back_with_held_requests(kind):
    cluster = held(kind)
    settle, cluster.on_wait = cluster.on_wait, cluster.stall
    error = cluster.roll(**PAUSE, progress_deadline="5")
    assert isinstance(error, RolloutError) and cluster.weights == [100]
    cluster.on_wait, cluster.only = settle, ""
    result = cluster.roll(**BACK)
    assert isinstance(result, dict) and result["steps"][0]["kind"] != "HTTPRoute"
    cluster.assert_plain()

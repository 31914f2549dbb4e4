# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Switch a Service between the old and the new pods of an update.

The cluster's own controllers write the EndpointSlices.
"""

from __future__ import annotations

import json
import time

import pytest
import test_traffic_split
import writes
from objects import role_rules
from test_traffic_split import Route, create_service, killed_runs, ready_endpoint_count

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    TRAFFIC_SELECTOR,
)

_keep_signal_handlers = test_traffic_split._keep_signal_handlers
KINDS = ["Deployment", "ReplicaSet", "ReplicationController"]
KEEP_OLD = {"image": "myimage:v2", "pause_at": "100%", "keep_old": True}
RESUME, ROLL_BACK = {"image": "myimage:v2"}, {"state": "rolled_back"}
#: Maximum seconds from a change of the selector to the change of the EndpointSlices.
MAX_DELAY = 1.0


class SwitchedService(Route):
    def run(self, check_mode=False, **options):
        return super().run(check_mode, **{"route": None, "service": "foo", **options})

    def get(self):
        return self.namespace.get("services", "foo")

    def selector(self):
        return self.get()["spec"]["selector"]

    def record(self):
        return (self.get()["metadata"].get("annotations") or {}).get(TRAFFIC_SELECTOR)

    def patch_service(self, body):
        self.namespace.call("PATCH", self.namespace.path("services", "foo"), body,
                            "application/merge-patch+json")

    def endpoint_images(self):
        slices = self.namespace.call(
            "GET", f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace.name}/endpointslices"
                   "?labelSelector=kubernetes.io/service-name%3Dfoo")["items"]
        names = {endpoint["targetRef"]["name"] for item in slices
                 for endpoint in item.get("endpoints") or () if endpoint["conditions"]["ready"]}
        return sorted(pod["spec"]["containers"][0]["image"] for pod in self.namespace.pods()
                      if pod["metadata"]["name"] in names)

    def is_without_split(self):
        """Return whether no trace of a split remains."""
        return (self.selector() == {"app": "foo"} and self.record() is None
                and object_meta.TRAFFIC_ROUTES not in self.controller_annotations())


def create_controller_and_service(namespace, kind="Deployment", replicas=2):
    namespace.allow(role_rules("baton-traffic-service"), "traffic-service")
    {"Deployment": namespace.make_deployment, "StatefulSet": namespace.make_stateful_set,
     "ReplicaSet": namespace.make_replica_set,
     "ReplicationController": namespace.make_rc}[kind](replicas)
    create_service(namespace)
    return SwitchedService(namespace, kind)


def create_switched_service(namespace, kind="Deployment"):
    """Return a Service that selects the new pods of an update that keeps the old pods."""
    service = create_controller_and_service(namespace, kind)
    namespace.roll(kind=kind, **KEEP_OLD)
    service.split(weight="100%")
    return service


def endpoints_check(service):
    """Return a hook for roll() that asserts after each write that the Service has endpoints."""
    def check(_step, write):
        result = write()
        assert ready_endpoint_count(service, "foo"), service.selector()
        return result

    return lambda gateway: writes.intercept_writes(gateway, check)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_blue_green_update_of_each_kind(namespace, kind):
    """Each task ends when the EndpointSlices contain exactly the pods of the selected version."""
    service = create_controller_and_service(namespace, kind)
    plan = service.run(check_mode=True, weight="0%")
    assert plan["changed"] and service.is_without_split()
    split_result = service.split(weight="0%")
    assert ([(step["action"], step["kind"]) for step in plan["steps"]]
            == [(step["action"], step["kind"]) for step in split_result["steps"]])
    assert ((split_result["route"], split_result["services"], split_result["weight"])
            == (None, ["foo"], "0%"))
    paused_result = namespace.roll(kind=kind, **KEEP_OLD)
    assert paused_result["msg"].endswith("; 0% of the requests of Service/foo go to the new pods")
    assert service.endpoint_images() == ["myimage:v1"] * 2
    assert json.loads(service.record()) == {"app": "foo"}

    for weight, image in (("100%", "myimage:v2"), ("0%", "myimage:v1"), ("100%", "myimage:v2")):
        result = service.split(weight=weight)
        assert [step["action"] for step in result["steps"]] == ["update"]
        assert service.endpoint_images() == [image] * 2
        assert not service.split(weight=weight)["changed"]
    result = namespace.roll(endpoints_check(service), kind=kind, **RESUME)
    assert service.is_without_split() and service.endpoint_images() == ["myimage:v2"] * 2
    assert ("restore", "Service") in [(step["action"], step["kind"]) for step in result["steps"]]
    assert not service.restore()["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [*KINDS, "StatefulSet"])
def test_rollback_selects_the_old_pods_first(namespace, kind):
    service = create_controller_and_service(namespace, kind)
    namespace.roll(kind=kind, **({**RESUME, "pause_at": "1"} if kind == "StatefulSet"
                                 else KEEP_OLD))
    service.split(weight="100%")
    result = namespace.roll(endpoints_check(service), kind=kind, **ROLL_BACK)
    first_step = result["steps"][0]
    assert (first_step["action"], first_step["kind"]) == ("update", "Service")
    assert service.is_without_split() and service.endpoint_images() == ["myimage:v1"] * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("write_number", [1, 2])
@pytest.mark.parametrize("killed_task", [RESUME, ROLL_BACK], ids=["resume", "rollback"])
def test_update_is_rolled_back_after_a_killed_task(namespace, killed_task, write_number):
    service = create_switched_service(namespace)
    with pytest.raises(writes.Killed):
        namespace.roll(writes.kill_at_write(write_number, after=True), kind="Deployment",
                       **killed_task)
    namespace.roll(endpoints_check(service), kind="Deployment", **ROLL_BACK)
    assert service.is_without_split() and service.endpoint_images() == ["myimage:v1"] * 2


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "ReplicationController"])
def test_split_resumes_after_a_kill_at_each_write(namespace, kind, monkeypatch):
    service = create_controller_and_service(namespace, kind)
    namespace.roll(kind=kind, **KEEP_OLD)
    for _number in killed_runs(service, monkeypatch, weight="100%"):
        service.restore()
        assert service.is_without_split()
    assert service.endpoint_images() == ["myimage:v2"] * 2
    kills = 0
    for _number in killed_runs(service, monkeypatch, state="restored"):
        kills += 1
        service.split(weight="100%")
    assert service.is_without_split() and kills == 2  # a restoration makes two writes


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task", [RESUME, ROLL_BACK], ids=["resume", "rollback"])
@pytest.mark.parametrize("record", [
    '{"app":"payments"}', "[" * 5000, "{}", None], ids=["other", "deep", "empty", "removed"])
def test_forged_record_is_never_written_to_the_selector(namespace, next_task, record):
    """Without a valid record, the task fails, and the user runs the suggested command."""
    service = create_switched_service(namespace)
    service.split(weight="0%" if next_task is RESUME else "100%")
    before = service.selector()
    service.patch_service({"metadata": {"annotations": {TRAFFIC_SELECTOR: record}}})
    if record == '{"app":"payments"}':
        namespace.roll(endpoints_check(service), kind="Deployment", **next_task)
    else:
        with pytest.raises(RolloutError, match="selects one version only, and has no valid record"):
            namespace.roll(kind="Deployment", **next_task)
        assert service.selector() == before
        service.restore()
        namespace.roll(endpoints_check(service), kind="Deployment", **next_task)
    assert service.is_without_split()


@pytest.mark.full
def test_forged_annotation_of_bar_does_not_change_the_service_of_foo(namespace):
    service = create_switched_service(namespace)
    before = service.get()
    namespace.make_rc(1, name="bar")
    path = namespace.path("replicationcontrollers", "bar")
    namespace.call("PATCH", path, {"metadata": {"annotations": {
        object_meta.TRAFFIC_ROUTES: "Service/foo"}}}, "application/merge-patch+json")
    namespace.roll(name="bar", kind="ReplicationController", image="myimage:v2")
    assert service.get() == before
    assert object_meta.TRAFFIC_ROUTES not in namespace.call("GET", path)["metadata"]["annotations"]


def test_service_that_cannot_be_switched_is_unchanged(namespace):
    """If no new pod is ready, the Service continues to select the old pods."""
    service = create_controller_and_service(namespace)
    namespace.make_rc(1, name="bar")
    selectors = {"selects one version only": {"app": "foo", "pod-template-hash": "0"},
                 "does not select the old and new pods of foo": {"app": "bar"},
                 "there is no such Service": {}}
    for expected_text, selector in selectors.items():
        service.patch_service({"spec": {"selector": {"pod-template-hash": None, **selector}}})
        options = {} if selector else {"service": "absent"}
        assert expected_text in service.run(weight="0%", **options)["failure"]["what"]
        service.patch_service({"spec": {"selector": {"pod-template-hash": None, "app": "foo"}}})
    assert "no update is in progress" in service.run(weight="100%")["failure"]["what"]
    for options in ({"weight": "10%"}, {"weight": "100%", "mirror": "10%"}):
        assert "route: the selector of a Service" in service.run(**options)["failure"]["what"]

    with pytest.raises(RolloutError):
        namespace.roll(kind="Deployment", image="myimage:v3-unready", pause_at=1,
                       progress_deadline=3)
    result = service.run(weight="100%", timeout="2")
    assert result["failure"]["what"].startswith(
        "timed out after 2 s, waiting until a pod with the label pod-template-hash=")
    assert "pod foo-" in result["failure"]["why"], result["failure"]
    assert service.selector() == {"app": "foo"}
    service.restore()
    assert service.is_without_split()


@pytest.mark.full
def test_endpoints_follow_the_selector_within_a_second(namespace):
    service = create_switched_service(namespace)
    selectors = {weight: service.split(weight=weight) and service.selector()
                 for weight in ("0%", "100%")}
    delays = []
    for selector, image in ((selectors["0%"], "myimage:v1"),
                            (selectors["100%"], "myimage:v2")) * 3:
        service.patch_service({"spec": {"selector": selector}})
        start = time.monotonic()
        while service.endpoint_images() != [image] * 2:
            assert time.monotonic() - start < MAX_DELAY
        delays.append(time.monotonic() - start)
    assert len(delays) == 6

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the loop of a traffic split."""

from __future__ import annotations

import dataclasses
import types

import pytest
from builders import UPDATE, rc
from clusters import FakeClock
from traffic_objects import (
    KEY,
    MATCHING,
    MIRRORING,
    RESTORE,
    SPLIT,
    VERSIONS,
    World,
    backend,
    pod,
    rule,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import (
    Holder,
    RolloutStatus,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import split_run
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.planner import DRAIN
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    TRAFFIC_SPLIT,
    parse_record,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import (
    RESOURCES,
    GatewaysAndPods,
    Related,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share


class Cluster:
    """Cluster that settles before each read (if `settles`), and calls `act` after each write."""

    def __init__(self, world, request, settles=True, act=lambda world, write: None):
        self.world, self.request, self.settles, self.act = world, request, settles, act
        self.clock, self.lines = FakeClock(), []

    def read(self):
        if self.settles:
            self.world.settle()
        return self.world.read(self.request.restores)

    def write(self, write):
        is_applied = self.world.write(write)
        self.act(self.world, write)
        return is_applied

    def settle(self):
        return  # SplitRun calls this. Here, read() settles the world.

    def run(self, stop=lambda: "", **options):
        return split_run.SplitRun(self.request, self, self.clock, self.lines.append, stop,
                                  **options).run()


def test_result_of_a_split_and_of_its_restoration():
    cluster = Cluster(World(rule(backend("foo", 3))), SPLIT)
    result = cluster.run()
    old, new = result["services"]
    if cluster.world.services[old]["spec"]["selector"][KEY] != "aaa":
        old, new = new, old

    intermediate_weights = ", ".join(["foo 3", *sorted([f"{old} 0", f"{new} 0"])])
    assert result["changed"] and result["weight"] == "1%"
    assert [(step["action"], step["from"], step["to"]) for step in result["steps"]] == [
        ("annotate", None, "HTTPRoute/edge"), ("annotate", None, "split of foo"),
        ("create", None, {"app": "foo", KEY: "aaa"}), ("create", None, {"app": "foo", KEY: "bbb"}),
        ("update", "foo 3", intermediate_weights),
        ("update", intermediate_weights, ", ".join(["foo 0", *sorted([f"{old} 99", f"{new} 1"])]))]
    assert result["diff"]["before"] == {"rules": [rule(backend("foo", 3))]}
    assert result["diff"]["after"] == {"rules": cluster.world.rules}
    assert cluster.lines[:2] == ["annotate ReplicationController foo: HTTPRoute/edge",
                                 "annotate HTTPRoute edge: split of foo"]
    assert cluster.lines[2] == f"create Service {old}: app=foo,{KEY}=aaa"
    assert not cluster.run()["changed"]

    cluster.request = RESTORE
    start = cluster.clock.now
    restoration = cluster.run()
    assert [step["action"] for step in restoration["steps"]] == [
        "update", "restore", "delete", "delete", "restore", "restore"]
    assert (restoration["services"], restoration["weight"]) == ([], None)
    assert f"edge: waiting until {DRAIN.until}" in cluster.lines
    assert cluster.clock.now - start >= split_run.DRAIN_SECONDS


@pytest.mark.parametrize("write_count", [0, 1, 4])
def test_only_the_first_observation_selects_another_kind(write_count):
    """Another client deletes the controller, and foo also exists as another kind."""
    written = []
    cluster = Cluster(World(rule(backend("foo", 3))), SPLIT,
                      act=lambda world, write: written.append(write))
    read = cluster.read

    def read_until_deletion():
        if len(written) == write_count:
            raise NoSuchController("there is no such ReplicationController")
        return read()

    cluster.read = read_until_deletion
    with pytest.raises(NoSuchController) as error:
        cluster.run()
    assert error.value.depends_on_kind == (write_count == 0)
    assert len(error.value.progress["steps"]) == write_count


def test_restoration_without_a_gateway_does_not_wait_until_requests_end():
    cluster = Cluster(World(), SPLIT, settles=False,
                      act=lambda world, write: world.become_ready())
    cluster.world.route["status"] = {}
    warnings = cluster.run()["warnings"]
    assert warnings == ["no Gateway has accepted the HTTPRoute edge: the rules have no effect yet"]
    cluster.request, start = RESTORE, cluster.clock.now
    cluster.run()
    assert cluster.clock.now - start < split_run.DRAIN_SECONDS


class Reader:
    """Reader with an Ingress to the Service foo, and a Gateway that is not programmed."""

    def __init__(self, pods=()):
        self.pods, self.waited_for = pods, []

    def related(self):
        (ingress,) = (resource for resource in RESOURCES if resource.kind == "Ingress")
        spec = {"defaultBackend": {"service": {"name": "foo"}}}
        return Related(((ingress, {"metadata": {"name": "web"}, "spec": spec}),))

    def features(self, observed):
        return frozenset()

    def gateways_and_pods(self, observed, services):
        self.waited_for += services
        conditions = [{"type": "Programmed", "status": "False", "message": "no address"}]
        return GatewaysAndPods({"shop/gateway": {"status": {"conditions": conditions}}},
                               dict.fromkeys(services, self.pods))


def test_ingress_is_warned_about_before_the_changes_and_unready_gateway_after_them():
    cluster = Cluster(World(), SPLIT)
    result = cluster.run(reader=Reader())
    ingress_warning = (
        "the Ingress web also sends requests to foo: these are not split, and reach all pods")
    unprogrammed_gateway = "Gateway shop/gateway: Programmed is False: no address"
    assert cluster.lines[0] == f"warning: {ingress_warning}"
    assert result["warnings"] == [ingress_warning, unprogrammed_gateway]
    assert cluster.run(reader=Reader())["warnings"] == []
    cluster.request = MATCHING
    assert cluster.run(reader=Reader())["warnings"] == [unprogrammed_gateway]
    cluster.request = MIRRORING
    (first_warning, share_warning, _cause) = cluster.run(reader=Reader())["warnings"]
    assert first_warning == ingress_warning and "ignores the share 10%" in share_warning
    cluster.request = dataclasses.replace(MIRRORING, mirror=Share(20, 100))
    assert cluster.run(reader=Reader())["warnings"] == [unprogrammed_gateway]


def test_timeout_explains_the_cause_and_keeps_the_warnings():
    cluster = Cluster(World(), dataclasses.replace(SPLIT, timeout=7), settles=False)
    reader = Reader()
    with pytest.raises(RolloutError, match="timed out after 7 s") as error:
        cluster.run(reader=reader)
    assert [line.split(":")[0] for line in error.value.why.splitlines()] == [
        "Gateway shop/gateway", *(f"the Service {name} selects no pod"
                                  for name in reader.waited_for)]
    assert len(reader.waited_for) == 2 and len(error.value.progress["warnings"]) == 1
    assert error.value.commands[:2] == ["kubectl -n shop describe gateway gateway",
                                        "kubectl -n shop get pods --show-labels"]


def test_timed_out_wait_for_a_gateway_does_not_mention_pods():
    cluster = Cluster(World(), dataclasses.replace(SPLIT, timeout=7), settles=False,
                      act=lambda world, write: world.become_ready())
    reader = Reader()
    with pytest.raises(RolloutError, match="waiting until each Gateway has observed the") as error:
        cluster.run(reader=reader)
    assert reader.waited_for == []
    assert error.value.why.splitlines()[0] == (
        "Gateway shop/gateway has not observed the last change of the HTTPRoute edge")


def test_timeout_error_says_what_was_awaited_and_how_to_undo_the_split():
    cluster = Cluster(World(), dataclasses.replace(SPLIT, timeout=7), settles=False)
    with pytest.raises(RolloutError, match="timed out after 7 s, waiting until the Service foo-"
                       ) as error:
        cluster.run()
    assert len(error.value.progress["steps"]) == 4 and error.value.progress["changed"]
    assert error.value.next_command.startswith("run the same task again, or:\nansible localhost")


def test_signal_stops_the_task_before_the_first_change_of_the_rules():
    cluster = Cluster(World(), SPLIT)
    with pytest.raises(RolloutError, match=r"stopped \(SIGTERM\)"):
        cluster.run(lambda: "SIGTERM")
    assert cluster.world.rules == World().rules


def edit_weight(world, write, weight):
    entry = world.rules[0]
    if len(entry["backendRefs"]) == 3:
        service, old, new = entry["backendRefs"]
        world.put_rules([{**entry, "backendRefs": [service, {**old, "weight": weight}, new]}])


def test_change_of_another_client_is_kept_and_reported():
    cluster = Cluster(World(), SPLIT, act=lambda world, write: edit_weight(world, write, 50))
    with pytest.raises(RolloutError, match="another client has changed the rules after this task"):
        cluster.run()
    assert [item["weight"] for item in cluster.world.rules[0]["backendRefs"]] == [0, 50, 1]


def forge_restoration(world, write):
    """Forge the record, as if a restoration had begun."""
    record = parse_record(world.route["metadata"].get("annotations", {}).get(TRAFFIC_SPLIT))
    if record and len(world.rules[0]["backendRefs"]) == 3:
        world.annotate({TRAFFIC_SPLIT: dataclasses.replace(record, is_restoring=True).text})


def test_split_whose_record_is_forged_begins_again():
    cluster = Cluster(World(rule(backend("foo", 3))), SPLIT)
    cluster.run()
    forge_restoration(cluster.world, None)
    cluster.run()
    assert [item["weight"] for item in cluster.world.rules[0]["backendRefs"]] == [0, 99, 1]


def test_record_that_is_always_forged_ends_the_task():
    cluster = Cluster(World(), SPLIT, act=forge_restoration)
    with pytest.raises(RolloutError, match="another client keeps undoing changes of the HTTPR"):
        cluster.run()


def test_writes_that_are_always_rejected_end_the_task():
    cluster = Cluster(World(), SPLIT)
    attempts = []
    cluster.write = attempts.append
    with pytest.raises(RolloutError, match="foo was changed before each of 11 writes"):
        cluster.run()
    assert len(attempts) == split_run.MAX_REJECTIONS + 1


def test_split_of_another_update_is_replaced_in_one_task():
    cluster = Cluster(World(), MATCHING)
    first_services = cluster.run()["services"]
    cluster.world.versions = dataclasses.replace(VERSIONS, new="ccc", labels=(
        VERSIONS.labels[0], {**VERSIONS.labels[1], KEY: "ccc"}))
    second_result = cluster.run()
    assert len(second_result["services"]) == 2 and second_result["services"] != first_services


@pytest.mark.parametrize("earlier_requests, request_", [
    ([], SPLIT), ([], MATCHING), ([SPLIT], RESTORE), ([MATCHING], SPLIT)])
def test_check_mode_plans_the_steps_of_the_task(earlier_requests, request_):
    world = World(versions=dataclasses.replace(VERSIONS, unlabeled=()))
    for earlier in earlier_requests:
        Cluster(world, earlier).run()
    before = world.key()
    plan = split_run.run(request_, Cluster(world, request_, settles=False), True,
                         lambda line: None, lambda: "")
    assert world.key() == before

    result = Cluster(world, request_).run()
    keys = ("action", "kind", "name", "from", "to")
    assert ([[step[key] for key in keys] for step in plan["steps"]]
            == [[step[key] for key in keys] for step in result["steps"]])
    assert plan["diff"] == result["diff"] and plan["services"] == result["services"]


def test_check_mode_labels_each_old_pod_once():
    unlabeled_pods = (pod("foo-1", labels={"app": "foo"}), pod("foo-2", labels={"app": "foo"}))
    world = World(versions=dataclasses.replace(VERSIONS, unlabeled=unlabeled_pods))
    plan = split_run.run(SPLIT, Cluster(world, SPLIT), True, lambda line: None, lambda: "")
    assert [step["name"] for step in plan["steps"] if step["kind"] == "Pod"] == [
        "foo-1", "foo-2"]


def cluster_with_pods(*pods):
    return types.SimpleNamespace(live_pods=lambda selector: pods)


def status(*holders, phase="paused"):
    return RolloutStatus(None, phase=phase, holders=holders)


def test_versions_come_from_the_pods_of_the_controllers():
    primary = Controller.from_api(rc("foo"))
    old = pod("a", labels={"app": "foo"})._replace(owner_uid=primary.uid)
    foreign = pod("x", labels={"app": "foo", UPDATE.label_key: "zzz"})
    successor = Controller.from_api(rc("foo-2"))
    new = pod("b", labels={"app": "foo", UPDATE.label_key: "bbb"})._replace(owner_uid=successor.uid)
    holders = (Holder(primary, None), Holder(successor, {}))

    versions = split_run.versions(types.SimpleNamespace(creates_successor=True), UPDATE,
                                  cluster_with_pods(old, foreign, new), status(*holders))
    assert versions.new == "bbb" and versions.unlabeled == (old,) and len(versions.old) == 10
    with pytest.raises(RolloutError, match="does not distinguish the old from the new pods"):
        split_run.versions(types.SimpleNamespace(creates_successor=False), UPDATE,
                           cluster_with_pods(old, new), status(*holders))


def test_all_pods_are_old_before_an_update():
    primary = Controller.from_api(rc("foo"))
    owned_pod = pod("a", labels={"app": "foo"})._replace(owner_uid=primary.uid)
    before = split_run.versions(types.SimpleNamespace(creates_successor=True), UPDATE,
                                cluster_with_pods(owned_pod),
                                status(Holder(primary, {}), phase="complete"), needs_new=False)
    assert (before.new, before.unlabeled) == ("", (owned_pod,))
    later = split_run.versions(types.SimpleNamespace(creates_successor=True), UPDATE,
                               cluster_with_pods(owned_pod), status(Holder(primary, None)),
                               needs_new=False)
    assert later.old == before.old


def test_versions_need_an_update_and_permission_to_read_revisions():
    flow = types.SimpleNamespace(creates_successor=False)
    with pytest.raises(RolloutError, match="no update is in progress"):
        split_run.versions(flow, UPDATE, cluster_with_pods(), status(phase="complete"))
    unknown = Holder(Controller.from_api(rc("foo")), {KEY: ""})
    with pytest.raises(RolloutError, match="the new pods are unknown without permission"):
        split_run.versions(flow, UPDATE, cluster_with_pods(), status(unknown))

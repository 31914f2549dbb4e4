# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""to_revision=previous: the revision for each kind, also in reruns after a kill."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from builders import NOW, rc, template
from cluster_models import ClusterModel, DaemonSetModel, DeploymentModel, StatefulSetModel

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Done, Wait
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import images_of

KINDS = ("ReplicationController", "Deployment", "StatefulSet", "DaemonSet")
SPECS = {
    "Deployment": {"replicas": 3, "progressDeadlineSeconds": 600,
                   "strategy": {"type": "RollingUpdate",
                                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    "StatefulSet": {"replicas": 3,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
    "DaemonSet": {"updateStrategy": {"type": "RollingUpdate",
                                     "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
}


class World:
    """foo in a simulated cluster, and clients that are killed after some writes, or at the end."""

    def __init__(self, kind):
        self.kind = kind
        if kind == "ReplicationController":
            self.cluster = ClusterModel([rc()])
            self.cluster.look_up = lambda name: None
        else:
            item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1,
                                 "annotations": {}},
                    "spec": {"selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                             **SPECS[kind]},
                    "status": {"desiredNumberScheduled": 3}}
            by_revisions = {"StatefulSet": StatefulSetModel, "DaemonSet": DaemonSetModel}
            self.cluster = (by_revisions[kind]([item]) if kind in by_revisions
                            else DeploymentModel([item], []))
        self.cluster.settle()
        self.cluster.dry_run = lambda write: {"spec": {"template": write.operations[0]["value"]}}
        #: Number of writes after which an update is in progress, and far from the end.
        self.middle = 1 if kind in SPECS else 4

    def run(self, most=100, **params):
        """Run a client that dies after at most this many writes; return the number of writes."""
        request = parse_request({"name": "foo", "kind": self.kind, **params})
        flow, memory, writes = choose(request), Memory(now=NOW, has_begun=True), 0
        for _turn in range(200):
            if writes == most:
                return writes
            request = flow.resolved(request, self.cluster, memory)
            memory.observed = flow.observe(request, self.cluster, memory)
            decision = flow.plan(request, memory.observed)
            if isinstance(decision, Done):
                return writes
            if isinstance(decision, Wait):
                assert self.cluster.moves(), decision
                self.cluster.settle()
                memory.seconds += 1
                continue
            assert self.cluster.write(decision.write)
            flow.note(decision, memory)
            memory.revisions = None
            writes += 1
            if decision.is_last:
                self.cluster.settle()
                return writes
        raise AssertionError(decision)

    def previous(self, most=100):
        return self.run(most, state="rolled_back", to_revision="previous")

    @property
    def primary(self):
        return self.cluster.controllers()["foo"]

    @property
    def version(self):
        """Return foo's version outside an update."""
        assert not self.primary.is_updating and len(self.cluster.controllers()) == 1
        return images_of(self.primary.template)["web"].removeprefix("myimage:")

    def update(self, *versions, most=100):
        for version in versions:
            self.run(most, image=f"myimage:{version}")

    def update_by_hand(self, version):
        """Update foo as kubectl does, without touching the record."""
        item = copy.deepcopy(self.cluster.items["foo"])
        item["spec"]["template"]["spec"]["containers"][0]["image"] = f"myimage:{version}"
        item["metadata"]["generation"] += 1
        self.cluster.items["foo"] = item


@pytest.fixture(params=KINDS)
def world(request):
    return World(request.param)


def test_it_goes_back_once_however_often_it_runs(world):
    world.update("v2", "v3")
    assert world.previous() and world.version == "v2"

    assert [world.previous() for _time in range(3)] == [0, 0, 0] and world.version == "v2"


def test_after_another_update_it_means_another_one(world):
    world.update("v2")
    world.previous()
    world.update("v3")

    assert world.previous() and world.version == "v1"
    world.update("v3", "v4")
    assert world.previous() and world.version == "v3" and not world.previous()


def test_killed_after_any_write_it_goes_on_to_the_same_one(world):
    world.update("v2")
    most = World(world.kind)
    most.update("v2")
    writes = most.previous()
    assert writes >= 2

    for killed in range(1, writes):
        world = World(world.kind)
        world.update("v2")
        assert world.previous(killed) == killed
        again = 0
        while world.previous(1):  # and after each remaining write
            again += 1
        assert world.version == "v1" and again <= writes + 2, killed
        assert world.previous() == 0


def test_an_update_in_progress_is_undone_and_no_more_than_that(world):
    world.update("v2")
    world.update("v3", most=world.middle)

    assert world.previous() and world.version == "v2"
    assert world.previous() == 0 and world.version == "v2"


def test_so_is_one_that_was_rolled_back_before(world):
    world.update("v2")
    world.update("v3", most=world.middle)
    world.run(state="rolled_back")

    assert world.previous() == 0 and world.version == "v2"


def test_one_that_was_itself_undone_may_be_asked_for_again(world):
    """on_failure=rollback is an example: no revision was restored yet."""
    world.update("v2")
    world.previous(world.middle)
    world.run(state="rolled_back")
    assert world.version == "v2"

    assert world.previous() and world.version == "v1" and world.previous() == 0


def test_one_that_is_being_undone_is_gone_on_with(world):
    world.update("v2")
    world.previous(world.middle)
    world.run(1, state="rolled_back")

    assert world.previous() and world.version == "v1" and world.previous() == 0


def test_pods_that_are_stuck_on_a_template_that_was_put_back_by_hand_are_the_last_update():
    """Kubernetes issue 67250: no status shows an update in progress."""
    world = World("StatefulSet")
    world.update("v2")
    world.cluster.broken = frozenset({"myimage:v3"})
    for version in ("v3", "v2"):
        world.update_by_hand(version)
        world.cluster.settle()
    assert not all(pod.ready for pod in world.cluster.pods("foo"))

    assert (world.previous() and world.version == "v2"
            and all(pod.ready for pod in world.cluster.pods("foo")))
    assert world.previous() == 0 and world.version == "v2"


def test_a_number_counts_as_an_update(world):
    world.update("v2", "v3")
    world.run(state="rolled_back", to_revision=1)
    assert world.version == "v1"

    assert world.previous() and world.version == "v3" and world.previous() == 0


def test_where_there_is_none_that_is_said(world):
    with pytest.raises(RolloutError, match="it has no previous revision") as error:
        world.previous()
    assert "THE-EARLIER-IMAGE" in error.value.next_command


def test_what_somebody_else_has_changed_since_is_the_last_update(world):
    world.update("v2")
    world.previous()
    item = world.cluster.items["foo"]
    record = json.loads(item["metadata"]["annotations"][object_meta.LAST_ROLLOUT])
    assert record["request"].startswith("previous/")
    record["request"] = "previous/of another template"
    item["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = json.dumps(
        {**record, "template": "another"})

    assert world.previous() and world.version == "v2"


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("moves", range(5))
def test_what_somebody_else_has_begun_is_undone_once(kind, moves):
    world = World(kind)
    world.update("v2")
    world.update_by_hand("v3")
    for _move in range(moves):
        world.cluster.make(world.cluster.moves()[0])

    assert world.previous() and world.version == "v2"
    assert world.previous() == 0 and world.version == "v2"


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("killed, back_to", [
    (lambda world: world.update("v3", most=1), "v3"),
    (lambda world: world.previous(1), "v1"),
    (lambda world: (world.update("v3", most=1), world.cluster.settle(),
                    world.run(1, state="rolled_back")), "v2"),
], ids=["updating", "to the previous one", "rolling back"])
def test_what_a_killed_client_had_begun_is_not_the_last_where_somebody_has_updated_it_since(
        kind, killed, back_to):
    world = World(kind)
    world.update("v2")
    killed(world)
    world.cluster.settle()  # the server has done the rest
    world.update_by_hand("v5")
    world.cluster.settle()

    assert world.previous() and world.version == back_to
    assert world.previous() == 0


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("last, back_to", [
    (lambda world: (world.update("v2"), world.previous()), "v1"),
    (lambda world: (world.update("v2", most=1), world.run(state="rolled_back")), "v1"),
    (lambda world: (world.update("v2"), world.previous(1)), "v1"),
], ids=["to the previous one", "rolled back", "killed"])
def test_updates_of_other_clients_that_end_at_the_same_template_are_the_last_ones(
        kind, last, back_to):
    """Only the number of the revision shows them."""
    world = World(kind)
    last(world)
    world.cluster.settle()
    for version in ("v5", back_to):
        world.update_by_hand(version)
        world.cluster.settle()

    assert world.previous() and world.version == "v5"
    assert world.previous() == 0 and world.version == "v5"


def test_the_wish_is_the_same_whatever_it_leads_to():
    request = parse_request({"name": "foo", "state": "rolled_back", "to_revision": "previous"})
    resolved = dataclasses.replace(request, to_revision=3, revision=template())

    assert (request.is_unresolved and not resolved.is_unresolved
            and request.fingerprint == resolved.fingerprint == "previous")
    for task in (request, resolved):
        assert task.command().endswith("'name=foo state=rolled_back to_revision=previous'")
    assert (resolved.rollback_request().fingerprint != "previous"
            and not resolved.rollback_request().is_unresolved)

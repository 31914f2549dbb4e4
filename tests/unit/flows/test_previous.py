# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Roll back with to_revision=previous, for each kind and after kills."""

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
    """Simulated cluster with foo, and clients that die after a number of writes."""

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
            models = {"StatefulSet": StatefulSetModel, "DaemonSet": DaemonSetModel}
            self.cluster = (models[kind]([item]) if kind in models
                            else DeploymentModel([item], []))
        self.cluster.settle()
        self.cluster.dry_run = lambda write: {"spec": {"template": write.operations[0]["value"]}}
        #: After this number of writes, an update is still in progress.
        self.writes_of_unfinished_update = 1 if kind in SPECS else 4

    def run(self, max_writes=100, **params):
        """Run a task that dies after max_writes writes. Return the number of writes."""
        request = parse_request({"name": "foo", "kind": self.kind, **params})
        flow, memory, write_count = choose(request), Memory(now=NOW, has_begun=True), 0
        for _turn in range(200):
            if write_count == max_writes:
                return write_count
            request = flow.resolve_revision(request, self.cluster, memory)
            memory.observed = flow.observe(request, self.cluster, memory)
            decision = flow.plan(request, memory.observed)
            if isinstance(decision, Done):
                return write_count
            if isinstance(decision, Wait):
                assert self.cluster.moves(), decision
                self.cluster.settle()
                memory.monotonic_time += 1
                continue
            assert self.cluster.write(decision.write)
            flow.update_caches(decision, memory)
            memory.revisions = None
            write_count += 1
            if decision.ends_task:
                self.cluster.settle()
                return write_count
        raise AssertionError(decision)

    def restore_previous(self, max_writes=100):
        """Roll back to the previous revision. Return the number of writes."""
        return self.run(max_writes, state="rolled_back", to_revision="previous")

    @property
    def primary(self):
        return self.cluster.controllers()["foo"]

    @property
    def version(self):
        """Return the tag of foo's image. No update may be in progress."""
        assert not self.primary.is_updating and len(self.cluster.controllers()) == 1
        return images_of(self.primary.template)["web"].removeprefix("myimage:")

    def update(self, *versions, max_writes=100):
        for version in versions:
            self.run(max_writes, image=f"myimage:{version}")

    def update_by_hand(self, version):
        """Update foo as kubectl does, without a record."""
        item = copy.deepcopy(self.cluster.items["foo"])
        item["spec"]["template"]["spec"]["containers"][0]["image"] = f"myimage:{version}"
        item["metadata"]["generation"] += 1
        self.cluster.items["foo"] = item


@pytest.fixture(params=KINDS)
def world(request):
    return World(request.param)


def test_previous_rolls_back_once(world):
    world.update("v2", "v3")
    assert world.restore_previous() and world.version == "v2"

    assert [world.restore_previous() for _round in range(3)] == [0, 0, 0] and world.version == "v2"


def test_rollback_to_previous_after_another_update(world):
    world.update("v2")
    world.restore_previous()
    world.update("v3")

    assert world.restore_previous() and world.version == "v1"
    world.update("v3", "v4")
    assert world.restore_previous() and world.version == "v3" and not world.restore_previous()


def test_rollback_to_previous_resumes_after_a_kill(world):
    world.update("v2")
    uninterrupted_world = World(world.kind)
    uninterrupted_world.update("v2")
    writes = uninterrupted_world.restore_previous()
    assert writes >= 2

    for writes_before_kill in range(1, writes):
        world = World(world.kind)
        world.update("v2")
        assert world.restore_previous(writes_before_kill) == writes_before_kill
        remaining_writes = 0
        while world.restore_previous(1):  # with a kill after each remaining write
            remaining_writes += 1
        assert world.version == "v1" and remaining_writes <= writes + 2, writes_before_kill
        assert world.restore_previous() == 0


def test_previous_undoes_only_the_update_in_progress(world):
    world.update("v2")
    world.update("v3", max_writes=world.writes_of_unfinished_update)

    assert world.restore_previous() and world.version == "v2"
    assert world.restore_previous() == 0 and world.version == "v2"


def test_rollback_to_previous_after_a_rollback(world):
    world.update("v2")
    world.update("v3", max_writes=world.writes_of_unfinished_update)
    world.run(state="rolled_back")

    assert world.restore_previous() == 0 and world.version == "v2"


def test_undone_rollback_to_previous_can_be_run_again(world):
    """A rollback that fails with on_failure=rollback ends in this state, too."""
    world.update("v2")
    world.restore_previous(world.writes_of_unfinished_update)
    world.run(state="rolled_back")
    assert world.version == "v2"

    assert world.restore_previous() and world.version == "v1" and world.restore_previous() == 0


def test_rollback_to_previous_resumes_after_its_undo_was_interrupted(world):
    world.update("v2")
    world.restore_previous(world.writes_of_unfinished_update)
    world.run(1, state="rolled_back")

    assert world.restore_previous() and world.version == "v1" and world.restore_previous() == 0


def test_rollback_to_previous_with_stuck_pods_of_an_undone_update():
    """After v3 is undone, the status hides the stuck v3 pod (Kubernetes issue 67250)."""
    world = World("StatefulSet")
    world.update("v2")
    world.cluster.broken_images = frozenset({"myimage:v3"})
    for version in ("v3", "v2"):
        world.update_by_hand(version)
        world.cluster.settle()
    assert not all(pod.ready for pod in world.cluster.pods("foo"))

    assert (world.restore_previous() and world.version == "v2"
            and all(pod.ready for pod in world.cluster.pods("foo")))
    assert world.restore_previous() == 0 and world.version == "v2"


def test_rollback_to_a_revision_number_counts_as_an_update(world):
    world.update("v2", "v3")
    world.run(state="rolled_back", to_revision=1)
    assert world.version == "v1"

    assert world.restore_previous() and world.version == "v3" and world.restore_previous() == 0


def test_missing_previous_revision_is_an_error(world):
    with pytest.raises(RolloutError, match="it has no previous revision") as error:
        world.restore_previous()
    assert "THE-EARLIER-IMAGE" in error.value.next_command


def test_change_by_another_client_counts_as_the_last_update(world):
    world.update("v2")
    world.restore_previous()
    item = world.cluster.items["foo"]
    record = json.loads(item["metadata"]["annotations"][object_meta.LAST_ROLLOUT])
    assert record["request"].startswith("previous/")
    # If the recorded template differs from foo's, another client has changed foo since.
    record["request"] = "previous/of another template"
    item["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = json.dumps(
        {**record, "template": "another"})

    assert world.restore_previous() and world.version == "v2"


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("move_count", range(5))
def test_update_of_another_client_is_undone_once(kind, move_count):
    world = World(kind)
    world.update("v2")
    world.update_by_hand("v3")
    for _move in range(move_count):
        world.cluster.make(world.cluster.moves()[0])

    assert world.restore_previous() and world.version == "v2"
    assert world.restore_previous() == 0 and world.version == "v2"


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("interrupt, expected", [
    (lambda world: world.update("v3", max_writes=1), "v3"),
    (lambda world: world.restore_previous(1), "v1"),
    (lambda world: (world.update("v3", max_writes=1), world.cluster.settle(),
                    world.run(1, state="rolled_back")), "v2"),
], ids=["update", "previous", "rollback"])
def test_later_update_by_another_client_counts_as_the_last_update(kind, interrupt, expected):
    world = World(kind)
    world.update("v2")
    interrupt(world)
    world.cluster.settle()
    world.update_by_hand("v5")
    world.cluster.settle()

    assert world.restore_previous() and world.version == expected
    assert world.restore_previous() == 0


def test_update_by_another_client_after_a_rollback_counts_as_the_last_update(world):
    """No ControllerRevision has the template that the other client has replaced on a
    ReplicationController."""
    world.update("v2")
    world.update("v3", max_writes=world.writes_of_unfinished_update)
    world.run(state="rolled_back")
    world.update_by_hand("v5")
    world.cluster.settle()

    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        world.run(state="rolled_back")
    assert world.restore_previous()
    assert world.version == ("v1" if world.kind == "ReplicationController" else "v2")
    assert world.restore_previous() == 0


@pytest.mark.parametrize("kind", tuple(SPECS))
@pytest.mark.parametrize("run_last_task, current_version", [
    (lambda world: (world.update("v2"), world.restore_previous()), "v1"),
    (lambda world: (world.update("v2", max_writes=1), world.run(state="rolled_back")), "v1"),
    (lambda world: (world.update("v2"), world.restore_previous(1)), "v1"),
], ids=["previous", "rolled back", "killed"])
def test_update_by_another_client_and_its_reversal_are_noticed(kind, run_last_task,
                                                               current_version):
    """Only the revision number of foo shows the updates to v5 and back."""
    world = World(kind)
    run_last_task(world)
    world.cluster.settle()
    for version in ("v5", current_version):
        world.update_by_hand(version)
        world.cluster.settle()

    assert world.restore_previous() and world.version == "v5"
    assert world.restore_previous() == 0 and world.version == "v5"


def test_fingerprint_is_independent_of_the_revision():
    request = parse_request({"name": "foo", "state": "rolled_back", "to_revision": "previous"})
    resolved_request = dataclasses.replace(request, to_revision=3, revision_template=template())

    assert (request.is_unresolved and not resolved_request.is_unresolved
            and request.fingerprint == resolved_request.fingerprint == "previous")
    for request_ in (request, resolved_request):
        assert request_.command().endswith("'name=foo state=rolled_back to_revision=previous'")
    assert (resolved_request.rollback_request().fingerprint != "previous"
            and not resolved_request.rollback_request().is_unresolved)

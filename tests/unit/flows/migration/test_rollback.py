# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Roll back the migration of a ReplicationController."""

from __future__ import annotations

import pytest
from builders import assert_rollback_ignores_stale_status, rc
from migrations import ALL_STEPS, ROLLBACK, World

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Done

#: A rollback is possible until step 5 deletes the ReplicationController.
REVERSIBLE_STEPS = range(1, 5)


@pytest.mark.parametrize("step_count", REVERSIBLE_STEPS)
def test_pods_return_to_the_replication_controller_after_each_step(step_count):
    world = World()
    assert world.run_steps(step_count) == ALL_STEPS[:step_count]

    rollback_steps = world.run_steps(request=ROLLBACK)

    assert rollback_steps[-1] == "delete ControllerRevision"
    item = world.find("ReplicationController")
    assert item["spec"]["template"] == rc()["spec"]["template"]
    assert {pod.owner_uid for pod in world.cluster.live_pods({})} == {"uid of foo"}
    assert all(object_meta.HASH_LABEL not in pod.labels for pod in world.cluster.live_pods({}))
    assert world.find(REVISION, "foo-migration") is None
    assert not any(kind == "ReplicaSet" and item
                   for (kind, _name), item in world.cluster._items.items())
    assert world.run_steps() == ALL_STEPS


@pytest.mark.parametrize("step_count", range(1, 5))
def test_migration_resumes_after_each_step_of_its_rollback(step_count):
    world = World()
    world.run_steps(4)
    world.run_steps(step_count, ROLLBACK)
    world.run_steps()
    assert world.decide() == Done("foo is already a Deployment")


@pytest.mark.parametrize("step_count", REVERSIBLE_STEPS)
def test_check_mode_plans_a_rollback_despite_a_stale_status(step_count):
    assert_rollback_ignores_stale_status(World(), World(), step_count, ROLLBACK)


@pytest.mark.parametrize("step_count", [1, 2])
def test_rollback_for_a_recreated_controller_with_its_own_pods(step_count):
    world, item = World(), rc(replicas=5, uid="another", image="myimage:v7")
    world.run_steps(step_count)
    world.replace_item(item)
    world.replace_pods("another")
    assert world.run_steps(request=ROLLBACK) == [*["delete ReplicaSet"] * (step_count - 1),
                                                 "delete ControllerRevision"]
    assert world.find("ReplicationController")["spec"] == item["spec"]


@pytest.mark.parametrize("step_count, words", [
    (0, "there is no migration in progress to roll back"),
    (5, "its pods no longer belong to a ReplicationController, so its migration cannot be rolled "
     "back"),
    (8, "its pods no longer belong to a ReplicationController, so its migration cannot be rolled "
     "back"),
    (len(ALL_STEPS), "it is a Deployment: a migration that has ended cannot be rolled back"),
])
def test_rollback_without_a_migration_or_a_replication_controller_is_refused(step_count, words):
    world = World()
    world.run_steps(step_count)
    with pytest.raises(RolloutError, match=words):
        world.decide(ROLLBACK)


def test_rollback_of_an_absent_controller_is_refused():
    world = World(rc("another"))
    with pytest.raises(NoSuchController, match="there is no such ReplicationController"):
        world.decide(ROLLBACK)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rows of a migration, and that each state leads to the next one."""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import dataclasses

import pytest
from builders import old, rc

from ansible_collections.baton.kubernetes.plugins.module_utils import identity, migration
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import NoSuchController, RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.migration import look
from ansible_collections.baton.kubernetes.plugins.module_utils.planner import plan
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.simulated_migration import SimulatedMigration
from ansible_collections.baton.kubernetes.plugins.module_utils.steps import REVISION, Done, Step, Wait
from ansible_collections.baton.kubernetes.plugins.module_utils.takeover import CLOSED

MIGRATE = Request.from_params({"name": "foo", "state": "migrated", "to_kind": "Deployment"})
TAKE = dataclasses.replace(MIGRATE, releases_owner=True)
ALL = ["create ControllerRevision", "label ReplicationController", "label Pod", "delete ReplicationController", "create ReplicaSet",
       "restore ReplicaSet", "create Deployment", "pace Deployment", "delete ControllerRevision"]


class World:
    """foo with two pods, in memory."""

    def __init__(self, *items, **objects):
        owner = {"controller": True, "uid": "uid of foo"}
        pods = [{"metadata": {"name": name, "labels": {"app": "foo"}, "ownerReferences": [owner]}} for name in ("foo-a", "foo-b")]
        self.cluster = SimulatedMigration(items or [rc(replicas=2)], lambda kind, name: objects.get(kind), lambda selector: pods)

    def decide(self, request=MIGRATE, **facts):
        controllers = self.cluster.controllers()
        seen = dataclasses.replace(look(request, controllers.get("foo"), self.cluster), **facts)
        return plan(request, seen)

    def go(self, steps=100, request=MIGRATE):
        """That many steps, or all; what they were."""
        done = []
        while len(done) < steps and isinstance(decision := self.decide(request), Step):
            assert self.cluster.write(decision.write)
            done.append(f"{decision.action} {decision.write.kind}")
        return done

    def find(self, kind, name="foo"):
        return self.cluster.find(kind, name)


def test_all_steps_in_their_order():
    world = World()
    assert world.go() == ALL
    assert world.decide() == Done("foo is a Deployment already")


def test_what_the_deployment_is_made_of():
    item = rc(replicas=2, label="abc", annotations={"note": "x", identity.LAST_ROLLOUT: "{}"})
    item["metadata"]["labels"] = {"app": "foo", identity.DEPLOYMENT_LABEL: "abc"}
    item["spec"]["minReadySeconds"] = 700
    world = World(item)
    world.go()
    it = world.find("Deployment")
    assert it["metadata"]["labels"] == {"app": "foo"} and it["metadata"]["annotations"] == {"note": "x"}
    assert it["spec"]["selector"] == {"matchLabels": {"app": "foo"}} and it["spec"]["replicas"] == 2
    assert it["spec"]["template"]["metadata"]["labels"] == {"app": "foo"}
    assert it["spec"]["progressDeadlineSeconds"] > it["spec"]["minReadySeconds"] == 700 and "paused" not in it["spec"]


def test_a_selector_of_nothing_but_the_deployment_label_keeps_it():
    item = rc(replicas=2, label="abc")
    item["spec"]["selector"] = {identity.DEPLOYMENT_LABEL: "abc"}
    world = World(item)
    world.go()
    it = world.find("Deployment")
    assert it["spec"]["selector"] == {"matchLabels": {identity.DEPLOYMENT_LABEL: "abc"}}
    assert it["spec"]["template"]["metadata"]["labels"][identity.DEPLOYMENT_LABEL] == "abc"


def test_the_replica_set_can_make_no_pod_until_it_has_them():
    world = World()
    world.go(ALL.index("create ReplicaSet") + 1)
    name = f"foo-{world.find(REVISION, 'foo-migration')['data']['hash']}"
    it = world.find("ReplicaSet", name)
    assert it["spec"]["template"]["spec"]["priorityClassName"] == CLOSED
    world.cluster._items["ReplicaSet", name] = {**it, "status": {**it["status"], "replicas": 1}}
    world.cluster._give_pods_to(None)
    assert isinstance(world.decide(), Wait)


@pytest.mark.parametrize("change", [{"replicas": 3}, {"selector": {"app": "foo", "more": "x"}},
                                    {"template": rc(image="myimage:v9")["spec"]["template"]}], ids=["size", "selector", "template"])
def test_a_controller_that_changes_before_it_is_deleted_is_looked_at_anew(change):
    world = World()
    world.go(2)
    item = world.find("ReplicationController")
    item["spec"] = {**item["spec"], **change}
    assert world.go(2) == ["delete ControllerRevision", "create ControllerRevision"]
    assert world.find(REVISION, "foo-migration")["data"]["manifest"]["spec"]["replicas"] == item["spec"]["replicas"]


def test_a_controller_that_comes_back_is_refused():
    world = World()
    world.go(5)
    world.cluster._items["ReplicationController", "foo"] = rc(replicas=2, uid="another")
    with pytest.raises(RolloutError, match="somebody has created it again"):
        world.decide()


@pytest.mark.parametrize("item, words", [
    (old(), "an update of it is in progress"),
    (rc(deletionTimestamp="now"), "it is being deleted"),
    (rc(ownerReferences=[{"kind": "DeploymentConfig", "name": "foo", "uid": "x", "controller": True}]),
     "it is controlled by DeploymentConfig/foo, which would make another one"),
], ids=["an update", "a deletion", "an owner"])
def test_what_cannot_be_migrated(item, words):
    with pytest.raises(RolloutError, match=words):
        World(item).decide()


def test_an_owner_is_released_on_request():
    world = World(rc(replicas=2, ownerReferences=[{"kind": "DeploymentConfig", "name": "foo", "uid": "x", "controller": True}]))
    assert world.go(2, TAKE) == ["create ControllerRevision", "annotate ReplicationController"]
    assert "ownerReferences" not in world.find("ReplicationController")["metadata"]


def test_others_that_would_take_its_pods():
    with pytest.raises(RolloutError, match="its pods also match the selector of rival"):
        World().decide(others={"rival": {"app": "foo"}})


def test_a_deployment_of_that_name_that_is_there_already():
    there = {"kind": "Deployment", "metadata": {"name": "foo", "uid": "d"},
             "spec": {"template": rc()["spec"]["template"], "selector": {}, "strategy": {}}}
    with pytest.raises(RolloutError, match="there is a Deployment foo already, which is none of this migration"):
        World(Deployment=there).decide()


def test_nothing_of_that_name():
    world = World(rc("other"))
    with pytest.raises(NoSuchController, match="there is no such ReplicationController"):
        world.decide()


def test_an_autoscaler_is_told_with_what_to_type():
    assert '"kind":"Deployment"' in migration.warning(MIGRATE, {"metadata": {"name": "hpa"}})

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Migrations killed after any write: their commands to finish or roll back in the info module."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from builders import rc
from migrations import (
    ALL,
    ALL_OF_CONFIG,
    CONFIG_BACK,
    MIGRATE,
    MIGRATE_CONFIG,
    ConfigWorld,
    MigrationGateway,
    World,
    after,
)

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import migrations
from ansible_collections.baton.kubernetes.plugins.module_utils.model import options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, Module
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Done

RC, CONFIG, DEPLOYMENT = Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT_CONFIG, Kind.DEPLOYMENT


@pytest.fixture
def info(monkeypatch):
    """Let rolling_update_info look at a simulated migration."""
    def look(cluster, may_see=True, **params):
        monkeypatch.setattr(task, "_gateway",
                            lambda _params, wish, flow, watches_pods=True: MigrationGateway(
                                cluster, flow.watches[0], flow.watches, may_see))
        return task.info({"namespace": "default", "name": None, "kind": None, **params})["rollouts"]
    return look


def typed(command):
    """Return the request of a command."""
    *words, module, _a, text = shlex.split(command)
    assert words == ["ansible", "localhost", "-m"]
    values = dict(pair.split("=", 1) for pair in shlex.split(text))
    module = Module(module.removeprefix("baton.kubernetes."))
    return parse_request({option: spec.get("default")
                          for option, spec in options.SPECS[module].items()}
                         | {"module": module} | values)


ASKED = [{"name": "foo"}, {"name": "foo", "kind": "ReplicationController"},
         {"kind": "ReplicationController"}, {"names": ["foo"]},
         {"label_selectors": ["app=foo"], "kind": "ReplicationController"}, {}]


@pytest.mark.parametrize("query", ASKED, ids=str)
@pytest.mark.parametrize("number", range(1, len(ALL)))
def test_a_migration_is_in_progress_after_each_write_but_the_last(info, number, query):
    world = World()
    assert len(world.go(number)) == number

    (rollout,) = info(world.cluster, **query)

    assert (rollout["name"], rollout["kind"], rollout["phase"], rollout["direction"]) == (
        "foo", RC, "progressing", "forward")
    assert rollout["desired"] == 2
    assert (rollout["rollback_command"] is not None) == (
        world.find("ReplicationController") is not None)
    assert (rollout["controller"] is None) == (world.find("ReplicationController") is None)
    assert (rollout["successor"] and rollout["successor"]["name"]) == (
        world.replica_set and world.replica_set["metadata"]["name"])
    assert world.go(request=typed(rollout["resume_command"])) == ALL[number:]
    assert world.decide() == Done("foo is already a Deployment")


@pytest.mark.parametrize("number", range(len(ALL) + 1))
def test_its_deployment_and_its_replica_set_are_in_progress_as_well(info, number):
    world = World()
    world.go(number)
    is_halfway = 0 < number < len(ALL)
    for kind in (DEPLOYMENT, Kind.REPLICA_SET):
        for rollout in info(world.cluster, kind=str(kind)):
            assert (rollout["kind"], rollout["phase"] == "progressing") == (kind, is_halfway)
            assert not is_halfway or rollout["resume_command"] == MIGRATE.command()


@pytest.mark.parametrize("number", [0, len(ALL)])
def test_before_the_first_write_and_after_the_last_nothing_is_in_progress(info, number):
    world = World()
    world.go(number)
    assert [rollout["phase"] for rollout in info(world.cluster, name="foo")] == ["complete"]


def test_what_other_labels_have_is_not_listed(info):
    world = after("delete ReplicationController")
    assert info(world.cluster, kind="ReplicationController", label_selectors=["app=bar"]) == []


def test_a_migration_is_not_shown_without_permission(info):
    world = after("annotate ReplicationController")
    assert [rollout["phase"]
            for rollout in info(world.cluster, may_see=False, name="foo")] == ["complete"]


def test_another_label_key_is_in_the_command(info):
    item = rc(replicas=2)
    item["spec"]["template"]["metadata"]["labels"]["example.com/color"] = "blue"
    world = World(item)
    world.go(2, dataclasses.replace(MIGRATE, label_key="example.com/color"))
    (rollout,) = info(world.cluster, name="foo")
    assert typed(rollout["resume_command"]).label_key == "example.com/color"
    assert world.go(request=typed(rollout["resume_command"])) == ALL[2:]


@pytest.mark.parametrize("number", range(1, len(ALL_OF_CONFIG)))
@pytest.mark.parametrize("goes_back", [False, True])
def test_the_migration_of_a_deployment_config_is_in_progress_after_each_write_but_the_last(
        info, number, goes_back):
    world = ConfigWorld()
    world.go(number)

    (rollout,) = info(world.cluster, kind="DeploymentConfig")

    assert (rollout["name"], rollout["kind"], rollout["phase"]) == ("foo", CONFIG, "progressing")
    may_go_back = number <= ALL_OF_CONFIG.index("delete ReplicationController")
    assert (rollout["rollback_command"] is not None) == may_go_back
    if not goes_back:
        world.go(request=typed(rollout["resume_command"]))
        assert world.decide() == Done("foo is already a Deployment")
    elif may_go_back:
        world.go(request=typed(rollout["rollback_command"]))
        assert not world.observe().in_progress and world.observe().controller.name == "foo-1"


def test_the_replication_controller_of_a_rollout_leads_to_its_deployment_config(info):
    world = ConfigWorld()
    world.go(4)
    (rollout,) = info(world.cluster, kind="ReplicationController")
    assert (rollout["name"], rollout["kind"], rollout["phase"]) == ("foo-1", RC, "progressing")
    assert (rollout["resume_command"] == MIGRATE_CONFIG.command()
            and rollout["rollback_command"] == CONFIG_BACK.command())


def test_a_controller_revision_of_another_client_is_no_migration():
    world = after("create ControllerRevision")
    item = world.find(REVISION, "foo-migration")
    assert [migration.request.name for migration in migrations([item], Request("any"))] == ["foo"]
    for forged in ({**item, "data": {}}, {**item, "metadata": {"name": "bar-migration"}},
                   {**item, "data": {**item["data"], "hash": "0" * 10}}):
        assert migrations([forged], Request("any")) == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Interrupt a migration after each write, and run the commands that the info module returns."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from builders import rc
from clusters import FakeClock
from migrations import (
    ALL_CONFIG_STEPS,
    ALL_STEPS,
    CONFIG_ROLLBACK,
    MIGRATE,
    MIGRATE_CONFIG,
    ConfigWorld,
    MigrationGateway,
    World,
    world_after,
)

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import (
    choose,
    migrations,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, Module
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Done
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

RC, CONFIG, DEPLOYMENT = Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT_CONFIG, Kind.DEPLOYMENT


@pytest.fixture
def info(monkeypatch):
    """Return a function that lists the rollouts like rolling_update_info."""
    def list_rollouts(cluster, may_read=True, **params):
        monkeypatch.setattr(task, "_gateway",
                            lambda _params, _request, flow, watches_pods=True: MigrationGateway(
                                cluster, flow.watched_kinds[0], flow.watched_kinds, may_read))
        return task.info({"namespace": "default", "name": None, "kind": None, **params})["rollouts"]
    return list_rollouts


def parse_command(command):
    *words, module_name, _flag, arguments = shlex.split(command)
    assert words == ["ansible", "localhost", "-m"]
    given_options = dict(pair.split("=", 1) for pair in shlex.split(arguments))
    module = Module(module_name.removeprefix("baton.kubernetes."))
    return parse_request({option: spec.get("default")
                          for option, spec in options.SPECS[module].items()}
                         | {"module": module} | given_options)


QUERIES = [{"name": "foo"}, {"name": "foo", "kind": "ReplicationController"},
           {"kind": "ReplicationController"}, {"names": ["foo"]},
           {"label_selectors": ["app=foo"], "kind": "ReplicationController"},
           {"field_selectors": ["metadata.namespace=default"], "kind": "ReplicationController"}, {}]


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("step_count", range(1, len(ALL_STEPS)))
def test_a_migration_is_in_progress_after_each_write_but_the_last(info, step_count, query):
    world = World()
    assert len(world.run_steps(step_count)) == step_count

    (rollout,) = info(world.cluster, **query)

    assert (rollout["name"], rollout["kind"], rollout["phase"], rollout["direction"]) == (
        "foo", RC, "progressing", "forward")
    assert rollout["desired"] == 2
    assert (rollout["rollback_command"] is not None) == (
        world.find("ReplicationController") is not None)
    assert (rollout["controller"] is None) == (world.find("ReplicationController") is None)
    assert (rollout["successor"] and rollout["successor"]["name"]) == (
        world.replica_set and world.replica_set["metadata"]["name"])
    assert world.run_steps(request=parse_command(
        rollout["resume_command"])) == ALL_STEPS[step_count:]
    assert world.decide() == Done("foo is already a Deployment")


@pytest.mark.parametrize("step_count", range(len(ALL_STEPS) + 1))
def test_deployment_and_replica_set_are_in_progress_during_a_migration(info, step_count):
    world = World()
    world.run_steps(step_count)
    is_in_progress = 0 < step_count < len(ALL_STEPS)
    for kind in (DEPLOYMENT, Kind.REPLICA_SET):
        for rollout in info(world.cluster, kind=str(kind)):
            assert (rollout["kind"], rollout["phase"] == "progressing") == (kind, is_in_progress)
            assert not is_in_progress or rollout["resume_command"] == MIGRATE.command()


@pytest.mark.parametrize("step_count", [0, len(ALL_STEPS)])
def test_no_migration_is_in_progress_before_the_first_or_after_the_last_write(info, step_count):
    world = World()
    world.run_steps(step_count)
    assert [rollout["phase"] for rollout in info(world.cluster, name="foo")] == ["complete"]


@pytest.mark.parametrize("params", [{"image": "myimage:v2"}, {"state": "restarted"},
                                    {"state": "rolled_back"}], ids=str)
@pytest.mark.parametrize("step", ["annotate ReplicationController", "hand over Pod"])
def test_refused_task_reports_the_phase_of_the_migration(info, step, params):
    world = world_after(step)
    (rollout,) = info(world.cluster, name="foo")

    error = run_refused_task(world, parse_request({"name": "foo", **params}))

    reported_rollout = error.progress["rollout"]
    assert (reported_rollout["phase"], reported_rollout["direction"]) == (
        rollout["phase"], rollout["direction"]) == ("progressing", "forward")
    assert reported_rollout["since"] is None and error.progress["changed"] is False


@pytest.mark.parametrize("request_", [MIGRATE, parse_request({"name": "foo", "image": "a:1"})])
def test_closed_controller_is_in_progress_without_its_controller_revision(info, request_):
    world = world_after("hand over Pod")
    del world.cluster._items[REVISION, "foo-migration"]

    error = run_refused_task(world, request_)

    (rollout,) = info(world.cluster, name="foo")
    assert error.progress["rollout"]["phase"] == rollout["phase"] == "progressing"


def run_refused_task(world, request):
    gateway = MigrationGateway(world.cluster, RC, (RC,))
    with pytest.raises(RolloutError) as error:
        driver.run(choose(request), request, gateway, FakeClock())
    return error.value


def test_migration_with_other_labels_is_not_listed(info):
    world = world_after("delete ReplicationController")
    assert info(world.cluster, kind="ReplicationController", label_selectors=["app=bar"]) == []


@pytest.mark.parametrize("step, phase", [("create ReplicaSet", "complete"),
                                         ("annotate ReplicationController", "progressing")])
def test_only_the_closed_template_shows_a_migration_without_permission(info, step, phase):
    (rollout,) = info(world_after(step).cluster, may_read=False, name="foo")
    assert (rollout["phase"], rollout["resume_command"], rollout["rollback_command"]) == (
        phase, None, None)


def test_command_has_the_deployment_label_key(info):
    item = rc(replicas=2)
    item["spec"]["template"]["metadata"]["labels"]["example.com/color"] = "blue"
    world = World(item)
    world.run_steps(2, dataclasses.replace(MIGRATE, label_key="example.com/color"))
    (rollout,) = info(world.cluster, name="foo")
    assert parse_command(rollout["resume_command"]).label_key == "example.com/color"
    assert world.run_steps(request=parse_command(rollout["resume_command"])) == ALL_STEPS[2:]


@pytest.mark.parametrize("step_count", range(1, len(ALL_CONFIG_STEPS)))
@pytest.mark.parametrize("rolls_back", [False, True])
def test_the_migration_of_a_deployment_config_is_in_progress_after_each_write_but_the_last(
        info, step_count, rolls_back):
    world = ConfigWorld()
    world.run_steps(step_count)

    (rollout,) = info(world.cluster, kind="DeploymentConfig")

    assert (rollout["name"], rollout["kind"], rollout["phase"]) == ("foo", CONFIG, "progressing")
    can_roll_back = step_count <= ALL_CONFIG_STEPS.index("delete ReplicationController")
    assert (rollout["rollback_command"] is not None) == can_roll_back
    if not rolls_back:
        world.run_steps(request=parse_command(rollout["resume_command"]))
        assert world.decide() == Done("foo is already a Deployment")
    elif can_roll_back:
        world.run_steps(request=parse_command(rollout["rollback_command"]))
        assert not world.observe().in_progress and world.observe().controller.name == "foo-1"


def test_replication_controller_has_the_commands_of_its_deployment_config(info):
    world = ConfigWorld()
    world.run_steps(4)
    (rollout,) = info(world.cluster, kind="ReplicationController")
    assert (rollout["name"], rollout["kind"], rollout["phase"]) == ("foo-1", RC, "progressing")
    assert (rollout["resume_command"] == MIGRATE_CONFIG.command()
            and rollout["rollback_command"] == CONFIG_ROLLBACK.command())


def test_a_controller_revision_of_another_client_is_no_migration():
    world = world_after("create ControllerRevision")
    item = world.find(REVISION, "foo-migration")
    assert [migration.request.name for migration in migrations([item], Request("any"))] == ["foo"]
    for forged_revision in ({**item, "data": {}}, {**item, "metadata": {"name": "bar-migration"}},
                            {**item, "data": {**item["data"], "hash": "0" * 10}}):
        assert migrations([forged_revision], Request("any")) == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Resume and roll back updates that earlier versions of the collection began (recorded/)."""

from __future__ import annotations

import dataclasses
import json

import pytest
import recorded_updates
from every_kind import KINDS, SIZE, Cluster, update_request
from recorded_updates import MIGRATIONS, RECORDINGS, images, load, load_migration

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State

VERSIONS = sorted(path.name for path in RECORDINGS.iterdir())


def moments(names):
    """Return (version, name, moment) of each recording."""
    return [pytest.param(version, name, moment, id=f"{version}-{name}-{moment}")
            for version in VERSIONS for name in names for moment in _read(version, name)]


def _read(version, name):
    path = recorded_updates.recording_path(RECORDINGS / version, name)
    return json.loads(path.read_text("utf-8"))


def settings(cluster):
    """Return the settings that an update must not change."""
    spec = {"minReadySeconds": 0, **cluster.cluster.items["foo"]["spec"]}
    selector = json.loads(json.dumps(spec["selector"]))
    selector.pop(object_meta.DEPLOYMENT_LABEL, None)
    scaler = cluster.scaler
    return ({**spec, "selector": selector, "template": None}, scaler["spec"],
            scaler["metadata"].get("annotations") or {})


def assert_ended(cluster, kind, image):
    assert settings(cluster) == settings(Cluster(kind))
    assert set(cluster.cluster.items) == {"foo"}
    assert cluster.info(update_request(kind))["phase"] == "complete"
    cluster.settle()
    pods = recorded_updates.pods_of(cluster)
    assert images(pods, recorded_updates.objects_of(cluster)) == [image] * SIZE


@pytest.mark.parametrize(("version", "kind", "moment"), moments(KINDS))
def test_recorded_update_is_resumed_and_finished(version, kind, moment):
    cluster = load(kind, _read(version, kind)[moment])
    rollout = cluster.info(update_request(kind))
    assert rollout["phase"] != "complete"
    assert rollout["direction"] == ("back" if moment == "back" else "forward")

    plan, result = cluster.check_mode(update_request(kind)), cluster.run(update_request(kind))
    assert plan["changed"] and result["changed"]
    assert_ended(cluster, kind, "myimage:v2")
    assert not cluster.run(update_request(kind))["changed"]


@pytest.mark.parametrize(("version", "kind", "moment"), moments(KINDS))
def test_recorded_update_is_rolled_back(version, kind, moment):
    cluster = load(kind, _read(version, kind)[moment])
    rollback = update_request(kind, image=None, state="rolled_back")
    if moment == "handover":
        # All pods are new: the way back is another update.
        assert "there is no update in progress to roll back" in cluster.error(rollback).what
        rollback = update_request(kind, image="myimage:v1")
    result = cluster.run(rollback)
    assert result["changed"]
    assert_ended(cluster, kind, "myimage:v1")
    assert not cluster.run(rollback)["changed"]


@pytest.mark.parametrize(("version", "name", "moment"), moments(MIGRATIONS))
def test_recorded_migration_is_resumed_and_finished(version, name, moment):
    world_type, request, _steps = MIGRATIONS[name]
    world, fresh_world = load_migration(world_type, _read(version, name)[moment]), world_type()
    world.run_steps(request=request)
    fresh_world.run_steps(request=request)
    assert {key for key, item in world.cluster._items.items() if item} == {
        key for key, item in fresh_world.cluster._items.items() if item}
    (deployment,) = world.cluster.controllers(Kind.DEPLOYMENT).values()
    assert deployment.replicas == 2
    assert len({pod.owner_uid for pod in world.cluster.live_pods({})}) == 1


@pytest.mark.parametrize(("version", "name", "moment"), moments(MIGRATIONS))
def test_recorded_migration_is_rolled_back(version, name, moment):
    world_type, request, _steps = MIGRATIONS[name]
    rollback = dataclasses.replace(request, state=State.ROLLED_BACK)
    world, fresh_world = load_migration(world_type, _read(version, name)[moment]), world_type()
    initial = {key for key, item in fresh_world.cluster._items.items() if item}
    if not initial <= {key for key, item in world.cluster._items.items() if item}:
        with pytest.raises(RolloutError, match="cannot be rolled back"):
            world.run_steps(request=rollback)
        return
    world.run_steps(request=rollback)
    assert {key for key, item in world.cluster._items.items() if item} == initial
    (controller,) = world.cluster.controllers(Kind.REPLICATION_CONTROLLER).values()
    assert {pod.owner_uid for pod in world.cluster.live_pods({})} == {controller.uid}


def test_recorder_works_with_this_version(tmp_path):
    """Record the current version. Outside this test, the recorder runs only for releases."""
    recorded_updates.main(tmp_path)
    for name in [*KINDS, *MIGRATIONS]:
        recorded = json.loads(recorded_updates.recording_path(tmp_path, name).read_text("utf-8"))
        assert recorded.keys() == _read(VERSIONS[-1], name).keys()

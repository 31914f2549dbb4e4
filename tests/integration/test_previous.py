# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test to_revision=previous, which rolls back only once, even if a task is repeated or killed."""

from __future__ import annotations

import itertools

import pytest
from objects import eventually
from writes import Killed, kill_at_write

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
SIZE = 2


@pytest.fixture
def make_controller(namespace):
    """Provide a function that creates a controller of a kind, and returns `update_or_roll_back`.

    update_or_roll_back("v2") updates the controller, and update_or_roll_back() rolls it back to the
    previous revision.
    """

    def make_controller_of_kind(kind):
        if kind == "DaemonSet":
            namespace.add_nodes(SIZE)
        create = {"ReplicationController": namespace.make_rc,
                  "ReplicaSet": namespace.make_replica_set,
                  "Deployment": namespace.make_deployment,
                  "StatefulSet": namespace.make_stateful_set,
                  "DaemonSet": namespace.make_daemon_set}[kind]
        create(SIZE)

        def update_or_roll_back(version="", **params):
            task_params = ({"image": f"myimage:{version}"} if version
                           else {"state": "rolled_back", "to_revision": "previous"})
            return namespace.roll(kind=kind, **task_params, **params)

        return update_or_roll_back

    yield make_controller_of_kind
    namespace.remove_nodes()


def versions(namespace):
    return sorted({pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                   for pod in namespace.pods()})


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_rerun_of_a_rollback_to_the_previous_revision_changes_nothing(
    namespace, make_controller, kind
):
    update_or_roll_back = make_controller(kind)
    update_or_roll_back("v2")

    plan = namespace.check(kind=kind, state="rolled_back", to_revision="previous")
    assert plan["changed"] and not plan["requests"]["PATCH"] and versions(namespace) == ["v2"]
    assert update_or_roll_back()["changed"] and versions(namespace) == ["v1"]
    for rerun in (
        update_or_roll_back(),
        namespace.check(kind=kind, state="rolled_back", to_revision="previous"),
    ):
        assert not rerun["changed"] and not rerun["requests"]["PATCH"] and "already" in rerun["msg"]
    assert versions(namespace) == ["v1"]

    update_or_roll_back("v3")
    assert (update_or_roll_back()["changed"] and versions(namespace) == ["v1"]
            and not update_or_roll_back()["changed"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_rerun_reaches_the_same_revision_after_a_kill_at_each_write(
    namespace, make_controller, kind
):
    update_or_roll_back = make_controller(kind)
    update_or_roll_back("v2")

    for kills in itertools.count():
        assert kills < 20
        try:
            result = update_or_roll_back(fault=kill_at_write(1, after=True))
            break
        except Killed:
            continue

    assert kills >= 2 and versions(namespace) == ["v1"] and not result["changed"]
    assert not update_or_roll_back()["changed"] and versions(namespace) == ["v1"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_only_the_update_in_progress_is_rolled_back(namespace, make_controller, kind):
    update_or_roll_back = make_controller(kind)
    update_or_roll_back("v2")
    update_or_roll_back("v3", pause_at="1")
    assert versions(namespace) == ["v2", "v3"]

    assert update_or_roll_back()["changed"] and versions(namespace) == ["v2"]
    assert not update_or_roll_back()["changed"] and versions(namespace) == ["v2"]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_rollback_undoes_the_last_update_by_another_client(
        namespace, make_controller, kind):
    """The other client changes the image twice, like `kubectl set image`."""
    update_or_roll_back = make_controller(kind)
    update_or_roll_back("v2")
    assert update_or_roll_back()["changed"] and versions(namespace) == ["v1"]
    for version in ("v3", "v1"):
        patch = {
            "spec": {"template": {"spec": {"containers": [{"name": "web",
                                                           "image": f"myimage:{version}"}]}}}}
        namespace.call("PATCH", namespace.apps_path(f"{kind.lower()}s", "foo"), patch,
                       "application/strategic-merge-patch+json")
        eventually(lambda version=version: versions(namespace) == [version], f"pods of {version}")

    assert (update_or_roll_back()["changed"] and versions(namespace) == ["v3"]
            and not update_or_roll_back()["changed"])

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""to_revision=previous on a real API server: one rollback, independent of reruns and kills."""

from __future__ import annotations

import itertools

import pytest
from objects import eventually
from writes import Killed, kill_at_write

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
SIZE = 2


@pytest.fixture
def make(namespace):
    def make_one(kind):
        if kind == "DaemonSet":
            namespace.add_nodes(SIZE)
        maker = {"ReplicationController": namespace.make_primary,
                 "ReplicaSet": namespace.make_replica_set,
                 "Deployment": namespace.make_deployment,
                 "StatefulSet": namespace.make_stateful_set,
                 "DaemonSet": namespace.make_daemon_set}[kind]
        maker(SIZE)

        def roll(version="", **params):
            wish = ({"image": f"myimage:{version}"} if version
                    else {"state": "rolled_back", "to_revision": "previous"})
            return namespace.roll(kind=kind, **wish, **params)

        return roll

    yield make_one
    namespace.remove_nodes()


def versions(namespace):
    return sorted({pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                   for pod in namespace.pods()})


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_rollback_to_the_previous_revision_runs_once(namespace, make, kind):
    roll = make(kind)
    roll("v2")

    planned = namespace.check(kind=kind, state="rolled_back", to_revision="previous")
    assert planned["changed"] and not planned["requests"]["PATCH"] and versions(namespace) == ["v2"]
    assert roll()["changed"] and versions(namespace) == ["v1"]
    for again in (roll(), namespace.check(kind=kind, state="rolled_back", to_revision="previous")):
        assert not again["changed"] and not again["requests"]["PATCH"] and "already" in again["msg"]
    assert versions(namespace) == ["v1"]

    roll("v3")
    assert roll()["changed"] and versions(namespace) == ["v1"] and not roll()["changed"]


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", KINDS)
def test_rerun_reaches_the_same_revision_after_a_kill_at_each_write(namespace, make, kind):
    roll = make(kind)
    roll("v2")

    for kills in itertools.count():
        assert kills < 20
        try:
            last = roll(fault=kill_at_write(1, after=True))
            break
        except Killed:
            continue

    assert kills >= 2 and versions(namespace) == ["v1"] and not last["changed"]
    assert not roll()["changed"] and versions(namespace) == ["v1"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_update_in_progress_alone_is_rolled_back(namespace, make, kind):
    roll = make(kind)
    roll("v2")
    roll("v3", pause_at="1")
    assert versions(namespace) == ["v2", "v3"]

    assert roll()["changed"] and versions(namespace) == ["v2"]
    assert not roll()["changed"] and versions(namespace) == ["v2"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_updates_of_other_clients_to_the_same_template_count_as_the_last(
        namespace, make, kind):
    """As `kubectl set image`, twice."""
    roll = make(kind)
    roll("v2")
    assert roll()["changed"] and versions(namespace) == ["v1"]
    for version in ("v3", "v1"):
        patch = {
            "spec": {"template": {"spec": {"containers": [{"name": "web",
                                                           "image": f"myimage:{version}"}]}}}}
        namespace.call("PATCH", namespace.apps_path(f"{kind.lower()}s", "foo"), patch,
                       "application/strategic-merge-patch+json")
        eventually(lambda version=version: versions(namespace) == [version], f"pods of {version}")

    assert roll()["changed"] and versions(namespace) == ["v3"] and not roll()["changed"]

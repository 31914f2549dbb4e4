# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the ReplicaSet that keeps the Deployment controller from replacing pods."""

from __future__ import annotations

import pytest
from builders import rc, rs

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.simulated import (
    SimulatedDeployments,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind

STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
OWNERS = [{"kind": "Deployment", "name": "foo", "uid": "uid of foo", "controller": True}]


def deployment(image="myimage:v2"):
    item = rc(image=image, available=0)
    return {**item, "kind": "Deployment",
            "spec": {**item["spec"], "selector": {"matchLabels": {"app": "foo"}},
                     "strategy": STRATEGY}}


def replica_set(version, recorded_size=None, replicas=3):
    annotations = {object_meta.REVISION: version.removeprefix("v")}
    if recorded_size is not None:
        annotations[object_meta.SERVER_DESIRED] = recorded_size
    return rs(f"foo-{version}", replicas=replicas, image=f"myimage:{version}",
              annotations=annotations, ownerReferences=OWNERS)


def cluster(*replica_sets):
    return SimulatedDeployments([deployment()], replica_sets)


def name_of_outdated_replica_set(model):
    observed = find(model.controllers()["foo"], model.controllers(Kind.REPLICA_SET))
    return observed.outdated_replica_set.name if observed.outdated_replica_set else None


@pytest.mark.parametrize("replica_sets, expected", [
    ([replica_set("v1", "5")], "foo-v1"),
    ([replica_set("v1", "5"), replica_set("v2", "5", replicas=0)], "foo-v1"),
    ([replica_set("v1", "3")], None),
    ([replica_set("v1")], None),
    ([replica_set("v1", "many")], None),
    ([], None),
])
def test_only_old_replica_set_with_pods_records_another_size(replica_sets, expected):
    assert name_of_outdated_replica_set(cluster(*replica_sets)) == expected


@pytest.mark.parametrize("replica_sets", [
    [replica_set("v1", "5", replicas=2)],
    [replica_set("v1", "5", replicas=2), replica_set("v2", "3", replicas=1)],
    [replica_set("v1", "3", replicas=0), replica_set("v2", "5")],
], ids=["another size", "two ReplicaSets with pods", "the current template"])
def test_annotation_is_corrected_or_without_effect(replica_sets):
    assert name_of_outdated_replica_set(cluster(*replica_sets)) is None


@pytest.mark.parametrize("other_sets", [[], [replica_set("v2", "3", replicas=0)]],
                         ids=["no new ReplicaSet", "an empty new ReplicaSet"])
@pytest.mark.parametrize("recorded_size, expected_sizes", [
    ("5", {"foo-v1": 3}), ("3", {"foo-v1": 0, "the new ReplicaSet": 3})])
def test_simulated_controller_replaces_no_pods(other_sets, recorded_size, expected_sizes):
    model = cluster(replica_set("v1", recorded_size), *other_sets)

    model.settle()

    sizes = {name if name == "foo-v1" else "the new ReplicaSet": controller.replicas
             for name, controller in model.controllers(Kind.REPLICA_SET).items()}
    assert {name: size for name, size in sizes.items() if size or name == "foo-v1"} == (
        expected_sizes)
    assert model.controllers()["foo"].is_observed

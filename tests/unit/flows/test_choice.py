# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test which model check mode uses for each flow, and the interface that the models share."""

from __future__ import annotations

import pytest
from builders import rc, rs

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.simulated import (
    SimulatedDeployments,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.simulated import (
    SimulatedMigration,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.simulated import (
    SimulatedCluster,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create

UPDATE = Request("foo")
MIGRATE = Request("foo", module=Module.MIGRATION, state=State.MIGRATED)
DEPLOYMENT = Request("foo", kind=Kind.DEPLOYMENT)
POD = Pod("foo-a", "uid of foo-a", {"app": "foo"}, "uid of foo")


def revision(name):
    return {"kind": "ControllerRevision", "metadata": {"name": name}}


class StubCluster:
    """Cluster that lists the ReplicaSet foo-1 and, for any other kind, foo."""

    def __init__(self, revisions=()):
        self.requested_uids, self._revisions = [], revisions

    def items(self, kind=None):
        return [rs("foo-1")] if kind is Kind.REPLICA_SET else [rc()]

    def find(self, kind, name):
        return {"kind": kind, "metadata": {"name": name}}

    def live_pods(self, selector):
        return (POD,)

    def revisions(self, uids):
        self.requested_uids.append(list(uids))
        return self._revisions


@pytest.mark.parametrize("request_, model, service, pod_count", [
    (UPDATE, SimulatedCluster, None, 3),
    (Request("foo", kind=Kind.REPLICA_SET), SimulatedCluster, None, 3),
    (DEPLOYMENT, SimulatedDeployments, None, 0),
    (MIGRATE, SimulatedMigration, StubCluster().find("Service", "foo"), 1),
], ids=["ReplicationController", "ReplicaSet", "Deployment", "migration"])
def test_model_of_a_request(request_, model, service, pod_count):
    simulation = choose(request_).build_model(StubCluster())

    assert isinstance(simulation, model)
    assert (simulation.controllers() == simulation.controllers(request_.kind)
            and simulation.controllers()["foo"].kind is request_.kind)
    assert (simulation.find("Service", "foo") == service
            and len(simulation.live_pods({"app": "foo"})) == pod_count)


@pytest.mark.parametrize("request_, replica_sets",
                         [(UPDATE, []), (MIGRATE, []), (DEPLOYMENT, ["foo-1"])],
                         ids=["ReplicationController", "migration", "Deployment"])
def test_only_deployments_have_replica_sets(request_, replica_sets):
    model = choose(request_).build_model(StubCluster())

    assert list(model.controllers(Kind.REPLICA_SET)) == replica_sets


def test_history_of_controllers_on_the_server_is_read_once():
    real = StubCluster([revision("one")])
    simulation = choose(UPDATE).build_model(real)
    simulation.write(Create(revision("two")))

    names = [[item["metadata"]["name"]
              for item in simulation.revisions(["uid of foo", "uid of foo-next"])]
             for _round in range(2)]

    assert names == [["one", "two"]] * 2 and real.requested_uids == [["uid of foo"]]


def test_forbidden_history_is_none():
    assert choose(UPDATE).build_model(StubCluster(None)).revisions(["uid of foo"]) is None


@pytest.mark.parametrize("request_", [DEPLOYMENT, MIGRATE], ids=["Deployment", "migration"])
def test_models_without_revisions_request_no_history(request_):
    real = StubCluster([revision("one")])

    assert choose(request_).build_model(real).revisions(["uid of foo"]) is None
    assert real.requested_uids == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check mode's clusters in memory: the choice per flow, and their common interface."""

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


class Real:
    """A cluster with foo of any kind and a ReplicaSet foo-1."""

    def __init__(self, revisions=()):
        self.asked, self._revisions = [], revisions

    def items(self, kind=None):
        return [rs("foo-1")] if kind is Kind.REPLICA_SET else [rc()]

    def find(self, kind, name):
        return {"kind": kind, "metadata": {"name": name}}

    def live_pods(self, selector):
        return (POD,)

    def revisions(self, uids):
        self.asked.append(list(uids))
        return self._revisions


@pytest.mark.parametrize("request_, model, service, pods", [
    (UPDATE, SimulatedCluster, None, 3),
    (Request("foo", kind=Kind.REPLICA_SET), SimulatedCluster, None, 3),
    (DEPLOYMENT, SimulatedDeployments, None, 0),
    (MIGRATE, SimulatedMigration, Real().find("Service", "foo"), 1),
], ids=["ReplicationController", "ReplicaSet", "Deployment", "a migration"])
def test_which_model_a_request_gets_and_what_it_has(request_, model, service, pods):
    simulation = choose(request_).model(Real())

    assert isinstance(simulation, model)
    assert (simulation.controllers() == simulation.controllers(request_.kind)
            and simulation.controllers()["foo"].kind is request_.kind)
    assert (simulation.find("Service", "foo") == service
            and len(simulation.live_pods({"app": "foo"})) == pods)


@pytest.mark.parametrize("request_, sets", [(UPDATE, []), (MIGRATE, []), (DEPLOYMENT, ["foo-1"])],
                         ids=["ReplicationController", "a migration", "Deployment"])
def test_replica_sets_are_a_deployment_s(request_, sets):
    assert list(choose(request_).model(Real()).controllers(Kind.REPLICA_SET)) == sets


def test_the_history_that_is_there_is_looked_up_once_and_only_of_who_is_there():
    real = Real([revision("one")])
    simulation = choose(UPDATE).model(real)
    simulation.write(Create(revision("two")))

    names = [[item["metadata"]["name"]
              for item in simulation.revisions(["uid of foo", "uid of foo-next"])]
             for _time in range(2)]

    assert names == [["one", "two"]] * 2 and real.asked == [["uid of foo"]]


def test_a_history_that_may_not_be_seen_is_none():
    assert choose(UPDATE).model(Real(None)).revisions(["uid of foo"]) is None


@pytest.mark.parametrize("request_", [DEPLOYMENT, MIGRATE], ids=["Deployment", "a migration"])
def test_what_has_no_history_is_not_asked_for_one(request_):
    real = Real([revision("one")])

    assert choose(request_).model(real).revisions(["uid of foo"]) is None and real.asked == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update a simulated CloneSet, with cloneset.patch applied to the plugins."""

from __future__ import annotations

import pytest
from builders import rc
from clusters import Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.cloneset.simulated import (
    SimulatedCloneSets,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

STRATEGIES = {"defaults": {"type": "ReCreate"},
              "surge": {"type": "ReCreate", "maxSurge": 1, "maxUnavailable": 0},
              "partition": {"type": "InPlaceIfPossible", "partition": "50%"}}


def request(**params):
    return parse_request({"name": "foo", "kind": "CloneSet", "image": "myimage:v2", **params})


def actions(result):
    return [step["action"] for step in result["steps"]]


ROLL_BACK = request(image=None, state="rolled_back")


class CloneSetCluster(Cluster):
    kind = Kind.CLONE_SET

    def __init__(self, **strategy):
        super().__init__()
        item = {**rc(replicas=4), "kind": "CloneSet", "status": {}}
        item["spec"] |= {"selector": {"matchLabels": {"app": "foo"}}, "updateStrategy": strategy}
        self.cluster = SimulatedCloneSets([item], lambda _uids: [])
        self.cluster.settle()
        self.on_wait = self.cluster.settle

    def revisions(self, uids):
        return self.cluster.revisions(uids)

    @property
    def versions(self):
        images = {item["metadata"]["name"]:
                  item["data"]["spec"]["template"]["spec"]["containers"][0]["image"]
                  for item in self.revisions(["uid of foo"])}
        assert all(pod.ready for pod in self.cluster.pods("foo"))
        return sorted(images[pod.revision].removeprefix("myimage:")
                      for pod in self.cluster.pods("foo"))

    @property
    def strategy(self):
        return self.cluster.items["foo"]["spec"]["updateStrategy"]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_update_replaces_all_pods_and_restores_the_strategy(strategy):
    cluster = CloneSetCluster(**strategy)
    simulated_result = driver.simulate(choose(request()), request(), cluster)
    assert simulated_result["changed"] and cluster.versions == ["v1"] * 4
    result = cluster.run(request())
    assert result["changed"] and cluster.versions == ["v2"] * 4 and cluster.strategy == strategy
    assert actions(result) == actions(simulated_result) == ["update", "annotate"]
    assert not cluster.run(request())["changed"]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_update_pauses_at_the_exact_number_and_can_be_rolled_back(strategy):
    cluster = CloneSetCluster(**strategy)
    assert cluster.run(request(pause_at="1"))["rollout"]["phase"] == "paused"
    assert cluster.versions == ["v1", "v1", "v1", "v2"]
    assert cluster.run(request(pause_at="50%"))["rollout"]["phase"] == "paused"
    assert cluster.versions == ["v1", "v1", "v2", "v2"]
    assert cluster.run(ROLL_BACK)["changed"]
    assert cluster.versions == ["v1"] * 4 and cluster.strategy == strategy
    assert not cluster.run(ROLL_BACK)["changed"]


def test_update_of_a_paused_clone_set_is_refused():
    error = CloneSetCluster(type="ReCreate", paused=True).error(request())
    assert error.what == "it is paused, and not by this collection"


def test_successor_name_is_refused():
    with pytest.raises(RolloutError, match="because the cluster itself performs the update"):
        request(next_name="foo-v2")

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the API server accepts the settings of every patch, whatever the sizes and budgets.

The write() of each model refuses a patch whose settings the API server would refuse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

import pytest
from builders import NOW, run_to_end, template
from cluster_models import DaemonSetModel, DeploymentModel, StatefulSetModel, record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Patch, Step, put

KINDS = ["Deployment", "StatefulSet", "DaemonSet"]
SIZES = [0, 1, 3, 6]
LIMITS = [0, 3, "0%", "1%", "50%"]
BUDGETS = [{}, {"minAvailable": 2}, {"minAvailable": "100%"}, {"maxUnavailable": 0},
           {"maxUnavailable": 1}, {"maxUnavailable": "50%"}]


def strategies(kind):
    """Return the valid strategies of the kind, with sizes in LIMITS."""
    def is_zero(size):
        return size in (0, "0%")

    yield {"type": "Recreate" if kind == "Deployment" else "OnDelete"}
    if kind == "StatefulSet":
        yield from ({"type": "RollingUpdate", "rollingUpdate": numbers}
                    for numbers in [{"partition": 0}, {"partition": 2, "maxUnavailable": 3},
                                    *({"partition": 0, "maxUnavailable": limit}
                                      for limit in LIMITS if not is_zero(limit))])
        return
    for surge, unavailable in itertools.product(LIMITS, LIMITS):
        zero_count = is_zero(surge) + is_zero(unavailable)
        if zero_count == 1 or (zero_count == 0 and kind == "Deployment"):
            yield {"type": "RollingUpdate",
                   "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


STRATEGIES = {kind: list(strategies(kind)) for kind in KINDS}
OPTIONS = [{}, {"pause_at": "1"}, {"pause_at": "50%"}, {"pause_at": "100%"},
           {"pause_at": "100%", "keep_old": True}, {"max_surge": 0, "max_unavailable": 1},
           {"max_surge": "50%", "max_unavailable": 0}, {"max_unavailable": "50%"},
           {"pause_at": "1", "max_surge": 0, "max_unavailable": "50%"}]


def requests(kind):
    """Return the requests that the kind accepts."""
    for params in [*({"image": "myimage:v2", **options} for options in OPTIONS),
                   {"state": "restarted"}, {"state": "rolled_back"},
                   {"state": "rolled_back", "to_revision": 1}]:
        with contextlib.suppress(RolloutError):
            yield parse_request({"name": "foo", "kind": kind, **params})


REQUESTS = {kind: list(requests(kind)) for kind in KINDS}


def cluster(kind, size, strategy):
    field = "strategy" if kind == "Deployment" else "updateStrategy"
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"replicas": size, "selector": {"matchLabels": {"app": "foo"}},
                     "template": template(), field: strategy},
            "status": {"desiredNumberScheduled": size}}
    model = {"Deployment": DeploymentModel, "StatefulSet": StatefulSetModel,
             "DaemonSet": DaemonSetModel}[kind]([item])
    model.settle()
    return model


def resize(kind, model, size):
    if kind == "DaemonSet":
        model.set_nodes("foo", [f"node-{number}" for number in range(size)])
    else:
        model.write(Patch("foo", (put("/spec/replicas", size),), kind))


def budgets(spec):
    selector = {"selector": {"matchLabels": {"app": "foo"}}}
    return ({"metadata": {"name": "pdb"}, "spec": {**selector, **spec}},) if spec else ()


def decide(request, model, **facts):
    flow, memory = choose(request), Memory(now=NOW, has_begun=True, server_time=seconds(NOW))
    request = flow.resolve_revision(request, model, memory)
    return flow.plan(request, dataclasses.replace(flow.observe(request, model, memory), **facts))


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_rollback_of_an_update_before_the_budget(kind, budget):
    rollback = parse_request({"name": "foo", "kind": kind, "state": "rolled_back"})
    for size, strategy in itertools.product(SIZES, STRATEGIES[kind]):
        model = cluster(kind, size, strategy)
        run_to_end(decide, REQUESTS[kind][0], model, until="update")

        with contextlib.suppress(RolloutError):  # the budget allows no disruption
            run_to_end(decide, rollback, model, budgets=budgets(budget))
            assert record(model)["outcome"] == "rolled_back"


@pytest.mark.sample
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_no_budget_matters_without_pods(kind, budget):
    for strategy, request in itertools.product(STRATEGIES[kind], REQUESTS[kind]):
        if request.state.rolls_back or request.pause_at:
            continue
        model = cluster(kind, 0, strategy)
        with contextlib.suppress(RolloutError):  # the strategy contradicts the request
            decide(request, model)

            run_to_end(decide, request, model, budgets=budgets(budget))
            assert record(model)["outcome"] == "updated"


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200)
@given(data=st.data())
def test_settings_in_a_random_order(kind, data):
    """Start and kill clients with any requests, and change the size and the budget at any time."""
    model = cluster(kind, data.draw(st.sampled_from(SIZES)),
                    data.draw(st.sampled_from(STRATEGIES[kind])))
    for _stage in range(data.draw(st.integers(1, 4))):
        request = data.draw(st.sampled_from(REQUESTS[kind]))
        budget = data.draw(st.sampled_from(BUDGETS))
        if data.draw(st.booleans()):
            resize(kind, model, data.draw(st.sampled_from(SIZES)))
        for choice in data.draw(st.lists(st.integers(0, 9), max_size=12)):
            moves = model.moves()
            if choice and moves:
                model.make(moves[choice % len(moves)])
                continue
            with contextlib.suppress(RolloutError):
                decision = decide(request, model, budgets=budgets(budget))
                if isinstance(decision, Step):
                    model.write(decision.write)

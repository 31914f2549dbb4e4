# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Select the PodDisruptionBudgets of pods, and count the pods that may be unavailable."""

from __future__ import annotations

import pytest
from builders import template

from ansible_collections.baton.kubernetes.plugins.module_utils.model.budgets import (
    allowed_disruptions,
    budgets_of,
    desired_healthy,
    surge_and_unavailable,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size


@pytest.mark.parametrize("selector, matches", [
    ({}, True),
    (None, False),
    ({"matchLabels": {"app": "foo"}}, True),
    ({"matchLabels": {"app": "bar"}}, False),
    ({"matchLabels": {"app": "foo", "tier": "front"}}, False),
    ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["bar", "foo"]}]}, True),
    ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["bar"]}]}, False),
    ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["front"]}]}, False),
    ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["foo"]}]}, False),
    ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["bar"]}]}, True),
    ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["front"]}]}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
    ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
    ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
    ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
    ({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}, False),
    ({"matchLabels": {"app": "foo"},
      "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
])
def test_budgets_of_a_template(selector, matches):
    budget = {"spec": {"selector": selector}}

    assert budgets_of(template(), [budget]) == ([budget] if matches else [])


# The rounding is that of Kubernetes' disruption controller. The percentages are from its tests.
@pytest.mark.parametrize("spec, pod_count, healthy", [
    ({"minAvailable": 3}, 10, 3),
    ({"minAvailable": 3}, 1, 3),
    ({"minAvailable": "28%"}, 10, 3),
    ({"minAvailable": "30%"}, 10, 3),
    ({"minAvailable": "31%"}, 10, 4),
    ({"minAvailable": "100%"}, 11, 11),
    ({"minAvailable": 0}, 10, 0),
    ({"maxUnavailable": 1}, 10, 9),
    ({"maxUnavailable": 0}, 10, 10),
    ({"maxUnavailable": "1%"}, 10, 9),
    ({"maxUnavailable": "28%"}, 10, 7),
    ({"maxUnavailable": "100%"}, 10, 0),
    ({"maxUnavailable": 20}, 10, 0),
    ({"maxUnavailable": 1, "minAvailable": None}, 0, 0),
    ({}, 10, 0),
])
def test_desired_healthy_pods_of_a_budget(spec, pod_count, healthy):
    assert desired_healthy({"spec": spec}, pod_count) == healthy


@pytest.mark.parametrize("specs, unavailable", [
    ([], 3),
    ([{"maxUnavailable": 2}], 2),
    ([{"maxUnavailable": 2}, {"minAvailable": 9}], 1),
    ([{"minAvailable": 12}], 0),
    ([{"maxUnavailable": 20}], 3),
])
def test_strictest_budget_limits_the_unavailable_pods(specs, unavailable):
    budgets = [{"spec": spec} for spec in specs]
    request = Request(name="foo", max_surge=Size(2), max_unavailable=Size(3))

    assert surge_and_unavailable(request, budgets, 10) == (2, unavailable)
    assert min([3, *(allowed_disruptions(budget, 10) for budget in budgets)]) == unavailable

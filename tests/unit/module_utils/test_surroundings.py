# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What stands in an update's way, or makes it lose requests, is told before its first write."""

from __future__ import annotations

import pytest
from builders import template

from ansible_collections.baton.kubernetes.plugins.module_utils.surroundings import (
    autoscaler_of,
    budgets_of,
    desired_healthy,
)


def hpa(autoscaler="web", **target):
    return {"metadata": {"name": autoscaler},
            "spec": {"scaleTargetRef": {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo", **target}}}


@pytest.mark.parametrize("target, found", [
    ({}, True),
    ({"apiVersion": ""}, True),
    ({"apiVersion": None}, True),
    ({"apiVersion": "apps/v1"}, False),
    ({"kind": "Deployment"}, False),
    ({"name": "bar"}, False),
])
def test_the_autoscaler_of_a_controller(target, found):
    mine = hpa(**target)

    assert autoscaler_of("foo", [hpa("other", kind="ReplicaSet"), mine]) == (mine if found else None)


def test_autoscalers_that_may_not_be_seen():
    assert autoscaler_of("foo", None) is None


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
    ({"matchLabels": {"app": "foo"}, "matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
])
def test_the_budgets_that_count_a_templates_pods(selector, matches):
    budget = {"spec": {"selector": selector}}

    assert budgets_of(template(), [budget]) == ([budget] if matches else [])


# The rounding of the disruption controller; the rows with percentages are from its own tests and intstr's.
@pytest.mark.parametrize("spec, expected, healthy", [
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
def test_how_many_a_budget_wants_healthy(spec, expected, healthy):
    assert desired_healthy({"spec": spec}, expected) == healthy

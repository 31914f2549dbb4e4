# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test warnings about Services, quotas and PodDisruptionBudgets, and the Events of an update."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"


def create_service(namespace, **selector):
    namespace.create("services",
                     {"metadata": {"name": "web"},
                      "spec": {"selector": selector, "ports": [{"port": 80}]}})


def create_budget(namespace, **spec):
    namespace.call("POST", BUDGETS.format(namespace.name), {
        "metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}})


def warnings_with(result, *texts):
    return [warning for warning in result["warnings"] if all(text in warning for text in texts)]


def test_missing_readiness_probe_is_reported_once_and_in_check_mode(namespace):
    namespace.make_rc(2)
    create_service(namespace, app="foo")

    plan = namespace.check(image="myimage:v2", pause_at="1")
    paused_result = namespace.roll(image="myimage:v2", pause_at="1")
    completed_result = namespace.roll(image="myimage:v2")

    for result in (plan, paused_result):
        assert (warnings_with(result, "Service web", "readinessProbe")
                and warnings_with(result, "Service web", "preStop"))
    assert completed_result["changed"] and not completed_result["warnings"]


def test_service_that_selects_only_new_pods_is_reported(namespace):
    namespace.make_rc(2)
    create_service(namespace, app="foo", tier="front")

    result = namespace.check(template={"metadata": {"labels": {"tier": "front"}}})

    assert warnings_with(result, "Service web", "tier")


@pytest.mark.full
def test_too_small_quota_is_a_warning_and_the_cause_of_the_failure(namespace):
    namespace.make_rc(2)
    namespace.create("resourcequotas",
                     {"metadata": {"name": "small"}, "spec": {"hard": {"pods": "2"}}})

    plan = namespace.check(image="myimage:v2")
    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2", progress_deadline=4)
    result = namespace.roll(image="myimage:v2", max_surge="0", max_unavailable="1")

    assert warnings_with(plan, "ResourceQuota small", "max_surge=0 max_unavailable=1")
    assert "exceeded quota: small" in error.value.why and error.value.causes[0]["kind"] == "quota"
    assert result["changed"] and namespace.rc_names() == ["foo"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("spec", [{"minAvailable": 3}, {"maxUnavailable": "25%"}])
def test_budget_overrides_max_unavailable(namespace, spec):
    namespace.make_rc(4)
    create_budget(namespace, **spec)

    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2", max_surge="0", max_unavailable="4")

    assert observer.min_ready >= 3 and namespace.rc_names() == ["foo"]


@pytest.mark.full
def test_max_unavailable_is_used_without_a_budget(namespace):
    namespace.make_rc(4)
    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2", max_surge="0", max_unavailable="4")

    assert observer.min_ready < 3


def test_budget_that_allows_no_disruption_is_a_warning_or_an_error(namespace):
    namespace.make_rc(2)
    create_budget(namespace, minAvailable="100%")

    result = namespace.roll(image="myimage:v2")
    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v3", max_surge="0", max_unavailable="1")

    assert (warnings_with(result, "PodDisruptionBudget web")
            and "no pod could ever be replaced" in error.value.what)


def test_events_show_the_update(namespace):
    primary = namespace.make_rc(1)

    result = namespace.roll(image="myimage:v2")

    events = [item for item in namespace.call("GET", namespace.path("events"))["items"]
              if item["source"].get("component") == "baton.kubernetes"]
    milestones = [event for event in events if event["reason"] != "RollingUpdateScale"]
    assert len(milestones) == sum(step["action"] != "scale" for step in result["steps"])
    assert {event["involvedObject"]["uid"] for event in events} == {primary["metadata"]["uid"]}
    assert ({"RollingUpdateScale", "RollingUpdateRename", "RollingUpdateDelete"}
            <= {event["reason"] for event in events})

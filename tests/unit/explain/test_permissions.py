# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report missing permissions before the first write, and accept the documented Role."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import permissions
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

PAGE = Path(__file__).parents[3] / "docs/reference/permissions.md"
ROLE_RULES = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"),
                                      re.DOTALL)[1])["rules"]
CONTROLLERS_RULE, *_OTHER_RULES, LEASES_RULE = ROLE_RULES
PODS_RULE = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "patch"]}
UPDATE = Request("foo", namespace="shop")
WITHOUT_LOCK = dataclasses.replace(UPDATE, lock=False)


def check_rules(rules, request):
    permissions.refuse_missing(rules, choose(request).required_permissions(request), request)


def error_of(rules, request=UPDATE):
    with pytest.raises(RolloutError) as error:
        check_rules(rules, request)
    return error.value


@pytest.mark.parametrize("rules",
                         [ROLE_RULES, [CONTROLLERS_RULE, PODS_RULE, LEASES_RULE],
                          [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]],
                         ids=["documented Role", "minimum", "everything"])
def test_sufficient_rules_are_accepted(rules):
    check_rules(rules, UPDATE)


def test_only_the_lock_requires_permissions_on_leases():
    check_rules([CONTROLLERS_RULE, PODS_RULE], WITHOUT_LOCK)

    error = error_of([CONTROLLERS_RULE, PODS_RULE])

    assert error.why == "not allowed: get, create, update, delete on leases (coordination.k8s.io)"
    assert "lock=false" in error.next_command


@pytest.mark.parametrize("verb", CONTROLLERS_RULE["verbs"])
def test_each_missing_verb_is_named(verb):
    other_verbs = [other for other in CONTROLLERS_RULE["verbs"] if other != verb]

    error = error_of([{**CONTROLLERS_RULE, "verbs": other_verbs}, PODS_RULE, LEASES_RULE])

    assert (error.where, error.why) == ("namespace shop",
                                        f"not allowed: {verb} on replicationcontrollers")
    assert "lock" not in error.next_command


APPS_RULE = {**CONTROLLERS_RULE, "apiGroups": ["apps"],
             "resources": ["replicasets", "deployments", "controllerrevisions"]}


@pytest.mark.parametrize("request_, needs_pods", [
    (WITHOUT_LOCK, True),
    (dataclasses.replace(WITHOUT_LOCK, state=State.RESTARTED), True),
    (dataclasses.replace(WITHOUT_LOCK, kind=Kind.REPLICA_SET), True),
    (dataclasses.replace(WITHOUT_LOCK, module=Module.MIGRATION, state=State.MIGRATED), True),
    (dataclasses.replace(WITHOUT_LOCK, next_name="bar"), False),
    (dataclasses.replace(WITHOUT_LOCK, kind=Kind.DEPLOYMENT), False),
    (dataclasses.replace(WITHOUT_LOCK, state=State.ROLLED_BACK), False),
], ids=["update", "restart", "ReplicaSet", "migration", "next_name",
        "Deployment", "rollback"])
def test_only_a_handover_requires_permissions_on_pods(request_, needs_pods):
    rules = [CONTROLLERS_RULE, APPS_RULE]
    check_rules([*rules, PODS_RULE], request_)

    if needs_pods:
        assert error_of(rules, request_).why == "not allowed: list, patch on pods"
        assert error_of([*rules, {**PODS_RULE, "verbs": ["get", "list"]}],
                        request_).why == "not allowed: patch on pods"
    else:
        check_rules(rules, request_)


def test_all_missing_permissions_are_named_at_once():
    assert error_of([CONTROLLERS_RULE]).why == (
        "not allowed: list, patch on pods; get, create, update, delete on leases "
        "(coordination.k8s.io)")


def test_rules_of_other_groups_and_resources_are_ignored():
    rules = [{**CONTROLLERS_RULE, "apiGroups": ["apps"]},
             {**CONTROLLERS_RULE, "resources": ["replicationcontrollers/scale"]},
             PODS_RULE, LEASES_RULE]

    assert error_of(rules).why == (
        "not allowed: get, list, watch, create, patch, delete on replicationcontrollers")


def test_rules_are_combined():
    check_rules([{**CONTROLLERS_RULE, "verbs": [verb]} for verb in CONTROLLERS_RULE["verbs"]]
                + [PODS_RULE, LEASES_RULE], UPDATE)


@pytest.mark.parametrize("resources, is_granted", [
    (["pods/log"], True), (["*/log"], True), (["*"], True), (["pods"], False), (["pods/*"], False),
    (["*/*"], False),
    (["*/logs"], False), (["log"], False),
])
def test_permission_for_a_subresource(resources, is_granted):
    """Source: ResourceMatches (pkg/apis/rbac/v1/evaluation_helpers.go)."""
    rule = {"apiGroups": [""], "resources": resources, "verbs": ["get"]}

    missing = permissions.describe_missing([rule], [permissions.LOG_RULE])
    assert missing == ("" if is_granted else "get on pods/log")


@pytest.mark.parametrize("resources", [["*/pods"], ["pods/pods"], ["*/"], ["*/*"]])
def test_subresource_rule_does_not_grant_its_resource(resources):
    rule = {"apiGroups": [""], "resources": resources, "verbs": ["list"]}

    assert permissions.describe_missing([rule], [("", "pods", ("list",))]) == "list on pods"

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that each permission of docs/reference/permissions.md is needed, and named if missing."""

from __future__ import annotations

import re

import pytest
from namespace import RBAC
from objects import eventually, role_rules, uids
from writes import Killed, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

CONTROLLERS = "replicationcontrollers"


def rules_without(verb: str, resource: str) -> list:
    rules = [{**rule,
              "verbs": [granted
                        for granted in rule["verbs"] if granted != verb
                        or resource not in rule["resources"]]}
             for rule in role_rules()]
    assert rules != role_rules()
    return [rule for rule in rules if rule["verbs"]]


def change_role(namespace, rules, verb: str, resource: str) -> None:
    """Replace the rules of the Role, and wait until the change of this permission is in effect."""
    path = f"{RBAC}/namespaces/{namespace.name}/roles/baton"
    rule = {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
    is_granted = verb in granted_verbs(rules, resource)
    namespace.call("PATCH", path, {"rules": rules}, "application/merge-patch+json")
    eventually(lambda: namespace.is_allowed([rule]) == is_granted, "the effect of the changed Role")


def granted_verbs(rules, resource: str) -> set:
    return {verb for rule in rules if resource in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.sample(1)
@pytest.mark.parametrize("verb", ["get", "list", "create", "patch", "delete"])
def test_missing_permission_on_controllers_is_named(namespace, verb):
    namespace.make_rc(2)
    change_role(namespace, rules_without(verb, CONTROLLERS), verb, CONTROLLERS)

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")

    assert "permission" in error.value.what
    assert "docs/reference/permissions.md" in error.value.next_command
    assert re.search(rf"\b{verb}\b", error.value.why) and CONTROLLERS in error.value.why
    change_role(namespace, role_rules(), verb, CONTROLLERS)
    assert namespace.roll(image="myimage:v2")["changed"] and namespace.rc_names() == ["foo"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("verb", ["list", "patch"])
def test_missing_handover_permission_is_named_and_not_needed_for_next_name(
        namespace, verb):
    namespace.make_rc(2)
    change_role(namespace, rules_without(verb, "pods"), verb, "pods")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")

    assert error.value.what == "permissions are missing; nothing was changed"
    assert (error.value.why == f"not allowed: {verb} on pods"
            and "docs/reference/permissions.md" in error.value.next_command)
    assert (namespace.roll(image="myimage:v2", next_name="bar")["changed"]
            and namespace.rc_names() == ["bar"])


def test_error_without_permission_on_pods_contains_fewer_details(namespace):
    namespace.make_rc(2)
    change_role(namespace, rules_without("list", "pods"), "list", "pods")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:absent", next_name="bar", progress_deadline=4)

    assert error.value.why.endswith("has 0 of 1 available")


@pytest.mark.sample(1)
@pytest.mark.parametrize("verb", ["list", "patch"])
def test_permission_revoked_during_the_handover_is_named(namespace, verb):
    namespace.make_rc(4)
    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(2, True, is_reparenting), image="myimage:v2")
        change_role(namespace, rules_without(verb, "pods"), verb, "pods")
        with pytest.raises(RolloutError) as error:
            namespace.roll(image="myimage:v2")
        with pytest.raises(RolloutError) as error_of_rollback:
            namespace.roll(state="rolled_back")
        change_role(namespace, role_rules(), verb, "pods")
        namespace.roll(image="myimage:v2")

    assert (f"{verb} on pods" in error.value.why
            or f'cannot {verb} resource "pods"' in error.value.why)
    assert f'cannot {verb} resource "pods"' in error_of_rollback.value.why
    assert "docs/reference/permissions.md" in error_of_rollback.value.next_command
    assert (namespace.rc_names() == ["foo"] and observer.new_pods == uids(namespace.pods())
            and observer.min_ready >= 4)
    assert not set(object_meta.UPDATE_ANNOTATIONS) & set(namespace.rc()["metadata"]["annotations"])

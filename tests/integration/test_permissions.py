# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Role of docs/permissions.md is enough, as every test here shows, and nothing in it is more than is needed."""

from __future__ import annotations

import re

import pytest
from namespace import RBAC, Killed, dies_at, eventually, role

from ansible_collections.baton.kubernetes.plugins.module_utils import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import RolloutError

CONTROLLERS = "replicationcontrollers"


def without(verb: str, resource: str) -> list:
    """The documented rules but for one verb on one resource."""
    rules = [{**rule, "verbs": [each for each in rule["verbs"] if each != verb or resource not in rule["resources"]]}
             for rule in role()]
    assert rules != role()
    return [rule for rule in rules if rule["verbs"]]


def change_role(namespace, rules, verb: str, resource: str) -> None:
    """Replace the rules of the code under test, and return when the API server has heard of that verb."""
    path = f"{RBAC}/namespaces/{namespace.name}/roles/baton"
    there = {"apiGroups": [""], "resources": [resource], "verbs": [verb]}
    wanted = verb in permissions(rules, resource)
    namespace._call("PATCH", path, {"rules": rules}, "application/merge-patch+json")
    eventually(lambda: namespace.is_allowed([there]) == wanted, "the changed Role")


def permissions(rules, resource: str) -> set:
    return {verb for rule in rules if resource in rule["resources"] for verb in rule["verbs"]}


@pytest.mark.parametrize("verb", ["get", "list", "create", "patch", "delete"])
def test_every_permission_on_controllers_is_needed_and_named_where_it_is_missing(namespace, verb):
    """With it back, the same task ends as ever."""
    namespace.make_foo(2)
    change_role(namespace, without(verb, CONTROLLERS), verb, CONTROLLERS)

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")

    assert "permission" in error.value.what and "docs/permissions.md" in error.value.next_command
    assert re.search(rf"\b{verb}\b", error.value.why) and CONTROLLERS in error.value.why
    change_role(namespace, role(), verb, CONTROLLERS)
    assert namespace.roll(image="myimage:v2")["changed"] and namespace.rcs() == ["foo"]


def test_without_sight_of_pods_an_update_works_and_a_stall_says_less(namespace):
    namespace.make_foo(2)
    change_role(namespace, without("list", "pods"), "list", "pods")

    assert namespace.roll(image="myimage:v2")["changed"]
    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:absent", progress_deadline=4)

    assert error.value.why.endswith("has 0 of 1 available")


def test_a_pod_that_dies_at_the_takeover_is_replaced_only_where_pods_may_be_seen(namespace):
    """This is what the list on pods is for: nothing else tells that no pod is without an owner."""
    namespace.make_foo(2)
    change_role(namespace, without("list", "pods"), "list", "pods")
    with pytest.raises(Killed):
        namespace.roll(kill=dies_at("delete"), image="myimage:v2")
    eventually(lambda: namespace.rcs() == ["foo"], "the end of next")
    namespace.remove(namespace.pods()[0]["metadata"]["name"], resource="pods")

    with pytest.raises(RolloutError):
        namespace.roll(image="myimage:v2", progress_deadline=3)
    change_role(namespace, role(), "list", "pods")
    namespace.roll(image="myimage:v2")

    assert len(namespace.pods()) == 2 and not set(identity.MARKS) & set(namespace.rc()["metadata"]["annotations"])

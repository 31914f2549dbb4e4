# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A ServiceAccount whose only permissions come from files in docs/reference/permissions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import typing as t

import features
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from namespace import RBAC
from objects import Json, eventually, permissions

from ansible_collections.baton.kubernetes.plugins.module_utils import task

FEATURES = {feature.name: feature for feature in features.features()}
#: By feature. Without them, the task lists the objects repeatedly.
OPTIONAL_PERMISSIONS = {"causes": {("", "events", "watch", ""), ("", "pods", "watch", "")}}
IMAGES = map("myimage:v{}".format, itertools.count(2))


class User:
    """The ServiceAccount baton of a namespace. Its only permissions come from apply()."""

    def __init__(self, namespace) -> None:
        self.namespace, self.roles = namespace, {}
        namespace.call("DELETE", f"{RBAC}/namespaces/{namespace.name}/rolebindings/baton")

    def apply(self, feature: str) -> None:
        role, binding = yaml.safe_load(FEATURES[feature].path.read_text("utf-8"))["items"]
        for item in (role, binding):
            path = f"{RBAC}/namespaces/{self.namespace.name}/{item['kind'].lower()}s"
            self.namespace.call("POST", path, item)
        self.roles[feature] = role
        eventually(lambda: self.namespace.is_allowed(role["rules"]), f"the Role of {feature}")

    @contextlib.contextmanager
    def without(self, feature: str, permission: tuple[str, ...]) -> t.Iterator[None]:
        group, resource, verb, _name = permission
        rules = self.roles[feature]["rules"]
        reduced_rules = [
            {**rule, "verbs": [granted for granted in rule["verbs"] if granted != verb]}
            if (rule["apiGroups"], rule["resources"]) == ([group], [resource]) else rule
            for rule in rules]
        self._replace_rules(feature, [rule for rule in reduced_rules if rule["verbs"]],
                            permission, False)
        yield
        self._replace_rules(feature, rules, permission, True)

    def _replace_rules(self, feature: str, rules: list[Json], permission: tuple[str, ...],
                       is_allowed: bool) -> None:
        path = f"{RBAC}/namespaces/{self.namespace.name}/roles/baton-{feature}"
        self.namespace.call("PATCH", path, {"rules": rules}, "application/merge-patch+json")
        group, resource, verb, _name = permission
        rule = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
        eventually(lambda: self.namespace.is_allowed([rule]) == is_allowed, "the changed Role")

    def run(self, function: str = "update", **options: t.Any) -> Json:
        """Run a function of task.py, and return its result, even if it fails.

        The result also has the keys `failed` and `warnings`.
        """
        task_function = {"update": task.update, "migrate": task.migrate,
                         "info": task.info, "analysis": task.analysis,
                         "traffic": functools.partial(task.traffic, check_mode=True)}[function]
        validation = ArgumentSpecValidator(task.OPTIONS[function]).validate(
            {"namespace": self.namespace.name, "kubeconfig": self.namespace.kubeconfig,
             **options})
        assert not validation.error_messages, validation.error_messages
        warnings: list[str] = []
        result = task.result_or_error(task_function, validation.validated_parameters,
                                      warnings.append) or {}
        return {"failed": False, **result, "warnings": sorted(warnings)}

    def update(self, kind: str, **options: t.Any) -> Json:
        return self.run(name="foo", kind=kind, **{"image": next(IMAGES), **options})


def summary(result: Json) -> tuple[t.Any, ...]:
    failure = result.get("failure") or {}
    return result["failed"], failure.get("what"), failure.get("why"), tuple(result["warnings"])


def assert_each_permission_is_needed(user: User, feature: str,
                                     use: t.Callable[[User], t.Any]) -> None:
    """Assert that the result of `use` needs each permission, except OPTIONAL_PERMISSIONS."""
    results_without = {}
    for permission in sorted(permissions(user.roles[feature]["rules"])):
        with user.without(feature, permission):
            results_without[permission] = use(user)
    full_result = use(user)

    unneeded_permissions = {permission for permission, result in results_without.items()
                            if result == full_result}
    assert unneeded_permissions == OPTIONAL_PERMISSIONS.get(feature, set()), full_result
    assert "not allowed" not in str(full_result)
    is_permission_named = FEATURES[feature].is_sufficient and feature not in (
        "info", "analysis", "traffic", "traffic-service")
    for (_group, resource, verb, _name), result in results_without.items():
        assert not is_permission_named or (verb in str(result) and resource in str(result))

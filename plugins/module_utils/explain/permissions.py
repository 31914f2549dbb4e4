# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the permissions (docs/reference/permissions.md) before the first write. No I/O."""

from __future__ import annotations

import typing as t

from ..flows.flow import Rule
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request

LOG_RULE: Rule = ("", "pods/log", ("get",))
#: Not needed with lock=false.
LEASE_RULE: Rule = ("coordination.k8s.io", "leases", ("get", "create", "update", "delete"))


def refuse_missing(rules: t.Sequence[Json], required_rules: t.Sequence[Rule],
                   request: Request) -> None:
    """Raise RolloutError if the rules do not allow all required verbs.

    rules: the resourceRules of a SelfSubjectRulesReview. required_rules: all required rules except
    LEASE_RULE, which is required if request.lock is set.
    """
    lease_rules = [LEASE_RULE] if request.lock else []
    missing_permissions = describe_missing(rules, [*required_rules, *lease_rules])
    if missing_permissions:
        hint = "ask for the Role in docs/reference/permissions.md"
        if request.lock and not describe_missing(rules, required_rules):
            hint += (", or add lock=false to the task if no other task can work on this "
                     "controller at the same time")
        raise RolloutError("permissions are missing; nothing was changed",
                           where=f"namespace {request.namespace}",
                           why=f"not allowed: {missing_permissions}", next_command=hint)


def describe_missing(rules: t.Sequence[Json], required_rules: t.Iterable[Rule]) -> str:
    """Describe the missing verbs, such as "list, watch on pods"; return "" if none is missing."""
    return "; ".join(filter(None, (_describe_missing_verbs(rules, *rule)
                                   for rule in required_rules)))


def _describe_missing_verbs(rules: t.Sequence[Json], group: str, resource: str,
                            verbs: t.Iterable[str]) -> str:
    denied_verbs = [verb for verb in verbs
                    if not any(_allows(rule, group, resource, verb) for rule in rules)]
    return (f"{', '.join(denied_verbs)} on {resource}{f' ({group})' if group else ''}"
            if denied_verbs else "")


def _allows(rule: Json, group: str, resource: str, verb: str) -> bool:
    """Return whether a rule grants a verb (pkg/apis/rbac/v1/evaluation_helpers.go).

    The resourceNames are ignored, because not all names are known yet.
    """
    _parent, slash, subresource = resource.partition("/")
    resources = {resource, *([f"*/{subresource}"] if slash else ())}
    return all((accepted | {"*"}) & set(rule.get(field) or ())
               for field, accepted in (("apiGroups", {group}), ("resources", resources),
                                       ("verbs", {verb})))

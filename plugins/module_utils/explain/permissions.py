# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a task must be allowed to do, compared with what the user may do, before the first write. Pure.

docs/permissions.md has the same table as a Role, with the reasons.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Rule
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.request import Request

NEEDED_FOR_LOGS: Rule = ("", "pods/log", ("get",))
NEEDED_TO_LOCK: Rule = ("coordination.k8s.io", "leases", ("get", "create", "update", "delete"))


def refuse_missing(rules: t.Sequence[Json], needs: t.Sequence[Rule], request: Request) -> None:
    """Raise RolloutError that names every verb of what the request needs that the rules do not allow.

    Rules are those of a SelfSubjectRulesReview (resourceRules). One that is limited to some names counts as if it were not:
    whether it is enough depends on names that are not known yet.
    """
    refused = missing(rules, [*needs, *([NEEDED_TO_LOCK] if request.lock else [])])
    if refused:
        hint = "ask for the Role in docs/permissions.md"
        if request.lock and not missing(rules, needs):
            hint += ", or add lock=false to the task if no other task can work on this controller at the same time"
        raise RolloutError("permissions are missing; nothing was changed", where=f"namespace {request.namespace}",
                           why=f"not allowed: {refused}", next_command=hint)


def missing(rules: t.Sequence[Json], needs: t.Iterable[Rule]) -> str:
    """What is not allowed of what is needed, or ""."""
    return "; ".join(filter(None, (_missing(rules, *rule) for rule in needs)))


def _missing(rules: t.Sequence[Json], group: str, resource: str, verbs: t.Iterable[str]) -> str:
    refused = [verb for verb in verbs if not any(_allows(rule, group, resource, verb) for rule in rules)]
    return f"{', '.join(refused)} on {resource}{f' ({group})' if group else ''}" if refused else ""


def _allows(rule: Json, group: str, resource: str, verb: str) -> bool:
    """Whether the RBAC authorizer grants it (pkg/apis/rbac/v1/evaluation_helpers.go): by */log, too, but not by pods/*."""
    _parent, slash, subresource = resource.partition("/")
    resources = {resource, *([f"*/{subresource}"] if slash else ())}
    return all((granting | {"*"}) & set(rule.get(field) or ())
               for field, granting in (("apiGroups", {group}), ("resources", resources), ("verbs", {verb})))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a task must be allowed to do, compared with what the user may do, before the first write. Pure.

docs/permissions.md has the same table as a Role, with the reasons.
"""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.kinds import Kind
from ..model.request import Request, State

Json = dict[str, t.Any]

#: API group, resource, verbs, for each kind.
NEEDED = {
    Kind.REPLICATION_CONTROLLER: (("", "replicationcontrollers", ("get", "list", "watch", "create", "patch", "delete")),),
    Kind.REPLICA_SET: (("apps", "replicasets", ("get", "list", "watch", "create", "patch", "delete")),),
    Kind.DEPLOYMENT: (("apps", "deployments", ("get", "list", "watch", "patch")), ("apps", "replicasets", ("list", "watch"))),
}
#: Pods change their controller at the end; with a next_name, without list on pods, errors only say less.
NEEDED_TO_HAND_OVER = (("", "pods", ("list", "patch")),)
NEEDED_TO_MIGRATE = (*NEEDED_TO_HAND_OVER, ("apps", "controllerrevisions", ("get", "create", "delete")),
                     ("apps", "replicasets", ("get", "create", "patch")), ("apps", "deployments", ("get", "create", "patch")))
NEEDED_TO_KEEP_HISTORY = ("apps", "controllerrevisions", ("list", "create", "delete"))
NEEDED_TO_LOCK = (("coordination.k8s.io", "leases", ("get", "create", "update", "delete")),)


def refuse_missing(rules: t.Sequence[Json], request: Request) -> None:
    """Raise RolloutError that names every verb of what the request needs that the rules do not allow.

    Rules are those of a SelfSubjectRulesReview (resourceRules). One that is limited to some names counts as if it were not:
    whether it is enough depends on names that are not known yet.
    """
    needed = [*NEEDED[request.kind]]
    if request.state is State.MIGRATED:
        needed += NEEDED_TO_MIGRATE
    elif hands_over(request):
        needed += NEEDED_TO_HAND_OVER
    if request.lock:
        needed += NEEDED_TO_LOCK
    missing = []
    for group, resource, verbs in needed:
        if refused := _missing(rules, group, resource, verbs):
            missing.append(refused)
    if missing:
        hint = "ask for the Role in docs/permissions.md"
        if request.lock and all("leases" in each for each in missing):
            hint += ", or add lock=false to the task if no other task can work on this controller at the same time"
        raise RolloutError("permission is missing, nothing was changed", where=f"namespace {request.namespace}",
                           why=f"not allowed: {'; '.join(missing)}", next_command=hint)


def hands_over(request: Request) -> bool:
    """Whether the update that the request asks for ends with pods that change their controller."""
    return request.kind is not Kind.DEPLOYMENT and request.next_name is None and not request.undoes


def missing_for_history(rules: t.Sequence[Json]) -> str:
    """What is not allowed of what the history needs, or ""."""
    return _missing(rules, *NEEDED_TO_KEEP_HISTORY)


def _missing(rules: t.Sequence[Json], group: str, resource: str, verbs: t.Iterable[str]) -> str:
    refused = [verb for verb in verbs if not any(_allows(rule, group, resource, verb) for rule in rules)]
    return f"{', '.join(refused)} on {resource}{f' ({group})' if group else ''}" if refused else ""


def _allows(rule: Json, group: str, resource: str, verb: str) -> bool:
    return all({wanted, "*"} & set(rule.get(field) or ())
               for field, wanted in (("apiGroups", group), ("resources", resource), ("verbs", verb)))

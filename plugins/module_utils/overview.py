# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the rollouts of controllers."""

from __future__ import annotations

import dataclasses
import typing as t

from .cluster.kubernetes import KubernetesGateway
from .explain import report
from .flows.choice import migrations
from .flows.flow import AnyFlow, Holder, RolloutStatus
from .model.errors import NoSuchController
from .model.fields import Json
from .model.impossible import SELECTORS
from .model.label_selectors import matches
from .model.object_meta import owner_uid
from .model.observed import Controller, Observed
from .model.request import Request
from .model.template import labels_of

if t.TYPE_CHECKING:
    from .flows.migration.in_progress import MigrationInProgress

#: Of a controller's new pods in a result, and of its old pods.
MAX_PODS = 500


def read_status(flow: AnyFlow, request: Request,
                gateway: KubernetesGateway) -> tuple[Request, Observed, RolloutStatus]:
    """Return the request with the primary's name, the observed controllers, and the status.

    Raises RolloutError.
    """
    request = dataclasses.replace(request, name=primary_name(gateway.controllers(), request.name))
    controller = gateway.controllers().get(request.name)
    revisions = _revisions_by_owner_uid(flow, request, gateway, controller)
    observed = _observe(flow, request, gateway, revisions)
    if not (observed.primary or observed.successor):
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    return request, observed, flow.status(request, observed)


def rollouts_with_new_pods(flow: AnyFlow, request: Request, gateway: KubernetesGateway,
                           names: t.Sequence[str]) -> list[Json]:
    """Return the rollout of each primary, with only the name and the new pods.

    Raises RolloutError.
    """
    controller = gateway.controllers().get(names[0]) if len(names) == 1 else None
    revisions = _revisions_by_owner_uid(flow, request, gateway, controller)
    rollouts: list[Json] = []
    for name in names:
        primary_request = dataclasses.replace(request, name=name)
        observed = _observe(flow, primary_request, gateway, revisions)
        status = flow.status(primary_request, observed)
        rollouts.append({"name": name, "pods": _pods(gateway, status.holders, are_all_new=True)})
    return rollouts


def _observe(flow: AnyFlow, request: Request, gateway: KubernetesGateway,
             revisions: t.Mapping[str, list[Json]]) -> Observed:
    controller = gateway.controllers().get(request.name)
    return flow.find(request, gateway, revisions.get(controller.uid, []) if controller else None)


class Overview:
    """The rollouts of the controllers of one kind."""

    def __init__(self, flow: AnyFlow, request: Request, gateway: KubernetesGateway,
                 params: Json) -> None:
        self._flow, self._request, self._gateway = flow, request, gateway
        self._params = params
        self._controllers = gateway.controllers()
        self._migrations = _migrations(flow, request, gateway)

    def rollouts(self) -> list[Json]:
        """Return the entries for `rollouts` in the result."""
        names = sorted({primary_name(self._controllers, name) for name in self._names()})
        controller = self._controllers.get(names[0]) if self._params["name"] and names else None
        revisions = _revisions_by_owner_uid(self._flow, self._request, self._gateway, controller)
        rollouts = [self._rollout(name, revisions) for name in names]
        return [rollout for rollout in rollouts if rollout]

    def _names(self) -> list[str]:
        params, controllers = self._params, self._controllers
        names = [params["name"]] if params["name"] else params.get("names")
        if names:
            return names
        label_selectors, field_selectors = (params.get(option) or () for option in SELECTORS)
        selected_names = (self._gateway.names(label_selectors, field_selectors)
                          if label_selectors or field_selectors else controllers)
        names = [name for name, controller in controllers.items() if name in selected_names
                 and not controller.is_updated_by_owner]
        return names + [name for name, migration in self._migrations.items()
                        if name not in controllers
                        and self._request.kind is migration.request.kind
                        and matches(label_selectors, migration.labels)
                        and matches(field_selectors,
                                    {"metadata.name": name,
                                     "metadata.namespace": self._request.namespace})]

    def _rollout(self, name: str, revisions: t.Mapping[str, list[Json]]) -> Json | None:
        flow, request = self._flow, dataclasses.replace(self._request, name=name)
        controller, migration = self._controllers.get(name), self._migrations.get(name)
        observed = _observe(flow, request, self._gateway, revisions)
        if not (observed.primary or observed.successor or migration):
            return None
        status = flow.status(request, observed)
        resume_command, rollback_command = flow.commands(request, observed)
        kind = request.kind
        if migration:
            status = migration.extend_status(status, self._gateway)
            resume_command, rollback_command = migration.commands(observed.primary)
            kind = kind if controller else migration.request.kind
        pods = {"pods": _pods(self._gateway, status.holders)} if self._params.get("pods") else {}
        return {"namespace": request.namespace, "name": name, "kind": str(kind),
                **report.rollout(status),
                "resume_command": resume_command, "rollback_command": rollback_command,
                "history": report.history(observed.history), **pods}


def _migrations(flow: AnyFlow, request: Request,
                gateway: KubernetesGateway) -> dict[str, MigrationInProgress]:
    """Return the migrations in progress, by the names of their controllers.

    A migration is listed under the name of the migrated controller. If an object of the
    request's kind takes part in the migration, the migration is also listed under the name of this
    object.
    """
    kind = request.kind
    if not flow.takes_part_in_migrations:
        return {}
    current_migrations = migrations(gateway.migrations() or (), request)
    return ({migration.request.name: migration for migration in current_migrations}
            | {migration.names[kind]: migration for migration in current_migrations
               if kind in migration.names})


def primary_name(controllers: t.Mapping[str, Controller], name: str) -> str:
    """Return the primary's name if `name` is the name of a successor; otherwise, `name`."""
    return (name in controllers and controllers[name].primary(controllers)) or name


def _revisions_by_owner_uid(flow: AnyFlow, request: Request, gateway: KubernetesGateway,
                            controller: Controller | None) -> dict[str, list[Json]]:
    """Return ControllerRevisions by the uid of their owner.

    controller: the owner, or None for all owners.
    """
    revisions: dict[str, list[Json]] = {}
    # Only flows with a history in ControllerRevisions have optional permissions.
    if flow.optional_permissions(request):
        for item in gateway.revisions([controller.uid] if controller else []) or []:
            revisions.setdefault(owner_uid(item), []).append(item)
    return revisions


def _pods(gateway: KubernetesGateway, holders: t.Iterable[Holder],
          are_all_new: bool = False) -> list[Json]:
    """Return the entries for the new and the old pods, or only for the new pods.

    Returns at most MAX_PODS new and MAX_PODS old pods of each controller. Unready pods come first,
    since a check may require that all pods are ready.
    """
    entries: list[Json] = []
    for holder in holders:
        labels = holder.new_labels if are_all_new and holder.has_known_labels else {}
        if labels is None:
            continue
        pods = [report.pod_fields(item, holder.is_new(labels_of(item))
                                  if holder.has_known_labels else None)
                for item in gateway.pods(holder.controller, labels)
                if "deletionTimestamp" not in item["metadata"]]
        pods.sort(key=lambda pod: bool(pod["is_ready"]))
        for is_new in (True,) if are_all_new else (False, None, True):
            entries += [pod for pod in pods if pod["is_new"] is is_new][:MAX_PODS]
    return entries

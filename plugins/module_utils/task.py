# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the modules share: a task's parameters in, a result out. Everything here is wiring."""

from __future__ import annotations

import dataclasses
import os
import typing as t

from .cluster.connection import Connection
from .cluster.gateway import KubernetesGateway
from .explain import report
from .flows.stepped import history
from .model import identity
from .model.kinds import Kind
from .model.observed import Controller, Observed, observe
from .model.request import Request, State
from .run import driver, fleet
from .run.caller import Caller

Json = dict[str, t.Any]


def update(params: Json, check_mode: bool, diff: bool) -> Json:
    """Carry out the task of the module rolling_update. Raises RolloutError."""
    many, request, gateway = _open(params)
    try:
        if check_mode and many:
            result = fleet.simulate(many, many.requests(params, gateway), gateway)
        elif check_mode:
            result = driver.simulate(request, gateway)
        else:
            with Caller() as it:
                result = (fleet.run(many, many.requests(params, gateway), gateway, driver.Clock(), it.say, it.reason_to_stop)
                          if many else driver.run(request, gateway, driver.Clock(), it.say, it.reason_to_stop))
    finally:
        gateway.close()
    return t.cast(Json, _with_diff(result, diff))


def look(params: Json, diff: bool) -> Json | None:
    """The result of a task of the module rolling_update that has nothing to do; None if something must be written or waited for.

    Raises RolloutError.
    """
    many, request, gateway = _open(params)
    if many:
        return _with_diff(fleet.look(many, many.requests(params, gateway), gateway, driver.Clock()), diff)
    return _with_diff(driver.look(request, gateway, driver.Clock()), diff)


def _open(params: Json) -> tuple[fleet.Fleet | None, Request, KubernetesGateway]:
    """Whether the task is for many controllers, what it wants of one, and its way to the API server."""
    many = fleet.Fleet.from_params(params)
    request = Request.from_params({**params, "name": params.get("name") or "any"})  # what is wrong is said before anything is asked
    connection = Connection(params, os.environ)
    return many, request, KubernetesGateway(connection, request.namespace, request.kind, watches_pods=many is None)


def info(params: Json) -> Json:
    """Carry out the task of the module rolling_update_info. Raises RolloutError."""
    namespace, name = params["namespace"] or "default", params["name"]  # "": an empty answer of an AWX survey
    kind = Kind(params["kind"] or Kind.REPLICATION_CONTROLLER)
    # Refuses what is no name.
    Request.from_params({"name": name or "any", "namespace": namespace, "state": State.ROLLED_BACK})
    gateway = KubernetesGateway(Connection(params, os.environ), namespace, kind)
    controllers, sets = gateway.controllers(), gateway.replica_sets()
    successors = {it.name: it.partner for it in controllers.values() if it.is_successor and it.partner}
    # A Deployment's ReplicaSets are no controllers of their own.
    shown = [name] if name else [each for each, it in controllers.items() if kind is not Kind.REPLICA_SET or not it.owner]
    names = sorted({successors.get(each, each) for each in shown})
    rollouts = []
    kept = _kept(gateway, controllers.get(names[0]) if name and names else None)
    for each in names:
        seen = observe(controllers, Request(each, namespace, State.ROLLED_BACK, kind), sets)
        if seen.primary or seen.successor:
            if seen.primary and kind is not Kind.DEPLOYMENT:
                own = kept.get(seen.primary.uid, [])
                seen = dataclasses.replace(seen, history=history.revisions(seen.primary, own, identity.DEPLOYMENT_LABEL))
            pods = {"pods": _pods(gateway, seen)} if params.get("pods") else {}
            rollouts.append({"name": each, **report.rollout(seen), **report.commands(seen, namespace),
                             "history": report.history(seen), **pods})
    return {"changed": False, "rollouts": rollouts}


def _kept(gateway: KubernetesGateway, only: Controller | None) -> dict[str, list[Json]]:
    """The ControllerRevisions of one controller, or of all, by its uid; none where they may not be seen."""
    if gateway.kind is Kind.DEPLOYMENT:
        return {}
    kept: dict[str, list[Json]] = {}
    for item in gateway.revisions([only.uid] if only else []) or []:
        kept.setdefault(item["metadata"]["labels"][identity.HISTORY], []).append(item)
    return kept


def _pods(gateway: KubernetesGateway, seen: Observed) -> list[Json]:
    """The pods of a controller and of its successor, those that are going left out."""
    owners = (seen.successor, *(it for it in seen.sets if it.current and it is not seen.successor),
              None if seen.sets else seen.primary)
    return [report.pod(item, is_new=it is seen.successor) for it in owners if it for item in gateway.pods(it)
            if "deletionTimestamp" not in item["metadata"]]


def _with_diff(result: Json | None, diff: bool) -> Json | None:
    if result and not diff:
        del result["diff"]
    return result

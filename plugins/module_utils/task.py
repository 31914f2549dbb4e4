# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one way from a task's options to its result, for both modules and the action plugin. Everything here is wiring."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import typing as t

from ansible.module_utils.common.parameters import remove_values

from .cluster import connection, prometheus, secrets
from .cluster.kubernetes import KubernetesGateway
from .cluster.logs import Logs
from .explain import permissions, report
from .explain.measured import Subject
from .flows import refusals
from .flows.choice import choose, migrations
from .flows.flow import Flow, Standing
from .model import analysis as analyses
from .model import options, queries
from .model.errors import InternalError, NoSuchController, RolloutError
from .model.fields import Json, each_text, visible
from .model.kinds import ROLLED, Kind
from .model.label_selectors import matches
from .model.marks import owner_uid
from .model.observed import Controller
from .model.options import request_from
from .model.request import Request
from .model.template import labels_of
from .model.verdicts import Reading
from .run import analyst, driver, fleet
from .run.caller import Caller
from .run.clock import Clock

if t.TYPE_CHECKING:
    from .flows.migration.halfway import Halfway

#: The options of the modules rolling_update, rolling_update_info and rollout_analysis.
UPDATE_OPTIONS: Json = connection.ARGUMENT_SPEC | options.ARGUMENT_SPEC
INFO_OPTIONS: Json = connection.ARGUMENT_SPEC | dict(
    {option: options.ARGUMENT_SPEC[option] for option in ("name", "names", "label_selectors", "namespace", "kind", "kinds")},
    pods=dict(type="bool", default=False))
INFO_EXCLUSIVE = [("name", "names", "label_selectors")]
ANALYSIS_OPTIONS: Json = connection.ARGUMENT_SPEC | prometheus.ARGUMENT_SPEC | analyses.ARGUMENT_SPEC


def answer(work: t.Callable[[Json], Json | None], params: Json, warn: t.Callable[[str], None]) -> Json | None:
    """The result of a task: what update() or info() says of its parameters, an error of theirs included, without any secret.

    warn is called for each warning. None where the work returns it.
    """
    try:
        result = work(params)
    except RolloutError as error:
        result = error.as_result() | {"failed": True}
    except ImportError as missing:
        result = _not_installed(missing).as_result() | {"failed": True}
    except Exception as surprise:
        result = InternalError.of(surprise).as_result() | {"failed": True}
    if result is None:
        return None
    kept = {key: value for key, value in result.items() if isinstance(value, bool)}  # as AnsibleModule has it
    # Each text of the cluster is told as data where it comes in. This is for those that are taken as they are, as templates.
    shown = each_text(remove_values(result, _secrets(params)), lambda text: visible(text, but="\n\t")) | kept
    for warning in shown.pop("warnings", ()):
        warn(warning)
    return t.cast(Json, shown)


def invocation(params: Json) -> Json:
    """What a result tells of the options that the task was given, without any secret."""
    return t.cast(Json, remove_values({"module_args": secrets.shown(params)}, _secrets(params)))


def _not_installed(missing: ImportError) -> RolloutError:
    """The error for a Python package that is not there, in the words that Ansible has for it."""
    from ansible.module_utils.basic import missing_required_lib

    name = (missing.name or "kubernetes").partition(".")[0]
    return RolloutError(missing_required_lib({"yaml": "PyYAML"}.get(name, name)), why=str(missing),
                        next_command=f"{shlex.quote(sys.executable)} -m pip install kubernetes PyYAML")


def end(module: t.Any, work: t.Callable[[Json], Json | None]) -> None:
    """The end of a module (an AnsibleModule): its answer, and nothing secret in what AnsibleModule adds to it."""
    module.no_log_values = _secrets(module.params)  # of a kubeconfig, Ansible has taken each word for a secret
    result = t.cast(Json, answer(work, module.params, module.warn))
    (module.fail_json if result.get("failed") else module.exit_json)(**result, invocation=invocation(module.params))


def _secrets(params: Json) -> set[str]:
    """What no result may show."""
    return connection.secrets(params) | prometheus.secrets(params)


def update(params: Json, check_mode: bool = False, diff: bool = False, only_look: bool = False) -> Json | None:
    """Carry out the task of the module rolling_update. Raises RolloutError.

    only_look: write nothing and wait for nothing, and return None if that is not enough.
    """
    try:
        return _update(params, check_mode, diff, only_look)
    except NoSuchController as error:
        if error.was_begun or (kind := _only_kind(params)) is None:
            raise
        return _update({**params, "kind": kind}, check_mode, diff, only_look)


def _update(params: Json, check_mode: bool, diff: bool, only_look: bool) -> Json | None:
    params = {**params, "connection": connection.to_type(params, os.environ)}
    many = fleet.Fleet.from_params(params)
    # What is wrong is said before anything is asked.
    wishes = [request_from({**params, "name": params.get("name") or "any", "kind": kind})
              for kind in (many.kinds if many else [params.get("kind")])]
    with contextlib.ExitStack() as stack:
        groups = {wish.kind: _group(params, wish, stack, watches_pods=many is None and not only_look) for wish in wishes}
        result = (_roll_many(many, groups, params, check_mode, only_look) if many else
                  _roll(wishes[0], *groups[wishes[0].kind], check_mode, only_look))
    if result and not diff:
        del result["diff"]
    return result


def _roll(wish: Request, flow: Flow, gateway: KubernetesGateway, check_mode: bool, only_look: bool) -> Json | None:
    if only_look:
        return driver.look(flow, wish, gateway, Clock())
    if check_mode:
        return driver.simulate(flow, wish, gateway)
    with Caller() as it:
        return driver.run(flow, wish, gateway, Clock(), it.say, it.reason_to_stop)


def _roll_many(many: fleet.Fleet, groups: fleet.Groups, params: Json, check_mode: bool, only_look: bool) -> Json | None:
    requests = many.requests(params, groups)
    if only_look or check_mode:
        return (fleet.look if only_look else fleet.simulate)(many, requests, groups, Clock())
    with Caller() as it:
        return fleet.run(many, requests, groups, Clock(), it.say, it.reason_to_stop)


def _group(params: Json, wish: Request, stack: contextlib.ExitStack, watches_pods: bool = True) -> fleet.Group:
    """What is closed with the stack."""
    flow = choose(wish)
    return fleet.Group(flow, stack.enter_context(contextlib.closing(_gateway(params, wish, flow, watches_pods))))


def info(params: Json) -> Json:
    """Carry out the task of the module rolling_update_info. Raises RolloutError."""
    kinds = params.get("kinds") or [params.get("kind")]
    if params.get("kinds") and (named := [option for option in ("kind", "name", "names") if params.get(option)]):
        raise RolloutError(f"kinds cannot be combined with {named[0]}: give only one of them")
    rollouts = [each for kind in dict.fromkeys(kinds) for each in _info({**params, "kind": kind})]
    if not rollouts and (kind := _only_kind(params)):
        rollouts = _info({**params, "kind": kind})
    return {"changed": False, "rollouts": rollouts}


def _info(params: Json) -> list[Json]:
    wish = _look_only(params)
    flow = choose(wish)
    with contextlib.closing(_gateway(params, wish, flow)) as gateway:
        return _rollouts(flow, wish, gateway, params)


def analysis(params: Json) -> Json:
    """Carry out the task of the module rollout_analysis. Raises RolloutError."""
    try:
        return _analysis(params)
    except NoSuchController:
        if (kind := _only_kind(params)) is None:
            raise
        return _analysis({**params, "kind": kind})


def _analysis(params: Json) -> Json:
    # What is wrong is said before anything is asked.
    asked, wish = analyses.analysis_from(params), _look_only(params)
    ask = _asking(asked, params)
    flow = choose(wish)
    with contextlib.closing(_gateway(params, wish, flow)) as gateway, Caller() as it:
        if any(metric.lines for metric in asked.metrics) and (rules := gateway.rules()) is not None:
            permissions.refuse_missing(rules, [permissions.NEEDED_FOR_LOGS], dataclasses.replace(wish, lock=False))
        logs = Logs(gateway.http, wish.namespace, queries.seconds(asked.window), gateway.server_time, it.reason_to_stop)
        sources = analyst.Sources(lambda query: ask(query, it.reason_to_stop), logs.read)
        return analyst.run(wish.name, wish.namespace, asked, lambda: _subject(flow, wish, gateway), sources, Clock(), it.say,
                           it.reason_to_stop)


def _asking(asked: analyses.Analysis, params: Json) -> t.Callable[[str, t.Callable[[], str]], Reading]:
    """How Prometheus is asked; without its address, nobody is. Raises RolloutError."""
    needy = next((metric.name for metric in asked.metrics if not metric.lines), "")
    if not needy:
        return lambda query, stop: Reading(None, "nobody is asked", is_answer=False)
    if not params.get("prometheus_url"):
        raise RolloutError(f"metric {needy} needs prometheus_url")
    return prometheus.Prometheus(params).ask


def _subject(flow: Flow, wish: Request, gateway: KubernetesGateway) -> Subject:
    """The pods of an update in progress; without one, all pods of the controller are new. Raises RolloutError."""
    wish = dataclasses.replace(wish, name=_primary(gateway.controllers(), wish.name))
    it = gateway.controllers().get(wish.name)
    seen = flow.find(wish, gateway, _kept(flow, wish, gateway, it).get(it.uid, []) if it else None)
    if not (seen.primary or seen.successor):
        raise NoSuchController(f"there is no such {wish.kind}", where=wish.where)
    standing = flow.standing(wish, seen)
    found: dict[bool, list[str]] = {True: [], False: []}
    for holder in standing.holders:
        if not holder.is_known:
            raise refusals.unreadable_history(wish)
        for pod in gateway.live_pods(holder.controller.selector):
            if pod.owner == holder.controller.uid:
                found[holder.is_new(pod.labels)].append(pod.name)
    return Subject(wish.where, tuple(sorted(found[True])), tuple(sorted(found[False])), flow.commands(wish, seen)[1],
                   standing.phase != "complete", str(wish.kind))


def _look_only(params: Json) -> Request:
    """A request that changes nothing, for what is named or for all."""
    return request_from({"name": params.get("name") or "any", "namespace": params.get("namespace"), "kind": params.get("kind"),
                         "state": "rolled_back", "connection": connection.to_type(params, os.environ)})


def _only_kind(params: Json) -> str | None:
    """The kind of the only object that has the name of a task, where the task gives no kind, and there is none of the default one.

    None where there is none, or more than one. Raises RolloutError.
    """
    if params.get("kind") or not params.get("name"):
        return None
    wish = _look_only(params)
    with contextlib.closing(_gateway(params, wish, choose(wish))) as gateway:
        kinds = gateway.others(params["name"])
    return kinds[0] if len(kinds) == 1 and kinds[0] in ROLLED else None


def _gateway(params: Json, wish: Request, flow: Flow, watches_pods: bool = True) -> KubernetesGateway:
    return KubernetesGateway(connection.Connection(params, os.environ), wish.namespace, flow.watches, watches_pods)


def _rollouts(flow: Flow, wish: Request, gateway: KubernetesGateway, params: Json) -> list[Json]:
    """The rollouts of the controllers that are named, of those that have these labels, or of all."""
    controllers, halfway = gateway.controllers(), _halfway(wish, gateway)
    shown = [params["name"]] if params["name"] else params.get("names")
    if not shown:
        there = gateway.names(params["label_selectors"]) if params.get("label_selectors") else controllers
        shown = [name for name, it in controllers.items() if name in there and not (it.owner and it.kind.is_made_by_others)]
        shown += [name for name, migration in halfway.items() if name not in controllers and wish.kind is migration.request.kind
                  and matches(params.get("label_selectors") or (), migration.labels)]
    names = sorted({_primary(controllers, each) for each in shown})
    kept = _kept(flow, wish, gateway, controllers.get(names[0]) if params["name"] and names else None)
    rollouts = []
    for each in names:
        request = dataclasses.replace(wish, name=each)
        it = controllers.get(each)
        seen = flow.find(request, gateway, kept.get(it.uid, []) if it else None)
        migration = halfway.get(each)
        if seen.primary or seen.successor or migration:
            standing = flow.standing(request, seen)
            resume, rollback = flow.commands(request, seen)
            if migration:
                standing = migration.standing(standing, _replica_set(migration, gateway))
                resume, rollback = migration.commands(seen.primary)
            kind = migration.request.kind if migration and each not in controllers else wish.kind
            pods = {"pods": _pods(gateway, standing)} if params.get("pods") else {}
            rollouts.append({"name": each, "kind": str(kind), **report.rollout(standing), "resume_command": resume,
                             "rollback_command": rollback, "history": report.history(seen.history), **pods})
    return rollouts


def _halfway(wish: Request, gateway: KubernetesGateway) -> dict[str, Halfway]:
    """Return the migrations in progress by the name of what they are migrating, and of their objects of the kind of the task."""
    if not wish.kind.takes_part_in_migrations:
        return {}
    there = migrations(gateway.migrations() or (), wish)
    return {it.request.name: it for it in there} | {it.names[wish.kind]: it for it in there if wish.kind in it.names}


def _replica_set(migration: Halfway, gateway: KubernetesGateway) -> Controller | None:
    """Return the ReplicaSet that the pods of a migration go to, where the task may see it."""
    with contextlib.suppress(RolloutError):
        if found := gateway.find(Kind.REPLICA_SET, migration.names[Kind.REPLICA_SET]):
            return Controller.from_api(found, Kind.REPLICA_SET)
    return None


def _primary(controllers: t.Mapping[str, Controller], name: str) -> str:
    """The name that the user knows a controller by: of a successor, the one that it is the successor of."""
    return (name in controllers and controllers[name].primary(controllers)) or name


def _kept(flow: Flow, wish: Request, gateway: KubernetesGateway, only: Controller | None) -> dict[str, list[Json]]:
    """The ControllerRevisions of one controller, or of all, by its uid; none where they may not be seen."""
    kept: dict[str, list[Json]] = {}
    for item in (gateway.revisions([only.uid] if only else []) or []) if flow.wishes(wish) else ():
        kept.setdefault(owner_uid(item), []).append(item)
    return kept


def _pods(gateway: KubernetesGateway, standing: Standing) -> list[Json]:
    """The pods of a controller and of its successor, those that are going left out."""
    return [report.pod(item, holder.is_new(labels_of(item))) for holder in standing.holders
            for item in gateway.pods(holder.controller) if "deletionTimestamp" not in item["metadata"]]

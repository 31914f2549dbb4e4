# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the modules. All of module_utils is private to this collection."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
import sys
import typing as t

from ansible.module_utils.common.parameters import remove_values

from .analysis import analysis_run, prometheus, queries
from .analysis import spec as analyses
from .analysis.outcome import Reading
from .analysis.pod_logs import Logs
from .analysis.report import Subject
from .cluster import connection, manifest_source, secrets
from .cluster.kubernetes import KubernetesGateway
from .explain import other_kinds, permissions
from .flows import refusals, soak
from .flows.choice import choose
from .flows.flow import AnyFlow, Rule, own_live_pods
from .model import impossible, options
from .model.errors import InternalError, NoSuchController, RolloutError
from .model.fields import Json, escape_unprintable, map_texts
from .model.kinds import Module, module_of_kind
from .model.observed import Controller
from .model.options import parse_request
from .model.request import Request
from .overview import Overview, primary_name, read_status, rollouts_with_new_pods
from .release.summary import Summary
from .run import driver, fleet, places
from .run.clock import Clock
from .run.fleet_result import results_entry
from .run.parent_process import ParentProcess
from .traffic import request as traffic_request
from .traffic import split_run
from .traffic.follower import Follower
from .traffic.reader import ClusterReader

UPDATE_OPTIONS: Json = connection.ARGUMENT_SPEC | options.ARGUMENT_SPEC
MIGRATION_OPTIONS: Json = connection.ARGUMENT_SPEC | options.MIGRATION_SPEC
INFO_OPTIONS: Json = connection.ARGUMENT_SPEC | dict(
    {option: options.ARGUMENT_SPEC[option]
     for option in ("name", "names", *impossible.SELECTORS, "namespace", "kind", "api_version")},
    pods=dict(type="bool", default=False))
INFO_EXCLUSIVE_OPTIONS = [("name", "names", selector_option)
                          for selector_option in impossible.SELECTORS]
ANALYSIS_OPTIONS: Json = (connection.ARGUMENT_SPEC | prometheus.ARGUMENT_SPEC
                          | analyses.ARGUMENT_SPEC)
#: The environment variable with which an action plugin sets Request.job_template.
JOB_TEMPLATE = "BATON_JOB_TEMPLATE"
TRAFFIC_OPTIONS: Json = connection.ARGUMENT_SPEC | traffic_request.ARGUMENT_SPEC
#: Each module's argument spec, by the name of its function in this file.
OPTIONS = {"update": UPDATE_OPTIONS, "migrate": MIGRATION_OPTIONS, "info": INFO_OPTIONS,
           "analysis": ANALYSIS_OPTIONS, "traffic": TRAFFIC_OPTIONS}
Result = t.TypeVar("Result")


def result_or_error(entry_point: t.Callable[[Json], Json | None], params: Json,
                    warn: t.Callable[[str], None]) -> Json | None:
    """Return the result or the error of a function like update(), without secrets."""
    try:
        result = entry_point(params)
    except RolloutError as error:
        result = error.as_result() | {"failed": True}
    except ImportError as error:
        result = _missing_package_error(error).as_result() | {"failed": True}
    except Exception as exception:
        result = InternalError.from_exception(exception).as_result() | {"failed": True}
    if result is None:
        return None
    # remove_values() may also mask booleans, so restore them.
    booleans = {key: value for key, value in result.items() if isinstance(value, bool)}
    # Escape unprintable characters, which pod templates may contain. Convert subclasses of str
    # (such as Kind) to str, because Ansible warns about subclasses.
    visible_result: Json = map_texts(
        remove_values(result, _secrets(params)),
        lambda text: escape_unprintable(str(text), allowed="\n\t")) | booleans
    for warning in visible_result.pop("warnings", ()):
        warn(warning)
    return visible_result


def invocation(params: Json) -> Json:
    """Return the value of the key `invocation` in the result, without secrets."""
    arguments = {"module_args": secrets.visible_params(params)}
    visible_arguments: Json = remove_values(arguments, _secrets(params))
    return visible_arguments


def _missing_package_error(error: ImportError) -> RolloutError:
    from ansible.module_utils.basic import missing_required_lib

    name = (error.name or "kubernetes").partition(".")[0]
    install_command = f"{shlex.quote(sys.executable)} -m pip install kubernetes PyYAML"
    return RolloutError(missing_required_lib({"yaml": "PyYAML"}.get(name, name)),
                        why=str(error), next_command=install_command, page="connection")


def run_module(module: t.Any, entry_point: t.Callable[[Json], Json | None]) -> None:
    """Run a function like update(), and exit the module (an AnsibleModule) with its result."""
    # Replace Ansible's list of secrets, which contains every string in a kubeconfig.
    module.no_log_values = _secrets(module.params)
    result = result_or_error(entry_point, module.params, module.warn) or {}
    exit_module = module.fail_json if result.get("failed") else module.exit_json
    exit_module(**result, invocation=invocation(module.params))


def _secrets(params: Json) -> set[str]:
    return (connection.secrets(params) | prometheus.secrets(params)
            | manifest_source.secrets(params))


def update(params: Json, check_mode: bool = False, diff: bool = False,
           is_read_only: bool = False) -> Json | None:
    """Run the module rolling_update. Raises RolloutError.

    is_read_only: return None if the task would have to write or to wait.
    """
    params = _with_namespace(params)
    try:
        module = Module(params.get("module", Request.module))
        params = options.with_kinds(manifest_source.with_manifest(params), module)
        return _call_with_kind_fallback(
            lambda options_of_kind: _update(options_of_kind, check_mode, diff, is_read_only),
            params)
    except RolloutError as error:
        if params.get("name"):
            result = error.as_result() | {"failed": True}
            error.progress["results"] = [_results_entry(params, result)]
        raise


def migrate(params: Json, check_mode: bool = False, diff: bool = False,
            is_read_only: bool = False) -> Json | None:
    """Run the module migrate_to_deployment; see update()."""
    return update({**params, "module": str(Module.MIGRATION)}, check_mode, diff, is_read_only)


def _with_namespace(params: Json) -> Json:
    places.refuse_conflicting_options(params)
    default_namespace = connection.default_namespace(params, os.environ)
    return {**params, "namespace": params.get("namespace") or default_namespace,
            "default_namespace": default_namespace}


def _results_entry(params: Json, result: Json) -> Json:
    outcome = {key: value for key, value in result.items() if key not in ("diff", "warnings")}
    kind = params.get("kind") or ""  # a list if the option is invalid
    return results_entry(params.get("namespace") or "", params["name"],
                         kind if isinstance(kind, str) else ",".join(kind), outcome)


def _update(params: Json, check_mode: bool, diff: bool, is_read_only: bool) -> Json | None:
    params = {**params, "connection": connection.command_options(params, os.environ),
              # An action plugin sets BATON_SIZES if the role of the task writes a report.
              "return_sizes": "BATON_SIZES" in os.environ,
              # An action plugin sets BATON_RESUMED after the first update of a release.
              "resumed_names": os.environ.get("BATON_RESUMED", "").split(","),
              "job_template": os.environ.get(JOB_TEMPLATE)}
    selected_fleet = fleet.Fleet.from_params(params)
    kinds = selected_fleet.kinds if selected_fleet else [params.get("kind")]
    # Reject invalid options before the first HTTP request.
    requests = places.requests_for_places(params, kinds)
    shared_connection, requests = places.expand_requests(params, requests)
    watches_pods = selected_fleet is None and not is_read_only
    with contextlib.ExitStack() as stack:
        groups = {places.Place.of(request): _group(params, request, stack, watches_pods,
                                                   shared_connection) for request in requests}
        if selected_fleet:
            result = _update_fleet(selected_fleet, groups, params, check_mode, is_read_only)
        else:
            request = requests[0]
            result = _update_one(request, groups[places.Place.of(request)], check_mode,
                                 is_read_only)
            if result:
                result["results"] = [_results_entry(params, result)]
        # An action plugin sets BATON_PODS if the role of the task runs check files.
        if result and "BATON_PODS" in os.environ and not check_mode:
            # Ignore errors, because all writes are done. If the result has no `rollouts`, the role
            # reads the pods with a separate task.
            with contextlib.suppress(Exception):
                result["rollouts"] = [
                    rollout for request in requests
                    for rollout in _rollouts_with_new_pods(
                        request, groups[places.Place.of(request)], result)]
    if result and not diff:
        del result["diff"]
    return result


def _update_one(request: Request, group: fleet.Group, check_mode: bool,
                is_read_only: bool) -> Json | None:
    flow, gateway, make_splits = group  # make_splits(False) returns simulated splits
    if is_read_only:
        return driver.result_if_done(flow, request, gateway, Clock(), make_splits(True))
    if check_mode:
        return driver.simulate(flow, request, gateway, make_splits(False))
    with ParentProcess() as parent:
        return driver.run(flow, request, gateway, Clock(),
                          lambda line: parent.print_line(f"{request.namespace} | {line}"),
                          parent.reason_to_stop, splits=make_splits(True))


def _update_fleet(selected_fleet: fleet.Fleet, groups: fleet.Groups, params: Json,
                  check_mode: bool, is_read_only: bool) -> Json | None:
    requests = selected_fleet.requests(params, groups)
    if is_read_only:
        return fleet.result_if_done(selected_fleet, requests, groups, Clock())
    if check_mode:
        return fleet.simulate(selected_fleet, requests, groups, Clock())
    with ParentProcess() as parent:
        return fleet.run(selected_fleet, requests, groups, Clock(), parent.print_line,
                         parent.reason_to_stop)


def _rollouts_with_new_pods(request: Request, group: fleet.Group, result: Json) -> list[Json]:
    """Return a rollout with the new pods for each paused controller.

    Leaves out controllers that have another namespace or kind than the request.
    """
    results = [item for item in result["results"] if item["namespace"] == request.namespace
               and item["kind"] in ("", request.kind)]
    names = sorted(Summary(results).paused_names)
    return rollouts_with_new_pods(group.flow, request, group.gateway, names) if names else []


def _group(params: Json, request: Request, stack: contextlib.ExitStack, watches_pods: bool,
           shared_connection: connection.Connection | None) -> fleet.Group:
    """Return the group of a request. The stack closes the group's gateway."""
    flow = choose(request)
    gateway = _gateway(params, request, flow, watches_pods, shared_connection)
    return fleet.Group(flow, stack.enter_context(contextlib.closing(gateway)),
                       functools.partial(Follower, flow, gateway))


def info(params: Json) -> Json:
    """Run the module rolling_update_info. Raises RolloutError."""
    params = _with_namespace(options.with_kinds(params))
    kinds = params.get("kinds") or [params.get("kind")]
    conflicting_options = [option for option in ("name", "names") if params.get(option)]
    if params.get("kinds") and conflicting_options:
        raise RolloutError(f"several kinds cannot be combined with {conflicting_options[0]}: give "
                           "one kind")
    rollouts = [rollout for kind in dict.fromkeys(kinds)
                for rollout in _call_with_kind_fallback(_info, {**params, "kind": kind})]
    if not rollouts and (kind := _only_kind(params)):
        rollouts = _info({**params, "kind": kind})
    return {"changed": False, "rollouts": rollouts}


def _info(params: Json) -> list[Json]:
    request = _read_only_request(params)
    flow = choose(request)
    with contextlib.closing(_gateway(params, request, flow)) as gateway:
        return _rollouts(flow, request, gateway, params)


def _rollouts(flow: AnyFlow, request: Request, gateway: KubernetesGateway,
              params: Json) -> list[Json]:
    return Overview(flow, request, gateway, params).rollouts()


def analysis(params: Json) -> Json:
    """Run the module rollout_analysis. Raises RolloutError."""
    params = _with_namespace(options.with_kinds(params))
    return _call_with_kind_fallback(_analysis, params)


def _analysis(params: Json) -> Json:
    # Reject invalid options before the first HTTP request.
    spec, request = analyses.parse_analysis(params), _read_only_request(params)
    send_query = _query_sender(spec, params)
    flow = choose(request)
    gateway_context = contextlib.closing(_gateway(params, request, flow))
    with gateway_context as gateway, ParentProcess() as parent:
        if any(metric.lines for metric in spec.metrics):
            _refuse_missing_permissions([permissions.LOG_RULE], request, gateway)
        reason_to_stop = parent.reason_to_stop
        logs = Logs(gateway.http, request.namespace, queries.seconds(spec.window),
                    gateway.server_time, reason_to_stop)
        sources = analysis_run.Sources(lambda text: send_query(text, reason_to_stop), logs.read)
        return analysis_run.run(request.name, request.namespace, spec,
                                lambda: _subject(flow, request, gateway), sources, Clock(),
                                lambda line: parent.print_line(f"{request.namespace} | {line}"),
                                reason_to_stop)


def _query_sender(spec: analyses.Analysis,
                  params: Json) -> t.Callable[[str, t.Callable[[], str]], Reading]:
    metric_names = [metric.name for metric in spec.metrics if not metric.lines]
    if not metric_names:
        return lambda query, reason_to_stop: Reading(None, "no metric has a query", is_answer=False)
    if not params.get("prometheus_url"):
        raise RolloutError(f"metric {metric_names[0]} needs prometheus_url", page="analysis")
    return prometheus.Prometheus(params).query


def _subject(flow: AnyFlow, request: Request, gateway: KubernetesGateway) -> Subject:
    request, observed, status = read_status(flow, request, gateway)
    new_names: list[str] = []
    old_names: list[str] = []
    for holder in status.holders:
        if not holder.has_known_labels:
            raise refusals.unknown_new_pods(request, observed.history)
        for pod in own_live_pods(gateway, holder.controller):
            (new_names if holder.is_new(pod.labels) else old_names).append(pod.name)
    return Subject(request.where, tuple(sorted(new_names)), tuple(sorted(old_names)),
                   flow.commands(request, observed)[1], status.phase != "complete",
                   str(request.kind), f"{status.direction} "
                   f"{soak.template_hash(flow.controller_of_new_pods(observed))}")


def traffic(params: Json, check_mode: bool = False, diff: bool = False) -> Json:
    """Run the module traffic_split. Raises RolloutError."""
    params = _with_namespace(options.with_kinds(params))
    if params["state"] == traffic_request.RESTORED:
        params = _with_kind_of_controller(params)
    return _call_with_kind_fallback(
        lambda options_of_kind: _traffic(options_of_kind, check_mode, diff), params)


def _traffic(params: Json, check_mode: bool, diff: bool) -> Json:
    request = _read_only_request(params)
    split = traffic_request.parse_traffic(params, request.connection, request.label_key)
    flow, is_updated = choose(request), _is_updated(params)
    gateway_context = contextlib.closing(_gateway(params, request, flow))
    with gateway_context as gateway, ParentProcess() as parent:
        if not params.get("kind"):
            gateway.controllers()  # Another kind may need other permissions.
        _refuse_missing_permissions(split_run.required_permissions(split, request.kind), request,
                                    gateway)

        def read_subject() -> split_run.Subject:
            gateway.look_up(primary_name(gateway.controllers(), request.name))
            controller = _primary(request, gateway)
            if split.restores and not (split.is_before_update and controller):
                return split_run.Subject(controller)
            primary_request, observed, status = read_status(flow, request, gateway)
            return split_run.subject(split, flow, primary_request, gateway, status)._replace(
                controller=observed.primary, is_updated=is_updated)

        result = split_run.run(split, split_run.RealObjects(split, gateway, read_subject),
                               check_mode,
                               lambda line: parent.print_line(f"{request.namespace} | {line}"),
                               parent.reason_to_stop, ClusterReader(gateway, request.namespace))
    if not diff:
        del result["diff"]
    return result


def _is_updated(params: Json) -> bool:
    """Return whether the task in the option `update` is valid, and has nothing left to do."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    if not params.get("update"):
        return False
    connection_options = {option: params.get(option) for option in connection.ARGUMENT_SPEC}
    validation = ArgumentSpecValidator(UPDATE_OPTIONS).validate(
        {**connection_options, **params["update"]})
    with contextlib.suppress(RolloutError):
        return not validation.error_messages and update(
            dict(validation.validated_parameters), is_read_only=True) is not None
    return False


def _with_kind_of_controller(params: Json) -> Json:
    """Return the parameters with the kind of the only controller with this name, if any."""
    traffic_request.parse_traffic(params, _read_only_request(params).connection)
    return {**params, "kind": params.get("kind") or _only_kind(params)}


def _primary(request: Request, gateway: KubernetesGateway) -> Controller | None:
    controllers = gateway.controllers()
    return controllers.get(primary_name(controllers, request.name))


def _call_with_kind_fallback(work: t.Callable[[Json], Result], params: Json) -> Result:
    """Call `work` with the parameters; if the kind may be wrong, call again with another kind."""
    try:  # without the option kind, try a ReplicationController first
        return work(params)
    except RolloutError as error:
        if not error.depends_on_kind or params.get("kind"):
            raise
        migrated_kind = error.migrated_kind if isinstance(error, NoSuchController) else ""
        kind = migrated_kind or _only_kind(params, error)
        if kind is None:
            raise
    return work({**params, "kind": kind})


def _refuse_missing_permissions(required_rules: t.Sequence[Rule], request: Request,
                                gateway: KubernetesGateway) -> None:
    """Raise RolloutError for a missing permission. Permissions for Leases are not required."""
    rules = gateway.rules()
    if rules is not None:
        permissions.refuse_missing(rules, required_rules,
                                   dataclasses.replace(request, lock=False))


def _read_only_request(params: Json) -> Request:
    """Return a request for reading only, with state rolled_back, which needs no template."""
    return parse_request({"name": params.get("name") or "any",
                          "module": module_of_kind(params.get("kind") or Request.kind),
                          "namespace": params.get("namespace"), "kind": params.get("kind"),
                          "default_namespace": params["default_namespace"],
                          "deployment_label_key": params.get("deployment_label_key"),
                          "state": "rolled_back", "job_template": os.environ.get(JOB_TEMPLATE),
                          "connection": connection.command_options(params, os.environ)})


def _only_kind(params: Json, error: RolloutError | None = None) -> str | None:
    """Return the kind of the only controller with this name.

    Returns None if there are none or several, and adds the reason to `error`. Also returns None if
    the task has the option kind, or no name.
    """
    if params.get("kind") or not params.get("name"):
        return None
    request = _read_only_request(params)
    with contextlib.closing(_gateway(params, request, choose(request))) as gateway:
        statuses = gateway.read_statuses(params["name"])
    kinds = [kind for kind, status in statuses.items() if status == 200]
    if len(kinds) == 1:
        return kinds[0]
    if error:
        module = Module(params.get("module", Request.module))
        other_kinds.explain(error, params["name"], statuses, module)
    return None


def _gateway(params: Json, request: Request, flow: AnyFlow, watches_pods: bool = True,
             shared_connection: connection.Connection | None = None) -> KubernetesGateway:
    return KubernetesGateway(shared_connection or connection.Connection(params, os.environ),
                             request.namespace, flow.watched_kinds, watches_pods)

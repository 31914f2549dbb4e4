# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the module traffic_split, and turn them into a request. No I/O."""

from __future__ import annotations

import dataclasses
import re
import typing as t

from ..model import object_meta, shell
from ..model.errors import RolloutError
from ..model.fields import Json, join_first
from ..model.identity import is_name
from ..model.options import ARGUMENT_SPEC as UPDATE_SPEC
from ..model.options import parse_duration
from .record import ROUTE_KINDS, SERVICE, VERSION_LABELS, is_match_list
from .rules import Share

#: The default of the option `timeout`, in seconds.
TIMEOUT = 60
#: The new pods' share of the requests if the option `weight` is missing.
NO_REQUESTS = Share(0, 100)
SPLIT, RESTORED = "split", "restored"
_CONDITION_OPTIONS: Json = dict(
    name=dict(type="str", required=True), value=dict(type="str", required=True),
    type=dict(type="str", choices=["Exact", "RegularExpression"], default="Exact"))
ARGUMENT_SPEC: Json = dict(
    name=dict(type="str", required=True),
    namespace=UPDATE_SPEC["namespace"],
    kind=dict(type="str"),
    route=dict(type="str"),
    route_kind=dict(type="str", choices=list(ROUTE_KINDS), default=ROUTE_KINDS[0]),
    service=dict(type="str"),
    state=dict(type="str", choices=[SPLIT, RESTORED], default=SPLIT),
    weight=dict(type="str"),
    mirror=dict(type="str"),
    before_update=dict(type="bool", default=False),
    # no_log: a user may put credentials here by mistake.
    update=dict(type="dict", no_log=True),
    match=dict(type="list", elements="dict", options=dict(
        headers=dict(type="list", elements="dict", options=_CONDITION_OPTIONS),
        query_params=dict(type="list", elements="dict", options=_CONDITION_OPTIONS))),
    deployment_label_key=UPDATE_SPEC["deployment_label_key"],
    timeout=dict(type="str", aliases=["wait_timeout"], default=f"{TIMEOUT}"),
    progress=UPDATE_SPEC["progress"],
)
#: Such as "10%" or "0.5".
_PERCENTAGE = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))? ?%?")


@dataclasses.dataclass(frozen=True)
class TrafficRequest:
    """The request of a task: a controller, a route, and the new pods' share of the requests."""

    #: The name of the controller.
    name: str
    namespace: str
    #: The name of the route or, without a route, of the Service.
    route: str
    route_kind: str = ROUTE_KINDS[0]
    #: The original Service. If "", the route must name exactly one Service that selects the old and
    #: the new pods.
    service: str = ""
    #: Whether the task has state=restored.
    restores: bool = False
    share: Share = NO_REQUESTS
    #: The key of the pod label that distinguishes the versions.
    label_key: str = object_meta.DEPLOYMENT_LABEL
    #: The option `match`, with the field names of Gateway API.
    match: tuple[Json, ...] = ()
    #: The share of the requests that the Gateway copies to the new pods.
    mirror: Share | None = None
    #: Whether a role runs the task to prepare an update.
    is_before_update: bool = False
    #: In seconds, for each wait.
    timeout: float = TIMEOUT
    #: The options of suggested commands. A value is None if no command can contain the real value.
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict)
    #: For kubectl.
    connection: t.Mapping[str, str | None] = dataclasses.field(default_factory=dict)

    @property
    def excludes_new_pods(self) -> bool:
        """Whether the requested split sends no requests to the new pods."""
        return not (self.restores or self.share.new or self.match or self.mirror)

    @property
    def changes_selector(self) -> bool:
        """Whether the task changes the selector of a Service instead of a route."""
        return self.route_kind == SERVICE

    @property
    def kubectl(self) -> str:
        """The beginning of a kubectl command."""
        return shell.kubectl(self.connection, self.namespace)

    @property
    def restore_command(self) -> str:
        """The command that restores the route or the Service, or else an instruction in words."""
        return (shell.ansible("traffic_split", {**self.options, "state": RESTORED})
                or f"run the same task again with state={RESTORED}")


def parse_traffic(params: Json, connection: t.Mapping[str, str | None],
                  label_key: str = object_meta.DEPLOYMENT_LABEL) -> TrafficRequest:
    """Parse the parameters of the module. Raises RolloutError."""
    for option in ("name", "route", "service"):
        if params.get(option) and not is_name(params[option]):
            raise RolloutError(f"{option} {params[option]} is not a valid name")
    _refuse_other_options(params.get("update") or {})
    restores, weight, match = (params["state"] == RESTORED, params.get("weight"),
                               _parse_matches(params))
    mirror = _parse_mirror(params)
    if not restores and weight in (None, "") and not match and not mirror:
        raise RolloutError("nothing to split: give weight, match or mirror")
    share = NO_REQUESTS if restores or weight in (None, "") else parse_share(weight)
    route, service = params.get("route"), params.get("service") or ""
    if not route:
        _check_request_without_route(service, share,
                                     has_match_or_mirror=not restores and bool(match or mirror))
    return TrafficRequest(
        params["name"], params["namespace"], route or service,
        params["route_kind"] if route else SERVICE, service, restores, share, label_key,
        () if restores else match, None if restores else mirror,
        bool(params.get("before_update")), parse_duration("timeout", params["timeout"]),
        {**connection, **command_options(params)}, connection)


def _refuse_other_options(update: Json) -> None:
    """Raise RolloutError for an option of the connection, or one that rolling_update lacks."""
    aliases = (alias for spec in UPDATE_SPEC.values() for alias in spec.get("aliases", ()))
    other_options = sorted(map(str, update.keys() - {*UPDATE_SPEC, *aliases}))
    if other_options:
        raise RolloutError(f"update cannot contain {join_first(other_options)}: give options of "
                           "rolling_update, and those of the connection to this task")


def _check_request_without_route(service: str, share: Share, *, has_match_or_mirror: bool) -> None:
    """Raise RolloutError if the request needs a route, or names no Service."""
    if not service:
        raise RolloutError("give route, or service for blue/green without a route")
    if has_match_or_mirror:
        raise RolloutError("match and mirror need a route: the selector of a Service sends all "
                           "requests to one version", next_command="give route, or remove match "
                           "and mirror")
    if share.new not in (0, share.total):
        raise RolloutError(f"a weight of {share} needs a route: the selector of a Service sends "
                           "all requests to one version",
                           next_command="give weight=0% or weight=100%, or give route (a route "
                                        "needs a Gateway)")


def command_options(params: Json) -> Json:
    """Return the options to repeat in a suggested command."""
    options = {option: params[option] for option in ("name", "kind", "route", "service")
               if params.get(option)}
    if params["namespace"] != params["default_namespace"]:
        options["namespace"] = params["namespace"]
    omitted_values = {
        "route_kind": (None, ROUTE_KINDS[0], SERVICE),
        "deployment_label_key": (None, object_meta.DEPLOYMENT_LABEL, *VERSION_LABELS)}
    options |= {option: params[option] for option, values in omitted_values.items()
                if params.get(option) not in values}
    return options


def parse_share(value: t.Any, option: str = "weight") -> Share:
    """Parse a percentage: Share(5, 1000) for "0.5%". Raises RolloutError."""
    parts = _PERCENTAGE.fullmatch(str(value).strip())
    if parts is None:
        raise RolloutError(f"{option} must be a percentage such as 1, 0.5 or 10%, not {value}")
    decimals = (parts[2] or "").rstrip("0")
    share = Share(int(parts[1] + decimals), 100 * 10 ** len(decimals))
    if share.new > share.total:
        raise RolloutError(f"{option} {value} is more than 100%")
    return share


def _parse_mirror(params: Json) -> Share | None:
    if params.get("mirror") in (None, ""):
        return None
    share = parse_share(params["mirror"], "mirror")
    if params["route_kind"] != ROUTE_KINDS[0]:
        raise RolloutError("only an HTTPRoute can mirror requests: remove mirror")
    return share if share.new else None


def _parse_matches(params: Json) -> tuple[Json, ...]:
    matches = [{part: [{key: condition[key] for key in ("name", "type", "value")}
                       for condition in entry[option]]
                for option, part in (("headers", "headers"), ("query_params", "queryParams"))
                if entry.get(option)} for entry in params.get("match") or ()]
    if not all(matches):
        raise RolloutError("an entry of match has neither headers nor query_params, so that it "
                           "would send every request to the new pods")
    if not is_match_list(matches):
        raise RolloutError("match has too many entries or conditions, or a text is too long")
    is_grpc = params["route_kind"] == ROUTE_KINDS[1]
    if is_grpc and any("queryParams" in entry for entry in matches):
        raise RolloutError("a GRPCRoute has no query parameters: match headers only")
    return tuple(matches)

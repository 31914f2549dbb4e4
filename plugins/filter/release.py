# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Wrap functions of module_utils and plugin_utils as filters for the roles and playbooks.

Each filter is documented in the YAML file with its name.
"""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleFilterError

from ansible_collections.baton.kubernetes.plugins.module_utils.release import (
    batches,
    conditions,
    ending,
    loop,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release import (
    turn_options as options,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import History, Turn
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request
from ansible_collections.baton.kubernetes.plugins.plugin_utils import pages
from ansible_collections.baton.kubernetes.plugins.plugin_utils.entries import entries, plain
from ansible_collections.baton.kubernetes.plugins.plugin_utils.pages import report_path

Json = dict[str, t.Any]
#: The variables of each host. Ansible evaluates a variable at each access.
HostVars = t.Mapping[str, t.Mapping[str, t.Any]]


def next_turn(request: Json, state: Json, done: t.Any = None, failure: t.Any = None, now: str = "",
              caller: t.Any = None) -> Json:
    """Wrap loop.decide(). done: the registered result of the turn that has just ended."""
    release_request = Request.of(plain(request))
    return loop.decide(release_request, plain(state), plain(done or {}), plain(failure or {}), now,
                       plain(caller or {}))


def turn_options(request: Json, state: Json) -> Json:
    return options.module_options(Request.of(plain(request)), Turn(**plain(state)["turn"]))


def analysis_options(request: Json, state: Json, pair: Json, measured: list[Json]) -> Json:
    """Wrap analysis_options() of release/turn_options.py.

    pair: a controller and an analysis of Turn.analyses. measured: the earlier results of the turn.
    """
    release_request = Request.of(plain(request))
    release = conditions.Release(release_request, History.read(plain(state)))
    return options.analysis_options(release, plain(pair), plain(measured))


def approval_answer(request: Json, state: Json, rollouts: t.Any = None, now: str = "") -> Json:
    """Wrap loop.check_approval(): return whether the wait is over, and the maximum poll count."""
    return loop.check_approval(Request.of(plain(request)), plain(state), plain(rollouts), now)


def failed_task(result: Json, name: str = "", no_log: t.Any = False) -> Json:
    return ending.task_failure(plain(result), name, no_log)


def release_artifacts(request: Json, state: Json, page: str = "") -> Json:
    release_request = Request.of(plain(request))
    history = History.read(plain(state))
    release_ending = ending.Ending(release_request, history)
    artifacts = ending.artifacts(release_request, history, release_ending, page)
    return {"clusters": {release_request.host: artifacts}} if release_request.host else artifacts


def region_batches(groups: t.Mapping[str, list[str]], regions: t.Any,
                   hosts: list[str]) -> dict[str, list[str]]:
    try:
        return batches.region_batches(groups, entries(regions, comma=True) or ["all"], hosts)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None


def batch_gate(hosts: list[str], batch: list[str], names: list[str], outcomes: list[str],
               max_failed: t.Any = 0, regions: t.Any = None,
               remaining: list[str] | None = None) -> str:
    """Wrap batches.reason_not_to_begin().

    max_failed: a percentage, as a number or a text such as "10%".
    """
    try:
        percentage = float(str(max_failed).strip().removesuffix("%") or 0)
    except ValueError:
        percentage = -1.0
    if not 0 <= percentage <= 100:
        raise AnsibleFilterError(
            f"max_failed_clusters must be a percentage from 0 to 100, not {max_failed}. "
            "Nothing has been changed.")
    return batches.reason_not_to_begin(hosts, batch, names, outcomes, percentage, regions,
                                       remaining)


def is_cluster(hostvars: HostVars, host: str) -> bool:
    """Return whether the kubeconfig or context of a host differs from that of localhost.

    A host whose variables cannot be evaluated is a cluster, in which the playbook then fails.
    """
    try:
        connection, local_connection = (
            [variables.get("kubeconfig") or "", variables.get("context") or ""]
            for variables in (hostvars[host], hostvars["localhost"]))
        return connection != local_connection
    except Exception:  # a lookup in a template raises any
        return True


def report_paths(hostvars: HostVars, hosts: list[str]) -> list[str]:
    """Return the variable report of each host; "" if it is missing or invalid.

    The report of one host must not fail the update of another.
    """
    return [_report_of(hostvars, host) for host in hosts]


def _report_of(hostvars: HostVars, host: str) -> str:
    try:
        return next(iter(entries(hostvars[host].get("report"))), "")
    except Exception:  # a lookup in a template raises any
        return ""


def report_overview(hosts: list[str], data: list[Json], path: str, own: str,
                    regions: t.Any = None) -> dict[str, Json]:
    """Wrap pages.overview(). path: the page for all clusters. own: the page for this host."""
    return pages.overview(hosts, data, report_path(path), report_path(own), regions or {})


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {function.__name__: function for function in
                (entries, next_turn, turn_options, analysis_options, approval_answer, failed_task,
                 release_artifacts, region_batches, batch_gate, pages.host_page,
                 report_overview, batches.host_pattern, is_cluster, report_paths)}

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the batches of a play over many clusters, and whether the next batch may begin. No I/O.

Ansible's keywords do not suffice: serial takes only numbers and percentages of hosts, and
max_fail_percentage does not count a host that fails in a block with rescue or always.
"""

from __future__ import annotations

import re
import typing as t

from ..model.fields import join_first

SUCCESSFUL = ("updated", "paused")
#: A name that Ansible never splits, and reads as the name of one host if a host has that name.
_PLAIN_NAME = re.compile(r"\w[\w./@%+=-]*")


def host_pattern(host: str) -> str:
    """Return a pattern for `hosts` and --limit that selects only this host.

    Ansible splits a pattern at colons, commas and spaces, and expands brackets and wildcards, but
    not a character in brackets in a regular expression. JSON, as in Ansible's output, does not
    change the pattern unless the name has a comma, a bracket, "^" or a backslash.

    >>> host_pattern("lyon-1.example.com"), host_pattern("cluster/shop:eu")
    ('lyon-1.example.com', '~cluster/shop[:]eu$')
    """
    if _PLAIN_NAME.fullmatch(host):
        return host
    return "~" + re.sub(r"[^\w/@%=-]", _escape, host) + "$"


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() and character not in ",[]^\\":
        return f"[{character}]"
    return f"\\x{ord(character):02x}" if character <= "\xff" else f"\\U{ord(character):08x}"


def region_batches(groups: t.Mapping[str, t.Sequence[str]], regions: t.Sequence[str],
                   hosts: t.Iterable[str]) -> dict[str, list[str]]:
    """Return the hosts of each region, in the order of the regions.

    hosts: the hosts that --limit selects. Raises ValueError for a region that is not a group of the
    inventory, or is a group without hosts.
    """
    for region in regions:
        if region not in groups:
            groups_of_inventory = sorted(set(groups) - {"all", "ungrouped", "baton_clusters"})
            raise ValueError(f"regions: the inventory has no group {region} (available groups: "
                             f"{', '.join(groups_of_inventory) or 'none'}). "
                             "Nothing has been changed.")
        if not groups[region] and region != "all":
            raise ValueError(f"regions: the group {region} of the inventory has no hosts. Nothing "
                             "has been changed.\nNext: add its clusters to the inventory, or omit "
                             f"{region} from regions.")
    remaining_hosts, hosts_by_region = set(hosts), {}
    for region in dict.fromkeys(regions):
        hosts_by_region[region] = [host for host in dict.fromkeys(groups[region])
                                   if host in remaining_hosts]
        remaining_hosts -= set(hosts_by_region[region])
    return {region: region_hosts
            for region, region_hosts in hosts_by_region.items() if region_hosts}


def reason_not_to_begin(hosts: t.Sequence[str], batch: t.Sequence[str],
                        batch_names: t.Sequence[str], outcomes: t.Sequence[str],
                        max_failed: float = 0,
                        regions: t.Mapping[str, t.Sequence[str]] | None = None,
                        remaining: t.Iterable[str] | None = None) -> str:
    """Return why a batch must not begin, or "".

    hosts: all hosts of the play, in order. batch_names, outcomes: the name of the batch and the
    outcome of the role for each host, or "" if unknown. max_failed: the percentage of the clusters
    in a batch that may fail. regions: the hosts of each batch by its name, if known, as returned by
    region_batches(). remaining: the hosts of the play that have not failed since their outcome; by
    default, all.

    | hosts of an earlier batch | the next batch |
    |---|---|
    | all have ended well (updated, or paused as requested), and have not failed since | begins |
    | at most max_failed percent have failed (another outcome, or none), but not all | begins |
    | more than max_failed percent have failed, or all | does not begin |
    """
    region_by_host = {host: region for region, region_hosts in (regions or {}).items()
                      for host in region_hosts}
    if regions is not None and (error := _mixed_batch_error(batch, region_by_host)):
        return error
    failed = set(hosts) - set(hosts if remaining is None else remaining)
    outcomes = [f"{outcome}, then failed" if outcome in SUCCESSFUL and host in failed else outcome
                for host, outcome in zip(hosts, outcomes)]
    for outcome_by_host in _outcomes_by_earlier_batch(hosts, batch, batch_names, outcomes,
                                                      region_by_host):
        failed_hosts = [f"{host}: {outcome or 'unknown'}"
                        for host, outcome in outcome_by_host.items() if outcome not in SUCCESSFUL]
        cluster_count = len(outcome_by_host)
        if failed_hosts and (100 * len(failed_hosts) > max_failed * cluster_count
                             or len(failed_hosts) == cluster_count):
            return (f"{join_first(batch)} not started: {len(failed_hosts)} of {cluster_count} "
                    f"clusters in an earlier batch failed ({join_first(failed_hosts)}), and at "
                    f"most {max_failed:g}% (never all) may fail.\nNext: fix the cause and run the "
                    "same playbook again; updated clusters do not change.")
    return ""


def _mixed_batch_error(batch: t.Sequence[str], region_by_host: t.Mapping[str, str]) -> str:
    """Return why Ansible must not begin these hosts together, or "".

    Ansible evaluates `hosts` and `serial` without the variables of the inventory.
    """
    regions = list(dict.fromkeys(region_by_host.get(host, "none") for host in batch))
    if len(regions) == 1 and batch[0] in region_by_host:
        return ""
    return (f"{join_first(batch)} not started: Ansible would begin these clusters together, but "
            f"their regions are: {join_first(regions)}. Nothing has been changed in them.\n"
            "Next: set regions with -e, not as a variable of the inventory.")


def _outcomes_by_earlier_batch(hosts: t.Sequence[str], batch: t.Sequence[str],
                               batch_names: t.Sequence[str], outcomes: t.Sequence[str],
                               region_by_host: t.Mapping[str, str]) -> list[dict[str, str]]:
    """Return the outcomes by host, of each batch before this batch."""
    # `batch` lacks a host that was unreachable before its batch.
    regions_of_batch = {region_by_host[host] for host in batch if host in region_by_host}
    batch_start_index = min((index for index, host in enumerate(hosts) if host in batch
                             or region_by_host.get(host) in regions_of_batch), default=0)
    outcomes_by_name: dict[str, dict[str, str]] = {}
    batch_name = ""
    for host, known_name, outcome in list(zip(hosts, batch_names, outcomes))[:batch_start_index]:
        # Without regions, a host that was unreachable before its batch has no batch name. Count
        # this host in the batch of the previous host.
        batch_name = region_by_host.get(host) or known_name or batch_name
        outcomes_by_name.setdefault(batch_name, {})[host] = outcome
    return list(outcomes_by_name.values())

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the batches of a play over many clusters, and whether the next batch may begin. No I/O.

Ansible's keywords do not suffice: serial takes only numbers and percentages of hosts, and
max_fail_percentage does not count a host that fails in a block with rescue or always.
"""

from __future__ import annotations

import typing as t

from ..model.fields import join_first

SUCCESSFUL = ("updated", "paused")


def region_batches(groups: t.Mapping[str, t.Sequence[str]], regions: t.Sequence[str],
                   hosts: t.Iterable[str]) -> dict[str, list[str]]:
    """Return the hosts of each region, in the order of the regions.

    hosts: the hosts that --limit selects. Raises ValueError for a region that is not a group of the
    inventory.
    """
    for region in regions:
        if region not in groups:
            groups_of_inventory = sorted(set(groups) - {"all", "ungrouped", "baton_clusters"})
            raise ValueError(f"regions: the inventory has no group {region} (available groups: "
                             f"{', '.join(groups_of_inventory) or 'none'}). "
                             "Nothing has been changed.")
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
                        regions: t.Mapping[str, t.Sequence[str]] | None = None) -> str:
    """Return why a batch must not begin, or "".

    hosts: all hosts of the play, in order. batch_names, outcomes: the name of the batch and the
    outcome of the role for each host, or "" if unknown. max_failed: the percentage of the clusters
    in a batch that may fail. regions: the hosts of each batch by its name, if known, as returned by
    region_batches().

    | hosts of an earlier batch | the next batch |
    |---|---|
    | all have ended well (updated, or paused as requested) | begins |
    | at most max_failed percent have failed (another outcome, or none), but not all | begins |
    | more than max_failed percent have failed, or all | does not begin |
    """
    region_by_host = {host: region for region, region_hosts in (regions or {}).items()
                      for host in region_hosts}
    # `batch` lacks a host that was unreachable before its batch.
    regions_of_batch = {region_by_host[host] for host in batch if host in region_by_host}
    batch_start_index = min((index for index, host in enumerate(hosts) if host in batch
                             or region_by_host.get(host) in regions_of_batch), default=0)
    outcomes_by_earlier_batch: dict[str, dict[str, str]] = {}
    batch_name = ""
    for host, known_name, outcome in list(zip(hosts, batch_names, outcomes))[:batch_start_index]:
        # Without regions, a host that was unreachable before its batch has no batch name. Count
        # this host in the batch of the previous host.
        batch_name = region_by_host.get(host) or known_name or batch_name
        outcomes_by_earlier_batch.setdefault(batch_name, {})[host] = outcome
    for outcome_by_host in outcomes_by_earlier_batch.values():
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

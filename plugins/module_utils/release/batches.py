# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the batches of a play over many clusters, and whether the next batch may begin. Pure.

Ansible's keywords do not suffice. serial takes only numbers of hosts, so the batches would depend
on --limit and on overlapping groups. max_fail_percentage does not count a host that fails in a
block with rescue, which the role runs on every host.
"""

from __future__ import annotations

import typing as t

#: Outcomes of the role that let the next batch begin.
SUCCESSFUL = ("updated", "paused")
#: Maximum number of clusters that a message lists.
MAX_LISTED = 5


def region_batches(groups: t.Mapping[str, t.Sequence[str]], regions: t.Sequence[str],
                   hosts: t.Iterable[str]) -> dict[str, list[str]]:
    """Return the hosts of each region, in the order of the regions.

    groups: the hosts of each group of the inventory. hosts: the hosts within --limit. A host in
    several regions belongs to the first of them. Regions without hosts are left out. Raises
    ValueError for a region that is not a group of the inventory.
    """
    for region in regions:
        if region not in groups:
            groups_of_inventory = sorted(set(groups) - {"all", "ungrouped", "baton_clusters"})
            raise ValueError(f"regions: the inventory has no group {region} (available groups: "
                             f"{', '.join(groups_of_inventory) or 'none'}). "
                             "Nothing has been changed.")
    remaining_hosts, batches = set(hosts), {}
    for region in dict.fromkeys(regions):
        batches[region] = [host for host in dict.fromkeys(groups[region])
                           if host in remaining_hosts]
        remaining_hosts -= set(batches[region])
    return {region: batch for region, batch in batches.items() if batch}


def gate(hosts: t.Sequence[str], batch: t.Sequence[str], batch_names: t.Sequence[str],
         outcomes: t.Sequence[str], max_failed: float = 0) -> str:
    """Return the reason why a batch may not begin; "" if the batch may begin.

    hosts: all hosts of the play, in order. batch: the hosts of the batch. batch_names, outcomes:
    for each of `hosts`, the name of its batch and the outcome of the role, or "" if unknown.
    max_failed: the percentage of the clusters in a batch that may fail.

    | hosts of an earlier batch | the next batch |
    |---|---|
    | all have ended well (updated, or paused as requested) | begins |
    | at most max_failed percent, but not all, have another outcome or none | begins |
    | more have another outcome or none (unreachable), or all have | does not begin |
    """
    start_of_batch = min((hosts.index(host) for host in batch if host in hosts), default=0)
    # By the name of the batch and by host.
    earlier_outcomes: dict[str, dict[str, str]] = {}
    batch_name = ""
    for host, known_name, outcome in list(zip(hosts, batch_names, outcomes))[:start_of_batch]:
        # A host that was unreachable before its batch began has no batch yet. The hosts are in the
        # order of the batches, so the host is in the batch of the previous host.
        batch_name = known_name or batch_name
        earlier_outcomes.setdefault(batch_name, {})[host] = outcome
    for outcome_by_host in earlier_outcomes.values():
        failed = [f"{host}: {outcome or 'unknown'}"
                  for host, outcome in outcome_by_host.items() if outcome not in SUCCESSFUL]
        cluster_count = len(outcome_by_host)
        if failed and (100 * len(failed) > max_failed * cluster_count
                       or len(failed) == cluster_count):
            return (f"{_join(batch)} not started: {len(failed)} of {cluster_count} clusters in an "
                    f"earlier batch failed ({_join(failed)}), and at most {max_failed:g}% may "
                    "fail.\nNext: fix the cause and run the same playbook again; updated clusters "
                    "do not change.")
    return ""


def _join(texts: t.Sequence[str]) -> str:
    remaining = len(texts) - MAX_LISTED
    return ", ".join(texts[:MAX_LISTED]) + (f" and {remaining} more" if remaining > 0 else "")

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide the batches of many clusters, and whether the next batch may begin. Pure.

Ansible's own serial and max_fail_percentage cannot decide this. serial takes counts of hosts, which
--limit and overlapping groups shift. max_fail_percentage overlooks hosts that fail in a block with
rescue or always, as every host of the role does.
"""

from __future__ import annotations

import typing as t

#: Outcomes of the role that let the next batch begin.
SUCCESSFUL = ("updated", "paused")
#: Clusters in a sentence.
SOME = 5


def region_batches(groups: t.Mapping[str, t.Sequence[str]], regions: t.Sequence[str],
                   hosts: t.Iterable[str]) -> dict[str, list[str]]:
    """Return the hosts of each region in the order of the regions.

    groups are the inventory's; hosts are the hosts within --limit. A host belongs to the first of
    its regions. A region without hosts is left out. Raises ValueError for a region that the
    inventory does not have.
    """
    for region in regions:
        if region not in groups:
            groups_of_inventory = sorted(set(groups) - {"all", "ungrouped", "baton_clusters"})
            raise ValueError(f"regions: the inventory has no group {region} (it has "
                             f"{', '.join(groups_of_inventory) or 'none'}). "
                             "Nothing has been changed.")
    allowed, batches = set(hosts), {}
    for region in dict.fromkeys(regions):
        batches[region] = [host for host in dict.fromkeys(groups[region]) if host in allowed]
        allowed -= set(batches[region])
    return {region: batch for region, batch in batches.items() if batch}


def gate(hosts: t.Sequence[str], batch: t.Sequence[str], names: t.Sequence[str],
         outcomes: t.Sequence[str], max_failed: float = 0) -> str:
    """Return why a batch may not begin, or "".

    hosts are all of the play in their order. names and outcomes are, for each of them, the batch of
    the host and the role's outcome there, "" where that is not known. max_failed is the percentage
    of a batch that may fail.

    | hosts of an earlier batch | the next batch |
    |---|---|
    | all have ended well (updated, or paused as requested) | begins |
    | at most max_failed percent, but not all, have another outcome or none | begins |
    | more have another outcome or none (unreachable), or all have | does not begin |
    """
    first = min((hosts.index(host) for host in batch if host in hosts), default=0)
    earlier: dict[str, dict[str, str]] = {}
    name = ""
    for host, noted, outcome in list(zip(hosts, names, outcomes))[:first]:
        # a host lost before the start of its batch belongs to the batch of the host before
        name = noted or name
        earlier.setdefault(name, {})[host] = outcome
    for ended in earlier.values():
        failed = [f"{host}: {outcome or 'unknown'}"
                  for host, outcome in ended.items() if outcome not in SUCCESSFUL]
        if failed and (100 * len(failed) > max_failed * len(ended) or len(failed) == len(ended)):
            return (f"{_some(batch)} not started: {len(failed)} of {len(ended)} clusters failed "
                    f"before ({_some(failed)}), and at most {max_failed:g}% may fail.\nNext: fix "
                    "the cause and run the same playbook again; updated clusters do not change.")
    return ""


def _some(texts: t.Sequence[str]) -> str:
    more = len(texts) - SOME
    return ", ".join(texts[:SOME]) + (f" and {more} more" if more > 0 else "")

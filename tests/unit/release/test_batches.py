# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Select the batches of clusters, and decide whether the next batch may start."""

from __future__ import annotations

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from forged import HOST_NAMES

from ansible_collections.baton.kubernetes.plugins.module_utils.release.batches import (
    host_pattern,
    reason_not_to_begin,
    region_batches,
)

GROUPS = {"all": ["a", "b", "c", "d"], "ungrouped": [], "canary": ["a", "b"],
          "europe": ["b", "c", "d"], "spare": []}


@pytest.mark.parametrize("regions, hosts, batches", [
    (["canary", "europe"], "abcd", {"canary": ["a", "b"], "europe": ["c", "d"]}),
    (["europe", "canary"], "abcd", {"europe": ["b", "c", "d"], "canary": ["a"]}),
    (["canary", "europe"], "acd", {"canary": ["a"], "europe": ["c", "d"]}),
    (["canary", "europe"], "cd", {"europe": ["c", "d"]}),
    (["canary", "canary", "europe"], "abcd", {"canary": ["a", "b"], "europe": ["c", "d"]}),
    (["all"], "ab", {"all": ["a", "b"]}),
    (["canary"], "cd", {}),
], ids=["overlapping groups", "reversed order", "--limit to a part of a region",
        "--limit to one region", "repeated regions",
        "default region", "--limit excludes the region"])
def test_batches_follow_the_order_of_the_regions_and_contain_each_host_once(
        regions, hosts, batches):
    assert list(region_batches(GROUPS, regions, list(hosts)).items()) == list(batches.items())


def test_region_without_a_group_is_refused():
    with pytest.raises(ValueError,
                       match="the inventory has no group europ \\(available groups: canary, "
                             "europe, spare\\)"):
        region_batches(GROUPS, ["canary", "europ"], ["a"])


@pytest.mark.parametrize("hosts", ["abcd", "cd"], ids=["all hosts", "--limit"])
def test_region_without_hosts_in_the_inventory_is_refused(hosts):
    with pytest.raises(ValueError, match="the group spare of the inventory has no hosts"):
        region_batches(GROUPS, ["spare", "europe"], list(hosts))

    assert region_batches({"all": []}, ["all"], []) == {}, "without an inventory"


@pytest.fixture(scope="module")
def inventory():
    manager = InventoryManager(DataLoader(), sources="localhost,")
    manager.add_group("prod")
    for name in HOST_NAMES:
        manager.add_host(name, "prod")
    manager.reconcile_inventory()
    return manager


@pytest.mark.parametrize("host", HOST_NAMES)
def test_pattern_selects_only_the_host(inventory, host):
    assert [selected.name for selected in inventory.get_hosts([host_pattern(host)])] == [host]
    inventory.subset(host_pattern(host))
    try:
        assert [selected.name for selected in inventory.get_hosts("all")] == [host], "--limit"
    finally:
        inventory.subset(None)


def test_plain_name_is_its_own_pattern():
    assert all(host_pattern(name) == name for name in ("lyon", "lyon-1.example.com", "a/b_c@d"))


@pytest.mark.parametrize("outcomes, max_failed, is_started", [
    (["updated", "updated"], 0, True), (["updated", "paused"], 0, True),
    (["updated", "rolled_back"], 0, False), (["updated", "failed"], 0, False),
    (["updated", "stopped"], 0, False),
    (["updated", ""], 0, False),
    (["updated", "failed"], 49, False), (["updated", "failed"], 50, True),
    (["updated", ""], 50, True),
    (["failed", "rolled_back"], 100, False), (["failed", "updated"], 100, True),
], ids=["updated", "paused on request", "rolled back", "failed", "stopped", "unreachable",
        "too many failures", "maximum of failures",
        "unreachable within the maximum", "all failed", "one failed"])
def test_next_batch_starts_after_enough_successes(outcomes, max_failed, is_started):
    refusal = reason_not_to_begin(["a", "b", "c", "d"], ["c", "d"], ["a", "a", "", ""],
                                  [*outcomes, "", ""], max_failed)

    assert (refusal == "") is is_started
    assert (is_started
            or (refusal.startswith("c, d not started: ")
                and "and run the same playbook again" in refusal))


def test_first_batch_starts():
    assert reason_not_to_begin(["a", "b"], ["a"], ["", ""], ["", ""]) == ""


def test_failures_are_counted_per_batch():
    hosts, batch_names = list("abcdef"), ["a", "a", "c", "c", "", ""]

    assert reason_not_to_begin(hosts, ["e", "f"], batch_names,
                               ["failed", "updated", "updated", "failed", "", ""], 50) == ""
    assert "c: failed, d: failed" in reason_not_to_begin(
        hosts, ["e", "f"], batch_names, ["updated", "updated", "failed", "failed", "", ""], 50)
    assert "a: failed" in reason_not_to_begin(
        hosts, ["e", "f"], batch_names, ["failed", "updated", "updated", "updated", "", ""], 25)


@pytest.mark.parametrize("outcome, message", [
    ("updated", "a: updated, then failed"), ("paused", "a: paused, then failed"),
    ("failed", "a: failed"), ("", "a: unknown")])
@pytest.mark.parametrize("regions", [None, {"x": ["a", "b"], "y": ["c"]}])
def test_host_that_fails_after_its_outcome_counts_as_failed(outcome, message, regions):
    """A task after the role, or a play between two imports of the playbook, has failed."""
    def refusal(remaining, max_failed=0):
        return reason_not_to_begin(["a", "b", "c"], ["c"], ["a", "a", ""], [outcome, "updated", ""],
                                   max_failed, regions, remaining)

    assert message in refusal({"b", "c"}) and message in refusal({"c"}, 50)
    assert refusal({"b", "c"}, 50) == ""
    assert (refusal({"a", "b", "c"}) == "") is (outcome in ("updated", "paused"))


@pytest.mark.parametrize("regions, batch, mixed_regions", [
    ({"x": "ab", "y": "cde"}, "abcde", "x, y"), ({"x": "ab", "y": "cde"}, "bc", "x, y"),
    ({"x": "ab"}, "abc", "x, none"), ({"x": "a"}, "e", "none"), ({}, "ab", "none"),
    ({"x": "ab", "y": "cde"}, "ab", ""), ({"x": "ab", "y": "cde"}, "b", ""), (None, "abcde", ""),
], ids=["all regions", "parts of two regions", "region and a host without a region",
        "host without a region", "--limit excludes all regions",
        "one region", "rest of a region", "unknown regions"])
def test_batch_of_several_regions_is_refused(regions, batch, mixed_regions):
    """Only tasks see the variable `regions` of an inventory, not the keywords of the play."""
    refusal = reason_not_to_begin(list("abcde"), list(batch), ["a"] * 5, ["updated"] * 5, 0,
                                  regions and {region: list(hosts)
                                               for region, hosts in regions.items()})

    assert (f"but their regions are: {mixed_regions}. Nothing has been changed in them.\nNext: set "
            "regions with -e" in refusal if mixed_regions else refusal == "")


def test_unreachable_host_counts_as_failed():
    assert "b: unknown" in reason_not_to_begin(["a", "b", "c"], ["c"], ["a", "", ""],
                                               ["updated", "", ""])
    assert "a: unknown" in reason_not_to_begin(["a", "b"], ["b"], ["", ""], ["", ""], 99)


@pytest.mark.parametrize("regions, batch, outcomes, max_failed, failed_hosts", [
    (None, "de", ["updated", "updated", ""], 0, "c: unknown"),
    ({"x": "ab", "y": "cde"}, "de", ["updated", "updated", ""], 0, ""),
    ({"x": "ab", "y": "cde"}, "de", ["failed", "updated", ""], 50, ""),
    ({"x": "abc", "y": "de"}, "de", ["updated", "updated", ""], 0, "c: unknown"),
    ({"x": "ab", "y": "c", "z": "de"}, "de", ["updated", "updated", ""], 50, "c: unknown"),
    ({"x": "ab", "y": "c", "z": "d", "w": "e"}, "d", ["updated", "updated", "updated"], 0, ""),
], ids=["unknown regions", "region to begin", "region to begin after a failure", "earlier region",
        "whole region", "no failure"])
def test_host_that_was_unreachable_before_its_batch_counts_in_its_region(
        regions, batch, outcomes, max_failed, failed_hosts):
    refusal = reason_not_to_begin(list("abcde"), list(batch), ["a", "a", "", "", ""],
                                  [*outcomes, "", ""], max_failed,
                                  regions and {region: list(hosts)
                                               for region, hosts in regions.items()})

    assert f"({failed_hosts})" in refusal if failed_hosts else refusal == ""


def test_message_names_at_most_five_hosts():
    hosts = [f"h{number}" for number in range(20)]

    refusal = reason_not_to_begin(hosts, hosts[10:], ["h0"] * 10 + [""] * 10,
                                  ["failed"] * 10 + [""] * 10)

    assert ("h10, h11, h12, h13, h14 and 5 more not started: 10 of 10" in refusal
            and "h4: failed and 5 more" in refusal)

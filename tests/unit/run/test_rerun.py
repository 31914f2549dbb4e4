# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that, at any moment, a rerun makes the same decision as the first run.

A rerun without memory observes a copy of the cluster at each write and wait of a task.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import pkgutil
import re
from pathlib import Path

import every_kind
import pytest
from clusters import FakeClock

from ansible_collections.baton.kubernetes.plugins.module_utils import flows
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Handover
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

KINDS_AND_STRATEGIES = [(kind, "") for kind in every_kind.KINDS] + [
    ("StatefulSet", "OnDelete"), ("DaemonSet", "OnDelete")]
WAIT = "wait"


class DecisionMade(BaseException):
    """End of a rerun at its first decision: a write or WAIT."""


class RerunCluster(every_kind.Cluster):
    """Copy of a cluster for a rerun."""

    def __init__(self, cluster):
        vars(self).update(vars(cluster))
        self.cluster, self.scaler = copy.deepcopy((cluster.cluster, cluster.scaler))
        self.clock, self.calls = FakeClock(), []

    def write(self, write):
        raise DecisionMade(write)

    def hand_over(self, write, may_continue):
        raise DecisionMade(write)

    def wait(self, seconds):
        raise DecisionMade(WAIT)

    def decision(self, request):
        """Return the first write or WAIT of a rerun, or else its error or message."""
        try:
            return driver.run(choose(request), request, self, self.clock)["msg"]
        except DecisionMade as end:
            return end.args[0]
        except RolloutError as error:
            return error


class ComparedCluster(every_kind.Cluster):
    """Cluster that compares each decision of a task with the decision of a rerun."""

    def __init__(self, kind, strategy):
        self.request = None
        super().__init__(kind, strategy)
        self.decisions, self.differences = [], []

    def compare(self, decision):
        if self.request is None:
            return
        decision_of_rerun = RerunCluster(self).decision(self.request)
        self.decisions.append(decision)
        if repr(decision_of_rerun) != repr(decision):
            self.differences.append((decision, decision_of_rerun))

    def write(self, write):
        if not isinstance(write, Handover):
            self.compare(write)
        return super().write(write)

    def hand_over(self, write, may_continue):
        self.compare(write)
        return super().hand_over(write, may_continue)

    def wait(self, seconds):
        self.compare(WAIT)
        return super().wait(seconds)

    def run_and_compare(self, request):
        """Run a task. Return the differences as (decision of the task, of the rerun)."""
        self.request, self.differences = request, []
        try:
            self.run(request)
        finally:
            self.request = None
        self.settle()
        return self.differences


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_rerun_decides_the_same_during_an_update(kind, strategy):
    cluster = ComparedCluster(kind, strategy)
    assert cluster.run_and_compare(every_kind.update_request(kind)) == []
    assert len(cluster.decisions) > 2


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_rerun_decides_the_same_during_a_canary_and_a_rollback(kind, strategy):
    cluster = ComparedCluster(kind, strategy)
    for request in (every_kind.update_request(kind, pause_at="1"),
                    every_kind.update_request(kind, pause_at="50%"),
                    every_kind.update_request(kind, image=None, state="rolled_back")):
        cluster.decisions = []
        assert cluster.run_and_compare(request) == []
        assert cluster.decisions


def resumption(kind, **params):
    """Return the request of a later task in a release: it may only resume the update."""
    return dataclasses.replace(every_kind.update_request(kind, **params), resumes_only=True)


class AdmittedCluster(every_kind.Cluster):
    """Cluster whose admission replaces the registry of the new image."""

    def write(self, write):
        is_written = super().write(write)
        self.cluster.items = {name: admitted(item) for name, item in self.cluster.items.items()}
        return is_written

    def dry_run(self, write):
        return admitted(super().dry_run(write))


def admitted(item):
    item = copy.deepcopy(item)
    for container in item["spec"]["template"]["spec"]["containers"]:
        if container["image"] == "myimage:v2":
            container["image"] = "mirror/myimage:v2"
    return item


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_resumed_update_changed_by_admission_ends(kind, strategy):
    cluster = AdmittedCluster(kind, strategy)
    cluster.run(every_kind.update_request(kind, pause_at="1", container="web"))
    for params in ({"pause_at": "50%"}, {}):
        cluster.run(resumption(kind, container="web", **params))
    rollout = cluster.info(resumption(kind, container="web"))
    assert rollout["phase"] == "complete"
    assert rollout["controller"]["images"] == {"web": "mirror/myimage:v2"}


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_task_that_may_only_resume_continues_the_update_at_any_moment(kind, strategy):
    cluster = ComparedCluster(kind, strategy)
    cluster.run(every_kind.update_request(kind, pause_at="1"))
    for request in (resumption(kind, pause_at="50%"), resumption(kind)):
        cluster.decisions = []
        assert cluster.run_and_compare(request) == []
        assert cluster.decisions
    assert cluster.info(resumption(kind))["controller"]["images"] == {"web": "myimage:v2"}
    assert not cluster.run(resumption(kind))["changed"]


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
@pytest.mark.parametrize("tasks", [
    [{"pause_at": "1"}, {"image": None, "state": "rolled_back"}],
    [{"pause_at": "1"}, {"image": None, "state": "rolled_back"}, {"image": "myimage:v3"}],
    [{}, {"image": "myimage:v1"}],
    [{}, {"image": None, "state": "rolled_back", "to_revision": "previous"}],
], ids=["rolled back", "rolled back and replaced", "complete and replaced",
        "complete and rolled back"])
def test_task_that_may_only_resume_does_not_begin_an_update_again(kind, strategy, tasks):
    cluster = every_kind.Cluster(kind, strategy)
    for params in tasks:
        cluster.run(every_kind.update_request(kind, **params))
    cluster.settle()
    items = copy.deepcopy(cluster.cluster.items)

    for params in ({"pause_at": "50%"}, {}):
        with pytest.raises(RolloutError, match="rolled back, or replaced by another update"):
            cluster.run(resumption(kind, **params))
    assert cluster.cluster.items == items


@pytest.mark.parametrize("kind, strategy", [
    (kind, strategy) for kind, strategy in KINDS_AND_STRATEGIES if Kind(kind).is_server_driven])
@pytest.mark.parametrize("image", ["myimage:v1", "myimage:v3"])
def test_template_changed_during_a_pause_may_be_rolled_back(kind, strategy, image):
    cluster = every_kind.Cluster(kind, strategy)
    spec = copy.deepcopy(cluster.cluster.items["foo"]["spec"])
    cluster.run(every_kind.update_request(kind, pause_at="1"))
    containers = [{**copy.deepcopy(spec["template"]["spec"]["containers"][0]), "image": image}]
    cluster.patch("foo", "/spec/template/spec/containers", containers)
    cluster.settle()

    with pytest.raises(RolloutError) as error:
        cluster.run(resumption(kind))
    rollback = every_kind.update_request(kind, image=None, state="rolled_back")
    assert rollback.command() in error.value.commands
    cluster.run(rollback)
    assert cluster.cluster.items["foo"]["spec"] == spec


def classes_of_caches():
    """Yield the classes of the caches of all flows."""
    for module in pkgutil.walk_packages(flows.__path__, f"{flows.__name__}."):
        for name, member in vars(importlib.import_module(module.name)).items():
            if name.endswith("Caches"):
                yield member


def test_documentation_lists_the_memory_of_a_run():
    classes = {Memory, *classes_of_caches()}
    clock_and_user_fields = {"now", "who", "monotonic_time", "server_time"}
    fields = {field.name for cache in classes
              for field in dataclasses.fields(cache)} - clock_and_user_fields - {"_caches"}
    page = (Path(__file__).parents[3] / "docs" / "internals" / "design.md").read_text("utf-8")
    section = page.partition("## What a run knows")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == fields
    assert len(classes) > 3

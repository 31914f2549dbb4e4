# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the results of tasks for the report. A result may be incomplete."""

from __future__ import annotations

import doctest

import pytest
from results import FAILURE, failed, paused, rollout, updated

from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import overview, rollouts
from ansible_collections.baton.kubernetes.plugins.plugin_utils.report.rollouts import Report


def single_rollout(*results, **more):
    (rollout,) = Report({"name": "shop", "results": list(results), **more}).rollouts
    return rollout


def test_tasks_of_one_controller_are_one_rollout():
    rollout = single_rollout(paused(), updated(begin=10))

    assert (rollout.name, rollout.outcome, rollout.successor_name) == ("shop", "updated", "shop-1")
    assert (rollout.floor, rollout.ceiling) == (4, 5)
    assert rollout.images == {"web": ("myimage:v1", "myimage:v2")}
    assert [(begin.second, end.second) for begin, end in rollout.pauses] == [(3, 10)]
    assert len(rollout.samples) == 9 and len(rollout.steps) == 5


def test_pods_after_the_handover_are_new():
    samples = single_rollout(updated()).samples

    assert [(sample.old_pods, sample.new_pods) for sample in samples] == [
        (4, 0), (4, 1), (0, 4), (0, 0), (0, 4)]
    assert [sample.is_taking_over for sample in samples] == [False, False, False, True, False]


def test_pods_of_an_update_are_old_in_the_next_update():
    samples = single_rollout(updated(), updated(begin=10)).samples

    assert [(sample.old_pods, sample.new_pods) for sample in samples[-4:]] == [
        (4, 1), (0, 4), (0, 0), (0, 4)]


@pytest.mark.parametrize("result, outcome", [
    (updated(), "updated"), (paused(), "paused"), (failed(), "failed"),
    (updated() | {"steps": []}, "unchanged"),
    ({}, "not known"), ({"failed": True}, "failed"),
    ({"skipped": True, "msg": "not started"}, "skipped"),
], ids=["updated", "paused", "failed", "unchanged", "empty", "failed without a message",
        "skipped"])
def test_outcome_of_a_task(result, outcome):
    assert single_rollout(result).outcome == outcome


def test_failure_before_the_rollback_is_reported():
    assert single_rollout(failed(), updated(begin=20)).failure == FAILURE


def test_rollouts_and_sections_of_a_fleet():
    results = [updated(f"app-{number}") for number in range(20)] + [failed("app-20")]
    fleet = Report({"name": "app", "results": [*results, updated("app-3", begin=30)]})

    assert fleet.is_fleet and len(fleet.rollouts) == 21
    assert len(fleet.rollouts[3].results) == 2
    assert [section.name for section in fleet.sections] == ["app-20"]


ROLLED_BACK = rollout("shop", "complete", {"outcome": "rolled_back"})
NOT_STARTED = {"name": "shop", "skipped": True, "msg": "not started"}
REFUSED = {"name": "shop", "failed": True, "msg": "another task holds the Lease",
           "failure": FAILURE}


@pytest.mark.parametrize("results, outcome", [
    ([paused(), NOT_STARTED], "paused"), ([updated(), NOT_STARTED], "updated"),
    ([NOT_STARTED, updated()], "updated"),
    ([failed(), updated() | {"rollout": ROLLED_BACK}], "rolled_back"),
    ([failed() | {"rollout": ROLLED_BACK}], "rolled_back"),
    ([failed(), updated() | {"rollout": ROLLED_BACK}, NOT_STARTED], "rolled_back"),
    ([paused(), REFUSED], "failed"),
    ([REFUSED | {"rollout": ROLLED_BACK}], "failed"),
], ids=["skipped in the next stage", "skipped after the end", "skipped before",
        "rolled back by the role", "rolled back by the module",
        "rolled back, then skipped", "refused in the next stage",
        "refused after a rollback"])
def test_outcome_is_the_last_state_of_the_controller(results, outcome):
    assert single_rollout(*results).outcome == outcome


def test_images_are_kept_after_a_failure_without_an_observation():
    images = single_rollout(REFUSED, paused(), REFUSED).images

    assert images == {"web": ("myimage:v1", "myimage:v2")}


@pytest.mark.parametrize("results, titles", [
    ([updated() | {"kind": "ReplicaSet"}, updated() | {"kind": "Deployment"},
      updated() | {"kind": "ReplicaSet"}],
     ["ReplicaSet shop", "Deployment shop"]),
    ([paused(), updated() | {"kind": "Deployment"}, failed("app") | {"kind": "Deployment"}],
     ["shop", "app"]),
], ids=["several kinds", "failure before the first observation"])
def test_rollouts_are_separated_by_kind_and_name(results, titles):
    assert [rollout.title for rollout in Report({"results": results}).rollouts] == titles


@pytest.mark.parametrize("stages, decisions", [
    ([{"stage": "10%", "outcome": "passed"}, {"stage": "100%", "outcome": "passed"}],
     ["continued with 100%", "rolled back"]),
    ([{"stage": "10%", "outcome": "failed"}, {"stage": "rollback", "outcome": "passed"}],
     ["rollback started", "rolled back"]),
], ids=["stages", "rollback"])
def test_rollback_is_not_a_stage(stages, decisions):
    assert [stage["decision"]
            for stage in Report({"stages": stages, "outcome": "rolled_back"}).stages] == decisions


@pytest.mark.parametrize("results, message, headline", [
    ([failed()], "it failed", "the new pods cannot become available"),
    ([failed(), updated() | {"msg": "shop is back"}], "Stage 10%: it failed\nshop is back.",
     "Stage 10%: the new pods cannot become available\nshop is back."),
    ([updated()], "shop is updated, but then no.yml has failed",
     "shop is updated, but then no.yml has failed"),
    ([failed() | {"msg": ""}], "it failed", "it failed"),
], ids=["failed", "rolled back", "failed after the update", "without a message"])
def test_headline_of_a_failure(results, message, headline):
    assert Report({"name": "shop", "message": message, "results": results}).headline == headline


def test_number_of_sections_is_limited():
    fleet = Report({"results": [failed(f"app-{number}") for number in range(20)]})

    assert len(fleet.rollouts) == 20 and len(fleet.sections) == rollouts.MAX_SECTIONS


def test_small_fleet_has_a_section_per_controller():
    assert len(Report({"results": [updated("a"), updated("b")]}).sections) == 2


@pytest.mark.parametrize("step, description", [
    ({"action": "scale", "from": 2, "to": 0}, "2 → 0 replicas"),
    ({"action": "create", "from": None, "to": {"web": "v2", "init": "v2"}}, "v2"),
    ({"action": "rename", "from": {"web": "v1"}, "to": {"web": "v2"}}, "v1 → v2"),
    ({"action": "hand over", "from": 3, "to": "foo"}, "3 pods → foo"),
    ({"action": "delete", "from": 0, "to": None}, "no pods remained"),
    ({"action": "annotate", "from": 0, "to": "updating, 0 desired"}, "updating, 0 desired"),
    ({}, ""),
], ids=["scale", "create", "rename", "hand over", "delete", "annotate", "empty"])
def test_description_of_a_step(step, description):
    assert rollouts.describe_change(step) == description


@pytest.mark.parametrize("text", [None, "", "soon", 3, {}], ids=repr)
def test_invalid_timestamp_is_none(text):
    assert rollouts.parse_time(text) is None


def test_examples_in_docstrings():
    assert doctest.testmod(overview).failed == 0
    results = doctest.testmod(rollouts)

    assert results.attempted > 0 and results.failed == 0

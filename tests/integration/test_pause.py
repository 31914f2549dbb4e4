# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates that pause at a number of new pods, and are resumed or rolled back."""

from __future__ import annotations

import pytest
from objects import pod_counts
from writes import Killed, kill_at_write

REPLICAS = 5
#: More writes than any stage has.
MAX_WRITES = 100


def update_up_to(namespace, pause_at):
    return namespace.roll(image="myimage:v2", pause_at=pause_at, max_surge="2")


def test_update_pauses_at_20_and_60_percent_and_completes(namespace):
    namespace.make_rc(REPLICAS)
    with namespace.observer() as observer:
        results = [update_up_to(namespace, "20%")]
        assert pod_counts(namespace) == (4, 1)
        results.append(update_up_to(namespace, "60%"))
        assert pod_counts(namespace) == (2, 3)
        rerun = update_up_to(namespace, "60%")
        results.append(namespace.roll(image="myimage:v2"))

    (successor,) = set(observer.controllers_deleted)
    assert [result["rollout"]["phase"] for result in results] == ["paused", "paused", "complete"]
    assert (results[0]["msg"]
            == f"foo is paused at 1 of 5 replicas of myimage:v2 ({successor}), alongside 4 of "
               f"myimage:v1")
    assert (not rerun["changed"] and not rerun["requests"]["PATCH"]
            and "already paused" in rerun["msg"])
    assert pod_counts(namespace) == (0, 5) and len(observer.new_pods) == REPLICAS
    assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("pause_at", ["20%", "60%", "100%"])
def test_rollback_from_a_pause(namespace, pause_at):
    primary = namespace.make_rc(REPLICAS)
    update_up_to(namespace, pause_at)

    result = namespace.roll(state="rolled_back", max_surge="2")

    assert result["changed"] and pod_counts(namespace) == (5, 0) and namespace.rc_names() == ["foo"]
    assert namespace.rc()["spec"] == primary["spec"]


@pytest.mark.long
@pytest.mark.parametrize("stage", [{"pause_at": "2"}, {"pause_at": "100%"}, {}],
                         ids=["second stage", "third stage", "last stage"])
def test_later_stage_resumes_after_a_kill_at_any_write(namespace, stage):
    namespace.make_rc(3)
    for number in range(1, MAX_WRITES):
        namespace.roll(image="myimage:v2", pause_at="1")
        try:
            namespace.roll(
                image="myimage:v2", fault=kill_at_write(number, after=number % 2 == 0), **stage
            )
            break
        except Killed:
            pass
        with namespace.observer() as observer:
            result = namespace.roll(image="myimage:v2", **stage)
            assert result["rollout"]["phase"] == ("paused" if stage else "complete")
            namespace.roll(**{"state": "rolled_back"} if stage else {"image": "myimage:v1"})
        assert (pod_counts(namespace) == (3, 0) and namespace.rc_names() == ["foo"]
                and observer.min_ready >= 3)
    assert 3 < number < MAX_WRITES


def test_check_mode_plans_up_to_the_pause(namespace):
    namespace.make_rc(REPLICAS)

    plan = namespace.check(image="myimage:v2", pause_at="40%")
    result = namespace.roll(image="myimage:v2", pause_at="40%")

    assert ([(step["action"], step["to"]) for step in plan["steps"]]
            == [(step["action"], step["to"]) for step in result["steps"]])
    assert plan["rollout"]["phase"] == "paused" == result["rollout"]["phase"]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare rolling_update, its check mode and rolling_update_info."""

from __future__ import annotations

import pytest
from every_kind import KINDS, SIZE, Cluster, update_request

#: The strategy "" is the default updateStrategy.
KINDS_AND_STRATEGIES = [
    (kind, "") for kind in KINDS] + [("StatefulSet", "OnDelete"), ("DaemonSet", "OnDelete")]
PAUSES = {"1": 1, "50%": 2, "100%": 4}


def actions(result):
    return [step["action"] for step in result["steps"]]


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_results_agree_at_a_pause(kind, strategy, pause):
    request, cluster = update_request(kind, pause_at=pause), Cluster(kind, strategy)
    preview = cluster.check_mode(request)
    result = cluster.run(request)
    cluster.settle()
    rerun, rerun_preview = cluster.run(request), cluster.check_mode(request)
    info = cluster.info(request)

    assert result["msg"].startswith(
        f"foo is paused at {PAUSES[pause]} of {SIZE} replicas of myimage:v2 (")
    assert preview["msg"].startswith(
        f"foo would be paused at {PAUSES[pause]} of {SIZE} replicas of myimage:v2 (")
    assert actions(preview)[0] == actions(result)[0] and actions(preview)[-1] == actions(result)[-1]
    for task_result in (rerun, rerun_preview):
        assert not task_result["changed"] and "foo is already paused" in task_result["msg"]
    phases = ({task_result["rollout"]["phase"]
               for task_result in (preview, result, rerun, rerun_preview)}
              | {info["phase"]})
    assert phases == {"paused"} and info["direction"] == "forward"
    assert ("state=rolled_back" in info["rollback_command"]
            and "with a higher pause_at" in info["resume_command"])
    for task_result in (rerun, rerun_preview):
        assert ("image=myimage:v2" in task_result["resume_command"]
                and "pause_at" not in task_result["resume_command"])
        assert task_result["rollback_command"] == info["rollback_command"]
    assert cluster.is_frozen is (kind != "DaemonSet")  # no autoscaler changes a DaemonSet


@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_check_mode_accepts_a_resource_version_that_is_no_number(kind, strategy):
    """Before Kubernetes 1.35, the API guarantees only that the versions of two states differ."""
    request, cluster = update_request(kind), Cluster(kind, strategy)
    cluster.cluster.items["foo"]["metadata"]["resourceVersion"] = "7f-\u00b2"

    assert cluster.check_mode(request)["msg"].startswith("foo would be updated to myimage:v2")


@pytest.mark.parametrize("outcome", ["updated", "rolled_back"])
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("kind, strategy", KINDS_AND_STRATEGIES)
def test_results_agree_at_the_end_of_a_paused_update(kind, strategy, pause, outcome):
    cluster = Cluster(kind, strategy)
    cluster.run(update_request(kind, pause_at=pause))
    cluster.settle()
    params = {"image": None, "state": "rolled_back"} if outcome == "rolled_back" else {}
    request = update_request(kind, **params)
    preview, result = cluster.check_mode(request), cluster.run(request)
    cluster.settle()
    rerun, info = cluster.run(request), cluster.info(request)

    words = {"updated": "updated to myimage:v2",
             "rolled_back": "rolled back to myimage:v1"}[outcome]
    assert preview["msg"] == f"foo would be {words}: {SIZE} of {SIZE} replicas available"
    assert result["msg"] == f"foo is {words}: {SIZE} of {SIZE} replicas available"
    assert not rerun["changed"]
    phases = ({task_result["rollout"]["phase"] for task_result in (preview, result, rerun)}
              | {info["phase"]})
    assert phases == {"complete"} and info["last_rollout"]["outcome"] == outcome
    assert (info["resume_command"], info["rollback_command"]) == (None, None)
    assert not cluster.is_frozen

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play the same random histories on the simulated cluster in each run."""

from __future__ import annotations

import hypothesis
import pytest
from history import (
    BROKEN,
    KINDS,
    SERVER_DRIVEN,
    STATE_HEADING,
    History,
    TaskRun,
    add_state,
    steps,
)
from simulated import SimulatedWorld

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta


class SimulatedHistory(History):
    def __init__(self):
        super().__init__()
        self.world = SimulatedWorld()


HALF = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}}
PARTITIONED = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
ONE = {"maxSurge": 0, "maxUnavailable": 1}
SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


@pytest.mark.parametrize("task, death, next_task", [
    ({"image": "myimage:v2", "max_surge": 1}, (1, True), {"image": "myimage:v2", "max_surge": 1}),
    ({"image": "myimage:v2", "max_surge": 1}, (1, True), {"state": "rolled_back"}),
    ({"image": "myimage:v2", "max_unavailable": 1}, (1, True), {"state": "rolled_back"}),
    ({"image": BROKEN, "max_unavailable": 1}, None, {"state": "rolled_back"})],
    ids=["a killed surge", "a killed surge, rolled back", "killed, rolled back",
         "refused, rolled back"])
def test_task_after_an_interrupted_one_warns_of_max_unavailable(task, death, next_task):
    history = SimulatedHistory()
    history.start("DaemonSet", 3, {"updateStrategy": HALF})
    assert history._run(task, death).outcome == ("killed" if death else "refused")

    run = history._run(next_task, None)

    assert any("maxUnavailable of the DaemonSet foo stays at 1" in warning
               for warning in run.result["warnings"])
    spec = history.world.get("DaemonSet", "foo")["spec"]
    assert spec["updateStrategy"]["rollingUpdate"] == ONE
    history.teardown()


@pytest.mark.parametrize("kind", SERVER_DRIVEN)
@pytest.mark.parametrize("options", [{}, {"pause_at": 1}], ids=str)
@pytest.mark.parametrize("death", [None, (1, True), (2, True)])
def test_rollback_restores_min_ready_seconds(kind, options, death):
    """A later update with the same option sets the value for good."""
    history = SimulatedHistory()
    history.start(kind, 3)
    task = {"image": "myimage:v2", "min_ready_seconds": 30, **options}
    history._run_with_suggestions(task, death)
    history._run({"state": "rolled_back"}, None)
    expected = 0 if death == (1, True) or options else 30
    assert history._current_ready_seconds() == expected

    history._run({**task, "image": "myimage:v3"}, None)
    history._run({"image": "myimage:v3"}, None)

    assert history._current_ready_seconds() == 30
    history.teardown()


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_rollback_after_a_failure_restores_min_ready_seconds(kind):
    history = SimulatedHistory()
    history.start(kind, 3)

    run = history._run({"image": BROKEN, "min_ready_seconds": 5, "on_failure": "rollback"}, None)

    assert "is rolled back to" in run.message and history._current_ready_seconds() == 0
    history.teardown()


def test_paused_deployment_is_reported_while_the_task_waits():
    """The pause of another client arrives between two observations."""
    history = SimulatedHistory()
    history.start("Deployment", 3)
    cluster = history.world.gateway
    cluster.on_wait = lambda: history.world.set_user_fields("Deployment", "foo", {"paused": True})

    run = history._run({"image": "myimage:v2", "on_failure": "rollback"}, None, hurry=True)

    assert "it is paused, and not by this collection" in run.message
    assert cluster.clock.now < 1010
    cluster.on_wait = cluster.settle
    history._execute_suggestions({"image": "myimage:v2"}, run, 0)
    history.teardown()


def history_with_outdated_replica_set():
    """Return a history after an update to v2, and the name of the outdated ReplicaSet."""
    history = SimulatedHistory()
    history.start("Deployment", 3)
    history._run({"image": "myimage:v2"}, None)
    (name,) = (name for name, item in history.world.gateway.cluster.sets.items.items()
               if item["spec"]["replicas"])
    history.world.annotate("ReplicaSet", name, {object_meta.SERVER_DESIRED: "5"})
    return history, name


def test_suggested_command_corrects_an_outdated_replica_set():
    """Check mode also refuses the task."""
    history, replica_set = history_with_outdated_replica_set()
    task = {"image": "myimage:v3", "failure_grace": 1}

    blocked_run = history._run(task, None)
    run = history._run_with_required_actions(task)

    assert blocked_run.outcome == "refused" and replica_set in blocked_run.message
    assert (run.outcome, run.result["rollout"]["phase"]) == ("done", "complete")
    history.teardown()


@pytest.mark.parametrize("image, is_rolled_back", [("myimage:v3", False), ("myimage:v1", True)])
def test_update_with_an_outdated_replica_set_is_rolled_back_if_possible(image, is_rolled_back):
    """Only v1 has a ReplicaSet, for which a rollback waits."""
    history, _replica_set = history_with_outdated_replica_set()

    run = history._run({"image": image, "on_failure": "rollback", "failure_grace": 1}, None)

    assert ("foo is rolled back to myimage:v2" in run.message) is is_rolled_back
    assert "could not be rolled back" not in run.message
    history.teardown()


@pytest.mark.parametrize("on_failure", ["stop", "rollback"])
def test_update_whose_replica_set_is_refused_is_rolled_back(on_failure):
    """The error names the cause, and suggests a rollback that works."""
    history = SimulatedHistory()
    history.start("Deployment", 3)
    history.world.gateway.cluster.creation_failure = (
        'admission webhook "sets.example.com" denied the request: no more ReplicaSets')
    task = {"image": "myimage:v2", "failure_grace": 1}

    run = history._run({**task, "on_failure": on_failure}, None, hurry=True)

    assert 'ReplicaSetCreateError: admission webhook "sets.example.com"' in run.message
    if on_failure == "rollback":
        assert "foo is rolled back to myimage:v1" in run.message
    else:
        assert "state=rolled_back" in run.message
        assert history._run({"state": "rolled_back"}, None).outcome == "done"
    history.world.gateway.cluster.creation_failure = ""
    history.teardown()


@pytest.mark.parametrize("rollback", [{"state": "rolled_back"},
                                      {"state": "rolled_back", "to_revision": 1}], ids=str)
@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_rollback_in_place_may_replace_a_pod_despite_the_budget(kind, rollback):
    history = SimulatedHistory()
    history.start(kind, 3)
    assert history._run({"image": "myimage:v2"}, (1, True)).outcome == "killed"
    history.limit_disruptions({"maxUnavailable": 0})

    assert history._run(rollback, None).outcome == "done"

    assert history.world.gateway.min_ready == 2
    assert history._unavailable_limit_with_budget({"image": "myimage:v3"}, 3) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_failure_contains_the_state_of_the_cluster(kind, monkeypatch):
    history = SimulatedHistory()
    history.start(kind, 3)
    monkeypatch.setattr(history.world, "check", lambda params: 1 / 0)

    with pytest.raises(ZeroDivisionError) as failure:
        history._run_with_suggestions({"image": "myimage:v2"}, None)

    (text,) = failure.value.__notes__
    heading, *lines = text.splitlines()
    assert heading == STATE_HEADING
    assert [line for line in lines if line.startswith(f"  {kind} foo: ")]
    assert sum("ready=True" in line for line in lines) == 3


def test_state_in_a_failure_is_bounded_and_added_once(monkeypatch):
    history = SimulatedHistory()
    monkeypatch.setattr(history.world, "describe", lambda: ["x" * 5000] * 100)
    error = AssertionError()

    add_state(error, history.world)
    add_state(error, history.world)

    (text,) = error.__notes__
    assert text.endswith("x\n  40 more lines") and len(text) < 125_000


def test_failure_to_read_the_state_is_reported(monkeypatch):
    history = SimulatedHistory()
    monkeypatch.setattr(history.world, "describe", lambda: 1 / 0)

    add_state(error := AssertionError(), history.world)

    assert "the state cannot be read: ZeroDivisionError" in error.__notes__[0]


def test_refused_task_does_not_end_a_pending_migration():
    """The phase of a refused task of rolling_update ignores the stored ReplicationController."""
    history = SimulatedHistory()
    history.start("ReplicationController", 3)
    migration = {"module": "migrate_to_deployment", "state": "migrated"}
    refused = TaskRun("refused", {"changed": False, "rollout": {"phase": "complete"}})
    history._record_result(migration, TaskRun("killed"))

    history._record_result({"state": "rolled_back"}, refused)

    assert history.is_migrating and history.pending_task == migration


def test_closed_controller_is_not_reported_as_complete():
    history = SimulatedHistory()
    history.start("ReplicationController", 3)
    history.world.get("ReplicationController", "foo")["spec"]["template"]["spec"][
        "priorityClassName"] = "closed"
    refused = TaskRun("refused", {"changed": False, "rollout": {"phase": "complete"}})

    with pytest.raises(AssertionError, match="a controller with a closed template is complete"):
        history._record_result({"image": "myimage:v2"}, refused)


def test_check_mode_need_not_plan_the_annotation_of_a_stalled_surge():
    last_step = {"action": "annotate", "kind": "DaemonSet", "name": "foo", "from": "updating"}
    woken = {**last_step, "from": "stalled at 1 of 2 new pods"}

    assert steps({"steps": [woken, last_step]}) == steps({"steps": [last_step]})


def test_rollback_with_a_surge_keeps_all_pods_ready():
    history = SimulatedHistory()
    history.start("DaemonSet", 3, {"updateStrategy": SURGE})
    history.limit_disruptions({"maxUnavailable": 0})

    assert history._unavailable_limit_with_budget({"state": "rolled_back"}, 3) == 0


ANOTHER_NAME = {"image": "myimage:v3", "next_name": "three"}


def history_with_an_unknown_successor(kind):
    """Return a history in which another client has removed the annotations of foo in an update."""
    history = SimulatedHistory()
    history.start(kind, 3)
    assert history._run(ANOTHER_NAME, (7, True)).outcome == "killed"
    history.unmark()
    history.scale(3)
    return history


@pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("death", [(7, False), (7, True), None])
def test_pods_of_an_unknown_successor_remain_during_another_update(kind, death):
    history = history_with_an_unknown_successor(kind)
    history._run({"image": "myimage:v4"}, death)
    history.teardown()
    assert "three" in {owner for owner, _image, _is_ready in history.world.pods()}


@pytest.mark.parametrize("options, expected_count", [
    ({"image": "myimage:v4"}, 2), ({"image": "myimage:v4", "next_name": "two"}, 2),
    (ANOTHER_NAME, 0), ({"state": "rolled_back", "next_name": "three"}, 0)],
    ids=["without a name", "another name", "the same task", "a rollback"])
def test_only_pods_of_unknown_controllers_are_permitted_in_addition(options, expected_count):
    history = history_with_an_unknown_successor("ReplicationController")
    pods = history.world.pods()
    assert [owner for owner, _image, _is_ready in pods].count("three") == 2
    assert history._other_pod_count(options, pods) == expected_count


def test_no_additional_pods_are_permitted_while_an_annotation_names_the_successor():
    history = SimulatedHistory()
    history.start("ReplicationController", 3)
    history._run(ANOTHER_NAME, (7, True))
    assert history._other_pod_count({"image": "myimage:v4"}, history.world.pods()) == 0


@pytest.mark.parametrize("paste", [1, -1])
@pytest.mark.parametrize("fields", [{"revisionHistoryLimit": 0}, {"updateStrategy": PARTITIONED}],
                         ids=["lost", "ambiguous"])
def test_suggested_revisions_are_accepted_after_an_edit(fields, paste):
    history = SimulatedHistory()
    history.start("StatefulSet", 3, fields, alternative_index=paste)
    history._run({"image": "myimage:v2", "pause_at": "100%"}, None)
    history.edit("a")
    history.update("myimage:v3", {}, {}, None, False)
    assert not history.pending_task
    history.teardown()


@pytest.mark.parametrize("fields", [{"revisionHistoryLimit": 0}, {"updateStrategy": PARTITIONED}],
                         ids=["lost", "ambiguous"])
def test_template_before_an_edited_update_is_not_required(fields):
    history = SimulatedHistory()
    history.start("StatefulSet", 3, fields)
    history._run({"image": "myimage:v2", "pause_at": "100%"}, None)
    history.edit("a")
    history.teardown()


SETTINGS = hypothesis.settings(stateful_step_count=5, derandomize=True, database=None,
                               suppress_health_check=list(hypothesis.HealthCheck))


class TestHistories(SimulatedHistory.TestCase):
    settings = hypothesis.settings(SETTINGS, max_examples=40)


@pytest.mark.full
class TestMoreHistories(SimulatedHistory.TestCase):
    settings = hypothesis.settings(SETTINGS, max_examples=120)

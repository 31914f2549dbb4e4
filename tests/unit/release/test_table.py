# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a release through each row of the tables of docs/concepts/release.md."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from releases import Cluster, Controller, Run, variables

from ansible_collections.baton.kubernetes.plugins.module_utils.release.table import TABLES

ROOT = Path(__file__).parents[3]


def fail(_cluster):
    """Return why the file fails."""
    return "the shop is closed"


def run_image_bump(files=None, answer=bool, controllers=None, **changes):
    """Run the role image_bump. Return (titles of its turns, run, cluster)."""
    cluster = Cluster(**controllers or {"a": Controller()})
    run = Run(variables(**changes), cluster, files, answer).run()
    return run.turn_titles, run, cluster


def run_rollback(files=None, controllers=None, options=None, **changes):
    """Run the role rollback. Return (titles of its turns, run, cluster)."""
    all_options = {"on_failure": None, "image": None, **(options or {})}
    cluster = Cluster(**controllers or {"a": Controller(new_image="myimage:v2", new_percent=10)})
    run = Run(variables(role="rollback", options=all_options, **changes), cluster, files).run()
    return run.turn_titles, run, cluster


def test_stages_with_checks():
    turns, run, cluster = run_image_bump(stages=["10%", "100%"], verify=["smoke.yml"],
                                         analyses=[{"count": 1}],
                                         before=["b.yml"], after=["e.yml"], report="r.html",
                                         has_artifacts=True)

    stage_turns = ["Analyze the pods of a", "List the pods of a", "Run smoke.yml"]
    assert turns == ["Run b.yml", "Update a to 10%", *stage_turns, "Update a to 100%", *stage_turns,
                     "Update a", "Run e.yml",
                     "Write the report", "Pass the outcome to the workflow"]
    assert run.ending.outcome == "updated" and cluster.controllers["a"].image == "myimage:v2"
    stages = run.facts["report_data"]["stages"]
    assert [(stage["stage"], stage["outcome"], [check["file"] for check in stage["checks"]])
            for stage in stages] == [
        (stage, "passed", ["rollout_analysis", "smoke.yml"]) for stage in ("10%", "100%")]


@pytest.mark.parametrize("changes, info_call_count", [
    ({}, 0), ({"analyses": [{"count": 1}]}, 2), ({"stages": ["10%/1%", "100%"]}, 1)],
    ids=["the update lists the pods", "analyses take minutes", "the share is set in between"])
def test_pods_are_listed_by_the_update_unless_another_turn_precedes_the_checks(
        changes, info_call_count):
    class CountingCluster(Cluster):
        info_call_count = 0

        def info(self, options):
            self.info_call_count += 1
            return super().info(options)

    cluster, pods = CountingCluster(a=Controller()), []
    run = Run(variables(**{"stages": ["10%", "100%"], "verify": ["smoke.yml"], "traffic": TRAFFIC,
                           **changes}), cluster)
    run.files = {"smoke.yml": lambda _cluster: pods.append(run.facts["pods"])}
    run.run()

    assert pods == [[{"name": "a-x", "is_new": True}]] * 2
    assert run.turn_titles.count("List the pods of a") == 2
    assert cluster.info_call_count == info_call_count
    assert not any("rollouts" in event.result for event in run.history.updates)


def test_pods_that_the_update_has_not_listed_are_listed_before_the_check():
    class UnlistedCluster(Cluster):
        """Model of an update that could not list the pods at its end."""

        def update(self, options):
            return super().update({option: value for option, value in options.items()
                                   if option != "_return_pods"})

    pods = []
    run = Run(variables(stages=["10%", "100%"], verify=["smoke.yml"]),
              UnlistedCluster(a=Controller()))
    run.files = {"smoke.yml": lambda _cluster: pods.append(run.facts["pods"])}
    run.run()

    stage_turns = ["List the pods of a", "Run smoke.yml"]
    assert run.turn_titles == ["Update a to 10%", *stage_turns, "Update a to 100%", *stage_turns,
                               "Update a"]
    assert pods == [[{"name": "a-x", "is_new": True}]] * 2


def test_release_without_checks_or_stages_is_one_task():
    turns, run, _cluster = run_image_bump()

    assert (turns == ["Update a"]
            and [stage["stage"] for stage in run.facts["history"]["stages"]] == ["100%"])


@pytest.mark.parametrize("last_stage", ["100%", "0100%", " 100% "])
@pytest.mark.parametrize("verify", [[], ["smoke.yml"]], ids=["no check", "check"])
def test_last_stage_of_100_percent_completes_the_update(last_stage, verify):
    _turns, run, cluster = run_image_bump(stages=["10%", last_stage], verify=verify)

    assert run.ending.outcome == "updated" and cluster.controllers["a"].image == "myimage:v2"


@pytest.mark.parametrize("on_failure, outcome, image",
                         [("rollback", "rolled_back", ""), ("stop", "stopped", "myimage:v2")])
def test_failed_check_at_the_second_stage(on_failure, outcome, image):
    def fail_at_the_second_stage(cluster):
        return "503" if cluster.controllers["a"].new_percent == 50 else ""

    turns, run, cluster = run_image_bump({"smoke.yml": fail_at_the_second_stage},
                                         stages=["10%", "50%", "100%"],
                                         verify=["smoke.yml"],
                                         failure=["notify.yml", "more.yml"],
                                         options={"on_failure": on_failure})

    assert "Update a to 100%" not in turns and turns[-2:] == ["Run notify.yml", "Run more.yml"]
    assert (("Roll back a" in turns) is (on_failure == "rollback")
            and cluster.controllers["a"].new_image == image)
    assert (run.ending.outcome == outcome
            and run.ending.message.startswith(
                "The check smoke.yml has failed at stage 50% of a: "))


def test_rollback_omits_soak_nodes_and_timeout():
    limits = {"soak": "1m", "nodes": "a=b", "timeout": "90"}
    calls = []

    class RecordingCluster(Cluster):
        def update(self, options):
            calls.append(options)
            return super().update(options)

    cluster = RecordingCluster(a=Controller(), b=Controller())
    Run(variables(selection={"names": ["a", "b"]}, stages=["10%", "100%"], verify=["smoke.yml"],
                  options={"kind": "DaemonSet", **limits}), cluster,
        {"smoke.yml": fail}).run()

    update_options, rollback_options = calls
    assert limits.items() <= update_options.items() and not limits.keys() & rollback_options.keys()
    assert (rollback_options["state"], rollback_options["max_failures"],
            rollback_options["names"]) == (
        "rolled_back", "100%", ["a", "b"])


def test_failure_hook_stops_at_the_first_failure():
    turns, run, _cluster = run_image_bump({"b.yml": fail, "no.yml": fail}, before=["b.yml"],
                                          failure=["no.yml", "more.yml"])

    assert turns == ["Run b.yml", "Run no.yml"] and run.ending.outcome == "failed"
    assert run.ending.error.endswith("\nThen no.yml has failed too: the shop is closed")


def test_failed_report_does_not_change_the_outcome():
    cluster = Cluster(a=Controller())
    run = Run(variables(report="r.html"), cluster)
    original_run_action = run._run_action
    run._run_action = lambda turn: (({}, "no such folder") if turn.do == "report"
                                    else original_run_action(turn))
    run.run()

    assert (run.turn_titles[-2:] == ["Write the report", "Warn about the missing report"]
            and run.ending.outcome == "updated")


@pytest.mark.parametrize("has_page, is_changed, is_written",
                         [(False, False, True), (True, False, False), (True, True, True)])
def test_report_is_not_overwritten_without_a_change(has_page, is_changed, is_written):
    image = "myimage:v1" if is_changed else "myimage:v2"
    turns, *_more = run_image_bump(controllers={"a": Controller(image)}, report="r.html",
                                   has_page=has_page)

    assert ("Write the report" in turns) is is_written


def set_fields(cluster, **fields):
    """Change the controller a as another client would."""
    for name, value in fields.items():
        setattr(cluster.controllers["a"], name, value)


@pytest.mark.parametrize("answer, on_failure, outcome", [
    (lambda cluster: set_fields(cluster, image="myimage:v2", new_image=""), "rollback", "updated"),
    (lambda cluster: set_fields(cluster, new_image="", was_rolled_back=True), "rollback",
     "rolled_back"),
    (lambda cluster: set_fields(cluster, new_image="myimage:v3"), "rollback", "failed"),
    (bool, "rollback", "rolled_back"),
    (bool, "stop", "stopped"),
], ids=["approved", "denied", "another update", "after the deadline", "after the deadline, stop"])
def test_approval(answer, on_failure, outcome):
    turns, run, _cluster = run_image_bump(answer=answer, stages=["10%"], approve_within="0s",
                                          options={"on_failure": on_failure})

    assert (turns[:3] == ["Update a to 10%", "Show how to approve", "Wait for approval"]
            and run.ending.outcome == outcome)
    assert ("Update a" in turns) is (outcome == "updated")


@pytest.mark.parametrize("selection, selected", [
    ("names", f"rollback_names={','.join(f'app-{number:02}' for number in range(40))}"),
    ("label_selectors", "rollback_label_selectors=app=shop")])
def test_titles_and_lines_for_many_controllers_are_limited(selection, selected):
    class ManyCluster(LabelledCluster):
        """Model of the module, whose results have the commands of a pause."""

        def update(self, options):
            result = super().update(options)
            for item in result["results"]:
                item |= {"resume_command": "resume all", "rollback_command": f"undo {item['name']}"}
            return result

    names = [f"app-{number:02}" for number in range(40)]
    selections = {"names": names, "label_selectors": ["app=shop"]}
    cluster = ManyCluster(**{name: Controller() for name in names})
    run = Run(variables(selection={selection: selections[selection]}, stages=["10%"],
                        approve_within="0s"), cluster).run()

    (ask,) = run.history.with_purpose("ask")
    assert ask.turn.lines[1:] == ["To resume: resume all", "To roll back: run the role "
                                  f"baton.kubernetes.rollback with {selected} "
                                  "rollback_namespace=shop"]
    for line in (ask.turn.lines[0], *run.turn_titles, *run.ending.error.splitlines()):
        assert sum(name in line for name in names) <= 5, line


def test_update_resumed_at_the_deadline():
    """The rollback is rejected, because another client holds the Lease."""
    class ResumedCluster(Cluster):
        def update(self, options):
            result = super().update(options)
            if options.get("state") == "rolled_back":
                set_fields(self, is_locked=False, image="myimage:v2", new_image="")
            return result

    cluster = ResumedCluster(a=Controller())
    run = Run(variables(stages=["10%"], approve_within="0s"), cluster,
              answer=lambda cluster_: set_fields(cluster_, is_locked=True)).run()

    assert (run.turn_titles[-2:]
            == ["Roll back a", "Check whether another client has resumed the update"]
            and run.ending.outcome == "stopped")
    assert "Another client has resumed the update at the last moment" in run.ending.error


def undo(cluster):
    """Roll back the controller a, as an alert or a person does."""
    if not cluster.controllers["a"].was_rolled_back:
        cluster.update({"name": "a", "state": "rolled_back"})


@pytest.mark.parametrize("stages, on_failure", [
    (["10%", "50%", "100%"], "rollback"), (["10%", "50%", "100%"], "stop"), (["100%"], "rollback"),
], ids=["at a stage", "at a stage, stop", "before the end"])
def test_update_that_another_client_has_rolled_back_during_a_check_does_not_begin_again(
        stages, on_failure):
    turns, run, cluster = run_image_bump({"smoke.yml": undo}, stages=stages, verify=["smoke.yml"],
                                         options={"on_failure": on_failure})

    updates = [f"Update a to {stages[0]}", "Update a" if len(stages) == 1 else "Update a to 50%"]
    assert turns == [updates[0], "List the pods of a", "Run smoke.yml", updates[1]]
    assert "its update was rolled back, or replaced by another update" in run.ending.error
    assert run.ending.outcome == "rolled_back" and cluster.controllers["a"].image == "myimage:v1"
    turns, run, cluster = run_image_bump(controllers=cluster.controllers, stages=stages)
    assert run.ending.outcome == "updated", "a new run may begin the update again"


def test_other_controllers_go_back_if_another_client_has_rolled_back_one():
    _turns, run, cluster = run_image_bump(
        {"smoke.yml": undo}, controllers={name: Controller() for name in "abc"},
        selection={"names": list("abc")}, stages=["10%", "100%"], verify=["smoke.yml"])

    assert run.turn_titles[-1].startswith("Roll back") and run.ending.outcome == "rolled_back"
    assert {(controller.image, controller.new_image)
            for controller in cluster.controllers.values()} == {("myimage:v1", "")}


def undo_and_replace(cluster):
    """Roll back the controller a, and set another image with kubectl, as a person does."""
    undo(cluster)
    cluster.controllers["a"].image = "myimage:v3"


@pytest.mark.parametrize("on_failure", ["rollback", "stop"])
def test_outcome_is_failed_if_another_client_has_replaced_the_update(on_failure):
    for selection, names in (({"name": "a"}, "a"), ({"names": ["a", "b"]}, "ab")):
        _turns, run, cluster = run_image_bump(
            {"smoke.yml": undo_and_replace}, selection=selection, stages=["10%", "100%"],
            controllers={name: Controller() for name in names},
            verify=["smoke.yml"], options={"on_failure": on_failure})

        is_stopped = on_failure == "stop" and len(names) > 1 and cluster.controllers["b"].new_image
        assert run.ending.outcome == ("stopped" if is_stopped else "failed")
        assert cluster.controllers["a"].image == "myimage:v3"
        if len(names) > 1 and on_failure == "rollback":
            assert "a is not rolled back: " in run.ending.error


def test_requests_held_before_an_update_that_another_client_has_rolled_back_follow_the_pods():
    turns, run, cluster = run_image_bump({"smoke.yml": undo}, stages=["10%", "20%/1%", "100%"],
                                         verify=["smoke.yml"], traffic=TRAFFIC)

    assert turns[-3:] == ["Hold the requests for a before the update to 20%", "Update a to 20%",
                          "Restore the route of a"]
    assert run.ending.outcome == "rolled_back" and cluster.controllers["a"].share == ""


@pytest.mark.parametrize("layer", ["role", "playbook", "awx"])
@pytest.mark.parametrize("fields, is_in_progress", [
    ({"is_locked": True}, True), ({"is_locked": True, "new_image": "myimage:v3"}, False),
], ids=["another task holds the Lease", "another update"])
def test_stage_that_is_refused_leaves_the_update_of_the_earlier_stage_in_progress(
        layer, fields, is_in_progress):
    _turns, run, _cluster = run_image_bump(
        {"smoke.yml": functools.partial(set_fields, **fields)}, stages=["10%", "100%"],
        verify=["smoke.yml"], options={"on_failure": "stop"}, layer=layer)

    assert run.ending.outcome == ("stopped" if is_in_progress else "failed")
    assert ("The update is still in progress." in run.ending.error) is is_in_progress


def test_controllers_that_a_failed_stage_has_not_reached_are_still_in_progress():
    _turns, run, cluster = run_image_bump(
        {"smoke.yml": lambda cluster: set_fields(cluster, is_deleted=True)},
        controllers={"a": Controller(), "b": Controller()}, selection={"names": ["a", "b"]},
        stages=["10%", "100%"], verify=["smoke.yml"], options={"on_failure": "stop"})

    assert cluster.controllers["b"].new_image and run.ending.outcome == "stopped"
    assert "The update is still in progress." in run.ending.error


def test_refused_stage_of_an_update_that_an_earlier_run_began_is_a_failure():
    controllers = {"a": Controller(is_locked=True, new_image="myimage:v2", new_percent=10)}
    _turns, run, _cluster = run_image_bump(controllers=controllers, stages=["10%", "100%"],
                                           options={"on_failure": "stop"})

    assert run.ending.outcome == "failed"


@pytest.mark.parametrize("last_stage, approval_lines",
                         [("50%", ["Wait for approval"]), ("100%", [])])
def test_check_mode_shows_the_stages_and_plans_the_update(last_stage, approval_lines):
    turns, run, _cluster = run_image_bump(check_mode=True, stages=["10%", last_stage],
                                          verify=["smoke.yml"],
                                          approve_within="1h" if approval_lines else "",
                                          report="r")

    assert turns == ["Show the stages", "Update a"]
    assert run.history.events[0].turn.lines == ["Update a to 10%, then smoke.yml",
                                                f"Update a to {last_stage}, then smoke.yml",
                                                *approval_lines,
                                                "Update a to the end"]


@pytest.mark.parametrize("changes, lines", [
    ({"verify": ["smoke.yml"]}, ["Update a to 100%, then smoke.yml", "Update a to the end"]),
    ({"keep_old_for": "15m", "options": {"keep_old": True}},
     ["Update a to 100%", "Keep the old pods of a for 15m", "Update a to the end"]),
    ({}, []),
])
def test_check_mode_shows_a_single_stage_with_a_pause(changes, lines):
    turns, run, _cluster = run_image_bump(check_mode=True, **changes)

    assert turns == ["Show the stages"] * bool(lines) + ["Update a"]
    assert [line for event in run.history.with_purpose("plan")
            for line in event.turn.lines] == lines


TRAFFIC = {"route": "edge", "route_kind": "HTTPRoute"}
HOLD_BEFORE_10 = "Hold the requests for a before the update to 10%"


def test_share_is_set_before_the_checks_and_the_route_is_restored_before_the_next_stage():
    shares = []
    stages = ["10%/1%", {"pods": "10%", "traffic": 20}, "50%", "100%"]
    turns, run, cluster = run_image_bump(
        {"smoke.yml": lambda cluster: shares.append(cluster.controllers["a"].share)},
        stages=stages, verify=["smoke.yml"], traffic=TRAFFIC)

    checks = ["List the pods of a", "Run smoke.yml"]
    assert turns == [
        HOLD_BEFORE_10, "Update a to 10%", "Send 1% of the requests for a to the new pods", *checks,
        "Update a to 10%", "Send 20% of the requests for a to the new pods", *checks,
        "Restore the route of a", "Update a to 50%", *checks, "Update a to 100%", *checks,
        "Update a"]
    assert shares == ["1%", "20%", "", ""] and cluster.controllers["a"].share == ""
    assert [(stage["stage"], stage["traffic"], [check["file"] for check in stage["checks"]])
            for stage in run.facts["history"]["stages"]] == [
        ("10%", "1%", ["traffic_split", "smoke.yml"]),
        ("10%", "20%", ["traffic_split", "smoke.yml", "traffic_split"]),
        ("50%", "", ["smoke.yml"]), ("100%", "", ["smoke.yml"])]


def test_route_is_restored_before_the_end_of_the_update():
    turns, *_more = run_image_bump(stages=["10%/1%", "100%"], traffic=TRAFFIC)

    assert turns == [HOLD_BEFORE_10, "Update a to 10%",
                     "Send 1% of the requests for a to the new pods",
                     "Restore the route of a", "Update a"]


def test_run_without_a_change_does_not_change_the_route():
    _turns, run, _cluster = run_image_bump(controllers={"a": Controller(image="myimage:v2")},
                                           stages=["10%/1%", "100%"], traffic=TRAFFIC)

    assert run.ending.outcome == "updated" and not run.history.has_changed


def test_requests_are_held_before_a_later_stage_with_a_share():
    turns, *_more = run_image_bump(stages=["10%", "20%/1%", "100%"], traffic=TRAFFIC)

    assert turns == ["Update a to 10%", "Hold the requests for a before the update to 20%",
                     "Update a to 20%", "Send 1% of the requests for a to the new pods",
                     "Restore the route of a", "Update a"]
    controllers = {"a": Controller(new_image="myimage:v2", new_percent=50)}
    turns, *_more = run_image_bump(controllers=controllers, stages=["10%", "20%/1%", "60%/50%"],
                                   traffic=TRAFFIC)
    assert turns == ["Update a to 10%", "Update a to 20%", "Update a to 60%",
                     "Send 50% of the requests for a to the new pods"]


@pytest.mark.parametrize("controller, error, share, turns", [
    (Controller(is_locked=True), "Stage 10%: another task works on it", "",
     [HOLD_BEFORE_10, "Update a to 10%", "Restore the route of a"]),
    (Controller(is_locked=True, new_image="myimage:v3", new_percent=20, share="5%"),
     "Stage 10%: another task works on it", "5%", [HOLD_BEFORE_10, "Update a to 10%"]),
    (Controller(has_no_route=True), "The requests could not be held before stage 10% of a: ", "",
     [HOLD_BEFORE_10]),
], ids=["no update", "another update", "no route"])
def test_failure_before_the_update_begins_leaves_no_held_requests(controller, error, share, turns):
    actual_turns, run, cluster = run_image_bump(controllers={"a": controller},
                                                stages=["10%/1%", "100%"], traffic=TRAFFIC)

    assert actual_turns == turns and cluster.controllers["a"].share == share
    assert run.ending.error.startswith(error) and run.ending.outcome == "failed"
    assert not cluster.changed_names


def test_failed_restoration_is_part_of_the_message():
    class RouteDeletingCluster(Cluster):
        def split(self, options):
            self.controllers["a"].has_no_route = options.get("state") == "restored"
            return super().split(options)

    run = Run(variables(stages=["10%/1%", "100%"], traffic=TRAFFIC),
              RouteDeletingCluster(a=Controller(is_locked=True))).run()
    assert "Then traffic_split has failed too: there is no such route" in run.ending.message


@pytest.mark.parametrize("on_failure, outcome, share",
                         [("rollback", "rolled_back", ""), ("stop", "stopped", "1%")])
def test_failed_check_at_a_stage_with_a_share(on_failure, outcome, share):
    turns, run, cluster = run_image_bump({"smoke.yml": fail}, stages=["10%/1%", "100%"],
                                         verify=["smoke.yml"], traffic=TRAFFIC,
                                         options={"on_failure": on_failure})

    assert (run.ending.outcome, cluster.controllers["a"].share) == (outcome, share)
    assert not {"Restore the route of a", "Update a"} & set(turns)


@pytest.mark.parametrize("on_failure, outcome", [("rollback", "rolled_back"), ("stop", "stopped")])
def test_failed_split(on_failure, outcome):
    def delete_route(cluster):
        cluster.controllers["a"].has_no_route = True

    turns, run, cluster = run_image_bump({"smoke.yml": delete_route},
                                         stages=["5%/1%", "10%/1%", "100%"], verify=["smoke.yml"],
                                         traffic=TRAFFIC, options={"on_failure": on_failure})
    turns = turns[5:]

    assert turns[:2] == ["Update a to 10%", "Send 1% of the requests for a to the new pods"]
    assert "Run smoke.yml" not in turns and run.ending.outcome == outcome
    assert bool(cluster.controllers["a"].new_image) is (on_failure == "stop")
    assert run.ending.error.startswith("The requests could not be split at stage 10% of a: ")
    assert ("The update is still in progress." in run.ending.error) is (on_failure == "stop")


def test_update_paused_at_a_share_shows_the_share():
    _turns, run, _cluster = run_image_bump(stages=["10%/1%"], traffic=TRAFFIC)

    assert run.ending.outcome == "paused" and run.facts["traffic"] == "1%"
    assert run.ending.message == "a is done; 1% of the requests for a"
    assert run.facts["report_data"]["stages"][0]["traffic"] == "1%"


def test_approval_at_a_share():
    turns, run, _cluster = run_image_bump(
        answer=lambda cluster: set_fields(cluster, image="myimage:v2", new_image=""),
        stages=["10%/1%"], approve_within="0s", traffic=TRAFFIC)

    assert turns == [HOLD_BEFORE_10, "Update a to 10%",
                     "Send 1% of the requests for a to the new pods",
                     "Show how to approve", "Wait for approval", "Update a"]
    assert [stage["traffic"] for stage in run.facts["history"]["stages"]] == ["1%", "1%", ""]


def test_repeated_run_keeps_the_share_of_a_later_stage():
    """The old pods (half of all) would get 99% of the requests at a share of 1%."""
    controllers = {"a": Controller(new_image="myimage:v2", new_percent=50, share="50%")}
    turns, *_more = run_image_bump(controllers=controllers, stages=["10%/1%", "50%/50%"],
                                   traffic=TRAFFIC)

    assert turns == [HOLD_BEFORE_10, "Update a to 10%", "Update a to 50%",
                     "Send 50% of the requests for a to the new pods"]


BLUE_GREEN = {"stages": ["100%/0%", "100%/100%"], "traffic": TRAFFIC, "options": {"keep_old": True}}
HOLD_BEFORE_100 = "Hold the requests for a before the update to 100%"


def test_blue_green_switches_after_the_checks_and_then_removes_the_old_pods():
    old_pod_counts = []
    turns, run, cluster = run_image_bump(
        {"smoke.yml": lambda cluster: old_pod_counts.append(
            cluster.rollout("a")["controller"]["replicas"])},
        verify=["smoke.yml"], **BLUE_GREEN)

    checks = ["List the pods of a", "Run smoke.yml"]
    assert turns == [HOLD_BEFORE_100, "Update a to 100%",
                     "Send 0% of the requests for a to the new pods", *checks,
                     "Update a to 100%", "Send 100% of the requests for a to the new pods",
                     *checks, "Update a"]
    assert old_pod_counts == [100, 100] and run.ending.outcome == "updated"
    assert not cluster.controllers["a"].keeps_old


def test_blue_green_without_checks_has_the_same_stages():
    turns, *_more = run_image_bump(**BLUE_GREEN)

    assert turns == [HOLD_BEFORE_100, "Update a to 100%",
                     "Send 0% of the requests for a to the new pods", "Update a to 100%",
                     "Send 100% of the requests for a to the new pods",
                     "Update a"]


def test_old_pods_are_kept_for_a_time_and_the_checks_run_again():
    updates = []

    class RecordingCluster(Cluster):
        def update(self, options):
            updates.append({key: options.get(key) for key in ("pause_at", "soak", "timeout")})
            return super().update(options)

    run = Run(variables(**BLUE_GREEN | {"options": {"keep_old": True, "timeout": "60"}},
                        keep_old_for="15m", verify=["smoke.yml"]),
              RecordingCluster(a=Controller()), {"smoke.yml": lambda cluster: ""}).run()

    assert run.turn_titles[-5:] == ["Keep the old pods of a for 15m",
                                    "Send 100% of the requests for a to the new pods",
                                    "List the pods of a", "Run smoke.yml", "Update a"]
    assert updates[-2:] == [{"pause_at": "100%", "soak": "15m", "timeout": ""},
                            {"pause_at": None, "soak": None, "timeout": "60"}]


def test_check_mode_shows_the_time_for_which_old_pods_are_kept():
    _turns, run, _cluster = run_image_bump(check_mode=True, keep_old_for="15m", **BLUE_GREEN)

    assert run.history.events[0].turn.lines == [
        HOLD_BEFORE_100, "Update a to 100%, then send 0% of the requests to the new pods",
        "Update a to 100%, then send 100% of the requests to the new pods",
        "Keep the old pods of a for 15m", "Update a to the end"]


def test_failed_check_after_the_switch_rolls_back():
    checks = iter(["", "503"])
    turns, run, cluster = run_image_bump({"smoke.yml": lambda cluster: next(checks)},
                                         verify=["smoke.yml"], **BLUE_GREEN)

    assert turns[-1] == "Roll back a" and run.ending.outcome == "rolled_back"
    assert not cluster.controllers["a"].new_image and not cluster.controllers["a"].share


def test_repeated_blue_green_sends_no_requests_back_to_the_remaining_old_pods():
    class RemovingCluster(Cluster):
        def rollout(self, name, before=""):
            rollout = super().rollout(name, before)
            rollout["controller"]["replicas"] = 40
            return rollout

    cluster = RemovingCluster(a=Controller(new_image="myimage:v2", new_percent=100, share="100%"))
    turns = Run(variables(**BLUE_GREEN), cluster).run().turn_titles

    assert turns == [HOLD_BEFORE_100, "Update a to 100%", "Update a to 100%", "Update a"]


def test_options_of_a_split():
    calls = []

    class RecordingCluster(Cluster):
        def split(self, options):
            calls.append(options)
            return super().split(options)

    match = [{"headers": [{"name": "x-tester", "value": "yes"}]}]
    Run(variables(stages=["10%/1%", "100%"], traffic={**TRAFFIC, "match": match, "service": ""},
                  options={"kind": "Deployment", "soak": "1m", "progress": False}),
        RecordingCluster(a=Controller())).run()

    common_options = {"name": "a", "namespace": "shop", "kind": "Deployment", "progress": False,
                      **TRAFFIC, "match": match}
    update_options = {"name": "a", "namespace": "shop", "kind": "Deployment", "image": "myimage:v2",
                      "on_failure": "rollback", "pause_at": "10%", "soak": "1m", "progress": False}
    assert calls == [{**common_options, "match": [], "weight": "0%", "before_update": True,
                      "update": update_options},
                     {**common_options, "weight": "1%"}, {**common_options, "state": "restored"}]


def test_check_mode_shows_the_shares():
    _turns, run, _cluster = run_image_bump(check_mode=True, stages=["10%/1%", "50%", "100%"],
                                           verify=["smoke.yml"], traffic=TRAFFIC)

    assert run.history.events[0].turn.lines == [
        HOLD_BEFORE_10, "Update a to 10%, then send 1% of the requests to the new pods, smoke.yml",
        "Restore the route of a", "Update a to 50%, then smoke.yml",
        "Update a to 100%, then smoke.yml", "Update a to the end"]


def test_update_with_stages_below_100_percent_stays_paused():
    turns, run, cluster = run_image_bump(stages=["10%"], after=["e.yml"])

    assert (turns == ["Update a to 10%", "Run e.yml"] and run.ending.outcome == "paused"
            and cluster.controllers["a"].new_image)


def test_no_check_after_an_early_end_of_the_update():
    class EarlyEndingCluster(Cluster):
        def rollout(self, name, before=""):
            return super().rollout(name, before) | {"phase": "progressing"}

    run = Run(variables(stages=["10%", "100%"], verify=["smoke.yml"]),
              EarlyEndingCluster(a=Controller())).run()

    assert run.turn_titles == ["Update a to 10%"] and run.ending.outcome == "paused"
    assert [stage["outcome"] for stage in run.facts["history"]["stages"]] == ["stopped"]


def test_error_names_the_controllers_that_cannot_be_rolled_back():
    def delete_and_fail(cluster):
        cluster.controllers["a"].is_deleted = True
        return "503"

    controllers = {name: Controller() for name in "abc"}
    _turns, run, cluster = run_image_bump({"smoke.yml": delete_and_fail}, controllers=controllers,
                                          selection={"names": list("abc")},
                                          stages=["10%", "100%"], verify=["smoke.yml"])

    assert not cluster.controllers["b"].new_image and not cluster.controllers["c"].new_image
    assert (run.ending.outcome == "failed"
            and "a is not rolled back: there is no such controller." in run.ending.error)


@pytest.mark.parametrize("changes, message", [
    ({"stages": ["10%", "1O%"]}, "image_bump_stages: '1O%' is neither a number nor a percentage"),
    ({"stages": ["10%", "0%"]},
     "image_bump_stages: 0% would pause before the first new pod: set at least 1"),
    ({"stages": ["10%/"], "traffic": TRAFFIC}, "image_bump_stages: 10%/ has no share"),
    ({"stages": [{"pods": "10%", "weight": 1}], "traffic": TRAFFIC},
     "image_bump_stages: a stage has the keys pods and traffic, not weight"),
    ({"stages": [{"traffic": 1}], "traffic": TRAFFIC},
     "image_bump_stages: a stage has the keys pods and traffic: pods is missing"),
    ({"stages": ["10%/1%"]}, "image_bump_stages: 10%/1% has a share of the requests: give "
                             "image_bump_route (for a share"),
    ({"stages": ["10%/1%"], "layer": "playbook"},
     "give route (for a share of 0% or 100%, service is enough)"),
    ({"stages": ["100%/1%"], "traffic": TRAFFIC},
     "100%/1% leaves no old pods for the other requests: a share needs fewer than 100% of the "
     "pods, or image_bump_keep_old"),
    ({"keep_old_for": "15m"},
     "image_bump_keep_old_for needs the old pods of all stages: set image_bump_keep_old, too"),
    ({"keep_old_for": "soon", "options": {"keep_old": True}},
     "image_bump_keep_old_for 'soon' is neither a number of seconds nor a duration"),
    ({"keep_old_for": "15m", "options": {"keep_old": True}, "stages": ["50%"]},
     "image_bump_keep_old_for needs an update that this run completes: let image_bump_stages end "
     "with 100%"),
    ({"stages": ["10%/1%"], "traffic": TRAFFIC, "selection": {"names": ["a", "b"]}},
     "10%/1% has a share of the requests, which is possible for only one controller: give "
     "image_bump_name"),
    ({"selection": {}},
     "Give exactly one of image_bump_name, image_bump_names and image_bump_label_selectors (given: "
     "none)"),
    ({"selection": {"name": "a", "names": ["b"]}}, "(given: image_bump_name and image_bump_names)"),
    ({"analyses": "text"}, "image_bump_analysis is not a list of dictionaries"),
    ({"approve_within": "soon"},
     "image_bump_approve_within 'soon' is neither a number of seconds nor a duration"),
    ({"errors": ["autoscaler must be one of"]}, "autoscaler must be one of"),
    ({"layer": "playbook", "selection": {}},
     "Give exactly one of controller, names and label_selectors (given: none)"),
    ({"layer": "playbook", "approve_within": "soon"}, "approve_within 'soon'"),
    ({"approve_within": "1h"}, "image_bump_approve_within needs an update that this run does not "
                               "complete: let image_bump_stages end below 100%"),
    ({"approve_within": "1h", "stages": ["10%", "100%"], "layer": "playbook"},
     "approve_within needs an update that this run does not complete: let stages end below 100%"),
    ({"options": {"nodes": "pool=canary"}},
     "image_bump_nodes needs a pause: give image_bump_stages below 100%"),
    ({"stages": ["50%", "25%"]},
     "image_bump_stages: 25% has fewer pods than the stage before, 50%"),
    ({"stages": ["2", "10%", "5%"]}, "image_bump_stages: 5% has fewer pods than the stage before"),
    ({"stages": ["100%", "3"]}, "image_bump_stages: 3 has fewer pods than the stage before, 100%"),
    ({"role": "rollback", "options": {"to_revision": "1"}},
     "Give only one of rollback_to_revision and rollback_image or rollback_images"),
    ({"options": {"kind": "pod"}}, "image_bump_kind 'pod' is not a kind"),
    ({"options": {"max_surge": "-1"}}, "image_bump_max_surge '-1' is neither a number nor a"),
    ({"options": {"max_failures": "all"}}, "image_bump_max_failures 'all' is neither a number nor"),
    ({"layer": "playbook", "options": {"timeout": "1d"}}, "time_limit '1d' is neither a number"),
    ({"layer": "playbook", "options": {"namespace": "A"}}, "'A' is not a valid namespace name"),
])
def test_invalid_request_is_refused_before_the_first_turn(changes, message):
    turns, run, cluster = run_image_bump(before=["b.yml"], failure=["notify.yml"], **changes)

    assert turns == [] and message in run.ending.error and not cluster.changed_names
    assert (run.ending.error.endswith(". Nothing has been changed.")
            and run.ending.outcome == "failed")
    turns, run, _cluster = run_image_bump(has_artifacts=True, **changes)
    assert (turns == ["Pass the outcome to the workflow"] and run.stats["outcome"] == "failed"
            and message in run.stats["msg"])


def test_error_in_the_variables_after_the_first_turn_is_ignored():
    """The role reads its variables at each turn, and a file may be gone by then."""
    cluster = Cluster(a=Controller())
    run = Run(variables(stages=["10%", "100%"], verify=["smoke.yml"]), cluster)
    run.files = {"smoke.yml": lambda _cluster: run.request.errors.append("smoke.yml is no file")
                 or ""}
    run.run()

    assert run.turn_titles[-1] == "Update a" and run.ending.outcome == "updated"


def test_all_errors_of_a_request_are_reported_at_once():
    _turns, run, _cluster = run_image_bump(selection={}, stages=["x"], approve_within="y")

    assert len(run.ending.error.splitlines()) == 3


def test_rollback_of_an_update_in_progress():
    turns, run, cluster = run_rollback(before=["b.yml"], after=["e.yml"])

    assert (turns == ["Run b.yml", "Roll back a", "Run e.yml"]
            and run.ending.outcome == "rolled_back")
    assert not cluster.controllers["a"].new_image


@pytest.mark.parametrize("controller, turns", [
    (Controller("myimage:v2"), ["Roll back a to the image"]),
    (Controller("myimage:v2", "myimage:v1", 50), ["Roll back a to the image"]),
    (Controller("myimage:v1", "myimage:v2", 50), ["Roll back a", "Roll back a to the image"]),
], ids=["ended", "update to the image", "update to another image"])
def test_rollback_to_an_image(controller, turns):
    actual_turns, run, cluster = run_rollback(controllers={"a": controller},
                                              options={"image": "myimage:v1"})

    assert (actual_turns == ["List the updates in progress", *turns]
            and run.ending.outcome == "rolled_back")
    assert (cluster.controllers["a"].image, cluster.controllers["a"].new_image) == ("myimage:v1",
                                                                                    "")


def test_check_mode_of_a_rollback():
    turns, *_more = run_rollback(check_mode=True, options={"image": "myimage:v1"})

    assert turns[-2:] == ["Roll back a", "Show the remaining update"]


def test_failed_rollback():
    turns, run, _cluster = run_rollback(controllers={"a": Controller()}, failure=["notify.yml"],
                                        after=["e.yml"])

    assert turns == ["Roll back a", "Run notify.yml"] and run.ending.outcome == "failed"
    assert "there is no update in progress to roll back" in run.ending.error


def test_each_controller_is_rolled_back_to_its_own_images():
    previous = {"a": {"web": "myimage:v1"}, "b": {"web": "myimage:v0"}, "c": {"web": "myimage:v1"}}
    controllers = {name: Controller("myimage:v2", is_locked=name == "a") for name in "abc"}
    turns, run, cluster = run_rollback(controllers=controllers, selection={"names": list("abc")},
                                       previous=previous, options={"max_failures": "100%"})

    assert turns[1:] == ["Roll back a, c to the image", "Roll back b to the image"]
    assert run.ending.outcome == "failed" and "another task works on it" in run.ending.error
    assert cluster.controllers["b"].image == "myimage:v0", (
        "a failed group must not stop the next group")


@pytest.mark.parametrize("previous, options, expected_images", [
    ({"a": {"web": "myimage:v0"}, "b": {"web": "myimage:v1"}}, {}, ("myimage:v0", "myimage:v2")),
    ({"b": {"web": "myimage:v1"}}, {}, ("myimage:v1", "myimage:v2")),
    ({"b": {"web": "myimage:v1"}}, {"image": "myimage:v9"}, ("myimage:v1", "myimage:v2")),
], ids=["more controllers", "another controller", "another controller, and an image"])
@pytest.mark.parametrize("selection", [{"name": "a"}, {"names": ["a"]}], ids=["name", "names"])
def test_previous_images_are_restored_only_in_selected_controllers(previous, options, selection,
                                                                   expected_images):
    """Without previous images, only the update in progress is rolled back."""
    controllers = {"a": Controller(new_image="myimage:v2", new_percent=10),
                   "b": Controller("myimage:v2")}
    _turns, run, cluster = run_rollback(controllers=controllers, selection=selection,
                                        previous=previous, options=options)

    assert run.ending.outcome == "rolled_back"
    assert tuple(controller.image for controller in cluster.controllers.values()
                 ) == expected_images
    assert not cluster.controllers["a"].new_image


@pytest.mark.parametrize("changes, message", [
    ({"previous": {"web": "myimage:v1"}},
     "rollback_previous_images: web must be the name of a controller, with a dictionary of its "
     "images by container, as in {shop: {web: 'shop:v1'}}. For the same images in all "
     "controllers, give rollback_images."),
    ({"previous": {"a": {"web": "myimage:v1"}, "b": {}, "c": {"web": 7}}},
     "rollback_previous_images: b, c must be the name of a controller"),
    ({"previous": {"web": "myimage:v1"}, "layer": "playbook"},
     "previous_images_by_name: web must be the name of a controller"),
    ({"previous": {"a": {"web": "my image"}}},
     "rollback_previous_images: 'my image' is not a valid image name (container web)."),
    ({"previous": {"a": {"web": "myimage:v1"}}, "selection": {"label_selectors": ["app=shop"]}},
     "rollback_previous_images cannot be used with rollback_label_selectors: give rollback_names."),
])
def test_invalid_previous_images_are_refused_before_the_first_turn(changes, message):
    turns, run, cluster = run_rollback(before=["b.yml"], **{"selection": {"names": ["a", "b"]},
                                                            **changes})

    assert turns == [] and not cluster.changed_names and run.ending.error.startswith(message)


@pytest.mark.parametrize("aborted, changed, check_mode, message", [
    ("", "abc", False, "3 of 3 controllers are as requested (3 changed)"),
    ("", "b", False, "3 of 3 controllers are as requested (1 changed)"),
    ("a", "abc", False, "3 of 3 controllers are as requested (3 changed)"),
    ("", "abc", True, "3 of 3 controllers would be as requested (3 changed)"),
])
def test_message_of_a_rollback_counts_the_controllers_of_all_groups(aborted, changed, check_mode,
                                                                    message):
    previous = {"a": {"web": "myimage:v1"}, "b": {"web": "myimage:v0"}, "c": {"web": "myimage:v1"}}
    controllers = {name: Controller("myimage:v2" if name in changed else images["web"],
                                    **({"new_image": "myimage:v3"} if name in aborted else {}))
                   for name, images in previous.items()}
    _turns, run, _cluster = run_rollback(controllers=controllers, selection={"names": list("abc")},
                                         previous=previous, check_mode=check_mode)

    assert (run.ending.outcome, run.ending.message) == ("rolled_back", message)


def test_message_of_a_rollback_of_all_groups_names_skipped_controllers():
    class SkippingCluster(LabelledCluster):
        """Model of the module, which skips the controller b with another repository."""

        def update(self, options):
            names = [name for name in self.controllers if name != "b"]
            result = Cluster.update(self, {**options, "names": names})
            return result | {"results": [*result["results"], {
                "name": "b", "skipped": True, "failed": False, "changed": False, "msg": "other"}]}

    cluster = SkippingCluster(a=Controller("myimage:v2", new_image="myimage:v3"), b=Controller())
    run = Run(variables(role="rollback", selection={"label_selectors": ["app=shop"]},
                        options=TO_V1 | {"on_failure": None}), cluster).run()

    assert run.ending.message == "1 of 2 controllers are as requested (1 changed), 1 skipped (b)"


TO_V1 = {"image": "myimage:v1"}


@pytest.mark.parametrize("changes, updates", [
    ({"previous": {"a": {"web": "myimage:v1"}, "c": {"web": "myimage:v1"}}},
     ["Roll back a, c to the image"]),
    ({"previous": {name: {"web": "myimage:v1"} for name in "abc"}},
     ["Roll back a, c to the image"]),
    ({"options": TO_V1}, ["Roll back a, c to the image"]),
    ({"options": TO_V1 | {"max_failures": "1"}}, ["Roll back a, c to the image"]),
    ({"options": TO_V1 | {"max_failures": "0"}}, []),
], ids=["artifacts", "artifacts with all controllers", "image", "one failure allowed",
        "no failure allowed"])
def test_failed_abort_does_not_stop_the_rollback_of_others(changes, updates):
    controllers = {"a": Controller("myimage:v2"), "c": Controller("myimage:v2"),
                   "b": Controller(new_image="myimage:v2", new_percent=10, is_locked=True)}
    turns, run, cluster = run_rollback(controllers=controllers, selection={"names": list("abc")},
                                       failure=["notify.yml"], **changes)

    assert turns == ["List the updates in progress", "Roll back b", *updates, "Run notify.yml"]
    assert run.ending.outcome == "failed"
    assert run.ending.error.startswith("Roll back b: another task works on it")
    assert {cluster.controllers[name].image for name in "ac"} == {
        "myimage:v1" if updates else "myimage:v2"}
    assert ("Not rolled back: a, c." in run.ending.error) is (not updates)


def test_controllers_whose_update_was_only_aborted_are_named_as_not_rolled_back():
    controllers = {"a": Controller("myimage:v2", is_locked=True),
                   "b": Controller("myimage:v2", new_image="myimage:v3", new_percent=10)}
    _turns, run, _cluster = run_rollback(
        controllers=controllers, selection={"names": ["a", "b"]}, options={"max_failures": "0"},
        previous={"a": {"web": "myimage:v1"}, "b": {"web": "myimage:v0"}})

    assert "Not rolled back: b." in run.ending.error


class LabelledCluster(Cluster):
    """Cluster whose label selectors select all controllers."""

    def update(self, options):
        return super().update(self._with_names(options))

    def info(self, options):
        return super().info(self._with_names(options))

    def _with_names(self, options):
        return {"names": list(self.controllers), **options}


@pytest.mark.parametrize("max_failures, may_continue", [("50%", True), ("1", True), ("0", False)])
def test_share_of_failed_aborts_counts_all_selected_controllers(max_failures, may_continue):
    controllers = {name: Controller("myimage:v2") for name in "acdefghij"}
    controllers["b"] = Controller(new_image="myimage:v2", new_percent=10, is_locked=True)
    cluster = LabelledCluster(**controllers)
    Run(variables(role="rollback", selection={"label_selectors": ["app=shop"]},
                  options=TO_V1 | {"on_failure": None, "max_failures": max_failures}),
        cluster).run()

    assert {cluster.controllers[name].image for name in "acdefghij"} == {
        "myimage:v1" if may_continue else "myimage:v2"}


def test_failed_abort_of_the_only_controller_ends_the_rollback():
    controllers = {"a": Controller(new_image="myimage:v2", new_percent=10, is_locked=True)}
    for selection in ({"name": "a"}, {"names": ["a"]}):
        turns, run, _cluster = run_rollback(controllers=controllers, selection=selection,
                                            options=TO_V1)
        assert turns == ["List the updates in progress", "Roll back a"]
        assert run.ending.outcome == "failed"


def test_each_failure_of_a_rollback_is_named():
    controllers = {"a": Controller("myimage:v2", is_deleted=True), "c": Controller("myimage:v2"),
                   "b": Controller(new_image="myimage:v2", new_percent=10, is_locked=True)}
    _turns, run, cluster = run_rollback(
        controllers=controllers, selection={"names": list("abc")},
        previous={"b": {"web": "myimage:v1"}, "a": {"web": "myimage:v0"},
                  "c": {"web": "myimage:v1"}})

    assert cluster.controllers["c"].image == "myimage:v1"
    for message in (run.ending.message, run.ending.error):
        assert "Roll back b: another task works on it" in message
        assert "Roll back a to the image: there is no such controller" in message


@pytest.mark.parametrize("max_failures", ["0", "100%"])
def test_rollback_keeps_the_limits_of_the_user(max_failures):
    calls = []

    class RecordingCluster(Cluster):
        def update(self, options):
            calls.append(options)
            return super().update(options)

    limits = {"max_failures": max_failures, "timeout": "60"}
    controllers = {name: Controller(new_image="myimage:v2", new_percent=10) for name in "ab"}
    Run(variables(role="rollback", selection={"names": ["a", "b"]},
                  options={"image": None, "on_failure": None, **limits}),
        RecordingCluster(**controllers)).run()

    assert len(calls) == 1 and limits.items() <= calls[0].items()


@pytest.mark.parametrize("role", TABLES)
def test_documentation_has_the_table(role):
    page = (ROOT / "docs" / "concepts" / "release.md").read_text(encoding="utf-8")
    section = page.partition(f"## The role {role}\n")[2].partition("\n## ")[0]

    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    documented_rows = [tuple(cell.strip() for cell in line.split(" | ")) for line in lines]

    assert documented_rows[2:] == [(row.case, row.action) for row in TABLES[role]]


def test_each_step_has_a_task_file():
    source = (ROOT / "plugins/module_utils/release/table.py").read_text("utf-8")
    steps = set(re.findall(r'\bTurn\(\s*"(\w+)"', source))

    assert {"succeed", "fail"} < steps
    assert {step for step in steps
            if not (ROOT / f"roles/image_bump/tasks/{step}.yml").is_file()} == set()

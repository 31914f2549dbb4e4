# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Take each row of the release tables by a release, and compare the rows with the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from releases import Cluster, Controller, Run, variables

from ansible_collections.baton.kubernetes.plugins.module_utils.release.table import TABLES

ROOT = Path(__file__).parents[3]


def refuse(_cluster):
    return "the shop is closed"


def bump(files=None, answer=bool, controllers=None, **changes):
    """Run image_bump; return the turns, the run and the cluster."""
    cluster = Cluster(**controllers or {"a": Controller()})
    run = Run(variables(**changes), cluster, files, answer).run()
    return run.turns, run, cluster


def roll_back(files=None, controllers=None, options=None, **changes):
    """Run rollback."""
    images = {"on_failure": None, "image": None, **(options or {})}
    cluster = Cluster(**controllers or {"a": Controller(coming="myimage:v2", share=10)})
    run = Run(variables(role="rollback", options=images, **changes), cluster, files).run()
    return run.turns, run, cluster


def test_stages_with_checks():
    turns, run, cluster = bump(stages=["10%", "100%"], verify=["smoke.yml"],
                               analyses=[{"count": 1}],
                               before=["b.yml"], after=["e.yml"], report="r.html",
                               has_artifacts=True)

    at_stage = ["Analyze the pods of a", "List the pods of a", "Run smoke.yml"]
    assert turns == ["Run b.yml", "Update a to 10%", *at_stage, "Update a to 100%", *at_stage,
                     "Update a", "Run e.yml",
                     "Write the report", "Pass the outcome to the workflow"]
    assert run.ending.outcome == "updated" and cluster.controllers["a"].image == "myimage:v2"
    stages = run.facts["report_data"]["stages"]
    assert [(stage["stage"], stage["outcome"], [check["file"] for check in stage["checks"]])
            for stage in stages] == [
        (stage, "passed", ["rollout_analysis", "smoke.yml"]) for stage in ("10%", "100%")]


def test_without_checks_and_stages_it_is_one_task():
    turns, run, _cluster = bump()

    assert (turns == ["Update a"]
            and [stage["stage"] for stage in run.facts["history"]["stages"]] == ["100%"])


@pytest.mark.parametrize("on_failure, outcome, image",
                         [("rollback", "rolled_back", ""), ("stop", "stopped", "myimage:v2")])
def test_a_check_fails_at_the_second_stage(on_failure, outcome, image):
    """Each row is a consequence of a failed check at the second stage."""
    def closed_at_the_second(cluster):
        return "503" if cluster.controllers["a"].share == 50 else ""

    turns, run, cluster = bump({"smoke.yml": closed_at_the_second}, stages=["10%", "50%", "100%"],
                               verify=["smoke.yml"],
                               failure=["tell.yml", "more.yml"], options={"on_failure": on_failure})

    assert "Update a to 100%" not in turns and turns[-2:] == ["Run tell.yml", "Run more.yml"]
    assert (("Roll back a" in turns) is (on_failure == "rollback")
            and cluster.controllers["a"].coming == image)
    assert (run.ending.outcome == outcome
            and run.ending.message.startswith(
                "The check smoke.yml has failed at stage 50% of a: "))


def test_a_rollback_has_none_of_the_options_that_end_an_update_early():
    limits = {"soak": "1m", "nodes": "a=b", "timeout": "5"}
    calls = []

    class Watched(Cluster):
        def update(self, options):
            calls.append(options)
            return super().update(options)

    cluster = Watched(a=Controller(), b=Controller())
    Run(variables(selection={"names": ["a", "b"]}, stages=["10%", "100%"], verify=["smoke.yml"],
                  options=limits), cluster,
        {"smoke.yml": refuse}).run()

    forward, back = calls
    assert limits.items() <= forward.items() and not limits.keys() & back.keys()
    assert (back["state"], back["max_failures"], back["names"]) == (
        "rolled_back", "100%", ["a", "b"])


def test_files_of_the_failure_hook_end_with_the_first_that_fails():
    turns, run, _cluster = bump({"b.yml": refuse, "no.yml": refuse}, before=["b.yml"],
                                failure=["no.yml", "more.yml"])

    assert turns == ["Run b.yml", "Run no.yml"] and run.ending.outcome == "failed"
    assert run.ending.error.endswith("\nThen no.yml has failed too: the shop is closed")


def test_a_report_that_cannot_be_written_decides_nothing():
    cluster = Cluster(a=Controller())
    run = Run(variables(report="r.html"), cluster)
    act = run._do
    run._do = lambda turn: ({}, "no such folder") if turn.do == "report" else act(turn)
    run.run()

    assert (run.turns[-2:] == ["Write the report", "Warn about the missing report"]
            and run.ending.outcome == "updated")


@pytest.mark.parametrize("has_page, is_changed, is_written",
                         [(False, False, True), (True, False, False), (True, True, True)])
def test_a_page_of_an_earlier_run_stays_where_nothing_is_changed(has_page, is_changed, is_written):
    image = "myimage:v1" if is_changed else "myimage:v2"
    turns, *_more = bump(controllers={"a": Controller(image)}, report="r.html", has_page=has_page)

    assert ("Write the report" in turns) is is_written


def set_(cluster, **fields):
    for name, value in fields.items():
        setattr(cluster.controllers["a"], name, value)


@pytest.mark.parametrize("answer, on_failure, outcome", [
    (lambda cluster: set_(cluster, image="myimage:v2", coming=""), "rollback", "updated"),
    (lambda cluster: set_(cluster, coming="", was_rolled_back=True), "rollback", "rolled_back"),
    (lambda cluster: set_(cluster, coming="myimage:v3"), "rollback", "failed"),
    (bool, "rollback", "rolled_back"),
    (bool, "stop", "stopped"),
], ids=["approved", "denied", "another update", "late", "late, stop"])
def test_an_approval(answer, on_failure, outcome):
    turns, run, _cluster = bump(answer=answer, stages=["10%"], approve_within="0s",
                                options={"on_failure": on_failure})

    assert (turns[:3] == ["Update a to 10%", "Show how to approve", "Wait for approval"]
            and run.ending.outcome == outcome)
    assert ("Update a" in turns) is (outcome == "updated")


def test_somebody_continues_at_the_last_moment():
    """Another client holds the Lease, so the rollback is refused, and then completes the update."""
    class LastMoment(Cluster):
        def update(self, options):
            result = super().update(options)
            if options.get("state") == "rolled_back":
                set_(self, is_locked=False, image="myimage:v2", coming="")
            return result

    cluster = LastMoment(a=Controller())
    run = Run(variables(stages=["10%"], approve_within="0s"), cluster,
              answer=lambda controllers: set_(controllers, is_locked=True)).run()

    assert (run.turns[-2:] == ["Roll back a", "Check whether another client has resumed the update"]
            and run.ending.outcome == "stopped")
    assert "Another client has resumed the update at the last moment" in run.ending.error


def test_check_mode_shows_the_stages_and_plans_the_update():
    turns, run, _cluster = bump(check_mode=True, stages=["10%", "100%"], verify=["smoke.yml"],
                                approve_within="1h", report="r")

    assert turns == ["Show the stages", "Update a"]
    assert run.history.events[0].turn.lines == ["Update a to 10%, then smoke.yml",
                                                "Update a to 100%, then smoke.yml",
                                                "Wait for approval",
                                                "Update a to the end"]


def test_a_list_of_stages_that_ends_early_leaves_it_paused():
    turns, run, cluster = bump(stages=["10%"], after=["e.yml"])

    assert (turns == ["Update a to 10%", "Run e.yml"] and run.ending.outcome == "paused"
            and cluster.controllers["a"].coming)


def test_an_update_that_ends_before_its_stage_is_not_checked():
    class Limited(Cluster):
        def rollout(self, name, before=""):
            return super().rollout(name, before) | {"phase": "progressing"}

    run = Run(variables(stages=["10%", "100%"], verify=["smoke.yml"]),
              Limited(a=Controller())).run()

    assert run.turns == ["Update a to 10%"] and run.ending.outcome == "paused"
    assert [stage["outcome"] for stage in run.facts["history"]["stages"]] == ["stopped"]


def test_a_fleet_goes_back_together_or_each_that_does_not_is_named():
    def delete(cluster):
        cluster.controllers["a"].is_deleted = True
        return "503"

    controllers = {name: Controller() for name in "abc"}
    _turns, run, cluster = bump({"smoke.yml": delete}, controllers=controllers,
                                selection={"names": list("abc")},
                                stages=["10%", "100%"], verify=["smoke.yml"])

    assert not cluster.controllers["b"].coming and not cluster.controllers["c"].coming
    assert (run.ending.outcome == "failed"
            and "a is not rolled back: there is no such controller." in run.ending.error)


@pytest.mark.parametrize("changes, message", [
    ({"stages": ["10%", "1O%"]}, "image_bump_stages: '1O%' is neither a number nor a percentage"),
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
    ({"options": {"kind": "pod"}}, "image_bump_kind 'pod' is not a kind"),
    ({"options": {"max_surge": "-1"}}, "image_bump_max_surge '-1' is neither a number nor a"),
    ({"layer": "playbook", "options": {"timeout": "1d"}}, "time_limit '1d' is neither a number"),
    ({"layer": "playbook", "options": {"namespace": "A"}}, "'A' is not a valid namespace name"),
])
def test_an_error_in_the_request_is_known_before_anything_is_changed(changes, message):
    turns, run, cluster = bump(before=["b.yml"], failure=["tell.yml"], **changes)

    assert turns == [] and message in run.ending.error and not cluster.touched
    assert (run.ending.error.endswith(". Nothing has been changed.")
            and run.ending.outcome == "failed")
    turns, run, _cluster = bump(has_artifacts=True, **changes)
    assert (turns == ["Pass the outcome to the workflow"] and run.stats["outcome"] == "failed"
            and message in run.stats["msg"])


def test_an_error_that_comes_with_the_run_does_not_say_that_nothing_was_changed():
    """The role reads its variables at each turn: a file may have been deleted meanwhile."""
    cluster = Cluster(a=Controller())
    run = Run(variables(stages=["10%", "100%"], verify=["smoke.yml"]), cluster)
    run.files = {"smoke.yml": lambda _cluster: run.request.errors.append("smoke.yml is no file")
                 or ""}
    run.run()

    assert run.turns[-1] == "Update a" and run.ending.outcome == "updated"


def test_all_errors_of_a_request_are_said_at_once():
    _turns, run, _cluster = bump(selection={}, stages=["x"], approve_within="y")

    assert len(run.ending.error.splitlines()) == 3


def test_a_rollback_aborts_what_is_in_progress():
    turns, run, cluster = roll_back(before=["b.yml"], after=["e.yml"])

    assert (turns == ["Run b.yml", "Roll back a", "Run e.yml"]
            and run.ending.outcome == "rolled_back")
    assert not cluster.controllers["a"].coming


@pytest.mark.parametrize("controller, turns", [
    (Controller("myimage:v2"), ["Roll back a to the image"]),
    (Controller("myimage:v2", "myimage:v1", 50), ["Roll back a to the image"]),
    (Controller("myimage:v1", "myimage:v2", 50), ["Roll back a", "Roll back a to the image"]),
], ids=["ended", "on its way there", "on its way elsewhere"])
def test_a_rollback_to_an_image(controller, turns):
    taken, run, cluster = roll_back(controllers={"a": controller}, options={"image": "myimage:v1"})

    assert (taken == ["List the updates in progress", *turns]
            and run.ending.outcome == "rolled_back")
    assert (cluster.controllers["a"].image, cluster.controllers["a"].coming) == ("myimage:v1", "")


def test_a_rollback_in_check_mode_plans_no_second_update():
    turns, *_more = roll_back(check_mode=True, options={"image": "myimage:v1"})

    assert turns[-2:] == ["Roll back a", "Show the remaining update"]


def test_a_rollback_that_fails():
    turns, run, _cluster = roll_back(controllers={"a": Controller()}, failure=["tell.yml"],
                                     after=["e.yml"])

    assert turns == ["Roll back a", "Run tell.yml"] and run.ending.outcome == "failed"
    assert "there is no update in progress to roll back" in run.ending.error


def test_controllers_go_back_each_to_its_own_images():
    previous = {"a": {"web": "myimage:v1"}, "b": {"web": "myimage:v0"}, "c": {"web": "myimage:v1"}}
    controllers = {name: Controller("myimage:v2", is_locked=name == "a") for name in "abc"}
    turns, run, cluster = roll_back(controllers=controllers, selection={"names": list("abc")},
                                    previous=previous, options={"max_failures": "100%"})

    assert turns[1:] == ["Roll back a, c to the image", "Roll back b to the image"]
    assert run.ending.outcome == "failed" and "another task works on it" in run.ending.error
    assert cluster.controllers["b"].image == "myimage:v0", (
        "one that cannot go back keeps no other from it")


@pytest.mark.parametrize("role", TABLES)
def test_the_documentation_has_the_table(role):
    page = (ROOT / "docs" / "release.md").read_text(encoding="utf-8")
    section = page.partition(f"## The role {role}\n")[2].partition("\n## ")[0]

    lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)
    documented = [tuple(cell.strip() for cell in line.split(" | ")) for line in lines]

    assert documented[2:] == [(row.case, row.follows) for row in TABLES[role]]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report outcome, message, error and artifacts for each way to end a release."""

from __future__ import annotations

import dataclasses

import pytest
from releases import NOW, variables
from results import failed, paused, rollout, single, updated

from ansible_collections.baton.kubernetes.plugins.module_utils.release import ending
from ansible_collections.baton.kubernetes.plugins.module_utils.release.aborts import names_to_abort
from ansible_collections.baton.kubernetes.plugins.module_utils.release.approval import (
    Approval,
    deadline,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.ending import Ending
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import (
    Event,
    History,
    Turn,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.release.summary import Summary

SKIPPED = {"name": "app-3", "skipped": True, "failed": False, "changed": False, "msg": "not begun",
           "rollout": {}}
ROLLED_BACK = {"changed": True, "failed": False,
               "msg": "shop is rolled back to myimage:v1: 4 of 4 replicas available"}
NOT_ROLLED_BACK = failed() | {"msg": "all the words of the second failure"}
#: The module has rolled back by itself, and fails.
TURNED = failed() | {"rollout": rollout("shop", "complete", {"outcome": "rolled_back"})}
REFUSED = failed() | {"changed": False, "rollout": rollout("shop", "paused")}
GIST = "ReplicationController default/shop: the new pods cannot become available."
ABOVE = "\nThe reason and the next command are shown above, at the failed task 'Roll shop'."


def summary(result):
    return Summary.of(whole(result))


def fleet(*results):
    return {"results": list(results)}


def whole(result):
    """Return the result of a task, for one controller from its entry."""
    return result if not result or "results" in result else single(result)


def failure(what, result=None, rollback=None, reason="all the words", gist="", task="Roll shop",
            answer="", is_fleet=False, layer="role", on_failure="stop"):
    """Return the end of a run after this failure.

    result is the result of the last update, rollback the result of the role's rollback.
    """
    role, host = (("rollback", "") if what == "rollback"
                  else ("image_bump", "lyon" if layer == "playbook" else ""))
    request = Request.of(variables(role=role, layer=layer, host=host,
                                   options={"on_failure": on_failure},
                                   selection={"names": ["shop"]} if is_fleet else {"name": "shop"}))
    why = {"task": task, "reason": reason, "gist": gist}
    stage = "" if what == "before" else "50%"
    events = [event(Turn("update", "", "update", stage), whole(result or {}),
                    why if what == "update" else {})] if what != "before" else []
    if what == "rollback":
        events = [event(Turn("update", "", "rollback"), whole(result or {}), why)]
    elif what != "update":
        events.append(event(Turn("run", "", what, stage, "smoke.yml"),
                            whole(result or {}) if what == "approval" else {}, why))
    if rollback is not None:
        events.append(event(Turn("update", "", "rollback", stage), whole(rollback),
                            {"reason": "x"} if rollback.get("failed") else {}))
    if answer:
        events.append(event(Turn("look", "", "look", stage), {"answer": answer}, {}))
    return Ending(request, History(events))


def event(turn, result, why):
    return Event(turn, NOW, NOW, result, why)


def by_module(what="update", result=None, rollback=None, **more):
    return failure(what, result or failed(), rollback, gist=GIST, **more)


def by_check(what="check", rollback=None, **more):
    return failure(what, paused() if what == "check" else updated(), rollback,
                   "503\nand a page of HTML", task="It answers", **more)


@pytest.mark.parametrize("result, outcome, is_paused, in_progress", [
    ({}, "updated", False, []),
    (updated(), "updated", False, []),
    (paused(), "paused", True, ["shop"]),
    (failed(), "updated", False, []),
    (fleet(updated("app-1"), paused("app-2")), "paused", True, ["app-2"]),
    (fleet(updated("app-1"), failed("app-2"), SKIPPED), "updated", False, []),
    (fleet(paused("app-1"), failed("app-2")), "paused", True, ["app-1"]),
    (fleet(), "updated", False, []),
    (fleet(paused("app-1"), paused("app-2") | {"rollout": rollout("app-2", "progressing")}),
     "paused", False, ["app-1", "app-2"]),
], ids=["nothing yet", "updated", "paused", "failed", "a fleet at a stage", "failed and skipped",
        "failed in a pause", "none",
        "one ended before the stage"])
def test_where_the_controllers_stand(result, outcome, is_paused, in_progress):
    """The module rolls its failed controllers back; the role rolls the others back."""
    status = summary(result)

    assert ((status.outcome, status.is_paused, status.in_progress)
            == (outcome, is_paused, in_progress))


@pytest.mark.parametrize("result, outcome", [
    (paused(), "passed"), (updated(), "passed"),
    (fleet(paused("app-1"), updated("app-2"), SKIPPED), "passed"),
    (paused() | {"rollout": rollout("shop", "progressing")}, "stopped"),
], ids=["paused", "updated", "a fleet", "ended before the stage"])
def test_a_stage_that_was_not_reached_has_not_passed(result, outcome):
    assert summary(result).stage_outcome == outcome


def test_sizes_are_those_of_all_together():
    second = (paused("app-2")
             | {"rollout": {"desired": 4, "controller": {"replicas": 3},
                            "successor": {"replicas": 1}}})
    gone = {"name": "app-3", "rollout": {"desired": None, "controller": None, "successor": None}}

    assert summary(second | {"name": "shop"}).sizes == {"desired": 4, "old": 3, "new": 1}
    assert summary(fleet(second, second | {"name": "app-4"}, gone, SKIPPED)).sizes == {
        "desired": 8, "old": 6, "new": 2}


def test_a_summary_names_the_controllers():
    assert summary(updated()).rollouts == {"shop": updated()["rollout"]}
    assert list(summary(fleet(updated("app-1"), SKIPPED)).rollouts) == ["app-1", "app-3"]


def seen(before, after, phase="complete", name="shop", **more):
    """Return the result of a task on a cluster with a record of another history."""
    forged = {"outcome": "updated", "from": {"web": "evil"}, "to": {"web": after}}
    images = {"before": {"web": before, "log": "v3"} if before else {},
              "after": {"web": after, "log": "v3"}}
    return {"name": name, "failed": False,
            "rollout": {"phase": phase, "last_rollout": forged, "images": images}, **more}


@pytest.mark.parametrize("results, images", [
    ([seen("v1", "v2")], {"web": "v1"}),
    ([seen("v1", "v1", "paused"), seen("v1", "v2")], {"web": "v1"}),
    ([seen("v1", "v1", "paused")], {}),
    ([seen("v2", "v2")], {}),
    ([seen("", "v2")], {}),
    ([seen("v1", "v1", "paused"), seen("v1", "v1")], {}),
    ([seen("v1", "v2", failed=True)], {}),
    ([seen("v1", "v2", skipped=True)], {}),
    ([seen("v1", "v2"), seen("v1", "v2", name="other")], {"web": "v1"}),
    ([seen("v1", "v2"), seen("v2", "v2", name="other")], {"web": "v1"}),
    ([seen("v1", "v2"), seen("v0", "v2", name="other")], {}),
    ([seen("v1", "v2"), seen("v1", "v1", "paused", name="other")], {}),
    ([], {}),
], ids=["updated", "in stages", "paused", "nothing to do", "resumed in the handover", "rolled back",
        "failed", "skipped", "fleet",
        "fleet, one of it", "fleet with different images", "fleet, one of it paused",
        "nothing yet"])
def test_previous_images_are_those_that_the_run_has_seen_before_it_replaced_them(results, images):
    """A user with annotate permission may have forged the record on the cluster."""
    request = Request.of(variables(selection={"names": ["shop", "other"]}))
    history = History([event(Turn("update", "", "update"), {"results": [result]}, {})
                       for result in results])

    assert Ending(request, history).previous_images == images


@pytest.mark.parametrize("end, outcome", [
    (by_check("before"), "failed"), (by_check("after"), "failed"),
    (by_check(rollback=ROLLED_BACK), "rolled_back"), (by_check(rollback=NOT_ROLLED_BACK), "failed"),
    (by_check(), "stopped"),
    (by_module(), "stopped"), (by_module(result=REFUSED), "failed"),
    (by_module(result=TURNED), "rolled_back"),
    (by_module(result=TURNED | {"changed": False}), "failed"),
    (by_module(result=TURNED, is_fleet=True), "stopped"),
    (by_module(rollback=ROLLED_BACK), "rolled_back"),
    (by_module(rollback=NOT_ROLLED_BACK), "failed"),
    (failure("update"), "failed"), (by_module("rollback"), "failed"),
], ids=["before", "after", "check, back", "check, not back", "check, left", "left half-way",
        "not begun", "back by the module",
        "back by another task", "a fleet, some of it back", "others back", "others not back",
        "no result", "role rollback"])
def test_the_outcome_of_a_failure(end, outcome):
    assert end.outcome == outcome


@pytest.mark.parametrize("end, message, error", [
    (by_module(), "Stage 50%: all the words", f"Stage 50%: {GIST}{ABOVE}"),
    (by_module(result=TURNED), "Stage 50%: all the words", f"Stage 50%: {GIST}{ABOVE}"),
    (by_module("rollback", task="Roll shop"), "Roll shop: all the words",
     f"Roll shop: {GIST}{ABOVE}"),
    (by_module(rollback=NOT_ROLLED_BACK),
     "Stage 50%: all the words\nIt could not be rolled back: all the words of the second failure",
     f"Stage 50%: {GIST}\nIt could not be rolled back: {GIST}{ABOVE}"),
    (by_module(rollback=ROLLED_BACK | {"msg": "1 of 1 is back"}, is_fleet=True),
     "Stage 50%: all the words\nRolled back: 1 of 1 is back.",
     f"Stage 50%: {GIST}\nRolled back: 1 of 1 is back.{ABOVE}"),
    (by_check(rollback=ROLLED_BACK),
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503\nand a page of HTML.\n"
     "shop is rolled back to myimage:v1: 4 of 4 replicas available.",
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503.\n"
     "shop is rolled back to myimage:v1: 4 of 4 replicas available."),
    (by_check(),
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503\nand a page of "
     "HTML.\nThe update is left at that stage.\n"
     "Next: run the same task again to resume, or run baton.kubernetes.rollback to roll back.",
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503.\nThe update is left "
     "at that stage.\n"
     "Next: run the same task again to resume, or run baton.kubernetes.rollback to roll back."),
    (by_check("before"),
     "smoke.yml has failed before the update of shop, which was not started: It answers: "
     "503\nand a "
     "page of HTML.",
     "smoke.yml has failed before the update of shop, which was not started: It answers: 503."),
    (by_check("after"),
     f"{updated()['msg']}, but then smoke.yml has failed: It answers: 503\nand a page of HTML.",
     f"{updated()['msg']}, but then smoke.yml has failed: It answers: 503."),
], ids=["left half-way", "back by the module", "role rollback", "not back", "others back",
        "check, back", "check, left", "before",
        "after"])
def test_what_is_said_of_a_failure(end, message, error):
    """The message has the module's words; the error has only their gist."""
    assert (end.message, end.error) == (message, error)


@pytest.mark.parametrize("result, reason, gist", [
    ({"msg": "no such host"}, "no such host", ""),
    ({"msg": "non-zero return code", "stderr": "curl: (7)"}, "non-zero return code: curl: (7)", ""),
    ({"msg": "One or more items failed",
      "results": [{"msg": "fine"}, {"failed": True, "msg": "this one"}, {"failed": True}]},
     "this one", ""),
    ({"msg": "All items completed", "results": [{"msg": "fine"}]}, "All items completed", ""),
    (failed(), "it failed", GIST),
    (failed() | {"failure": {"what": "2 of 3 controllers failed"}}, "it failed",
     "2 of 3 controllers failed."),
    ({}, "no message", ""), ({"msg": ["a", "list"]}, "['a', 'list']", ""),
    ({"msg": "x" * 2000}, "x" * 997 + "...", ""),
    (failed() | {"_ansible_no_log": True}, "its output is hidden by no_log", ""),
], ids=["message", "stderr", "loop", "loop that fails as a whole", "module", "fleet", "nothing",
        "a list", "long", "hidden"])
def test_why_a_task_has_failed(result, reason, gist):
    assert ending.failed_task(result, "Try") == {"task": "Try", "reason": reason, "gist": gist,
                                                 "measured": {}}


class Lazy(dict):
    """Dictionary as Ansible passes to filters: items() is not a set."""

    def items(self):
        yield from super().items()


def to(images, phase="paused", name="foo"):
    return [{"name": name, "phase": phase, "successor": {"images": Lazy(images)}}]


@pytest.mark.parametrize("rollouts, image, images, is_aborted", [
    (to({"web": "v2"}), "v1", {}, True), (to({"web": "v1"}), "v1", {}, False),
    (to({"web": "v2"}, "progressing"), "v1", {}, True),
    (to({"web": "v2"}, "complete"), "v1", {}, False),
    (to({"web": "v2"}, "taking_over"), "v1", {}, False),
    (to({"web": "v1", "log": "v3"}), "", {"web": "v1"}, False),
    (to({"web": "v1"}), "", {"web": "v1", "log": "v3"}, True),
    ([{"name": "foo", "phase": "progressing", "successor": None}], "v1", {}, True),
    ([], "v1", {}, False),
], ids=["elsewhere", "there", "at work", "ended", "handover", "images", "other images",
        "no successor", "no controller"])
def test_an_update_that_leads_elsewhere_is_aborted(rollouts, image, images, is_aborted):
    assert aborted(rollouts, image=image, images=Lazy(images)) == ["foo"] * is_aborted


def aborted(rollouts, by_labels=False, previous=None, **images):
    selection = {"label_selectors": ["app=x"]} if by_labels else {"names": ["foo"]}
    options = {"image": None, **{option: value for option, value in images.items() if value}}
    return names_to_abort(rollouts,
                           Request.of(variables(role="rollback", selection=selection,
                                                options=options,
                                                previous=previous or {})))


def test_the_image_of_another_container_is_not_where_an_update_leads():
    rollouts = to({"web": "v2", "log": "v1"})

    assert (aborted(rollouts, image="v1", container="web") == ["foo"]
            and aborted(rollouts, image="v2", container="web") == [])


def test_of_many_those_are_aborted_that_lead_elsewhere():
    rollouts = [*to({"web": "shop:v2"}), *to({"web": "shop:v1"}, name="back"),
                *to({"web": "shop:v2"}, "complete", "ended"),
                *to({"web": "db:v3"}, name="other")]

    assert aborted(rollouts, image="shop:v1") == ["foo", "other"]
    assert aborted(rollouts, by_labels=True, image="shop:v1") == ["foo"], (
        "the image is not for the other")
    assert aborted(rollouts, by_labels=True, images={"web": "shop:v1"}) == ["foo", "other"]
    assert aborted(rollouts,
                   previous={"foo": {"web": "shop:v2"}, "back": {"web": "shop:v0"}}) == [
                       "back", "other"]


def artifacts(*results, selection=None, page="", errors=(), role="image_bump", **more):
    request = Request.of(variables(role=role, selection=selection or {"name": "shop"},
                                   errors=list(errors),
                                   options={"kind": "Deployment", "image": "v2", **more}))
    result = {"results": list(results), "msg": "done"} | (results[0] if len(results) == 1 else {})
    history = History([event(Turn("update", "", "update", "100%"), result, {})] if results else [])
    return ending.artifacts(request, history, Ending(request, history), page)


def test_what_a_workflow_gets():
    first, second = seen("v1", "v2", changed=True, msg="done"), seen(
        "v0", "v2", name="b", changed=True)
    same = seen("v2", "v2", name="c")
    place = {"controller_namespace": "shop", "kind": "Deployment", "image": "v2",
             "outcome": "updated", "msg": "done"}

    alone = {"controller": "shop", "names": [], "previous_images": {"web": "v1"},
             "previous_images_by_name": {}}
    assert artifacts(first) == place | alone
    many = artifacts(first, second, same, selection={"names": ["shop", "b", "c"]})
    assert many == place | {"controller": "", "names": ["shop", "b"], "previous_images": {},
                            "previous_images_by_name": {"shop": {"web": "v1"}, "b": {"web": "v0"}}}
    assert artifacts(same, selection={"label_selectors": ["a=b"]})["names"] == ["c"], (
        "one that labels have selected")
    refused = artifacts(errors=["image is needed"])
    assert (refused["outcome"], refused["msg"], refused["names"]) == (
        "failed", "image is needed. Nothing has been changed.", [])


@pytest.mark.parametrize("kinds, kind",
                         [(["StatefulSet"], "StatefulSet"), (["ReplicaSet", "Deployment"], ""),
                          ([], "")])
def test_a_workflow_gets_the_kind_that_was_found_by_the_name(kinds, kind):
    results = [seen("v1", "v2", changed=True, msg="done", name=kind, kind=kind) for kind in kinds]

    assert artifacts(*results, selection={"names": kinds or ["a"]}, kind="")["kind"] == kind


def test_a_workflow_gets_the_images_that_a_rollback_has_come_to():
    rollout_ = {"phase": "complete", "controller": {"images": {"web": "v1", "log": "v3"}}}
    result = {"rollout": rollout_, "changed": True, "msg": "back"}

    variables = artifacts(result, role="rollback", image="v1")
    assert ((variables["image"], variables["outcome"], variables["msg"])
            == ("v1, v3", "rolled_back", "back")
            and "previous_images" not in variables)


def test_a_report_is_stored_with_the_job_unless_it_is_too_long():
    assert artifacts(page="<html>")["report_page"] == "<html>"
    assert artifacts(page="x" * 500_001)["report_page"].startswith(
        "The report has 500001 characters, too many")


@pytest.mark.parametrize("layer, again, back", [
    ("role", "run the same task again", "run baton.kubernetes.rollback"),
    ("playbook", "run the same task again",
     "run `ansible-playbook baton.kubernetes.rollback -e controller=shop -e "
     "controller_namespace=shop`"),
    ("awx", "launch the same job template again",
     "launch the job template *Rollback* with controller shop, controller_namespace shop"),
])
def test_the_next_command_is_in_the_words_of_the_layer(layer, again, back):
    error = failure("check", paused(), layer=layer).error

    assert f"Next: {again} to resume, or {back} to roll back." in error
    assert ("--limit lyon" in error) is (layer == "playbook")


def test_in_awx_the_next_step_is_a_launch_by_the_name_of_the_job_template():
    ended = failure("update", failed(), layer="awx", gist="no pods.")
    ended = Ending(dataclasses.replace(ended.request, job_template="Update shop"), ended.history)

    assert ("Next: relaunch the job, or launch the job template *Update shop* again to resume, or "
            "launch the job template *Rollback* with controller shop, controller_namespace shop "
            "to roll back.") in ended.error
    assert "The reason is shown above" in ended.error and "ansible" not in ended.error


def test_in_awx_a_failed_job_without_an_update_in_progress_is_launched_again():
    error = failure("update", {"changed": False, "failed": True}, layer="awx", gist="no.").error

    assert "Next: launch the same job template again." in error


def test_a_selection_that_a_shell_would_evaluate_is_not_typed():
    request = Request.of(variables(layer="playbook",
                                   selection={"label_selectors": ["app=$(reboot)"]}))

    assert ending.rollback_command(request) == "run baton.kubernetes.rollback"


# A pause to be ended by a person.

PAUSED = (paused()
          | {"rollout": {"phase": "paused", "direction": "forward", "since": "1970-01-01T00:00:50Z",
                         "successor": {"images": {"web": "v2"}},
                         "images": {"before": {"web": "v1"}}}})
ALONE = single(PAUSED)


def now(phase, direction=None, image="v2", name="shop"):
    return {"name": name, "phase": phase, "direction": direction,
            "controller": {"images": {"web": image}}}


@pytest.mark.parametrize("rollouts, at, outcome", [
    ([now("paused", "forward")], 100, "waiting"), ([now("paused", "forward")], 150, "late"),
    (None, 100, "waiting"), (None, 150, "late"),
    ([now("progressing", "forward")], 100, "approved"),
    ([now("progressing", "forward")], 150, "approved"),
    ([now("taking_over", "forward")], 100, "approved"), ([now("complete")], 200, "approved"),
    ([now("complete", image="v1")], 100, "denied"), ([now("progressing", "back")], 100, "waiting"),
    ([now("progressing", "back")], 150, "late"), ([], 100, "denied"),
    ([now("complete", name="of its successor")], 100, "approved"),
])
def test_what_a_person_has_answered(rollouts, at, outcome):
    assert Approval(ALONE, "shop", rollouts, deadline=150, now=at).outcome == outcome


def elsewhere(phase, name="shop"):
    """Another client has gone back meanwhile, and begun an update to v3."""
    return now(phase, "forward", "v1", name) | {"successor": {"images": {"web": "v3"}}}


@pytest.mark.parametrize("rollout_",
                         [elsewhere("progressing"), elsewhere("paused"), elsewhere("taking_over"),
                          None])
def test_what_somebody_else_has_begun_instead_is_neither_approved_nor_rolled_back(rollout_):
    approval = Approval(ALONE, "shop", [rollout_] if rollout_ else [], deadline=150, now=100)

    assert approval.outcome == "denied" and summary(approval.current_result).in_progress == []
    end = failure("approval", approval.current_result)
    assert end.outcome == "failed" and "left at that stage" not in end.message + end.error


def test_of_several_what_is_left_is_rolled_back_and_nothing_else():
    both = fleet(PAUSED | {"name": "a"}, PAUSED | {"name": "b"})

    approval = Approval(both, "", [elsewhere("paused", "a"), now("paused", "forward", name="b")],
                  deadline=150, now=100)

    assert approval.outcome == "denied" and summary(approval.current_result).in_progress == ["b"]


def test_the_goal_of_what_goes_on_is_that_of_its_successor():
    goes_on = now("progressing", "forward", "v1") | {"successor": {"images": {"web": "v2"}}}

    assert Approval(ALONE, "shop", [goes_on], deadline=150, now=200).outcome == "approved"
    goes_back = goes_on | {"direction": "back"}
    assert Approval(ALONE, "shop", [goes_back], deadline=150, now=100).outcome == "waiting"


@pytest.mark.parametrize("answer, outcome",
                         [("approved", "stopped"), ("late", "failed"), ("denied", "failed")])
def test_who_goes_on_when_the_last_look_is_over_is_told_of(answer, outcome):
    """The rollback is refused: another client holds the Lease, or the update has ended."""
    end = by_check(rollback=NOT_ROLLED_BACK, answer=answer)

    assert end.outcome == outcome
    for text in (end.message, end.error):
        assert ("Another client has resumed the update at the last moment" in text) is (
            answer == "approved")
        assert ("could not be rolled back" in text) is (answer != "approved")


@pytest.mark.parametrize("since", ["2999-01-01T00:00:00Z", "soon", None, 7])
def test_nobody_who_may_annotate_a_controller_gives_more_time(since):
    result = single(PAUSED | {"rollout": PAUSED["rollout"] | {"since": since}})

    assert (deadline(ALONE, within=100, wait_start=60) == 150
            and deadline(result, within=100, wait_start=70) == 170)


def test_a_time_that_has_no_end_is_over():
    result = single(PAUSED
                    | {"rollout": PAUSED["rollout"] | {"since": "0001-01-01T00:00:00+23:59"}})

    assert deadline(result, within=100, wait_start=70) == 0


def test_of_several_all_have_to_be_approved():
    both = fleet(PAUSED | {"name": "a"}, PAUSED | {"name": "b"}, updated("c"))

    def outcome(*rollouts):
        return Approval(both, "", list(rollouts), deadline=150, now=100).outcome

    assert outcome(now("complete", name="a"), now("paused", "forward", name="b")) == "waiting"
    assert outcome(now("complete", name="a"), now("complete", name="b")) == "approved"
    assert outcome(now("complete", image="v1", name="a"),
                   now("paused", "forward", name="b")) == "denied"


def test_what_has_been_paused_is_told_as_it_is_now():
    alone = Approval(ALONE, "shop", [now("complete")], 150, 100).current_result
    assert (alone["rollout"]["phase"] == "complete"
            and alone["rollout"]["images"] == {"before": {"web": "v1"}})
    assert alone["steps"] == PAUSED["steps"] and alone["rollout"] == alone["results"][0]["rollout"]
    many = Approval(fleet(PAUSED | {"name": "a"}, updated("c")), "", [now("complete", name="a")],
                    150, 100).current_result
    assert [result["rollout"]["phase"] for result in many["results"]] == ["complete", "complete"]
    assert Approval(ALONE, "shop", None, 150, 100).current_result == ALONE


def test_one_that_somebody_has_rolled_back_is_not_left_anywhere():
    end = failure("check",
                 PAUSED
                 | {"rollout": now("complete", image="v1")
                    | {"last_rollout": {"outcome": "rolled_back"}}})

    assert end.outcome == "rolled_back" and "left at that stage" not in end.message + end.error

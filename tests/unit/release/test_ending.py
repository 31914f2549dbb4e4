# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Report outcome, message, error and artifacts for each way to end a release."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from forged import HOST_NAMES
from releases import NOW, variables
from results import failed, module_result, paused, rollout, updated

from ansible_collections.baton.kubernetes.plugins.module_utils.release import ending, next_steps
from ansible_collections.baton.kubernetes.plugins.module_utils.release.aborts import names_to_abort
from ansible_collections.baton.kubernetes.plugins.module_utils.release.approval import (
    Approval,
    deadline,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.batches import host_pattern
from ansible_collections.baton.kubernetes.plugins.module_utils.release.ending import Ending
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import (
    Event,
    History,
    Turn,
    failure_without_result,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.release.summary import Summary

SKIPPED = {"name": "app-3", "skipped": True, "failed": False, "changed": False,
           "msg": "not started, because 1 of the others failed (app-2)", "rollout": {}}
ROLLED_BACK = {"changed": True, "failed": False,
               "msg": "shop is rolled back to myimage:v1: 4 of 4 replicas available"}
NOT_ROLLED_BACK = failed() | {"msg": "the long reason of the second failure"}
ROLLED_BACK_BY_MODULE = failed() | {
    "rollout": rollout("shop", "complete", {"outcome": "rolled_back"})}
REFUSED = failed() | {"changed": False, "rollout": rollout("shop", "paused")}
SHORT_REASON = "ReplicationController default/shop: the new pods cannot become available."
NEXT = "run the role baton.kubernetes.rollback with rollback_name=shop rollback_namespace=shop"
IN_PROGRESS = ("The update is still in progress.\n"
               f"Next: run the same task again to resume, or {NEXT} to roll back.")
SEE_ABOVE = "\nThe reason is shown above, at the failed task 'Roll shop'."


def summary(result):
    return Summary.of(with_results(result))


def fleet(*results):
    return {"results": list(results)}


def with_results(result):
    return result if not result or "results" in result else module_result(result)


def ending_of_failure(purpose, result=None, rollback=None, reason="the long reason",
                      short_reason="",
                      task="Roll shop", answer="", is_fleet=False, layer="role",
                      on_failure="stop"):
    """Return the Ending of a run that fails in a turn with this purpose.

    result, rollback: the results of the last update, and of the role's rollback, if any.
    """
    role, host = (("rollback", "") if purpose == "rollback"
                  else ("image_bump", "lyon" if layer == "playbook" else ""))
    request = Request.of(variables(role=role, layer=layer, host=host,
                                   options={"on_failure": on_failure},
                                   selection={"names": ["shop"]} if is_fleet else {"name": "shop"}))
    failure = failure_without_result(task, reason) | {
        "gist": short_reason, "has_next_command": "\nNext:" in reason}
    stage = "" if purpose == "before" else "50%"
    events = [event(Turn("update", "", "update", stage), with_results(result or {}),
                    failure if purpose == "update" else {})] if purpose != "before" else []
    if purpose == "rollback":
        events = [event(Turn("update", "", "rollback"), with_results(result or {}), failure)]
    elif purpose != "update":
        events.append(event(Turn("run", "", purpose, stage, "smoke.yml"),
                            with_results(result or {}) if purpose == "approval" else {}, failure))
    if rollback is not None:
        events.append(event(Turn("update", "", "rollback", stage), with_results(rollback),
                            {"reason": "x"} if rollback.get("failed") else {}))
    if answer:
        events.append(event(Turn("look", "", "look", stage), {"answer": answer}, {}))
    return Ending(request, History(events))


def event(turn, result, failure):
    return Event(turn, NOW, NOW, result, failure)


def ending_by_module(purpose="update", result=None, rollback=None, **more):
    return ending_of_failure(purpose, result or failed(), rollback, short_reason=SHORT_REASON,
                             **more)


def ending_by_check(purpose="check", rollback=None, **more):
    return ending_of_failure(purpose, paused() if purpose == "check" else updated(), rollback,
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
], ids=["not started", "updated", "paused", "failed", "fleet at a stage", "failed and skipped",
        "one failed, one paused", "no controllers",
        "one controller ended before the stage"])
def test_status_of_the_controllers(result, outcome, is_paused, in_progress):
    """`names_in_progress` lists the controllers that the role still has to roll back."""
    status = summary(result)

    assert ((status.outcome, status.is_paused, status.names_in_progress)
            == (outcome, is_paused, in_progress))


@pytest.mark.parametrize("result, outcome", [
    (paused(), "passed"), (updated(), "passed"),
    (fleet(paused("app-1"), updated("app-2"), SKIPPED), "passed"),
    (paused() | {"rollout": rollout("shop", "progressing")}, "stopped"),
], ids=["paused", "updated", "fleet", "ended before the stage"])
def test_stage_passes_only_if_reached(result, outcome):
    assert summary(result).stage_outcome == outcome


def test_sizes_of_all_controllers():
    paused_result = (paused("app-2")
                     | {"rollout": {"desired": 4, "controller": {"replicas": 3},
                                    "successor": {"replicas": 1}}})
    deleted = {"name": "app-3", "rollout": {"desired": None, "controller": None, "successor": None}}

    assert summary(paused_result | {"name": "shop"}).sizes == {"desired": 4, "old": 3, "new": 1}
    assert summary(fleet(paused_result, paused_result | {"name": "app-4"}, deleted,
                         SKIPPED)).sizes == {"desired": 8, "old": 6, "new": 2}


def test_summary_names_the_controllers():
    assert summary(updated()).rollouts == {"shop": updated()["rollout"]}
    assert list(summary(fleet(updated("app-1"), SKIPPED)).rollouts) == ["app-1", "app-3"]


def result_with_record(before, after, phase="complete", name="shop", **more):
    """Return the result of a task, with a forged record in last_rollout."""
    forged_record = {"outcome": "updated", "from": {"web": "evil"}, "to": {"web": after}}
    images = {"before": {"web": before, "log": "v3"} if before else {},
              "after": {"web": after, "log": "v3"}}
    return {"name": name, "failed": False,
            "rollout": {"phase": phase, "last_rollout": forged_record, "images": images}, **more}


@pytest.mark.parametrize("results, images", [
    ([result_with_record("v1", "v2")], {"web": "v1"}),
    ([result_with_record("v1", "v1", "paused"), result_with_record("v1", "v2")], {"web": "v1"}),
    ([result_with_record("v1", "v1", "paused")], {}),
    ([result_with_record("v2", "v2")], {}),
    ([result_with_record("", "v2")], {}),
    ([result_with_record("v1", "v1", "paused"), result_with_record("v1", "v1")], {}),
    ([result_with_record("v1", "v2", failed=True)], {}),
    ([result_with_record("v1", "v2", skipped=True)], {}),
    ([result_with_record("v1", "v2"), result_with_record("v1", "v2", name="other")], {"web": "v1"}),
    ([result_with_record("v1", "v2"), result_with_record("v2", "v2", name="other")], {"web": "v1"}),
    ([result_with_record("v1", "v2"), result_with_record("v0", "v2", name="other")], {}),
    ([result_with_record("v1", "v2"), result_with_record("v1", "v1", "paused", name="other")], {}),
    ([], {}),
], ids=["updated", "in stages", "paused", "no change", "resumed in the handover", "rolled back",
        "failed", "skipped", "fleet",
        "fleet with one updated controller", "fleet with different images",
        "fleet with a paused controller",
        "not started"])
def test_previous_images_are_those_that_the_run_observed(results, images):
    request = Request.of(variables(selection={"names": ["shop", "other"]}))
    history = History([event(Turn("update", "", "update"), {"results": [result]}, {})
                       for result in results])

    assert Ending(request, history).previous_images == images


@pytest.mark.parametrize("end, outcome", [
    (ending_by_check("before"), "failed"), (ending_by_check("after"), "failed"),
    (ending_by_check(rollback=ROLLED_BACK), "rolled_back"),
    (ending_by_check(rollback=NOT_ROLLED_BACK), "failed"),
    (ending_by_check(), "stopped"),
    (ending_by_module(), "stopped"), (ending_by_module(result=REFUSED), "failed"),
    (ending_by_module(result=ROLLED_BACK_BY_MODULE), "rolled_back"),
    (ending_by_module(result=ROLLED_BACK_BY_MODULE | {"changed": False}), "failed"),
    (ending_by_module(result=ROLLED_BACK_BY_MODULE, is_fleet=True), "failed"),
    (ending_by_module(rollback=ROLLED_BACK), "rolled_back"),
    (ending_by_module(rollback=NOT_ROLLED_BACK), "failed"),
    (ending_of_failure("update"), "failed"), (ending_by_module("rollback"), "failed"),
], ids=["before", "after", "check, rolled back", "check, failed rollback", "check, stopped",
        "stopped by the module", "not started", "rolled back by the module",
        "rolled back by another task", "fleet rolled back despite on_failure=stop",
        "rolled back by the role",
        "not rolled back by the role", "no result", "role rollback"])
def test_outcome_of_a_failure(end, outcome):
    assert end.outcome == outcome


@pytest.mark.parametrize("end, message, error", [
    (ending_by_module(), f"Stage 50%: the long reason\n{IN_PROGRESS}",
     f"Stage 50%: {SHORT_REASON}\n{IN_PROGRESS}{SEE_ABOVE}"),
    (ending_by_module(result=ROLLED_BACK_BY_MODULE), "Stage 50%: the long reason",
     f"Stage 50%: {SHORT_REASON}{SEE_ABOVE}"),
    (ending_by_module("rollback", task="Roll shop"), "Roll shop: the long reason",
     f"Roll shop: {SHORT_REASON}{SEE_ABOVE}"),
    (ending_by_module(rollback=NOT_ROLLED_BACK),
     "Stage 50%: the long reason\n"
     "The update could not be rolled back: the long reason of the second failure\n"
     f"Next: when the cause is fixed, {NEXT}.",
     f"Stage 50%: {SHORT_REASON}\nThe update could not be rolled back: {SHORT_REASON}\n"
     f"Next: when the cause is fixed, {NEXT}.{SEE_ABOVE}"),
    (ending_by_module(rollback=ROLLED_BACK | {"msg": "1 of 1 is back"}, is_fleet=True),
     "Stage 50%: the long reason\nRolled back: 1 of 1 is back.",
     f"Stage 50%: {SHORT_REASON}\nRolled back: 1 of 1 is back.{SEE_ABOVE}"),
    (ending_by_check(rollback=ROLLED_BACK),
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503\nand a page of HTML.\n"
     "shop is rolled back to myimage:v1: 4 of 4 replicas available.",
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503.\n"
     "shop is rolled back to myimage:v1: 4 of 4 replicas available."),
    (ending_by_check(),
     "The check smoke.yml has failed at stage 50% of shop: It answers: 503\nand a page of "
     f"HTML.\n{IN_PROGRESS}",
     f"The check smoke.yml has failed at stage 50% of shop: It answers: 503.\n{IN_PROGRESS}"),
    (ending_by_check("before"),
     "smoke.yml has failed before the update of shop, which was not started: It answers: "
     "503\nand a "
     "page of HTML.",
     "smoke.yml has failed before the update of shop, which was not started: It answers: 503."),
    (ending_by_check("after"),
     f"{updated()['msg']}, but then smoke.yml has failed: It answers: 503\nand a page of HTML.",
     f"{updated()['msg']}, but then smoke.yml has failed: It answers: 503."),
], ids=["stopped by the module", "rolled back by the module", "role rollback", "failed rollback",
        "rolled back by the role", "check, rolled back", "check, stopped", "before",
        "after"])
def test_message_and_error_of_a_failure(end, message, error):
    assert (end.message, end.error) == (message, error)


@pytest.mark.parametrize("next_lines", ["\nNext: kubectl get pods", "\nNext:\n- kubectl get pods",
                                        ""])
def test_error_refers_to_the_next_command_of_the_failed_task_only_if_it_has_one(next_lines):
    end = ending_by_module(reason=f"no such host{next_lines}")

    assert (SEE_ABOVE in end.error) is not bool(next_lines)
    assert ("The reason and the next command are shown above" in end.error) is bool(next_lines)


@pytest.mark.parametrize("layer, is_named", [("role", True), ("playbook", True), ("awx", False)])
def test_error_in_awx_does_not_name_the_command_of_the_failed_task(layer, is_named):
    end = ending_by_module(reason="no such host\nNext: kubectl get pods", layer=layer)

    assert ("The reason and the next command are shown above" in end.error) is is_named
    assert ("The reason is shown above" in end.error) is not is_named


@pytest.mark.parametrize("result, reason, short_reason", [
    ({"msg": "no such host"}, "no such host", ""),
    ({"msg": "non-zero return code", "stderr": "curl: (7)"}, "non-zero return code: curl: (7)", ""),
    ({"msg": "One or more items failed",
      "results": [{"msg": "fine"}, {"failed": True, "msg": "this one"}, {"failed": True}]},
     "this one", ""),
    ({"msg": "All items completed", "results": [{"msg": "fine"}]}, "All items completed", ""),
    (failed(), "it failed", SHORT_REASON),
    (failed() | {"failure": {"what": "2 of 3 controllers failed"}}, "it failed",
     "2 of 3 controllers failed."),
    ({}, "no message", ""), ({"msg": ["a", "list"]}, "['a', 'list']", ""),
    ({"msg": "x" * 2000}, "x" * 997 + "...", ""),
    *((hidden, "its output is hidden by no_log", "") for hidden in (
        failed() | {"_ansible_no_log": True},
        {"results": [{"failed": True, "stderr": "the key", "_ansible_no_log": True}]},
        {"results": [{"failed": True, "stderr": "the key"}, {"_ansible_no_log": True}]},
        {"results": [{"failed": True, "msg": "the key",
                      "results": [{"censored": "the output has been hidden"}]}]})),
], ids=["message", "stderr", "loop", "failed loop", "module", "fleet", "empty",
        "list", "long", "hidden", "hidden loop", "hidden item", "hidden item in an item"])
def test_reason_of_a_failed_task(result, reason, short_reason):
    assert ending.task_failure(result, "Try") == {"task": "Try", "reason": reason,
                                                  "gist": short_reason, "has_next_command": False,
                                                  "measured": {}}


@pytest.mark.parametrize("result, has_next_command", [
    (failed(), False), (failed() | {"msg": "no such host\nNext: kubectl get pods"}, True),
    (failed() | {"msg": f"{'x' * 2000}\nNext: kubectl get pods"}, True),
    ({"msg": "a task of the user\nNext: kubectl get pods"}, False),
    (failed() | {"msg": None}, False),
    (failed() | {"msg": "hidden\nNext: kubectl get pods", "_ansible_no_log": True}, False),
], ids=["none", "short", "beyond the limit of the reason", "forged", "no message", "hidden"])
def test_failure_records_whether_the_module_names_the_next_command(result, has_next_command):
    assert ending.task_failure(result, "Try")["has_next_command"] is has_next_command


@pytest.mark.parametrize("no_log, is_hidden", [(True, True), (False, False), ("{{ x }}", True)])
def test_reason_is_hidden_if_the_task_hides_its_output(no_log, is_hidden):
    """ansible-core 2.16 marks no result if the loop itself cannot be evaluated."""
    failure = ending.task_failure({"msg": "not a list: the key"}, "Try", no_log)

    assert ("the key" in failure["reason"]) is not is_hidden


class LazyDict(dict):
    """Dictionary like those in Ansible's filters: items() is an iterator."""

    def items(self):
        yield from super().items()


def rollouts_to(images, phase="paused", name="foo"):
    return [{"name": name, "phase": phase, "successor": {"images": LazyDict(images)}}]


@pytest.mark.parametrize("rollouts, image, images, is_aborted", [
    (rollouts_to({"web": "v2"}), "v1", {}, True), (rollouts_to({"web": "v1"}), "v1", {}, False),
    (rollouts_to({"web": "v2"}, "progressing"), "v1", {}, True),
    (rollouts_to({"web": "v2"}, "complete"), "v1", {}, False),
    (rollouts_to({"web": "v2"}, "taking_over"), "v1", {}, False),
    (rollouts_to({"web": "v1", "log": "v3"}), "", {"web": "v1"}, False),
    (rollouts_to({"web": "v1"}), "", {"web": "v1", "log": "v3"}, True),
    ([{"name": "foo", "phase": "progressing", "successor": None}], "v1", {}, True),
    ([], "v1", {}, False),
], ids=["another image", "requested image", "in progress", "ended", "handover", "images",
        "other images", "no successor", "no controller"])
def test_update_to_another_image_is_aborted(rollouts, image, images, is_aborted):
    assert aborted_names(rollouts, image=image, images=LazyDict(images)) == ["foo"] * is_aborted


def aborted_names(rollouts, by_labels=False, previous=None, **images):
    selection = {"label_selectors": ["app=x"]} if by_labels else {"names": ["foo"]}
    options = {"image": None, **{option: value for option, value in images.items() if value}}
    return names_to_abort(rollouts,
                          Request.of(variables(role="rollback", selection=selection,
                                               options=options,
                                               previous=previous or {})))


def test_image_of_another_container_is_ignored():
    rollouts = rollouts_to({"web": "v2", "log": "v1"})

    assert (aborted_names(rollouts, image="v1", container="web") == ["foo"]
            and aborted_names(rollouts, image="v2", container="web") == [])


def test_updates_of_a_fleet_to_another_image_are_aborted():
    rollouts = [*rollouts_to({"web": "shop:v2"}), *rollouts_to({"web": "shop:v1"}, name="back"),
                *rollouts_to({"web": "shop:v2"}, "complete", "ended"),
                *rollouts_to({"web": "db:v3"}, name="other")]

    assert aborted_names(rollouts, image="shop:v1") == ["foo", "other"]
    assert aborted_names(rollouts, by_labels=True, image="shop:v1") == ["foo"], (
        "the image of the controller `other` is from another repository")
    assert aborted_names(rollouts, by_labels=True, images={"web": "shop:v1"}) == ["foo", "other"]
    assert aborted_names(rollouts,
                         previous={"foo": {"web": "shop:v2"}, "back": {"web": "shop:v0"}}) == [
                             "back", "other"]


def artifacts(*results, selection=None, page="", errors=(), role="image_bump", **more):
    request = Request.of(variables(role=role, selection=selection or {"name": "shop"},
                                   errors=list(errors),
                                   options={"kind": "Deployment", "image": "v2", **more}))
    result = {"results": list(results), "msg": "done"} | (results[0] if len(results) == 1 else {})
    history = History([event(Turn("update", "", "update", "100%"), result, {})] if results else [])
    return ending.artifacts(request, history, Ending(request, history), page)


def test_artifacts_for_a_workflow():
    first, second = result_with_record("v1", "v2", changed=True, msg="done"), result_with_record(
        "v0", "v2", name="b", changed=True)
    same = result_with_record("v2", "v2", name="c")
    shared_values = {"controller_namespace": "shop", "kind": "Deployment", "image": "v2",
                     "outcome": "updated", "msg": "done", "commands": []}

    single_controller_values = {"controller": "shop", "names": [], "previous_images": {"web": "v1"},
                                "previous_images_by_name": {}}
    assert artifacts(first) == shared_values | single_controller_values
    result = artifacts(first, second, same, selection={"names": ["shop", "b", "c"]})
    assert result == shared_values | {
        "controller": "", "names": ["shop", "b"], "previous_images": {},
        "previous_images_by_name": {"shop": {"web": "v1"}, "b": {"web": "v0"}}}
    assert artifacts(same, selection={"label_selectors": ["a=b"]})["names"] == ["c"], (
        "unchanged controllers are listed if none has changed")
    paused = [{"name": name, "changed": name == "b", "rollout": {"phase": "paused"}}
              for name in ("a", "b")]
    assert artifacts(*paused, same, selection={"label_selectors": ["a=b"]})["names"] == [
        "a", "b"], "a controller that an earlier job has paused is listed"
    error_artifacts = artifacts(errors=["image is needed"])
    assert (error_artifacts["outcome"], error_artifacts["msg"], error_artifacts["names"]) == (
        "failed", "image is needed. Nothing has been changed.", [])


@pytest.mark.parametrize("kinds, kind",
                         [(["StatefulSet"], "StatefulSet"), (["ReplicaSet", "Deployment"], ""),
                          ([], "")])
def test_artifacts_have_the_kind(kinds, kind):
    results = [result_with_record("v1", "v2", changed=True, msg="done", name=kind, kind=kind)
               for kind in kinds]

    assert artifacts(*results, selection={"names": kinds or ["a"]}, kind="")["kind"] == kind


def test_artifacts_have_the_images_of_a_rollback():
    rollout_ = {"phase": "complete", "controller": {"images": {"web": "v1", "log": "v3"}}}
    result = {"rollout": rollout_, "changed": True, "msg": "back"}

    artifacts_ = artifacts(result, role="rollback", image="v1")
    assert ((artifacts_["image"], artifacts_["outcome"], artifacts_["msg"])
            == ("v1, v3", "rolled_back", "back")
            and "previous_images" not in artifacts_)


def test_report_is_an_artifact_unless_too_long():
    assert artifacts(page="<html>")["report_page"] == "<html>"
    assert artifacts(page="x" * 500_001)["report_page"].startswith(
        "The report has 500001 characters, too many")


@pytest.mark.parametrize("layer, resume, rollback_step", [
    ("role", "run the same task again", "run the role baton.kubernetes.rollback with "
     "rollback_name=shop rollback_namespace=shop"),
    ("playbook", "run the same task again",
     "run the playbook baton.kubernetes.rollback with the same inventory and `--limit lyon "
     "-e controller=shop -e controller_namespace=shop`"),
    ("awx", "launch the same job template again",
     "launch the job template *Rollback* with controller shop, controller_namespace shop"),
])
def test_error_names_the_next_steps_of_each_layer(layer, resume, rollback_step):
    error = ending_of_failure("check", paused(), layer=layer).error

    assert f"Next: {resume} to resume, or {rollback_step} to roll back." in error
    assert ("--limit lyon" in error) is (layer == "playbook")


def test_next_step_in_awx_names_the_job_template():
    end = ending_of_failure("update", failed(), layer="awx", short_reason="no pods.")
    end = Ending(dataclasses.replace(end.request, job_template="Update shop"), end.history)

    assert ("Next: relaunch the job, or launch the job template *Update shop* again to resume, or "
            "launch the job template *Rollback* with controller shop, controller_namespace shop "
            "to roll back.") in end.error
    assert "The reason is shown above" in end.error and "ansible" not in end.error


def test_next_step_in_awx_after_no_change_is_a_new_launch():
    error = ending_of_failure("update", {"changed": False, "failed": True}, layer="awx",
                              short_reason="no.").error

    assert "Next: launch the same job template again." in error


def test_unsafe_selection_is_quoted_or_left_out():
    request = Request.of(variables(layer="playbook",
                                   selection={"label_selectors": ["app=$(reboot)"]}))

    (_repeat, command) = next_steps.commands(request, is_resumable=True, is_paused=False)
    assert shlex.split(command)[-1] == (
        '{"controller_namespace":"shop","label_selectors":["app=$(reboot)"]}')
    request = dataclasses.replace(request, selection={"names": ["{{ evil }}"]})
    assert next_steps.rollback_instruction(request) == "run the playbook baton.kubernetes.rollback"


USER_OPTIONS = {"name": "shop", "image": "myimage:v2", "stages": ["10%", "50%"]}


@pytest.mark.parametrize("layer, user_options, is_paused, rerun", [
    ("playbook", USER_OPTIONS, False,
     "ansible-playbook baton.kubernetes.image_bump -e context=lyon "
     "-e controller=shop -e image=myimage:v2 -e stages=10%,50%"),
    ("playbook", USER_OPTIONS, True,
     "ansible-playbook baton.kubernetes.image_bump -e context=lyon "
     "-e controller=shop -e image=myimage:v2 -e stages=100%"),
    ("playbook", {"stages": [{"pods": "10%", "traffic": "1%"}, "50%"]}, False,
     "ansible-playbook baton.kubernetes.image_bump -e context=lyon -e stages=10%/1%,50%"),
    ("playbook", {"stages": "10%,50%"}, False,
     "ansible-playbook baton.kubernetes.image_bump -e context=lyon -e stages=10%,50%"),
    ("playbook", {"verify_tasks": ["a.yml", "b.yml"]}, False,
     "ansible-playbook baton.kubernetes.image_bump -e "
     """'{"context":"lyon","verify_tasks":["a.yml","b.yml"]}'"""),
    ("playbook", {"image": "{{ evil }}"}, False, "run the same command again"),
    ("playbook", {}, False, "run the same command again"),
    ("playbook", {}, True, "run the same command again with stages=100%"),
    ("role", USER_OPTIONS, False, "run the role baton.kubernetes.image_bump again"),
    ("role", USER_OPTIONS, True, "run the role baton.kubernetes.image_bump again with "
     "image_bump_stages=100%"),
    ("awx", USER_OPTIONS, False, "relaunch the job, or launch the job template *Shop* again"),
    ("awx", USER_OPTIONS, True, "launch the job template *Shop* again with stages=100%"),
])
def test_next_commands_of_each_layer(layer, user_options, is_paused, rerun):
    request = dataclasses.replace(
        Request.of(variables(layer=layer, user_options=user_options, cluster={"context": "lyon"})),
        job_template="Shop")
    rollback_step = {
        "playbook": "ansible-playbook baton.kubernetes.rollback -e context=lyon "
                    "-e controller=a -e controller_namespace=shop",
        "role": "run the role baton.kubernetes.rollback with rollback_name=a "
                "rollback_namespace=shop",
        "awx": "launch the job template *Rollback* with controller a, "
               "controller_namespace shop"}[layer]

    assert next_steps.commands(request, is_resumable=True, is_paused=is_paused) == [
        rerun, rollback_step]
    assert next_steps.commands(request, is_resumable=False, is_paused=is_paused) == [rerun]


INVENTORY_ROLLBACK = "run the playbook baton.kubernetes.rollback with the same inventory and "


@pytest.mark.parametrize("layer, hosts, rerun, rollback_step", [
    ("playbook", {"host": "lyon"}, "run the same command again with --limit lyon",
     f"{INVENTORY_ROLLBACK}`--limit lyon -e controller=a -e controller_namespace=shop`"),
    ("playbook", {"host": "lyon", "cluster": {"kubeconfig": None}},
     "run the same command again with --limit lyon", f"{INVENTORY_ROLLBACK}`--limit lyon`"),
    ("playbook", {"selects_hosts": True}, "run the same command again",
     f"{INVENTORY_ROLLBACK}`--limit localhost -e controller=a -e controller_namespace=shop`"),
    ("awx", {"host": "lyon"}, "launch the same job template again",
     "launch the job template *Rollback* with limit lyon, controller a, controller_namespace shop"),
    ("role", {"host": "lyon"}, "run the role baton.kubernetes.image_bump again",
     "run the role baton.kubernetes.rollback on the host lyon with rollback_name=a "
     "rollback_namespace=shop"),
])
def test_next_command_for_one_of_many_clusters_is_limited_to_it(layer, hosts, rerun,
                                                                rollback_step):
    request = Request.of(variables(layer=layer, **hosts))

    assert next_steps.commands(request, is_resumable=True, is_paused=False) == [
        rerun, rollback_step]
    assert next_steps.rollback_instruction(request) == rollback_step


@pytest.mark.parametrize("host", HOST_NAMES)
def test_next_commands_select_only_the_host_of_the_cluster(host):
    request = Request.of(variables(layer="playbook", host=host))
    commands = next_steps.commands(request, is_resumable=True, is_paused=False)

    assert [shlex.split(command.partition("--limit ")[2])[0]
            for command in commands] == [host_pattern(host)] * 2
    assert f"with limit {host_pattern(host)}, controller a" in next_steps.rollback_instruction(
        dataclasses.replace(request, layer="awx"))


@pytest.mark.parametrize("layer, rerun", [
    ("playbook", "run the same command again with stages=100% and --limit lyon"),
    ("awx", "launch the same job template again with stages=100%"),
    ("role", "run the role baton.kubernetes.image_bump again with image_bump_stages=100%"),
])
def test_next_command_for_one_of_many_clusters_ends_a_pause(layer, rerun):
    request = Request.of(variables(layer=layer, host="lyon"))

    assert next_steps.commands(request, is_resumable=False, is_paused=True) == [rerun]


@pytest.mark.parametrize("options, repeated", [
    ({"lock": "false", "max_surge": "25%", "kind": "Deployment"},
     "-e kind=Deployment -e lock=false -e max_surge=25%"),
    ({"next_name": "b", "deployment_label_key": "version", "container": "web", "soak": "5m",
      "timeout": 60, "on_failure": "stop", "max_failures": "10%"},
     "-e next_name=b -e deployment_label_key=version"),
    ({"lock": True, "concurrency": 5, "progress_deadline": "600"}, ""),
], ids=["kind and lock", "successor and labels", "default values"])
def test_rollback_command_repeats_the_options_of_a_rollback(options, repeated):
    request = Request.of(variables(layer="playbook", options=options))

    (_repeat, command) = next_steps.commands(request, is_resumable=True, is_paused=False)
    assert command == " ".join(filter(None, [
        "ansible-playbook baton.kubernetes.rollback -e controller=a -e controller_namespace=shop",
        repeated]))


@pytest.mark.parametrize("end, count", [
    (ending_of_failure("update", updated()), 1), (ending_of_failure("before"), 1),
    (ending_by_module(), 2), (ending_by_check(), 2), (ending_by_check(rollback=ROLLED_BACK), 1),
    (ending_by_check(rollback=NOT_ROLLED_BACK), 2), (ending_of_failure("rollback", failed()), 1),
], ids=["ended", "not started", "stopped", "paused", "rolled back", "not rolled back", "rollback"])
def test_commands_of_a_failure(end, count):
    assert len(ending.next_commands(end)) == count, ending.next_commands(end)


def test_paused_run_has_the_commands_to_resume_and_to_roll_back():
    request = Request.of(variables(stages=["50%"]))
    history = History([event(Turn("update", "", "update", "50%"), module_result(paused()), {})])

    assert len(ending.next_commands(Ending(request, history))) == 2
    assert ending.next_commands(Ending(Request.of(variables(errors=["x"])), History([]))) == []


# Approval of a paused update

PAUSED = (paused()
          | {"rollout": {"phase": "paused", "direction": "forward", "since": "1970-01-01T00:00:50Z",
                         "successor": {"images": {"web": "v2"}},
                         "images": {"before": {"web": "v1"}}}})
SINGLE_PAUSED = module_result(PAUSED)


def current_rollout(phase, direction=None, image="v2", name="shop"):
    return {"name": name, "phase": phase, "direction": direction,
            "controller": {"images": {"web": image}}}


@pytest.mark.parametrize("rollouts, now, outcome", [
    ([current_rollout("paused", "forward")], 100, "waiting"),
    ([current_rollout("paused", "forward")], 150, "late"),
    (None, 100, "waiting"), (None, 150, "late"),
    ([current_rollout("progressing", "forward")], 100, "approved"),
    ([current_rollout("progressing", "forward")], 150, "approved"),
    ([current_rollout("taking_over", "forward")], 100, "approved"),
    ([current_rollout("complete")], 200, "approved"),
    ([current_rollout("complete", image="v1")], 100, "denied"),
    ([current_rollout("progressing", "back")], 100, "waiting"),
    ([current_rollout("progressing", "back")], 150, "late"), ([], 100, "denied"),
    ([current_rollout("complete", name="shop-successor")], 100, "approved"),
])
def test_outcome_of_an_approval(rollouts, now, outcome):
    assert Approval(SINGLE_PAUSED, "shop", rollouts, deadline=150, now=now).outcome == outcome


def update_by_another_client(phase, name="shop"):
    """Return the rollout of an update to v3 by another client."""
    return current_rollout(phase, "forward", "v1", name) | {"successor": {"images": {"web": "v3"}}}


@pytest.mark.parametrize("rollout_",
                         [update_by_another_client("progressing"),
                          update_by_another_client("paused"),
                          update_by_another_client("taking_over"), None])
def test_update_of_another_client_is_not_rolled_back(rollout_):
    approval = Approval(SINGLE_PAUSED, "shop", [rollout_] if rollout_ else [], deadline=150,
                        now=100)

    assert approval.outcome == "denied" and summary(approval.current_result).names_in_progress == []
    end = ending_of_failure("approval", approval.current_result)
    assert end.outcome == "failed" and "still in progress" not in end.message + end.error


def test_remaining_updates_are_rolled_back():
    fleet_result = fleet(PAUSED | {"name": "a"}, PAUSED | {"name": "b"})

    rollouts = [update_by_another_client("paused", "a"),
                current_rollout("paused", "forward", name="b")]
    approval = Approval(fleet_result, "", rollouts, deadline=150, now=100)

    assert approval.outcome == "denied"
    assert summary(approval.current_result).names_in_progress == ["b"]


def test_resumed_update_is_approved_unless_it_is_reversed():
    update = (current_rollout("progressing", "forward", "v1")
              | {"successor": {"images": {"web": "v2"}}})

    assert Approval(SINGLE_PAUSED, "shop", [update], deadline=150, now=200).outcome == "approved"
    reversed_update = update | {"direction": "back"}
    assert Approval(SINGLE_PAUSED, "shop", [reversed_update], deadline=150,
                    now=100).outcome == "waiting"


@pytest.mark.parametrize("answer, outcome",
                         [("approved", "stopped"), ("late", "failed"), ("denied", "failed")])
def test_resume_after_the_deadline_is_reported(answer, outcome):
    """The rollback is rejected, for example because another client holds the Lease."""
    end = ending_by_check(rollback=NOT_ROLLED_BACK, answer=answer)

    assert end.outcome == outcome
    for text in (end.message, end.error):
        assert ("Another client has resumed the update at the last moment" in text) is (
            answer == "approved")
        assert ("could not be rolled back" in text) is (answer != "approved")


@pytest.mark.parametrize("since", ["2999-01-01T00:00:00Z", "soon", None, 7])
def test_forged_time_does_not_extend_an_approval(since):
    result = module_result(PAUSED | {"rollout": PAUSED["rollout"] | {"since": since}})

    assert (deadline(SINGLE_PAUSED, seconds_to_approve=100, wait_start=60) == 150
            and deadline(result, seconds_to_approve=100, wait_start=70) == 170)


def test_deadline_before_1970_is_0():
    result = module_result(
        PAUSED | {"rollout": PAUSED["rollout"] | {"since": "0001-01-01T00:00:00+23:59"}})

    assert deadline(result, seconds_to_approve=100, wait_start=70) == 0


def test_all_controllers_must_be_approved():
    fleet_result = fleet(PAUSED | {"name": "a"}, PAUSED | {"name": "b"}, updated("c"))

    def outcome(*rollouts):
        return Approval(fleet_result, "", list(rollouts), deadline=150, now=100).outcome

    assert outcome(current_rollout("complete", name="a"),
                   current_rollout("paused", "forward", name="b")) == "waiting"
    assert outcome(current_rollout("complete", name="a"),
                   current_rollout("complete", name="b")) == "approved"
    assert outcome(current_rollout("complete", image="v1", name="a"),
                   current_rollout("paused", "forward", name="b")) == "denied"


def test_result_has_the_current_rollouts_after_an_approval():
    single_result = Approval(SINGLE_PAUSED, "shop", [current_rollout("complete")], 150,
                             100).current_result
    assert (single_result["rollout"]["phase"] == "complete"
            and single_result["rollout"]["images"] == {"before": {"web": "v1"}})
    assert single_result["steps"] == PAUSED["steps"]
    assert single_result["rollout"] == single_result["results"][0]["rollout"]
    fleet_result = Approval(fleet(PAUSED | {"name": "a"}, updated("c")), "",
                            [current_rollout("complete", name="a")], 150, 100).current_result
    assert [result["rollout"]["phase"] for result in fleet_result["results"]] == [
        "complete", "complete"]
    assert Approval(SINGLE_PAUSED, "shop", None, 150, 100).current_result == SINGLE_PAUSED


def test_rollback_by_another_client_is_the_outcome():
    end = ending_of_failure("check",
                            PAUSED
                            | {"rollout": current_rollout("complete", image="v1")
                               | {"last_rollout": {"outcome": "rolled_back"}}})

    assert end.outcome == "rolled_back" and "still in progress" not in end.message + end.error

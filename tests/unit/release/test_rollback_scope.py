# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""After a failure, roll back each controller whose update has begun, or name the controller."""

from __future__ import annotations

import pytest
from releases import NOW, variables
from results import FAILURE

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import MAX_LISTED
from ansible_collections.baton.kubernetes.plugins.module_utils.release.ending import Ending
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import (
    Event,
    History,
    Turn,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.release.rollback_scope import (
    RollbackScope,
    lines_about_remaining_updates,
)

V1, V2, V3 = ({"web": f"myimage:v{number}"} for number in (1, 2, 3))


def result(name, phase, changed=True, failed=False, to=V2, outcome=None):
    rollout = {"phase": phase, "direction": "forward", "controller": {"images": V1},
               "successor": {"images": to},
               "last_rollout": {"outcome": outcome}, "images": {"before": V1, "after": to}}
    return {"name": name, "changed": changed, "failed": failed, "skipped": False,
            "rollout": rollout, "msg": "the words", **({"failure": FAILURE} if failed else {})}


def skipped_result(name):
    return {"name": name, "changed": False, "failed": False, "skipped": True, "msg": "not started"}


PAUSED = result("a", "paused")
#: The controller is deleted, or the API server is unreachable.
LOST = {key: value
        for key, value in result("a", "", changed=False, failed=True).items() if key != "rollout"}
REFUSED = result("a", "paused", changed=False, failed=True)
OTHER_UPDATE = result("a", "paused", changed=False, failed=True, to=V3)
ROLLING_BACK = {**REFUSED, "rollout": {**REFUSED["rollout"], "phase": "progressing",
                                       "direction": "back"}}
ROLLED_BACK = result("a", "complete", failed=True, outcome="rolled_back")
STUCK = result("a", "progressing", failed=True)
UPDATED = result("a", "complete", outcome="updated")
#: The task skips this controller, which another client updates to V3.
SKIPPED = {**result("a", "paused", to=V3), "skipped": True}


@pytest.mark.parametrize("results, last_results, is_rolled_back, is_updated, is_named", [
    ([PAUSED], [PAUSED], True, False, False),
    ([PAUSED, skipped_result("a")], [skipped_result("a")], True, False, False),
    ([PAUSED, REFUSED], [REFUSED], True, False, False),
    ([PAUSED, LOST], [LOST], True, False, False),
    ([PAUSED, OTHER_UPDATE], [OTHER_UPDATE], False, False, False),
    ([REFUSED], [REFUSED], False, False, False),
    ([LOST], [LOST], False, False, False),
    ([skipped_result("a")], [skipped_result("a")], False, False, False),
    ([PAUSED, ROLLED_BACK], [ROLLED_BACK], False, False, False),
    ([PAUSED, STUCK], [STUCK], False, False, True),
    ([PAUSED, UPDATED], [UPDATED], False, True, False),
    ([PAUSED, result("a", "complete", changed=False)], [result("a", "complete", changed=False)],
     False, True, False),
    ([result("a", "complete", changed=False)], [result("a", "complete", changed=False)], False,
     False, False),
    ([PAUSED], [SKIPPED], False, False, False),
    ([PAUSED], [{"name": "", "failed": True, "msg": "a traceback"}], True, False, False),
    ([result("a", "paused", changed=False)], [result("a", "paused", changed=False)], True, False,
     False),
], ids=["paused", "not started in a later stage", "refused in a later stage",
        "deleted or unreachable", "updated by another client later",
        "updated by another client", "never started, lost", "never started",
        "rolled back by the module", "failed rollback of the module",
        "updated", "updated meanwhile", "no change", "updated by another client during an approval",
        "crashed module", "started by an earlier run"])
def test_rollback_of_a_controller(results, last_results, is_rolled_back, is_updated, is_named):
    scope = RollbackScope(results, last_results)

    assert (scope.names_to_roll_back, scope.updated_names, list(scope.failed_result_by_name)) == (
        ["a"] * is_rolled_back, ["a"] * is_updated, ["a"] * is_named)


def ending(results, last_results, rollback=None, what="update", on_failure="rollback"):
    """Return the Ending of a run after a failure.

    what: what has failed, "update" or the purpose of a file that ran after the update.
    """
    failure = {"task": "Update", "reason": "2 of 4 failed"}
    events = [Event(Turn("update", "", "update"), NOW, NOW, {"results": results}),
              Event(Turn("update", "", "update", "100%"), NOW, NOW, last_results,
                    failure if what == "update" else {})]
    events += [Event(Turn("run", "", what), NOW, NOW, {}, failure)] if what != "update" else []
    events += [Event(Turn("update", "", "rollback"), NOW, NOW, rollback)] if rollback else []
    request = Request.of(variables(selection={"names": ["all"]},
                                   options={"on_failure": on_failure}))
    return Ending(request, History(events))


def outcome_and_message(results, rollback=None):
    """Return (outcome, message) of a fleet's release."""
    last_results = {result["name"]: result for result in results}
    end = ending(results, {"changed": True, "failed": True, "results": list(last_results.values())},
                 rollback)
    return end.outcome, end.message


def test_controllers_of_earlier_stages_are_rolled_back_or_named():
    results = [result(name, "paused") for name in "abc"] + [
        LOST, skipped_result("b"), skipped_result("c")]
    rollback_results = [result(name, "complete", outcome="rolled_back") for name in "bc"]

    assert RollbackScope(results, []).names_to_roll_back == ["a", "b", "c"]
    outcome, message = outcome_and_message(results,
                                           {"changed": True, "failed": True, "msg": "1 of 3",
                                            "results": [LOST, *rollback_results]})
    assert outcome == "failed" and "Rolled back: b, c.\n" in message
    assert message.endswith(
        "a is not rolled back: the new pods cannot become available: no such image.\nNext: ansible "
        "...")

    outcome, message = outcome_and_message([*results[:3], ROLLED_BACK, *results[4:]],
                                           {"changed": True, "msg": "2 of 2",
                                            "results": rollback_results})
    assert outcome == "rolled_back" and message.endswith("Rolled back: 2 of 2.")


def test_updated_controllers_are_named_with_a_command():
    results = [result(name, "paused") for name in "abcd"] + [
        UPDATED, {**UPDATED, "name": "b"}, {**ROLLED_BACK, "name": "c"}, skipped_result("d")]

    outcome, message = outcome_and_message(results,
                                           {"changed": True, "msg": "1 of 1",
                                            "results": [result("d", "complete")]})

    assert outcome == "failed" and message.endswith(
        "Updated before the failure, and not rolled back: a, b.\n"
        "Next: run the role baton.kubernetes.rollback with rollback_names=a,b "
        "rollback_image=myimage:v1 rollback_container=web rollback_namespace=shop "
        "to roll them back, too.")


def test_failed_rollback_of_the_module_is_named():
    assert "a is not rolled back: " in outcome_and_message([PAUSED, STUCK])[1]


def test_many_failed_rollbacks_are_counted():
    results = [{**item, "name": name} for item in (PAUSED, STUCK) for name in "abcdefg"]

    message = outcome_and_message(results)[1]

    assert message.count(" is not rolled back: ") == MAX_LISTED
    assert message.endswith("Not rolled back either: f, g.")


def with_previous_image(item, name):
    images = {"before": {"web": f"image-of-{name}:v1"}, "after": {"web": f"image-of-{name}:v2"}}
    return {**item, "name": name, "rollout": {**item["rollout"], "images": images}}


def test_many_groups_of_updated_controllers_are_counted():
    results = [with_previous_image(item, name) for item in (PAUSED, UPDATED) for name in "abcdefg"]

    message = outcome_and_message(results)[1]

    assert message.count("Updated before the failure, and not rolled back: ") == MAX_LISTED
    assert message.endswith("Updated before the failure, and not rolled back either: f, g.")


def test_outcome_after_a_rollback_by_the_module():
    assert (outcome_and_message([ROLLED_BACK, skipped_result("b")])[0] == "rolled_back"
            and outcome_and_message([ROLLED_BACK, {**STUCK, "name": "b"}])[0] == "stopped")


@pytest.mark.parametrize("results, outcome", [
    ([REFUSED], "stopped"), ([LOST], "stopped"), ([skipped_result("a")], "stopped"),
    ([STUCK], "stopped"), ([OTHER_UPDATE], "failed"), ([UPDATED], "failed"),
    ([result("a", "complete", changed=False, failed=True)], "failed"),
    ([ROLLING_BACK], "failed"), ([{**ROLLING_BACK, "changed": True}], "failed"),
], ids=["refused", "unreachable", "not started", "failed", "another update", "updated",
        "rolled back by another client", "another client is rolling back",
        "unfinished rollback of the module"])
def test_outcome_of_a_later_stage_without_a_rollback(results, outcome):
    end = ending([PAUSED], {"failed": True, "results": results}, on_failure="stop")

    assert end.outcome == outcome
    assert ("The update is still in progress." in end.message) is (outcome == "stopped")


def test_several_images_are_named_by_container():
    two_images = (UPDATED
                  | {"rollout": UPDATED["rollout"]
                     | {"images": {"before": {"log": "l:1", **V1}, "after": {"log": "l:2", **V2}}}})

    request = Request.of(variables(layer="playbook", selection={"label_selectors": ["app=x"]},
                                   options={"kind": "Deployment", "lock": False}))

    lines = lines_about_remaining_updates(request, RollbackScope([two_images], []), [])

    arguments = ('{"controller_namespace":"shop","images":{"log":"l:1","web":"myimage:v1"},'
                 '"kind":"Deployment","lock":false,"names":"a"}')
    assert lines[1] == (f"Next: run `ansible-playbook baton.kubernetes.rollback -e '{arguments}'` "
                        "to roll it back, too.")


@pytest.mark.parametrize("what, on_failure", [("after", "rollback"), ("update", "stop")])
def test_no_message_without_a_rollback(what, on_failure):
    end = ending([UPDATED], {"results": [UPDATED]}, None, what, on_failure)

    assert "Updated before the failure" not in end.message


@pytest.mark.parametrize("is_rolled_back_by_module", [True, False])
def test_images_count_unless_the_module_itself_has_rolled_back(is_rolled_back_by_module):
    """Admission may change the image that the module restores."""
    rollout = {"phase": "complete", "last_rollout": {"outcome": "rolled_back"},
               "controller": {"images": {"web": "mirror/myimage:v1"}}}
    paused_rollout = {"phase": "paused", "images": {"before": {"web": "myimage:v1"}}}
    results = [{"name": "a", "changed": True, "rollout": paused_rollout},
               {"name": "a", "changed": is_rolled_back_by_module, "failed": True,
                "rollout": rollout}]

    scope = RollbackScope(results, [])

    assert bool(scope.failed_result_by_name) is not is_rolled_back_by_module

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Revisions: each template is stored once, before its loss, despite kills. Rollbacks to them."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from builders import NOW, UPDATE, rc, record
from clusters import Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven import history
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Delete
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver


class Killed(BaseException):
    """The client dies."""


class World(Cluster):
    """A cluster with revisions, and a client that can be killed at a write."""

    def __init__(self, *items):
        super().__init__(*items)
        self.dies_at, self.after = None, False
        self.may_list, self.denied, self.allowed = True, "", None

    def rules(self):
        return self.allowed

    def revisions(self, uids):
        self.calls.append(("revisions", uids))
        return [item for item in self.cluster.stored_revisions.values()
                if item["metadata"]["labels"][object_meta.HISTORY] in uids
                ] if self.may_list else None

    def write(self, write):
        if write.kind == REVISION and self.denied:
            raise RolloutError(self.denied)
        if len(self.tries) + 1 == self.dies_at and not self.after:
            raise Killed
        landed = super().write(write)
        if len(self.tries) == self.dies_at:
            raise Killed
        return landed

    def roll(self, **params):
        return self.run(parse_request({"name": "foo", **params}))

    def check(self, **params):
        request = parse_request({"name": "foo", **params})
        return driver.simulate(choose(request), request, self)

    def images(self):
        return {name: controller.images["web"] for name, controller in self.controllers().items()}

    def history(self, name="foo"):
        """Return number and image of each revision in the info module's result."""
        primary = self.controllers()[name]
        past = history.revisions(primary, self.revisions([primary.uid]),
                                 object_meta.DEPLOYMENT_LABEL)
        return [(entry["revision"], entry["images"]["web"]) for entry in report.history(past)]


def v(number):
    return {"image": f"myimage:v{number}"}


def back_to(number):
    return {"state": "rolled_back", "to_revision": number}


def kept(result):
    return [step["to"] for step in result["steps"] if step["kind"] == "ControllerRevision"]


def test_what_an_update_replaces_is_kept_just_before_it_is_lost():
    world = World(rc(replicas=1))

    result = world.roll(**v(2))

    actions = [step["action"] for step in result["steps"]]
    assert (actions[actions.index("keep") + 1] == "rename"
            and kept(result) == ["myimage:v1 as revision 1"])
    assert world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
    (item,) = world.cluster.stored_revisions.values()
    assert json.loads(item["data"]["template"]) == rc()["spec"]["template"]
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo", "uid": "uid of foo",
         "controller": True}]


def test_after_an_update_the_way_back_is_a_revision_and_not_what_a_record_says():
    world = World(rc(replicas=1))
    world.roll(**v(2))
    forged = json.dumps({"outcome": "updated", "from": {"web": "evil:v1"}})
    world.cluster.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = forged

    with pytest.raises(RolloutError) as error:
        world.roll(state="rolled_back")

    assert error.value.what == (
        "there is no update in progress to roll back; the previous revision is 1 (myimage:v1)")
    assert error.value.next_command.endswith(" 'name=foo state=rolled_back to_revision=1'")
    world.may_list = False
    with pytest.raises(RolloutError,
                       match=r"there is no update in progress to roll back$") as error:
        world.roll(state="rolled_back")
    assert error.value.next_command.endswith(" 'name=foo image=THE-EARLIER-IMAGE'")


def test_time_and_author_are_those_of_the_update_that_led_there():
    world = World(rc(annotations={
        object_meta.LAST_ROLLOUT: record("updated", "myimage:v0", "myimage:v1", who="jane@desk")}))
    world.roll(**v(2))

    primary = world.controllers()["foo"]
    now, before = history.revisions(primary, world.revisions([primary.uid]),
                                    object_meta.DEPLOYMENT_LABEL)

    assert (before.time, before.who) == (NOW, "jane@desk")
    assert "@" in now.who and now.time > NOW[:10]


def test_an_edited_template_has_no_author():
    primary = Controller.from_api(
        rc(annotations={object_meta.LAST_ROLLOUT: record("updated", who="jane@desk")},
           creationTimestamp="2026-01-01T00:00:00Z"))

    (now,) = history.revisions(primary, [], object_meta.DEPLOYMENT_LABEL)

    assert (now.number, now.time, now.who) == (1, "2026-01-01T00:00:00Z", "")


def test_back_to_a_revision_and_it_is_not_kept_twice():
    world = World(rc())
    world.roll(**v(2))
    world.roll(**v(3))

    result = world.roll(**back_to(1))

    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert world.history() == [(4, "myimage:v1"), (3, "myimage:v3"), (2, "myimage:v2")]
    assert not world.roll(**back_to(1))["changed"] and not world.roll(**back_to(4))["changed"]
    assert kept(world.roll(**v(2))) == ["myimage:v1 as revision 4", "revision 1"]
    assert world.history() == [(5, "myimage:v2"), (4, "myimage:v1"), (3, "myimage:v3")]
    assert len(world.cluster.stored_revisions) == 3


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_no_more_than_asked_for_are_kept(limit):
    world = World(rc(replicas=1))
    for number in (2, 3, 4, 5):
        world.roll(**v(number), revision_history_limit=limit)

    assert world.history() == [(number, f"myimage:v{number}")
                               for number in (5, 4, 3, 2)][:limit + 1]


def test_a_history_of_none_asks_for_nothing_and_writes_nothing():
    world = World(rc(replicas=1))

    result = world.roll(**v(2), revision_history_limit=0)

    assert (kept(result), world.called("revisions"), result["warnings"]) == ([], [], [])


@pytest.mark.parametrize("wish",
                         [v(3), back_to(1), {**v(3), "next_name": "bar"},
                          {**back_to(1), "next_name": "bar"}],
                         ids=["update", "back", "update, next_name", "back, next_name"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_write_the_same_task_ends_with_the_same_history(wish, after):
    """A limit of 1 deletes a revision during the update, but never the target of the rollback."""
    wish = {**wish, "revision_history_limit": 1}

    def begun():
        world = World(rc(replicas=2))
        world.roll(**v(2))
        world.tries.clear()
        return world

    undisturbed = begun()
    undisturbed.roll(**wish)
    name = wish.get("next_name", "foo")
    assert len(undisturbed.tries) > 8
    for number in range(1, len(undisturbed.tries) + 1):
        world = begun()
        world.dies_at, world.after = number, after
        with pytest.raises(Killed):
            world.roll(**wish)
        world.dies_at = None
        world.roll(**wish)
        assert (world.images(), world.history(name)) == (
            undisturbed.images(), undisturbed.history(name)), f"killed at {number}"
        uid = world.controllers()[name].uid
        assert len(world.revisions([uid])) == len(undisturbed.revisions([uid]))
        assert not world.roll(**wish)["changed"]


def test_killed_at_two_writes_of_it_nothing_is_written_twice():
    for first, second in itertools.product(range(5, 9), (1, 2)):
        world = World(rc(replicas=1))
        for number in (first, second):
            world.tries.clear()
            world.dies_at, world.after = number, True
            with pytest.raises(Killed):
                world.roll(**v(2))
        world.dies_at = None
        world.roll(**v(2))
        assert (world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
                and len(world.cluster.stored_revisions) == 1)


def test_the_one_that_stays_inherits_the_history():
    world = World(rc())
    world.roll(**v(2))

    result = world.roll(**v(3), next_name="bar")

    uid = world.controllers()["bar"].uid
    assert kept(result) == ["myimage:v2 as revision 2", "myimage:v1 as revision 1"]
    assert world.history("bar") == [(3, "myimage:v3"), (2, "myimage:v2"), (1, "myimage:v1")]
    assert len(world.revisions([uid])) == 2
    world.roll(name="bar", **back_to(1))
    assert world.images() == {"bar": "myimage:v1"}


def test_an_update_to_something_else_is_rolled_back_first():
    world = World(rc())
    world.roll(**v(2))
    world.roll(**v(3), pause_at="1")

    result = world.roll(**back_to(1))

    assert "delete" in [step["action"] for step in result["steps"][:-5]]
    assert world.images() == {"foo": "myimage:v1"}
    assert world.history() == [(3, "myimage:v1"), (2, "myimage:v2")]


def test_an_update_to_that_very_template_goes_on():
    world = World(rc())
    world.roll(**v(2))
    world.roll(**v(1), pause_at="1")

    world.roll(**back_to(1))

    assert (world.images() == {"foo": "myimage:v1"}
            and world.history() == [(3, "myimage:v1"), (2, "myimage:v2")])


def test_it_is_rolled_back_to_the_present_template_by_undoing_the_update_in_progress():
    world = World(rc())
    world.roll(**v(2), pause_at="1")

    world.roll(**back_to(1))

    assert world.images() == {"foo": "myimage:v1"} and world.history() == [(1, "myimage:v1")]


def test_check_mode_shows_it_and_writes_nothing():
    world = World(rc())
    world.roll(**v(2))
    for wish in (v(3), back_to(1)):
        world.tries.clear()
        planned = world.check(**wish)
        assert world.tries == []
        done = world.roll(**wish)
        assert [(step["action"], step["name"], step["to"]) for step in planned["steps"]] == [
            (step["action"], step["name"], step["to"]) for step in done["steps"]]


def test_a_missing_revision_is_refused_with_the_existing_revisions():
    world = World(rc())
    world.roll(**v(2))

    with pytest.raises(RolloutError) as caught:
        world.roll(**back_to(7))

    assert (caught.value.what == "it has no revision 7"
            and caught.value.why == "it has: 2 (myimage:v2), 1 (myimage:v1)")
    assert "to_revision=2" in caught.value.next_command


def rule(*verbs):
    return {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": list(verbs)}


OTHERS = {"apiGroups": ["", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]}


@pytest.mark.parametrize("hindrance", [
    {"allowed": [OTHERS]}, {"allowed": [OTHERS, rule("list", "create")]}, {"may_list": False},
    {"denied": "a policy says no"},
], ids=["not allowed", "not all allowed", "not to be seen", "denied"])
def test_without_permission_an_update_works_and_one_warning_says_so(hindrance):
    world = World(rc())
    vars(world).update(hindrance)

    result = world.roll(**v(2))

    assert world.images() == {"foo": "myimage:v2"} and kept(result) == []
    (warning,) = result["warnings"]
    assert warning.startswith("the previous template is not stored") and world.denied in warning


def test_what_may_not_be_seen_cannot_be_gone_back_to():
    world = World(rc())
    world.may_list = False

    with pytest.raises(RolloutError, match="its history cannot be read"):
        world.roll(**back_to(1))


def test_a_failed_way_back_to_a_revision_is_rolled_back_itself():
    world = World(rc(replicas=1))
    world.roll(**v(2))
    world.happens = world.stall

    with pytest.raises(RolloutError) as caught:
        world.roll(**back_to(1), on_failure="rollback", progress_deadline=2)

    assert "foo is rolled back to myimage:v2" in caught.value.what, caught.value
    assert world.images() == {"foo": "myimage:v2"}


def test_what_else_has_the_label_is_no_revision():
    primary = Controller.from_api(rc())
    odd = {"metadata": {"name": "odd", "labels": {object_meta.HISTORY: primary.uid}}, "revision": 7,
           "data": {"spec": {}}}

    assert [revision.number
            for revision in history.revisions(primary, [odd], object_meta.DEPLOYMENT_LABEL)] == [1]


def test_a_request_with_a_revision_differs_from_a_request_without():
    wish = parse_request({"name": "foo", **back_to(1)})

    assert wish.undoes and wish.is_unresolved
    wish = dataclasses.replace(wish, revision=rc()["spec"]["template"])
    assert (not wish.undoes and wish.fingerprint != UPDATE.fingerprint
            and wish.apply_to({}) == rc()["spec"]["template"])


# Revisions by other clients


def forged(world, number, image="evil:v1", **changes):
    """Return a forged ControllerRevision of foo, equal to a real one except for the changes."""
    revision = object_meta.Revision(number, rc(image=image)["spec"]["template"])
    survivor = world.controllers()["foo"]
    manifest = history._manifest(parse_request({"name": "foo", **v(2)}), survivor, revision)
    manifest["metadata"].update(changes)
    world.cluster.stored_revisions[manifest["metadata"]["name"]] = manifest
    return manifest["metadata"]["name"]


@pytest.mark.parametrize("changes", [
    {"ownerReferences": []}, {"name": "foo-0123456789"},
    {"ownerReferences": [{"kind": "ReplicationController", "uid": "another", "controller": True}]},
], ids=["nobody's", "of another name", "another controller's"])
def test_one_that_no_update_has_kept_shadows_nothing(changes):
    world = World(rc(replicas=1))
    world.roll(**v(2))
    forged(world, 1, **changes)
    forged(world, 7, "evil:v2", **changes)

    assert world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
    world.roll(**back_to(1))
    assert world.images() == {"foo": "myimage:v1"}


def test_of_two_with_one_number_neither_is_used():
    world = World(rc(replicas=1))
    world.roll(**v(2))
    names = sorted([*world.cluster.stored_revisions, forged(world, 1)])

    assert world.history() == [(2, "myimage:v2")]
    with pytest.raises(RolloutError, match="revision 1 is ambiguous") as caught:
        world.roll(**back_to(1))
    assert all(name in caught.value.what and name in caught.value.next_command for name in names)
    assert world.images() == {"foo": "myimage:v2"}


def test_an_update_whose_controller_was_deleted_half_way_has_no_revision_of_its_own():
    """The successor stores the new template, not the old one."""
    world = World(rc(replicas=2))
    world.roll(**v(2), pause_at="1")
    assert world.cluster.write(Delete("foo", {}))
    world.cluster.settle()

    with pytest.raises(NoSuchController) as caught:
        world.roll(**back_to(1))

    assert "its update had begun" in caught.value.why


def test_the_record_says_that_it_is_rolled_back_where_the_revision_is_the_present_template():
    world = World(rc(replicas=2))
    world.roll(**v(2), pause_at="1")
    world.roll(**back_to(1))

    assert world.controllers()["foo"].last_rollout["outcome"] == "rolled_back"
    assert not world.roll(state="rolled_back")["changed"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("versions", [(2,), (2, 3)], ids=str)
def test_interrupted_on_the_way_to_one_revision_it_ends_at_the_one_that_is_asked_for_then(
        versions, after):
    for number in range(1, 30):
        world = World(rc(replicas=2))
        for version in versions:
            world.roll(**v(version))
        world.tries.clear()
        world.dies_at, world.after = number, after
        try:
            world.roll(**back_to(1))
        except Killed:
            world.dies_at = None
            world.roll(**back_to(2))
            assert world.images() == {"foo": "myimage:v2"}, f"killed at {number}"
        else:
            break
    assert 9 < number < 29

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that each replaced template is stored once, even after a kill, and can be restored."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from builders import NOW, UPDATE, new, observe, old, rc, record
from clusters import Cluster
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven import history
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import MAX_DEPTH
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Delete
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver


class World(Cluster):
    """Cluster with revisions, and a client that can be killed at a write."""

    def __init__(self, *items):
        super().__init__(*items)
        #: The number of the write at which the client dies, and whether it dies after the write.
        self.fatal_write, self.dies_after_write = None, False
        #: Whether the user may list revisions, and the user's RBAC rules (None: unknown).
        self.can_list, self.allowed_rules = True, None
        #: The error of each write of a revision, or "".
        self.denial = ""

    def rules(self):
        return self.allowed_rules

    def revisions(self, uids):
        self.calls.append(("revisions", uids))
        return [item for item in self.cluster.stored_revisions.values()
                if item["metadata"]["labels"][object_meta.HISTORY] in uids
                ] if self.can_list else None

    def write(self, write):
        if write.kind == REVISION and self.denial:
            raise RolloutError(self.denial)
        if len(self.attempts) + 1 == self.fatal_write and not self.dies_after_write:
            raise Killed
        is_written = super().write(write)
        if len(self.attempts) == self.fatal_write:
            raise Killed
        return is_written

    def run_task(self, **params):
        return self.run(parse_request({"name": "foo", **params}))

    def check_mode(self, **params):
        request = parse_request({"name": "foo", **params})
        return driver.simulate(choose(request), request, self)

    def images(self):
        return {name: controller.images["web"] for name, controller in self.controllers().items()}

    def history(self, name="foo"):
        """Return the history that the info module shows, as [(number, image), ...]."""
        primary = self.controllers()[name]
        revisions = history.revisions(primary, self.revisions([primary.uid]),
                                      object_meta.DEPLOYMENT_LABEL)
        return [(entry["revision"], entry["images"]["web"]) for entry in report.history(revisions)]


@pytest.mark.parametrize("items, is_stored", [
    ([old(0), new(3)], True), ([old(0), new(2)], False), ([old(1), new(3)], False),
    ([old(0), new(3, available=2)], False), ([old(0)], False), ([old(0), new(0)], False),
])
def test_template_is_stored_once_all_pods_are_new(items, is_stored):
    assert history.must_store_template(UPDATE, observe(UPDATE, *items)) is is_stored


def update_to(number):
    return {"image": f"myimage:v{number}"}


def rollback_to(number):
    return {"state": "rolled_back", "to_revision": number}


def revision_changes(result):
    return [step["to"] for step in result["steps"] if step["kind"] == "ControllerRevision"]


def test_update_stores_the_replaced_template():
    world = World(rc(replicas=1))

    result = world.run_task(**update_to(2))

    actions = [step["action"] for step in result["steps"]]
    assert (actions[actions.index("keep") + 1] == "rename"
            and revision_changes(result) == ["myimage:v1 as revision 1"])
    assert world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
    (item,) = world.cluster.stored_revisions.values()
    assert json.loads(item["data"]["template"]) == rc()["spec"]["template"]
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "ReplicationController", "name": "foo", "uid": "uid of foo",
         "controller": True}]


def test_refused_rollback_suggests_a_revision_not_the_recorded_image():
    world = World(rc(replicas=1))
    world.run_task(**update_to(2))
    forged_record = json.dumps({"outcome": "updated", "from": {"web": "evil:v1"}})
    world.cluster.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = forged_record

    with pytest.raises(RolloutError) as error:
        world.run_task(state="rolled_back")

    assert error.value.what == (
        "there is no update in progress to roll back; the previous revision is 1 (myimage:v1)")
    assert error.value.next_command.endswith(" 'name=foo state=rolled_back to_revision=1'")
    world.can_list = False
    with pytest.raises(RolloutError,
                       match=r"there is no update in progress to roll back$") as error:
        world.run_task(state="rolled_back")
    assert error.value.next_command.endswith(" 'name=foo image=THE-EARLIER-IMAGE'")


def test_revision_has_time_and_author_of_its_update():
    world = World(rc(annotations={
        object_meta.LAST_ROLLOUT: record("updated", "myimage:v0", "myimage:v1", who="jane@desk")}))
    world.run_task(**update_to(2))

    primary = world.controllers()["foo"]
    current, previous = history.revisions(primary, world.revisions([primary.uid]),
                                          object_meta.DEPLOYMENT_LABEL)

    assert (previous.time, previous.who) == (NOW, "jane@desk")
    assert "@" in current.who and current.time > NOW[:10]


def test_edited_template_has_no_author():
    primary = Controller.from_api(
        rc(annotations={object_meta.LAST_ROLLOUT: record("updated", who="jane@desk")},
           creationTimestamp="2026-01-01T00:00:00Z"))

    (current,) = history.revisions(primary, [], object_meta.DEPLOYMENT_LABEL)

    assert (current.number, current.time, current.who) == (1, "2026-01-01T00:00:00Z", "")


def test_rollback_to_a_revision_stores_no_duplicate():
    world = World(rc())
    world.run_task(**update_to(2))
    world.run_task(**update_to(3))

    result = world.run_task(**rollback_to(1))

    assert result["msg"] == "foo is rolled back to myimage:v1: 3 of 3 replicas available"
    assert world.history() == [(4, "myimage:v1"), (3, "myimage:v3"), (2, "myimage:v2")]
    assert not world.run_task(**rollback_to(1))["changed"]
    assert not world.run_task(**rollback_to(4))["changed"]
    assert revision_changes(world.run_task(**update_to(2))) == ["myimage:v1 as revision 4",
                                                                "revision 1"]
    assert world.history() == [(5, "myimage:v2"), (4, "myimage:v1"), (3, "myimage:v3")]
    assert len(world.cluster.stored_revisions) == 3


def test_the_last_ten_templates_are_stored():
    world = World(rc(replicas=1))
    for number in range(2, 14):
        world.run_task(**update_to(number))

    assert world.history() == [(number, f"myimage:v{number}") for number in range(13, 2, -1)]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_templates_beyond_the_limit_are_deleted(limit, monkeypatch):
    monkeypatch.setattr(history, "LIMIT", limit)
    world = World(rc(replicas=1))
    for number in (2, 3, 4, 5):
        world.run_task(**update_to(number))

    assert world.history() == [(number, f"myimage:v{number}")
                               for number in (5, 4, 3, 2)][:limit + 1]


@pytest.mark.parametrize("params",
                         [update_to(3), rollback_to(1), {**update_to(3), "next_name": "bar"},
                          {**rollback_to(1), "next_name": "bar"}],
                         ids=["update", "rollback", "update with next_name",
                              "rollback with next_name"])
@pytest.mark.parametrize("dies_after_write", [False, True])
def test_history_is_the_same_after_a_kill_at_any_write(params, dies_after_write, monkeypatch):
    """The update deletes a revision, since the limit is 1, but the rollback keeps its target."""
    monkeypatch.setattr(history, "LIMIT", 1)

    def updated_world():
        world = World(rc(replicas=2))
        world.run_task(**update_to(2))
        world.attempts.clear()
        return world

    undisturbed_world = updated_world()
    undisturbed_world.run_task(**params)
    name = params.get("next_name", "foo")
    assert len(undisturbed_world.attempts) > 8
    for number in range(1, len(undisturbed_world.attempts) + 1):
        world = updated_world()
        world.fatal_write, world.dies_after_write = number, dies_after_write
        with pytest.raises(Killed):
            world.run_task(**params)
        world.fatal_write = None
        world.run_task(**params)
        assert (world.images(), world.history(name)) == (
            undisturbed_world.images(), undisturbed_world.history(name)), f"killed at {number}"
        uid = world.controllers()[name].uid
        assert len(world.revisions([uid])) == len(undisturbed_world.revisions([uid]))
        assert not world.run_task(**params)["changed"]


def test_no_duplicate_revision_after_two_kills():
    for first, second in itertools.product(range(5, 9), (1, 2)):
        world = World(rc(replicas=1))
        for number in (first, second):
            world.attempts.clear()
            world.fatal_write, world.dies_after_write = number, True
            with pytest.raises(Killed):
                world.run_task(**update_to(2))
        world.fatal_write = None
        world.run_task(**update_to(2))
        assert (world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
                and len(world.cluster.stored_revisions) == 1)


def test_renamed_controller_inherits_the_history():
    world = World(rc())
    world.run_task(**update_to(2))

    result = world.run_task(**update_to(3), next_name="bar")

    uid = world.controllers()["bar"].uid
    assert revision_changes(result) == ["myimage:v2 as revision 2", "myimage:v1 as revision 1"]
    assert world.history("bar") == [(3, "myimage:v3"), (2, "myimage:v2"), (1, "myimage:v1")]
    assert len(world.revisions([uid])) == 2
    world.run_task(name="bar", **rollback_to(1))
    assert world.images() == {"bar": "myimage:v1"}


def test_unfinished_update_is_rolled_back_before_a_rollback_to_a_revision():
    world = World(rc())
    world.run_task(**update_to(2))
    world.run_task(**update_to(3), pause_at="1")

    result = world.run_task(**rollback_to(1))

    # The unfinished update's successor must be deleted. Among the last five steps is another
    # delete: that of the rollback's own successor.
    assert "delete" in [step["action"] for step in result["steps"][:-5]]
    assert world.images() == {"foo": "myimage:v1"}
    assert world.history() == [(3, "myimage:v1"), (2, "myimage:v2")]


def test_rollback_to_a_revision_resumes_an_update_to_the_same_template():
    world = World(rc())
    world.run_task(**update_to(2))
    world.run_task(**update_to(1), pause_at="1")

    world.run_task(**rollback_to(1))

    assert (world.images() == {"foo": "myimage:v1"}
            and world.history() == [(3, "myimage:v1"), (2, "myimage:v2")])


def test_rollback_to_the_current_revision_undoes_the_update():
    world = World(rc())
    world.run_task(**update_to(2), pause_at="1")

    world.run_task(**rollback_to(1))

    assert world.images() == {"foo": "myimage:v1"} and world.history() == [(1, "myimage:v1")]


def test_check_mode_shows_the_steps_of_a_rollback():
    world = World(rc())
    world.run_task(**update_to(2))
    for params in (update_to(3), rollback_to(1)):
        world.attempts.clear()
        plan = world.check_mode(**params)
        assert world.attempts == []
        result = world.run_task(**params)
        assert [(step["action"], step["name"], step["to"]) for step in plan["steps"]] == [
            (step["action"], step["name"], step["to"]) for step in result["steps"]]


def test_error_for_a_missing_revision_lists_the_existing_ones():
    world = World(rc())
    world.run_task(**update_to(2))

    with pytest.raises(RolloutError) as error:
        world.run_task(**rollback_to(7))

    assert (error.value.what == "it has no revision 7"
            and error.value.why == "it has: 2 (myimage:v2), 1 (myimage:v1)")
    assert "to_revision=2" in error.value.next_command


def rule(*verbs):
    return {"apiGroups": ["apps"], "resources": ["controllerrevisions"], "verbs": list(verbs)}


OTHER_RULES = {"apiGroups": ["", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]}


@pytest.mark.parametrize("failure", [
    {"allowed_rules": [OTHER_RULES]}, {"allowed_rules": [OTHER_RULES, rule("list", "create")]},
    {"can_list": False},
    {"denial": "a policy says no"},
], ids=["no permission", "some permissions", "list forbidden", "denied"])
def test_failure_to_store_revisions_causes_one_warning(failure):
    world = World(rc())
    vars(world).update(failure)

    result = world.run_task(**update_to(2))

    assert world.images() == {"foo": "myimage:v2"} and revision_changes(result) == []
    (warning,) = result["warnings"]
    assert warning.startswith("the previous template is not stored") and world.denial in warning


def test_rollback_to_a_revision_requires_permission():
    world = World(rc())
    world.can_list = False

    with pytest.raises(RolloutError, match="its history cannot be read"):
        world.run_task(**rollback_to(1))


def test_failed_rollback_to_a_revision_is_rolled_back():
    world = World(rc(replicas=1))
    world.run_task(**update_to(2))
    world.on_wait = world.stall

    with pytest.raises(RolloutError) as error:
        world.run_task(**rollback_to(1), on_failure="rollback", progress_deadline=2)

    assert "foo is rolled back to myimage:v2" in error.value.what, error.value
    assert world.images() == {"foo": "myimage:v2"}


def test_other_objects_with_the_label_are_ignored():
    primary = Controller.from_api(rc())
    unreadable = {"metadata": {"name": "odd", "labels": {object_meta.HISTORY: primary.uid}},
                  "revision": 7,
                  "data": {"spec": {}}}

    assert [revision.number
            for revision in history.revisions(primary, [unreadable],
                                              object_meta.DEPLOYMENT_LABEL)] == [1]


def test_resolved_request_applies_the_template_of_its_revision():
    request = parse_request({"name": "foo", **rollback_to(1)})

    assert request.rolls_back_update and request.is_unresolved
    request = dataclasses.replace(request, revision_template=rc()["spec"]["template"])
    assert (not request.rolls_back_update and request.fingerprint != UPDATE.fingerprint
            and request.apply_to({}) == rc()["spec"]["template"])


# Revisions by other clients


def add_forged_revision(world, number, image="evil:v1", **metadata):
    revision = object_meta.Revision(number, rc(image=image)["spec"]["template"])
    primary = world.controllers()["foo"]
    manifest = history._manifest(parse_request({"name": "foo", **update_to(2)}), primary, revision)
    manifest["metadata"].update(metadata)
    world.cluster.stored_revisions[manifest["metadata"]["name"]] = manifest
    return manifest["metadata"]["name"]


@pytest.mark.parametrize("changes", [
    {"ownerReferences": []}, {"name": "foo-0123456789"},
    {"ownerReferences": [{"kind": "ReplicationController", "uid": "another", "controller": True}]},
], ids=["no owner", "another name", "another owner"])
def test_forged_revision_does_not_hide_the_stored_one(changes):
    world = World(rc(replicas=1))
    world.run_task(**update_to(2))
    add_forged_revision(world, 1, **changes)
    add_forged_revision(world, 7, "evil:v2", **changes)

    assert world.history() == [(2, "myimage:v2"), (1, "myimage:v1")]
    world.run_task(**rollback_to(1))
    assert world.images() == {"foo": "myimage:v1"}


@pytest.mark.parametrize("callers", [0, 30, 60])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 500, *range(800, 1000, 5), 100_000])
def test_deep_template_of_another_client_is_no_revision(depth, callers):
    """Whether Python can encode a deep template depends on the number of callers."""
    template = ('{"spec": {"containers": [{"name": "web"}], "x": '
                + "[" * depth + "]" * depth + "}}")
    world = World(rc(replicas=1))
    item = {"metadata": {"name": "mine", "labels": {object_meta.HISTORY: "uid of foo"},
                         "ownerReferences": [{"uid": "uid of foo", "controller": True}]},
            "revision": 1, "data": {"template": template}}

    def read(remaining_callers):
        return (read(remaining_callers - 1) if remaining_callers
                else history.proven_revisions([item], world.controllers()["foo"]))

    assert object_meta.stored_revision(item) is None and read(callers) == []


def test_revisions_with_the_same_number_are_hidden_and_refused():
    world = World(rc(replicas=1))
    world.run_task(**update_to(2))
    names = sorted([*world.cluster.stored_revisions, add_forged_revision(world, 1)])

    assert world.history() == [(2, "myimage:v2")]
    with pytest.raises(RolloutError, match="revision 1 is ambiguous") as error:
        world.run_task(**rollback_to(1))
    assert all(name in error.value.what and name in error.value.next_command for name in names)
    assert world.images() == {"foo": "myimage:v2"}


def test_rollback_to_a_revision_is_refused_after_a_deletion_of_the_primary():
    world = World(rc(replicas=2))
    world.run_task(**update_to(2), pause_at="1")
    assert world.cluster.write(Delete("foo", {}))
    world.cluster.settle()

    with pytest.raises(NoSuchController) as error:
        world.run_task(**rollback_to(1))

    assert "its update had begun" in error.value.why


def test_rollback_to_the_current_revision_is_recorded():
    world = World(rc(replicas=2))
    world.run_task(**update_to(2), pause_at="1")
    world.run_task(**rollback_to(1))

    assert world.controllers()["foo"].last_rollout["outcome"] == "rolled_back"
    assert not world.run_task(state="rolled_back")["changed"]


@pytest.mark.parametrize("dies_after_write", [False, True])
@pytest.mark.parametrize("versions", [(2,), (2, 3)], ids=str)
def test_interrupted_rollback_ends_at_the_last_requested_revision(versions, dies_after_write):
    for number in range(1, 30):
        world = World(rc(replicas=2))
        for version in versions:
            world.run_task(**update_to(version))
        world.attempts.clear()
        world.fatal_write, world.dies_after_write = number, dies_after_write
        try:
            world.run_task(**rollback_to(1))
        except Killed:
            world.fatal_write = None
            world.run_task(**rollback_to(2))
            assert world.images() == {"foo": "myimage:v2"}, f"killed at {number}"
        else:
            break
    assert 9 < number < 29

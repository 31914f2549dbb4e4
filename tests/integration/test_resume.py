# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client that dies at each of its writes, and a successor client, on a real API server.

The invariants of design section 5: foo always exists, floor and ceiling hold, no pod is ever
orphaned, and the end equals an undisturbed run's. test_handover.py has the manual actions during a
handover.
"""

from __future__ import annotations

import contextlib
import itertools

import pytest
from objects import manifest
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 3


def restore(namespace):
    """Restore foo at v1 as at the beginning, independent of the last round."""
    for name in namespace.rcs():
        namespace.remove(name, policy="Background")
    for name in ("foo", "bar"):
        namespace.wait_for_deletion(name)
    namespace.make_primary(REPLICAS)


def deaths():
    """Before and after each write, for ever: (1, False), (1, True), (2, False) ..."""
    return ((number, after) for number in itertools.count(1) for after in (False, True))


def each_death(namespace, first, then):
    """Kill the task `first` before and after each of its writes, run `then`, and return the number
    of deaths and the ends.
    """
    ends = []
    for number, after in deaths():
        restore(namespace)
        with namespace.observer() as observer:
            try:
                namespace.roll(fault=kill_at_write(number, after), **first)
            except Killed:
                pass
            else:
                return number - 1, ends
            with contextlib.suppress(RolloutError):
                namespace.roll(**then)
        where = f"killed {'after' if after else 'before'} write {number}"
        assert observer.min_ready >= REPLICAS, where
        assert observer.max_pods <= REPLICAS + 1, where
        assert len(observer.new_pods) <= (REPLICAS if then == first else 2 * REPLICAS), where
        if "next_name" not in first:
            assert "foo" not in observer.controllers_deleted, where
        ends.append((where, namespace.end_state()))
    raise AssertionError("never ends")


# the handover's part is in every `make test`: test_handover.py; two other points as well:
# tests/faults
@pytest.mark.long
@pytest.mark.parametrize("params",
                         [dict(image="myimage:v2"), dict(image="myimage:v2", next_name="bar")],
                         ids=["handover", "next_name"])
def test_rerun_completes_the_update_after_a_kill_at_any_write(namespace, params):
    restore(namespace)
    namespace.roll(**params)
    undisturbed = namespace.end_state()

    writes, ends = each_death(namespace, params, params)

    assert writes >= 12 + (REPLICAS if "next_name" not in params else 0)
    assert [where for where, end in ends if end != undisturbed] == []


@pytest.mark.long  # tests/faults covers some of its points in every `make test`
def test_rollback_after_a_kill_at_any_write(namespace):
    """While foo has its old template, foo returns to v1; after that the handover is completed."""
    writes, ends = each_death(namespace, dict(image="myimage:v2"), dict(state="rolled_back"))

    assert writes >= 10
    images = []
    for where, end in ends:
        assert list(end["controllers"]) == ["foo"], where
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(
            end["controllers"]["foo"]["annotations"]), where
        assert len(end["pods"]) == REPLICAS, where
        images.append({image for _owner, image, _labels in end["pods"]})
    assert {"myimage:v1"} in images and {"myimage:v2"} in images
    assert (images
            == sorted(images, key=str)), "back at v1 before the point of no return, at v2 after it"


@pytest.mark.long  # tests/faults covers some of its points in every `make test`
def test_rollback_resumes_after_a_kill_at_any_write(namespace):
    """Forward, killed half way; back, killed at each write; back again."""
    for number, after in deaths():
        restore(namespace)
        with namespace.observer() as observer:
            with pytest.raises(Killed):
                namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
            try:
                namespace.roll(fault=kill_at_write(number, after), state="rolled_back")
            except Killed:
                namespace.roll(state="rolled_back")
            else:
                assert number > 5
                break
        assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
        assert observer.controllers_deleted.count("foo") == 0
        assert list(namespace.end_state()["controllers"]) == ["foo"]
        assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v1"}
        assert not namespace.roll(state="rolled_back")["changed"]


def test_kill_rollback_kill_and_update(namespace):
    namespace.make_primary(4)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(4, after=False), state="rolled_back")
        result = namespace.roll(image="myimage:v2")

    assert result["rollout"]["phase"] == "complete" and namespace.rcs() == ["foo"]
    assert observer.min_ready >= 4 and observer.max_pods <= 5
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


def confirm_size(namespace, size, **wish):
    """Assert a refusal before any write, with the command, where only an annotation of the
    remaining controller has the size.
    """
    (name,) = namespace.rcs()
    before = namespace.rc(name)["metadata"]["generation"]
    with pytest.raises(RolloutError) as error:
        namespace.roll(**wish)
    assert (f"is uncertain: an annotation of {name} records {size}, and the controllers now "
            in error.value.what)
    assert f"scale rc {name} --replicas={size}" in error.value.next_command
    assert namespace.rc(name)["metadata"]["generation"] == before
    namespace.patch(name, {"spec": {"replicas": size}})


def test_foo_deleted_during_the_update_is_created_again(namespace):
    """| - | yes | next is foo's partner | handover, foo recreated first |"""
    namespace.make_primary(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")
    confirm_size(namespace, 4, image="myimage:v2")

    namespace.roll(image="myimage:v2")

    namespace.until_available("foo", 4)
    assert namespace.rcs() == ["foo"] and namespace.rc()["metadata"]["labels"]["app"] == "foo"


def test_deletion_of_next_during_the_update_keeps_the_size(namespace):
    """foo had already shrunk: the initial size counts, forward and back, once a user confirms the
    size.
    """
    namespace.make_primary(4)
    for wish in (dict(image="myimage:v2"), dict(state="rolled_back")):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(9, after=True), image="myimage:v3")
        (successor,) = set(namespace.rcs()) - {"foo"}
        namespace.remove(successor)
        namespace.wait_for_deletion(successor)
        assert namespace.rc()["spec"]["replicas"] < 3
        confirm_size(namespace, 4, **wish)

        namespace.roll(**wish)

        assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4
        namespace.until_available("foo", 4)
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


def test_killed_restart_resumes(namespace):
    """The second run does not begin another restart."""
    namespace.make_primary(3)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(8, after=True), state="restarted")
        namespace.roll(state="restarted")

    assert len(observer.new_pods) == 3 and namespace.rcs() == ["foo"]


def test_completed_update_is_not_rolled_back(namespace):
    namespace.make_primary(2)
    namespace.roll(image="myimage:v2")

    with pytest.raises(RolloutError) as error:
        namespace.roll(state="rolled_back")

    assert error.value.next_command == namespace.command(state="rolled_back", to_revision=1)


def test_sizes_changed_by_another_client(namespace):
    """foo shrinks from its new size, next's size is restored, and the goal stays the initial one.
    """
    namespace.make_primary(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
    (successor,) = set(namespace.rcs()) - {"foo"}
    namespace.patch("foo", {"spec": {"replicas": 6}})
    namespace.patch(successor, {"spec": {"replicas": 7}})

    namespace.roll(image="myimage:v2")

    assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


def test_annotations_removed_from_one_controller_are_restored(namespace):
    namespace.make_primary(4)
    for side in ("foo", "next"):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
        name = side if side == "foo" else (set(namespace.rcs()) - {"foo"}).pop()
        namespace.patch(name, {"metadata": {"annotations": None}})
        namespace.roll(state="rolled_back")
        assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


def test_orphaned_pod_with_the_labels_of_foo_is_unchanged(namespace):
    """Another controller owns the pod, whose labels match foo's selector."""
    namespace.make_primary(2)
    namespace.create("replicationcontrollers", {
        **manifest(1, name="stranger"),
        "spec": {"replicas": 1, "selector": {"app": "foo", "of": "stranger"}, "template": {
            "metadata": {"labels": {"app": "foo", "of": "stranger"}},
            "spec": {"containers": [{"name": "web", "image": "other:v1"}],
                     "terminationGracePeriodSeconds": 0}}}})
    namespace.until_available("stranger", 1)
    (stranger,) = (pod for pod in namespace.pods() if pod["metadata"]["labels"].get("of"))

    namespace.roll(image="myimage:v2")

    (after,) = (pod for pod in namespace.pods() if pod["metadata"]["labels"].get("of"))
    assert after["metadata"]["resourceVersion"] == stranger["metadata"]["resourceVersion"]


def test_another_image_after_deletion_of_foo_is_refused(namespace):
    namespace.make_primary(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v3")

    assert "another update is in progress: to myimage:v2" in error.value.what
    assert namespace.roll(image="myimage:v2")["changed"] and namespace.rcs() == ["foo"]

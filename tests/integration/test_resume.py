# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tasks that are killed at each write, and the tasks that resume or roll back.

Invariants: foo always exists, floor and ceiling hold, no pod is orphaned, and the end state equals
that of an update without a kill. test_handover.py tests actions of other clients in a handover.
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
    """Delete all controllers, and create foo with v1."""
    for name in namespace.rcs():
        namespace.remove(name, policy="Background")
    for name in ("foo", "bar"):
        namespace.wait_for_deletion(name)
    namespace.make_primary(REPLICAS)


def kill_points():
    """Yield number and `after` for kill_at_write: (1, False), (1, True), (2, False), and so on."""
    return ((number, after) for number in itertools.count(1) for after in (False, True))


def kill_at_each_write(namespace, first, next_task):
    """Kill the task `first` before and after each of its writes, and run `next_task` after each
    kill.

    Return the number of kills, and the end states.
    """
    end_states = []
    for number, after in kill_points():
        restore(namespace)
        with namespace.observer() as observer:
            try:
                namespace.roll(fault=kill_at_write(number, after), **first)
            except Killed:
                pass
            else:
                return number - 1, end_states
            with contextlib.suppress(RolloutError):
                namespace.roll(**next_task)
        kill_point = f"killed {'after' if after else 'before'} write {number}"
        assert observer.min_ready >= REPLICAS, kill_point
        assert observer.max_pods <= REPLICAS + 1, kill_point
        assert len(observer.new_pods) <= (REPLICAS if next_task == first else 2 * REPLICAS), (
            kill_point
        )
        if "next_name" not in first:
            assert "foo" not in observer.controllers_deleted, kill_point
        end_states.append((kill_point, namespace.end_state()))
    raise AssertionError("the number of writes is not limited")


# `make test` runs the kills in a handover (test_handover.py), and a sample in tests/faults
@pytest.mark.long
@pytest.mark.parametrize("params",
                         [dict(image="myimage:v2"), dict(image="myimage:v2", next_name="bar")],
                         ids=["handover", "next_name"])
def test_rerun_completes_the_update_after_a_kill_at_any_write(namespace, params):
    restore(namespace)
    namespace.roll(**params)
    expected_state = namespace.end_state()

    writes, end_states = kill_at_each_write(namespace, params, params)

    assert writes >= 12 + (REPLICAS if "next_name" not in params else 0)
    assert [kill_point for kill_point, end_state in end_states if end_state != expected_state] == []


@pytest.mark.long  # tests/faults runs a sample in `make test`
def test_rollback_after_a_kill_at_any_write(namespace):
    """Foo is rolled back to v1. If foo already has the new template, the update is completed."""
    writes, end_states = kill_at_each_write(
        namespace, dict(image="myimage:v2"), dict(state="rolled_back")
    )

    assert writes >= 10
    images = []
    for kill_point, end_state in end_states:
        assert list(end_state["controllers"]) == ["foo"], kill_point
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(
            end_state["controllers"]["foo"]["annotations"]), kill_point
        assert len(end_state["pods"]) == REPLICAS, kill_point
        images.append({image for _owner, image, _labels in end_state["pods"]})
    assert {"myimage:v1"} in images and {"myimage:v2"} in images
    assert (images
            == sorted(images, key=str)), "back at v1 before the point of no return, at v2 after it"


@pytest.mark.long  # tests/faults runs a sample in `make test`
def test_rollback_resumes_after_a_kill_at_any_write(namespace):
    """The update is killed, the rollback is killed at each write, and another rollback
    completes.
    """
    for number, after in kill_points():
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


def test_update_completes_after_a_killed_update_and_a_killed_rollback(namespace):
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


def confirm_size(namespace, size, **params):
    """Assert that the task is refused because only an annotation contains the size, and confirm the
    size with the command of the error.
    """
    (name,) = namespace.rcs()
    before = namespace.rc(name)["metadata"]["generation"]
    with pytest.raises(RolloutError) as error:
        namespace.roll(**params)
    assert (f"is uncertain: an annotation of {name} records {size}, and the controllers now "
            in error.value.what)
    assert f"scale rc {name} --replicas={size}" in error.value.next_command
    assert namespace.rc(name)["metadata"]["generation"] == before
    namespace.patch(name, {"spec": {"replicas": size}})


def test_foo_deleted_during_the_update_is_created_again(namespace):
    namespace.make_primary(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")
    confirm_size(namespace, 4, image="myimage:v2")

    namespace.roll(image="myimage:v2")

    namespace.until_available("foo", 4)
    assert namespace.rcs() == ["foo"] and namespace.rc()["metadata"]["labels"]["app"] == "foo"


def test_size_is_restored_after_the_deletion_of_the_successor(namespace):
    """A user has to confirm the initial size, since foo was already scaled down."""
    namespace.make_primary(4)
    for params in (dict(image="myimage:v2"), dict(state="rolled_back")):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(9, after=True), image="myimage:v3")
        (successor,) = set(namespace.rcs()) - {"foo"}
        namespace.remove(successor)
        namespace.wait_for_deletion(successor)
        assert namespace.rc()["spec"]["replicas"] < 3
        confirm_size(namespace, 4, **params)

        namespace.roll(**params)

        assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4
        namespace.until_available("foo", 4)
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


def test_rerun_of_a_killed_restart_replaces_each_pod_once(namespace):
    """The rerun does not start another restart."""
    namespace.make_primary(3)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(8, after=True), state="restarted")
        namespace.roll(state="restarted")

    assert len(observer.new_pods) == 3 and namespace.rcs() == ["foo"]


@pytest.mark.full
def test_rollback_of_a_completed_update_without_a_revision_is_refused(namespace):
    namespace.make_primary(2)
    namespace.roll(image="myimage:v2")

    with pytest.raises(RolloutError) as error:
        namespace.roll(state="rolled_back")

    assert error.value.next_command == namespace.command(state="rolled_back", to_revision=1)


def test_update_completes_after_another_client_changed_the_sizes(namespace):
    """The final size is the initial size."""
    namespace.make_primary(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
    (successor,) = set(namespace.rcs()) - {"foo"}
    namespace.patch("foo", {"spec": {"replicas": 6}})
    namespace.patch(successor, {"spec": {"replicas": 7}})

    namespace.roll(image="myimage:v2")

    assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


@pytest.mark.full
def test_annotations_removed_from_one_controller_are_restored(namespace):
    namespace.make_primary(4)
    for controller in ("foo", "successor"):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
        name = controller if controller == "foo" else (set(namespace.rcs()) - {"foo"}).pop()
        namespace.patch(name, {"metadata": {"annotations": None}})
        namespace.roll(state="rolled_back")
        assert namespace.rcs() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


def test_pod_of_another_controller_with_the_labels_of_foo_is_unchanged(namespace):
    """The labels of the pod match the selector of foo."""
    namespace.make_primary(2)
    namespace.create("replicationcontrollers", {
        **manifest(1, name="other"),
        "spec": {"replicas": 1, "selector": {"app": "foo", "of": "other"}, "template": {
            "metadata": {"labels": {"app": "foo", "of": "other"}},
            "spec": {"containers": [{"name": "web", "image": "other:v1"}],
                     "terminationGracePeriodSeconds": 0}}}})
    namespace.until_available("other", 1)
    (before,) = (pod for pod in namespace.pods() if pod["metadata"]["labels"].get("of"))

    namespace.roll(image="myimage:v2")

    (after,) = (pod for pod in namespace.pods() if pod["metadata"]["labels"].get("of"))
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


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

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the tasks that resume or roll back an update, and other requests during an update.

tests/histories/acts.py kills each task at each write.
"""

from __future__ import annotations

import pytest
from objects import manifest
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError


@pytest.mark.full
def test_update_completes_after_a_killed_update_and_a_killed_rollback(namespace):
    namespace.make_rc(4)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(4, after=False), state="rolled_back")
        result = namespace.roll(image="myimage:v2")

    assert result["rollout"]["phase"] == "complete" and namespace.rc_names() == ["foo"]
    assert observer.min_ready >= 4 and observer.max_pods <= 5
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


def confirm_size_after_refusal(namespace, size, **params):
    """Assert that the task is refused, because the size is only in an annotation, which may be
    forged. Then scale, as the command in the error does.
    """
    (name,) = namespace.rc_names()
    before = namespace.rc(name)["metadata"]["generation"]
    with pytest.raises(RolloutError) as error:
        namespace.roll(**params)
    assert (f"is uncertain: an annotation of {name} records {size}, and the controllers now "
            in error.value.what)
    assert f"scale rc {name} --replicas={size}" in error.value.next_command
    assert namespace.rc(name)["metadata"]["generation"] == before
    namespace.patch(name, {"spec": {"replicas": size}})


def test_foo_is_created_again_after_its_deletion_during_the_update(namespace):
    namespace.make_rc(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")
    confirm_size_after_refusal(namespace, 4, image="myimage:v2")

    namespace.roll(image="myimage:v2")

    namespace.until_available("foo", 4)
    assert namespace.rc_names() == ["foo"] and namespace.rc()["metadata"]["labels"]["app"] == "foo"


def test_size_is_restored_after_the_deletion_of_the_successor(namespace):
    namespace.make_rc(4)
    for params in (dict(image="myimage:v2"), dict(state="rolled_back")):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(9, after=True), image="myimage:v3")
        (successor,) = set(namespace.rc_names()) - {"foo"}
        namespace.remove(successor)
        namespace.wait_for_deletion(successor)
        assert namespace.rc()["spec"]["replicas"] < 3
        confirm_size_after_refusal(namespace, 4, **params)

        namespace.roll(**params)

        assert namespace.rc_names() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4
        namespace.until_available("foo", 4)
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


@pytest.mark.full
def test_rerun_of_a_killed_restart_replaces_each_pod_once(namespace):
    namespace.make_rc(3)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(8, after=True), state="restarted")
        namespace.roll(state="restarted")

    assert len(observer.new_pods) == 3 and namespace.rc_names() == ["foo"]


@pytest.mark.full
def test_rollback_without_a_revision_is_refused_after_a_completed_update(namespace):
    namespace.make_rc(2)
    namespace.roll(image="myimage:v2")

    with pytest.raises(RolloutError) as error:
        namespace.roll(state="rolled_back")

    assert error.value.next_command == namespace.command(state="rolled_back", to_revision=1)


def test_update_completes_after_another_client_changed_the_sizes(namespace):
    namespace.make_rc(4)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
    (successor,) = set(namespace.rc_names()) - {"foo"}
    namespace.patch("foo", {"spec": {"replicas": 6}})
    namespace.patch(successor, {"spec": {"replicas": 7}})

    namespace.roll(image="myimage:v2")

    assert namespace.rc_names() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


@pytest.mark.full
def test_rollback_succeeds_without_the_annotations_of_one_controller(namespace):
    namespace.make_rc(4)
    for controller in ("foo", "successor"):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(7, after=True), image="myimage:v2")
        name = controller if controller == "foo" else (set(namespace.rc_names()) - {"foo"}).pop()
        namespace.patch(name, {"metadata": {"annotations": None}})
        namespace.roll(state="rolled_back")
        assert namespace.rc_names() == ["foo"] and namespace.rc()["spec"]["replicas"] == 4


@pytest.mark.full
def test_update_without_the_name_of_its_successor_resumes_with_next_name(namespace):
    namespace.make_rc(2)
    namespace.roll(image="myimage:v2", next_name="bar", pause_at="1")
    namespace.patch("foo", {"metadata": {"annotations": {"kubernetes.io/update-partner": None}}})

    for params in ({"image": "myimage:v2"}, {"state": "rolled_back"}):
        with pytest.raises(RolloutError, match="bar already exists and does not belong") as caught:
            namespace.roll(**params)
        assert "next_name=bar" in caught.value.message
    namespace.roll(image="myimage:v2", next_name="bar")
    assert namespace.rc_names() == ["bar"]


def test_pod_with_the_labels_of_foo_but_another_owner_is_unchanged(namespace):
    namespace.make_rc(2)
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
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v3")

    assert "another update is in progress: to myimage:v2" in error.value.what
    assert namespace.roll(image="myimage:v2")["changed"] and namespace.rc_names() == ["foo"]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of a ReplicaSet without a Deployment."""

from __future__ import annotations

import pytest
from objects import eventually, manifest, owner_uid, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 3
#: Exceeds the number of writes of any update.
MAX_WRITES = 100


def update(namespace, **params):
    return namespace.roll(kind="ReplicaSet", **params)


def images(namespace):
    return sorted(pod["spec"]["containers"][0]["image"] for pod in namespace.pods())


def names(namespace):
    return sorted(item["metadata"]["name"] for item in namespace.replica_sets())


def test_definition_without_a_selector_is_accepted(namespace):
    """A message of the module suggests omitting the selector, which the API requires."""
    namespace.make_replica_set(1)
    definition = manifest(1, image="myimage:v2")
    definition |= {"apiVersion": "apps/v1", "kind": "ReplicaSet",
                   "metadata": {"labels": {"app": "foo"}}}
    del definition["spec"]["selector"]

    result = update(namespace, definition=definition)

    assert result["changed"] and images(namespace) == ["myimage:v2"] and names(namespace) == ["foo"]
    assert not update(namespace, definition=definition)["changed"]


def remove(namespace, name="foo"):
    namespace.call("DELETE", namespace.apps_path("replicasets", name),
                   {"propagationPolicy": "Background"})
    eventually(
        lambda: not namespace.pods() and name not in names(namespace), f"the deletion of {name}"
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("replicas",
                         [0, 3, pytest.param(100, marks=pytest.mark.fake_nodes(
                             "100 pods that become ready at once"))])
def test_update_retains_the_controller_and_creates_each_pod_once(namespace, replicas):
    before = namespace.make_replica_set(replicas)

    with namespace.observer() as observer:
        result = update(namespace, image="myimage:v2", max_surge="25%")

    after = namespace.replica_set()
    assert (result["msg"]
            == f"foo is updated to myimage:v2: {replicas} of {replicas} replicas available")
    assert after["metadata"]["uid"] == before["metadata"]["uid"] and names(namespace) == ["foo"]
    assert after["spec"]["selector"] == before["spec"]["selector"]
    assert "priorityClassName" not in after["spec"]["template"]["spec"]
    assert not set(object_meta.UPDATE_ANNOTATIONS) & set(after["metadata"]["annotations"])
    assert len(observer.new_pods) == replicas and images(namespace) == ["myimage:v2"] * replicas
    if replicas:
        assert observer.min_ready >= replicas and observer.max_pods <= replicas * 5 // 4 + 1
    rerun = update(namespace, image="myimage:v2")
    assert not rerun["changed"] and set(rerun["requests"]) == {"GET"}


def test_repeated_updates_and_rollback_to_a_revision(namespace):
    namespace.make_replica_set(REPLICAS)
    with namespace.observer() as observer:
        for request in ({"image": "myimage:v2"}, {"image": "myimage:v3"},
                        {"state": "rolled_back", "to_revision": 1},
                        {"state": "restarted"}):
            update(namespace, **request)
            assert names(namespace) == ["foo"] and len(namespace.pods()) == REPLICAS

    assert images(namespace) == ["myimage:v1"] * REPLICAS and len(observer.new_pods) == 4 * REPLICAS
    assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1


@pytest.mark.long  # tests/faults runs a sample in `make test`
@pytest.mark.parametrize("is_after_write", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("params, next_params",
                         [({}, {}), ({"next_name": "bar"}, {}),
                          ({}, {"state": "rolled_back", "image": None})],
                         ids=["handover", "next_name", "then rollback"])
def test_update_resumes_after_a_kill_at_any_write(namespace, is_after_write, params, next_params):
    request = {"image": "myimage:v2", **params}
    for number in range(1, MAX_WRITES):
        namespace.make_replica_set(2)
        with namespace.observer() as observer:
            try:
                update(namespace, fault=kill_at_write(number, is_after_write), **request)
            except Killed:
                try:
                    update(namespace, **{**request, **next_params})
                except RolloutError as error:
                    assert (next_params
                            and "no update in progress"
                            in error.what), f"killed at write {number}: {error}"
            else:
                break
        assert observer.min_ready >= 2 and observer.max_pods <= 3, f"killed at write {number}"
        assert len(observer.new_pods) <= (4 if next_params else 2), f"killed at write {number}"
        end_images = images(namespace)
        assert (end_images == ["myimage:v2"] * 2
                or (next_params and end_images == ["myimage:v1"] * 2)), f"killed at write {number}"
        (name,) = names(namespace)
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(
            namespace.replica_set(name)["metadata"].get("annotations", {}).keys())
        remove(namespace, name)
    assert (9 if "next_name" in params else 13) <= number < MAX_WRITES


@pytest.mark.full
def test_check_mode_lists_the_steps_and_writes_nothing(namespace):
    before = namespace.make_replica_set(REPLICAS)
    plan = namespace.check(kind="ReplicaSet", image="myimage:v2")
    assert (namespace.replica_set()["metadata"]["resourceVersion"]
            == before["metadata"]["resourceVersion"])

    result = update(namespace, image="myimage:v2")

    planned_steps, actual_steps = (
        [(step["action"], step["kind"], step["name"], step["to"]) for step in steps]
        for steps in (plan["steps"], result["steps"]))
    assert planned_steps == actual_steps


def test_foo_is_created_again_if_deleted_during_the_update(namespace):
    namespace.make_replica_set(REPLICAS)
    update(namespace, image="myimage:v2", pause_at="2")
    namespace.call("DELETE", namespace.apps_path("replicasets", "foo"),
                   {"propagationPolicy": "Orphan"})
    eventually(lambda: len(names(namespace)) == 1, "the deletion of foo")
    orphans = uids(pod for pod in namespace.pods() if not owner_uid(pod))

    update(namespace, image="myimage:v2")

    owned_pods = [pod for pod in namespace.pods() if owner_uid(pod)]
    assert len(owned_pods) == REPLICAS and names(namespace) == ["foo"]
    assert ({pod["spec"]["containers"][0]["image"] for pod in owned_pods} == {"myimage:v2"}
            and not orphans & uids(owned_pods))


def test_replica_set_of_a_deployment_is_refused(namespace):
    namespace.make_deployment(1)
    (name,) = names(namespace)
    with pytest.raises(RolloutError, match="it is controlled by Deployment/foo"):
        update(namespace, name=name, image="myimage:v2")


@pytest.mark.full
def test_match_expressions_need_next_name(namespace):
    body = manifest(1)
    selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["foo"]}]}
    body |= {"apiVersion": "apps/v1", "kind": "ReplicaSet",
             "spec": {**body["spec"], "selector": selector}}
    namespace.call("POST", namespace.apps_path("replicasets"), body)
    with pytest.raises(RolloutError, match="its selector is immutable and has matchExpressions"):
        update(namespace, image="myimage:v2")

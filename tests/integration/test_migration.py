# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the migration of a ReplicationController to a Deployment, which retains all pods."""

from __future__ import annotations

import time

import pytest
from objects import eventually, manifest, owner_uid, role_rules, uids
from writes import Killed, action_after_write, is_deletion, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.label_selectors import matches

#: More writes than a migration makes.
MAX_WRITES = 100
MIGRATE = {"module": "migrate_to_deployment"}
ROLL_BACK = {**MIGRATE, "state": "rolled_back"}


@pytest.fixture
def migratable(namespace):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    return namespace


def migrate(namespace, **params):
    return namespace.roll(**{**MIGRATE, **params})


def is_migrated(namespace):
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (namespace.rc_names() == [] and namespace.wait_for_rollout()
            and len(namespace.replica_sets()) == 1 and not revisions)


@pytest.mark.sample(1)
@pytest.mark.parametrize("replicas", [0, 3, pytest.param(100, marks=pytest.mark.long)])
def test_migration_retains_all_pods(migratable, replicas):
    migratable.make_rc(replicas)
    uids_before = uids(migratable.pods())
    with migratable.observer() as observer:
        result = migrate(migratable)
        eventually(lambda: is_migrated(migratable), "the completion of the migration", seconds=60)

    rerun = migrate(migratable)
    assert (
        uids(migratable.pods()) == uids_before
        and not observer.new_pods
        and not observer.deleted_pods
        and not observer.restarts
    )
    assert (result["msg"]
            == f"foo is now a Deployment, with myimage:v1: {replicas} of {replicas} replicas "
               f"available")
    assert not rerun["changed"] and rerun["msg"] == "foo is already a Deployment"
    assert set(rerun["requests"]) == {"GET"}


def test_completed_migration_is_reverted_manually(migratable):
    """The steps are those of docs/how-to/migrate.md."""
    migratable.make_rc(3)
    uids_before = uids(migratable.pods())
    migrate(migratable)
    eventually(lambda: is_migrated(migratable), "the completion of the migration", seconds=60)
    with pytest.raises(RolloutError, match="a migration that has ended cannot be rolled back"):
        migratable.roll(**ROLL_BACK)
    (replica_set,) = migratable.replica_sets()

    orphan = {"propagationPolicy": "Orphan"}
    for resource, name in (("deployments", "foo"),
                           ("replicasets", replica_set["metadata"]["name"])):
        migratable.call("DELETE", migratable.apps_path(resource, name), orphan)
        eventually(lambda: migratable.get_apps_object(resource, name) is None,  # noqa: B023
                   f"the deletion of {name}")
    controller = migratable.make_rc(3)

    assert uids(migratable.pods()) == uids_before
    assert {owner_uid(pod) for pod in migratable.pods()} == {controller["metadata"]["uid"]}


@pytest.mark.full
def test_deployment_can_be_updated_after_the_migration(migratable):
    """The pods have a deployment label from an earlier update."""
    migratable.make_rc(3)
    migratable.roll(image="myimage:v2")
    uids_before = uids(migratable.pods())
    migrate(migratable, max_surge="2")
    item = migratable.deployment()
    assert uids(migratable.pods()) == uids_before
    assert (item["spec"]["selector"] == {"matchLabels": {"app": "foo"}}
            and item["metadata"]["labels"] == {"app": "foo"})
    assert item["spec"]["template"]["metadata"]["labels"] == {"app": "foo"}
    assert item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}

    migratable.roll(kind="Deployment", image="myimage:v3")
    assert migratable.wait_for_rollout() and len(migratable.pods()) == 3
    migratable.roll(kind="Deployment", state="rolled_back", to_revision=1)
    assert {pod["spec"]["containers"][0]["image"] for pod in migratable.pods()} == {"myimage:v2"}


@pytest.mark.sample(1)
@pytest.mark.long  # in `make test`, tests/faults covers some of the writes
@pytest.mark.parametrize("is_after_write", [False, True])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_any_write(migratable, is_after_write):
    for write_number in range(1, MAX_WRITES):
        migratable.make_rc(2)
        uids_before = uids(migratable.pods())
        with migratable.observer() as observer:
            try:
                migrate(migratable, fault=kill_at_write(write_number, is_after_write))
            except Killed:
                migrate(migratable)
            else:
                break
        assert not observer.new_pods and not observer.deleted_pods, (
            f"killed at write {write_number}"
        )
        assert uids(migratable.pods()) == uids_before and is_migrated(migratable), (
            f"killed at write {write_number}"
        )
        migratable.remove_deployment()
        eventually(
            lambda: not migratable.pods() and not migratable.replica_sets(), "an empty namespace"
        )
    assert 10 <= write_number < MAX_WRITES


@pytest.mark.full
def test_check_mode_lists_the_steps_and_writes_nothing(migratable):
    before = migratable.make_rc(3)
    plan = migratable.check(**MIGRATE)
    # The POST requests are two dry runs and the check of the permissions.
    assert plan["requests"].keys() <= {"GET", "POST"} and plan["requests"]["POST"] <= 2 + 1
    assert migratable.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert not migratable.replica_sets() and not migratable.deployments()
    result = migrate(migratable)
    steps = [[(step["action"], step["kind"], step["name"], step["to"])
              for step in task_result["steps"]]
             for task_result in (plan, result)]
    assert steps[0] == steps[1]


@pytest.mark.full
def test_scaling_during_the_migration_is_retained(migratable):
    migratable.make_rc(2)

    def scale():
        migratable.patch("foo", {"spec": {"replicas": 3}})
        migratable.until_available("foo", 3)

    migrate(migratable, fault=action_after_write(2, scale))
    assert is_migrated(migratable) and len(migratable.pods()) == 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("matches_write", [is_reparenting, is_deletion],
                         ids=["during the handover", "after the deletion of the controller"])
def test_rerun_of_a_killed_migration_replaces_a_deleted_pod(migratable, matches_write):
    migratable.make_rc(2)
    with migratable.observer() as observer:
        with pytest.raises(Killed):
            migrate(migratable, fault=kill_at_write(1, True, matches_write))
        migratable.remove(migratable.pods()[0]["metadata"]["name"], "pods")
        migrate(migratable)
    assert is_migrated(migratable) and len(migratable.pods()) == 2 and len(observer.new_pods) == 1


SELECTORS = ["app=foo", "app in (foo, bar)", "app notin (bar),!absent", "app!=bar", "app=bar",
             "absent", "app notin (foo)", "!app"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("matches_write", [is_reparenting, is_deletion],
                         ids=["during the handover", "after the deletion of the controller"])
def test_killed_migration_is_shown_and_completed_with_a_label_selector(
        migratable, matches_write):
    migratable.make_rc(2, labels={"app": "foo", "team": "a"})
    uids_before = uids(migratable.pods())
    with pytest.raises(Killed):
        migrate(migratable, fault=kill_at_write(1, True, matches_write))
    replica_set = migratable.replica_sets()[0]["metadata"]["name"]

    params = {"kubeconfig": migratable.kubeconfig, "namespace": migratable.name, "name": None}
    for selection in ({"name": "foo"}, {"kind": "ReplicationController"},
                      {"label_selectors": ["team in (a,b)"]}, {"names": ["foo"]}):
        (rollout,) = task.info({**params, **selection})["rollouts"]
        assert ((rollout["name"], rollout["phase"], rollout["successor"]["name"])
                == ("foo", "progressing", replica_set))
        assert ".migrate_to_deployment -a" in rollout["resume_command"]
        assert (rollout["rollback_command"] is None) == (matches_write is is_deletion)
    assert task.info({**params, "label_selectors": ["team=b"]})["rollouts"] == []

    result = task.migrate({**params, "label_selectors": ["team=a"]})
    assert ([(outcome["name"], outcome["changed"]) for outcome in result["results"]]
            == [("foo", True)])
    assert is_migrated(migratable) and uids(migratable.pods()) == uids_before
    (rollout,) = task.info({**params, "name": "foo"})["rollouts"]
    assert (rollout["kind"], rollout["phase"]) == ("Deployment", "complete")


@pytest.mark.sample(1)
@pytest.mark.parametrize("write_number", [1, 2, 3, 4])
def test_rollback_of_a_migration_restores_the_replication_controller(migratable, write_number):
    before = migratable.make_rc(2)
    pod_uids = uids(migratable.pods())
    with migratable.observer() as observer:
        with pytest.raises(Killed):
            migrate(migratable, fault=kill_at_write(write_number, True))
        plan = migratable.check(**ROLL_BACK)
        result = migratable.roll(**ROLL_BACK)
        assert ([step["action"] for step in plan["steps"]]
                == [step["action"] for step in result["steps"]])
        assert not observer.new_pods and not observer.deleted_pods
        assert uids(migratable.pods()) == pod_uids
    assert migratable.rc()["spec"] == before["spec"]
    assert {owner_uid(pod) for pod in migratable.pods()} == {before["metadata"]["uid"]}
    assert not migratable.replica_sets() and not migratable.deployments()
    assert not migratable.call("GET", migratable.apps_path("controllerrevisions"))["items"]
    with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
        migratable.roll(**ROLL_BACK)
    migrate(migratable)
    assert is_migrated(migratable) and uids(migratable.pods()) == pod_uids
    with pytest.raises(RolloutError, match="a migration that has ended cannot be rolled back"):
        migratable.roll(**ROLL_BACK)


@pytest.mark.full
def test_label_selectors_match_like_those_of_the_api_server(namespace):
    labels = namespace.make_rc(0)["metadata"]["labels"]
    for selector in SELECTORS:
        assert bool(namespace.gateway().names([selector])) == matches([selector], labels), selector


def deletion_of_foo(policy):
    return lambda namespace: namespace.remove("foo", policy=policy)


def delete_replica_set(namespace):
    name = namespace.replica_sets()[0]["metadata"]["name"]
    namespace.call("DELETE", namespace.apps_path("replicasets", name),
                   {"propagationPolicy": "Background"})


def open_replica_set(namespace):
    # Among ready pods of similar age, the ReplicaSet controller deletes an arbitrary pod
    # (LogarithmicScaleDown). After 4 s, a new pod is less than half as old as the other pods.
    time.sleep(4)
    name = namespace.replica_sets()[0]["metadata"]["name"]
    namespace.call("PATCH", namespace.apps_path("replicasets", name),
                   {"spec": {"template": {"spec": {"priorityClassName": None}}}},
                   "application/merge-patch+json")


#: By title: an action of another client during the handover, how many pods it deletes at most, and
#: whether it may orphan a pod.
ACTIONS = {
    "delete a pod": (lambda namespace: namespace.remove(namespace.pods()[0]["metadata"]["name"],
                                                        "pods"), 1, False),
    "relabel a pod": (lambda namespace: namespace.patch(
        namespace.pods()[0]["metadata"]["name"], {"metadata": {"labels": {"app": "another"}}},
        "pods"), 1, True),
    "delete foo": (deletion_of_foo("Background"), 1, False),
    "delete foo with --cascade=orphan": (deletion_of_foo("Orphan"), 1, True),
    # The ReplicaSet owns both pods.
    "delete the ReplicaSet": (delete_replica_set, 2, False),
    # The ReplicaSet creates a pod, and keeps the older pods.
    "open the ReplicaSet": (open_replica_set, 0, False),
    "scale foo": (lambda namespace: namespace.patch("foo", {"spec": {"replicas": 3}}), 0, False),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("title", ACTIONS)
def test_migration_resumes_after_changes_of_other_clients(migratable, title):
    action, max_deleted, may_orphan = ACTIONS[title]
    migratable.make_rc(2)
    uids_before = uids(migratable.pods())

    with migratable.observer(lambda pod: may_orphan):
        migrate(migratable, fault=action_after_write(1, lambda: action(migratable), is_reparenting),
                progress_deadline=20)
        eventually(lambda: is_migrated(migratable), "the completion of the migration", seconds=60)

    owned_pods = [pod for pod in migratable.pods() if owner_uid(pod)]
    assert (len(owned_pods) == migratable.deployment()["spec"]["replicas"]
            and len(migratable.pods()) <= len(owned_pods) + may_orphan)
    assert len(uids_before & uids(owned_pods)) >= 2 - max_deleted


@pytest.mark.full
def test_update_in_progress_or_existing_deployment_is_refused_before_the_first_write(migratable):
    migratable.make_rc(2)
    migratable.roll(image="myimage:v2", pause_at="1")
    with pytest.raises(RolloutError, match="an update is in progress"):
        migrate(migratable)
    migratable.roll(state="rolled_back")
    labels = {"app": "foo", "owner": "foo"}
    migratable.make_deployment(1, name="foo", selector={"matchLabels": labels}, template={
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "myimage:v1"}]}})
    with pytest.raises(RolloutError, match="a Deployment named foo already exists"):
        migrate(migratable)
    assert object_meta.HASH_LABEL not in migratable.rc()["spec"]["template"]["metadata"]["labels"]


def test_controller_with_an_owner_is_migrated_only_on_request(migratable):
    config_map = migratable.create("configmaps", {"metadata": {"name": "owner"}})
    owner_reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
                       "uid": config_map["metadata"]["uid"], "controller": True,
                       "blockOwnerDeletion": False}
    migratable.make_rc(2, ownerReferences=[owner_reference])
    uids_before = uids(migratable.pods())
    with pytest.raises(RolloutError, match="it is controlled by ConfigMap/owner"):
        migrate(migratable)
    migrate(migratable, release_owner=True)
    assert is_migrated(migratable) and uids(migratable.pods()) == uids_before


@pytest.mark.full
def test_missing_permission_is_named(namespace):
    namespace.make_rc(1)
    with pytest.raises(RolloutError, match="permission denied") as error:
        migrate(namespace)
    assert ('cannot get resource "controllerrevisions"' in error.value.why
            and namespace.rc_names() == ["foo"])


def is_unchanged(namespace, before, name="foo"):
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (namespace.rc(name)["spec"] == before["spec"] and not revisions
            and not namespace.deployments())


@pytest.mark.sample(1)
@pytest.mark.parametrize("resource, kind",
                         [("replicasets", "ReplicaSet"), ("deployments", "Deployment")])
def test_exceeded_quota_is_an_error_before_the_first_write(migratable, resource, kind):
    before = migratable.make_rc(2)
    migratable.create("resourcequotas",
                      {"metadata": {"name": "none"},
                       "spec": {"hard": {f"count/{resource}.apps": "0"}}})
    quota = migratable.path("resourcequotas", "none")
    eventually(lambda: migratable.call("GET", quota).get("status", {}).get("used"),
               "the status of the quota")
    for run in (migrate, lambda namespace: namespace.check(**MIGRATE)):
        with pytest.raises(RolloutError, match=f"the {kind} foo.* cannot be created") as caught:
            run(migratable)
        assert "exceeded quota: none" in caught.value.why and is_unchanged(migratable, before)
    migratable.call("DELETE", quota)
    migrate(migratable)
    assert is_migrated(migratable)


@pytest.mark.full
def test_too_long_name_is_an_error_before_the_first_write(migratable):
    name = "f" * 245
    body = manifest(0)
    before = migratable.create("replicationcontrollers",
                               {**body, "metadata": {**body["metadata"], "name": name}})
    with pytest.raises(RolloutError, match=r"the ReplicaSet ffff.* cannot be created"):
        migrate(migratable, name=name)
    assert is_unchanged(migratable, before, name)


@pytest.mark.full
def test_replica_set_of_a_forged_migration_gets_no_pods(migratable):
    """Another client may create ControllerRevisions and ReplicaSets, and forges a migration."""
    migratable.make_rc(2, image="myimage:evil")
    with pytest.raises(Killed):
        migrate(migratable, fault=kill_at_write(2, True))
    revision = migratable.call("GET", migratable.apps_path("controllerrevisions", "foo-migration"))
    (replica_set,) = migratable.replica_sets()
    migratable.remove("foo")
    migratable.wait_for_deletion("foo")
    data = {**revision["data"], "uid": migratable.make_rc(2)["metadata"]["uid"]}
    uids_before = uids(migratable.pods())
    migratable.call("DELETE", migratable.apps_path("controllerrevisions", "foo-migration"))
    forged_revision = {"metadata": {"name": "foo-migration"}, "revision": 1, "data": data}
    migratable.call("POST", migratable.apps_path("controllerrevisions"), forged_revision)

    migrate(migratable)

    assert uids(migratable.pods()) == uids_before
    assert replica_set["metadata"]["name"] not in {
        item["metadata"]["name"] for item in migratable.replica_sets()}
    assert {pod["spec"]["containers"][0]["image"] for pod in migratable.pods()} == {"myimage:v1"}

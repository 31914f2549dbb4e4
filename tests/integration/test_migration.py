# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a ReplicationController to a Deployment: the pods stay the same."""

from __future__ import annotations

import pytest
from objects import eventually, manifest, owner, role, uids
from writes import Killed, action_after_write, is_deletion, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.label_selectors import matches

#: Far more than the writes of a migration.
NEVER = 100
MIGRATE = {"module": "migrate_to_deployment"}
BACK = {**MIGRATE, "state": "rolled_back"}


@pytest.fixture
def allowed(namespace):
    """The namespace, with the Role for migrations too."""
    namespace.allow(role("baton-migration"), "baton-migration")
    return namespace


def migrate(namespace, **params):
    return namespace.roll(**{**MIGRATE, **params})


def is_migrated(namespace):
    """Return whether only a Deployment with one ReplicaSet remains."""
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (namespace.rcs() == [] and namespace.wait_for_rollout()
            and len(namespace.replica_sets()) == 1 and not revisions)


@pytest.mark.parametrize("replicas", [0, 3, pytest.param(100, marks=pytest.mark.long)])
def test_migration_restarts_no_pod(allowed, replicas):
    allowed.make_primary(replicas)
    before = uids(allowed.pods())
    with allowed.observer() as observer:
        result = migrate(allowed)
        eventually(lambda: is_migrated(allowed), "the end of the migration", seconds=60)

    again = migrate(allowed)
    assert (uids(allowed.pods()) == before and not observer.new_pods and not observer.deleted_pods
            and not observer.restarts)
    assert (result["msg"]
            == f"foo is now a Deployment, with myimage:v1: {replicas} of {replicas} replicas "
               f"available")
    assert not again["changed"] and again["msg"] == "foo is already a Deployment"
    assert set(again["requests"]) == {"GET"}


def test_deployment_updates_after_the_migration(allowed):
    """An earlier update has handed over the pods, so that they have the deployment label."""
    allowed.make_primary(3)
    allowed.roll(image="myimage:v2")
    before = uids(allowed.pods())
    migrate(allowed, max_surge="2")
    item = allowed.deployment()
    assert uids(allowed.pods()) == before
    assert (item["spec"]["selector"] == {"matchLabels": {"app": "foo"}}
            and item["metadata"]["labels"] == {"app": "foo"})
    assert item["spec"]["template"]["metadata"]["labels"] == {"app": "foo"}
    assert item["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}

    allowed.roll(kind="Deployment", image="myimage:v3")
    assert allowed.wait_for_rollout() and len(allowed.pods()) == 3
    allowed.roll(kind="Deployment", state="rolled_back", to_revision=1)
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v2"}


@pytest.mark.long  # tests/faults covers some of its points in every `make test`
@pytest.mark.parametrize("after", [False, True])
def test_migration_resumes_with_the_same_pods_after_a_kill_at_any_write(allowed, after):
    for number in range(1, NEVER):
        allowed.make_primary(2)
        before = uids(allowed.pods())
        with allowed.observer() as observer:
            try:
                migrate(allowed, fault=kill_at_write(number, after))
            except Killed:
                migrate(allowed)
            else:
                break
        assert not observer.new_pods and not observer.deleted_pods, f"killed at {number}"
        assert uids(allowed.pods()) == before and is_migrated(allowed), f"killed at {number}"
        allowed.remove_deployment()
        eventually(lambda: not allowed.pods() and not allowed.replica_sets(), "an empty namespace")
    assert 10 <= number < NEVER


def test_check_mode_lists_the_steps_and_writes_nothing(allowed):
    before = allowed.make_primary(3)
    planned = allowed.check(**MIGRATE)
    # dry runs, and the permissions
    assert planned["requests"].keys() <= {"GET", "POST"} and planned["requests"]["POST"] <= 2 + 1
    assert allowed.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert not allowed.replica_sets() and not allowed.deployments()
    done = migrate(allowed)
    steps = [[(step["action"], step["kind"], step["name"], step["to"]) for step in result["steps"]]
             for result in (planned, done)]
    assert steps[0] == steps[1]


def test_scaling_during_the_migration_is_kept(allowed):
    allowed.make_primary(2)

    def scale():
        allowed.patch("foo", {"spec": {"replicas": 3}})
        allowed.until_available("foo", 3)

    migrate(allowed, fault=action_after_write(2, scale))
    assert is_migrated(allowed) and len(allowed.pods()) == 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("which", [is_reparenting, is_deletion],
                         ids=["half of the pods handed over", "the controller deleted"])
def test_pod_lost_while_templates_are_closed_is_replaced(allowed, which):
    allowed.make_primary(2)
    with allowed.observer() as observer:
        with pytest.raises(Killed):
            migrate(allowed, fault=kill_at_write(1, True, which))
        allowed.remove(allowed.pods()[0]["metadata"]["name"], "pods")
        migrate(allowed)
    assert is_migrated(allowed) and len(allowed.pods()) == 2 and len(observer.new_pods) == 1


SELECTORS = ["app=foo", "app in (foo, bar)", "app notin (bar),!absent", "app!=bar", "app=bar",
             "absent", "app notin (foo)", "!app"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("which", [is_reparenting, is_deletion],
                         ids=["half of the pods handed over", "the controller deleted"])
def test_killed_migration_is_shown_in_progress_and_completed_by_labels(allowed, which):
    allowed.make_primary(2, labels={"app": "foo", "team": "a"})
    before = uids(allowed.pods())
    with pytest.raises(Killed):
        migrate(allowed, fault=kill_at_write(1, True, which))
    replica_set = allowed.replica_sets()[0]["metadata"]["name"]

    params = {"kubeconfig": allowed.kubeconfig, "namespace": allowed.name, "name": None}
    for selection in ({"name": "foo"}, {"kind": "ReplicationController"},
                      {"label_selectors": ["team in (a,b)"]}, {"names": ["foo"]}):
        (rollout,) = task.info({**params, **selection})["rollouts"]
        assert ((rollout["name"], rollout["phase"], rollout["successor"]["name"])
                == ("foo", "progressing", replica_set))
        assert ".migrate_to_deployment -a" in rollout["resume_command"]
        assert (rollout["rollback_command"] is None) == (which is is_deletion)
    assert task.info({**params, "label_selectors": ["team=b"]})["rollouts"] == []

    result = task.migrate({**params, "label_selectors": ["team=a"]})
    assert ([(outcome["name"], outcome["changed"]) for outcome in result["results"]]
            == [("foo", True)])
    assert is_migrated(allowed) and uids(allowed.pods()) == before
    (rollout,) = task.info({**params, "name": "foo"})["rollouts"]
    assert (rollout["kind"], rollout["phase"]) == ("Deployment", "complete")


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_rollback_of_a_migration_restores_the_replication_controller(allowed, number):
    before = allowed.make_primary(2)
    pods = uids(allowed.pods())
    with allowed.observer() as observer:
        with pytest.raises(Killed):
            migrate(allowed, fault=kill_at_write(number, True))
        planned = allowed.check(**BACK)
        result = allowed.roll(**BACK)
        assert ([step["action"] for step in planned["steps"]]
                == [step["action"] for step in result["steps"]])
        assert not observer.new and not observer.deleted and uids(allowed.pods()) == pods
    assert allowed.rc()["spec"] == before["spec"]
    assert {owner(pod) for pod in allowed.pods()} == {before["metadata"]["uid"]}
    assert not allowed.replica_sets() and not allowed.deployments()
    assert not allowed.call("GET", allowed.apps_path("controllerrevisions"))["items"]
    with pytest.raises(RolloutError, match="there is no migration in progress to roll back"):
        allowed.roll(**BACK)
    migrate(allowed)
    assert is_migrated(allowed) and uids(allowed.pods()) == pods
    with pytest.raises(RolloutError, match="a migration that has ended cannot be rolled back"):
        allowed.roll(**BACK)


def test_label_selectors_match_those_of_the_api_server(namespace):
    labels = namespace.make_primary(0)["metadata"]["labels"]
    for selector in SELECTORS:
        assert bool(namespace.gateway().names([selector])) == matches([selector], labels), selector


def deletes_primary(policy):
    return lambda namespace: namespace.remove("foo", policy=policy)


def deletes_replica_set(namespace):
    name = namespace.replica_sets()[0]["metadata"]["name"]
    namespace.call("DELETE", namespace.apps_path("replicasets", name),
                   {"propagationPolicy": "Background"})


#: Each action half way through the pods, the number of the two pods killed, and whether pods may be
#: orphaned.
DEEDS = {
    "a pod deleted": (lambda namespace: namespace.remove(namespace.pods()[0]["metadata"]["name"],
                                                         "pods"), 1, False),
    "a pod relabelled": (lambda namespace: namespace.patch(
        namespace.pods()[0]["metadata"]["name"], {"metadata": {"labels": {"app": "another"}}},
        "pods"), 1, True),
    "foo deleted": (deletes_primary("Background"), 1, False),
    "foo deleted without its pods": (deletes_primary("Orphan"), 1, True),
    # with all pods that this step hands over
    "the ReplicaSet deleted": (deletes_replica_set, 2, False),
    "foo scaled": (lambda namespace: namespace.patch("foo", {"spec": {"replicas": 3}}), 0, False),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("what", DEEDS)
def test_migration_resumes_after_changes_of_other_clients(allowed, what):
    deed, most_killed, leaves_bare = DEEDS[what]
    allowed.make_primary(2)
    before = uids(allowed.pods())

    with allowed.observer(lambda pod: leaves_bare):
        migrate(allowed, fault=action_after_write(1, lambda: deed(allowed), is_reparenting),
                progress_deadline=20)
        eventually(lambda: is_migrated(allowed), "the end of the migration", seconds=60)

    mine = [pod for pod in allowed.pods() if owner(pod)]
    assert (len(mine) == allowed.deployment()["spec"]["replicas"]
            and len(allowed.pods()) <= len(mine) + leaves_bare)
    assert len(before & uids(mine)) >= 2 - most_killed


def test_unsupported_controller_is_refused_before_the_first_write(allowed):
    allowed.make_primary(2)
    allowed.roll(image="myimage:v2", pause_at="1")
    with pytest.raises(RolloutError, match="an update is in progress"):
        migrate(allowed)
    allowed.roll(state="rolled_back")
    labels = {"app": "foo", "of": "it"}
    allowed.make_deployment(1, name="foo", selector={"matchLabels": labels}, template={
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": "myimage:v1"}]}})
    with pytest.raises(RolloutError, match="a Deployment named foo already exists"):
        migrate(allowed)
    assert object_meta.HASH_LABEL not in allowed.rc()["spec"]["template"]["metadata"]["labels"]


def test_controller_with_an_owner_is_migrated_only_on_request(allowed):
    owner = allowed.create("configmaps", {"metadata": {"name": "stands-for-it"}})["metadata"]["uid"]
    stand_in = {"apiVersion": "v1", "kind": "ConfigMap", "name": "stands-for-it", "uid": owner,
                "controller": True,
                "blockOwnerDeletion": False}
    allowed.make_primary(2, ownerReferences=[stand_in])
    before = uids(allowed.pods())
    with pytest.raises(RolloutError, match="it is controlled by ConfigMap/stands-for-it"):
        migrate(allowed)
    migrate(allowed, release_owner=True)
    assert is_migrated(allowed) and uids(allowed.pods()) == before


def test_missing_permission_is_named(namespace):
    namespace.make_primary(1)
    with pytest.raises(RolloutError, match="permission") as error:
        migrate(namespace)
    assert error.value.message and namespace.rcs() == ["foo"]


def untouched(namespace, before, name="foo"):
    """Return whether nothing was written."""
    revisions = namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]
    return (namespace.rc(name)["spec"] == before["spec"] and not revisions
            and not namespace.deployments())


@pytest.mark.parametrize("resource, kind",
                         [("replicasets", "ReplicaSet"), ("deployments", "Deployment")])
def test_quota_is_an_error_before_the_first_write(allowed, resource, kind):
    before = allowed.make_primary(2)
    allowed.create("resourcequotas",
                   {"metadata": {"name": "none"},
                    "spec": {"hard": {f"count/{resource}.apps": "0"}}})
    quota = allowed.path("resourcequotas", "none")
    eventually(lambda: allowed.call("GET", quota).get("status", {}).get("used"),
               "the quota is at work")
    for run in (migrate, lambda namespace: namespace.check(**MIGRATE)):
        with pytest.raises(RolloutError, match=f"its {kind} foo.* cannot be created") as caught:
            run(allowed)
        assert "exceeded quota: none" in caught.value.why and untouched(allowed, before)
    allowed.call("DELETE", quota)
    migrate(allowed)
    assert is_migrated(allowed)


def test_too_long_name_is_an_error_before_the_first_write(allowed):
    name = "f" * 245
    body = manifest(0)
    before = allowed.create("replicationcontrollers",
                            {**body, "metadata": {**body["metadata"], "name": name}})
    with pytest.raises(RolloutError, match=r"its ReplicaSet ffff.* cannot be created"):
        migrate(allowed, name=name)
    assert untouched(allowed, before, name)


def test_existing_replica_set_of_another_client_gets_no_pods(allowed):
    """He may create ControllerRevisions and ReplicaSets, and knows all names."""
    allowed.make_primary(2, image="myimage:evil")
    with pytest.raises(Killed):
        migrate(allowed, fault=kill_at_write(2, True))
    revision = allowed.call("GET", allowed.apps_path("controllerrevisions", "foo-migration"))
    (replica_set,) = allowed.replica_sets()
    allowed.remove("foo")
    allowed.wait_for_deletion("foo")
    before = allowed.make_primary(2)
    data = {**revision["data"], "uid": before["metadata"]["uid"]}
    allowed.call("DELETE", allowed.apps_path("controllerrevisions", "foo-migration"))
    forged = {"metadata": {"name": "foo-migration"}, "revision": 1, "data": data}
    allowed.call("POST", allowed.apps_path("controllerrevisions"), forged)

    with pytest.raises(RolloutError,
                       match="its template or selector differs from the ControllerRevision "
                             "foo-migration of its migration"):
        migrate(allowed)
    assert (allowed.rc()["spec"] == before["spec"]
            and {owner(pod) for pod in allowed.pods()} == {before["metadata"]["uid"]})
    assert ([item["spec"] for item in allowed.replica_sets()] == [replica_set["spec"]]
            and not allowed.deployments())

    allowed.call("DELETE", allowed.apps_path("controllerrevisions", "foo-migration"))
    allowed.call("DELETE", allowed.apps_path("replicasets", replica_set["metadata"]["name"]))
    migrate(allowed)
    assert {pod["spec"]["containers"][0]["image"] for pod in allowed.pods()} == {"myimage:v1"}

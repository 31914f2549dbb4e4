# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates in which finalizers block the deletion of a controller."""

from __future__ import annotations

import pytest
from objects import eventually, owner_uid, role_rules, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create

WITH_FINALIZER = {"metadata": {"finalizers": ["example.com/hold"]}}
WITHOUT_FINALIZERS = {"metadata": {"finalizers": None}}
SHORT_DEADLINE = {"progress_deadline": 3}


class Controllers:
    def __init__(self, namespace, kind_name):
        self.namespace, self.kind_name = namespace, kind_name

    @property
    def short_name(self):
        return {"ReplicationController": "rc", "ReplicaSet": "rs"}[self.kind_name]

    @property
    def path(self):
        namespace = self.namespace
        return (namespace.path("replicationcontrollers") if self.short_name == "rc"
                else namespace.apps_path("replicasets"))

    def make(self, replicas):
        if self.short_name == "rc":
            self.namespace.make_rc(replicas)
        else:
            self.namespace.make_replica_set(replicas)

    def by_name(self):
        return {item["metadata"]["name"]: item
                for item in self.namespace.call("GET", self.path)["items"]}

    def patch(self, name, body):
        self.namespace.call("PATCH", f"{self.path}/{name}", body,
                            "application/merge-patch+json")

    def roll(self, **params):
        return self.namespace.roll(kind=self.kind_name, **params)


@pytest.fixture(params=["ReplicationController", "ReplicaSet"])
def controllers(namespace, request):
    return Controllers(namespace, request.param)


def add_finalizer_to_successors(controllers):
    """Return a fault that adds a finalizer to each controller that the task creates."""
    def wrap_send(gateway):
        send = gateway._send

        def send_with_finalizer(write, *args, **options):
            if (isinstance(write, Create) and write.kind == controllers.kind_name
                    and not options and not args):
                write = Create(
                    {
                        **write.manifest,
                        "metadata": {**write.manifest["metadata"], **WITH_FINALIZER["metadata"]},
                    }
                )
            return send(write, *args, **options)

        gateway._send = send_with_finalizer
    return wrap_send


@pytest.mark.sample(1)
@pytest.mark.parametrize("case", ["next_name", "handover", "rollback"])
def test_blocked_deletion_is_reported_and_a_rerun_resumes(controllers, case):
    controllers.make(2)
    request = {"next_name": {"image": "myimage:v2", "next_name": "bar", "on_failure": "rollback"},
               "handover": {"image": "myimage:v2"}, "rollback": {"state": "rolled_back"}}[case]
    if case == "next_name":
        controllers.patch("foo", WITH_FINALIZER)
    if case == "rollback":
        controllers.roll(image="myimage:v2", pause_at="1",
                         fault=add_finalizer_to_successors(controllers))
    lines = []

    with pytest.raises(RolloutError) as error:
        fault_params = ({"fault": add_finalizer_to_successors(controllers)} if case == "handover"
                        else {})
        controllers.roll(on_line=lines.append, **SHORT_DEADLINE, **request, **fault_params)

    items = controllers.by_name()
    (deleted_name,) = (name for name, item in items.items()
                       if "deletionTimestamp" in item["metadata"])
    assert (deleted_name == "foo") == (case == "next_name")
    assert not isinstance(error.value, RolloutFailed)
    assert error.value.what == f"the deletion of {deleted_name} does not end"
    assert (error.value.why
            == f"finalizers of {controllers.kind_name} {deleted_name}: example.com/hold")
    assert (f"patch {controllers.short_name} {deleted_name} --type=merge "
            "-p '{\"metadata\": {\"finalizers\": null}}'" in error.value.next_command)
    assert (f"waiting until {deleted_name} is gone (its finalizers: example.com/hold)" in lines
            and "another client" not in str(lines))
    assert all(item["spec"]["template"]["spec"].get("priorityClassName") != CLOSED
               for other_name, item in items.items() if other_name != deleted_name)

    controllers.patch(deleted_name, WITHOUT_FINALIZERS)
    controllers.roll(**request)
    assert len(controllers.by_name()) == 1 and len(controllers.namespace.pods()) == 2


@pytest.mark.sample(1)
def test_deleted_pod_is_replaced_while_the_successor_has_a_finalizer(controllers):
    controllers.make(2)
    with pytest.raises(RolloutError, match="does not end"):
        controllers.roll(image="myimage:v2", fault=add_finalizer_to_successors(controllers),
                         **SHORT_DEADLINE)
    deleted_pod = controllers.namespace.pods()[0]["metadata"]["name"]
    controllers.namespace.remove(deleted_pod, "pods")

    def other_pods():
        return {pod["metadata"]["name"] for pod in controllers.namespace.pods()} - {deleted_pod}

    eventually(lambda: len(other_pods()) == 2, "the replacement of the pod")


@pytest.fixture
def namespace_with_migration_role(namespace):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    return namespace


@pytest.mark.full
def test_migration_with_finalizers_is_refused_before_the_first_write(namespace_with_migration_role):
    before = namespace_with_migration_role.make_rc(2, **WITH_FINALIZER["metadata"])
    migration = {"module": "migrate_to_deployment", "state": "migrated"}
    for run in (namespace_with_migration_role.roll, namespace_with_migration_role.check):
        with pytest.raises(RolloutError,
                           match="its migration deletes ReplicationController foo, which has "
                                 "finalizers") as error:
            run(**migration)
        assert "example.com/hold" in error.value.why
    assert (
        namespace_with_migration_role.rc()["spec"] == before["spec"]
        and not namespace_with_migration_role.replica_sets()
    )

    pod_uids = uids(namespace_with_migration_role.pods())
    namespace_with_migration_role.patch("foo", WITHOUT_FINALIZERS)
    namespace_with_migration_role.roll(**migration)
    assert (
        uids(namespace_with_migration_role.pods()) == pod_uids
        and namespace_with_migration_role.wait_for_rollout()
    )


def test_migration_completes_after_the_finalizer_of_a_deleted_controller_is_removed(
    namespace_with_migration_role,
):
    """The pods are handed over before the deletion of foo completes."""
    namespace_with_migration_role.make_rc(2)
    migration = {"module": "migrate_to_deployment", "state": "migrated"}

    def on_line(line):
        if "no more pods are created for it" in line:
            namespace_with_migration_role.patch("foo", WITH_FINALIZER)
            namespace_with_migration_role.remove("foo")

    with pytest.raises(RolloutError) as error:
        namespace_with_migration_role.roll(on_line=on_line, **SHORT_DEADLINE, **migration)
    assert error.value.what == "the deletion of foo does not end"
    (replica_set,) = namespace_with_migration_role.replica_sets()
    assert "priorityClassName" not in replica_set["spec"]["template"]["spec"]
    assert {owner_uid(pod) for pod in namespace_with_migration_role.pods()} == {
        replica_set["metadata"]["uid"]
    }

    namespace_with_migration_role.patch("foo", WITHOUT_FINALIZERS)
    pod_uids = uids(namespace_with_migration_role.pods())
    namespace_with_migration_role.roll(**migration)
    assert (
        uids(namespace_with_migration_role.pods()) == pod_uids
        and namespace_with_migration_role.wait_for_rollout()
        and not namespace_with_migration_role.rc_names()
    )

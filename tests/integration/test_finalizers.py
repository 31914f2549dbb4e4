# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controllers kept by finalizers after their deletion: the task's messages, and its unaffected
pods.
"""

from __future__ import annotations

import pytest
from objects import eventually, owner, role, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create

HOLD = {"metadata": {"finalizers": ["example.com/hold"]}}
FREE = {"metadata": {"finalizers": None}}
QUICK = {"progress_deadline": 3}


class Kind:
    """The kind of the controllers of an update."""

    def __init__(self, namespace, name):
        self.namespace, self.name = namespace, name

    @property
    def short(self):
        return {"ReplicationController": "rc", "ReplicaSet": "rs"}[self.name]

    @property
    def collection(self):
        namespace = self.namespace
        return (namespace.path("replicationcontrollers") if self.short == "rc"
                else namespace.apps_path("replicasets"))

    def make(self, replicas):
        (self.namespace.make_primary if self.short == "rc"
         else self.namespace.make_replica_set)(replicas)

    def all(self):
        return {item["metadata"]["name"]: item
                for item in self.namespace.call("GET", self.collection)["items"]}

    def patch(self, name, body):
        self.namespace.call("PATCH", f"{self.collection}/{name}", body,
                            "application/merge-patch+json")

    def roll(self, **params):
        return self.namespace.roll(kind=self.name, **params)


@pytest.fixture(params=["ReplicationController", "ReplicaSet"])
def kind(namespace, request):
    return Kind(namespace, request.param)


def holds_successors(kind):
    """Return a fault that adds a finalizer to each controller the task creates, like an operator.
    """
    def arm(gateway):
        send = gateway._send

        def armed(write, *args, **more):
            if isinstance(write, Create) and write.kind == kind.name and not more and not args:
                write = Create({**write.manifest,
                                "metadata": {**write.manifest["metadata"], **HOLD["metadata"]}})
            return send(write, *args, **more)

        gateway._send = armed
    return arm


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", ["next_name", "handover", "back"])
def test_blocked_deletion_is_named_and_a_rerun_resumes(kind, case):
    kind.make(2)
    request = {"next_name": {"image": "myimage:v2", "next_name": "bar", "on_failure": "rollback"},
               "handover": {"image": "myimage:v2"}, "back": {"state": "rolled_back"}}[case]
    if case == "next_name":
        kind.patch("foo", HOLD)
    if case == "back":
        kind.roll(image="myimage:v2", pause_at="1", fault=holds_successors(kind))
    lines = []

    with pytest.raises(RolloutError) as error:
        kind.roll(say=lines.append, **QUICK, **request,
                  **({"fault": holds_successors(kind)} if case == "handover" else {}))

    controllers = kind.all()
    (name,) = (name
               for name, item in controllers.items() if "deletionTimestamp" in item["metadata"])
    assert (name == "foo") == (case == "next_name") and not isinstance(error.value, RolloutFailed)
    assert error.value.what == f"the deletion of {name} does not end"
    assert error.value.why == f"finalizers of {kind.name} {name}: example.com/hold"
    assert (f"patch {kind.short} {name} --type=merge -p '{{\"metadata\": {{\"finalizers\": "
            f"null}}}}'" in error.value.next_command)
    assert (f"waiting: {name} is gone (its finalizers: example.com/hold)" in lines
            and "somebody" not in str(lines))
    assert all(item["spec"]["template"]["spec"].get("priorityClassName") != CLOSED
               for key, item in controllers.items() if key != name)

    kind.patch(name, FREE)
    kind.roll(**request)
    assert len(kind.all()) == 1 and len(kind.namespace.pods()) == 2


@pytest.mark.sample(1)
def test_pod_lost_while_a_finalizer_keeps_the_successor_is_replaced(kind):
    kind.make(2)
    with pytest.raises(RolloutError, match="does not end"):
        kind.roll(image="myimage:v2", fault=holds_successors(kind), **QUICK)
    dead = kind.namespace.pods()[0]["metadata"]["name"]
    kind.namespace.remove(dead, "pods")
    eventually(lambda: len({pod["metadata"]["name"] for pod in kind.namespace.pods()} - {dead})
               == 2, "the pod in its place")


@pytest.fixture
def allowed(namespace):
    namespace.allow(role("baton-migration"), "baton-migration")
    return namespace


def test_migration_with_finalizers_is_refused_before_the_first_write(allowed):
    before = allowed.make_primary(2, **HOLD["metadata"])
    migrate = {"state": "migrated", "to_kind": "Deployment"}
    for run in (allowed.roll, allowed.check):
        with pytest.raises(RolloutError,
                           match="its migration deletes ReplicationController foo, which has "
                                 "finalizers") as error:
            run(**migrate)
        assert "example.com/hold" in error.value.why
    assert allowed.rc()["spec"] == before["spec"] and not allowed.replica_sets()

    pods = uids(allowed.pods())
    allowed.patch("foo", FREE)
    allowed.roll(**migrate)
    assert uids(allowed.pods()) == pods and allowed.wait_for_rollout()


def test_controller_deleted_in_its_migration_with_a_finalizer(allowed):
    """foo's pods are handed over, and replaced when they die, long before the deletion of foo ends.
    """
    allowed.make_primary(2)
    migrate = {"state": "migrated", "to_kind": "Deployment"}

    def say(line):
        if "no more pods are created for it" in line:
            allowed.patch("foo", HOLD)
            allowed.remove("foo")

    with pytest.raises(RolloutError) as error:
        allowed.roll(say=say, **QUICK, **migrate)
    assert error.value.what == "the deletion of foo does not end"
    (replica_set,) = allowed.replica_sets()
    assert "priorityClassName" not in replica_set["spec"]["template"]["spec"]
    assert {owner(pod) for pod in allowed.pods()} == {replica_set["metadata"]["uid"]}

    allowed.patch("foo", FREE)
    pods = uids(allowed.pods())
    allowed.roll(**migrate)
    assert uids(allowed.pods()) == pods and allowed.wait_for_rollout() and not allowed.rcs()

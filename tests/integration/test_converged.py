# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tasks whose desired template is already stored, but whose pods are not available."""

from __future__ import annotations

import pytest
from objects import eventually, manifest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

pytestmark = pytest.mark.fake_nodes("pods that take seconds to become ready, or never do")
#: Kinds whose planners do not check the pods if the stored template is the desired one.
KINDS = ("ReplicationController", "ReplicaSet", "Deployment")


def create_with_two_pods(namespace, kind, tag, **annotations):
    item = manifest(2, f"myimage:{tag}")
    item["spec"]["template"]["metadata"]["annotations"] = annotations
    if kind == "ReplicationController":
        namespace.create("replicationcontrollers", item)
    else:
        namespace.create_controller(kind, item)
    eventually(lambda: len(namespace.pods()) == 2, "two pods")


def status(namespace, kind):
    read = {"ReplicationController": namespace.rc, "ReplicaSet": namespace.replica_set,
            "Deployment": namespace.deployment}[kind]
    return read()["status"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_task_waits_for_unready_pods_and_writes_nothing(namespace, kind):
    create_with_two_pods(namespace, kind, "v1-slow", **{"baton.test/ready-after": "2s"})
    result = namespace.roll(kind=kind, image="myimage:v1-slow")

    assert not result["changed"] and result["msg"] == "foo already has the desired template"
    assert set(result["requests"]) <= {"GET", "WATCH"}
    eventually(lambda: status(namespace, kind).get("availableReplicas") == 2,
               "two available pods in the status")


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_task_fails_without_a_rollback_if_pods_never_become_available(namespace, kind):
    create_with_two_pods(namespace, kind, "v1-absent")
    before = status(namespace, kind)["observedGeneration"]
    with pytest.raises(RolloutError) as caught:
        namespace.roll(kind=kind, image="myimage:v1-absent", failure_grace=1, on_failure="rollback")

    assert caught.value.what == "the new pods cannot become available; no update is in progress"
    assert "container web: " in caught.value.why and "push that image" in caught.value.next_command
    *_suggestions, separator, rollback = caught.value.next_command.splitlines()
    assert separator == "or:" and "state=rolled_back to_revision=previous" in rollback
    assert (status(namespace, kind)["observedGeneration"] == before
            and not caught.value.progress["changed"])

    namespace.roll(kind=kind, image="myimage:v2")
    with pytest.raises(RolloutError, match="cannot become available"):
        namespace.roll(kind=kind, state="rolled_back", to_revision="previous", failure_grace=1)

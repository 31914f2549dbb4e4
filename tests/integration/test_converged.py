# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A task without changes waits for unavailable pods, and fails if they never become available."""

from __future__ import annotations

import pytest
from objects import eventually, manifest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

pytestmark = pytest.mark.fake_nodes("pods that take seconds to become ready, or never do")
#: Kinds whose planners skip the pods when the stored template is the desired one.
KINDS = ("ReplicationController", "ReplicaSet", "Deployment")


def make(namespace, kind, tag, **annotations):
    """Create foo, whose pods exist but are not ready yet."""
    item = manifest(2, f"myimage:{tag}")
    item["spec"]["template"]["metadata"]["annotations"] = annotations
    if kind == "ReplicationController":
        namespace.create("replicationcontrollers", item)
    else:
        namespace.create_any(kind, item)
    eventually(lambda: len(namespace.pods()) == 2, "its pods")


def status(namespace, kind):
    item = {"ReplicationController": namespace.rc, "ReplicaSet": namespace.replica_set,
            "Deployment": namespace.deployment}
    return item[kind]()["status"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_task_waits_for_the_pods_and_writes_nothing(namespace, kind):
    make(namespace, kind, "v1-slow", **{"baton.test/ready-after": "2s"})
    result = namespace.roll(kind=kind, image="myimage:v1-slow")

    assert not result["changed"] and result["msg"] == "foo already has the desired template"
    assert set(result["requests"]) <= {"GET", "WATCH"}
    eventually(lambda: status(namespace, kind).get("availableReplicas") == 2,
               "the status of a Deployment, which follows")


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_pods_that_never_become_available_fail_the_task_without_a_rollback(namespace, kind):
    make(namespace, kind, "v1-absent")
    before = status(namespace, kind)["observedGeneration"]
    with pytest.raises(RolloutError) as caught:
        namespace.roll(kind=kind, image="myimage:v1-absent", failure_grace=1, on_failure="rollback")

    assert caught.value.what == "the new pods cannot become available; no update is in progress"
    assert "container web: " in caught.value.why and "push that image" in caught.value.next_command
    *_rest, either, back = caught.value.next_command.splitlines()
    assert either == "or:" and "state=rolled_back to_revision=previous" in back
    assert (status(namespace, kind)["observedGeneration"] == before
            and not caught.value.progress["changed"])

    namespace.roll(kind=kind, image="myimage:v2")
    with pytest.raises(RolloutError, match="cannot become available"):
        namespace.roll(kind=kind, state="rolled_back", to_revision="previous", failure_grace=1)

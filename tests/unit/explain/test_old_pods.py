# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Diagnose the pods that an update replaces, and those that block an update of a StatefulSet."""

from __future__ import annotations

import pytest
from builders import rc

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.old_pods import (
    ROLLBACK_BLOCKING_KINDS,
    causes,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import MAX_IN_COMMAND
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import (
    StatefulSet,
)

OLD, NEW, BROKEN = "foo-old", "foo-new", "foo-broken"


def pod(revision, name="foo-0", ready="False", reason="ErrImagePull", **metadata):
    state = {"waiting": {"reason": reason, "message": "not found"}} if reason else {"running": {}}
    return {"metadata": {"name": name, "uid": f"uid of {name}",
                         "labels": {"controller-revision-hash": revision}, **metadata},
            "spec": {"nodeName": "real-1", "containers": [{"name": "web"}]},
            "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": ready}],
                       "containerStatuses": [{"name": "web", "ready": False, "restartCount": 0,
                                              "state": state}]}}


def diagnose(*pods, policy="OrderedReady", partition=0, state="updated", current_revision=OLD):
    item = rc("foo", 3, available=0)
    item["spec"] |= {"podManagementPolicy": policy,
                     "updateStrategy": {"type": "RollingUpdate",
                                        "rollingUpdate": {"partition": partition}}}
    item["status"] |= {"currentRevision": current_revision, "updateRevision": NEW}
    request = Request("foo", namespace="shop", kind=Kind.STATEFUL_SET, state=State(state))
    return causes(choose(request), request, StatefulSet.from_api(item), pods, [],
                  lambda labels: False)


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
@pytest.mark.parametrize("revision, partition, kind, blocks_rollback", [
    (OLD, 0, "old-pod", True), (OLD, 1, "held-pod", True), (BROKEN, 0, "stuck-pod", False),
    (BROKEN, 1, "stuck-pod", False),
    (NEW, 0, "image", False)])
def test_causes_of_old_and_new_pods(revision, partition, kind, blocks_rollback, policy):
    (cause,) = diagnose(pod(revision), partition=partition, policy=policy)

    assert (cause.kind, cause.kind in ROLLBACK_BLOCKING_KINDS, cause.pod) == (kind, blocks_rollback,
                                                                              "foo-0")
    assert cause.sentence.startswith("pod foo-0, " if kind == "image"
                                     else "old pod foo-0, container web: ErrImagePull")
    assert ("kubectl -n shop delete pod foo-0" in cause.suggestion) is (
        kind in ("old-pod", "stuck-pod"))
    assert ("leave pause_at out" in cause.suggestion) is (kind == "held-pod")
    assert cause.is_fatal is (policy == "OrderedReady" or partition == 1 or kind == "image")


def test_command_deletes_all_unready_old_pods():
    ready_pod = pod(OLD, "foo-3", ready="True")
    terminating_pod = pod(OLD, "foo-4", reason="", deletionTimestamp="2026-11-24T10:00:00Z")
    (cause,) = diagnose(pod(OLD, "foo-10"), pod(OLD, "foo-2"), ready_pod, terminating_pod)

    assert (cause.suggestion.endswith("\nkubectl -n shop delete pod foo-2 foo-10")
            and cause.pods == 2)


def test_command_deletes_a_limited_number_of_old_pods():
    (cause,) = diagnose(*[pod(OLD, f"foo-{number}") for number in range(3000)])

    names = " ".join(f"foo-{number}" for number in range(MAX_IN_COMMAND))
    assert cause.suggestion.endswith(f"\nkubectl -n shop delete pod {names}")
    assert cause.pods == 3000 and len(cause.suggestion) < 5000


@pytest.mark.parametrize("revision, partition, templates", [
    (OLD, 0, "the new template"), (BROKEN, 0, "the new template"),
    (BROKEN, 1, "the template from before the update or the new template"),
    (BROKEN, 2, "the template from before the update")])
def test_suggestion_names_the_template_of_the_replacement(revision, partition, templates):
    (cause,) = diagnose(pod(revision), pod(revision, "foo-1"), partition=partition)

    assert f"creates a deleted pod again, from {templates}\n" in cause.suggestion


def test_replacement_after_the_update_has_the_current_template():
    """Both revisions of the status are the same, and the partition applies to no template."""
    (cause,) = diagnose(pod(BROKEN), partition=1, current_revision=NEW)

    assert "creates a deleted pod again, from the new template\n" in cause.suggestion


def test_unready_old_pod_without_a_reason_is_reported():
    (cause,) = diagnose(pod(OLD, reason=""))

    assert cause.sentence == "old pod foo-0: it is not ready" and not cause.is_fatal


@pytest.mark.parametrize("revision, is_fatal", [(NEW, True), (OLD, False), (BROKEN, False)])
def test_rollback_deletes_unready_pods_of_other_templates(revision, is_fatal):
    """The task deletes them one after the other, so their causes do not end the rollback."""
    (cause,) = diagnose(pod(revision), state="rolled_back")

    assert (cause.kind, cause.is_fatal) == ("image", is_fatal)
    assert "delete pod" not in cause.suggestion


def test_command_contains_only_valid_names():
    (cause,) = diagnose(pod(OLD, "$(touch pwned)`id`"))

    assert cause.suggestion.endswith("\nkubectl -n shop delete pod POD")


def causes_with_replaced_pods(*pods, state="updated"):
    """Return the causes in pods of a controller of another kind, which replaces pods with OLD."""
    request = Request("foo", state=State(state))
    return causes(choose(request), request, Controller.from_api(rc(available=0)), pods,
                  [], lambda labels: labels["controller-revision-hash"] == OLD)


@pytest.mark.parametrize("revision, state, place, is_fatal", [
    (NEW, "updated", "pod foo-0", True), (OLD, "updated", "old pod foo-0", False),
    (NEW, "rolled_back", "pod foo-0", True), (OLD, "rolled_back", "pod foo-0", False)])
def test_cause_in_a_replaced_pod_is_not_fatal(revision, state, place, is_fatal):
    (cause,) = causes_with_replaced_pods(pod(revision), state=state)

    assert (cause.kind, cause.place, cause.is_fatal) == (
        "image", f"{place}, container web", is_fatal)


def test_replaced_pods_have_only_causes_of_other_kinds():
    causes_ = causes_with_replaced_pods(
        pod(OLD), pod(NEW, "foo-1"), pod(OLD, "foo-2", reason="CreateContainerError"),
        pod(OLD, "foo-3", reason="CreateContainerError"),
        pod(OLD, "foo-4", reason="", deletionTimestamp="2026-11-24T10:00:00Z",
            deletionGracePeriodSeconds=0, finalizers=["example.com/hold"]))

    assert [(cause.kind, cause.place, cause.pods) for cause in causes_] == [
        ("image", "pod foo-1, container web", 1), ("finalizer", "pod foo-4", 1),
        ("start", "old pod foo-2, container web", 2)]

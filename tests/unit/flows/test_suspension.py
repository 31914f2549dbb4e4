# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Exclude foo from Flux during its update, for each kind."""

from __future__ import annotations

import contextlib
import copy
import itertools

import pytest
from every_kind import KINDS, Cluster, update_request
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.suspension import (
    HELM_CONTROLLER,
    KUSTOMIZE_CONTROLLER,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    SUSPENDED_GITOPS,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request

RECONCILE = KUSTOMIZE_CONTROLLER.annotation
LABELS = {KUSTOMIZE_CONTROLLER.label: "apps",
          "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}
EXCLUDED = {RECONCILE: "disabled", SUSPENDED_GITOPS: RECONCILE}


class FluxCluster(Cluster):
    """Cluster in which a Kustomization of Flux manages foo.

    write() checks the annotations, unless a test gives labels or annotations.
    """

    def __init__(self, kind, labels=None, annotations=None):
        labels = LABELS if labels is None else labels
        self.checks_annotations = False
        super().__init__(kind)
        metadata = self.cluster.items["foo"]["metadata"]
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
        if annotations:
            metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
        self.checks_annotations = labels is LABELS and not annotations

    @property
    def annotations(self):
        return self.cluster.items["foo"]["metadata"].get("annotations") or {}

    @property
    def exclusion(self):
        """Return the annotations of foo that exclude it from Flux."""
        return {key: value for key, value in self.annotations.items()
                if key in (RECONCILE, HELM_CONTROLLER.annotation, SUSPENDED_GITOPS)}

    @property
    def is_in_progress(self):
        return (object_meta.is_updating(self.annotations)
                or object_meta.rollout(self.annotations) is not None)

    def write(self, write):
        is_written = super().write(write)
        if self.checks_annotations:
            assert self.exclusion == (EXCLUDED if self.is_in_progress else {}), write
        return is_written

    def update(self, **params):
        return self.run(update_request(str(self.kind), **params))

    def roll_back(self, **params):
        return self.run(parse_request({"name": "foo", "kind": str(self.kind),
                                       "state": "rolled_back", **params}))


def write_count_of_update(kind, suspends, **params):
    cluster = FluxCluster(kind)
    cluster.checks_annotations = suspends
    cluster.update(suspend_gitops=suspends, **params)
    return len(cluster.attempts)


@pytest.mark.parametrize("kind", KINDS)
def test_exclusion_during_the_update_needs_no_additional_writes(kind):
    assert write_count_of_update(kind, True) == write_count_of_update(kind, False)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=[pytest.mark.full] if kind == "ReplicaSet" else []) for kind in KINDS])
@pytest.mark.parametrize("next_task", [FluxCluster.update, FluxCluster.roll_back])
def test_next_task_removes_the_annotations_after_a_kill_at_each_write(kind, next_task):
    for write_number, is_after_write in itertools.product(range(1, 99), (False, True)):
        cluster = FluxCluster(kind)
        cluster.death = (write_number, is_after_write)
        try:
            cluster.update(suspend_gitops=True)
        except Killed:
            pass
        else:
            break
        cluster.death = None
        if not cluster.is_in_progress:
            assert cluster.exclusion == {}
            continue
        cluster.settle()
        with contextlib.suppress(RolloutError):  # a rollback fails after the handover has begun
            next_task(cluster)
        cluster.settle()
        assert cluster.exclusion == {} and not cluster.is_in_progress
    assert write_number > 2


@pytest.mark.parametrize("kind", KINDS)
def test_pauses_keep_the_annotations_and_the_end_removes_them(kind):
    cluster = FluxCluster(kind)

    cluster.update(suspend_gitops=True, pause_at="1")

    assert cluster.exclusion == EXCLUDED
    cluster.settle()
    cluster.update(suspend_gitops=True, pause_at="2")
    assert cluster.exclusion == EXCLUDED
    cluster.settle()
    result = cluster.update(suspend_gitops=True)
    assert cluster.exclusion == {} and result["changed"]
    assert not cluster.update(suspend_gitops=True)["changed"]


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_task_excludes_foo_if_the_first_task_did_not(kind):
    cluster = FluxCluster(kind)
    cluster.checks_annotations = False
    cluster.update(pause_at="1")
    cluster.settle()
    assert cluster.exclusion == {}

    cluster.update(suspend_gitops=True, pause_at="2")

    assert cluster.exclusion == EXCLUDED
    cluster.settle()
    cluster.update()
    assert cluster.exclusion == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels, annotations, options", [
    (LABELS, {RECONCILE: "disabled"}, {"suspend_gitops": True}),
    (LABELS, {RECONCILE: "enabled"}, {"suspend_gitops": True}),
    ({"argocd.argoproj.io/instance": "web"}, None, {"suspend_gitops": True}),
    ({}, None, {"suspend_gitops": True}),
    ({**LABELS}, None, {}),  # a copy: FluxCluster checks each write only for LABELS itself
], ids=["excluded by the user", "included by the user", "Argo CD", "no tool", "no option"])
def test_user_annotations_are_kept_and_none_are_set_for_other_tools(
        kind, labels, annotations, options):
    cluster = FluxCluster(kind, labels, annotations)

    cluster.update(pause_at="1", **options)
    at_pause = cluster.exclusion
    cluster.settle()
    cluster.update(**options)

    assert at_pause == cluster.exclusion == (annotations or {})


def test_drift_detection_of_a_helm_release_is_disabled():
    cluster = FluxCluster("Deployment", {HELM_CONTROLLER.label: "web", **LABELS})

    cluster.update(suspend_gitops=True, pause_at="1")

    keys = f"{RECONCILE},{HELM_CONTROLLER.annotation}"
    assert cluster.exclusion == {
        RECONCILE: "disabled", HELM_CONTROLLER.annotation: "disabled", SUSPENDED_GITOPS: keys}
    cluster.settle()
    cluster.update()
    assert cluster.exclusion == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key, exclusion", [
    (RECONCILE, {SUSPENDED_GITOPS: RECONCILE}), (SUSPENDED_GITOPS, {RECONCILE: "disabled"})])
def test_annotation_removed_by_another_client_is_not_set_again(kind, key, exclusion):
    """An annotation that is not listed in SUSPENDED_GITOPS belongs to the user."""
    cluster = FluxCluster(kind)
    cluster.update(suspend_gitops=True, pause_at="1")
    cluster.settle()
    cluster.checks_annotations = False
    del cluster.annotations[key]

    cluster.update(suspend_gitops=True, pause_at="2")

    assert cluster.exclusion == exclusion
    cluster.settle()
    cluster.update()
    assert cluster.exclusion == ({RECONCILE: "disabled"} if key == SUSPENDED_GITOPS else {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored_keys, exclusion", [
    (RECONCILE, {}), (f"a,{RECONCILE},b", {}),
    ("", {RECONCILE: "disabled"}), (f"x{RECONCILE}", {RECONCILE: "disabled"})])
def test_task_without_an_update_removes_restored_annotations(kind, stored_keys, exclusion):
    """`kubectl rollout undo` copies the annotations of an old ReplicaSet to the Deployment."""
    cluster = FluxCluster(kind, annotations={**EXCLUDED, SUSPENDED_GITOPS: stored_keys})

    result = cluster.run(update_request(kind, image="myimage:v1"))

    assert cluster.exclusion == exclusion and result["changed"] and len(cluster.attempts) == 1
    assert not cluster.run(update_request(kind, image="myimage:v1"))["changed"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet"])
def test_restored_annotations_are_removed_after_a_wait_for_the_pods(kind):
    """`kubectl rollout undo` also changes the template, so that the task first waits."""
    cluster = FluxCluster(kind, annotations=EXCLUDED)
    item = copy.deepcopy(cluster.cluster.items["foo"])
    item["spec"]["template"]["spec"]["containers"][0]["image"] = "myimage:v2"
    item["metadata"]["generation"] = item["metadata"].get("generation", 1) + 1
    cluster.cluster.items["foo"] = item
    request = update_request(kind)

    assert cluster.check_mode(request)["changed"]
    result = cluster.run(request)

    assert [step["action"] for step in result["steps"]] == ["annotate"]
    assert cluster.exclusion == {} and not cluster.run(request)["changed"]

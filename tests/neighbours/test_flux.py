# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers that Flux's kustomize-controller manages.

The manifests V2 have the annotation `note: b`. So controllers.notes() is "bbb" after Flux has
applied V2 to the three controllers.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess

import binaries
import flux
import pytest
from objects import eventually, role_rules
from three_kinds import DEPLOYMENT, NAMES, RC, STATEFUL_SET, Controllers, manifest_of
from writes import action_after_write, any_write, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.gitops import FLUX_RECONCILE
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

V1 = [manifest_of(kind, "myimage:v1") for kind in NAMES]
V2 = [manifest_of(kind, "myimage:v2", note="b") for kind in NAMES]


@pytest.fixture(scope="session")
def kubectl(cluster):
    program = binaries.provide(["kubectl"])["kubectl"]

    def run(command):
        words = shlex.split(command)
        assert words[0] == "kubectl"
        subprocess.run([str(program), f"--kubeconfig={cluster.kubeconfig}", *words[1:]],
                       check=True, timeout=60)

    return run


@pytest.fixture
def kustomization(namespace, flux_program, tmp_path):
    """Provide a Kustomization that has applied three controllers of version 1."""
    namespace.allow(role_rules("baton-stateful-sets"), "stateful-sets")
    flux.install_definitions(namespace)
    with (flux.ArtifactServer() as artifacts,
          flux.controller(flux_program, namespace, tmp_path)):
        kustomization = flux.Kustomization(namespace, artifacts)
        kustomization.create(V1)
        Controllers(namespace).wait_until_available()
        yield kustomization


@pytest.fixture
def controllers(kustomization):
    return Controllers(kustomization.namespace)


def suggested_command(controllers, kind, **task_options):
    result = controllers.namespace.check(name=NAMES[kind], kind=kind, **task_options)
    (warning,) = (text for text in result["warnings"] if text.startswith("Flux"))
    name = f"{controllers.namespace.name}/apps"
    assert f"Flux (Kustomization {name}) manages {NAMES[kind]}" in warning
    return re.search(r"before the update: (kubectl .*)", warning)[1]


def test_reconciliation_resets_paused_updates(kustomization, controllers):
    controllers.pause()

    kustomization.reconcile()

    controllers.assert_reset_then_update_again()


@pytest.mark.parametrize("kind, write_number, matches_write", [
    (RC, 5, any_write), (RC, 1, is_reparenting), (STATEFUL_SET, 1, any_write)],
    ids=["sizes", "handover", "StatefulSet"])
def test_running_update_resumes_after_a_reconciliation(
        kustomization, controllers, kind, write_number, matches_write):
    result = controllers.roll(
        kind, image="myimage:v2",
        fault=action_after_write(write_number, kustomization.reconcile, matches_write))

    assert result["rollout"]["phase"] == "complete"
    assert controllers.pod_versions(kind) == "v2 v2 v2 v2" and "v2" in controllers.images()
    restores_the_template = any("The template is restored to myimage:v2" in warning
                                for warning in result["warnings"])
    assert restores_the_template == (matches_write is is_reparenting)


def test_running_update_of_a_deployment_fails_or_resumes_after_a_reconciliation(
        kustomization, controllers):
    """The task fails if a new pod remains when the task observes the reset.

    Otherwise, the task resumes the update.
    """
    def reconcile_after_the_first_new_pod():
        eventually(lambda: "v2" in controllers.pod_versions(DEPLOYMENT), "a new pod")
        kustomization.reconcile()

    try:
        result = controllers.roll(
            DEPLOYMENT, image="myimage:v2", min_ready_seconds=3,
            fault=action_after_write(1, reconcile_after_the_first_new_pod))
    except RolloutError as error:
        assert "changed the template since the update to myimage:v2" in error.what
        controllers.wait_for_pods(DEPLOYMENT, "v1 v1 v1 v1")
    else:
        assert result["rollout"]["phase"] == "complete"
        controllers.wait_for_pods(DEPLOYMENT, "v2 v2 v2 v2")


def test_reconciliation_undoes_a_complete_update(kustomization, controllers):
    """A ReplicationController keeps its new pods, as the warning says."""
    controllers.roll_all(image="myimage:v2")

    kustomization.reconcile()

    assert controllers.images() == ["v1"] * 3
    controllers.wait_for_pods(DEPLOYMENT, "v1 v1 v1 v1")
    controllers.wait_for_pods(STATEFUL_SET, "v1 v1 v1 v1")
    assert controllers.pod_versions(RC) == "v2 v2 v2 v2"


def test_excluded_controllers_are_updated(kustomization, controllers, kubectl):
    """The commands in the warnings exclude the controllers from Flux."""
    for kind in NAMES:
        kubectl(suggested_command(controllers, kind, image="myimage:v2"))
    for result in controllers.roll_all(image="myimage:v2", pause_at=2):
        assert not any(text.startswith("Flux") for text in result["warnings"])

    kustomization.reconcile()

    controllers.assert_paused()
    controllers.roll_all(image="myimage:v2")
    kustomization.reconcile()
    assert controllers.images() == ["v2"] * 3 and controllers.namespace.rc_names() == ["cart"]
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    kustomization.wait_until_applied(kustomization.publish([*V2, settings]))
    assert controllers.notes() == "aaa" and controllers.namespace.get("configmaps", "settings")
    initial_pod_uids = controllers.pod_uids()

    for kind in NAMES:
        kubectl(f"kubectl -n {controllers.namespace.name} annotate {kind.lower()} {NAMES[kind]} "
                f"{FLUX_RECONCILE}-")
    kustomization.reconcile()

    assert controllers.notes() == "bbb" and controllers.images() == ["v2"] * 3
    assert not any(result["changed"] for result in controllers.roll_all(image="myimage:v2"))
    assert controllers.pod_uids() == initial_pod_uids


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "not committed"])
def test_controllers_are_updated_with_suspend_gitops(kustomization, controllers, is_committed):
    """Flux reconciles during the updates, at the pauses, and after the updates.

    is_committed: whether the new manifests are published at the pauses. Otherwise, Flux resets the
    controllers at the end.
    """
    reconcile_after_first_write = functools.partial(action_after_write, 1, kustomization.reconcile)
    for kind in NAMES:
        check_result = controllers.namespace.check(name=NAMES[kind], kind=kind, image="myimage:v2",
                                                   suspend_gitops=True)
        assert any(f"suspend_gitops excludes {NAMES[kind]} from the Kustomization until the update "
                   "ends" in text for text in check_result["warnings"])
        controllers.roll(kind, image="myimage:v2", suspend_gitops=True, pause_at=2,
                         fault=reconcile_after_first_write())
    kustomization.reconcile()

    controllers.assert_paused()
    if is_committed:
        kustomization.wait_until_applied(kustomization.publish(V2))
        controllers.assert_paused()
        assert controllers.notes() == "aaa"
    for kind in NAMES:
        controllers.roll(kind, image="myimage:v2", suspend_gitops=True,
                         fault=reconcile_after_first_write() if is_committed else None)
    initial_pod_uids = controllers.pod_uids()
    assert controllers.images() == ["v2"] * 3 and controllers.namespace.rc_names() == ["cart"]
    kustomization.reconcile()

    if is_committed:
        assert controllers.notes() == "bbb" and controllers.images() == ["v2"] * 3
        assert not any(result["changed"] for result in controllers.roll_all(image="myimage:v2"))
        assert controllers.pod_uids() == initial_pod_uids
    else:
        assert controllers.images() == ["v1"] * 3
        controllers.wait_for_pods(DEPLOYMENT, "v1 v1 v1 v1")
        controllers.wait_for_pods(STATEFUL_SET, "v1 v1 v1 v1")


def test_rollback_ends_the_exclusion_by_suspend_gitops(kustomization, controllers):
    controllers.roll_all(image="myimage:v2", suspend_gitops=True, pause_at=2)
    controllers.roll_all(state="rolled_back")
    assert controllers.images() == ["v1"] * 3

    kustomization.wait_until_applied(kustomization.publish(V2))

    assert controllers.images() == ["v2"] * 3 and controllers.notes() == "bbb"


def test_task_removes_the_exclusion_that_kubectl_restores(kustomization, controllers, kubectl):
    """`kubectl rollout undo` copies the annotations of the old ReplicaSet to the Deployment."""
    for version in ("v2", "v3"):
        controllers.roll(DEPLOYMENT, image=f"myimage:{version}", suspend_gitops=True)
    name = NAMES[DEPLOYMENT]
    kubectl(f"kubectl -n {controllers.namespace.name} rollout undo deployment/{name}")
    controllers.wait_for_pods(DEPLOYMENT, "v2 v2 v2 v2")
    annotations = controllers.namespace.deployment(name)["metadata"]["annotations"]
    assert annotations[FLUX_RECONCILE] == "disabled"

    assert controllers.roll(DEPLOYMENT, image="myimage:v2")["changed"]

    annotations = controllers.namespace.deployment(name)["metadata"]["annotations"]
    assert FLUX_RECONCILE not in annotations


def test_suspended_kustomization_does_not_undo_a_migration(kustomization, controllers, kubectl):
    """No annotation keeps Flux from recreating a deleted ReplicationController."""
    namespace = controllers.namespace
    namespace.allow(role_rules("baton-migration"), "migration")
    task = {"module": "migrate_to_deployment", "state": "migrated", "name": NAMES[RC]}
    (warning,) = (text for text in namespace.check(**task)["warnings"] if text.startswith("Flux"))
    command = re.search(r"before the update: (kubectl .*)", warning)[1]
    assert "kustomizations.kustomize.toolkit.fluxcd.io apps" in command
    kubectl(command)

    namespace.roll(**task)
    kustomization.reconcile()

    assert namespace.rc_names() == []
    migrated_manifests = [manifest_of(DEPLOYMENT, "myimage:v1"),
                          manifest_of(STATEFUL_SET, "myimage:v1")]
    revision = kustomization.publish(migrated_manifests)
    kustomization.patch({"spec": {"suspend": False}})
    kustomization.wait_until_applied(revision)
    assert namespace.rc_names() == []
    assert namespace.deployment(NAMES[RC])["spec"]["replicas"] == 4


def test_kustomization_undoes_a_migration_unless_it_is_suspended(kustomization, controllers):
    """Show that the migration needs the suspension."""
    namespace = controllers.namespace
    namespace.allow(role_rules("baton-migration"), "migration")
    namespace.roll(module="migrate_to_deployment", state="migrated", name=NAMES[RC])

    kustomization.reconcile()

    eventually(lambda: namespace.rc_names() == ["cart"],
               "the ReplicationController of the manifest")

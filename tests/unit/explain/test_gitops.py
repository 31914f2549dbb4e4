# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warn about GitOps tools that would reset an updated controller to its manifest."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing as t

import pytest
from builders import UPDATE, rc
from forged import HOSTILE_TEXTS, KEYS, LABELS

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import is_name
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    SUSPENDED_GITOPS,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

Json = dict[str, t.Any]
REQUEST = dataclasses.replace(UPDATE, namespace="shop")
ARGO_ANNOTATION = {gitops.ARGO_TRACKING: "web:/ReplicationController:shop/foo"}
KUSTOMIZATION_LABELS = dict(zip(gitops.FLUX_KUSTOMIZATION, ("apps", "flux-system"), strict=True))
HELM_RELEASE_LABELS = dict(zip(gitops.FLUX_RELEASE, ("web", "prod"), strict=True))
HELM_LABEL = {gitops.MANAGED_BY_LABEL: "Helm"}
HELM_ANNOTATIONS = dict(zip(gitops.HELM_RELEASE, ("web", "shop"), strict=True))
EXCLUDE = f"{gitops.FLUX_RECONCILE}=disabled"
SUSPEND = """--type=merge -p '{"spec": {"suspend": true}}'"""
#: Words in suggested commands that are not names of objects.
FIXED_WORDS = {"APPLICATION", "NAMESPACE", "NAME", "RELEASE", "-n", "--sync-policy", "--type=merge",
               "-p",
               '{"spec": {"suspend": true}}', EXCLUDE}


def warnings_of(request: Request = REQUEST, labels: Json | None = None,
                annotations: Json | None = None,
                *managers: str) -> list[str]:
    item = rc(labels={"app": "foo", **(labels or {})}, annotations=annotations,
              managedFields=[{"manager": manager, "operation": "Update"} for manager in managers])
    return gitops.warnings(choose(request), request, Controller.from_api(item))


@pytest.mark.parametrize("labels, annotations, managers, tool, command", [
    ({}, ARGO_ANNOTATION, (), "Argo CD (application web)", "argocd app set web --sync-policy none"),
    ({}, {gitops.ARGO_TRACKING: "team_web:/ReplicationController:shop/foo"}, (),
     "Argo CD (application team/web)",
     "argocd app set team/web --sync-policy none"),
    ({gitops.ARGO_LABEL: "web"}, {}, (), "Argo CD (application web)",
     "argocd app set web --sync-policy none"),
    ({gitops.INSTANCE_LABEL: "web"}, {}, ("argocd-controller",), "Argo CD (application web)",
     "argocd app set web --sync-policy none"),
    ({}, {}, ("argocd-application-controller",), "Argo CD",
     "argocd app set APPLICATION --sync-policy none"),
    (KUSTOMIZATION_LABELS, {}, ("kustomize-controller",), "Flux (Kustomization flux-system/apps)",
     f"kubectl -n shop annotate replicationcontroller foo {EXCLUDE}"),
    ({}, {}, ("kustomize-controller",), "Flux",
     f"kubectl -n shop annotate replicationcontroller foo {EXCLUDE}"),
    ({**HELM_LABEL, **HELM_RELEASE_LABELS}, HELM_ANNOTATIONS, ("helm-controller",),
     "Flux (HelmRelease prod/web)",
     f"kubectl -n prod patch helmreleases.helm.toolkit.fluxcd.io web {SUSPEND}"),
    (HELM_LABEL, HELM_ANNOTATIONS, ("helm",), "Helm (release web)", "helm -n shop get values web"),
], ids=["tracking annotation", "tracking annotation with a namespace", "Argo CD's label",
        "instance label, managed by Argo CD", "managed by Argo CD", "Kustomization",
        "managed by Flux", "HelmRelease", "Helm"])
def test_warning_names_the_tool_and_the_command_to_suspend_it(
        labels, annotations, managers, tool, command):
    (warning,) = warnings_of(REQUEST, labels, annotations, *managers)

    assert (warning.startswith(f"{tool} manages foo: at ") and "to its manifest" in warning
            and command in warning)


@pytest.mark.parametrize("labels, annotations, managers", [
    ({}, {}, ()),
    ({}, {},
     ("baton.kubernetes", "kubectl-client-side-apply", "kube-controller-manager",
      "OpenAPI-Generator")),
    ({gitops.INSTANCE_LABEL: "web"}, {}, ("helm",)),
    ({**HELM_LABEL, gitops.INSTANCE_LABEL: "web"}, {}, ()),
    ({}, {gitops.ARGO_TRACKING: "web:/ReplicationController:shop/bar"}, ()),
    ({}, HELM_ANNOTATIONS, ()),
], ids=["no tool", "this collection and kubectl", "instance label, managed by helm",
        "rendered with Helm", "copied annotation", "annotations alone"])
def test_no_warning_without_proof_of_a_tool(labels, annotations, managers):
    assert warnings_of(REQUEST, labels, annotations, *managers) == []


MIGRATION = {"module": Module.MIGRATION, "state": State.MIGRATED}


@pytest.mark.parametrize("changes, labels, annotations, is_warned", [
    ({}, {gitops.ARGO_LABEL: "web"}, {}, True), ({}, {}, ARGO_ANNOTATION, False),
    ({"next_name": "bar"}, {gitops.ARGO_LABEL: "web"}, {}, True),
    ({"kind": Kind.DEPLOYMENT}, {gitops.ARGO_LABEL: "web"}, {}, False),
    (MIGRATION, {gitops.ARGO_LABEL: "web"}, {}, False),
], ids=["label", "annotation", "next_name", "Deployment", "migration"])
def test_warning_about_pruning_of_the_successor(
        changes, labels, annotations, is_warned):
    (warning,) = warnings_of(dataclasses.replace(REQUEST, **changes), labels, annotations)

    assert ("With automatic pruning, Argo CD deletes the successor" in warning) == is_warned


@pytest.mark.parametrize("changes", [{"next_name": "bar"}, MIGRATION],
                         ids=["next_name", "migration"])
def test_kustomization_must_be_suspended_if_the_update_deletes_the_controller(changes):
    """Flux would create the controller again, without the annotation that excludes it."""
    (warning,) = warnings_of(dataclasses.replace(REQUEST, **changes), KUSTOMIZATION_LABELS,
                             {gitops.FLUX_RECONCILE: "disabled"})

    assert ("suspend it before the update: kubectl -n flux-system patch "
            f"kustomizations.kustomize.toolkit.fluxcd.io apps {SUSPEND}") in warning


@pytest.mark.parametrize("value, is_warned", [("disabled", False), ("Disabled", False),
                                              ("enabled", True), ("", True)])
def test_no_warning_about_a_controller_that_is_excluded_from_flux(value, is_warned):
    assert bool(warnings_of(REQUEST, KUSTOMIZATION_LABELS,
                            {gitops.FLUX_RECONCILE: value})) == is_warned


SUSPENDING_REQUEST = dataclasses.replace(REQUEST, suspends_gitops=True)


@pytest.mark.parametrize("request_, labels, annotations, is_suspended", [
    (REQUEST, KUSTOMIZATION_LABELS, {}, False),
    (SUSPENDING_REQUEST, KUSTOMIZATION_LABELS, {}, True),
    (SUSPENDING_REQUEST, KUSTOMIZATION_LABELS, {gitops.FLUX_RECONCILE: "enabled"}, False),
    (REQUEST, KUSTOMIZATION_LABELS, {gitops.FLUX_RECONCILE: "disabled",
                                     SUSPENDED_GITOPS: gitops.FLUX_RECONCILE}, True),
], ids=["no option", "option", "annotation set by the user", "suspended by an earlier task"])
def test_warning_says_that_the_manifest_must_change_before_a_suspension_ends(
        request_, labels, annotations, is_suspended):
    (warning,) = warnings_of(request_, labels, annotations)

    assert ("suspend_gitops excludes foo from the Kustomization until the update ends; at the next "
            "reconciliation after that, it resets foo" in warning) == is_suspended
    assert warning.endswith("Make the same change in git before the update ends") == is_suspended
    assert (f"or set suspend_gitops=true, or exclude foo from the Kustomization before the update: "
            f"kubectl -n shop annotate replicationcontroller foo {EXCLUDE}"
            in warning) != is_suspended


def test_option_suspends_only_the_drift_detection_of_a_helm_release():
    (without_option,), (with_option,) = (warnings_of(request, HELM_RELEASE_LABELS)
                                         for request in (REQUEST, SUSPENDING_REQUEST))

    assert "(with drift detection, within minutes)" in without_option
    assert "at the release's next upgrade, or by drift detection after the update," in with_option
    assert with_option.endswith(SUSPEND)


def test_option_does_not_suspend_argo_cd():
    (warning,) = warnings_of(SUSPENDING_REQUEST, annotations=ARGO_ANNOTATION)

    assert ("stop automatic syncs (suspend_gitops suspends only Flux) before the update: "
            "argocd app set web" in warning)


def test_two_tools_give_two_warnings():
    assert [warning.split()[0]
            for warning in warnings_of(REQUEST, HELM_LABEL,
                                       {**HELM_ANNOTATIONS, **ARGO_ANNOTATION})] == [
        "Argo", "Helm"]


@pytest.mark.parametrize("changes, effect", [
    ({}, "pods created after that have the template of the manifest, and existing pods stay"),
    ({"kind": Kind.REPLICA_SET, "state": State.RESTARTED}, "template and size"),
    ({"kind": Kind.DEPLOYMENT}, "resets foo to its manifest, which replaces all pods"),
    ({"next_name": "foo-2"}, "creates foo again, in addition to foo-2, with pods of its own"),
    (MIGRATION,
     "creates the ReplicationController foo again, in addition to the Deployment"),
])
def test_warning_names_the_effect_on_the_update(changes, effect):
    (warning,) = warnings_of(dataclasses.replace(REQUEST, **changes), annotations=ARGO_ANNOTATION)

    assert effect in warning


def test_no_warning_for_the_restart_of_a_deployment():
    assert warnings_of(dataclasses.replace(REQUEST, kind=Kind.DEPLOYMENT, state=State.RESTARTED),
                       annotations=ARGO_ANNOTATION) == []


def test_commands_have_the_connection_of_the_task():
    request = dataclasses.replace(REQUEST,
                                  connection={"context": "lyon", "kubeconfig": "/my config",
                                              "host": None})

    (flux,), (helm,) = warnings_of(request, KUSTOMIZATION_LABELS), warnings_of(request, HELM_LABEL,
                                                                               HELM_ANNOTATIONS)

    assert ("kubectl --context=lyon '--kubeconfig=/my config' --server=HOST-OF-THE-TASK -n "
            "shop annotate") in flux
    assert ("helm --kube-context=lyon '--kubeconfig=/my config' --kube-apiserver=HOST-OF-THE-TASK "
            "-n shop get values web") in helm


@pytest.mark.parametrize("key",
                         [gitops.ARGO_LABEL, gitops.INSTANCE_LABEL, gitops.ARGO_TRACKING,
                          *gitops.FLUX_KUSTOMIZATION, *gitops.FLUX_RELEASE, *gitops.HELM_RELEASE])
def test_invalid_names_are_in_no_warning(key):
    labels_of_all_tools = {**KUSTOMIZATION_LABELS, **HELM_LABEL, gitops.INSTANCE_LABEL: "web"}
    for value in dict.fromkeys((*KEYS[key], *HOSTILE_TEXTS)):
        labels = {**(HELM_LABEL if key in gitops.HELM_RELEASE else labels_of_all_tools),
                  **({key: value} if key in LABELS else {})}
        for warning in warnings_of(REQUEST, labels,
                                   {**HELM_ANNOTATIONS,
                                    **({key: value} if key not in LABELS else {})},
                                   "argocd-controller"):
            words = shlex.split(re.search(r"(argocd|kubectl|helm) (app|-n) .*", warning)[0])
            assert warning.isprintable() and len(warning) < 1000
            assert [word for word in words
                    if word not in FIXED_WORDS and not all(map(is_name, word.split("/")))] == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight warnings about GitOps tools that would revert the update from a manifest."""

from __future__ import annotations

import dataclasses
import re
import shlex
import typing as t

import pytest
from builders import UPDATE, rc
from forged import HOSTILE, KEYS, LABELS

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import is_name
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

Json = dict[str, t.Any]
SHOP = dataclasses.replace(UPDATE, namespace="shop")
TRACKED = {gitops.ARGO_TRACKING: "web:/ReplicationController:shop/foo"}
KUSTOMIZED = dict(zip(gitops.FLUX_KUSTOMIZATION, ("apps", "flux-system"), strict=True))
RELEASED = dict(zip(gitops.FLUX_RELEASE, ("web", "prod"), strict=True))
#: Helm's metadata on an object: the label here, the annotations in HELM.
BY_HELM = {gitops.MANAGED_BY: "Helm"}
SUSPENDED = """--type=merge -p '{"spec": {"suspend": true}}'"""
#: Words of the commands other than names.
FIXED = {"APPLICATION", "NAMESPACE", "NAME", "RELEASE", "-n", "--sync-policy", "--type=merge", "-p",
         '{"spec": {"suspend": true}}'}
HELM = dict(zip(gitops.HELM_RELEASE, ("web", "shop"), strict=True))


def told(request: Request = SHOP, labels: Json | None = None, annotations: Json | None = None,
         *managers: str) -> list[str]:
    item = rc(labels={"app": "foo", **(labels or {})}, annotations=annotations,
              managedFields=[{"manager": manager, "operation": "Update"} for manager in managers])
    return gitops.warnings(choose(request), request, Controller.from_api(item))


@pytest.mark.parametrize("labels, annotations, managers, who, command", [
    ({}, TRACKED, (), "Argo CD (application web)", "argocd app set web --sync-policy none"),
    ({}, {gitops.ARGO_TRACKING: "team_web:/ReplicationController:shop/foo"}, (),
     "Argo CD (application team/web)",
     "argocd app set team/web --sync-policy none"),
    ({gitops.ARGO_LABEL: "web"}, {}, (), "Argo CD (application web)",
     "argocd app set web --sync-policy none"),
    ({gitops.INSTANCE: "web"}, {}, ("argocd-controller",), "Argo CD (application web)",
     "argocd app set web --sync-policy none"),
    ({}, {}, ("argocd-application-controller",), "Argo CD",
     "argocd app set APPLICATION --sync-policy none"),
    (KUSTOMIZED, {}, ("kustomize-controller",), "Flux (Kustomization flux-system/apps)",
     f"kubectl -n flux-system patch kustomizations.kustomize.toolkit.fluxcd.io apps {SUSPENDED}"),
    ({}, {}, ("kustomize-controller",), "Flux",
     "kubectl -n NAMESPACE patch kustomizations.kustomize.toolkit.fluxcd.io NAME "),
    ({**BY_HELM, **RELEASED}, HELM, ("helm-controller",), "Flux (HelmRelease prod/web)",
     f"kubectl -n prod patch helmreleases.helm.toolkit.fluxcd.io web {SUSPENDED}"),
    (BY_HELM, HELM, ("helm",), "Helm (release web)", "helm -n shop get values web"),
], ids=["tracked", "tracked elsewhere", "Argo CD's label", "the usual label, managed",
        "managed by Argo CD", "Kustomization",
        "managed by Flux", "HelmRelease", "Helm"])
def test_who_has_a_manifest_is_named_with_what_keeps_it_from_applying_that(
        labels, annotations, managers, who, command):
    (sentence,) = told(SHOP, labels, annotations, *managers)

    assert (sentence.startswith(f"{who} manages foo: at ") and "to its manifest" in sentence
            and command in sentence)


@pytest.mark.parametrize("labels, annotations, managers", [
    ({}, {}, ()),
    ({}, {},
     ("baton.kubernetes", "kubectl-client-side-apply", "kube-controller-manager",
      "OpenAPI-Generator")),
    ({gitops.INSTANCE: "web"}, {}, ("helm",)), ({**BY_HELM, gitops.INSTANCE: "web"}, {}, ()),
    ({}, {gitops.ARGO_TRACKING: "web:/ReplicationController:shop/bar"}, ()), ({}, HELM, ()),
], ids=["nobody", "ourselves and others", "a label that most charts have", "rendered with Helm",
        "a copied annotation",
        "annotations alone"])
def test_nobody_is_named_without_proof(labels, annotations, managers):
    assert told(SHOP, labels, annotations, *managers) == []


MIGRATED = {"module": Module.MIGRATION, "state": State.MIGRATED}


@pytest.mark.parametrize("changes, labels, annotations, is_told", [
    ({}, {gitops.ARGO_LABEL: "web"}, {}, True), ({}, {}, TRACKED, False),
    ({"next_name": "bar"}, {gitops.ARGO_LABEL: "web"}, {}, True),
    ({"kind": Kind.DEPLOYMENT}, {gitops.ARGO_LABEL: "web"}, {}, False),
    (MIGRATED, {gitops.ARGO_LABEL: "web"}, {}, False),
], ids=["a label", "an annotation", "a successor that stays", "a Deployment", "a migration"])
def test_a_successor_that_argo_cd_would_take_for_its_own_is_told(
        changes, labels, annotations, is_told):
    (sentence,) = told(dataclasses.replace(SHOP, **changes), labels, annotations)

    assert ("With automatic pruning, it deletes the successor" in sentence) == is_told


def test_two_tools_are_two_sentences():
    assert [warning.split()[0] for warning in told(SHOP, BY_HELM, {**HELM, **TRACKED})] == [
        "Argo", "Helm"]


@pytest.mark.parametrize("changes, effect", [
    ({}, "pods created after that have the template of the manifest, and existing pods stay"),
    ({"kind": Kind.REPLICA_SET, "state": State.RESTARTED}, "template and size"),
    ({"kind": Kind.DEPLOYMENT}, "resets foo to its manifest, which replaces all pods"),
    ({"next_name": "foo-2"}, "creates foo again, in addition to foo-2, with as many pods"),
    (MIGRATED,
     "creates the ReplicationController foo again, in addition to the Deployment"),
])
def test_what_it_will_do_depends_on_what_is_changed(changes, effect):
    (sentence,) = told(dataclasses.replace(SHOP, **changes), annotations=TRACKED)

    assert effect in sentence


def test_the_restart_of_a_deployment_is_left_alone():
    assert told(dataclasses.replace(SHOP, kind=Kind.DEPLOYMENT, state=State.RESTARTED),
                annotations=TRACKED) == []


def test_commands_reach_the_cluster_of_the_task():
    request = dataclasses.replace(SHOP,
                                  connection={"context": "lyon", "kubeconfig": "/my config",
                                              "host": None})

    (flux,), (helm,) = told(request, KUSTOMIZED), told(request, BY_HELM, HELM)

    assert ("kubectl --context=lyon '--kubeconfig=/my config' --server=HOST-OF-THE-TASK -n "
            "flux-system patch") in flux
    assert ("helm --kube-context=lyon '--kubeconfig=/my config' --kube-apiserver=HOST-OF-THE-TASK "
            "-n shop get values web") in helm


@pytest.mark.parametrize("key",
                         [gitops.ARGO_LABEL, gitops.INSTANCE, gitops.ARGO_TRACKING,
                          *gitops.FLUX_KUSTOMIZATION, *gitops.FLUX_RELEASE, *gitops.HELM_RELEASE])
def test_what_is_no_name_stands_in_no_sentence_and_no_command(key):
    """A user with annotate permission chooses the value."""
    everything = {**KUSTOMIZED, **BY_HELM, gitops.INSTANCE: "web"}
    for value in dict.fromkeys((*KEYS[key], *HOSTILE)):
        labels = {**(BY_HELM if key in gitops.HELM_RELEASE else everything),
                  **({key: value} if key in LABELS else {})}
        for sentence in told(SHOP, labels, {**HELM, **({key: value} if key not in LABELS else {})},
                             "argocd-controller"):
            words = shlex.split(re.search(r"(argocd|kubectl|helm) (app|-n) .*", sentence)[0])
            assert sentence.isprintable() and len(sentence) < 1000
            assert [word for word in words
                    if word not in FIXED and not all(map(is_name, word.split("/")))] == []

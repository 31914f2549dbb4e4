# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warnings before the first write that Argo CD, Flux or Helm will restore a manifest. Pure.

The controller's labels, annotations and managedFields show the manager of the manifest. Every user
who may change the controller may forge them: they decide nothing, and values that are not valid
names appear in no message and no command.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Flow
from ..model import shell
from ..model.identity import is_name
from ..model.observed import Controller
from ..model.request import Request

#: Argo CD's annotation "application:group/kind:namespace/name", and label with the application.
ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
ARGO_LABEL = "argocd.argoproj.io/instance"
#: Argo CD's default label before 3.0. The label counts only with Argo CD among the managers,
#: since most charts set the label too.
INSTANCE = "app.kubernetes.io/instance"
ARGO_MANAGERS = {"argocd-controller", "argocd-application-controller"}
#: Flux's labels with the name and the namespace of the Kustomization or HelmRelease.
FLUX_KUSTOMIZATION = ("kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace")
FLUX_RELEASE = ("helm.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/namespace")
#: Helm's label and annotations; Helm manages only objects with both. Argo CD and other tools set
#: the label, but no release.
MANAGED_BY = "app.kubernetes.io/managed-by"
HELM_RELEASE = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace")

#: The field exists in both Flux kinds.
_SUSPENDED = """--type=merge -p '{"spec": {"suspend": true}}'"""


class _Owner(t.NamedTuple):
    """The manager of a manifest of the controller."""

    who: str
    #: The time when the manager applies the manifest again.
    when: str
    #: The place for the same change, or the command that suspends the manager.
    advice: str


def warnings(flow: Flow, request: Request, primary: Controller) -> list[str]:
    """Return a warning per manager that will undo the change of the primary."""
    effect = _effect(flow, request)
    if not effect:
        return []
    owners = [_argo(flow, request, primary),
              *(owner(request, primary) for owner in (_flux_kustomization, _flux_release, _helm))]
    return [f"{owner.who} manages {primary.name}: {owner.when} it {effect}. {owner.advice}"
            for owner in owners if owner]


def _effect(flow: Flow, request: Request) -> str:
    """Return the effect of the manager on the update, or "" if the change stays."""
    if request.state.migrates:
        return (f"creates the {request.kind} {request.name} again, in addition to the Deployment, "
                "with as many pods")
    if request.next_name:
        return (f"creates {request.name} again, in addition to {request.next_name}, with as many "
                "pods")
    if not flow.creates_successor:
        # The annotation of a restart is in no manifest, and is left as it is.
        return ("" if request.state.restarts
                else f"resets {request.name} to its manifest, which replaces all pods")
    return (f"resets {request.name} to its manifest, template and size: pods created after that "
            "have the template of the manifest, and existing pods stay")


def _argo(flow: Flow, request: Request, primary: Controller) -> _Owner | None:
    tracked, _separator, what = primary.annotations.get(ARGO_TRACKING, "").partition(":")
    # Argo CD, too, ignores the annotation where it is a copy from another object.
    is_tracked = what.rpartition("/")[2] == primary.name
    is_managed = bool(ARGO_MANAGERS & primary.managers)
    if not (is_tracked or is_managed or ARGO_LABEL in primary.labels):
        return None
    # An application outside of Argo CD's own namespace is tracked as namespace_name.
    names = (tracked.split("_") if is_tracked
             else [primary.labels.get(ARGO_LABEL) or primary.labels.get(INSTANCE, "")])
    application = "/".join(names) if len(names) <= 2 and all(map(is_name, names)) else ""
    advice = (f"Make the same change in git, or stop automatic syncs before the update: "
              f"argocd app set {application or 'APPLICATION'} --sync-policy none")
    if flow.creates_successor and not is_tracked:
        # The successor has all labels of the primary, so the label makes Argo CD manage the
        # successor, too, although the successor is in no manifest.
        advice = ("With automatic pruning, it deletes the successor during the update. "
                  f"{advice}")
    return _Owner(f"Argo CD{_named('application', application)}",
                  "at its next sync (with self-heal, within seconds)", advice)


def _flux_kustomization(request: Request, primary: Controller) -> _Owner | None:
    return _flux(request, primary, "Kustomization", "kustomizations.kustomize.toolkit.fluxcd.io",
                 FLUX_KUSTOMIZATION,
                 "kustomize-controller",
                 "at its next reconciliation, within minutes,")


def _flux_release(request: Request, primary: Controller) -> _Owner | None:
    return _flux(request, primary, "HelmRelease", "helmreleases.helm.toolkit.fluxcd.io",
                 FLUX_RELEASE,
                 "helm-controller",
                 "at the release's next upgrade (with drift detection, within minutes)")


def _flux(request: Request, primary: Controller, kind: str, resource: str, keys: tuple[str, str],
          manager: str, when: str) -> _Owner | None:
    if keys[0] not in primary.labels and manager not in primary.managers:
        return None
    name, namespace = _both(primary.labels, keys)
    command = (f"{shell.kubectl(request.connection, namespace or 'NAMESPACE')} patch {resource} "
               f"{name or 'NAME'} {_SUSPENDED}")
    return _Owner(f"Flux{_named(kind, f'{namespace}/{name}' if name else '')}", when,
                  f"Make the same change in git, or suspend it before the update: {command}")


def _helm(request: Request, primary: Controller) -> _Owner | None:
    is_release = primary.labels.get(MANAGED_BY) == "Helm" and HELM_RELEASE[0] in primary.annotations
    if not is_release or FLUX_RELEASE[0] in primary.labels:  # Flux runs Helm
        return None
    name, namespace = _both(primary.annotations, HELM_RELEASE)
    return _Owner(f"Helm{_named('release', name)}", "at the release's next upgrade or rollback",
                  f"Make the same change in the release's values, which are: "
                  f"{shell.helm(request.connection, namespace or 'NAMESPACE')} get values "
                  f"{name or 'RELEASE'}")


def _both(metadata: t.Mapping[str, str], keys: tuple[str, str]) -> tuple[str, str]:
    """Return the values of both keys, or empty strings if a value is not a valid name."""
    name, namespace = (metadata.get(key, "") for key in keys)
    return (name, namespace) if is_name(name) and is_name(namespace) else ("", "")


def _named(kind: str, name: str) -> str:
    return f" ({kind} {name})" if name else ""

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warn that Argo CD, Flux or Helm will restore the manifest of a controller. Pure.

Labels, annotations and managedFields of the controller identify the tool that manages it. Any user
who may change the controller can forge them. They therefore only cause warnings, which contain no
value that is not a valid name.
"""

from __future__ import annotations

import typing as t

from ..flows.flow import Flow
from ..model import shell
from ..model.identity import is_name
from ..model.observed import Controller
from ..model.request import Request

#: Annotation of Argo CD with "application:group/kind:namespace/name", and label with the
#: application.
ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
ARGO_LABEL = "argocd.argoproj.io/instance"
#: Default label of Argo CD before 3.0. Most charts set this label, too, so it counts only if Argo
#: CD is also a field manager.
INSTANCE = "app.kubernetes.io/instance"
ARGO_MANAGERS = {"argocd-controller", "argocd-application-controller"}
#: Labels of Flux with the name and the namespace of the Kustomization or HelmRelease.
FLUX_KUSTOMIZATION = ("kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace")
FLUX_RELEASE = ("helm.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/namespace")
#: Label and annotations of Helm. Other tools, such as Argo CD, set only the label.
MANAGED_BY = "app.kubernetes.io/managed-by"
HELM_RELEASE = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace")

#: Arguments of kubectl patch that suspend a Kustomization or a HelmRelease.
_SUSPEND_PATCH = """--type=merge -p '{"spec": {"suspend": true}}'"""


class _Manager(t.NamedTuple):
    """A tool that applies a manifest of the controller."""

    name: str
    #: When the tool applies the manifest again.
    when: str
    #: Where to make the same change, or how to suspend the tool.
    advice: str


def warnings(flow: Flow, request: Request, primary: Controller) -> list[str]:
    """Return a warning for each tool that will undo the change of the primary."""
    effect = _effect(flow, request)
    if not effect:
        return []
    managers = [_argo(flow, request, primary),
                *(find(request, primary) for find in (_flux_kustomization, _flux_release, _helm))]
    return [f"{manager.name} manages {primary.name}: {manager.when} it {effect}. {manager.advice}"
            for manager in managers if manager]


def _effect(flow: Flow, request: Request) -> str:
    """Return the effect of applying the manifest again, or "" if that preserves the change."""
    if request.state.migrates:
        return (f"creates the {request.kind} {request.name} again, in addition to the Deployment, "
                "with as many pods")
    if request.next_name:
        return (f"creates {request.name} again, in addition to {request.next_name}, with as many "
                "pods")
    if not flow.creates_successor:
        # A restart only adds an annotation, which is in no manifest and stays in place.
        return ("" if request.state.restarts
                else f"resets {request.name} to its manifest, which replaces all pods")
    return (f"resets {request.name} to its manifest, template and size: pods created after that "
            "have the template of the manifest, and existing pods stay")


def _argo(flow: Flow, request: Request, primary: Controller) -> _Manager | None:
    tracked, _separator, target = primary.annotations.get(ARGO_TRACKING, "").partition(":")
    # Like Argo CD, ignore an annotation that was copied from another object.
    is_tracked = target.rpartition("/")[2] == primary.name
    is_managed = bool(ARGO_MANAGERS & primary.managers)
    if not (is_tracked or is_managed or ARGO_LABEL in primary.labels):
        return None
    # The tracking id of an application outside the namespace of Argo CD has the form
    # namespace_name.
    names = (tracked.split("_") if is_tracked
             else [primary.labels.get(ARGO_LABEL) or primary.labels.get(INSTANCE, "")])
    application = "/".join(names) if len(names) <= 2 and all(map(is_name, names)) else ""
    advice = (f"Make the same change in git, or stop automatic syncs before the update: "
              f"argocd app set {application or 'APPLICATION'} --sync-policy none")
    if flow.creates_successor and not is_tracked:
        # The successor inherits the label, so Argo CD manages the successor, too. As the successor
        # is in no manifest, Argo CD prunes it.
        advice = ("With automatic pruning, Argo CD deletes the successor during the update. "
                  f"{advice}")
    return _Manager(f"Argo CD{_in_parentheses('application', application)}",
                    "at its next sync (with self-heal, within seconds)", advice)


def _flux_kustomization(request: Request, primary: Controller) -> _Manager | None:
    return _flux(request, primary, "Kustomization", "kustomizations.kustomize.toolkit.fluxcd.io",
                 FLUX_KUSTOMIZATION,
                 "kustomize-controller",
                 "at its next reconciliation, within minutes,")


def _flux_release(request: Request, primary: Controller) -> _Manager | None:
    return _flux(request, primary, "HelmRelease", "helmreleases.helm.toolkit.fluxcd.io",
                 FLUX_RELEASE,
                 "helm-controller",
                 "at the release's next upgrade (with drift detection, within minutes)")


def _flux(request: Request, primary: Controller, kind: str, resource: str, keys: tuple[str, str],
          manager: str, when: str) -> _Manager | None:
    if keys[0] not in primary.labels and manager not in primary.managers:
        return None
    name, namespace = _valid_names(primary.labels, keys)
    command = (f"{shell.kubectl(request.connection, namespace or 'NAMESPACE')} patch {resource} "
               f"{name or 'NAME'} {_SUSPEND_PATCH}")
    return _Manager(f"Flux{_in_parentheses(kind, f'{namespace}/{name}' if name else '')}", when,
                    f"Make the same change in git, or suspend it before the update: {command}")


def _helm(request: Request, primary: Controller) -> _Manager | None:
    has_release = (primary.labels.get(MANAGED_BY) == "Helm"
                   and HELM_RELEASE[0] in primary.annotations)
    if not has_release or FLUX_RELEASE[0] in primary.labels:  # then _flux_release() warns
        return None
    name, namespace = _valid_names(primary.annotations, HELM_RELEASE)
    return _Manager(f"Helm{_in_parentheses('release', name)}",
                    "at the release's next upgrade or rollback",
                    f"Make the same change in the values of the release. To show them: "
                    f"{shell.helm(request.connection, namespace or 'NAMESPACE')} get values "
                    f"{name or 'RELEASE'}")


def _valid_names(metadata: t.Mapping[str, str], keys: tuple[str, str]) -> tuple[str, str]:
    """Return the values of both keys; empty strings if either value is not a valid name."""
    name, namespace = (metadata.get(key, "") for key in keys)
    return (name, namespace) if is_name(name) and is_name(namespace) else ("", "")


def _in_parentheses(kind: str, name: str) -> str:
    return f" ({kind} {name})" if name else ""

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Argo CD, Flux and Helm have a manifest of the controller, and bring it back: told before the first write. Pure.

Its labels, annotations and managedFields say so. Whoever may change it may have written these: they decide nothing, and what is
not a name stands in no sentence and no command.
"""

from __future__ import annotations

import typing as t

from ..model import shell
from ..model.identity import is_name
from ..model.observed import Controller
from ..model.request import Request

#: Of Argo CD: "application:group/kind:namespace/name", or a label that has the application.
ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
ARGO_LABEL = "argocd.argoproj.io/instance"
#: Argo CD's label by default until 3.0. Most charts set it as well, so that it takes Argo CD among the managers to mean that.
INSTANCE = "app.kubernetes.io/instance"
ARGO_MANAGERS = {"argocd-controller", "argocd-application-controller"}
#: Of Flux, on what a Kustomization or a HelmRelease applies: its name and its namespace.
FLUX_KUSTOMIZATION = ("kustomize.toolkit.fluxcd.io/name", "kustomize.toolkit.fluxcd.io/namespace")
FLUX_RELEASE = ("helm.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/namespace")
#: Of Helm, without which it takes nothing for its own. Argo CD and others have the first, and no release.
MANAGED_BY = "app.kubernetes.io/managed-by"
HELM_RELEASE = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace")

#: Both kinds of Flux have that field.
_SUSPENDED = """--type=merge -p '{"spec": {"suspend": true}}'"""


class _Owner(t.NamedTuple):
    """Who has a manifest of the controller."""

    who: str
    #: When that is applied again.
    when: str
    #: Where to make the same change, or how to keep it from being undone for a time.
    advice: str


def warnings(request: Request, primary: Controller) -> list[str]:
    """Who will undo what the request changes of the primary, one sentence each."""
    effect = _effect(request)
    found = [owner(request, primary) for owner in (_argo, _flux_kustomization, _flux_release, _helm)] if effect else []
    return [f"{owner.who} manages {primary.name}: {owner.when} it {effect}. {owner.advice}" for owner in found if owner]


def _effect(request: Request) -> str:
    """What it does to the controller then; "" where it leaves the change alone."""
    if request.state.migrates:
        return f"creates the {request.kind} {request.name} again, beside the Deployment, and with it as many pods again"
    if request.next_name:
        return f"creates {request.name} again, beside {request.next_name}, and with it as many pods again"
    if request.kind.is_stepped_by_server:
        # The annotation of a restart is in no manifest, and is left as it is.
        return "" if request.state.restarts else f"sets {request.name} back to its manifest, which replaces all pods"
    return (f"sets {request.name} back to its manifest, template and size: "
            f"pods that are created from then on are the manifest's, all others stay")


def _argo(request: Request, primary: Controller) -> _Owner | None:
    tracked, _separator, what = primary.annotations.get(ARGO_TRACKING, "").partition(":")
    is_tracked = what.rpartition("/")[2] == primary.name  # a copy of the annotation on another object means nothing to it either
    is_managed = bool(ARGO_MANAGERS & primary.managers)
    if not (is_tracked or is_managed or ARGO_LABEL in primary.labels):
        return None
    # An application outside of Argo CD's own namespace is tracked as namespace_name.
    found = tracked.split("_") if is_tracked else [primary.labels.get(ARGO_LABEL) or primary.labels.get(INSTANCE, "")]
    application = "/".join(found) if len(found) <= 2 and all(map(is_name, found)) else ""
    advice = (f"Make the same change in git, or stop automatic syncs before the update: "
              f"argocd app set {application or 'APPLICATION'} --sync-policy none")
    if not (is_tracked or request.kind.is_stepped_by_server or request.state.migrates):
        # By the label it knows a successor too, which has all of the primary's and is in no manifest.
        advice = f"With automatic pruning it deletes the successor in the middle of the update. {advice}"
    return _Owner(f"Argo CD{_named('application', application)}", "at its next sync (with self-heal, within seconds)", advice)


def _flux_kustomization(request: Request, primary: Controller) -> _Owner | None:
    return _flux(request, primary, "Kustomization", "kustomizations.kustomize.toolkit.fluxcd.io", FLUX_KUSTOMIZATION,
                 "kustomize-controller", "at its next reconciliation, some minutes from now at most,")


def _flux_release(request: Request, primary: Controller) -> _Owner | None:
    return _flux(request, primary, "HelmRelease", "helmreleases.helm.toolkit.fluxcd.io", FLUX_RELEASE,
                 "helm-controller", "at the release's next upgrade (with drift detection, some minutes from now at most)")


def _flux(request: Request, primary: Controller, kind: str, resource: str, keys: tuple[str, str], manager: str,
          when: str) -> _Owner | None:
    if keys[0] not in primary.labels and manager not in primary.managers:
        return None
    name, namespace = _both(primary.labels, keys)
    command = f"{shell.kubectl(request.connection, namespace or 'NAMESPACE')} patch {resource} {name or 'NAME'} {_SUSPENDED}"
    return _Owner(f"Flux{_named(kind, f'{namespace}/{name}' if name else '')}", when,
                  f"Make the same change in git, or suspend it before the update: {command}")


def _helm(request: Request, primary: Controller) -> _Owner | None:
    is_release = primary.labels.get(MANAGED_BY) == "Helm" and HELM_RELEASE[0] in primary.annotations
    if not is_release or FLUX_RELEASE[0] in primary.labels:  # that one's Helm
        return None
    name, namespace = _both(primary.annotations, HELM_RELEASE)
    return _Owner(f"Helm{_named('release', name)}", "at the release's next upgrade or rollback",
                  f"Make the same change in the release's values, which are: "
                  f"{shell.helm(request.connection, namespace or 'NAMESPACE')} get values {name or 'RELEASE'}")


def _both(there: t.Mapping[str, str], keys: tuple[str, str]) -> tuple[str, str]:
    """The values under both keys; empty where one is no name."""
    name, namespace = (there.get(key, "") for key in keys)
    return (name, namespace) if is_name(name) and is_name(namespace) else ("", "")


def _named(kind: str, name: str) -> str:
    return f" ({kind} {name})" if name else ""

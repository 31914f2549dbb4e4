# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warn that Argo CD, Flux or Helm will reset an object to its manifest. No I/O.

A user who may change an object can forge labels, annotations and managedFields. So these fields
only cause warnings.
"""

from __future__ import annotations

import typing as t

from ..flows import suspension
from ..flows.flow import AnyFlow
from ..model import shell
from ..model.fields import text
from ..model.identity import is_name
from ..model.object_meta import suspended_gitops
from ..model.observed import Controller
from ..model.request import Request

#: An annotation with the value "application:group/kind:namespace/name".
ARGO_TRACKING = "argocd.argoproj.io/tracking-id"
ARGO_LABEL = "argocd.argoproj.io/instance"
#: Default label of Argo CD before 3.0. Most charts also set this label.
INSTANCE_LABEL = "app.kubernetes.io/instance"
ARGO_MANAGERS = {"argocd-controller", "argocd-application-controller"}
#: Labels with the name and the namespace of the Kustomization or HelmRelease.
FLUX_KUSTOMIZATION = (suspension.KUSTOMIZE_CONTROLLER.label,
                      "kustomize.toolkit.fluxcd.io/namespace")
FLUX_RELEASE = (suspension.HELM_CONTROLLER.label, "helm.toolkit.fluxcd.io/namespace")
#: Charts set this label, even if Argo CD applies the chart. Helm also sets the annotations
#: HELM_RELEASE, but Argo CD does not.
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
HELM_RELEASE = ("meta.helm.sh/release-name", "meta.helm.sh/release-namespace")

#: With the value "disabled" of this annotation, kustomize-controller skips the object.
FLUX_RECONCILE = suspension.KUSTOMIZE_CONTROLLER.annotation
_SUSPEND_PATCH = """--type=merge -p '{"spec": {"suspend": true}}'"""
Connection: t.TypeAlias = "t.Mapping[str, str | None]"


class ManagedObject(t.NamedTuple):
    """The metadata of an object."""

    name: str
    labels: t.Mapping[str, t.Any]
    annotations: t.Mapping[str, t.Any]
    field_managers: frozenset[str]
    namespace: str = ""
    #: For kubectl, such as "deployment"; "" if the update deletes the object.
    resource: str = ""


class Manager(t.NamedTuple):
    """A tool that applies a manifest of the object."""

    name: str
    #: When the tool applies the manifest, such as "at its next sync"; before "it resets foo".
    when: str
    #: How to suspend the tool, such as "stop automatic syncs".
    suspend: str = ""
    command: str = ""
    #: Replaces the advice to suspend the tool.
    advice: str = ""
    #: None unless the tool is Flux.
    flux_tool: suspension.Tool | None = None


def warnings(flow: AnyFlow, request: Request, primary: Controller) -> list[str]:
    """Return a warning for each tool that will undo the update."""
    effect = _effect(flow, request)
    if not effect:
        return []
    # is_deleted: the update will delete the primary.
    is_deleted = request.state.migrates or request.next_name
    managed_object = ManagedObject(
        primary.name, primary.labels, primary.annotations, primary.managers, request.namespace,
        "" if is_deleted else request.kind.lower())
    managers = [_find_argo(managed_object),
                *(find(request.connection, managed_object)
                  for find in (_find_flux_kustomization, _find_flux_release, _find_helm))]
    if not is_deleted:
        managers = [manager and _adapt_to_suspend_gitops(request, primary, manager)
                    for manager in managers]
    # The successor inherits annotations and labels. Argo CD ignores a successor whose tracking
    # annotation names the primary. If Argo CD tracks by a label, the successor looks like an object
    # that was removed from git.
    is_successor_pruned = flow.creates_successor and not _is_tracked_by_argo(managed_object)
    pruning_warning = ("With automatic pruning, Argo CD deletes the successor during the update. "
                       if is_successor_pruned else "")
    return [f"{manager.name} manages {primary.name}: {manager.when} it {effect}. "
            f"{pruning_warning if manager is managers[0] else ''}"
            f"{manager.advice or _default_advice(manager)}" for manager in managers if manager]


def _adapt_to_suspend_gitops(request: Request, primary: Controller, manager: Manager) -> Manager:
    tool = manager.flux_tool
    if tool is None:
        return manager._replace(suspend=f"{manager.suspend} (suspend_gitops suspends only Flux)"
                                if request.suspends_gitops else manager.suspend)
    is_excluded_during_update = suspension.is_excluded_by_update(tool, primary) or (
        request.suspends_gitops and tool.annotation not in primary.annotations)
    if tool is suspension.HELM_CONTROLLER:
        return manager._replace(when="at the release's next upgrade, or by drift detection after "
                                     "the update,") if is_excluded_during_update else manager
    if is_excluded_during_update:
        return manager._replace(
            when=f"suspend_gitops excludes {primary.name} from the Kustomization until the update "
                 "ends; at the next reconciliation after that,",
            advice="Make the same change in git before the update ends")
    return manager._replace(suspend=f"set suspend_gitops=true, or {manager.suspend}")


def reconciling_managers(connection: Connection, managed_object: ManagedObject) -> list[Manager]:
    """Return the tools that undo a change at their next reconciliation."""
    # Leave out Helm, which applies a manifest only at an upgrade or a rollback of the release.
    managers = [_find_argo(managed_object),
                *(find(connection, managed_object)
                  for find in (_find_flux_kustomization, _find_flux_release))]
    return [manager for manager in managers if manager]


def _default_advice(manager: Manager) -> str:
    return (f"Make the same change in git, or {manager.suspend} before the update: "
            f"{manager.command}")


def _effect(flow: AnyFlow, request: Request) -> str:
    """Describe the effect of the manifest ("resets foo to ..."), or return "" if none."""
    if request.state.migrates:
        return (f"creates the {request.kind} {request.name} again, in addition to the Deployment, "
                "with pods of its own")
    if request.next_name:
        return (f"creates {request.name} again, in addition to {request.next_name}, with pods of "
                "its own")
    if not flow.creates_successor:
        # No manifest has the annotation of a restart, so a sync does not change the annotation.
        return ("" if request.state.restarts
                else f"resets {request.name} to its manifest, which replaces all pods")
    return (f"resets {request.name} (template and size) to its manifest: pods created after that "
            "have the template of the manifest, and existing pods stay")


def _is_tracked_by_argo(managed_object: ManagedObject) -> bool:
    """Return whether Argo CD's tracking annotation names the object."""
    target = text(managed_object.annotations, ARGO_TRACKING).partition(":")[2]
    return target.rpartition("/")[2] == managed_object.name


def _find_argo(managed_object: ManagedObject) -> Manager | None:
    is_tracked = _is_tracked_by_argo(managed_object)
    has_argo_manager = bool(ARGO_MANAGERS & managed_object.field_managers)
    if not (is_tracked or has_argo_manager or ARGO_LABEL in managed_object.labels):
        return None
    application_id = text(managed_object.annotations, ARGO_TRACKING).partition(":")[0]
    # The id of an application outside of Argo CD's namespace is "NAMESPACE_NAME".
    names = (application_id.split("_") if is_tracked
             else [text(managed_object.labels, ARGO_LABEL)
                   or text(managed_object.labels, INSTANCE_LABEL)])
    application = "/".join(names) if len(names) <= 2 and all(map(is_name, names)) else ""
    return Manager(f"Argo CD{_in_parentheses('application', application)}",
                   "at its next sync (with self-heal, within seconds)", "stop automatic syncs",
                   f"argocd app set {application or 'APPLICATION'} --sync-policy none")


def _find_flux_kustomization(connection: Connection,
                             managed_object: ManagedObject) -> Manager | None:
    # An exclusion by suspend_gitops does not count, since the exclusion ends with the update.
    # suspended_gitops() returns the keys of the annotations that an update has set.
    is_excluded = (text(managed_object.annotations, FLUX_RECONCILE).lower() == suspension.DISABLED
                   and FLUX_RECONCILE not in suspended_gitops(managed_object.annotations))
    if managed_object.resource and is_excluded:
        return None
    manager = _find_flux(
        connection, managed_object, "Kustomization", "kustomizations.kustomize.toolkit.fluxcd.io",
        FLUX_KUSTOMIZATION, suspension.KUSTOMIZE_CONTROLLER,
        "at its next reconciliation, within minutes,")
    if not (manager and managed_object.resource):
        return manager
    # A suspended Kustomization would also stop updating other objects.
    kubectl = shell.kubectl(connection, managed_object.namespace)
    return manager._replace(
        suspend=f"exclude {managed_object.name} from the Kustomization",
        command=f"{kubectl} annotate {managed_object.resource} {managed_object.name} "
        f"{FLUX_RECONCILE}=disabled")


def _find_flux_release(connection: Connection, managed_object: ManagedObject) -> Manager | None:
    return _find_flux(
        connection, managed_object, "HelmRelease", "helmreleases.helm.toolkit.fluxcd.io",
        FLUX_RELEASE, suspension.HELM_CONTROLLER,
        "at the release's next upgrade (with drift detection, within minutes)")


def _find_flux(connection: Connection, managed_object: ManagedObject, kind: str, resource: str,
               keys: tuple[str, str], tool: suspension.Tool, when: str) -> Manager | None:
    if not suspension.tool_applies_object(tool, managed_object.labels,
                                          managed_object.field_managers):
        return None
    name, namespace = _valid_names(managed_object.labels, keys)
    command = (f"{shell.kubectl(connection, namespace or 'NAMESPACE')} patch {resource} "
               f"{name or 'NAME'} {_SUSPEND_PATCH}")
    return Manager(f"Flux{_in_parentheses(kind, f'{namespace}/{name}' if name else '')}", when,
                   "suspend it", command, flux_tool=tool)


def _find_helm(connection: Connection, managed_object: ManagedObject) -> Manager | None:
    has_release = (managed_object.labels.get(MANAGED_BY_LABEL) == "Helm"
                   and HELM_RELEASE[0] in managed_object.annotations)
    # If the labels name a HelmRelease, _find_flux_release() warns.
    if not has_release or FLUX_RELEASE[0] in managed_object.labels:
        return None
    name, namespace = _valid_names(managed_object.annotations, HELM_RELEASE)
    return Manager(f"Helm{_in_parentheses('release', name)}",
                   "at the release's next upgrade or rollback (if Helm uses server-side apply, "
                   "only with --force-conflicts)",
                   advice="Make the same change in the values of the release. To show them: "
                   f"{shell.helm(connection, namespace or 'NAMESPACE')} get values "
                   f"{name or 'RELEASE'}")


def _valid_names(metadata: t.Mapping[str, t.Any], keys: tuple[str, str]) -> tuple[str, str]:
    name, namespace = (text(metadata, key) for key in keys)
    return (name, namespace) if is_name(name) and is_name(namespace) else ("", "")


def _in_parentheses(kind: str, name: str) -> str:
    return f" ({kind} {name})" if name else ""

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The manifests that a migration creates, and their comparison with existing objects. No I/O."""

from __future__ import annotations

import dataclasses

from ...model import object_meta
from ...model.errors import RolloutError
from ...model.fields import Json, mapping
from ...model.kinds import Kind
from ...model.object_meta import StoredController
from ...model.observed import Controller
from ...model.request import Request
from ...model.server_driven import DeploymentConfig
from ...model.steps import REVISION, Action, Create, Delete, Step
from ...model.template import same_template, with_label
from .. import handover
from .deployment_config import deployment_fields
from .observed import (
    MigrationObserved,
    stored_revision_name,
    template_hash_of,
    without_rollout_identity,
)


def creations(request: Request, observed: MigrationObserved,
              primary: Controller) -> tuple[Create, Create]:
    """Return the creations of the ReplicaSet and the Deployment, for dry runs."""
    stored: StoredController = revision_manifest(request, primary, observed.config)["data"]
    return (Create(replica_set_manifest(request, stored)),
            Create(deployment_manifest(request, observed, stored)))


def _selector(request: Request, selector: Json) -> Json:
    """Return the selector without the deployment label, unless there is no other label."""
    return {key: value for key, value in selector.items() if key != request.label_key} or selector


def revision_manifest(request: Request, primary: Controller,
                      config: DeploymentConfig | None) -> Json:
    """Return a ControllerRevision that stores `primary`.

    Metadata and the fields for the Deployment are from `config` if any: another client may delete
    the DeploymentConfig during the migration.
    """
    source = config or primary
    annotations = {key: value for key, value in source.annotations.items()
                   if key not in object_meta.NOT_COPIED}
    metadata = {"name": primary.name, "namespace": request.namespace, "labels": source.labels,
                "annotations": annotations}
    spec = {"replicas": primary.replicas, "selector": primary.selector,
            "minReadySeconds": primary.min_ready_seconds,
            "template": primary.template}
    manifest = {"apiVersion": "v1", "kind": str(primary.kind), "metadata": metadata, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": stored_revision_name(request), "namespace": request.namespace,
                     "labels": {object_meta.MIGRATION: primary.uid}},
        "revision": 1,
        "data": {"hash": template_hash_of(request, primary), "uid": primary.uid,
                 "manifest": manifest,
                 **({"deployment": deployment_fields(config)} if config else {})},
    }


def replica_set_manifest(request: Request, stored: StoredController) -> Json:
    spec = stored["manifest"]["spec"]
    template = with_label(_template_for_selector(request, spec), object_meta.HASH_LABEL,
                          stored["hash"])
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.REPLICA_SET),
        "metadata": {"name": f"{request.name}-{stored['hash']}", "namespace": request.namespace,
                     "labels": template["metadata"]["labels"], "annotations": {}},
        "spec": {"replicas": spec["replicas"], "minReadySeconds": spec["minReadySeconds"],
                 "selector": {"matchLabels": {**_selector(request, spec["selector"]),
                                              object_meta.HASH_LABEL: stored["hash"]}},
                 "template": handover.closed_template(template)},
    }


def deployment_manifest(request: Request, observed: MigrationObserved,
                        stored: StoredController) -> Json:
    metadata, spec = stored["manifest"]["metadata"], stored["manifest"]["spec"]
    annotations = {key: value
                   for key, value in metadata["annotations"].items()
                   if key not in object_meta.NOT_COPIED}
    rolling_update = {"maxSurge": request.max_surge.for_api,
                      "maxUnavailable": request.max_unavailable.for_api}
    strategy = ({"strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update}}
                if request.overrides_strategy else {})
    size = observed.replica_set.replicas if observed.replica_set else spec["replicas"]
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.DEPLOYMENT),
        "metadata": {"name": request.name, "namespace": request.namespace,
                     "annotations": annotations,
                     # Keep all labels of a DeploymentConfig: the user has set these labels.
                     "labels": {key: value for key, value in metadata["labels"].items()
                                if key != request.label_key or request.kind.server_label}},
        # 600 is the API server's default. Add minReadySeconds, because the deadline must be greater
        # than minReadySeconds. The fields after deployment_fields() replace forged fields of the
        # ControllerRevision.
        "spec": {"progressDeadlineSeconds": 600 + spec["minReadySeconds"],
                 **(deployment_fields(observed.config) or mapping(stored, "deployment")),
                 "replicas": size, "paused": True,
                 "selector": {"matchLabels": _selector(request, spec["selector"])},
                 "minReadySeconds": spec["minReadySeconds"],
                 "template": _template_for_selector(request, spec), **strategy},
    }


def _template_for_selector(request: Request, spec: Json) -> Json:
    """Return the template, with the deployment label only if _selector() keeps this label."""
    template, value = without_rollout_identity(request, spec["template"]), _selector(
        request, spec["selector"]).get(request.label_key)
    return with_label(template, request.label_key, value) if value else template


def stored_images(stored: StoredController) -> dict[str, str]:
    return {container["name"]: container.get("image", "")
            for container in stored["manifest"]["spec"]["template"]["spec"]["containers"]}


# Comparison with existing objects


def has_changed(request: Request, primary: Controller, observed: MigrationObserved,
                stored: StoredController) -> bool:
    """Return whether the migrated controller differs from the stored controller.

    Of a controller that is closed or being deleted, or whose DeploymentConfig was deleted, only the
    selector and the template count. A ReplicaSet is scaled to the size of the controller, so the
    size counts only if there is no ReplicaSet.
    """
    spec = stored["manifest"]["spec"]
    has_lost_config = bool(request.kind.is_migration_only and observed.config is None)
    if primary.uid == stored["uid"] and (handover.is_closed(primary) or primary.is_deleting
                                         or has_lost_config):
        return primary.selector != spec["selector"] or not _are_equal_templates(
            without_rollout_identity(request, primary.template),
            without_rollout_identity(request, spec["template"]))
    size = spec["replicas"] if observed.replica_set else primary.replicas
    manifest = revision_manifest(request, dataclasses.replace(primary, replicas=size),
                                 observed.config)
    return bool(manifest["data"] != stored)


def is_created_by_migration(request: Request, controller: Controller, observed: MigrationObserved,
                            stored: StoredController) -> bool:
    """Return whether this migration has created `controller`, the ReplicaSet or the Deployment.

    Once the migrated controller is deleted, a Deployment that owns the ReplicaSet is accepted with
    any template. A Deployment that is not paused need not own a ReplicaSet, since an update may
    have deleted the ReplicaSet (revisionHistoryLimit).
    """
    replica_set, deployment = observed.replica_set, observed.deployment
    adopter_uid = deployment.uid if deployment and observed.controller is None else ""
    manifest = (deployment_manifest(request, observed, stored) if controller is deployment
                else replica_set_manifest(request, stored))
    has_expected_selector = controller.selector == manifest["spec"]["selector"]["matchLabels"]
    has_expected_manifest = has_expected_selector and _are_equal_templates(
        controller.template, manifest["spec"]["template"])
    if controller is not deployment:
        return has_expected_manifest and controller.owner_uid in ("", adopter_uid)
    if has_expected_manifest or not adopter_uid:
        return has_expected_manifest
    return (replica_set.owner_uid == adopter_uid if replica_set
            else has_expected_selector and not deployment.settings["paused"])


def has_template_of(deployment: Controller, replica_set: Controller) -> bool:
    """Return whether the Deployment has the template from which the ReplicaSet creates pods."""
    return same_template(deployment.template, replica_set.template, object_meta.HASH_LABEL)


def _are_equal_templates(template: Json, other_template: Json) -> bool:
    """Return whether two templates are equal after both are closed."""
    return same_template(handover.closed_template(template),
                         handover.closed_template(other_template), "")


def name_conflict(request: Request, controller: Controller) -> RolloutError:
    return RolloutError(f"a {controller.kind} named {controller.name} already exists and does not "
                        "belong to this migration",
                        where=request.where,
                        next_command=f"{request.kubectl} get {controller.kind.kubectl_name} "
                                     f"{controller.name}")


def has_stored_selector(controller: Controller, stored: StoredController) -> bool:
    return bool(controller.selector == stored["manifest"]["spec"]["selector"])


def difference_error(request: Request) -> RolloutError:
    """Return the error for a controller that differs from the stored controller."""
    name = stored_revision_name(request)
    return RolloutError(f"it differs from the ControllerRevision {name} of its migration",
                        where=request.where,
                        next_command=("restore its fields, or inspect the stored ones:",
                                      f"{request.kubectl} get {REVISION.lower()} {name} -o yaml"))


def delete_stored_revision(request: Request, why: str, ends_task: bool) -> Step:
    """Return the step that deletes the ControllerRevision of the migration."""
    name = stored_revision_name(request)
    return Step(Action.DELETE, name, Delete(name, {}, REVISION), after=why, ends_task=ends_task,
                completes_update=ends_task)

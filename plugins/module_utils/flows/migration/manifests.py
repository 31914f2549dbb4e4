# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a migration creates, and whether what is there under these names is that. Pure."""

from __future__ import annotations

from ...model import marks
from ...model.by_server import DeploymentConfig
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.marks import Kept
from ...model.observed import Controller
from ...model.request import Request
from ...model.steps import REVISION, Action, Create, Delete, Step
from ...model.template import same_template, with_label
from .. import handover
from .deployment_config import spec_of
from .find import MigrationObserved, hash_of, kept_name, template_of


def creations(request: Request, there: MigrationObserved, primary: Controller) -> tuple[Create, Create]:
    """What the migration will create, once nothing can be undone any more: it is tried before the first write."""
    kept: Kept = kept_of(request, primary, there.config)["data"]
    return Create(replica_set_of(request, kept)), Create(deployment_of(request, there, kept))


def _selector(request: Request, selector: Json) -> Json:
    """Without the deployment label as well, unless there is nothing else."""
    return {key: value for key, value in selector.items() if key != request.label_key} or selector


def kept_of(request: Request, primary: Controller, config: DeploymentConfig | None) -> Json:
    """The ControllerRevision. What the user has written on the DeploymentConfig becomes the Deployment's, and not the rollout's."""
    labels, annotations = (config or primary).labels, (config or primary).annotations
    if config:
        annotations = {key: value for key, value in annotations.items() if key not in marks.NOT_COPIED}
    metadata = {"name": primary.name, "namespace": request.namespace, "labels": labels, "annotations": annotations}
    spec = {"replicas": primary.replicas, "selector": primary.selector, "minReadySeconds": primary.min_ready_seconds,
            "template": primary.template}
    manifest = {"apiVersion": "v1", "kind": str(primary.kind), "metadata": metadata, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": kept_name(request), "namespace": request.namespace, "labels": {marks.MIGRATION: primary.uid}},
        "revision": 1, "data": {"hash": hash_of(request, primary), "uid": primary.uid, "manifest": manifest},
    }


def replica_set_of(request: Request, kept: Kept) -> Json:
    spec = kept["manifest"]["spec"]
    template = with_label(_whole_template(request, spec), marks.HASH_LABEL, kept["hash"])
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.REPLICA_SET),
        "metadata": {"name": f"{request.name}-{kept['hash']}", "namespace": request.namespace,
                     "labels": template["metadata"]["labels"], "annotations": {}},
        "spec": {"replicas": spec["replicas"], "minReadySeconds": spec["minReadySeconds"],
                 "selector": {"matchLabels": {**_selector(request, spec["selector"]), marks.HASH_LABEL: kept["hash"]}},
                 "template": handover.closed(template)},
    }


def deployment_of(request: Request, there: MigrationObserved, kept: Kept) -> Json:
    metadata, spec = kept["manifest"]["metadata"], kept["manifest"]["spec"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in marks.NOT_COPIED}
    pace = {"maxSurge": request.max_surge.for_api, "maxUnavailable": request.max_unavailable.for_api}
    strategy = {"strategy": {"type": "RollingUpdate", "rollingUpdate": pace}} if request.gives_strategy else {}
    size = there.replica_set.replicas if there.replica_set else spec["replicas"]
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.DEPLOYMENT),
        "metadata": {"name": request.name, "namespace": request.namespace, "annotations": annotations,
                     "labels": {key: value for key, value in metadata["labels"].items()
                                if key != request.label_key or request.kind.server_label}},
        "spec": {"replicas": size, "paused": True, "selector": {"matchLabels": _selector(request, spec["selector"])},
                 "minReadySeconds": spec["minReadySeconds"], "progressDeadlineSeconds": 600 + spec["minReadySeconds"],
                 "template": _whole_template(request, spec), **spec_of(there.config), **strategy},
    }


def _whole_template(request: Request, spec: Json) -> Json:
    """The template, with the deployment label only where the selector has nothing else."""
    template, value = template_of(request, spec["template"]), _selector(request, spec["selector"]).get(request.label_key)
    return with_label(template, request.label_key, value) if value else template


def images(kept: Kept) -> dict[str, str]:
    return {each["name"]: each.get("image", "") for each in kept["manifest"]["spec"]["template"]["spec"]["containers"]}


# Whether they are there


def is_of(request: Request, primary: Controller, kept: Kept) -> bool:
    """Whether that is what is kept of the controller; it may be closed since, and of another size."""
    spec = kept["manifest"]["spec"]
    return primary.selector == spec["selector"] and _is_same(template_of(request, primary.template),
                                                             template_of(request, spec["template"]))


def is_ours(request: Request, it: Controller, there: MigrationObserved, kept: Kept) -> bool:
    """Whether a ReplicaSet or a Deployment is what this migration creates; what has adopted the ReplicaSet may be edited again."""
    replica_set, deployment = there.replica_set, there.deployment
    adopter = deployment.uid if deployment and there.controller is None else ""
    manifest = deployment_of(request, there, kept) if it is deployment else replica_set_of(request, kept)
    is_same = (it.selector == manifest["spec"]["selector"]["matchLabels"] and _is_same(it.template, manifest["spec"]["template"]))
    if it is deployment:
        return is_same or bool(replica_set and adopter and replica_set.owner_uid == adopter)
    return is_same and it.owner_uid in ("", adopter)


def _is_same(one: Json, other: Json) -> bool:
    """Whether two templates are equal but for being closed."""
    return same_template(handover.closed(one), handover.closed(other), "")


def taken(request: Request, it: Controller) -> RolloutError:
    return RolloutError(f"a {it.kind} named {it.name} already exists and does not belong to this migration",
                        where=request.where, next_command=f"{request.kubectl} get {it.kind.short} {it.name}")


def forget(request: Request, why: str, is_last: bool) -> Step:
    name = kept_name(request)
    return Step(Action.DELETE, name, Delete(name, {}, REVISION), after=why, is_last=is_last, is_end=is_last)

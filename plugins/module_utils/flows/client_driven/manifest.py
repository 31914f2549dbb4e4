# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The manifest of a successor, the write for a dry run, and the record of an update."""

from __future__ import annotations

from ...model import identity
from ...model.fields import Json
from ...model.object_meta import DESIRED, LAST_ROLLOUT, NOT_COPIED, ORIGINAL, PARTNER, PARTNER_UID
from ...model.observed import Controller
from ...model.request import Request
from ...model.steps import Create, Merge
from ...model.template import labels_of, with_label
from ..desired import merge_patch
from .observed import ClientDrivenObserved, expected_successor

#: Maximum length of the controller's name in generateName. (A name has at most 253 characters.)
MAX_PREFIX = 200


def successor_manifest(request: Request, observed: ClientDrivenObserved, primary: Controller,
                       desired_size: int) -> Json:
    """Return the manifest of the successor, with 0 replicas.

    desired_size: the size at the end of the update.
    """
    name, label_value = expected_successor(request, primary)
    template = with_label(observed.desired_template or {}, request.label_key, label_value)
    labels, annotations = primary.labels, primary.annotations
    min_ready_seconds = primary.min_ready_seconds
    template_labels = {label: text for label, text in template["metadata"]["labels"].items()
                       if label != request.label_key}
    # The template of an earlier revision may lack these labels or have other values. The
    # deployment label still restricts the selector to the pods of this update.
    selector = {label: template_labels[label] for label in primary.selector
                if label in template_labels}
    if request.definition is not None:
        metadata, spec = request.definition["metadata"], request.definition["spec"]
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        selector = defined_selector(request) or template_labels
        min_ready_seconds = spec.get("minReadySeconds", 0)
    if request.min_ready_seconds is not None:
        min_ready_seconds = request.min_ready_seconds
    update_annotations = {
        PARTNER: primary.name,
        PARTNER_UID: primary.uid,
        DESIRED: str(desired_size),
        ORIGINAL: str(desired_size),
        LAST_ROLLOUT: rollout_record("updating", primary, Controller.from_api(
            {"metadata": {"name": name}, "spec": {"template": template}}), observed.now,
            request=request.fingerprint),
    }
    copied_annotations = {key: text for key, text in annotations.items() if key not in NOT_COPIED}
    return {
        "apiVersion": request.kind.api_version,
        "kind": str(request.kind),
        "metadata": {
            "name": name,
            "namespace": request.namespace,
            "labels": {**labels, request.label_key: label_value},
            "annotations": {**copied_annotations, **update_annotations},
        },
        "spec": {
            "replicas": 0,
            "selector": request.kind.selector({**selector, request.label_key: label_value}),
            "template": template,
            "minReadySeconds": min_ready_seconds,
        },
    }


def defined_selector(request: Request) -> Json | None:
    """Return the labels of the selector in the definition, or None."""
    selector = request.definition["spec"].get("selector") if request.definition else None
    return selector and request.kind.labels(selector)


def rollout_record(outcome: str, before: Controller, after: Controller, now: str,
                   **more_fields: str) -> str:
    """Return the value of the annotation last-rollout."""
    return identity.canonical({"outcome": outcome, "from": before.images, "to": after.images,
                               "time": now, **more_fields})


def write_for_dry_run(request: Request, base: Controller) -> Merge | Create:
    """Return the Merge or Create whose dry run shows the desired template."""
    if request.definition is None:
        return merge_patch(request, base)
    spec = request.definition["spec"]
    # The selector of a ReplicaSet has no default.
    selector = spec.get("selector") or base.kind.selector(labels_of(spec["template"]))
    metadata = {field: request.definition["metadata"].get(field) or {}
                for field in ("labels", "annotations")}
    return Create({"apiVersion": base.kind.api_version, "kind": base.kind,
                   "metadata": {"generateName": f"{base.name[:MAX_PREFIX]}-", **metadata},
                   "spec": {**spec, "selector": selector, "replicas": 0}})

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The record of a server-driven update, and the patches of the record and the settings. No I/O.

Every patch tests the uid, metadata.generation and the record (the annotation LAST_ROLLOUT). So a
patch fails if another client has recreated the object, changed the spec or begun another update.
No patch tests the template, because the API server may return the template in another form.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, object_meta
from ...model.fields import Json
from ...model.object_meta import Revision, Rollout
from ...model.request import PREVIOUS, Request
from ...model.server_driven import ServerDriven
from ...model.settings import are_equal, has_only_valid_settings
from ...model.steps import Patch, annotation, put, test
from ...model.template import without_label
from ...model.thresholds import Size
from .. import provenance, refusals

#: Bytes reserved for the growth of a record during an update.
_RECORD_GROWTH_BYTES = 512
#: Bytes reserved for the annotations that the Deployment controller adds to a ReplicaSet.
_ADDED_ANNOTATION_BYTES = 150


def requested_pause(request: Request, primary: ServerDriven) -> Size | None:
    """Return the number of new pods at which the task is to pause the update, if any."""
    return request.pause_at if primary.may_pause and not request.rolls_back_update else None


def unchanged_message(request: Request, primary: ServerDriven,
                      present_revision_number: int | None) -> str:
    """Return the message of a task that changes nothing.

    present_revision_number: the revision number of the current template, or None.
    """
    if request.revision_template is None:
        return f"{primary.name} already has the desired template"
    return (f"{primary.name} already has the template of revision {request.to_revision}"
            if present_revision_number == request.to_revision else
            f"{primary.name} is already rolled back to revision {request.to_revision}")


def digest(primary: ServerDriven, template: Json | None = None) -> str:
    """Return the hash of a template without the server's label. Default: the current template."""
    return identity.digest(without_label(primary.template if template is None else template,
                                         primary.kind.server_label))


def is_being_rolled_back(request: Request, record: Rollout, desired_template: Json,
                         undone_revision: Revision | None) -> bool:
    """Return whether the rollback in progress undoes the requested update.

    undone_revision: according to the record; None if the history lacks this revision.
    """
    return record.is_rolling_back and (
        record.request == request.fingerprint
        or (undone_revision is not None and provenance.match(
            request, undone_revision.template, desired_template) is provenance.Match.EXACT))


def restoration(record: Rollout, newest_other_revision: Revision | None) -> Rollout:
    """Return the record of the rollback, if another client has restored the previous template.

    record: of the undone update. Its template has a higher revision number than all templates from
    before the update.
    """
    is_undone = newest_other_revision and newest_other_revision.number > record.revision
    return dataclasses.replace(
        record, outcome=Rollout.ROLLING_BACK, before=record.after, after=record.before,
        previous_name=(newest_other_revision.name if newest_other_revision and is_undone
                       else record.previous_name))


def rollback_fields(request: Request, primary: ServerDriven, record: Rollout,
                    present_revision_number: int | None) -> Json:
    """Return the fields of the final record of a rollback.

    present_revision_number: the revision number of the current template, or None.
    """
    fields: Json = {"template": digest(primary),
                    **({"to_revision": record.to_revision} if record.to_revision else {}),
                    **({"revision": present_revision_number} if present_revision_number else {})}
    if record.request == PREVIOUS:
        fields["request"] = (record.request if record.is_rolling_back else
                             provenance.record_entry(record.request, primary, request.label_key))
    return fields


def refuse_too_large_annotations(request: Request, primary: ServerDriven, record: Rollout,
                                 replica_set_annotations: t.Mapping[str, str]) -> None:
    """Raise RolloutError if the record would make the annotations too large.

    The Deployment controller copies the annotations of the Deployment to the ReplicaSet, and cannot
    scale a ReplicaSet whose annotations are too large.
    """
    growth = 0 if record.is_rolling_back else _RECORD_GROWTH_BYTES
    annotations = {**primary.annotations, object_meta.LAST_ROLLOUT: record.text}
    refusals.refuse_too_large_annotations(request, primary, annotations, growth)
    # The Deployment controller copies neither its own annotations nor the annotation of kubectl
    # apply (annotationsToSkip in pkg/controller/deployment/util).
    controller_prefix = object_meta.REVISION.removesuffix("revision")
    last_applied_key = object_meta.NOT_COPIED[-1]
    copied_annotations = {key: text for key, text in annotations.items()
                          if not key.startswith(controller_prefix) and key != last_applied_key}
    merged_annotations = {**replica_set_annotations, **copied_annotations}
    refusals.refuse_too_large_annotations(request, primary, merged_annotations,
                                          growth + _ADDED_ANNOTATION_BYTES,
                                          "the Deployment controller copies them to its "
                                          "ReplicaSet, and adds some of its own")


def baseline_settings(primary: ServerDriven, record: Rollout | None) -> Json:
    """Return the settings to restore at the end of the update, without a requested change.

    record: the record of the update. None if no update is in progress, or if the record may be
    forged.
    """
    settings = dict(primary.settings)
    originals, overrides = (record.original, record.overrides) if record else ({}, {})
    for field, override in overrides.items():
        original = originals.get(field)
        restored_value = _restored_value(settings[field], override, original)
        if restored_value != settings[field]:
            # A mix of original and current parts may be invalid: some values of rollingUpdate are
            # valid only with the type OnDelete.
            settings[field] = (restored_value if has_only_valid_settings({field: restored_value})
                               else original)
    return settings


def _restored_value(current: t.Any, override: t.Any, original: t.Any) -> t.Any:
    """Return the original value or, if another client has changed the field, the current value.

    maxSurge and maxUnavailable depend on each other, so they are restored together.
    override: the value that the update has set.
    """
    if are_equal(current, override):
        return original
    if not (isinstance(current, dict) and isinstance(override, dict)
            and isinstance(original, dict)):
        return current
    if not override.keys() & _INDEPENDENT_KEYS:
        return current
    parts = {field: _restored_value(current.get(field), override.get(field), original.get(field))
             for field in current | override | original}
    return {field: value for field, value in parts.items() if value is not None}


#: In updateStrategy or strategy, a dict with one of these keys is restored key by key. Any other
#: dict is restored as a whole.
_INDEPENDENT_KEYS = frozenset({"type", "partition"})


def with_nonzero_history_limit(settings: Json) -> Json:
    """Return the settings with a revisionHistoryLimit of at least 1.

    With 0, the controller manager deletes the old template when the last old pod is gone.
    """
    if settings["revisionHistoryLimit"] != 0:
        return settings
    return {**settings, "revisionHistoryLimit": 1}


def history_limit_warnings(primary: ServerDriven) -> list[str]:
    """Return the warning that the update raises the history limit, or []."""
    if primary.settings["revisionHistoryLimit"] != 0:
        return []
    return [f"revisionHistoryLimit of {primary.kind} {primary.name} is 0: this update sets 1, so "
            "that the cluster keeps the previous template for a rollback; 0 is restored at the "
            "end"]


def changed_fields(baseline: Json, settings: Json) -> tuple[Json, Json]:
    """Return two dicts with the changed fields: baseline values and new values.

    An update sets `paused` only if the field is unset, so only the new values contain `paused`.
    """
    fields = [field for field, value in baseline.items() if value != settings[field]
              and field != "paused"]
    paused = {"paused": True} if settings.get("paused") and not baseline.get("paused") else {}
    return ({field: baseline[field] for field in fields},
            {**{field: settings[field] for field in fields}, **paused})


def patch(primary: ServerDriven, record_text: str, settings: Json,
          template: Json | None = None) -> Patch:
    """Return the patch that writes the record, the settings and, if given, the template."""
    operations = [test("/metadata/uid", primary.uid),
                  test("/metadata/generation", primary.generation)]
    if primary.annotations:
        operations.append(test(annotation(object_meta.LAST_ROLLOUT),
                               primary.annotations.get(object_meta.LAST_ROLLOUT)))
    else:
        operations += [test("/metadata/annotations", None), put("/metadata/annotations", {})]
    for field, value in settings.items():
        if value != primary.settings[field]:
            path = f"/spec/{field}"
            operations.append({"op": "remove", "path": path} if value is None else put(path, value))
    operations.append(put(annotation(object_meta.LAST_ROLLOUT), record_text))
    if template is not None:
        operations.append(put("/spec/template", template))
    return Patch(primary.name, tuple(operations), str(primary.kind))

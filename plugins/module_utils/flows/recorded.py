# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Updates that the server's own controller carries out: what is kept of them on the object itself, and written with it. Pure.

What must be known stands in the record of the update (marks.LAST_ROLLOUT). Every patch assumes the generation and the record that
were seen: nobody has changed the spec since, or begun another update. (A template is not compared: bytes that mean the same need
not be the same.)
"""

from __future__ import annotations

import typing as t

from ..model import identity, marks
from ..model.by_server import SteppedByServer
from ..model.fields import Json
from ..model.marks import Rollout
from ..model.request import PREVIOUS, Request
from ..model.settings import are_settings, is_same
from ..model.steps import Patch, annotation, put, test
from ..model.template import same_template, without_label
from . import refusals
from .handover import became

#: Bytes by which a record may grow until the end of its update.
_GROWTH = 512
#: Bytes of the annotations that the server adds to a ReplicaSet: revision, desired-replicas and max-replicas.
_OF_REPLICA_SET = 150


def is_wanted(request: Request, primary: SteppedByServer, wanted: Json) -> bool:
    """Whether it has the wanted template; another restart makes another one of each."""
    return not request.state.restarts and same_template(primary.template, wanted, request.label_key)


def pauses(request: Request, primary: SteppedByServer) -> bool:
    """Whether the task ends with some pods of either template."""
    return request.pause_at is not None and not request.undoes and primary.may_pause


def already(request: Request, primary: SteppedByServer, number: int | None) -> str:
    """What there is to say where nothing is to be done; number is that of its present template."""
    if request.revision is None:
        return f"{primary.name} already has the wanted template"
    return (f"{primary.name} already has the template of revision {request.to_revision}" if number == request.to_revision else
            f"{primary.name} is already rolled back to revision {request.to_revision}")


def digest(primary: SteppedByServer, template: Json | None = None) -> str:
    """A hash of its template, or of the one that it is to get, for the record."""
    return identity.digest(without_label(primary.template if template is None else template, primary.kind.server_label))


def gone_back(request: Request, primary: SteppedByServer, record: Rollout, number: int | None) -> Json:
    """What the record keeps of it at the end, so that it is not done twice; number is that of the present template."""
    told: Json = {"template": digest(primary), **({"to_revision": record.to_revision} if record.to_revision else {}),
                  **({"revision": number} if number else {})}
    if record.request == PREVIOUS:
        told["request"] = record.request if record.is_back else became(record.request, primary, request.label_key)
    return told


def refuse_without_room(request: Request, primary: SteppedByServer, record: Rollout,
                        of_replica_set: t.Mapping[str, str]) -> None:
    """Raise RolloutError where the annotations have no room for the record at its longest.

    The server copies those of a Deployment to its ReplicaSet, which would not be created or scaled; of_replica_set: what that has.
    """
    growth = 0 if record.is_back else _GROWTH
    annotations = {**primary.annotations, marks.LAST_ROLLOUT: record.text}
    refusals.refuse_without_room(request, primary, annotations, growth)
    # But for those of its own (annotationsToSkip in pkg/controller/deployment/util).
    own = marks.REVISION.removesuffix("revision")
    copies = {**of_replica_set, **{key: text for key, text in annotations.items()
                                   if not (key.startswith(own) or key == marks.NOT_COPIED[-1])}}
    refusals.refuse_without_room(request, primary, copies, growth + _OF_REPLICA_SET,
                                 "the Deployment controller copies them to its ReplicaSet, and adds some of its own")


def usual(request: Request, primary: SteppedByServer, record: Rollout | None) -> Json:
    """The settings but for the update: as they were before it; what somebody has set since stays.

    record is None where nothing that it says of them is believed.
    """
    settings = dict(primary.settings)
    if record:
        for field, value in record.paced.items():
            restored = _restored(settings[field], value, record.original.get(field))
            # Somebody may have set numbers that the server takes beside OnDelete only.
            if restored != settings[field]:
                settings[field] = restored if are_settings({field: restored}) else record.original.get(field)
    if request.min_ready_seconds is not None:
        settings["minReadySeconds"] = request.min_ready_seconds or None
    return settings


def _restored(present: t.Any, paced: t.Any, original: t.Any) -> t.Any:
    """A field as it was before the update; of a strategy, type and numbers each by itself, unless somebody has set them since.

    Numbers that depend on each other (maxSurge, maxUnavailable) are one; the partition depends on no other one.
    """
    if is_same(present, paced):
        return original
    if not (isinstance(present, dict) and isinstance(paced, dict) and isinstance(original, dict)):
        return present
    if not paced.keys() & _APART:
        return present
    parts = {field: _restored(present.get(field), paced.get(field), original.get(field)) for field in present | paced | original}
    return {field: value for field, value in parts.items() if value is not None}


#: What has one of these is restored field by field.
_APART = frozenset({"type", "partition"})


def with_history(settings: Json) -> Json:
    """Return the settings with a history that keeps the template of before until the update has ended.

    With a revisionHistoryLimit of 0, the server deletes that template with its last pod.
    """
    return {**settings, "revisionHistoryLimit": 1} if settings["revisionHistoryLimit"] == 0 else settings


def history_warnings(primary: SteppedByServer) -> list[str]:
    """Return the warning of what with_history() changes."""
    return [f"revisionHistoryLimit of {primary.kind} {primary.name} is 0: this update sets 1, so that the cluster keeps the "
            f"template of before for a rollback; 0 is restored at the end"] if primary.settings["revisionHistoryLimit"] == 0 else []


def changed(usual_settings: Json, pace: Json) -> tuple[Json, Json]:
    """The fields that the update changes for as long as it lasts: what they are usually, and what it sets them to."""
    fields = [field for field, value in usual_settings.items() if value != pace[field] and field != "paused"]
    return {field: usual_settings[field] for field in fields}, {field: pace[field] for field in fields}


def patch(primary: SteppedByServer, record: str, settings: Json, template: Json | None = None) -> Patch:
    """Record, settings and, where one is given, template in one patch."""
    operations = [test("/metadata/uid", primary.uid), test("/metadata/generation", primary.generation)]
    if primary.annotations:
        operations.append(test(annotation(marks.LAST_ROLLOUT), primary.annotations.get(marks.LAST_ROLLOUT)))
    else:
        operations += [test("/metadata/annotations", None), put("/metadata/annotations", {})]
    for field, value in settings.items():
        if value != primary.settings[field]:
            path = f"/spec/{field}"
            operations.append({"op": "remove", "path": path} if value is None else put(path, value))
    operations.append(put(annotation(marks.LAST_ROLLOUT), record))
    if template is not None:
        operations.append(put("/spec/template", template))
    return Patch(primary.name, tuple(operations), str(primary.kind))

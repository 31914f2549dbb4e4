# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ControllerRevisions in memory, as the server's own controllers keep them, and the writes of StatefulSets and DaemonSets. Pure."""

from __future__ import annotations

import typing as t

from ...model import identity, marks
from ...model.by_server import ByRevisions
from ...model.fields import Json
from ...model.patches import DoesNotHold, patched
from ...model.steps import REVISION, Patch
from ...model.template import labels_of, same_template


def written(item: Json, write: Patch) -> Json | None:
    """The object after a patch; None when what that assumes does not hold."""
    try:
        changed = patched(item, write)
    except DoesNotHold:
        return None
    if changed["spec"] != item["spec"]:
        metadata = changed["metadata"]
        return {**changed, "metadata": {**metadata, "generation": metadata.get("generation", 1) + 1}}
    return changed


def revision_of(it: ByRevisions, kept: tuple[Json, ...]) -> tuple[Json, tuple[Json, ...]]:
    """The ControllerRevision that has the present template, and all of them; one that comes back is numbered anew."""
    newest = max((each["revision"] for each in kept), default=0)
    for each in kept:
        template = {field: value for field, value in each["data"]["spec"]["template"].items() if field != "$patch"}
        if same_template(template, it.template, it.kind.server_label):
            if each["revision"] == newest:
                return each, kept
            again = {**each["metadata"], "managedFields": [{"time": f"9999, after {newest:09} others"}]}
            renumbered = {**each, "metadata": again, "revision": newest + 1}
            return renumbered, (*(other for other in kept if other is not each), renumbered)
    digest = identity.digest(it.template)
    own = {marks.POD_REVISION: digest} if it.kind.history_label == marks.POD_REVISION else {}
    labels = {**labels_of(it.template), **own}
    metadata = {"name": f"{it.name}-{digest}", "ownerReferences": [it.reference], "labels": labels,
                "creationTimestamp": f"9999, after {newest:09} others"}
    made: Json = {"apiVersion": "apps/v1", "kind": REVISION, "metadata": metadata, "revision": newest + 1,
                  "data": {"spec": {"template": it.template}}}
    return made, (*kept, made)


def trimmed(it: ByRevisions, kept: tuple[Json, ...], present: Json, is_live: t.Callable[[Json], bool], *,
            counts_live: bool) -> tuple[Json, ...]:
    """Return the ControllerRevisions that revisionHistoryLimit leaves, of which live ones stay.

    counts_live: live ones count towards the limit (DaemonSet: cleanupHistory), or do not (StatefulSet: truncateHistory).
    """
    limit = it.settings["revisionHistoryLimit"]
    others = sorted((each for each in kept if each is not present), key=lambda each: t.cast(int, each["revision"]))
    dead = [each for each in others if not is_live(each)]
    surplus = len(others if counts_live else dead) - (10 if limit is None else limit)
    gone = dead[:max(0, surplus)]
    return tuple(each for each in kept if not any(each is other for other in gone))


def is_broken(revision: Json | None, images: t.Container[str]) -> bool:
    """Whether no pod that is made from it ever gets ready, where it has one of these images."""
    return revision is not None and revision["data"]["spec"]["template"]["spec"]["containers"][0]["image"] in images

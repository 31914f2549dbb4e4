# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Keys and values of all annotations and labels that the collection keeps on objects. Pure.

Readers raise nothing: a value that is missing or does not parse is None; a record, which has no
fixed fields, is {}. Whether a value can be trusted is decided by the flows. Every user with
annotate permission can write a text of any length or JSON of any depth.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import annotation_values as values
from . import fields
from .fields import Json
from .identity import canonical, is_label_value, is_name
from .settings import are_settings
from .soaks import Soak
from .template import images_of

#: Label that separates the pods of primary and successor: on metadata, selector, template and pods.
DEPLOYMENT_LABEL = "kubernetes.io/deployment"
#: On primary and successor: the replicas to reach, "0" on the shrinking controller. Gives the
#: direction after a crash.
DESIRED = "kubernetes.io/desired-replicas"
#: On primary and successor: the name of the other controller. Finds the successor of a task without
#: next_name.
PARTNER = "kubernetes.io/update-partner"
#: On primary and successor: the uid of the other controller. A partner that was deleted and created
#: again is refused.
PARTNER_UID = "baton.kubernetes/partner-uid"
#: On primary and successor: the size when the update began, so that losing either controller does
#: not lose the size.
ORIGINAL = "baton.kubernetes/original-replicas"
#: On the user's controller: a hash of the successor's pod spec as stored by the API server, after
#: admission.
SUCCESSOR_SPEC = "baton.kubernetes/next-spec"
#: On the user's controller: the number of new pods at which the update has been paused (pause_at).
PAUSED = "baton.kubernetes/paused"
#: On the user's controller: start of the soak, and the number of new pods that have already soaked
#: long enough.
SOAK = "baton.kubernetes/soak"
#: On a HorizontalPodAutoscaler frozen during the update: JSON of the previous fields.
FROZEN = "baton.kubernetes/frozen"
#: On the user's controller, later also on the successor: JSON that is enough to finish a handover
#: from either of them.
TAKEOVER = "baton.kubernetes/takeover"
#: On the growing controller, then on the survivor: JSON with outcome, from, to and time.
LAST_ROLLOUT = "baton.kubernetes/last-rollout"
#: On the pod template: makes the template of `state: restarted` differ from the previous template.
RESTART = "baton.kubernetes/restart"
#: On the pod template: JSON with the checksum of each ConfigMap and Secret of roll_on.
CHECKSUMS = "baton.kubernetes/checksums"
#: Label on a ControllerRevision that stores a previous template: the uid of the controller. Selects
#: the history.
HISTORY = "baton.kubernetes/history-of"
#: Label on the ControllerRevision of a migration in progress: the uid of the ReplicationController.
MIGRATION = "baton.kubernetes/migration-of"
#: Label that the Deployment controller sets on ReplicaSets and pods: a hash of the template.
HASH_LABEL = "pod-template-hash"
#: Label on the pods of a StatefulSet or DaemonSet that identifies the ControllerRevision of their
#: template: by name for a StatefulSet, for a DaemonSet by a hash that is also a label of the
#: ControllerRevision.
POD_REVISION = "controller-revision-hash"
#: Label on the pods of a DaemonSet, and annotation of the DaemonSet: the number of the template.
#: Both are deprecated, but the server still counts a pod with the current number as updated. A
#: recreated DaemonSet counts from 1 again, so that older pods can carry the current number.
POD_GENERATION = "pod-template-generation"
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
#: Label on the server's own ControllerRevisions: a hash of the data.
SERVER_HISTORY = "controller.kubernetes.io/hash"
#: On a Deployment and its ReplicaSets: the number of the template, counted by the server.
REVISION = "deployment.kubernetes.io/revision"
#: On a ReplicaSet of a Deployment: earlier numbers of a template that came back. The server writes
#: this annotation and REVISION itself, and does not copy them from the Deployment's annotations.
FORMER_REVISIONS = "deployment.kubernetes.io/revision-history"
#: On a DeploymentConfig: paused by its migration. A rollback of the migration resumes the
#: DeploymentConfig.
PAUSED_FOR_MIGRATION = "baton.kubernetes/paused-for-migration"
#: On the Lease: the process that holds the Lease, for other processes on the same machine.
HOLDER = "baton.kubernetes/holder"

#: Annotations of an update in progress, all removed at its end.
UPDATE_ANNOTATIONS = (DESIRED, PARTNER, PARTNER_UID, ORIGINAL, SUCCESSOR_SPEC, PAUSED, TAKEOVER)
#: Annotations that are never copied from primary to successor or back.
NOT_COPIED = (*UPDATE_ANNOTATIONS, SOAK, LAST_ROLLOUT, PAUSED_FOR_MIGRATION,
              "kubectl.kubernetes.io/last-applied-configuration")

#: Annotations of OpenShift on the ReplicationController of a rollout and on its pods: name of the
#: DeploymentConfig, number and phase of the rollout, name of the ReplicationController.
#: ROLLOUT_LABEL on the pods repeats the last.
ROLLOUT_OF = "openshift.io/deployment-config.name"
ROLLOUT_NUMBER = "openshift.io/deployment-config.latest-version"
ROLLOUT_PHASE = "openshift.io/deployment.phase"
ROLLOUT_NAME = "openshift.io/deployment.name"
ROLLOUT_LABEL = "deployment"

#: Annotations that an interrupted `kubectl rolling-update` (before 1.18) leaves on the old and on
#: the new controller.
KUBECTL_NEXT = "kubectl.kubernetes.io/next-controller-id"
KUBECTL_SOURCE = "kubectl.kubernetes.io/update-source-id"
KUBECTL_ORIGINAL = "kubectl.kubernetes.io/original-replicas"
#: Upper limit for all annotations of an object, in bytes of keys and values.
ANNOTATIONS_LIMIT = 256 * 1024

#: Upper limit for a uid, in characters: longer than any uid of an API server.
UID_LIMIT = 128

Annotations: t.TypeAlias = "t.Mapping[str, str]"

#: Annotation of a handover: the successor, the number of pods, and the fields to write when the
#: template is opened.
Takeover = t.TypedDict("Takeover", {
    "next": str, "uid": str, "label": str, "replicas": int, "from": dict[str, str], "request": str,
    "template": str, "priorityClassName": "str | None"})


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Record of an update in progress that the server's own controller carries out.

    The record alone proves nothing: flows/recorded.py decides how far to trust its fields.
    """

    UPDATING: t.ClassVar[str] = "updating"
    ROLLING_BACK: t.ClassVar[str] = "rolling back"

    #: UPDATING or ROLLING_BACK.
    outcome: str
    before: dict[str, str]
    after: dict[str, str]
    #: Time of the last change of direction, in RFC 3339.
    time: str
    #: Name of the ReplicaSet or ControllerRevision of the previous template, "" if unknown; and the
    #: number of the newest ReplicaSet or ControllerRevision at the start, 0 if irrelevant.
    set: str
    revision: int
    #: Changed fields of spec other than the template: values before the update, and values set by
    #: the update.
    original: Json
    overrides: Json
    #: Hash of the request.
    request: str
    #: Hash of the template as stored by the server; "" before the template was first read back.
    template: str = ""
    to_revision: int | None = None
    #: Number of new pods at which the update has been paused.
    paused: int | None = None

    @property
    def is_back(self) -> bool:
        return self.outcome == self.ROLLING_BACK

    @property
    def text(self) -> str:
        """Return the record as the annotation's value."""
        record = {"outcome": self.outcome, "from": self.before, "to": self.after, "time": self.time,
                  "set": self.set, "revision": self.revision, "original": self.original,
                  "paced": self.overrides, "request": self.request, "template": self.template,
                  "to_revision": self.to_revision, "paused": self.paused}
        return canonical({key: value for key, value in record.items() if value not in (None, "")})


class Frozen(t.TypedDict):
    """Fields of an autoscaler before the freeze."""

    behavior: Json | None
    minReplicas: int | None


class StoredRevision(t.TypedDict):
    """ReplicationController before its migration; manifest has metadata and spec."""

    #: Hash of the template: a label value of the pods, and part of a ReplicaSet's name.
    hash: str
    uid: str
    manifest: Json


@dataclasses.dataclass(frozen=True)
class Revision:
    """Current or previous template of a controller."""

    number: int
    #: Without the label that separates the controller's pods from the pods of other controllers.
    template: Json
    #: Time of the first use, in RFC 3339.
    time: str = ""
    #: User who updated to the template, if known.
    who: str = ""
    #: ControllerRevision with the template, and the uid of its owner; "" for the current template.
    name: str = ""
    owner_uid: str = ""
    #: Value of the label POD_REVISION on the pods that the server creates from the
    #: ControllerRevision.
    pods: str = ""
    #: Whether the server renumbered the ControllerRevision since its creation, as happens when a
    #: template comes back.
    is_renumbered: bool = False


def partner(annotations: Annotations) -> str | None:
    """Return the other controller's name; None also for a value that is not a valid name."""
    name = annotations.get(PARTNER)
    return name if name and is_name(name) else None


def partner_uid(annotations: Annotations) -> str | None:
    """Return the other controller's uid; for an impossible uid, a text that matches no object."""
    uid = annotations.get(PARTNER_UID)
    return uid if uid is None or (len(uid) <= UID_LIMIT and uid.isprintable()) else "not readable"


def desired(annotations: Annotations) -> int | None:
    return values.count(annotations.get(DESIRED))


def original(annotations: Annotations) -> int | None:
    return values.count(annotations.get(ORIGINAL))


def paused(annotations: Annotations) -> int | None:
    return values.count(annotations.get(PAUSED))


def soak(annotations: Annotations) -> Soak | None:
    return Soak.read(values.json_object(annotations.get(SOAK)))


def successor_spec(annotations: Annotations) -> str | None:
    return annotations.get(SUCCESSOR_SPEC)


def is_updating(annotations: Annotations) -> bool:
    """Return whether any annotation of an update in progress is present."""
    return any(key in annotations for key in UPDATE_ANNOTATIONS)


def has_takeover(annotations: Annotations) -> bool:
    """Return whether the annotation of a handover is present, readable or not."""
    return TAKEOVER in annotations


def takeover(annotations: Annotations) -> Takeover | None:
    """Return the annotation of the handover in progress; None if missing or invalid."""
    stored = {"priorityClassName": None, **(values.json_object(annotations.get(TAKEOVER)) or {})}
    texts = ("next", "uid", "label", "request", "template")
    priority = stored["priorityClassName"]
    is_valid = (all(isinstance(stored.get(field), str) for field in texts)
                and is_name(stored["next"]) and bool(values.LABEL_KEY.fullmatch(stored["label"]))
                and values.is_images(stored.get("from")) and fields.is_size(stored.get("replicas"))
                and (priority is None or (isinstance(priority, str) and is_name(priority))))
    return t.cast(Takeover, stored) if is_valid else None


def last_rollout(annotations: Annotations) -> Json:
    """Return outcome, from, to, time and the flow's own fields of the last update, or {}.

    Common fields of a wrong type are left out.
    """
    stored = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    record = {field: value for field, value in stored.items()
              if field not in _RECORD or _RECORD[field](value)}
    return fields.map_texts(record, fields.display_text)


def rollout(annotations: Annotations) -> Rollout | None:
    """Return the record of a server-driven update in progress; None if missing or invalid."""
    record = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    original, overrides = fields.mapping(record, "original"), fields.mapping(record, "paced")
    is_valid = (record.get("outcome") in (Rollout.UPDATING, Rollout.ROLLING_BACK)
                and all(values.is_images(record.get(field)) for field in ("from", "to"))
                and all(values.is_text(record.get(field, ""))
                        for field in ("time", "set", "request", "template"))
                and all(record.get(field) is None or fields.is_size(record[field])
                        for field in ("to_revision", "paused"))
                and fields.is_size(record.get("revision"))
                and are_settings(original) and are_settings(overrides)
                and original.keys() == overrides.keys() - {"paused"})
    if not is_valid or not (record.get("set", "") == "" or is_name(record["set"])):
        return None
    return Rollout(record["outcome"], record["from"], record["to"], record.get("time", ""),
                   record.get("set", ""), record["revision"], original, overrides,
                   record.get("request", ""), record.get("template", ""),
                   record.get("to_revision"), record.get("paused"))


def former_revisions(annotations: Annotations) -> frozenset[int]:
    """Return the numbers of a ReplicaSet's template before its current number."""
    texts = annotations.get(FORMER_REVISIONS, "")[:values.TEXT_LIMIT].split(",")
    return frozenset(filter(None, (values.count(text.strip()) for text in texts)))


def revision(annotations: Annotations) -> int:
    """Return the server's number of a template; 0 before the server has set the annotation."""
    return values.count(annotations.get(REVISION)) or 0


def is_frozen(annotations: Annotations) -> bool:
    """Return whether the annotation of a frozen autoscaler is present, readable or not."""
    return FROZEN in annotations


def frozen(annotations: Annotations) -> Frozen | None:
    """Return the fields of an autoscaler before the freeze; None if missing or invalid."""
    stored = values.json_object(annotations.get(FROZEN)) or {}
    if not {"behavior", "minReplicas"} <= stored.keys():
        return None
    behavior, minimum = stored["behavior"], stored["minReplicas"]
    is_valid = ((behavior is None or isinstance(behavior, dict))
                and (minimum is None or fields.is_size(minimum)))
    return {"behavior": behavior, "minReplicas": minimum} if is_valid else None


def kubectl_next(annotations: Annotations) -> str:
    """Return the target controller of an interrupted `kubectl rolling-update`, or ""."""
    name = annotations.get(KUBECTL_NEXT, "")
    return name if is_name(name) else ""


def kubectl_source(annotations: Annotations) -> tuple[str, str]:
    """Return name and uid of a `kubectl rolling-update`'s source controller, or "" for each."""
    name, _colon, uid = annotations.get(KUBECTL_SOURCE, "").partition(":")
    return name, uid


def kubectl_original(annotations: Annotations) -> int | None:
    """Return the size when `kubectl rolling-update` began."""
    return values.count(annotations.get(KUBECTL_ORIGINAL))


def unreadable(annotations: Annotations) -> list[str]:
    """Return the keys of annotations that are present and do not parse."""
    readers: dict[str, t.Callable[[Annotations], t.Any]] = {
        DESIRED: desired, PARTNER: partner, ORIGINAL: original, PAUSED: paused, TAKEOVER: takeover,
        LAST_ROLLOUT: last_rollout}
    return [key for key, read in readers.items()
            if key in annotations and read(annotations) in (None, {})]


def holder(annotations: t.Mapping[str, t.Any]) -> str:
    """Return the process that holds a Lease, as written by run/lease; "" if not a text."""
    return fields.text(annotations, HOLDER)


def with_annotation(template: Json, key: str, value: str) -> Json:
    """Return the pod template with an annotation."""
    metadata = template.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), key: value}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def checksums(template: Json) -> dict[str, str]:
    """Return the checksums in a pod template; {} if missing or invalid."""
    annotations = fields.mapping(template, "metadata", "annotations")
    stored = values.json_object(fields.text(annotations, CHECKSUMS)) or {}
    return stored if values.are_texts(stored) else {}


def stored_revision(item: Json) -> Revision | None:
    """Return the template that a ControllerRevision of the collection's own history stores."""
    template = values.json_object(fields.text(item.get("data"), "template"))
    number = item.get("revision")
    if not template or not values.is_template(template) or not fields.is_size(number):
        return None
    record = last_rollout(fields.mapping(item, "metadata", "annotations"))
    return Revision(t.cast(int, number), template, fields.text(record, "time"),
                    fields.text(record, "who"), item["metadata"]["name"], owner_uid(item))


def server_revision(item: Json) -> Revision | None:
    """Return the template that a ControllerRevision of the server's own history stores."""
    template = dict(fields.mapping(item, "data", "spec", "template"))
    template.pop("$patch", None)
    metadata, number = item["metadata"], item.get("revision")
    if not values.is_template(template) or not fields.is_size(number):
        return None
    name, creation = metadata["name"], fields.text(metadata, "creationTimestamp")
    # The number is the only field of a ControllerRevision that can change; all times are in UTC, to
    # the second.
    is_renumbered = any(fields.text(manager, "time") > creation
                        for manager in fields.objects(metadata, "managedFields"))
    return Revision(t.cast(int, number), template, creation, "", name, owner_uid(item),
                    pod_revision(fields.mapping(metadata, "labels")) or name, is_renumbered)


def owner_uid(item: Json) -> str:
    """Return the uid of the object's controller, or ""."""
    owners = fields.objects(fields.mapping(item, "metadata"), "ownerReferences")
    return next((fields.text(owner, "uid") for owner in owners if owner.get("controller")), "")


def pod_revision(labels: t.Mapping[str, t.Any]) -> str:
    """Return the name of a pod's ControllerRevision, from the pod's labels, or ""."""
    return fields.text(labels, POD_REVISION)


def template_generation(keys: t.Mapping[str, t.Any]) -> str:
    """Return a template's number from a pod's labels or a DaemonSet's annotations, or ""."""
    return fields.text(keys, POD_GENERATION) or fields.text(keys, TEMPLATE_GENERATION)


def serialize_revision(revision: Revision, owner_uid: str) -> tuple[Json, Json]:
    """Return metadata and data of a ControllerRevision for the history of owner_uid."""
    record = {"to": images_of(revision.template), "time": revision.time, "who": revision.who}
    metadata = {"labels": {HISTORY: owner_uid}, "annotations": {LAST_ROLLOUT: canonical(record)}}
    return metadata, {"template": values.canonical_text(revision.template)}


def is_paused_for_migration(annotations: Annotations) -> bool:
    """Return whether a DeploymentConfig was paused by its migration, and not by a user before."""
    return annotations.get(PAUSED_FOR_MIGRATION) == "true"


def rollout_phase(annotations: Annotations) -> str:
    """Return the phase of a DeploymentConfig's rollout from its ReplicationController."""
    return annotations.get(ROLLOUT_PHASE, "")


def stored_controller(item: Json) -> StoredRevision | None:
    """Return the controller stored in a migration's ControllerRevision; None if invalid."""
    data = fields.mapping(item, "data")
    metadata, spec = (fields.mapping(data, "manifest", part) for part in ("metadata", "spec"))
    template = fields.mapping(spec, "template")
    containers = fields.values(fields.mapping(template, "spec"), "containers")
    is_valid = (data.keys() == {"hash", "uid", "manifest"}
                and bool(data["uid"]) and values.is_text(data["uid"])
                and isinstance(data["hash"], str) and is_label_value(data["hash"])
                and is_name(fields.text(metadata, "name"))
                and values.are_texts(metadata.get("labels"))
                and values.are_texts(metadata.get("annotations"))
                and bool(spec.get("selector")) and values.are_texts(spec["selector"])
                and fields.is_size(spec.get("replicas"))
                and fields.is_size(spec.get("minReadySeconds"))
                and values.are_texts(fields.mapping(template, "metadata", "labels"))
                and bool(containers) and all(fields.text(item, "name") for item in containers))
    return t.cast(StoredRevision, data) if is_valid else None


#: Fields that the records of all flows have in common, with their types. A flow reads its further
#: fields itself.
_RECORD: dict[str, t.Callable[[t.Any], bool]] = {
    "outcome": values.is_text, "from": values.is_images, "to": values.is_images,
    "time": values.is_text, "who": values.is_text, "request": values.is_text}

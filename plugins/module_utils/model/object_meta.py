# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All annotations and labels read or written by the collection, with their parsers. No I/O.

A user with annotate permission may write any text into the annotations, but no other field. A
parser therefore raises no exception, and returns None or an empty value for a missing or invalid
annotation. The flows decide whether to trust a valid annotation.
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

#: Label in metadata, selector and template that distinguishes the pods of primary and successor.
DEPLOYMENT_LABEL = "kubernetes.io/deployment"
#: On primary and successor: the number of replicas at the end of the update; "0" on the shrinking
#: controller, which shows the direction of the update.
DESIRED = "kubernetes.io/desired-replicas"
#: On primary and successor: the name of the other controller.
PARTNER = "kubernetes.io/update-partner"
#: On primary and successor: the uid of the other controller.
PARTNER_UID = "baton.kubernetes/partner-uid"
#: On primary and successor, since one of them may be deleted: the primary's number of replicas at
#: the start of the update.
ORIGINAL = "baton.kubernetes/original-replicas"
#: On the primary: the hash of the successor's pod template as stored by the API server.
SUCCESSOR_SPEC = "baton.kubernetes/next-spec"
#: On the primary: the number of new pods at which the update is paused (pause_at).
PAUSED = "baton.kubernetes/paused"
#: On the primary: the start of the soak, and the number of pods that have passed the soak.
SOAK = "baton.kubernetes/soak"
#: On a HorizontalPodAutoscaler frozen during the update: the previous fields, as JSON.
FROZEN = "baton.kubernetes/frozen"
#: On primary and successor: the keys of the annotations that the update has set for Flux.
SUSPENDED_GITOPS = "baton.kubernetes/suspended-gitops"
#: On the primary, and later also on the successor: the data to finish the handover, as JSON.
TAKEOVER = "baton.kubernetes/takeover"
#: On the growing controller during the update, and on the remaining controller afterwards: the
#: record of the update, as JSON: {"outcome": "updated", "from": {...}, "to": {...}, "time": "..."}.
LAST_ROLLOUT = "baton.kubernetes/last-rollout"
#: On the primary: the routes that split requests between old and new pods (traffic/record.py).
TRAFFIC_ROUTES = "baton.kubernetes/traffic-routes"
#: On the pod template: a value set by `state: restarted` to change the template.
RESTART = "baton.kubernetes/restart"
#: On the pod template: the checksum of each ConfigMap and Secret in roll_on, as JSON.
CHECKSUMS = "baton.kubernetes/checksums"
#: Label on a ControllerRevision with a previous template: the uid of the controller.
HISTORY = "baton.kubernetes/history-of"
#: Label on the ControllerRevision of a migration in progress: the uid of the ReplicationController.
MIGRATION = "baton.kubernetes/migration-of"
#: Label set by the Deployment controller on ReplicaSets and pods: a hash of the template.
HASH_LABEL = "pod-template-hash"
#: Label on the pods of a StatefulSet or DaemonSet: the ControllerRevision of their template. For a
#: StatefulSet, the value is its name; for a DaemonSet, a hash that it has in the same label.
POD_REVISION = "controller-revision-hash"
#: Label on the pods of a DaemonSet: the generation of the template. The label is deprecated, but
#: the DaemonSet controller still counts a pod with the current generation as updated. A recreated
#: DaemonSet starts at generation 1 again, so an old pod may count as updated, too.
POD_GENERATION = "pod-template-generation"
#: Annotation of a DaemonSet: the current generation of the template.
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
#: Label on the ControllerRevisions created by the controller manager: a hash of the data.
SERVER_HISTORY = "controller.kubernetes.io/hash"
#: On a Deployment and its ReplicaSets: the revision of the template.
REVISION = "deployment.kubernetes.io/revision"
#: On a ReplicaSet of a Deployment: the earlier revisions of the template. The Deployment controller
#: writes this annotation and REVISION, and never copies them from the Deployment.
FORMER_REVISIONS = "deployment.kubernetes.io/revision-history"
#: On a DeploymentConfig paused by a migration: "true", so that a rollback may resume it.
PAUSED_FOR_MIGRATION = "baton.kubernetes/paused-for-migration"
#: On a Lease: the processes of the holders.
HOLDER = "baton.kubernetes/holder"

#: Annotations of an update in progress. The last step of the update removes all of them.
UPDATE_ANNOTATIONS = (DESIRED, PARTNER, PARTNER_UID, ORIGINAL, SUCCESSOR_SPEC, PAUSED, TAKEOVER)
#: Annotations not copied between primary and successor.
NOT_COPIED = (*UPDATE_ANNOTATIONS, SOAK, LAST_ROLLOUT, PAUSED_FOR_MIGRATION, TRAFFIC_ROUTES,
              "kubectl.kubernetes.io/last-applied-configuration")

# Annotations of OpenShift on the ReplicationController of a rollout, and on its pods.

#: The name of the DeploymentConfig.
ROLLOUT_OF = "openshift.io/deployment-config.name"
ROLLOUT_NUMBER = "openshift.io/deployment-config.latest-version"
ROLLOUT_PHASE = "openshift.io/deployment.phase"
#: The name of the ReplicationController.
ROLLOUT_NAME = "openshift.io/deployment.name"
#: Label on the pods: the name of the ReplicationController.
ROLLOUT_LABEL = "deployment"

#: Annotations of an interrupted `kubectl rolling-update` on the old and on the new controller.
KUBECTL_NEXT = "kubectl.kubernetes.io/next-controller-id"
KUBECTL_SOURCE = "kubectl.kubernetes.io/update-source-id"
KUBECTL_ORIGINAL = "kubectl.kubernetes.io/original-replicas"
#: The API's limit for the annotations of an object, in bytes of all keys and values.
MAX_ANNOTATIONS_SIZE = 256 * 1024
#: Maximum length of a uid.
MAX_UID_LENGTH = 128

Annotations: t.TypeAlias = "t.Mapping[str, str]"

#: The value of TAKEOVER. `next` and `uid` identify the successor; `label` is the key of the
#: deployment label, `replicas` the final size of the primary, `from` the images before the update;
#: `request` and `template` are hashes; `priorityClassName` is the value before the handover.
Takeover = t.TypedDict("Takeover", {
    "next": str, "uid": str, "label": str, "replicas": int, "from": dict[str, str], "request": str,
    "template": str, "priorityClassName": "str | None"})


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The record of a server-driven update in progress.

    Any client may have written it. The module observed.py of each flow checks the fields.
    """

    UPDATING: t.ClassVar[str] = "updating"
    ROLLING_BACK: t.ClassVar[str] = "rolling back"

    outcome: str  # UPDATING or ROLLING_BACK
    before: dict[str, str]  # the old images by container
    after: dict[str, str]  # the new images by container
    #: The time of the last change of direction, in RFC 3339.
    time: str
    #: The name of the ReplicaSet or ControllerRevision with the previous template; "" if unknown.
    previous_name: str
    #: The highest revision number that was known at the start of the update, or 0.
    revision: int
    #: The previous values of the fields of spec that the update changes, except the template.
    original: Json
    #: The values of the same fields during the update. At a pause, `paused` is added.
    overrides: Json
    #: The hash of the request.
    request: str
    #: The hash of the template as stored by the API server; "" until the template is read again.
    template: str = ""
    #: The revision that a rollback restores (to_revision).
    to_revision: int | None = None
    #: The number of new pods at which the update is paused.
    paused: int | None = None
    #: The time of the last write that only woke the DaemonSet controller. Nothing reads this field.
    woken: str = ""

    @property
    def is_rolling_back(self) -> bool:
        return self.outcome == self.ROLLING_BACK

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        record = {"outcome": self.outcome, "from": self.before, "to": self.after, "time": self.time,
                  "set": self.previous_name, "revision": self.revision, "original": self.original,
                  "paced": self.overrides, "request": self.request, "template": self.template,
                  "to_revision": self.to_revision, "paused": self.paused, "woken": self.woken}
        return canonical({key: value for key, value in record.items() if value not in (None, "")})


class Frozen(t.TypedDict):
    """The fields of a HorizontalPodAutoscaler before the freeze."""

    behavior: Json | None
    minReplicas: int | None


class StoredController(t.TypedDict):
    """A ReplicationController as stored in a ControllerRevision during the migration."""

    #: The hash of the template, as in the pod labels and in the name of the ReplicaSet.
    hash: str
    uid: str
    #: metadata and spec.
    manifest: Json


@dataclasses.dataclass(frozen=True)
class Revision:
    """A revision in the history of a controller: the current template or a previous template."""

    number: int
    #: The template, without the deployment label.
    template: Json
    #: The time of the first update to the template, in RFC 3339.
    time: str = ""
    #: The user of the first update, or "".
    who: str = ""
    #: The name of the ControllerRevision; "" for the current template.
    name: str = ""
    #: The uid of the controller that owns the ControllerRevision, or "".
    owner_uid: str = ""
    #: The value of the label POD_REVISION on the pods with this template.
    pod_revision: str = ""
    #: Whether the ControllerRevision has got a new number, because a rollback returned to it.
    is_renumbered: bool = False


def partner(annotations: Annotations) -> str | None:
    """Return the name of the other controller; None for a missing or invalid name."""
    name = annotations.get(PARTNER)
    return name if name and is_name(name) else None


def partner_uid(annotations: Annotations) -> str | None:
    """Return the uid of the other controller; None if missing, "not readable" if invalid."""
    uid = annotations.get(PARTNER_UID)
    is_valid = uid is None or (len(uid) <= MAX_UID_LENGTH and uid.isprintable())
    return uid if is_valid else "not readable"


def desired(annotations: Annotations) -> int | None:
    return values.parse_replicas(annotations.get(DESIRED))


def original(annotations: Annotations) -> int | None:
    return values.parse_replicas(annotations.get(ORIGINAL))


def paused(annotations: Annotations) -> int | None:
    return values.parse_replicas(annotations.get(PAUSED))


def soak(annotations: Annotations) -> Soak | None:
    return Soak.read(values.json_object(annotations.get(SOAK)))


def successor_spec(annotations: Annotations) -> str | None:
    return annotations.get(SUCCESSOR_SPEC)


def is_updating(annotations: Annotations) -> bool:
    return any(key in annotations for key in UPDATE_ANNOTATIONS)


def has_takeover(annotations: Annotations) -> bool:
    """Return whether the object has the annotation of a handover, valid or invalid."""
    return TAKEOVER in annotations


def takeover(annotations: Annotations) -> Takeover | None:
    """Return the annotation of the handover in progress; None if missing or invalid."""
    stored = {"priorityClassName": None, **(values.json_object(annotations.get(TAKEOVER)) or {})}
    texts = ("next", "uid", "label", "request", "template")
    priority = stored["priorityClassName"]
    is_valid = (all(isinstance(stored.get(field), str) for field in texts)
                and is_name(stored["next"]) and bool(values.LABEL_KEY.fullmatch(stored["label"]))
                and values.are_images(stored.get("from")) and fields.is_size(stored.get("replicas"))
                and (priority is None or (isinstance(priority, str) and is_name(priority))))
    return t.cast(Takeover, stored) if is_valid else None  # checked above, field by field


def last_rollout(annotations: Annotations) -> Json:
    """Return the record of the last update, or {}.

    Invalid values are left out of the fields common to all flows. Other fields are not checked.
    """
    stored = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    record = {field: value for field, value in stored.items()
              if field not in _RECORD_CHECKS or _RECORD_CHECKS[field](value)}
    return fields.map_texts(record, fields.display_text)


def rollout(annotations: Annotations) -> Rollout | None:
    """Return the record of a server-driven update in progress; None if missing or invalid."""
    record = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    original, overrides = fields.mapping(record, "original"), fields.mapping(record, "paced")
    is_valid = (record.get("outcome") in (Rollout.UPDATING, Rollout.ROLLING_BACK)
                and all(values.are_images(record.get(field)) for field in ("from", "to"))
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
    """Return the numbers of the earlier revisions of a ReplicaSet."""
    texts = annotations.get(FORMER_REVISIONS, "")[:values.MAX_TEXT_LENGTH].split(",")
    return frozenset(filter(None, (values.parse_replicas(text.strip()) for text in texts)))


def revision(annotations: Annotations) -> int:
    """Return the revision of a ReplicaSet; 0 until the Deployment controller has set a revision."""
    return values.parse_replicas(annotations.get(REVISION)) or 0


def suspended_gitops(annotations: Annotations) -> frozenset[str]:
    """Return the keys of the annotations set by an update to make Flux ignore the object."""
    return frozenset(annotations.get(SUSPENDED_GITOPS, "")[:values.MAX_TEXT_LENGTH].split(","))


def is_frozen(annotations: Annotations) -> bool:
    """Return whether the autoscaler has the annotation of a freeze, valid or invalid."""
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
    """Return the name of the new controller of an interrupted `kubectl rolling-update`, or ""."""
    name = annotations.get(KUBECTL_NEXT, "")
    return name if is_name(name) else ""


def kubectl_source(annotations: Annotations) -> tuple[str, str]:
    """Return name and uid of the old controller of `kubectl rolling-update`, each "" if missing."""
    name, _colon, uid = annotations.get(KUBECTL_SOURCE, "").partition(":")
    return name, uid


def kubectl_original(annotations: Annotations) -> int | None:
    """Return the replicas of the old controller at the start of `kubectl rolling-update`."""
    return values.parse_replicas(annotations.get(KUBECTL_ORIGINAL))


def invalid_keys(annotations: Annotations) -> list[str]:
    """Return the keys of the annotations with invalid values."""
    readers: dict[str, t.Callable[[Annotations], t.Any]] = {
        DESIRED: desired, PARTNER: partner, ORIGINAL: original, PAUSED: paused, TAKEOVER: takeover,
        LAST_ROLLOUT: last_rollout}
    return [key for key, read in readers.items()
            if key in annotations and read(annotations) in (None, {})]


def holder(annotations: t.Mapping[str, t.Any]) -> str:
    """Return the processes that hold a Lease, separated by spaces, or ""."""
    return fields.text(annotations, HOLDER)


def checksums(template: Json) -> dict[str, str]:
    """Return the checksums in a pod template; {} if missing or invalid."""
    annotations = fields.mapping(template, "metadata", "annotations")
    stored = values.json_object(fields.text(annotations, CHECKSUMS)) or {}
    return stored if values.is_mapping_to_texts(stored) else {}


def stored_revision(item: Json) -> Revision | None:
    """Return the revision in a ControllerRevision created by a task; None if invalid."""
    template = values.json_object(fields.text(item.get("data"), "template"))
    number = item.get("revision")
    if not template or not values.is_template(template) or not fields.is_size(number):
        return None
    record = last_rollout(fields.mapping(item, "metadata", "annotations"))
    return Revision(number, template, fields.text(record, "time"),
                    fields.text(record, "who"), item["metadata"]["name"], owner_uid(item))


def server_revision(item: Json) -> Revision | None:
    """Return the revision in a ControllerRevision created by the controller manager, or None."""
    template = dict(fields.mapping(item, "data", "spec", "template"))
    template.pop("$patch", None)
    metadata, number = item["metadata"], item.get("revision")
    if not values.is_template(template) or not fields.is_size(number):
        return None
    name, creation = metadata["name"], fields.text(metadata, "creationTimestamp")
    # Only the number of a ControllerRevision can change, so a later entry in managedFields means a
    # new number. The texts are ordered like times, since all are in UTC, to the second.
    is_renumbered = any(fields.text(manager, "time") > creation
                        for manager in fields.objects(metadata, "managedFields"))
    return Revision(number, template, creation, "", name, owner_uid(item),
                    pod_revision(fields.mapping(metadata, "labels")) or name, is_renumbered)


def owner_uid(item: Json) -> str:
    """Return the uid of the object's controller, or ""."""
    owners = fields.objects(fields.mapping(item, "metadata"), "ownerReferences")
    return next((fields.text(owner, "uid") for owner in owners if owner.get("controller")), "")


def pod_revision(labels: t.Mapping[str, t.Any]) -> str:
    """Return the value of the label POD_REVISION; "" for a missing label."""
    return fields.text(labels, POD_REVISION)


def template_generation(entries: t.Mapping[str, t.Any]) -> str:
    """Return the template's generation, from labels of a pod or annotations of a DaemonSet."""
    return fields.text(entries, POD_GENERATION) or fields.text(entries, TEMPLATE_GENERATION)


def serialize_revision(revision: Revision, owner_uid: str) -> tuple[Json, Json]:
    """Return the fields metadata and data of the ControllerRevision that stores a revision."""
    record = {"to": images_of(revision.template), "time": revision.time, "who": revision.who}
    metadata = {"labels": {HISTORY: owner_uid}, "annotations": {LAST_ROLLOUT: canonical(record)}}
    return metadata, {"template": values.go_json(revision.template)}


def is_paused_for_migration(annotations: Annotations) -> bool:
    return annotations.get(PAUSED_FOR_MIGRATION) == "true"


def rollout_phase(annotations: Annotations) -> str:
    return annotations.get(ROLLOUT_PHASE, "")


def stored_controller(item: Json) -> StoredController | None:
    """Return the controller stored in the ControllerRevision of a migration; None if invalid."""
    data = fields.mapping(item, "data")
    metadata, spec = (fields.mapping(data, "manifest", part) for part in ("metadata", "spec"))
    template = fields.mapping(spec, "template")
    containers = fields.values(fields.mapping(template, "spec"), "containers")
    is_valid = (data.keys() == {"hash", "uid", "manifest"}
                and bool(data["uid"]) and values.is_text(data["uid"])
                and isinstance(data["hash"], str) and is_label_value(data["hash"])
                and is_name(fields.text(metadata, "name"))
                and values.is_mapping_to_texts(metadata.get("labels"))
                and values.is_mapping_to_texts(metadata.get("annotations"))
                and bool(spec.get("selector")) and values.is_mapping_to_texts(spec["selector"])
                and fields.is_size(spec.get("replicas"))
                and fields.is_size(spec.get("minReadySeconds"))
                and values.is_mapping_to_texts(fields.mapping(template, "metadata", "labels"))
                and bool(containers) and all(fields.text(entry, "name") for entry in containers))
    return t.cast(StoredController, data) if is_valid else None  # checked above, field by field


#: The fields common to the records of all flows, with their type checks.
_RECORD_CHECKS: dict[str, t.Callable[[t.Any], bool]] = {
    "outcome": values.is_text, "from": values.are_images, "to": values.are_images,
    "time": values.is_text, "who": values.is_text, "request": values.is_text}

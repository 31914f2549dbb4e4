# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All annotations and labels read or written by the collection, with their parsers.

Users with annotate permission may write any text into the annotations. For an invalid text, most
parsers return None or an empty value. The flows decide whether to trust a valid annotation.
"""

from __future__ import annotations

import dataclasses
import typing as t

from . import annotation_values as values
from . import fields
from .fields import Json
from .identity import canonical, is_label_value, is_name
from .settings import has_only_valid_settings
from .soaks import Soak
from .template import images_of

# The primary is the controller whose name the user gives. The pods of the successor replace the
# pods of the primary.

#: Label that distinguishes the pods of primary and successor.
DEPLOYMENT_LABEL = "kubernetes.io/deployment"
#: Replicas at the end of the update. The shrinking controller has "0".
DESIRED = "kubernetes.io/desired-replicas"
PARTNER = "kubernetes.io/update-partner"
PARTNER_UID = "baton.kubernetes/partner-uid"
#: Replicas of the primary at the start of the update. Both controllers have this annotation,
#: because one of them may be deleted.
ORIGINAL = "baton.kubernetes/original-replicas"
#: Hash of the successor's template as the API server stores the template, with default values.
SUCCESSOR_HASH = "baton.kubernetes/next-spec"
#: Number of new pods at the pause.
PAUSED = "baton.kubernetes/paused"
#: See soaks.py.
SOAK = "baton.kubernetes/soak"
#: On a HorizontalPodAutoscaler: the fields before the update, as JSON with the fields of Frozen.
FROZEN = "baton.kubernetes/frozen"
#: Keys of the annotations by which the update has suspended Flux.
SUSPENDED_GITOPS = "baton.kubernetes/suspended-gitops"
#: The data to finish a handover, as JSON with the fields of Takeover.
TAKEOVER = "baton.kubernetes/takeover"
#: The record of an update, such as
#: {"outcome": "updated", "from": {"web": "shop:1"}, "to": {"web": "shop:2"}, ...}.
LAST_ROLLOUT = "baton.kubernetes/last-rollout"
#: See traffic/record.py.
TRAFFIC_ROUTES = "baton.kubernetes/traffic-routes"
#: On the pod template, for `state: restarted`.
RESTART = "baton.kubernetes/restart"
#: On the pod template: checksums of ConfigMaps and Secrets (roll_on).
CHECKSUMS = "baton.kubernetes/checksums"
#: Label on a ControllerRevision: the uid of the controller.
HISTORY = "baton.kubernetes/history-of"
#: Label on the ControllerRevision of a migration: the uid of the ReplicationController.
MIGRATION = "baton.kubernetes/migration-of"
#: Label set by the Deployment controller.
HASH_LABEL = "pod-template-hash"
#: Label on pods: the name of the ControllerRevision (StatefulSet), or a template hash (DaemonSet).
POD_REVISION = "controller-revision-hash"
#: Deprecated label on the pods of a DaemonSet. The DaemonSet controller still counts a pod with the
#: current generation as updated, even an old pod of a recreated DaemonSet.
POD_GENERATION = "pod-template-generation"
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
#: Label set by the StatefulSet controller on its ControllerRevisions.
SERVER_HISTORY = "controller.kubernetes.io/hash"
REVISION = "deployment.kubernetes.io/revision"
#: Earlier revision numbers of a ReplicaSet. The Deployment controller copies neither this
#: annotation nor REVISION from the Deployment to the ReplicaSet.
FORMER_REVISIONS = "deployment.kubernetes.io/revision-history"
#: On a ReplicaSet: spec.replicas of the Deployment when the ReplicaSet was last scaled.
SERVER_DESIRED = "deployment.kubernetes.io/desired-replicas"
#: "true" on a DeploymentConfig that a migration has paused, and that a rollback resumes.
PAUSED_FOR_MIGRATION = "baton.kubernetes/paused-for-migration"
#: On a Lease: the processes of the holders.
HOLDER = "baton.kubernetes/holder"

#: Annotations that the last step of the update removes.
UPDATE_ANNOTATIONS = (DESIRED, PARTNER, PARTNER_UID, ORIGINAL, SUCCESSOR_HASH, PAUSED, TAKEOVER)
#: Annotations that stay with one controller.
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

# Annotations of an interrupted `kubectl rolling-update`.

KUBECTL_NEXT = "kubectl.kubernetes.io/next-controller-id"
KUBECTL_SOURCE = "kubectl.kubernetes.io/update-source-id"
KUBECTL_ORIGINAL = "kubectl.kubernetes.io/original-replicas"

#: The API's limit for all keys and values together, in bytes.
MAX_ANNOTATIONS_SIZE = 256 * 1024
MAX_UID_LENGTH = 128

Annotations: t.TypeAlias = "t.Mapping[str, str]"

#: The data to finish a handover. `next` and `uid` identify the successor; `label` is a label key;
#: `request` and `template` are hashes.
Takeover = t.TypedDict("Takeover", {
    "next": str, "uid": str, "label": str, "replicas": int, "from": dict[str, str], "request": str,
    "template": str, "priorityClassName": "str | None"})


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The record of an update in which the controller manager replaces the pods.

    Any client may write a record: rollout() checks types, and each flow's observed.py the rest.
    """

    UPDATING: t.ClassVar[str] = "updating"
    ROLLING_BACK: t.ClassVar[str] = "rolling back"

    outcome: str  # UPDATING or ROLLING_BACK
    before: dict[str, str]  # images by container
    after: dict[str, str]  # images by container
    #: When the update began or was last reversed, in RFC 3339.
    time: str
    #: The name of the ReplicaSet or ControllerRevision with the previous template, or "". Key: set.
    previous_name: str
    #: The highest revision number at the start of the update, or 0.
    revision: int
    #: Previous values of the fields of spec that the update changes, except the template.
    original: Json
    #: Values of these fields during the update. A pause of a Deployment adds spec.paused (true).
    overrides: Json
    request: str  # hash
    #: Hash of the template that the API server stores, or "" until a task has read this template.
    template: str = ""
    to_revision: int | None = None
    #: Number of new pods at the pause.
    paused: int | None = None
    #: A time whose change wakes the DaemonSet controller. Nothing reads the value.
    woken: str = ""
    #: minReadySeconds before the update ("from") and at its end ("to"), or None if equal.
    min_ready_seconds: Json | None = None

    @property
    def is_rolling_back(self) -> bool:
        return self.outcome == self.ROLLING_BACK

    @property
    def text(self) -> str:
        """Return the value of the annotation."""
        record = {"outcome": self.outcome, "from": self.before, "to": self.after, "time": self.time,
                  "set": self.previous_name, "revision": self.revision, "original": self.original,
                  "paced": self.overrides, "request": self.request, "template": self.template,
                  "to_revision": self.to_revision, "paused": self.paused, "woken": self.woken,
                  "min_ready_seconds": self.min_ready_seconds}
        return canonical({key: value for key, value in record.items() if value not in (None, "")})


class Frozen(t.TypedDict):
    """The fields of a HorizontalPodAutoscaler before the freeze."""

    behavior: Json | None
    minReplicas: int | None


class StoredController(t.TypedDict):
    """A ReplicationController, stored in a ControllerRevision during a migration."""

    hash: str  # as in HASH_LABEL
    uid: str
    manifest: Json  # metadata and spec
    deployment: Json  # see deployment_fields(); only stored if a DeploymentConfig is migrated


@dataclasses.dataclass(frozen=True)
class Revision:
    """A current or previous template in the history of a controller."""

    number: int
    template: Json  # without the deployment label
    #: When the template was first rolled out, in RFC 3339.
    time: str = ""
    #: The user who first rolled out the template.
    who: str = ""
    #: The name of the ReplicaSet or ControllerRevision, or "" if neither stores the template.
    name: str = ""
    owner_uid: str = ""
    #: The label POD_REVISION on the pods.
    pod_revision: str = ""
    #: Whether the ControllerRevision has changed since the creation, usually to a new number.
    is_renumbered: bool = False


def partner(annotations: Annotations) -> str | None:
    """Return the name of the controller's partner in the update, or None."""
    name = annotations.get(PARTNER)
    return name if name and is_name(name) else None


def partner_uid(annotations: Annotations) -> str | None:
    """Return the uid of the controller's partner, None, or "not readable" for an invalid uid."""
    uid = annotations.get(PARTNER_UID)
    is_valid = uid is None or (len(uid) <= MAX_UID_LENGTH and uid.isprintable())
    return uid if is_valid else "not readable"


def desired_replicas(annotations: Annotations) -> int | None:
    return values.parse_int32(annotations.get(DESIRED))


def original_replicas(annotations: Annotations) -> int | None:
    return values.parse_int32(annotations.get(ORIGINAL))


def new_pods_at_pause(annotations: Annotations) -> int | None:
    return values.parse_int32(annotations.get(PAUSED))


def soak(annotations: Annotations) -> Soak | None:
    return Soak.read(values.json_object(annotations.get(SOAK)))


def successor_hash(annotations: Annotations) -> str | None:
    return annotations.get(SUCCESSOR_HASH)


def is_updating(annotations: Annotations) -> bool:
    return any(key in annotations for key in UPDATE_ANNOTATIONS)


def has_takeover(annotations: Annotations) -> bool:
    """Return whether the object has the annotation TAKEOVER, valid or invalid."""
    return TAKEOVER in annotations


def takeover(annotations: Annotations) -> Takeover | None:
    """Return the data to finish a handover, or None."""
    stored = {"priorityClassName": None, **(values.json_object(annotations.get(TAKEOVER)) or {})}
    text_fields = ("next", "uid", "label", "request", "template")
    priority_class = stored["priorityClassName"]
    is_valid = (all(isinstance(stored.get(field), str) for field in text_fields)
                and is_name(stored["next"]) and bool(values.LABEL_KEY.fullmatch(stored["label"]))
                and values.is_image_mapping(stored.get("from"))
                and fields.is_count(stored.get("replicas"))
                and (priority_class is None
                     or (isinstance(priority_class, str) and is_name(priority_class))))
    return t.cast(Takeover, stored) if is_valid else None


def last_rollout(annotations: Annotations) -> Json:
    """Return the record of the last update, without invalid values of fields in _RECORD_CHECKS."""
    stored = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    record = {field: value for field, value in stored.items()
              if field not in _RECORD_CHECKS or _RECORD_CHECKS[field](value)}
    return fields.map_texts(record, fields.display_text)


def rollout(annotations: Annotations) -> Rollout | None:
    """Return the valid record of the update in progress, or None."""
    record = values.json_object(annotations.get(LAST_ROLLOUT)) or {}
    original, overrides = fields.mapping(record, "original"), fields.mapping(record, "paced")
    is_valid = (record.get("outcome") in (Rollout.UPDATING, Rollout.ROLLING_BACK)
                and all(values.is_image_mapping(record.get(field)) for field in ("from", "to"))
                and all(values.is_short_string(record.get(field, ""))
                        for field in ("time", "set", "request", "template"))
                and all(record.get(field) is None or fields.is_count(record[field])
                        for field in ("to_revision", "paused"))
                and fields.is_count(record.get("revision"))
                and values.is_change_of_number(record.get("min_ready_seconds"))
                and has_only_valid_settings(original) and has_only_valid_settings(overrides)
                and original.keys() == overrides.keys() - {"paused"})
    if not is_valid or not (record.get("set", "") == "" or is_name(record["set"])):
        return None
    time = fields.display_text(record.get("time", ""))
    return Rollout(record["outcome"], record["from"], record["to"], time, record.get("set", ""),
                   record["revision"], original, overrides, record.get("request", ""),
                   record.get("template", ""), record.get("to_revision"), record.get("paused"),
                   min_ready_seconds=record.get("min_ready_seconds"))


def former_revisions(annotations: Annotations) -> frozenset[int]:
    """Return the earlier revisions of a ReplicaSet."""
    texts = annotations.get(FORMER_REVISIONS, "")[:values.MAX_TEXT_LENGTH].split(",")
    return frozenset(filter(None, (values.parse_int32(text.strip()) for text in texts)))


def revision(annotations: Annotations) -> int:
    """Return the revision of a ReplicaSet, or 0."""
    return values.parse_int32(annotations.get(REVISION)) or 0


def server_desired_replicas(annotations: Annotations) -> int | None:
    """Return the value of SERVER_DESIRED on a ReplicaSet, or None."""
    return values.parse_int32(annotations.get(SERVER_DESIRED))


def suspended_gitops(annotations: Annotations) -> frozenset[str]:
    """Return the keys of the annotations by which the update has suspended Flux; {""} for none."""
    return frozenset(annotations.get(SUSPENDED_GITOPS, "")[:values.MAX_TEXT_LENGTH].split(","))


def is_frozen(annotations: Annotations) -> bool:
    """Return whether the autoscaler has the annotation FROZEN, valid or invalid.

    Does not test whether the autoscaler is disabled (see is_frozen() in flows/autoscaler.py).
    """
    return FROZEN in annotations


def frozen(annotations: Annotations) -> Frozen | None:
    """Return the fields of an autoscaler before the freeze, or None."""
    stored = values.json_object(annotations.get(FROZEN)) or {}
    if not {"behavior", "minReplicas"} <= stored.keys():
        return None
    behavior, min_replicas = stored["behavior"], stored["minReplicas"]
    is_valid = ((behavior is None or isinstance(behavior, dict))
                and (min_replicas is None or fields.is_count(min_replicas)))
    return {"behavior": behavior, "minReplicas": min_replicas} if is_valid else None


def kubectl_next(annotations: Annotations) -> str:
    """Return the name of the new controller of `kubectl rolling-update`, or ""."""
    name = annotations.get(KUBECTL_NEXT, "")
    return name if is_name(name) else ""


def kubectl_source(annotations: Annotations) -> tuple[str, str]:
    """Return name and uid of the old controller of `kubectl rolling-update`."""
    name, _colon, uid = annotations.get(KUBECTL_SOURCE, "").partition(":")
    return name, uid


def kubectl_original(annotations: Annotations) -> int | None:
    """Return the original size of the old controller of `kubectl rolling-update`."""
    return values.parse_int32(annotations.get(KUBECTL_ORIGINAL))


def invalid_keys(annotations: Annotations) -> list[str]:
    """Return the keys of invalid annotations of a client-driven update."""
    readers: dict[str, t.Callable[[Annotations], t.Any]] = {
        DESIRED: desired_replicas, PARTNER: partner, ORIGINAL: original_replicas,
        PAUSED: new_pods_at_pause, TAKEOVER: takeover, LAST_ROLLOUT: last_rollout}
    return [key for key, read in readers.items()
            if key in annotations and read(annotations) in (None, {})]


def holders(annotations: t.Mapping[str, t.Any]) -> str:
    """Return the holders of a Lease, separated by spaces."""
    return fields.text(annotations, HOLDER)


def checksums(template: Json) -> dict[str, str]:
    """Return the checksums in a pod template."""
    annotations = fields.mapping(template, "metadata", "annotations")
    stored = values.json_object(fields.text(annotations, CHECKSUMS)) or {}
    return stored if values.is_string_mapping(stored) else {}


def stored_revision(item: Json) -> Revision | None:
    """Return the revision in a ControllerRevision created by a task."""
    template = values.json_object(fields.text(item.get("data"), "template"))
    number = item.get("revision")
    if not template or not values.is_pod_template(template) or not fields.is_count(number):
        return None
    record = last_rollout(fields.mapping(item, "metadata", "annotations"))
    return Revision(number, template, fields.text(record, "time"),
                    fields.text(record, "who"), item["metadata"]["name"], owner_uid(item))


def server_revision(item: Json) -> Revision | None:
    """Return the revision in a ControllerRevision created by the controller manager."""
    template = dict(fields.mapping(item, "data", "spec", "template"))
    template.pop("$patch", None)
    metadata, number = item["metadata"], item.get("revision")
    if not values.is_pod_template(template) or not fields.is_count(number):
        return None
    name, creation_time = metadata["name"], fields.text(metadata, "creationTimestamp")
    # The data cannot change. A later change means a new number or, rarely, an adoption.
    is_renumbered = any(fields.text(entry, "time") > creation_time
                        for entry in fields.objects(metadata, "managedFields"))
    return Revision(number, template, creation_time, "", name, owner_uid(item),
                    pod_revision(fields.mapping(metadata, "labels")) or name, is_renumbered)


def owner_uid(item: Json) -> str:
    """Return the uid of the object's controller, or ""."""
    owners = fields.objects(fields.mapping(item, "metadata"), "ownerReferences")
    return next((fields.text(owner, "uid") for owner in owners if owner.get("controller")), "")


def pod_revision(labels: t.Mapping[str, t.Any]) -> str:
    """Return the value of the label POD_REVISION, or ""."""
    return fields.text(labels, POD_REVISION)


def template_generation(entries: t.Mapping[str, t.Any]) -> str:
    """Return the template's generation, from labels of a pod or annotations of a DaemonSet."""
    return fields.text(entries, POD_GENERATION) or fields.text(entries, TEMPLATE_GENERATION)


def serialize_revision(revision: Revision, owner_uid: str) -> tuple[Json, Json]:
    """Return the metadata (labels and annotations) and data of a ControllerRevision."""
    record = {"to": images_of(revision.template), "time": revision.time, "who": revision.who}
    metadata = {"labels": {HISTORY: owner_uid}, "annotations": {LAST_ROLLOUT: canonical(record)}}
    return metadata, {"template": values.go_json(revision.template)}


def is_paused_for_migration(annotations: Annotations) -> bool:
    return annotations.get(PAUSED_FOR_MIGRATION) == "true"


def rollout_phase(annotations: Annotations) -> str:
    return annotations.get(ROLLOUT_PHASE, "")


def stored_controller(item: Json) -> StoredController | None:
    """Return the controller stored in the ControllerRevision of a migration."""
    data = fields.mapping(item, "data")
    metadata, spec = (fields.mapping(data, "manifest", part) for part in ("metadata", "spec"))
    template = fields.mapping(spec, "template")
    containers = fields.values(fields.mapping(template, "spec"), "containers")
    is_valid = (data.keys() - {"deployment"} == {"hash", "uid", "manifest"}
                and bool(data["uid"]) and values.is_short_string(data["uid"])
                and isinstance(data["hash"], str) and is_label_value(data["hash"])
                and is_name(fields.text(metadata, "name"))
                and values.is_string_mapping(metadata.get("labels"))
                and values.is_string_mapping(metadata.get("annotations"))
                and bool(spec.get("selector")) and values.is_string_mapping(spec["selector"])
                and fields.is_count(spec.get("replicas"))
                and fields.is_count(spec.get("minReadySeconds"))
                and values.is_string_mapping(fields.mapping(template, "metadata", "labels"))
                and bool(containers) and all(fields.text(entry, "name") for entry in containers)
                and not fields.nests_too_deeply(data))
    return t.cast(StoredController, data) if is_valid else None


#: Checks of the fields that the records of all flows have.
_RECORD_CHECKS: dict[str, t.Callable[[t.Any], bool]] = {
    "outcome": values.is_short_string, "from": values.is_image_mapping,
    "to": values.is_image_mapping, "time": values.is_short_string,
    "who": values.is_short_string, "request": values.is_short_string,
    "to_revision": fields.is_count}

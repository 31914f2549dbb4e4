# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is kept on objects: the one place that knows the keys of annotations and labels, and reads what they hold. Pure.

Reading raises nothing: what is missing, or cannot be read, is None; of a record, which has no fixed fields, it is {}.
What may be believed is not decided here. Anybody may have written it: a text of any length, JSON of any depth.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing as t

from . import fields
from .fields import Json
from .identity import canonical, is_label_value, is_name
from .settings import are_settings
from .soaks import Soak
from .template import images_of

#: Label that tells the pods of the two controllers apart: on metadata, selector, template and pods.
DEPLOYMENT_LABEL = "kubernetes.io/deployment"
#: On both: how many replicas this one has to reach; the one that shrinks has "0". Tells the direction after a crash.
DESIRED = "kubernetes.io/desired-replicas"
#: On both: the other's name. Finds the successor without a name given.
PARTNER = "kubernetes.io/update-partner"
#: On both: the other's uid. A partner that was deleted and created again is refused.
PARTNER_UID = "baton.kubernetes/partner-uid"
#: On both: the size when the update began, so that losing either controller does not lose the size.
ORIGINAL = "baton.kubernetes/original-replicas"
#: On the user's controller: a hash of the successor's pod spec as the API server stored it, which admission may have changed.
SUCCESSOR_SPEC = "baton.kubernetes/next-spec"
#: On the user's controller: with how many new pods the update has been paused (pause_at).
PAUSED = "baton.kubernetes/paused"
#: On the user's controller: since when the new pods are watched (soak), and with how many of them that has been long enough.
SOAK = "baton.kubernetes/soak"
#: On a HorizontalPodAutoscaler that does nothing while the update lasts: JSON with what it had before.
FROZEN = "baton.kubernetes/frozen"
#: On the user's controller, then on both: JSON that is enough to finish a handover from either of them.
TAKEOVER = "baton.kubernetes/takeover"
#: On the one that grows, then on the survivor: JSON with outcome, from, to and time.
LAST_ROLLOUT = "baton.kubernetes/last-rollout"
#: On the pod template: makes the template of `state: restarted` differ from the one before.
RESTART = "baton.kubernetes/restart"
#: Label on a ControllerRevision that keeps a template which a controller has had: that one's uid. Finds them.
HISTORY = "baton.kubernetes/history-of"
#: Label on the ControllerRevision of a migration in progress: the uid of the ReplicationController.
MIGRATION = "baton.kubernetes/migration-of"
#: Label that the server gives the pods of a Deployment, by their template.
HASH_LABEL = "pod-template-hash"
#: Label that the server gives the pods of a StatefulSet, and of a DaemonSet: which ControllerRevision has their template. With the
#: first it is the name of that one, with the second a hash, which is a label of the ControllerRevision itself as well.
POD_REVISION = "controller-revision-hash"
#: Label of the pods of a DaemonSet, and its own annotation: the number of the template. Both are deprecated; the server still takes
#: a pod with the present number for a new one. A DaemonSet that is created again counts from 1: older pods may have that number.
POD_GENERATION = "pod-template-generation"
TEMPLATE_GENERATION = "deprecated.daemonset.template.generation"
#: Label on the ControllerRevisions that the server keeps itself: a hash of what each holds.
SERVER_HISTORY = "controller.kubernetes.io/hash"
#: On a Deployment, and on its ReplicaSets: the number of the template, counted by the server.
REVISION = "deployment.kubernetes.io/revision"
#: On a ReplicaSet of a Deployment: the numbers that its template had before it came back. The server writes both on ReplicaSets,
#: and does not copy them from the Deployment's annotations, as it does all others.
FORMER_REVISIONS = "deployment.kubernetes.io/revision-history"
#: On a DeploymentConfig: its migration has paused it, and to roll that back is to let it go on.
HELD = "baton.kubernetes/paused-for-migration"
#: On the Lease: the process that holds it, for others on the same machine.
HOLDER = "baton.kubernetes/holder"

#: Gone when an update has ended.
MARKS = (DESIRED, PARTNER, PARTNER_UID, ORIGINAL, SUCCESSOR_SPEC, PAUSED, TAKEOVER)
#: Never copied from one controller to the other.
NOT_COPIED = (*MARKS, SOAK, LAST_ROLLOUT, HELD, "kubectl.kubernetes.io/last-applied-configuration")

#: What OpenShift writes on the ReplicationController of a rollout, and on its pods: of which DeploymentConfig it is, which one, and
#: how far it has got. On the pods there is a label with the ReplicationController's name, too.
ROLLOUT_OF = "openshift.io/deployment-config.name"
ROLLOUT_NUMBER = "openshift.io/deployment-config.latest-version"
ROLLOUT_PHASE = "openshift.io/deployment.phase"
ROLLOUT_NAME = "openshift.io/deployment.name"
ROLLOUT_LABEL = "deployment"

#: What `kubectl rolling-update` (before 1.18) leaves on the old and on the new controller when it is interrupted.
KUBECTL_NEXT = "kubectl.kubernetes.io/next-controller-id"
KUBECTL_SOURCE = "kubectl.kubernetes.io/update-source-id"
KUBECTL_ORIGINAL = "kubectl.kubernetes.io/original-replicas"
#: Bytes of all annotations of an object, keys and values.
ANNOTATIONS_LIMIT = 256 * 1024

#: Characters of a uid: more than a server gives it.
UID_LIMIT = 128
#: Characters of a text in a record, and entries of a mapping.
TEXT_LIMIT, ENTRIES_LIMIT = 4096, 100

Annotations: t.TypeAlias = "t.Mapping[str, str]"

#: The mark of a handover: who the successor was, how many pods there are, what its template asks for when it is open.
Takeover = t.TypedDict("Takeover", {
    "next": str, "uid": str, "label": str, "replicas": int, "from": dict[str, str], "request": str, "template": str,
    "priorityClassName": "str | None"})


@dataclasses.dataclass(frozen=True)
class Rollout:
    """The record of an update in progress that the server's own controller carries out.

    It proves nothing: find.py of its flow says what is believed of it.
    """

    UPDATING: t.ClassVar[str] = "updating"
    ROLLING_BACK: t.ClassVar[str] = "rolling back"

    #: One of these two.
    outcome: str
    before: dict[str, str]
    after: dict[str, str]
    #: When it began or turned round, in RFC 3339.
    time: str
    #: What had the template of before (a ReplicaSet, a ControllerRevision), "" where it is not known; and the number of the newest
    #: one then, 0 where nothing depends on that.
    set: str
    revision: int
    #: The fields of spec that it has changed, beside the template: what they were, and what it has set them to.
    original: Json
    paced: Json
    #: A hash of the request.
    request: str
    #: A hash of the template as the server has stored it; "" before the first look at that.
    template: str = ""
    to_revision: int | None = None
    #: With how many new pods it has been paused.
    paused: int | None = None

    @property
    def is_back(self) -> bool:
        return self.outcome == self.ROLLING_BACK

    @property
    def text(self) -> str:
        """What is written."""
        record = {"outcome": self.outcome, "from": self.before, "to": self.after, "time": self.time, "set": self.set,
                  "revision": self.revision, "original": self.original, "paced": self.paced, "request": self.request,
                  "template": self.template, "to_revision": self.to_revision, "paused": self.paused}
        return canonical({key: value for key, value in record.items() if value not in (None, "")})


class Frozen(t.TypedDict):
    """What an autoscaler had before it was frozen."""

    behavior: Json | None
    minReplicas: int | None


class Kept(t.TypedDict):
    """What a ReplicationController was before its migration; manifest has its metadata and spec."""

    #: Of its template: the value of the label that its pods get, and so a part of a name.
    hash: str
    uid: str
    manifest: Json


@dataclasses.dataclass(frozen=True)
class Revision:
    """A template that a controller has had."""

    number: int
    #: Without the label that tells its pods from others.
    template: Json
    #: When it was first there, in RFC 3339.
    time: str = ""
    #: Who has updated to it, as far as that is known.
    who: str = ""
    #: The ControllerRevision that keeps it, and the uid of that one's controller; "" for a template that is in use.
    name: str = ""
    owner_uid: str = ""
    #: What the label POD_REVISION of its pods is, where the server has made them from that ControllerRevision.
    pods: str = ""
    #: The server has given its ControllerRevision another number since it was made, as it does when a template comes back.
    is_renumbered: bool = False


def partner(annotations: Annotations) -> str | None:
    """The other controller's name; None also where somebody has written something that is no name."""
    name = annotations.get(PARTNER)
    return name if name and is_name(name) else None


def partner_uid(annotations: Annotations) -> str | None:
    """The other controller's uid; for a text that can be none, one that nothing has."""
    uid = annotations.get(PARTNER_UID)
    return uid if uid is None or (len(uid) <= UID_LIMIT and uid.isprintable()) else "not readable"


def desired(annotations: Annotations) -> int | None:
    return _count(annotations.get(DESIRED))


def original(annotations: Annotations) -> int | None:
    return _count(annotations.get(ORIGINAL))


def paused(annotations: Annotations) -> int | None:
    return _count(annotations.get(PAUSED))


def soak(annotations: Annotations) -> Soak | None:
    return Soak.read(_mapping(annotations.get(SOAK)))


def successor_spec(annotations: Annotations) -> str | None:
    return annotations.get(SUCCESSOR_SPEC)


def is_marked(annotations: Annotations) -> bool:
    """Whether any mark of an update is there."""
    return any(mark in annotations for mark in MARKS)


def has_takeover(annotations: Annotations) -> bool:
    """Whether the mark of a handover is there, readable or not."""
    return TAKEOVER in annotations


def takeover(annotations: Annotations) -> Takeover | None:
    """The mark of the handover in progress; None where there is none, or any part of it is not what it should be."""
    mark = {"priorityClassName": None, **(_mapping(annotations.get(TAKEOVER)) or {})}
    is_text = all(isinstance(mark.get(field), str) for field in ("next", "uid", "label", "request", "template"))
    priority = mark["priorityClassName"]
    is_whole = (is_text and is_name(mark["next"]) and bool(_LABEL_KEY.fullmatch(mark["label"]))
                and _is_images(mark.get("from")) and fields.is_size(mark.get("replicas"))
                and (priority is None or (isinstance(priority, str) and is_name(priority))))
    return t.cast(Takeover, mark) if is_whole else None


def last_rollout(annotations: Annotations) -> Json:
    """Outcome, from, to and time of the last update, and what its flow has added, or {}; without what is of another type."""
    found = _mapping(annotations.get(LAST_ROLLOUT)) or {}
    record = {field: value for field, value in found.items() if field not in _RECORD or _RECORD[field](value)}
    return fields.each_text(record, fields.told)


def rollout(annotations: Annotations) -> Rollout | None:
    """The record of such an update in progress; None where there is none, or any part of it is not what it should be."""
    record = _mapping(annotations.get(LAST_ROLLOUT)) or {}
    original, paced = fields.mapping(record, "original"), fields.mapping(record, "paced")
    is_whole = (record.get("outcome") in (Rollout.UPDATING, Rollout.ROLLING_BACK)
                and all(_is_images(record.get(field)) for field in ("from", "to"))
                and all(_is_text(record.get(field, "")) for field in ("time", "set", "request", "template"))
                and all(record.get(field) is None or fields.is_size(record[field]) for field in ("to_revision", "paused"))
                and fields.is_size(record.get("revision")) and are_settings(original) and are_settings(paced)
                and original.keys() == paced.keys() - {"paused"})
    if not is_whole or not (record.get("set", "") == "" or is_name(record["set"])):
        return None
    return Rollout(record["outcome"], record["from"], record["to"], record.get("time", ""), record.get("set", ""),
                   record["revision"], original, paced, record.get("request", ""),
                   record.get("template", ""), record.get("to_revision"), record.get("paused"))


def former_revisions(annotations: Annotations) -> frozenset[int]:
    """The numbers that the server had given to a ReplicaSet's template before its present one."""
    numbers = (_count(text.strip()) for text in annotations.get(FORMER_REVISIONS, "")[:TEXT_LIMIT].split(","))
    return frozenset(filter(None, numbers))


def revision(annotations: Annotations) -> int:
    """The number that the server has given to a template; 0 where it has not yet."""
    return _count(annotations.get(REVISION)) or 0


def is_frozen(annotations: Annotations) -> bool:
    """Whether an autoscaler is frozen, readable or not."""
    return FROZEN in annotations


def frozen(annotations: Annotations) -> Frozen | None:
    """What a frozen autoscaler had before."""
    found = _mapping(annotations.get(FROZEN)) or {}
    if not {"behavior", "minReplicas"} <= found.keys():
        return None
    behavior, least = found["behavior"], found["minReplicas"]
    is_typed = (behavior is None or isinstance(behavior, dict)) and (least is None or fields.is_size(least))
    return {"behavior": behavior, "minReplicas": least} if is_typed else None


def kubectl_next(annotations: Annotations) -> str:
    """The controller that an interrupted `kubectl rolling-update` was moving the pods to, or ""."""
    name = annotations.get(KUBECTL_NEXT, "")
    return name if is_name(name) else ""


def kubectl_source(annotations: Annotations) -> tuple[str, str]:
    """Name and uid of the controller whose pods it was moving; "" where nothing says so."""
    name, _colon, uid = annotations.get(KUBECTL_SOURCE, "").partition(":")
    return name, uid


def kubectl_original(annotations: Annotations) -> int | None:
    """The size when it began."""
    return _count(annotations.get(KUBECTL_ORIGINAL))


def unreadable(annotations: Annotations) -> list[str]:
    """The keys of marks that are there and do not parse."""
    readers: dict[str, t.Callable[[Annotations], t.Any]] = {
        DESIRED: desired, PARTNER: partner, ORIGINAL: original, PAUSED: paused, TAKEOVER: takeover, LAST_ROLLOUT: last_rollout}
    return [key for key, read in readers.items() if key in annotations and read(annotations) in (None, {})]


def holder(annotations: t.Mapping[str, t.Any]) -> str:
    """The process that holds a Lease, as run/lease writes it; "" where no text is."""
    return fields.text(annotations, HOLDER)


def restarted(template: Json, token: str) -> Json:
    """The pod template with the mark of a restart."""
    metadata = template.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), RESTART: token}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def kept_revision(item: Json) -> Revision | None:
    """The template that a ControllerRevision of a history keeps."""
    template, number = _mapping(fields.text(item.get("data"), "template")), item.get("revision")
    if not template or not _is_template(template) or not fields.is_size(number):
        return None
    record = last_rollout(fields.mapping(item, "metadata", "annotations"))
    return Revision(t.cast(int, number), template, fields.text(record, "time"), fields.text(record, "who"),
                    item["metadata"]["name"], owner_uid(item))


def server_revision(item: Json) -> Revision | None:
    """The template that a ControllerRevision of the server's own holds."""
    template, number = dict(fields.mapping(item, "data", "spec", "template")), item.get("revision")
    template.pop("$patch", None)
    if not _is_template(template) or not fields.is_size(number):
        return None
    name, made = item["metadata"]["name"], fields.text(item["metadata"], "creationTimestamp")
    # The number is all of one that can change, and all times are in UTC, to the second.
    is_renumbered = any(fields.text(each, "time") > made for each in fields.objects(item["metadata"], "managedFields"))
    return Revision(t.cast(int, number), template, made, "", name, owner_uid(item),
                    pod_revision(fields.mapping(item, "metadata", "labels")) or name, is_renumbered)


def owner_uid(item: Json) -> str:
    """The uid of the object's controller, or ""."""
    owners = fields.objects(fields.mapping(item, "metadata"), "ownerReferences")
    return next((fields.text(it, "uid") for it in owners if it.get("controller")), "")


def pod_revision(labels: t.Mapping[str, t.Any]) -> str:
    """The ControllerRevision that a pod with these labels was made from, or ""."""
    return fields.text(labels, POD_REVISION)


def template_generation(keys: t.Mapping[str, t.Any]) -> str:
    """Return the number of the template that the labels of a pod, or the annotations of a DaemonSet, have; or ""."""
    return fields.text(keys, POD_GENERATION) or fields.text(keys, TEMPLATE_GENERATION)


def keep_revision(it: Revision, owner_uid: str) -> tuple[Json, Json]:
    """Labels and annotations (as metadata), and the data, of a ControllerRevision that keeps a template in that one's history."""
    record = {"to": images_of(it.template), "time": it.time, "who": it.who}
    metadata = {"labels": {HISTORY: owner_uid}, "annotations": {LAST_ROLLOUT: canonical(record)}}
    return metadata, {"template": _as_text(it.template)}


def is_held(annotations: Annotations) -> bool:
    """Whether a DeploymentConfig was paused by its migration, and not by anybody before."""
    return annotations.get(HELD) == "true"


def rollout_phase(annotations: Annotations) -> str:
    """How far the rollout of a DeploymentConfig has got that a ReplicationController stands for."""
    return annotations.get(ROLLOUT_PHASE, "")


def kept_controller(item: Json) -> Kept | None:
    """What the ControllerRevision of a migration keeps; None where any part of it is not what it should be."""
    data = fields.mapping(item, "data")
    metadata, spec = (fields.mapping(data, "manifest", part) for part in ("metadata", "spec"))
    template = fields.mapping(spec, "template")
    containers = fields.values(fields.mapping(template, "spec"), "containers")
    is_whole = (data.keys() == {"hash", "uid", "manifest"} and bool(data["uid"]) and _is_text(data["uid"])
                and isinstance(data["hash"], str) and is_label_value(data["hash"]) and is_name(fields.text(metadata, "name"))
                and all(_are_texts(metadata.get(field)) for field in ("labels", "annotations"))
                and bool(spec.get("selector")) and _are_texts(spec["selector"])
                and fields.is_size(spec.get("replicas")) and fields.is_size(spec.get("minReadySeconds"))
                and _are_texts(fields.mapping(template, "metadata", "labels"))
                and bool(containers) and all(fields.text(each, "name") for each in containers))
    return t.cast(Kept, data) if is_whole else None


def _mapping(text: str | None) -> Json | None:
    """The mapping that an annotation holds as JSON; None where it holds anything else."""
    try:
        found = json.loads(text or "null")
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _as_text(value: t.Any) -> str:
    """JSON as a text that every encoder of JSON writes in the same bytes: no character of it has more than one spelling."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _is_template(value: Json) -> bool:
    """Whether it may be a pod template: what is read of one is there, and of its type."""
    spec = value.get("spec")
    lists = [spec.get(field) or [] for field in ("containers", "initContainers")] if isinstance(spec, dict) else [[]]
    if not all(isinstance(each, list) for each in lists) or not lists[0]:
        return False
    are_containers = all(isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("image", ""), str)
                         for each in (*lists[0], *lists[-1]))
    metadata = value.get("metadata", {})
    return are_containers and isinstance(metadata, dict) and isinstance(metadata.get("labels") or {}, dict)


def _is_text(value: t.Any) -> bool:
    return isinstance(value, str) and len(value) <= TEXT_LIMIT


def _are_texts(value: t.Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _is_images(value: t.Any) -> bool:
    """Whether it may be images by container name."""
    return (isinstance(value, dict) and len(value) <= ENTRIES_LIMIT
            and all(is_name(name) and _is_text(image) for name, image in value.items()))


_LABEL_KEY = re.compile(r"([a-z0-9][a-z0-9.-]{0,252}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _count(text: str | None) -> int | None:
    """A number of replicas, or None; JSON and the API know none above 2^31 - 1."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**31
    return int(text) if text is not None and is_number else None


#: The fields of a record that every flow has; what else is in it, its flow reads.
_RECORD: dict[str, t.Callable[[t.Any], bool]] = {
    "outcome": _is_text, "from": _is_images, "to": _is_images, "time": _is_text, "who": _is_text, "request": _is_text}

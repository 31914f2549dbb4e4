# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every key that is written on an object, and how the successor gets its name (design sections 3 and 4). Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

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
#: Label that the server gives the pods of a Deployment, by their template.
HASH_LABEL = "pod-template-hash"
#: On a Deployment, and on its ReplicaSets: the number of the template, counted by the server.
REVISION = "deployment.kubernetes.io/revision"
#: On the Lease: the process that holds it, for others on the same machine.
HOLDER = "baton.kubernetes/holder"

#: Gone when an update has ended.
MARKS = (DESIRED, PARTNER, PARTNER_UID, ORIGINAL, SUCCESSOR_SPEC, PAUSED, TAKEOVER)
#: Never copied from one controller to the other.
NOT_COPIED = (*MARKS, LAST_ROLLOUT, "kubectl.kubernetes.io/last-applied-configuration")

#: What `kubectl rolling-update` (before 1.18) leaves on the old and on the new controller when it is interrupted.
KUBECTL_NEXT = "kubectl.kubernetes.io/next-controller-id"
KUBECTL_SOURCE = "kubectl.kubernetes.io/update-source-id"

NAME_LIMIT = 253
#: Bytes of all annotations of an object, keys and values.
ANNOTATIONS_LIMIT = 256 * 1024
LABEL_LIMIT = 63
HASH_LENGTH = 10

Json = dict[str, t.Any]


def canonical(value: t.Any) -> str:
    """JSON with sorted keys and no white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def record(text: str | None) -> Json | None:
    """The mapping that an annotation holds; None where it holds anything else."""
    try:
        found = json.loads(text or "null")
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def as_text(value: t.Any) -> str:
    """JSON as a text that every encoder of JSON writes in the same bytes: no character of it has more than one spelling."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def digest(value: t.Any) -> str:
    """A short hexadecimal hash of any JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:HASH_LENGTH]


def without_label(template: Json, key: str) -> Json:
    """The pod template as the user means it: without the deployment label and without an empty creation time."""
    metadata = {field: value for field, value in template.get("metadata", {}).items() if value is not None}
    labels = {label: value for label, value in (metadata.get("labels") or {}).items() if label != key}
    metadata.pop("labels", None)
    if labels:
        metadata["labels"] = labels
    return {**template, "metadata": metadata}


def with_label(template: Json, key: str, value: str) -> Json:
    """The pod template with the deployment label set."""
    metadata = template.get("metadata") or {}
    return {**template, "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), key: value}}}


def same_template(one: Json, other: Json, key: str) -> bool:
    """Whether two pod templates are equal but for the deployment label."""
    return canonical(without_label(one, key)) == canonical(without_label(other, key))


def label_value(content: t.Any, taken: str | None) -> str:
    """The deployment label's value for a controller with that content; never equal to the value that is taken.

    Content is what the user asks for, without uid, resourceVersion, status, time or size: kubectl hashed those too, so
    that each retry got another name. With equal values nothing would tell the pods of the two controllers apart.
    """
    value = digest(content)
    return f"{value}-{digest(taken)[:5]}" if value == taken else value


def is_label_value(value: str) -> bool:
    """Whether label_value() may have made it."""
    return bool(re.fullmatch(rf"[0-9a-f]{{{HASH_LENGTH}}}(-[0-9a-f]{{5}})?", value))


def successor_name(name: str, value: str) -> str:
    """The name of the controller that carries the new template: the user's name and the label's value."""
    return f"{name[: NAME_LIMIT - len(value) - 1].rstrip('-.')}-{value}"


def lease_name(name: str) -> str:
    """The name of the Lease that a task for a controller of that name holds."""
    lease = f"baton-kubernetes-{name}"
    return lease if len(lease) <= NAME_LIMIT else successor_name(lease, digest(name))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ConfigMaps and Secrets that pods read: references, and checksums of their data. No I/O.

A checksum is stored in the pod template, which more users may read than the Secret. With a plain
hash of a password, these users could test guesses, even with a salt stored next to the hash.
Therefore the checksum is an HMAC with the uid of the Secret as key: the API server chooses the uid
at random, and shows the uid only to users who may read the Secret. A ConfigMap is not confidential:
its checksum depends on the data alone.
"""

from __future__ import annotations

import hashlib
import hmac
import typing as t

from .errors import RolloutError
from .fields import Json, mapping, objects, text
from .identity import canonical, is_name

#: Value of roll_on for all objects that the pod template reads.
AUTO = "auto"
#: Maximum number of objects that a task reads.
MAX_OBJECTS = 100
#: Hexadecimal digits of a checksum.
CHECKSUM_LENGTH = 16
#: Kinds by the words that kubectl accepts for them.
_KINDS = {"configmap": "ConfigMap", "configmaps": "ConfigMap", "cm": "ConfigMap",
          "secret": "Secret", "secrets": "Secret"}
#: The fields in valueFrom of a variable that refer to an object, by the kind of the object.
_VALUE_FROM_FIELDS = {"ConfigMap": "configMapKeyRef", "Secret": "secretKeyRef"}
#: The same for an entry of envFrom.
_ENV_FROM_FIELDS = {"ConfigMap": "configMapRef", "Secret": "secretRef"}
#: The same for a volume, and for a source of a projected volume.
_VOLUME_FIELDS = {"ConfigMap": "configMap", "Secret": "secret"}


class Reference(t.NamedTuple):
    """A ConfigMap or a Secret by kind and name."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


def parse_references(option: str, value: t.Any) -> tuple[Reference | str, ...]:
    """Parse a list with entries such as auto, configmap/shop and secret/shop-db.

    Raises RolloutError.
    """
    references = tuple(dict.fromkeys(_parse_reference(option, entry) for entry in value))
    if len(references) > MAX_OBJECTS:
        raise RolloutError(f"{option} has {len(references)} entries: give at most {MAX_OBJECTS}")
    return references


def _parse_reference(option: str, value: t.Any) -> Reference | str:
    word, slash, name = str(value).strip().partition("/")
    kind = _KINDS.get(word.lower())
    if word.lower() == AUTO and not slash:
        return AUTO
    if kind is None or not is_name(name):
        raise RolloutError(f"{option} {value!r} is neither {AUTO} nor the kind and the name of a "
                           f"ConfigMap or a Secret, such as configmap/shop or secret/shop-db")
    return Reference(kind, name)


def references_of(template: Json) -> dict[Reference, bool]:
    """Return the ConfigMaps and Secrets that the containers of a pod template read, as keys.

    The value is True for an object that must exist, because a reference to it is not optional.
    Credentials of the kubelet (imagePullSecrets, drivers of volumes) are not included.
    """
    references: dict[Reference, bool] = {}
    for reference, is_required in _references_of_spec(mapping(template, "spec")):
        references[reference] = is_required or references.get(reference, False)
    return references


def _references_of_spec(spec: t.Mapping[str, t.Any]) -> t.Iterator[tuple[Reference, bool]]:
    for container in (*objects(spec, "initContainers"), *objects(spec, "containers")):
        for variable in objects(container, "env"):
            yield from _references_of_source(mapping(variable, "valueFrom"), _VALUE_FROM_FIELDS)
        for source in objects(container, "envFrom"):
            yield from _references_of_source(source, _ENV_FROM_FIELDS)
    for volume in objects(spec, "volumes"):
        yield from _references_of_source(volume, _VOLUME_FIELDS)
        for source in objects(mapping(volume, "projected"), "sources"):
            yield from _references_of_source(source, _VOLUME_FIELDS)


def _references_of_source(source: t.Mapping[str, t.Any],
                          fields: t.Mapping[str, str]) -> t.Iterator[tuple[Reference, bool]]:
    for kind, field in fields.items():
        reference = mapping(source, field)
        name = text(reference, "name") or text(reference, "secretName")
        if is_name(name):
            yield Reference(kind, name), reference.get("optional") is not True


def checksum(item: Json) -> str:
    """Return the checksum of the data of a ConfigMap or a Secret."""
    is_secret = item["kind"] == "Secret"
    key = text(mapping(item, "metadata"), "uid") if is_secret else ""
    data = canonical([item.get("data") or {}, item.get("binaryData") or {}])
    return hmac.new(key.encode(), data.encode(), hashlib.sha256).hexdigest()[:CHECKSUM_LENGTH]

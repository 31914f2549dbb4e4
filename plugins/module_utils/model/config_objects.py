# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""ConfigMaps and Secrets that pods read, and checksums of their data.

A checksum is stored in the pod template. With a plain hash of a password, users who may read the
template, but not the Secret, could test guesses. The checksum of a Secret is therefore an HMAC with
the random uid of the Secret as the key. In general, only readers of the Secret know the uid.
"""

from __future__ import annotations

import hashlib
import hmac
import typing as t

from .errors import RolloutError
from .fields import Json, mapping, objects, text
from .identity import canonical, is_name

#: Entry of roll_on for all objects that the containers read.
AUTO = "auto"
#: Maximum number of entries in roll_on, and of the objects of these entries and AUTO together.
MAX_OBJECTS = 100
CHECKSUM_LENGTH = 16
#: Kinds by the words that kubectl accepts.
_KINDS = {"configmap": "ConfigMap", "configmaps": "ConfigMap", "cm": "ConfigMap",
          "secret": "Secret", "secrets": "Secret"}
# The fields that refer to an object, by the object's kind.
_VALUE_FROM_FIELDS = {"ConfigMap": "configMapKeyRef", "Secret": "secretKeyRef"}
_ENV_FROM_FIELDS = {"ConfigMap": "configMapRef", "Secret": "secretRef"}
_VOLUME_FIELDS = {"ConfigMap": "configMap", "Secret": "secret"}


class Reference(t.NamedTuple):
    """A reference to a ConfigMap or a Secret."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


def parse_references(option: str, value: t.Any) -> tuple[Reference | str, ...]:
    """Parse entries such as auto, configmap/shop and secret/shop-db. Raises RolloutError."""
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
    """Return, for each ConfigMap and Secret that containers read, whether it must exist.

    Secrets that only the kubelet reads (for images and volume drivers) are not included.
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
        # The value of a field such as configMapRef, not yet a Reference.
        reference = mapping(source, field)
        name = text(reference, "name") or text(reference, "secretName")
        if is_name(name):
            yield Reference(kind, name), reference.get("optional") is not True


def checksum(item: Json) -> str:
    """Return the checksum of a ConfigMap or a Secret."""
    is_secret = item["kind"] == "Secret"
    key = text(mapping(item, "metadata"), "uid") if is_secret else ""
    data = canonical([item.get("data") or {}, item.get("binaryData") or {}])
    return hmac.new(key.encode(), data.encode(), hashlib.sha256).hexdigest()[:CHECKSUM_LENGTH]

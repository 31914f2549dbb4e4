# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Detect that new pods run several versions of an image, because its tag has moved. No I/O.

The version of an image is the digest in the imageID of a container's status, or the whole imageID
if there is no digest. The imageID is not trusted.
"""

from __future__ import annotations

import collections
import typing as t

from ..model.fields import Json, display_text, mapping, objects, text
from .diagnosis import Cause

DRIFT = "image-drift"
MAX_TEXT_LENGTH = 200
#: Versions listed in a message.
MAX_VERSIONS = 5
#: Pod names listed for each version.
MAX_PODS_PER_VERSION = 5
#: Maps a field of the spec to the field of the status.
_STATUS_FIELDS = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}


class RunningImage(t.NamedTuple):
    """The image of a started container."""

    container: str
    #: Such as "web:1.2".
    image: str
    #: True if `version` is a digest, False if `version` is an image ID.
    is_digest: bool
    version: str


class PodVersions(t.NamedTuple):
    """The images of a pod's started containers."""

    name: str
    images: tuple[RunningImage, ...]


def versions_of(pod: Json) -> PodVersions:
    """Return the versions of a pod's images, except images with a digest in the spec."""
    running_images: list[RunningImage] = []
    for field, status_field in _STATUS_FIELDS.items():
        images = {text(container, "name"): text(container, "image")
                  for container in objects(mapping(pod, "spec"), field)}
        for status in objects(mapping(pod, "status"), status_field):
            name, image_id = text(status, "name"), text(status, "imageID")
            image = images.get(name, "")
            if image_id and image and "@" not in image:
                version = image_id.rpartition("@")[2]
                running_images.append(RunningImage(_truncate(name), _truncate(image),
                                                   "@" in image_id, _truncate(version)))
    return PodVersions(_truncate(text(mapping(pod, "metadata"), "name")),
                       tuple(running_images))


def causes(pods: t.Iterable[PodVersions]) -> list[Cause]:
    """Return a cause for each image with several versions."""
    # {(container, image, is_digest): {version: [pod names]}}.
    versions_by_image: dict[tuple[str, str, bool], dict[str, list[str]]] = {}
    for pod in pods:
        for container, image, is_digest, version in pod.images:
            pods_by_version = versions_by_image.setdefault((container, image, is_digest),
                                                           collections.defaultdict(list))
            pods_by_version[version].append(pod.name)
    return [_cause(container, image, pods_by_version)
            for (container, image, _is_digest), pods_by_version in versions_by_image.items()
            if len(pods_by_version) > 1]


def _cause(container: str, image: str, pods_by_version: t.Mapping[str, list[str]]) -> Cause:
    sorted_versions = sorted(pods_by_version.items(), key=lambda item: (-len(item[1]), item[0]))
    version_texts = [f"{version} in {_list_names(sorted(pods))}"
                     for version, pods in sorted_versions[:MAX_VERSIONS]]
    other_count = len(sorted_versions) - len(version_texts)
    message = (f"{image} is {', '.join(version_texts)}"
               f"{f' and {other_count} more version' if other_count else ''}"
               f"{'s' if other_count > 1 else ''}")
    return Cause(kind=DRIFT, reason=image, message=message, is_fatal=True,
                 suggestion="name the image by its digest (IMAGE@sha256:...), which cannot move",
                 pods=sum(map(len, pods_by_version.values())), place=f"container {container}")


def sentence(cause: Cause) -> str:
    """Return the cause as a sentence, without the total number of pods."""
    return f"{cause.place}: {cause.message}"


def _list_names(names: list[str]) -> str:
    other_count = len(names) - MAX_PODS_PER_VERSION
    listed_names = ", ".join(names[:MAX_PODS_PER_VERSION]) + (
        f" and {other_count} more" if other_count > 0 else "")
    return f"{len(names)} pod{'s' if len(names) > 1 else ''} ({listed_names})"


def _truncate(value: str) -> str:
    return display_text(value[:MAX_TEXT_LENGTH])

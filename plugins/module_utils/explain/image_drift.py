# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find images that the new pods run in several versions, because a tag has moved. No I/O.

The kubelet reports the version of a running image as imageID in the status of a container: the
digest under which a registry serves the image, or the ID of a local image. The status is untrusted.
"""

from __future__ import annotations

import collections
import typing as t

from ..model.fields import Json, display_text, mapping, objects, text
from .diagnosis import Cause

DRIFT = "image-drift"
MAX_TEXT_LENGTH = 200
#: In a message: the maximum of versions, and of pods for each version.
MAX_VERSIONS, MAX_NAMES = 5, 5
#: Fields of a pod's spec with containers, and the corresponding fields of its status.
_FIELDS = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}


class RunningImage(t.NamedTuple):
    """The image that a container of a pod runs, and its version."""

    container: str
    #: The image as the spec names it, such as "web:1.2".
    image: str
    #: Whether the version is a digest, which is only compared with digests, or an image ID.
    is_digest: bool
    version: str


class PodVersions(t.NamedTuple):
    """The running images of a pod, with their versions."""

    name: str
    images: tuple[RunningImage, ...]


def versions_of(pod: Json) -> PodVersions:
    """Return the known versions of the images that the spec does not name by their digest."""
    running: list[RunningImage] = []
    for field, status_field in _FIELDS.items():
        images = {text(container, "name"): text(container, "image")
                  for container in objects(mapping(pod, "spec"), field)}
        for status in objects(mapping(pod, "status"), status_field):
            name, image_id = text(status, "name"), text(status, "imageID")
            image = images.get(name, "")
            if image_id and image and "@" not in image:
                version = image_id.rpartition("@")[2]
                running.append(RunningImage(_truncate(name), _truncate(image), "@" in image_id,
                                            _truncate(version)))
    return PodVersions(_truncate(text(mapping(pod, "metadata"), "name")), tuple(running))


def causes(pods: t.Iterable[PodVersions]) -> list[Cause]:
    """Return a cause for each container with several versions of one image."""
    #: {(container, image, is_digest): {version: [pod names]}}.
    versions_by_image: dict[tuple[str, str, bool], dict[str, list[str]]] = {}
    for pod in pods:
        for container, image, is_digest, version in pod.images:
            versions = versions_by_image.setdefault((container, image, is_digest),
                                                    collections.defaultdict(list))
            versions[version].append(pod.name)
    return [_cause(container, image, versions)
            for (container, image, _is_digest), versions in versions_by_image.items()
            if len(versions) > 1]


def _cause(container: str, image: str, versions: t.Mapping[str, list[str]]) -> Cause:
    """Return the cause, with the version of most pods first."""
    by_count = sorted(versions.items(), key=lambda item: (-len(item[1]), item[0]))
    parts = [f"{version} in {_list_names(sorted(pods))}"
             for version, pods in by_count[:MAX_VERSIONS]]
    more = len(by_count) - len(parts)
    message = f"{image} is {', '.join(parts)}{f' and {more} more' if more else ''}"
    return Cause(kind=DRIFT, reason=image, message=message, is_fatal=True,
                 suggestion="name the image by its digest (IMAGE@sha256:...), which cannot move",
                 pods=sum(map(len, versions.values())), place=f"container {container}")


def sentence(cause: Cause) -> str:
    """Return the sentence without the number of pods, which the message already contains."""
    return f"{cause.place}: {cause.message}"


def _list_names(names: list[str]) -> str:
    more = len(names) - MAX_NAMES
    listed_names = ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} pod{'s' if len(names) > 1 else ''} ({listed_names})"


def _truncate(value: str) -> str:
    return display_text(value[:MAX_TEXT_LENGTH])

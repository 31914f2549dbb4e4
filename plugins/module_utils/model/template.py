# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read, change and compare pod templates."""

from __future__ import annotations

import re
import typing as t

from .errors import RolloutError
from .fields import Json, display_text, mapping
from .identity import canonical, did_you_mean

#: [DOMAIN[:PORT]/]PATH[:TAG][@DIGEST], as in regexp.go of the project distribution/reference. For
#: an image that does not match, kubelet reports InvalidImageName.
_IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,128})?", re.ASCII)


def without_label(template: Json, key: str) -> Json:
    """Return the pod template without the label `key`, and without null fields in metadata."""
    metadata = {field: value for field, value in template.get("metadata", {}).items()
                if value is not None}
    labels = {label: value for label, value in (metadata.get("labels") or {}).items()
              if label != key}
    metadata.pop("labels", None)
    if labels:
        metadata["labels"] = labels
    return {**template, "metadata": metadata}


def with_annotation(template: Json, key: str, value: str) -> Json:
    """Return the pod template with the annotation."""
    metadata = template.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), key: value}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def with_label(template: Json, key: str, value: str) -> Json:
    """Return the pod template with the label."""
    metadata = template.get("metadata") or {}
    return {**template,
            "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), key: value}}}


def same_template(first: Json, second: Json, key: str) -> bool:
    """Return whether two pod templates are equal except for the label `key`."""
    return canonical(without_label(first, key)) == canonical(without_label(second, key))


#: Merge keys that need not be unique, by field of the list.
_MERGE_KEYS = {"env": "name", "ports": "containerPort", "hostAliases": "ip",
               "imagePullSecrets": "name",
               "topologySpreadConstraints": "topologyKey"}


def replace_ambiguous_lists(patch: t.Any) -> t.Any:
    """Return the patch, changed to replace (not merge) each list that has duplicate merge keys.

    A merge would silently drop one of two ports with the same number, such as 53/TCP and 53/UDP.
    """
    if isinstance(patch, list):
        return [replace_ambiguous_lists(item) for item in patch]
    if not isinstance(patch, dict):
        return patch
    changed_patch = {field: replace_ambiguous_lists(value) for field, value in patch.items()}
    for field, key in _MERGE_KEYS.items():
        entries = changed_patch.get(field)
        if isinstance(entries, list):
            values = [canonical(entry.get(key)) for entry in entries if isinstance(entry, dict)]
            if len(set(values)) < len(values):
                changed_patch[field] = [{"$patch": "replace"}, *entries]
    return changed_patch


def labels_of(template: Json) -> dict[str, str]:
    """Return the labels of a template or an object, except labels whose value is not a string."""
    return {key: value for key, value in mapping(template, "metadata", "labels").items()
            if isinstance(value, str)}


def images_of(template: Json) -> dict[str, str]:
    """Return the images of containers and init containers, by container name."""
    spec = template.get("spec") or {}
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    return {container["name"]: container.get("image", "") for container in containers}


def is_image(text: str) -> bool:
    """Return whether kubelet accepts the image name. The API server checks only outer spaces."""
    return bool(_IMAGE.fullmatch(text))


def image_names(images: t.Mapping[str, str]) -> str:
    """Return the distinct images as text for a message."""
    return ", ".join(dict.fromkeys(map(display_text, images.values()))) or "no image"


def differences(first: t.Any, second: t.Any,
                path: tuple[t.Any, ...] = ()) -> set[tuple[t.Any, ...]]:
    """Return the paths at which two JSON values differ, such as ("spec", "containers", 0, "image").

    path: a prefix of each returned path.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return {difference for key in first.keys() | second.keys()
                for difference in differences(first.get(key), second.get(key), (*path, key))}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return {difference for index, pair in enumerate(zip(first, second))
                for difference in differences(*pair, (*path, index))}
    return set() if first == second else {path}


def repository(image: str) -> str:
    """Return an image without its tag and digest: "shop" for "shop:2"."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


def with_image(template: Json, container: str, image: str, controller: str) -> Json:
    """Return the pod template with the image in a container.

    container: "" selects the only container with an image of the same repository. If no container
    has an image of this repository, "" selects the only container. Raises RolloutError.
    """
    spec = template["spec"]
    name = container or _container_for(image, template, controller)
    if name not in images_of(template):
        raise RolloutError(
            f"there is no container {name} in the template of {controller}; it has: "
            f"{', '.join(images_of(template))}{did_you_mean(name, images_of(template))}"
        )

    def with_new_image(containers: list[Json]) -> list[Json]:
        return [{**item, "image": image} if item["name"] == name else item for item in containers]

    container_lists = {field: with_new_image(spec[field])
                       for field in ("initContainers", "containers") if spec.get(field)}
    return {**template, "spec": {**spec, **container_lists}}


def containers_with(image: str, template: Json) -> list[str]:
    """Return the names of the containers whose image has the repository of `image`.

    Init containers count only if no other container matches.
    """
    for field in ("containers", "initContainers"):
        names = [container["name"] for container in template["spec"].get(field) or ()
                 if repository(container.get("image", "")) == repository(image)]
        if names:
            return names
    return []


def _container_for(image: str, template: Json, controller: str) -> str:
    all_names = [container["name"] for container in template["spec"]["containers"]]
    matching_names = containers_with(image, template)
    candidates = matching_names or all_names
    if len(candidates) == 1:
        return candidates[0]
    raise RolloutError(
        f"it is unclear which container of {controller} gets the image {image}: "
        f"{'several containers have' if matching_names else 'no container has'} an image of the "
        f"repository {repository(image)} now; set container to one of {', '.join(candidates)}"
    )

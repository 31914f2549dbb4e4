# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Functions on pod templates: labels, images, comparisons. No I/O."""

from __future__ import annotations

import re
import typing as t

from .errors import RolloutError
from .fields import Json, display_text, mapping
from .identity import canonical, did_you_mean

_IMAGE = re.compile(r"[][A-Za-z0-9._:/@+-]+")


def without_label(template: Json, key: str) -> Json:
    """Return the pod template without the label `key`, for example the deployment label.

    Fields of metadata that are null are removed, too. If no label is left, `labels` is removed.
    """
    metadata = {field: value for field, value in template.get("metadata", {}).items()
                if value is not None}
    labels = {label: value for label, value in (metadata.get("labels") or {}).items()
              if label != key}
    metadata.pop("labels", None)
    if labels:
        metadata["labels"] = labels
    return {**template, "metadata": metadata}


def with_annotation(template: Json, key: str, value: str) -> Json:
    """Return the pod template with an additional or changed annotation."""
    metadata = template.get("metadata") or {}
    annotations = {**(metadata.get("annotations") or {}), key: value}
    return {**template, "metadata": {**metadata, "annotations": annotations}}


def with_label(template: Json, key: str, value: str) -> Json:
    """Return the pod template with an additional or changed label."""
    metadata = template.get("metadata") or {}
    return {**template,
            "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), key: value}}}


def same_template(first: Json, second: Json, key: str) -> bool:
    """Return whether two pod templates are equal except for the label `key`."""
    return canonical(without_label(first, key)) == canonical(without_label(second, key))


#: Lists of a pod template, each with the field that is its merge key in a strategic merge patch.
#: Several entries of such a list may have the same value of the merge key.
_MERGE_KEYS = {"env": "name", "ports": "containerPort", "hostAliases": "ip",
               "imagePullSecrets": "name",
               "topologySpreadConstraints": "topologyKey"}


def replace_ambiguous_lists(partial: t.Any) -> t.Any:
    """Return the patch with `$patch: replace` in each list with duplicate merge keys.

    partial: the patch, a partial template. A merge would silently drop one of two ports with the
    same number, such as 53/TCP and 53/UDP.
    """
    if isinstance(partial, list):
        return [replace_ambiguous_lists(item) for item in partial]
    if not isinstance(partial, dict):
        return partial
    patched = {field: replace_ambiguous_lists(value) for field, value in partial.items()}
    for field, key in _MERGE_KEYS.items():
        entries = patched.get(field)
        if isinstance(entries, list):
            values = [canonical(entry.get(key)) for entry in entries if isinstance(entry, dict)]
            if len(set(values)) < len(values):
                patched[field] = [{"$patch": "replace"}, *entries]
    return patched


def labels_of(template: Json) -> dict[str, str]:
    """Return the labels of a template or an object. Values other than strings are left out."""
    return {key: value for key, value in mapping(template, "metadata", "labels").items()
            if isinstance(value, str)}


def images_of(template: Json) -> dict[str, str]:
    """Return images by container name, including init containers."""
    spec = template.get("spec") or {}
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    return {container["name"]: container.get("image", "") for container in containers}


def is_image(text: str) -> bool:
    """Return whether the text can be an image name. The API server does not check image names."""
    return bool(_IMAGE.fullmatch(text))


def image_names(images: t.Mapping[str, str]) -> str:
    """Return the distinct images, separated by commas, for a message."""
    return ", ".join(dict.fromkeys(map(display_text, images.values()))) or "no image"


def differences(first: t.Any, second: t.Any,
                path: tuple[t.Any, ...] = ()) -> set[tuple[t.Any, ...]]:
    """Return the paths at which two JSON values differ, such as ("spec", "containers", 0, "image").

    path: the path of the two values.
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

    container: the name of the container; "" for the container whose present image is from the same
    repository. Raises RolloutError if the container is missing or ambiguous.
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

    changed = {field: with_new_image(spec[field])
               for field in ("initContainers", "containers") if spec.get(field)}
    return {**template, "spec": {**spec, **changed}}


def containers_with(image: str, template: Json) -> list[str]:
    """Return the names of the containers that run an image from the same repository.

    Init containers count only if no other container runs such an image.
    """
    for field in ("containers", "initContainers"):
        running = [container["name"] for container in template["spec"].get(field) or ()
                   if repository(container.get("image", "")) == repository(image)]
        if running:
            return running
    return []


def _container_for(image: str, template: Json, controller: str) -> str:
    """Return the name of the only container with an image of the repository, or the only container.

    Raises RolloutError if there are several candidates.
    """
    containers = [container["name"] for container in template["spec"]["containers"]]
    running = containers_with(image, template)
    candidates = running or containers
    if len(candidates) == 1:
        return candidates[0]
    raise RolloutError(
        f"the container of {controller} for the image {image} is ambiguous: "
        f"{'several run' if running else 'none runs'} {repository(image)} now; set container to "
        f"one of {', '.join(candidates)}"
    )

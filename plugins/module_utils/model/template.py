# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done with pod templates. Pure."""

from __future__ import annotations

import re
import typing as t

from .errors import RolloutError
from .fields import Json, mapping, told
from .identity import canonical, did_you_mean

_IMAGE = re.compile(r"[][A-Za-z0-9._:/@+-]+")


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


#: By what a strategic merge patch tells the entries of a list apart, where the API server takes several that do not differ in it.
_MERGED_BY = {"env": "name", "ports": "containerPort", "hostAliases": "ip", "imagePullSecrets": "name",
              "topologySpreadConstraints": "topologyKey"}


def merged_as_written(partial: t.Any) -> t.Any:
    """A partial template, of which a list with equal entries, as the merge sees them, is taken whole.

    It would merge two ports of one number, UDP and TCP, into the first that is there, and lose one without a word.
    """
    if isinstance(partial, list):
        return [merged_as_written(each) for each in partial]
    if not isinstance(partial, dict):
        return partial
    written = {field: merged_as_written(value) for field, value in partial.items()}
    for field, key in _MERGED_BY.items():
        entries = written.get(field)
        if isinstance(entries, list):
            told = [canonical(each.get(key)) for each in entries if isinstance(each, dict)]
            if len(set(told)) < len(told):
                written[field] = [{"$patch": "replace"}, *entries]
    return written


def labels_of(template: Json) -> dict[str, str]:
    """Its labels, as far as they are texts."""
    return {key: value for key, value in mapping(template, "metadata", "labels").items() if isinstance(value, str)}


def images_of(template: Json) -> dict[str, str]:
    """Images by container name, init containers included."""
    spec = template.get("spec") or {}
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    return {container["name"]: container.get("image", "") for container in containers}


def is_image(text: str) -> bool:
    """Whether it may be the name of an image: the API server takes any text for one."""
    return bool(_IMAGE.fullmatch(text))


def image_names(images: t.Mapping[str, str]) -> str:
    """The images by container, in words; each is named once."""
    return ", ".join(dict.fromkeys(map(told, images.values()))) or "no image"


def differences(one: t.Any, other: t.Any, path: tuple[t.Any, ...] = ()) -> set[tuple[t.Any, ...]]:
    """The paths at which two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {each for key in one.keys() | other.keys() for each in differences(one.get(key), other.get(key), (*path, key))}
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return {each for index, pair in enumerate(zip(one, other)) for each in differences(*pair, (*path, index))}
    return set() if one == other else {path}


def repository(image: str) -> str:
    """The image's name without tag and digest."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


def with_image(template: Json, container: str, image: str, controller: str) -> Json:
    """The pod template with the image in that container; "" stands for the container that this image belongs to.

    Raises RolloutError, which names the controller, for a container that is not there or not clear.
    """
    spec = template["spec"]
    chosen = container or _container_for(image, template, controller)
    if chosen not in images_of(template):
        raise RolloutError(
            f"there is no container {chosen} in the template of {controller}; it has: {', '.join(images_of(template))}"
            f"{did_you_mean(chosen, images_of(template))}"
        )

    def renewed(containers: list[Json]) -> list[Json]:
        return [{**each, "image": image} if each["name"] == chosen else each for each in containers]

    changed = {field: renewed(spec[field]) for field in ("initContainers", "containers") if spec.get(field)}
    return {**template, "spec": {**spec, **changed}}


def containers_with(image: str, template: Json) -> list[str]:
    """Return the names of the containers that an image belongs to: they run another one of its repository.

    | containers | init containers | it belongs to |
    |---|---|---|
    | one or more run it | - | those containers |
    | none runs it | one or more run it | those init containers |
    | none runs it | none runs it | none |

    By name, kubectl set image changes both sorts; an image that a Pod's own containers run as well is theirs first.
    """
    for field in ("containers", "initContainers"):
        running = [each["name"] for each in template["spec"].get(field) or ()
                   if repository(each.get("image", "")) == repository(image)]
        if running:
            return running
    return []


def _container_for(image: str, template: Json, controller: str) -> str:
    """Return the container that gets the image; where none runs its repository, the only one."""
    containers = [each["name"] for each in template["spec"]["containers"]]
    running = containers_with(image, template)
    chosen = running or containers
    if len(chosen) == 1:
        return chosen[0]
    raise RolloutError(
        f"which container of {controller} gets the image {image}? "
        f"{'Several run' if running else 'None runs'} {repository(image)} now; give container: one of {', '.join(chosen)}"
    )

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pod templates that nobody has thought of, made by Hypothesis from what the API server says of itself (its OpenAPI schema).

The schema tells fields and types, and not what goes together. So whatever the server minds in a template is taken out of it, field
by field as its answers name them, until it takes the rest. What is left of no use is discarded, and counted.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from corpus import Manifest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from trip import ACCOUNT, PRIORITY_CLASSES, RUNTIME_CLASSES, TRIP

Json = dict[str, Any]

#: Times that the server may mind something in one template.
REPAIRS = 60
#: Fields of one object that need not be there, at the most.
OPTIONAL = 5

_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20) | st.sampled_from((
    "", " ", "a && b < c > d", 'it\'s "quoted" \\ $(VAR) $${X} `id`', "ü\u2028🚀\r\n", "yes", "0123", "1e3", "null", "{{ x }}"))
_NAMES = st.sampled_from(("a", "b", "data", "app-1", "x" * 15))
_PORTS = st.integers(1, 65535) | st.sampled_from((53, 80, 8080))
_PATHS = st.sampled_from(("/", "/a", "/etc/a b & c", "/data", "/x<y>", "a", "a/b"))
_KEYS = st.sampled_from(("app", "a.example.com/b", "A_b.c-d", "topology.kubernetes.io/zone", "x" * 63))
_IMAGES = st.sampled_from((
    "nginx", "a/b:v1", "localhost:5000/a/b", f"quay.io/a/b@sha256:{'0a' * 32}", "x:<TAG>&y", "[::1]:5000/a:v1"))
_QUANTITIES = st.sampled_from((
    "1000m", "0.5Gi", "1e3", 1, 0, 0.1, "1Ki", "+1", "1.", ".5", "128974848", "1E", "100u", "5n", "2.5G", "0"))

#: Values of fields that take only some of their type, by name.
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": _NAMES, "containerName": _NAMES, "claimName": _NAMES, "secretName": _NAMES, "hostname": _NAMES, "subdomain": _NAMES,
    "image": _IMAGES, "reference": _IMAGES, "path": _PATHS, "mountPath": _PATHS, "devicePath": _PATHS, "subPath": _PATHS,
    "containerPort": _PORTS, "hostPort": _PORTS, "port": _PORTS, "key": _KEYS, "topologyKey": _KEYS,
    "ip": st.sampled_from(("127.0.0.1", "2001:db8::1", "10.0.0.1")), "serviceAccountName": st.just(ACCOUNT),
    "serviceAccount": st.just(ACCOUNT), "priorityClassName": st.sampled_from(tuple(PRIORITY_CLASSES)),
    "runtimeClassName": st.sampled_from(RUNTIME_CLASSES), "mode": st.integers(0, 511), "defaultMode": st.integers(0, 511),
    "fieldPath": st.sampled_from(("metadata.name", "metadata.labels", "status.podIP", "metadata.annotations['a']")),
    "resource": st.sampled_from(("limits.cpu", "requests.memory")), "scheme": st.sampled_from(("HTTP", "HTTPS")),
    "resizePolicy": st.just([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]), "searches": st.just(["a.example.com"]),
    "nameservers": st.just(["192.0.2.1"]), "hostnames": st.just(["a.local", "b.local"]), "hostIP": st.just("127.0.0.1"),
}
#: What keeps a pod from being made here, or from ever going; what only the server writes.
_LEFT_OUT = {"ephemeralContainers", "nodeName", "activeDeadlineSeconds", "restartPolicy", "overhead", "priority", "schedulerName",
             "finalizers", "ownerReferences", "managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion",
             "uid", "generation", "selfLink", "resourceClaims", "workloadRef", "schedulingGroup", "restartPolicyRules"}
#: Objects of which one field alone says what they are.
_ONE_OF = ("Volume", "VolumeProjection", "LifecycleHandler", "EnvVarSource", "EnvFromSource")


def is_generated(manifest: Manifest) -> bool:
    """Whether nobody has written it."""
    return manifest.name.startswith("seed-")


def templates(namespace: Namespace, number: int, count: int) -> Iterator[Manifest | None]:
    """That many templates that the server takes, always the same ones for one number; None for each that was discarded."""
    schema = Schema(namespace._call("GET", "/openapi/v3/api/v1")["components"]["schemas"])
    found = 0
    for index, drawn in enumerate(_drawn(schema.template(), number, count * 3)):
        template = _accepted(namespace, drawn)
        found += template is not None
        yield Manifest(f"seed-{number}-{index}", template) if template else None
        if found == count:
            return


def _drawn(strategy: st.SearchStrategy[Json], number: int, count: int) -> list[Json]:
    drawn: list[Json] = []

    @seed(number)
    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None, suppress_health_check=[*HealthCheck])
    @given(strategy)
    def draw(template: Json) -> None:
        drawn.append(template)

    draw()
    return drawn[1:]  # the first one is always the least


class Schema:
    """Strategies for the kinds of objects that an API server describes."""

    def __init__(self, kinds: Json) -> None:
        self._kinds = kinds
        self._known: dict[str, st.SearchStrategy[Any]] = {}

    def template(self) -> st.SearchStrategy[Json]:
        """Pod templates with at least one container."""
        texts = st.dictionaries(st.sampled_from(("example.com/a", "b", "C.d_e")), _TEXTS, max_size=3)
        labels = st.dictionaries(_KEYS, st.sampled_from(("", "a", "0123", "yes", "1e3", "A_b.c")), max_size=3)
        return st.fixed_dictionaries({
            "metadata": st.fixed_dictionaries({"labels": labels.map(lambda it: {"app": "generated", **it})},
                                              optional={"annotations": texts | st.none(), "creationTimestamp": st.none()}),
            "spec": st.builds(lambda spec, containers: {**spec, "containers": containers},
                              self._object("PodSpec"), self._containers(1)),
        })

    def _containers(self, least: int) -> st.SearchStrategy[list[Json]]:
        return st.lists(self._object("Container"), min_size=least, max_size=3, unique_by=lambda it: it["name"])

    def _object(self, kind: str) -> st.SearchStrategy[Json]:
        if kind not in self._known:
            self._known[kind] = st.deferred(lambda: self._fields(kind, self._kinds[_full(self._kinds, kind)]))
        return self._known[kind]

    def _fields(self, kind: str, schema: Json) -> st.SearchStrategy[Json]:
        needed = set(schema.get("required", ())) - {"containers"} | ({"image"} if kind == "Container" else set())
        fields = {name: self._value(name, each) for name, each in schema["properties"].items() if name not in _LEFT_OUT}
        fields.pop("containers", None)
        optional = sorted(fields.keys() - needed)
        if not optional:
            return st.fixed_dictionaries({name: fields[name] for name in sorted(needed & fields.keys())})
        most = 1 if kind in _ONE_OF else OPTIONAL
        chosen = st.lists(st.sampled_from(optional), min_size=min(1, most), max_size=most, unique=True)
        return chosen.flatmap(lambda names: st.fixed_dictionaries(
            {name: fields[name] for name in sorted({*names, *(needed & fields.keys())})}))

    def _value(self, name: str, schema: Json) -> st.SearchStrategy[Any]:
        for part in schema.get("allOf", ()):
            schema = {**schema, **part}
        if name == "initContainers":
            return self._containers(0).map(_renamed)
        if name == "resources" and "$ref" in schema:
            sizes = st.dictionaries(st.sampled_from(("cpu", "memory", "ephemeral-storage")), _QUANTITIES, max_size=2)
            return st.fixed_dictionaries({}, optional={"limits": sizes, "requests": sizes})
        if "$ref" in schema:
            return self._referred(schema["$ref"].rpartition(".")[2])
        if name in _FIELDS:
            return _FIELDS[name]
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        return self._plain(schema)

    def _referred(self, kind: str) -> st.SearchStrategy[Any]:
        if kind == "Quantity":
            return _QUANTITIES
        if kind == "IntOrString":
            return _PORTS
        if "properties" not in self._kinds[_full(self._kinds, kind)]:
            return st.just({}) if kind != "Time" else st.none()
        return self._object(kind)

    def _plain(self, schema: Json) -> st.SearchStrategy[Any]:
        match schema.get("type"):
            case "array":
                return st.lists(self._value("", schema["items"]), max_size=3)
            case "object":
                return st.dictionaries(_KEYS, self._value("", schema.get("additionalProperties", {})), max_size=2)
            case "integer":
                return st.integers(0, 3) | st.sampled_from((10, 60, 1000, 65534))
            case "boolean":
                return st.booleans()
            case "number":
                return st.sampled_from((0, 1, 0.5))
        return _TEXTS


def _full(kinds: Json, kind: str) -> str:
    return next(each for each in kinds if each.rpartition(".")[2] == kind)


def _renamed(containers: list[Json]) -> list[Json]:
    """First containers beside the others."""
    return [{**each, "name": f"init-{each['name'][:8]}"} for each in containers]


# What the server takes of it


def _accepted(namespace: Namespace, template: Json) -> Json | None:
    """The template without what the server minds, or None where nothing helps."""
    template = copy.deepcopy(template)
    for _repair in range(REPAIRS):
        refusal = _refusal(namespace, template)
        if refusal is None:
            return template
        fields = [each.get("field", "") for each in (refusal.get("details") or {}).get("causes") or ()]
        # The last of a list first, so that the numbers of the others stay.
        if not any([_take_out(template, each) for each in sorted(set(fields), reverse=True)]):
            return None
    return None


def _refusal(namespace: Namespace, template: Json) -> Json | None:
    """What the server says against a controller with that template, or against a pod of it."""
    labels = {**template["metadata"]["labels"], TRIP: "0"}
    there = {**template, "metadata": {**template["metadata"], "labels": labels}}
    controller = {"metadata": {"generateName": "generated-", "labels": {}},
                  "spec": {"replicas": 0, "selector": {TRIP: "0"}, "template": there}}
    pod = {"metadata": {"generateName": "generated-", "labels": labels,
                        "annotations": template["metadata"].get("annotations")}, "spec": template["spec"]}
    for resource, body in (("replicationcontrollers", controller), ("pods", pod)):
        try:
            namespace._call("POST", f"{namespace._path(resource)}?dryRun=All", body)
        except ApiException as error:
            return json.loads(error.reason)
    return None


def _take_out(template: Json, path: str) -> bool:
    """Whether what the server names was there, and is not any more; the object that lacks a field goes whole."""
    keys: list[Any] = [int(each) if each.isdigit() else each for each in re.findall(r"[^.\[\]]+", path)]
    if keys[:2] == ["spec", "template"]:
        keys = keys[2:]
    places: list[tuple[Any, Any]] = []
    there: Any = template
    for key in keys:
        known = there if isinstance(there, dict) else range(len(there)) if isinstance(there, list) else ()
        if key not in known:
            break
        places.append((there, key))
        there = there[key]
    depth = len(places)
    while depth and _is_kept([key for _there, key in places[:depth]]):
        depth -= 1
    if not depth:
        return False
    holder, key = places[depth - 1]
    del holder[key]
    return True


def _is_kept(keys: list[Any]) -> bool:
    """Whether a template is none without it."""
    return keys in (["metadata"], ["metadata", "labels"], ["spec"], ["spec", "containers"], ["spec", "containers", 0],
                    ["spec", "containers", 0, "name"], ["spec", "containers", 0, "image"])

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Generate pod templates with Hypothesis from the API server's OpenAPI schema.

The schema does not say which fields exclude each other. Fields that the API server rejects are
removed until it accepts the template, or the template is discarded.
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
from trip import PRIORITY_CLASSES, RUNTIME_CLASSES, SERVICE_ACCOUNT, TRIP_LABEL

Json = dict[str, Any]

MAX_REPAIRS = 60
#: Maximum number of optional fields of an object.
MAX_OPTIONAL_FIELDS = 5

_TEXTS = (st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
          | st.sampled_from((
              "", " ", "a && b < c > d", 'it\'s "quoted" \\ $(VAR) $${X} `id`', "ü\u2028🚀\r\n",
              "yes", "0123", "1e3", "null", "{{ x }}")))
_NAMES = st.sampled_from(("a", "b", "data", "app-1", "x" * 15))
_PORTS = st.integers(1, 65535) | st.sampled_from((53, 80, 8080))
_PATHS = st.sampled_from(("/", "/a", "/etc/a b & c", "/data", "/x<y>", "a", "a/b"))
_KEYS = st.sampled_from(("app", "a.example.com/b", "A_b.c-d", "topology.kubernetes.io/zone",
                         "x" * 63))
_IMAGES = st.sampled_from((
    "nginx", "a/b:v1", "localhost:5000/a/b", f"quay.io/a/b@sha256:{'0a' * 32}", "x:<TAG>&y",
    "[::1]:5000/a:v1"))
_QUANTITIES = st.sampled_from((
    "1000m", "0.5Gi", "1e3", 1, 0, 0.1, "1Ki", "+1", "1.", ".5", "128974848", "1E", "100u", "5n",
    "2.5G", "0"))

#: Strategies for fields that accept only some values of their type.
_FIELD_STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "name": _NAMES, "containerName": _NAMES, "claimName": _NAMES, "secretName": _NAMES,
    "hostname": _NAMES, "subdomain": _NAMES,
    "image": _IMAGES, "reference": _IMAGES, "path": _PATHS, "mountPath": _PATHS,
    "devicePath": _PATHS, "subPath": _PATHS,
    "containerPort": _PORTS, "hostPort": _PORTS, "port": _PORTS, "key": _KEYS, "topologyKey": _KEYS,
    "ip": st.sampled_from(("127.0.0.1", "2001:db8::1", "10.0.0.1")),
    "serviceAccountName": st.just(SERVICE_ACCOUNT),
    "serviceAccount": st.just(SERVICE_ACCOUNT),
    "priorityClassName": st.sampled_from(tuple(PRIORITY_CLASSES)),
    "runtimeClassName": st.sampled_from(RUNTIME_CLASSES), "mode": st.integers(0, 511),
    "defaultMode": st.integers(0, 511),
    "fieldPath": st.sampled_from(("metadata.name", "metadata.labels", "status.podIP",
                                  "metadata.annotations['a']")),
    "resource": st.sampled_from(("limits.cpu", "requests.memory")),
    "scheme": st.sampled_from(("HTTP", "HTTPS")),
    "resizePolicy": st.just([{"resourceName": "cpu", "restartPolicy": "NotRequired"}]),
    "searches": st.just(["a.example.com"]),
    "nameservers": st.just(["192.0.2.1"]), "hostnames": st.just(["a.local", "b.local"]),
    "hostIP": st.just("127.0.0.1"),
}
#: Fields that prevent the creation or deletion of a pod, or that only the server writes.
_EXCLUDED_FIELDS = {
    "ephemeralContainers", "nodeName", "activeDeadlineSeconds", "restartPolicy", "overhead",
    "priority", "schedulerName", "finalizers", "ownerReferences", "managedFields",
    "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "uid", "generation",
    "selfLink", "resourceClaims", "workloadRef", "schedulingGroup", "restartPolicyRules"}
#: Types whose objects set exactly one of their optional fields.
_ONE_FIELD_TYPES = ("Volume", "VolumeProjection", "LifecycleHandler", "EnvVarSource",
                    "EnvFromSource")


def is_generated(manifest: Manifest) -> bool:
    return manifest.name.startswith("seed-")


def templates(namespace: Namespace, seed_number: int, count: int) -> Iterator[Manifest | None]:
    """Yield manifests with generated templates, and None for each discarded template.

    At most three times `count` templates are generated.
    """
    schema = Schema(namespace.call("GET", "/openapi/v3/api/v1")["components"]["schemas"])
    accepted_count = 0
    for index, drawn_template in enumerate(_draw(schema.template(), seed_number, count * 3)):
        template = _repair(namespace, drawn_template)
        accepted_count += template is not None
        yield Manifest(f"seed-{seed_number}-{index}", template) if template else None
        if accepted_count == count:
            return


def _draw(strategy: st.SearchStrategy[Json], seed_number: int, count: int) -> list[Json]:
    drawn_templates: list[Json] = []

    @seed(seed_number)
    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None,
              suppress_health_check=[*HealthCheck])
    @given(strategy)
    def draw(template: Json) -> None:
        drawn_templates.append(template)

    draw()
    return drawn_templates[1:]  # the first example is always minimal


class Schema:
    def __init__(self, kinds: Json) -> None:
        self._kinds = kinds
        self._strategies: dict[str, st.SearchStrategy[Any]] = {}

    def template(self) -> st.SearchStrategy[Json]:
        annotations = st.dictionaries(st.sampled_from(("example.com/a", "b", "C.d_e")), _TEXTS,
                                      max_size=3)
        labels = st.dictionaries(_KEYS, st.sampled_from(("", "a", "0123", "yes", "1e3", "A_b.c")),
                                 max_size=3)
        return st.fixed_dictionaries({
            "metadata": st.fixed_dictionaries(
                {"labels": labels.map(lambda drawn: {"app": "generated", **drawn})},
                optional={"annotations": annotations | st.none(),
                          "creationTimestamp": st.none()}),
            "spec": st.builds(lambda spec, containers: {**spec, "containers": containers},
                              self._object("PodSpec"), self._containers(1)),
        })

    def _containers(self, min_count: int) -> st.SearchStrategy[list[Json]]:
        return st.lists(self._object("Container"), min_size=min_count, max_size=3,
                        unique_by=lambda container: container["name"])

    def _object(self, kind: str) -> st.SearchStrategy[Json]:
        if kind not in self._strategies:
            self._strategies[kind] = st.deferred(
                lambda: self._fields(kind, self._kinds[_full_name(self._kinds, kind)]))
        return self._strategies[kind]

    def _fields(self, kind: str, schema: Json) -> st.SearchStrategy[Json]:
        """Return a strategy for all required fields except `containers`, and a few optional ones.
        """
        required_names = (set(schema.get("required", ())) - {"containers"}
                          | ({"image"} if kind == "Container" else set()))
        fields = {name: self._value(name, definition)
                  for name, definition in schema["properties"].items()
                  if name not in _EXCLUDED_FIELDS}
        fields.pop("containers", None)
        optional_names = sorted(fields.keys() - required_names)
        if not optional_names:
            return st.fixed_dictionaries({name: fields[name]
                                          for name in sorted(required_names & fields.keys())})
        count = 1 if kind in _ONE_FIELD_TYPES else MAX_OPTIONAL_FIELDS
        chosen_names = st.lists(st.sampled_from(optional_names), min_size=min(1, count),
                                max_size=count, unique=True)
        return chosen_names.flatmap(lambda names: st.fixed_dictionaries(
            {name: fields[name] for name in sorted({*names, *(required_names & fields.keys())})}))

    def _value(self, name: str, schema: Json) -> st.SearchStrategy[Any]:
        for part in schema.get("allOf", ()):
            schema = {**schema, **part}
        if name == "initContainers":
            return self._containers(0).map(_as_init_containers)
        if name == "resources" and "$ref" in schema:
            sizes = st.dictionaries(st.sampled_from(("cpu", "memory", "ephemeral-storage")),
                                    _QUANTITIES, max_size=2)
            return st.fixed_dictionaries({}, optional={"limits": sizes, "requests": sizes})
        if "$ref" in schema:
            return self._reference(schema["$ref"].rpartition(".")[2])
        if name in _FIELD_STRATEGIES:
            return _FIELD_STRATEGIES[name]
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        return self._value_by_type(schema)

    def _reference(self, kind: str) -> st.SearchStrategy[Any]:
        if kind == "Quantity":
            return _QUANTITIES
        if kind == "IntOrString":
            return _PORTS
        if "properties" not in self._kinds[_full_name(self._kinds, kind)]:
            return st.just({}) if kind != "Time" else st.none()
        return self._object(kind)

    def _value_by_type(self, schema: Json) -> st.SearchStrategy[Any]:
        match schema.get("type"):
            case "array":
                return st.lists(self._value("", schema["items"]), max_size=3)
            case "object":
                return st.dictionaries(_KEYS,
                                       self._value("", schema.get("additionalProperties", {})),
                                       max_size=2)
            case "integer":
                return st.integers(0, 3) | st.sampled_from((10, 60, 1000, 65534))
            case "boolean":
                return st.booleans()
            case "number":
                return st.sampled_from((0, 1, 0.5))
        return _TEXTS


def _full_name(kinds: Json, kind: str) -> str:
    return next(name for name in kinds if name.rpartition(".")[2] == kind)


def _as_init_containers(containers: list[Json]) -> list[Json]:
    return [{**container, "name": f"init-{container['name'][:8]}"} for container in containers]


# Rejections of the API server


def _repair(namespace: Namespace, template: Json) -> Json | None:
    """Remove fields until the API server accepts the template. Return None if it never does."""
    template = copy.deepcopy(template)
    for _attempt in range(MAX_REPAIRS):
        rejection = _rejection(namespace, template)
        if rejection is None:
            return template
        fields = [cause.get("field", "")
                  for cause in (rejection.get("details") or {}).get("causes") or ()]
        # In reverse order, since the removal of a list item changes later indices.
        removals = [_remove_field(template, field) for field in sorted(set(fields), reverse=True)]
        if not any(removals):
            return None
    return None


def _rejection(namespace: Namespace, template: Json) -> Json | None:
    labels = {**template["metadata"]["labels"], TRIP_LABEL: "0"}
    labeled_template = {**template, "metadata": {**template["metadata"], "labels": labels}}
    controller = {"metadata": {"generateName": "generated-", "labels": {}},
                  "spec": {"replicas": 0, "selector": {TRIP_LABEL: "0"},
                           "template": labeled_template}}
    pod = {"metadata": {"generateName": "generated-", "labels": labels,
                        "annotations": template["metadata"].get("annotations")},
           "spec": template["spec"]}
    for resource, body in (("replicationcontrollers", controller), ("pods", pod)):
        try:
            namespace.call("POST", f"{namespace.path(resource)}?dryRun=All", body)
        except ApiException as error:
            return json.loads(error.reason)
    return None


def _remove_field(template: Json, path: str) -> bool:
    """Remove the rejected field or, if it is missing, the object that should contain it.

    If every template needs that part, remove the closest enclosing object that is optional. Return
    whether there was one.
    path: for example "spec.containers[0].ports".
    """
    keys: list[Any] = [int(part) if part.isdigit() else part
                       for part in re.findall(r"[^.\[\]]+", path)]
    if keys[:2] == ["spec", "template"]:
        keys = keys[2:]
    places: list[tuple[Any, Any]] = []
    value: Any = template
    for key in keys:
        keys_of_value = (value if isinstance(value, dict)
                         else range(len(value)) if isinstance(value, list) else ())
        if key not in keys_of_value:
            break
        places.append((value, key))
        value = value[key]
    depth = len(places)
    while depth and _is_essential([key for _parent, key in places[:depth]]):
        depth -= 1
    if not depth:
        return False
    holder, key = places[depth - 1]
    del holder[key]
    return True


def _is_essential(keys: list[Any]) -> bool:
    return (keys
            in (["metadata"], ["metadata", "labels"], ["spec"], ["spec", "containers"],
                ["spec", "containers", 0],
                ["spec", "containers", 0, "name"], ["spec", "containers", 0, "image"]))

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create a controller from a manifest, update it in every way, and restore its first template.

The assertions compare objects of the API server instead of results of tasks.
"""

from __future__ import annotations

import contextlib
import copy
import json
import traceback
from typing import Any

from corpus import Manifest
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import eventually, role_rules

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

Json = dict[str, Any]

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Kinds that are updated without a successor.
UPDATED_IN_PLACE = ("Deployment", "StatefulSet", "DaemonSet")
REPLICAS = 2
#: Label that distinguishes the pods of this trip from terminating pods of earlier ones.
TRIP_LABEL = "baton.test/trip"
#: Objects to which templates may refer.
PRIORITY_CLASSES = {"baton-test-high": 1000}
RUNTIME_CLASSES = ("baton-test-sandbox",)
SERVICE_ACCOUNT = "runner"
#: Fields with a list whose order does not matter.
UNORDERED_LISTS = ("env", "ports", "hostAliases", "imagePullSecrets", "topologySpreadConstraints")
#: In seconds.
DEADLINE = 40


class TemplateRejected(Exception):
    """The API server rejects the template."""


class Violation(Exception):
    """A guarantee is violated. The message tells which."""


def prepare_namespace(namespace: Namespace) -> None:
    for role_name in ("baton-stateful-sets", "baton-daemon-sets"):
        namespace.allow(role_rules(role_name), role_name)
    objects = [("/apis/scheduling.k8s.io/v1/priorityclasses", name, {"value": value})
               for name, value in PRIORITY_CLASSES.items()]
    objects += [("/apis/node.k8s.io/v1/runtimeclasses", name, {"handler": "sandbox"})
                for name in RUNTIME_CLASSES]
    objects += [(namespace.path("serviceaccounts"), SERVICE_ACCOUNT, {})]
    for path, name, fields in objects:
        with contextlib.suppress(ApiException):  # another worker has created the object
            namespace.call("POST", path, {"metadata": {"name": name}, **fields})


class RoundTrip:
    def __init__(self, namespace: Namespace, kind: str, manifest: Manifest, number: int) -> None:
        self.namespace, self.kind, self.manifest = namespace, kind, manifest
        self.name = f"foo-{number}"
        self.template = copy.deepcopy(manifest.template)
        metadata = self.template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), TRIP_LABEL: str(number)}
        if kind == "DaemonSet":
            _limit_nodes(self.template["spec"])
        self.container: str = self.template["spec"]["containers"][0]["name"]

    def run(self) -> list[str]:
        """Run the trip, and return the first violation, if any. Raises TemplateRejected."""
        try:
            self._run()
        except (TemplateRejected, ApiException):
            raise
        except Violation as error:
            return [str(error)]
        except (RolloutError, AssertionError) as error:
            why = f": {error.why}" if isinstance(error, RolloutError) and error.why else ""
            return [f"{self._action}: {error}{why}"]
        except Exception:
            return [f"{self._action}: {traceback.format_exc()}"]
        finally:
            self._remove()
        return []

    def _run(self) -> None:
        self._create()
        first_template = self._stored_template()
        if self.manifest.selector and self.kind == "ReplicaSet":
            self._assert_refused("its selector", **self._image_options("v2"))
            return

        self._update("image", **self._image_options("v2"))
        template_v3 = self._template_with_image("v3")
        self._update("template, until the pause", template=template_v3, pause_at="1")
        self._update("template, resumed from the pause", template=template_v3)
        stored_template = self._stored_template()
        self._assert_equal("template", _normalized(stored_template),
                           _normalized(self._expected_template(self._definition(template_v3))))

        self._assert_rollout("image, until the pause", **self._image_options("v4"), pause_at="1")
        self._assert_rollout("rollback at the pause", state="rolled_back")
        self._assert_equal("rollback at the pause", self._stored_template(), stored_template)
        self._assert_no_change("rollback at the pause, again", state="rolled_back")

        definition = self._definition(self._template_with_image("v5"))
        self._update("definition", definition=definition)
        self._assert_equal("definition", self._stored_template(),
                           self._expected_template(definition))

        self._update("to_revision", state="rolled_back", to_revision=1)
        self._assert_equal("to_revision", self._stored_template(), first_template)
        self._action = "info"
        params = {"kubeconfig": self.namespace.kubeconfig, "namespace": self.namespace.name,
                  "name": self.name, "kind": self.kind}
        (rollout,) = task.info({**params, "pods": True})["rollouts"]
        if rollout["phase"] != "complete":
            raise Violation(f"info: the phase is {rollout['phase']}")

    # Actions

    def _create(self) -> None:
        self._action = "create"
        try:
            self.namespace.call("POST", self._path(),
                                self._definition(self.template, with_selector=True))
        except ApiException as error:
            raise TemplateRejected(error.reason) from None
        eventually(self._is_available, f"{REPLICAS} pods", seconds=DEADLINE)

    def _update(self, action: str, **params: Any) -> None:
        self._assert_rollout(action, **params)
        self._assert_no_change(f"{action}, again", **params)

    def _assert_rollout(self, action: str, **params: Any) -> None:
        """Assert that a task changes the controller with the same steps as in check mode."""
        self._action = action
        plan, result = self._run_in_check_mode(**params), self._run_task(**params)
        if not result["changed"]:
            raise Violation(f"{action}: nothing has changed: {result['msg']}")
        normalize = self._with_merged_sizes if self.kind == "Deployment" else _without_times
        self._assert_equal(f"{action}: check mode's steps", normalize(plan["steps"]),
                           normalize(result["steps"]))

    def _assert_no_change(self, action: str, **params: Any) -> None:
        """Assert that a task, in check mode or not, reports no steps and writes nothing."""
        self._action = action
        before = self._object()["metadata"]["generation"]
        for result in (self._run_in_check_mode(**params), self._run_task(**params)):
            if result["changed"] or result["steps"]:
                raise Violation(f"{action}: something has changed: {_summary(result['steps'])}")
            writes = {method for method, count in result["requests"].items() if count} - {"GET"}
            # A task with a template or a definition sends dry runs.
            if writes and not {"template", "definition"} & params.keys():
                raise Violation(f"{action}: the task has sent {', '.join(writes)}")
        if self._object()["metadata"]["generation"] != before:
            raise Violation(f"{action}: the spec was written")

    def _assert_refused(self, expected_text: str, **params: Any) -> None:
        """Assert that a task fails with `expected_text` in its message, and writes nothing."""
        before = self._object()["metadata"]["resourceVersion"]
        try:
            self._run_task(**params)
        except RolloutError as error:
            if expected_text not in f"{error} {error.why}":
                raise
        else:
            raise Violation(f"not refused: {expected_text}")
        if self._object()["metadata"]["resourceVersion"] != before or self._successors():
            raise Violation(f"refused, but something was written: {expected_text}")

    def _run_task(self, **params: Any) -> Json:
        return self.namespace.roll(**self._params(params))

    def _run_in_check_mode(self, **params: Any) -> Json:
        return self.namespace.check(**self._params(params))

    def _params(self, params: Json) -> Json:
        return {"name": self.name, "kind": self.kind, "progress_deadline": DEADLINE,
                **params}

    def _remove(self) -> None:
        for name in {self.name, *self._successors()}:
            with contextlib.suppress(ApiException):
                self.namespace.call("DELETE", self._path(name),
                                    {"propagationPolicy": "Background"})

    def _successors(self) -> list[str]:
        items = self.namespace.call("GET", self._path())["items"]
        names = [item["metadata"]["name"]
                 for item in items if not item["metadata"].get("ownerReferences")]
        return [name for name in names if name.startswith(f"{self.name}-")]

    # Parameters of tasks

    def _image_options(self, tag: str) -> Json:
        return {"image": self._image_name(tag), "container": self.container}

    def _image_name(self, tag: str) -> str:
        return f"registry.example.com:5000/{self.container}:{tag}"

    def _template_with_image(self, tag: str) -> Json:
        template = copy.deepcopy(self.template)
        template["spec"]["containers"][0]["image"] = self._image_name(tag)
        annotations = template["metadata"].get("annotations") or {}
        template["metadata"]["annotations"] = {**annotations,
                                               "example.com/changed": f"<{tag}> & \u2028 ü"}
        return template

    def _definition(self, template: Json, with_selector: bool = False) -> Json:
        """Return the manifest of the controller.

        with_selector: add name and selector even if a task would choose them for this kind.
        """
        labels = template["metadata"]["labels"]
        metadata = {"creationTimestamp": None, "labels": dict(labels)}
        spec: Json = {"template": template}
        if self.kind != "DaemonSet":
            spec["replicas"] = REPLICAS
        if with_selector or self.kind in UPDATED_IN_PLACE:
            metadata["name"] = self.name
            selector = {"matchLabels": dict(labels)} if self.manifest.selector is None else {
                **self.manifest.selector,
                "matchLabels": {**self.manifest.selector["matchLabels"],
                                TRIP_LABEL: labels[TRIP_LABEL]}}
            # The Deployment controller adds its own value of this label.
            selector["matchLabels"].pop(object_meta.HASH_LABEL, None)
            flat_selector = {key: value for key, value in labels.items()
                             if key != object_meta.HASH_LABEL}
            spec["selector"] = flat_selector if self.kind == "ReplicationController" else selector
        if self.kind == "StatefulSet":
            spec["serviceName"] = self.name
        return {"apiVersion": "v1" if self.kind == "ReplicationController" else "apps/v1",
                "kind": self.kind,
                "metadata": metadata, "spec": spec, "status": {}}

    def _with_merged_sizes(self, steps: list[Json]) -> list[Json]:
        """Merge successive scalings of each ReplicaSet. Omit their names, and all times."""
        merged_steps: list[Json] = []
        for step in _without_times(steps):
            if step["kind"] != "ReplicaSet":
                merged_steps.append(step)
                continue
            if not merged_steps or "sizes" not in merged_steps[-1]:
                merged_steps.append({"sizes": {}})
            first, _last = merged_steps[-1]["sizes"].get(step["name"], (step["from"], None))
            merged_steps[-1]["sizes"][step["name"]] = first, step["to"]
        return [{"sizes": sorted(step["sizes"].values())} if "sizes" in step else step
                for step in merged_steps]

    # Objects of the API server

    def _path(self, name: str = "") -> str:
        resource = f"{self.kind.lower()}s"
        return (self.namespace.path if self.kind == "ReplicationController"
                else self.namespace.apps_path)(resource, name)

    def _object(self) -> Json:
        return self.namespace.call("GET", self._path(self.name))

    def _stored_template(self) -> Json:
        """Return the template. Raises Violation if annotations of an update remain."""
        item = self._object()
        annotations = {key
                       for key in item["metadata"].get("annotations", {})
                       if key in object_meta.UPDATE_ANNOTATIONS}
        if annotations:
            raise Violation(f"{self._action}: annotations of the update remain: "
                            f"{', '.join(sorted(annotations))}")
        return _without_generated_label(item["spec"]["template"], self.kind)

    def _expected_template(self, definition: Json) -> Json:
        """Return the template that the API server would store for a new controller."""
        controller = self._definition(definition["spec"]["template"], with_selector=True)
        controller["metadata"]["name"] = f"{self.name}-expected"
        created_controller = self.namespace.call("POST", f"{self._path()}?dryRun=All", controller)
        return _without_generated_label(created_controller["spec"]["template"], self.kind)

    def _is_available(self) -> bool:
        item = self._object()
        is_observed = item["status"].get("observedGeneration") == item["metadata"]["generation"]
        field = "numberAvailable" if self.kind == "DaemonSet" else "availableReplicas"
        return is_observed and item["status"].get(field, 0) == REPLICAS

    def _assert_equal(self, action: str, actual: Any, expected: Any) -> None:
        actual, expected = _canonical(actual), _canonical(expected)
        if actual != expected:
            position = next((index for index, (actual_item, expected_item)
                             in enumerate(zip(actual, expected, strict=False))
                             if actual_item != expected_item),
                            min(len(actual), len(expected)))
            start, end = max(0, position - 60), position + 120
            raise Violation(f"{action}: ...{actual[start:end]}... instead of "
                            f"...{expected[start:end]}...")


class RefusedTrip(RoundTrip):
    """A trip whose update must fail and write nothing."""

    def __init__(self, namespace: Namespace, kind: str, manifest: Manifest, number: int) -> None:
        containers = [{"name": "app", "image": "example.com/plain:v1"}]
        plain = {"metadata": {"labels": {"app": "plain"}}, "spec": {"containers": containers}}
        super().__init__(namespace, kind, Manifest(manifest.name, plain), number)
        self._rejected_template = {**manifest.template, "metadata": self.template["metadata"]}

    def _run(self) -> None:
        self._create()
        for option, template in (("template", self._rejected_template),
                                 ("definition", self._definition(self._rejected_template))):
            self._action = option
            self._assert_refused("refused", **{option: template})


def _limit_nodes(spec: Json) -> None:
    """Limit the pods of a DaemonSet to REPLICAS nodes."""
    for field in ("nodeName", "nodeSelector"):
        if spec.get(field):
            del spec[field]
    hostnames = [f"fake-{number}" for number in range(REPLICAS)]
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In",
                                    "values": hostnames}]}]
    affinity = spec["affinity"] = spec.get("affinity") or {}
    affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}),
                                "requiredDuringSchedulingIgnoredDuringExecution": {
                                    "nodeSelectorTerms": terms}}


def _without_generated_label(template: Json, kind: str) -> Json:
    """Return the template without the label that Kubernetes or a task adds.

    A rollback of a Deployment loses the author's value of this label, like `kubectl rollout undo`.
    """
    key = {"Deployment": object_meta.HASH_LABEL,
           "StatefulSet": object_meta.POD_REVISION}.get(kind, object_meta.DEPLOYMENT_LABEL)
    metadata = dict(template["metadata"])
    metadata["labels"] = {label: value
                          for label, value in metadata["labels"].items() if label != key}
    return {**template, "metadata": metadata}


def _normalized(value: Any) -> Any:
    """Remove the differences between a patched template and the same template in a new controller.

    A merge retains the imagePullPolicy of the previous image.
    """
    if isinstance(value, list):
        return [_normalized(item) for item in value]
    if isinstance(value, dict):
        return {field: (sorted(item, key=_canonical) if field in UNORDERED_LISTS
                        else _normalized(item))
                for field, item in value.items()
                if field != "imagePullPolicy"}
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=0)


def _without_times(steps: list[Json]) -> list[Json]:
    return [{**step, "at": ""} for step in steps]


def _summary(steps: list[Json]) -> str:
    return "; ".join(f"{step['action']} {step['name']}" for step in steps)

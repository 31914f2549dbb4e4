# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One manifest's trip: created, rolled through every way to say what is wanted, and back to its first template.

What must hold is said here in terms of the API server alone; nothing of the collection judges itself.
"""

from __future__ import annotations

import contextlib
import copy
import json
import traceback
from typing import Any

from corpus import Manifest
from kubernetes.client.exceptions import ApiException
from namespace import Namespace, eventually, role

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

Json = dict[str, Any]

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Those that the definition of an update names: the object stays the same one.
STAYING = ("Deployment", "StatefulSet", "DaemonSet")
REPLICAS = 2
#: Tells the pods of two trips apart: neither has to wait until the other one's are gone.
TRIP = "baton.test/trip"
#: Where the cluster knows one of these, any template may ask for it.
PRIORITY_CLASSES = {"baton-test-high": 1000}
RUNTIME_CLASSES = ("baton-test-sandbox",)
ACCOUNT = "runner"
#: Lists in which a merge puts the entries that it cannot tell apart beside each other.
UNORDERED = ("env", "ports", "hostAliases", "imagePullSecrets", "topologySpreadConstraints")
#: Seconds without progress: nothing here takes as long.
DEADLINE = 40


class Discarded(Exception):
    """The API server does not take this template, so nothing is to be learned of it."""


class Broken(Exception):
    """What should have held, in one phrase."""


def prepare(namespace: Namespace) -> None:
    """What the templates name and pods cannot be made without, and what a task must be allowed."""
    for each in ("baton-stateful-sets", "baton-daemon-sets"):
        namespace.allow(role(each), each)
    wanted = [("/apis/scheduling.k8s.io/v1/priorityclasses", name, {"value": value}) for name, value in PRIORITY_CLASSES.items()]
    wanted += [("/apis/node.k8s.io/v1/runtimeclasses", name, {"handler": "sandbox"}) for name in RUNTIME_CLASSES]
    wanted += [(namespace._path("serviceaccounts"), ACCOUNT, {})]
    for path, name, fields in wanted:
        with contextlib.suppress(ApiException):  # another worker has made it
            namespace._call("POST", path, {"metadata": {"name": name}, **fields})


class Trip:
    """One manifest as one kind of controller, in a namespace that others use as well."""

    def __init__(self, namespace: Namespace, kind: str, manifest: Manifest, number: int) -> None:
        self.namespace, self.kind, self.manifest = namespace, kind, manifest
        self.name = f"foo-{number}"
        self.template = copy.deepcopy(manifest.template)
        metadata = self.template.setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), TRIP: str(number)}
        if kind == "DaemonSet":
            _choose_nodes(self.template["spec"])
        self.container: str = self.template["spec"]["containers"][0]["name"]

    def go(self) -> list[str]:
        """What was broken, the first of it. Raises Discarded."""
        try:
            self._go()
        except (Discarded, ApiException):
            raise
        except Broken as error:
            return [str(error)]
        except (RolloutError, AssertionError) as error:
            why = f": {error.why}" if isinstance(error, RolloutError) and error.why else ""
            return [f"{self._doing}: {error}{why}"]
        except Exception:
            return [f"{self._doing}: {traceback.format_exc()}"]
        finally:
            self._remove()
        return []

    def _go(self) -> None:
        self._create()
        first = self._stored()
        if self.manifest.selector and self.kind == "ReplicaSet":
            self._is_refused("its selector", **self._image("v2"))
            return

        self._update("image", **self._image("v2"))
        partly = self._with_image("v3")
        self._update("template, to a pause", template=partly, pause_at="1")
        self._update("template, on from the pause", template=partly)
        there = self._stored()
        self._is("template", _merged(there), _merged(self._as_created(self._definition(partly))))

        self._rolls("image, to a pause", **self._image("v4"), pause_at="1")
        self._rolls("back from the pause", state="rolled_back")
        self._is("back from the pause", self._stored(), there)
        self._is_unchanged("back from the pause, again", state="rolled_back")

        defined = self._definition(self._with_image("v5"))
        self._update("definition", definition=defined)
        self._is("definition", self._stored(), self._as_created(defined))

        self._update("to_revision", state="rolled_back", to_revision=1)
        self._is("to_revision", self._stored(), first)
        self._doing = "info"
        params = {"kubeconfig": self.namespace.kubeconfig, "namespace": self.namespace.name, "name": self.name, "kind": self.kind}
        (told,) = task.info({**params, "pods": True})["rollouts"]
        if told["phase"] != "complete":
            raise Broken(f"info: the phase is {told['phase']}")

    # What is done

    def _create(self) -> None:
        self._doing = "create"
        try:
            self.namespace._call("POST", self._path(), self._definition(self.template, with_selector=True))
        except ApiException as error:
            raise Discarded(error.reason) from None
        eventually(self._is_available, f"{REPLICAS} pods", seconds=DEADLINE)

    def _update(self, what: str, **params: Any) -> None:
        """A task that has something to do, and again, when it has nothing left to do."""
        self._rolls(what, **params)
        self._is_unchanged(f"{what}, again", **params)

    def _rolls(self, what: str, **params: Any) -> None:
        self._doing = what
        planned, done = self._check(**params), self._roll(**params)
        if not done["changed"]:
            raise Broken(f"{what}: it has changed nothing: {done['msg']}")
        told = self._told_by_server if self.kind == "Deployment" else _without_times
        self._is(f"{what}: check mode's steps", told(planned["steps"]), told(done["steps"]))

    def _is_unchanged(self, what: str, **params: Any) -> None:
        self._doing = what
        before = self._object()["metadata"]["generation"]
        for result in (self._check(**params), self._roll(**params)):
            if result["changed"] or result["steps"]:
                raise Broken(f"{what}: it has changed something: {_line(result['steps'])}")
            wrote = {method for method, count in result["requests"].items() if count} - {"GET"}
            if wrote and not {"template", "definition"} & params.keys():  # whose dry runs are no writes
                raise Broken(f"{what}: it has sent {', '.join(wrote)}")
        if self._object()["metadata"]["generation"] != before:
            raise Broken(f"{what}: it has written")

    def _is_refused(self, reason: str, **params: Any) -> None:
        """With that sentence, and nothing is written."""
        before = self._object()["metadata"]["resourceVersion"]
        try:
            self._roll(**params)
        except RolloutError as error:
            if reason not in f"{error} {error.why}":
                raise
        else:
            raise Broken(f"not refused: {reason}")
        if self._object()["metadata"]["resourceVersion"] != before or self._successors():
            raise Broken(f"refused, but something was written: {reason}")

    def _roll(self, **params: Any) -> Json:
        return self.namespace.roll(**self._params(params))

    def _check(self, **params: Any) -> Json:
        return self.namespace.check(**self._params(params))

    def _params(self, params: Json) -> Json:
        return {"name": self.name, "kind": self.kind, "progress_deadline": DEADLINE, "record_events": False, **params}

    def _remove(self) -> None:
        for name in {self.name, *self._successors()}:
            with contextlib.suppress(ApiException):
                self.namespace._call("DELETE", self._path(name), {"propagationPolicy": "Background"})

    def _successors(self) -> list[str]:
        items = self.namespace._call("GET", self._path())["items"]
        names = [it["metadata"]["name"] for it in items if not it["metadata"].get("ownerReferences")]
        return [each for each in names if each.startswith(f"{self.name}-")]

    # What the user writes

    def _image(self, tag: str) -> Json:
        return {"image": self._tagged(tag), "container": self.container}

    def _tagged(self, tag: str) -> str:
        return f"registry.example.com:5000/{self.container}:{tag}"

    def _with_image(self, tag: str) -> Json:
        """Their own text, but for the image and a remark."""
        template = copy.deepcopy(self.template)
        template["spec"]["containers"][0]["image"] = self._tagged(tag)
        remarks = template["metadata"].get("annotations") or {}
        template["metadata"]["annotations"] = {**remarks, "example.com/changed": f"<{tag}> & \u2028 ü"}
        return template

    def _definition(self, template: Json, with_selector: bool = False) -> Json:
        """A whole manifest; a successor has another name and another selector, which the task finds."""
        labels = template["metadata"]["labels"]
        metadata = {"creationTimestamp": None, "labels": dict(labels)}
        spec: Json = {"template": template}
        if self.kind != "DaemonSet":
            spec["replicas"] = REPLICAS
        if with_selector or self.kind in STAYING:
            metadata["name"] = self.name
            expressions = {"matchLabels": dict(labels)} if self.manifest.selector is None else {
                **self.manifest.selector, "matchLabels": {**self.manifest.selector["matchLabels"], TRIP: labels[TRIP]}}
            chosen = {key: value for key, value in labels.items() if key != marks.HASH_LABEL}  # the server's own
            expressions["matchLabels"].pop(marks.HASH_LABEL, None)
            spec["selector"] = chosen if self.kind == "ReplicationController" else expressions
        if self.kind == "StatefulSet":
            spec["serviceName"] = self.name
        return {"apiVersion": "v1" if self.kind == "ReplicationController" else "apps/v1", "kind": self.kind,
                "metadata": metadata, "spec": spec, "status": {}}

    def _told_by_server(self, steps: list[Json]) -> list[Json]:
        """The sizes that the server changes are heard of one by one or not, and how it names a ReplicaSet nobody else can say."""
        told: list[Json] = []
        for step in _without_times(steps):
            if step["kind"] != "ReplicaSet":
                told.append(step)
                continue
            if not told or "sizes" not in told[-1]:
                told.append({"sizes": {}})
            first, _last = told[-1]["sizes"].get(step["name"], (step["from"], None))
            told[-1]["sizes"][step["name"]] = first, step["to"]
        return [{"sizes": sorted(step["sizes"].values())} if "sizes" in step else step for step in told]

    # What the API server says

    def _path(self, name: str = "") -> str:
        resource = f"{self.kind.lower()}s"
        return (self.namespace._path if self.kind == "ReplicationController" else self.namespace._apps)(resource, name)

    def _object(self) -> Json:
        return self.namespace._call("GET", self._path(self.name))

    def _stored(self) -> Json:
        it = self._object()
        left = {key for key in it["metadata"].get("annotations", {}) if key in marks.MARKS}
        if left:
            raise Broken(f"{self._doing}: marks are left: {', '.join(sorted(left))}")
        return _bare(it["spec"]["template"], self.kind)

    def _as_created(self, definition: Json) -> Json:
        """The template as it would be stored, had there been nothing before."""
        whole = self._definition(definition["spec"]["template"], with_selector=True)
        whole["metadata"]["name"] = f"{self.name}-expected"
        return _bare(self.namespace._call("POST", f"{self._path()}?dryRun=All", whole)["spec"]["template"], self.kind)

    def _is_available(self) -> bool:
        it = self._object()
        seen = it["status"].get("observedGeneration") == it["metadata"]["generation"]
        field = "numberAvailable" if self.kind == "DaemonSet" else "availableReplicas"
        return seen and it["status"].get(field, 0) == REPLICAS

    def _is(self, what: str, found: Any, expected: Any) -> None:
        found, expected = _canonical(found), _canonical(expected)
        if found != expected:
            at = next((index for index, (one, other) in enumerate(zip(found, expected, strict=False)) if one != other),
                      min(len(found), len(expected)))
            start = max(0, at - 60)
            raise Broken(f"{what}: ...{found[start:at + 120]}... instead of ...{expected[start:at + 120]}...")


class Refusal(Trip):
    """One manifest that the API server refuses, asked for in place of another one."""

    def __init__(self, namespace: Namespace, kind: str, manifest: Manifest, number: int) -> None:
        containers = [{"name": "app", "image": "example.com/plain:v1"}]
        plain = {"metadata": {"labels": {"app": "plain"}}, "spec": {"containers": containers}}
        super().__init__(namespace, kind, Manifest(manifest.name, plain), number)
        self._refused = {**manifest.template, "metadata": self.template["metadata"]}

    def _go(self) -> None:
        self._create()
        for what, asked in (("template", self._refused), ("definition", self._definition(self._refused))):
            self._doing = what
            self._is_refused("refused", **{what: asked})


def _choose_nodes(spec: Json) -> None:
    """Let a DaemonSet have its pods on the first nodes: what its author asks of a node decides how many pods there are."""
    for field in ("nodeName", "nodeSelector"):
        if spec.get(field):
            del spec[field]
    hostnames = [f"fake-{number}" for number in range(REPLICAS)]
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": hostnames}]}]
    affinity = spec["affinity"] = spec.get("affinity") or {}
    affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}),
                                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def _bare(template: Json, kind: str) -> Json:
    """A template without the label that is not its author's.

    A Deployment's own is lost on the way back (with kubectl rollout undo too): the server overwrites it in the ReplicaSets.
    """
    key = {"Deployment": marks.HASH_LABEL, "StatefulSet": marks.POD_REVISION}.get(kind, marks.DEPLOYMENT_LABEL)
    metadata = dict(template["metadata"])
    metadata["labels"] = {label: value for label, value in metadata["labels"].items() if label != key}
    return {**template, "metadata": metadata}


def _merged(value: Any) -> Any:
    """What a strategic merge is to bring: it puts ports of one number beside each other, and a policy that was there stays."""
    if isinstance(value, list):
        return [_merged(each) for each in value]
    if isinstance(value, dict):
        return {field: sorted(each, key=_canonical) if field in UNORDERED else _merged(each) for field, each in value.items()
                if field != "imagePullPolicy"}
    return value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, indent=0)


def _without_times(steps: list[Json]) -> list[Json]:
    return [{**step, "at": ""} for step in steps]


def _line(steps: list[Json]) -> str:
    return "; ".join(f"{step['action']} {step['name']}" for step in steps)



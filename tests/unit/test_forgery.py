# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that a user who forges a value gains nothing: no task does what the user has no permission
to do.

The first tests check that forged.py has values for everything that the code reads.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import functools
import itertools
import json
import os
import re
import typing as t
from pathlib import Path

import pytest
from cluster_models import ClusterModel, DaemonSetModel, DeploymentModel, StatefulSetModel
from documented import with_documented_keys
from forged import (
    DEEP_TEMPLATE,
    DOCUMENTS,
    FIELDS,
    IDLE,
    INVALID_VALUES,
    KEYS,
    LABELS,
    PAYMENTS,
    RECIPES,
    TEMPLATE,
    UID,
    output_problems,
)
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from idle_gateway import IdleGateway
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import related
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.simulated import (
    SimulatedGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover, provenance
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.daemonset import (
    observed as daemonset,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import (
    template_hash_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.simulated import (
    SimulatedMigration,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.server_driven.observed import (
    MAX_UNPROVEN_READY_SECONDS,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.statefulset.observed import (
    max_unavailable_pods,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    InternalError,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import apply_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    AUTOSCALER,
    REVISION,
    Create,
    Delete,
    Handover,
    Patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import (
    images_of,
    without_label,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import SimulatedClock

Json = dict[str, t.Any]

MODULE_UTILS = Path(__file__).parents[2] / "plugins" / "module_utils"
#: Number of examples of each property (0: the property's default).
EXAMPLES = int(os.environ.get("FORGERIES", "0"))


# Values that are read

#: Files that read only the user's options, results of the collection, or Prometheus.
OWN_DATA_READERS = ("cluster/connection.py", "cluster/kubeconfig.py", "cluster/exec_plugin.py",
                    "analysis/prometheus.py", "cluster/secrets.py", "analysis/spec.py",
                    "cluster/manifest_source.py", "model/label_selectors.py", "model/definition.py",
                    "model/options.py", "model/impossible.py", "analysis/outcome.py",
                    "run/driver.py", "run/fleet.py", "run/fleet_result.py", "run/places.py",
                    "run/deadlines.py", "task.py", "overview.py", "traffic/request.py")
READERS = [name for path in sorted(MODULE_UTILS.rglob("*.py"))
           if (name := str(path.relative_to(MODULE_UTILS))) not in OWN_DATA_READERS
           and not name.startswith("release/")]
#: Keys of patches, responses and a task's own data, which are not fields of clients' objects.
OWN_KEYS = {"op", "path", "value", "items", "resourceRules", "incomplete", "kind", "apiVersion",
            "container", "previous", "limit", "budgets", "autoscalers",
            "generateName", "resourceVersion", "generation", "metadata", "spec", "status",
            "annotations", "labels", "namespace",
            "kubectl", "causes", "details", "continue", "object", "horizontalpodautoscalers",
            "pods",
            "gitVersion", "columnDefinitions", "rows", "cells", "images",
            "groups", "versions", "version", "groupVersion", "msg"}
#: dict.get, and the functions of model/fields that read a field, under any imported name.
_FIELD_FUNCTIONS = {"mapping", "values", "objects", "text", "number", "get", "_map", "_list",
                    "_text", "_number"}


def fields_read(tree: ast.AST) -> set[str]:
    """Return the constant keys of all lookups."""
    fields = set()
    for node in ast.walk(tree):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            keys = [node.slice]
        elif isinstance(node, ast.Call):
            name = (node.func.attr if isinstance(node.func, ast.Attribute)
                    else getattr(node.func, "id", ""))
            # The second argument of get() is a default, not a key.
            keys = node.args[:1] if name == "get" else node.args if name in _FIELD_FUNCTIONS else []
        fields |= {key.value for key in keys
                   if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return {field for field in fields if re.fullmatch(r"[a-z][A-Za-z]*", field)}


def fields_with_forged_values() -> set[str]:
    """Return the fields in the tables of forged.py: parts of paths, and fields of documents."""
    parts = {part for paths in FIELDS.values() for path in paths for part in path.split(".")}
    fields = {field for key in KEYS for text in KEYS[key][:1] if text.startswith("{")
              for field in json.loads(text)}
    nested_fields = {"scaleUp", "rollingUpdate", "maxSurge", "maxUnavailable", "type", "template",
                     "selector", "metadata"}
    return parts | fields | nested_fields


@pytest.mark.parametrize("name", READERS)
def test_each_field_read_by_the_code_has_forged_values(name):
    fields = fields_read(ast.parse((MODULE_UTILS / name).read_text("utf-8")))

    assert fields - fields_with_forged_values() - OWN_KEYS == set()


def test_each_key_of_an_annotation_or_label_has_forged_values():
    """The keys are constants of object_meta, and similar texts in any file."""
    constants = {value
                 for name, value in vars(object_meta).items() if name.isupper()
                 and isinstance(value, str)}
    texts = {node.value for path in MODULE_UTILS.rglob("*.py")
             for node in ast.walk(ast.parse(path.read_text("utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    other_tools = r"argoproj\.io|fluxcd\.io|helm\.sh"
    similar = {text for text in texts
               if re.fullmatch(rf"[a-z.-]*(kubernetes\.io|baton\.kubernetes|{other_tools})/[a-z-]+",
                               text)}

    assert (constants | similar) - {"node.kubernetes.io/unschedulable"} - set(KEYS) == set()


def test_each_kind_of_object_read_by_the_code_has_forged_values():
    kinds = {field.lower() for field in FIELDS} | {kind.lower() for kind in Kind}

    assert {resource.removesuffix("s") for resource in related.API_PATHS} - kinds == set()


def test_fields_without_forged_values_are_detected():
    source = "text(item, 'secretWord'); item['other']; {}.get('third', 'fourth')"
    assert fields_read(ast.parse(source)) == {"secretWord", "other", "third"}


# A cluster with other users

SIZE, SURGE = 3, 1
SIZES = {"foo": SIZE, PAYMENTS: SIZE + 1}
FLOWS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet",
         "migration")
#: Kinds for which Kubernetes creates ControllerRevisions.
WITH_REVISIONS = ("StatefulSet", "DaemonSet")
#: The image whose pods never become ready.
BROKEN = "myimage:v3"
REQUESTED_IMAGES = {"myimage:v0", "myimage:v1", "myimage:v2", BROKEN, ""}


class Violation(AssertionError):
    """A task has done something that no annotation may cause."""


def controller(name: str, replicas: int, kind: str, image: str = "myimage:v0") -> Json:
    """Return a settled controller with labels of its own."""
    template = {"metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "web", "image": image}]}}
    labels = {"app": name}
    spec = {"replicas": replicas, "template": template,
            "selector": labels if kind == Kind.REPLICATION_CONTROLLER else
            {"matchLabels": labels}}
    if kind == Kind.DEPLOYMENT:
        spec |= {"strategy": {"type": "RollingUpdate",
                              "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                 "progressDeadlineSeconds": 600}
    if kind == Kind.STATEFUL_SET:
        spec |= {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
    if kind == Kind.DAEMON_SET:
        spec |= {"updateStrategy": {"type": "RollingUpdate",
                                    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    counts = dict.fromkeys((
        "replicas", "readyReplicas", "availableReplicas", "updatedReplicas",
        "desiredNumberScheduled", "currentNumberScheduled",
        "numberReady", "numberAvailable", "updatedNumberScheduled"), replicas)
    return {"kind": kind, "spec": spec, "status": {"observedGeneration": 1, **counts}, "metadata": {
        "name": name, "uid": UID.format(name), "resourceVersion": "1", "generation": 1,
        "labels": labels, "annotations": {},
        "namespace": "default"}}


def autoscaler(name: str, target: str, kind: str) -> Json:
    reference = {"kind": kind, "name": target,
                 "apiVersion": "v1" if kind == Kind.REPLICATION_CONTROLLER else "apps/v1"}
    return {"kind": AUTOSCALER,
            "metadata": {"name": name, "uid": UID.format(name), "annotations": {},
                         "namespace": "default"},
            "spec": {"minReplicas": 2, "maxReplicas": 5, "scaleTargetRef": reference}}


class Namespace(IdleGateway):
    """The cluster before the tasks; check mode takes it for the real cluster."""

    def __init__(self, kind: str) -> None:
        self.kind = Kind(kind)
        self.stored_items = [controller("foo", SIZE, kind),
                             controller(PAYMENTS, SIZES[PAYMENTS], kind), controller(IDLE, 0, kind)]
        self.scalers: list[Json] = []
        self.stored_revisions: list[Json] = []

    def items(self, kind: Kind | None = None) -> list[Json]:
        return self.stored_items if kind in (None, self.kind) else []

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        return {}

    def find(self, kind: str, name: str) -> Json | None:
        return next((item for item in self.stored_revisions
                     if kind == REVISION and item["metadata"]["name"] == name), None)

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return tuple(Pod(f"{name}-{number}", f"uid of {name}-{number}", item["metadata"]["labels"],
                         item["metadata"]["uid"])
                     for item in self.stored_items for name in [item["metadata"]["name"]]
                     for number in range(item["spec"]["replicas"])
                     if selector.items() <= item["metadata"]["labels"].items())

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        if self.kind in WITH_REVISIONS:
            return [item for item in self.stored_revisions if object_meta.owner_uid(item) in uids]
        return [item for item in self.stored_revisions
                if (item["metadata"].get("labels") or {}).get(object_meta.HISTORY) in uids]

    def objects(self, resource: str) -> list[Json] | None:
        return self.scalers if resource == "horizontalpodautoscalers" else []

    def dry_run(self, write: t.Any) -> Json:
        if isinstance(write, Patch):
            return apply_patch(next(item for item in self.stored_items
                                    if item["metadata"]["name"] == write.name), write)
        return write.manifest

    def absence_reason(self, name: str) -> str:
        return ""


@dataclasses.dataclass
class World:
    """A cluster model in which tasks run in check mode, one after another."""

    flow: str
    own_names: set[str] = dataclasses.field(default_factory=lambda: {"foo"})
    messages: list[t.Any] = dataclasses.field(default_factory=list)
    forged_name: str = ""
    #: Controllers of other users with the name of a successor.
    squatters: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        kind = Kind.REPLICATION_CONTROLLER if self.flow == "migration" else Kind(self.flow)
        self.real = Namespace(kind)
        self.kind = kind
        if self.flow == "migration":
            self.model: t.Any = SimulatedMigration(self.real.items(), self.real.find,
                                                   self.real.live_pods)
        elif kind == Kind.DEPLOYMENT:
            self.model = DeploymentModel(self.real.items(), [])
            self.model.settle()
        elif kind in WITH_REVISIONS:
            model_class = StatefulSetModel if kind == Kind.STATEFUL_SET else DaemonSetModel
            self.model = model_class(self.real.items())
            self.model.broken_images = frozenset({BROKEN})
            self.model.settle()
        else:
            self.model = ClusterModel(self.real.items(), kind, self.real.revisions)

    def copy(self) -> World:
        duplicate = World(self.flow, set(self.own_names))
        if isinstance(self.model, SimulatedMigration):
            for field in ("_items", "_pods"):
                setattr(duplicate.model, field, copy.copy(getattr(self.model, field)))
        else:
            duplicate.model = self.model.copy()
        if isinstance(self.model, ClusterModel):
            duplicate.model._look_up_revisions = duplicate.real.revisions
            duplicate.model._initial_uids = [UID.format("foo")]
        return duplicate

    # Objects

    def tables(self) -> list[dict]:
        if isinstance(self.model, DeploymentModel):
            return [self.model.items, self.model.sets.items]
        return [self.model._items if isinstance(self.model, SimulatedMigration)
                else self.model.items]

    def entries(self) -> dict[str, tuple[dict, t.Any, Json]]:
        """Return the table, the key and the object of every controller, by name."""
        return {item["metadata"]["name"]: (table, key, item) for table in self.tables()
                for key, item in table.items()
                if item and item["kind"] != REVISION}

    def annotate(self, name: str, annotations: t.Mapping[str, str | None]) -> None:
        """Set annotations, or remove those with None."""
        table, key, item = self.entries()[name]
        labels = {key: value for key, value in annotations.items() if key in LABELS}
        merged = {**(item["metadata"].get("annotations") or {}), **annotations}
        metadata = {**item["metadata"],
                    "annotations": {key: value for key, value in merged.items()
                                    if value is not None},
                    "labels": {**(item["metadata"].get("labels") or {}), **labels}}
        table[key] = {**item, "metadata": metadata}

    def has_initial_settings(self) -> bool:
        spec = self.entries()["foo"][2]["spec"]
        return (spec["strategy"].get("rollingUpdate")
                == {"maxSurge": "25%", "maxUnavailable": "25%"}
                and not spec.get("minReadySeconds") and not spec.get("paused"))

    def add_revisions(self, revisions: list[Json]) -> None:
        """Add forged revisions to those that the models of StatefulSets and DaemonSets create."""
        self.real.stored_revisions += revisions
        if self.flow in WITH_REVISIONS:
            own_revisions, self.model.stored_revisions = self.model.stored_revisions, {}
            self.model._look_up_revisions = lambda uids: [
                item for uid in uids for item in (*own_revisions.get(uid, ()), *revisions)
                if object_meta.owner_uid(item) == uid]

    def add_squatter(self, size: int, is_annotated: bool) -> None:
        """Add another user's controller with the name of the next successor."""
        if "foo" not in self.entries():
            return
        primary = Controller.from_api(self.entries()["foo"][2], self.kind)
        name, label = expected_successor(
            parse_request({"name": "foo", "kind": self.kind, "image": "myimage:v2"}), primary)
        if name in self.entries():
            return
        item = controller(name, size, self.kind, "evil:v1")
        item["spec"]["template"]["metadata"]["labels"] |= {
            "app": "foo", object_meta.DEPLOYMENT_LABEL: label}
        labels = item["spec"]["template"]["metadata"]["labels"]
        item["spec"]["selector"] = (labels if self.kind == Kind.REPLICATION_CONTROLLER
                                    else {"matchLabels": labels})
        if is_annotated:
            item["metadata"]["annotations"] = {object_meta.PARTNER: "foo",
                                               object_meta.PARTNER_UID: primary.uid,
                                               object_meta.DESIRED: str(SIZE),
                                               object_meta.ORIGINAL: str(SIZE),
                                               object_meta.LAST_ROLLOUT: KEYS[
                                                   object_meta.LAST_ROLLOUT][0]}
        note(f"a squatter with {size} pods, annotated: {is_annotated}")
        self.model.items[name] = self.model.cached[name] = item
        self.squatters.add(name)
        self.own_names.discard(name)  # a former ReplicaSet of the user may have had this name

    def is_own(self, name: str) -> bool:
        return name in self.own_names or self.is_own_replica_set(name)

    def is_own_replica_set(self, name: str) -> bool:
        entry = self.entries().get(name)
        owners = entry[2]["metadata"].get("ownerReferences", ()) if entry else ()
        return any(ref["name"] in self.own_names for ref in owners)

    def protected_objects(self) -> Json:
        """Return metadata and spec of the controllers that no task on foo may change."""
        state = {name: {"metadata": {key: value
                                     for key, value in item["metadata"].items()
                                     if key != "generation"},
                        "spec": item["spec"]}
                 for name, (_table, _key, item) in self.entries().items()
                 if not self.is_own(name) and name not in self.squatters}
        for item in state.values():  # the controller manager writes the revisions
            annotations = item["metadata"].get("annotations") or {}
            item["metadata"] = {**item["metadata"], "annotations": {
                key: value
                for key, value in annotations.items()
                if key not in (object_meta.REVISION, object_meta.FORMER_REVISIONS)}}
        return copy.deepcopy(state)

    def pods(self) -> list[t.Any]:
        """Return the pods of the user's controllers."""
        if self.flow in WITH_REVISIONS:
            return [pod for name in self.own_names & self.model.items.keys()
                    for pod in self.model.pods(name)]
        model = self.model.sets if isinstance(self.model, DeploymentModel) else self.model
        uids = {item["metadata"]["uid"]
                for name, (_table, _key, item) in self.entries().items() if self.is_own(name)}
        return [pod for pod in getattr(model, "pods", ()) if pod.owner_uid in uids]

    # Tasks

    def run(self, writes_before_kill: int | None = None, **params: t.Any) -> Json:
        """Run a task. Raises RolloutError, Killed or Violation, and any error of the code."""
        options = {"name": "foo", "kind": self.kind, "progress_deadline": 3, **params}
        if params.get("state") == "migrated":
            options["module"] = "migrate_to_deployment"
        request = parse_request(options)
        clock = SimulatedClock()
        gateway = CheckingGateway(self, request, clock, writes_before_kill)
        return with_documented_keys(
            driver.run(choose(request), request, gateway, clock, self.messages.append))

    def info(self) -> Json:
        request = parse_request({"name": "any", "kind": self.kind, "state": "rolled_back"})
        gateway = CheckingGateway(self, request, SimulatedClock(), 0)
        return {"rollouts": task._rollouts(choose(request), request, gateway, {"name": None})}


class CheckingGateway(SimulatedGateway):
    """Gateway that checks each write before the model applies it, and the pods afterwards.

    Without the first check, a billion simulated pods could exhaust the memory.
    """

    def __init__(self, world: World, request: Request, clock: SimulatedClock,
                 writes_before_kill: int | None) -> None:
        super().__init__(world.real, clock.sleep, world.model)
        self.world, self.request, self.writes_left = world, request, writes_before_kill
        self.kind = world.kind

    def write(self, write: t.Any) -> bool:
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise Killed
            self.writes_left -= 1
        self.check_write(write)
        is_applied = super().write(write)
        if is_applied:
            if isinstance(write, Create):
                self.world.own_names.add(write.name)
                # the squatter of this name, if any, has been deleted by its owner
                self.world.squatters.discard(write.name)
            self.check_pods()
        return is_applied

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        return len(write.pods) if self.write(write) else 0

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self.check_pods()

    def check_write(self, write: t.Any) -> None:
        """Raise Violation for a write that no forged annotation may cause."""
        if isinstance(write, Handover):
            self.check_hand_over(write)
            return
        if write.kind == "Pod":
            self.check_pod_write(write)
            return
        if not identity.is_name(write.name):
            raise Violation(f"writes to {write.name!r}")
        if write.kind == AUTOSCALER:
            self.check_autoscaler(write)
            return
        self.check_target(write)
        max_unavailable = (daemonset.max_unavailable_pods if self.kind == Kind.DAEMON_SET
                           else max_unavailable_pods)
        body = write.manifest if isinstance(write, Create) else {}
        spec = body.get("spec") or {}
        for path, value in operations(write, spec):
            if path == "/spec/replicas" and not 0 <= value <= SIZES[self.request.name]:
                raise Violation(f"{write.name} is scaled to {value}")
            if path == "/spec/strategy" and value.get("type") != "RollingUpdate":
                raise Violation(f"{write.name} gets the strategy {value}")
            if (path == "/spec/updateStrategy"
                    and max_unavailable(value.get("rollingUpdate") or {}, SIZE) > 1):
                raise Violation(f"{write.name} gets the strategy {value}")
            if (path == "/spec/minReadySeconds" and self.kind in WITH_REVISIONS
                    and value > MAX_UNPROVEN_READY_SECONDS):
                raise Violation(f"{write.name} gets minReadySeconds {value}")
            if path == "/spec/template" and not set(images_of(value).values()) <= REQUESTED_IMAGES:
                raise Violation(f"{write.name} gets the images {images_of(value)}")

    def check_target(self, write: t.Any) -> None:
        has_expected_name = (write.name == self.request.name
                             or write.name.startswith(f"{self.request.name}-"))
        if write.kind == REVISION:
            if not has_expected_name:
                raise Violation(f"writes the {write.kind} {write.name}")
        # the owner of the squatter could make the same writes, but no pods may be added
        elif write.name in self.world.squatters and not isinstance(write, Create):
            sizes = [value for path, value in operations(write, {}) if path == "/spec/replicas"]
            stored_item = self.world.entries()[write.name][2]
            if any(size > stored_item["spec"]["replicas"] for size in sizes):
                raise Violation(f"another user's {write.name} gets pods")
        elif not (has_expected_name or write.name == self.request.next_name) or not (
                isinstance(write, Create) or self.world.is_own(write.name)):
            raise Violation(f"writes to {write.kind} {write.name}: {write}")

    def check_pod_write(self, write: t.Any) -> None:
        """Allow the deletion of an unready pod, which is then recreated.

        A task with pause_at may delete any pod of its DaemonSet. check_pods() limits the number of
        unready pods.
        """
        if self.kind == Kind.DAEMON_SET:
            pods = [pod.name for pod in self.world.model.pods(self.request.name)]
            if not self.request.pause_at or not isinstance(write, Delete) or write.name not in pods:
                raise Violation(f"deletes the pod {write.name}: {write}")
            return
        name, _dash, number = write.name.rpartition("-")
        ready_ordinals = ([pod.ordinal for pod in self.world.model.pods(name) if pod.ready]
                          if name == self.request.name else None)
        if not isinstance(write, Delete) or ready_ordinals is None or int(number) in ready_ordinals:
            raise Violation(f"deletes the pod {write.name}: {write}")

    def check_hand_over(self, write: Handover) -> None:
        names_by_uid = {item["metadata"]["uid"]: name
                        for name, (_table, _key, item) in self.world.entries().items()}
        for uid in (write.source_uid, write.target_reference["uid"]):
            if uid in names_by_uid and not self.world.is_own(names_by_uid[uid]):
                raise Violation(f"another user's {names_by_uid[uid]} gives or gets pods: {write}")

    def check_autoscaler(self, write: Patch) -> None:
        scaler = next(item for item in self.objects("horizontalpodautoscalers") or ()
                      if item["metadata"]["name"] == write.name)
        if scaler["spec"]["scaleTargetRef"]["name"] != self.request.name:
            raise Violation(f"writes to the autoscaler of another controller: {write.name}")
        for operation in write.operations:
            if (operation["path"] == "/spec/minReplicas" and operation["op"] == "add"
                    and operation["value"] not in range(6)):
                raise Violation(f"minReplicas of {write.name} becomes {operation['value']!r}")

    def check_pods(self) -> None:
        pods, size = self.world.pods(), SIZES[self.request.name]
        if self.world.flow in WITH_REVISIONS:
            if len(pods) > size or sum(pod.ready for pod in pods) < size - 1:
                raise Violation(f"{len(pods)} pods, {sum(pod.ready for pod in pods)} of them ready")
            return
        if len(pods) > size + SURGE:
            raise Violation(f"{len(pods)} pods")
        if (not isinstance(self.world.model, SimulatedMigration)
                and sum(pod.ready for pod in pods) < size):
            raise Violation(f"only {sum(pod.ready for pod in pods)} pods are ready")


def operations(write: t.Any, spec: Json) -> list[tuple[str, t.Any]]:
    """Return what a write stores, as pairs of a path and a value."""
    if isinstance(write, Patch):
        return [(operation["path"], operation["value"]) for operation in write.operations
                if operation["op"] in ("add", "replace")]
    return [(f"/spec/{field}", value) for field, value in spec.items()]


# Properties

#: By phase, the tasks before the forgery. The last one is killed after some writes.
EARLIER_TASKS: dict[str, list[Json]] = {
    "idle": [],
    "updating": [{"image": "myimage:v2"}],
    "paused": [{"image": "myimage:v2", "pause_at": "1"}],
    "rolling back": [{"image": "myimage:v2", "pause_at": "2"}, {"state": "rolled_back"}],
    "restarting": [{"state": "restarted"}],
    "replacing": [{"image": "myimage:v2", "next_name": "foo-two"}],
    "stuck": [{"image": BROKEN}],
    "stuck, and rolling back": [{"image": BROKEN}, {"state": "rolled_back"}],
    "migrating": [{"state": "migrated"}],
}
TASKS: dict[str, Json] = {
    "updated": {"image": "myimage:v2"},
    "unchanged": {"image": "myimage:v1"},
    "rolled back": {"state": "rolled_back"},
    "to revision": {"state": "rolled_back", "to_revision": 1},
    "to the previous one": {"state": "rolled_back", "to_revision": "previous"},
    "restarted": {"state": "restarted"},
    "paused": {"image": "myimage:v2", "pause_at": "1"},
    "soaked": {"image": "myimage:v2", "pause_at": "1", "soak": "1m"},
    "replaced": {"image": "myimage:v2", "next_name": "foo-two"},
    "migrated": {"state": "migrated"},
}


#: Wrong values of plausible types: most are too large.
WRONG_VALUES = (2**31 - 2, 300, True, "myimage:v0",
                {"type": "RollingUpdate",
                 "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}})


def is_valid_for(flow: str, params: Json) -> bool:
    if flow == "migration":
        return params.get("state") == "migrated"
    if params.get("image") == BROKEN and flow not in WITH_REVISIONS:
        return False
    return (params.get("state") != "migrated"
            and not (flow in ("Deployment", *WITH_REVISIONS) and "next_name" in params))


def phases_of(flow: str) -> list[str]:
    return [phase for phase, tasks in EARLIER_TASKS.items()
            if all(is_valid_for(flow, task) for task in tasks)]


@functools.cache
def world_after(flow: str, phase: str, write_count: int, is_settled: bool) -> World:
    """Return a cached world after an update of foo and the start of another one.

    Tests must change only copies.
    """
    world = World(flow)
    if flow != "migration":
        world.run(image="myimage:v1")
        world.model.settle()
    *earlier_tasks, killed_task = EARLIER_TASKS[phase] or [None]
    for params in earlier_tasks:
        outcome(functools.partial(world.run, **params))
    if killed_task is not None:
        with contextlib.suppress(Killed, RolloutError):
            world.run(writes_before_kill=write_count, **killed_task)
    if is_settled:
        world.model.settle()
    return world


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a namespace in the middle of an update, or at rest."""
    flow = draw(st.sampled_from(FLOWS))
    phase = draw(st.sampled_from(phases_of(flow)))
    write_count = draw(st.integers(0, 14)) if EARLIER_TASKS[phase] else 0
    note(f"{flow}, {phase}, killed after {write_count} writes")
    return world_after(flow, phase, write_count, draw(st.booleans())).copy()


def texts(key: str) -> st.SearchStrategy[str]:
    """Draw texts for an annotation: values in KEYS, and random texts."""
    any_json = st.recursive(st.sampled_from(INVALID_VALUES) | st.integers() | st.text(max_size=20),
                            lambda inner: st.lists(inner, max_size=2)
                            | st.dictionaries(st.text(max_size=5), inner, max_size=2),
                            max_leaves=4).map(json.dumps)
    return st.sampled_from(KEYS[key]) | st.sampled_from(KEYS[key]) | st.text(max_size=30) | any_json


@st.composite
def forgeries(draw: st.DrawFn, world: World) -> tuple[str, dict[str, str]]:
    """Draw the name of a controller, and its forged annotations.

    Only one controller is forged: a user who may annotate several can do nearly anything.
    """
    if draw(st.booleans()):
        recipe = draw(st.sampled_from(sorted(RECIPES)))
        ((name, annotations),) = list(RECIPES[recipe].items())[-1:]
        return name, annotations
    name = draw(st.sampled_from(["foo", *sorted(world.entries())]))
    annotations = ((world.entries()[name][2]["metadata"].get("annotations") or {})
                   if name in world.entries() else {})
    stored_keys = [key for key in DOCUMENTS if key in annotations]
    if stored_keys and draw(st.booleans()):  # a plausible document with one wrong field
        key = draw(st.sampled_from(stored_keys))
        document = json.loads(annotations[key])
        field = draw(st.sampled_from(sorted(document)))
        changed_mapping = (document[field] if isinstance(document[field], dict) and document[field]
                           and draw(st.booleans()) else document)
        wrong_values = st.sampled_from(WRONG_VALUES) | st.sampled_from(INVALID_VALUES)
        changed_mapping[draw(st.sampled_from(sorted(changed_mapping)))
                        if changed_mapping is not document else field] = draw(wrong_values)
        return name, {key: json.dumps(document)}
    keys = draw(st.lists(st.sampled_from(sorted(KEYS)) | st.sampled_from(sorted(DOCUMENTS)),
                         min_size=1,
                         max_size=4, unique=True))
    return name, {key: draw(texts(key)) for key in keys}


def real_hash(world: World) -> str:
    """Return the hash that a real migration of foo would store."""
    template = world.entries()["foo"][2]["spec"]["template"] if "foo" in world.entries() else {}
    controller = Controller.from_api({"metadata": {"name": "foo"}, "spec": {"template": template}})
    return template_hash_of(Request("foo"), controller)


@st.composite
def revisions(draw: st.DrawFn, world: World) -> list[Json]:
    """Draw forged ControllerRevisions: of a history, or of a migration."""
    item = world.entries().get("foo")
    uid = item[2]["metadata"]["uid"] if item else "x"
    items = []
    manifest = controller("foo", 300, Kind.REPLICATION_CONTROLLER, "evil:v1")
    manifest["spec"] |= {"selector": {"app": PAYMENTS}, "minReadySeconds": 0}
    migration_data = [{"hash": value, "uid": uid, "manifest": document}
                      for value in ("0123456789", "../../secrets/db", real_hash(world))
                      for document in (manifest, {})]
    for number in range(draw(st.integers(0, 2))):
        data = draw(st.just({"template": json.dumps(TEMPLATE)})
                    | st.just({"template": DEEP_TEMPLATE})
                    | st.just({"spec": {"template": TEMPLATE}}) | st.sampled_from(migration_data)
                    | st.sampled_from(INVALID_VALUES))
        labels = draw(st.sampled_from([{object_meta.HISTORY: uid},
                                       {object_meta.SERVER_HISTORY: "0"}, {}]))
        owners = draw(st.sampled_from([[],
                                       [{"kind": "x", "name": "x", "uid": uid,
                                         "controller": True}]]))
        name = "foo-migration" if world.flow == "migration" else f"mine-{number}"
        revision = draw(st.sampled_from([0, 1, 2, 3, 2**63 - 1]))
        record = draw(texts(object_meta.LAST_ROLLOUT))
        items.append({"kind": REVISION, "revision": revision, "data": data,
                      "metadata": {"name": name, "labels": labels, "ownerReferences": owners,
                                   "annotations": {object_meta.LAST_ROLLOUT: record}}})
    return items


def property_test(examples: int) -> t.Callable[[t.Any], t.Any]:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=EXAMPLES or examples, suppress_health_check=checks,
                    print_blob=True)


def outcome(work: t.Callable[[], Json]) -> Json:
    """Return the result of a task, even of a failed task. Raises InternalError."""
    try:
        return work()
    except InternalError:
        raise
    except RolloutError as error:
        return error.as_result()


@property_test(100)
@given(st.data())
def test_tasks_without_forged_annotations_change_no_other_objects(data):
    """Check the premise of the properties below."""
    world = data.draw(worlds())
    params = data.draw(st.sampled_from([task for task in TASKS.values()
                                        if is_valid_for(world.flow, task)]))
    note(f"{params}")
    before = world.protected_objects()

    result = outcome(functools.partial(world.run, **params))

    note(f"{result}")
    assert world.protected_objects() == before and output_problems(result) == []


def forged_world(data: t.Any) -> World:
    """Draw a world with forged annotations on a controller and forged related objects."""
    world = data.draw(worlds())
    name, annotations = data.draw(forgeries(world))
    note(f"{name}: {({key: value[:300] for key, value in annotations.items()})}")
    if name in world.entries():
        world.annotate(name, annotations)
        world.forged_name = name
    if world.flow in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET) and data.draw(st.booleans()):
        world.add_squatter(data.draw(st.sampled_from([0, SIZE])), data.draw(st.booleans()))
    if data.draw(st.booleans()):
        world.real.scalers = [autoscaler("hpa", "foo", world.kind),
                              autoscaler("hpa-of-payments", PAYMENTS, world.kind)]
        scaler = data.draw(st.sampled_from(world.real.scalers))
        scaler["metadata"]["annotations"] = {
            object_meta.FROZEN: data.draw(texts(object_meta.FROZEN))}
        note(f"{scaler['metadata']}")
    if data.draw(st.booleans()):
        world.add_revisions(data.draw(revisions(world)))
        note(f"{world.real.stored_revisions}"[:1000])
    return world


@property_test(30)
@given(st.sampled_from([Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET]), st.integers(0, 14),
       st.sampled_from([task for task in TASKS.values() if task.get("state") == "rolled_back"]))
def test_forged_successor_gets_no_pods_by_a_rollback(flow, write_count, params):
    world = world_after(flow, "updating", write_count, True).copy()
    world.add_squatter(SIZE, True)
    before = world.protected_objects()

    outcome(functools.partial(world.run, **params))

    assert world.protected_objects() == before


@pytest.mark.parametrize("forged_name", [None, "$(x)", "absent"])
@pytest.mark.parametrize("flow", [Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET])
def test_no_second_successor_is_created_without_the_name_of_the_first(flow, forged_name):
    """Only next_name and the annotation give the name. The third write records the uid."""
    tasks = [params for params in TASKS.values() if is_valid_for(flow, params)]
    for write_count, params in itertools.product(range(3, 8), tasks):
        world = world_after(flow, "replacing", write_count, True).copy()
        names = set(world.entries())
        world.annotate("foo", {object_meta.PARTNER: forged_name})

        outcome(functools.partial(world.run, **params))

        assert "foo-two" in names and set(world.entries()) <= names, (
            f"{write_count} writes, then {params}")
        assert not any(line.startswith("create foo") for line in world.messages), (
            f"{write_count} writes, then {params}")


@property_test(250)
@given(st.data())
def test_forged_annotations_cause_no_change_beyond_the_request(data):
    world = forged_world(data)
    params = data.draw(st.sampled_from([task for task in TASKS.values()
                                        if is_valid_for(world.flow, task)]))
    note(f"{params}")
    before = world.protected_objects()

    result = outcome(functools.partial(world.run, **params))

    assert world.protected_objects() == before
    assert (world.flow != "Deployment" or "failure" in result
            or result["rollout"]["phase"] != "complete" or world.has_initial_settings())
    assert output_problems(result) == [] and [problem for line in world.messages
                                              for problem in output_problems(line)] == []


def records_for(request: Request, controller: Controller) -> dict[str, str]:
    """Return records that a user can forge for a request, with the hashes of this request.

    No hash has a key, so any user who knows the task can compute these hashes.
    """
    template_hash = provenance.digest(controller.template, request.label_key)
    fields = {
        object_meta.TAKEOVER: {"next": "absent", "replicas": SIZE, "priorityClassName": None,
                               "request": request.fingerprint, "template": template_hash},
        object_meta.LAST_ROLLOUT: {
            "outcome": "updated",
            "request": provenance.record_entry(request.fingerprint, controller, request.label_key),
            "template": template_hash_without_label(controller)},
        object_meta.SOAK: {"template": template_hash_without_label(controller), "passed": SIZE}}
    return {object_meta.SUCCESSOR_HASH: handover.stored_template_hash(controller.template),
            **{key: json.dumps({**DOCUMENTS[key], **changes}) for key, changes in fields.items()}}


def template_hash_without_label(controller: Controller) -> str:
    return identity.digest(without_label(controller.template, controller.kind.server_label))


@property_test(150)
@given(st.data())
def test_forged_record_for_the_request_does_not_replace_an_update(data):
    world = data.draw(worlds())
    assume("foo" in world.entries())
    params = data.draw(st.sampled_from([
        task for task in TASKS.values() if is_valid_for(world.flow, task)
        and ("image" in task or task["state"] == "restarted")] or [{}]))
    assume(params)
    controller = Controller.from_api(world.entries()["foo"][2], world.kind)
    records = records_for(parse_request({"name": "foo", "kind": world.kind, **params}), controller)
    if controller.has_takeover:
        del records[object_meta.TAKEOVER]  # only forge a handover that has not begun
    keys = data.draw(st.lists(st.sampled_from(sorted(records)), min_size=1, unique=True))
    note(f"{params}, {keys}")
    world.annotate("foo", {key: records[key] for key in keys})

    result = outcome(functools.partial(world.run, **params))

    note(f"{result}")
    if "failure" not in result and result["rollout"]["phase"] == "complete":
        survivor = "foo" if "foo" in world.entries() else params["next_name"]
        template = world.entries()[survivor][2]["spec"]["template"]
        assert (object_meta.RESTART in (template["metadata"].get("annotations") or {})
                if "image" not in params
                else images_of(template) == {"web": params["image"]}), result["msg"]


@property_test(100)
@given(st.data())
def test_the_info_module_lists_all_rollouts_despite_forged_annotations(data):
    world = forged_world(data)

    result = world.info()

    names = [rollout["name"] for rollout in result["rollouts"]]
    assert PAYMENTS in names or world.forged_name == PAYMENTS
    assert output_problems(result) == []


@pytest.mark.sample
@pytest.mark.parametrize("flow, phase", [
    (flow, phase) for flow in FLOWS for phase in phases_of(flow)
    if phase not in ("idle", "migrating")  # without documents in annotations
])
def test_the_info_module_escapes_the_text_of_each_field_of_each_record(flow, phase):
    """Forge each field alone: a random forgery rarely leaves all other fields valid."""
    text = "\x1b[2J\nNext:\n  rm -rf /"
    cases = [(world, name, forgery)
             for world in (world_after(flow, phase, count, False) for count in (2, 4, 11))
             for name in world.entries()
             for forgery in annotations_with_text(world, name, text)]
    assert cases
    for world, name, forgery in cases:
        forged = world.copy()
        forged.annotate(name, forgery)

        assert output_problems(forged.info()) == [], f"{name}: {forgery}"


def annotations_with_text(world: World, name: str, text: str) -> t.Iterator[dict[str, str]]:
    """Yield forgeries of the stored documents of a controller, with the text in one field."""
    annotations = world.entries()[name][2]["metadata"].get("annotations") or {}
    for key in DOCUMENTS.keys() & annotations.keys():
        document = json.loads(annotations[key])
        for field, value in document.items():
            yield {key: json.dumps({**document, field: text})}
            if field in ("from", "to"):
                yield {key: json.dumps({**document, field: dict.fromkeys(value, text)})}


@property_test(100)
@given(st.data())
def test_forged_annotations_on_foo_do_not_affect_tasks_on_other_controllers(data):
    world = forged_world(data)
    is_migrating = (world.flow == "migration"
                    and any(name.startswith("foo-") for name in world.entries()))
    assume(world.forged_name != PAYMENTS and not is_migrating)
    world.model.settle()  # the update in progress continues by itself
    world.real.scalers = world.real.scalers[:1]
    world.own_names = {PAYMENTS}
    before = world.protected_objects()
    params = {"state": "migrated"} if world.flow == "migration" else {"image": "myimage:v2"}

    result = outcome(lambda: world.run(**params, name=PAYMENTS))

    assert result["changed"] and "failure" not in result, result["msg"]
    assert world.protected_objects() == before and output_problems(result) == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play thousands of random histories (see history.py) per minute, on check mode's cluster model."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import typing as t

import typed_commands
from builders import rc
from cluster_models import ClusterModel, DaemonSetModel, DeploymentModel, StatefulSetModel
from clusters import Cluster
from history import (
    BROKEN,
    FIRST_IMAGE,
    KINDS,
    SERVER_DRIVEN,
    Json,
    TaskRun,
    describe_controller,
    describe_revision,
)
from writes import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    InternalError,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import apply_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

#: Kinds whose model stores the pods by the name of their controller.
KINDS_WITH_PODS_BY_NAME = (Kind.STATEFUL_SET, Kind.DAEMON_SET)
STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}


class Pod(t.NamedTuple):
    """Pod of a ControllerModel, with the image of the template from which it was created."""

    owner_uid: str
    labels: tuple[tuple[str, str], ...]
    ready: bool
    cached_owner_uid: str
    image: str


class ControllerModel(ClusterModel):
    """ReplicationControllers or ReplicaSets. Another client may change their templates."""

    def _new_pod(self, controller: Controller, ready: bool) -> t.Any:
        (image,) = controller.images.values()
        return Pod(*super()._new_pod(controller, ready), image)


class PodCountingCluster(Cluster):
    def __init__(self, kind: Kind, replicas: int, image: str = FIRST_IMAGE,
                 fields: Json | None = None) -> None:
        super().__init__()
        self.kind, fields = kind, fields or {}
        item = {**rc(replicas=replicas, image=image, available=0 if image == BROKEN else None),
                "kind": str(kind)}
        if kind is not Kind.REPLICATION_CONTROLLER:
            item["spec"] = {**item["spec"], "selector": {"matchLabels": item["spec"]["selector"]}}
        if kind is Kind.DEPLOYMENT:
            item["spec"] |= {"strategy": STRATEGY, **fields}
            item["status"] = {}
            self.cluster = DeploymentModel([item], [])
        elif kind is Kind.STATEFUL_SET:
            item["spec"] |= {"updateStrategy": {"type": "RollingUpdate",
                                                "rollingUpdate": {"partition": 0}}, **fields}
            item["status"] = {}
            self.cluster = StatefulSetModel([item])
            self.cluster.broken_images = frozenset({BROKEN})
        elif kind is Kind.DAEMON_SET:
            del item["spec"]["replicas"]
            numbers = {"maxSurge": 0, "maxUnavailable": 1}
            item["spec"] |= {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": numbers},
                             **fields}
            item["status"] = {"desiredNumberScheduled": replicas}
            # The only supported label is that of Namespace.add_nodes().
            self.cluster = DaemonSetModel([item], look_up_nodes=lambda selector: frozenset(
                {selector.replace("number=", "node ")}))
            self.cluster.broken_images = frozenset({BROKEN})
            # Pod names contain this counter. Start high, so that they differ from the pod names in
            # check mode's copy, which starts at 0.
            self.cluster._syncs = 10_000
        else:
            self.cluster = ControllerModel([item], kind)
        self.on_wait = self.settle
        self.settle()
        self.budgets: list[Json] = []
        #: (number of a write, whether the kill follows it), as in DEATHS (history.py).
        self.death: tuple[int, bool] | None = None
        #: The fewest ready pods and the most pods since the task began.
        self.min_ready, self.max_pods = 10**9, 0

    @property
    def model_with_pods(self) -> ClusterModel:
        return self.cluster.sets if self.kind is Kind.DEPLOYMENT else self.cluster

    def settle(self) -> None:
        while moves := self.cluster.moves():
            self.cluster.make(moves[0])
            self.check_pods()

    @property
    def pods(self) -> list[t.Any]:
        return list(self.cluster.pods("foo") if self.kind in KINDS_WITH_PODS_BY_NAME
                    else self.model_with_pods.pods)

    def check_pods(self) -> None:
        pods = self.pods
        self.min_ready = min(getattr(self, "min_ready", 0), sum(pod.ready for pod in pods))
        self.max_pods = max(getattr(self, "max_pods", 0), len(pods))
        assert self.kind in KINDS_WITH_PODS_BY_NAME or all(pod.owner_uid for pod in pods), (
            "a pod without a controller")

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return (self.cluster if self.kind in KINDS_WITH_PODS_BY_NAME
                else super()).troubled_pods(controller)

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        return self.cluster.all_pods(controller, excluded_revision)

    def nodes(self, selector: str) -> frozenset[str]:
        return self.cluster.nodes(selector)

    def objects(self, resource: str) -> list[Json]:
        return self.budgets if resource == "poddisruptionbudgets" else super().objects(resource)

    def items(self, kind: Kind | None = None) -> list[Json]:
        cluster = self.cluster if kind in (None, self.kind) else self.model_with_pods
        return list(copy.deepcopy(cluster.items).values())

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return self.cluster.revisions(uids)

    def find(self, kind: str, name: str) -> Json | None:
        return self.cluster.find(kind, name)

    def dry_run(self, write: t.Any) -> Json:
        return (write.manifest if isinstance(write, Create)
                else apply_patch(self.cluster.items[write.name], write))

    def write(self, write: t.Any) -> bool:
        number, follows_write = self.death or (0, False)
        if len(self.attempts) + 1 == number and not follows_write:
            raise Killed
        is_written = super().write(write)
        self.check_pods()
        if len(self.attempts) == number:
            raise Killed
        return is_written

    def hand_over(self, write: t.Any, may_continue: t.Callable[[], bool]) -> int:
        return sum(self.write(dataclasses.replace(write, pods=(pod,))) for pod in write.pods)


class SimulatedWorld:
    """A World without the actions that need a real API server."""

    has_all_actions = False

    def configure(self, clock_ahead: float, pods_end_slowly: bool) -> None:
        """Ignore conditions that only a real API server has."""

    def close(self) -> None:
        return

    def create(self, kind: str, replicas: int, image: str, fields: Json) -> None:
        self.gateway = PodCountingCluster(Kind(kind), replicas, image, fields)

    def task(self, params: Json, death: tuple[int, bool] | None, floor: int,
             ceiling: int | None) -> TaskRun:
        gateway = self.gateway
        gateway.attempts, gateway.death, gateway.min_ready, gateway.max_pods = [], death, 10**9, 0
        try:
            run = self._run(params, gateway.run)
        except Killed:
            run = TaskRun("killed")
        gateway.death = None
        assert gateway.min_ready >= floor, (
            f"only {gateway.min_ready} pods were ready instead of {floor}")
        assert ceiling is None or gateway.max_pods <= ceiling, (
            f"{gateway.max_pods} pods instead of at most {ceiling}")
        return run

    def check(self, params: Json) -> TaskRun:
        return self._run(params,
                         lambda request: driver.simulate(choose(request), request, self.gateway))

    def wait_until_idle(self) -> None:
        self.gateway.settle()

    def names(self, kind: str) -> list[str]:
        items = self._items(kind)
        return sorted(name
                      for name, item in items.items()
                      if not item["metadata"].get("ownerReferences"))

    def get(self, kind: str, name: str) -> Json | None:
        return self._items(kind).get(name)

    def pods(self) -> list[tuple[str, str, bool]]:
        if self.gateway.kind in KINDS_WITH_PODS_BY_NAME:
            uid = self._items(self.gateway.kind)["foo"]["metadata"]["uid"]
            revisions = map(object_meta.server_revision, self.gateway.revisions([uid]))
            templates = {revision.pod_revision: revision.template
                         for revision in revisions if revision}
            return [("foo", templates[pod.revision]["spec"]["containers"][0]["image"], pod.ready)
                    for pod in self.gateway.pods]
        owners = {item["metadata"]["uid"]: item
                  for item in self.gateway.model_with_pods.items.values()}
        pods = []
        for pod in self.gateway.pods:
            item = owners.get(pod.owner_uid)
            image = pod.image if isinstance(pod, Pod) else (
                dict(pod.labels) and item
                and item["spec"]["template"]["spec"]["containers"][0]["image"])
            metadata = item["metadata"] if item else {"name": ""}
            (owner, *_owners) = metadata.get("ownerReferences") or [metadata]
            pods.append((owner["name"], image or "", pod.ready))
        return pods

    def scale(self, kind: str, name: str, replicas: int) -> None:
        if self.gateway.kind is Kind.DAEMON_SET:
            self.gateway.cluster.set_nodes(name, [f"node {number}" for number in range(replicas)])
            return
        self._change(kind, name, lambda spec: spec.update(replicas=replicas))

    def delete_pod(self, index: int) -> None:
        pods = self.gateway.pods
        if not pods:
            return
        del pods[index % len(pods)]
        if self.gateway.kind in KINDS_WITH_PODS_BY_NAME:
            self.gateway.cluster._pods["foo"] = tuple(pods)
        else:
            self.gateway.model_with_pods.pods[:] = pods

    def edit(self, kind: str, name: str, text: str) -> None:
        env = [{"name": "TEXT", "value": text}]
        self._change(kind, name,
                     lambda spec: spec["template"]["spec"]["containers"][0].update(env=env))

    def remove_annotations(self, kind: str, name: str) -> None:
        item = copy.deepcopy(self._items(kind)[name])
        item["metadata"].pop("annotations", None)
        self._store(kind, name, item)

    def set_user_fields(self, kind: str, name: str, fields: Json) -> None:
        self._change(kind, name, lambda spec: spec.update(fields))

    def recreate(self, kind: str, name: str, replicas: int, image: str) -> None:
        return

    def add_finalizer(self, kind: str, name: str) -> None:
        return

    def run_kubectl(self, words: list[str]) -> None:
        verb, arguments, flags = typed_commands.parse_kubectl(words)
        name = arguments[-1]
        if verb == "scale":
            self._change(str(self.gateway.kind), name,
                         lambda spec: spec.update(replicas=int(flags["--replicas"])))
        elif verb == "rollout" and arguments[0] == "resume":
            self._change("Deployment", name.removeprefix("deployment/"),
                         lambda spec: spec.pop("paused"))
        elif verb == "delete" and arguments[0] in ("pod", "pods"):
            names = [pod.name for pod in self.gateway.live_pods({})]
            for pod in arguments[1:]:
                self.delete_pod(names.index(pod))
        elif verb == "annotate":
            kind = "ReplicaSet" if arguments[0] == "rs" else str(self.gateway.kind)
            self.annotate(kind, arguments[1], typed_commands.annotation_changes(arguments[2:]))
        elif verb == "patch" and arguments[0] == "pdb":
            self.budget({field: value for field, value in json.loads(flags["-p"])["spec"].items()
                         if value is not None})
        else:
            raise AssertionError(f"unsupported command: {words}")

    def annotate(self, kind: str, name: str, changes: t.Mapping[str, str | None]) -> None:
        """Set annotations. None removes an annotation."""
        item = copy.deepcopy(self._items(kind)[name])
        annotations = {**item["metadata"].get("annotations", {}), **changes}
        item["metadata"]["annotations"] = {key: value for key, value in annotations.items()
                                           if value is not None}
        self._store(kind, name, item)

    def apply(self, kind: str, replicas: int) -> None:
        item = copy.deepcopy(self._items(kind)["foo"])
        metadata, spec = item["metadata"], item["spec"]
        has_other_selector = spec["selector"] != _selector(kind)
        if has_other_selector and not Kind(kind).has_mutable_selector:
            return
        # Other fields, such as labels and annotations of the update, belong to other clients.
        template = spec["template"]
        template["spec"]["containers"][0]["image"] = FIRST_IMAGE
        spec["selector"] = _selector(kind)
        if kind != "DaemonSet":
            spec["replicas"] = replicas
        if spec != self._items(kind)["foo"]["spec"]:
            metadata["generation"] = metadata.get("generation", 1) + 1
        self._store(kind, "foo", item)

    def budget(self, spec: Json) -> None:
        self.gateway.budgets = [{"metadata": {"name": "budget", "uid": "uid of budget"},
                                 "spec": {"selector": {}, **spec}}]

    def restart_controller_manager(self) -> None:
        return

    def autoscale(self, kind: str, name: str) -> None:
        return

    def autoscaler(self) -> Json | None:
        return None

    def remaining_leases(self) -> list[str]:
        return []

    def describe(self) -> list[str]:
        items = [(kind, item) for kind in KINDS for item in self._items(kind).values()]
        uids = [item["metadata"]["uid"] for _kind, item in items]
        return [*itertools.starmap(describe_controller, items),
                *map(describe_revision, self.gateway.revisions(uids) or ()),
                *map(str, self.gateway.pods)]

    def _items(self, kind: str) -> dict[str, Json]:
        if kind == self.gateway.kind:
            return self.gateway.cluster.items
        return (self.gateway.cluster.sets.items
                if (kind, self.gateway.kind) == ("ReplicaSet", "Deployment") else {})

    def _change(self, kind: str, name: str, change: t.Callable[[Json], None]) -> None:
        item = copy.deepcopy(self._items(kind)[name])
        change(item["spec"])
        item["metadata"]["generation"] = item["metadata"].get("generation", 1) + 1
        self._store(kind, name, item)

    def _store(self, kind: str, name: str, item: Json) -> None:
        if kind in SERVER_DRIVEN:
            self.gateway.cluster.items[name] = item
        else:
            self.gateway.model_with_pods._store(name, item)

    @staticmethod
    def _run(params: Json, execute: t.Callable[[t.Any], Json]) -> TaskRun:
        try:
            result = execute(parse_request({"namespace": "default", **params}))
        except InternalError:
            raise
        except RolloutError as error:
            return TaskRun("refused", error.progress, error.message)
        return TaskRun("done", result, result["msg"])


def _selector(kind: str) -> Json:
    """Return the selector in the first manifest."""
    labels = rc()["spec"]["selector"]
    return labels if kind == "ReplicationController" else {"matchLabels": labels}

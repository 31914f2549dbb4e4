# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Extend the models of check mode, so that tests can make single changes and copy the state.

tests/integration compares the models with real clusters.
"""

from __future__ import annotations

import copy
import json
import re
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.daemonset.simulated import (
    SimulatedDaemonSets,
    pod_label_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.simulated import (
    SimulatedDeployments,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.simulated import (
    MAX_PODS,
    SimulatedCluster,
    has_status_counts,
    is_terminating,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.statefulset.simulated import (
    SimulatedStatefulSets,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta, observed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import Deployment
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Patch,
    Write,
    put,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

Json = dict[str, t.Any]

#: Maximum number of changes that the controller manager has not received yet.
MAX_LAG = 1


class Pod(t.NamedTuple):
    """Pod of a ClusterModel."""

    owner_uid: str
    labels: tuple[tuple[str, str], ...]
    ready: bool
    #: The owner in the controller manager's cache, possibly an earlier owner.
    cached_owner_uid: str


class Move(t.NamedTuple):
    """Change made by the cluster.

    deliver: the controller manager receives the next change of a controller.
    deliver-owner: the controller manager receives the change of a pod's owner.
    sync: the controller manager syncs a controller other than a Deployment.
    roll: the controller manager syncs a Deployment.
    finalize: the finalizers of an object in deletion are removed.
    collect: the garbage collector deletes the pods of a deleted controller.
    ready: a pod becomes ready.
    end: a terminating pod has terminated.
    """

    verb: str
    #: The name of the object, or the uid of the pod's owner.
    name: str


class SettlingMixin:
    """Mixin that makes moves of a model until none remains."""

    def settle(self) -> bool:
        """Make moves until none remains. Return whether there was any."""
        has_changed = False
        while moves := self.moves():
            self.make(moves[0])
            has_changed = True
        return has_changed


class ClusterModel(SettlingMixin, SimulatedCluster):
    """ReplicationControllers or ReplicaSets, and a lagging controller manager."""

    #: Whether pods take time to terminate. In check mode, they terminate immediately.
    terminates_slowly = False

    def __init__(self, items: t.Iterable[Json] = (), kind: Kind = Kind.REPLICATION_CONTROLLER,
                 look_up_revisions: t.Any = None) -> None:
        super().__init__(items, kind, look_up_revisions)
        #: The controller manager's cache of controllers, by name.
        self.cached = {name: item for name, item in self.items.items() if _size(item) <= MAX_PODS}
        #: Changes that the controller manager has not received yet: (name, new object).
        self.undelivered: list[tuple[str, Json | None]] = []
        self.terminating: list[Pod] = []

    def copy(self) -> ClusterModel:
        duplicate = copy.copy(self)
        duplicate.items, duplicate.cached = dict(self.items), dict(self.cached)
        duplicate.stored_revisions = dict(self.stored_revisions)
        duplicate.undelivered = list(self.undelivered)
        duplicate.pods = list(self.pods)
        duplicate.terminating = list(self.terminating)
        return duplicate

    def terminating_pods(self, selector: Json) -> tuple[observed.TerminatingPod, ...]:
        kind = str(self.kind)
        return tuple(observed.TerminatingPod(f"{pod.owner_uid}-{number}", kind, pod.owner_uid, "",
                                             (), dict(pod.labels))
                     for number, pod in enumerate(self.terminating)
                     if selector.items() <= dict(pod.labels).items())

    def _used_uids(self) -> set[str]:
        cached_uids = {item["metadata"].get("uid", "") for item in self.cached.values()}
        return {pod.owner_uid for pod in self.pods} | cached_uids

    def _store(self, name: str, item: Json | None) -> None:
        super()._store(name, item)
        if self.undelivered and self.undelivered[-1][0] == name:
            self.undelivered.pop()
        self.undelivered.append((name, item))
        if len(self.undelivered) > MAX_LAG:
            self._deliver()

    def _deliver(self) -> None:
        name, item = self.undelivered.pop(0)
        self.cached.pop(name, None)
        if item is not None:
            self.cached[name] = item

    def moves(self) -> list[Move]:
        moves = [Move("deliver", name) for name, _item in self.undelivered[:1]]
        moves += [Move("deliver-owner", pod.owner_uid) for pod in self.pods
                  if pod.owner_uid != pod.cached_owner_uid][:1]
        moves += [Move("sync", name) for name in sorted(self.cached) if self._sync(name)
                  is not None]
        uids = {item["metadata"].get("uid", "") for item in self.items.values()}
        moves += [Move("finalize", name) for name, item in sorted(self.items.items())
                  if is_terminating(item)]
        owners = {pod.owner_uid for pod in self.pods}
        moves += [Move("collect", uid) for uid in sorted(owners - uids - {""})]
        moves += [Move("ready", uid)
                  for uid in sorted({pod.owner_uid for pod in self.pods if not pod.ready})]
        moves += [Move("end", uid) for uid in sorted({pod.owner_uid for pod in self.terminating})]
        return moves

    def make(self, move: Move) -> None:
        methods = {"deliver": self._deliver_controller, "deliver-owner": self._deliver_owner,
                   "sync": self._sync_controller,
                   "finalize": self._remove_finalizers, "collect": self._collect_pods,
                   "ready": self._set_pod_ready, "end": self._end_pod}
        methods[move.verb](move.name)

    def _deliver_controller(self, _name: str) -> None:
        self._deliver()

    def _deliver_owner(self, _owner: str) -> None:
        self._change_first_pod(lambda pod: pod.owner_uid != pod.cached_owner_uid,
                               lambda pod: pod._replace(cached_owner_uid=pod.owner_uid))

    def _sync_controller(self, name: str) -> None:
        self.pods, removed_pods, status = self._sync(name)
        self._terminate(removed_pods)
        item = self.items.get(name)
        if item and item["metadata"].get("uid") == self.cached[name]["metadata"].get("uid"):
            self.items[name] = {**item, "status": status}

    def _remove_finalizers(self, name: str) -> None:
        self._store(name, None)

    def _collect_pods(self, uid: str) -> None:
        self._terminate([pod for pod in self.pods if pod.owner_uid == uid])
        self.pods = [pod for pod in self.pods if pod.owner_uid != uid]

    def _set_pod_ready(self, uid: str) -> None:
        self._change_first_pod(lambda pod: pod.owner_uid == uid and not pod.ready,
                               lambda pod: pod._replace(ready=True))

    def _end_pod(self, uid: str) -> None:
        self.terminating.remove(next(pod for pod in self.terminating if pod.owner_uid == uid))

    def _change_first_pod(self, matches: t.Callable[[Pod], bool],
                          change: t.Callable[[Pod], Pod]) -> None:
        index = next(index for index, pod in enumerate(self.pods) if matches(pod))
        self.pods[index] = change(self.pods[index])

    def _terminate(self, pods: list[Pod]) -> None:
        """Begin to terminate pods. Reset irrelevant fields, so that equivalent states are equal."""
        if self.terminates_slowly:
            terminating_pods = [pod._replace(ready=False, cached_owner_uid="") for pod in pods]
            self.terminating = sorted([*self.terminating, *terminating_pods])

    def _sync(self, name: str) -> tuple[list[Pod], list[Pod], Json] | None:
        """Return (pods, deleted pods, status) after a sync of the cached controller.

        Return None if the sync would fail or change nothing.
        """
        controller = Controller.from_api(self.cached[name], self.kind)
        item = self.items.get(name)
        exists = item is not None and item["metadata"].get("uid", "") == controller.uid
        may_adopt = exists and not item["metadata"].get("deletionTimestamp")
        own_and_other_pods = _claim_pods(controller, self.pods, bool(may_adopt))
        if own_and_other_pods is None:
            return None
        own_pods, other_pods = own_and_other_pods
        own_pods, removed_pods, status = self._pods_after_sync(controller, own_pods)
        pods = sorted(other_pods + own_pods)
        if pods == sorted(self.pods) and (not exists or has_status_counts(item, status)):
            return None
        return pods, removed_pods, status

    def _new_pod(self, controller: Controller, ready: bool) -> Pod:
        return Pod(*super()._new_pod(controller, ready), cached_owner_uid=controller.uid)


def _claim_pods(controller: Controller, pods: list[Pod], may_adopt: bool,
                ) -> tuple[list[Pod], list[Pod]] | None:
    """Return (pods of the controller, other pods) after adoptions and releases.

    Return None if it would have to adopt a pod although may_adopt is False.
    """
    own_pods, other_pods = [], []
    for pod in pods:
        matches = controller.selector.items() <= dict(pod.labels).items()
        if pod.cached_owner_uid == controller.uid and (matches or controller.is_deleting):
            own_pods.append(pod)
        elif pod.cached_owner_uid == controller.uid:
            is_owner = pod.owner_uid == controller.uid
            other_pods.append(pod._replace(owner_uid="", cached_owner_uid="") if is_owner else pod)
        elif pod.cached_owner_uid == "" and matches and not controller.is_deleting:
            if not may_adopt:
                return None
            own_pods.append(pod._replace(owner_uid=controller.uid, cached_owner_uid=controller.uid))
        else:
            other_pods.append(pod)
    return own_pods, other_pods


def _size(item: Json) -> int:
    return max(item["spec"].get("replicas", 1), (item.get("status") or {}).get("replicas", 0))


def refuse_invalid_settings(spec: Json, kind: Kind) -> None:
    """Raise AssertionError if the API server would refuse the settings of an update.

    Source: ValidateDeploymentSpec, validateDaemonSetSpec and ValidateStatefulSetSpec in
    pkg/apis/apps/validation/validation.go.
    """
    for field in ("minReadySeconds", "progressDeadlineSeconds", "revisionHistoryLimit"):
        value = spec.get(field)
        assert value is None or (_is_int(value) and 0 <= value < 2**31), f"{field}: {value!r}"
    deadline, seconds = spec.get("progressDeadlineSeconds"), spec.get("minReadySeconds") or 0
    assert deadline is None or deadline > seconds, (
        f"progressDeadlineSeconds ({deadline}) must be greater than minReadySeconds ({seconds})")
    strategy = spec["strategy" if kind is Kind.DEPLOYMENT else "updateStrategy"]
    numbers = strategy.get("rollingUpdate")
    if strategy["type"] != "RollingUpdate":
        assert kind is Kind.DAEMON_SET or numbers is None, strategy
        return
    sizes = {field: _int_or_percent(numbers[field])
             for field in ("maxSurge", "maxUnavailable") if field in (numbers or {})}
    is_percent_valid = {field: size <= 100 or not str(numbers[field]).endswith("%")
                        for field, size in sizes.items()}
    assert is_percent_valid.get("maxUnavailable", True), strategy
    if kind is Kind.STATEFUL_SET:
        partition = (numbers or {}).get("partition", 0)
        assert _is_int(partition) and partition >= 0, strategy
        assert sizes.get("maxUnavailable") != 0 and "maxSurge" not in sizes, strategy
    elif kind is Kind.DEPLOYMENT:
        assert sum(({"maxSurge": 25, "maxUnavailable": 25} | sizes).values()), strategy
    else:
        counts = {"maxSurge": 0, "maxUnavailable": 1} | sizes
        assert is_percent_valid.get("maxSurge", True), strategy
        assert list(map(bool, counts.values())).count(True) == 1, strategy


def _is_int(value: t.Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _int_or_percent(value: t.Any) -> int:
    """Return the number in an IntOrString, as getIntOrPercentValue does."""
    is_valid = (_is_int(value) and 0 <= value < 2**31) or (
        isinstance(value, str) and re.fullmatch("[0-9]+%", value))
    assert is_valid, f"{value!r} is neither a number nor a percentage"
    return int(str(value).removesuffix("%"))


class DeploymentModel(SettlingMixin, SimulatedDeployments):
    """Deployments, with their ReplicaSets in a ClusterModel."""

    def __init__(self, items: t.Iterable[Json], sets: t.Iterable[Json] = ()) -> None:
        super().__init__(items, ())
        self.sets = ClusterModel(sets, Kind.REPLICA_SET)

    #: Why the API server refuses to create ReplicaSets, or "".
    creation_failure = ""

    def copy(self) -> DeploymentModel:
        duplicate = copy.copy(self)
        duplicate.items, duplicate.sets = dict(self.items), self.sets.copy()
        return duplicate

    def write(self, write: Write) -> bool:
        """Apply a write. Raises AssertionError if the API server would refuse the Deployment."""
        is_written = super().write(write)
        if item := self.items.get(write.name):
            refuse_invalid_settings(item["spec"], Kind.DEPLOYMENT)
        return is_written

    def moves(self) -> list[Move]:
        return self.sets.moves() + [Move("roll", name) for name in self._unsynced_names()]

    def _next_write(self, name: str) -> Write | None:
        write = self._wanted_write(name)
        return None if self.creation_failure and isinstance(write, Create) else write

    def _status(self, name: str) -> Json:
        if not (self.creation_failure and isinstance(self._wanted_write(name), Create)):
            return super()._status(name)
        # getNewReplicaSet in pkg/controller/deployment/sync.go updates only this condition
        condition = {"type": "Progressing", "status": "False", "reason": "ReplicaSetCreateError",
                     "message": self.creation_failure}
        return {**self.items[name].get("status", {}), "conditions": [condition]}

    def _wanted_write(self, name: str) -> Write | None:
        """Return the next change, which may scale the ReplicaSets of a paused Deployment.

        Kubernetes distributes missing or surplus replicas over all ReplicaSets: scale() in
        pkg/controller/deployment/sync.go. This model changes only the largest one.
        """
        primary = Deployment.from_api(self.items[name])
        if not primary.settings["paused"]:
            return super()._next_write(name)
        observation = find(primary, self.sets.controllers())
        active_sets = [replica_set for replica_set in observation.replica_sets
                       if replica_set.replicas]
        rolling_update = primary.settings["strategy"].get("rollingUpdate")
        if len(active_sets) < 2 or rolling_update is None:
            return super()._next_write(name)
        limit = primary.replicas + Size.from_api(rolling_update["maxSurge"]).resolve(
            primary.replicas, round_up=True)
        difference = limit - sum(replica_set.replicas for replica_set in active_sets)
        largest = max(active_sets, key=lambda replica_set: replica_set.replicas)
        if not difference:
            return super()._next_write(name)
        return Patch(largest.name, (put("/spec/replicas", max(0, largest.replicas + difference)),))

    def make(self, move: Move) -> None:
        if move.verb == "roll":
            self._sync(move.name)
        else:
            self.sets.make(move)


class RevisionModel:
    """Mixin for StatefulSets and DaemonSets. Pods with a broken image never become ready."""

    broken_images: frozenset[str] = frozenset()
    kind: t.ClassVar[Kind]

    def write(self, write: Write) -> bool:
        """Apply a write. Raises AssertionError if the API server would refuse the object."""
        is_written = super().write(write)
        if item := self.items.get(write.name):
            refuse_invalid_settings(item["spec"], self.kind)
        return is_written

    def copy(self) -> t.Self:
        duplicate = copy.copy(self)
        for field in ("items", "stored_revisions", "_pods", "_nodes"):
            if hasattr(self, field):
                setattr(duplicate, field, dict(getattr(self, field)))
        return duplicate

    def moves(self) -> list[Move]:
        moves = [Move("sync", name) for name in sorted(self.items)
                 if self._state_after_sync(name) != self._state(name)]
        moves += [Move("ready", pod.name) for name in sorted(self.items)
                  for pod in self.pods(name) if not pod.ready and not self._is_broken(name, pod)]
        return moves

    def make(self, move: Move) -> None:
        if move.verb == "sync":
            self._set_state(move.name, self._state_after_sync(move.name))
        else:
            self._set_ready(move.name)

    def _make_pod_ready(self, kept_unready: t.Container[str]) -> bool:
        names = [move.name for move in self.moves() if move.verb == "ready"]
        if name := next((name for name in names if name not in kept_unready), ""):
            self._set_ready(name)
        return bool(name)

    def _is_broken(self, name: str, pod: t.Any) -> bool:
        uid = self.items[name]["metadata"].get("uid", "")
        revision = next((item for item in self.revisions([uid])
                         if self._pod_label(item) == pod.revision), None)
        return (revision is not None
                and _image(revision["data"]["spec"]["template"]) in self.broken_images)


class StatefulSetModel(RevisionModel, SimulatedStatefulSets):
    @staticmethod
    def _pod_label(revision: Json) -> str:
        return revision["metadata"]["name"]


class DaemonSetModel(RevisionModel, SimulatedDaemonSets):
    """DaemonSets whose nodes a test can change."""

    _pod_label = staticmethod(pod_label_of)

    #: The time since which all pods are ready, in RFC 3339, or "".
    ready_since = ""

    def _pod_object(self, controller: Controller, pod: t.Any) -> Json:
        item = super()._pod_object(controller, pod)
        item["status"]["conditions"][0]["lastTransitionTime"] = self.ready_since
        return item

    def set_nodes(self, name: str, nodes: t.Iterable[str], *,
                  keep_other_pods: bool = False) -> None:
        """Set the nodes of a DaemonSet, and delete the other nodes and their pods.

        keep_other_pods: keep the pods of the other nodes, as if these were only tainted.
        """
        pods = self.pods(name)
        self._nodes[name] = tuple(sorted(nodes))
        self._pods[name] = tuple(pod for pod in pods
                                 if keep_other_pods or pod.node in self._nodes[name])


def _image(template: Json) -> str:
    return template["spec"]["containers"][0]["image"]


def foo_of(model):
    return model.controllers()["foo"]


def record(model):
    """Return the record of foo's last update."""
    return json.loads(model.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT])


def write_record(model, text):
    """Replace the record of foo's last update, as another client could."""
    model.items["foo"] = json.loads(json.dumps(model.items["foo"]))
    model.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = text

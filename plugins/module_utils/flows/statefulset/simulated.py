# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""StatefulSets in memory, for check mode and for the tests that explore what may happen. Pure.

A small model of the server's StatefulSet controller (updateStatefulSet in pkg/controller/statefulset/stateful_set_control.go): one
change of a pod per turn, and the status after it. Pods that are deleted are gone at once. Without the feature gate
MaxUnavailableStatefulSet.
"""

from __future__ import annotations

import copy
import typing as t

from ...model import marks, observed
from ...model.by_server import StatefulSet
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.steps import Delete, Patch, Write
from ..by_revisions.simulated import is_broken, revision_of, trimmed, written
from ..flow import Model
from ..simulated import MOST_PODS, Move
from .find import StatefulSetPod


class Pod(t.NamedTuple):
    """A pod by its number: the ControllerRevision that it was made from, and whether it is ready (and so available)."""

    number: int
    revision: str
    ready: bool


class SimulatedStatefulSets(Model):
    """The StatefulSets of one namespace, their pods and their ControllerRevisions."""

    def __init__(self, items: t.Iterable[Json],
                 look_up_revisions: t.Callable[[t.Sequence[str]], list[Json] | None] = lambda _uids: [],
                 troubled: t.Callable[[Controller], list[Json]] = lambda _controller: []) -> None:
        """look_up_revisions and troubled: what the real cluster has of ControllerRevisions, and of pods that are not ready."""
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self._look_up_revisions, self._troubled = look_up_revisions, troubled
        #: ControllerRevisions by the uid of their StatefulSet, and the pods by its name, once somebody has asked for them.
        self.kept: dict[str, tuple[Json, ...]] = {}
        self._pods: dict[str, tuple[Pod, ...]] = {}
        #: Templates of which no pod ever gets ready, by image.
        self.broken: frozenset[str] = frozenset()
        #: Pods that were not ready at first may never be: somebody who looks meanwhile has to see them so.
        self._late: set[Move] = set()

    def copy(self) -> SimulatedStatefulSets:
        """An independent one in the same state."""
        other = copy.copy(self)
        other.items, other.kept, other._pods = dict(self.items), dict(self.kept), dict(self._pods)
        return other

    # What a client sees and does

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        return {name: StatefulSet.from_api(item) for name, item in self.items.items()} if kind in (None, Kind.STATEFUL_SET) else {}

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return [item for uid in uids for item in self._kept(uid)]

    def troubled_pods(self, controller: Controller) -> list[Json]:
        owners = [controller.reference]
        return [{"metadata": {"name": f"{controller.name}-{pod.number}", "uid": _uid(pod), "resourceVersion": str(pod.ready),
                              "labels": {marks.POD_REVISION: pod.revision}, "ownerReferences": owners}, "status": {}}
                for pod in self.pods(controller.name) if not pod.ready]

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        """Of all StatefulSets: whose they are is asked anyway."""
        return tuple(observed.Pod(f"{name}-{pod.number}", _uid(pod), {marks.POD_REVISION: pod.revision},
                                  item["metadata"].get("uid", ""))
                     for name, item in self.items.items() for pod in self.pods(name))

    def write(self, write: Write) -> bool:
        """Carry out a patch of a StatefulSet, or the deletion of a pod; False when what it assumes does not hold."""
        if isinstance(write, Delete):
            return self._delete_pod(write)
        item = self.items.get(write.name)
        if item is None or not isinstance(write, Patch):
            return False
        if changed := written(item, write):
            self.items[write.name] = changed
        return changed is not None

    def _delete_pod(self, write: Delete) -> bool:
        name = write.name.rpartition("-")[0]
        there = [pod for pod in self.pods(name) if f"{name}-{pod.number}" == write.name] if name in self.items else []
        if not there or write.preconditions != {"uid": _uid(there[0]), "resourceVersion": str(there[0].ready)}:
            return False
        self._pods[name] = tuple(pod for pod in self.pods(name) if pod is not there[0])
        return True

    # What the cluster does by itself

    def moves(self) -> list[Move]:
        """Everything that may happen next; empty when the cluster has come to rest."""
        found = [Move("sync", name) for name in sorted(self.items) if self._sync(name) != self._state(name)]
        return found + [Move("ready", f"{name}-{pod.number}") for name in sorted(self.items) for pod in self.pods(name)
                        if not pod.ready and not self._is_broken(name, pod)]

    def make(self, move: Move) -> None:
        """Let one of the moves happen."""
        if move.verb == "sync":
            self._pods[move.name], status, revisions = self._sync(move.name)
            item = self.items[move.name]
            self.items[move.name] = {**item, "status": status}
            self.kept[item["metadata"].get("uid", "")] = revisions
            return
        name = move.name.rpartition("-")[0]
        pods = self.pods(name)
        self._pods[name] = tuple(pod._replace(ready=True) if f"{name}-{pod.number}" == move.name else pod for pod in pods)

    def settle(self) -> None:
        """Let everything happen that can, for instance every pod become ready; one that was not ready at first, after all else."""
        early = [move for move in self.moves() if move not in self._late]
        while moves := [move for move in self.moves() if not early or move not in self._late]:
            self.make(moves[0])

    def pods(self, name: str) -> tuple[Pod, ...]:
        """The pods of a StatefulSet, by their numbers; of one with more than a model can have, none."""
        if name not in self._pods:
            it = t.cast(StatefulSet, self.controllers()[name])
            troubled = {pod.number: pod for pod in map(StatefulSetPod.from_api, self._troubled(it)) if not pod.is_ready}
            self._late |= {Move("ready", f"{name}-{number}") for number in troubled}
            numbers = range(it.start, it.start + (it.current if it.current <= MOST_PODS else 0))
            made = [Pod(number, it.current_revision if number < numbers.stop - it.updated else it.update_revision, True)
                    for number in numbers]
            self._pods[name] = tuple(pod._replace(ready=False, revision=troubled[pod.number].revision or pod.revision)
                                     if pod.number in troubled else pod for pod in made)
        return self._pods[name]

    def _kept(self, uid: str) -> tuple[Json, ...]:
        if uid not in self.kept:
            self.kept[uid] = tuple(filter(marks.server_revision, self._look_up_revisions([uid]) or ()))  # not what others have made
        return self.kept[uid]

    def _is_broken(self, name: str, pod: Pod) -> bool:
        kept = self._kept(self.items[name]["metadata"].get("uid", ""))
        return is_broken(next((it for it in kept if it["metadata"]["name"] == pod.revision), None), self.broken)

    def _state(self, name: str) -> tuple[tuple[Pod, ...], Json, tuple[Json, ...]]:
        item = self.items[name]
        return self.pods(name), item.get("status") or {}, self._kept(item["metadata"].get("uid", ""))

    def _sync(self, name: str) -> tuple[tuple[Pod, ...], Json, tuple[Json, ...]]:
        """Pods, status and ControllerRevisions after the server's controller has worked on it once."""
        item, it = self.items[name], t.cast(StatefulSet, self.controllers()[name])
        if it.replicas > MOST_PODS:
            return self._state(name)
        present, revisions = revision_of(it, self._kept(it.uid))
        update = present["metadata"]["name"]
        names = {each["metadata"]["name"] for each in revisions}
        current = it.current_revision if it.current_revision in names else update
        is_parallel = item["spec"].get("podManagementPolicy") == "Parallel"
        pods = _turn(it, {pod.number: pod for pod in self.pods(name)}, current, update, is_parallel)
        ready = sum(pod.ready for pod in pods)
        updated = sum(pod.revision == update for pod in pods)
        if it.is_replaced_by_server and updated == ready == len(pods) == it.replicas:
            current = update
        live = {current, update, *(pod.revision for pod in pods)}
        revisions = trimmed(it, revisions, present, lambda each: each["metadata"]["name"] in live, counts_live=False)
        status = {"observedGeneration": it.generation, "replicas": len(pods), "readyReplicas": ready, "availableReplicas": ready,
                  "updatedReplicas": updated, "currentRevision": current, "updateRevision": update}
        before = item.get("status") or {}
        is_same = all(before.get(field, 0) == value for field, value in status.items())
        return pods, before if is_same else {**before, **status}, revisions


def _turn(it: StatefulSet, pods: dict[int, Pod], current: str, update: str, is_parallel: bool) -> tuple[Pod, ...]:
    """The pods after one change: those that are missing come first, then those that are too many go, then old ones."""

    def result(*, without: int | None = None) -> tuple[Pod, ...]:
        return tuple(pod for number, pod in sorted(pods.items()) if number != without)

    if it.is_deleting:
        return result()
    numbers = range(it.start, it.start + it.replicas)
    for number in numbers:
        if number not in pods:
            is_kept = it.is_replaced_by_server and number < it.start + it.partition
            pods[number] = Pod(number, current if is_kept else update, ready=False)
            return result()
        if not pods[number].ready and not is_parallel:
            return result()
    if beyond := pods.keys() - set(numbers):
        return result(without=max(beyond))
    for number in reversed(numbers[it.partition:] if it.is_replaced_by_server else ()):
        if pods[number].revision != update:
            return result(without=number)
        if not pods[number].ready:
            return result()
    return result()


def _uid(pod: Pod) -> str:
    return f"{pod.number} of {pod.revision}"

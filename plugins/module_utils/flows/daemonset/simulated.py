# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DaemonSets in memory, for check mode and for the tests that explore what may happen. Pure.

A small model of the server's DaemonSet controller (manage and rollingUpdate in pkg/controller/daemon): one change of a pod per
turn, and the status after it. Pods that are deleted are gone at once. Nodes are names, and each of them takes a pod.
"""

from __future__ import annotations

import copy
import itertools
import typing as t

from ...model import marks, observed
from ...model.by_server import DaemonSet
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.steps import Delete, Patch, Write
from ...model.thresholds import Size
from ..by_revisions.simulated import is_broken, revision_of, trimmed, written
from ..flow import Model
from ..simulated import MOST_PODS, Move
from .find import DaemonPod, most_missing


class Pod(t.NamedTuple):
    """A pod: its node, from which ControllerRevision it was made (the label), and whether it is ready (and so available)."""

    name: str
    uid: str
    node: str
    revision: str
    ready: bool
    #: The number of its template (the deprecated label), where the DaemonSet has one.
    generation: str = ""


class SimulatedDaemonSets(Model):
    """The DaemonSets of one namespace, their pods and their ControllerRevisions."""

    def __init__(self, items: t.Iterable[Json],
                 look_up_revisions: t.Callable[[t.Sequence[str]], list[Json] | None] = lambda _uids: [],
                 look_up_pods: t.Callable[[Controller], list[Json] | None] = lambda _controller: None,
                 nodes: t.Callable[[str], frozenset[str]] = lambda _selector: frozenset()) -> None:
        """look_up_revisions, look_up_pods and nodes: what the real cluster has of these."""
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        self._look_up_revisions, self._look_up_pods, self._look_up_nodes = look_up_revisions, look_up_pods, nodes
        #: ControllerRevisions by the uid of their DaemonSet, and the pods and nodes by its name, once somebody has asked for them.
        self.kept: dict[str, tuple[Json, ...]] = {}
        self._pods: dict[str, tuple[Pod, ...]] = {}
        self._nodes: dict[str, tuple[str, ...]] = {}
        #: Templates of which no pod ever gets ready, by image.
        self.broken: frozenset[str] = frozenset()
        #: Pods that were not ready at first may never be: somebody who looks meanwhile has to see them so.
        self._late: set[Move] = set()
        self._made = 0

    def copy(self) -> SimulatedDaemonSets:
        """An independent one in the same state."""
        other = copy.copy(self)
        other.items, other.kept = dict(self.items), dict(self.kept)
        other._pods, other._nodes = dict(self._pods), dict(self._nodes)
        return other

    # What a client sees and does

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        return {name: DaemonSet.from_api(item) for name, item in self.items.items()} if kind in (None, Kind.DAEMON_SET) else {}

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return [item for uid in uids for item in self._kept(uid)]

    def all_pods(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        owners = [controller.reference]
        return [{"metadata": {"name": pod.name, "uid": pod.uid, "resourceVersion": str(pod.ready),
                              "labels": {marks.POD_REVISION: pod.revision, marks.POD_GENERATION: pod.generation},
                              "ownerReferences": owners},
                 "spec": {"nodeName": pod.node}, "status": {"conditions": [{"type": "Ready", "status": str(pod.ready)}]}}
                for pod in self.pods(controller.name) if pod.revision != but_of]

    def nodes(self, selector: str) -> frozenset[str]:
        return self._look_up_nodes(selector)

    def troubled_pods(self, controller: Controller) -> list[Json]:
        pods = {pod.name for pod in self.pods(controller.name) if not pod.ready}
        return [item for item in self.all_pods(controller) or () if item["metadata"]["name"] in pods]

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        """Of all DaemonSets: whose they are is asked anyway."""
        return tuple(observed.Pod(pod.name, pod.uid, {marks.POD_REVISION: pod.revision}, item["metadata"].get("uid", ""))
                     for name, item in self.items.items() for pod in self.pods(name))

    def write(self, write: Write) -> bool:
        """Carry out a patch of a DaemonSet, or the deletion of a pod; False when what it assumes does not hold."""
        if isinstance(write, Delete):
            return self._delete_pod(write)
        item = self.items.get(write.name)
        if item is None or not isinstance(write, Patch):
            return False
        if changed := written(item, write):
            self.items[write.name] = _numbered(changed, changed["spec"]["template"] != item["spec"]["template"])
        return changed is not None

    def _delete_pod(self, write: Delete) -> bool:
        for name in self.items:
            there = self.pods(name)
            for pod in there:
                if pod.name == write.name and write.preconditions == {"uid": pod.uid, "resourceVersion": str(pod.ready)}:
                    self._pods[name] = tuple(each for each in there if each is not pod)
                    return True
        return False

    # What the cluster does by itself

    def moves(self) -> list[Move]:
        """Everything that may happen next; empty when the cluster has come to rest."""
        found = [Move("sync", name) for name in sorted(self.items) if self._sync(name) != self._state(name)]
        return found + [Move("ready", pod.name) for name in sorted(self.items) for pod in self.pods(name)
                        if not pod.ready and not self._is_broken(name, pod)]

    def make(self, move: Move) -> None:
        """Let one of the moves happen."""
        if move.verb == "sync":
            self._pods[move.name], status, revisions = self._sync(move.name)
            item = self.items[move.name]
            version = str(int(item["metadata"].get("resourceVersion") or 0) + 1)
            self.items[move.name] = {**item, "metadata": {**item["metadata"], "resourceVersion": version}, "status": status}
            self.kept[item["metadata"].get("uid", "")] = revisions
            self._made += 1
            return
        for name in self.items:
            self._pods[name] = tuple(pod._replace(ready=True) if pod.name == move.name else pod for pod in self.pods(name))

    def settle(self) -> None:
        """Let everything happen that can, for instance every pod become ready; one that was not ready at first, after all else."""
        early = [move for move in self.moves() if move not in self._late]
        while moves := [move for move in self.moves() if not early or move not in self._late]:
            self.make(moves[0])

    def set_nodes(self, name: str, nodes: t.Iterable[str], *, others_stay: bool = False) -> None:
        """Those that take its pods from now on; pods of others go with their nodes, unless these are there still, with a taint."""
        pods = self.pods(name)
        self._nodes[name] = tuple(sorted(nodes))
        self._pods[name] = tuple(pod for pod in pods if others_stay or pod.node in self._nodes[name])

    def pods(self, name: str) -> tuple[Pod, ...]:
        """The pods of a DaemonSet; of one with more than a model can have, none."""
        if name not in self._pods:
            it = t.cast(DaemonSet, self.controllers()[name])
            found = self._look_up_pods(it)
            if found is None or it.current > MOST_PODS:
                self._pods[name] = self._as_counted(it)
            else:
                own = (DaemonPod.from_api(item) for item in found if marks.owner_uid(item) == it.uid)
                self._pods[name] = tuple(Pod(pod.name, pod.uid, pod.node, pod.revision, pod.is_ready, pod.generation) for pod in own
                                         if not pod.is_going)
            self._late |= {Move("ready", pod.name) for pod in self._pods[name] if not pod.ready}
            there = dict.fromkeys(pod.node for pod in self._pods[name])
            more = (f"node {number}" for number in itertools.count())
            missing = max(0, it.replicas - len(there)) if it.replicas <= MOST_PODS else 0
            self._nodes.setdefault(name, tuple(sorted([*there, *itertools.islice(more, missing)])))
        return self._pods[name]

    def _as_counted(self, it: DaemonSet) -> tuple[Pod, ...]:
        """As many as the status says, where nobody has seen them: which ones are new does not matter then."""
        present, others = revision_of(it, self._kept(it.uid))
        old = next((each for each in others if each is not present), present)
        count = it.current if it.current <= MOST_PODS else 0
        return tuple(Pod(f"{it.name}-{number}", f"uid {number}", f"node {number}",
                         _label(present if number < it.updated else old), number < it.ready) for number in range(count))

    def _kept(self, uid: str) -> tuple[Json, ...]:
        if uid not in self.kept:
            self.kept[uid] = tuple(filter(marks.server_revision, self._look_up_revisions([uid]) or ()))  # not what others have made
        return self.kept[uid]

    def _is_broken(self, name: str, pod: Pod) -> bool:
        kept = self._kept(self.items[name]["metadata"].get("uid", ""))
        return is_broken(next((it for it in kept if _label(it) == pod.revision), None), self.broken)

    def _state(self, name: str) -> tuple[tuple[Pod, ...], Json, tuple[Json, ...]]:
        item = self.items[name]
        return self.pods(name), item.get("status") or {}, self._kept(item["metadata"].get("uid", ""))

    def _sync(self, name: str) -> tuple[tuple[Pod, ...], Json, tuple[Json, ...]]:
        """Pods, status and ControllerRevisions after the server's controller has worked on it once."""
        item, it = self.items[name], t.cast(DaemonSet, self.controllers()[name])
        pods = self.pods(name)
        if it.is_deleting or it.replicas > MOST_PODS:
            return self._state(name)
        present, revisions = revision_of(it, self._kept(it.uid))
        nodes = self._nodes[name]
        pods = _turn(it, pods, nodes, _label(present), f"{it.name}-made-{self._made}")
        live = {pod.revision for pod in pods}
        revisions = trimmed(it, revisions, present, lambda each: _label(each) in live, counts_live=True)
        oldest = {pod.node: pod for pod in reversed(pods) if pod.node in nodes}
        ready = sum(pod.ready for pod in oldest.values())
        status = {"observedGeneration": it.generation, "desiredNumberScheduled": len(nodes), "currentNumberScheduled": len(oldest),
                  "numberReady": ready, "numberAvailable": ready,
                  "numberMisscheduled": len({pod.node for pod in pods} - set(nodes)),
                  "updatedNumberScheduled": sum(_is_updated(it, pod, _label(present)) for pod in oldest.values())}
        before = item.get("status") or {}
        is_same = all(before.get(field, 0) == value for field, value in status.items())
        return pods, before if is_same else {**before, **status}, revisions


def _turn(it: DaemonSet, pods: tuple[Pod, ...], nodes: tuple[str, ...], present: str, name: str) -> tuple[Pod, ...]:
    """The pods after one change: nodes without one get one first, then old pods go, or get a new one beside them."""
    there = {pod.node for pod in pods}
    empty = next((node for node in nodes if node not in there), None)
    made = Pod(name, f"uid of {name}", "", present, ready=False, generation=marks.template_generation(it.annotations))
    if empty is not None:
        return (*pods, made._replace(node=empty))
    if not it.is_replaced_by_server:
        return _without_second(pods)
    numbers = it.numbers
    old, new = ([pod for pod in pods if _is_updated(it, pod, present) is is_new] for is_new in (False, True))
    by_node = {pod.node: pod for pod in new}
    surge = Size.from_api(numbers["maxSurge"]).of(len(nodes), round_up=True)
    going = next((pod for pod in old if not pod.ready and (surge == 0 or pod.node in by_node)), None)
    if surge:
        going = going or next((pod for pod in old if pod.node in by_node and by_node[pod.node].ready), None)
        beside = sum(pod.node in by_node for pod in old)
        alone = next((pod for pod in old if pod.node not in by_node and (beside < surge or not pod.ready)), None)
        if going is None and alone is not None:
            return (*pods, made._replace(node=alone.node))
    elif going is None and len(nodes) - sum(pod.ready for pod in pods) < most_missing(numbers, len(nodes)):
        going = next(iter(old), None)
    return tuple(pod for pod in pods if pod is not going)


def _is_updated(it: DaemonSet, pod: Pod, present: str) -> bool:
    """Return whether the server counts a pod as one of the present template (IsPodUpdated)."""
    generation = marks.template_generation(it.annotations)
    return pod.revision == present or (generation != "" and pod.generation == generation)


def _numbered(item: Json, is_changed: bool) -> Json:
    """Return the object with the next number of its template where that has changed, and it has one."""
    annotations = item["metadata"].get("annotations") or {}
    number = marks.template_generation(annotations)
    if not (number and is_changed):
        return item
    annotations = {**annotations, marks.TEMPLATE_GENERATION: str(int(number) + 1)}
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}}


def _without_second(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """Without a surge, no node keeps two: the older one stays."""
    first = {pod.node: pod for pod in reversed(pods)}
    second = next((pod for pod in pods if first[pod.node] is not pod), None)
    return tuple(pod for pod in pods if pod is not second)


def _label(revision: Json) -> str:
    return t.cast(marks.Revision, marks.server_revision(revision)).pods

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster in memory: it serves check mode, and the tests that explore every interleaving. Pure.

It is a small model of three programs: the API server (JSON patch, preconditions, generation), the controller manager
(which sees a controller later than it is written, counts pods before it changes them, adopts and releases) and the
garbage collector (which takes its time). tests/integration compares it with the real ones.
Objects are never changed in place, so that copies are cheap.
"""

from __future__ import annotations

import collections
import copy
import itertools
import typing as t

from ..model import observed
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import NEVER, Controller
from ..model.patches import DoesNotHold, patched
from ..model.steps import REVISION, Create, Delete, HandOver, Patch, Write
from . import handover
from .flow import Model

#: Pods of one controller that fit into a cluster in memory; of others with more there are none.
MOST_PODS = 20_000
#: Changes of controllers that the controller manager may be behind.
LONGEST_LAG = 1


class Pod(t.NamedTuple):
    """A pod: whose it is (a uid, or "" for an orphan), its labels, whether it is ready (and so available)."""

    owner: str
    labels: tuple[tuple[str, str], ...]
    ready: bool
    #: Whose the controller manager believes it to be.
    seen_owner: str


class Move(t.NamedTuple):
    """Something that the cluster may do by itself.

    The controller manager sees a controller, hears of a pod's owner, or works on (syncs) a controller; whoever
    has set finalizers removes those of one that is being deleted; the garbage collector collects the pods of one that is gone; a
    pod of one becomes ready, or has terminated (ends).
    """

    verb: str
    name: str


class SimulatedCluster(Model):
    """The controllers of one namespace and their pods."""

    def __init__(self, items: t.Iterable[Json] = (), kind: Kind = Kind.REPLICATION_CONTROLLER,
                 look_up_revisions: t.Callable[[t.Sequence[str]], list[Json] | None] | None = None) -> None:
        """look_up_revisions: what the controllers with these uids have of ControllerRevisions; None where that may not be seen."""
        self.kind = kind
        self.items: dict[str, Json] = {item["metadata"]["name"]: item for item in items}
        #: What the controller manager knows of each controller, by name.
        self.seen: dict[str, Json] = {name: item for name, item in self.items.items() if _size(item) <= MOST_PODS}
        #: Changes that it has not heard of, in their order: name, and what has become of that controller.
        self.unseen: list[tuple[str, Json | None]] = []
        self.pods: list[Pod] = []
        #: Whether pods take time to terminate, and those that do: in check mode they are gone at once.
        self.terminates_slowly, self.terminating = False, list[Pod]()
        #: ControllerRevisions by name.
        self.kept: dict[str, Json] = {}
        self._look_up_revisions, self._first = look_up_revisions, [item["metadata"].get("uid", "") for item in self.items.values()]
        for item in self.seen.values():
            it = Controller.from_api(item, kind)
            self.pods += [_pod(it, ready=number < it.available) for number in range(it.current)]

    def copy(self) -> SimulatedCluster:
        """An independent cluster in the same state."""
        other = copy.copy(self)
        other.items, other.seen = dict(self.items), dict(self.seen)
        other.unseen, other.pods, other.terminating = list(self.unseen), list(self.pods), list(self.terminating)
        other.kept = dict(self.kept)
        return other

    # What a client sees and does

    def controllers(self, kind: Kind | None = None) -> dict[str, Controller]:
        if kind not in (None, self.kind):
            return {}
        return {name: Controller.from_api(item, self.kind) for name, item in self.items.items()}

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        found = ((str(number), pod) for number, pod in enumerate(self.pods) if selector.items() <= dict(pod.labels).items())
        return tuple(observed.Pod(name, name, dict(pod.labels), pod.owner) for name, pod in found)

    def terminating_pods(self, selector: Json) -> tuple[observed.TerminatingPod, ...]:
        return tuple(observed.TerminatingPod(f"{pod.owner}-{number}", str(self.kind), pod.owner, "", ())
                     for number, pod in enumerate(self.terminating) if selector.items() <= dict(pod.labels).items())

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """All that are known; what the first controllers have is looked up once."""
        if self._look_up_revisions:
            there = [uid for uid in self._first if uid in uids]
            found = self._look_up_revisions(there) if there else []
            if found is None:
                return None
            self.kept, self._look_up_revisions = {item["metadata"]["name"]: item for item in found} | self.kept, None
        return list(self.kept.values())

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold, as the API server would say 404, 409 or 422."""
        if write.kind == REVISION:
            return self._write_revision(write)
        if isinstance(write, HandOver):
            return self._hand_over(write)
        item = self.items.get(write.name)
        if isinstance(write, Create):
            if item is not None:
                return False
            metadata = {**write.manifest["metadata"], "uid": self._new_uid(write.name), "generation": 1, "resourceVersion": "1"}
            self._store(write.name, {**write.manifest, "metadata": metadata, "status": {}})
            return True
        if item is None:
            return False
        return self._delete(item, write) if isinstance(write, Delete) else self._patch(item, write)

    def _write_revision(self, write: Write) -> bool:
        holds = (write.name in self.kept) != isinstance(write, Create)
        if holds and isinstance(write, Create):
            self.kept[write.name] = write.manifest
        elif holds:
            del self.kept[write.name]
        return holds

    def _hand_over(self, write: HandOver) -> bool:
        """The controller manager hears of each pod later."""
        before, after = self.pods, _handed_over(self.pods, write)
        self.pods = sorted(after)
        return after != before

    def _new_uid(self, name: str) -> str:
        used = {pod.owner for pod in self.pods} | {item["metadata"].get("uid") for item in self.seen.values()}
        # Real ones are never used twice.
        return next(uid for uid in (f"uid {number} of {name}" for number in itertools.count()) if uid not in used)

    def _patch(self, item: Json, write: Patch) -> bool:
        try:
            changed = patched(item, write)
        except DoesNotHold:
            return False
        if changed["spec"] != item["spec"]:
            changed = _with_metadata(changed, generation=item["metadata"].get("generation", 1) + 1)
        self._store(write.name, changed)
        return True

    def _delete(self, item: Json, write: Delete) -> bool:
        holds = all(item["metadata"].get(field, "") == value for field, value in write.preconditions.items())
        if holds:
            self._store(write.name, deleted(item))
        return holds

    def _store(self, name: str, item: Json | None) -> None:
        if item is None:
            del self.items[name]
        elif _size(item) > MOST_PODS:
            raise RolloutError(f"check mode cannot show what becomes of {_size(item)} pods of {name}: no more than {MOST_PODS}")
        else:
            self.items[name] = item
        if self.unseen and self.unseen[-1][0] == name:
            self.unseen.pop()
        self.unseen.append((name, item))
        if len(self.unseen) > LONGEST_LAG:
            self._see()

    def _see(self) -> None:
        name, item = self.unseen.pop(0)
        self.seen.pop(name, None)
        if item is not None:
            self.seen[name] = item

    # What the cluster does by itself

    def moves(self) -> list[Move]:
        """Everything that may happen next; empty when the cluster has come to rest."""
        found = [Move("see", name) for name, _item in self.unseen[:1]]
        found += [Move("hear", pod.owner) for pod in self.pods if pod.owner != pod.seen_owner][:1]
        found += [Move("sync", name) for name in sorted(self.seen) if self._sync(name) is not None]
        uids = {item["metadata"].get("uid", "") for item in self.items.values()}
        found += [Move("finalize", name) for name, item in sorted(self.items.items()) if is_terminating(item)]
        found += [Move("collect", uid) for uid in sorted({pod.owner for pod in self.pods} - uids - {""})]
        found += [Move("ready", uid) for uid in sorted({pod.owner for pod in self.pods if not pod.ready})]
        found += [Move("end", uid) for uid in sorted({pod.owner for pod in self.terminating})]
        return found

    def make(self, move: Move) -> None:
        """Let one of the moves happen."""
        if move.verb == "see":
            self._see()
        elif move.verb == "sync":
            self.pods, removed, status = t.cast(tuple[list[Pod], list[Pod], Json], self._sync(move.name))
            self._terminate(removed)
            item = self.items.get(move.name)
            if item and item["metadata"].get("uid") == self.seen[move.name]["metadata"].get("uid"):
                self.items[move.name] = {**item, "status": status}
        elif move.verb == "hear":
            index = next(i for i, pod in enumerate(self.pods) if pod.owner != pod.seen_owner)
            self.pods[index] = self.pods[index]._replace(seen_owner=self.pods[index].owner)
        elif move.verb == "finalize":
            self._store(move.name, None)
        elif move.verb == "collect":
            self._terminate([pod for pod in self.pods if pod.owner == move.name])
            self.pods = [pod for pod in self.pods if pod.owner != move.name]
        elif move.verb == "ready":
            index = next(i for i, pod in enumerate(self.pods) if pod.owner == move.name and not pod.ready)
            self.pods[index] = self.pods[index]._replace(ready=True)
        elif move.verb == "end":
            self.terminating.remove(next(pod for pod in self.terminating if pod.owner == move.name))

    def _terminate(self, pods: list[Pod]) -> None:
        """Begin to terminate pods; what becomes of each is the same, whether it was ready or not."""
        if self.terminates_slowly:
            self.terminating = sorted([*self.terminating, *(pod._replace(ready=False, seen_owner="") for pod in pods)])

    def settle(self) -> None:
        """Let everything happen that can, for instance every pod become ready."""
        while moves := self.moves():
            self.make(moves[0])

    def _sync(self, name: str) -> tuple[list[Pod], list[Pod], Json] | None:
        """Pods, removed pods and status after the controller manager has worked on a controller as it knows it; None if unchanged.

        As syncReplicaSet does: adopt and release, count, and only then create or delete (what is not ready first).
        """
        it = Controller.from_api(self.seen[name], self.kind)
        item = self.items.get(name)
        exists = item is not None and item["metadata"].get("uid", "") == it.uid
        may_adopt = item and exists and not item["metadata"].get("deletionTimestamp")
        if not (claimed := _claimed(it, self.pods, bool(may_adopt))):
            return None
        mine, others = claimed
        ready = sum(pod.ready for pod in mine)
        status = {"observedGeneration": self.seen[name]["metadata"].get("generation", 1), "replicas": len(mine),
                  "readyReplicas": ready, "availableReplicas": 0 if it.min_ready_seconds == NEVER else ready}
        removed: list[Pod] = []
        if not it.is_deleting:
            mine.sort(key=lambda pod: not pod.ready)
            missing = 0 if handover.is_closed(it) else it.replicas - len(mine)
            mine, removed = mine[: it.replicas] + [_pod(it, ready=False)] * missing, mine[it.replicas:]
        pods = sorted(others + mine)
        old = (item.get("status") or {}) if item and exists else status
        if pods == sorted(self.pods) and all(old.get(field, 0) == value for field, value in status.items()):
            return None
        return pods, removed, status


def _handed_over(pods: list[Pod], write: HandOver) -> list[Pod]:
    """The pods, some of which have another owner now. Pods of one owner with the same labels are alike."""
    left = collections.Counter(tuple(sorted(pod.labels.items())) for pod in write.pods)
    found = []
    for pod in pods:
        if moves := pod.owner == write.giver and left[pod.labels] > 0:
            left[pod.labels] -= 1
        found.append(pod._replace(owner=write.taker["uid"]) if moves else pod)
    return found


def _claimed(it: Controller, pods: list[Pod], may_adopt: bool) -> tuple[list[Pod], list[Pod]] | None:
    """The pods of a controller once it has adopted and released, and the others; None where it may not adopt, and gives up."""
    mine, others = [], []
    for pod in pods:
        labels = dict(pod.labels)
        matches = all(labels.get(key) == value for key, value in it.selector.items())
        if pod.seen_owner == it.uid and (matches or it.is_deleting):
            mine.append(pod)
        elif pod.seen_owner == it.uid:
            others.append(pod._replace(owner="", seen_owner="") if pod.owner == it.uid else pod)
        elif pod.seen_owner == "" and matches and not it.is_deleting:
            if not may_adopt:  # it asks the API server, and the controller is gone or going
                return None
            mine.append(pod._replace(owner=it.uid, seen_owner=it.uid))
        else:
            others.append(pod)
    return mine, others


def deleted(item: Json) -> Json | None:
    """Return the object after its deletion: finalizers keep it, and the server counts that as a change of spec."""
    metadata = item["metadata"]
    if not metadata.get("finalizers"):
        return None
    if "deletionTimestamp" in metadata:
        return item
    return _with_metadata(item, deletionTimestamp="2026-11-21T10:00:00Z", generation=metadata.get("generation", 1) + 1)


def is_terminating(item: Json) -> bool:
    """Return whether finalizers keep an object that is being deleted."""
    return bool(item["metadata"].get("deletionTimestamp") and item["metadata"].get("finalizers"))


def _size(item: Json) -> int:
    """The pods that it has, or will have."""
    return max(item["spec"].get("replicas", 1), (item.get("status") or {}).get("replicas", 0))


def _pod(it: Controller, ready: bool) -> Pod:
    labels = it.template.get("metadata", {}).get("labels") or {}
    return Pod(it.uid, tuple(sorted(labels.items())), ready, it.uid)


def _with_metadata(item: Json, **fields: t.Any) -> Json:
    return {**item, "metadata": {**item["metadata"], **fields}}

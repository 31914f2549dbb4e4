# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every interleaving of the planner with a cluster that takes its time, and a client that may die after any step.

The planner remembers nothing, so a client that dies and one that goes on are the same; one that comes back with the other
wish (update, then roll back, then update ...) is explored by letting both wishes take a step in every state. The cluster
makes its moves in any order: pods become ready one by one, the controller manager sees changes late. Invariants have the
numbers of design section 5.
"""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import typing as t

import pytest
from builders import rc, rs, template

from ansible_collections.baton.kubernetes.plugins.module_utils import identity, takeover
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import NoSuchController, RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.observed import Controller, observe
from ansible_collections.baton.kubernetes.plugins.module_utils.planner import plan
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request, State
from ansible_collections.baton.kubernetes.plugins.module_utils.simulated import Move, SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.steps import Decision, Patch, Step, Wait, Write
from ansible_collections.baton.kubernetes.plugins.module_utils.thresholds import Size, resolve_fenceposts

Json = dict[str, t.Any]

UPDATE = Request(name="foo", images={"": "myimage:v2"})
#: The deployment label's value that the update above gives to next, if foo has no label.
NEXT_LABEL = identity.label_value(UPDATE.content(template(), {"app": "foo"}), None)


def pace(surge: int, unavailable: int) -> Json:
    """The options that say how many pods more and fewer there may be."""
    return {"max_surge": Size(surge), "max_unavailable": Size(unavailable)}


@pytest.fixture(autouse=True)
def no_garbage_collection():
    """Hundreds of thousands of states without a cycle among them: looking for one takes a third of the time."""
    gc.disable()
    yield
    gc.enable()


class Memory:
    """Equal items as one object, so that what was worked out for an item, or for a write of it, is found by its id.

    Whatever an id stands for is kept here: another object at the same address would be taken for it.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.parts: dict[int, tuple[Json, int]] = {}
        self.items: dict[tuple, Json] = {}
        self.normal: dict[tuple, tuple] = {}
        self.patched: dict[tuple[int, int], tuple[Json, Patch]] = {}
        self.synced: dict[tuple, t.Any] = {}
        self.controllers: dict[int, Controller] = {}

    def number(self, part: Json) -> int:
        """The same number for equal metadata, or equal specs, whatever their generation."""
        if id(part) not in self.parts:
            text = identity.canonical({key: value for key, value in part.items() if key != "generation"})
            self.parts[id(part)] = part, self.numbers.setdefault(text, len(self.numbers))
        return self.parts[id(part)][1]

    def item(self, item: Json, generation: int) -> Json:
        """The object that stands for this item with that generation."""
        metadata, spec, status = parts = item["metadata"], item["spec"], item["status"]
        ids = (id(metadata), id(spec), id(status), generation)
        if ids not in self.normal:
            is_observed = status.get("observedGeneration", 0) >= metadata["generation"]
            counts = {field: value for field, value in status.items() if field != "observedGeneration"}
            key = self.number(metadata), self.number(spec), *counts.items(), is_observed, generation
            known = self.items.setdefault(key, {
                **item,
                "metadata": {**metadata, "generation": generation},
                "status": {**counts, "observedGeneration": generation if is_observed else 0},
            })
            self.normal[ids] = known, *parts
        return self.normal[ids][0]

    def version(self, item: Json, generation: int) -> Json:
        """The same for what the controller manager knows of an item, or will hear: only this matters to it."""
        metadata = {key: value for key, value in item["metadata"].items() if key in ("name", "uid", "deletionTimestamp")}
        key = *metadata.items(), self.number(item["spec"]), generation
        return self.items.setdefault(key, {"metadata": {**metadata, "generation": generation}, "spec": item["spec"]})


class Cluster(SimulatedCluster):
    """The model of the cluster, with a memory."""

    def __init__(self, *items: Json, kind: Kind) -> None:
        super().__init__(items, kind)
        self.memory = Memory()
        self.remember()

    def copy(self) -> Cluster:
        other = copy.copy(self)
        other.items, other.seen = dict(self.items), dict(self.seen)
        other.unseen, other.pods = list(self.unseen), list(self.pods)
        return other

    def key(self) -> tuple:
        unseen = ((name, id(version)) for name, version in self.unseen)
        return (*map(id, self.items.values()), None, *map(id, self.seen.values()), *unseen, *self.pods)

    def remember(self) -> None:
        """Use the objects that stand for these items; generations, which would grow for ever, become as small as they can."""
        versions = [*self.seen.values(), *(version for _name, version in self.unseen if version), *self.items.values()]
        known: dict[str, list[int]] = {}
        for each in versions:
            known.setdefault(each["metadata"]["uid"], []).append(each["metadata"]["generation"])

        def generation(item: Json) -> int:
            metadata = item["metadata"]
            return 1 + len({each for each in known[metadata["uid"]] if each < metadata["generation"]})

        memory = self.memory
        self.items = {name: memory.item(item, generation(item)) for name, item in sorted(self.items.items())}
        self.seen = {name: memory.version(item, generation(item)) for name, item in sorted(self.seen.items())}
        self.unseen = [(name, item and memory.version(item, generation(item))) for name, item in self.unseen]

    def controllers(self) -> dict[str, Controller]:
        known = self.memory.controllers
        for item in self.items.values():
            if id(item) not in known:
                known[id(item)] = Controller.from_api(item, self.kind)
        return {name: known[id(item)] for name, item in self.items.items()}

    def write(self, write: Write) -> bool:
        holds = super().write(write)
        self.remember()
        return holds

    def make(self, move: Move) -> None:
        super().make(move)
        if move.verb in ("see", "sync", "orphan"):
            self.remember()
        self.pods.sort()

    def _patch(self, item: Json, write: Patch) -> bool:
        key = id(item), id(write)
        if key not in self.memory.patched:
            if not super()._patch(item, write):
                return False
            self.memory.patched[key] = self.items[write.name], write
        self._store(write.name, self.memory.patched[key][0])
        return True

    def _sync(self, name: str) -> t.Any:
        key = id(self.seen[name]), id(self.items.get(name)), *self.pods
        if key not in self.memory.synced:
            self.memory.synced[key] = super()._sync(name)
        return self.memory.synced[key]


def wish(request: Request) -> str:
    """Tells the requests of one exploration apart."""
    return f"{request.state} pause_at={request.pause_at}"


class Explorer:
    """All states that can be reached, and for each wish the states from which it can still be fulfilled."""

    def __init__(self, foo: Json, *requests: Request) -> None:
        self.requests = requests
        self.size = foo["spec"]["replicas"]
        surge, unavailable = resolve_fenceposts(requests[0].max_surge, requests[0].max_unavailable, self.size)
        self.ceiling = self.size + surge
        self.floor = min(self.size - unavailable, foo["status"]["availableReplicas"])
        self.clusters: list[Cluster] = []
        self.numbers: dict[tuple, int] = {}
        self.decisions: dict[tuple, Decision | RolloutError] = {}
        self.needs_orphans: dict[int, bool] = {}
        #: Which state comes from which: moves of the cluster, and steps of each wish; and where a wish is fulfilled.
        self.moves: list[tuple[int, int]] = []
        self.steps: dict[str, list[tuple[int, int]]] = {wish(request): [] for request in requests}
        self.ends: dict[str, set[int]] = {wish(request): set() for request in requests}

        self.add(Cluster(foo, kind=requests[0].kind))
        for here in itertools.count():
            if here == len(self.clusters):
                break
            self.explore(here)
        for request in requests:
            self.check_it_can_be_fulfilled(request)

    def add(self, cluster: Cluster) -> int:
        number = self.numbers.setdefault(cluster.key(), len(self.clusters))
        if number == len(self.clusters):
            self.clusters.append(cluster)
        return number

    def explore(self, here: int) -> None:
        """Let the cluster do what it may, and each wish what it would."""
        cluster = self.clusters[here]
        self.check(cluster)
        moves = cluster.moves()
        for move in moves:
            after = cluster.copy()
            after.make(move)
            self.check_takeover(cluster, after, move)
            self.moves.append((here, self.add(after)))
        for request in self.requests:
            if request.state is State.RESTARTED and self.has_been_restarted(cluster):
                self.check_end(cluster)
                self.ends[wish(request)].add(here)
                continue  # from here, the same wish would be another restart
            decision = self.decide(request, cluster)
            if isinstance(decision, RolloutError):
                self.check_refusal(request, cluster, decision)
                self.ends[wish(request)].add(here)
            elif isinstance(decision, Wait):
                assert moves, f"waits for ever: {decision}"
            elif isinstance(decision, Step):
                after = cluster.copy()
                assert after.write(decision.write), f"refused: {decision}"
                if decision.is_last:
                    self.check_fulfilled(request, after)
                    self.ends[wish(request)].add(here)
                self.steps[wish(request)].append((here, self.add(after)))
            else:
                self.check_fulfilled(request, cluster)
                self.ends[wish(request)].add(here)

    @staticmethod
    def has_been_restarted(cluster: Cluster) -> bool:
        foo = cluster.items["foo"]
        annotations = foo["spec"]["template"]["metadata"].get("annotations", {})
        return identity.RESTART in annotations and not set(identity.MARKS) & set(foo["metadata"]["annotations"])

    def decide(self, request: Request, cluster: Cluster) -> Decision | RolloutError:
        controllers = cluster.controllers()
        base = controllers.get("foo") or next(iter(controllers.values()))
        if id(base) not in self.needs_orphans:
            self.needs_orphans[id(base)] = takeover.needs_orphans(base)
        orphans = cluster.orphans(base.selector) if self.needs_orphans[id(base)] else None
        key = wish(request), orphans, *map(id, controllers.values())
        if key not in self.decisions:
            wanted = None if request.state is State.ROLLED_BACK else request.applied_to(base.template)
            seen = dataclasses.replace(observe(controllers, request), wanted=wanted, orphans=orphans)
            try:
                self.decisions[key] = plan(request, seen)
            except RolloutError as error:
                self.decisions[key] = error.with_traceback(None)  # which would keep this explorer alive
        return self.decisions[key]

    def check(self, cluster: Cluster) -> None:
        # 1. foo exists at all times, or next is what the user wanted under its own name
        assert "foo" in cluster.items or self.requests[0].next_name in cluster.items
        # 2. floor and ceiling
        ready = sum(pod.ready for pod in cluster.pods)
        assert self.floor <= ready, f"{ready} ready, floor {self.floor}: {cluster.items}"
        assert len(cluster.pods) <= self.ceiling, f"{len(cluster.pods)} pods, ceiling {self.ceiling}: {cluster.items}"
        # The model takes the first of the pods that are due: enough as long as these are all alike.
        assert len({pod[:3] for pod in cluster.pods if pod.owner != pod.seen_owner}) <= 1
        assert len({pod.owner for pod in cluster.pods}) == len({pod[:2] for pod in cluster.pods})

    def check_takeover(self, cluster: Cluster, after: Cluster, move: Move) -> None:
        """The takeover creates no pod, deletes none, and changes nothing on them but the owner."""
        foo = cluster.items.get("foo")
        if foo and identity.TAKEOVER in foo["metadata"]["annotations"] and move.verb != "ready":
            assert sorted(pod[1:3] for pod in cluster.pods) == sorted(pod[1:3] for pod in after.pods), move

    def check_refusal(self, request: Request, cluster: Cluster, error: RolloutError) -> None:
        """Only what has ended cannot be rolled back any more."""
        assert request.state is State.ROLLED_BACK, error
        if "foo" in cluster.items:
            assert "no update in progress" in error.what, error
            self.check_end(cluster)
        else:
            assert isinstance(error, NoSuchController), error

    def check_fulfilled(self, request: Request, cluster: Cluster) -> None:
        foo = cluster.controllers().get("foo")
        if not (request.pause_at and foo and foo.is_marked):
            self.check_end(cluster)
            return
        # A pause: as many new pods as asked for, or more where there were more already; together the full size.
        (next,) = (it for it in cluster.controllers().values() if it.name != "foo")
        assert foo.paused == next.replicas >= min(self.size, request.pause_at.value)
        assert next.available == next.replicas and foo.replicas <= self.size - next.replicas

    def check_end(self, cluster: Cluster) -> None:
        """4. A fulfilled wish: one controller, no marks, and all pods once the cluster has come to rest."""
        (item,) = cluster.items.values()
        assert not set(identity.MARKS) & set(item["metadata"]["annotations"])
        assert item["spec"]["replicas"] == self.size
        cluster = cluster.copy()
        cluster.settle()
        assert [pod.ready for pod in cluster.pods] == [True] * self.size

    def check_it_can_be_fulfilled(self, request: Request) -> None:
        """4. Whatever happened before, going on with one wish leads to its end."""
        before: list[list[int]] = [[] for _ in self.clusters]
        for earlier, later in itertools.chain(self.moves, self.steps[wish(request)]):
            before[later].append(earlier)
        todo, found = list(self.ends[wish(request)]), set(self.ends[wish(request)])
        while todo:
            new = set(before[todo.pop()]) - found
            found |= new
            todo += new
        stuck = next((cluster for number, cluster in enumerate(self.clusters) if number not in found), None)
        assert stuck is None, f"{wish(request)} never ends from {stuck.items}"


@pytest.mark.parametrize("size, surge, unavailable", [
    pytest.param(size, surge, unavailable, id=f"size {size} surge {surge} unavailable {unavailable}")
    for size, surge, unavailable in itertools.product(range(4), range(3), range(3))
    if surge or unavailable
])
def test_update_and_rollback_at_any_moment(size, surge, unavailable):
    """Invariants 1, 2 and 4, with a crash after any step and the other wish from there."""
    update = dataclasses.replace(UPDATE, **pace(surge, unavailable))

    Explorer(rc(replicas=size), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_of_four_pods_with_a_crash_after_any_step(surge, unavailable):
    Explorer(rc(replicas=4), dataclasses.replace(UPDATE, **pace(surge, unavailable)))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1)])
@pytest.mark.parametrize("size, pause", [(0, 1), (1, 1), (2, 1), (3, 2)])
def test_a_pause_then_the_end_or_the_way_back(size, pause, surge, unavailable):
    """Three wishes: up to the pause, to the end, back; each from wherever the others have left it."""
    update = dataclasses.replace(UPDATE, **pace(surge, unavailable))
    paused = dataclasses.replace(update, pause_at=Size(pause))

    Explorer(rc(replicas=size), paused, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("size", range(3))
def test_update_and_rollback_of_a_next_that_keeps_its_name(size, surge, unavailable):
    update = dataclasses.replace(UPDATE, next_name="bar", **pace(surge, unavailable))

    Explorer(rc(replicas=size), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("size", [1, 2])
def test_restart_and_rollback_at_any_moment(size, surge, unavailable):
    restart = Request(name="foo", state=State.RESTARTED, **pace(surge, unavailable))

    Explorer(rc(replicas=size), restart, dataclasses.replace(restart, state=State.ROLLED_BACK))


@pytest.mark.parametrize("foo", [
    pytest.param(rc(replicas=2, available=0), id="no pod is available"),
    pytest.param(rc(replicas=2, available=1), id="one pod of two is available"),
    pytest.param(rc(replicas=2, label="earlier"), id="foo has a deployment label"),
    pytest.param(rc(replicas=2, label=NEXT_LABEL), id="foo has the deployment label that next would get"),
])
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_and_rollback_of_a_foo_where(foo, surge, unavailable):
    """The floor is what was available before, where that is less; labels on the two always differ."""
    update = dataclasses.replace(UPDATE, **pace(surge, unavailable))

    Explorer(foo, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("foo", [pytest.param(rs(replicas=size, label=label), id=f"size {size}, {label}")
                                 for size in range(4) for label in (None, "earlier", NEXT_LABEL)])
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_and_rollback_of_a_replica_set(foo, surge, unavailable):
    """Its selector stays; it adopts what next has left, and makes and deletes none."""
    update = dataclasses.replace(UPDATE, kind=Kind.REPLICA_SET, **pace(surge, unavailable))

    Explorer(foo, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1)])
def test_update_and_rollback_of_a_replica_set_whose_next_keeps_its_name(surge, unavailable):
    update = dataclasses.replace(UPDATE, kind=Kind.REPLICA_SET, next_name="bar", **pace(surge, unavailable))

    Explorer(rs(replicas=2), update, dataclasses.replace(update, state=State.ROLLED_BACK))

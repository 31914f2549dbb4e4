# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Explore every interleaving of the planner, a slow cluster, and a client that may die at any step.

Clients may reverse the direction: in every state, each request (update, rollback) takes a step.
Explorer.check() and Explorer.check_end() check the invariants.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import itertools
import typing as t

import cluster_models
import pytest
from builders import rc, rs, template
from cluster_models import ClusterModel, Move, Pod

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover, simulated
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    find,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.planner import (
    plan,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import (
    identity,
    object_meta,
    observed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Decision,
    Handover,
    Patch,
    Step,
    Wait,
    Write,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import (
    Size,
    resolve_fenceposts,
)

Json = dict[str, t.Any]

MAX_LINE = 200

UPDATE = Request(name="foo", images={"": "myimage:v2"})
#: The successor's deployment label in UPDATE.
SUCCESSOR_LABEL = identity.label_value(UPDATE.content(template(), {"app": "foo"}), None)


def strategy(surge: int, unavailable: int) -> Json:
    return {"max_surge": Size(surge), "max_unavailable": Size(unavailable)}


@pytest.fixture(autouse=True)
def no_garbage_collection():
    """Disable the garbage collector, which takes a third of the time."""
    gc.disable()
    yield
    gc.enable()


class Interner:
    """Cache of items by their content, and of results by the ids of their inputs.

    Its references to all items prevent Python from reusing an id.
    """

    def __init__(self) -> None:
        #: Numbers of metadata and specs, by text.
        self.numbers: dict[str, int] = {}
        #: (metadata or spec, its number), by id.
        self.parts: dict[int, tuple[Json, int]] = {}
        #: The interned items, by content.
        self.items: dict[tuple, Json] = {}
        #: (interned item, parts of the original), by the ids of the parts.
        self.interned: dict[tuple, tuple] = {}
        self.patched: dict[tuple[int, int], tuple[Json, Patch]] = {}
        self.synced: dict[tuple, t.Any] = {}
        self.controllers: dict[int, Controller] = {}

    def number(self, part: Json) -> int:
        """Return the number of a metadata or spec object, regardless of its generation."""
        if id(part) not in self.parts:
            text = identity.canonical({key: value
                                       for key, value in part.items() if key != "generation"})
            self.parts[id(part)] = part, self.numbers.setdefault(text, len(self.numbers))
        return self.parts[id(part)][1]

    def intern(self, item: Json, generation: int) -> Json:
        metadata, spec, status = parts = item["metadata"], item["spec"], item["status"]
        ids = (id(metadata), id(spec), id(status), generation)
        if ids not in self.interned:
            is_observed = status.get("observedGeneration", 0) >= metadata["generation"]
            counts = {field: value
                      for field, value in status.items() if field != "observedGeneration"}
            key = self.number(metadata), self.number(spec), *counts.items(), is_observed, generation
            entry = self.items.setdefault(key, {
                **item,
                "metadata": {**metadata, "generation": generation},
                "status": {**counts, "observedGeneration": generation if is_observed else 0},
            })
            self.interned[ids] = entry, *parts
        return self.interned[ids][0]

    def version(self, item: Json, generation: int) -> Json:
        """Return the interned item that the controller manager receives."""
        metadata = {key: value
                    for key, value in item["metadata"].items()
                    if key in ("name", "uid", "deletionTimestamp")}
        key = *metadata.items(), self.number(item["spec"]), generation
        return self.items.setdefault(key,
                                     {"metadata": {**metadata, "generation": generation},
                                      "spec": item["spec"]})


#: Owner of a dead pod until the controller manager observes the death.
DEAD = "dead"


class Cluster(ClusterModel):
    """Model of the cluster that interns its items in an Interner.

    During a handover, pods may die, and another client may orphan the successor's pods or restore
    foo's manifest.
    """

    def __init__(self, *items: Json, kind: Kind, deaths: int = 0, deletions: int = 0,
                 replacements: int = 0,
                 finalizers: tuple[str, ...] = (), terminates_slowly: bool = False) -> None:
        """Start with these controllers.

        deaths (of pods), deletions (of the successor), replacements (of foo): how many are
        allowed. finalizers: added by admission to each new controller.
        """
        super().__init__(items, kind)
        self.finalizers, self.terminates_slowly = list(finalizers), terminates_slowly
        self.interner = Interner()
        self.deaths, self.deletions, self.replacements = deaths, deletions, replacements
        self.manifest = items[0]
        self.intern_items()

    @property
    def surviving_pods(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.owner_uid != DEAD]

    def live_pods(self, selector: Json) -> tuple[observed.Pod, ...]:
        return tuple(pod for pod in super().live_pods(selector) if pod.owner_uid != DEAD)

    def is_handing_over(self) -> bool:
        return ("foo" in self.items
                and object_meta.TAKEOVER in self.items["foo"]["metadata"]["annotations"])

    def copy(self) -> Cluster:
        duplicate = copy.copy(self)
        duplicate.items, duplicate.cached = dict(self.items), dict(self.cached)
        duplicate.undelivered, duplicate.pods = list(self.undelivered), list(self.pods)
        duplicate.terminating = list(self.terminating)
        return duplicate

    def key(self) -> tuple:
        undelivered_ids = ((name, id(version)) for name, version in self.undelivered)
        remaining_events = self.deaths, self.deletions, self.replacements, len(self.terminating)
        return (*remaining_events, *map(id, self.items.values()), None,
                *map(id, self.cached.values()),
                *undelivered_ids, *self.pods)

    def intern_items(self) -> None:
        """Intern the items, with their generations renumbered from 1 in the same order.

        With the real generations, the number of states would be infinite.
        """
        versions = [*self.cached.values(),
                    *(version for _name, version in self.undelivered if version),
                    *self.items.values()]
        generations: dict[str, list[int]] = {}
        for version in versions:
            generations.setdefault(version["metadata"]["uid"],
                                   []).append(version["metadata"]["generation"])

        def generation(item: Json) -> int:
            metadata = item["metadata"]
            return (1
                    + len({value for value in generations[metadata["uid"]]
                           if value < metadata["generation"]}))

        interner = self.interner
        self.items = {name: interner.intern(item, generation(item))
                      for name, item in sorted(self.items.items())}
        self.cached = {name: interner.version(item, generation(item))
                       for name, item in sorted(self.cached.items())}
        self.undelivered = [(name, item and interner.version(item, generation(item)))
                            for name, item in self.undelivered]

    def controllers(self) -> dict[str, Controller]:
        cache = self.interner.controllers
        for item in self.items.values():
            if id(item) not in cache:
                cache[id(item)] = Controller.from_api(item, self.kind)
        return {name: cache[id(item)] for name, item in self.items.items()}

    def write(self, write: Write) -> bool:
        if self.finalizers and isinstance(write, Create):
            metadata = {**write.manifest["metadata"], "finalizers": self.finalizers}
            write = Create({**write.manifest, "metadata": metadata})
        is_written = super().write(write)
        self.intern_items()
        return is_written

    def moves(self) -> list[Move]:
        choices = [move for move in super().moves() if move.name != DEAD
                   or move.verb == "deliver-owner"]
        if self.deaths and self.is_handing_over():
            owners = {pod.owner_uid for pod in self.surviving_pods}
            choices += [Move("die", uid) for uid in sorted(owners)]
        if self.deletions and self.is_handing_over():
            choices += [Move("orphan", name) for name, controller in self.controllers().items()
                        if name != "foo" and handover.is_closed(controller)
                        and controller.is_observed]
        if self.replacements and self.is_handing_over() and len(self.items) > 1:
            choices.append(Move("replace", "foo"))
        return choices

    def make(self, move: Move) -> None:
        if move.verb == "die":
            self.deaths -= 1
            index = next(number for number, pod in enumerate(self.pods)
                         if pod.owner_uid == move.name)
            self.pods[index] = self.pods[index]._replace(owner_uid=DEAD)
        elif move.verb == "orphan":
            self.deletions -= 1
            uid = self.items[move.name]["metadata"]["uid"]
            self._store(move.name, None)
            self.pods = [pod._replace(owner_uid="") if pod.owner_uid == uid else pod
                         for pod in self.pods]
        elif move.verb == "replace":
            self.replacements -= 1
            primary = self.items["foo"]
            metadata = {**self.manifest["metadata"],
                        "generation": primary["metadata"]["generation"] + 1}
            self._store("foo", {**primary, "metadata": metadata, "spec": self.manifest["spec"]})
        elif move == Move("deliver-owner", DEAD):
            self.pods.remove(next(pod for pod in self.pods if pod.owner_uid == DEAD))
        else:
            super().make(move)
        if move.verb in ("deliver", "sync", "orphan", "replace"):
            self.intern_items()
        self.pods.sort()

    def _patch(self, item: Json, write: Patch) -> bool:
        key = id(item), id(write)
        if key not in self.interner.patched:
            if not super()._patch(item, write):
                return False
            self.interner.patched[key] = self.items[write.name], write
        self._store(write.name, self.interner.patched[key][0])
        return True

    def _sync(self, name: str) -> t.Any:
        key = id(self.cached[name]), id(self.items.get(name)), *self.pods
        if key not in self.interner.synced:
            self.interner.synced[key] = super()._sync(name)
        return self.interner.synced[key]


def key_of(request: Request) -> str:
    return f"{request.state} pause_at={request.pause_at} keep_old={request.keeps_old}"


class Explorer:
    """All states of the cluster that clients with these requests can reach from a primary."""

    def __init__(self, primary: Json, *requests: Request, deaths: int = 0, deletions: int = 0,
                 replacements: int = 0, finalizers: tuple[str, ...] = ()) -> None:
        self.requests = requests
        self.size, self.labels = primary["spec"]["replicas"], primary["spec"]["template"][
            "metadata"]["labels"]
        self.deaths, self.deletions, self.replacements = deaths, deletions, replacements
        surge, unavailable = resolve_fenceposts(requests[0].max_surge, requests[0].max_unavailable,
                                                self.size)
        self.ceiling = self.size + surge
        self.floor = min(self.size - unavailable, primary["status"]["availableReplicas"])
        self.clusters: list[Cluster] = []
        #: For each state, its predecessor, and the action that led from there.
        self.origins: list[tuple[int, tuple[str, t.Any]]] = []
        self.numbers: dict[tuple, int] = {}
        self.decisions: dict[tuple, Decision | RolloutError] = {}
        self.observations: dict[tuple, tuple[observed.Observed, bool]] = {}
        #: By the id of a handover: (its part with only the first pod, the handover itself).
        self.first_pods: dict[int, tuple[Handover, Handover]] = {}
        #: Edges (from, to) between states.
        self.moves: list[tuple[int, int]] = []
        self.steps: dict[str, list[tuple[int, int]]] = {key_of(request): [] for request in requests}
        self.ends: dict[str, set[int]] = {key_of(request): set() for request in requests}

        self.add(Cluster(primary, kind=requests[0].kind, deaths=deaths, deletions=deletions,
                         replacements=replacements,
                         finalizers=finalizers,
                         terminates_slowly=requests[0].waits_for_termination), 0, ("begin", ""))
        for state in itertools.count():
            if state == len(self.clusters):
                break
            if failure := self.failure_at(state):
                pytest.fail(f"{failure}, after\n{self.path_to(state)}", pytrace=False)
        for request in requests:
            self.check_resumable(request)

    def add(self, cluster: Cluster, origin: int, action: tuple[str, t.Any]) -> int:
        number = self.numbers.setdefault(cluster.key(), len(self.clusters))
        if number == len(self.clusters):
            self.clusters.append(cluster)
            self.origins.append((origin, action))
        return number

    def path_to(self, number: int) -> str:
        """Return a shortest path to a state, one action per line, and the state."""
        cluster, lines = self.clusters[number], []
        while number:
            number, (client, action) = self.origins[number]
            line = report.step_line(action) if isinstance(action, Step) else " ".join(action)
            lines.append(f"{client}: {line}"[:MAX_LINE])
        sizes = ", ".join(f"{name} {item['spec']['replicas']}"
                          for name, item in cluster.items.items())
        pods = collections.Counter((pod.owner_uid, "ready" if pod.ready else "not ready")
                                   for pod in cluster.surviving_pods)
        lines[:0] = [f"state: {sizes}; pods of each uid: {dict(pods)}, {len(cluster.terminating)} "
                     "terminating"[:MAX_LINE]]
        return "\n".join(reversed(lines))

    def failure_at(self, state: int) -> str:
        """Explore from a state and return the first line of a failed assertion, or ""."""
        try:
            self.explore(state)
        except AssertionError as error:
            return (str(error).partition("\n")[0] or "failed")[:MAX_LINE]
        return ""

    def explore(self, state: int) -> None:
        cluster = self.clusters[state]
        self.check(cluster)
        moves = cluster.moves()
        for move in moves:
            after = cluster.copy()
            after.make(move)
            self.check_handover(cluster, after, move)
            self.moves.append((state, self.add(after, state, ("cluster", move))))
        for request in self.requests:
            if request.state is State.RESTARTED and self.has_been_restarted(cluster):
                self.check_end(cluster)
                self.ends[key_of(request)].add(state)
                continue  # this request would restart the pods again
            decision = self.decide(request, cluster)
            if isinstance(decision, RolloutError):
                self.check_refusal(request, cluster, decision)
                self.ends[key_of(request)].add(state)
            elif isinstance(decision, Wait):
                assert moves, f"waits forever: {decision}"
            elif isinstance(decision, Step):
                after = cluster.copy()
                write = decision.write
                if isinstance(write, Handover):  # the client may die after each pod
                    write = self.first_pods.setdefault(
                        id(write), (dataclasses.replace(write, pods=write.pods[:1]), write))[0]
                assert after.write(write), f"refused: {report.step_line(decision)}"
                if request.keeps_old:
                    self.check_old_pods_are_kept(cluster, after)
                if decision.ends_task:
                    self.check_fulfilled(request, after)
                    self.ends[key_of(request)].add(state)
                self.steps[key_of(request)].append((state,
                                                    self.add(after, state,
                                                             (key_of(request), decision))))
            else:
                self.check_fulfilled(request, cluster)
                self.ends[key_of(request)].add(state)

    @staticmethod
    def has_been_restarted(cluster: Cluster) -> bool:
        primary = cluster.items["foo"]
        annotations = primary["spec"]["template"]["metadata"].get("annotations", {})
        return (object_meta.RESTART in annotations
                and not (set(object_meta.UPDATE_ANNOTATIONS)
                         & set(primary["metadata"]["annotations"])))

    def decide(self, request: Request, cluster: Cluster) -> Decision | RolloutError:
        controllers = cluster.controllers()
        base = controllers.get("foo") or next(iter(controllers.values()))
        ids = tuple(map(id, controllers.values()))
        if (key_of(request), *ids) not in self.observations:
            desired = (None if request.state is State.ROLLED_BACK
                       else request.apply_to(base.template))
            observation = dataclasses.replace(find(controllers, request), desired_template=desired)
            self.observations[(key_of(request), *ids)] = (
                observation, handover.depends_on_pod_owners(observation))
        observation, needs_pods = self.observations[(key_of(request), *ids)]
        pods = cluster.surviving_pods if needs_pods else ()
        key = key_of(request), len(cluster.terminating), *ids, *pods
        if key not in self.decisions:
            terminating = observed.Terminating(len(cluster.terminating))
            observation = dataclasses.replace(observation, terminating=terminating)
            if needs_pods:
                owner = observation.successor or base
                observation = dataclasses.replace(observation,
                                                  pods=cluster.live_pods(owner.selector))
            try:
                self.decisions[key] = plan(request, observation)
            except RolloutError as error:
                # a traceback would keep this explorer alive
                self.decisions[key] = error.with_traceback(None)
        return self.decisions[key]

    def check(self, cluster: Cluster) -> None:
        # foo exists, or its successor with next_name
        assert "foo" in cluster.items or self.requests[0].next_name in cluster.items
        dead_count = self.deaths - cluster.deaths
        ready_count = sum(pod.ready for pod in cluster.surviving_pods)
        assert self.floor - dead_count <= ready_count, f"{ready_count} ready, floor {self.floor}"
        # The controller manager may mistake the death of a pod for the reparenting of another pod.
        ceiling = dead_count + (self.size if cluster.is_handing_over() else self.ceiling)
        # After a replacement, foo may create old pods, but the number of new pods is limited.
        if cluster.replacements < self.replacements:
            assert sum(dict(pod.labels) != self.labels
                       for pod in cluster.surviving_pods) <= self.size + dead_count, cluster.pods
        else:
            assert len(cluster.surviving_pods) <= ceiling, (
                f"{len(cluster.pods)} pods, ceiling {ceiling}")
            pod_count = len(cluster.surviving_pods) + len(cluster.terminating)
            assert pod_count <= self.ceiling + dead_count, (
                f"{pod_count} pods including terminating ones, ceiling {self.ceiling}")
        assert all(pod.owner_uid for pod in cluster.pods) or cluster.deletions < self.deletions, (
            cluster.pods)
        # with keep_old, all old pods stay ready
        if all(request.keeps_old for request in self.requests):
            old_count = sum(pod.ready and dict(pod.labels) == self.labels
                            for pod in cluster.surviving_pods)
            assert old_count == self.size, f"{old_count} old pods ready with keep_old"
        # the model changes the first matching pod, so all matching pods must be equal
        is_undisturbed = (not dead_count and cluster.deletions == self.deletions
                          and cluster.replacements == self.replacements)
        assert (not is_undisturbed
                or len({pod[:3] for pod in cluster.pods
                        if pod.owner_uid != pod.cached_owner_uid}) <= 1)
        assert (not is_undisturbed
                or len({pod.owner_uid for pod in cluster.surviving_pods})
                == len({pod[:2] for pod in cluster.surviving_pods}))

    def check_old_pods_are_kept(self, cluster: Cluster, after: Cluster) -> None:
        """Check that a step with keep_old scales foo down only if foo exceeds the full size."""
        before, now = (model.items["foo"]["spec"]["replicas"] for model in (cluster, after))
        assert now >= min(before, self.size), f"foo {before} -> {now} with keep_old"

    def check_handover(self, cluster: Cluster, after: Cluster, move: Move) -> None:
        """Check that the handover changes only the owners of pods."""
        is_undisturbed = (self.deaths, self.deletions, self.replacements) == (
            after.deaths, after.deletions, after.replacements)
        if cluster.is_handing_over() and move.verb != "ready" and is_undisturbed:
            assert sorted(pod[1:3] for pod in cluster.pods) == sorted(
                pod[1:3] for pod in after.pods), move

    def check_refusal(self, request: Request, cluster: Cluster, error: RolloutError) -> None:
        """Check that only a rollback is refused: after the update, or if foo is deleted."""
        assert request.state is State.ROLLED_BACK, error
        if "foo" in cluster.items and cluster.controllers()["foo"].is_deleting:
            assert error.what == "it is being deleted" and cluster.finalizers[0] in error.why, error
        elif "foo" in cluster.items:
            assert "no update in progress" in error.what, error
            self.check_end(cluster)
        else:
            assert isinstance(error, NoSuchController), error

    def check_fulfilled(self, request: Request, cluster: Cluster) -> None:
        primary = cluster.controllers().get("foo")
        if not (request.pause_at and primary and primary.is_updating):
            self.check_end(cluster)
            return
        # At a pause, the new pods are at least the requested number. The total (with keep_old, the
        # number of old pods) is at most the full size.
        (successor,) = (controller for controller in cluster.controllers().values()
                        if controller.name != "foo")
        assert (primary.new_pods_at_pause == successor.replicas
                >= min(self.size, request.pause_at.value))
        max_old_count = self.size if request.keeps_old else self.size - successor.replicas
        assert successor.available == successor.replicas and primary.replicas <= max_old_count

    def check_end(self, cluster: Cluster) -> None:
        """Check that one controller has all pods, and no annotations of an update."""
        (item,) = cluster.items.values()
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(item["metadata"]["annotations"])
        assert item["spec"]["replicas"] == self.size
        assert not cluster.terminating
        cluster = cluster.copy()
        cluster.settle()
        assert [pod.ready for pod in cluster.pods] == [True] * self.size

    def check_resumable(self, request: Request) -> None:
        """Check that resuming one request from any state leads to its end."""
        predecessors: list[list[int]] = [[] for _cluster in self.clusters]
        for earlier, later in itertools.chain(self.moves, self.steps[key_of(request)]):
            predecessors[later].append(earlier)
        todo, resumable = list(self.ends[key_of(request)]), set(self.ends[key_of(request)])
        while todo:
            new = set(predecessors[todo.pop()]) - resumable
            resumable |= new
            todo += new
        stuck = next((number for number in range(len(self.clusters))
                      if number not in resumable), None)
        if stuck is not None:
            pytest.fail(f"{key_of(request)} never ends from\n{self.path_to(stuck)}", pytrace=False)


@pytest.mark.sample(7)
@pytest.mark.parametrize("size, surge, unavailable", [
    pytest.param(size, surge, unavailable,
                 id=f"size {size} surge {surge} unavailable {unavailable}",
                 # the largest case takes as long as the rest of the sample
                 marks=[pytest.mark.full] if size + surge + unavailable == 7 else [])
    for size, surge, unavailable in itertools.product(range(4), range(3), range(3))
    if surge or unavailable
])
def test_update_and_rollback_at_any_moment(size, surge, unavailable):
    update = dataclasses.replace(UPDATE, **strategy(surge, unavailable))

    Explorer(rc(replicas=size), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_of_four_pods_with_a_crash_after_any_step(surge, unavailable):
    Explorer(rc(replicas=4), dataclasses.replace(UPDATE, **strategy(surge, unavailable)))


@pytest.mark.sample
@pytest.mark.parametrize("size, surge, unavailable, next_name", [
    *((size, *pods, None) for size in (1, 2) for pods in ((1, 0), (0, 1), (1, 1))), (3, 1, 0, None),
    (3, 0, 1, None),
    (2, 1, 0, "bar"), (2, 0, 1, "bar")])
def test_update_with_pod_replacement_policy_termination_complete(size, surge, unavailable,
                                                                 next_name):
    """Count terminating pods towards the ceiling (policy TerminationComplete)."""
    update = dataclasses.replace(UPDATE, next_name=next_name, waits_for_termination=True,
                                 **strategy(surge, unavailable))

    Explorer(rc(replicas=size), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1)])
@pytest.mark.parametrize("size, pause", [(0, 1), (1, 1), (2, 1), (3, 2)])
def test_pause_then_update_or_rollback(size, pause, surge, unavailable):
    update = dataclasses.replace(UPDATE, **strategy(surge, unavailable))
    pause_request = dataclasses.replace(update, pause_at=Size(pause))

    Explorer(rc(replicas=size), pause_request, update,
             dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("size, pauses", [(1, [1]), (2, [1, 2]), (3, [2, 3])])
@pytest.mark.parametrize("waits_for_termination", [False, True])
def test_keep_old_keeps_all_old_pods(make, size, pauses, waits_for_termination):
    primary = make(replicas=size)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), keeps_old=True,
                                 waits_for_termination=waits_for_termination,
                                 max_surge=Size(100, percent=True), max_unavailable=Size(0))

    Explorer(primary, *(dataclasses.replace(update, pause_at=Size(pause)) for pause in pauses))


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("size, pause", [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_keep_old_then_update_or_rollback(make, size, pause):
    primary = make(replicas=size)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), **strategy(1, 0))
    pause_request = dataclasses.replace(update, pause_at=Size(pause), keeps_old=True,
                                        max_surge=Size(100, percent=True))

    Explorer(primary, pause_request, update,
             dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("size", range(3))
def test_update_and_rollback_with_next_name(size, surge, unavailable):
    update = dataclasses.replace(UPDATE, next_name="bar", **strategy(surge, unavailable))

    Explorer(rc(replicas=size), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("size", [1, 2])
def test_restart_and_rollback_at_any_moment(size, surge, unavailable):
    restart = Request(name="foo", state=State.RESTARTED, **strategy(surge, unavailable))

    Explorer(rc(replicas=size), restart, dataclasses.replace(restart, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("primary", [
    pytest.param(rc(replicas=2, available=0), id="no pod available"),
    pytest.param(rc(replicas=2, available=1), id="one of two pods available"),
    pytest.param(rc(replicas=2, label="earlier"), id="deployment label"),
    pytest.param(rc(replicas=2, label=SUCCESSOR_LABEL),
                 id="deployment label of the successor"),
])
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_and_rollback_of_a_primary_with_unavailable_pods_or_a_label(primary, surge,
                                                                           unavailable):
    """The floor is at most the number of pods that were available before the update."""
    update = dataclasses.replace(UPDATE, **strategy(surge, unavailable))

    Explorer(primary, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("primary",
                         [pytest.param(rs(replicas=size, label=label), id=f"size {size}, {label}")
                          for size in range(4) for label in (None, "earlier", SUCCESSOR_LABEL)])
@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1), (1, 1)])
def test_update_and_rollback_of_a_replica_set(primary, surge, unavailable):
    update = dataclasses.replace(UPDATE, kind=Kind.REPLICA_SET, **strategy(surge, unavailable))

    Explorer(primary, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.parametrize("surge, unavailable", [(1, 0), (0, 1)])
def test_update_and_rollback_of_a_replica_set_with_next_name(surge, unavailable):
    update = dataclasses.replace(UPDATE, kind=Kind.REPLICA_SET, next_name="bar",
                                 **strategy(surge, unavailable))

    Explorer(rs(replicas=2), update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("size, deaths", [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_pods_that_die_during_the_handover(make, size, deaths):
    primary = make(replicas=size)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), **strategy(size, 0))

    Explorer(primary, update, deaths=deaths)


@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("deaths", [0, 1])
def test_a_deletion_of_the_successor_that_orphans_its_pods_during_the_handover(make, deaths):
    """foo adopts the remaining pods before its template is opened."""
    primary = make(replicas=2)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), **strategy(2, 0))

    Explorer(primary, update, deaths=deaths, deletions=1)


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("next_name, deaths", [(None, 0), (None, 1), ("bar", 0)])
def test_finalizers_that_delay_the_deletions_of_an_update(make, next_name, deaths):
    finalizers = ("example.com/a",)
    primary = make(replicas=2, finalizers=list(finalizers))
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), next_name=next_name,
                                 **strategy(1, 0))

    explorer = Explorer(primary, update, dataclasses.replace(update, state=State.ROLLED_BACK),
                        finalizers=finalizers, deaths=deaths)

    assert any(simulated.is_terminating(item) for cluster in explorer.clusters
               for item in cluster.items.values())


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("lag", [2, 3])
def test_a_controller_manager_that_is_far_behind(make, lag, monkeypatch):
    monkeypatch.setattr(cluster_models, "MAX_LAG", lag)
    primary = make(replicas=2)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), **strategy(1, 0))

    Explorer(primary, update, dataclasses.replace(update, state=State.ROLLED_BACK))


@pytest.mark.sample
@pytest.mark.parametrize("make", [rc, rs], ids=["ReplicationController", "ReplicaSet"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_primary_replaced_by_its_manifest_during_the_handover(make, size):
    primary = make(replicas=size)
    update = dataclasses.replace(UPDATE, kind=Kind(primary["kind"]), **strategy(size, 0))

    Explorer(primary, update, replacements=1)

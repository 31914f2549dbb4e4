# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every interleaving of the planner with a cluster that takes its time, and a client that may die after any step.

The planner remembers nothing, so a client that dies and one that goes on are the same; one that comes back with the other
wish (update, then roll back, then update ...) is explored by letting both wishes take a step in every state. The cluster
makes its moves in any order: pods become ready one by one, the controller manager sees changes late. Invariants have the
numbers of design section 5.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from builders import rc

from ansible_collections.baton.kubernetes.plugins.module_utils import identity, takeover
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.observed import observe
from ansible_collections.baton.kubernetes.plugins.module_utils.planner import plan
from ansible_collections.baton.kubernetes.plugins.module_utils.request import Request, State
from ansible_collections.baton.kubernetes.plugins.module_utils.simulated import SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.steps import Step, Wait
from ansible_collections.baton.kubernetes.plugins.module_utils.thresholds import Size, resolve_fenceposts

UPDATE = Request(name="foo", images={"": "myimage:v2"})
SIZES = [
    pytest.param(size, surge, unavailable, id=f"size {size} surge {surge} unavailable {unavailable}")
    for size, surge, unavailable in itertools.product(range(4), range(3), range(3)) if surge or unavailable
]


class Explorer:
    """All states that can be reached, and for each wish the states from which it can still be fulfilled."""

    def __init__(self, cluster: SimulatedCluster, *requests: Request, size: int) -> None:
        self.requests = requests
        self.size = size
        surge, unavailable = resolve_fenceposts(requests[0].max_surge, requests[0].max_unavailable, size)
        self.ceiling = size + surge
        self.floor = min(size - unavailable, sum(pod.ready for pod in cluster.pods))
        self.keys: dict[int, tuple] = {}
        #: For each wish: who comes before a state, and where the wish is fulfilled.
        self.before: dict[State, dict[tuple, list[tuple]]] = {request.state: {} for request in requests}
        self.ends: dict[State, set[tuple]] = {request.state: set() for request in requests}
        self.states: dict[tuple, SimulatedCluster] = {}
        self.explore(cluster)

    def explore(self, start: SimulatedCluster) -> None:
        self.states[self.key(start)] = start
        todo = [start]
        while todo:
            cluster = todo.pop()
            here = self.key(cluster)
            self.check(cluster)
            for request, after in self.next_states(cluster):
                there = self.key(after)
                for wish in self.requests if request is None else (request,):
                    self.before[wish.state].setdefault(there, []).append(here)
                if there not in self.states:
                    self.states[there] = after
                    todo.append(after)

    def next_states(self, cluster: SimulatedCluster):
        """What the cluster may do, and what each wish would do."""
        for move in cluster.moves():
            after = cluster.copy()
            after.make(move)
            self.check_takeover(cluster, after, move)
            yield None, after
        for request in self.requests:
            controllers = cluster.controllers()
            base = controllers.get("foo") or next(iter(controllers.values()))
            seen = observe(controllers, request)
            if request.state is not State.ROLLED_BACK:
                seen = dataclasses.replace(seen, wanted=request.applied_to(base.template))
            if takeover.needs_orphans(base):
                seen = dataclasses.replace(seen, orphans=cluster.orphans(base.selector))
            try:
                decision = plan(request, seen)
            except RolloutError as error:
                assert request.state is State.ROLLED_BACK and "no update in progress" in error.what, error
                self.end(request, cluster)
                continue
            if isinstance(decision, Wait):
                assert cluster.moves(), f"waits for ever: {decision}"
            elif isinstance(decision, Step):
                after = cluster.copy()
                assert after.write(decision.write), f"refused: {decision}"
                yield request, after
                if decision.is_last:
                    self.ends[request.state].add(self.key(after))
            else:
                self.end(request, cluster)

    def check(self, cluster: SimulatedCluster) -> None:
        # 1. foo exists at all times, or next is what the user wanted under its own name
        assert "foo" in cluster.items or self.requests[0].next_name in cluster.items
        # 2. floor and ceiling
        ready = sum(pod.ready for pod in cluster.pods)
        assert self.floor <= ready, f"{ready} ready, floor {self.floor}: {cluster.items}"
        assert len(cluster.pods) <= self.ceiling, f"{len(cluster.pods)} pods, ceiling {self.ceiling}: {cluster.items}"

    def check_takeover(self, cluster: SimulatedCluster, after: SimulatedCluster, move) -> None:
        """The takeover creates no pod, deletes none, and changes nothing on them but the owner."""
        if identity.TAKEOVER in cluster.items.get("foo", rc())["metadata"]["annotations"] and move.verb != "ready":
            assert sorted(pod[1:3] for pod in cluster.pods) == sorted(pod[1:3] for pod in after.pods), move

    def end(self, request: Request, cluster: SimulatedCluster) -> None:
        """4. A fulfilled wish: one controller, no marks, and all pods once the cluster has come to rest."""
        self.ends[request.state].add(self.key(cluster))
        (item,) = cluster.items.values()
        assert not set(identity.MARKS) & set(item["metadata"]["annotations"])
        assert item["spec"]["replicas"] == self.size
        cluster = cluster.copy()
        cluster.settle()
        assert [pod.ready for pod in cluster.pods] == [True] * self.size

    def check_every_wish_can_be_fulfilled(self) -> None:
        """4. Whatever happened before, going on with one wish leads to its end."""
        for request in self.requests:
            todo, found = list(self.ends[request.state]), set(self.ends[request.state])
            while todo:
                for earlier in self.before[request.state].get(todo.pop(), ()):
                    if earlier not in found:
                        found.add(earlier)
                        todo.append(earlier)
            stuck = next((state for state in self.states if state not in found), None)
            assert stuck is None, f"{request.state} never ends from {self.states[stuck].items}"

    def key(self, cluster: SimulatedCluster) -> tuple:
        """The state, with generations counted from the present one: they would grow for ever."""
        names = sorted(cluster.items.keys() | cluster.seen.keys())
        parts = []
        for name in names:
            item, seen = cluster.items.get(name), cluster.seen.get(name)
            late = item and seen and item["metadata"]["generation"] > seen["metadata"]["generation"]
            parts.append((name, self.item_key(item), late, seen and self.item_key(seen)[0]))
        return (*parts, *cluster.unseen, *cluster.pods)

    def item_key(self, item) -> tuple:
        if item is None:
            return ()
        if id(item) not in self.keys:
            metadata = {key: value for key, value in item["metadata"].items() if key != "generation"}
            status = {key: value for key, value in item["status"].items() if key != "observedGeneration"}
            late = item["metadata"]["generation"] > item["status"].get("observedGeneration", 0)
            # The item is kept with its key: another one at the same address would be taken for it.
            self.keys[id(item)] = (identity.canonical([item["spec"], metadata.get("deletionTimestamp")]),
                                   identity.canonical([metadata, status]), late, item)
        return self.keys[id(item)][:3]


@pytest.mark.parametrize("size, surge, unavailable", SIZES)
def test_update_and_rollback_at_any_moment(size, surge, unavailable):
    """Invariants 1, 2 and 4, with a crash after any step and the other wish from there."""
    request = dataclasses.replace(UPDATE, max_surge=Size(surge), max_unavailable=Size(unavailable))
    back = dataclasses.replace(request, state=State.ROLLED_BACK)

    explorer = Explorer(SimulatedCluster([rc(replicas=size)]), request, back, size=size)

    explorer.check_every_wish_can_be_fulfilled()

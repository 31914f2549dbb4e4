# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a DaemonSet: the server's own controller replaces the pods, or, up to a pause, those that are deleted. Pure.

Most of its rows are those of by_revisions/planner.py.

A pause is exact because of OnDelete: as long as updateStrategy.type says that, the server replaces no pod by itself. The task
deletes old pods, each by its uid and only in the state in which it was seen, and the server makes new ones on their nodes.
minReadySeconds, by which a Deployment is paused, does not hold a DaemonSet: a pod that has been ready for less than that counts as
unavailable, an old one like a new one, and the server replaces old ones that are unavailable at once.
"""

from __future__ import annotations

import typing as t

from ...model import budgets
from ...model.by_server import DaemonSet
from ...model.errors import NoSuchController, RolloutError
from ...model.fields import Json, mapping, objects
from ...model.marks import Rollout
from ...model.request import Request
from ...model.settings import USUAL, numbers_of_daemon_set
from ...model.steps import Action, Decision, Delete, Step, Wait
from ...model.template import same_template
from ...model.thresholds import Size
from .. import recorded
from ..by_revisions.planner import Turn
from .find import DaemonPod, DaemonSetObserved, is_doubted, is_overdue, miscounted, most_missing


def plan(request: Request, seen: DaemonSetObserved) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError for the rows of the table that are errors."""
    primary = t.cast("DaemonSet | None", seen.primary)
    # | foo | record | condition | step |
    # | - | | | error: no such DaemonSet |
    if primary is None:
        raise NoSuchController("there is no such DaemonSet", where=request.where)
    return _Turn(request, seen, primary).decision()


def bounds(request: Request, seen: DaemonSetObserved, primary: DaemonSet) -> tuple[int, int]:
    """How many pods there may be beyond its size, and how many may be missing.

    Where it goes back, one at least, whatever a budget says: it undoes what may be broken.
    """
    numbers = _asked(request, seen, primary)
    surge = Size.from_api(numbers["maxSurge"]).of(primary.replicas, round_up=True)
    if surge and not recorded.pauses(request, primary):
        return surge, 0
    kept = budgets.kept(seen.budgets, primary.replicas, most_missing(numbers, primary.replicas))
    return 0, max(kept, request.state.undoes)


class _Turn(Turn):
    """What is particular to DaemonSets: OnDelete, pods that the task deletes, and the nodes they are on."""

    seen: DaemonSetObserved
    primary: DaemonSet

    def left(self, wanted: Json, *, has_it: bool, is_back: bool) -> str:
        """Where somebody's update is under way, going back means to the template before it; unless that is where it goes."""
        before = next(iter(self.seen.others), None)
        is_left = before is not None and not is_back and (has_it or self.seen.is_rolling)
        if before is None or not is_left or same_template(before.template, wanted, self.request.label_key):
            return self.seen.present_name
        return before.name

    # The pace

    def pace(self, *, is_under_way: bool) -> Json:
        request, primary = self.request, self.primary
        usual = recorded.usual(request, primary, self.seen.record)
        numbers = _asked(request, self.seen, primary)
        if self.pauses:
            self._refuse_to_pause(numbers)
            return {**usual, "updateStrategy": {**(usual["updateStrategy"] or {}), "type": "OnDelete"}}
        surge, missing = bounds(request, self.seen, primary)
        if surge and request.waits_for_termination:
            raise RolloutError(f"pod_replacement_policy=TerminationComplete cannot be used, because maxSurge is "
                               f"{numbers['maxSurge']}: the cluster creates a new pod beside the old one of its node",
                               where=request.where, next_command="give max_unavailable=1, and no max_surge")
        if surge and (ports := _host_ports(self.seen.wanted or {})):
            raise RolloutError(f"its new pods would never start beside the old ones: they use port {ports[0]} of the node "
                               f"(hostPort or hostNetwork), and maxSurge is {numbers['maxSurge']}", where=request.where,
                               next_command="give max_unavailable=1, and no max_surge, so that an old pod goes before the new one "
                                            "comes")
        if not surge:
            budgets.refuse_standstill(request, self.seen.budgets, primary.replicas, surge, missing)
            if most_missing(numbers, primary.replicas) != missing:
                numbers = {"maxSurge": 0, "maxUnavailable": missing}
        return {**usual, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}

    def _refuse_to_pause(self, numbers: Json) -> None:
        """Raise RolloutError where the task may delete no pod, or none of those that are to be first is there."""
        request, seen, size = self.request, self.seen, self.primary.replicas
        # | yes | any | pause_at, and its updateStrategy has a surge instead of missing pods | error |
        if not most_missing(numbers, max(1, size)):
            raise RolloutError("pause_at cannot be used, because its updateStrategy lets no pod be missing (maxUnavailable is 0), "
                               "and an old pod has to go before the new one of its node can come", where=request.where,
                               next_command="add max_unavailable=1 to the task")
        budgets.refuse_standstill(request, seen.budgets, size, 0, bounds(request, seen, self.primary)[1], may_surge=False)
        # | yes | any | pause_at with nodes, and no pod is on one of these | error |
        if seen.nodes is not None and seen.by_node is not None and not any(pod.node in seen.nodes for pod in seen.by_node):
            raise RolloutError(f"none of its pods is on a node with the labels that nodes asks for ({request.nodes})",
                               where=request.where, next_command=(
                                   "see which nodes there are:", f"{request.kubectl_of_cluster} get nodes --show-labels"))

    def told(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        numbers = numbers_of_daemon_set(strategy)
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        return f"max_surge {numbers['maxSurge']}" if Size.from_api(numbers["maxSurge"]).value else (
            f"max_unavailable {numbers['maxUnavailable']}")

    @property
    def left_as_it_is(self) -> str:
        primary = self.primary
        return "" if self.seen.is_witnessed or not is_doubted(primary) else (
            f"maxUnavailable of the DaemonSet {primary.name} is left at {primary.numbers['maxUnavailable']}: that it was more "
            f"before the update says nothing but an annotation")

    # The pause

    def goes_on(self, record: Rollout) -> Decision | None:
        if not self.pauses or self.request.pause_at is None:
            return self._replace_miscounted(record) or (None if self.seen.is_all_new else self.progress())
        primary, pods, present = self.primary, self.seen.by_node, self.seen.present
        if pods is None or present is None:
            return self.progress()
        size = primary.replicas + primary.misplaced
        live = [pod for pod in pods if not pod.is_going]
        new = [pod for pod in live if pod.revision == present.pods]
        # Of nodes that take no new pods, the server does not tell which of them have a new one: any of them may.
        wrong = len(miscounted(primary, present.pods, pods))
        counted = primary.updated - wrong + primary.misplaced
        # As long as the server has not counted the new pods that are seen, it has not counted which of them are available either.
        # Where it counts more than are seen (a label may have been changed), none is deleted either.
        if len(new) > counted or primary.updated - wrong > sum(pod.revision == present.pods for pod in pods):
            return self.progress()
        goal = min(primary.replicas, self.request.pause_at.of(primary.replicas, round_up=True))
        ready = sum(pod.is_ready for pod in live)
        unavailable = max(size - ready, primary.replicas - primary.available)
        # | yes | updating | fewer pods are new, or on their way, than the pause asks for | delete an old one |
        late = [pod for pod in pods if is_overdue(pod, self.seen.server_time)]
        if len(new) + max(0, size - len(live) - len(late)) < goal:
            may_lack = unavailable < bounds(self.request, self.seen, primary)[1]
            return self._delete(self._next(live, present.pods, may_lack), may_lack, record) or self._waits_for(late)
        is_counted = primary.available + primary.misplaced >= min(ready, size)  # the pod of a node that is gone stays for a while
        is_there = sum(pod.is_ready for pod in new) >= goal and is_counted
        return self.end_at(record, len(new), size) if is_there else self._waits_for(late)

    def _replace_miscounted(self, record: Rollout) -> Decision | None:
        """Delete a pod that the server takes for a new one, which none but a deletion replaces; None without such a pod.

        One more may be missing than the strategy says where that is a surge: beside such a pod, the server makes no other.
        """
        # | yes | updating, rolling back | a pod that counts as new has another revision | delete it, if one more may be missing |
        pods, primary = self.seen.miscounted, self.primary
        unavailable = primary.replicas - primary.available + sum(pod.is_going for pod in pods)
        may_lack = unavailable < max(1, bounds(self.request, self.seen, primary)[1])
        left = [pod for pod in pods if not pod.is_going]
        first = min(left, key=lambda pod: (pod.is_ready is not may_lack, pod.node, pod.name), default=None)
        return self._delete(first, may_lack, record) or (self.progress() if pods else None)

    def _waits_for(self, late: list[DaemonPod]) -> Wait:
        """Named is what should have gone by now: its node may not work any more, and then it never goes by itself."""
        what = "".join(f"; pod {pod.name} of node {pod.node} should have gone by {pod.due}" for pod in late)
        return Wait(f"{self.progress().until}{what}")

    def _next(self, live: list[DaemonPod], present: str, may_lack: bool) -> DaemonPod | None:
        """The old pod to be replaced next: first on the nodes that are asked for.

        As long as one more may be missing, one that is ready goes, since its node evidently works. Then one that is not: that costs
        nothing.
        """
        first = self.seen.nodes or ()
        old = (pod for pod in live if pod.revision != present)
        return min(old, key=lambda pod: (pod.node not in first, pod.is_ready is not may_lack, pod.node, pod.name), default=None)

    def _delete(self, pod: DaemonPod | None, may_lack: bool, record: Rollout) -> Step | None:
        """Delete a pod, if there may be one more missing; one that is not ready is missing already."""
        primary = self.primary
        if pod is None or (pod.is_ready and not may_lack):
            return None
        # | yes | updating | it goes on from a pause to a later one | pace: the record says that it is paused no more |
        if primary.paused is not None:
            return Step(Action.PACE, primary.name, recorded.patch(primary, record.text, primary.settings),
                        before=f"paused at {primary.paused}", after="goes on")
        write = Delete(pod.name, {"uid": pod.uid, "resourceVersion": pod.resource_version}, "Pod")
        state = "" if pod.is_ready else "it is not ready; "
        promise = f"the cluster makes the new pod of node {pod.node}{', if that still takes pods' if primary.misplaced else ''}"
        return Step(Action.DELETE, pod.name, write, after=state + promise)


def _asked(request: Request, seen: DaemonSetObserved, primary: DaemonSet) -> Json:
    """maxSurge and maxUnavailable as the task gives them, or else as they usually are; on the way back, none that blocks it."""
    return USUAL if is_surge_blocked(request, seen, primary) else _requested(request, seen, primary)


def _requested(request: Request, seen: DaemonSetObserved, primary: DaemonSet) -> Json:
    if request.gives_strategy:
        return {"maxSurge": request.max_surge.for_api, "maxUnavailable": request.max_unavailable.for_api}
    return numbers_of_daemon_set(recorded.usual(request, primary, seen.record)["updateStrategy"])


def is_surge_blocked(request: Request, seen: DaemonSetObserved, primary: DaemonSet) -> bool:
    """Return whether a rollback with a surge would never end: pods of both templates need the same port of their node."""
    if not (request.undoes and Size.from_api(_requested(request, seen, primary)["maxSurge"]).value):
        return False
    other = seen.before.template if seen.before else primary.template
    return not set(_host_ports(primary.template)).isdisjoint(_host_ports(other))


def _host_ports(template: Json) -> list[int]:
    """The ports of its node that a pod of this template takes for itself, so that there is room for one of them only."""
    spec = mapping(template, "spec")
    lasting = [each for each in objects(spec, "initContainers") if each.get("restartPolicy") == "Always"]
    ports = [port for each in (*objects(spec, "containers"), *lasting) for port in objects(each, "ports")]
    # In the network of its node, all ports are ports of that; an API server may fill that in, or not.
    taken = [port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork") else None) for port in ports]
    return [port for port in taken if port]

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a DaemonSet, and the DaemonSet's rows of the state table. No I/O.

The rows are the `# | ... |` comments (see docs/concepts/server-driven.md).

An update with a pause sets updateStrategy.type to OnDelete, so that the DaemonSet controller
replaces no running pod. Until the pause, the task itself deletes old pods, with preconditions on
uid and resourceVersion, and the DaemonSet controller creates new pods on their nodes. A high
minReadySeconds, which pauses a Deployment, would not pause a DaemonSet. Running old pods would
become unavailable, too, and the DaemonSet controller replaces unavailable old pods at once.
"""

from __future__ import annotations

import dataclasses

from ...model import budgets
from ...model.errors import RolloutError
from ...model.fields import Json, mapping, objects
from ...model.object_meta import Rollout
from ...model.server_driven import DaemonSet
from ...model.settings import DAEMON_SET_DEFAULTS, daemon_set_numbers
from ...model.steps import Action, Decision, Delete, Step, Wait
from ...model.thresholds import Size
from .. import provenance
from ..controller_revisions.planner import RevisionsPlanner, RevisionsSettings
from ..provenance import Match
from ..server_driven import recorded
from .observed import DaemonPod, DaemonSetObserved, is_overdue, max_unavailable_pods, miscounted


class DaemonSetSettings(RevisionsSettings[DaemonSetObserved]):
    """The settings of a DaemonSet during an update, with either maxSurge or maxUnavailable."""

    primary: DaemonSet

    @property
    def bounds(self) -> tuple[int, int]:
        """Two numbers of pods: the surge, and how many may be unavailable. One of the two is 0.

        A rollback without a surge may make one pod unavailable, even if a PodDisruptionBudget or
        maxUnavailable allows none.
        """
        numbers, size = self._numbers, self.primary.replicas
        surge = Size.from_api(numbers["maxSurge"]).resolve(size, round_up=True)
        if surge and not self.pauses:
            return surge, 0
        allowed = budgets.limit_unavailable(self.observed.budgets, size,
                                            max_unavailable_pods(numbers, size))
        return 0, max(allowed, self.request.state.undoes)

    @property
    def _numbers(self) -> Json:
        """The maxSurge and maxUnavailable to use; the API's defaults if a surge is blocked."""
        return DAEMON_SET_DEFAULTS if self.is_surge_blocked else self._requested_numbers

    @property
    def _requested_numbers(self) -> Json:
        if self.request.overrides_strategy:
            return {"maxSurge": self.request.max_surge.for_api,
                    "maxUnavailable": self.request.max_unavailable.for_api}
        return daemon_set_numbers(self.baseline["updateStrategy"])

    @property
    def is_surge_blocked(self) -> bool:
        """Whether a rollback cannot surge, because both templates use the same host port."""
        if not (self.request.undoes and Size.from_api(self._requested_numbers["maxSurge"]).value):
            return False
        present, before = self.primary.template, self.observed.before
        previous = before.template if before else present
        return not set(_host_ports(present)).isdisjoint(_host_ports(previous))

    def strategy_of_update(self, *, has_template: bool) -> Json:
        numbers = self._numbers
        if self.pauses:
            self._refuse_to_pause(numbers)
            return {**(self.baseline["updateStrategy"] or {}), "type": "OnDelete"}
        size, (surge, unavailable) = self.primary.replicas, self.bounds
        if surge:
            self._refuse_surge(numbers)
        else:
            budgets.refuse_blocking_budgets(
                self.request, self.observed.budgets, size, surge, unavailable)
            if max_unavailable_pods(numbers, size) != unavailable:
                numbers = {"maxSurge": 0, "maxUnavailable": unavailable}
        return {"type": "RollingUpdate", "rollingUpdate": numbers}

    def _refuse_surge(self, numbers: Json) -> None:
        """Raise RolloutError if an old pod and its replacement may not run at the same time."""
        request = self.request
        if request.waits_for_termination:
            raise RolloutError("pod_replacement_policy=TerminationComplete cannot be used, "
                               f"because maxSurge is {numbers['maxSurge']}: the cluster creates a "
                               "new pod on a node before the old one is deleted",
                               where=request.where,
                               next_command="give max_unavailable=1, and no max_surge")
        # | any | a surge, and the new pods use ports of their node | error |
        if ports := _host_ports(self.observed.desired or {}):
            raise RolloutError("a node cannot run its old and its new pod at the same time: they "
                               f"use port {ports[0]} of the node "
                               f"(hostPort or hostNetwork), and maxSurge is {numbers['maxSurge']}",
                               where=request.where,
                               next_command="give max_unavailable=1, and no max_surge, so that an "
                                            "old pod is deleted before its replacement is created")

    def _refuse_to_pause(self, numbers: Json) -> None:
        """Raise RolloutError if no pod may be deleted, or if the requested nodes have no pods."""
        request, observed, size = self.request, self.observed, self.primary.replicas
        # | any | `pause_at`, and no pod may be missing | error |
        if not max_unavailable_pods(numbers, max(1, size)):
            raise RolloutError("pause_at cannot be used, because the DaemonSet's updateStrategy "
                               "allows no unavailable pod (maxUnavailable is 0), "
                               "and an old pod is deleted before its replacement is created",
                               where=request.where,
                               next_command="add max_unavailable=1 to the task")
        budgets.refuse_blocking_budgets(request, observed.budgets, size, 0, self.bounds[1],
                                        may_surge=False)
        # | any | `pause_at`, and no pod is on the requested `nodes` | error |
        if observed.nodes is not None and observed.daemon_pods is not None and not any(
                pod.node in observed.nodes for pod in observed.daemon_pods):
            raise RolloutError("none of its pods is on a node that matches "
                               f"nodes={request.nodes}",
                               where=request.where, next_command=(
                                   "list the nodes:",
                                   f"{request.cluster_kubectl} get nodes --show-labels"))

    def describe(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        numbers = daemon_set_numbers(strategy)
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        return f"max_surge {numbers['maxSurge']}" if Size.from_api(numbers["maxSurge"]).value else (
            f"max_unavailable {numbers['maxUnavailable']}")


class DaemonSetPlanner(RevisionsPlanner[DaemonSetObserved]):
    """The state table of a DaemonSet."""

    primary: DaemonSet
    settings_type = DaemonSetSettings

    def predecessor(self, desired: Json, *, is_rolling_back: bool) -> str:
        """Return the name of the revision that a rollback of this update restores.

        In general, this is the current revision. If another client has already set the desired
        template, or has another update in progress, this is the newest other revision, unless this
        update is a rollback or that revision has the desired template.
        """
        newest_other, observed = self.observed.newest_other, self.observed
        is_updated_by_other = not is_rolling_back and (observed.is_rolling
                                                       or self.match(desired) is Match.EXACT)
        if newest_other is None or not is_updated_by_other or provenance.match(
                self.request, newest_other.template, desired) is Match.EXACT:
            return observed.present_name
        return newest_other.name

    def proceed(self, record: Rollout) -> Decision | None:
        if not self.settings.pauses or self.request.pause_at is None:
            return (self._replace_miscounted(record) or self._wake_controller(record)
                    or (None if self.observed.is_all_new else self.progress()))
        primary, pods, present = self.primary, self.observed.daemon_pods, self.observed.present
        if pods is None or present is None:
            return self.progress()
        size = primary.replicas + primary.misscheduled
        live = [pod for pod in pods if not pod.is_inactive]
        new = [pod for pod in live if pod.revision == present.pod_revision]
        if not self._is_status_consistent(pods, len(new), present.pod_revision):
            return self.progress()
        goal = min(primary.replicas, self.request.pause_at.resolve(primary.replicas, round_up=True))
        ready = sum(pod.is_ready for pod in live)
        unavailable = max(size - ready, primary.replicas - primary.available)
        # | updating | new pods plus pods to be created < `pause_at` | **delete** an old pod |
        overdue = [pod for pod in pods if is_overdue(pod, self.observed.server_time)]
        if len(new) + max(0, size - len(live) - len(overdue)) < goal:
            may_disrupt = unavailable < self.settings.bounds[1]
            old_pod = self._next_pod(live, present.pod_revision, may_disrupt)
            return self._delete(old_pod, may_disrupt, record) or self._wait(overdue)
        # After the deletion of a node, the status still counts the pod of that node for a while.
        has_enough_available = primary.available + primary.misscheduled >= min(ready, size)
        is_reached = sum(pod.is_ready for pod in new) >= goal and has_enough_available
        return self.pause(record, len(new), size) if is_reached else self._wait(overdue)

    def _is_status_consistent(self, pods: tuple[DaemonPod, ...], new: int,
                              new_revision: str) -> bool:
        """Return whether the status agrees with the observed pods about the number of new pods.

        If not, the status is outdated, or another client has changed the label of a pod.
        new: the number of live pods with the new revision.
        """
        primary = self.primary
        # updatedNumberScheduled leaves out pods on nodes that are not eligible, but such a pod may
        # be new, too.
        updated = primary.updated - len(miscounted(primary, new_revision, pods))
        all_new = sum(pod.revision == new_revision for pod in pods)
        return new <= updated + primary.misscheduled and updated <= all_new

    def _replace_miscounted(self, record: Rollout) -> Decision | None:
        """Return the deletion of an old pod that the status counts as new; None without such pods.

        The DaemonSet controller would never replace such a pod. The deletion may make one pod
        unavailable, even if the update has a surge. While no pod may be deleted, return a wait.
        """
        # | any | the status counts an old pod as new | **delete** it, if one more may be missing |
        pods, primary = self.observed.miscounted, self.primary
        unavailable = primary.replicas - primary.available + sum(pod.is_inactive for pod in pods)
        may_disrupt = unavailable < max(1, self.settings.bounds[1])
        remaining = [pod for pod in pods if not pod.is_inactive]
        first = min(remaining, default=None,
                    key=lambda pod: (pod.is_ready is not may_disrupt, pod.node, pod.name))
        return self._delete(first, may_disrupt, record) or (self.progress() if pods else None)

    def _wake_controller(self, record: Rollout) -> Step | None:
        """Return a step that wakes the DaemonSet controller in a stalled surge, or None.

        The controller syncs after any change, so the step changes only the record.
        """
        # | updating, rolling back | a surge has stalled | **annotate**: the time |
        primary = self.primary
        if not self.observed.is_stalled:
            return None
        woken = dataclasses.replace(record, woken=self.observed.now)
        return Step(Action.ANNOTATE, primary.name,
                    recorded.patch(primary, woken.text, primary.settings),
                    before=f"stalled at {primary.updated} of {primary.replicas} new pods",
                    after=f"the controller continues after {primary.updated} new pods")

    def _wait(self, overdue: list[DaemonPod]) -> Wait:
        """Return the wait of progress(), whose text then also names the overdue pods."""
        suffix = "".join(f"; pod {pod.name} of node {pod.node} should have gone by {pod.due}"
                         for pod in overdue)
        return Wait(f"{self.progress().until}{suffix}")

    def _next_pod(self, live: list[DaemonPod], new_revision: str,
                  may_disrupt: bool) -> DaemonPod | None:
        """Return the old pod to replace next, or None if no pod is old.

        Pods on the requested nodes come first. If one more pod may become unavailable
        (may_disrupt), ready pods come before unready pods, because their nodes work. Otherwise,
        only unready pods can be replaced.
        """
        preferred_nodes = self.observed.nodes or ()
        old = (pod for pod in live if pod.revision != new_revision)
        return min(old, default=None,
                   key=lambda pod: (pod.node not in preferred_nodes,
                                    pod.is_ready is not may_disrupt, pod.node, pod.name))

    def _delete(self, pod: DaemonPod | None, may_disrupt: bool, record: Rollout) -> Step | None:
        """Return the deletion of the pod; None without a pod, or if it must not be deleted yet."""
        primary = self.primary
        if pod is None or (pod.is_ready and not may_disrupt):
            return None
        # | updating | beyond the recorded pause | **pace**: remove the pause from the record |
        if primary.paused is not None:
            return Step(Action.PACE, primary.name,
                        recorded.patch(primary, record.text, primary.settings),
                        before=f"paused at {primary.paused}", after="resumed")
        write = Delete(pod.name, {"uid": pod.uid, "resourceVersion": pod.resource_version}, "Pod")
        state = "" if pod.is_ready else "it is not ready; "
        condition = ", if the node still accepts pods" if primary.misscheduled else ""
        promise = f"the cluster makes the new pod of node {pod.node}{condition}"
        return Step(Action.DELETE, pod.name, write, after=state + promise)


def _host_ports(template: Json) -> list[int]:
    spec = mapping(template, "spec")
    sidecars = [container for container in objects(spec, "initContainers")
                if container.get("restartPolicy") == "Always"]
    ports = [port for container in (*objects(spec, "containers"), *sidecars)
             for port in objects(container, "ports")]
    # With hostNetwork, each container port is a host port. Not every API server sets hostPort.
    occupied = [port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork")
                                         else None) for port in ports]
    return [port for port in occupied if port]

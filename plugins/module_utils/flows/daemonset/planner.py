# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a DaemonSet, and the DaemonSet's rows of the state table. No I/O.

The terms of the table rows are defined in docs/concepts/server-driven.md.

An update with a pause sets updateStrategy.type to OnDelete, so that the DaemonSet controller
replaces no running pod. Until the pause, the task itself deletes old pods. A high minReadySeconds,
as for a Deployment, would not pause a DaemonSet: running old pods would become unavailable, and the
controller replaces unavailable old pods at once.
"""

from __future__ import annotations

import dataclasses

from ...model import budgets
from ...model.errors import RolloutError
from ...model.fields import Json, join_first, mapping, objects
from ...model.object_meta import Rollout
from ...model.server_driven import DaemonSet
from ...model.settings import DAEMON_SET_DEFAULTS, daemon_set_numbers, has_surge
from ...model.steps import Action, Decision, Delete, Step, Wait
from ...model.thresholds import Size
from .. import provenance
from ..controller_revisions.planner import RevisionDrivenPlanner, RevisionDrivenSettings
from ..provenance import Match
from ..server_driven import recorded
from .observed import (
    DaemonPod,
    DaemonSetObserved,
    find_miscounted_pods,
    is_overdue,
    max_unavailable_pods,
)


class DaemonSetSettings(RevisionDrivenSettings[DaemonSetObserved]):
    """The settings of a DaemonSet during an update."""

    primary: DaemonSet

    @property
    def surge_and_unavailable(self) -> tuple[int, int]:
        numbers, size = self._strategy_numbers, self.primary.replicas
        surge = Size.from_api(numbers["maxSurge"]).resolve(size, round_up=True)
        if surge and not self.requested_pause:
            return surge, 0
        allowed = budgets.limit_unavailable(self.observed.budgets, size,
                                            max_unavailable_pods(numbers, size))
        # A rollback without a surge may make one pod unavailable, even if the budgets allow none.
        return 0, max(allowed, int(self.request.state.rolls_back))

    @property
    def _strategy_numbers(self) -> Json:
        return DAEMON_SET_DEFAULTS if self.is_surge_blocked else self._unrestricted_numbers

    @property
    def _unrestricted_numbers(self) -> Json:
        """The numbers of the task, or else of the baseline, even if is_surge_blocked."""
        if self.request.overrides_strategy:
            return {"maxSurge": self.request.max_surge.for_api,
                    "maxUnavailable": self.request.max_unavailable.for_api}
        return daemon_set_numbers(self.baseline["updateStrategy"])

    @property
    def is_surge_blocked(self) -> bool:
        """Whether this rollback would surge, but cannot.

        The reason is that the present and the previous template use the same port of their node.
        """
        if not (self.request.rolls_back_update and has_surge(self._unrestricted_numbers)):
            return False
        present_template, previous_revision = self.primary.template, self.observed.previous_revision
        previous = previous_revision.template if previous_revision else present_template
        return not set(_host_ports(present_template)).isdisjoint(_host_ports(previous))

    def strategy_during_update(self, *, is_desired_template_set: bool) -> Json:
        numbers = self._strategy_numbers
        if self.requested_pause:
            self._refuse_impossible_pause(numbers, is_desired_template_set=is_desired_template_set)
            return {**(self.baseline["updateStrategy"] or {}), "type": "OnDelete"}
        size, (surge, unavailable) = self.primary.replicas, self.surge_and_unavailable
        if surge:
            self._refuse_impossible_surge(numbers)
        else:
            budgets.refuse_blocking_budgets(
                self.request, self.observed.budgets, size, surge, unavailable)
            if not (is_desired_template_set and self._does_controller_replace_pods):
                self._refuse_loss_of_all_pods()
            if max_unavailable_pods(numbers, size) != unavailable:
                numbers = {"maxSurge": 0, "maxUnavailable": unavailable}
        return {"type": "RollingUpdate", "rollingUpdate": numbers}

    @property
    def _does_controller_replace_pods(self) -> bool:
        return mapping(self.primary.settings, "updateStrategy").get("type") != "OnDelete"

    def _refuse_impossible_pause(self, numbers: Json, *, is_desired_template_set: bool) -> None:
        request, observed, size = self.request, self.observed, self.primary.replicas
        # | record | condition | step |
        # | any | `pause_at` is set, but maxUnavailable is 0 | error |
        if not max_unavailable_pods(numbers, max(1, size)):
            raise RolloutError("pause_at cannot be used, because the DaemonSet's updateStrategy "
                               "allows no unavailable pod (maxUnavailable is 0), "
                               "and an old pod is deleted before its replacement is created",
                               where=request.where,
                               next_command="add max_unavailable=1 to the task")
        max_unavailable = self.surge_and_unavailable[1]
        budgets.refuse_blocking_budgets(request, observed.budgets, size, 0, max_unavailable,
                                        supports_surge=False)
        # | any | `pause_at` is set, but no pod is or will be on the requested `nodes` | error |
        if observed.preferred_nodes is None or observed.daemon_pods is None:
            return
        nodes_with_pods = {pod.node for pod in observed.daemon_pods}
        # During the update, a requested node has no pod until the cluster has created the new one.
        is_pod_missing = (is_desired_template_set
                          and len(nodes_with_pods) < size + self.primary.misscheduled)
        if nodes_with_pods.isdisjoint(observed.preferred_nodes) and not is_pod_missing:
            raise RolloutError("no pod of the DaemonSet is on a node that matches "
                               f"nodes={request.nodes}",
                               where=request.where, next_command=(
                                   "list the nodes:",
                                   f"{request.cluster_kubectl} get nodes --show-labels"))

    def _refuse_impossible_surge(self, numbers: Json) -> None:
        request = self.request
        if request.waits_for_termination:
            raise RolloutError("pod_replacement_policy=TerminationComplete cannot be used, "
                               f"because maxSurge is {numbers['maxSurge']}: the cluster creates a "
                               "new pod on a node before the old one is deleted",
                               where=request.where,
                               next_command="give max_unavailable=1, and no max_surge")
        # | any | the update would surge, but its pods use ports of their node | error |
        if ports := _host_ports(self.observed.desired_template or {}):
            raise RolloutError("a node cannot run its old and its new pod at the same time: they "
                               f"use port {ports[0]} of the node "
                               f"(hostPort or hostNetwork), and maxSurge is {numbers['maxSurge']}",
                               where=request.where,
                               next_command="give max_unavailable=1, and no max_surge, so that an "
                                            "old pod is deleted before its replacement is created")

    def _refuse_loss_of_all_pods(self) -> None:
        request, primary = self.request, self.primary
        if primary.replicas or not primary.misscheduled or request.state.rolls_back:
            return
        # | any | no node accepts pods, and a budget selects the running pods | error |
        for budget in self.observed.budgets:
            raise RolloutError(f"no node accepts pods of the DaemonSet: the cluster would delete "
                               f"its {primary.misscheduled} pods, which the PodDisruptionBudget "
                               f"{budget['metadata']['name']} selects, and replace none",
                               where=request.where, next_command=(
                                   "look for taints that the template does not tolerate:",
                                   f"{request.cluster_kubectl} get nodes -o custom-columns="
                                   "NAME:.metadata.name,TAINTS:.spec.taints"))

    def describe(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        numbers = daemon_set_numbers(strategy)
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        return (f"max_surge {numbers['maxSurge']}" if has_surge(numbers)
                else f"max_unavailable {numbers['maxUnavailable']}")


class DaemonSetPlanner(RevisionDrivenPlanner[DaemonSetObserved]):
    """The state table of a DaemonSet."""

    primary: DaemonSet
    settings_type = DaemonSetSettings

    def predecessor_name(self, desired_template: Json, *, is_rolling_back: bool) -> str:
        """Return the name of the replaced revision (of a rollback: the undone revision).

        If the status shows an update, or the desired template is already set, return the newest
        revision other than the present revision, unless this other revision has the desired
        template. In all other cases, and always with is_rolling_back, return the present revision.
        """
        newest_other_revision, observed = self.observed.newest_other_revision, self.observed
        is_updated_by_other_client = not is_rolling_back and (
            observed.does_status_show_update or self.match(desired_template) is Match.EXACT)
        if newest_other_revision is None or not is_updated_by_other_client or provenance.match(
                self.request, newest_other_revision.template, desired_template) is Match.EXACT:
            return observed.present_revision_name
        return newest_other_revision.name

    def _deletion_step(self, pod: DaemonPod | None, may_delete_ready_pod: bool,
                       record: Rollout) -> Step | None:
        """Return the step that deletes the pod, or None if the pod must stay.

        If the DaemonSet still has a recorded pause, return instead the step that removes the pause.
        """
        primary = self.primary
        if pod is None or (pod.is_ready and not may_delete_ready_pod):
            return None
        # | any | a row below would delete a pod, a pause is recorded | **pace**: remove the pause |
        if primary.new_pods_at_pause is not None:
            return Step(Action.PACE, primary.name,
                        recorded.patch(primary, record.text, primary.settings),
                        before=f"paused at {primary.new_pods_at_pause}", after="resumed")
        write = Delete(pod.name, {"uid": pod.uid, "resourceVersion": pod.resource_version}, "Pod")
        state = "" if pod.is_ready else "it is not ready; "
        condition = ", if the node still accepts pods" if primary.misscheduled else ""
        promise = f"the cluster makes the new pod of node {pod.node}{condition}"
        return Step(Action.DELETE, pod.name, write, after=state + promise)

    def next_decision(self, record: Rollout) -> Decision | None:
        if self.settings.requested_pause:
            return self._decide_before_pause(record, self.settings.requested_pause)
        return (self._replace_miscounted(record) or self._wake_controller(record)
                or (None if self.observed.are_all_pods_new else self.wait_for_progress()))

    def _decide_before_pause(self, record: Rollout, pause: Size) -> Decision:
        primary, pods = self.primary, self.observed.daemon_pods
        present_revision = self.observed.present_revision
        if pods is None or present_revision is None:
            return self.wait_for_progress()
        expected_count = primary.replicas + primary.misscheduled
        live_pods = [pod for pod in pods if not pod.is_inactive]
        new_pods = [pod for pod in live_pods if pod.revision == present_revision.pod_revision]
        if not self._is_status_consistent(pods, len(new_pods), present_revision.pod_revision):
            return self.wait_for_progress()
        goal = min(primary.replicas, pause.resolve(primary.replicas, round_up=True))
        ready_count = sum(pod.is_ready for pod in live_pods)
        unavailable_count = max(expected_count - ready_count, primary.replicas - primary.available)
        # | updating | fewer pods than `pause_at` are new or being created | **delete** an old pod |
        overdue_pods = [pod for pod in pods if is_overdue(pod, self.observed.server_time)]
        if len(new_pods) + max(0, expected_count - len(live_pods) - len(overdue_pods)) < goal:
            may_delete_ready_pod = unavailable_count < self.settings.surge_and_unavailable[1]
            old_pod = self._next_old_pod(live_pods, present_revision.pod_revision,
                                         may_delete_ready_pod)
            return (self._deletion_step(old_pod, may_delete_ready_pod, record)
                    or self._wait_with_overdue_pods(overdue_pods))
        # A pod on a deleted node is still listed, but the status no longer counts this pod. So
        # ready_count may exceed expected_count.
        has_enough_available = (primary.available + primary.misscheduled
                                >= min(ready_count, expected_count))
        is_pause_reached = sum(pod.is_ready for pod in new_pods) >= goal and has_enough_available
        return (self.pause(record, len(new_pods), expected_count) if is_pause_reached
                else self._wait_with_overdue_pods(overdue_pods))

    def _is_status_consistent(self, pods: tuple[DaemonPod, ...], live_new_count: int,
                              new_revision: str) -> bool:
        """Return whether the status agrees with the observed pods.

        If not, the status is outdated, or another client has changed the revision label of a pod.
        """
        primary = self.primary
        updated_count = primary.updated - len(find_miscounted_pods(primary, new_revision, pods))
        new_count = sum(pod.revision == new_revision for pod in pods)
        # updatedNumberScheduled leaves out new pods on nodes that are not eligible.
        return live_new_count <= updated_count + primary.misscheduled and updated_count <= new_count

    def _replace_miscounted(self, record: Rollout) -> Decision | None:
        """Return the step that deletes a miscounted pod, or a wait; None without miscounted pods.

        A miscounted pod is an old pod that the status counts as new. The DaemonSet controller never
        replaces a miscounted pod.
        """
        # | any | no `pause_at`, the status counts an old pod as new | **delete** this pod |
        pods, primary = self.observed.miscounted_pods, self.primary
        unavailable_count = (primary.replicas - primary.available
                             + sum(pod.is_inactive for pod in pods))
        may_delete_ready_pod = unavailable_count < max(1, self.settings.surge_and_unavailable[1])
        remaining_pods = [pod for pod in pods if not pod.is_inactive]
        first_pod = min(remaining_pods, default=None,
                        key=lambda pod: (pod.is_ready is not may_delete_ready_pod, pod.node,
                                         pod.name))
        return (self._deletion_step(first_pod, may_delete_ready_pod, record)
                or (self.wait_for_progress() if pods else None))

    def _wake_controller(self, record: Rollout) -> Step | None:
        # | any | a surge stalled, no old pod counts as new | **annotate**: wake the controller |
        primary = self.primary
        if not self.observed.is_surge_stalled:
            return None
        # Any change of the DaemonSet wakes the controller.
        woken_record = dataclasses.replace(record, woken=self.observed.now)
        return Step(Action.ANNOTATE, primary.name,
                    recorded.patch(primary, woken_record.text, primary.settings),
                    before=f"stalled at {primary.updated} of {primary.replicas} new pods",
                    after=f"the controller continues after {primary.updated} new pods")

    def _wait_with_overdue_pods(self, overdue_pods: list[DaemonPod]) -> Wait:
        """Return the wait for pods, which names the overdue pods."""
        pods = join_first([f"pod {pod.name} of node {pod.node} by {pod.due}"
                           for pod in overdue_pods])
        suffix = f"; should have gone: {pods}" if pods else ""
        return Wait(f"{self.wait_for_progress().until}{suffix}")

    def _next_old_pod(self, live_pods: list[DaemonPod], new_revision: str,
                      may_delete_ready_pod: bool) -> DaemonPod | None:
        """Return the old pod to replace next.

        Pods on preferred nodes come first, and then, if a ready pod may be deleted, ready pods: new
        pods are likely to start on the nodes of ready pods.
        """
        preferred_nodes = self.observed.preferred_nodes or ()
        old_pods = (pod for pod in live_pods if pod.revision != new_revision)
        return min(old_pods, default=None,
                   key=lambda pod: (pod.node not in preferred_nodes,
                                    pod.is_ready is not may_delete_ready_pod, pod.node, pod.name))


def _host_ports(template: Json) -> list[int]:
    """Return the ports of the node that the containers of a template use."""
    spec = mapping(template, "spec")
    sidecars = [container for container in objects(spec, "initContainers")
                if container.get("restartPolicy") == "Always"]
    ports = [port for container in (*objects(spec, "containers"), *sidecars)
             for port in objects(container, "ports")]
    # With hostNetwork, each container port is a host port, even if the API server has not set
    # hostPort.
    numbers = [port.get("hostPort") or (port.get("containerPort") if spec.get("hostNetwork")
                                        else None) for port in ports]
    return [port for port in numbers if port]

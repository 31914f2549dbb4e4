# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a StatefulSet, and the StatefulSet's rows of the state table. No I/O.

The terms of the table rows are defined in docs/concepts/server-driven.md.

A pause uses updateStrategy.rollingUpdate.partition: the number of pods, from the lowest ordinal up,
that keep the previous template, even if these pods are recreated. The controller manager replaces
the other pods from the highest ordinal down.

With podManagementPolicy OrderedReady, the default, the controller manager never replaces an unready
pod (kubernetes issue 67250). A rollback therefore deletes unready pods with another template.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.object_meta import Rollout
from ...model.server_driven import StatefulSet
from ...model.steps import Action, Decision, Delete, Step
from .. import provenance
from ..controller_revisions.planner import RevisionDrivenPlanner, RevisionDrivenSettings
from ..provenance import Match
from ..server_driven import recorded
from .observed import StatefulSetObserved, max_unavailable_pods


class StatefulSetSettings(RevisionDrivenSettings[StatefulSetObserved]):
    """The settings of a StatefulSet during an update."""

    primary: StatefulSet

    @property
    def surge_and_unavailable(self) -> tuple[int, int]:
        request, size = self.request, self.primary.replicas
        strategy = self.baseline["updateStrategy"] or {}
        limit = max_unavailable_pods(strategy.get("rollingUpdate") or {}, size)
        if request.overrides_strategy:
            limit = max(1, request.max_unavailable.resolve(size, round_up=False))
        # Without the feature gate MaxUnavailableStatefulSet, or with OnDelete, the field is absent,
        # and the limit is 1.
        limit = limit if "maxUnavailable" in self.primary.rolling_update else 1
        allowed = budgets.limit_unavailable(self.observed.budgets, size, limit)
        # A rollback may make one pod unavailable, even if the budgets allow none.
        return 0, max(allowed, int(request.state.rolls_back))

    def strategy_during_update(self, *, is_desired_template_set: bool) -> Json:
        primary, new_limit = self.primary, self.surge_and_unavailable[1]
        rolling_update = {**primary.rolling_update,
                          "partition": self._partition(is_desired_template_set)}
        budgets.refuse_blocking_budgets(
            self.request, self.observed.budgets, primary.replicas, 0, new_limit,
            supports_surge=False)
        # limit is the present maxUnavailable in pods, and new_limit the limit for the update.
        limit = max_unavailable_pods(rolling_update, primary.replicas)
        if "maxUnavailable" in rolling_update and limit != new_limit:
            rolling_update["maxUnavailable"] = new_limit
        is_unchanged = rolling_update == {"partition": 0, **primary.rolling_update}
        if primary.replaces_pods_automatically and is_unchanged:
            return primary.settings["updateStrategy"]
        return {"type": "RollingUpdate", "rollingUpdate": rolling_update}

    def _partition(self, is_desired_template_set: bool) -> int:
        """Return the partition for the pause, or 0 without a pause.

        A pod that already has the new template keeps this template.
        """
        pause, primary = self.requested_pause, self.primary
        if pause is None:
            return 0
        # Until the update sets the new template, status.updatedReplicas counts pods of the old one.
        updated_count = (min(primary.updated, primary.replicas - primary.partition)
                         if is_desired_template_set else 0)
        new_count_at_pause = pause.resolve(primary.replicas, round_up=True)
        return max(0, primary.replicas - max(new_count_at_pause, updated_count))

    def describe(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        rolling_update = strategy.get("rollingUpdate") or {}
        limit_text = (f", max_unavailable {rolling_update['maxUnavailable']}"
                      if "maxUnavailable" in rolling_update else "")
        return (f"{max(0, self.primary.replicas - rolling_update.get('partition', 0))} new pods"
                f"{limit_text}")


class StatefulSetPlanner(RevisionDrivenPlanner[StatefulSetObserved]):
    """The state table of a StatefulSet."""

    primary: StatefulSet
    settings_type = StatefulSetSettings

    def predecessor_name(self, desired_template: Json, *, is_rolling_back: bool) -> str:
        """Return the name of the replaced revision (of a rollback: the undone revision).

        - If the desired template is set, and pods are stuck: the revision of the first stuck pod.
        - If the status shows an update: status.currentRevision, except if a rollback is requested,
          or if status.currentRevision has the desired template.
        - Otherwise: status.updateRevision.
        """
        observed, primary = self.observed, self.primary
        if observed.stuck_pods and self.match(desired_template) is Match.EXACT:
            return observed.stuck_pods[0].revision
        if is_rolling_back or not observed.does_status_show_update:
            return primary.update_revision
        is_previous_desired = any(
            revision.name == primary.current_revision
            and provenance.match(self.request, revision.template, desired_template) is Match.EXACT
            for revision in observed.history)
        return primary.update_revision if is_previous_desired else primary.current_revision

    def preparatory_step(self, desired_template: Json, fingerprint: str) -> Step | None:
        """Return the step that sets RollingUpdate before an update with a pause, or None.

        With OnDelete, status.currentRevision becomes outdated. During a pause, the controller
        manager would recreate old pods from the outdated revision. Raises RolloutError if some pods
        have an older template or are unavailable.
        """
        # | record | condition | step |
        # | none | `pause_at`, OnDelete, currentRevision is outdated | **pace**: set RollingUpdate |
        primary, request = self.primary, self.request
        if (self.match(desired_template) is Match.EXACT or primary.replaces_pods_automatically
            or primary.current_revision == primary.update_revision
                or not self.settings.requested_pause):
            return None
        if not primary.is_settled or primary.updated != primary.replicas:
            raise RolloutError("pause_at cannot be used, because the StatefulSet has the strategy "
                               "OnDelete, and some of its pods have an older template or are not "
                               "available", where=request.where,
                               next_command=("delete the pods of an older template, or leave "
                                             "pause_at out; to list the pods with their revisions:",
                                             f"{request.kubectl} get pods -L "
                                             "controller-revision-hash"))
        baseline = self.settings.baseline
        settings = {**baseline,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
        record = Rollout(Rollout.UPDATING, primary.images, primary.images, self.observed.now,
                         primary.update_revision, 0,
                         *recorded.changed_fields(baseline, settings), fingerprint,
                         recorded.digest(primary), request.to_revision,
                         min_ready_seconds=self.settings.min_ready_seconds)
        write = recorded.patch(primary, record.text, settings)
        return Step(Action.PACE, primary.name, write, before="OnDelete", after="RollingUpdate")

    def next_decision(self, record: Rollout) -> Decision | None:
        primary = self.primary
        # | any | `rolled_back`, the first unready pod has another template | **delete** this pod |
        if self.request.state.rolls_back and (step := self._replace_stuck_pod()):
            return step
        if not self.settings.requested_pause:
            return None if self.observed.are_all_pods_new else self.wait_for_progress()
        goal = primary.replicas - min(primary.replicas, primary.partition)
        is_reached = primary.is_settled and primary.updated >= goal
        return self.pause(record, primary.updated,
                          primary.replicas) if is_reached else self.wait_for_progress()

    def _replace_stuck_pod(self) -> Decision | None:
        """Return the deletion of the first unready pod if this pod is stuck, a wait, or None.

        Wait while a pod with a lower ordinal is missing or terminating: during this time, the
        controller manager would not create the deleted pod again.
        """
        observed, primary = self.observed, self.primary
        unready_pod = next((pod for pod in observed.troubled_pods if not pod.is_ready), None)
        if unready_pod not in observed.stuck_pods or unready_pod is None:
            return None
        live_ordinals = observed.live_ordinals or ()
        lower_pod_count = sum(primary.start <= ordinal < unready_pod.ordinal
                              for ordinal in live_ordinals)
        is_lower_pod_terminating = any(pod.is_terminating and pod.ordinal < unready_pod.ordinal
                                       for pod in observed.troubled_pods)
        if lower_pod_count < unready_pod.ordinal - primary.start or is_lower_pod_terminating:
            return self.wait_for_progress()
        write = Delete(unready_pod.name, {"uid": unready_pod.uid,
                                          "resourceVersion": unready_pod.resource_version}, "Pod")
        return Step(Action.DELETE, unready_pod.name, write,
                    after=f"it is not ready, and has revision {unready_pod.revision}; the cluster "
                    f"creates it again from {primary.update_revision}")

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The settings of a Deployment, and the Deployment's rows of the state table. No I/O.

The terms of the table rows are defined in docs/concepts/server-driven.md.

For a pause, minReadySeconds is set to 68 years, so that no new pod counts as available. The
Deployment controller then stops at
    old pods = replicas - maxUnavailable   (reconcileOldReplicaSets keeps the available pods)
    new pods = maxSurge + maxUnavailable   (NewRSNewReplicas: at most replicas + maxSurge in all)
When all new pods so far are ready, a patch raises maxUnavailable. At the pause, maxUnavailable is
the number of new pods, and maxSurge is 0. Finally, spec.paused is set, so that `kubectl rollout
status` shows the pause, and a later change of the template is not rolled out.

With keep_old, maxSurge is the number of new pods at the pause, and maxUnavailable is 0. While
spec.paused is set, the Deployment controller scales the ReplicaSets to replicas + maxSurge pods
in all (scale in pkg/controller/deployment/sync.go), exactly the number of pods at the pause.
"""

from __future__ import annotations

import dataclasses

from ...model import budgets, object_meta
from ...model.errors import RolloutError
from ...model.fields import Json, mapping
from ...model.kinds import State
from ...model.object_meta import Rollout
from ...model.observed import NEVER_AVAILABLE, RESTORE_DEADLINE, UPDATE_DEADLINE, Controller
from ...model.server_driven import Deployment
from ...model.steps import Action, Decision, Done, Step, Wait
from ...model.template import same_template
from ...model.thresholds import Size, resolve_fenceposts
from .. import commands, refusals
from ..server_driven import recorded
from ..server_driven.planner import Planner
from ..server_driven.rules import Settings
from .observed import DeploymentObserved

#: The default of maxSurge and maxUnavailable (pkg/apis/apps/v1/defaults.go).
DEFAULT_SIZE = "25%"


class DeploymentSettings(Settings[DeploymentObserved]):
    """The settings of a Deployment during an update."""

    primary: Deployment

    @property
    def surge_and_unavailable(self) -> tuple[int, int]:
        size = self.primary.replicas
        if self._has_recreate_strategy:
            return 0, size
        if self.requested_pause and self.request.keeps_old:
            return self.new_pod_count_at_pause(), 0
        surge, unavailable = (
            resolve_fenceposts(self.request.max_surge, self.request.max_unavailable, size)
            if self.request.overrides_strategy
            else _surge_and_unavailable(self.baseline, size))
        return surge, budgets.limit_unavailable(self.observed.budgets, size, unavailable)

    def settings_during_update(self, desired_template: Json | None = None) -> Json:
        self._refuse_long_min_ready_seconds()
        if self.request.overrides_strategy:
            self._refuse_recreate_strategy("max_surge and max_unavailable")
        if self.requested_pause:
            return self._settings_during_pause(desired_template)
        settings = recorded.with_nonzero_history_limit(
            {**self.baseline, "strategy": self._strategy()})
        if self._is_update_without_replica_set_undone(desired_template):
            return {**settings, "progressDeadlineSeconds": RESTORE_DEADLINE}
        if settings == self.baseline:
            return self.baseline
        return {**settings, "progressDeadlineSeconds": UPDATE_DEADLINE}

    def _is_update_without_replica_set_undone(self, desired_template: Json | None) -> bool:
        """Return whether the task rolls back an update whose ReplicaSet cannot be created.

        The restored template gets no new revision number, so only the settings prove the rollback.
        """
        if desired_template is None:
            return self.primary.is_restoring
        return self.request.rolls_back_update and bool(self.observed.creation_failure)

    def _settings_during_pause(self, desired_template: Json | None) -> Json:
        request, primary = self.request, self.primary
        surge, max_unavailable = self.surge_and_unavailable
        self._refuse_recreate_strategy("pause_at")
        budgets.refuse_blocking_budgets(
            request, self.observed.budgets, primary.replicas, surge, max_unavailable)
        # `new` is the ReplicaSet with the new template, if any.
        new = (self.observed.successor if desired_template is None
               else self.replica_set_with_template(desired_template))
        is_pausing = desired_template is None and self._has_pause_settings
        if not is_pausing and new and new.max_pods:
            raise RolloutError(f"it is too late for pause_at: {new.name} already has "
                               f"{new.replicas} pods, and the Deployment "
                               f"controller is still replacing pods", where=request.where,
                               next_command=("leave pause_at out, or:",
                                             request.command(State.ROLLED_BACK)))
        if is_pausing and not self.is_deployment_settled():
            return primary.settings
        # After a proportional scale-up, there may be more new pods than pause_at asks for.
        current_size = new.replicas if new else 0
        target_size = max(self.new_pod_count_at_pause(), current_size)
        is_reached = current_size == target_size
        if request.keeps_old:
            rolling_update = self._rolling_update_that_keeps_old_pods(target_size,
                                                                      self._old_pod_count(new))
        else:
            unavailable = (current_size if is_reached
                           else min(target_size, current_size + max_unavailable))
            rolling_update = {
                "maxSurge": 0 if is_reached else min(surge, target_size - unavailable),
                "maxUnavailable": unavailable}
        # While spec.paused is set, the Deployment controller scales the ReplicaSets to
        # `allowed_size` pods. So spec.paused may stay only if that many pods exist.
        allowed_size = primary.replicas + _surge_and_unavailable(
            {"strategy": {"rollingUpdate": rolling_update}}, primary.replicas)[0]
        is_final = is_reached and allowed_size == current_size + self._old_pod_count(new)
        paused = primary.settings["paused"] if is_final else None
        return {**recorded.with_nonzero_history_limit(self.baseline), "paused": paused,
                "minReadySeconds": NEVER_AVAILABLE,
                "progressDeadlineSeconds": UPDATE_DEADLINE,
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update}}

    def _rolling_update_that_keeps_old_pods(self, new_size: int, old_size: int) -> Json:
        """Return maxSurge and maxUnavailable that allow `new_size` new and `old_size` old pods.

        Old pods that are already deleted count as unavailable.
        """
        size, pause = self.primary.replicas, self.request.pause_at
        deleted_count = max(0, size - old_size)
        current_rolling_update = self.primary.settings["strategy"].get("rollingUpdate")
        if current_rolling_update and self._has_pause_settings and _surge_and_unavailable(
                self.primary.settings, size) == (max(0, new_size - deleted_count), deleted_count):
            return mapping(current_rolling_update)
        if pause and not deleted_count and new_size == self.new_pod_count_at_pause():
            # A percentage stays correct when the Deployment is scaled.
            return {"maxSurge": pause.for_api if pause.percent else new_size, "maxUnavailable": 0}
        return {"maxSurge": max(0, new_size - deleted_count), "maxUnavailable": deleted_count}

    @property
    def _has_pause_settings(self) -> bool:
        settings = self.primary.settings
        return settings["minReadySeconds"] == NEVER_AVAILABLE or bool(settings["paused"])

    def _old_pod_count(self, new: Controller | None) -> int:
        return sum(replica_set.replicas for replica_set in self.observed.replica_sets
                   if replica_set is not new)

    def new_pod_count_at_pause(self) -> int:
        """Return the number of new pods at the pause."""
        size, pause = self.primary.replicas, self.request.pause_at
        return min(size, pause.resolve(size, round_up=True)) if pause else size

    def is_deployment_settled(self) -> bool:
        """Return whether the current settings are applied, and all new pods are ready."""
        primary, new = self.primary, self.observed.successor
        surge, unavailable = _surge_and_unavailable(primary.settings, primary.replicas)
        old_sets = self.observed.other_replica_sets
        if not (primary.is_observed and new and new.is_settled
                and all(replica_set.has_at_most(replica_set.replicas) for replica_set in old_sets)):
            return False
        size = new.replicas + self._old_pod_count(new)
        if primary.settings["paused"]:
            return primary.replicas <= size <= primary.replicas + surge
        return new.replicas >= min(surge + unavailable,
                                   primary.replicas) and size <= primary.replicas + surge

    def _strategy(self) -> Json:
        request, strategy, size = self.request, self.baseline["strategy"], self.primary.replicas
        if request.overrides_strategy:
            rolling_update = {"maxSurge": request.max_surge.for_api,
                              "maxUnavailable": request.max_unavailable.for_api}
            strategy = {"type": "RollingUpdate", "rollingUpdate": rolling_update}
        if strategy.get("type") == "Recreate":
            return strategy
        surge, unavailable = _surge_and_unavailable({"strategy": strategy}, size)
        allowed = budgets.limit_unavailable(self.observed.budgets, size, unavailable)
        if allowed == unavailable:
            return strategy
        budgets.refuse_blocking_budgets(
            request, self.observed.budgets, size, surge, allowed)
        return {**strategy, "rollingUpdate": {"maxSurge": DEFAULT_SIZE, **strategy["rollingUpdate"],
                                              "maxUnavailable": allowed}}

    @property
    def _has_recreate_strategy(self) -> bool:
        return self.baseline["strategy"].get("type") == "Recreate"

    def describe(self, settings: Json) -> str:
        if settings["paused"]:
            return "paused"
        rolling_update = settings["strategy"].get("rollingUpdate")
        if rolling_update is None:
            return settings["strategy"]["type"]
        if settings["minReadySeconds"] == NEVER_AVAILABLE and all(
                isinstance(number, int) for number in rolling_update.values()):
            return f"at most {sum(rolling_update.values())} new pods"
        return (f"max_surge {rolling_update.get('maxSurge')}, "
                f"max_unavailable {rolling_update.get('maxUnavailable')}")

    def replica_set_with_template(self, desired_template: Json) -> Controller | None:
        return next((replica_set for replica_set in self.observed.replica_sets
                     if same_template(replica_set.template, desired_template,
                                      object_meta.HASH_LABEL)), None)

    def _refuse_recreate_strategy(self, options: str) -> None:
        if self._has_recreate_strategy:
            raise RolloutError(f"{options} cannot be used, because the Deployment's strategy is "
                               "Recreate, which removes all old pods before creating new ones",
                               where=self.request.where,
                               next_command=f"leave {options} out, or change the strategy to "
                                            "RollingUpdate")

    def _refuse_long_min_ready_seconds(self) -> None:
        # | record | condition | step |
        # | any | minReadySeconds would not be less than progressDeadlineSeconds | error |
        seconds = self.baseline["minReadySeconds"] or 0
        deadline = self.baseline["progressDeadlineSeconds"]
        if deadline is not None and seconds >= deadline:
            raise RolloutError(
                f"min_ready_seconds ({seconds} s) must be less than progressDeadlineSeconds of the "
                f"Deployment ({deadline} s)", where=self.request.where,
                next_command=self.request.command(min_ready_seconds=deadline - 1))

    @property
    def warning_about_unrestored_settings(self) -> str:
        primary, record = self.primary, self.observed.record
        restores_strategy = self.baseline["strategy"] != primary.settings["strategy"]
        if (record is None or "strategy" not in record.original or primary.has_update_settings
                or restores_strategy):
            return ""
        return (f"the Deployment {primary.name} keeps its current strategy "
                f"({self.describe(self.baseline)}): another client set progressDeadlineSeconds "
                "during the update, so the record of the previous strategy (an annotation) may be "
                "forged")


class DeploymentPlanner(Planner[DeploymentObserved]):
    """The state table of a Deployment."""

    primary: Deployment
    settings: DeploymentSettings
    settings_type = DeploymentSettings

    @property
    def may_begin(self) -> bool:
        # A rollback needs no ReplicaSet of the template that it replaces.
        if self.observed.creation_failure and self.request.state.rolls_back:
            return True
        # While spec.paused is set, the Deployment controller creates no ReplicaSet.
        has_replica_set_or_is_paused = (self.observed.successor is not None
                                        or self.primary.settings["paused"] is not None)
        return has_replica_set_or_is_paused and self.primary.is_observed

    @property
    def is_rolled_back(self) -> bool:
        return super().is_rolled_back and self.observed.was_template_used_before

    def has_recorded_template(self, record: Rollout) -> bool:
        # While a Deployment is paused, a changed template gets no revision number. So every record
        # of an update, except the first record, contains a hash of the template.
        if record.template:
            return record.template == recorded.digest(self.primary)
        return self._has_no_later_template(record)

    def was_template_set_by_task(self, record: Rollout) -> bool:
        return self._has_no_later_template(record) and super().was_template_set_by_task(record)

    def _has_no_later_template(self, record: Rollout) -> bool:
        """Return whether no template has received a revision number since the recorded update.

        The recorded update itself uses at most one new number.
        """
        return self.observed.newest_revision_number <= record.revision + 1

    def refuse_unusable_controller(self) -> None:
        super().refuse_unusable_controller()
        # | none | the settings are those of an update | error: previous settings unknown |
        if self.observed.record is None and self.primary.has_update_settings:
            raise self._unreadable_record()

    def refuse_paused(self) -> None:
        request, record = self.request, self.observed.record
        if not self.settings.baseline["paused"]:
            return
        if record and record.paused is not None:
            # A resume would replace all old pods, since nothing limits the number of new pods.
            raise RolloutError("it is paused, but another client has reset minReadySeconds and "
                               "progressDeadlineSeconds since pause_at", where=request.where,
                               next_command=request.command(State.ROLLED_BACK))
        is_template_restored = record and (record.is_rolling_back or record.to_revision is not None)
        resume = f"{request.kubectl} rollout resume deployment/{self.primary.name}"
        raise RolloutError("it is paused: the earlier template is set, but the cluster replaces no "
                           "pod before it is resumed" if is_template_restored else
                           "it is paused, and not by this collection", where=request.where,
                           next_command=(resume, "then:", request.command()))

    def refuse_too_large_annotations(self, record: Rollout, desired_template: Json) -> None:
        # | any | the Deployment's or ReplicaSet's annotations have no room for the record | error |
        replica_set = self.settings.replica_set_with_template(desired_template)
        recorded.refuse_too_large_annotations(self.request, self.primary, record,
                                              replica_set.annotations if replica_set else {})

    def predecessor_name(self, desired_template: Json, *, is_rolling_back: bool) -> str:
        # The present ReplicaSet (observed.successor) becomes the predecessor, unless this task
        # interrupts the update to this ReplicaSet: a rollback must not restore the template of an
        # interrupted update.
        interrupts_update = (self.request.revision_template is not None
                             and self.observed.is_record_confirmed)
        return "" if interrupts_update else _name_of(self.observed.successor)

    def initial_template_digest(self, desired_template: Json) -> str:
        return ""  # No digest is needed: revision numbers show changes of the template.

    def next_decision(self, record: Rollout) -> Decision | None:
        primary, new = self.primary, self.observed.successor
        if not self.settings.requested_pause:
            return None if self._is_complete() else self.wait_for_progress()
        # | updating | `pause_at` new pods are ready | **annotate**: record the pause |
        target = self.settings.new_pod_count_at_pause()
        if new is None or not self.settings.is_deployment_settled() or new.replicas < target:
            return self.wait_for_progress()
        if primary.new_pods_at_pause != new.replicas or not primary.settings["paused"]:
            settings = {**primary.settings, "paused": True}
            record = dataclasses.replace(record, overrides={**record.overrides, "paused": True},
                                         paused=new.replicas)
            return Step(Action.ANNOTATE, primary.name,
                        recorded.patch(primary, record.text, settings),
                        after=f"paused at {new.replicas} of {primary.replicas}", ends_task=True)
        return Done(f"{primary.name} is already paused: {new.name} has {new.available} of "
                    f"{primary.replicas} replicas")

    def wait_for_progress(self) -> Wait:
        new = self.observed.successor
        return Wait(f"{_name_of(new) or 'its new ReplicaSet'} "
                    f"{new.available if new else 0}/{self.primary.replicas} available, "
                    f"{self.observed.old_pod_count} old", is_ended_by_server=True)

    @property
    def progress_text(self) -> str:
        new = self.observed.successor
        if new is None:
            return "no pods yet"
        return f"{new.name}, {new.available} of {self.primary.replicas} available"

    def _is_complete(self) -> bool:
        # Like `kubectl rollout status`, but also check the ReplicaSets, whose status may be newer.
        primary, new = self.primary, self.observed.successor
        return bool(primary.is_observed and self.observed.is_rolled_out and new and new.is_settled
                    and primary.updated == primary.current == primary.available == primary.replicas
                    and all(replica_set.is_empty
                            for replica_set in self.observed.other_replica_sets))

    def lost_template_error(self) -> RolloutError:
        record = self.observed.rollout
        if record is None:
            return super().lost_template_error()
        finish = commands.finish(self.request, record, self.was_template_set_by_task(record),
                                 self.primary.images)
        return refusals.nothing_to_roll_back(
            self.request, self.observed.newest_other_revision,
            f"the ReplicaSet {record.previous_name or 'with the previous template'} no longer "
            "exists, or is not of the previous revision, so it cannot be restored", finish)

    def _unreadable_record(self) -> RolloutError:
        """Return the error for a record that is missing or not readable."""
        return RolloutError(
            f"minReadySeconds or progressDeadlineSeconds of the Deployment {self.primary.name} "
            "were set by an update in progress, but its record, the annotation "
            f"{object_meta.LAST_ROLLOUT}, is missing or not readable", where=self.request.where,
            next_command=("set strategy, minReadySeconds, progressDeadlineSeconds, "
                          "revisionHistoryLimit and paused by hand:",
                          f"{self.request.kubectl} edit deployment {self.primary.name}"))


def _surge_and_unavailable(settings: Json, size: int) -> tuple[int, int]:
    if settings["strategy"].get("type") == "Recreate":
        return 0, size
    rolling_update = settings["strategy"].get("rollingUpdate") or {}
    surge, unavailable = (Size.from_api(rolling_update.get(field, DEFAULT_SIZE))
                          for field in ("maxSurge", "maxUnavailable"))
    return resolve_fenceposts(surge, unavailable, size)


def _name_of(controller: Controller | None) -> str:
    return controller.name if controller else ""

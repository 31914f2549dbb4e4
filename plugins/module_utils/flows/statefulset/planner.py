# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""State table of a StatefulSet: the server's own controller replaces the pods. Pure.

Most rows are in server_driven/planner.py and controller_revisions/planner.py.

A pause is exact because of updateStrategy.rollingUpdate.partition: a pod with a number below the
partition keeps the previous template, even if the pod dies and is created again. The server
replaces the others from the highest number down, one at a time.

The server replaces no unready pod, even after the template has been restored (kubernetes issue
67250): with OrderedReady, the default, a StatefulSet with a broken template stays broken. A
rollback deletes exactly the unready pods, one after the other.
"""

from __future__ import annotations

from ...model import budgets
from ...model.errors import RolloutError
from ...model.fields import Json
from ...model.object_meta import Rollout
from ...model.server_driven import StatefulSet
from ...model.steps import Action, Decision, Delete, Step
from .. import provenance
from ..controller_revisions.planner import RevisionsPlanner, RevisionsSettings
from ..provenance import Match
from ..server_driven import recorded
from .observed import StatefulSetObserved, most_missing


class StatefulSetSettings(RevisionsSettings[StatefulSetObserved]):
    """The partition, and maxUnavailable if the server has the field."""

    primary: StatefulSet

    @property
    def bounds(self) -> tuple[int, int]:
        """No pod beyond the size; missing pods as provided, or 1 without the feature gate.

        In a rollback at least one pod may be missing, whatever a budget says: the update may be
        broken.
        """
        request, size = self.request, self.primary.replicas
        strategy = self.baseline["updateStrategy"] or {}
        most = most_missing(strategy.get("rollingUpdate") or {}, size)
        if request.overrides_strategy:
            most = max(1, request.max_unavailable.resolve(size, round_up=False))
        limit = most if "maxUnavailable" in self.primary.rolling_update else 1
        allowed = budgets.limit_unavailable(self.observed.budgets, size, limit)
        return 0, max(allowed, request.state.undoes)

    def strategy_of_update(self, *, has_template: bool) -> Json:
        primary, missing = self.primary, self.bounds[1]
        numbers = {**primary.rolling_update, "partition": self._partition(has_template)}
        budgets.refuse_standstill(
            self.request, self.observed.budgets, primary.replicas, 0, missing, may_surge=False)
        if "maxUnavailable" in numbers and most_missing(numbers, primary.replicas) != missing:
            numbers["maxUnavailable"] = missing
        if primary.is_replaced_by_server and numbers == {"partition": 0, **primary.rolling_update}:
            return primary.settings["updateStrategy"]
        return {"type": "RollingUpdate", "rollingUpdate": numbers}

    def _partition(self, has_template: bool) -> int:
        """Return how many pods keep the previous template; no pod loses the new template."""
        pause, primary = self.request.pause_at, self.primary
        if not self.pauses or pause is None:
            return 0
        # Before the update, pods of another template may have any number.
        updated = min(primary.updated, primary.replicas - primary.partition) if has_template else 0
        paused = pause.resolve(primary.replicas, round_up=True)
        return max(0, primary.replicas - max(paused, updated))

    def describe(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        numbers = strategy.get("rollingUpdate") or {}
        most = (f", max_unavailable {numbers['maxUnavailable']}"
                if "maxUnavailable" in numbers else "")
        return f"{max(0, self.primary.replicas - numbers.get('partition', 0))} new pods{most}"


class StatefulSetPlanner(RevisionsPlanner[StatefulSetObserved]):
    """Rows of a StatefulSet alone: unready pods that the server does not replace."""

    primary: StatefulSet
    settings_type = StatefulSetSettings

    def predecessor(self, desired: Json, *, is_back: bool) -> str:
        """Return the present revision, or the previous one during an update by another client.

        An update to the previous revision itself gets the present one.
        """
        observed, primary = self.observed, self.primary
        if observed.stuck and self.match(desired) is Match.EXACT:
            return observed.stuck[0].revision
        if is_back or not observed.is_rolling:
            return primary.update_revision
        is_target = any(
            revision.name == primary.current_revision
            and provenance.match(self.request, revision.template, desired) is Match.EXACT
            for revision in observed.history)
        return primary.update_revision if is_target else primary.current_revision

    def preparation(self, desired: Json, fingerprint: str) -> Step | None:
        """Return the pace under which the server brings its status up to date, before a pause.

        The server makes a pod that keeps its template from the revision that the status names.
        Raises RolloutError.
        """
        # | none | `pause_at`, OnDelete, and an outdated revision in the status | **pace** |
        primary, request = self.primary, self.request
        if (self.match(desired) is Match.EXACT or primary.is_replaced_by_server
            or primary.current_revision == primary.update_revision
                or not self.settings.pauses):
            return None
        if not primary.is_settled or primary.updated != primary.replicas:
            raise RolloutError("pause_at cannot be used, because its updateStrategy is OnDelete, "
                               "and not all of its pods have its "
                               "present template and are available", where=request.where,
                               next_command=("delete those that have not, or leave pause_at out; "
                                             "which ones these are:",
                                             f"{request.kubectl} get pods -L "
                                             "controller-revision-hash"))
        baseline = self.settings.baseline
        settings = {**baseline,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
        record = Rollout(Rollout.UPDATING, primary.images, primary.images, self.observed.now,
                         primary.update_revision, 0,
                         *recorded.changed(baseline, settings), fingerprint,
                         recorded.digest(primary), request.to_revision)
        write = recorded.patch(primary, record.text, settings)
        return Step(Action.PACE, primary.name, write, before="OnDelete", after="RollingUpdate")

    def proceed(self, record: Rollout) -> Decision | None:
        primary = self.primary
        # | rolling back | unready pods have another template | **delete** the lowest number |
        if self.request.state.undoes and (step := self._replace_stuck()):
            return step
        if not self.settings.pauses:
            return None if self.observed.is_all_new else self.progress()
        new = primary.replicas - min(primary.replicas, primary.partition)
        is_reached = primary.is_settled and primary.updated >= new
        return self.pause(record, primary.updated,
                          primary.replicas) if is_reached else self.progress()

    def _replace_stuck(self) -> Decision | None:
        """Return the deletion of an unready pod, if no pod with a lower number is missing.

        The pod is deleted by uid and resourceVersion: only as observed, not ready. The lowest
        number is first: the server creates no pod as long as a pod with a lower number is not
        ready, so pods with higher numbers may be missing.
        """
        observed, primary = self.observed, self.primary
        first = next((pod for pod in observed.troubled if not pod.is_ready), None)
        if first not in observed.stuck or first is None:
            return None
        lower = sum(primary.start <= number < first.number for number in observed.live or ())
        if lower < first.number - primary.start or any(pod.is_going and pod.number < first.number
                                                       for pod in observed.troubled):
            return self.progress()
        write = Delete(first.name, {"uid": first.uid, "resourceVersion": first.resource_version},
                       "Pod")
        return Step(Action.DELETE, first.name, write,
                    after=f"it is not ready, and still of {first.revision}; the cluster creates it "
                    f"again from {primary.update_revision}")

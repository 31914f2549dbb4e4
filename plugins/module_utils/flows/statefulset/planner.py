# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The state table of a StatefulSet: the server's own controller replaces the pods, and is told which of them. Pure.

Nothing is remembered between two calls: what must be known stands in the record of the update (recorded.py), and in the status.

A pause is exact because of updateStrategy.rollingUpdate.partition: pods whose number is below it keep the template of before, also
when one of them dies and comes back. The server replaces the others from the highest number down, one at a time.

What it does not do is to replace a pod that is not ready before that is ready, even when its template has been put back (issue
67250 of kubernetes): with OrderedReady, which is the default, a StatefulSet that was updated to a broken template stays broken. A
rollback deletes just these pods, one after the other.
"""

from __future__ import annotations

import typing as t

from ...model import budgets
from ...model.by_server import StatefulSet
from ...model.errors import NoSuchController, RolloutError
from ...model.fields import Json
from ...model.marks import Rollout
from ...model.request import Request
from ...model.steps import Action, Decision, Delete, Step
from ...model.template import without_label
from .. import recorded
from ..by_revisions.planner import Turn
from .find import StatefulSetObserved, is_doubted, most_missing


def plan(request: Request, seen: StatefulSetObserved) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError for the rows of the table that are errors."""
    primary = t.cast("StatefulSet | None", seen.primary)
    # | foo | record | condition | step |
    # | - | | | error: no such StatefulSet |
    if primary is None:
        raise NoSuchController("there is no such StatefulSet", where=request.where)
    return _Turn(request, seen, primary).decision()


class _Turn(Turn):
    """What is particular to StatefulSets: the partition, and pods that are stuck."""

    seen: StatefulSetObserved
    primary: StatefulSet

    def left(self, wanted: Json, *, has_it: bool, is_back: bool) -> str:
        """Where not all pods have the present template, going back means to the one before; unless that is where it goes."""
        seen, primary = self.seen, self.primary
        if has_it and seen.stuck:
            return seen.stuck[0].revision
        is_there = any(it.name == primary.current_revision and it.template == without_label(wanted, self.request.label_key)
                       for it in seen.history)
        return primary.current_revision if seen.is_rolling and not is_back and not is_there else primary.update_revision

    def first(self, usual: Json, *, has_it: bool, fingerprint: str) -> Step | None:
        """| yes | - | pause_at, OnDelete, and the status is of before its pods were deleted by hand | pace: by the server, wait |

        A pod that keeps its template is made anew from the revision that the status names. Raises RolloutError.
        """
        primary, request = self.primary, self.request
        if has_it or primary.is_replaced_by_server or primary.current_revision == primary.update_revision or not self.pauses:
            return None
        if not primary.is_settled or primary.updated != primary.replicas:
            raise RolloutError("pause_at cannot be used, because its updateStrategy is OnDelete, and not all of its pods have its "
                               "present template and are available", where=request.where,
                               next_command=("delete those that have not, or leave pause_at out; which ones these are:",
                                             f"{request.kubectl} get pods -L controller-revision-hash"))
        pace = {**usual, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}
        record = Rollout(Rollout.UPDATING, primary.images, primary.images, self.seen.now, primary.update_revision, 0,
                         *recorded.changed(usual, pace), fingerprint, recorded.digest(primary), request.to_revision)
        return Step(Action.PACE, primary.name, recorded.patch(primary, record.text, pace), before="OnDelete", after="RollingUpdate")

    def goes_on(self, record: Rollout) -> Decision | None:
        primary = self.primary
        # | yes | rolling back | pods that are not ready have another template | delete the one with the lowest number |
        if self.request.state.undoes and (step := self._replace_stuck()):
            return step
        if not self.pauses:
            return None if self.seen.is_all_new else self.progress()
        new = primary.replicas - min(primary.replicas, primary.partition)
        is_there = primary.is_settled and primary.updated >= new
        return self.end_at(record, primary.updated, primary.replicas) if is_there else self.progress()

    def _replace_stuck(self) -> Decision | None:
        """Delete a pod that the server waits for, if no other one is missing: by its uid, and only as it was seen, not ready.

        The lowest number goes first: the server makes none while one with a lower number is not ready, and so those with higher
        ones may be missing.
        """
        seen, primary = self.seen, self.primary
        first = next((pod for pod in seen.troubled if not pod.is_ready), None)
        if first not in seen.stuck or first is None:
            return None
        lower = sum(primary.start <= number < first.number for number in seen.live or ())
        if lower < first.number - primary.start or any(pod.is_going and pod.number < first.number for pod in seen.troubled):
            return self.progress()
        write = Delete(first.name, {"uid": first.uid, "resourceVersion": first.resource_version}, "Pod")
        return Step(Action.DELETE, first.name, write, after=f"it is not ready, and still of {first.revision}; the cluster makes it "
                                                            f"anew from {primary.update_revision}")

    @property
    def left_as_it_is(self) -> str:
        primary = self.primary
        return "" if self.seen.is_witnessed or not is_doubted(primary) else (
            f"maxUnavailable of the StatefulSet {primary.name} is left at {primary.numbers.get('maxUnavailable')}: that it was more"
            f" before the update says nothing but an annotation")

    # The pace

    def pace(self, *, is_under_way: bool) -> Json:
        request, primary, seen = self.request, self.primary, self.seen
        settings = recorded.usual(request, primary, seen.record)
        numbers = {**primary.numbers, "partition": self._partition(is_under_way)}
        most = missing(request, seen, primary)
        budgets.refuse_standstill(request, seen.budgets, primary.replicas, 0, most)
        if "maxUnavailable" in numbers and most_missing(numbers, primary.replicas) != most:
            numbers["maxUnavailable"] = most
        present = primary.settings["updateStrategy"]
        if primary.is_replaced_by_server and numbers == {"partition": 0, **primary.numbers}:
            return {**settings, "updateStrategy": present}
        return {**settings, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": numbers}}

    def _partition(self, is_under_way: bool) -> int:
        """How many pods keep the template of before; those that are new already stay so."""
        pause, primary = self.request.pause_at, self.primary
        if not self.pauses or pause is None:
            return 0
        already = min(primary.updated, primary.replicas - primary.partition) if is_under_way else 0  # others may be anywhere
        return max(0, primary.replicas - max(pause.of(primary.replicas, round_up=True), already))

    def told(self, settings: Json) -> str:
        strategy = settings["updateStrategy"] or {}
        if strategy.get("type") == "OnDelete":
            return "OnDelete"
        numbers = strategy.get("rollingUpdate") or {}
        most = f", max_unavailable {numbers['maxUnavailable']}" if "maxUnavailable" in numbers else ""
        return f"{max(0, self.primary.replicas - numbers.get('partition', 0))} new pods{most}"


def missing(request: Request, seen: StatefulSetObserved, primary: StatefulSet) -> int:
    """How many pods may be missing at a time: of the task or the StatefulSet, where the server has that at all, else 1.

    Where it goes back, at least one, whatever a budget says: it undoes what may be broken.
    """
    strategy = recorded.usual(request, primary, seen.record)["updateStrategy"] or {}
    most = most_missing(strategy.get("rollingUpdate") or {}, primary.replicas)
    if request.gives_strategy:
        most = max(1, request.max_unavailable.of(primary.replicas, round_up=False))
    kept = budgets.kept(seen.budgets, primary.replicas, most if "maxUnavailable" in primary.numbers else 1)
    return max(kept, request.state.undoes)

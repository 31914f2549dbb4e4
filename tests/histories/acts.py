# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill each task of a table at each of its writes, let another client act, and run the next task.

tests/unit/test_acts.py plays the table on the simulated cluster.
"""

from __future__ import annotations

import dataclasses
import typing as t

from history import KINDS, SERVER_DRIVEN, History, Json, World, adds_state_to_failure

#: Replicas of the controller, and maximum number of writes of a task.
REPLICAS, MAX_WRITES = 3, 60
UPDATE: Json = {"image": "myimage:v2"}
PAUSE: Json = {**UPDATE, "pause_at": 1}
KEEP_OLD: Json = {**UPDATE, "pause_at": "100%", "keep_old": True}
ROLL_BACK: Json = {"state": "rolled_back"}
#: Without a selector, all labels of the template are the selector, also the new one.
RELABEL: Json = {"definition": {
    "apiVersion": "v1", "kind": "ReplicationController",
    "spec": {"template": {"metadata": {"labels": {"app": "foo", "version": "2"}},
                          "spec": {"containers": [{"name": "web", **UPDATE}]}}}}}
CLIENT_DRIVEN = tuple(kind for kind in KINDS if kind not in SERVER_DRIVEN)
#: Kinds with two controllers during an update (a Deployment has two ReplicaSets). Only these accept
#: keep_old, and an update without a surge.
TWO_CONTROLLER_KINDS = (*CLIENT_DRIVEN, "Deployment")


@dataclasses.dataclass(frozen=True)
class Row:
    """A task that is killed, and the tasks before and after it."""

    title: str
    task: Json
    #: Options of the next task. None: `task` again.
    next_task: Json | None = None
    #: Options of the earlier tasks.
    earlier_tasks: tuple[Json, ...] = ()
    kinds: tuple[str, ...] = KINDS
    needs_api_server: bool = False


ROWS = (
    Row("an update", UPDATE),
    Row("an update to a pause", PAUSE),
    Row("an update from a pause to the end", UPDATE, earlier_tasks=(PAUSE,)),
    Row("an update from a pause to the next pause", {**PAUSE, "pause_at": 2},
        earlier_tasks=(PAUSE,)),
    Row("an update, then a rollback", UPDATE, next_task=ROLL_BACK),
    Row("an update with a surge of two", {**UPDATE, "max_surge": 2},
        kinds=tuple(kind for kind in KINDS if kind != "StatefulSet")),
    Row("an update without a surge", {**UPDATE, "max_surge": 0, "max_unavailable": 1},
        kinds=TWO_CONTROLLER_KINDS),
    Row("an update to a pause with two unavailable pods", {**PAUSE, "max_unavailable": 2}),
    Row("an update to a pause on a requested node", {**PAUSE, "nodes": "number=1"},
        kinds=("DaemonSet",)),
    Row("an update that keeps the old pods", KEEP_OLD, kinds=TWO_CONTROLLER_KINDS),
    Row("an update that ends after keep_old", UPDATE, earlier_tasks=(KEEP_OLD,),
        kinds=TWO_CONTROLLER_KINDS),
    Row("an update that ends after keep_old, then a rollback", UPDATE, earlier_tasks=(KEEP_OLD,),
        next_task=ROLL_BACK, kinds=TWO_CONTROLLER_KINDS),
    Row("a rollback after keep_old", ROLL_BACK, earlier_tasks=(KEEP_OLD,),
        kinds=TWO_CONTROLLER_KINDS),
    Row("a rollback from a pause", ROLL_BACK, earlier_tasks=(PAUSE,)),
    Row("a rollback from a pause, then the update", ROLL_BACK, earlier_tasks=(PAUSE,),
        next_task=UPDATE),
    Row("a rollback from a pause with min_ready_seconds", ROLL_BACK,
        earlier_tasks=({**PAUSE, "min_ready_seconds": 1},), kinds=SERVER_DRIVEN),
    Row("a rollback to a revision", {**ROLL_BACK, "to_revision": 1}, earlier_tasks=(UPDATE,)),
    Row("a rollback to the template before other labels", {**ROLL_BACK, "to_revision": "previous"},
        earlier_tasks=(RELABEL,), kinds=("ReplicationController",)),
    Row("a restart", {"state": "restarted"}),
    Row("an update to another name", {**UPDATE, "next_name": "two"}, kinds=CLIENT_DRIVEN),
    Row("a migration", {"module": "migrate_to_deployment", "state": "migrated"},
        kinds=("ReplicationController",), needs_api_server=True),
)

#: Actions of another client between the kill and the next task.
ACTIONS: dict[str, t.Callable[[History], None]] = {
    "nothing": lambda history: None,
    "scale up": lambda history: history.scale(5),
    "scale down": lambda history: history.scale(2),
    "delete a pod": lambda history: history.delete_pod(0),
    "pause the Deployment": lambda history: history.pause(),
    "edit the template": lambda history: history.edit("a"),
    "remove the annotations": lambda history: history.unmark(),
    "apply the first manifest": lambda history: history.apply(REPLICAS),
}
API_SERVER_ACTIONS = {
    **ACTIONS,
    "recreate the controller": lambda history: history.recreate(REPLICAS, "myimage:v1", True),
    "add a finalizer": lambda history: history.hold(),
    "allow one disruption": lambda history: history.limit_disruptions({"maxUnavailable": 1}),
    "restart the controller manager": lambda history: history.restart_controller_manager(),
}


def kinds_and_rows(on_api_server: bool) -> list[tuple[str, Row]]:
    return [(kind, row) for row in ROWS for kind in row.kinds
            if on_api_server or not row.needs_api_server]


class HistoryWithKill(History):
    @adds_state_to_failure
    def play(self, kind: str, row: Row, moment: tuple[int, bool], action: str) -> bool:
        """Play a row with a kill at `moment`, and return whether the task was killed.

        moment: the number of a write, and whether the kill follows it.
        """
        self.start(kind, REPLICAS)
        for task in row.earlier_tasks:
            assert self._run(task, None).outcome == "done", task
        if self._run(row.task, moment).outcome != "killed":
            return False
        API_SERVER_ACTIONS[action](self)
        task = row.task if row.next_task is None else row.next_task
        self._run_with_suggestions(task, None)
        if action == "nothing" and not self.pending_task:
            self._assert_requested_state()
        elif action == "nothing":
            are_new = [image == UPDATE["image"] for _name, image, _is_ready in self.world.pods()]
            expected_counts = ((REPLICAS, 2 * REPLICAS) if "keep_old" in task
                               else (task["pause_at"], REPLICAS))
            assert (sum(are_new), len(are_new)) == expected_counts, (
                f"{sum(are_new)} of {len(are_new)} pods are new at the pause")
        self.teardown()
        return True


def play(kind: str, row: Row, actions: t.Sequence[str], create_world: t.Callable[[], World],
         first: int = 0, step: int = 1) -> int:
    """Play a row once for each moment of a kill, and return the number of kills.

    The moments are numbered: 0 is before the first write, 1 after it, 2 before the second write,
    and so on. The kills begin at `first`, and continue at every `step`-th moment. The same
    action follows a kill after a write and a kill before the next write.
    """
    for kill_count, index in enumerate(range(first, 2 * MAX_WRITES, step)):
        moment = index // 2 + 1, index % 2 == 1
        action = actions[(index + 1) // 2 % len(actions)]
        history = HistoryWithKill()
        history.world = create_world()
        try:
            is_killed = history.play(kind, row, moment, action)
        except Exception as error:
            error.add_note(f"{kind}: {row.title}, killed {'after' if moment[1] else 'before'} "
                           f"write {moment[0]}; then: {action}")
            raise
        finally:
            history.world.close()
        if not is_killed:
            return kill_count
    raise AssertionError(f"{kind}: {row.title} has more than {MAX_WRITES} writes")

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A history that nobody thought of: tasks with random options, killed at random writes, and other hands between them.

It knows nothing of how an update works, only what is promised (docs/how-it-works.md): what holds while a task is at work is
looked at by the world (World), what holds afterwards is asked for here. At its end one undisturbed task must leave what it was
asked for and nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import typing as t

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

Json = dict[str, t.Any]

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: Those whose pods the server's own controller replaces as soon as somebody changes the template.
STEPPED_BY_SERVER = ("Deployment", "StatefulSet", "DaemonSet")
IMAGES = st.integers(1, 4).map("myimage:v{}".format)
#: Options that change the way, and never the goal.
WAYS = st.fixed_dictionaries({}, optional={
    "max_surge": st.sampled_from([1, 2, "50%"]), "max_unavailable": st.sampled_from([0, 1, "34%"]),
    "revision_history_limit": st.sampled_from([0, 1, 10]), "min_ready_seconds": st.sampled_from([0, 1]),
})
#: Options with which a task ends before the update does.
HALTS = st.one_of(st.just({}), st.just({}), st.just({}), st.fixed_dictionaries({"pause_at": st.sampled_from([1, "50%", "100%"])}),
                  st.fixed_dictionaries({"max_steps": st.integers(1, 8)}))
#: Before or after which of its writes the client dies; it lives where it has not so many.
DEATHS = st.one_of(st.none(), *[st.tuples(st.integers(1, most), st.booleans()) for most in (6, 14, 24)])


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a task ended."""

    #: "done", "killed" or "refused".
    how: str
    #: What the module returned.
    result: Json = dataclasses.field(default_factory=dict)
    #: What it was refused with, for people.
    message: str = ""


class World(t.Protocol):
    """Where a history takes place."""

    #: Whether it has all kinds at once, budgets, several clients, and a controller manager that can be restarted.
    is_whole: bool

    def close(self) -> None:
        """It is not needed any more."""

    def create(self, kind: str, replicas: int) -> None:
        """The controller foo with that many pods, all available."""

    def task(self, params: Json, death: tuple[int, bool] | None, floor: int) -> Ended:
        """Run the module. It fails a test where fewer pods than the floor were ready, or one was without a controller."""

    def check(self, params: Json) -> Ended:
        """The same in check mode."""

    def comes_to_rest(self) -> None:
        """Return when nothing changes any more by itself."""

    def names(self, kind: str) -> list[str]:
        """The controllers of that kind, but for those that another one controls."""

    def look(self, kind: str, name: str) -> Json | None:
        """A controller as the API server shows it."""

    def pods(self) -> list[tuple[str, str, bool]]:
        """Of each pod that is not terminating the name of whose it is in the end, its image, and whether it is ready."""

    def scale(self, kind: str, name: str, replicas: int) -> None:
        """Of a DaemonSet: nodes come, or go."""

    def delete_pod(self, index: int) -> None: ...

    def edit(self, kind: str, name: str, text: str) -> None:
        """Somebody changes a variable in the template."""

    def unmark(self, kind: str, name: str) -> None:
        """Somebody removes every annotation."""

    def apply(self, kind: str, replicas: int) -> None:
        """Somebody applies foo's first manifest by force, with that size, if it has one; it may be refused."""

    def budget(self, spec: Json) -> None:
        """A PodDisruptionBudget of all pods."""

    def restart_controller_manager(self) -> None: ...

    def autoscale(self, kind: str, name: str) -> None:
        """An autoscaler that has no wish of its own."""

    def autoscaler(self) -> Json | None:
        """What it asks for, and its annotations."""

    def leftovers(self) -> list[str]:
        """What no task leaves: Leases that are held."""


class History(RuleBasedStateMachine):
    """One history; a subclass says in which world."""

    world: World
    #: Whether it has ended in the middle.
    has_failed = True

    @initialize(kind=st.sampled_from(KINDS), replicas=st.integers(1, 4))
    def begin(self, kind: str, replicas: int) -> None:
        self.kind, self.name, self.first_kind = kind, "foo", kind
        #: What a PodDisruptionBudget says, where there is one.
        self.budget: Json | None = None
        #: The sizes that may be right; several where somebody has scaled in the middle of an update.
        self.sizes = {replicas}
        #: The last task, where the update that it made or went on with has not ended.
        self.pending: Json | None = None
        #: Whether somebody has done something that allows for fewer pods than promised.
        self.is_disturbed = False
        self.scaler: Json | None = None
        self.is_migrating = self.has_given_up = self.is_unmarked = self.is_applied = self.is_contradicted = False
        self.has_failed = False
        self.world.create(kind, replicas)

    # Tasks

    @rule(image=IMAGES, way=WAYS, halt=HALTS, death=DEATHS, hurry=st.booleans())
    def update(self, image: str, way: Json, halt: Json, death: tuple[int, bool] | None, hurry: bool) -> None:
        self._run({"image": image, **self._possible(way), **halt}, death, hurry)

    @precondition(lambda self: self.kind not in STEPPED_BY_SERVER and not self.is_migrating)
    @rule(image=IMAGES, name=st.sampled_from(["two", "three"]), death=DEATHS)
    def update_to_another_name(self, image: str, name: str, death: tuple[int, bool] | None) -> None:
        self._run({"image": image, "next_name": name}, death)

    @rule(way=WAYS, death=DEATHS, hurry=st.booleans())
    def roll_back(self, way: Json, death: tuple[int, bool] | None, hurry: bool) -> None:
        self._run({"state": "rolled_back", **self._new_name(), **self._possible(way)}, death, hurry)

    @rule(revision=st.integers(1, 3), death=DEATHS)
    def back_to_a_revision(self, revision: int, death: tuple[int, bool] | None) -> None:
        self._run({"state": "rolled_back", "to_revision": revision}, death)

    @rule(death=DEATHS)
    def restart(self, death: tuple[int, bool] | None) -> None:
        self._run({"state": "restarted"}, death)

    @precondition(lambda self: self.kind == "ReplicationController" and self.world.is_whole)
    @rule(death=DEATHS)
    def migrate(self, death: tuple[int, bool] | None) -> None:
        self._run({"state": "migrated", "to_kind": "Deployment"}, death)

    @precondition(lambda self: self.pending)
    @rule(death=DEATHS)
    def same_task_again(self, death: tuple[int, bool] | None) -> None:
        self._run(t.cast(Json, self.pending), death)

    # Other hands

    @rule(replicas=st.integers(1, 5))
    def scale(self, replicas: int) -> None:
        if self.world.look(self.kind, self.name):
            # In the middle of an update either may be right, but for nodes, which nobody remembers.
            self.sizes = self.sizes | {replicas} if self.pending and self.kind != "DaemonSet" else {replicas}
            self.world.scale(self.kind, self.name, replicas)
            self.is_disturbed = True

    @rule(index=st.integers(0, 9))
    def delete_pod(self, index: int) -> None:
        self.world.delete_pod(index)

    @rule(text=st.sampled_from(["a", "b & c", "ü"]))
    def edit(self, text: str) -> None:
        if self.world.look(self.kind, self.name):
            self.world.edit(self.kind, self.name, text)
            self.is_disturbed = self.is_disturbed or self.kind in STEPPED_BY_SERVER
            self.is_contradicted = self.is_contradicted or self.is_migrating  # what is kept of it is not what it is any more

    @precondition(lambda self: self.pending)
    @rule()
    def unmark(self) -> None:
        if self.world.look(self.kind, self.name):
            self.world.unmark(self.kind, self.name)
            self.is_unmarked = True
            if "next_name" in t.cast(Json, self.pending):  # without it, another task knows but the size that there is
                self.sizes |= {t.cast(Json, self.world.look(self.kind, self.name))["spec"]["replicas"]}

    @precondition(lambda self: not self.scaler and self.kind != "DaemonSet")
    @rule()
    def autoscale(self) -> None:
        if self.world.look(self.kind, self.name) and not self.pending:
            self.world.autoscale(self.kind, self.name)
            self.scaler = copy.deepcopy(self.world.autoscaler())

    @precondition(lambda self: self.pending and self.kind == self.first_kind and self.world.is_whole)
    @rule(replicas=st.integers(1, 4))
    def apply(self, replicas: int) -> None:
        if self.world.look(self.kind, "foo"):
            self.sizes |= {replicas} if self.kind != "DaemonSet" else set()
            self.world.apply(self.kind, replicas)
            self.is_disturbed = True
            self.is_applied = self.kind not in STEPPED_BY_SERVER
            self.is_contradicted = self.is_contradicted or self.is_migrating

    @precondition(lambda self: self.world.is_whole and not self.budget)
    @rule(spec=st.one_of(st.fixed_dictionaries({"minAvailable": st.sampled_from([1, 2, "50%"])}),
                         st.fixed_dictionaries({"maxUnavailable": st.sampled_from([0, 1])})))
    def limit_disruptions(self, spec: Json) -> None:
        self.budget = spec
        self.world.budget(spec)

    @precondition(lambda self: self.world.is_whole)
    @rule()
    def restart_controller_manager(self) -> None:
        self.world.restart_controller_manager()

    # What is promised

    def _run(self, params: Json, death: tuple[int, bool] | None, hurry: bool = False) -> Ended:
        """Run a task, look at its way, and keep what is pending after it."""
        params = {"name": self.name, "kind": self.kind, **params}
        self.has_failed = True  # until it is known better
        if not hurry or self.is_disturbed:
            self.world.comes_to_rest()
            self.is_disturbed = False
        planned = None if death or hurry else self.world.check(params)
        size = min([*self.sizes, sum(is_ready for _name, _image, is_ready in self.world.pods())])
        missing = max(min(max(_unavailable(params, self.kind, each), self._set_by_update(each)), _spare(self.budget, each))
                      for each in self.sizes)
        ended = self.world.task(params, death, 0 if hurry else size - missing)
        note(f"  {ended.how} {ended.message}")
        if planned:
            assert planned.how == ended.how, f"planned: {planned.how}, {planned.message}; done: {ended.how}, {ended.message}"
            if ended.how == "done" and "max_steps" not in params:  # how far so many steps lead is a matter of times
                told = [steps(each.result) for each in (planned, ended)]
                assert told[0] == told[1], f"check mode plans {told[0]}, and what is done is {told[1]}"
        assert "faster than" not in ended.message, ended.message
        self._note(params, ended)
        self.has_failed = False
        return ended

    def _run_confirmed(self, params: Json) -> Ended:
        """The task; where somebody has scaled in the middle, or begun something else, what it says to type first."""
        ended = self._run(params, None)
        if begun := re.search(r"another update is in progress: to (\S+) .* Somebody else", ended.message):
            self._run({"image": begun[1]}, None)
            return self._run(params, None)
        if self.kind == "DaemonSet" and "add max_surge=1" in ended.message:  # a budget lets none of its pods be missing
            surging = {option: value for option, value in params.items() if option != "max_unavailable"}
            return self._run({**surging, "max_surge": 1}, None)
        if self.kind == "StatefulSet" and "allows none of its" in ended.message:  # of each of its pods the old one goes first
            self.budget = {"maxUnavailable": 1}
            self.world.budget(self.budget)
            return self._run(params, None)
        if "is not certain" not in ended.message:
            return ended
        told = re.search(r"scale \S+ (\S+) --replicas=(\d+)", ended.message)
        assert told and (int(told[2]) in self.sizes or self.is_unmarked), ended.message
        self.world.scale(self.kind, told[1], int(told[2]))
        return self._run(params, None)

    def _has_label(self) -> bool:
        item = self.world.look(self.kind, self.name) or {"spec": {"selector": {}}}
        return "kubernetes.io/deployment" in (item["spec"]["selector"].get("matchLabels") or {})

    def _possible(self, way: Json) -> Json:
        """Without what is refused: of each pod of a StatefulSet the old one has to go first, of a DaemonSet it does or does not."""
        if self.kind not in ("StatefulSet", "DaemonSet"):
            return way
        surges = self.kind == "DaemonSet" and "max_unavailable" not in way
        return {option: value for option, value in way.items()
                if (surges or option != "max_surge") and (option, value) != ("max_unavailable", 0)}

    def _set_by_update(self, size: int) -> int:
        """How many pods may be missing where an update has set so, and somebody has removed the record of what it was before."""
        if self.kind != "DaemonSet" or not self.is_unmarked:
            return 0
        strategy = t.cast(Json, self.world.look(self.kind, self.name))["spec"]["updateStrategy"]
        return _of(strategy.get("rollingUpdate", {}).get("maxUnavailable", 1), size)

    def _new_name(self) -> Json:
        """What an update in progress, and its rollback, must be given: annotations alone make nothing a successor."""
        name = (self.pending or {}).get("next_name")
        return {"next_name": name} if name else {}

    def _note(self, params: Json, ended: Ended) -> None:
        """Who is there now, and whether an update is pending."""
        is_migration = params.get("state") == "migrated"
        self.is_migrating = (is_migration or self.is_migrating) and ended.how != "done"
        # Of a migration that was given up before a pod had moved an empty ReplicaSet stays, which another task does not know.
        self.has_given_up = not is_migration and (self.has_given_up or (self.pending or {}).get("state") == "migrated")
        if ended.how == "done":
            phase = ended.result["rollout"]["phase"]
            self.pending = None if phase == "complete" else params
            if not self.pending:
                self.kind = "Deployment" if params.get("state") == "migrated" else self.kind
                names = self.world.names(self.kind)
                assert len(names) == 1 or self.is_unmarked, f"{ended.message}, and these are left: {names}"
                self.name = self.name if self.name in names else names[0]
                self.world.comes_to_rest()
                image = _image(t.cast(Json, self.world.look(self.kind, self.name)))
                # Back with its pods, it has those that it made of the template before somebody applied another one.
                is_mixed = self.is_applied and params.get("state") == "rolled_back"
                others = [pod for pod in self._pods() if pod[0] != self.name or (pod[1] != image and not is_mixed)]
                assert not others, f"{self.name} has {image}, and these pods are there: {others}"
        elif ended.how == "killed":
            self.pending = params

    def teardown(self) -> None:
        """One undisturbed task leaves what it was asked for, and nothing else."""
        if self.has_failed:
            return
        if self.pending:
            ended = self._run_confirmed(self.pending)
            if self.pending or ended.how != "done":
                self._run_confirmed({"state": "rolled_back", **self._new_name()})
        wish = {"name": self.name, "image": "myimage:last"}
        if self.kind == "ReplicaSet" and self._has_label():
            wish["next_name"] = "last"  # its selector has the label of the update that made it, and cannot be changed
        ended = self._run_confirmed(wish)
        if (self.is_unmarked or self.is_contradicted) and ended.how == "refused":
            assert "Next:" in ended.message, ended.message
            return  # what is known no more is asked of whoever has removed it, or applied something else
        assert ended.how == "done" and not self.pending, f"the last task: {ended.how} {ended.message}"
        self.world.comes_to_rest()
        again = self._run(wish, None)
        assert not again.result["changed"], "the last task changes something again"
        self._is_as_asked_for("myimage:last")

    def _pods(self) -> list[tuple[str, str, bool]]:
        """Those of the update; not those of the others that are left where somebody has removed the marks."""
        others = set(self.world.names(self.kind)) - {self.name} if self.is_unmarked else set()
        return [pod for pod in self.world.pods() if pod[0] not in others]

    def _is_as_asked_for(self, image: str) -> None:
        left = {kind: names for kind in KINDS if (names := self.world.names(kind))}
        if self.has_given_up and self.kind == "ReplicationController":
            left.pop("ReplicaSet", None)
        if self.is_unmarked:
            left = {self.kind: [self.name]}  # nobody knows whose the others are
        assert left == {self.kind: [self.name]}, f"these are left: {left}"
        item = t.cast(Json, self.world.look(self.kind, self.name))
        template = item["spec"]["template"]
        size = item["status"]["desiredNumberScheduled"] if self.kind == "DaemonSet" else item["spec"]["replicas"]
        assert size in self.sizes, f"{size} replicas instead of {self.sizes}"
        assert _image(item) == image
        assert "priorityClassName" not in template["spec"], "the template is closed"
        marks = {each for each in item["metadata"].get("annotations") or {} if "/" in each}
        assert marks <= {"baton.kubernetes/last-rollout", "deployment.kubernetes.io/revision"}, f"marks are left: {marks}"
        assert sorted(self._pods()) == [(self.name, image, True)] * size
        assert self.scaler is None or self.world.autoscaler() in (self.scaler, None), "the autoscaler is not what it was"
        assert not self.world.leftovers()


def _image(item: Json) -> str:
    return item["spec"]["template"]["spec"]["containers"][0]["image"]


def steps(result: Json) -> list[tuple[t.Any, ...]]:
    """What was done, as far as two runs that go the same way have it in common: sizes between two other steps by their ends.

    The name of a ControllerRevision has to do with the uid of its controller, which there is not yet in check mode. Sizes that the
    server sets by itself, of a Deployment's ReplicaSets, are told as they are seen: now three in one, now each.
    """
    told: list[tuple[t.Any, ...]] = []
    sizes: dict[str, t.Any] = {}
    for step in [*result["steps"], None]:
        if step and step["action"] == "scale":
            if "Deployment" in {each["kind"] for each in result["steps"]}:
                continue
            sizes[step["name"]] = step["to"]
            continue
        told += sorted((("scale", name, to) for name, to in sizes.items()))
        sizes = {}
        if step:
            told.append((step["action"], str(step["kind"]), "" if step["kind"] == "ControllerRevision" else step["name"]))
    return told


def _unavailable(params: Json, kind: str, size: int) -> int:
    """How many pods may be missing; a Deployment's own setting is a quarter, rounded down, and a surge of 0 asks for one.

    Of a StatefulSet it is one at the least, and rounded up; where the cluster knows no more than one, not as many as asked for.
    Of a DaemonSet too, unless it surges.
    """
    if kind in ("StatefulSet", "DaemonSet"):
        return 0 if "max_surge" in params else max(1, _of(params.get("max_unavailable", 1), size))
    value = params.get("max_unavailable", "25%" if kind == "Deployment" else 0)
    return size * int(value.rstrip("%")) // 100 if isinstance(value, str) else value


def _of(value: int | str, size: int) -> int:
    """A share of that many pods, rounded up."""
    return -(-size * int(value.rstrip("%")) // 100) if isinstance(value, str) else value


def _spare(budget: Json | None, size: int) -> int:
    """How many of that many pods a PodDisruptionBudget lets be missing; percentages are rounded up."""
    if not budget or "maxUnavailable" in budget:
        return budget["maxUnavailable"] if budget else size
    return max(0, size - _of(budget["minAvailable"], size))

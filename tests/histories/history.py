# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Play random histories: tasks with random options, kills at random writes, and actions of other
clients.

The World checks the guarantees of docs/concepts/guarantees.md during a task, and this file checks
them after a task.

Hypothesis orders rules and arguments by their names: a new name changes the histories of a seed.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
import typing as t

import typed_commands
from hypothesis import currently_in_test_context
from hypothesis import note as note_in_test
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

Json = dict[str, t.Any]

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
#: The controller manager replaces the pods of these kinds.
SERVER_DRIVEN = ("Deployment", "StatefulSet", "DaemonSet")
IMAGES = st.integers(1, 4).map("myimage:v{}".format)
#: The image in the first manifest of foo.
FIRST_IMAGE = "myimage:v1"
#: An image whose pods never become ready. The kubelet reports the cause immediately.
BROKEN = "myimage:v9-noconfig"
SHORT_DEADLINES = {"failure_grace": 1, "progress_deadline": 10}
#: Spec fields of the user, which an update restores at its end.
USER_FIELDS = ("strategy", "updateStrategy", "revisionHistoryLimit", "progressDeadlineSeconds",
               "paused", "podManagementPolicy")
#: The heading of the state that a failure reports, its maximum number of lines, and characters.
STATE_HEADING, MAX_STATE_LINES, MAX_STATE_LINE_LENGTH = "After the failure:", 60, 2000


def _rolling(**numbers: t.Any) -> Json:
    return {"type": "RollingUpdate", "rollingUpdate": numbers}


#: Possible USER_FIELDS by kind. A random number selects an entry.
USER_SPECS: dict[str, tuple[Json, ...]] = {
    "Deployment": (
        {}, {"revisionHistoryLimit": 0}, {"strategy": _rolling(maxSurge=1, maxUnavailable=0)},
        {"strategy": _rolling(maxSurge=0, maxUnavailable="50%"), "revisionHistoryLimit": 0},
        {"strategy": _rolling(maxSurge="50%", maxUnavailable=1), "progressDeadlineSeconds": 120}),
    "StatefulSet": (
        {}, {"revisionHistoryLimit": 0}, {"updateStrategy": {"type": "OnDelete"}},
        {"updateStrategy": _rolling(partition=1)}, {"podManagementPolicy": "Parallel"},
        {"updateStrategy": {"type": "OnDelete"}, "revisionHistoryLimit": 0}),
    "DaemonSet": (
        {}, {"revisionHistoryLimit": 0}, {"updateStrategy": {"type": "OnDelete"}},
        {"updateStrategy": _rolling(maxSurge=1, maxUnavailable=0)},
        {"updateStrategy": _rolling(maxSurge=0, maxUnavailable="50%")},
        {"updateStrategy": {"type": "OnDelete"}, "revisionHistoryLimit": 0},
        {"updateStrategy": _rolling(maxSurge="50%", maxUnavailable=0), "revisionHistoryLimit": 0}),
}
#: Options of an update that do not change its result.
WAYS = st.fixed_dictionaries({}, optional={
    "max_surge": st.sampled_from([1, 2, "50%"]), "max_unavailable": st.sampled_from([0, 1, "34%"]),
    "min_ready_seconds": st.sampled_from([0, 1]),
})
#: Options that end a task before the update is complete.
HALTS = st.one_of(st.just({}), st.just({}), st.just({}),
                  st.fixed_dictionaries({"pause_at": st.sampled_from([1, "50%", "100%"])}))
HALTING_OPTIONS = {"pause_at"}
#: A kill: the number of a write (from 1), and whether the kill follows the write. None: no kill.
DEATHS = st.one_of(st.none(),
                   *[st.tuples(st.integers(1, number), st.booleans()) for number in (6, 14, 24)])


@dataclasses.dataclass(frozen=True)
class TaskRun:
    #: "done", "killed", "refused" or, for a fleet, "crashed" (an unexpected error).
    outcome: str
    result: Json = dataclasses.field(default_factory=dict)
    message: str = ""


class World(t.Protocol):
    """The cluster in which a history is played."""

    #: Whether all rules of History are possible (only on a real API server).
    has_all_actions: bool

    def configure(self, clock_ahead: float, pods_end_slowly: bool) -> None:
        """Set the conditions of a history, before its controllers are created.

        A method, because an attribute set on CountingWorld would not reach the world.

        clock_ahead: of the client, in seconds; negative if behind.
        """

    def close(self) -> None:
        ...

    def create(self, kind: str, replicas: int, image: str, fields: Json) -> None:
        """Create the controller foo, and wait until all pods except broken ones are ready."""

    def task(self, params: Json, death: tuple[int, bool] | None, floor: int,
             ceiling: int | None) -> TaskRun:
        """Run a task, and assert at each moment the limits of ready pods and of all pods.

        death: as in DEATHS.
        """

    def check(self, params: Json) -> TaskRun:
        """Run a task in check mode."""

    def wait_until_idle(self) -> None:
        ...

    def names(self, kind: str) -> list[str]:
        """Return the names of the controllers of a kind that have no owner."""

    def get(self, kind: str, name: str) -> Json | None:
        ...

    def pods(self) -> list[tuple[str, str, bool]]:
        """Return (top-level owner, image, is_ready) for each pod that is not terminating."""

    def scale(self, kind: str, name: str, replicas: int) -> None:
        """Scale a controller, for a DaemonSet by adding or removing nodes."""

    def delete_pod(self, index: int) -> None:
        ...

    def edit(self, kind: str, name: str, text: str) -> None:
        """Set an environment variable in the template to `text`."""

    def remove_annotations(self, kind: str, name: str) -> None:
        ...

    def set_user_fields(self, kind: str, name: str, fields: Json) -> None:
        ...

    def recreate(self, kind: str, name: str, replicas: int, image: str) -> None:
        """Delete a controller, but not its pods, and create it again without annotations."""

    def add_finalizer(self, kind: str, name: str) -> None:
        """Add a finalizer, which another client removes some time after the deletion."""

    def run_kubectl(self, words: list[str]) -> None:
        ...

    def apply(self, kind: str, replicas: int) -> None:
        """Apply the first manifest of foo with this size, by a forced server-side apply."""

    def budget(self, spec: Json) -> None:
        ...

    def restart_controller_manager(self) -> None:
        ...

    def autoscale(self, kind: str, name: str) -> None:
        ...

    def autoscaler(self) -> Json | None:
        """Return the spec and the annotations of the autoscaler, or None."""

    def remaining_leases(self) -> list[str]:
        ...

    def describe(self) -> list[str]:
        """Return a line for each controller, ControllerRevision and pod."""


def note(text: str) -> None:
    if currently_in_test_context():
        note_in_test(text)


_P, _R = t.ParamSpec("_P"), t.TypeVar("_R")


def adds_state_to_failure(method: t.Callable[_P, _R]) -> t.Callable[_P, _R]:
    """Decorate a method of a machine with a world, so that its exceptions contain the state."""
    @functools.wraps(method)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        try:
            return method(*args, **options)
        except Exception as error:
            machine: t.Any = args[0]
            add_state(error, machine.world)
            raise

    return call


def add_state(error: Exception, world: World) -> None:
    """Add the state of the cluster to an exception, once. A repetition may not fail again."""
    if any(text.startswith(STATE_HEADING) for text in getattr(error, "__notes__", ())):
        return
    try:
        lines = world.describe()
    except Exception as failure:
        lines = [f"the state cannot be read: {failure!r}"]
    reported_lines = [line[:MAX_STATE_LINE_LENGTH] for line in lines[:MAX_STATE_LINES]]
    if omitted_count := len(lines) - len(reported_lines):
        reported_lines.append(f"{omitted_count} more lines")
    error.add_note("\n  ".join([STATE_HEADING, *reported_lines]))


def describe_controller(kind: str, item: Json) -> str:
    """Return a line with the fields of a controller that a task or another client may change."""
    metadata, spec = item["metadata"], item["spec"]
    template = spec["template"]
    identifiers = {field: metadata[field] for field in (
        "uid", "resourceVersion", "generation", "deletionTimestamp", "finalizers",
        "ownerReferences") if metadata.get(field)}
    containers = [{field: container[field] for field in ("image", "env") if field in container}
                  for container in template["spec"]["containers"]]
    fields = {"metadata": identifiers,
              "spec": {field: value for field, value in spec.items() if field != "template"},
              "template": {"metadata": template.get("metadata"), "containers": containers,
                           "priorityClassName": template["spec"].get("priorityClassName")},
              "status": item.get("status"), "annotations": metadata.get("annotations")}
    return f"{kind} {metadata['name']}: {json.dumps(fields)}"


def describe_revision(item: Json) -> str:
    """Return a line with the labels, the number and the images of a ControllerRevision."""
    metadata = item["metadata"]
    images = sorted(set(re.findall(r"myimage:[\w.-]+", json.dumps(item.get("data")))))
    return (f"ControllerRevision {metadata['name']}: revision {item.get('revision')}, {images}, "
            f"{json.dumps(metadata.get('labels'))}")


class History(RuleBasedStateMachine):
    """A random history of one controller. Its creator sets `world`."""

    world: World
    #: Also true during a task, so that teardown checks nothing after a failure.
    skips_final_check = True

    kinds: t.Sequence[str] = KINDS

    @initialize(data=st.data(), replicas=st.integers(1, 4), choice=st.integers(0, 9),
                is_broken=st.sampled_from([False] * 5 + [True]),
                pastes=st.sampled_from([None, 0, 1, -1]),
                clock_ahead=st.sampled_from([0, 0, 100, -100]),
                ends_slowly=st.sampled_from([False] * 4 + [True]))
    def begin(self, data: st.DataObject, replicas: int, choice: int, is_broken: bool,
              pastes: int | None, clock_ahead: float, ends_slowly: bool) -> None:
        specs = USER_SPECS.get(kind := data.draw(st.sampled_from(self.kinds)), ({},))
        self.world.configure(clock_ahead, ends_slowly)
        self.start(kind, replicas, specs[choice % len(specs)],
                   is_broken and self._can_kind_be_broken(kind), pastes)

    def start(self, kind: str, replicas: int, fields: Json | None = None, is_broken: bool = False,
              alternative_index: int | None = 0) -> None:
        self.kind, self.name, self.first_kind = kind, "foo", kind
        #: Index of the alternative in an error to execute, or None to execute none.
        self.alternative_index = alternative_index
        self.has_finalizer = False
        self.is_recreated = False
        self.has_used_broken_image = False
        #: Whether a task may have lowered maxUnavailable, and has ended before its update.
        self.may_have_lowered_limit = False
        self.budget: Json | None = None
        #: Acceptable numbers of replicas: several if another client has scaled during an update.
        self.sizes = {replicas}
        #: Values of min_ready_seconds of the tasks that may have started the current update.
        self.requested_ready_seconds: set[int] = set()
        #: The options of the last task, unless its update is complete.
        self.pending_task: Json | None = None
        #: Tasks that may have started the current update, oldest first.
        self.starting_tasks: list[Json] = []
        #: Whether the next task must wait after an action of another client.
        self.may_lack_ready_pods = False
        self.initial_autoscaler: Json | None = None
        self.has_lost_record = False
        self.is_migrating = self.has_abandoned_migration = False
        #: By another client, during an update.
        self.was_manifest_applied = False
        #: Whether the killed task had ended its update before another client applied the manifest.
        self.was_applied_after_update = False
        #: By another client, during an update of a controller with ControllerRevisions.
        self.was_template_edited = False
        #: By another client, so that the settings in the record are outdated.
        self.was_changed_in_migration = False
        self.skips_final_check = False
        self.world.create(kind, replicas, BROKEN if is_broken else FIRST_IMAGE, fields or {})
        self.user_fields = self._current_user_fields()
        #: Acceptable values of minReadySeconds before the current update.
        self.ready_seconds = {self._current_ready_seconds()}
        self.has_used_broken_image = is_broken
        self.is_previous_version_broken = is_broken
        self.never_worked = is_broken

    # Tasks

    @rule(image=IMAGES, way=WAYS, halt=HALTS, death=DEATHS, hurry=st.booleans())
    def update(self, image: str, way: Json, halt: Json, death: tuple[int, bool] | None,
               hurry: bool) -> None:
        self._run_with_suggestions({"image": image, **self._accepted_options(way), **halt}, death,
                                   hurry)

    @precondition(lambda self: self._can_be_broken and not self.never_worked)
    @rule(way=WAYS, halt=HALTS, death=DEATHS, on_failure=st.sampled_from(["stop", "rollback"]))
    def update_to_what_never_works(self, way: Json, halt: Json, death: tuple[int, bool] | None,
                                   on_failure: str) -> None:
        self._run_with_suggestions({"image": BROKEN, "on_failure": on_failure, **SHORT_DEADLINES,
                                    **self._accepted_options(way), **halt}, death)

    @precondition(lambda self: self.kind not in SERVER_DRIVEN and not self.is_migrating)
    @rule(image=IMAGES, name=st.sampled_from(["two", "three"]), death=DEATHS)
    def update_to_another_name(self, image: str, name: str, death: tuple[int, bool] | None) -> None:
        self._run_with_suggestions({"image": image, "next_name": name}, death)

    @rule(way=WAYS, death=DEATHS, hurry=st.booleans())
    def roll_back(self, way: Json, death: tuple[int, bool] | None, hurry: bool) -> None:
        self._run_with_suggestions({"state": "rolled_back", **self._next_name_option(),
                                    **self._accepted_options(way)}, death, hurry)

    @rule(revision=st.sampled_from([1, 2, 3, "previous"]), death=DEATHS)
    def back_to_a_revision(self, revision: int | str, death: tuple[int, bool] | None) -> None:
        self._run_with_suggestions({"state": "rolled_back", "to_revision": revision}, death)

    @precondition(lambda self: not self.never_worked)
    @rule(death=DEATHS)
    def restart(self, death: tuple[int, bool] | None) -> None:
        self._run_with_suggestions({"state": "restarted"}, death)

    @precondition(lambda self: self.kind == "ReplicationController" and self.world.has_all_actions)
    @rule(death=DEATHS)
    def migrate(self, death: tuple[int, bool] | None) -> None:
        self._run_with_suggestions({"module": "migrate_to_deployment", "state": "migrated"}, death)

    @precondition(lambda self: self.pending_task)
    @rule(death=DEATHS)
    def same_task_again(self, death: tuple[int, bool] | None) -> None:
        self._run_with_suggestions(t.cast(Json, self.pending_task), death)

    # Other clients

    @rule(replicas=st.integers(1, 5))
    def scale(self, replicas: int) -> None:
        if self.world.get(self.kind, self.name):
            # During an update, either size may be correct, except for a DaemonSet.
            self.sizes = (self.sizes | {replicas} if self.pending_task
                          and self.kind != "DaemonSet" else {replicas})
            self.world.scale(self.kind, self.name, replicas)
            self.may_lack_ready_pods = True

    @rule(index=st.integers(0, 9))
    def delete_pod(self, index: int) -> None:
        self.world.delete_pod(index)

    @precondition(lambda self: not self.never_worked)
    @rule(text=st.sampled_from(["a", "b & c", "ü"]))
    def edit(self, text: str) -> None:
        if self.world.get(self.kind, self.name):
            self.is_previous_version_broken = (
                self.is_previous_version_broken
                or _image(t.cast(Json, self.world.get(self.kind, self.name))) == BROKEN)
            self.world.edit(self.kind, self.name, text)
            self.was_template_edited = bool(self.pending_task) and (
                self.was_template_edited or self.kind in ("StatefulSet", "DaemonSet"))
            self.may_lack_ready_pods = self.may_lack_ready_pods or self.kind in SERVER_DRIVEN
            self.was_changed_in_migration = self.was_changed_in_migration or self.is_migrating

    @precondition(lambda self: self.pending_task)
    @rule()
    def unmark(self) -> None:
        """Remove the annotations, and with them the record of the update."""
        if self.world.get(self.kind, self.name):
            self.world.remove_annotations(self.kind, self.name)
            self.has_lost_record = True
            # Without the record, a task keeps the current size.
            if "next_name" in t.cast(Json, self.pending_task):
                self.sizes |= {t.cast(Json,
                                      self.world.get(self.kind, self.name))["spec"]["replicas"]}

    @precondition(lambda self: not self.initial_autoscaler and self.kind != "DaemonSet")
    @rule()
    def autoscale(self) -> None:
        if self.world.get(self.kind, self.name) and not self.pending_task:
            self.world.autoscale(self.kind, self.name)
            self.initial_autoscaler = copy.deepcopy(self.world.autoscaler())

    @precondition(lambda self: self.pending_task and self.kind == self.first_kind
                  and self.world.has_all_actions)
    @rule(replicas=st.integers(1, 4))
    def apply(self, replicas: int) -> None:
        if item := self.world.get(self.kind, "foo"):
            self.sizes |= {replicas} if self.kind != "DaemonSet" else set()
            self.world.apply(self.kind, replicas)
            self.may_lack_ready_pods = True
            self.was_manifest_applied = self.kind not in SERVER_DRIVEN
            # This ends the update of a server-driven kind, and does not change minReadySeconds.
            self.ready_seconds |= {self._current_ready_seconds()}
            # The task may have been killed before it could report the end of its update.
            annotations = item["metadata"].get("annotations") or {}
            self.was_applied_after_update = (
                self.was_manifest_applied and object_meta.PARTNER not in annotations
                and {image for _owner, image, _is_ready in self.world.pods()}
                == {(self.pending_task or {}).get("image")})
            self.was_changed_in_migration = self.was_changed_in_migration or self.is_migrating

    @precondition(lambda self: self.kind in USER_SPECS and not self.pending_task)
    @rule(choice=st.integers(1, 9))
    def change_own_strategy(self, choice: int) -> None:
        specs = USER_SPECS[self.kind]
        fields = {field: value for field, value in specs[choice % len(specs)].items()
                  if field != "podManagementPolicy"}
        self.world.set_user_fields(self.kind, self.name, fields)
        self.user_fields = self._current_user_fields()
        # without OnDelete, the controller manager now replaces old pods
        self.may_lack_ready_pods = True

    @precondition(lambda self: self.kind == "Deployment" and self.pending_task)
    @rule()
    def pause(self) -> None:
        """Pause the Deployment, like `kubectl rollout pause`."""
        if self.kind == "Deployment" and self.world.get(self.kind, self.name):
            self.world.set_user_fields(self.kind, self.name, {"paused": True})

    @precondition(lambda self: self.world.has_all_actions and not self.is_migrating)
    @rule(replicas=st.integers(1, 4), image=IMAGES, is_same=st.booleans())
    def recreate(self, replicas: int, image: str, is_same: bool) -> None:
        item = self.world.get(self.kind, self.name)
        if not item:
            return
        if is_same or self.kind not in SERVER_DRIVEN:
            image = _image(item)
        self.sizes = (self.sizes | {replicas} if self.pending_task
                      else {replicas} if self.kind != "DaemonSet" else self.sizes)
        self.world.recreate(self.kind, self.name, replicas, image)
        self.is_recreated = True
        self.has_lost_record = self.has_lost_record or bool(self.pending_task)
        self.may_lack_ready_pods = True

    @precondition(lambda self: self.world.has_all_actions and not self.has_finalizer)
    @rule()
    def hold(self) -> None:
        if self.world.get(self.kind, self.name):
            self.world.add_finalizer(self.kind, self.name)
            self.has_finalizer = True

    @precondition(lambda self: self.world.has_all_actions and not self.budget)
    @rule(spec=st.one_of(st.fixed_dictionaries({"minAvailable": st.sampled_from([1, 2, "50%"])}),
                         st.fixed_dictionaries({"maxUnavailable": st.sampled_from([0, 1])})))
    def limit_disruptions(self, spec: Json) -> None:
        self.budget = spec
        self.world.budget(spec)

    @precondition(lambda self: self.world.has_all_actions)
    @rule()
    def restart_controller_manager(self) -> None:
        self.world.restart_controller_manager()

    # Guarantees

    @adds_state_to_failure
    def _run_with_suggestions(self, params: Json, death: tuple[int, bool] | None,
                              hurry: bool = False) -> None:
        """Run a task, and execute the commands in its error."""
        run = self._run(params, death, hurry)
        if self.alternative_index is not None:
            self._execute_suggestions(params, run, self.alternative_index)

    def _execute_suggestions(self, params: Json, run: TaskRun, index: int) -> None:
        """Execute the alternative `index` of an error, and the last one of each later error."""
        for _attempt in range(2 * max(self.sizes)):
            # The failed update is rolled back already, so a rerun would fail again.
            if run.outcome != "refused" or "is rolled back to" in run.message:
                return
            if "add max_surge=1" in run.message:
                params = self._with_surge(params)
            elif not (alternatives := typed_commands.alternatives(run.message)):
                return
            else:
                count = len(alternatives)
                alternative = alternatives[index if -count <= index < count else -1]
                params = self._run_alternative(alternative, params)
                index = -1  # the last alternative is a rollback
            run = self._run(params, None)
        # a refusal is accepted, since no record contains the previous template
        if run.outcome == "refused" and self.has_lost_record:
            return
        # one refusal is accepted, since the previous version is also broken
        if run.outcome == "refused" and self.is_previous_version_broken:
            run = self._run({"image": typed_commands.WORKING_IMAGE}, None)
            if self.kind in ("StatefulSet", "DaemonSet"):  # pods of the failed template may remain
                return
        assert run.outcome != "refused", f"all suggested commands were refused: {run.message}"

    def _run_alternative(self, alternative: list[list[str]], params: Json) -> Json:
        """Execute an alternative except its last task. Return the options of this task, or
        `params` if there is none.
        """
        note(f"  pasted: {alternative}")
        tasks_of_alternative = (self._task_or_run(words, params) for words in alternative)
        *tasks, last = list(filter(None, tasks_of_alternative)) or [params]
        for task in tasks:
            self._run(task, None)
        return last

    def _task_or_run(self, words: list[str], params: Json) -> Json | None:
        """Return the options of the command's task. Execute any other command, and return None."""
        if words == [typed_commands.RERUN_SUGGESTION]:
            *_earlier, task = self.starting_tasks or [params]
            if len(self.starting_tasks) > 1:
                self.starting_tasks.pop()
            return {option: value for option, value in task.items()
                    if option not in HALTING_OPTIONS}
        if (typed_options := typed_commands.task_params(words)) is None:
            self._run_kubectl(words)
            return None
        return {"kind": "ReplicationController",
                **{option: value for option, value in typed_options.items() if option != "name"}}

    def _with_surge(self, params: Json) -> Json:
        excluded_options = {"max_unavailable"} if self.kind == "DaemonSet" else set()
        return {**{option: value for option, value in params.items()
                   if option not in excluded_options}, "max_surge": 1}

    def _run_kubectl(self, words: list[str]) -> None:
        verb, arguments, flags = typed_commands.parse_kubectl(words)
        self.world.run_kubectl(words)
        if verb == "patch" and arguments[0] == "pdb":
            self.budget = {"maxUnavailable": 1}
        elif verb == "scale":
            size = int(flags["--replicas"])
            assert size in self.sizes or self.has_lost_record, words

    def _run(self, params: Json, death: tuple[int, bool] | None, hurry: bool = False) -> TaskRun:
        """Run a task, compare it with check mode, and record whether an update is pending.

        hurry: start before the cluster is idle.
        """
        self.has_used_broken_image = self.has_used_broken_image or params.get("image") == BROKEN
        params = {"name": self.name, "kind": self.kind,
                  **(SHORT_DEADLINES if self.has_used_broken_image else {}), **params}
        self.skips_final_check = True  # until the task has succeeded
        if params["kind"] != self.kind and self.world.get(params["kind"], self.name):
            self.kind = params["kind"]  # a migration that is paused has created this controller
            self.user_fields = self._current_user_fields()
        if not hurry or self.may_lack_ready_pods:
            self.world.wait_until_idle()
            self.may_lack_ready_pods = False
        # The cluster model of check mode has no broken pods.
        plan = None if death or hurry or self.has_used_broken_image else self.world.check(params)
        min_size = min([*self.sizes,
                        sum(is_ready for _name, _image, is_ready in self.world.pods())])
        unavailable = max(self._unavailable_limit_with_budget(params, size) for size in self.sizes)
        # Old pods of the former controller may already have the label of the new template.
        if self.kind == "DaemonSet" and self.is_recreated:
            unavailable = max(1, unavailable)
        surge = max(_surge_limit(params, self.kind, size, self.user_fields) for size in self.sizes)
        pods = self.world.pods()
        ceiling = max(len(pods), max(self.sizes) + surge + self._other_pod_count(params, pods))
        # The Deployment controller ignores terminating pods. With a surge, possibly of a killed
        # task, the DaemonSet controller creates pods while old pods terminate.
        may_surge = self.kind == "DaemonSet" and (surge or self.has_used_broken_image
                                                  or self.has_lost_record)
        has_ceiling = not hurry and self.kind != "Deployment" and not may_surge
        run = self.world.task(params, death, 0 if hurry else min_size - unavailable,
                              ceiling if has_ceiling else None)
        note(f"  {run.outcome} {run.message}")
        if run.outcome == "refused":
            lost = typed_commands.lost_options(params, run.message)
            assert not lost, (
                f"options that are missing in the command to repeat the task: {lost}\n"
                f"{run.message}")
        if plan:
            assert plan.outcome == run.outcome, (
                f"planned: {plan.outcome}, {plan.message}; "
                f"done: {run.outcome}, {run.message}")
            if run.outcome == "done":
                reported_steps = [steps(task.result) for task in (plan, run)]
                assert reported_steps[0] == reported_steps[1], (
                    f"check mode plans {reported_steps[0]}, and the task does {reported_steps[1]}")
        assert "keeps changing" not in run.message, run.message
        self._record_result(params, run)
        self.skips_final_check = False
        return run

    def _run_with_required_actions(self, params: Json) -> TaskRun:
        """Run a task. If its error requires another action first, execute the action, and rerun."""
        run = self._run(params, None)
        for _attempt in range(3):
            alternatives = typed_commands.alternatives(run.message)
            if run.outcome != "refused":
                return run
            if other_update := re.search(
                    r"another update is in progress: to (\S+) .* Another client has changed",
                    run.message):
                self._run({"image": other_update[1]}, None)
            elif "add max_surge=1" in run.message:  # the budget allows no unavailable pod
                params = self._with_surge(params)
            elif alternatives and alternatives[0][0][0] == "kubectl":
                params = self._run_alternative(alternatives[0], params)
            else:
                return run
            run = self._run(params, None)
        return run

    @property
    def _can_be_broken(self) -> bool:
        return self._can_kind_be_broken(self.kind)

    def _can_kind_be_broken(self, kind: str) -> bool:
        return self.world.has_all_actions or kind in ("StatefulSet", "DaemonSet")

    def _current_user_fields(self) -> Json:
        spec = t.cast(Json, self.world.get(self.kind, self.name))["spec"]
        return copy.deepcopy({field: spec[field] for field in USER_FIELDS if field in spec})

    def _current_ready_seconds(self) -> int:
        item = self.world.get(self.kind, self.name) or {"spec": {}}
        return item["spec"].get("minReadySeconds") or 0

    def _check_ready_seconds(self, params: Json, run: TaskRun) -> None:
        """Assert that a completed update has set minReadySeconds, and that a rollback has restored
        the previous value.
        """
        seconds = params.get("min_ready_seconds")
        requested = set() if seconds is None else {int(seconds)}  # a text in a suggested command
        if run.result.get("rollout", {}).get("phase") != "complete":
            self.requested_ready_seconds |= requested
            return
        is_rollback = params.get("state") == "rolled_back" and "to_revision" not in params
        is_done = run.outcome == "done"
        if is_done and run.result["changed"] and requested:
            expected = requested
        elif (is_done and is_rollback) or "is rolled back to" in run.message:
            expected = self.ready_seconds
        else:
            expected = self.ready_seconds | self.requested_ready_seconds
        seconds = self._current_ready_seconds()
        is_known = self.kind in SERVER_DRIVEN and not (self.has_lost_record or self.is_migrating)
        assert seconds in expected or not is_known, (
            f"minReadySeconds is {seconds} instead of {expected}: {run.message}")
        self.ready_seconds, self.requested_ready_seconds = {seconds}, set()

    def _restorable_fields(self, fields: Json | None = None) -> Json:
        """Return the fields that an update must restore, by default from the current spec."""
        fields = copy.deepcopy(self._current_user_fields() if fields is None else fields)
        # No other task restores a maxUnavailable that only the record contains.
        if self.may_have_lowered_limit:
            fields.get("updateStrategy", {}).get("rollingUpdate", {}).pop("maxUnavailable", None)
        return fields

    def _has_deployment_label(self) -> bool:
        item = self.world.get(self.kind, self.name) or {"spec": {"selector": {}}}
        return "kubernetes.io/deployment" in (item["spec"]["selector"].get("matchLabels") or {})

    def _has_closed_template(self) -> bool:
        item = self.world.get(self.kind, self.name) or {"spec": {"template": {"spec": {}}}}
        return "priorityClassName" in item["spec"]["template"]["spec"]

    def _accepted_options(self, options: Json) -> Json:
        if self.kind not in ("StatefulSet", "DaemonSet"):
            return options
        accepts_surge = self.kind == "DaemonSet" and "max_unavailable" not in options
        return {option: value for option, value in options.items()
                if (accepts_surge or option != "max_surge")
                and (option, value) != ("max_unavailable", 0)}

    def _unavailable_limit_with_budget(self, params: Json, size: int) -> int:
        """Return how many pods a task may make unavailable, as limited by the budget."""
        limit = max(_unavailable_limit(params, self.kind, size, self.user_fields),
                    self._unavailable_limit_without_record(size))
        allowed = _allowed_disruptions(self.budget, size)
        # A rollback in place may replace one pod at a time, even if the budget allows none.
        if self.kind in ("StatefulSet", "DaemonSet") and params.get("state") == "rolled_back":
            allowed = max(1, allowed)
        return min(limit, allowed)

    def _unavailable_limit_without_record(self, size: int) -> int:
        """Return maxUnavailable of the current spec, which a task uses for a DaemonSet without a
        record.
        """
        if self.kind != "DaemonSet" or not self.has_lost_record:
            return 0
        strategy = t.cast(Json, self.world.get(self.kind, self.name))["spec"]["updateStrategy"]
        return _resolve(strategy.get("rollingUpdate", {}).get("maxUnavailable", 1), size)

    def _next_name_option(self) -> Json:
        name = (self.pending_task or {}).get("next_name")
        return {"next_name": name} if name else {}

    def _record_result(self, params: Json, run: TaskRun) -> None:
        """Record whether an update is pending, and assert that a complete one leaves no old pods.
        """
        self._check_ready_seconds(params, run)
        is_migration = params.get("state") == "migrated"
        self.is_migrating = (is_migration or self.is_migrating) and run.outcome != "done"
        # A migration that was killed before its first handover leaves an empty ReplicaSet.
        self.has_abandoned_migration = not is_migration and (
            self.has_abandoned_migration
            or (self.pending_task or {}).get("state") == "migrated")
        if run.outcome == "done":
            phase = run.result["rollout"]["phase"]
            assert phase == "complete" or params.keys() & HALTING_OPTIONS, f"{phase}: {run.message}"
            self.pending_task = None if phase == "complete" else params
            if not self.pending_task:
                self.starting_tasks = []
                if params.get("state") == "migrated":
                    self.kind = "Deployment"
                    self.user_fields = self._current_user_fields()
                names = self.world.names(self.kind)
                assert len(names) == 1 or self.has_lost_record, (
                    f"{run.message}, and these controllers exist: {names}")
                self.name = self.name if self.name in names else names[0]
                self.world.wait_until_idle()
                image = _image(t.cast(Json, self.world.get(self.kind, self.name)))
                self.never_worked = self.never_worked and image == BROKEN
                # After an apply of its manifest, a controller may own pods of another template.
                is_mixed = ((self.was_manifest_applied and params.get("state") == "rolled_back")
                            or (self.was_applied_after_update and not run.result["changed"]
                                and image == FIRST_IMAGE))
                remaining_pods = [pod for pod in self._known_pods(self.world.pods())
                                  if pod[0] != self.name or (pod[1] != image and not is_mixed)]
                assert not remaining_pods, (
                    f"{self.name} has {image}, but these pods exist: {remaining_pods}")
        elif run.outcome == "killed":
            self.pending_task = params
        elif phase := run.result.get("rollout", {}).get("phase"):
            assert phase != "complete" or not self._has_closed_template(), (
                f"a controller with a closed template is complete: {run.message}")
            # The phase may be that of the ReplicationController, without its migration.
            if phase == "complete" and not self.is_migrating:
                self.pending_task, self.starting_tasks = None, []
            elif run.result["changed"]:
                self.pending_task = params
        self.was_template_edited = self.was_template_edited and bool(self.pending_task)
        self.was_applied_after_update = self.was_applied_after_update and not (
            run.outcome == "done" and run.result["changed"] and not self.pending_task)
        if self.pending_task is params and run.outcome != "done" and (
                self.budget or params.keys() & {"max_surge", "max_unavailable"}):
            self.may_have_lowered_limit = True
        if (self.pending_task is params
                and (params.get("state") != "rolled_back" or "to_revision" in params)):
            self.starting_tasks.append(params)

    @adds_state_to_failure
    def teardown(self) -> None:
        """Run a task without kills, and assert that only the requested state remains."""
        if self.skips_final_check:
            return
        if self.pending_task:
            run = self._run_with_required_actions(self.pending_task)
            if self.is_migrating and run.outcome == "refused":
                self._execute_suggestions(self.pending_task, run, -1)
            elif self.pending_task or run.outcome != "done":
                run = self._run_with_required_actions({"state": "rolled_back",
                                                       **self._next_name_option()})
            # Both versions are broken, so a user changes the template. Or another client has
            # edited the template.
            is_template_lost = self.was_template_edited and any(
                text in run.message for text in ("no longer exists", "is ambiguous"))
            if self.pending_task and (self.has_used_broken_image or is_template_lost):
                self._execute_suggestions({"state": "rolled_back", **self._next_name_option()},
                                          run, 0)
        last_task = {"name": self.name, "image": "myimage:last"}
        if self.kind == "ReplicaSet" and self._has_deployment_label():
            # The immutable selector contains the deployment label.
            last_task["next_name"] = "last"
        run = self._run_with_required_actions(last_task)
        is_stuck = self.never_worked and self.kind in ("StatefulSet", "DaemonSet")
        may_be_refused = self.has_lost_record or self.was_changed_in_migration or is_stuck
        if may_be_refused and run.outcome == "refused":
            assert "Next:" in run.message, run.message
            return
        assert run.outcome == "done" and not self.pending_task, (
            f"the last task: {run.outcome} {run.message}")
        self.world.wait_until_idle()
        again = self._run(last_task, None)
        assert not again.result["changed"], "a rerun of the last task has changed something"
        self._assert_requested_state("myimage:last")

    def _known_pods(self, pods: list[tuple[str, str, bool]]) -> list[tuple[str, str, bool]]:
        """Return the pods of controllers that a task can know, even without a record."""
        ignored_controllers = (set(self.world.names(self.kind)) - {self.name}
                               if self.has_lost_record else set())
        return [pod for pod in pods if pod[0] not in ignored_controllers]

    def _other_pod_count(self, params: Json, pods: list[tuple[str, str, bool]]) -> int:
        """Return the number of pods of controllers that the task does not know."""
        # A recreated controller, or an update that was never finished, may have left a successor.
        if self.is_recreated or not self.pending_task:
            return len(pods) - len(self._known_pods(pods))
        item = self.world.get(self.kind, self.name)
        if item is None or not self.has_lost_record:
            return 0
        # Only the annotations of a successor with another name still name the controller. Another
        # client may have forged these annotations, so a task ignores the successor.
        annotations = item["metadata"].get("annotations") or {}
        known_names = {self.name, params.get("next_name"), annotations.get(object_meta.PARTNER)}
        unknown_names = {name for name in self.world.names(self.kind)
                         if name not in known_names and not name.startswith(f"{self.name}-")}
        return sum(owner in unknown_names for owner, _image, _is_ready in pods)

    def _assert_requested_state(self, image: str | None = None) -> None:
        """Assert that only the controller with its template and pods remains."""
        controllers = {kind: names for kind in KINDS if (names := self.world.names(kind))}
        if self.has_abandoned_migration and self.kind == "ReplicationController":
            controllers.pop("ReplicaSet", None)
        if self.has_lost_record:  # no task knows the other controllers of the kind
            controllers[self.kind] = [name for name in controllers.get(self.kind, ())
                                      if name == self.name]
        assert controllers == {self.kind: [self.name]}, f"these controllers exist: {controllers}"
        item = t.cast(Json, self.world.get(self.kind, self.name))
        template = item["spec"]["template"]
        size = (item["status"]["desiredNumberScheduled"] if self.kind == "DaemonSet"
                else item["spec"]["replicas"])
        assert size in self.sizes, f"{size} replicas instead of {self.sizes}"
        image = image or _image(item)
        assert _image(item) == image
        if not (self.has_lost_record or self.was_changed_in_migration):
            assert self._restorable_fields() == (self._restorable_fields(self.user_fields)), (
                f"the user's settings are {self._current_user_fields()} instead of "
                f"{self.user_fields}")
        assert "priorityClassName" not in template["spec"], (
            "the template still has a priorityClassName")
        annotations = {key for key in item["metadata"].get("annotations") or {} if "/" in key}
        assert annotations <= {"baton.kubernetes/last-rollout",
                               "deployment.kubernetes.io/revision"}, (
            f"annotations of the update remain: {annotations}")
        assert sorted(self._known_pods(self.world.pods())) == [(self.name, image, True)] * size
        assert (self.initial_autoscaler is None
                or self.world.autoscaler() in (self.initial_autoscaler, None)), (
            "the autoscaler has changed")
        assert not self.world.remaining_leases()


def _image(item: Json) -> str:
    return item["spec"]["template"]["spec"]["containers"][0]["image"]


def steps(result: Json) -> list[tuple[t.Any, ...]]:
    """Return the steps in a form that is equal in check mode and in a real run.

    Each step is a tuple (action, kind, name). Consecutive changes of sizes become one tuple
    ("scale", name, last size) per controller. Left out are the names of ControllerRevisions, which
    depend on a uid, the sizes of a Deployment's ReplicaSets, which are observed at random moments,
    and the annotation of a DaemonSet whose surge has stalled, since no surge stalls in check mode.
    """
    reported_steps: list[tuple[t.Any, ...]] = []
    sizes: dict[str, t.Any] = {}
    for step in [*result["steps"], None]:
        if step and step["action"] == "annotate" and str(step.get("from")).startswith("stalled at"):
            continue
        if step and step["action"] == "scale":
            if "Deployment" in {entry["kind"] for entry in result["steps"]}:
                continue
            sizes[step["name"]] = step["to"]
            continue
        reported_steps += sorted((("scale", name, to) for name, to in sizes.items()))
        sizes = {}
        if step:
            reported_steps.append((step["action"], str(step["kind"]),
                                   "" if step["kind"] == "ControllerRevision" else step["name"]))
    return reported_steps


def _unavailable_limit(params: Json, kind: str, size: int, fields: Json) -> int:
    user_limit = _rolling_update_fields(fields).get("maxUnavailable", 1)
    if kind == "StatefulSet":
        return max(1, _resolve(params.get("max_unavailable", user_limit), size))
    if kind == "DaemonSet":
        if ("max_surge" in params
                or ("max_unavailable" not in params
                    and _resolve(_rolling_update_fields(fields).get("maxSurge", 0), size))):
            return 0
        return max(1, _resolve(params.get("max_unavailable", user_limit), size))
    uses_user_limits = kind == "Deployment" and not params.keys() & {"max_surge", "max_unavailable"}
    value = (_rolling_update_fields(fields)["maxUnavailable"] if uses_user_limits
             else params.get("max_unavailable", 0))
    text = str(value)
    unavailable = size * int(text.rstrip("%")) // 100 if text.endswith("%") else int(text)
    return max(unavailable, 0 if _surge_limit(params, kind, size, fields) else 1)


def _surge_limit(params: Json, kind: str, size: int, fields: Json) -> int:
    if kind == "StatefulSet":
        return 0
    if "keep_old" in params:
        return size
    if kind in USER_SPECS and not params.keys() & {"max_surge", "max_unavailable"}:
        return _resolve(_rolling_update_fields(fields).get("maxSurge", 0), size)
    return _resolve(params.get("max_surge", 0 if kind == "DaemonSet" else 1), size)


def _rolling_update_fields(fields: Json) -> Json:
    return (fields.get("strategy") or fields.get("updateStrategy") or {}).get("rollingUpdate") or {}


def _resolve(value: int | str, size: int) -> int:
    """Return the number, or the percentage of the size, rounded up."""
    text = str(value)
    return -(-size * int(text.rstrip("%")) // 100) if text.endswith("%") else int(text)


def _allowed_disruptions(budget: Json | None, size: int) -> int:
    if not budget or "maxUnavailable" in budget:
        return budget["maxUnavailable"] if budget else size
    return max(0, size - _resolve(budget["minAvailable"], size))

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run random sequences of tasks, each for several controllers (a fleet).

A task is a separate process, so that a kill at a write ends all its threads.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import threading
import traceback
import typing as t
from multiprocessing.connection import Connection as Pipe
from unittest import mock

from history import (
    BROKEN,
    DEATHS,
    IMAGES,
    KINDS,
    SHORT_DEADLINES,
    Json,
    TaskRun,
    adds_state_to_failure,
)
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from kubernetes.client.exceptions import ApiException
from objects import is_ready, owner_uid
from observer import Observer
from real import LIMITS, RESOURCES, RealWorld, clocks_ahead
from writes import intercept_writes

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    parse_request,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run import fleet
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock

#: FLEET_LABEL is on every controller of the fleet. MEMBER_LABEL is on a controller and its pods,
#: with the value Member.label.
FLEET_LABEL, MEMBER_LABEL = "tier", "member"
#: In seconds. So short that even a short task renews its Lease.
RENEW_INTERVAL = 0.3
#: An image whose pods become ready after 3 s.
SLOW = "myimage:v7-slow"
#: Parts of messages about another task on the same controller. No history may cause them.
OTHER_TASK_TEXTS = ("took over", "already working on it")


class Member(t.NamedTuple):
    kind: str
    name: str

    @property
    def label(self) -> str:
        return f"{self.kind}-{self.name}".lower()


class FleetObserver(Observer):
    def __init__(self, world: FleetWorld) -> None:
        super().__init__(world.namespace)
        self.min_ready_by_label: dict[str, int] = {}

    def _record_pod(self, event_type: str, pod: Json) -> None:
        super()._record_pod(event_type, pod)
        if self._is_measuring:
            ready_labels = [item["metadata"]["labels"].get(MEMBER_LABEL, "")
                            for item in self._pods.values() if is_ready(item)]
            label = pod["metadata"]["labels"].get(MEMBER_LABEL, "")
            self.min_ready_by_label[label] = min(self.min_ready_by_label.get(label, 10**9),
                                                 ready_labels.count(label))


class FleetWorld(RealWorld):
    def create_all(self, members: t.Mapping[Member, int]) -> None:
        self._kinds = tuple(RESOURCES)
        if any(member.kind == "DaemonSet" for member in members):
            self._nodes = self.namespace.add_nodes(3)
            self._label_nodes(2)
        for member, replicas in members.items():
            body = self._manifest(member.kind, replicas)
            labels = {"app": member.name, MEMBER_LABEL: member.label}
            body["metadata"] = {"name": member.name, "labels": {**labels, FLEET_LABEL: "fleet"}}
            body["spec"]["selector"] = (labels if member.kind == "ReplicationController"
                                        else {"matchLabels": labels})
            body["spec"]["template"]["metadata"]["labels"] = labels
            self.namespace.call("POST", RESOURCES[member.kind].format(self.namespace.name), body)
        self.wait_until_idle()

    def pods_of(self, member: Member) -> list[tuple[str, bool]]:
        return [(pod["spec"]["containers"][0]["image"], is_ready(pod)) for pod in self._live_pods()
                if pod["metadata"]["labels"].get(MEMBER_LABEL) == member.label and owner_uid(pod)]

    def roll(self, params: Json, death: tuple[int, bool] | None, floors: t.Mapping[str, int],
             has_other_writer: bool) -> TaskRun:
        """Run a task for several controllers, and assert that enough pods of each remain ready.

        floors: the required number of ready pods by Member.label.
        """
        context = multiprocessing.get_context("fork")
        parent_end, child_end = context.Pipe()
        task = with_kinds({
            **{option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}, **LIMITS,
            "namespace": self.namespace.name, **params})
        arguments = (child_end, self.namespace.kubeconfig, task, death, self._clock_ahead)
        # fork before the threads of the observer start
        process = context.Process(target=_run_and_exit, args=arguments)
        process.start()
        child_end.close()
        other_writes = (self._writes_of_another_client() if has_other_writer
                        else contextlib.nullcontext())
        with other_writes, FleetObserver(self) as observer:
            parent_end.send("begin")
            try:
                run = parent_end.recv()
            except EOFError:
                run = TaskRun("killed")
            process.join()
        for label, floor in floors.items():
            min_ready = observer.min_ready_by_label.get(label, floor)
            assert min_ready >= floor, (
                f"only {min_ready} pods of {label} were ready instead of {floor}")
        return run

    @contextlib.contextmanager
    def _writes_of_another_client(self) -> t.Iterator[None]:
        """Annotate all controllers and ready pods repeatedly.

        A write to an unready pod would restart the delay after which KWOK makes it ready.
        """
        stop = threading.Event()

        def write() -> None:
            for number in itertools.count():
                paths = [self._path(kind, item["metadata"]["name"]) for kind in RESOURCES
                         for item in self._items(kind)]
                paths += [self.namespace.path("pods", pod["metadata"]["name"])
                          for pod in self._live_pods() if is_ready(pod)]
                for path in paths:
                    if stop.wait(0.02):
                        return
                    body = {"metadata": {"annotations": {"tests.example.com/load": str(number)}}}
                    with contextlib.suppress(ApiException):  # deleted in the meantime
                        self.namespace.call("PATCH", path, body, "application/merge-patch+json")

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _run_and_exit(pipe: Pipe, kubeconfig: str, params: Json, death: tuple[int, bool] | None,
                  clock_ahead: float) -> t.NoReturn:
    try:
        pipe.recv()
        with clocks_ahead(clock_ahead), mock.patch.object(
                fleet, "INTERVALS", fleet.INTERVALS._replace(renew=RENEW_INTERVAL)):
            pipe.send(_run_fleet(kubeconfig, params, death))
    finally:
        os._exit(0)


def _run_fleet(kubeconfig: str, params: Json, death: tuple[int, bool] | None) -> TaskRun:
    try:
        selected_fleet = t.cast(fleet.Fleet, fleet.Fleet.from_params(params))
        groups = {}
        for kind in selected_fleet.kinds:
            flow = choose(parse_request({**params, "name": "any", "names": None, "kind": kind}))
            gateway = KubernetesGateway(Connection({"kubeconfig": kubeconfig}, {}),
                                        params["namespace"], flow.watched_kinds, False)
            groups[fleet.Place(params["namespace"], kind)] = fleet.Group(flow, gateway)
        if death:
            _kill_at_write(groups, *death)
        requests = selected_fleet.requests(params, groups)
        result = fleet.run(selected_fleet, requests, groups, Clock())
    except RolloutError as error:
        return TaskRun("refused", error.progress, error.message)
    except Exception:
        return TaskRun("crashed", message=traceback.format_exc())
    return TaskRun("done", result, result["msg"])


def _kill_at_write(groups: fleet.Groups, number: int, is_after: bool) -> None:
    """Exit before or after the write with this number, counted over all threads."""
    count = itertools.count(1)

    def write_or_exit(_what: t.Any, write: t.Callable[[], bool]) -> bool:
        is_chosen = next(count) == number
        if is_chosen and not is_after:
            os._exit(9)
        result = write()
        if is_chosen:
            os._exit(9)
        return result

    for group in groups.values():
        intercept_writes(group.gateway, write_or_exit)


class Fleets(RuleBasedStateMachine):
    world: t.Any
    #: True before begin() and during a task, so that teardown checks nothing after a failure.
    skips_final_check = True

    @initialize(members=st.lists(st.tuples(st.sampled_from(KINDS),
                                           st.sampled_from(["foo", "bar", "baz"])), min_size=2,
                                 max_size=4, unique=True),
                replicas=st.lists(st.integers(1, 3), min_size=4, max_size=4),
                ahead=st.sampled_from([0, 0, 100, -100]))
    def begin(self, members: list[tuple[str, str]], replicas: list[int], ahead: float) -> None:
        self.members = [Member(*pair) for pair in members]
        sizes = {member: 2 if member.kind == "DaemonSet" else size
                 for member, size in zip(self.members, replicas, strict=False)}
        #: Several sizes are acceptable if a member was scaled while a task was pending.
        self.sizes = {member: {size} for member, size in sizes.items()}
        #: The options of the last task, unless its update is complete.
        self.pending_task: Json | None = None
        self.world.configure(ahead, pods_end_slowly=False)
        self.world.create_all(sizes)
        self.skips_final_check = False

    @rule(image=st.one_of(IMAGES, st.just(SLOW)), concurrency=st.integers(1, 4), death=DEATHS,
          is_loaded=st.booleans(),
          max_failures=st.sampled_from(["0", "1", "100%"]),
          pause=st.sampled_from([{}, {}, {"pause_at": 1}]))
    def update(self, image: str, concurrency: int, death: tuple[int, bool] | None, is_loaded: bool,
               max_failures: str, pause: Json) -> None:
        self._roll({"image": image, "concurrency": concurrency, "max_failures": max_failures,
                    **pause}, death, is_loaded)

    @rule(concurrency=st.integers(1, 4), max_failures=st.sampled_from(["0", "100%"]),
          on_failure=st.sampled_from(["stop", "rollback"]))
    def update_to_what_never_works(self, concurrency: int, max_failures: str,
                                   on_failure: str) -> None:
        self._roll({"image": BROKEN, "concurrency": concurrency, "max_failures": max_failures,
                    "on_failure": on_failure, **SHORT_DEADLINES}, None)

    @rule(death=DEATHS, concurrency=st.integers(1, 4))
    def roll_back(self, death: tuple[int, bool] | None, concurrency: int) -> None:
        self._roll({"state": "rolled_back", "concurrency": concurrency}, death)

    @precondition(lambda self: self.pending_task)
    @rule(death=DEATHS, is_loaded=st.booleans())
    def same_task_again(self, death: tuple[int, bool] | None, is_loaded: bool) -> None:
        self._roll(t.cast(Json, self.pending_task), death, is_loaded)

    @rule(which=st.integers(0, 3), replicas=st.integers(1, 3))
    def scale(self, which: int, replicas: int) -> None:
        member = self.members[which % len(self.members)]
        if member.kind != "DaemonSet":
            self.sizes[member] = {*(self.sizes[member] if self.pending_task else ()), replicas}
            self.world.scale(*member, replicas)

    @rule(index=st.integers(0, 9))
    def delete_pod(self, index: int) -> None:
        self.world.delete_pod(index)

    @adds_state_to_failure
    def _roll(self, params: Json, death: tuple[int, bool] | None,
              is_loaded: bool = False) -> TaskRun:
        params = {"label_selectors": [f"{FLEET_LABEL}=fleet"], "kind": list(KINDS), **params}
        self.skips_final_check = True  # until the task has succeeded
        self.world.wait_until_idle()
        floors = {member.label: min([*self.sizes[member],
                                     sum(ready for _image, ready in self.world.pods_of(member))])
                  - (member.kind in ("StatefulSet", "DaemonSet")) for member in self.members}
        run = self.world.roll(params, death, floors, is_loaded)
        note(f"  {run.outcome} {run.message}")
        assert run.outcome != "crashed", run.message
        assert not any(text in run.message for text in OTHER_TASK_TEXTS), run.message
        previous_task, self.pending_task = self.pending_task, params
        if run.outcome != "killed":
            results = run.result.get("results", [])
            assert len(results) == len(self.members), (
                f"{len(results)} results for {len(self.members)} controllers")
            assert any(result["failed"] for result in results) == (run.outcome == "refused"), (
                run.message)
            # A skipped controller has no phase: a killed task may have begun its update.
            is_complete = all(result.get("rollout", {}).get("phase") == "complete"
                              for result in results)
            if is_complete:
                self.pending_task = None
            if run.outcome == "refused" and not (previous_task or params.get("image") == BROKEN):
                assert is_loaded and "keeps changing" in run.message, run.message
            if run.outcome == "done" and is_complete and "image" in params:
                self._assert_image(params["image"])
        self.skips_final_check = False
        return run

    def _assert_image(self, image: str) -> None:
        self.world.wait_until_idle()
        for member in self.members:
            pods = self.world.pods_of(member)
            assert len(pods) in self.sizes[member], (
                f"{len(pods)} pods of {member} instead of {self.sizes[member]}")
            assert set(pods) <= {(image, True)}, f"{member} has {pods}"

    @adds_state_to_failure
    def teardown(self) -> None:
        """Run tasks without kills, and assert that only the requested state remains."""
        if self.skips_final_check:
            return
        if self.pending_task:
            self._roll({**self.pending_task, "max_failures": "100%"}, None)
        if self.pending_task:
            self._roll({"state": "rolled_back", "max_failures": "100%"}, None)
        self.pending_task = None
        run = self._roll({"image": "myimage:last", "concurrency": 4}, None)
        assert run.outcome == "done", run.message
        rerun = self._roll({"image": "myimage:last"}, None)
        assert not rerun.result["changed"], "a rerun of the last task has changed something"
        for kind in KINDS:
            names = sorted(member.name for member in self.members if member.kind == kind)
            assert self.world.names(kind) == names, (
                f"{kind}: {self.world.names(kind)} instead of {names}")
        for member in self.members:
            item = self.world.get(*member)
            annotations = {key for key in item["metadata"].get("annotations") or {}
                           if "baton.kubernetes" in key}
            assert annotations <= {"baton.kubernetes/last-rollout"}, (
                f"annotations of the update remain on {member}: {annotations}")
            assert "priorityClassName" not in item["spec"]["template"]["spec"], (
                f"the template of {member} still has a priorityClassName")
        assert not self.world.remaining_leases()

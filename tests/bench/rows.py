# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the comparisons.

To add a comparison, write a function that returns the rows of its table, and add it to ROWS.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import binaries
import embedded
import machine
from ansible_runs import Cost
from external import external_kubeconfig
from large_inventory import large_inventory
from long_update import long_update
from measuring import Bench, differences, measure_alternately, new_versions
from peers import add_kubernetes_core
from playground import FleetRollout, HandoverTimes, Json, Playground, Rollout, playgrounds
from proxy import Proxy
from slices import slices
from table import Row, progress

KUBECTL = "kubectl-1.17"
#: The cluster with the controller manager's default limit of 20 requests per second.
THROTTLED_CLUSTER = embedded.checkout_cluster_name("bench-throttled")

#: Turns of the role's loop for three stages with a check each.
ROLE_TURNS = 8

#: Seconds that are added to each request to another region.
LATENCY = 0.1


def converged_task(bench: Bench) -> list[Row]:
    """Compare a task without changes with the same task of kubernetes.core.k8s.

    The time of `ansible -m ping` is subtracted from both.
    """
    peer = add_kubernetes_core(bench.ansible)
    with Playground(bench.kubeconfig) as playground:
        definitions = [create(3, "myimage:v1")
                       for create in (playground.create_rc, playground.create_deployment)]
        playground.wait_until_ready()
        return [row for definition in definitions
                for row in _converged_rows(bench, playground, peer, definition)]


def _converged_rows(bench: Bench, playground: Playground, peer: str, definition: Json) -> list[Row]:
    run, kubeconfig = bench.ansible.run, bench.kubeconfig
    kind, metadata = definition["kind"], definition["metadata"]
    task = {"kind": kind, "name": metadata["name"], "namespace": metadata["namespace"],
            "image": "myimage:v1"}
    ping, ours, theirs, converged_times = measure_alternately(
        bench,
        f"converged task, {kind}",
        lambda: run("ping", changed=False),
        lambda: run("baton.kubernetes.rolling_update", changed=False, kubeconfig=kubeconfig,
                    **task),
        lambda: run("kubernetes.core.k8s", changed=False, kubeconfig=kubeconfig,
                    definition=definition),
        lambda: playground.measure_converged_task(**task),
    )

    def above_ping(runs: list[Cost], field: str) -> list[float]:
        base = median(getattr(run, field) for run in ping)
        return [getattr(run, field) - base for run in runs]

    what = (f"a converged task, {kind}, above the {median(run.wall for run in ping):.2f} s of "
            f"`ansible -m ping`")
    name = f"`k8s` of {peer}"
    return [
        Row(f"{what}: wall time", above_ping(ours, "wall"), name, above_ping(theirs, "wall"),
            ratio_goal=0.4),
        Row(f"{what}: processor time", above_ping(ours, "cpu"), name, above_ping(theirs, "cpu")),
        Row("of that, reading the kubeconfig", [times.connection for times in converged_times]),
        Row("of that, the requests", [times.request for times in converged_times]),
        Row("of that, deciding", [times.decision for times in converged_times]),
    ]


def rollout_of_100(bench: Bench) -> list[Row]:
    """Compare an update of 100 pods with an update by the Deployment controller."""
    pods, surge = 100, "25%"
    with Playground(bench.kubeconfig) as playground:
        playground.create_rc(pods, "myimage:v1")
        playground.create_deployment(pods, "myimage:v1", surge)
        playground.wait_until_ready()
        task = {"name": "foo", "namespace": playground.namespace, "max_surge": surge}
        versions = new_versions()

        def roll_by_ansible() -> float:
            arguments = {**task, "image": next(versions), "kubeconfig": playground.kubeconfig}
            return bench.ansible.run("baton.kubernetes.rolling_update", changed=True,
                                     **arguments).wall

        ours_with_requests, ansible_seconds, pings, theirs_with_requests = measure_alternately(
            bench,
            "rollout of 100",
            lambda: playground.count_all_requests(
                lambda: playground.roll(**task, image=next(versions))),
            roll_by_ansible,
            lambda: bench.ansible.run("ping", changed=False).wall,
            lambda: playground.count_all_requests(
                lambda: playground.roll_deployments(next(versions))),
        )
    ours = [run for run, _requests in ours_with_requests]
    theirs = [run for run, _requests in theirs_with_requests]
    steps = [run.steps for run in ours]
    what, peer, their_seconds = f"{pods} pods, surge {surge}", "Deployment controller", [
        run.seconds for run in theirs]
    rollout_seconds = median(run.seconds for run in ours)
    return [
        Row(f"{what}: until every pod is new", [run.until_new for run in ours], peer, their_seconds,
            ratio_goal=1.1),
        Row(f"{what}: with the handover", [run.seconds for run in ours], peer, their_seconds,
            ratio_goal=1.3),
        Row(f"{what}: `ansible` from start to end", ansible_seconds, peer, their_seconds),
        Row("of that, beyond the rollout itself and `ansible -m ping`",
            [seconds - rollout_seconds - median(pings) for seconds in ansible_seconds],
            max_value=0.3),
        Row(f"{what}: requests per replaced pod", [run.requests / pods for run in ours], peer,
            [run.requests / pods for run in theirs], unit="", max_value=1),
        _all_requests(what, pods, ours_with_requests, peer, theirs_with_requests),
        Row(f"{what}: a step",
            [run.seconds / count for run, count in zip(ours, steps, strict=True)]),
        Row("of that, waiting for answers to requests",
            [run.waiting_seconds / count for run, count in zip(ours, steps, strict=True)]),
        Row("of that, processor time of the task",
            [run.cpu_seconds / count for run, count in zip(ours, steps, strict=True)]),
    ]


def _all_requests(what: str, pods: int, ours: list[tuple[Rollout, float]], peer: str,
                  theirs: list[tuple[Rollout, float]]) -> Row:
    return Row(f"{what}: requests of all clients per replaced pod",
               [requests / pods for _rolled, requests in ours], peer,
               [requests / pods for _rolled, requests in theirs], unit="")


def real_kubelet(bench: Bench) -> list[Row]:
    """Count the requests of all clients per replaced pod, on a node with a real kubelet."""
    pods, surge = 20, "25%"
    what, peer = f"{pods} pods on a real kubelet, surge {surge}", "Deployment controller"
    if why := "KUBECONFIG names the cluster" if external_kubeconfig() else machine.hindrance():
        progress(f"real-kubelet: SKIPPED, {why}")
        return [Row(f"{what}: SKIPPED, {why}", [], peer)]
    machine.install()
    # a real node has only a few images
    images = itertools.cycle(f"localhost/web:v{version}" for version in (1, 2, 3))
    name = embedded.checkout_cluster_name("bench-real")
    with (embedded.up(name, with_real_node=True) as cluster,
          Playground(cluster.kubeconfig) as playground):
        first = next(images)
        playground.create_rc(pods, first)
        playground.create_deployment(pods, first, surge)
        playground.wait_until_ready()
        task = {"name": "foo", "namespace": playground.namespace, "max_surge": surge}
        ours, theirs = measure_alternately(
            bench.with_fewer_runs(),
            what,
            lambda: playground.count_all_requests(
                lambda: playground.roll(**task, image=next(images))),
            lambda: playground.count_all_requests(
                lambda: playground.roll_deployments(next(images))),
        )
    return [
        Row(f"{what}: requests per replaced pod", [run.requests / pods for run, _all in ours], peer,
            [run.requests / pods for run, _all in theirs], unit=""),
        _all_requests(what, pods, ours, peer, theirs),
    ]


def deployment_of_100(bench: Bench) -> list[Row]:
    """Compare a task on a Deployment with a patch and a watch."""
    pods = 100
    with Playground(bench.kubeconfig) as ours, Playground(bench.kubeconfig) as peers:
        for playground in (ours, peers):
            playground.create_deployment(pods, "myimage:v1")
            playground.wait_until_ready()
        task = {"kind": "Deployment", "name": "bar", "namespace": ours.namespace}
        versions = new_versions()
        our_runs, their_runs = measure_alternately(
            bench,
            "Deployment of 100",
            lambda: ours.roll(**task, image=next(versions)),
            lambda: peers.roll_deployments(next(versions)),
        )
    what, peer = f"a Deployment of {pods} pods, surge 25%", "a patch and a watch"
    return [
        Row(what, [run.seconds for run in our_runs], peer, [run.seconds for run in their_runs],
            ratio_goal=1.1),
        Row(f"{what}: the task's requests per replaced pod",
            [run.requests / pods for run in our_runs], unit="", max_value=1),
        Row(f"{what}: processor time of the task", [run.cpu_seconds for run in our_runs]),
    ]


def stateful_sets(bench: Bench) -> list[Row]:
    """Measure updates of StatefulSets, and rollbacks while a pod is stuck."""
    return [row for pods in (20, 100) for row in _stateful_set(bench, pods)]


def _stateful_set(bench: Bench, pods: int) -> list[Row]:
    what, task = f"a StatefulSet of {pods} pods", {"kind": "StatefulSet", "name": "baz"}
    with _three_playgrounds(bench) as (ours, peers, kubectl_playground):
        for playground in (ours, peers, kubectl_playground):
            playground.create_stateful_set(pods, "myimage:v1")
            playground.wait_until_ready()

        def roll_back() -> Rollout:
            ours.make_stuck()
            return ours.roll(**task, namespace=ours.namespace, state="rolled_back")

        rows, (rollbacks,) = _compare_with_patch_and_kubectl(
            bench, what, pods, ours, kubectl_playground, "statefulset/baz", task,
            peers.roll_stateful_sets, roll_back)
    return [*rows,
            Row(f"{what}: `rolled_back` of a stuck update, which the cluster never ends",
                [run.seconds for run in rollbacks])]


def daemon_sets(bench: Bench) -> list[Row]:
    """Measure complete updates of DaemonSets, and updates up to a pause."""
    return [row for nodes in (20, 100) for row in _daemon_set(bench, nodes)]


def _daemon_set(bench: Bench, nodes: int) -> list[Row]:
    what, task = f"a DaemonSet on {nodes} nodes", {"kind": "DaemonSet", "name": "qux"}
    pods_at_pause = 5
    with _three_playgrounds(bench) as (ours, peers, kubectl_playground):
        for playground in (ours, peers, kubectl_playground):
            playground.create_daemon_set(nodes, "myimage:v1")
        versions = (f"myimage:p{number}" for number in itertools.count(1))

        def roll_to_pause() -> Rollout:
            image = next(versions)
            paused = ours.roll(**task, namespace=ours.namespace, image=image,
                               pause_at=str(pods_at_pause))
            ours.roll(**task, namespace=ours.namespace, image=image)
            return paused

        rows, (pauses,) = _compare_with_patch_and_kubectl(
            bench, what, nodes, ours, kubectl_playground, "daemonset/qux", task,
            peers.roll_daemon_sets, roll_to_pause)
    return [
        *rows,
        Row(f"{what}: to a pause with {pods_at_pause} new pods", [run.seconds for run in pauses]),
        Row(f"{what}: to that pause, the task's requests per replaced pod",
            [run.requests / pods_at_pause for run in pauses], unit=""),
    ]


@contextlib.contextmanager
def _three_playgrounds(bench: Bench) -> Iterator[list[Playground]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Playground(bench.kubeconfig)) for _number in range(3)]


def _compare_with_patch_and_kubectl(bench: Bench, what: str, pods: int, ours: Playground,
                                    kubectl_playground: Playground, resource: str,
                                    task: Json, patch: Callable[[str], Rollout],
                                    *more_actions: Callable[[], Rollout]) -> tuple[list[Row], list]:
    """Compare a task with a patch that is followed by a watch, and with kubectl.

    resource: such as "statefulset/baz". task: the options without namespace and image.

    Return the rows, and the list of results of each action in `more_actions`.
    """
    program, versions = binaries.provide([KUBECTL])[KUBECTL], new_versions()
    our_runs, patched, by_kubectl, *rest = measure_alternately(
        bench,
        what,
        lambda: ours.roll(**task, namespace=ours.namespace, image=next(versions)),
        lambda: patch(next(versions)),
        lambda: kubectl_playground.set_image_by_kubectl(program, resource, next(versions)),
        *more_actions,
    )
    seconds = [run.seconds for run in our_runs]
    return [
        Row(what, seconds, "a patch and a watch", [run.seconds for run in patched],
            ratio_goal=1.05),
        Row(what, seconds, f"{KUBECTL} set image, rollout status",
            [run.seconds for run in by_kubectl], ratio_goal=1.05),
        Row("of that, until its first write is done", [run.until_first_write for run in our_runs]),
        Row("of that, processor time of the task", [run.cpu_seconds for run in our_runs]),
        Row(f"{what}: the task's requests per replaced pod",
            [run.requests / pods for run in our_runs], unit="", max_value=1),
    ], rest


def throttled(bench: Bench) -> list[Row]:
    """Compare rollouts while the controller manager sends at most 20 requests per second."""
    pods, surge = 100, "25%"
    with (embedded.up(THROTTLED_CLUSTER, controller_manager_qps=20) as cluster,
          Playground(cluster.kubeconfig) as ours,
          Playground(cluster.kubeconfig) as peers):
        ours.create_rc(pods, "myimage:v1")
        for playground in (ours, peers):
            playground.create_deployment(pods, "myimage:v1", surge)
            playground.wait_until_ready()
        ours.create_rc(pods, "myimage:v1", "shop-1")
        ours.wait_until_ready()
        versions = new_versions()
        names = itertools.pairwise(f"shop-{number}" for number in itertools.count(1))
        task = {"namespace": ours.namespace, "max_surge": surge}

        def roll_to_another_name() -> Rollout:
            name, next_name = next(names)
            return ours.roll(name=name, next_name=next_name, **task, image=next(versions))

        handover_runs, renaming_runs, deployment_runs, theirs = measure_alternately(
            bench.with_fewer_runs(),
            "rollout of 100, 20 requests/s",
            lambda: ours.roll(name="foo", **task, image=next(versions)),
            roll_to_another_name,
            lambda: ours.roll(kind="Deployment", name="bar", **task, image=next(versions)),
            lambda: peers.roll_deployments(next(versions)),
        )
    what, seconds = f"{pods} pods, surge {surge}, controller manager with 20 requests/s", [
        run.seconds for run in theirs]
    return [
        Row(f"{what}: with the handover", [run.seconds for run in handover_runs],
            "Deployment controller", seconds, ratio_goal=1.2),
        Row(f"{what}: with next_name, without a handover", [run.seconds for run in renaming_runs],
            "Deployment controller", seconds,
            ratio_goal=1.1),
        Row(f"{what}: a task for a Deployment", [run.seconds for run in deployment_runs],
            "a patch and a watch", seconds,
            ratio_goal=1.1),
    ]


def slow_line(bench: Bench) -> list[Row]:
    """Compare updates of 20 pods with those of a Deployment, at 300 ms per request."""
    return [row for surge, min_ready_seconds, max_requests in ((1, 0, 50), ("25%", 0, 20),
                                                               (1, 3, None))
            for row in _slow_line(bench.with_fewer_runs(), surge, min_ready_seconds, max_requests)]


def _slow_line(bench: Bench, surge: int | str, min_ready_seconds: int,
               max_requests: int | None) -> list[Row]:
    pods = 20
    with (Playground(bench.kubeconfig, has_slow_connection=True) as ours,
          Playground(bench.kubeconfig, has_slow_connection=True) as peers):
        ours.create_rc(pods, "myimage:v1", minReadySeconds=min_ready_seconds)
        peers.create_deployment(pods, "myimage:v1", surge, minReadySeconds=min_ready_seconds)
        for playground in (ours, peers):
            playground.wait_until_ready()
        versions = new_versions()
        task = {"name": "foo", "namespace": ours.namespace, "max_surge": str(surge)}
        what = (f"{pods} pods, surge {surge}, "
                f"{f'{min_ready_seconds} s' if min_ready_seconds else 'at once'} until ready, "
                f"300 ms a request")
        our_runs, their_runs = measure_alternately(
            bench,
            what,
            lambda: ours.roll(**task, image=next(versions)),
            lambda: peers.roll_deployments(next(versions)),
        )
    goal = 1.2 if min_ready_seconds else None
    return [
        Row(
            what,
            [run.seconds for run in our_runs],
            "Deployment controller",
            [run.seconds for run in their_runs],
            ratio_goal=goal,
        ),
        Row(
            f"{what}: sequential requests",
            [run.sequential_requests for run in our_runs],
            unit="",
            max_value=max_requests,
        ),
    ]


def kubectl(bench: Bench) -> list[Row]:
    """Compare an update of 50 pods, one at a time, with kubectl 1.17 and with a Deployment."""
    pods = 50
    program = binaries.provide([KUBECTL])[KUBECTL]
    with (Playground(bench.kubeconfig) as ours, Playground(bench.kubeconfig) as theirs,
          Playground(bench.kubeconfig) as deployments):
        deployments.create_deployment(pods, "myimage:v1", surge=1)
        for playground in (ours, theirs):
            playground.create_rc(pods, "myimage:v1")
        for playground in (ours, theirs, deployments):
            playground.wait_until_ready()
        versions = new_versions()
        ours_with_requests, theirs_with_requests, deployments_with_requests = measure_alternately(
            bench.with_fewer_runs(),
            f"{pods} pods by {KUBECTL}",
            lambda: ours.count_all_requests(
                lambda: ours.roll(name="foo", namespace=ours.namespace, image=next(versions))),
            lambda: theirs.count_all_requests(
                lambda: theirs.rolling_update_by_kubectl(program, next(versions))),
            lambda: deployments.count_all_requests(
                lambda: deployments.roll_deployments(next(versions))),
        )
    our_runs = [run for run, _requests in ours_with_requests]
    their_runs = [run for run, _requests in theirs_with_requests]
    what, peer = f"{pods} pods, surge 1", f"{KUBECTL} rolling-update --poll-interval=100ms"
    return [
        Row(what, [run.seconds for run in our_runs], peer, [run.seconds for run in their_runs]),
        Row(f"{what}: requests per replaced pod", [run.requests / pods for run in our_runs], peer,
            [run.requests / pods for run in their_runs], unit="", ratio_goal=0.05),
        _all_requests(what, pods, ours_with_requests, peer, theirs_with_requests),
        _all_requests(what, pods, ours_with_requests, "Deployment controller",
                      deployments_with_requests),
    ]


def handover(bench: Bench, pods: int) -> list[Row]:
    """Measure a handover that begins after every old pod has been deleted."""
    return _handover(bench.with_fewer_runs(), bench.kubeconfig, pods, f"handover of {pods} pods",
                     {1000: 4}.get(pods))


def handover_throttled(bench: Bench) -> list[Row]:
    """Measure a handover with a controller manager that sends at most 20 requests per second."""
    pods = 500
    with embedded.up(THROTTLED_CLUSTER, controller_manager_qps=20) as cluster:
        return _handover(bench.with_fewer_runs(), cluster.kubeconfig, pods,
                         f"handover of {pods} pods, controller manager with 20 requests/s", 3)


def _handover(bench: Bench, kubeconfig: str, pods: int, what: str,
              max_seconds: float | None) -> list[Row]:
    """Measure a handover. max_seconds: the goal, or None for no goal."""
    versions = new_versions()
    with Playground(kubeconfig) as playground:
        playground.create_rc(pods, "myimage:v1")
        playground.wait_until_ready()
        (runs,) = measure_alternately(
            bench, what, lambda: playground.roll_and_hand_over(pods, next(versions)))
    return _handover_rows(what, runs, max_seconds)


def _handover_rows(what: str, runs: list[HandoverTimes], max_seconds: float | None) -> list[Row]:
    return [
        Row(f"{what}: from closed to open", [run.closed_seconds for run in runs],
            "the same patches alone", [run.bare_patches for run in runs],
            ratio_goal=1.5 if max_seconds else None, max_value=max_seconds),
        Row(f"{what}: from closed to open", [run.closed_seconds for run in runs],
            "the same requests alone", [run.bare_requests for run in runs], ratio_goal=1.1),
        Row("of that, until every pod is reparented",
            [run.until_reparented for run in runs]),
        Row(f"{what}: pods without a controller", [run.orphan_count for run in runs],
            unit="", max_value=0),
        Row(f"{what}: surplus pods created", [run.surplus for run in runs],
            unit="", max_value=0),
    ]


def sizes(bench: Bench) -> list[Row]:
    """Measure the requests of an update in one step with different numbers of pods."""
    rows: list[Row] = []
    runs_by_pods: dict[int, list[Rollout]] = {}
    for pods in (4, 10, 100, 1000):
        runs, created = _update_in_one_step(bench, pods)
        runs_by_pods[pods] = runs
        fewer = pods // 10 if pods // 10 in runs_by_pods else 4
        what = f"{pods} pods in one step"
        rows += [
            Row(f"{what}: requests per step", [run.requests / run.steps for run in runs], "4 pods",
                [run.requests / run.steps for run in runs_by_pods[4]], unit=""),
            Row(f"{what}: bytes read per step", [run.bytes / run.steps for run in runs],
                f"{fewer} pods",
                [run.bytes / run.steps for run in runs_by_pods[fewer]], unit="",
                ratio_goal=5 if pods == 1000 else None),
            Row("of that, answers to the patches of the handover",
                [run.patch_bytes / run.steps for run in runs], unit=""),
            Row(f"{what}: the handover, from closed to open", [run.closed_seconds for run in runs]),
            Row(f"{what}: surplus pods created", [count - pods for count in created],
                unit="", max_value=0),
        ]
    return rows


def _update_in_one_step(bench: Bench, pods: int) -> tuple[list[Rollout], list[int]]:
    """Update `pods` pods in one step, several times.

    Return the measurements, and the number of created pods of each update.
    """
    versions = new_versions()
    with Playground(bench.kubeconfig) as playground:
        playground.create_rc(pods, "myimage:v1")
        playground.wait_until_ready()

        def roll() -> tuple[Rollout, int]:
            before = playground.resource_version()
            rolled = playground.roll(name="foo", namespace=playground.namespace,
                                     image=next(versions), max_surge="100%",
                                     max_unavailable="100%")
            return rolled, playground.count_pods_created_since(before)

        (runs,) = measure_alternately(bench.with_fewer_runs(), f"update of {pods} pods", roll)
    return [rolled for rolled, _created in runs], [created for _rolled, created in runs]


def sizes_of_deployments(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    first: list[Rollout] = []
    for pods in (4, 10, 100, 1000):
        runs = _deployment_rollouts(bench, pods)
        first = first or runs
        what = f"a Deployment of {pods} pods"
        rows += [
            Row(f"{what}: requests", [run.requests for run in runs], "4 pods",
                [run.requests for run in first], unit=""),
            Row(f"{what}: bytes read per pod", [run.bytes / pods for run in runs], "4 pods",
                [run.bytes / 4 for run in first], unit=""),
        ]
    return rows


def _deployment_rollouts(bench: Bench, pods: int) -> list[Rollout]:
    versions = new_versions()
    with Playground(bench.kubeconfig) as playground:
        playground.create_deployment(pods, "myimage:v1")
        playground.wait_until_ready()
        task = {"kind": "Deployment", "name": "bar", "namespace": playground.namespace}
        (runs,) = measure_alternately(bench.with_fewer_runs(), f"Deployment of {pods} pods",
                                      lambda: playground.roll(**task, image=next(versions)))
    return runs


def fleet(bench: Bench) -> list[Row]:
    """Compare a task for 100 controllers with a task for one, and with 100 Deployments."""
    return [*_fleet_of_100(bench, "ReplicationController"), *_fleet_of_100(bench, "Deployment")]


def _fleet_of_100(bench: Bench, kind: str) -> list[Row]:
    """Compare the time for 100 controllers with that for one controller plus 100 Deployments."""
    count, pods = 100, 3
    many, single_runs, theirs = _fleet(bench, kind, count, pods, concurrency=count)
    base_seconds = [run.seconds + peer_run.seconds
                    for run, peer_run in zip(single_runs, theirs, strict=True)]
    what = f"{count} {kind}s of {pods} pods in one task"
    return [
        Row(f"{what}", [run.seconds for run in many],
            "a task for one controller + the Deployment controller", base_seconds, ratio_goal=1.5),
        Row(f"{what}: peak memory", [run.memory for run in many], "a task for one controller",
            [run.memory for run in single_runs], unit="MiB",
            max_value=150),
        Row(f"{what}: requests per {kind}", [run.requests / count for run in many],
            "a task for one controller", [run.requests for run in single_runs], unit=""),
    ]


def large_fleet(bench: Bench) -> list[Row]:
    """Compare a task for 10 to 1,000 ReplicationControllers with as many Deployments."""
    kind, rows, processors = "ReplicationController", [], os.cpu_count() or 1
    few = None
    for count in (10, 100, 1000):
        many, _single_runs, theirs = _fleet(bench, kind, count, pods=2, concurrency=50)
        few, what = few or many, f"{count} {kind}s of 2 pods in one task, 50 at a time"
        is_largest = count == 1000
        rows += [
            Row(what, [run.seconds for run in many], "Deployment controller",
                [run.seconds for run in theirs],
                ratio_goal=1.3 if is_largest else None),
            Row("of that, processor time of the task", [run.cpu_seconds for run in many],
                "as many reads of one of them", [run.reads_cpu_seconds for run in many]),
            Row("of that, processor time of the cluster", [run.cluster_cpu_seconds for run in many],
                "Deployment controller", [run.cluster_cpu_seconds for run in theirs]),
            Row(f"of that, processor time of the cluster, spread over {processors} processors",
                [run.cluster_cpu_seconds / processors for run in many],
                "Deployment controller", [run.seconds for run in theirs]),
            Row("of that, processor time of the cluster and of the reads, "
                f"spread over {processors} processors",
                [(run.cluster_cpu_seconds + run.reads_cpu_seconds) / processors for run in many],
                "Deployment controller", [run.seconds for run in theirs]),
            Row(f"{what}: peak memory", [run.memory for run in many], unit="MiB",
                max_value=200 if is_largest else None),
            Row(f"{what}: requests per {kind}", [run.requests / count for run in many],
                f"10 {kind}s",
                [run.requests / 10 for run in few], unit="", ratio_goal=1 if is_largest else None),
            Row(f"{what}: requests answered with 429", [run.refused for run in many], unit="",
                max_value=0),
        ]
    return rows


def _fleet(bench: Bench, kind: str, count: int, pods: int,
           concurrency: int) -> tuple[list[FleetRollout], list[FleetRollout], list[Rollout]]:
    """Measure a task for `count` controllers, a task for one, and `count` Deployments.

    pods: the number of pods of each controller.
    """
    with (Playground(bench.kubeconfig) as ours, Playground(bench.kubeconfig) as single,
          Playground(bench.kubeconfig) as peers):
        names = [f"foo-{number}" for number in range(count)]
        for name in names:
            ours.create(kind, pods, "myimage:v1", name)
            peers.create("Deployment", pods, "myimage:v1", name)
        single.create(kind, pods, "myimage:v1", "foo")
        for playground in (ours, single, peers):
            playground.wait_until_ready()
        versions = new_versions()
        many, single_runs, theirs = measure_alternately(
            bench.with_fewer_runs(),
            f"fleet of {count}, {kind}",
            lambda: ours.roll_many(kind=kind, names=names, concurrency=concurrency,
                                   image=next(versions)),
            lambda: single.roll_many(kind=kind, name="foo", image=next(versions)),
            lambda: peers.roll_deployments(next(versions)),
        )
    return many, single_runs, theirs


def role(bench: Bench) -> list[Row]:
    """Compare the role image_bump with a playbook that contains the same updates and checks.

    Compare the role's additional time with that of as many tasks and files that do nothing.
    """
    stages = "10%", "50%", "100%"
    check = [{"name": "Check the new pods", "ansible.builtin.debug": {"msg": "ready"}}]
    with Playground(bench.kubeconfig) as ours, Playground(bench.kubeconfig) as theirs:
        for playground in (ours, theirs):
            playground.create_rc(10, "myimage:v1")
            playground.wait_until_ready()
        versions = new_versions()

        def play(playground: Playground, **keywords: Any) -> float:
            connection = {"kubeconfig": playground.kubeconfig, "namespace": playground.namespace}
            plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False,
                      "module_defaults": {"group/baton.kubernetes.kubernetes": connection},
                      **keywords}]
            return bench.ansible.run_plays(plays, check=check, turn=_empty_turn(ROLE_TURNS)).wall

        def run_role() -> float:
            return play(ours, roles=[{
                "role": "baton.kubernetes.image_bump", "image_bump_name": "foo",
                "image_bump_image": next(versions), "image_bump_stages": list(stages),
                "image_bump_verify_tasks": ["check.yml"]}])

        def run_tasks() -> float:
            image = next(versions)
            return run_updates([{"baton.kubernetes.rolling_update": {
                "name": "foo", "image": image, **({"pause_at": stage} if stage else {})}}
                for stage in (*stages, "")])

        def run_updates(updates: list[Json]) -> float:
            *staged, last = updates
            return play(theirs, tasks=[*(step for update in staged for step in (
                update, {"ansible.builtin.include_tasks": "check.yml"})), last])

        releases, updates, turns, tasks = measure_alternately(
            bench.with_fewer_runs(), "the role", run_role, run_tasks,
            lambda: play(ours, vars={"turn": 0},
                         tasks=[{"ansible.builtin.include_tasks": "turn.yml"}]),
            lambda: run_updates([check[0] for _stage in (*stages, "")]))
    what = "a release by image_bump, three stages with a check each, 10 pods"
    return [Row(what, releases, "the updates and checks in a playbook", updates),
            Row("of that, beyond the updates and checks", differences(releases, updates),
                "as many tasks without content", differences(turns, tasks), max_value=1.5)]


def _empty_turn(turns: int) -> list[Json]:
    """Return a task file that includes itself, with the tasks of one turn of the role."""
    return [
        {"block": [{"ansible.builtin.include_tasks": "check.yml"}],
         "rescue": [{"ansible.builtin.set_fact": {"failure": True}}]},
        {"ansible.builtin.set_fact": {"turn": "{{ next | int }}"},
         "loop": ["{{ turn | int + 1 }}"], "loop_control": {"loop_var": "next"}},
        {"ansible.builtin.include_tasks": "turn.yml", "when": f"turn | int < {turns}"},
    ]


def region(bench: Bench, count: int) -> list[Row]:
    """Compare one command for all clusters of a region with the slowest of three single clusters.

    Here, a cluster is a namespace, since only the control node is measured.
    """
    single_count, seconds = 3, 3
    with playgrounds(bench.kubeconfig, count) as clusters, Proxy(bench.kubeconfig) as proxy:
        for cluster in clusters:
            cluster.create_rc(5, "myimage:v1", minReadySeconds=seconds)
        for cluster in clusters:
            cluster.wait_until_ready()
        proxy.script = lambda exchange: time.sleep(LATENCY)
        hosts = {cluster.namespace: {"namespace": cluster.namespace,
                                     "kubeconfig": cluster.write_proxy_kubeconfig(proxy.url)}
                 for cluster in clusters}
        versions = new_versions()

        def roll(*names: str) -> float:
            return bench.ansible.run_on({name: hosts[name] for name in names},
                                        "baton.kubernetes.rolling_update",
                                        name="foo", image=next(versions)).wall

        roll(next(iter(hosts)))
        together, slowest = measure_alternately(
            bench.with_fewer_runs(),
            f"a region of {count} clusters",
            lambda: roll(*hosts),
            lambda: max(roll(name) for name in list(hosts)[:single_count]),
            is_warm=True,
        )
    what = (f"{count} clusters in one command, 5 pods each, {seconds} s until ready, "
            "100 ms more per request")
    return [Row(what, together, f"the slowest of {single_count} alone", slowest, ratio_goal=1.2)]


ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "converged-task": converged_task,
    "rollout-of-100": rollout_of_100,
    "real-kubelet": real_kubelet,
    "deployment-of-100": deployment_of_100,
    "stateful-sets": stateful_sets,
    "daemon-sets": daemon_sets,
    "throttled": throttled,
    "slow-line": slow_line,
    "kubectl": kubectl,
    "handover-of-4": functools.partial(handover, pods=4),
    "handover-of-100": functools.partial(handover, pods=100),
    "handover-of-1000": functools.partial(handover, pods=1000),
    "handover-throttled": handover_throttled,
    "sizes": sizes,
    "sizes-of-deployments": sizes_of_deployments,
    "fleet": fleet,
    "large-fleet": large_fleet,
    "role": role,
    "region": functools.partial(region, count=20),
    "long-update": long_update,
    "slices": functools.partial(slices, controller_count=100, slice_counts=(1, 2, 5, 10)),
    "slices-of-1000": functools.partial(slices, controller_count=1000, slice_counts=(1, 10)),
    "large-inventory": large_inventory,
}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is compared. To add a comparison, copy one of the functions and name it in ROWS."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from ansible_runs import Ansible, Timed
from peers import add_kubernetes_core
from playground import Playground
from table import Row, progress


@dataclass(frozen=True)
class Bench:
    """What a row is measured with."""

    kubeconfig: str
    ansible: Ansible
    runs: int


def in_turns(bench: Bench, what: str, *actions: Callable[[], object]) -> list[list]:
    """Call the actions in turns, once to warm up and then `runs` times; the results by action."""
    results = []
    for number in range(bench.runs + 1):
        results.append([action() for action in actions])
        progress(f"{what}: {f'run {number} of {bench.runs}' if number else 'warm'}")
    return [list(column) for column in zip(*results[1:], strict=True)]


def converged_task(bench: Bench) -> list[Row]:
    """A task that finds nothing to do, above `ansible -m ping`: the same controller, kubeconfig, Python and environment."""
    peer = add_kubernetes_core(bench.ansible)
    run, kubeconfig = bench.ansible.run, bench.kubeconfig
    with Playground(kubeconfig) as playground:
        definition = playground.create_controller(replicas=3, image="myimage:v1")
        playground.until_ready()
        task = {"name": "foo", "namespace": playground.namespace, "image": "myimage:v1"}
        ping, ours, theirs = in_turns(
            bench,
            "converged task",
            lambda: run("ping", changed=False),
            lambda: run("baton.kubernetes.rolling_update", changed=False, kubeconfig=kubeconfig, **task),
            lambda: run("kubernetes.core.k8s", changed=False, kubeconfig=kubeconfig, definition=definition),
        )

    def above(runs: list[Timed], kind: str) -> list[float]:
        base = median(getattr(each, kind) for each in ping)
        return [getattr(each, kind) - base for each in runs]

    what = f"a converged task, above the {median(each.wall for each in ping):.2f} s of `ansible -m ping`"
    name = f"`k8s` of {peer}"
    return [
        Row(f"{what}: wall time", above(ours, "wall"), name, above(theirs, "wall"), ratio_goal=0.5),
        Row(f"{what}: processor time", above(ours, "cpu"), name, above(theirs, "cpu")),
    ]


def rollout_of_100(bench: Bench) -> list[Row]:
    """100 pods, 25% of surge, nothing unavailable, up to the last old pod gone; ours includes the takeover."""
    pods, surge = 100, "25%"
    with Playground(bench.kubeconfig) as playground:
        playground.create_controller(pods, "myimage:v1")
        playground.create_deployment(pods, "myimage:v1", surge)
        playground.until_ready()
        task = {"name": "foo", "namespace": playground.namespace, "max_surge": surge}
        versions = (f"myimage:v{number}" for number in itertools.count(2))

        def by_ansible() -> float:
            arguments = {**task, "image": next(versions), "kubeconfig": playground.kubeconfig}
            return bench.ansible.run("baton.kubernetes.rolling_update", changed=True, **arguments).wall

        ours, with_ansible, theirs = in_turns(
            bench,
            "rollout of 100",
            lambda: playground.roll(**task, image=next(versions)),
            by_ansible,
            lambda: playground.roll_deployments(next(versions)),
        )
    seconds, requests = zip(*ours, strict=True)
    their_seconds, their_requests = zip(*theirs, strict=True)
    per_pod, their_per_pod = ([each / pods for each in counts] for counts in (requests, their_requests))
    what, peer = f"{pods} pods, surge {surge}, with takeover", "Deployment controller"
    return [
        Row(f"{what}: the rollout itself", seconds, peer, their_seconds),
        Row(f"{what}: `ansible` from start to end", with_ansible, peer, their_seconds),
        Row(f"{what}: requests per replaced pod", per_pod, peer, their_per_pod, unit="", count_goal=1),
    ]


def fleet(bench: Bench) -> list[Row]:
    """100 controllers of 3 pods in one task, beside one controller in one task and 100 Deployments at once."""
    count, pods = 100, 3
    with Playground(bench.kubeconfig) as ours, Playground(bench.kubeconfig) as single, Playground(bench.kubeconfig) as peers:
        names = [f"foo-{number}" for number in range(count)]
        for name in names:
            ours.create_controller(pods, "myimage:v1", name)
            peers.create_deployment(pods, "myimage:v1", 1, name)
        single.create_controller(pods, "myimage:v1")
        for each in (ours, single, peers):
            each.until_ready()
        versions = (f"myimage:v{number}" for number in itertools.count(2))
        many, one, theirs = in_turns(
            bench,
            f"fleet of {count}",
            lambda: ours.roll_many(names=names, concurrency=count, image=next(versions)),
            lambda: single.roll_many(name="foo", image=next(versions)),
            lambda: peers.roll_deployments(next(versions)),
        )
    allowed = [each.seconds + its.seconds for each, its in zip(one, theirs, strict=True)]
    what = f"{count} controllers of {pods} pods in one task"
    return [
        Row(f"{what}", [each.seconds for each in many], "one such task + the Deployment controller", allowed, ratio_goal=1.5),
        Row(f"{what}: memory at most", [each.memory for each in many], "one controller", [each.memory for each in one], unit="MiB",
            count_goal=150),
        Row(f"{what}: requests per controller", [each.requests / count for each in many], "one controller",
            [each.requests for each in one], unit=""),
    ]


ROWS: dict[str, Callable[[Bench], list[Row]]] = {
    "converged-task": converged_task,
    "rollout-of-100": rollout_of_100,
    "fleet": fleet,
}

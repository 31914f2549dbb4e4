# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure tasks for some of 10,000 ReplicationControllers, and a playbook with 10,000 hosts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from measuring import Bench, measure_alternately, new_versions
from playground import Playground, playgrounds
from table import Row

#: Number of controllers or hosts.
COUNT = 10_000
#: How many of them a task selects.
SELECTED_COUNT = 10
#: Threads that create controllers.
THREADS = 8


def large_inventory(bench: Bench) -> list[Row]:
    """Measure how 9,990 other controllers or hosts affect tasks for ten controllers or hosts."""
    with playgrounds(bench.kubeconfig, 2) as (crowded, uncrowded):
        idle_names = [f"other-{number}" for number in range(COUNT - SELECTED_COUNT)]
        with ThreadPoolExecutor(THREADS) as executor:
            list(executor.map(lambda name: crowded.create_rc(0, "myimage:v1", name),
                              idle_names))
        names = [f"foo-{number}" for number in range(SELECTED_COUNT)]
        for playground in (crowded, uncrowded):
            for name in names:
                playground.create_rc(2, "myimage:v1", name)
            playground.wait_until_ready()
        return [*_host_rows(bench, uncrowded, names[0]),
                *_controller_rows(bench, crowded, uncrowded, names, idle_names)]


def _controller_rows(bench: Bench, crowded: Playground, uncrowded: Playground, names: list[str],
                     idle_names: list[str]) -> list[Row]:
    versions = new_versions()
    crowded_runs, alone_runs, converged_runs = measure_alternately(
        bench.with_fewer_runs(), f"{COUNT} controllers",
        lambda: crowded.roll_many(names=names, concurrency=SELECTED_COUNT, image=next(versions)),
        lambda: uncrowded.roll_many(names=names, concurrency=SELECTED_COUNT, image=next(versions)),
        lambda: crowded.roll_many(must_change=False, names=idle_names, concurrency=SELECTED_COUNT,
                                  image="myimage:v1"),
        is_warm=True)
    what = f"{SELECTED_COUNT} ReplicationControllers of 2 pods among {COUNT} in the namespace"
    converged_label = f"{len(idle_names)} converged ReplicationControllers in one task"
    peer = "in a namespace without others"
    return [
        Row(what, [run.seconds for run in crowded_runs], peer, [run.seconds for run in alone_runs]),
        Row(f"{what}: peak memory", [run.memory for run in crowded_runs], peer,
            [run.memory for run in alone_runs], unit="MiB"),
        Row(converged_label, [run.seconds for run in converged_runs]),
        Row(f"{converged_label}: peak memory", [run.memory for run in converged_runs], unit="MiB"),
        Row(f"{converged_label}: requests", [run.requests for run in converged_runs], unit=""),
    ]


def _host_rows(bench: Bench, playground: Playground, name: str) -> list[Row]:
    host = {"controller_namespace": playground.namespace, "kubeconfig": playground.kubeconfig}
    hosts = {f"cluster-{number}": host for number in range(COUNT)}
    limit = list(hosts)[:SELECTED_COUNT]

    def converge(host_count: int) -> tuple[float, float]:
        return bench.ansible.run_playbook(
            dict(list(hosts.items())[:host_count]), limit, "baton.kubernetes.regions",
            controller=name, image="myimage:v1")

    many, few = measure_alternately(bench.with_fewer_runs(), f"an inventory of {COUNT} hosts",
                                    lambda: converge(COUNT), lambda: converge(SELECTED_COUNT),
                                    is_warm=True)
    what = f"{SELECTED_COUNT} converged clusters of an inventory of {COUNT} hosts"
    peer = f"an inventory of {SELECTED_COUNT} hosts"
    return [
        Row(what, [seconds for seconds, _memory in many], peer,
            [seconds for seconds, _memory in few]),
        Row(f"{what}: peak memory of `ansible-playbook`", [memory for _seconds, memory in many],
            peer, [memory for _seconds, memory in few], unit="MiB"),
    ]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure a sliced job of AWX, which distributes the clusters of a region over control nodes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ansible_runs import Cost
from measuring import Bench, measure_alternately, new_versions
from playground import Playground, playgrounds
from table import Row

CLUSTER_COUNT, CONCURRENCY = 10, 50


def slices(bench: Bench, controller_count: int, slice_counts: Sequence[int]) -> list[Row]:
    """Compare jobs with different numbers of slices.

    A namespace stands for a cluster, and a process for a control node.
    """
    with (playgrounds(bench.kubeconfig, CLUSTER_COUNT) as clusters,
          Playground(bench.kubeconfig) as deployments):
        for number in range(controller_count):
            cluster = clusters[number % CLUSTER_COUNT]
            cluster.create_rc(2, "myimage:v1", f"foo-{number}")
            deployments.create("Deployment", 2, "myimage:v1", f"foo-{number}")
        for playground in (*clusters, deployments):
            playground.wait_until_ready()
        hosts = {cluster.namespace: {"controller_namespace": cluster.namespace,
                                     "kubeconfig": cluster.kubeconfig}
                 for cluster in clusters}
        versions = new_versions()

        def roll(count: int) -> Cost:
            image = next(versions)
            # as AWX distributes hosts over slices
            hosts_by_slice = [dict(list(hosts.items())[number::count]) for number in range(count)]
            cost = bench.ansible.run_slices(hosts_by_slice, "baton.kubernetes.regions", image=image,
                                            label_selectors="app", concurrency=CONCURRENCY)
            if not all(cluster.has_only_image(image) for cluster in clusters):
                raise SystemExit("a slice has not updated all controllers of its clusters")
            return cost

        roll(1)
        *runs, deployment_runs = measure_alternately(
            bench.with_fewer_runs(), f"{controller_count} controllers in {CLUSTER_COUNT} clusters",
            *(functools.partial(roll, count) for count in slice_counts),
            lambda: deployments.roll_deployments(next(versions)), is_warm=True)
    rows = []
    per_minute = [[controller_count / run.wall * 60 for run in runs_of_count]
                  for runs_of_count in runs]
    for count, runs_of_count, rates in zip(slice_counts, runs, per_minute, strict=True):
        title = (f"{controller_count} ReplicationControllers of 2 pods in {CLUSTER_COUNT} "
                 f"clusters, {count} {'slice' if count == 1 else 'slices'}")
        rows += [
            Row(title, [run.wall for run in runs_of_count], "Deployment controller",
                [run.seconds for run in deployment_runs]),
            Row(f"{title}: controllers per minute", rates, f"{slice_counts[0]} slice",
                per_minute[0], unit=""),
            Row("of that, processor time of the control nodes", [run.cpu for run in runs_of_count]),
        ]
    return rows

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test a handover while the controller manager is slow and has an outdated cache of pods."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import embedded
import pytest
from namespace import ADMISSION_PLUGINS, Namespace
from objects import uids

#: Limits of the controller manager's client: requests per second, and burst.
QPS, BURST = 20, 30


@pytest.fixture
def throttled_cluster():
    if os.environ.get("KUBECONFIG"):
        pytest.skip("NEEDS THE EMBEDDED CLUSTER: the controller manager of another cluster cannot "
                    "be throttled")
    name = embedded.checkout_cluster_name("throttled")
    with embedded.up(name, controller_manager_qps=QPS,
                     admission_plugins=ADMISSION_PLUGINS) as cluster:
        yield cluster


@pytest.mark.full
@pytest.mark.parametrize("replicas", [100, pytest.param(500, marks=pytest.mark.long)])
def test_handover_succeeds_with_a_throttled_controller_manager(throttled_cluster, replicas, capsys):
    """The controller manager observes new owners late, but creates no surplus pod."""
    namespace = Namespace(throttled_cluster.kubeconfig, "throttled")
    started_at = time.monotonic()
    namespace.make_rc(replicas)
    # An unthrottled controller manager would be faster.
    assert time.monotonic() - started_at > (replicas - BURST) / QPS
    busy_processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                      for _core in range(os.cpu_count() or 1)]
    step_times = {}
    try:
        with namespace.observer() as observer:
            namespace.roll(image="myimage:v2", max_surge="25%",
                           on_line=lambda line: step_times.setdefault(line.partition(":")[0],
                                                                      time.monotonic()))
            ended_at = time.monotonic()
    finally:
        for process in busy_processes:
            process.kill()

    surplus_change_count = (
        len(observer.new_pods) - replicas + len(observer.new_pods & observer.deleted_pods)
    )
    with capsys.disabled():
        print(
            f"\n{replicas} pods, {QPS} requests/s, {len(busy_processes)} busy cores: "
            f"{surplus_change_count} surplus creations and deletions, "
            f"{ended_at - step_times['rename foo']:.1f} s from the rename to the end"
        )
    assert surplus_change_count == 0 and observer.new_pods == uids(namespace.pods())
    assert (observer.restarts == 0 and observer.min_ready >= replicas
            and observer.max_pods <= replicas * 5 // 4)
    namespace.delete()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test start, crash, restart and removal of the embedded cluster's real node."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from pathlib import Path

import embedded
import pytest
from machine import CGROUPS
from namespace import Namespace
from objects import eventually, is_ready
from real_node import KERNEL_SETTINGS
from workspace import ClusterError, clusters


def machine_state() -> dict[str, object]:
    """Return settings of the machine that a real node must not change."""
    return {
        "kernel": {
            path: Path("/proc/sys", path).read_text("ascii")
            for path in (*KERNEL_SETTINGS, "net/ipv4/ip_forward")
        },
        "firewall": re.sub(r"counter packets \d+ bytes \d+", "", output("nft", "list", "ruleset")),
        "folders": {
            path: Path(path).exists()
            for path in ("/var/lib/kubelet", "/run/containerd/containerd.sock", "/run/netns")
        },
    }


def traces_on_machine(number: int, name: str) -> list[str]:
    links = [
        line
        for line in output("ip", "-brief", "link").splitlines()
        if re.match(rf"baton{number}\b", line)
    ]
    routes = [
        line for line in output("ip", "route").splitlines() if f"dev baton{number} " in line + " "
    ]
    groups = [str(path) for path in CGROUPS.glob(f"*/baton{number}")]
    mounts = [
        line
        for line in Path("/proc/mounts").read_text("utf-8").splitlines()
        if f"/clusters/{name}/" in line
    ]
    return links + routes + groups + mounts + processes(name)


def processes(name: str) -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            content = (process / "cmdline").read_bytes() + (process / "cgroup").read_bytes()
        except OSError:
            continue  # the process has exited
        if f"/clusters/{name}/".encode() in content:
            lines.append(f"process {content!r}")
    return lines


def output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def test_real_node_changes_no_settings_of_the_machine_and_is_removed_completely():
    name = f"node-test-{os.getpid()}"
    before = machine_state()
    with embedded.up(name, with_real_node=True) as cluster:
        number, port = map(int, re.search(r"10\.123\.(\d+)\.1:(\d+)", cluster.server).groups())
        # pods must not reach etcd, which has no authentication
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((f"10.123.{number}.1", port - 2), timeout=5)
        namespace = Namespace(cluster.kubeconfig, "node-crash")
        namespace.make_rc(2, "localhost/web:v1")
        assert machine_state() == before

        cluster.stop("node", kill=True)
        assert set(cluster.status().values()) == {"healthy", "stopped"}
        with pytest.raises(ClusterError, match="start the component `node` first"):
            cluster.start("kubelet")
        embedded.up(name, with_real_node=True)

        assert set(cluster.status().values()) == {"healthy"}
        eventually(
            lambda: all(has_restarted(pod) and is_ready(pod) for pod in namespace.pods()),
            "the restart of the pods",
            120,
        )
        namespace.client.close()
        assert len(traces_on_machine(number, name)) > 10
    assert eventually(
        lambda: not traces_on_machine(number, name),
        f"the removal of {traces_on_machine(number, name)}"
    )
    assert machine_state() == before
    assert not (clusters() / name).exists()


def has_restarted(pod) -> bool:
    return any(container["restartCount"] for container in pod["status"]["containerStatuses"])


def test_cluster_with_a_real_node_refuses_fake_nodes(cluster):
    with pytest.raises(ClusterError, match="has other nodes"):
        embedded.up(cluster.name)

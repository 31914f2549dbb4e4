# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a command with the kubeconfig of a temporary kind cluster in KUBECONFIG."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))

import embedded  # noqa: E402
from host_engine import IMAGE_VARIABLE  # noqa: E402
from workspace import ClusterError, run_and_exit, wait_for  # noqa: E402

NAME = embedded.checkout_cluster_name("tests")


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="baton-kind-") as folder:
        kubeconfig = f"{folder}/kubeconfig"
        # remove the cluster of a killed run
        _kind("delete", "cluster", "--name", NAME, "--kubeconfig", kubeconfig)
        image = os.environ.get(IMAGE_VARIABLE)
        try:
            _kind(
                "create",
                "cluster",
                "--name",
                NAME,
                "--kubeconfig",
                kubeconfig,
                *(["--image", image] if image else []),
            )
            wait_for("the kind node", lambda: _is_ready(kubeconfig))
            return subprocess.run(
                command, env={**os.environ, "KUBECONFIG": kubeconfig}, check=False
            ).returncode
        finally:
            _kind("delete", "cluster", "--name", NAME, "--kubeconfig", kubeconfig)


def _kind(*arguments: str) -> None:
    if subprocess.run(["kind", *arguments], check=False).returncode:
        raise ClusterError(f"kind {' '.join(arguments)} failed")


def _is_ready(kubeconfig: str) -> bool:
    """Return whether all nodes are ready, which `kind create cluster --wait` does not guarantee."""
    with kubernetes.config.new_client_from_config(kubeconfig) as client:
        nodes = kubernetes.client.CoreV1Api(client).list_node().items
    return bool(nodes) and all(
        any(
            condition.type == "Ready" and condition.status == "True"
            for condition in node.status.conditions
        )
        for node in nodes
    )


if __name__ == "__main__":
    run_and_exit(main)

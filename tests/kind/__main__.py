# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a command where `kind create cluster` works: python tests/kind [--cluster] COMMAND...

If the machine lacks a Docker engine, kind or a node image, create all three for the command. With
--cluster, also create a kind cluster, and set KUBECONFIG for the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))

import binaries  # noqa: E402
import engine  # noqa: E402
import host_engine  # noqa: E402
import node_image  # noqa: E402
from workspace import run_and_exit, say  # noqa: E402


def main(command: list[str]) -> int:
    if command[:1] == ["--cluster"]:
        command = [sys.executable, str(HERE / "cluster.py"), *command[1:]]
    reason = host_engine.hindrance()
    if not reason:
        return subprocess.run(command, check=False).returncode
    say(f"{reason}: creating a private engine")
    engine.install()
    programs = binaries.provide(node_image.PROGRAMS)
    path = f"{programs['kind'].parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, host_engine.IMAGE_VARIABLE: node_image.NAME, "PATH": path}
    return engine.run(command, node_image.provide(programs), node_image.NAME, environment)


if __name__ == "__main__":
    run_and_exit(main)

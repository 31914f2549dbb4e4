# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Docker engine for the time of one command, in namespaces of its own: nothing of the machine is changed, nothing is left.

Whatever ends this program ends the engine too, SIGKILL included: the kernel does it. Control groups without a process are all
that such an end leaves; the next engine of this checkout removes them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import embedded
import machine
from host_engine import IMAGE
from workspace import ClusterError, cache, locked

HERE = Path(__file__).resolve().parent

NAME = embedded.of_this_checkout("baton-kind")
"""Of the containers' control group. All else of an engine is in its namespaces, where no other checkout sees it."""

WHAT = "a Docker engine of our own"

NEEDED = {**machine.NEEDED, "dockerd": "docker.io", "docker": "docker.io", "debootstrap": "debootstrap", "setpriv": "util-linux"}
"""Program: its Debian package."""

MEMORY = 4
"""GiB: an engine keeps its images and containers in memory."""

SYS_RESOURCE = 24
"""The number of the capability CAP_SYS_RESOURCE."""


def hindrance() -> str:
    """Why there can be no engine of our own here; "" if there can, maybe with packages that are still to be installed."""
    if image := os.environ.get(IMAGE):
        return f"{WHAT} has not the image {image} that {IMAGE} names"
    if why := machine.hindrance(WHAT, NEEDED):
        return why
    free = int(_number("/proc/meminfo", r"MemAvailable: *(\d+)")) / 2**20
    return f"{WHAT} needs {MEMORY} GiB of memory, and {free:.1f} are free" if free < MEMORY else ""


def install() -> None:
    """Install what is missing. Raises ClusterError."""
    if why := hindrance():
        raise ClusterError(why)
    machine.install(WHAT, NEEDED)


def run(command: list[str], node: Path, image: str, environment: Mapping[str, str]) -> int:
    """Run the command where an engine has that image, made of the node's file system; its exit code. Raises ClusterError."""
    with locked(cache() / "kind" / f"{NAME}.lock", "the Docker engine of this checkout"):
        machine.remove_control_groups(NAME)  # of an engine that was killed
        try:
            argv = [*alone("--net"), str(HERE / "in-an-engine"), str(node), image, NAME, _runtime(), *command]
            return subprocess.run(argv, env=environment, check=False).returncode
        finally:
            machine.remove_control_groups(NAME)


def alone(*namespaces: str) -> list[str]:
    """What to put before a command line, so that its mounts and all its processes end with it, and it with this program."""
    setpriv, unshare = (machine.program_of_the_system(name) for name in ("setpriv", "unshare"))
    return [setpriv, "--pdeathsig=KILL", unshare, *namespaces, "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]


def _runtime() -> str:
    """What runs containers: `--privileged` asks for CAP_SYS_RESOURCE, which not every root has to give."""
    capabilities = int(_number("/proc/self/status", r"CapBnd:\s*([0-9a-f]+)"), 16)
    if capabilities >> SYS_RESOURCE & 1:
        return machine.program_of_the_system("runc")
    return str(HERE / "runc-without-sys-resource")


def _number(file: str, pattern: str) -> str:
    found = re.search(pattern, Path(file).read_text("ascii"))
    if not found:
        raise ClusterError(f"{file} does not tell {pattern!r}")
    return found[1]

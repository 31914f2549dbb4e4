# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A Docker engine for the duration of one command, in private namespaces that leave no traces.

The kernel ends the engine with this program, even after SIGKILL. Only control groups without a
process remain then; the next engine of this checkout removes them.
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
"""Name of the containers' control group. The rest of the engine is in its namespaces, invisible to
other checkouts.
"""

WHAT = "a private Docker engine"

NEEDED = {
    **machine.NEEDED,
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
}
"""Program: its Debian package."""

MEMORY = 4
"""GiB of memory, where an engine stores its images and containers."""

SYS_RESOURCE = 24
"""The number of the capability CAP_SYS_RESOURCE."""


def hindrance() -> str:
    """Return why a private engine cannot run here, or ""; missing packages do not count."""
    if image := os.environ.get(IMAGE):
        return f"{WHAT} lacks the image {image}, which {IMAGE} names"
    if why := machine.hindrance(WHAT, NEEDED):
        return why
    free = int(_number("/proc/meminfo", r"MemAvailable: *(\d+)")) / 2**20
    return f"{WHAT} needs {MEMORY} GiB of memory, and {free:.1f} are free" if free < MEMORY else ""


def install() -> None:
    """Install the missing packages. Raises ClusterError."""
    if why := hindrance():
        raise ClusterError(why)
    machine.install(WHAT, NEEDED)


def run(command: list[str], node: Path, image: str, environment: Mapping[str, str]) -> int:
    """Run the command with an engine that has the image, and return the exit code.

    The image is made of the node's file system. Raises ClusterError.
    """
    with locked(cache() / "kind" / f"{NAME}.lock", "the Docker engine of this checkout"):
        machine.remove_control_groups(NAME)  # of an engine that was killed
        try:
            argv = [
                *isolation_prefix("--net"),
                str(HERE / "in-an-engine"),
                str(node),
                image,
                NAME,
                _runtime(),
                *command,
            ]
            return subprocess.run(argv, env=environment, check=False).returncode
        finally:
            machine.remove_control_groups(NAME)


def isolation_prefix(*namespaces: str) -> list[str]:
    """Return a command prefix: mounts and processes end with the command, and with this program."""
    setpriv, unshare = (machine.program_of_the_system(name) for name in ("setpriv", "unshare"))
    return [
        setpriv,
        "--pdeathsig=KILL",
        unshare,
        *namespaces,
        "--mount",
        "--pid",
        "--mount-proc",
        "--fork",
        "--kill-child",
    ]


def _runtime() -> str:
    """Return the path of runc, or of a wrapper where root lacks CAP_SYS_RESOURCE."""
    capabilities = int(_number("/proc/self/status", r"CapBnd:\s*([0-9a-f]+)"), 16)
    if capabilities >> SYS_RESOURCE & 1:
        return machine.program_of_the_system("runc")
    return str(HERE / "runc-without-sys-resource")


def _number(file: str, pattern: str) -> str:
    match = re.search(pattern, Path(file).read_text("ascii"))
    if not match:
        raise ClusterError(f"{file} does not contain {pattern!r}")
    return match[1]

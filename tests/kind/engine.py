# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a private Docker engine in new namespaces for one command.

The kernel kills the engine when this program exits. If SIGKILL ends this program, empty
control groups remain.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import embedded
import machine
from host_engine import IMAGE_VARIABLE
from workspace import ClusterError, cache, locked

HERE = Path(__file__).resolve().parent

NAME = embedded.checkout_cluster_name("baton-kind")
"""Name of the containers' control group."""

FEATURE = "a private Docker engine"

PACKAGES = {
    **machine.NEEDED_PACKAGES,
    "dockerd": "docker.io",
    "docker": "docker.io",
    "debootstrap": "debootstrap",
    "setpriv": "util-linux",
}
"""Debian packages by program."""

REQUIRED_GIB = 4
"""Required free GiB: the engine stores images and containers in a tmpfs."""

CAP_SYS_RESOURCE = 24


def hindrance() -> str:
    """Return why a private engine cannot run here, or "". Missing Debian packages are no reason."""
    if image := os.environ.get(IMAGE_VARIABLE):
        return f"{FEATURE} lacks the image {image}, which {IMAGE_VARIABLE} names"
    if reason := machine.hindrance(FEATURE, PACKAGES):
        return reason
    free_gib = int(_first_match("/proc/meminfo", r"MemAvailable: *(\d+)")) / 2**20
    if free_gib >= REQUIRED_GIB:
        return ""
    return f"{FEATURE} needs {REQUIRED_GIB} GiB of memory, but only {free_gib:.1f} GiB are free"


def install() -> None:
    """Install the missing packages. Raises ClusterError."""
    if reason := hindrance():
        raise ClusterError(reason)
    machine.install(FEATURE, PACKAGES)


def run(
    command: list[str],
    image_archive: Path,
    image: str,
    environment: Mapping[str, str],
    *,
    has_private_network: bool = True,
) -> int:
    """Run the command with an engine that contains the image, and return the exit code.

    image_archive: tar file with the root file system of the image. Without a private network,
    containers need `--network=host`. Raises ClusterError.
    """
    network = "private" if has_private_network else "host"
    with locked(cache() / "kind" / f"{NAME}.lock", "the Docker engine of this checkout"):
        machine.remove_control_groups(NAME)  # left by a killed engine
        try:
            argv = [
                *isolation_prefix(*["--net"] if has_private_network else []),
                str(HERE / "in-an-engine"),
                str(image_archive),
                image,
                NAME,
                _runtime(),
                *command,
            ]
            engine_environment = {**environment, "ENGINE_NETWORK": network}
            return subprocess.run(argv, env=engine_environment, check=False).returncode
        finally:
            machine.remove_control_groups(NAME)


def isolation_prefix(*namespaces: str) -> list[str]:
    """Return a prefix that runs a command in new namespaces.

    The kernel removes the namespaces when the command or this program exits.
    """
    setpriv, unshare = (machine.system_program(name) for name in ("setpriv", "unshare"))
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
    """Return the path of runc, or of a wrapper if root lacks CAP_SYS_RESOURCE."""
    capabilities = int(_first_match("/proc/self/status", r"CapBnd:\s*([0-9a-f]+)"), 16)
    if capabilities >> CAP_SYS_RESOURCE & 1:
        return machine.system_program("runc")
    return str(HERE / "runc-without-sys-resource")


def _first_match(file: str, pattern: str) -> str:
    match = re.search(pattern, Path(file).read_text("ascii"))
    if not match:
        raise ClusterError(f"{file} does not contain {pattern!r}")
    return match[1]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a real node can run on this machine, and what has to be installed for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import subtask
from workspace import SYSTEM_PATH, ClusterError, say

CGROUPS = Path("/sys/fs/cgroup")

PLUGINS = Path("/usr/lib/cni")
"""Debian's network plugins."""

NEEDED = {
    "containerd": "containerd",
    "runc": "runc",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
"""Program: its Debian package."""


def hindrance() -> str:
    """Why no real node can run here; "" if it can, maybe with packages that `install` would add."""
    if os.geteuid() != 0:
        return "a real node needs root"
    if not os.access(CGROUPS / "memory", os.W_OK):
        return f"a real node needs control groups of version 1 that may be written, and {CGROUPS}/memory is none"
    missing = _missing()
    if missing and not shutil.which("apt-get"):
        return f"a real node needs {', '.join(missing)}, and there is no apt-get to install it"
    try:
        subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "a real node needs namespaces, which this root may not make"
    return ""


def install() -> None:
    """Install the Debian packages that are missing. Raises ClusterError."""
    if why := hindrance():
        raise ClusterError(why)
    packages = sorted(set(_missing().values()))
    if packages:
        say(f"installing {', '.join(packages)} with apt-get")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subtask.run("reading the lists of packages", ["apt-get", "update"])
        get = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
        subtask.run("installing packages", get, environment=environment)


def check(folder: Path) -> None:
    """See that a node can run with its files there. Raises ClusterError."""
    if why := hindrance():
        raise ClusterError(why)
    if missing := _missing():
        raise ClusterError(f"a real node needs {', '.join(missing)}: `build --real-node` installs what is missing")
    if folder.is_relative_to("/run") or folder.is_relative_to("/var"):
        raise ClusterError(f"the files of a real node would be hidden from it at {folder}: set XDG_CACHE_HOME")


def program_of_the_system(name: str) -> str:
    """Its path. Raises ClusterError."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if not path:
        raise ClusterError(f"there is no {name} on this machine")
    return path


def _missing() -> dict[str, str]:
    return {program: package for program, package in NEEDED.items() if not shutil.which(program, path=SYSTEM_PATH)}

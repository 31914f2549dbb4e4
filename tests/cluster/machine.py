# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the requirements of a real node on this machine, and install missing packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import debian
from workspace import SYSTEM_PATH, ClusterError, wait_for

CGROUPS = Path("/sys/fs/cgroup")

PLUGINS = Path("/usr/lib/cni")
"""Debian's CNI plugins."""

NEEDED_PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
    "nft": "nftables",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
"""Debian packages by program."""


def hindrance(what: str = "a real node", needed: Mapping[str, str] | None = None) -> str:
    """Return why a real node cannot run here, or "".

    Missing Debian packages that can be installed do not count.

    what: the feature that needs the node. needed: packages by program, as in NEEDED_PACKAGES.
    """
    if os.geteuid() != 0:
        return f"{what} needs root"
    if not os.access(CGROUPS / "memory", os.W_OK):
        return (
            f"{what} needs writable control groups of version 1, "
            f"but {CGROUPS}/memory is missing or read-only"
        )
    if reason := debian.hindrance(what, needed or NEEDED_PACKAGES):
        return reason
    try:
        subprocess.run(
            ["unshare", "--mount", "--net", "--pid", "--fork", "true"],
            check=True,
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return f"{what} needs namespaces, which this root cannot create"
    return ""


def install(what: str = "a real node", needed: Mapping[str, str] | None = None) -> None:
    """Install the missing Debian packages. Raises ClusterError."""
    if reason := hindrance(what, needed):
        raise ClusterError(reason)
    debian.install(needed or NEEDED_PACKAGES)


def check(folder: Path) -> None:
    """Raise ClusterError if no node can run with files in the folder."""
    if reason := hindrance():
        raise ClusterError(reason)
    if missing := debian.missing(NEEDED_PACKAGES):
        raise ClusterError(
            f"a real node needs {', '.join(missing)}: `build --real-node` installs the packages"
        )
    if folder.is_relative_to("/run") or folder.is_relative_to("/var"):
        raise ClusterError(
            f"a real node cannot use files in {folder}, since other folders are mounted there in "
            "the node: set XDG_CACHE_HOME"
        )


def system_program(name: str) -> str:
    """Return the path of a program. Raises ClusterError."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if not path:
        raise ClusterError(f"there is no {name} on this machine")
    return path


def control_groups(name: str) -> list[Path]:
    """Return the path of a control group in each hierarchy. The group may not exist."""
    return [
        hierarchy / name
        for hierarchy in sorted(CGROUPS.iterdir())
        if hierarchy.is_dir() and not hierarchy.is_symlink()
    ]


def remove_control_groups(name: str) -> None:
    """Remove a control group with its subgroups from each hierarchy. Raises ClusterError.

    Retry the removal while exiting processes are still in the group.
    """

    def try_to_remove() -> bool:
        for group in control_groups(name):
            for folder, _folders, _files in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return not any(group.exists() for group in control_groups(name))

    wait_for(f"the removal of the control groups {name}", try_to_remove)

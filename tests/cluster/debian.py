# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install Debian packages: `python tests/cluster/debian.py chromium`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping

import subtask
from workspace import SYSTEM_PATH, ClusterError, say


def missing(needed: Mapping[str, str]) -> dict[str, str]:
    """Return the packages of the missing programs, by program."""
    return {
        program: package
        for program, package in needed.items()
        if not shutil.which(program, path=SYSTEM_PATH)
    }


def hindrance(what: str, needed: Mapping[str, str]) -> str:
    """Return why missing programs cannot be installed, or "".

    what: the feature that needs the programs.
    """
    missing_programs = missing(needed)
    if missing_programs and not shutil.which("apt-get"):
        return (f"{what} needs {', '.join(missing_programs)}, which cannot be installed without "
                "apt-get")
    if missing_programs and os.geteuid() != 0:
        return f"{what} needs {', '.join(missing_programs)}, which only root can install"
    return ""


def install(needed: Mapping[str, str]) -> None:
    """Install the packages of the missing programs. Raises ClusterError."""
    if packages := sorted(set(missing(needed).values())):
        say(f"installing {', '.join(packages)} with apt-get")
        subtask.run("reading the lists of packages", ["apt-get", "update"])
        subtask.run(
            "installing packages",
            ["apt-get", "install", "--yes", "--no-install-recommends", "--no-remove", *packages],
            environment=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )


if __name__ == "__main__":
    try:
        install({name: name for name in sys.argv[1:]})
    except ClusterError as error:
        sys.exit(str(error))

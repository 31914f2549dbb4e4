# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the machine's Docker engine and kind."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

IMAGE_VARIABLE = "BATON_KIND_IMAGE"
"""Environment variable with the name of the node image."""


def hindrance() -> str:
    """Pull the node image, and return why kind cannot create a cluster, or ""."""
    for command in ("docker version", "kind version"):
        if not _succeeds(command):
            return f"this machine has no Docker engine with kind: `{command}` fails"
    image = os.environ.get(IMAGE_VARIABLE) or _default_image()
    if (
        image
        and not _succeeds(f"docker image inspect {image}")
        and not _succeeds(f"docker pull {image}", seconds=900)
    ):
        return (
            f"the node image {image} is missing and cannot be pulled; "
            f"{IMAGE_VARIABLE} selects another one"
        )
    return ""


def _default_image() -> str:
    """Return kind's default node image, or "". No command prints its name."""
    kind = Path(shutil.which("kind") or os.devnull)
    match = re.search(rb"kindest/node:v[0-9.]+@sha256:[0-9a-f]{64}", kind.read_bytes())
    return match[0].decode() if match else ""


def _succeeds(command: str, seconds: int = 30) -> bool:
    try:
        subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=seconds)
    except (OSError, subprocess.SubprocessError):
        return False
    return True

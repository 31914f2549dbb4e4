# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Install kubernetes.core in the user's cache."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

from ansible_runs import Ansible
from table import progress
from workspace import cache

ANSIBLE = "ansible==12.3.0"
"""A package with a kubernetes.core that supports the ansible-core in .venv."""

NEEDED = ("jsonpatch==1.33", "jsonpointer==3.0.0")
"""Requirements of kubernetes.core in addition to the package kubernetes."""


def add_kubernetes_core(ansible: Ansible) -> str:
    """Install kubernetes.core, and return a text such as "kubernetes.core 6.1.0"."""
    folder = cache() / "bench" / ANSIBLE
    collections, packages = folder / "collections", folder / "packages"
    manifest = collections / "ansible_collections/kubernetes/core/MANIFEST.json"
    if not manifest.exists():
        progress(f"downloading kubernetes.core, a part of {ANSIBLE} (54 MB, once)")
        _pip("install", "--no-deps", "--target", str(packages), *NEEDED)
        _pip("download", "--no-deps", "--dest", str(folder), ANSIBLE)
        (wheel,) = folder.glob("ansible-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            members = [name
                       for name in archive.namelist()
                       if name.startswith("ansible_collections/kubernetes/core/")]
            # MANIFEST.json, extracted last, marks a complete installation
            members.sort(key=lambda name: name.endswith("/MANIFEST.json"))
            archive.extractall(collections, members)
        wheel.unlink()
    for link, target in ((ansible.collections, collections), (ansible.packages, packages)):
        if not link.exists():
            link.symlink_to(target)
    return (f"kubernetes.core "
            f"{json.loads(manifest.read_text('utf-8'))['collection_info']['version']}")


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments, "--quiet",
                    "--disable-pip-version-check"], check=True)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the execution and decision environments of examples/ with ansible-builder.

No image is built or pulled: ansible-builder only writes the Containerfiles.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
#: The required content of bindep.txt, by environment.
SYSTEM_PACKAGES = {"execution": "", "decision": "java-17-openjdk-headless [platform:rpm]"}
INSTALL_GIT = "RUN $PKGMGR install --assumeyes git-core"
INSTALL_COLLECTIONS = "ansible-galaxy collection install"


def faults(builder: Path, archive: Path) -> Iterator[str]:
    """Yield the faults of the environments, and of the collection's dependencies."""
    with tempfile.TemporaryDirectory(prefix="baton-environments-") as folder:
        for name, packages in SYSTEM_PACKAGES.items():
            context = Path(folder) / name
            subprocess.run([str(builder), "create", "--file", f"{name}-environment.yml",
                            "--context", str(context), "--output-filename", "Containerfile"],
                           cwd=EXAMPLES, check=True, stdout=subprocess.DEVNULL)
            for fault in (*stage_faults((context / "Containerfile").read_text("utf-8")),
                          *context_faults(context / "_build", packages)):
                yield f"examples/{name}-environment.yml: {fault}"
        yield from collection_faults(builder, archive, Path(folder) / "collections")


def stage_faults(containerfile: str) -> Iterator[str]:
    """Yield the faults of the build stages. Only the stage `galaxy` needs git."""
    stages = re.split(r"^FROM .* AS ", containerfile, flags=re.MULTILINE)[1:]
    lines_by_stage = {stage.split()[0]: stage.splitlines() for stage in stages}
    install_indexes = [index for index, line in enumerate(lines_by_stage["galaxy"])
                       if INSTALL_COLLECTIONS in line]
    if not install_indexes or INSTALL_GIT not in lines_by_stage["galaxy"][:install_indexes[0]]:
        yield "git is not installed before the collections"
    yield from (f"git is in the stage {name}" for name in ("base", "final")
                if any("git" in line.split() or "git-core" in line
                       for line in lines_by_stage[name]))


def context_faults(context: Path, packages: str) -> Iterator[str]:
    """Yield the faults of a build context. packages: the expected content of bindep.txt."""
    requirements = (EXAMPLES / "collections/requirements.yml").read_text("utf-8")
    if (context / "requirements.yml").read_text("utf-8") != requirements:
        yield "the collections differ from collections/requirements.yml"
    bindep = context / "bindep.txt"
    if (bindep.read_text("utf-8").strip() if bindep.exists() else "") != packages:
        yield f"bindep.txt must contain: {packages or 'nothing'}"


def collection_faults(builder: Path, archive: Path, folder: Path) -> Iterator[str]:
    collection_folder = folder / "ansible_collections/baton/kubernetes"
    with tarfile.open(archive) as file:
        file.extractall(collection_folder, filter="data")
    output = subprocess.run([str(builder), "introspect", str(folder)], check=True,
                            capture_output=True, text=True).stdout
    dependencies = yaml.safe_load(output)
    packages = {re.split(r"[ <>=]", line)[0] for line in dependencies["python"]}
    if packages != {"kubernetes"}:  # ansible-builder omits packages that ansible-core requires
        yield f"meta/execution-environment.yml declares the Python packages {packages}"
    if dependencies["system"]:
        yield f"meta/execution-environment.yml declares system packages: {dependencies}"

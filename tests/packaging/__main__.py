# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the archive of the collection, and check the archive and the environments of examples/.

    python tests/packaging build    build into build/, with release notes of changelogs/fragments
    python tests/packaging          also check with galaxy-importer and ansible-builder

Both have a separate environment in the user's cache, since galaxy-importer needs other versions of
ansible-core and ansible-lint.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

import environments  # noqa: E402
import tool_environment  # noqa: E402
from workspace import ClusterError, say  # noqa: E402

LOCK = HERE / "requirements.lock"
#: Placeholder address, without which galaxy-importer fails before other checks.
STAND_IN = "https://git.example.com/baton.kubernetes"
#: Maximum size of the archive in bytes; developer files would triple the size.
LARGEST = 600_000
#: Files in the archive, for users, and for ansible-lint and ansible-test of Galaxy.
CONTENT = {".ansible-lint", "CHANGELOG.rst", "CONTRIBUTING.md", "FILES.json", "LICENSE",
           "MANIFEST.json", "README.md",
           "SECURITY.md", "changelogs", "docs", "examples", "extensions/eda",
           "meta", "playbooks", "plugins",
           "requirements.txt", "roles",
           "tests/config.yml"}


def address() -> str:
    """Return the URL of the git remote without credentials; "" if the remote is a folder."""
    origin = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, check=False,
                            capture_output=True, text=True).stdout
    url = urllib.parse.urlsplit(origin.strip())
    return (urllib.parse.urlunsplit(("https", url.hostname, url.path, "", ""))
            if url.scheme == "https" and url.hostname else "")


def build(folder: Path, repository: str) -> Path:
    """Build the archive from all files that git does not ignore, with release notes and the
    address.
    """
    with tempfile.TemporaryDirectory(prefix="baton-build-") as place:
        tree = Path(place) / "ansible_collections" / "baton" / "kubernetes"
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                                 "--exclude-standard"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        if repository:
            readme = tree / "README.md"
            readme.write_text(absolute_links(readme.read_text("utf-8"), repository), "utf-8")
            with (tree / "galaxy.yml").open("a", encoding="utf-8") as file:
                file.write(f"repository: {repository}\n")
        environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": place}
        subprocess.run(["antsibull-changelog", "release"], cwd=tree, env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        subprocess.run(["ansible-galaxy", "collection", "build", "--force", "--output-path",
                        str(folder)], cwd=tree,
                       env=environment, check=True)
    galaxy = yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))
    return folder / "{namespace}-{name}-{version}.tar.gz".format(**galaxy)


def absolute_links(text: str, repository: str) -> str:
    """Return Markdown with absolute links, since Galaxy and Automation Hub show README alone."""
    base = repository.removesuffix(".git")
    text = re.sub(r"!\[([^\]]*)\]\((?!https?:|#)", rf"![\1]({base}/raw/HEAD/", text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)", rf"[\1]({base}/blob/HEAD/", text)


def complaints(file: Path) -> list[str]:
    """Return the faults of the archive's content."""
    with tarfile.open(file) as archive:
        names = [member.name for member in archive if member.isfile()]
    parts = {name
             for name in names
             if not any(name == part or name.startswith(f"{part}/") for part in CONTENT)}
    missing = {part
               for part in CONTENT
               if not any(name == part or name.startswith(f"{part}/") for name in names)}
    size = file.stat().st_size
    return [*(f"{name} is nothing that users need: build_ignore in galaxy.yml"
              for name in sorted(parts)),
            *(f"{name} is missing" for name in sorted(missing)),
            *([f"{size} bytes, more than {LARGEST}"] if size > LARGEST else [])]


def relative_links(file: Path) -> list[str]:
    """Return the links of the archive's README that would not work on Galaxy."""
    with tarfile.open(file) as archive:
        readme = archive.extractfile("README.md")
        assert readme
        links = re.findall(r"\]\((?!https?:|#)([^)]+)", readme.read().decode())
    return [f"README.md links to {link}, which does not work on Galaxy" for link in links]


def imported(python: Path, file: Path) -> list[str]:
    """Return the errors and warnings of galaxy-importer."""
    with tempfile.TemporaryDirectory(prefix="baton-import-") as place:
        settings = Path(place) / "galaxy-importer.cfg"
        settings.write_text("[galaxy-importer]\nRUN_ANSIBLE_DOC = True\nRUN_ANSIBLE_LINT = "
                            "True\nCHECK_CHANGELOG = True\n"
                            "CHECK_RUNTIME_YAML = True\n", encoding="utf-8")
        environment = {"GALAXY_IMPORTER_CONFIG": str(settings), "HOME": place,
                       "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        inherited = {key: value
                     for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        run = subprocess.run([str(python), "-m", "galaxy_importer.main", str(file)], cwd=place,
                             env={**inherited, **environment}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
                             check=False)
    print(run.stdout)
    lines = [line
             for line in run.stdout.splitlines()
             if line.startswith(("WARNING", "ERROR", "CRITICAL"))]
    return (lines
            or ([f"galaxy-importer has failed: exit code {run.returncode}"] if run.returncode
                else []))


def main(only_build: bool) -> int:
    """Build, check unless only_build, and return the exit code."""
    repository = address()
    file = build(ROOT / "build", repository)
    if not repository:
        say("packaging: this clone has no public address, so that the file names no repository, "
            "which Galaxy demands")
    if only_build:
        return 0
    python = tool_environment.python("galaxy-importer", LOCK)
    with tempfile.TemporaryDirectory(prefix="baton-packaging-") as place:
        addressed = file if repository else build(Path(place), STAND_IN)
        imports = [*relative_links(addressed), *imported(python, addressed)]
    faults = [*complaints(file), *imports,
              *environments.faults(python.parent / "ansible-builder", file)]
    for line in faults:
        say(f"packaging: {line}")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:] == ["build"]))
    except (ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"packaging: {error}")

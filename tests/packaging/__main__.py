# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the archive of the collection, and check the archive and the environments of examples/.

    python tests/packaging build    build into build/, with release notes from changelogs/fragments
    python tests/packaging release  build, if the last commit can be released
    python tests/packaging          also check with galaxy-importer, ansible-builder and reuse
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

import archives  # noqa: E402
import environments  # noqa: E402
import platform_roles  # noqa: E402
import tool_environment  # noqa: E402
from workspace import ClusterError, say  # noqa: E402

LOCK = HERE / "requirements.lock"
#: Placeholder for the address of the repository in galaxy.yml.
PLACEHOLDER = "https://git.example.com/baton.kubernetes"
#: The file with the address of the pages about errors.
ERROR_PAGES = "plugins/module_utils/model/error_pages.py"
#: Matches a domain name, but no IP address and no name of a local network.
PUBLIC_HOST = re.compile(r"(?:[a-z0-9-]+\.)+(?!internal$|intranet$|lan$|local$|localdomain$)[a-z]+")
MAX_BYTES = 700_000
#: The files and folders of the archive. Some are for ansible-lint and ansible-test on Galaxy.
CONTENT = {".ansible-lint", "CHANGELOG.rst", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md",
           "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "SECURITY.md", "changelogs",
           "docs", "examples", "extensions/eda", "meta", "playbooks", "plugins", "roles",
           "tests/config.yml"}


def git(*arguments: str) -> str:
    """Run git in this checkout, and return its output, even after an error."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True,
                          text=True).stdout.strip()


def galaxy_metadata() -> dict:
    return yaml.safe_load((ROOT / "galaxy.yml").read_text(encoding="utf-8"))


def repository_address() -> str:
    """Return the git remote's URL without credentials, or "" if it is not a public https URL."""
    url = urllib.parse.urlsplit(git("remote", "get-url", "origin"))
    host = url.hostname or ""
    return (urllib.parse.urlunsplit(("https", host, url.path.removesuffix(".git"), "", ""))
            if url.scheme == "https" and PUBLIC_HOST.fullmatch(host) else "")


def build(folder: Path) -> Path:
    """Build a reproducible archive from all files that git does not ignore, with release notes."""
    commit_time = int(git("log", "-1", "--format=%ct") or 0)
    with tempfile.TemporaryDirectory(prefix="baton-build-") as collections:
        tree = Path(collections) / "ansible_collections" / "baton" / "kubernetes"
        for name in filter(None, git("ls-files", "-z", "--cached", "--others",
                                     "--exclude-standard").split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        fill_in_addresses(tree)
        if (tree / "changelogs/fragments").is_dir():  # otherwise, git has the release notes already
            environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": collections}
            date = time.strftime("%Y-%m-%d", time.gmtime(commit_time))
            subprocess.run(["antsibull-changelog", "release", "--update-existing", "--date", date],
                           cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ansible-galaxy", "collection", "build", "--force", "--output-path",
                        str(folder)], cwd=tree, check=True)
    file = folder / "{namespace}-{name}-{version}.tar.gz".format(**galaxy_metadata())
    archives.make_reproducible(file, commit_time)
    return file


def fill_in_addresses(tree: Path) -> None:
    metadata_file = tree / "galaxy.yml"
    if galaxy_metadata()["repository"] == PLACEHOLDER:
        metadata_file.write_text(metadata_file.read_text("utf-8").replace(
            PLACEHOLDER, repository_address() or PLACEHOLDER), "utf-8")
    metadata = yaml.safe_load(metadata_file.read_text("utf-8"))
    for readme in (tree / "README.md", *tree.glob("roles/*/README.md")):
        folder = str(readme.parent.relative_to(tree))
        readme.write_text(absolute_links(readme.read_text("utf-8"), metadata["repository"], folder),
                          "utf-8")
    error_pages = tree / ERROR_PAGES
    error_pages.write_text(error_pages.read_text("utf-8").replace(
        'ADDRESS = ""', f'ADDRESS = "{error_address(metadata)}"'), "utf-8")


def release_faults() -> list[str]:
    """Return the reasons why this checkout cannot be released; see docs/internals/releasing.md."""
    version = galaxy_metadata()["version"]
    changelog = ROOT / "CHANGELOG.rst"
    return [*([f"galaxy.yml has the placeholder {PLACEHOLDER}; enter the address of the repository"]
              if galaxy_metadata()["repository"] == PLACEHOLDER and not repository_address()
              else []),
            *([f"the last commit does not have the tag {version}, the version of galaxy.yml"]
              if version not in git("tag", "--points-at", "HEAD").split() else []),
            *(["changelogs/fragments is not empty: run make changelog"]
              if any((ROOT / "changelogs/fragments").glob("*")) else []),
            *([f"CHANGELOG.rst has no section v{version}: run make changelog"]
              if not changelog.exists()
              or f"\nv{version}\n" not in changelog.read_text("utf-8") else []),
            *(["files differ from the last commit"] if git("status", "--porcelain") else [])]


def error_address(metadata: dict) -> str:
    """Return the address of a page about errors, with PAGE for its name, or "" if unknown.

    metadata: the content of galaxy.yml, where `documentation` is the address of a folder in the
    repository, or of a site built by `make docs`.
    """
    repository, docs = metadata["repository"].removesuffix(".git"), metadata["documentation"]
    if PLACEHOLDER in docs:
        return ""
    is_in_repository = docs.startswith(f"{repository}/")
    return (docs.rstrip("/")
            + ("/reference/errors/PAGE.md" if is_in_repository
               else "/docs/reference/errors/PAGE.html"))


def absolute_links(text: str, repository: str, folder: str = ".") -> str:
    """Make the relative links in the text of a README absolute, since Galaxy shows no other files.

    folder: the folder of the README.
    """
    repository_url = repository.removesuffix(".git")

    def absolute_link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match["path"]))
        return f"{match['text']}({repository_url}/{'raw' if match['image'] else 'blob'}/HEAD/{path}"

    return re.sub(r"(?P<text>(?P<image>!?)\[[^\]]*\])\((?!https?:|#)(?P<path>[^)#]+)",
                  absolute_link, text)


def content_faults(file: Path) -> list[str]:
    with tarfile.open(file) as archive:
        names = [member.name for member in archive if member.isfile()]
    unexpected_names = {
        name for name in names
        if not any(name == part or name.startswith(f"{part}/") for part in CONTENT)}
    missing_parts = {
        part for part in CONTENT
        if not any(name == part or name.startswith(f"{part}/") for name in names)}
    size = file.stat().st_size
    return [*(f"{name} is not in CONTENT: add it there, or to build_ignore in galaxy.yml"
              for name in sorted(unexpected_names)),
            *(f"{name} is missing" for name in sorted(missing_parts)),
            *([f"{size} bytes, more than {MAX_BYTES}"] if size > MAX_BYTES else [])]


def link_faults(file: Path) -> list[str]:
    faults = []
    with tarfile.open(file) as archive:
        for name in archive.getnames():
            if re.fullmatch(r"(roles/\w+/)?README\.md", name) and (
                    readme := archive.extractfile(name)):
                links = re.findall(r"\]\((?!https?:|#)([^)]+)", readme.read().decode())
                faults += [f"{name} links to {link}, which does not work on Galaxy"
                           for link in links]
    return faults


def license_faults(reuse: Path) -> list[str]:
    result = subprocess.run([str(reuse), "lint", "--lines"], cwd=ROOT, check=False,
                            capture_output=True, text=True)
    return (result.stdout + result.stderr).splitlines() if result.returncode else []


def importer_faults(python: Path, file: Path) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="baton-import-") as folder:
        settings_file = Path(folder) / "galaxy-importer.cfg"
        settings_file.write_text("[galaxy-importer]\nRUN_ANSIBLE_DOC = True\nRUN_ANSIBLE_LINT = "
                                 "True\nCHECK_CHANGELOG = True\n"
                                 "CHECK_RUNTIME_YAML = True\n", encoding="utf-8")
        environment = {"GALAXY_IMPORTER_CONFIG": str(settings_file), "HOME": folder,
                       "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        inherited_variables = {key: value for key, value in os.environ.items()
                               if not key.startswith("ANSIBLE_")}
        result = subprocess.run([str(python), "-m", "galaxy_importer.main", str(file)], cwd=folder,
                                env={**inherited_variables, **environment}, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
                                check=False)
    print(result.stdout)
    lines = [line
             for line in result.stdout.splitlines()
             if line.startswith(("WARNING", "ERROR", "CRITICAL"))]
    return (lines
            or ([f"galaxy-importer has failed: exit code {result.returncode}"] if result.returncode
                else []))


def main(command: str) -> int:
    if command == "release" and (faults := release_faults()):
        return report_faults(faults)
    file = build(ROOT / "build")
    if command:
        if galaxy_metadata()["repository"] == PLACEHOLDER and not repository_address():
            say("packaging: galaxy.yml has the placeholder of the repository's address, and this "
                "clone has no public address")
        return 0
    python = tool_environment.python("galaxy-importer", LOCK)
    with tempfile.TemporaryDirectory(prefix="baton-packaging-") as folder:
        is_reproducible = build(Path(folder)).read_bytes() == file.read_bytes()
        role_faults = list(platform_roles.faults(python.parent, Path(folder)))
    return report_faults([*content_faults(file), *link_faults(file),
                          *([] if is_reproducible else ["two builds give different archives"]),
                          *license_faults(python.parent / "reuse"),
                          *importer_faults(python, file),
                          *environments.faults(python.parent / "ansible-builder", file),
                          *role_faults])


def report_faults(faults: list[str]) -> int:
    for line in faults:
        say(f"packaging: {line}")
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:2] or [""]))
    except (ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"packaging: {error}")

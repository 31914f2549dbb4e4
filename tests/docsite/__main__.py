# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the documentation as HTML in build/docs/html, and check its links.

Usage: python tests/docsite
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

import links  # noqa: E402
import tool_environment  # noqa: E402
from workspace import ClusterError, say  # noqa: E402

LOCK = ROOT / "docs/requirements.lock"
SITE = ROOT / "build/docs"
SECTIONS = {
    "Learn": ["docs/tutorial/*.md"],
    "Do": ["docs/how-to/*.md", "examples/README.md"],
    "Look up": ["collection/index.rst", "roles/*/README.md", "docs/reference/**/*.md"],
    "Understand": ["docs/concepts/*.md"],
    "Maintain": ["docs/internals/*.md", "tests/*/README.md", "CONTRIBUTING.md", "SECURITY.md",
                 "CODE_OF_CONDUCT.md", "CHANGELOG.rst"],
}


def main() -> int:
    python = tool_environment.python("docs", LOCK)
    source_folder, html_folder = SITE / "source", SITE / "html"
    shutil.rmtree(SITE, ignore_errors=True)
    copy_pages(source_folder)
    run_antsibull(source_folder / "collection")
    readme = source_folder / "README.md"
    readme.write_text(readme.read_text("utf-8") + navigation(source_folder), "utf-8")
    subprocess.run([str(python), "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going",
                    "-b", "html", "-d", str(SITE / "doctrees"), "-c", str(HERE), str(source_folder),
                    str(html_folder)], check=True)
    shutil.copy(html_folder / "README.html", html_folder / "index.html")
    faults = links.broken_links(html_folder)
    for line in faults:
        say(f"docs: {line}")
    say(f"docs: {len(list(html_folder.rglob('*.html')))} pages, beginning with "
        f"{html_folder.relative_to(ROOT)}/index.html")
    return 1 if faults else 0


def copy_pages(source_folder: Path) -> None:
    listing = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                              "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    repository = yaml.safe_load((ROOT / "galaxy.yml").read_text("utf-8"))["repository"]
    for name in filter(None, listing.stdout.decode().split("\0")):
        file, copy = ROOT / name, source_folder / name
        if file.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                copy.write_text(with_absolute_folder_links(file, repository), "utf-8")
            else:
                shutil.copy(file, copy)


def with_absolute_folder_links(page: Path, repository: str) -> str:
    """Return the text of a page, with links to folders of the repository made absolute."""

    def replacement(match: re.Match[str]) -> str:
        folder = (page.parent / match[1]).resolve()
        return (f"]({repository}/tree/HEAD/{folder.relative_to(ROOT)})" if folder.is_dir()
                else match[0])

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s#]+)\)", replacement, page.read_text("utf-8"))


def run_antsibull(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    programs = ROOT / ".venv/bin"
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                   "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections")}
    subprocess.run(["antsibull-docs", "collection", "--use-current", "--squash-hierarchy",
                    "--fail-on-error", "--dest-dir", str(folder), "baton.kubernetes"],
                   env=environment, check=True)


def navigation(source_folder: Path) -> str:
    markdown = ""
    for title, patterns in SECTIONS.items():
        pages = [str(page.relative_to(source_folder).with_suffix(""))
                 for pattern in patterns for page in sorted(source_folder.glob(pattern))]
        markdown += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages,
                               "```", ""])
    return markdown


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ClusterError, subprocess.CalledProcessError) as error:
        sys.exit(f"docs: {error}")

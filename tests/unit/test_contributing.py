# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the files and functions that CONTRIBUTING names with the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_UTILS = ROOT / "plugins" / "module_utils"
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
TRACES = TEXT[TEXT.index("### An update, traced"):TEXT.index("## Where does my change go?")]
TABLE = TEXT[TEXT.index("## Where does my change go?"):TEXT.index("## A walk through one change")]
FUNCTIONS = sorted(set(re.findall(r"`([a-z_/]+)::(\w+)`", TRACES)))
PACKAGES = "analysis|cluster|explain|flows|model|release|run|traffic"
GUIDE = TEXT[:TEXT.index("## What a test of each tier")]
MODULE_UTILS_PATHS = sorted(set(re.findall(rf"`((?:{PACKAGES})/\w+(?:/\w+)?)[`.,]", GUIDE)))
OTHER_PATHS = sorted(set(re.findall(r"`((?:tests|roles|plugins)/[\w/.-]+)`", TABLE + TRACES)))


@pytest.mark.parametrize(("file", "function"), FUNCTIONS)
def test_function_of_a_trace_exists(file, function):
    tree = ast.parse((MODULE_UTILS / f"{file}.py").read_text("utf-8"))
    assert function in {node.name for node in ast.walk(tree)
                        if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("path", MODULE_UTILS_PATHS)
def test_file_of_a_package_exists(path):
    if path.startswith("flows/cloneset"):
        return  # only the patch of the walk-through adds the package
    file = path.partition(".")[0]
    assert (MODULE_UTILS / f"{file}.py").exists() or (MODULE_UTILS / file).is_dir()


@pytest.mark.parametrize("path", OTHER_PATHS)
def test_file_outside_of_module_utils_exists(path):
    assert (ROOT / path).exists()


def test_traces_name_each_flow_and_the_loop():
    files = {file for file, _function in FUNCTIONS}
    assert {"flows/client_driven/planner", "flows/server_driven/planner",
            "flows/migration/planner", "release/table", "run/driver"} <= files
    assert {"observe", "apply", "wait"} <= {function for _file, function in FUNCTIONS}


@pytest.mark.parametrize("page", ["README.md", "docs/reference/versions.md", "CONTRIBUTING.md"])
def test_page_states_what_is_public(page):
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert "Public are the modules, roles, playbooks, filters and lookups" in text
    assert re.search(r"`module_utils`[^.;]* (are|is) private", text)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
                         ids=lambda page: page.name)
def test_documentation_for_users_imports_no_private_code(page):
    assert not re.search(r"import .*(module|plugin)_utils|from .*(module|plugin)_utils",
                         page.read_text("utf-8"))

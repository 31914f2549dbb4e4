# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the error on an older Python, and that all files name the same minimum versions."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FLOOR = ROOT / "plugins" / "module_utils" / "floor.py"
MODULES = sorted((ROOT / "plugins" / "modules").glob("*.py"))


def read(path):
    return (ROOT / path).read_text("utf-8")


def test_message_on_an_older_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))

    with pytest.raises(SystemExit) as exit_info:
        runpy.run_path(str(FLOOR))

    result = json.loads(capsys.readouterr().out)
    assert (exit_info.value.code == 1 and result["failed"]
            and "needs Python 3.9 or newer" in result["msg"])
    assert (sys.executable in result["msg"] and "3.8.18" in result["msg"]
            and "\n" not in result["msg"])


@pytest.mark.parametrize("path", [FLOOR, *MODULES], ids=lambda path: path.name)
def test_floor_and_modules_parse_on_an_older_python(path):
    """`from __future__ import annotations` is a syntax error in Python 3.6."""
    tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 6))

    assert not any(isinstance(node, ast.ImportFrom) and node.module == "__future__"
                   for node in ast.walk(tree))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_python_version_is_checked_before_other_imports(path):
    own_imports = [node for node in ast.walk(ast.parse(path.read_text("utf-8")))
                   if isinstance(node, ast.ImportFrom)
                   and str(node.module).startswith("ansible_collections")]

    assert own_imports[0].names[0].name == "floor"


def test_oldest_versions_are_consistent():
    fragment = read("plugins/doc_fragments/connection.py")
    documented = dict(re.findall(r"^\| ([^|]+?) \| (\d[\d.]+) \|",
                                 read("docs/reference/versions.md"), re.MULTILINE))
    oldest_tested_client = re.search(r"PACKAGE_VERSIONS = \{\s*\"(\d+\.\d+)\.",
                                     read("tests/versions/packages.py"))
    oldest_core = yaml.safe_load(read("meta/runtime.yml"))["requires_ansible"].removeprefix(
        ">=").removesuffix(".0")
    oldest_python = ".".join(map(str, runpy.run_path(str(FLOOR))["OLDEST"]))

    assert f"python >= {oldest_python}\n" in fragment
    assert (yaml.safe_load(read("tests/config.yml"))["modules"]["python_requires"]
            == f">={oldest_python}")
    assert (documented["Python where the modules run (`ansible_python_interpreter`)"]
            == oldest_python)
    assert documented["ansible-core"] == oldest_core
    assert {yaml.safe_load(path.read_text())["galaxy_info"]["min_ansible_version"]
            for path in ROOT.glob("roles/*/meta/main.yml")} == {oldest_core}
    oldest_client = documented["Python package `kubernetes`"]
    assert oldest_tested_client and oldest_tested_client[1] == oldest_client
    assert (f"kubernetes >= {oldest_client}.0 " in fragment
            and f"kubernetes>={oldest_client}.0" in read("meta/ee-requirements.txt"))

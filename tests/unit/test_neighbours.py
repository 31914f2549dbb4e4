# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the table of neighbours (for example Argo Rollouts) in docs/reference/versions.md."""

from __future__ import annotations

import re
from pathlib import Path

import binaries

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/versions.md"


def test_the_page_names_each_version_that_is_built():
    section = PAGE.read_text("utf-8").partition("\n## Neighbours\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| (v[^ ]+) \| `(tests/(?:neighbours|node)/[^`]+)`", section,
                      re.MULTILINE)
    built = set()
    for folder, package in binaries.PACKAGES.values():
        go_mod = (ROOT / "tests/cluster" / folder / "go.mod").read_text("utf-8")
        if "a neighbour of tests/" in go_mod:
            modules = re.findall(r"^\s*(\S+) (v\S+)", go_mod, re.MULTILINE)
            built |= {version for module, version in modules
                      if f"{package}/".startswith(f"{module}/")}

    assert {version for version, _tests in rows} == built
    assert all((ROOT / tests).exists() for _version, tests in rows)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the docsite builder detects broken links."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def links():
    spec = importlib.util.spec_from_file_location("docsite_links", ROOT / "tests/docsite/links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("link, fault", [
    ('<a href="how-to/awx.html">', ""),
    ('<a href="how-to/awx.html#set-up">', ""),
    ('<a href="#here">', ""),
    ('<a href="how-to/a%20file.txt">', ""),
    ('<a href="https://example.com/none">', ""),
    ('<a href="mailto:a@example.com">', ""),
    ('<a href="none.html">', "index.html links to none.html: no such file"),
    ('<img src="none.svg">', "index.html links to none.svg: no such file"),
    ('<a href="how-to/awx.html#none">',
     "index.html links to how-to/awx.html#none: no anchor none"),
    ('<a href="#none">', "index.html links to #none: no anchor none"),
])
def test_broken_link_is_reported(links, tmp_path, link, fault):
    (tmp_path / "how-to").mkdir()
    (tmp_path / "how-to/awx.html").write_text('<h2 id="set-up">Set up</h2>', "utf-8")
    (tmp_path / "how-to/a file.txt").touch()
    (tmp_path / "index.html").write_text(f'<p id="here">{link}</p>', "utf-8")

    assert links.broken_links(tmp_path) == ([fault] if fault else [])

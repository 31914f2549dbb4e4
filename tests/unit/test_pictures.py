# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that README's pictures match the recording, which shows the current messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import draw
import pytest
from builders import UPDATE, rc
from clusters import Cluster

ROOT = Path(__file__).parents[2]
PICTURES, RECORDED = ROOT / "docs/pictures", ROOT / "tests/pictures/recorded"
TERMINAL = (RECORDED / "rollout.txt").read_text("utf-8")
REPORT = json.loads((RECORDED / "report.json").read_text("utf-8"))
HASH = re.compile(r"foo-[0-9a-f]{8,10}")
NAMES = ["rollout.svg", "report.svg"]


#: A step that only the recording has: the simulated cluster has no history.
HISTORY_STEP = "keep foo-HASH: myimage:v1 as revision 1"


def steps(lines):
    """Return the steps in these lines, with the placeholder HASH."""
    return {HASH.sub("foo-HASH", line) for line in lines
            if not line.startswith(("waiting: ", "waiting until ", "warning: "))}


@pytest.mark.parametrize("name, drawn",
                         [(NAMES[0], draw.terminal(TERMINAL)), (NAMES[1], draw.report(REPORT))])
def test_each_picture_is_current(name, drawn):
    assert (PICTURES / name).read_text("utf-8") == drawn, "run `make pictures`"


def test_the_terminal_picture_shows_the_current_lines():
    lines: list[str] = []
    result = Cluster(rc(replicas=4)).run(UPDATE, print_line=lines.append)

    pictured_lines = [line.removeprefix("localhost | default | ") for line in TERMINAL.splitlines()
                      if line.startswith("localhost | default | ")]
    assert steps(pictured_lines) - steps(lines) <= {HISTORY_STEP} and len(pictured_lines) > 15, (
        "run `make pictures`")
    assert all(step.startswith("scale ") for step in steps(lines) - steps(pictured_lines)), (
        "run `make pictures`")
    assert f'"msg": "{result["msg"]}"' in TERMINAL, "run `make pictures`"


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_self_contained_and_fits_both_color_schemes(name):
    text = (PICTURES / name).read_text("utf-8")
    tree = ElementTree.fromstring(text)

    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\(|<script|/(tmp|work|root|home)/",
                         text)
    width = float(tree.get("width"))
    for element in tree.iter("{http://www.w3.org/2000/svg}text"):
        assert float(element.get("x", 0)) + float(
            element.get("textLength", 0)) <= width - draw.MARGIN / 2, "".join(element.itertext())
    pages = [ROOT / "README.md", ROOT / "roles" / "image_bump" / "README.md"]
    assert any(f"docs/pictures/{name}" in page.read_text("utf-8") for page in pages)

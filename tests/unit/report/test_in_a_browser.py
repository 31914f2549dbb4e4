# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check in Chromium that no part of the page is cut off, and that colors are distinguishable.

`make test-browser` installs Chromium.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from results import FAILURE, analysis, failed, paused, updated

from ansible_collections.baton.kubernetes.plugins.filter.rollout_report import rollout_report

CSS = Path(__file__).parents[3] / "roles" / "image_bump" / "templates" / "report.css.j2"
#: Widths in pixels: a phone, a tablet and a desktop screen; A4 paper between its margins.
WIDTHS, PAPER = (390, 768, 1280), 680
LONGEST_NAME, LONG_WORD = "n" * 253, "w" * 400
LONG_TEXT = "\n".join(f"line {number}: <b>{LONG_WORD}</b> 日本語のとても長い名前です"
                      for number in range(50))


def bloat(item):
    """Return a copy of the data with the longest names, and with long texts."""
    if isinstance(item, dict):
        return {key: element
                if key in ("at", "phase", "started", "ended", "action", "outcome", "kind")
                else
                LONGEST_NAME if key in ("name", "pod", "container", "metric")
                and isinstance(element, str) else bloat(element)
                for key, element in item.items()}
    if isinstance(item, list):
        return [bloat(element) for element in item]
    return LONG_TEXT if isinstance(item, str) else item


TYPICAL = {"name": "shop", "namespace": "production", "image": "registry.example.com/team/shop:v2",
           "outcome": "rolled_back",
           "message": "the check has failed", "started": "2026-11-21T10:00:00Z",
           "ended": "2026-11-21T13:01:15Z", "user": "ada",
           "stages": [{"stage": "10%", "started": "2026-11-21T10:00:00Z", "outcome": "failed",
                       "checks": [analysis(), analysis(begin=10, outcome="failed"),
                                  {"file": "smoke.yml", "message": "503"}]}],
           "results": [paused(),
                       {**failed(),
                        "failure": {**FAILURE,
                                    "causes": [{**FAILURE["causes"][0],
                                                "log": ["the end"] * 50}]}}]}
FLEET = {"name": "app=shop", "outcome": "failed", "results": [
    {**(failed if number % 9 == 3 else updated)(f"shop-frontend-{number}"),
     "kind": ("Deployment", "StatefulSet")[number % 2]}
    for number in range(500)]}
CLUSTERS = {"clusters": {f"eu-west-{number}": {**TYPICAL, "page": f"rollout-eu-west-{number}.html"}
                         for number in range(12)},
            "regions": {"europe": [f"eu-west-{number}" for number in range(12)]}}
PAGES = {"typical": TYPICAL, "bloated": bloat(TYPICAL), "fleet": FLEET,
         "bloated fleet": bloat(FLEET),
         "clusters": CLUSTERS,
         "bloated clusters": bloat(CLUSTERS), "nothing": {}}

#: JavaScript that measures each frame: by how many pixels it is too wide, its number of
#: characters, and its first elements that are too wide (except charts and tables that scroll).
MEASURING_SCRIPT = """
onload = () => {
  const measurements = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, width = page.documentElement.clientWidth;
    page.querySelectorAll("details").forEach(element => { element.open = true; });
    const wideElements = [...page.body.querySelectorAll("*")].filter(element =>
      !element.closest(".scroll table, svg")
      && element.getBoundingClientRect().right > width + 1);
    measurements[frame.name] = [
      page.documentElement.scrollWidth - width, page.body.innerText.length,
      wideElements.slice(0, 5).map(element => element.outerHTML.slice(0, 100))];
  }
  document.getElementById("found").textContent = JSON.stringify(measurements);
};
"""


@pytest.fixture(scope="module")
def measurements(tmp_path_factory):
    """Return the measurements by page name and width, such as "fleet 390"."""
    frames = []
    for name, data in PAGES.items():
        page = rollout_report(data)
        paper = page.replace("@media print", "@media all").replace(
            "max-width: 40rem", "max-width: 0")
        for width, document in [*((width, page) for width in WIDTHS), ("paper", paper)]:
            style = f"width:{PAPER if width == 'paper' else width}px;height:900px"
            frames.append(f'<iframe name="{name} {width}" style="{style}" '
                          f'srcdoc="{html.escape(document)}"></iframe>')
    folder = tmp_path_factory.mktemp("browser")
    (folder / "all.html").write_text(
        f"<pre id=found></pre>{''.join(frames)}<script>{MEASURING_SCRIPT}</script>",
        encoding="utf-8")
    command = ["chromium", "--headless", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-sync",
               "--disable-component-update", "--disable-quic", "--disable-dev-shm-usage",
               f"--user-data-dir={folder / 'profile'}",
               *(["--no-sandbox"] if os.geteuid() == 0 else []), "--dump-dom",
               f"file://{folder}/all.html"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', run.stdout,
                                              re.DOTALL)[1]))


@pytest.mark.browser
@pytest.mark.parametrize("width", [*WIDTHS, "paper"])
@pytest.mark.parametrize("name", PAGES)
def test_no_element_is_cut_off(measurements, name, width):
    excess_pixels, character_count, wide_elements = measurements[f"{name} {width}"]

    assert (excess_pixels, wide_elements) == (0, []) and character_count > 50


@pytest.mark.parametrize("name", ["typical", "fleet", "clusters"])
def test_only_tables_of_numbers_scroll_on_a_phone(name):
    tables = re.findall(r"<table.*?</table>", rollout_report(PAGES[name]), re.DOTALL)

    assert {"stacked" in table.partition(">")[0] for table in tables
            if not re.search("all measurements|after each change</caption>", table)} == {True}


def test_size_of_a_page_is_limited():
    assert len(rollout_report(bloat(FLEET))) < 3_000_000
    long_results = [{**updated(), "steps": updated()["steps"] * 10_000}]
    assert len(rollout_report({"message": "x" * 10_000_000, "results": long_results})) < 500_000


def luminance(color):
    channels = (int(color[at:at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (channel / 12.92 if channel <= 0.04045
                        else ((channel + 0.055) / 1.055) ** 2.4
                        for channel in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(color, background):
    lighter, darker = sorted(map(luminance, (color, background)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_of_texts_and_lines(scheme):
    """WCAG requires a contrast of 4.5 for texts and 3 for graphics."""
    light, dark = CSS.read_text("utf-8").split("@media screen and (prefers-color-scheme: dark)")
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", light if scheme == "light" else dark))

    assert len(colors) == 13
    for text in ("text", "muted", "link", "good", "turned", "bad", "bound"):
        assert min(contrast(colors[text], colors[background])
                   for background in ("page", "soft")) >= 4.5, (
            text)
    for line in ("new", "old-line", "bound"):
        assert contrast(colors[line], colors["page"]) >= 3, line
    assert contrast(colors["new"], colors["old"]) >= 1.5

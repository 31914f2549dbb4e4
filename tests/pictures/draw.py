# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Draw the pictures for README: a terminal, and the first part of a report."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import rollouts, sizes_chart

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CSS = ROOT / "roles/image_bump/templates/report.css.j2"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
WIDTH, MARGIN = 860, 24
#: Size of a character of the terminal in pixels.
LETTER_WIDTH, LINE_HEIGHT = 7.6, 19
#: Prefix of each progress line.
MUTED_PREFIX = "localhost | default | "


def terminal(text: str) -> str:
    """Return a picture of a terminal with the lines of the text. Commands are bold."""
    lines = text.rstrip("\n").split("\n")
    height = 2 * MARGIN + LINE_HEIGHT * len(lines)
    body = []
    for number, line in enumerate(lines):
        y = MARGIN + LINE_HEIGHT * number + 13
        css_class = ("command" if line.startswith("$ ") else "bad" if line.startswith("^C")
                     else "good" if "CHANGED" in line else "output")
        prefix, message = ((MUTED_PREFIX, line[len(MUTED_PREFIX):])
                           if line.startswith(MUTED_PREFIX) and css_class == "output"
                           else ("", line))
        if prefix:
            body.append(_text_line(MARGIN, y, prefix.rstrip(), "muted"))
        if message:
            body.append(_text_line(MARGIN + LETTER_WIDTH * len(prefix), y, message, css_class))
    style = f"text {{ font: 13px {MONO}; white-space: pre; }} .command {{ font-weight: 700; }}"
    return _picture(height,
                    "A rollout in the terminal: interrupted half-way, and resumed by the same "
                    "command", style, body)


def report(data: dict[str, Any]) -> str:
    summary = rollouts.Report(data)
    (rollout,) = summary.rollouts
    y = MARGIN + 22
    body = [f'<text class="title" x="{MARGIN}" '
            f'y="{y}">{escape(data["namespace"])}/{escape(data["name"])}'
            f'<tspan class="good" dx="14" font-size="15">{escape(data["outcome"])}</tspan></text>',
            f'<text x="{MARGIN}" y="{y + 30}">{escape(summary.headline)}</text>']
    y += 66
    for stage in summary.stages:
        notes = ([soak.description for _rollout, soak in stage["soaks"]]
                 + [f'{check["file"]} {check["outcome"]}' for check in stage["checks"]])
        body += [f'<text x="{MARGIN}" y="{y}" font-weight="600">{escape(stage["stage"])}</text>',
                 f'<text x="{MARGIN + 60}" y="{y}">{escape("; ".join(notes))}</text>',
                 f'<text class="muted" x="{WIDTH - MARGIN}" y="{y}" text-anchor="end">→ '
                 f'{escape(stage["decision"])}</text>',
                 f'<line class="grid" x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y + 10}" '
                 f'y2="{y + 10}"/>']
        y += 30
    y += 8
    x = MARGIN
    for css_class, label in (("old", "old pods"), ("new", "new pods"), ("available", "available"),
                             ("soak", "watched"), ("pause", "checks"), ("floor", "floor"),
                             ("ceiling", "ceiling")):
        rect_tail = f'x="{x}" y="{y - 9}" width="22" height="10"/>'
        background = f'<rect class="new" {rect_tail}' if css_class == "pause" else ""
        shape = (f'{background}<rect class="{css_class}" {rect_tail}'
                 if css_class in ("old", "new", "soak", "pause") else
                 f'<line class="{css_class}" x1="{x}" x2="{x + 22}" y1="{y - 4}" y2="{y - 4}"/>')
        body.append(f'{shape}<text x="{x + 30}" y="{y}">{label}</text>')
        x += 116
    chart = sizes_chart.draw(rollout, WIDTH - 2 * MARGIN, 270, "chart")
    body.append(chart.replace("<svg ", f'<svg x="{MARGIN}" y="{y + 16}" ', 1))
    css = CSS.read_text("utf-8")
    rule_pattern = (r"^(?:\.sizes \.number|\.(?:old|new|edge|available|floor|ceiling|grid|axis|"
                    r"soak|pause|handover)\b)[^{]*\{.*\}$")
    style = "\n".join([f"text {{ font: 14px {SANS}; }} .title {{ font-size: 22px; font-weight: "
                       f"700; }}",
                       *re.findall(rule_pattern, css, re.MULTILINE)])
    return _picture(y + 16 + 270 + 8, f"The report of a rollout: {sizes_chart.describe(rollout)}",
                    style, body)


def _text_line(x: float, y: int, text: str, css_class: str) -> str:
    return (f'<text class="{css_class}" x="{x:g}" y="{y}" '
            f'textLength="{LETTER_WIDTH * len(text):g}" lengthAdjust="spacingAndGlyphs">'
            f"{escape(text)}</text>")


def _picture(height: int, title: str, style: str, body: list[str]) -> str:
    light, dark = re.findall(r":root \{(.*?)\}", CSS.read_text("utf-8"), re.DOTALL)
    colors = (f"svg {{{_on_one_line(light)}}}\n@media (prefers-color-scheme: dark) {{ svg "
              f"{{{_on_one_line(dark)}}} }}\n"
              "text { fill: var(--text); } .muted { fill: var(--muted); }\n"
              ".good { fill: var(--good); } .bad { fill: var(--bad); }\n"
              ".frame { fill: var(--page); stroke: var(--rule); }")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(title)}">',
        f"<style>\n{colors}\n{style}\n</style>",
        f'<rect class="frame" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *body, "</svg>\n"])


def _on_one_line(rules: str) -> str:
    return " ".join(rules.split())

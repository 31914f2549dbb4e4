# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the links of HTML pages lead to existing files and anchors."""

from __future__ import annotations

import html.parser
import os
import urllib.parse
from pathlib import Path
from typing import NamedTuple

ADDRESS_ATTRIBUTES = {"a": "href", "img": "src", "object": "data", "script": "src", "link": "href"}


class Page(NamedTuple):
    addresses: set[str]
    anchors: set[str]


class PageParser(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page(set(), set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if address := attributes.get(ADDRESS_ATTRIBUTES.get(tag, "")):
            self.page.addresses.add(address)
        self.page.anchors.update(filter(None, (attributes.get("id"), attributes.get("name"))))


def parse_page(file: Path) -> Page:
    parser = PageParser()
    parser.feed(file.read_text("utf-8"))
    return parser.page


def broken_links(folder: Path) -> list[str]:
    """Return a line for each link to a missing file or anchor. Ignore links to other hosts."""
    pages = {file: parse_page(file) for file in sorted(folder.rglob("*.html"))}
    return [f"{file.relative_to(folder)} links to {address}: {reason}"
            for file, page in pages.items() for address in sorted(page.addresses)
            if (reason := fault(file, address, pages))]


def fault(file: Path, address: str, pages: dict[Path, Page]) -> str:
    """Return why a link in a file is broken, or ""."""
    url = urllib.parse.urlsplit(address)
    if url.scheme or url.netloc:
        return ""
    path = urllib.parse.unquote(url.path)
    target = Path(os.path.normpath(file.parent / path)) if path else file
    if not target.is_file():
        return "no such file"
    anchor = urllib.parse.unquote(url.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"no anchor {anchor}"
    return ""

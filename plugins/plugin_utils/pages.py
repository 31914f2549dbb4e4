# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Determine the paths of the pages of a report, for one cluster or for several."""

from __future__ import annotations

import os
import pathlib
import typing as t

Json = dict[str, t.Any]


def host_page(path: str, host: str, paths: t.Sequence[str] = (), is_alone: bool = True) -> str:
    """Return the path of the page for one cluster, next to the page for all clusters.

    paths: the paths in the variables of all hosts of the inventory. A path of this host alone is
    the path of the page. is_alone: whether the play has no other host.

    >>> host_page("out/europe.html", "eu"), host_page("", "eu")
    ('out/europe-eu.html', '')
    >>> host_page("eu.html", "eu", ["eu.html", "us.html"]), host_page("a.html", "cluster/shop")
    ('eu.html', 'a-cluster%2Fshop.html')
    >>> host_page("eu.html", "eu", ["eu.html", "us.html", "eu.html"])
    'eu-eu.html'
    >>> host_page("a.html", "localhost"), host_page("a.html", "localhost", is_alone=False)
    ('a.html', 'a-localhost.html')
    """
    page = pathlib.PurePosixPath(path)
    has_own_path = len(paths) > 1 and paths.count(path) == 1
    if not path or has_own_path or (host == "localhost" and is_alone):
        return path
    escaped_host = host.replace("%", "%25").replace("/", "%2F")
    return str(page.with_name(f"{page.stem}-{escaped_host}{page.suffix}"))


def overview(hosts: list[str], data: list[Json], path: str, host_path: str,
             regions: Json) -> dict[str, Json]:
    """Return {path: data of the page for all clusters}, or {} without this page.

    data: the data of each host; {} before the end of the run. regions: the hosts by region.
    """
    if len(hosts) < 2 or not path or host_path == path:
        return {}
    return {path: {"clusters": dict(zip(hosts, data)), "regions": regions}}


def report_path(path: str) -> str:
    """Return the absolute path of a report, or ""."""
    return os.path.join(os.path.realpath("."), os.path.expanduser(path)) if path else ""

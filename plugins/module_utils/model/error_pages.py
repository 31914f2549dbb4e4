# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The page of docs/reference/errors that explains an error.

The Python module that creates an error determines the page. A unit test requires that the page
lists the error.
"""

from __future__ import annotations

#: The address of a page, where PAGE stands for the name of the page; "" if the address is unknown.
#: `make build` fills in the address from the field `documentation` of galaxy.yml.
ADDRESS = ""

#: Pairs of a page and the prefix of the Python modules in module_utils whose errors the page
#: explains. The first prefix that matches decides.
PAGES = (
    ("analysis.", "analysis"),
    ("traffic.", "traffic-split"),
    ("flows.migration.", "migration"),
    ("flows.", "controller"),
    ("cluster.controllers", "migration"),
    ("cluster.manifest_source", "options"),
    ("cluster.namespaces", "fleet"),
    ("cluster.", "connection"),
    ("explain.permissions", "connection"),
    ("explain.quotas", "controller"),
    ("run.fleet_result", "fleet"),
    ("run.fleet", "options"),
    ("run.places", "fleet"),
    ("run.image_drift", "connection"),
    ("run.watched", "connection"),
    ("run.", "other-clients"),
    ("release.", "release"),
    ("model.budgets", "controller"),
    ("model.", "options"),
    ("task", "options"),
)


def page_of(module: str) -> str:
    """Return the page for the errors of a module, or "" if no prefix in PAGES matches."""
    name = module.rpartition("module_utils.")[2]
    return next((page for prefix, page in PAGES if name.startswith(prefix)), "")


def url(page: str) -> str:
    """Return the address of a page, or "" if the address is unknown."""
    return ADDRESS.replace("PAGE", page) if page else ""

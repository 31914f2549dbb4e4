# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the page of docs/reference/errors that explains an error."""

from __future__ import annotations

#: The address of a page, in which PAGE stands for the name of the page. `make build` derives the
#: address from the fields `documentation` and `repository` of galaxy.yml.
ADDRESS = ""

#: Prefixes of Python modules in module_utils, and their pages. The first match decides.
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
    """Return the page for the errors of a Python module, or ""."""
    name = module.rpartition("module_utils.")[2]
    return next((page for prefix, page in PAGES if name.startswith(prefix)), "")


def url(page: str) -> str:
    """Return the address of a page, or "" if the address is unknown."""
    return ADDRESS.replace("PAGE", page) if page else ""

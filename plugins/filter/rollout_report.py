# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_report
short_description: Render a report on a rollout as an HTML page
version_added: 0.1.0
description:
  - Renders a self-contained page from the results of M(baton.kubernetes.rolling_update). The role
    P(baton.kubernetes.image_bump#role) collects these results in the required format.
  - The charts (number of pods over time, measurements of analyses) require the Python package
    C(drawsvg). Without the package, the page contains only tables, and a note about the package.
  - All text is HTML-escaped, including text from the cluster. M(ansible.builtin.template) does not
    escape text, even if the template enables Jinja2's C(autoescape).
author:
  - baton.kubernetes contributors (@baton-kubernetes)
requirements:
  - drawsvg >= 2 (for the charts)
positional: template
options:
  _input:
    description:
      - The data of the report, a dictionary with the keys C(name), C(namespace), C(image),
        C(outcome), C(message), C(started), C(ended), C(user), C(host), C(stages) and C(results). A
        missing value is shown as "not known".
      - C(stages) is a list of dictionaries with the keys C(stage), C(traffic) (the share of the
        requests), C(started), C(ended), C(outcome) and C(checks).
      - Each check has the keys C(file), C(outcome), C(message) and C(at). A check that is an
        analysis also has the key C(measured), a dictionary with C(name), C(kind), C(metrics) and
        C(measurements) from the result of M(baton.kubernetes.rollout_analysis).
      - C(results) is one list with the entries of C(results) that each task with
        M(baton.kubernetes.rolling_update) has returned, in the order of the tasks.
      - For several clusters, C(clusters) maps the name of each cluster to a dictionary with the
        keys above and the key C(page), the file name of the page for this cluster. C(regions) maps
        the name of each region to the names of its clusters. The rendered page is then a table of
        the clusters, with links to the page of each cluster.
    type: dict
    required: true
  template:
    description:
      - Path of the Jinja2 template of the page, on the control node. By default, the template of
        the role P(baton.kubernetes.image_bump#role).
    type: path
"""

EXAMPLES = r"""
- name: Write a report on an update
  ansible.builtin.copy:
    content: "{{ {'name': 'foo', 'results': update.results} | baton.kubernetes.rollout_report }}"
    dest: foo.html
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The HTML page.
  type: str
"""

import pathlib
import typing as t

import jinja2
from ansible.errors import AnsibleFilterError

TEMPLATE = (pathlib.Path(__file__).parents[2]
            / "roles" / "image_bump" / "templates" / "report.html.j2")


def rollout_report(data: dict[str, t.Any], template: str | pathlib.Path = TEMPLATE) -> str:
    if not isinstance(data, dict):
        raise AnsibleFilterError(f"rollout_report needs a dictionary, not a {type(data).__name__}")
    # Import the page only here: Ansible loads this file to look up any filter, and importing
    # drawsvg takes 60 ms.
    from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import page
    try:
        return page.render(data, pathlib.Path(template))
    except jinja2.TemplateError as error:
        raise AnsibleFilterError(
            f"rollout_report cannot use the template {template}: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable[..., t.Any]]:
        return {"rollout_report": rollout_report}

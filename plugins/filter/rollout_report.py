# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_report
short_description: Render a report on a rollout as an HTML page
version_added: 0.1.0
description:
  - Renders a self-contained page from the results of M(baton.kubernetes.rolling_update), in the
    form in which the role P(baton.kubernetes.image_bump#role) collects them.
  - The charts of the controllers' sizes, and of what analyses have measured, are drawn with the
    Python package C(drawsvg). Without it, the page only has the figures, and says so.
  - All text is HTML-escaped, including what comes from the cluster. M(ansible.builtin.template)
    does not do that, even if the template asks for Jinja2's C(autoescape).
author:
  - baton.kubernetes contributors (@baton-kubernetes)
requirements:
  - drawsvg >= 2 (for the chart)
positional: template
options:
  _input:
    description:
      - What to report, as a dictionary with the keys C(name), C(namespace), C(image), C(outcome),
        C(message), C(started), C(ended), C(user), C(host), C(stages) and C(results). Anything
        missing is shown as not known.
      - C(stages) is a list of dictionaries with the keys C(stage), C(started), C(ended), C(outcome)
        and C(checks).
      - Each check has C(file), C(outcome), C(message) and C(at), and if it was an analysis,
        C(name), C(metrics) and C(measurements) of its result as C(measured).
      - C(results) is what M(baton.kubernetes.rolling_update) returns as C(results), of all tasks
        in order.
      - Instead, C(clusters) can be a dictionary with all of these for each of many clusters, by its
        name, and C(regions) one with the names of the clusters of each region. The page then is a
        table of the clusters, with links to their own pages beside it, whose names are in C(page).
    type: dict
    required: true
  template:
    description:
      - Path of the Jinja2 template of the page, on the Ansible controller. By default, that of the
        role P(baton.kubernetes.image_bump#role).
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

import jinja2
from ansible.errors import AnsibleFilterError

from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import page

#: The template of the role image_bump.
TEMPLATE = (pathlib.Path(__file__).parents[2]
            / "roles" / "image_bump" / "templates" / "report.html.j2")


def rollout_report(data: dict, template: str | pathlib.Path = TEMPLATE) -> str:
    if not isinstance(data, dict):
        raise AnsibleFilterError(f"rollout_report needs a dictionary, not a {type(data).__name__}")
    try:
        return page.render(data, pathlib.Path(template))
    except jinja2.TemplateError as error:
        raise AnsibleFilterError(
            f"rollout_report cannot use the template {template}: {error}") from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict:
        return {"rollout_report": rollout_report}

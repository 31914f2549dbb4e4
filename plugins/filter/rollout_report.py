# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_report
short_description: Render a report on a rollout as an HTML page
version_added: 0.1.0
description:
  - Renders a self-contained page from the results of M(baton.kubernetes.rolling_update), in the form in which the role
    P(baton.kubernetes.image_bump#role) collects them.
  - The charts of the controllers' sizes, and of what analyses have measured, are drawn with the Python package C(drawsvg). Without
    it, the page only has the figures, and says so.
  - All text is HTML-escaped, including what comes from the cluster. M(ansible.builtin.template) does not do that, even if the
    template asks for Jinja2's C(autoescape).
author:
  - baton.kubernetes contributors (@baton-kubernetes)
requirements:
  - drawsvg >= 2 (for the chart)
positional: template
options:
  _input:
    description:
      - What to report, as a dictionary with the keys C(name), C(namespace), C(image), C(outcome), C(message), C(started),
        C(ended), C(user), C(host), C(stages) and C(results). Anything missing is shown as not known.
      - C(stages) is a list of dictionaries with the keys C(stage), C(started), C(ended), C(outcome) and C(checks).
      - Each check has C(file), C(outcome), C(message) and C(at), and if it was an analysis, C(name), C(metrics) and C(measurements)
        of its result as C(measured).
      - C(results) is a list of results of M(baton.kubernetes.rolling_update), in the order in which they were returned.
      - Instead, C(clusters) can be a dictionary with all of these for each of many clusters, by its name, and C(regions) one
        with the names of the clusters of each region. The page then is a table of the clusters, with links to their own pages
        beside it, whose names are in C(page).
    type: dict
    required: true
  template:
    description:
      - Path of the Jinja2 template of the page, on the Ansible controller. By default, that of the role
        P(baton.kubernetes.image_bump#role).
    type: path
"""

EXAMPLES = r"""
- name: Write a report on an update
  ansible.builtin.copy:
    content: "{{ {'name': 'foo', 'results': [update]} | baton.kubernetes.rollout_report }}"
    dest: foo.html
    mode: "0600"
"""

RETURN = r"""
_value:
  description: The HTML page.
  type: str
"""

import datetime
import functools
import pathlib

import jinja2
import markupsafe
from ansible.errors import AnsibleFilterError

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import objects, visible
from ansible_collections.baton.kubernetes.plugins.plugin_utils import curves, overview, rollouts, sizes_chart

#: What the role image_bump writes.
TEMPLATE = pathlib.Path(__file__).parents[2] / "roles" / "image_bump" / "templates" / "report.html.j2"


def rollout_report(data: dict, template: str | pathlib.Path = TEMPLATE) -> str:
    """The page, from what the role has collected and the path of its template."""
    if not isinstance(data, dict):
        raise AnsibleFilterError(f"rollout_report needs a dictionary, not a {type(data).__name__}")
    path = pathlib.Path(template)
    try:
        page = _environment(path.parent).get_template(path.name)
    except jinja2.TemplateError as error:
        raise AnsibleFilterError(f"rollout_report cannot use the template {template}: {error}") from error
    data = rollouts.of_clusters(data)
    return page.render(data=data, report=rollouts.Report(data), picture=picture, describe=sizes_chart.describe,
                       is_drawn=sizes_chart.is_possible(), curves=curves.of_stages(objects(data, "stages")),
                       picture_of_curve=picture_of_curve, most_steps=rollouts.STEPS, most_rows=overview.ALL_SHOWN)


@functools.cache
def _environment(folder: pathlib.Path) -> jinja2.Environment:
    """Ansible's own templating ignores autoescape, and a message from a pod may hold whatever its owner likes."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_finalized)
    environment.filters |= {"day": day, "time": time, "took": took, "told": curves.told, "parts": overview.parts}
    return environment


def _finalized(value: object) -> object:
    """What would turn the order of letters round, or hide some, is shown; what comes from the cluster has none any more."""
    return visible(value, "\n") if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value


def picture(rollout: rollouts.Rollout, width: int, height: int, name: str) -> markupsafe.Markup:
    """The only part of the page that is not escaped by the template: drawsvg has done it."""
    return markupsafe.Markup(sizes_chart.draw(rollout, width, height, name))


def picture_of_curve(curve: curves.Curve, width: int, height: int, name: str) -> markupsafe.Markup:
    """The same of what was measured."""
    return markupsafe.Markup(curves.draw(curve, width, height, name))


def day(at: datetime.datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "not known"


def time(at: datetime.datetime | None) -> str:
    return f"{at:%H:%M:%S}" if at else "not known"


def took(begin: datetime.datetime | None, end: datetime.datetime | None) -> str:
    return rollouts.duration((end - begin).total_seconds()) if begin and end else "not known"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict:
        return {"rollout_report": rollout_report}

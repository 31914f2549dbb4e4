# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Render the page of a report with a template that escapes all text."""

from __future__ import annotations

import datetime
import functools
import pathlib

import jinja2
import markupsafe

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    escape_unprintable,
    map_texts,
    objects,
)

from . import curves, overview, rollouts, sizes_chart


def render(data: rollouts.Json, template: pathlib.Path) -> str:
    """Return the page as HTML. Raises jinja2.TemplateError. data: a Run or a Release (data.py)."""
    loaded_template = _environment(template.parent).get_template(template.name)
    # The modules have already escaped text from the cluster. Other text may still contain
    # unprintable characters, which can reorder or hide text.
    data = rollouts.with_run_keys(map_texts(
        data, lambda text: escape_unprintable(text, allowed="\n")))
    return loaded_template.render(
        data=data, report=rollouts.Report(data),
        curves=curves.curves_of_stages(objects(data, "stages")), chart=chart,
        describe=sizes_chart.describe, has_charts=sizes_chart.is_available(),
        max_steps=rollouts.MAX_STEPS, max_soaks=overview.MAX_INITIAL_ROWS)


@functools.cache
def _environment(folder: pathlib.Path) -> jinja2.Environment:
    """Return an environment that escapes all text as HTML.

    Some text is not trusted, for example a log. Ansible's own templating would ignore autoescape.
    """
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True,
                                     trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"date_time": format_date_time, "time": format_time,
                            "elapsed": format_elapsed, "number": curves.format_cell,
                            "split": overview.split}
    return environment


def chart(item: rollouts.Rollout | curves.Curve, width: int, height: int,
          name: str) -> markupsafe.Markup:
    """Return a chart as markup, which is safe: drawsvg has escaped all texts in the chart."""
    return markupsafe.Markup(curves.draw(item, width, height, name)
                             if isinstance(item, curves.Curve)
                             else sizes_chart.draw(item, width, height, name))


def format_date_time(at: datetime.datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "not known"


def format_time(at: datetime.datetime | None) -> str:
    return f"{at:%H:%M:%S}" if at else "not known"


def format_elapsed(begin: datetime.datetime | None, end: datetime.datetime | None) -> str:
    return rollouts.duration((end - begin).total_seconds()) if begin and end else "not known"

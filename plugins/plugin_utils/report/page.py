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
    objects,
)

from . import curves, overview, rollouts, sizes_chart


def render(data: rollouts.Json, template: pathlib.Path) -> str:
    """Return the page, and raise jinja2.TemplateError if the template cannot be used."""
    page = _environment(template.parent).get_template(template.name)
    data = rollouts.of_clusters(data)
    return page.render(data=data, report=rollouts.Report(data),
                       curves=curves.of_stages(objects(data, "stages")), picture=picture,
                       describe=sizes_chart.describe, is_drawn=sizes_chart.is_possible(),
                       most_steps=rollouts.STEPS, most_rows=overview.ALL_SHOWN)


@functools.cache
def _environment(folder: pathlib.Path) -> jinja2.Environment:
    """Return an environment that escapes all text.

    Ansible's own templating ignores autoescape, and the owner of a pod decides on its messages.
    """
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True,
                                     trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined,
                                     finalize=_finalized)
    environment.filters |= {"day": day, "time": time, "took": took, "number": curves.format_number,
                            "parts": overview.parts}
    return environment


def _finalized(value: object) -> object:
    """Make characters visible that reorder or hide text.

    Text from the cluster has none any more.
    """
    return (escape_unprintable(value, "\n") if isinstance(value, str)
            and not isinstance(value, markupsafe.Markup) else value)


def picture(item: rollouts.Rollout | curves.Curve, width: int, height: int,
            name: str) -> markupsafe.Markup:
    """Return the chart as markup: drawsvg has escaped all texts."""
    return markupsafe.Markup(curves.draw(item, width, height, name)
                             if isinstance(item, curves.Curve)
                             else sizes_chart.draw(item, width, height, name))


def day(at: datetime.datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "not known"


def time(at: datetime.datetime | None) -> str:
    return f"{at:%H:%M:%S}" if at else "not known"


def took(begin: datetime.datetime | None, end: datetime.datetime | None) -> str:
    return rollouts.duration((end - begin).total_seconds()) if begin and end else "not known"

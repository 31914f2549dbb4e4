# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Determine the desired template, by a dry run if necessary."""

from __future__ import annotations

import typing as t

from ..model.fields import Json
from ..model.identity import digest
from ..model.observed import Controller, deployment_label
from ..model.request import Request
from ..model.steps import Create, Merge, Patch, put
from ..model.template import replace_ambiguous_lists, with_label
from .flow import Cluster, Memory


def merge_patch(request: Request, base: Controller) -> Merge:
    """Return the patch that merges the template fields of the request into `base`."""
    return Merge(base.name, {"spec": {"template": replace_ambiguous_lists(request.template)}},
                 base.kind)


def dry_run_patch(request: Request, base: Controller) -> Merge | Patch:
    """Return a patch for a dry run, whose response has the desired template."""
    if request.definition is None:
        return merge_patch(request, base)
    template = request.definition["spec"]["template"]
    return Patch(base.name, (put("/spec/template", template),), base.kind)


def desired_template(request: Request, base: Controller, cluster: Cluster, memory: Memory,
                     write_for_dry_run: t.Callable[[Request, Controller], Patch | Merge | Create]
                     ) -> Json:
    """Return the desired template. Raises RolloutError.

    Only a dry run correctly merges a partial template, or completes the template of a definition.
    """
    if not request.needs_dry_run:
        return request.apply_to(base.template)
    key = base.uid + digest(base.template)
    if memory.desired_template_cache is None or memory.desired_template_cache[0] != key:
        item = cluster.dry_run(write_for_dry_run(request, base))
        memory.desired_template_cache = (key, item["spec"]["template"])
    return request.with_checksums(memory.desired_template_cache[1])


def template_patch(request: Request, base: Controller, template: Json) -> Patch:
    """Return the patch that gives `base` a template, with the deployment label of `base`."""
    label = deployment_label(request, base)
    labeled_template = with_label(template, request.label_key, label) if label else template
    return Patch(base.name, (put("/spec/template", labeled_template),), base.kind)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of analyses before the first write."""

from __future__ import annotations

import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import parse_analysis
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.plugin_utils import validation
from ansible_collections.baton.kubernetes.plugins.plugin_utils.entries import plain

Json = dict[str, t.Any]


def validate(analyses: list[Json]) -> list[str]:
    """Return one sentence for each analysis with invalid options.

    A missing option is not an error, because module_defaults may contain the option. Nor is a
    missing Python package: the module may run on another machine.
    """
    errors = [_error_message(plain(analysis)) for analysis in analyses]
    return [f"analysis {number}: {error}" for number, error in enumerate(errors, 1) if error]


def _error_message(options: Json) -> str:
    from ansible_collections.baton.kubernetes.plugins.module_utils import task
    from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import prometheus
    from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import (
        connection,
        secrets,
    )

    spec = {option: {**details, "required": False}
            for option, details in task.ANALYSIS_OPTIONS.items()}
    params, errors = validation.validate(spec, {**options, "name": "any"})
    message = "; ".join(errors)
    try:
        if not message and params.get("metrics") is not None:
            parse_analysis(params)
        if not message and params.get("prometheus_url"):
            prometheus.check_url_and_credentials(params)
    except RolloutError as error:
        message = ": ".join(filter(None, [error.what, error.why]))
    except ImportError:  # the module may run on another machine
        return ""
    return secrets.mask(message, connection.secrets(params) | prometheus.secrets(params))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate options with the argument spec of a module or a role."""

from __future__ import annotations

import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

Json = dict[str, t.Any]


def validate(spec: dict[str, Json], options: Json) -> tuple[Json, list[str]]:
    """Return the options with the types of the spec, and the error messages."""
    try:
        validation = ArgumentSpecValidator(spec).validate(options)
    except OverflowError as error:  # ansible-core converts "inf" to an integer
        integers = [name for name in options if spec.get(name, {}).get("type") == "int"]
        return options, [f"{', '.join(integers)}: {error}"]
    return validation.validated_parameters, validation.error_messages

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the requests that a module parses from its options."""

from __future__ import annotations

import pytest
from builders import template

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    parse_request,
)

DEFINITION = {"kind": "ReplicationController", "metadata": {"name": "bar"},
              "spec": {"template": template("myimage:v2")}}
PATCH = {"spec": {"hostNetwork": True}}


def build_request(**params):
    defaults = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    return parse_request({**defaults, "name": "foo", **params})


def refusal(**params):
    with pytest.raises(RolloutError) as error:
        build_request(**params)
    return error.value


def definition_with(**spec):
    return {**DEFINITION, "spec": {**DEFINITION["spec"], **spec}}


def pod_template(*containers, **spec):
    """Return a pod template. Each of `containers` is a text `name=image`."""
    pairs = [container.partition("=") for container in containers]
    return {"spec": {**spec,
                     "containers": [{"name": name, "image": image}
                                    for name, _equals, image in pairs]}}


V2 = {"image": "myimage:v2"}

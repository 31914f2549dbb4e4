# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Requests for the tests, as a module is given them: a test says only the options that matter to it."""

from __future__ import annotations

import pytest
from builders import template

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC, request_from

DEFINITION = {"kind": "ReplicationController", "metadata": {"name": "bar"}, "spec": {"template": template("myimage:v2")}}
PATCH = {"spec": {"hostNetwork": True}}


def ask(**params):
    """The request of a module that is given these options."""
    defaults = {option: spec.get("default") for option, spec in ARGUMENT_SPEC.items()}
    return request_from({**defaults, "name": "foo", **params})


def refusal(**params):
    with pytest.raises(RolloutError) as refused:
        ask(**params)
    return refused.value


def defined(**spec):
    """A definition whose spec has these fields too."""
    return {**DEFINITION, "spec": {**DEFINITION["spec"], **spec}}


def pods(*containers, **spec):
    """A template of containers, each as name=image."""
    pairs = [each.partition("=") for each in containers]
    return {"spec": {**spec, "containers": [{"name": name, "image": image} for name, _equals, image in pairs]}}


V2 = {"image": "myimage:v2"}

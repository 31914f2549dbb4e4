# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A role says each of its options in several files: what they say agrees, and agrees with the module behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.baton.kubernetes.plugins.module_utils import request as module

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=["image_bump", "rollback"])
def role(request) -> str:
    """Each role that wraps the module."""
    return request.param


def read(path: str):
    """The content of one YAML file, named from the root of the repository."""
    return yaml.safe_load((ROOT / path).read_text())


def options(role: str) -> dict:
    """The role's documented options, under the names that the module gives them."""
    documented = read(f"roles/{role}/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return {name.removeprefix(f"{role}_"): option for name, option in documented.items()}


def test_defaults_are_the_documented_ones(role):
    documented = {f"{role}_{name}": option["default"] for name, option in options(role).items() if "default" in option}

    assert read(f"roles/{role}/defaults/main.yml") == documented


def test_options_are_options_of_the_module_with_its_defaults(role):
    defaults = {name: option.get("default") for name, option in options(role).items()}
    of_module = {name: module.ARGUMENT_SPEC[name].get("default") for name in defaults}

    assert defaults == {name: default if default is None else str(default) for name, default in of_module.items()}


def test_every_option_is_handed_to_the_module(role):
    (task,) = read(f"roles/{role}/tasks/main.yml")
    handed_over = task["baton.kubernetes.rolling_update"]

    assert set(handed_over) - {"state"} == set(options(role))


def test_every_option_can_be_given_to_the_playbook_by_its_short_name(role):
    (play,) = read(f"playbooks/{role}.yml")
    handed_over = play["tasks"][0]["vars"]

    assert set(handed_over) == {f"{role}_{name}" for name in options(role)}
    for variable, template in handed_over.items():
        assert variable.removeprefix(f"{role}_") in template

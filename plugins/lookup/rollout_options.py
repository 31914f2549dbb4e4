# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a role of this collection hands on to the module; documented in rollout_options.yml."""

from __future__ import annotations

import functools
import pathlib
import typing as t

import yaml
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC

ROLES = pathlib.Path(__file__).parents[2] / "roles"
#: What the playbooks call an option whose own name is a word of Ansible's, which warns of variables that are called so.
OTHER_NAMES = {"name": "controller", "namespace": "controller_namespace", "timeout": "time_limit"}


class LookupModule(LookupBase):
    """Plugin of Ansible."""

    def run(self, terms: list[str], variables: t.Any = None, without: t.Sequence[str] = ()) -> list[dict[str, t.Any]]:
        extra = load_extra_vars(self._loader)
        options_of = (given(role, variables, self._templar.template, extra) for role in terms)
        return [{option: value for option, value in each.items() if option not in without} for each in options_of]


def given(role: str, variables: t.Mapping[str, t.Any], template: t.Callable[[t.Any], t.Any],
          extra: t.Container[str] = ()) -> dict[str, t.Any]:
    """The role's options of the module, from variables that may be templates; extra has those that were typed (-e).

    Raises AnsibleError for a value that the role's spec does not allow.
    """
    specs = options(role)
    is_short = template(variables.get(f"__{role}_short_names", False))
    told = {}
    for name, spec in specs.items():
        shortly = short_names(_short(name, role)) if is_short else []
        names = [name, *shortly] if name in extra else [*shortly, name]
        values = (template(variables[each]) for each in names if each in variables)
        value = next((each for each in values if not is_empty(each)), spec.get("default"))
        if not is_empty(value):
            told[name] = value
    if errors := ArgumentSpecValidator(specs).validate(told).error_messages:
        raise AnsibleError("\n".join(errors))
    return {_short(name, role): value for name, value in told.items()}


@functools.cache
def options(role: str) -> dict[str, dict[str, t.Any]]:
    """The specs of those options of a role that are options of the module, by the names of the role's variables."""
    try:
        specs = yaml.safe_load((ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    except OSError as error:
        raise AnsibleError(f"{role} is no role of this collection: {error}") from error
    return {name: spec for name, spec in specs["argument_specs"]["main"]["options"].items()
            if _short(name, role) in ARGUMENT_SPEC}


def short_names(option: str) -> list[str]:
    """What the playbooks take for an option of the module, the one that counts most first."""
    return [*filter(None, [OTHER_NAMES.get(option)]), option]


def _short(name: str, role: str) -> str:
    """The name of a role's variable as the module has it."""
    return name.removeprefix(f"{role}_")


def is_empty(value: t.Any) -> bool:
    """Whether a survey, or nobody, has answered; 0 and false are answers."""
    return value is None or value in ("", [], {})

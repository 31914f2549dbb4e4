# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A role says each of its options in several files: what they say agrees, and agrees with the module behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC

ROOT = Path(__file__).resolve().parents[3]

#: What a role does itself, with the module or around it.
OWN = {
    "image_bump": {"stages", "verify_tasks", "before_tasks", "after_tasks", "failure_tasks", "report"},
    "rollback": {"before_tasks", "after_tasks", "failure_tasks"},
}
#: Where a role's default is another one than the module's.
DIFFERENT = {"image_bump": {"on_failure", "names", "label_selectors"}, "rollback": set()}
#: What a role decides by itself.
DECIDED = {"image_bump": {"return_sizes", "state", "pause_at"}, "rollback": {"state"}}
#: Options for many controllers.
FLEET = {"names", "label_selectors", "concurrency", "max_failures", "order_annotation"}


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


def tasks(content):
    """All tasks of a file, those in blocks too."""
    for task in content:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part, ()))


def handed_over(role: str) -> dict:
    """What the role's one call of the module says."""
    called = [task["baton.kubernetes.rolling_update"] for file in (ROOT / "roles" / role / "tasks").glob("*.yml")
              for task in tasks(yaml.safe_load(file.read_text())) if "baton.kubernetes.rolling_update" in task]
    (call,) = called
    return call


def as_text(default) -> str | None:
    """A default of the module, as a role that also takes the texts of a survey says it."""
    return str(default).lower() if isinstance(default, bool) else default if default is None else str(default)


def test_defaults_are_the_documented_ones(role):
    documented = {f"{role}_{name}": option["default"] for name, option in options(role).items() if "default" in option}

    assert read(f"roles/{role}/defaults/main.yml") == documented


def test_options_are_options_of_the_module_with_its_defaults(role):
    defaults = {name: option.get("default") for name, option in options(role).items()
                if name not in OWN[role] | DIFFERENT[role]}
    of_module = {name: ARGUMENT_SPEC[name].get("default") for name in defaults}

    assert defaults == {name: as_text(default) for name, default in of_module.items()}


def test_choices_are_those_of_the_module_and_nothing(role):
    choices = {name: set(option["choices"]) for name, option in options(role).items() if "choices" in option}

    assert choices == {name: {"", *ARGUMENT_SPEC[name]["choices"]} for name in choices}


def test_every_option_is_handed_to_the_module(role):
    given = set(handed_over(role))

    assert given - DECIDED[role] == set(options(role)) - OWN[role]


def test_only_what_makes_no_sense_of_the_module_is_left_out(role):
    left_out = set(ARGUMENT_SPEC) - set(handed_over(role))

    of_other_tasks = {"template", "definition", "src", "to_kind", "release_owner"}
    not_forward = {"to_revision"}
    not_to_go_back = FLEET | {"min_ready_seconds", "on_failure", "pause_at", "max_steps", "return_sizes"}
    assert left_out == of_other_tasks | (not_to_go_back if role == "rollback" else not_forward)


def test_every_option_can_be_given_to_the_playbook_by_its_short_name(role):
    files = [ROOT / "playbooks" / f"{role}.yml", ROOT / "playbooks" / "tasks" / f"{role}.yml"]
    parts = [part for file in files if file.exists() for part in yaml.safe_load(file.read_text())]
    (include,) = (task for part in parts for task in tasks(part.get("tasks", [part])) if "ansible.builtin.include_role" in task)

    assert set(include["vars"]) == {f"{role}_{name}" for name in options(role)}
    for variable, template in include["vars"].items():
        assert variable.removeprefix(f"{role}_") in template


def test_what_the_role_asks_itself_is_its_own(role):
    assert all(name.startswith(f"__{role}_") for name in read(f"roles/{role}/vars/main.yml"))

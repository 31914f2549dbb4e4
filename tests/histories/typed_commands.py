# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the commands in an error: ad-hoc commands of Ansible, and kubectl commands."""

from __future__ import annotations

import json
import re
import shlex
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.baton.kubernetes.plugins.module_utils.model import options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module

Json = dict[str, t.Any]

AD_HOC = ["ansible", "localhost", "-m"]
#: How a suggestion in words begins: to rerun the task that began the update.
RERUN_SUGGESTION = "run the task that began it"
#: Placeholders in commands, and the image that replaces them.
PLACEHOLDERS, WORKING_IMAGE = re.compile(r"THE-EARLIER-IMAGE|ANOTHER-IMAGE"), "myimage:v1"
#: Options that a suggested rerun of the task must contain.
REPEATED_OPTIONS = ("next_name", "container", "images", "to_revision", "max_surge",
                    "max_unavailable", "min_ready_seconds", "pause_at", "soak", "nodes",
                    "on_failure", "failure_grace", "progress_deadline", "timeout", "autoscaler")
#: Those of REPEATED_OPTIONS that a suggested rollback may leave out.
OPTIONAL_IN_ROLLBACKS = ("min_ready_seconds", "timeout", "on_failure", "pause_at", "soak", "nodes")
#: Options that the test sets for its tasks.
CONNECTION_OPTIONS = ("context", "kubeconfig", "host", "namespace")


def alternatives(message: str) -> list[list[list[str]]]:
    """Return the alternatives: lists of commands. A command is a list of words.

    Commands that only show objects, and alternatives that need an editor, are left out.
    """
    _rest, _next, text = message.partition("\nNext:\n")
    suggestions: list[list[list[str]]] = [[]]
    for line in map(str.strip, text.splitlines()):
        if line.startswith("if not"):
            break
        if line == "or:":
            suggestions.append([])
        elif line.startswith(RERUN_SUGGESTION):
            suggestions[-1].append([RERUN_SUGGESTION])
        elif line.startswith(("ansible ", "kubectl ")):
            suggestions[-1].append(shlex.split(PLACEHOLDERS.sub(WORKING_IMAGE, line)))
    without_editor = [commands for commands in suggestions if "edit" not in map(_verb, commands)]
    without_display = [[words for words in commands if _verb(words) not in ("get", "describe")]
                       for commands in without_editor]
    return list(filter(None, without_display))


def _verb(words: list[str]) -> str:
    return parse_kubectl(words)[0] if words[0] == "kubectl" else ""


def task_params(words: list[str]) -> Json | None:
    """Return the validated options of an ad-hoc command, or None for a kubectl command."""
    if words[: len(AD_HOC)] != AD_HOC:
        assert words[0] == "kubectl", f"neither an ad-hoc nor a kubectl command: {words}"
        return None
    name, _dash_a, text = words[len(AD_HOC):]
    module = Module(name.removeprefix("baton.kubernetes."))
    command_options = (json.loads(text) if text.startswith("{")
                       else dict(part.split("=", 1) for part in shlex.split(text)))
    command_options = {option: value for option, value in command_options.items()
                       if option not in CONNECTION_OPTIONS}
    validated = ArgumentSpecValidator(options.SPECS[module]).validate(command_options)
    assert not validated.error_messages, f"{text}: {validated.error_messages}"
    validated_options = options.with_kinds(validated.validated_parameters)
    params = {option: value for option, value in validated_options.items()
              if option in command_options}
    is_migration = module is Module.MIGRATION
    return ({"module": str(module), "state": str(module.default_state), **params} if is_migration
            else params)


def goal(params: Json) -> tuple[t.Any, ...]:
    """Return the options that determine which pods exist after a task."""
    return params.get("state", "updated"), params.get("image"), str(params.get("to_revision"))


def lost_options(params: Json, message: str) -> list[str]:
    """Return a text for each option that is missing or different in a suggested rerun."""
    params = {option: value
              for option, value in params.items() if option != "next_name"
              and f"leave {option} out" not in message}
    is_rollback = params.get("state") == "rolled_back" and "to_revision" not in params
    needed_options = [option for option in REPEATED_OPTIONS
                      if option in params and not (is_rollback and option in OPTIONAL_IN_ROLLBACKS)]
    commands = [words for alternative in alternatives(message) for words in alternative
                if words != [RERUN_SUGGESTION]]
    tasks = [task for words in commands if (task := task_params(words)) is not None]
    return [f"{option} in {task}" for task in tasks if goal(task) == goal(params)
            for option in needed_options
            if task.get(option, _default(option)) != _validated(option, params[option])]


def _default(option: str) -> t.Any:
    return options.ARGUMENT_SPEC[option].get("default")


def _validated(option: str, value: t.Any) -> t.Any:
    return ArgumentSpecValidator({option: options.ARGUMENT_SPEC[option]}).validate(
        {option: value}).validated_parameters[option]


def annotation_changes(words: list[str]) -> dict[str, str | None]:
    """Return the annotations that `kubectl annotate` sets; None removes an annotation."""
    pairs = [word.partition("=") for word in words]
    assert all(equals or key.endswith("-") for key, equals, _value in pairs), words
    return {key if equals else key[:-1]: value if equals else None for key, equals, value in pairs}


def parse_kubectl(words: list[str]) -> tuple[str, list[str], Json]:
    """Return the verb, the arguments and the options, such as {"-n": "default"}."""
    flags: Json = {}
    arguments: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in ("-n", "-p", "-o", "-L", "-l"):
            flags[word] = next(rest)
        elif word.startswith("--"):
            name, _equals, value = word.partition("=")
            flags[name] = value
        else:
            arguments.append(word)
    return arguments[0], arguments[1:], flags

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands that a user can paste into a shell, safe against injection. No I/O.

The shell and Ansible take every value in these commands literally. This needs care, because Ansible
parses the arguments of an ad-hoc command twice: as key=value, with quotes and escapes of its own,
and as a Jinja template.
"""

from __future__ import annotations

import re
import shlex
import sys
import typing as t

from .fields import Json
from .identity import canonical

#: Values that need no quotes in key=value.
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+%=-]+")
#: The beginnings of all commands.
_PROGRAMS = ("ansible localhost -m ", "ansible-playbook ", "kubectl ", "oc ", "helm ", "argocd ",
             f"{shlex.quote(sys.executable)} -m pip ")
#: The beginnings of instructions for a user of AWX, who has no shell for commands.
_LAUNCHES = ("launch ", "relaunch ")
#: Placeholders in a command, or the suffix of some. The user has to replace the whole word.
PLACEHOLDERS = ("THE-EARLIER-IMAGE", "ANOTHER-IMAGE", "-OF-THE-TASK")
#: The first characters of an expression ("{{") and of a header ("#jinja2:"), which Jinja evaluates.
_EVALUATED = set("{#")
#: For each program, its flags that correspond to the connection options of the modules.
_FLAGS = {"kubectl": {"context": "--context", "kubeconfig": "--kubeconfig", "host": "--server"},
          "helm": {"context": "--kube-context", "kubeconfig": "--kubeconfig",
                   "host": "--kube-apiserver"}}


def is_command(line: str) -> bool:
    """Return whether a user can use this line of an error message verbatim.

    The line is a command, or in AWX the instruction to launch a job. No other line of an error
    begins with one of these words.
    """
    has_placeholder = any(word in line for word in PLACEHOLDERS)
    return line.startswith((*_PROGRAMS, *_LAUNCHES)) and not has_placeholder


def is_plain(text: str) -> bool:
    """Return whether the text needs no quotes in key=value."""
    return bool(_PLAIN.fullmatch(text))


def ansible(module: str, options: Json) -> str | None:
    """Return the ad-hoc command of a module with these options.

    Returns None if there is no safe command: Jinja would evaluate a value, a value is not
    printable, or a value is None.
    """
    if not _is_safe(options):
        return None
    has_mapping = any(isinstance(value, dict) for value in options.values())
    are_plain = not has_mapping and all(map(is_plain, _texts(options)))
    arguments = (" ".join(f"{key}={_format(value)}" for key, value in options.items())
                 if are_plain else canonical(options))
    return f"ansible localhost -m baton.kubernetes.{module} -a {shlex.quote(arguments)}"


def playbook(name: str, variables: Json) -> str | None:
    """Return the command that runs a playbook of the collection with these variables.

    Returns None if there is no safe command, for the same reasons as ansible().
    """
    if not _is_safe(variables):
        return None
    # A text with commas (several names or stages) still fits key=value.
    # A list with several entries, such as files, needs JSON.
    are_plain = all(is_plain(text.replace(",", "")) for text in _texts(variables)) and not any(
        isinstance(value, dict) or (isinstance(value, list) and len(value) > 1)
        for value in variables.values())
    extra_vars = ([f"{key}={_format(value)}" for key, value in variables.items()] if are_plain
                  else [canonical(variables)])
    return " ".join([f"ansible-playbook baton.kubernetes.{name}",
                     *(f"-e {shlex.quote(text)}" for text in extra_vars)])


def _is_safe(options: Json) -> bool:
    """Return whether neither Ansible nor the shell evaluates a value."""
    return None not in options.values() and not any(
        _EVALUATED & set(text) or not text.isprintable() for text in _texts(options))


def kubectl(connection: t.Mapping[str, str | None], namespace: str = "") -> str:
    """Return the beginning of a kubectl command, with the connection of the task.

    An option with an unknown value, such as a kubeconfig passed as content, gets a placeholder:
    the command then fails instead of using another cluster.
    """
    return _program("kubectl", connection, namespace)


def helm(connection: t.Mapping[str, str | None], namespace: str) -> str:
    """Return the beginning of a Helm command."""
    return _program("helm", connection, namespace)


def _program(name: str, connection: t.Mapping[str, str | None], namespace: str) -> str:
    values = {option: f"{option.upper()}-OF-THE-TASK" if value is None else value
              for option, value in connection.items()}
    flags = [f"{_FLAGS[name][option]}={value}" for option, value in values.items()]
    return shlex.join([name, *flags, *(["-n", namespace] if namespace else [])])


def _format(value: t.Any) -> str:
    """Return a value as it is written in key=value, such as true, 0.5 or first,second."""
    if isinstance(value, list):
        return ",".join(map(_format, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _texts(options: Json) -> t.Iterator[str]:
    """Yield the texts of all values, including nested keys and values."""
    for value in options.values():
        if isinstance(value, dict):
            yield from (text for pair in value.items() for text in pair)
        elif isinstance(value, list):
            yield from map(str, value)
        else:
            yield str(value)

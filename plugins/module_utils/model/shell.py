# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands that a user can safely paste into a shell.

Ansible parses the arguments of an ad-hoc command twice: as key=value, with its own quotes and
escapes, and as a Jinja template.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import typing as t

from .fields import Json
from .identity import canonical

#: A value that needs no quotes in key=value.
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+%=-]+")
#: A value that advice in words can show, in quotes.
_QUOTABLE = re.compile(r"[A-Za-z0-9._:/@+%=, ()-]*")
_COMMAND_PREFIXES = (
    "ansible localhost -m ", "ansible-playbook ", "kubectl ", "oc ", "helm ", "argocd ",
    "env KUBECONFIG=", "env 'KUBECONFIG=",
    f"{shlex.quote(sys.executable)} -m pip ")
#: The first words of advice for a user of AWX, who has no shell.
_AWX_PREFIXES = ("launch ", "relaunch ")
#: Words in commands that the user has to replace. Messages use no other placeholder in a command.
PLACEHOLDERS = (
    "THE-EARLIER-IMAGE", "ANOTHER-IMAGE", "APPLICATION", "CONTAINER", "NAME", "NAMESPACE", "NODE",
    "POD", "RELEASE", "REPLICA_SET", "CONTEXT-OF-THE-TASK", "KUBECONFIG-OF-THE-TASK",
    "HOST-OF-THE-TASK")
_PLACEHOLDER = re.compile(rf"(?<![\w./:-])({'|'.join(PLACEHOLDERS)})(?![\w./:-])")
#: Every text that Ansible evaluates as Jinja ("{{", "{%", "#jinja2:") contains a character of
#: this set.
_JINJA_CHARACTERS = set("{#")
#: The flags for the connection options.
_KUBECTL_FLAGS = {"context": "--context", "kubeconfig": "--kubeconfig", "host": "--server"}
_HELM_FLAGS = {
    "context": "--kube-context", "kubeconfig": "--kubeconfig", "host": "--kube-apiserver"}


def is_command(line: str) -> bool:
    """Return whether this line of an error message is a complete command or AWX advice."""
    prefixes = (*_COMMAND_PREFIXES, *_AWX_PREFIXES)
    return line.removeprefix("until ").startswith(prefixes) and not has_placeholder(line)


def has_placeholder(line: str) -> bool:
    """Return whether the user has to replace a word of this line."""
    return bool(_PLACEHOLDER.search(line))


def is_plain(text: str) -> bool:
    """Return whether the text needs no quotes in key=value."""
    return bool(_PLAIN.fullmatch(text))


def ansible(module: str, options: Json) -> str | None:
    """Return the ad-hoc command of a module with these options, or None if a value is not safe."""
    if not _is_safe(options):
        return None
    fits_key_value = (all(map(_is_flat, options.values()))
                      and all(map(is_plain, _texts(options))))
    arguments = (" ".join(f"{key}={_format(value)}" for key, value in options.items())
                 if fits_key_value else canonical(options))
    return f"ansible localhost -m baton.kubernetes.{module} -a {shlex.quote(arguments)}"


def describe(option: str, value: t.Any) -> str | None:
    """Return option=value for advice in words, if necessary as JSON; None for an unsafe value."""
    texts = list(_texts(value))
    if not all(map(_QUOTABLE.fullmatch, texts)):
        return None
    fits_key_value = _is_flat(value) and all(map(is_plain, texts))
    return f"{option}={_format(value) if fits_key_value else canonical(value)}"


def playbook(name: str, variables: Json) -> str | None:
    """Return the command of a playbook with these variables, or None if a value is not safe."""
    arguments = extra_vars(variables)
    return f"ansible-playbook baton.kubernetes.{name} {arguments}" if arguments else None


def extra_vars(variables: Json) -> str | None:
    """Return the flags -e that set these variables, or None if a value is not safe."""
    if not _is_safe(variables):
        return None
    # With -e key=value, a value is always a text. A text may contain commas, but a list with
    # several entries would become a single text, so use JSON.
    fits_key_value = all(
        is_plain(text.replace(",", "")) for text in _texts(variables)) and all(
        _is_flat(value) and not (isinstance(value, list) and len(value) > 1)
        for value in variables.values())
    texts = ([f"{key}={_format(value)}" for key, value in variables.items()]
             if fits_key_value else [canonical(variables)])
    return " ".join(f"-e {shlex.quote(text)}" for text in texts)


def _is_safe(options: Json) -> bool:
    return None not in options.values() and not any(
        _JINJA_CHARACTERS & set(text) or not text.isprintable() for text in _texts(options))


def kubectl(connection: t.Mapping[str, str | None], namespace: str = "",
            program: str = "kubectl") -> str:
    """Return the beginning of a command of kubectl, or of a program with the same flags.

    An unknown value in the connection becomes a placeholder, so that the command does not use
    another cluster.
    """
    return _program(program, _KUBECTL_FLAGS, connection, namespace)


def helm(connection: t.Mapping[str, str | None], namespace: str) -> str:
    """Return the beginning of a Helm command."""
    return _program("helm", _HELM_FLAGS, connection, namespace)


def _program(program: str, flags: t.Mapping[str, str], connection: t.Mapping[str, str | None],
             namespace: str) -> str:
    variables, arguments = [], []
    for option, known_value in connection.items():
        value = f"{option.upper()}-OF-THE-TASK" if known_value is None else known_value
        if option == "kubeconfig" and os.pathsep in value:  # the flag accepts only one file
            variables = ["env", f"KUBECONFIG={value}"]
        else:
            arguments.append(f"{flags[option]}={value}")
    return shlex.join([*variables, *program.split(), *arguments,
                       *(["-n", namespace] if namespace else [])])


def _format(value: t.Any) -> str:
    """Return a value in the form for key=value, such as true, 0.5 or first,second."""
    if isinstance(value, list):
        return ",".join(map(_format, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _is_flat(value: t.Any) -> bool:
    """Return whether a value is neither a dictionary nor a list with dictionaries or lists."""
    parts = value if isinstance(value, list) else [value]
    return not any(isinstance(part, (dict, list)) for part in parts)


def _texts(value: t.Any) -> t.Iterator[str]:
    """Yield all keys and values of a JSON value as texts."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if not isinstance(value, list):
        yield str(value)
        return
    for part in value:
        yield from _texts(part)

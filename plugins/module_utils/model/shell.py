# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Commands that people paste into a shell: no value in them is evaluated, neither there nor by Ansible. Pure.

Ansible evaluates arguments of an ad-hoc command twice: it splits key=value, with quotes and escapes of its own, and what has
Jinja's braces is a template.
"""

from __future__ import annotations

import re
import shlex
import typing as t

from .fields import Json
from .identity import canonical

#: What key=value takes as it is.
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+%=-]+")
#: What Jinja's braces, and its header, begin with.
_EVALUATED = set("{#")
#: The options of other programs for the connection, by ours.
_FLAGS = {"kubectl": {"context": "--context", "kubeconfig": "--kubeconfig", "host": "--server"},
          "helm": {"context": "--kube-context", "kubeconfig": "--kubeconfig", "host": "--kube-apiserver"}}


def is_plain(text: str) -> bool:
    """Return whether key=value takes the text as it is."""
    return bool(_PLAIN.fullmatch(text))


def ansible(options: Json) -> str | None:
    """Return the ad-hoc command for our module with these options: texts, numbers, and lists and mappings of texts.

    None where there is no safe one: an option would be evaluated, or cannot be typed (None).
    """
    if None in options.values() or any(_EVALUATED & set(text) or not text.isprintable() for text in _texts(options)):
        return None
    has_mapping = any(isinstance(value, dict) for value in options.values())
    fits = not has_mapping and all(map(is_plain, _texts(options)))
    arguments = " ".join(f"{key}={_typed(value)}" for key, value in options.items()) if fits else canonical(options)
    return f"ansible localhost -m baton.kubernetes.rolling_update -a {shlex.quote(arguments)}"


def kubectl(connection: t.Mapping[str, str | None], namespace: str = "") -> str:
    """What a command of kubectl begins with, for a namespace or for the cluster.

    Where it lacks something (a kubeconfig that was given as content) it fails, instead of asking another cluster.
    """
    return _program("kubectl", connection, namespace)


def helm(connection: t.Mapping[str, str | None], namespace: str) -> str:
    """The same of Helm's."""
    return _program("helm", connection, namespace)


def _program(name: str, connection: t.Mapping[str, str | None], namespace: str) -> str:
    told = {option: f"{option.upper()}-OF-THE-TASK" if value is None else value for option, value in connection.items()}
    flags = [f"{_FLAGS[name][option]}={value}" for option, value in told.items()]
    return shlex.join([name, *flags, *(["-n", namespace] if namespace else [])])


def _typed(value: t.Any) -> str:
    """Return a value as key=value has it."""
    if isinstance(value, list):
        return ",".join(map(_typed, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _texts(options: Json) -> t.Iterator[str]:
    for value in options.values():
        if isinstance(value, dict):
            yield from (text for pair in value.items() for text in pair)
        elif isinstance(value, list):
            yield from map(str, value)
        else:
            yield str(value)

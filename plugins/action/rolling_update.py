# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module rolling_update with its progress lines on the terminal. Decides nothing.

Where the module would run on this machine, with this Python, its code is first asked here whether there is anything to do:
of what a converged task costs, a tenth is the question itself, the rest is packing the module and starting another Python.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.utils.display import Display

from ..plugin_utils.with_progress import ActionWithProgress


@contextlib.contextmanager
def in_folder(path: str) -> t.Iterator[None]:
    """Python 3.10, which ansible-core 2.16 may run on, has no contextlib.chdir."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


class ActionModule(ActionWithProgress):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        if self._is_here(task_vars or {}) and (result := self._look()):
            return result
        return self.execute(task_vars)

    def _is_here(self, task_vars: dict[str, t.Any]) -> bool:
        """Whether the module would run as this user on this machine, with this Python and this environment."""
        if delegate := self._task.delegate_to:
            task_vars = task_vars.get("ansible_delegated_vars", {}).get(delegate, {})
        return (
            self._connection.transport == "local"
            and not (self._task.become or self._task.async_val or any(self._task.environment or ()))
            and self._templar.template(task_vars.get("ansible_python_interpreter")) == sys.executable
        )

    def _look(self) -> dict[str, t.Any] | None:
        """The result of a task that needs no write and no wait; None leaves everything to the module."""
        from ansible_collections.baton.kubernetes.plugins.module_utils import task

        try:
            # Here, and not where it is needed: so many calls further down, Python 3.11 maps and unmaps a piece of its stack
            # at 7,000 of the calls that this takes, 45 ms in all.
            with contextlib.suppress(ImportError):  # which is told where it is needed
                importlib.import_module("kubernetes.config")
            with in_folder(self._loader.get_basedir()):  # as core has it for the module
                valid = ArgumentSpecValidator(task.UPDATE_OPTIONS).validate(json.loads(json.dumps(self._task.args)))
                if valid.error_messages or valid._warnings:
                    return None
                look = functools.partial(task.update, diff=self._task.diff, only_look=True)
                return task.answer(look, valid.validated_parameters, Display().warning)
        except Exception as error:  # whatever it is, the module says it better
            Display().vvv(f"left to the module: {error!r}")
            return None

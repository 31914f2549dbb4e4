# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows the module's progress lines on the terminal while it runs, and ends it when Ansible is gone.

Decides nothing: without this file the result is the same. Only an action plugin can print while a task runs.

Where the module would run on this machine, with this Python, its code is first asked here whether there is anything to do:
of what a converged task costs, a tenth is the question itself, the rest is packing the module and starting another Python.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import secrets
import sys
import typing as t

from ansible import constants as C
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.utils.display import Display

from ..plugin_utils import progress
from ..plugin_utils.with_secrets import ActionWithSecrets

#: Where another user of the same machine can write, with sudo or at the other end of ssh.
SHARED_FOLDER = "/tmp"
#: Callbacks that write the whole output for a program.
MACHINES_READ = ("json", "jsonl")


@contextlib.contextmanager
def in_folder(path: str) -> t.Iterator[None]:
    """Python 3.10, which ansible-core 2.16 may run on, has no contextlib.chdir."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


class ActionModule(ActionWithSecrets):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        if self._is_here(task_vars or {}) and (result := self._look()):
            return result
        if self._task.async_val:
            return self._execute_module(task_vars=task_vars, wrap_async=True)
        with progress.ends_with_ansible():
            if not self._shows_progress():
                return self._execute_module(task_vars=task_vars)
            return self._show_progress(task_vars or {})

    def _show_progress(self, task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """Run the module and print its lines as they come."""
        is_local = self._connection.transport == "local"
        folder = C.DEFAULT_LOCAL_TMP if is_local and not self._task.become else SHARED_FOLDER
        name = f"baton-progress-{secrets.token_hex(16)}"
        path = f"{folder}/{name}"
        user = str(self.get_become_option("become_user") or "") if self._task.become else ""
        source = progress.Here(path, user) if is_local else progress.There(self, path, user)
        follower = progress.Follower(source, name, prefix=str(task_vars.get("inventory_hostname", "")))
        environment = {"BATON_PROGRESS": path}
        self._task.environment.append(environment)
        result: dict[str, t.Any] = {"failed": True}
        try:
            result = self._execute_module(task_vars=task_vars)
            return result
        finally:
            self._task.environment.remove(environment)
            follower.stop(has_lines=bool(result.get("changed") or result.get("failed")))

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

    def _shows_progress(self) -> bool:
        """Not where a machine reads, where it is unwanted, or where the file is out of reach."""
        return not (
            self._task.check_mode
            or self._task.no_log
            or not self._is_known()
            or C.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in MACHINES_READ
            or not boolean(self._task.args.get("progress", True), strict=False)
        )

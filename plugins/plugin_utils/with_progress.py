# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a module or its code, show progress lines meanwhile, and end the run with Ansible.

The result is the same without this file. Only an action plugin can print while a task runs.
"""

from __future__ import annotations

import contextlib
import secrets
import typing as t

from ansible import constants as C
from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.model.fields import Json
from . import here, progress
from .with_secrets import ActionWithSecrets

#: A folder that every user of a machine can write to, for sudo and the remote end of ssh.
SHARED_FOLDER = "/tmp"
#: Stdout callbacks whose whole output a program reads.
MACHINES_READ = ("json", "jsonl")


class ActionWithProgress(ActionWithSecrets):
    #: Whether check mode shows progress lines, too.
    says_in_check_mode = False

    def execute(self, task_vars: dict[str, t.Any] | None, function: str, params: Json | None,
                **more: bool) -> dict[str, t.Any]:
        """Run a function of module_utils.task with the parameters, or the module without any."""
        if self._task.async_val:
            return self._execute_module(task_vars=task_vars, wrap_async=True)
        path = (f"{self._folder()}/baton-progress-{secrets.token_hex(16)}" if self._shows_progress()
                else "")
        environment = {"BATON_PROGRESS": path} if path else {}
        process = (here.Process(function, params, self._loader.get_basedir(), environment, **more)
                   if params else None)
        with progress.ends_with_ansible(), self._shown(path, task_vars or {}) as ended:
            ended.update(process.result() if process else self._run_module(environment, task_vars))
        return ended

    def has_lines(self, result: dict[str, t.Any]) -> bool:
        """Return whether the module must have written progress lines."""
        return bool(result.get("changed") or result.get("failed"))

    def _run_module(self, environment: dict[str, str],
                    task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        if environment:
            self._task.environment.append(environment)
        try:
            result: dict[str, t.Any] = self._execute_module(task_vars=task_vars)
            return result
        finally:
            if environment:
                self._task.environment.remove(environment)

    def _folder(self) -> str:
        is_own = self._connection.transport == "local" and not self._connection.become
        return str(C.DEFAULT_LOCAL_TMP) if is_own else SHARED_FOLDER

    @contextlib.contextmanager
    def _shown(self, path: str, task_vars: dict[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
        """Print the lines of the file while the body runs, which fills in the result."""
        result: dict[str, t.Any] = {}
        if not path:
            yield result
            return
        user = str(self.get_become_option("become_user") or "") if self._connection.become else ""
        source = (progress.LocalFile(path, user) if self._connection.transport == "local"
                  else progress.RemoteFile(self, path, user))
        follower = progress.Follower(source, path.rpartition("/")[2],
                                     prefix=str(task_vars.get("inventory_hostname", "")))
        try:
            yield result
        finally:
            follower.stop(has_lines=not result or self.has_lines(result))

    def _shows_progress(self) -> bool:
        """Return whether a person reads the output, wants progress, and can have the file."""
        return not (
            (self._task.check_mode and not self.says_in_check_mode)
            or self._task.no_log
            or not self._is_known()
            or C.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in MACHINES_READ
            or not boolean(self._task.args.get("progress", True), strict=False)
        )

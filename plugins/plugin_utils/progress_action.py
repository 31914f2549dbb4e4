# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the base class of the action plugins that print progress lines while a task runs."""

from __future__ import annotations

import contextlib
import secrets
import typing as t

from ansible import constants as C
from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.model.errors import RolloutError
from ..module_utils.model.fields import Json
from ..module_utils.model.kinds import Module
from ..module_utils.model.options import refuse_removed
from . import in_process, progress
from .module_action import ModuleAction

#: The folder of the progress file if the module runs as another user or over ssh.
SHARED_FOLDER = "/tmp"
#: Stdout callbacks with output for programs.
MACHINE_READABLE_CALLBACKS = ("json", "jsonl")


#: The keys are names of functions in task.py.
MODULE_BY_FUNCTION = {"update": Module.ROLLING_UPDATE, "migrate": Module.MIGRATION}


class ProgressAction(ModuleAction):
    """Base class of an action plugin that prints progress lines."""

    prints_in_check_mode = False

    def check_and_run(self, task_vars: dict[str, t.Any] | None, function: str) -> dict[str, t.Any]:
        """Check the options, and call change()."""
        try:
            refuse_removed(MODULE_BY_FUNCTION[function], self._task.args)
        except RolloutError as error:
            return error.as_result() | {"failed": True}
        if self._task.args.pop("_return_sizes", False):
            self.environment["BATON_SIZES"] = "1"
        if self._task.args.pop("_return_pods", False):
            self.environment["BATON_PODS"] = "1"
        if names := self._task.args.pop("_resumed_names", ()):
            self.environment["BATON_RESUMED"] = ",".join(names)
        return self.change(task_vars, function)

    def change(self, task_vars: dict[str, t.Any] | None, function: str) -> dict[str, t.Any]:
        """Run the task; write nothing in check mode."""
        params, diff = self.parameters(function, task_vars), self._task.diff
        if not self._task.check_mode:
            return self.execute(task_vars, function, params, diff=diff)
        result = self.read(function, params, diff=diff, check_mode=True)
        return result or self.execute(task_vars, function, None, diff=diff)

    def execute(self, task_vars: dict[str, t.Any] | None, function: str, params: Json | None,
                **flags: bool) -> dict[str, t.Any]:
        """Run a function of task.py, or the module if the parameters are None."""
        if self._task.async_val:
            return self.run_module(task_vars)
        path = (f"{self._folder()}/baton-progress-{secrets.token_hex(16)}" if self._shows_progress()
                else "")
        if path:
            self.environment["BATON_PROGRESS"] = path
        process = (in_process.Process(function, params, self._loader.get_basedir(),
                                      self.environment, **flags) if params else None)
        with progress.end_with_ansible(), self._printing(path, task_vars or {}) as result:
            result.update(process.result() if process else self.run_module(task_vars))
        return result

    def has_lines(self, result: dict[str, t.Any]) -> bool:
        """Return whether a change or a failure proves that the module has written lines."""
        return bool(result.get("changed") or result.get("failed"))

    def _folder(self) -> str:
        runs_as_this_user = self._connection.transport == "local" and not self._connection.become
        return str(C.DEFAULT_LOCAL_TMP) if runs_as_this_user else SHARED_FOLDER

    @contextlib.contextmanager
    def _printing(self, path: str, task_vars: dict[str, t.Any]) -> t.Iterator[dict[str, t.Any]]:
        """Print the lines of a file while the task runs. Yield a dictionary for the result."""
        result: dict[str, t.Any] = {}
        if not path:
            yield result
            return
        user = str(self.get_become_option("become_user") or "") if self._connection.become else ""
        source = (progress.LocalFile(path, user) if self._connection.transport == "local"
                  else progress.RemoteFile(self, path, user))
        printer = progress.Printer(source, path.rpartition("/")[2],
                                   prefix=str(task_vars.get("inventory_hostname", "")))
        try:
            yield result
        finally:
            printer.stop(has_lines=not result or self.has_lines(result))

    def _shows_progress(self) -> bool:
        return not (
            (self._task.check_mode and not self.prints_in_check_mode)
            or self._task.no_log
            or not self._is_local_or_ssh()
            or C.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in MACHINE_READABLE_CALLBACKS
            or not boolean(self._task.args.get("progress", True), strict=False)
        )

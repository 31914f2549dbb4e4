# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows a module's progress lines on the terminal while it runs, and ends it when Ansible is gone.

Decides nothing: without this file the result is the same. Only an action plugin can print while a task runs.
"""

from __future__ import annotations

import secrets
import typing as t

from ansible import constants as C
from ansible.module_utils.parsing.convert_bool import boolean

from . import progress
from .with_secrets import ActionWithSecrets

#: Where another user of the same machine can write, with sudo or at the other end of ssh.
SHARED_FOLDER = "/tmp"
#: Callbacks that write the whole output for a program.
MACHINES_READ = ("json", "jsonl")


class ActionWithProgress(ActionWithSecrets):
    #: Whether the module has lines to show in check mode, too.
    says_in_check_mode = False

    def execute(self, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        """Run the module, with its lines where they can be shown."""
        if self._task.async_val:
            return self._execute_module(task_vars=task_vars, wrap_async=True)
        with progress.ends_with_ansible():
            if not self._shows_progress():
                return self._execute_module(task_vars=task_vars)
            return self._show_progress(task_vars or {})

    def has_lines(self, result: dict[str, t.Any]) -> bool:
        """Whether the module must have said something, seen or not."""
        return bool(result.get("changed") or result.get("failed"))

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
            follower.stop(has_lines=self.has_lines(result))

    def _shows_progress(self) -> bool:
        """Not where a machine reads, where it is unwanted, or where the file is out of reach."""
        return not (
            (self._task.check_mode and not self.says_in_check_mode)
            or self._task.no_log
            or not self._is_known()
            or C.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] in MACHINES_READ
            or not boolean(self._task.args.get("progress", True), strict=False)
        )

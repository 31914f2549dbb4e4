# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shows the module's progress lines on the terminal while it runs, and ends it when Ansible is gone.

Decides nothing: without this file the result is the same. The module writes lines to a file, a helper thread here reads it.
Only an action plugin can print while a task runs, and only by Display: a worker process has no terminal.

Where the module would run on this machine, with this Python, its code is first asked here whether there is anything to do:
of what a converged task costs, a tenth is the question itself, the rest is packing the module and starting another Python.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import multiprocessing
import os
import signal
import stat
import sys
import tempfile
import threading
import typing as t

from ansible import constants as C
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

#: Seconds between two looks at the file; what a person does not notice.
INTERVAL = 0.1
LONGEST_LINE = 500


class ActionModule(ActionBase):
    _supports_async = True
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        if self._is_here(task_vars or {}) and (result := self._look()):
            return result
        if self._connection.transport == "local" and not self._task.become:
            self._connection.set_option("pipelining", True)  # else Ansible writes the options, secrets too, to a file
        if not self._shows_progress():
            return self._execute_module(task_vars=task_vars, wrap_async=bool(self._task.async_val))
        with tempfile.TemporaryDirectory(dir=C.DEFAULT_LOCAL_TMP, ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "progress")
            environment = {"BATON_PROGRESS": path}
            prefix = str((task_vars or {}).get("inventory_hostname", ""))
            ended = threading.Event()
            context = contextvars.copy_context()
            helper = threading.Thread(target=context.run, args=(_follow, path, prefix, ended), daemon=True)
            self._task.environment.append(environment)
            helper.start()
            try:
                return self._execute_module(task_vars=task_vars)
            finally:
                self._task.environment.remove(environment)
                ended.set()
                helper.join(4)

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
        from ..module_utils import connection, request, task
        from ..module_utils.errors import RolloutError

        try:
            with contextlib.chdir(self._loader.get_basedir()):  # as core has it for the module
                arguments = json.loads(json.dumps(self._task.args))
                valid = ArgumentSpecValidator(connection.ARGUMENT_SPEC | request.ARGUMENT_SPEC).validate(arguments)
                if valid.error_messages:
                    return None
                params = valid.validated_parameters
                no_log = valid._no_log_values | connection.secrets(params)
                try:
                    result = task.look(params, diff=self._task.diff)
                except RolloutError as error:
                    result = error.as_result() | {"failed": True}
                result.pop("warnings", None)  # there are none before a change
                return remove_values(result, no_log)
        except Exception as error:  # whatever it is, the module says it better
            Display().vvv(f"left to the module: {error!r}")
            return None

    def _shows_progress(self) -> bool:
        """Not where nobody looks (async), where a machine reads, where it is unwanted, or where the file is elsewhere."""
        return not (
            self._task.async_val
            or self._task.check_mode
            or self._task.no_log
            or self._connection.transport != "local"
            or self._task.become
            or C.DEFAULT_STDOUT_CALLBACK.rpartition(".")[2] == "json"
            or not boolean(self._task.args.get("progress", True), strict=False)
        )


def _follow(path: str, prefix: str, ended: threading.Event) -> None:
    """Print each line as it comes, until the module has ended.

    An exception in this thread would be shown as a warning in the middle of the output, so that nothing may leave it.
    """
    parent = multiprocessing.parent_process()
    offset, last = 0, False
    while not last:
        last = ended.wait(INTERVAL)
        try:
            if parent and os.getppid() != parent.pid:
                # Ansible was killed (AWX does so); workers are sessions of their own, nobody else would end the module.
                os.killpg(os.getpgrp(), signal.SIGTERM)
            with open(path, "rb") as file:
                file.seek(offset)
                lines = file.read().rpartition(b"\n")[0]
            if lines:
                offset += len(lines) + 1
                for line in lines.decode(errors="replace").splitlines():
                    text = "".join(char for char in line if char.isprintable())
                    _show(f"{prefix} | {text[:LONGEST_LINE]}")
        except FileNotFoundError:
            continue
        except Exception as error:
            Display().vvv(f"progress lines have ended: {error!r}")
            return


def _show(line: str) -> None:
    """Print one line to Ansible's standard error.

    Into a pipe it is written from here: Display would have Ansible's main process write it, and there, when the reader is
    gone (`2>&1 | head`), the error ends the thread that takes results, so that Ansible waits for ever.
    Raises OSError when the pipe's reader is gone.
    """
    stderr = f"/proc/{os.getppid()}/fd/2"
    if not os.path.exists(stderr) or not stat.S_ISFIFO(os.stat(stderr).st_mode):
        Display().display(line, stderr=True)
        return
    with open(stderr, "w", encoding="utf-8", errors="replace") as pipe:
        pipe.write(f"{line}\n")

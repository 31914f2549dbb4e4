# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the code of a module without starting another Python interpreter, which is slow.

rolling_update_info and check mode run in the worker process of Ansible. Other tasks run in a forked
process, which can be killed separately. (An analysis always runs there.)
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import signal
import traceback
import typing as t

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.utils.display import Display

from ..module_utils import task
from ..module_utils.model.fields import Json

# Import once, before Ansible forks workers. The task reports a failed import.
with contextlib.suppress(Exception):
    importlib.import_module("kubernetes.config")


def parameters(function: str, args: t.Any, folder: str) -> Json | None:
    """Return the validated parameters, or None if the module must report an error or a warning.

    function: the name of a function in task.py. folder: the base of relative paths.
    """
    try:
        with _in_folder(folder):
            validation = _validator(function).validate(json.loads(json.dumps(args)))
    except Exception as error:  # the module then reports the error
        Display().vvv(f"the module will run as usual, because of {error!r}")
        return None
    if validation.error_messages or validation._warnings:
        return None
    params: Json = validation.validated_parameters
    return params


def _validator(function: str) -> ArgumentSpecValidator:
    exclusive_options = task.INFO_EXCLUSIVE_OPTIONS if function == "info" else None
    return ArgumentSpecValidator(task.OPTIONS[function], mutually_exclusive=exclusive_options)


def run_read_only(function: str, params: Json, folder: str, environment: dict[str, str],
                  **flags: bool) -> Json | None:
    """Call a function of task.py with flags that prevent writes, and return the result.

    Return None if the module must run.
    """
    try:
        with _in_folder(folder), _with_environment(environment):
            return _result(function, params, flags)
    except Exception as error:  # the module then reports the error
        Display().vvv(f"the module will run as usual, because of {error!r}")
        return None


class Process:
    """A forked process that runs a function of task.py, which may change the cluster.

    Create a Process before the worker process sends a request. A request starts threads, and a lock
    that another thread holds during a fork stays locked in the child.
    """

    def __init__(self, function: str, params: Json, folder: str, environment: dict[str, str],
                 **flags: bool) -> None:
        self._output, write_end = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(write_end)
            return
        try:  # os._exit() keeps the child from running the worker's code
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor, file in ((0, null), (1, write_end), (2, null)):
                os.dup2(file, descriptor)
            os.close(self._output)
            os.close(write_end)
            os.chdir(folder)
            os.environ.update(environment)
            with open(1, "w", encoding="utf-8") as output:
                result = (_result_without_writing(function, params, flags)
                          or _result_or_error(function, params, flags))
                json.dump(result, output)
        finally:
            os._exit(0)

    def result(self) -> Json:
        """Wait for the end of the forked process, and return the result.

        An interrupted wait closes the pipe. The forked process then assumes that Ansible has
        ended.
        """
        with open(self._output, encoding="utf-8") as output:
            text = output.read()
        status = os.waitpid(self._pid, 0)[1]
        try:
            result: Json = json.loads(text)
            return result
        except ValueError:
            code = os.waitstatus_to_exitcode(status)
            return {"failed": True, "msg": f"the task ended without a result (exit code {code})"}


def _result(function: str, params: Json, flags: dict[str, bool]) -> Json | None:
    warnings: list[str] = []
    with _silence():
        result = task.result_or_error(lambda arguments: _call(function, arguments, flags), params,
                                      warnings.append)
    if not result:
        return result
    return {**result, "invocation": task.invocation(params),
            **({"warnings": warnings} if warnings else {})}


def _call(function: str, params: Json, flags: dict[str, bool]) -> Json | None:
    if function == "update":
        return task.update(params, **flags)
    if function == "migrate":
        return task.migrate(params, **flags)
    if function == "traffic":
        return task.traffic(params, **flags)
    return task.info(params) if function == "info" else task.analysis(params)


def _result_without_writing(function: str, params: Json, flags: dict[str, bool]) -> Json | None:
    if function in ("analysis", "traffic"):
        return None
    with contextlib.suppress(Exception):
        return _result(function, params, {**flags, "is_read_only": True})
    return None


def _result_or_error(function: str, params: Json, flags: dict[str, bool]) -> Json | None:
    try:
        return _result(function, params, flags)
    except Exception as error:
        return {"failed": True, "msg": f"unexpected error: {error!r}",
                "exception": traceback.format_exc()}


@contextlib.contextmanager
def _silence() -> t.Iterator[None]:
    """Discard the output and the logs of libraries, which may contain secrets."""
    handlers = logging.getLogger().handlers
    previous_handlers = handlers[:]
    handlers[:] = [logging.NullHandler()]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        handlers[:] = previous_handlers


@contextlib.contextmanager
def _in_folder(path: str) -> t.Iterator[None]:
    """Change the working directory in the block. (contextlib.chdir needs Python 3.11.)"""
    previous_folder = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(previous_folder)


@contextlib.contextmanager
def _with_environment(variables: dict[str, str]) -> t.Iterator[None]:
    previous_environment = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(previous_environment)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A module's code in Ansible's own process: no transfer, and no second Python.

The start of a module is most of the time of a short task. A task that only reads is answered in
the worker process; a task that may take long has a process of its own, which behaves towards the
worker as a module's does: it notices when Ansible ends, and can be killed alone. Ansible loads this
file, and all that these processes need, before it forks its workers: once for all hosts.
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

with contextlib.suppress(Exception):  # a missing or broken package is an error of the task
    importlib.import_module("kubernetes.config")


def parameters(module: str, args: t.Any, folder: str) -> Json | None:
    """Return a module's parameters; None for arguments that the module itself must report.

    module: UPDATE, INFO or ANALYSIS.
    """
    try:
        with _in_folder(folder):
            valid = _validator(module).validate(json.loads(json.dumps(args)))
    except Exception as error:  # the module reports any error better
        Display().vvv(f"left to the module: {error!r}")
        return None
    if valid.error_messages or valid._warnings:
        return None
    params: Json = valid.validated_parameters
    return params


def _validator(module: str) -> ArgumentSpecValidator:
    if module == "UPDATE":
        return ArgumentSpecValidator(task.UPDATE_OPTIONS)
    if module == "INFO":
        return ArgumentSpecValidator(task.INFO_OPTIONS, mutually_exclusive=task.INFO_EXCLUSIVE)
    return ArgumentSpecValidator(task.ANALYSIS_OPTIONS)


def answer(function: str, params: Json, folder: str, **more: bool) -> Json | None:
    """Return the answer of a function of task.py that only reads; None leaves it to the module."""
    try:
        with _in_folder(folder):  # the working directory of a module
            return _result(function, params, more)
    except Exception as error:  # the module reports any error better
        Display().vvv(f"left to the module: {error!r}")
        return None


class Process:
    """A function of task.py that changes the cluster, in a process of its own.

    The process must be started before any thread, and so before the first request: a fork has no
    threads, but for ever the locks that they held, such as OpenSSL's during a connect.
    """

    def __init__(self, function: str, params: Json, folder: str, environment: dict[str, str],
                 **more: bool) -> None:
        self._output, end = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(end)
            return
        try:  # the worker's code must not run here: the last line is the only way out
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor, file in ((0, null), (1, end), (2, null)):
                os.dup2(file, descriptor)
            os.close(self._output)
            os.close(end)
            os.chdir(folder)
            os.environ.update(environment)
            with open(1, "w", encoding="utf-8") as output:
                result = (_unchanged(function, params, more)
                          or _result_or_error(function, params, more))
                json.dump(result, output)
        finally:
            os._exit(0)

    def result(self) -> Json:
        """Wait for the result; an interrupted wait ends the process at its next output."""
        with open(self._output, encoding="utf-8") as output:
            text = output.read()
        status = os.waitpid(self._pid, 0)[1]
        try:
            result: Json = json.loads(text)
            return result
        except ValueError:
            code = os.waitstatus_to_exitcode(status)
            return {"failed": True, "msg": f"the task ended without a result (exit code {code})"}


def _result(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    warnings: list[str] = []
    with _silence():
        result = task.answer(lambda arguments: _call(function, arguments, more), params,
                             warnings.append)
    if not result:
        return result
    return {**result, "invocation": task.invocation(params),
            **({"warnings": warnings} if warnings else {})}


def _call(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    if function == "update":
        return task.update(params, **more)
    return task.info(params) if function == "info" else task.analysis(params)


def _unchanged(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    """Return the answer of an update with nothing to do, or None for the update to answer."""
    if function != "update":
        return None
    with contextlib.suppress(Exception):
        return _result(function, params, {**more, "only_look": True})
    return None


def _result_or_error(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    try:
        return _result(function, params, more)
    except Exception as error:
        return {"failed": True, "msg": f"unexpected error: {error!r}",
                "exception": traceback.format_exc()}


@contextlib.contextmanager
def _silence() -> t.Iterator[None]:
    """Discard all output and logs of libraries, as in a module: they may contain secrets.

    Ansible's own handler writes every record to its log file. A credential plugin behaves
    differently when it sees a terminal.
    """
    handlers = logging.getLogger().handlers
    before = handlers[:]
    handlers[:] = [logging.NullHandler()]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        handlers[:] = before


@contextlib.contextmanager
def _in_folder(path: str) -> t.Iterator[None]:
    """Change the working directory: Python 3.10 (ansible-core 2.16) has no contextlib.chdir."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)

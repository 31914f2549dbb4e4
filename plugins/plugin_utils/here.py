# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A module's code, run where Ansible runs: without packing it, and without another Python.

How a module is begun is most of what a short task costs. What only asks is answered in the worker process itself. What may take
long has a process of its own, which is to the worker what a module's is: it notices when Ansible has gone, and can be killed alone.
What all of them need is loaded with this file, which Ansible does before it forks its workers: once, and not for each host.
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

with contextlib.suppress(Exception):  # that there is none, or a broken one, is told where it is needed
    importlib.import_module("kubernetes.config")


def parameters(module: str, args: t.Any, folder: str) -> Json | None:
    """Arguments as a module (as task.py calls it: UPDATE) has them; None where it has something to say of them."""
    try:
        with _in_folder(folder):
            exclusive = getattr(task, f"{module}_EXCLUSIVE", None)
            validator = ArgumentSpecValidator(getattr(task, f"{module}_OPTIONS"), mutually_exclusive=exclusive)
            valid = validator.validate(json.loads(json.dumps(args)))
    except Exception as error:  # whatever it is, the module says it better
        Display().vvv(f"left to the module: {error!r}")
        return None
    return None if valid.error_messages or valid._warnings else t.cast(Json, valid.validated_parameters)


def answer(function: str, params: Json, folder: str, **more: bool) -> Json | None:
    """What that function of module_utils.task says, which changes nothing and waits for nothing; None leaves it to the module."""
    try:
        with _in_folder(folder):  # as core has it for the module
            return _told(function, params, more)
    except Exception as error:  # whatever it is, the module says it better
        Display().vvv(f"left to the module: {error!r}")
        return None


class Process:
    """The same for what changes something, in a process of its own; its result comes on its standard output.

    To be begun before any thread: the other process would have none of them, but for ever the locks that they held.
    """

    def __init__(self, function: str, params: Json, folder: str, environment: dict[str, str], **more: bool) -> None:
        self._output, end = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(end)
            return
        try:  # no way leads out of here but the last line: what is further up is the worker's
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor, file in ((0, nothing), (1, end), (2, nothing)):
                os.dup2(file, descriptor)
            os.close(self._output)
            os.close(end)
            os.chdir(folder)
            os.environ.update(environment)
            with open(1, "w", encoding="utf-8") as output:
                json.dump(_told_whatever_happens(function, params, more), output)
        finally:
            os._exit(0)

    def result(self) -> Json:
        """Wait for it; where something ends the wait, the other process notices that nobody reads what it writes."""
        with open(self._output, encoding="utf-8") as output:
            text = output.read()
        status = os.waitpid(self._pid, 0)[1]
        try:
            return t.cast(Json, json.loads(text))
        except ValueError:
            return {"failed": True, "msg": f"the task ended without a result (exit code {os.waitstatus_to_exitcode(status)})"}


def _told(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    warnings: list[str] = []
    with _unheard():
        result = task.answer(lambda given: getattr(task, function)(given, **more), params, warnings.append)
    return result and {**result, "invocation": task.invocation(params), **({"warnings": warnings} if warnings else {})}


def _told_whatever_happens(function: str, params: Json, more: dict[str, bool]) -> Json | None:
    try:
        return _told(function, params, more)
    except Exception as error:
        return {"failed": True, "msg": f"unexpected error: {error!r}", "exception": traceback.format_exc()}


@contextlib.contextmanager
def _unheard() -> t.Iterator[None]:
    """What a library prints or logs goes nowhere, as in a module: nobody would take secrets out of it.

    Ansible's own handler writes all to its log file; and a credential plugin behaves otherwise where it is told of a terminal.
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
    """Python 3.10, which ansible-core 2.16 may run on, has no contextlib.chdir."""
    before = os.getcwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Credential plugins, the programs that a kubeconfig names: they end in time, and their failures are errors.

The kubernetes package starts them, waits without end, and only logs it when one fails, to go on as nobody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import types
import typing as t

from ..model.errors import RolloutError

#: Seconds that one may take.
PATIENCE = 60.0


#: Seconds for those that this thread starts meanwhile; None: for ever, as the package has it.
_here = threading.local()


class _Program(subprocess.Popen[t.Any]):
    """One that ends, with all that it has started: the session is its own."""

    def __init__(self, args: t.Any, patience: float, **options: t.Any) -> None:
        self._name, self._patience = os.path.basename(str(args[0])), patience
        super().__init__(args, **options, start_new_session=True)

    def communicate(self, input: t.Any = None, timeout: float | None = None) -> t.Any:  # noqa: A002
        try:
            return super().communicate(input, self._patience)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._name} did not answer within {self._patience:g} s and was ended") from None
        finally:
            if self.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
                self.wait()


def _start(args: t.Any, **options: t.Any) -> subprocess.Popen[t.Any]:
    patience = getattr(_here, "patience", None)
    if patience is None:  # started by another thread than that of a rollout: no business of ours
        return subprocess.Popen(args, **options)  # pylint: disable=ansible-bad-function
    return _Program(args, patience, **options)


#: What the package knows as the module subprocess.
_STARTS: t.Any = types.SimpleNamespace(Popen=_start, PIPE=subprocess.PIPE)


class _Heard(logging.Handler):
    """The first error that this thread logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said, self._thread = "", threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if threading.get_ident() == self._thread:
            self.said = self.said or record.getMessage()


@contextlib.contextmanager
def bounded(patience: float) -> t.Iterator[None]:
    """Let the plugins that this thread starts meanwhile take so many seconds. Raises RolloutError where one fails."""
    from kubernetes.config import exec_provider, kube_config

    t.cast(t.Any, exec_provider).subprocess = t.cast(t.Any, kube_config).subprocess = _STARTS  # for good: it asks the thread
    heard = _Heard()
    logging.getLogger().addHandler(heard)
    _here.patience = patience
    try:
        yield
    finally:
        _here.patience = None
        logging.getLogger().removeHandler(heard)
    if heard.said:
        raise RolloutError("the credential plugin in the kubeconfig failed", why=heard.said,
                           next_command="log in again, or run the plugin by hand to see what it waits for")

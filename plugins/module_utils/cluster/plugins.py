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
import types
import typing as t

from ..model.errors import RolloutError

#: Seconds that one may take.
PATIENCE = 60.0


class _Program(subprocess.Popen[t.Any]):
    """One that ends, with all that it has started in its process group."""

    patience = PATIENCE

    def __init__(self, args: t.Any, **options: t.Any) -> None:
        self._name = os.path.basename(str(args[0]))
        super().__init__(args, **options, process_group=0)

    def communicate(self, input: t.Any = None, timeout: float | None = None) -> t.Any:  # noqa: A002
        try:
            return super().communicate(input, self.patience)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._name} did not answer within {self.patience:g} s and was ended") from None
        finally:
            if self.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(self.pid, signal.SIGKILL)
                self.wait()


class _Heard(logging.Handler):
    """The first error that is logged."""

    said = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.said = self.said or record.getMessage()


@contextlib.contextmanager
def bounded(patience: float) -> t.Iterator[None]:
    """Let the plugins that are started meanwhile take so many seconds. Raises RolloutError where one fails."""
    from kubernetes.config import exec_provider, kube_config

    program = type("_Program", (_Program,), {"patience": patience})
    # Kept afterwards: several threads may be here, each with a connection of its own.
    starts = types.SimpleNamespace(Popen=program, PIPE=subprocess.PIPE)
    t.cast(t.Any, exec_provider).subprocess = t.cast(t.Any, kube_config).subprocess = starts
    heard = _Heard(logging.ERROR)
    logging.getLogger().addHandler(heard)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(heard)
    if heard.said:
        raise RolloutError("the credential plugin in the kubeconfig failed", why=heard.said,
                           next_command="log in again, or run the plugin by hand to see what it waits for")

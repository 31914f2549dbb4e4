# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the module rolling_update, or its code, with its progress lines on the terminal. Decides nothing."""

from __future__ import annotations

import typing as t

from ..plugin_utils import here
from ..plugin_utils.with_progress import ActionWithProgress


class ActionModule(ActionWithProgress):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        params, diff = self.parameters("UPDATE", task_vars), self._task.diff
        asks = {"check_mode": True} if self._task.check_mode else {"only_look": True}
        if params and (result := here.answer("update", params, self._loader.get_basedir(), diff=diff, **asks)):
            return result
        return self.execute(task_vars, "update", None if self._task.check_mode else params, diff=diff)

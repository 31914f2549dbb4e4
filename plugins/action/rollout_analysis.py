# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the module rollout_analysis with progress lines on the terminal."""

from __future__ import annotations

import typing as t

from ..plugin_utils.with_progress import ActionWithProgress


class ActionModule(ActionWithProgress):
    says_in_check_mode = True  # an analysis measures in check mode, too

    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        return self.execute(task_vars, "analysis", self.parameters("ANALYSIS", task_vars))

    def has_lines(self, result: dict[str, t.Any]) -> bool:
        return bool(result.get("measurements"))

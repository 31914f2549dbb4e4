# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run rolling_update in Ansible's process, or as a module, and print progress lines."""

from __future__ import annotations

import typing as t

from ..plugin_utils.progress_action import ProgressAction


class ActionModule(ProgressAction):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        return self.check_and_run(task_vars, "update")

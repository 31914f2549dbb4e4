# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run rolling_update_info in Ansible's process, or as a module.

With the private option _return_check_mode, only return whether the task runs in check mode.
"""

from __future__ import annotations

import typing as t

from ..module_utils.model.errors import RolloutError
from ..module_utils.model.options import refuse_removed
from ..plugin_utils.module_action import ModuleAction


class ActionModule(ModuleAction):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        if self._task.args.get("_return_check_mode"):
            return {"changed": False, "check_mode": bool(self._task.check_mode)}
        self.prepare(tmp, task_vars)
        try:
            refuse_removed(None, self._task.args)
        except RolloutError as error:
            return error.as_result() | {"failed": True}
        result = self.read("info", self.parameters("info", task_vars))
        return result or self.run_module(task_vars)

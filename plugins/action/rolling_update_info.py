# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Answer in Ansible's own process if possible; else run the module rolling_update_info.

Neither way writes the options to a file.
"""

from __future__ import annotations

import typing as t

from ..plugin_utils import here
from ..plugin_utils.with_secrets import ActionWithSecrets


class ActionModule(ActionWithSecrets):
    def run(self, tmp: t.Any = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        self.prepare(tmp, task_vars)
        params = self.parameters("INFO", task_vars)
        if params and (result := here.answer("info", params, self._loader.get_basedir())):
            return result
        return self._execute_module(task_vars=task_vars, wrap_async=self._task.async_val)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the collection's modules have in common on the side of Ansible: among their options are secrets."""

from __future__ import annotations

import typing as t

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionWithSecrets(ActionBase):
    _supports_async = True
    _supports_check_mode = True
    _supports_diff = True
    #: The roles give all arguments in one template. Ansible warns of those, since facts of a machine could add arguments; ours can
    #: only be options that the role's argument_specs.yml has.
    supports_raw_params = True

    def prepare(self, tmp: t.Any, task_vars: dict[str, t.Any] | None) -> None:
        """To be called first: the arguments as a task has them, and no file for them where that can be had."""
        super().run(tmp, task_vars)
        arguments = self._task.args.pop("_raw_params", {})
        if not isinstance(arguments, dict):
            raise AnsibleActionFail("give the arguments as key=value, or as a mapping")
        self._task.args |= arguments
        if self._is_known() and not self._task.become:
            self._connection.set_option("pipelining", True)  # else Ansible writes the options, secrets too, to a file

    def _is_known(self) -> bool:
        return self._connection.transport in ("local", "ssh")

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the collection's modules have in common on the side of Ansible: among their options are secrets."""

from __future__ import annotations

import contextlib
import os
import sys
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.validation import check_type_dict
from ansible.parsing.vault import is_encrypted_file
from ansible.plugins.action import ActionBase

from ..module_utils.cluster import secrets
from ..module_utils.model.fields import Json
from . import here


class ActionWithSecrets(ActionBase):
    _supports_async = True
    _supports_check_mode = True
    _supports_diff = True

    def prepare(self, tmp: t.Any, task_vars: dict[str, t.Any] | None) -> None:
        """To be called first: the arguments as a task has them, and no file for them where that can be had."""
        super().run(tmp, task_vars)
        # The roles give all arguments in one template, under a name: of a template in the place of the arguments, Ansible warns,
        # since facts of a machine could add some. Ours can only be options that the role's argument_specs.yml has.
        if isinstance(self._task.args.get("_arguments"), dict):
            self._task.args |= self._task.args.pop("_arguments")
        try:
            headers = check_type_dict(self._task.args.get("proxy_headers") or {})
        except TypeError:  # of what is no mapping, the module would show all in its invocation
            raise AnsibleActionFail("proxy_headers is not a mapping") from None
        self._task.args |= {"proxy_headers": headers} if headers else {}
        kubeconfig = self._task.args.get("kubeconfig")
        if self._connection.transport == "local" and isinstance(kubeconfig, str) and secrets.is_path(kubeconfig):
            self._task.args["kubeconfig"] = self._kubeconfig(kubeconfig.split(os.pathsep))
        if self._is_known() and not self._connection.become:
            self._connection.set_option("pipelining", True)  # else Ansible writes the options, secrets too, to a file

    def parameters(self, module: str, task_vars: dict[str, t.Any] | None) -> Json | None:
        """The arguments as the module has them, where its code can be run here (see here.py); None leaves everything to it.

        It can where the module would run as this user on this machine, with this Python and this environment. The connection knows
        whether another user is asked for: by the task, or by the variable ansible_become, of which the task knows nothing.
        """
        known = task_vars or {}
        if delegate := self._task.delegate_to:
            known = known.get("ansible_delegated_vars", {}).get(delegate, {})
        connection, interpreter = self._connection, self._templar.template(known.get("ansible_python_interpreter"))
        if (connection.transport != "local" or connection.become or self._task.async_val or any(self._task.environment or ())
                or interpreter != sys.executable):
            return None
        return here.parameters(module, self._task.args, self._loader.get_basedir())

    def _kubeconfig(self, paths: list[str]) -> str:
        """Where they are, files/ of a role and of the playbook included; of one that is a vault, what is in it.

        What is nowhere stays as it is: the module says so.
        """
        for number, path in enumerate(paths):
            with contextlib.suppress(AnsibleError):
                paths[number] = self._find_needle("files", path)
        for path in filter(os.path.isfile, paths):
            is_vault = False
            with contextlib.suppress(OSError), open(path, "rb") as file:
                is_vault = is_encrypted_file(file)
            if is_vault and len(paths) > 1:
                raise AnsibleActionFail(f"kubeconfig {path} is encrypted: it cannot be combined with others")
            if is_vault:
                return self._loader._get_file_contents(path)[0].decode()  # decrypted; get_real_file() would write it to a file
        return os.pathsep.join(paths)

    def _is_known(self) -> bool:
        return self._connection.transport in ("local", "ssh")

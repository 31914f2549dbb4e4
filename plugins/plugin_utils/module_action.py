# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the base class of the action plugins, which prepares the arguments of a task.

Arguments may contain secrets, so the module gets them through a pipe if possible, not in a file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import typing as t

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.validation import check_type_dict
from ansible.parsing.vault import is_encrypted_file
from ansible.plugins.action import ActionBase

from ..module_utils import task
from ..module_utils.cluster import secrets
from ..module_utils.model.fields import Json
from . import in_process


class ModuleAction(ActionBase):
    """Base class of plugins that run a module, or run the module's code in Ansible's process."""

    _supports_async = True
    _supports_check_mode = True
    _supports_diff = True

    def prepare(self, tmp: t.Any, task_vars: dict[str, t.Any] | None) -> None:
        """Complete and check the arguments of the task."""
        super().run(tmp, task_vars)
        # The roles pass all options in `_arguments`, as one Jinja expression, in which a filter has
        # chosen the options. If the expression were the task's `args`, Ansible would warn that
        # facts can inject options.
        if isinstance(self._task.args.get("_arguments"), dict):
            self._task.args |= self._task.args.pop("_arguments")
        try:
            headers = check_type_dict(self._task.args.get("proxy_headers") or {})
        except TypeError:
            # The value may be secret. A refusal by the module would show the value in the key
            # `invocation` of the result.
            raise AnsibleActionFail("proxy_headers is not a mapping") from None
        self._task.args |= {"proxy_headers": headers} if headers else {}
        self._reject_jinja_file(self._task.args.get("template"))
        src = self._task.args.get("src")
        if self._connection.transport == "local" and isinstance(src, str) and src:
            self._task.args |= self._manifest(src)
        kubeconfig = self._task.args.get("kubeconfig")
        if (self._connection.transport == "local" and isinstance(kubeconfig, str)
                and secrets.is_path(kubeconfig)):
            self._task.args["kubeconfig"] = self._kubeconfig(kubeconfig.split(os.pathsep))
        self.environment: dict[str, str] = {}
        if task_vars and "awx_job_id" in task_vars:
            job_template = self._templar.template(task_vars.get("awx_job_template_name") or "")
            self.environment[task.JOB_TEMPLATE] = str(job_template)
        if self._is_local_or_ssh() and not self._connection.become:
            # Without pipelining, Ansible writes secrets to a file.
            self._connection.set_option("pipelining", True)

    def parameters(self, function: str, task_vars: dict[str, t.Any] | None) -> Json | None:
        """Return the validated options, or None if this process cannot run the function of task.py.

        The function can run here if the module would use the same user, machine, Python and
        environment.
        """
        host_vars = task_vars or {}
        if delegate := self._task.delegate_to:
            host_vars = host_vars.get("ansible_delegated_vars", {}).get(delegate, {})
        connection = self._connection
        interpreter = self._templar.template(host_vars.get("ansible_python_interpreter"))
        # Both the keyword `become` and the variable ansible_become set connection.become.
        if (connection.transport != "local" or connection.become or self._task.async_val
                or any(self._task.environment or ()) or interpreter != sys.executable):
            return None
        return in_process.parameters(function, self._task.args, self._loader.get_basedir())

    def read(self, function: str, params: Json | None, **flags: bool) -> Json | None:
        """Run the function in this process, read-only; return None if the module must run."""
        folder = self._loader.get_basedir()
        return params and in_process.run_read_only(function, params, folder, self.environment,
                                                   **flags)

    def run_module(self, task_vars: dict[str, t.Any] | None) -> dict[str, t.Any]:
        if self.environment:
            self._task.environment.append(self.environment)
        try:
            result: dict[str, t.Any] = self._execute_module(task_vars=task_vars,
                                                            wrap_async=self._task.async_val)
            return result
        finally:
            if self.environment:
                self._task.environment.remove(self.environment)

    @staticmethod
    def _reject_jinja_file(template: t.Any) -> None:
        """Refuse the path of a Jinja file, which kubernetes.core.k8s accepts as `template`."""
        try:
            parts = check_type_dict(template or {})
        except TypeError:
            parts = {"path": template}
        if "path" in parts:
            raise AnsibleActionFail(
                "template must be a mapping with a part of the pod template (metadata, spec), not "
                "the path of a Jinja file. To use a Jinja file, render a whole manifest: "
                "definition: \"{{ lookup('ansible.builtin.template', 'foo.yml.j2') }}\"")

    def _manifest(self, src: str) -> Json:
        """Return {"src": path}, or {"definition": content} for an encrypted manifest."""
        with contextlib.suppress(AnsibleError):
            src = self._find_needle("files", src)
        if not self._is_vault(src):
            return {"src": src}
        del self._task.args["src"]
        return {"definition": self._loader._get_file_contents(src)[0].decode()}

    @staticmethod
    def _is_vault(path: str) -> bool:
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
            return is_encrypted_file(file)
        return False

    def _kubeconfig(self, paths: list[str]) -> str:
        for number, path in enumerate(paths):
            with contextlib.suppress(AnsibleError):
                paths[number] = self._find_needle("files", path)
        for path in filter(self._is_vault, paths):
            if len(paths) > 1:
                raise AnsibleActionFail(
                    f"kubeconfig {path} is encrypted: it cannot be combined with other files")
            # get_real_file() would write the decrypted file.
            return self._loader._get_file_contents(path)[0].decode()
        return os.pathsep.join(paths)

    def _is_local_or_ssh(self) -> bool:
        return self._connection.transport in ("local", "ssh")

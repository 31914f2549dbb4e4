# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prepare the options of a task, with their secrets, for a module or its code."""

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
        """Complete the arguments of the task, and keep secrets out of files where possible.

        Every action calls this method first.
        """
        super().run(tmp, task_vars)
        # The roles pass all options as one template under a name. Ansible warns of a template in
        # the place of the arguments, since facts of a machine could add options; here only options
        # of the role's argument_specs.yml are possible.
        if isinstance(self._task.args.get("_arguments"), dict):
            self._task.args |= self._task.args.pop("_arguments")
        try:
            headers = check_type_dict(self._task.args.get("proxy_headers") or {})
        except TypeError:  # the module would show the whole value in its invocation
            raise AnsibleActionFail("proxy_headers is not a mapping") from None
        self._task.args |= {"proxy_headers": headers} if headers else {}
        self._refuse_jinja_file(self._task.args.get("template"))
        src = self._task.args.get("src")
        if self._connection.transport == "local" and isinstance(src, str) and src:
            self._task.args |= self._manifest(src)
        kubeconfig = self._task.args.get("kubeconfig")
        if (self._connection.transport == "local" and isinstance(kubeconfig, str)
                and secrets.is_path(kubeconfig)):
            self._task.args["kubeconfig"] = self._kubeconfig(kubeconfig.split(os.pathsep))
        if self._is_known() and not self._connection.become:
            # else Ansible writes the options, secrets too, to a file
            self._connection.set_option("pipelining", True)

    def parameters(self, module: str, task_vars: dict[str, t.Any] | None) -> Json | None:
        """Return the options as the module would see them, or None if the module has to run.

        The code runs in this process (here.py) if the module would run as this user on this
        machine, with this Python and this environment. The connection knows whether the task or the
        variable ansible_become asks for another user; the task knows only the former.
        """
        host_vars = task_vars or {}
        if delegate := self._task.delegate_to:
            host_vars = host_vars.get("ansible_delegated_vars", {}).get(delegate, {})
        connection = self._connection
        interpreter = self._templar.template(host_vars.get("ansible_python_interpreter"))
        if (connection.transport != "local" or connection.become or self._task.async_val
                or any(self._task.environment or ()) or interpreter != sys.executable):
            return None
        return here.parameters(module, self._task.args, self._loader.get_basedir())

    @staticmethod
    def _refuse_jinja_file(template: t.Any) -> None:
        """Refuse the path of a Jinja file, which kubernetes.core.k8s takes as `template`."""
        try:
            parts = check_type_dict(template or {})
        except TypeError:
            parts = {"path": template}
        if "path" in parts:
            raise AnsibleActionFail(
                "template is a mapping, a part of the pod template (metadata, spec), and not the "
                "path of a Jinja file: give the file as a whole manifest instead, as in "
                "definition: \"{{ lookup('ansible.builtin.template', 'foo.yml.j2') }}\"")

    def _manifest(self, src: str) -> Json:
        """Return the option for a manifest: the path of the file, or the content of a vault.

        files/ of the role and of the playbook are searched, too. A path that does not exist, and a
        URL, are returned unchanged: the module reads the URL, and reports errors.
        """
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
        """Return the paths of the kubeconfig files, or the content of a vault.

        files/ of the role and of the playbook are searched, too. A path that does not exist is
        returned unchanged: the module reports the error.
        """
        for number, path in enumerate(paths):
            with contextlib.suppress(AnsibleError):
                paths[number] = self._find_needle("files", path)
        for path in filter(self._is_vault, paths):
            if len(paths) > 1:
                raise AnsibleActionFail(
                    f"kubeconfig {path} is encrypted: it cannot be combined with others")
            # decrypted in memory; get_real_file() would write a file
            return self._loader._get_file_contents(path)[0].decode()
        return os.pathsep.join(paths)

    def _is_known(self) -> bool:
        return self._connection.transport in ("local", "ssh")

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a task in the process of the test: as a module, or as an action plugin."""

from __future__ import annotations

import json
import signal

import pytest
from ansible.module_utils import basic

from ansible_collections.baton.kubernetes.plugins.modules import (
    migrate_to_deployment,
    rolling_update,
)
from ansible_collections.baton.kubernetes.plugins.plugin_utils import in_process


def with_real_wording(plan):
    """Return a result of check mode in the words of a real run."""
    text = json.dumps(plan).replace("controllers would be",
                                    "controllers are").replace("would be a Dep", "is now a Dep")
    return json.loads(text.replace(" would be ", " is "))


MODULES_BY_NAME = {"migrate_to_deployment": migrate_to_deployment}


class TaskRunner:
    def __init__(self, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys
        #: The options of the last module run (`invocation`).
        self.invocation = None

    def run_module(self, module=rolling_update, check_mode=False, **arguments):
        module = MODULES_BY_NAME.get(module, module)
        arguments = {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check_mode}}
        self._monkeypatch.setattr(basic, "_ANSIBLE_ARGS", json.dumps(arguments).encode())
        self._monkeypatch.setattr(basic, "_ANSIBLE_PROFILE", "legacy", raising=False)
        handlers = {number: signal.getsignal(number)
                    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        self._capsys.readouterr()
        try:
            with pytest.raises(SystemExit) as exit_info:
                module.main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        result = json.loads(self._capsys.readouterr().out)
        assert bool(exit_info.value.code) == result.get("failed", False)
        self.invocation = result.pop("invocation")
        return result

    def run_in_process(self, **arguments):
        """Return the result of the action plugin, or None if it would run the module."""
        function = "migrate" if arguments.pop("module", None) in MODULES_BY_NAME else "update"
        params = in_process.parameters(function, arguments, ".")
        result = (in_process.run_read_only(function, params, ".", {}, diff=False, is_read_only=True)
                  if params else None)
        if result:
            result.pop("invocation")
        return result

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that no output contains a secret, for all credentials and failures."""

from __future__ import annotations

import json
import threading

import pytest
import yaml
from ansible.module_utils import basic
from apiserver import Api, status
from credentials import PUBLIC_OPTIONS, credential_cases
from kubernetes.config import kube_config
from task_runner import TaskRunner

from ansible_collections.baton.kubernetes.plugins.doc_fragments.connection import ModuleDocFragment
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import (
    ARGUMENT_SPEC,
)
from ansible_collections.baton.kubernetes.plugins.modules import (
    rolling_update,
    rolling_update_info,
    rollout_analysis,
    traffic_split,
)

pytestmark = pytest.mark.usefixtures("handlers")

TOKEN = "s3cret-t0ken-of-the-tests"
PASSWORD = "Prometheus-s0wn"
CASE_NAMES = list(
    credential_cases("http://x", None, TOKEN, lambda name, content: name, proxy="proxy"))


@pytest.fixture(scope="module")
def refusing_server():
    with Api() as server:
        server.answers = SameAnswer(status(401, "Unauthorized"))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01},
                         daemon=True).start()
        yield server.url
        server.shutdown()


class SameAnswer(list):
    def __init__(self, answer):
        super().__init__([answer])

    def pop(self, index):
        return self[0]


@pytest.fixture
def log_messages(monkeypatch):
    """Return the list of syslog messages, which other users can read."""
    lines = []
    monkeypatch.setattr(basic.AnsibleModule, "_log_to_syslog",
                        lambda self, text: lines.append(text))
    monkeypatch.setattr(basic, "has_journal", False)
    return lines


@pytest.mark.sample
@pytest.mark.parametrize("failure",
                         ["server unreachable", "server rejects all credentials", "unknown option",
                          "unknown context"])
@pytest.mark.parametrize("case_name", CASE_NAMES)
def test_no_failure_reveals_a_secret(case_name, failure, refusing_server, log_messages, monkeypatch,
                                     capsys,
                                     tmp_path):
    def write(title, content):
        (tmp_path / title).write_text(content)
        return str(tmp_path / title)

    url = refusing_server if failure == "server rejects all credentials" else "http://127.0.0.1:1"
    case = credential_cases(url, None, TOKEN, write, proxy=url.partition("://")[2])[case_name]
    monkeypatch.setattr(http.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION",
                        case.environment.get("KUBECONFIG", "/not/there"))
    for variable, value in case.environment.items():
        monkeypatch.setenv(variable, value)
    invalid_options = {"unknown option": {"nonsense": 1}, "unknown context": {"context": "missing"}}
    options = {**case.options, **invalid_options.get(failure, {})}
    runner, outputs = TaskRunner(monkeypatch, capsys), []

    metrics = {"prometheus_url": f"http://me:{PASSWORD}@127.0.0.1:1", "metrics": [{"min": 1}]}
    split = {"route": "edge", "weight": "0"}
    for module, arguments in (
            (rolling_update, {"image": "x:1", **options}), (rolling_update_info, options),
            (rollout_analysis, metrics | options), (traffic_split, split | options),
            *((traffic_split, {**split, **invalid_options.get(failure, {}),
                               "update": {"image": "x:1", **nested_options}})
              for nested_options in (options, case.options))):
        result = runner.run_module(module, name="foo", **arguments)
        outputs += [result, runner.invocation]
        assert result["failed"] and "Traceback" not in json.dumps(result)
    outputs.append(runner.run_in_process(name="foo", image="x:1", **options))

    if failure == "unknown context":
        is_kubeconfig = case_name == "kubeconfig" or case_name.startswith("kubeconfig-as-")
        assert (not is_kubeconfig
                or outputs[0]["msg"].startswith(
                    "the kubeconfig has no context missing.\nReason: available contexts: prod\n"))
    elif (failure != "unknown option" and case.error_pattern
          and "anonymous" not in case.error_pattern):
        assert any(part in outputs[0]["msg"]
                   for part in case.error_pattern.split("|")), outputs[0]["msg"]
    text = json.dumps([*outputs, log_messages], default=str) + "".join(capsys.readouterr())
    for secret in (*case.secrets, *case.arguments, PASSWORD):
        assert secret not in text and json.dumps(secret)[1:-1] not in text
    assert log_messages or failure == "unknown option"


def test_every_connection_option_is_covered():
    documented = yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"].keys()
    options = {option
               for case in credential_cases("http://x", None, TOKEN, lambda name, content: name,
                                            proxy="p").values()
               for option in case.options}
    logged_options = {option for option, spec in ARGUMENT_SPEC.items() if not spec.get("no_log")}

    assert documented == ARGUMENT_SPEC.keys() == options | PUBLIC_OPTIONS
    assert logged_options == PUBLIC_OPTIONS

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that an alert rolls back an update, through Alertmanager and ansible-rulebook."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import time

import alerting
import pytest
from alerting import EXAMPLES, ROOT, TOKEN
from objects import eventually

#: The alert in docs/how-to/alerts.md.
DOCUMENTED_ALERT = json.loads(re.search(
    r"-d '(.*?)'", (ROOT / "docs/how-to/alerts.md").read_text(), re.DOTALL)[1])
#: A label that would create a file if Ansible evaluated it as a template.
TEMPLATE_IN_A_LABEL = "{{ lookup('ansible.builtin.pipe', 'touch %s') }}"


@pytest.fixture
def environment(namespace, programs, tmp_path):
    inherited = {key: value for key, value in os.environ.items()
                 if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
    return {**inherited, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "ANSIBLE_LOCALHOST_WARNING": "false", "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
            "K8S_AUTH_KUBECONFIG": namespace.kubeconfig}


def start_paused_updates(namespace, *names):
    for name in names:
        namespace.make_rc(4, name=name)
        namespace.roll(name=name, image="myimage:v2", pause_at=2)


def images(namespace, name):
    return sorted(pod["spec"]["containers"][0]["image"] for pod in namespace.pods()
                  if pod["metadata"]["name"].startswith(name))


def is_rolled_back(namespace, name):
    return (images(namespace, name) == ["myimage:v1"] * 4
            and not [rc for rc in namespace.rc_names() if rc.startswith(f"{name}-")])


def body(**labels):
    return {"alerts": [{"status": labels.pop("status", "firing"), "labels": labels}]}


def test_an_alert_rolls_an_update_back(
        namespace, programs, alertmanager_program, environment, tmp_path):
    start_paused_updates(namespace, "shop", "cart")
    with (alerting.rulebook(programs, tmp_path, "baton.kubernetes.rollback",
                            environment=environment) as url,
          alerting.alertmanager(alertmanager_program, tmp_path, url) as alert):
        start = time.monotonic()
        subprocess.run(["ansible-playbook", "baton.kubernetes.rollback", "-e", "controller=cart",
                        "-e", f"controller_namespace={namespace.name}"], env=environment,
                       check=True, cwd=tmp_path, timeout=240)
        seconds_by_hand = time.monotonic() - start
        start = time.monotonic()
        alert(rollback="controller", controller="shop", namespace=namespace.name)
        eventually(lambda: is_rolled_back(namespace, "shop"), "the rollback of shop", seconds=240)
        seconds = time.monotonic() - start

    print(f"rolled back {seconds:.1f} s after the alert; the playbook took {seconds_by_hand:.1f} s")
    assert is_rolled_back(namespace, "cart")


def test_an_alert_launches_the_job_template(
        namespace, programs, alertmanager_program, environment, tmp_path):
    """A stand-in for automation controller runs the playbook of the job template."""
    start_paused_updates(namespace, "foo")
    questions = json.loads((EXAMPLES / "awx/rollback.survey.json").read_text())["spec"]
    with (alerting.AutomationController("rollback.yml", environment).serving() as controller,
          alerting.rulebook(programs, tmp_path, str(EXAMPLES / "rulebooks/rollback.yml"),
                            "--controller-url", controller.url, "--controller-token", "token",
                            environment=environment) as url,
          alerting.alertmanager(alertmanager_program, tmp_path, url) as alert):
        alert(rollback="controller", controller="foo", namespace=namespace.name)
        eventually(lambda: is_rolled_back(namespace, "foo"), "the rollback of foo", seconds=120)

    (launch,) = controller.launches
    assert launch == {  # a job template that does not prompt for a limit ignores it
        "extra_vars": {"controller": "foo", "controller_namespace": namespace.name},
        "limit": "localhost"}
    assert set(launch["extra_vars"]) <= {question["variable"] for question in questions}


def test_refused_alerts_change_nothing(namespace, programs, environment, tmp_path):
    """Alerts are handled in order, so the rollback of the last one shows that all are handled."""
    start_paused_updates(namespace, "foo", "last")
    unwanted_file = tmp_path / "unwanted_file"
    template = TEMPLATE_IN_A_LABEL % unwanted_file
    valid_labels = {"rollback": "controller", "controller": "foo", "namespace": namespace.name}
    last_message = copy.deepcopy(DOCUMENTED_ALERT)
    last_message["alerts"][0]["labels"] |= {"controller": "last", "namespace": namespace.name}
    last_message["alerts"][0]["annotations"] = {"summary": template}
    with alerting.rulebook(programs, tmp_path, "baton.kubernetes.rollback",
                           environment=environment) as url:
        assert alerting.post(url, body(**valid_labels)) == 401
        assert alerting.post(url, body(**valid_labels), "wrong") == 401
        for labels in ({"status": "resolved"}, {"rollback": "no"}, {"controller": template},
                       {"controller": f"foo{template}"}, {"controller": f"foo\n{template}"},
                       {"namespace": template}, {"namespace": ""}, {"controller": "../foo"}):
            assert alerting.post(url, body(**{**valid_labels, **labels}), TOKEN) == 200
        without_labels = {"alerts": [{"status": "firing"}]}
        for message in (without_labels, {"alerts": []}, {}, body(**valid_labels)["alerts"][0]):
            assert alerting.post(url, message, TOKEN) == 200
        for _repetition in range(2):  # a repeated alert causes no second rollback
            assert alerting.post(url, last_message, TOKEN) == 200
        eventually(lambda: is_rolled_back(namespace, "last"), "the rollback of last", seconds=120)

    log = (tmp_path / "rulebook.log").read_text()
    assert log.count("PLAY [Roll back controllers") == 1
    assert images(namespace, "foo") == ["myimage:v1"] * 2 + ["myimage:v2"] * 2
    assert not unwanted_file.exists()

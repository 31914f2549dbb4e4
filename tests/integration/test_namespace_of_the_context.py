# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test tasks without the option namespace."""

from __future__ import annotations

import json

import ansible_cli
import pytest


@pytest.fixture
def environment(namespace, ansible_environment):
    """Provide Ansible's environment, with a kubeconfig whose context names the namespace."""
    kubeconfig = namespace.kubeconfig_of({"token": namespace.token})
    kubeconfig["contexts"][0]["context"]["namespace"] = namespace.name
    path = namespace.write_file("with-namespace", json.dumps(kubeconfig))
    return {**ansible_environment, "K8S_AUTH_KUBECONFIG": path}


def output_of(environment, *command):
    run = ansible_cli.run(command, env=environment, capture_output=True, text=True, timeout=240,
                          check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout + run.stderr


def test_modules_use_and_report_the_namespace_of_the_context(namespace, environment):
    namespace.make_rc(2)

    def run_task(module, **options):
        output = output_of(environment, "ansible", "localhost", "-m", f"baton.kubernetes.{module}",
                           "-a", json.dumps(options))
        return output, json.JSONDecoder().raw_decode(output.partition("=>")[2].lstrip())[0]

    output, paused_result = run_task("rolling_update", name="foo", image="myimage:v2", pause_at=1)
    output_with_names, updated_result = run_task("rolling_update", names=["foo"],
                                                 image="myimage:v2")
    _output, status = run_task("rolling_update_info", name="foo")

    assert f"localhost | {namespace.name} | create foo-" in output
    assert f"localhost | {namespace.name} | foo: scale foo" in output_with_names
    assert paused_result["namespace"] == paused_result["results"][0]["namespace"] == namespace.name
    assert f" namespace={namespace.name} " in paused_result["rollback_command"]
    assert updated_result["results"][0]["namespace"] == namespace.name
    assert [rollout["namespace"] for rollout in status["rollouts"]] == [namespace.name]
    assert namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"] == "myimage:v2"


@pytest.mark.full
def test_playbooks_use_the_namespace_of_the_context(namespace, environment):
    namespace.make_rc(2)

    output_of(environment, "ansible-playbook", "baton.kubernetes.image_bump", "-e",
              "controller=foo", "-e", "image=myimage:v2")
    status = output_of(environment, "ansible-playbook", "baton.kubernetes.status", "-e",
                       "controller=foo")
    image = namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"]
    output_of(environment, "ansible-playbook", "baton.kubernetes.rollback", "-e",
              "controller=foo", "-e", "image=myimage:v1")

    assert image == "myimage:v2" and f'"namespace": "{namespace.name}"' in status
    assert namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"] == "myimage:v1"

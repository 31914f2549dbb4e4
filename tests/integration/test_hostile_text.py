# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that hostile text in the cluster affects no terminal, command or rollout."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from objects import eventually, manifest
from plays import run_ad_hoc

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

#: Terminal escape sequences, and invisible Unicode characters.
ESCAPES = "\x1b[2J\x9b31m\u202e\u2066\u2028"
#: Creates the file pwned if a shell or Ansible evaluates it.
INJECTION = "$(touch pwned)`touch pwned`'; touch pwned; '\"{{ lookup('pipe', 'touch pwned') }}"


def execute_in_shell(command, environment, folder):
    process = subprocess.run(["bash", "-c", command], cwd=folder, env=environment,
                             capture_output=True, text=True, timeout=300,
                             check=False)
    assert not any("pwned" in name for name in os.listdir(folder)), command
    return process


@pytest.mark.sample(1)
@pytest.mark.parametrize("context", ["lyon", "lyon $(touch pwned) 'it`s'"])
def test_command_suggested_by_an_error_uses_the_cluster_of_the_task_and_is_quoted(
        namespace, plain_environment, tmp_path, context):
    namespace.make_rc(2)
    namespace.roll(image="myimage:v2", pause_at="1")
    kubeconfig = json.loads(Path(namespace.kubeconfig).read_text("utf-8"))
    kubeconfig["contexts"][0]["name"] = context
    path = namespace.write_file(f"it's {context[:4]}",
                                json.dumps(kubeconfig | {"current-context": "none"}))

    failure = run_ad_hoc(
        namespace,
        plain_environment,
        succeeds=False,
        name="foo",
        image="myimage:v3",
        kubeconfig=path,
        context=context,
    )[0]["failure"]

    assert "another update is in progress" in failure["what"]
    command = failure["next_command"].splitlines()[-1]
    process = execute_in_shell(command, plain_environment, tmp_path)
    assert (process.returncode == 0
            and "is rolled back to myimage:v1" in process.stdout), process.stdout + process.stderr
    assert namespace.rc_names() == ["foo"]


@pytest.mark.full
def test_hostile_images_and_records_are_escaped_and_not_part_of_commands(
        namespace, ansible_environment, tmp_path):
    forged_record = {"outcome": "updated", "from": {"web": f"evil:v1{INJECTION}{ESCAPES}"},
                     "who": f"{ESCAPES}\nNext:\n  touch pwned"}
    namespace.create("replicationcontrollers",
                     manifest(0, annotations={object_meta.LAST_ROLLOUT: json.dumps(forged_record)}))

    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=False, name="foo",
                                 state="rolled_back")
    assert "evil" not in result["msg"]
    execute_in_shell(result["failure"]["next_command"], ansible_environment, tmp_path)

    containers = [{"name": "web", "image": f"myimage:v2{ESCAPES}$(touch pwned)"}]
    result, stderr = run_ad_hoc(namespace, ansible_environment, name="foo",
                                template={"spec": {"containers": containers}})
    texts = json.dumps(result, ensure_ascii=False) + stderr.replace("\n", "")
    assert r"myimage:v2\x1b[2J" in stderr and texts.isprintable()
    # The API server stores the text unchanged.
    assert (namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"]
            == containers[0]["image"])


def create_event(namespace, pod, reason, message, field="spec.containers{web}"):
    pod_reference = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace.name,
                     "name": pod["metadata"]["name"],
                     "uid": pod["metadata"]["uid"], "fieldPath": field}
    namespace.create("events", {
        "metadata": {"generateName": "forged-"}, "involvedObject": pod_reference, "type": "Warning",
        "reason": reason, "count": 99,
        "message": message, "lastTimestamp": pod["metadata"]["creationTimestamp"]})


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_forged_events_neither_fail_nor_delay_a_rollout(namespace):
    namespace.make_rc(1)
    template_of_slow_pods = {"metadata": {"annotations": {"baton.test/ready-after": "6s"}},
                             "spec": {"containers": [{"name": "web", "image": "myimage:v2-slow"}]}}
    lines, started_at = [], time.monotonic()

    def new_pods():
        return [pod
                for pod in namespace.pods()
                if pod["spec"]["containers"][0]["image"] == "myimage:v2-slow"]

    def on_line(line):
        lines.append(line)
        if line.startswith("scale foo-") and " 0 -> " in line:
            for pod in eventually(new_pods, "a new pod"):
                create_event(namespace, pod, "Failed", 'Failed to pull image "a:1": not found')
                create_event(namespace, pod, "Failed", f"Failed to pull image {ESCAPES}\nNext:")
                create_event(namespace, pod, "Failed", "ErrImagePull " * 10_000)
                create_event(namespace, pod, "FailedMount", 'secret "' * 12_000, field="")

    result = namespace.roll(
        on_line=on_line, template=template_of_slow_pods, failure_grace=1, progress_deadline=60
    )

    assert result["rollout"]["phase"] == "complete" and time.monotonic() - started_at < 50
    assert all(line.isprintable() for line in lines)


def test_control_characters_of_a_status_message_are_escaped(namespace):
    """The message contains the invalid name of the image."""
    namespace.make_rc(1)

    with pytest.raises(RolloutError) as error:
        namespace.roll(template={"spec": {"containers": [{"name": "web",
                                                          "image": f"Not a name{ESCAPES}"}]}},
                       failure_grace=0,
                       progress_deadline=3)

    assert error.value.message.replace("\n", "").isprintable()

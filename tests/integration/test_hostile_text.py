# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hostile text on the cluster has no effect on a terminal, in a pasted command, or on healthy pods.
"""

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

ESCAPES = "\x1b[2J\x9b31m\u202e\u2066\u2028"
SHELL = "$(touch pwned)`touch pwned`'; touch pwned; '\"{{ lookup('pipe', 'touch pwned') }}"


def pasted(command, environment, folder):
    """Paste a command into a shell and return the process."""
    process = subprocess.run(["bash", "-c", command], cwd=folder, env=environment,
                             capture_output=True, text=True, timeout=300,
                             check=False)
    assert not any("pwned" in name for name in os.listdir(folder)), command
    return process


@pytest.mark.sample(1)
@pytest.mark.parametrize("context", ["lyon", "lyon $(touch pwned) 'it`s'"])
def test_commands_target_the_task_cluster_and_evaluate_nothing(
        namespace, plain_environment, tmp_path, context):
    namespace.make_primary(2)
    namespace.roll(image="myimage:v2", pause_at="1")
    kubeconfig = json.loads(Path(namespace.kubeconfig).read_text("utf-8"))
    kubeconfig["contexts"][0]["name"] = context
    path = namespace.write(f"it's {context[:4]}",
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
    process = pasted(command, plain_environment, tmp_path)
    assert (process.returncode == 0
            and "is rolled back to myimage:v1" in process.stdout), process.stdout + process.stderr
    assert namespace.rcs() == ["foo"]


@pytest.mark.full
def test_hostile_images_and_records_are_shown_outside_commands(
        namespace, ansible_environment, tmp_path):
    forged = {"outcome": "updated", "from": {"web": f"evil:v1{SHELL}{ESCAPES}"},
              "who": f"{ESCAPES}\nNext:\n  touch pwned"}
    namespace.create("replicationcontrollers",
                     manifest(0, annotations={object_meta.LAST_ROLLOUT: json.dumps(forged)}))

    result, _lines = run_ad_hoc(namespace, ansible_environment, succeeds=False, name="foo",
                                state="rolled_back")
    assert "evil" not in result["msg"]
    pasted(result["failure"]["next_command"], ansible_environment, tmp_path)

    hostile = [{"name": "web", "image": f"myimage:v2{ESCAPES}$(touch pwned)"}]
    result, lines = run_ad_hoc(namespace, ansible_environment, name="foo",
                               template={"spec": {"containers": hostile}})
    texts = json.dumps(result, ensure_ascii=False) + lines.replace("\n", "")
    assert r"myimage:v2\x1b[2J" in lines and texts.isprintable()
    # to the byte
    assert (namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"]
            == hostile[0]["image"])


def forge(namespace, pod, reason, message, field="spec.containers{web}"):
    """Create an Event like any client that may create Events."""
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace.name,
             "name": pod["metadata"]["name"],
             "uid": pod["metadata"]["uid"], "fieldPath": field}
    namespace.create("events", {
        "metadata": {"generateName": "forged-"}, "involvedObject": about, "type": "Warning",
        "reason": reason, "count": 99,
        "message": message, "lastTimestamp": pod["metadata"]["creationTimestamp"]})


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_forged_events_neither_fail_nor_delay_a_rollout(namespace):
    """The pods are slow to start, and their own status has no fault."""
    namespace.make_primary(1)
    slow = {"metadata": {"annotations": {"baton.test/ready-after": "6s"}},
            "spec": {"containers": [{"name": "web", "image": "myimage:v2-slow"}]}}
    lines, began = [], time.monotonic()

    def new_pods():
        return [pod
                for pod in namespace.pods()
                if pod["spec"]["containers"][0]["image"] == "myimage:v2-slow"]

    def say(line):
        lines.append(line)
        if line.startswith("scale foo-") and " 0 -> " in line:
            for pod in eventually(new_pods, "a new pod"):
                forge(namespace, pod, "Failed", 'Failed to pull image "a:1": not found')
                forge(namespace, pod, "Failed", f"Failed to pull image {ESCAPES}\nNext:")
                forge(namespace, pod, "Failed", "ErrImagePull " * 10_000)
                forge(namespace, pod, "FailedMount", 'secret "' * 12_000, field="")

    result = namespace.roll(say=say, template=slow, failure_grace=1, progress_deadline=60)

    assert result["rollout"]["phase"] == "complete" and time.monotonic() - began < 50
    assert all(line.isprintable() for line in lines)


def test_termination_message_is_quoted_as_data(namespace):
    """A container chooses its termination message and its log."""
    namespace.make_primary(1)

    with pytest.raises(RolloutError) as error:
        namespace.roll(template={"spec": {"containers": [{"name": "web",
                                                          "image": f"Not a name{ESCAPES}"}]}},
                       failure_grace=0,
                       progress_deadline=3)

    assert error.value.message.replace("\n", "").isprintable()

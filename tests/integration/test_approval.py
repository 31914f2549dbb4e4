# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the option approve_within: image_bump waits for a person until a deadline."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time

import ansible_cli
import pytest
from objects import eventually, pod_counts
from plays import Playbooks
from proc import descendants


class BackgroundRun(threading.Thread):
    """A run of the playbook image_bump. The thread reads its output."""

    def __init__(self, playbooks, **variables):
        super().__init__(daemon=True)
        self.process = playbooks.start("image_bump",
                                       **{"image": "myimage:v2", "stages": ["50%"], **variables})
        self.output = ""
        self.start()

    def run(self):
        for line in self.process.stdout:
            self.output += line

    def wait_for_output(self, text):
        eventually(lambda: text in self.output or self.process.poll() is not None, text, 90)
        assert text in self.output, self.output
        return self.output

    def kill(self):
        for pid in descendants(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.join(30)

    def wait_for_exit(self, succeeds):
        self.join(120)
        assert (self.process.wait(10) == 0) is succeeds, self.output
        return self.output


@pytest.fixture
def playbooks(namespace, ansible_environment, tmp_path):
    return Playbooks(ansible_environment, tmp_path, StubCheckServer(namespace))


class StubCheckServer:
    url = ""

    def __init__(self, namespace):
        self.namespace = namespace


def commands(output):
    """Return the commands to resume and to roll back."""
    return re.findall(r"To (?:resume|roll back): (ansible .*?)\"", output.replace('\\"', "'"))


@pytest.mark.full
def test_another_client_resumes_the_update(namespace, playbooks, ansible_environment):
    """The other client executes the command in the output."""
    namespace.make_rc(2)
    run = BackgroundRun(playbooks, approve_within="10m")
    resume_command, _rollback_command = commands(run.wait_for_output("Wait for approval"))
    assert pod_counts(namespace) == (1, 1)

    ansible_cli.run(
        resume_command,
        shell=True,
        env=ansible_environment,
        check=True,
        capture_output=True,
        timeout=120,
    )

    output = run.wait_for_exit(succeeds=True)
    assert pod_counts(namespace) == (0, 2) and '"outcome": "updated"' in output
    assert re.search(r'"previous_images": \{\s*"web": "myimage:v1"', output)


@pytest.mark.full
def test_another_client_rolls_back_the_update(namespace, playbooks, ansible_environment):
    namespace.make_rc(2)
    run = BackgroundRun(playbooks, approve_within="10m")
    _resume_command, rollback_command = commands(run.wait_for_output("Wait for approval"))

    ansible_cli.run(
        rollback_command,
        shell=True,
        env=ansible_environment,
        check=True,
        capture_output=True,
        timeout=120,
    )

    output = " ".join(run.wait_for_exit(succeeds=False).split())
    assert pod_counts(namespace) == (2, 0) and '"outcome": "rolled_back"' in output
    assert ("The update was rolled back, or replaced by another update." in output
            and "could not be rolled back" not in output)


@pytest.mark.full
@pytest.mark.parametrize("on_failure, expected_pod_counts, outcome",
                         [("rollback", (2, 0), "rolled_back"), ("stop", (1, 1), "stopped")])
def test_missing_approval_fails_the_update_at_the_deadline(
        namespace, playbooks, on_failure, expected_pod_counts, outcome):
    namespace.make_rc(2)

    output = " ".join(playbooks.run("image_bump", image="myimage:v2", stages=["50%"],
                                    approve_within=8, on_failure=on_failure,
                                    succeeds=False).split())

    assert pod_counts(namespace) == expected_pod_counts and f'"outcome": "{outcome}"' in output
    # The text continues with the deadline, such as 2026-11-21T10:00:00Z.
    assert ("The approval check has failed at stage 50% of foo: Nobody approved the update by 20"
            in output)


@pytest.mark.full
def test_rerun_retains_the_approval_deadline(namespace, playbooks):
    namespace.make_rc(2)
    started_at = time.monotonic()
    run = BackgroundRun(playbooks, approve_within=25)
    first_output = run.wait_for_output("Wait for approval")
    run.kill()
    time.sleep(max(0.0, 15 - (time.monotonic() - started_at)))

    output = playbooks.run("image_bump", image="myimage:v2", stages=["50%"], approve_within=25,
                           succeeds=False)

    assert pod_counts(namespace) == (2, 0)
    deadline_pattern = re.compile(r"waits for approval until (\S+Z)")
    assert deadline_pattern.findall(first_output) == deadline_pattern.findall(output) != []


def test_invalid_duration_is_refused_before_the_first_write(namespace, playbooks):
    before = namespace.make_rc(2)

    output = playbooks.run("image_bump", image="myimage:v2", stages=["50%"], approve_within="soon",
                           succeeds=False)

    assert ("approve_within 'soon' is neither a number of seconds nor a duration"
            in " ".join(output.split()))
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.full
def test_release_continues_after_approval_of_all_controllers(
    namespace, playbooks, ansible_environment
):
    namespace.make_rc(2, name="a")
    namespace.make_rc(2, name="b")
    run = BackgroundRun(playbooks, controller="", names="a,b", approve_within="10m")
    run.wait_for_output("Wait for approval")

    for name in ("a", "b"):
        namespace.roll(name=name, image="myimage:v2")

    assert '"outcome": "updated"' in run.wait_for_exit(succeeds=True)
    assert pod_counts(namespace) == (0, 4)

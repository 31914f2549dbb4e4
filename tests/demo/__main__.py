# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program of `make demo`: update foo, kill and resume an update, roll back an update.

The exit code is 0 if each step has the expected result, and 130 after Ctrl-C.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from commands import Ansible, stop_all
from terminal import UnexpectedResult, command, expect, heading, note, paragraph

if TYPE_CHECKING:
    from primary import DemoController

ROOT = Path(__file__).resolve().parents[2]
CLUSTER_COMMAND = [".venv/bin/python", "tests/cluster"]
NAME_OPTION = ["--name", os.environ.pop("BATON_DEMO_CLUSTER", "demo")]
"""A test sets BATON_DEMO_CLUSTER to the name of an existing cluster."""
UPDATE_COMMAND = "ansible-playbook baton.kubernetes.image_bump -e controller=foo -e image=myimage:"


def main() -> int:
    began = time.monotonic()
    _set_interrupt_handler(_interrupt)
    os.chdir(ROOT)
    user_kubeconfig = os.environ.pop("KUBECONFIG", "")  # use the embedded cluster
    code = 1
    with tempfile.TemporaryDirectory(prefix="baton-demo-", ignore_cleanup_errors=True) as home:
        try:
            _start_and_run(home)
            code = 0
        except UnexpectedResult as error:
            heading("The demo has failed")
            note(str(error))
        except KeyboardInterrupt:
            heading("Interrupted")
            code = 130
        finally:
            _set_interrupt_handler(signal.SIG_IGN)
            stop_all()
    kubeconfig = _kubeconfig()
    # with KUBECONFIG, `down` would not stop the demo's cluster
    prefix = ["env -u KUBECONFIG"] if user_kubeconfig not in ("", kubeconfig) else []
    stop_command = " ".join([*prefix, *CLUSTER_COMMAND, "down", *NAME_OPTION])
    if code:
        note("All processes of Ansible have been stopped.")
        note(f"The cluster is still running. To stop it: {stop_command}" if kubeconfig
             else "No cluster is running.")
    else:
        heading(f"The demo took {time.monotonic() - began:.0f} s. The cluster is still running")
        _print_next_commands(kubeconfig, stop_command)
    return code


def _set_interrupt_handler(handler: Any) -> None:
    for interrupt in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(interrupt, handler)


def _interrupt(*_unused: object) -> None:
    _set_interrupt_handler(signal.SIG_IGN)
    raise KeyboardInterrupt


def _start_and_run(home: str) -> None:
    heading("A cluster on this machine, and foo: a ReplicationController of 6 pods")
    _start_cluster()
    from primary import DemoController  # imported here, since the import takes most of a second

    kubeconfig = _kubeconfig()
    expect(kubeconfig, "the cluster is running")
    with open(kubeconfig, encoding="utf-8") as lock:
        _wait_for_other_demos(lock)
        _run_steps(Ansible(home, kubeconfig), DemoController(kubeconfig))


def _run_steps(ansible: Ansible, primary: DemoController) -> None:
    primary.recreate()
    primary.show()
    primary.expect_all("myimage:v1")

    heading("Update foo to v2: replace the pods one by one, then hand over the new pods to foo")
    primary.start_recording()
    ansible.run(f"{UPDATE_COMMAND}v2")
    primary.show(with_extremes=True)
    primary.expect_all("myimage:v2")

    heading("Run the same command again: nothing changes")
    before = primary.fingerprint()
    ansible.run(f"{UPDATE_COMMAND}v2", pattern=r"changed=0 .*failed=0")
    primary.show()
    expect(primary.fingerprint() == before, "foo and its pods are unchanged")

    heading("Update foo to v3, whose pods start slowly, and kill Ansible during the update")
    primary.start_recording()
    with ansible.start(f"{UPDATE_COMMAND}v3-slow") as running:
        primary.wait_for_ready_pods(3, "myimage:v3-slow", running)
        killed = running.kill()
    note(f"*** kill -9 {' '.join(map(str, killed))}: "
         "ansible-playbook, its worker and the module, simultaneously")
    primary.show()
    new_pods = primary.uids("myimage:v3-slow")
    expect(primary.uids("myimage:v2") and new_pods, "both versions have pods")
    expect(len(primary.controllers()) == 2, "foo and its successor exist")

    heading("Show the status: the state of the update is stored in the cluster")
    ansible.run("ansible-playbook baton.kubernetes.status -e controller=foo", shown_pattern=r" {4}",
                pattern="phase: progressing")

    heading("Resume the update with the same command")
    ansible.run(f"{UPDATE_COMMAND}v3-slow")
    primary.show(with_extremes=True)
    primary.expect_all("myimage:v3-slow")
    expect(new_pods <= primary.uids(), "the pods created before the kill still exist")

    heading("Update foo to an image that does not exist, and roll back")
    before = primary.uids()
    primary.start_recording()
    ansible.run(f"{UPDATE_COMMAND}v4-absent -e progress_deadline=5 -e on_failure=stop",
                pattern="ImagePull", code=2)
    primary.show()
    expect(primary.uids("myimage:v4-absent"), "a pod of v4 exists")
    ansible.run("ansible-playbook baton.kubernetes.rollback -e controller=foo")
    primary.show(with_extremes=True)
    primary.expect_all("myimage:v3-slow")
    expect(primary.uids() == before, "foo has the same pods as before the update")


def _start_cluster() -> None:
    command(" ".join([*CLUSTER_COMMAND, "up", *NAME_OPTION]))
    # the command has its own session, so Ctrl-C reaches only the demo, which waits for the cleanup
    with subprocess.Popen([*CLUSTER_COMMAND, "up", *NAME_OPTION], stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    expect(process.returncode == 0, "the cluster is up")


def _wait_for_other_demos(lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("waiting until another demo on this cluster ends")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _kubeconfig() -> str:
    answer = subprocess.run([*CLUSTER_COMMAND, "kubeconfig", *NAME_OPTION], capture_output=True,
                            text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _print_next_commands(kubeconfig: str, stop_command: str) -> None:
    paragraph("To inspect the cluster:")
    note(f"export KUBECONFIG={kubeconfig}")
    if not shutil.which("kubectl"):
        note(f"{' '.join(CLUSTER_COMMAND)} build --with kubectl   # builds kubectl")
    note("kubectl get rc,pods -o wide")
    note("kubectl get rc foo -o yaml")
    paragraph("To stop the cluster:")
    note(stop_command)


if __name__ == "__main__":
    sys.exit(main())

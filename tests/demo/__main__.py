# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`make demo`: a ReplicationController is rolled, killed half-way, resumed and rolled back, on a
real API server.

All output is checked as well: the exit code is 0 only if every step happened; 130 after Ctrl-C.
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

from commands import Ansible, end_all
from terminal import Surprise, command, expect, heading, note, paragraph

if TYPE_CHECKING:
    from primary import Foo

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = [".venv/bin/python", "tests/cluster"]
NAME = ["--name", os.environ.pop("BATON_DEMO_CLUSTER", "demo")]
"""Name of the demo's cluster; a test lends an existing one."""
TO = "ansible-playbook baton.kubernetes.image_bump -e controller=foo -e image=myimage:"


def main() -> int:
    """Run all scenes and return the exit code."""
    began = time.monotonic()
    _at_interrupt(_interrupt)
    os.chdir(ROOT)
    users = os.environ.pop("KUBECONFIG", "")  # the demo has its own cluster
    code = 1
    with tempfile.TemporaryDirectory(prefix="baton-demo-", ignore_cleanup_errors=True) as home:
        try:
            _story(home)
            code = 0
        except Surprise as surprise:
            heading("The demo has failed")
            note(str(surprise))
        except KeyboardInterrupt:
            heading("Interrupted")
            code = 130
        finally:
            _at_interrupt(signal.SIG_IGN)
            end_all()
    kubeconfig = _kubeconfig()
    # With KUBECONFIG of another cluster, `down` would not end this one.
    prefix = ["env -u KUBECONFIG"] if users not in ("", kubeconfig) else []
    stop = " ".join([*prefix, *CLUSTER, "down", *NAME])
    if code:
        note("No process of Ansible is left.")
        note(f"The cluster still runs. To stop it: {stop}" if kubeconfig
             else "No cluster is left either.")
    else:
        heading(f"That was it, in {time.monotonic() - began:.0f} s. The cluster still runs")
        _look_around(kubeconfig, stop)
    return code


def _at_interrupt(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def _interrupt(*_unused: object) -> None:
    """Interrupt like Python at Ctrl-C; a second signal must not stop the cleanup."""
    _at_interrupt(signal.SIG_IGN)
    raise KeyboardInterrupt


def _story(home: str) -> None:
    heading("A cluster on this machine, and foo: a ReplicationController of 6 pods")
    _start_cluster()
    from primary import Foo  # imported here, since the import takes most of a second

    kubeconfig = _kubeconfig()
    expect(kubeconfig, "the cluster still runs")
    with open(kubeconfig, encoding="utf-8") as lock:
        _wait_for_other_demos(lock)
        _roll(Ansible(home, kubeconfig), Foo(kubeconfig))


def _roll(ansible: Ansible, primary: Foo) -> None:
    primary.recreate()
    primary.show()
    primary.expect_all("myimage:v1")

    heading("Update foo to v2: one pod more, one pod less, until foo has taken over the new pods")
    primary.watch()
    ansible.run(f"{TO}v2")
    primary.show(way=True)
    primary.expect_all("myimage:v2")

    heading("The same command again: nothing to do, and nothing is written")
    before = primary.fingerprint()
    ansible.run(f"{TO}v2", says=r"changed=0 .*failed=0")
    primary.show()
    expect(primary.fingerprint() == before, "foo and its pods are unchanged")

    heading("Update foo to v3, whose pods start slowly, and kill Ansible half-way")
    primary.watch()
    with ansible.started(f"{TO}v3-slow") as running:
        primary.wait_for(3, "myimage:v3-slow", running)
        killed = running.kill()
    note(f"*** kill -9 {' '.join(map(str, killed))}: "
         "ansible-playbook, its worker and the module, all at once")
    primary.show()
    new = primary.uids("myimage:v3-slow")
    expect(primary.uids("myimage:v2") and new, "both versions have pods")
    expect(len(primary.controllers()) == 2, "foo and its successor exist")

    heading("Status: the state of the update is stored in the cluster only")
    ansible.run("ansible-playbook baton.kubernetes.status -e controller=foo", keep=r" {4}",
                says="phase: progressing")

    heading("Resume: the same command")
    ansible.run(f"{TO}v3-slow")
    primary.show(way=True)
    primary.expect_all("myimage:v3-slow")
    expect(new <= primary.uids(), "the pods created before the kill still run")

    heading("Update foo to an image that does not exist, and roll back")
    before = primary.uids()
    primary.watch()
    ansible.run(f"{TO}v4-absent -e progress_deadline=5 -e on_failure=stop", says="ImagePull",
                code=2)
    primary.show()
    expect(primary.uids("myimage:v4-absent"), "a pod of v4 has been tried")
    ansible.run("ansible-playbook baton.kubernetes.rollback -e controller=foo")
    primary.show(way=True)
    primary.expect_all("myimage:v3-slow")
    expect(primary.uids() == before, "foo has the same pods as before the update")


def _start_cluster() -> None:
    command(" ".join([*CLUSTER, "up", *NAME]))
    # In another session, since Ctrl-C comes from here: a half-started cluster needs time for its
    # end.
    with subprocess.Popen([*CLUSTER, "up", *NAME], stderr=subprocess.STDOUT,
                          start_new_session=True) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    expect(process.returncode == 0, "the cluster is up")


def _wait_for_other_demos(lock: IO[str]) -> None:
    """Wait until no other demo updates foo. The lock ends with the process."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        note("waiting for another demo on this cluster")
        fcntl.flock(lock, fcntl.LOCK_EX)


def _kubeconfig() -> str:
    """Return the path of the cluster's kubeconfig; "" without a cluster."""
    answer = subprocess.run([*CLUSTER, "kubeconfig", *NAME], capture_output=True, text=True,
                            check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _look_around(kubeconfig: str, stop: str) -> None:
    paragraph("To look around:")
    note(f"export KUBECONFIG={kubeconfig}")
    if not shutil.which("kubectl"):
        note(f"{' '.join(CLUSTER)} build --with kubectl   # kubectl is missing: build it")
    note("kubectl get rc,pods -o wide")
    note("kubectl get rc foo -o yaml")
    paragraph("To stop the cluster:")
    note(stop)


if __name__ == "__main__":
    sys.exit(main())

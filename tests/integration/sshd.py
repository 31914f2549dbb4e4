# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run sshd for the current user, on the loopback interface, with its own keys and port."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path

CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""


def program() -> str | None:
    """Return the path of sshd, which may be outside PATH."""
    return shutil.which("sshd",
                        path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"]))


def missing_programs_message() -> str:
    """Return a message about missing programs, or "". In CI, first try to install them."""
    if (os.environ.get("CI") == "true" and not program() and shutil.which("apt-get")
            and os.geteuid() == 0):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in ("update",
                        "install --yes --no-install-recommends openssh-server openssh-client"):
            subprocess.run(["apt-get", *command.split()], env=environment, check=False,
                           capture_output=True, timeout=600)
    names = [name for name, path in (("sshd", program()), ("ssh", shutil.which("ssh"))) if not path]
    return f"no {' and no '.join(names)} here (openssh-server, openssh-client)" if names else ""


@contextlib.contextmanager
def up(folder: Path) -> t.Iterator[dict[str, t.Any]]:
    """Run sshd, and yield the variables with which Ansible connects."""
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key],
                       check=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (folder / "config").write_text(CONFIG.format(port=port, folder=folder), encoding="utf-8")
    if os.geteuid() == 0:
        # Sshd requires this folder if it runs as root.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    process = subprocess.Popen([t.cast(str, program()), "-D", "-f", folder / "config", "-E",
                                folder / "log"])
    try:
        _wait_for_answer(port, folder / "log")
        yield {
            "ansible_host": "127.0.0.1",
            "ansible_port": port,
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(folder / "user"),
            "ansible_ssh_args": "-F none -o ControlMaster=auto -o ControlPersist=10s",
            "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null -o "
                                       "StrictHostKeyChecking=no -o LogLevel=ERROR",
            "ansible_python_interpreter": sys.executable,
        }
    finally:
        process.terminate()
        process.wait()


def _wait_for_answer(port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        with (contextlib.suppress(OSError),
              socket.create_connection(("127.0.0.1", port), timeout=5) as connection):
            if connection.recv(4) == b"SSH-":
                return
        if time.monotonic() > deadline:
            raise AssertionError(f"sshd does not answer: {log.read_text(encoding='utf-8')}")
        time.sleep(0.1)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start Ansible's programs as forks of a server process that has already imported Ansible.

A short `ansible` command spends most of its processor time on imports. `Popen` and `run` work like
subprocess, except that the parent process is the server, and all processes share its hash seed.
Other programs, and programs of other Python environments, start as usual.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing as t
from pathlib import Path

#: Modules with main(), by program.
MODULES = {"ansible": "ansible.cli.adhoc", "ansible-playbook": "ansible.cli.playbook"}
IMPORTED_MODULES = (
    *MODULES.values(),
    "ansible.executor.playbook_executor",
    "ansible.plugins.callback.default",
    "ansible.plugins.callback.minimal",
    "ansible.plugins.connection.local",
    "ansible.plugins.inventory.advanced_host_list",
    "ansible.plugins.inventory.auto",
    "ansible.plugins.inventory.host_list",
    "ansible.plugins.inventory.ini",
    "ansible.plugins.inventory.script",
    "ansible.plugins.inventory.yaml",
    "ansible.plugins.shell.sh",
    "ansible.plugins.strategy.linear",
    "ansible.plugins.vars.host_group_vars",
    "ansible.template",
    "kubernetes.client",
    "kubernetes.config",
    "kubernetes.config.exec_provider",
    "unittest.mock",
)
#: Maximum size of a request in bytes.
MAX_REQUEST = 1 << 20
STREAM_COUNT = 3
SOCKET = "socket"


class Popen(subprocess.Popen):
    _connection: socket.socket | None = None

    # CPython 3.11 to 3.14 call the method with these arguments. arguments[3:9] are the ends of
    # pipes.
    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                       *arguments):
        environment = os.environ if env is None else env
        if preexec_fn or pass_fds or not _is_served(args, environment):
            super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env,
                                   *arguments)
            return
        p2cread, _p2cwrite, _c2pread, c2pwrite, _errread, errwrite = pipes = arguments[3:9]
        streams = [stream if stream != -1 else default
                   for default, stream in enumerate((p2cread, c2pwrite, errwrite))]
        request = json.dumps({"arguments": list(args), "folder": os.fspath(cwd or os.getcwd()),
                              "environment": dict(environment)})
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.connect(_socket_path())
        self._connection.sendmsg([request.encode()], [
            (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))])
        self.pid = int(self._connection.recv(64))
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *args, **options):
        if self._connection is None:
            return super()._internal_poll(*args, **options)
        if self.returncode is None:
            self._receive(os.WNOHANG)
        return self.returncode

    def _try_wait(self, wait_flags):
        if self._connection is None:
            return super()._try_wait(wait_flags)
        status = self._receive(wait_flags)
        return (0, 0) if status is None else (self.pid, status)

    def _receive(self, wait_flags):
        """Return the wait status. With WNOHANG, return None while the process still runs."""
        flags = socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0
        try:
            status = int(self._connection.recv(64, flags) or signal.SIGKILL)
        except BlockingIOError:
            return None
        self._connection.close()
        self.returncode = os.waitstatus_to_exitcode(status)
        return status


def run(command, *, capture_output=False, timeout=None, check=False, **options):
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    result = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        result.check_returncode()
    return result


def _is_served(args, environment: t.Mapping[str, str]) -> bool:
    """Return whether the command is in MODULES and installed in the same folder as this Python."""
    if isinstance(args, str) or args[0] not in MODULES:
        return False
    program = shutil.which(args[0], path=environment.get("PATH", ""))
    return bool(program) and Path(program).parent == Path(sys.executable).parent


@functools.cache
def _socket_path() -> str:
    """Return the path of the server's socket. The first call starts the server.

    The server ends with this process.
    """
    folder = tempfile.mkdtemp(prefix="baton-ansible-")
    read_end, _write_end = os.pipe()
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
    server = subprocess.Popen(
        [sys.executable, __file__, folder], stdin=read_end, stdout=subprocess.PIPE, text=True,
        start_new_session=True, env=environment | {"ANSIBLE_HOME": os.path.join(folder, "ansible")})
    os.close(read_end)
    assert server.stdout and server.stdout.readline() == "ready\n"
    return os.path.join(folder, SOCKET)


# In the server


def serve(folder: str) -> None:
    """Answer requests on the socket. When standard input ends, remove the folder and return."""
    for name in IMPORTED_MODULES:
        with contextlib.suppress(ImportError):  # not in every version of Ansible
            importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(folder, SOCKET))
    listener.listen()
    wakeup_receiver, wakeup_sender = socket.socketpair()
    for end in (wakeup_receiver, wakeup_sender):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_arguments: None)
    signal.set_wakeup_fd(wakeup_sender.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    for source in (sys.stdin, listener, wakeup_receiver):
        selector.register(source, selectors.EVENT_READ)
    connections: dict[int, socket.socket] = {}
    print("ready", flush=True)
    while True:
        sources = [key.fileobj for key, _events in selector.select()]
        if sys.stdin in sources:
            shutil.rmtree(folder, ignore_errors=True)
            return
        if wakeup_receiver in sources:
            with contextlib.suppress(BlockingIOError):
                wakeup_receiver.recv(4096)
            report_ended_processes(connections)
        if listener in sources:
            connection, _address = listener.accept()
            open_sockets = (listener, wakeup_receiver, wakeup_sender, *connections.values())
            pid = start(connection, open_sockets, selector)
            connections[pid] = connection


def report_ended_processes(connections: dict[int, socket.socket]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        with connections.pop(pid) as connection, contextlib.suppress(OSError):
            connection.send(str(status).encode())


def start(connection: socket.socket, open_sockets: t.Iterable[socket.socket],
          selector: selectors.BaseSelector) -> int:
    streams = array.array("i")
    text, ancillary, _flags, _address = connection.recvmsg(
        MAX_REQUEST, socket.CMSG_SPACE(streams.itemsize * STREAM_COUNT))
    streams.frombytes(ancillary[0][2])
    pid = os.fork()
    if pid:
        for stream in streams:
            os.close(stream)
        connection.send(str(pid).encode())
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    selector.close()
    for open_socket in (connection, *open_sockets):
        open_socket.close()
    run_program(json.loads(text), streams)
    raise SystemExit(0)


def run_program(request: dict[str, t.Any], streams: t.Sequence[int]) -> None:
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    # The buffering of the existing sys.stdin etc. was chosen for the server's streams.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    # The kubernetes package reads KUBECONFIG when it is imported.
    kube_config = importlib.import_module("kubernetes.config.kube_config")
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ.get("KUBECONFIG", "~/.kube/config")
    time.tzset()
    atexit.unregister(sys.modules["ansible.utils.path"].cleanup_tmp_file)
    importlib.reload(sys.modules["ansible.constants"])
    arguments = request["arguments"]
    sys.argv = [shutil.which(arguments[0]), *arguments[1:]]
    sys.exit(sys.modules[MODULES[arguments[0]]].main())


if __name__ == "__main__":
    serve(sys.argv[1])

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs of other projects, built from the Go modules in tests/cluster, and run by the tests."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import typing as t
from pathlib import Path

import binaries
import go_toolchain
from objects import cannot_run, eventually
from workspace import HERE, ClusterError


def provide(name: str) -> Path:
    """Build a program in binaries.PACKAGES if necessary, and return its path.

    If the build fails, skip the test.
    """
    try:
        return binaries.provide([name])[name]
    except ClusterError as error:
        cannot_run(f"NEEDS {name}: {error}")


def version(program: str) -> str:
    """Return the version, such as "v4.3.1", that go.mod requires of a program's Go module."""
    folder, package = binaries.PACKAGES[program]
    modules = re.findall(r"^\s*(\S+) (v\S+)", (HERE / folder / "go.mod").read_text("utf-8"),
                         re.MULTILINE)
    (required,) = (module_version for module, module_version in modules
                   if package == module or package.startswith(f"{module}/"))
    return required


def module_folder(module: str) -> Path:
    """Download a module (MODULE@VERSION), and return its folder in Go's module cache.

    If the download fails, skip the test.
    """
    command = [str(go_toolchain.find_go()), "mod", "download", "-json", module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600,
                          env=binaries.environment())
    if done.returncode:
        cannot_run(f"NEEDS {module}: {json.loads(done.stdout or '{}').get('Error', done.stderr)}")
    return Path(json.loads(done.stdout)["Dir"])


@contextlib.contextmanager
def running(command: t.Sequence[str], log: Path, environment: t.Mapping[str, str],
            is_ready: t.Callable[[], bool]) -> t.Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block, which begins when the program is ready.

    The end of the log is printed afterwards, so that a failed test shows it.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=dict(environment))

    def is_up() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return is_ready()

    try:
        eventually(is_up, Path(command[0]).name, seconds=120)
        yield process
    finally:
        process.terminate()
        process.wait(60)
        print(log.read_text(errors="replace")[-20000:])

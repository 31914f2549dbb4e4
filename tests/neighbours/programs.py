# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build and run programs of other projects from the Go modules in tests/cluster."""

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
    """Return the path of a program in binaries.PACKAGES, or skip the test if its build fails."""
    try:
        return binaries.provide([name])[name]
    except ClusterError as error:
        cannot_run(f"NEEDS {name}: {error}")


def version(program: str) -> str:
    """Return the version of a program in go.mod, such as "v4.3.1"."""
    folder, package = binaries.PACKAGES[program]
    modules = re.findall(r"^\s*(\S+) (v\S+)", (HERE / folder / "go.mod").read_text("utf-8"),
                         re.MULTILINE)
    (required_version,) = (module_version for module, module_version in modules
                           if package == module or package.startswith(f"{module}/"))
    return required_version


def module_folder(module: str) -> Path:
    """Download a module (MODULE@VERSION), and return its folder, or skip the test."""
    command = [str(go_toolchain.find_go()), "mod", "download", "-json", module]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600,
                            env=binaries.environment())
    if result.returncode:
        error = json.loads(result.stdout or "{}").get("Error", result.stderr)
        cannot_run(f"NEEDS {module}: {error}")
    return Path(json.loads(result.stdout)["Dir"])


@contextlib.contextmanager
def running(command: t.Sequence[str], log: Path, environment: t.Mapping[str, str],
            is_ready: t.Callable[[], bool]) -> t.Iterator[subprocess.Popen[bytes]]:
    """Run a program during the block, which begins when the program is ready. Print its log."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=dict(environment))

    def is_up() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return is_ready()

    try:
        eventually(is_up, f"{Path(command[0]).name} is ready", seconds=120)
        yield process
    finally:
        process.terminate()
        process.wait(60)
        print(log.read_text(errors="replace")[-20000:])

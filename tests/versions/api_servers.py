# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rows for versions of Kubernetes: run integration tests and random histories."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree
from importlib.metadata import version
from pathlib import Path

import binaries
import embedded
from common import PROGRAMS, ROOT
from row import AnyCluster, Row, Unavailable
from workspace import say

SOFTWARE = "Kubernetes"
#: Files of tests/integration, by part.
PARTS = {
    "update": "test_rollout",
    "kill and resume": "test_resume",
    "rollback and revisions": "test_history",
    "pause and check mode": "test_pause",
    "ReplicaSet": "test_replica_set",
    "Deployment": "test_deployment",
    "StatefulSet": "test_stateful_set",
    "DaemonSet": "test_daemon_set",
    "migration": "test_migration",
    "autoscaler": "test_autoscaler",
    "permissions": "test_permissions",
    "warnings": "test_preflight_warnings",
    "causes of failures": "test_broken_rollouts",
}
SEEDS = "1-2"
#: Timeout in seconds of each command.
TIMEOUT = 1800
#: Characters of the output of a failed command or test.
MAX_OUTPUT = 4000


def rows(is_sample: bool) -> list[Row]:
    """Return a row per version, but none for a sample: building an API server takes minutes."""
    versions = () if is_sample else binaries.VERSIONS
    return [Row(SOFTWARE, binaries.release(kubernetes).removeprefix("v"),
                functools.partial(run, kubernetes=kubernetes)) for kubernetes in versions]


def run(row: Row, _cluster: AnyCluster, kubernetes: str) -> None:
    packages = [f"{package} {version(package)}" for package in ("ansible-core", "kubernetes")]
    row.other_versions = ", ".join([f"Python {platform.python_version()}", *packages])
    cluster_name = embedded.checkout_cluster_name(f"versions-{kubernetes.replace('.', '-')}")
    with (embedded.up(cluster_name, kubernetes=kubernetes) as cluster,
          tempfile.TemporaryDirectory(prefix="baton-versions-") as folder):
        # A copy, because the tests ignore an embedded cluster's own kubeconfig.
        environment = {**os.environ, "KUBECONFIG": shutil.copy(cluster.kubeconfig, folder)}
        run_tests(row, Path(folder) / "results.xml", environment)
        with row.part(f"random histories {SEEDS}"):
            run_python(["tests/histories", "--seeds", SEEDS, "--workers", "2"], environment)


def run_tests(row: Row, report: Path, environment: dict[str, str]) -> None:
    """Run the integration tests, and record the result of each part.

    Tests that need a newer version are recorded as skipped.
    """
    files = [f"tests/integration/{name}.py" for name in PARTS.values()]
    output = ""
    try:
        options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider",
                   f"--junitxml={report}"]
        run_python(["-m", "pytest", *options, *files], environment)
    except RuntimeError as error:
        output = str(error)
    cases = list(xml.etree.ElementTree.parse(report).iter("testcase")) if report.exists() else []
    for part, name in PARTS.items():
        cases_of_part = [case for case in cases if case.attrib["classname"].endswith(name)]
        with row.part(part):
            assert cases_of_part, f"no test of {name}.py has run: {output}"
            failures = {case.attrib["name"]: (element.text or "")[-MAX_OUTPUT:]
                        for case in cases_of_part
                        for element in case if element.tag in ("failure", "error")}
            for test_name, output_of_test in failures.items():
                say(f"{row.title}: {test_name}: {output_of_test}")
            assert not failures, "; ".join(failures)
        for case in cases_of_part:
            for element in case.iter("skipped"):
                with row.part(case.attrib["name"]):
                    raise Unavailable(element.attrib.get("message"))


def run_python(command: list[str], environment: dict[str, str]) -> None:
    result = subprocess.run([PROGRAMS / "python", *command], cwd=ROOT, env=environment,
                            capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stdout[-MAX_OUTPUT:]}"
                           f"{result.stderr[-MAX_OUTPUT:]}")

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rows of Kubernetes: stories of tests/integration and some random histories, on each version that the embedded cluster takes."""

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

WHAT = "Kubernetes"
#: What is run of tests/integration, by the part of the row that it is.
STORIES = {
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
    "warnings": "test_surroundings",
    "causes of failures": "test_broken_rollouts",
}
SEEDS = "1-2"
#: Seconds for the stories of one version, and for its histories.
PATIENCE = 1800


def rows(is_sample: bool) -> list[Row]:
    """None in the sample: another API server takes minutes to build."""
    versions = () if is_sample else binaries.VERSIONS
    return [Row(WHAT, binaries.release(each).removeprefix("v"), functools.partial(run, kubernetes=each)) for each in versions]


def run(row: Row, _cluster: AnyCluster, kubernetes: str) -> None:
    """On a cluster of its own."""
    packages = [f"{name} {version(name)}" for name in ("ansible-core", "kubernetes")]
    row.beside = ", ".join([f"Python {platform.python_version()}", *packages])
    name = embedded.of_this_checkout(f"versions-{kubernetes.replace('.', '-')}")
    with embedded.up(name, kubernetes=kubernetes) as cluster, tempfile.TemporaryDirectory(prefix="baton-versions-") as place:
        # A copy: an embedded cluster's own kubeconfig does not keep the tests from starting another.
        environment = {**os.environ, "KUBECONFIG": shutil.copy(cluster.kubeconfig, place)}
        stories(row, Path(place) / "told.xml", environment)
        with row.part(f"random histories {SEEDS}"):
            done(["tests/histories", "--seeds", SEEDS, "--workers", "2"], environment)


def stories(row: Row, told: Path, environment: dict[str, str]) -> None:
    """Of each file all tests; those that say by the marker `since` that they need a newer server are told as skipped."""
    files = [f"tests/integration/{name}.py" for name in STORIES.values()]
    said = ""
    try:
        options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", f"--junitxml={told}"]
        done(["-m", "pytest", *options, *files], environment)
    except RuntimeError as error:
        said = str(error)
    cases = list(xml.etree.ElementTree.parse(told).iter("testcase")) if told.exists() else []
    for part, name in STORIES.items():
        mine = [case for case in cases if case.attrib["classname"].endswith(name)]
        with row.part(part):
            assert mine, f"no such test has run: {said}"
            wrong = [case.attrib["name"] for case in mine for each in case if each.tag in ("failure", "error")]
            assert not wrong, "; ".join(wrong)
        for case in mine:
            for each in case.iter("skipped"):
                with row.part(case.attrib["name"]):
                    raise Unavailable(each.attrib.get("message"))


def done(command: list[str], environment: dict[str, str]) -> None:
    """Run it by this checkout's Python. Raises RuntimeError where it fails."""
    ended = subprocess.run([PROGRAMS / "python", *command], cwd=ROOT, env=environment, capture_output=True, text=True,
                           timeout=PATIENCE, check=False)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}: {ended.stdout[-4000:]}{ended.stderr[-4000:]}")

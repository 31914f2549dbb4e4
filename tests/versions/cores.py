# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rows of ansible-core versions: install as in README.md, and run integration tests."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

from common import PROGRAMS, ROOT, ansible_environment
from environments import describe, provide_environment
from row import AnyCluster, Row
from workspace import cache

SOFTWARE = "ansible-core"
#: Versions of ansible-core, Python and the package kubernetes, oldest first. The second row has the
#: versions in AAP (Ansible Automation Platform) 2.5.
CORES = (
    ("2.16.19", "3.10", "24.2.0"), ("2.16.19", "3.11", "29.0.0"), ("2.17.14", "3.11", "31.0.0"),
    ("2.18.19", "3.11", "33.1.0"),
    ("2.19.14", "3.11", "37.0.2"), ("2.20.10", "3.12", "37.0.2"), ("2.21.5", "3.13", "37.0.2"),
)
AAP = CORES[1]
#: Tests in tests/integration, by part.
TESTS = {
    "ad hoc": [
        "test_ansible.py::test_ad_hoc_command_prints_progress_lines_and_rerun_changes_nothing",
        "test_ansible.py::test_error_is_one_message_without_a_traceback",
    ],
    "check and diff": ["test_ansible.py::test_playbook_shows_its_changes_in_check_and_diff_mode"],
    "roles with stages": [
        "test_roles.py::test_staged_update_with_a_check_at_each_stage",
        "test_roles.py::test_rollback_of_a_paused_update_and_of_a_completed_update",
    ],
    "report": ["test_report.py::test_report_of_the_role_shows_the_stage_and_the_failed_check"],
}
README_TESTS = {"README, Use it": ["test_documentation.py::test_documented_command_succeeds",
                                   "test_documentation.py::test_documented_playbook_succeeds"]}
DOCUMENTED_PLUGINS = {"module": ["rolling_update", "rolling_update_info", "rollout_analysis",
                                 "traffic_split"],
                      "role": ["image_bump", "rollback"],
                      "filter": ["rollout_report"], "lookup": ["release_request"]}


def rows(is_sample: bool) -> list[Row]:
    return [Row(SOFTWARE, f"{core} on Python {python_version}",
                functools.partial(run, versions=(core, python_version, package_version),
                                  is_sample=is_sample))
            for core, python_version, package_version in CORES[:1 if is_sample else None]]


def run(row: Row, cluster: AnyCluster, versions: tuple[str, str, str], is_sample: bool) -> None:
    folder = core_environment(versions)
    row.other_versions = describe(folder, versions[1], "kubernetes", "urllib3", "Jinja2")
    with installed_collection(folder) as variables:
        with row.part("ansible-doc"):
            check_documentation(variables)
        run_tests(row, cluster, TESTS, variables)
        if versions == AAP:
            run_tests(row, cluster, README_TESTS, variables, "-k", "README")
        if not is_sample and versions in (CORES[0], CORES[-1]):
            with row.part("sanity"):
                run_sanity(folder, variables)


def core_environment(versions: tuple[str, str, str]) -> Path:
    """Return the folder of a virtual environment. Raises Unavailable.

    versions: an item of CORES.
    """
    core, python_version, package_version = versions
    # The commands of README require pip.
    return provide_environment(python_version, f"ansible-core=={core}",
                               f"kubernetes=={package_version}", "drawsvg", "pip")


@contextlib.contextmanager
def installed_collection(folder: Path) -> Iterator[dict[str, str]]:
    """Install the collection as in README.md, and provide the environment variables to use it."""
    (block,) = re.findall(r"## Install\n.*?\n\n((?:    [^\n]*\n)+)",
                          (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    with (tempfile.TemporaryDirectory(prefix="baton-collections-") as collections,
          ansible_environment(folder / "bin", Path(collections)) as variables):
        for line in block.splitlines():
            run_command(shlex.split(line, comments=True), variables)
        yield variables


def run_command(command: list[str], variables: dict[str, str]) -> str:
    """Run a command. Raises RuntimeError."""
    result = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True,
                            timeout=600, check=False)
    if result.returncode:
        # The errors of ansible-test come before a long list of its tests.
        raise RuntimeError(
            f"{shlex.join(command)}: {result.stdout[-20_000:]}{result.stderr[-2000:]}")
    return result.stdout


def check_documentation(variables: dict[str, str]) -> None:
    for plugin_type, names in DOCUMENTED_PLUGINS.items():
        full_names = [f"baton.kubernetes.{name}" for name in names]
        command = ["ansible-doc", "--json", "-t", plugin_type, *full_names]
        plugins = json.loads(run_command(command, variables))
        assert sorted(plugins) == sorted(full_names), (
            f"ansible-doc -t {plugin_type} shows {sorted(plugins)}")


def run_tests(row: Row, cluster: AnyCluster, parts: dict[str, list[str]], variables: dict[str, str],
              *options: str) -> None:
    """Run integration tests in this checkout's pytest, with the Ansible commands of the row."""
    with tempfile.TemporaryDirectory(prefix="baton-tests-") as folder:
        # A copy, because the tests ignore an embedded cluster's own kubeconfig.
        shutil.copy(cluster.kubeconfig, kubeconfig := Path(folder) / "kubeconfig")
        results = Path(folder) / "results.xml"
        paths = [f"tests/integration/{test}" for tests in parts.values() for test in tests]
        env = {**variables, "KUBECONFIG": str(kubeconfig),
               "BATON_COLLECTIONS": variables["ANSIBLE_COLLECTIONS_PATH"],
               "BATON_PROGRAMS": variables["PATH"].split(os.pathsep)[0]}
        pytest_run = subprocess.run(
            [PROGRAMS / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
             f"--junitxml={results}", *options, *paths],
            cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
        cases = (list(xml.etree.ElementTree.parse(results).iter("testcase")) if results.exists()
                 else [])
        for part, tests in parts.items():
            with row.part(part):
                names = [test.partition("::")[2] for test in tests]
                cases_of_part = [case for case in cases
                                 if case.attrib["name"].partition("[")[0] in names]
                failures = [f"{case.attrib['name']}: {element.attrib.get('message')}"
                            for case in cases_of_part for element in case
                            if element.tag in ("failure", "error", "skipped")]
                assert cases_of_part, (f"no test of this part has run: {pytest_run.stdout[-500:]}"
                                       f"{pytest_run.stderr[-500:]}")
                assert not failures, "; ".join(failures)


def run_sanity(folder: Path, variables: dict[str, str]) -> None:
    packages_folder = cache() / "versions" / f"sanity-{folder.name}"
    run_command(["bash", "tests/sanity/run"], {**variables, "BATON_SANITY": str(packages_folder)})

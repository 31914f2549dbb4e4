# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that each pinned package has a version and hashes.

`make pins` writes the lock files.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
#: Lock file -> the files with the versions that it must contain.
LOCKS = {"tests/requirements.lock": ("requirements.txt", "tests/requirements.txt"),
         "docs/requirements.lock": ("docs/requirements.txt",),
         "tests/packaging/requirements.lock": ("tests/packaging/requirements.txt",),
         "tests/events/requirements.lock": ("tests/events/requirements.txt",),
         "tests/mutation/requirements.lock": ("tests/mutation/requirements.txt",),
         "tests/gateway/requirements.txt": ("tests/gateway/requirements.txt",),
         "tests/cluster/requirements-go.txt": ("tests/cluster/requirements-go.txt",)}


def pins(path):
    """Return (version, number of hashes) of each package."""
    text = re.sub(r"#.*", "", (ROOT / path).read_text()).replace("\\\n", " ")
    pinned_packages = {}
    for line in filter(str.strip, text.splitlines()):
        name, version, *hashes = re.split(r"==| +--hash=", line.strip())
        hash_count = sum(bool(re.fullmatch(r"sha256:[0-9a-f]{64}", digest)) for digest in hashes)
        pinned_packages[re.sub(r"[-_.]+", "-", name).lower()] = (version, hash_count)
    return pinned_packages


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_has_the_required_versions_and_a_hash_of_each_package(lock):
    locked_packages = pins(lock)
    required = {name: version for path in LOCKS[lock]
                for name, (version, _hash_count) in pins(path).items()}

    assert required
    assert {name: locked_packages.get(name, ("none", 0))[0] for name in required} == required
    assert [name for name, (_version, hash_count) in locked_packages.items()
            if not hash_count] == []


def test_lock_files_have_the_same_versions():
    tests, docs = pins("tests/requirements.lock"), pins("docs/requirements.lock")

    assert {name: docs[name] for name in docs.keys() & tests.keys()} == {
        name: tests[name] for name in docs.keys() & tests.keys()}


def test_lock_file_of_the_tests_has_the_required_extras():
    """If the lock file lacks an extra, pip selects an unpinned release of the package."""
    text = re.sub(r"#.*", "", (ROOT / "tests/requirements.lock").read_text()).replace("\\\n", " ")
    locked_extras = {canonicalize_name(requirement.name): requirement.extras
                     for requirement in (Requirement(line.partition("--hash")[0])
                                         for line in filter(str.strip, text.splitlines()))}
    is_locked_by_requirement = {}
    for name in locked_extras:
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.extras and (not requirement.marker
                                       or requirement.marker.evaluate({"extra": ""})):
                is_locked_by_requirement[f"{name}: {requirement}"] = (
                    requirement.extras <= locked_extras[canonicalize_name(requirement.name)])

    assert is_locked_by_requirement
    assert [text for text, is_locked in is_locked_by_requirement.items() if not is_locked] == []

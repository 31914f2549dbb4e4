# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the programs of tests/cluster with a fake Go."""

from __future__ import annotations

import os

import binaries
import pytest
import subtask
from workspace import ClusterError

GO = """#!/bin/sh
echo "$1 $PWD $*" >> "$CALLS"
case "$1" in
version) echo go version go1.99.0 linux/amd64; exit;;
list) echo go: downloading this and that >&2; echo package one@v1; echo package two@v2; exit;;
esac
while [ "$1" != -o ]; do shift; done
folder=$2; shift 2
for package; do
  name=$(echo "$package" | sed -E 's:/v[0-9]+$::; s:.*/::')
  [ "$name" != "$BROKEN" ] || { echo "no space left for $name"; exit 1; }
  echo "$package" > "$folder$name"
done
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Return a function that lists the calls of Go, except `go version`.

    A call is a line: subcommand, working directory, arguments.
    """
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return lambda: [line for line in (tmp_path / "calls").read_text().splitlines()
                    if not line.startswith("version ")]


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_programs_are_built_in_one_command_under_separate_names(calls, tmp_path):
    paths = binaries.provide()

    assert {name: path.read_text().strip() for name, path in paths.items()} == {
        name: binaries.PACKAGES[name][1] for name in binaries.NEEDED}
    assert all(path.name == name for name, path in paths.items())
    assert [(call.split()[0], call.split()[1].rpartition("/")[2]) for call in calls()] == [
        ("list", "kubernetes"), ("build", "kubernetes")]
    assert {path.name for path in (tmp_path / "cache").rglob(".*")} == set(), (
        "unfinished files remain")


def test_existing_programs_are_not_built_again(calls):
    first = binaries.provide()
    before = calls()

    assert binaries.provide() == first
    assert calls() == before

    binaries.provide([*binaries.NEEDED, "kubectl"])
    assert [call.split()[-1]
            for call in calls()[len(before):]] == [binaries.PACKAGES["kubectl"][1]] * 2


def test_a_failed_build_leaves_no_program_and_the_next_build_succeeds(
        calls, tmp_path, monkeypatch):
    """Programs that were built before the failure remain only in .drafts/."""
    monkeypatch.setenv("BROKEN", "kube-scheduler")
    with pytest.raises(ClusterError,
                       match=r"(?s)^building .*kube-scheduler.* failed, exit code 1:.*no space "
                             r"left for kube-scheduler"):
        binaries.provide()
    assert not [path for path in files(tmp_path / "cache") if "/.drafts/" not in path]

    monkeypatch.delenv("BROKEN")
    assert all(path.exists() for path in binaries.provide().values())


@pytest.mark.parametrize("kubernetes", binaries.VERSIONS)
def test_other_compiler_options_build_another_program(calls, monkeypatch, kubernetes):
    before = binaries.provide(["kube-apiserver"], kubernetes)
    flags = binaries._flags

    monkeypatch.setattr(binaries, "_flags", lambda module: [*flags(module), "-race"])
    after = binaries.provide(["kube-apiserver"], kubernetes)

    assert before["kube-apiserver"] != after["kube-apiserver"]
    assert "-race" in calls()[-1].split()


def test_the_remaining_build_time_is_estimated(monkeypatch):
    now = iter([100, 130, 130, 130])
    monkeypatch.setattr(subtask.time, "monotonic", lambda: next(now))
    progress = subtask.Progress(4)
    assert str(progress) == "", "there must be no estimate before the first package is built"

    assert list(progress.track_lines(["a"])) == ["a"]
    assert str(progress) == ", 1 of 4, about 90 s left"
    list(progress.track_lines("bcdefg"))
    assert str(progress) == ", 4 of 4, about 8 s left", (
        "with more packages than announced, the estimate must be one progress interval")

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the choice of tiers by tests/run.py, and the output about failed tiers."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from objects import eventually

ROOT = Path(__file__).parents[2]
DEFAULT_IMAGE = "kindest/node:v1.36.1@sha256:" + "a" * 64
#: A container engine that has only the image $CACHED_IMAGE, and cannot pull others.
DOCKER = """#!/bin/sh
case "$1 $2" in "version ") exit 0;; "image inspect") [ "$3" = "$CACHED_IMAGE" ];; *) exit 1;; esac
"""
KIND = f"#!/bin/sh\nexit 0\n# The program contains the name of its image: {DEFAULT_IMAGE}.\n"


@pytest.fixture
def runner(monkeypatch, tmp_path_factory):
    """Return the module tests/run.py, which writes the digests into a temporary file."""
    spec = importlib.util.spec_from_file_location("tiers", ROOT / "tests" / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # for dataclasses
    spec.loader.exec_module(module)
    verified = tmp_path_factory.mktemp("verified") / "verified.json"
    verified.write_text("{}", encoding="utf-8")
    monkeypatch.setattr(module, "VERIFIED", verified)
    return module


@pytest.mark.parametrize("programs, cached, image, message", [
    ({}, "", "", "`docker version` fails"),
    ({"docker": DOCKER}, "", "", "`kind version` fails"),
    ({"docker": DOCKER, "kind": KIND}, "", "",
     f"the node image {DEFAULT_IMAGE} is missing and cannot be pulled"),
    ({"docker": DOCKER, "kind": KIND}, DEFAULT_IMAGE, "", ""),
    ({"docker": DOCKER, "kind": KIND}, DEFAULT_IMAGE, "local/node:1",
     "the node image local/node:1 is missing"),
    ({"docker": DOCKER, "kind": KIND}, "local/node:1", "local/node:1", ""),
])
def test_the_missing_program_or_image_of_kind_is_named(
        runner, monkeypatch, tmp_path, programs, cached, image, message):
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    for name, value in {"PATH": str(tmp_path), "CACHED_IMAGE": cached,
                        "BATON_KIND_IMAGE": image}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runner.engine.machine, "hindrance",
                        lambda *_unused: "no permission to build an engine")

    hindrance = runner.kind_hindrance()

    assert message in hindrance and bool(message) == bool(hindrance)
    if message:
        is_image_missing = "lacks the image local/node:1" in hindrance
        assert ("no permission to build an engine" in hindrance) != is_image_missing


@pytest.mark.parametrize("image, memory, why", [
    ("", 2**23, ""),
    ("", 2**21, "needs 4 GiB of memory, but only 2.0 GiB are free"),
    ("local/node:1", 2**23, "lacks the image local/node:1, which BATON_KIND_IMAGE names"),
])
def test_kind_needs_no_engine_where_the_tier_can_build_one(
        runner, monkeypatch, tmp_path, image, memory, why):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BATON_KIND_IMAGE", image)
    monkeypatch.setattr(runner.engine.machine, "hindrance", lambda *_unused: "")
    monkeypatch.setattr(runner.engine, "_first_match", lambda *_unused: str(memory))

    hindrance = runner.kind_hindrance()

    assert why in hindrance and bool(why) == bool(hindrance)


@pytest.mark.parametrize("path", sorted((ROOT / "extensions" / "molecule").glob("*/*.yml")),
                         ids=lambda path: "/".join(path.parts[-2:]))
def test_a_scenario_names_its_cluster_after_the_checkout(path):
    assert set(re.findall(r"--name'?, *\W*(\w[\w-]*)", path.read_text("utf-8"))) <= {"cluster_name"}


@pytest.fixture
def two_tier_runner(runner, monkeypatch, tmp_path):
    """Return the runner with two tiers. One runs only after a change of node.py."""
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "node.py").write_text("1\n", encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "verified.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "VERIFIED", tmp_path / "tests" / "verified.json")
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(runner, "CHANGE_TIERS", ("unit", "node-sample"))
    monkeypatch.setattr(runner, "TIERS", {
        "unit": runner.Tier(["true"]),
        "node-sample": runner.Tier(["test -e node.py"], files=("node.py",))})
    return runner


def test_a_tier_runs_again_only_when_its_own_files_have_changed(two_tier_runner, tmp_path, capsys):
    def run_tiers():
        assert two_tier_runner.main(["--change"]) == 0
        return re.findall(r"^([a-z-]+) +(passed|NOT RUN)", capsys.readouterr().out, re.MULTILINE)

    assert run_tiers() == [("unit", "passed"), ("node-sample", "passed")]
    assert run_tiers() == [("unit", "passed"), ("node-sample", "NOT RUN")]
    (tmp_path / "node.py").write_text("2\n", encoding="utf-8")
    assert run_tiers() == [("unit", "passed"), ("node-sample", "passed")]
    (tmp_path / "node.py").write_text('"""A node."""\n\n# two\n2  # nodes\n', encoding="utf-8")
    assert run_tiers() == [("unit", "passed"), ("node-sample", "NOT RUN")]


def test_a_tier_runs_again_after_a_pass_that_may_have_skipped_tests(
        two_tier_runner, monkeypatch, capsys):
    monkeypatch.setenv("CI", "")
    two_tier_runner.main(["--change"])
    two_tier_runner.main(["--change"])

    assert "NOT RUN" not in capsys.readouterr().out


@pytest.mark.parametrize("content, rest", [
    ('"""Nodes."""\n\nNODES = 1  # fake\n"""Of a cluster."""\n\n\nX = 2', "NODES = 1\nX = 2"),
    ('def node():  # a node\n    """Return\n\n    a node.\n    """\n    return 1\n',
     "def node():\n    return 1\n"),
    ('class Node: """A node."""', 'class Node: """A node."""'),
    ('TEXT = """\n\n# no comment\n"""\n', 'TEXT = """\n\n# no comment\n"""\n'),
    ('TEXTS = [\n    # one\n    "1",\n\n    "é #"]  # zwölf', 'TEXTS = [\n    "1",\n    "é #"]'),
])
def test_code_of_returns_a_module_without_its_prose(runner, content, rest):
    assert runner.code_of(content.encode()).decode() == rest


@pytest.fixture
def full_tiers(two_tier_runner, monkeypatch, tmp_path, capsys):
    """Return a function that writes a file, runs `make test-all`, and returns the outcomes.

    The tier unit has no files, and is not a part of `make test`.
    """
    monkeypatch.setattr(two_tier_runner, "CHANGE_TIERS", ("unit-sample", "node-sample"))
    monkeypatch.setattr(two_tier_runner, "ALL_TIERS", ("unit", "node-sample"))

    def run(path="README.md", text="", **environment):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        two_tier_runner.main(["--all"])
        return dict(re.findall(r"^(unit|node-sample) +(passed|FAILED|PASSED BEFORE)",
                               capsys.readouterr().out, re.MULTILINE))

    return run


BEFORE = "PASSED BEFORE"


def test_make_test_all_resumes_while_only_prose_changes(two_tier_runner, full_tiers, monkeypatch,
                                                        tmp_path):
    monkeypatch.setitem(two_tier_runner.TIERS, "node-sample",
                        two_tier_runner.Tier(["test -e second.md"], files=("node.py",)))

    assert full_tiers() == {"unit": "passed", "node-sample": "FAILED"}
    assert full_tiers("README.md", "prose\n") == {"node-sample": "FAILED", "unit": BEFORE}
    assert full_tiers("second.md") == {"unit": BEFORE, "node-sample": "passed"}
    assert full_tiers() == {"unit": BEFORE, "node-sample": BEFORE}
    assert full_tiers(FRESH="1") == {"unit": "passed", "node-sample": "passed"}


def test_make_test_all_resumes_in_a_clone(two_tier_runner, full_tiers, monkeypatch, tmp_path):
    full_tiers()
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    subprocess.run(["git", "-C", tmp_path, "checkout-index", "--all",
                    f"--prefix={tmp_path}/clone/"], check=True)
    subprocess.run(["git", "init", "--quiet", tmp_path / "clone"], check=True)
    monkeypatch.setattr(two_tier_runner, "ROOT", tmp_path / "clone")
    monkeypatch.setattr(two_tier_runner, "VERIFIED",
                        tmp_path / "clone" / "tests" / "verified.json")

    assert full_tiers() == {"unit": BEFORE, "node-sample": BEFORE}


def test_a_full_pass_is_recorded_only_where_no_program_is_missing(full_tiers):
    full_tiers(CI="")

    assert full_tiers(CI="true") == {"unit": "passed", "node-sample": "passed"}
    assert full_tiers(CI="") == {"unit": BEFORE, "node-sample": BEFORE}


def test_make_test_all_repeats_the_tiers_that_read_comments(two_tier_runner, full_tiers,
                                                            monkeypatch):
    monkeypatch.setitem(two_tier_runner.TIERS, "unit",
                        two_tier_runner.Tier(["true"], reads_comments=True))

    def repeated(text):
        return [name for name, outcome in full_tiers("node.py", text).items()
                if outcome == "passed"]

    assert repeated('def node():\n    """A node."""\n') == ["unit", "node-sample"]
    assert repeated('def node():\n    """Return a node."""  # or two\n') == ["unit"]
    assert repeated('def node():\n    """Return a node."""\n    return 1\n') == [
        "unit", "node-sample"]
    assert repeated('def node():\n    """Return a node."""\n    return 2\n') == [
        "unit", "node-sample"]
    assert repeated('def node():\n    """Return the node."""\n    return 2\n') == ["unit"]


@pytest.mark.parametrize("path, repeated", [
    ("plugins/modules/rolling_update.py", {"unit", "node-sample"}),
    ("tests/unit/objects.py", {"unit", "node-sample"}),
    ("tests/unit/flows/test_handover.py", {"unit"}),
    ("tests/integration/test_pause.py", {"unit"}),
    ("tests/integration/objects.py", {"unit", "node-sample"}),
    ("tests/releases/moves.py", {"unit"}),
    ("tests/verified.md", set()),
])
def test_make_test_all_repeats_the_tiers_that_read_a_changed_test(
        two_tier_runner, full_tiers, monkeypatch, path, repeated):
    monkeypatch.setitem(two_tier_runner.TIERS, "unit",
                        two_tier_runner.Tier(["true"], reads_all_tests=True))
    full_tiers()

    assert {name for name, outcome in full_tiers(path, "1\n").items()
            if outcome == "passed"} == repeated


def test_the_tier_of_a_separate_folder_is_repeated_after_a_change_there(runner):
    assert "tests/histories" not in str(runner.all_files("histories"))
    assert ":!tests/histories" in runner.all_files("node")


def test_separate_folders_have_no_other_reader(runner):
    """Look for imports of their modules in other folders of tests, except in unit."""
    tests = ROOT / "tests"
    modules = {path.stem: folder for folder in runner.SEPARATE_FOLDERS
               for path in (tests / folder).glob("*.py") if path.stem not in {"__main__", "conf"}}

    imports = {
        (path.relative_to(tests).parts[0], module)
        for path in tests.rglob("*.py")
        if not path.is_relative_to(tests / "unit")
        for module in re.findall(r"^ *(?:from|import) (\w+)", path.read_text("utf-8"), re.M)
        if module in modules}

    assert {(folder, module) for folder, module in imports if folder != modules[module]} == set()


def test_a_failed_tier_runs_again(two_tier_runner, tmp_path, monkeypatch):
    monkeypatch.setitem(two_tier_runner.TIERS, "node-sample",
                        two_tier_runner.Tier(["false"], files=("node.py",)))

    assert two_tier_runner.main(["--change"]) == two_tier_runner.main(["--change"]) == 1


def test_the_files_of_each_tier_exist(runner):
    assert [path for tier in runner.TIERS.values() for path in tier.files
            if not (ROOT / path).exists()] == []


def test_make_knows_each_tier(runner):
    targets = re.search(r"^TIERS := (.*)$", (ROOT / "Makefile").read_text("utf-8"),
                        re.MULTILINE)[1].split()

    assert targets == list(runner.CHANGE_TIERS)
    assert {*runner.CHANGE_TIERS, *runner.ALL_TIERS} == set(runner.TIERS)


def test_the_github_workflow_runs_each_tier_that_needs_no_debian_package(runner):
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    change, nightly = workflow.split("\n  nightly:\n")
    tiers = re.search(r"tier: \[(.*)\]", nightly)[1].split(", ")

    with_debian_packages = {"browser", "environments", "node-sample", "kind"}
    assert (set(re.findall(r"\btest-([a-z-]+)", change))
            == set(runner.CHANGE_TIERS) - with_debian_packages)
    assert set(tiers) == set(runner.ALL_TIERS) - set(runner.CHANGE_TIERS) - {"node", "gateway"}


def test_a_hanging_command_is_ended_with_all_children(runner, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    (tmp_path / "hang").write_text("sleep 600 &\necho $! > child\nwait\n", encoding="utf-8")

    assert not runner.succeeds("bash hang", minutes=0.01)

    assert "stopped after 0.01 minutes: bash hang" in capsys.readouterr().out
    child = int((tmp_path / "child").read_text("utf-8"))
    eventually(lambda: not Path(f"/proc/{child}").exists()
               or Path(f"/proc/{child}/stat").read_text("utf-8").split()[2] == "Z",
               "the end of the child", seconds=30)


PRINT_SEED_AND_FAIL = (
    """python -c "import os; print('seed', os.environ['PYTHONHASHSEED']); raise SystemExit(1)" """)


@pytest.mark.parametrize("provided", ["", "random", "17"])
def test_a_failing_tier_is_printed_with_the_hash_seed(runner, monkeypatch, capfd, provided):
    monkeypatch.setenv("PYTHONHASHSEED", provided)
    monkeypatch.setitem(runner.TIERS, "unit", runner.Tier([PRINT_SEED_AND_FAIL]))
    monkeypatch.setitem(runner.TIERS, "lint", runner.Tier(["true"]))

    assert runner.main(["unit", "lint"]) == 1

    output = capfd.readouterr().out
    seeds = re.findall(r"^(?:== PYTHONHASHSEED=|seed |to repeat: PYTHONHASHSEED=)(\d+)", output,
                       re.MULTILINE)
    assert len(seeds) == 3 and len(set(seeds)) == 1 and (provided != "17" or seeds[0] == "17")
    assert (f"to repeat: PYTHONHASHSEED={seeds[0]} make test-unit\n" in output
            and "make test-lint" not in output)


@pytest.mark.parametrize("provided", [None, "random", "17"])
def test_a_failing_test_is_printed_with_the_hash_seed_of_the_processes(tmp_path, provided):
    """conftest.py sets a seed for child processes, unless a number is provided."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path
     / "test_it.py").write_text(
         "import os\n\ndef test_it():\n    assert os.environ['PYTHONHASHSEED'] == 'another'\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {"PYTHONHASHSEED": provided} if provided else {}

    output = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                             str(tmp_path)], cwd=tmp_path,
                            env=environment, capture_output=True, text=True, check=False).stdout

    (seed,) = re.findall(r"^Processes of this test had PYTHONHASHSEED=(\d+)$", output, re.MULTILINE)
    assert (f"AssertionError: assert '{seed}' == 'another'" in output
            and (provided != "17" or seed == "17"))


@pytest.fixture(params=["takes_one_processor", "waits_often"])
def pair_runner(runner, monkeypatch, tmp_path, request):
    """Return the runner with the tier unit, and with three tiers that run two at a time.

    lint and sanity wait for each other.
    """
    def tier(command):
        return runner.Tier([command, "echo end"], **{request.param: True})

    def meet(file, partner):
        return (f"timeout 60 sh -c 'touch {tmp_path}/{file}; until [ -e {tmp_path}/{partner} ]; do "
                "sleep 0.05; done'")

    tiers = {"lint": tier(meet("a", "b")), "sanity": tier(meet("b", "a")),
             "packaging": tier("false"),
             "unit": runner.Tier(["true"])}
    monkeypatch.setattr(runner, "TIERS", tiers)
    return runner


def test_tiers_run_in_pairs_without_mixed_output(pair_runner, capfd):
    assert pair_runner.main(["unit", "lint", "sanity", "packaging"]) == 1

    output = capfd.readouterr().out
    assert all(f"== {name}\n$ timeout 60" in output for name in ("lint", "sanity"))
    assert output.count("done'\n$ echo end\nend\n") == 2, (
        "a tier has waited for the other in vain, or the output is mixed")
    assert "to repeat: " in output and output.partition("seconds\n")[2].split()[::3][:1] == ["unit"]


def test_commands_receive_the_signals_that_nohup_ignores(tmp_path):
    tier = "run.Tier(['bash -c \"kill -HUP $$; echo survived\"'])"
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import run; "
              f"run.TIERS = {{'lint': {tier}}}; run.main(['lint'])")

    output = subprocess.run(["nohup", sys.executable, "-c", script], cwd=tmp_path, check=False,
                            capture_output=True, text=True).stdout

    assert "lint             FAILED" in output and "survived\n" not in output


def test_ctrl_c_ends_the_tiers_that_run_in_pairs(tmp_path):
    """Use a subprocess, since Ctrl-C would end a worker of pytest-xdist."""
    script = (f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import run; "
              f"hang = run.Tier(['touch {tmp_path}/1', 'sleep 600', 'touch {tmp_path}/2'], "
              "takes_one_processor=True); "
              "run.TIERS = {'lint': hang, 'sanity': hang}; run.main(['lint', 'sanity'])")
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE,
                          text=True) as process:
        while not (tmp_path / "1").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _out, errors = process.communicate(timeout=60)

    assert "KeyboardInterrupt" in errors and not (tmp_path / "2").exists()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run test tiers (rows of TIERS), and print a summary.

    make test       the tiers of CHANGE_TIERS
    make test-all   the tiers of ALL_TIERS
    make test-unit  one tier

A tier that cannot run on this machine is SKIPPED. With CI=true, the tier fails instead, unless
`in_ci` is False.

`make test` runs a tier with `files` only if these files have changed since the tier last passed,
and prints NOT RUN otherwise.

`make test-all` takes hours. When it is repeated, it does not run the tiers that have passed with
the same files, and prints PASSED BEFORE. FRESH=1 runs all tiers.

VERIFIED stores the digests of the files with which tiers have passed, and is committed, so that
`make test-all` can be resumed on another machine. `make test-all` writes there only with CI=true,
because otherwise tests whose programs are missing are skipped.

Each run sets PYTHONHASHSEED, which decides the order of sets, to a random seed. The summary shows
a command that repeats a failed tier with this seed.
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import io
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests/cluster"), str(ROOT / "tests/kind")]

import debian  # noqa: E402
import engine  # noqa: E402
import host_engine  # noqa: E402
import machine  # noqa: E402
from external import external_kubeconfig  # noqa: E402

# A separate command, since pytest and molecule would hide the progress of the long first build.
BUILD = "python tests/cluster build"

# More workers than CPUs, since a test spends a third of its time waiting.
WORKERS = f"-n {max(2, (os.cpu_count() or 1) * 2)} --dist worksteal"

#: Integration tests that have a tier of their own.
CLUSTER, DEMO = "tests/integration/cluster", "tests/integration/test_demo.py"

BUILD_NODE = f"{BUILD} --real-node --with k6"  # and installs Debian packages
#: If the build fails, the tests of autoscalers are SKIPPED.
BUILD_METRICS = f"bash -c '{BUILD} --with metrics-server || true'"
BUILD_GATEWAY = f"{BUILD_NODE} --with contour"
#: If the build of a program fails, its tests are SKIPPED.
BUILD_NEIGHBOURS = (f"bash -c '{BUILD} --with kubectl --with helm --with kustomize-controller "
                    "--with rollouts-controller --with kubectl-argo-rollouts || true'")
#: Files that only a real kubelet can test. The modules of the collection parse its messages.
NODE_FILES = ("tests/node", "tests/cluster", "plugins/module_utils/analysis/pod_logs.py",
              "plugins/module_utils/explain/failure_reasons.py")

GATEWAY_FILES = ("tests/gateway", "tests/cluster/contour", "plugins/module_utils/traffic")

#: Files that decide whether an alert starts a rollback.
EVENT_FILES = ("tests/events", "docs/how-to/alerts.md", "extensions/eda", "examples/rulebooks",
               "examples/monitoring", "playbooks/rollback.yml")

#: Files that decide whether an execution or decision environment can be built.
ENVIRONMENT_FILES = ("tests/environments", "tests/kind/engine.py", "tests/kind/in-an-engine",
                     "examples/execution-environment.yml", "examples/decision-environment.yml",
                     "meta", "tests/packaging/requirements.lock")

#: Files that decide how an update and programs of other projects (such as Flux) affect each other.
NEIGHBOUR_FILES = ("tests/neighbours", "tests/cluster/helm", "tests/cluster/kustomize-controller",
                   "tests/cluster/argo-rollouts", "plugins/module_utils/explain/gitops.py",
                   "plugins/module_utils/flows/argo_rollouts.py",
                   "plugins/module_utils/flows/suspension.py")

#: Pages of the documentation, and files that antsibull-docs reads.
DOCS_FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "examples", "roles",
              "plugins/modules", "plugins/filter", "plugins/lookup", "plugins/doc_fragments",
              "tests/docsite")

BROWSER = "chromium"

#: JSON file with two objects: `change`, the digest of Tier.files when a tier last passed, and
#: `all`, the date of the last pass and the digest of `all_files`.
VERIFIED_PATH = "tests/verified.json"
VERIFIED = ROOT / VERIFIED_PATH

#: Folders that are read only by the tier of the same name, and by tiers with `reads_all_tests`.
SEPARATE_FOLDERS = ("docsite", "environments", "events", "gateway", "histories", "mutation",
                    "pictures", "releases", "sanity")
#: Folders whose test_*.py are read only by tiers with the folder in a command, and by tiers with
#: `reads_all_tests`.
PYTEST_FOLDERS = ("unit", "integration", "neighbours", "node")

#: RECORDING is a lock for VERIFIED, and PRINTING for the output of a tier. No command starts after
#: STOPPED is set.
RECORDING, PRINTING, STOPPED = threading.Lock(), threading.Lock(), threading.Event()

#: A line of a file, from 1, and a column, from 0.
Position = tuple[int, int]

#: Fails unless CHANGELOG.rst is what antsibull-changelog generates.
CHECK_CHANGELOG = ("antsibull-changelog generate --output .venv/CHANGELOG.rst --output-format rst "
                   "&& diff -u CHANGELOG.rst .venv/CHANGELOG.rst")

PYTEST = "pytest -q --tb=short --maxfail=5"
#: Tests that take minutes or install packages; pyproject.toml has the default timeout.
LONG_PYTEST = f"{PYTEST} -o timeout=1800"

#: Fails if a test of any tier cannot be imported.
COLLECT = ("bash -c 'pytest -qqq --collect-only "
           "tests/{unit,integration,node,gateway,neighbours,kind,events,environments} "
           "> .venv/collected || (cat .venv/collected; false)'")

UNIT = f"{PYTEST} -n auto --dist worksteal --durations 20 -o timeout=180 tests/unit"
COVERAGE = ("--cov ansible_collections.baton.kubernetes.plugins --cov-branch "
            "--cov-report term:skip-covered --cov-fail-under 95")
INTEGRATION = (f"{PYTEST} {WORKERS} --durations 20 tests/integration --ignore {CLUSTER} --ignore "
               f"{DEMO}")

# Two minutes of the integration tests; tests/kind/README.md shows the command for all of them.
ON_KIND = (f"{PYTEST} -n 4 "
           + " ".join(f"tests/integration/test_{name}.py"
                      for name in ("pause", "replica_set", "resume")))
#: Follows README and the first section of the tutorial on a new cluster, and prints the seconds of
#: each command.
FIRST_STEPS = f"{PYTEST} -s -k test_first tests/integration/test_documentation.py"


@dataclass(frozen=True)
class Tier:
    commands: list[str]
    #: Returns why this machine cannot run the tier, or "".
    hindrance: Callable[[], str] = str
    #: Whether CI can run the tier.
    in_ci: bool = True
    #: Time limit of each command.
    minutes: int = 30
    #: Whether the tier runs alongside another single-processor tier.
    takes_one_processor: bool = False
    #: Whether the tier waits for half of the time. Two such tiers run in parallel.
    waits_often: bool = False
    #: `make test` runs the tier only if a file below these paths has changed. () runs it always.
    files: tuple[str, ...] = ()
    #: Whether the tier checks comments, docstrings or documentation.
    reads_comments: bool = False
    #: Whether the tier reads SEPARATE_FOLDERS, or test files that are not in its commands.
    reads_all_tests: bool = False


@dataclass(frozen=True)
class Result:
    outcome: str
    seconds: float
    reason: str = ""


def kind_hindrance() -> str:
    """Return why kind cannot create a cluster on this machine, even with a new engine, or ""."""
    reason = host_engine.hindrance()
    engine_reason = reason and engine.hindrance()
    return f"{reason}; and {engine_reason}" if engine_reason else ""


def real_node_hindrance() -> str:
    return ("KUBECONFIG names the cluster, and the tests must not kill its nodes"
            if external_kubeconfig()
            else machine.hindrance())


def browser_hindrance() -> str:
    return debian.hindrance("a browser", {BROWSER: BROWSER})


def rulebook_hindrance() -> str:
    return debian.hindrance("ansible-rulebook", {"java": "default-jre-headless"})


def go_hindrance() -> str:
    return "" if shutil.which("go") else "go is not installed"


TIERS = {
    "lint": Tier(
        [
            "ruff check --output-format concise",
            "env PYTHONPATH=.venv/collections lint-imports --no-cache --no-logo",
            "mypy",
            "python tests/measure.py --check",
            "yamllint --strict .",
            "ansible-lint --offline --strict",
            "antsibull-docs lint-collection-docs --plugin-docs --skip-rstcheck .",
            "antsibull-changelog lint",
            f"bash -c '{CHECK_CHANGELOG}'",
            COLLECT,
        ],
        takes_one_processor=True,
        reads_comments=True,
        reads_all_tests=True,
    ),
    "workflows": Tier(["go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.7"],
                      hindrance=go_hindrance, files=(".github",)),
    "docs": Tier(["python tests/docsite"], takes_one_processor=True, files=DOCS_FILES,
                 reads_comments=True),
    "unit-sample": Tier([f"env RELEASES=20 FORGERIES=60 {UNIT} "
                         "-m 'not full and not long and not browser'"], reads_comments=True),
    "unit": Tier([f"{UNIT} {COVERAGE}"], minutes=60, reads_comments=True, reads_all_tests=True),
    "browser": Tier(
        [f"python tests/cluster/debian.py {BROWSER}", f"{PYTEST} -m browser tests/unit/report"],
        hindrance=browser_hindrance, reads_all_tests=True,
        files=("tests/unit/report", "roles/image_bump/templates", "plugins/plugin_utils/report"),
    ),
    "sanity-sample": Tier(["bash tests/sanity/run --changed-tests"], takes_one_processor=True,
                          reads_comments=True),
    "sanity": Tier(["bash tests/sanity/run"], takes_one_processor=True, reads_comments=True,
                   reads_all_tests=True),
    "packaging": Tier(["python tests/packaging"], takes_one_processor=True, reads_comments=True),
    "integration-sample": Tier([BUILD,
                                f"{INTEGRATION} -m 'not full and not long and not browser'"]),
    "integration": Tier([BUILD, INTEGRATION], minutes=60),
    "cluster": Tier([BUILD, f"{PYTEST} {WORKERS} {CLUSTER}"], files=("tests/cluster", CLUSTER)),
    "demo": Tier([BUILD, f"{PYTEST} {DEMO}"],
                 files=("tests/demo", DEMO, "Makefile", "playbooks",
                        "plugins/module_utils/explain/report.py")),
    "faults-sample": Tier([BUILD, "python tests/faults --sample"], waits_often=True),
    "faults": Tier([BUILD, "python tests/faults",
                    f"{LONG_PYTEST} {WORKERS} -m long tests/integration",
                    f"{LONG_PYTEST} -m long tests/neighbours",
                    f"env FORGERIES=3000 {LONG_PYTEST} tests/unit/test_forgery.py"],
                   minutes=120, reads_all_tests=True),
    "manifests-sample": Tier([BUILD, "python tests/manifests --sample"], waits_often=True),
    "manifests": Tier([BUILD, "python tests/manifests"], minutes=60, waits_often=True),
    # Every fourth seed runs a fleet.
    "histories-sample": Tier([BUILD, "python tests/histories --seeds 1-4"], waits_often=True),
    "histories": Tier([BUILD, "python tests/histories --simulated 500 --seeds 1-20",
                       "python tests/histories --kinds StatefulSet DaemonSet --seeds 1-48",
                       "python tests/histories --kinds ReplicationController ReplicaSet Deployment "
                       "--seeds 1-32",
                       "python tests/histories --kinds Fleet --seeds 1-10",
                       "python tests/histories --acts 1"],
                      minutes=120, waits_often=True),
    "releases-sample": Tier([BUILD, "python tests/releases --seeds 1-4"], waits_often=True),
    "releases": Tier([BUILD, "python tests/releases --seeds 1-160",
                      f"env RELEASES=334 {LONG_PYTEST} -o timeout=3600 tests/unit/release"],
                     minutes=120, waits_often=True, reads_all_tests=True),
    "versions-sample": Tier([BUILD, "python tests/versions --sample"],
                            takes_one_processor=True),
    "versions": Tier([BUILD, "python tests/versions"], minutes=60, takes_one_processor=True,
                     reads_all_tests=True),
    "events": Tier([BUILD, f"{PYTEST} -s tests/events"], hindrance=rulebook_hindrance,
                   files=EVENT_FILES),
    "environments": Tier([BUILD, "python tests/packaging build",
                          f"{LONG_PYTEST} tests/environments"],
                         hindrance=engine.hindrance, in_ci=False, files=ENVIRONMENT_FILES),
    "neighbours": Tier(
        [BUILD, BUILD_NEIGHBOURS, f"{LONG_PYTEST} -n 2 --dist worksteal -rs tests/neighbours"],
        files=NEIGHBOUR_FILES,
    ),
    "node-sample": Tier(
        [BUILD_NODE, f"{LONG_PYTEST} tests/node"], hindrance=real_node_hindrance, in_ci=False,
        files=NODE_FILES,
    ),
    "node": Tier(
        [f"{BUILD_NODE} --with kubectl-1.17", BUILD_METRICS,
         f"{LONG_PYTEST} -rs -m 'long or not long' tests/node"],
        hindrance=real_node_hindrance, in_ci=False, minutes=120, files=NODE_FILES,
    ),
    "gateway": Tier(
        [BUILD_GATEWAY, f"{LONG_PYTEST} -o timeout=3600 -m 'long or not long' tests/gateway"],
        hindrance=real_node_hindrance, in_ci=False, minutes=120, files=GATEWAY_FILES,
    ),
    "mutation": Tier(["python tests/mutation"], minutes=90, reads_all_tests=True),
    "molecule": Tier([BUILD, "molecule test --scenario-name default"], takes_one_processor=True),
    "kind": Tier(
        [f"{LONG_PYTEST} tests/kind", "python tests/kind molecule test --scenario-name kind",
         f"python tests/kind --cluster {FIRST_STEPS}", f"python tests/kind --cluster {ON_KIND}"],
        hindrance=kind_hindrance, in_ci=False,
        files=("tests/kind", "tests/cluster", "extensions/molecule/kind")),
}
CHANGE_TIERS = ("sanity-sample", "versions-sample", "lint", "workflows", "docs", "packaging",
                "molecule", "unit-sample", "browser", "integration-sample", "cluster", "demo",
                "faults-sample", "manifests-sample", "histories-sample", "releases-sample",
                "events", "environments", "neighbours", "node-sample", "kind")
#: The tiers of `make test-all`, with the full tier instead of each sample.
ALL_TIERS = (*(name.removesuffix("-sample") for name in CHANGE_TIERS), "gateway", "mutation")


def digest(files: Sequence[str], content: Callable[[Path], bytes]) -> str:
    """Return the SHA-256 of the names and contents of files, without those that git ignores.

    files: paths of files and folders. content: returns the content of a file.
    """
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard",
                            "--", *files],
                           cwd=ROOT, capture_output=True, check=True).stdout
    paths = sorted(path for path in names.decode().split("\0") if path and (ROOT / path).is_file())
    total_hash = hashlib.sha256()
    for path in paths:
        total_hash.update(f"{path}\0{hashlib.sha256(content(ROOT / path)).hexdigest()}\n".encode())
    return total_hash.hexdigest()


def tier_digest(name: str, files: Sequence[str]) -> str:
    """Return the digest of files, without comments if the tier does not read them."""
    return digest(files, Path.read_bytes if TIERS[name].reads_comments else without_comments)


def without_comments(path: Path) -> bytes:
    """Return the bytes of a file. For a Python file, omit comments and docstrings."""
    content = path.read_bytes()
    return code_of(content) if path.suffix == ".py" else content


@functools.cache  # each tier reads the same files
def code_of(content: bytes) -> bytes:
    """Return the lines of a Python module without comments, docstrings and empty lines.

    Each version of Python must return the same, since VERIFIED is committed.
    """
    lines = content.decode().split("\n")
    empty = set()
    for (first, start), (last, end) in prose(content):
        rest = f"{lines[first - 1][:start]}{lines[last - 1][end:]}".rstrip()
        lines[first - 1:last] = [rest, *[""] * (last - first)]
        empty |= {*range(first if rest else first - 1, last)}
    return "\n".join(line for row, line in enumerate(lines) if row not in empty).encode()


def prose(content: bytes) -> Iterator[tuple[Position, Position]]:
    """Yield the start and the end of each comment, docstring and empty line."""
    statement = []
    for token in tokenize.tokenize(io.BytesIO(content).readline):
        if token.type in (tokenize.COMMENT, tokenize.NL):
            yield token.start, token.end
        elif token.type == tokenize.NEWLINE:
            if [part.type for part in statement] == [tokenize.STRING]:
                yield statement[0].start, statement[0].end
            statement = []
        elif token.type not in (tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT):
            statement.append(token)


def verified(table: str) -> dict[str, str]:
    """Return one object of VERIFIED, without -sample in the names of the tiers."""
    return json.loads(VERIFIED.read_text("utf-8")).get(table, {})


def is_unchanged(name: str) -> bool:
    return (bool(TIERS[name].files)
            and verified("change").get(name.removesuffix("-sample"))
            == tier_digest(name, TIERS[name].files))


def all_files(name: str) -> tuple[str, ...]:
    """Return git pathspecs of all files that can change the result of a tier."""
    excluded = [VERIFIED_PATH]
    if not TIERS[name].reads_comments:
        excluded += ["*.md", "changelogs"]
    if not TIERS[name].reads_all_tests:
        commands = " ".join(TIERS[name].commands)
        excluded += [*(f"tests/{folder}/*test_*.py"  # * also matches /
                       for folder in PYTEST_FOLDERS if f"tests/{folder}" not in commands),
                     *(f"tests/{folder}" for folder in SEPARATE_FOLDERS if folder != name)]
    return (".", *(f":!{path}" for path in excluded))


def date_of_pass(name: str) -> str:
    """Return when the tier has passed with the same `all_files`, or ""."""
    date, _space, verified_digest = verified("all").get(name, "").partition(" ")
    return date if verified_digest == tier_digest(name, all_files(name)) else ""


def new_records(name: str) -> dict[str, dict[str, str]]:
    """Return what VERIFIED must contain after the tier has passed.

    Tiers of `make test` without Tier.files run in each `make test-all`. The date of an earlier
    pass with the same files is kept.
    """
    files, date = TIERS[name].files, time.strftime("%F")
    records: dict[str, dict[str, str]] = {"change": {}, "all": {}}
    if files:
        records["change"][name.removesuffix("-sample")] = tier_digest(name, files)
    is_full = name in ALL_TIERS and (files or name not in CHANGE_TIERS)
    if is_full and not date_of_pass(name):
        records["all"][name] = f"{date} {tier_digest(name, all_files(name))}"
    return records


def record_pass(name: str, records: dict[str, dict[str, str]]) -> None:
    with RECORDING:
        before = {table: verified(table) for table in records}
        after = {table: {**before[table], **records[table]} for table in records}
        if after != before:
            VERIFIED.write_text(json.dumps(after, indent=2, sort_keys=True) + "\n", "utf-8")
            print(f"== {name}: passed with changed files; commit {VERIFIED_PATH}", flush=True)


def run(name: str, output: IO[str] | None = None) -> Result:
    """Run all commands of one tier, even after a failure. output: by default, the terminal."""
    tier = TIERS[name]
    if reason := tier.hindrance():
        print(f"== {name}: SKIPPED, {reason}", flush=True, file=output)
        is_required = tier.in_ci and os.environ.get("CI") == "true"
        return Result("FAILED" if is_required else "SKIPPED", 0, reason)

    print(f"== {name}", flush=True, file=output)
    start, records = time.monotonic(), new_records(name)
    failed = [command for command in tier.commands if not succeeds(command, tier.minutes, output)]
    if not failed and os.environ.get("CI") == "true":  # otherwise, tests may have been skipped
        record_pass(name, records)
    return Result("FAILED" if failed else "passed", time.monotonic() - start, ", ".join(failed))


def run_with_delayed_output(name: str) -> Result:
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        try:
            return run(name, output)
        finally:
            output.seek(0)
            with PRINTING:
                print(output.read(), end="", flush=True)


def run_in_pairs(names: Sequence[str]) -> dict[str, Result]:
    if names:
        print(f"== two at a time: {', '.join(names)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        try:
            futures = {name: pool.submit(run_with_delayed_output, name) for name in names}
            while concurrent.futures.wait(futures.values(), timeout=1).not_done:
                pass  # Python handles a signal between two waits
            return {name: future.result() for name, future in futures.items()}
        except BaseException:  # Ctrl-C
            STOPPED.set()
            raise


def run_each(names: Sequence[str]) -> dict[str, Result]:
    """Run single-processor tiers in pairs, then others one by one, then waiting tiers in pairs."""
    has_pairs = len(names) > 1
    first = [name for name in names if has_pairs and TIERS[name].takes_one_processor]
    last = [name for name in names if has_pairs and TIERS[name].waits_often]
    results = run_in_pairs(first)
    for name in names:
        if name not in (*first, *last):
            results[name] = run(name)
    results |= run_in_pairs(last)
    return {name: results[name] for name in names}


def succeeds(command: str, minutes: float, output: IO[str] | None = None) -> bool:
    """Return whether a command succeeds within the given minutes, in the root of the repository."""
    if STOPPED.is_set():
        return False
    print(f"$ {command}", flush=True, file=output)
    errors = subprocess.STDOUT if output else None
    with subprocess.Popen(shlex.split(command), cwd=ROOT, start_new_session=True, stdout=output,
                          stderr=errors) as process:
        try:
            return wait_for_exit(process, minutes * 60) == 0
        except subprocess.TimeoutExpired:
            print(f"== stopped after {minutes} minutes: {command}", flush=True, file=output)
            return False
        finally:  # also on Ctrl-C, which processes in another session do not receive
            if process.poll() is None:
                stop_group(process)


def wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a process, or None if the run has been stopped.

    Raises TimeoutExpired.
    """
    deadline = time.monotonic() + seconds
    while not STOPPED.is_set():
        try:
            return process.wait(min(1, max(0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
    return None


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to a process group, which may then stop its cluster; SIGKILL after 20 s."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def let_commands_receive_signals() -> None:
    """Undo for all commands that `nohup`, or `&` in a script, ignores a signal.

    The tests kill programs by these signals. This program continues to ignore them: a signal with a
    handler gets its default action when a command starts.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_unused: None)


def hash_seed() -> str:
    """Return PYTHONHASHSEED, or a random seed."""
    provided = os.environ.get("PYTHONHASHSEED", "")
    return provided if provided.isdecimal() else str(random.randrange(1, 2**32))


def main(names: list[str]) -> int:
    is_change, is_all = names == ["--change"], names == ["--all"]
    names = list(CHANGE_TIERS if is_change else ALL_TIERS if is_all else names)
    unchanged = list(filter(is_unchanged, names)) if is_change else []
    is_resumed = is_all and not os.environ.get("FRESH")
    passed_before = ({name: date for name in names if (date := date_of_pass(name))}
                     if is_resumed else {})
    seed = os.environ["PYTHONHASHSEED"] = hash_seed()  # for all processes of all tiers
    # with the variable, each process would compile the collection and the tests again
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    let_commands_receive_signals()
    print(f"== PYTHONHASHSEED={seed}", flush=True)
    results = run_each([name for name in names
                        if name not in unchanged and name not in passed_before])

    print(f"\n{'tier':17}{'result':9}{'seconds':>7}")
    for name, result in results.items():
        print(f"{name:17}{result.outcome:9}{result.seconds:7.0f}  {result.reason}".rstrip())
    for name, result in results.items():
        if result.outcome == "FAILED":
            print(f"to repeat: PYTHONHASHSEED={seed} make test-{name}")
    for name in unchanged:
        print(f"{name:17}NOT RUN          its files have not changed since it last passed; `make "
              f"test-{name}` runs it")
    for name, date in passed_before.items():
        print(f"{name:17}PASSED BEFORE    {date}, with the same files; FRESH=1 runs it")
    if is_change:
        rest = [name.removesuffix("-sample") for name in names if name.endswith("-sample")]
        print(f"Only samples of {', '.join(rest)} ran; `make test-all` runs everything")

    outcomes = [result.outcome for result in results.values()]
    passed, failed, skipped = (outcomes.count(outcome)
                               for outcome in ("passed", "FAILED", "SKIPPED"))
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

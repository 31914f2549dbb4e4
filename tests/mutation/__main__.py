# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run `make test-mutation`: mutate the lines that have changed, and run their unit tests.

A mutant is the code with one operator, constant or condition replaced. If a mutant passes the unit
tests, no test depends on the mutated line: the mutant survives. The exit code is 1 if a mutant
survives and is not listed in equivalent.txt. If there are more mutants than the limit, a random
sample of each file is tested.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/cluster")]

import tool_environment  # noqa: E402
from workspace import say  # noqa: E402

LOCK = HERE / "requirements.lock"
#: Mutants with the same behavior as the code.
EQUIVALENT = HERE / "equivalent.txt"
MODULES = "plugins/module_utils"
#: Maximum number of mutants of a run. A mutant takes about 15 seconds.
MAX_MUTANTS = 200
#: Maximum seconds of the tests of one mutant.
MAX_SECONDS = 300
#: Operators of cosmic-ray. `|` occurs in type annotations, which are not executed. In tests, equal
#: texts are often one object.
EXCLUDED_OPERATORS = ["core/RemoveDecorator", "core/ReplaceBinaryOperator_BitOr_.*",
                      "core/ReplaceComparisonOperator_Eq_Is",
                      "core/ReplaceComparisonOperator_NotEq_IsNot"]
PYTEST = "pytest -q -x -p no:cacheprovider -m 'not full and not long and not browser'"


class Mutant(NamedTuple):
    outcome: str
    diff: str


def is_unexpected_survivor(mutant: Mutant) -> bool:
    lines = [line for line in mutant.diff.splitlines()
             if line[:1] in "-+" and line[:3] not in ("---", "+++")]
    return (mutant.outcome == "survived"
            and "\n".join(lines) not in EQUIVALENT.read_text("utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/mutation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="", metavar="COMMIT",
                        help="mutate the lines that differ from this commit (default: the newest "
                             "commit that is at least a day old)")
    parser.add_argument("--whole", action="store_true", help="mutate all lines of the files")
    parser.add_argument("--limit", type=int, default=MAX_MUTANTS, metavar="N",
                        help=f"maximum number of mutants (default: {MAX_MUTANTS})")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), metavar="SEED")
    parser.add_argument("files", nargs="*", metavar="FILE",
                        help=f"files of {MODULES} (default: all that have changed)")
    options = parser.parse_args()
    base = "" if options.whole else options.base or commit_of_yesterday()
    say(f"seed {options.seed}")
    python = tool_environment.python("cosmic-ray", LOCK)
    files = options.files or changed_files(base)
    if not files:
        print("no file has changed")
        return 0
    mutants: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="baton-mutation-") as folder:
        copy = clone_repository(Path(folder))
        test_without_mutants(files, copy)
        for number, file in enumerate(files):
            limit = math.ceil((options.limit - len(mutants)) / (len(files) - number))
            file_mutants = mutate(python, copy, file, base, limit, options.seed)
            mutants += file_mutants
            for mutant in filter(is_unexpected_survivor, file_mutants):
                say(mutant.diff)
            say(f"{file}: {sum(map(is_unexpected_survivor, file_mutants))} of {len(file_mutants)} "
                "survived unexpectedly")
    survivors = sum(map(is_unexpected_survivor, mutants))
    print(f"{survivors} of {len(mutants)} mutants survived unexpectedly")
    return 1 if survivors else 0


def commit_of_yesterday() -> str:
    """Return the newest commit that is at least a day old, or the first commit."""
    for options in (["--before=1.day.ago"], ["--max-parents=0"]):
        commit = subprocess.run(["git", "rev-list", "-1", *options, "HEAD"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout.strip()
        if commit:
            return commit
    raise SystemExit("no commit to compare with")


def changed_files(base: str) -> list[str]:
    names = subprocess.run(["git", "diff", "-z", "--name-only", "--diff-filter=AM", base, "--",
                            f"{MODULES}/*.py"],
                           cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(filter(None, names.split("\0")))


def clone_repository(folder: Path) -> Path:
    copy = folder / "kubernetes"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    collections = copy / ".venv" / "collections" / "ansible_collections" / "baton"
    collections.mkdir(parents=True)
    (collections / "kubernetes").symlink_to(copy)
    return copy


def tests_of(file: str, copy: Path) -> list[str]:
    """Return the paths of the unit tests of a file: its own, its package's, those of all flows."""
    tests = Path("tests/unit")
    module_path = Path(file).relative_to(MODULES)
    own_test = tests / module_path.parent / f"test_{module_path.name}"
    if len(module_path.parts) == 1:
        packages = [tests / "test_task.py"]
    elif module_path.parts[0] == "flows" and (copy / tests / module_path.parent).is_dir():
        packages = [tests / module_path.parent,
                    *(path.relative_to(copy)
                      for path in sorted((copy / tests / "flows").glob("test_*.py")))]
    else:
        packages = [tests / module_path.parts[0]]
    return [str(path) for path in (own_test, *packages) if (copy / path).exists()]


def test_without_mutants(files: list[str], copy: Path) -> None:
    """Run the tests of all files. Raise SystemExit if one fails, as it would kill each mutant."""
    tests = sorted({test for file in files for test in tests_of(file, copy)})
    process = subprocess.run([sys.executable, "-m", *shlex.split(PYTEST), "-n", "auto", *tests],
                             cwd=copy, check=False, capture_output=True, text=True)
    if process.returncode:
        raise SystemExit(process.stdout + process.stderr)


def mutate(python: Path, copy: Path, file: str, base: str, limit: int,
           seed: int) -> list[Mutant]:
    """Test at most `limit` mutants of a file."""
    tests = " ".join(tests_of(file, copy))
    settings_file = copy / ".venv" / "cosmic-ray.toml"
    session_file = copy / ".venv" / f"{file.replace('/', '.')}.sqlite"
    settings_file.write_text("\n".join([
        "[cosmic-ray]", f"module-path = {json.dumps(file)}", f"timeout = {MAX_SECONDS}",
        "excluded-modules = []",
        f"test-command = {json.dumps(f'{sys.executable} -m {PYTEST} {tests}')}",
        '[cosmic-ray.distributor]', 'name = "local"',
        "[cosmic-ray.filters.git-filter]", f"branch = {json.dumps(base)}",
        "[cosmic-ray.filters.operators-filter]",
        f"exclude-operators = {json.dumps(EXCLUDED_OPERATORS)}",
    ]), "utf-8")

    def run_program(program: str, *arguments: object) -> str:
        environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        process = subprocess.run([str(python.parent / program), *map(str, arguments)], cwd=copy,
                                 env=environment, check=False, capture_output=True, text=True)
        if process.returncode:
            raise SystemExit(f"{program} {arguments[0]}: {process.stdout}{process.stderr}")
        return process.stdout

    run_program("cosmic-ray", "init", settings_file, session_file)
    run_program("cr-filter-operators", session_file, settings_file)
    if base:
        run_program("cr-filter-git", "--config", settings_file, session_file)
    run_program("python", HERE / "session.py", "choose", session_file, limit, seed)
    run_program("cosmic-ray", "exec", settings_file, session_file)
    lines = run_program("python", HERE / "session.py", "outcomes", session_file).splitlines()
    shutil.rmtree(copy / ".hypothesis", ignore_errors=True)
    return [Mutant(*json.loads(line)) for line in lines]


if __name__ == "__main__":
    sys.exit(main())

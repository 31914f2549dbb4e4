# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print metrics of the code: `make measure`.

`make test-lint` fails if a number exceeds its limit. A commit that reduces a number must lower the
limit.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

from radon.complexity import cc_visit
from radon.visitors import Function

ROOT = Path(__file__).resolve().parent.parent

#: Pronouns and participles that do not tell what a variable contains.
BANNED_NAMES = frozenset([
    "it", "its", "one", "each", "those", "these", "this", "that", "other", "others", "there",
    "here",
    "found", "told", "said", "seen", "known", "given", "own", "kept", "left", "had", "asked",
    "wanted", "made", "shown", "got"])
#: Matches the beginning of a docstring that does not open with an imperative or a noun.
FRAGMENT = re.compile(
    r"(What|Those|Whose|That|As said|The same|Which|Where|Of|With|One of|All that|Whoever|Who|Its"
    r"|Whether there|Nothing|Anything|Something)\b")
MAX_LINE_LENGTH = 100  # characters
#: Above this complexity, radon gives a function the letter D. Unlike ruff, radon also counts
#: Boolean operators, conditional expressions and comprehensions.
MAX_RADON_COMPLEXITY = 20
MAX_RUFF_COMPLEXITY = 12
#: Adds a kind that the collection does not have.
NEW_KIND = ROOT / "tests" / "another_kind" / "cloneset.patch"

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    def __init__(self, path: Path) -> None:
        self.text = path.read_text("utf-8")
        self.nodes = list(ast.walk(ast.parse(self.text)))

    def count_banned_names(self) -> int:
        bound_names = [node.id for node in self.nodes
                       if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        bound_names += [node.arg for node in self.nodes if isinstance(node, ast.arg)]
        return sum(name.strip("_") in BANNED_NAMES for name in bound_names)

    def docstrings(self) -> list[str]:
        texts = [ast.get_docstring(node) for node in self.nodes if isinstance(node, DOCUMENTED)]
        return [text for text in texts if text]

    def count_fragments(self) -> int:
        """Count the docstrings of more than two words that open with a fragment."""
        return sum(bool(FRAGMENT.match(text)) for text in self.docstrings()
                   if len(text.split()) > 2)

    def count_long_lines(self) -> int:
        return sum(len(line) > MAX_LINE_LENGTH for line in self.text.splitlines())

    def count_casts(self) -> int:
        return sum(isinstance(node, ast.Call) and ast.unparse(node.func) in ("t.cast", "cast")
                   for node in self.nodes)

    def count_computed_attributes(self) -> int:
        """Count the attributes with a computed name, which grep does not find."""
        return sum(isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                   and node.func.id in ("getattr", "setattr", "hasattr")
                   and not isinstance(node.args[1], ast.Constant) for node in self.nodes)

    def count_bound_methods(self) -> int:
        """Count the methods that are bound by an assignment, which grep does not find."""
        return sum(_is_bound_method(node, class_) for class_ in self.nodes
                   if isinstance(class_, ast.ClassDef)
                   for node in ast.walk(class_) if isinstance(node, ast.Assign))

    def count_complex_functions(self) -> int:
        return sum(isinstance(block, Function) and block.complexity > MAX_RADON_COMPLEXITY
                   for block in cc_visit(self.text))

    def count_code_lines(self) -> int:
        """Count the lines other than blank lines, comments and docstrings."""
        documentation_lines: set[int] = set()
        for node in self.nodes:
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                documentation_lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        ignored_types = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
                         tokenize.DEDENT, tokenize.ENDMARKER)
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in ignored_types:
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines - documentation_lines)


def _is_bound_method(assignment: ast.Assign, class_: ast.ClassDef) -> bool:
    """Return whether an assignment has the form `alias = method` or `self.method = x`."""
    methods = {node.name for node in class_.body if isinstance(node, ast.FunctionDef)}
    is_alias = (assignment in class_.body and isinstance(assignment.value, ast.Name)
                and assignment.value.id in methods)
    return is_alias or any(isinstance(target, ast.Attribute) and target.attr in methods
                           and ast.unparse(target.value) == "self"
                           for target in assignment.targets)


def sources(folder: str) -> Iterator[Source]:
    """Yield the Python files of a folder, except Ansible modules: they are mostly documentation."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "/plugins/modules/" not in str(path):
            yield Source(path)


#: For each count: the title, and the function that counts in one file.
COUNTERS: dict[str, Callable[[Source], int]] = {
    "variables and parameters whose name is a pronoun or a participle": Source.count_banned_names,
    "docstrings that open with a fragment": Source.count_fragments,
    f"lines of more than {MAX_LINE_LENGTH} characters": Source.count_long_lines,
    "typing.cast": Source.count_casts,
    "attributes by a computed name": Source.count_computed_attributes,
    "methods bound by an assignment": Source.count_bound_methods,
    f"functions of a complexity over {MAX_RADON_COMPLEXITY} (radon)":
        Source.count_complex_functions,
    "lines of code, without documentation": Source.count_code_lines,
}

LIMITS: dict[str, dict[str, int]] = {
    "plugins": {
        "variables and parameters whose name is a pronoun or a participle": 2,
        "docstrings that open with a fragment": 0,
        f"lines of more than {MAX_LINE_LENGTH} characters": 0,
        "typing.cast": 7,
        "attributes by a computed name": 0,
        "methods bound by an assignment": 0,
        f"functions of a complexity over {MAX_RADON_COMPLEXITY} (radon)": 0,
        f"functions of a complexity over {MAX_RUFF_COMPLEXITY} (ruff C901)": 0,
        "files outside of its package that a new kind changes": 4,
    },
    "tests": {
        "variables and parameters whose name is a pronoun or a participle": 2,
        "docstrings that open with a fragment": 0,
        f"lines of more than {MAX_LINE_LENGTH} characters": 1,
        "typing.cast": 25,
        "attributes by a computed name": 30,
        "methods bound by an assignment": 5,
        f"functions of a complexity over {MAX_RADON_COMPLEXITY} (radon)": 11,
        f"functions of a complexity over {MAX_RUFF_COMPLEXITY} (ruff C901)": 0,
    },
}


def count_by_ruff(folder: str) -> int:
    """Count the functions whose complexity ruff reports."""
    command = ["ruff", "check", "--select", "C901", "--output-format", "json", folder,
               "--config", f"lint.mccabe.max-complexity={MAX_RUFF_COMPLEXITY}"]
    return len(json.loads(subprocess.run(command, cwd=ROOT, capture_output=True,
                                         check=False).stdout))


def count_files_of_a_new_kind() -> int:
    """Count the existing files that the walk-through of a new kind changes."""
    paths = re.findall(r"^--- a/(\S+)$", NEW_KIND.read_text("utf-8"), re.MULTILINE)
    return len(paths)


def count_all(folder: str) -> dict[str, int]:
    files = list(sources(folder))
    counts = {title: sum(map(count, files)) for title, count in COUNTERS.items()}
    counts[f"functions of a complexity over {MAX_RUFF_COMPLEXITY} (ruff C901)"] = count_by_ruff(
        folder)
    if folder == "plugins":
        counts["files outside of its package that a new kind changes"] = count_files_of_a_new_kind()
    return counts


def main() -> int:
    """Print all numbers, or with --check only the numbers over their limits.

    Return 1 if a number is over its limit.
    """
    prints_only_excess, are_within_limits = "--check" in sys.argv[1:], True
    for folder, limits in LIMITS.items():
        for title, number in count_all(folder).items():
            limit = limits.get(title)
            is_over = limit is not None and number > limit
            are_within_limits = are_within_limits and not is_over
            if is_over or not prints_only_excess:
                limit_text = "" if limit is None else f" (at most {limit})"
                print(f"{folder}: {number} {title}{limit_text}{': TOO MANY' if is_over else ''}")
    return 0 if are_within_limits else 1


if __name__ == "__main__":
    sys.exit(main())

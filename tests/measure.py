# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Print measures of the code: `make measure`.

`make test-lint` fails if a number exceeds its limit in LIMITS. A commit that reduces a number
lowers the limit.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Pronouns and participles that must not be names of variables: `each` or `found` does not tell
#: what the variable contains.
BANNED = frozenset([
    "it", "its", "one", "each", "those", "these", "this", "that", "other", "others", "there",
    "here",
    "found", "told", "said", "seen", "known", "given", "own", "kept", "left", "had", "asked",
    "wanted", "made", "shown", "got"])
#: Matches the beginning of a docstring that is only a fragment. A docstring must open with an
#: imperative or a noun.
FRAGMENT = re.compile(
    r"(What|Those|Whose|That|As said|The same|Which|Where|Of|With|One of|All that|Whoever|Who|Its"
    r"|Whether there|Nothing|Anything|Something)\b")
LINE = 100  # characters

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source:
    """One Python file, parsed."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text("utf-8")
        self.nodes = list(ast.walk(ast.parse(self.text)))

    def names(self) -> int:
        """Count the bindings of variables and parameters to a banned name."""
        bound = [node.id for node in self.nodes
                 if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        bound += [node.arg for node in self.nodes if isinstance(node, ast.arg)]
        return sum(name.strip("_") in BANNED for name in bound)

    def docstrings(self) -> list[str]:
        """Return the docstrings of the module, and of all classes and functions."""
        texts = [ast.get_docstring(node) for node in self.nodes if isinstance(node, DOCUMENTED)]
        return [text for text in texts if text]

    def fragments(self) -> int:
        """Count the docstrings of more than two words that open with a fragment."""
        return sum(bool(FRAGMENT.match(text)) for text in self.docstrings()
                   if len(text.split()) > 2)

    def long_lines(self) -> int:
        """Count the lines of more than LINE characters."""
        return sum(len(line) > LINE for line in self.text.splitlines())

    def casts(self) -> int:
        """Count the calls of typing.cast."""
        return sum(isinstance(node, ast.Call) and ast.unparse(node.func) in ("t.cast", "cast")
                   for node in self.nodes)

    def computed_attributes(self) -> int:
        """Count the attributes read or set by a computed name, which grep does not find."""
        return sum(isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                   and node.func.id in ("getattr", "setattr", "hasattr")
                   and not isinstance(node.args[1], ast.Constant) for node in self.nodes)

    def code_lines(self) -> int:
        """Count the lines that have code: no blank lines, comments and docstrings."""
        documentation: set[int] = set()
        for node in self.nodes:
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                documentation.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        ignored = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
                   tokenize.DEDENT, tokenize.ENDMARKER)
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in ignored:
                lines.update(range(token.start[0], token.end[0] + 1))
        return len(lines - documentation)


def sources(folder: str) -> Iterator[Source]:
    """Yield the parsed Python files of a folder.

    The files of modules are left out, because they consist of documentation.
    """
    for path in sorted((ROOT / folder).rglob("*.py")):
        if "/plugins/modules/" not in str(path):
            yield Source(path)


#: By the title of a number, the function that counts it in one file.
COUNTS: dict[str, Callable[[Source], int]] = {
    "variables and parameters whose name is a pronoun or a participle": Source.names,
    "docstrings that open with a fragment": Source.fragments,
    f"lines of more than {LINE} characters": Source.long_lines,
    "typing.cast": Source.casts,
    "attributes by a computed name": Source.computed_attributes,
    "lines of code, without documentation": Source.code_lines,
}

LIMITS: dict[str, dict[str, int]] = {
    "plugins": {
        "variables and parameters whose name is a pronoun or a participle": 2,
        "docstrings that open with a fragment": 0,
        f"lines of more than {LINE} characters": 0,
        "typing.cast": 7,
        "attributes by a computed name": 0,
    },
    "tests": {
        "variables and parameters whose name is a pronoun or a participle": 2,
        "docstrings that open with a fragment": 0,
        f"lines of more than {LINE} characters": 1,
        "typing.cast": 25,
        "attributes by a computed name": 30,
    },
}


def measured(folder: str) -> dict[str, int]:
    """Return all numbers of a folder, by their titles."""
    files = list(sources(folder))
    return {title: sum(map(count, files)) for title, count in COUNTS.items()}


def main() -> int:
    """Print all numbers of each folder, or with --check only the numbers over their limit.

    Return 1 if a number is over the limit.
    """
    is_check, are_within_limits = "--check" in sys.argv[1:], True
    for folder, limits in LIMITS.items():
        for title, number in measured(folder).items():
            limit = limits.get(title)
            is_over = limit is not None and number > limit
            are_within_limits = are_within_limits and not is_over
            if is_over or not is_check:
                allowed = "" if limit is None else f" (at most {limit})"
                print(f"{folder}: {number} {title}{allowed}{': TOO MANY' if is_over else ''}")
    return 0 if are_within_limits else 1


if __name__ == "__main__":
    sys.exit(main())

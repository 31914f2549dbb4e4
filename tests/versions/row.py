# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A row of the table of versions: a version, the other versions in its test, and the result."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

from embedded import Cluster
from external import ExternalCluster
from workspace import say

#: Name of the pseudo-part that receives an error outside of the parts.
WHOLE = "all"
#: The cluster of all rows.
AnyCluster = Cluster | ExternalCluster


class Unavailable(Exception):
    """The version is not available, or a part cannot run, for the reason in the text."""


@dataclasses.dataclass
class Row:
    """A tested version.

    `work` runs each part in a `with row.part("..."):` block, and sets `other_versions`.
    """

    #: First column of the table, such as a package. Rows with the same value are consecutive.
    what: str
    version: str
    work: Callable[[Row, AnyCluster], None]
    #: Versions of the other programs and packages in the test.
    other_versions: str = ""
    passed: list[str] = dataclasses.field(default_factory=list)
    #: Reasons by part, for the parts that failed.
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Reasons by part, for the parts that could not run.
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    date: str = dataclasses.field(
        default_factory=lambda: str(datetime.datetime.now(datetime.UTC).date()))

    @property
    def title(self) -> str:
        return f"{self.what} {self.version}"

    @property
    def result(self) -> str:
        """Return the text for the table, with results that need attention in capitals."""
        phrases = [f"FAILED: {part} ({why})" for part, why in self.failed.items()]
        phrases += [f"SKIPPED: {part} ({why})" for part, why in self.skipped.items()]
        return "; ".join(phrases) or "passed"

    def run(self, cluster: AnyCluster) -> None:
        """Run the row, and record an error as its result."""
        began = time.monotonic()
        with self.part(WHOLE):
            self.work(self, cluster)
        self.passed = [part for part in self.passed if part != WHOLE]
        if not (self.passed or self.failed or self.skipped):
            self.failed[WHOLE] = "nothing has run"
        say(f"{self.title} ({self.other_versions}): {self.result}, "
            f"{time.monotonic() - began:.0f} s")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record the result of a part: passed, failed or, after Unavailable, skipped."""
        try:
            yield
        except Unavailable as error:
            self.skipped[name] = one_line(error)
        except Exception as error:
            self.failed[name] = one_line(error) or type(error).__name__
        else:
            self.passed.append(name)
        if name != WHOLE:
            say(f"{self.title}: {name} {'passed' if name in self.passed else 'did not pass'}")


def one_line(error: object) -> str:
    """Return the end of the message, which usually contains the cause, in one line."""
    return " ".join(str(error).replace("|", "/").split())[-300:]

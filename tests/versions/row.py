# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One row of the table of versions: a version of something, what ran with it, and how that ended."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

from embedded import Cluster
from given import GivenCluster
from workspace import say

#: The part that is all the work of a row.
WHOLE = "all"
#: What a row's work is given: the cluster that all rows share.
AnyCluster = Cluster | GivenCluster


class Unavailable(Exception):
    """A version that cannot be had here, or a part that cannot run; its text says why."""


@dataclasses.dataclass
class Row:
    """A version of something. Its work runs each part in a `with row.part("..."):`, and says in `beside` what else there was."""

    #: Of what: the first column of the table. Rows of the same stand together.
    what: str
    version: str
    work: Callable[[Row, AnyCluster], None]
    #: With which other versions.
    beside: str = ""
    passed: list[str] = dataclasses.field(default_factory=list)
    #: Why, by the part that failed or could not run.
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    date: str = dataclasses.field(default_factory=lambda: str(datetime.datetime.now(datetime.UTC).date()))

    @property
    def title(self) -> str:
        return f"{self.what} {self.version}"

    @property
    def result(self) -> str:
        """In capitals what somebody has to read."""
        told = [f"FAILED: {part} ({why})" for part, why in self.failed.items()]
        told += [f"SKIPPED: {part} ({why})" for part, why in self.skipped.items()]
        return "; ".join(told) or "passed"

    def go(self, cluster: AnyCluster) -> None:
        """Do its work; whatever happens there is its result."""
        began = time.monotonic()
        with self.part(WHOLE):
            self.work(self, cluster)
        self.passed = [part for part in self.passed if part != WHOLE]
        if not (self.passed or self.failed or self.skipped):
            self.failed[WHOLE] = "nothing has run"
        say(f"{self.title} ({self.beside}): {self.result}, {time.monotonic() - began:.0f} s")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Something that passes, fails, or (Unavailable) cannot run here. The next part runs in any case."""
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
    """The end of what it says: assertions and programs tell last what was wrong."""
    return " ".join(str(error).replace("|", "/").split())[-300:]

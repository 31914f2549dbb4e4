# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A row of the table of versions."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator

from embedded import Cluster
from external import ExternalCluster
from workspace import say

#: The name under which an error outside of all parts is recorded.
OUTSIDE_PARTS = "all"
AnyCluster = Cluster | ExternalCluster


class Unavailable(Exception):
    """A version is not available, or a part cannot run."""


@dataclasses.dataclass
class Row:
    #: First column of the table. Rows with the same software are consecutive.
    software: str
    version: str
    #: Runs each part in a `with row.part("..."):` block, and sets `other_versions`.
    work: Callable[[Row, AnyCluster], None]
    #: Versions of Python or packages that the row also uses, as text.
    other_versions: str = ""
    passed: list[str] = dataclasses.field(default_factory=list)
    #: Reasons by part.
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    date: str = dataclasses.field(
        default_factory=lambda: str(datetime.datetime.now(datetime.UTC).date()))

    @property
    def title(self) -> str:
        return f"{self.software} {self.version}"

    @property
    def result(self) -> str:
        phrases = [f"FAILED: {part} ({reason})" for part, reason in self.failed.items()]
        phrases += [f"SKIPPED: {part} ({why})" for part, why in self.skipped.items()]
        return "; ".join(phrases) or "passed"

    def run(self, cluster: AnyCluster) -> None:
        started_at = time.monotonic()
        with self.part(OUTSIDE_PARTS):
            self.work(self, cluster)
        self.passed = [part for part in self.passed if part != OUTSIDE_PARTS]
        if not (self.passed or self.failed or self.skipped):
            self.failed[OUTSIDE_PARTS] = "nothing has run"
        say(f"{self.title} ({self.other_versions}): {self.result}, "
            f"{time.monotonic() - started_at:.0f} s")

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run a part in the block, and record whether it has passed, failed, or been skipped."""
        try:
            yield
        except Unavailable as error:
            self.skipped[name] = one_line(error)
        except Exception as error:
            self.failed[name] = one_line(error) or type(error).__name__
        else:
            self.passed.append(name)
        if name != OUTSIDE_PARTS:
            say(f"{self.title}: {name} {'passed' if name in self.passed else 'did not pass'}")


def one_line(error: object) -> str:
    """Return the end of the message, which usually names the cause, as one line."""
    return " ".join(str(error).replace("|", "/").split())[-300:]

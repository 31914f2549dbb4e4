# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Set a random hash seed for the processes of tests, and show the seed of a failed test.

The seed determines the order of sets in these processes.
"""

from __future__ import annotations

import os
import random

import pytest


def pytest_configure() -> None:
    """Set PYTHONHASHSEED to a random seed, unless tests/run.py has set a seed."""
    if not os.environ.get("PYTHONHASHSEED", "").isdecimal():
        os.environ["PYTHONHASHSEED"] = str(random.randrange(1, 2**32))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.append(("hash seed",
                                "Processes of this test had "
                                f"PYTHONHASHSEED={os.environ['PYTHONHASHSEED']}"))

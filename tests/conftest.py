# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Give the processes of all tests a random hash seed, and show the seed of a test that fails.

The seed decides the order of sets. tests/run.py draws one for all tiers; pytest run directly draws
one here, for Ansible and all other processes that a test starts.
"""

from __future__ import annotations

import os
import random

import pytest


def pytest_configure() -> None:
    """Draw the seed unless PYTHONHASHSEED has one; the workers of xdist inherit it."""
    if not os.environ.get("PYTHONHASHSEED", "").isdecimal():
        os.environ["PYTHONHASHSEED"] = str(random.randrange(1, 2**32))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Add the seed to the report of a failure."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        report.sections.append(("hash seed",
                                "Processes of this test had "
                                f"PYTHONHASHSEED={os.environ['PYTHONHASHSEED']}"))

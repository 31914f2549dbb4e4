# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What several files of unit tests use."""

from __future__ import annotations

import signal

import next_commands
import pytest


@pytest.fixture(autouse=True, scope="session")
def _commands_are_accepted():
    """Fail a test in which an error shows a command that the module would refuse."""
    with next_commands.watched():
        yield


@pytest.fixture
def handlers():
    """Leave the signals of the test run as they are."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)

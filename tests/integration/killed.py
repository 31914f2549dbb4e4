# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The death of the client."""

from __future__ import annotations


class Killed(BaseException):
    """The client is killed. The code under test must not handle this exception."""

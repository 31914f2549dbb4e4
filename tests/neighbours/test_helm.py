# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers of a release of Helm, and upgrade or roll back the release meanwhile."""

from __future__ import annotations

import subprocess

import programs


def test_helm_has_the_pinned_version(helm_program):
    done = subprocess.run([str(helm_program), "version", "--template={{ .Version }}"],
                          capture_output=True, text=True, check=True)

    assert programs.version("helm").startswith(done.stdout.strip() or "nothing")

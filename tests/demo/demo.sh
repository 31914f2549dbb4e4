#!/usr/bin/env bash
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# What `make demo` runs, in the environment that it made. The story is told in __main__.py.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
exec .venv/bin/python tests/demo

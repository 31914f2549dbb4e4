#!/usr/bin/env bash
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Run the demo in the virtual environment that `make demo` has created.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
exec .venv/bin/python tests/demo

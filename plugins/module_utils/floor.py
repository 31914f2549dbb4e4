# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""End a module with an error if its Python is too old for the other files.

Use only the syntax of Python 3.6 here.
"""

import json
import sys

OLDEST = (3, 9)

if sys.version_info < OLDEST:
    sys.stdout.write(json.dumps({"failed": True, "changed": False, "msg": (
        "baton.kubernetes needs Python 3.9 or newer on the machine where its modules run, and {} "
        "is Python {}: set ansible_python_interpreter to a newer Python with the package "
        "kubernetes."
    ).format(sys.executable, ".".join(map(str, sys.version_info[:3])))}))
    raise SystemExit(1)

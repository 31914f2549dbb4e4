# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write standard input to a new file that only its owner can read, and move the file to its path.

An existing file or symbolic link at the path is replaced, and not written to.
"""

from __future__ import annotations

import os
import sys
import tempfile


def main() -> None:
    path = sys.argv[1]
    handle, draft = tempfile.mkstemp(prefix=".report-", suffix=".html", dir=os.path.dirname(path))
    try:
        with open(handle, "wb") as file:
            file.write(sys.stdin.buffer.read())
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(error.strerror)

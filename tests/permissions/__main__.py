# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run `make permissions`: write docs/reference/permissions/*.yaml."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".venv/collections"))

import features


def main() -> None:
    features.FOLDER.mkdir(exist_ok=True)
    for path in features.FOLDER.glob("*.yaml"):
        path.unlink()
    for feature in features.features():
        feature.path.write_text(feature.text, encoding="utf-8")


if __name__ == "__main__":
    main()

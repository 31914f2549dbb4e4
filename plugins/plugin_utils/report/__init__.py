# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Render the report on a release, an HTML page, from the results of its tasks.

| module | content |
|---|---|
| `page` | rendering of the page with the template |
| `data` | types of the data |
| `rollouts` | results by controller |
| `overview` | table of several controllers or clusters |
| `sizes_chart` | chart of the number of pods over time |
| `curves` | charts of the measurements of analyses |

Only the filter rollout_report and `make pictures` import this package.
"""

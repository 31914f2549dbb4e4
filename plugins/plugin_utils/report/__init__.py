# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The report on a release: an HTML page, rendered from results and from nothing else.

| module | what is in it |
|---|---|
| `page` | the page, rendered with the template |
| `rollouts` | results, by controller |
| `overview` | the table of many controllers, or of many clusters |
| `sizes_chart` | the chart of a controller's sizes |
| `curves` | the charts of what analyses measured |

Nothing imports this package but the filter rollout_report (and `make pictures`).
"""

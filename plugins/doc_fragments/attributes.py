# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What every module here supports, said once."""

    DOCUMENTATION = r"""
options: {}
attributes:
  async:
    description: Can be run with the C(async) keyword.
    support: full
  check_mode:
    description: Can run in check mode and tell what it would do, without changing anything.
  diff_mode:
    description: Can show the pod template before and after in diff mode.
  idempotent:
    description: Can be run again with the same options, without changing anything, once it has done its work.
"""

    ACTION_GROUP = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/baton.kubernetes.kubernetes) in C(module_defaults) to set the connection options once.
    support: full
    membership:
      - baton.kubernetes.kubernetes
"""

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """Attributes of the modules: check mode, diff mode and async."""

    DOCUMENTATION = r"""
options: {}
attributes:
  async:
    description: Supports the C(async) keyword.
    support: full
  check_mode:
    description: Predicts the changes without making them.
  diff_mode:
    description: Shows the pod template before and after.
  idempotent:
    description: Changes nothing if it runs again with the same options.
"""

    ACTION_GROUP = r"""
options: {}
attributes:
  action_group:
    description: Use C(group/baton.kubernetes.kubernetes) in C(module_defaults) to set the
      connection of the modules of this collection and of C(kubernetes.core).
    support: full
    membership:
      - baton.kubernetes.kubernetes
"""

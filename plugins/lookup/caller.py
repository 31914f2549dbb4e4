# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Return the user who runs Ansible, and the control node."""

from __future__ import annotations

import typing as t

from ansible.plugins.lookup import LookupBase

from ansible_collections.baton.kubernetes.plugins.module_utils.run.lease import user_and_host


class LookupModule(LookupBase):
    """The lookup of the user and the control node."""

    def run(self, terms: list[str], variables: t.Any = None,
            **options: t.Any) -> list[dict[str, str]]:
        user, _at, host = user_and_host().rpartition("@")
        return [{"user": user, "host": host}]

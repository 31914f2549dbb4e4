# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kinds of controllers, and where the API server has them. Pure."""

from __future__ import annotations

import enum


class Kind(enum.StrEnum):
    """A kind of controller, as a manifest names it."""

    REPLICATION_CONTROLLER = "ReplicationController"
    DEPLOYMENT = "Deployment"
    REPLICA_SET = "ReplicaSet"

    @property
    def group(self) -> str:
        """The API group; "" is the core group."""
        return "" if self is Kind.REPLICATION_CONTROLLER else "apps"

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def resource(self) -> str:
        """The kind's word in paths and Roles."""
        return f"{self.lower()}s"

    @property
    def short(self) -> str:
        """The word that people give to kubectl."""
        return {Kind.REPLICATION_CONTROLLER: "rc", Kind.REPLICA_SET: "rs", Kind.DEPLOYMENT: "deployment"}[self]

    @property
    def may_change_selector(self) -> bool:
        """Whether an object that is there may get another selector."""
        return self is Kind.REPLICATION_CONTROLLER

    def selector(self, labels: dict[str, str]) -> dict:
        """What asks for these labels, as a manifest has it."""
        return labels if self is Kind.REPLICATION_CONTROLLER else {"matchLabels": labels}

    def collection(self, namespace: str) -> str:
        """The path of all of a namespace."""
        root = f"/apis/{self.api_version}" if self.group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{self.resource}"


#: Those that the user may name.
ROLLED = (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET, Kind.DEPLOYMENT)

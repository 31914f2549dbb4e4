# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write Leases."""

from __future__ import annotations

import time

from ..model.errors import RolloutError
from ..model.fields import Json
from .http import GatewayPart, OutcomeUnknown, Unreachable, path_segment
from .refused import Refused

_REFUSED_LEASE_ADVICE = (
    "see docs/reference/permissions.md, or add lock=false to the task if no other "
    "task can work on this controller at the same time")


class Leases(GatewayPart):
    """The Leases of a namespace; see gateway.py."""

    @property
    def _leases_path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    def lease(self, name: str) -> Json | None:
        try:
            return self.http.get(self._leases_path, "Lease", self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self._where, next_command=_REFUSED_LEASE_ADVICE) from refused

    def put_lease(self, lease: Json) -> Json | None:
        metadata = lease["metadata"]
        version = metadata.get("resourceVersion")
        try:
            if version:
                path = f"{self._leases_path}/{path_segment(metadata['name'])}"
                return self.http.send("PUT", path, lease)
            return self.http.send("POST", self._leases_path, lease)
        except OutcomeUnknown:
            stored = self.lease(metadata["name"])
            is_own_lease = stored and (
                stored["metadata"].get("annotations") == metadata["annotations"])
            return stored if is_own_lease else None
        except Refused as refused:
            if refused.status == 409 or (refused.status == 404 and version):
                return None
            raise refused.as_error(self._where, next_command=_REFUSED_LEASE_ADVICE) from refused

    def delete_lease(self, lease: Json) -> bool:
        metadata = lease["metadata"]
        preconditions = {field: metadata[field] for field in ("uid", "resourceVersion")}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": preconditions}
        path = f"{self._leases_path}/{path_segment(metadata['name'])}"
        try:
            return self.http.send_once("DELETE", path, options)[0] != 409
        except (Unreachable, RolloutError):
            return True  # needs no retry, because the Lease expires by itself

    def server_time(self) -> float:
        return time.time() + self.http.clock_difference

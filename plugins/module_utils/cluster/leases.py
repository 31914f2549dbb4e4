# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Leases of a namespace: at most one client at a time changes one."""

from __future__ import annotations

import time

from ..model.errors import RolloutError
from ..model.fields import Json
from .http import AnswerLost, Http, Refused, Unreachable, quoted

_WITHOUT_LOCK = ("see docs/permissions.md, or add lock=false to the task if no other task can work on this controller at the same "
                 "time")


class KubernetesLeases:
    """Those of a real API server. What a function here does is said in gateway.py."""

    def __init__(self, http: Http, namespace: str) -> None:
        self._http, self._namespace, self._where = http, namespace, f"namespace {namespace}"
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def lease(self, name: str) -> Json | None:
        """As said there. Raises RolloutError."""
        try:
            return self._http.get(self._path, "Lease", self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self._where, next_command=_WITHOUT_LOCK) from refused

    def put_lease(self, lease: Json) -> Json | None:
        """As said there. Raises RolloutError."""
        name, version = lease["metadata"]["name"], lease["metadata"].get("resourceVersion")
        try:
            if version:
                return self._http.send("PUT", f"{self._path}/{quoted(name)}", lease)
            return self._http.send("POST", self._path, lease)
        except AnswerLost:
            there = self.lease(name)
            return there if there and there["metadata"].get("annotations") == lease["metadata"]["annotations"] else None
        except Refused as refused:
            if refused.status == 409 or (refused.status == 404 and version):
                return None
            raise refused.as_error(self._where, next_command=_WITHOUT_LOCK) from refused

    def drop_lease(self, lease: Json) -> bool:
        metadata = lease["metadata"]
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
                   "preconditions": {field: metadata[field] for field in ("uid", "resourceVersion")}}
        try:
            return self._http.once("DELETE", f"{self._path}/{quoted(metadata['name'])}", options)[0] != 409
        except (Unreachable, RolloutError):
            return True  # not worth another try

    def server_time(self) -> float:
        return time.time() + self._http.clock_difference

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What else there is in a namespace beside its controllers and pods. It is asked for each time, and never followed."""

from __future__ import annotations

import re
import typing as t

from ..model import identity, marks
from ..model.fields import Json, text
from ..model.kinds import ROLLED, Kind
from .http import METADATA, RETRIED, Http, Refused, quoted

#: Where the API server has the kinds that an update depends on.
GROUPS = {"services": "/api/v1", "resourcequotas": "/api/v1", "nodes": "/api/v1", "poddisruptionbudgets": "/apis/policy/v1",
          "horizontalpodautoscalers": "/apis/autoscaling/v2", "controllerrevisions": "/apis/apps/v1", "pods": "/api/v1",
          **{kind.resource: f"/apis/{kind.api_version}" if kind.group else "/api/v1" for kind in Kind}}


class Around:
    """What a real API server tells of it. What a function here does is said in gateway.py."""

    def __init__(self, http: Http, namespace: str, kind: Kind) -> None:
        """kind: the one that the user names."""
        self._http, self._namespace, self._kind = http, namespace, kind
        self._where = f"namespace {namespace}"
        self._version: tuple[int, int] | None = None

    def collection(self, resource: str) -> str:
        """The path of all objects of a kind."""
        return GROUPS[resource] + ("" if resource == "nodes" else f"/namespaces/{self._namespace}") + f"/{resource}"

    def find(self, kind: str, name: str) -> Json | None:
        """An object of any kind that is written, as it is now. Raises RolloutError."""
        try:
            return self._http.get(self.collection(f"{kind.lower()}s"), kind, self._namespace, name)
        except Refused as refused:
            raise refused.as_error(self._where) from refused

    def objects(self, resource: str) -> list[Json] | None:
        """As said there. Raises RolloutError."""
        try:
            return self._http.page(self.collection(resource), {}).get("items") or []
        except Refused as refused:
            self._refuse_unless_well(refused)
            return None

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """As said there; those of all controllers where no uid is given. Raises RolloutError."""
        label = self._kind.history_label
        # Those that the server keeps have no label with their owner's uid.
        selector = f"{label} in ({','.join(uids)})" if uids and label == marks.HISTORY else label
        try:
            items = self._http.pages(self.collection("controllerrevisions"), {"labelSelector": selector})[0]
            return [item for item in items if not uids or marks.owner_uid(item) in uids]
        except Refused as refused:
            self._refuse_unless_well(refused)
            return None

    def migrations(self) -> list[Json] | None:
        """As said there. Raises RolloutError."""
        try:
            return self._http.pages(self.collection("controllerrevisions"), {"labelSelector": marks.MIGRATION})[0]
        except Refused as refused:
            self._refuse_unless_well(refused)
            return None

    def nodes(self, selector: str) -> frozenset[str]:
        """As said there. Raises RolloutError."""
        try:
            items = self._http.pages(self.collection("nodes"), {"labelSelector": selector}, accept=METADATA)[0]
        except Refused as refused:
            raise refused.as_error("nodes", f"the nodes with the labels {selector} cannot be listed") from refused
        return frozenset(item["metadata"]["name"] for item in items)

    def _refuse_unless_well(self, refused: Refused) -> None:
        """What may not be seen is left out; but a server that is not well answers nothing else either: it is not asked again."""
        if refused.status in RETRIED:
            raise refused.as_error(self._where) from refused

    def tells_changes(self) -> bool:
        """As said there (kubernetes pull request 110058); of a server that does not say how old it is, it is believed."""
        if self._version is None:
            try:
                told = self._http.send("GET", "/version")
            except Refused as refused:
                self._refuse_unless_well(refused)
                told = {}
            # major and minor an old one may leave out.
            match = re.match(r"v([0-9]{1,3})\.([0-9]{1,3})", text(told, "gitVersion"))
            self._version = (int(match[1]), int(match[2])) if match else (1, 25)
        return self._version >= (1, 25)

    def rules(self) -> list[Json] | None:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": self._namespace}}
        try:
            path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
            status = self._http.send("POST", path, review, is_write=False)["status"]
        except Refused:
            return None
        return None if status.get("incomplete") else status.get("resourceRules") or []

    def others(self, name: str) -> list[str]:
        """The kinds, but for the one that the user names, of which there is an object with that name that may be seen."""
        paths = {kind: kind.collection(self._namespace) for kind in Kind if kind is not self._kind}
        return [kind for kind, path in paths.items() if self._status(f"{path}/{quoted(name)}") == 200]

    def why_absent(self, name: str) -> str:
        found = [f"a {kind} {name}" + (f" (kind={kind})" if kind in ROLLED else "") for kind in self.others(name)]
        if found:
            return f"there is {' and '.join(found)}"
        if self._status(f"/api/v1/namespaces/{self._namespace}") == 404:
            return f"there is no namespace {self._namespace}"
        halfway = {item["metadata"]["name"] for item in self.migrations() or ()}
        return "its migration is not finished: use state=migrated" if identity.migration_name(name) in halfway else ""

    def _status(self, path: str) -> int:
        try:
            self._http.send("GET", path)
        except Refused as refused:
            return refused.status
        return 200

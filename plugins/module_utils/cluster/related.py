# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read objects that affect an update, for example quotas and nodes, without a watch."""

from __future__ import annotations

import re
import typing as t

from ..model import identity, object_meta
from ..model.fields import Json, text
from ..model.kinds import KINDS, Kind, describe_kinds
from .http import METADATA, GatewayPart, path_segment
from .refused import RETRIED_STATUSES, Refused

API_PATHS = {
    "services": "/api/v1", "resourcequotas": "/api/v1", "nodes": "/api/v1", "pods": "/api/v1",
    "configmaps": "/api/v1", "secrets": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
    "controllerrevisions": "/apis/apps/v1",
    "httproutes": "/apis/gateway.networking.k8s.io/v1",
    "grpcroutes": "/apis/gateway.networking.k8s.io/v1",
    "endpointslices": "/apis/discovery.k8s.io/v1",
    "rollouts": "/apis/argoproj.io/v1alpha1",
    **{kind.resource: f"/apis/{kind.api_version}" if kind.group else "/api/v1" for kind in Kind},
}


class RelatedObjects(GatewayPart):
    """The related objects of a namespace; see gateway.py."""

    kind: Kind
    _server_version: tuple[int, int] | None = None

    def collection_path(self, resource: str) -> str:
        """Return the path of all objects of a resource, for example of "pods"."""
        namespace = "" if resource == "nodes" else f"/namespaces/{self._namespace}"
        return f"{API_PATHS[resource]}{namespace}/{resource}"

    def find(self, kind: str, name: str) -> Json | None:
        try:
            return self.http.get(self.collection_path(f"{kind.lower()}s"), kind, self._namespace,
                                 name)
        except Refused as refused:
            raise refused.as_error(self._where) from refused

    def config_object(self, kind: str, name: str) -> Json | None:
        resource = f"{kind.lower()}s"
        try:
            return self.http.get(self.collection_path(resource), kind, self._namespace, name)
        except Refused as refused:
            rule = (f'{{"apiGroups": [""], "resources": ["{resource}"], "resourceNames": '
                    f'["{name}"], "verbs": ["get"]}}')
            hint = (f"add this rule to the Role in namespace {self._namespace} (see "
                    "docs/reference/permissions.md):", rule)
            raise refused.as_error(self._where,
                                   next_command=hint if refused.status == 403 else "") from refused

    def objects(self, resource: str) -> list[Json] | None:
        try:
            return self.http.list_all(self.collection_path(resource), {})[0]
        except Refused as refused:
            self._raise_if_server_fails(refused)
            return None

    def may_list_pods(self) -> bool:
        try:
            self.http.send("GET", f"{self._pods_path}?limit=1")
        except Refused as refused:
            self._raise_if_server_fails(refused)
            return False
        return True

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the ControllerRevisions of the controllers with these uids. () means all.

        Returns None if the list is refused, for example without permission. Raises RolloutError.
        """
        items = self._revisions(self.kind.revisions_selector(uids))
        if items is None or not uids:
            return items
        return [item for item in items if object_meta.owner_uid(item) in uids]

    def migrations(self) -> list[Json] | None:
        return self._revisions(object_meta.MIGRATION)

    def _revisions(self, selector: str) -> list[Json] | None:
        path = self.collection_path("controllerrevisions")
        try:
            return self.http.list_all(path, {"labelSelector": selector})[0]
        except Refused as refused:
            self._raise_if_server_fails(refused)
            return None

    def nodes(self, selector: str) -> frozenset[str]:
        query = {"labelSelector": selector}
        try:
            items, _version = self.http.list_all(self.collection_path("nodes"), query,
                                                 accept=METADATA)
        except Refused as refused:
            what = f"the nodes with the labels {selector} cannot be listed"
            raise refused.as_error("nodes", what) from refused
        return frozenset(item["metadata"]["name"] for item in items)

    def _raise_if_server_fails(self, refused: Refused) -> None:
        if refused.status in RETRIED_STATUSES:
            raise refused.as_error(self._where) from refused

    def has_change_times(self) -> bool:
        """Return whether the server updates the time in managedFields at each change of a field.

        Returns True for Kubernetes 1.25 and later (kubernetes pull request 110058), and for an
        unknown version.
        Raises RolloutError.
        """
        if self._server_version is None:
            try:
                version = self.http.send("GET", "/version")
            except Refused as refused:
                self._raise_if_server_fails(refused)
                version = {}
            # Parse gitVersion: major and minor are empty in some builds of old servers.
            match = re.match(r"v([0-9]{1,3})\.([0-9]{1,3})", text(version, "gitVersion"))
            self._server_version = (int(match[1]), int(match[2])) if match else (1, 25)
        return self._server_version >= (1, 25)

    def rules(self) -> list[Json] | None:
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview",
                  "spec": {"namespace": self._namespace}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        try:
            status = self.http.send("POST", path, review, is_write=False)["status"]
        except Refused:
            return None
        return None if status.get("incomplete") else status.get("resourceRules") or []

    def read_statuses(self, name: str, kinds: t.Iterable[Kind] = KINDS) -> dict[Kind, int]:
        """Read an object with this name for each kind, and return the status codes."""
        return {kind: self._status(f"{kind.collection(self._namespace)}/{path_segment(name)}")
                for kind in kinds}

    def absence_reason(self, name: str) -> str:
        statuses = self.read_statuses(name, [kind for kind in Kind if kind is not self.kind])
        if reason := describe_kinds(name, statuses):
            return reason
        if self._status(f"/api/v1/namespaces/{self._namespace}") == 404:
            return f"there is no namespace {self._namespace}"
        migrations = {item["metadata"]["name"] for item in self.migrations() or ()}
        if identity.migration_name(name) in migrations:
            return "its migration is not finished: use the module migrate_to_deployment"
        return ""

    def _status(self, path: str) -> int:
        try:
            self.http.send("GET", path)
        except Refused as refused:
            return refused.status
        return 200

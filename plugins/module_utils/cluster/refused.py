# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Turn error responses of the API server into errors for the user."""

from __future__ import annotations

import re
import typing as t

from ..flows.handover import CLOSED, PRIORITY_PATH
from ..model.errors import RolloutError
from ..model.fields import display_text, text
from ..model.steps import Create, Delete, Patch, Write
from . import json_text

RETRIED_STATUSES = {408, 429, 500, 502, 503, 504}
#: The message (status 500) if a webhook with failurePolicy Fail does not respond.
_UNREACHABLE_WEBHOOK = re.compile(r'failed calling webhook "([^"]{1,253})"')


class Refused(Exception):
    """An error response of the API server."""

    def __init__(self, server: str, method: str, path: str, status: int, body: bytes) -> None:
        try:
            content = json_text.parse(body)
            is_status = isinstance(content, dict) and content.get("kind") == "Status"
            #: The Status object, or {}.
            self.status_object = content if is_status else {}
        except ValueError:
            self.status_object = {}
        self.server, self.status = server, status
        self.request = f"{method} {path.partition('?')[0]}"
        message = text(self.status_object, "message") or body[:256].decode(errors="replace")
        self.reason = display_text(message) or f"status {status}"
        super().__init__(self.reason)

    def is_conflict(self, write: Write) -> bool:
        """Return whether the write conflicts with a change by another client."""
        if self.status == 422:
            # A failed "test" operation is a conflict: a Status without causes, and without the
            # denial of a webhook.
            causes = (self.status_object.get("details") or {}).get("causes")
            is_permanent = causes or "denied the request" in self.reason
            return isinstance(write, Patch) and not is_permanent
        return self.status == 409 or (self.status == 404 and not isinstance(write, Create))

    def as_error(self, where: str, what: str = "", next_command: str | t.Iterable[str] = "",
                 write: Write | None = None) -> RolloutError:
        """Return the error for the user.

        For a write, pass `write` or `what`, because admission may also be the cause of status 403.
        """
        if self.status == 401:
            return RolloutError("the API server does not accept the credentials (401)",
                                where=self.server, why=self.reason,
                                next_command="renew the token, or check api_key and kubeconfig")
        # Status 403 may come from RBAC or, for a write, from a policy, a webhook or a quota.
        may_come_from_admission = bool(write or what)
        is_rbac = 'User "' in self.reason and '" cannot ' in self.reason
        if self.status == 403 and (not may_come_from_admission or is_rbac):
            hint = ("ask for that verb and resource in a Role in this namespace "
                    "(see docs/reference/permissions.md)")
            return RolloutError("permission denied (403)", where=where, why=self.reason,
                                next_command=next_command or hint)
        webhook = _UNREACHABLE_WEBHOOK.search(self.reason)
        if webhook:
            what = f"the admission webhook {webhook[1]} does not respond"
            next_command = (f"check that the service behind the webhook {webhook[1]} is running",
                            "then run the same task again")
        elif self.status in RETRIED_STATUSES:
            next_command = (next_command
                            or "run the same task again when the API server is healthy")
        elif write:
            next_command = "fix the cause of the refusal, then run the same task again"
        if write and (webhook or self.status not in RETRIED_STATUSES):
            what = f"{_describe_write(write)} was refused ({self.status})"
        return RolloutError(what or f"the API server refused {self.request} ({self.status})",
                            where=where, why=self.reason, next_command=next_command)


def _describe_write(write: Write) -> str:
    if isinstance(write, Create):
        return "its creation"
    if isinstance(write, Delete):
        return "its deletion"
    operations = write.operations if isinstance(write, Patch) else ()
    new_values = {operation["path"]: operation.get("value") for operation in operations
                  if operation["op"] != "test"}
    blocking = "blocking" if new_values.get(PRIORITY_PATH) == CLOSED else "unblocking"
    actions = {"/spec/template": "the change of its template",
               "/spec/selector": "the change of its selector",
               "/spec/replicas": "the change of its size",
               PRIORITY_PATH: f"{blocking} the creation of pods from its template (for the "
                              "handover)",
               "/spec/strategy": "the change of its strategy",
               "/spec/paused": "pausing or resuming it"}
    return next((action for path, action in actions.items() if path in new_values),
                "the change of its annotations")

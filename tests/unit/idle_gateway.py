# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Stub a gateway. Tests override the methods that they need."""

from __future__ import annotations

from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind


class IdleGateway:
    """Gateway to an empty cluster without other clients, and with all permissions."""

    kind = Kind.REPLICATION_CONTROLLER

    def rules(self):
        return None

    def objects(self, resource):
        return []

    def may_list_pods(self):
        return True

    def revisions(self, uids):
        return None

    def migrations(self):
        return []

    def record(self, event):
        return True

    def lease(self, name):
        return None

    def put_lease(self, lease):
        return {**lease, "metadata": {**lease["metadata"], "uid": "", "resourceVersion": "1"}}

    def delete_lease(self, lease):
        return True

    def server_time(self):
        return 0.0

    def start_in_background(self, work):
        return None

    def find(self, kind, name):
        return None

    def config_object(self, kind, name):
        return None

    def live_pods(self, selector):
        return ()

    def terminating_pods(self, selector):
        return ()

    def refuse_forbidden_handover(self, controller):
        return

    def troubled_pods(self, controller):
        return []

    def has_only_expected_pods(self, controller):
        return False

    def all_pods(self, controller, excluded_revision=""):
        return []

    def watched_pods(self, controller):
        return []

    def relist_pods(self):
        return

    def nodes(self, selector):
        return frozenset()

    def has_change_times(self):
        return True

    def warnings(self):
        return []

    def log(self, pod, container, previous):
        return []

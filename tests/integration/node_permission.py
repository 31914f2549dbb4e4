# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The permission to list nodes, which requires a ClusterRole."""

from __future__ import annotations

import contextlib
import typing as t

from namespace import RBAC, Namespace
from objects import eventually


@contextlib.contextmanager
def may_list_nodes(namespace: Namespace) -> t.Iterator[None]:
    """Let the code under test list nodes until the end of the context."""
    name = f"baton-nodes-{namespace.name}"
    rules = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    namespace.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    namespace.call("POST", f"{RBAC}/clusterrolebindings", {
        "metadata": {"name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "baton", "namespace": namespace.name}],
        "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}})
    try:
        eventually(lambda: namespace.is_allowed(rules), "the permission to list nodes")
        yield
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            namespace.call("DELETE", f"{RBAC}/{kind}/{name}")

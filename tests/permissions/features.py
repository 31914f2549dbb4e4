# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the permissions of each feature.

Most rules come from the code that checks the permissions before the first write.
"""

from __future__ import annotations

import dataclasses
import typing as t
from pathlib import Path

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import permissions
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import (
    argo_rollouts,
    roll_on,
    soak,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Rule
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import (
    reader,
    split_run,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import SERVICE
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    ROUTE_KINDS,
    TrafficRequest,
)

FOLDER = Path(__file__).parents[2] / "docs" / "reference" / "permissions"
UPDATED_KINDS = (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET, Kind.DEPLOYMENT, Kind.STATEFUL_SET,
                 Kind.DAEMON_SET)
HEADER = """\
# {title}
# {sufficiency}
# Generated from the checks of the collection by `make permissions`.
# See docs/reference/permissions.md.
#
#     kubectl -n NAMESPACE apply -f docs/reference/permissions/{name}.yaml
"""
#: A ClusterRoleBinding has to name the namespace of the ServiceAccount.
CLUSTER_HEADER_LINE = "# Change the namespace of the subject to that of your ServiceAccount.\n"


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature, with its file in docs/reference/permissions."""

    name: str
    title: str
    rules: tuple[Rule, ...]
    #: Whether no other file is needed.
    is_sufficient: bool = True
    #: The other file that is needed, in words for the header.
    base: str = "the file for the update of the kind"
    #: Whether the rules are about cluster-scoped objects.
    is_cluster_wide: bool = False

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.yaml"

    @property
    def documents(self) -> list[dict[str, t.Any]]:
        scope = "Cluster" if self.is_cluster_wide else ""
        group, name = "rbac.authorization.k8s.io", f"baton-{self.name}"
        subject = {"kind": "ServiceAccount", "name": "baton",
                   **({"namespace": "default"} if self.is_cluster_wide else {})}
        return [
            {"apiVersion": f"{group}/v1", "kind": f"{scope}Role", "metadata": {"name": name},
             "rules": [{"apiGroups": [api_group], "resources": [resource], "verbs": list(verbs)}
                       for api_group, resource, verbs in merged_rules(self.rules)]},
            {"apiVersion": f"{group}/v1", "kind": f"{scope}RoleBinding",
             "metadata": {"name": name}, "subjects": [subject],
             "roleRef": {"apiGroup": group, "kind": f"{scope}Role", "name": name}}]

    @property
    def manifest(self) -> dict[str, t.Any]:
        """Return the objects as a List, since ansible-test rejects files with several documents."""
        return {"apiVersion": "v1", "kind": "List", "items": self.documents}

    @property
    def text(self) -> str:
        sufficiency = ("Sufficient alone." if self.is_sufficient
                       else f"In addition to {self.base}.")
        header = HEADER.format(title=self.title, sufficiency=sufficiency, name=self.name)
        header += CLUSTER_HEADER_LINE if self.is_cluster_wide else ""
        return f"{header}---\n{as_yaml(self.manifest)}"


def merged_rules(rules: t.Iterable[Rule]) -> list[Rule]:
    """Return one rule per resource, in the order of the first occurrence."""
    verbs_by_resource: dict[tuple[str, str], dict[str, None]] = {}
    for group, resource, verbs in rules:
        verbs_by_resource.setdefault((group, resource), {}).update(dict.fromkeys(verbs))
    return [(group, resource, tuple(verbs))
            for (group, resource), verbs in verbs_by_resource.items()]


def as_yaml(value: t.Any, indent: str = "") -> str:
    lines = []
    for key, child in value.items():
        if isinstance(child, dict):
            lines.append(f"{indent}{key}:\n{as_yaml(child, indent + '  ')}")
        elif isinstance(child, list) and child and isinstance(child[0], dict):
            items = (as_yaml(item, f"{indent}    ").removeprefix(f"{indent}    ")
                     for item in child)
            lines.append(f"{indent}{key}:\n" + "".join(f"{indent}  - {item}" for item in items))
        elif isinstance(child, list):
            texts = ", ".join(item or '""' for item in child)
            lines.append(f"{indent}{key}: [{texts}]\n")
        else:
            lines.append(f"{indent}{key}: {child}\n")
    return "".join(lines)


def needed_rules(kind: Kind, **fields: t.Any) -> tuple[Rule, ...]:
    """Return the rules that a task checks before its first write."""
    request = Request("any", kind=kind, **fields)
    return *choose(request).required_permissions(request), permissions.LEASE_RULE


def optional_rules(kind: Kind) -> tuple[Rule, ...]:
    """Return the rules without which a task warns and continues."""
    request = Request("any", kind=kind)
    return choose(request).optional_permissions(request)


def rules_for_kinds(*kinds: Kind, verbs: tuple[str, ...] = ("list",)) -> tuple[Rule, ...]:
    return tuple((kind.group, kind.resource, verbs) for kind in kinds)


def split_rules(*route_kinds: str) -> tuple[Rule, ...]:
    rules = (rule for kind in UPDATED_KINDS for route_kind in route_kinds
             for rule in split_run.required_permissions(
                 TrafficRequest("any", "any", "any", route_kind), kind))
    return (*rules, *optional_rules(Kind.STATEFUL_SET))


def features() -> list[Feature]:
    """Return all features, in the order of docs/reference/permissions.md."""
    update_features = [Feature(f"update-{kind.lower()}", f"Update a {kind}, or restart its pods.",
                               needed_rules(kind)) for kind in UPDATED_KINDS]
    revision_rules = optional_rules(Kind.STATEFUL_SET)
    return [
        *update_features,
        *(Feature(f"rollback-{kind.lower()}", f"Update a {kind}, and roll back.",
                  (*needed_rules(kind), *needed_rules(kind, state=State.ROLLED_BACK)))
          for kind in (Kind.STATEFUL_SET, Kind.DAEMON_SET)),
        Feature("canary-daemonset", "Update a DaemonSet up to a pause (pause_at).",
                needed_rules(Kind.DAEMON_SET, pause_at=Size(1))),
        Feature("canary-nodes", "Choose the first nodes of a canary by their labels (nodes).",
                (("", "nodes", ("list",)),), is_sufficient=False, is_cluster_wide=True),
        Feature("fleet", "Update controllers of all kinds, by names or by labels.",
                tuple(rule for feature in update_features for rule in feature.rules)),
        Feature("history", "Store previous templates of a ReplicationController or a ReplicaSet.",
                optional_rules(Kind.REPLICATION_CONTROLLER), is_sufficient=False),
        Feature("autoscaler", "Freeze a HorizontalPodAutoscaler during the update.",
                (("autoscaling", "horizontalpodautoscalers", ("list", "patch")),),
                is_sufficient=False),
        Feature("argo-rollouts",
                "Refuse an object whose template a Rollout of Argo Rollouts uses.",
                (argo_rollouts.LIST_RULE,), is_sufficient=False),
        Feature("soak", "Watch the new pods (soak).",
                (*soak.REQUIRED_PERMISSIONS, *soak.OPTIONAL_PERMISSIONS), is_sufficient=False),
        Feature("roll-on", "Replace the pods when the data that they read has changed (roll_on).",
                roll_on.required_permissions(Request("any", roll_on=("auto",))),
                is_sufficient=False),
        Feature("causes", "Report why pods do not become available, with the end of the log.",
                (("", "pods", ("list", "watch")), ("", "events", ("list", "watch")),
                 permissions.LOG_RULE), is_sufficient=False),
        Feature("events", "Record each step as an Event.", (("", "events", ("create",)),),
                is_sufficient=False),
        Feature("budgets", "Keep as many pods available as a PodDisruptionBudget demands.",
                (("policy", "poddisruptionbudgets", ("list",)),), is_sufficient=False),
        Feature("warnings", "Warn, before the first change, of what will not work.",
                (("", "services", ("list",)), ("", "resourcequotas", ("list",))),
                is_sufficient=False),
        Feature("migrate-replicationcontroller",
                "Turn a ReplicationController into a Deployment.",
                needed_rules(Kind.REPLICATION_CONTROLLER, module=Module.MIGRATION,
                             state=State.MIGRATED)),
        Feature("migrate-deploymentconfig", "Turn an OpenShift DeploymentConfig into a Deployment.",
                needed_rules(Kind.DEPLOYMENT_CONFIG, module=Module.MIGRATION,
                             state=State.MIGRATED)),
        Feature("owner-references",
                "Hand over pods where OwnerReferencesPermissionEnforcement protects them.",
                (("", "pods", ("delete",)), ("", "replicationcontrollers/finalizers", ("update",)),
                 ("apps", "replicasets/finalizers", ("update",))), is_sufficient=False),
        Feature("info", "Read the state of updates (rolling_update_info), with history and pods.",
                (*rules_for_kinds(*UPDATED_KINDS), *revision_rules, ("", "pods", ("list",)))),
        Feature("analysis", "Measure new and old pods (rollout_analysis), with error_lines.",
                (*rules_for_kinds(*UPDATED_KINDS), *revision_rules, ("", "pods", ("list",)),
                 permissions.LOG_RULE)),
        Feature("traffic", "Split requests between old and new pods (traffic_split).",
                split_rules(*ROUTE_KINDS)),
        Feature("traffic-warnings",
                "Warn of requests that a split does not reach, and report the Gateways.",
                reader.OPTIONAL_PERMISSIONS, is_sufficient=False, base="traffic.yaml"),
        Feature("traffic-service", "Switch a Service between old and new pods (traffic_split).",
                split_rules(SERVICE)),
    ]

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kinds of controllers, and the states and modules of tasks."""

from __future__ import annotations

import enum
import typing as t

from . import object_meta
from .fields import Json


class StrEnum(str, enum.Enum):
    """An enumeration of strings, like enum.StrEnum of Python 3.11."""

    def __str__(self) -> str:
        return self.value

    def __format__(self, specification: str) -> str:
        return format(self.value, specification)


class Kind(StrEnum):
    """A kind of controller, as in a manifest."""

    REPLICATION_CONTROLLER = "ReplicationController"
    DEPLOYMENT = "Deployment"
    REPLICA_SET = "ReplicaSet"
    DEPLOYMENT_CONFIG = "DeploymentConfig"
    STATEFUL_SET = "StatefulSet"
    DAEMON_SET = "DaemonSet"

    @property
    def group(self) -> str:
        """Return the API group, or "" for the core group."""
        groups = {Kind.REPLICATION_CONTROLLER: "", Kind.DEPLOYMENT_CONFIG: "apps.openshift.io"}
        return groups.get(self, "apps")

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def resource(self) -> str:
        """Return the plural, such as "deployments"."""
        return f"{self.lower()}s"

    @property
    def kubectl_name(self) -> str:
        """Return the name for suggested kubectl commands, such as "sts"."""
        names = {Kind.REPLICATION_CONTROLLER: "rc", Kind.REPLICA_SET: "rs",
                 Kind.DEPLOYMENT: "deployment", Kind.DEPLOYMENT_CONFIG: "dc",
                 Kind.STATEFUL_SET: "sts", Kind.DAEMON_SET: "ds"}
        return names[self]

    @property
    def abbreviation(self) -> str:
        """Return the short name that `kubectl api-resources` lists."""
        return "deploy" if self is Kind.DEPLOYMENT else self.kubectl_name

    @property
    def is_usually_owned(self) -> bool:
        return self is Kind.REPLICA_SET

    @property
    def has_mutable_selector(self) -> bool:
        return self is Kind.REPLICATION_CONTROLLER

    @property
    def is_server_driven(self) -> bool:
        """Return whether a controller in the cluster, not the task, replaces the pods."""
        return self not in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET)

    @property
    def replaces_in_place(self) -> bool:
        """Return whether a new pod has the name of the old pod, so that no surge is possible."""
        return self is Kind.STATEFUL_SET

    @property
    def uses_controller_revisions(self) -> bool:
        """Return whether the controller manager stores the templates in ControllerRevisions."""
        return self in (Kind.STATEFUL_SET, Kind.DAEMON_SET)

    @property
    def has_exclusive_surge(self) -> bool:
        """Return whether only one of maxSurge and maxUnavailable may be above 0."""
        return self is Kind.DAEMON_SET

    @property
    def runs_on_each_node(self) -> bool:
        """Return whether each eligible node has one pod."""
        return self is Kind.DAEMON_SET

    @property
    def server_label(self) -> str:
        """Return the pod label by which the cluster itself distinguishes templates, or ""."""
        labels = {
            Kind.DEPLOYMENT: object_meta.HASH_LABEL,
            Kind.DEPLOYMENT_CONFIG: object_meta.ROLLOUT_LABEL,
            Kind.STATEFUL_SET: object_meta.POD_REVISION,
            Kind.DAEMON_SET: object_meta.POD_REVISION,
        }
        return labels.get(self, "")

    @property
    def history_label(self) -> str:
        """Return the key of a label that all ControllerRevisions of this kind have."""
        labels = {Kind.STATEFUL_SET: object_meta.SERVER_HISTORY,
                  Kind.DAEMON_SET: object_meta.POD_REVISION}
        return labels.get(self, object_meta.HISTORY)

    def revisions_selector(self, uids: t.Sequence[str]) -> str:
        """Return the label selector for the ControllerRevisions of the controllers with these uids.

        Without uids, the selector selects by the history label alone. For a StatefulSet or
        DaemonSet, this is always so: the controller manager sets no label with a uid.
        """
        label = self.history_label
        selects_uids = uids and label == object_meta.HISTORY
        return f"{label} in ({','.join(uids)})" if selects_uids else label

    @property
    def may_be_migrated(self) -> bool:
        return self is Kind.REPLICATION_CONTROLLER or self.is_migration_only

    @property
    def is_migration_only(self) -> bool:
        """Return whether a task can migrate, but not update, this kind."""
        return self is Kind.DEPLOYMENT_CONFIG

    def labels(self, selector: Json) -> Json | None:
        """Return the labels in spec.selector."""
        return selector if self in _KINDS_WITHOUT_MATCH_LABELS else selector.get("matchLabels")

    def selector(self, labels: dict[str, str]) -> Json:
        """Return the value of spec.selector for these labels."""
        return labels if self in _KINDS_WITHOUT_MATCH_LABELS else {"matchLabels": labels}

    def collection(self, namespace: str) -> str:
        """Return the API path of the objects in a namespace."""
        root = f"/apis/{self.api_version}" if self.group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{self.resource}"


def kind_named(word: str) -> Kind | None:
    """Return the kind with this name, plural or short name (such as sts), or None."""
    return _KINDS_BY_WORD.get(word.strip().lower())


def describe_kinds(name: str, statuses: t.Mapping[Kind, int]) -> str:
    """Describe the existing objects with this name, from their status codes; "" without any."""
    objects = [f"a {kind} {name} (kind={kind})" for kind, status in statuses.items()
               if status == 200]
    return f"there is {' and '.join(objects)}" if objects else ""


KINDS = (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET, Kind.DEPLOYMENT, Kind.DEPLOYMENT_CONFIG,
         Kind.STATEFUL_SET, Kind.DAEMON_SET)
#: Kinds by the words that kubectl accepts, in lower case.
_KINDS_BY_WORD = {word: kind for kind in KINDS
                  for word in (kind.lower(), kind.resource, kind.abbreviation)}
_KINDS_WITHOUT_MATCH_LABELS = (Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT_CONFIG)


class State(StrEnum):
    """The requested state at the end of a task."""

    UPDATED = "updated"
    ROLLED_BACK = "rolled_back"
    #: New pods have replaced all old pods. The template has changed only in the restart annotation.
    RESTARTED = "restarted"
    #: A Deployment controls the pods, through a ReplicaSet.
    MIGRATED = "migrated"

    @property
    def updates(self) -> bool:
        """Return whether the task updates the controller to a template."""
        return self is State.UPDATED

    @property
    def restarts(self) -> bool:
        """Return whether the task restarts the pods."""
        return self is State.RESTARTED

    @property
    def rolls_back(self) -> bool:
        """Return whether the task rolls back an update, or rolls back to a revision."""
        return self is State.ROLLED_BACK

    @property
    def migrates(self) -> bool:
        return self is State.MIGRATED


class Module(StrEnum):
    """An Ansible module that changes controllers."""

    ROLLING_UPDATE = "rolling_update"
    MIGRATION = "migrate_to_deployment"

    @property
    def states(self) -> tuple[State, ...]:
        """Return the allowed states, the default first."""
        if self is Module.MIGRATION:
            return State.MIGRATED, State.ROLLED_BACK
        return State.UPDATED, State.ROLLED_BACK, State.RESTARTED

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in KINDS
                     if (kind.may_be_migrated if self is Module.MIGRATION
                         else not kind.is_migration_only))

    def changeable_kinds(self, kind: Kind) -> tuple[Kind, ...]:
        """Return the kinds that a task may change under one name, the user's kind first."""
        return (kind, Kind.DEPLOYMENT) if self is Module.MIGRATION else (kind,)

    @property
    def default_state(self) -> State:
        return self.states[0]

    def module_for(self, state: State) -> Module:
        """Return the module for the state, preferably this one."""
        return next(module for module in (self, *Module) if state in module.states)


def module_of_kind(kind: str) -> Module:
    """Return the first module for controllers of the kind."""
    return next(module for module in Module if kind in module.kinds)

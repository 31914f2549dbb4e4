# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kinds of controllers, and where the API server has them. Pure."""

from __future__ import annotations

import enum

from . import marks


class Word(str, enum.Enum):
    """One of a few texts, which is used as that text. Python's own StrEnum is younger than the Pythons that are supported."""

    def __str__(self) -> str:
        return self.value

    def __format__(self, specification: str) -> str:
        return format(self.value, specification)


class Kind(Word):
    """A kind of controller, as a manifest names it."""

    REPLICATION_CONTROLLER = "ReplicationController"
    DEPLOYMENT = "Deployment"
    REPLICA_SET = "ReplicaSet"
    DEPLOYMENT_CONFIG = "DeploymentConfig"
    STATEFUL_SET = "StatefulSet"
    DAEMON_SET = "DaemonSet"

    @property
    def group(self) -> str:
        """The API group; "" is the core group."""
        return {Kind.REPLICATION_CONTROLLER: "", Kind.DEPLOYMENT_CONFIG: "apps.openshift.io"}.get(self, "apps")

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
        return {Kind.REPLICATION_CONTROLLER: "rc", Kind.REPLICA_SET: "rs", Kind.DEPLOYMENT: "deployment",
                Kind.DEPLOYMENT_CONFIG: "dc", Kind.STATEFUL_SET: "sts", Kind.DAEMON_SET: "ds"}[self]

    @property
    def is_made_by_others(self) -> bool:
        """Whether most of them are parts of another object, and no controllers of their own."""
        return self is Kind.REPLICA_SET

    @property
    def may_change_selector(self) -> bool:
        """Whether an object that is there may get another selector."""
        return self is Kind.REPLICATION_CONTROLLER

    @property
    def counts_as(self) -> tuple[str, ...]:
        """What the controller of new pods counts as in a ResourceQuota; one outside the core group has one name only."""
        if self is Kind.REPLICATION_CONTROLLER:
            return self.resource, f"count/{self.resource}"
        return () if self.makes_pods_by_revisions else ("count/replicasets.apps",)

    @property
    def is_stepped_by_server(self) -> bool:
        """Whether the server's own controller changes the sizes: the object stays the same one, and has no successor."""
        return self in (Kind.DEPLOYMENT, Kind.DEPLOYMENT_CONFIG, Kind.STATEFUL_SET, Kind.DAEMON_SET)

    @property
    def replaces_in_place(self) -> bool:
        """Whether an old pod has to go before the new one of its name can come: there is never one more than the size."""
        return self is Kind.STATEFUL_SET

    @property
    def makes_pods_by_revisions(self) -> bool:
        """Whether the server keeps its templates as ControllerRevisions, and makes its pods from them without a ReplicaSet between.

        Such a kind has no condition that tells why pods are not created: only Events do.
        """
        return self in (Kind.STATEFUL_SET, Kind.DAEMON_SET)

    @property
    def surges_or_lacks(self) -> bool:
        """Whether, in an update, it either has more pods than its size or lacks some: the API server refuses both together."""
        return self is Kind.DAEMON_SET

    @property
    def has_pods_by_node(self) -> bool:
        """Whether it has one pod on each node, so that a pause can say which of them are first."""
        return self is Kind.DAEMON_SET

    @property
    def server_label(self) -> str:
        """The label by which the server's own controller tells pods of one template from those of another; "" where it has none."""
        return {Kind.DEPLOYMENT: marks.HASH_LABEL, Kind.DEPLOYMENT_CONFIG: marks.ROLLOUT_LABEL,
                Kind.STATEFUL_SET: marks.POD_REVISION, Kind.DAEMON_SET: marks.POD_REVISION}.get(self, "")

    @property
    def history_label(self) -> str:
        """The label by which the ControllerRevisions are found that keep the templates of controllers of this kind."""
        return {Kind.STATEFUL_SET: marks.SERVER_HISTORY, Kind.DAEMON_SET: marks.POD_REVISION}.get(self, marks.HISTORY)

    @property
    def may_be_migrated(self) -> bool:
        """Whether its pods can be given to a Deployment."""
        return self is Kind.REPLICATION_CONTROLLER or self.may_only_be_migrated

    @property
    def takes_part_in_migrations(self) -> bool:
        """Whether a migration may be about to change, to create or to delete one of this kind."""
        return not self.makes_pods_by_revisions

    @property
    def may_only_be_migrated(self) -> bool:
        """Whether nothing else can be done with it here: the cluster's own tools roll it."""
        return self is Kind.DEPLOYMENT_CONFIG

    def labels(self, selector: dict) -> dict | None:
        """The labels that a manifest's selector asks for; None where it has none."""
        return selector if self in _SELECT_BY_LABELS else selector.get("matchLabels")

    def selector(self, labels: dict[str, str]) -> dict:
        """What asks for these labels, as a manifest has it."""
        return labels if self in _SELECT_BY_LABELS else {"matchLabels": labels}

    def collection(self, namespace: str) -> str:
        """The path of all of a namespace."""
        root = f"/apis/{self.api_version}" if self.group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{self.resource}"


#: Those that the user may name.
ROLLED = (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET, Kind.DEPLOYMENT, Kind.DEPLOYMENT_CONFIG, Kind.STATEFUL_SET,
          Kind.DAEMON_SET)
#: Those whose selector is a mapping of labels, and nothing more.
_SELECT_BY_LABELS = (Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT_CONFIG)


class State(Word):
    """What the user wants to have when the task ends."""

    #: The pods of the user's controller have the wanted template.
    UPDATED = "updated"
    #: The rollout in progress is undone.
    ROLLED_BACK = "rolled_back"
    #: Every pod is new, from the same template.
    RESTARTED = "restarted"
    #: The pods are a Deployment's.
    MIGRATED = "migrated"

    @property
    def changes_template(self) -> bool:
        """Whether the task has to say what the pods shall look like."""
        return self is State.UPDATED

    @property
    def restarts(self) -> bool:
        """Whether the pods are replaced by others of the same template."""
        return self is State.RESTARTED

    @property
    def undoes(self) -> bool:
        """Whether a task goes back: to where the update in progress has begun, or to a revision."""
        return self is State.ROLLED_BACK

    @property
    def migrates(self) -> bool:
        """Whether the pods stay, and get a controller of another kind."""
        return self is State.MIGRATED

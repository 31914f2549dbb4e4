# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse controllers of the kinds whose pods the controller manager replaces."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from . import object_meta
from .fields import Json, display_text, mapping, number, objects, text
from .kinds import Kind
from .observed import NEVER_AVAILABLE, RESTORE_DEADLINE, UPDATE_DEADLINE, Controller
from .settings import (
    daemon_set_numbers,
    has_surge,
    is_daemon_set_strategy,
    is_stateful_set_strategy,
)


@dataclasses.dataclass(frozen=True)
class ServerDriven(Controller):
    """A controller whose pods the controller manager replaces."""

    updated: int  # status.updatedReplicas
    #: The values of the fields in SETTINGS, or None for a missing field.
    settings: Json

    KIND: t.ClassVar[Kind]
    #: The fields of spec that control the rolling update.
    SETTINGS: t.ClassVar[tuple[str, ...]]
    #: The fields in SETTINGS that the collection changes during an update.
    OVERRIDDEN: t.ClassVar[tuple[str, ...]]

    @classmethod
    def parse_fields(cls, item: Json) -> Json:
        """Return the arguments of the constructor."""
        return {**vars(Controller.from_api(item, cls.KIND)),
                "settings": {field: item["spec"].get(field) for field in cls.SETTINGS},
                "updated": (item.get("status") or {}).get("updatedReplicas", 0)}

    @functools.cached_property
    def rollout(self) -> object_meta.Rollout | None:
        """The record of the update in progress, or None if missing or implausible."""
        record = object_meta.rollout(self.annotations)
        return record if record and self.is_plausible_record(record) else None

    def is_plausible_record(self, record: object_meta.Rollout) -> bool:
        """Return whether an update could have changed the settings as the record says."""
        # An update changes revisionHistoryLimit only from 0 to 1.
        before, during = (settings.get("revisionHistoryLimit", default)
                          for settings, default in ((record.original, 0), (record.overrides, 1)))
        return record.overrides.keys() <= set(self.OVERRIDDEN) and (before, during) == (0, 1)

    @property
    def may_pause(self) -> bool:
        return self.replicas > 0

    @property
    def is_updating(self) -> bool:
        return self.rollout is not None

    @property
    def new_pods_at_pause(self) -> int | None:
        return self.rollout.paused if self.rollout else None

    @property
    def desired_replicas(self) -> int | None:
        """The number of old pods at the end: 0, or all replicas if the update is rolled back."""
        return self.replicas if self.rollout and self.rollout.is_rolling_back else 0


@dataclasses.dataclass(frozen=True)
class Deployment(ServerDriven):
    """A Deployment."""

    #: The reason why a ReplicaSet could not be created, or "".
    creation_failure: str

    KIND = Kind.DEPLOYMENT
    SETTINGS = OVERRIDDEN = ("paused", "minReadySeconds", "progressDeadlineSeconds", "strategy",
                             "revisionHistoryLimit")

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Deployment:
        failures = [text(condition, "message")
                    for condition in objects(item.get("status"), "conditions")
                    if text(condition, "reason") == "ReplicaSetCreateError"]
        return cls(**cls.parse_fields(item),
                   creation_failure=display_text(failures[0]) if failures else "")

    @property
    def has_update_settings(self) -> bool:
        """Whether spec has values that only an update sets.

        A user with annotate permission can forge annotations, but cannot set these values.
        """
        return (self.settings["minReadySeconds"] == NEVER_AVAILABLE
                or self.settings["progressDeadlineSeconds"] in (UPDATE_DEADLINE, RESTORE_DEADLINE))

    @property
    def is_restoring(self) -> bool:
        """Whether the settings are those of a rollback of an update without a ReplicaSet."""
        return bool(self.settings["progressDeadlineSeconds"] == RESTORE_DEADLINE)


@dataclasses.dataclass(frozen=True)
class RevisionDriven(ServerDriven):
    """A StatefulSet or DaemonSet, whose templates are stored in ControllerRevisions."""

    reports_failures = False
    SETTINGS = ("minReadySeconds", "updateStrategy", "revisionHistoryLimit")
    OVERRIDDEN = ("updateStrategy", "revisionHistoryLimit")

    @property
    def replaces_pods_automatically(self) -> bool:
        """Whether the controller manager deletes old pods in order to replace them.

        With OnDelete, the controller manager replaces only pods that a client has deleted.
        """
        return text(self.settings["updateStrategy"], "type") != "OnDelete"

    @property
    def rolling_update(self) -> Json:
        return mapping(self.settings["updateStrategy"], "rollingUpdate")


def _strategies(record: object_meta.Rollout) -> list[t.Any]:
    """Return the recorded values of updateStrategy: during the update, then before the update."""
    return [settings["updateStrategy"] for settings in (record.overrides, record.original)
            if "updateStrategy" in settings]


@dataclasses.dataclass(frozen=True)
class StatefulSet(RevisionDriven):
    """A StatefulSet."""

    #: status.currentRevision. During an update, the ControllerRevision of the previous template.
    current_revision: str
    #: status.updateRevision, the ControllerRevision of the template in spec.
    update_revision: str
    claims: tuple[Json, ...]  # spec.volumeClaimTemplates
    start: int  # spec.ordinals.start
    #: Whether an old pod that is not ready blocks the creation and replacement of other pods.
    is_ordered: bool

    KIND = Kind.STATEFUL_SET
    keeps_pod_names = True

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> StatefulSet:
        status = item.get("status")
        return cls(**cls.parse_fields(item), current_revision=text(status, "currentRevision"),
                   update_revision=text(status, "updateRevision"),
                   claims=tuple(objects(item["spec"], "volumeClaimTemplates")),
                   start=number(mapping(item["spec"], "ordinals"), "start"),
                   is_ordered=text(item["spec"], "podManagementPolicy") != "Parallel")

    def is_plausible_record(self, record: object_meta.Rollout) -> bool:
        # If the strategy during the update is recorded, this strategy is the first.
        strategies = _strategies(record)
        return (super().is_plausible_record(record)
                and all(map(is_stateful_set_strategy, strategies))
                and all(text(strategy, "type") == "RollingUpdate" for strategy in strategies[:1]))

    @property
    def partition(self) -> int:
        """The number of pods, from the lowest ordinal, that keep the previous template."""
        return number(self.rolling_update, "partition")

    def recreates_from_previous_template(self, pod: str) -> bool:
        """Return whether the previous template is used if the pod is deleted and created again."""
        return self.replaces_pods_automatically and pod_ordinal(pod) < self.start + self.partition


def pod_ordinal(pod: str) -> int:
    """Return the ordinal in the name of a pod, or 0."""
    digits = pod.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 10 else 0


@dataclasses.dataclass(frozen=True)
class DaemonSet(RevisionDriven):
    """A DaemonSet, with the number of eligible nodes as its replicas."""

    #: The number of nodes that have a pod, but are not eligible.
    misscheduled: int

    KIND = Kind.DAEMON_SET

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DaemonSet:
        status = item.get("status")
        counts = {field: number(status, name) for field, name in (
            ("replicas", "desiredNumberScheduled"), ("current", "currentNumberScheduled"),
            ("ready", "numberReady"), ("available", "numberAvailable"),
            ("updated", "updatedNumberScheduled"), ("misscheduled", "numberMisscheduled"))}
        return cls(**cls.parse_fields(item) | counts)

    @property
    def rolling_update(self) -> Json:
        return daemon_set_numbers(self.settings["updateStrategy"])

    @property
    def may_stall(self) -> bool:
        """Whether a surge may have stalled (see stall_time() in flows/daemonset)."""
        return bool(self.min_ready_seconds and has_surge(self.rolling_update)
                    and self.replaces_pods_automatically
                    and self.updated < self.replicas <= self.available)

    @property
    def may_pause(self) -> bool:
        return True  # Nodes may become eligible during the pause.

    def is_plausible_record(self, record: object_meta.Rollout) -> bool:
        return (super().is_plausible_record(record)
                and all(map(is_daemon_set_strategy, _strategies(record))))


@dataclasses.dataclass(frozen=True)
class DeploymentConfig(Controller):
    """A DeploymentConfig of OpenShift, which creates a ReplicationController for each rollout."""

    spec: Json
    latest: int  # status.latestVersion

    EMPTY_TEMPLATE: t.ClassVar[Json] = {"spec": {"containers": []}}

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DeploymentConfig:
        spec = mapping(item, "spec")
        pod_spec = mapping(spec, "template", "spec")
        template = mapping(spec, "template") if pod_spec else cls.EMPTY_TEMPLATE
        item_with_template = {**item, "spec": {**spec, "template": template}}
        controller = Controller.from_api(item_with_template, Kind.DEPLOYMENT_CONFIG)
        return cls(**vars(controller), spec=spec,
                   latest=number(item.get("status"), "latestVersion"))

    @property
    def is_paused(self) -> bool:
        return bool(self.spec.get("paused"))

    @property
    def is_paused_for_migration(self) -> bool:
        return self.is_paused and object_meta.is_paused_for_migration(self.annotations)

    def rollout_number(self, controller: Controller) -> int:
        """Return the number of the rollout that created a ReplicationController, or 0.

        Reads no annotation: users with annotate permission can change annotations, but neither the
        name nor the owner reference.
        """
        digits = controller.name.removeprefix(f"{self.name}-")
        is_rollout = (controller.owner_uid == self.uid and digits != controller.name
                      and digits.isdecimal() and len(digits) < 10)
        return int(digits) if is_rollout and int(digits) <= self.latest else 0


_CLASSES: dict[Kind, type[Controller]] = {
    Kind.DEPLOYMENT: Deployment, Kind.DEPLOYMENT_CONFIG: DeploymentConfig,
    Kind.STATEFUL_SET: StatefulSet, Kind.DAEMON_SET: DaemonSet}


def parse(kind: Kind, item: Json) -> Controller:
    """Parse a controller of the kind."""
    return _CLASSES.get(kind, Controller).from_api(item, kind)

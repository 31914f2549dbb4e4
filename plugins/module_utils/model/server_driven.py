# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parsed controllers with pods created and replaced by the server's own controllers. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from . import object_meta
from .fields import Json, mapping, number, objects, text
from .kinds import Kind
from .observed import NEVER_AVAILABLE, UPDATE_DEADLINE, Controller
from .settings import daemon_set_numbers, is_daemon_set_strategy, is_stateful_set_strategy


@dataclasses.dataclass(frozen=True)
class ServerDriven(Controller):
    """Controller whose pods the server replaces, as requested by some fields of spec."""

    #: The number of pods with the present template (status.updatedReplicas).
    updated: int
    #: The values of SETTINGS in spec; None for a field omitted by the server.
    settings: Json

    KIND: t.ClassVar[Kind]
    #: The fields of spec that direct the server's controller, and the fields changed by an update.
    SETTINGS: t.ClassVar[tuple[str, ...]]
    OVERRIDDEN: t.ClassVar[tuple[str, ...]]

    @classmethod
    def parse_fields(cls, item: Json) -> Json:
        """Return the fields of this class from an object of the API."""
        return {**vars(Controller.from_api(item, cls.KIND)),
                "settings": {field: item["spec"].get(field) for field in cls.SETTINGS},
                "updated": (item.get("status") or {}).get("updatedReplicas", 0)}

    @property
    def rollout(self) -> object_meta.Rollout | None:
        """The stored record of the update in progress; None if its fields do not fit the kind."""
        record = object_meta.rollout(self.annotations)
        return record if record and self.may_have_overridden(record) else None

    def may_have_overridden(self, record: object_meta.Rollout) -> bool:
        """Return whether an update may have changed the settings as the record claims.

        An update changes revisionHistoryLimit from 0 to 1 alone.
        """
        before, during = (settings.get("revisionHistoryLimit", default)
                          for settings, default in ((record.original, 0), (record.overrides, 1)))
        return record.overrides.keys() <= set(self.OVERRIDDEN) and (before, during) == (0, 1)

    @property
    def may_pause(self) -> bool:
        """Whether an update can pause: the size has to be at least 1."""
        return self.replicas > 0

    @property
    def is_updating(self) -> bool:
        return self.rollout is not None

    @property
    def paused(self) -> int | None:
        return self.rollout.paused if self.rollout else None

    @property
    def desired(self) -> int | None:
        """The size during a rollback, when the old pods come back; else 0."""
        return self.replicas if self.rollout and self.rollout.is_back else 0


@dataclasses.dataclass(frozen=True)
class Deployment(ServerDriven):
    """Deployment; the server's own controller creates and scales the ReplicaSets."""

    KIND = Kind.DEPLOYMENT
    SETTINGS = OVERRIDDEN = ("paused", "minReadySeconds", "progressDeadlineSeconds", "strategy",
                             "revisionHistoryLimit")

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Deployment:
        return cls(**cls.parse_fields(item))

    @property
    def has_update_settings(self) -> bool:
        """Whether the settings are an update's; annotations alone cannot forge settings."""
        return (self.settings["minReadySeconds"] == NEVER_AVAILABLE
                or self.settings["progressDeadlineSeconds"] == UPDATE_DEADLINE)


@dataclasses.dataclass(frozen=True)
class RevisionDriven(ServerDriven):
    """Controller with templates stored by the server as ControllerRevisions."""

    reports_failures = False
    SETTINGS = ("minReadySeconds", "updateStrategy", "revisionHistoryLimit")
    OVERRIDDEN = ("updateStrategy", "revisionHistoryLimit")

    @property
    def is_replaced_by_server(self) -> bool:
        """Whether the server replaces old pods; with OnDelete, a client has to delete them."""
        return text(self.settings["updateStrategy"], "type") != "OnDelete"

    @property
    def numbers(self) -> Json:
        """The numbers of updateStrategy: how many pods, and from which number, may be replaced."""
        return mapping(self.settings["updateStrategy"], "rollingUpdate")


def _strategies(record: object_meta.Rollout) -> list[t.Any]:
    """Return updateStrategy during and before an update, as far as the record has both."""
    return [settings["updateStrategy"] for settings in (record.overrides, record.original)
            if "updateStrategy" in settings]


@dataclasses.dataclass(frozen=True)
class StatefulSet(RevisionDriven):
    """StatefulSet: numbered pods, with stable names and volumes.

    The numbers of updateStrategy are partition and, with the feature gate
    MaxUnavailableStatefulSet, maxUnavailable.
    """

    #: The ControllerRevisions of the templates before and after the update in progress.
    current_revision: str
    update_revision: str
    #: The volumeClaimTemplates.
    claims: tuple[Json, ...]
    #: The number of the first pod.
    start: int
    #: Whether the server creates and replaces no pod as long as a pod with a lower number is not
    #: ready (podManagementPolicy OrderedReady).
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

    def may_have_overridden(self, record: object_meta.Rollout) -> bool:
        strategies = _strategies(record)
        return (super().may_have_overridden(record)
                and all(map(is_stateful_set_strategy, strategies))
                and all(text(strategy, "type") == "RollingUpdate" for strategy in strategies[:1]))

    @property
    def partition(self) -> int:
        """The number of pods, from number 0 up, with the template from before the update."""
        return number(self.numbers, "partition")

    def uses_previous_template(self, pod: str) -> bool:
        """Return whether the server creates a pod of this name from the previous template."""
        return self.is_replaced_by_server and pod_number(pod) < self.start + self.partition


def pod_number(pod: str) -> int:
    """Return the number in the name of a pod of a StatefulSet."""
    digits = pod.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 10 else 0


@dataclasses.dataclass(frozen=True)
class DaemonSet(RevisionDriven):
    """DaemonSet: one pod on each eligible node; the size is the number of eligible nodes.

    The numbers of updateStrategy are maxSurge and maxUnavailable, exactly one of them 0.
    """

    #: The number of nodes with a pod but no longer eligible, because of a taint for instance.
    misplaced: int

    KIND = Kind.DAEMON_SET

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DaemonSet:
        status = item.get("status")
        counts = {field: number(status, name) for field, name in (
            ("replicas", "desiredNumberScheduled"), ("current", "currentNumberScheduled"),
            ("ready", "numberReady"), ("available", "numberAvailable"),
            ("updated", "updatedNumberScheduled"), ("misplaced", "numberMisscheduled"))}
        return cls(**cls.parse_fields(item) | counts)

    @property
    def numbers(self) -> Json:
        return daemon_set_numbers(self.settings["updateStrategy"])

    @property
    def may_pause(self) -> bool:
        """Whether an update can pause: True even without an eligible node.

        Nodes that are no longer eligible keep their pods, and eligible nodes may come.
        """
        return True

    def may_have_overridden(self, record: object_meta.Rollout) -> bool:
        return super().may_have_overridden(record) and all(map(is_daemon_set_strategy,
                                                               _strategies(record)))


@dataclasses.dataclass(frozen=True)
class DeploymentConfig(Controller):
    """DeploymentConfig of OpenShift, with ReplicationControllers as rollouts.

    OpenShift creates the rollouts and, unless the DeploymentConfig is paused, scales them.
    """

    #: The spec of the object, unparsed.
    spec: Json
    #: The number of the newest rollout, which may not have begun; 0 before the first.
    latest: int

    #: The substitute for a missing pod template.
    NONE: t.ClassVar[Json] = {"spec": {"containers": []}}

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DeploymentConfig:
        spec = mapping(item, "spec")
        template = mapping(spec, "template") if mapping(spec, "template", "spec") else cls.NONE
        whole = {**item, "spec": {**spec, "template": template}}
        return cls(**vars(Controller.from_api(whole, Kind.DEPLOYMENT_CONFIG)), spec=spec,
                   latest=number(item.get("status"), "latestVersion"))

    @property
    def is_paused(self) -> bool:
        return bool(self.spec.get("paused"))

    @property
    def is_paused_for_migration(self) -> bool:
        """Whether a migration has paused the DeploymentConfig."""
        return self.is_paused and object_meta.is_paused_for_migration(self.annotations)

    def rollout_number(self, controller: Controller) -> int:
        """Return the number of a controller among the rollouts; 0 for another controller.

        Name and owner decide, which a user with annotate permission cannot change.
        """
        digits = controller.name.removeprefix(f"{self.name}-")
        is_rollout = (controller.owner_uid == self.uid and digits != controller.name
                      and digits.isdecimal() and len(digits) < 10)
        return int(digits) if is_rollout and int(digits) <= self.latest else 0


#: The kinds with fields beyond the fields of Controller.
_CLASSES: dict[Kind, type[Controller]] = {
    Kind.DEPLOYMENT: Deployment, Kind.DEPLOYMENT_CONFIG: DeploymentConfig,
    Kind.STATEFUL_SET: StatefulSet, Kind.DAEMON_SET: DaemonSet}


def parse(kind: Kind, item: Json) -> Controller:
    """Return the controller of the kind from an object of the API."""
    return _CLASSES.get(kind, Controller).from_api(item, kind)

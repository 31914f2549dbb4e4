# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the cluster shows of controllers whose pods the server's own controllers make and replace. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from . import marks
from .fields import Json, mapping, number, objects, text
from .kinds import Kind
from .observed import IN_UPDATE, NEVER, Controller
from .settings import is_of_daemon_set, is_of_stateful_set, numbers_of_daemon_set


@dataclasses.dataclass(frozen=True)
class SteppedByServer(Controller):
    """One whose pods the server's own controller replaces, as some fields of its spec tell it to."""

    #: Pods that have the present template (status.updatedReplicas).
    updated: int
    #: What spec has of SETTINGS; None where the server leaves it out.
    settings: Json

    KIND: t.ClassVar[Kind]
    #: The fields of spec that say how the server's controller goes on, and those that an update changes for as long as it lasts.
    SETTINGS: t.ClassVar[tuple[str, ...]]
    PACED: t.ClassVar[tuple[str, ...]]

    @classmethod
    def fields_of(cls, item: Json) -> Json:
        """What an object that the API server shows has for the fields of this class."""
        return {**vars(Controller.from_api(item, cls.KIND)), "settings": {field: item["spec"].get(field) for field in cls.SETTINGS},
                "updated": (item.get("status") or {}).get("updatedReplicas", 0)}

    @property
    def rollout(self) -> marks.Rollout | None:
        """The record of the update in progress, as it is written there, or None: also where it is one of another kind."""
        record = marks.rollout(self.annotations)
        return record if record and self.may_have_paced(record) else None

    def may_have_paced(self, record: marks.Rollout) -> bool:
        """Return whether an update may have changed the settings as the record says: a limit of the history only from 0 to 1."""
        limits = record.original.get("revisionHistoryLimit", 0), record.paced.get("revisionHistoryLimit", 1)
        return record.paced.keys() <= set(self.PACED) and limits == (0, 1)

    @property
    def may_pause(self) -> bool:
        """Whether an update can end with some of its pods: it has any."""
        return self.replicas > 0

    @property
    def is_marked(self) -> bool:
        return self.rollout is not None

    @property
    def paused(self) -> int | None:
        return self.rollout.paused if self.rollout else None

    @property
    def desired(self) -> int | None:
        """Its size where its old pods come back, as that of a controller that grows again."""
        return self.replicas if self.rollout and self.rollout.is_back else 0


@dataclasses.dataclass(frozen=True)
class Deployment(SteppedByServer):
    """A Deployment, which has its pods by ReplicaSets that the server's own controller makes and sizes."""

    KIND = Kind.DEPLOYMENT
    SETTINGS = PACED = ("paused", "minReadySeconds", "progressDeadlineSeconds", "strategy", "revisionHistoryLimit")

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> Deployment:
        return cls(**cls.fields_of(item))

    @property
    def is_signed(self) -> bool:
        """Its settings are those of an update of ours: whoever may only annotate it cannot make that so."""
        return self.settings["minReadySeconds"] == NEVER or self.settings["progressDeadlineSeconds"] == IN_UPDATE


@dataclasses.dataclass(frozen=True)
class ByRevisions(SteppedByServer):
    """One whose templates the server keeps as ControllerRevisions, and whose pods it makes from these."""

    SETTINGS = ("minReadySeconds", "updateStrategy", "revisionHistoryLimit")
    PACED = ("updateStrategy", "revisionHistoryLimit")

    @property
    def is_replaced_by_server(self) -> bool:
        """Whether the server replaces pods of another template, and does not wait for somebody to delete them (OnDelete)."""
        return text(self.settings["updateStrategy"], "type") != "OnDelete"

    @property
    def numbers(self) -> Json:
        """How many pods may be replaced at a time, and which."""
        return mapping(self.settings["updateStrategy"], "rollingUpdate")


@dataclasses.dataclass(frozen=True)
class StatefulSet(ByRevisions):
    """A StatefulSet, whose pods have numbers, and keep their names and volumes when they are replaced.

    Its numbers are partition, and with the feature gate MaxUnavailableStatefulSet maxUnavailable.
    """

    #: The ControllerRevisions with the template of before the update in progress, and with the present one.
    current_revision: str
    update_revision: str
    #: Its volumeClaimTemplates.
    claims: tuple[Json, ...]
    #: The number of its first pod.
    start: int
    #: The server makes and replaces no pod while one with a lower number is not ready (podManagementPolicy OrderedReady).
    is_ordered: bool

    KIND = Kind.STATEFUL_SET

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> StatefulSet:
        status = item.get("status")
        return cls(**cls.fields_of(item), current_revision=text(status, "currentRevision"),
                   update_revision=text(status, "updateRevision"), claims=tuple(objects(item["spec"], "volumeClaimTemplates")),
                   start=number(mapping(item["spec"], "ordinals"), "start"),
                   is_ordered=text(item["spec"], "podManagementPolicy") != "Parallel")

    def may_have_paced(self, record: marks.Rollout) -> bool:
        strategies = [settings["updateStrategy"] for settings in (record.paced, record.original) if "updateStrategy" in settings]
        return (super().may_have_paced(record) and all(map(is_of_stateful_set, strategies))
                and all(text(each, "type") == "RollingUpdate" for each in strategies[:1]))

    @property
    def partition(self) -> int:
        """The pods that keep the template of before: those with the lowest numbers."""
        return number(self.numbers, "partition")

    def keeps_template_of(self, pod: str) -> bool:
        """Return whether the partition makes a new pod of that name from the template of before the update."""
        return self.is_replaced_by_server and number_of(pod) < self.start + self.partition


def number_of(pod: str) -> int:
    """Return the number in the name of a pod of a StatefulSet."""
    digits = pod.rpartition("-")[2]
    return int(digits) if digits.isdecimal() and len(digits) <= 10 else 0


@dataclasses.dataclass(frozen=True)
class DaemonSet(ByRevisions):
    """A DaemonSet, which has one pod on each node that takes it: its size is the number of these nodes.

    Its numbers are maxSurge and maxUnavailable, of which one is 0.
    """

    #: Nodes that have a pod and should have none, by their taints now.
    misplaced: int

    KIND = Kind.DAEMON_SET

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DaemonSet:
        status = item.get("status")
        counts = {field: number(status, name) for field, name in (
            ("replicas", "desiredNumberScheduled"), ("current", "currentNumberScheduled"), ("ready", "numberReady"),
            ("available", "numberAvailable"), ("updated", "updatedNumberScheduled"), ("misplaced", "numberMisscheduled"))}
        return cls(**cls.fields_of(item) | counts)

    @property
    def numbers(self) -> Json:
        return numbers_of_daemon_set(self.settings["updateStrategy"])

    @property
    def may_pause(self) -> bool:
        """Also where no node takes it for the moment: those that were there have its pods still, and others may come."""
        return True

    def may_have_paced(self, record: marks.Rollout) -> bool:
        strategies = [settings["updateStrategy"] for settings in (record.paced, record.original) if "updateStrategy" in settings]
        return super().may_have_paced(record) and all(map(is_of_daemon_set, strategies))


@dataclasses.dataclass(frozen=True)
class DeploymentConfig(Controller):
    """OpenShift's: each of its rollouts is a ReplicationController that it makes and, unless it is paused, sizes."""

    #: As the API server shows it.
    spec: Json
    #: The number of its newest rollout, which may not have begun; 0 before the first.
    latest: int

    #: What stands for a pod template that is not there.
    NONE: t.ClassVar[Json] = {"spec": {"containers": []}}

    @classmethod
    def from_api(cls, item: Json, kind: Kind | None = None) -> DeploymentConfig:
        spec = mapping(item, "spec")
        whole = {**item, "spec": {**spec, "template": mapping(spec, "template") if mapping(spec, "template", "spec") else cls.NONE}}
        return cls(**vars(Controller.from_api(whole, Kind.DEPLOYMENT_CONFIG)), spec=spec,
                   latest=number(item.get("status"), "latestVersion"))

    @property
    def is_paused(self) -> bool:
        return bool(self.spec.get("paused"))

    @property
    def is_held(self) -> bool:
        """It was paused by its migration."""
        return self.is_paused and marks.is_held(self.annotations)

    def number_of(self, controller: Controller) -> int:
        """Which of its rollouts that is; 0 for none. Who may annotate a controller changes neither its name nor its owner."""
        number_ = controller.name.removeprefix(f"{self.name}-")
        is_one = controller.owner_uid == self.uid and number_ != controller.name and number_.isdecimal() and len(number_) < 10
        return int(number_) if is_one and int(number_) <= self.latest else 0


#: What has more to tell than its pods.
_CLASSES: dict[Kind, type[Controller]] = {
    Kind.DEPLOYMENT: Deployment, Kind.DEPLOYMENT_CONFIG: DeploymentConfig, Kind.STATEFUL_SET: StatefulSet,
    Kind.DAEMON_SET: DaemonSet}


def parse(kind: Kind, item: Json) -> Controller:
    """An object of that kind as the API server shows it."""
    return _CLASSES.get(kind, Controller).from_api(item, kind)

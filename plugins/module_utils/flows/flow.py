# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface of a flow, by which the other packages work for every kind alike. Pure.

A flow is one way to update a controller, in a package of its own; choice.py picks the flow of a
request. A flow decides upon an observation of the cluster alone.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import typing as t

from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, Observed, Pod, TerminatingPod
from ..model.request import Request
from ..model.steps import Create, Decision, Done, Merge, Patch, Step, Write

#: Seconds between two lists of pods during a handover.
LOOK_AT_PODS_AGAIN = 0.5
Anything = t.TypeVar("Anything")
#: The class of a flow's observations.
ObservedT = t.TypeVar("ObservedT", bound=Observed)
#: API group, resource, verbs.
Rule: t.TypeAlias = "tuple[str, str, tuple[str, ...]]"


def every_verb(kind: Kind) -> Rule:
    """Return the permissions to watch and write the controllers of a kind."""
    return (kind.group, kind.resource, ("get", "list", "watch", "create", "patch", "delete"))


class Cluster(t.Protocol):
    """The part of a Gateway that a flow observes."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind in the namespace by name, as of the last event.

        kind: None for the kind that the user names. A kind that is not watched has no controllers.
        """

    def look_up(self, name: str) -> None:
        """Read one controller of the user's kind again, to bring controllers() up to date."""

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind, from a request to the API server."""

    def config_object(self, kind: str, name: str) -> Json | None:
        """Return a ConfigMap or a Secret, from a request to the API server. Raises RolloutError."""

    def migrations(self) -> list[Json] | None:
        """Return the ControllerRevisions of migrations in progress; None without permission.

        Raises RolloutError.
        """

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the live pods of a selector, neither ended nor terminating, from a request."""

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods of a selector, but Failed and Succeeded, from a request."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the history of the controllers with these uids; None without permission."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return a controller's pods that are not ready, or were restarted, or terminate."""

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller's selector, from a request; None without permission.

        excluded_revision: the label of a ControllerRevision whose pods to leave out.
        """

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes that match a label selector. Raises RolloutError."""

    def has_change_times(self) -> bool:
        """Return whether managedFields have the time of the last change (since Kubernetes 1.25).

        Raises RolloutError.
        """

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Return the object as the API server would store it. Raises RolloutError if refused."""

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Start a request in the background if answers take long; else return None."""


class RealCluster(Cluster, t.Protocol):
    """The part of a RealGateway that a model is made from."""

    def items(self, kind: Kind | None = None) -> list[Json]:
        """Return the controllers as objects of the API."""


class Model(t.Protocol):
    """A simulated cluster for check mode; by default, without pods, history and nodes."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind by name; None for the kind that the user names."""

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind."""
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the live pods of a selector, neither ended nor terminating."""
        return ()

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods of a selector."""
        return ()

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return ControllerRevisions, at least of the controllers with these uids."""
        return None

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return a controller's pods that are not ready, as far as a flow depends on them."""
        return []

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller, as far as a flow depends on them."""
        return None

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes that match a label selector."""
        return frozenset()

    def has_change_times(self) -> bool:
        """Return whether managedFields have the time of the last change."""
        return True

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Return None: no answer takes long."""
        return None

    def write(self, write: Write) -> bool:
        """Carry out a write; return False if a precondition does not hold."""

    def settle(self) -> bool:
        """Let the controllers converge, so that every pod becomes ready, for instance.

        Return whether that has changed an object.
        """


@dataclasses.dataclass
class Memory:
    """The cache of a run between two observations, which saves requests to the cluster.

    A rerun without the cache decides the same, or asks the user for the settings, the size and the
    successor of the update; docs/how-it-works.md compares run and rerun, field by field.
    """

    #: The present time in RFC 3339, and the user who runs the task: for records.
    now: str = ""
    who: str = ""
    #: The present time in seconds of a monotonic clock.
    seconds: float = 0.0
    #: Seconds since 1970 by the API server's clock, to compare with times in objects.
    server_time: float = 0.0
    #: Whether preflight has passed, and the lease is held: the first write may come.
    has_begun: bool = False
    #: HorizontalPodAutoscalers and PodDisruptionBudgets of the namespace; None before the lookup.
    autoscalers: t.Sequence[Json] | None = None
    budgets: t.Sequence[Json] | None = None
    #: The last observation, and the last step.
    observed: Observed = Observed(None, None)
    step: Step | None = None
    #: The desired template as the API server would store it, with a key of the template it changes.
    desired: tuple[str, Json] | None = None
    #: Whether admission makes the present template of the desired one, with a key.
    confirmed: tuple[str, bool] | None = None
    #: The ControllerRevisions of the history; None if they have to be listed (again).
    revisions: list[Json] | None = None
    #: Whether the history is written; an update without permission continues.
    keeps_history: bool = True
    #: The next time (`seconds`) for a list of the pods, whatever the watch reports.
    look_at_pods_from: float = 0.0
    #: The warnings in the task's result.
    warnings: list[str] = dataclasses.field(default_factory=list)
    #: Caches that one flow alone reads.
    _caches: object = None

    def caches(self, caches_type: type[Anything]) -> Anything:
        """Return the caches of the flow, empty at first."""
        if not isinstance(self._caches, caches_type):
            self._caches = caches_type()
        return self._caches

    def note_handover(self, seconds: float, is_complete: bool) -> None:
        """Note the time of a handover of pods; list the pods at once if some remain."""
        self.look_at_pods_from = seconds + (LOOK_AT_PODS_AGAIN if is_complete else 0)


@dataclasses.dataclass(frozen=True)
class Side:
    """The old or the new pods of an update, in numbers."""

    name: str
    uid: str
    replicas: int
    available: int
    images: t.Mapping[str, str]

    @classmethod
    def of(cls, controller: Controller) -> Side:
        return cls(controller.name, controller.uid, controller.replicas, controller.available,
                   controller.images)


class Holder(t.NamedTuple):
    """A controller with pods, and the labels that distinguish new pods from old ones.

    New pods have the template of the update in progress, also during a rollback. Without an update,
    all pods are new. Module, info and analysis all rely on is_new().
    """

    controller: Controller
    #: {} if all pods are new, None if all are old. A value is "" without permission to read the
    #: ControllerRevisions.
    new_labels: Json | None

    def is_new(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        """Return whether a pod of this controller with these labels is new."""
        return self.new_labels is not None and self.new_labels.items() <= pod_labels.items()

    @property
    def is_known(self) -> bool:
        """Whether the labels distinguish new pods from old ones."""
        return self.new_labels is None or all(self.new_labels.values())


@dataclasses.dataclass(frozen=True)
class RolloutStatus:
    """The status of a rollout, for report, deadlines and diagnosis. Sizes are in replicas."""

    #: The user's controller, or else its successor; None without either.
    survivor: Controller | None
    #: complete (no update is in progress), progressing, paused, or taking_over.
    phase: str = "complete"
    #: forward or back; None if complete.
    direction: str | None = None
    #: The old pods, by the user's controller, and the new pods, by their controller; None without.
    old: Side | None = None
    new: Side | None = None
    #: The size at the end of the update.
    goal: int | None = None
    #: How many pods may exist beyond the goal, and how many may be missing.
    surge: int = 0
    unavailable: int = 0
    #: The time when the update in progress began or was reversed, in RFC 3339.
    since: str | None = None
    #: The images of the user's pods before the update and now, and the present pod template.
    before: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: Json | None = None
    #: The number of new pods at a pause.
    paused: int | None = None
    #: The controller that gains pods.
    grows: Controller | None = None
    #: The controllers that lose pods.
    shrinks: tuple[Controller, ...] = ()
    #: The controllers with pods.
    holders: tuple[Holder, ...] = ()
    #: A number that grows with each pod of progress; not meaningful unless is_observed.
    progress: int = 0
    #: Whether a rollback is no longer possible.
    is_past_return: bool = False
    #: Commands and hints by line, for pods that never become available then.
    way_out: tuple[str, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Whether the numbers are about the state after the last write."""
        controllers = filter(None, (self.survivor, self.grows))
        return all(controller.is_observed for controller in controllers)


class Flow(t.Protocol[ObservedT]):
    """One way to update a controller, chosen in choice.py alone."""

    #: The kinds to watch; the first is the kind that the user names.
    watches: tuple[Kind, ...]
    #: Whether the flow makes pods, so that quotas and budgets matter.
    makes_pods: bool = True
    #: Whether a HorizontalPodAutoscaler can scale the controller that the user names.
    is_scalable: bool = True
    #: Whether the new pods get a controller of their own, which no manifest describes.
    creates_successor: bool = False
    #: Whether each node runs one pod.
    has_pod_per_node: bool = False
    #: Whether a migration may create, change or delete controllers of the kind that the user names.
    takes_part_in_migrations: bool = True
    #: Names in a ResourceQuota for the controller of the new pods.
    quota_names: tuple[str, ...] = ("count/replicasets.apps",)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        """Return the required permissions, checked before the first write."""

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        """Return the optional permissions."""
        return ()

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        """Continue without the optional permissions; warn if that loses anything."""
        return

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        """Return the request with the template that to_revision names. Raises RolloutError."""
        return request

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> ObservedT:
        """Return an observation without a request to the cluster.

        revisions: the ControllerRevisions for the history, if they have been read.
        """

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        """Return the template for new pods; None without a controller that is to be changed.

        Raises RolloutError.
        """
        return None

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ObservedT:
        """Return an observation that plan() can decide upon. Raises RolloutError."""

    def plan(self, request: Request, observed: ObservedT) -> Decision:
        """Return the next step, a wait or the end. Raises RolloutError for rows that are errors."""

    def carrier(self, observed: ObservedT) -> Controller | None:
        """Return the controller with the template of the new pods; None before there is one."""
        return observed.primary

    def is_soak_due(self, observed: ObservedT, decision: Decision) -> bool:
        """Return whether all requested new pods exist, before a pause or a step hard to undo."""
        if not isinstance(decision, Step):
            return isinstance(decision, Done) and observed.in_progress
        primary = observed.primary
        return decision.is_last and primary is not None and decision.name == primary.name

    def status(self, request: Request, observed: ObservedT) -> RolloutStatus:
        """Return the status of the rollout."""

    def model(self, real: RealCluster) -> Model:
        """Return a simulated cluster with the objects of the real one."""

    def commands(self, request: Request, observed: ObservedT) -> tuple[str | None, str | None]:
        """Return the commands that resume and roll back an update in progress; None for neither."""
        return None, None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """Return the warnings before the first write."""
        return []

    def deleted_controller_labels(self, request: Request, cluster: Cluster) -> t.Mapping[str, Json]:
        """Return the labels by name of controllers that an update in progress may have deleted."""
        return {}

    def handover_source(self, request: Request, observed: ObservedT) -> Controller | None:
        """Return the controller whose pods will be reparented; preflight tries a dry run."""
        return None

    def lookup_names(self, observed: ObservedT) -> tuple[str, ...]:
        """Return the names of the controllers to read again after a refused write, in order."""
        return ()

    def note(self, write: Write, memory: Memory) -> None:
        """Update the cache after a write."""
        return

    def halt_step(self, observed: ObservedT) -> Step | None:
        """Return the step that stops the creation of new pods, so that the same task can resume.

        None if only a rollback stops the creation.
        """
        return None

    def server_steps(self, before: ObservedT, now: ObservedT) -> tuple[Step, ...]:
        """Return the steps of the server's own controllers between two observations."""
        return ()

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface of a flow, through which the other packages work with every kind.

A flow is one way to update a controller, and a package under flows/. choice.py chooses the flow of
a request. A flow decides from an observation of the cluster alone.
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
POD_LIST_INTERVAL = 0.5
Anything = t.TypeVar("Anything")
#: The class of a flow's observations.
ObservedT = t.TypeVar("ObservedT", bound=Observed)
#: A rule of a Role: API group, resource, verbs.
Rule: t.TypeAlias = "tuple[str, str, tuple[str, ...]]"


def full_access(kind: Kind) -> Rule:
    """Return the rule with all verbs that a task may need for the controllers of a kind."""
    return (kind.group, kind.resource, ("get", "list", "watch", "create", "patch", "delete"))


class Cluster(t.Protocol):
    """The part of the Gateway through which a flow reads the cluster."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind by name, as of the last event of the watch.

        None stands for the kind that the user names.
        """

    def look_up(self, name: str) -> None:
        """Read a controller of the user's kind from the API server; controllers() then has it."""

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind, read from the API server; None if it does not exist."""

    def config_object(self, kind: str, name: str) -> Json | None:
        """Return a ConfigMap or a Secret, from a request to the API server. Raises RolloutError."""

    def migrations(self) -> list[Json] | None:
        """Return the ControllerRevisions of migrations in progress; None if not permitted.

        Raises RolloutError.
        """

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the pods that are neither ended nor terminating, read from the API server.

        A pod in the phase Succeeded or Failed has ended; one with a deletionTimestamp terminates.
        """

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods that have not ended, read from the API server."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the ControllerRevisions of these controllers; None if not permitted."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return the pods of a controller that are unready, restarted or terminating."""

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller, read from the API server; None if not permitted.

        Leaves out pods whose ControllerRevision label is excluded_revision.
        """

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes that match a label selector. Raises RolloutError."""

    def has_change_times(self) -> bool:
        """Return whether the API server writes times to managedFields (since Kubernetes 1.25).

        Raises RolloutError.
        """

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Return the object as the API server would store it. Raises RolloutError if refused."""

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Start a request in the background on a slow connection; otherwise return None."""


class RealCluster(Cluster, t.Protocol):
    """The part of the RealGateway from which a simulated cluster is built."""

    def items(self, kind: Kind | None = None) -> list[Json]:
        """Return the controllers as objects of the API."""


class Model(t.Protocol):
    """The simulated cluster of check mode. Without an override, it has no pods, history or nodes.
    """

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
        """Return the unready pods of a controller; [] unless the flow reads them in check mode."""
        return []

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller; None unless the flow reads them in check mode."""
        return None

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes that match a label selector."""
        return frozenset()

    def has_change_times(self) -> bool:
        """Return whether managedFields have the time of the last change."""
        return True

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Return None: no request is slow."""
        return None

    def write(self, write: Write) -> bool:
        """Apply a write; return False if a precondition fails."""

    def settle(self) -> bool:
        """Run the controllers until the cluster is stable; return whether anything has changed."""


@dataclasses.dataclass
class Memory:
    """The cache of a run, which saves requests to the API server.

    A task that resumes an update starts with an empty cache. Its decisions are the same, or it
    fails with an error that asks the user for the settings, the size or the successor of the
    update. docs/internals/design.md compares a run with and without the cache, field by field.
    """

    #: The current time in RFC 3339, for records.
    now: str = ""
    #: The user who runs the task, for records.
    who: str = ""
    #: The current time in seconds of the monotonic clock.
    seconds: float = 0.0
    #: The current time of the API server, in seconds since 1970.
    server_time: float = 0.0
    #: Whether the preflight checks have passed and the Lease is acquired.
    has_begun: bool = False
    #: The HorizontalPodAutoscalers of the namespace; None before they are read.
    autoscalers: t.Sequence[Json] | None = None
    #: The PodDisruptionBudgets of the namespace; None before they are read.
    budgets: t.Sequence[Json] | None = None
    #: The last observation.
    observed: Observed = Observed(None, None)
    #: A cache key, and the desired template as the API server would store it.
    desired: tuple[str, Json] | None = None
    #: A cache key, and whether a dry run with the desired template yields the current template.
    confirmed: tuple[str, bool] | None = None
    #: The ControllerRevisions of the history; None if they have to be listed.
    revisions: list[Json] | None = None
    #: Whether the update stores its history; False if not permitted.
    keeps_history: bool = True
    #: The time of the next list of pods, by the same clock as `seconds`.
    next_pod_list: float = 0.0
    #: The warnings in the task's result.
    warnings: list[str] = dataclasses.field(default_factory=list)
    #: The caches of a single flow.
    _caches: object = None

    def caches(self, caches_type: type[Anything]) -> Anything:
        """Return the caches of the flow, an instance of the type, which the first call creates."""
        if not isinstance(self._caches, caches_type):
            self._caches = caches_type()
        return self._caches

    def note_handover(self, seconds: float, is_complete: bool) -> None:
        """Set the time of the next list of pods: immediately if some pods were not reparented."""
        self.next_pod_list = seconds + (POD_LIST_INTERVAL if is_complete else 0)


@dataclasses.dataclass(frozen=True)
class Side:
    """The old or the new pods of an update: their controller, numbers and images."""

    name: str
    uid: str
    replicas: int
    available: int
    images: t.Mapping[str, str]

    @classmethod
    def of(cls, controller: Controller) -> Side:
        return cls(controller.name, controller.uid, controller.replicas, controller.available,
                   controller.images)


def own_live_pods(cluster: Cluster, controller: Controller) -> list[Pod]:
    """Return the live pods of a controller, read from the API server. Raises RolloutError."""
    return [pod for pod in cluster.live_pods(controller.selector) if pod.owner == controller.uid]


class Holder(t.NamedTuple):
    """A controller with pods, and the labels that distinguish new pods from old pods.

    New pods have the template of the update in progress, also during a rollback. Without an update
    in progress, all pods are new.
    """

    controller: Controller
    #: The labels of the new pods, such as {"controller-revision-hash": "foo-7d9c"}; {} if all pods
    #: are new, None if all pods are old. The value of a label is "" without permission to read the
    #: ControllerRevisions.
    new_labels: Json | None

    def is_new(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        """Return whether a pod of this controller with these labels is new."""
        return self.new_labels is not None and self.new_labels.items() <= pod_labels.items()

    @property
    def has_known_labels(self) -> bool:
        """Whether is_new() can tell new pods from old pods."""
        return self.new_labels is None or all(self.new_labels.values())


@dataclasses.dataclass(frozen=True)
class RolloutStatus:
    """The status of a rollout, for the report, the deadlines and the diagnosis."""

    #: The primary, or the successor after the deletion of the primary; None if neither exists.
    survivor: Controller | None
    #: complete (no update is in progress), progressing, paused, or taking_over.
    phase: str = "complete"
    #: forward or back; None if complete.
    direction: str | None = None
    #: The old pods, or None.
    old: Side | None = None
    #: The new pods, or None.
    new: Side | None = None
    #: The replicas at the end of the update.
    goal: int | None = None
    #: The number of pods that may exist beyond the goal.
    surge: int = 0
    #: The number of pods that may be unavailable.
    unavailable: int = 0
    #: The time when the update in progress began or was reversed, in RFC 3339.
    since: str | None = None
    #: The images before the update, by container.
    before: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The current images, by container.
    after: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The current pod template.
    template: Json | None = None
    #: The number of new pods at a pause.
    paused: int | None = None
    #: The controller that gains pods.
    grows: Controller | None = None
    #: The controllers that lose pods.
    shrinks: tuple[Controller, ...] = ()
    #: The controllers with pods.
    holders: tuple[Holder, ...] = ()
    #: A number that increases with each replaced pod; valid only if is_observed.
    progress: int = 0
    #: Whether a rollback is no longer possible.
    is_irreversible: bool = False
    #: Commands and hints in place of a rollback, if pods do not become available.
    way_out: tuple[str, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Whether the numbers are valid after the last write."""
        controllers = filter(None, (self.survivor, self.grows))
        return all(controller.is_observed for controller in controllers)


class Flow(t.Protocol[ObservedT]):
    """One way to update a controller."""

    #: The kinds to watch; the first is the kind that the user names.
    watches: tuple[Kind, ...]
    #: Whether the update creates pods, so that quotas and budgets apply.
    makes_pods: bool = True
    #: Whether a HorizontalPodAutoscaler can scale the controller that the user names.
    is_scalable: bool = True
    #: Whether the update creates a successor, a controller without a manifest of the user.
    creates_successor: bool = False
    #: Whether each node runs one pod.
    has_pod_per_node: bool = False
    #: Whether a migration may create, change or delete controllers of the kind that the user names.
    takes_part_in_migrations: bool = True
    #: Names in a ResourceQuota for the controller of the new pods.
    quota_names: tuple[str, ...] = ("count/replicasets.apps",)

    def needs(self, request: Request) -> tuple[Rule, ...]:
        """Return the required permissions."""

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        """Return the optional permissions."""
        return ()

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        """Disable the features that need the optional permissions, and add a warning."""
        return

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        """Return the request with the template of the revision that the option to_revision names.

        Raises RolloutError.
        """
        return request

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> ObservedT:
        """Return an observation from the watch alone, without requests.

        revisions: the ControllerRevisions of the history if the caller has read them, else None.
        """

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        """Return the template for new pods; None if the request needs no new template.

        Raises RolloutError.
        """
        return None

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ObservedT:
        """Return an observation for plan(), with all requests that it needs. Raises RolloutError.
        """

    def plan(self, request: Request, observed: ObservedT) -> Decision:
        """Return the next step, a wait, or the end of the task. Raises RolloutError."""

    def controller_of_new_pods(self, observed: ObservedT) -> Controller | None:
        """Return the controller with the template of the new pods; None before its creation."""
        return observed.primary

    def is_soak_due(self, observed: ObservedT, decision: Decision) -> bool:
        """Return whether the new pods must pass a soak before the decision is applied.

        A soak precedes a pause, and a step that no rollback can undo.
        """
        if not isinstance(decision, Step):
            return isinstance(decision, Done) and observed.in_progress
        primary = observed.primary
        return decision.is_last and primary is not None and decision.name == primary.name

    def status(self, request: Request, observed: ObservedT) -> RolloutStatus:
        """Return the status of the rollout."""

    def model(self, real: RealCluster) -> Model:
        """Return a simulated cluster with the objects of the real cluster."""

    def commands(self, request: Request, observed: ObservedT) -> tuple[str | None, str | None]:
        """Return the command that resumes the update in progress, and the one that rolls it back.

        A command is None if it does not apply.
        """
        return None, None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """Return the warnings before the first write."""
        return []

    def deleted_controller_labels(self, request: Request, cluster: Cluster) -> t.Mapping[str, Json]:
        """Return the labels of controllers that an update in progress has deleted, by name."""
        return {}

    def handover_source(self, request: Request, observed: ObservedT) -> Controller | None:
        """Return the controller whose pods the update will reparent, or None.

        Before the update, a dry run on one of these pods checks that reparenting is allowed.
        """
        return None

    def lookup_names(self, observed: ObservedT) -> tuple[str, ...]:
        """Return the names of the controllers to read again after a rejected write, in order."""
        return ()

    def note(self, step: Step, memory: Memory) -> None:
        """Update the caches after a step."""
        return

    def halt_step(self, observed: ObservedT) -> Step | None:
        """Return the step after which the controller manager creates no more of the failing pods.

        Returns None if only a rollback achieves that.
        """
        return None

    def server_steps(self, before: ObservedT, now: ObservedT) -> tuple[Step, ...]:
        """Return the steps of the controller manager between two observations."""
        return ()

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface of a flow: a way to update a controller, for example a StatefulSet.

Each flow is a package under flows/, and choice.py chooses the flow for a request. A flow decides
only from observations of the cluster.
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

#: Minimum seconds between two requests to list the pods during a handover.
POD_LIST_INTERVAL = 0.5
Anything = t.TypeVar("Anything")
ObservedT = t.TypeVar("ObservedT", bound=Observed)
#: A rule of a Role: API group, resource, verbs.
Rule: t.TypeAlias = "tuple[str, str, tuple[str, ...]]"


def full_access(kind: Kind) -> Rule:
    """Return the rule with all verbs that a task can need for the controllers of a kind."""
    return (kind.group, kind.resource, ("get", "list", "watch", "create", "patch", "delete"))


class Cluster(t.Protocol):
    """The methods of the Gateway with which a flow reads the cluster.

    Only controllers() and troubled_pods() return data of a watch.
    """

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind (None: the kind named by the user) by name."""

    def look_up(self, name: str) -> None:
        """Read a controller from the API server, so that controllers() returns its present state.

        The controller is of the kind named by the user.
        """

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind; None if missing."""

    def config_object(self, kind: str, name: str) -> Json | None:
        """Return a ConfigMap or a Secret; None if missing. Raises RolloutError."""

    def migrations(self) -> list[Json] | None:
        """Return the ControllerRevisions that store migrations in progress; None if not permitted.

        Raises RolloutError.
        """

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the live pods matching a selector.

        Ended pods (with the phase Succeeded or Failed) and terminating pods (with a
        deletionTimestamp) are not live.
        """

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods matching a selector, except ended pods."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the ControllerRevisions of the controllers in `uids`; None if not permitted."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return the unready, restarted and terminating pods of a controller."""

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller; None if not permitted.

        Leaves out the pods with the value excluded_revision in the label controller-revision-hash.
        """

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes matching a label selector. Raises RolloutError."""

    def has_change_times(self) -> bool:
        """Return whether managedFields have the times of the last changes (Kubernetes 1.25).

        Raises RolloutError.
        """

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Return the object as the API server would store it. Raises RolloutError if refused."""

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Call `work`, which sends a request, in the background if the connection is slow.

        On a fast connection, returns None, and does not call `work`.
        """


class RealCluster(Cluster, t.Protocol):
    """The methods of the RealGateway with which a flow builds a simulated cluster."""

    def items(self, kind: Kind | None = None) -> list[Json]:
        """Return the controllers of a kind as objects of the API."""


class Model(t.Protocol):
    """The simulated cluster of check mode, by default without pods, history and nodes."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind (None: the kind named by the user) by name."""

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind; None if missing."""
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the live pods matching a selector."""
        return ()

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods matching a selector."""
        return ()

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return ControllerRevisions, at least those of `uids`."""
        return None

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return the unready pods of a controller; [] unless the flow reads them in check mode."""
        return []

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return all pods of a controller; None unless the flow reads them in check mode."""
        return None

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the nodes matching a label selector."""
        return frozenset()

    def has_change_times(self) -> bool:
        """Return whether managedFields have the times of the last changes."""
        return True

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Return None, since requests to a simulated cluster are never slow."""
        return None

    def write(self, write: Write) -> bool:
        """Apply a write; return False if a precondition fails."""

    def settle(self) -> bool:
        """Act as the controller manager until nothing changes; return whether anything changed."""


@dataclasses.dataclass
class Memory:
    """The facts that a run keeps between observations, to save requests to the API server.

    A task that resumes an update starts with an empty Memory. The task takes the same decisions as
    the earlier task, or fails with an error that asks for the missing facts (see
    docs/internals/design.md).
    """

    #: The current time, in RFC 3339.
    now: str = ""
    #: The user who runs the task.
    who: str = ""
    #: The current time in seconds, by the monotonic clock.
    seconds: float = 0.0
    #: The current time of the API server, in seconds since 1970.
    server_time: float = 0.0
    #: Whether the preflight checks have passed and the Lease is acquired.
    has_begun: bool = False
    #: The HorizontalPodAutoscalers of the namespace; None before they are read.
    autoscalers: t.Sequence[Json] | None = None
    #: The PodDisruptionBudgets of the namespace; None before they are read.
    budgets: t.Sequence[Json] | None = None
    observed: Observed = Observed(None, None)
    #: (cache key, desired template in the form stored by the API server).
    desired: tuple[str, Json] | None = None
    #: (cache key, result of provenance.is_confirmed()).
    confirmed: tuple[str, bool] | None = None
    #: The ControllerRevisions of the history; None if they must be listed before their next use.
    revisions: list[Json] | None = None
    #: Whether the task has the permissions for the history.
    keeps_history: bool = True
    #: The earliest time to list the pods again, by the same clock as `seconds`.
    next_pod_list: float = 0.0
    warnings: list[str] = dataclasses.field(default_factory=list)
    #: Additional caches, of a class defined by the flow; None before the first use.
    _caches: object = None

    def caches(self, caches_type: type[Anything]) -> Anything:
        """Return the caches of the flow. The first call creates them."""
        if not isinstance(self._caches, caches_type):
            self._caches = caches_type()
        return self._caches

    def note_handover(self, seconds: float, is_complete: bool) -> None:
        """Delay the next list of pods after a handover step.

        seconds: the time of the step, by the monotonic clock. is_complete: whether all pods were
        reparented; if not, they can be listed again at once.
        """
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
    """Return the live pods of a controller. Raises RolloutError."""
    return [pod for pod in cluster.live_pods(controller.selector) if pod.owner == controller.uid]


class Holder(t.NamedTuple):
    """A controller with pods, and the labels that distinguish new pods from old pods.

    New pods have the template that the update in progress introduces. They are still called new
    while the update is rolled back. Without an update in progress, all pods are new.
    """

    controller: Controller
    #: The labels of the new pods, for example {"controller-revision-hash": "foo-7d9c"}. {} if all
    #: pods of the controller are new, None if all are old. If the task may not read the
    #: ControllerRevisions, the value of the label is "".
    new_labels: Json | None

    def is_new(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        """Return whether a pod of this controller is new."""
        return self.new_labels is not None and self.new_labels.items() <= pod_labels.items()

    @property
    def has_known_labels(self) -> bool:
        """Whether is_new() is reliable."""
        return self.new_labels is None or all(self.new_labels.values())


@dataclasses.dataclass(frozen=True)
class RolloutStatus:
    """The status of a rollout, for the report, the deadlines and the diagnosis."""

    #: The primary or, if the primary was deleted, the successor; None if neither exists.
    survivor: Controller | None
    #: complete (no update is in progress), progressing, paused, or taking_over.
    phase: str = "complete"
    #: forward or back; None if complete.
    direction: str | None = None
    old: Side | None = None
    new: Side | None = None
    #: The replicas at the end of the update; None if the controller does not exist.
    goal: int | None = None
    #: The pods allowed beyond the goal.
    surge: int = 0
    #: The pods allowed to be unavailable.
    unavailable: int = 0
    #: When the update in progress began or was reversed, in RFC 3339.
    since: str | None = None
    #: The images before the update, by container.
    before: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The current images, by container.
    after: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: Json | None = None
    #: The number of new pods at which the update is paused, or None.
    paused: int | None = None
    #: The controller that gains pods, or None.
    grows: Controller | None = None
    #: The controllers that lose pods.
    shrinks: tuple[Controller, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: A number that each replaced pod increases; valid only if is_observed.
    progress: int = 0
    is_irreversible: bool = False
    #: Commands and hints for the error, as an alternative if pods do not become available.
    way_out: tuple[str, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Whether the controller manager has observed the last write, so the numbers are valid."""
        controllers = filter(None, (self.survivor, self.grows))
        return all(controller.is_observed for controller in controllers)


class Flow(t.Protocol[ObservedT]):
    """A way to update a controller."""

    #: The kinds to watch; the first is the kind named by the user.
    watches: tuple[Kind, ...]
    #: Whether the update creates pods, so quotas and budgets apply.
    makes_pods: bool = True
    #: Whether a HorizontalPodAutoscaler can scale the controller named by the user.
    is_scalable: bool = True
    #: Whether the update creates a successor: a controller without a manifest from the user.
    creates_successor: bool = False
    has_pod_per_node: bool = False
    #: Whether a migration may create, change or delete controllers of the kind named by the user.
    takes_part_in_migrations: bool = True
    #: The names under which a ResourceQuota counts the controller of the new pods.
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
        """Return the request with the template of the revision that to_revision names.

        Raises RolloutError.
        """
        return request

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> ObservedT:
        """Return an observation from the data of the watch, without requests.

        revisions: the ControllerRevisions of the history if the caller has read them, else None.
        """

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        """Return the template for new pods; None if the request needs no new template.

        Raises RolloutError.
        """
        return None

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ObservedT:
        """Return an observation for plan(), after all necessary requests. Raises RolloutError."""

    def plan(self, request: Request, observed: ObservedT) -> Decision:
        """Return the next step, a wait, or the end of the task. Raises RolloutError."""

    def controller_of_new_pods(self, observed: ObservedT) -> Controller | None:
        """Return the controller with the template of the new pods; None before its creation."""
        return observed.primary

    def is_soak_due(self, observed: ObservedT, decision: Decision) -> bool:
        """Return whether the new pods must pass a soak before the decision is applied.

        A soak comes before a pause, and before an irreversible step. By default, it comes before
        the last step on the primary or, if the update is paused already, before the end of the
        task.
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
        """Return two commands for the update in progress: to resume it, and to roll it back.

        The first may be advice instead. None stands for a command that does not apply.
        """
        return None, None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """Return the warnings before the first write."""
        return []

    def deleted_controller_labels(self, request: Request, cluster: Cluster) -> t.Mapping[str, Json]:
        """Return the labels of the controllers deleted by an update in progress: {name: labels}."""
        return {}

    def handover_source(self, request: Request, observed: ObservedT) -> Controller | None:
        """Return the controller whose pods the update will reparent, or None.

        Before the update, a dry run on one of these pods checks if this is allowed.
        """
        return None

    def lookup_names(self, observed: ObservedT) -> tuple[str, ...]:
        """Return the names of the controllers to read again after a rejected write, in this order.

        The caller reads the controller named by the user after them.
        """
        return ()

    def note(self, step: Step, memory: Memory) -> None:
        """Update the caches after a step."""
        return

    def halt_step(self, observed: ObservedT) -> Step | None:
        """Return the step that stops the controller manager from creating more failing pods.

        Returns None if no step is necessary, or if only a rollback helps.
        """
        return None

    def server_steps(self, before: ObservedT, now: ObservedT) -> tuple[Step, ...]:
        """Return the actions of the controller manager between two observations, as steps."""
        return ()

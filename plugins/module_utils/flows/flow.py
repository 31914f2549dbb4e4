# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interface of a flow: a way to update a controller."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import typing as t

from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, Observed, Pod, TerminatingPod
from ..model.request import Request
from ..model.steps import Create, Decision, Done, Merge, Patch, Step, Write

#: Minimum seconds between two lists of pods during a handover.
POD_LIST_INTERVAL = 0.5
Anything = t.TypeVar("Anything")
ObservedT = t.TypeVar("ObservedT", bound=Observed)
#: A rule of a Role: API group, resource, verbs.
Rule: t.TypeAlias = "tuple[str, str, tuple[str, ...]]"


def full_access(kind: Kind) -> Rule:
    """Return the rule with all verbs that a flow uses for a kind."""
    return (kind.group, kind.resource, ("get", "list", "watch", "create", "patch", "delete"))


class Cluster(t.Protocol):
    """The methods of the Gateway for reading the cluster."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the watched controllers of a kind, by name.

        kind: by default, the kind named by the user.
        """

    def look_up(self, name: str) -> None:
        """Read a controller, and store the result for controllers()."""

    def find(self, kind: str, name: str) -> Json | None:
        """Return an object of any kind; None if missing."""

    def config_object(self, kind: str, name: str) -> Json | None:
        """Return a ConfigMap or Secret; None if missing. Raises RolloutError."""

    def migrations(self) -> list[Json] | None:
        """Return the ControllerRevisions of migrations; None if not permitted.

        Raises RolloutError.
        """

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """Return the pods matching a selector, except ended and terminating pods."""

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the terminating pods matching a selector, except ended pods."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """Return the ControllerRevisions of controllers; None if not permitted."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Return the unready, restarted and terminating pods of a controller."""

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        """Return the pods of a controller; None if not permitted.

        excluded_revision: a value of the label controller-revision-hash.
        """

    def nodes(self, selector: str) -> frozenset[str]:
        """Return the names of the matching nodes. Raises RolloutError."""

    def has_change_times(self) -> bool:
        """Return whether the server updates a time in managedFields at each change of a field.

        True for Kubernetes 1.25 and newer, and for an unknown version. Raises RolloutError.
        """

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """Send a dry run; return the object after admission. Raises RolloutError."""

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        """Call `work` in the background if the connection is slow, else return None."""


class RealCluster(Cluster, t.Protocol):
    """The methods of the Gateway for reading the cluster and building a Model."""

    def items(self, kind: Kind | None = None) -> list[Json]:
        """Return the controllers of a kind as API objects."""


class Model(t.Protocol):
    """The simulated cluster of check mode.

    By default, the methods return no pods, no history and no nodes.
    """

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """Return the controllers of a kind by name."""

    def find(self, kind: str, name: str) -> Json | None:
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return ()

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        return ()

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return None

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return []

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        return None

    def nodes(self, selector: str) -> frozenset[str]:
        return frozenset()

    def has_change_times(self) -> bool:
        return True

    def start_in_background(self, work: t.Callable[[], Anything],
                            ) -> concurrent.futures.Future[Anything] | None:
        return None

    def write(self, write: Write) -> bool:
        """Apply a write; return False if a precondition fails."""

    def settle(self) -> bool:
        """Act as the controller manager until nothing changes; return whether anything changed."""


@dataclasses.dataclass
class Memory:
    """The data of a run between observations (docs/internals/design.md)."""

    #: The current time, in RFC 3339.
    now: str = ""
    #: The user who runs the task.
    who: str = ""
    #: The current time, by the monotonic clock.
    monotonic_time: float = 0.0
    #: The current time of the API server, in seconds since 1970.
    server_time: float = 0.0
    #: Whether the preflight checks have passed and the Lease is acquired.
    has_begun: bool = False
    #: autoscalers, budgets: None before the first list, or if the task may not list these objects.
    autoscalers: t.Sequence[Json] | None = None
    budgets: t.Sequence[Json] | None = None
    observed: Observed = Observed(None, None)
    #: (cache key, desired template).
    desired_template_cache: tuple[str, Json] | None = None
    #: (cache key, result of provenance.is_confirmed()).
    confirmation_cache: tuple[str, bool] | None = None
    #: None if the ControllerRevisions must be listed again.
    revisions: list[Json] | None = None
    #: Whether the task has the permissions for the history.
    keeps_history: bool = True
    #: When the pods may be listed again, by the monotonic clock.
    next_pod_list: float = 0.0
    warnings: list[str] = dataclasses.field(default_factory=list)
    _caches: object = None

    def caches(self, caches_type: type[Anything]) -> Anything:
        """Return the caches of the flow."""
        if not isinstance(self._caches, caches_type):
            self._caches = caches_type()
        return self._caches

    def delay_next_pod_list(self, now: float, are_all_reparented: bool) -> None:
        """Delay the next list of pods if a handover step has reparented all pods.

        now: the current time by the monotonic clock.
        """
        self.next_pod_list = now + (POD_LIST_INTERVAL if are_all_reparented else 0)


@dataclasses.dataclass(frozen=True)
class Side:
    """The old or the new pods of an update."""

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
    return [pod for pod in cluster.live_pods(controller.selector)
            if pod.owner_uid == controller.uid]


class Holder(t.NamedTuple):
    """A controller with pods, and the labels that distinguish new pods from old pods.

    During a rollback, pods created by the update still count as new. Without an update, all
    pods count as new.
    """

    controller: Controller
    #: For example {"controller-revision-hash": "foo-7d9c"}. {} if all pods are new, None if all are
    #: old. A label's value is "" if unknown, for example without permission.
    new_labels: Json | None

    def is_new(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        return self.new_labels is not None and self.new_labels.items() <= pod_labels.items()

    @property
    def has_known_labels(self) -> bool:
        """Whether is_new() is reliable."""
        return self.new_labels is None or all(self.new_labels.values())


class OldPod(t.NamedTuple):
    """An old pod that is not ready, and that may block the update."""

    #: Whether the template of the pod is that from before the update.
    has_previous_template: bool
    #: Whether a replacement of the pod would have the template from before the update.
    keeps_previous_template: bool
    blocks_update: bool


@dataclasses.dataclass(frozen=True)
class RolloutStatus:
    """The status of a rollout."""

    #: The primary; after the primary's deletion, the successor.
    survivor: Controller | None
    #: complete (no update is in progress), progressing, paused, or taking_over.
    phase: str = "complete"
    #: forward or back; None if complete.
    direction: str | None = None
    old: Side | None = None
    new: Side | None = None
    #: The replicas at the end of the update.
    goal: int | None = None
    #: The maximum number of pods beyond the goal.
    surge: int = 0
    #: The maximum number of unavailable pods.
    unavailable: int = 0
    #: When the update in progress began or was reversed, in RFC 3339.
    since: str | None = None
    #: The images before the update, by container.
    before: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: The current images of the survivor, by container.
    after: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: Json | None = None
    #: The number of new pods at the pause; None without a pause.
    paused_at: int | None = None
    #: The controllers that gain (growing) and lose (shrinking) pods.
    growing: Controller | None = None
    shrinking: tuple[Controller, ...] = ()
    holders: tuple[Holder, ...] = ()
    #: The ReplicaSet whose outdated annotation blocks the rollout (see DeploymentObserved).
    outdated_replica_set: Controller | None = None
    #: The reason why the ReplicaSet of the new template cannot be created, or "".
    creation_failure: str = ""
    #: A number that increases with each replaced pod.
    progress: int = 0
    is_irreversible: bool = False
    #: Commands and hints to recover if pods do not become available.
    recovery_commands: tuple[str, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Whether the controller manager has observed the last write."""
        controllers = filter(None, (self.survivor, self.growing))
        return all(controller.is_observed for controller in controllers)

    def is_replaced(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        """Return whether the update or rollback in progress replaces a pod of `growing`.

        False if the pod's template is unknown, or if all pods of `growing` have the same template.
        """
        return any(holder.is_new(pod_labels) is (self.direction == "back")
                   for holder in self.holders
                   if self.growing and holder.controller.uid == self.growing.uid
                   and holder.new_labels and holder.has_known_labels)


class Flow(t.Protocol[ObservedT]):
    """A way to update a controller."""

    #: The kinds to watch; the first is the kind named by the user.
    watched_kinds: tuple[Kind, ...]
    #: Whether the update creates pods, so quotas and budgets apply.
    creates_pods: bool = True
    #: Whether a HorizontalPodAutoscaler can scale the controller named by the user.
    is_scalable: bool = True
    #: Whether the update creates a second controller.
    creates_successor: bool = False
    has_pod_per_node: bool = False
    #: Whether a migration may write to controllers of the kind named by the user.
    takes_part_in_migrations: bool = True
    #: The names in a ResourceQuota for the kind of the new pods' controller.
    quota_names: tuple[str, ...] = ("count/replicasets.apps",)

    def required_permissions(self, request: Request) -> tuple[Rule, ...]:
        """Return the required permissions."""

    def optional_permissions(self, request: Request) -> tuple[Rule, ...]:
        return ()

    def disable_optional_features(self, memory: Memory, why: str) -> None:
        """Disable the features that need optional permissions. A flow may add a warning."""
        return

    def resolve_revision(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        """Return the request with the template of to_revision. Raises RolloutError."""
        return request

    def find(self, request: Request, cluster: Cluster,
             revisions: t.Sequence[Json] | None = None) -> ObservedT:
        """Return an observation of the cached controllers. Only a migration sends requests."""

    def desired_template(self, request: Request, cluster: Cluster, memory: Memory) -> Json | None:
        """Return the template for new pods, or None. Raises RolloutError."""
        return None

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> ObservedT:
        """Return an observation for plan(). Raises RolloutError."""

    def plan(self, request: Request, observed: ObservedT) -> Decision:
        """Return the next decision. Raises RolloutError."""

    def controller_of_new_pods(self, observed: ObservedT) -> Controller | None:
        """Return the controller with the new template; None without a successor."""
        return observed.primary

    def is_soak_due(self, observed: ObservedT, decision: Decision) -> bool:
        """Return whether the new pods must pass a soak before the decision is applied."""
        if not isinstance(decision, Step):
            return isinstance(decision, Done) and observed.in_progress
        primary = observed.primary
        return decision.ends_task and primary is not None and decision.name == primary.name

    def status(self, request: Request, observed: ObservedT) -> RolloutStatus:
        """Return the status of the rollout."""

    def build_model(self, cluster: RealCluster) -> Model:
        """Return a simulated copy of the real cluster."""

    def commands(self, request: Request, observed: ObservedT) -> tuple[str | None, str | None]:
        """Return a command or hint to resume the update, and the rollback command."""
        return None, None

    def deletes_all_pods_first(self, primary: Controller) -> bool:
        """Return whether an update deletes all old pods before the creation of new pods."""
        return False

    def unready_old_pods(self, controller: Controller,
                         pods: t.Iterable[Json]) -> dict[str, OldPod]:
        """Return the old pods, by name, that the cluster may not replace until they are ready."""
        return {}

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """Return the warnings to add before the first write."""
        return []

    def labels_of_stored_controllers(self, request: Request,
                                     cluster: Cluster) -> t.Mapping[str, Json]:
        """Return the controller labels stored by migrations, by controller name.

        The labels remain after the deletion of the controller by the migration.
        """
        return {}

    def handover_source(self, request: Request, observed: ObservedT) -> Controller | None:
        """Return the source controller of the coming handover, or None."""
        return None

    def lookup_names(self, observed: ObservedT) -> tuple[str, ...]:
        """Return the names of the controllers to read again after a rejected write.

        The primary is always read again, after these controllers.
        """
        return ()

    def update_caches(self, step: Step, memory: Memory) -> None:
        """Update the caches after a step."""
        return

    def halt_step(self, observed: ObservedT) -> Step | None:
        """Return the step that stops the creation of more failing pods, or None."""
        return None

    def server_steps(self, before: ObservedT, now: ObservedT) -> tuple[Step, ...]:
        """Return the actions of the controller manager between two observations."""
        return ()


#: A flow, without the type of its observation: code for all flows gives a flow only observations
#: that this flow has made.
AnyFlow: t.TypeAlias = "Flow[t.Any]"

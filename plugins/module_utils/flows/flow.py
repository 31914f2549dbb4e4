# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The seam: what a way of rolling has to tell, so that nobody else asks which kind it is for. Pure.

A flow remembers nothing: what it decides upon is what it observes. choice.py picks the one for a request; each has a package.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import typing as t

from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import NONE_TERMINATING, Controller, Observed, Pod, Terminating, TerminatingPod
from ..model.request import Request
from ..model.steps import Create, Decision, Done, Merge, Patch, Step, Wait, Write

#: Seconds between two looks whose each pod is.
LOOK_AT_PODS_AGAIN = 0.5
Anything = t.TypeVar("Anything")
#: Seconds between two counts of terminating pods, at least, and for each hundred pods of the controller.
COUNT_TERMINATING_AGAIN = 0.5
#: API group, resource, verbs.
Rule: t.TypeAlias = "tuple[str, str, tuple[str, ...]]"


def every_verb(kind: Kind) -> Rule:
    """What it takes to follow the controllers of a kind, and to write them."""
    return (kind.group, kind.resource, ("get", "list", "watch", "create", "patch", "delete"))


class Cluster(t.Protocol):
    """What a flow looks at; part of a Gateway."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """The controllers of that kind in the namespace by name, as last heard of; None means the kind that the user names.

        There are none of a kind that is not followed.
        """

    def look_up(self, name: str) -> None:
        """Make sure what is known of one controller of the user's kind is no older than this call."""

    def find(self, kind: str, name: str) -> Json | None:
        """An object of any kind, as it is now."""

    def migrations(self) -> list[Json] | None:
        """The ControllerRevisions of migrations in progress; None where they may not be seen. Raises RolloutError."""

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """All pods with those labels that have neither ended nor are about to, as they are now."""

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the pods with those labels whose deletion has begun and whose phase is neither Failed nor Succeeded, as of now."""

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """The ControllerRevisions that keep what the controllers with these uids were; None where they may not be seen."""

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Those of a controller's pods that are not ready, or were restarted, or are about to go."""

    def all_pods(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        """Return all pods that match a controller's labels, whole, as they are now; None where they may not be seen.

        but_of: the label of a ControllerRevision whose pods are left out.
        """

    def nodes(self, selector: str) -> frozenset[str]:
        """The names of the nodes with these labels (a label selector). Raises RolloutError."""

    def tells_changes(self) -> bool:
        """Whether managedFields have the time of the last change of a field (since Kubernetes 1.25). Raises RolloutError."""

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        """The object as the API server would store it. Raises RolloutError where it refuses that."""

    def beside(self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        """Begin what the next step does not wait for, where answers take long; None where it had better be done in its turn."""


class RealCluster(Cluster, t.Protocol):
    """What a model is made from; part of a RealGateway."""

    def items(self, kind: Kind | None = None) -> list[Json]:
        """The same as controllers(), as the API server shows them."""


class Model(t.Protocol):
    """A cluster in memory that does what a real one would, for check mode. It has nothing of what it says nothing about."""

    def controllers(self, kind: Kind | None = None) -> t.Mapping[str, Controller]:
        """The controllers of that kind by name; None means the kind that the user names."""

    def find(self, kind: str, name: str) -> Json | None:
        """An object of any kind."""
        return None

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        """All pods with those labels that have neither ended nor are about to."""
        return ()

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        """Return the pods with those labels that terminate."""
        return ()

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        """ControllerRevisions, those of the controllers with these uids among them; None where they may not be seen."""
        return None

    def troubled_pods(self, controller: Controller) -> list[Json]:
        """Those of a controller's pods that are not ready, as far as a flow goes by them."""
        return []

    def all_pods(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        """Return all pods of a controller, as far as a flow depends on them."""
        return None

    def nodes(self, selector: str) -> frozenset[str]:
        """The names of the nodes with these labels."""
        return frozenset()

    def tells_changes(self) -> bool:
        """Whether the times in managedFields can be gone by."""
        return True

    def beside(self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        """Nothing takes any time."""
        return None

    def write(self, write: Write) -> bool:
        """Carry out a write; False when what it assumes does not hold."""

    def moves(self) -> t.Sequence[t.Any]:
        """Everything that may happen next; empty when the cluster has come to rest."""

    def settle(self) -> None:
        """Let everything happen that can, for instance every pod become ready."""


@dataclasses.dataclass
class Memory:
    """What a run keeps from one look to the next, to ask the cluster less often.

    It decides nothing that a rerun would not, but that a rerun may have to ask people for what this one has seen or done itself
    (size, made, settings).
    """

    #: The present time in RFC 3339, and who runs the task: only to be written down.
    now: str = ""
    who: str = ""
    #: The same time in seconds since some moment.
    seconds: float = 0.0
    #: Seconds since 1970 by the API server's clock, for a comparison with what the server has written.
    server_time: float = 0.0
    #: It is allowed, nobody else is at work, and the first write may come.
    has_begun: bool = False
    #: HorizontalPodAutoscalers and PodDisruptionBudgets of the namespace, as far as somebody has looked.
    autoscalers: t.Sequence[Json] | None = None
    budgets: t.Sequence[Json] | None = None
    #: What was seen last, and the step that was taken last.
    seen: Observed = Observed(None, None)
    step: Step | None = None
    #: The wanted template as the API server would store it, by what it was applied to.
    wanted: tuple[str, Json] | None = None
    #: The successor's template, in the same way, and the name of the one that this task has made.
    stored: tuple[str, Json] | None = None
    #: Whether it would make of the wanted template the present one, in the same way.
    confirmed: tuple[str, bool] | None = None
    made: str = ""
    #: The size at the beginning, as long as it could be seen: of a controller that somebody deletes meanwhile nothing else is left.
    size: int | None = None
    #: SteppedByServer.settings before any update, where this run has seen them: restored whatever is believed of a record.
    settings: Json | None = None
    #: The names of the nodes whose pods are first, once they have been looked up.
    nodes: frozenset[str] | None = None
    #: The ControllerRevisions of the history, or None where they have to be looked up (again).
    revisions: list[Json] | None = None
    #: Whether the history is kept: it goes on without where that is not possible.
    keeps_history: bool = True
    #: The pods of a DaemonSet that its status wrongly counts as new, and the resourceVersion of the DaemonSet then.
    miscounted: tuple[str, tuple[t.Any, ...]] = ("", ())
    #: When pods are to be looked at again whatever is heard of them, and whether the successor of a handover was looked up.
    look_at_pods_from: float = 0.0
    is_successor_looked_up: bool = False
    #: The last count of terminating pods that held up a step, and when they may be counted again.
    terminating: Terminating = NONE_TERMINATING
    count_terminating_from: float = 0.0
    #: The first list of them, begun beside the step before it.
    pods_begun: concurrent.futures.Future[tuple[Pod, ...]] | None = None
    #: Told at the end of the task.
    warnings: list[str] = dataclasses.field(default_factory=list)

    def handed_over(self, seconds: float, is_whole: bool) -> None:
        """Pods have been handed over at that time; where some were not, they are looked at again at once."""
        self.look_at_pods_from = seconds + (LOOK_AT_PODS_AGAIN if is_whole else 0)


@dataclasses.dataclass(frozen=True)
class Side:
    """The old or the new pods of an update, in numbers."""

    name: str
    uid: str
    replicas: int
    available: int
    images: t.Mapping[str, str]

    @classmethod
    def of(cls, it: Controller) -> Side:
        return cls(it.name, it.uid, it.replicas, it.available, it.images)


class Holder(t.NamedTuple):
    """A controller that has pods, and the labels that tell its new pods from its old ones.

    New pods have the template that the update in progress rolls out, also while that update is rolled back. Without an update in
    progress, all pods are new. Module, info and analysis ask is_new(), and nothing else decides.
    """

    controller: Controller
    #: {} where all of its pods are new, None where none is. A value of "" is not known: its revisions may not be read.
    new_labels: Json | None

    def is_new(self, pod_labels: t.Mapping[str, t.Any]) -> bool:
        """Return whether a pod of this controller with these labels is a new one."""
        return self.new_labels is not None and self.new_labels.items() <= pod_labels.items()

    @property
    def is_known(self) -> bool:
        """Whether the new pods can be told from the old ones."""
        return self.new_labels is None or all(self.new_labels.values())


@dataclasses.dataclass(frozen=True)
class Standing:
    """Where a rollout stands: what report, patience and diagnosis read. Sizes are in replicas."""

    #: The user's controller, or the one that has taken its place; None where there is neither.
    survivor: Controller | None
    #: complete (no update is in progress), progressing, paused, or taking_over.
    phase: str = "complete"
    #: forward or back; None when it is complete.
    direction: str | None = None
    #: What the user's controller has beside the new pods, and what carries those; None where there is no such thing.
    old: Side | None = None
    new: Side | None = None
    #: The size that the update has to reach.
    goal: int | None = None
    #: How many pods there may be beyond the goal, and how many of it may be missing.
    surge: int = 0
    unavailable: int = 0
    #: When the update in progress began or turned round, in RFC 3339.
    since: str | None = None
    #: Images of the user's pods before the update and now, and the pod template now.
    before: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    after: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: Json | None = None
    #: With how many new pods it is paused, and what has these and the others then.
    paused: int | None = None
    #: The controller whose pods are waited for.
    grows: Controller | None = None
    #: Those whose pods go, or are not waited for.
    shrinks: tuple[Controller, ...] = ()
    #: The controllers that have pods.
    holders: tuple[Holder, ...] = ()
    #: Grows whenever the update comes nearer to its end; means nothing unless is_observed.
    progress: int = 0
    #: There is no way back any more.
    is_past_return: bool = False
    #: Commands and hints, one a line, that help where pods never become available and there is no way back.
    way_out: tuple[str, ...] = ()

    @property
    def is_observed(self) -> bool:
        """Its numbers are about what is asked for now, and not about what was before the last write."""
        return all(it.is_observed for it in (self.survivor, self.grows) if it)

    @property
    def lacking(self) -> str:
        """The pods of the controller that grows, as long as not all that it asks for are available; else ""."""
        it = self.grows
        is_there = it is None or (it.is_observed and it.available >= it.replicas)
        return "" if it is None or is_there else f"{it.name} {it.available}/{it.replicas} available"


class Flow(t.Protocol):
    """One way of rolling. It is named in choice.py, and nowhere else."""

    #: What the cluster room follows for it; the first is the kind that the user names.
    watches: tuple[Kind, ...]
    #: Whether it makes pods, so that what surrounds them matters.
    makes_pods: bool = True

    def needs(self, request: Request) -> tuple[Rule, ...]:
        """What must be allowed, found before the first write."""

    def wishes(self, request: Request) -> tuple[Rule, ...]:
        """What is done without where it is not allowed."""
        return ()

    def forgo(self, memory: Memory, why: str) -> None:
        """Go on without what was wished for; says so."""
        return

    def resolved(self, request: Request, cluster: Cluster, memory: Memory) -> Request:
        """The request with what only the cluster knows. Raises RolloutError."""
        return request

    def find(self, request: Request, cluster: Cluster, revisions: t.Sequence[Json] | None = None) -> Observed:
        """Return what is known of the controller without a request to the cluster.

        revisions: its ControllerRevisions, where they have been read; the history comes from them.
        """

    def observe(self, request: Request, cluster: Cluster, memory: Memory) -> Observed:
        """What there is. Raises RolloutError."""

    def plan(self, request: Request, seen: Observed) -> Decision:
        """The state table: the next step, or what to wait for, or the end. Raises RolloutError for rows that are errors."""

    def decide(self, request: Request, seen: Observed) -> Decision:
        """Return what plan() decides; instead of an end without an update, a wait for pods that are not available.

        `kubectl rollout status` waits for them as well. A pause is an end in the middle of an update: its planner knows when.
        Raises RolloutError as plan() does.
        """
        decision = self.plan(request, seen)
        if not isinstance(decision, Done):
            return decision
        standing = self.standing(request, seen)
        it = standing.grows
        if it is None or standing.phase != "complete" or it.available >= it.replicas:
            return decision
        return Wait(f"{it.name} {it.available}/{it.replicas} available", is_idle=True)

    def standing(self, request: Request, seen: Observed) -> Standing:
        """The same for people."""

    def model(self, real: RealCluster) -> Model:
        """A cluster in memory that begins as the real one stands."""

    def commands(self, request: Request, seen: Observed) -> tuple[str | None, str | None]:
        """What to type to go on with an update in progress, and to go back; None where there is nothing to do."""
        return None, None

    def warnings(self, request: Request, memory: Memory) -> list[str]:
        """What the user should know before the first write."""
        return []

    def begun(self, request: Request, cluster: Cluster) -> t.Mapping[str, Json]:
        """Return the labels, by name, of controllers that an update in progress may have deleted itself."""
        return {}

    def gives_pods(self, request: Request, seen: Observed) -> Controller | None:
        """Whose pods will get another controller: whether that is allowed, a dry run tells before the first write."""
        return None

    def to_look_up(self, seen: Observed) -> tuple[str, ...]:
        """The names of what has to be looked up when a write was refused, in this order."""
        return ()

    def note(self, write: Write, memory: Memory) -> None:
        """A write has landed."""
        return

    def halted(self, seen: Observed) -> Step | None:
        """What lets the new pods be made no more, and the same task go on later; None where only going back does."""
        return None

    def done_by_server(self, before: Observed, now: Observed) -> tuple[Step, ...]:
        """Steps that the server's own controllers have taken since."""
        return ()

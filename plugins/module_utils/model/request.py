# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asks for. Pure; options.py makes it of a module's parameters."""

from __future__ import annotations

import dataclasses
import typing as t

from . import commands, identity, marks, shell
from .errors import RolloutError
from .fields import Json, pairs
from .kinds import Kind, State
from .template import is_image, with_image, without_label
from .thresholds import Size

#: How to_revision names the template of before the last update.
PREVIOUS = "previous"


@dataclasses.dataclass(frozen=True)
class Request:
    """One task's wish: which controller, what its pods shall look like, and how gently to get there."""

    name: str
    namespace: str = "default"
    state: State = State.UPDATED
    kind: Kind = Kind.REPLICATION_CONTROLLER
    #: The user's name for the successor; the first one is then deleted at the end instead of taken over.
    next_name: str | None = None
    #: Images by container name; a key of "" stands for "the container that this image belongs to".
    images: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: A partial pod template, merged by the API server (strategic merge patch).
    template: Json | None = None
    #: A whole successor, as `kubectl rolling-update -f` took it.
    definition: Json | None = None
    #: The revision of the history that a rollback goes back to; None undoes the update in progress.
    to_revision: int | None = None
    #: Whether that is the one of before the last update, whichever it is (flows/previous.py).
    is_previous: bool = False
    #: The template of that revision, once it has been looked up; a Deployment has it on its ReplicaSets.
    revision: Json | None = None
    #: How many previous templates are kept.
    revision_history_limit: int = 10
    #: Whether a controller that another object controls may be taken from it, to be migrated.
    releases_owner: bool = False
    label_key: str = marks.DEPLOYMENT_LABEL
    max_surge: Size = Size(1)
    max_unavailable: Size = Size(0)
    #: Whether terminating pods count towards the size and max_surge (pod_replacement_policy).
    waits_for_termination: bool = False
    #: Whether one of these two was given; a Deployment has its own otherwise.
    gives_strategy: bool = False
    #: Seconds a new pod must be ready to count as available; None keeps what the controller has.
    min_ready_seconds: int | None = None
    #: Seconds between two turns.
    update_period: float = 0
    #: Seconds without progress before the task fails.
    progress_deadline: float = 600
    #: Seconds for the whole task; None for no limit.
    timeout: float | None = None
    #: Seconds that a cause which waiting does not cure must last before the task fails.
    failure_grace: float = 10
    #: Whether an update that fails is rolled back by the same task.
    rolls_back: bool = False
    #: How many new pods, or percent of the desired ones (rounded up), to end with; None to go to the end.
    pause_at: Size | None = None
    #: Seconds for which the new pods are watched at a pause and before the end.
    soak: float = 0
    #: The labels (a label selector) of the nodes whose pods are the first up to a pause; "" for any.
    nodes: str = ""
    #: Changes of a size after which the task ends; None for no limit.
    max_steps: int | None = None
    #: What becomes of a HorizontalPodAutoscaler of the controller: "freeze", "refuse" or "ignore".
    autoscaler: str = "freeze"
    #: Whether each step is told by an Event as well.
    record_events: bool = True
    #: Whether the result tells the sizes over time.
    return_sizes: bool = False
    #: Whether to hold the controller's Lease while working.
    lock: bool = True
    #: Seconds to wait for another task that holds it.
    lock_timeout: float = 0
    #: Of context, kubeconfig and host those that the task was given, for commands; None for one that cannot be typed.
    connection: t.Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    #: The module's other options as the user provided them, without those that have their default, for commands.
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def where(self) -> str:
        """The user's controller, for an error."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def kubectl(self) -> str:
        """What a command for the namespace begins with."""
        return shell.kubectl(self.connection, self.namespace)

    @property
    def oc(self) -> str:
        """The same for what only OpenShift's client can do, which takes the same flags."""
        return f"oc{self.kubectl.removeprefix('kubectl')}"

    @property
    def kubectl_of_cluster(self) -> str:
        """What a command for what is in no namespace begins with."""
        return shell.kubectl(self.connection)

    @property
    def undoes(self) -> bool:
        """Whether there is no wanted template: the update in progress is to be undone."""
        return self.state.undoes and self.revision is None

    @property
    def is_unresolved(self) -> bool:
        """Whether the template of to_revision is still to be looked up."""
        return self.undoes and (self.to_revision is not None or self.is_previous)

    def to_be_resolved(self) -> Request:
        """The same task, whose revision is looked up anew."""
        return dataclasses.replace(self, to_revision=None if self.is_previous else self.to_revision, revision=None)

    @property
    def asks_the_server(self) -> bool:
        """Whether only the API server can tell what the wanted template looks like when stored (by a dry run)."""
        return self.state.changes_template and (self.template is not None or self.definition is not None)

    def to_go_back(self) -> Request:
        """The same task, to undo what it has begun, however long that takes."""
        return dataclasses.replace(self, state=State.ROLLED_BACK, to_revision=None, is_previous=False, revision=None, timeout=None,
                                   max_steps=None)

    def applied_to(self, template: Json) -> Json:
        """The wanted template for a change that needs no server: images, or a restart.

        Raises RolloutError for a container that is not there or not clear.
        """
        if self.revision is not None:
            return self.revision
        if self.state.restarts:
            # No time in it: the same request must name the same successor on every rerun (design section 3).
            return marks.restarted(template, identity.digest(without_label(template, self.label_key)))
        wanted = template
        for container, image in self.images.items():
            wanted = with_image(wanted, container, image, self.name)
        return wanted

    def content(self, template: Json, selector: Json) -> Json:
        """What the successor's name is a hash of: the request, over the template it is applied to."""
        content: Json = {"selector": {key: value for key, value in selector.items() if key != self.label_key}}
        if self.definition is not None:
            spec = self.definition["spec"]
            return {"selector": spec.get("selector"), "template": spec["template"]}
        if self.template is not None:
            return {**content, "template": without_label(template, self.label_key), "patch": self.template}
        return {**content, "template": without_label(self.applied_to(template), self.label_key)}

    @property
    def fingerprint(self) -> str:
        """Tells whether two tasks ask for the same pods, whatever the controller looks like at that moment."""
        if self.is_previous:
            return PREVIOUS
        return identity.digest([self.state, dict(self.images), self.template, self.definition, *filter(None, [self.revision])])

    def command(self, state: State | None = None, *, otherwise: str = "", **changes: t.Any) -> str:
        """Return the ad-hoc command for this task with another state, or with changes: options and values, None to leave one out.

        Of the other options, a change of state leaves out those that it takes the meaning from (commands.OPTIONS). images are
        by container, as in this class. A command that changes what becomes of a controller is for this one alone; any other
        repeats the task for all of its controllers. Where no command is safe to paste, return otherwise, or the same in words.
        """
        if self.state is not State(self.options.get("state", Request.state)):  # to_go_back()
            state = state or self.state
        target, is_fleet = state or self.state, commands.is_for_fleet(self.options, state, changes)
        if "images" in changes:
            if not all(map(is_image, changes["images"].values())):
                return otherwise or commands.AGAIN
            changes = commands.TEMPLATE_LEFT_OUT | changes | commands.of_images(changes["images"])
        revision = (PREVIOUS if self.is_previous else self.to_revision) if state is None else None
        keeps_all = state is None and (bool(revision) or not target.undoes)
        by_state = _options_of(target, revision)
        has_kinds = is_fleet and "kinds" in self.options
        own: Json = {
            "name": None if is_fleet else self.name,
            "kind": None if has_kinds or self.kind is Request.kind else str(self.kind),
            "namespace": None if self.namespace == Request.namespace else self.namespace,
            "next_name": self.next_name if keeps_all or target in commands.OPTIONS["next_name"].states else None,
            "deployment_label_key": None if self.label_key in (Request.label_key, self.kind.server_label) else self.label_key,
            **by_state,
        }
        options = commands.in_order({
            **commands.repeated(self.options, None if keeps_all else target, is_fleet), **own, **changes})
        is_whole = not target.changes_template or bool({"image", "images"} & options.keys())
        command = shell.ansible({**options, **self.connection}) if is_whole and not commands.NOT_TYPED & options.keys() else None
        told = {option: value for option, value in by_state.items() if value and state}
        apart = {} if is_fleet else commands.apart(self.options, self.name)
        return command or otherwise or commands.in_words({**apart, **told, **changes})

    @property
    def defined_selector(self) -> Json | None:
        """The labels that the definition selects by, if it says so."""
        selector = self.definition["spec"].get("selector") if self.definition else None
        return selector and self.kind.labels(selector)

    def refuse_selector_of(self, primary_selector: Json) -> None:
        """Refuse a definition whose selector would take the pods of the controller it follows.

        Source: kubectl rolling-update ("must specify a matching key with non-equal value in Selector").
        """
        selector = self.defined_selector
        if selector and not any(primary_selector.get(key, value) != value for key, value in selector.items()):
            raise RolloutError(
                f"the definition's selector {pairs(selector)} does not differ from the selector of {self.name} "
                f"({pairs(primary_selector)}): give at least one of its keys a different value, or leave the selector out"
            )


def _options_of(state: State, revision: str | int | None) -> Json:
    """Return the options that a command for this state needs; None for one that it must not have."""
    return {
        "state": None if state.changes_template else str(state),
        "to_revision": revision,
        "to_kind": str(Kind.DEPLOYMENT) if state.migrates else None,
    }

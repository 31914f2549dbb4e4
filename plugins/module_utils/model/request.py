# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Request of a task, created from a module's parameters by options.py. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from . import commands, identity, object_meta, shell
from .config_objects import Reference
from .fields import Json
from .kinds import Kind, Module, State
from .template import is_image, with_image, without_label
from .thresholds import Size

#: Value of to_revision for the template before the last update.
PREVIOUS = "previous"


@dataclasses.dataclass(frozen=True)
class Request:
    """Request of one task: controller, desired template and pace."""

    name: str
    namespace: str = "default"
    #: Namespace of a task without one: a command may leave it out.
    default_namespace: str = "default"
    module: Module = Module.ROLLING_UPDATE
    state: State = State.UPDATED
    kind: Kind = Kind.REPLICATION_CONTROLLER
    #: User's name for the successor, which then stays: the primary is deleted, without a handover.
    next_name: str | None = None
    #: Images by container name; "" for the container that runs the image's repository.
    images: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: Partial pod template, merged by the API server (strategic merge patch).
    template: Json | None = None
    #: Whole successor, as in `kubectl rolling-update -f`.
    definition: Json | None = None
    #: ConfigMaps and Secrets whose data the pods read, or "auto": all that the template names.
    roll_on: tuple[Reference | str, ...] = ()
    #: Checksums of the data by reference; None before the objects are read (flows/roll_on.py).
    checksums: t.Mapping[str, str] | None = None
    #: Target revision of a rollback; None rolls back the update in progress.
    to_revision: int | None = None
    #: Whether the target is the revision before the last update (flows/previous.py).
    is_previous: bool = False
    #: Template of the target revision, once resolved (of a Deployment, from its ReplicaSets).
    revision: Json | None = None
    #: Number of stored previous templates.
    revision_history_limit: int = 10
    #: Whether a migration may remove the controller's owner reference.
    releases_owner: bool = False
    label_key: str = object_meta.DEPLOYMENT_LABEL
    max_surge: Size = Size(1)
    max_unavailable: Size = Size(0)
    #: Whether terminating pods count towards the size and max_surge (pod_replacement_policy).
    waits_for_termination: bool = False
    #: Whether max_surge or max_unavailable was provided; else a Deployment uses its own strategy.
    overrides_strategy: bool = False
    #: Seconds of readiness before a new pod is available; None keeps the controller's value.
    min_ready_seconds: int | None = None
    #: Whether the task waits for the end of the update; else the task ends once the server replaces
    #: the pods.
    waits: bool = True
    #: Seconds between two steps.
    update_period: float = 0
    #: Seconds without progress before the task fails.
    progress_deadline: float = 600
    #: Seconds for the whole task; None for no limit.
    timeout: float | None = None
    #: Seconds that a fatal cause must last before the task fails.
    failure_grace: float = 10
    #: Whether the task rolls back a failed update.
    rolls_back: bool = False
    #: New pods, or percent of the desired size (rounded up), at which to pause; None for no pause.
    pause_at: Size | None = None
    #: Seconds for which new pods are watched at a pause and before the end.
    soak: float = 0
    #: Label selector of the nodes whose pods come first before a pause; "" for any node.
    nodes: str = ""
    #: Treatment of new pods with different versions of an image: "warn", "fail" or "ignore".
    image_drift: str = "warn"
    #: Treatment of a HorizontalPodAutoscaler of the controller: "freeze", "refuse" or "ignore".
    autoscaler: str = "freeze"
    #: Whether each step is also recorded as an Event.
    record_events: bool = True
    #: Whether the result contains the sizes over time.
    return_sizes: bool = False
    #: Whether to hold the controller's Lease while working.
    lock: bool = True
    #: Seconds to wait for another holder of the Lease.
    lock_timeout: float = 0
    #: Provided context, kubeconfig and host, for commands; None for a value that cannot be typed.
    connection: t.Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    #: The user's other options without defaults, for commands.
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def where(self) -> str:
        """User's controller, for errors."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def kubectl(self) -> str:
        """Beginning of a kubectl command for the namespace."""
        return shell.kubectl(self.connection, self.namespace)

    @property
    def oc(self) -> str:
        """Beginning of a command of OpenShift's client, with the flags of kubectl."""
        return f"oc{self.kubectl.removeprefix('kubectl')}"

    @property
    def cluster_kubectl(self) -> str:
        """Beginning of a kubectl command without a namespace."""
        return shell.kubectl(self.connection)

    @property
    def migrates(self) -> bool:
        """Whether the task migrates a controller, or rolls back a migration."""
        return self.module is Module.MIGRATION

    @property
    def undoes(self) -> bool:
        """Whether the task rolls back the update in progress, without a desired template."""
        return self.state.undoes and self.revision is None

    @property
    def is_unresolved(self) -> bool:
        """Whether the template of to_revision is not resolved yet."""
        return self.undoes and (self.to_revision is not None or self.is_previous)

    @property
    def may_surge(self) -> bool:
        """Whether a new pod may be created before an old pod is deleted."""
        return not self.kind.replaces_in_place

    def unresolved(self) -> Request:
        """Return the task without facts of the cluster: revision and checksums."""
        return dataclasses.replace(self, to_revision=None if self.is_previous else self.to_revision,
                                   revision=None, checksums=None)

    @property
    def needs_dry_run(self) -> bool:
        """Whether the desired template, as stored, needs a dry run of the API server."""
        return self.state.changes_template and (self.template is not None
                                                or self.definition is not None)

    def rollback_request(self) -> Request:
        """Return the task's rollback, without a time limit."""
        return dataclasses.replace(self, state=State.ROLLED_BACK, to_revision=None,
                                   is_previous=False, revision=None, timeout=None,
                                   roll_on=(), checksums=None)

    def apply_to(self, template: Json) -> Json:
        """Return the desired template for images, checksums or a restart, without a dry run.

        Raises RolloutError for a missing or ambiguous container.
        """
        if self.revision is not None:
            return self.revision
        if self.state.restarts:
            # No timestamp: every rerun must find the same successor (design section 3).
            digest = identity.digest(without_label(template, self.label_key))
            return object_meta.with_annotation(template, object_meta.RESTART, digest)
        desired = template
        for container, image in self.images.items():
            desired = with_image(desired, container, image, self.name)
        return self.with_checksums(desired)

    def with_checksums(self, template: Json) -> Json:
        """Return the pod template with the checksums of roll_on."""
        if not self.checksums:
            return template
        checksums = identity.canonical(dict(self.checksums))
        return object_meta.with_annotation(template, object_meta.CHECKSUMS, checksums)

    def content(self, template: Json, selector: Json) -> Json:
        """Return the input of the successor's hash: the request applied to a template."""
        labels = {key: value for key, value in selector.items() if key != self.label_key}
        content: Json = {"selector": labels}
        if self.definition is not None:
            spec = self.definition["spec"]
            return {"selector": spec.get("selector"),
                    "template": self.with_checksums(spec["template"])}
        if self.template is not None:
            patched = self.with_checksums(without_label(template, self.label_key))
            return {**content, "template": patched, "patch": self.template}
        return {**content, "template": without_label(self.apply_to(template), self.label_key)}

    @property
    def fingerprint(self) -> str:
        """Hash that is equal for requests of the same pods, in any state of the controller."""
        if self.is_previous:
            return PREVIOUS
        return identity.digest([self.state, dict(self.images), self.template, self.definition,
                                *filter(None, [self.revision, self.checksums])])

    def command(self, state: State | None = None, *, otherwise: str = "", **changes: t.Any) -> str:
        """Return the ad-hoc command for the task with another state or changed options.

        changes: options and values; None leaves an option out.

        A change of state also leaves out options without meaning in the new state
        (commands.OPTIONS). images are by container. A command that changes a controller's outcome
        is for one controller; any other command repeats the task for all controllers. Without a
        command that is safe to paste, return otherwise or words.
        """
        return _command(self, state, otherwise, changes)


def _command(request: Request, state: State | None, otherwise: str, changes: Json) -> str:
    """Return the command or the words of Request.command()."""
    if request.state != request.options.get("state", request.module.default_state):
        state = state or request.state  # rollback_request()
    target = state or request.state
    is_fleet = commands.is_for_fleet(request.options, state, changes)
    if "images" in changes:
        if not all(map(is_image, changes["images"].values())):
            return otherwise or commands.RERUN_TASK
        changes = commands.NO_TEMPLATE | changes | commands.image_options(changes["images"])
    by_state = _options_of(request, target, state)
    keeps_all = state is None and (bool(by_state["to_revision"]) or not target.undoes)
    repeats = None if keeps_all or (target.migrates and request.migrates) else target
    options = _command_options(request, repeats, is_fleet, by_state | changes)
    is_whole = not target.changes_template or bool(
        {"image", "images", "roll_on"} & options.keys())
    is_typed = is_whole and not commands.NOT_PASTABLE & options.keys()
    module = request.module.module_for(target)
    command = shell.ansible(module, {**options, **request.connection}) if is_typed else None
    words = {option: value for option, value in by_state.items() if value and state}
    apart = {} if is_fleet else commands.single_controller_changes(
        request.options, request.name, request.namespace)
    if module is not request.module:
        return command or otherwise or commands.describe_rerun({"name": request.name}, module)
    return command or otherwise or commands.describe_rerun({**apart, **words, **changes})


def _options_of(request: Request, target: State, state: State | None) -> Json:
    """Return the options of a command for the target state; None for options to leave out."""
    revision = (PREVIOUS if request.is_previous else request.to_revision) if state is None else None
    return {
        "state": None if target is request.module.module_for(target).default_state
        else str(target),
        "to_revision": revision,
    }


def _command_options(request: Request, target: State | None, is_fleet: bool, changes: Json) -> Json:
    """Return the options of a command in the documentation's order, without those left out.

    target: the state whose options are repeated; None for all options.
    """
    has_kinds = is_fleet and "kinds" in request.options
    has_namespaces = is_fleet and any(option in request.options for option in commands.NAMESPACES)
    is_usual_key = request.label_key in (Request.label_key, request.kind.server_label)
    is_usual_namespace = request.namespace == request.default_namespace == Request.namespace
    keeps_next = target is None or target in commands.OPTIONS["next_name"].states
    identifying: Json = {
        "name": None if is_fleet else request.name,
        "kind": None if has_kinds or request.kind is Request.kind else str(request.kind),
        "namespace": None if is_usual_namespace or has_namespaces else request.namespace,
        "next_name": request.next_name if keeps_next else None,
        "deployment_label_key": None if is_usual_key else request.label_key,
    }
    repeated = commands.repeated_options(request.options, target, is_fleet)
    return commands.sort_options({**repeated, **identifying, **changes})

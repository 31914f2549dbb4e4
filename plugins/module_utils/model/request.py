# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The request of a task, created by options.py from the parameters of a module."""

from __future__ import annotations

import dataclasses
import typing as t

from . import commands, identity, object_meta, shell
from .config_objects import Reference
from .fields import Json
from .kinds import Kind, Module, State
from .template import is_image, with_annotation, with_image, without_label
from .thresholds import Size

#: A value of the option to_revision.
PREVIOUS = "previous"
COLLECTION = "baton.kubernetes"


@dataclasses.dataclass(frozen=True)
class Request:
    """The request of a task. plugins/modules/rolling_update.py documents the options."""

    name: str
    namespace: str = "default"
    #: The namespace that is used if the option `namespace` is missing.
    default_namespace: str = "default"
    module: Module = Module.ROLLING_UPDATE
    state: State = State.UPDATED
    kind: Kind = Kind.REPLICATION_CONTROLLER
    #: The name of a successor that replaces the primary for good, or None.
    next_name: str | None = None
    #: Images by container name. "" stands for the only container with an image of the same
    #: repository as the new image or, if no container has one, for the only container.
    images: t.Mapping[str, str] = dataclasses.field(default_factory=dict)
    #: A strategic merge patch for the pod template.
    template: Json | None = None
    #: The manifest with the desired template (the options definition and src).
    definition: Json | None = None
    roll_on: tuple[Reference | str, ...] = ()
    #: The checksum of each object in roll_on. None before flows/roll_on.py reads the objects.
    checksums: t.Mapping[str, str] | None = None
    #: The number of the revision to restore. None if a rollback undoes the update in progress, or
    #: if the value `previous` is not resolved to a number yet.
    to_revision: int | None = None
    #: Whether the option to_revision has the value `previous` (flows/previous.py).
    rolls_back_to_previous: bool = False
    #: The template of to_revision, or None before the history is read.
    revision_template: Json | None = None
    #: Whether to migrate a controller that is controlled by another object (release_owner).
    releases_owner: bool = False
    #: The label that distinguishes old and new pods (deployment_label_key).
    label_key: str = object_meta.DEPLOYMENT_LABEL
    max_surge: Size = Size(1)
    max_unavailable: Size = Size(0)
    waits_for_termination: bool = False  # pod_replacement_policy
    #: Whether max_surge or max_unavailable replaces the strategy in spec.
    overrides_strategy: bool = False
    min_ready_seconds: int | None = None
    waits: bool = True
    progress_deadline: float = 600  # seconds
    timeout: float | None = None  # seconds
    failure_grace: float = 10  # seconds
    rolls_back_on_failure: bool = False  # on_failure
    pause_at: Size | None = None
    keeps_old: bool = False
    soak: float = 0  # seconds
    nodes: str = ""  # label selector
    #: Whether the task may only resume the update: not begin the update, nor reverse its rollback.
    resumes_only: bool = False
    image_drift: str = "warn"
    autoscaler: str = "freeze"
    suspends_gitops: bool = False
    #: Whether the result has the key `sizes`.
    return_sizes: bool = False
    lock: bool = True
    lock_timeout: float = 0  # seconds
    #: The name of the AWX job template that runs the task. "" if unknown, None without AWX.
    job_template: str | None = None
    #: The connection options. None stands for a value that a command cannot contain, such as a
    #: kubeconfig that is not a file.
    connection: t.Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    #: The options of the user that differ from their defaults.
    options: t.Mapping[str, t.Any] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def where(self) -> str:
        """The controller, for error messages."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def kubectl(self) -> str:
        """The beginning of a kubectl command for the namespace."""
        return shell.kubectl(self.connection, self.namespace)

    @property
    def oc(self) -> str:
        """The beginning of a command of OpenShift's client."""
        return shell.kubectl(self.connection, self.namespace, "oc")

    @property
    def cluster_kubectl(self) -> str:
        """The beginning of a kubectl command without a namespace."""
        return shell.kubectl(self.connection)

    @property
    def migrates(self) -> bool:
        return self.module is Module.MIGRATION

    @property
    def rolls_back_update(self) -> bool:
        """Whether the task rolls back the update in progress.

        Also true before the template of to_revision is read.
        """
        return self.state.rolls_back and self.revision_template is None

    @property
    def is_unresolved(self) -> bool:
        """Whether the template of to_revision still has to be read."""
        return self.rolls_back_update and (
            self.to_revision is not None or self.rolls_back_to_previous)

    @property
    def may_surge(self) -> bool:
        return not self.kind.replaces_in_place

    def unresolved(self) -> Request:
        """Return the request without data from the cluster."""
        to_revision = None if self.rolls_back_to_previous else self.to_revision
        return dataclasses.replace(self, to_revision=to_revision, revision_template=None,
                                   checksums=None)

    @property
    def needs_dry_run(self) -> bool:
        """Whether only a dry run can show the desired template."""
        return self.state.updates and (self.template is not None or self.definition is not None)

    def rollback_request(self) -> Request:
        """Return the request to roll back the update."""
        return dataclasses.replace(self, state=State.ROLLED_BACK, to_revision=None,
                                   rolls_back_to_previous=False, revision_template=None,
                                   min_ready_seconds=None, timeout=None, roll_on=(),
                                   checksums=None)

    def apply_to(self, template: Json) -> Json:
        """Return the desired template of a request that needs no dry run. Raises RolloutError."""
        if self.revision_template is not None:
            return self.revision_template
        if self.state.restarts:
            # Use a digest: with a timestamp, a repeated task could not recognize its update.
            digest = identity.digest(without_label(template, self.label_key))
            return with_annotation(template, object_meta.RESTART, digest)
        desired = template
        for container, image in self.images.items():
            desired = with_image(desired, container, image, self.name)
        return self.with_checksums(desired)

    def with_checksums(self, template: Json) -> Json:
        if not self.checksums:
            return template
        checksums = identity.canonical(dict(self.checksums))
        return with_annotation(template, object_meta.CHECKSUMS, checksums)

    def content(self, template: Json, selector: Json) -> Json:
        """Return the JSON value that identity.label_value hashes."""
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
        """A text that identifies the desired change."""
        if self.rolls_back_to_previous:
            return PREVIOUS
        return identity.digest([self.state, dict(self.images), self.template, self.definition,
                                *filter(None, [self.revision_template, self.checksums])])

    def command(self, state: State | None = None, *, fallback: str = "", **changes: t.Any) -> str:
        """Return the ad-hoc command of this task with another state or other options.

        changes: the new values of options. The value None leaves out the option. The value of
        `images` maps container names to images.

        A command with another state, name, next_name, revision or template is for this controller
        alone. Any other command is for all controllers of the task. With AWX, returns advice. Else,
        if no command is safe to paste, returns `fallback`, or advice if `fallback` is "".
        """
        if self.state != self.options.get("state", self.module.default_state):
            # A request of rollback_request() has another state than its options.
            state = state or self.state
        is_for_fleet = commands.is_for_fleet(self.options, state, changes)
        if "images" in changes:
            if not all(is_image(image) or image in shell.PLACEHOLDERS
                       for image in changes["images"].values()):
                return fallback or commands.RERUN_TASK
            changes = commands.with_image_options(changes, self.options)
        return _Command(self, state, changes, is_for_fleet).text(fallback)


class _Command:
    """The command of a task with another state or other options (Request.command)."""

    def __init__(self, request: Request, state: State | None, changes: Json,
                 is_for_fleet: bool) -> None:
        self.request, self.changes, self.is_for_fleet = request, changes, is_for_fleet
        #: The requested state. None if the command repeats the task's state.
        self.state = state
        self.goal_state = state or request.state
        self.module = request.module.module_for(self.goal_state)
        is_default_state = self.goal_state is self.module.default_state
        self.state_option = None if is_default_state else str(self.goal_state)
        self.options = self._options()
        is_complete = (not self.goal_state.updates
                       or bool({"image", "images", "roll_on"} & self.options.keys()))
        self.is_pastable = is_complete and not commands.NOT_PASTABLE & self.options.keys()

    def text(self, fallback: str) -> str:
        """Return the command or, if no command is safe to paste, `fallback` or advice."""
        if self.request.job_template is not None:
            return self._awx_advice(self.request.job_template)
        options = {**self.options, **self.request.connection}
        command = shell.ansible(self.module, options) if self.is_pastable else None
        return command or fallback or self._advice()

    def _advice(self) -> str:
        task_options = self.request.options
        if self.module is self.request.module:
            return commands.describe_rerun(self._task_changes(), task_options=task_options)
        options = self.options if self.is_pastable else {"name": self.request.name}
        return commands.describe_rerun(options, f"run the module {self.module}", task_options)

    def _awx_advice(self, job_template: str) -> str:
        task_options = self.request.options
        if self.is_pastable and (self.state or self.module is not self.request.module):
            launch = f"launch a job that runs {COLLECTION}.{self.module}"
            return commands.describe_rerun(self.options, launch, task_options)
        changes = {option: value for option, value in self._task_changes().items()
                   if value is not None or option in task_options}
        return commands.describe_rerun(
            changes, commands.describe_relaunch(job_template, changes), task_options)

    def _task_changes(self) -> Json:
        """Return the changes after which the task itself does the same as the command."""
        request = self.request
        selection = {} if self.is_for_fleet else commands.single_controller_changes(
            request.options, request.name, str(request.kind), request.namespace)
        state = {"state": self.state_option} if self.state and self.state_option else {}
        return {**selection, **state, **self.changes}

    def _options(self) -> Json:
        request = self.request
        revision = PREVIOUS if request.rolls_back_to_previous else request.to_revision
        repeats_task = self.state is None and (bool(revision) or not self.goal_state.rolls_back)
        repeats_migration = self.goal_state.migrates and request.migrates
        # The state whose options are repeated, or None to repeat all options.
        repeated_state = None if repeats_task or repeats_migration else self.goal_state
        return commands.sort_options({
            **commands.repeated_options(request.options, repeated_state, self.is_for_fleet),
            **self._identifying_options(repeated_state),
            "state": self.state_option,
            "to_revision": revision if self.state is None else None,
            **self.changes})

    def _identifying_options(self, repeated_state: State | None) -> Json:
        request, is_for_fleet = self.request, self.is_for_fleet
        kind = None if request.kind is Request.kind else str(request.kind)
        kinds = request.options.get("kind") if is_for_fleet else None
        has_namespaces = is_for_fleet and any(option in request.options
                                              for option in commands.FLEET_NAMESPACE_OPTIONS)
        is_default_key = request.label_key in (Request.label_key, request.kind.server_label)
        is_default_namespace = request.namespace == request.default_namespace == Request.namespace
        keeps_next_name = (repeated_state is None
                           or repeated_state in commands.OPTIONS["next_name"].states)
        return {
            "name": None if is_for_fleet else request.name,
            "kind": kinds if isinstance(kinds, list) else kind,
            "namespace": None if is_default_namespace or has_namespaces else request.namespace,
            "next_name": request.next_name if keeps_next_name else None,
            "deployment_label_key": None if is_default_key else request.label_key,
        }

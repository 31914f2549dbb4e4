# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the user asks for, validated. Nobody above this file looks at a module's parameters."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing as t

from . import identity
from .errors import RolloutError
from .kinds import ROLLED, Kind
from .thresholds import Size

Json = dict[str, t.Any]

#: The options of the rollout itself; each is documented in plugins/doc_fragments/rollout.py.
ARGUMENT_SPEC: Json = dict(
    name=dict(type="str"),
    names=dict(type="list", elements="str"),
    label_selectors=dict(type="list", elements="str"),
    concurrency=dict(type="int", default=5),
    max_failures=dict(type="str", default="0"),
    order_annotation=dict(type="str"),
    namespace=dict(type="str", default="default"),
    kind=dict(type="str", choices=[str(kind) for kind in ROLLED], default=str(Kind.REPLICATION_CONTROLLER)),
    next_name=dict(type="str"),
    image=dict(type="str"),
    container=dict(type="str"),
    images=dict(type="dict"),
    template=dict(type="dict"),
    definition=dict(type="raw"),
    src=dict(type="path"),
    state=dict(type="str", choices=["updated", "rolled_back", "restarted", "migrated"], default="updated"),
    to_kind=dict(type="str", choices=[str(Kind.DEPLOYMENT)]),
    release_owner=dict(type="bool", default=False),
    to_revision=dict(type="int"),
    revision_history_limit=dict(type="int", default=10),
    deployment_label_key=dict(type="str", default=identity.DEPLOYMENT_LABEL, no_log=False),
    max_surge=dict(type="str"),
    max_unavailable=dict(type="str"),
    min_ready_seconds=dict(type="int"),
    update_period=dict(type="float", default=0),
    progress_deadline=dict(type="float", default=600),
    timeout=dict(type="float"),
    failure_grace=dict(type="float", default=10),
    on_failure=dict(type="str", choices=["stop", "rollback"], default="stop"),
    pause_at=dict(type="str"),
    max_steps=dict(type="int"),
    autoscaler=dict(type="str", choices=["freeze", "refuse", "ignore"], default="freeze"),
    record_events=dict(type="bool", default=True),
    return_sizes=dict(type="bool", default=False),
    lock=dict(type="bool", default=True),
    lock_timeout=dict(type="float", default=0),
    progress=dict(type="bool", default=True),
)

#: The ways to say what the new pods look like; one of them at a time.
CHANGES = ("image", "images", "template", "definition", "src")
#: What the server's own controller, which steps a Deployment, has no place for.
NOT_OF_DEPLOYMENTS = ("next_name", "max_steps", "update_period")
#: The most templates that are kept of a controller.
HISTORY_LIMIT = 100

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[][A-Za-z0-9._:/@+-]+")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


class State(enum.StrEnum):
    """What the user wants to have when the task ends."""

    #: The pods of the user's controller have the wanted template.
    UPDATED = "updated"
    #: The rollout in progress is undone.
    ROLLED_BACK = "rolled_back"
    #: Every pod is new, from the same template.
    RESTARTED = "restarted"
    #: The pods are a Deployment's.
    MIGRATED = "migrated"


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
    #: The template of that revision, once it has been looked up; a Deployment has it on its ReplicaSets.
    revision: Json | None = None
    #: How many templates of before are kept.
    revision_history_limit: int = 10
    #: Whether a controller that another object controls may be taken from it, to be migrated.
    releases_owner: bool = False
    label_key: str = identity.DEPLOYMENT_LABEL
    max_surge: Size = Size(1)
    max_unavailable: Size = Size(0)
    #: Whether one of these two was given; a Deployment has its own otherwise.
    gives_pace: bool = False
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

    @property
    def where(self) -> str:
        """The user's controller, for an error."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def kubectl(self) -> str:
        """What a command for the namespace begins with."""
        return f"kubectl -n {self.namespace}"

    @property
    def undoes(self) -> bool:
        """Whether there is no wanted template: the update in progress is to be undone."""
        return self.state is State.ROLLED_BACK and self.revision is None

    @property
    def is_unresolved(self) -> bool:
        """Whether the template of to_revision is still to be looked up."""
        return self.undoes and self.to_revision is not None and self.kind is not Kind.DEPLOYMENT

    @property
    def asks_the_server(self) -> bool:
        """Whether only the API server can tell what the wanted template looks like when stored (by a dry run)."""
        return self.state is State.UPDATED and (self.template is not None or self.definition is not None)

    def applied_to(self, template: Json) -> Json:
        """The wanted template for a change that needs no server: images, or a restart.

        Raises RolloutError for a container that is not there or not clear.
        """
        if self.revision is not None:
            return self.revision
        if self.state is State.RESTARTED:
            # No time in it: the same request must name the same successor on every rerun (design section 3).
            token = identity.digest(identity.without_label(template, self.label_key))
            metadata = template.get("metadata") or {}
            annotations = {**(metadata.get("annotations") or {}), identity.RESTART: token}
            return {**template, "metadata": {**metadata, "annotations": annotations}}
        wanted = template
        for container, image in self.images.items():
            wanted = _with_image(wanted, container, image, self.name)
        return wanted

    def content(self, template: Json, selector: Json) -> Json:
        """What the successor's name is a hash of: the request, over the template it is applied to."""
        content: Json = {"selector": {key: value for key, value in selector.items() if key != self.label_key}}
        if self.definition is not None:
            spec = self.definition["spec"]
            return {"selector": spec.get("selector"), "template": spec["template"]}
        if self.template is not None:
            return {**content, "template": identity.without_label(template, self.label_key), "patch": self.template}
        return {**content, "template": identity.without_label(self.applied_to(template), self.label_key)}

    @property
    def fingerprint(self) -> str:
        """Tells whether two tasks ask for the same pods, whatever the controller looks like at that moment."""
        return identity.digest([self.state, dict(self.images), self.template, self.definition, *filter(None, [self.revision])])

    def command(self, state: State | None = None, images: t.Mapping[str, str] | None = None,
                to_revision: int | None = None) -> str:
        """The ad-hoc command that a user types next: this task again, or with another state, other images or a revision."""
        options: Json = {"name": self.name}
        if self.kind is not Kind.REPLICATION_CONTROLLER:
            options["kind"] = str(self.kind)
        if self.namespace != "default":
            options["namespace"] = self.namespace
        if self.next_name and images is None:
            options["next_name"] = self.next_name
        if self.label_key != identity.DEPLOYMENT_LABEL and self.kind is not Kind.DEPLOYMENT:
            options["deployment_label_key"] = self.label_key
        if not self.lock:
            options["lock"] = "false"
        state = state or self.state
        if state is not State.UPDATED:
            options["state"] = str(state)
            to_revision = to_revision or (self.to_revision if state is self.state else None)
            options |= {"to_revision": to_revision} if to_revision else {}
            options |= {"to_kind": str(Kind.DEPLOYMENT)} if state is State.MIGRATED else {}
            options |= {"release_owner": "true"} if state is State.MIGRATED and self.releases_owner else {}
        else:
            images = self.images if images is None else images
            if len(images) == 1:
                ((container, image),) = images.items()
                options |= {"image": image, **({"container": container} if container else {})}
            elif images:
                options["images"] = dict(images)
            else:
                return "run the same task again"
        if "images" in options:
            arguments = identity.canonical(options)
        else:
            arguments = " ".join(f"{key}={value}" for key, value in options.items())
        return f"ansible localhost -m baton.kubernetes.rolling_update -a '{arguments}'"

    @property
    def defined_selector(self) -> Json | None:
        """The labels that the definition selects by, if it says so."""
        selector = self.definition["spec"].get("selector") if self.definition else None
        return selector and (selector if self.kind is Kind.REPLICATION_CONTROLLER else selector.get("matchLabels"))

    def refuse_selector_of(self, primary_selector: Json) -> None:
        """Refuse a definition whose selector would take the pods of the controller it follows.

        Source: kubectl rolling-update ("must specify a matching key with non-equal value in Selector").
        """
        selector = self.defined_selector
        if selector and not any(primary_selector.get(key, value) != value for key, value in selector.items()):
            raise RolloutError(
                f"the definition's selector {_labels(selector)} does not differ from the selector of {self.name} "
                f"({_labels(primary_selector)}): give at least one of its keys another value, or leave the selector out"
            )

    @classmethod
    def from_params(cls, params: Json) -> Request:
        """Read a module's parameters: the one place where "" (an empty AWX survey answer) becomes "not given".

        Raises RolloutError with one sentence for whatever makes no sense.
        """
        given = {key: value for key, value in params.items() if value is not None and value != "" and value != {}}
        state, kind = State(given.get("state", State.UPDATED)), Kind(given.get("kind", Kind.REPLICATION_CONTROLLER))
        changes = [option for option in CHANGES if option in given]
        if state is State.UPDATED and not changes:
            raise RolloutError("nothing to update: give one of image, images, template, definition or src")
        if len(changes) > 1:
            raise RolloutError(f"{' and '.join(changes)} are both given: say what changes in one way only")
        if state is State.RESTARTED and changes:
            raise RolloutError(f"state=restarted keeps the template: remove {changes[0]}, or use state=updated")
        _refuse_migration(state, kind, given, changes)
        to_revision = given.get("to_revision")
        if to_revision is not None and state is not State.ROLLED_BACK:
            raise RolloutError("to_revision is for state=rolled_back")
        if to_revision is not None and to_revision < 1:
            raise RolloutError(f"to_revision {to_revision} is no revision's number: the first one is 1")
        history_limit = given.get("revision_history_limit", 10)
        if not 0 <= history_limit <= HISTORY_LIMIT:
            raise RolloutError(f"revision_history_limit {history_limit} is no number from 0 to {HISTORY_LIMIT}")
        if "container" in given and "image" not in given:
            raise RolloutError("container is given without image")

        name = _name("name", given.get("name", ""))
        definition = _definition(given, kind)
        next_name = given.get("next_name")
        if kind is Kind.DEPLOYMENT:
            _refuse_for_deployment(name, given, definition)
        elif definition is not None and definition["metadata"].get("name"):
            defined_name = definition["metadata"]["name"]
            if next_name not in (None, defined_name):
                raise RolloutError(f"next_name is {next_name} and the definition is named {defined_name}: give one name")
            next_name = defined_name
        if next_name is not None and _name("next_name", next_name) == name:
            raise RolloutError(f"the next controller may not be named {name} as well: both exist during the update")
        namespace = given.get("namespace", "default")
        if not _NAMESPACE.fullmatch(namespace):
            raise RolloutError(f"namespace {namespace!r} is no namespace's name")
        if definition is not None and (definition["metadata"].get("namespace") or namespace) != namespace:
            raise RolloutError(
                f"the definition is for namespace {definition['metadata']['namespace']}, the task for {namespace}"
            )

        max_surge, max_unavailable = (size(option, given.get(option, default))
                                      for option, default in (("max_surge", "1"), ("max_unavailable", "0")))
        if max_surge.value == 0 and max_unavailable.value == 0:
            raise RolloutError("max_surge and max_unavailable are both 0: nothing could ever move; set one of them to 1")
        min_ready_seconds = _not_negative("min_ready_seconds", given.get("min_ready_seconds"))
        progress_deadline = _positive("progress_deadline", given.get("progress_deadline", 600))
        if (min_ready_seconds or 0) >= progress_deadline:
            # As the API server demands of a Deployment: no pod could ever be available in time.
            raise RolloutError(f"progress_deadline ({progress_deadline:g} s) must be greater than min_ready_seconds "
                               f"({min_ready_seconds} s)")
        pause_at = size("pause_at", given["pause_at"]) if "pause_at" in given else None
        if pause_at and pause_at.value == 0:
            raise RolloutError("pause_at 0 would end with nothing to look at: give 1 or more")
        max_steps = given.get("max_steps")
        if max_steps is not None and max_steps < 1:
            raise RolloutError(f"max_steps {max_steps} is no number of steps above 0")
        images = given.get("images", {})
        if "image" in given:
            images = {given.get("container", ""): given["image"]}
        for container, image in images.items():
            _image(container, image)
        return cls(
            name=name,
            namespace=namespace,
            state=state,
            kind=kind,
            next_name=next_name,
            images=images,
            template=_json("template", given.get("template")),
            definition=definition,
            to_revision=to_revision,
            revision_history_limit=history_limit,
            releases_owner=given.get("release_owner", False),
            label_key=_label_key(params.get("deployment_label_key")) if kind is not Kind.DEPLOYMENT else identity.HASH_LABEL,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
            gives_pace=bool({"max_surge", "max_unavailable"} & given.keys()),
            min_ready_seconds=min_ready_seconds,
            update_period=_not_negative("update_period", given.get("update_period", 0)),
            progress_deadline=progress_deadline,
            timeout=_positive("timeout", given["timeout"]) if "timeout" in given else None,
            failure_grace=_not_negative("failure_grace", given.get("failure_grace", 10)),
            rolls_back=given.get("on_failure") == "rollback",
            pause_at=pause_at,
            max_steps=max_steps,
            autoscaler=given.get("autoscaler", "freeze"),
            record_events=given.get("record_events", True),
            return_sizes=given.get("return_sizes", False),
            lock=given.get("lock", True),
            lock_timeout=_not_negative("lock_timeout", given.get("lock_timeout", 0)),
        )


def images_of(template: Json) -> dict[str, str]:
    """Images by container name, init containers included."""
    spec = template.get("spec") or {}
    containers = (spec.get("initContainers") or []) + (spec.get("containers") or [])
    return {container["name"]: container.get("image", "") for container in containers}


def image_names(images: t.Mapping[str, str]) -> str:
    """The images by container, in words; each is named once."""
    return ", ".join(dict.fromkeys(images.values())) or "no image"


def differ_in_images_only(one: Json, other: Json, label_key: str) -> bool:
    """Whether a task that gives images is enough to get from one pod template to the other."""

    def blank(template: Json) -> Json:
        spec = template["spec"]
        fields = {field: [{**each, "image": ""} for each in spec[field]] for field in ("initContainers", "containers")
                  if spec.get(field)}
        return {**template, "spec": {**spec, **fields}}

    return identity.same_template(blank(one), blank(other), label_key)


def repository(image: str) -> str:
    """The image's name without tag and digest."""
    image = image.partition("@")[0]
    head, slash, last = image.rpartition("/")
    return head + slash + last.partition(":")[0]


def _with_image(template: Json, container: str, image: str, controller: str) -> Json:
    spec = template["spec"]
    chosen = container or _container_for(image, spec["containers"], controller)
    if chosen not in images_of(template):
        raise RolloutError(
            f"there is no container {chosen} in the template of {controller}; it has: {', '.join(images_of(template))}"
        )

    def renewed(containers: list[Json]) -> list[Json]:
        return [{**each, "image": image} if each["name"] == chosen else each for each in containers]

    changed = {field: renewed(spec[field]) for field in ("initContainers", "containers") if spec.get(field)}
    return {**template, "spec": {**spec, **changed}}


def _container_for(image: str, containers: list[Json], controller: str) -> str:
    if len(containers) == 1:
        return containers[0]["name"]
    running = [each["name"] for each in containers if repository(each.get("image", "")) == repository(image)]
    if len(running) == 1:
        return running[0]
    names = ", ".join(each["name"] for each in containers)
    raise RolloutError(
        f"which container of {controller} gets the image {image}? "
        f"{'Several run' if running else 'None runs'} {repository(image)} now; give container: one of {names}"
    )


def _refuse_migration(state: State, kind: Kind, given: Json, changes: t.Sequence[str]) -> None:
    """Refuse what makes no sense with state=migrated, or without it."""
    if state is not State.MIGRATED:
        for option in ("to_kind", "release_owner"):
            if given.get(option):
                raise RolloutError(f"{option} is for state=migrated")
        return
    if "to_kind" not in given:
        raise RolloutError(f"state=migrated needs to_kind={Kind.DEPLOYMENT}")
    if kind is not Kind.REPLICATION_CONTROLLER:
        raise RolloutError(f"state=migrated is for a {Kind.REPLICATION_CONTROLLER}: a {kind} is none")
    if changes:
        raise RolloutError(f"state=migrated keeps the pods: remove {changes[0]}, and update the Deployment afterwards")


def _refuse_for_deployment(name: str, given: Json, definition: Json | None) -> None:
    """Refuse what a Deployment cannot do: its pods are another ReplicaSet's, and the server's controller changes the sizes."""
    for option in NOT_OF_DEPLOYMENTS:
        if given.get(option):
            raise RolloutError(f"{option} is not for kind=Deployment, whose steps are the server's: leave it out")
    defined_name = definition["metadata"].get("name", name) if definition else name
    if defined_name != name:
        raise RolloutError(f"the definition is named {defined_name}, the task is for {name}: a Deployment keeps its name")


def _definition(given: Json, kind: Kind) -> Json | None:
    source = "src" if "src" in given else "definition"
    text = given.get("definition")
    if "src" in given:
        try:
            with open(given["src"], encoding="utf-8") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise RolloutError(f"src {given['src']} cannot be read", why=str(error)) from error
    if text is None:
        return None
    documents = text if isinstance(text, list) else [text]
    if isinstance(text, str):
        import yaml  # here, because ansible-test imports this file where there is no PyYAML

        try:
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise RolloutError(f"{source} is not YAML", why=" ".join(str(error).split())) from error
    if len(documents) != 1:
        raise RolloutError(f"{source} holds {len(documents)} documents: it must be one {kind}")
    definition = documents[0]
    found = definition.get("kind") if isinstance(definition, dict) else type(definition).__name__
    if found != kind:
        raise RolloutError(f"{source} is of kind {found}: it must be a {kind}")
    metadata, spec = definition.get("metadata") or {}, definition.get("spec") or {}
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(metadata, dict) or not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
        raise RolloutError(f"{source} has no pod template (spec.template.spec)")
    _json(source, definition)
    inner = template.get("metadata") or {}
    labels, selector = inner.get("labels") if isinstance(inner, dict) else inner, spec.get("selector")
    if kind is not Kind.REPLICATION_CONTROLLER and isinstance(selector, dict):
        selector = selector.get("matchLabels")
    for field, value in (("metadata.labels", metadata.get("labels")), ("metadata.annotations", metadata.get("annotations")),
                         ("spec.selector", selector), ("spec.template.metadata.labels", labels)):
        texts = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        if value is not None and not texts:
            raise RolloutError(f"{field} of {source} is no mapping of texts to texts")
    if not isinstance(metadata.get("name", ""), str) or not isinstance(metadata.get("namespace") or "", str):
        raise RolloutError(f"name and namespace of {source} must be texts")
    labels, selector = labels or {}, selector or {}
    if not labels and not selector:
        raise RolloutError(f"{source} has no labels in its pod template")
    if any(labels.get(key) != value for key, value in selector.items()):
        raise RolloutError(
            f"the selector {_labels(selector)} of {source} does not match its own template's labels {_labels(labels)}"
        )
    return {**definition, "metadata": metadata, "spec": spec}


def _json(option: str, value: t.Any) -> t.Any:
    """Refuse what YAML can say and JSON cannot: dates, sets, keys that are no texts, structures that contain themselves.

    And half a character: YAML knows escapes for each half of a pair of surrogates.
    """
    try:
        json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False).encode()  # half of a surrogate pair is no text
    except (TypeError, ValueError, RecursionError) as error:
        raise RolloutError(f"{option} cannot be sent to the API server", why=str(error)) from error
    return value


def _labels(labels: t.Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _name(option: str, value: str) -> str:
    if len(value) > identity.NAME_LIMIT or not _SUBDOMAIN.fullmatch(value):
        raise RolloutError(
            f"{option} {value!r} is no object's name: small letters, digits, '-' and '.', at most {identity.NAME_LIMIT}"
        )
    return value


def _label_key(value: str | None) -> str:
    if value is None:
        return identity.DEPLOYMENT_LABEL
    prefix, slash, name = value.rpartition("/")
    valid_prefix = not slash or (len(prefix) <= identity.NAME_LIMIT and _SUBDOMAIN.fullmatch(prefix))
    if not valid_prefix or not _LABEL_NAME.fullmatch(name):
        raise RolloutError(f"deployment_label_key {value!r} is no label's key, such as {identity.DEPLOYMENT_LABEL}")
    return value


def _image(container: str, image: t.Any) -> None:
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        raise RolloutError(f"{image!r} is no image's name" + (f" (container {container})" if container else ""))
    if container and not _NAMESPACE.fullmatch(container):
        raise RolloutError(f"{container!r} is no container's name")


def size(option: str, value: t.Any) -> Size:
    """Read a number or a percentage. Raises RolloutError."""
    text = str(value).strip()
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise RolloutError(f'{option} {text!r} is neither a number nor a percentage such as "25%"')
    if text != number and int(number) > 100:
        raise RolloutError(f"{option} {text} is over 100%")
    return Size(int(number), percent=text != number)


def _not_negative(option: str, value: t.Any) -> t.Any:
    if value is not None and not 0 <= value < 2**31:
        raise RolloutError(f"{option} {value} is no number of seconds")
    return value


def _positive(option: str, value: float) -> float:
    if not 0 < value < 2**31:
        raise RolloutError(f"{option} {value} is no number of seconds above 0")
    return value

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The options of the modules, and what they ask for, validated. Nobody else looks at a module's parameters."""

from __future__ import annotations

import json
import re
import typing as t

from . import marks
from .errors import RolloutError
from .fields import Json, pairs
from .identity import NAME_LIMIT, is_name
from .kinds import ROLLED, Kind, State
from .request import PREVIOUS, Request
from .template import is_image
from .thresholds import Size

#: How many controllers are rolled at the same time, and how many failures (or percent) keep no further one from being begun.
CONCURRENCY, MAX_FAILURES = 5, "0"
#: When a new pod may come in place of an old one, in the words of KEP-5882 (Deployment spec.podReplacementPolicy).
TERMINATION_STARTED, TERMINATION_COMPLETE = "TerminationStarted", "TerminationComplete"
#: The options of the rollout itself, documented in plugins/modules/rolling_update.py. Most defaults are those of a Request.
ARGUMENT_SPEC: Json = dict(
    name=dict(type="str"),
    names=dict(type="list", elements="str"),
    label_selectors=dict(type="list", elements="str"),
    concurrency=dict(type="int", default=CONCURRENCY),
    max_failures=dict(type="str", default=MAX_FAILURES),
    order_annotation=dict(type="str"),
    namespace=dict(type="str", default=Request.namespace),
    kind=dict(type="str", choices=[str(kind) for kind in ROLLED]),
    kinds=dict(type="list", elements="str", choices=[str(kind) for kind in ROLLED]),
    next_name=dict(type="str"),
    image=dict(type="str"),
    container=dict(type="str"),
    images=dict(type="dict"),
    template=dict(type="dict"),
    definition=dict(type="raw"),
    src=dict(type="path"),
    state=dict(type="str", choices=[str(state) for state in State], default=str(Request.state)),
    to_kind=dict(type="str", choices=[str(Kind.DEPLOYMENT)]),
    release_owner=dict(type="bool", default=Request.releases_owner),
    to_revision=dict(type="str"),
    revision_history_limit=dict(type="int", default=Request.revision_history_limit),
    deployment_label_key=dict(type="str", default=Request.label_key, no_log=False),
    max_surge=dict(type="str"),
    max_unavailable=dict(type="str"),
    pod_replacement_policy=dict(type="str", choices=[TERMINATION_STARTED, TERMINATION_COMPLETE],
                                default=TERMINATION_STARTED),
    min_ready_seconds=dict(type="int"),
    update_period=dict(type="float", default=Request.update_period),
    progress_deadline=dict(type="float", default=Request.progress_deadline),
    timeout=dict(type="float"),
    failure_grace=dict(type="float", default=Request.failure_grace),
    on_failure=dict(type="str", choices=["stop", "rollback"], default="stop"),
    pause_at=dict(type="str"),
    soak=dict(type="str"),
    nodes=dict(type="str"),
    max_steps=dict(type="int"),
    autoscaler=dict(type="str", choices=["freeze", "refuse", "ignore"], default=Request.autoscaler),
    record_events=dict(type="bool", default=Request.record_events),
    return_sizes=dict(type="bool", default=Request.return_sizes),
    lock=dict(type="bool", default=Request.lock),
    lock_timeout=dict(type="float", default=Request.lock_timeout),
    progress=dict(type="bool", default=True),
)

#: The ways to say what the new pods look like; one of them at a time.
CHANGES = ("image", "images", "template", "definition", "src")
#: What the server's own controller has no place for, where it takes the steps.
NOT_OF_THE_SERVERS_STEPS = ("next_name", "max_steps", "update_period")
#: The most templates that are kept of a controller.
HISTORY_LIMIT = 100

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DURATION = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,3})?)|(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def request_from(params: Json) -> Request:
    """What a module's parameters ask for: the one place where "" (an empty AWX survey answer) becomes "not given".

    Raises RolloutError with one sentence for whatever makes no sense.
    """
    given = {key: value for key, value in params.items() if value is not None and value != "" and value != {}}
    state, kind = State(given.get("state", Request.state)), Kind(given.get("kind", Request.kind))
    if state.undoes:  # the same task, to go back: what its pods were to look like is no matter then
        given = {key: value for key, value in given.items() if key not in ("template", "definition", "src")}
    _refuse_contradictions(state, kind, given)
    name = _name("name", given.get("name", ""))
    definition = _definition(given, kind)
    is_previous = str(given.get("to_revision")).strip() == PREVIOUS
    if is_previous:
        del given["to_revision"]
    request = Request(
        name=name,
        state=state,
        kind=kind,
        next_name=_next_name(name, given, kind, definition),
        images=_images(given),
        definition=definition,
        is_previous=is_previous,
        releases_owner=given.get("release_owner", Request.releases_owner),
        label_key=kind.server_label or _label_key(params.get("deployment_label_key")),
        gives_strategy=bool({"max_surge", "max_unavailable"} & given.keys()),
        rolls_back=given.get("on_failure") == "rollback",
        waits_for_termination=given.get("pod_replacement_policy") == TERMINATION_COMPLETE,
        options=_provided(params),
        **{option: given[option] for option in _TAKEN if option in given},
        **_fenceposts(kind, given)
        | {option: check(option, given[option]) for option, check in _CHECKED.items() if option in given},
    )
    _refuse_what_cannot_go_on(request)
    return request


def _provided(params: Json) -> Json:
    """Return the options that the user provided, without those that have their default: no command has to repeat these."""
    return {option: params[option] for option, spec in ARGUMENT_SPEC.items()
            if params.get(option) not in (None, "", [], {}, spec.get("default"))}


def _fenceposts(kind: Kind, given: Json) -> dict[str, Size]:
    """What max_surge and max_unavailable are where they are not given, and a kind has other defaults than a Request."""
    if not (kind.replaces_in_place or kind.surges_or_lacks):
        return {}
    surges = kind.surges_or_lacks and size("max_surge", given.get("max_surge", 0)).value > 0
    return {"max_surge": Size(0), "max_unavailable": Size(0 if surges else 1)}


def _refuse_contradictions(state: State, kind: Kind, given: Json) -> None:
    """Refuse options that ask for nothing, or for more than one thing."""
    if kind.may_only_be_migrated and not (state.migrates or (state.undoes and "to_revision" not in given)):
        raise RolloutError(f"a {kind} can only be migrated here: use state=migrated with to_kind={Kind.DEPLOYMENT} and update the "
                           f"Deployment then, or use oc rollout and oc rollback")
    changes = [option for option in CHANGES if option in given]
    if state.changes_template and not changes:
        raise RolloutError("nothing to update: give one of image, images, template, definition or src")
    if len(changes) > 1:
        raise RolloutError(f"{' and '.join(changes)} cannot be combined: give only one of them")
    if state.restarts and changes:
        raise RolloutError(f"state=restarted keeps the template: remove {changes[0]}, or use state=updated")
    _refuse_migration(state, kind, given, changes)
    if "to_revision" in given and not state.undoes:
        raise RolloutError("to_revision can only be used with state=rolled_back")
    if "container" in given and "image" not in given:
        raise RolloutError("container is given without image")


def _refuse_what_cannot_go_on(request: Request) -> None:
    if request.kind.replaces_in_place and (request.max_surge.value or not request.max_unavailable.value):
        option = "max_surge" if request.max_surge.value else "max_unavailable=0"
        raise RolloutError(f"{option} cannot be used with kind={request.kind}, because an old pod has to go before the new one of "
                           f"its name can come: leave it out")
    if request.kind.surges_or_lacks and request.max_surge.value:
        if request.max_unavailable.value:
            raise RolloutError(f"max_surge and max_unavailable cannot be combined with kind={request.kind}: the API server takes "
                               f"only one of them")
        if request.pause_at is not None and not request.state.undoes:
            raise RolloutError(f"max_surge cannot be used with pause_at and kind={request.kind}, because an old pod has to go "
                               f"before the new one of its node can come: give max_unavailable")
    if request.waits_for_termination and request.kind.is_stepped_by_server and not request.kind.makes_pods_by_revisions:
        raise RolloutError(f"pod_replacement_policy={TERMINATION_COMPLETE} cannot be used with kind={request.kind}, because the "
                           f"cluster takes the steps: leave it out, and where the cluster has the feature gate "
                           f"DeploymentPodReplacementPolicy, set spec.podReplacementPolicy of the Deployment")
    if request.nodes and not request.kind.has_pods_by_node:
        raise RolloutError(f"nodes cannot be used with kind={request.kind}, which does not have one pod on each node: leave it out")
    if request.nodes and request.pause_at is None:
        raise RolloutError("nodes says which pods are the first up to a pause: give pause_at as well")
    if request.definition is not None:
        namespace = request.definition["metadata"].get("namespace") or request.namespace
        if namespace != request.namespace:
            raise RolloutError(f"the definition is for namespace {namespace}, but the task is for {request.namespace}")
    if request.max_surge.value == 0 and request.max_unavailable.value == 0:
        raise RolloutError("max_surge and max_unavailable are both 0, so no pod could ever be replaced: "
                           "set one of them to at least 1")
    if request.timeout is not None and request.soak >= request.timeout and not request.state.undoes:
        raise RolloutError(f"timeout ({request.timeout:g} s) must be greater than soak ({request.soak:g} s)")
    if (request.min_ready_seconds or 0) >= request.progress_deadline:
        # As the API server demands of a Deployment: no pod could ever be available in time.
        raise RolloutError(f"progress_deadline ({request.progress_deadline:g} s) must be greater than min_ready_seconds "
                           f"({request.min_ready_seconds} s)")


def _refuse_migration(state: State, kind: Kind, given: Json, changes: t.Sequence[str]) -> None:
    """Refuse what makes no sense with state=migrated, or without it."""
    if not state.migrates:
        for option in ("to_kind", "release_owner"):
            if given.get(option):
                raise RolloutError(f"{option} can only be used with state=migrated")
        return
    if "to_kind" not in given:
        raise RolloutError(f"state=migrated needs to_kind={Kind.DEPLOYMENT}")
    if not kind.may_be_migrated:
        raise RolloutError(f"state=migrated only works for a {Kind.REPLICATION_CONTROLLER} or a {Kind.DEPLOYMENT_CONFIG}, "
                           f"not for a {kind}")
    if kind.may_only_be_migrated and given.get("release_owner"):
        raise RolloutError(f"release_owner cannot be used with kind={kind}, which is migrated itself: leave it out")
    if given.get("soak"):
        raise RolloutError("state=migrated keeps the pods: remove soak")
    if given.get("pod_replacement_policy") == TERMINATION_COMPLETE:
        raise RolloutError("state=migrated keeps the pods: remove pod_replacement_policy")
    if changes:
        raise RolloutError(f"state=migrated keeps the pods: remove {changes[0]}, and update the Deployment afterwards")


def _refuse_for_steps_of_the_server(name: str, kind: Kind, given: Json, definition: Json | None) -> None:
    """Refuse what cannot be where the object stays the same one, and the server's own controller replaces its pods."""
    for option in NOT_OF_THE_SERVERS_STEPS:
        if given.get(option):
            raise RolloutError(f"{option} cannot be used with kind={kind}, because the cluster takes the steps: "
                               f"leave it out")
    defined_name = definition["metadata"].get("name", name) if definition else name
    if defined_name != name:
        raise RolloutError(f"the definition is named {defined_name}, but the task is for {name}: a {kind} cannot be renamed")


def _next_name(name: str, given: Json, kind: Kind, definition: Json | None) -> str | None:
    """The user's name for the successor, from the option or the definition."""
    if kind.is_stepped_by_server:
        _refuse_for_steps_of_the_server(name, kind, given, definition)
        return None
    next_name = given.get("next_name")
    defined_name = definition["metadata"].get("name") if definition else None
    if defined_name and next_name not in (None, defined_name):
        raise RolloutError(f"next_name is {next_name}, but the definition is named {defined_name}: give only one name")
    next_name = defined_name or next_name
    if next_name is not None and _name("next_name", next_name) == name:
        raise RolloutError(f"the successor cannot also be named {name}: both controllers exist during the update")
    return next_name


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
            raise RolloutError(f"{source} is not valid YAML", why=" ".join(str(error).split())) from error
    if len(documents) != 1:
        raise RolloutError(f"{source} contains {len(documents)} documents: it must be exactly one {kind}")
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
    if isinstance(selector, dict):
        selector = kind.labels(selector)
    for field, value in (("metadata.labels", metadata.get("labels")), ("metadata.annotations", metadata.get("annotations")),
                         ("spec.selector", selector), ("spec.template.metadata.labels", labels)):
        texts = isinstance(value, dict) and all(isinstance(each, str) for each in value.values())
        if value is not None and not texts:
            raise RolloutError(f"{field} in {source} must map strings to strings")
    if not isinstance(metadata.get("name", ""), str) or not isinstance(metadata.get("namespace") or "", str):
        raise RolloutError(f"name and namespace of {source} must be strings")
    labels, selector = labels or {}, selector or {}
    if not labels and not selector:
        raise RolloutError(f"{source} has no labels in its pod template")
    if any(labels.get(key) != value for key, value in selector.items()):
        raise RolloutError(
            f"the selector {pairs(selector)} in {source} does not match the labels of its template ({pairs(labels)})"
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


def _name(option: str, value: str) -> str:
    if not is_name(value):
        raise RolloutError(
            f"{option} {value!r} is not a valid object name: use lower-case letters, digits, '-' and '.', "
            f"at most {NAME_LIMIT} characters"
        )
    return value


def _label_key(value: str | None) -> str:
    if value is None:
        return marks.DEPLOYMENT_LABEL
    prefix, slash, name = value.rpartition("/")
    valid_prefix = not slash or is_name(prefix)
    if not valid_prefix or not _LABEL_NAME.fullmatch(name):
        raise RolloutError(f"deployment_label_key {value!r} is not a valid label key (example: {marks.DEPLOYMENT_LABEL})")
    return value


def _namespace(_option: str, value: str) -> str:
    if not _NAMESPACE.fullmatch(value):
        raise RolloutError(f"{value!r} is not a valid namespace name")
    return value


def _images(given: Json) -> dict[str, str]:
    images = {given.get("container", ""): given["image"]} if "image" in given else given.get("images", {})
    for container, image in images.items():
        if not isinstance(image, str) or not is_image(image):
            raise RolloutError(f"{image!r} is not a valid image name" + (f" (container {container})" if container else ""))
        if container and not _NAMESPACE.fullmatch(container):
            raise RolloutError(f"{container!r} is not a valid container name")
    return images


def _revision(_option: str, value: t.Any) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 9:
        raise RolloutError(f"to_revision {text!r} is neither the number of a revision nor {PREVIOUS}")
    if int(text) < 1:
        raise RolloutError(f"to_revision must be at least 1, not {text}")
    return int(text)


def _history_limit(_option: str, value: int) -> int:
    if not 0 <= value <= HISTORY_LIMIT:
        raise RolloutError(f"revision_history_limit must be between 0 and {HISTORY_LIMIT}, not {value}")
    return value


def _pause(option: str, value: t.Any) -> Size:
    pods = size(option, value)
    if pods.value == 0:
        raise RolloutError("pause_at=0 would pause before there is any new pod: give 1 or more")
    return pods


def _steps(_option: str, value: int) -> int:
    if value < 1:
        raise RolloutError(f"max_steps must be at least 1, not {value}")
    return value


def size(option: str, value: t.Any) -> Size:
    """Read a number or a percentage. Raises RolloutError."""
    text = str(value).strip()
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()) or len(number) > 9:
        raise RolloutError(f'{option} {text!r} is neither a number nor a percentage such as "25%"')
    if text != number and int(number) > 100:
        raise RolloutError(f"{option} {text} is over 100%")
    return Size(int(number), percent=text != number)


def _not_negative(option: str, value: float) -> float:
    if not 0 <= value < 2**31:
        raise RolloutError(f"{option} must be a number of seconds, not {value}")
    return value


def _positive(option: str, value: float) -> float:
    if not 0 < value < 2**31:
        raise RolloutError(f"{option} must be more than 0 seconds, not {value}")
    return value


def duration(option: str, value: t.Any) -> float:
    """Seconds, or hours, minutes and seconds with their units. Raises RolloutError."""
    text = str(value).strip()
    parts = _DURATION.fullmatch(text)
    if not text or not parts:
        raise RolloutError(f"{option} {text!r} is neither a number of seconds nor a duration such as 90s, 10m or 1h30m")
    plain, *units = parts.groups()
    return _not_negative(option, float(plain or sum(int(each or 0) * of for each, of in zip(units, (3600, 60, 1)))))


#: What is a field of a Request as it is given: options, and what task.py has found out about the connection.
_TAKEN = ("nodes", "autoscaler", "record_events", "return_sizes", "lock", "connection")
#: Options that are fields of a Request once they have been checked.
_CHECKED: dict[str, t.Callable[[str, t.Any], t.Any]] = {
    "namespace": _namespace,
    "template": _json,
    "to_revision": _revision,
    "revision_history_limit": _history_limit,
    "max_surge": size,
    "max_unavailable": size,
    "min_ready_seconds": _not_negative,
    "update_period": _not_negative,
    "progress_deadline": _positive,
    "timeout": _positive,
    "failure_grace": _not_negative,
    "pause_at": _pause,
    "soak": duration,
    "max_steps": _steps,
    "lock_timeout": _not_negative,
}

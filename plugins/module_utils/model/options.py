# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the modules, and build the Request."""

from __future__ import annotations

import re
import typing as t

from . import object_meta
from .config_objects import parse_references
from .definition import kind_of_definition, read_definition, refuse_non_json
from .errors import RolloutError
from .fields import Json
from .identity import MAX_NAME_LENGTH, is_name
from .impossible import TERMINATION_COMPLETE, TERMINATION_STARTED, refuse_impossible_request
from .kinds import KINDS, Kind, Module, State, kind_named
from .request import PREVIOUS, Request
from .template import is_image
from .thresholds import Size

#: Defaults of the options concurrency and max_failures.
DEFAULT_CONCURRENCY, DEFAULT_MAX_FAILURES = 5, "0"
#: The options of the module rolling_update, documented in plugins/modules/rolling_update.py.
ARGUMENT_SPEC: Json = dict(
    name=dict(type="str"),
    names=dict(type="list", elements="str"),
    label_selectors=dict(type="list", elements="str"),
    field_selectors=dict(type="list", elements="str"),
    concurrency=dict(type="int", default=DEFAULT_CONCURRENCY),
    max_failures=dict(type="str", default=DEFAULT_MAX_FAILURES),
    namespace=dict(type="str"),
    namespaces=dict(type="list", elements="str"),
    namespace_selectors=dict(type="list", elements="str"),
    kind=dict(type="list", elements="str"),
    api_version=dict(type="str"),
    next_name=dict(type="str"),
    image=dict(type="str"),
    container=dict(type="str"),
    images=dict(type="dict"),
    template=dict(type="dict"),
    definition=dict(type="raw", aliases=["resource_definition"]),
    src=dict(type="path"),
    roll_on=dict(type="list", elements="str"),
    state=dict(type="str", choices=list(map(str, Module.ROLLING_UPDATE.states)),
               default=str(Module.ROLLING_UPDATE.default_state)),
    to_revision=dict(type="str"),
    deployment_label_key=dict(type="str", default=Request.label_key, no_log=False),
    max_surge=dict(type="str"),
    max_unavailable=dict(type="str"),
    pod_replacement_policy=dict(type="str", choices=[TERMINATION_STARTED, TERMINATION_COMPLETE],
                                default=TERMINATION_STARTED),
    min_ready_seconds=dict(type="str"),
    progress_deadline=dict(type="str", default=f"{Request.progress_deadline:g}"),
    wait=dict(type="bool", default=Request.waits),
    timeout=dict(type="str", aliases=["wait_timeout"]),
    failure_grace=dict(type="str", default=f"{Request.failure_grace:g}"),
    on_failure=dict(type="str", choices=["stop", "rollback"], default="stop"),
    pause_at=dict(type="str"),
    keep_old=dict(type="bool", default=Request.keeps_old),
    soak=dict(type="str"),
    nodes=dict(type="str"),
    image_drift=dict(type="str", choices=["warn", "fail", "ignore"], default=Request.image_drift),
    autoscaler=dict(type="str", choices=["freeze", "refuse", "ignore"], default=Request.autoscaler),
    suspend_gitops=dict(type="bool", default=Request.suspends_gitops),
    lock=dict(type="bool", default=Request.lock),
    lock_timeout=dict(type="str", default=f"{Request.lock_timeout:g}"),
    progress=dict(type="bool", default=True),
)

MIGRATION_SPEC: Json = {option: ARGUMENT_SPEC[option] for option in (
    "name", "names", "label_selectors", "field_selectors", "namespace", "kind",
    "max_surge", "max_unavailable", "progress_deadline", "timeout", "failure_grace",
    "concurrency", "max_failures", "deployment_label_key", "autoscaler", "lock", "lock_timeout",
    "progress",
)} | dict(
    state=dict(type="str", choices=list(map(str, Module.MIGRATION.states)),
               default=str(Module.MIGRATION.default_state)),
    release_owner=dict(type="bool", default=Request.releases_owner),
)
_MIGRATION_HINT = f"use the module baton.kubernetes.{Module.MIGRATION}"
#: For rolling_update, the migration module and the roles.
_REMOVED_FROM_UPDATES_AND_ROLES = {
    "order_annotation": "the controllers in names are updated in the order of that list, and "
                        "selected controllers in alphabetical order",
    "record_events": "each step is recorded as an Event if the task may create Events",
}
_HISTORY_HINT = "the last 10 templates are stored, as many as a Deployment stores by default"
#: For rolling_update, the migration module and rolling_update_info, but not for the roles.
_REMOVED_FROM_MODULES = {"kinds": "kind takes several kinds, as in kind=deploy,sts"}
#: The replacement of each option that rolling_update no longer has.
REMOVED = {
    "to_kind": _MIGRATION_HINT, "release_owner": _MIGRATION_HINT,
    "return_sizes": "the roles collect the sizes for their report themselves",
    "max_steps": "pause_at ends a task at a number of new pods, and timeout after a time",
    "update_period": "min_ready_seconds sets how long a new pod must be ready before the next step",
    "revision_history_limit": _HISTORY_HINT,
    **_REMOVED_FROM_MODULES, **_REMOVED_FROM_UPDATES_AND_ROLES,
}
#: The replacement of each option that the roles and playbooks no longer have.
REMOVED_FROM_ROLES = {
    "max_steps": "stages end at numbers of new pods, and timeout ends a task after a time",
    "update_period": "min_ready_seconds of an update sets how long a new pod must be ready before "
                     "the next step",
    "revision_history_limit": _HISTORY_HINT,
    **_REMOVED_FROM_UPDATES_AND_ROLES,
}
SPECS = {Module.ROLLING_UPDATE: ARGUMENT_SPEC, Module.MIGRATION: MIGRATION_SPEC}

#: Mutually exclusive options for the desired template.
TEMPLATE_OPTIONS = ("image", "images", "template", "definition", "src")

#: The name of a namespace or of a container.
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: A number with this many digits fits into an int32.
_MAX_DIGITS = 9
#: "90" (group 1) or "1h30m" (groups 2 to 4).
_DURATION = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,18})?)"
                       r"|(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s)?")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def parse_request(params: Json) -> Request:
    """Return the request for the parameters of a module. Raises RolloutError."""
    # AWX passes an empty string for an empty field.
    options = {key: value for key,
               value in params.items() if value is not None and value not in ("", {}, [])}
    module = Module(options.get("module", Request.module))
    state = State(options.get("state", module.default_state))
    kind = parse_kind("kind", options.get("kind", Request.kind), module)
    if state.rolls_back:  # Ignore the template: a user may just add state=rolled_back to a task.
        options = {key: value for key, value in options.items()
                   if key not in ("template", "definition", "src", "roll_on")}
    _refuse_contradictions(module, state, kind, options)
    # Only a fleet has a limit of failures, but an invalid value is an error in each request.
    parse_size("max_failures", options.get("max_failures", DEFAULT_MAX_FAILURES))
    name = _parse_name("name", options.get("name", ""))
    definition = read_definition(options, kind)
    rolls_back_to_previous = str(options.get("to_revision")).strip() == PREVIOUS
    if rolls_back_to_previous:
        del options["to_revision"]
    request = Request(
        name=name,
        module=module,
        state=state,
        kind=kind,
        next_name=_parse_next_name(name, options, kind, definition),
        images=_parse_images(options),
        definition=definition,
        rolls_back_to_previous=rolls_back_to_previous,
        releases_owner=options.get("release_owner", Request.releases_owner),
        label_key=kind.server_label or _parse_label_key(params.get("deployment_label_key")),
        overrides_strategy=bool({"max_surge", "max_unavailable"} & options.keys()),
        rolls_back_on_failure=options.get("on_failure") == "rollback",
        keeps_old=options.get("keep_old", Request.keeps_old),
        resumes_only=name in params.get("resumed_names", ()),
        suspends_gitops=options.get("suspend_gitops", Request.suspends_gitops),
        waits=options.get("wait", Request.waits),
        waits_for_termination=options.get("pod_replacement_policy") == TERMINATION_COMPLETE,
        job_template=params.get("job_template"),
        options=_without_defaults({**params, "kind": params.get("kinds") or params.get("kind")},
                                  SPECS[module]),
        **{option: options[option] for option in _COPIED_OPTIONS if option in options},
        **_default_limits(kind, options)
        | {option: parse(option, options[option]) for option,
           parse in _PARSERS.items() if option in options},
    )
    refuse_impossible_request(request)
    return request


def refuse_removed(module: Module | None, arguments: t.Mapping[str, t.Any]) -> None:
    """Refuse removed options and values. Raises RolloutError with the replacement.

    module: None for rolling_update_info. arguments: the options as provided by the user.
    """
    is_rolling_update = module is Module.ROLLING_UPDATE
    removed_options = {**_REMOVED_FROM_MODULES,
                       **(_REMOVED_FROM_UPDATES_AND_ROLES if module else {}),
                       **(REMOVED if is_rolling_update else {})}
    for option, replacement in removed_options.items():
        if option in arguments:
            raise RolloutError(f"{option} was removed: {replacement}")
    state = arguments.get("state")
    if (is_rolling_update and state in Module.MIGRATION.states
            and state not in Module.ROLLING_UPDATE.states):
        raise RolloutError(f"state={state} was removed: {_MIGRATION_HINT}")


def _without_defaults(params: Json, specs: Json) -> Json:
    return {option: params[option] for option, spec in specs.items()
            if params.get(option) not in (None, "", [], {}, spec.get("default"))}


def _default_limits(kind: Kind, options: Json) -> dict[str, Size]:
    """Return the defaults of max_surge and max_unavailable; {} if the defaults of Request apply."""
    if not (kind.replaces_in_place or kind.has_exclusive_surge):
        return ({"max_surge": Size(100, percent=True), "max_unavailable": Size(0)}
                if options.get("keep_old") else {})
    has_surge = (kind.has_exclusive_surge
                 and parse_size("max_surge", options.get("max_surge", 0)).value > 0)
    return {"max_surge": Size(0), "max_unavailable": Size(0 if has_surge else 1)}


def _refuse_contradictions(module: Module, state: State, kind: Kind, options: Json) -> None:
    if module is Module.MIGRATION:
        if kind.is_migration_only and options.get("release_owner"):
            raise RolloutError(f"release_owner cannot be used with kind={kind}, because the {kind} "
                               f"itself is migrated: leave out release_owner")
        return
    template_options = [option for option in TEMPLATE_OPTIONS if option in options]
    if state.updates and not template_options and "roll_on" not in options:
        raise RolloutError("nothing to update: give one of image, images, template, definition or "
                           "src, or roll_on")
    if len(template_options) > 1:
        raise RolloutError(f"{' and '.join(template_options)} cannot be combined: give only one of "
                           f"them")
    template_options += ["roll_on"] if "roll_on" in options else []
    if state.restarts and template_options:
        raise RolloutError(f"state=restarted keeps the template: remove {template_options[0]}, or "
                           f"use state=updated")
    if "to_revision" in options and not state.rolls_back:
        raise RolloutError("to_revision can only be used with state=rolled_back")
    if "container" in options and "image" not in options:
        raise RolloutError("container requires image")


def _refuse_new_name(name: str, kind: Kind, options: Json, definition: Json | None) -> None:
    if options.get("next_name"):
        raise RolloutError(f"next_name cannot be used with kind={kind}, because the cluster "
                           "itself performs the update: leave out next_name")
    definition_name = definition["metadata"].get("name", name) if definition else name
    if definition_name != name:
        raise RolloutError(f"the definition is named {definition_name}, but the task is for "
                           f"{name}: a {kind} cannot be renamed")


def _parse_next_name(name: str, options: Json, kind: Kind, definition: Json | None) -> str | None:
    """Return the name of a successor that replaces the primary for good, if requested."""
    if kind.is_server_driven:
        _refuse_new_name(name, kind, options, definition)
        return None
    next_name = options.get("next_name")
    definition_name = definition["metadata"].get("name") if definition else None
    if definition_name and next_name not in (None, definition_name):
        raise RolloutError(f"next_name is {next_name}, but the definition is named "
                           f"{definition_name}: give only one name")
    next_name = definition_name or next_name
    if next_name is not None and _parse_name("next_name", next_name) == name:
        raise RolloutError(f"the successor cannot also be named {name}: both controllers exist "
                           f"during the update")
    return next_name


def _parse_name(option: str, value: str) -> str:
    if not is_name(value):
        raise RolloutError(
            f"{option} {value!r} is not a valid object name: use lower-case letters, digits, '-' "
            f"and '.', at most {MAX_NAME_LENGTH} characters"
        )
    return value


def _parse_label_key(value: str | None) -> str:
    if value is None:
        return object_meta.DEPLOYMENT_LABEL
    prefix, slash, name = value.rpartition("/")
    has_valid_prefix = not slash or is_name(prefix)
    if not has_valid_prefix or not _LABEL_NAME.fullmatch(name):
        raise RolloutError(f"deployment_label_key {value!r} is not a valid label key (example: "
                           f"{object_meta.DEPLOYMENT_LABEL})")
    return value


def _parse_namespace(_option: str, value: str) -> str:
    if not _DNS_LABEL.fullmatch(value):
        raise RolloutError(f"{value!r} is not a valid namespace name")
    return value


def _parse_images(options: Json) -> dict[str, str]:
    images = options.get("images", {})
    if "image" in options:
        images = {options.get("container", ""): options["image"]}
    for container, image in images.items():
        if not isinstance(image, str) or not is_image(image):
            raise RolloutError(f"{image!r} is not a valid image name"
                               + (f" (container {container})" if container else ""))
        if container and not _DNS_LABEL.fullmatch(container):
            raise RolloutError(f"{container!r} is not a valid container name")
    return images


def _parse_revision(_option: str, value: t.Any) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > _MAX_DIGITS:
        raise RolloutError(f"to_revision {text!r} is neither the number of a revision nor "
                           f"{PREVIOUS}")
    if int(text) < 1:
        raise RolloutError(f"to_revision must be at least 1, not {text}")
    return int(text)


def parse_pause(option: str, value: t.Any) -> Size:
    """Parse the number or percentage of new pods at a pause. Raises RolloutError."""
    pods = parse_size(option, value)
    if pods.value == 0:
        raise RolloutError(f"{option} {str(value).strip()} would pause before the first new pod: "
                           "set at least 1")
    return pods


def parse_size(option: str, value: t.Any) -> Size:
    """Parse a number or a percentage of pods, such as 3 or "25%". Raises RolloutError."""
    text = str(value).strip()
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit()) or len(number) > _MAX_DIGITS:
        raise RolloutError(f'{option} {text!r} is neither a number nor a percentage such as "25%"')
    if text != number and int(number) > 100:
        raise RolloutError(f"{option} {text} is over 100%")
    return Size(int(number), percent=text != number)


def parse_kind(option: str, value: str, module: Module | None = Module.ROLLING_UPDATE) -> Kind:
    """Return the kind with this name or short name. Raises RolloutError.

    module: None allows any kind.
    """
    kind, allowed_kinds = kind_named(str(value)), KINDS if module is None else module.kinds
    if kind and kind.is_migration_only and kind not in allowed_kinds:
        raise RolloutError(f"a {kind} cannot be updated here: migrate it with the module "
                           f"{Module.MIGRATION}, and then update the Deployment; or use oc rollout "
                           "and oc rollback")
    if kind is None or kind not in allowed_kinds:
        verb = "migrated" if module is Module.MIGRATION else "updated"
        choices = ", ".join(f"{choice} ({choice.abbreviation})" for choice in allowed_kinds)
        raise RolloutError(f"{option} {str(value)!r} is not a kind that can be {verb}: give one of "
                           f"{choices}")
    return kind


def with_kinds(params: Json, module: Module | None = None) -> Json:
    """Return the parameters with kinds named as in a manifest: sts becomes StatefulSet.

    Several kinds are in the list `kinds`, with `kind` set to None. The default is the kind in the
    manifest. module: None allows any kind. Raises RolloutError.
    """
    value = params.get("kind") or ()
    words = list(filter(str.strip, [value] if isinstance(value, str) else value))
    if not words and (default := kind_of_definition(params)):
        words = [str(default)]
    kinds = list(dict.fromkeys(parse_kind("kind", word, module) for word in words))
    _refuse_api_version(params.get("api_version"), kinds or [None])
    if len(kinds) > 1:
        return {**params, "kind": None, "kinds": list(map(str, kinds))}
    return {**params, "kind": str(kinds[0]) if kinds else None}


def _refuse_api_version(api_version: str | None, kinds: t.Sequence[Kind | None]) -> None:
    for kind in kinds if api_version else ():
        if kind is None:
            raise RolloutError(f"api_version {api_version} does not determine the kind: set kind")
        if api_version != kind.api_version:
            raise RolloutError(f"a {kind} has api_version {kind.api_version}, not {api_version}: "
                               "leave out api_version")


def _positive_duration(option: str, value: t.Any) -> float:
    seconds = parse_duration(option, value)
    if seconds == 0:
        raise RolloutError(f"{option} must be more than 0 seconds, not {value}")
    return seconds


def _whole_seconds(option: str, value: t.Any) -> int:
    seconds = parse_duration(option, value)
    if not seconds.is_integer():
        raise RolloutError(f"{option} must be a whole number of seconds, not {value}")
    return int(seconds)


def parse_duration(option: str, value: t.Any) -> float:
    """Parse a duration such as 90 or 1h30m into seconds. Raises RolloutError."""
    text = str(value).strip()
    parts = _DURATION.fullmatch(text)
    if not text or not parts:
        raise RolloutError(f"{option} {text!r} is neither a number of seconds nor a duration such "
                           f"as 90s, 10m or 1h30m")
    number_of_seconds, *numbers_with_units = parts.groups()
    seconds = float(number_of_seconds or sum(
        int(number or 0) * unit for number, unit in zip(numbers_with_units, (3600, 60, 1))))
    if seconds >= 2**31:
        raise RolloutError(f"{option} must be less than {2**31} seconds, not {value}")
    return seconds


#: Options that become fields of the Request without a check.
_COPIED_OPTIONS = ("nodes", "image_drift", "autoscaler", "return_sizes", "lock",
                   "connection", "default_namespace")
#: Parsers of options that become fields, called with the option's name and value.
_PARSERS: dict[str, t.Callable[[str, t.Any], t.Any]] = {
    "namespace": _parse_namespace,
    "template": refuse_non_json,
    "roll_on": parse_references,
    "to_revision": _parse_revision,
    "max_surge": parse_size,
    "max_unavailable": parse_size,
    "min_ready_seconds": _whole_seconds,
    "progress_deadline": _positive_duration,
    "timeout": _positive_duration,
    "failure_grace": parse_duration,
    "pause_at": parse_pause,
    "soak": parse_duration,
    "lock_timeout": parse_duration,
}

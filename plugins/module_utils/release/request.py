# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The request of a role, validated as a whole before the first turn. No I/O."""

from __future__ import annotations

import dataclasses
import functools
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, join_first, mapping, objects, text, values
from ..model.options import parse_duration
from .refusals import errors_of_turns
from .stage import ALL_PODS, Stage, errors_of_order, errors_of_shares, parse_stage
from .turn_options import IMAGES

#: Option -> playbook variable, for each option with a name that Ansible reserves, or that an
#: artifact with another value has.
PLAYBOOK_NAMES = {"name": "controller", "namespace": "controller_namespace",
                  "timeout": "time_limit", "previous_images": "previous_images_by_name"}


@dataclasses.dataclass(frozen=True)
class File:
    """A task file of the user."""

    #: As typed by the user.
    typed: str
    path: str


@dataclasses.dataclass(frozen=True)
class Request:
    """The request of a user who runs a role or a playbook."""

    #: image_bump or rollback.
    role: str
    #: role, playbook or awx. Messages use the variable names of this layer.
    layer: str
    #: Such as {"name": "web"}.
    selection: Json
    #: The options of the module rolling_update, without the selection.
    options: Json
    #: {controller: {container: image}}, of the selected controllers.
    previous_images: dict[str, Json]
    stages: list[Stage]
    #: Options of the module rollout_analysis, for each analysis.
    analyses: list[Json]
    #: The files of the hooks (before, after, failure) and of the checks (verify).
    before: list[File]
    verify: list[File]
    after: list[File]
    failure: list[File]
    #: In seconds; None if no approval is requested.
    approve_within: float | None
    #: Such as "15m", or "".
    keep_old_for: str
    #: The path of the report, or "".
    report: str
    #: Whether a report already exists at the path `report`.
    has_page: bool
    #: Whether the run must set artifacts (set_stats) for the next job of a workflow.
    has_artifacts: bool
    check_mode: bool
    #: The inventory host of a cluster; "" if the play runs only on localhost.
    host: str
    errors: list[str]
    job_template: str = ""
    #: Options whose values differ from the defaults, for a command that repeats the run. {} if no
    #: command can repeat the run.
    user_options: Json = dataclasses.field(default_factory=dict)
    cluster: Json = dataclasses.field(default_factory=dict)
    #: Whether the user has typed an inventory or a limit, which commands do not repeat.
    selects_hosts: bool = False
    #: route, route_kind, service and match of the module traffic_split.
    traffic: Json = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, variables: Json) -> Request:
        """Build a request from the result of the lookup release_request.

        Invalid values add messages to `errors`.
        """
        role, layer = text(variables, "role"), text(variables, "layer")
        errors = [str(error) for error in values(variables, "errors")]
        # option_name("stages") is the user's variable for the option, such as image_bump_stages.
        option_name = functools.partial(variable, role, layer)
        selection = _selection(variables)
        errors += [] if errors else _errors_of_selection(selection, option_name)
        traffic = mapping(variables, "traffic")
        stages = _stages(variables, f"{option_name('stages')}:", errors)
        analyses = variables.get("analyses") or []
        if not _is_list_of_dictionaries(analyses):
            errors.append(f"{option_name('analysis')} is not a list of dictionaries")
            analyses = []
        approve_within = variables.get("approve_within") or ""
        errors += (_errors_of_value(parse_duration, option_name("approve_within"), approve_within)
                   if approve_within else [])
        previous_images = mapping(variables, "previous")
        errors += _errors_of_previous_images(previous_images, selection, option_name)
        options = {option: value for option, value in mapping(variables, "options").items()
                   if not (previous_images and option in IMAGES)}
        keep_for = text(variables, "keep_old_for")
        errors += _errors_of_keep_for(keep_for, options, stages, option_name)
        errors += errors_of_shares(stages, selection, traffic, option_name,
                                   keeps_old=bool(options.get("keep_old")))
        files = {hook: [File(text(file, "typed"), text(file, "path"))
                        for file in objects(mapping(variables, "files"), hook)]
                 for hook in ("before", "verify", "after", "failure")}
        errors += [] if errors else _errors_of_images(role, options, option_name)
        errors += errors_of_order(stages, f"{option_name('stages')}:")
        request = cls(role, layer, selection, options,
                      _of_selected(previous_images, selection), stages, analyses, **files,
                      approve_within=(parse_duration("", approve_within)
                                      if approve_within and not errors else None),
                      keep_old_for=keep_for,
                      report=text(variables, "report"), has_page=bool(variables.get("has_page")),
                      has_artifacts=bool(variables.get("has_artifacts")),
                      check_mode=bool(variables.get("check_mode")), host=text(variables, "host"),
                      errors=errors, job_template=text(variables, "job_template"),
                      user_options=mapping(variables, "user_options"),
                      cluster=mapping(variables, "cluster"), traffic=traffic,
                      selects_hosts=bool(variables.get("selects_hosts")))
        if not errors:
            errors += _errors_of_missing_pauses(request) + errors_of_turns(request)
        return request

    @property
    def name(self) -> str:
        return str(self.selection.get("name") or "")

    @property
    def title(self) -> str:
        (selected, *_more) = self.selection.values() if self.selection else ("",)
        return (join_first(list(map(str, selected))) if isinstance(selected, list | tuple)
                else str(selected))

    @property
    def pauses(self) -> list[Stage]:
        """Return the stages at which the update pauses. Check mode never pauses."""
        return [] if self.check_mode else self.requested_pauses

    @property
    def requested_pauses(self) -> list[Stage]:
        """Return the stages at which an update without check mode pauses.

        With keep_old_for, the last stage occurs twice. During the second pause, the old
        pods are kept for the duration keep_old_for.
        """
        pauses_at_end = bool(self.verify or self.analyses or self.keeps_old)
        stages = [stage for stage in self.stages if pauses_at_end or not stage.updates_all_pods]
        if self.keep_old_for and stages:
            stages.append(dataclasses.replace(stages[-1], keep_for=self.keep_old_for))
        return stages

    @property
    def completes_update(self) -> bool:
        """Return whether the run itself completes the update, without an approval by a person."""
        return self.check_mode or self.stages[-1].updates_all_pods

    @property
    def keeps_old(self) -> bool:
        return bool(self.options.get("keep_old"))

    @property
    def rolls_back_on_failure(self) -> bool:
        return self.options.get("on_failure") == "rollback"

    @property
    def namespace_and_kind(self) -> Json:
        return {option: self.options[option] for option in ("namespace", "kind")
                if self.options.get(option)}

    @property
    def images(self) -> Json:
        return {option: self.options[option] for option in IMAGES if self.options.get(option)}

    @property
    def groups(self) -> list[tuple[list[str], Json]]:
        """Return the groups of controllers that a rollback updates together, as (names, images).

        All controllers of a group have the same previous images. Without previous images, there is
        the group ([], {}) for all selected controllers, or no group if the request sets no image.
        """
        groups: list[tuple[list[str], Json]] = []
        for name, images in self.previous_images.items():
            for names, group_images in groups:
                if group_images == images:
                    names.append(name)
                    break
            else:
                groups.append(([name], images))
        return groups or ([([], {})] if self.images else [])

    def variable(self, option: str) -> str:
        """Return the name of the user's variable for an option."""
        return variable(self.role, self.layer, option)


def variable(role: str, layer: str, option: str) -> str:
    """Return the name of the variable that sets an option of a role in a layer.

    >>> variable("rollback", "role", "name"), variable("rollback", "playbook", "name")
    ('rollback_name', 'controller')
    """
    return f"{role}_{option}" if layer == "role" else PLAYBOOK_NAMES.get(option, option)


def _selection(variables: Json) -> Json:
    """Return the options that select the controllers."""
    selection = {option: value
                 for option, value in mapping(variables, "selection").items() if value}
    # AWX merges the artifacts of the previous job with the variables of the workflow's launch.
    if variables.get("gets_artifacts") and "names" in selection:
        selection.pop("label_selectors", None)
    return selection


def _errors_of_selection(selection: Json, option_name: t.Callable[[str], str]) -> list[str]:
    if len(selection) == 1:
        return []
    return [f"Give exactly one of {option_name('name')}, {option_name('names')} and "
            f"{option_name('label_selectors')} (given: "
            f"{' and '.join(map(option_name, selection)) or 'none'})"]


def _errors_of_images(role: str, options: Json,
                      option_name: t.Callable[[str], str]) -> list[str]:
    images = f"{option_name('image')} or {option_name('images')}"
    has_images = bool(options.get("image") or options.get("images"))
    if has_images and options.get("to_revision"):
        return [f"Give only one of {option_name('to_revision')} and {images}"]
    needs_images = role == "image_bump" or options.get("container")
    return [] if has_images or not needs_images else [f"Give {images}"]


def _errors_of_missing_pauses(request: Request) -> list[str]:
    """Return the errors of options that would have no effect, for want of a pause."""
    errors, name = [], request.variable
    if request.approve_within is not None and request.stages[-1].updates_all_pods:
        errors.append(f"{name('approve_within')} needs an update that this run does not complete: "
                      f"let {name('stages')} end below 100%, such as at 10%")
    if request.options.get("nodes") and not request.requested_pauses:
        errors.append(f"{name('nodes')} needs a pause: give {name('stages')} below 100%, such as "
                      "10%")
    return errors


def _is_list_of_dictionaries(value: t.Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _stages(variables: Json, message_start: str, errors: list[str]) -> list[Stage]:
    stages = []
    for value in values(variables, "stages"):
        try:
            stages.append(parse_stage(message_start, value))
        except RolloutError as error:
            errors.append(error.what)
    return stages or [ALL_PODS]


def _errors_of_previous_images(previous_images: Json, selection: Json,
                               option_name: t.Callable[[str], str]) -> list[str]:
    option = option_name("previous_images")
    invalid_keys = [key for key, images in previous_images.items()
                    if not (isinstance(images, dict) and images
                            and all(isinstance(image, str) for image in images.values()))]
    if invalid_keys:
        return [f"{option}: {join_first(invalid_keys)} must be the name of a controller, with a "
                "dictionary of its images by container, as in {shop: {web: 'shop:v1'}}. For the "
                f"same images in all controllers, give {option_name('images')}"]
    if previous_images and "label_selectors" in selection:
        return [f"{option} cannot be used with {option_name('label_selectors')}: give "
                f"{option_name('names')}"]
    return []


def _of_selected(previous_images: Json, selection: Json) -> dict[str, Json]:
    """Return the previous images of the selected controllers.

    The artifacts of another run may name more controllers.
    """
    names = {selection.get("name"), *(selection.get("names") or ())}
    return {name: images for name, images in previous_images.items() if name in names}


def _errors_of_keep_for(keep_for: str, options: Json, stages: t.Sequence[Stage],
                        option_name: t.Callable[[str], str]) -> list[str]:
    if not keep_for:
        return []
    option = option_name("keep_old_for")
    errors = _errors_of_value(parse_duration, option, keep_for)
    if not options.get("keep_old"):
        errors.append(f"{option} needs the old pods of all stages: set {option_name('keep_old')}, "
                      "too")
    if not stages[-1].updates_all_pods:
        errors.append(f"{option} needs an update that this run completes: let "
                      f"{option_name('stages')} end with 100%")
    return errors


def _errors_of_value(parse: t.Callable[[str, t.Any], t.Any], option: str,
                     value: t.Any) -> list[str]:
    try:
        parse(option, value)
    except RolloutError as error:
        return [error.what]
    return []

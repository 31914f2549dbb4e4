# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the roles ask of results. Each filter is documented in the file of its name; plugin_utils/outcomes.py decides."""

from __future__ import annotations

import pathlib
import typing as t

from ansible.errors import AnsibleFilterError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.validation import check_type_dict

from ansible_collections.baton.kubernetes.plugins.module_utils.model.analysis import analysis_from
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import duration, size
from ansible_collections.baton.kubernetes.plugins.plugin_utils import batches, begun, outcomes

Json = dict[str, t.Any]


def entries(value: t.Any, comma: bool = False, inside: bool = False) -> list[str]:
    """A list, or the entries of a text; inside: refuse paths that lead out of the folders in which they are looked for."""
    texts = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")
    lines = (texts.replace(",", "\n") if comma else texts).split("\n")
    found = [line.strip() for line in lines if line.strip()]
    for path in map(pathlib.PurePath, found if inside else ()):
        if path.is_absolute() or ".." in path.parts or path.parts[0].startswith("~"):
            raise AnsibleFilterError(f"{path} is not a path inside the project: it may neither be absolute nor have .. in it. "
                                     "Nothing has been changed.")
    return found


def stage_pauses(stages: t.Any, are_checked: bool = False, check_mode: bool = False) -> list[str]:
    texts = entries(stages, comma=True)
    try:
        for stage in texts:
            size("image_bump_stages:", stage)
    except RolloutError as error:
        raise AnsibleFilterError(f"{error.what}. Nothing has been changed.") from None
    return outcomes.pauses(texts, are_checked, check_mode)


def region_batches(groups: t.Mapping[str, list[str]], regions: t.Any, hosts: list[str]) -> dict[str, list[str]]:
    try:
        return batches.region_batches(groups, entries(regions, comma=True) or ["all"], hosts)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from None


def batch_gate(hosts: list[str], batch: list[str], names: list[str], outcomes: list[str], max_failed: t.Any = 0) -> str:
    """max_failed: a percentage, which extra variables give as a text."""
    try:
        share = float(str(max_failed).strip().removesuffix("%") or 0)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 100:
        raise AnsibleFilterError(f"max_failed_clusters must be a percentage from 0 to 100, not {max_failed}. "
                                 "Nothing has been changed.")
    return batches.gate(hosts, batch, names, outcomes, share)


def rollout_summary(result: Json, name: str = "") -> Json:
    return outcomes.Summary.of(_dictionary(result), name).as_json()


def replaced_images(results: list[Json]) -> dict[str, str]:
    return outcomes.previous_images(results)


def rollout_failure(failure: Json) -> Json:
    try:
        return outcomes.Failure(**_dictionary(failure)).as_json()
    except TypeError as error:
        raise AnsibleFilterError(f"rollout_failure: {error}") from error


def to_roll_back(results: list[Json], result: Json) -> list[str]:
    return begun.Begun(results, outcomes.Summary.of(_dictionary(result), _only_name(results)).results).to_roll_back


def _only_name(results: list[Json]) -> str:
    """Return the name of the controller of a task for a single one, whose result does not have it."""
    return str(results[-1].get("name") or "") if results else ""


def failed_task(result: Json, name: str = "") -> Json:
    return outcomes.failed_task(_dictionary(result), name)


def lead_elsewhere(rollouts: list[Json], image: str = "", images: t.Any = None, chosen_by_labels: bool = False,
                   container: str = "") -> list[str]:
    """images: a dictionary, or a text that the module reads as one."""
    try:
        return outcomes.lead_elsewhere(rollouts, check_type_dict(images or {}), image, chosen_by_labels, container)
    except TypeError as error:
        raise AnsibleFilterError(f"images is neither a dictionary nor a text with one: {error}. "
                                 "Nothing has been changed.") from None


def workflow_artifacts(report: Json, rollouts: Json, page: str = "") -> Json:
    return outcomes.artifacts(_dictionary(report), _dictionary(rollouts), page)


def host_page(path: str, host: str, other: t.Any = None) -> str:
    """other: the path of another host, which differs where a template of the user's names the host in it."""
    return outcomes.host_page(path, host, other is not None and entries(other)[:1] != [path])


def approval(rollouts: list[Json] | None, result: Json, name: str = "", within: t.Any = 0, seen: str = "",
             now: str = "") -> Json:
    """seen, now: when the wait began, and the present time, in RFC 3339."""
    try:
        allowed = duration("image_bump_approve_within", within)
    except RolloutError as error:
        raise AnsibleFilterError(error.what) from error
    return outcomes.Approval(_dictionary(result), name, rollouts, allowed, seconds(seen) or 0.0, seconds(now) or 0.0).as_json()


def refused_analyses(analyses: list[Json]) -> list[str]:
    """What is required may come of module_defaults, so that only what is given is judged. Files are those of another machine."""
    found = [_refused(_plain(_dictionary(each))) for each in analyses]
    return [f"analysis {number}: {said}" for number, said in enumerate(found, 1) if said]


def _refused(given: Json) -> str:
    """Why the module would refuse these options, without any secret, or an empty text."""
    from ansible_collections.baton.kubernetes.plugins.module_utils import task
    from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection, prometheus, secrets

    spec = {option: {**of, "required": False} for option, of in task.ANALYSIS_OPTIONS.items()}
    valid = ArgumentSpecValidator(spec).validate({**given, "name": "any"})
    params = valid.validated_parameters
    said = "; ".join(valid.error_messages)
    try:
        if not said and params.get("metrics") is not None:
            analysis_from(params)
        if not said and params.get("prometheus_url"):
            prometheus.check_address(params)
    except RolloutError as error:
        said = ": ".join(filter(None, [error.what, error.why]))
    except ImportError:  # where the module runs, there may be more than here
        return ""
    return secrets.masked(said, connection.secrets(params) | prometheus.secrets(params))


def _plain(value: t.Any) -> t.Any:
    """Of Ansible's own dictionaries and lists, which evaluate what is in them when asked."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _dictionary(value: t.Any) -> Json:
    if not isinstance(value, dict):
        raise AnsibleFilterError(f"a dictionary is needed, not a {type(value).__name__}")
    return value


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, t.Callable]:
        return {each.__name__: each for each in
                (entries, stage_pauses, region_batches, batch_gate, rollout_summary, replaced_images, rollout_failure, to_roll_back,
                 failed_task, lead_elsewhere, workflow_artifacts, host_page, refused_analyses, approval)}

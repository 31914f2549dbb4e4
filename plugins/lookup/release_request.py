# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read the request of a role from its variables and files (see release_request.yml)."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import typing as t

import yaml
from ansible import constants as C
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.common.validation import check_type_dict
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.lookup import LookupBase
from ansible.utils.vars import load_extra_vars

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.secrets import is_path
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    REMOVED_FROM_ROLES,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import (
    PLAYBOOK_NAMES,
    variable,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.stage import parse_stage
from ansible_collections.baton.kubernetes.plugins.module_utils.release.turn_options import (
    IMAGES,
    SELECTIONS,
)
from ansible_collections.baton.kubernetes.plugins.plugin_utils import (
    analyses,
    entries,
    shares,
    validation,
)
from ansible_collections.baton.kubernetes.plugins.plugin_utils.pages import report_path

Json = dict[str, t.Any]
ROLES = pathlib.Path(__file__).parents[2] / "roles"
HOOKS = ("before", "verify", "after", "failure")
SCALAR_TYPES = ("str", "int", "bool")
CLUSTER_VARIABLES = ("kubeconfig", "context")
#: Options of traffic_split with another name in the role.
TRAFFIC_VARIABLES = {"match": "traffic_match", "weight": "stages"}


class LookupModule(LookupBase):
    """Look up the requests of roles."""

    def run(self, terms: list[str], variables: t.Any = None, **options: t.Any) -> list[Json]:
        extra = load_extra_vars(self._loader)
        # Do not fill the cache: an include would not evaluate templates in cached content.
        load = functools.partial(self._loader.load_from_file, cache="none")
        return [Variables(role, variables, self._templar.template, extra).request(load)
                for role in terms]


class Variables:
    """The variables of a role, which may be templates.

    In the playbooks of the collection, a variable also has a short name: `image` stands for
    image_bump_image. extra: the extra variables (-e).
    """

    def __init__(self, role: str, variables: t.Mapping[str, t.Any],
                 template: t.Callable[[t.Any], t.Any],
                 extra: t.Mapping[str, t.Any] | None = None) -> None:
        self.role, self.variables, self.template = role, variables, template
        self.extra = extra or {}
        self.errors: list[str] = []
        self.has_short_names = bool(self.value(f"__{role}_short_names", default=False))
        self.layer = ("role" if not self.has_short_names else "awx" if "awx_job_id" in variables
                      else "playbook")

    def value(self, *names: str, default: t.Any = "") -> t.Any:
        """Return the first variable that is not empty. Record invalid templates."""
        for name in names:
            if name in self.variables:
                try:
                    value = self.template(self.variables[name])
                except AnsibleError as error:
                    self.errors.append(f"{name}: {error}")
                    continue
                if not is_empty(value):
                    return value
        return default

    def role_variable(self, option: str, default: t.Any = "") -> t.Any:
        """Return the value of the variable for an option, such as image_bump_image for `image`."""
        name = f"{self.role}_{option}"
        return self._scalar(name, self.value(name, default=default), default)

    def _scalar(self, name: str, value: t.Any, default: t.Any) -> t.Any:
        """Return the value, or the default if the option needs one value; record the error."""
        has_one_value = argument_specs(self.role).get(name, {}).get("type") in SCALAR_TYPES
        if not has_one_value or entries.is_scalar(value):
            return value
        description = ("a dictionary" if isinstance(value, t.Mapping)
                       else "a list" if isinstance(value, list | tuple) else value)
        self.errors.append(
            f"{name} must be a text, a finite number or a boolean, not {description}")
        return default

    def request(self, load: t.Callable[[str], t.Any]) -> Json:
        """Return the request for release/request.py. load: loads a YAML file."""
        files = {hook: [self._file(f"{hook}_tasks", path, load)
                        for path in self._entries(f"{hook}_tasks")]
                 for hook in HOOKS}
        selection = {"name": str(self.role_variable("name")),
                     "names": self._entries("names", comma=True),
                     "label_selectors": self._entries("label_selectors")}
        options = {option: value
                   for option, value in self.options().items() if option not in SELECTIONS}
        self.errors += self._errors_of_removed_variables()
        entries_of_analysis = self._yaml("analysis")
        if isinstance(entries_of_analysis, list) and all(
                isinstance(analysis, dict) for analysis in entries_of_analysis):
            self.errors += [f"{self.role}_analysis: {error}"
                            for error in analyses.validate(entries_of_analysis)]
        stages, traffic = self._stages(), self._traffic()
        self.errors += self._errors_of_shares(stages, traffic)
        page_path = report_path(str(self.role_variable("report")))
        return {"role": self.role, "layer": self.layer, "selection": selection, "options": options,
                "previous": self._dictionary("previous_images"),
                "stages": stages, "traffic": traffic, "analyses": entries_of_analysis,
                "files": files,
                "approve_within": str(self.role_variable("approve_within")),
                "keep_old_for": str(self.role_variable("keep_old_for")), "report": page_path,
                "has_page": bool(page_path) and os.path.exists(page_path),
                "has_artifacts": bool(self.value(f"__{self.role}_has_artifacts", default=False)),
                "gets_artifacts": (self.has_short_names
                                   and "previous_images_by_name" in self.variables),
                "check_mode": bool(self.value("__image_bump_start", default={}).get("check_mode")),
                "host": "" if self._is_only_localhost
                else str(self.variables.get("inventory_hostname", "")),
                "job_template": str(self.value("awx_job_template_name")) if self.layer == "awx"
                else "",
                **self._repeatable_options(options | selection),
                "errors": list(map(self._with_short_names, dict.fromkeys(self.errors)))}

    def _repeatable_options(self, values: Json) -> Json:
        """Return the fields user_options, cluster and selects_hosts of release/request.Request.

        The command to repeat the run must not reveal the credentials of an analysis or the content
        of a kubeconfig.
        """
        extra_names, specs_by_name = set(self.extra), argument_specs(self.role)
        all_short_names = {short_name for name in specs_by_name
                           for short_name in short_names(_option_of(name, self.role))}
        cluster = {name: _shown_value(name, self.extra[name])
                   for name in CLUSTER_VARIABLES if name in self.extra}
        selects_hosts = _selects_hosts()
        is_repeatable = (self.layer == "playbook"
                         and extra_names <= {*all_short_names, *cluster, *specs_by_name}
                         and not selects_hosts
                         and not self.role_variable("analysis"))
        values = {_option_of(name, self.role): self.role_variable(_option_of(name, self.role))
                  for name in specs_by_name} | values
        values = {option: value for option, value in values.items() if not is_empty(value)
                  and value != specs_by_name[f"{self.role}_{option}"].get("default")}
        return {"user_options": values if is_repeatable else {}, "cluster": cluster,
                "selects_hosts": selects_hosts}

    def _errors_of_removed_variables(self) -> t.Iterator[str]:
        for option, replacement in REMOVED_FROM_ROLES.items():
            name = f"{self.role}_{option}"
            # Look for the short name only in -e: another variable of the user may have the
            # same name.
            if name in self.variables or (self.has_short_names and option in self.extra):
                yield f"{name} was removed: {replacement}"

    def _with_short_names(self, error: str) -> str:
        """Replace the names of variables by their short names."""
        if self.layer != "role":
            for name in sorted(argument_specs(self.role), key=len, reverse=True):
                error = error.replace(name,
                                      variable(self.role, self.layer, _option_of(name, self.role)))
        return error.replace(f"{self.role}_", "") if self.layer != "role" else error

    @property
    def _is_only_localhost(self) -> bool:
        hosts = self.variables.get("ansible_play_hosts_all") or []
        return self.variables.get("inventory_hostname") in (None, "localhost") and len(hosts) < 2

    def options(self) -> Json:
        """Return the options of the module rolling_update with their types; record invalid values.

        A survey and -e pass each option as text.
        """
        values = {name: value for name, spec in rolling_update_specs(self.role).items()
                  if not is_empty(value := self._scalar(name, self.value(
                      *self._names(name), default=spec.get("default")), spec.get("default")))}
        typed_values, errors = validation.validate(rolling_update_specs(self.role), values)
        self.errors += errors
        return {_option_of(name, self.role): typed_values[name] for name in values}

    def _dictionary(self, option: str) -> Json:
        name = f"{self.role}_{option}"
        try:
            return check_type_dict(self.value(name, default={}))
        except TypeError as error:
            self.errors.append(f"{name} is neither a dictionary nor a text with one: {error}")
            return {}

    def _names(self, name: str) -> list[str]:
        """Return the full name and the short names of a variable, by precedence."""
        option = _option_of(name, self.role)
        # The playbook `rollback` itself maps the short names of the options in IMAGES to the role's
        # variables.
        short_variables = (short_names(option) if self.has_short_names
                           and not (self.role == "rollback" and option in IMAGES) else [])
        return [name, *short_variables] if name in self.extra else [*short_variables, name]

    def _entries(self, option: str, comma: bool = False) -> list[str]:
        return self._texts(option, self.role_variable(option), comma)

    def _texts(self, option: str, value: t.Any, comma: bool) -> list[str]:
        try:
            return entries.entries(value, comma)
        except AnsibleError as error:
            self.errors.append(f"{self.role}_{option}: {error}")
            return []

    def _stages(self) -> list[t.Any]:
        value = self.role_variable("stages")
        parts = value if isinstance(value, list | tuple) else [value]
        return [stage for part in parts
                for stage in ([entries.plain(part)] if isinstance(part, t.Mapping)
                              else self._texts("stages", part, comma=True))]

    def _traffic(self) -> Json:
        options = {option: self.role_variable(option)
                   for option in ("route", "route_kind", "service")}
        options["match"] = self._yaml(TRAFFIC_VARIABLES["match"])
        return {option: value for option, value in options.items() if not is_empty(value)}

    def _errors_of_shares(self, stages: list[t.Any], traffic: Json) -> t.Iterator[str]:
        weights = []
        for stage in stages:
            with contextlib.suppress(RolloutError):  # release/request.py reports invalid stages
                weights.append(parse_stage("stages", stage).traffic)
        for option, error in shares.validate(traffic, list(filter(None, weights))):
            yield f"{self.role}_{TRAFFIC_VARIABLES.get(option, option)}: {error}"

    def _yaml(self, option: str) -> t.Any:
        value, name = self.role_variable(option), f"{self.role}_{option}"
        try:
            value = yaml.safe_load(value) if isinstance(value, str) and value else value or []
        # PyYAML raises errors of other types for invalid numbers and dates.
        except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
            self.errors.append(f"{name} is not YAML: {error}")
            return []
        if not entries.is_small(value):
            self.errors.append(f"{name} {entries.TOO_LARGE}")
            return []
        return value

    def _file(self, option: str, given_path: str, load: t.Callable[[str], t.Any]) -> Json:
        """Return {"typed": the given path, "path": the real path, or "" if there is no file}.

        Record an error unless the file contains a list of tasks.
        """
        folder = str(self.variables.get("playbook_dir") or ".")
        paths = [os.path.join(folder, given_path), os.path.join(folder, "tasks", given_path),
                 given_path]
        path = next((os.path.realpath(file) for file in paths if os.path.isfile(file)), "")
        try:
            is_list = bool(path) and isinstance(load(path), list)
        except AnsibleError:
            is_list = False
        if not is_list:
            self.errors.append(f"{self.role}_{option}: {given_path} is not a file with a list of "
                               "tasks. A relative path is searched in the playbook's folder, in "
                               "its subfolder tasks, and in the working directory")
        return {"typed": given_path, "path": path}


def rolling_update_specs(role: str) -> dict[str, Json]:
    """Return the argument specs of the role's variables that are options of rolling_update."""
    return {name: spec for name, spec in argument_specs(role).items()
            if _option_of(name, role) in ARGUMENT_SPEC}


@functools.cache
def argument_specs(role: str) -> dict[str, Json]:
    """Return the argument specs of all variables of the role."""
    try:
        path = ROLES / role / "meta" / "argument_specs.yml"
        documentation = yaml_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnsibleError(f"{role} is not a role of this collection: {error}") from error
    options: dict[str, Json] = documentation["argument_specs"]["main"]["options"]
    return options


def short_names(option: str) -> list[str]:
    """Return the short names of an option of the module, by precedence."""
    return [*filter(None, [PLAYBOOK_NAMES.get(option)]), option]


def _selects_hosts() -> bool:
    """Return whether the user has typed an inventory or a limit."""
    inventory = list(context.CLIARGS.get("inventory") or ())
    return (inventory not in ([], list(C.DEFAULT_HOST_LIST))
            or bool(context.CLIARGS.get("subset")))


def _shown_value(name: str, value: t.Any) -> str | None:
    """Return the value of a cluster variable in a command, or None if no command may show it."""
    is_shown = isinstance(value, str) and (name != "kubeconfig" or not value or is_path(value))
    return value if is_shown else None


def _option_of(name: str, role: str) -> str:
    return name.removeprefix(f"{role}_")


def is_empty(value: t.Any) -> bool:
    """Return whether a value is missing, or is an empty answer in a survey."""
    return value is None or value in ("", [], {})

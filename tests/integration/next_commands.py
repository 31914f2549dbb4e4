# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List the tests that execute the commands suggested by errors, and validate these commands."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import shlex
import typing as t
from pathlib import Path

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.splitter import parse_kv
from objects import eventually

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.model import shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Module
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    parse_request,
    with_kinds,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.fleet import Fleet

Json = dict[str, t.Any]

SHOWS = "not executed: only shows objects, and the tests' cluster does not include kubectl"
EDITS = "not executed: opens an editor"
OPENSHIFT = ("not executed: needs oc and OpenShift's controllers; "
             "tests/integration/test_deployment_config.py makes the same changes")
WARNS = "not executed: part of a warning; the update continues without the command"
PART = "not a command: the first words of commands"
SAME = ("not executed here: the same task again, as in "
        "test_failed_canary_is_repeated_as_a_canary_and_rolled_back; ")
FORGED = "not executed: needs annotations or revisions that another client has forged; "
TRAFFIC_MODULE = "baton.kubernetes.traffic_split"
#: The test in test_next_commands.py that executes the command, or a reason why none does. Keys:
#: FILE::FUNCTION, or FILE:: for a constant. FILE is relative to module_utils.
SITES: dict[str, str] = {
    "explain/diagnosis.py::": PART,
    "explain/diagnosis.py::_command_values": SHOWS,
    "explain/gitops.py::_find_flux": WARNS,
    "explain/gitops.py::_find_flux_kustomization": WARNS,
    "explain/pod_health.py::": SHOWS,
    "explain/pod_health.py::_loss_causes": SHOWS,
    "explain/pod_health.py::_cause": PART,
    "explain/old_pods.py::": SHOWS,
    "explain/old_pods.py::_old_pod_causes": "not executed here: test_stateful_set and "
    "test_broken_rollouts check the named pod",
    "explain/quotas.py::too_small_error": EDITS,
    "explain/report.py::pause_commands": "test_commands_of_a_pause_end_the_pause",
    "explain/failure_reasons.py::": "not executed: suggestions about pods; most only show objects, "
                                    "the others change objects that the template needs; "
                                    "test_outdated_replica_set_is_corrected executes the command "
                                    "of OUTDATED_REPLICA_SET",
    "explain/preflight_warnings.py::": WARNS,
    "explain/preflight_warnings.py::kubectl": PART,
    "explain/preflight_warnings.py::_autoscaler_warnings": WARNS,
    "explain/preflight_warnings.py::_budget_warnings": WARNS,
    "explain/preflight_warnings.py::_node_warnings": WARNS,
    "explain/preflight_warnings.py::_quota_warnings": WARNS,
    "explain/preflight_warnings.py::_service_warnings": WARNS,
    "flows/autoscaler.py::_not_restored_warning": WARNS,
    "flows/argo_rollouts.py::kubectl_argo": PART,
    "flows/argo_rollouts.py::": "not executed here: needs Argo Rollouts; "
                                "tests/neighbours/test_argo_rollouts.py executes the commands",
    "flows/server_driven/rules.py::rollback_commands": "test_another_update_is_rolled_back",
    "flows/commands.py::finish": "test_update_of_another_client_is_completed",
    "flows/commands.py::resume_and_rollback": "test_another_update_is_rolled_back",
    "flows/daemonset/planner.py::_refuse_impossible_pause": SHOWS,
    "flows/daemonset/planner.py::_refuse_loss_of_all_pods": SHOWS,
    "flows/deployment/planner.py::refuse_paused":
        "test_deployment_paused_by_another_client_is_resumed",
    "flows/deployment/planner.py::_refuse_long_min_ready_seconds":
        "test_min_ready_seconds_are_lowered",
    "flows/deployment/planner.py::_unreadable_record": EDITS,
    "flows/deployment/planner.py::_settings_during_pause":
        "test_deployment_beyond_the_requested_pause_is_rolled_back",
    "flows/handover.py::_refuse_unproven_successor": SHOWS,
    "flows/handover.py::finish": SHOWS,
    "flows/roll_on.py::_missing_object_error":
        "not executed here: the same task again, once the object exists",
    "flows/migration/back.py::_decide_without_stored_controller":
        "not executed here: the first task, which test_migration runs",
    "flows/migration/back.py::plan_rollback":
        "not executed here: the same task again, which test_migration runs after each kill",
    "flows/migration/deployment_config.py::_state_warnings": WARNS,
    "flows/migration/deployment_config.py::_trigger_warnings": WARNS,
    "flows/migration/observed.py::parse_stored": SHOWS,
    "flows/migration/in_progress.py::commands": "not executed here: the same task again, which "
                                                "test_migration runs after each kill",
    "flows/migration/flow.py::_recovery_commands":
        "test_migration_with_unavailable_pods_completes_with_another_image",
    "flows/migration/flow.py::commands": OPENSHIFT,
    "flows/migration/flow.py::warnings": WARNS,
    "flows/migration/manifests.py::difference_error": SHOWS,
    "flows/migration/manifests.py::name_conflict": SHOWS,
    "flows/migration/planner.py::_scale_to_zero": OPENSHIFT,
    "flows/migration/planner.py::_delete_config": OPENSHIFT,
    "flows/migration/planner.py::_refuse_unclear_rollout": OPENSHIFT,
    "flows/migration/planner.py::_refuse_rollouts": OPENSHIFT,
    "flows/migration/planner.py::_decide_with_replica_set":
        "test_paused_deployment_of_a_migration_is_resumed",
    "flows/migration/planner.py::_leave_stored_rollout": OPENSHIFT,
    "flows/migration/planner.py::_refuse_to_begin": EDITS,
    "flows/migration/planner.py::_decide_with_controller":
        "not executed: needs the old manifest, applied during a migration",
    "flows/refusals.py::_unblock_commands": "test_deletion_blocked_by_a_finalizer_completes",
    "flows/refusals.py::ambiguous_previous_template":
        FORGED + "rollback_command creates the same commands",
    "flows/refusals.py::endless_deletion": SAME
    + "test_deletion_blocked_by_a_finalizer_completes executes the command for the finalizer",
    "flows/refusals.py::no_such_revision": "test_completed_update_is_rolled_back",
    "flows/refusals.py::refuse_ambiguous_revision": FORGED + SHOWS,
    "flows/refusals.py::refuse_finalizers": SAME
    + "test_deletion_blocked_by_a_finalizer_completes executes the command for the finalizer",
    "flows/refusals.py::refuse_too_large_annotations": SHOWS,
    "flows/refusals.py::rollback_command": "test_completed_update_is_rolled_back",
    "flows/refusals.py::unknown_new_pods": "not executed: needs a ControllerRevision that another "
    "client has deleted",
    "flows/statefulset/planner.py::preparatory_step": SHOWS,
    "flows/client_driven/flow.py::commands":
        "not executed: only shown in a handover, which takes less than a second; "
        "test_update_with_a_deleted_primary_is_completed executes the same command",
    "flows/client_driven/planner.py::_decide_without_primary":
        "test_command_names_the_controller_to_update",
    "flows/client_driven/refusals.py::finish_command":
        "test_update_with_a_deleted_primary_is_completed",
    "flows/client_driven/refusals.py::interrupted_kubectl":
        "test_interrupted_kubectl_rolling_update_is_reverted",
    "flows/client_driven/refusals.py::refuse_deleting_or_closed": FORGED + EDITS,
    "flows/client_driven/refusals.py::refuse_mismatch": FORGED
    + "docs/how-to/recovery.md shows how to remove the annotations",
    "flows/client_driven/refusals.py::refuse_successor":
        "test_command_names_the_controller_to_update",
    "flows/client_driven/refusals.py::refuse_selector_mismatch":
        "test_immutable_selector_needs_another_controller",
    "flows/client_driven/size.py::final_size": "test_uncertain_size_is_confirmed",
    "model/budgets.py::refuse_blocking_budgets": "test_budget_is_changed_to_allow_a_disruption",
    "model/request.py::kubectl": PART,
    "model/request.py::cluster_kubectl": PART,
    "model/request.py::oc": PART,
    "model/shell.py::": PART,
    "model/shell.py::ansible": PART,
    "traffic/causes.py::": "not executed: shows objects, or opens an editor",
    "traffic/causes.py::_gateway": SHOWS,
    "traffic/causes.py::_unready_pods": SHOWS,
    "traffic/causes.py::causes": PART,
    "traffic/follower.py::follow": SAME + "see test_update_with_a_split",
    "traffic/planner.py::_refuse_split_of_another_controller": SHOWS,
    "traffic/planner.py::service_of_split": SHOWS,
    "traffic/request.py::kubectl": PART,
    "traffic/split_run.py::replace_missing_route": SHOWS,
    "traffic/switch.py::_refuse_unsuitable_service": SHOWS,
    "traffic/switch.py::_refuse_foreign_pods": SHOWS,
    "traffic/warnings.py::refuse_missing_policies": "not executed here: test_traffic_split applies "
                                                    "the patch",
    "run/driver.py::loop": SAME + "see test_driver",
    "run/driver.py::run": SAME + "see test_driver",
    "run/fleet.py::_next_commands": "test_fleet_is_repeated_and_rolled_back_as_a_whole",
    "run/fleet.py::_joint_rollback": "test_fleet_is_repeated_and_rolled_back_as_a_whole",
    "run/fleet.py::_run_and_record": SAME + "see test_fleet",
    "run/lease.py::renew": SAME + "see test_two_clients",
    "run/lease.py::acquire": "test_command_waits_for_another_task",
    "run/deadlines.py::refuse_repetition": SAME + "see test_other_clients",
    "run/deadlines.py::count_rejection": SAME + "see test_other_clients",
    "run/deadlines.py::concurrent_change_error":
        SAME + "see test_driver",
    "run/deadlines.py::explain_idle_failure":
        "test_failing_pods_without_an_update_get_the_previous_template",
    "run/deadlines.py::next_commands":
        "test_failed_canary_is_repeated_as_a_canary_and_rolled_back",
}
FIRST_WORDS = ("ansible localhost", "kubectl -n", "oc -n", "kubectl --context", "kubectl argo")
#: A word in capitals, which has to be a placeholder of the table in shell.py.
CAPITALS = re.compile(r"(?<=[ =])[A-Z][A-Z_-]+(?=[ '\"=]|$)")
VERBS = {
    "kubectl": {"annotate", "create", "delete", "describe", "edit", "get", "label", "logs", "patch",
                "rollout", "scale", "set",
                "taint", "uncordon"},
    "argo rollouts": {"get", "restart", "set", "undo"},
    "oc": {"rollout"},
}


def sites(plugins: Path) -> set[str]:
    functions = set()
    root = plugins / "module_utils"

    def search(node: ast.AST, path: str, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, ast.FunctionDef)
            if _creates_command(child):
                functions.add(f"{path}::{name}")
            search(child, path, child.name if is_function else name)

    for file in sorted(root.rglob("*.py")):
        search(ast.parse(file.read_text(encoding="utf-8")), str(file.relative_to(root)), "")
    return functions


def _creates_command(node: ast.AST) -> bool:
    """Return whether a node calls Request.command, or contains the beginning of a command."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "command"
    if isinstance(node, ast.Attribute):
        return node.attr in ("kubectl", "oc", "cluster_kubectl")
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and (
        "{kubectl}" in node.value or "{cluster}" in node.value
        or node.value.startswith(("kubectl ", "ansible localhost ")))


#: No image name, so that a command pasted unchanged is refused.
IMAGE_PLACEHOLDERS = re.compile("THE-EARLIER-IMAGE|ANOTHER-IMAGE")


@functools.cache
def check(line: str) -> None:
    """Raise AssertionError or RolloutError if a line is an invalid command."""
    command = line.removeprefix("until ")
    program, *words = (shlex.split(command) if command.startswith(("ansible ", "kubectl ", "oc "))
                       else [""])
    if program == "ansible" and words[2] == TRAFFIC_MODULE:
        arguments = words[4]
        options = json.loads(arguments) if arguments.startswith("{") else parse_kv(arguments)
        errors = ArgumentSpecValidator(task.TRAFFIC_OPTIONS).validate(options).error_messages
        assert not errors, (line, errors)
    elif program == "ansible":
        options = validated(parsed(IMAGE_PLACEHOLDERS.sub("myimage:v1", line)))
        fleet = Fleet.from_params(options)
        for kind in fleet.kinds if fleet else (options.get("kind"),):
            parse_request({**options, "name": options.get("name") or "any", "kind": kind})
    elif program:
        if words[:2] == ["argo", "rollouts"]:
            program, words = " ".join(words[:2]), words[2:]
        flags = ("--context=", "--kubeconfig=", "--server=")
        words = [word for word in words if not word.startswith(flags)]
        verb = words[2] if words[0] == "-n" else words[0]
        assert verb in VERBS[program], line


@contextlib.contextmanager
def checked_commands() -> t.Iterator[None]:
    def set_attribute(error: RolloutError, name: str, value: t.Any) -> None:
        Exception.__setattr__(error, name, value)
        for line in value.splitlines() if name == "next_command" else ():
            check(line)
            has_command = any(f" {program} " in f" {line}" for program in FIRST_WORDS)
            assert (not has_command or line in error.commands
                    or shell.has_placeholder(line)), line
        commands = error.commands if name == "next_command" else []
        for number, line in enumerate(commands):
            assert not CAPITALS.search(line), line
            # The lines may be pasted together.
            assert not (re.search(r" scale .*--replicas=[1-9]", line)
                        and any(" delete " in later and not later.startswith("until ")
                                for later in commands[number:])), commands

    RolloutError.__setattr__ = set_attribute
    try:
        yield
    finally:
        del RolloutError.__setattr__


def parsed(command: str) -> Json:
    """Return the options of an ad-hoc command, as parsed by a shell and Ansible.

    For a migration, the result also has the key `module`.
    """
    *words, name, dash_a, arguments = shlex.split(command)
    module = Module(name.removeprefix("baton.kubernetes."))
    assert (*words, dash_a) == ("ansible", "localhost", "-m", "-a"), command
    options = json.loads(arguments) if arguments.startswith("{") else parse_kv(arguments)
    return options | ({"module": str(module)} if module is Module.MIGRATION else {})


def validated(options: Json) -> Json:
    """Return parsed options as the module gets them."""
    module = {key: value for key, value in options.items() if key == "module"}
    spec = task.MIGRATION_OPTIONS if module else task.UPDATE_OPTIONS
    validation = ArgumentSpecValidator(spec).validate(
        {option: value for option, value in options.items() if option != "module"})
    assert not validation.error_messages, (options, validation.error_messages)
    return with_kinds(validation.validated_parameters) | module


_PATHS = {
    "rc": "/api/v1/namespaces/{}/replicationcontrollers/",
    "rs": "/apis/apps/v1/namespaces/{}/replicasets/",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments/",
    "sts": "/apis/apps/v1/namespaces/{}/statefulsets/",
    "pdb": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/",
}


def emulate_kubectl(namespace, command: str) -> None:
    """Execute kubectl commands, joined by "&&", as the administrator, without kubectl."""
    command, _and, later_commands = command.partition(" && ")
    loop = re.fullmatch(r"until (.*) \| grep -qx ([0-9]+); do sleep 1; done", command)
    command, awaited_number = loop.groups() if loop else (command, "")
    program, *words = shlex.split(command)
    options = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    assert program == "kubectl" and words[words.index("-n") + 1] == namespace.name, command
    verb, *arguments = words[words.index("-n") + 2:]
    positional = [
        word for word in arguments if not word.startswith("-") and not word.startswith("{")
    ]
    if verb == "rollout":
        assert positional[0] == "resume", command
        positional = positional[1].split("/")
    resource, name, *annotations = positional
    path = _PATHS[resource].format(namespace.name) + name
    merge_patch = "application/merge-patch+json"
    if verb == "rollout":
        namespace.call("PATCH", path, {"spec": {"paused": None}}, merge_patch)
    elif verb == "scale":
        namespace.call(
            "PATCH", path, {"spec": {"replicas": int(options["--replicas"])}}, merge_patch
        )
    elif verb == "annotate":
        pairs = [annotation.partition("=") for annotation in annotations]
        assert pairs and all(equals or key.endswith("-") for key, equals, _value in pairs), command
        changes = {key if equals else key[:-1]: value if equals else None
                   for key, equals, value in pairs}
        namespace.call("PATCH", path, {"metadata": {"annotations": changes}}, merge_patch)
    elif verb == "patch":
        assert options["--type"] == "merge" and arguments[-2] == "-p", command
        namespace.call("PATCH", path, json.loads(arguments[-1]), merge_patch)
    elif verb == "get" and loop:
        assert arguments[-2:] == ["-o", "jsonpath={.status.availableReplicas}"], command
        eventually(lambda: str(namespace.call("GET", path)["status"].get("availableReplicas"))
                   == awaited_number, command, 60)
    elif verb == "delete":
        policy = "Orphan" if options.get("--cascade") == "orphan" else "Background"
        namespace.call("DELETE", path, {"propagationPolicy": policy})
    else:
        raise AssertionError(f"emulate_kubectl does not support {verb}: {command}")
    if later_commands:
        emulate_kubectl(namespace, later_commands)

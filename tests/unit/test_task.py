# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Call the entry points of task.py."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys

import pytest
from ansible.module_utils import basic
from builders import SUCCESSOR, new, old, rc
from clusters import Cluster
from task_runner import TaskRunner, with_real_wording

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import Reading
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import map_texts
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.modules import rolling_update_info
from ansible_collections.baton.kubernetes.plugins.plugin_utils import in_process

pytestmark = pytest.mark.usefixtures("handlers")

UPDATE_COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a"


class Gateway(Cluster):
    def __init__(self, namespace, *items):
        super().__init__(*items)
        self.namespace, self.is_closed = namespace, False

    def close(self):
        self.is_closed = True

    def read_statuses(self, name):
        return {}


@pytest.fixture
def simulate_cluster(monkeypatch):
    """Return a function that replaces the real cluster by a simulated one.

    It takes controllers, and returns the list of created gateways.
    """
    def make(*items, gateway_class=Gateway):
        gateways = []

        def gateway(params, request, flow, watches_pods=True, access=None):
            gateways.append(gateway_class(request.namespace, *items))
            return gateways[-1]

        monkeypatch.setattr(task, "_gateway", gateway)
        return gateways
    return make


def params(**arguments):
    spec = connection.ARGUMENT_SPEC | options.ARGUMENT_SPEC
    defaults = {option: definition.get("default") for option, definition in spec.items()}
    return {**defaults, "name": "foo", **arguments}


def update(check_mode=False, diff=False, **arguments):
    return task.update(params(image="myimage:v2", **arguments), check_mode=check_mode, diff=diff)


def test_an_update_changes_the_cluster_and_closes_the_connection(simulate_cluster):
    gateways = simulate_cluster(rc())

    result = update(namespace="prod")

    (gateway,) = gateways
    assert result["changed"] and gateway.attempts and gateway.is_closed
    assert gateway.namespace == "prod"
    assert gateway.cluster.controllers()["foo"].images == {"web": "myimage:v2"}


class GatewayWithPods(Gateway):
    def pods(self, controller, labels):
        labels = controller.template["metadata"]["labels"]
        return [{"metadata": {"name": f"{controller.name}-x", "labels": labels},
                 "spec": {}, "status": {}}]


@pytest.mark.parametrize("selection, names", [
    ({}, ["foo"]), ({"name": None, "names": ["other", "foo"]}, ["foo", "other"])],
    ids=["one controller", "several controllers"])
def test_paused_update_returns_the_new_pods_for_the_check_files_of_a_role(
        simulate_cluster, monkeypatch, selection, names):
    simulate_cluster(rc(), rc("other"), rc("third"), gateway_class=GatewayWithPods)
    assert "rollouts" not in update(pause_at="1", **selection)

    monkeypatch.setenv("BATON_PODS", "1")
    rollouts = update(pause_at="2", **selection)["rollouts"]

    assert [rollout["name"] for rollout in rollouts] == names
    for rollout in rollouts:
        (pod,) = rollout["pods"]
        assert pod["name"].startswith(f"{rollout['name']}-") and pod["is_new"]
    assert update(**selection)["rollouts"] == [], "without a pause, no check file follows"


def test_later_update_of_a_release_does_not_begin_an_update_again(simulate_cluster, monkeypatch):
    simulate_cluster(rc(), rc("other"))
    monkeypatch.setenv("BATON_RESUMED", "other,third")

    assert update(pause_at="1")["changed"], "the release has not yet updated foo"
    for arguments in ({"name": "other"}, {"name": None, "names": ["foo", "other"]}):
        with pytest.raises(RolloutError) as error:
            update(pause_at="2", **arguments)
        entry = error.value.progress["results"][-1]
        assert entry["name"] == "other" and entry["failed"] and not entry["changed"]
        assert "its update was rolled back, or replaced by another update" in entry["msg"]


@pytest.mark.parametrize("error", [RolloutError("the server is overloaded"), KeyError("metadata")])
def test_update_succeeds_even_if_the_pods_for_the_check_files_cannot_be_listed(
        simulate_cluster, monkeypatch, error):
    class RefusingGateway(Gateway):
        def pods(self, controller, labels):
            raise error

    monkeypatch.setenv("BATON_PODS", "1")
    simulate_cluster(rc(), gateway_class=RefusingGateway)

    result = update(pause_at="1")

    assert result["rollout"]["phase"] == "paused" and "rollouts" not in result


def test_check_mode_reports_the_steps_of_the_update_and_writes_nothing(simulate_cluster):
    gateways = simulate_cluster(rc())

    plan, result = update(check_mode=True), update()

    assert gateways[0].attempts == []
    assert [(step["action"], step["name"], step["to"]) for step in plan["steps"]] == [
        (step["action"], step["name"], step["to"]) for step in result["steps"]]
    assert plan["changed"] is result["changed"] is True


@pytest.mark.parametrize("kinds, default_kind", [
    (["Deployment"], "Deployment"), (["StatefulSet"], "StatefulSet"),
    (["Deployment", "StatefulSet"], None),
    (["DaemonSet"], "DaemonSet"), ([], None)])
def test_the_default_kind_is_the_kind_of_the_only_object_with_the_name(
        simulate_cluster, monkeypatch, kinds, default_kind):
    simulate_cluster(rc("another"))
    monkeypatch.setattr(Gateway, "read_statuses", lambda self, name: dict.fromkeys(kinds, 200))
    monkeypatch.setattr(task, "choose",
                        lambda request: choose(dataclasses.replace(
                            request, kind=Kind.REPLICATION_CONTROLLER)))

    with pytest.raises(RolloutError, match=f"no such {default_kind or 'ReplicationController'}"):
        update()


@pytest.mark.parametrize("image, fails", [("myimage:v2", False), ("no image", True)],
                         ids=["success", "a refused request"])
def test_the_result_has_the_kind_unless_the_request_is_refused(simulate_cluster, image, fails):
    simulate_cluster(rc())

    result = task.result_or_error(task.update, params(image=image), lambda warning: None)

    assert (result.get("kind"),
            result.get("failed", False)) == ((None, True) if fails
                                             else ("ReplicationController", False))


def test_a_failure_during_the_update_has_the_kind_of_the_controller(simulate_cluster):
    class RefusingGateway(Gateway):
        def write(self, write):
            raise RolloutError("the API server refuses")

    simulate_cluster(rc(), gateway_class=RefusingGateway)

    assert task.result_or_error(task.update, params(image="myimage:v2"),
                                lambda warning: None)["kind"] == "ReplicationController"


def test_a_controller_deleted_during_the_update_is_not_replaced_by_another_kind(simulate_cluster):
    class DeletingGateway(Gateway):
        def controllers(self, kind=None):
            return {} if self.writes else super().controllers(kind)

        def read_statuses(self, name):
            return {"Deployment": 200}

    gateways = simulate_cluster(rc(), gateway_class=DeletingGateway)

    with pytest.raises(NoSuchController, match="there is no such ReplicationController"):
        update()

    assert len(gateways) == 1


def test_a_requested_kind_excludes_other_kinds(simulate_cluster, monkeypatch):
    simulate_cluster(rc("another"))
    monkeypatch.setattr(Gateway, "read_statuses",
                        lambda self, name: pytest.fail("looks for another kind"))

    with pytest.raises(RolloutError, match="no such ReplicationController"):
        update(kind="ReplicationController")


@pytest.mark.parametrize("diff", [True, False])
def test_the_result_has_the_diff_on_request(simulate_cluster, diff):
    simulate_cluster(rc())

    assert ("diff" in update(diff=diff)) is diff


def test_a_read_only_run_has_a_result_only_without_pending_steps(simulate_cluster):
    gateways = simulate_cluster(rc())

    assert task.update(params(image="myimage:v2"), is_read_only=True) is None
    converged_result = task.update(params(image="myimage:v1"), is_read_only=True)

    assert converged_result == task.update(params(image="myimage:v1"), check_mode=False, diff=False)
    assert not any(gateway.attempts for gateway in gateways)


def test_a_read_only_run_leaves_waits_to_the_module(simulate_cluster):
    simulate_cluster(old(4, available=3), new(0))

    assert task.update(params(image="myimage:v2"), is_read_only=True) is None


def test_the_connection_is_closed_after_a_failure(simulate_cluster):
    gateways = simulate_cluster()

    with pytest.raises(RolloutError, match="no such ReplicationController"):
        update()

    assert gateways[0].is_closed


def info(name=None, **arguments):
    return task.info({"namespace": "default", "name": name, "kind": "ReplicationController",
                      **arguments})


def test_info_shows_every_rollout_of_a_namespace_under_the_name_of_the_primary(simulate_cluster):
    simulate_cluster(old(2), new(1), rc("other"))

    result = info()

    assert result["changed"] is False
    assert [(rollout["name"], rollout["phase"])
            for rollout in result["rollouts"]] == [("foo", "progressing"), ("other", "complete")]
    assert result["rollouts"][0]["rollback_command"] == (
        f"{UPDATE_COMMAND} 'name=foo state=rolled_back'")
    assert result["rollouts"][1]["resume_command"] is None


@pytest.mark.parametrize("name, expected",
                         [("foo", ["foo"]), (SUCCESSOR, ["foo"]), ("other", ["other"]),
                          ("absent", [])], ids=[
                             "primary", "successor", "another controller", "missing controller"])
def test_info_shows_one_rollout(simulate_cluster, name, expected):
    simulate_cluster(old(2), new(1), rc("other"))

    assert [rollout["name"] for rollout in info(name)["rollouts"]] == expected


def test_info_shows_the_named_rollouts(simulate_cluster):
    simulate_cluster(old(2), new(1), rc("other"), rc("third"))

    assert [rollout["name"]
            for rollout in info(names=["other", SUCCESSOR, "absent"])["rollouts"]] == [
                "foo", "other"]


def test_info_shows_a_rollout_whose_primary_is_deleted(simulate_cluster):
    simulate_cluster(new(3))

    ((rollout,)) = info()["rollouts"]
    assert (rollout["name"], rollout["controller"], rollout["successor"]["name"]) == (
        "foo", None, SUCCESSOR)


HOSTILE = "\x1b[2J\x9b31m\u202e"


def test_text_of_the_cluster_is_escaped_for_terminals(simulate_cluster):
    """Escape the template in the diff, but write it unchanged."""
    item = rc(image=HOSTILE)
    item["spec"]["template"]["spec"]["containers"][0]["command"] = [f"{HOSTILE}\n"]
    (gateways, arguments) = (simulate_cluster(item), params(image="myimage:v2"))

    result = task.result_or_error(functools.partial(task.update, diff=True), arguments, print)

    texts = []
    map_texts(result, lambda text: texts.append(text) or text)
    assert (all(text.replace("\n", "").isprintable() for text in texts)
            and any(r"\x1b" in text for text in texts))
    assert result["diff"]["before"]["template"]["spec"]["containers"][0]["command"] == [
        r"\x1b[2J\x9b31m\u202e" + "\n"]
    template = gateways[0].cluster.controllers()["foo"].template
    assert template["spec"]["containers"][0]["command"] == [f"{HOSTILE}\n"]


# An analysis


class MeasuredCluster(Gateway):
    """Simulated cluster with a labeled pod for each replica."""

    http = None

    def live_pods(self, selector):
        return tuple(Pod(f"{controller.name}-{number}", "", dict(selector), controller.uid)
                     for controller in self.controllers().values()
                     if controller.selector == selector for number in range(controller.replicas))


def analysis_params(**arguments):
    metric_options = task.ANALYSIS_OPTIONS["metrics"]["options"]
    metrics = [{option: spec.get("default") for option, spec in metric_options.items()}
               | {"min": 1, "query": "$pods"}]
    defaults = {option: spec.get("default") for option, spec in task.ANALYSIS_OPTIONS.items()}
    return {**defaults, "name": "foo", "prometheus_url": "http://x", "metrics": metrics,
            **arguments}


@pytest.fixture
def queries(monkeypatch):
    """Return the list of queries to Prometheus, which returns 1.0 for each."""
    queries = []
    monkeypatch.setattr(task.prometheus.Prometheus, "query",
                        lambda self, query, stop: queries.append(query) or Reading(1.0))
    return queries


@pytest.mark.parametrize("items, new_pods, old_pods", [
    ([old(2), new(1)], {f"{SUCCESSOR}-0"}, {"foo-0", "foo-1"}),
    ([rc(replicas=2), rc("other")], {"foo-0", "foo-1"}, set())],
    ids=["an update", "no update"])
@pytest.mark.parametrize("name", ["foo", SUCCESSOR])
def test_an_analysis_selects_new_and_old_pods(simulate_cluster, queries, name, items, new_pods,
                                              old_pods):
    gateways = simulate_cluster(*items, gateway_class=MeasuredCluster)

    result = task.analysis(analysis_params(name=name if old_pods else "foo"))

    assert ((set(result["new_pods"]), set(result["old_pods"])) == (new_pods, old_pods)
            and result["outcome"] == "passed")
    assert queries == [f"(?:{'|'.join(sorted(pods))})" for pods in (new_pods, old_pods) if pods]
    assert not gateways[0].attempts and gateways[0].is_closed


def test_an_analysis_without_a_controller_fails(simulate_cluster, queries):
    gateways = simulate_cluster(rc("other"), gateway_class=MeasuredCluster)

    with pytest.raises(RolloutError, match="there is no such ReplicationController"):
        task.analysis(analysis_params())
    assert not queries and all(gateway.is_closed for gateway in gateways)


def test_the_default_kind_of_an_analysis_is_the_kind_of_the_only_object_with_the_name(
        simulate_cluster, queries, monkeypatch):
    simulate_cluster(rc("other"), gateway_class=MeasuredCluster)
    monkeypatch.setattr(Gateway, "read_statuses", lambda self, name: {"DaemonSet": 200})
    monkeypatch.setattr(task, "choose",
                        lambda request: choose(dataclasses.replace(
                            request, kind=Kind.REPLICATION_CONTROLLER)))

    with pytest.raises(RolloutError, match="there is no such DaemonSet"):
        task.analysis(analysis_params())


def test_an_analysis_of_a_deleted_controller_does_not_begin_again_with_another_kind(
        simulate_cluster, queries, monkeypatch):
    subjects, original_subject = [], task._subject

    def subject_of_deleted_controller(flow, request, gateway):
        if subjects:
            gateway.cluster.items.clear()
        subjects.append(original_subject(flow, request, gateway))
        return subjects[-1]

    monkeypatch.setattr(task, "_subject", subject_of_deleted_controller)
    monkeypatch.setattr(Gateway, "read_statuses", lambda self, name: {"Deployment": 200})
    gateways = simulate_cluster(old(2), new(1), gateway_class=MeasuredCluster)

    with pytest.raises(NoSuchController, match="there is no such ReplicationController"):
        task.analysis(analysis_params())

    assert len(gateways) == len(subjects) == 1 and not queries


def test_an_invalid_analysis_is_refused_before_any_request(simulate_cluster):
    gateways = simulate_cluster(rc(), gateway_class=MeasuredCluster)

    for wrong in ({"metrics": []}, {"prometheus_url": "x"}, {"prometheus_url": None},
                  {"name": "Foo"}):
        with pytest.raises(RolloutError):
            task.analysis(analysis_params(**wrong))
    assert gateways == []


LOG_RULES = [{"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}]


@pytest.mark.parametrize("rules, is_allowed", [(None, True), ([], False), (LOG_RULES, True)],
                         ids=["unknown", "none", "enough"])
def test_an_analysis_of_logs_needs_permission_to_read_logs_but_no_prometheus(
        simulate_cluster, monkeypatch, rules, is_allowed):
    simulate_cluster(old(2), new(1), gateway_class=MeasuredCluster)
    monkeypatch.setattr(MeasuredCluster, "rules", lambda self: rules)
    readings = []
    monkeypatch.setattr(
        task.Logs, "read",
        lambda self, request, pods: readings.append(pods) or (Reading(0.0), Reading(5.0)))
    (metric,) = analysis_params()["metrics"]
    metric |= {"type": "error_lines", "query": None}
    params = analysis_params(prometheus_url=None, metrics=[metric],
                             initial_delay=0 if is_allowed else 99)

    result = task.result_or_error(task.analysis, params, pytest.fail)

    assert readings == ([[f"{SUCCESSOR}-0"], ["foo-0", "foo-1"]] if is_allowed else [])
    assert is_allowed or result["failure"]["why"] == "not allowed: get on pods/log"
    assert is_allowed == (result.get("outcome") == "failed")


@pytest.mark.parametrize("password",
                         ["s3cret/b", "s3cret#b", "s3cret?b", "s3cret://b", "s3cret[b", "s3cret]b",
                          "1/s3cret"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_an_analysis_reveals_no_part_of_a_password(scheme, password):
    params = analysis_params(prometheus_url=f"{scheme}u:{password}@prom:9090")

    result = task.result_or_error(task.analysis, params, pytest.fail)

    assert result["failed"] and "is not a valid address" in result["msg"]
    assert "s3cret" not in str(result) + str(task.invocation(params))


@pytest.mark.parametrize("items, is_in_progress",
                         [([old(2), new(1)], True), ([rc(replicas=2)], False)])
def test_an_analysis_detects_an_update_in_progress(
        simulate_cluster, queries, monkeypatch, items, is_in_progress):
    subjects = []
    original_subject = task._subject
    monkeypatch.setattr(task, "_subject",
                        lambda *args: subjects.append(original_subject(*args)) or subjects[-1])
    simulate_cluster(*items, gateway_class=MeasuredCluster)

    task.analysis(analysis_params())

    assert {subject.in_progress for subject in subjects} == {is_in_progress}


# Results in Ansible's own process, and results of the module


def other_controller():
    """Return a controller with another selector than foo."""
    item = rc("bar")
    item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = {"app": "bar"}
    return item


@pytest.fixture
def runner(monkeypatch, capsys):
    return TaskRunner(monkeypatch, capsys)


@pytest.mark.parametrize("arguments", {
    "as requested": {"name": "foo", "image": "myimage:v1"},
    "no such controller": {"name": "nobody", "image": "myimage:v1"},
    "no such container": {"name": "foo", "image": "myimage:v1", "container": "no"},
    "nothing to roll back": {"name": "foo", "state": "rolled_back"},
    "nothing to update": {"name": "foo"},
    "invalid number": {"name": "foo", "image": "myimage:v1", "max_surge": "x"},
    "no name": {"image": "myimage:v1"},
    "all as requested": {"names": ["foo", "bar"], "image": "myimage:v1"},
    "one missing": {"names": ["foo", "bar", "nobody"], "image": "myimage:v2"},
    "one missing, first": {"names": ["nobody", "foo"], "image": "myimage:v2"},
    "one missing, within max_failures": {"names": ["nobody", "foo"], "image": "myimage:v1",
                                         "max_failures": "1"},
    "two missing": {"names": ["nobody", "foo", "nothing"], "image": "myimage:v2",
                    "max_failures": 1},
}.values())
def test_the_result_in_process_equals_that_of_the_module(simulate_cluster, runner, arguments):
    gateways = simulate_cluster(rc(), other_controller())

    result = runner.run_in_process(**arguments)

    assert result is not None
    assert (result == runner.run_module(**arguments)
            == runner.run_module(check_mode=True, **arguments))
    assert (not any(gateway.attempts for gateway in gateways)
            and all(gateway.is_closed for gateway in gateways))


def types_in(value):
    """Return the types of a value, of its keys and of its items at any depth."""
    items = [*value, *value.values()] if isinstance(value, dict) else value
    parts = items if isinstance(value, (dict, list, tuple)) else []
    return {type(value)}.union(*map(types_in, parts))


@pytest.mark.parametrize("arguments", [{"name": "foo"}, {"names": ["foo", "bar"]}])
def test_planned_result_has_only_types_of_json(simulate_cluster, arguments):
    """Ansible warns of other types in a result."""
    simulate_cluster(rc(), other_controller())
    params = in_process.parameters("update", {**arguments, "image": "myimage:v2"}, ".")

    result = in_process.run_read_only("update", params, ".", {}, diff=True, check_mode=True)

    assert result["changed"]
    assert types_in(result) <= {dict, list, str, int, float, bool, type(None)}


@pytest.mark.parametrize("arguments",
                         [{"name": "foo"}, {"names": ["foo", "bar"]},
                          {"names": ["foo", "no"], "max_failures": "50%"}])
def test_steps_are_left_to_the_module_which_does_what_check_mode_plans(
        simulate_cluster, runner, arguments):
    gateways = simulate_cluster(rc(), other_controller())
    arguments["image"] = "myimage:v2"

    assert runner.run_in_process(**arguments) is None
    plan = runner.run_module(check_mode=True, **arguments)
    assert not any(gateway.attempts for gateway in gateways)
    done = runner.run_module(**arguments)
    assert [entry["name"] for entry in done["results"]] == arguments.get("names", ["foo"])

    assert plan["changed"] and gateways[-1].attempts
    for result in [plan, done, *plan["results"], *done["results"]]:
        for step in result.get("steps", ()):
            del step["at"]
        result.pop("rollout", None)
    assert "would be" in plan["msg"] and with_real_wording(plan) == done


ENTRY = {"namespace": "default", "name": "foo", "kind": "ReplicationController", "failed": False,
         "skipped": False}


@pytest.mark.parametrize("is_real_run", [True, False], ids=["run", "check mode"])
@pytest.mark.parametrize("arguments, keys", [
    ({"image": "myimage:v1"}, {"rollout", "steps", "msg", "changed"}),
    ({"image": "myimage:v2", "pause_at": 1}, {"resume_command", "rollback_command", "rollout"}),
], ids=["unchanged", "paused"])
def test_the_entry_of_a_single_controller_repeats_the_top_level_keys(
        simulate_cluster, runner, arguments, keys, is_real_run):
    simulate_cluster(rc(replicas=2))

    result = runner.run_module(name="foo", check_mode=not is_real_run, **arguments)

    (entry,) = result["results"]
    assert ENTRY.items() <= entry.items() and keys <= entry.keys()
    fields = {key: value for key, value in entry.items() if key not in ENTRY}
    assert fields.items() == {key: result[key] for key in fields}.items()


@pytest.mark.parametrize("arguments, kind", [
    ({"state": "rolled_back", "to_revision": 7}, ""),
    ({"image": "x:1", "timeout": -1}, ""),
    ({"image": "x:1", "kind": "rs", "soak": "x"}, "ReplicaSet"),
    ({"image": "x:1", "kind": "x"}, "x"),
])
def test_entry_of_a_failed_single_controller_has_the_failure(simulate_cluster, runner,
                                                             arguments, kind):
    simulate_cluster(rc())

    result = runner.run_module(name="foo", **arguments)

    (entry,) = result["results"]
    assert entry == {**ENTRY, "kind": kind, "failed": True, "changed": False, "msg": result["msg"],
                     "failure": result["failure"],
                     **{key: result[key] for key in ("steps", "rollout") if key in result}}


def test_invalid_options_are_left_to_the_module(simulate_cluster, runner):
    simulate_cluster(rc())

    assert runner.run_in_process(name="foo", image="myimage:v1", nonsense=1) is None
    assert runner.run_in_process(
        name="foo", image="myimage:v1", ca_cert="/a", ssl_ca_cert="/b") is None
    assert runner.run_in_process(name="foo", image="myimage:v1", ca_cert="/a") is not None


def test_kubernetes_is_named_if_both_packages_are_missing(runner, monkeypatch):
    for absent in ("kubernetes.config", "yaml"):
        monkeypatch.setitem(sys.modules, absent, None)

    assert "library (kubernetes) on" in runner.run_module(name="foo", image="x:1")["msg"]


@pytest.mark.parametrize("absent, package, options", [
    ("kubernetes.config", "kubernetes", {}),
    ("kubernetes.config", "kubernetes", {"kubeconfig": "users:\n- name: s3cret"}),
    ("yaml", "PyYAML", {}), ("yaml", "PyYAML", {"kubeconfig": "users:\n- name: s3cret"}),
    ("yaml", "PyYAML", {"definition": "a: b"})])
def test_a_missing_package_is_reported_in_the_words_of_ansible(
        runner, monkeypatch, absent, package, options):
    monkeypatch.setitem(sys.modules, absent, None)
    change = {} if "definition" in options else {"image": "x:1"}
    request = {"name": "foo", **change, **options}

    answers = [runner.run_in_process(**request), runner.run_module(**request)]

    assert answers[0] == answers[1] and answers[0]["failed"] and "s3cret" not in json.dumps(answers)
    assert answers[0]["msg"].startswith(
        f"Failed to import the required Python library ({package}) on ")
    assert (answers[0]["failure"]["next_command"]
            == f"{sys.executable} -m pip install kubernetes PyYAML")


@pytest.mark.parametrize("options", [
    {"api_key": "s3cret"}, {"password": "s3cret"}, {"proxy": "http://me:s3cret@proxy"},
    {"kubeconfig": {"users": [{"name": "me", "user": {"token": "s3cret"}}]}}])
def test_no_answer_reveals_a_secret(runner, monkeypatch, options):
    def fail(*_unused, **_options):
        raise RolloutError("the server rejects s3cret", why="s3cret")

    monkeypatch.setattr(task, "_gateway", fail)
    request = {"name": "foo", **options}

    answers = [runner.run_in_process(**request, image="x:1"),
               runner.run_module(**request, image="x:1"),
               runner.run_module(rolling_update_info, **request)]

    assert "s3cret" not in json.dumps([*answers, runner.invocation])
    assert answers[0] == answers[1]
    assert all("the server rejects" in answer["msg"] for answer in answers)


def test_secret_true_does_not_mask_the_value_of_failed(runner, monkeypatch):
    monkeypatch.setattr(task, "_gateway", lambda *_unused, **_options: pytest.fail("not reached"))

    assert runner.run_in_process(names=["foo"], name="foo", api_key="True")["failed"] is True


@pytest.mark.parametrize("method", ["run_in_process", "run_module"])
def test_warnings_are_returned_without_secrets(runner, monkeypatch, method):
    warnings = []
    monkeypatch.setattr(task, "update",
                        lambda params, **_options: {
                            "changed": False, "warnings": ["mind the api_key s3cret"]})
    monkeypatch.setattr(basic.AnsibleModule, "warn", lambda self, text: warnings.append(text))

    result = getattr(runner, method)(name="foo", image="x:1", api_key="s3cret")

    warnings += result.pop("warnings", [])  # AnsibleModule adds them to the result
    assert result == {"changed": False} and warnings == ["mind the api_key ********"]


# Signals and invalid names


def test_a_stopped_task_reports_the_command_to_resume(simulate_cluster, monkeypatch):
    gateways = simulate_cluster(rc())
    monkeypatch.setattr(Gateway, "wait", lambda self, seconds: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(RolloutError, match=r"^stopped \(SIGTERM\)$") as error:
        update()

    assert error.value.next_command == f"{UPDATE_COMMAND} 'name=foo image=myimage:v2'"
    assert error.value.progress["changed"] and gateways[0].is_closed


@pytest.mark.parametrize("name, namespace",
                         [("Foo", "default"), ("foo/../bar", "default"), (None, "../kube-system")])
def test_info_refuses_an_invalid_name(name, namespace):
    with pytest.raises(RolloutError, match="is not a valid "):
        task.info({"namespace": namespace, "name": name, "kind": "ReplicationController"})

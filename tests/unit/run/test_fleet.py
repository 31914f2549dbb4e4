# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update fleets: selection, order, limits on failures, and the joint result."""

from __future__ import annotations

import collections
import threading
import types

import clusters
import pytest
from builders import SUCCESSOR, new, old, rc, rs
from migrations import ALL_STEPS, MIGRATE, MigrationGateway, World

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta, options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import (
    fleet,
    fleet_result,
    shared,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import Process

FLOW = choose(Request("any"))


class Cluster(clusters.Cluster):
    """Cluster where any selector matches `selected_names`, and writes to `refused_names` fail."""

    def __init__(self, *items, selected=()):
        super().__init__(*items)
        self.selected_names, self.refused_names, self.requests = (
            list(selected), set(), collections.Counter())

    def names(self, label_selectors, field_selectors):
        return self.selected_names

    def write(self, write):
        if write.name in self.refused_names:
            raise RolloutError("the change of its size was refused (403)", where=write.name,
                               why="no")
        return super().write(write)

    def rules(self):
        self.requests["rules"] += 1

    def objects(self, resource):
        self.requests[resource] += 1
        return []


def params(**changes):
    return {option: spec.get("default") for option, spec in options.ARGUMENT_SPEC.items()} | changes


def controllers(*names):
    """Return controllers with disjoint selectors."""
    items = []
    for name in names:
        item = rc(name)
        item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = {"app": name}
        items.append(item)
    return items


def groups(cluster, namespace="default"):
    return {fleet.Place(namespace, Kind.REPLICATION_CONTROLLER): fleet.Group(FLOW, cluster)}


def shared_cluster(cluster):
    return shared.SharedCluster(FLOW, cluster, ["one"])


def run(cluster, **changes):
    task_params = params(image="myimage:v2", **changes)
    fleet_ = fleet.Fleet.from_params(task_params)
    return fleet.run(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster),
                     Clock())


def ordered_names(cluster, **changes):
    task_params = params(image="myimage:v2", **changes)
    groups_by_place = groups(cluster, task_params["namespace"] or "default")
    return [request.name for request in fleet.Fleet.from_params(task_params).requests(
        task_params, groups_by_place)]


SELECTION = "give exactly one of name, names, or selectors (label_selectors, field_selectors)"


@pytest.mark.parametrize("changes, sentence", {
    "no selection": ({}, f"{SELECTION}; given: none"),
    "two selections": ({"name": "foo", "names": ["foo"]},
                       f"{SELECTION}; given: name and names"),
    "negative concurrency": ({"names": ["foo"], "concurrency": -1},
                             "concurrency must be at least 1, not -1"),
    "concurrency 0": ({"names": ["foo"], "concurrency": 0},
                      "concurrency must be at least 1, not 0"),
    "kinds by name": ({"name": "foo", "kinds": ["Deployment", "StatefulSet"]},
                      "several kinds require label_selectors or field_selectors: give one kind "
                      "with name"),
    "next_name": ({"names": ["foo"], "next_name": "foo-v2"},
                  "next_name can only be used with a single controller: give name"),
    "definition": ({"names": ["foo"], "definition": {"kind": "x"}},
                   "definition can only be used with a single controller: give name"),
    "wait=false": ({"names": ["foo"], "wait": False},
                   "wait=false can only be used with a single controller: give name"),
    "names and fields": ({"names": ["foo"], "field_selectors": ["metadata.name=foo"]},
                         f"{SELECTION}; given: names and field_selectors"),
    "max_failures": ({"names": ["foo"], "max_failures": "some"},
                     """max_failures 'some' is neither a number nor a percentage such as "25%\""""),
}.values())
def test_invalid_options_are_refused_with_one_sentence(changes, sentence):
    with pytest.raises(RolloutError) as error:
        fleet.Fleet.from_params(params(**changes))

    assert error.value.what == sentence


def test_single_name_is_no_fleet():
    assert fleet.Fleet.from_params(params(name="foo", names=[], label_selectors=[])) is None


def test_names_keep_their_order_without_duplicates():
    assert ordered_names(Cluster(), names=["foo", "another", "foo"]) == ["foo", "another"]


def test_selected_controllers_are_sorted_and_successors_left_out():
    cluster = Cluster(old(), new(), *controllers("another"),
                      selected=[SUCCESSOR, "foo", "another", "gone meanwhile"])

    assert ordered_names(cluster, label_selectors=["app"]) == ["another", "foo"]


@pytest.mark.parametrize("items, selected, expected", [
    ([old(), new()], [SUCCESSOR], [SUCCESSOR]),
    ([new()], [SUCCESSOR], ["foo"]),
    ([rc(), new(name="payments")], ["payments"], ["payments"]),
    ([rc(), new(name="payments")], ["foo", "payments"], ["foo", "payments"]),
    ([new(name="payments", label="0123456789")], ["payments"], ["payments"]),
], ids=["primary not chosen", "primary deleted", "forged partner",
        "forged partner of a chosen controller",
        "forged partner of a missing controller"])
def test_selected_successor_does_not_extend_the_selection(items, selected, expected):
    assert ordered_names(Cluster(*items, selected=selected), label_selectors=["app"]) == expected


@pytest.mark.parametrize("step_count", range(len(ALL_STEPS)))
@pytest.mark.parametrize("selector, expected", [("app=foo", ["foo"]), ("app=bar", None)])
def test_interrupted_migration_is_selected_by_labels(step_count, selector, expected):
    """The labeled ReplicationController may already be deleted."""
    world = World()
    world.run_steps(step_count)
    task_params = {"image": None, "label_selectors": [selector], "module": "migrate_to_deployment",
                   "state": "migrated"}
    fleet_, kind = fleet.Fleet.from_params(params(**task_params)), Kind.REPLICATION_CONTROLLER
    flow = choose(MIGRATE)
    gateway = MigrationGateway(world.cluster, kind, flow.watched_kinds)
    groups_by_place = {fleet.Place("default", kind): fleet.Group(flow, gateway)}
    if expected is None:
        with pytest.raises(RolloutError, match="no ReplicationController matches app=bar"):
            fleet_.requests(params(**task_params), groups_by_place)
        return
    (request,) = fleet_.requests(params(**task_params), groups_by_place)
    assert (request.name == "foo"
            and fleet_.skip_reason(request, gateway.controllers().get("foo"), False)
            == "")
    assert world.run_steps(request=request) == ALL_STEPS[step_count:]


def test_replica_set_of_a_deployment_is_skipped():
    task_params = params(image="myimage:v2", label_selectors=["app=foo"], kind="ReplicaSet")
    fleet_ = fleet.Fleet.from_params(task_params)
    owner = {"kind": "Deployment", "name": "web", "uid": "d", "controller": True}
    owned_set, unowned_set = (Controller.from_api(rs(ownerReferences=owners), Kind.REPLICA_SET)
                              for owners in ([owner], []))
    request = options.parse_request({**task_params, "name": "foo", "kind": "ReplicaSet"})
    assert fleet_.skip_reason(request, owned_set, False) == "it belongs to Deployment/web"
    assert fleet_.skip_reason(request, unowned_set, False) == ""


def test_selector_without_a_match_is_an_error():
    with pytest.raises(RolloutError) as error:
        ordered_names(Cluster(), label_selectors=["app=foo", "tier"], namespace="shop")

    assert error.value.message == "namespace shop: no ReplicationController matches app=foo,tier."


def test_results_of_a_fleet():
    cluster = Cluster(*controllers("one", "two", "three"))

    result = run(cluster, names=["one", "two", "three"], concurrency=3)

    assert result["msg"] == "3 of 3 controllers are as requested (3 changed)" and result["changed"]
    assert [entry["name"] for entry in result["results"]] == ["one", "two", "three"]
    assert all(entry["steps"] and entry["rollout"]["phase"] == "complete"
               for entry in result["results"])
    assert {controller.images["web"]
            for controller in cluster.controllers().values()} == {"myimage:v2"}
    assert [diff["before_header"] for diff in result["diff"]] == ["one", "two", "three"]


#: How often each resource is listed for three controllers.
LISTS = {"services": 1, "resourcequotas": 1, "nodes": 1, "poddisruptionbudgets": 3,
         "horizontalpodautoscalers": 3}


def test_shared_objects_are_listed_once():
    cluster = Cluster(*controllers("one", "two", "three"))

    run(cluster, names=["one", "two", "three"])

    assert cluster.requests == LISTS | {"rules": 1}


def test_second_run_changes_nothing():
    cluster, task_params = Cluster(*controllers("one", "two")), params(
        image="myimage:v2", names=["one", "two"])
    fleet_ = fleet.Fleet.from_params(task_params)
    requests = fleet_.requests(task_params, groups(cluster))

    assert fleet.result_if_done(fleet_, requests, groups(cluster), Clock()) is None
    run(cluster, names=["one", "two"])

    for result in (fleet.result_if_done(fleet_, requests, groups(cluster), Clock()),
                   run(cluster, names=["one", "two"])):
        assert (not result["changed"]
                and result["msg"] == "2 of 2 controllers are as requested (0 changed)")


@pytest.mark.parametrize("skipped_names", ["", "opqrstuvwxyz"], ids=["none", "some skipped"])
@pytest.mark.parametrize("max_failures, names, started", [
    ("0", "abcd", "a"), ("1", "abcd", "abc"), ("50%", "abcd", "abcd"), ("49%", "abcd", "abc"),
    ("100%", "abcd", "abcd"),
])
def test_max_failures_stops_the_fleet(max_failures, names, started, skipped_names):
    """A percentage is of the controllers that are not skipped for their image."""
    skipped_controllers = controllers(*skipped_names)
    for item in skipped_controllers:
        item["spec"]["template"]["spec"]["containers"][0]["image"] = "another:v1"
    all_names = [*names, *skipped_names]
    cluster = Cluster(*controllers(*names), *skipped_controllers, selected=all_names)
    cluster.refused_names = {name for name in names if name in "ac"}
    selection = {"label_selectors": ["app"]} if skipped_names else {"names": all_names}

    with pytest.raises(RolloutError) as error:
        run(cluster, concurrency=1, max_failures=max_failures, **selection)

    results = {entry["name"]: entry for entry in error.value.as_result()["results"]}
    assert {name for name, entry in results.items()
            if entry["msg"] == "it does not run myimage"} == {*skipped_names}
    results = {name: entry for name, entry in results.items() if name not in skipped_names}
    assert "".join(name for name, entry in results.items() if not entry["skipped"]) == started
    failed = [name for name in started if name in "ac"]
    assert error.value.what == (
        f"{len(failed)} of {len(all_names)} controllers failed ({', '.join(failed)})")
    assert error.value.why == "the change of its size was refused (403): no"
    assert all(entry["failure"]["what"] for entry in results.values() if entry["failed"])
    assert all("not started, because " in entry["msg"] for entry in results.values()
               if entry["skipped"])


MODES = [fleet.run, fleet.simulate, fleet.result_if_done]


def task_result(mode, cluster, **changes):
    """Return the result of a task, even after a failure."""
    task_params = params(**{"image": "myimage:v2", **changes})
    fleet_ = fleet.Fleet.from_params(task_params)
    try:
        return mode(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster), Clock())
    except RolloutError as error:
        return error.as_result() | {"failed": True}


@pytest.mark.parametrize("names",
                         [["one", "wrong", "two"], ["wrong", "one", "two"],
                          ["one", "two", "wrong"]])
@pytest.mark.parametrize("problem", ["absent", "controlled"])
@pytest.mark.parametrize("mode", MODES)
def test_unusable_controller_is_reported_before_the_first_write(mode, problem, names):
    items = controllers("one", "two", "wrong")
    items[2]["metadata"]["ownerReferences"] = [{"kind": "DeploymentConfig", "name": "x", "uid": "x",
                                                "controller": True}]
    cluster = Cluster(*(items if problem == "controlled" else items[:2]))
    cluster.refused_names = {"one", "two"}

    result = task_result(mode, cluster, names=names)

    assert [(entry["name"], entry["failed"], entry["skipped"]) for entry in result["results"]] == [
        (name, name == "wrong", name != "wrong") for name in names]
    assert {entry["msg"] for entry in result["results"]
            if entry["skipped"]} == {"not started, because 1 of the others failed (wrong)"}
    reason = {"absent": "there is no such ReplicationController",
              "controlled": "it is controlled by DeploymentConfig/x, which would undo every step"}[
                  problem]
    assert (result["failure"]["what"] == "1 of 3 controllers failed (wrong)"
            and result["failure"]["why"] == reason)
    assert result["msg"].count(reason) == 1 and not result["changed"]
    assert set(cluster.controllers()) <= {"one", "two", "wrong"}


def cluster_during_update(**holder):
    """Return a cluster with an update of foo to v2.

    holder: fields of the process with the Lease, if any.
    """

    class ClusterWithLease(Cluster):
        def lease(self, name):
            process = Process.of_new_task()._replace(**holder)
            return {"metadata": {"annotations": {object_meta.HOLDER: str(process)}},
                    "spec": {"holderIdentity": "jane"}}

    return (ClusterWithLease if holder else Cluster)(old(2), new(1), *controllers("one"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("holder", [{}, {"start": "0"}], ids=["no holder", "killed holder"])
def test_other_update_in_progress_is_reported_before_the_first_write(mode, holder):
    cluster = cluster_during_update(**holder)
    cluster.refused_names = {"one"}

    result = task_result(mode, cluster, image="myimage:v3", names=["one", "foo"])

    assert [(entry["failed"], entry["skipped"]) for entry in result["results"]] == [
        (False, True), (True, False)]
    assert "another update is in progress: to myimage:v2" in result["failure"]["why"]


def test_no_result_is_found_while_another_process_holds_the_lease():
    assert task_result(fleet.result_if_done, cluster_during_update(machine="another"),
                       image="myimage:v3", names=["one", "foo"]) is None


@pytest.mark.parametrize("mode", MODES)
def test_all_unusable_controllers_are_reported_at_once(mode):
    items = controllers("one", "two", "three")
    items[2]["metadata"]["ownerReferences"] = [{"kind": "DeploymentConfig", "name": "x", "uid": "x",
                                                "controller": True}]

    result = task_result(mode, Cluster(*items), image="myimage:v1",
                         names=["nobody", "one", "three", "nothing", "two"])

    assert [entry["name"] for entry in result["results"] if entry["failed"]] == [
        "nobody", "three", "nothing"]
    assert not any(entry["changed"] or entry["skipped"] for entry in result["results"])
    assert result["failure"]["why"] == (
        "nobody, nothing: there is no such ReplicationController\nthree: it is controlled by "
        "DeploymentConfig/x, which would undo every step")
    assert "2 of 5 controllers are as requested (0 changed)" in result["msg"]


@pytest.mark.parametrize("mode", [fleet.run, fleet.simulate])
def test_missing_controllers_within_max_failures_do_not_stop_the_fleet(mode):
    cluster = Cluster(*controllers("one", "two"))

    result = task_result(mode, cluster, names=["nobody", "one", "two"], max_failures="1")

    assert [(entry["failed"], entry["changed"]) for entry in result["results"]] == [
        (True, False), (False, True), (False, True)]
    is_real = mode is fleet.run
    assert {controller.images["web"]
            for controller in cluster.controllers().values()} == {
                "myimage:v2" if is_real else "myimage:v1"}


def test_missing_controller_counts_as_a_failure():
    cluster = Cluster(*controllers("one", "two"))
    cluster.refused_names = {"one"}

    result = task_result(fleet.run, cluster, names=["one", "two", "nobody"], max_failures="1",
                         concurrency=1)

    assert [(entry["failed"], entry["skipped"]) for entry in result["results"]] == [
        (True, False), (False, True), (True, False)]
    assert result["results"][1][
        "msg"] == "not started, because 2 of the others failed (one, nobody)"


@pytest.mark.parametrize("mode, times", [(fleet.run, 2), (fleet.simulate, 1),
                                         (fleet.result_if_done, 1)])
def test_one_dry_run_for_each_template_of_a_controller(mode, times):
    """Each mode sends one for the old template; run() finally sends one for the new template."""
    cluster = Cluster(*controllers("one", "two"))
    cluster.admission_image = "myimage:v2"

    task_result(mode, cluster, image=None, template={"spec": {}}, names=["one", "two"])

    assert len(cluster.called("dry_run")) == 2 * times


def test_check_mode_lists_shared_objects_once():
    cluster = Cluster(*controllers("one", "two", "three"))

    task_result(fleet.simulate, cluster, names=["one", "two", "three"])

    assert cluster.requests == LISTS


def test_equal_warnings_are_joined():
    class ClusterWithRules(Cluster):
        def rules(self):
            return [{"apiGroups": ["", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]}]

    result = task_result(fleet.run, ClusterWithRules(*controllers("one", "two")),
                         names=["one", "two"])

    (warning,) = result["warnings"]
    assert warning.startswith("one, two: the previous template is not stored")


def test_selected_controllers_with_another_image_are_skipped():
    items = controllers("one", "two", "unselected")
    items[1]["spec"]["template"]["spec"]["containers"][0]["image"] = "other:v1"
    cluster = Cluster(*items, selected=["one", "two"])

    result = run(cluster, label_selectors=["app"])

    assert [(entry["name"], entry["changed"], entry["skipped"], entry["msg"])
            for entry in result["results"]][1] == (
        "two", False, True, "it does not run myimage")
    assert result["msg"] == "1 of 2 controllers are as requested (1 changed), 1 skipped (two)"
    assert cluster.controllers()["two"].images == {"web": "other:v1"}


def test_init_container_of_a_selected_controller_is_updated():
    (item,) = controllers("one")
    item["spec"]["template"]["spec"] |= {"containers": [{"name": "web", "image": "other:v1"}],
                                         "initContainers": [{"name": "migrate",
                                                             "image": "myimage:v1"}]}
    cluster = Cluster(item, selected=["one"])

    run(cluster, label_selectors=["app"])

    assert cluster.controllers()["one"].images == {"migrate": "myimage:v2", "web": "other:v1"}


def test_selected_controllers_without_an_update_are_not_rolled_back():
    cluster = Cluster(old(2), new(1), *controllers("another"), selected=["another", "foo"])
    task_params = params(state="rolled_back", label_selectors=["app"])
    fleet_ = fleet.Fleet.from_params(task_params)

    result = fleet.run(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster),
                       Clock())

    assert [(entry["name"], entry["msg"]) for entry in result["results"] if entry["skipped"]] == [
        ("another", "no update is in progress")]
    assert set(cluster.controllers()) == {"foo", "another"}


def test_check_mode_of_a_fleet():
    cluster, task_params = Cluster(*controllers("one", "two")), params(
        image="myimage:v2", names=["one", "two"])
    fleet_ = fleet.Fleet.from_params(task_params)

    plan = fleet.simulate(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster),
                          Clock())
    assert {controller.images["web"]
            for controller in cluster.controllers().values()} == {"myimage:v1"}
    real = run(cluster, names=["one", "two"])

    def steps(result):
        return [[(step["action"], step["name"], step["to"]) for step in entry["steps"]]
                for entry in result["results"]]

    assert steps(plan) == steps(real) and plan["changed"]


def have_both_begun(cluster):
    return {"one", "two"} <= {write.name for _time, write in cluster.writes}


def test_lost_connection_fails_all_running_controllers():
    class Unreachable(Cluster):
        def wait(self, seconds):
            if have_both_begun(self):
                raise RolloutError("the API server at https://one cannot be reached", why="refused")
            super().wait(seconds)

    with pytest.raises(RolloutError) as error:
        run(Unreachable(*controllers("one", "two")), names=["one", "two"])

    results = error.value.as_result()["results"]
    assert all(entry["failed"] and "cannot be reached" in entry["msg"] and entry["steps"]
               for entry in results)


def test_bug_fails_one_controller():
    class BuggyCluster(Cluster):
        def write(self, write):
            return 1 // 0 if write.name == "two" else super().write(write)

    cluster = BuggyCluster(*controllers("one", "two", "three"))
    result = task_result(fleet.run, cluster, names=["one", "two", "three"], max_failures="1",
                         concurrency=1)

    assert [(entry["failed"], entry["changed"]) for entry in result["results"]] == [
        (False, True), (True, False), (False, True)]
    assert result["failure"]["what"] == "1 of 3 controllers failed (two)"
    assert result["results"][1]["failure"][
        "what"] == "internal error: ZeroDivisionError: integer division or modulo by zero"


def test_bug_in_a_watch_fails_all_controllers():
    class BuggyCluster(Cluster):
        def wait(self, seconds):
            if have_both_begun(self):
                raise RuntimeError("dictionary changed size during iteration")
            super().wait(seconds)

    result = task_result(fleet.run, BuggyCluster(*controllers("one", "two")), names=["one", "two"])

    assert all(entry["failed"] and "internal error: RuntimeError: dictionary" in entry["msg"]
               and entry["steps"]
               for entry in result["results"])


@pytest.mark.parametrize("exception", [
    RolloutError("the API server at https://one cannot be reached"), RuntimeError("a bug")],
    ids=["outage", "bug"])
def test_no_update_begins_after_the_watch_has_failed(exception):
    """Without a watch, it would stop at its first wait."""

    class FailingOnce(Cluster):
        def wait(self, seconds):
            if exceptions and self.writes:
                raise exceptions.pop()
            return super().wait(seconds)

    exceptions, cluster = [exception], FailingOnce(*controllers("one", "two", "three"))
    result = task_result(fleet.run, cluster, names=["one", "two", "three"], concurrency=1,
                         max_failures="100%")

    assert [(entry["failed"], entry["changed"]) for entry in result["results"]] == [
        (True, True), (True, False), (True, False)]
    assert str(exception) in result["results"][2]["msg"]
    assert {name for name in cluster.controllers() if name.startswith("t")} == {"two", "three"}


def test_no_update_begins_if_the_watch_fails_during_the_wait_for_a_lease(monkeypatch):
    class FailingOnce(Cluster):
        def put_lease(self, lease):
            if "two" in lease["metadata"]["name"]:
                assert has_failed.wait(10)
            return super().put_lease(lease)

        def wait(self, seconds):
            if self.writes:
                raise RolloutError("the API server at https://one cannot be reached")
            return super().wait(seconds)

    def end_drivers(self, error):
        end(self, error)
        has_failed.set()

    has_failed, end = threading.Event(), shared.SharedCluster.end_drivers
    monkeypatch.setattr(shared.SharedCluster, "end_drivers", end_drivers)
    result = task_result(fleet.run, FailingOnce(*controllers("one", "two")), names=["one", "two"],
                         max_failures="100%")

    assert [(entry["failed"], entry["changed"]) for entry in result["results"]] == [
        (True, True), (True, False)]


def test_driver_without_events_reads_the_controller(monkeypatch):
    class SilentCluster(Cluster):
        def wait(self, seconds):
            super().wait(seconds)
            return set()

    monkeypatch.setattr(shared, "MIN_WAIT", 0.01)

    assert run(SilentCluster(*controllers("one")), names=["one"])["changed"]


@pytest.mark.parametrize("resource, count", [
    ("horizontalpodautoscalers", 2), ("poddisruptionbudgets", 2), ("resourcequotas", 1)])
def test_objects_that_other_tasks_change_are_listed_for_each_controller(resource, count):
    cluster = Cluster()
    gateway = shared_cluster(cluster).gateway_for("one")

    for _round in range(2):
        gateway.objects(resource)

    assert cluster.requests[resource] == count


def test_driver_waits_at_least_the_minimum():
    gateway = shared_cluster(Cluster()).gateway_for("one")
    waits = []
    gateway.wake_event = types.SimpleNamespace(wait=waits.append, clear=lambda: None)

    gateway.wait(shared.MIN_WAIT / 5)
    gateway.wait(shared.MIN_WAIT * 5)

    assert waits == [shared.MIN_WAIT, shared.MIN_WAIT * 5]


def test_event_wakes_a_driver_and_a_failed_watch_fails_each_driver():
    cluster = shared_cluster(Cluster())
    gateway, errors = cluster.gateway_for("one"), []
    gateway.wake_event.set()
    gateway.wait(0)
    assert not gateway.wake_event.is_set()

    cluster.end_drivers(RolloutError("no more news"))
    for _driver in range(2):
        with pytest.raises(RolloutError, match="no more news") as error:
            gateway.wait(0)
        gateway.wake_event.set()
        errors.append(error.value)
    assert errors[0] is not errors[1]


def test_every_line_names_its_namespace_and_controller():
    cluster, lines = Cluster(*controllers("one", "two")), []
    task_params = params(image="myimage:v2", names=["one", "two"])
    fleet_ = fleet.Fleet.from_params(task_params)

    fleet.run(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster), Clock(),
              lines.append)

    assert {line.partition(": ")[0] for line in lines} == {"default | one", "default | two"}


def test_error_lists_five_names():
    cluster = Cluster(*controllers(*"abcdefgh"))
    cluster.refused_names = set("abcdefgh")

    with pytest.raises(RolloutError) as error:
        run(cluster, names=list("abcdefgh"), max_failures="100%")

    assert error.value.what == "8 of 8 controllers failed (a, b, c, d, e and 3 more)"


def result_of(name, **failure):
    return {"name": name, "changed": False, "failed": True, "skipped": False,
            "failure": {"what": "it failed", "why": "", "next_command": "", "causes": [],
                        **failure}}


@pytest.mark.parametrize("whys, reason", [
    (["a has 0 of 1\npod a-1: no image"], "it failed\na has 0 of 1\npod a-1: no image"),
    (["no"], "it failed: no"),
    (["no\nnever", "why not"], "c0: it failed: no; never\nc1: it failed: why not"),
    ([str(number) for number in range(7)],
     "\n".join([*(f"c{number}: it failed: {number}" for number in range(5)), "and 2 more"])),
], ids=["one controller with causes", "one controller", "several controllers", "many controllers"])
def test_reasons_of_a_failed_fleet(whys, reason):
    results = {f"c{number}": result_of(f"c{number}", why=why,
                                       next_command="do this, then:\nkubectl")
               for number, why in enumerate(whys)}

    with pytest.raises(RolloutError) as error:
        fleet_result.joint_result(results, ["do this, then:", "kubectl"])

    assert (error.value.why, error.value.next_command) == (reason, "do this, then:\nkubectl")


# keep_old and quotas

class LimitedCluster(Cluster):
    """Cluster with a ResourceQuota of `hard` pods, two of them in use."""

    def __init__(self, hard, *items):
        super().__init__(*items)
        self.hard, self.writes = hard, []

    def objects(self, resource):
        quota = {"metadata": {"name": "small"},
                 "status": {"hard": {"pods": self.hard}, "used": {"pods": "2"}}}
        return [quota] if resource == "resourcequotas" else []

    def write(self, write):
        self.writes.append(write.name)
        return super().write(write)


KEEP_OLD = {"names": ["one", "two"], "pause_at": "100%", "keep_old": True}


def test_quota_is_compared_with_the_new_pods_of_all_controllers():
    cluster = LimitedCluster("7", *controllers("one", "two"))
    task_params = params(image="myimage:v2", **KEEP_OLD)
    fleet_ = fleet.Fleet.from_params(task_params)
    for mode in MODES:
        with pytest.raises(RolloutError) as error:
            mode(fleet_, fleet_.requests(task_params, groups(cluster)), groups(cluster), Clock())
        assert not cluster.writes
        assert error.value.where == "namespace default"
        assert error.value.what == (
            "the ResourceQuota small does not admit all new pods of the 2 controllers beside the "
            "old pods, which keep_old keeps: pods (2 of 7 used, 6 more needed)")
        assert error.value.next_command == "\n".join((
            "kubectl -n default edit quota small", "or leave keep_old out",
            "or update the controllers one after the other"))


@pytest.mark.parametrize("hard, changes", [
    ("8", {}), ("7", {"keep_old": None, "pause_at": None}), ("7", {"names": ["one"]})],
    ids=["enough", "without keep_old", "one controller"])
def test_quota_that_admits_the_new_pods_is_accepted(hard, changes):
    cluster = LimitedCluster(hard, *controllers("one", "two"))
    task_params = params(image="myimage:v2", **KEEP_OLD | changes)
    fleet_ = fleet.Fleet.from_params(task_params)
    requests = fleet_.requests(task_params, groups(cluster))
    assert fleet.result_if_done(fleet_, requests, groups(cluster), Clock()) is None

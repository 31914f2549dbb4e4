# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update the controllers of several namespaces in one task."""

from __future__ import annotations

import clusters
import pytest
from builders import rc

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import options
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State
from ansible_collections.baton.kubernetes.plugins.module_utils.run import fleet, places
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Clock

NAMESPACES = ["b", "a"]


class Cluster(clusters.Cluster):
    """Cluster where selectors match the names in selected_names. Writes to refused_names fail."""

    selected_names, refused_names = ("bar", "foo"), frozenset()

    def names(self, label_selectors, field_selectors):
        return self.selected_names

    def write(self, write):
        if write.name in self.refused_names:
            raise RolloutError("the change of its size was refused (403)", where=write.name)
        return super().write(write)


def params(**changes):
    return {option: spec.get("default") for option, spec in options.ARGUMENT_SPEC.items()} | changes


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"namespace": "a", "namespaces": ["b"], "names": ["foo"]},
     "namespace and namespaces cannot be combined: give only one of them"),
    ({"namespaces": ["b"], "namespace_selectors": ["team=x"], "names": ["foo"]},
     "namespaces and namespace_selectors cannot be combined: give only one of them"),
    ({"namespaces": ["a"], "name": "foo"},
     "namespaces can only be used with names or label_selectors: give names instead of name"),
    ({"namespace_selectors": ["team=x"], "name": "foo"},
     "namespace_selectors can only be used with names or label_selectors: give names instead of "
     "name"),
    ({"namespaces": [f"n{number}" for number in range(101)], "names": ["foo"]},
     "the task is for 101 namespaces, and the limit is 100"),
])
def test_an_invalid_combination_is_refused(changes, sentence):
    with pytest.raises(RolloutError) as error:
        places.refuse_conflicting_options(changes)

    assert error.value.what == sentence


def test_each_namespace_and_kind_has_a_request_in_the_order_of_the_task():
    task_params = params(namespaces=NAMESPACES, image="myimage:v2", label_selectors=["a=b"])

    requests = places.requests_for_places(task_params, ["Deployment", "StatefulSet"])

    assert list(map(places.Place.of, requests)) == [
        ("b", Kind.DEPLOYMENT), ("b", Kind.STATEFUL_SET),
        ("a", Kind.DEPLOYMENT), ("a", Kind.STATEFUL_SET)]


def test_an_invalid_namespace_is_refused_before_any_request():
    with pytest.raises(RolloutError, match=r"'\.\./x' is not a valid namespace name"):
        places.requests_for_places(params(namespaces=["a", "../x"], image="myimage:v2"), [None])


def failing(error):
    def update(request):
        raise error

    return update


class TwoNamespaces:
    def __init__(self, names=("foo", "bar"), **changes):
        self.params = params(**{"image": "myimage:v2", "namespaces": NAMESPACES,
                                "names": list(names), **changes})
        self.clusters = {namespace: Cluster(*map(self.controller, ("foo", "bar")))
                         for namespace in NAMESPACES}
        self.lines = []

    @staticmethod
    def controller(name):
        item = rc(name)
        item["spec"]["selector"] = item["spec"]["template"]["metadata"]["labels"] = {"app": name}
        return item

    placeholder = places.requests_for_places(params(image="myimage:v2"), [None])[0]

    @property
    def groups(self):
        flow = choose(self.placeholder)
        return {places.Place(namespace, Kind.REPLICATION_CONTROLLER): fleet.Group(flow, cluster)
                for namespace, cluster in self.clusters.items()}

    @property
    def fleet_(self):
        return fleet.Fleet.from_params(self.params)

    @property
    def requests(self):
        return self.fleet_.requests(self.params, self.groups)

    def run(self, mode=fleet.run, *more):
        return mode(self.fleet_, self.requests, self.groups, Clock(), *more)

    def error(self):
        with pytest.raises(RolloutError) as error:
            self.run()
        return error.value

    def images(self):
        return {image for cluster in self.clusters.values() for item in cluster.items()
                for image in [item["spec"]["template"]["spec"]["containers"][0]["image"]]}


def namespaces_and_names(entries):
    return [(entry["namespace"], entry["name"]) for entry in entries]


def test_named_controllers_are_updated_in_each_namespace():
    two_namespaces = TwoNamespaces()

    result = two_namespaces.run(fleet.run, two_namespaces.lines.append)

    assert namespaces_and_names(result["results"]) == [
        ("b", "foo"), ("b", "bar"), ("a", "foo"), ("a", "bar")]
    assert result["msg"] == "4 of 4 controllers are as requested (4 changed)"
    assert two_namespaces.images() == {"myimage:v2"}
    assert any(line.startswith("b | foo: ") for line in two_namespaces.lines)
    assert any(line.startswith("a | foo: ") for line in two_namespaces.lines)
    assert two_namespaces.run(fleet.result_if_done)["changed"] is False


@pytest.mark.parametrize("name", ["e", "foo", "replica"])
def test_display_name_has_the_namespace_before_the_name(name):
    """The name may also be a part of the kind: "ReplicaSet" contains "e"."""
    two_namespaces = TwoNamespaces()
    flow = choose(two_namespaces.placeholder)
    groups = {places.Place(namespace, kind): fleet.Group(flow, cluster)
              for namespace, cluster in two_namespaces.clusters.items()
              for kind in (Kind.REPLICATION_CONTROLLER, Kind.REPLICA_SET)}
    (request,) = places.requests_for_places(
        params(image="myimage:v2", name=name, namespace="b"), ["ReplicaSet"])

    fleet_run = fleet._FleetRun(two_namespaces.fleet_, [], groups, Clock())

    assert fleet_run.display_name(request) == f"ReplicaSet b/{name}"
    assert fleet_run.name_with_kind(request) == f"ReplicaSet {name}"


def test_check_mode_reports_each_namespace_and_writes_nothing():
    two_namespaces = TwoNamespaces()

    plan = two_namespaces.run(fleet.simulate)
    result = two_namespaces.run()

    assert namespaces_and_names(plan["results"]) == namespaces_and_names(result["results"])
    assert plan["changed"]


def test_a_failure_stops_updates_in_other_namespaces():
    two_namespaces = TwoNamespaces(concurrency=1)
    two_namespaces.clusters["b"].refused_names = {"foo"}

    error = two_namespaces.error()

    assert error.what == "1 of 4 controllers failed (b/foo)"
    entries = error.progress["results"]
    assert [entry["skipped"] for entry in entries] == [False, True, True, True]
    assert entries[3]["msg"] == "not started, because 1 of the others failed (b/foo)"


def test_max_failures_is_a_percentage_of_all_controllers():
    two_namespaces = TwoNamespaces(concurrency=1, max_failures="25%")
    two_namespaces.clusters["b"].refused_names = {"foo"}

    assert [entry["skipped"] for entry in two_namespaces.error().progress["results"]] == [False] * 4


def test_a_rollback_of_each_namespace_is_suggested():
    two_namespaces = TwoNamespaces(max_failures="100%", progress_deadline="3")
    for cluster in two_namespaces.clusters.values():
        cluster.on_wait = cluster.stall

    commands = two_namespaces.error().next_command.splitlines()

    rerun, *rollbacks = [command for command in commands if command.startswith("ansible ")]
    assert 'namespaces=' in rerun.replace('"', "") and " namespace=" not in rerun
    assert len(rollbacks) == 2
    for namespace, command in zip(NAMESPACES, rollbacks, strict=True):
        assert f"namespace={namespace}" in command and "namespaces" not in command
        assert "state=rolled_back" in command and "foo" in command and "bar" in command


def rollbacks_of(requests):
    return [request.command(State.ROLLED_BACK) for request in requests]


def error_of(requests, next_commands):
    """Return the error of a fleet whose controllers fail, each with one of the next commands."""
    flow = choose(TwoNamespaces.placeholder)
    fleet_run = fleet._FleetRun(
        TwoNamespaces().fleet_, [],
        {places.Place.of(request): fleet.Group(flow, Cluster()) for request in requests}, Clock())
    fleet_run.requests = requests
    for request, command in zip(requests, next_commands, strict=True):
        fleet_run._run_and_record(request, failing(RolloutError("it failed", next_command=command)))
    with pytest.raises(RolloutError) as error:
        fleet_run.result()
    return error.value


@pytest.mark.parametrize(("namespaces", "kinds", "omitted_names"), [
    ("abcde", ["ReplicaSet"], ""),
    ("abcdefg", ["ReplicaSet"], "f/foo, g/foo"),
    ("ab", ["ReplicaSet", "Deployment"], "Deployment a/foo, Deployment b/foo"),
    ("abcdefghijklm", ["ReplicaSet"], "f/foo, g/foo, h/foo, i/foo, j/foo and 3 more"),
])
def test_omitted_rollbacks_are_named(namespaces, kinds, omitted_names):
    requests = places.requests_for_places(params(image="myimage:v2", name="foo"), kinds, namespaces)

    error = error_of(requests, rollbacks_of(requests))

    assert error.commands == rollbacks_of(
        request for request in requests if request.kind == "ReplicaSet")[:5]
    hints = [line for line in error.next_command.splitlines()
             if line not in error.commands]
    assert hints == ([f"and the rollback of {omitted_names}: see failure.commands in results"]
                     if omitted_names else [])


@pytest.mark.parametrize("first_command, start", [("kubectl get", "kubectl get\nand the"),
                                                  ("", "the")])
def test_rollbacks_are_named_if_the_first_failed_controller_cannot_be_rolled_back(first_command,
                                                                                  start):
    requests = places.requests_for_places(params(image="myimage:v2", name="foo"), ["Deployment"],
                                          "abc")

    error = error_of(requests, [first_command, *rollbacks_of(requests[1:])])

    assert error.next_command == (
        f"{start} rollback of b/foo, c/foo: see failure.commands in results")


def test_a_listed_namespace_without_a_match_is_an_error():
    two_namespaces = TwoNamespaces(label_selectors=["a=b"], names=())
    two_namespaces.clusters["a"].selected_names = []

    with pytest.raises(RolloutError) as error:
        assert two_namespaces.requests
    assert (error.value.what, error.value.where) == ("no ReplicationController matches a=b",
                                                     "namespace a")


def test_a_selected_namespace_without_a_match_is_left_out():
    two_namespaces = TwoNamespaces(label_selectors=["a=b"], names=(), namespaces=None,
                                   namespace_selectors=["team=x"])
    two_namespaces.clusters["a"].selected_names = []

    assert {request.namespace for request in two_namespaces.requests} == {"b"}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check each row of the tables in the planner of a traffic split, and each refusal."""

from __future__ import annotations

import dataclasses
import json

import pytest
from builders import rc
from forged import HOSTILE_TEXTS, KEYS
from traffic_objects import (
    BEFORE_UPDATE,
    KEY,
    LABELS,
    MATCH,
    MATCHING,
    MIRRORING,
    NAMESPACE,
    RESTORE,
    ROUTE_UID,
    SPLIT,
    VERSIONS,
    ZERO_SHARE,
    World,
    backend,
    parent,
    pod,
    rule,
    run,
    service,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    TRAFFIC_ROUTES,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Done,
    Step,
    Wait,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.observed import (
    Route,
    Service,
    find_versions,
    split_name,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.planner import (
    DRAIN,
    WAIT_FOR_SERVICES,
    plan,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    MAX_ROUTES,
    SPLIT_OF,
    TRAFFIC_SPLIT,
    parse_record,
    parse_routes,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share


def plan_for(world, request=SPLIT, **options):
    return plan(request, world.observed(request, **options))


def run_and_record(world, request):
    """Run a task to its end. Return (action, kind) of each step, and the texts of the waits."""
    steps = []
    is_drained = False
    while not isinstance(decision := plan_for(world, request, is_drained=is_drained), Done):
        if isinstance(decision, Wait):
            steps.append(decision.until)
            is_drained = is_drained or decision in (DRAIN, WAIT_FOR_SERVICES)
            world.settle()
        else:
            steps.append((str(decision.action), decision.write.kind))
            is_drained = is_drained and decision.action is not Action.UPDATE
            assert world.write(decision.write)
    return steps


def split_service_names(world):
    return [name for name in world.services if name.startswith("foo-")]


def test_steps_of_a_split_and_of_its_restoration():
    world = World(rule(backend("foo", 3)))
    steps = run_and_record(world, MATCHING)
    old, new = split_service_names(world)

    assert steps == [
        ("annotate", "ReplicationController"), ("annotate", "HTTPRoute"),
        ("create", "Service"), ("create", "Service"),
        f"the Service {old} of the old pods has a ready endpoint",
        ("update", "HTTPRoute"), "each Gateway has observed the route", WAIT_FOR_SERVICES.until,
        ("update", "HTTPRoute"), "each Gateway has observed the route"]
    assert world.services[new]["spec"] == {
        "type": "ClusterIP", "selector": {"app": "foo", KEY: "bbb"},
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}
    assert plan_for(world, MATCHING) == Done(
        "10% of the requests for foo go to the new pods of foo, plus all requests that match")
    record = parse_record(world.route["metadata"]["annotations"][TRAFFIC_SPLIT])
    assert (record.service, record.weights, record.match) == ("foo", (3,), MATCH)

    assert run_and_record(world, SPLIT) == [
        ("update", "HTTPRoute"), "each Gateway has observed the route"]
    assert run_and_record(world, RESTORE) == [
        ("update", "HTTPRoute"), "each Gateway has observed the route", DRAIN.until,
        ("restore", "HTTPRoute"), "each Gateway has observed the route",
        ("delete", "Service"), ("delete", "Service"), ("restore", "HTTPRoute"),
        ("restore", "ReplicationController")]
    assert world.rules == [rule(backend("foo", 3))] and world.annotation is None
    assert plan_for(world, RESTORE) == Done("edge has no traffic split")


def test_steps_of_a_hold_and_of_the_next_share():
    world = World(rule(backend("foo", 3)), versions=BEFORE_UPDATE)
    steps = run_and_record(world, ZERO_SHARE)
    (old,) = split_service_names(world)

    assert steps == [
        ("annotate", "ReplicationController"), ("annotate", "HTTPRoute"), ("create", "Service"),
        f"the Service {old} of the old pods has a ready endpoint",
        ("update", "HTTPRoute"), "each Gateway has observed the route", WAIT_FOR_SERVICES.until,
        ("update", "HTTPRoute"), "each Gateway has observed the route"]
    assert weights(world) == {"foo": 0, old: 100}
    assert plan_for(world, ZERO_SHARE) == Done(
        "0% of the requests for foo go to the new pods of foo")

    world.versions = VERSIONS
    assert isinstance(plan_for(world, ZERO_SHARE), Done), (
        "a hold must not require a Service of the new pods")
    assert run_and_record(world, SPLIT) == [
        ("create", "Service"),
        f"the Service {split_service_names(world)[1]} of the new pods has a ready endpoint",
        ("update", "HTTPRoute"), "each Gateway has observed the route", WAIT_FOR_SERVICES.until,
        ("update", "HTTPRoute"), "each Gateway has observed the route"]
    assert run_and_record(world, ZERO_SHARE) == [
        ("update", "HTTPRoute"), "each Gateway has observed the route"]
    assert list(weights(world).values()) == [0, 100, 0]
    assert (run_and_record(world, SPLIT)[0]
            == WAIT_FOR_SERVICES.until), "the Gateways must know the Service first"
    run(world, RESTORE)
    assert world.rules == [rule(backend("foo", 3))] and split_service_names(world) == []


def weights(world):
    return {item["name"]: item["weight"] for item in world.rules[0]["backendRefs"]}


def test_share_of_0_percent_does_not_wait_for_the_new_pods():
    world = World()
    run(world, SPLIT)
    new = split_service_names(world)[1]
    world.ready.discard(world.services[new]["metadata"]["uid"])
    assert isinstance(plan_for(world, ZERO_SHARE), Step)


@pytest.mark.parametrize("request_", [ZERO_SHARE, RESTORE], ids=["hold", "restored"])
def test_option_before_update_prevents_changes_if_no_update_will_begin(request_):
    world = World()
    run(world, SPLIT)
    before_update = dataclasses.replace(request_, is_before_update=True)
    observed = world.observed(before_update)
    assert isinstance(plan(before_update, observed), Step)
    assert plan(before_update, dataclasses.replace(observed, is_updating=True)) == Done(
        "an update of foo is in progress, so the requests for edge stay as they are")
    assert plan(before_update, dataclasses.replace(observed, is_updated=True)) == Done(
        "foo needs no update, so the requests for edge stay as they are")


def test_hold_of_an_earlier_version_is_restored_first():
    world = World(versions=BEFORE_UPDATE)
    run(world, ZERO_SHARE)
    world.versions = dataclasses.replace(BEFORE_UPDATE, old="bbb", labels=LABELS[1:])
    assert run_and_record(world.copy(), ZERO_SHARE)[3] == ("restore", "HTTPRoute")
    run(world, ZERO_SHARE)
    (old,) = split_service_names(world)
    assert world.services[old]["spec"]["selector"][KEY] == "bbb"


def test_mirror_is_added_changed_and_removed():
    original_rule = rule(backend("foo", 3), filters=[{"type": "URLRewrite"}])
    world = World(original_rule)
    run(world, MIRRORING)
    _foo, old, new = (item["name"] for item in world.rules[0]["backendRefs"])
    assert [item["weight"] for item in world.rules[0]["backendRefs"]] == [0, 100, 0]
    assert plan_for(world, MIRRORING) == Done(
        "0% of the requests for foo go to the new pods of foo, plus copies of 10% of the requests")
    step = plan_for(world, dataclasses.replace(MIRRORING, mirror=Share(1, 1000)))
    assert (step.before, step.after) == tuple(
        f"foo 0, {', '.join(sorted([f'{old} 100', f'{new} 0']))}, mirror {new} {share}"
        for share in ("10%", "0.1%"))
    run(world, SPLIT)
    assert world.rules[0]["filters"] == [{"type": "URLRewrite"}]
    run(world, MIRRORING)
    run(world, RESTORE)
    assert world.rules == [original_rule] and len(split_service_names(world)) == 0


def test_mirror_is_refused_if_the_server_does_not_store_its_share():
    world = World()
    world.stores_mirror_share = False
    with pytest.raises(RolloutError, match="can mirror all requests, but not 10% of the requests"):
        plan_for(world, MIRRORING)
    assert isinstance(plan_for(world, SPLIT), Step)


def test_mirror_without_a_backend_of_the_split_is_removed():
    """Another client has restored the backend, but not the filter."""
    world = World()
    run(world, MIRRORING)
    world.put_rules([{**world.rules[0], "backendRefs": [backend("foo")]}])

    assert run_and_record(world, RESTORE)[0] == ("update", "HTTPRoute")
    assert world.rules == [rule(backend("foo"))] and len(split_service_names(world)) == 0


def test_old_pods_without_the_label_get_the_label():
    unlabeled_pods = (pod("foo-1", labels={"app": "foo"}), pod("foo-2", labels={"app": "foo"}))
    world = World(versions=dataclasses.replace(VERSIONS, unlabeled=unlabeled_pods))
    world.write(plan_for(world).write)
    world.write(plan_for(world).write)

    write = plan_for(world).write
    assert (write.kind, write.name, write.operations) == ("Pod", "foo-1", (
        {"op": "test", "path": "/metadata/uid", "value": "uid of foo-1"},
        {"op": "test", "path": f"/metadata/labels/{KEY}", "value": None},
        {"op": "add", "path": f"/metadata/labels/{KEY}", "value": "aaa"}))


def test_split_of_a_headless_service_creates_headless_services():
    world = World(services=[service(clusterIP="None", publishNotReadyAddresses=True)])
    run(world, SPLIT)

    for name in split_service_names(world):
        spec = world.services[name]["spec"]
        assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)


def test_names_of_created_services_fit_into_a_dns_label():
    long_name = "f" * 63
    world = World(rule(backend(long_name)), services=[service(long_name)])
    run(world, SPLIT)

    assert len({item["name"] for item in world.rules[0]["backendRefs"]}) == 3
    assert all(len(item["name"]) == 63 for item in world.rules[0]["backendRefs"])
    assert run_and_record(world, RESTORE)[-2:] == [("restore", "HTTPRoute"),
                                                   ("restore", "ReplicationController")]
    assert world.rules == [rule(backend(long_name))]


@pytest.mark.parametrize("request_", [SPLIT, MATCHING])
def test_deleted_service_of_a_split_is_created_again(request_):
    world = World()
    run(world, request_)
    for name in split_service_names(world):
        changed_world = world.copy()
        del changed_world.services[name]
        assert run_and_record(changed_world.copy(), request_)[0] == ("create", "Service")
        assert run_and_record(changed_world, RESTORE)[0] == ("update", "HTTPRoute")
        assert changed_world.rules == [rule(backend("foo"))]


def test_split_of_another_update_is_restored_first():
    world = World()
    run(world, SPLIT)
    world.versions = dataclasses.replace(VERSIONS, old="bbb", new="ccc", labels=(
        LABELS[1], {**LABELS[1], KEY: "ccc"}))

    assert run_and_record(world.copy(), SPLIT)[:4] == [
        ("update", "HTTPRoute"), "each Gateway has observed the route", DRAIN.until,
        ("restore", "HTTPRoute")]
    run(world, SPLIT)
    assert len(split_service_names(world)) == 2
    assert {item["spec"]["selector"][KEY] for item in world.services.values()
            if item["metadata"]["name"].startswith("foo-")} == {"bbb", "ccc"}


@pytest.mark.parametrize("original", ["payments", "bar"])
@pytest.mark.parametrize("request_", [SPLIT, MATCHING, ZERO_SHARE, RESTORE])
def test_forged_service_of_another_controller_blocks_no_task(request_, original):
    rules = [rule(backend("foo", 3)), rule(backend("bar"), path="/bar")]
    world = World(*rules)
    selector = {"app": "evil", KEY: "aaa"}
    name = split_name(Route.from_api(world.route), original, selector,
                      Service.from_api(service()).ports)
    world.services[name] = service(name, selector, metadata={
        "uid": "forged", "annotations": {SPLIT_OF: original},
        "ownerReferences": [{"apiVersion": "v1", "kind": "HTTPRoute", "name": "edge",
                             "uid": ROUTE_UID}]})
    assert world.observed(request_).split_names == {name}
    world.settle()

    run(world, request_)

    assert name not in world.service_names_in_rules()
    run(world, RESTORE)
    assert world.rules == rules and world.services.keys() == {"foo", "bar"}


@pytest.mark.parametrize("request_", [SPLIT, MATCHING, ZERO_SHARE, RESTORE])
@pytest.mark.parametrize("first_request", [SPLIT, MATCHING, ZERO_SHARE])
def test_split_of_another_controller_is_refused_before_the_first_write(first_request, request_):
    other_controller = rc("bar")
    other_controller["spec"]["template"]["metadata"]["labels"] = {"app": "bar"}
    world = World(rule(backend("foo")), rule(backend("bar"), path="/bar"))
    run(world, first_request)
    controller, world.controller = world.controller, other_controller
    world.versions = dataclasses.replace(VERSIONS, labels=tuple(
        {**labels, "app": "bar"} for labels in LABELS))
    request_ = dataclasses.replace(request_, name="bar")

    with pytest.raises(RolloutError, match="the requests for foo are already split") as error:
        plan_for(world, request_)
    assert error.value.why == "foo selects no pods of bar"
    # A killed restoration leaves the record and the Services.
    world.controller = controller
    while world.rules[0]["backendRefs"] != [backend("foo")]:
        decision = plan_for(world, RESTORE)
        assert not isinstance(decision, Step) or world.write(decision.write)
        world.settle()
    world.controller = other_controller
    with pytest.raises(RolloutError, match="the requests for foo are already split"):
        plan_for(world, request_)
    world.controller = controller
    run(world, RESTORE)
    world.controller = other_controller
    run(world, request_)
    assert (world.annotation is None) == request_.restores
    assert world.rules[0] == rule(backend("foo"))


def test_restoration_waits_for_the_service_or_reports_that_it_is_missing():
    world = World()
    run(world, SPLIT)
    world.ready.discard("uid of foo")
    assert plan_for(world, RESTORE) == Wait("the Service foo has a ready endpoint",
                                            is_condition=True)
    world.ready.clear()
    assert isinstance(plan_for(world, RESTORE), Step)
    del world.services["foo"]
    with pytest.raises(RolloutError, match="the Service foo does not exist"):
        plan_for(world, RESTORE)


def test_service_of_another_client_is_never_used_or_deleted():
    world = World()
    world.write(plan_for(world).write)
    world.write(plan_for(world).write)
    creation = plan_for(world).write
    name = creation.name
    other_service = {
        **creation.manifest, "metadata": {**creation.manifest["metadata"], "uid": "foreign"},
        "spec": {**creation.manifest["spec"], "selector": {"app": "payments"}}}
    world.services[name] = other_service
    while len(split_service_names(world)) < 2 and isinstance(decision := plan_for(world), Step):
        world.write(decision.write)
    world.settle()

    with pytest.raises(RolloutError, match=f"the Service {name} is not the Service of this split"):
        plan_for(world)
    run_and_record(world, RESTORE)
    assert world.services[name] == other_service


@pytest.mark.parametrize("earlier_requests", [[], [SPLIT], [MATCHING]],
                         ids=["plain", "split", "match"])
def test_forged_records_lose_no_request_and_delete_no_service(earlier_requests):
    start_world = World(rule(backend("foo")), rule(backend("bar"), path="/bar"),
                        services=[service("payments", metadata={
                            "uid": "uid of payments", "ownerReferences": [{"uid": ROUTE_UID}],
                            "annotations": {SPLIT_OF: "foo"}})])
    for request in earlier_requests:
        run(start_world, request)
    for text in (*filter(parse_record, KEYS[TRAFFIC_SPLIT]), *HOSTILE_TEXTS[:3]):
        for request in (SPLIT, RESTORE):
            world = start_world.copy()
            world.annotate({TRAFFIC_SPLIT: text, "other": text})
            run(world, request)
            run(world, RESTORE)
            names = {item["backendRefs"][0]["name"] for item in world.rules}
            assert names == {"foo", "bar"} and "payments" in world.services
            assert len(world.services) == 3
            assert world.route["metadata"]["annotations"]["other"] == text


def test_forged_annotation_of_a_service_is_not_trusted():
    forged_service = service("foo-0123456789", metadata={
        "uid": "x", "ownerReferences": [{"uid": ROUTE_UID}], "annotations": {SPLIT_OF: "foo"}})
    world = World(rule(backend("foo-0123456789")), services=[forged_service])
    world.ready.add("x")
    world.annotate({TRAFFIC_SPLIT: json.dumps({
        "service": "foo", "id": "1", "restoring": True, "weights": [], "match": []})})

    run_and_record(world, RESTORE)
    assert world.services["foo-0123456789"] == forged_service
    assert world.rules == [rule(backend("foo-0123456789"))]


@pytest.mark.parametrize("value", [None, "payments", *HOSTILE_TEXTS[:2]])
@pytest.mark.parametrize("request_", [SPLIT, MATCHING])
def test_forged_or_removed_annotation_of_the_services_changes_nothing(request_, value):
    world = World(rule(backend("foo", 3)))
    run(world, request_)
    for name in split_service_names(world):
        item = world.services[name]
        world.services[name] = {**item, "metadata": {
            **item["metadata"], "annotations": {} if value is None else {SPLIT_OF: value}}}
    changed_world = world.copy()
    run(changed_world, dataclasses.replace(request_, share=Share(20, 100)))
    assert changed_world.rules[-1]["backendRefs"][-1]["weight"] == 20
    run(world, RESTORE)
    assert world.rules == [rule(backend("foo", 3))] and split_service_names(world) == []


@pytest.mark.parametrize("rules, services, error", [
    ([rule(backend("bar"))], [], "no rule of the route sends requests to a Service of the old and"),
    ([rule(backend("foo")), rule(backend("baz"))], [service("baz")],
     "the route names several Services of the pods of foo"),
    ([rule(backend("one"))], [service("one", {"app": "foo", KEY: "bbb"})],
     "no rule of the route sends requests"),
    ([rule(backend("foo"), backend("bar"))], [], "rule 1 sends requests to 2 backends"),
])
def test_routes_that_cannot_be_split_are_refused_before_the_first_write(rules, services, error):
    with pytest.raises(RolloutError, match=error):
        plan_for(World(*rules, services=services))


@pytest.mark.parametrize("selector", [{"app": "foo"}, {"app": "bar"}])
def test_error_lists_few_of_many_services(selector):
    names = [f"service-{number}" for number in range(200)]
    world = World(*map(rule, map(backend, names)),
                  services=[service(name, selector) for name in names])
    with pytest.raises(RolloutError) as error:
        plan_for(world)
    assert error.value.why.endswith("service-4 and 195 more")


def test_first_and_last_steps_change_the_annotation_of_the_controller():
    world = World()
    (operation,) = plan_for(world).write.operations[-1:]
    assert (operation["op"], operation["value"]) == ("add", "HTTPRoute/edge")
    world.controller["metadata"]["annotations"] = {TRAFFIC_ROUTES: "GRPCRoute/other"}
    run(world, SPLIT)
    assert world.annotation == "GRPCRoute/other,HTTPRoute/edge"
    world.controller["metadata"]["annotations"] = {}
    assert plan_for(world).write.kind == "ReplicationController", (
        "a removed annotation must be written again")
    run(world, SPLIT)
    run(world, RESTORE)
    assert world.annotation is None


def test_restoration_of_another_split_keeps_the_annotation():
    world = World()
    run(world, SPLIT)
    world.versions = dataclasses.replace(VERSIONS, old="bbb", new="ccc", labels=(
        LABELS[1], {**LABELS[1], KEY: "ccc"}))
    assert ("restore", "ReplicationController") not in run_and_record(world, SPLIT)
    assert world.annotation == "HTTPRoute/edge"


def test_route_is_restored_without_its_controller():
    world = World()
    run(world, SPLIT)
    world.controller = None
    assert ("restore", "HTTPRoute") in run_and_record(world, RESTORE)


def test_number_of_routes_is_limited():
    world = World()
    world.controller["metadata"]["annotations"][TRAFFIC_ROUTES] = ",".join(
        f"HTTPRoute/r{number}" for number in range(MAX_ROUTES))
    with pytest.raises(RolloutError, match="the requests of 8 routes are already split"):
        plan_for(world)


@pytest.mark.parametrize("text", [
    None, "HTTPRoute", "HTTPRoute/", "Secret/db", "HTTPRoute/../x", "HTTPRoute/a,",
    "HTTPRoute/a, HTTPRoute/b", ",".join(f"HTTPRoute/r{number}" for number in range(9)),
    *HOSTILE_TEXTS])
def test_invalid_annotations_name_no_route(text):
    assert parse_routes({} if text is None else {TRAFFIC_ROUTES: text}) == ()


def test_valid_annotations_name_each_route_once():
    assert parse_routes({TRAFFIC_ROUTES: "HTTPRoute/a,GRPCRoute/a,HTTPRoute/a"}) == (
        ("HTTPRoute", "a"), ("GRPCRoute", "a"))


def test_service_is_selected_by_name():
    world = World(rule(backend("foo")), rule(backend("baz")), services=[service("baz")])
    run(world, dataclasses.replace(SPLIT, service="baz"))

    assert world.rules[0] == rule(backend("foo"))
    assert len(world.rules[1]["backendRefs"]) == 3


@pytest.mark.parametrize("condition_type", ["Accepted", "ResolvedRefs"])
def test_refusal_of_a_gateway_is_reported(condition_type):
    world = World()
    refusal = {"parents": [parent(1, **{condition_type: "False"})]}
    world.route["status"] = refusal
    with pytest.raises(RolloutError, match="a Gateway does not accept the route") as error:
        plan_for(world)
    assert error.value.why == f"gateway: {condition_type} is False: no such backend"
    world.observe_route()
    run(world, SPLIT)
    world.route["status"] = {"parents": [parent(3, **{condition_type: "False"})]}
    with pytest.raises(RolloutError, match="a Gateway does not accept the route") as error:
        plan_for(world)
    assert any("state=restored" in line for line in error.value.commands)
    run(world, RESTORE)


def test_error_lists_few_of_many_refusals():
    world = World()
    names = [{"name": f"gateway-{number}"} for number in range(32)]
    world.route["spec"]["parentRefs"] = names
    world.route["status"] = {"parents": [
        {**parent(1, Accepted="False"), "parentRef": name} for name in names]}
    with pytest.raises(RolloutError, match="a Gateway does not accept the route") as error:
        plan_for(world)
    assert error.value.why.splitlines()[4:] == [
        "gateway-4: Accepted is False: no such backend", "and 27 more"]


def test_route_that_is_being_deleted_is_refused():
    world = World()
    world.route["metadata"]["deletionTimestamp"] = "2026-11-25T09:00:00Z"
    with pytest.raises(RolloutError, match="the route is being deleted"):
        plan_for(world)


OLD_POD, NEW_POD = pod("a"), pod("b", is_new=True)


THIRD_POD, UNLABELED_POD = pod("c", labels={KEY: "ccc"}), pod("c", labels={})


@pytest.mark.parametrize("pods, error, why", [
    ([(NEW_POD, True)], "there are no old pods", ""),
    ([(OLD_POD, False)], "there are no new pods", ""),
    ([(OLD_POD, False), (OLD_POD, True)], f"the label {KEY} does not distinguish", "aaa, aaa"),
    ([(OLD_POD, False), (THIRD_POD, False), (NEW_POD, True)], "does not distinguish",
     "aaa, ccc, bbb"),
    ([(OLD_POD, False), (NEW_POD, True), (THIRD_POD, True)], "does not distinguish",
     "aaa, bbb, ccc"),
    ([(OLD_POD, False), (UNLABELED_POD, False), (NEW_POD, True)], "does not distinguish",
     ", aaa, bbb"),
    ([(OLD_POD, False), (UNLABELED_POD, True)], "does not distinguish", "aaa,"),
])
def test_two_versions_are_required(pods, error, why):
    with pytest.raises(RolloutError, match=error) as refusal:
        find_versions(KEY, pods, "", "the controller")
    assert refusal.value.why == (why and f"its values are: {why}")


@pytest.mark.parametrize("pods, error, why", [
    ([], "there are no old pods", ""),
    ([(OLD_POD, False), (THIRD_POD, False)], "does not distinguish", "aaa, ccc"),
    ([(UNLABELED_POD, False)], "does not distinguish", "none"),
])
def test_one_version_is_required_before_an_update(pods, error, why):
    assert find_versions(KEY, [(OLD_POD, False)], "", "x", needs_new=False) == BEFORE_UPDATE
    with pytest.raises(RolloutError, match=error) as refusal:
        find_versions(KEY, pods, "", "the controller", needs_new=False)
    assert refusal.value.why == (why and f"its values are: {why}")


def test_versions_of_pods_with_and_without_the_label():
    versions = find_versions(KEY, [(OLD_POD, False), (OLD_POD, False), (NEW_POD, True)], "",
                             NAMESPACE)
    assert versions == dataclasses.replace(VERSIONS, labels=LABELS)
    unlabeled_pod = pod("c", labels={"app": "foo"})
    versions = find_versions(KEY, [(unlabeled_pod, False), (NEW_POD, True)], "fff", NAMESPACE)
    assert (versions.old, versions.new, versions.unlabeled) == ("fff", "bbb", (unlabeled_pod,))
    assert versions.labels[0] == {"app": "foo", KEY: "fff"}

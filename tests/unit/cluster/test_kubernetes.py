# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write objects: the requests, failed preconditions, and lost responses."""

from __future__ import annotations

import time

import pytest
from apiserver import (
    CREATE,
    DELETE,
    FREEZE,
    FROZEN,
    HPA_PATH,
    PRIMARY,
    RC_PATH,
    SCALE_TO_2,
    answer,
    hpa,
    item,
    rc_answer,
    rc_list,
    reset,
    status,
    stream,
    truncated_answer,
)
from builders import new, rs

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Merge,
    annotate,
    patch,
    scale,
)


@pytest.mark.parametrize("write, expected", [
    (SCALE_TO_2,
     ("PATCH", f"{RC_PATH}/foo", "application/json-patch+json", list(SCALE_TO_2.operations))),
    (Create(new()), ("POST", RC_PATH, "application/json", new())),
    (DELETE, ("DELETE", f"{RC_PATH}/foo", "application/json", {
        "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
        "preconditions": {"uid": "uid of foo"}})),
], ids=["patch", "creation", "deletion with policy and preconditions"])
def test_write_is_one_request(gateway, api, write, expected):
    api.answers.append(rc_answer("2", replicas=2))

    assert gateway.write(write) is True
    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"], body) == expected


def test_response_to_a_write_updates_the_cache(gateway, api):
    api.answers.append(rc_answer("2", replicas=2))

    gateway.write(SCALE_TO_2)

    assert gateway.controllers()["foo"].replicas == 2


def test_immediate_deletion_updates_the_cache(gateway, api):
    api.answers.append(status(200))

    assert gateway.write(DELETE)
    assert gateway.controllers() == {}


def test_deletion_with_a_finalizer_updates_the_cache(gateway, api):
    api.answers.append(rc_answer("2", deletionTimestamp="now"))

    assert gateway.write(DELETE)
    assert gateway.controllers()["foo"].is_deleting


@pytest.mark.parametrize("write, response", [
    (SCALE_TO_2, status(422, "testing value failed")),
    (SCALE_TO_2, status(409, "the object has been modified")), (SCALE_TO_2, status(404)),
    (DELETE, status(409, "the uid differs")), (DELETE, status(404)),
    (CREATE, status(409, "already exists")),
], ids=["failed test operation of a patch", "conflict of a patch", "patch of a deleted object",
        "failed precondition",
        "deletion of a deleted object", "name in use"])
def test_failed_precondition_returns_false_and_reads_the_object(gateway, api, write, response):
    api.answers += [response, rc_answer("7", name=write.name, replicas=7)]

    assert gateway.write(write) is False
    assert api.sent[1:] == [("GET", f"{RC_PATH}/{write.name}")]
    assert gateway.controllers()[write.name].replicas == 7


def test_deleted_object_is_removed_from_the_cache(gateway, api):
    api.answers += [status(404), status(404)]

    assert gateway.write(SCALE_TO_2) is False
    assert gateway.controllers() == {}


PROXY_404 = answer(b"default backend - 404", 404)
API_GROUPS = answer({"kind": "APIGroupList", "groups": [
    {"name": "apps", "versions": [{"groupVersion": "apps/v1"}]},
    {"name": "autoscaling", "versions": [{"groupVersion": "autoscaling/v1"},
                                         {"groupVersion": "autoscaling/v2"}]},
    {"name": "gateway.networking.k8s.io",
     "versions": [{"groupVersion": "gateway.networking.k8s.io/v1"}]},
    {"name": "argoproj.io", "versions": [{"groupVersion": "argoproj.io/v1beta1"}]}]})


def resource_list(*names):
    return answer({"kind": "APIResourceList", "resources": [{"name": name} for name in names]})


@pytest.mark.parametrize("response", [PROXY_404, answer({"status": 404}, 404), answer(b"", 404)],
                         ids=["text", "JSON", "empty body"])
def test_controller_is_not_deleted_by_a_404_of_a_proxy(gateway, api, pauses, response):
    api.answers += [response, response, rc_answer("2", replicas=2)]

    gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 2 and len(pauses) == 2


def test_lasting_404_of_a_proxy_is_an_error(gateway, api, pauses):
    api.answers += [PROXY_404] * 40

    with pytest.raises(RolloutError) as error:
        gateway.look_up("foo")

    assert (error.value.what, error.value.why) == (
        f"the API server refused GET {RC_PATH}/foo (404)", "default backend - 404")
    assert gateway.controllers().keys() == {"foo"} and len(pauses) == len(http.BACKOFF)


HPA_LIST, ROUTE_LIST = resource_list("horizontalpodautoscalers"), resource_list("httproutes")


@pytest.mark.parametrize("kind, answers, is_found", [
    ("HorizontalPodAutoscaler", [PROXY_404, API_GROUPS, HPA_LIST, answer(hpa())], True),
    ("HorizontalPodAutoscaler", [PROXY_404, PROXY_404, answer(hpa())], True),
    ("HorizontalPodAutoscaler", [PROXY_404, API_GROUPS, PROXY_404, answer(hpa())], True),
    ("HorizontalPodAutoscaler", [PROXY_404, status(403), status(404)], False),
    ("Rollout", [PROXY_404, API_GROUPS], False),
    ("GRPCRoute", [PROXY_404, API_GROUPS, ROUTE_LIST], False),
    ("DeploymentConfig", [PROXY_404, API_GROUPS], False),
], ids=["resource exists", "proxy again", "proxy for resources", "secret APIs", "another version",
        "resource of the version is absent", "no API group"])
def test_404_of_an_absent_api_counts_as_no_object(gateway, api, pauses, kind, answers, is_found):
    api.answers += answers

    assert (gateway.find(kind, "hpa") is not None) is is_found
    assert len(api.sent) == len(answers)
    assert (pauses == []) is (answers[-1] in (API_GROUPS, ROUTE_LIST))


# Writes with a lost response


ANNOTATED_PRIMARY = Controller.from_api(item(annotations={"note": "x"}))
ANNOTATE = patch(PRIMARY, *annotate(PRIMARY, {"a/b": "c"}))
REMOVE_ANNOTATION = patch(ANNOTATED_PRIMARY, *annotate(ANNOTATED_PRIMARY, {"note": None}))
DELETE_AT_VERSION = Delete("foo", {"uid": "uid of foo", "resourceVersion": "1"})
#: Writes with a lost response: (write, response to the lookup, whether the write is stored).
WRITES_WITH_LOOKUP = {
    "size as written": (SCALE_TO_2, rc_answer("2", replicas=2), True),
    "size as before": (SCALE_TO_2, rc_answer("1", replicas=3), False),
    "size set by another client": (SCALE_TO_2, rc_answer("2", replicas=9), False),
    "size of a deleted controller": (SCALE_TO_2, status(404), False),
    "annotation as written": (
        ANNOTATE, rc_answer("2", annotations={"a/b": "c", "more": "d"}), True),
    "annotation as before": (ANNOTATE, rc_answer("1"), False),
    "annotation removed": (REMOVE_ANNOTATION, rc_answer("2", annotations={}), True),
    "annotation not removed": (
        REMOVE_ANNOTATION, rc_answer("2", annotations={"note": "x"}), False),
    "deleted": (DELETE_AT_VERSION, status(404), True),
    "deletion in progress": (DELETE, rc_answer("2", deletionTimestamp="now"), True),
    "deletion of a recreated controller": (DELETE, rc_answer("2", uid="another"), True),
    "not deleted": (DELETE, rc_answer("1"), False),
    "created": (
        CREATE, answer({**new(name="bar"), "kind": "ReplicationController"}), True),
    "not created": (CREATE, status(404), False),
    "creation by another client": (CREATE, rc_answer("2", name="bar"), False),
}


@pytest.mark.parametrize("lost_response", [reset, truncated_answer, answer(b"{"), status(504)],
                         ids=["reset", "cut body", "invalid JSON", "504"])
@pytest.mark.parametrize("write, lookup, is_stored", WRITES_WITH_LOOKUP.values(),
                         ids=WRITES_WITH_LOOKUP)
def test_write_with_a_lost_response_is_looked_up_and_not_repeated(
        gateway, api, write, lookup, is_stored, lost_response):
    api.answers += [lost_response, lookup]

    assert gateway.write(write) is is_stored
    assert [method for method, _path in api.sent][1:] == ["GET"]
    assert api.sent[1][1] == f"{RC_PATH}/{write.name}"


def test_creation_of_a_known_object_with_a_lost_response_fails(gateway, api):
    api.answers += [answer({**new(name="bar"), "kind": "ReplicationController"})]
    gateway.look_up("bar")
    api.answers += [reset, answer({**new(name="bar"), "kind": "ReplicationController"})]

    assert gateway.write(CREATE) is False


# Objects without a watch


@pytest.mark.parametrize("answers, is_stored", [
    ([answer(hpa())], True),
    ([status(422)], False),
    ([status(404)], False),
    ([reset, answer(FROZEN)], True),
    ([reset, answer(hpa())], False),
], ids=["written", "changed by another client", "deleted", "lost response of a stored write",
        "lost response of a failed write"])
def test_write_to_an_autoscaler_returns_whether_it_is_stored(gateway, api, answers, is_stored):
    api.answers += answers

    assert gateway.write(FREEZE) is is_stored
    assert api.sent[0] == ("PATCH", f"{HPA_PATH}/hpa") and "hpa" not in gateway.controllers()


def test_rejected_write_suggests_autoscaler_ignore(gateway, api):
    api.answers.append(status(403))

    with pytest.raises(RolloutError) as error:
        gateway.write(FREEZE)

    assert "autoscaler=ignore" in error.value.next_command


@pytest.mark.parametrize("response, is_recorded",
                         [(answer({"kind": "Event"}), True), (status(403), False), (reset, False)])
def test_event_is_never_retried(gateway, api, response, is_recorded):
    api.answers.append(response)

    assert gateway.record({"reason": "x"}) is is_recorded
    assert api.sent == [("POST", "/api/v1/namespaces/default/events")]


# Dry runs


MERGE = Merge("foo", {"spec": {"template": {"spec": {"hostNetwork": True}}}})
MANIFEST = {"kind": "ReplicationController", "metadata": {"generateName": "foo-"},
            "spec": {"replicas": 0}}
DRY_RUN_QUERY = "?dryRun=All&fieldValidation=Strict"


@pytest.mark.parametrize("write, expected", [
    (MERGE, ("PATCH", f"{RC_PATH}/foo{DRY_RUN_QUERY}", "application/strategic-merge-patch+json",
             MERGE.patch)),
    (SCALE_TO_2, ("PATCH", f"{RC_PATH}/foo{DRY_RUN_QUERY}", "application/json-patch+json",
                  list(SCALE_TO_2.operations))),
    (Create(MANIFEST), ("POST", f"{RC_PATH}{DRY_RUN_QUERY}", "application/json", MANIFEST)),
], ids=["merge", "patch", "creation"])
def test_dry_run_returns_the_object_that_would_be_stored(gateway, api, write, expected):
    api.answers.append(rc_answer("2", replicas=2))

    assert gateway.dry_run(write) == item("2", replicas=2)
    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"], body) == expected
    assert gateway.controllers()["foo"].replicas == 3


@pytest.mark.parametrize("write", [MERGE, Create(MANIFEST)], ids=["merge", "creation"])
def test_error_about_a_rejected_template_quotes_the_server(gateway, api, write):
    api.answers.append(status(422, "spec.containers[0].image: Required value"))

    with pytest.raises(RolloutError) as error:
        gateway.dry_run(write)

    assert (error.value.what, error.value.where, error.value.why) == (
        "the desired template is refused", "ReplicationController default/foo",
        "spec.containers[0].image: Required value")


def test_dry_run_with_a_lost_response_is_retried(gateway, api):
    api.answers += [reset, rc_answer()]

    assert gateway.dry_run(MERGE) == item()


# Several kinds


APPS = "/apis/apps/v1/namespaces/default"
DEPLOYMENT, REPLICA_SET = ({"kind": kind, **rs(name, resourceVersion="1", **more)} for kind, name,
                           more in (
    ("Deployment", "foo", {}), ("ReplicaSet", "foo-1", {"ownerReferences": [
        {"kind": "Deployment", "name": "foo", "uid": "uid of foo", "controller": True}]})))


@pytest.fixture
def two_kinds(connection, api):
    api.answers += [rc_list(DEPLOYMENT), rc_list(REPLICA_SET)]
    gateway = KubernetesGateway(connection, "default", (Kind.DEPLOYMENT, Kind.REPLICA_SET))
    gateway.controllers()
    yield gateway
    gateway.close()


def test_all_kinds_are_listed_starting_with_the_requested_kind(two_kinds, api):
    assert two_kinds.kind is Kind.DEPLOYMENT
    assert [path for _method, path in api.sent] == [
        f"{APPS}/deployments?limit=500", f"{APPS}/replicasets?limit=500"]
    assert {kind: list(two_kinds.controllers(kind)) for kind in (None, *Kind)} == {
        None: ["foo"], Kind.DEPLOYMENT: ["foo"], Kind.REPLICA_SET: ["foo-1"],
        Kind.REPLICATION_CONTROLLER: [],
        Kind.DEPLOYMENT_CONFIG: [], Kind.STATEFUL_SET: [], Kind.DAEMON_SET: []}
    assert [two_kinds.items(kind)
            for kind in (None, Kind.REPLICA_SET, Kind.REPLICATION_CONTROLLER)] == [
                [DEPLOYMENT], [REPLICA_SET], []]
    assert len(api.sent) == 2


@pytest.mark.parametrize("owner, expected", [
    ({"kind": "Deployment"}, {"foo"}), ({"kind": "Rollout"}, set()), ({"controller": False}, set()),
], ids=["Deployment", "another object", "not the controlling owner"])
def test_event_of_a_replica_set_wakes_the_deployment(two_kinds, api, owner, expected):
    reference = {**REPLICA_SET["metadata"]["ownerReferences"][0], **owner}
    changed_replica_set = {**REPLICA_SET,
                           "metadata": {**REPLICA_SET["metadata"], "resourceVersion": "11",
                                        "ownerReferences": [reference]}}

    def send_change(handler, query):
        if "replicasets" in handler.path:
            stream({"type": "MODIFIED", "object": changed_replica_set})(handler, query)
        else:
            api.closing.wait(10)

    api.watches += [send_change] * 2
    names, deadline = set(), time.monotonic() + 5
    while two_kinds.controllers(Kind.REPLICA_SET)["foo-1"].resource_version != "11":
        assert time.monotonic() < deadline
        names |= two_kinds.wait(0.02)

    assert names == expected


def test_write_updates_the_cache_of_the_kind(two_kinds, api):
    changed_replica_set = {**REPLICA_SET,
                           "metadata": {**REPLICA_SET["metadata"], "resourceVersion": "12"},
                           "spec": {**REPLICA_SET["spec"], "replicas": 2}}
    api.answers.append(answer(changed_replica_set))

    assert two_kinds.write(scale(two_kinds.controllers(Kind.REPLICA_SET)["foo-1"], 2).write)
    assert api.sent[-1] == ("PATCH", f"{APPS}/replicasets/foo-1")
    assert (two_kinds.controllers(Kind.REPLICA_SET)["foo-1"].replicas == 2
            and two_kinds.controllers().keys() == {"foo"})

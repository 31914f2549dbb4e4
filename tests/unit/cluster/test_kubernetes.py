# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes: their requests, failed preconditions and lost answers."""

from __future__ import annotations

import time

import pytest
from apiserver import (
    BASE,
    CREATE,
    DELETE,
    FREEZE,
    FROZEN,
    PRIMARY,
    SCALER,
    TO_2,
    answer,
    hpa,
    item,
    rc_answer,
    rc_list,
    reset,
    status,
    stream,
    truncated,
)
from builders import new, rs

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
    (TO_2, ("PATCH", f"{BASE}/foo", "application/json-patch+json", list(TO_2.operations))),
    (Create(new()), ("POST", BASE, "application/json", new())),
    (DELETE, ("DELETE", f"{BASE}/foo", "application/json", {
        "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background",
        "preconditions": {"uid": "uid of foo"}})),
], ids=["a patch", "a creation", "a deletion with its policy and preconditions"])
def test_a_write_is_one_request(gateway, api, write, expected):
    api.answers.append(rc_answer("2", replicas=2))

    assert gateway.write(write) is True
    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"], body) == expected


def test_a_write_is_known_from_its_answer(gateway, api):
    api.answers.append(rc_answer("2", replicas=2))

    gateway.write(TO_2)

    assert gateway.controllers()["foo"].replicas == 2


def test_a_deletion_that_is_done_at_once_is_known(gateway, api):
    api.answers.append(status(200))

    assert gateway.write(DELETE)
    assert gateway.controllers() == {}


def test_a_deletion_that_waits_for_its_finalizer_is_known(gateway, api):
    api.answers.append(rc_answer("2", deletionTimestamp="now"))

    assert gateway.write(DELETE)
    assert gateway.controllers()["foo"].is_deleting


@pytest.mark.parametrize("write, refused", [
    (TO_2, status(422, "testing value failed")),
    (TO_2, status(409, "the object has been modified")), (TO_2, status(404)),
    (DELETE, status(409, "the uid is another")), (DELETE, status(404)),
    (CREATE, status(409, "already exists")),
], ids=["a test of a patch fails", "a patch conflicts", "what is patched is gone",
        "a precondition fails",
        "what is deleted is gone", "a name is taken"])
def test_a_write_whose_assumption_does_not_hold_is_false_and_its_object_looked_up(
        gateway, api, write, refused):
    api.answers += [refused, rc_answer("7", name=write.name, replicas=7)]

    assert gateway.write(write) is False
    assert api.sent[1:] == [("GET", f"{BASE}/{write.name}")]
    assert gateway.controllers()[write.name].replicas == 7


def test_what_is_gone_when_it_is_looked_up_is_forgotten(gateway, api):
    api.answers += [status(404), status(404)]

    assert gateway.write(TO_2) is False
    assert gateway.controllers() == {}


# Writes with a lost answer


PRIMARY_MARKED = Controller.from_api(item(annotations={"note": "x"}))
MARK = patch(PRIMARY, *annotate(PRIMARY, {"a/b": "c"}))
UNMARK = patch(PRIMARY_MARKED, *annotate(PRIMARY_MARKED, {"note": None}))
DELETE_EMPTY = Delete("foo", {"uid": "uid of foo", "resourceVersion": "1"})
LANDED = {
    "a size, as written": (TO_2, rc_answer("2", replicas=2), True),
    "a size, as before": (TO_2, rc_answer("1", replicas=3), False),
    "a size, as another one wrote": (TO_2, rc_answer("2", replicas=9), False),
    "a size, of what is gone": (TO_2, status(404), False),
    "an annotation, as written": (
        MARK, rc_answer("2", annotations={"a/b": "c", "more": "d"}), True),
    "an annotation, as before": (MARK, rc_answer("1"), False),
    "an annotation removed, as written": (UNMARK, rc_answer("2", annotations={}), True),
    "an annotation removed, as before": (UNMARK, rc_answer("2", annotations={"note": "x"}), False),
    "a deletion, as written": (DELETE_EMPTY, status(404), True),
    "a deletion, under way": (DELETE, rc_answer("2", deletionTimestamp="now"), True),
    "a deletion, of what was made anew since": (DELETE, rc_answer("2", uid="another"), True),
    "a deletion, as before": (DELETE, rc_answer("1"), False),
    "a creation, as written": (CREATE, answer({**new(name="bar"), "kind": "ReplicationController"}),
                               True),
    "a creation, as before": (CREATE, status(404), False),
    "a creation, of what another one made": (CREATE, rc_answer("2", name="bar"), False),
}


@pytest.mark.parametrize("lost", [reset, truncated, answer(b"{"), status(504)],
                         ids=["reset", "cut short", "no JSON", "504"])
@pytest.mark.parametrize("write, lookup, landed", LANDED.values(), ids=LANDED)
def test_a_write_whose_answer_is_lost_is_looked_up_and_not_repeated(
        gateway, api, write, lookup, landed, lost):
    api.answers += [lost, lookup]

    assert gateway.write(write) is landed
    assert [method for method, _path in api.sent][1:] == ["GET"]
    assert api.sent[1][1] == f"{BASE}/{write.name}"


def test_a_creation_of_what_was_there_before_has_not_landed(gateway, api):
    """Another client has created an equal object before."""
    api.answers += [answer({**new(name="bar"), "kind": "ReplicationController"})]
    gateway.look_up("bar")
    api.answers += [reset, answer({**new(name="bar"), "kind": "ReplicationController"})]

    assert gateway.write(CREATE) is False


# Objects without a watch


@pytest.mark.parametrize("answers, landed", [
    ([answer(hpa())], True),
    ([status(422)], False),
    ([status(404)], False),
    ([reset, answer(FROZEN)], True),
    ([reset, answer(hpa())], False),
], ids=["written", "changed meanwhile", "gone", "answer lost, and it landed",
        "answer lost, and it did not"])
def test_an_autoscaler_is_changed_as_it_was_seen(gateway, api, answers, landed):
    api.answers += answers

    assert gateway.write(FREEZE) is landed
    assert api.sent[0] == ("PATCH", f"{SCALER}/hpa") and "hpa" not in gateway.controllers()


def test_an_autoscaler_that_may_not_be_changed_names_the_way_without(gateway, api):
    api.answers.append(status(403))

    with pytest.raises(RolloutError) as error:
        gateway.write(FREEZE)

    assert "autoscaler=ignore" in error.value.next_command


@pytest.mark.parametrize("trouble, recorded",
                         [(answer({"kind": "Event"}), True), (status(403), False), (reset, False)])
def test_an_event_is_never_tried_again(gateway, api, trouble, recorded):
    api.answers.append(trouble)

    assert gateway.record({"reason": "x"}) is recorded
    assert api.sent == [("POST", "/api/v1/namespaces/default/events")]


# Dry runs


MERGE = Merge("foo", {"spec": {"template": {"spec": {"hostNetwork": True}}}})
MANIFEST = {"kind": "ReplicationController", "metadata": {"generateName": "foo-"},
            "spec": {"replicas": 0}}
DRY = "?dryRun=All&fieldValidation=Strict"


@pytest.mark.parametrize("write, expected", [
    (MERGE, ("PATCH", f"{BASE}/foo{DRY}", "application/strategic-merge-patch+json", MERGE.patch)),
    (TO_2, ("PATCH", f"{BASE}/foo{DRY}", "application/json-patch+json", list(TO_2.operations))),
    (Create(MANIFEST), ("POST", f"{BASE}{DRY}", "application/json", MANIFEST)),
], ids=["a merge", "a patch", "a creation"])
def test_a_dry_run_shows_what_would_be_stored(gateway, api, write, expected):
    api.answers.append(rc_answer("2", replicas=2))

    assert gateway.dry_run(write) == item("2", replicas=2)
    ((method, path, headers, body),) = api.requests
    assert (method, path, headers["Content-Type"], body) == expected
    assert gateway.controllers()["foo"].replicas == 3


@pytest.mark.parametrize("write", [MERGE, Create(MANIFEST)], ids=["a merge", "a creation"])
def test_a_template_that_the_server_refuses_is_an_error_in_its_words(gateway, api, write):
    api.answers.append(status(422, "spec.containers[0].image: Required value"))

    with pytest.raises(RolloutError) as error:
        gateway.dry_run(write)

    assert (error.value.what, error.value.where, error.value.why) == (
        "the desired template is refused", "ReplicationController default/foo",
        "spec.containers[0].image: Required value")


def test_a_dry_run_whose_answer_is_lost_is_tried_again(gateway, api):
    api.answers += [reset, rc_answer()]

    assert gateway.dry_run(MERGE) == item()


# Several kinds


APPS = "/apis/apps/v1/namespaces/default"
DEPLOYMENT, SET = ({"kind": kind, **rs(name, resourceVersion="1", **more)} for kind, name, more in (
    ("Deployment", "foo", {}), ("ReplicaSet", "foo-1", {"ownerReferences": [
        {"kind": "Deployment", "name": "foo", "uid": "uid of foo", "controller": True}]})))


@pytest.fixture
def both(connection, api):
    """Return a gateway after the lists of a Deployment and a ReplicaSet."""
    api.answers += [rc_list(DEPLOYMENT), rc_list(SET)]
    gateway = KubernetesGateway(connection, "default", (Kind.DEPLOYMENT, Kind.REPLICA_SET))
    gateway.controllers()
    yield gateway
    gateway.close()


def test_all_kinds_are_listed_at_once_the_one_that_the_user_names_first(both, api):
    assert both.kind is Kind.DEPLOYMENT
    assert [path for _method, path in api.sent] == [
        f"{APPS}/deployments?limit=500", f"{APPS}/replicasets?limit=500"]
    assert {kind: list(both.controllers(kind)) for kind in (None, *Kind)} == {
        None: ["foo"], Kind.DEPLOYMENT: ["foo"], Kind.REPLICA_SET: ["foo-1"],
        Kind.REPLICATION_CONTROLLER: [],
        Kind.DEPLOYMENT_CONFIG: [], Kind.STATEFUL_SET: [], Kind.DAEMON_SET: []}
    assert [both.items(kind)
            for kind in (None, Kind.REPLICA_SET, Kind.REPLICATION_CONTROLLER)] == [
                [DEPLOYMENT], [SET], []]
    assert len(api.sent) == 2


@pytest.mark.parametrize("owner, heard", [
    ({"kind": "Deployment"}, {"foo"}), ({"kind": "Rollout"}, set()), ({"controller": False}, set()),
], ids=["its Deployment", "another object", "nobody"])
def test_news_of_another_kind_concern_the_one_that_controls_it(both, api, owner, heard):
    reference = {**SET["metadata"]["ownerReferences"][0], **owner}
    changed = {**SET,
               "metadata": {**SET["metadata"], "resourceVersion": "11",
                            "ownerReferences": [reference]}}

    def watched(handler, query):
        if "replicasets" in handler.path:
            stream({"type": "MODIFIED", "object": changed})(handler, query)
        else:
            api.closing.wait(10)

    api.watches += [watched] * 2
    kinds, deadline = set(), time.monotonic() + 5
    while both.controllers(Kind.REPLICA_SET)["foo-1"].resource_version != "11":
        assert time.monotonic() < deadline
        kinds |= both.wait(0.02)

    assert kinds == heard


def test_each_write_is_kept_with_its_kind(both, api):
    changed = {**SET, "metadata": {**SET["metadata"], "resourceVersion": "12"},
               "spec": {**SET["spec"], "replicas": 2}}
    api.answers.append(answer(changed))

    assert both.write(scale(both.controllers(Kind.REPLICA_SET)["foo-1"], 2).write)
    assert api.sent[-1] == ("PATCH", f"{APPS}/replicasets/foo-1")
    assert (both.controllers(Kind.REPLICA_SET)["foo-1"].replicas == 2
            and both.controllers().keys() == {"foo"})

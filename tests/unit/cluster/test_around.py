# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is around, as far as it may be seen."""

from __future__ import annotations

import pytest
from apiserver import SCALER, answer, shown, status

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import KubernetesGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind


@pytest.mark.parametrize("given, rules", [
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": False}}), [{"verbs": ["*"]}]),
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": True}}), None),
    (status(403), None),
])
def test_what_is_allowed_as_far_as_the_server_tells(known, api, given, rules):
    api.answers.append(given)

    assert known.rules() == rules
    assert api.requests[0][3]["spec"] == {"namespace": "default"}


@pytest.mark.parametrize("resource, path", [
    ("nodes", "/api/v1/nodes"), ("services", "/api/v1/namespaces/default/services"), ("horizontalpodautoscalers", SCALER)])
def test_what_is_around_as_far_as_it_may_be_seen(known, api, resource, path):
    api.answers += [answer({"kind": "List", "items": [{"a": 1}]}), answer({"kind": "List", "items": None}), status(403)]

    assert [known.objects(resource) for _time in range(3)] == [[{"a": 1}], [], None]
    assert api.sent[0] == ("GET", f"{path}?limit=500")


@pytest.mark.parametrize("uids, selector", [
    (["u1", "u2"], "baton.kubernetes%2Fhistory-of+in+%28u1%2Cu2%29"), ([], "baton.kubernetes%2Fhistory-of"),
], ids=["of two", "of all"])
def test_the_history_as_far_as_it_may_be_seen(known, api, uids, selector):
    """Of somebody who owns them, and of nobody else, whatever their label says."""
    items = [{"metadata": {"ownerReferences": [{"uid": uid, "controller": True}]}} for uid in ("u2", "u3")]
    revisions = {"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"}, "items": items}
    api.answers += [answer(revisions), status(403)]

    assert [known.revisions(uids) for _time in range(2)] == [items[:1] if uids else items, None]
    assert api.sent[0] == ("GET", f"/apis/apps/v1/namespaces/default/controllerrevisions?labelSelector={selector}&limit=500")


@pytest.mark.parametrize("told, expected", [
    ("v1.24.17-eks-1", False), ("v1.25.0", True), ("v2.0.0", True), ("v1.\u0664.0", True), ("", True), (None, True)])
def test_whether_its_managed_fields_tell_when_something_changed(known, api, told, expected):
    """A server that does not say how old it is, or does not want to, is a present one; it is asked once."""
    api.answers.append(status(403) if told is None else answer({"gitVersion": told}))

    assert [known.tells_changes(), known.tells_changes()] == [expected] * 2
    assert api.sent == [("GET", "/version")]


def test_the_history_that_the_server_keeps_is_found_by_its_owner(connection, api):
    """Its label says nothing of whose it is."""
    items = [{"metadata": {"ownerReferences": [{"uid": uid, "controller": True}]}} for uid in ("u1", "u2")]
    api.answers.append(answer({"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"}, "items": items}))
    known = KubernetesGateway(connection, "default", (Kind.STATEFUL_SET,))

    assert known.revisions(["u2"]) == items[1:]
    path = "/apis/apps/v1/namespaces/default/controllerrevisions?labelSelector=controller.kubernetes.io%2Fhash&limit=500"
    assert api.sent == [("GET", path)]
    known.close()


def test_a_server_that_answers_no_more_is_not_asked_for_every_kind(known, api, pauses):
    """Each would take as long again as all the tries of the first."""
    api.answers += [status(503, "no") for _number in range(20)]

    with pytest.raises(RolloutError) as error:
        known.objects("services")

    assert error.value.next_command == "run the same task again when the API server is healthy"


NO = status(404)


def halfway(name):
    """The ControllerRevision of a migration in progress."""
    return answer({"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": name}}]})


def test_the_migrations_in_progress_as_far_as_they_may_be_seen(known, api):
    api.answers += [halfway("foo-migration"), status(403)]

    assert [known.migrations() for _time in range(2)] == [[{"metadata": {"name": "foo-migration"}}], None]
    path = "/apis/apps/v1/namespaces/default/controllerrevisions?labelSelector=baton.kubernetes%2Fmigration-of&limit=500"
    assert api.sent[0] == ("GET", path)


@pytest.mark.parametrize("answers, expected", [
    ([shown(), NO, NO, NO, NO], "there is a Deployment foo (kind=Deployment)"),
    ([NO, NO, shown(), NO, NO], "there is a DeploymentConfig foo (kind=DeploymentConfig)"),
    ([shown(), shown(), NO, NO, NO], "there is a Deployment foo (kind=Deployment) and a ReplicaSet foo (kind=ReplicaSet)"),
    ([NO, NO, NO, NO, shown()], "there is a DaemonSet foo (kind=DaemonSet)"),
    ([NO, NO, NO, NO, NO, NO], "there is no namespace default"),
    ([NO, NO, NO, NO, NO, shown(), halfway("foo-migration")], "its migration is not finished: use state=migrated"),
    ([NO, NO, NO, NO, NO, shown(), halfway("bar-migration")], ""),
    ([NO, NO, NO, NO, NO, shown(), status(403)], ""),
    ([status(403)] * 7, ""),
], ids=["a Deployment", "a DeploymentConfig", "its ReplicaSet too", "a DaemonSet", "no namespace",
        "a migration", "another migration", "nothing of that name", "nothing may be seen"])
def test_why_there_is_no_such_controller(known, api, answers, expected):
    api.answers += answers

    assert known.why_absent("foo") == expected

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List related objects, with and without permission."""

from __future__ import annotations

import pytest
from apiserver import HPA_PATH, answer, rc_answer, status

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.run.preflight import (
    RESOURCES,
    ROLLOUTS,
)


@pytest.mark.parametrize("response, rules", [
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": False}}),
     [{"verbs": ["*"]}]),
    (answer({"kind": "x", "status": {"resourceRules": [{"verbs": ["*"]}], "incomplete": True}}),
     None),
    (status(403), None),
])
def test_incomplete_or_forbidden_rules_of_the_user_give_none(gateway, api, response, rules):
    api.answers.append(response)

    assert gateway.rules() == rules
    assert api.requests[0][3]["spec"] == {"namespace": "default"}


@pytest.mark.parametrize("resource, path", [
    ("nodes", "/api/v1/nodes"), ("services", "/api/v1/namespaces/default/services"),
    ("horizontalpodautoscalers", HPA_PATH)])
def test_related_objects_with_and_without_permission(gateway, api, resource, path):
    api.answers += [answer({"kind": "List", "items": [{"a": 1}]}),
                    answer({"kind": "List", "items": None}), status(403)]

    assert [gateway.objects(resource) for _round in range(3)] == [[{"a": 1}], [], None]
    assert api.sent[0] == ("GET", f"{path}?limit=500")


@pytest.mark.parametrize("resource", [*RESOURCES.values(), ROLLOUTS])
def test_related_objects_of_all_pages(gateway, api, resource):
    """An autoscaler, budget or Rollout after the first page is in use, too."""
    api.answers += [answer({"kind": "List", "metadata": {"continue": "x"}, "items": [{"a": 1}]}),
                    answer({"kind": "List", "metadata": {}, "items": [{"a": 2}]})]

    assert gateway.objects(resource) == [{"a": 1}, {"a": 2}]
    assert ["continue=x" in path for _method, path in api.sent] == [False, True]


def test_refused_second_page_of_related_objects_gives_none(gateway, api):
    api.answers += [answer({"kind": "List", "metadata": {"continue": "x"}, "items": [{"a": 1}]}),
                    status(403)]

    assert gateway.objects("services") is None


def test_images_of_nodes_are_not_stored(gateway, api):
    """A node lists up to 50 images, which are most of its size."""
    node = {"metadata": {"name": "a"}, "status": {"images": [{"names": ["x"]}], "capacity": {}}}
    api.answers.append(answer({"kind": "NodeList", "metadata": {}, "items": [node]}))

    assert gateway.objects("nodes") == [{"metadata": {"name": "a"}, "status": {"capacity": {}}}]


@pytest.mark.parametrize("response, is_permitted", [
    (answer({"kind": "PodList", "metadata": {"continue": "x"}, "items": [{}]}), True),
    (status(403), False)])
def test_permission_to_list_pods_takes_one_pod(gateway, api, response, is_permitted):
    api.answers.append(response)

    assert gateway.may_list_pods() is is_permitted
    assert api.sent == [("GET", "/api/v1/namespaces/default/pods?limit=1")]


@pytest.mark.parametrize("uids, selector", [
    (["u1", "u2"], "baton.kubernetes%2Fhistory-of+in+%28u1%2Cu2%29"),
    ([], "baton.kubernetes%2Fhistory-of"),
], ids=["two owners", "all owners"])
def test_history_with_and_without_permission(gateway, api, uids, selector):
    """A labeled revision must also have a matching owner reference: u3 was not requested."""
    items = [{"metadata": {"ownerReferences": [{"uid": uid, "controller": True}]}}
             for uid in ("u2", "u3")]
    revisions = {"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"},
                 "items": items}
    api.answers += [answer(revisions), status(403)]

    assert [gateway.revisions(uids) for _round in range(2)] == [items[:1] if uids else items, None]
    path = "/apis/apps/v1/namespaces/default/controllerrevisions"
    assert api.sent[0] == ("GET", f"{path}?labelSelector={selector}&limit=500")


@pytest.mark.parametrize("version, expected", [
    ("v1.24.17-eks-1", False), ("v1.25.0", True), ("v2.0.0", True), ("v1.\u0664.0", True),
    ("", True), (None, True)])
def test_change_times_since_version_1_25(gateway, api, version, expected):
    """Since Kubernetes 1.25, a changed value also updates the time in managedFields."""
    api.answers.append(status(403) if version is None else answer({"gitVersion": version}))

    assert [gateway.has_change_times(), gateway.has_change_times()] == [expected] * 2
    assert api.sent == [("GET", "/version")]


def test_history_written_by_the_server_is_selected_by_owner(connection, api):
    """A ControllerRevision that the server creates has no label that names its owner."""
    items = [{"metadata": {"ownerReferences": [{"uid": uid, "controller": True}]}}
             for uid in ("u1", "u2")]
    api.answers.append(answer({"kind": "ControllerRevisionList",
                               "metadata": {"resourceVersion": "1"}, "items": items}))
    gateway = KubernetesGateway(connection, "default", (Kind.STATEFUL_SET,))

    assert gateway.revisions(["u2"]) == items[1:]
    path = ("/apis/apps/v1/namespaces/default/controllerrevisions?"
            "labelSelector=controller.kubernetes.io%2Fhash&limit=500")
    assert api.sent == [("GET", path)]
    gateway.close()


def test_unavailable_server_is_an_error(gateway, api, pauses):
    """Without the error, each further request would use up all attempts again."""
    api.answers += [status(503, "no") for _number in range(20)]

    with pytest.raises(RolloutError) as error:
        gateway.objects("services")

    assert error.value.next_command == "run the same task again when the API server is healthy"


NOT_FOUND = status(404)


def migrations_answer(name):
    return answer({"kind": "ControllerRevisionList", "metadata": {"resourceVersion": "1"},
                   "items": [{"metadata": {"name": name}}]})


def test_migrations_with_and_without_permission(gateway, api):
    api.answers += [migrations_answer("foo-migration"), status(403)]

    assert [gateway.migrations()
            for _round in range(2)] == [[{"metadata": {"name": "foo-migration"}}], None]
    path = ("/apis/apps/v1/namespaces/default/controllerrevisions?"
            "labelSelector=baton.kubernetes%2Fmigration-of&limit=500")
    assert api.sent[0] == ("GET", path)


# The order of the requests: for foo as Deployment, ReplicaSet, DeploymentConfig, StatefulSet and
# DaemonSet, then for the namespace, and then for the ControllerRevisions of migrations.
@pytest.mark.parametrize("answers, expected", [
    ([rc_answer(), NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND],
     "there is a Deployment foo (kind=Deployment)"),
    ([NOT_FOUND, NOT_FOUND, rc_answer(), NOT_FOUND, NOT_FOUND],
     "there is a DeploymentConfig foo (kind=DeploymentConfig)"),
    ([rc_answer(), rc_answer(), NOT_FOUND, NOT_FOUND, NOT_FOUND],
     "there is a Deployment foo (kind=Deployment) and a ReplicaSet foo (kind=ReplicaSet)"),
    ([NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, rc_answer()],
     "there is a DaemonSet foo (kind=DaemonSet)"),
    ([NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND],
     "there is no namespace default"),
    ([NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, rc_answer(),
      migrations_answer("foo-migration")],
     "its migration is not finished: use the module migrate_to_deployment"),
    ([NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, rc_answer(),
      migrations_answer("bar-migration")], ""),
    ([NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND, rc_answer(), status(403)], ""),
    ([status(403)] * 7, ""),
], ids=["Deployment", "DeploymentConfig", "Deployment and ReplicaSet", "DaemonSet",
        "no namespace", "migration", "another migration", "no object", "no permission"])
def test_reason_for_an_absent_controller(gateway, api, answers, expected):
    api.answers += answers

    assert gateway.absence_reason("foo") == expected

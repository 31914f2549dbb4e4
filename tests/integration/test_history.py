# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the stored history of templates, and rollbacks to a revision."""

from __future__ import annotations

import json

import pytest
from objects import eventually, manifest, uids
from test_permissions import change_role, rules_without
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven import (
    history as client_driven_history,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

REPLICAS = 2
#: More writes than any update has.
MAX_WRITES = 100


def history(namespace, name="foo"):
    """Return pairs of revision number and image."""
    params = {"kubeconfig": namespace.kubeconfig, "namespace": namespace.name, "name": name,
              "kind": None}
    (rollout,) = task.info(params)["rollouts"]
    return [(revision["revision"], revision["images"]["web"]) for revision in rollout["history"]]


def stored_revisions(namespace):
    return namespace.call("GET", namespace.apps_path("controllerrevisions"))["items"]


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def rollback_params(number, **params):
    return {"state": "rolled_back", "to_revision": number, **params}


@pytest.mark.full
@pytest.mark.parametrize("template_options", [
    {"template": {"spec": {"containers": [{"name": "web", "image": "myimage:v9"}]}}},
    {"definition": manifest(1, image="myimage:v9", name="bar")},
], ids=["template", "definition"])
def test_rollback_ignores_template_options(namespace, template_options):
    """The user has added `state` to the task of an earlier update."""
    namespace.make_rc(REPLICAS)
    namespace.roll(image="myimage:v2")

    result = namespace.roll(**rollback_params(1), **template_options)

    assert namespace.rc_names() == ["foo"] and images(namespace) == {"myimage:v1"}
    assert result["msg"].startswith("foo is rolled back to myimage:v1")


def test_rollback_to_a_revision_restores_the_template_and_becomes_a_new_revision(
        namespace, monkeypatch):
    before = namespace.make_rc(REPLICAS)
    assert history(namespace) == [(1, "myimage:v1")]
    for image in ("myimage:v2", "myimage:v3"):
        assert not namespace.roll(image=image)["warnings"]
    assert history(namespace) == [(3, "myimage:v3"), (2, "myimage:v2"), (1, "myimage:v1")]

    with namespace.observer() as observer:
        result = namespace.roll(**rollback_params(1))

    assert (result["msg"]
            == f"foo is rolled back to myimage:v1: {REPLICAS} of {REPLICAS} replicas available")
    assert (observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
            and "foo" not in observer.controllers_deleted)
    assert namespace.rc()["spec"]["template"]["spec"] == before["spec"]["template"]["spec"]
    assert (history(namespace) == [(4, "myimage:v1"), (3, "myimage:v3"), (2, "myimage:v2")]
            and len(stored_revisions(namespace)) == 3)
    for number in (1, 4):
        rerun = namespace.roll(**rollback_params(number))
        assert not rerun["changed"] and set(rerun["requests"]) == {"GET"}

    monkeypatch.setattr(client_driven_history, "LIMIT", 2)
    assert not namespace.roll(image="myimage:v4")["warnings"]
    assert history(namespace) == [(5, "myimage:v4"), (4, "myimage:v1"), (3, "myimage:v3")]


@pytest.mark.full
def test_history_is_deleted_with_the_controller(namespace):
    namespace.make_rc(1)
    namespace.roll(image="myimage:v2")
    (item,) = stored_revisions(namespace)
    assert object_meta.last_rollout(item["metadata"]["annotations"])["to"] == {"web": "myimage:v1"}

    namespace.remove("foo")

    eventually(lambda: not stored_revisions(namespace), "the deletion of the history")


@pytest.mark.full
def test_history_survives_an_orphaning_deletion_of_the_controller(namespace):
    """The garbage collector patches the owner references, which must not change `data`."""
    namespace.make_rc(1)
    containers = [
        {
            "name": "web",
            "env": [{"name": "ODD", "value": 'a && b < c > d "e" \\ \u00e9 \u2028 \U0001f600'}],
        }
    ]
    namespace.roll(template={"spec": {"containers": containers}})
    namespace.roll(image="myimage:v2")
    before = uids(namespace.pods())

    namespace.remove("foo", policy="Orphan")

    eventually(lambda: namespace.rc() is None, "the deletion of foo", seconds=30)
    assert uids(namespace.pods()) == before
    assert [
        revision["metadata"].get("ownerReferences") for revision in stored_revisions(namespace)
    ] == [None, None]


@pytest.mark.full
def test_controller_of_next_name_inherits_the_history(namespace):
    namespace.make_rc(REPLICAS)
    namespace.roll(image="myimage:v2")
    assert not namespace.roll(image="myimage:v3", next_name="bar")["warnings"]
    namespace.wait_for_deletion("foo")
    uid = namespace.rc("bar")["metadata"]["uid"]
    eventually(
        lambda: (
            {
                revision["metadata"]["ownerReferences"][0]["uid"]
                for revision in stored_revisions(namespace)
            }
            == {uid}
        ),
        "the deletion of the revisions of foo",
    )

    namespace.roll(**rollback_params(1, name="bar"))

    assert images(namespace) == {"myimage:v1"} and namespace.rc_names() == ["bar"]
    assert history(namespace, "bar") == [(4, "myimage:v1"), (3, "myimage:v3"), (2, "myimage:v2")]


@pytest.mark.full
def test_deep_revision_of_another_user_blocks_no_task(namespace):
    """Python cannot parse 2,000 levels of lists, and the API server accepts 10,000."""
    namespace.make_rc(REPLICAS)
    namespace.roll(image="myimage:v2")
    deep = "[" * 2_000 + "]" * 2_000
    labels = {object_meta.HISTORY: "mine", object_meta.MIGRATION: "mine"}
    body = (f'{{"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "metadata": '
            f'{{"name": "deep", "labels": {json.dumps(labels)}}}, "data": {{"a": {deep}}}}}')
    # With the type JSON, the client would encode the text; JSON is YAML.
    namespace.call("POST", namespace.apps_path("controllerrevisions"), body, "application/yaml",
                   {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"})

    assert history(namespace) == [(2, "myimage:v2"), (1, "myimage:v1")]
    namespace.roll(image="myimage:v3")
    namespace.roll(**rollback_params(1))

    assert images(namespace) == {"myimage:v1"}
    assert history(namespace)[0] == (4, "myimage:v1")


def test_check_mode_lists_the_steps_and_stores_no_revision(namespace):
    namespace.make_rc(REPLICAS)
    namespace.roll(image="myimage:v2")
    revisions_before = stored_revisions(namespace)
    plan = namespace.check(**rollback_params(1))
    assert set(plan["requests"]) == {"GET"} and stored_revisions(namespace) == revisions_before

    result_of_rollback = namespace.roll(**rollback_params(1))

    steps = [[(step["action"], step["kind"], step["name"], step["to"]) for step in result["steps"]]
             for result in (plan, result_of_rollback)]
    assert steps[0] == steps[1] and "keep" in [step[0] for step in steps[0]]


@pytest.mark.long  # tests/faults runs a sample in `make test`
@pytest.mark.parametrize("params", [{}, {"next_name": "bar"}], ids=["handover", "next_name"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rollback_to_a_revision_resumes_after_a_kill_at_any_write(
        namespace, after, params, monkeypatch):
    """The rollback deletes a revision, because the limit is 1."""
    monkeypatch.setattr(client_driven_history, "LIMIT", 1)
    params_of_rollback = rollback_params(1, **params)
    name = params.get("next_name", "foo")
    for number in range(1, MAX_WRITES):
        namespace.make_rc(REPLICAS)
        namespace.roll(image="myimage:v2")
        try:
            namespace.roll(fault=kill_at_write(number, after), **params_of_rollback)
        except Killed:
            namespace.roll(**params_of_rollback)
        else:
            break
        finally:
            assert (images(namespace) == {"myimage:v1"}
                    and namespace.rc_names() == [name]), f"killed at write {number}"
            assert (history(namespace, name)
                    == [(3, "myimage:v1"), (2, "myimage:v2")]), f"killed at write {number}"
            eventually(
                lambda: len(stored_revisions(namespace)) == 2,
                "only two stored revisions",
            )
            namespace.remove(name)
            eventually(
                lambda: not namespace.pods() and not stored_revisions(namespace),
                "an empty namespace",
            )
    assert 9 <= number < MAX_WRITES


@pytest.mark.sample(1)
@pytest.mark.parametrize("verb", ["list", "create", "delete"])
def test_missing_permission_on_revisions_causes_one_warning(namespace, verb):
    namespace.make_rc(1)
    change_role(namespace, rules_without(verb, "controllerrevisions"), verb, "controllerrevisions")

    result = namespace.roll(image="myimage:v2")

    (warning,) = result["warnings"]
    assert verb in warning and "the previous template is not stored" in warning
    assert images(namespace) == {"myimage:v2"} and not stored_revisions(namespace)


def test_update_continues_without_a_history_if_a_quota_has_no_room(namespace):
    namespace.make_rc(1)
    namespace.create("resourcequotas", {"metadata": {"name": "revisions"}, "spec": {
        "hard": {"count/controllerrevisions.apps": "0"}}})
    eventually(lambda: namespace.call("GET", namespace.path("resourcequotas", "revisions"))[
        "status"].get("hard"), "the status of the quota")

    result = namespace.roll(image="myimage:v2")

    (warning,) = result["warnings"]
    assert "exceeded quota: revisions" in warning
    assert warning.startswith("the previous template is not stored")
    assert images(namespace) == {"myimage:v2"} and not stored_revisions(namespace)
    assert not namespace.roll(image="myimage:v2")["changed"]

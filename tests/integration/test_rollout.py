# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates of a ReplicationController with several sizes and options."""

from __future__ import annotations

import json

import pytest
from objects import manifest, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta

MANY_PODS = pytest.mark.fake_nodes("100 pods or more")


@pytest.mark.sample(1)
@pytest.mark.parametrize("replicas, surge", [
    (1, "1"), (4, "1"), pytest.param(100, "25%", marks=MANY_PODS),
    pytest.param(500, "25%", marks=[MANY_PODS, pytest.mark.long])])
def test_update_creates_each_pod_once_and_the_rerun_writes_nothing(namespace, replicas, surge):
    rc_before = namespace.make_rc(replicas)

    with namespace.observer() as observer:
        result = namespace.roll(image="myimage:v2", max_surge=surge)

    assert result["changed"] and result["rollout"]["phase"] == "complete"
    rc_after = namespace.rc()
    assert rc_after["metadata"]["uid"] == rc_before["metadata"]["uid"]
    assert "foo" not in observer.controllers_deleted and namespace.rc_names() == ["foo"]
    assert len(observer.new_pods) == replicas
    assert observer.new_pods == uids(namespace.pods())
    assert observer.restarts == 0
    surge_pods = replicas // 4 if surge == "25%" else 1
    assert observer.min_ready >= replicas and observer.max_pods <= replicas + surge_pods
    assert not set(object_meta.UPDATE_ANNOTATIONS) & set(rc_after["metadata"]["annotations"])

    rerun = namespace.roll(image="myimage:v2")

    assert not rerun["changed"] and rerun["steps"] == []
    assert set(rerun["requests"]) == {"GET"}
    assert namespace.rc()["metadata"]["generation"] == rc_after["metadata"]["generation"]


@pytest.mark.full
@pytest.mark.fake_nodes("pods that become ready simultaneously; otherwise, the update needs more "
                        "steps")
@pytest.mark.parametrize("params, max_requests", [({}, 200), ({"next_name": "bar"}, 100)],
                         ids=["handover", "next_name"])
def test_update_needs_at_most_two_requests_per_pod(namespace, params, max_requests):
    """kubectl 1.17 rolling-update needed 11.5 requests per pod."""
    namespace.make_rc(100)

    result = namespace.roll(image="myimage:v2", max_surge="25%", **params)

    assert sum(result["requests"].values()) <= max_requests


@pytest.mark.full
def test_repeated_updates_between_two_versions_leave_only_foo(namespace):
    namespace.make_rc(3)
    for image in ("myimage:v2", "myimage:v1", "myimage:v2"):
        assert namespace.roll(image=image)["changed"]
        assert namespace.rc_names() == ["foo"]
        assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {image}
        assert not set(object_meta.UPDATE_ANNOTATIONS) & set(
            namespace.rc()["metadata"]["annotations"])


@pytest.mark.full
def test_custom_deployment_label_key_is_used(namespace):
    namespace.make_rc(3)

    namespace.roll(image="myimage:v2", deployment_label_key="example.com/set")
    namespace.roll(image="myimage:v3", deployment_label_key="example.com/set")

    spec = namespace.rc()["spec"]
    assert spec["selector"].keys() == {"app", "example.com/set"}
    assert namespace.rc_names() == ["foo"] and len(namespace.pods()) == 3


@pytest.mark.full
def test_update_succeeds_if_foo_already_has_the_label_of_the_new_template(namespace):
    """If the successor had the label of foo, foo would adopt its pods and delete them."""
    namespace.make_rc(3)
    namespace.roll(image="myimage:v2")
    label = namespace.rc()["spec"]["selector"][object_meta.DEPLOYMENT_LABEL]
    template = namespace.rc()["spec"]["template"]
    template["spec"]["containers"][0]["image"] = "myimage:by-hand"
    namespace.patch("foo", {"spec": {"template": template}})

    with namespace.observer() as observer:
        result = namespace.roll(image="myimage:v2")

    assert result["steps"][1]["name"].startswith(f"foo-{label}-")
    assert observer.min_ready >= 3 and len(observer.new_pods) == 3
    assert observer.new_pods == uids(namespace.pods()) and namespace.rc_names() == ["foo"]


def test_next_name_makes_the_successor_permanent(namespace):
    namespace.make_rc(3)

    with namespace.observer() as observer:
        result = namespace.roll(image="myimage:v2", next_name="bar")

    assert namespace.rc_names() == ["bar"] and len(observer.new_pods) == 3
    assert result["msg"].startswith("bar replaces foo and is updated to myimage:v2")
    annotations = namespace.rc("bar")["metadata"]["annotations"]
    assert set(annotations) == {object_meta.LAST_ROLLOUT}
    assert not namespace.roll(image="myimage:v2", next_name="bar")["changed"]


def test_definition_in_a_file_replaces_the_controller(namespace, tmp_path):
    namespace.make_rc(3, name="foo")
    definition = manifest(name="foo-v2", image="myimage:v2")
    definition["spec"]["template"]["metadata"]["labels"] = {"app": "foo", "version": "2"}
    del definition["spec"]["selector"]
    file = tmp_path / "next.yaml"
    file.write_text(json.dumps(definition))

    result = namespace.roll(src=str(file))

    assert namespace.rc_names() == ["foo-v2"] and result["rollout"]["phase"] == "complete"
    spec = namespace.rc("foo-v2")["spec"]
    assert (spec["replicas"] == 3
            and spec["selector"].items() >= {"app": "foo", "version": "2"}.items())
    assert not namespace.roll(src=str(file))["changed"]


@pytest.mark.full
def test_definition_without_a_name_retains_foo(namespace):
    namespace.make_rc(2)
    definition = manifest(image="myimage:v2")
    del definition["metadata"]["name"], definition["spec"]["selector"]

    assert namespace.roll(definition=definition)["changed"]

    assert namespace.rc_names() == ["foo"]
    assert not namespace.roll(definition=definition)["changed"]


def test_partial_template_is_merged_by_the_server(namespace):
    namespace.make_rc(2)
    change = {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": "b"}]}]}}

    result = namespace.roll(template=change)

    assert result["changed"] and namespace.rc_names() == ["foo"]
    container = namespace.rc()["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "myimage:v1" and container["env"] == [{"name": "A", "value": "b"}]
    assert not namespace.roll(template=change)["changed"]


@pytest.mark.full
def test_each_restart_replaces_all_pods(namespace):
    namespace.make_rc(3)
    old_uids = uids(namespace.pods())

    assert namespace.roll(state="restarted")["changed"]

    new_uids = uids(namespace.pods())
    assert len(new_uids) == 3 and not old_uids & new_uids and namespace.rc_names() == ["foo"]
    assert namespace.roll(state="restarted")["changed"] and not new_uids & uids(namespace.pods())


@pytest.mark.full
def test_controller_with_zero_replicas_is_updated(namespace):
    namespace.make_rc(0)

    namespace.roll(image="myimage:v2")

    spec = namespace.rc()["spec"]
    assert (spec["replicas"] == 0
            and spec["template"]["spec"]["containers"][0]["image"] == "myimage:v2")
    assert namespace.rc_names() == ["foo"] and not namespace.roll(image="myimage:v2")["changed"]


@pytest.mark.full
def test_priority_class_of_the_template_survives_the_handover(namespace):
    """During the handover, the template names another priority class."""
    body = manifest(2)
    body["spec"]["template"]["spec"]["priorityClassName"] = "system-node-critical"
    namespace.create("replicationcontrollers", body)
    namespace.until_available("foo", 2)

    namespace.roll(image="myimage:v2")

    assert namespace.rc()["spec"]["template"]["spec"]["priorityClassName"] == "system-node-critical"


def test_check_mode_plans_the_steps_of_the_update(namespace):
    namespace.make_rc(4)
    state_before = namespace.end_state()

    plan = namespace.check(image="myimage:v2")
    state_after_check = namespace.end_state()
    result = namespace.roll(image="myimage:v2")

    assert state_before == state_after_check
    assert set(plan["requests"]) == {"GET"}
    assert ([{**step, "at": ""} for step in plan["steps"]]
            == [{**step, "at": ""} for step in result["steps"]])
    assert plan["msg"].replace("would be", "is") == result["msg"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("surge, unavailable",
                         [("0", "1"), ("50%", "50%"), ("100%", "0"), ("2", "1")])
def test_floor_and_ceiling_hold(namespace, surge, unavailable):
    namespace.make_rc(6)

    with namespace.observer() as observer:
        namespace.roll(image="myimage:v2", max_surge=surge, max_unavailable=unavailable)

    counts = {"0": 0, "1": 1, "2": 2, "50%": 3, "100%": 6}
    assert observer.min_ready >= 6 - counts[unavailable] and observer.max_pods <= 6 + counts[surge]
    assert len(observer.new_pods) == 6


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_floor_holds_with_slow_pods(namespace):
    namespace.make_rc(2)

    with namespace.observer() as observer:
        result = namespace.roll(image="myimage:slow", min_ready_seconds=1)

    assert observer.min_ready >= 2 and observer.max_pods <= 3
    assert result["rollout"]["controller"]["available"] == 2
    assert namespace.rc()["spec"]["minReadySeconds"] == 1

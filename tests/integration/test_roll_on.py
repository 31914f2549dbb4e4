# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the option roll_on: a task replaces pods whose ConfigMaps or Secrets have changed."""

from __future__ import annotations

import base64
import json
import subprocess

import pytest
from objects import eventually, manifest, role_rules, uids
from plays import ad_hoc_command, run_ad_hoc

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import CHECKSUMS

KINDS = ["ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet"]
PASSWORD = "correct horse battery staple"
POD_SPEC = {
    "volumes": [{"name": "config", "projected": {"sources": [
        {"configMap": {"name": "shop"}}, {"configMap": {"name": "absent", "optional": True}}]}}],
}


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def make_objects_and_controller(namespace, kind, name="foo"):
    namespace.allow(role_rules("baton-roll-on"), "roll-on")
    namespace.create("configmaps", {"metadata": {"name": "shop"}, "data": {"color": "red"}})
    namespace.create("secrets", {"metadata": {"name": "shop-db"},
                                 "data": {"password": encoded(PASSWORD)}})
    make_controller(namespace, kind, name)


def make_controller(namespace, kind, name="foo"):
    body = manifest(2, "myimage:v1", name)
    pod_spec = body["spec"]["template"]["spec"]
    pod_spec |= POD_SPEC
    pod_spec["containers"][0]["env"] = [{"name": "PASSWORD", "valueFrom": {
        "secretKeyRef": {"name": "shop-db", "key": "password"}}}]
    extra_spec = {"serviceName": name} if kind == "StatefulSet" else {}
    if kind in ("StatefulSet", "DaemonSet"):
        namespace.allow(role_rules(f"baton-{'stateful' if extra_spec else 'daemon'}-sets"),
                        f"sets-{name}")
    if kind == "DaemonSet":
        del body["spec"]["replicas"]
    namespace.create_controller(kind, body, **extra_spec)
    eventually(lambda: are_ready(namespace), "ready pods")


def are_ready(namespace):
    pods = namespace.pods()
    return len(pods) >= 2 and all("'type': 'Ready'" in str(pod["status"]) and
                                  pod["status"]["phase"] == "Running" for pod in pods)


def checksums(namespace, kind, name="foo"):
    item = (namespace.rc(name) if kind == "ReplicationController"
            else namespace.get_apps_object(f"{kind.lower()}s", name))
    annotations = item["spec"]["template"]["metadata"].get("annotations") or {}
    return json.loads(annotations.get(CHECKSUMS, "{}"))


def change_password(namespace, password="another"):
    namespace.patch("shop-db", {"data": {"password": encoded(password)}}, "secrets")


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_replaced_when_a_secret_has_changed(namespace, kind):
    make_objects_and_controller(namespace, kind)
    options = {"kind": kind, "roll_on": ["auto"]}
    assert namespace.roll(**options)["changed"]
    pod_uids, before = uids(namespace.pods()), checksums(namespace, kind)
    assert not namespace.roll(**options)["changed"]
    namespace.patch("shop-db", {"metadata": {"labels": {"a": "b"}}}, "secrets")
    assert not namespace.roll(**options)["changed"] and uids(namespace.pods()) == pod_uids

    change_password(namespace)
    plan, result = namespace.check(**options), namespace.roll(**options)

    after = checksums(namespace, kind)
    assert plan["changed"] and result["changed"]
    assert plan["steps"][0]["action"] == result["steps"][0]["action"]
    assert list(after) == ["configmap/shop", "secret/shop-db"]
    assert after["configmap/shop"] == before["configmap/shop"]
    assert after["secret/shop-db"] != before["secret/shop-db"]
    assert not uids(namespace.pods()) & pod_uids
    assert not namespace.roll(**options)["changed"]


def template_with(value):
    return {"spec": {"containers": [{"name": "web", "env": [{"name": "A", "value": value}]}]}}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["ReplicationController", "Deployment"])
def test_changed_secret_is_rolled_out_by_a_task_with_an_image_or_a_template(namespace, kind):
    make_objects_and_controller(namespace, kind)
    for change in ({"image": "myimage:v2"}, {"template": template_with("1")}):
        options = {"kind": kind, "roll_on": ["secret/shop-db"], **change}
        assert [namespace.roll(**options)["changed"] for _run in range(2)] == [True, False]
        change_password(namespace, f"password-{next(iter(change))}")
        assert [namespace.roll(**options)["changed"] for _run in range(2)] == [True, False]
        assert list(checksums(namespace, kind)) == ["secret/shop-db"]


@pytest.mark.full
def test_checksums_include_a_secret_that_only_the_new_template_reads(namespace):
    make_objects_and_controller(namespace, "Deployment")
    namespace.create("secrets", {"metadata": {"name": "next-db"}, "data": {}})
    container = {"name": "web", "envFrom": [{"secretRef": {"name": "next-db"}}]}

    namespace.roll(kind="Deployment", template={"spec": {"containers": [container]}},
                   roll_on=["auto"])

    assert list(checksums(namespace, "Deployment")) == ["configmap/shop", "secret/next-db",
                                                        "secret/shop-db"]


@pytest.mark.full
def test_rollback_restores_the_checksum_and_the_same_task_updates_again(namespace):
    make_objects_and_controller(namespace, "Deployment")
    options = {"kind": "Deployment", "roll_on": ["auto"]}
    namespace.roll(**options)
    before = checksums(namespace, "Deployment")
    change_password(namespace)
    namespace.roll(**options, pause_at=1)

    namespace.roll(kind="Deployment", state="rolled_back")

    assert checksums(namespace, "Deployment") == before
    assert namespace.roll(**options)["changed"]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_data_changed_during_a_pause_is_rolled_out_after_the_paused_update(namespace, kind):
    make_objects_and_controller(namespace, kind)
    options = {"kind": kind, "roll_on": ["auto"], "image": "myimage:v2"}
    namespace.roll(**options, pause_at=1)
    before = checksums(namespace, kind)
    change_password(namespace)

    result = namespace.roll(**options)
    after_update = checksums(namespace, kind)

    assert result["rollout"]["phase"] == "complete"
    assert any(warning.startswith("the data of secret/shop-db has changed since the update in")
               for warning in result["warnings"])
    assert kind == "ReplicationController" or kind == "ReplicaSet" or after_update == before
    assert [namespace.roll(**options)["changed"] for _run in range(2)] == [True, False]
    assert checksums(namespace, kind)["secret/shop-db"] != after_update["secret/shop-db"]


@pytest.mark.full
def test_missing_object_is_reported_before_the_first_write(namespace):
    make_objects_and_controller(namespace, "ReplicationController")
    before = namespace.rc()
    namespace.remove("shop-db", "secrets")

    with pytest.raises(RolloutError) as error:
        namespace.roll(roll_on=["auto"], image="myimage:v2")

    assert error.value.what == "there is no Secret shop-db, which its pods need"
    after = namespace.rc()
    assert after["spec"] == before["spec"]
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")


@pytest.mark.full
def test_error_for_a_missing_permission_contains_the_rule(namespace):
    namespace.create("secrets", {"metadata": {"name": "shop-db"}, "data": {}})
    namespace.make_rc(1)

    with pytest.raises(RolloutError) as error:
        namespace.roll(roll_on=["secret/shop-db"])

    assert error.value.what == "permission denied (403)"
    hint, rule = error.value.next_command.splitlines()
    assert "docs/reference/permissions.md" in hint and namespace.name in hint
    namespace.allow([json.loads(rule)], "suggested")
    assert namespace.roll(roll_on=["secret/shop-db"])["changed"]


def test_ansible_never_prints_the_secret(namespace, ansible_environment):
    """The diff shows checksums instead of the secret."""
    make_objects_and_controller(namespace, "ReplicationController")
    command = ad_hoc_command(namespace, name="foo", roll_on="auto")

    outputs = [subprocess.run([*command, "-vvv", "--diff", *check], env=ansible_environment,
                              capture_output=True, text=True, timeout=300, check=True)
               for check in (["--check"], [])]

    for output in outputs:
        text = output.stdout + output.stderr
        assert "secret/shop-db" in text and "CHANGED" in text
        assert PASSWORD not in text and encoded(PASSWORD) not in text


@pytest.mark.full
def test_fleet_updates_only_controllers_whose_pods_read_the_changed_object(
        namespace, ansible_environment):
    make_objects_and_controller(namespace, "ReplicationController", "foo-1")
    namespace.make_rc(1, name="foo-2")
    options = {"names": ["foo-1", "foo-2"], "roll_on": ["auto"]}
    first, _stderr = run_ad_hoc(namespace, ansible_environment, **options)
    change_password(namespace)
    second, _stderr = run_ad_hoc(namespace, ansible_environment, **options)

    for result in (first, second):
        assert [entry["changed"] for entry in result["results"]] == [True, False]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the errors of tasks."""

from __future__ import annotations

import pytest
from objects import manifest
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver


def refusal_of_task(namespace, **params) -> RolloutError:
    """Return the error of a task, which must change no controller."""
    generations = {name: namespace.rc(name)["metadata"]["generation"]
                   for name in namespace.rc_names()}
    annotations = {name: namespace.rc(name)["metadata"].get("annotations")
                   for name in namespace.rc_names()}
    with pytest.raises(RolloutError) as error:
        namespace.roll(**params)
    assert generations == {name: namespace.rc(name)["metadata"]["generation"]
                           for name in namespace.rc_names()}
    assert annotations == {name: namespace.rc(name)["metadata"].get("annotations")
                           for name in namespace.rc_names()}
    return error.value


def test_error_for_a_missing_controller_mentions_objects_of_other_readable_kinds(namespace):
    template = manifest()["spec"]["template"]
    for resource in ("deployments", "daemonsets"):
        replicas = {"replicas": 0} if resource == "deployments" else {}
        namespace.call("POST", f"/apis/apps/v1/namespaces/{namespace.name}/{resource}", {
            "metadata": {"name": "foo"},
            "spec": {**replicas, "selector": {"matchLabels": {"app": "foo"}},
                     "template": template}})

    message = f"ReplicationController {namespace.name}/foo: there is no such ReplicationController"

    full_message = f"{message}.\nReason: there is a Deployment foo (kind=Deployment)"
    assert refusal_of_task(namespace, image="myimage:v2").message == full_message

    namespace.allow([{"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]}],
                    "get-daemonsets")
    assert (refusal_of_task(namespace, image="myimage:v2").message
            == f"{full_message} and a DaemonSet foo (kind=DaemonSet)")


def test_missing_namespace_is_reported(namespace):
    """The administrator learns that the namespace is missing, another user gets a 403."""
    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2", namespace="missing")
    with namespace.as_administrator(), pytest.raises(RolloutError) as administrator_error:
        namespace.roll(image="myimage:v2", namespace="missing")

    assert (error.value.what == "permission denied (403)"
            and '"replicationcontrollers"' in error.value.why)
    assert (error.value.where == "namespace missing"
            and 'in the namespace "missing"' in error.value.why)
    assert administrator_error.value.why == "there is no namespace missing"


@pytest.mark.full
@pytest.mark.parametrize("state", ["rolled_back", "restarted"])
def test_missing_controller_is_an_error_of_a_rollback_and_a_restart(namespace, state):
    assert "no such ReplicationController" in refusal_of_task(namespace, state=state).what


@pytest.mark.sample(2)
@pytest.mark.parametrize("params, sentence", [
    (dict(image="myimage:v2", container="nope"),
     "there is no container nope in the template of foo; it has: web"),
    (dict(images={"nope": "x:1"}),
     "there is no container nope in the template of foo; it has: web"),
    (dict(template={"spec": {"containers": [{"name": "web", "image": 7}]}}),
     "the desired template is refused"),
    (dict(template={"spec": {"restartPolicy": "Sometimes"}}), "the desired template is refused"),
    (dict(template={"metadata": {"labels": {"app": "bar"}}}), "the desired template is refused"),
])
def test_invalid_template_is_refused(namespace, params, sentence):
    namespace.make_rc(1)

    assert refusal_of_task(namespace, **params).what == sentence


@pytest.mark.full
def test_ambiguous_container_is_an_error(namespace):
    body = manifest(1)
    body["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "myimage:v1"})
    namespace.create("replicationcontrollers", body)
    namespace.until_available("foo", 1)

    error = refusal_of_task(namespace, image="myimage:v2")

    assert "set container to one of web, side" in error.what
    assert namespace.roll(image="myimage:v2", container="side")["changed"]
    images = [container["image"]
              for container in namespace.rc()["spec"]["template"]["spec"]["containers"]]
    assert images == ["myimage:v1", "myimage:v2"]


def test_definition_with_an_overlapping_selector_is_refused(namespace):
    namespace.make_rc(1)

    definition = {**manifest(image="myimage:v2"), "metadata": {"name": "bar"}}

    assert "does not differ" in refusal_of_task(namespace, definition=definition).what


@pytest.mark.full
def test_deployment_label_key_in_use_is_refused(namespace):
    namespace.make_rc(1)

    assert ("app=foo is already in use"
            in refusal_of_task(namespace, image="myimage:v2", deployment_label_key="app").what)


@pytest.mark.since("1.25", "the API server ignores unknown fields")
def test_unknown_field_is_refused(namespace):
    namespace.make_rc(1)

    assert (
        "unknown field"
        in refusal_of_task(
            namespace, template={"containers": [{"name": "web", "image": "x:1"}]}).why
    )


def test_merged_template_retains_ports_with_the_same_number(namespace):
    """A strategic merge patch identifies a port by its number, without the protocol."""
    ports = [{"containerPort": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
    body = manifest(1)
    body["spec"]["template"]["spec"]["containers"][0]["ports"] = ports
    namespace.create("replicationcontrollers", body)
    template = {"spec": {"containers": [{"name": "web", "image": "myimage:v2", "ports": ports}]}}

    namespace.roll(template=template)

    assert namespace.rc()["spec"]["template"]["spec"]["containers"][0]["ports"] == ports
    assert not namespace.roll(template=template)["changed"]


@pytest.mark.full
def test_another_update_in_progress_is_refused(namespace):
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")

    error = refusal_of_task(namespace, image="myimage:v3")

    assert "another update is in progress: to myimage:v2" in error.what
    assert ("run the task that began it" in error.next_command
            and "state=rolled_back" in error.next_command)


@pytest.mark.full
def test_unrelated_controller_with_the_successor_name_is_refused(namespace):
    namespace.make_rc(1)
    namespace.make_rc(1, name="bar")

    error = refusal_of_task(namespace, image="myimage:v2", next_name="bar")

    assert "bar already exists and does not belong to this update" in error.what


@pytest.mark.full
def test_successor_of_a_deleted_primary_is_refused(namespace):
    """The annotations of the successor have the uid of the deleted foo."""
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    namespace.remove("foo")
    namespace.wait_for_deletion("foo")
    namespace.make_rc(3)

    assert "does not belong to this update" in refusal_of_task(namespace, image="myimage:v2").what


@pytest.mark.full
def test_controller_with_an_owner_is_refused(namespace):
    owner = namespace.create("configmaps", {"metadata": {"name": "config"}})
    reference = {"apiVersion": "apps.openshift.io/v1", "kind": "DeploymentConfig", "name": "foo",
                 "controller": True,
                 "uid": owner["metadata"]["uid"]}
    namespace.create("replicationcontrollers", manifest(0, ownerReferences=[reference]))

    error = refusal_of_task(namespace, image="myimage:v2")

    assert error.what == "it is controlled by DeploymentConfig/foo, which would undo every step"


@pytest.mark.full
def test_update_of_the_successor_is_refused(namespace):
    namespace.make_rc(3)
    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
    (successor,) = set(namespace.rc_names()) - {"foo"}

    error = refusal_of_task(namespace, name=successor, image="myimage:v1")

    assert "it is the temporary successor of foo" in error.what and "name=foo" in error.next_command


@pytest.mark.full
def test_update_after_an_interrupted_kubectl_rolling_update_is_refused(namespace):
    primary = namespace.make_rc(
        2, annotations={"kubectl.kubernetes.io/original-replicas": "2"})
    uid = primary["metadata"]["uid"]
    namespace.make_rc(1, name="foo-next",
                      annotations={"kubectl.kubernetes.io/update-source-id": f"foo:{uid}"})

    error = refusal_of_task(namespace, image="myimage:v2")

    assert "kubectl rolling-update was interrupted, and foo-next" in error.what
    assert "scale rc foo --replicas=2" in error.next_command


def connection_error(namespace, **connection):
    request = parse_request({"name": "foo", "namespace": namespace.name, "image": "myimage:v2"})
    with pytest.raises(RolloutError) as error:
        driver.run(choose(request), request, namespace.gateway(**connection), driver.Clock())
    return error.value


def test_invalid_token_is_an_error(namespace):
    error = connection_error(namespace, api_key="invalid-token")

    assert (
        "does not accept the credentials (401)" in error.what
        and "invalid-token" not in error.message
    )


def test_impersonation_gives_only_the_permissions_of_the_impersonated_user(namespace):
    """Only the administrator may impersonate jane, who has no permissions."""
    namespace.make_rc(1)

    error = connection_error(namespace, impersonate_user="jane")
    assert error.what == "permission denied (403)" and 'cannot impersonate' in error.why

    with namespace.as_administrator():
        error = connection_error(namespace, impersonate_user="jane")
    assert error.what == "permission denied (403)"
    assert 'User "jane" cannot list resource "replicationcontrollers"' in error.why


def test_unreachable_server_is_an_error(namespace):
    error = connection_error(namespace, host="https://127.0.0.1:9")

    assert error.what == "the API server at https://127.0.0.1:9 cannot be reached"
    assert "refused" in error.why.lower()


def test_untrusted_certificate_is_an_error(namespace, tmp_path):
    import certifi

    error = connection_error(namespace, ca_cert=certifi.where())

    assert "is not accepted" in error.what and "certificate" in error.why.lower()


def test_error_explains_unavailable_pods(namespace):
    namespace.make_rc(2)

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:absent", failure_grace=2)

    message = error.value.message
    assert "the new pods cannot become available" in message and "0 of 1 available" in message
    assert "ErrImagePull" in message or "ImagePullBackOff" in message
    assert "image=myimage:absent" in message and "state=rolled_back" in message
    assert [step["action"] for step in error.value.progress["steps"]][-1] == "scale"
    assert error.value.progress["rollout"]["phase"] == "progressing"
    assert namespace.roll(state="rolled_back")["changed"] and namespace.rc_names() == ["foo"]

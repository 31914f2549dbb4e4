# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test updates under admission policies and quotas, and in a terminating namespace."""

from __future__ import annotations

import contextlib

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, uids
from writes import Killed, is_reparenting, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@contextlib.contextmanager
def policy(namespace, policy_type, operations, spec, probe, resource="replicationcontrollers"):
    """Apply an admission policy to the namespace during the block.

    probe: returns whether a dry run shows the effect of the policy.
    """
    name, path = namespace.name, f"{ADMISSION}/{policy_type}admissionpolicies"
    rules = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource],
                                "operations": operations}]}
    spec = {"failurePolicy": "Fail", "matchConstraints": rules, **spec}
    binding = {
        "matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}}
    actions = {"validationActions": ["Deny"]} if policy_type == "validating" else {}
    namespace.call("POST", path, {"metadata": {"name": name}, "spec": spec})
    try:
        namespace.call("POST", f"{ADMISSION}/{policy_type}admissionpolicybindings", {
            "metadata": {"name": name}, "spec": {"policyName": name, **actions, **binding}})
        eventually(probe, "the effect of the policy")
        yield
    finally:
        namespace.call("DELETE", f"{ADMISSION}/{policy_type}admissionpolicybindings/{name}")
        namespace.call("DELETE", f"{path}/{name}")
    eventually(lambda: not probe(), "the removal of the policy")


# Policies that change the template

USE_MIRROR = """Object{spec: Object.spec{template: Object.spec.template{
    spec: Object.spec.template.spec{containers: object.spec.template.spec.containers.map(container,
        Object.spec.template.spec.containers{name: container.name,
            image: container.image.startsWith("mirror/") ? container.image
                : "mirror/" + container.image})}}}}"""
ADD_ENV = """Object{spec: Object.spec{template: Object.spec.template{
    spec: Object.spec.template.spec{containers: object.spec.template.spec.containers.map(container,
        Object.spec.template.spec.containers{name: container.name,
            env: [Object.spec.template.spec.containers.env{
                name: "ADDED", value: "by a policy"}]})}}}}"""


def mutation(namespace, expression, operations=("CREATE", "UPDATE")):
    def probe():
        admitted_controller = namespace.call(
            "POST", namespace.path("replicationcontrollers") + "?dryRun=All",
            manifest(0, name="probe"))
        (container,) = admitted_controller["spec"]["template"]["spec"]["containers"]
        return container["image"] != "myimage:v1" or "env" in container

    spec = {"reinvocationPolicy": "Never", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]}
    return policy(namespace, "mutating", list(operations), spec, probe)


UPDATE_BY_IMAGE = {"image": "myimage:v2"}
UPDATE_BY_TEMPLATE = {
    "template": {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}]}}}


@pytest.mark.sample(1)
@pytest.mark.parametrize("expression, image",
                         [(USE_MIRROR, "mirror/myimage:v2"), (ADD_ENV, "myimage:v2")],
                         ids=["another image", "additional environment variable"])
@pytest.mark.parametrize("task", [UPDATE_BY_IMAGE, {**UPDATE_BY_IMAGE, "next_name": "bar"},
                                  UPDATE_BY_TEMPLATE],
                         ids=["image", "image and next_name", "template"])
def test_update_completes_although_admission_changes_the_template(
    namespace, expression, image, task
):
    namespace.make_rc(2)

    with mutation(namespace, expression):
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(6, after=True), **task)
        result = namespace.roll(**task)
        rerun = namespace.roll(**task)

    assert result["changed"] and not rerun["changed"] and set(rerun["requests"]) <= {"GET", "PATCH"}
    assert namespace.rc_names() == [task.get("next_name", "foo")]
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {image}


@pytest.mark.sample(1)
@pytest.mark.parametrize("task", [UPDATE_BY_IMAGE, UPDATE_BY_TEMPLATE], ids=["image", "template"])
def test_update_completes_although_admission_changes_the_template_at_creation(namespace, task):
    """The policy does not change the template of an existing controller."""
    namespace.make_rc(2)

    with mutation(namespace, USE_MIRROR, ["CREATE"]):
        assert namespace.roll(**task)["changed"]
        before = eventually(lambda: (item := namespace.rc())["status"]["observedGeneration"]
                            == item["metadata"]["generation"] and item,
                            "the observation of the new generation")
        rerun = namespace.roll(**task)

    assert not rerun["changed"] and namespace.rc() == before and namespace.rc_names() == ["foo"]
    assert before["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror/myimage:v2"


# Policies that deny a step


def dry_run_patch(path, value):
    return lambda namespace: namespace.call("PATCH",
                                            namespace.path("replicationcontrollers", "foo")
                                            + "?dryRun=All",
                                            [{"op": "add", "path": path, "value": value}],
                                            "application/json-patch+json")


def dry_run_create(namespace):
    namespace.call("POST", namespace.path("replicationcontrollers") + "?dryRun=All",
                   manifest(0, name="probe"))


def dry_run_delete(namespace):
    namespace.call("DELETE", namespace.path("replicationcontrollers", "foo") + "?dryRun=All")


ANNOTATION_PATH_AND_VALUE = "/metadata/annotations", {object_meta.PARTNER: "x"}
IMAGE_PATH = "/spec/template/spec/containers/0/image"
#: Operations and expression of a policy, a dry run of a denied request, and the denied step.
DENIED_STEPS = {
    "annotations": (
        ["UPDATE"],
        f"!has(object.metadata.annotations) || !('{object_meta.PARTNER}' in "
        f"object.metadata.annotations)",
        dry_run_patch(*ANNOTATION_PATH_AND_VALUE),
        "the change of its annotations",
    ),
    "creation of the successor": (
        ["CREATE"],
        "object.spec.replicas > 0",
        dry_run_create,
        "its creation",
    ),
    "change of the size": (
        ["UPDATE"],
        "object.spec.replicas == oldObject.spec.replicas",
        dry_run_patch("/spec/replicas", 9),
        "the change of its size",
    ),
    "first step of the handover": (
        ["UPDATE"],
        "object.spec.template == oldObject.spec.template",
        dry_run_patch(IMAGE_PATH, "x:1"),
        "the change of its template",
    ),
    "deletion of the successor": (
        ["DELETE"],
        "oldObject.metadata.name == 'x'",
        dry_run_delete,
        "its deletion",
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("reason", ["Invalid", "Forbidden"])
@pytest.mark.parametrize("step", DENIED_STEPS)
def test_denied_step_is_reported_and_the_rerun_completes(namespace, step, reason):
    operations, expression, probe_write, failed_step = DENIED_STEPS[step]
    namespace.make_rc(2)

    def probe():
        try:
            probe_write(namespace)
        except ApiException as error:
            return "denied request" in error.reason
        return False

    with namespace.observer() as observer:
        spec = {"validations": [{"expression": expression, "message": "not on a Saturday",
                                 "reason": reason}]}
        with (policy(namespace, "validating", operations, spec, probe),
              pytest.raises(RolloutError) as error):
            namespace.roll(image="myimage:v2", progress_deadline=5)
        namespace.roll(image="myimage:v2")

    status = {"Invalid": 422, "Forbidden": 403}[reason]
    assert (error.value.what == f"{failed_step} was refused ({status})"
            and "run the same task again" in error.value.next_command)
    assert (f"ValidatingAdmissionPolicy '{namespace.name}'" in error.value.why
            and "not on a Saturday" in error.value.why)
    assert (namespace.rc_names() == ["foo"] and observer.new_pods == uids(namespace.pods())
            and len(observer.new_pods) == 2)
    assert (observer.min_ready >= 2 and observer.max_pods <= 3
            and "foo" not in observer.controllers_deleted)
    assert not namespace.roll(image="myimage:v2")["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("reason", ["Invalid", "Forbidden"])
@pytest.mark.parametrize("in_handover", [False, True],
                         ids=["before the update", "during the handover"])
def test_denied_reparenting_is_reported_and_the_rerun_completes(
    namespace, reason, in_handover
):
    """The task checks the permission before its first write."""
    namespace.make_rc(2)
    denied_patch = [{"op": "remove", "path": "/metadata/ownerReferences"}]

    def probe():
        path = namespace.path("pods", namespace.pods()[0]["metadata"]["name"])
        try:
            namespace.call(
                "PATCH", f"{path}?dryRun=All", denied_patch, "application/json-patch+json"
            )
        except ApiException as error:
            return "denied request" in error.reason
        return False

    with namespace.observer() as observer:
        if in_handover:
            with pytest.raises(Killed):
                namespace.roll(fault=kill_at_write(1, True, is_reparenting), image="myimage:v2")
        before = namespace.rc()["metadata"]["generation"]
        expression = ("has(object.metadata.ownerReferences) && object.metadata.ownerReferences == "
                      "oldObject.metadata.ownerReferences")
        spec = {"validations": [{"expression": expression, "message": "not on a Saturday",
                                 "reason": reason}]}
        with (policy(namespace, "validating", ["UPDATE"], spec, probe, "pods"),
              pytest.raises(RolloutError) as error):
            namespace.roll(image="myimage:v2", progress_deadline=5)
        assert namespace.rc()["metadata"]["generation"] == before
        namespace.roll(image="myimage:v2")

    status = {"Invalid": 422, "Forbidden": 403}[reason]
    assert ("not allowed to change the controller of pod foo-" in error.value.what
            and f" ({status})" in error.value.what)
    assert (f"ValidatingAdmissionPolicy '{namespace.name}'" in error.value.why
            and "not on a Saturday" in error.value.why)
    assert ("; nothing was changed" in error.value.what) is not in_handover
    assert (namespace.rc_names() == ["foo"] and observer.new_pods == uids(namespace.pods())
            and len(observer.new_pods) == 2)
    assert observer.min_ready >= 2 and observer.max_pods <= 3


# A quota


def create_quota(namespace, **hard):
    namespace.create("resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    eventually(lambda: "used" in namespace.get("resourcequotas", "small").get("status", {}),
               "the status of the quota")


@pytest.mark.full
def test_quota_refuses_the_surge_but_allows_max_surge_0(namespace):
    namespace.make_rc(2)
    create_quota(namespace, pods="2")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2", progress_deadline=4)
    assert "exceeded quota: small" in error.value.message
    namespace.roll(image="myimage:v2", max_surge="0", max_unavailable="1")

    assert namespace.rc_names() == ["foo"] and len(namespace.pods()) == 2
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_task", [dict(state="rolled_back"), UPDATE_BY_IMAGE],
                         ids=["rollback", "rerun"])
def test_quota_refuses_the_successor_before_the_spec_changes(namespace, next_task):
    """A rollback succeeds despite the quota, a rerun only without it."""
    before = namespace.make_rc(2)
    create_quota(namespace, **{"count/replicationcontrollers": "1"})

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")
    assert (error.value.what == "its creation was refused (403)"
            and "exceeded quota: small" in error.value.why)
    assert namespace.rc()["spec"] == before["spec"] and len(namespace.pods()) == 2
    if next_task == UPDATE_BY_IMAGE:
        namespace.remove("small", resource="resourcequotas")
        eventually(lambda: namespace.get("resourcequotas", "small") is None,
                   "the deletion of the quota")
    namespace.roll(**next_task)

    assert (namespace.rc_names() == ["foo"]
            and not set(object_meta.UPDATE_ANNOTATIONS) & set(
                namespace.rc()["metadata"].get("annotations", ())))
    assert (namespace.rc()["spec"] == before["spec"]) == ("state" in next_task)


# A terminating namespace


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_update_fails_when_its_namespace_is_deleted(namespace):
    """The message depends on what is deleted first: the Role, the ServiceAccount or foo."""
    namespace.make_rc(4)

    def on_line(line):
        if line.startswith("scale foo: 3 -> 2"):
            namespace.core.delete_namespace(namespace.name)

    with pytest.raises(RolloutError) as error:
        namespace.roll(on_line=on_line, image="myimage:v2-slow", progress_deadline=20)

    assert any(text in error.value.message for text in (
        "permission", "does not accept the credentials", "no such ReplicationController",
        "it is being deleted",
        "being terminated")), error.value.message


def test_terminating_namespace_is_refused(namespace):
    """A finalizer of foo blocks the deletion of the namespace."""
    namespace.make_rc(2, finalizers=["example.com/wait"])
    namespace.core.delete_namespace(namespace.name)
    eventually(lambda: "deletionTimestamp" in namespace.rc()["metadata"], "the deletion of foo")
    try:
        with namespace.as_administrator(), pytest.raises(RolloutError) as error:
            namespace.roll(image="myimage:v2")
    finally:
        namespace.patch("foo", {"metadata": {"finalizers": None}})

    assert error.value.what == "it is being deleted" and "finalizers" in error.value.next_command

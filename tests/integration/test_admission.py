# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A cluster with policies: mutations of the template, denied steps and object counts."""

from __future__ import annotations

import contextlib

import pytest
from kubernetes.client.exceptions import ApiException
from objects import eventually, manifest, uids
from writes import Killed, death, reparents

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@contextlib.contextmanager
def policy(namespace, kind, operations, spec, probe, resource="replicationcontrollers"):
    """Apply a policy to the namespace's controllers or pods while the block runs.

    A dry run, the probe, tells when the policy begins and ceases to act.
    """
    name, path = namespace.name, f"{ADMISSION}/{kind}admissionpolicies"
    rules = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource],
                                "operations": operations}]}
    spec = {"failurePolicy": "Fail", "matchConstraints": rules, **spec}
    where = {
        "matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}}
    actions = {"validationActions": ["Deny"]} if kind == "validating" else {}
    namespace.call("POST", path, {"metadata": {"name": name}, "spec": spec})
    try:
        namespace.call("POST", f"{ADMISSION}/{kind}admissionpolicybindings", {
            "metadata": {"name": name}, "spec": {"policyName": name, **actions, **where}})
        eventually(probe, "the policy")
        yield
    finally:
        namespace.call("DELETE", f"{ADMISSION}/{kind}admissionpolicybindings/{name}")
        namespace.call("DELETE", f"{path}/{name}")
    eventually(lambda: not probe(), "the end of the policy")


# A template stored differently from the request

TO_MIRROR = """Object{spec: Object.spec{template: Object.spec.template{
    spec: Object.spec.template.spec{containers: object.spec.template.spec.containers.map(container,
        Object.spec.template.spec.containers{name: container.name,
            image: container.image.startsWith("mirror/") ? container.image
                : "mirror/" + container.image})}}}}"""
WITH_ENV = """Object{spec: Object.spec{template: Object.spec.template{
    spec: Object.spec.template.spec{containers: object.spec.template.spec.containers.map(container,
        Object.spec.template.spec.containers{name: container.name,
            env: [Object.spec.template.spec.containers.env{
                name: "ADDED", value: "by a policy"}]})}}}}"""


def mutates(namespace, expression, operations=("CREATE", "UPDATE")):
    """Apply the expression to every creation and change of a controller, by a
    MutatingAdmissionPolicy.
    """
    def probe():
        stored = namespace.call("POST", namespace.path("replicationcontrollers") + "?dryRun=All",
                                manifest(0, name="probe"))
        (container,) = stored["spec"]["template"]["spec"]["containers"]
        return container["image"] != "myimage:v1" or "env" in container

    spec = {"reinvocationPolicy": "Never", "mutations": [
        {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]}
    return policy(namespace, "mutating", list(operations), spec, probe)


BY_IMAGE = {"image": "myimage:v2"}
BY_TEMPLATE = {"template": {"spec": {"containers": [{"name": "web", "image": "myimage:v2"}]}}}


@pytest.mark.sample(2)
@pytest.mark.parametrize("expression, image",
                         [(TO_MIRROR, "mirror/myimage:v2"), (WITH_ENV, "myimage:v2")],
                         ids=["another image", "more environment"])
@pytest.mark.parametrize("wish", [BY_IMAGE, {**BY_IMAGE, "next_name": "bar"}, BY_TEMPLATE],
                         ids=["image", "image and next_name", "template"])
def test_admission_that_changes_the_template(namespace, expression, image, wish):
    """The desired template never equals the stored one: the update still ends, also after a kill,
    and is then unchanged.
    """
    namespace.make_primary(2)

    with mutates(namespace, expression):
        with pytest.raises(Killed):
            namespace.roll(fault=death(6, after=True), **wish)
        result = namespace.roll(**wish)
        again = namespace.roll(**wish)

    assert result["changed"] and not again["changed"] and set(again["requests"]) <= {"GET", "PATCH"}
    assert namespace.rcs() == [wish.get("next_name", "foo")]
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {image}


@pytest.mark.sample(1)
@pytest.mark.parametrize("wish", [BY_IMAGE, BY_TEMPLATE], ids=["image", "template"])
def test_admission_that_changes_the_template_only_at_creation(namespace, wish):
    """foo's present template could be stored as requested: the creation of an object shows that it
    is the desired one.
    """
    namespace.make_primary(2)

    with mutates(namespace, TO_MIRROR, ["CREATE"]):
        assert namespace.roll(**wish)["changed"]
        before = eventually(lambda: (item := namespace.rc())["status"]["observedGeneration"]
                            == item["metadata"]["generation"] and item,
                            "a status of its last change")
        again = namespace.roll(**wish)

    assert not again["changed"] and namespace.rc() == before and namespace.rcs() == ["foo"]
    assert before["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror/myimage:v2"


# A step denied by a policy


def patches(path, value):
    return lambda namespace: namespace.call("PATCH",
                                            namespace.path("replicationcontrollers", "foo")
                                            + "?dryRun=All",
                                            [{"op": "add", "path": path, "value": value}],
                                            "application/json-patch+json")


def creates(namespace):
    namespace.call("POST", namespace.path("replicationcontrollers") + "?dryRun=All",
                   manifest(0, name="probe"))


def deletes(namespace):
    namespace.call("DELETE", namespace.path("replicationcontrollers", "foo") + "?dryRun=All")


ANNOTATED = "/metadata/annotations", {object_meta.PARTNER: "x"}
IMAGE = "/spec/template/spec/containers/0/image"
DENIED = {
    "marks": (["UPDATE"],
              f"!has(object.metadata.annotations) || !('{object_meta.PARTNER}' in "
              f"object.metadata.annotations)",
              patches(*ANNOTATED), "the change of its annotations"),
    "the creation of next": (["CREATE"], "object.spec.replicas > 0", creates, "its creation"),
    "a size": (["UPDATE"], "object.spec.replicas == oldObject.spec.replicas",
               patches("/spec/replicas", 9),
               "the change of its size"),
    "the handover's first step": (["UPDATE"], "object.spec.template == oldObject.spec.template",
                                  patches(IMAGE, "x:1"),
                                  "the change of its template"),
    "the deletion of next": (["DELETE"], "oldObject.metadata.name == 'x'", deletes, "its deletion"),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("reason", ["Invalid", "Forbidden"])
@pytest.mark.parametrize("what", DENIED)
def test_denied_step_is_an_error(namespace, what, reason):
    """The error names the step, the policy and its message; without the policy the same task ends
    without a loss.
    """
    operations, expression, trial, deed = DENIED[what]
    namespace.make_primary(2)

    def probe():
        try:
            trial(namespace)
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
    assert (error.value.what == f"{deed} was refused ({status})"
            and "run the same task again" in error.value.next_command)
    assert (f"ValidatingAdmissionPolicy '{namespace.name}'" in error.value.why
            and "not on a Saturday" in error.value.why)
    assert (namespace.rcs() == ["foo"] and observer.new == uids(namespace.pods())
            and len(observer.new) == 2)
    assert (observer.fewest_ready >= 2 and observer.most_pods <= 3
            and "foo" not in observer.controllers_deleted)
    assert not namespace.roll(image="myimage:v2")["changed"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("reason", ["Invalid", "Forbidden"])
@pytest.mark.parametrize("is_begun", [False, True],
                         ids=["there from the beginning", "comes half way through the pods"])
def test_policy_against_reparenting_is_an_error(namespace, reason, is_begun):
    """The error names the pod, the policy and its message, before the first write if possible;
    without it the task ends.
    """
    namespace.make_primary(2)
    trial = [{"op": "remove", "path": "/metadata/ownerReferences"}]

    def probe():
        path = namespace.path("pods", namespace.pods()[0]["metadata"]["name"])
        try:
            namespace.call("PATCH", f"{path}?dryRun=All", trial, "application/json-patch+json")
        except ApiException as error:
            return "denied request" in error.reason
        return False

    with namespace.observer() as observer:
        if is_begun:
            with pytest.raises(Killed):
                namespace.roll(fault=death(1, True, reparents), image="myimage:v2")
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
    assert ("; nothing was changed" in error.value.what) is not is_begun
    assert (namespace.rcs() == ["foo"] and observer.new == uids(namespace.pods())
            and len(observer.new) == 2)
    assert observer.fewest_ready >= 2 and observer.most_pods <= 3


# A quota


def limits(namespace, **hard):
    namespace.create("resourcequotas", {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    eventually(lambda: "used" in namespace.get("resourcequotas", "small").get("status", {}),
               "the quota's count")


def test_quota_without_room_for_the_surge(namespace):
    """The error has the quota's own words; with max_surge=0 the same update goes on."""
    namespace.make_primary(2)
    limits(namespace, pods="2")

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2", progress_deadline=4)
    assert "exceeded quota: small" in error.value.message
    namespace.roll(image="myimage:v2", max_surge="0", max_unavailable="1")

    assert namespace.rcs() == ["foo"] and len(namespace.pods()) == 2
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v2"}


@pytest.mark.parametrize("then", [dict(state="rolled_back"), BY_IMAGE], ids=["back", "forward"])
def test_quota_without_room_for_a_successor(namespace, then):
    """Only an annotation on foo was written: rollback works under the quota, and the update resumes
    without the quota.
    """
    before = namespace.make_primary(2)
    limits(namespace, **{"count/replicationcontrollers": "1"})

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")
    assert (error.value.what == "its creation was refused (403)"
            and "exceeded quota: small" in error.value.why)
    assert namespace.rc()["spec"] == before["spec"] and len(namespace.pods()) == 2
    if then == BY_IMAGE:
        namespace.remove("small", resource="resourcequotas")
        eventually(lambda: namespace.get("resourcequotas", "small") is None,
                   "the end of the quota")
    namespace.roll(**then)

    assert (namespace.rcs() == ["foo"]
            and not set(object_meta.UPDATE_ANNOTATIONS) & set(
                namespace.rc()["metadata"].get("annotations", ())))
    assert (namespace.rc()["spec"] == before["spec"]) == ("state" in then)


# A terminating namespace


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_namespace_deleted_during_an_update(namespace):
    """The task ends soon, no matter if its permissions, its token or foo are deleted first."""
    namespace.make_primary(4)

    def say(line):
        if line.startswith("scale foo: 3 -> 2"):
            namespace.core.delete_namespace(namespace.name)

    with pytest.raises(RolloutError) as error:
        namespace.roll(say=say, image="myimage:v2-slow", progress_deadline=20)

    assert any(sign in error.value.message for sign in (
        "permission", "does not accept the credentials", "no such ReplicationController",
        "it is being deleted",
        "being terminated")), error.value.message


def test_terminating_namespace_is_refused(namespace):
    """Held up by a finalizer on foo."""
    namespace.make_primary(2, finalizers=["example.com/wait"])
    namespace.core.delete_namespace(namespace.name)
    eventually(lambda: "deletionTimestamp" in namespace.rc()["metadata"], "the deletion of foo")
    try:
        with namespace.as_administrator(), pytest.raises(RolloutError) as error:
            namespace.roll(image="myimage:v2")
    finally:
        namespace.patch("foo", {"metadata": {"finalizers": None}})

    assert error.value.what == "it is being deleted" and "finalizers" in error.value.next_command

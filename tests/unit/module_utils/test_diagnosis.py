# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One example for each way in which pods of a real node fail, with the words that it uses."""

# pylint: disable=disallowed-name  # "foo" is what the design calls the controller that the user names

from __future__ import annotations

import pytest
from builders import rc

from ansible_collections.baton.kubernetes.plugins.module_utils.diagnosis import why_not_available
from ansible_collections.baton.kubernetes.plugins.module_utils.observed import Controller

NOT_READY = ({"type": "Initialized", "status": "True"},
             {"type": "Ready", "status": "False", "reason": "ContainersNotReady",
              "message": "containers with unready status: [web]"},
             {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady",
              "message": "containers with unready status: [web]"},
             {"type": "PodScheduled", "status": "True"})
READY = [{"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]


def container(ready=False, last=None, **state):
    """The status of one container: waiting=..., running=... or terminated=..., and how it ended before."""
    return {"name": "web", "ready": ready, "state": state, "lastState": {"terminated": last} if last else {}}


def pod(name="foo-1", *containers, conditions=NOT_READY, **status):
    return {"metadata": {"name": name}, "status": {"conditions": conditions, "containerStatuses": list(containers), **status}}


def waiting(reason, message="", last=None):
    return pod("foo-1", container(waiting={"reason": reason, "message": message}, last=last))


def ended(reason, code, **more):
    return {"reason": reason, "exitCode": code, **more}


def unschedulable(message):
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}])


PULL = 'failed to pull and unpack image "localhost/none:v9": dial tcp 127.0.0.1:80: connect: connection refused'
REASONS = {
    "the image is absent, at first": (waiting("ErrImagePull", PULL), f"ErrImagePull: {PULL}"),
    "the image is absent, later": (
        waiting("ImagePullBackOff", 'Back-off pulling image "localhost/none:v9": ErrImagePull: no such host'),
        'ImagePullBackOff: Back-off pulling image "localhost/none:v9": ErrImagePull: no such host'),
    "the image is absent and is never pulled": (
        waiting("ErrImageNeverPull", 'Container image "localhost/none:v9" is not present with pull policy of Never'),
        'ErrImageNeverPull: Container image "localhost/none:v9" is not present with pull policy of Never'),
    "the image's name is none": (
        waiting("InvalidImageName", 'Failed to apply default image tag "Bad//Name": couldn\'t parse image name'),
        'InvalidImageName: Failed to apply default image tag "Bad//Name": couldn\'t parse image name'),
    "the container has just ended with an error": (
        pod("foo-1", container(terminated=ended("Error", 3))), "Error: exit code 3"),
    "the container ends with an error each time": (
        waiting("CrashLoopBackOff", "back-off 10s restarting failed container=web pod=crash", last=ended("Error", 3)),
        "CrashLoopBackOff: back-off 10s restarting failed container=web pod=crash; it last ended with Error, exit code 3"),
    "the container runs again after an error, and is not ready": (
        pod("foo-1", container(running={}, last=ended("Error", 3))), "Error: exit code 3"),
    "the command is not there": (
        waiting("RunContainerError", 'runc create failed: exec: "/nope": stat /nope: no such file or directory'),
        'RunContainerError: runc create failed: exec: "/nope": stat /nope: no such file or directory'),
    "the command is not there, later": (
        waiting("CrashLoopBackOff", "back-off 10s", last=ended("StartError", 128)),
        "CrashLoopBackOff: back-off 10s; it last ended with StartError, exit code 128"),
    "a ConfigMap is missing": (
        waiting("CreateContainerConfigError", 'configmap "nope" not found'),
        'CreateContainerConfigError: configmap "nope" not found'),
    "the volume of a Secret is missing": (
        waiting("ContainerCreating"), "ContainersNotReady: containers with unready status: [web]"),
    "there is too little memory": (pod("foo-1", container(terminated=ended("OOMKilled", 137))), "OOMKilled: exit code 137"),
    "there is too little memory, later": (
        waiting("CrashLoopBackOff", "back-off 10s", last=ended("OOMKilled", 137)),
        "CrashLoopBackOff: back-off 10s; it last ended with OOMKilled, exit code 137"),
    "the liveness probe fails": (
        waiting("CrashLoopBackOff", "back-off 10s", last=ended("Completed", 0)),
        "CrashLoopBackOff: back-off 10s; it last ended with Completed, exit code 0"),
    "the readiness probe fails": (
        pod("foo-1", container(running={})), "ContainersNotReady: containers with unready status: [web]"),
    "no node has enough": (
        unschedulable("0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate."),
        "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate"),
    "no node fits": (
        unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        "Unschedulable: 0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector"),
    "the container has done its work": (
        pod("foo-1", container(terminated=ended("Completed", 0)),
            conditions=[{"type": "Ready", "status": "False", "reason": "PodCompleted"}]), "PodCompleted"),
    "an init container fails": (
        pod("foo-1", container(waiting={"reason": "PodInitializing"}),
            initContainerStatuses=[container(waiting={"reason": "CrashLoopBackOff", "message": "back-off 10s"},
                                             last=ended("Error", 1))]),
        "CrashLoopBackOff: back-off 10s; it last ended with Error, exit code 1"),
    "a readiness gate is not fulfilled": (
        pod("foo-1", container(ready=True, running={}), conditions=[
            *READY[:1], {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": "x.io/gate is missing"}]),
        "ReadinessGatesNotReady: x.io/gate is missing"),
}


def why(*pods, replicas=2, current=2, available=0, failure=""):
    item = rc("foo", replicas, current=current, available=available)
    if failure:
        item["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": failure}]
    head, _, rest = why_not_available(Controller.from_api(item), pods).partition("; ")
    assert head == f"foo has {available} of {replicas} available"
    return rest


@pytest.mark.parametrize("pod, expected", REASONS.values(), ids=REASONS)
def test_the_reason_is_told_when(pod, expected):
    assert why(pod) == f"pod foo-1: {expected}"


@pytest.mark.parametrize("pod", [
    pod("foo-1", container(ready=True, running={}), conditions=READY),
    pod("foo-1", container(ready=True, running={}, last=ended("Error", 3)), conditions=READY),
    pod(conditions=[]),
    {"metadata": {"name": "foo-1"}},
], ids=["ready", "ready after a restart", "just created", "without a status"])
def test_a_pod_with_nothing_to_tell_is_not_mentioned(pod):
    assert why(pod) == ""


def named(name, reason):
    return {**waiting(reason, f"message of {name}"), "metadata": {"name": name}}


def test_each_reason_is_told_once_with_a_pod_as_example_and_a_count():
    pods = [named("foo-3", "ErrImagePull"), named("foo-2", "CrashLoopBackOff"), named("foo-1", "ErrImagePull"),
            named("foo-4", "ErrImagePull")]

    assert why(*pods) == ("pod foo-1: ErrImagePull: message of foo-1 (and 2 more); "
                          "pod foo-2: CrashLoopBackOff: message of foo-2")


def test_a_quota_is_told_before_what_pods_say():
    assert why(waiting("ErrImagePull"), failure='pods "foo-" is forbidden: exceeded quota') == (
        'pods cannot be created: pods "foo-" is forbidden: exceeded quota; pod foo-1: ErrImagePull')


@pytest.mark.parametrize("current, pods, expected", [
    (0, [], "2 pods have not been created"),
    (2, [], ""),
    (1, [waiting("ErrImagePull")], "pod foo-1: ErrImagePull"),
], ids=["none made", "all made", "a pod tells more"])
def test_pods_that_are_not_there_are_counted_when_nothing_else_is_known(current, pods, expected):
    assert why(*pods, current=current) == expected


def test_a_message_of_many_lines_becomes_one_of_bounded_length():
    told = why(waiting("ErrImagePull", "line\n   after line " * 100))

    assert "\n" not in told and "line after line" in told
    assert len(told) < 550

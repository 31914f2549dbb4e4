# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Diagnose failures of pods, in successive observations.

Reasons and messages come from Kubernetes 1.36.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import re
import typing as t

import next_commands
import pytest
from builders import rc, rs, template
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import (
    diagnosis,
    failure_reasons,
    symptoms,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.explain.diagnosis import (
    Cause,
    causes,
    creation_causes,
    outdated_replica_set_causes,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import RolloutStatus
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.handover import CLOSED
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta, shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import (
    StatefulSet,
)

Json = dict[str, t.Any]


def conditions(ready="False", **ready_fields):
    """Return the conditions of a scheduled pod, with a reason if it is unready."""
    unready = ({} if ready == "True"
               else {"reason": "ContainersNotReady",
                     "message": "containers with unready status: [web]"})
    return [{"type": "PodReadyToStartContainers", "status": "True"},
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": ready, **unready, **ready_fields},
            {"type": "ContainersReady", "status": ready, **unready},
            {"type": "PodScheduled", "status": "True"}]


def container(restarts=0, is_ready=False, last=None, **state):
    """Return a container status.

    state: one of waiting, running and terminated, with its fields. last: the last termination.
    """
    return {"name": "web", "ready": is_ready, "restartCount": restarts, "state": state,
            "lastState": {"terminated": last} if last else {}}


def pod(*containers, init=None, name="foo-1", container_spec=None, metadata=None, **status):
    """Return a pod of foo on the node real-1.

    containers: statuses. init: the status of the init container `setup`. container_spec: more
    fields of container `web`.
    """
    init_statuses = {"initContainerStatuses": [{**init, "name": "setup"}]} if init else {}
    return {"metadata": {"name": name, "namespace": "shop", "uid": f"uid of {name}",
                         **(metadata or {})},
            "spec": {"nodeName": "real-1",
                     "containers": [{"name": "web", **(container_spec or {})}]},
            "status": {"phase": "Pending", "conditions": conditions(),
                       "containerStatuses": list(containers), **init_statuses,
                       **status}}


def waiting_container(reason, message="", restarts=0, last=None):
    return container(restarts, last=last,
                     waiting={"reason": reason, **({"message": message} if message else {})})


def terminated_container(code, reason="Error", restarts=0, **more):
    return container(restarts, terminated={"exitCode": code, "reason": reason, **more})


def crash_loop(code, reason="Error", restarts=1, **more):
    """Return a pod for each state in which a crash loop can be observed."""
    last_state = {"exitCode": code, "reason": reason, **more}
    return [pod(waiting_container("CrashLoopBackOff",
                                  "back-off 10s restarting failed container=web "
                                  "pod=foo-1_shop(1-2-3)",
                                  restarts, last_state)),
            pod(container(restarts + 1, last=last_state, running={})),
            pod(terminated_container(code, reason, restarts + 1, **more))]


def event(reason, message, count=1, pod_name="foo-1", field="spec.containers{web}", **more):
    involved_object = {"kind": "Pod", "uid": f"uid of {pod_name}", "name": pod_name,
                       **({"fieldPath": field} if field else {})}
    return {"type": "Warning", "reason": reason, "message": message, "count": count,
            "involvedObject": involved_object, **more}


def unschedulable(message, reason="Unschedulable"):
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    item = pod(conditions=[condition], containerStatuses=None,
               container_spec={"resources": {"requests": {"cpu": "2", "memory": "8Gi"}}})
    item["spec"] |= {"nodeSelector": {"disk": "fast"},
                     "schedulingGates": [{"name": "example.com/approval"}],
                     "volumes": [{"name": "tmp"},
                                 {"name": "data", "persistentVolumeClaim": {"claimName": "db"}}]}
    return item


def diagnose(*pods, events=(), failure="", current=2, waits_for_termination=False):
    item = rc("foo", 2, current=current, available=0)
    if failure:
        item["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True",
                                         "reason": "FailedCreate", "message": failure}]
    request = Request("foo", namespace="shop", waits_for_termination=waits_for_termination)
    return causes(request, Controller.from_api(item), pods, events)


@dataclasses.dataclass(frozen=True)
class Case:
    """Successive observations of a failure, and its expected causes."""

    kind: str
    #: The sentence for the last observation.
    sentence: str
    suggestion: str
    #: Per observation: (pod, its Events), or the message of the condition ReplicaFailure.
    observations: t.Sequence[t.Any]
    #: A letter per observation: F if the cause is fatal, else N.
    fatal: str
    #: The log for the last observation: (container, True for its previous run).
    log: tuple[str, bool] = ("", False)
    waits_for_termination: bool = False


WEB = "pod foo-1, container web: "
UNREACHABLE_REGISTRY = ('failed to pull and unpack image "localhost/none:v9": failed to resolve '
                        'reference '
                        '"localhost/none:v9": '
                        'failed to do request: Head "http://localhost/v2/none/manifests/v9": dial '
                        'tcp '
                        '127.0.0.1:80: connect: connection refused')
UNREACHABLE_CAUSE = UNREACHABLE_REGISTRY.partition(": ")[2]
PULL_EVENTS = [event("Failed", f'Failed to pull image "localhost/none:v9": {UNREACHABLE_REGISTRY}'),
               event("Failed", "Error: ErrImagePull"), event("Failed", "Error: ImagePullBackOff")]
CHECK_REGISTRY = ("check the registry name in the image, then DNS, proxy and certificates on node "
                  "real-1: it cannot reach the registry")
NOT_FOUND = ('failed to pull and unpack image "shop/web:v9": failed to resolve reference '
             '"shop/web:v9": shop/web:v9: not found')
DENIED = ('failed to pull and unpack image "shop/web:v9": failed to resolve reference '
          '"shop/web:v9": pull access denied, '
          'repository does not exist or may require authorization: server message: '
          'insufficient_scope: authorization failed')
NEVER_PULL = 'Container image "localhost/none:v9" is not present with pull policy of Never'
BAD_NAME = ('Failed to apply default image tag "Bad//Name": couldn\'t parse image name '
            '"Bad//Name": invalid reference format')
RUNC_ERROR = (
    'failed to create containerd task: failed to create shim task: OCI runtime create failed: '
    'runc create failed: unable to start container process: exec: "/nope": stat /nope: no such '
    'file or directory: unknown')
NO_RUNTIME = ('OCI runtime create failed: exec: "nvidia-container-runtime": executable file not '
              'found in $PATH')
NO_MOUNT_PROGRAM = ('MountVolume.SetUp failed for volume "data" : mount failed: exec: '
                    '"mount.glusterfs": executable file not found in $PATH')
MOUNT_ERROR = 'MountVolume.SetUp failed for volume "v" : secret "nope" not found'
QUOTA = "small, requested: pods=1, used: pods=4, limited: pods=4"
LIVENESS = "Liveness probe failed: HTTP probe failed with statuscode: 503"
STARTUP = "Startup probe failed: dial tcp 10.124.1.7:8080: connect: connection refused"
READINESS = "Readiness probe failed: HTTP probe failed with statuscode: 503"
NO_VICTIMS = "No preemption victims found for incoming pod."
CREATING = pod(waiting_container("ContainerCreating"))
MOUNTING = pod(waiting_container("ContainerCreating"),
               conditions=[{"type": "PodReadyToStartContainers", "status": "False"}])
PROBE = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10, "failureThreshold": 3}
PROBE_TEXT = "GET :8080/healthz, periodSeconds 10, failureThreshold 3"
LIVENESS_SPEC = {"livenessProbe": PROBE}
REMOVE_OLD_PODS = "or remove old pods first: max_surge=0 max_unavailable=1"
LOGS = "kubectl -n shop logs foo-1 -c web"

CASES = {
    "registry unreachable": Case(
        "image", f"{WEB}ImagePullBackOff: {UNREACHABLE_CAUSE}", CHECK_REGISTRY,
        [(CREATING, PULL_EVENTS[:2]),
         (pod(waiting_container("ErrImagePull", UNREACHABLE_REGISTRY)), PULL_EVENTS),
         (pod(waiting_container("ErrImagePull")), PULL_EVENTS),
         (pod(waiting_container("ImagePullBackOff", 'Back-off pulling image "localhost/none:v9"')),
          PULL_EVENTS),
         (pod(waiting_container("ImagePullBackOff",
                                f'Back-off pulling image "localhost/none:v9": ErrImagePull: '
                                f'{UNREACHABLE_REGISTRY}')), [])],
        "NFFFF"),
    "image not found": Case(
        "image",
        f'{WEB}ErrImagePull: failed to resolve reference "shop/web:v9": shop/web:v9: not found',
        "push that image, or correct its name or tag: the registry does not have it",
        [(pod(waiting_container("ErrImagePull", NOT_FOUND)), [])], "F"),
    "registry denies the pull": Case(
        "image", f"{WEB}ErrImagePull: {DENIED.partition(': ')[2]}",
        "check image and tag; if they are right, the registry needs imagePullSecrets, in the "
        "template or in the ServiceAccount of the pod",
        [(pod(waiting_container("ErrImagePull", DENIED)), [])], "F"),
    "image absent, pull policy Never": Case(
        "image", f"{WEB}ErrImageNeverPull: {NEVER_PULL}",
        "load the image onto the nodes, or set imagePullPolicy: IfNotPresent in the template",
        [(CREATING,
          [event("ErrImageNeverPull", NEVER_PULL), event("Failed", "Error: ErrImageNeverPull")]),
         (pod(waiting_container("ErrImageNeverPull", NEVER_PULL)), [])], "NF"),
    "invalid image name": Case(
        "image-name", f"{WEB}InvalidImageName: {BAD_NAME}",
        "correct the image name: lower case, one tag or digest, no empty part",
        [(CREATING, [event("InspectFailed", BAD_NAME), event("Failed", "Error: InvalidImageName")]),
         (pod(waiting_container("InvalidImageName", BAD_NAME)), [])], "NF"),
    "container in a crash loop": Case(
        "crash", f"{WEB}CrashLoopBackOff: exit code 3, restarted once",
        f"see its log:\n{LOGS} --previous",
        [(pod(terminated_container(3)), []),
         (pod(container(1, running={}, last={"exitCode": 3, "reason": "Error"})), []),
         *((item, [event("BackOff", "Back-off restarting failed container web in pod foo-1")])
           for item in crash_loop(3)[::-1])],
        "NNFFF", ("web", True)),
    "crash with a termination message": Case(
        "crash", f"{WEB}Error: exit code 1, restarted 4 times: no database at db:5432",
        f"see its log:\n{LOGS}",
        [(item, []) for item in crash_loop(1, restarts=3, message="no database at db:5432\n")],
        "FFF",
        ("web", False)),
    "segmentation fault": Case(
        "crash", f"{WEB}CrashLoopBackOff: exit code 139 (SIGSEGV), restarted 2 times",
        "check whether the image was built for another architecture, a common reason; the "
        f"container's log:\n{LOGS} --previous",
        [(crash_loop(139, restarts=2)[0], [])], "F", ("web", True)),
    "exit code 0": Case(
        "crash", f"{WEB}CrashLoopBackOff: exit code 0, restarted 2 times",
        "run the container's process in the foreground, because it exits without an error: check "
        f"command and args; its log:\n{LOGS} --previous",
        [(pod(terminated_container(0, "Completed")), []),
         (crash_loop(0, "Completed", restarts=2)[0], [])], "NF",
        ("web", True)),
    "out of memory": Case(
        "memory", f"{WEB}OOMKilled: exit code 137 (SIGKILL), restarted 2 times",
        "raise resources.limits.memory of container web (now 16Mi), or find out what uses that "
        "much",
        [(pod(terminated_container(137, "OOMKilled"),
              container_spec={"resources": {"limits": {"memory": "16Mi"}}}), []),
         *(({**item,
             "spec": {"containers": [{"name": "web",
                                      "resources": {"limits": {"memory": "16Mi"}}}]}}, [])
           for item in crash_loop(137, "OOMKilled"))], "NFFF", ("web", False)),
    "command not found": Case(
        "command", f'{WEB}StartError: exec: "/nope": stat /nope: no such file or directory',
        "compare command and args in the template with what is in the image",
        [(CREATING, [event("Failed", f"Error: {RUNC_ERROR}")]),
         (pod(waiting_container("RunContainerError", RUNC_ERROR)), []),
         *((item, []) for item in crash_loop(128, "StartError", message=RUNC_ERROR))], "NFFFF"),
    "init container in a crash loop": Case(
        "init-crash",
        "pod foo-1, init container setup: CrashLoopBackOff: exit code 1, restarted once",
        "see its log:\nkubectl -n shop logs foo-1 -c setup --previous",
        [(pod(waiting_container("PodInitializing"), init=item["status"]["containerStatuses"][0]),
          [])
         for item in crash_loop(1)[::-1]],
        "FFF", ("setup", True)),
    "image of an init container not found": Case(
        "init-image",
        f"pod foo-1, init container setup: ErrImagePull: {NOT_FOUND.partition(': ')[2]}",
        "push that image, or correct its name or tag: the registry does not have it",
        [(pod(waiting_container("PodInitializing"), init=waiting_container("PodInitializing")),
          [event("Failed", f'Failed to pull image "shop/web:v9": {NOT_FOUND}',
                 field="spec.initContainers{setup}")]),
         (pod(waiting_container("PodInitializing"),
              init=waiting_container("ErrImagePull", NOT_FOUND)), [])], "NF"),
    "missing ConfigMap": Case(
        "configuration", f'{WEB}CreateContainerConfigError: configmap "nope" not found',
        "create the configmap nope, or correct its name in the template:\nkubectl -n shop get "
        "configmap",
        [(CREATING, [event("Failed", 'Error: configmap "nope" not found')]),
         (pod(waiting_container("CreateContainerConfigError", 'configmap "nope" not found')), [])],
        "NF"),
    "missing key of a Secret": Case(
        "configuration",
        f"{WEB}CreateContainerConfigError: couldn't find key password in Secret shop/db",
        "add the key password to the Secret db, or correct the key in the template",
        [(pod(waiting_container("CreateContainerConfigError",
                                "couldn't find key password in Secret shop/db")),
          [])], "F"),
    "missing Secret of a volume": Case(
        "configuration", f"pod foo-1: FailedMount: {MOUNT_ERROR}",
        "create the secret nope, or correct its name in the template:\nkubectl -n shop get secret",
        [(MOUNTING, [event("FailedMount", MOUNT_ERROR, count, field="")]) for count in (1, 5)],
        "FF"),
    "volume attached to another node": Case(
        "volume",
        'pod foo-1: FailedAttachVolume: Multi-Attach error for volume "pvc-1" Volume is already '
        'used by pod(s) foo-0',
        "remove the old pod first, because only one node at a time can use the volume: max_surge=0 "
        "max_unavailable=1",
        [(CREATING,
          [event("FailedAttachVolume",
                 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) foo-0',
                 field="")])], "N"),
    "failed mount of a volume": Case(
        "volume",
        'pod foo-1: FailedMount: MountVolume.SetUp failed for volume "data" : mount failed: exit '
        'status 32',
        "check whether the volume exists and node real-1 can reach it:\nkubectl -n shop describe "
        "pod foo-1",
        [(CREATING,
          [event("FailedMount",
                 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32',
                 field="")])], "N"),
    "failed pod sandbox": Case(
        "sandbox",
        'pod foo-1: FailedCreatePodSandBox: Failed to create pod sandbox: plugin type="bridge" '
        'failed',
        "see why the network or the container runtime of node real-1 fails:\nkubectl describe node "
        "real-1",
        [(CREATING,
          [event("FailedCreatePodSandBox",
                 'Failed to create pod sandbox: plugin type="bridge" failed', 3, field="")])],
        "N"),
    "missing program of the container runtime": Case(
        "sandbox", f"pod foo-1: FailedCreatePodSandBox: Failed to create pod sandbox: {NO_RUNTIME}",
        "see why the network or the container runtime of node real-1 fails:\nkubectl describe node "
        "real-1",
        [(CREATING, [event("FailedCreatePodSandBox", f"Failed to create pod sandbox: {NO_RUNTIME}",
                           3, field="")])], "N"),
    "missing mount program of the node": Case(
        "volume", f"pod foo-1: FailedMount: {NO_MOUNT_PROGRAM}",
        "check whether the volume exists and node real-1 can reach it:\nkubectl -n shop describe "
        "pod foo-1",
        [(MOUNTING, [event("FailedMount", NO_MOUNT_PROGRAM, 3, field="")])], "N"),
    "readiness probe fails": Case(
        "readiness", f"{WEB}Unhealthy: {READINESS}",
        f"see how the container responds to its readinessProbe ({PROBE_TEXT}):\n{LOGS}",
        [(pod(container(running={}), container_spec={"readinessProbe": PROBE}),
          [event("Unhealthy", READINESS, count)])
         for count in (2, 25)], "NN", ("web", False)),
    "readiness probe fails with several messages": Case(
        "readiness", f"{WEB}Unhealthy: {READINESS}",
        f"see how the container responds to its readinessProbe ({PROBE_TEXT}):\n{LOGS}",
        [(pod(container(running={}), container_spec={"readinessProbe": PROBE}), [
            event("Unhealthy", "Readiness probe errored and resulted in unknown state: timeout"),
            event("Unhealthy", f"(combined from similar events): {READINESS}")])],
        "N", ("web", False)),
    "liveness probe restarts the container": Case(
        "liveness", f"{WEB}Unhealthy: {LIVENESS}; restarted once",
        f"see how the container responds to its livenessProbe ({PROBE_TEXT}); if it only starts "
        "slowly, "
        "give it a startupProbe:\n"
        f"{LOGS} --previous",
        [(pod(container(running={}), container_spec=LIVENESS_SPEC),
          [event("Unhealthy", LIVENESS, 2)]),
         *((pod(container(restarts, running={}, last={"exitCode": code}),
                container_spec=LIVENESS_SPEC),
            [event("Unhealthy", LIVENESS, 3 * restarts)])
           for restarts, code in ((1, 0), (2, 137))),
         ({**crash_loop(0, "Completed")[0],
           "spec": {"containers": [{"name": "web", **LIVENESS_SPEC}]}},
          [event("Unhealthy", LIVENESS, 3)])], "NNFF", ("web", True)),
    "startup probe restarts the container": Case(
        "startup", f"{WEB}Unhealthy: {STARTUP}; restarted 3 times",
        "see how the container responds to its startupProbe (TCP :8080, failureThreshold 3), or "
        "give it more time with "
        f"failureThreshold:\n{LOGS} --previous",
        [(pod(container(1, running={}, last={"exitCode": 143, "reason": "Error"})),
          [event("Unhealthy", STARTUP, 3)]),
         ({**crash_loop(143, restarts=3)[0], "spec": {"containers": [{
             "name": "web",
             "startupProbe": {"tcpSocket": {"port": 8080}, "failureThreshold": 3}}]}},
          [event("Unhealthy", STARTUP, 9)])], "NF", ("web", True)),
    "insufficient cpu": Case(
        "unschedulable", "pod foo-1: Unschedulable: 0/1 nodes are available: 1 Insufficient cpu",
        f"add nodes, or lower resources.requests.cpu (web requests 2), {REMOVE_OLD_PODS}",
        [(unschedulable("0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, "
                        "preemption: 0/1 nodes are "
                        "available: 1 Preemption is not helpful for scheduling."), [])], "N"),
    "insufficient memory": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 "
        "Insufficient "
        "memory",
        f"add nodes, or lower resources.requests.memory (web requests 8Gi), {REMOVE_OLD_PODS}",
        [(unschedulable("0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 "
                        "Insufficient memory. preemption: 0/4 "
                        f"nodes are available: 4 {NO_VICTIMS}"), [])], "N"),
    "insufficient extended resources, or too many pods": Case(
        "unschedulable", "pod foo-1: Unschedulable: 0/4 nodes are available: 4 Too many pods",
        f"add nodes, {REMOVE_OLD_PODS}",
        [(unschedulable(f"0/4 nodes are available: 4 {what}."), [])
         for what in ("Insufficient nvidia.com/gpu", "Too many pods")],
        "NN"),
    "node selector without a node": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/1 nodes are available: 1 node(s) didn't match Pod's node "
        "affinity/selector",
        "correct nodeSelector or nodeAffinity (disk=fast), which match no node, or label a "
        "node:\nkubectl get nodes --show-labels",
        [(unschedulable("0/2 nodes are available: 1 node(s) didn't match Pod's node "
                        "affinity/selector, 1 node(s) had untolerated "
                        "taint {node-role.kubernetes.io/control-plane: }."), []),
         (unschedulable("0/1 nodes are available: 1 node(s) didn't match Pod's node "
                        "affinity/selector."), [])], "NN"),
    "no node for the affinity or topology spread": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/4 nodes are available: 4 node(s) didn't match pod "
        "anti-affinity rules",
        "relax podAffinity, podAntiAffinity or topologySpreadConstraints, which rule out every "
        "node; or add nodes; "
        f"{REMOVE_OLD_PODS}",
        [(unschedulable("0/4 nodes are available: 4 node(s) didn't match pod topology spread "
                        "constraints."), []),
         (unschedulable("0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."),
          [])], "NN"),
    "untolerated taint": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/1 nodes are available: 1 node(s) had untolerated taint {type: "
        "fake}",
        "tolerate the taint in the template, or remove it from nodes:\nkubectl describe nodes | "
        "grep -E '^(Name|Taints):'",
        [(unschedulable("0/1 nodes are available: 1 node(s) had untolerated taint {type: fake}."),
          [])], "N"),
    "node selector and untolerated taint": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/5 nodes are available: 1 node(s) had untolerated taint(s), 4 "
        "node(s) didn't "
        "match Pod's node affinity/selector",
        "check whether the nodes with the labels that the template requires (disk=fast) have a "
        "taint that the template does not tolerate:\n"
        "kubectl describe nodes | grep -E '^(Name|Taints):'\nif no node has these labels:\nkubectl "
        "get nodes --show-labels",
        [(unschedulable("0/5 nodes are available: 4 node(s) didn't match Pod's node "
                        "affinity/selector, 1 node(s) had untolerated "
                        "taint {dedicated: gpu}."), []),
         (unschedulable("0/5 nodes are available: 1 node(s) had untolerated taint(s), 4 node(s) "
                        "didn't match Pod's node "
                        "affinity/selector. preemption: 0/5 nodes are available: 5 Preemption is "
                        "not helpful for scheduling."),
          [])], "NN"),
    "all nodes cordoned": Case(
        "unschedulable",
        "pod foo-1: Unschedulable: 0/4 nodes are available: 4 node(s) were unschedulable",
        "uncordon a node:\nkubectl get nodes\nkubectl uncordon NODE",
        [(unschedulable("0/4 nodes are available: 4 node(s) were unschedulable."), [])], "N"),
    "scheduling gate": Case(
        "unschedulable",
        "pod foo-1: SchedulingGated: Scheduling is blocked due to non-empty scheduling gates",
        "wait until the owners of the pod's schedulingGates remove them: example.com/approval",
        [(unschedulable("Scheduling is blocked due to non-empty scheduling gates",
                        "SchedulingGated"), [])], "N"),
    "unbound volume claim": Case(
        "claim",
        "pod foo-1: Unschedulable: 0/4 nodes are available: pod has unbound immediate "
        "PersistentVolumeClaims",
        "see why the claim is not bound (storage class, provisioner, size):\nkubectl -n shop "
        "describe pvc db",
        [(unschedulable("0/4 nodes are available: pod has unbound immediate "
                        "PersistentVolumeClaims. not found"), [])], "N"),
    "missing volume claim": Case(
        "claim",
        'pod foo-1: Unschedulable: 0/4 nodes are available: persistentvolumeclaim "nope" not found',
        "create the PersistentVolumeClaim nope or correct its name in the template:\nkubectl -n "
        "shop get pvc",
        [(unschedulable('0/4 nodes are available: persistentvolumeclaim "nope" not found. not '
                        'found'), [])], "F"),
    "quota exceeded": Case(
        "quota",
        'ReplicationController foo: FailedCreate: pods "foo-" is forbidden: exceeded quota: small, '
        'requested: pods=1, '
        "used: pods=4, limited: pods=4",
        "raise the quota, or remove old pods first: max_surge=0 max_unavailable=1\nkubectl -n shop "
        "edit quota small",
        ['pods "foo-" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, '
         'limited: pods=4'], "N"),
    "quota requires limits": Case(
        "quota",
        'ReplicationController foo: FailedCreate: pods "foo-x" is forbidden: failed quota: cpu: '
        'must specify limits.cpu '
        "for: web",
        "add to the template the resources that the quota cpu requires: limits.cpu for: web",
        ['pods "foo-x" is forbidden: failed quota: cpu: must specify limits.cpu for: web'], "F"),
    "LimitRange exceeded": Case(
        "limit-range",
        'ReplicationController foo: FailedCreate: pods "foo-x" is forbidden: maximum cpu usage per '
        'Container is 1, '
        "but limit is 2",
        "change resources in the template, or the LimitRange:\nkubectl -n shop describe limitrange",
        ['pods "foo-x" is forbidden: maximum cpu usage per Container is 1, but limit is 2'], "F"),
    "missing ServiceAccount": Case(
        "service-account",
        'ReplicationController foo: FailedCreate: pods "foo-" is forbidden: error looking up '
        'service account '
        'shop/nope: serviceaccount "nope" not found',
        "correct serviceAccountName in the template, or create the ServiceAccount:\nkubectl -n "
        "shop create serviceaccount nope",
        ['pods "foo-" is forbidden: error looking up service account shop/nope: serviceaccount '
         '"nope" not found'], "F"),
    "ValidatingAdmissionPolicy denies the pod": Case(
        "admission",
        "ReplicationController foo: FailedCreate: pods \"foo-x\" is forbidden: "
        "ValidatingAdmissionPolicy 'no-latest' "
        "with binding 'no-latest' denied request: no :latest",
        "change the template as the message says; the rule:\nkubectl get validatingadmissionpolicy "
        "no-latest -o yaml",
        ["pods \"foo-x\" is forbidden: ValidatingAdmissionPolicy 'no-latest' with binding "
         "'no-latest' denied request: no :latest"],
        "F"),
    "webhook denies the pod": Case(
        "admission",
        'ReplicationController foo: FailedCreate: admission webhook "w.example.com" denied the '
        'request: no team label',
        "change the template as the message says, or ask the owner of the webhook w.example.com",
        ['admission webhook "w.example.com" denied the request: no team label'], "F"),
    "webhook unreachable": Case(
        "webhook",
        'ReplicationController foo: FailedCreate: Internal error occurred: failed calling webhook '
        '"w.example.com": '
        "failed to call webhook: connection refused",
        "check that the service behind the webhook w.example.com is running: it does not respond",
        ['Internal error occurred: failed calling webhook "w.example.com": failed to call webhook: '
         'connection refused'], "N"),
    "missing PriorityClass": Case(
        "admission",
        'ReplicationController foo: FailedCreate: pods "foo-" is forbidden: no PriorityClass with '
        'name nope was found',
        "create the PriorityClass nope, or correct priorityClassName in the template:\nkubectl get "
        "priorityclass",
        ['pods "foo-" is forbidden: no PriorityClass with name nope was found'], "F"),
    "template in conflict with the default of a LimitRange": Case(
        "invalid",
        'ReplicationController foo: FailedCreate: Pod "foo-x" is invalid: '
        'spec.containers[0].resources.requests: '
        'Invalid value: "2": must be less than or equal to cpu limit of 100m',
        "correct the template as the message says",
        ['Pod "foo-x" is invalid: spec.containers[0].resources.requests: Invalid value: "2": must '
         'be less than or equal to cpu '
         'limit of 100m'], "F"),
    "PodSecurity violation": Case(
        "admission",
        'ReplicationController foo: FailedCreate: pods "foo-x" is forbidden: violates PodSecurity '
        '"restricted:latest": runAsNonRoot != true',
        "correct securityContext in the template as the message says, or have the namespace's "
        "PodSecurity level changed",
        ['pods "foo-x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != '
         'true'], "F"),
    "node lost": Case(
        "node", "pod foo-1: NodeNotReady: node real-1 has stopped responding",
        "kubectl describe node real-1\nunless node real-1 recovers, its pods are replaced 5 "
        "minutes after it was lost",
        [(pod(container(is_ready=True, running={}),
              metadata={"deletionTimestamp": "2026-11-21T10:00:00Z"}, reason="NodeLost",
              message="Node real-1 which was running pod foo-1 is unresponsive"), []),
         (pod(container(is_ready=True, running={}),
              conditions=[{"type": "Ready", "status": "False"}]),
          [event("NodeNotReady", "Node is not ready", field="")])], "NN"),
    "eviction by the node": Case(
        "evicted",
        "pod foo-1: Evicted: The node was low on resource: memory. Threshold quantity: 100Mi, "
        "available: 50Mi",
        "wait: it will be replaced; if this keeps happening, raise its requests to what it uses, "
        "or find out what the node lacks:\n"
        "kubectl describe node real-1",
        [(pod(container(running={}), conditions=[*conditions(), {
            "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet",
            "message": "The node was low"}]), []),
         (pod(terminated_container(137), phase="Failed", reason="Evicted",
              message="The node was low on resource: memory. Threshold quantity: 100Mi, available: "
                      "50Mi. "), [])], "NN"),
    "eviction by a client": Case(
        "evicted", "pod foo-1: EvictionByEvictionAPI: Eviction API: evicting",
        "wait: it will be replaced; if this keeps happening, find out which client evicts it: a "
        "drain of node real-1, a descheduler or a vertical autoscaler:\n"
        "kubectl get node real-1",
        [(pod(container(running={}), metadata={"deletionTimestamp": "2026-11-21T10:00:00Z"},
              conditions=[*conditions(), {
                  "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                  "message": "Eviction API: evicting"}]), [])], "N"),
    "pod rejected by the node": Case(
        "refused-by-node",
        "pod foo-1: OutOfcpu: Pod was rejected: Node didn't have enough resource: cpu",
        "wait: it will be replaced; if this keeps happening, see why node real-1 rejects "
        "it:\nkubectl describe node real-1",
        [(pod(phase="Failed", reason="OutOfcpu",
              message="Pod was rejected: Node didn't have enough resource: cpu"), [])], "N"),
    "finalizer blocks the deletion": Case(
        "finalizer", "pod foo-1: Terminating: finalizers keep it: example.com/hold",
        "let the program that set the finalizer remove it; if that program no longer "
        "runs:\nkubectl -n shop patch "
        "pod foo-1 --type=merge -p "
        """'{"metadata": {"finalizers": null}}'""",
        [(pod(terminated_container(0, "Completed"),
              metadata={"deletionTimestamp": "2026-11-21T10:00:00Z",
                        "deletionGracePeriodSeconds": 0,
                        "finalizers": ["example.com/hold"]}), [])], "N"),
    "node cannot stop the containers": Case(
        "terminating", "pod foo-1: FailedKillPod: error killing pod: failed to stop container",
        "see why node real-1 cannot stop its containers:\nkubectl describe node real-1",
        [(pod(container(running={}),
              metadata={"deletionTimestamp": "2026-11-21T10:00:00Z",
                        "deletionGracePeriodSeconds": 30}),
          [event("FailedKillPod", "error killing pod: failed to stop container", 4, field="")])],
        "N"),
    "task waits for terminating pods": Case(
        "grace", "pod foo-1: Terminating: its grace period of 30 s ends at 2026-11-21T10:00:00Z",
        "see what keeps pod foo-1 from terminating:\nkubectl -n shop describe pod foo-1\n"
        "or create new pods without waiting: pod_replacement_policy=TerminationStarted",
        [(pod(container(running={}),
              metadata={"deletionTimestamp": "2026-11-21T10:00:00Z",
                        "deletionGracePeriodSeconds": 30}),
          [])], "N", waits_for_termination=True),
    "readiness gate": Case(
        "readiness-gate",
        'pod foo-1: ReadinessGatesNotReady: corresponding condition of pod readiness gate '
        '"x.io/gate" does not '
        "exist",
        "see which controller has to set the pod's readiness gate, often a load "
        "balancer's:\nkubectl -n shop "
        "describe pod foo-1",
        [(pod(container(is_ready=True, running={}), conditions=[
            {"type": "ContainersReady", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady",
             "message": 'corresponding condition of pod readiness gate "x.io/gate" does not '
                        'exist.'}]), [])], "N"),
    "unknown reason of the kubelet": Case(
        "start", f"{WEB}CreateContainerError: context deadline exceeded",
        "kubectl -n shop describe pod foo-1",
        [(pod(waiting_container("CreateContainerError", "context deadline exceeded")), [])], "N"),
}

#: More failures: (pod, or message of ReplicaFailure; kind of the cause; suggestion).
OTHER_MESSAGES = {
    "image without the platform of the node": (
        pod(waiting_container("ErrImagePull", "no match for platform in manifest: not found")),
        "image",
        "build the image for the node's architecture as well"),
    "rate limit of the registry": (
        pod(waiting_container("ErrImagePull",
                              "toomanyrequests: You have reached your pull rate limit")),
        "image",
        "wait, or pull with an account or from a mirror: the registry limits the rate of pulls"),
    "unknown pull error": (
        pod(waiting_container("ErrImagePull", "short read")), "image",
        "check image and tag, and that node real-1 can reach the registry"),
    "missing key of an environment variable": (
        pod(waiting_container("CreateContainerConfigError",
                              "secret references non-existent secret key: x")),
        "configuration",
        "add that key, or correct the key in the template"),
    "image that runs as root": (
        pod(waiting_container("CreateContainerConfigError",
                              "container has runAsNonRoot and image will run as root")),
        "configuration",
        "set securityContext.runAsUser in the template, or build the image with a USER other than "
        "root"),
    "unknown configuration error": (
        pod(waiting_container("CreateContainerConfigError",
                              "host IP unknown; known addresses: []")),
        "configuration",
        "correct the template as the message says"),
    "command not found on CRI-O": (
        pod(waiting_container("CreateContainerError",
                              'runc create failed: exec: "nope": executable file not found in '
                              '$PATH')),
        "command",
        "compare command and args in the template with what is in the image"),
    "mount rejected by runc": (
        pod(waiting_container("RunContainerError",
                              'runc create failed: error mounting "/x" to rootfs: '
                              'not a directory')),
        "command",
        "correct what the message names: command, volumeMounts or securityContext in the template"),
    "mount rejected by runc before a restart": (
        crash_loop(128, "StartError",
                   message='runc create failed: error mounting "/x" to rootfs: not a directory')[0],
        "command",
        "correct what the message names: command, volumeMounts or securityContext in the template"),
    "failing postStart hook": (
        pod(waiting_container("PostStartHookError", "Exec lifecycle hook failed")), "crash",
        "look at lifecycle.postStart in the template"),
    "shell exit code 127": (
        crash_loop(127)[0], "crash",
        "compare command and args with what is in the image: a shell could not find or execute a "
        "command; its log:\n"
        f"{LOGS} --previous"),
    "exit code 137 without OOMKilled": (
        crash_loop(137)[0], "crash",
        "check whether the container was killed after a failed probe, or because the node lacked "
        "memory:\nkubectl describe node real-1"),
    "out of memory without a limit": (
        crash_loop(137, "OOMKilled")[0], "memory",
        "raise resources.limits.memory of container web (none is set: the node itself ran out), or "
        "find out what uses that much"),
    "volume in another zone": (
        unschedulable("0/4 nodes are available: 4 node(s) didn't match PersistentVolume's node "
                      "affinity."), "unschedulable",
        "check in which zone or on which node the volume is: no node there can run the "
        "pod:\nkubectl -n shop describe pvc db"),
    "host port in use": (
        unschedulable("0/4 nodes are available: 4 node(s) didn't have free ports for the requested "
                      "pod ports."), "unschedulable",
        "remove old pods first, because hostPort allows only one such pod per node: max_surge=0 "
        "max_unavailable=1"),
    "unknown reason of the scheduler": (
        unschedulable("no nodes available to schedule pods"), "unschedulable",
        "kubectl -n shop describe pod foo-1"),
    "required quota": (
        'pods "foo-x" is forbidden: insufficient quota to consume: pods', "quota",
        "kubectl -n shop describe quota"),
    "missing RuntimeClass": (
        'pods "foo-" is forbidden: pod rejected: RuntimeClass "nope" not found', "admission",
        "create the RuntimeClass nope, or correct runtimeClassName in the template:\nkubectl get "
        "runtimeclass"),
    "denial without a name": ("x denied the request", "admission",
                              "change the template as the message says"),
    "unknown rejection": (
        "namespaces is being terminated", "creation",
        "check which part of the template, or which rule of the namespace, the message is about"),
}
ROWS = [row
        for name in ("REPLICA_FAILURE", "UNSCHEDULABLE", "NOT_STARTED", "TERMINATED", "RUNNING",
                     "LOST_OR_GATED", "TERMINATING", "OUTDATED_REPLICA_SET")
        for row in getattr(failure_reasons, name)]


#: The suggestion about an old ReplicaSet that keeps the Deployment controller from replacing pods.
CORRECTION = ("correct the annotation, since the Deployment controller does not "
              "(kubernetes/kubernetes#102551):\nkubectl -n shop annotate rs foo-old "
              "deployment.kubernetes.io/desired-replicas=3 --overwrite")


def causes_of(observation, **options):
    return (diagnose(failure=observation) if isinstance(observation, str)
            else diagnose(observation[0], events=observation[1], **options))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_cause_of_each_observation(case):
    first_causes = [
        causes_of(observation, waits_for_termination=case.waits_for_termination)[0]
        for observation in case.observations]

    assert [cause.kind for cause in first_causes] == [case.kind] * len(case.observations)
    assert "".join("F" if cause.is_fatal else "N" for cause in first_causes) == case.fatal


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sentence_suggestion_and_log(case):
    (cause,) = causes_of(case.observations[-1], waits_for_termination=case.waits_for_termination)

    assert cause.sentence == case.sentence
    assert cause.suggestion == case.suggestion
    assert (cause.container, cause.is_restarted) == case.log
    assert cause.pod == ("" if isinstance(case.observations[-1], str) else "foo-1")


@pytest.mark.parametrize("is_observed", [True, False])
def test_outdated_replica_set_is_a_cause_once_the_deployment_is_observed(is_observed):
    deployment = Controller.from_api(rc(replicas=3, observed=is_observed))
    old_set = Controller.from_api(rs("foo-old", annotations={object_meta.SERVER_DESIRED: "5"}))
    status = RolloutStatus(deployment, outdated_replica_set=old_set)

    causes_ = outdated_replica_set_causes(Request("foo", namespace="shop"), status)

    expected = ("ReplicaSet foo-old: its annotation deployment.kubernetes.io/desired-replicas is 5 "
                "instead of 3, so the Deployment controller replaces no pods", CORRECTION, True)
    assert [(cause.sentence, cause.suggestion, cause.is_fatal) for cause in causes_] == (
        [expected] if is_observed else [])


def test_rollout_without_an_outdated_replica_set_has_no_cause():
    status = RolloutStatus(Controller.from_api(rc()))

    assert outdated_replica_set_causes(Request("foo"), status) == []


def test_refused_replica_set_is_a_cause():
    deployment = Controller.from_api(rc(replicas=3, observed=False))
    message = 'Failed to create new replica set "foo-9": exceeded quota: sets, used: 9'

    (cause,) = creation_causes(Request("foo", namespace="shop"),
                               RolloutStatus(deployment, creation_failure=message))

    assert cause.sentence == f"ReplicationController foo: ReplicaSetCreateError: {message}"
    assert cause.suggestion == "raise the quota\nkubectl -n shop edit quota sets"
    assert creation_causes(Request("foo"), RolloutStatus(deployment)) == []


@pytest.mark.parametrize("pod_or_message, kind, suggestion", OTHER_MESSAGES.values(),
                         ids=OTHER_MESSAGES)
def test_suggestion_for_another_message(pod_or_message, kind, suggestion):
    (cause,) = causes_of(pod_or_message if isinstance(pod_or_message, str)
                         else (pod_or_message, []))

    assert (cause.kind, cause.suggestion) == (kind, suggestion)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.pattern}")
def test_suggestion_starts_with_a_verb_or_a_command(row):
    """In the message, the suggestion follows "Next:"."""
    assert re.match(r"(add|build|change|check|compare|correct|create|let|load|look|push|raise|relax"
                    r"|remove|run|see|set|tolerate|uncordon|wait)\b|\{(kubectl|cluster)\} ",
                    row.suggestion)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.pattern}")
def test_each_row_has_an_example(row):
    # the texts between the placeholders
    parts = row.suggestion.format_map(collections.defaultdict(lambda: "\0")).split("\0")
    examples = [(case.kind.removeprefix("init-"), case.suggestion) for case in CASES.values()]
    examples += [("scaling", CORRECTION)]
    examples += [(kind, suggestion) for _observation, kind, suggestion in OTHER_MESSAGES.values()]

    assert any(kind == row.kind and re.fullmatch(".*".join(map(re.escape, parts)), suggestion)
               for kind, suggestion in examples)


def test_commands_have_the_connection_of_the_task():
    request = Request("foo", namespace="shop", connection={"context": "lyon", "kubeconfig": None})
    (cause,) = causes(request, Controller.from_api(rc("foo")), [crash_loop(137)[0]], [])

    assert cause.suggestion.endswith(
        "\nkubectl --context=lyon --kubeconfig=KUBECONFIG-OF-THE-TASK describe node real-1")


FORGED_NAME = "$(touch pwned)`id`; id {{ lookup('pipe', 'id') }}"


@pytest.mark.parametrize("observation", [
    f'pods "x" is forbidden: error looking up service account a: serviceaccount "{FORGED_NAME}" '
    'not '
    'found',
    f"pods is forbidden: exceeded quota: {FORGED_NAME}, requested: pods=1",
    f"ValidatingAdmissionPolicy '{FORGED_NAME.replace(chr(39), '')}' denied",
    (pod(terminated_container(137), container_spec={"name": FORGED_NAME}, name=FORGED_NAME), []),
    (pod(crash_loop(1)[0]["status"]["containerStatuses"][0] | {"name": FORGED_NAME},
         name=FORGED_NAME), []),
    (unschedulable(f'0/4 nodes are available: persistentvolumeclaim "{FORGED_NAME}" not found. not '
                   f'found'), []),
], ids=["service account", "quota", "policy", "pod", "container", "claim"])
def test_commands_contain_only_valid_names(observation):
    (cause,) = causes_of(observation)

    commands = [line for line in cause.suggestion.splitlines() if line.startswith("kubectl ")]
    assert commands and all(re.fullmatch(r"[A-Za-z0-9 ./-]+", command) for command in commands)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.pattern}")
def test_command_without_a_valid_name_cannot_be_pasted(row):
    values = dict.fromkeys(re.findall(r"{(\w+)}", row.suggestion), FORGED_NAME)
    values |= {"kubectl": "kubectl -n shop", "cluster": "kubectl", "claims": "", "what": "secret",
               "logs": "kubectl -n shop logs POD -c CONTAINER"}

    commands = list(filter(shell.is_command,
                           diagnosis._suggestion(row.suggestion, values).splitlines()))

    assert not any(map(next_commands.CAPITALS.search, commands)), commands


# Any client with permission to create Events can forge one.


@pytest.mark.parametrize("reason, message", [
    ("Failed", 'Failed to pull image "a:1": not found'), ("ErrImageNeverPull", NEVER_PULL),
    ("InspectFailed", BAD_NAME),
    ("Failed", "Error: runc create failed"), ("FailedMount", 'secret "nope" not found'),
    ("Failed", 'secret "nope" not found'),
])
@pytest.mark.parametrize("field", ["", "spec.containers{web}"], ids=["pod", "container"])
def test_event_alone_is_never_fatal(reason, message, field):
    """Healthy pods may have had such an Event while they started."""
    (cause,) = diagnose(CREATING, events=[event(reason, message, count=99, field=field)])

    assert not cause.is_fatal


@pytest.mark.parametrize("first, last, message, is_outdated", [
    (0, 0, MOUNT_ERROR, True), (98, 98, MOUNT_ERROR, False), (97, 97, MOUNT_ERROR, True),
    (50, 74, MOUNT_ERROR, False), (52, 74, MOUNT_ERROR, True), (-900, -24, MOUNT_ERROR, False),
    (-900, -25, MOUNT_ERROR, True), (-900, -25, "mount failed: exit status 32", False),
    (None, 99, MOUNT_ERROR, True), (99, None, MOUNT_ERROR, True),
    (0, 0, "references non-existent secret key: a", True),
])
def test_mount_failure_is_outdated_if_the_kubelet_no_longer_repeats_the_event(first, last, message,
                                                                              is_outdated):
    times = {"firstTimestamp": first, "lastTimestamp": last}
    mount_event = event("FailedMount", message, **{
        key: None if time is None else rfc3339(1000 + time) for key, time in times.items()})
    other_event = event("Failed", message)

    events = symptoms.mark_outdated_mount_failures([mount_event, other_event], 1100.0)
    assert [symptom.is_outdated for symptom in symptoms.event_symptoms(events)
            if symptom.reason == "FailedMount"] == [is_outdated]
    assert not any(symptom.is_outdated for symptom in symptoms.event_symptoms(events)
                   if symptom.reason == "Failed")


@pytest.mark.parametrize("last_times, is_fatal", [
    ({"nope": 0}, False), ({"nope": 0, "other": 98}, True), ({"other": 98, "nope": 0}, True)])
def test_outdated_mount_failure_is_a_cause_that_does_not_end_the_task(last_times, is_fatal):
    events = symptoms.mark_outdated_mount_failures(
        [event("FailedMount", MOUNT_ERROR.replace("nope", name), field="",
               firstTimestamp=rfc3339(1000 + last), lastTimestamp=rfc3339(1000 + last))
         for name, last in last_times.items()], 1100.0)

    (cause,) = diagnose(MOUNTING, events=events)

    assert (cause.kind, cause.is_fatal) == ("configuration", is_fatal)
    assert ("possibly solved" in cause.message) == (not is_fatal)


def test_event_does_not_override_the_status():
    forged_event = event("Failed", 'Failed to pull image "a:1": not found')

    (cause,) = diagnose(pod(waiting_container("CreateContainerError")), events=[forged_event])

    assert (cause.kind, cause.is_fatal) == ("start", False)


def count_repetitions(parsed_pattern):
    """Return the maximum number of unlimited repetitions in one match.

    A lookahead counts as 0 if it has at most one repetition, else as 2.
    """
    count = 0
    for operation, argument in parsed_pattern:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            count += (argument[1] is re._constants.MAXREPEAT) + count_repetitions(argument[2])
        elif name == "SUBPATTERN":
            count += count_repetitions(argument[-1])
        elif name == "BRANCH":
            count += max(map(count_repetitions, argument[1]))
        elif name in ("ASSERT", "ASSERT_NOT") and count_repetitions(argument[1]) > 1:
            count += 2
    return count


def is_linear(pattern):
    """Return whether a search takes time proportional to the text's length.

    A pattern with an unlimited repetition must begin with ^.
    """
    parsed = re._parser.parse(pattern)
    return count_repetitions(parsed) <= 1 and (pattern.startswith("^")
                                               or "MAXREPEAT" not in repr(parsed))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.pattern}")
def test_patterns_match_in_linear_time(row):
    assert is_linear(row.pattern)


@pytest.mark.parametrize("pattern",
                         [r"(a|b).*c", r"a.*b", r"^a.*b.*c", r"x (?P<name>[^,]+),",
                          r"^(?=.*a.*b)c"])
def test_is_linear_rejects_slow_patterns(pattern):
    assert not is_linear(pattern)


@pytest.mark.parametrize("pod, events", [
    (pod(), []),
    (pod(conditions=[]), []),
    (pod(conditions=None, containerStatuses=None), []),
    (CREATING, []),
    (CREATING,
     [event("FailedMount",
            'MountVolume.SetUp failed for volume "kube-api-access-x" : failed to sync configmap '
            'cache: '
            "timed out waiting for the condition", field="")]),
    (CREATING,
     [event("FailedCreatePodSandBox", "Failed to create pod sandbox: timeout", field="")]),
    (pod(waiting_container("PodInitializing"), init=container(running={})), []),
    (pod(waiting_container("PodInitializing"), init=terminated_container(0, "Completed")), []),
    (pod(container(running={}), init={**terminated_container(0, "Completed"), "ready": True}), []),
    (pod(container(running={})), []),
    (pod(container(running={})),
     [event("Unhealthy", "Readiness probe failed: dial tcp: connect: connection refused")]),
    (pod(container(running={})), [event("Unhealthy", LIVENESS), event("Unhealthy", STARTUP)]),
    (pod(container(running={})),
     [event("Failed", f'Failed to pull image "localhost/none:v9": {UNREACHABLE_REGISTRY}')]),
    (pod(container(running={})), [event("FailedMount", MOUNT_ERROR, 3, field="")]),
    (pod(container(is_ready=True, running={}), conditions=conditions("True")),
     [event("Unhealthy", READINESS, 9)]),
    (pod(container(7, is_ready=True, running={}, last={"exitCode": 3}),
         conditions=conditions("True")),
     []),
    (pod(container(running={}),
         metadata={"deletionTimestamp": "2026-11-21T10:00:00Z", "deletionGracePeriodSeconds": 30,
                   "finalizers": ["example.com/hold"]}), [event("Unhealthy", READINESS, 9)]),
    (CREATING,
     [event("FailedMount", MOUNT_ERROR, pod_name="bar-1"),
      event("Failed", f"Error: {RUNC_ERROR}", pod_name="")]),
    (pod(container(running={})),
     [event("Unhealthy", READINESS, 9, field="spec.containers{sidecar}")]),
], ids=["new", "no conditions", "null lists", "creating", "late cache of the kubelet",
        "single failed sandbox", "init container runs",
        "init container exits", "init container ready", "running", "one readiness failure",
        "one failure of each probe", "pulled after a failure",
        "mounted after a failure", "ready after failed probes",
        "ready after restarts",
        "terminating within the grace period", "events of other pods",
        "probe of another container"])
def test_starting_and_healthy_pods_have_no_cause(pod, events):
    assert diagnose(pod, events=events) == []


def failing_pod(name, reason):
    return pod(waiting_container(reason, f"message of {name}"), name=name)


def test_cause_of_several_pods_has_an_example_and_a_count():
    pods = [failing_pod("foo-3", "ErrImagePull"), failing_pod("foo-2", "SomethingNew"),
            failing_pod("foo-1", "ImagePullBackOff"),
            failing_pod("foo-4", "ErrImagePull"), failing_pod("foo-5", "SomethingNew")]

    assert [cause.sentence for cause in diagnose(*pods)] == [
        "pod foo-1, container web: ImagePullBackOff: message of foo-1 (and 2 more pods)",
        "pod foo-2, container web: SomethingNew: message of foo-2 (and 1 more pod)"]


def test_fatal_causes_come_first():
    crashed_once = pod(terminated_container(3), name="foo-1")
    crash_looping = pod(waiting_container("CrashLoopBackOff", restarts=2,
                                          last={"exitCode": 3, "reason": "Error"}),
                        name="foo-2")

    sorted_causes = diagnose(crashed_once, crash_looping,
                             failure="exceeded quota: small, requested: pods=1")

    assert [(cause.kind, cause.pod, cause.pods, cause.is_fatal) for cause in sorted_causes] == [
        ("crash", "foo-2", 2, True), ("quota", "", 1, False)]


def test_each_failing_container_has_a_cause():
    two_failures = pod(waiting_container("ErrImagePull", "gone"),
                       {**terminated_container(3), "name": "proxy"})

    assert [cause.sentence for cause in diagnose(two_failures)] == [
        "pod foo-1, container web: ErrImagePull: gone",
        "pod foo-1, container proxy: Error: exit code 3, not restarted yet"]


def test_sidecar_is_named_as_a_sidecar():
    item = pod(waiting_container("PodInitializing"),
               init=crash_loop(3)[0]["status"]["containerStatuses"][0])
    item["spec"]["initContainers"] = [{"name": "setup", "restartPolicy": "Always"}]

    (cause,) = diagnose(item)

    assert (cause.kind, cause.place) == ("crash", "pod foo-1, sidecar container setup")


UNKNOWN_TIMES = [{}, {"startedAt": rfc3339(1000)}, {"finishedAt": rfc3339(1005)}]


@pytest.mark.parametrize("last_run, start, now, is_current", [
    ((1000, 1005), 2000, 2012, True), ((1000, 1005), 2000, 2013, False),
    ((1000, 1000), 2000, 2002, True), ((1000, 1000), 2000, 2003, False),
    ((0, 900000), 1000000, 1000600, True), ((0, 900000), 1000000, 1000601, False),
    ((1005, 1000), 2000, 2008, False), ((1000, 1005), 2000, 1900, True),
    *[(times, 2000, 2600, True) for times in UNKNOWN_TIMES],
    *[(times, 2000, 2601, False) for times in UNKNOWN_TIMES], ((1000, 1005), None, 9999, True)])
@pytest.mark.parametrize("is_init", [False, True])
def test_crash_is_past_once_the_container_runs_twice_as_long_as_before(last_run, start, now,
                                                                       is_current, is_init):
    times = last_run if isinstance(last_run, dict) else {
        "startedAt": rfc3339(last_run[0]), "finishedAt": rfc3339(last_run[1])}
    status = container(7, last={"exitCode": 1, "reason": "Error", **times},
                       running={} if start is None else {"startedAt": rfc3339(start)})
    item = (pod(waiting_container("PodInitializing"), init=status) if is_init
            else pod(status, container_spec={"readinessProbe": PROBE}))
    unready = event("Unhealthy", READINESS, 2,
                    field="spec.initContainers{setup}" if is_init else "spec.containers{web}")

    causes_ = diagnose(*symptoms.without_past_crashes([item], now), events=[unready])

    prefix = "init-" if is_init else ""
    assert [(cause.kind.removeprefix(prefix), cause.is_fatal) for cause in causes_] == [
        *([("crash", True)] if is_current else []), ("readiness", False)]
    assert causes_[-1].is_restarted is is_current


def test_crash_of_a_container_that_does_not_run_is_never_past():
    times = {"startedAt": rfc3339(1000), "finishedAt": rfc3339(1005)}

    for item in (crash_loop(3, **times)[0], pod(terminated_container(3, restarts=2, **times))):
        assert diagnose(*symptoms.without_past_crashes([item], 9999)) == diagnose(item) != []


def test_crash_with_few_failed_probes_is_not_caused_by_a_probe():
    crash = {**crash_loop(3)[0], "spec": {"containers": [{"name": "web", **LIVENESS_SPEC}]}}

    assert [cause.kind
            for cause in diagnose(crash, events=[event("Unhealthy", LIVENESS, 2)])] == ["crash"]


def test_crash_without_a_restart_is_not_caused_by_a_probe():
    crash = {**pod(terminated_container(3)),
             "spec": {"containers": [{"name": "web", **LIVENESS_SPEC}]}}

    assert [cause.kind
            for cause in diagnose(crash, events=[event("Unhealthy", LIVENESS, 3)])] == ["crash"]


def test_failure_condition_takes_precedence_over_events():
    (cause,) = diagnose(failure=f"exceeded quota: {QUOTA}", current=1,
                        events=[creation_event("no team label")])

    assert (cause.kind, cause.reason) == ("quota", "FailedCreate")


def creation_event(message, **more):
    return {**event("FailedCreate", message, **more),
            "involvedObject": {"kind": "StatefulSet", "uid": "uid of foo"}}


@pytest.mark.parametrize("current, kinds", [(1, ["admission"]), (2, []), (3, [])])
def test_last_creation_event_counts_while_pods_are_missing(
        current, kinds):
    controller = StatefulSet.from_api({
        "metadata": {"name": "foo", "uid": "uid of foo", "annotations": {}},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                 "serviceName": "foo"},
        "status": {"replicas": current}})
    events = [creation_event('admission webhook "w.example.com" denied the request: no',
                             lastTimestamp="2026-11-21T10:05:00Z"),
              creation_event(f"exceeded quota: {QUOTA}", lastTimestamp="2026-11-21T10:00:00Z")]

    assert [cause.kind
            for cause in causes(
                Request("foo", kind=Kind.STATEFUL_SET), controller, [], events)] == kinds


def test_failure_condition_with_too_many_pods_is_a_failed_deletion():
    (cause,) = diagnose(failure='admission webhook "w.example.com" denied the request: keep',
                        current=3)

    assert (cause.kind, cause.reason) == ("admission", "FailedDelete")


def test_missing_priority_class_of_a_handover_is_not_a_failure():
    assert diagnose(failure=f'pods "foo-" is forbidden: no PriorityClass with name {CLOSED} was '
                            'found') == []


@pytest.mark.parametrize("probe, text", [
    ({"exec": {"command": ["/bin/check", "-v"]}, "periodSeconds": 5},
     "(/bin/check ..., periodSeconds 5)"),
    ({"exec": {"command": ["/bin/check"]}}, "(/bin/check)"),
    ({"exec": {"command": []}, "failureThreshold": 3}, "(failureThreshold 3)"),
    ({"exec": {"command": ["x" * 9999]}}, f"({'x' * diagnosis.MAX_PROBE_LENGTH})"),
    ({"httpGet": {"port": 80, "path": "/" * 9999}}, f"(GET :80{'/' * 93})"),
    ({"httpGet": {"port": 80, "path": "/ok?token=x"}}, "(GET :80/ok?...)"),
    ({"grpc": {"port": 9000}}, "(gRPC :9000)"),
    ({"httpGet": {"port": "http"}}, "(GET :http)"),
])
def test_suggestion_describes_the_probe(probe, text):
    (cause,) = diagnose(pod(container(running={}), container_spec={"readinessProbe": probe}),
                        events=[event("Unhealthy", READINESS, 2)])

    assert text in cause.suggestion


@pytest.mark.parametrize("text, message", [
    ('command timed out: "redis-cli -a PASSWORD ping" timed out after 1s',
     'command timed out: "redis-cli ..." timed out after 1s'),
    ('command "sh -c \\"psql PASSWORD\\"" timed out', 'command "sh ..." timed out'),
    ('command timed out: "redis-cli -a PASSWORD pi', 'command timed out: "redis-cli ..."'),
    ('command "/bin/check" timed out', 'command "/bin/check" timed out'),
    ('Get "http://10.0.0.1:80/ok?token=PASSWORD": connection refused',
     'Get "http://10.0.0.1:80/ok?...": connection refused')])
def test_message_of_a_probe_has_no_argument_and_no_query(text, message):
    (cause,) = diagnose(pod(container(running={})),
                        events=[event("Unhealthy", f"Readiness probe failed: {text}", 2)])

    assert message in cause.message and "PASSWORD" not in cause.sentence


def test_suggestion_has_no_argument_of_a_probe():
    probe = {"exec": {"command": ["redis-cli", "-a", "PASSWORD", "ping"]}}
    (cause,) = diagnose(pod(container(running={}), container_spec={"readinessProbe": probe}),
                        events=[event("Unhealthy", READINESS, 2)])

    assert "(redis-cli ...)" in cause.suggestion and "PASSWORD" not in repr(cause)


def test_long_message_is_shortened_in_the_middle():
    (cause,) = diagnose(pod(waiting_container("ErrImagePull",
                                              "first\n  line " + "and more " * 100
                                              + "the true reason")))

    assert len(cause.message) == diagnosis.MAX_MESSAGE_LENGTH < 900
    assert (cause.message.startswith("first line and more ")
            and cause.message.endswith(" more the true reason"))


ANY_VALUE = st.sampled_from([None, "", 0, 7, [], {}, [None], [[]], {"reason": None}, "x"])


def paths_in(item: t.Any, path: tuple = ()) -> list[tuple]:
    values = (item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list)
              else ())
    return [path, *(deeper for key, value in values for deeper in paths_in(value, (*path, key)))]


@given(st.data())
def test_malformed_objects_never_raise(data):
    case = data.draw(st.sampled_from([case for case in CASES.values()
                                      if not isinstance(case.observations[0], str)]))
    case_objects = [copy.deepcopy(part) for part in data.draw(st.sampled_from(case.observations))]
    for _round in range(data.draw(st.integers(1, 4))):
        *path, last_key = data.draw(st.sampled_from([(0, "spec"),
                                                     *(path for path in paths_in(case_objects)
                                                       if len(path) > 1)]))
        parent: t.Any = case_objects
        for key in path:
            parent = parent[key]
        if isinstance(parent, dict) and data.draw(st.booleans()):
            parent.pop(last_key, None)
        else:
            parent[last_key] = copy.deepcopy(data.draw(ANY_VALUE))
    item, events = case_objects

    for cause in diagnose(*symptoms.without_past_crashes([item], 1100), events=events):
        assert isinstance(cause, Cause) and isinstance(cause.sentence, str)


@pytest.mark.parametrize("reason, message", [
    ("FailedCreatePodSandBox", "Failed to create pod sandbox: no IP addresses available"),
    ("FailedMount", 'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32'),
    ("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1"'),
])
def test_outdated_mount_failure_hides_no_current_cause(reason, message):
    events = symptoms.mark_outdated_mount_failures([
        event("FailedMount", MOUNT_ERROR, field="", firstTimestamp=rfc3339(1000),
              lastTimestamp=rfc3339(1002)),
        event(reason, message, field="", count=9, firstTimestamp=rfc3339(1010),
              lastTimestamp=rfc3339(1098))], 1100.0)

    assert [cause.message for cause in diagnose(MOUNTING, events=events)] == [message]

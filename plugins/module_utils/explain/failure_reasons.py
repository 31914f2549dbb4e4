# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the tables of failure reasons for diagnosis.py. No I/O.

The patterns match the messages of Kubernetes 1.36, in pkg/kubelet, pkg/scheduler/framework/plugins,
pkg/controller and plugin/pkg/admission.
"""

from __future__ import annotations

import enum
import typing as t

from ..model.object_meta import SERVER_DESIRED

#: Signals by number on Linux. On the control node, the numbers may differ.
SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
           9: "SIGKILL", 11: "SIGSEGV",
           13: "SIGPIPE", 15: "SIGTERM"}


class Fatal(enum.Enum):
    """Whether a failure is permanent."""

    YES = "yes"
    NO = "no"
    #: Permanent if it repeats: many containers start before their database, and fail once.
    ON_REPEAT = "on-repeat"


class Row(t.NamedTuple):
    """A failure reason."""

    kind: str
    #: Searched in "reason: message". Named groups fill the placeholders of the suggestion. The
    #: searched text is untrusted, so the search must take linear time. (A test checks the time.)
    pattern: str
    fatal: Fatal
    #: Commands are on their own lines. {kubectl} becomes kubectl with the namespace, {cluster}
    #: becomes kubectl without a namespace.
    suggestion: str
    #: Minimum occurrences of an Event.
    min_count: int = 1
    shows_log: bool = False


# In each table, the first matching row gives the cause.

#: The controller manager cannot create or delete pods (condition ReplicaFailure, or the Event
#: FailedCreate for kinds without this condition).
REPLICA_FAILURE = (
    Row("quota", r"failed quota: (?P<name>[^:]{1,253}): must specify (?P<what>.{1,600})", Fatal.YES,
        "add to the template the resources that the quota {name} requires: {what}"),
    Row("quota", r"exceeded quota: (?P<name>[^,]{1,253}),", Fatal.NO,
        "raise the quota{or_delete_first}\n{kubectl} edit quota {name}"),
    Row("quota", r"insufficient quota", Fatal.NO, "{kubectl} describe quota"),
    Row("limit-range", r"(minimum|maximum) \S{1,253} usage per|max limit to request ratio per",
        Fatal.YES,
        "change resources in the template, or the LimitRange:\n{kubectl} describe limitrange"),
    Row("service-account", r"^(?=.*error looking up service account ).*serviceaccount "
                           r"\"(?P<name>[^\"]{1,253})\" not found",
        Fatal.YES,
        "correct serviceAccountName in the template, or create the ServiceAccount:\n{kubectl} "
        "create serviceaccount {name}"),
    Row("admission", r"violates PodSecurity", Fatal.YES,
        "correct securityContext in the template as the message says, or have the namespace's "
        "PodSecurity level changed"),
    Row("admission", r"ValidatingAdmissionPolicy '(?P<name>[^']{1,253})'", Fatal.YES,
        "change the template as the message says; the rule:\n{cluster} get "
        "validatingadmissionpolicy {name} -o yaml"),
    Row("admission", r"admission webhook \"(?P<name>[^\"]{1,253})\" denied", Fatal.YES,
        "change the template as the message says, or ask the owner of the webhook {name}"),
    Row("admission", r"no PriorityClass with name (?P<name>\S{1,253})", Fatal.YES,
        "create the PriorityClass {name}, or correct priorityClassName in the template:\n{cluster} "
        "get priorityclass"),
    Row("admission", r"RuntimeClass \"(?P<name>[^\"]{1,253})\" not found", Fatal.YES,
        "create the RuntimeClass {name}, or correct runtimeClassName in the template:\n{cluster} "
        "get runtimeclass"),
    Row("admission", r"denied the request", Fatal.YES, "change the template as the message says"),
    # A webhook is often unreachable only for a moment.
    Row("webhook", r"failed calling webhook \"(?P<name>[^\"]{1,253})\"", Fatal.NO,
        "check that the service behind the webhook {name} is running: it does not respond"),
    Row("invalid", r" is invalid: ", Fatal.YES, "correct the template as the message says"),
    Row("creation", r"", Fatal.NO,
        "check which part of the template, or which rule of the namespace, the message is about"),
)

#: The scheduler finds no node (condition PodScheduled). Only a missing claim is fatal.
UNSCHEDULABLE = (
    Row("claim", r"persistentvolumeclaim \"(?P<name>[^\"]{1,253})\" not found", Fatal.YES,
        "create the PersistentVolumeClaim {name} or correct its name in the template:\n{kubectl} "
        "get pvc"),
    Row("claim", r"unbound immediate PersistentVolumeClaims|didn't find available persistent "
                 r"volumes|persistentvolumeclaim",
        Fatal.NO, "see why the claim is not bound (storage class, provisioner, size):\n{kubectl} "
                  "describe pvc {claims}"),
    Row("unschedulable",
        r"node\(s\) (had no available volume zone|didn't match PersistentVolume's node affinity"
        r"|exceed max volume count|unavailable due to PersistentVolumeClaim)", Fatal.NO,
        "check in which zone or on which node the volume is: no node there can run the "
        "pod:\n{kubectl} describe pvc {claims}"),
    Row("unschedulable", r"Insufficient cpu", Fatal.NO,
        "add nodes, or lower resources.requests.cpu ({cpu}){or_delete_first}"),
    Row("unschedulable", r"Insufficient memory", Fatal.NO,
        "add nodes, or lower resources.requests.memory ({requested_memory}){or_delete_first}"),
    Row("unschedulable", r"Insufficient (?P<what>\S{1,253}?)[,.]?(\s|$)|(?P<pods>Too many pods)",
        Fatal.NO,
        "add nodes{or_delete_first}"),
    Row("unschedulable", r"didn't have free ports", Fatal.NO,
        "remove old pods first, because hostPort allows only one such pod per node: max_surge=0 "
        "max_unavailable=1"),
    # The scheduler checks taints before node affinity, so a node that is reported as tainted may
    # have the labels that the template requires.
    Row("unschedulable", r"^(?=.*taint(?! {node-role)).*node affinity/selector", Fatal.NO,
        "check whether the nodes with the labels that the template requires ({selector}) have a "
        "taint that the template does not tolerate:\n"
        "{cluster} describe nodes | grep -E '^(Name|Taints):'\nif no node has these labels:\n"
        "{cluster} get nodes --show-labels"),
    Row("unschedulable", r"node affinity/selector|requested node name", Fatal.NO,
        "correct nodeSelector or nodeAffinity ({selector}), which match no node, or label a "
        "node:\n{cluster} get nodes --show-labels"),
    Row("unschedulable", r"affinity rules|topology spread", Fatal.NO,
        "relax podAffinity, podAntiAffinity or topologySpreadConstraints, which rule out every "
        "node; or add nodes; or remove old pods first: max_surge=0 max_unavailable=1"),
    Row("unschedulable", r"taint", Fatal.NO,
        "tolerate the taint in the template, or remove it from nodes:\n{cluster} describe nodes | "
        "grep -E '^(Name|Taints):'"),
    Row("unschedulable", r"were unschedulable", Fatal.NO,
        "uncordon a node:\n{cluster} get nodes\n{cluster} uncordon NODE"),
    Row("unschedulable", r"^SchedulingGated", Fatal.NO,
        "wait until the owners of the pod's schedulingGates remove them: {gates}"),
    Row("unschedulable", r"", Fatal.NO, "{kubectl} describe pod {pod}"),
)

PULL_REASONS = ("ErrImagePull", "ImagePullBackOff")
_PULL = r"^(?=.*(?:ErrImagePull|ImagePullBackOff|Failed to pull image)).*"
#: The message of runc, in RunContainerError and StartError (containerd) or CreateContainerError
#: (CRI-O).
_EXEC_FAILURE = (r"(?=.*no command specified|(?=.*exec: ).*"
                 r"(?:not found|no such file or directory|permission denied))")
_CHECK_COMMAND = "compare command and args in the template with what is in the image"
_CORRECT_TEMPLATE = ("correct what the message names: command, volumeMounts or securityContext in "
                     "the template")
#: The kubelet cannot mount a volume, create the sandbox, or create or start a container.
NOT_STARTED = (
    Row("image-name", r"InvalidImageName|Failed to apply default image tag", Fatal.YES,
        "correct the image name: lower case, one tag or digest, no empty part"),
    Row("image", r"ErrImageNeverPull", Fatal.YES,
        "load the image onto the nodes, or set imagePullPolicy: IfNotPresent in the template"),
    Row("image", _PULL + r"no match for platform", Fatal.YES,
        "build the image for the node's architecture as well"),
    Row("image", _PULL + r"(toomanyrequests|429 Too Many Requests)", Fatal.YES,
        "wait, or pull with an account or from a mirror: the registry limits the rate of pulls"),
    Row("image", _PULL + r"(connection refused|no such host|i/o timeout|network is "
                         r"unreachable|x509|connection reset)", Fatal.YES,
        "check the registry name in the image, then DNS, proxy and certificates on node {node}: it "
        "cannot reach the registry"),
    Row("image", _PULL + r"(unauthorized|denied|authori[sz]ation|403 Forbidden|401 Unauthorized|no "
                         r"basic auth)", Fatal.YES,
        "check image and tag; if they are right, the registry needs imagePullSecrets, in the "
        "template or in the ServiceAccount of the pod"),
    Row("image", _PULL + r"(not found|manifest unknown)", Fatal.YES,
        "push that image, or correct its name or tag: the registry does not have it"),
    Row("image",
        r"ErrImagePull|ImagePullBackOff|Failed to pull image|ImageInspectError|RegistryUnavailable"
        r"|SignatureValidationFailed", Fatal.YES,
        "check image and tag, and that node {node} can reach the registry"),
    Row("configuration", r"(?P<what>secret|configmap) \"(?P<name>[^\"]{1,253})\" not found",
        Fatal.YES,
        "create the {what} {name}, or correct its name in the template:\n{kubectl} get {what}"),
    Row("configuration",
        r"couldn't find key (?P<key>\S{1,253}) in (?P<what>Secret|ConfigMap) [^\s/]{1,253}"
        r"/(?P<name>[^\s/]{1,253})$", Fatal.YES,
        "add the key {key} to the {what} {name}, or correct the key in the template"),
    Row("configuration", r"references non-existent \w{1,253} key", Fatal.YES,
        "add that key, or correct the key in the template"),
    Row("configuration", r"runAsNonRoot", Fatal.YES,
        "set securityContext.runAsUser in the template, or build the image with a USER other than "
        "root"),
    Row("configuration", r"^CreateContainerConfigError", Fatal.YES,
        "correct the template as the message says"),
    # The same text may be about a program of the node (FailedMount, FailedCreatePodSandBox).
    Row("command", rf"^(RunContainerError|CreateContainerError|Failed): {_EXEC_FAILURE}", Fatal.YES,
        _CHECK_COMMAND),
    Row("command", r"^RunContainerError|^Failed: Error: .*runc create failed", Fatal.YES,
        _CORRECT_TEMPLATE),
    Row("crash", r"^(PostStartHookError|PreStartHookError)", Fatal.ON_REPEAT,
        "look at lifecycle.postStart in the template",
        shows_log=True),
    # A Multi-Attach error is not fatal: six minutes after a node fails, another node can use the
    # volumes of the failed node. The second volume row skips errors of a kubelet whose cache does
    # not have the Secrets and ConfigMaps of a new pod yet.
    Row("volume", r"^Failed\w{1,253}: .*Multi-Attach error", Fatal.NO,
        "remove the old pod first, because only one node at a time can use the volume: max_surge=0 "
        "max_unavailable=1"),
    Row("volume", r"^Failed(Mount|AttachVolume|MapVolume): (?!.*(failed to sync \w{1,253} "
                  r"cache|not registered))", Fatal.NO,
        "check whether the volume exists and node {node} can reach it:\n{kubectl} describe pod "
        "{pod}"),
    Row("sandbox", r"^FailedCreatePodSandBox", Fatal.NO,
        "see why the network or the container runtime of node {node} fails:\n{cluster} describe "
        "node {node}", min_count=2),
)
#: Any other waiting reason.
OTHER = Row("start", r"", Fatal.NO, "{kubectl} describe pod {pod}")

_STARTUP = Row("startup", r"^Unhealthy: .*Startup probe", Fatal.ON_REPEAT,
               "see how the container responds to its startupProbe ({startup}), or give it more "
               "time with failureThreshold:\n{logs}",
               shows_log=True)
_LIVENESS = Row("liveness", r"^Unhealthy: .*Liveness probe", Fatal.ON_REPEAT,
                "see how the container responds to its livenessProbe ({liveness}); if it only "
                "starts slowly, give it a startupProbe:\n{logs}", shows_log=True)
#: A container has terminated.
TERMINATED = (
    Row("command", rf"^(StartError|ContainerCannotRun): {_EXEC_FAILURE}", Fatal.YES,
        _CHECK_COMMAND),
    Row("command", r"^(StartError|ContainerCannotRun)", Fatal.YES, _CORRECT_TEMPLATE),
    Row("memory", r"^OOMKilled", Fatal.ON_REPEAT,
        "raise resources.limits.memory of container {container} ({memory}), or find out what uses "
        "that much", shows_log=True),
    _STARTUP,
    _LIVENESS,
    Row("crash", r"exit code 0\b", Fatal.ON_REPEAT,
        "run the container's process in the foreground, because it exits without an error: check "
        "command and args; its log:\n{logs}", shows_log=True),
    Row("crash", r"exit code 12[67]\b", Fatal.ON_REPEAT,
        "compare command and args with what is in the image: a shell could not find or execute "
        "a command; its log:\n{logs}", shows_log=True),
    Row("crash", r"SIGKILL", Fatal.ON_REPEAT,
        "check whether the container was killed after a failed probe, or because the node lacked "
        "memory:\n{cluster} describe node {node}", shows_log=True),
    Row("crash", r"SIG(SEGV|ILL|BUS|FPE)", Fatal.ON_REPEAT,
        "check whether the image was built for another architecture, a common reason; the "
        "container's log:\n{logs}", shows_log=True),
    Row("crash", r"", Fatal.ON_REPEAT, "see its log:\n{logs}", shows_log=True),
)

#: A container runs, but is not ready.
RUNNING = (
    _STARTUP._replace(min_count=2),
    _LIVENESS._replace(min_count=2),
    Row("readiness", r"^Unhealthy: .*Readiness probe", Fatal.NO,
        "see how the container responds to its readinessProbe ({readiness}):\n{logs}", min_count=2,
        shows_log=True),
)

#: The kubelet rejects a pod. The controller replaces the pod at once (see run/deadlines.py).
REJECTED = "refused-by-node"
#: EVICTED: the pod was evicted. NODE_LOST: its node was lost or shut down.
EVICTED, NODE_LOST = "evicted", "node"
#: Reason of the condition DisruptionTarget.
EVICTION_BY_API = "EvictionByEvictionAPI"
_WAIT_FIRST = "wait: it will be replaced; if this keeps happening, "
#: The pod was evicted, lost or rejected (and is replaced), or waits for a readiness gate.
LOST_OR_GATED = (
    Row(EVICTED, rf"^{EVICTION_BY_API}", Fatal.NO,
        _WAIT_FIRST + "find out which client evicts it: a drain of node {node}, a descheduler or a "
        "vertical autoscaler:\n{cluster} get node {node}"),
    Row(EVICTED, r"^(Evicted|TerminationByKubelet|Preempting|PreemptionByScheduler)",
        Fatal.NO,
        "wait: it will be replaced; if this keeps happening, raise its requests to what it uses, "
        "or find out what the node lacks:\n"
        "{cluster} describe node {node}"),
    Row(NODE_LOST,
        r"^(NodeLost|NodeNotReady|NodeStatusUnknown|NodeShutdown|Terminated"
        r"|DeletionBy(TaintManager|PodGC))", Fatal.NO,
        "{cluster} describe node {node}\nunless node {node} recovers, its pods are replaced 5 "
        "minutes after it was lost"),
    Row(REJECTED,
        r"^(OutOf|Sysctl|AppArmor|NodeAffinity|NodeName|NodePorts|PodOS|TopologyAffinity"
        r"|UnexpectedAdmission|Unsupported)"
        r"|: Pod was rejected", Fatal.NO,
        _WAIT_FIRST + "see why node {node} rejects it:\n{cluster} describe node {node}"),
    Row("readiness-gate", r"^ReadinessGatesNotReady", Fatal.NO,
        "see which controller has to set the pod's readiness gate, often a load "
        "balancer's:\n{kubectl} describe pod {pod}"),
)

#: A deleted pod has not terminated yet.
TERMINATING = (
    Row("finalizer", r"^Terminating: finalizers", Fatal.NO,
        "let the program that set the finalizer remove it; if that program no longer runs:\n"
        "{kubectl} patch pod {pod} --type=merge -p "
        """'{{"metadata": {{"finalizers": null}}}}'"""),
    Row("terminating", r"^FailedKillPod", Fatal.NO,
        "see why node {node} cannot stop its containers:\n{cluster} describe node {node}",
        min_count=2),
    Row("grace", r"^Terminating: its grace period", Fatal.NO,
        "see what keeps pod {pod} from terminating:\n{kubectl} describe pod {pod}\n"
        "or create new pods without waiting: pod_replacement_policy=TerminationStarted"),
)

#: A ReplicaSet's outdated annotation keeps the Deployment controller from replacing pods.
OUTDATED_REPLICA_SET = (
    Row("scaling", rf"^: its annotation {SERVER_DESIRED}", Fatal.YES,
        "correct the annotation, since the Deployment controller does not "
        "(kubernetes/kubernetes#102551):\n{kubectl} annotate rs {replica_set} "
        + SERVER_DESIRED + "={size} --overwrite"),
)


def without_advice_to_wait(suggestion: str) -> str:
    """Return the suggestion without the advice to wait."""
    return suggestion.removeprefix(_WAIT_FIRST)


#: Kinds of causes that only a soak detects. WARNED: too many warning Events.
DELETED, UNREADY, WARNED = "gone", "unready", "warnings"
#: The kinds of causes for diagnosis.merge(), the most specific first.
KINDS_BY_SPECIFICITY = [*dict.fromkeys(
    row.kind for row in (*NOT_STARTED, OTHER, *TERMINATED, *REPLICA_FAILURE, *UNSCHEDULABLE,
                         *RUNNING, *LOST_OR_GATED, *TERMINATING, *OUTDATED_REPLICA_SET)),
                        DELETED, UNREADY, WARNED]
#: Waiting reasons during a normal start.
NORMAL_START = ("", "ContainerCreating", "PodInitializing")

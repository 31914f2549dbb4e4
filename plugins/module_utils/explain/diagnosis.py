# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why pods do not become available, in the cluster's own words. Pure: fed with a controller, some of its pods, their events.

Everything that is known of failures stands in the tables below. The functions after them only collect what the objects
say (signs) and look it up. A container's reason changes from one moment to the next (ErrImagePull and ImagePullBackOff;
CrashLoopBackOff, Error and running again), so a kind is told from all that it shows, its last end and restarts included.
The words are those of Kubernetes 1.36: pkg/kubelet, pkg/scheduler/framework/plugins, pkg/controller, plugin/pkg/admission.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import re
import typing as t

from ..flows import handover
from ..model.fields import mapping as _map
from ..model.fields import number as _number
from ..model.fields import objects as _list
from ..model.fields import text as _text
from ..model.observed import Controller

Json = dict[str, t.Any]

#: Longer messages lose their middle: the object stands at the beginning, the innermost reason at the end.
LONGEST_MESSAGE = 600
#: What programs put before a message on its way, which only repeats what stands there anyway.
_WRAPPINGS = re.compile(
    r'^(Back-off pulling image "[^"]*": (?=Err))?(ErrImagePull: )?(failed to pull and unpack image "[^"]*": (?=failed to resolve))?'
    r"(failed to create (containerd|shim) task: )*(OCI runtime create failed: )?(runc create failed: )?"
    r"(unable to start container process: )?")
#: By number, as on Linux, wherever this runs.
SIGNALS = {1: "SIGHUP", 2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV",
           13: "SIGPIPE", 15: "SIGTERM"}


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why pods of a controller do not become available."""

    #: One stable word per cause, as "image" or "crash"; "init-crash" in an init container.
    kind: str
    #: The cluster's own reason, as "ImagePullBackOff".
    reason: str
    #: The cluster's own message, one line, at most LONGEST_MESSAGE characters.
    message: str
    #: What to look at or to type next.
    suggestion: str
    #: Waiting does not help.
    is_fatal: bool
    #: One pod that shows it; "" where the controller itself says it.
    pod: str = ""
    #: The container whose log tells more; "" where a log says nothing.
    container: str = ""
    #: The log that tells is that of the container's previous run.
    is_restarted: bool = False
    #: How many pods show it.
    pods: int = 1
    #: What it is about, for people: "pod foo-abc, init container setup".
    place: str = ""

    @property
    def sentence(self) -> str:
        """Cause and place for people, without the suggestion."""
        said = self.message if self.message.startswith(self.reason) else ": ".join(filter(None, (self.reason, self.message)))
        more = self.pods - 1
        return f"{self.place}: {said}" + (f" (and {more} more pod{'s' if more > 1 else ''})" if more else "")


class _Fatal(enum.Enum):
    """Whether waiting is of no use."""

    YES = "yes"
    NO = "no"
    #: Once it has happened again: many containers find their database at the second start.
    AGAIN = "again"


class _Row(t.NamedTuple):
    """What a sign means."""

    kind: str
    #: Regular expression on "reason: message"; what its groups match can be used in the suggestion.
    says: str
    fatal: _Fatal
    #: {kubectl} has the namespace; {pod}, {node}, {container}, {memory} (its limit) and the like are those of the pod in question.
    suggestion: str
    #: An event that was seen less often is no failure.
    times: int = 1
    has_log: bool = False


# In each table the first row that fits any of the signs is the cause.

#: The controller manager cannot create pods: its ReplicaFailure condition. It tries again at growing intervals for ever, so
#: the question is whether the same template can be accepted later. Quota: yes, when old pods or other workloads go. All the
#: others judge the template itself, and stay as they are until somebody changes the template or the rule.
REFUSED = (
    _Row("quota", r"failed quota: (?P<name>[^:]+): must specify (?P<what>.*)", _Fatal.YES,
         "add to resources in the template what the quota {name} asks for: {what}"),
    _Row("quota", r"exceeded quota: (?P<name>[^,]+),", _Fatal.NO,
         "raise the quota ({kubectl} edit quota {name}) or let old pods go first: max_surge=0 max_unavailable=1"),
    _Row("quota", r"insufficient quota", _Fatal.NO, "{kubectl} describe quota"),
    _Row("limit-range", r"(minimum|maximum) \S+ usage per|max limit to request ratio per", _Fatal.YES,
         "change resources in the template, or the LimitRange: {kubectl} describe limitrange"),
    _Row("service-account", r"error looking up service account .*?serviceaccount \"(?P<name>[^\"]+)\" not found", _Fatal.YES,
         "create it ({kubectl} create serviceaccount {name}) or correct serviceAccountName in the template"),
    _Row("admission", r"violates PodSecurity", _Fatal.YES,
         "add what the message names to securityContext in the template, or have the namespace's PodSecurity level changed"),
    _Row("admission", r"ValidatingAdmissionPolicy '(?P<name>[^']+)'", _Fatal.YES,
         "change the template as the message says; the rule: kubectl get validatingadmissionpolicy {name} -o yaml"),
    _Row("admission", r"admission webhook \"(?P<name>[^\"]+)\" denied", _Fatal.YES,
         "change the template as the message says, or ask whoever runs the webhook {name}"),
    _Row("admission", r"no PriorityClass with name (?P<name>\S+)", _Fatal.YES,
         "create the PriorityClass {name}, or correct priorityClassName in the template: kubectl get priorityclass"),
    _Row("admission", r"RuntimeClass \"(?P<name>[^\"]+)\" not found", _Fatal.YES,
         "create the RuntimeClass {name}, or correct runtimeClassName in the template: kubectl get runtimeclass"),
    _Row("admission", r"denied the request", _Fatal.YES, "change the template as the message says"),
    # Not its judgement but its absence: it may be back in a moment.
    _Row("webhook", r"failed calling webhook \"(?P<name>[^\"]+)\"", _Fatal.NO,
         "see that what serves the webhook {name} runs: it does not answer"),
    _Row("invalid", r" is invalid: ", _Fatal.YES, "correct the template as the message says"),
    _Row("creation", r"", _Fatal.NO, "see what in the template, or which rule of the namespace, the message is about"),
)

#: The scheduler finds no node: the pod's PodScheduled condition. Old pods that go make room, and an autoscaler may bring
#: nodes, so none of it is fatal but what has to be created by somebody.
UNSCHEDULABLE = (
    _Row("claim", r"persistentvolumeclaim \"(?P<name>[^\"]+)\" not found", _Fatal.YES,
         "create the PersistentVolumeClaim {name} or correct its name in the template: {kubectl} get pvc"),
    _Row("claim", r"unbound immediate PersistentVolumeClaims|didn't find available persistent volumes|persistentvolumeclaim",
         _Fatal.NO, "see why the claim is not bound (storage class, provisioner, size): {kubectl} describe pvc {claims}"),
    _Row("unschedulable", r"node\(s\) (had no available volume zone|didn't match PersistentVolume's node affinity"
         r"|exceed max volume count|unavailable due to PersistentVolumeClaim)", _Fatal.NO,
         "see where its volume is, for no node there takes the pod: {kubectl} describe pvc {claims}"),
    _Row("unschedulable", r"Insufficient cpu", _Fatal.NO,
         "add nodes, lower resources.requests.cpu ({cpu}), or let old pods go first: max_surge=0 max_unavailable=1"),
    _Row("unschedulable", r"Insufficient memory", _Fatal.NO,
         "add nodes, lower resources.requests.memory ({asked_memory}), or let old pods go first: max_surge=0 max_unavailable=1"),
    _Row("unschedulable", r"Insufficient (?P<what>\S+?)[,.]?(\s|$)|(?P<pods>Too many pods)", _Fatal.NO,
         "add nodes, or let old pods go first: max_surge=0 max_unavailable=1"),
    _Row("unschedulable", r"didn't have free ports", _Fatal.NO,
         "let old pods go first, for hostPort allows one such pod per node: max_surge=0 max_unavailable=1"),
    # The scheduler asks for taints first: the nodes with a taint may be those that are meant. Nobody means the control plane.
    _Row("unschedulable", r"taint(?! {node-role).*node affinity/selector|node affinity/selector.*taint(?! {node-role)", _Fatal.NO,
         "see whether the nodes with the labels that the template asks for ({selector}) have a taint that it does not tolerate: "
         "kubectl describe nodes | grep -E '^(Name|Taints):'; if there is no such node: kubectl get nodes --show-labels"),
    _Row("unschedulable", r"node affinity/selector|requested node name", _Fatal.NO,
         "correct nodeSelector or nodeAffinity ({selector}), which fit no node, or label one: kubectl get nodes --show-labels"),
    _Row("unschedulable", r"affinity rules|topology spread", _Fatal.NO,
         "relax podAffinity, podAntiAffinity or topologySpreadConstraints, which leave no node, add nodes, or let old pods go "
         "first: max_surge=0 max_unavailable=1"),
    _Row("unschedulable", r"taint", _Fatal.NO,
         "tolerate the taint in the template, or remove it from nodes: kubectl describe nodes | grep -E '^(Name|Taints):'"),
    _Row("unschedulable", r"were unschedulable", _Fatal.NO,
         "let a cordoned node take pods again: kubectl get nodes; kubectl uncordon NODE"),
    _Row("unschedulable", r"^SchedulingGated", _Fatal.NO,
         "let whoever put these schedulingGates on the pod remove them: {gates}"),
    _Row("unschedulable", r"", _Fatal.NO, "{kubectl} describe pod {pod}"),
)

#: The kubelet cannot create or start a container: what it waits for, or the events that come before that is shown.
#: A pull that failed may succeed at the next try, for which the driver waits a little in any case.
_PULL = r"(ErrImagePull|ImagePullBackOff|Failed to pull image).*"
#: containerd says RunContainerError and StartError, CRI-O says CreateContainerError; both repeat these words of runc.
_EXEC = r"no command specified|exec: .*(not found|no such file or directory|permission denied)"
_COMMAND = "compare command and args in the template with what is in the image"
_START = "correct what the message names: command, volumeMounts or securityContext in the template"
NOT_STARTED = (
    _Row("image-name", r"InvalidImageName|Failed to apply default image tag", _Fatal.YES,
         "correct the image's name: lower case, one tag or digest, no empty part"),
    _Row("image", r"ErrImageNeverPull", _Fatal.YES,
         "load the image onto the nodes, or set imagePullPolicy: IfNotPresent in the template"),
    _Row("image", _PULL + r"no match for platform", _Fatal.YES, "build the image for the node's architecture as well"),
    _Row("image", _PULL + r"(toomanyrequests|429 Too Many Requests)", _Fatal.YES,
         "wait, or pull with an account or from a mirror: the registry limits pulls"),
    _Row("image", _PULL + r"(connection refused|no such host|i/o timeout|network is unreachable|x509|connection reset)", _Fatal.YES,
         "check the registry's name in the image, then DNS, proxy and certificates of node {node}, which cannot reach it"),
    _Row("image", _PULL + r"(unauthorized|denied|authori[sz]ation|403 Forbidden|401 Unauthorized|no basic auth)", _Fatal.YES,
         "check image and tag; if they are right, the registry wants imagePullSecrets in the template or its ServiceAccount"),
    _Row("image", _PULL + r"(not found|manifest unknown)", _Fatal.YES,
         "push that image, or correct its name or tag: the registry does not have it"),
    _Row("image", r"ErrImagePull|ImagePullBackOff|Failed to pull image|ImageInspectError|RegistryUnavailable"
         r"|SignatureValidationFailed", _Fatal.YES, "check image and tag, and that node {node} reaches the registry"),
    _Row("configuration", r"(?P<what>secret|configmap) \"(?P<name>[^\"]+)\" not found", _Fatal.YES,
         "create the {what} {name}, or correct its name in the template: {kubectl} get {what}"),
    _Row("configuration", r"couldn't find key (?P<key>\S+) in (?P<what>Secret|ConfigMap) \S+?/(?P<name>[^\s/]+)$", _Fatal.YES,
         "add the key {key} to the {what} {name}, or correct it in the template"),
    _Row("configuration", r"references non-existent \w+ key", _Fatal.YES, "add that key, or correct it in the template"),
    _Row("configuration", r"runAsNonRoot", _Fatal.YES,
         "set securityContext.runAsUser in the template, or build the image with another USER than root"),
    _Row("configuration", r"^CreateContainerConfigError", _Fatal.YES, "correct the template as the message says"),
    _Row("command", _EXEC, _Fatal.YES, _COMMAND),
    _Row("command", r"^RunContainerError|^Failed: Error: .*runc create failed", _Fatal.YES, _START),
    _Row("crash", r"^(PostStartHookError|PreStartHookError)", _Fatal.AGAIN, "look at lifecycle.postStart in the template",
         has_log=True),
    # A volume is often free as soon as another node has let go of it, which may take six minutes; a server may come back.
    # The words left out are those of a kubelet whose cache has not heard of a new pod yet: gone at the next try.
    _Row("volume", r"^Failed\w+: .*Multi-Attach error", _Fatal.NO,
         "let the old pod go first, for the volume serves one node at a time: max_surge=0 max_unavailable=1"),
    _Row("volume", r"^Failed(Mount|AttachVolume|MapVolume): (?!.*(failed to sync \w+ cache|not registered))", _Fatal.NO,
         "see whether the volume exists and node {node} can reach it: {kubectl} describe pod {pod}"),
    _Row("sandbox", r"^FailedCreatePodSandBox", _Fatal.NO,
         "see why network or container runtime of node {node} fail: kubectl describe node {node}", times=2),
)
#: The kubelet waits for something that no row names.
_OTHER = _Row("start", r"", _Fatal.NO, "{kubectl} describe pod {pod}")

_STARTUP = _Row("startup", r"^Unhealthy: .*Startup probe", _Fatal.AGAIN,
                "see what the container answers to its startupProbe ({startup}), or give it more time by failureThreshold: {logs}",
                has_log=True)
_LIVENESS = _Row("liveness", r"^Unhealthy: .*Liveness probe", _Fatal.AGAIN,
                 "see what the container answers to its livenessProbe ({liveness}); if it only starts slowly, give it a "
                 "startupProbe: {logs}", has_log=True)
#: A container has ended: how, and the probes that failed often enough to end it.
ENDED = (
    _Row("command", rf"^(StartError|ContainerCannotRun): .*({_EXEC})", _Fatal.YES, _COMMAND),
    _Row("command", r"^(StartError|ContainerCannotRun)", _Fatal.YES, _START),
    _Row("memory", r"^OOMKilled", _Fatal.AGAIN,
         "raise resources.limits.memory of container {container} ({memory}), or find out what takes so much", has_log=True),
    _STARTUP,
    _LIVENESS,
    _Row("crash", r"exit code 0\b", _Fatal.AGAIN,
         "let its process run in the foreground, for it ends by itself: check command and args; its log: {logs}", has_log=True),
    _Row("crash", r"exit code 12[67]\b", _Fatal.AGAIN,
         "compare command and args with what is in the image: a shell did not find or may not execute something; its log: "
         "{logs}", has_log=True),
    _Row("crash", r"SIGKILL", _Fatal.AGAIN,
         "see whether a probe killed it, or the node for lack of memory: kubectl describe node {node}", has_log=True),
    _Row("crash", r"SIG(SEGV|ILL|BUS|FPE)", _Fatal.AGAIN,
         "see whether the image is built for another processor, as is often so; its log: {logs}", has_log=True),
    _Row("crash", r"", _Fatal.AGAIN, "see its log: {logs}", has_log=True),
)

#: A container runs and is not ready. Every healthy pod may fail its first probe: that is nothing.
RUNNING = (
    _STARTUP._replace(times=2),
    _LIVENESS._replace(times=2),
    _Row("readiness", r"^Unhealthy: .*Readiness probe", _Fatal.NO,
         "see what the container answers to its readinessProbe ({readiness}): {logs}", times=2, has_log=True),
)

#: The pod as a whole is lost or refused. Its controller replaces it, so none of it is fatal.
LOST = (
    _Row("evicted", r"^(Evicted|TerminationByKubelet|Preempting|PreemptionByScheduler|EvictionByEvictionAPI)", _Fatal.NO,
         "wait, for it is replaced; if that goes on, raise its requests to what it uses, or see: kubectl describe node {node}"),
    _Row("node", r"^(NodeLost|NodeNotReady|NodeStatusUnknown|NodeShutdown|Terminated|DeletionBy(TaintManager|PodGC))", _Fatal.NO,
         "kubectl describe node {node}; its pods are replaced 5 minutes after it went, unless it comes back"),
    _Row("refused-by-node", r"^OutOf|: Pod was rejected", _Fatal.NO,
         "wait, for it is replaced; if that goes on, see why node {node} refuses it: kubectl describe node {node}"),
    _Row("readiness-gate", r"^ReadinessGatesNotReady", _Fatal.NO,
         "see who has to set the pod's readiness gate, often a load balancer: {kubectl} describe pod {pod}"),
)

#: The pod is deleted and does not go. Without a clock only what cannot end by itself is told.
TERMINATING = (
    _Row("finalizer", r"^Terminating: finalizers", _Fatal.NO,
         "let whoever set the finalizer remove it; if that program is gone: {kubectl} patch pod {pod} --type=merge -p "
         """'{{"metadata": {{"finalizers": null}}}}'"""),
    _Row("terminating", r"^FailedKillPod", _Fatal.NO,
         "see why node {node} cannot end its containers: kubectl describe node {node}", times=2),
)

#: The most telling first.
_ORDER = list(dict.fromkeys(
    row.kind for row in (*NOT_STARTED, _OTHER, *ENDED, *REFUSED, *UNSCHEDULABLE, *RUNNING, *LOST, *TERMINATING)))
#: Waiting for these is part of every healthy start.
_HEALTHY = ("", "ContainerCreating", "PodInitializing")


def causes(controller: Controller, pods: t.Sequence[Json], events: t.Sequence[Json]) -> list[Cause]:
    """The causes that show, the most telling first; one per kind.

    pods: those of the controller that are not ready, whole. events: Warnings of the namespace; those of other objects are
    ignored.
    """
    about: dict[str, list[Json]] = collections.defaultdict(list)
    for event in events:
        about[_text(_map(event, "involvedObject"), "uid")].append(event)
    found: dict[str, list[Cause]] = collections.defaultdict(list)
    told = _refused(controller, [*pods, *events])
    for pod in pods:
        uid = _text(_map(pod, "metadata"), "uid")
        told += _of_pod(pod, about[uid] if uid else [])
    for cause in told:
        found[cause.kind].append(cause)
    merged = []
    for alike in found.values():
        example = min(alike, key=lambda cause: (not cause.is_fatal, cause.pod))
        merged.append(dataclasses.replace(example, pods=len({cause.pod for cause in alike})))
    return sorted(merged, key=lambda cause: (not cause.is_fatal, _ORDER.index(cause.kind.removeprefix("init-"))))


class _Sign(t.NamedTuple):
    """Something that an object says, before it is known what it means."""

    reason: str
    message: str
    times: int = 1


@dataclasses.dataclass(frozen=True)
class _Subject:
    """The object that gives signs: the controller, a pod or a container."""

    place: str
    #: For suggestions.
    names: dict[str, str]
    pod: str = ""
    container: str = ""
    is_init: bool = False
    #: It failed more than once.
    is_again: bool = False
    is_restarted: bool = False

    def causes(self, rows: t.Iterable[_Row], signs: t.Sequence[_Sign]) -> list[Cause]:
        """The first row that fits, as a list of one; an empty list if none does."""
        for row in rows:
            for sign in signs:
                match = re.search(row.says, f"{sign.reason}: {sign.message}")
                if match and sign.times >= row.times:
                    return [self._cause(row, sign, match.groupdict())]
        return []

    def _cause(self, row: _Row, sign: _Sign, matched: dict[str, str]) -> Cause:
        return Cause(
            kind=f"init-{row.kind}" if self.is_init else row.kind,
            reason=sign.reason,
            message=_one_line(sign.message),
            suggestion=row.suggestion.format_map({**self.names, **matched}),
            is_fatal=row.fatal is _Fatal.YES or (row.fatal is _Fatal.AGAIN and self.is_again),
            pod=self.pod,
            container=self.container if row.has_log else "",
            is_restarted=self.is_restarted and row.has_log,
            place=self.place,
        )


def _refused(controller: Controller, neighbours: t.Iterable[Json]) -> list[Cause]:
    """What keeps the controller manager from creating pods, or, where there are too many, from deleting them.

    neighbours: objects that tell the namespace.
    """
    if not controller.failure or handover.CLOSED in controller.failure:  # closed on purpose, until all pods are handed over
        return []
    reason = "FailedDelete" if controller.current > controller.replicas else "FailedCreate"
    namespace = next(filter(None, (_text(_map(each, "metadata"), "namespace") for each in neighbours)), "")
    subject = _Subject(f"{controller.kind} {controller.name}", {"kubectl": _kubectl(namespace)})
    return subject.causes(REFUSED, [_Sign(reason, controller.failure)])


def _of_pod(pod: Json, events: list[Json]) -> list[Cause]:
    metadata, spec, status = (_map(pod, key) for key in ("metadata", "spec", "status"))
    conditions = {_text(each, "type"): each for each in _list(status, "conditions")}
    name = _text(metadata, "name")
    names = {"pod": name, "node": _text(spec, "nodeName"), "kubectl": _kubectl(_text(metadata, "namespace")), **_wishes(spec)}
    subject = _Subject(f"pod {name}", names, pod=name)
    lost = subject.causes(LOST, _loss(spec, status, conditions))
    if metadata.get("deletionTimestamp"):
        return lost or subject.causes(TERMINATING, [*_finalizers(metadata), *_signs(events)])
    if _is(conditions, "Ready", "True"):
        return []
    if lost:
        return lost
    if _is(conditions, "PodScheduled", "False"):
        condition = conditions["PodScheduled"]
        return subject.causes(UNSCHEDULABLE, [_Sign(_text(condition, "reason"), _without_preemption(_text(condition, "message")))])
    return _of_containers(subject, spec, status, events)


def _wishes(spec: Json) -> dict[str, str]:
    """What a pod asks of the scheduler, for suggestions."""
    claims = [_text(_map(each, "persistentVolumeClaim"), "claimName") for each in _list(spec, "volumes")]
    asked = {resource: ", ".join(f"{_text(each, 'name')} asks for {amount}" for each in _list(spec, "containers")
                                 if (amount := _map(_map(each, "resources"), "requests").get(resource)))
             for resource in ("cpu", "memory")}
    selector = [f"{key}={value}" for key, value in _map(spec, "nodeSelector").items()]
    return {"claims": " ".join(filter(None, claims)), "cpu": asked["cpu"] or "see the template",
            "asked_memory": asked["memory"] or "see the template", "selector": ", ".join(selector) or "nodeAffinity",
            "gates": ", ".join(_text(each, "name") for each in _list(spec, "schedulingGates"))}


def _loss(spec: Json, status: Json, conditions: dict[str, Json]) -> list[_Sign]:
    """Signs that the pod is lost with its node, or was thrown off it."""
    signs = [_Sign(_text(status, "reason"), _text(status, "message"))]
    if _is(conditions, "DisruptionTarget", "True"):
        signs.append(_Sign(_text(conditions["DisruptionTarget"], "reason"), _text(conditions["DisruptionTarget"], "message")))
    if "Ready" in conditions and not _is(conditions, "Ready", "True"):
        signs.append(_Sign(_text(conditions["Ready"], "reason"), _text(conditions["Ready"], "message")))
        # A kubelet gives a reason. The node controller, which has lost the node, changes the condition's status and no more.
        containers = _list(status, "containerStatuses")
        if containers and all(each.get("ready") is True for each in containers) and not _text(conditions["Ready"], "reason"):
            signs.append(_Sign("NodeNotReady", f"node {_text(spec, 'nodeName')} has stopped answering"))
    return signs


def _finalizers(metadata: Json) -> list[_Sign]:
    """A grace period of 0 in an object that is still there: the kubelet has let go of it, finalizers have not."""
    names = metadata.get("finalizers")
    if not isinstance(names, list) or not names or metadata.get("deletionGracePeriodSeconds") != 0:
        return []
    return [_Sign("Terminating", "finalizers keep it: " + ", ".join(str(name) for name in names))]


def _of_containers(subject: _Subject, spec: Json, status: Json, events: list[Json]) -> list[Cause]:
    found = []
    states = {kind: {_text(each, "name"): each for each in _list(status, key)}
              for kind, key in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))}
    has_begun = any(_begun(each) for of_kind in states.values() for each in of_kind.values())
    if not has_begun:  # a volume, the network: nothing that belongs to one container
        found += subject.causes(NOT_STARTED, _signs(event for event in events if not _field(event)))
    for kind, of_kind in states.items():
        specs = {_text(each, "name"): each for each in _list(spec, kind)}
        for name, state in of_kind.items():
            about = [event for event in events if _field(event) in ("", f"spec.{kind}{{{name}}}")]
            found += _of_container(_container(subject, kind, specs.get(name, {}), state), specs.get(name, {}), state, about)
    return found


def _container(pod: _Subject, kind: str, spec: Json, status: Json) -> _Subject:
    name = _text(status, "name")
    is_sidecar = kind == "initContainers" and _text(spec, "restartPolicy") == "Always"
    is_init = kind == "initContainers" and not is_sidecar
    title = "init container" if is_init else "sidecar container" if is_sidecar else "container"
    last = _map(_map(status, "lastState"), "terminated")
    is_restarted = bool(last) and not _map(_map(status, "state"), "terminated")
    logs = f"{pod.names['kubectl']} logs {pod.pod} -c {name}" + (" --previous" if is_restarted else "")
    limit = _map(_map(spec, "resources"), "limits").get("memory")
    return dataclasses.replace(
        pod, place=f"{pod.place}, {title} {name}", container=name, is_init=is_init, is_restarted=is_restarted,
        is_again=_number(status, "restartCount") > 1 or _waiting(status)[0] == "CrashLoopBackOff",
        names={**pod.names, "container": name, "logs": logs,
               "memory": f"now {limit}" if limit else "none is set: the node itself ran out",
               **{probe: _asks(_map(spec, f"{probe}Probe")) for probe in ("startup", "liveness", "readiness")}})


def _asks(probe: Json) -> str:
    """What a probe asks, and how often: "GET :8080/healthz, periodSeconds 10, failureThreshold 3"."""
    http, tcp, grpc = (_map(probe, kind) for kind in ("httpGet", "tcpSocket", "grpc"))
    command = _map(probe, "exec").get("command")
    asks = (f"GET :{http.get('port')}{_text(http, 'path')}" if http else f"TCP :{tcp.get('port')}" if tcp
            else f"gRPC :{grpc.get('port')}" if grpc else " ".join(map(str, command)) if isinstance(command, list) else "")
    times = [f"{field} {number}" for field in ("periodSeconds", "failureThreshold") if (number := _number(probe, field))]
    return ", ".join(filter(None, (asks, *times)))


def _of_container(subject: _Subject, spec: Json, status: Json, events: list[Json]) -> list[Cause]:
    if status.get("ready") is True:
        return []
    reason, message = _waiting(status)
    if reason not in (*_HEALTHY, "CrashLoopBackOff"):
        if re.fullmatch(r'(Back-off pulling image "[^"]*")?', message):  # up to Kubernetes 1.31 only the event says why
            message = next((each.message for each in _signs(events) if "Failed to pull image" in each.message), message)
        return subject.causes((*NOT_STARTED, _OTHER), [_Sign(reason, message)])
    if not _begun(status):
        return subject.causes(NOT_STARTED, _signs(event for event in events if _field(event)))
    probes = _probes(events)
    found = []
    end = _map(_map(status, "state"), "terminated") or _map(_map(status, "lastState"), "terminated")
    if end and not (subject.is_init and _number(end, "exitCode") == 0):
        restarts = _number(status, "restartCount")
        killers = [each._replace(message=f"{each.message}; {_restarted(restarts)}") for probe, each in probes.items()
                   if restarts and each.times >= _threshold(spec, probe)]
        found += subject.causes(ENDED, [_end(reason, end, restarts), *killers])
    if "running" in _map(status, "state"):
        found += subject.causes(RUNNING, list(probes.values()))
    return found


def _end(waiting: str, end: Json, restarts: int) -> _Sign:
    """How a container's process ended. "Error" says less than the CrashLoopBackOff that follows it."""
    reason, code = _text(end, "reason"), _number(end, "exitCode")
    signal = f" ({SIGNALS.get(code - 128, f'signal {code - 128}')})" if 128 < code < 160 else ""
    if reason in ("StartError", "ContainerCannotRun"):
        return _Sign(reason, _text(end, "message"))
    if reason in ("", "Error", "Completed"):
        reason = waiting or reason or "Error"
    told = ": ".join(filter(None, (f"exit code {code}{signal}, {_restarted(restarts)}", _text(end, "message"))))
    return _Sign(reason, told)


def _restarted(times: int) -> str:
    return {0: "not restarted yet", 1: "restarted once"}.get(times, f"restarted {times} times")


def _probes(events: list[Json]) -> dict[str, _Sign]:
    """For each probe that failed ("startup", ...) its last message, and how often it failed whatever the message was."""
    found: dict[str, _Sign] = {}
    for sign in _signs(events):
        match = re.search(r"(Startup|Liveness|Readiness) probe (failed|errored)", sign.message)
        if match and sign.reason == "Unhealthy":
            probe = match[1].lower()
            found[probe] = sign._replace(times=sign.times + (found[probe].times if probe in found else 0))
    return found


def _threshold(spec: Json, probe: str) -> int:
    """How many failures of a probe make the kubelet end the container; what is not known has failed often enough."""
    return _number(_map(spec, f"{probe}Probe"), "failureThreshold") or 1


def _signs(events: t.Iterable[Json]) -> list[_Sign]:
    """The oldest first. "Error: ErrImagePull" and its like are left out: another event says more at the same moment."""
    ordered = sorted(events, key=lambda event: _text(event, "lastTimestamp") or _text(event, "eventTime"))
    signs = [_Sign(_text(event, "reason"), _text(event, "message").removeprefix("(combined from similar events): "),
                   _number(event, "count") or _number(_map(event, "series"), "count") or 1) for event in ordered]
    return [sign for sign in signs if not re.fullmatch(r"Error: \w+", sign.message)]


def _field(event: Json) -> str:
    """The part of the pod that an event is about: "spec.containers{web}", or ""."""
    return _text(_map(event, "involvedObject"), "fieldPath")


def _waiting(status: Json) -> tuple[str, str]:
    waiting = _map(_map(status, "state"), "waiting")
    return _text(waiting, "reason"), _text(waiting, "message")


def _begun(status: Json) -> bool:
    """The container runs or has run."""
    return any(key in _map(status, state) for state in ("state", "lastState") for key in ("running", "terminated"))


def _is(conditions: dict[str, Json], kind: str, value: str) -> bool:
    return _text(conditions.get(kind, {}), "status") == value


def _kubectl(namespace: str) -> str:
    return f"kubectl -n {namespace}" if namespace else "kubectl"


def _without_preemption(message: str) -> str:
    """The scheduler's sentence without what it adds in nearly all cases."""
    return re.sub(r"\s*(no new claims to deallocate,?|preemption: .*|(?<=\.) not found$)", "", message)


def _one_line(message: str) -> str:
    line = " ".join(message.split()).rstrip(". ")
    line = _WRAPPINGS.sub("", line, count=1).removesuffix(": unknown") or line
    if len(line) <= LONGEST_MESSAGE:
        return line
    return f"{line[:LONGEST_MESSAGE // 3]} ... {line[-(LONGEST_MESSAGE - LONGEST_MESSAGE // 3 - 5):]}"

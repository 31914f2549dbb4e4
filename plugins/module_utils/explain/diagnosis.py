# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Causes of unavailable pods, in the cluster's own words. Pure.

The functions collect symptoms (reason and message) from a controller, its pods and their Events,
and look the symptoms up in the tables of failure_reasons.py.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from ..flows import handover
from ..model import identity
from ..model.fields import Json
from ..model.fields import mapping as _map
from ..model.fields import number as _number
from ..model.fields import objects as _list
from ..model.fields import text as _text
from ..model.observed import Controller
from ..model.request import Request
from .failure_reasons import (
    ENDED,
    HEALTHY,
    LOST,
    NOT_STARTED,
    ORDER,
    OTHER,
    PULL,
    REFUSED,
    REJECTED,
    RUNNING,
    TERMINATING,
    UNSCHEDULABLE,
    Fatal,
    Row,
    advice_after_waiting,
)
from .symptoms import (
    Symptom,
    condition_symptom,
    event_field,
    event_symptoms,
    finalizer_symptoms,
    grace_period_symptom,
    has_started,
    has_status,
    loss_symptoms,
    probe_failures,
    probe_threshold,
    restart_text,
    termination,
    waiting_reason,
)

#: Longer messages lose their middle: the object is at the beginning, the innermost reason at the
#: end.
LONGEST_MESSAGE = 600
#: Values of a suggestion that are safe in a command, and the beginnings of lines with a command.
_COMMANDS = ("kubectl", "cluster", "logs", "claims")
_BEGINS_COMMAND = ("{kubectl} ", "{cluster} ", "{logs}")
#: Redundant prefixes that the kubelet and the container runtime wrap around a message.
_WRAPPINGS = re.compile(
    r'^(Back-off pulling image "[^"]*": (?=Err))?(ErrImagePull: )?'
    r'(failed to pull and unpack image "[^"]*": (?=failed to resolve))?'
    r"(failed to create (containerd|shim) task: )*(OCI runtime create failed: )?"
    r"(runc create failed: )?"
    r"(unable to start container process: )?")
#: Fields of a pod's spec, and the fields of its status with the states of these containers.
_STATUSES = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}


@dataclasses.dataclass(frozen=True)
class Cause:
    """Cause that keeps pods of a controller from becoming available."""

    #: Stable word for the cause, such as "image" or "crash"; "init-crash" in an init container.
    kind: str
    #: The cluster's own reason, such as "ImagePullBackOff".
    reason: str
    #: The cluster's own message, one line, at most LONGEST_MESSAGE characters.
    message: str
    #: Next thing to check or to type; a command has a line of its own.
    suggestion: str
    #: Waiting does not help.
    is_fatal: bool
    #: An affected pod; "" for a condition of the controller itself.
    pod: str = ""
    #: Container with a relevant log, or "".
    container: str = ""
    #: Whether the relevant log is from the container's previous run.
    is_restarted: bool = False
    #: Number of affected pods.
    pods: int = 1
    #: Affected object in words: "pod foo-abc, init container setup".
    place: str = ""

    @property
    def is_rejection(self) -> bool:
        """Whether a node rejected a pod after binding; the controller replaces the pod at once."""
        return self.kind == REJECTED

    def as_endless(self) -> Cause:
        """Return the cause as a fatal one, because every replacement pod fails in the same way."""
        return dataclasses.replace(self, is_fatal=True,
                                   suggestion=advice_after_waiting(self.suggestion))

    @property
    def sentence(self) -> str:
        """Cause and place in words, without the suggestion."""
        is_repeated = self.message.startswith(self.reason)
        text = self.message if is_repeated else ": ".join(filter(None, (self.reason, self.message)))
        more = self.pods - 1
        count = f" (and {more} more pod{'s' if more > 1 else ''})" if more else ""
        return f"{self.place}: {text}{count}"


def causes(request: Request, controller: Controller, pods: t.Sequence[Json],
           events: t.Sequence[Json]) -> list[Cause]:
    """Return the causes, one per kind, most specific first.

    pods: full objects of the controller's unready pods. events: Warning Events of the namespace;
    Events of other objects are ignored. Event texts are untrusted: an Event explains a pod's own
    status, and never makes a cause fatal by itself.
    """
    commands = _commands(request)
    about: dict[str, list[Json]] = collections.defaultdict(list)
    for event in events:
        about[_text(_map(event, "involvedObject"), "uid")].append(event)
    causes = _refused(controller, about[controller.uid], commands)
    for pod in pods:
        uid = _text(_map(pod, "metadata"), "uid")
        causes += _causes_in_pod(pod, about[uid] if uid else [], commands,
                                 request.waits_for_termination)
    return merged(causes)


def pod_causes(request: Request, pod: Json, events: t.Iterable[Json]) -> list[Cause]:
    """Return the causes of an unready or terminating pod; events: the Events of the pod."""
    return _causes_in_pod(pod, list(events), _commands(request))


def restart_causes(request: Request, pod: Json, names: t.Collection[str]) -> list[Cause]:
    """Return the last termination of each restarted container in names, running or not."""
    spec, status = _map(pod, "spec"), _map(pod, "status")
    name = _text(_map(pod, "metadata"), "name")
    values = {"pod": name, "node": _text(spec, "nodeName"), **_commands(request)}
    subject = _Subject(f"pod {name}", values, pod=name)
    causes = []
    for kind, key in _STATUSES.items():
        specs = _by_name(_list(spec, kind))
        for state in _list(status, key):
            if (container := _text(state, "name")) in names:
                end = (_map(_map(state, "lastState"), "terminated")
                       or _map(_map(state, "state"), "terminated"))
                restarts = _number(state, "restartCount")
                symptom = (termination(waiting_reason(state)[0], end, restarts) if end
                           else Symptom("Restarted", restart_text(restarts)))
                subject_container = _container(subject, kind, specs.get(container, {}), state)
                causes += subject_container.causes(ENDED, [symptom])
    return causes


def merged(causes: t.Iterable[Cause]) -> list[Cause]:
    """Merge causes into one per kind, most specific first."""
    by_kind: dict[str, list[Cause]] = collections.defaultdict(list)
    for cause in causes:
        by_kind[cause.kind].append(cause)
    examples = []
    for same_kind in by_kind.values():
        example = min(same_kind, key=lambda cause: (not cause.is_fatal, cause.pod))
        examples.append(dataclasses.replace(example, pods=len({cause.pod for cause in same_kind})))
    return sorted(examples, key=lambda cause: (
        not cause.is_fatal, ORDER.index(cause.kind.removeprefix("init-"))))


@dataclasses.dataclass(frozen=True)
class _Subject:
    """Object with symptoms: the controller, a pod or a container."""

    place: str
    #: Values for suggestions.
    names: dict[str, str]
    pod: str = ""
    container: str = ""
    is_init: bool = False
    #: Whether the container failed more than once.
    is_repeated: bool = False
    is_restarted: bool = False

    def causes(self, rows: t.Iterable[Row], symptoms: t.Sequence[Symptom]) -> list[Cause]:
        """Return the cause of the first matching row, or an empty list."""
        for row in rows:
            for symptom in symptoms:
                match = re.search(row.says, f"{symptom.reason}: {symptom.message}")
                if match and symptom.times >= row.times:
                    return [self._cause(row, symptom, match.groupdict())]
        return []

    def _cause(self, row: Row, symptom: Symptom, matched: dict[str, str]) -> Cause:
        return Cause(
            kind=f"init-{row.kind}" if self.is_init else row.kind,
            reason=symptom.reason,
            message=_one_line(symptom.message),
            suggestion=_suggestion(row.suggestion, {**self.names, **matched}),
            is_fatal=((row.fatal is Fatal.YES and not symptom.is_from_event)
                      or (row.fatal is Fatal.AGAIN and self.is_repeated)),
            pod=self.pod,
            container=self.container if row.has_log else "",
            is_restarted=self.is_restarted and row.has_log,
            place=self.place,
        )


def _suggestion(template: str, values: t.Mapping[str, str | None]) -> str:
    """Fill in a row's suggestion; commands, which users paste, get only valid object names."""
    texts = {key: " ".join((value or "").split()) for key, value in values.items()}
    names = {key: text if key in _COMMANDS else name_or_placeholder(key, text)
             for key, text in texts.items()}
    return "\n".join(line.format_map(names if line.startswith(_BEGINS_COMMAND) else texts)
                     for line in template.split("\n"))


def name_or_placeholder(kind: str, name: str) -> str:
    """Return a valid name for a command; for any other text, a placeholder such as POD."""
    return name if identity.is_name(name) else kind.upper()


def _commands(request: Request) -> dict[str, str]:
    """Return the beginnings of commands, for suggestions."""
    return {"kubectl": request.kubectl, "cluster": request.cluster_kubectl, **_advice(request)}


def _advice(request: Request) -> dict[str, str]:
    """Return the advice to delete old pods first, unless that is the only order."""
    advice = ", or remove old pods first: max_surge=0 max_unavailable=1"
    return {"or_gently": advice if request.may_surge else ""}


def _refused(controller: Controller, events: list[Json],
             commands: t.Mapping[str, str]) -> list[Cause]:
    """Return the cause for which the controller manager cannot create pods or delete surplus ones.

    Kinds without a ReplicaFailure condition only have Events, which count while pods are missing.
    """
    subject = _Subject(f"{controller.kind} {controller.name}", {**commands})
    if not controller.reports_failures and controller.current < controller.replicas:
        symptoms = [symptom for symptom in event_symptoms(events)
                    if symptom.reason == "FailedCreate"]
        return subject.causes(REFUSED, symptoms[-1:])
    # A closed template fails on purpose, until all pods are handed over.
    if not controller.failure or handover.CLOSED in controller.failure:
        return []
    reason = "FailedDelete" if controller.current > controller.replicas else "FailedCreate"
    return subject.causes(REFUSED, [Symptom(reason, controller.failure)])


def _causes_in_pod(pod: Json, events: list[Json], commands: t.Mapping[str, str],
                   waits_for_termination: bool = False) -> list[Cause]:
    metadata, spec, status = (_map(pod, key) for key in ("metadata", "spec", "status"))
    conditions = {_text(condition, "type"): condition for condition in _list(status, "conditions")}
    name = _text(metadata, "name")
    names = {"pod": name, "node": _text(spec, "nodeName"), **commands, **_scheduling(spec)}
    subject = _Subject(f"pod {name}", names, pod=name)
    lost = subject.causes(LOST, loss_symptoms(spec, status, conditions))
    if metadata.get("deletionTimestamp"):
        grace = [grace_period_symptom(metadata)] if waits_for_termination else []
        symptoms = [*finalizer_symptoms(metadata), *event_symptoms(events), *grace]
        return lost or subject.causes(TERMINATING, symptoms)
    if has_status(conditions, "Ready", "True"):
        return []
    if lost:
        return lost
    if has_status(conditions, "PodScheduled", "False"):
        symptom = condition_symptom(conditions["PodScheduled"])
        message = _without_preemption(symptom.message)
        return subject.causes(UNSCHEDULABLE, [symptom._replace(message=message)])
    return _causes_in_containers(subject, spec, status, events)


def _scheduling(spec: Json) -> dict[str, str]:
    """Return the pod's constraints on scheduling, for suggestions."""
    claims = [_text(_map(volume, "persistentVolumeClaim"), "claimName")
              for volume in _list(spec, "volumes")]
    selector = [f"{key}={value}" for key, value in _map(spec, "nodeSelector").items()]
    return {"claims": " ".join(filter(identity.is_name, claims)),
            "cpu": _requests(spec, "cpu") or "see the template",
            "requested_memory": _requests(spec, "memory") or "see the template",
            "selector": ", ".join(selector) or "nodeAffinity",
            "gates": ", ".join(_text(gate, "name") for gate in _list(spec, "schedulingGates"))}


def _requests(spec: Json, resource: str) -> str:
    """Return the containers' requests of a resource: "web requests 100m, log requests 50m"."""
    containers = _list(spec, "containers")
    return ", ".join(
        f"{_text(container, 'name')} requests {amount}" for container in containers
        if (amount := _map(_map(container, "resources"), "requests").get(resource)))


def _causes_in_containers(subject: _Subject, spec: Json, status: Json,
                          events: list[Json]) -> list[Cause]:
    causes = []
    states = {kind: _by_name(_list(status, key)) for kind, key in _STATUSES.items()}
    # A volume or the network fails for the whole pod, before any container starts.
    if not any(has_started(state) for statuses in states.values() for state in statuses.values()):
        symptoms = [_confirm_mount(symptom, status) for symptom in event_symptoms(
            event for event in events if not event_field(event))]
        causes += subject.causes(NOT_STARTED, symptoms)
    for kind, statuses in states.items():
        specs = _by_name(_list(spec, kind))
        for name, state in statuses.items():
            container = specs.get(name, {})
            about = [event for event in events
                     if event_field(event) in ("", f"spec.{kind}{{{name}}}")]
            container_subject = _container(subject, kind, container, state)
            causes += _causes_in_container(container_subject, container, state, about)
    return causes


def _by_name(items: t.Iterable[Json]) -> dict[str, Json]:
    return {_text(item, "name"): item for item in items}


def _confirm_mount(symptom: Symptom, status: Json) -> Symptom:
    """Trust an Event about volumes of a pod without a sandbox, which follows all mounts."""
    has_no_sandbox = any(_text(condition, "type") == "PodReadyToStartContainers"
                         and _text(condition, "status") == "False"
                         for condition in _list(status, "conditions"))
    return symptom._replace(
        is_from_event=not (has_no_sandbox and symptom.reason == "FailedMount"))


def _container(pod: _Subject, kind: str, spec: Json, status: Json) -> _Subject:
    name = _text(status, "name")
    is_sidecar = kind == "initContainers" and _text(spec, "restartPolicy") == "Always"
    is_init = kind == "initContainers" and not is_sidecar
    title = "init container" if is_init else "sidecar container" if is_sidecar else "container"
    last = _map(_map(status, "lastState"), "terminated")
    is_restarted = bool(last) and not _map(_map(status, "state"), "terminated")
    logs = (f"{pod.names['kubectl']} logs {name_or_placeholder('pod', pod.pod)} "
            f"-c {name_or_placeholder('container', name)}"
            + (" --previous" if is_restarted else ""))
    limit = _map(_map(spec, "resources"), "limits").get("memory")
    crashes = waiting_reason(status)[0] == "CrashLoopBackOff"
    return dataclasses.replace(
        pod, place=f"{pod.place}, {title} {name}", container=name, is_init=is_init,
        is_restarted=is_restarted, is_repeated=_number(status, "restartCount") > 1 or crashes,
        names={**pod.names, "container": name, "logs": logs,
               "memory": f"now {limit}" if limit else "none is set: the node itself ran out",
               **{probe: _describe_probe(_map(spec, f"{probe}Probe"))
                  for probe in ("startup", "liveness", "readiness")}})


def _describe_probe(probe: Json) -> str:
    """Return action and times of a probe: "GET :8080/healthz, failureThreshold 3"."""
    http, tcp, grpc = (_map(probe, kind) for kind in ("httpGet", "tcpSocket", "grpc"))
    command = _map(probe, "exec").get("command")
    action = (f"GET :{http.get('port')}{_text(http, 'path')}" if http
              else f"TCP :{tcp.get('port')}" if tcp
              else f"gRPC :{grpc.get('port')}" if grpc
              else " ".join(map(str, command)) if isinstance(command, list) else "")
    times = [f"{field} {number}" for field in ("periodSeconds", "failureThreshold")
             if (number := _number(probe, field))]
    return ", ".join(filter(None, (action, *times)))


def _causes_in_container(subject: _Subject, spec: Json, status: Json,
                         events: list[Json]) -> list[Cause]:
    if status.get("ready") is True:
        return []
    reason, message = waiting_reason(status)
    if reason not in (*HEALTHY, "CrashLoopBackOff"):
        if reason in PULL and re.fullmatch(r'(Back-off pulling image "[^"]*")?', message):
            # Up to Kubernetes 1.31, only the Event has the reason.
            message = next((symptom.message for symptom in event_symptoms(events)
                            if "Failed to pull image" in symptom.message), message)
        return subject.causes((*NOT_STARTED, OTHER), [Symptom(reason, message)])
    if not has_started(status):
        about = (event for event in events if event_field(event))
        return subject.causes(NOT_STARTED, event_symptoms(about))
    probes = probe_failures(events)
    causes = []
    end = _map(_map(status, "state"), "terminated") or _map(_map(status, "lastState"), "terminated")
    if end and not (subject.is_init and _number(end, "exitCode") == 0):
        restarts = _number(status, "restartCount")
        failed_probes = [symptom._replace(message=f"{symptom.message}; {restart_text(restarts)}")
                         for probe, symptom in probes.items()
                         if restarts and symptom.times >= probe_threshold(spec, probe)]
        causes += subject.causes(ENDED, [termination(reason, end, restarts), *failed_probes])
    if "running" in _map(status, "state"):
        causes += subject.causes(RUNNING, list(probes.values()))
    return causes


def _without_preemption(message: str) -> str:
    """Return the scheduler's message without its routine additions."""
    return re.sub(r"no new claims to deallocate,?|preemption: .*|(?<=\.) not found$", "", message)


def _one_line(message: str) -> str:
    line = " ".join(message.split()).rstrip(". ")
    line = _WRAPPINGS.sub("", line, count=1).removesuffix(": unknown") or line
    if len(line) <= LONGEST_MESSAGE:
        return line
    first = LONGEST_MESSAGE // 3
    return f"{line[:first]} ... {line[-(LONGEST_MESSAGE - first - 5):]}"

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the causes of unavailable pods, using the tables of failure_reasons.py. No I/O."""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from ..flows import handover
from ..flows.flow import RolloutStatus
from ..model import identity
from ..model.fields import Json
from ..model.fields import mapping as _map
from ..model.fields import number as _number
from ..model.fields import objects as _list
from ..model.fields import text as _text
from ..model.observed import Controller
from ..model.request import Request
from .failure_reasons import (
    KINDS_BY_SPECIFICITY,
    LOST_OR_GATED,
    NORMAL_START,
    NOT_STARTED,
    OTHER,
    OUTDATED_REPLICA_SET,
    PULL_REASONS,
    REJECTED,
    REPLICA_FAILURE,
    RUNNING,
    TERMINATED,
    TERMINATING,
    UNSCHEDULABLE,
    Fatal,
    Row,
    without_advice_to_wait,
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
    outdated_replica_set_symptom,
    probe_failures,
    probe_threshold,
    restart_text,
    termination_symptom,
    waiting_reason_and_message,
)

#: In characters. The middle of a longer message is omitted.
MAX_MESSAGE_LENGTH = 600
#: In characters. The end of a longer description of a probe's action is omitted.
MAX_PROBE_LENGTH = 100
#: Placeholders whose values are safe in a command.
_SAFE_PLACEHOLDERS = ("kubectl", "cluster", "logs", "claims")
_COMMAND_PREFIXES = ("{kubectl} ", "{cluster} ", "{logs}")
#: Prefixes that the kubelet and the container runtime add to messages.
_REDUNDANT_PREFIXES = re.compile(
    r'^(Back-off pulling image "[^"]*": (?=Err))?(ErrImagePull: )?'
    r'(failed to pull and unpack image "[^"]*": (?=failed to resolve))?'
    r"(failed to create (containerd|shim) task: )*(OCI runtime create failed: )?"
    r"(runc create failed: )?"
    r"(unable to start container process: )?")
#: The field of the status, by field of the spec.
_STATUS_FIELDS = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}


@dataclasses.dataclass(frozen=True)
class Cause:
    """A cause of unavailable pods."""

    #: Such as "crash", or "init-crash" for an init container.
    kind: str
    #: Such as "ImagePullBackOff".
    reason: str
    #: One line.
    message: str
    suggestion: str
    #: Whether the cause does not end by itself.
    is_fatal: bool
    #: "" for a cause of the controller itself.
    pod: str = ""
    #: The container with the cause in its log, or "".
    container: str = ""
    #: Whether the cause is in the log of the container's previous instance.
    is_restarted: bool = False
    #: The number of affected pods.
    pods: int = 1
    #: Such as "pod foo-abc, init container setup".
    place: str = ""

    @property
    def is_rejection(self) -> bool:
        """Whether the kubelet has rejected the pod."""
        return self.kind == REJECTED

    def as_fatal(self) -> Cause:
        """Return a fatal copy of the cause, without the advice to wait."""
        return dataclasses.replace(self, is_fatal=True,
                                   suggestion=without_advice_to_wait(self.suggestion))

    @property
    def sentence(self) -> str:
        has_reason = self.message.startswith(self.reason)
        text = self.message if has_reason else ": ".join(filter(None, (self.reason, self.message)))
        other_count = self.pods - 1
        suffix = (f" (and {other_count} more pod{'s' if other_count > 1 else ''})"
                  if other_count else "")
        return f"{self.place}: {text}{suffix}"


def causes(request: Request, controller: Controller, pods: t.Sequence[Json],
           events: t.Sequence[Json]) -> list[Cause]:
    """Return the causes for the controller and its pods, at most one cause of each kind."""
    commands = _command_values(request)
    events_by_uid: dict[str, list[Json]] = collections.defaultdict(list)
    for event in events:
        events_by_uid[_text(_map(event, "involvedObject"), "uid")].append(event)
    all_causes = _controller_causes(controller, events_by_uid[controller.uid], commands)
    for pod in pods:
        uid = _text(_map(pod, "metadata"), "uid")
        all_causes += _causes_in_pod(pod, events_by_uid[uid] if uid else [], commands,
                                     request.waits_for_termination)
    return merge(all_causes)


def outdated_replica_set_causes(request: Request, status: RolloutStatus) -> list[Cause]:
    """Return one cause if a ReplicaSet's outdated annotation blocks the rollout, else []."""
    replica_set, deployment = status.outdated_replica_set, status.survivor
    if replica_set is None or deployment is None or not deployment.is_observed:
        return []
    values = {"replica_set": replica_set.name, "size": str(deployment.replicas),
              **_command_values(request)}
    subject = _Subject(f"{replica_set.kind} {replica_set.name}", values)
    symptom = outdated_replica_set_symptom(replica_set, deployment.replicas)
    return subject.causes(OUTDATED_REPLICA_SET, [symptom])


def creation_causes(request: Request, status: RolloutStatus) -> list[Cause]:
    """Return one cause if a Deployment's new ReplicaSet cannot be created, else []."""
    if not status.creation_failure or status.survivor is None:
        return []
    # The deletion of old pods frees no quota for a ReplicaSet.
    subject = _Subject(f"{status.survivor.kind} {status.survivor.name}",
                       {**_command_values(request), "or_delete_first": ""})
    return subject.causes(REPLICA_FAILURE,
                          [Symptom("ReplicaSetCreateError", status.creation_failure)])


def pod_causes(request: Request, pod: Json, events: t.Iterable[Json]) -> list[Cause]:
    """Return the causes of an unready pod, or of a pod that has not terminated yet."""
    return _causes_in_pod(pod, list(events), _command_values(request))


def restart_causes(request: Request, pod: Json, container_names: t.Collection[str]) -> list[Cause]:
    """Return a cause for the last restart of each container in `container_names`."""
    spec, status = _map(pod, "spec"), _map(pod, "status")
    name = _text(_map(pod, "metadata"), "name")
    values = {"pod": name, "node": _text(spec, "nodeName"), **_command_values(request)}
    subject = _Subject(f"pod {name}", values, pod=name)
    causes = []
    for field, status_field in _STATUS_FIELDS.items():
        specs = _by_name(_list(spec, field))
        for container_status in _list(status, status_field):
            if (container := _text(container_status, "name")) in container_names:
                termination = (_map(_map(container_status, "lastState"), "terminated")
                               or _map(_map(container_status, "state"), "terminated"))
                restart_count = _number(container_status, "restartCount")
                waiting, _message = waiting_reason_and_message(container_status)
                symptom = (termination_symptom(waiting, termination, restart_count)
                           if termination else Symptom("Restarted", restart_text(restart_count)))
                container_subject = _subject_of_container(
                    subject, field, specs.get(container, {}), container_status)
                causes += container_subject.causes(TERMINATED, [symptom])
    return causes


def merge(causes: t.Iterable[Cause]) -> list[Cause]:
    """Return one cause for each kind in `causes`. Fatal causes come first.

    Within the fatal and within the other causes, specific causes come before general causes.
    """
    causes_by_kind: dict[str, list[Cause]] = collections.defaultdict(list)
    for cause in causes:
        causes_by_kind[cause.kind].append(cause)
    examples = []
    for causes_of_kind in causes_by_kind.values():
        example = min(causes_of_kind, key=lambda cause: (not cause.is_fatal, cause.pod))
        examples.append(dataclasses.replace(
            example, pods=len({cause.pod for cause in causes_of_kind})))
    return sorted(examples, key=lambda cause: (
        not cause.is_fatal, KINDS_BY_SPECIFICITY.index(cause.kind.removeprefix("init-"))))


@dataclasses.dataclass(frozen=True)
class _Subject:
    """An object with symptoms: the controller, a pod or a container."""

    place: str
    #: The texts for suggestions, by placeholder.
    values: dict[str, str]
    pod: str = ""
    container: str = ""
    is_init: bool = False
    has_failed_repeatedly: bool = False
    is_restarted: bool = False

    def causes(self, rows: t.Iterable[Row], symptoms: t.Sequence[Symptom]) -> list[Cause]:
        """Return a list with the cause of the first matching row, or []."""
        for row in rows:
            for symptom in symptoms:
                match = re.search(row.pattern, f"{symptom.reason}: {symptom.message}")
                if match and symptom.occurrences >= row.min_count:
                    return [self._cause(row, symptom, match.groupdict())]
        return []

    def _cause(self, row: Row, symptom: Symptom, groups: dict[str, str]) -> Cause:
        return Cause(
            kind=f"init-{row.kind}" if self.is_init else row.kind,
            reason=symptom.reason,
            message=_one_line(symptom.message),
            suggestion=_suggestion(row.suggestion, {**self.values, **groups}),
            # With Fatal.YES, a cause that only an Event shows is not fatal: users can forge Events.
            is_fatal=((row.fatal is Fatal.YES and not symptom.is_from_event)
                      or (row.fatal is Fatal.ON_REPEAT and self.has_failed_repeatedly)),
            pod=self.pod,
            container=self.container if row.shows_log else "",
            is_restarted=self.is_restarted and row.shows_log,
            place=self.place,
        )


def _suggestion(template: str, values: t.Mapping[str, str | None]) -> str:
    """Fill in the placeholders of a suggestion.

    Users paste the commands, so a command contains only valid names and safe values.
    """
    texts = {key: " ".join((value or "").split()) for key, value in values.items()}
    safe_texts = {key: text if key in _SAFE_PLACEHOLDERS else name_or_placeholder(key, text)
                  for key, text in texts.items()}
    return "\n".join(line.format_map(safe_texts if line.startswith(_COMMAND_PREFIXES) else texts)
                     for line in template.split("\n"))


def name_or_placeholder(kind: str, name: str) -> str:
    """Return a valid name unchanged; for an invalid name, the kind in capitals, such as POD."""
    return name if identity.is_name(name) else kind.upper()


def _command_values(request: Request) -> dict[str, str]:
    return {"kubectl": request.kubectl, "cluster": request.cluster_kubectl,
            **_surge_alternative(request)}


def _surge_alternative(request: Request) -> dict[str, str]:
    advice = ", or remove old pods first: max_surge=0 max_unavailable=1"
    return {"or_delete_first": advice if request.may_surge else ""}


def _controller_causes(controller: Controller, events: list[Json],
                       commands: t.Mapping[str, str]) -> list[Cause]:
    subject = _Subject(f"{controller.kind} {controller.name}", {**commands})
    if not controller.reports_failures and controller.current < controller.replicas:
        symptoms = [symptom for symptom in event_symptoms(events)
                    if symptom.reason == "FailedCreate"]
        return subject.causes(REPLICA_FAILURE, symptoms[-1:])
    # During a handover, the task itself makes the creation of pods fail.
    if not controller.failure or handover.CLOSED in controller.failure:
        return []
    reason = "FailedDelete" if controller.current > controller.replicas else "FailedCreate"
    return subject.causes(REPLICA_FAILURE, [Symptom(reason, controller.failure)])


def _causes_in_pod(pod: Json, events: list[Json], commands: t.Mapping[str, str],
                   waits_for_termination: bool = False) -> list[Cause]:
    metadata, spec, status = (_map(pod, key) for key in ("metadata", "spec", "status"))
    conditions = {_text(condition, "type"): condition for condition in _list(status, "conditions")}
    name = _text(metadata, "name")
    values = {"pod": name, "node": _text(spec, "nodeName"), **commands,
              **_scheduling_values(spec)}
    subject = _Subject(f"pod {name}", values, pod=name)
    loss_causes = subject.causes(LOST_OR_GATED, loss_symptoms(spec, status, conditions))
    if metadata.get("deletionTimestamp"):
        grace_symptoms = [grace_period_symptom(metadata)] if waits_for_termination else []
        symptoms = [*finalizer_symptoms(metadata), *event_symptoms(events), *grace_symptoms]
        return loss_causes or subject.causes(TERMINATING, symptoms)
    if has_status(conditions, "Ready", "True"):
        return []
    if loss_causes:
        return loss_causes
    if has_status(conditions, "PodScheduled", "False"):
        symptom = condition_symptom(conditions["PodScheduled"])
        message = _without_boilerplate(symptom.message)
        return subject.causes(UNSCHEDULABLE, [symptom._replace(message=message)])
    return _causes_in_containers(subject, spec, status, events)


def _scheduling_values(spec: Json) -> dict[str, str]:
    claims = [_text(_map(volume, "persistentVolumeClaim"), "claimName")
              for volume in _list(spec, "volumes")]
    selector = [f"{key}={value}" for key, value in _map(spec, "nodeSelector").items()]
    return {"claims": " ".join(filter(identity.is_name, claims)),
            "cpu": _describe_requests(spec, "cpu") or "see the template",
            "requested_memory": _describe_requests(spec, "memory") or "see the template",
            "selector": ", ".join(selector) or "nodeAffinity",
            "gates": ", ".join(_text(gate, "name") for gate in _list(spec, "schedulingGates"))}


def _describe_requests(spec: Json, resource: str) -> str:
    containers = _list(spec, "containers")
    return ", ".join(
        f"{_text(container, 'name')} requests {amount}" for container in containers
        if (amount := _map(_map(container, "resources"), "requests").get(resource)))


def _causes_in_containers(subject: _Subject, spec: Json, status: Json,
                          events: list[Json]) -> list[Cause]:
    causes: list[Cause] = []
    outdated_symptoms: list[Symptom] = []
    statuses_by_field = {field: _by_name(_list(status, status_field))
                         for field, status_field in _STATUS_FIELDS.items()}
    # Volumes and the network are set up before any container starts.
    if not any(has_started(container_status) for statuses in statuses_by_field.values()
               for container_status in statuses.values()):
        symptoms = [_trust_mount_failure(symptom, status) for symptom in event_symptoms(
            event for event in events if not event_field(event))]
        outdated_symptoms = [symptom for symptom in symptoms if symptom.is_outdated]
        causes += subject.causes(
            NOT_STARTED, [symptom for symptom in symptoms if not symptom.is_outdated])
    for field, statuses in statuses_by_field.items():
        specs = _by_name(_list(spec, field))
        for name, container_status in statuses.items():
            container = specs.get(name, {})
            container_events = [event for event in events
                                if event_field(event) in ("", f"spec.{field}{{{name}}}")]
            container_subject = _subject_of_container(subject, field, container, container_status)
            causes += _causes_in_container(container_subject, container, container_status,
                                           container_events)
    # The problem of an outdated Event is possibly solved.
    return causes or subject.causes(NOT_STARTED, outdated_symptoms)


def _by_name(items: t.Iterable[Json]) -> dict[str, Json]:
    return {_text(item, "name"): item for item in items}


def _trust_mount_failure(symptom: Symptom, status: Json) -> Symptom:
    """Trust an Event about a failed mount that is repeated while the pod has no sandbox."""
    # No field of a pod shows why a volume is not mounted. (Users can forge the Event: see
    # docs/concepts/security.md.) The kubelet creates the sandbox after it has mounted all volumes.
    has_no_sandbox = any(_text(condition, "type") == "PodReadyToStartContainers"
                         and _text(condition, "status") == "False"
                         for condition in _list(status, "conditions"))
    return symptom._replace(
        is_from_event=not (has_no_sandbox and symptom.reason == "FailedMount"
                           and not symptom.is_outdated))


def _subject_of_container(pod_subject: _Subject, field: str, spec: Json, status: Json) -> _Subject:
    name = _text(status, "name")
    is_sidecar = field == "initContainers" and _text(spec, "restartPolicy") == "Always"
    is_init = field == "initContainers" and not is_sidecar
    title = "init container" if is_init else "sidecar container" if is_sidecar else "container"
    last_termination = _map(_map(status, "lastState"), "terminated")
    is_restarted = bool(last_termination) and not _map(_map(status, "state"), "terminated")
    logs_command = (f"{pod_subject.values['kubectl']} logs "
                    f"{name_or_placeholder('pod', pod_subject.pod)} "
                    f"-c {name_or_placeholder('container', name)}"
                    + (" --previous" if is_restarted else ""))
    memory_limit = _map(_map(spec, "resources"), "limits").get("memory")
    is_backing_off = waiting_reason_and_message(status)[0] == "CrashLoopBackOff"
    return dataclasses.replace(
        pod_subject, place=f"{pod_subject.place}, {title} {name}", container=name, is_init=is_init,
        is_restarted=is_restarted,
        has_failed_repeatedly=_number(status, "restartCount") > 1 or is_backing_off,
        values={**pod_subject.values, "container": name, "logs": logs_command,
                "memory": (f"now {memory_limit}" if memory_limit
                           else "none is set: the node itself ran out"),
                **{probe: _describe_probe(_map(spec, f"{probe}Probe"))
                   for probe in ("startup", "liveness", "readiness")}})


def _describe_probe(probe: Json) -> str:
    """Describe a probe, for example "GET :8080/healthz, failureThreshold 3"."""
    http, tcp, grpc = (_map(probe, kind) for kind in ("httpGet", "tcpSocket", "grpc"))
    command = _map(probe, "exec").get("command")
    # Arguments and a query may contain a password, so name only the program and the path.
    program, *arguments = command if isinstance(command, list) and command else [""]
    path, has_query, _query = _text(http, "path").partition("?")
    action = (f"GET :{http.get('port')}{path}{'?...' if has_query else ''}" if http
              else f"TCP :{tcp.get('port')}" if tcp
              else f"gRPC :{grpc.get('port')}" if grpc
              else f"{program}{' ...' if arguments else ''}")
    settings = [f"{field} {number}" for field in ("periodSeconds", "failureThreshold")
                if (number := _number(probe, field))]
    return ", ".join(filter(None, (action[:MAX_PROBE_LENGTH], *settings)))


def _causes_in_container(subject: _Subject, spec: Json, status: Json,
                         events: list[Json]) -> list[Cause]:
    if status.get("ready") is True:
        return []
    reason, message = waiting_reason_and_message(status)
    if reason not in (*NORMAL_START, "CrashLoopBackOff"):
        if reason in PULL_REASONS and re.fullmatch(r'(Back-off pulling image "[^"]*")?', message):
            # Before Kubernetes 1.32, only an Event says why the pull failed.
            message = next((symptom.message for symptom in event_symptoms(events)
                            if "Failed to pull image" in symptom.message), message)
        return subject.causes((*NOT_STARTED, OTHER), [Symptom(reason, message)])
    if not has_started(status):
        container_events = (event for event in events if event_field(event))
        return subject.causes(NOT_STARTED, event_symptoms(container_events))
    symptoms_by_probe = probe_failures(events)
    causes = []
    termination = (_map(_map(status, "state"), "terminated")
                   or _map(_map(status, "lastState"), "terminated"))
    if termination and not (subject.is_init and _number(termination, "exitCode") == 0):
        restart_count = _number(status, "restartCount")
        failed_probes = [
            symptom._replace(message=f"{symptom.message}; {restart_text(restart_count)}")
            for probe, symptom in symptoms_by_probe.items()
            if restart_count and symptom.occurrences >= probe_threshold(spec, probe)]
        causes += subject.causes(
            TERMINATED, [termination_symptom(reason, termination, restart_count), *failed_probes])
    if "running" in _map(status, "state"):
        causes += subject.causes(RUNNING, list(symptoms_by_probe.values()))
    return causes


def _without_boilerplate(message: str) -> str:
    return re.sub(r"no new claims to deallocate,?|preemption: .*|(?<=\.) not found$", "", message)


def _one_line(message: str) -> str:
    line = " ".join(message.split()).rstrip(". ")
    line = _REDUNDANT_PREFIXES.sub("", line, count=1).removesuffix(": unknown") or line
    if len(line) <= MAX_MESSAGE_LENGTH:
        return line
    head_length = MAX_MESSAGE_LENGTH // 3
    return f"{line[:head_length]} ... {line[-(MAX_MESSAGE_LENGTH - head_length - len(' ... ')):]}"

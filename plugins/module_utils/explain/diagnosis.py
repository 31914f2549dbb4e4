# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why pods do not become available, in the cluster's own words. Pure: fed with a controller, some of its pods, their events.

Everything that is known of failures stands in the tables of signs.py. The functions here only collect what the objects say
(signs) and look it up.
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
from .signs import (
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
    SIGNALS,
    TERMINATING,
    UNSCHEDULABLE,
    Fatal,
    Row,
    at_last,
)

#: Longer messages lose their middle: the object stands at the beginning, the innermost reason at the end.
LONGEST_MESSAGE = 600
#: The values of a suggestion that are made for a command, and what a line that is one begins with.
_COMMANDS = ("kubectl", "cluster", "logs", "claims")
_BEGINS_COMMAND = ("{kubectl} ", "{cluster} ", "{logs}")
#: What programs put before a message on its way, which only repeats what stands there anyway.
_WRAPPINGS = re.compile(
    r'^(Back-off pulling image "[^"]*": (?=Err))?(ErrImagePull: )?(failed to pull and unpack image "[^"]*": (?=failed to resolve))?'
    r"(failed to create (containerd|shim) task: )*(OCI runtime create failed: )?(runc create failed: )?"
    r"(unable to start container process: )?")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why pods of a controller do not become available."""

    #: One stable word per cause, as "image" or "crash"; "init-crash" in an init container.
    kind: str
    #: The cluster's own reason, as "ImagePullBackOff".
    reason: str
    #: The cluster's own message, one line, at most LONGEST_MESSAGE characters.
    message: str
    #: What to look at or to type next; a command has a line of its own.
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
    def is_rejection(self) -> bool:
        """Nodes do not take pods that were bound to them; each is replaced at once."""
        return self.kind == REJECTED

    def without_end(self) -> Cause:
        """The same, where it is known that each pod that replaces it meets it anew."""
        return dataclasses.replace(self, is_fatal=True, suggestion=at_last(self.suggestion))

    @property
    def sentence(self) -> str:
        """Cause and place for people, without the suggestion."""
        said = self.message if self.message.startswith(self.reason) else ": ".join(filter(None, (self.reason, self.message)))
        more = self.pods - 1
        return f"{self.place}: {said}" + (f" (and {more} more pod{'s' if more > 1 else ''})" if more else "")


def causes(request: Request, controller: Controller, pods: t.Sequence[Json], events: t.Sequence[Json]) -> list[Cause]:
    """The causes that show, the most telling first; one per kind.

    pods: those of the controller that are not ready, whole. events: Warnings of the namespace; those of other objects are
    ignored. Whoever may create Events may write anything into one: it explains what a pod's own status says, and never makes a
    cause fatal by itself.
    """
    commands = _commands(request)
    about: dict[str, list[Json]] = collections.defaultdict(list)
    for event in events:
        about[_text(_map(event, "involvedObject"), "uid")].append(event)
    told = _refused(controller, about[controller.uid], commands)
    for pod in pods:
        uid = _text(_map(pod, "metadata"), "uid")
        told += _of_pod(pod, about[uid] if uid else [], commands, request.waits_for_termination)
    return merged(told)


def of_pod(request: Request, pod: Json, events: t.Iterable[Json]) -> list[Cause]:
    """Why one pod is not ready, or goes; events are those about it."""
    return _of_pod(pod, list(events), _commands(request))


def of_restarts(request: Request, pod: Json, names: t.Collection[str]) -> list[Cause]:
    """How those containers of a pod ended that were restarted since, whether they run again or not."""
    spec, status = _map(pod, "spec"), _map(pod, "status")
    name = _text(_map(pod, "metadata"), "name")
    subject = _Subject(f"pod {name}", {"pod": name, "node": _text(spec, "nodeName"), **_commands(request)}, pod=name)
    found = []
    for kind, key in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")):
        specs = {_text(each, "name"): each for each in _list(spec, kind)}
        for state in _list(status, key):
            if (its := _text(state, "name")) in names:
                end = _map(_map(state, "lastState"), "terminated") or _map(_map(state, "state"), "terminated")
                restarts = _number(state, "restartCount")
                sign = _end(_waiting(state)[0], end, restarts) if end else _Sign("Restarted", _restarted(restarts))
                found += _container(subject, kind, specs.get(its, {}), state).causes(ENDED, [sign])
    return found


def merged(told: t.Iterable[Cause]) -> list[Cause]:
    """One cause of each kind, the most telling first."""
    found: dict[str, list[Cause]] = collections.defaultdict(list)
    for cause in told:
        found[cause.kind].append(cause)
    examples = []
    for alike in found.values():
        example = min(alike, key=lambda cause: (not cause.is_fatal, cause.pod))
        examples.append(dataclasses.replace(example, pods=len({cause.pod for cause in alike})))
    return sorted(examples, key=lambda cause: (not cause.is_fatal, ORDER.index(cause.kind.removeprefix("init-"))))


class _Sign(t.NamedTuple):
    """Something that an object says, before it is known what it means."""

    reason: str
    message: str
    times: int = 1
    #: An Event says so, and not the object itself.
    is_hearsay: bool = False


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

    def causes(self, rows: t.Iterable[Row], signs: t.Sequence[_Sign]) -> list[Cause]:
        """The first row that fits, as a list of one; an empty list if none does."""
        for row in rows:
            for sign in signs:
                match = re.search(row.says, f"{sign.reason}: {sign.message}")
                if match and sign.times >= row.times:
                    return [self._cause(row, sign, match.groupdict())]
        return []

    def _cause(self, row: Row, sign: _Sign, matched: dict[str, str]) -> Cause:
        return Cause(
            kind=f"init-{row.kind}" if self.is_init else row.kind,
            reason=sign.reason,
            message=_one_line(sign.message),
            suggestion=_suggestion(row.suggestion, {**self.names, **matched}),
            is_fatal=(row.fatal is Fatal.YES and not sign.is_hearsay) or (row.fatal is Fatal.AGAIN and self.is_again),
            pod=self.pod,
            container=self.container if row.has_log else "",
            is_restarted=self.is_restarted and row.has_log,
            place=self.place,
        )


def _suggestion(template: str, known: t.Mapping[str, str | None]) -> str:
    """A row's, with what is known put in; in a command, where it is to be pasted, nothing but names."""
    told = {key: " ".join((value or "").split()) for key, value in known.items()}
    names = {key: value if key in _COMMANDS else typed(key, value) for key, value in told.items()}
    return "\n".join(line.format_map(names if line.startswith(_BEGINS_COMMAND) else told) for line in template.split("\n"))


def typed(what: str, name: str) -> str:
    """A name for a command; where somebody has written anything else, the word for what to type there."""
    return name if identity.is_name(name) else what.upper()


def _commands(request: Request) -> dict[str, str]:
    """For suggestions: what commands begin with."""
    return {"kubectl": request.kubectl, "cluster": request.kubectl_of_cluster, **_gently(request)}


def _gently(request: Request) -> dict[str, str]:
    """For suggestions: that old pods may go before new ones come, where they do not have to anyway."""
    advice = ", or let old pods go first: max_surge=0 max_unavailable=1"
    return {"or_gently": "" if request.kind.replaces_in_place else advice}


def _refused(controller: Controller, events: list[Json], commands: t.Mapping[str, str]) -> list[Cause]:
    """What keeps the controller manager from creating pods, or, where there are too many, from deleting them.

    Some kinds have no condition for that, and only Events tell it: they count while pods are missing.
    """
    subject = _Subject(f"{controller.kind} {controller.name}", {**commands})
    if controller.kind.makes_pods_by_revisions and controller.current < controller.replicas:
        return subject.causes(REFUSED, [sign for sign in _signs(events) if sign.reason == "FailedCreate"][-1:])
    if not controller.failure or handover.CLOSED in controller.failure:  # closed on purpose, until all pods are handed over
        return []
    reason = "FailedDelete" if controller.current > controller.replicas else "FailedCreate"
    return subject.causes(REFUSED, [_Sign(reason, controller.failure)])


def _of_pod(pod: Json, events: list[Json], commands: t.Mapping[str, str], waits_for_termination: bool = False) -> list[Cause]:
    metadata, spec, status = (_map(pod, key) for key in ("metadata", "spec", "status"))
    conditions = {_text(each, "type"): each for each in _list(status, "conditions")}
    name = _text(metadata, "name")
    names = {"pod": name, "node": _text(spec, "nodeName"), **commands, **_wishes(spec)}
    subject = _Subject(f"pod {name}", names, pod=name)
    lost = subject.causes(LOST, _loss(spec, status, conditions))
    if metadata.get("deletionTimestamp"):
        grace = [_grace_period(metadata)] if waits_for_termination else []
        return lost or subject.causes(TERMINATING, [*_finalizers(metadata), *_signs(events), *grace])
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
    return {"claims": " ".join(filter(identity.is_name, claims)), "cpu": asked["cpu"] or "see the template",
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
            signs.append(_Sign("NodeNotReady", f"node {_text(spec, 'nodeName')} has stopped responding"))
    return signs


def _finalizers(metadata: Json) -> list[_Sign]:
    """A grace period of 0 in an object that is still there: the kubelet has let go of it, finalizers have not."""
    names = metadata.get("finalizers")
    if not isinstance(names, list) or not names or metadata.get("deletionGracePeriodSeconds") != 0:
        return []
    return [_Sign("Terminating", "finalizers keep it: " + ", ".join(str(name) for name in names))]


def _grace_period(metadata: Json) -> _Sign:
    """Tell when a terminating pod is due to be gone, where the task waits for that."""
    return _Sign("Terminating", f"its grace period of {_number(metadata, 'deletionGracePeriodSeconds')} s ends at "
                                f"{_text(metadata, 'deletionTimestamp')}")


def _of_containers(subject: _Subject, spec: Json, status: Json, events: list[Json]) -> list[Cause]:
    found = []
    states = {kind: {_text(each, "name"): each for each in _list(status, key)}
              for kind, key in (("initContainers", "initContainerStatuses"), ("containers", "containerStatuses"))}
    has_begun = any(_begun(each) for of_kind in states.values() for each in of_kind.values())
    if not has_begun:  # a volume, the network: nothing that belongs to one container
        told = _signs(event for event in events if not _field(event))
        found += subject.causes(NOT_STARTED, [_borne_out(sign, status) for sign in told])
    for kind, of_kind in states.items():
        specs = {_text(each, "name"): each for each in _list(spec, kind)}
        for name, state in of_kind.items():
            about = [event for event in events if _field(event) in ("", f"spec.{kind}{{{name}}}")]
            found += _of_container(_container(subject, kind, specs.get(name, {}), state), specs.get(name, {}), state, about)
    return found


def _borne_out(sign: _Sign, status: Json) -> _Sign:
    """What an Event says of volumes, as the pod's own word where that has no sandbox yet: it is made when all are mounted."""
    waits = any(_text(each, "type") == "PodReadyToStartContainers" and _text(each, "status") == "False"
                for each in _list(status, "conditions"))
    return sign._replace(is_hearsay=not (waits and sign.reason == "FailedMount"))


def _container(pod: _Subject, kind: str, spec: Json, status: Json) -> _Subject:
    name = _text(status, "name")
    is_sidecar = kind == "initContainers" and _text(spec, "restartPolicy") == "Always"
    is_init = kind == "initContainers" and not is_sidecar
    title = "init container" if is_init else "sidecar container" if is_sidecar else "container"
    last = _map(_map(status, "lastState"), "terminated")
    is_restarted = bool(last) and not _map(_map(status, "state"), "terminated")
    logs = (f"{pod.names['kubectl']} logs {typed('pod', pod.pod)} -c {typed('container', name)}"
            + (" --previous" if is_restarted else ""))
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
    if reason not in (*HEALTHY, "CrashLoopBackOff"):
        if reason in PULL and re.fullmatch(r'(Back-off pulling image "[^"]*")?', message):  # up to 1.31 only the event says why
            message = next((each.message for each in _signs(events) if "Failed to pull image" in each.message), message)
        return subject.causes((*NOT_STARTED, OTHER), [_Sign(reason, message)])
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
                   _number(event, "count") or _number(_map(event, "series"), "count") or 1, is_hearsay=True) for event in ordered]
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


def _without_preemption(message: str) -> str:
    """The scheduler's sentence without what it adds in nearly all cases."""
    return re.sub(r"no new claims to deallocate,?|preemption: .*|(?<=\.) not found$", "", message)


def _one_line(message: str) -> str:
    line = " ".join(message.split()).rstrip(". ")
    line = _WRAPPINGS.sub("", line, count=1).removesuffix(": unknown") or line
    if len(line) <= LONGEST_MESSAGE:
        return line
    return f"{line[:LONGEST_MESSAGE // 3]} ... {line[-(LONGEST_MESSAGE - LONGEST_MESSAGE // 3 - 5):]}"

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warnings about related objects of a controller, shown before the first write. Pure.

There is a function per kind of object; warnings() lists the functions in the order of the messages.
Each message names the object and ends with a remedy. Admission, LimitRanges, affinity and the load
of nodes cannot be judged here: diagnosis.py later reports them in the cluster's own words. No
warning is better than a wrong warning.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import typing as t

from ..flows.autoscaler import autoscalers_of
from ..flows.flow import Flow
from ..model.budgets import budgets_of, desired_healthy
from ..model.fields import Json, pairs
from ..model.fields import mapping as _map
from ..model.fields import number as _number
from ..model.fields import text as _text
from ..model.fields import values as _list
from ..model.observed import Controller
from ..model.request import Request
from ..model.template import labels_of
from ..model.thresholds import grow_to, resolve_fenceposts
from . import quotas

#: Lines to add to a container. The effect was measured at 400 new connections per second, with 4
#: replicas and kube-proxy.
PAUSE = "lifecycle: {preStop: {sleep: {seconds: 3}}}"
PAUSE_BEFORE_1_30 = 'lifecycle: {preStop: {exec: {command: [sleep, "3"]}}}'
#: Kubernetes' default of terminationGracePeriodSeconds (pkg/apis/core/v1/defaults.go).
GRACE = 30
#: The deployment label of the new pods has a value that no selector can know before the update.
_UNKNOWN = "?"


@dataclasses.dataclass(frozen=True)
class RelatedObjects:
    """Objects that an update depends on; None if the user may not list the objects."""

    services: t.Sequence[Json] | None = None
    #: PodDisruptionBudgets (policy/v1).
    budgets: t.Sequence[Json] | None = None
    #: HorizontalPodAutoscalers (autoscaling/v2).
    autoscalers: t.Sequence[Json] | None = None
    #: ResourceQuotas.
    quotas: t.Sequence[Json] | None = None
    nodes: t.Sequence[Json] | None = None


def warnings(flow: Flow, request: Request, primary: Controller, template: Json,
             related: RelatedObjects) -> list[str]:
    """Return warnings of an update of the primary to the desired pod template.

    The messages are about failures and lost requests. The template is without the deployment label.
    """
    update = _Update(flow, request, primary, template, related)
    checks = (_services, _template, _quotas, _nodes, _moves, _budgets, _autoscalers)
    return [sentence for check in checks for sentence in check(update)]


class _Update(t.NamedTuple):
    """The update that the warnings are about."""

    flow: Flow
    request: Request
    primary: Controller
    template: Json
    related: RelatedObjects

    @property
    def desired(self) -> int:
        return max(self.primary.replicas, self.primary.original or 0)

    @property
    def surge(self) -> int:
        """Number of pods that the update creates before the first scale-down of old pods."""
        surge, _unavailable = resolve_fenceposts(
            self.request.max_surge, self.request.max_unavailable, self.desired)
        return grow_to(desired=self.desired, surge=surge, shrinking_pods=self.desired)

    @property
    def before(self) -> Json:
        """Labels of the present pods."""
        return labels_of(self.primary.template)

    @property
    def after(self) -> Json:
        """Labels of the new pods."""
        return {**labels_of(self.template), self.request.label_key: _UNKNOWN}

    @property
    def kubectl(self) -> str:
        return self.request.kubectl


def _services(update: _Update) -> t.Iterator[str]:
    """Yield warnings of Services that select only the current pods, or only the new pods."""
    key = update.request.label_key
    for service in _with_selector(update.related.services):
        name, selector = _name(service), _map(service, "spec", "selector")
        missing, added = _without(selector, update.after), _without(selector, update.before)
        old, new = not added, not missing
        if old and not new and key in selector:
            remaining = {label: value for label, value in selector.items() if label != key}
            yield (f"Service {name} selects on the label {key}, whose value differs between old "
                   "and new pods: it would send its requests to fewer and fewer old pods, and in "
                   f"the end to none. Before the update: {update.kubectl} set selector service "
                   f"{name} {pairs(remaining or labels_of(update.template))}")
        elif old and not new:
            yield (f"Service {name} selects {pairs(missing)}, which the new pods do not have: it "
                   "would send its requests to fewer and fewer old pods, and in the end to none. "
                   f"Keep in metadata.labels of the template: {_lines(missing)}")
        elif new and not old:
            yield (f"Service {name} selects {pairs(selector)}: it sends no requests to the current "
                   "pods, but would send some to the new ones. If that is not intended, change in "
                   f"metadata.labels of the template: {_lines(added)}")


def _template(update: _Update) -> t.Iterator[str]:
    """Yield warnings of pods that lose requests at start or stop, with any rollout strategy."""
    spec = _map(update.template, "spec")
    serving = _serving(update) if update.desired else []

    # A container is not ready before the startupProbe succeeds (UpdatePodStatus,
    # pkg/kubelet/prober).
    blind = [server for server in serving if not _map(server.container, "readinessProbe")
             and not _map(server.container, "startupProbe")]
    if blind and not _list(spec, "readinessGates"):
        port = f"port: {blind[0].port}"
        yield (f"No readinessProbe on {_names(blind)}: Service {blind[0].service} sends requests "
               "to a new pod before it listens (when measured, 18 of 5,744 requests were lost). "
               f"Add to the container: readinessProbe: {{tcpSocket: {{{port}}}, periodSeconds: 1}}"
               ", or better, an httpGet that succeeds when it is ready to serve")

    abrupt = [server for server in serving if not _waits_before_stop(server.container)]
    if abrupt:
        yield (f"No preStop pause on {_names(abrupt)}: unless the server keeps running for 3 s "
               f"after SIGTERM, it is gone before Service {abrupt[0].service} stops sending it "
               "requests (when measured, 120 of 6,884 were lost). Add to the container: "
               f"{PAUSE}, or before Kubernetes 1.30 {PAUSE_BEFORE_1_30}; a running pod keeps its "
               "spec, so this helps from the next update on")

    grace = _number(spec, "terminationGracePeriodSeconds", GRACE)
    slow = max(serving, key=lambda server: _pause(server.container), default=None)
    if slow and _pause(slow.container) >= max(grace, 1):
        pause = _pause(slow.container)
        yield (f"terminationGracePeriodSeconds is {grace}, and the preStop of {_names([slow])} "
               f"alone takes {pause} s: that leaves 2 s to finish the requests of Service "
               f"{slow.service} that are in progress. Set in the spec of the template: "
               f"terminationGracePeriodSeconds: {pause + GRACE}")


def _quotas(update: _Update) -> t.Iterator[str]:
    """Yield warnings of ResourceQuotas too small for the update at full surge.

    An update in progress gets no warning: the quota's usage already includes a part of the surge.
    """
    for quota in update.related.quotas or ():
        # NotTerminating matches every pod of a controller; other scopes depend on more than the
        # template.
        scopes = set(map(str, _list(_map(quota, "spec"), "scopes"))) - {"NotTerminating"}
        is_scoped = bool(_map(quota, "spec", "scopeSelector") or scopes)
        missing = ({} if is_scoped or update.primary.is_updating
                   else quotas.missing(quota, _needed(update, update.surge)))
        if missing:
            used, hard = _map(quota, "status", "used"), _map(quota, "status", "hard")
            shortages = ", ".join(
                f"{resource} ({used[resource]} of {hard[resource]} used, "
                f"{quotas.format_quantity(amount)} more needed)"
                for resource, amount in missing.items())
            alternative = ("" if quotas.missing(quota, _needed(update, 0))
                           else ", or remove old pods first: max_surge=0 max_unavailable=1")
            yield (f"ResourceQuota {_name(quota)} is too small for this update: {shortages}. "
                   f"Raise it: {update.kubectl} edit quota {_name(quota)}{alternative}")


def _needed(update: _Update, surge: int) -> quotas.Amounts:
    """Return the quota that the new pods and their controller add at full surge."""
    pods = quotas.needed(update.primary.template, update.template, update.desired, surge)
    return pods + quotas.Amounts(update.flow.quota_names)


def _nodes(update: _Update) -> t.Iterator[str]:
    """Yield a warning if no node can run a new pod, even without other pods on the node."""
    first_obstacles, template = [], _with_tolerations(update)
    for node in update.related.nodes or ():
        obstacles = ((number, obstacle.of(node, template))
                     for number, obstacle in enumerate(_OBSTACLES))
        first = next(((number, detail) for number, detail in obstacles if detail), None)
        if first is None:
            return
        first_obstacles.append(first)
    if first_obstacles and update.desired and not _text(_map(update.template, "spec"), "nodeName"):
        counts = collections.Counter(_OBSTACLES[number].says.format(detail)
                                     for number, detail in first_obstacles)
        summary = ", ".join(f"{count} {says}" for says, count in counts.most_common(4))
        number, detail = max(first_obstacles)
        advice = _OBSTACLES[number].advice.format(
            detail, kubectl=update.request.cluster_kubectl)
        yield (f"No node can run any of the new pods, even with nothing else on it: {summary}. "
               f"{advice}")


def _moves(update: _Update) -> t.Iterator[str]:
    """Yield a warning of nodes from which the DaemonSet controller deletes all pods at once.

    Source: manage in pkg/controller/daemon. The strategy has no influence.
    """
    if not update.flow.has_pod_per_node:
        return
    before = _nodes_for(update, update._replace(template=update.primary.template))
    if excluded := sorted(before - _nodes_for(update, update)):
        more = f" and {len(excluded) - 3} more" if len(excluded) > 3 else ""
        yield (f"nodeSelector and tolerations of the new template exclude {len(excluded)} nodes "
               f"that the current one allows ({_and(excluded[:3])}{more}): the cluster deletes "
               "their pods at once, regardless of pause_at and max_unavailable. To try the rest "
               "of the change first, leave this part out")


def _nodes_for(update: _Update, variant: _Update) -> set[str]:
    """Return the names of the nodes that nodeSelector and tolerations of a variant allow."""
    template = _with_tolerations(variant)
    return {_name(node) for node in update.related.nodes or ()
            if not (_tainted(node, template) or _unlabelled(node, template))}


def _with_tolerations(update: _Update) -> Json:
    """Return the desired template, with the tolerations that the DaemonSet controller adds.

    Source: AddOrUpdateDaemonPodTolerations (pkg/controller/daemon/util/daemonset_util.go).
    """
    if not update.flow.has_pod_per_node:
        return update.template
    spec = _map(update.template, "spec")
    more = [{"key": f"node.kubernetes.io/{taint}", "operator": "Exists"}
            for taint in _TOLERATED_ON_EACH_NODE]
    return {**update.template,
            "spec": {**spec, "tolerations": [*_list(spec, "tolerations"), *more]}}


def _budgets(update: _Update) -> t.Iterator[str]:
    """Yield warnings of PodDisruptionBudgets that allow no eviction or do not select the new pods.

    A budget without an allowed eviction does not stop an update with a surge: the planner keeps the
    full size of the controller available. Without a surge, the planner refuses to begin.
    """
    after = {"metadata": {"labels": update.after}}
    for budget in budgets_of(update.primary.template, update.related.budgets):
        name, spec = _name(budget), _map(budget, "spec")
        pods_of_others = max(0, _number(_map(budget, "status"), "expectedPods")
                             - update.primary.current)
        expected = pods_of_others + update.desired + update.surge
        field = "maxUnavailable" if spec.get("maxUnavailable") is not None else "minAvailable"
        subject = f"PodDisruptionBudget {name} ({field}: {spec.get(field)})"
        if not budgets_of(after, [budget]):
            common = {key: value for key, value in update.before.items()
                      if update.after.get(key) == value}
            yield (f"{subject} does not select the new pods, and protects no pod once the old ones "
                   "are gone. Select labels of both "
                   f"({pairs(common) or 'add one to the template'}): "
                   f"{update.kubectl} edit pdb {name}")
        elif update.surge and desired_healthy(budget, expected) >= expected:
            yield (f"{subject} allows no eviction, even while all {expected} pods of the update "
                   f"are healthy: the update keeps {update.desired} available throughout, "
                   "regardless of max_unavailable, and no node with such a pod can be drained in "
                   f"the meantime. To allow one eviction: {update.kubectl} patch pdb {name} "
                   """--type=merge -p '{"spec": {"minAvailable": null, "maxUnavailable": 1}}'""")


def _autoscalers(update: _Update) -> t.Iterator[str]:
    """Yield a warning of several HorizontalPodAutoscalers for the primary."""
    names = [_name(autoscaler)
             for autoscaler in autoscalers_of(update.request, update.related.autoscalers)]
    if len(names) > 1:
        yield (f"HorizontalPodAutoscalers {_and(names)} all scale {update.primary.name}: "
               "Kubernetes follows none of them (AmbiguousSelector), and each of them may undo the "
               f"sizes that the update sets. Keep one: {update.kubectl} delete hpa "
               f"{' '.join(names[1:])}")


class _Server(t.NamedTuple):
    """A container that serves requests of a Service."""

    container: Json
    service: str
    #: The Service's target port, a number or a name.
    port: t.Any


def _serving(update: _Update) -> list[_Server]:
    """Return the containers of the desired template with a port that a Service targets.

    The only container of a template counts even without a declared port. Services with
    publishNotReadyAddresses are left out: peers discover each other with such a Service, and
    clients do not send requests to it.
    """
    spec = _map(update.template, "spec")
    containers = _list(spec, "containers")
    candidates = [*containers, *filter(quotas.is_sidecar, _list(spec, "initContainers"))]
    servers: dict[str, _Server] = {}
    for service in _with_selector(update.related.services):
        selector = _map(service, "spec", "selector")
        if (_map(service, "spec").get("publishNotReadyAddresses")
                or all(_without(selector, labels) for labels in (update.before, update.after))):
            continue
        for port in _list(_map(service, "spec"), "ports"):
            target = _map(port).get("targetPort") or _map(port).get("port")
            targeted = [container for container in candidates if any(
                target in (_map(declared).get("name"), _map(declared).get("containerPort"))
                for declared in _list(container, "ports"))]
            if _map(port).get("protocol", "TCP") == "TCP":
                for container in targeted or (containers if len(containers) == 1 else ()):
                    servers.setdefault(_text(container, "name"),
                                       _Server(_map(container), _name(service), target))
    return list(servers.values())


def _with_selector(services: t.Iterable[Json] | None) -> list[Json]:
    """Return the Services whose endpoints are pods, including headless Services.

    The endpoints of a Service without a selector, or of an ExternalName, are managed elsewhere.
    """
    return [service for service in services or () if _map(service, "spec", "selector")
            and _map(service, "spec").get("type") != "ExternalName"]


def _waits_before_stop(container: Json) -> bool:
    """Return whether a container has a preStop hook that may wait.

    The duration of a command or a request is unknown, so every hook counts but a sleep of 0 s.
    """
    hook = _map(container, "lifecycle", "preStop")
    return bool(hook) and ("sleep" not in hook or _pause(container) > 0)


def _pause(container: Json) -> int:
    """Return the longest known sleep of a container's preStop hook, in seconds."""
    hook = _map(container, "lifecycle", "preStop")
    command = " ".join(word for word in _list(_map(hook, "exec"), "command")
                       if isinstance(word, str))
    sleeps = re.findall(r"\bsleep\s+([0-9]{1,6})(?:\.[0-9]*)?([smh]?)\b", command)
    seconds = [int(number) * {"m": 60, "h": 3600}.get(unit, 1) for number, unit in sleeps]
    return max([_number(_map(hook, "sleep"), "seconds"), *seconds])


class _Obstacle(t.NamedTuple):
    """A reason for which a node cannot run a pod."""

    #: {} stands for the result of of(), {kubectl} for the beginning of a command.
    says: str
    advice: str
    #: Returns the detail that keeps a template's pod off a node, or "".
    of: t.Callable[[Json, Json], str]


def _not_ready(node: Json, _template: Json) -> str:
    ready = [_text(condition, "status") for condition in _list(_map(node, "status"), "conditions")
             if _text(condition, "type") == "Ready"]
    return "" if ready == ["True"] else "Ready"


def _cordoned(node: Json, template: Json) -> str:
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    is_cordoned = _map(node, "spec").get("unschedulable")
    return "unschedulable" if is_cordoned and not _tolerates(template, taint) else ""


def _tainted(node: Json, template: Json) -> str:
    for taint in _list(_map(node, "spec"), "taints"):
        effect = _text(taint, "effect")
        if effect in ("NoSchedule", "NoExecute") and not _tolerates(template, taint):
            pair = filter(None, (_text(taint, "key"), _text(taint, "value")))
            return f"{'='.join(pair)}:{effect}"
    return ""


def _tolerates(template: Json, taint: Json) -> bool:
    """Return whether a template tolerates a taint.

    Source: ToleratesTaint (api/core/v1/toleration.go). An unknown operator counts as tolerating.
    """
    return any(_text(toleration, "effect") in ("", taint.get("effect"))
               and _text(toleration, "key") in ("", taint.get("key"))
               and (_text(toleration, "operator") not in ("", "Equal")
                    or _text(toleration, "value") == _text(taint, "value"))
               for toleration in _list(_map(template, "spec"), "tolerations"))


def _unlabelled(node: Json, template: Json) -> str:
    labels = _map(node, "metadata", "labels")
    return pairs({key: value for key, value in _map(template, "spec", "nodeSelector").items()
                  if labels.get(key) != value})


def _too_small(node: Json, template: Json) -> str:
    allocatable = quotas.amounts(_map(node, "status", "allocatable"))
    requests = quotas.effective(template, "requests").items()
    return ", ".join(f"{quotas.format_quantity(amount)} {resource}" for resource, amount in requests
                     if amount > allocatable[resource])


#: Taints of nodes that the pods of a DaemonSet tolerate.
_TOLERATED_ON_EACH_NODE = ("not-ready", "unreachable", "disk-pressure", "memory-pressure",
                           "pid-pressure", "unschedulable")
#: The first obstacle of a node is reported. The advice is about the last reported obstacle in this
#: list: its node is the nearest to running the pod.
_OBSTACLES = (
    _Obstacle("not ready", "See why: {kubectl} get nodes", _not_ready),
    _Obstacle("cordoned", "Uncordon one: {kubectl} uncordon NODE", _cordoned),
    _Obstacle("with the taint {}",
              "Tolerate it in the template, or: {kubectl} taint nodes NODE {}-", _tainted),
    _Obstacle("without the label {}",
              "Correct nodeSelector in the template, or: {kubectl} label nodes NODE {}",
              _unlabelled),
    _Obstacle("with less than {}",
              "Lower resources.requests in the template, or add a larger node", _too_small),
)


def _lines(labels: Json) -> str:
    return ", ".join(f'{key}: "{value}"' for key, value in sorted(labels.items()))


def _and(names: t.Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _names(servers: t.Sequence[_Server]) -> str:
    names = [_text(server.container, "name") for server in servers]
    return f"container{'s' * (len(names) > 1)} {_and(names)}"


def _without(selector: Json, labels: Json) -> Json:
    """Return the part of a selector that the labels do not match."""
    return {key: value for key, value in selector.items() if labels.get(key) != value}


def _name(item: t.Any) -> str:
    return _text(_map(item, "metadata"), "name")

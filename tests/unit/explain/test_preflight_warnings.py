# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Warn about obstacles to an update and about lost requests, before the first write."""

from __future__ import annotations

import copy
import dataclasses
import typing as t

import pytest
from builders import UPDATE, old, rc, template
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.preflight_warnings import (
    RelatedObjects,
    warnings,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.budgets import desired_healthy
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_IN_COMMAND,
    MAX_LISTED,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    DEPLOYMENT_LABEL,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import Deployment
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

Json = dict[str, t.Any]
REQUEST = dataclasses.replace(UPDATE, namespace="shop")
DEPLOYMENT_REQUEST = dataclasses.replace(REQUEST, kind=Kind.DEPLOYMENT)
PRE_STOP_PAUSE = {"preStop": {"sleep": {"seconds": 3}}}


def warnings_of(request: Request = REQUEST, item: Json | None = None, desired: Json | None = None,
                **related: t.Any) -> list[str]:
    """Return the warnings for an update of three pods with a surge of 1."""
    controller_type = Deployment if request.kind == "Deployment" else Controller
    primary = controller_type.from_api(item or rc())
    return warnings(choose(request), request, primary,
                    template("myimage:v2") if desired is None else desired,
                    RelatedObjects(**related))


def single(sentences: list[str]) -> str:
    (sentence,) = sentences
    return sentence


def labeled_template(**labels: str) -> Json:
    return {**template("myimage:v2"), "metadata": {"labels": labels}}


def service(selector: Json | None = None, ports: t.Any = ({"port": 80, "targetPort": 8080},),
            **spec: t.Any) -> Json:
    selector = {"app": "foo"} if selector is None else selector
    return {"metadata": {"name": "web"},
            "spec": {"selector": selector, "ports": list(ports), **spec}}


def safe_container(name: str = "web", port: int = 8080, **changes: t.Any) -> Json:
    """Return a container that loses no requests. changes: None removes a field."""
    fields = {"name": name, "ports": [{"name": f"{name}-http", "containerPort": port}],
              "readinessProbe": {"tcpSocket": {"port": port}}, "lifecycle": PRE_STOP_PAUSE,
              **changes}
    return {key: value for key, value in fields.items() if value is not None}


def template_with(*containers: Json, **spec: t.Any) -> Json:
    return {"metadata": {"labels": {"app": "foo"}},
            "spec": {"containers": list(containers), **spec}}


def container(requests: Json | None = None, limits: Json | None = None, **more: t.Any) -> Json:
    return {"name": "web", "resources": {"requests": requests or {}, "limits": limits or {}},
            **more}


def test_no_warnings_without_related_objects():
    assert warnings_of() == []


def test_no_warnings_for_a_safe_update():
    related = RelatedObjects(services=[service()], budgets=[budget(maxUnavailable=1)],
                             autoscalers=[hpa()],
                             quotas=[quota({"pods": "4"}, {"pods": "3"})], nodes=[node()])

    assert warnings_of(desired=template_with(safe_container()), **vars(related)) == []


# Services


def test_service_would_lose_its_pods():
    assert warnings_of(desired=labeled_template(app="shop"), services=[service()]) == [
        'Service web selects app=foo, which the new pods do not have: it would send its requests '
        'to fewer and fewer old pods, '
        'and in the end to none. Keep in metadata.labels of the template: app: "foo"',
        *warnings_of(desired=template_with(*template()["spec"]["containers"]),
                     services=[service()])]


def test_service_would_select_the_new_pods():
    sentence = warnings_of(desired=labeled_template(app="foo", tier="front"),
                           services=[service({"app": "foo", "tier": "front"})])[0]

    assert sentence == (
        'Service web selects app=foo,tier=front: it sends no requests to the current pods, but '
        'would send some to the new '
        'ones. If that is not intended, change in metadata.labels of the template: tier: "front"')


@pytest.mark.parametrize("selector, selector_after", [
    ({"app": "foo", DEPLOYMENT_LABEL: "abc"}, "app=foo"),
    ({DEPLOYMENT_LABEL: "abc"}, "app=foo"),
])
def test_service_selects_on_the_deployment_label(selector, selector_after):
    all_warnings = warnings_of(item=rc(label="abc"), desired=template_with(safe_container()),
                               services=[service(selector)])

    assert single(all_warnings) == (
        "Service web selects on the label kubernetes.io/deployment, whose value differs between "
        "old and new pods: it "
        "would send its requests to fewer and fewer old pods, and in the end to none. Before the "
        "update: kubectl -n shop set "
        f"selector service web {selector_after}")


@pytest.mark.parametrize("service_", [
    service({"app": "bar"}),
    service({"app": "foo", DEPLOYMENT_LABEL: "of another controller"}),
    service({}),
    service(type="ExternalName"),
    {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}},
], ids=["other pods", "another controller's pods", "empty selector", "external", "no selector"])
def test_unrelated_services_give_no_warning(service_):
    assert warnings_of(item=rc(label="abc"), desired=labeled_template(app="shop"),
                       services=[service_]) == []


# Lost requests


def test_missing_readiness_probe():
    assert single(warnings_of(desired=template_with(safe_container(readinessProbe=None)),
                              services=[service()])) == (
        "No readinessProbe on container web: Service web sends requests to a new pod before it "
        "listens (when measured, "
        "18 of 5,744 requests were lost). Add to the container: readinessProbe: {tcpSocket: {port: "
        "8080}, periodSeconds: 1}, or "
        "better, an httpGet that succeeds only when the container is ready to serve")


@pytest.mark.parametrize("lifecycle",
                         [None, {}, {"postStart": {}}, {"preStop": {"sleep": {"seconds": 0}}}])
def test_missing_pre_stop_pause(lifecycle):
    assert single(warnings_of(desired=template_with(safe_container(lifecycle=lifecycle)),
                              services=[service()])) == (
        "No preStop pause on container web: unless the server keeps running for 3 s after SIGTERM, "
        "it is gone before Service web "
        "stops sending it requests (when measured, 120 of 6,884 were lost). Add to the container: "
        "lifecycle: {preStop: {sleep: "
        '{seconds: 3}}}, or before Kubernetes 1.30 lifecycle: {preStop: {exec: {command: [sleep, '
        '"3"]}}}; a running pod keeps its spec, '
        "so this helps from the next update on")


def pre_stop(*command: str) -> Json:
    return {"preStop": {"exec": {"command": list(command)}}}


@pytest.mark.parametrize("lifecycle, grace, pause", [
    ({"preStop": {"sleep": {"seconds": 40}}}, 30, 40),
    ({"preStop": {"sleep": {"seconds": 40}}}, None, 40),
    ({"preStop": {"sleep": {"seconds": 5}}}, 5, 5),
    (pre_stop("/bin/sleep", "40"), 30, 40),
    (pre_stop("sh", "-c", "sleep 40; nginx -s quit"), 30, 40),
    (pre_stop("sh", "-c", "sleep 5 && nginx -s quit && sleep 1m"), 30, 60),
    (pre_stop("sleep", "40.5s"), 30, 40),
])
def test_pre_stop_pause_uses_up_the_grace_period(lifecycle, grace, pause):
    spec = {} if grace is None else {"terminationGracePeriodSeconds": grace}

    assert single(warnings_of(desired=template_with(safe_container(lifecycle=lifecycle), **spec),
                              services=[service()])) == (
        f"terminationGracePeriodSeconds is {grace or 30}, and the preStop of container web alone "
        f"takes {pause} s: that leaves "
        "2 s to finish the requests of Service web that are in progress. Set in the spec of the "
        "template: "
        f"terminationGracePeriodSeconds: {pause + 30}")


@pytest.mark.parametrize("lifecycle", [
    {"preStop": {"sleep": {"seconds": 29}}},
    {"preStop": {"sleep": {"seconds": 1}}},
    pre_stop("/bin/sleep", "3"),
    pre_stop("/drain"),
    pre_stop("nosleep", "40"),
    {"preStop": {"httpGet": {"path": "/drain", "port": 8080}}},
])
def test_sufficient_pre_stop_pauses_and_drains(lifecycle):
    assert warnings_of(desired=template_with(safe_container(lifecycle=lifecycle)),
                       services=[service()]) == []


@pytest.mark.parametrize("fields", [
    {"startupProbe": {"tcpSocket": {"port": 8080}}},
    {"readinessGates": [{"conditionType": "example.com/load-balancer"}]},
])
def test_startup_probe_or_readiness_gate_replaces_a_readiness_probe(fields):
    spec = {key: value for key, value in fields.items() if key == "readinessGates"}
    probe = {key: value for key, value in fields.items() if key == "startupProbe"}

    assert warnings_of(desired=template_with(safe_container(readinessProbe=None, **probe), **spec),
                       services=[service()]) == []


NO_PROBE = {"readinessProbe": None}
TWO_CONTAINERS = template_with(safe_container(**NO_PROBE),
                               safe_container("proxy", 9090, **NO_PROBE))


@pytest.mark.parametrize("targets, new_template, containers", [
    ([8080], TWO_CONTAINERS, "container web"),
    (["proxy-http"], TWO_CONTAINERS, "container proxy"),
    ([8080, 9090], TWO_CONTAINERS, "containers web and proxy"),
    ([7070], TWO_CONTAINERS, None),
    ([7070], template_with(safe_container(**NO_PROBE)), "container web"),
    ([None],
     template_with(safe_container("web", 80, **NO_PROBE),
                   safe_container("proxy", 9090, **NO_PROBE)),
     "container web"),
    ([9090],
     template_with(safe_container(**NO_PROBE),
                   initContainers=[safe_container("proxy", 9090, restartPolicy="Always",
                                                  **NO_PROBE)]),
     "container proxy"),
    ([9090],
     template_with(safe_container(),
                   initContainers=[safe_container("setup", 9090, **NO_PROBE)]),
     None),
], ids=str)
def test_warning_names_the_containers_behind_a_service(targets, new_template, containers):
    ports = [{"port": 80, **({"targetPort": target} if target else {})} for target in targets]
    sentences = warnings_of(desired=new_template, services=[service(ports=ports)])

    assert [sentence.partition(":")[0]
            for sentence in sentences] == ([f"No readinessProbe on {containers}"] if containers
                                           else [])


@pytest.mark.parametrize("services", [
    None,
    [],
    [service({"app": "bar"})],
    [service(publishNotReadyAddresses=True, clusterIP="None")],
    [service(ports=[{"port": 53, "protocol": "UDP"}])],
], ids=["not readable", "none", "other pods", "headless, unready addresses", "not TCP"])
def test_no_warning_about_lost_requests_without_a_relevant_service(services):
    assert warnings_of(desired=template(), services=services) == []


def test_headless_service_causes_warnings():
    assert len(warnings_of(desired=template(), services=[service(clusterIP="None")])) == 2


def test_several_services_give_one_warning():
    assert len(warnings_of(desired=template_with(safe_container(readinessProbe=None)),
                           services=[service(), service()])) == 1


def test_controller_without_pods_gives_no_warning():
    related = {"services": [service()], "nodes": [node(cpu="1")],
               "budgets": [budget(maxUnavailable=0)],
               "quotas": [quota({"pods": "0", "requests.cpu": "1"},
                                {"pods": "0", "requests.cpu": "2"})]}

    assert warnings_of(item=rc(replicas=0), desired=template_with(container({"cpu": "2"})),
                       **related) == []


# Quotas


def quota(hard: Json, used: Json, **spec: t.Any) -> Json:
    return {"metadata": {"name": "compute"}, "spec": {"hard": hard, **spec},
            "status": {"hard": hard, "used": used}}


@pytest.mark.parametrize("new_template, resource, hard, used, fits", [
    (template_with(container()), "pods", "4", "3", True),
    (template_with(container()), "pods", "3", "3", False),
    (template_with(container()), "count/pods", "3", "3", False),
    (template_with(container()), "replicationcontrollers", "1", "1", False),
    (template_with(container()), "count/replicationcontrollers", "1", "1", False),
    (template_with(container()), "count/replicationcontrollers", "2", "1", True),
    (template_with(container()), "requests.cpu", "3", "3", True),
    (template_with(container({"cpu": "500m"})), "requests.cpu", "2", "1500m", True),
    (template_with(container({"cpu": "501m"})), "requests.cpu", "2", "1500m", False),
    (template_with(container({"cpu": "501m"})), "cpu", "2", "1500m", False),
    (template_with(container({"cpu": "501m"})), "limits.cpu", "2", "1500m", True),
    (template_with(container(limits={"cpu": "501m"})), "limits.cpu", "2", "1500m", False),
    # Without a request, the limit also counts as the request.
    (template_with(container(limits={"cpu": "501m"})), "requests.cpu", "2", "1500m", False),
    (template_with(container({"memory": "1Gi"})), "requests.memory", "4Gi", "3Gi", True),
    (template_with(container({"memory": "1025Mi"})), "memory", "4Gi", "3Gi", False),
    (template_with(container({"ephemeral-storage": "2Gi"})), "requests.ephemeral-storage", "4G",
     "3G", False),
    (template_with(container({"example.com/gpu": "1"})), "requests.example.com/gpu", "3", "3",
     False),
    # Init containers run earlier, one after the other. Sidecars run all the time.
    (template_with(container({"cpu": "300m"}), container({"cpu": "300m"})), "requests.cpu", "2",
     "1500m", False),
    (template_with(container({"cpu": "300m"}), initContainers=[container({"cpu": "500m"})]),
     "requests.cpu", "2",
     "1500m", True),
    (template_with(container({"cpu": "300m"}), initContainers=[container({"cpu": "501m"})]),
     "requests.cpu", "2",
     "1500m", False),
    (template_with(container({"cpu": "300m"}),
                   initContainers=[container({"cpu": "201m"}, restartPolicy="Always")]),
     "requests.cpu", "2", "1500m", False),
    (template_with(container(),
                   initContainers=[container({"cpu": "201m"}, restartPolicy="Always"),
                                   container({"cpu": "300m"})]),
     "requests.cpu", "2", "1500m", False),
    (template_with(container(),
                   initContainers=[container({"cpu": "300m"}),
                                   container({"cpu": "201m"}, restartPolicy="Always")]),
     "requests.cpu", "2", "1500m", True),
    (template_with(container({"cpu": "500m"}), overhead={"cpu": "1m"}), "requests.cpu", "2",
     "1500m", False),
    (template_with(container(), overhead={"cpu": "1"}), "limits.cpu", "2", "1500m", True),
    (template_with(container({"cpu": "100m"}), resources={"requests": {"cpu": "501m"}}),
     "requests.cpu", "2", "1500m", False),
    (template_with(container({"cpu": "100m"}), resources={"limits": {"cpu": "501m"}}),
     "requests.cpu", "2", "1500m", True),
    (template_with(container(), resources={"limits": {"cpu": "501m"}}), "requests.cpu", "2",
     "1500m", False),
])
def test_quota_is_compared_with_the_needs_of_the_new_pods(new_template, resource, hard, used, fits):
    sentences = warnings_of(desired=new_template,
                            quotas=[quota({resource: hard}, {resource: used})])

    assert (sentences == []) == fits
    assert fits or f"{resource} ({used} of {hard} used, " in single(sentences)


def test_message_for_a_quota_that_is_too_small():
    request = dataclasses.replace(REQUEST, max_surge=Size(50, percent=True))
    hard = {"pods": "4", "requests.memory": "4Gi", "limits.cpu": "9"}
    used = {"pods": "3", "requests.memory": "3Gi", "limits.cpu": "1"}

    desired = template_with(container({"memory": "1Gi"}, {"cpu": "500m"}))
    sentence = single(warnings_of(request, desired=desired, quotas=[quota(hard, used)]))

    assert sentence == (
        "ResourceQuota compute is too small for this update: pods (3 of 4 used, 2 more needed), "
        "requests.memory (3Gi of 4Gi "
        "used, 2Gi more needed). Raise it: kubectl -n shop edit quota compute, or remove old "
        "pods first: max_surge=0 "
        "max_unavailable=1")


@pytest.mark.parametrize("hard, is_refused", [("5", True), ("6", False)])
def test_quota_without_room_for_all_new_pods_refuses_keep_old(hard, is_refused):
    request = dataclasses.replace(REQUEST, pause_at=Size(1), keeps_old=True,
                                  max_surge=Size(100, percent=True))
    quotas = [quota({"pods": hard}, {"pods": "3"})]

    if not is_refused:
        assert warnings_of(request, quotas=quotas) == []
        return
    with pytest.raises(RolloutError) as error:
        warnings_of(request, quotas=quotas)
    assert error.value.message.splitlines()[0].endswith(
        "the ResourceQuota compute does not admit all new pods beside the old pods, which "
        "keep_old keeps: pods (3 of 5 used, 3 more needed).")
    assert error.value.commands == ["kubectl -n shop edit quota compute"]
    assert error.value.page == "controller"


def test_rollback_is_not_refused_for_a_quota():
    request = dataclasses.replace(REQUEST, state=State.ROLLED_BACK, keeps_old=True)

    assert len(warnings_of(request, quotas=[quota({"pods": "3"}, {"pods": "3"})])) == 1


def test_surge_is_limited_to_the_number_of_pods():
    request = dataclasses.replace(REQUEST, max_surge=Size(10))

    assert warnings_of(request, quotas=[quota({"pods": "6"}, {"pods": "3"})]) == []


def test_update_without_a_surge_needs_no_free_quota():
    request = dataclasses.replace(REQUEST, max_surge=Size(0), max_unavailable=Size(1))

    assert warnings_of(request, quotas=[quota({"pods": "3"}, {"pods": "3"})]) == []


@pytest.mark.parametrize("surge, requests, used, hard, more_needed, suggests_max_surge_0", [
    # At most three pods exist, but each new pod requests 50 % more.
    (0, "1500m", "3", "4.4", "1.5", False),
    # The peak is three new pods and an old pod, which need 4.5 + 1 - 3 more. Without a surge, the
    # peak is three new pods, which need 4.5 - 3 more.
    (1, "1500m", "3", "5.4", "2.5", True),
    (1, "1500m", "3", "4.4", "2.5", False),
    # If the request shrinks, the peak is the first new pod with all old pods.
    (1, "900m", "3", "3.8", "0.9", True),
])
def test_quota_with_changed_resource_requests(surge, requests, used, hard, more_needed,
                                              suggests_max_surge_0):
    request = dataclasses.replace(REQUEST, max_surge=Size(surge), max_unavailable=Size(1))
    item = rc()
    item["spec"]["template"] = template_with(container({"cpu": "1"}))

    desired = template_with(container({"cpu": requests}))
    sentence = single(warnings_of(request, item=item, desired=desired,
                                  quotas=[quota({"cpu": hard}, {"cpu": used})]))

    assert f"cpu ({used} of {hard} used, {more_needed} more needed)" in sentence
    assert ("max_surge=0" in sentence) == suggests_max_surge_0
    large_enough = quota({"cpu": str(float(used) + float(more_needed))}, {"cpu": used})
    assert warnings_of(request, item=item, desired=desired, quotas=[large_enough]) == []


def test_old_pods_without_requests_are_assumed_to_have_the_new_requests():
    request = dataclasses.replace(REQUEST, max_surge=Size(0), max_unavailable=Size(1))

    assert warnings_of(request, desired=template_with(container({"cpu": "1"})),
                       quotas=[quota({"cpu": "3"}, {"cpu": "3"})]) == []


@pytest.mark.parametrize("spec, is_checked", [
    ({"scopes": ["NotTerminating"]}, True),
    ({"scopes": ["BestEffort"]}, False),
    ({"scopes": ["NotTerminating", "NotBestEffort"]}, False),
    ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass",
                                              "operator": "Exists"}]}}, False),
])
def test_quotas_with_scopes(spec, is_checked):
    assert bool(warnings_of(quotas=[quota({"pods": "3"}, {"pods": "3"}, **spec)])) == is_checked


def test_no_quota_warning_during_an_update():
    assert warnings_of(item=old(), quotas=[quota({"pods": "4"}, {"pods": "4"})]) == []


def test_quota_without_status_gives_no_warning():
    assert warnings_of(quotas=[{**quota({"pods": "1"}, {}), "status": {}}]) == []


# Nodes


def node(ready: str = "True", labels: Json | None = None, cpu: str = "8", **spec: t.Any) -> Json:
    return {"metadata": {"name": "real-1", "labels": labels or {}}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": ready}],
                       "allocatable": {"cpu": cpu, "memory": "16Gi"}}}


def taints_field(effect: str = "NoSchedule") -> Json:
    return {"taints": [{"key": "dedicated", "value": "db", "effect": effect}]}


def template_with_toleration(**toleration: str) -> Json:
    return template_with(container({"cpu": "2"}), tolerations=[toleration])


TWO_CPUS = template_with(container({"cpu": "2"}))
NO_NODE = "No node can run a new pod, not even a node without other pods: "


@pytest.mark.parametrize("nodes, new_template, why", [
    ([node(cpu="1"), node(cpu="1900m"), node(unschedulable=True)], TWO_CPUS,
     "2 with less than 2 cpu, 1 cordoned. Lower resources.requests in the template, or "
     "add a larger node"),
    ([node()], template_with(container({"cpu": "9", "memory": "32Gi"})),
     "1 with less than 9 cpu, 32Gi memory. Lower resources.requests in the template, or "
     "add a larger node"),
    ([node()], template_with(container({"example.com/gpu": "1"})),
     "1 with less than 1 example.com/gpu. Lower resources.requests in the template, or "
     "add a larger node"),
    ([node("False"), node("Unknown")], TWO_CPUS, "2 not ready. See why: kubectl get nodes"),
    ([node(unschedulable=True)], TWO_CPUS,
     "1 cordoned. Uncordon one: kubectl uncordon NODE"),
    ([node(**taints_field())], TWO_CPUS,
     "1 with the taint dedicated=db:NoSchedule. Tolerate it in the template, or: kubectl taint "
     "nodes NODE dedicated=db:NoSchedule-"),
    ([node(**taints_field("NoExecute"))],
     template_with_toleration(key="dedicated", operator="Exists", effect="NoSchedule"),
     "1 with the taint dedicated=db:NoExecute. Tolerate it in the template, or: kubectl taint "
     "nodes NODE "
     "dedicated=db:NoExecute-"),
    ([node(**taints_field())], template_with_toleration(key="dedicated", value="web"),
     "1 with the taint dedicated=db:NoSchedule. Tolerate it in "
     "the template, or: kubectl taint nodes NODE dedicated=db:NoSchedule-"),
    ([node(**{"taints": [{"key": key, "effect": "NoSchedule"}]}) for key in "aabcde"], TWO_CPUS,
     "2 with the taint a:NoSchedule, 1 with the taint b:NoSchedule, 1 with the taint c:NoSchedule, "
     "1 with the taint "
     "d:NoSchedule. Tolerate it in the template, or: kubectl taint nodes NODE e:NoSchedule-"),
    ([node(labels={"disk": "hdd"})], template_with(container(), nodeSelector={"disk": "ssd"}),
     "1 without the label disk=ssd. Correct nodeSelector in the template, or: kubectl label nodes "
     "NODE disk=ssd"),
    ([node()], template_with(container(), nodeSelector={"zone": "a", "disk": "ssd"}),
     "1 without the label disk=ssd,zone=a. Correct nodeSelector in the template, or: kubectl label "
     "nodes NODE disk=ssd zone=a"),
])
def test_no_node_fits_the_new_pods(nodes, new_template, why):
    assert single(warnings_of(desired=new_template, nodes=nodes)) == NO_NODE + why


@pytest.mark.parametrize("nodes, new_template", [
    ([], TWO_CPUS),
    ([node(cpu="1"), node(cpu="2")], TWO_CPUS),
    ([node(**taints_field("PreferNoSchedule"))], TWO_CPUS),
    ([node(**taints_field())], template_with_toleration(key="dedicated", value="db")),
    ([node(**taints_field())],
     template_with_toleration(key="dedicated", operator="Equal", value="db", effect="NoSchedule")),
    ([node(**taints_field())], template_with_toleration(operator="Exists")),
    ([node(unschedulable=True)],
     template_with_toleration(key="node.kubernetes.io/unschedulable", operator="Exists")),
    ([node(labels={"disk": "ssd"})], template_with(container(), nodeSelector={"disk": "ssd"})),
    ([node("False")], template_with(container(), nodeName="real-1")),
])
def test_some_node_fits_the_new_pods(nodes, new_template):
    assert warnings_of(desired=new_template, nodes=nodes) == []


# Budgets


def budget(selector: Json | None = None, expected_pods: int | None = None, **spec: t.Any) -> Json:
    selector = {"matchLabels": {"app": "foo"}} if selector is None else selector
    return {"metadata": {"name": "web"}, "spec": {"selector": selector, **spec},
            "status": {} if expected_pods is None else {"expectedPods": expected_pods}}


@pytest.mark.parametrize("spec, field, count", [
    ({"minAvailable": "100%"}, "minAvailable: 100%", 4),
    ({"minAvailable": "80%"}, "minAvailable: 80%", 4),
    ({"minAvailable": 4}, "minAvailable: 4", 4),
    ({"maxUnavailable": 0}, "maxUnavailable: 0", 4),
    ({"maxUnavailable": "0%"}, "maxUnavailable: 0%", 4),
    # The budget also covers two pods of another controller.
    ({"minAvailable": 6, "expected_pods": 5}, "minAvailable: 6", 6),
])
def test_budget_that_allows_no_eviction(spec, field, count):
    assert single(warnings_of(budgets=[budget(**spec)])) == (
        f"PodDisruptionBudget web ({field}) allows no eviction, even while all {count} pods of "
        f"the update are healthy: the update keeps 3 available throughout, regardless of "
        f"max_unavailable, and no node with such a pod can be drained in the meantime. To allow "
        f"one eviction: kubectl -n shop patch pdb web --type=merge -p "
        """'{"spec": {"minAvailable": null, "maxUnavailable": 1}}'""")


@pytest.mark.parametrize("spec", [
    {"minAvailable": 3},
    {"minAvailable": "75%"},
    {"maxUnavailable": 1},
    {"maxUnavailable": "1%"},
    {"minAvailable": 5, "expected_pods": 5},
    {"minAvailable": "100%", "selector": {"matchLabels": {"app": "bar"}}},
    {},
])
def test_budget_that_allows_an_eviction_gives_no_warning(spec):
    assert warnings_of(budgets=[budget(**spec)]) == []


def deployment(strategy: str) -> Json:
    item = rc()
    return {**item, "kind": "Deployment",
            "spec": {**item["spec"], "selector": {"matchLabels": item["spec"]["selector"]},
                     "strategy": {"type": strategy}}}


@pytest.mark.parametrize("spec, field", [
    ({"minAvailable": 2}, "minAvailable: 2"), ({"minAvailable": "100%"}, "minAvailable: 100%"),
    ({"maxUnavailable": 1}, "maxUnavailable: 1")])
def test_budget_does_not_limit_the_strategy_recreate(spec, field):
    assert single(warnings_of(DEPLOYMENT_REQUEST, deployment("Recreate"),
                              budgets=[budget(**spec)])) == (
        f"PodDisruptionBudget web ({field}) does not limit this update: the strategy of the "
        "Deployment foo is Recreate, so the cluster deletes all old pods before it creates new "
        "ones. To keep pods available, change the strategy to RollingUpdate: "
        "kubectl -n shop edit deployment foo")


@pytest.mark.parametrize("strategy, spec", [
    ("Recreate", {"minAvailable": 0}), ("Recreate", {"maxUnavailable": "100%"}),
    ("Recreate", {"maxUnavailable": 3}), ("RollingUpdate", {"minAvailable": 2}),
    # The budget also covers two pods of another controller.
    ("Recreate", {"minAvailable": 2, "expected_pods": 5})])
def test_budget_that_the_strategy_respects_gives_no_warning(strategy, spec):
    assert warnings_of(DEPLOYMENT_REQUEST, deployment(strategy), budgets=[budget(**spec)]) == []


def test_no_budget_warning_without_a_surge():
    assert warnings_of(dataclasses.replace(REQUEST, max_surge=Size(0), max_unavailable=Size(1)),
                       budgets=[budget(minAvailable=3)]) == []


@pytest.mark.parametrize("tier, labels_hint",
                         [({"tier": "front"}, "tier=front"), ({}, "add one to the template")])
def test_budget_does_not_select_the_new_pods(tier, labels_hint):
    item = rc(label="abc")
    item["spec"]["template"]["metadata"]["labels"] |= tier

    assert single(warnings_of(item=item, desired=labeled_template(app="shop", **tier),
                              budgets=[budget(minAvailable=1)])) == (
        "PodDisruptionBudget web (minAvailable: 1) does not select the new pods, and protects no "
        "pod once the old ones are gone. Select labels that the old and the new pods have "
        f"({labels_hint}): kubectl -n shop edit pdb web")


def test_budget_that_selects_every_deployment_label_gives_no_warning():
    any_label_budget = budget(
        {"matchExpressions": [{"key": DEPLOYMENT_LABEL, "operator": "Exists"}]}, minAvailable=1)

    assert warnings_of(item=rc(label="abc"), budgets=[any_label_budget]) == []


def test_budget_that_excludes_the_old_pods_gives_no_warning():
    other_label_budget = budget({"matchExpressions": [{"key": DEPLOYMENT_LABEL, "operator": "NotIn",
                                                       "values": ["abc"]}]}, minAvailable="100%")

    assert warnings_of(item=rc(label="abc"), budgets=[other_label_budget]) == []


# Autoscalers


def test_several_autoscalers_of_one_controller():
    assert warnings_of(autoscalers=[hpa("a")]) == []
    assert single(warnings_of(autoscalers=[hpa("a"), hpa("b"), hpa("c"),
                                           hpa("d", name="bar")])) == (
        "HorizontalPodAutoscalers a, b and c all scale foo: Kubernetes follows none of them "
        "(AmbiguousSelector), and each of them may undo the sizes that the update sets. Keep "
        "one: kubectl -n shop delete hpa b c")


@pytest.mark.parametrize("excess", [1, 2])
def test_autoscalers_beyond_the_limit_are_counted(excess):
    names = [f"hpa-{number}" for number in range(MAX_LISTED + excess)]

    warning = single(warnings_of(autoscalers=list(map(hpa, names))))

    assert warning.startswith(f"HorizontalPodAutoscalers {', '.join(names[:MAX_LISTED])} and "
                              f"{excess} more all scale foo")


def hpa(autoscaler_name="web", **target):
    return {"metadata": {"name": autoscaler_name},
            "spec": {"scaleTargetRef": {"apiVersion": "v1", "kind": "ReplicationController",
                                        "name": "foo", **target}}}


# Many objects

def many(item: Json) -> list[Json]:
    return [{**item, "metadata": {"name": f"many-{number}"}} for number in range(3000)]


@pytest.mark.parametrize("related", [
    {"services": many(service({"app": "bar"}))},
    {"services": many(service({"app": "foo", DEPLOYMENT_LABEL: "abc"}))},
    {"budgets": many(budget(minAvailable="100%", expected_pods=3))},
    {"quotas": many(quota({"pods": "3"}, {"pods": "3"}))},
], ids=["services of new pods", "services of old pods", "budgets", "quotas"])
def test_many_objects_cause_few_warnings(related):
    desired = {**template_with(safe_container()), "metadata": {"labels": {"app": "bar"}}}
    for item in related.get("budgets", ()):
        item["spec"]["selector"] = {}

    sentences = warnings_of(item=rc(label="abc"), desired=desired, **related)

    assert len(sentences) == MAX_LISTED + 1
    assert sentences[-1] == "and 2995 more of this kind"


def test_many_objects_in_one_warning_are_counted():
    request = parse_request({"name": "foo", "kind": "DaemonSet", "image": "myimage:v2"})
    (autoscaler_warning,) = warnings_of(autoscalers=many(hpa()))
    (*_sentences, node_warning) = warnings_of(
        request, desired=template("myimage:v2", nodeSelector={"disk": "ssd"}), nodes=many(node()))

    for sentence in (autoscaler_warning, node_warning):
        assert "many-1" in sentence and " and 2995 more" in sentence and len(sentence) < 2000
    assert autoscaler_warning.endswith(f" many-{MAX_IN_COMMAND}")


# Malformed objects


ALL_PROBLEMS = {
    "item": rc(label="abc"),
    "desired": template_with(safe_container(resources={"requests": {"cpu": "2", "memory": "1Gi"},
                                                       "limits": {"cpu": "2"}}, readinessProbe=None,
                                            lifecycle={}),
                             initContainers=[safe_container("proxy", 9090, restartPolicy="Always",
                                                            lifecycle=pre_stop("sleep", "40"))],
                             tolerations=[{"key": "dedicated", "operator": "Exists"}],
                             nodeSelector={"disk": "ssd"}, overhead={"cpu": "1"}),
    "services": [service(ports=[{"port": 80, "targetPort": "web-http"}, {"port": 9090}]),
                 service({DEPLOYMENT_LABEL: "abc"}), service({"app": "bar"})],
    "budgets": [budget(minAvailable="100%", expected_pods=3), budget({"matchExpressions": [
        {"key": "app", "operator": "In", "values": ["foo"]}]}, maxUnavailable=0)],
    "autoscalers": [hpa("a"), hpa("b")],
    "quotas": [quota({"pods": "3", "requests.cpu": "1", "memory": "1Gi"},
                     {"pods": "3", "requests.cpu": "1", "memory": "1Gi"},
                     scopes=["NotTerminating"])],
    "nodes": [node("False"), node(**taints_field()), node(labels={"disk": "ssd"}, cpu="1")],
}
ANY_VALUE = st.sampled_from([None, "", 0, 7, -1, [], {}, [None], [[]], {"app": []}, "x", "1e999",
                             True])


def paths_in(item: t.Any, path: tuple = ()) -> list[tuple]:
    values = (item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list)
              else ())
    return [path, *(deeper for key, value in values for deeper in paths_in(value, (*path, key)))]


def test_all_warnings_at_once():
    assert len(warnings_of(**ALL_PROBLEMS)) == 9


@given(st.data())
def test_malformed_objects_never_raise(data):
    related = copy.deepcopy({key: value for key, value in ALL_PROBLEMS.items() if key != "item"})
    for _round in range(data.draw(st.integers(1, 5))):
        *path, last_key = data.draw(st.sampled_from([path for path in paths_in(related)
                                                     if len(path) > 1]))
        parent: t.Any = related
        for key in path:
            parent = parent[key]
        if isinstance(parent, dict) and data.draw(st.booleans()):
            del parent[last_key]
        else:
            parent[last_key] = copy.deepcopy(data.draw(ANY_VALUE))

    assert all(isinstance(sentence, str)
               for sentence in warnings_of(item=ALL_PROBLEMS["item"], **related))
    for item in (related["desired"], *related["budgets"]):
        assert isinstance(desired_healthy(item, 3), int)


# DaemonSets


@pytest.mark.parametrize("kind, changes, is_warned", [
    ("DaemonSet", {"nodeSelector": {"disk": "ssd"}}, True), ("DaemonSet", {}, False),
    ("ReplicationController", {"nodeSelector": {"disk": "ssd"}}, False)])
def test_daemon_set_would_leave_nodes(kind, changes, is_warned):
    nodes = [{**node(labels={"disk": disk}),
              "metadata": {"name": f"node-{number}", "labels": {"disk": disk}}}
             for number, disk in enumerate(("ssd", "hdd", "hdd"))]
    request = parse_request({"name": "foo", "kind": kind, "image": "myimage:v2"})

    sentences = warnings_of(request, desired=template("myimage:v2", **changes), nodes=nodes)

    assert any("exclude 2 nodes that the current template allows (node-1 and node-2)" in sentence
               for sentence in sentences) is is_warned

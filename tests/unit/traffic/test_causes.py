# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check each reason why requests do not arrive, and its command."""

from __future__ import annotations

import shlex

import pytest
from forged import HOSTILE_TEXTS
from traffic_objects import SPLIT, World, parent

from ansible_collections.baton.kubernetes.plugins.module_utils.model import shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_LISTED,
    MAX_TEXT_LENGTH,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import is_name
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import causes
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import (
    GatewaysAndPods,
)

DESCRIBE_ROUTE = "kubectl -n shop describe httproute edge"
DESCRIBE_GATEWAY = "kubectl -n shop describe gateway gateway"


def condition(kind, status, message="no address"):
    return {"type": kind, "status": status, "message": message, "reason": "Reason"}


def causes_of(world=None, **status):
    """Return (sentence, command) of each cause."""
    world = world or World()
    return [tuple(cause) for cause in causes.causes(SPLIT, world.observed(SPLIT),
                                                    GatewaysAndPods(**status))]


def world_with(parents=None, references=({"name": "gateway"},)):
    world = World()
    world.route["spec"]["parentRefs"] = list(references)
    if parents is not None:
        world.route["status"] = {"parents": parents}
    return world


def gateway(*conditions, listeners=()):
    return {"shop/gateway": {"kind": "Gateway", "status": {
        "conditions": list(conditions), "listeners": list(listeners)}}}


def test_no_cause_if_requests_arrive():
    listener = {"name": "http", "conditions": [condition("Programmed", "True")]}
    accepted, programmed = condition("Accepted", "True"), condition("Programmed", "True")
    assert causes_of(gateways=gateway(accepted, programmed, listeners=[listener])) == []
    assert causes_of() == []


@pytest.mark.parametrize("world, status, cause", [
    (world_with(references=()), {},
     ("the HTTPRoute edge names no Gateway, so no requests use the rules",
      "kubectl -n shop edit httproute edge")),
    (world_with(references=[{"kind": "Service", "name": "foo"}]), {},
     ("the HTTPRoute edge names no Gateway, so no requests use the rules",
      "kubectl -n shop edit httproute edge")),
    (world_with(), {"gateways": {"shop/gateway": None}},
     ("there is no Gateway shop/gateway, which the HTTPRoute edge names",
      "kubectl get gateways --all-namespaces")),
    (world_with(parents=[]), {},
     ("no Gateway has accepted the HTTPRoute edge: the rules have no effect yet", DESCRIBE_ROUTE)),
    (world_with(references=[{"name": "gateway"}, {"name": "other", "namespace": "infra"}]), {},
     ("Gateway infra/other has not accepted the HTTPRoute edge: the rules have no effect there",
      "kubectl -n infra describe gateway other")),
    (world_with(parents=[parent(1, ResolvedRefs="False")]), {},
     ("Gateway shop/gateway reports about the HTTPRoute edge: ResolvedRefs is False: no such "
      "backend", DESCRIBE_ROUTE)),
    (world_with(parents=[parent(0)]), {},
     ("Gateway shop/gateway has not observed the last change of the HTTPRoute edge",
      DESCRIBE_GATEWAY)),
    (World(), {"gateways": gateway(condition("Programmed", "Unknown"))},
     ("Gateway shop/gateway: Programmed is Unknown: no address", DESCRIBE_GATEWAY)),
    (World(), {"gateways": gateway(condition("Accepted", "False", ""))},
     ("Gateway shop/gateway: Accepted is False: Reason", DESCRIBE_GATEWAY)),
    (World(), {"gateways": gateway(listeners=[{"name": "https", "conditions": [
        condition("ResolvedRefs", "False", "no Secret")]}])},
     ("listener https of Gateway shop/gateway: ResolvedRefs is False: no Secret",
      DESCRIBE_GATEWAY)),
    (World(), {"pods": {"foo": ()}},
     ("the Service foo selects no pod: app=foo", "kubectl -n shop get pods --show-labels")),
    (World(), {"pods": {"foo": ({"metadata": {"name": "a"}, "status": {
        "phase": "Running"}},)}},
     ("pod a of foo is not ready", "kubectl -n shop describe pod a")),
    (World(), {"pods": {"foo": ({"metadata": {"name": "a"}, "status": {"conditions": [
        {"type": "Ready", "status": "True"}]}},)}},
     ("the pods of the Service foo are ready, but no EndpointSlice contains them",
      "kubectl -n shop get endpointslices -l kubernetes.io/service-name=foo")),
])
def test_cause_and_its_command(world, status, cause):
    assert causes_of(world, **status) == [cause]
    assert shell.is_command(cause[1])


@pytest.mark.parametrize("kind", causes.CONDITIONS)
def test_row_of_a_gateway_names_each_condition_that_must_be_true(kind):
    (row,) = [row for row in causes.ROUTE_ROWS if row.find is causes._gateway_conditions]

    assert f"`{kind}`" in row.case
    assert causes_of(gateways=gateway(condition(kind, "False"))) == [
        (f"Gateway shop/gateway: {kind} is False: no address", DESCRIBE_GATEWAY)]


def test_unready_pods_have_the_same_cause_as_in_an_update():
    waiting = {"name": "web", "state": {"waiting": {"reason": "ImagePullBackOff",
                                                    "message": "Back-off pulling image"}}}
    pod = {"metadata": {"name": "a", "uid": "1"}, "spec": {"containers": [{"name": "web"}]},
           "status": {"phase": "Pending", "containerStatuses": [waiting]}}
    ((sentence, command),) = causes_of(pods={"foo": (pod,)})
    assert sentence.startswith("pod a, container web: ImagePullBackOff") and command


NUMBERS = range(3000)
NAMES = [{"name": f"gateway-{number}"} for number in NUMBERS]
LONG_TEXT = "m" * 2 * MAX_TEXT_LENGTH


@pytest.mark.parametrize("world, gateways", [
    (World(), gateway(*[condition("Accepted", "False", f"{number}") for number in NUMBERS])),
    (World(), gateway(listeners=[
        {"name": f"http-{number}", "conditions": [condition("Programmed", "False", LONG_TEXT)]}
        for number in NUMBERS])),
    (world_with(references=NAMES), {f"shop/gateway-{number}": None for number in NUMBERS}),
    (world_with([{**parent(1), "parentRef": NAMES[0]}], references=NAMES[:1] + NAMES), {}),
    (world_with([{**parent(1, Accepted="False"), "parentRef": name} for name in NAMES], NAMES), {}),
    (world_with([{**parent(0), "parentRef": name} for name in NAMES], NAMES), {}),
], ids=["conditions", "listeners", "missing", "silent", "refusals", "outdated"])
def test_many_problems_are_few_causes(world, gateways):
    sentences = [sentence for sentence, _command in causes_of(world, gateways=gateways)
                 if not sentence.startswith("no Gateway has accepted")]
    assert len(sentences) in (MAX_LISTED + 1, 2 * (MAX_LISTED + 1))
    assert sentences[MAX_LISTED].endswith("more of this kind")
    assert max(map(len, sentences)) <= MAX_TEXT_LENGTH


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_hostile_names_are_in_no_command(text):
    world = world_with(references=[{"name": text, "namespace": text}], parents=[
        {**parent(1, Accepted="False"), "parentRef": {"name": text}}])
    listener = {"name": text, "conditions": [condition("Programmed", "False", text)]}
    causes_ = causes_of(world, gateways={f"{text}/{text}": {"status": {"listeners": [listener]}}})
    assert causes_ and all(sentence.isprintable() for sentence, _command in causes_)
    words = {word for _sentence, command in causes_ for word in shlex.split(command)}
    assert all(map(is_name, words - {"-n", "NAMESPACE", "NAME", "--all-namespaces"}))

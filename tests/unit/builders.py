# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Small objects for the tests, as the API server would show them: a test says only what matters to it."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import handover
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Standing
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.simulated import SimulatedCluster
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.stepped.find import expected_successor, find
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.marks import (
    DEPLOYMENT_LABEL,
    DESIRED,
    LAST_ROLLOUT,
    ORIGINAL,
    PARTNER,
    PARTNER_UID,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Observed
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import request_from
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Decision, Done, Patch, Step, Wait

Json = dict[str, t.Any]


def template(image: str = "myimage:v1", label: str | None = None, **spec: t.Any) -> Json:
    """A pod template with one container named web."""
    labels = {"app": "foo", **({DEPLOYMENT_LABEL: label} if label else {})}
    return {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": image}], **spec}}


def rc(
    name: str = "foo",
    replicas: int = 3,
    image: str = "myimage:v1",
    label: str | None = None,
    available: int | None = None,
    current: int | None = None,
    observed: bool = True,
    annotations: t.Mapping[str, str] | None = None,
    **metadata: t.Any,
) -> Json:
    """A ReplicationController that is settled unless the arguments say otherwise."""
    current = replicas if current is None else current
    available = current if available is None else available
    return {
        "kind": "ReplicationController",
        "metadata": {
            "name": name,
            "uid": f"uid of {name}",
            "resourceVersion": "1",
            "generation": 1 if observed else 2,
            "labels": {"app": "foo"},
            "annotations": dict(annotations or {}),
            **metadata,
        },
        "spec": {
            "replicas": replicas,
            "selector": {"app": "foo", **({DEPLOYMENT_LABEL: label} if label else {})},
            "template": template(image, label),
        },
        "status": {"observedGeneration": 1, "replicas": current, "readyReplicas": available, "availableReplicas": available},
    }


def rs(name: str = "foo", label: str | None = None, **more: t.Any) -> Json:
    """The same as a ReplicaSet; its pods may have the deployment label, its selector has not."""
    item = rc(name, label=label, **more)
    return {**item, "kind": "ReplicaSet", "spec": {**item["spec"], "selector": {"matchLabels": {"app": "foo"}}}}


#: The update that the tests speak of, its rollback, and the name and deployment label that its next controller gets.
UPDATE = request_from({"name": "foo", "image": "myimage:v2"})
BACK = dataclasses.replace(UPDATE, state=State.ROLLED_BACK)
SUCCESSOR, LABEL = expected_successor(UPDATE, Controller.from_api(rc()))
#: The time of every test.
NOW = "2026-11-21T10:00:00Z"


def old(replicas: int = 3, goal: int = 0, desired: int = 3, marks: t.Mapping[str, str | None] | None = None,
        **changes: t.Any) -> Json:
    """foo in the middle of an update of three pods; marks that are None are missing."""
    return rc("foo", replicas, **{"annotations": _marks(SUCCESSOR, goal, desired, marks or {}), **changes})


def new(replicas: int = 0, goal: int = 3, desired: int = 3, marks: t.Mapping[str, str | None] | None = None,
        **changes: t.Any) -> Json:
    """The next controller of that update; marks that are None are missing."""
    annotations = _marks("foo", goal, desired, {LAST_ROLLOUT: record("updating"), **(marks or {})})
    return rc(**{"name": SUCCESSOR, "replicas": replicas, "image": "myimage:v2", "label": LABEL, "annotations": annotations,
                 **changes})


def record(outcome: str, before: str = "myimage:v1", after: str = "myimage:v2", **more: str) -> str:
    """The annotation last-rollout."""
    return identity.canonical({"outcome": outcome, "from": {"web": before}, "to": {"web": after}, "time": NOW, **more})


def ended(request: Request, before: str = "myimage:v1", after: str = "myimage:v2") -> str:
    """The same after an update as it is asked for."""
    became = handover.became(request.fingerprint, Controller.from_api(rc(image=after)), DEPLOYMENT_LABEL)
    return record("updated", before, after, request=became)


def look(request: Request, *items: Json, **facts: t.Any) -> Observed:
    """What a client that asks for this sees of these controllers."""
    seen = find({item["metadata"]["name"]: Controller.from_api(item) for item in items}, request)
    base = seen.primary or seen.successor
    wanted = request.applied_to(base.template) if base and request.state is not State.ROLLED_BACK else None
    return dataclasses.replace(seen, **{"wanted": wanted, "now": NOW, **facts})


def plan(request: Request, seen: Observed) -> Decision:
    """What the flow that the request is for decides."""
    return choose(request).plan(request, seen)


def standing(request: Request, seen: Observed) -> Standing:
    """The same of where it stands."""
    return choose(request).standing(request, seen)


def summary(decision: Decision) -> tuple:
    """A decision in one line: ("scale", name, before, after), ("wait", until) or ("done", message)."""
    if isinstance(decision, Step):
        return str(decision.action), decision.name, decision.before, decision.after
    return ("wait", decision.until) if isinstance(decision, Wait) else ("done", decision.message)


def apply(decision: Decision, *items: Json) -> dict[str, Json]:
    """The controllers by name after a step that the API server accepts."""
    assert isinstance(decision, Step), decision
    cluster = SimulatedCluster(items)
    assert cluster.write(decision.write), f"refused: {decision}"
    return cluster.items


def assumed(decision: Decision) -> Json:
    """What a step's patch tests, by path."""
    assert isinstance(decision, Step) and isinstance(decision.write, Patch), decision
    return {each["path"]: each["value"] for each in decision.write.operations if each["op"] == "test"}


def _marks(partner: str, goal: int, desired: int, changes: t.Mapping[str, str | None]) -> dict[str, str]:
    marks = {PARTNER: partner, PARTNER_UID: f"uid of {partner}", DESIRED: str(goal),
             ORIGINAL: str(desired), **changes}
    return {key: mark for key, mark in marks.items() if mark is not None}


def carried_out(decide: t.Callable[..., Decision], request: Request, it: t.Any, *, until: str = "end", **facts: t.Any) -> list[str]:
    """Let a client do all that it wants to on a simulated cluster; the actions that it took."""
    actions: list[str] = []
    while not isinstance(decision := decide(request, it, **facts), Done):
        assert len(actions) < 20, actions
        if isinstance(decision, Wait):
            assert it.moves(), f"waits for ever: {decision}"
            it.settle()
            continue
        assert it.write(decision.write)
        actions.append(str(decision.action))
        if decision.is_last or decision.action == until:
            if decision.is_last:
                it.settle()
            break
    return actions


def grow_stale(items: dict[t.Any, Json | None]) -> None:
    """Objects as a real cluster shows them to whoever looks at once: nobody has seen what was written last."""
    for key, item in items.items():
        if item and "status" in item:
            counts = (field for field in item["status"] if field.lower().endswith("replicas"))
            status = {**item["status"], **dict.fromkeys(counts, 0), "observedGeneration": 8}
            items[key] = {**item, "metadata": {**item["metadata"], "generation": 9}, "status": status}


def past_waits(world: t.Any, most: int, **request: Request) -> list[str]:
    """At most that many steps of a simulated migration, past what has to be waited for."""
    done: list[str] = world.go(most, **request)
    while len(done) < most and isinstance(world.decide(**request), Wait):
        world.cluster.settle()
        more = world.go(most - len(done), **request)
        assert more, f"waits for ever: {world.decide(**request)}"
        done += more
    return done

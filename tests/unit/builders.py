# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build small objects in the API server's form: a test states only the fields that matter."""

from __future__ import annotations

import dataclasses
import typing as t

from cluster_models import ClusterModel

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import provenance
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
    find,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.decision import compose_plan
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import RolloutStatus
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    DEPLOYMENT_LABEL,
    DESIRED,
    LAST_ROLLOUT,
    ORIGINAL,
    PARTNER,
    PARTNER_UID,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import (
    Controller,
    Observed,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Decision,
    Done,
    Patch,
    Step,
    Wait,
)

Json = dict[str, t.Any]


def template(image: str = "myimage:v1", label: str | None = None, **spec: t.Any) -> Json:
    labels = {"app": "foo", **({DEPLOYMENT_LABEL: label} if label else {})}
    return {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "web", "image": image}], **spec}}


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
    """Return a ReplicationController. By default, all its pods exist and are available.

    label: the deployment label of selector and template. available, current: the numbers of pods in
    the status. observed: whether the status belongs to the current generation.
    """
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
        "status": {"observedGeneration": 1, "replicas": current, "readyReplicas": available,
                   "availableReplicas": available},
    }


def rs(name: str = "foo", label: str | None = None, **more: t.Any) -> Json:
    """Return a ReplicaSet. Only its template has the label, not its selector."""
    item = rc(name, label=label, **more)
    return {**item, "kind": "ReplicaSet",
            "spec": {**item["spec"], "selector": {"matchLabels": {"app": "foo"}}}}


UPDATE = parse_request({"name": "foo", "image": "myimage:v2"})
ROLLBACK = dataclasses.replace(UPDATE, state=State.ROLLED_BACK)
#: The name of the update's successor, and its deployment label.
SUCCESSOR, LABEL = expected_successor(UPDATE, Controller.from_api(rc()))
NOW = "2026-11-21T10:00:00Z"


def old(replicas: int = 3, goal: int = 0, original: int = 3,
        annotate: t.Mapping[str, str | None] | None = None, **changes: t.Any) -> Json:
    """Return the old controller, foo, during an update of three pods.

    replicas: the size now. goal: the size at the end (0, or 3 for a rollback). original: the size
    before. annotate: annotations to change (None: remove).
    """
    return rc("foo", replicas,
              **{"annotations": _annotations(SUCCESSOR, goal, original, annotate or {}), **changes})


def new(replicas: int = 0, goal: int = 3, original: int = 3,
        annotate: t.Mapping[str, str | None] | None = None, **changes: t.Any) -> Json:
    """Return the successor of the update. old() explains the arguments."""
    annotations = _annotations("foo", goal, original,
                               {LAST_ROLLOUT: record("updating"), **(annotate or {})})
    return rc(**{"name": SUCCESSOR, "replicas": replicas, "image": "myimage:v2", "label": LABEL,
                 "annotations": annotations, **changes})


def record(outcome: str, before: str = "myimage:v1", after: str = "myimage:v2", **more: str) -> str:
    """Return the value of the annotation last-rollout."""
    return identity.canonical({"outcome": outcome, "from": {"web": before}, "to": {"web": after},
                               "time": NOW, **more})


def final_record(request: Request, before: str = "myimage:v1", after: str = "myimage:v2") -> str:
    """Return the value of last-rollout at the end of the update."""
    entry = provenance.record_entry(request.fingerprint, Controller.from_api(rc(image=after)),
                                    DEPLOYMENT_LABEL)
    return record("updated", before, after, request=entry)


def observe(request: Request, *items: Json, **facts: t.Any) -> Observed:
    controllers = map(Controller.from_api, items)
    observed = find({controller.name: controller for controller in controllers}, request)
    base = observed.primary or observed.successor
    desired = (request.apply_to(base.template) if base
               and request.state is not State.ROLLED_BACK else None)
    return dataclasses.replace(observed, **{"desired_template": desired, "now": NOW, **facts})


def plan(request: Request, observed: Observed) -> Decision:
    return compose_plan(choose(request), request, observed)


def rollout_status(request: Request, observed: Observed) -> RolloutStatus:
    return choose(request).status(request, observed)


def summary(decision: Decision) -> tuple:
    """Return a decision as ("scale", name, before, after), ("wait", until) or ("done", message)."""
    if isinstance(decision, Step):
        return str(decision.action), decision.name, decision.before, decision.after
    return ("wait", decision.until) if isinstance(decision, Wait) else ("done", decision.message)


def apply(decision: Decision, *items: Json) -> dict[str, Json]:
    """Apply a step to simulated controllers. Return the resulting ones by name."""
    assert isinstance(decision, Step), decision
    cluster = ClusterModel(items)
    assert cluster.write(decision.write), f"refused: {decision}"
    return cluster.items


def patch_tests(decision: Decision) -> Json:
    """Return the test operations of a patch, by path."""
    assert isinstance(decision, Step) and isinstance(decision.write, Patch), decision
    return {operation["path"]: operation["value"] for operation in decision.write.operations
            if operation["op"] == "test"}


def _annotations(partner: str, goal: int, original: int,
                 changes: t.Mapping[str, str | None]) -> dict[str, str]:
    annotations = {PARTNER: partner, PARTNER_UID: f"uid of {partner}", DESIRED: str(goal),
                   ORIGINAL: str(original), **changes}
    return {key: value for key, value in annotations.items() if value is not None}


def run_to_end(decide: t.Callable[..., Decision], request: Request, cluster: t.Any, *,
               until: str = "end", **facts: t.Any) -> list[str]:
    """Run a task on a simulated cluster, and return its actions.

    until: the action after which the task is killed, or "end".
    """
    actions: list[str] = []
    while not isinstance(decision := decide(request, cluster, **facts), Done):
        assert len(actions) < 20, actions
        if isinstance(decision, Wait):
            assert cluster.settle(), f"waits without end: {decision}"
            continue
        assert cluster.write(decision.write)
        actions.append(str(decision.action))
        if decision.ends_task or decision.action == until:
            if decision.ends_task:
                cluster.settle()
            break
    return actions


def make_status_stale(items: dict[t.Any, Json | None]) -> None:
    """Make each status outdated: it counts no pods and has an earlier generation."""
    for key, item in items.items():
        if item and "status" in item:
            counts = (field for field in item["status"] if field.lower().endswith("replicas"))
            status = {**item["status"], **dict.fromkeys(counts, 0), "observedGeneration": 8}
            items[key] = {**item, "metadata": {**item["metadata"], "generation": 9},
                          "status": status}


def run_past_waits(world: t.Any, max_steps: int, **request: Request) -> list[str]:
    """Run at most max_steps steps of a migration. Settle the cluster at waits. Return the steps."""
    steps: list[str] = world.run_steps(max_steps, **request)
    while len(steps) < max_steps and isinstance(world.decide(**request), Wait):
        world.cluster.settle()
        next_steps = world.run_steps(max_steps - len(steps), **request)
        assert next_steps, f"waits without end: {world.decide(**request)}"
        steps += next_steps
    return steps


def assert_rollback_ignores_stale_status(settled: t.Any, stale: t.Any, steps: int,
                                         request: Request) -> None:
    """Assert that a rollback after `steps` steps is the same if the status is outdated."""
    for world in (settled, stale):
        world.run_steps(steps)
    make_status_stale(stale.cluster._items)
    rollback_steps = settled.run_steps(request=request)
    assert run_past_waits(stale, len(rollback_steps), request=request) == rollback_steps

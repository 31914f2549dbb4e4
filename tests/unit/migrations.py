# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate migrations of a ReplicationController and of a DeploymentConfig to a Deployment."""

from __future__ import annotations

import dataclasses

from builders import plan, rc
from idle_gateway import IdleGateway

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.migration.simulated import (
    SimulatedMigration,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import (
    label_selectors,
    object_meta,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind, State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import parse
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import REVISION, Step

MIGRATE = parse_request({"name": "foo", "module": "migrate_to_deployment"})
MIGRATE_CONFIG = parse_request({"name": "foo", "kind": "DeploymentConfig",
                                "module": "migrate_to_deployment"})
ROLLBACK = dataclasses.replace(MIGRATE, state=State.ROLLED_BACK)
CONFIG_ROLLBACK = dataclasses.replace(MIGRATE_CONFIG, state=State.ROLLED_BACK)
ALL_STEPS = ["create ControllerRevision", "create ReplicaSet", "annotate ReplicationController",
             "hand over Pod",
             "delete ReplicationController", "restore ReplicaSet", "create Deployment",
             "pace Deployment",
             "delete ControllerRevision"]


def set_pods(cluster, *pods):
    """Replace the real pods and the simulated pods."""
    cluster._pods, cluster._real_pods = pods, lambda selector: pods


class World:
    """Simulated migration of foo with two pods.

    items: ReplicationControllers. objects: other objects by kind.
    """

    def __init__(self, *items, **objects):
        pods = tuple(Pod(name, f"uid of {name}", {"app": "foo"}, "uid of foo")
                     for name in ("foo-a", "foo-b"))
        self.cluster = SimulatedMigration(items or [rc(replicas=2)],
                                          lambda kind, name: objects.get(kind),
                                          lambda selector: pods)

    def decide(self, request=MIGRATE):
        return plan(request, find(request, self.cluster))

    def run_steps(self, max_steps=100, request=MIGRATE):
        """Run at most this number of steps. Return them in the form of ALL_STEPS."""
        steps = []
        while len(steps) < max_steps and isinstance(decision := self.decide(request), Step):
            assert self.cluster.write(decision.write)
            steps.append(f"{decision.action} {decision.write.kind}")
            if decision.ends_task:
                break
        return steps

    def find(self, kind, name="foo"):
        return self.cluster.find(kind, name)

    @property
    def stored_state(self):
        return self.find(REVISION, "foo-migration")["data"]

    @property
    def replica_set(self):
        return self.find("ReplicaSet", f"foo-{self.stored_state['hash']}")

    def replace_item(self, item, **status):
        self.cluster._items[item["kind"], item["metadata"]["name"]] = {
            **item, "status": {**item.get("status", {}), **status}}

    def replace_pods(self, *owners, **labels):
        """Replace all pods with one pod for each owner uid."""
        set_pods(self.cluster, *(Pod(f"foo-{owner}", "u", {"app": "foo", **labels}, owner)
                                 for owner in owners))


def world_after(step):
    world = World()
    world.run_steps(ALL_STEPS.index(step) + 1)
    return world


#: Steps between "pace DeploymentConfig" and "delete DeploymentConfig".
CONFIG_STEPS = ["create ControllerRevision", "create ReplicaSet", "annotate ReplicationController",
                "hand over Pod",
                "delete ReplicationController", "restore ReplicaSet", "create Deployment",
                "pace Deployment"]
ALL_CONFIG_STEPS = ["pace DeploymentConfig", *CONFIG_STEPS, "delete DeploymentConfig",
                    "delete ControllerRevision"]
CONFIG_UID = "uid of the config"


def config(latest=1, annotations=None, metadata=None, **spec):
    """Return the DeploymentConfig foo. latest: the number of its latest rollout."""
    template = rc()["spec"]["template"]
    return {"kind": "DeploymentConfig",
            "metadata": {"name": "foo", "uid": CONFIG_UID, "resourceVersion": "7", "generation": 1,
                         "labels": {"app": "foo"},
                         "annotations": annotations or {}, **(metadata or {})},
            "spec": {"replicas": 2, "selector": {"app": "foo"}, "template": template,
                     "triggers": [{"type": "ConfigChange"}],
                     "strategy": {"type": "Rolling"}, **spec},
            "status": {"latestVersion": latest, "observedGeneration": 1}}


def rollout(number=1, replicas=2, phase="Complete", **more):
    """Return the ReplicationController of a rollout of foo."""
    name = f"foo-{number}"
    owner = {"kind": "DeploymentConfig", "name": "foo", "uid": CONFIG_UID, "controller": True}
    item = rc(name, replicas, **{"annotations": {object_meta.ROLLOUT_PHASE: phase},
                                 "ownerReferences": [owner], **more})
    labels = {"app": "foo", "deploymentconfig": "foo", "deployment": name}
    item["spec"]["selector"] = labels
    item["spec"]["template"]["metadata"] = {"labels": labels, "annotations": {
        "note": "x", object_meta.ROLLOUT_OF: "foo", object_meta.ROLLOUT_NAME: name,
        object_meta.ROLLOUT_NUMBER: str(number)}}
    return item


class ConfigWorld:
    def __init__(self, item=None, *rollouts, look_up=lambda kind, name: None):
        rollouts = rollouts or (rollout(),)
        labels = rollouts[0]["spec"]["selector"]
        pods = tuple(Pod(name, f"uid of {name}", labels,
                         f"uid of {rollouts[0]['metadata']['name']}") for name in ("a", "b"))
        self.cluster = SimulatedMigration(rollouts, look_up, lambda selector: pods,
                                          [config() if item is None else item])

    def observe(self, request=MIGRATE_CONFIG):
        return find(request, self.cluster)

    def decide(self, request=MIGRATE_CONFIG):
        return plan(request, self.observe(request))

    def run_steps(self, max_steps=100, request=MIGRATE_CONFIG):
        steps = []
        while len(steps) < max_steps and isinstance(decision := self.decide(request), Step):
            assert self.cluster.write(decision.write)
            steps.append(f"{decision.action} {decision.write.kind}")
            if decision.ends_task:
                break
        return steps

    def merge(self, kind, name="foo", **fields):
        item = self.cluster._items[kind, name]
        self.cluster._items[kind, name] = {**item,
                                           **{field: {**item[field], **value}
                                              for field, value in fields.items()}}

    @property
    def owner_uids(self):
        return {pod.owner_uid for pod in self.cluster.live_pods({})}


class MigrationGateway(IdleGateway):
    def __init__(self, cluster, kind, watched_kinds, may_read=True):
        self.cluster, self.kind = cluster, kind
        self.watched_kinds, self.may_read = watched_kinds, may_read

    def controllers(self, kind=None):
        kind = kind or self.kind
        if kind not in self.watched_kinds:
            return {}
        if kind in (Kind.DEPLOYMENT, Kind.REPLICA_SET):
            return {name: parse(kind, item)
                    for (item_kind, name), item in self.cluster._items.items()
                    if item and item_kind == kind}
        return self.cluster.controllers(kind)

    def find(self, kind, name):
        if not self.may_read:
            raise RolloutError("not allowed")
        return self.cluster.find(kind, name)

    def names(self, selectors, _field_selectors=()):
        return [name
                for name, controller in self.controllers().items()
                if label_selectors.matches(selectors, controller.labels)]

    def migrations(self):
        revisions = (item
                     for (kind, _name), item in self.cluster._items.items() if item
                     and kind == REVISION)
        return ([item for item in revisions if object_meta.MIGRATION in item["metadata"]["labels"]]
                if self.may_read else None)

    def read_statuses(self, name):
        return {kind: 200 if self.cluster._items.get((kind, name)) else 404 for kind in Kind}

    def live_pods(self, selector):
        return self.cluster.live_pods(selector)

    def revisions(self, uids):
        return []

    def close(self):
        """Close nothing."""

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

r"""Record and load the objects of updates in progress, which a later version must resume.

To record the updates of a version, run this file with the code of that version:

    git worktree add /tmp/before COMMIT && cd /tmp/before && make venv
    PYTHONPATH=.venv/collections:tests:$(
        echo tests/{unit,integration,histories,faults,cluster,node} | tr ' ' :) \
        .venv/bin/python -P THIS_TREE/tests/unit/recorded_updates.py \
        THIS_TREE/tests/unit/recorded/COMMIT

Of the recorded version's tests, the recorder imports only every_kind, migrations and writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import migrations
from every_kind import KINDS, SIZE, Cluster, update_request
from writes import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Pod

RECORDINGS = Path(__file__).parent / "recorded"
CLIENT_DRIVEN_KINDS = ("ReplicationController", "ReplicaSet")
KINDS_WITH_REVISIONS = ("StatefulSet", "DaemonSet")
HASH_LABEL, GENERATION_LABEL = "controller-revision-hash", "pod-template-generation"


class InterruptedCluster(Cluster):
    """Cluster that kills the client once is_reached() is true."""

    def __init__(self, kind):
        super().__init__(kind)
        self.is_reached, self.hand_over_count = lambda: False, 0
        self.on_wait = self.move

    def move(self):
        if moves := self.cluster.moves():
            self.cluster.make(moves[0])
        self.kill_if_reached()

    def kill_if_reached(self):
        if self.is_reached():
            raise Killed

    def hand_over(self, write, may_continue):
        self.hand_over_count += 1
        return super().hand_over(write, may_continue)

    def write(self, write):
        is_written = super().write(write)
        self.kill_if_reached()
        return is_written

    def run_until(self, is_reached, **params):
        self.is_reached = is_reached
        try:
            self.run(update_request(str(self.kind), **params))
        except Killed:
            pass
        else:
            raise AssertionError("the state to record was never reached")
        self.is_reached = lambda: False

    @property
    def new_pod_count(self):
        return sum(image == "myimage:v2" for image in images(pods_of(self), objects_of(self)))


def record(kind):
    """Record an update of four pods, as {moment: objects}."""
    forward, paused, back = (InterruptedCluster(kind) for _number in range(3))
    forward.run_until(lambda: forward.new_pod_count in (2, 3))
    paused.run(update_request(kind, pause_at="2"))
    back.run_until(lambda: back.new_pod_count == 3)
    back.run_until(lambda: back.new_pod_count in (1, 2) and len(back.pods) >= SIZE,
                   image=None, state="rolled_back")
    moments = {"forward": forward, "paused": paused, "back": back}
    if kind in CLIENT_DRIVEN_KINDS:
        handover = moments["handover"] = InterruptedCluster(kind)
        handover.run_until(lambda: handover.hand_over_count)
    return {moment: [*objects_of(cluster), *pods_of(cluster)]
            for moment, cluster in moments.items()}


def record_migration(world_type, request, steps):
    """Record a migration after each step but the last, as {moment: objects}."""
    moments = {}
    for number, step in enumerate(steps[:-1], 1):
        world = world_type()
        world.run_steps(number, request=request)
        # Make the model read the pods: otherwise, `_pods` may be None.
        world.cluster.live_pods({})
        moments[f"{number} {step}"] = [
            *({**item, "kind": str(kind)} for (kind, _name), item in world.cluster._items.items()
              if item),
            *(_pod(pod.name, pod.uid, pod.labels, pod.owner_uid) for pod in world.cluster._pods)]
    return moments


def objects_of(cluster):
    """Return the controllers, ControllerRevisions and autoscalers of a cluster."""
    model, kind = cluster.cluster, str(cluster.kind)
    items = [{**item, "kind": kind} for item in model.items.values()]
    if kind == "Deployment":
        items += [{**item, "kind": "ReplicaSet"} for item in model.sets.items.values()]
    revisions = cluster.revisions([item["metadata"]["uid"] for item in items]) or []
    return [*items, *({**item, "kind": "ControllerRevision"} for item in revisions),
            {**cluster.scaler, "kind": "HorizontalPodAutoscaler"}]


def pods_of(cluster):
    """Return the pods of foo and its successor as the API server does."""
    if str(cluster.kind) in KINDS_WITH_REVISIONS:
        uid = cluster.cluster.items["foo"]["metadata"]["uid"]
        return [_pod(getattr(pod, "name", f"foo-{number}"), getattr(pod, "uid", f"uid {number}"),
                     {HASH_LABEL: pod.revision, GENERATION_LABEL: getattr(pod, "generation", "")},
                     uid, pod.ready, getattr(pod, "node", ""))
                for number, pod in enumerate(cluster.pods)]
    return [_pod(f"pod-{number}", f"uid of pod-{number}", dict(pod.labels), pod.owner_uid,
                 pod.ready)
            for number, pod in enumerate(cluster.pods)]


def _pod(name, uid, labels, owner, is_ready=True, node=""):
    return {"kind": "Pod",
            "metadata": {"name": name, "uid": uid, "labels": labels,
                         "ownerReferences": [{"uid": owner, "controller": True}]},
            **({"spec": {"nodeName": node}} if node else {}),
            "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]}}


def images(pods, objects):
    by_uid = {item["metadata"].get("uid"): item["spec"]["template"]
              for item in objects if "template" in item.get("spec", {})}
    by_hash = {}
    for item in objects:
        if item["kind"] == "ControllerRevision" and "template" in item["data"].get("spec", {}):
            template = item["data"]["spec"]["template"]
            by_hash[item["metadata"]["name"]] = template
            by_hash[item["metadata"].get("labels", {}).get(HASH_LABEL, "-")] = template
    templates = [by_hash.get(pod["metadata"]["labels"].get(HASH_LABEL))
                 or by_uid[pod["metadata"]["ownerReferences"][0]["uid"]] for pod in pods]
    return [template["spec"]["containers"][0]["image"] for template in templates]


def load(kind, objects):
    cluster, of_kind = Cluster(kind), _kind_filter(objects)
    model = cluster.cluster
    model.items = {item["metadata"]["name"]: item for item in of_kind(kind)}
    cluster.scaler = of_kind("HorizontalPodAutoscaler")[0]
    pods, revisions = of_kind("Pod"), of_kind("ControllerRevision")
    if kind in KINDS_WITH_REVISIONS:
        example = cluster.pods[0]
        model._pods["foo"] = tuple(
            example._replace(name=pod["metadata"]["name"], uid=pod["metadata"]["uid"],
                             revision=pod["metadata"]["labels"][HASH_LABEL], ready=_is_ready(pod),
                             node=pod.get("spec", {}).get("nodeName", ""),
                             generation=pod["metadata"]["labels"].get(GENERATION_LABEL, ""))
            for pod in pods)
        model.stored_revisions = {model.items["foo"]["metadata"]["uid"]: tuple(revisions)}
        return cluster
    if kind == "Deployment":
        pod_owners = type(model.sets)(of_kind("ReplicaSet"), model.sets.kind)
        model.sets = pod_owners
    else:
        cluster.cluster = pod_owners = type(model)(model.items.values(), model.kind)
        pod_owners.stored_revisions = {item["metadata"]["name"]: item for item in revisions}
    example = pod_owners.pods[0]
    pod_owners.pods = sorted(
        example._replace(owner_uid=owner, cached_owner_uid=owner, ready=_is_ready(pod),
                         labels=tuple(sorted(pod["metadata"]["labels"].items())))
        for pod in pods for owner in [pod["metadata"]["ownerReferences"][0]["uid"]])
    return cluster


def load_migration(world_type, objects):
    world = world_type()
    world.cluster._items = {(item["kind"], item["metadata"]["name"]): item
                            for item in objects if item["kind"] != "Pod"}
    world.cluster._pods = tuple(
        Pod(pod["metadata"]["name"], pod["metadata"]["uid"], pod["metadata"]["labels"],
            pod["metadata"]["ownerReferences"][0]["uid"])
        for pod in _kind_filter(objects)("Pod"))
    return world


def _kind_filter(objects):
    return lambda kind: [item for item in objects if item["kind"] == kind]


def _is_ready(pod):
    return pod["status"]["conditions"][0]["status"] == "True"


#: (class of the simulation, request, steps).
MIGRATIONS = {
    "migration of a ReplicationController": (
        migrations.World, migrations.MIGRATE, migrations.ALL_STEPS),
    "migration of a DeploymentConfig": (
        migrations.ConfigWorld, migrations.MIGRATE_CONFIG, migrations.ALL_CONFIG_STEPS),
}


def main(folder):
    """Write a file for each kind and for each migration."""
    folder.mkdir(parents=True, exist_ok=True)
    updates = {kind: record(kind) for kind in KINDS}
    updates |= {name: record_migration(*migration) for name, migration in MIGRATIONS.items()}
    for name, moments in updates.items():
        recording_path(folder, name).write_text(to_json(moments), "utf-8")


def to_json(moments):
    """Return the moments as JSON, with one object per line."""
    texts = [f"{json.dumps(moment)}: [\n" + ",\n".join(
        json.dumps(item, sort_keys=True) for item in objects) + "\n]"
        for moment, objects in moments.items()]
    return "{\n" + ",\n".join(texts) + "\n}\n"


def recording_path(folder, name):
    return folder / f"{name.replace(' ', '-').lower()}.json"


if __name__ == "__main__":
    main(Path(sys.argv[1]))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""From a ReplicationController to a Deployment, with the same pods: none is created, deleted or restarted. Pure.

A Deployment takes a ReplicaSet for its own if its selector matches, and for that of its template if the templates are equal but
for the label pod-template-hash (FindNewReplicaSet, EqualIgnoreHash), whatever that label's value is. So the pods get such a label
and are handed over (handover.py) to a ReplicaSet that a Deployment then adopts. What the controller was is kept in a
ControllerRevision before anything is changed, until the end; whoever runs the same task again goes on from there.

The Deployment is paused until its ReplicaSet has a revision: so the server's controller says that it has seen both, and taken the
one for the other's; else it would make another ReplicaSet, with other pods.
"""

from __future__ import annotations

import typing as t

from ...model import marks
from ...model.errors import NoSuchController, RolloutError
from ...model.fields import Json
from ...model.kinds import Kind
from ...model.marks import Kept
from ...model.observed import Controller, Observed, revision_of
from ...model.request import Request
from ...model.steps import REVISION, Action, Create, Decision, Delete, Done, Step, Wait, patch, scale, test
from ...model.template import same_template, with_label
from .. import handover
from .find import MigrationObserved, hash_of, kept_name, template_of


def plan(request: Request, seen: Observed) -> Decision:
    """The next step, or what to wait for, or the end. Raises RolloutError."""
    there = t.cast(MigrationObserved, seen)
    primary, kept = there.controller, there.kept
    if kept is None:
        return _begin(request, there)
    # | any | yes | another ReplicaSet or Deployment of these names | error |
    for other in (there.replica_set, there.deployment):
        if other and not _is_ours(request, other, there, kept):
            raise _taken(request, other)
    if primary:
        return _take_over(request, primary, there, kept)
    # | gone | yes | - | create the ReplicaSet, closed |
    if there.replica_set is None:
        return _create_replica_set(request, kept)
    return _become_deployment(request, there, there.replica_set, kept)


def _begin(request: Request, there: MigrationObserved) -> Decision:
    primary = there.controller
    # | foo | kept | ReplicaSet, Deployment | step |
    # | - | - | a Deployment | done, unchanged |
    if primary is None and there.deployment:
        return Done(f"{request.name} is already a Deployment")
    # | - | - | - | error: no such controller |
    if primary is None:
        raise NoSuchController(f"there is no such {request.kind}", where=request.where)
    # | yes | - | an update is in progress, it goes, it is another object's, or one of these names is taken | error |
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first", where=request.where)
    if primary.is_deleting:
        raise RolloutError("it is being deleted", where=request.where)
    if primary.owner and not request.releases_owner:
        raise RolloutError(f"it is controlled by {primary.owner}, which would create another one", where=request.where,
                           next_command=f"stop {primary.owner} first (docs/migration.md); then add release_owner=true")
    for taken in filter(None, (there.deployment, there.replica_set)):
        raise _taken(request, taken)
    # | yes | - | - | keep what it is |
    manifest = _kept(request, primary)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=primary.images)


def _take_over(request: Request, primary: Controller, there: MigrationObserved, kept: Kept) -> Decision:
    """While the controller is there: its pods go to the ReplicaSet."""
    # | another one | yes | | error |
    if primary.uid != kept["uid"]:
        raise RolloutError("it was created again during its migration, when its pods already belonged to the ReplicaSet",
                           where=request.where,
                           next_command=(f"{request.kubectl} delete rc {primary.name}", "then:", request.command()))
    if primary.is_marked:
        raise RolloutError("an update is in progress: finish it or roll it back first", where=request.where)
    replica_set = there.replica_set
    # | yes | of something else | - | begin anew: what is kept cannot be changed |
    if replica_set is None:
        if _kept(request, primary)["data"] != kept:
            return _forget(request, "it has changed since", is_last=False)
        if primary.is_deleting:
            return Wait(f"{primary.name} is gone")
        # | yes | yes | - | release it, on request |
        if primary.owner:
            return Step(Action.ANNOTATE, primary.name, patch(primary, {"op": "remove", "path": "/metadata/ownerReferences"}),
                        before=primary.owner, after=f"released from {primary.owner}")
        # | yes | yes | - | create the ReplicaSet, closed |
        return _create_replica_set(request, kept)
    # | yes | of another template or selector | yes | error: whoever has written both must not get its pods |
    if not _is_of(request, primary, kept):
        raise RolloutError(
            f"its template or selector is not what the ControllerRevision {kept_name(request)} keeps for its migration",
            where=request.where, next_command=("give it back what it had, or look at what is kept:",
                                               f"{request.kubectl} get {REVISION.lower()} {kept_name(request)} -o yaml"))
    # | yes | yes | of another size | scale the ReplicaSet |
    if replica_set.replicas != primary.replicas and not primary.is_deleting:
        return scale(replica_set, primary.replicas)
    # | open | yes | closed | annotate the controller: closed |
    if not handover.is_closed(primary):
        return handover.close(primary, {})
    # | closed | yes | closed | hand over: each pod gets the label in the same patch; then delete the controller |
    labels = {marks.HASH_LABEL: kept["hash"]}
    return handover.hand_over(there.pods, primary, replica_set, labels) or handover.delete_empty(primary)


def _create_replica_set(request: Request, kept: Kept) -> Step:
    manifest = _replica_set(request, kept)
    return Step(Action.CREATE, manifest["metadata"]["name"], Create(manifest), after=_images(kept))


def _become_deployment(request: Request, there: MigrationObserved, replica_set: Controller, kept: Kept) -> Decision:
    """The ReplicaSet has the pods, and the Deployment takes the ReplicaSet."""
    # | gone | yes | closed, with all pods | open |
    if handover.is_closed(replica_set):
        # | gone | yes | closed, pods are the controller's still, which the garbage collector is about to delete | hand over |
        labels = {marks.HASH_LABEL: kept["hash"]}
        left = handover.give(there.pods or (), kept["uid"], request.name, replica_set, labels)
        if left and replica_set.is_observed:
            return left
        # Whoever has deleted the controller in the middle has left pods that nothing selects: they are nobody's.
        pods = there.pods and tuple(pod for pod in there.pods if pod.owner or labels.items() <= pod.labels.items())
        if not handover.may_open(replica_set, kept["uid"], pods):
            return Wait(f"{replica_set.name} {replica_set.current}/{replica_set.replicas} pods")
        original = kept["manifest"]["spec"]["template"]["spec"].get("priorityClassName")
        return Step(Action.RESTORE, replica_set.name, patch(replica_set, *handover.opening(original)), before="closed template",
                    after="template")
    # | gone | yes | open, no Deployment | Deployment, paused |
    deployment = there.deployment
    if deployment is None:
        return Step(Action.CREATE, request.name, Create(_deployment(request, there, kept)), after=_images(kept))
    if replica_set.owner_uid != deployment.uid or not revision_of(replica_set):
        return Wait(f"the Deployment {deployment.name} has adopted the ReplicaSet {replica_set.name}")
    # | gone | yes | the ReplicaSet is the Deployment's | unpause |
    if deployment.settings["paused"]:
        write = patch(deployment, test("/spec/paused", True), {"op": "remove", "path": "/spec/paused"})
        return Step(Action.PACE, deployment.name, write, before="paused", after="no longer paused")
    if not (deployment.is_observed and deployment.updated == deployment.current == deployment.available == deployment.replicas):
        return Wait(f"{deployment.name} {deployment.available}/{deployment.replicas} available")
    # | gone | yes | all is well | forget what it was |
    return _forget(request, "the Deployment has all pods", is_last=True)


def _is_of(request: Request, primary: Controller, kept: Kept) -> bool:
    """Whether that is what is kept of the controller; it may be closed since, and of another size."""
    spec = kept["manifest"]["spec"]
    return primary.selector == spec["selector"] and _is_same(template_of(request, primary.template),
                                                             template_of(request, spec["template"]))


def _is_ours(request: Request, it: Controller, there: MigrationObserved, kept: Kept) -> bool:
    """Whether a ReplicaSet or a Deployment is what this migration creates; what has adopted the ReplicaSet may be edited again."""
    replica_set, deployment = there.replica_set, there.deployment
    adopter = deployment.uid if deployment and there.controller is None else ""
    manifest = _deployment(request, there, kept) if it is deployment else _replica_set(request, kept)
    is_same = (it.selector == manifest["spec"]["selector"]["matchLabels"] and _is_same(it.template, manifest["spec"]["template"]))
    if it is deployment:
        return is_same or bool(replica_set and adopter and replica_set.owner_uid == adopter)
    return is_same and it.owner_uid in ("", adopter)


def _is_same(one: Json, other: Json) -> bool:
    """Whether two templates are equal but for being closed."""
    return same_template(handover.closed(one), handover.closed(other), "")


def _taken(request: Request, it: Controller) -> RolloutError:
    return RolloutError(f"a {it.kind} named {it.name} already exists and does not belong to this migration",
                        where=request.where, next_command=f"{request.kubectl} get {it.kind.short} {it.name}")


def _forget(request: Request, why: str, is_last: bool) -> Step:
    name = kept_name(request)
    return Step(Action.DELETE, name, Delete(name, {}, REVISION), after=why, is_last=is_last, is_end=is_last)


# Manifests


def creations(request: Request, primary: Controller) -> tuple[Create, Create]:
    """What the migration will create, once nothing can be undone any more: it is tried before the first write."""
    kept: Kept = _kept(request, primary)["data"]
    there = MigrationObserved(primary, None)
    return Create(_replica_set(request, kept)), Create(_deployment(request, there, kept))


def _selector(request: Request, selector: Json) -> Json:
    """Without the deployment label as well, unless there is nothing else."""
    return {key: value for key, value in selector.items() if key != request.label_key} or selector


def _kept(request: Request, primary: Controller) -> Json:
    metadata = {"name": primary.name, "namespace": request.namespace, "labels": primary.labels, "annotations": primary.annotations}
    spec = {"replicas": primary.replicas, "selector": primary.selector, "minReadySeconds": primary.min_ready_seconds,
            "template": primary.template}
    manifest = {"apiVersion": "v1", "kind": str(primary.kind), "metadata": metadata, "spec": spec}
    return {
        "apiVersion": "apps/v1", "kind": REVISION,
        "metadata": {"name": kept_name(request), "namespace": request.namespace},
        "revision": 1, "data": {"hash": hash_of(request, primary), "uid": primary.uid, "manifest": manifest},
    }


def _replica_set(request: Request, kept: Kept) -> Json:
    spec = kept["manifest"]["spec"]
    template = with_label(_whole_template(request, spec), marks.HASH_LABEL, kept["hash"])
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.REPLICA_SET),
        "metadata": {"name": f"{request.name}-{kept['hash']}", "namespace": request.namespace,
                     "labels": template["metadata"]["labels"], "annotations": {}},
        "spec": {"replicas": spec["replicas"], "minReadySeconds": spec["minReadySeconds"],
                 "selector": {"matchLabels": {**_selector(request, spec["selector"]), marks.HASH_LABEL: kept["hash"]}},
                 "template": handover.closed(template)},
    }


def _deployment(request: Request, there: MigrationObserved, kept: Kept) -> Json:
    metadata, spec = kept["manifest"]["metadata"], kept["manifest"]["spec"]
    annotations = {key: value for key, value in metadata["annotations"].items() if key not in marks.NOT_COPIED}
    pace = {"maxSurge": request.max_surge.for_api, "maxUnavailable": request.max_unavailable.for_api}
    strategy = {"strategy": {"type": "RollingUpdate", "rollingUpdate": pace}} if request.gives_strategy else {}
    size = there.replica_set.replicas if there.replica_set else spec["replicas"]
    return {
        "apiVersion": "apps/v1", "kind": str(Kind.DEPLOYMENT),
        "metadata": {"name": request.name, "namespace": request.namespace, "annotations": annotations,
                     "labels": {key: value for key, value in metadata["labels"].items() if key != request.label_key}},
        "spec": {"replicas": size, "paused": True, "selector": {"matchLabels": _selector(request, spec["selector"])},
                 "minReadySeconds": spec["minReadySeconds"], "progressDeadlineSeconds": 600 + spec["minReadySeconds"],
                 "template": _whole_template(request, spec), **strategy},
    }


def _whole_template(request: Request, spec: Json) -> Json:
    """The template, with the deployment label only where the selector has nothing else."""
    template, value = template_of(request, spec["template"]), _selector(request, spec["selector"]).get(request.label_key)
    return with_label(template, request.label_key, value) if value else template


def _images(kept: Kept) -> dict[str, str]:
    return {each["name"]: each.get("image", "") for each in kept["manifest"]["spec"]["template"]["spec"]["containers"]}

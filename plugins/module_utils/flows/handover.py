# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The handover: the primary gets the template and the pods of the successor.

A single patch per pod replaces the owner reference, so no other controller can adopt the pod.

The controller manager watches controllers and pods with separate informers. If an informer lags,
the controller manager could replace pods lost by the successor, or create too many pods for the
primary. To prevent both errors, first *close* the two templates: set a nonexistent priority class,
so the API server rejects new pods of the templates.

The *takeover annotation* of the primary marks the beginning of the handover, and has the data to
finish the handover. To *reparent* a pod is to replace the pod's owner reference.

Comments of the form `| ... |` are the rows of the table in docs/concepts/handover.md. The cells
are: state of the primary, state of the successor, condition, step.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..model import budgets, identity
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.object_meta import (
    LAST_ROLLOUT,
    NOT_COPIED,
    PARTNER,
    TAKEOVER,
    UPDATE_ANNOTATIONS,
    Takeover,
)
from ..model.observed import Controller, Observed, Pod, deployment_label
from ..model.request import Request
from ..model.steps import (
    Action,
    Create,
    Decision,
    Delete,
    Handover,
    Step,
    Wait,
    annotate,
    escape_key,
    patch,
    put,
    scale,
    test,
    wait_for_deletion,
)
from ..model.template import image_names, images_of
from . import provenance
from .flow import RolloutStatus

#: No cluster has this priority class.
CLOSED = "baton-kubernetes-takeover-in-progress"
PERMISSIONS = (("", "pods", ("list", "patch")),)
#: A JSON pointer.
PRIORITY_PATH = "/spec/template/spec/priorityClassName"


# State of a handover


def is_under_way(observed: Observed) -> bool:
    """Return whether the handover has begun; a rollback is then impossible.

    If another client has replaced the primary, only the successor has the takeover annotation.
    """
    primary, successor = observed.primary, observed.successor
    return bool(primary and (primary.has_takeover
                             or (successor and successor.takeover and is_closed(successor)
                                 and successor.partner == primary.name)))


def depends_on_pod_owners(observed: Observed) -> bool:
    """Return whether the next decision depends on the owners of pods."""
    primary, successor = observed.primary, observed.successor
    if primary is None or not is_under_way(observed):
        return False
    if successor is None:
        return is_closed(primary) and primary.is_observed and primary.current != primary.replicas
    return (is_closed(successor) and successor.is_observed
            and (primary.is_observed or not is_closed(primary)))


def is_closed(controller: Controller) -> bool:
    """Return whether the API server rejects the pods of the controller."""
    return controller.template["spec"].get("priorityClassName") == CLOSED


def with_unfinished_phase(status: RolloutStatus) -> RolloutStatus:
    """Return the status, but never with the phase "complete" while the template is closed.

    During a migration, only the ControllerRevision and the closed template show an unfinished
    handover.
    """
    survivor = status.survivor
    if survivor is None or status.phase != "complete" or not is_closed(survivor):
        return status
    return dataclasses.replace(status, phase="progressing", direction="forward")


# The steps


def rename(request: Request, primary: Controller, successor: Controller,
           desired_size: int) -> Step:
    """Return the step that gives the primary a closed copy of the successor's template.

    kubectl rolling-update called this step "rename": the new template gets the name of the primary.
    """
    # | 0 pods | all pods | no `next_name` | rename: set a closed copy of the successor's template |
    label = deployment_label(request, successor)
    label_operations = [put(f"/metadata/labels/{escape_key(request.label_key)}", label)]
    if not primary.labels:
        label_operations = [test("/metadata/labels", None),
                            put("/metadata/labels", {request.label_key: label})]
    operations = (
        test("/spec/replicas", 0),
        *annotate(primary,
                  {TAKEOVER: identity.canonical(
                      takeover_annotation(request, successor, desired_size, primary.images))}),
        *label_operations,
        put("/spec/template", closed_template(successor.template)),
        *([put("/spec/selector", successor.selector)] if primary.kind.has_mutable_selector else []),
        put("/spec/minReadySeconds", successor.min_ready_seconds),
        put("/spec/replicas", desired_size),
    )
    return Step(Action.RENAME, primary.name, patch(primary, *operations), before=primary.images,
                after=successor.images)


def recreate(request: Request, successor: Controller, desired_size: int) -> Step:
    """Return the step that recreates a deleted primary in the state after rename()."""
    # | deleted | any | another client deleted the primary | create: the primary as after a rename |
    label = deployment_label(request, successor) or ""
    annotations = {key: text
                   for key, text in successor.annotations.items() if key not in NOT_COPIED}
    takeover = takeover_annotation(request, successor, desired_size,
                                   successor.last_rollout.get("from") or {})
    manifest = {
        "apiVersion": successor.kind.api_version,
        "kind": str(successor.kind),
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            "labels": {**successor.labels, request.label_key: label},
            "annotations": {**annotations, PARTNER: successor.name,
                            TAKEOVER: identity.canonical(takeover)},
        },
        "spec": {
            "replicas": desired_size,
            "selector": successor.kind.selector(successor.selector),
            "template": closed_template(successor.template),
            "minReadySeconds": successor.min_ready_seconds,
        },
    }
    return Step(Action.CREATE, request.name, Create(manifest), after=successor.images)


def finish(request: Request, observed: Observed, primary: Controller) -> Decision:
    """Return the next decision of a handover.

    Raises RolloutError if the takeover annotation is invalid or not confirmed by the successor.
    """
    successor = observed.successor
    takeover = (primary.takeover
                or (successor.takeover if successor and not primary.has_takeover else None))
    if takeover is None:
        raise RolloutError(
            f"the annotation {TAKEOVER} cannot be read, so the handover cannot be finished",
            where=request.where, next_command=f"{request.kubectl} get {request.kind.kubectl_name} "
                                              f"{primary.name} -o yaml")
    # rename() annotates and closes the primary in a single patch. If both templates are open,
    # another client has written the annotation or opened the primary.
    # | open | open | the primary has the takeover annotation | annotate: remove this annotation |
    if successor and primary.has_takeover and not is_closed(primary) and not is_closed(successor):
        write = patch(primary, *annotate(primary, {TAKEOVER: None}))
        return Step(Action.ANNOTATE, primary.name, write, before="taking over", after="updating")
    if successor is None or successor.uid != takeover["uid"]:
        return _finish_without_successor(request, observed, primary, takeover)
    _refuse_unproven_successor(request, primary, successor)
    if is_closed(primary):
        return _finish_with_closed_primary(observed, primary, successor, takeover)
    # | open | being deleted, no pods | finalizers delay the deletion | wait |
    if successor.is_deleting and successor.is_observed and not successor.current:
        return wait_for_deletion(successor)
    # | open | closed | another client replaced the primary | undo the handover (see below) |
    return _return_pods(request, observed, primary, successor, takeover)


def _finish_with_closed_primary(observed: Observed, primary: Controller, successor: Controller,
                                takeover: Takeover) -> Decision:
    """Return the next decision if the primary is closed and the successor exists."""
    # | closed | any | annotation missing or image changed | restore: set annotation and template |
    if not primary.has_takeover or primary.images != successor.images:
        return _restore_template(primary, successor)
    # | closed | any | another client scaled the primary down | restore: scale the primary up |
    # A closed primary creates no pods, so limit the size to the pods of both controllers.
    size = min(takeover["replicas"], primary.current + max(successor.replicas, successor.current))
    is_empty_and_deleting = successor.is_deleting and not successor.current
    if primary.replicas < size and not is_empty_and_deleting:
        return scale(primary, size, Action.RESTORE)
    # | closed | open | | annotate: close the successor, copy the takeover annotation to it |
    if not is_closed(successor):
        return close(successor, {TAKEOVER: primary.annotations[TAKEOVER]})
    # | closed | closed | the controller manager has not observed both templates | wait |
    if decision := reparent_or_wait(observed.pods, successor, primary):
        return decision
    # | closed | being deleted, no pods | all living pods have moved | restore: open the primary |
    # A terminating successor neither creates nor adopts pods, so opening the primary is safe.
    if is_empty_and_deleting and is_safe_to_open(primary, successor.uid, observed.pods):
        return Step(Action.RESTORE, primary.name,
                    patch(primary, *opening_operations(takeover["priorityClassName"])),
                    before="closed template", after="template")
    return delete_empty(successor)


def reparent_or_wait(pods: tuple[Pod, ...] | None, source: Controller, target: Controller,
                     labels: t.Mapping[str, str | None] | None = None) -> Decision | None:
    """Return reparent_step(), or a Wait for an up-to-date status or for the list of pods."""
    # | closed | closed | the successor has pods | hand over: reparent each pod to the primary |
    if not (source.is_observed and target.is_observed):
        return Wait(f"the controller manager observes {target.name} and {source.name}",
                    is_condition=True)
    if pods is None:
        return Wait(f"pods of {source.name}: {source.current}")
    return reparent_step(pods, source.uid, source.name, target, labels)


def reparent_step(pods: tuple[Pod, ...], source_uid: str, source_name: str, target: Controller,
                  labels: t.Mapping[str, str | None] | None = None) -> Step | None:
    """Return the step that reparents the pods of the source, or None if the source has no pods.

    Each patch also sets `labels`, and removes labels with the value None.
    """
    owned_pods = tuple(pod for pod in pods if pod.owner_uid == source_uid)
    if not owned_pods:
        return None
    write = Handover(owned_pods, source_uid, {**target.reference, "blockOwnerDeletion": True},
                     labels or {})
    return Step(Action.HAND_OVER, source_name, write, before=len(owned_pods), after=target.name)


def delete_empty(controller: Controller) -> Decision:
    """Return the step that deletes an empty controller, or a Wait for 0 pods or the deletion."""
    # | closed | closed | the successor has no pods, its status counts none | delete the successor |
    if controller.is_deleting:
        return wait_for_deletion(controller)
    if controller.current:
        return Wait(f"pods of {controller.name}: {controller.current}")
    preconditions = {"uid": controller.uid, "resourceVersion": controller.resource_version}
    write = Delete(controller.name, preconditions, controller.kind)
    return Step(Action.DELETE, controller.name, write, before=0)


def close(controller: Controller, annotations: t.Mapping[str, str | None]) -> Step:
    """Return the step that closes the template and sets annotations."""
    write = patch(controller, *annotate(controller, annotations),
                  test(PRIORITY_PATH, controller.template["spec"].get("priorityClassName")),
                  put(PRIORITY_PATH, CLOSED))
    return Step(Action.ANNOTATE, controller.name, write, after="no more pods are created for it")


def opening_operations(priority_class: str | None) -> tuple[Json, ...]:
    """Return the patch operations to open a template: restore or remove the priority class."""
    return (test(PRIORITY_PATH, CLOSED),
            put(PRIORITY_PATH, priority_class) if priority_class
            else {"op": "remove", "path": PRIORITY_PATH})


def is_safe_to_open(controller: Controller, source_uid: str, pods: tuple[Pod, ...] | None) -> bool:
    """Return whether the controller's status counts every reparented pod.

    With a lower count, the controller manager would create replacements for existing pods.
    """
    if not controller.is_observed:
        return False
    if controller.current >= controller.replicas:
        return True
    if pods is None or any(pod.owner_uid in ("", source_uid) for pod in pods):
        return False
    return controller.current == sum(pod.owner_uid == controller.uid for pod in pods)


def wait_with_terminating(condition: str, observed: Observed) -> Wait:
    """Return a Wait for the condition and for the terminating pods."""
    return Wait(", ".join(filter(None, (condition, observed.terminating.condition))),
                terminating=observed.terminating)


def _opening_exceeds_surge(request: Request, observed: Observed, controller: Controller) -> bool:
    """Return whether new and terminating pods would exceed the surge with an open template."""
    surge = budgets.surge_and_unavailable(request, observed.budgets, controller.replicas)[0]
    return controller.current < controller.replicas and observed.terminating.count > surge


def _restore_template(primary: Controller, successor: Controller) -> Step:
    """Return the step that restores a closed primary after a change by another client."""
    takeover_text = successor.annotations.get(TAKEOVER) or primary.annotations[TAKEOVER]
    operations = (*annotate(primary, {TAKEOVER: takeover_text, PARTNER: successor.name}),
                  test(PRIORITY_PATH, CLOSED),
                  put("/spec/template", closed_template(successor.template)))
    warning = ""
    if primary.images != successor.images:
        warning = (f"another client applied another template to {primary.name} at the end of its "
                   f"update: {image_names(primary.images)}. The template is restored to "
                   f"{image_names(successor.images)}, which its pods run; make sure that the "
                   "GitOps controller or pipeline that applies the manifest gets the new image too")
    return Step(Action.RESTORE, primary.name, patch(primary, *operations), before=primary.images,
                after=successor.images, warning=warning)


def _return_pods(request: Request, observed: Observed, primary: Controller,
                 successor: Controller, takeover: Takeover) -> Decision:
    """Return the next decision to return pods to the successor.

    Another client has opened the primary, so the primary creates pods. With the successor's pods in
    addition, the primary would exceed spec.replicas, and the controller manager would delete pods.
    """
    if not successor.is_observed or observed.pods is None:
        return Wait(f"the controller manager observes {successor.name}", is_condition=True)
    # | open | closed | the successor's status counts more pods than it has | wait |
    # Wait before returning the pods: afterwards, the outdated count would look correct.
    if sum(pod.owner_uid == successor.uid for pod in observed.pods) < successor.current:
        return Wait(f"pods of {successor.name}: {successor.current}")
    # | open | closed | the primary has pods of the successor | hand over: return these pods |
    label = deployment_label(request, successor)
    successor_pods = tuple(pod for pod in observed.pods
                           if pod.labels.get(request.label_key) == label)
    if step := reparent_step(successor_pods, primary.uid, primary.name, successor):
        return step
    # | open | closed | the pods are returned | restore: open the successor, remove the annotation |
    owned_pods = tuple(pod for pod in successor_pods if pod.owner_uid)
    if not is_safe_to_open(successor, primary.uid, owned_pods):
        return Wait(f"pods of {successor.name}: {successor.current}/{successor.replicas}")
    if _opening_exceeds_surge(request, observed, successor):
        return wait_with_terminating(
            f"pods of {successor.name}: {successor.current}/{successor.replicas}", observed)
    write = patch(successor, *annotate(successor, {TAKEOVER: None}),
                  *opening_operations(takeover["priorityClassName"]))
    return Step(Action.RESTORE, successor.name, write, before="closed template", after="template",
                warning=f"another client replaced {primary.name} at the end of its update; the "
                        "update continues with the successor")


def _finish_without_successor(request: Request, observed: Observed, primary: Controller,
                              takeover: Takeover) -> Decision:
    """Return the next step after the deletion of the successor.

    Keep the annotations until all pods are available, so a resumed task waits as well.
    """
    is_open = not is_closed(primary)
    operations = () if is_open else opening_operations(takeover["priorityClassName"])
    if not primary.is_settled:
        text = f"{primary.name} {primary.available}/{primary.replicas} available after the handover"
        # | closed | deleted | the successor still owns pods | hand over: reparent to the primary |
        step = None if is_open else reparent_step(
            observed.pods or (), takeover["uid"], takeover["next"], primary)
        if step and primary.is_observed:
            return step
        # | closed | deleted | the primary has all living pods | restore: open the primary |
        if not is_open and is_safe_to_open(primary, takeover["uid"], observed.pods):
            if _opening_exceeds_surge(request, observed, primary):
                return wait_with_terminating(text, observed)
            return Step(Action.RESTORE, primary.name, patch(primary, *operations),
                        before="closed template", after="template")
        return Wait(text)
    # | any | deleted | all pods are available | annotate: remove annotations, open the primary |
    images = images_of(primary.template)
    record = {"outcome": "updated", "from": takeover["from"], "to": images, **observed.stamp}
    # Another client may have edited the template during the handover.
    has_successor_template = (
        takeover["template"] == provenance.digest(primary.template, takeover["label"]))
    if has_successor_template:
        record["request"] = provenance.record_entry(takeover["request"], primary, takeover["label"])
    changes = {**dict.fromkeys(UPDATE_ANNOTATIONS), LAST_ROLLOUT: identity.canonical(record)}
    changes = {key: value for key, value in changes.items() if value or key in primary.annotations}
    # No observation follows, so the write must detect a concurrent change.
    version_test = test("/metadata/resourceVersion", primary.resource_version)
    spec = provenance.without_priority(primary.template)["spec"]
    if takeover["priorityClassName"]:
        spec = {**spec, "priorityClassName": takeover["priorityClassName"]}
    warning = ""
    if primary.successor_hash not in (
            None, stored_template_hash({**primary.template, "spec": spec})):
        warning = (f"another client applied another template to {primary.name} at the end of its "
                   f"update: {image_names(images)}. The update is repeated; make sure that the "
                   "GitOps controller or pipeline that applies the manifest gets the new image too")
    return Step(Action.ANNOTATE, primary.name,
                patch(primary, version_test, *annotate(primary, changes), *operations),
                before="taking over", after="updated", completes_update=True,
                ends_task=((observed.is_handover_proven or not is_open) and has_successor_template
                           and takeover["request"] == request.fingerprint),
                warning=warning)


# The takeover annotation


def takeover_annotation(request: Request, successor: Controller, desired_size: int,
                        old_images: Json) -> Takeover:
    """Return the value of the takeover annotation."""
    return {"next": successor.name, "uid": successor.uid, "label": request.label_key,
            "replicas": desired_size, "from": old_images,
            "request": request.fingerprint,
            "template": provenance.digest(successor.template, request.label_key),
            # In a closed successor's template, the class is CLOSED: use the successor's annotation.
            "priorityClassName": (successor.takeover
                                  or successor.template["spec"]).get("priorityClassName")}


def stored_template_hash(template: Json) -> str:
    """Return the hash of a template as stored by the API server: with metadata, even if empty."""
    return identity.digest({**template, "metadata": template.get("metadata") or {}})


def closed_template(template: Json) -> Json:
    """Return a closed copy of the template."""
    return {**template, "spec": {**template["spec"], "priorityClassName": CLOSED}}


def _refuse_unproven_successor(request: Request, primary: Controller,
                               successor: Controller) -> None:
    """Raise RolloutError unless the successor confirms the primary's takeover annotation.

    A user with annotate permission can write any name into this annotation.
    """
    has_same_template = (is_closed(primary)
                         and primary.selector.items() <= successor.selector.items()
                         and provenance.digest(primary.template, "")
                         == provenance.digest(successor.template, ""))
    # Outside of a handover, a user may create a closed controller and name a primary as partner.
    # With the same deployment label, _return_pods() would take the pods of the primary.
    takes_foreign_pods = (not is_closed(primary) and not primary.has_takeover
                          and (deployment_label(request, primary)
                               == deployment_label(request, successor)))
    is_confirmed = (successor.is_named_for(primary.name)
                    and (successor.partner == primary.name or has_same_template))
    if successor.owner or takes_foreign_pods or not is_confirmed:
        raise RolloutError(
            f"the annotation {TAKEOVER} names {successor.name}, which is not the successor in this "
            f"update: its own annotations do not name {primary.name}", where=request.where,
            next_command=f"{request.kubectl} get {request.kind.kubectl_name} {primary.name} "
                         f"{successor.name} -o yaml")

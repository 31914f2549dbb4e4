# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Diagnose the pods that an update or a rollback replaces. No I/O.

The cluster replaces such a pod whatever its problem is, so no cause in it is fatal. An exception is
a StatefulSet with podManagementPolicy OrderedReady: an old pod that never becomes ready blocks the
update until a user deletes the pod (kubernetes/kubernetes#67250).
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..flows.flow import AnyFlow, OldPod
from ..model.fields import MAX_IN_COMMAND, Json, text
from ..model.observed import Controller
from ..model.request import Request
from ..model.template import labels_of
from . import diagnosis, pod_health
from .diagnosis import Cause
from .pod_health import name_of

# Kinds of causes
PREVIOUS_TEMPLATE = "old-pod"
#: The pod has the previous template, and a replacement of the pod would have the same template.
PREVIOUS_TEMPLATE_KEPT = "held-pod"
#: The pod has neither the previous nor the new template.
THIRD_TEMPLATE = "stuck-pod"

KINDS = (PREVIOUS_TEMPLATE, THIRD_TEMPLATE, PREVIOUS_TEMPLATE_KEPT)
#: Kinds of unready pods with the previous template. A rollback restores this template, and would
#: therefore not replace these pods.
ROLLBACK_BLOCKING_KINDS = (PREVIOUS_TEMPLATE, PREVIOUS_TEMPLATE_KEPT)

_DELETE_ADVICE = (
    "delete {pods}: the cluster does not replace an old pod that is not ready "
    "(kubernetes/kubernetes#67250; \"Forced rollback\" in the documentation of StatefulSets), but "
    "creates a deleted pod again, from {templates}\n"
    "{kubectl} delete pod {pods}")
_PAUSE_ADVICE = (
    "leave pause_at out: pause_at keeps {pods} at the template from before the update, so "
    "deleting {pods} does not help")
_SUGGESTIONS = {PREVIOUS_TEMPLATE: _DELETE_ADVICE, THIRD_TEMPLATE: _DELETE_ADVICE,
                PREVIOUS_TEMPLATE_KEPT: _PAUSE_ADVICE}


def causes(flow: AnyFlow, request: Request, controller: Controller, pods: t.Sequence[Json],
           events: t.Sequence[Json], is_replaced: t.Callable[[Json], bool]) -> list[Cause]:
    """Return one cause for each kind of unready old pods, and the causes for the other pods.

    is_replaced: whether the update or rollback replaces a pod with these labels.
    """
    unready_old_pods = flow.unready_old_pods(controller, pods)
    deleted_pods: t.Iterable[str] = ()
    if request.state.rolls_back:
        # The task itself deletes unready pods of another template.
        deleted_pods, unready_old_pods = unready_old_pods, {}
    old_pod_causes = [cause for pod in pods if name_of(pod) in unready_old_pods
                      for cause in _old_pod_causes(request, pod, events, unready_old_pods)]
    replaced_pods: list[Json] = []
    other_pods: list[Json] = []
    for pod in pods:
        if name_of(pod) not in unready_old_pods:
            is_old = ((is_replaced(labels_of(pod)) or name_of(pod) in deleted_pods)
                      and not _is_terminating(pod))
            (replaced_pods if is_old else other_pods).append(pod)
    kinds = list(map(_kind_of, unready_old_pods.values()))
    cause_of_each_kind = [min((cause for cause in old_pod_causes if cause.kind == kind),
                              key=lambda cause: not cause.is_fatal)
                          for kind in KINDS if kind in kinds]
    causes_with_pod_counts = [dataclasses.replace(cause, pods=kinds.count(cause.kind))
                              for cause in cause_of_each_kind]
    other_causes = diagnosis.causes(request, controller, other_pods, events)
    other_kinds = {cause.kind for cause in other_causes}
    return [*causes_with_pod_counts, *other_causes,
            *(cause for cause in _causes_of_replaced_pods(request, replaced_pods, events)
              if cause.kind not in other_kinds)]


def _causes_of_replaced_pods(request: Request, pods: t.Iterable[Json],
                             events: t.Sequence[Json]) -> list[Cause]:
    # A rollback replaces the new pods.
    prefix = "" if request.state.rolls_back else "old "
    return diagnosis.merge(
        dataclasses.replace(cause, is_fatal=False, place=f"{prefix}{cause.place}")
        for pod in pods for cause in _pod_causes(request, pod, events))


def _kind_of(old_pod: OldPod) -> str:
    """Return one of KINDS."""
    if not old_pod.has_previous_template:
        return THIRD_TEMPLATE
    return PREVIOUS_TEMPLATE_KEPT if old_pod.keeps_previous_template else PREVIOUS_TEMPLATE


def _old_pod_causes(request: Request, pod: Json, events: t.Iterable[Json],
                    old_pods: t.Mapping[str, OldPod]) -> list[Cause]:
    name = name_of(pod)
    kind = _kind_of(old_pods[name])
    old_pods_of_kind = {old_name: old_pod for old_name, old_pod in old_pods.items()
                        if _kind_of(old_pod) == kind}
    unknown_cause = Cause(kind, "", "it is not ready", "", is_fatal=False, place=f"pod {name}",
                          pod=name)
    pod_names = " ".join(diagnosis.name_or_placeholder("pod", old_name)
                         for old_name in list(old_pods_of_kind)[:MAX_IN_COMMAND])
    templates = " or ".join(dict.fromkeys(
        "the template from before the update" if old_pod.keeps_previous_template
        else "the new template" for old_pod in old_pods_of_kind.values()))
    suggestion = _SUGGESTIONS[kind].format(pods=pod_names, templates=templates,
                                           kubectl=request.kubectl)
    return [dataclasses.replace(cause, kind=kind, place=f"old {cause.place}", suggestion=suggestion,
                                is_fatal=cause.is_fatal and old_pods[name].blocks_update)
            for cause in _pod_causes(request, pod, events)
            or [unknown_cause]]


def _pod_causes(request: Request, pod: Json, events: t.Iterable[Json]) -> list[Cause]:
    uid = text(pod["metadata"], "uid")
    return diagnosis.pod_causes(request, pod, pod_health.events_about(events, {uid}))


def _is_terminating(pod: Json) -> bool:
    return "deletionTimestamp" in pod["metadata"]

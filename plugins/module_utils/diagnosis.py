# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why pods do not become available, in the cluster's own words. Pure: fed with a controller and some of its pods."""

from __future__ import annotations

import typing as t

from .observed import Controller

Json = dict[str, t.Any]


def why_not_available(controller: Controller, pods: t.Sequence[Json]) -> str:
    """One sentence: how many, and for each different reason one pod with its reason and message.

    The controller's own trouble (a quota, an admission that refuses pods) comes first: there is no pod to look at then.
    """
    reasons: dict[str, tuple[str, int]] = {}
    for pod in sorted(pods, key=lambda pod: pod["metadata"]["name"]):
        reason = _reason(pod)
        if reason:
            key = reason.partition(":")[0]
            first, count = reasons.get(key, (f"pod {pod['metadata']['name']}: {reason}", 0))
            reasons[key] = (first, count + 1)
    found = [first + (f" (and {count - 1} more)" if count > 1 else "") for first, count in reasons.values()]
    if controller.failure:
        found.insert(0, f"pods cannot be created: {controller.failure}")
    missing = controller.replicas - controller.current
    if not found and missing > 0:
        found.append(f"{missing} pods have not been created")
    head = f"{controller.name} has {controller.available} of {controller.replicas} available"
    return "; ".join([head, *found])


def _reason(pod: Json) -> str:
    """The most telling thing a pod says of itself, or "" when it is ready or on its way."""
    status = pod.get("status", {})
    for container in (status.get("initContainerStatuses") or []) + (status.get("containerStatuses") or []):
        waiting = container.get("state", {}).get("waiting") or {}
        ended = (container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")) or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            last = f"; it last ended with {ended.get('reason')}, exit code {ended.get('exitCode')}" if ended else ""
            return _join(waiting["reason"], waiting.get("message", "") + last)
        if ended and ended.get("exitCode") and not container.get("ready"):
            return _join(ended.get("reason", "Error"), f"exit code {ended['exitCode']}. {ended.get('message', '')}")
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
        condition = conditions.get(kind, {})
        if condition.get("status") == "False":
            return _join(condition.get("reason", kind), condition.get("message", ""))
    return ""


def _join(reason: str, message: str) -> str:
    message = " ".join(message.split())[:500].rstrip(". ")
    return f"{reason}: {message}" if message else reason

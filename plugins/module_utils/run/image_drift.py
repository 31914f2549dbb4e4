# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compare the images of the new pods. A moved tag leads to different versions of an image.

A list of all pods can be large, so the new pods are listed only a few times: when two new pods are
available, when half of the new pods are available, at a soak, and before a pause or the last steps.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import typing as t

from ..cluster.gateway import Gateway
from ..flows.flow import AnyFlow, Holder, RolloutStatus, Rule
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.object_meta import owner_uid
from ..model.observed import Controller, Observed
from ..model.request import Request
from ..model.steps import Decision, WatchPods
from ..model.template import labels_of

if t.TYPE_CHECKING:
    from ..explain.image_drift import PodVersions

REQUIRED_PERMISSIONS: tuple[Rule, ...] = (("", "pods", ("list",)),)
MOVED_TAG = "a tag has moved: the new pods run different versions of an image"


def required_permissions(request: Request) -> tuple[Rule, ...]:
    """Return the permissions for image_drift=fail, or () for other values."""
    fails_on_drift = request.image_drift == "fail" and not request.state.rolls_back
    return REQUIRED_PERMISSIONS if fails_on_drift else ()


class ImageDrift:
    """Compares the images of the new pods of a run."""

    def __init__(self, gateway: Gateway, warn: t.Callable[[str], None]) -> None:
        self._gateway, self._warn = gateway, warn
        #: The versions of new pods by uid, including deleted pods.
        self._versions: dict[str, PodVersions] = {}
        #: The number of available new pods when the pods were last listed.
        self._listed_available_count = 0
        #: See _comparison_moment().
        self._compared_moments: set[str] = set()
        #: The place (container) and the reason (image) of each cause in a printed warning.
        self._printed_warnings: set[tuple[str, str]] = set()
        self._listed_controllers: list[Controller] = []
        #: A list is None if the user may not list pods.
        self._pending_lists: list[tuple[Holder, concurrent.futures.Future[list[Json] | None]]] = []

    def check(self, flow: AnyFlow, request: Request, observed: Observed, decision: Decision | None,
              status: RolloutStatus) -> None:
        """Compare the images if a comparison is due.

        With image_drift=fail, raises RolloutFailed if the images differ. Raises RolloutError.
        """
        if not _compares_images(request, status):
            return
        available_count = status.new.available if status.new and status.is_observed else 0
        half_goal = ((status.goal or 0) + 1) // 2
        is_due = any(self._listed_available_count < threshold <= available_count
                     for threshold in (2, max(2, half_goal)))
        moment = _comparison_moment(flow, observed, decision)
        is_new_moment = bool(moment) and moment not in self._compared_moments
        holders = [holder for holder in status.holders
                   if holder.new_labels is not None and holder.has_known_labels]
        controllers = [holder.controller for holder in holders]
        if is_due or (is_new_moment and controllers != self._listed_controllers):
            self._listed_available_count, self._listed_controllers = available_count, controllers
            self._pending_lists += [(holder, self._list_pods(holder)) for holder in holders]
        if is_new_moment or all(future.done() for _holder, future in self._pending_lists):
            self._compared_moments.add(moment)
            self._compare(request, status)

    def _list_pods(self, holder: Holder) -> concurrent.futures.Future[list[Json] | None]:
        selector = {**holder.controller.selector, **(holder.new_labels or {})}
        controller = dataclasses.replace(holder.controller, selector=selector)
        read = functools.partial(self._gateway.all_pods, controller)
        if future := self._gateway.start_in_background(read):
            return future
        result_future: concurrent.futures.Future[list[Json] | None] = concurrent.futures.Future()
        result_future.set_result(read())
        return result_future

    def _compare(self, request: Request, status: RolloutStatus) -> None:
        from ..explain import image_drift

        pending_lists, self._pending_lists = self._pending_lists, []
        for holder, future in pending_lists:
            pods = future.result()
            if pods is None and request.image_drift == "fail":
                raise _pods_not_listed_error(request)
            self._versions |= {
                pod["metadata"]["uid"]: image_drift.versions_of(pod) for pod in pods or ()
                if owner_uid(pod) == holder.controller.uid and holder.is_new(labels_of(pod))}
        if pending_lists:
            self._report(request, status)

    def _report(self, request: Request, status: RolloutStatus) -> None:
        from ..explain import image_drift
        from .deadlines import failure

        causes = image_drift.causes(self._versions.values())
        if causes and request.image_drift == "fail":
            raise failure(request, self._gateway, MOVED_TAG, "", causes,
                          can_roll_back=not status.is_irreversible)
        for cause in causes:
            if (cause.place, cause.reason) not in self._printed_warnings:
                self._printed_warnings.add((cause.place, cause.reason))
                self._warn(f"a tag has moved: {image_drift.sentence(cause)}")


def _compares_images(request: Request, status: RolloutStatus) -> bool:
    return (request.image_drift != "ignore" and request.waits
            and not request.state.rolls_back and status.direction != "back")


def _comparison_moment(flow: AnyFlow, observed: Observed, decision: Decision | None) -> str:
    """Return "soak" during a soak, "end" before a pause or before the last steps, else ""."""
    if decision is None or isinstance(decision, WatchPods):
        return "soak" if decision else ""
    return "end" if flow.is_soak_due(observed, decision) else ""


def _pods_not_listed_error(request: Request) -> RolloutError:
    return RolloutError("its pods cannot be listed, and image_drift=fail needs to compare them",
                        where=request.where, why="not allowed: list on pods",
                        next_command="ask for the Role in docs/reference/permissions.md")

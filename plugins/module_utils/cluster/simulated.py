# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Implement the gateway for check mode."""

from __future__ import annotations

import collections.abc
import concurrent.futures
import typing as t

from ..flows.flow import Anything, Model
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, Pod, TerminatingPod
from ..model.patches import apply_patch
from ..model.steps import AUTOSCALER, Create, Handover, Merge, Patch, Write
from .gateway import Gateway


class SimulatedGateway:
    """The gateway of check mode, with a model of the controllers and pods.

    In the model, all pods become ready. Dry runs, and most reads of other objects, use the cluster.
    """

    def __init__(self, real: Gateway, advance_clock: t.Callable[[float], None],
                 model: Model) -> None:
        """Initialize the gateway.

        advance_clock: a function that advances the simulated time by a number of seconds.
        """
        self._real, self._advance_clock, self._model = real, advance_clock, model
        #: Changed autoscalers by uid.
        self._autoscalers: dict[str, Json] = {}
        self._created: dict[tuple[str, str], Json] = {}

    # The model

    def controllers(self, kind: Kind | None = None) -> collections.abc.Mapping[str, Controller]:
        return self._model.controllers(kind)

    def find(self, kind: str, name: str) -> Json | None:
        return self._model.find(kind, name)

    def live_pods(self, selector: Json) -> tuple[Pod, ...]:
        return self._model.live_pods(selector)

    def terminating_pods(self, selector: Json) -> tuple[TerminatingPod, ...]:
        return self._model.terminating_pods(selector)

    def revisions(self, uids: t.Sequence[str]) -> list[Json] | None:
        return self._model.revisions(uids)

    def troubled_pods(self, controller: Controller) -> list[Json]:
        return self._model.troubled_pods(controller)

    def all_pods(self, controller: Controller, excluded_revision: str = "") -> list[Json] | None:
        return self._model.all_pods(controller, excluded_revision)

    def nodes(self, selector: str) -> frozenset[str]:
        return self._model.nodes(selector)

    def write(self, write: Write) -> bool:
        if isinstance(write, Patch) and write.kind == AUTOSCALER:
            autoscalers = self.objects("horizontalpodautoscalers") or ()
            autoscaler = next(item for item in autoscalers
                              if item["metadata"]["name"] == write.name)
            self._autoscalers[autoscaler["metadata"]["uid"]] = apply_patch(autoscaler, write)
            return True
        if isinstance(write, Create):
            self._created[write.kind, write.name] = write.manifest
        return self._model.write(write)

    def hand_over(self, write: Handover, may_continue: t.Callable[[], bool]) -> int:
        return len(write.pods) if self._model.write(write) else 0

    def wait(self, seconds: float) -> None:
        if not self._model.settle():
            # Nothing will change, so advance the clock towards the driver's deadline.
            self._advance_clock(seconds)

    # The real cluster

    def items(self, kind: Kind | None = None) -> list[Json]:
        return self._real.items(kind)

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        return self._real.watched_pods(controller)

    def server_time(self) -> float:
        return self._real.server_time()

    def config_object(self, kind: str, name: str) -> Json | None:
        return self._real.config_object(kind, name)

    def has_change_times(self) -> bool:
        return self._real.has_change_times()

    def absence_reason(self, name: str) -> str:
        return self._real.absence_reason(name)

    def may_list_pods(self) -> bool:
        return self._real.may_list_pods()

    def objects(self, resource: str) -> list[Json] | None:
        objects = self._real.objects(resource)
        return objects and [self._autoscalers.get(item["metadata"]["uid"], item)
                            for item in objects]

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        created = self._created.get((write.kind, write.name))
        if created and isinstance(write, Patch):
            return apply_patch(created, write)
        return self._real.dry_run(write)

    # Stubs in check mode

    def look_up(self, name: str) -> None:
        return

    def relist_pods(self) -> None:
        return

    def start_in_background(
            self, work: t.Callable[[], Anything]) -> concurrent.futures.Future[Anything] | None:
        return None

    def rules(self) -> list[Json] | None:
        return None

    def refuse_forbidden_handover(self, controller: Controller) -> None:
        return

    def migrations(self) -> list[Json] | None:
        return []

    def has_only_expected_pods(self, controller: Controller) -> bool:
        return False

    def warnings(self) -> list[Json]:
        return []

    def log(self, pod: str, container: str, previous: bool) -> list[str]:
        return []

    def record(self, event: Json) -> bool:
        return True

    def lease(self, name: str) -> Json | None:
        return None

    def put_lease(self, lease: Json) -> Json | None:
        return {**lease, "metadata": {**lease["metadata"], "uid": "", "resourceVersion": "1"}}

    def delete_lease(self, lease: Json) -> bool:
        return True

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check mode: a cluster in memory that begins as the real one stands. Dry runs still ask the real one; nothing is written."""

from __future__ import annotations

import collections.abc
import typing as t

from ..flows.flow import Model
from ..model.fields import Json
from ..model.kinds import Kind
from ..model.observed import Controller, Pod, TerminatingPod
from ..model.patches import patched
from ..model.steps import AUTOSCALER, Create, HandOver, Merge, Patch, Write
from .gateway import Alone, Gateway


class SimulatedGateway(Alone):
    """What the model does not have is as it is in the real cluster."""

    def __init__(self, real: Gateway, let_pass: t.Callable[[float], None], model: Model) -> None:
        """let_pass: how seconds go by in which nothing can happen any more."""
        self._real, self._let_pass, self._model = real, let_pass, model
        #: Autoscalers that were changed, by uid.
        self._changed: dict[str, Json] = {}
        #: Manifests of the controllers that would be created, which the real cluster does not have.
        self._created: dict[tuple[str, str], Json] = {}

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

    def all_pods(self, controller: Controller, but_of: str = "") -> list[Json] | None:
        return self._model.all_pods(controller, but_of)

    def watched_pods(self, controller: Controller) -> list[Json] | None:
        """Those of the real cluster: what is planned makes none that could be watched."""
        return self._real.watched_pods(controller)

    def server_time(self) -> float:
        return self._real.server_time()

    def nodes(self, selector: str) -> frozenset[str]:
        return self._model.nodes(selector)

    def tells_changes(self) -> bool:
        return self._real.tells_changes()

    def objects(self, resource: str) -> list[Json] | None:
        objects = self._real.objects(resource)
        return objects and [self._changed.get(it["metadata"]["uid"], it) for it in objects]

    def dry_run(self, write: Patch | Merge | Create) -> Json:
        created = self._created.get((write.kind, write.name))
        return patched(created, write) if created and isinstance(write, Patch) else self._real.dry_run(write)

    def why_absent(self, name: str) -> str:
        return self._real.why_absent(name)

    def write(self, write: Write) -> bool:
        if isinstance(write, Patch) and write.kind == AUTOSCALER:
            found = next(it for it in self.objects("horizontalpodautoscalers") or () if it["metadata"]["name"] == write.name)
            self._changed[found["metadata"]["uid"]] = patched(found, write)
            return True
        if isinstance(write, Create):
            self._created[write.kind, write.name] = write.manifest
        return self._model.write(write)

    def hand_over(self, write: HandOver, may_go_on: t.Callable[[], bool]) -> int:
        return len(write.pods) if self._model.write(write) else 0

    def look_up(self, name: str) -> None:
        return

    def wait(self, seconds: float) -> None:
        if not self._model.moves():
            self._let_pass(seconds)  # nothing will ever change: the driver's deadline is to come
        self._model.settle()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run releases without I/O, with models in place of the modules and the users' files."""

from __future__ import annotations

import copy
import dataclasses
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import ARGUMENT_SPEC
from ansible_collections.baton.kubernetes.plugins.module_utils.release import (
    conditions,
    loop,
    turn_options,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.ending import (
    Ending,
    artifacts,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import (
    History,
    Turn,
    failure_without_result,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.release.request import Request

Json = dict[str, t.Any]
NOW = "2026-11-24T10:00:00Z"
MAX_TURNS = 200


def variables(**changes: t.Any) -> Json:
    """Return the variables of a role, as the lookup release_request returns them.

    before, verify, after and failure: the names of the user's files.
    """
    files = {hook: [{"typed": name, "path": f"/{name}"} for name in changes.pop(hook, [])]
             for hook in ("before", "verify", "after", "failure")}
    options = {"namespace": "shop", "on_failure": "rollback", "image": "myimage:v2",
               **changes.pop("options", {})}
    output = {"role": "image_bump", "layer": "role", "selection": {"name": "a"}, "stages": ["100%"],
              "analyses": [],
              "approve_within": "", "keep_old_for": "",
              "report": "", "has_page": False, "has_artifacts": False,
              "check_mode": False, "host": "",
              "errors": [], "previous": {}, "traffic": {}, **changes}
    return {**output,
            "options": {option: value for option, value in options.items() if value is not None},
            "files": files}


@dataclasses.dataclass
class Controller:
    image: str = "myimage:v1"
    #: The image of the update in progress, or "".
    new_image: str = ""
    new_percent: int = 0
    is_deleted: bool = False
    is_locked: bool = False
    #: Whether all old pods exist beside the new pods.
    keeps_old: bool = False
    #: From this percentage of new pods on, they are unavailable. 101 means never.
    breaks_at: int = 101
    was_rolled_back: bool = False
    #: The share of the requests for the new pods in percent, or "" if the route is not split.
    share: str = ""
    has_no_route: bool = False

    @property
    def old_percent(self) -> int:
        return 100 if self.keeps_old else 100 - self.new_percent


class Cluster:
    """Model of a cluster and the modules: update, split and info return the result of a task."""

    def __init__(self, **controllers: Controller) -> None:
        self.controllers = controllers
        self.changed_names: set[str] = set()
        #: The controllers that another client has rolled back.
        self.undone_names: set[str] = set()

    def update(self, options: Json) -> Json:
        result = self._update(options)
        if "_return_pods" in options and not result["failed"]:
            return result | {"rollouts": self._rollouts(options)}
        return result

    def _update(self, options: Json) -> Json:
        is_single = "name" in options
        names = [options["name"]] if is_single else options["names"]
        results, failure_count = [], 0
        for name in names:
            if failure_count and options.get("max_failures") != "100%":
                results.append({"name": name, "skipped": True, "failed": False, "changed": False,
                                "msg": "not started"})
                continue
            results.append({"name": name, "skipped": False, "failed": False,
                            **self._update_one(name, options)})
            failure_count += results[-1]["failed"]
        if is_single:
            return results[0] | {"results": results}
        return {"results": results, "failed": bool(failure_count),
                "changed": any(result["changed"] for result in results),
                "msg": "; ".join(result["msg"] for result in results if result["failed"])
                or "all as requested"}

    def split(self, options: Json) -> Json:
        # traffic_split refuses other options in `update`.
        assert options.get("update", {}).keys() <= ARGUMENT_SPEC.keys()
        controller = self.controllers[options["name"]]
        share = options.get("weight", "")
        where = f"{options['route_kind']} {options['route']}"
        if controller.is_deleted or controller.has_no_route:
            return self._failed(where, "there is no such route")
        if "before_update" in options and controller.new_image:
            return {"changed": False, "msg": "an update is in progress", "weight": None}
        if "update" in options and controller.image == options["update"]["image"]:
            return {"changed": False, "msg": "a needs no update", "weight": None}
        if share and (share != "0%" or options.get("match")) and not controller.new_image:
            return self._failed(where, "there are no new pods")
        is_changed, controller.share = controller.share != share, share
        return {"changed": is_changed, "msg": f"{share or 'no share'} of the requests for "
                                              f"{options['name']}"}

    def info(self, options: Json) -> Json:
        return {"rollouts": self._rollouts(options)}

    def _rollouts(self, options: Json) -> list[Json]:
        names = [options["name"]] if "name" in options else options.get("names", [])
        return [{**self.rollout(name), "name": name,
                 "pods": [{"name": f"{name}-x", "is_new": True}]}
                for name in names if not self.controllers[name].is_deleted]

    def rollout(self, name: str, before: str = "") -> Json:
        """Return the value of `rollout` in a result. before: the image before the task."""
        controller = self.controllers[name]
        image, new_image = controller.image, controller.new_image
        new_percent = controller.new_percent
        outcome = "rolled_back" if controller.was_rolled_back else "updated"
        return {"phase": "paused" if new_image else "complete",
                "direction": "forward" if new_image else None, "since": NOW, "desired": 100,
                "controller": {"images": {"web": image},
                               "replicas": controller.old_percent},
                "successor": {"images": {"web": new_image}, "replicas": new_percent} if new_image
                else None,
                "images": {"before": {"web": before or image},
                           "after": {"web": new_image or image}},
                "last_rollout": {"outcome": outcome}}

    def _update_one(self, name: str, options: Json) -> Json:
        controller = self.controllers[name]
        if controller.is_deleted:
            return self._failed(name, "there is no such controller")
        if controller.is_locked:
            return self._failed(name, "another task works on it", rollout=self.rollout(name))
        if options.get("state") == "rolled_back" or "pause_at" not in options:
            controller.share = ""
        if options.get("state") == "rolled_back":
            if not controller.new_image:
                return self._failed(name, "there is no update in progress to roll back",
                                    rollout=self.rollout(name))
            return self._done(name, controller.image, new_image="", new_percent=0,
                              was_rolled_back=True)
        image = options.get("images", {}).get("web") or options["image"]
        if reason := self._refusal(name, image, options):
            return self._failed(name, reason, rollout=self.rollout(name))
        if controller.image == image and not controller.new_image:
            controller.share = ""
            return {"changed": False, "msg": f"{name} is updated", "rollout": self.rollout(name)}
        controller.keeps_old = options.get("keep_old", False)
        new_percent = int(str(options.get("pause_at", 100)).rstrip("%"))
        if new_percent >= controller.breaks_at and image == "myimage:v2":
            self.changed_names.add(name)
            if options.get("on_failure") == "rollback":
                controller.new_image, controller.new_percent = "", 0
                controller.was_rolled_back, controller.share = True, ""
            else:
                controller.new_image, controller.new_percent = image, controller.breaks_at
            return self._failed(name, "the new pods cannot become available", changed=True,
                                rollout=self.rollout(name))
        if "pause_at" not in options:
            return self._done(name, controller.image, image=image, new_image="", new_percent=0,
                              was_rolled_back=False)
        if new_percent <= controller.new_percent and controller.new_image:
            return {"changed": False, "msg": f"{name} is paused", "rollout": self.rollout(name)}
        return self._done(name, controller.image, new_image=image, new_percent=new_percent)

    def _refusal(self, name: str, image: str, options: Json) -> str:
        """Return why the module refuses to update the controller to the image, or ""."""
        controller = self.controllers[name]
        if controller.new_image:
            return "another update is in progress" if controller.new_image != image else ""
        if name in options.get("_resumed_names", ()) and controller.image != image:
            return "its update was rolled back, or replaced by another update"
        return ""

    def _done(self, name: str, before: str, **fields: t.Any) -> Json:
        self.changed_names.add(name)
        self.controllers[name] = dataclasses.replace(self.controllers[name], **fields)
        return {"changed": True, "msg": f"{name} is done", "rollout": self.rollout(name, before)}

    def _failed(self, name: str, what: str, changed: bool = False, **more: t.Any) -> Json:
        return {"failed": True, "changed": changed, "msg": f"{what}: all the words",
                "failure": {"what": what, "where": name, "why": "",
                            "next_command": f"ansible -m x -a name={name}"}, **more}


class Killed(Exception):
    """End of the role's process in the middle of a turn."""


class Run:
    """Run of a role, turn by turn.

    files: user's file or "analysis of NAME" -> function that returns why it fails, or "".
    answer: called while the role waits for an approval.
    """

    def __init__(self, request: Json, cluster: Cluster,
                 files: t.Mapping[str, t.Callable[[Cluster], str]] | None = None,
                 answer: t.Callable[[Cluster], t.Any] = bool, killed_at: int = -1) -> None:
        self.request, self.cluster = Request.of(copy.deepcopy(request)), cluster
        self.files, self.answer, self.killed_at = files or {}, answer, killed_at
        self.state: Json = {}
        self.stats: Json = {}

    def run(self) -> Run:
        """Run all turns, or raise Killed at turn killed_at.

        killed_at=3: before the action of turn 3. killed_at=3.5: after this action.
        """
        result: Json = {}
        failure: Json = {}
        for number in range(MAX_TURNS):
            decision = loop.decide(self.request, self.state, result, failure, NOW,
                                   {"user": "ada", "host": "h"})
            self.state, self.facts = decision["state"], decision["facts"]
            turn = Turn(**self.state["turn"])
            if turn.purpose == "end":
                return self
            result, failure = self._run_turn(turn, number)
        raise AssertionError("the release does not end")

    def _run_turn(self, turn: Turn, number: int) -> tuple[Json, Json]:
        if number == self.killed_at:
            raise Killed
        result, why = self._run_action(turn)
        if number + 0.5 == self.killed_at:
            raise Killed
        why = why or (result.get("msg", "") if result.get("failed") else "")
        return result, failure_without_result(turn.title, why) if why else {}

    def _run_action(self, turn: Turn) -> tuple[Json, str]:
        """Return the result of the action, and why a user's file or an analysis fails, or ""."""
        if turn.do == "update":
            return self.cluster.update(turn_options.module_options(self.request, turn)), ""
        if turn.do == "split":
            return self.cluster.split(turn_options.module_options(self.request, turn)), ""
        if turn.do == "look":
            return self.cluster.info(turn_options.module_options(self.request, turn)), ""
        if turn.do == "ask":
            self.answer(self.cluster)
            return self.cluster.info(turn_options.module_options(self.request, turn)), ""
        if turn.do == "analyze":
            results: list[Json] = []
            for controller_and_analysis in turn.analyses:
                options = turn_options.analysis_options(
                    conditions.Release(self.request, self.history), controller_and_analysis,
                    results)
                if why := self.files.get(f"analysis of {options['name']}",
                                         lambda _cluster: "")(self.cluster):
                    return {"results": results}, why
                results.append({"name": options["name"], "msg": "measured", "old_pods": ["x"],
                                "metrics": [], "measurements": []})
            return {"results": results}, ""
        if turn.do == "pass_artifacts":
            self.stats = artifacts(self.request, self.history, self.ending)
        return {}, self.files.get(turn.file, lambda _cluster: "")(self.cluster) or ""

    @property
    def history(self) -> History:
        return History.read(self.state)

    @property
    def ending(self) -> Ending:
        return Ending(self.request, self.history)

    @property
    def turn_titles(self) -> list[str]:
        return [event.turn.title for event in self.history.events]

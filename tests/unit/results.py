# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build small module results with all keys that the report reads."""

from __future__ import annotations

import typing as t

Json = dict[str, t.Any]

FAILURE = {"what": "the new pods cannot become available",
           "where": "ReplicationController default/shop", "why": "no such image",
           "next_command": "ansible ...", "causes": [
               {"kind": "image", "reason": "ImagePullBackOff", "message": "no such image",
                "suggestion": "push it", "pods": 1,
                "is_fatal": True, "pod": "shop-1-x", "container": "web", "is_restarted": False,
                "log": ["the last words"]}]}


def updated(name: str = "shop", begin: int = 0) -> Json:
    """Return the result of an update of four pods at once, with a handover."""
    return {
        "name": name, "changed": True,
        "msg": f"{name} is updated to myimage:v2: 4 of 4 replicas available",
        "steps": [step("create", f"{name}-1", None, {"web": "myimage:v2"}, begin),
                  step("scale", f"{name}-1", 0, 4, begin + 1),
                  step("delete", f"{name}-1", 4, None, begin + 3)],
        "sizes": [size(begin, 4), size(begin + 1, 4, (1, 0)), size(begin + 2, 0, (4, 4)),
                  size(begin + 3, 0, phase="taking_over"), size(begin + 4, 4, phase="complete")],
        "rollout": rollout(name, "complete", {"outcome": "updated"})}


def paused(name: str = "shop") -> Json:
    """Return the result of an update paused at 1 new pod of 4."""
    return {"name": name, "changed": True, "msg": "paused",
            "steps": [step("scale", f"{name}-1", 0, 1), step("scale", name, 4, 3, 2)],
            "sizes": [size(0, 4), size(1, 4, (1, 0)), size(2, 3, (1, 1)), size(3, 3, (1, 1))],
            "rollout": rollout(name, "paused") | {"successor": {"name": f"{name}-1"}}}


def soaked(name: str = "shop", has_failed: bool = False) -> Json:
    """Return the result of a pause at 1 new pod of 4, with a soak of two seconds."""
    sample = {**size(3, 3, (1, 1)), "is_watched": True}
    result = paused(name) | {"sizes": [*paused(name)["sizes"][:3], sample, size(5, 3, (1, 1))]}
    failure = {"failed": True,
               "failure": FAILURE
               | {"what": "the new pods have not passed the soak; shop is rolled back"}}
    return result | (failure if has_failed else {})


def failed(name: str = "shop") -> Json:
    """Return the result of an update that fails because of a missing image."""
    return {"name": name, "changed": True, "failed": True, "msg": "it failed", "failure": FAILURE,
            "steps": [step("scale", f"{name}-1", 0, 1)],
            "sizes": [size(0, 4), size(1, 4, (1, 0)), size(9, 4, (1, 0))],
            "rollout": rollout(name, "progressing") | {"successor": {"name": f"{name}-1"}}}


def module_result(entry: Json) -> Json:
    entry = {"failed": False, "skipped": False, **entry}
    return entry | {"results": [entry]}


def rollout(name: str, phase: str, last: Json | None = None) -> Json:
    return {"phase": phase, "controller": {"name": name, "replicas": 4, "available": 4},
            "successor": None, "floor": 4, "ceiling": 5,
            "last_rollout": last,
            "images": {"before": {"web": "myimage:v1"}, "after": {"web": "myimage:v2"}}}


def step(action: str, name: str, before: t.Any, after: t.Any, second: int = 0) -> Json:
    return {"action": action, "kind": "ReplicationController", "name": name, "from": before,
            "to": after, "at": at(second)}


def size(second: int, replicas: int, successor: tuple[int, int] | None = None,
         phase: str = "progressing") -> Json:
    """Return a sample of the sizes. successor: its replicas, and how many are available."""
    return {"at": at(second), "phase": phase,
            "controller": {"replicas": replicas, "available": replicas},
            "successor": ({"replicas": successor[0], "available": successor[1]} if successor
                          else None)}


def at(second: int) -> str:
    return f"2026-11-21T10:00:{second:02}.000Z"


def analysis(name: str = "shop", begin: int = 0, outcome: str = "passed") -> Json:
    """Return an analysis that measures each of two metrics twice.

    outcome: that of the analysis and of its last measurement.
    """
    def measurement(metric: str, number: int, **fields: t.Any) -> Json:
        return {"metric": metric, "number": number, "at": f"2026-11-21T10:00:{begin + number:02}Z",
                "outcome": "passed",
                "reason": "", "new": 0.999, "old": 0.998, "samples": None, **fields}

    return {"file": "rollout_analysis", "outcome": outcome, "message": "measured",
            "at": "2026-11-21T10:00:04Z", "measured": {
                "name": name,
                "metrics": [{"name": "success_rate",
                             "thresholds": {"min": 0.99, "max_decrease": 0.001}},
                            {"name": "latency",
                             "thresholds": {"max_ratio_to_old": 1.5, "max": 0.5}}],
                "measurements": [measurement("success_rate", 1),
                                 measurement("latency", 1, new=0.1, old=0.2),
                                 measurement("success_rate", 2, new=None, old=None),
                                 measurement("latency", 2, new=0.4, old=0.2, outcome=outcome,
                                             reason="0.4 is more than 0.3")]}}

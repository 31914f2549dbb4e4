# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Record a rollout: progress lines, Events and sizes."""

from __future__ import annotations

import dataclasses
import itertools
import re

from builders import SUCCESSOR, UPDATE, rc
from clusters import Cluster, stalled_cluster, update_error

from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import Intervals
from ansible_collections.baton.kubernetes.plugins.module_utils.run.recorder import LINE_INTERVAL


def test_progress_lines_of_an_update():
    lines = []

    Cluster(rc(replicas=1)).run(print_line=lines.append)

    assert lines == [
        f"annotate foo: partner {SUCCESSOR}", f"create {SUCCESSOR}: with myimage:v2",
        "annotate foo: updating, 0 desired",
        f"scale {SUCCESSOR}: 0 -> 1 replicas", f"waiting: {SUCCESSOR} 0/1 available, foo 1",
        "scale foo: 1 -> 0 replicas",
        "rename foo: takes over myimage:v2",
        f"annotate {SUCCESSOR}: no more pods are created for it",
        f"hand over {SUCCESSOR}: 1 pod to foo", f"delete {SUCCESSOR}: it has no pods",
        "annotate foo: updated"]


def test_progress_lines_of_a_wait_are_limited():
    cluster = Cluster(rc(replicas=30))
    cluster.on_wait = lambda: cluster.cluster.make(cluster.cluster.moves()[0])
    lines = []

    cluster.run(print_line=lambda line: lines.append((cluster.clock.now, line)))

    waits = [(at, line) for at, line in lines if line.startswith("waiting")]
    assert len(waits) > 10 and len(lines) > 60
    assert all(LINE_INTERVAL <= after - before < LINE_INTERVAL + driver.POLL_INTERVAL + 0.1
               for (before, _line), (after, _next_line) in itertools.pairwise(waits))


def test_cause_has_one_progress_line():
    cluster = stalled_cluster(rc())

    update_error(cluster)

    size_line = f"waiting: {SUCCESSOR} 0/3 available, foo 3"
    cause = f"pod default/{SUCCESSOR}-1, container web: ErrImagePull: no such image"
    assert [line for _at, line in cluster.lines if line.startswith("waiting: ")] == [
        size_line, f"{size_line}; {cause}"]


def test_events_end_after_a_rejected_event():
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append(event) or len(events) < 3

    result = cluster.run()

    assert [event["message"] for event in events] == [
        f"annotate foo: partner {SUCCESSOR}", f"create {SUCCESSOR}: with myimage:v2",
        "annotate foo: updating, 0 desired"]
    assert ({event["involvedObject"]["uid"] for event in events} == {"uid of foo"}
            and len(result["steps"]) > 3)
    assert events[0]["reason"] == "RollingUpdateAnnotate" and events[0]["type"] == "Normal"


def test_quick_scale_steps_share_an_event():
    cluster, events = Cluster(rc(replicas=40)), []
    cluster.record = lambda event: events.append(event["message"]) or True
    cluster.wait = lambda seconds: cluster.clock.sleep(0.05) or cluster.on_wait()

    result = cluster.run(dataclasses.replace(UPDATE, max_surge=Size(4)))

    assert sum(step["action"] == "scale" for step in result["steps"]) == 20
    assert [event for event in events if event.startswith("scale")] == [
        f"scale {SUCCESSOR}: 0 -> 40 replicas in 10 steps",
        "scale foo: 40 -> 0 replicas in 10 steps"]


def test_steps_in_a_fleet_share_an_event():
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append((event["reason"], event["message"])) or True

    result = cluster.run(intervals=Intervals(events=100, joins_events=True))

    ((reason, message),) = events
    assert reason == "RollingUpdate"
    assert [part.partition(": ")[0] for part in message.split("; ")] == [
        f"{step['action']} {step['name']}" for step in result["steps"]]


def test_failure_is_reported_as_a_warning_event():
    cluster, events = stalled_cluster(rc()), []
    cluster.record = lambda event: events.append(event) or True

    update_error(cluster)

    assert (events[-1]["type"], events[-1]["reason"]) == ("Warning", "RollingUpdateFailed")


# Sizes

WITH_SIZES = dataclasses.replace(UPDATE, return_sizes=True)


def test_sizes_of_an_update():
    result = Cluster(rc(replicas=2)).run(WITH_SIZES)

    sizes = [(size["phase"],
              *((size[side] or {}).get("replicas") for side in ("controller", "successor")))
             for size in result["sizes"]]
    assert sizes[0] == ("complete", 2, None) and sizes[-1] == ("complete", 2, None)
    assert ("progressing", 1, 2) in sizes and ("taking_over", 2, None) in sizes
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", size["at"])
               for size in result["sizes"])
    assert (result["rollout"]["floor"], result["rollout"]["ceiling"]) == (2, 3)


def test_sizes_of_a_failed_update():
    progress = update_error(stalled_cluster(rc()), return_sizes=True).progress

    assert progress["sizes"][-1]["successor"] == {"replicas": 1, "available": 0}
    assert (progress["rollout"]["floor"], progress["rollout"]["ceiling"]) == (3, 4)


def test_sizes_require_a_real_change_and_return_sizes():
    """Check mode returns no sizes either, since all its times would be equal."""
    cluster = Cluster(rc(image="myimage:v2"))

    assert cluster.run(WITH_SIZES)["sizes"] == []
    assert "sizes" not in cluster.run(dataclasses.replace(UPDATE, images={"": "myimage:v3"}))
    cluster.clock.is_real = False
    assert cluster.run(dataclasses.replace(WITH_SIZES, images={"": "myimage:v4"}))["sizes"] == []


def test_event_of_a_handover_has_its_own_reason():
    cluster, events = Cluster(rc(replicas=1)), []
    cluster.record = lambda event: events.append((event["reason"], event["message"])) or True

    cluster.run()

    assert ("RollingUpdateHandOver", f"hand over {SUCCESSOR}: 1 pod to foo") in events

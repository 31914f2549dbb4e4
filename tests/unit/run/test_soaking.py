# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The soak of new pods: length, in a single task or over several; forged annotations."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json

import pytest
from builders import BACK, SUCCESSOR, UPDATE, rc
from clusters import Cluster
from forged import KEYS
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339, seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import Soak
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

SOAK = 60
PAUSED = dataclasses.replace(UPDATE, soak=SOAK, pause_at=Size(1))
WHOLE = dataclasses.replace(UPDATE, soak=SOAK)


class Killed(BaseException):
    """Death of the client."""


class Watched(Cluster):
    """Cluster with observable pods, ready since a time set by the test."""

    def __init__(self, *items):
        super().__init__(*items)
        self.clock.now = 1_000_000.0
        self.lines, self.events = [], []
        #: Fields that differ from a ready pod's, and the time of creation, both by the pod's name.
        self.shows, self.since = {}, {}
        self.is_seen = True
        #: States of the successor's pods since the last observation.
        self.meanwhile = []
        #: Time and function of each scheduled action.
        self.at = []

    def server_time(self):
        return self.clock.now

    def warnings(self):
        return self.events

    def objects(self, resource):
        return None if resource == "pods" and not self.is_seen else super().objects(resource)

    def watched_pods(self, controller):
        if not self.is_seen:
            return None
        pods = (self.pod(controller, number) for number in range(controller.current))
        meanwhile: list = []
        if controller.name == SUCCESSOR:
            meanwhile, self.meanwhile = self.meanwhile, []
        return [*meanwhile, *(pod for pod in pods if pod)]

    def relist_pods(self):
        self.calls.append(("relist_pods", ""))

    def pod(self, controller, number):
        name = f"{controller.name}-{number}"
        since = rfc3339(self.since.setdefault(name, self.clock.now))
        fields = {"restarts": 0, "ready": "True", "uid": f"uid of {name}", "since": since,
                  "created": since, "reason": "", **self.shows.get(name, {})}
        return fields["uid"] and {
            "metadata": {"name": name, "uid": fields["uid"], "creationTimestamp": fields["created"],
                         "labels": {}},
            "spec": {"containers": [{"name": "web"}]},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": fields["ready"], "reason": fields["reason"],
                 "lastTransitionTime": fields["since"]}],
                "containerStatuses": [{"name": "web", "restartCount": fields["restarts"],
                                       "ready": True, "state": {
                    "running": {"startedAt": fields["since"]}}}]}}

    def wait(self, seconds):
        heard = super().wait(seconds)
        while self.at and self.at[0][0] <= self.clock.now:
            self.at.pop(0)[1]()
        return heard

    def run(self, request=WHOLE, **more):
        return super().run(
            request, print_line=lambda line: self.lines.append((self.clock.now, line)), **more)

    def runs_for(self, request=WHOLE):
        began = self.clock.now
        result = self.run(request)
        return self.clock.now - began, result

    def after(self, seconds, act):
        """Schedule an action `seconds` from now."""
        self.at.append((self.clock.now + seconds, act))

    def changes(self, number=0, **shows):
        return lambda: self.shows.__setitem__(f"{SUCCESSOR}-{number}", shows)

    def killed(self, seconds, request=WHOLE):
        """Run a task whose client dies after `seconds`."""
        def die():
            raise Killed

        self.after(seconds, die)
        with pytest.raises(Killed):
            self.run(request)

    def told(self, word):
        return [line for _now, line in self.lines if line.startswith(word)]

    @property
    def marks_written(self):
        return sum(operation["path"].endswith("~1soak")
                   for _now, write in self.writes if hasattr(write, "operations")
                   for operation in write.operations if operation["op"] == "add")


@pytest.mark.parametrize("request_, phase, written",
                         [(PAUSED, "paused", 2), (WHOLE, "complete", 1)])
def test_it_lasts_as_long_as_it_says_and_writes_once_when_it_begins(request_, phase, written):
    cluster = Watched(rc())

    seconds, result = cluster.runs_for(request_)

    assert SOAK <= seconds < SOAK + 5 and result["rollout"]["phase"] == phase
    # The write of the pause includes the outcome of the soak.
    assert cluster.marks_written == written
    assert 5 <= len(cluster.told("watching: ")) <= 10 and len(cluster.told("watched: ")) == 1
    size = 1 if request_ is PAUSED else 3
    assert cluster.told("watching: ")[0] == f"watching: {SUCCESSOR} {size} new, 6 of 60 s"
    assert f"annotate foo: watching {size} new pod{'s' if size > 1 else ''} for 60 s" in [
        line for _now, line in cluster.lines]
    annotations = cluster.cluster.items["foo"]["metadata"]["annotations"]
    assert (object_meta.SOAK in annotations) == (request_ is PAUSED)


@pytest.mark.parametrize("request_, has_failed", [(PAUSED, False), (WHOLE, False), (WHOLE, True)],
                         ids=["pause", "end", "failure"])
def test_the_sizes_tell_when_it_was_watched(request_, has_failed):
    """Sizes include the start and the end of the soak, for the report."""
    cluster, request = Watched(rc()), dataclasses.replace(request_, return_sizes=True)
    cluster.clock.instant = lambda: rfc3339(cluster.clock.now)
    if has_failed:
        cluster.after(SOAK / 2, cluster.changes(restarts=1))
        result = cluster.refusal(request).progress
    else:
        result = cluster.run(request)

    samples = [(sample["is_watched"], seconds(sample["at"])) for sample in result["sizes"]]
    begin = next(at for is_watched, at in samples if is_watched)
    end = max(at for is_watched, at in samples if is_watched) if has_failed else next(
        at for is_watched, at in samples if at > begin and not is_watched)
    changes = [is_watched for is_watched, _group
               in itertools.groupby(flag for flag, _at in samples)]
    assert changes == ([False, True] if has_failed else [False, True, False])
    assert (SOAK / 4 if has_failed else SOAK - 2) <= end - begin <= SOAK + 2


def test_a_pause_that_has_been_watched_is_not_watched_again_and_nothing_is_written():
    cluster = Watched(rc())
    cluster.run(PAUSED)
    writes = len(cluster.writes)
    cluster.changes(restarts=1, since=rfc3339(cluster.clock.now))()

    seconds, result = cluster.runs_for(PAUSED)

    assert ((seconds, result["changed"], len(cluster.writes)) == (0, False, writes)
            and "already paused" in result["msg"])


@pytest.mark.parametrize("again, least", [
    (dataclasses.replace(PAUSED, soak=2 * SOAK), SOAK),
    (dataclasses.replace(PAUSED, pause_at=Size(2)), SOAK)],
    ids=["for longer", "with more pods"])
def test_what_has_not_been_watched_yet_is(again, least):
    cluster = Watched(rc())
    cluster.run(PAUSED)

    seconds, result = cluster.runs_for(again)

    assert least <= seconds < least + 5 and result["rollout"]["phase"] == "paused"
    assert not cluster.runs_for(again)[1]["changed"]


def test_a_pause_of_before_is_watched_when_that_is_asked_for():
    cluster = Watched(rc())
    cluster.run(dataclasses.replace(PAUSED, soak=0))
    assert object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"]
    cluster.clock.sleep(1000)

    seconds, result = cluster.runs_for(PAUSED)

    assert (SOAK <= seconds < SOAK + 2
            and [step["action"] for step in result["steps"]] == ["annotate", "annotate"])
    assert not cluster.runs_for(PAUSED)[1]["changed"]


def test_a_new_pod_that_came_after_it_had_passed_is_watched():
    cluster = Watched(rc())
    cluster.run(PAUSED)
    cluster.changes(uid="another", created=rfc3339(cluster.clock.now))()

    assert SOAK - 2 <= cluster.runs_for(PAUSED)[0] < SOAK + 2


# Killed


@pytest.mark.parametrize("request_", [PAUSED, WHOLE], ids=["at a pause", "before the end"])
@pytest.mark.parametrize("away", [0, 10, 1000])
def test_the_time_counts_in_which_nothing_has_happened(request_, away):
    cluster = Watched(rc())
    cluster.killed(20, request_)
    cluster.clock.sleep(away + 0.1)

    seconds, result = cluster.runs_for(request_)

    rest = max(0, SOAK - 20 - away)
    assert rest - 2 <= seconds <= rest + 3 and result["rollout"]["phase"] != "progressing"
    assert "before this task, according to the status" in cluster.told("watched: ")[0]


@pytest.mark.parametrize("happens", [
    lambda cluster, now: cluster.changes(restarts=1, since=now),
    lambda cluster, now: cluster.changes(since=now),
    lambda cluster, now: cluster.changes(uid="another", created=now),
    lambda cluster, now: lambda: cluster.events.append({
        "metadata": {"uid": "e"}, "involvedObject": {"uid": f"uid of {SUCCESSOR}-0"},
        "lastTimestamp": now}),
], ids=["a restart", "a while in which it was not ready", "another pod", "a warning"])
def test_from_what_has_happened_while_nobody_watched_it_begins_anew(happens):
    cluster = Watched(rc())
    cluster.killed(20)
    cluster.clock.sleep(1000)
    happens(cluster, rfc3339(cluster.clock.now))()
    cluster.clock.sleep(10)

    seconds, result = cluster.runs_for()

    assert SOAK - 10 <= seconds <= SOAK - 10 + 3 and result["rollout"]["phase"] == "complete"


def test_a_soak_that_has_failed_begins_anew():
    cluster = Watched(rc())

    def restarts():
        cluster.changes(restarts=1, since=rfc3339(cluster.clock.now))()

    cluster.after(30, restarts)
    assert "29 of 60 s had passed" in cluster.refusal(WHOLE).why

    seconds, result = cluster.runs_for()

    assert SOAK <= seconds <= SOAK + 3 and result["rollout"]["phase"] == "complete"


# Failures during the soak


@pytest.mark.parametrize("request_", [PAUSED, WHOLE], ids=["at a pause", "before the end"])
@pytest.mark.parametrize("shows, kind", [
    ({"restarts": 1}, "crash"), ({"ready": "False", "reason": "ContainersNotReady"}, "unready"),
    ({"since": "2026-01-01T00:00:00Z"}, "unready"), ({"uid": ""}, "gone")])
def test_what_happens_to_a_new_pod_ends_it(request_, shows, kind):
    cluster = Watched(rc())
    cluster.after(30, cluster.changes(**shows))

    error = cluster.refusal(request_)

    assert (error.what == "the new pods have not passed the soak"
            and error.where == "ReplicationController default/foo")
    assert [cause["kind"] for cause in error.causes] == [kind] and f"pod {SUCCESSOR}-0" in error.why
    assert "of 60 s had passed" in error.why
    assert error.next_command.endswith(
        "'name=foo image=myimage:v2'\nor:\nansible localhost -m baton.kubernetes.rolling_update "
        "-a 'name=foo state=rolled_back'")


def test_what_was_over_before_anybody_looked_ends_it_too():
    """The pod recovers within a second, so lastTransitionTime does not change."""
    cluster = Watched(rc())

    def flickers():
        cluster.changes(ready="False", reason="ContainersNotReady")()
        controller = cluster.controllers()[SUCCESSOR]
        cluster.meanwhile = [cluster.pod(controller, 0)]
        cluster.shows.clear()

    cluster.after(30, flickers)

    assert [cause["reason"] for cause in cluster.refusal(WHOLE).causes] == ["ContainersNotReady"]


def test_it_is_rolled_back_where_that_is_asked_for():
    cluster = Watched(rc())
    cluster.after(30, cluster.changes(restarts=1))

    error = cluster.refusal(dataclasses.replace(WHOLE, rolls_back=True))

    assert error.what.startswith(
        "the new pods have not passed the soak; foo is rolled back to myimage:v1")
    assert (list(cluster.cluster.items) == ["foo"]
            and object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"])


def test_what_happens_to_an_old_pod_does_not():
    cluster = Watched(rc())
    cluster.after(30, lambda: cluster.shows.__setitem__("foo-0", {"restarts": 1, "uid": "another"}))

    assert cluster.runs_for(PAUSED)[1]["rollout"]["phase"] == "paused"


def test_warnings_about_new_pods_end_it_and_as_many_about_old_ones_do_not():
    for about, fails in ((["new"], True), (["new", "old"], False)):
        cluster = Watched(rc())
        names = {"new": f"uid of {SUCCESSOR}-0", "old": "uid of foo-0"}
        events = [{"metadata": {"uid": pod}, "involvedObject": {"uid": names[pod]},
                   "reason": "Unhealthy", "count": 2}
                  for pod in about for _old in range(1)]
        # Two old pods remain: the average per old pod needs warnings about both pods.
        events += [{**events[-1], "metadata": {"uid": "b"},
                    "involvedObject": {"uid": "uid of foo-1"}}] if not fails else []
        cluster.after(30, functools.partial(cluster.events.extend, events))
        if fails:
            assert cluster.refusal(PAUSED).causes[0]["kind"] == "warnings"
        else:
            assert cluster.runs_for(PAUSED)[1]["rollout"]["phase"] == "paused"


def warned(about, count=1, uid="e"):
    return {"metadata": {"uid": uid}, "involvedObject": {"uid": about},
            "reason": "DNSConfigForming", "count": count,
            "lastTimestamp": "1970-01-01T00:00:00Z"}


#: The uid of an old pod of foo in the simulated cluster.
OLD_POD = "0"


def test_what_old_pods_were_warned_of_before_does_not_end_it_when_these_have_gone():
    cluster = Watched(rc())
    cluster.events = [warned(OLD_POD, 5)]
    cluster.after(30, lambda: cluster.events.append(warned(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert cluster.run()["rollout"]["phase"] == "complete"


def test_nor_does_it_in_a_task_that_is_run_again_when_no_old_pod_is_left():
    cluster = Watched(rc())
    cluster.events = [warned(OLD_POD, 5)]
    cluster.killed(20)
    cluster.events = []  # the API server has deleted the expired Event
    cluster.after(10, lambda: cluster.events.append(warned(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert cluster.run()["rollout"]["phase"] == "complete"


def test_what_new_pods_alone_were_warned_of_before_is_not_usual():
    """Otherwise the first run after a soak that failed with these warnings would pass."""
    cluster = Watched(rc())
    cluster.killed(20)
    cluster.events = [warned(f"uid of {SUCCESSOR}-0", 5)]
    cluster.after(10, lambda: cluster.events.append(warned(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert [cause["reason"] for cause in cluster.refusal(WHOLE).causes] == ["DNSConfigForming"]


def test_that_foo_was_deleted_meanwhile_is_told():
    """The update itself continues: foo is recreated from the successor."""
    cluster = Watched(rc())
    cluster.after(30, lambda: cluster.cluster.items.pop("foo"))

    result = cluster.run()

    warning = ("somebody deleted ReplicationController default/foo while its new pods were "
               "watched: "
               "the soak has ended there, after 2")
    assert ([line for line in result["warnings"] if line.startswith(warning)]
            and result["rollout"]["phase"] == "complete")
    assert len(cluster.told(f"warning: {warning}")) == 1 and not cluster.told("watched: ")


def test_nothing_is_told_of_it_where_foo_stays():
    assert not any("deleted" in line for line in Watched(rc()).run()["warnings"])


def test_what_takes_longer_than_the_whole_task_may_ends_it():
    cluster = Watched(rc())

    assert cluster.refusal(dataclasses.replace(WHOLE, soak=600,
                                               timeout=100)).what == "not finished within 100 s"


def test_a_soak_is_no_lack_of_progress():
    cluster = Watched(rc())

    seconds, result = cluster.runs_for(dataclasses.replace(WHOLE, progress_deadline=10))

    assert seconds >= SOAK and result["rollout"]["phase"] == "complete"


def test_a_rollback_is_not_watched():
    cluster = Watched(rc())
    cluster.run(PAUSED)

    seconds, result = cluster.runs_for(dataclasses.replace(BACK, soak=SOAK))

    assert (seconds < 5 and result["changed"]
            and object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"])


def test_where_pods_may_not_be_seen_nothing_is_begun():
    cluster = Watched(rc())
    cluster.is_seen = False

    assert "its pods cannot be listed" in cluster.refusal(WHOLE).what and cluster.writes == []
    assert cluster.run(UPDATE)["changed"]


# Forged annotations

MARK = Soak("0123", 0.0)


def with_mark(cluster, text):
    cluster.patch("foo", "/metadata/annotations/baton.kubernetes~1soak", text)


def truth(cluster):
    """Return the best forgery of the annotation: right template, started in 1970, passed."""
    mark = json.loads(cluster.cluster.items["foo"]["metadata"]["annotations"][object_meta.SOAK])
    return {**mark, "began": "1970-01-01T00:00:00Z", "passed": 1, "seconds": 10**6}


def test_a_mark_that_says_that_all_has_passed_is_believed_no_more_than_the_pods_say():
    """The pods have been ready for 20 s. Any field of a forged annotation may hold any value."""
    cluster = Watched(rc())
    cluster.killed(20, PAUSED)
    with_mark(cluster, json.dumps(truth(cluster)))

    seconds, _result = cluster.runs_for(PAUSED)

    assert SOAK - 25 <= seconds <= SOAK - 15


def test_nor_where_it_is_paused_without_having_been_watched():
    cluster = Watched(rc())
    cluster.killed(20, PAUSED)
    with_mark(cluster, json.dumps(truth(cluster)))
    cluster.patch("foo", "/metadata/annotations/baton.kubernetes~1paused", "1")

    seconds, _result = cluster.runs_for(PAUSED)

    assert SOAK - 25 <= seconds <= SOAK - 15


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(KEYS[object_meta.SOAK]), st.booleans())
def test_whatever_somebody_has_written_no_soak_is_skipped_and_none_ends_with_a_traceback(
        text, is_paused):
    cluster = Watched(rc())
    request = dataclasses.replace(PAUSED if is_paused else WHOLE, soak=10)
    cluster.killed(1, request)
    with_mark(cluster, text)

    try:
        seconds, _result = cluster.runs_for(request)
    except RolloutError:
        return

    assert 10 - 3 <= seconds <= 10 + 5


def test_one_of_another_template_is_none():
    cluster = Watched(rc())
    cluster.killed(20, PAUSED)
    with_mark(cluster, json.dumps({**truth(cluster), "template": "0123", "passed": None}))

    assert SOAK - 5 <= cluster.runs_for(PAUSED)[0] <= SOAK + 5


def test_one_from_the_future_is_none():
    cluster = Watched(rc())
    cluster.killed(1, PAUSED)
    with_mark(cluster,
              json.dumps({**truth(cluster), "began": "2999-01-01T00:00:00Z", "passed": None}))

    assert SOAK - 5 <= cluster.runs_for(PAUSED)[0] <= SOAK + 5
    assert "2999" not in cluster.cluster.items["foo"]["metadata"]["annotations"][object_meta.SOAK]


@pytest.mark.parametrize("request_", [PAUSED, WHOLE], ids=["pause", "end"])
@pytest.mark.parametrize("size, has_begun", [(3, False), (3, True), (0, False)])
def test_check_mode_lists_the_steps_of_a_soak_that_the_task_takes(request_, size, has_begun):
    cluster = Watched(rc(replicas=size))
    if has_begun:
        cluster.killed(SOAK / 2, request_)

    planned = driver.simulate(choose(request_), request_, cluster)
    done = cluster.run(request_)

    def soaks(result):
        return [step["to"] for step in result["steps"] if "watch" in str(step["to"])]

    assert soaks(planned) == soaks(done) and len(soaks(done)) == (0 if has_begun or not size else 1)


def test_one_by_a_clock_that_is_a_little_ahead_counts():
    cluster = Watched(rc())
    cluster.killed(1, PAUSED)
    ahead = rfc3339(cluster.clock.now + 4)
    with_mark(cluster, json.dumps({**truth(cluster), "began": ahead, "passed": None}))

    cluster.run(PAUSED)

    assert ahead in cluster.cluster.items["foo"]["metadata"]["annotations"][object_meta.SOAK]

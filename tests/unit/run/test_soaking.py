# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Soak new pods in one task or in several, with failures and forged annotations."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import json

import pytest
from builders import ROLLBACK, SUCCESSOR, UPDATE, rc
from clusters import Cluster
from forged import DOCUMENTS, KEYS
from hypothesis import given, settings
from hypothesis import strategies as st
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import rfc3339, seconds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

SOAK = 60
SOAK_AT_PAUSE = dataclasses.replace(UPDATE, soak=SOAK, pause_at=Size(1))
SOAK_AT_END = dataclasses.replace(UPDATE, soak=SOAK)


class ObservedCluster(Cluster):
    """Cluster whose pods a soak can observe. A test may change the fields of a pod."""

    def __init__(self, *items):
        super().__init__(*items)
        self.clock.now = 1_000_000.0
        self.lines, self.events = [], []
        #: The changed fields and the creation times of pods, by name.
        self.overrides, self.creation_times = {}, {}
        self.may_read_pods = True
        #: States of the successor's pods since the last observation.
        self.earlier_states = []
        self.scheduled_actions = []

    def server_time(self):
        return self.clock.now

    def warnings(self):
        return self.events

    def may_list_pods(self):
        return self.may_read_pods

    def watched_pods(self, controller):
        if not self.may_read_pods:
            return None
        pods = (self.pod(controller, number) for number in range(controller.current))
        earlier_states: list = []
        if controller.name == SUCCESSOR:
            earlier_states, self.earlier_states = self.earlier_states, []
        return [*earlier_states, *(pod for pod in pods if pod)]

    def relist_pods(self):
        self.calls.append(("relist_pods", ""))

    def pod(self, controller, number):
        """Return a pod, or "" if `overrides` has an empty uid for it."""
        name = f"{controller.name}-{number}"
        since = rfc3339(self.creation_times.setdefault(name, self.clock.now))
        fields = {"restarts": 0, "ready": "True", "uid": f"uid of {name}", "since": since,
                  "created": since, "reason": "", **self.overrides.get(name, {})}
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
        names = super().wait(seconds)
        while self.scheduled_actions and self.scheduled_actions[0][0] <= self.clock.now:
            self.scheduled_actions.pop(0)[1]()
        return names

    def run(self, request=SOAK_AT_END, **more):
        return super().run(
            request, print_line=lambda line: self.lines.append((self.clock.now, line)), **more)

    def timed_run(self, request=SOAK_AT_END):
        start = self.clock.now
        result = self.run(request)
        return self.clock.now - start, result

    def schedule(self, seconds, action):
        self.scheduled_actions.append((self.clock.now + seconds, action))

    def pod_change(self, number=0, **overrides):
        """Return a function that changes fields of a pod of the successor."""
        return lambda: self.overrides.__setitem__(f"{SUCCESSOR}-{number}", overrides)

    def run_and_kill(self, seconds, request=SOAK_AT_END):
        def die():
            raise Killed

        self.schedule(seconds, die)
        with pytest.raises(Killed):
            self.run(request)

    def lines_with_prefix(self, prefix):
        return [line for _now, line in self.lines if line.startswith(prefix)]

    @property
    def soak_write_count(self):
        return sum(operation["path"].endswith("~1soak")
                   for _now, write in self.writes if hasattr(write, "operations")
                   for operation in write.operations if operation["op"] == "add")


@pytest.mark.parametrize("request_, phase, soak_write_count",
                         [(SOAK_AT_PAUSE, "paused", 2), (SOAK_AT_END, "complete", 1)])
def test_soak_lasts_as_long_as_requested_with_few_writes(request_, phase, soak_write_count):
    cluster = ObservedCluster(rc())

    duration, result = cluster.timed_run(request_)

    assert SOAK <= duration < SOAK + 5 and result["rollout"]["phase"] == phase
    assert cluster.soak_write_count == soak_write_count
    assert 5 <= len(cluster.lines_with_prefix("watching: ")) <= 10
    assert len(cluster.lines_with_prefix("watched: ")) == 1
    size = 1 if request_ is SOAK_AT_PAUSE else 3
    first_line = cluster.lines_with_prefix("watching: ")[0]
    assert first_line == f"watching: {SUCCESSOR} {size} new, 6 of 60 s"
    assert f"annotate foo: watching {size} new pod{'s' if size > 1 else ''} for 60 s" in [
        line for _now, line in cluster.lines]
    annotations = cluster.cluster.items["foo"]["metadata"]["annotations"]
    assert (object_meta.SOAK in annotations) == (request_ is SOAK_AT_PAUSE)


@pytest.mark.parametrize("request_, has_failed",
                         [(SOAK_AT_PAUSE, False), (SOAK_AT_END, False), (SOAK_AT_END, True)],
                         ids=["pause", "end", "failure"])
def test_sizes_include_start_and_end_of_the_soak(request_, has_failed):
    cluster, request = ObservedCluster(rc()), dataclasses.replace(request_, return_sizes=True)
    cluster.clock.timestamp_millis = lambda: rfc3339(cluster.clock.now)
    if has_failed:
        cluster.schedule(SOAK / 2, cluster.pod_change(restarts=1))
        result = cluster.error(request).progress
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


@pytest.mark.parametrize("downtime", [0.1, 10, 1000])
@pytest.mark.parametrize("restarts", [0, 3])
def test_passed_soak_is_not_repeated(downtime, restarts):
    """Restarts before the soak, and later warnings, are no reason to repeat a passed soak."""
    cluster = ObservedCluster(rc())
    cluster.pod_change(restarts=restarts)()
    cluster.clock.sleep(0.9)
    cluster.run(SOAK_AT_PAUSE)
    write_count = len(cluster.writes)
    cluster.clock.sleep(downtime)
    cluster.events.append({**warning(f"uid of {SUCCESSOR}-0"),
                           "lastTimestamp": rfc3339(cluster.clock.now)})

    duration, result = cluster.timed_run(SOAK_AT_PAUSE)

    assert ((duration, result["changed"], len(cluster.writes)) == (0, False, write_count)
            and "already paused" in result["msg"])


@pytest.mark.parametrize("healthy_seconds", [0.1, 10, SOAK - 5, SOAK + 1])
@pytest.mark.parametrize("restarts", [0, 1], ids=["unready", "restarted"])
def test_soak_lasts_until_a_pod_was_healthy_for_long_enough(healthy_seconds, restarts):
    """After a soak that has passed at a pause, a pod was restarted or unready."""
    cluster = ObservedCluster(rc())
    cluster.run(SOAK_AT_PAUSE)
    cluster.clock.sleep(1000)
    cluster.pod_change(restarts=restarts, since=rfc3339(cluster.clock.now))()
    cluster.clock.sleep(healthy_seconds)

    duration, result = cluster.timed_run(SOAK_AT_PAUSE)

    remaining = max(0, SOAK - healthy_seconds)
    assert remaining - 2 <= duration <= remaining + 3 and result["rollout"]["phase"] == "paused"
    assert not result["changed"] and cluster.timed_run(SOAK_AT_PAUSE)[0] == 0


@pytest.mark.parametrize("second_request, minimum", [
    (dataclasses.replace(SOAK_AT_PAUSE, soak=2 * SOAK), SOAK),
    (dataclasses.replace(SOAK_AT_PAUSE, pause_at=Size(2)), SOAK)],
    ids=["for longer", "with more pods"])
def test_longer_soak_or_later_pause_needs_another_soak(second_request, minimum):
    cluster = ObservedCluster(rc())
    cluster.run(SOAK_AT_PAUSE)

    duration, result = cluster.timed_run(second_request)

    assert minimum <= duration < minimum + 5 and result["rollout"]["phase"] == "paused"
    assert not cluster.timed_run(second_request)[1]["changed"]


def test_soak_can_be_added_to_an_existing_pause():
    cluster = ObservedCluster(rc())
    cluster.run(dataclasses.replace(SOAK_AT_PAUSE, soak=0))
    assert object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"]
    cluster.clock.sleep(1000)

    duration, result = cluster.timed_run(SOAK_AT_PAUSE)

    assert (SOAK <= duration < SOAK + 2
            and [step["action"] for step in result["steps"]] == ["annotate", "annotate"])
    assert not cluster.timed_run(SOAK_AT_PAUSE)[1]["changed"]


def test_pod_created_after_the_soak_is_soaked():
    cluster = ObservedCluster(rc())
    cluster.run(SOAK_AT_PAUSE)
    cluster.pod_change(uid="another", created=rfc3339(cluster.clock.now))()

    assert SOAK - 2 <= cluster.timed_run(SOAK_AT_PAUSE)[0] < SOAK + 2


@pytest.mark.parametrize("request_", [SOAK_AT_PAUSE, SOAK_AT_END],
                         ids=["at a pause", "before the end"])
@pytest.mark.parametrize("is_observed_before_deletion", [True, False])
def test_eviction_by_a_client_restarts_the_soak(request_, is_observed_before_deletion):
    cluster = ObservedCluster(rc())
    evicted_pod = f"{SUCCESSOR}-0"

    def evict():
        pod = cluster.pod(Controller.from_api(cluster.cluster.items[SUCCESSOR]), 0)
        pod["status"]["conditions"].append({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"})
        terminating = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}
        states = [pod, terminating] if is_observed_before_deletion else [terminating]
        cluster.earlier_states += states
        cluster.pod_change(uid="another")()
        cluster.creation_times[evicted_pod] = cluster.clock.now

    cluster.schedule(30, evict)
    duration, result = cluster.timed_run(request_)

    assert SOAK + 29 <= duration < SOAK + 35 and result["rollout"]["phase"] != "progressing"
    assert cluster.lines_with_prefix("watching: another client evicted ") == [
        f"watching: another client evicted {evicted_pod} (a drain, for example): the soak starts "
        "again"]


def test_container_restart_before_an_eviction_fails_the_soak():
    cluster = ObservedCluster(rc())

    def evict():
        pod = cluster.pod(Controller.from_api(cluster.cluster.items[SUCCESSOR]), 0)
        restarted_pod = copy.deepcopy(pod)
        restarted_pod["status"]["containerStatuses"][0]["restartCount"] = 1
        pod["status"]["conditions"].append({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"})
        cluster.earlier_states += [
            restarted_pod, {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}]
        cluster.pod_change(uid="another")()

    cluster.schedule(30, evict)
    with pytest.raises(RolloutError, match="have not passed the soak"):
        cluster.run(SOAK_AT_PAUSE)


# Reruns after a kill


@pytest.mark.sample
@pytest.mark.parametrize("request_", [SOAK_AT_PAUSE, SOAK_AT_END],
                         ids=["at a pause", "before the end"])
@pytest.mark.parametrize("downtime", [0, 10, 1000])
def test_healthy_time_before_a_kill_counts(request_, downtime):
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20, request_)
    cluster.clock.sleep(downtime + 0.1)

    duration, result = cluster.timed_run(request_)

    remaining = max(0, SOAK - 20 - downtime)
    assert (remaining - 2 <= duration <= remaining + 3
            and result["rollout"]["phase"] != "progressing")
    assert "before this task, according to the status" in cluster.lines_with_prefix("watched: ")[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("event", [
    lambda cluster, now: cluster.pod_change(restarts=1, since=now),
    lambda cluster, now: cluster.pod_change(since=now),
    lambda cluster, now: cluster.pod_change(uid="another", created=now),
    lambda cluster, now: lambda: cluster.events.append({
        "metadata": {"uid": "e"}, "involvedObject": {"uid": f"uid of {SUCCESSOR}-0"},
        "lastTimestamp": now}),
], ids=["a restart", "a period without readiness", "another pod", "a warning"])
def test_soak_restarts_after_an_unobserved_event(event):
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20)
    cluster.clock.sleep(1000)
    event(cluster, rfc3339(cluster.clock.now))()
    cluster.clock.sleep(10)

    duration, result = cluster.timed_run()

    assert SOAK - 10 <= duration <= SOAK - 10 + 3 and result["rollout"]["phase"] == "complete"


def test_failed_soak_restarts():
    cluster = ObservedCluster(rc())

    def restart():
        cluster.pod_change(restarts=1, since=rfc3339(cluster.clock.now))()

    cluster.schedule(30, restart)
    assert "29 of 60 s had passed" in cluster.error(SOAK_AT_END).why

    duration, result = cluster.timed_run()

    assert SOAK <= duration <= SOAK + 3 and result["rollout"]["phase"] == "complete"


# Failures during the soak


@pytest.mark.parametrize("request_", [SOAK_AT_PAUSE, SOAK_AT_END],
                         ids=["at a pause", "before the end"])
@pytest.mark.parametrize("overrides, kind", [
    ({"restarts": 1}, "crash"), ({"ready": "False", "reason": "ContainersNotReady"}, "unready"),
    ({"since": "2026-01-01T00:00:00Z"}, "unready"), ({"uid": ""}, "gone")])
def test_failure_of_a_new_pod_ends_the_soak(request_, overrides, kind):
    cluster = ObservedCluster(rc())
    cluster.schedule(30, cluster.pod_change(**overrides))

    error = cluster.error(request_)

    assert (error.what == "the new pods have not passed the soak"
            and error.where == "ReplicationController default/foo")
    assert [cause["kind"] for cause in error.causes] == [kind] and f"pod {SUCCESSOR}-0" in error.why
    assert "of 60 s had passed" in error.why
    assert error.next_command.endswith(
        "'name=foo image=myimage:v2'\nor:\nansible localhost -m baton.kubernetes.rolling_update "
        "-a 'name=foo state=rolled_back'")


def test_recovered_failure_ends_the_soak():
    """lastTransitionTime does not change, as the pod recovers within a second."""
    cluster = ObservedCluster(rc())

    def toggle_readiness():
        cluster.pod_change(ready="False", reason="ContainersNotReady")()
        controller = cluster.controllers()[SUCCESSOR]
        cluster.earlier_states = [cluster.pod(controller, 0)]
        cluster.overrides.clear()

    cluster.schedule(30, toggle_readiness)

    (cause,) = cluster.error(SOAK_AT_END).causes
    assert cause["reason"] == "ContainersNotReady"


def test_update_is_rolled_back_after_a_failed_soak():
    cluster = ObservedCluster(rc())
    cluster.schedule(30, cluster.pod_change(restarts=1))

    error = cluster.error(dataclasses.replace(SOAK_AT_END, rolls_back_on_failure=True))

    assert error.what.startswith(
        "the new pods have not passed the soak; foo is rolled back to myimage:v1")
    assert (list(cluster.cluster.items) == ["foo"]
            and object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"])


def test_failure_of_an_old_pod_is_ignored():
    cluster = ObservedCluster(rc())
    cluster.schedule(30,
                     lambda: cluster.overrides.__setitem__("foo-0",
                                                           {"restarts": 1, "uid": "another"}))

    assert cluster.timed_run(SOAK_AT_PAUSE)[1]["rollout"]["phase"] == "paused"


def test_warnings_about_new_pods_are_compared_with_old_pods():
    for pods_with_warnings, fails in ((["new"], True), (["new", "old"], False)):
        cluster = ObservedCluster(rc())
        uids = {"new": f"uid of {SUCCESSOR}-0", "old": "uid of foo-0"}
        events = [{"metadata": {"uid": pod}, "involvedObject": {"uid": uids[pod]},
                   "reason": "Unhealthy", "count": 2}
                  for pod in pods_with_warnings]
        # With warnings about only one old pod, the average of the old pods would be too low.
        events += [{**events[-1], "metadata": {"uid": "b"},
                    "involvedObject": {"uid": "uid of foo-1"}}] if not fails else []
        cluster.schedule(30, functools.partial(cluster.events.extend, events))
        if fails:
            assert cluster.error(SOAK_AT_PAUSE).causes[0]["kind"] == "warnings"
        else:
            assert cluster.timed_run(SOAK_AT_PAUSE)[1]["rollout"]["phase"] == "paused"


def warning(pod_uid, count=1, uid="e"):
    return {"metadata": {"uid": uid}, "involvedObject": {"uid": pod_uid},
            "reason": "DNSConfigForming", "count": count,
            "lastTimestamp": "1970-01-01T00:00:00Z"}


#: The uid of an old pod in live_pods(). In watched_pods(), it is "uid of foo-0".
UID_OF_OLD_POD = "0"


def test_earlier_warnings_about_old_pods_are_the_baseline():
    cluster = ObservedCluster(rc())
    cluster.events = [warning(UID_OF_OLD_POD, 5)]
    cluster.schedule(30, lambda: cluster.events.append(warning(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert cluster.run()["rollout"]["phase"] == "complete"


def test_baseline_warnings_survive_a_rerun():
    cluster = ObservedCluster(rc())
    cluster.events = [warning(UID_OF_OLD_POD, 5)]
    cluster.run_and_kill(20)
    cluster.events = []  # the API server has deleted the expired Event
    cluster.schedule(10, lambda: cluster.events.append(warning(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert cluster.run()["rollout"]["phase"] == "complete"


def test_earlier_warnings_about_new_pods_are_not_in_the_baseline():
    """Otherwise, the run after a failed soak would pass."""
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20)
    cluster.events = [warning(f"uid of {SUCCESSOR}-0", 5)]
    cluster.schedule(10, lambda: cluster.events.append(warning(f"uid of {SUCCESSOR}-0", 6, "f")))

    assert [cause["reason"] for cause in cluster.error(SOAK_AT_END).causes] == ["DNSConfigForming"]


def test_warning_about_a_deleted_primary():
    cluster = ObservedCluster(rc())
    cluster.schedule(30, lambda: cluster.cluster.items.pop("foo"))

    result = cluster.run()

    sentence = ("another client deleted ReplicationController default/foo while its new pods were "
                "watched: the soak ended after 2")
    assert ([line for line in result["warnings"] if line.startswith(sentence)]
            and result["rollout"]["phase"] == "complete")
    assert len(cluster.lines_with_prefix(f"warning: {sentence}")) == 1
    assert not cluster.lines_with_prefix("watched: ")


def test_no_warning_about_an_existing_primary():
    assert not any("deleted" in line for line in ObservedCluster(rc()).run()["warnings"])


def test_timeout_ends_the_soak():
    cluster = ObservedCluster(rc())

    assert cluster.error(dataclasses.replace(SOAK_AT_END, soak=600,
                                             timeout=100)).what == "not finished within 100 s"


def test_progress_deadline_does_not_end_a_soak():
    cluster = ObservedCluster(rc())

    duration, result = cluster.timed_run(dataclasses.replace(SOAK_AT_END, progress_deadline=10))

    assert duration >= SOAK and result["rollout"]["phase"] == "complete"


def test_rollback_is_not_soaked():
    cluster = ObservedCluster(rc())
    cluster.run(SOAK_AT_PAUSE)

    duration, result = cluster.timed_run(dataclasses.replace(ROLLBACK, soak=SOAK))

    assert (duration < 5 and result["changed"]
            and object_meta.SOAK not in cluster.cluster.items["foo"]["metadata"]["annotations"])


def test_soak_requires_permission_to_list_pods():
    cluster = ObservedCluster(rc())
    cluster.may_read_pods = False

    assert "its pods cannot be listed" in cluster.error(SOAK_AT_END).what and cluster.writes == []
    assert cluster.run(UPDATE)["changed"]


# Forged annotations

def write_annotation(cluster, text):
    cluster.patch("foo", "/metadata/annotations/baton.kubernetes~1soak", text)


def best_forgery(cluster):
    """Return an annotation of a passed soak of the current template."""
    annotations = cluster.cluster.items["foo"]["metadata"]["annotations"]
    return {**json.loads(annotations[object_meta.SOAK]), "began": "1970-01-01T00:00:00Z",
            "passed": 1, "seconds": 10**6}


def test_forged_passed_soak_is_checked_against_the_pods():
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20, SOAK_AT_PAUSE)
    write_annotation(cluster, json.dumps(best_forgery(cluster)))

    duration, _result = cluster.timed_run(SOAK_AT_PAUSE)

    assert SOAK - 25 <= duration <= SOAK - 15


def test_forged_passed_soak_of_a_forged_pause_is_checked():
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20, SOAK_AT_PAUSE)
    write_annotation(cluster, json.dumps(best_forgery(cluster)))
    cluster.patch("foo", "/metadata/annotations/baton.kubernetes~1paused", "1")

    duration, _result = cluster.timed_run(SOAK_AT_PAUSE)

    assert SOAK - 25 <= duration <= SOAK - 15


@settings(max_examples=40)
@given(st.just(KEYS[object_meta.SOAK][0]) | st.sampled_from(KEYS[object_meta.SOAK]),
       st.booleans(), st.booleans(), st.integers(0, 10), st.integers(0, 40))
def test_forged_annotation_never_skips_a_soak(text, is_paused, is_pause_forged, ready_seconds,
                                              restarts):
    """The pods are old, but were restarted, or became ready, a drawn time ago."""
    cluster = ObservedCluster(rc())
    request = dataclasses.replace(SOAK_AT_PAUSE if is_paused else SOAK_AT_END, soak=10)
    cluster.run_and_kill(8, request)
    cluster.clock.sleep(1000)
    for number in range(rc()["spec"]["replicas"]):
        cluster.pod_change(number, restarts=restarts,
                           since=rfc3339(cluster.clock.now - ready_seconds))()
    forged_hash = DOCUMENTS[object_meta.SOAK]["template"]
    write_annotation(cluster, text.replace(forged_hash, best_forgery(cluster)["template"]))
    if is_pause_forged:
        cluster.patch("foo", "/metadata/annotations/baton.kubernetes~1paused", "1")

    try:
        duration, _result = cluster.timed_run(request)
    except RolloutError:
        return

    assert 10 - ready_seconds - 2 <= duration <= 10 + 5


@pytest.mark.parametrize("has_restarted", [False, True])
def test_forged_reasons_suppress_only_warnings(has_restarted):
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20, SOAK_AT_PAUSE)
    forgery = {**best_forgery(cluster), "passed": None, "usual": ["DNSConfigForming"]}
    write_annotation(cluster, json.dumps(forgery))
    cluster.schedule(10, lambda: cluster.events.append(warning(f"uid of {SUCCESSOR}-0", 600)))
    if has_restarted:
        cluster.schedule(10, cluster.pod_change(restarts=1))
        assert [cause["kind"] for cause in cluster.error(SOAK_AT_PAUSE).causes] == ["crash"]
    else:
        assert cluster.run(SOAK_AT_PAUSE)["rollout"]["phase"] == "paused"


def test_soak_of_another_template_is_ignored():
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(20, SOAK_AT_PAUSE)
    write_annotation(cluster,
                     json.dumps({**best_forgery(cluster), "template": "0123", "passed": None}))

    assert SOAK - 5 <= cluster.timed_run(SOAK_AT_PAUSE)[0] <= SOAK + 5


def test_soak_from_the_future_is_ignored():
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(1, SOAK_AT_PAUSE)
    write_annotation(cluster,
                     json.dumps({**best_forgery(cluster), "began": "2999-01-01T00:00:00Z",
                                 "passed": None}))

    assert SOAK - 5 <= cluster.timed_run(SOAK_AT_PAUSE)[0] <= SOAK + 5
    assert "2999" not in cluster.cluster.items["foo"]["metadata"]["annotations"][object_meta.SOAK]


@pytest.mark.sample
@pytest.mark.parametrize("request_", [SOAK_AT_PAUSE, SOAK_AT_END], ids=["pause", "end"])
@pytest.mark.parametrize("size, has_begun", [(3, False), (3, True), (0, False)])
def test_check_mode_lists_the_steps_of_a_soak(request_, size, has_begun):
    cluster = ObservedCluster(rc(replicas=size))
    if has_begun:
        cluster.run_and_kill(SOAK / 2, request_)

    plan = driver.simulate(choose(request_), request_, cluster)
    done = cluster.run(request_)

    def soaks(result):
        return [step["to"] for step in result["steps"] if "watch" in str(step["to"])]

    assert soaks(plan) == soaks(done) and len(soaks(done)) == (0 if has_begun or not size else 1)


def test_start_of_a_soak_slightly_in_the_future_counts():
    cluster = ObservedCluster(rc())
    cluster.run_and_kill(1, SOAK_AT_PAUSE)
    ahead = rfc3339(cluster.clock.now + 4)
    write_annotation(cluster, json.dumps({**best_forgery(cluster), "began": ahead, "passed": None}))

    cluster.run(SOAK_AT_PAUSE)

    assert ahead in cluster.cluster.items["foo"]["metadata"]["annotations"][object_meta.SOAK]

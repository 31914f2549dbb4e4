# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run analyses with prepared responses of Prometheus and a simulated clock."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import analysis_run
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import Reading
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.report import Subject
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.spec import (
    Analysis,
    ErrorLines,
    Metric,
    OnEmpty,
    Per,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.run.clock import SimulatedClock

# arguments of a metric: name, query, samples_query, thresholds, min_samples, on_empty
ERRORS = Metric("errors", "errors($pods)", "", {"max": 1}, 0, OnEmpty.INCONCLUSIVE)
LATENCY = Metric("latency", "latency($pods)", "count($pods)", {"max_ratio_to_old": 2}, 10,
                 OnEmpty.INCONCLUSIVE)
MEMORY = Metric("memory", "memory($new_pods)/memory($old_pods)", "", {"max": 1}, 0,
                OnEmpty.INCONCLUSIVE)
ERROR_LINES = Metric("error_lines", "lines", "", {"max": 1}, 0, OnEmpty.INCONCLUSIVE,
                     ErrorLines("ERROR", Per.MINUTE, ()))
NO_ANSWER = Reading(None, "nobody answers", is_answer=False)
ROLLBACK_COMMAND = ("ansible localhost -m baton.kubernetes.rolling_update "
                    "-a 'name=foo state=rolled_back'")


def subject(new=("n1", "n2"), old=("o1",), rollback=ROLLBACK_COMMAND, in_progress=True,
            version="forward v2"):
    return Subject("ReplicationController default/foo", tuple(new), tuple(old), rollback,
                   in_progress, version=version)


IN_PROGRESS = subject()


class Run:
    """Run of an analysis. Records the queries and the progress lines.

    answers: values by the name of the query's function, or by the pattern of error lines.
    A list has one value per request; the last is repeated. A dict has the value of the new pods
    under True, and of the old pods under False.
    """

    def __init__(self, answers, *metrics, subjects=(IN_PROGRESS,), stop=lambda: "", **options):
        self.requests, self.lines, self.clock = [], [], SimulatedClock()
        self._answers, self._subjects, self._stop = answers, list(subjects), stop
        self._analysis = Analysis(**{
            "metrics": metrics, "window": "1m", "initial_delay": 0, "count": 1, "interval": 30,
            "failure_limit": 0,
            "inconclusive_limit": 0, "passes_inconclusive": False, "passes_without_old_pods": False,
            **options})

    def query(self, query):
        self.requests.append((self.clock.monotonic(), query))
        value = self._answers[query.partition("(")[0]]
        value = (value.pop(0) if len(value) > 1 else value[0]) if isinstance(value, list) else value
        value = value["(?:n" in query] if isinstance(value, dict) else value
        return value if isinstance(value, Reading) else Reading(value)

    def read(self, error_lines, pods):
        """Return the prepared value, and 40 as the number of lines."""
        self.requests.append((self.clock.monotonic(), tuple(pods)))
        value = self._answers[error_lines.pattern]
        value = value[pods[0].startswith("n")] if isinstance(value, dict) else value
        value = value if isinstance(value, Reading) else Reading(value)
        return value, value if not value.is_answer else Reading(40.0)

    @property
    def measured_count(self):
        return sum(line.startswith("measure ") for line in self.lines)

    def observe(self):
        return self._subjects.pop(0) if len(self._subjects) > 1 else self._subjects[0]

    def result(self):
        return analysis_run.run("foo", "default", self._analysis, self.observe,
                                analysis_run.Sources(self.query, self.read), self.clock,
                                self.lines.append, self._stop)

    def error(self):
        with pytest.raises(RolloutError) as error:
            self.result()
        return error.value


def test_result_and_progress_lines_of_a_passed_analysis():
    run = Run({"errors": 0.5, "latency": {True: 3, False: 2}, "count": 10}, ERRORS, LATENCY,
              count=2,
              initial_delay=60)

    result = run.result()

    queries = [query for _at, query in run.requests[:6]]
    assert queries == ["errors((?:n1|n2))", "errors((?:o1))", "latency((?:n1|n2))",
                       "latency((?:o1))", "count((?:n1|n2))",
                       "count((?:o1))"]
    assert {round(at, 6) for at, _query in run.requests} == {60, 90}
    assert run.lines == [
        "analyze foo: 2 new and 1 old pods; 2 measurements, 30 s apart, the first one in 60 s",
        "measure foo 1/2: errors 0.5, old 0.5: passed", "measure foo 1/2: latency 3, old 2: passed",
        "measure foo 2/2: errors 0.5, old 0.5: passed", "measure foo 2/2: latency 3, old 2: passed"]
    assert result["msg"] == "foo has passed the analysis: errors 0.5, old 0.5, latency 3, old 2"
    assert (result["changed"], result["outcome"], result["warnings"]) == (False, "passed", [])
    assert [(metric["name"], metric["passed"], metric["failed"])
            for metric in result["metrics"]] == [("errors", 2, 0), ("latency", 2, 0)]
    assert (result["new_pods"], result["old_pods"]) == (["n1", "n2"], ["o1"])
    json.dumps(result, allow_nan=False)


def test_failure_ends_the_analysis_and_reports_all_measurements():
    error = Run({"errors": [0.5, 0.5, 2.0, 2.0, 0.5], "latency": 1, "count": 99}, ERRORS, LATENCY,
                count=5).error()

    assert error.message.splitlines() == [
        "ReplicationController default/foo: the analysis has failed: errors: 2 is more than 1 "
        "(max).",
        "Reason: errors, measurement 2 of 5: 2 is more than 1 (max)",
        "Next:", f"  {ROLLBACK_COMMAND}", "  or, to measure again:", "  run the same task again"]
    assert len(error.progress["measurements"]) == 4 and error.progress["outcome"] == "failed"


def test_analysis_passes_with_failures_within_the_limit():
    run = Run({"errors": [2.0, 0.0, 0.5, 0.0, 2.0, 0.0]}, ERRORS, count=3, failure_limit=2)

    assert run.result()["outcome"] == "passed"
    assert run.lines[1].endswith("errors 2, old 0: failed (2 is more than 1 (max))")


def test_inconclusive_analysis_is_an_error():
    error = Run({"errors": NO_ANSWER}, ERRORS, count=3, inconclusive_limit=1).error()

    assert (error.what == "the analysis is inconclusive: errors: nobody answers"
            and len(error.progress["measurements"]) == 2)
    assert error.why.splitlines() == [f"errors, measurement {number} of 3: nobody answers"
                                      for number in (1, 2)]
    assert error.next_command.splitlines() == [
        "check that the new pods get requests, that Prometheus scrapes them, and run the same task "
        "again", "or:", ROLLBACK_COMMAND]


def test_all_measurements_are_taken_if_inconclusive_counts_as_passed():
    run = Run({"errors": NO_ANSWER, "memory": 1}, ERRORS, MEMORY, count=3, passes_inconclusive=True)

    result = run.result()

    assert result["outcome"] == "inconclusive" and len(result["measurements"]) == 6
    assert result["msg"] == (
        "the analysis of foo is inconclusive, which counts as passed (on_inconclusive): "
        "errors, measurement 3 of 3: nobody answers")
    assert run.lines[1] == "measure foo 1/3: errors unknown: inconclusive (nobody answers)"
    assert Run({"errors": [NO_ANSWER, NO_ANSWER, 2.0]}, ERRORS, count=3,
               passes_inconclusive=True).error().what.startswith(
        "the analysis has failed")


def test_no_queries_for_missing_old_pods():
    subjects_without_old_pods = [subject(old=())]
    run = Run({"errors": 1, "latency": 1, "count": 10}, ERRORS, LATENCY, MEMORY,
              subjects=subjects_without_old_pods,
              passes_without_old_pods=True)

    result = run.result()

    assert [query for _at, query in run.requests] == ["errors((?:n1|n2))", "latency((?:n1|n2))",
                                                      "count((?:n1|n2))"]
    assert [measurement["reason"] for measurement in result["measurements"]] == [
        "", *["there are no old pods to compare with"] * 2]
    assert Run({"errors": 1, "latency": 1, "count": 10}, ERRORS, LATENCY,
               subjects=subjects_without_old_pods).error().what == (
        "the analysis is inconclusive: latency: there are no old pods to compare with")


def test_pods_are_observed_before_each_measurement():
    subjects = [subject(new=["n1"]), subject(new=["n1"]), subject(new=["n2"])]
    run = Run({"errors": 1}, ERRORS, count=2, subjects=subjects)

    assert run.result()["new_pods"] == ["n2"]
    assert [query for _at, query in run.requests][::2] == ["errors((?:n1))", "errors((?:n2))"]


def test_analysis_without_new_pods_is_an_error():
    error = Run({}, ERRORS, subjects=[subject(new=())]).error()

    assert error.what == "there are no new pods to measure" and error.progress == {}


def test_query_names_only_a_sample_of_many_pods():
    names = [f"n{number:04}" for number in range(1200)]
    run = Run({"errors": 1}, ERRORS, subjects=[subject(new=names)])

    result = run.result()

    pods_of_query = re.findall(r"n\d+", run.requests[0][1])
    assert (len(pods_of_query) == len(set(pods_of_query)) == analysis_run.MAX_PODS
            and pods_of_query[0] == "n0000"
            and pods_of_query[-1] > "n1190")
    assert result["warnings"] == [
        "only 500 of the 1200 new pods are measured (an evenly spaced sample)"]
    assert len(result["new_pods"]) == 1200


@pytest.mark.parametrize("query, samples_query, groups", [
    ("errors($pods)", "", ["new", "old"]), ("errors($new_pods)", "", ["new"]),
    ("errors($new_pods)/errors($old_pods)", "", ["new", "old"]),
    # A metric of the new pods alone counts only the samples of the new pods.
    ("errors($new_pods)", "count($pods)", ["new"]),
    ("errors($new_pods)", "count($old_pods, $pods)", ["new", "old"])])
def test_sample_of_old_pods_that_no_query_names_causes_no_warning(query, samples_query, groups):
    metric = dataclasses.replace(ERRORS, query=query, samples_query=samples_query)
    names = {group: [f"{group}{number}" for number in range(600)] for group in ("new", "old")}

    result = Run({"errors": 1, "count": 10}, metric, subjects=[subject(**names)]).result()

    assert result["warnings"] == [
        f"only 500 of the 600 {group} pods are measured (an evenly spaced sample)"
        for group in groups]


@pytest.mark.parametrize("counts, warned_count", [
    ((1, 15, 60), 60), ((1, 40, 60), 60), ((1, 60, 15), 60), ((60, 1, 15), None)],
    ids=["last", "last two", "first", "before the first measurement"])
def test_sample_of_any_measurement_causes_one_warning(counts, warned_count):
    """The first count is that of the progress line, the others are of measurements."""
    run = Run({"ERROR": 0.0}, ERROR_LINES, count=2, subjects=[
        subject(new=[f"n{number}" for number in range(count)]) for count in counts])

    assert run.result()["warnings"] == (
        [f"the logs of only 20 of the {warned_count} new pods are read (an evenly spaced sample)"]
        if warned_count else [])


def test_failure_by_error_lines_names_a_pod():
    reading = Reading(6.0, note="6 of 40 lines match, 5 of the matches in pod n2")
    run = Run({"ERROR": {True: reading, False: 0.5}}, ERROR_LINES)

    error = run.error()

    assert [pods for _at, pods in run.requests] == [("n1", "n2"), ("o1",)]
    assert run.lines[1] == (
        "measure foo 1/1: error_lines 6, old 0.5: failed (6 is more than 1 (max): 6 of 40 lines "
        "match, 5 of the matches in pod n2)")
    assert error.what == (
        "the analysis has failed: error_lines: 6 is more than 1 (max): 6 of 40 lines match, 5 of "
        "the matches in pod n2")
    assert [measurement["samples"] for measurement in error.progress["measurements"]] == [40.0]


def test_unreadable_logs_and_few_lines_are_inconclusive():
    run_without_old_pods = Run({"ERROR": NO_ANSWER}, ERROR_LINES, subjects=[subject(old=())])
    metric_with_min_samples = dataclasses.replace(ERROR_LINES, min_samples=41)

    assert run_without_old_pods.error().next_command.splitlines()[0] == (
        "check that the new pods get requests, that they write logs, and run the same task again")
    assert len(run_without_old_pods.requests) == 1
    assert Run({"ERROR": 0.0}, metric_with_min_samples).error().what.endswith(
        "40 samples of the new pods, fewer than 41 (min_samples)")
    assert Run({"ERROR": 0.0}, ERROR_LINES).result()["outcome"] == "passed"


def test_only_the_logs_of_a_sample_of_many_pods_are_read():
    run = Run({"ERROR": 0.0, "errors": 1}, ERROR_LINES, ERRORS,
              subjects=[subject(new=[f"n{number:04}" for number in range(1200)])])

    result = run.result()

    assert len(run.requests[0][1]) == analysis_run.MAX_PODS_FOR_LOGS
    assert run.requests[0][1][-1] == "n1140"
    assert result["warnings"] == [
        "the logs of only 20 of the 1200 new pods are read (an evenly spaced sample)",
        "only 500 of the 1200 new pods are measured (an evenly spaced sample)"]


def test_first_ten_different_warnings_of_prometheus_are_reported():
    run = Run({"errors": [Reading(0.5, warnings=(f"{number // 3}",)) for number in range(60)]},
              ERRORS, count=20)

    assert run.result()["warnings"] == [str(number) for number in range(10)]


def test_analysis_stops_at_a_signal():
    run = Run({"errors": 1}, ERRORS, count=3,
              stop=lambda: "SIGTERM" if run.clock.monotonic() > 10 else "")

    error = run.error()

    assert error.what == "stopped (SIGTERM)" and len(run.requests) == 2
    assert run.clock.monotonic() < 11


def test_analysis_stops_between_two_queries():
    run = Run({"errors": 1, "latency": 1, "count": 10}, ERRORS, LATENCY,
              stop=lambda: "SIGTERM" if run.requests else "")

    assert run.error().what == "stopped (SIGTERM)" and len(run.requests) == 1


def test_error_quotes_the_last_failures():
    error = Run({"errors": 2}, ERRORS, count=9, failure_limit=7).error()

    assert (len(error.why.splitlines()) == 5
            and error.why.endswith("measurement 8 of 9: 2 is more than 1 (max)"))


@pytest.mark.parametrize("passes_inconclusive", [True, False])
def test_error_quotes_the_failure_of_a_metric_that_never_passed(passes_inconclusive):
    run = Run({"errors": [2.0, 0.0, NO_ANSWER]}, ERRORS, count=3, failure_limit=1,
              inconclusive_limit=2, passes_inconclusive=passes_inconclusive)

    error = run.error()

    assert error.what == "the analysis has failed: errors: 2 is more than 1 (max)"
    assert error.why == "errors, measurement 1 of 3: 2 is more than 1 (max)"


def test_error_of_an_inconclusive_metric_also_quotes_tolerated_failures_of_others():
    error = Run({"errors": 2.0, "latency": NO_ANSWER, "count": 10}, ERRORS, LATENCY, count=3,
                failure_limit=1).error()

    assert error.what == (
        "the analysis is inconclusive: errors: 2 is more than 1 (max); latency: nobody answers")


def test_analysis_ends_with_the_update():
    """After a rollback, all pods have the old template and count as new."""
    no_update = subject(new=["o1", "o2"], old=(), rollback=None, in_progress=False)
    run = Run({"errors": [2.0, 0.0, 0.5]}, ERRORS, count=3, failure_limit=1,
              subjects=[IN_PROGRESS, IN_PROGRESS, no_update])

    assert run.error().what == "the update ended during the analysis" and len(run.requests) == 2
    assert Run({"errors": 0.5}, ERRORS, count=3,
               subjects=[no_update]).result()["outcome"] == "passed"


@pytest.mark.parametrize("first, later", [
    (IN_PROGRESS, subject(new=["n3"], version="forward v3")),
    (IN_PROGRESS, subject(version="back v2")),
    (subject(old=(), in_progress=False, version="v1"), IN_PROGRESS),
], ids=["another update", "a rollback", "a first update"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_another_update_ends_the_analysis(first, later, number):
    """Otherwise, the measurements would be of several versions."""
    run = Run({"errors": [0.5]}, ERRORS, count=3, passes_without_old_pods=True,
              subjects=[*[first] * number, later, later])

    error = run.error()

    assert error.what == "another update or a rollback began during the analysis"
    assert len([line for line in run.lines if line.startswith("measure ")]) == number - 1


def test_no_rollback_command_without_an_update_to_roll_back():
    assert Run({"errors": 2}, ERRORS,
               subjects=[subject(rollback=None)]).error().next_command == "run the same task again"


def interrupted_run(cause):
    """Return a run that its second measurement, of the first or the second metric, interrupts."""
    def refuse(*_arguments):
        raise RolloutError("the logs are not readable")

    def observe_or_raise():
        if run.measured_count:
            raise RolloutError("there is no ReplicationController foo")
        return IN_PROGRESS

    subjects = {"the update ended": [IN_PROGRESS, IN_PROGRESS, subject(in_progress=False)],
                "no new pods": [IN_PROGRESS, IN_PROGRESS, subject(new=())]}
    run = Run({"errors": 0.5, "memory": 0.5, "lines": 0}, ERRORS, MEMORY, count=3,
              subjects=subjects.get(cause, [IN_PROGRESS]),
              stop=lambda: "SIGTERM" if cause == f"a signal after {run.measured_count}" else "")
    if cause == "an error of the second metric":
        run.query, query = (lambda text: refuse() if run.measured_count == 3 else query(text)
                            ), run.query
    if cause == "a deleted controller":
        run.observe = observe_or_raise
    return run


@pytest.mark.parametrize("cause, measured_count", [
    ("the update ended", 2), ("no new pods", 2), ("a deleted controller", 2),
    ("a signal after 1", 1), ("a signal after 2", 2), ("a signal after 3", 3),
    ("an error of the second metric", 3), ("a signal after 0", 0)])
def test_interrupted_analysis_returns_its_measurements(cause, measured_count):
    """The documentation promises them if something was measured."""
    run = interrupted_run(cause)

    progress = run.error().progress

    assert len(progress.get("measurements", [])) == measured_count == run.measured_count
    assert measured_count == 0 or (progress["outcome"], progress["new_pods"]) == (
        "inconclusive", ["n1", "n2"])
    assert measured_count < 2 or [metric["passed"] for metric in progress["metrics"]] == [
        measured_count - 1, 1]
    json.dumps(progress, allow_nan=False)

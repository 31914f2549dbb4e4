# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is said of measurements: a line for each, the result, and the error where they have not passed. Pure."""

from __future__ import annotations

import typing as t

from ..model.analysis import Analysis, Metric
from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.verdicts import Measurement, Outcome, Reading, number, of_all, of_metric

#: Of one metric, in an error.
MOST_REASONS = 5


class Subject(t.NamedTuple):
    """Whose pods are measured: those of an update, or all of a controller where none is in progress."""

    where: str
    #: Names, sorted.
    new: tuple[str, ...]
    old: tuple[str, ...]
    #: What to type to go back; None where there is nothing to go back from.
    rollback_command: str | None
    #: Whether these are those of an update.
    in_progress: bool
    kind: str = ""


def beginning(name: str, analysis: Analysis, subject: Subject) -> str:
    times = f"{analysis.count} measurements, {analysis.interval:g} s apart" if analysis.count > 1 else "one measurement"
    delay = f", the first one in {analysis.initial_delay:g} s" if analysis.initial_delay else ""
    return f"analyze {name}: {len(subject.new)} new and {len(subject.old)} old pods; {times}{delay}"


def line(name: str, analysis: Analysis, it: Measurement) -> str:
    """One line as it goes."""
    reason = f" ({it.reason})" if it.reason else ""
    return f"measure {name} {it.number}/{analysis.count}: {_values(it)}: {it.outcome}{reason}"


def result(name: str, analysis: Analysis, measured: t.Sequence[Measurement], subject: Subject) -> Json:
    """What a task returns of it, apart from msg."""
    outcomes = {metric.name: _outcomes(metric, measured) for metric in analysis.metrics}
    return {
        "changed": False,
        "name": name,
        "kind": subject.kind,
        "outcome": str(of_all(of_metric(each, analysis) for each in outcomes.values())),
        "metrics": [{"name": metric.name, "outcome": str(of_metric(outcomes[metric.name], analysis)), "query": metric.query,
                     "thresholds": dict(metric.thresholds),
                     **{str(each): outcomes[metric.name].count(each) for each in Outcome}} for metric in analysis.metrics],
        "measurements": [each.as_json() for each in measured],
        "new_pods": list(subject.new), "old_pods": list(subject.old),
    }


def message(name: str, analysis: Analysis, measured: t.Sequence[Measurement]) -> str:
    """The outcome of an analysis that the task does not fail for."""
    outcomes = [of_metric(_outcomes(metric, measured), analysis) for metric in analysis.metrics]
    last = [next(each for each in reversed(measured) if each.metric == metric.name) for metric in analysis.metrics]
    told = ", ".join(map(_values, last))
    if of_all(outcomes) is Outcome.PASSED:
        return f"{name} has passed the analysis: {told}"
    unclear = [it for metric, it in zip(outcomes, last) if metric is Outcome.INCONCLUSIVE]
    return (f"the analysis of {name} is inconclusive, which is taken as passed (on_inconclusive): "
            + "; ".join(_told(it, analysis) for it in unclear))


def error(analysis: Analysis, measured: t.Sequence[Measurement], subject: Subject) -> RolloutError:
    """For an analysis that has failed, or is inconclusive."""
    outcomes = {metric.name: of_metric(_outcomes(metric, measured), analysis) for metric in analysis.metrics}
    outcome = of_all(outcomes.values())
    shown = {name: _of_interest(name, outcome, measured) for name, each in outcomes.items() if each is outcome}
    what = "; ".join(f"{name}: {each[-1].reason}" for name, each in shown.items())
    why = "\n".join(_told(it, analysis) for each in shown.values() for it in each) if analysis.count > 1 else ""
    rollback = subject.rollback_command.splitlines() if subject.rollback_command else []
    if outcome is Outcome.FAILED:
        return RolloutError(f"the analysis has failed: {what}", where=subject.where, why=why,
                            next_command=[*rollback, *(["or, to measure again:"] if rollback else []), "run the same task again"])
    return RolloutError(f"the analysis is inconclusive: {what}", where=subject.where, why=why, next_command=[
        f"see that the new pods get requests{_to_see(analysis)}, and run the same task again",
        *(["or:", *rollback] if rollback else [])])


def _to_see(analysis: Analysis) -> str:
    kinds = {bool(metric.lines) for metric in analysis.metrics}
    words = {False: ", that Prometheus scrapes them", True: ", that they write logs"}
    return "".join(words[each] for each in sorted(kinds))


def _of_interest(name: str, outcome: Outcome, measured: t.Sequence[Measurement]) -> list[Measurement]:
    """The last ones that explain the outcome of a metric: one that is inconclusive may be so for those that have failed."""
    own = [each for each in measured if each.metric == name and each.outcome is not Outcome.PASSED]
    return ([each for each in own if each.outcome is outcome] or own)[-MOST_REASONS:]


def _told(it: Measurement, analysis: Analysis) -> str:
    which = f", measurement {it.number} of {analysis.count}" if analysis.count > 1 else ""
    return f"{it.metric}{which}: {it.reason}"


def _values(it: Measurement) -> str:
    """Such as: success_rate 0.95, old 0.999."""
    old = f", old {_value(it.readings.old)}" if it.readings.old and it.readings.old.is_answer else ""
    return f"{it.metric} {_value(it.readings.new)}{old}"


def _value(reading: Reading | None) -> str:
    if reading is None or not reading.is_answer:
        return "unknown"
    return reading.why if reading.value is None else number(reading.value)


def _outcomes(metric: Metric, measured: t.Sequence[Measurement]) -> list[Outcome]:
    return [each.outcome for each in measured if each.metric == metric.name]

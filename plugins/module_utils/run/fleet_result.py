# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The results of many controllers, joined into the result of the task. No I/O."""

from __future__ import annotations

import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, join_first


def results_entry(namespace: str, name: str, kind: str, result: Json) -> Json:
    """Return the element of `results` for one controller."""
    return {"namespace": namespace, "name": name, "kind": str(kind), "changed": False,
            "failed": False, "skipped": False, **result}


def joint_result(results: dict[str, Json], next_command: t.Sequence[str] = (),
                 verb: str = "are") -> Json:
    """Return the result of the task. Raises RolloutError if a controller has failed.

    verb: "would be" in check mode.
    """
    failures = {name: result["failure"] for name, result in results.items() if result["failed"]}
    skipped_names = [name for name, result in results.items() if result["skipped"]]
    succeeded_names = [name for name, result in results.items()
                       if not result["failed"] and not result["skipped"]]
    changed_count = sum(result["changed"] for result in results.values())
    diffs = [{**diff, "before_header": name, "after_header": name}
             for name, result in results.items() if (diff := result.pop("diff", {}))]
    warnings = _join_messages((name, warning) for name, result in results.items()
                              for warning in result.pop("warnings", ()))
    joint_fields = {"changed": bool(changed_count), "results": list(results.values()),
                    "warnings": warnings}
    count_clauses = [f"{len(succeeded_names)} of {len(results)} controllers "
                     f"{verb if changed_count else 'are'} as requested ({changed_count} changed)"]
    if skipped_names:
        count_clauses.append(f"{len(skipped_names)} skipped ({join_first(skipped_names)})")
    if not failures:
        return joint_fields | {"msg": ", ".join(count_clauses), "diff": diffs}
    error = RolloutError(f"{len(failures)} of {len(results)} controllers failed "
                         f"({join_first(list(failures))})",
                         why=_joint_reason(failures), next_command=next_command)
    # error.progress: fields for the result of the failed task.
    error.status, error.progress = ", ".join(count_clauses), joint_fields
    raise error


def _joint_reason(failures: dict[str, Json]) -> str:
    """Return the reasons of the failures, one per line.

    A reason that all failures share is without names: the first line of the error has the names.
    """
    reasons = [": ".join(filter(None, [failure["what"], "; ".join(failure["why"].splitlines())]))
               for failure in failures.values()]
    if len(set(reasons)) > 1:
        return join_first(_join_messages(zip(failures, reasons)), "\n")
    failure = next(iter(failures.values()))
    why_lines = failure["why"].splitlines()
    return reasons[0] if len(why_lines) < 2 else "\n".join([failure["what"], *why_lines])


def _join_messages(named_messages: t.Iterable[tuple[str, str]]) -> list[str]:
    """Return a text such as "web, api: message" for each distinct message.

    named_messages: pairs of a name and a message.
    """
    names_by_text: dict[str, list[str]] = {}
    for name, text in named_messages:
        names_by_text.setdefault(text, []).append(name)
    return [f"{join_first(names)}: {text}" for text, names in names_by_text.items()]

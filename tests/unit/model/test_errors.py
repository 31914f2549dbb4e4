# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the text of an error, and its fields in the result."""

from __future__ import annotations

import pytest
from request_builders import refusal

from ansible_collections.baton.kubernetes.plugins.module_utils.model import error_pages
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
    RolloutFailed,
    as_lines,
    list_alternatives,
)

ALL_PARTS = {"where": "RC a/b", "why": "quota",
             "next_command": ("do this, then:", "kubectl get rc b")}


@pytest.mark.parametrize("parts, expected", [
    ({}, "it failed."),
    ({"where": "RC a/b"}, "RC a/b: it failed."),
    ({"why": " quota exceeded\n"}, "it failed.\nReason: quota exceeded"),
    ({"why": "b has 0 of 1\n\npod b-1: no image"},
     "it failed.\nReason:\n  b has 0 of 1\n  pod b-1: no image"),
    ({"next_command": "do this"}, "it failed.\nNext:\n  do this"),
    ({"next_command": ["first", "", "second"]}, "it failed.\nNext:\n  first\n  second"),
    (ALL_PARTS, "RC a/b: it failed.\nReason: quota\nNext:\n  do this, then:\n  kubectl get rc b"),
], ids=["what", "where", "why", "reasons", "next", "lines", "everything"])
def test_message_has_a_line_for_each_part(parts, expected):
    assert RolloutError("it failed", **parts).message == expected


def test_status_is_between_the_reason_and_the_next_command():
    error = RolloutError("it failed", **ALL_PARTS)
    error.status = "b has 1 of 3 available"

    assert [line.partition(":")[0] for line in error.message.splitlines() if line[0] != " "] == [
        "RC a/b", "Reason", "So far", "Next"]


def test_address_of_the_page_is_before_the_next_command(monkeypatch):
    monkeypatch.setattr(error_pages, "ADDRESS", "https://docs.example.com/errors/PAGE.html")
    error = RolloutFailed("it failed", **ALL_PARTS)

    url = "https://docs.example.com/errors/new-pods.html"
    assert error.message.splitlines()[1:4] == ["Reason: quota", f"See {url}", "Next:"]
    assert error.as_result()["failure"]["url"] == url


def test_page_follows_from_the_module_that_creates_the_error():
    assert refusal(image="myimage:v2", max_surge="many").page == "options"
    assert RolloutError("it failed").page == "", "PAGES must have no row for this test's module"


@pytest.mark.parametrize("module, page", [
    ("a.plugins.module_utils.cluster.http", "connection"),
    ("module_utils.cluster.namespaces", "fleet"),
    ("a.plugins.module_utils.run.lease", "other-clients"),
    ("a.plugins.module_utils.unknown", ""),
])
def test_first_matching_prefix_decides_the_page_of_a_module(module, page):
    assert error_pages.page_of(module) == page


def test_no_full_stop_after_a_question_mark():
    assert RolloutError("no such thing; did you mean foo?").message == (
        "no such thing; did you mean foo?")


def test_text_from_the_cluster_cannot_forge_a_next_command():
    text = "denied\nNext:\n  rm -rf /\r\nNext: again"
    error = RolloutError(f"it failed: {text}", where="RC a/b\nNext:", why=text,
                         next_command=[f"look at {text}"])

    lines = error.message.splitlines()

    assert ([line for line in lines if line.startswith("Next")] == ["Next:"]
            and len(lines[lines.index("Next:"):]) == 2)


def test_each_command_has_its_own_line():
    assert list_alternatives("a", "b", "a") == ["a", "or:", "b"]
    assert list_alternatives("a", "a") == ["a"]
    assert as_lines(["a\nb", "", "c"]) == "a b\nc"


def test_result_contains_the_parts_and_the_message():
    error = RolloutError("it failed", **ALL_PARTS)

    assert error.as_result() == {
        "changed": False,
        "msg": error.message,
        "failure": {"what": "it failed", "where": "RC a/b", "why": "quota",
                    "next_command": "do this, then:\nkubectl get rc b",
                    "commands": ["kubectl get rc b"], "causes": [], "url": ""},
    }


def test_result_contains_the_progress():
    error = NoSuchController("it failed")
    error.progress = {"changed": True, "steps": [1], "rollout": {}, "msg": "not this one"}

    result = error.as_result()

    assert (result["changed"], result["steps"], result["rollout"], result["msg"]) == (
        True, [1], {}, "it failed.")

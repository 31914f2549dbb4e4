# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""An error is one paragraph for people and four fields for machines."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import NoSuchController, RolloutError


@pytest.mark.parametrize("parts, expected", [
    ({}, "it failed."),
    ({"where": "RC a/b"}, "RC a/b: it failed."),
    ({"why": " quota exceeded\n"}, "it failed: quota exceeded."),
    ({"why": "who knows?"}, "it failed: who knows?"),
    ({"next_command": "do this"}, "it failed. Next: do this"),
    ({"where": "RC a/b", "why": "quota", "next_command": "do this"}, "RC a/b: it failed: quota. Next: do this"),
], ids=["what", "where", "why", "why, a question", "next", "everything"])
def test_the_message_is_one_paragraph_of_what_is_known(parts, expected):
    assert RolloutError("it failed", **parts).message == expected


def test_the_result_holds_the_parts_and_the_message():
    error = RolloutError("it failed", where="RC a/b", why="quota", next_command="do this")

    assert error.as_result() == {
        "changed": False,
        "msg": error.message,
        "failure": {"what": "it failed", "where": "RC a/b", "why": "quota", "next_command": "do this", "causes": []},
    }


def test_the_progress_so_far_is_part_of_the_result():
    error = NoSuchController("it failed")
    error.progress = {"changed": True, "steps": [1], "rollout": {}, "msg": "not this one"}

    result = error.as_result()

    assert (result["changed"], result["steps"], result["rollout"], result["msg"]) == (True, [1], {}, "it failed.")

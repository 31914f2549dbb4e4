# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The annotation of a soak: the written form is read, and no other text."""

from __future__ import annotations

import pytest
from forged import KEYS

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import MAX_TIME, Soak

WHOLE = {"template": "0123", "began": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize("soak",
                         [Soak("0123", 1795255200.0), Soak("0123", 0.0, 2, 600),
                          Soak("0123", float(MAX_TIME), 0, 1.5),
                          Soak("0123", 0.0, usual=("BackOff", "Unhealthy"))])
def test_what_is_written_is_read(soak):
    assert object_meta.soak({object_meta.SOAK: soak.text}) == soak


def test_a_moment_is_written_as_people_read_it():
    assert Soak("0123", 1795255200.9).text == '{"began":"2026-11-21T10:00:00Z","template":"0123"}'


@pytest.mark.parametrize("changes", [
    {"template": ""}, {"template": "x" * 129}, {"template": 1}, {"began": ""},
    {"began": 1795255200}, {"began": "yesterday"},
    {"began": "1969-12-31T23:59:59Z"}, {"passed": -1}, {"passed": "1"}, {"passed": True},
    {"seconds": -1}, {"seconds": True},
    {"seconds": "600"}, {"seconds": 2**31}, {"seconds": None}, {"usual": "Unhealthy"},
    {"usual": None}, {"usual": [1]},
    {"usual": [""]}, {"usual": ["x" * 129]}, {"usual": ["x"] * 11}])
def test_of_what_is_not_as_it_should_be_nothing_is_read(changes):
    assert Soak.read(WHOLE) and Soak.read(WHOLE | changes) is None


def test_of_what_old_pods_were_warned_of_no_more_is_written_than_is_read():
    many = Soak("0123", 0.0, usual=tuple(f"{number:02}{'x' * 200}" for number in range(20)))

    assert object_meta.soak({object_meta.SOAK: many.text}).usual == tuple(
        f"{number:02}{'x' * 126}" for number in range(10))


def test_nothing_that_somebody_may_have_written_raises():
    for text in KEYS[object_meta.SOAK]:
        soak = object_meta.soak({object_meta.SOAK: text})
        assert soak is None or object_meta.soak({object_meta.SOAK: soak.text}) is not None

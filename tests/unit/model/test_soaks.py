# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write the annotation of a soak, and ignore an invalid text."""

from __future__ import annotations

import pytest
from forged import KEYS

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.soaks import MAX_TIME, Soak

STORED_SOAK = {"template": "0123", "began": "2026-11-21T10:00:00Z"}


@pytest.mark.parametrize("soak",
                         [Soak("0123", 1795255200.0), Soak("0123", 0.0, 2, 600),
                          Soak("0123", float(MAX_TIME), 0, 1.5),
                          Soak("0123", 0.0, old_pod_reasons=("BackOff", "Unhealthy"))])
def test_soak_round_trip(soak):
    assert object_meta.soak({object_meta.SOAK: soak.text}) == soak


def test_timestamp_has_the_format_of_rfc_3339():
    assert Soak("0123", 1795255200.9).text == '{"began":"2026-11-21T10:00:00Z","template":"0123"}'


@pytest.mark.parametrize("changes", [
    {"template": ""}, {"template": "x" * 129}, {"template": 1}, {"began": ""},
    {"began": 1795255200}, {"began": "yesterday"},
    {"began": "1969-12-31T23:59:59Z"}, {"passed": -1}, {"passed": "1"}, {"passed": True},
    {"seconds": -1}, {"seconds": True},
    {"seconds": "600"}, {"seconds": 2**31}, {"seconds": None}, {"usual": "Unhealthy"},
    {"usual": None}, {"usual": [1]},
    {"usual": [""]}, {"usual": ["x" * 129]}, {"usual": ["x"] * 11}])
def test_soak_with_an_invalid_field_is_ignored(changes):
    assert Soak.read(STORED_SOAK) and Soak.read(STORED_SOAK | changes) is None


def test_written_reasons_are_within_the_limits_of_reading():
    reasons = tuple(f"{number:02}{'x' * 200}" for number in range(20))
    long_soak = Soak("0123", 0.0, old_pod_reasons=reasons)

    assert object_meta.soak({object_meta.SOAK: long_soak.text}).old_pod_reasons == tuple(
        f"{number:02}{'x' * 126}" for number in range(10))


def test_forged_soak_never_raises():
    for text in KEYS[object_meta.SOAK]:
        soak = object_meta.soak({object_meta.SOAK: text})
        assert soak is None or object_meta.soak({object_meta.SOAK: soak.text}) is not None

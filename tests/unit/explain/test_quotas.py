# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse quantities in the notation of Kubernetes."""

from __future__ import annotations

import decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.utils.quantity import parse_quantity

from ansible_collections.baton.kubernetes.plugins.module_utils.explain.quotas import parse_amount


@given(st.from_regex(r"[+-]?([0-9]{1,15}(\.[0-9]{0,6})?|\.[0-9]{1,6})"
                     r"([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?", fullmatch=True))
def test_quantities_equal_the_result_of_the_kubernetes_package(text):
    assert parse_amount(text) == parse_quantity(text)


@pytest.mark.parametrize("text, number", [
    ("100m", "0.1"), ("1.5Gi", 1610612736), ("2E", 2 * 10**18), ("2E3", 2000), (".5", "0.5"),
    ("1.", 1), (3, 3), (0.5, "0.5"),
    ("", 0), (None, 0), ("1 Gi", 0), ("1mi", 0), ("1K", 0), ("1e3m", 0), ("nan", 0), ({}, 0),
    (True, 0), ("\u0661", 0),
])
def test_quantities(text, number):
    assert parse_amount(text) == decimal.Decimal(number)

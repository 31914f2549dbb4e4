# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The worked examples in docstrings are true."""

from __future__ import annotations

import doctest

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model import thresholds


@pytest.mark.parametrize("module", [thresholds], ids=lambda module: module.__name__.rpartition(".")[2])
def test_examples_in_docstrings(module):
    results = doctest.testmod(module)

    assert results.attempted > 0
    assert results.failed == 0

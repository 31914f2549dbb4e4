# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test floor and ceiling with random sizes, and run the examples of the docstrings."""

from __future__ import annotations

import doctest
import math
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.model import thresholds
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import (
    Size,
    max_grown_size,
    min_shrunk_size,
    resolve_fenceposts,
)

COUNT = st.integers(0, 1000)
SIZE = st.builds(Size, st.integers(0, 200)) | st.builds(Size, st.integers(0, 100), st.just(True))


@st.composite
def update_strategies(draw):
    """Draw (desired size, surge, unavailable). The last two result from random options."""
    desired = draw(COUNT)
    return desired, *resolve_fenceposts(draw(SIZE), draw(SIZE), desired)


def percent(value):
    return Size(value, percent=True)


@pytest.mark.parametrize("max_surge, max_unavailable, desired, expected", [
    (Size(0), percent(1), 1, (0, 1)),
    (percent(1), percent(0), 1, (1, 0)),
    (percent(25), percent(1), 2, (1, 0)),
    (percent(25), percent(1), 1, (1, 0)),
    (percent(25), percent(25), 10, (3, 2)),
    (percent(50), percent(50), 5, (3, 2)),
    (Size(2), Size(3), 1, (2, 3)),
    (percent(100), percent(100), 7, (7, 7)),
    (percent(1), percent(99), 100, (1, 99)),
    (Size(0), Size(0), 5, (0, 1)),
    (percent(25), percent(25), 0, (0, 1)),
], ids=lambda value: f"{value.value}{'%' * value.percent}" if isinstance(value, Size)
    else str(value))
def test_resolve_fenceposts(
        max_surge, max_unavailable, desired, expected):
    """Use the examples of ResolveFenceposts in the Deployment controller, and others."""
    assert resolve_fenceposts(max_surge, max_unavailable, desired) == expected


@given(st.integers(0, 100), COUNT)
def test_percentage_is_rounded_up_or_down(value, desired):
    exact = value * desired / 100

    assert percent(value).resolve(desired, round_up=True) == math.ceil(exact)
    assert percent(value).resolve(desired, round_up=False) == math.floor(exact)


@given(COUNT, COUNT, st.booleans())
def test_number_is_independent_of_the_desired_size(value, desired, round_up):
    assert Size(value).resolve(desired, round_up=round_up) == value


@given(update_strategies(), COUNT)
def test_max_grown_size_respects_ceiling_and_desired_size(strategy, shrinking_pods):
    desired, surge, _unavailable = strategy

    size = max_grown_size(desired=desired, surge=surge, shrinking_pods=shrinking_pods)

    assert 0 <= size <= desired
    assert size == 0 or size + shrinking_pods <= desired + surge


@given(update_strategies(), COUNT)
def test_max_grown_size_reaches_the_ceiling(strategy, shrinking_pods):
    desired, surge, _unavailable = strategy

    size = max_grown_size(desired=desired, surge=surge, shrinking_pods=shrinking_pods)

    assert size == desired or size + 1 + shrinking_pods > desired + surge


@given(update_strategies(), COUNT, COUNT, COUNT)
def test_min_shrunk_size_respects_the_floor(
        strategy, shrinking, growing_available, shrinking_unavailable):
    desired, _surge, unavailable = strategy
    available = max(0, shrinking - shrinking_unavailable)

    size = min_shrunk_size(desired=desired, unavailable=unavailable, shrinking=shrinking,
                           growing_available=growing_available)

    assert 0 <= size <= shrinking
    assert (min(size, available) + growing_available
            >= min(desired - unavailable, available + growing_available))


@given(update_strategies(), COUNT, COUNT)
def test_min_shrunk_size_reaches_the_floor(strategy, shrinking, growing_available):
    desired, _surge, unavailable = strategy

    size = min_shrunk_size(desired=desired, unavailable=unavailable, shrinking=shrinking,
                           growing_available=growing_available)

    assert size in (0, shrinking) or size - 1 + growing_available < desired - unavailable


@given(update_strategies(), COUNT, COUNT)
def test_settled_controllers_are_never_stuck(strategy, growing, shrinking):
    """If all pods are available and old pods remain, one of the sizes can change."""
    desired, surge, unavailable = strategy
    growing = min(growing, desired)

    can_grow = max_grown_size(desired=desired, surge=surge, shrinking_pods=shrinking) > growing
    can_shrink = min_shrunk_size(desired=desired, unavailable=unavailable, shrinking=shrinking,
                                 growing_available=growing) < shrinking

    assert can_grow or can_shrink or (growing, shrinking) == (desired, 0)


@given(update_strategies(), COUNT)
def test_rollout_stays_between_floor_and_ceiling_until_it_ends(strategy, unavailable_old_pods):
    desired, surge, unavailable = strategy
    state = types.SimpleNamespace(old=desired, new=0)
    floor = min(desired - unavailable, max(0, desired - unavailable_old_pods))
    for _turn in range(2 * desired + 2):
        if (state.old, state.new) == (0, desired):
            break
        state.new = max(state.new, max_grown_size(desired=desired, surge=surge,
                                                  shrinking_pods=state.old))
        assert state.old + state.new <= desired + surge
        state.old = min_shrunk_size(desired=desired, unavailable=unavailable, shrinking=state.old,
                                    growing_available=state.new)
        assert min(state.old, max(0, desired - unavailable_old_pods)) + state.new >= floor

    assert (state.old, state.new) == (0, desired)


def test_examples_in_docstrings():
    results = doctest.testmod(thresholds)

    assert results.attempted > 0 and results.failed == 0

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the cache of the last call."""

import concurrent.futures

from ansible_collections.baton.kubernetes.plugins.module_utils.model.caching import cache_last_call


def test_only_a_call_with_the_same_objects_is_cached():
    calls = []

    @cache_last_call
    def join(first, second):
        calls.append((first, second))
        return [*first, *second]

    first, second = [1], [2]

    assert join(first, second) == join(first, second) == [1, 2]
    assert len(calls) == 1
    assert join([1], second) == [1, 2]
    assert len(calls) == 2
    assert join(first, [3]) == [1, 3]
    assert join(first, second) == [1, 2]
    assert len(calls) == 4


def test_each_thread_has_a_cache():
    calls = []

    @cache_last_call
    def append(first, second):
        calls.append((first, second))
        return first + second

    append("a", "b")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(append, "a", "b").result() == "ab"

    assert append("a", "b") == "ab"
    assert len(calls) == 2

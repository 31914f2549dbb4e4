# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shorten texts from other clients, and escape unprintable characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_DEPTH,
    MAX_LISTED,
    MAX_TEXT_LENGTH,
    display_text,
    escape_unprintable,
    first_of_kind,
    join_first,
    map_texts,
    nests_too_deeply,
)

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.text(), inner, max_size=3), max_leaves=20)


@pytest.mark.parametrize("text, expected", [
    ("probe failed: ä, 日本, 🙂", "probe failed: ä, 日本, 🙂"),
    ("\x1b[2Jgone", r"\x1b[2Jgone"),
    ("\x9b31m", r"\x9b31m"),
    ("one\nNext:\r\n\ttwo", r"one\nNext:\r\n\ttwo"),
    ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
    *[(f"a{chr(mark)}b", rf"a\u{mark:04x}b")
      for mark in (*range(0x202a, 0x202f), *range(0x2066, 0x206a), 0x200e, 0x200f, 0x61c)],
    ("\ud800", r"\ud800"),
    ("    at the end\n", "    at the end"),
])
def test_unprintable_characters_are_escaped(text, expected):
    assert display_text(text) == expected


@given(st.text())
def test_display_text_is_one_printable_line(text):
    assert display_text(text).isprintable()
    assert display_text(display_text(text)) == display_text(text)


@given(st.text(min_size=1, max_size=5), st.integers(0, 60_000))
def test_length_of_display_text_is_limited(text, times):
    assert len(display_text(text * times)) <= MAX_TEXT_LENGTH


def test_long_text_is_shortened_in_the_middle():
    assert display_text("the object" + "x" * 100_000 + "the reason").startswith("the objectxxx")
    assert display_text("the object" + "x" * 100_000 + "the reason").endswith("xxxthe reason")


@given(JSON)
def test_map_texts_changes_only_texts(value):
    assert map_texts(value, lambda text: text) == value
    assert "\\x1b" not in repr(map_texts(value,
                                         lambda text: escape_unprintable(text).replace("\\", "")))


def test_map_texts_changes_keys_and_cuts_deep_values():
    nested = {}
    for _level in range(100_000):
        nested = {"a": nested}

    assert map_texts({"\x1b": ["\n"]}, display_text) == {r"\x1b": [""]}
    assert str(map_texts(nested, display_text)).count("a") == MAX_DEPTH
    while nested:  # one level at a time: Python crashes if it frees all levels at once
        nested = nested["a"]


@pytest.mark.parametrize("wrap", [lambda inner: [1, inner], lambda inner: {"a": 1, "b": inner}])
def test_values_above_the_maximum_depth_nest_too_deeply(wrap):
    value = "text"
    for _level in range(MAX_DEPTH):
        value = wrap(value)

    assert not nests_too_deeply(value) and nests_too_deeply(wrap(value))


def test_escape_unprintable_keeps_allowed_characters():
    assert escape_unprintable("a\n\x1b\n", allowed="\n") == "a\n\\x1b\n"


@pytest.mark.parametrize("excess", [-MAX_LISTED, -1, 0, 1, 2, 3000])
def test_items_beyond_the_limit_are_counted(excess):
    texts = [f"item {number}" for number in range(MAX_LISTED + excess)]
    count = [f"and {excess} more"] if excess > 0 else []

    assert first_of_kind(texts, str) == (
        texts[:MAX_LISTED] + [f"{text} of this kind" for text in count])
    assert join_first(texts, "\n") == "\n".join(texts[:MAX_LISTED] + count)
    assert join_first(texts) == " ".join([", ".join(texts[:MAX_LISTED]), *count])

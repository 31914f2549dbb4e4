# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse JSON that nests more deeply than Python accepts."""

from __future__ import annotations

import json

import pytest
from apiserver import answer
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import json_text
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.json_text import (
    MAX_PARSED_DEPTH,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import MAX_DEPTH

#: From a depth that any parser accepts to a depth that none accepts.
DEPTHS = (MAX_PARSED_DEPTH, 500, *range(900, 1000, 9), 2_000, 100_000)


def depth_of(value):
    depth = 0
    while value and isinstance(value, (dict, list)):
        depth, value = depth + 1, (list(value.values()) if isinstance(value, dict) else value)[0]
    return depth


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("opening, closing", ["[]", ('{"a":', "}")])
def test_deep_value_does_not_hide_its_neighbours(depth, opening, closing):
    deep = opening * depth + "1" + closing * depth
    text = rf'{{"a": {deep}, "b": ["]\"{{", {deep}, 2], "c": 3}}'

    value = json_text.parse(text.encode())

    assert value["b"][0] == ']"{' and value["b"][2] == 2 and value["c"] == 3
    # The readers of a stored object still find that the object nests too deeply.
    assert depth_of(value["a"]) > MAX_DEPTH


@pytest.mark.parametrize("text", [
    "[" * 100_000, "[" + "[" * 9_000 + "]" * 9_000 + "," + "[" * 9_000,
    "]" * 9_000, '"' + "[" * 9_000, "[" * 9_000 + "\xff"])
def test_truncated_deep_json_is_invalid(text):
    with pytest.raises(ValueError):
        json_text.parse(text.encode("latin-1"))


JSON = st.recursive(st.none() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(JSON)
def test_shallow_values_stay_unchanged(value):
    assert json_text.parse(json.dumps(value).encode()) == value
    assert json.loads(json_text._without_deep_values(json.dumps(value))) == value


def revision(name, data):
    return (f'{{"metadata": {{"name": "{name}", "labels": {{}}, "ownerReferences": '
            f'[{{"uid": "u1", "controller": true}}]}}, "revision": 1, "data": {data}}}')


def test_deep_revision_of_another_user_leaves_the_list_readable(gateway, api):
    items = ",".join([revision("mine", '{"a":' + "[" * 2_000 + "]" * 2_000 + "}"),
                      revision("foo-1", '{"template": "x"}')])
    text = f'{{"kind": "ControllerRevisionList", "metadata": {{}}, "items": [{items}]}}'
    api.answers += [answer(text.encode()), answer(text.encode())]

    assert [item["metadata"]["name"] for item in gateway.revisions(["u1"])] == ["mine", "foo-1"]
    assert gateway.migrations()[1]["data"] == {"template": "x"}

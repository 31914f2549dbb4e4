# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the index and the limit of an informer's store."""

import hypothesis
import pytest
from hypothesis import strategies

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import informer
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.informer import Store

NAMES, COLORS = ("a", "b", "c"), (None, "blue", "green")
OPERATIONS = strategies.lists(strategies.tuples(
    strategies.sampled_from(("put", "apply", "delete", "list without")),
    strategies.sampled_from(NAMES), strategies.sampled_from(COLORS), strategies.booleans()))


def item(name, color, version, uid):
    return {"metadata": {"name": name, "resourceVersion": str(version), "uid": uid}, "color": color}


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    monkeypatch.setattr(informer, "PAGE_SIZE", 2)


@hypothesis.given(OPERATIONS)
def test_bounded_store_has_no_deleted_object(operations):
    """Objects without a color are omitted, like pods without trouble."""
    store = Store(lambda stored: stored if stored["color"] else None, is_bounded=True,
                  keeps_history=False, index_value_of=lambda stored: stored["color"])
    existing = {}
    for version, (operation, name, color, _is_recreated) in enumerate(operations, start=1):
        uid = existing[name]["metadata"]["uid"] if name in existing else f"{name}-{version}"
        if operation in ("put", "apply"):
            existing[name] = item(name, color, version, uid)
            (store.put if operation == "put" else store.apply)(existing[name])
        elif operation == "delete":
            existing.pop(name, None)
            store.delete(name, uid)
        else:
            existing.pop(name, None)
            store.replace(list(existing.values())[:2], str(version),
                          is_partial=len(existing) > 2)

        assert len(store.objects()) <= 2
        assert all(existing.get(key) == stored for key, stored in store.objects().items())
        for indexed_color in filter(None, COLORS):
            assert {stored["metadata"]["name"] for stored in store.by_index(indexed_color)} <= (
                store.objects().keys())


def test_bounded_store_keeps_objects_longer_than_versions_of_omitted_objects():
    store = Store(lambda stored: stored if stored["color"] else None, is_bounded=True,
                  keeps_history=False, index_value_of=lambda stored: None)
    for version, (name, color) in enumerate(zip("abcd", ("blue", None, None, None), strict=True)):
        store.put(item(name, color, version, name))

    assert store.objects().keys() == {"a"}
    store.delete("a", "a")
    assert not store.objects()


@hypothesis.given(OPERATIONS)
def test_index_finds_the_stored_objects_by_color(operations):
    store = Store(lambda stored: stored, is_bounded=False, keeps_history=False,
                  index_value_of=lambda stored: stored["color"])
    recreations = dict.fromkeys(NAMES, 0)
    for version, (operation, name, color, is_recreated) in enumerate(operations, start=1):
        recreations[name] += is_recreated
        uid = f"{name}-{recreations[name]}"
        if operation == "put":
            store.put(item(name, color, version, uid))
        elif operation == "apply":
            store.apply(item(name, color, version, uid))
        elif operation == "delete":
            store.delete(name, uid)
        else:
            remaining = [stored for key, stored in store.objects().items() if key != name]
            store.replace(remaining, str(version), is_partial=False)

        for indexed_color in filter(None, COLORS):
            assert sorted(stored["metadata"]["name"]
                          for stored in store.by_index(indexed_color)) == sorted(
                key for key, stored in store.objects().items() if stored["color"] == indexed_color)

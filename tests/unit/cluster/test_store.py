# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the index of an informer's store."""

import hypothesis
from hypothesis import strategies

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.informer import Store

NAMES, COLORS = ("a", "b", "c"), (None, "blue", "green")
OPERATIONS = strategies.lists(strategies.tuples(
    strategies.sampled_from(("put", "apply", "delete", "list without")),
    strategies.sampled_from(NAMES), strategies.sampled_from(COLORS), strategies.booleans()))


def item(name, color, version, uid):
    return {"metadata": {"name": name, "resourceVersion": str(version), "uid": uid}, "color": color}


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

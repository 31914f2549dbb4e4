# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The main job on a real API server: sizes, directions, ways to say what changes."""

from __future__ import annotations

import pytest
from namespace import uids

from ansible_collections.baton.kubernetes.plugins.module_utils import identity


@pytest.mark.parametrize("replicas, surge", [(1, "1"), (4, "1"), (100, "25%"), (500, "25%")])
def test_takeover_touches_no_pod(namespace, replicas, surge):
    """N pods are created in all; next's pods are foo's afterwards; foo is never missing; a rerun writes nothing."""
    foo = namespace.make_foo(replicas)

    with namespace.observer() as observer:
        result = namespace.roll(image="myimage:v2", max_surge=surge)

    assert result["changed"] and result["rollout"]["phase"] == "complete"
    after = namespace.rc()
    assert after["metadata"]["uid"] == foo["metadata"]["uid"]
    assert "foo" not in observer.controllers_deleted and namespace.rcs() == ["foo"]
    assert len(observer.new) == replicas
    assert observer.new == uids(namespace.pods())
    assert observer.restarts == 0
    room = replicas // 4 if surge == "25%" else 1
    assert observer.fewest_ready >= replicas and observer.most_pods <= replicas + room
    assert not set(identity.MARKS) & set(after["metadata"]["annotations"])

    again = namespace.roll(image="myimage:v2")

    assert not again["changed"] and again["steps"] == []
    assert set(again["requests"]) == {"GET"}
    assert namespace.rc()["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]


def test_at_most_one_request_for_each_replaced_pod(namespace):
    """kubectl 1.17 needed 11.5."""
    namespace.make_foo(100)

    result = namespace.roll(image="myimage:v2", max_surge="25%")

    assert sum(result["requests"].values()) <= 100

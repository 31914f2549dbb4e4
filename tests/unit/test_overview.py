# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Select the controllers whose rollouts rolling_update_info returns."""

from __future__ import annotations

import pytest
from builders import rc
from migrations import MigrationGateway, World

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.overview import Overview

BOTH = ["bar", "foo"]


@pytest.mark.parametrize("params, names", [
    ({}, BOTH), ({"name": "foo"}, ["foo"]), ({"names": ["foo", "bar"]}, BOTH),
    ({"names": ["bar"]}, ["bar"]), ({"name": "missing"}, []),
    ({"label_selectors": ["app=foo"]}, ["foo"]), ({"label_selectors": ["app in (foo, bar)"]}, BOTH),
    ({"label_selectors": ["app=missing"]}, []),
    ({"field_selectors": ["metadata.name=bar"]}, ["bar"]),
    ({"label_selectors": ["app=foo"], "field_selectors": ["metadata.name=bar"]}, []),
], ids=str)
def test_selected_controllers_are_listed(params, names):
    def select(labels, fields):
        return [name for name in by_labels(labels)
                if all(field == f"metadata.name={name}" for field in fields)]

    flow = choose(request := Request("any", "default"))
    world = World(rc("foo", labels={"app": "foo"}), rc("bar", labels={"app": "bar"}))
    gateway = MigrationGateway(world.cluster, request.kind, flow.watched_kinds)
    by_labels, gateway.names = gateway.names, select

    rollouts = Overview(flow, request, gateway, {"name": None, **params}).rollouts()

    assert [rollout["name"] for rollout in rollouts] == names

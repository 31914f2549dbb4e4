# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases: their versions, faster clients and lost answers."""

from __future__ import annotations

import time

import pytest
from apiserver import answer, lease_item, reset, status

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def test_a_lease_is_created_replaced_and_deleted_as_the_version_that_was_seen(gateway, api):
    api.answers += [status(404), *(answer(lease_item(version)) for version in ("1", "2", "2"))]

    assert gateway.lease("x") is None
    assert gateway.put_lease(gateway.put_lease(lease_item())) == lease_item("2")
    gateway.delete_lease(lease_item("2"))

    assert api.sent == [("GET", f"{LEASES}/x"), ("POST", LEASES), ("PUT", f"{LEASES}/x"),
                        ("DELETE", f"{LEASES}/x")]
    assert api.requests[3][3]["preconditions"] == {"uid": "u", "resourceVersion": "2"}


@pytest.mark.parametrize("version, code", [(None, 409), ("1", 409), ("1", 404)])
def test_a_lease_that_somebody_else_was_faster_with(gateway, api, version, code):
    api.answers.append(status(code))

    assert gateway.put_lease(lease_item(version)) is None


@pytest.mark.parametrize("holder, lost", [("me", False), ("another", True)])
def test_a_lease_whose_answer_was_lost_is_looked_up(gateway, api, holder, lost):
    api.answers += [reset, answer(lease_item("1", holder))]

    assert (gateway.put_lease(lease_item()) is None) is lost


def test_leases_that_are_not_allowed_name_the_way_without(gateway, api):
    api.answers += [status(403), status(403)]
    for call in (lambda: gateway.lease("x"), lambda: gateway.put_lease(lease_item())):
        with pytest.raises(RolloutError) as error:
            call()
        assert "lock=false" in error.value.next_command


@pytest.mark.parametrize("trouble", [status(409), status(500), reset])
def test_a_lease_that_cannot_be_deleted_is_no_error(gateway, api, trouble):
    api.answers.append(trouble)

    gateway.delete_lease(lease_item("1"))

    assert len(api.sent) == 1


def test_the_servers_clock_is_told_by_its_answers(gateway, api):
    api.answers.append(answer(lease_item("1")))
    gateway.lease("x")

    assert abs(gateway.server_time() - time.time()) < 2

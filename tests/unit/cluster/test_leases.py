# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read and write Leases: versions, conflicts with other clients, and lost responses."""

from __future__ import annotations

import time

import pytest
from apiserver import answer, lease_item, reset, status

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def test_lease_writes_require_the_version_that_was_read(gateway, api):
    api.answers += [status(404), *(answer(lease_item(version)) for version in ("1", "2", "2"))]

    assert gateway.lease("x") is None
    assert gateway.put_lease(gateway.put_lease(lease_item())) == lease_item("2")
    gateway.delete_lease(lease_item("2"))

    assert api.sent == [("GET", f"{LEASES}/x"), ("POST", LEASES), ("PUT", f"{LEASES}/x"),
                        ("DELETE", f"{LEASES}/x")]
    assert api.requests[3][3]["preconditions"] == {"uid": "u", "resourceVersion": "2"}


@pytest.mark.parametrize("version, code", [(None, 409), ("1", 409), ("1", 404)])
def test_put_lease_returns_none_on_a_conflict(gateway, api, version, code):
    api.answers.append(status(code))

    assert gateway.put_lease(lease_item(version)) is None


@pytest.mark.parametrize("holder, is_taken", [("me", False), ("another", True)])
def test_lease_is_looked_up_after_a_lost_response(gateway, api, holder, is_taken):
    api.answers += [reset, answer(lease_item("1", holder))]

    assert (gateway.put_lease(lease_item()) is None) is is_taken


def test_error_of_a_forbidden_lease_suggests_disabling_the_lock(gateway, api):
    api.answers += [status(403), status(403)]
    for call in (lambda: gateway.lease("x"), lambda: gateway.put_lease(lease_item())):
        with pytest.raises(RolloutError) as error:
            call()
        assert "lock=false" in error.value.next_command


@pytest.mark.parametrize("response", [status(409), status(500), reset])
def test_failed_deletion_of_a_lease_is_ignored(gateway, api, response):
    api.answers.append(response)

    gateway.delete_lease(lease_item("1"))

    assert len(api.sent) == 1


def test_server_time_is_read_from_responses(gateway, api):
    api.answers.append(answer(lease_item("1")))
    gateway.lease("x")

    assert abs(gateway.server_time() - time.time()) < 2

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two clients at once (design section 5, number 7): together they break none of the promises.

Not yet here: two that pull in opposite directions within the milliseconds that the controller manager needs to hear of its own
pods. Nothing that the API shows tells of those; one driver at a time is what helps against it.
"""

from __future__ import annotations

import threading

import pytest
from namespace import uids

from ansible_collections.baton.kubernetes.plugins.module_utils import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.errors import RolloutError

REPLICAS = 4


@pytest.mark.parametrize("first, second", [
    (dict(image="myimage:v2"), dict(image="myimage:v2")),
    (dict(image="myimage:v2"), dict(image="myimage:v3")),
], ids=["the same wish", "two images"])
def test_two_clients_started_together(namespace, first, second):
    """Each ends well or with an error that says why; the floor, the ceiling and foo hold; one more task ends clean."""
    namespace.make_foo(REPLICAS)
    for _attempt in range(6):
        with namespace.observer() as observer:
            errors = together(namespace, first, second)
            assert all(error.next_command or error.what for error in errors)
            finish(namespace)
        assert observer.fewest_ready >= REPLICAS and observer.most_pods <= REPLICAS + 1
        assert "foo" not in observer.controllers_deleted and observer.restarts == 0
        assert namespace.rcs() == ["foo"] and len(uids(namespace.pods())) == REPLICAS
        assert not set(identity.MARKS) & set(namespace.rc()["metadata"]["annotations"])


def together(namespace, *wishes):
    """The errors of tasks that run at the same time."""
    errors = []

    def run(params):
        try:
            namespace.roll(progress_deadline=20, **params)
        except RolloutError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(params,)) for params in wishes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def finish(namespace):
    """End what is in progress, and go to v1."""
    try:
        namespace.roll(state="rolled_back")
    except RolloutError as error:
        assert "no update in progress" in error.what
    namespace.roll(image="myimage:v1")

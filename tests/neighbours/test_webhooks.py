# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers while admission webhooks change objects, or fail."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest
from kinds import KINDS, images, make
from objects import eventually
from webhooks import (
    CONTROLLER_RULE,
    MIRROR,
    POD_RULE,
    WEBHOOK_NAME,
    Webhook,
    add_sidecar,
    use_mirror,
)
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

#: Seconds for which a webhook for controllers fails.
SHORT_OUTAGE = 8
#: Seconds for which a webhook for pods fails.
OUTAGE, LONG_OUTAGE = 15, 60
#: Kinds whose update creates a successor.
CLIENT_DRIVEN = KINDS[:2]
#: Kinds whose update deletes a pod before it creates the replacement.
IN_PLACE = KINDS[3:]


@pytest.fixture(autouse=True)
def _remove_nodes(namespace):
    yield
    namespace.remove_nodes()


def container_names(namespace):
    return {tuple(container["name"] for container in pod["spec"]["containers"])
            for pod in namespace.pods()}


@pytest.mark.parametrize("kind", KINDS)
def test_update_and_rollback_succeed_with_a_sidecar_injector(namespace, tmp_path, kind):
    with Webhook(namespace, tmp_path, add_sidecar, POD_RULE):
        make(namespace, kind)
        with namespace.observer() as observer:
            paused = namespace.roll(kind=kind, image="myimage:v2", pause_at=1, soak=1)
            result = namespace.roll(kind=kind, image="myimage:v2", soak=1)
            rerun = namespace.roll(kind=kind, image="myimage:v2", soak=1)
        assert container_names(namespace) == {("web", "proxy")}
        assert images(namespace) == {"myimage:v2"}
        rollback = namespace.roll(kind=kind, image=None, state="rolled_back",
                                  to_revision="previous")

    assert paused["rollout"]["phase"] == "paused" and result["rollout"]["phase"] == "complete"
    assert not rerun["changed"] and rollback["changed"]
    assert not [*paused["warnings"], *result["warnings"], *rollback["warnings"]]
    assert container_names(namespace) == {("web", "proxy")} and images(namespace) == {"myimage:v1"}
    assert observer.min_ready >= (3 if kind not in IN_PLACE else 2)
    assert len(observer.new_pods) == 3


@pytest.mark.parametrize("kind, rules", [
    *((kind, (POD_RULE, CONTROLLER_RULE)) for kind in KINDS),
    (KINDS[0], (POD_RULE,)), (KINDS[2], (POD_RULE,))],
    ids=[*KINDS, f"{KINDS[0]}, pods only", f"{KINDS[2]}, pods only"])
def test_update_is_killed_resumed_and_rolled_back_with_a_mirror(namespace, tmp_path, kind, rules):
    with Webhook(namespace, tmp_path, use_mirror, *rules):
        make(namespace, kind)
        with pytest.raises(Killed):
            namespace.roll(kind=kind, image="myimage:v2", fault=kill_at_write(1, after=True),
                           pause_at=1)
        paused = namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
        result = namespace.roll(kind=kind, image="myimage:v2")
        rerun = namespace.roll(kind=kind, image="myimage:v2")
        assert images(namespace) == {f"{MIRROR}myimage:v2"}
        rollback = namespace.roll(kind=kind, image=None, state="rolled_back",
                                  to_revision="previous")

    assert paused["rollout"]["phase"] == "paused" and result["rollout"]["phase"] == "complete"
    assert not rerun["changed"] and rollback["changed"]
    assert not [*paused["warnings"], *result["warnings"], *rollback["warnings"]]
    assert images(namespace) == {f"{MIRROR}myimage:v1"}


class Outage:
    """An outage that begins at the first progress line starting with `first_word`."""

    def __init__(self, webhook, seconds, hangs, first_word):
        self.webhook, self.seconds, self.hangs, self.first_word = (
            webhook, seconds, hangs, first_word)
        self.lines, self.thread = [], None
        self.has_begun = threading.Event()

    def on_line(self, line):
        self.lines.append(line)
        if self.thread is None and line.startswith(self.first_word):
            self.thread = threading.Thread(target=self._run, daemon=True)
            self.thread.start()
            assert self.has_begun.wait(10)

    def _run(self):
        with self.webhook.outage(self.hangs):
            self.has_begun.set()
            time.sleep(self.seconds)


@pytest.mark.parametrize("kind, hangs, seconds", [
    ("ReplicationController", True, OUTAGE), ("ReplicaSet", False, OUTAGE),
    ("Deployment", False, OUTAGE), ("StatefulSet", True, OUTAGE), ("DaemonSet", False, OUTAGE),
    pytest.param("ReplicationController", False, LONG_OUTAGE, marks=pytest.mark.long),
    pytest.param("Deployment", True, LONG_OUTAGE, marks=pytest.mark.long),
    pytest.param("StatefulSet", True, LONG_OUTAGE, marks=pytest.mark.long)])
def test_outage_of_a_webhook_for_pods_is_reported_and_the_update_completes(
        namespace, tmp_path, kind, hangs, seconds):
    with Webhook(namespace, tmp_path, add_sidecar, POD_RULE) as webhook:
        make(namespace, kind)
        outage = Outage(webhook, seconds, hangs,
                        "create" if kind in CLIENT_DRIVEN else "update")
        start_time = time.monotonic()
        with namespace.observer() as observer:
            result = namespace.roll(kind=kind, image="myimage:v2", on_line=outage.on_line)
        print(kind, hangs, f"{time.monotonic() - start_time:.0f} s", *outage.lines, sep="\n")

    assert result["rollout"]["phase"] == "complete" and images(namespace) == {"myimage:v2"}
    assert container_names(namespace) == {("web", "proxy")}
    assert any(f'failed calling webhook "{WEBHOOK_NAME}"' in line
               for line in outage.lines), outage.lines
    assert observer.min_ready >= (3 if kind not in IN_PLACE else 2)


@pytest.mark.parametrize("kind, hangs", [
    ("ReplicationController", True), ("Deployment", False)])
def test_short_outage_of_a_webhook_for_controllers_is_retried(
        namespace, tmp_path, kind, hangs):
    with Webhook(namespace, tmp_path, use_mirror, CONTROLLER_RULE) as webhook:
        make(namespace, kind)
        namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
        with contextlib.ExitStack() as stack:
            stack.enter_context(webhook.outage(hangs))
            threading.Timer(SHORT_OUTAGE, stack.close).start()
            result = namespace.roll(kind=kind, image="myimage:v2")
        print(*result["steps"], sep="\n")

    assert result["rollout"]["phase"] == "complete"


@pytest.mark.parametrize("kind, hangs, what", [
    ("ReplicationController", False, "the change of its annotations was refused (500)"),
    ("Deployment", True, f"the admission webhook {WEBHOOK_NAME} does not respond")])
def test_long_outage_of_a_webhook_for_controllers_is_an_error_and_the_rerun_completes(
        namespace, tmp_path, kind, what, hangs):
    """For a Deployment, the first request to the webhook is a dry run."""
    with Webhook(namespace, tmp_path, use_mirror, CONTROLLER_RULE) as webhook:
        make(namespace, kind)
        namespace.roll(kind=kind, image="myimage:v2", pause_at=1)
        before = namespace.end_state()
        with webhook.outage(hangs), pytest.raises(RolloutError) as error:
            namespace.roll(kind=kind, image="myimage:v2")
        assert eventually(namespace.end_state) == before
        result = namespace.roll(kind=kind, image="myimage:v2")

    assert error.value.what == what
    assert f'failed calling webhook "{WEBHOOK_NAME}"' in error.value.why
    assert error.value.next_command.splitlines() == [
        f"check that the service behind the webhook {WEBHOOK_NAME} is running",
        "then run the same task again"]
    assert result["rollout"]["phase"] == "complete"

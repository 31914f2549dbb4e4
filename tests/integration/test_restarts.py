# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""API server, etcd and controller manager are killed and restarted during a rollout and during the
handover.

A short outage only costs time. A long outage ends the task with an error that reports the status.
"""

from __future__ import annotations

import os
import threading
import time

import pytest
from namespace import Namespace
from objects import eventually, role, uids
from writes import action_after_write, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 4

#: Progress lines: half way; foo has next's template, closed; next is closed too; all pods are
#: foo's; next is gone.
MIDDLE, RENAMED, CLOSED = "scale foo: 3 -> 2", "rename foo: ", "no more pods are created for it"
HANDED_OVER, DELETED = "hand over foo-", "it has no pods"
#: Half of the pods are foo's, the others next's; no progress line marks this moment.
HANDING_OVER = "half of the pods"
#: Seconds until the restart of a killed component.
OUTAGE = 0.7

pytestmark = pytest.mark.skipif(bool(os.environ.get("KUBECONFIG")),
                                reason="NEEDS THE EMBEDDED CLUSTER: the components of a given one "
                                       "are not ours to kill")


@pytest.fixture(scope="module")
def undisturbed(cluster):
    """How the update ends when nothing happens."""
    namespace = Namespace(cluster.kubeconfig, "undisturbed")
    namespace.make_primary(REPLICAS)
    namespace.roll(image="myimage:v2")
    yield namespace.end_state()
    namespace.delete()


class Outage:
    """Kills a component at the moment of a progress line, and restarts it after a while if the
    outage is short.
    """

    def __init__(self, cluster, component, moment, is_short=True):
        self.cluster, self.component = cluster, component
        self.moment, self.is_short = moment, is_short
        self.thread = None

    def __call__(self, line):
        if self.thread is None and self.moment in line:
            self.begin()

    def begin(self):
        self.cluster.stop(self.component, kill=True)
        self.thread = threading.Thread(target=self._end)
        self.thread.start()

    def roll(self, namespace, **params):
        """Roll foo to v2 during the outage."""
        half_way = (action_after_write(REPLICAS // 2, self.begin, is_reparenting)
                    if self.moment == HANDING_OVER else None)
        return namespace.roll(say=self, fault=half_way, image="myimage:v2", **params)

    def _end(self):
        if self.is_short:
            time.sleep(OUTAGE)
            self.cluster.start(self.component)

    def over(self):
        """The component runs again."""
        assert self.thread, f"the task never said: {self.moment}"
        self.thread.join(60)
        self.cluster.start(self.component)


@pytest.mark.sample(1)
@pytest.mark.parametrize("component, moment", [
    *(("kube-apiserver", moment) for moment in (MIDDLE, RENAMED, CLOSED, HANDING_OVER, DELETED)),
    *(("kube-controller-manager", moment)
      for moment in (MIDDLE, RENAMED, CLOSED, HANDING_OVER, HANDED_OVER, DELETED)),
    *(("etcd", moment) for moment in (MIDDLE, HANDING_OVER)),
])
def test_update_survives_a_short_outage(cluster, namespace, undisturbed, component, moment):
    """The task resumes: not one more pod is created than without the outage, and floor and ceiling
    hold.
    """
    namespace.make_primary(REPLICAS)
    outage = Outage(cluster, component, moment)

    with namespace.observer() as observer:
        try:
            result = outage.roll(namespace)
        finally:
            outage.over()

    assert result["changed"] and result["rollout"]["phase"] == "complete"
    assert len(observer.new_pods) == REPLICAS and observer.new_pods == uids(namespace.pods())
    assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
    assert "foo" not in observer.controllers_deleted and observer.restarts == 0
    assert namespace.end_state() == undisturbed
    assert not namespace.roll(image="myimage:v2")["changed"]


@pytest.mark.long
@pytest.mark.parametrize("component, moment, sentence", [
    ("kube-apiserver", MIDDLE, "cannot be reached"),
    ("kube-apiserver", HANDING_OVER, "cannot be reached"),
    ("etcd", MIDDLE, "cannot be reached"),
    ("kube-controller-manager", CLOSED, "no progress for 4 s"),
])
def test_long_outage_is_named_in_the_error(
        cluster, namespace, undisturbed, monkeypatch, component, moment, sentence):
    """The task ends with an error that reports the update's status; the same task after the outage
    ends as usual.
    """
    monkeypatch.setattr(http, "BACKOFF", (0.1, 0.3))
    monkeypatch.setattr(http, "READ_TIMEOUT", 2.0)
    namespace.make_primary(REPLICAS)
    outage = Outage(cluster, component, moment, is_short=False)

    with namespace.observer() as observer:
        try:
            with pytest.raises(RolloutError) as error:
                outage.roll(namespace, progress_deadline=4)
        finally:
            outage.over()
        assert sentence in error.value.what
        assert error.value.next_command.startswith(("run the same task again",
                                                    namespace.command(image="myimage:v2")))
        assert (error.value.progress["steps"]
                and error.value.progress["rollout"]["phase"] in ("progressing", "taking_over"))
        eventually(lambda: namespace.is_allowed(role()), "the Roles in the API server's memory")
        namespace.roll(image="myimage:v2")

    assert observer.new_pods == uids(namespace.pods()) and len(observer.new_pods) == REPLICAS
    assert observer.min_ready >= REPLICAS and observer.max_pods <= REPLICAS + 1
    assert namespace.end_state() == undisturbed

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test outages of the API server, of etcd and of the controller manager during an update."""

from __future__ import annotations

import os
import re
import threading
import time

import pytest
from namespace import Namespace
from objects import eventually, is_ready, role_rules, uids
from writes import action_after_write, is_reparenting

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import http
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

REPLICAS = 4

# Moments of the update. Each value is a part of a progress line. A closed template names a priority
# class that does not exist, so no pod is created from the template.
#: Half of the pods are new.
MIDDLE = "scale foo: 3 -> 2"
#: Foo has the new template. The template is closed.
FOO_CLOSED = "rename foo: "
#: The template of the successor is closed.
SUCCESSOR_CLOSED = "no more pods are created for it"
#: Foo owns all pods.
HANDED_OVER = "hand over foo-"
#: The successor is deleted.
DELETED = "it has no pods"
#: Half of the pods are handed over to foo. This moment has no progress line.
HANDING_OVER = "half of the pods"
#: In seconds.
SHORT_OUTAGE = 0.7

pytestmark = pytest.mark.skipif(bool(os.environ.get("KUBECONFIG")),
                                reason="NEEDS THE EMBEDDED CLUSTER: the components of another "
                                       "cluster must not be killed")


@pytest.fixture(scope="module")
def expected_state(cluster):
    namespace = Namespace(cluster.kubeconfig, "without-outage")
    namespace.make_rc(REPLICAS)
    namespace.roll(image="myimage:v2")
    yield namespace.end_state()
    namespace.delete()


class Outage:
    def __init__(self, cluster, component, moment, is_short=True):
        self.cluster, self.component = cluster, component
        self.moment, self.is_short = moment, is_short
        self.thread = None

    def __call__(self, line):
        if self.thread is None and self.moment in line:
            self.begin()

    def begin(self):
        self.cluster.stop(self.component, kill=True)
        self.thread = threading.Thread(target=self._restart)
        self.thread.start()

    def update(self, namespace, **params):
        fault = (action_after_write(REPLICAS // 2, self.begin, is_reparenting)
                 if self.moment == HANDING_OVER else None)
        return namespace.roll(on_line=self, fault=fault, image="myimage:v2", **params)

    def _restart(self):
        if self.is_short:
            time.sleep(SHORT_OUTAGE)
            self.cluster.start(self.component)

    def end(self):
        assert self.thread, f"the outage did not begin at: {self.moment}"
        self.thread.join(60)
        self.cluster.start(self.component)


def assert_no_pod_is_lost(namespace, observer, component, moment):
    """Assert that new pods replaced all old pods, within the limits of surge and availability.

    If the API server dies during the deletion of a pod, the controller manager may delete a second
    pod of foo and create a pod of the old template instead. The update deletes this pod later.
    """
    pods = uids(namespace.pods())
    assert len(pods) == REPLICAS and pods <= observer.new_pods
    surplus = [observer.pod_names_by_uid[uid] for uid in observer.new_pods - pods]
    is_deletion_repeated = component == "kube-apiserver" and moment == MIDDLE
    assert len(surplus) <= int(is_deletion_repeated), surplus
    # The name of a pod of the successor is foo-HASH-SUFFIX.
    assert all(re.fullmatch("foo-[a-z0-9]{5}", name) for name in surplus), surplus
    assert observer.min_ready >= REPLICAS - len(surplus) and observer.max_pods <= REPLICAS + 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("component, moment", [
    *(("kube-apiserver", moment)
      for moment in (MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER, DELETED)),
    *(("kube-controller-manager", moment)
      for moment in (MIDDLE, FOO_CLOSED, SUCCESSOR_CLOSED, HANDING_OVER, HANDED_OVER, DELETED)),
    *(("etcd", moment) for moment in (MIDDLE, HANDING_OVER)),
])
def test_update_completes_after_a_short_outage(
    cluster, namespace, expected_state, component, moment
):
    namespace.make_rc(REPLICAS)
    outage = Outage(cluster, component, moment)

    with namespace.observer() as observer:
        try:
            result = outage.update(namespace)
        finally:
            outage.end()

    assert result["changed"] and result["rollout"]["phase"] == "complete"
    assert_no_pod_is_lost(namespace, observer, component, moment)
    assert "foo" not in observer.controllers_deleted and observer.restarts == 0
    assert namespace.end_state() == expected_state
    assert not namespace.roll(image="myimage:v2")["changed"]


@pytest.mark.long
@pytest.mark.parametrize("component, moment, error_text", [
    ("kube-apiserver", MIDDLE, "cannot be reached"),
    ("kube-apiserver", HANDING_OVER, "cannot be reached"),
    ("etcd", MIDDLE, "cannot be reached"),
    ("kube-controller-manager", SUCCESSOR_CLOSED, "no progress for 4 s"),
])
def test_long_outage_is_reported_in_the_error_and_a_rerun_completes(
        cluster, namespace, expected_state, monkeypatch, component, moment, error_text):
    monkeypatch.setattr(http, "BACKOFF", (0.1, 0.3))
    monkeypatch.setattr(http, "READ_TIMEOUT", 2.0)
    namespace.make_rc(REPLICAS)
    outage = Outage(cluster, component, moment, is_short=False)

    with namespace.observer() as observer:
        try:
            with pytest.raises(RolloutError) as error:
                outage.update(namespace, progress_deadline=4)
        finally:
            outage.end()
        assert error_text in error.value.what
        assert error.value.next_command.startswith(
            ("run the same task again", namespace.command(image="myimage:v2", progress_deadline=4)))
        assert (error.value.progress["steps"]
                and error.value.progress["rollout"]["phase"] in ("progressing", "taking_over"))
        eventually(lambda: namespace.is_allowed(role_rules()),
                   "the Roles in the cache of the API server")
        namespace.roll(image="myimage:v2")

    assert_no_pod_is_lost(namespace, observer, component, moment)
    assert namespace.end_state() == expected_state


@pytest.mark.full
@pytest.mark.fake_nodes("nodes that the test creates")
def test_surge_of_a_daemon_set_continues_after_a_restart_of_the_controller_manager(
        cluster, namespace):
    """The restarted controller manager does not sync the DaemonSet when pods become available."""
    namespace.add_nodes(2)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}}
    namespace.make_daemon_set(2, updateStrategy=strategy, minReadySeconds=20)
    old_uids = uids(namespace.pods())

    def restart():
        eventually(lambda: len(namespace.pods()) == 4 and all(map(is_ready, namespace.pods())),
                   "the new pods")
        cluster.stop("kube-controller-manager", kill=True)
        cluster.start("kube-controller-manager")

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        result = namespace.roll(kind="DaemonSet", image="myimage:v2", progress_deadline=120)
    finally:
        thread.join(60)
        namespace.remove_nodes()

    assert [step["action"] for step in result["steps"]] == ["update", "annotate", "annotate"]
    assert result["steps"][1]["from"] == "stalled at 0 of 2 new pods"
    assert not old_uids & uids(namespace.pods())
    # The record omits the time at which the task woke the controller manager.
    assert "woken" not in namespace.daemon_set()["metadata"]["annotations"][
        object_meta.LAST_ROLLOUT]

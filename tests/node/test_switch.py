# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Switch a Service between the old and the new pods under traffic through kube-proxy."""

from __future__ import annotations

import contextlib
import time
import types

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from objects import role_rules
from rollouts import DEPLOYMENT, DRAIN, RC, START, V2, Shop
from traffic import Traffic, reasons, versions

from ansible_collections.baton.kubernetes.plugins.module_utils import task

CONTAINER = {
    "env": [{"name": "START_MS", "value": f"{START * 1000:.0f}"},
            {"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1}}
#: Requests per second on new and on persistent connections.
RATES = {"new": 60, "persistent": 60}
#: Maximum seconds from a new selector to the last new connection to a pod that it excludes.
MAX_DELAY = 2.0


def switch(shop, monkeypatch, **options):
    """Run traffic_split, and return the times of its writes of the Service (seconds since 1970)."""
    times = []
    parent = types.SimpleNamespace(
        reason_to_stop=lambda: "", print_line=lambda line: times.append(time.time())
        if " Service foo: " in line else None)
    monkeypatch.setattr(task, "ParentProcess", lambda: contextlib.nullcontext(parent))
    validation = ArgumentSpecValidator(task.TRAFFIC_OPTIONS).validate({
        "name": "foo", "kind": shop.kind.name, "service": "foo", "namespace": shop.namespace.name,
        "kubeconfig": shop.namespace.kubeconfig, **options})
    assert not validation.error_messages, validation.error_messages
    task.traffic(validation.validated_parameters)
    return times


@pytest.mark.parametrize("kind", [
    pytest.param(DEPLOYMENT, id="Deployment"),
    pytest.param(RC, id="ReplicationController", marks=pytest.mark.long)])
def test_new_connections_follow_the_selector(kind, cluster, namespace, monkeypatch):
    shop = Shop(cluster, namespace, kind, CONTAINER)
    namespace.allow(role_rules("baton-traffic-service"), "traffic-service")
    switches = []
    with Traffic(shop.open(), RATES) as traffic:
        switch(shop, monkeypatch, weight="0%")
        shop.roll(image=V2, pause_at="100%", keep_old=True)
        for weight in ("100%", "0%", "100%"):
            (switched_at,) = switch(shop, monkeypatch, weight=weight)
            switches.append((switched_at, "v2" if weight == "100%" else "v1"))
            time.sleep(MAX_DELAY + 2)
        update_start = time.time()
        shop.roll(image=V2)
        time.sleep(MAX_DELAY)
    ends = [switched_at for switched_at, _version in switches[1:]] + [update_start]
    answers_on_new_connections = [answer for answer in traffic.answers
                                  if answer.connection == "new"]
    delays = [max((answer.sent - switched_at for answer in answers_on_new_connections
                   if switched_at < answer.sent < end and answer.version not in ("", version)),
                  default=0.0)
              for (switched_at, version), end in zip(switches, ends, strict=True)]
    before_second_switch = traffic.between(switches[0][0] + MAX_DELAY, switches[1][0])
    versions_on_persistent_connections = versions(answer for answer in before_second_switch
                                                  if answer.connection == "persistent")
    print(delays, versions_on_persistent_connections, len(traffic.answers),
          reasons(traffic.answers), *traffic.failures[:10], sep="\n")
    assert traffic.failures == []
    assert versions(answer for answer in answers_on_new_connections
                    if answer.sent < switches[0][0]) == ["v1"]
    assert max(delays) < MAX_DELAY
    assert "v1" in versions_on_persistent_connections, "existing connections have left the old pods"
    last = traffic.answers[-1].sent
    assert versions(traffic.since(last - 1)) == ["v2"]

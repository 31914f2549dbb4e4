# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers whose pods are evicted by a drain, a descheduler or a vertical autoscaler."""

from __future__ import annotations

import threading
import time

import programs
import pytest
from evictions import Evictor, create_budget, drain, evict
from kinds import SCALABLE, images, make, ready
from objects import eventually
from webhooks import POD_RULE, Webhook, request_more_cpu

SIZE = 6
#: Number of pods that the update itself may make unavailable.
UNAVAILABLE = {"StatefulSet": 1, "Deployment": 1}


@pytest.fixture(autouse=True)
def _remove_nodes(namespace):
    yield
    namespace.remove_nodes()


def cpu_request(pod):
    return pod["spec"]["containers"][0].get("resources", {}).get("requests", {}).get("cpu")


@pytest.mark.parametrize("kind", SCALABLE)
def test_update_and_pause_succeed_beside_a_descheduler(namespace, kind):
    make(namespace, kind, SIZE)
    create_budget(namespace, SIZE - 1)
    lines = []

    with namespace.observer() as observer, Evictor(namespace) as evictor:
        paused = namespace.roll(kind=kind, image="myimage:v2", pause_at=3, min_ready_seconds=1,
                                on_line=lines.append)
        time.sleep(3)
        result = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1,
                                on_line=lines.append)
    rerun = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1)
    print(kind, f"evicted {len(evictor.evicted_images)}, refused {evictor.refused_count}",
          f"min_ready {observer.min_ready}, max_pods {observer.max_pods}", result["warnings"],
          *lines, sep="\n")

    assert paused["rollout"]["phase"] == "paused" and result["rollout"]["phase"] == "complete"
    assert not rerun["changed"] and images(namespace) == {"myimage:v2"}
    assert len(evictor.evicted_images) >= 3
    assert observer.min_ready >= SIZE - 1 - UNAVAILABLE.get(kind, 0)
    assert not result["warnings"]


@pytest.mark.parametrize("kind", SCALABLE)
def test_update_and_pause_succeed_beside_a_vertical_autoscaler(namespace, tmp_path, kind):
    """The autoscaler evicts pods, and its webhook sets the CPU request of new pods."""
    make(namespace, kind, SIZE)
    create_budget(namespace, SIZE - 1)

    with (Webhook(namespace, tmp_path, request_more_cpu, POD_RULE),
          namespace.observer() as observer,
          Evictor(namespace, lambda pod: cpu_request(pod) is None) as evictor):
        paused = namespace.roll(kind=kind, image="myimage:v2", pause_at=2, min_ready_seconds=1)
        eventually(lambda: {cpu_request(pod) for pod in ready(namespace)} == {"150m"},
                   "the CPU requests of all pods")
        result = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1)
    rerun = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1)

    assert paused["rollout"]["phase"] == "paused" and result["rollout"]["phase"] == "complete"
    assert not rerun["changed"] and images(namespace) == {"myimage:v2"}
    assert evictor.evicted_images and not result["warnings"]
    assert {cpu_request(pod) for pod in namespace.pods()} == {"150m"}
    assert observer.min_ready >= SIZE - 1 - UNAVAILABLE.get(kind, 0)


@pytest.mark.parametrize("kind", SCALABLE)
def test_pause_and_update_succeed_while_nodes_are_drained(namespace, kind):
    """The first of three nodes is drained during the pause, and the second during the update."""
    kubectl = programs.provide("kubectl")
    nodes = namespace.add_nodes(3)
    make(namespace, kind, SIZE, nodeSelector={"test": namespace.name},
         tolerations=[{"key": "test", "value": namespace.name, "effect": "NoSchedule"}])
    create_budget(namespace, SIZE - 1)
    outputs = []

    with namespace.observer() as observer:
        namespace.roll(kind=kind, image="myimage:v2", pause_at=3, min_ready_seconds=1)
        outputs.append(drain(kubectl, namespace.admin_kubeconfig, nodes[0]))
        eventually(lambda: len(ready(namespace)) == SIZE, "the replacement pods")
        thread = threading.Thread(target=lambda: outputs.append(
            drain(kubectl, namespace.admin_kubeconfig, nodes[1])))
        lines = []

        def on_line(line):
            lines.append(line)
            if not thread.ident:
                thread.start()
        result = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1, on_line=on_line)
        thread.join(60)
    eventually(lambda: len(ready(namespace)) == SIZE, "the replacement pods")
    rerun = namespace.roll(kind=kind, image="myimage:v2", min_ready_seconds=1)
    print(kind, f"min_ready {observer.min_ready}, max_pods {observer.max_pods}",
          result["warnings"], *lines, *outputs, sep="\n")

    assert len(outputs) == 2 and result["rollout"]["phase"] == "complete"
    assert not rerun["changed"] and images(namespace) == {"myimage:v2"}
    assert {pod["spec"]["nodeName"] for pod in namespace.pods()} == {nodes[2]}
    # A drain evicts all pods that the budget allows at once: with the additional pod of the update,
    # two, while the update may delete an old pod.
    assert observer.min_ready >= SIZE - 2


@pytest.mark.parametrize("kind", SCALABLE)
def test_eviction_during_a_soak_restarts_the_soak(namespace, kind):
    make(namespace, kind)
    lines = []

    def on_line(line):
        lines.append(line)
        if line.startswith("watching: ") and sum("watching: " in text for text in lines) == 2:
            new_pods = [pod for pod in ready(namespace)
                        if pod["spec"]["containers"][0]["image"] == "myimage:v2"]
            assert evict(namespace, new_pods[0])
    began = time.monotonic()
    result = namespace.roll(kind=kind, image="myimage:v2", soak=4, on_failure="rollback",
                            pause_at=1, on_line=on_line)
    print(kind, *lines, sep="\n")

    assert result["rollout"]["phase"] == "paused" and time.monotonic() - began > 6
    assert [line for line in lines if line.endswith("the soak starts again")]
    assert len([line for line in lines if line.startswith("watched: ")]) == 1

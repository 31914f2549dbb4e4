# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the number of the requests of an update, and the size of the responses."""

from __future__ import annotations

import dataclasses
import json

import pytest
from namespace import Namespace

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import informer, watch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed
from ansible_collections.baton.kubernetes.plugins.module_utils.run.deadlines import (
    LARGE_CONTROLLER_SIZE,
    Deadlines,
)

pytestmark = pytest.mark.fake_nodes("pods that become ready simultaneously")


@dataclasses.dataclass
class ApiTraffic:
    """Requests, responses and watch events of an update, without renewals of the Lease (PUT)."""

    steps: int = 0
    requests: int = 0
    #: Bytes of the first list of controllers.
    first_list_bytes: int = 0
    #: Bytes of all responses, without lists of pods.
    bytes: int = 0
    longest_pod_list: int = 0
    events: int = 0
    #: Bytes of the longest event, without the status.
    longest_event: int = 0

    def __str__(self) -> str:
        return (f"{self.steps} steps, {self.requests} requests, {self.bytes} bytes of responses "
                f"(first list {self.first_list_bytes}, "
                f"longest list of pods {self.longest_pod_list}), "
                f"{self.events} events of at most {self.longest_event} bytes")


def traffic_counter(traffic):
    def wrap_requests(gateway):
        urlopen, send_once = gateway.http.connection.pool.urlopen, gateway.http.send_once

        def count_watch_events(method, url, **options):
            response = urlopen(method, url, **options)
            stream = response.stream
            response.stream = lambda *args, **kwargs: count_events(traffic, stream(*args, **kwargs))
            return response

        def count_request(method, path, *arguments, **options):
            status, headers, data = send_once(method, path, *arguments, **options)
            if "/pods?" in path:
                traffic.longest_pod_list = max(traffic.longest_pod_list, len(data))
            elif method != "PUT":
                traffic.bytes += len(data)
                traffic.first_list_bytes = traffic.first_list_bytes or (
                    len(data) if "replicationcontrollers?" in path else 0)
            return status, headers, data

        gateway.http.connection.pool.urlopen = count_watch_events
        gateway.http.send_once = count_request

    return wrap_requests


def count_events(traffic, chunks):
    line = b""
    for chunk in chunks:
        for part in chunk.splitlines(keepends=True):
            line += part
            if line.endswith(b"\n"):
                traffic.events += 1
                traffic.longest_event = max(traffic.longest_event, length_without_status(line))
                line = b""
        yield chunk


def length_without_status(line):
    """Return the bytes of a watch event without its status.

    The API server omits a count of 0, and managedFields lists only the counts that are set. So the
    bytes of a status depend on the moment of the event.
    """
    event = json.loads(line)
    item = {key: value for key, value in event["object"].items() if key != "status"}
    fields = item["metadata"].get("managedFields", [])
    spec_fields = [entry for entry in fields if entry.get("subresource") != "status"]
    item["metadata"] = {**item["metadata"], "managedFields": spec_fields}
    return len(json.dumps({**event, "object": item}))


def api_traffic_of(cluster, replicas, **params):
    """Return the traffic of an update with one step up and one step down."""
    namespace = Namespace(cluster.kubeconfig, f"{replicas} replicas")
    try:
        namespace.make_rc(replicas)
        traffic = ApiTraffic()
        result = namespace.roll(fault=traffic_counter(traffic), image="myimage:v2",
                                max_surge="100%", max_unavailable="100%", **params)
        traffic.steps = len(result["steps"])
        traffic.requests = sum(result["requests"].values()) - result["requests"]["PUT"]
        print(f"{replicas} replicas: {traffic}; {dict(result['requests'])}")
        return traffic
    finally:
        namespace.delete()


@pytest.mark.parametrize(
    "few_pods, many_pods", [(10, 100), pytest.param(10, 1000, marks=pytest.mark.long)]
)
def test_number_of_requests_does_not_depend_on_the_number_of_pods(
    cluster, monkeypatch, few_pods, many_pods
):
    """Requests that depend on the time are disabled: diagnosis, image_drift, lists, new watches."""
    monkeypatch.setattr(Deadlines, "_causes", lambda *_unused: [])
    monkeypatch.setattr(informer, "MAX_SILENCE", 3600)
    monkeypatch.setattr(watch, "WATCH_SECONDS", 3600)
    small, large = (api_traffic_of(cluster, pods, next_name="bar", image_drift="ignore")
                    for pods in (few_pods, many_pods))

    assert large.steps == small.steps
    assert large.requests == pytest.approx(small.requests, rel=0.1)
    assert large.first_list_bytes == pytest.approx(small.first_list_bytes, rel=0.01)
    assert large.bytes == pytest.approx(small.bytes, rel=0.1)
    assert large.longest_event == pytest.approx(small.longest_event, rel=0.02)


@pytest.mark.parametrize(
    "few_pods, many_pods", [(10, 100), pytest.param(10, 1000, marks=pytest.mark.long)]
)
def test_handover_takes_one_request_for_each_pod(cluster, monkeypatch, few_pods, many_pods):
    """The tolerance is for lists, whose number depends on the speed of the machine."""
    monkeypatch.setattr(Deadlines, "_causes", lambda *_unused: [])
    small, large = (api_traffic_of(cluster, pods, image_drift="ignore")
                    for pods in (few_pods, many_pods))

    assert large.steps == small.steps
    assert large.requests - small.requests == pytest.approx(many_pods - few_pods, rel=0.1)
    assert (large.bytes - small.bytes) / (many_pods - few_pods) < 4000
    assert (large.longest_pod_list - small.longest_pod_list) / (many_pods - few_pods) < 3000
    assert large.longest_event == pytest.approx(small.longest_event, rel=0.02)


@pytest.mark.full
def test_many_pods_are_listed_in_full_only_after_a_failure(namespace):
    """Without image_drift=ignore, the update would read the digests in up to three full lists."""
    lists = []

    def wrap_requests(gateway):
        send_once = gateway.http.send_once

        def record_list(method, path, *arguments, **options):
            if "/pods?" in path and "limit=500" in path and "fieldSelector" not in path:
                lists.append("table" if "includeObject=None" in path else "list")
            return send_once(method, path, *arguments, **options)

        gateway.http.send_once = record_list

    namespace.make_rc(LARGE_CONTROLLER_SIZE + 1)
    namespace.roll(fault=wrap_requests, image="myimage:v2-slow", max_surge="100%",
                   image_drift="ignore")
    assert set(lists) == {"table"}

    lists.clear()
    with pytest.raises(RolloutFailed) as failed:
        namespace.roll(fault=wrap_requests, image="myimage:v3-absent", max_surge="100%",
                       failure_grace=1)
    assert lists[0] == "table" and "list" in lists
    assert "more pods)" in failed.value.why


@pytest.mark.long
@pytest.mark.parametrize("image", ["unready", "readiness", "novolume", "evicted", "crash"])
def test_causes_are_the_same_for_many_pods_and_few_pods(namespace, image):
    """For many pods, the module first reads a table, which only delays the diagnosis."""
    causes = []
    for replicas in (3, LARGE_CONTROLLER_SIZE + 1):
        namespace.make_rc(replicas, name=f"foo-{replicas}")
        with pytest.raises(RolloutFailed) as failed:
            namespace.roll(name=f"foo-{replicas}", image=f"myimage:v2-{image}", max_surge="100%",
                           progress_deadline=16)
        causes.append({cause["kind"] for cause in failed.value.as_result()["failure"]["causes"]})

    assert causes[0] == causes[1]

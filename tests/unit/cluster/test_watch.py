# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test lists and watches of controllers, and their failures."""

from __future__ import annotations

import concurrent.futures
import contextlib
import sys
import time

import pytest
from apiserver import (
    PRIMARY,
    RC_PATH,
    SCALE_TO_2,
    event,
    item,
    rc_answer,
    rc_list,
    reset,
    status,
    stream,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import (
    controllers,
    http,
    informer,
    kubernetes,
    watch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import (
    MAX_CONNECTIONS,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind


def item_named(name, version, **changes):
    return item(version, name=name, uid=f"uid of {name}", **changes)


def test_controllers_are_listed_once(gateway, api):
    assert gateway.controllers() == {"foo": PRIMARY}
    assert gateway.items() == [item()]
    assert api.sent == []


def test_older_response_is_dropped(gateway, api):
    api.answers += [rc_answer("9", replicas=5), rc_answer("10", replicas=6),
                    rc_answer("2", replicas=2)]
    for _round in range(3):
        gateway.look_up("foo")

    assert gateway.controllers()["foo"].replicas == 6


def test_missing_api_of_a_kind_is_reported(connection, api):
    api.answers.append(status(404))
    gateway = KubernetesGateway(connection, "default", (Kind.DEPLOYMENT_CONFIG,))
    with pytest.raises(RolloutError) as error:
        gateway.controllers()
    assert error.value.what == (
        "this cluster has no API apps.openshift.io/v1, so there are no DeploymentConfigs in it")
    assert error.value.next_command == "check context, kubeconfig and kind"


# The watch


def wait_until(gateway, condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        gateway.wait(0.05)


def test_watch_starts_at_the_version_of_the_list(gateway, api):
    api.watches.append(stream(event("ADDED", "11", name="bar"), event("MODIFIED", "12", replicas=5),
                              {"type": "BOOKMARK",
                               "object": {"metadata": {"resourceVersion": "20"}}},
                              event("DELETED", "21", name="bar")))
    api.watches.append(stream(event("MODIFIED", "22", replicas=6)))

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert gateway.controllers().keys() == {"foo"}
    assert [query["resourceVersion"] for query in api.watch_queries] == ["10", "21"]
    assert api.watch_queries[0]["allowWatchBookmarks"] == "1"


def test_wait_omits_a_controller_whose_change_is_already_known(gateway, api):
    api.answers.append(rc_answer("12", replicas=2))
    gateway.write(SCALE_TO_2)
    api.watches.append(stream(event("MODIFIED", "12", replicas=2),
                              event("ADDED", "13", name="bar")))

    names = set().union(*(gateway.wait(0.5) for _round in range(3)))

    # wait() also returns the name of bar's partner: "", as bar has none
    assert names == {"bar", ""}


@pytest.mark.parametrize("is_slow, later_changes, expected", [
    (True, [item_named("baz", "12")], {"bar", "baz", ""}), (True, None, None),
    (False, [item_named("baz", "12")], {"bar", ""})], ids=["slow", "slow, new list", "fast"])
def test_wait_collects_changes_on_a_slow_connection(gateway, monkeypatch, is_slow, later_changes,
                                                    expected):
    """Otherwise, there would be a step for each pod that becomes available."""
    monkeypatch.setattr(http.Http, "is_slow", is_slow)
    monkeypatch.setattr(kubernetes, "BATCH_SECONDS", 0)
    updates = [(5, [item_named("bar", "11")]), (0, later_changes)]

    def wait_for_changes(_controllers, seconds):
        timeout, changed_items = updates.pop(0)
        assert seconds == timeout
        return changed_items

    monkeypatch.setattr(controllers.Controllers, "wait_for_changes", wait_for_changes)

    assert gateway.wait(5) == expected


def test_bookmark_advances_the_version_of_the_watch(gateway, api):
    api.watches += [stream({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "20"}}}),
                    stream(event("MODIFIED", "22", replicas=6))]

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert [query["resourceVersion"] for query in api.watch_queries] == ["10", "20"]


def test_deletion_of_an_earlier_controller_with_the_same_name_is_ignored(gateway, api):
    api.watches.append(stream(event("DELETED", "11", uid="another"),
                              event("ADDED", "12", name="bar")))

    wait_until(gateway, lambda: "bar" in gateway.controllers())

    assert gateway.controllers()["foo"] == PRIMARY


def test_watch_continues_after_a_deep_object(gateway, api):
    deep = (b'{"type": "ADDED", "object": {"metadata": {"name": "bar", "resourceVersion": "11"}, '
            b'"data": ' + b"[" * 2_000 + b"]" * 2_000 + b"}}\n")
    deep_watch = watch.Watch(gateway.http, RC_PATH, {}, "10")
    api.watches.append(stream(tail=deep))

    (received_event,) = deep_watch.events(30)
    deep_watch.stop()

    assert received_event["object"]["metadata"]["name"] == "bar"


@pytest.mark.parametrize("failure", [
    stream({"type": "ERROR", "object": {"kind": "Status", "code": 410}}), status(410), status(500),
    status(403)],
    ids=["410 in an event", "410", "500", "403"])
def test_refused_watch_leads_to_a_new_list_and_watch(gateway, api, failure):
    api.watches += [failure, stream(event("MODIFIED", "31", replicas=6))]
    api.answers.append(rc_list(item("30", replicas=5), version="30"))

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert api.sent == [("GET", f"{RC_PATH}?limit=500")]
    assert api.watch_queries[-1]["resourceVersion"] == "30"


@pytest.mark.parametrize("failure",
                         [stream(tail=b'{"type": "MODI'), stream(tail=b"no JSON\n"),
                          stream(tail=b'{"no": "event"}\n'), reset],
                         ids=["cut line", "not JSON", "not an event", "reset"])
def test_interrupted_watch_resumes_at_the_same_version(gateway, api, failure):
    api.watches += [failure, stream(event("MODIFIED", "11", replicas=6))]

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert api.watch_queries[-1]["resourceVersion"] == "10"
    assert api.sent == []


def send_nothing(handler, query):
    """Send no event until the timeout of the watch."""
    stream()(handler, query)
    handler.server.closing.wait(0.2)


@pytest.mark.parametrize("response, watch_seconds, is_failure", [
    (status(500), 60, True), (reset, 60, True), (stream(), 60, True),
    (stream(event("MODIFIED", "11")), 60, False),
    (send_nothing, 0.2, False)],
    ids=["refused", "reset", "immediate end", "event before the end",
         "end at the timeout"])
def test_backoff_after_failed_watches(gateway, api, monkeypatch, response, watch_seconds,
                                      is_failure):
    failure_counts = []
    monkeypatch.setattr(watch, "backoff", lambda number: failure_counts.append(number) or 0.0)
    monkeypatch.setattr(watch, "WATCH_SECONDS", watch_seconds)
    api.watches += [response, response, stream(event("MODIFIED", "31", replicas=6))]
    api.answers += [rc_list(item("10"))] * 9

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert failure_counts[:2] == ([1, 2] if is_failure else [])


def test_refused_watches_release_the_connection(gateway, api, monkeypatch):
    monkeypatch.setattr(watch, "backoff", lambda failures: 0.0)
    api.watches += [*[status(500)] * (MAX_CONNECTIONS + 1),
                    stream(event("MODIFIED", "31", replicas=6))]
    api.answers += [rc_list(item("10"))] * (MAX_CONNECTIONS + 1)

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)


def test_permission_revoked_during_a_watch_is_an_error(gateway, api):
    api.watches.append(status(403))
    api.answers.append(status(403, "cannot list"))

    with pytest.raises(RolloutError, match="permission denied"):
        wait_until(gateway, lambda: False)


def test_wait_ends_at_the_timeout(gateway, api):
    start = time.monotonic()

    gateway.wait(0.05)

    assert 0.05 <= time.monotonic() - start < 1


def test_silent_watch_is_checked_by_a_list(gateway, api, monkeypatch):
    """A proxy may drop events."""
    monkeypatch.setattr(informer, "MAX_SILENCE", 0.05)
    api.answers.append(rc_list(item("30", replicas=5), version="30"))

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 5)

    assert api.sent == [("GET", f"{RC_PATH}?limit=500")]


def test_watch_that_missed_a_change_is_reopened_after_a_list(gateway, api, monkeypatch):
    """A list shows a change for which a half-open connection gets no event."""
    monkeypatch.setattr(informer, "MAX_SILENCE", 0.05)
    api.answers.append(rc_list(item("30", replicas=5), version="30"))
    api.watches += [lambda handler, query: handler.server.closing.wait(10),
                    stream(event("MODIFIED", "31", replicas=6))]

    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 6)

    assert api.watch_queries[0]["resourceVersion"] == "30"


def test_endless_event_is_cut(gateway, api, monkeypatch):
    monkeypatch.setattr(watch, "MAX_EVENT_BYTES", 10**5)
    sent = []

    def send_endlessly(handler, query):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while len(sent) < 10**5:
                handler.wfile.write(b"x" * 65536)
                sent.append(1)

    api.watches += [send_endlessly, stream(event("MODIFIED", "2", replicas=2))]
    wait_until(gateway, lambda: gateway.controllers()["foo"].replicas == 2)

    assert len(sent) < 10**3


# Several threads


class FakeHttp:
    """HTTP client that calls `during_list` before it returns a list."""

    def __init__(self, *items, version="10"):
        self.items, self.version, self.during_list = list(items), version, lambda: None

    def list_all(self, path, query):
        self.during_list()
        return list(self.items), self.version


class SilentWatch:
    def stop(self):
        pass

    def restart(self, version):
        pass

    def events(self, seconds):
        return iter(())


@pytest.fixture
def listed_controllers(monkeypatch):
    """Return (cache, server). Each wait_for_changes() of the cache lists the controllers again."""
    monkeypatch.setattr(informer, "MAX_SILENCE", -1)
    monkeypatch.setattr(informer, "MAX_RELIST_SHARE", float("inf"))  # also after a slow list
    monkeypatch.setattr(informer.Informer, "_open_watch", lambda _informer, version: SilentWatch())
    server = FakeHttp(item("5"))
    cache = controllers.Controllers(server, Kind.REPLICATION_CONTROLLER, "default")
    cache.fill()
    return cache, server


def test_responses_during_a_list_are_newer_than_the_list(listed_controllers):
    cache, server = listed_controllers

    def during_list():
        cache.put(item("20", replicas=7))
        cache.put(item_named("bar", "21"))

    server.during_list = during_list
    assert cache.wait_for_changes(0) == []

    assert cache.controllers()["foo"].replicas == 7 and set(cache.controllers()) == {"foo", "bar"}


def test_object_deleted_during_a_list_stays_deleted(listed_controllers):
    cache, server = listed_controllers
    server.items.append(item_named("bar", "9"))
    server.during_list = lambda: cache.delete("bar", "uid of bar")

    cache.wait_for_changes(0)
    cache.put(item_named("bar", "8"))

    assert set(cache.controllers()) == {"foo"}


def test_returned_mapping_of_controllers_does_not_change(listed_controllers):
    cache, server = listed_controllers
    server.items = [item("5"), item_named("baz", "6")]
    cache.wait_for_changes(0)
    before = cache.controllers()

    cache.put(item("20", replicas=7))
    after = cache.controllers()
    cache.delete("baz", "uid of baz")

    assert after["foo"].replicas == 7 and set(after) == {"foo", "baz"}
    assert set(cache.controllers()) == {"foo"} and before["foo"].replicas == 3


def test_list_removes_only_older_objects(listed_controllers):
    cache, _server = listed_controllers
    cache.put(item_named("bar", "9"))
    cache.put(item_named("baz", "11"))

    assert cache.wait_for_changes(0) is None

    assert set(cache.controllers()) == {"foo", "baz"}


def test_object_recreated_during_a_lookup_stays(listed_controllers):
    cache, server = listed_controllers

    def get(*_arguments):
        cache.put(item("30", uid="another"))

    server.get = get
    assert cache.look_up("foo")["metadata"]["uid"] == "another"


def test_concurrent_responses_do_not_disturb_a_list(listed_controllers):
    cache, server = listed_controllers
    server.items = [item_named(f"foo-{number}", "9") for number in range(300)]
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(3) as executor:
            futures = [executor.submit(
                lambda first: [cache.put(item_named(f"bar-{first + 3 * number}", str(20 + number)))
                               for number in range(400)], first) for first in range(3)]
            while not all(future.done() for future in futures):
                cache.wait_for_changes(0)
            for future in futures:
                future.result()
    finally:
        sys.setswitchinterval(switch_interval)

    assert len(cache.controllers()) == 1500

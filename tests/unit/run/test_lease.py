# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the Lease, which allows one task per controller."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import random
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from killed import Killed

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import (
    is_name,
    lease_name,
    shared_lease_name,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import lease
from ansible_collections.baton.kubernetes.plugins.module_utils.run import (
    process as process_module,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.lease import (
    LEASE_DURATION,
    TaskLeases,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import (
    ACTIVE_TASKS,
    Process,
    start_time,
)

NAME = "baton-kubernetes.replicationcontroller.foo"
#: Earlier versions use this name.
NAME_WITHOUT_KIND = "baton-kubernetes-foo"


class Server:
    def __init__(self):
        self.leases, self.now, self.version, self.writes = {}, 1_000_000.0, 0, collections.Counter()
        #: Background requests on a slow connection; None on a fast connection.
        self.background_requests = None
        #: Whether a connection is free for background requests.
        self.has_free_connection = True

    def lease(self, name):
        return self.leases.get(name)

    def put_lease(self, item):
        current, version = self.leases.get(item["metadata"]["name"]), item["metadata"].get(
            "resourceVersion")
        if (current or {"metadata": {}})["metadata"].get("resourceVersion") != version:
            return None
        self.version += 1
        self.writes[item["metadata"]["name"]] += 1
        stored_lease = {**item,
                        "metadata": {**item["metadata"], "uid": "1",
                                     "resourceVersion": str(self.version)}}
        self.leases[item["metadata"]["name"]] = stored_lease
        return stored_lease

    def delete_lease(self, item):
        is_current = self.leases.get(item["metadata"]["name"]) == item
        if is_current:
            del self.leases[item["metadata"]["name"]]
        return is_current

    def server_time(self):
        return self.now

    def start_in_background(self, work):
        if self.background_requests is None:
            return None
        request = BackgroundRequest(work, self.has_free_connection)
        self.background_requests.append(request)
        return request


class BackgroundRequest(concurrent.futures.Future):
    """Request that is answered by answer(), or when the task waits for the result."""

    def __init__(self, work, is_sent=True):
        super().__init__()
        self.work = work
        if is_sent:
            self.set_running_or_notify_cancel()

    def answer(self):
        if not self.done():
            try:
                self.set_result(self.work())
            except RolloutError as error:
                self.set_exception(error)

    def result(self, timeout=None):
        self.answer()
        return super().result(timeout)


class Client:
    """Task with a Lease. Its sleeps advance the server's clock, and call on_sleep()."""

    def __init__(self, server, machine="", lock_timeout=0, on_sleep=lambda: None,
                 kind=Kind.REPLICATION_CONTROLLER,
                 process=None, renew_interval=lease.RENEW_INTERVAL, **options):
        self.server, self.on_sleep, self.lines = server, on_sleep, []
        self.slept_seconds, self.clock = 0.0, 0.0
        self.reason_to_stop = ""
        request = Request("foo", "shop", kind=kind, images={"": "myimage:v2"},
                          lock_timeout=lock_timeout, **options)
        process = process or Process.of_new_task(str(kind))._replace(machine=machine)
        self.leases = TaskLeases(server, request, lambda: self.clock, self.sleep,
                                 lambda: self.reason_to_stop, self.lines.append, renew_interval,
                                 process)

    def sleep(self, seconds):
        assert self.slept_seconds < 120, "the task has waited for 120 s"
        self.slept_seconds += seconds
        self.clock += seconds
        self.server.now += seconds
        self.on_sleep()

    def advance(self, seconds):
        self.clock += seconds
        self.server.now += seconds

    def pass_time_and_renew(self):
        """Advance only this client's clock by RETRY_PERIOD, and renew the Lease if due."""
        self.clock += lease.RETRY_PERIOD
        self.leases.renew()


@pytest.fixture
def server():
    return Server()


def test_lease_is_created_and_deleted(server):
    client = Client(server)

    client.leases.acquire()
    stored_lease = server.leases[NAME]
    client.leases.release()

    assert (stored_lease["spec"]["leaseDurationSeconds"] == LEASE_DURATION
            and ", process " in stored_lease["spec"]["holderIdentity"])
    assert (stored_lease["spec"]["renewTime"] == stored_lease["spec"]["acquireTime"]
            == "1970-01-12T13:46:40.000000Z")
    assert server.leases == {} and client.lines == []


def test_live_holder_on_another_machine_is_detected_by_a_renewal(server):
    first = Client(server)
    first.leases.acquire()
    second = Client(server, on_sleep=first.pass_time_and_renew)

    with pytest.raises(RolloutError) as error:
        second.leases.acquire()

    holder = server.leases[NAME]["spec"]["holderIdentity"]
    assert error.value.what == (
        f"another task is already working on it: {holder}, since 1970-01-12T13:46:40.000000Z")
    assert ("lock_timeout" in error.value.next_command
            and error.value.where == "ReplicationController shop/foo")
    assert (second.slept_seconds <= lease.RENEW_INTERVAL + lease.RETRY_PERIOD
            and second.lines == [f"waiting for the task of {holder} to end"])


def test_lease_of_a_killed_holder_expires(server):
    Client(server).leases.acquire()
    server.now += 4
    second = Client(server)

    second.leases.acquire()

    assert LEASE_DURATION <= second.slept_seconds <= LEASE_DURATION + 2 * lease.RETRY_PERIOD
    assert server.leases[NAME]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("minutes", [-7, 7])
def test_clock_skew_does_not_expire_a_lease(server, minutes):
    """The holder writes its local time, because a proxy hides the server's time."""
    server_time = server.server_time

    def wrong_time():
        return server.now + 60 * minutes

    def renew_with_wrong_time():
        server.server_time = wrong_time
        first.pass_time_and_renew()
        server.server_time = server_time

    server.server_time = wrong_time
    first = Client(server)
    first.leases.acquire()
    server.server_time = server_time

    with pytest.raises(RolloutError, match="another task is already working on it"):
        Client(server, on_sleep=renew_with_wrong_time).leases.acquire()

    second = Client(server)
    second.leases.acquire()
    assert second.slept_seconds <= LEASE_DURATION + 2 * lease.RETRY_PERIOD


@pytest.mark.parametrize("seconds", [-3600, -12, 12, 3600])
def test_clock_skew_does_not_expire_a_lease_of_a_fleet(server, seconds):
    """A task for a fleet renews its Lease only every 7 s."""
    class ClientWithOtherClock(Client):
        def pass_time_and_renew(self):
            server_time = server.server_time
            server.server_time = lambda: server.now + seconds
            super().pass_time_and_renew()
            server.server_time = server_time

    first = ClientWithOtherClock(server, renew_interval=7.0)
    server.server_time = lambda: server.now + seconds
    first.leases.acquire()
    del server.server_time
    second = Client(server, on_sleep=first.pass_time_and_renew)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.leases.acquire()

    assert 6 <= second.slept_seconds <= 8 and not first.leases.is_lost


def test_task_is_refused_at_once_if_the_holder_lives_on_this_machine(server, monkeypatch):
    first = Client(server, machine="here")
    first.leases.acquire()
    monkeypatch.setattr(Process, "has_ended", lambda process: False)
    second = Client(server, machine="here")

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.leases.acquire()

    assert second.slept_seconds == 0


def test_lease_of_a_killed_holder_on_this_machine_is_acquired_at_once(server):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = Process.of_new_task("ReplicationController")
        child = child._replace(machine="here", pid=str(process.pid),
                               start=start_time(str(process.pid)))
        Client(server, process=child).leases.acquire()
        with pytest.raises(RolloutError, match="another task is already working on it"):
            Client(server, machine="here").leases.acquire()
        process.kill()
        process.wait()

    second = Client(server, machine="here")
    second.leases.acquire()

    assert second.slept_seconds == 0


def test_reused_pid_is_another_process():
    own_process = Process.of_new_task()

    assert Process.from_text(str(own_process)) == own_process
    assert own_process.pid in str(own_process)
    assert own_process._replace(pid="1", start="another time").has_ended()
    assert not own_process._replace(pid="1", start=start_time("1")).has_ended()


@pytest.mark.parametrize("exception, has_ended",
                         [(None, False), (PermissionError, False), (ProcessLookupError, True)])
def test_hidden_process_is_checked_by_kill(monkeypatch, exception, has_ended):
    """/proc hides other users' processes if mounted with hidepid."""
    signals = []

    def kill(pid, number):
        signals.append((pid, number))
        if exception:
            raise exception

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(process_module, "start_time", lambda pid: None)

    assert Process.of_new_task()._replace(pid="7").has_ended() is has_ended
    assert signals == [(7, 0)]


@pytest.mark.parametrize("text",
                         ["", "m/1/2", "m/../2/t", "m/-1/2/t", "m/0/2/t", "m/\u0661/2/t",
                          f"m/{'9' * 5000}/2/t",
                          "m" * 10**6 + "/1/2/t"])
def test_invalid_holder_annotation_is_ignored(text):
    assert Process.from_text(text) is None


# Leases written by another client


def holder_that_runs_on_this_machine():
    """Return a holder annotation that any reader of a Lease can forge."""
    init = Process.of_new_task()._replace(machine="here", pid="1", start=start_time("1"),
                                          task_id="x")
    return str(init)


FORGED_SPECS = {
    "long duration": {"leaseDurationSeconds": 2**31 - 1},
    "no duration": {"leaseDurationSeconds": None},
    "duration as text": {"leaseDurationSeconds": "9" * 5000},
    "renewTime in the future": {"renewTime": "9999-12-31T23:59:59.999999Z"},
    "invalid renewTime": {"renewTime": {"a": []}},
    "renewTime in the past": {"renewTime": "0001-01-01T00:00:00.000000Z"},
    "maximum leaseTransitions": {"leaseTransitions": 2**31 - 1},
    "negative leaseTransitions": {"leaseTransitions": -1},
    "leaseTransitions as text": {"leaseTransitions": "x"},
    "list as holderIdentity": {"holderIdentity": ["x"]},
    "lists as times": {"acquireTime": [], "renewTime": []},
}


@pytest.mark.parametrize("holder",
                         [lambda: None, holder_that_runs_on_this_machine, lambda: ["x"],
                          lambda: "[" * 10**5],
                         ids=["no holder", "process 1 of this machine", "list", "invalid text"])
@pytest.mark.parametrize("forged", [{}, *FORGED_SPECS.values()], ids=["unchanged", *FORGED_SPECS])
def test_forged_lease_expires_after_lease_duration(server, forged, holder):
    Client(server).leases.acquire()
    server.leases[NAME]["spec"] |= {"holderIdentity": "jane", **forged}
    server.leases[NAME]["metadata"]["annotations"] = {object_meta.HOLDER: holder()}
    server.now += 1 + LEASE_DURATION

    client = Client(server, machine="here")
    client.leases.acquire()

    assert client.slept_seconds <= LEASE_DURATION + 2 * lease.RETRY_PERIOD
    assert 0 <= server.leases[NAME]["spec"]["leaseTransitions"] < 2**31


@pytest.mark.parametrize("malformed_lease",
                         [{}, {"metadata": None, "spec": None}, {"metadata": [], "spec": "x"},
                          {"metadata": {"annotations": "x"}, "spec": {"holderIdentity": 7}}])
def test_malformed_lease_is_acquired(server, malformed_lease):
    client = Client(server)
    # A read creates the Lease, but returns the malformed one.
    server.put_lease = lambda item, put=server.put_lease: put(item) if server.leases else None
    server.lease = lambda name: server.leases.setdefault(
        NAME, {"metadata": {"resourceVersion": ""}}) and malformed_lease

    client.leases.acquire()

    assert client.slept_seconds == 0


def test_task_waits_for_the_holder_within_lock_timeout(server):
    first = Client(server)
    first.leases.acquire()

    def renew_then_release():
        if second.slept_seconds < 40:
            first.pass_time_and_renew()
        elif second.slept_seconds == 40:
            first.leases.release()

    second = Client(server, lock_timeout=60, on_sleep=renew_then_release)
    second.leases.acquire()

    assert 40 <= second.slept_seconds <= 41


def test_lock_timeout_ends_the_wait(server):
    first = Client(server)
    first.leases.acquire()
    second = Client(server, lock_timeout=30, on_sleep=first.pass_time_and_renew)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.leases.acquire()

    assert 30 <= second.slept_seconds <= 31


def test_error_if_the_lease_is_never_acquired(server):
    server.put_lease = lambda item: None

    with pytest.raises(RolloutError,
                       match=r"could not acquire the Lease .*: other tasks kept acquiring it "
                             r"first"):
        Client(server).leases.acquire()


def test_lock_timeout_covers_conflicts_with_other_tasks(server):
    server.put_lease = lambda item: None
    client = Client(server, lock_timeout=20)

    with pytest.raises(RolloutError, match=r"could not acquire the Lease"):
        client.leases.acquire()

    assert client.slept_seconds > 20 + 2 * lease.LEASE_DURATION - lease.RETRY_PERIOD


def test_zombie_process_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.01)

        assert start_time(str(process.pid)) == ""


@pytest.mark.parametrize("state, expected", [("R", "19"), ("S", "19"), ("Z", ""), ("X", "")])
def test_start_time_of_a_process(monkeypatch, state, expected):
    """The start time is field 22 of /proc/PID/stat. A zombie or a dead process has none."""
    fields = " ".join([state, *map(str, range(1, 50))])
    monkeypatch.setattr(Path, "read_text", lambda *_args: f"7 (a b) c) {fields}\n")

    assert start_time("7") == expected


def test_signal_ends_the_wait(server):
    Client(server).leases.acquire()
    second = Client(server, on_sleep=lambda: setattr(second, "reason_to_stop", "SIGTERM"))

    with pytest.raises(RolloutError, match=r"stopped \(SIGTERM\) before anything was changed"):
        second.leases.acquire()


def test_lease_is_renewed_at_the_interval(server):
    client = Client(server)
    client.leases.acquire()
    for _turn in range(40):
        client.advance(0.1)
        client.leases.renew()

    assert server.writes[NAME] in (2, 3) and server.writes[NAME_WITHOUT_KIND] == 1
    assert server.leases[NAME]["spec"]["acquireTime"] < server.leases[NAME]["spec"]["renewTime"]


def test_age_of_a_lease_counts_from_the_request(server):
    """The task sets renewTime to the time of the request, even if the response arrives late."""
    client = Client(server)
    put_lease, names = server.put_lease, []

    def put_slowly(item):
        names.append(item["metadata"]["name"])
        client.advance(lease.SHARED_RENEW_INTERVAL if names[-1] == NAME_WITHOUT_KIND else 0)
        return put_lease(item)

    server.put_lease = put_slowly
    client.leases.acquire()
    client.leases.renew()

    assert names == [NAME, NAME_WITHOUT_KIND, NAME, NAME_WITHOUT_KIND]


def test_lost_lease_stops_the_task(server):
    first, second = Client(server), Client(server)
    first.leases.acquire()
    first.advance(LEASE_DURATION + 1)
    second.leases.acquire()

    with pytest.raises(RolloutError) as error:
        first.leases.renew()
    first.leases.release()

    assert "took over" in error.value.what and server.leases[NAME]["metadata"]["annotations"]
    second.advance(lease.RENEW_INTERVAL)
    second.leases.renew()


def test_deleted_or_edited_lease_is_acquired_again(server):
    client = Client(server)
    client.leases.acquire()
    for interfere in (server.leases.clear,
                      lambda: server.leases[NAME]["metadata"].update(
                          resourceVersion="7", labels={"a": "b"})):
        interfere()
        client.advance(lease.RENEW_INTERVAL)
        client.leases.renew()
        assert server.leases[NAME]["metadata"]["annotations"] == {
            object_meta.HOLDER: str(client.leases.process)}


@pytest.fixture
def slow_client(server):
    """Return a client on a slow connection whose Lease is due for renewal."""
    client = Client(server)
    client.leases.acquire()
    server.background_requests = []
    client.advance(lease.RENEW_INTERVAL)
    return client


def test_timely_renewal_runs_in_the_background(server, slow_client):
    for _turn in range(3):
        slow_client.leases.renew()
        slow_client.advance(1)
    assert len(server.background_requests) == 1 and server.writes[NAME] == 1

    server.background_requests[0].answer()
    slow_client.leases.renew()
    slow_client.advance(lease.RENEW_INTERVAL)
    slow_client.leases.renew()

    assert len(server.background_requests) == 3 and server.writes[NAME] == 2


def test_both_leases_are_written_concurrently_on_a_slow_connection(server):
    server.background_requests = []
    client = Client(server)
    client.leases.acquire()
    assert len(server.background_requests) == 1 and server.writes == {NAME: 1, NAME_WITHOUT_KIND: 1}

    client.leases.release()
    assert len(server.background_requests) == 3 and server.leases == {}


def test_refused_task_releases_its_other_lease(server, monkeypatch):
    monkeypatch.setattr(concurrent.futures, "wait",
                        lambda requests: [request.answer() for request in requests])
    first = Client(server)
    first.leases.acquire()
    del server.leases[NAME_WITHOUT_KIND]
    server.background_requests = []
    second = Client(server, on_sleep=first.pass_time_and_renew)
    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.leases.acquire()

    second.leases.release()

    assert str(second.leases.process) not in str(server.leases)


def test_late_renewal_blocks_the_task(server, slow_client):
    slow_client.leases.renew()
    slow_client.advance(lease.RENEW_DEADLINE - lease.RENEW_INTERVAL)
    assert server.writes[NAME] == 1

    slow_client.leases.renew()

    assert server.writes[NAME] == 2


def test_renewal_older_than_the_lease_duration_is_ignored(server, slow_client):
    """Another client may hold the Lease after a suspension of this machine."""
    slow_client.leases.renew()
    server.background_requests[0].answer()
    slow_client.advance(LEASE_DURATION + 1)
    second = Client(server)
    second.leases.acquire()

    with pytest.raises(RolloutError, match="took over"):
        slow_client.leases.renew()


def test_late_queued_renewal_is_sent_directly(server, slow_client):
    server.has_free_connection = False
    slow_client.leases.renew()
    slow_client.advance(lease.RENEW_DEADLINE - lease.RENEW_INTERVAL)

    slow_client.leases.renew()

    assert server.writes[NAME] == 2 and server.background_requests[0].cancelled()


def test_release_cancels_a_queued_renewal(server, slow_client):
    server.has_free_connection = False
    slow_client.leases.renew()

    slow_client.leases.release()

    assert server.leases == {} and server.background_requests[0].cancelled()


def test_background_renewal_with_another_holder_stops_the_task(server, slow_client):
    slow_client.leases.renew()
    slow_client.advance(LEASE_DURATION + 1)
    second = Client(server)
    second.leases.acquire()
    server.background_requests[0].answer()

    with pytest.raises(RolloutError, match="took over"):
        slow_client.leases.renew()

    assert slow_client.leases.is_lost


def test_failed_background_renewal_is_reported_by_the_next_renewal(
        server, slow_client, monkeypatch):
    def fail(_lease):
        raise RolloutError("the API server cannot be reached")

    monkeypatch.setattr(server, "put_lease", fail)
    slow_client.leases.renew()
    server.background_requests[0].answer()

    with pytest.raises(RolloutError, match="cannot be reached"):
        slow_client.leases.renew()


def test_release_waits_for_a_renewal_in_flight(server, slow_client, monkeypatch):
    monkeypatch.setattr(concurrent.futures, "wait",
                        lambda requests: [request.answer() for request in requests])
    slow_client.leases.renew()

    slow_client.leases.release()

    assert server.leases == {}


def test_names_of_leases_are_valid_and_unique():
    longest, sibling = "a" * 253, "a" * 252 + "b"
    names = [name for controller in (longest, sibling, "foo", "deployment.foo", "deployment-foo")
             for name in (shared_lease_name(controller),
                          *(lease_name(kind, controller) for kind in Kind))]

    assert len(set(names)) == len(names) and all(map(is_name, names))


# Controllers of two kinds with one name, and an earlier version, whose Lease names no kind


class EarlierVersion(Client):
    def __init__(self, server, **options):
        super().__init__(server, **options)
        task = self.leases._leases[0]._task._replace(
            process=self.leases.process._replace(task_id=self.leases.process.task_id[:8]))
        self.leases._leases = [lease._ExclusiveLease(task, NAME_WITHOUT_KIND, lease.RENEW_INTERVAL)]


@pytest.mark.parametrize("machine", ["", "here"])
def test_two_kinds_with_one_name_have_separate_leases(server, machine):
    kinds = (Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT)
    clients = [Client(server, machine, kind=kind, renew_interval=7.0) for kind in kinds]
    for client in clients:
        client.leases.acquire()
    for _second in range(2 * LEASE_DURATION):
        server.now += 1
        for client in clients:
            client.clock += 1
            client.leases.renew()

    assert [client.slept_seconds for client in clients] == [0, 0]
    for kind in kinds:
        with pytest.raises(RolloutError, match="another task is already working on it"):
            Client(server, machine, kind=kind,
                   on_sleep=lambda: [client.pass_time_and_renew()
                                     for client in clients]).leases.acquire()
    for client in clients:
        client.leases.renew()
        client.leases.release()
    assert server.leases == {}


@pytest.mark.parametrize("holder_class, waiter_class",
                         [(EarlierVersion, Client), (Client, EarlierVersion)])
@pytest.mark.parametrize("machine", ["", "here"])
@pytest.mark.parametrize("kind", [Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT])
def test_earlier_version_and_this_version_exclude_each_other(
        server, holder_class, waiter_class, machine, kind, monkeypatch):
    # an earlier version runs in another process
    monkeypatch.setattr(Process, "has_ended", lambda process: False)
    holder = holder_class(server, machine=machine, kind=kind)
    holder.leases.acquire()
    waiter = waiter_class(server, machine=machine, on_sleep=holder.pass_time_and_renew)
    with pytest.raises(RolloutError, match="another task is already working on it"):
        waiter.leases.acquire()
    waiter.leases.release()
    holder.leases.renew()
    holder.leases.release()

    assert server.leases == {}
    waiter_class(server, machine=machine).leases.acquire()


def test_shared_lease_stays_until_the_last_release(server):
    first, second = Client(server), Client(server, kind=Kind.DEPLOYMENT)
    first.leases.acquire()
    second.leases.acquire()
    first.leases.release()

    with pytest.raises(RolloutError, match="another task is already working on it"):
        EarlierVersion(server, on_sleep=second.pass_time_and_renew).leases.acquire()

    second.leases.release()
    assert server.leases == {}


def test_lease_is_renewed_during_the_wait_for_an_earlier_version(server):
    earlier = EarlierVersion(server)
    earlier.leases.acquire()

    def renew_then_release():
        earlier.pass_time_and_renew() if client.slept_seconds < 40 else earlier.leases.release()

    client = Client(server, lock_timeout=60, on_sleep=renew_then_release)
    client.leases.acquire()

    assert 40 <= client.slept_seconds <= 41 and server.writes[NAME] > 40 / lease.RENEW_INTERVAL / 2


@pytest.mark.parametrize("module", Module)
@pytest.mark.parametrize("state", [None, State.ROLLED_BACK])
def test_only_a_migration_holds_the_lease_of_the_deployment(server, module, state):
    migrates = module is Module.MIGRATION
    first = Client(server, module=module, state=state or module.default_state)
    first.leases.acquire()
    second = Client(server, kind=Kind.DEPLOYMENT, on_sleep=first.pass_time_and_renew)

    if migrates:
        with pytest.raises(RolloutError, match="another task is already working on it"):
            second.leases.acquire()
    else:
        second.leases.acquire()
    second.leases.release()
    first.leases.release()
    assert server.leases == {}


def test_lease_of_an_ended_task_of_this_process_is_acquired_at_once(server):
    """The process knows that its task has ended, even if the release failed."""
    first = Client(server, machine="here")
    first.leases.acquire()
    first.leases.mark_task_as_ended()

    second = Client(server, machine="here")
    second.leases.acquire()

    assert second.slept_seconds == 0


def test_lease_written_by_another_client_is_reported(server):
    client = Client(server)
    client.leases.acquire()
    client.advance(3)
    server.leases[NAME] = {"metadata": {"name": NAME, "resourceVersion": "99"},
                           "spec": {"holderIdentity": "jane"}}

    with pytest.raises(RolloutError) as error:
        client.leases.renew()

    assert error.value.what == (
        f"stopped: jane has written the Lease {NAME}, which this task renewed 3 s ago")
    assert client.leases.is_lost


#: Process 1 is running. The start time of ENDED is that of an earlier process with this pid.
ENDED, RUNNING = {"pid": "1", "start": "0"}, {"pid": "1", "start": start_time("1")}
#: Holders of a Lease, and when the task acquires it ("later": after LEASE_DURATION).
HOLDERS = {
    "no holder": (None, "at once"),
    "ended process on this machine": (dict(machine="here", **ENDED), "at once"),
    "running process on this machine without renewals": (dict(machine="here", **RUNNING), "never"),
    "running process on this machine": (dict(machine="here", renews=True, **RUNNING), "never"),
    "process on another machine without renewals": (dict(machine="there", **ENDED), "later"),
    "process on another machine": (dict(machine="there", renews=True, **ENDED), "never"),
    "ended task of this process": (dict(machine="here"), "at once"),
    "running task of this process without renewals": (dict(machine="here", is_active=True),
                                                      "never"),
    "running task of this process": (dict(machine="here", is_active=True, renews=True), "never"),
}
#: Kinds in the holder annotation of the shared Lease. An earlier version names no kind.
SHARED_HOLDERS = {"an earlier version": [""], "another kind": ["Deployment"],
                  "two other kinds": ["Deployment", "DaemonSet"]}


@pytest.mark.parametrize("has_kind", [True, False], ids=["Lease of the kind", "Lease without kind"])
@pytest.mark.parametrize("holder_name", HOLDERS)
@pytest.mark.parametrize("shared_holder", SHARED_HOLDERS)
def test_acquisition_for_each_holder(server, has_kind, holder_name, shared_holder):
    holder, expected = HOLDERS[holder_name]
    name = NAME if has_kind else NAME_WITHOUT_KIND
    kinds = ["ReplicationController"] if has_kind else SHARED_HOLDERS[shared_holder]
    if holder is not None:
        fields = {key: value for key, value in holder.items() if key in ("machine", "pid", "start")}
        processes = [Process.of_new_task(kind)._replace(**fields) for kind in kinds]
        ACTIVE_TASKS.update(process.task_id for process in processes if holder.get("is_active"))
        server.put_lease({"metadata": {"name": name,
                                       "annotations": {object_meta.HOLDER: " ".join(
                                           map(str, processes))}},
                          "spec": {"holderIdentity": "jane",
                                   "renewTime": "1970-01-12T13:46:40.000000Z"}})
    if not has_kind and shared_holder != "an earlier version":
        expected = "at once"

    def renew_as_holder():
        if holder and holder.get("renews") and client.slept_seconds % 2 == 0:
            server.put_lease({**server.leases[name],
                              "spec": {**server.leases[name]["spec"],
                                       "renewTime": f"{client.slept_seconds}"}})

    client = Client(server, machine="here", on_sleep=renew_as_holder)
    if expected == "never":
        with pytest.raises(RolloutError, match="another task is already working on it: jane"):
            client.leases.acquire()
    else:
        client.leases.acquire()
        assert {"at once": client.slept_seconds == 0,
                "later": LEASE_DURATION < client.slept_seconds < LEASE_DURATION + 2}[expected]
    client.leases.release()

    if expected == "never" or (not has_kind and shared_holder != "an earlier version"
                               and holder_name not in (
            "no holder", "ended process on this machine", "ended task of this process")):
        assert set(server.leases) == {name} and str(client.leases.process) not in str(server.leases)
    else:
        assert server.leases == {}


class Scheduler:
    """Scheduler that runs one thread at a time, chosen at random.

    It switches at each request and wait. Time passes only while all threads wait.
    """

    def __init__(self, rng):
        self.rng, self.now, self.workers = rng, 0.0, []
        self.current, self.overlaps = None, []

    def add(self, work):
        # The thread of a worker runs from a release of `go` to a release of `back`.
        worker = types.SimpleNamespace(go=threading.Semaphore(0), back=threading.Semaphore(0),
                                       wakes_at=0.0, is_over=False)

        def run():
            worker.go.acquire()
            with contextlib.suppress(Killed):
                work()
            worker.is_over = True
            worker.back.release()

        worker.thread = threading.Thread(target=run)
        self.workers.append(worker)
        worker.thread.start()

    def wait(self, seconds):
        worker = self.current
        worker.wakes_at = self.now + seconds
        worker.back.release()
        worker.go.acquire()

    def run(self):
        while workers := [worker for worker in self.workers if not worker.is_over]:
            self.now = max(self.now, min(worker.wakes_at for worker in workers))
            self.current = self.rng.choice(
                [worker for worker in workers if worker.wakes_at <= self.now])
            self.current.go.release()
            assert self.current.back.acquire(timeout=10)


class RandomTask:
    """Task that holds the Lease for some steps. It may be killed at a request, or suspended."""

    def __init__(self, scheduler, server):
        rng, self.scheduler = scheduler.rng, scheduler
        self.client_class = rng.choice((Client, Client, EarlierVersion))
        self.kind = rng.choice((Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT))
        client = self.client_class(server, kind=self.kind)
        self.leases, self.renewal_count, self.error, self.is_holding = client.leases, 0, None, False
        gateway = types.SimpleNamespace(lease=self.with_delays(server.lease),
                                        put_lease=self.with_delays(server.put_lease),
                                        delete_lease=self.with_delays(server.delete_lease),
                                        server_time=lambda: scheduler.now,
                                        start_in_background=lambda work: None)
        for single_lease in self.leases._leases:
            single_lease._task = single_lease._task._replace(
                gateway=gateway, elapsed=lambda: scheduler.now, sleep=scheduler.wait)
            single_lease._gateway, single_lease._elapsed = gateway, single_lease._task.elapsed
            single_lease._request = dataclasses.replace(single_lease._request,
                                                        lock_timeout=rng.choice((0, 0, 60)))
        self.steps, self.request_count, self.dies_at_request = rng.randrange(1, 8), 0, rng.choice(
            (None, rng.randrange(1, 15)))

    def with_delays(self, send):
        def send_with_delays(item):
            self.request_count += 1
            self.scheduler.wait(self.scheduler.rng.choice((0, 0, 0.1, 2)))
            answer = send(item)
            self.scheduler.wait(self.scheduler.rng.choice((0, 0, 0.1)))
            if self.request_count == self.dies_at_request:
                self.is_holding = False
                raise Killed
            return answer
        return send_with_delays

    def run(self, tasks):
        try:
            self.leases.acquire()
            self.is_holding = True
            for _step in range(self.steps):
                self.leases.renew()
                self.renewal_count += 1
                assert not [rival for rival in tasks
                            if rival is not self and self.excludes(rival) and rival.may_work()]
                self.scheduler.wait(self.scheduler.rng.choice((0, 1, 3, 3, 2 * LEASE_DURATION)))
        except RolloutError as error:
            self.error = error
        except AssertionError as overlap:
            self.scheduler.overlaps.append(overlap)
        self.is_holding = False
        self.leases.release()

    def excludes(self, rival):
        return self.kind is rival.kind or EarlierVersion in (self.client_class, rival.client_class)

    def may_work(self):
        """Return whether the task may write without a renewal of the Lease."""
        return (self.is_holding
                and all(self.scheduler.now - single_lease._renewed_at < lease.RENEW_DEADLINE
                        for single_lease in self.leases._leases))


@pytest.mark.sample(3)
@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 500, 50)],
                         ids=str)
def test_random_interleavings_never_let_two_tasks_work_at_once(seeds):
    seeds_by_holder_count = collections.Counter()
    for seed in seeds:
        scheduler, server = Scheduler(random.Random(seed)), Server()
        tasks = [RandomTask(scheduler, server) for _task in range(4)]
        for task in tasks:
            scheduler.add(functools.partial(task.run, tasks))
        scheduler.run()

        assert scheduler.overlaps == [], f"seed {seed}"
        assert all(task.renewal_count or task.error or task.dies_at_request for task in tasks)
        seeds_by_holder_count[sum(bool(task.renewal_count) for task in tasks)] += 1
    assert seeds_by_holder_count[1] and seeds_by_holder_count[2] and seeds_by_holder_count[3]


def test_task_without_changes_deletes_leases_of_a_dead_process(server):
    Client(server, machine="here",
           process=Process("here", "1", "0", "1.ReplicationController")).leases.acquire()

    Client(server, machine="here").leases.delete_abandoned()

    assert server.leases == {}


@pytest.mark.parametrize("seconds, remains",
                         [(0, True), (LEASE_DURATION + 1, True),
                          (lease.ABANDONED_AFTER + 1, False)])
def test_task_without_changes_deletes_abandoned_leases(server, seconds, remains):
    Client(server, machine="elsewhere").leases.acquire()
    server.now += seconds

    Client(server, machine="here").leases.delete_abandoned()

    assert bool(server.leases) == remains


def test_deleted_abandoned_lease_is_acquired_again(server):
    client = Client(server, machine="elsewhere")
    client.leases.acquire()
    for item in server.leases.values():
        # Any client with permission to update Leases can forge renewTime.
        item["spec"]["renewTime"] = "1970-01-01T00:00:00.000000Z"
    Client(server, machine="here").leases.delete_abandoned()
    client.advance(lease.RENEW_INTERVAL + lease.SHARED_RENEW_INTERVAL)

    client.leases.renew()

    assert set(server.leases) == {NAME, NAME_WITHOUT_KIND} and not client.leases.is_lost


def test_task_without_changes_or_lock_deletes_no_lease(server):
    Client(server, machine="elsewhere").leases.acquire()
    server.now += lease.ABANDONED_AFTER + 1

    Client(server, machine="here", lock=False).leases.delete_abandoned()

    assert server.leases

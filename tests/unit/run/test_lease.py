# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Leases: a single driver at a time; acquisition, waiting, refusal and loss."""

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

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import (
    is_name,
    lease_name,
    lease_name_without_kind,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    Kind,
    Module,
    State,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import lease
from ansible_collections.baton.kubernetes.plugins.module_utils.run import (
    process as processes_of_tasks,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.lease import (
    LEASE_DURATION,
    Lease,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.run.process import (
    ACTIVE_TASKS,
    Process,
    start_time,
)

NAME = "baton-kubernetes.replicationcontroller.foo"
#: Name of the Lease in earlier versions, without the kind.
WITHOUT_KIND = "baton-kubernetes-foo"


class Server:
    """Leases stored by the API server, and the server's clock."""

    def __init__(self):
        self.leases, self.now, self.version, self.writes = {}, 1_000_000.0, 0, collections.Counter()
        #: Background requests in flight on a slow line; None on a fast line.
        self.beside_others = None
        #: Whether a connection is free for background requests.
        self.is_free = True

    def lease(self, name):
        return self.leases.get(name)

    def put_lease(self, item):
        current, version = self.leases.get(item["metadata"]["name"]), item["metadata"].get(
            "resourceVersion")
        if (current or {"metadata": {}})["metadata"].get("resourceVersion") != version:
            return None
        self.version += 1
        self.writes[item["metadata"]["name"]] += 1
        stored = {**item,
                  "metadata": {**item["metadata"], "uid": "1",
                               "resourceVersion": str(self.version)}}
        self.leases[item["metadata"]["name"]] = stored
        return stored

    def delete_lease(self, item):
        is_that = self.leases.get(item["metadata"]["name"]) == item
        if is_that:
            del self.leases[item["metadata"]["name"]]
        return is_that

    def server_time(self):
        return self.now

    def start_in_background(self, work):
        if self.beside_others is None:
            return None
        begun = UnderWay(work, self.is_free)
        self.beside_others.append(begun)
        return begun


class UnderWay(concurrent.futures.Future):
    """Request in flight, answered by the test, or when the caller waits for the result."""

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
    """Task with a Lease. While the task sleeps, the server's clock advances and `others` acts."""

    def __init__(self, server, machine="", lock_timeout=0, others=lambda: None,
                 kind=Kind.REPLICATION_CONTROLLER,
                 process=None, renew_interval=lease.RENEW_INTERVAL, **options):
        self.server, self.others, self.lines, self.slept, self.clock = server, others, [], 0.0, 0.0
        self.reason = ""
        request = Request("foo", "shop", kind=kind, images={"": "myimage:v2"},
                          lock_timeout=lock_timeout, **options)
        process = process or Process.of_new_task(str(kind))._replace(machine=machine)
        self.lease = Lease(server, request, lambda: self.clock, self.sleep, lambda: self.reason,
                           self.lines.append, renew_interval, process)

    def sleep(self, seconds):
        assert self.slept < 120, "this wait has no end"
        self.slept += seconds
        self.clock += seconds
        self.server.now += seconds
        self.others()

    def later(self, seconds):
        self.clock += seconds
        self.server.now += seconds

    def works(self):
        """Renew the Lease while another client sleeps."""
        self.clock += lease.RETRY_PERIOD
        self.lease.renew()


@pytest.fixture
def server():
    return Server()


def test_it_is_there_while_it_is_held_and_gone_afterwards(server):
    client = Client(server)

    client.lease.acquire()
    held = server.leases[NAME]
    client.lease.release()

    assert (held["spec"]["leaseDurationSeconds"] == LEASE_DURATION
            and ", process " in held["spec"]["holderIdentity"])
    assert held["spec"]["renewTime"] == held["spec"]["acquireTime"] == "1970-01-12T13:46:40.000000Z"
    assert server.leases == {} and client.lines == []


def test_a_holder_at_work_elsewhere_is_known_by_its_next_renewal(server):
    first = Client(server)
    first.lease.acquire()
    second = Client(server, others=first.works)

    with pytest.raises(RolloutError) as error:
        second.lease.acquire()

    holder = server.leases[NAME]["spec"]["holderIdentity"]
    assert error.value.what == (
        f"another task is already working on it: {holder}, since 1970-01-12T13:46:40.000000Z")
    assert ("lock_timeout" in error.value.next_command
            and error.value.where == "ReplicationController shop/foo")
    assert (second.slept <= lease.RENEW_INTERVAL + lease.RETRY_PERIOD
            and second.lines == [f"waiting for the task of {holder} to end"])


def test_a_holder_that_was_killed_elsewhere_locks_nobody_out_for_longer_than_its_duration(server):
    Client(server).lease.acquire()
    server.now += 4
    second = Client(server)

    second.lease.acquire()

    assert LEASE_DURATION <= second.slept <= LEASE_DURATION + 2 * lease.RETRY_PERIOD
    assert server.leases[NAME]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("minutes", [-7, 7])
def test_clocks_that_differ_by_minutes_are_no_reason_to_take_it(server, minutes):
    """A proxy hides the server's time, so the holder writes the local time to renewTime."""
    right = server.server_time

    def wrong():
        return server.now + 60 * minutes

    def work():
        server.server_time = wrong
        first.works()
        server.server_time = right

    server.server_time = wrong
    first = Client(server)
    first.lease.acquire()
    server.server_time = right

    with pytest.raises(RolloutError, match="another task is already working on it"):
        Client(server, others=work).lease.acquire()

    second = Client(server)
    second.lease.acquire()
    assert second.slept <= LEASE_DURATION + 2 * lease.RETRY_PERIOD


@pytest.mark.parametrize("seconds", [-3600, -12, 12, 3600])
def test_a_fleet_s_holder_that_writes_its_own_time_is_not_robbed(server, seconds):
    """A fleet renews every 7 s; a Lease with an old renewTime was once taken after 2.5 s."""
    class Elsewhere(Client):
        def works(self):
            now, server.server_time = server.server_time, lambda: server.now + seconds
            super().works()
            server.server_time = now

    first = Elsewhere(server, renew_interval=7.0)
    server.server_time = lambda: server.now + seconds
    first.lease.acquire()
    del server.server_time
    second = Client(server, others=first.works)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.acquire()

    assert 6 <= second.slept <= 8 and not first.lease.is_lost


def test_on_the_same_machine_a_holder_that_lives_is_refused_at_once(server, monkeypatch):
    first = Client(server, machine="here")
    first.lease.acquire()
    monkeypatch.setattr(Process, "has_ended", lambda process: False)
    second = Client(server, machine="here")

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.acquire()

    assert second.slept == 0


def test_on_the_same_machine_a_holder_that_was_killed_is_followed_at_once(server):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child = Process.of_new_task("ReplicationController")
        child = child._replace(machine="here", pid=str(process.pid),
                               start=start_time(str(process.pid)))
        Client(server, process=child).lease.acquire()
        with pytest.raises(RolloutError, match="another task is already working on it"):
            Client(server, machine="here").lease.acquire()
        process.kill()
        process.wait()

    second = Client(server, machine="here")
    second.lease.acquire()

    assert second.slept == 0


def test_a_process_number_that_is_used_again_is_another_process():
    mine = Process.of_new_task()

    assert Process.from_text(str(mine)) == mine and mine.pid in str(mine)
    assert mine._replace(pid="1", start="another time").has_ended()
    assert not mine._replace(pid="1", start=start_time("1")).has_ended()


@pytest.mark.parametrize("answer, has_ended",
                         [(None, False), (PermissionError, False), (ProcessLookupError, True)])
def test_a_process_that_proc_does_not_show_has_ended_only_if_the_kernel_says_so(
        monkeypatch, answer, has_ended):
    """/proc hides other users' processes if mounted with hidepid."""
    signals = []

    def kill(pid, number):
        signals.append((pid, number))
        if answer:
            raise answer

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(processes_of_tasks, "start_time", lambda pid: None)

    assert Process.of_new_task()._replace(pid="7").has_ended() is has_ended
    assert signals == [(7, 0)]


@pytest.mark.parametrize("text",
                         ["", "m/1/2", "m/../2/t", "m/-1/2/t", "m/0/2/t", "m/\u0661/2/t",
                          f"m/{'9' * 5000}/2/t",
                          "m" * 10**6 + "/1/2/t"])
def test_what_no_task_has_written_is_no_process(text):
    assert Process.from_text(text) is None


# Leases written by another client


def a_living_process_of_this_machine():
    """Return a holder annotation that any reader of a Lease from this machine can forge."""
    init = Process.of_new_task()._replace(machine="here", pid="1", start=start_time("1"), task="x")
    return str(init)


FORGED = {
    "a duration of 68 years": {"leaseDurationSeconds": 2**31 - 1},
    "no duration": {"leaseDurationSeconds": None},
    "a duration that is a text": {"leaseDurationSeconds": "9" * 5000},
    "a time far ahead": {"renewTime": "9999-12-31T23:59:59.999999Z"},
    "a time that is none": {"renewTime": {"a": []}},
    "a time long ago": {"renewTime": "0001-01-01T00:00:00.000000Z"},
    "as many holders as there may be": {"leaseTransitions": 2**31 - 1},
    "fewer holders than none": {"leaseTransitions": -1},
    "holders that are a text": {"leaseTransitions": "x"},
    "a list of holders": {"holderIdentity": ["x"]},
    "times that are lists": {"acquireTime": [], "renewTime": []},
}


@pytest.mark.parametrize("process",
                         [lambda: None, a_living_process_of_this_machine, lambda: ["x"],
                          lambda: "[" * 10**5],
                         ids=["nobody", "process 1 of this machine", "a list", "nonsense"])
@pytest.mark.parametrize("forged", [{}, *FORGED.values()], ids=["nothing", *FORGED])
def test_no_lease_locks_out_for_longer_than_our_own_duration(server, forged, process):
    Client(server).lease.acquire()
    server.leases[NAME]["spec"] |= {"holderIdentity": "somebody", **forged}
    server.leases[NAME]["metadata"]["annotations"] = {object_meta.HOLDER: process()}
    server.now += 1 + LEASE_DURATION

    client = Client(server, machine="here")
    client.lease.acquire()

    assert client.slept <= LEASE_DURATION + 2 * lease.RETRY_PERIOD
    assert 0 <= server.leases[NAME]["spec"]["leaseTransitions"] < 2**31


@pytest.mark.parametrize("nothing",
                         [{}, {"metadata": None, "spec": None}, {"metadata": [], "spec": "x"},
                          {"metadata": {"annotations": "x"}, "spec": {"holderIdentity": 7}}])
def test_a_lease_without_anything_is_nobody_s(server, nothing):
    client = Client(server)
    server.put_lease = lambda item, put=server.put_lease: put(item) if server.leases else None
    server.lease = lambda name: server.leases.setdefault(
        NAME, {"metadata": {"resourceVersion": ""}}) and nothing

    client.lease.acquire()

    assert client.slept == 0


def test_it_waits_for_a_holder_at_work_until_it_ends(server):
    first = Client(server)
    first.lease.acquire()

    def work():
        if second.slept < 40:
            first.works()
        elif second.slept == 40:
            first.lease.release()

    second = Client(server, lock_timeout=60, others=work)
    second.lease.acquire()

    assert 40 <= second.slept <= 41


def test_the_wait_for_a_holder_at_work_ends(server):
    first = Client(server)
    first.lease.acquire()
    second = Client(server, lock_timeout=30, others=first.works)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.acquire()

    assert 30 <= second.slept <= 31


def test_a_lease_that_can_never_be_taken_is_an_error(server):
    server.put_lease = lambda item: None

    with pytest.raises(RolloutError,
                       match=r"could not acquire the Lease .*: other tasks kept acquiring it "
                             r"first"):
        Client(server).lease.acquire()


def test_a_lease_that_other_tasks_keep_getting_is_waited_for_as_long_as_the_task_may(server):
    server.put_lease = lambda item: None
    client = Client(server, lock_timeout=20)

    with pytest.raises(RolloutError, match=r"could not acquire the Lease"):
        client.lease.acquire()

    assert client.slept > 20 + 2 * lease.LEASE_DURATION - lease.RETRY_PERIOD


def test_a_process_that_nobody_has_waited_for_yet_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "Z":
            time.sleep(0.01)

        assert start_time(str(process.pid)) == ""


@pytest.mark.parametrize("state, started", [("R", "19"), ("S", "19"), ("Z", ""), ("X", "")])
def test_when_a_process_has_started_and_whether_only_its_number_is_left(
        monkeypatch, state, started):
    fields = " ".join([state, *map(str, range(1, 50))])
    monkeypatch.setattr(Path, "read_text", lambda *_args: f"7 (a b) c) {fields}\n")

    assert start_time("7") == started


def test_a_signal_ends_the_wait(server):
    Client(server).lease.acquire()
    second = Client(server, others=lambda: setattr(second, "reason", "SIGTERM"))

    with pytest.raises(RolloutError, match=r"stopped \(SIGTERM\) before anything was changed"):
        second.lease.acquire()


def test_it_is_renewed_in_time_and_not_at_every_turn(server):
    client = Client(server)
    client.lease.acquire()
    for _turn in range(40):
        client.later(0.1)
        client.lease.renew()

    assert server.writes[NAME] in (2, 3) and server.writes[WITHOUT_KIND] == 1
    assert server.leases[NAME]["spec"]["acquireTime"] < server.leases[NAME]["spec"]["renewTime"]


def test_its_age_counts_from_before_the_request_that_has_renewed_it(server):
    """The server sets renewTime before the answer, however late the answer arrives."""
    client = Client(server)
    write, put = server.put_lease, []

    def late(item):
        put.append(item["metadata"]["name"])
        client.later(lease.SHARED_RENEW_INTERVAL if put[-1] == WITHOUT_KIND else 0)
        return write(item)

    server.put_lease = late
    client.lease.acquire()
    client.lease.renew()

    assert put == [NAME, WITHOUT_KIND, NAME, WITHOUT_KIND]


def test_a_driver_that_has_lost_it_stops(server):
    first, second = Client(server), Client(server)
    first.lease.acquire()
    first.later(LEASE_DURATION + 1)
    second.lease.acquire()

    with pytest.raises(RolloutError) as error:
        first.lease.renew()
    first.lease.release()

    assert "took over" in error.value.what and server.leases[NAME]["metadata"]["annotations"]
    second.later(lease.RENEW_INTERVAL)
    second.lease.renew()


def test_a_lease_that_somebody_deletes_or_touches_is_held_again(server):
    client = Client(server)
    client.lease.acquire()
    for spoil in (server.leases.clear,
                  lambda: server.leases[NAME]["metadata"].update(
                      resourceVersion="7", labels={"a": "b"})):
        spoil()
        client.later(lease.RENEW_INTERVAL)
        client.lease.renew()
        assert server.leases[NAME]["metadata"]["annotations"] == {
            object_meta.HOLDER: str(client.lease.process)}


@pytest.fixture
def slow(server):
    """Return a client on a slow line whose Lease is due for renewal."""
    client = Client(server)
    client.lease.acquire()
    server.beside_others = []
    client.later(lease.RENEW_INTERVAL)
    return client


def test_on_a_slow_line_nothing_waits_for_a_renewal_that_is_in_time(server, slow):
    for _turn in range(3):
        slow.lease.renew()
        slow.later(1)
    assert len(server.beside_others) == 1 and server.writes[NAME] == 1

    server.beside_others[0].answer()
    slow.lease.renew()
    slow.later(lease.RENEW_INTERVAL)
    slow.lease.renew()

    assert len(server.beside_others) == 3 and server.writes[NAME] == 2  # of both Leases


def test_on_a_slow_line_both_leases_are_created_and_deleted_at_once(server):
    server.beside_others = []
    client = Client(server)
    client.lease.acquire()
    assert len(server.beside_others) == 1 and server.writes == {NAME: 1, WITHOUT_KIND: 1}

    client.lease.release()
    assert len(server.beside_others) == 3 and server.leases == {}


def test_on_a_slow_line_a_refused_task_lets_go_what_it_has_got_meanwhile(server, monkeypatch):
    monkeypatch.setattr(concurrent.futures, "wait",
                        lambda under_way: [call.answer() for call in under_way])
    first = Client(server)
    first.lease.acquire()
    del server.leases[WITHOUT_KIND]
    server.beside_others = []
    second = Client(server, others=first.works)
    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.acquire()

    second.lease.release()

    assert str(second.lease.process) not in str(server.leases)


def test_nothing_is_done_any_more_before_a_renewal_that_is_late(server, slow):
    slow.lease.renew()
    slow.later(lease.RENEW_DEADLINE - lease.RENEW_INTERVAL)
    assert server.writes[NAME] == 1

    slow.lease.renew()

    assert server.writes[NAME] == 2


def test_a_renewal_that_was_answered_long_ago_is_none(server, slow):
    """After many retries of a write, or a suspended machine, another client may hold the Lease."""
    slow.lease.renew()
    server.beside_others[0].answer()
    slow.later(LEASE_DURATION + 1)
    second = Client(server)
    second.lease.acquire()

    with pytest.raises(RolloutError, match="took over"):
        slow.lease.renew()


def test_a_renewal_that_waits_for_a_connection_is_sent_without_when_it_is_late(server, slow):
    """In a large fleet, hundreds of requests may be queued before the renewal."""
    server.is_free = False
    slow.lease.renew()
    slow.later(lease.RENEW_DEADLINE - lease.RENEW_INTERVAL)

    slow.lease.renew()

    assert server.writes[NAME] == 2 and server.beside_others[0].cancelled()


def test_a_lease_is_let_go_without_a_renewal_that_was_not_sent(server, slow):
    server.is_free = False
    slow.lease.renew()

    slow.lease.release()

    assert server.leases == {} and server.beside_others[0].cancelled()


def test_a_renewal_beside_that_finds_another_holder_stops_the_driver(server, slow):
    slow.lease.renew()
    slow.later(LEASE_DURATION + 1)
    second = Client(server)
    second.lease.acquire()
    server.beside_others[0].answer()

    with pytest.raises(RolloutError, match="took over"):
        slow.lease.renew()

    assert slow.lease.is_lost


def test_a_renewal_beside_that_fails_is_told_by_the_next_one_who_needs_the_lease(
        server, slow, monkeypatch):
    def fails(_lease):
        raise RolloutError("the API server cannot be reached")

    monkeypatch.setattr(server, "put_lease", fails)
    slow.lease.renew()
    server.beside_others[0].answer()

    with pytest.raises(RolloutError, match="cannot be reached"):
        slow.lease.renew()


def test_a_lease_is_let_go_as_it_was_renewed_last(server, slow, monkeypatch):
    monkeypatch.setattr(concurrent.futures, "wait",
                        lambda under_way: [call.answer() for call in under_way])
    slow.lease.renew()

    slow.lease.release()

    assert server.leases == {}


def test_the_names_of_leases_fit_and_differ():
    long, sibling = "a" * 253, "a" * 252 + "b"
    names = [name for controller in (long, sibling, "foo", "deployment.foo", "deployment-foo")
             for name in (lease_name_without_kind(controller),
                          *(lease_name(kind, controller) for kind in Kind))]

    assert len(set(names)) == len(names) and all(map(is_name, names))


# Kinds that share a name, and the earlier version without the kind


class Earlier(Client):
    """Task of an earlier version, without the kind in the Lease's name."""

    def __init__(self, server, **options):
        super().__init__(server, **options)
        task = self.lease._leases[0]._task._replace(
            process=self.lease.process._replace(task=self.lease.process.task[:8]))
        self.lease._leases = [lease._ExclusiveLease(task, WITHOUT_KIND, lease.RENEW_INTERVAL)]


@pytest.mark.parametrize("machine", ["", "here"])
def test_two_kinds_of_one_name_are_worked_on_at_once(server, machine):
    """A fleet updates both kinds in a single process for longer than a Lease lasts.

    A third task for either kind is refused.
    """
    kinds = (Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT)
    fleet = [Client(server, machine, kind=kind, renew_interval=7.0) for kind in kinds]
    for client in fleet:
        client.lease.acquire()
    for _second in range(2 * LEASE_DURATION):
        server.now += 1
        for client in fleet:
            client.clock += 1
            client.lease.renew()

    assert [client.slept for client in fleet] == [0, 0]
    for kind in kinds:
        with pytest.raises(RolloutError, match="another task is already working on it"):
            Client(server, machine, kind=kind,
                   others=lambda: [client.works() for client in fleet]).lease.acquire()
    for client in fleet:
        client.lease.renew()
        client.lease.release()
    assert server.leases == {}


@pytest.mark.parametrize("first, second", [(Earlier, Client), (Client, Earlier)])
@pytest.mark.parametrize("machine", ["", "here"])
@pytest.mark.parametrize("kind", [Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT])
def test_a_version_without_kinds_and_this_one_exclude_each_other(
        server, first, second, machine, kind, monkeypatch):
    # an earlier version runs in another process
    monkeypatch.setattr(Process, "has_ended", lambda process: False)
    earlier = first(server, machine=machine, kind=kind)
    earlier.lease.acquire()
    later = second(server, machine=machine, others=earlier.works)
    with pytest.raises(RolloutError, match="another task is already working on it"):
        later.lease.acquire()
    later.lease.release()
    earlier.lease.renew()
    earlier.lease.release()

    assert server.leases == {}
    second(server, machine=machine).lease.acquire()


def test_the_lease_without_kind_stays_for_the_last_who_shares_it(server):
    earlier, later = Client(server), Client(server, kind=Kind.DEPLOYMENT)
    earlier.lease.acquire()
    later.lease.acquire()
    earlier.lease.release()

    with pytest.raises(RolloutError, match="another task is already working on it"):
        Earlier(server, others=later.works).lease.acquire()

    later.lease.release()
    assert server.leases == {}


def test_a_task_of_an_earlier_version_is_waited_for_while_the_own_lease_is_renewed(server):
    earlier = Earlier(server)
    earlier.lease.acquire()

    def work():
        earlier.works() if client.slept < 40 else earlier.lease.release()

    client = Client(server, lock_timeout=60, others=work)
    client.lease.acquire()

    assert 40 <= client.slept <= 41 and server.writes[NAME] > 40 / lease.RENEW_INTERVAL / 2


@pytest.mark.parametrize("module", Module)
@pytest.mark.parametrize("state", [None, State.ROLLED_BACK])
def test_a_migration_keeps_tasks_for_the_deployment_out(server, module, state):
    migrates = module is Module.MIGRATION
    first = Client(server, module=module, state=state or module.default_state)
    first.lease.acquire()
    second = Client(server, kind=Kind.DEPLOYMENT, others=first.works)

    if migrates:
        with pytest.raises(RolloutError, match="another task is already working on it"):
            second.lease.acquire()
    else:
        second.lease.acquire()
    second.lease.release()
    first.lease.release()
    assert server.leases == {}


def test_a_task_that_ended_in_this_process_is_followed_at_once(server):
    """The process knows the end of the task even if the release of the Lease failed."""
    first = Client(server, machine="here")
    first.lease.acquire()
    first.lease.end_task()

    second = Client(server, machine="here")
    second.lease.acquire()

    assert second.slept == 0


def test_a_lease_that_somebody_else_has_written_is_not_told_as_a_take_over(server):
    client = Client(server)
    client.lease.acquire()
    client.later(3)
    server.leases[NAME] = {"metadata": {"name": NAME, "resourceVersion": "99"},
                           "spec": {"holderIdentity": "somebody"}}

    with pytest.raises(RolloutError) as error:
        client.lease.renew()

    assert error.value.what == (
        f"stopped: somebody has written the Lease {NAME}, which this task renewed 3 s ago")
    assert client.lease.is_lost


#: Holders of a Lease, and the time at which another process's task acquires the Lease: at once,
#: later (after LEASE_DURATION) or never (while the holder renews).
ENDED, LIVES = {"pid": "1", "start": "0"}, {"pid": "1", "start": start_time("1")}
WHO = {
    "nobody": (None, "at once"),
    "a process here that has ended": (dict(machine="here", **ENDED), "at once"),
    "a process here that lives and is silent": (dict(machine="here", **LIVES), "never"),
    "a process here that renews": (dict(machine="here", renews=True, **LIVES), "never"),
    "a process elsewhere that is silent": (dict(machine="there", **ENDED), "later"),
    "a process elsewhere that renews": (dict(machine="there", renews=True, **ENDED), "never"),
    "a task of this process that is over": (dict(machine="here"), "at once"),
    "a task of this process that is silent": (dict(machine="here", is_at_work=True), "never"),
    "a task of this process that renews": (dict(machine="here", is_at_work=True, renews=True),
                                           "never"),
}
#: Holders of the Lease without a kind, and their kinds: an earlier version, this version's task for
#: another kind, or tasks for two other kinds.
SHARES = {"an earlier version": [""], "another kind": ["Deployment"],
          "two other kinds": ["Deployment", "DaemonSet"]}


@pytest.mark.parametrize("is_own", [True, False], ids=["its own Lease", "the one without kind"])
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("share", SHARES)
def test_the_state_space_of_a_lease(server, is_own, who, share):
    """No holder that may be alive loses a Lease; no dead holder blocks other tasks for long."""
    holder, expected = WHO[who]
    name = NAME if is_own else WITHOUT_KIND
    kinds = ["ReplicationController"] if is_own else SHARES[share]
    if holder is not None:
        fields = {key: value for key, value in holder.items() if key in ("machine", "pid", "start")}
        processes = [Process.of_new_task(kind)._replace(**fields) for kind in kinds]
        ACTIVE_TASKS.update(process.task for process in processes if holder.get("is_at_work"))
        server.put_lease({"metadata": {"name": name,
                                       "annotations": {object_meta.HOLDER: " ".join(
                                           map(str, processes))}},
                          "spec": {"holderIdentity": "jane",
                                   "renewTime": "1970-01-12T13:46:40.000000Z"}})
    if not is_own and share != "an earlier version":
        expected = "at once"

    def work():
        if holder and holder.get("renews") and client.slept % 2 == 0:
            server.put_lease({**server.leases[name],
                              "spec": {**server.leases[name]["spec"],
                                       "renewTime": f"{client.slept}"}})

    client = Client(server, machine="here", others=work)
    if expected == "never":
        with pytest.raises(RolloutError, match="another task is already working on it: jane"):
            client.lease.acquire()
    else:
        client.lease.acquire()
        assert {"at once": client.slept == 0,
                "later": LEASE_DURATION < client.slept < LEASE_DURATION + 2}[expected]
    client.lease.release()

    if expected == "never" or (not is_own and share != "an earlier version" and who not in (
            "nobody", "a process here that has ended", "a task of this process that is over")):
        assert set(server.leases) == {name} and str(client.lease.process) not in str(server.leases)
    else:
        assert server.leases == {}


class Turns:
    """Scheduler that runs a single thread at a time.

    At each request and each wait, the next thread is random. Time passes while all threads wait.
    """

    def __init__(self, chance):
        self.chance, self.now, self.threads = chance, 0.0, []
        self.current, self.overlaps = None, []

    def add(self, work):
        turn = types.SimpleNamespace(go=threading.Semaphore(0), back=threading.Semaphore(0),
                                     wakes=0.0, is_over=False)

        def run():
            turn.go.acquire()
            with contextlib.suppress(Died):
                work()
            turn.is_over = True
            turn.back.release()

        turn.thread = threading.Thread(target=run)
        self.threads.append(turn)
        turn.thread.start()

    def wait(self, seconds):
        turn = self.current
        turn.wakes = self.now + seconds
        turn.back.release()
        turn.go.acquire()

    def run(self):
        while waiting := [turn for turn in self.threads if not turn.is_over]:
            self.now = max(self.now, min(turn.wakes for turn in waiting))
            self.current = self.chance.choice([turn for turn in waiting if turn.wakes <= self.now])
            self.current.go.release()
            assert self.current.back.acquire(timeout=10)


class Died(BaseException):
    """Death of a client."""


class Racer:
    """Task that acquires the Lease, works several times and releases the Lease.

    Any request may kill or suspend the task.
    """

    def __init__(self, turns, server):
        chance, self.turns = turns.chance, turns
        self.make = chance.choice((Client, Client, Earlier))
        self.kind = chance.choice((Kind.REPLICATION_CONTROLLER, Kind.DEPLOYMENT))
        client = self.make(server, kind=self.kind)
        self.lease, self.works, self.error, self.is_holding = client.lease, 0, None, False
        ask = types.SimpleNamespace(lease=self.request(server.lease),
                                    put_lease=self.request(server.put_lease),
                                    delete_lease=self.request(server.delete_lease),
                                    server_time=lambda: turns.now,
                                    start_in_background=lambda work: None)
        for member in self.lease._leases:
            member._task = member._task._replace(gateway=ask, elapsed=lambda: turns.now,
                                                 sleep=turns.wait)
            member._gateway, member._elapsed = ask, member._task.elapsed
            member._request = dataclasses.replace(member._request,
                                                  lock_timeout=chance.choice((0, 0, 60)))
        self.left, self.requests, self.dies_at = chance.randrange(1, 8), 0, chance.choice(
            (None, chance.randrange(1, 15)))

    def request(self, ask):
        def asked(item):
            self.requests += 1
            self.turns.wait(self.turns.chance.choice((0, 0, 0.1, 2)))
            answer = ask(item)
            self.turns.wait(self.turns.chance.choice((0, 0, 0.1)))
            if self.requests == self.dies_at:
                self.is_holding = False
                raise Died
            return answer
        return asked

    def run(self, racers):
        try:
            self.lease.acquire()
            self.is_holding = True
            for _step in range(self.left):
                self.lease.renew()
                self.works += 1
                assert not [racer for racer in racers
                            if racer is not self and self.excludes(racer) and racer.may_work()]
                self.turns.wait(self.turns.chance.choice((0, 1, 3, 3, 2 * LEASE_DURATION)))
        except RolloutError as error:
            self.error = error
        except AssertionError as overlap:
            self.turns.overlaps.append(overlap)
        self.is_holding = False
        self.lease.release()

    def excludes(self, racer):
        return self.kind is racer.kind or Earlier in (self.make, racer.make)

    def may_work(self):
        """Return whether the task may write without a renewal of the Lease."""
        return (self.is_holding
                and all(self.turns.now - member._renewed_at < lease.RENEW_DEADLINE
                        for member in self.lease._leases))


@pytest.mark.parametrize("seeds", [range(first, first + 50) for first in range(0, 500, 50)],
                         ids=str)
def test_no_order_of_requests_lets_two_tasks_work_at_once(seeds):
    """Tasks of both versions and two kinds may be suspended for long, or die, at any request."""
    worked = collections.Counter()
    for seed in seeds:
        turns, server = Turns(random.Random(seed)), Server()
        racers = [Racer(turns, server) for _racer in range(4)]
        for racer in racers:
            turns.add(functools.partial(racer.run, racers))
        turns.run()

        assert turns.overlaps == [], f"seed {seed}"
        assert all(racer.works or racer.error or racer.dies_at for racer in racers)
        worked[sum(bool(racer.works) for racer in racers)] += 1
    assert worked[1] and worked[2] and worked[3]


def test_a_task_with_nothing_to_change_deletes_the_leases_of_one_that_died_here(server):
    Client(server, machine="here",
           process=Process("here", "1", "0", "1.ReplicationController")).lease.acquire()

    Client(server, machine="here").lease.delete_abandoned()

    assert server.leases == {}


@pytest.mark.parametrize("seconds, stays",
                         [(0, True), (LEASE_DURATION + 1, True),
                          (lease.ABANDONED_AFTER + 1, False)])
def test_a_task_with_nothing_to_change_deletes_leases_that_were_not_renewed_for_long(
        server, seconds, stays):
    Client(server, machine="elsewhere").lease.acquire()
    server.now += seconds

    Client(server, machine="here").lease.delete_abandoned()

    assert bool(server.leases) == stays


def test_a_holder_whose_lease_was_taken_for_abandoned_has_it_again(server):
    client = Client(server, machine="elsewhere")
    client.lease.acquire()
    for item in server.leases.values():
        # Any client with permission to update Leases can forge renewTime.
        item["spec"]["renewTime"] = "1970-01-01T00:00:00.000000Z"
    Client(server, machine="here").lease.delete_abandoned()
    client.later(lease.RENEW_INTERVAL + lease.SHARED_RENEW_INTERVAL)

    client.lease.renew()

    assert set(server.leases) == {NAME, WITHOUT_KIND} and not client.lease.is_lost


def test_without_a_lock_a_task_with_nothing_to_change_leaves_leases_alone(server):
    Client(server, machine="elsewhere").lease.acquire()
    server.now += lease.ABANDONED_AFTER + 1

    Client(server, machine="here", lock=False).lease.delete_abandoned()

    assert server.leases

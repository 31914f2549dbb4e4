# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One driver at a time: who gets the lease, who waits, who is refused, and who stops."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model import marks
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import lease
from ansible_collections.baton.kubernetes.plugins.module_utils.run.lease import DURATION, Lease, Process

REQUEST = Request("foo", "shop", images={"": "myimage:v2"})
NAME = "baton-kubernetes-foo"


class Server:
    """Leases as the API server keeps them, and its clock."""

    def __init__(self):
        self.leases, self.now, self.version = {}, 1_000_000.0, 0
        #: On a slow line, what is under way; None on another.
        self.beside_others = None
        #: Whether there is a connection for that.
        self.is_free = True

    def lease(self, name):
        return self.leases.get(name)

    def put_lease(self, it):
        known, version = self.leases.get(it["metadata"]["name"]), it["metadata"].get("resourceVersion")
        if (known or {"metadata": {}})["metadata"].get("resourceVersion") != version:
            return None
        self.version += 1
        self.leases[NAME] = {**it, "metadata": {**it["metadata"], "uid": "1", "resourceVersion": str(self.version)}}
        return self.leases[NAME]

    def drop_lease(self, it):
        if self.leases.get(NAME) == it:
            del self.leases[NAME]

    def server_time(self):
        return self.now

    def beside(self, work):
        if self.beside_others is None:
            return None
        begun = UnderWay(work, self.is_free)
        self.beside_others.append(begun)
        return begun


class UnderWay(concurrent.futures.Future):
    """A request that is answered when a test says so, or somebody waits for it."""

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
    """A task; every second that it sleeps passes on the server too, and others do then what they do."""

    def __init__(self, server, machine="", lock_timeout=0, others=lambda: None, clock=0.0):
        self.server, self.others, self.lines, self.slept, self.clock = server, others, [], 0.0, clock
        self.reason = ""
        request = Request("foo", "shop", images={"": "myimage:v2"}, lock_timeout=lock_timeout)
        self.lease = Lease(server, request, lambda: self.clock, self.sleep, lambda: self.reason, self.lines.append)
        self.lease._process = self.lease._process._replace(machine=machine)

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
        """Renews whenever another one sleeps."""
        self.clock += lease.LOOK_AGAIN
        self.lease.keep()


@pytest.fixture
def server():
    return Server()


def test_it_is_there_while_it_is_held_and_gone_afterwards(server):
    client = Client(server)

    client.lease.take()
    held = server.leases[NAME]
    client.lease.release()

    assert held["spec"]["leaseDurationSeconds"] == DURATION and ", process " in held["spec"]["holderIdentity"]
    assert held["spec"]["renewTime"] == held["spec"]["acquireTime"] == "1970-01-12T13:46:40.000000Z"
    assert server.leases == {} and client.lines == []


def test_a_holder_at_work_elsewhere_is_known_by_its_next_renewal(server):
    first = Client(server)
    first.lease.take()
    second = Client(server, others=first.works)

    with pytest.raises(RolloutError) as error:
        second.lease.take()

    holder = server.leases[NAME]["spec"]["holderIdentity"]
    assert error.value.what == f"another task is already working on it: {holder}, since 1970-01-12T13:46:40.000000Z"
    assert "lock_timeout" in error.value.next_command and error.value.where == "ReplicationController shop/foo"
    assert second.slept <= lease.RENEW_AFTER + lease.LOOK_AGAIN and second.lines == [f"waiting for the task of {holder} to end"]


def test_a_holder_that_was_killed_elsewhere_locks_nobody_out_for_longer_than_its_duration(server):
    Client(server).lease.take()
    server.now += 4
    second = Client(server)

    second.lease.take()

    assert DURATION <= second.slept <= DURATION + 2 * lease.LOOK_AGAIN
    assert server.leases[NAME]["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("minutes", [-7, 7])
def test_clocks_that_differ_by_minutes_are_no_reason_to_take_it(server, minutes):
    """A holder behind something that hides the server's time, so that it writes its own."""
    right = server.server_time

    def wrong():
        return server.now + 60 * minutes

    def work():
        server.server_time = wrong
        first.works()
        server.server_time = right

    server.server_time = wrong
    first = Client(server)
    first.lease.take()
    server.server_time = right

    with pytest.raises(RolloutError, match="another task is already working on it"):
        Client(server, others=work).lease.take()

    second = Client(server)
    second.lease.take()
    assert second.slept <= DURATION + 2 * lease.LOOK_AGAIN


@pytest.mark.parametrize("seconds", [-3600, -12, 12, 3600])
def test_a_fleet_s_holder_that_writes_its_own_time_is_not_robbed(server, seconds):
    """It renews every 7 s; a lease that seemed old was taken 2.5 s after it was seen."""
    class Elsewhere(Client):
        def works(self):
            now, server.server_time = server.server_time, lambda: server.now + seconds
            super().works()
            server.server_time = now

    first = Elsewhere(server)
    first.lease._renew_after = 7.0
    server.server_time = lambda: server.now + seconds
    first.lease.take()
    del server.server_time
    second = Client(server, others=first.works)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.take()

    assert 6 <= second.slept <= 8 and not first.lease.is_lost


def test_on_the_same_machine_a_holder_that_lives_is_refused_at_once(server, monkeypatch):
    first = Client(server, machine="here")
    first.lease.take()
    monkeypatch.setattr(Process, "has_ended", lambda process: False)
    second = Client(server, machine="here")

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.take()

    assert second.slept == 0


def test_on_the_same_machine_a_holder_that_was_killed_is_followed_at_once(server):
    first = Client(server, machine="here")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        first.lease._process = first.lease._process._replace(pid=str(process.pid), started=lease._started(str(process.pid)))
        first.lease.take()
        with pytest.raises(RolloutError, match="another task is already working on it"):
            Client(server, machine="here").lease.take()
        process.kill()
        process.wait()

    second = Client(server, machine="here")
    second.lease.take()

    assert second.slept == 0


def test_a_process_number_that_is_used_again_is_another_process():
    mine = Process.mine()

    assert Process.from_text(str(mine)) == mine and mine.pid in str(mine)
    assert mine._replace(pid="1", started="another time").has_ended()
    assert not mine._replace(pid="1", started=lease._started("1")).has_ended()


@pytest.mark.parametrize("answer, has_ended", [(None, False), (PermissionError, False), (ProcessLookupError, True)])
def test_a_process_that_proc_does_not_show_has_ended_only_if_the_kernel_says_so(monkeypatch, answer, has_ended):
    """Mounted with hidepid, /proc shows nothing of what another user runs."""
    asked = []

    def kill(pid, number):
        asked.append((pid, number))
        if answer:
            raise answer

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(lease, "_started", lambda pid: None)

    assert Process.mine()._replace(pid="7").has_ended() is has_ended
    assert asked == [(7, 0)]


@pytest.mark.parametrize("text", ["", "m/1/2", "m/../2/t", "m/-1/2/t", "m/0/2/t", "m/\u0661/2/t", f"m/{'9' * 5000}/2/t",
                                  "m" * 10**6 + "/1/2/t"])
def test_what_no_task_has_written_is_no_process(text):
    assert Process.from_text(text) is None


# What somebody else has written


def a_living_process_of_this_machine():
    """As anybody may name it who has seen one Lease of this machine."""
    return str(Process.mine()._replace(machine="here", pid="1", started=lease._started("1"), task="x"))


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


@pytest.mark.parametrize("process", [lambda: None, a_living_process_of_this_machine, lambda: ["x"], lambda: "[" * 10**5],
                         ids=["nobody", "process 1 of this machine", "a list", "nonsense"])
@pytest.mark.parametrize("forged", [{}, *FORGED.values()], ids=["nothing", *FORGED])
def test_no_lease_locks_out_for_longer_than_our_own_duration(server, forged, process):
    Client(server).lease.take()
    server.leases[NAME]["spec"] |= {"holderIdentity": "somebody", **forged}
    server.leases[NAME]["metadata"]["annotations"] = {marks.HOLDER: process()}
    server.now += 1 + DURATION

    client = Client(server, machine="here")
    client.lease.take()

    assert client.slept <= DURATION + 2 * lease.LOOK_AGAIN
    assert 0 <= server.leases[NAME]["spec"]["leaseTransitions"] < 2**31


@pytest.mark.parametrize("nothing", [{}, {"metadata": None, "spec": None}, {"metadata": [], "spec": "x"},
                                     {"metadata": {"annotations": "x"}, "spec": {"holderIdentity": 7}}])
def test_a_lease_without_anything_is_nobody_s(server, nothing):
    client = Client(server)
    server.put_lease = lambda it, put=server.put_lease: put(it) if server.leases else None
    server.lease = lambda name: server.leases.setdefault(NAME, {"metadata": {"resourceVersion": ""}}) and nothing

    client.lease.take()

    assert client.slept == 0


def test_it_waits_for_a_holder_at_work_until_it_ends(server):
    first = Client(server)
    first.lease.take()

    def work():
        if second.slept < 40:
            first.works()
        elif second.slept == 40:
            first.lease.release()

    second = Client(server, lock_timeout=60, others=work)
    second.lease.take()

    assert 40 <= second.slept <= 41


def test_the_wait_for_a_holder_at_work_ends(server):
    first = Client(server)
    first.lease.take()
    second = Client(server, lock_timeout=30, others=first.works)

    with pytest.raises(RolloutError, match="another task is already working on it"):
        second.lease.take()

    assert 30 <= second.slept <= 31


def test_a_lease_that_can_never_be_taken_is_an_error(server):
    server.put_lease = lambda it: None

    with pytest.raises(RolloutError, match=r"could not acquire the Lease .*: other tasks kept getting it first"):
        Client(server).lease.take()


def test_a_signal_ends_the_wait(server):
    Client(server).lease.take()
    second = Client(server, others=lambda: setattr(second, "reason", "SIGTERM"))

    with pytest.raises(RolloutError, match=r"stopped \(SIGTERM\) before anything was changed"):
        second.lease.take()


def test_it_is_renewed_in_time_and_not_at_every_turn(server):
    client = Client(server)
    client.lease.take()
    for _turn in range(40):
        client.later(0.1)
        client.lease.keep()

    assert server.version in (2, 3)
    assert server.leases[NAME]["spec"]["acquireTime"] < server.leases[NAME]["spec"]["renewTime"]


def test_a_driver_that_has_lost_it_stops(server):
    first, second = Client(server), Client(server)
    first.lease.take()
    first.later(DURATION + 1)
    second.lease.take()

    with pytest.raises(RolloutError) as error:
        first.lease.keep()
    first.lease.release()

    assert "took over" in error.value.what and server.leases[NAME]["metadata"]["annotations"]
    second.later(lease.RENEW_AFTER)
    second.lease.keep()


def test_a_lease_that_somebody_deletes_or_touches_is_held_again(server):
    client = Client(server)
    client.lease.take()
    for spoil in (server.leases.clear,
                  lambda: server.leases[NAME]["metadata"].update(resourceVersion="7", labels={"a": "b"})):
        spoil()
        client.later(lease.RENEW_AFTER)
        client.lease.keep()
        assert server.leases[NAME]["metadata"]["annotations"] == {marks.HOLDER: str(client.lease._process)}


@pytest.fixture
def slow(server):
    """A client on a slow line, whose Lease is due to be renewed."""
    client, server.beside_others = Client(server), []
    client.lease.take()
    client.later(lease.RENEW_AFTER)
    return client


def test_on_a_slow_line_nothing_waits_for_a_renewal_that_is_in_time(server, slow):
    for _turn in range(3):
        slow.lease.keep()
        slow.later(1)
    assert len(server.beside_others) == 1 and server.version == 1

    server.beside_others[0].answer()
    slow.lease.keep()
    slow.later(lease.RENEW_AFTER)
    slow.lease.keep()

    assert len(server.beside_others) == 2 and server.version == 2


def test_nothing_is_done_any_more_before_a_renewal_that_is_late(server, slow):
    slow.lease.keep()
    slow.later(lease.AT_LATEST - lease.RENEW_AFTER)
    assert server.version == 1

    slow.lease.keep()

    assert server.version == 2


def test_a_renewal_that_was_answered_long_ago_is_none(server, slow):
    """A write that was tried again and again, or a machine that was suspended: meanwhile somebody else may have the Lease."""
    slow.lease.keep()
    server.beside_others[0].answer()
    slow.later(DURATION + 1)
    second = Client(server)
    second.lease.take()

    with pytest.raises(RolloutError, match="took over"):
        slow.lease.keep()


def test_a_renewal_that_waits_for_a_connection_is_sent_without_when_it_is_late(server, slow):
    """In a large fleet there may be hundreds before it."""
    server.is_free = False
    slow.lease.keep()
    slow.later(lease.AT_LATEST - lease.RENEW_AFTER)

    slow.lease.keep()

    assert server.version == 2 and server.beside_others[0].cancelled()


def test_a_lease_is_let_go_without_a_renewal_that_was_not_sent(server, slow):
    server.is_free = False
    slow.lease.keep()

    slow.lease.release()

    assert server.leases == {} and server.beside_others[0].cancelled()


def test_a_renewal_beside_that_finds_another_holder_stops_the_driver(server, slow):
    slow.lease.keep()
    second = Client(server)
    second.lease.take()  # it runs in this very process, whose earlier tasks have ended
    server.beside_others[0].answer()

    with pytest.raises(RolloutError, match="took over"):
        slow.lease.keep()

    assert slow.lease.is_lost


def test_a_renewal_beside_that_fails_is_told_by_the_next_one_who_needs_the_lease(server, slow, monkeypatch):
    def fails(_lease):
        raise RolloutError("the API server cannot be reached")

    monkeypatch.setattr(server, "put_lease", fails)
    slow.lease.keep()
    server.beside_others[0].answer()

    with pytest.raises(RolloutError, match="cannot be reached"):
        slow.lease.keep()


def test_a_lease_is_let_go_as_it_was_renewed_last(server, slow, monkeypatch):
    monkeypatch.setattr(concurrent.futures, "wait", lambda under_way: [each.answer() for each in under_way])
    slow.lease.keep()

    slow.lease.release()

    assert server.leases == {}


def test_the_name_of_a_lease_fits():
    from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import lease_name

    long, other = "a" * 253, "a" * 252 + "b"

    assert len(lease_name(long)) <= 253 and lease_name(long) != lease_name(other)

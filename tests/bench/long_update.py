# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Measure whether an update that waits for hours needs more and more resources.

The update has a fast clock, with which hours take minutes. The cluster has a normal clock. In each
hour, the API server is killed, one token is revoked, and another token expires.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import embedded
import kubernetes
from counting import processor_seconds
from external import external_kubeconfig
from fast_clock import FastClock
from measuring import Bench
from playground import Playground
from table import Row, progress

#: Hours of the update, on the fast clock.
HOURS = 8
#: Seconds of the fast clock per real second.
SPEED = 160.0
PODS = 3

#: Minutes of each hour at which tokens are revoked, the API server restarts, a token is issued.
REVOKE_MINUTE, RESTART_MINUTE, ISSUE_MINUTE = 15, 40, 55
#: Minute of an hour at which a token expires. The client renews a token five minutes earlier.
EXPIRY_MINUTE = 5

SETTLING_SECONDS = 2.0
"""Real seconds from a restart of the API server until the clock runs fast again."""

SAMPLE_SECONDS = 0.2
"""Real seconds between two samples."""

END_TIMEOUT = 120
"""Seconds that the update may take after the last hour."""

PLUGIN = 'echo >> "$0.runs"; cat "$0"'
"""The exec plugin, which prints the credential file ($0) and logs each run."""


class Sample(NamedTuple):
    #: In MiB.
    memory: float
    threads: int
    descriptors: int
    #: CPU seconds used since the start of the process.
    processor: float


class Hour(NamedTuple):
    #: Medians of the samples.
    memory: float
    threads: float
    descriptors: float
    #: Requests and CPU seconds in this hour.
    requests: int
    processor: float


def long_update(bench: Bench) -> list[Row]:
    """Compare the last hour of an update with its second hour. bench.runs is ignored."""
    what = f"an update of {HOURS} hours"
    if external_kubeconfig():
        reason = "KUBECONFIG selects an external cluster, whose API server cannot be restarted"
        progress(f"long-update: SKIPPED, {reason}")
        return [Row(f"{what}: SKIPPED, {reason}", [])]
    with (Playground(bench.kubeconfig) as playground,
          tempfile.TemporaryDirectory(prefix="baton-bench-") as folder):
        playground.create_nodes(1)
        playground.create_rc(PODS, "myimage:v1",
                             template=playground.pinned_template("foo", "myimage:v1"))
        playground.wait_until_ready()
        playground.cordon_nodes(True)
        with _Update(bench.kubeconfig, playground, Path(folder)) as update:
            hours = [update.run_hour(number) for number in range(HOURS)]
            seconds = update.complete()
            renewals, expired = update.renewals(), update.expired_watches()

    def last_hour(name: str, select: Callable[[Hour], float], unit: str = "",
                  ratio_goal: float | None = 1.1) -> Row:
        return Row(f"{what}: {name} in the last hour", [select(hours[-1])], "the second hour",
                   [select(hours[1])], unit=unit, ratio_goal=ratio_goal)

    return [
        last_hour("memory", lambda hour: hour.memory, "MiB"),
        last_hour("threads", lambda hour: hour.threads),
        last_hour("open file descriptors", lambda hour: hour.descriptors, ratio_goal=None),
        # no ratio: the number of idle connections varies
        Row(f"{what}: open file descriptors added since the second hour",
            [hours[-1].descriptors - hours[1].descriptors], unit="", max_value=2),
        last_hour("requests", lambda hour: hour.requests),
        last_hour("processor time", lambda hour: hour.processor, " s"),
        Row(f"{what}: restarts of the API server", [HOURS], unit=""),
        Row(f"{what}: renewed tokens", [renewals], unit=""),
        Row(f"{what}: watches that ended with status 410", [expired], unit=""),
        Row(f"{what}: from the uncordoning of the node to the end of the update", [seconds]),
    ]


class _Credential:
    """The credential file of the exec plugin. Each token is bound to a Secret.

    The deletion of the Secret revokes the token.
    """

    def __init__(self, client: kubernetes.client.ApiClient, namespace: str, path: Path) -> None:
        self._core, self._namespace = kubernetes.client.CoreV1Api(client), namespace
        self.path, self._secrets = path, []

    def issue(self, expiry: float) -> None:
        """Write a new token to the file. expiry: in seconds since 1970."""
        secret = self._core.create_namespaced_secret(
            self._namespace, {"metadata": {"generateName": "token-"}}).metadata.name
        reference = {"kind": "Secret", "apiVersion": "v1", "name": secret}
        token = self._core.create_namespaced_service_account_token(
            "client", self._namespace, {"spec": {"boundObjectRef": reference}}).status.token
        time_text = datetime.fromtimestamp(expiry, UTC).isoformat()
        new_file = self.path.with_suffix(".new")
        new_file.write_text(json.dumps({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": token, "expirationTimestamp": time_text}}), "utf-8")
        new_file.replace(self.path)
        self._secrets.append(secret)

    def revoke_all_but_last(self) -> None:
        """Revoke all tokens except the last. The API server accepts revoked tokens for 10 s."""
        for secret in self._secrets[:-1]:
            self._core.delete_namespaced_secret(secret, self._namespace)
        del self._secrets[:-1]

    def user(self) -> dict[str, Any]:
        return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
                         "args": ["-c", PLUGIN, str(self.path)], "interactiveMode": "Never"}}


class _Update:
    """A context manager that runs the task in a separate process, without Ansible."""

    def __init__(self, kubeconfig: str, playground: Playground, folder: Path) -> None:
        self._playground, self._folder = playground, folder
        self._cluster = embedded.find(embedded.checkout_cluster_name("bench"))
        client = kubernetes.config.new_client_from_config(kubeconfig)
        self._clock = FastClock.create(folder / "clock")
        self._credential = _Credential(client, playground.namespace, folder / "credential")
        self._samples: list[Sample] = []
        #: Requests before the last restart of the API server, which resets its count.
        self._earlier_requests = 0

    def __enter__(self) -> _Update:
        config = json.loads(Path(self._playground.kubeconfig).read_text("utf-8"))
        config["users"][0]["user"] = self._credential.user()
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(config), "utf-8")
        arguments = self._folder / "arguments"
        arguments.write_text(json.dumps({"ANSIBLE_MODULE_ARGS": {
            "kubeconfig": str(kubeconfig), "namespace": self._playground.namespace, "name": "foo",
            "image": "myimage:v2", "progress_deadline": (HOURS + 1) * 3600,
            "_ansible_remote_tmp": str(self._folder)}}), "utf-8")
        self._credential.issue(self._clock.now() + 3600 + 60 * EXPIRY_MINUTE)
        self._output = (self._folder / "output").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fast_task.py")),
             str(self._folder / "clock"), str(self._folder / "statistics"), str(arguments)],
            stdout=self._output, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self._playground.wait_until_unschedulable()
        time.sleep(SETTLING_SECONDS)
        self._begin = self._clock.now()
        self._clock.set_speed(SPEED)
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()

    def run_hour(self, number: int) -> Hour:
        """Revoke tokens and restart the API server during an hour. Return the hour's measurements.

        number: the index of the hour, from 0.
        """
        first_sample, requests_before = self._sample(), self._total_requests()
        self._samples.clear()
        end = number + 1
        self._sample_until(number, REVOKE_MINUTE)
        self._issue(minutes_from_begin=end * 60 + EXPIRY_MINUTE)
        self._credential.revoke_all_but_last()
        self._sample_until(number, RESTART_MINUTE)
        self._restart()
        self._sample_until(number, ISSUE_MINUTE)
        self._issue(minutes_from_begin=(end + 1) * 60 + EXPIRY_MINUTE)
        self._sample_until(end, 0)
        hour = Hour(median(sample.memory for sample in self._samples),
                    median(sample.threads for sample in self._samples),
                    median(sample.descriptors for sample in self._samples),
                    self._total_requests() - requests_before,
                    self._sample().processor - first_sample.processor)
        progress(f"long update: hour {end} of {HOURS}: {hour.memory:.1f} MiB, {hour.threads:g} "
                 f"threads, {hour.descriptors:g} descriptors, {hour.requests} requests, "
                 f"{hour.processor:.1f} s of processor time")
        return hour

    def complete(self) -> float:
        """Make the node available, and return the seconds until the update is complete.

        Raises SystemExit.
        """
        self._clock.set_speed(1)
        began = time.perf_counter()
        self._playground.cordon_nodes(False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT)
        seconds = time.perf_counter() - began
        if self._process.poll() != 0 or '"changed": true' not in self._printed():
            raise SystemExit(f"the long update has not completed: {self._printed()}")
        return seconds

    def renewals(self) -> int:
        """Return how often the exec plugin has run, not counting its first run."""
        return len(Path(f"{self._credential.path}.runs").read_text("utf-8").splitlines()) - 1

    def expired_watches(self) -> int:
        statuses = json.loads((self._folder / "statistics").read_text("utf-8"))
        return statuses.get("410", 0)

    def _issue(self, minutes_from_begin: int) -> None:
        self._credential.issue(self._begin + 60 * minutes_from_begin)

    def _restart(self) -> None:
        self._clock.set_speed(1)
        self._earlier_requests += self._playground.requests()
        self._cluster.stop("kube-apiserver", kill=True)
        self._cluster.start("kube-apiserver")
        time.sleep(SETTLING_SECONDS)
        self._clock.set_speed(SPEED)

    def _total_requests(self) -> int:
        return self._earlier_requests + self._playground.requests()

    def _sample_until(self, hour: int, minute: int) -> None:
        """Collect samples until this hour and minute of the update."""
        end = self._begin + hour * 3600 + minute * 60
        while self._clock.now() < end:
            self._samples.append(self._sample())
            time.sleep(SAMPLE_SECONDS)

    def _sample(self) -> Sample:
        if self._process.poll() is not None:
            raise SystemExit(f"the long update has ended early: {self._printed()}")
        folder = Path(f"/proc/{self._process.pid}")
        status = (folder / "status").read_text("utf-8")
        descriptors = len(os.listdir(folder / "fd"))
        memory, threads = (int(re.search(rf"{name}:\s+(\d+)", status)[1])
                           for name in ("VmRSS", "Threads"))
        return Sample(memory / 1024, threads, descriptors, processor_seconds(self._process.pid))

    def _printed(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

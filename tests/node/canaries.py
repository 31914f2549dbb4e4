# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Canaries under live traffic, judged by Prometheus: their share of the requests, and for how long.

Prometheus scrapes the containers. Debian's Prometheus has no discovery by the Kubernetes API, so it
reads the pods' addresses from a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import threading
import time
import typing as t
from pathlib import Path

import clients
import yaml
from rollouts import RC, Json, Shop
from traffic import SETTLE, Answer, Traffic

PAGE = Path(__file__).parents[2] / "docs" / "analysis.md"

PODS = 5
SHARE = 1 / PODS
"""Share of one pod: a Service sends a new connection to any of the pods."""

CANARY_RC = dataclasses.replace(RC, pods=PODS)

RATES = {"new": 400}
"""Requests per second. None on persistent connections, whose share depends on the pods to which k6
happened to open 20 connections.
"""

DRAIN = 4.0
"""Seconds that a pod serves after SIGTERM: longer than in rollouts.py, since kube-proxy on a busy
machine is not under test here.
"""

CONTAINER: Json = {
    "env": [{"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
}

INTERVAL = "500ms"
"""Interval of the scrapes."""

CAUGHT_BY = {"errors": "success_rate", "slow": "latency"}
"""Bad versions, and the metric that detects each."""


def image(version: str) -> str:
    return f"localhost/web:{version}"


@contextlib.contextmanager
def scrape_targets(shop: Shop, targets: Path) -> t.Iterator[Json]:
    """Keep the file of targets up to date while the block runs, and yield Prometheus' option."""
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(0.2):
            with contextlib.suppress(Exception):  # the API server is busy
                pods = [pod for pod in shop.namespace.pods() if pod["status"].get("podIP")]
                draft = targets.with_suffix(".new")
                draft.write_text(
                    json.dumps(
                        [
                            {
                                "targets": [f"{pod['status']['podIP']}:8080"],
                                "labels": {
                                    "namespace": shop.namespace.name,
                                    "pod": pod["metadata"]["name"],
                                },
                            }
                            for pod in pods
                        ]
                    ),
                    "utf-8",
                )
                if not targets.exists() or targets.read_text("utf-8") != draft.read_text("utf-8"):
                    draft.rename(targets)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield {"file_sd_configs": [{"files": [str(targets)]}]}
    finally:
        is_over.set()
        thread.join()


def analysis() -> Json:
    """Return the example of docs/analysis.md."""
    (block,) = re.findall(r"```yaml\n# canary.yml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (spec,) = yaml.safe_load(block)["image_bump_analysis"]
    return t.cast(Json, spec)


@dataclasses.dataclass
class Canary:
    """One pod of a version, and the outcome of the role."""

    version: str
    #: Start and end of the playbook, in seconds since 1970.
    began: float
    ended: float
    output: str
    is_rolled_back: bool
    #: Requests while the playbook ran, and the number of lost ones; all answers between the first
    #: and the last answer of this version; and the answers of this version.
    requests: int = 0
    lost: int = 0
    spell: list[Answer] = dataclasses.field(default_factory=list)
    met: list[Answer] = dataclasses.field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        return self.version in CAUGHT_BY

    @property
    def was_caught(self) -> bool:
        """Whether the role rolled back because of the expected metric."""
        message = f"the analysis has failed: {CAUGHT_BY.get(self.version)}: "
        return self.is_rolled_back and message in " ".join(self.output.split())

    @property
    def seconds(self) -> float:
        """Seconds between the first and the last answer of this version."""
        return self.spell[-1].sent - self.spell[0].sent if self.spell else 0

    def count(self, traffic: Traffic) -> None:
        """Count the answers of this version. A deleted pod may get requests for a moment."""
        meanwhile = traffic.between(self.began, self.ended)
        self.requests, self.lost = len(meanwhile), sum(not answer.version for answer in meanwhile)
        answers = traffic.between(
            self.began, self.ended + (DRAIN + SETTLE if self.is_rolled_back else 0)
        )
        self.met = [answer for answer in answers if answer.version == self.version]
        if self.met:
            self.spell = [
                answer for answer in answers if self.met[0].sent <= answer.sent <= self.met[-1].sent
            ]


def max_share(requests: int) -> float:
    """Return the highest plausible share: the expected one plus five standard deviations."""
    return SHARE + 5 * math.sqrt(SHARE * (1 - SHARE) / requests)


class Stage:
    """A shop, its Prometheus, and the role as a user runs it."""

    def __init__(self, shop: Shop, prometheus: str, folder: Path) -> None:
        self._shop = shop
        self._folder = folder
        self._analysis = {**analysis(), "prometheus_url": prometheus}

    def roll_out(self, version: str) -> Canary:
        """Update one pod with the role, which pauses, or rolls back after a failed analysis."""
        shop = self._shop
        role = {
            "role": "baton.kubernetes.image_bump",
            "image_bump_name": "foo",
            "image_bump_namespace": shop.namespace.name,
            "image_bump_image": image(version),
            "image_bump_stages": [1],
            "image_bump_analysis": [self._analysis],
        }
        play = self._folder / "play.yml"
        plays = [
            {"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": [role]}
        ]
        play.write_text(json.dumps(plays), "utf-8")
        began = time.time()
        environment = clients.environment(shop.namespace.kubeconfig, self._folder)
        ran = clients.Program().run(["ansible-playbook", str(play)], environment)
        print(f"== {version}: {ran.seconds:.1f} s", ran.output, ran.errors, sep="\n")
        images = {pod["spec"]["containers"][0]["image"] for pod in shop.namespace.pods()}
        return Canary(
            version,
            began,
            time.time(),
            ran.output + ran.errors,
            not ran.is_well and image(version) not in images,
        )

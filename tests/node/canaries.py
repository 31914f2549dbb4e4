# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Canaries under live traffic that a Prometheus decides about: who meets them, and for how long.

Prometheus scrapes the containers themselves. Debian's has no discovery by the Kubernetes API: a file tells it the pods' addresses.
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
"""Of one pod: a new connection goes to any of the pods."""

WATCHED = dataclasses.replace(RC, pods=PODS)

RATES = {"new": 400}
"""Requests per second. None on kept connections, whose share depends on where 20 of them happened to be opened."""

DRAIN = 4.0
"""Seconds that a pod serves on: longer than elsewhere, since this is not about kube-proxy on a busy machine."""

CONTAINER: Json = {
    "env": [{"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
}

INTERVAL = "500ms"
"""Of the scrapes."""

CAUGHT_BY = {"errors": "success_rate", "slow": "latency"}
"""Versions that are bad, and the metric that tells."""


def image(version: str) -> str:
    return f"localhost/web:{version}"


@contextlib.contextmanager
def following(shop: Shop, targets: Path) -> t.Iterator[Json]:
    """What makes Prometheus scrape the pods as they come and go, while the block runs."""
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(0.2):
            with contextlib.suppress(Exception):  # an API server that is busy
                pods = [pod for pod in shop.namespace.pods() if pod["status"].get("podIP")]
                draft = targets.with_suffix(".new")
                draft.write_text(json.dumps([{
                    "targets": [f"{pod['status']['podIP']}:8080"],
                    "labels": {"namespace": shop.namespace.name, "pod": pod["metadata"]["name"]}} for pod in pods]), "utf-8")
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
    """The example of docs/analysis.md."""
    (block,) = re.findall(r"```yaml\n# canary.yml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (it,) = yaml.safe_load(block)["image_bump_analysis"]
    return t.cast(Json, it)


@dataclasses.dataclass
class Canary:
    """One pod of a version, and what the role has made of it."""

    version: str
    #: Begin and end of the playbook, in seconds since 1970.
    began: float
    ended: float
    output: str
    has_gone_back: bool
    #: Requests while the playbook ran, and those of them that no version answered; those from the first that has met the version
    #: to the last; and those that have met it.
    requests: int = 0
    lost: int = 0
    spell: list[Answer] = dataclasses.field(default_factory=list)
    met: list[Answer] = dataclasses.field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        return self.version in CAUGHT_BY

    @property
    def was_caught(self) -> bool:
        """By the metric that tells, and by no other one."""
        told = f"the analysis has failed: {CAUGHT_BY.get(self.version)}: "
        return self.has_gone_back and told in " ".join(self.output.split())

    @property
    def seconds(self) -> float:
        """How long anybody has met it."""
        return self.spell[-1].sent - self.spell[0].sent if self.spell else 0

    def count(self, traffic: Traffic) -> None:
        """Tell from the answers who has met it. A pod that is undone may still be sent requests for a moment."""
        meanwhile = traffic.between(self.began, self.ended)
        self.requests, self.lost = len(meanwhile), sum(not each.version for each in meanwhile)
        answers = traffic.between(self.began, self.ended + (DRAIN + SETTLE if self.has_gone_back else 0))
        self.met = [each for each in answers if each.version == self.version]
        if self.met:
            self.spell = [each for each in answers if self.met[0].sent <= each.sent <= self.met[-1].sent]


def most(requests: int) -> float:
    """The share that meets a canary at most: each goes to any pod by chance, and five standard deviations are none."""
    return SHARE + 5 * math.sqrt(SHARE * (1 - SHARE) / requests)


class Stage:
    """Where canaries appear: a shop, its Prometheus, and the role as a user runs it."""

    def __init__(self, shop: Shop, prometheus: str, folder: Path) -> None:
        self._shop = shop
        self._folder = folder
        self._analysis = {**analysis(), "prometheus_url": prometheus}

    def try_out(self, version: str) -> Canary:
        """One pod of that version; the role goes back if the analysis fails, or leaves the update paused."""
        shop = self._shop
        role = {"role": "baton.kubernetes.image_bump", "image_bump_name": "foo", "image_bump_namespace": shop.namespace.name,
                "image_bump_image": image(version), "image_bump_stages": [1], "image_bump_analysis": [self._analysis]}
        play = self._folder / "play.yml"
        plays = [{"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": [role]}]
        play.write_text(json.dumps(plays), "utf-8")
        began = time.time()
        environment = clients.environment(shop.namespace.kubeconfig, self._folder)
        ran = clients.Program().run(["ansible-playbook", str(play)], environment)
        print(f"== {version}: {ran.seconds:.1f} s", ran.output, ran.errors, sep="\n")
        images = {pod["spec"]["containers"][0]["image"] for pod in shop.namespace.pods()}
        return Canary(version, began, time.time(), ran.output + ran.errors, not ran.is_well and image(version) not in images)

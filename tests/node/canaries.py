# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update one pod (a canary) with the role image_bump under traffic, and measure its requests.

Debian's Prometheus cannot discover pods in the Kubernetes API, so it reads a file of addresses.
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
from traffic import SETTLE_SECONDS, Answer, Traffic

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "analysis.md"

PODS = 5
SHARE = 1 / PODS
"""Expected share of the canary in the requests (all on new connections)."""

CANARY_RC = dataclasses.replace(RC, pods=PODS)

RATES = {"new": 400}
"""Requests per second on new connections; with a few persistent ones, the shares would vary."""

DRAIN = 4.0
"""Seconds for which a pod continues to serve after SIGTERM."""

CONTAINER: Json = {
    "env": [{"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}],
    "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
}

INTERVAL = "500ms"
"""Interval of the scrapes."""

FAILING_METRICS = {"errors": "success_rate", "slow": "latency"}
"""The metric that must fail, for each bad version."""


def image(version: str) -> str:
    return f"localhost/web:{version}"


@contextlib.contextmanager
def scraped_pods(shop: Shop, targets: Path) -> t.Iterator[Json]:
    """Write the addresses of the pods to the file `targets` during the block.

    Yield the scrape configuration that reads the file.
    """
    stopped = threading.Event()

    def update_targets() -> None:
        while not stopped.wait(0.2):
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

    thread = threading.Thread(target=update_targets, daemon=True)
    thread.start()
    try:
        yield {"file_sd_configs": [{"files": [str(targets)]}]}
    finally:
        stopped.set()
        thread.join()


def analysis() -> Json:
    (block,) = re.findall(r"```yaml\n# canary.yml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (spec,) = yaml.safe_load(block)["image_bump_analysis"]
    return t.cast(Json, spec)


@dataclasses.dataclass
class Canary:
    """An update of one pod by the role, and the answers to requests during it."""

    version: str
    #: In seconds since 1970.
    began: float
    ended: float
    output: str
    is_rolled_back: bool
    #: Requests during the playbook, and how many of them got no answer.
    requests: int = 0
    lost: int = 0
    #: Answers of all versions from the first to the last answer of the new version.
    all_answers: list[Answer] = dataclasses.field(default_factory=list)
    #: Answers of the new version.
    canary_answers: list[Answer] = dataclasses.field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        return self.version in FAILING_METRICS

    @property
    def was_caught(self) -> bool:
        message = f"the analysis has failed: {FAILING_METRICS.get(self.version)}: "
        return self.is_rolled_back and message in " ".join(self.output.split())

    @property
    def answering_seconds(self) -> float:
        return self.all_answers[-1].sent - self.all_answers[0].sent if self.all_answers else 0

    def assign_answers(self, traffic: Traffic) -> None:
        """Set the fields about requests and answers, including the answers of a terminating pod."""
        during_playbook = traffic.between(self.began, self.ended)
        self.requests = len(during_playbook)
        self.lost = sum(not answer.version for answer in during_playbook)
        answers = traffic.between(
            self.began, self.ended + (DRAIN + SETTLE_SECONDS if self.is_rolled_back else 0)
        )
        self.canary_answers = [answer for answer in answers if answer.version == self.version]
        if self.canary_answers:
            self.all_answers = [
                answer
                for answer in answers
                if self.canary_answers[0].sent <= answer.sent <= self.canary_answers[-1].sent
            ]


def max_share(requests: int) -> float:
    """Return SHARE plus five standard deviations of the measured share."""
    return SHARE + 5 * math.sqrt(SHARE * (1 - SHARE) / requests)


class CanaryRunner:
    def __init__(self, shop: Shop, prometheus: str, folder: Path) -> None:
        self._shop = shop
        self._folder = folder
        self._analysis = {**analysis(), "prometheus_url": prometheus}

    def update_canary(self, version: str) -> Canary:
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
        run = clients.Program().run(["ansible-playbook", str(play)], environment)
        print(f"== {version}: {run.seconds:.1f} s", run.output, run.errors, sep="\n")
        images = {pod["spec"]["containers"][0]["image"] for pod in shop.namespace.pods()}
        return Canary(
            version,
            began,
            time.time(),
            run.output + run.errors,
            not run.has_succeeded and image(version) not in images,
        )

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that no request is lost while shares of the requests change, pods are replaced, and tasks
are killed.
"""

from __future__ import annotations

import random
import time
import typing as t

import measured
import pytest
from rollouts import DEPLOYMENT, RC, STATEFUL_SET, V1, V2, Json, Kind
from routed_shop import Kill, RoutedShop, WriteCounter
from traffic import reasons, versions

RATES = {"new": 40, "persistent": 80}
#: Seconds of traffic before the first and after the last rollout.
MARGIN = 2.0
KINDS = (DEPLOYMENT, RC, STATEFUL_SET)
UPDATE: Json = {"module": "rolling_update", "progress_deadline": 60}
SPLIT: Json = {"module": "traffic_split", "route": "edge"}


def tasks(image: str) -> list[Json]:
    """Return the tasks of a release: held requests, a canary of one pod, shares, all pods.

    The last task restores the route before the last old pods go.
    """
    return [{**SPLIT, "weight": "0%"},
            {**UPDATE, "image": image, "pause_at": 1},
            {**SPLIT, "weight": "1%"},
            {**SPLIT, "weight": "10%"},
            {**UPDATE, "image": image}]


#: A rollback: first all requests return to the old pods, then the new pods go.
ROLLBACK: Json = {**UPDATE, "state": "rolled_back"}


class Release(t.NamedTuple):
    """A release under traffic: the tasks that are killed, and the task after which it ends."""

    #: The kill of the task at a position.
    kills: t.Mapping[int, Kill]
    #: The number of tasks before the rollback, at least two; 0 without a rollback.
    rolled_back_after: int = 0

    @property
    def title(self) -> str:
        if self.rolled_back_after:
            return "split and rolled back"
        return "killed and resumed" if self.kills else "split and completed"


def run(release: Release, shop: RoutedShop, image: str, writes: list[int]) -> int:
    """Run the tasks of a release, and return the number of killed tasks.

    writes: the number of writes of each task, which an undisturbed release stores.
    """
    killed = 0
    planned = tasks(image)
    if release.rolled_back_after:
        planned = [*planned[:release.rolled_back_after], ROLLBACK]
    for position, options in enumerate(planned):
        if kill := release.kills.get(position):
            ended = shop.run(kill=kill, **options)
            assert ended.was_killed or ended.is_well, ended.last_output
            killed += ended.was_killed
        counter = WriteCounter()
        shop.complete(counter, **options)
        if not release.kills and not release.rolled_back_after:
            writes[position] = counter.count
    assert shop.is_restored()
    return killed


def random_kill(writes: t.Sequence[int], generator: random.Random) -> dict[int, Kill]:
    """Return a kill at a random write of a release."""
    points = [(position, number + 1) for position, count in enumerate(writes)
              for number in range(max(1, count - 3))]
    position, number = generator.choice(points)
    return {position: Kill(number, generator.random() < 0.5)}


def releases(kind: Kind, writes: list[int], plain: int, killed: int, rolled_back: int,
             seed: int) -> t.Iterator[Release]:
    """Yield releases: first an undisturbed one, which counts the writes; then random ones."""
    generator = random.Random(f"{seed} {kind.name}")
    for _number in range(plain):
        yield Release({})
    for _number in range(killed):
        yield Release(random_kill(writes, generator))
    for _number in range(rolled_back):
        yield Release({}, generator.randrange(2, 5))


@pytest.mark.parametrize(("kind", "counts"), [
    pytest.param(DEPLOYMENT, (1, 1, 1), id="Deployment"),
    pytest.param(STATEFUL_SET, (1, 0, 1), id="StatefulSet"),
    *(pytest.param(kind, counts, id=f"{kind.name}-long", marks=pytest.mark.long)
      for kind, counts in ((DEPLOYMENT, (2, 4, 1)), (RC, (2, 3, 2)), (STATEFUL_SET, (1, 3, 2))))])
def test_no_request_is_lost(kind, counts, gateway, cluster, namespace, request):
    seed = random.randrange(10**6)
    print("seed", seed)
    rows = request.config.stash[measured.ROWS]
    images, writes = [V1, V2], [0] * len(tasks(V1))
    with RoutedShop(gateway, cluster, namespace, kind) as shop:
        shop.open()
        spans = []
        with shop.traffic(RATES) as traffic:
            time.sleep(MARGIN)
            for release in releases(kind, writes, *counts, seed):
                began = time.time()
                killed = run(release, shop, images[1], writes)
                spans.append((release, began, time.time(), killed))
                shop.wait_for_pods_of(images[0 if release.rolled_back_after else 1])
                if not release.rolled_back_after:
                    images.reverse()
            time.sleep(MARGIN)
    for title in dict.fromkeys(release.title for release, *_span in spans):
        chosen = [span for span in spans if span[0].title == title]
        answers = [answer for _release, began, ended, _killed in chosen
                   for answer in traffic.between(began, ended)]
        rows.append(measured.Row("rollouts", (
            f"{title}, {len(chosen)} times", kind.name,
            float(sum(ended - began for _release, began, ended, _killed in chosen)),
            sum(span[3] for span in chosen), len(answers),
            sum(bool(answer.failure) for answer in answers))))
    print(*(row for row in rows if row.table == "rollouts"), writes, *spans,
          reasons(traffic.answers), *traffic.failures[:20], *gateway.log()[-20:], sep="\n")
    assert traffic.failures == []
    assert versions(traffic.answers) == ["v1", "v2"]
    assert sum(span[3] for span in spans) == counts[1]

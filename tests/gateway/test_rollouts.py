# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that no request is lost during releases, even if tasks are killed."""

from __future__ import annotations

import random
import time
import typing as t

import measured
import pytest
from losses import Stalls, describe_failures, summary
from rollouts import DAEMON_SET, DEPLOYMENT, RC, REPLICA_SET, STATEFUL_SET, V1, V2, Json, Kind
from routed_shop import CONTAINER, Kill, RoutedShop, WriteCounter, container
from traffic import Traffic, versions

#: On new and on persistent connections.
REQUESTS_PER_SECOND = {"new": 60, "persistent": 240}
#: Seconds until the new pod of a DaemonSet is ready. The rollback must start within this time.
SLOW_START = 8.0
#: Seconds of traffic before and after all releases.
MARGIN = 2.0
UPDATE: Json = {"module": "rolling_update", "progress_deadline": 60}
SPLIT: Json = {"module": "traffic_split", "route": "edge"}


def tasks(kind: Kind, image: str) -> list[Json]:
    """Return the options of each task of a release.

    The single pod of a DaemonSet is replaced at once, so its release has no partial weights.
    """
    all_to_old, update = {**SPLIT, "weight": "0%"}, {**UPDATE, "image": image}
    if kind is DAEMON_SET:
        return [all_to_old, update]
    return [all_to_old, {**update, "pause_at": 1}, {**SPLIT, "weight": "1%"},
            {**SPLIT, "weight": "10%"}, update]


#: Sends all requests to the old pods again, and then deletes the new pods.
ROLLBACK: Json = {**UPDATE, "state": "rolled_back"}


class Release(t.NamedTuple):
    #: By the position of the killed task, from 0.
    kills: t.Mapping[int, Kill]
    #: Number of tasks before the rollback, at least two; 0 without a rollback.
    rolled_back_after: int = 0

    @property
    def title(self) -> str:
        if self.rolled_back_after:
            return "split and rolled back"
        return "killed and resumed" if self.kills else "split and completed"

    def tasks(self, kind: Kind, image: str) -> list[Json]:
        planned = tasks(kind, image)
        if self.rolled_back_after:
            return [*planned[:self.rolled_back_after], ROLLBACK]
        return planned

    def is_resumed(self, kind: Kind, position: int) -> bool:
        """Return whether a killed task runs again before the rollback.

        The update of a DaemonSet can be rolled back only while it is in progress.
        """
        return not (kind is DAEMON_SET and position == self.rolled_back_after - 1)


class Pace:
    """Delays the tasks until k6 has sent enough requests, even on an overloaded machine."""

    def __init__(self, traffic: Traffic, request_count: int, release_count: int) -> None:
        self._traffic = traffic
        self._request_count, self._release_count = request_count, release_count

    def wait(self, index: int, part: float) -> None:
        """Wait for the requests due after `index` releases and a part (0 to 1) of the next."""
        while (self._traffic.answer_count()
               < self._request_count * (index + part) / self._release_count):
            time.sleep(1)


def run_release(release: Release, shop: RoutedShop, image: str, write_counts: list[int],
                wait: t.Callable[[float], None]) -> int:
    """Run the tasks of a release, and return the number of killed tasks.

    write_counts: the number of API writes of each task, set by a release without kills. wait:
    called with the completed part of the release (up to 1).
    """
    kill_count = 0
    planned = release.tasks(shop.kind, image)
    for position, options in enumerate(planned):
        if kill := release.kills.get(position):
            task_run = shop.run(kill=kill, **options)
            assert task_run.was_killed or task_run.has_succeeded, task_run.last_output
            kill_count += task_run.was_killed
        if not kill or release.is_resumed(shop.kind, position):
            counter = WriteCounter()
            shop.run_successfully(counter, **options)
            if not release.kills and not release.rolled_back_after:
                write_counts[position] = counter.count
            wait((position + 1) / len(planned))
    assert shop.is_restored()
    return kill_count


def random_kill(write_counts: t.Sequence[int], generator: random.Random) -> dict[int, Kill]:
    """Return {position of the killed task: kill at a random write}."""
    points = [(position, number + 1) for position, count in enumerate(write_counts)
              for number in range(max(1, count - 3))]
    position, number = generator.choice(points)
    return {position: Kill(number, generator.random() < 0.5)}


def releases(kind: Kind, write_counts: list[int], counts: tuple[int, int, int],
             seed: int) -> t.Iterator[Release]:
    """Yield releases without kills, then releases with kills, then releases with a rollback.

    write_counts: as in run_release(). counts: how many of each of these three sorts.
    """
    generator = random.Random(f"{seed} {kind.name}")
    undisturbed_count, killed_count, rolled_back_count = counts
    for _number in range(undisturbed_count):
        yield Release({})
    for _number in range(killed_count):
        yield Release(random_kill(write_counts, generator))
    for _number in range(rolled_back_count):
        if kind is DAEMON_SET:
            # the update is killed after it has written the new template
            yield Release({1: Kill(1, True, b'"/spec/template"')}, 2)
        else:
            yield Release({}, generator.randrange(2, 5))


class ReleaseSpan(t.NamedTuple):
    release: Release
    began: float
    ended: float
    kill_count: int


#: Minimum number of requests of `make test-gateway`, for all five kinds of controllers together.
MIN_REQUESTS = 400_000
LONG_CASES = [pytest.param(kind, (1, 2, 1), MIN_REQUESTS // 5, id=f"{kind.name}-long",
                           marks=pytest.mark.long)
              for kind in (DEPLOYMENT, RC, REPLICA_SET, STATEFUL_SET, DAEMON_SET)]


@pytest.mark.parametrize(("kind", "counts", "min_requests"), [
    pytest.param(DEPLOYMENT, (1, 1, 1), 0, id="Deployment"),
    pytest.param(STATEFUL_SET, (1, 0, 1), 0, id="StatefulSet"), *LONG_CASES])
def test_no_request_is_lost(kind, counts, min_requests, gateway, cluster, namespace, request):
    seed = random.randrange(10**6)
    print("seed", seed)
    images, write_counts = [V1, V2], [0] * len(tasks(kind, V1))
    spans: list[ReleaseSpan] = []
    fields = container(SLOW_START) if kind is DAEMON_SET else CONTAINER
    with RoutedShop(gateway, cluster, namespace, kind, fields) as shop, Stalls() as stalls:
        shop.open()
        with shop.traffic(REQUESTS_PER_SECOND) as traffic:
            time.sleep(MARGIN)
            pace = Pace(traffic, min_requests, sum(counts))
            for number, release in enumerate(releases(kind, write_counts, counts, seed)):
                began = time.time()
                kill_count = run_release(release, shop, images[1], write_counts,
                                         lambda part, number=number: pace.wait(number, part))
                spans.append(ReleaseSpan(release, began, time.time(), kill_count))
                print(spans[-1], flush=True)
                shop.wait_for_pods_of(images[0 if release.rolled_back_after else 1])
                if not release.rolled_back_after:
                    images.reverse()
            time.sleep(MARGIN)
    rows = [row_of(title, kind, traffic, [span for span in spans if span.release.title == title])
            for title in dict.fromkeys(span.release.title for span in spans)]
    request.config.stash[measured.ROWS].extend(rows)
    print(*rows, write_counts, summary(traffic, gateway, stalls),
          *describe_failures(traffic.failures[:50], gateway, stalls),
          *gateway.error_entries()[-20:], sep="\n")
    assert traffic.failures == []
    assert versions(traffic.answers) == ["v1", "v2"]
    assert len(traffic.answers) >= min_requests
    assert sum(span.kill_count for span in spans) == sum(len(span.release.kills) for span in spans)


def row_of(title: str, kind: Kind, traffic: Traffic,
           spans: t.Sequence[ReleaseSpan]) -> measured.Row:
    answers = [answer for span in spans for answer in traffic.between(span.began, span.ended)]
    return measured.Row("rollouts", (
        f"{title}, {len(spans)} times", kind.name,
        float(sum(span.ended - span.began for span in spans)),
        sum(span.kill_count for span in spans), len(answers),
        sum(bool(answer.failure) for answer in answers)))

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that the error of a failed rollout contains the cause and the last lines of the log.

tests/integration/test_broken_rollouts.py tests more causes, with fake nodes.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import re
import typing as t

import pytest
from namespace import Namespace

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutFailed

Json = dict[str, t.Any]

GRACE, DEADLINE = 3.0, 40.0
"""The options failure_grace and progress_deadline, in seconds."""

WORKERS = 4


PROBE = {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1, "failureThreshold": 2}
LATE_PROBE = PROBE | {"initialDelaySeconds": 60}
"""A probe that begins after the exit of the container."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    title: str
    cause_kind: str
    #: Regular expression for the reason that Kubernetes reports.
    reason: str
    #: Regular expression for the message of this reason.
    message: str
    is_fatal: bool = True
    #: Fields of the container and of the pod's spec.
    container: Json = dataclasses.field(default_factory=dict)
    spec: Json = dataclasses.field(default_factory=dict)
    #: Text after the name of the pod.
    place_suffix: str = ", container web"
    #: A text in the log; "" if the error contains no log.
    log: str = ""

    def template(self) -> Json:
        container = {
            "name": "web",
            "image": "localhost/web:v2",
            "readinessProbe": PROBE,
            **self.container,
        }
        return {"spec": {**self.spec, "containers": [container]}}


def environment(**values: t.Any) -> list[Json]:
    return [{"name": name, "value": str(value)} for name, value in values.items()]


CRASHING_ENVIRONMENT = environment(CRASH_MS=300, START_MS=1000)
CRASH_REASONS = "CrashLoopBackOff|Error"  # the kubelet reports both in turn
LAST_LOG_LINE = "FATAL: no connection to database db.example:5432"
ROWS = [
    Row(
        "image that cannot be pulled",
        "image",
        "ErrImagePull|ImagePullBackOff",
        "none/manifests/v9.*: connection refused",
        container={"image": "localhost/none:v9"},
    ),
    Row(
        "image with pull policy Never",
        "image",
        "ErrImageNeverPull",
        "localhost/none:v9.* is not present",
        container={"image": "localhost/none:v9", "imagePullPolicy": "Never"},
    ),
    Row(
        "invalid image name",
        "image-name",
        "InvalidImageName",
        "Bad//Name",
        container={"image": "localhost/Bad//Name"},
    ),
    Row(
        "crash loop",
        "crash",
        CRASH_REASONS,
        "exit code 3",
        container={"env": CRASHING_ENVIRONMENT, "readinessProbe": LATE_PROBE},
        log=LAST_LOG_LINE,
    ),
    Row(
        "out of memory",
        "memory",
        "OOMKilled",
        "exit code 137 .SIGKILL.",
        log="v2 starting",
        container={
            "env": environment(MEMORY_MB=200),
            "resources": {"limits": {"memory": "64Mi"}},
            "readinessProbe": LATE_PROBE,
        },
    ),
    Row(
        "command not in the image",
        "command",
        "StartError|RunContainerError",
        "/nope: no such file",
        container={"command": ["/nope"]},
    ),
    Row(
        "init container crashes",
        "init-crash",
        CRASH_REASONS,
        "exit code 3",
        place_suffix=", init container setup",
        log=LAST_LOG_LINE,
        spec={"initContainers": [{"name": "setup", "image": "localhost/web:v2",
                                  "env": CRASHING_ENVIRONMENT}]},
    ),
    Row(
        "ConfigMap missing",
        "configuration",
        "CreateContainerConfigError",
        "configmap .nope. not found",
        container={"envFrom": [{"configMapRef": {"name": "nope"}}]},
    ),
    Row(
        "Secret of a volume missing",
        "configuration",
        "FailedMount",
        "secret .nope. not found",
        place_suffix="",
        container={"volumeMounts": [{"name": "secret", "mountPath": "/secret"}]},
        spec={"volumes": [{"name": "secret", "secret": {"secretName": "nope"}}]},
    ),
    Row(
        "readiness probe fails",
        "readiness",
        "Unhealthy",
        "Readiness probe failed: HTTP probe failed with statuscode: 503",
        is_fatal=False,
        container={"env": environment(NEVER_READY=1)},
        log="v2 listening",
    ),
    Row(
        "liveness probe fails",
        "liveness",
        "Unhealthy",
        "Liveness probe failed: .*connection refused",
        log="v2 starting",
        container={"env": environment(START_MS=120_000), "livenessProbe": PROBE},
    ),
    Row(
        "no node with enough cpu",
        "unschedulable",
        "Unschedulable",
        "Insufficient cpu",
        is_fatal=False,
        place_suffix="",
        container={"resources": {"requests": {"cpu": "1000"}}},
    ),
    Row(
        "nodeSelector matches no node",
        "unschedulable",
        "Unschedulable",
        "node affinity/selector",
        is_fatal=False,
        place_suffix="",
        spec={"nodeSelector": {"disk": "fast"}},
    ),
]


@dataclasses.dataclass
class Outcome:
    error: RolloutFailed
    lines: list[str]


def fail_rollout(row: Row, kubeconfig: str) -> Outcome:
    namespace = Namespace(kubeconfig, row.title)
    lines: list[str] = []
    try:
        namespace.make_rc(1, "localhost/web:v1")
        with pytest.raises(RolloutFailed) as raised:
            namespace.roll(
                template=row.template(),
                on_line=lines.append,
                failure_grace=GRACE,
                progress_deadline=DEADLINE,
            )
    finally:
        namespace.delete()
    return Outcome(raised.value, lines)


@pytest.fixture(scope="module")
def outcomes(cluster, request):
    """Run the rollouts of all selected tests in parallel, and provide a Future for each row."""
    rows = [
        item.callspec.params["row"]
        for item in request.session.items
        if item.originalname == "test_error_names_the_cause"
    ]
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        yield {row: pool.submit(fail_rollout, row, cluster.kubeconfig) for row in rows}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_error_names_the_cause(row, outcomes):
    outcome = outcomes[row].result()

    print(*outcome.lines, outcome.error.message, *outcome.error.causes, sep="\n")
    assert [cause["kind"] for cause in outcome.error.causes] == [row.cause_kind]
    (cause,) = outcome.error.causes
    assert cause["is_fatal"] == row.is_fatal
    assert cause["place"].startswith("pod foo-") and cause["place"].endswith(row.place_suffix)
    assert re.fullmatch(row.reason, cause["reason"]) and re.search(row.message, cause["message"])
    assert cause["suggestion"] and all(
        line in outcome.error.message for line in cause["suggestion"].splitlines()
    )
    assert (
        "cannot become available" if row.is_fatal else f"no progress for {DEADLINE:g} s"
    ) in outcome.error.what
    assert any(
        line.startswith("waiting: ") and re.search(row.message, line) for line in outcome.lines
    )
    assert row.log in "\n".join(cause.get("log", ())) and bool(row.log) == bool(cause.get("log"))


def test_readiness_probe_may_fail_longer_than_failure_grace(namespace):
    namespace.make_rc(1, "localhost/web:v1")
    container = {
        "name": "web",
        "image": "localhost/web:v2",
        "env": environment(START_MS=GRACE * 4000),
        "readinessProbe": PROBE,
    }

    result = namespace.roll(
        template={"spec": {"containers": [container]}},
        failure_grace=GRACE,
        progress_deadline=DEADLINE,
    )

    assert result["changed"] and result["rollout"]["phase"] == "complete"

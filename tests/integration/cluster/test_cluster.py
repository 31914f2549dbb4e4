# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The embedded cluster with real processes: about half a minute with built programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import binaries
import components
import embedded
import pytest
from embedded import Cluster
from external import ExternalCluster
from kubeapi import Api
from network import Network
from processes import Process
from workspace import HERE, clusters, wait_for

NAME = f"test-{os.getpid()}"
PODS = "/api/v1/namespaces/default/pods"


def tool(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start the command line."""
    return subprocess.Popen(
        [sys.executable, str(HERE), *arguments],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command line."""
    process = tool(*arguments, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def eventually(question: Callable[[], Any], seconds: float = 15) -> Any:
    """Return the first true answer; fails with the last answer."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} s"
        time.sleep(0.05)
    return answer


def pids(name: str) -> dict[str, int]:
    """Component: pid, as remembered; empty for no cluster."""
    try:
        state = json.loads((clusters() / name / "state.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {component: pid for component, (pid, _started) in state["processes"].items()}


def processes(name: str) -> list[str]:
    """Return the command lines of all processes that work in the cluster's folder."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # ended meanwhile
        if str(clusters() / name) + "/" in line:
            lines.append(line)
    return lines


def assert_nothing_left(name: str) -> None:
    """No process, no file."""
    assert not processes(name)
    assert not list(clusters().glob(f"{name}*"))


def api(cluster: Cluster) -> Api:
    """Return a client that verifies the server's certificate."""
    return Api(cluster.server, cluster.token, cluster.certificate_authority)


def pod(name: str, image: str, **metadata: Any) -> dict[str, Any]:
    """Return a pod of two containers; the first decides its fate."""
    # in YAML, on is true
    containers = [{"name": "on", "image": image}, {"name": "sidecar", "image": "sidecar:v1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers},
    }


@pytest.fixture(scope="module", autouse=True)
def no_external_cluster() -> Iterator[None]:
    """Test the embedded cluster even if KUBECONFIG names another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KUBECONFIG", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Start a cluster by two `up` in parallel: one starts the cluster, the other waits and reuses
    the result.
    """
    binaries.provide()
    both = [tool("up", "--name", NAME) for _attempt in range(2)]
    output = "".join(process.communicate(timeout=180)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0], output
    assert output.count("is up after") == output.count("is up already") == 1
    with Cluster(NAME) as running:
        yield running
    assert_nothing_left(NAME)


def test_up_writes_a_private_kubeconfig(cluster: Cluster) -> None:
    """The printed kubeconfig is the whole access, and only its owner can read the file."""
    code, out, _err = run("kubeconfig", "--name", NAME)

    assert (code, out.strip()) == (0, cluster.kubeconfig)
    config = json.loads(Path(cluster.kubeconfig).read_text("utf-8"))
    assert config["clusters"][0]["cluster"] == {
        "server": cluster.server,
        "certificate-authority": cluster.certificate_authority,
    }
    assert config["users"][0]["user"] == {"token": cluster.token}
    files = [file for file in (clusters() / NAME).glob("*") if file.is_file()]
    holders = [file for file in files if cluster.token in file.read_text("utf-8")]
    assert {(file.name, file.stat().st_mode & 0o777) for file in holders} == {
        ("kubeconfig", 0o600),
        ("state.json", 0o600),
        ("tokens.csv", 0o600),
    }


def test_second_up_reuses_the_processes(cluster: Cluster) -> None:
    """Replace no process."""
    before = pids(NAME)

    embedded.up(NAME)

    assert pids(NAME) == before


def test_two_clusters_side_by_side(cluster: Cluster) -> None:
    """Clusters have separate ports and objects, and end separately."""
    with embedded.up(f"{NAME}-b") as neighbour:
        assert neighbour.server != cluster.server
        api(neighbour).create(PODS, pod("only-here", "web:v1"))
        assert "only-here" not in [
            item["metadata"]["name"] for item in api(cluster).get(PODS)["items"]
        ]

    assert_nothing_left(f"{NAME}-b")
    assert run("status", "--name", NAME)[0] == 0


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_up_leaves_nothing(interrupt: signal.Signals) -> None:
    """Ctrl-C while the API server is starting."""
    name = f"{NAME}-i"
    process = tool("up", "--name", name)
    eventually(lambda: "kube-apiserver" in pids(name))

    process.send_signal(interrupt)
    _out, err = process.communicate(timeout=30)

    assert (process.returncode, err) == (130, "interrupted\n")
    assert_nothing_left(name)


def test_failed_up_shows_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    """A component that dies at its start ends the others, and the error shows the reason."""
    broken = tmp_path / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho no licence to serve\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)

    code, _out, err = run("up", "--name", f"{NAME}-f", KUBEBUILDER_ASSETS=str(tmp_path))

    assert code == 1
    assert (
        err == "error: kube-apiserver died at its start; the end of its log:\nno licence to serve\n"
    )
    assert_nothing_left(f"{NAME}-f")


@pytest.mark.parametrize("component", ["kube-apiserver", "kwok"])
def test_killed_component_is_started_again(cluster: Cluster, component: str) -> None:
    """`start` restarts the component that `stop --kill` ended; the others keep running."""
    before = pids(NAME)

    assert run("stop", "--name", NAME, component, "--kill")[0] == 0
    code, out, _err = run("status", "--name", NAME)
    assert code == 1
    assert f"{component:24} stopped" in out
    assert run("start", "--name", NAME, component)[0] == 0

    assert run("status", "--name", NAME)[0] == 0
    assert {name for name, pid in pids(NAME).items() if before[name] != pid} == {component}


def test_up_repairs_and_throttles(cluster: Cluster) -> None:
    """Only a dead component and a controller manager with another limit are replaced."""
    before = pids(NAME)
    os.kill(before["kube-scheduler"], signal.SIGKILL)

    embedded.up(NAME, controller_manager_qps=20)

    assert set(embedded.status(NAME).values()) == {"healthy"}
    assert {name for name, pid in pids(NAME).items() if before[name] != pid} == {
        "kube-scheduler",
        "kube-controller-manager",
    }
    assert any("--kube-api-qps=20 --kube-api-burst=30" in line for line in processes(NAME))
    embedded.up(NAME)
    assert not any("--kube-api-qps=20 " in line for line in processes(NAME))


def test_version_stays_as_long_as_the_cluster(cluster: Cluster) -> None:
    """The cluster has the newest version; another version's API server may not understand the data
    in etcd.
    """
    version = api(cluster).get("/version")
    assert f"{version['major']}.{version['minor']}" == binaries.NEWEST
    before = pids(NAME)

    code, _out, err = run("up", "--name", NAME, BATON_KUBERNETES="1.24")

    assert (code, pids(NAME)) == (1, before)
    assert (
        f"cluster {NAME} has Kubernetes {binaries.NEWEST} and not 1.24, which cannot be changed"
        in err
    )


def test_external_cluster_is_used_unchanged(cluster: Cluster, tmp_path: Path) -> None:
    """`up` checks the cluster and `down` does nothing, both with a message; an unreachable cluster
    is an error.
    """
    external = tmp_path / "config"
    external.write_text(Path(cluster.kubeconfig).read_text("utf-8"), encoding="utf-8")

    code, _out, err = run("up", KUBECONFIG=str(external))
    assert (code, err) == (
        0,
        f"KUBECONFIG={external} names the cluster, and it answers: {cluster.server}\n",
    )
    code, _out, err = run("down", KUBECONFIG=str(external))
    assert (code, err) == (0, f"KUBECONFIG={external} names the cluster: nothing to bring down\n")
    code, _out, err = run("up", "--kubernetes", "1.24", KUBECONFIG=str(external))
    assert (code, err) == (
        1,
        f"error: KUBECONFIG={external} names the cluster: its version cannot be set to 1.24\n",
    )
    assert run("status", "--name", NAME)[0] == 0

    external.write_text(
        external.read_text("utf-8").replace(cluster.server, "https://127.0.0.1:1"), encoding="utf-8"
    )
    code, _out, err = run("up", KUBECONFIG=str(external))
    assert (code, err) == (
        1,
        f"error: KUBECONFIG={external} names the cluster, "
        "but 'https://127.0.0.1:1' does not answer\n",
    )


@pytest.mark.parametrize(
    "named",
    [
        {"certificate-authority": "ca.crt"},
        {"certificate-authority-data": "dHJ1c3QgbWU=", "certificate-authority": "another.crt"},
    ],
)
def test_external_certificate_authority_is_a_file(tmp_path: Path, named: dict[str, str]) -> None:
    """A certificate inside the kubeconfig, as kind writes, becomes a file too."""
    (tmp_path / "ca.crt").write_text("trust me", "utf-8")
    config = {
        "current-context": "mine",
        "contexts": [{"name": "mine", "context": {"cluster": "mine"}}],
        "clusters": [{"name": "mine", "cluster": named}],
    }
    (tmp_path / "config").write_text(json.dumps(config), "utf-8")

    external = ExternalCluster(tmp_path / "config")

    assert (
        external.certificate_authority
        and Path(external.certificate_authority).read_text("utf-8") == "trust me"
    )


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["up", "--name", "../x"], "a cluster's name consists of"),
        (["stop", "--name", "nobody", "etcd"], "there is no cluster nobody"),
        (["kubeconfig", "--name", "nobody"], "there is no cluster nobody"),
        (
            ["up", "--name", "nobody", "--kubernetes", "1.4"],
            "there is no Kubernetes '1.4' here, but ",
        ),
        (
            ["up", "--name", "nobody", "--kubernetes", "1.24", "--real-node"],
            f"a real node is of Kubernetes {binaries.NEWEST}",
        ),
    ],
)
def test_mistake_is_one_sentence(arguments: list[str], sentence: str) -> None:
    """Exit code 1 and no traceback."""
    code, out, err = run(*arguments)

    assert (code, out) == (1, "")
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1


def test_reused_pid_is_never_signalled() -> None:
    """A process with the pid but another start time is unrelated."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        Process(stranger.pid, started=1).end(signal.SIGKILL)

        assert stranger.poll() is None
        stranger.kill()


def test_process_lives_until_its_last_thread_ends() -> None:
    """The ports stay in use after the first thread is a zombie."""
    program = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"  # ends with the input
        "ctypes.CDLL(None).syscall(60, 0)"
    )  # exit, of this thread alone
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert child.stdin
    wait_for("the end of its first thread", lambda: stat(child.pid)[0] == "Z")
    process = Process(child.pid, int(stat(child.pid)[19]))
    assert process.alive
    child.stdin.close()
    wait_for("its end", lambda: not process.alive)
    child.wait()


def stat(pid: int) -> list[str]:
    """The fields of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()


# Pods: the stages of stages.yaml


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Callable[[str], dict[str, Any]]:
    """Create all pods at once, entry named for the word in its image's tag; return a function that
    reads a pod.
    """
    for word in (
        *(
            "v1",
            "slow",
            "unready",
            "readiness",
            "absent",
            "badname",
            "noconfig",
            "novolume",
            "nocommand",
        ),
        *("crash", "oom", "liveness", "startup", "lost", "evicted"),
    ):
        api(cluster).create(PODS, pod(word, f"registry.test:5000/slow/web:2-{word}"))
    initialized = pod("badinit", "web:badinit")
    initialized["spec"]["initContainers"] = [
        {"name": name, "image": f"{name}:v1"} for name in ("yes", "second")
    ]
    api(cluster).create(PODS, initialized)
    patient = {"baton.test/ready-after": "60s"}
    api(cluster).create(PODS, pod("patient", "web:slow", annotations=patient))
    return lambda name: api(cluster).get(f"{PODS}/{name}")


def first(item: dict[str, Any]) -> dict[str, Any]:
    """Return the status of the first container, empty if missing."""
    return next(iter(item["status"].get("containerStatuses", ())), {})


def waiting(item: dict[str, Any]) -> str:
    """Return why the first container waits, or ""."""
    return first(item).get("state", {}).get("waiting", {}).get("reason", "")


def warnings(cluster: Cluster, name: str) -> dict[str, int]:
    """How often entry Warning was said of a pod, as "reason: message"."""
    events = api(cluster).get("/api/v1/namespaces/default/events")["items"]
    return {
        f"{event['reason']}: {event['message']}": event["count"]
        for event in events
        if event["type"] == "Warning" and event["involvedObject"]["name"] == name
    }


def condition(item: dict[str, Any], kind: str) -> tuple[str, str | None]:
    """Status and reason of a condition."""
    match = next(entry for entry in item["status"]["conditions"] if entry["type"] == kind)
    return match["status"], match.get("reason")


def ready(item: dict[str, Any]) -> bool:
    """The pod's condition."""
    return {"type": "Ready", "status": "True"}.items() <= {
        key: value
        for condition in item["status"].get("conditions", ())
        if condition["type"] == "Ready"
        for key, value in condition.items()
    }.items()


def test_healthy_pod_is_ready_at_once(
    cluster: Cluster, pods: Callable[[str], dict[str, Any]]
) -> None:
    """Pods of a new ReplicationController are ready after about a second, and stay unchanged."""
    api(cluster).create(
        "/api/v1/namespaces/default/replicationcontrollers",
        {
            "apiVersion": "v1",
            "kind": "ReplicationController",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 20,
                "selector": {"app": "web"},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": pod("", "web:v1")["spec"],
                },
            },
        },
    )
    controller = "/api/v1/namespaces/default/replicationcontrollers/web"
    eventually(lambda: api(cluster).get(controller)["status"].get("readyReplicas") == 20, seconds=5)
    before = pods("v1")

    assert ready(before)
    assert (first(before)["ready"], first(before)["restartCount"]) == (True, 0)
    time.sleep(2)
    assert pods("v1") == before


def test_slow_pod_runs_and_is_ready_later(pods: Callable[[str], dict[str, Any]]) -> None:
    """After 3 s, or the time in the annotation."""
    eventually(lambda: "running" in first(pods("patient")).get("state", {}))

    eventually(lambda: ready(pods("slow")))
    assert not ready(pods("patient"))


def test_unready_pod_names_its_unready_containers(pods: Callable[[str], dict[str, Any]]) -> None:
    """Like a failing readiness probe."""
    item = eventually(
        lambda: "running" in first(pods("unready")).get("state", {}) and pods("unready")
    )

    condition = next(entry for entry in item["status"]["conditions"] if entry["type"] == "Ready")
    assert (condition["status"], condition["reason"]) == ("False", "ContainersNotReady")
    assert condition["message"] == "containers with unready status: [on sidecar]"


def test_absent_image_alternates(pods: Callable[[str], dict[str, Any]]) -> None:
    """As on a real kubelet: the pull fails, is put off, fails again."""
    eventually(lambda: waiting(pods("absent")) == "ErrImagePull")
    eventually(lambda: waiting(pods("absent")) == "ImagePullBackOff")
    eventually(lambda: waiting(pods("absent")) == "ErrImagePull")

    assert pods("absent")["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    "word, reason, code",
    [
        ("crash", "Error", 3),
        ("oom", "OOMKilled", 137),
        ("liveness", "Completed", 0),
        ("startup", "Error", 137),
        ("badinit", "Error", 1),
    ],
)
def test_crash_loop(
    pods: Callable[[str], dict[str, Any]], word: str, reason: str, code: int
) -> None:
    """CrashLoopBackOff and running alternate, with one restart more entry time; a kubelet counts at
    the restart.
    """

    def crashing() -> dict[str, Any]:
        """Return the status of the first init container, or else of the first container."""
        status = pods(word)["status"]
        return next(
            iter(status.get("initContainerStatuses") or status.get("containerStatuses", ())), {}
        )

    def reached(state: str) -> dict[str, Any]:
        return eventually(lambda: state in crashing().get("state", {}) and crashing())

    crashed, runs, again = reached("waiting"), reached("running"), reached("waiting")

    assert again["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert again["restartCount"] == runs["restartCount"] == crashed["restartCount"] + 1
    assert again["lastState"]["terminated"].items() >= {"reason": reason, "exitCode": code}.items()


def test_containers_wait_for_a_failing_init_container(
    pods: Callable[[str], dict[str, Any]],
) -> None:
    """The later init containers wait as well."""
    item = eventually(
        lambda: "initContainerStatuses" in pods("badinit")["status"] and pods("badinit")
    )

    assert condition(item, "Initialized") == ("False", "ContainersNotInitialized")
    assert (
        item["status"]["initContainerStatuses"][1]["state"]["waiting"]["reason"]
        == "PodInitializing"
    )
    assert {
        entry["state"]["waiting"]["reason"] for entry in item["status"]["containerStatuses"]
    } == {"PodInitializing"}
    assert item["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    "word, reason, message",
    [
        ("noconfig", "CreateContainerConfigError", 'configmap "nope" not found'),
        (
            "badname",
            "InvalidImageName",
            'Failed to apply default image tag "registry.test:5000/slow/web:2-badname": '
            "couldn't parse image name "
            '"registry.test:5000/slow/web:2-badname": invalid reference format',
        ),
    ],
)
def test_container_that_is_never_created(
    pods: Callable[[str], dict[str, Any]], word: str, reason: str, message: str
) -> None:
    """The container waits, and the status shows the reason."""
    eventually(lambda: waiting(pods(word)) == reason)

    assert first(pods(word))["state"]["waiting"]["message"] == message
    assert pods(word)["status"]["phase"] == "Pending"


def test_missing_command_alternates(pods: Callable[[str], dict[str, Any]]) -> None:
    """RunContainerError alternates with CrashLoopBackOff, whose last state has the same message."""

    def reached(reason: str) -> dict[str, Any]:
        return eventually(lambda: waiting(pods("nocommand")) == reason and first(pods("nocommand")))

    failed, backed_off, _again = (
        reached("RunContainerError"),
        reached("CrashLoopBackOff"),
        reached("RunContainerError"),
    )

    message = failed["state"]["waiting"]["message"]
    assert message.endswith('exec: "/nope": stat /nope: no such file or directory: unknown')
    end = {"reason": "StartError", "exitCode": 128, "message": message}
    assert backed_off["lastState"]["terminated"].items() >= end.items()
    assert pods("nocommand")["status"]["phase"] == "Running"


def test_missing_volume_is_reported_by_an_event_only(
    cluster: Cluster, pods: Callable[[str], dict[str, Any]]
) -> None:
    """The status looks like a pod's that is about to start."""
    event = 'FailedMount: MountVolume.SetUp failed for volume "v" : secret "nope" not found'

    eventually(lambda: event in warnings(cluster, "novolume"))

    assert waiting(pods("novolume")) == "ContainerCreating"
    assert condition(pods("novolume"), "PodReadyToStartContainers") == ("False", None)


def test_failing_readiness_probe_is_reported_repeatedly(
    cluster: Cluster, pods: Callable[[str], dict[str, Any]]
) -> None:
    """The pod runs, and is not ready."""
    event = "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503"

    eventually(lambda: warnings(cluster, "readiness").get(event, 0) >= 3)

    assert "running" in first(pods("readiness"))["state"]
    assert condition(pods("readiness"), "Ready") == ("False", "ContainersNotReady")


@pytest.mark.parametrize("word, probe", [("liveness", "Liveness"), ("startup", "Startup")])
def test_probe_fails_before_it_kills(
    cluster: Cluster, pods: Callable[[str], dict[str, Any]], word: str, probe: str
) -> None:
    """Three times, the default failureThreshold, in entry run of the container."""
    event = f"Unhealthy: {probe} probe failed: HTTP probe failed with statuscode: 503"

    eventually(
        lambda: (
            first(pods(word)).get("restartCount", 0) >= 2
            and "waiting" in first(pods(word))["state"]
        )
    )

    assert warnings(cluster, word)[event] >= 6


def test_lost_node_makes_only_the_pod_unready(
    cluster: Cluster, pods: Callable[[str], dict[str, Any]]
) -> None:
    """Only the kubelet could report the state of the containers."""
    eventually(lambda: "NodeNotReady: Node is not ready" in warnings(cluster, "lost"))

    item = pods("lost")
    assert condition(item, "Ready") == ("False", None)
    assert condition(item, "ContainersReady") == ("True", None)
    assert first(item)["ready"] and "running" in first(item)["state"]


def test_evicted_pod_has_failed(pods: Callable[[str], dict[str, Any]]) -> None:
    """The evicted pod remains for inspection, and a controller creates another."""
    eventually(lambda: pods("evicted")["status"]["phase"] == "Failed")

    item = pods("evicted")
    assert item["status"]["reason"] == "Evicted"
    assert item["status"]["message"].startswith("The node was low on resource: memory. ")
    assert condition(item, "DisruptionTarget") == ("True", "TerminationByKubelet")
    assert condition(item, "Ready") == ("False", "PodFailed")
    assert first(item)["state"]["terminated"]["exitCode"] == 137


def test_etcd_is_unreachable_for_pods():
    settings = components.Settings(
        clusters() / NAME, 20000, 20, binaries.NEWEST, network=Network(7)
    )

    for words in (
        components._etcd(settings),
        [word for word in components._kube_apiserver(settings) if "etcd" in word],
    ):
        urls = [word for word in words if "http://" in word]
        assert urls and all(
            "http://127.0.0.1:2000" in url and settings.address not in url for url in urls
        )

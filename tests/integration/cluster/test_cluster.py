# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the embedded cluster with real processes."""

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
ReadPod = Callable[[str], dict[str, Any]]


def start_tool(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE), *arguments],
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run_tool(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = start_tool(*arguments, **environment)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def eventually(get: Callable[[], Any], seconds: float = 15) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := get()):
        assert time.monotonic() < deadline, f"still {value!r} after {seconds} s"
        time.sleep(0.05)
    return value


def pids(name: str) -> dict[str, int]:
    try:
        state = json.loads((clusters() / name / "state.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return {component: pid for component, (pid, _started) in state["processes"].items()}


def command_lines(name: str) -> list[str]:
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # the process has exited
        if str(clusters() / name) + "/" in line:
            lines.append(line)
    return lines


def assert_removed(name: str) -> None:
    assert not command_lines(name)
    assert not list(clusters().glob(f"{name}*"))


def api(cluster: Cluster) -> Api:
    return Api(cluster.server, cluster.token, cluster.certificate_authority)


def pod(name: str, image: str, **metadata: Any) -> dict[str, Any]:
    """Return a pod with two containers. `image`, of the first one, determines its behavior."""
    # The name tests the quoting in stages.kwok: in YAML, an unquoted `on` is a boolean.
    containers = [{"name": "on", "image": image}, {"name": "sidecar", "image": "sidecar:v1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": containers},
    }


@pytest.fixture(scope="module", autouse=True)
def no_external_cluster() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KUBECONFIG", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Provide a cluster. Two parallel `up` commands start it."""
    binaries.provide()
    processes_of_up = [start_tool("up", "--name", NAME) for _attempt in range(2)]
    output = "".join(process.communicate(timeout=180)[1] for process in processes_of_up)
    assert [process.returncode for process in processes_of_up] == [0, 0], output
    assert output.count("is up after") == output.count("is up already") == 1
    with Cluster(NAME) as running:
        yield running
    assert_removed(NAME)


def test_up_writes_a_private_kubeconfig(cluster: Cluster) -> None:
    code, out, _err = run_tool("kubeconfig", "--name", NAME)

    assert (code, out.strip()) == (0, cluster.kubeconfig)
    config = json.loads(Path(cluster.kubeconfig).read_text("utf-8"))
    assert config["clusters"][0]["cluster"] == {
        "server": cluster.server,
        "certificate-authority": cluster.certificate_authority,
    }
    assert config["users"][0]["user"] == {"token": cluster.token}
    files = [file for file in (clusters() / NAME).glob("*") if file.is_file()]
    files_with_token = [file for file in files if cluster.token in file.read_text("utf-8")]
    assert {(file.name, file.stat().st_mode & 0o777) for file in files_with_token} == {
        ("kubeconfig", 0o600),
        ("state.json", 0o600),
        ("tokens.csv", 0o600),
    }


def test_second_up_reuses_the_processes(cluster: Cluster) -> None:
    before = pids(NAME)

    embedded.up(NAME)

    assert pids(NAME) == before


def test_clusters_run_in_parallel(cluster: Cluster) -> None:
    with embedded.up(f"{NAME}-b") as second_cluster:
        assert second_cluster.server != cluster.server
        api(second_cluster).create(PODS, pod("only-here", "web:v1"))
        assert "only-here" not in [
            item["metadata"]["name"] for item in api(cluster).get(PODS)["items"]
        ]

    assert_removed(f"{NAME}-b")
    assert run_tool("status", "--name", NAME)[0] == 0


@pytest.mark.parametrize("interrupt", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_up_leaves_no_processes_or_files(interrupt: signal.Signals) -> None:
    name = f"{NAME}-i"
    process = start_tool("up", "--name", name)
    eventually(lambda: "kube-apiserver" in pids(name))

    process.send_signal(interrupt)
    _out, err = process.communicate(timeout=30)

    assert (process.returncode, err) == (130, "interrupted\n")
    assert_removed(name)


PROGRAM_WITH_WORKERS = """
import contextlib, sys, time
sys.path.insert(0, sys.argv[1])
import embedded, workers
workers.prepare_program()
def run(_resource, name):
    with embedded.up(name):
        print("up", flush=True)
        time.sleep(600)
workers.run_jobs([sys.argv[2]], 1, lambda _number: contextlib.nullcontext(), run)
"""


def test_terminated_program_leaves_no_cluster_of_a_worker() -> None:
    name = f"{NAME}-w"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM_WITH_WORKERS, str(Path(embedded.__file__).parent), name],
        stdout=subprocess.PIPE, text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        process.terminate()
        assert process.wait(30) == 143

    assert_removed(name)


def test_failed_up_shows_the_log_and_removes_the_cluster(tmp_path: Path) -> None:
    broken_server = tmp_path / "kube-apiserver"
    broken_server.write_text("#!/bin/sh\necho no license to serve\nexit 1\n", encoding="utf-8")
    broken_server.chmod(0o755)

    code, _out, err = run_tool("up", "--name", f"{NAME}-f", KUBEBUILDER_ASSETS=str(tmp_path))

    assert code == 1
    assert (
        err
        == "error: kube-apiserver exited during startup; the end of its log:\nno license to serve\n"
    )
    assert_removed(f"{NAME}-f")


@pytest.mark.parametrize("component", ["kube-apiserver", "kwok"])
def test_start_restarts_a_killed_component(cluster: Cluster, component: str) -> None:
    before = pids(NAME)

    assert run_tool("stop", "--name", NAME, component, "--kill")[0] == 0
    code, out, _err = run_tool("status", "--name", NAME)
    assert code == 1
    assert f"{component:24} stopped" in out
    assert run_tool("start", "--name", NAME, component)[0] == 0

    assert run_tool("status", "--name", NAME)[0] == 0
    assert {name for name, pid in pids(NAME).items() if before[name] != pid} == {component}


def test_up_restarts_dead_and_reconfigured_components(cluster: Cluster) -> None:
    before = pids(NAME)
    os.kill(before["kube-scheduler"], signal.SIGKILL)

    embedded.up(NAME, controller_manager_qps=20)

    assert set(embedded.status(NAME).values()) == {"healthy"}
    assert {name for name, pid in pids(NAME).items() if before[name] != pid} == {
        "kube-scheduler",
        "kube-controller-manager",
    }
    assert any("--kube-api-qps=20 --kube-api-burst=30" in line for line in command_lines(NAME))
    embedded.up(NAME)
    assert not any("--kube-api-qps=20 " in line for line in command_lines(NAME))


def test_up_refuses_to_change_the_version(cluster: Cluster) -> None:
    """Another version may not be able to read the data in etcd."""
    version = api(cluster).get("/version")
    assert f"{version['major']}.{version['minor']}" == binaries.NEWEST
    before = pids(NAME)

    code, _out, err = run_tool("up", "--name", NAME, BATON_KUBERNETES="1.24")

    assert (code, pids(NAME)) == (1, before)
    assert (
        f"cluster {NAME} has Kubernetes {binaries.NEWEST} and not 1.24, which cannot be changed"
        in err
    )


def test_external_cluster_is_only_checked(cluster: Cluster, tmp_path: Path) -> None:
    external_kubeconfig = tmp_path / "config"
    external_kubeconfig.write_text(Path(cluster.kubeconfig).read_text("utf-8"), encoding="utf-8")

    code, _out, err = run_tool("up", KUBECONFIG=str(external_kubeconfig))
    assert (code, err) == (
        0,
        f"external cluster, KUBECONFIG={external_kubeconfig}, and it answers: {cluster.server}\n",
    )
    code, _out, err = run_tool("down", KUBECONFIG=str(external_kubeconfig))
    assert (code, err) == (
        0,
        f"external cluster, KUBECONFIG={external_kubeconfig}: nothing to bring down\n",
    )
    code, _out, err = run_tool("up", "--kubernetes", "1.24", KUBECONFIG=str(external_kubeconfig))
    assert (code, err) == (
        1,
        f"error: external cluster, KUBECONFIG={external_kubeconfig}: "
        "its version cannot be set to 1.24\n",
    )
    assert run_tool("status", "--name", NAME)[0] == 0

    external_kubeconfig.write_text(
        external_kubeconfig.read_text("utf-8").replace(cluster.server, "https://127.0.0.1:1"),
        encoding="utf-8",
    )
    code, _out, err = run_tool("up", KUBECONFIG=str(external_kubeconfig))
    assert (code, err) == (
        1,
        f"error: external cluster, KUBECONFIG={external_kubeconfig}, "
        "but 'https://127.0.0.1:1' does not answer\n",
    )


@pytest.mark.parametrize(
    "cluster_entry",
    [
        {"certificate-authority": "ca.crt"},
        {"certificate-authority-data": "dHJ1c3QgbWU=", "certificate-authority": "another.crt"},
    ],
)
def test_external_certificate_authority_is_available_as_a_file(
    tmp_path: Path, cluster_entry: dict[str, str]
) -> None:
    """Inline data, as in the kubeconfig of kind, is written to a temporary file."""
    (tmp_path / "ca.crt").write_text("trust me", "utf-8")
    config = {
        "current-context": "mine",
        "contexts": [{"name": "mine", "context": {"cluster": "mine"}}],
        "clusters": [{"name": "mine", "cluster": cluster_entry}],
    }
    (tmp_path / "config").write_text(json.dumps(config), "utf-8")

    external = ExternalCluster(tmp_path / "config")

    assert (
        external.certificate_authority
        and Path(external.certificate_authority).read_text("utf-8") == "trust me"
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["up", "--name", "../x"], "a cluster name has at most 42 characters"),
        (["stop", "--name", "missing", "etcd"], "there is no cluster missing"),
        (["kubeconfig", "--name", "missing"], "there is no cluster missing"),
        (
            ["up", "--name", "missing", "--kubernetes", "1.4"],
            "Kubernetes '1.4' is not available; versions: ",
        ),
        (
            ["up", "--name", "missing", "--kubernetes", "1.24", "--real-node"],
            f"a real node requires Kubernetes {binaries.NEWEST}",
        ),
    ],
)
def test_error_is_one_line(arguments: list[str], message: str) -> None:
    code, out, err = run_tool(*arguments)

    assert (code, out) == (1, "")
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1


def test_reused_pid_is_never_signaled() -> None:
    with subprocess.Popen(["sleep", "60"]) as unrelated:
        Process(unrelated.pid, started=1).end(signal.SIGKILL)

        assert unrelated.poll() is None
        unrelated.kill()


def test_process_is_alive_until_its_last_thread_exits() -> None:
    program = (
        "import ctypes, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"  # exits at the end of the input
        "ctypes.CDLL(None).syscall(60, 0)"  # SYS_exit ends only this thread
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    assert child.stdin
    wait_for("the exit of the first thread", lambda: stat(child.pid)[0] == "Z")
    process = Process(child.pid, int(stat(child.pid)[19]))
    assert process.alive
    child.stdin.close()
    wait_for("the exit of the process", lambda: not process.alive)
    child.wait()


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()


# Pods, whose behavior stages.kwok defines


@pytest.fixture(scope="module")
def read_pod(cluster: Cluster) -> ReadPod:
    for behavior in (
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
        api(cluster).create(PODS, pod(behavior, f"registry.test:5000/slow/web:2-{behavior}"))
    pod_with_init_containers = pod("badinit", "web:badinit")
    pod_with_init_containers["spec"]["initContainers"] = [
        {"name": name, "image": f"{name}:v1"} for name in ("yes", "second")
    ]
    api(cluster).create(PODS, pod_with_init_containers)
    annotations = {"baton.test/ready-after": "60s"}
    api(cluster).create(PODS, pod("slow-60s", "web:slow", annotations=annotations))
    return lambda name: api(cluster).get(f"{PODS}/{name}")


def first_container(item: dict[str, Any]) -> dict[str, Any]:
    return next(iter(item["status"].get("containerStatuses", ())), {})


def waiting_reason(item: dict[str, Any]) -> str:
    return first_container(item).get("state", {}).get("waiting", {}).get("reason", "")


def warnings(cluster: Cluster, name: str) -> dict[str, int]:
    events = api(cluster).get("/api/v1/namespaces/default/events")["items"]
    return {
        f"{event['reason']}: {event['message']}": event["count"]
        for event in events
        if event["type"] == "Warning" and event["involvedObject"]["name"] == name
    }


def condition(item: dict[str, Any], condition_type: str) -> tuple[str, str | None]:
    match = next(entry for entry in item["status"]["conditions"] if entry["type"] == condition_type)
    return match["status"], match.get("reason")


def is_ready(item: dict[str, Any]) -> bool:
    return {"type": "Ready", "status": "True"}.items() <= {
        key: value
        for condition in item["status"].get("conditions", ())
        if condition["type"] == "Ready"
        for key, value in condition.items()
    }.items()


def test_healthy_pod_is_ready_at_once(
    cluster: Cluster, read_pod: ReadPod
) -> None:
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
    before = read_pod("v1")

    assert is_ready(before)
    assert (first_container(before)["ready"], first_container(before)["restartCount"]) == (True, 0)
    time.sleep(2)
    assert read_pod("v1") == before


def test_slow_pod_becomes_ready_later(read_pod: ReadPod) -> None:
    eventually(lambda: "running" in first_container(read_pod("slow-60s")).get("state", {}))

    eventually(lambda: is_ready(read_pod("slow")))
    assert not is_ready(read_pod("slow-60s"))


def test_unready_pod_names_its_unready_containers(read_pod: ReadPod) -> None:
    item = eventually(
        lambda: "running" in first_container(read_pod("unready")).get("state", {})
        and read_pod("unready")
    )

    ready_condition = next(
        entry for entry in item["status"]["conditions"] if entry["type"] == "Ready"
    )
    assert (ready_condition["status"], ready_condition["reason"]) == ("False", "ContainersNotReady")
    assert ready_condition["message"] == "containers with unready status: [on sidecar]"


def test_missing_image_is_pulled_again_after_a_back_off(read_pod: ReadPod) -> None:
    eventually(lambda: waiting_reason(read_pod("absent")) == "ErrImagePull")
    eventually(lambda: waiting_reason(read_pod("absent")) == "ImagePullBackOff")
    eventually(lambda: waiting_reason(read_pod("absent")) == "ErrImagePull")

    assert read_pod("absent")["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    "behavior, reason, code",
    [
        ("crash", "Error", 3),
        ("oom", "OOMKilled", 137),
        ("liveness", "Completed", 0),
        ("startup", "Error", 137),
        ("badinit", "Error", 1),
    ],
)
def test_crash_loop_alternates_between_back_off_and_running(
    read_pod: ReadPod, behavior: str, reason: str, code: int
) -> None:
    def container_status() -> dict[str, Any]:
        status = read_pod(behavior)["status"]
        return next(
            iter(status.get("initContainerStatuses") or status.get("containerStatuses", ())), {}
        )

    def wait_for_state(state: str) -> dict[str, Any]:
        return eventually(
            lambda: state in container_status().get("state", {}) and container_status()
        )

    crashed, restarted, crashed_again = (
        wait_for_state(state) for state in ("waiting", "running", "waiting")
    )

    assert crashed_again["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert crashed_again["restartCount"] == restarted["restartCount"] == crashed["restartCount"] + 1
    assert (
        crashed_again["lastState"]["terminated"].items()
        >= {"reason": reason, "exitCode": code}.items()
    )


def test_containers_wait_for_a_failing_init_container(read_pod: ReadPod) -> None:
    item = eventually(
        lambda: "initContainerStatuses" in read_pod("badinit")["status"] and read_pod("badinit")
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
    "behavior, reason, message",
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
def test_container_that_cannot_be_created_waits_with_a_reason(
    read_pod: ReadPod, behavior: str, reason: str, message: str
) -> None:
    eventually(lambda: waiting_reason(read_pod(behavior)) == reason)

    assert first_container(read_pod(behavior))["state"]["waiting"]["message"] == message
    assert read_pod(behavior)["status"]["phase"] == "Pending"


def test_container_with_a_missing_command_is_restarted(read_pod: ReadPod) -> None:
    def wait_for_reason(reason: str) -> dict[str, Any]:
        return eventually(
            lambda: (
                waiting_reason(read_pod("nocommand")) == reason
                and first_container(read_pod("nocommand"))
            )
        )

    failed, backed_off, _failed_again = (
        wait_for_reason("RunContainerError"),
        wait_for_reason("CrashLoopBackOff"),
        wait_for_reason("RunContainerError"),
    )

    message = failed["state"]["waiting"]["message"]
    assert message.endswith('exec: "/nope": stat /nope: no such file or directory: unknown')
    terminated = {"reason": "StartError", "exitCode": 128, "message": message}
    assert backed_off["lastState"]["terminated"].items() >= terminated.items()
    assert read_pod("nocommand")["status"]["phase"] == "Running"


def test_missing_volume_is_reported_by_an_event_only(
    cluster: Cluster, read_pod: ReadPod
) -> None:
    event = 'FailedMount: MountVolume.SetUp failed for volume "v" : secret "nope" not found'

    eventually(lambda: event in warnings(cluster, "novolume"))

    assert waiting_reason(read_pod("novolume")) == "ContainerCreating"
    assert condition(read_pod("novolume"), "PodReadyToStartContainers") == ("False", None)


def test_failing_readiness_probe_is_reported_repeatedly(
    cluster: Cluster, read_pod: ReadPod
) -> None:
    event = "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503"

    eventually(lambda: warnings(cluster, "readiness").get(event, 0) >= 3)

    assert "running" in first_container(read_pod("readiness"))["state"]
    assert condition(read_pod("readiness"), "Ready") == ("False", "ContainersNotReady")


@pytest.mark.parametrize("behavior, probe", [("liveness", "Liveness"), ("startup", "Startup")])
def test_container_is_killed_after_three_failed_probes(
    cluster: Cluster, read_pod: ReadPod, behavior: str, probe: str
) -> None:
    event = f"Unhealthy: {probe} probe failed: HTTP probe failed with statuscode: 503"

    eventually(
        lambda: (
            first_container(read_pod(behavior)).get("restartCount", 0) >= 2
            and "waiting" in first_container(read_pod(behavior))["state"]
        )
    )

    assert warnings(cluster, behavior)[event] >= 6


def test_pod_on_an_unreachable_node_is_unready(
    cluster: Cluster, read_pod: ReadPod
) -> None:
    """The container statuses stay the same, because only the kubelet could update them."""
    eventually(lambda: "NodeNotReady: Node is not ready" in warnings(cluster, "lost"))

    item = read_pod("lost")
    assert condition(item, "Ready") == ("False", None)
    assert condition(item, "ContainersReady") == ("True", None)
    assert first_container(item)["ready"] and "running" in first_container(item)["state"]


def test_evicted_pod_has_failed(read_pod: ReadPod) -> None:
    eventually(lambda: read_pod("evicted")["status"]["phase"] == "Failed")

    item = read_pod("evicted")
    assert item["status"]["reason"] == "Evicted"
    assert item["status"]["message"].startswith("The node was low on resource: memory. ")
    assert condition(item, "DisruptionTarget") == ("True", "TerminationByKubelet")
    assert condition(item, "Ready") == ("False", "PodFailed")
    assert first_container(item)["state"]["terminated"]["exitCode"] == 137


def test_etcd_is_unreachable_for_pods():
    settings = components.Settings(
        clusters() / NAME, 20000, 20, binaries.NEWEST, network=Network(7)
    )

    for arguments in (
        components._etcd_arguments(settings),
        [
            argument
            for argument in components._kube_apiserver_arguments(settings)
            if "etcd" in argument
        ],
    ):
        urls = [argument for argument in arguments if "http://" in argument]
        assert urls and all(
            "http://127.0.0.1:2000" in url and settings.address not in url for url in urls
        )

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a node with real containers. Containerd, kubelet and kube-proxy run in private namespaces.

The component `node` is process 1 of these namespaces. When it is killed, the kernel kills all
processes of the node, and removes mounts and network. Subfolders of the cluster's cache folder are
mounted over /var/lib, /var/log and /run. Requires root.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import binaries
from components import Component, Settings
from images import Image, archive
from kubeapi import status_of
from machine import PLUGINS, control_groups, remove_control_groups, system_program
from network import Network, run
from processes import Process
from workspace import ClusterError, wait_for

NAME = "real-0"
NAMESPACES = ("-m", "-n", "-p", "-u", "-i")
"""Options of unshare and nsenter: mount, network, PID, UTS and IPC namespace."""

CTR = ("ctr", "--namespace", "k8s.io")
"""Containerd's client."""

KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Files with these values are mounted over /proc/sys. Otherwise, the kubelet would change the
machine's settings.
"""

RARE_ERRORS = {"ERRORS": "0.0003"}
"""Environment of a web server with 3 errors in 10,000 answers."""

ENVIRONMENT_BY_TAG: dict[str, dict[str, str]] = {
    "v1": {},
    "v2": {},
    "v3": {},
    "good-1": RARE_ERRORS,
    "good-2": RARE_ERRORS,
    "errors": {"ERRORS": "0.05"},
    "slow": RARE_ERRORS | {"SLOW_MS": "200"},
}
"""The environment of each image of the web server."""

IMAGES = [
    Image("localhost/pause:1", ["/web", "pause"]),
    *(
        Image(f"localhost/web:{version}", ["/web"], {"VERSION": version, **environment})
        for version, environment in ENVIRONMENT_BY_TAG.items()
    ),
]
"""The only images of the node, which cannot pull images."""


def remove(network: Network) -> None:
    network.down()
    remove_control_groups(network.bridge)


def nsenter_prefix(running: Mapping[str, Process]) -> list[str]:
    """Return the first words of a command in the node's namespaces. Raises ClusterError."""
    if "node" not in running:
        raise ClusterError(
            "there is no real node, or it is stopped: start the component `node` first"
        )
    return [system_program("nsenter"), "-t", str(running["node"].pid), *NAMESPACES, "--"]


class ComponentOnNode(Component):
    def command(
        self, settings: Settings, programs: Mapping[str, Path], running: Mapping[str, Process]
    ) -> list[str]:
        program = str(programs[self.name]) if self.name in programs else system_program(self.name)
        return [*nsenter_prefix(running), program, *self.arguments(settings)]

    def is_healthy(self, settings: Settings) -> bool:
        return status_of(f"http://{_network(settings).node}:{self.port}{self.health_path}") == 200


class Node(Component):
    def command(
        self, settings: Settings, programs: Mapping[str, Path], running: Mapping[str, Process]
    ) -> list[str]:
        unshare = [
            system_program("unshare"),
            *NAMESPACES,
            "--propagation",
            "slave",
            "--mount-proc",
            "--fork",
        ]
        return [
            *unshare,
            "/bin/sh",
            str(_folder(settings) / "init.sh"),
            str(programs["web"]),
            "pause",
        ]

    def is_healthy(self, settings: Settings) -> bool:
        return True

    def prepare(self, settings: Settings) -> None:
        folder = _folder(settings)
        # left by a killed node
        remove_control_groups(_network(settings).bridge)
        for group in control_groups(_network(settings).bridge):
            group.mkdir()
            if group.parent.name == "cpuset":  # a new group has no CPU and no memory node
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (group / file).write_text((group.parent / file).read_text("ascii"), "ascii")
        for path in (
            "var-lib/kubelet",
            "var-lib/cni",
            "var-lib/containerd",
            "var-log/pods",
            "run",
            "opt",
            "kernel",
        ):
            (folder / path).mkdir(parents=True, exist_ok=True)
        for path, value in KERNEL_SETTINGS.items():
            (folder / "kernel" / path.replace("/", ".")).write_text(f"{value}\n", "ascii")
        (folder / "network-is-up").unlink(missing_ok=True)
        (folder / "init.sh").write_text(_script(folder, _network(settings)), "utf-8")

    def complete_start(self, settings: Settings, process: Process) -> None:
        """Connect the network, for which the node's script waits."""
        _network(settings).connect(process.pid)
        folder = _folder(settings)
        wait_for(
            "the node's network", (folder / "network-is-up").exists, folder.parent / "logs/node.log"
        )


class Containerd(ComponentOnNode):
    def prepare(self, settings: Settings) -> None:
        folder = _folder(settings)
        configuration = CONTAINERD_CONFIGURATION.format(
            folder=folder, network=_network(settings), plugins=PLUGINS
        )
        (folder / "containerd.toml").write_text(configuration, "utf-8")
        (folder / "cni").mkdir(exist_ok=True)
        _write(settings, "cni/10-bridge.conflist", _cni_configuration(_network(settings)))

    def complete_start(self, settings: Settings, process: Process) -> None:
        images = archive(binaries.provide(["web"])["web"], IMAGES)
        run(
            system_program("nsenter"),
            "-t",
            str(process.pid),
            "-m",
            "-n",
            *CTR,
            "images",
            "import",
            "-",
            stdin=images,
        )


class Kubelet(ComponentOnNode):
    def prepare(self, settings: Settings) -> None:
        (_folder(settings) / "resolv.conf").write_text("nameserver 127.0.0.1\n", "ascii")
        _write(settings, "kubelet.yaml", _kubelet_configuration(settings))


class KubeProxy(ComponentOnNode):
    def prepare(self, settings: Settings) -> None:
        _write(settings, "kube-proxy.yaml", _kube_proxy_configuration(settings))


def create_client_certificate(settings: Settings) -> None:
    """Create the API server's self-signed client certificate. Raises ClusterError."""
    key, certificate = (
        str(settings.client_certificate_stem.with_suffix(suffix)) for suffix in (".key", ".crt")
    )
    run(
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "3650",
        "-subj",
        "/CN=kube-apiserver",
        "-addext",
        "extendedKeyUsage=clientAuth",
        "-keyout",
        key,
        "-out",
        certificate,
    )


def _kubelet_arguments(settings: Settings) -> list[str]:
    return [
        f"--config={_folder(settings) / 'kubelet.yaml'}",
        f"--kubeconfig={settings.kubeconfig}",
        f"--hostname-override={NAME}",
        f"--node-ip={_network(settings).node}",
        "--node-labels=type=real",
    ]


def _kubelet_configuration(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(settings.client_certificate_stem.with_suffix(".crt"))},
        },
        "authorization": {"mode": "AlwaysAllow"},  # only the API server has a client certificate
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{_network(settings).bridge}",
        # there is no DNS server, but without an address the kubelet would warn for each pod
        "clusterDNS": ["127.0.0.1"],
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzBindAddress": _network(settings).node,
        "imageGCHighThresholdPercent": 100,
        "maxOpenFiles": 20000,
        "resolvConf": str(_folder(settings) / "resolv.conf"),
        "serializeImagePulls": False,
    }


def _kube_proxy_configuration(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(settings.kubeconfig)},
        "clusterCIDR": _network(settings).pod_cidr,
        "conntrack": {"maxPerCore": 0, "min": 0},  # 0: do not change the machine's setting
        "healthzBindAddress": f"{_network(settings).node}:10256",
        "hostnameOverride": NAME,
        "mode": "nftables",
    }


def _cni_configuration(network: Network) -> dict[str, Any]:
    ranges = [[{"subnet": network.pod_cidr}]]
    addresses = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


CONTAINERD_CONFIGURATION = """\
version = 2
[metrics]
  address = "{network.node}:1338"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"""


def _script(folder: Path, network: Network) -> str:
    """Return a script that prepares the namespaces and executes its arguments as process 1."""
    quoted_folder = shlex.quote(str(folder))
    mounts = {"var-lib": "/var/lib", "var-log": "/var/log", "run": "/run"}
    mounts |= {f"kernel/{path.replace('/', '.')}": f"/proc/sys/{path}" for path in KERNEL_SETTINGS}
    lines = [
        "set -e",
        "mount --make-rshared /",
        *(f"mount --bind {quoted_folder}/{source} {path}" for source, path in mounts.items()),
        f"hostname {NAME}",
        "ip link set lo up",
        "until ip link show eth0 > /dev/null 2>&1; do sleep 0.02; done",
        f"ip address add {network.node}/24 dev eth0",
        "ip link set eth0 up",
        f"ip route add default via {network.host}",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        f"touch {quoted_folder}/network-is-up",
        'exec "$@"',
    ]
    return "\n".join(lines) + "\n"


def _folder(settings: Settings) -> Path:
    return settings.folder / "node"


def _network(settings: Settings) -> Network:
    if not settings.network:
        raise ClusterError("this cluster has no real node")
    return settings.network


def _write(settings: Settings, name: str, content: dict[str, Any]) -> None:
    (_folder(settings) / name).write_text(json.dumps(content, indent=2), "utf-8")  # JSON is YAML


# In the order in which they start, as in components.py.
COMPONENTS = (
    (Node("node", lambda _settings: [], 0, "", is_child=True),),
    (
        Containerd(
            "containerd",
            lambda settings: ["--config", f"{_folder(settings)}/containerd.toml"],
            1338,
            "/v1/metrics",
            is_child=True,
        ),
    ),
    (
        Kubelet("kubelet", _kubelet_arguments, 10248, "/healthz", is_child=True),
        KubeProxy(
            "kube-proxy",
            lambda settings: [f"--config={_folder(settings)}/kube-proxy.yaml"],
            10256,
            "/healthz",
            is_child=True,
        ),
    ),
)

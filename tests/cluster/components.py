# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of one cluster: their command lines and health pages."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubeapi import status_of
from network import Network
from processes import Process
from workspace import HERE, ClusterError

LOOPBACK = "127.0.0.1"
WATCHES_END = 27
"""First minor version of Kubernetes whose API server has an option to end its watches."""
PORTS = 6
"""Ports per cluster: two of etcd, API server, controller manager, scheduler, KWOK."""


@dataclass(frozen=True)
class Settings:
    """Inputs of a cluster's command lines."""

    folder: Path
    first_port: int
    controller_manager_qps: int
    kubernetes: str
    """The version, such as 1.36."""
    admission_plugins: tuple[str, ...] = ()
    """Admission plugins of the API server, in addition to the defaults."""
    feature_gates: tuple[str, ...] = ()
    """Feature gates of the API server and the controller manager."""
    network: Network | None = None
    """Network of the real node; None with fake nodes."""

    @property
    def minor(self) -> int:
        """Minor version of Kubernetes."""
        return int(self.kubernetes.rpartition(".")[2])

    @property
    def address(self) -> str:
        """Address on which the control plane listens."""
        return self.network.host if self.network else LOOPBACK

    @property
    def services(self) -> str:
        """Range of the Services' addresses."""
        return self.network.services if self.network else "10.96.0.0/16"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address}:{self.first_port + 2}"

    @property
    def certificate_authority(self) -> Path:
        """Certificate that the API server writes at its first start, followed by the CA."""
        return self.folder / "apiserver/apiserver.crt"

    @property
    def key(self) -> Path:
        """Private key of the certificate, which also signs the ServiceAccount tokens, so that
        openssl is not needed.
        """
        return self.certificate_authority.with_suffix(".key")

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of all components and clients: a test cluster needs one identity, its
        administrator's.
        """
        return self.folder / "kubeconfig"

    @property
    def tokens(self) -> Path:
        """The API server's list of tokens."""
        return self.folder / "tokens.csv"

    @property
    def client_authority(self) -> Path:
        """CA of client certificates, if a file was put here before a restart of the API server."""
        return self.folder / "client-authority.crt"

    @property
    def kubelet_client(self) -> Path:
        """Certificate and key, by suffix, with which the API server authenticates to a real
        kubelet.
        """
        return self.folder / "kubelet-client"


@dataclass(frozen=True)
class Component:
    """One program of the cluster."""

    name: str
    arguments: Callable[[Settings], list[str]]
    port: int
    """Port of the health page, relative to the cluster's first port."""
    page: str
    scheme: str = "https"
    is_child: bool = False
    """The command starts the program as a child, and ends with the child."""
    is_private: bool = False
    """The program has no authentication, and listens only for programs of this machine."""

    def command(
        self, settings: Settings, programs: Mapping[str, Path], running: Mapping[str, Process]
    ) -> list[str]:
        """Return the command line, given the running processes."""
        return [str(programs[self.name]), *self.arguments(settings)]

    def is_healthy(self, settings: Settings) -> bool:
        """Return whether the health page of the running component succeeds."""
        address = LOOPBACK if self.is_private else settings.address
        return (
            status_of(f"{self.scheme}://{address}:{settings.first_port + self.port}{self.page}")
            == 200
        )

    def prepare(self, settings: Settings) -> None:
        """Prepare the start; runs before each start."""

    def finish(self, settings: Settings, process: Process) -> None:
        """Finish the start of the healthy component; runs after each start."""


def free_ports() -> int:
    """Return the first of PORTS consecutive free ports.

    The ports are below the kernel's range of local ports for outgoing connections (32768 and up).
    In the range, a client that reconnects to a stopped component could get the component's port and
    block its restart.
    """
    for first in random.sample(range(20000, 32000, 10), 200):
        if all(_is_free(first + offset) for offset in range(PORTS)):
            return first
    raise ClusterError(f"no {PORTS} free ports in a row between 20000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _etcd(settings: Settings) -> list[str]:
    # Not on the address that pods reach: write access to etcd is administrator access.
    clients, peers = (f"http://{LOOPBACK}:{settings.first_port + offset}" for offset in (0, 1))
    return [
        f"--data-dir={settings.folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",  # nothing here has to survive the machine
    ]


def _kube_apiserver(settings: Settings) -> list[str]:
    return [
        f"--etcd-servers=http://{LOOPBACK}:{settings.first_port}",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.first_port + 2}",
        # the default is the address of the default route, which a sandbox may lack
        f"--advertise-address={settings.address}",
        # the API does not want a loopback address as an Endpoint
        "--endpoint-reconciler-type=none",
        f"--cert-dir={settings.certificate_authority.parent}",
        f"--token-auth-file={settings.tokens}",
        *(
            [f"--client-ca-file={settings.client_authority}"]
            if settings.client_authority.exists()
            else []
        ),
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={settings.key}",
        f"--service-account-signing-key-file={settings.key}",
        f"--service-cluster-ip-range={settings.services}",
        "--allow-privileged",
        # Otherwise SIGTERM waits for the end of the last watch, like older servers without the
        # option.
        *(
            ["--shutdown-watch-termination-grace-period=1s"]
            if settings.minor >= WATCHES_END
            else ()
        ),
        *(
            [f"--enable-admission-plugins={','.join(settings.admission_plugins)}"]
            if settings.admission_plugins
            else ()
        ),
        *(_to_kubelets(settings) if settings.network else ()),
        *_gates(settings),
    ]


def _gates(settings: Settings) -> list[str]:
    return (
        [f"--feature-gates={','.join(f'{gate}=true' for gate in settings.feature_gates)}"]
        if settings.feature_gates
        else []
    )


def _to_kubelets(settings: Settings) -> list[str]:
    """How the API server fetches logs from a real node."""
    return [
        f"--kubelet-client-certificate={settings.kubelet_client.with_suffix('.crt')}",
        f"--kubelet-client-key={settings.kubelet_client.with_suffix('.key')}",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _kube_controller_manager(settings: Settings) -> list[str]:
    qps = settings.controller_manager_qps
    return [
        f"--kubeconfig={settings.kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.first_port + 3}",
        f"--cert-dir={settings.folder / 'controller-manager'}",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={settings.key}",
        # for the ConfigMap kube-root-ca.crt of each namespace
        f"--root-ca-file={settings.certificate_authority}",
        f"--kube-api-qps={qps}",
        f"--kube-api-burst={qps * 3 // 2}",  # the ratio of the defaults, 20 and 30
        # 15 s by default, too slow to meddle in a test
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--horizontal-pod-autoscaler-downscale-stabilization=1s",
        *_gates(settings),
    ]


def _kube_scheduler(settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={settings.kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.first_port + 4}",
        f"--cert-dir={settings.folder / 'scheduler'}",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
    ]


def _kwok(settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={settings.kubeconfig}",
        f"--config={HERE / 'stages.yaml'}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-ip={LOOPBACK}",
        f"--server-address={LOOPBACK}:{settings.first_port + 5}",
    ]


# Start order from left to right, one line in parallel; end order reversed.
CONTROL_PLANE = (
    (Component("etcd", _etcd, 0, "/health", "http", is_private=True),),
    (Component("kube-apiserver", _kube_apiserver, 2, "/readyz"),),
    (
        Component("kube-controller-manager", _kube_controller_manager, 3, "/healthz"),
        # older versions have no /readyz
        Component("kube-scheduler", _kube_scheduler, 4, "/healthz"),
    ),
)

FAKE_KUBELETS = ((Component("kwok", _kwok, 5, "/healthz", "http"),),)

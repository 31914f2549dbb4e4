# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of one cluster: their command lines, and where each says that it is well."""

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
"""From this minor version of Kubernetes on the API server can be told to end its watches."""
PORTS = 6
"""Ports per cluster: etcd for clients, etcd for peers, API server, controller manager, scheduler, KWOK."""


@dataclass(frozen=True)
class Settings:
    """What the command lines of one cluster depend on."""

    folder: Path
    first_port: int
    controller_manager_qps: int
    kubernetes: str
    """The version, such as 1.36."""
    admission_plugins: tuple[str, ...] = ()
    """Of the API server, alongside those of its default."""
    feature_gates: tuple[str, ...] = ()
    """That are opened for the API server and the controller manager."""
    network: Network | None = None
    """Of the real node, where there is one instead of the fake ones."""

    @property
    def minor(self) -> int:
        """Of that version."""
        return int(self.kubernetes.rpartition(".")[2])

    @property
    def address(self) -> str:
        """Where the control plane listens."""
        return self.network.host if self.network else LOOPBACK

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return f"https://{self.address}:{self.first_port + 2}"

    @property
    def certificate_authority(self) -> Path:
        """What the API server writes at its first start: its certificate, followed by the CA that signed it."""
        return self.folder / "apiserver/apiserver.crt"

    @property
    def key(self) -> Path:
        """Of that certificate. It signs the ServiceAccount tokens as well, so that nobody needs openssl."""
        return self.certificate_authority.with_suffix(".key")

    @property
    def kubeconfig(self) -> Path:
        """For the components as for everybody else: a test cluster needs one identity, its administrator's."""
        return self.folder / "kubeconfig"

    @property
    def tokens(self) -> Path:
        """The API server's list of tokens."""
        return self.folder / "tokens.csv"

    @property
    def client_authority(self) -> Path:
        """Whose certificates prove who a client is, if somebody has put it there and started the API server again."""
        return self.folder / "client-authority.crt"

    @property
    def kubelet_client(self) -> Path:
        """By what a real kubelet knows the API server: a certificate and its key, of these suffixes."""
        return self.folder / "kubelet-client"


@dataclass(frozen=True)
class Component:
    """One program."""

    name: str
    arguments: Callable[[Settings], list[str]]
    port: int
    """Of the health page, counted from the cluster's first one."""
    page: str
    scheme: str = "https"
    is_child: bool = False
    """The command only starts it, and ends with it."""
    is_private: bool = False
    """It asks nobody who they are, and listens where only this machine's programs can reach it."""

    def command(self, settings: Settings, programs: Mapping[str, Path], running: Mapping[str, Process]) -> list[str]:
        """The command line, alongside what is running already."""
        return [str(programs[self.name]), *self.arguments(settings)]

    def is_well(self, settings: Settings) -> bool:
        """Whether the component, which is running, says that it is ready to work."""
        address = LOOPBACK if self.is_private else settings.address
        return status_of(f"{self.scheme}://{address}:{settings.first_port + self.port}{self.page}") == 200

    def before(self, settings: Settings) -> None:
        """What its start needs; again at each start."""

    def after(self, settings: Settings, process: Process) -> None:
        """What is still to be done when it is healthy; again at each start."""


def free_ports() -> int:
    """The first of PORTS free ones in a row.

    Below the range from which the kernel takes the local ports of outgoing connections (32768 and up): there, a
    client that reconnects to a stopped component could be given that very port, and keep it from starting again.
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
    # Not at the address that pods reach: who can write to etcd is everybody's administrator.
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
        f"--advertise-address={settings.address}",  # else it looks for a default route, which a sandbox may not have
        "--endpoint-reconciler-type=none",  # the API does not want a loopback address as an Endpoint
        f"--cert-dir={settings.certificate_authority.parent}",
        f"--token-auth-file={settings.tokens}",
        *([f"--client-ca-file={settings.client_authority}"] if settings.client_authority.exists() else []),
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={settings.key}",
        f"--service-account-signing-key-file={settings.key}",
        f"--service-cluster-ip-range={settings.network.services if settings.network else '10.96.0.0/16'}",
        "--allow-privileged",
        # Else SIGTERM waits until the last watch ends by itself, as it does where there is no such option.
        *(["--shutdown-watch-termination-grace-period=1s"] if settings.minor >= WATCHES_END else ()),
        *([f"--enable-admission-plugins={','.join(settings.admission_plugins)}"] if settings.admission_plugins else ()),
        *(_to_kubelets(settings) if settings.network else ()),
        *_gates(settings),
    ]


def _gates(settings: Settings) -> list[str]:
    return [f"--feature-gates={','.join(f'{gate}=true' for gate in settings.feature_gates)}"] if settings.feature_gates else []


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
        f"--root-ca-file={settings.certificate_authority}",  # for the ConfigMap kube-root-ca.crt of each namespace
        f"--kube-api-qps={qps}",
        f"--kube-api-burst={qps * 3 // 2}",  # the ratio of the defaults, 20 and 30
        "--horizontal-pod-autoscaler-sync-period=1s",  # 15 s by default, too slow to meddle in a test
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


# Started from left to right, those of one line together; ended the other way round.
CONTROL_PLANE = (
    (Component("etcd", _etcd, 0, "/health", "http", is_private=True),),
    (Component("kube-apiserver", _kube_apiserver, 2, "/readyz"),),
    (
        Component("kube-controller-manager", _kube_controller_manager, 3, "/healthz"),
        Component("kube-scheduler", _kube_scheduler, 4, "/healthz"),  # older ones have no /readyz
    ),
)

FAKE_KUBELETS = ((Component("kwok", _kwok, 5, "/healthz", "http"),),)

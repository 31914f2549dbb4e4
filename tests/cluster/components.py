# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Define the command lines and health endpoints of the cluster's components."""

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
WATCH_GRACE_PERIOD_MINOR = 27
"""First minor version whose API server can end open watches at shutdown."""

PORT_COUNT = 6
"""Ports per cluster: two for etcd, and one for each other component."""


@dataclass(frozen=True)
class Settings:
    folder: Path
    first_port: int
    controller_manager_qps: int
    kubernetes: str
    """Such as 1.36."""
    admission_plugins: tuple[str, ...] = ()
    """In addition to the defaults."""
    feature_gates: tuple[str, ...] = ()
    """Feature gates of the API server and the controller manager."""
    network: Network | None = None
    """None with fake nodes."""

    @property
    def minor(self) -> int:
        return int(self.kubernetes.rpartition(".")[2])

    @property
    def address(self) -> str:
        return self.network.host if self.network else LOOPBACK

    @property
    def service_range(self) -> str:
        return self.network.service_cidr if self.network else "10.96.0.0/16"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.first_port + 2}"

    @property
    def certificate_authority(self) -> Path:
        """Return the path of the certificate that the API server creates at its first start."""
        return self.folder / "apiserver/apiserver.crt"

    @property
    def key(self) -> Path:
        """Return the path of the API server's private key. It also signs ServiceAccount tokens."""
        return self.certificate_authority.with_suffix(".key")

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def tokens(self) -> Path:
        return self.folder / "tokens.csv"

    @property
    def client_authority(self) -> Path:
        """Return the path of the CA of client certificates. A test may create the file."""
        return self.folder / "client-authority.crt"

    @property
    def client_certificate_stem(self) -> Path:
        """Return the path of the API server's client certificate, without suffix."""
        return self.folder / "kubelet-client"


@dataclass(frozen=True)
class Component:
    name: str
    arguments: Callable[[Settings], list[str]]
    port: int
    """Offset of the health port from the cluster's first port. On the real node, the port itself.
    """
    health_path: str
    scheme: str = "https"
    is_child: bool = False
    """Whether the program is a child process of the command."""
    has_no_authentication: bool = False
    """Whether the program has no authentication, and so listens only on the loopback interface."""

    def command(
        self, settings: Settings, programs: Mapping[str, Path], running: Mapping[str, Process]
    ) -> list[str]:
        """Return the command line. programs, running: by name of the component."""
        return [str(programs[self.name]), *self.arguments(settings)]

    def is_healthy(self, settings: Settings) -> bool:
        address = LOOPBACK if self.has_no_authentication else settings.address
        return (
            status_of(
                f"{self.scheme}://{address}:{settings.first_port + self.port}{self.health_path}"
            )
            == 200
        )

    def prepare(self, settings: Settings) -> None:
        """Prepare the start of the component."""

    def complete_start(self, settings: Settings, process: Process) -> None:
        """Complete the start after the component has become healthy."""


def first_free_port() -> int:
    """Return the first of PORT_COUNT consecutive free ports.

    Avoid ephemeral ports (from 32768): a client could take the port of a stopped component.
    """
    for first in random.sample(range(20000, 32000, 10), 200):
        if all(_is_free(first + offset) for offset in range(PORT_COUNT)):
            return first
    raise ClusterError(f"no {PORT_COUNT} free ports in a row between 20000 and 32000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _etcd_arguments(settings: Settings) -> list[str]:
    # on loopback, because a pod with access to etcd would be a cluster administrator
    client_url, peer_url = (
        f"http://{LOOPBACK}:{settings.first_port + offset}" for offset in (0, 1)
    )
    return [
        f"--data-dir={settings.folder / 'etcd'}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=default={peer_url}",
        "--unsafe-no-fsync",
    ]


def _kube_apiserver_arguments(settings: Settings) -> list[str]:
    return [
        f"--etcd-servers=http://{LOOPBACK}:{settings.first_port}",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.first_port + 2}",
        # without this option, the API server needs a default route
        f"--advertise-address={settings.address}",
        # Endpoints must not contain a loopback address
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
        f"--service-cluster-ip-range={settings.service_range}",
        "--allow-privileged",
        # older API servers lack the option
        *(
            ["--shutdown-watch-termination-grace-period=1s"]
            if settings.minor >= WATCH_GRACE_PERIOD_MINOR
            else ()
        ),
        *(
            [f"--enable-admission-plugins={','.join(settings.admission_plugins)}"]
            if settings.admission_plugins
            else ()
        ),
        *(_client_certificate_arguments(settings) if settings.network else ()),
        *_feature_gate_arguments(settings),
    ]


def _feature_gate_arguments(settings: Settings) -> list[str]:
    return (
        [f"--feature-gates={','.join(f'{gate}=true' for gate in settings.feature_gates)}"]
        if settings.feature_gates
        else []
    )


def _client_certificate_arguments(settings: Settings) -> list[str]:
    """Return the options for the client certificate that the API server itself presents."""
    certificate, key = (settings.client_certificate_stem.with_suffix(suffix)
                        for suffix in (".crt", ".key"))
    return [
        f"--kubelet-client-certificate={certificate}",
        f"--kubelet-client-key={key}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--proxy-client-cert-file={certificate}",
        f"--proxy-client-key-file={key}",
        f"--requestheader-client-ca-file={certificate}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
    ]


def _kube_controller_manager_arguments(settings: Settings) -> list[str]:
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
        # the defaults are 15 s and 5 min
        "--horizontal-pod-autoscaler-sync-period=1s",
        "--horizontal-pod-autoscaler-downscale-stabilization=1s",
        *_feature_gate_arguments(settings),
    ]


def _kube_scheduler_arguments(settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={settings.kubeconfig}",
        "--leader-elect=false",
        f"--bind-address={settings.address}",
        f"--secure-port={settings.first_port + 4}",
        f"--cert-dir={settings.folder / 'scheduler'}",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
    ]


def _kwok_arguments(settings: Settings) -> list[str]:
    return [
        f"--kubeconfig={settings.kubeconfig}",
        f"--config={HERE / 'stages.kwok'}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--node-ip={LOOPBACK}",
        f"--server-address={LOOPBACK}:{settings.first_port + 5}",
    ]


# In the order in which the components start. The components of an inner tuple start in parallel.
CONTROL_PLANE = (
    (Component("etcd", _etcd_arguments, 0, "/health", "http", has_no_authentication=True),),
    (Component("kube-apiserver", _kube_apiserver_arguments, 2, "/readyz"),),
    (
        Component("kube-controller-manager", _kube_controller_manager_arguments, 3, "/healthz"),
        # older versions have no /readyz
        Component("kube-scheduler", _kube_scheduler_arguments, 4, "/healthz"),
    ),
)

FAKE_KUBELETS = ((Component("kwok", _kwok_arguments, 5, "/healthz", "http"),),)

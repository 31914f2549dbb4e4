# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start and stop Kubernetes control planes on this machine, with fake nodes or a real node.

    with up("mine") as cluster:
        use(cluster.kubeconfig)

A cluster is a folder in the user's cache, and the processes in its state.json. Fake nodes need no
root, containers or network.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import binaries
import machine
import real_node
import supervision
from components import CONTROL_PLANE, FAKE_KUBELETS, Component, first_free_port
from external import ExternalCluster, external_kubeconfig
from kubeapi import Api
from network import claim_network, run
from nodes import FAKE_NODES, can_run_pods, create_nodes
from state import State
from workspace import ClusterError, clusters, locked, say, uninterrupted, wait_for, write_private

COMPONENTS = {
    component.name: component
    for group in (*CONTROL_PLANE, *FAKE_KUBELETS, *real_node.COMPONENTS)
    for component in group
}
"""Components of clusters with fake nodes and with a real node."""

VERSION_VARIABLE = "BATON_KUBERNETES"


def up(
    name: str = "default",
    controller_manager_qps: int = 2000,
    with_real_node: bool = False,
    admission_plugins: Sequence[str] = (),
    kubernetes: str = "",
    feature_gates: Sequence[str] = (),
) -> Cluster | ExternalCluster:
    """Start the cluster, or restart its unhealthy components. Raises ClusterError.

    kubernetes: the version (default: BATON_KUBERNETES, or else the newest). If KUBECONFIG
    names an external cluster, return that.
    """
    cluster = find(name)
    version = kubernetes or os.environ.get(VERSION_VARIABLE, "")
    cluster.up(controller_manager_qps, with_real_node, admission_plugins, version, feature_gates)
    return cluster


def status(name: str = "default") -> dict[str, str]:
    """Return "healthy", "unhealthy" (the health endpoint fails) or "stopped" for each component."""
    return find(name).status()


def find(name: str) -> Cluster | ExternalCluster:
    """Return the cluster of KUBECONFIG, or else the embedded cluster of that name."""
    kubeconfig = external_kubeconfig()
    return ExternalCluster(kubeconfig) if kubeconfig else Cluster(name)


def checkout_cluster_name(name: str) -> str:
    """Return a cluster name that is unique per checkout and per pytest worker."""
    checkout = hashlib.sha256(os.fsencode(Path(__file__).resolve().parents[2])).hexdigest()[:6]
    return f"{name}-{checkout}{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def names() -> list[str]:
    return sorted(folder.name for folder in clusters().glob("*/"))


class Cluster:
    """An embedded cluster, which may be stopped, and which other processes may change."""

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?", name):
            raise ClusterError(
                f"a cluster name has at most 42 characters: a-z, 0-9 and -, not {name!r}"
            )
        self.name = name
        self._folder = clusters() / name

    # For clients

    @property
    def kubeconfig(self) -> str:
        """Return the path of the administrator's kubeconfig. Raises ClusterError."""
        return str(self._state().settings.kubeconfig)

    @property
    def server(self) -> str:
        return self._state().settings.server

    @property
    def token(self) -> str:
        return self._state().token

    @property
    def certificate_authority(self) -> str:
        return str(self._state().settings.certificate_authority)

    # Verbs

    def up(
        self,
        controller_manager_qps: int,
        with_real_node: bool,
        admission_plugins: Sequence[str],
        kubernetes: str,
        feature_gates: Sequence[str] = (),
    ) -> None:
        """Start the unhealthy components. After a failure, remove the whole cluster."""
        began = time.monotonic()
        kubernetes = kubernetes or binaries.NEWEST
        if with_real_node and kubernetes != binaries.NEWEST:
            raise ClusterError(
                f"a real node requires Kubernetes {binaries.NEWEST}, not {kubernetes}"
            )
        with self._locked():
            state = State.load(self._folder)
            if state and (
                difference := _difference(
                    state, with_real_node, admission_plugins, kubernetes, feature_gates
                )
            ):
                raise ClusterError(
                    f"cluster {self.name} has {difference}, which cannot be changed: "
                    "stop the cluster with `down` first"
                )
            has_requested_qps = (
                state is not None and state.controller_manager_qps == controller_manager_qps
            )
            if (
                has_requested_qps
                and set(self.status().values()) == {"healthy"}
                and _can_run_pods(state)
            ):
                say(f"cluster {self.name} is up already: {state.settings.server}")
                return
            if with_real_node:
                machine.check(self._folder)
            programs = binaries.provide(binaries.needed_programs(with_real_node), kubernetes)
            try:
                state = state or self._create(
                    controller_manager_qps,
                    with_real_node,
                    admission_plugins,
                    kubernetes,
                    feature_gates,
                )
                if state.settings.network:
                    state.settings.network.up()
                if not has_requested_qps:
                    state.controller_manager_qps = controller_manager_qps
                    supervision.end(state, "kube-controller-manager")
                for group in _groups(state):
                    unhealthy = [
                        component
                        for component in group
                        if supervision.health(state, component) != "healthy"
                    ]
                    supervision.start(state, unhealthy, programs)
                if not with_real_node:
                    create_nodes(_api(state))
                wait_for(
                    "the nodes and the default ServiceAccount",
                    lambda: _can_run_pods(state),
                    *(supervision.log_path(state, component) for component in _components(state)),
                )
            except BaseException:
                with uninterrupted():
                    self._remove()
                raise
        say(
            f"cluster {self.name} is up after {time.monotonic() - began:.1f} s: "
            f"{state.settings.server}"
        )

    def down(self) -> None:
        with self._locked():
            exists = self._folder.exists()
            with uninterrupted():
                self._remove()
        say(f"cluster {self.name} is down" if exists else f"there is no cluster {self.name}")

    def stop(self, component: str, kill: bool = False) -> None:
        with self._locked():
            state = self._state()
            supervision.end(
                state, _component(state, component).name, signal.SIGKILL if kill else signal.SIGTERM
            )

    def start(self, component: str) -> None:
        with self._locked():
            state = self._state()
            target = _component(state, component)
            if supervision.health(state, target) != "healthy":
                programs = binaries.provide(
                    binaries.needed_programs(state.network is not None), state.kubernetes
                )
                supervision.start(state, [target], programs)

    def kill_container(self, container_id: str) -> None:
        """Kill a container of the real node. container_id: the id in the status of the pod."""
        run(
            *real_node.nsenter_prefix(self._state().processes),
            *real_node.CTR,
            "task",
            "kill",
            "--signal",
            "SIGKILL",
            container_id,
        )

    @property
    def node_pid_and_address(self) -> tuple[int, str]:
        """Return the pid of process 1 of the real node, and the address of the node."""
        state = self._state()
        if not state.settings.network or "node" not in state.processes:
            raise ClusterError("there is no real node, or it is stopped")
        return state.processes["node"].pid, state.settings.network.node

    def status(self) -> dict[str, str]:
        state = self._state()
        return {
            component.name: supervision.health(state, component)
            for component in _components(state)
        }

    def __enter__(self) -> Cluster:
        # At the end of the program, Python runs no __exit__ of a daemon thread.
        atexit.register(self._down_at_exit, os.getpid())
        return self

    def __exit__(self, *exception: object) -> None:
        atexit.unregister(self._down_at_exit)
        self.down()

    def _down_at_exit(self, pid: int) -> None:
        if os.getpid() == pid:  # not in a forked process
            self.down()

    # The folder

    def _locked(self) -> AbstractContextManager[None]:
        return locked(self._folder.with_suffix(".lock"), f"cluster {self.name}")

    def _state(self) -> State:
        state = State.load(self._folder)
        if not state:
            raise ClusterError(f"there is no cluster {self.name}: start it with `up`")
        return state

    def _create(
        self,
        controller_manager_qps: int,
        with_real_node: bool,
        admission_plugins: Sequence[str],
        kubernetes: str,
        feature_gates: Sequence[str],
    ) -> State:
        # a folder without state.json is left by a failed start
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "logs").mkdir(parents=True, mode=0o700)
        self._folder.chmod(0o700)
        state = State(
            self._folder,
            first_free_port(),
            secrets.token_hex(16),
            controller_manager_qps,
            kubernetes,
            [*admission_plugins],
            [*feature_gates],
        )
        with uninterrupted():
            state.network = claim_network().number if with_real_node else None
            state.save()
        write_private(state.settings.tokens, f'{state.token},admin,admin,"system:masters"\n')
        # JSON is YAML
        write_private(state.settings.kubeconfig, json.dumps(_kubeconfig(state), indent=2))
        if state.settings.network:
            real_node.create_client_certificate(state.settings)
        return state

    def _remove(self) -> None:
        state = State.load(self._folder)
        if state:
            for name in reversed(COMPONENTS):
                # the data is deleted anyway
                supervision.end(state, name, signal.SIGKILL)
            if state.settings.network:
                real_node.remove(state.settings.network)
        shutil.rmtree(self._folder, ignore_errors=True)


def _difference(
    state: State,
    with_real_node: bool,
    admission_plugins: Sequence[str],
    kubernetes: str,
    feature_gates: Sequence[str],
) -> str:
    """Return the first permanent setting that differs from the request, or ""."""
    if with_real_node != (state.network is not None):
        return "other nodes"
    if kubernetes != state.kubernetes:
        return f"Kubernetes {state.kubernetes} and not {kubernetes}"
    if state.feature_gates != [*feature_gates]:
        return "other feature gates"
    return "other admission plugins" if state.admission_plugins != [*admission_plugins] else ""


def _kubeconfig(state: State) -> dict[str, Any]:
    cluster = {
        "server": state.settings.server,
        "certificate-authority": str(state.settings.certificate_authority),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "embedded",
        "clusters": [{"name": "embedded", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": state.token}}],
        "contexts": [{"name": "embedded", "context": {"cluster": "embedded", "user": "admin"}}],
    }


def _api(state: State) -> Api:
    return Api(state.settings.server, state.token, str(state.settings.certificate_authority))


def _groups(state: State) -> tuple[tuple[Component, ...], ...]:
    """Return the components in the order in which they start, in groups that start in parallel."""
    return CONTROL_PLANE + (real_node.COMPONENTS if state.settings.network else FAKE_KUBELETS)


def _components(state: State) -> list[Component]:
    return [component for group in _groups(state) for component in group]


def _component(state: State, name: str) -> Component:
    components = {component.name: component for component in _components(state)}
    if name not in components:
        raise ClusterError(f"there is no component {name}; components: {', '.join(components)}")
    return components[name]


def _can_run_pods(state: State) -> bool:
    return can_run_pods(_api(state), 1 if state.settings.network else FAKE_NODES)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a Gateway of Gateway API in the network of the real node.

Contour reads the routes, writes their status, and configures Envoy. Envoy forwards the requests.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
import typing as t
from pathlib import Path

import binaries
import envoy
import go_toolchain
import yaml
from embedded import Cluster
from gateway_api import DEFINITIONS, GROUP, module_folder
from kubeapi import Api, Refused
from machine import system_program
from objects import Json, eventually
from traffic import PRIORITY_PREFIX

#: Name of the Gateway and of its namespace.
NAME = "edge"
CONTROLLER = "projectcontour.io/gateway-controller"
#: Port on which Contour lets Envoy serve port 80 of a Gateway.
PORT = 8080
#: Port on which Envoy gets its configuration from Contour.
XDS_PORT = 8001


class EdgeGateway:
    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._folder = folder
        self._kubeconfig = cluster.kubeconfig
        self._api = Api(cluster.server, cluster.token, cluster.certificate_authority)
        self._pid, self.address = cluster.node_pid_and_address
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> EdgeGateway:
        try:
            for definition in custom_resource_definitions():
                self._api.create(DEFINITIONS, definition)
            for resource in ("gatewayclasses", "gateways", "httproutes"):
                eventually(lambda resource=resource: self._is_served(resource),
                           f"{resource} of Gateway API")
            for path, item in gateway_objects():
                self._api.create(path, item)
            self._start()
            eventually(self._is_programmed, "a programmed Gateway", 60)
            eventually(lambda: self._status("/") == 404, "Envoy's listener", 60)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    @property
    def url(self) -> str:
        return f"http://{self.address}:{PORT}/"

    def error_entries(self) -> list[str]:
        """Return the lines of Envoy's log about answers with a status of 500 or above."""
        lines = (self._folder / "envoy.log").read_text("utf-8", "replace").splitlines()
        return [line for line in lines if '" 5' in line]

    def entry_of(self, agent: str) -> str:
        """Return the line of Envoy's log about the request with this user agent, or "".

        The log has no line about a request that succeeded or did not reach Envoy.
        """
        log = (self._folder / "envoy.log").read_text("utf-8", "replace")
        return next((line for line in log.splitlines() if f'"{agent}"' in line), "")

    @property
    def watchdog_misses(self) -> int:
        """Return how often one of Envoy's worker threads could not run for 200 ms."""
        stats = self._admin("/stats?format=json&filter=^workers.watchdog_miss$")["stats"]
        return sum(entry["value"] for entry in stats if "value" in entry)

    def weights_of(self, host: str) -> dict[str, int]:
        """Return the weights in Envoy's routes of a host (except routes that match headers).

        The keys are the names of the backends.
        """
        dump = self._admin("/config_dump?resource=dynamic_route_configs")
        return {cluster["name"]: cluster.get("weight", 0)
                for entry in dump.get("configs", ())
                for virtual_host in entry["route_config"].get("virtual_hosts", ())
                if host in virtual_host["domains"]
                for route in virtual_host["routes"] if not route["match"].get("headers")
                for cluster in _clusters(route["route"])}

    def _start(self) -> None:
        contour = str(binaries.provide(["contour"])["contour"])
        config = self._folder / "contour.yaml"
        config.write_text(json.dumps({
            "accesslog-level": "error",  # only answers with status 500 and above
            "gateway": {"gatewayRef": {"namespace": NAME, "name": NAME}}}))
        self._start_process(
            "contour", contour, "serve", "--insecure", f"--kubeconfig={self._kubeconfig}",
            "--xds-address=127.0.0.1", f"--xds-port={XDS_PORT}",
            "--disable-leader-election", f"--config-path={config}")
        bootstrap = self._folder / "envoy.json"
        subprocess.run([contour, "bootstrap", str(bootstrap), "--xds-address=127.0.0.1",
                        f"--xds-port={XDS_PORT}", f"--admin-address={self._admin_socket}"],
                       check=True, capture_output=True, timeout=60)
        self._start_process(
            "envoy", str(envoy.program()), "--config-path", str(bootstrap),
            "--service-cluster", NAME, "--service-node", NAME, "--disable-hot-restart",
            "--log-level", "info", "--file-flush-interval-msec", "500")

    def _start_process(self, name: str, *command: str) -> None:
        nsenter_command = [system_program("nsenter"), "-t", str(self._pid), "-n", "--"]
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(
                [*PRIORITY_PREFIX, *nsenter_command, *command], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log))

    def _end(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    @property
    def _admin_socket(self) -> Path:
        return self._folder / "admin.sock"

    def _admin(self, path: str) -> Json:
        connection = http.client.HTTPConnection("envoy", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.connect(str(self._admin_socket))
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def _status(self, path: str) -> int:
        """Send a request to the Gateway, and return the status, or 0 without an answer."""
        try:
            connection = http.client.HTTPConnection(self.address, PORT, timeout=2)
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0

    def _is_served(self, resource: str) -> bool:
        try:
            self._api.get(f"{GROUP}/{resource}")
        except Refused:
            return False
        return True

    def _is_programmed(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, [
                path.read_text("utf-8")[-2000:] for path in self._folder.glob("*.log")]
        status = self._api.get(f"{GROUP}/namespaces/{NAME}/gateways/{NAME}").get("status", {})
        return any(condition["type"] == "Programmed" and condition["status"] == "True"
                   for condition in status.get("conditions", ()))


def custom_resource_definitions() -> t.Iterator[Json]:
    contour_file = (download_go_module("github.com/projectcontour/contour")
                    / "examples/contour/01-crds.yaml")
    for path in (*sorted((module_folder() / "config/crd/experimental").glob("*.yaml")),
                 contour_file):
        for item in yaml.safe_load_all(path.read_text("utf-8")):
            if item and item.get("kind") == "CustomResourceDefinition":
                yield item


def download_go_module(name: str) -> Path:
    """Download a Go module that tests/cluster/contour requires, and return its folder."""
    command = [str(go_toolchain.find_go()), "mod", "download", "-json", name]
    done = subprocess.run(command, cwd=binaries.HERE / "contour", env=binaries.environment(),
                          capture_output=True, text=True, check=True, timeout=300)
    return Path(json.loads(done.stdout)["Dir"])


def gateway_objects() -> t.Iterator[tuple[str, Json]]:
    for name in (NAME, "projectcontour"):
        yield "/api/v1/namespaces", {"metadata": {"name": name}}
    version = GROUP.removeprefix("/apis/")
    yield f"{GROUP}/gatewayclasses", {
        "apiVersion": version, "kind": "GatewayClass", "metadata": {"name": NAME},
        "spec": {"controllerName": CONTROLLER}}
    listener = {"name": "http", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": {"from": "All"}}}
    yield f"{GROUP}/namespaces/{NAME}/gateways", {
        "apiVersion": version, "kind": "Gateway", "metadata": {"name": NAME},
        "spec": {"gatewayClassName": NAME, "listeners": [listener]}}
    # without a route with a host, Contour does not configure the listener
    yield f"{GROUP}/namespaces/{NAME}/httproutes", {
        "apiVersion": version, "kind": "HTTPRoute", "metadata": {"name": NAME},
        "spec": {"parentRefs": [{"name": NAME}], "hostnames": [f"{NAME}.example"],
                 "rules": [{"backendRefs": [{"name": NAME, "port": 80}]}]}}


def _clusters(action: Json) -> list[Json]:
    """Return the clusters (`name` and `weight`) in the field `route` of an Envoy route."""
    if "weighted_clusters" in action:
        return action["weighted_clusters"]["clusters"]
    return [{"name": action["cluster"], "weight": 1}] if "cluster" in action else []


class WeightWatch:
    """A context manager that records when Envoy's weights for a host change."""

    def __init__(self, gateway: EdgeGateway, host: str) -> None:
        self._gateway, self._host = gateway, host
        #: The times of the changes, in seconds since 1970.
        self.change_times: list[float] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> WeightWatch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self._thread.join()

    def first_change_time(self, after: float) -> float:
        return eventually(lambda: next((moment for moment in self.change_times
                                        if moment > after), 0), "a change of Envoy's weights", 10)

    def _poll(self) -> None:
        before = self._gateway.weights_of(self._host)
        while not self._stopped.wait(0.05):
            current = self._gateway.weights_of(self._host)
            if current != before:
                self.change_times.append(time.time())
                before = current

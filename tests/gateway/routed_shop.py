# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Put the application of tests/node/rollouts.py behind a Gateway."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
import typing as t
from pathlib import Path

import gateway_api
from clients import Program, ProgramRun, module
from edge import NAME, EdgeGateway
from embedded import Cluster
from injected import Script, kill_after, kill_before
from namespace import Namespace
from objects import Json, eventually
from proxy import Exchange, Fault, Proxy
from rollouts import V1, V2, Kind, Shop
from traffic import Answer, Traffic

#: START: seconds until a new pod listens. DRAIN: seconds for which it serves after SIGTERM.
START, DRAIN = 1.0, 3.0


def container(start: float) -> Json:
    return {
        "env": [{"name": "START_MS", "value": f"{start * 1000:.0f}"},
                {"name": "DRAIN_MS", "value": f"{DRAIN * 1000:.0f}"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    }


CONTAINER = container(START)
#: Requests with this header go to the new version.
TESTERS = [{"headers": [{"name": "x-tester", "value": "yes"}]}]


class Kill(t.NamedTuple):
    """A SIGKILL of the task before or after one of its writes."""

    #: Number of the write, from 1.
    write: int
    is_after: bool
    #: Count only writes with this text.
    body: bytes = b""

    def script(self, program: Program) -> Script:
        fault = kill_after if self.is_after else kill_before
        return Script(self.write, lambda exchange: exchange.is_write and self.body in exchange.body,
                      fault(program.kill))


class WriteCounter:
    """A script of the proxy that counts the writes of a task.

    `route_change_times`: when changes of the route were answered, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.count = 0
        self.route_change_times: list[float] = []

    def __call__(self, exchange: Exchange) -> Fault | None:
        self.count += exchange.is_write
        is_route = exchange.command == "PATCH" and "/httproutes/" in exchange.path
        return self._record if is_route else None

    def _record(self, exchange: Exchange) -> None:
        answer = exchange.forward()
        operations = json.loads(exchange.body)
        if any(operation["op"] != "test" and operation["path"] == "/spec/rules"
               for operation in operations):
            self.route_change_times.append(time.time())
        exchange.reply(answer)


class RoutedShop(Shop):
    """The controller foo, its Service and its HTTPRoute.

    In its `with` block, a proxy forwards the requests of the tasks.
    """

    def __init__(self, gateway: EdgeGateway, cluster: Cluster, namespace: Namespace, kind: Kind,
                 container: Json | None = None) -> None:
        super().__init__(cluster, namespace, kind, container or CONTAINER)
        self.gateway = gateway
        self.host = f"{namespace.name}.example"

    def __enter__(self) -> RoutedShop:
        with contextlib.ExitStack() as stack:
            self._home = Path(stack.enter_context(
                tempfile.TemporaryDirectory(prefix="baton-home-")))
            self._proxy = stack.enter_context(Proxy(self.cluster.kubeconfig))
            self._stack = stack.pop_all()
        config = json.loads(Path(self.namespace.kubeconfig).read_text("utf-8"))
        config["clusters"][0]["cluster"] = {"server": self._proxy.url}
        (self._home / "kubeconfig").write_text(json.dumps(config), "utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def open(self, image: str = V1) -> str:
        super().open(image)
        self.namespace.call("POST", gateway_api.route_path(self.namespace), {
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "edge"},
            "spec": {"parentRefs": [{"name": NAME, "namespace": NAME}],
                     "hostnames": [self.host],
                     "rules": [{"backendRefs": [{"name": "foo", "port": 80}]}]}})
        eventually(lambda: self.gateway.weights_of(self.host), "the route in Envoy")
        time.sleep(1)  # until Envoy has the addresses of the pods
        return self.gateway.url

    def traffic(self, rates: t.Mapping[str, int], **headers: str) -> Traffic:
        return Traffic(self.gateway.url, rates, {"Host": self.host, **headers})

    def route(self) -> Json:
        return self.namespace.call("GET", gateway_api.route_path(self.namespace, "edge"))

    def patch_route(self, body: Json) -> None:
        self.namespace.call("PATCH", gateway_api.route_path(self.namespace, "edge"), body,
                            "application/merge-patch+json")

    def other_services(self) -> list[str]:
        items = self.namespace.call("GET", self.namespace.path("services"))["items"]
        return [item["metadata"]["name"] for item in items if item["metadata"]["name"] != "foo"]

    def is_restored(self) -> bool:
        (rule,) = self.route()["spec"]["rules"]
        return ([backend["name"] for backend in rule["backendRefs"]] == ["foo"]
                and not self.other_services()
                and not self.route()["metadata"].get("annotations"))

    # Tasks

    def run(self, script: t.Any = None, kill: Kill | None = None, **options: t.Any) -> ProgramRun:
        """Run a task in a separate process. script: the proxy's script, ignored with `kill`."""
        program = Program()
        command, environment = module(
            {"name": "foo", "namespace": self.namespace.name, **self.kind.options, **options},
            str(self._home / "kubeconfig"), self._home)
        self._proxy.script = kill.script(program) if kill else script
        try:
            return program.run(command, environment)
        finally:
            self._proxy.script = None
            self._proxy.close_connections()
            assert not self._proxy.errors, self._proxy.errors

    def run_successfully(self, script: t.Any = None, **options: t.Any) -> Json:
        run = self.run(script, **options)
        assert run.has_succeeded, run.last_output
        return run.result

    def split(self, script: t.Any = None, **options: t.Any) -> Json:
        return self.run_successfully(script, module="traffic_split", route="edge", **options)

    def update_until_pause(self, image: str = V2) -> None:
        self.run_successfully(module="rolling_update", image=image, pause_at=1,
                              progress_deadline=60)


def count_of(version: str, answers: t.Iterable[Answer]) -> int:
    return sum(answer.version == version for answer in answers)

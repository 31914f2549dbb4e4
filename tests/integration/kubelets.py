# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A fake kubelet that serves container logs, for fake nodes.

The API server reads logs from the address in the node's status. There, the tests run an HTTP server
that supports the query parameters limitBytes and sinceSeconds.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import signal
import ssl
import subprocess
import time
import typing as t
import urllib.parse
from pathlib import Path

import pytest
from monitoring import serving
from namespace import Namespace

from ansible_collections.baton.kubernetes.plugins.module_utils import task

Json = dict[str, t.Any]

#: A secret in each error line. No output may contain it.
SECRET = "password=s3cret"
ERROR = f"\x1b[31mERROR\x1b[0m: no connection to the database, {SECRET}".encode()
#: Log lines of each pod per second.
LINES_PER_SECOND = 10
ERROR_PERCENTAGES = {"myimage:v1": 1, "myimage:v2": 1, "myimage:v3": 20}


def log_of_image(pod: Json, container: str) -> list[tuple[float, bytes]]:
    """Return the log of a container as pairs of time (seconds since the epoch) and line.

    The image determines the share of errors.
    """
    pod_started_at = datetime.datetime.fromisoformat(
        pod["metadata"]["creationTimestamp"].replace("Z", "+00:00")).timestamp()
    error_percentage = ERROR_PERCENTAGES[pod["spec"]["containers"][0]["image"]]
    count = int((time.time() - pod_started_at) * LINES_PER_SECOND)
    return [(pod_started_at + number / LINES_PER_SECOND,
             ERROR if number * error_percentage % 100 < error_percentage else b"answered a request")
            for number in range(count)]


class Kubelet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _LogHandler)
        self.namespace = namespace
        #: Tests may replace this function. It returns None if the container has not started.
        self.lines: t.Callable[[Json, str], list[tuple[float, bytes]] | None] = log_of_image
        self.requests: list[str] = []
        certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=kubelet",
                        "-keyout", key, "-out", certificate], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    @property
    def status(self) -> Json:
        return {"addresses": [{"type": kind, "address": "127.0.0.1"}
                              for kind in ("Hostname", "InternalIP")],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self.server_address[1]}}}

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        """Ignore connections that the API server has closed."""


class _LogHandler(http.server.BaseHTTPRequestHandler):
    server: Kubelet

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _empty, _logs, _namespace, name, container = url.path.split("/")
        pod = t.cast(Json, self.server.namespace.get("pods", name))
        lines = self.server.lines(pod, container)
        if lines is None:
            self._send(400,
                       f'container "{container}" in pod "{name}" is waiting to start: '
                       f'ContainerCreating'.encode())
            return
        since = time.time() - int(query["sinceSeconds"]) if "sinceSeconds" in query else 0
        content = (
            b"%s %s\n" % (_timestamp(at).encode(), line) for at, line in lines if at >= since
        )
        self._send(200, b"".join(content)[:int(query.get("limitBytes", 2**40))])

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def log_message(self, *_unused: t.Any) -> None:
        pass


def _timestamp(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


@contextlib.contextmanager
def up(namespace: Namespace, folder: Path, nodes: int = 2) -> t.Iterator[Kubelet]:
    with serving(Kubelet(namespace, folder)) as kubelet:
        namespace.add_nodes(nodes, **kubelet.status)
        try:
            yield kubelet
        finally:
            namespace.remove_nodes()


def run_analysis(namespace: Namespace, *metrics: Json, **options: t.Any) -> Json:
    option_defaults = {name: spec.get("default") for name, spec in task.ANALYSIS_OPTIONS.items()}
    metric_defaults = {name: spec.get("default")
                       for name, spec in task.ANALYSIS_OPTIONS["metrics"]["options"].items()}
    warn = options.pop("warn", pytest.fail)
    params = {
        **option_defaults,
        "name": "foo",
        "namespace": namespace.name,
        "kubeconfig": namespace.kubeconfig,
        "interval": 0.2,
        "metrics": [{**metric_defaults, "type": "error_lines", **metric} for metric in metrics],
        "prometheus_url": None,
        **options,
    }
    handlers_of_pytest = {number: signal.getsignal(number)
                          for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        return t.cast(Json, task.result_or_error(task.analysis, params, warn))
    finally:
        for number, handler in handlers_of_pytest.items():
            signal.signal(number, handler)

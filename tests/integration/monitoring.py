# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real Prometheus, and simulated metrics of pods."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import typing as t
import urllib.parse
import urllib.request
from pathlib import Path

from objects import eventually
from workspace import cache, locked

#: The window of queries, long enough for several scrapes.
WINDOW = "1s"
#: Requests per second of each pod.
RATE = 100
#: Bounds of the buckets of the request duration, in seconds.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0)


class Version(t.NamedTuple):
    #: Share of responses with status 500.
    error_share: float = 0.001
    #: Mean response time in seconds.
    latency: float = 0.08
    exports_metrics: bool = True


VERSIONS = {
    "myimage:v1": Version(),
    "myimage:v2": Version(),
    "myimage:v3": Version(error_share=0.05),
    "myimage:v4": Version(latency=0.4),
    "myimage:v5": Version(exports_metrics=False),
}


def program_path(name: str = "prometheus") -> str | None:
    """Return the path of a program, or None.

    A missing program is unpacked from its Debian package: apt-get install would start its service.
    """
    if path := shutil.which(name):
        return path
    folder = cache() / name
    binary = folder / "usr" / "bin" / name
    if not binary.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        with locked(cache() / f"{name}.lock", name):
            for is_retry in (False, True):
                if binary.exists():
                    break
                if is_retry:  # the package lists may be outdated
                    subprocess.run(["apt-get", "update"], check=False, capture_output=True,
                                   timeout=300)
                _unpack(name, folder)
    return str(binary) if binary.exists() else None


def _unpack(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f"baton-{name}-") as download:
        # As root, apt-get downloads as the user _apt, who cannot write to the folder.
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", name]
        subprocess.run(command, cwd=download, check=False, capture_output=True, timeout=300)
        for package in Path(download).glob("*.deb"):
            new_folder = folder.with_name(f"{name}.new")
            shutil.rmtree(new_folder, ignore_errors=True)
            subprocess.run(["dpkg", "-x", package, new_folder], check=True, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
            new_folder.rename(folder)


class MetricsServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _MetricsHandler)
        #: Version and start time, by namespace and name.
        self.exported_pods: dict[tuple[str, str], tuple[Version, float]] = {}

    def export(self, namespace: str, pods: t.Iterable[dict[str, t.Any]]) -> None:
        """Export exactly these pods of a namespace. The counters of unchanged pods continue."""
        versions = {(namespace,
                     pod["metadata"]["name"]): VERSIONS[pod["spec"]["containers"][0]["image"]]
                    for pod in pods}
        pods_of_other_namespaces = {
            key: value for key, value in self.exported_pods.items() if key[0] != namespace
        }
        now = time.monotonic()
        # A new pod of a StatefulSet has the old name, but its counters restart at 0.
        unchanged_pods = {
            key: value for key, value in self.exported_pods.items() if value[0] == versions.get(key)
        }
        self.exported_pods = pods_of_other_namespaces | {
            key: unchanged_pods.get(key, (version, now)) for key, version in versions.items()
        }

    @contextlib.contextmanager
    def exporting(self, namespace: t.Any) -> t.Iterator[None]:
        stop = threading.Event()

        def update() -> None:
            while not stop.wait(0.1):
                with contextlib.suppress(Exception):  # the API server may be busy
                    self.export(namespace.name, namespace.pods())

        thread = threading.Thread(target=update, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.export(namespace.name, [])

    def text(self) -> str:
        lines = []
        for (namespace, pod), (version, since) in self.exported_pods.items():
            if not version.exports_metrics:
                continue
            labels = f'namespace="{namespace}",pod="{pod}"'
            requests = RATE * (time.monotonic() - since)
            for code, share in (("200", 1 - version.error_share),
                                ("500", version.error_share)):
                lines.append(f'http_requests_total{{{labels},code="{code}"}} {requests * share}')
            buckets = [*((bound, requests * min(1, bound / (2 * version.latency)))
                         for bound in BUCKETS), ("+Inf", requests)]
            lines += [f'http_request_duration_seconds_bucket{{{labels},le="{bound}"}} {count}'
                      for bound, count in buckets]
            lines.append(f"http_request_duration_seconds_count{{{labels}}} {requests}")
            lines.append(f"queue_length{{{labels}}} {version.error_share * 1000}")
        return "\n".join([*lines, ""])


class _MetricsHandler(http.server.BaseHTTPRequestHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        body = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_unused: t.Any) -> None:
        pass


class Prometheus(t.NamedTuple):
    url: str
    metrics_server: MetricsServer

    def ask(self, query: str) -> list[dict[str, t.Any]]:
        return ask(self.url, query)


def ask(url: str, query: str) -> list[dict[str, t.Any]]:
    """Query a Prometheus without the code under test."""
    address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with (contextlib.suppress(OSError),
          urllib.request.build_opener().open(address, timeout=10) as answer):
        return json.load(answer)["data"]["result"]
    return []


@contextlib.contextmanager
def running_with_metrics(binary: str, certificate: str = "", key: str = "", user: str = "",
                         password_hash: str = "") -> t.Iterator[Prometheus]:
    """Run a Prometheus that scrapes a MetricsServer; with `certificate`, with TLS and password."""
    web_config = {"tls_server_config": {"cert_file": certificate, "key_file": key},
                  "basic_auth_users": {user: password_hash}}
    with serving(MetricsServer()) as metrics_server:
        targets = {"static_configs": [
            {"targets": [f"127.0.0.1:{metrics_server.server_address[1]}"]}]}
        with running(binary, targets, "100ms", web_config if certificate else {}) as url:
            eventually(lambda: certificate or ask(url, "up == 1"), "the first scrape", seconds=60)
            yield Prometheus(url, metrics_server)


@contextlib.contextmanager
def running(binary: str, targets: dict[str, t.Any], interval: str,
            web_config: dict[str, t.Any] | None = None) -> t.Iterator[str]:
    """Run a Prometheus, and yield its URL."""
    with tempfile.TemporaryDirectory(prefix="baton-prometheus-") as folder:
        job = {"job_name": "pods", **targets}
        config = {"global": {"scrape_interval": interval, "scrape_timeout": interval},
                  "scrape_configs": [job]}
        for name, content in (("config.yml", config), ("web.yml", web_config or {})):
            Path(folder, name).write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = Path(folder, "log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [binary, f"--config.file={folder}/config.yml", f"--storage.tsdb.path={folder}/data",
                 "--log.level=warn",
                 f"--web.listen-address=127.0.0.1:{port}", f"--web.config.file={folder}/web.yml"],
                stdout=output, stderr=output, env={"PATH": os.environ["PATH"]})
        try:
            end = time.monotonic() + 60
            while not _listens(port):
                assert (process.poll() is None
                        and time.monotonic() < end), log.read_text(encoding="utf-8")
                time.sleep(0.1)
            yield f"http{'s' if web_config else ''}://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


Server = t.TypeVar("Server", bound=http.server.ThreadingHTTPServer)


@contextlib.contextmanager
def serving(server: Server) -> t.Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02},
                              daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A real Prometheus for the tests, and pods' metrics to scrape.

The pods of the embedded cluster are no containers. One server reports the metrics for all their web
servers: counters that grow over time as if each pod answered a hundred requests a second, in the
manner of its version.
"""

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

#: Time with some scrapes.
WINDOW = "1s"
#: Requests a second of each pod.
RATE = 100
#: Upper bounds of a request's seconds, as buckets.
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0)


class Version(t.NamedTuple):
    """How the pods of a version answer."""

    #: Share of answers with 500, and seconds per answer.
    errors: float = 0.001
    seconds: float = 0.08
    #: Whether metrics are reported at all.
    reports: bool = True


VERSIONS = {
    "myimage:v1": Version(),
    "myimage:v2": Version(),
    "myimage:v3": Version(errors=0.05),  # answers 5 % of its requests with 500
    "myimage:v4": Version(seconds=0.4),  # is slow
    "myimage:v5": Version(reports=False),
}


def program() -> str | None:
    """Return the path of Prometheus, or None if unavailable. Debian's package is unpacked into the
    cache, not installed.
    """
    if path := shutil.which("prometheus"):
        return path
    folder = cache() / "prometheus"
    binary = folder / "usr" / "bin" / "prometheus"
    if not binary.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        with locked(cache() / "prometheus.lock", "Prometheus"):
            for is_second_try in (False, True):
                if binary.exists():
                    break
                if is_second_try:  # package lists may be missing or outdated
                    subprocess.run(["apt-get", "update"], check=False, capture_output=True,
                                   timeout=300)
                _unpack(folder)
    return str(binary) if binary.exists() else None


def _unpack(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="baton-prometheus-") as download:
        # As root, apt would download as another user, without write access here.
        command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "prometheus"]
        subprocess.run(command, cwd=download, check=False, capture_output=True, timeout=300)
        for package in Path(download).glob("*.deb"):
            draft = folder.with_name("prometheus.new")
            shutil.rmtree(draft, ignore_errors=True)
            subprocess.run(["dpkg", "-x", package, draft], check=True, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)


class Pods(http.server.ThreadingHTTPServer):
    """Reports the metrics of pods to a scraper."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Metrics)
        #: Namespace and name of each pod, its version, and the start of its reports.
        self.shown: dict[tuple[str, str], tuple[Version, float]] = {}

    def show(self, namespace: str, pods: t.Iterable[dict[str, t.Any]]) -> None:
        """Replace the pods of a namespace; the counters of existing pods continue."""
        names = {(namespace,
                  pod["metadata"]["name"]): VERSIONS[pod["spec"]["containers"][0]["image"]]
                 for pod in pods}
        other_namespaces = {key: value for key, value in self.shown.items() if key[0] != namespace}
        now = time.monotonic()
        # A pod of a StatefulSet returns with the same name, and counts from 0 again.
        unchanged = {key: value for key, value in self.shown.items() if value[0] == names.get(key)}
        self.shown = (other_namespaces
                      | {key: unchanged.get(key, (version, now)) for key, version in names.items()})

    @contextlib.contextmanager
    def following(self, namespace: t.Any) -> t.Iterator[None]:
        """Show the pods of a namespace as they come and go, while the block runs."""
        is_over = threading.Event()

        def follow() -> None:
            while not is_over.wait(0.1):
                with contextlib.suppress(Exception):  # a busy API server
                    self.show(namespace.name, namespace.pods())

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self.show(namespace.name, [])

    def text(self) -> str:
        lines = []
        for (namespace, pod), (version, since) in self.shown.items():
            if not version.reports:
                continue
            labels = f'namespace="{namespace}",pod="{pod}"'
            requests = RATE * (time.monotonic() - since)
            for code, share in (("200", 1 - version.errors), ("500", version.errors)):
                lines.append(f'http_requests_total{{{labels},code="{code}"}} {requests * share}')
            buckets = [*((bound, requests * min(1, bound / (2 * version.seconds)))
                         for bound in BUCKETS), ("+Inf", requests)]
            lines += [f'http_request_duration_seconds_bucket{{{labels},le="{bound}"}} {count}'
                      for bound, count in buckets]
            lines.append(f"http_request_duration_seconds_count{{{labels}}} {requests}")
            lines.append(f"queue_length{{{labels}}} {version.errors * 1000}")
        return "\n".join([*lines, ""])


class _Metrics(http.server.BaseHTTPRequestHandler):
    server: Pods

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
    """A running Prometheus."""

    url: str
    pods: Pods

    def ask(self, query: str) -> list[dict[str, t.Any]]:
        """Ask this Prometheus; see the function ask()."""
        return ask(self.url, query)


def ask(url: str, query: str) -> list[dict[str, t.Any]]:
    """Return the answer of Prometheus without the collection; empty before the port is open."""
    address = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with (contextlib.suppress(OSError),
          urllib.request.build_opener().open(address, timeout=10) as answer):
        return json.load(answer)["data"]["result"]
    return []


@contextlib.contextmanager
def up(binary: str, certificate: str = "", key: str = "", user: str = "",
       password_hash: str = "") -> t.Iterator[Prometheus]:
    """Run a Prometheus that scrapes Pods; with a certificate, over TLS with a password (bcrypt)."""
    web = {"tls_server_config": {"cert_file": certificate, "key_file": key},
           "basic_auth_users": {user: password_hash}}
    with serving(Pods()) as pods:
        targets = {"static_configs": [{"targets": [f"127.0.0.1:{pods.server_address[1]}"]}]}
        with running(binary, targets, "100ms", web if certificate else {}) as url:
            eventually(lambda: certificate or ask(url, "up == 1"), "a scrape", seconds=60)
            yield Prometheus(url, pods)


@contextlib.contextmanager
def running(binary: str, targets: dict[str, t.Any], interval: str,
            web: dict[str, t.Any] | None = None) -> t.Iterator[str]:
    """Run a Prometheus with these targets, and yield its URL when the port is open; `web` is its
    web configuration file.
    """
    with tempfile.TemporaryDirectory(prefix="baton-prometheus-") as folder:
        job = {"job_name": "pods", **targets}
        config = {"global": {"scrape_interval": interval, "scrape_timeout": interval},
                  "scrape_configs": [job]}
        for name, content in (("config.yml", config), ("web.yml", web or {})):
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
            yield f"http{'s' if web else ''}://127.0.0.1:{port}"
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
    """Run a server in a thread while the block runs."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02},
                              daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Flux's kustomize-controller, and an HTTP server in place of source-controller.

The server provides archives of manifests. The test writes the address of an archive into the status
of a GitRepository, as source-controller does.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import io
import itertools
import os
import tarfile
import threading
import typing as t
from pathlib import Path

import programs
import yaml
from components import first_free_port
from kubeapi import status_of
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json, eventually

KUSTOMIZE_MODULE = "github.com/fluxcd/kustomize-controller"
SOURCE_MODULE = "github.com/fluxcd/source-controller"
DEFINITIONS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KUSTOMIZATIONS = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/{}/kustomizations"
REPOSITORIES = "/apis/source.toolkit.fluxcd.io/v1/namespaces/{}/gitrepositories"
MERGE = "application/merge-patch+json"


def definitions() -> t.Iterator[Json]:
    for module, version in ((KUSTOMIZE_MODULE, programs.version("kustomize-controller")),
                            (SOURCE_MODULE, source_version())):
        folder = programs.module_folder(f"{module}@{version}") / "config/crd/bases"
        for path in sorted(folder.glob("*.yaml")):
            yield yaml.safe_load(path.read_text("utf-8"))


def source_version() -> str:
    """Return the version of source-controller whose API kustomize-controller uses."""
    text = (programs.HERE / "kustomize-controller/go.mod").read_text("utf-8")
    return text.partition(f"{SOURCE_MODULE}/api ")[2].split()[0]


def install_definitions(namespace: Namespace) -> None:
    for definition in definitions():
        with contextlib.suppress(ApiException):  # already exists
            namespace.call("POST", DEFINITIONS_PATH, definition)
    eventually(lambda: is_served(namespace), "the kinds of Flux")


def is_served(namespace: Namespace) -> bool:
    try:
        for path in (KUSTOMIZATIONS, REPOSITORIES):
            namespace.call("GET", path.format(namespace.name))
    except ApiException:
        return False
    return True


class ArtifactServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.archives: dict[str, bytes] = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def publish(self, manifests: t.Iterable[Json]) -> Json:
        """Serve an archive of the manifests, and return status.artifact for a GitRepository."""
        data, text = io.BytesIO(), yaml.safe_dump_all(manifests).encode()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            entry = tarfile.TarInfo("controllers.yaml")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
        digest = hashlib.sha256(data.getvalue()).hexdigest()
        path = f"/{digest}.tar.gz"
        self.archives[path] = data.getvalue()
        return {"digest": f"sha256:{digest}", "revision": f"main@sha1:{digest[:40]}",
                "path": path[1:], "url": f"http://127.0.0.1:{self.server_port}{path}",
                "lastUpdateTime": "2026-01-01T00:00:00Z", "size": len(data.getvalue())}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: ArtifactServer

    def do_GET(self) -> None:
        data = self.server.archives.get(self.path, b"")
        self.send_response(200 if data else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        pass


@contextlib.contextmanager
def controller(program: Path, namespace: Namespace, folder: Path) -> t.Iterator[None]:
    """Run kustomize-controller for this namespace only.

    For all namespaces, it would try for minutes to fetch the archives of earlier tests.
    """
    health_address = f"127.0.0.1:{first_free_port()}"
    environment = {**os.environ, "KUBECONFIG": namespace.admin_kubeconfig, "TMPDIR": str(folder),
                   "RUNTIME_NAMESPACE": namespace.name}

    def is_ready() -> bool:
        return status_of(f"http://{health_address}/readyz") == 200

    command = [str(program), f"--health-addr={health_address}", "--metrics-addr=0",
               "--watch-all-namespaces=false", "--enable-leader-election=false",
               "--interval-jitter-percentage=0"]
    with programs.running(command, folder / "kustomize-controller.log", environment, is_ready):
        yield


class Kustomization:
    """The Kustomization `apps` and its GitRepository `apps`."""

    def __init__(self, namespace: Namespace, artifacts: ArtifactServer) -> None:
        self.namespace, self.artifacts = namespace, artifacts
        self.path = KUSTOMIZATIONS.format(namespace.name)
        self._request_numbers = itertools.count(1)

    def create(self, manifests: list[Json], interval: str = "1h") -> None:
        repositories = REPOSITORIES.format(self.namespace.name)
        self.namespace.call("POST", repositories, {
            "apiVersion": "source.toolkit.fluxcd.io/v1", "kind": "GitRepository",
            "metadata": {"name": "apps"},
            "spec": {"url": "https://git.invalid/apps", "interval": "1h"}})
        revision = self.publish(manifests)
        self.namespace.call("POST", self.path, {
            "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
            "metadata": {"name": "apps"},
            "spec": {"interval": interval, "path": "./", "prune": True,
                     "targetNamespace": self.namespace.name,
                     "sourceRef": {"kind": "GitRepository", "name": "apps"}}})
        self.wait_until_applied(revision)

    def publish(self, manifests: list[Json]) -> str:
        """Publish the manifests as a commit, and return its revision, such as "main@sha1:..."."""
        artifact = self.artifacts.publish(manifests)
        path = REPOSITORIES.format(self.namespace.name) + "/apps/status"
        self.namespace.call("PATCH", path, {"status": {"artifact": artifact}}, MERGE)
        return artifact["revision"]

    def get(self) -> Json:
        return self.namespace.call("GET", f"{self.path}/apps")

    def wait_until_applied(self, revision: str) -> None:
        eventually(lambda: self.get().get("status", {}).get("lastAppliedRevision") == revision,
                   f"revision {revision} of the Kustomization")

    def reconcile(self) -> None:
        """Request a reconciliation, as `flux reconcile` does, and wait for its end."""
        request = str(next(self._request_numbers))
        self.patch({"metadata": {"annotations": {"reconcile.fluxcd.io/requestedAt": request}}})
        eventually(lambda: self.get().get("status", {}).get("lastHandledReconcileAt") == request,
                   "the reconciliation of the Kustomization")

    def patch(self, body: Json) -> None:
        self.namespace.call("PATCH", f"{self.path}/apps", body, MERGE)

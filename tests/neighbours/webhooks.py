# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a mutating admission webhook."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import ssl
import subprocess
import sys
import threading
import time
import typing as t
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json, eventually, manifest

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
WEBHOOK_NAME = "mutate.example.com"
POD_RULE = {"apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["pods"], "operations": ["CREATE"]}
CONTROLLER_RULE = {"apiGroups": ["", "apps"], "apiVersions": ["v1"],
                   "resources": ["replicationcontrollers", "replicasets", "deployments",
                                 "statefulsets", "daemonsets"], "operations": ["CREATE", "UPDATE"]}
MIRROR = "mirror.example.com/"
#: Returns the operations of a JSON patch for an object.
Mutation: t.TypeAlias = t.Callable[[Json], list[Json]]


def add_sidecar(pod: Json) -> list[Json]:
    """Return a patch that adds two containers, as the injector of a mesh does."""
    spec = pod["spec"]
    if any(container["name"] == "proxy" for container in spec["containers"]):
        return []
    setup = {"name": "setup", "image": "proxy:v1"}
    return [{"op": "add", "path": "/spec/containers/-",
             "value": {"name": "proxy", "image": "proxy:v1"}},
            {"op": "add", "path": "/spec/initContainers",
             "value": [setup, *spec.get("initContainers", [])]},
            {"op": "add", "path": "/metadata/annotations",
             "value": {**(pod["metadata"].get("annotations") or {}), "injected": "true"}}]


def use_mirror(item: Json) -> list[Json]:
    is_pod = item["kind"] == "Pod"
    spec = item["spec"] if is_pod else item["spec"]["template"]["spec"]
    prefix = "/spec" if is_pod else "/spec/template/spec"
    return [{"op": "replace", "path": f"{prefix}/containers/{index}/image",
             "value": MIRROR + container["image"]}
            for index, container in enumerate(spec["containers"])
            if not container["image"].startswith(MIRROR)]


def request_more_cpu(pod: Json) -> list[Json]:
    """Return a patch that sets the CPU request, as a vertical autoscaler does."""
    return [{"op": "add", "path": "/spec/containers/0/resources",
             "value": {"requests": {"cpu": "150m"}}}]


class Webhook(http.server.ThreadingHTTPServer):
    """A context manager that runs a webhook for the objects of a namespace."""

    daemon_threads = True

    def __init__(self, namespace: Namespace, folder: Path, mutate: Mutation, *rules: Json,
                 timeout: int = 2) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.namespace, self.mutate, self.rules, self.timeout_seconds = (
            namespace, mutate, rules, timeout)
        #: (kind, name, operation) of each request.
        self.reviews: list[tuple[str, str, str]] = []
        self.errors: list[BaseException | None] = []
        self.is_hanging = threading.Event()
        self.certificate, key = folder / "webhook.crt", folder / "webhook.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=webhook", "-addext", "subjectAltName=IP:127.0.0.1",
                        "-keyout", key, "-out", self.certificate], check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._listen()
        self._port = self.server_address[1]

    def _listen(self) -> None:
        self.server_bind()
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def get_request(self) -> tuple[t.Any, t.Any]:
        connection, address = self.socket.accept()
        # the thread of the request does the handshake
        return self._context.wrap_socket(connection, server_side=True,
                                         do_handshake_on_connect=False), address

    def handle_error(self, request: t.Any, client_address: t.Any) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.errors.append(error)

    def __enter__(self) -> Webhook:
        name = self.namespace.name
        certificate = base64.b64encode(self.certificate.read_bytes()).decode()
        selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
        self.namespace.call("POST", CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": [{
            "name": WEBHOOK_NAME, "rules": list(self.rules), "namespaceSelector": selector,
            "clientConfig": {"url": f"https://127.0.0.1:{self._port}/mutate",
                             "caBundle": certificate},
            "failurePolicy": "Fail", "timeoutSeconds": self.timeout_seconds,
            "sideEffects": "None", "admissionReviewVersions": ["v1"]}]})
        eventually(self._probe, "the first call of the webhook")
        return self

    def _probe(self) -> bool:
        """Create objects in a dry run, and return whether the webhook was called."""
        controller = manifest(0, name="probe")
        pod = {"metadata": {"name": "probe"}, "spec": controller["spec"]["template"]["spec"]}
        for resource, item in (("pods", pod), ("replicationcontrollers", controller)):
            self.namespace.call("POST", f"{self.namespace.path(resource)}?dryRun=All", item)
        return bool(self.reviews)

    def __exit__(self, *_exception: object) -> None:
        with contextlib.suppress(ApiException):
            self.namespace.call("DELETE", f"{CONFIGURATIONS}/{self.namespace.name}")
        assert not self.errors, self.errors
        self.is_hanging.clear()
        self.shutdown()
        super().server_close()

    @contextlib.contextmanager
    def outage(self, hangs: bool) -> t.Iterator[None]:
        """Make all calls fail during the block.

        hangs: accept connections but do not respond, instead of refusing them.
        """
        if hangs:
            self.is_hanging.set()
        else:
            self.shutdown()
            self.socket.close()
        try:
            yield
        finally:
            if hangs:
                self.is_hanging.clear()
            else:
                self.socket = self._new_socket()
                self._listen()

    def _new_socket(self) -> t.Any:
        import socket

        self.server_address = ("127.0.0.1", self._port)
        return socket.socket(self.address_family, self.socket_type)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        while self.server.is_hanging.is_set():
            time.sleep(0.05)
        item = {"kind": request["kind"]["kind"], **request["object"]}
        # a new pod has no name, only generateName
        self.server.reviews.append((item["kind"], request.get("name", ""), request["operation"]))
        response: Json = {"uid": request["uid"], "allowed": True}
        if operations := self.server.mutate(item):
            patch = base64.b64encode(json.dumps(operations).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": patch}
        body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
                           "response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        pass

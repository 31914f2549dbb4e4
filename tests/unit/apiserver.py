# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a small HTTP server in place of the API server, and create objects of the API."""

from __future__ import annotations

import http.server
import json
import socket
import struct
import threading
import urllib.parse

from builders import new, rc

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import autoscaler
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Pod
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import apply_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Handover,
    scale,
)

RC_PATH = "/api/v1/namespaces/default/replicationcontrollers"


class Api(http.server.ThreadingHTTPServer):
    """Server that returns prepared responses in order, and records the requests."""

    daemon_threads = True
    # listen backlog: on a busy machine many connections arrive before the first accept
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        #: Prepared responses: to all requests except watches, and to watches.
        self.answers, self.watches = [], []
        #: Requests except watches: (method, path, headers, body).
        self.requests = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.closing = threading.Event()

    @property
    def sent(self):
        """Return (method, path) of each request that is not a watch."""
        return [(method, path) for method, path, _headers, _body in self.requests]

    def handle_error(self, request, client_address):
        """Ignore connections that a test cuts."""


class Handler(http.server.BaseHTTPRequestHandler):
    def handle_one(self):
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        query = dict(urllib.parse.parse_qsl(url.query))
        if "watch" in query:
            answers = self.server.watches
            if not answers:
                self.server.closing.wait(10)
                return
        else:
            self.server.requests.append((self.command, self.path, self.headers,
                                         json.loads(body) if body else None))
            answers = self.server.answers
        send = (answers.pop(0) if answers
                else status(404, f"unexpected: {self.command} {self.path}"))
        send(self, query)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one

    def log_message(self, *args):
        pass


def answer(content, code=200, **headers):
    """Return a response: a function that sends the content, as JSON unless it is bytes.

    An object without a namespace gets the namespace default.
    """
    if isinstance(content, dict) and "name" in content.get("metadata", {}):
        content = {**content, "metadata": {"namespace": "default", **content["metadata"]}}

    def send(handler, query):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
    return send


def status(code, message="no", **fields):
    return answer({"kind": "Status", "code": code, "message": message, **fields}, code)


def reset(handler, query):
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def truncated_answer(handler, query):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"kind": "ReplicationC')


def rc_list(*items, version="10", **metadata):
    return answer({"kind": "ReplicationControllerList",
                   "metadata": {"resourceVersion": version, **metadata},
                   "items": list(items)})


def item(version="1", **changes):
    return {"kind": "ReplicationController",
            **rc(**{"namespace": "default", "resourceVersion": version, **changes})}


def rc_answer(version="1", **changes):
    return answer(item(version, **changes))


PRIMARY = Controller.from_api(item())
SCALE_TO_2 = scale(PRIMARY, 2).write
DELETE = Delete("foo", {"uid": "uid of foo"})
CREATE = Create(new(name="bar"))
#: Field of the Status for an invalid manifest.
CAUSES = {"details": {"causes": [{"field": "spec.replicas"}]}}


def event(event_type, version, **changes):
    return {"type": event_type, "object": item(version, **changes)}


def stream(*events, tail=b""):
    """Return the response to a watch: events, then the bytes of `tail`.

    The query of the watch is added to the server's `watch_queries`.
    """
    def send(handler, query):
        handler.server.watch_queries = [*getattr(handler.server, "watch_queries", ()), query]
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(b"".join(json.dumps(event_).encode() + b"\n" for event_ in events)
                            + tail)
        handler.wfile.flush()
    return send


def pod(name, owner=None, **metadata):
    owners = [{"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name, "ownerReferences": owners, **metadata}}


def pods(*items, **metadata):
    return answer({"kind": "PodList", "metadata": {"resourceVersion": "11", **metadata},
                   "items": list(items)})


def always_continue():
    return True


NEW_OWNER = {"apiVersion": "v1", "kind": "ReplicationController", "name": "bar",
             "uid": "uid of bar",
             "controller": True}


def reparent_to_bar(*names):
    """Return the write that moves the named pods of foo to the controller bar."""
    return Handover(tuple(Pod(name, f"uid of {name}", {"app": "foo"}, "uid of foo")
                          for name in names), "uid of foo", NEW_OWNER, {})


def hpa(**spec):
    return {"kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "hpa", "uid": "u", "annotations": {}},
            "spec": {"minReplicas": 2, **spec}}


HPA_PATH = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"
FREEZE = autoscaler.freeze(hpa()).write
FROZEN = apply_patch(hpa(), FREEZE)


def lease_item(version=None, holder="me"):
    metadata = {"name": "x", "namespace": "default", "annotations": {"holder": holder},
                **({"uid": "u", "resourceVersion": version} if version else {})}
    return {"kind": "Lease", "metadata": metadata, "spec": {}}

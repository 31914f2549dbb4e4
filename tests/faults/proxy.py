# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A proxy between the client under test (HTTP on loopback) and the API server (TLS).

For each request, a script may return a fault (injected.py) that handles the request.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

LOOPBACK = "127.0.0.1"
MUTATING = ("POST", "PUT", "PATCH", "DELETE")

_HOP_BY_HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Response(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Exchange(BaseHTTPRequestHandler):
    """The handler of one connection of the client.

    A fault gets this handler, and answers the current request in place of the API server.
    """

    protocol_version = "HTTP/1.1"
    proxy: Proxy
    body = b""

    # Request

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)

    @property
    def is_write(self) -> bool:
        """Return whether the request changes an object."""
        is_review = urlsplit(self.path).path.startswith("/apis/authorization.k8s.io/")
        return self.command in MUTATING and "dryRun" not in self.query and not is_review

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch", ["0"])[0] in ("1", "true")

    # Actions

    def forward(self, body: bytes | None = None) -> Response:
        response = self._send(self.body if body is None else body)
        return Response(response.status, response.getheaders(), response.read())

    def reply(self, response: Response, *headers: tuple[str, str], body_share: float = 1) -> None:
        """Send a response. With a `body_share` below 1, truncate the body, and close the
        connection.
        """
        self.send_response(response.status)
        for key, value in (*response.headers, *headers):
            if key.lower() not in _HOP_BY_HOP_HEADERS or (key, value) in headers:
                self.send_header(key, value)
        self.send_header("Content-Length", str(len(response.body)))
        self.end_headers()
        self.wfile.write(response.body[: int(len(response.body) * body_share)])
        self.close_connection = self.close_connection or body_share < 1

    def reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def events(self) -> Iterator[bytes]:
        # A connection with a response that is not read to its end cannot be used again.
        with contextlib.closing(self._upstream):
            yield from self._send(self.body)

    def stream(self, chunks: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")

    # Connection

    def __init__(self, proxy: Proxy, connection: socket.socket, address: Any) -> None:
        self.proxy = proxy
        self.is_closed = False
        self._upstream = proxy.connect()
        with proxy.track(self), contextlib.closing(self._upstream):
            super().__init__(connection, address, None)  # type: ignore[arg-type]

    def _handle_request(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        script = self.proxy.script
        fault = script(self) if script else None
        if fault:
            fault(self)
        elif self.is_watch:
            self.stream(self.events())
        else:
            self.reply(self.forward())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _handle_request

    def _send(self, body: bytes) -> http.client.HTTPResponse:
        headers = {key: value
                   for key, value in self.headers.items() if key.lower() not in _HOP_BY_HOP_HEADERS}
        headers = ({"Authorization": f"Bearer {self.proxy.token}"} | headers
                   | {"Accept-Encoding": "identity"})
        self._upstream.request(self.command, self.path, body or None, headers)
        return self._upstream.getresponse()

    def close_connections(self) -> None:
        self.is_closed = True
        for connection in (self._upstream.sock, self.connection):
            with contextlib.suppress(OSError, AttributeError):
                connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_unused: Any) -> None:
        """Discard the log."""


Fault = Callable[[Exchange], None]
Script = Callable[[Exchange], "Fault | None"]


class Proxy:
    def __init__(self, kubeconfig: str) -> None:
        """Prepare a proxy to the API server of the kubeconfig.

        The proxy adds the token of the administrator to requests without a token.
        """
        config = json.loads(Path(kubeconfig).read_text("utf-8"))
        cluster = config["clusters"][0]["cluster"]
        self._server = urlsplit(cluster["server"])
        self._tls = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
        self.token: str = config["users"][0]["user"]["token"]
        self.script: Script | None = None
        self.errors: list[Exception] = []
        self._open_exchanges: set[Exchange] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._port = 0

    def __enter__(self) -> Proxy:
        self.listen()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop_listening()
        self.close_connections()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._server.hostname or "", self._server.port,
                                           context=self._tls, timeout=120)

    def annotate(self, path: str, annotations: dict[str, str]) -> None:
        headers = {"Authorization": f"Bearer {self.token}",
                   "Content-Type": "application/merge-patch+json"}
        with contextlib.closing(self.connect()) as connection:
            connection.request("PATCH", path,
                               json.dumps({"metadata": {"annotations": annotations}}), headers)
            connection.getresponse().read()

    def listen(self) -> None:
        """Accept connections, always on the same port."""
        with self._lock:
            # Ports from 32768 up are ephemeral: a client could occupy the port of a stopped proxy.
            for port in [self._port] if self._port else random.sample(range(20000, 32000), 100):
                if self._listener:
                    return
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    listener.bind((LOOPBACK, port))
                    listener.listen(64)
                except OSError:
                    listener.close()
                    continue
                self._listener, self._port = listener, port
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        if not self._listener:
            raise SystemExit("there is no free port for the proxy")

    def stop_listening(self) -> None:
        with self._lock:
            listener, self._listener = self._listener, None
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # interrupts accept()
            listener.close()

    def close_connections(self) -> None:
        with self._lock:
            exchanges = list(self._open_exchanges)
        for exchange in exchanges:
            exchange.close_connections()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: Any) -> None:
        # A killed client closes its connection during a response.
        with contextlib.suppress(OSError, http.client.HTTPException), connection:
            Exchange(self, connection, address)

    @contextlib.contextmanager
    def track(self, exchange: Exchange) -> Iterator[None]:
        """Register the connection, so that close_connections() can close it.

        Adds errors other than network errors to `errors`.
        """
        with self._lock:
            self._open_exchanges.add(exchange)
        try:
            yield
        except (OSError, http.client.HTTPException):
            raise
        except Exception as error:
            if not exchange.is_closed:
                self.errors.append(error)
        finally:
            with self._lock:
                self._open_exchanges.discard(exchange)

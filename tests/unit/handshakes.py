# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run a server that ends each TLS handshake."""

from __future__ import annotations

import contextlib
import socketserver
import threading


def _alert(level, description):
    return bytes([21, 3, 3, 0, 2, level, description])


#: Responses to the first message of a handshake; the server then closes the connection.
TEMPORARY = {
    "closed connection": b"",
    "closing alert": _alert(1, 0),
    "internal error": _alert(2, 80),
}
PERMANENT = {
    "plain HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no common algorithm": _alert(2, 40),
    "rejected certificate": _alert(2, 42),
    "unknown authority": _alert(2, 48),
    "missing certificate": _alert(2, 116),
}


class Server(socketserver.ThreadingTCPServer):
    """Server that sends the same response to each handshake, and counts the connections."""

    daemon_threads = True

    def __init__(self, response):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.response, self.connection_count = response, 0
        self.url = f"https://127.0.0.1:{self.server_address[1]}"


class _Handler(socketserver.BaseRequestHandler):
    def handle(self):
        self.server.connection_count += 1
        self.request.recv(65536)
        self.request.sendall(self.server.response)


@contextlib.contextmanager
def server(response):
    with Server(response) as handshake_server:
        thread = threading.Thread(target=handshake_server.serve_forever,
                                  kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield handshake_server
        finally:
            handshake_server.shutdown()
            thread.join()

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send HTTP requests to the embedded cluster with http.client, which never uses a proxy."""

from __future__ import annotations

import http.client
import json
import ssl
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from workspace import ClusterError


class Refused(ClusterError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"the API server refused with {status}: {message}")
        self.status = status


def status_of(url: str, timeout: float = 2) -> int | None:
    """Send a GET request, and return the HTTP status, or None without an answer.

    The request contains no secret, so the certificate is not verified.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return _request(url, "GET", context=context, timeout=timeout)[0]
    except OSError:
        return None


class Api:
    def __init__(self, server: str, token: str, certificate_authority: str) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._context = ssl.create_default_context(cafile=certificate_authority)

    def get(self, path: str) -> dict[str, Any]:
        """Return the object or list. Raises Refused, OSError."""
        return self._call("GET", path)

    def create(self, path: str, body: dict[str, Any]) -> None:
        """Create the object, unless it exists. Raises Refused, OSError."""
        try:
            self._call("POST", path, json.dumps(body))
        except Refused as refused:
            if refused.status != HTTPStatus.CONFLICT:
                raise

    def _call(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        status, text = _request(
            self._server + path, method, body, self._headers, self._context, timeout=10
        )
        if status >= 400:
            raise Refused(status, text[:256])
        return json.loads(text)


def _request(
    url: str,
    method: str,
    body: str | None = None,
    headers: dict[str, str] | None = None,
    context: ssl.SSLContext | None = None,
    timeout: float = 10,
) -> tuple[int, str]:
    address = urlsplit(url)
    if address.scheme == "https":
        connection = http.client.HTTPSConnection(address.netloc, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(address.netloc, timeout=timeout)
    try:
        connection.request(method, url.partition(address.netloc)[2], body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(f"no HTTP answer from {address.netloc}: {error!r}") from error
    finally:
        connection.close()

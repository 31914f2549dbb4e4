# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One question to Prometheus, or to what has its HTTP API (Thanos, Mimir, VictoriaMetrics), and what its answer means.

What waiting may cure (it is started again, it is too busy) is a reading without a number. What waiting does not cure (the
query, the credentials, an address where something else answers) is a RolloutError.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import typing as t
from urllib.parse import unquote, urlencode, urlsplit

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, pairs, text, told, values
from ..model.verdicts import Reading
from . import secrets as hidden
from .connection import USER_AGENT
from .http import CONNECT_TIMEOUT, RETRIED, brief, whole

#: As of the API server, no_log has what may hold a secret: a URL may have a password in it.
ARGUMENT_SPEC: Json = dict(
    prometheus_url=dict(type="str", no_log=True),
    prometheus_token=dict(type="str", no_log=True),
    prometheus_username=dict(type="str"),
    prometheus_password=dict(type="str", no_log=True),
    prometheus_ca_cert=dict(type="path"),
    prometheus_client_cert=dict(type="path", no_log=True),
    prometheus_client_key=dict(type="path", no_log=True),
    prometheus_validate_certs=dict(type="bool", default=True),
    prometheus_timeout=dict(type="float", default=10),
)

#: Bytes of an answer that are read: a number, its labels and what has gone wrong need no more.
MOST_BYTES = 2**20
#: Of one answer.
MOST_WARNINGS = 3
#: Seconds between two tries.
BACKOFF = (0.2, 1.0)
_PREFIX = "prometheus_"
_LOOKS = ("it must look like http://prometheus.example.com:9090, maybe with a path; in a user name and a password, escape "
          "/ ? # @ : [ ] by %")


class Prometheus:
    """A connection pool, an address, and headers that prove who we are."""

    def __init__(self, params: Json) -> None:
        """No request is made. Raises RolloutError for options that make no sense."""
        import urllib3

        options = _given(params)
        self.server, headers = _address(options)
        self._headers = {**headers, "User-Agent": USER_AGENT, "Accept": "application/json",
                         "Content-Type": "application/x-www-form-urlencoded"}
        self._seconds = options["timeout"]
        if not 0 < self._seconds < 3600:
            raise RolloutError(f"prometheus_timeout must be more than 0 seconds, and at most an hour, not {self._seconds:g}")
        for option in ("ca_cert", "client_cert", "client_key"):
            if option in options and not os.path.isfile(options[option]):
                raise RolloutError(f"prometheus_{option} {options[option]} does not exist" if hidden.is_path(options[option])
                                   else f"prometheus_{option} must be the path of a file in PEM format, not its content")
        if not options["validate_certs"]:
            urllib3.disable_warnings()
        # Any, since by its types urllib3 takes no options but texts where nothing is encoded.
        self._pool: t.Any = urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED" if options["validate_certs"] else "CERT_NONE", ca_certs=options.get("ca_cert"),
            cert_file=options.get("client_cert"), key_file=options.get("client_key"))

    def ask(self, query: str, stop: t.Callable[[], str] = str) -> Reading:
        """The number that the query comes to now; stop says why not to try again. Raises RolloutError where no other try helps."""
        why = ""
        for pause in (*BACKOFF, 0):
            status, data, why = self._once(query)
            if status and status not in RETRIED and status < 500:
                return self._read(query, status, data)
            if status:
                why = f"Prometheus at {self.server} answers with status {status}: {_said(data)}"
            if stop():
                break
            time.sleep(pause)
        return Reading(None, why, is_answer=False)

    def _once(self, query: str) -> tuple[int, bytes, str]:
        """Status and content of the answer to a single try; 0 and why, where there is none. Raises RolloutError."""
        import urllib3

        # Prometheus takes no durations such as 2.5s.
        # In the body of a POST: with the names of many pods, a query is longer than a URL may be.
        body = urlencode({"query": query, "timeout": f"{max(1, math.ceil(self._seconds * 1000))}ms"}, errors="replace")
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, self._seconds), read=self._seconds)
        try:
            answer = self._pool.request_encode_url(
                "POST", f"{self.server}/api/v1/query", body=body, headers=self._headers, timeout=timeout, retries=False,
                redirect=False, preload_content=False)
            data = whole(answer, MOST_BYTES, self._seconds)
        except urllib3.exceptions.SSLError as error:
            raise RolloutError(f"the certificate of Prometheus at {self.server} is not accepted", why=brief(error),
                               next_command="give prometheus_ca_cert, or check prometheus_validate_certs, prometheus_client_cert "
                                            "and prometheus_client_key") from error
        except urllib3.exceptions.LocationValueError as error:
            raise _no_address(self.server, brief(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return 0, b"", f"Prometheus at {self.server} cannot be reached: {brief(error)}"
        except ValueError as error:
            raise _no_address(self.server, brief(error)) from error
        if data is None:
            raise RolloutError(f"the answer of Prometheus has more than {MOST_BYTES} bytes", where=self.server,
                               next_command="aggregate the query to one number, by sum(), max() or avg()")
        return answer.status, data, ""

    def _read(self, query: str, status: int, data: bytes) -> Reading:
        """Raises RolloutError."""
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if status in (401, 403):
            raise RolloutError(f"Prometheus does not accept the credentials ({status})", where=self.server, why=_said(data),
                               next_command="check prometheus_token, or prometheus_username and prometheus_password")
        if text(answer, "status") == "error" and status in (400, 422):
            raise RolloutError("Prometheus refuses the query", where=self.server, why=_said(data),
                               next_command=f"correct the query: {_short(query)}")
        if status == 200 and text(answer, "status") == "success":
            with contextlib.suppress(ValueError):
                warnings = tuple(f"Prometheus warns: {told(str(each))}" for each in values(answer, "warnings")[:MOST_WARNINGS])
                return self._number(query, mapping(answer, "data"))._replace(warnings=warnings)
        raise RolloutError(f"{self.server} does not respond like Prometheus", why=f"status {status}: {_said(data)}",
                           next_command="check prometheus_url, below which there has to be /api/v1/query")

    def _number(self, query: str, data: Json) -> Reading:
        """Raises ValueError for what is no answer, and RolloutError for one that is not a single number."""
        found = values(data, "result")
        if text(data, "resultType") == "scalar":
            found = [{"value": found}]
        elif text(data, "resultType") != "vector":
            raise RolloutError(f"the query comes to a {told(text(data, 'resultType')) or 'nothing'}, and not to a number",
                               where=self.server, next_command=f"correct the query: {_short(query)}")
        if len(found) > 1:
            labels = "; ".join(told(pairs(mapping(each, "metric"))) for each in found[:3])
            raise RolloutError(f"the query comes to {len(found)} numbers, and only one can be measured", where=self.server,
                               why=f"the first ones have the labels {labels}",
                               next_command=f"aggregate it, by sum(), max() or avg(): {_short(query)}")
        if not found:
            return Reading(None, "no data")
        value = values(found[0], "value")
        if len(value) != 2 or not isinstance(value[1], str):
            raise ValueError("no sample")
        number = float(value[1])
        return Reading(None, "NaN") if math.isnan(number) else Reading(number)


def secrets(params: t.Mapping[str, t.Any]) -> set[str]:
    """What must not be shown of a module's parameters."""
    options = _given(params)
    return hidden.of_options({"api_key": options.get("token"), "host": options.get("url"), **options}, {})


def check_address(params: t.Mapping[str, t.Any]) -> None:
    """Raises RolloutError for an address, or credentials, that no server could be asked with. Nothing is sent, no file is read."""
    _address(_given(params))


def _given(params: t.Mapping[str, t.Any]) -> Json:
    """The options by what comes after their prefix."""
    found = {option[len(_PREFIX):]: params.get(option) for option in ARGUMENT_SPEC}
    return {option: value for option, value in found.items() if value is not None and value != ""}


def _address(options: Json) -> tuple[str, Json]:
    """The URL without what is secret in it, and the header that it makes. Raises RolloutError."""
    import urllib3

    shown = hidden.without_password(options.get("url", ""))
    try:
        parts = urlsplit(options.get("url", "").rstrip("/"))
        _port = parts.port  # raises for what is no number
    except ValueError:  # whose text has part of a password in it that is not escaped
        raise _no_address(shown, _LOOKS) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in parts.path:
        raise _no_address(shown, _LOOKS)
    user, password = options.get("username"), options.get("password")
    if parts.username is not None and user is None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    if (user is None) is not (password is None):
        raise RolloutError("prometheus_username and prometheus_password need each other")
    if user is not None and "token" in options:
        raise RolloutError("prometheus_token cannot be combined with a user name and a password")
    token = str(options.get("token", "")).strip()
    if not (token.isascii() and token.isprintable()):
        raise RolloutError("prometheus_token is not valid: it contains line breaks or non-ASCII characters")
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if user is not None:
        pair = f"{user}:{password}".encode(errors="replace").decode("latin-1")  # make_headers has latin-1
        return address, urllib3.util.make_headers(basic_auth=pair)
    return address, {"Authorization": f"Bearer {token}"} if token else {}


def _no_address(shown: str, why: str) -> RolloutError:
    return RolloutError(f"prometheus_url {told(shown)!r} is not a valid address", why=why)


def _said(data: bytes) -> str:
    """Prometheus' own words, or the beginning of whatever has answered instead."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        answer = None
    if said := text(answer, "error"):
        return told(f"{text(answer, 'errorType')}: {said}")
    return told(" ".join(data[:256].decode(errors="replace").split())) or "nothing"


def _short(query: str) -> str:
    """The query as a message has room for it: the names of the pods are many."""
    shown = " ".join(query.split())
    return shown if len(shown) <= 500 else f"{shown[:350]} ... {shown[-140:]}"

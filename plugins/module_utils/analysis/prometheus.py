# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Send instant queries to Prometheus, or to another server with the API of Prometheus.

The other server may be Thanos, Mimir or VictoriaMetrics.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import typing as t
from urllib.parse import unquote, urlencode, urlsplit

from ..cluster import secrets as masking
from ..cluster.certificates import Certificates, refuse_encrypted_keys
from ..cluster.connection import USER_AGENT
from ..cluster.http import CONNECT_TIMEOUT, innermost_reason, is_refused_handshake, read_body
from ..cluster.refused import RETRIED_STATUSES
from ..model.errors import RolloutError
from ..model.fields import Json, display_text, mapping, pairs, text, values
from ..model.options import parse_duration
from .outcome import Reading

#: All options that may contain secrets have no_log.
ARGUMENT_SPEC: Json = dict(
    prometheus_url=dict(type="str", no_log=True),
    prometheus_token=dict(type="str", no_log=True),
    prometheus_username=dict(type="str"),
    prometheus_password=dict(type="str", no_log=True),
    prometheus_ca_cert=dict(type="path"),
    prometheus_client_cert=dict(type="path", no_log=True),
    prometheus_client_key=dict(type="path", no_log=True),
    prometheus_validate_certs=dict(type="bool", default=True),
    prometheus_timeout=dict(type="str", default="10"),
)

MAX_RESPONSE_BYTES = 2**20
MAX_WARNINGS = 3
#: Seconds before the second and before the third attempt.
BACKOFF = (0.2, 1.0)
_PREFIX = "prometheus_"
_URL_HINT = ("it must look like http://prometheus.example.com:9090, maybe with a path; in a user "
             "name or a password, percent-encode these characters: / ? # @ : [ ]")


class Prometheus:
    """A client of a Prometheus server."""

    def __init__(self, params: Json) -> None:
        """Validate the options, without a request. Raises RolloutError."""
        import urllib3

        options = _provided_options(params)
        self.server, headers = _parse_url(options)
        self._headers = {**headers, "User-Agent": USER_AGENT, "Accept": "application/json",
                         "Content-Type": "application/x-www-form-urlencoded"}
        self._timeout = parse_duration("prometheus_timeout", options["timeout"])
        if not 0 < self._timeout < 3600:
            raise RolloutError("prometheus_timeout must be more than 0 seconds and less than an "
                               f"hour, but is {self._timeout:g} seconds")
        for option in ("ca_cert", "client_cert", "client_key"):
            if option in options and not os.path.isfile(options[option]):
                raise RolloutError(f"prometheus_{option} {options[option]} does not exist"
                                   if masking.is_path(options[option])
                                   else f"prometheus_{option} must be the path of a file in PEM "
                                        "format, not its content")
        refuse_encrypted_keys(Certificates(),
                              (options.get("client_cert"), options.get("client_key")))
        if not options["validate_certs"]:
            urllib3.disable_warnings()
        self._pool: t.Any = urllib3.PoolManager(
            cert_reqs="CERT_REQUIRED" if options["validate_certs"] else "CERT_NONE",
            ca_certs=options.get("ca_cert"),
            cert_file=options.get("client_cert"), key_file=options.get("client_key"))

    def query(self, query: str, reason_to_stop: t.Callable[[], str] = str) -> Reading:
        """Return the reading of a query: without a number if all attempts have transient errors.

        reason_to_stop: returns a reason to send no further request, or "".
        Raises RolloutError for a permanent error.
        """
        why = ""
        for pause in (*BACKOFF, 0):
            status, data, why = self._send(query)
            if status and status not in RETRIED_STATUSES and status < 500:
                return self._parse_response(query, status, data)
            if status:
                why = (f"Prometheus at {self.server} answers with status {status}: "
                       f"{_error_message(data)}")
            if reason_to_stop():
                break
            time.sleep(pause)
        return Reading(None, why, is_answer=False)

    def _send(self, query: str) -> tuple[int, bytes, str]:
        """Return (status, body, ""), or (0, b"", error) without a response."""
        import urllib3

        # Use POST, because the query may be too long for a URL. The timeout is in ms, because
        # Prometheus rejects 2.5s.
        body = urlencode({"query": query,
                          "timeout": f"{max(1, math.ceil(self._timeout * 1000))}ms"},
                         errors="replace")
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT, self._timeout), read=self._timeout)
        try:
            response = self._pool.request_encode_url(
                "POST", f"{self.server}/api/v1/query", body=body, headers=self._headers,
                timeout=timeout, retries=False, redirect=False, preload_content=False)
            data = read_body(response, MAX_RESPONSE_BYTES, self._timeout)
        except urllib3.exceptions.LocationValueError as error:
            raise _invalid_url(self.server, innermost_reason(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            reason = innermost_reason(error)
            if is_refused_handshake(error):
                raise RolloutError(
                    f"the certificate of Prometheus at {self.server} is not accepted", why=reason,
                    next_command="give prometheus_ca_cert, or check prometheus_validate_certs, "
                                 "prometheus_client_cert and prometheus_client_key") from error
            return 0, b"", f"Prometheus at {self.server} cannot be reached: {reason}"
        except ValueError as error:
            raise _invalid_url(self.server, innermost_reason(error)) from error
        if data is None:
            raise RolloutError(f"the answer of Prometheus has more than {MAX_RESPONSE_BYTES} bytes",
                               where=self.server,
                               next_command="aggregate the query to one number, by sum(), max() or "
                                            "avg()")
        return response.status, data, ""

    def _parse_response(self, query: str, status: int, data: bytes) -> Reading:
        response = _parse_json(data)
        if status in (401, 403):
            raise RolloutError(f"Prometheus does not accept the credentials ({status})",
                               where=self.server, why=_error_message(data),
                               next_command="check prometheus_token, or prometheus_username and "
                                            "prometheus_password")
        if text(response, "status") == "error" and status in (400, 422):
            raise RolloutError("Prometheus rejects the query", where=self.server,
                               why=_error_message(data),
                               next_command=f"correct the query: {_truncate(query)}")
        if status == 200 and text(response, "status") == "success":
            with contextlib.suppress(ValueError):
                warnings = tuple(f"Prometheus warns: {display_text(str(warning))}"
                                 for warning in values(response, "warnings")[:MAX_WARNINGS])
                reading = self._parse_sample(query, mapping(response, "data"))
                return reading._replace(warnings=warnings)
        raise RolloutError(f"{self.server} does not respond like Prometheus",
                           why=f"status {status}: {_error_message(data)}",
                           next_command="check prometheus_url, which is the URL before "
                                        "/api/v1/query")

    def _parse_sample(self, query: str, data: Json) -> Reading:
        """Return the reading of at most one sample. Raises RolloutError or ValueError."""
        samples = values(data, "result")
        if text(data, "resultType") == "scalar":
            samples = [{"value": samples}]
        elif text(data, "resultType") != "vector":
            result_type = display_text(text(data, "resultType")) or "unknown"
            raise RolloutError(f"the query returns a result of type {result_type}, not a number",
                               where=self.server,
                               next_command=f"correct the query: {_truncate(query)}")
        if len(samples) > 1:
            labels = "; ".join(display_text(pairs(mapping(sample, "metric")))
                               for sample in samples[:3])
            raise RolloutError(f"the query returns {len(samples)} numbers, instead of one",
                               where=self.server,
                               why=f"the first numbers have the labels {labels}",
                               next_command="aggregate it, by sum(), max() or avg(): "
                                            f"{_truncate(query)}")
        if not samples:
            return Reading(None, "no data")
        value = values(samples[0], "value")
        if len(value) != 2 or not isinstance(value[1], str):
            raise ValueError("no sample")
        number = float(value[1])
        return Reading(None, "NaN") if math.isnan(number) else Reading(number)


def secrets(params: t.Mapping[str, t.Any]) -> set[str]:
    """Return the secrets in the parameters of a module."""
    options = _provided_options(params)
    return masking.option_secrets(
        {"api_key": options.get("token"), "host": options.get("url"), **options}, {})


def check_url_and_credentials(params: t.Mapping[str, t.Any]) -> None:
    """Raise RolloutError if the options for the URL or the credentials are invalid."""
    _parse_url(_provided_options(params))


def _provided_options(params: t.Mapping[str, t.Any]) -> Json:
    """Return the options that are set, by name without the prefix prometheus_."""
    value_by_option = {option[len(_PREFIX):]: params.get(option) for option in ARGUMENT_SPEC}
    return {option: value
            for option, value in value_by_option.items() if value is not None and value != ""}


def _parse_url(options: Json) -> tuple[str, Json]:
    """Return the URL without credentials, and the headers with the credentials."""
    import urllib3

    # For error messages: a URL that cannot be parsed may contain credentials, too.
    url = masking.without_credentials(
        masking.mask(options.get("url", ""), masking.url_secrets(options.get("url", ""))))
    try:
        parts = urlsplit(options.get("url", "").rstrip("/"))
        _port = parts.port  # raises ValueError for an invalid port
    except ValueError:  # the message may contain a part of the password
        raise _invalid_url(url, _URL_HINT) from None
    if (parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment
            or "@" in parts.path):
        raise _invalid_url(url, _URL_HINT)
    user, password = options.get("username"), options.get("password")
    if parts.username is not None and user is None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    if (user is None) is not (password is None):
        raise RolloutError("prometheus_username and prometheus_password must be used together")
    if user is not None and "token" in options:
        raise RolloutError("prometheus_token cannot be combined with a user name and a password")
    token = str(options.get("token", "")).strip()
    if not (token.isascii() and token.isprintable()):
        raise RolloutError("prometheus_token is not valid: it contains line breaks or non-ASCII "
                           "characters")
    url_without_credentials = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    if user is not None:
        # make_headers encodes in latin-1, but the server expects UTF-8.
        credentials = f"{user}:{password}".encode(errors="replace").decode("latin-1")
        return url_without_credentials, urllib3.util.make_headers(basic_auth=credentials)
    return url_without_credentials, {"Authorization": f"Bearer {token}"} if token else {}


def _invalid_url(url: str, why: str) -> RolloutError:
    return RolloutError(f"prometheus_url {display_text(url)!r} is not a valid address", why=why)


def _error_message(data: bytes) -> str:
    response = _parse_json(data)
    if message := text(response, "error"):
        return display_text(f"{text(response, 'errorType')}: {message}")
    return display_text(" ".join(data[:256].decode(errors="replace").split())) or "nothing"


def _parse_json(data: bytes) -> t.Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _truncate(query: str) -> str:
    one_line = " ".join(query.split())
    return one_line if len(one_line) <= 500 else f"{one_line[:350]} ... {one_line[-140:]}"

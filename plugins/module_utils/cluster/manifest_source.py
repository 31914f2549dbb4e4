# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Download the manifest at a URL in the option src."""

from __future__ import annotations

import contextlib
import http.client
import urllib.error

from ..model.errors import RolloutError
from ..model.fields import Json
from ..model.kinds import State
from . import secrets as masking
from .connection import USER_AGENT

#: As in kubernetes.core.
_SCHEMES = ("http://", "https://", "ftp://")
#: Seconds.
_TIMEOUT = 30
#: More than etcd stores in an object.
_MAX_BYTES = 2**21


def with_manifest(params: Json) -> Json:
    """Return the parameters, with `src_content` if src is a URL and the task rolls nothing back.

    Raises RolloutError.
    """
    src = str(params.get("src") or "")
    if not src.startswith(_SCHEMES) or State(params.get("state") or State.UPDATED).rolls_back:
        return params
    return {**params, "src_content": _read(src)}


def secrets(params: Json) -> set[str]:
    """Return the password, or else the user name, in the URL of src, in several encodings."""
    return masking.url_secrets(str(params.get("src") or ""))


def _read(url: str) -> str:
    from ansible.module_utils.urls import ConnectionError as AnsibleConnectionError
    from ansible.module_utils.urls import open_url

    try:
        with contextlib.closing(open_url(url, timeout=_TIMEOUT, http_agent=USER_AGENT)) as response:
            content = response.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
        return str(content, encoding="utf-8")
    except (OSError, ValueError, urllib.error.URLError, http.client.HTTPException,
            AnsibleConnectionError) as error:
        address, why = (masking.mask(message, masking.url_secrets(url))
                        for message in (url, " ".join(str(error).split())))
        address = masking.without_credentials(address).partition("?")[0]
        raise RolloutError(f"src {address} cannot be read", why=why) from None

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Read which APIs the API server has."""

from __future__ import annotations

import typing as t

from ..model.fields import Json, objects, text
from .refused import Refused


def lacks_resource(send: t.Callable[[str, str], Json], collection: str) -> bool:
    """Return whether the API server's lists of APIs lack the resource of a collection.

    Only for a resource outside of the lists, the API server sends a 404 without Status object.
    send: send a request with a method and a path, and return the response. Raises RolloutError.
    """
    if collection.startswith("/api/"):
        return False  # the core API always sends a Status object
    _start, _apis, group, version, *_namespace, resource = collection.split("/")
    try:
        versions = {text(item, "groupVersion")
                    for api_group in objects(send("GET", "/apis"), "groups")
                    for item in objects(api_group, "versions")}
        if f"{group}/{version}" not in versions:
            return True
        resources = objects(send("GET", f"/apis/{group}/{version}"), "resources")
    except Refused:
        return False
    return all(text(item, "name") != resource for item in resources)

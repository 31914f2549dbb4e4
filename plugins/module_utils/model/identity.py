# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hashes of requests, and names and label values built from them (design section 4). Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

NAME_LIMIT = 253
HASH_LENGTH = 10
#: Minimum similarity (difflib's ratio) to suggest a name: about one typo in four letters.
NEAR = 0.75
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_name(text: str) -> bool:
    """Return whether the text is a valid object name (an RFC 1123 subdomain)."""
    return len(text) <= NAME_LIMIT and bool(_SUBDOMAIN.fullmatch(text))


def canonical(value: t.Any) -> str:
    """Return JSON with sorted keys and no white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: t.Any) -> str:
    """Return a short hexadecimal hash of a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:HASH_LENGTH]


def label_value(content: t.Any, taken: str | None) -> str:
    """Return the deployment label's value for the content of a controller, different from taken.

    The content is the request without uid, resourceVersion, status, time or size, which kubectl
    also hashed, so that each retry got another name. With equal values, the pods of both
    controllers could not be distinguished.
    """
    value = digest(content)
    return f"{value}-{digest(taken)[:5]}" if value == taken else value


def is_label_value(value: str) -> bool:
    """Return whether the value has the format of label_value()."""
    return bool(re.fullmatch(rf"[0-9a-f]{{{HASH_LENGTH}}}(-[0-9a-f]{{5}})?", value))


def successor_name(name: str, value: str) -> str:
    """Return the successor's name: the user's name and the label's value."""
    return f"{name[: NAME_LIMIT - len(value) - 1].rstrip('-.')}-{value}"


def migration_name(name: str) -> str:
    """Return the name of the ControllerRevision with a migrating controller's manifest."""
    return successor_name(name, "migration")


def lease_name(kind: str, name: str) -> str:
    """Return the Lease's name for a kind and name; with a dot, unlike names of earlier versions."""
    return _shortened(f"baton-kubernetes.{kind.lower()}.{name}", kind + name)


def lease_name_without_kind(name: str) -> str:
    """Return the Lease's name in earlier versions, for a controller of any kind."""
    return _shortened(f"baton-kubernetes-{name}", name)


def _shortened(lease: str, content: str) -> str:
    return lease if len(lease) <= NAME_LIMIT else successor_name(lease, digest(content))


def did_you_mean(name: str, names: t.Iterable[str]) -> str:
    """Return a suggestion of the nearest known name for the end of an error, or ""."""
    import difflib

    near = difflib.get_close_matches(name, names, n=1, cutoff=NEAR)
    return f"; did you mean {near[0]}?" if near else ""

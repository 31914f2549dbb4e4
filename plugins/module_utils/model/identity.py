# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Hashes of what the user asks for, and the names and label values that are made of them (design section 4). Pure."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

NAME_LIMIT = 253
HASH_LENGTH = 10
#: How much two names have in common (difflib's ratio) of which one may be meant for the other: about one slip in four letters.
NEAR = 0.75
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_name(text: str) -> bool:
    """Whether an object may have that name (an RFC 1123 subdomain)."""
    return len(text) <= NAME_LIMIT and bool(_SUBDOMAIN.fullmatch(text))


def canonical(value: t.Any) -> str:
    """JSON with sorted keys and no white space: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: t.Any) -> str:
    """A short hexadecimal hash of any JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:HASH_LENGTH]


def label_value(content: t.Any, taken: str | None) -> str:
    """The deployment label's value for a controller with that content; never equal to the value that is taken.

    Content is what the user asks for, without uid, resourceVersion, status, time or size: kubectl hashed those too, so
    that each retry got another name. With equal values nothing would tell the pods of the two controllers apart.
    """
    value = digest(content)
    return f"{value}-{digest(taken)[:5]}" if value == taken else value


def is_label_value(value: str) -> bool:
    """Whether label_value() may have made it."""
    return bool(re.fullmatch(rf"[0-9a-f]{{{HASH_LENGTH}}}(-[0-9a-f]{{5}})?", value))


def successor_name(name: str, value: str) -> str:
    """The name of the controller that carries the new template: the user's name and the label's value."""
    return f"{name[: NAME_LIMIT - len(value) - 1].rstrip('-.')}-{value}"


def migration_name(name: str) -> str:
    """Return the name of the ControllerRevision that a migration keeps of a controller of that name."""
    return successor_name(name, "migration")


def lease_name(kind: str, name: str) -> str:
    """Return the name of the Lease for a controller of that kind and name; no name of an earlier version has a dot there."""
    return _shortened(f"baton-kubernetes.{kind.lower()}.{name}", kind + name)


def lease_name_without_kind(name: str) -> str:
    """Return the name that earlier versions give to the Lease for a controller of that name, whatever its kind."""
    return _shortened(f"baton-kubernetes-{name}", name)


def _shortened(lease: str, content: str) -> str:
    return lease if len(lease) <= NAME_LIMIT else successor_name(lease, digest(content))


def did_you_mean(name: str, known: t.Iterable[str]) -> str:
    """The end of a sentence that says that there is no such name: the nearest one that there is, or "" where none is near."""
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
    return f"; did you mean {near[0]}?" if near else ""

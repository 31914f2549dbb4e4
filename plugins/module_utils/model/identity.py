# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Compute, validate and suggest names and label values."""

from __future__ import annotations

import hashlib
import json
import re
import typing as t

MAX_NAME_LENGTH = 253
HASH_LENGTH = 10
#: The ratio of difflib for names with about one typo in four letters.
MIN_SIMILARITY = 0.75
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_name(text: str) -> bool:
    """Return whether the text is a valid object name (an RFC 1123 subdomain)."""
    return len(text) <= MAX_NAME_LENGTH and bool(_SUBDOMAIN.fullmatch(text))


def canonical(value: t.Any) -> str:
    """Return JSON with sorted keys, so that equal values have equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: t.Any) -> str:
    """Return a short hexadecimal hash of a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:HASH_LENGTH]


def label_value(content: t.Any, primary_value: str | None) -> str:
    """Return the value of the deployment label for the pods of the successor.

    content: the result of Request.content(). primary_value: the value for the primary's pods.
    """
    value = digest(content)
    return f"{value}-{digest(primary_value)[:5]}" if value == primary_value else value


def is_label_value(value: str) -> bool:
    """Return whether the value has the format of label_value()."""
    return bool(re.fullmatch(rf"[0-9a-f]{{{HASH_LENGTH}}}(-[0-9a-f]{{5}})?", value))


def successor_name(name: str, suffix: str) -> str:
    """Return the name with the suffix, such as foo-354aa2c0fa for the successor of foo.

    A long name is shortened. Also used for the names of ControllerRevisions, and for names of
    Leases that are too long.
    """
    return f"{name[: MAX_NAME_LENGTH - len(suffix) - 1].rstrip('-.')}-{suffix}"


def migration_name(name: str) -> str:
    """Return the name of the ControllerRevision for a migration."""
    return successor_name(name, "migration")


def lease_name(kind: str, name: str) -> str:
    """Return the name of the Lease for a controller, such as baton-kubernetes.deployment.foo."""
    return _limit_length(f"baton-kubernetes.{kind.lower()}.{name}", kind + name)


def shared_lease_name(name: str) -> str:
    """Return the name of the Lease that tasks for all kinds share, such as baton-kubernetes-foo."""
    return _limit_length(f"baton-kubernetes-{name}", name)


def _limit_length(name: str, hashed_text: str) -> str:
    """Return the name of a Lease. A hash replaces the end of a long name."""
    return name if len(name) <= MAX_NAME_LENGTH else successor_name(name, digest(hashed_text))


def did_you_mean(name: str, names: t.Iterable[str]) -> str:
    """Return "; did you mean NAME?" to append to an error message, or ""."""
    import difflib

    matches = difflib.get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    return f"; did you mean {matches[0]}?" if matches else ""

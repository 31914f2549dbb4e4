# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two controllers of an update, found among all of the namespace. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, marks
from ...model.fields import Json
from ...model.observed import Controller, Observed, own_label
from ...model.request import Request


@dataclasses.dataclass(frozen=True)
class SteppedObserved(Observed):
    """What there is of an update that is made step by step."""

    #: Empty successors of an update that another one, begun at the same time, has displaced.
    displaced: tuple[Controller, ...] = ()
    #: Controllers that an interrupted `kubectl rolling-update` of the primary has left.
    kubectl_left: tuple[Controller, ...] = ()
    #: Whether the template that an update is about to replace has to be in the history.
    keeps_history: bool = False
    #: The name of the controller whose successor the primary is itself, or None.
    stands_for: str | None = None
    #: Whether this very task has made the successor.
    is_made_here: bool = False
    #: The successor's template as the API server would store it now; None where nothing depends on that.
    stored: Json | None = None


def find(controllers: t.Mapping[str, Controller], request: Request) -> SteppedObserved:
    """Find the two controllers of the update among all of the namespace."""
    primary = controllers.get(request.name)
    # Annotations alone make nothing a successor: anybody may have written them on anything.
    partners = sorted((it for it in controllers.values() if it.partner == request.name and not it.owner
                       and it.is_named_for(request.name)), key=lambda it: it.name)
    successor = _pick_successor(controllers, request, primary, partners)
    left = _left_by_kubectl(controllers, request.name) if primary or not successor else ()
    return SteppedObserved(primary=primary, successor=successor, displaced=_displaced(primary, partners), kubectl_left=left,
                           stands_for=primary.primary(controllers) if primary else None)


def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Name and deployment label of the successor that this request, applied to the primary as it is, asks for."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, own_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def why_no_successor(request: Request, primary: Controller, it: Controller) -> str:
    """Why a controller that a mark or the request leads to is not the successor in this update, or "".

    No mark may contradict it, and a complete pair of them (name and uid) speaks for it. That proves nothing where somebody may
    annotate: its name and the hash in its selector have to be what only an update gives.
    """
    pairs = ((it.partner, primary.name), (it.partner_uid, primary.uid),
             (primary.partner, it.name), (primary.partner_uid, it.uid))
    is_contradicted = any(mark not in (None, fact) for mark, fact in pairs)
    is_told = (it.partner and it.partner_uid) or (primary.partner and primary.partner_uid)
    if it.owner:
        return f"it is controlled by {it.owner}"
    if is_contradicted or not is_told:
        if it.partner is None:
            return f"it does not name {primary.name}"
        if it.partner != primary.name:
            return f"it was made for {it.partner}"
        if it.partner_uid != primary.uid:
            return f"it was made for an earlier {primary.name}, with uid {it.partner_uid or 'unknown'}"
        return f"{primary.name} names {primary.partner} with uid {primary.partner_uid}"
    if not it.hashes:
        return "its selector has no deployment label"
    if it.name != request.next_name and not it.is_named_for(primary.name):
        return f"its name is neither {primary.name} and that label, nor the next_name of this task"
    return ""


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request, primary: Controller | None,
                    partners: list[Controller]) -> Controller | None:
    """The controller the primary names, or the request names, or the one that was made for the primary and names it."""
    names = [primary.takeover["next"] if primary.takeover else None, primary.partner] if primary else []
    names.append(request.next_name)
    if primary and not request.undoes and not primary.has_takeover:
        names.append(expected_successor(request, primary)[0])
    names += [each.name for each in partners]
    return next((controllers[name] for name in names if name and name in controllers and name != request.name), None)


def _displaced(primary: Controller | None, partners: list[Controller]) -> tuple[Controller, ...]:
    """Two clients that begin at once mark the primary one after the other; only the one that the primary names ever gets a pod.

    The other one has its first spec still (generation 1), so it never had any.
    """
    if primary is None or primary.partner is None:
        return ()
    return tuple(it for it in partners
                 if it.name != primary.partner and it.is_successor and it.partner_uid == primary.uid
                 and it.generation == 1 and it.replicas == 0 and it.current == 0 and not it.is_deleting)


def _left_by_kubectl(controllers: t.Mapping[str, Controller], name: str) -> tuple[Controller, ...]:
    """The controllers that `kubectl rolling-update` was moving the primary's pods to when it was interrupted.

    Where the primary is there, its own annotations say that one has begun.
    """
    primary = controllers.get(name)
    sources = {each: marks.kubectl_source(it.annotations) for each, it in controllers.items()}
    if primary is None:
        return tuple(controllers[each] for each in sorted(sources) if sources[each][0] == name)
    found = {marks.kubectl_next(primary.annotations)}
    if marks.kubectl_original(primary.annotations) is not None:
        found |= {each for each, source in sources.items() if source == (name, primary.uid)}
    return tuple(controllers[each] for each in sorted(found & (controllers.keys() - {name})))

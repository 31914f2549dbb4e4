# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two controllers of an update, found among all of the namespace. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, object_meta
from ...model.fields import Json
from ...model.observed import Controller, Observed, own_label
from ...model.request import Request


@dataclasses.dataclass(frozen=True)
class ClientDrivenObserved(Observed):
    """Observed state of a client-driven update."""

    #: Empty successors of an update, displaced by a concurrent update.
    displaced: tuple[Controller, ...] = ()
    #: Controllers of an interrupted `kubectl rolling-update` of the primary.
    kubectl_left: tuple[Controller, ...] = ()
    #: Whether the history has to contain the template before its replacement.
    keeps_history: bool = False
    #: The name of another controller, if the primary is a successor itself, or None.
    stands_for: str | None = None
    #: Whether this very task has made the successor.
    is_made_here: bool = False
    #: The successor's template as the API server would store it now; None if no decision needs it.
    stored: Json | None = None


def find(controllers: t.Mapping[str, Controller], request: Request) -> ClientDrivenObserved:
    """Find the two controllers of the update among all of the namespace."""
    primary = controllers.get(request.name)
    # Annotations alone do not prove a successor: any user with annotate permission can write them.
    partners = sorted((it for it in controllers.values()
                       if it.partner == request.name and not it.owner
                       and it.is_named_for(request.name)), key=lambda it: it.name)
    successor = _pick_successor(controllers, request, primary, partners)
    left = _left_by_kubectl(controllers, request.name) if primary or not successor else ()
    return ClientDrivenObserved(primary=primary, successor=successor,
                                displaced=_displaced(primary, partners), kubectl_left=left,
                                stands_for=primary.primary(controllers) if primary else None)


def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Return name and deployment label of the successor for this request and primary."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, own_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def why_no_successor(request: Request, primary: Controller, it: Controller) -> str:
    """Return why a named controller is not the successor in this update, or "".

    An annotation or the request names the controller. No annotation may contradict, and one
    complete pair (name and uid) has to confirm. A user with annotate permission can write the pair:
    the name and the hash in the selector have to be the result of an update as well.
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
            return (f"it was made for an earlier {primary.name}, with uid "
                    f"{it.partner_uid or 'unknown'}")
        return f"{primary.name} names {primary.partner} with uid {primary.partner_uid}"
    if not it.hashes:
        return "its selector has no deployment label"
    if it.name != request.next_name and not it.is_named_for(primary.name):
        return f"its name is neither {primary.name} and that label, nor the next_name of this task"
    return ""


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request,
                    primary: Controller | None, partners: list[Controller]) -> Controller | None:
    """Return the successor: named by the primary, by the request, or by its own annotations."""
    names = ([primary.takeover["next"] if primary.takeover else None, primary.partner] if primary
             else [])
    names.append(request.next_name)
    if primary and not request.undoes and not primary.has_takeover:
        names.append(expected_successor(request, primary)[0])
    names += [each.name for each in partners]
    return next((controllers[name] for name in names
                 if name and name in controllers and name != request.name), None)


def _displaced(primary: Controller | None, partners: list[Controller]) -> tuple[Controller, ...]:
    """Return the empty successors of other clients that began at the same time.

    Two clients annotate the primary one after the other, and only the successor named by the
    primary ever gets pods. A displaced successor still has its first spec (generation 1), so it
    never had pods.
    """
    if primary is None or primary.partner is None:
        return ()
    return tuple(it for it in partners
                 if it.name != primary.partner and it.is_successor and it.partner_uid == primary.uid
                 and it.generation == 1 and it.replicas == 0 and it.current == 0
                 and not it.is_deleting)


def _left_by_kubectl(controllers: t.Mapping[str, Controller], name: str) -> tuple[Controller, ...]:
    """Return the other controllers of an interrupted `kubectl rolling-update`.

    An existing primary has to have annotations of kubectl as well.
    """
    primary = controllers.get(name)
    sources = {each: object_meta.kubectl_source(it.annotations) for each, it in controllers.items()}
    if primary is None:
        return tuple(controllers[each] for each in sorted(sources) if sources[each][0] == name)
    found = {object_meta.kubectl_next(primary.annotations)}
    if object_meta.kubectl_original(primary.annotations) is not None:
        found |= {each for each, source in sources.items() if source == (name, primary.uid)}
    return tuple(controllers[each] for each in sorted(found & (controllers.keys() - {name})))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The two controllers of an update, found among all of the namespace. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, marks
from ...model.observed import Controller, Observed, own_label
from ...model.request import Request


@dataclasses.dataclass(frozen=True)
class SteppedObserved(Observed):
    """What there is of an update that is made step by step."""

    #: Empty successors of an update that another one, begun at the same time, has displaced.
    displaced: tuple[Controller, ...] = ()
    #: Controllers that an interrupted `kubectl rolling-update` of the primary has left, by name.
    kubectl_left: tuple[str, ...] = ()
    #: Whether the template that an update is about to replace has to be in the history.
    keeps_history: bool = False


def find(controllers: t.Mapping[str, Controller], request: Request) -> SteppedObserved:
    """Find the two controllers of the update among all of the namespace."""
    primary = controllers.get(request.name)
    partners = sorted((it for it in controllers.values() if it.partner == request.name), key=lambda it: it.name)
    successor = _pick_successor(controllers, request, primary, partners)
    return SteppedObserved(primary=primary, successor=successor, displaced=_displaced(primary, partners),
                           kubectl_left=_left_by_kubectl(controllers, request.name))


def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Name and deployment label of the successor that this request, applied to the primary as it is, asks for."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, own_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request, primary: Controller | None,
                    partners: list[Controller]) -> Controller | None:
    """The controller the primary names, or the request names, or the one that names the primary as its partner."""
    names = [primary.takeover["next"] if primary.takeover else None, primary.partner] if primary else []
    names.append(request.next_name)
    if primary and not request.undoes and not primary.has_takeover:
        names.append(expected_successor(request, primary)[0])
    names += [each.name for each in partners]
    return next((controllers[name] for name in names if name and name in controllers), None)


def _displaced(primary: Controller | None, partners: list[Controller]) -> tuple[Controller, ...]:
    """Two clients that begin at once mark the primary one after the other; only the one that the primary names ever gets a pod."""
    if primary is None or primary.partner is None:
        return ()
    return tuple(it for it in partners
                 if it.name != primary.partner and it.is_successor and it.partner_uid == primary.uid
                 and it.replicas == 0 and it.current == 0 and not it.is_deleting)


def _left_by_kubectl(controllers: t.Mapping[str, Controller], name: str) -> tuple[str, ...]:
    """Names of the controllers that `kubectl rolling-update` was moving the primary's pods to when it was interrupted."""
    primary = controllers.get(name)
    named = primary.annotations.get(marks.KUBECTL_NEXT, "") if primary else ""
    found = {each for each, it in controllers.items() if it.annotations.get(marks.KUBECTL_SOURCE, "").partition(":")[0] == name}
    return tuple(sorted(found | {each for each in (named,) if each in controllers}))

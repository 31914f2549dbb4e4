# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The primary and the successor, among the controllers of the namespace. Pure."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, object_meta
from ...model.fields import Json
from ...model.observed import Controller, Observed, deployment_label
from ...model.request import Request


@dataclasses.dataclass(frozen=True)
class ClientDrivenObserved(Observed):
    """Observed state of a client-driven update."""

    #: Empty successors of an update, displaced by a concurrent update.
    displaced: tuple[Controller, ...] = ()
    #: Other controllers of an interrupted `kubectl rolling-update` of the primary.
    kubectl_controllers: tuple[Controller, ...] = ()
    #: Whether the history has to contain the primary's template before the template is replaced.
    keeps_history: bool = False
    #: The name of another primary, if this primary is the successor in another update, or None.
    other_primary: str | None = None
    #: Whether this task has created the successor.
    is_created_here: bool = False
    #: The form in which the API server would store the successor's template, if a decision needs
    #: the form.
    stored: Json | None = None

    @property
    def controllers(self) -> list[Controller]:
        """Return the existing controllers, the primary first."""
        return [controller for controller in (self.primary, self.successor) if controller]


def find(controllers: t.Mapping[str, Controller], request: Request) -> ClientDrivenObserved:
    """Find the primary and the successor among the controllers of the namespace."""
    primary = controllers.get(request.name)
    # Annotations alone do not prove a successor: any user with annotate permission can write them.
    partners = sorted((controller for controller in controllers.values()
                       if controller.partner == request.name and not controller.owner
                       and controller.is_named_for(request.name)),
                      key=lambda controller: controller.name)
    successor = _pick_successor(controllers, request, primary, partners)
    return ClientDrivenObserved(
        primary=primary, successor=successor, displaced=_displaced(primary, partners),
        kubectl_controllers=(_kubectl_controllers(controllers, request.name)
                             if primary or not successor else ()),
        other_primary=primary.primary(controllers) if primary else None)


def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Return name and deployment label of the successor for this request and primary."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, deployment_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def mismatch(request: Request, primary: Controller, controller: Controller) -> str:
    """Return the reason why a named controller is not this update's successor, or "".

    An annotation or the request names the controller. No annotation may contradict, and one
    complete pair (name and uid) has to confirm. A user with annotate permission can write the pair:
    the name and the hash in the selector have to be the result of an update as well.
    """
    pairs = ((controller.partner, primary.name), (controller.partner_uid, primary.uid),
             (primary.partner, controller.name), (primary.partner_uid, controller.uid))
    is_contradicted = any(mark not in (None, fact) for mark, fact in pairs)
    is_confirmed = ((controller.partner and controller.partner_uid)
                    or (primary.partner and primary.partner_uid))
    if controller.owner:
        return f"{controller.owner} controls it"
    if is_contradicted or not is_confirmed:
        if controller.partner is None:
            return f"no annotation names {primary.name}"
        if controller.partner != primary.name:
            return f"it was created for {controller.partner}"
        if controller.partner_uid != primary.uid:
            return (f"it was created for an earlier {primary.name}, with uid "
                    f"{controller.partner_uid or 'unknown'}")
        return f"{primary.name} names {primary.partner} with uid {primary.partner_uid}"
    if not controller.hashes:
        return "its selector has no deployment label"
    if controller.name != request.next_name and not controller.is_named_for(primary.name):
        return f"its name is neither {primary.name} with that label, nor the next_name of this task"
    return ""


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request,
                    primary: Controller | None, partners: list[Controller]) -> Controller | None:
    """Return the successor: named by the primary, the request, or a partner annotation."""
    names = ([primary.takeover["next"] if primary.takeover else None, primary.partner] if primary
             else [])
    names.append(request.next_name)
    if primary and not request.undoes and not primary.has_takeover:
        names.append(expected_successor(request, primary)[0])
    names += [partner.name for partner in partners]
    return next((controllers[name] for name in names
                 if name and name in controllers and name != request.name), None)


def _displaced(primary: Controller | None, partners: list[Controller]) -> tuple[Controller, ...]:
    """Return the empty successors of other clients that began at the same time.

    Two clients annotate the primary one after the other, and only the successor named by the
    primary ever gets pods. A displaced successor still has the initial spec (generation 1), so the
    successor never had pods.
    """
    if primary is None or primary.partner is None:
        return ()
    return tuple(partner for partner in partners
                 if partner.name != primary.partner and partner.is_successor
                 and partner.partner_uid == primary.uid and partner.generation == 1
                 and partner.replicas == 0 and partner.current == 0 and not partner.is_deleting)


def _kubectl_controllers(controllers: t.Mapping[str, Controller],
                         name: str) -> tuple[Controller, ...]:
    """Return the other controllers of an interrupted `kubectl rolling-update`.

    An existing primary has to have annotations of kubectl as well.
    """
    primary = controllers.get(name)
    sources = {key: object_meta.kubectl_source(controller.annotations)
               for key, controller in controllers.items()}
    if primary is None:
        return tuple(controllers[key] for key in sorted(sources) if sources[key][0] == name)
    names = {object_meta.kubectl_next(primary.annotations)}
    if object_meta.kubectl_original(primary.annotations) is not None:
        names |= {key for key, source in sources.items() if source == (name, primary.uid)}
    return tuple(controllers[key] for key in sorted(names & (controllers.keys() - {name})))

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the primary and its successor among the controllers of the namespace."""

from __future__ import annotations

import dataclasses
import typing as t

from ...model import identity, object_meta
from ...model.caching import cache_last_call
from ...model.fields import Json
from ...model.object_meta import DEPLOYMENT_LABEL
from ...model.observed import (
    Controller,
    Observed,
    TerminatingPod,
    deployment_label,
    partners_of,
)
from ...model.request import Request


@dataclasses.dataclass(frozen=True)
class ClientDrivenObserved(Observed):
    """The observation of a client-driven update."""

    #: Unused successors: never scaled, and not named by the primary.
    displaced_successors: tuple[Controller, ...] = ()
    #: The other controllers of an interrupted `kubectl rolling-update` of the primary.
    kubectl_controllers: tuple[Controller, ...] = ()
    #: Whether the update must now store the template of the primary, and has read the history.
    keeps_history: bool = False
    #: If the primary is itself the successor of another controller: the name of that controller.
    other_primary_name: str | None = None
    #: Whether this task has created the successor.
    is_created_by_this_task: bool = False
    #: The template of a new successor in the response of a dry run.
    dry_run_template: Json | None = None

    @property
    def controllers(self) -> list[Controller]:
        """The primary and the successor, if they exist."""
        return [controller for controller in (self.primary, self.successor) if controller]


def find(controllers: t.Mapping[str, Controller], request: Request) -> ClientDrivenObserved:
    """Find the primary and the successor of a request."""
    primary = controllers.get(request.name)
    # A user with annotate permission can forge the annotation that names the partner. So a partner
    # must also have the name of a successor.
    partners = sorted((controller for controller in partners_of(controllers, request.name)
                       if not controller.owner and controller.is_named_for(request.name)),
                      key=lambda controller: controller.name)
    successor = _pick_successor(controllers, request, primary, partners)
    return ClientDrivenObserved(
        primary=primary, successor=successor,
        displaced_successors=_displaced_successors(primary, partners),
        kubectl_controllers=(_kubectl_controllers(controllers, request.name)
                             if primary or not successor else ()),
        other_primary_name=primary.primary(controllers) if primary else None)


def matching_pods(request: Request, controllers: t.Sequence[Controller],
                  list_pods: t.Callable[[Json], t.Iterable[TerminatingPod]],
                  ) -> list[TerminatingPod]:
    """Return the terminating pods that match the selector of a controller.

    The deployment label is left out, to match the pods of a deleted successor, too.

    list_pods: lists the terminating pods of a selector. Selectors with common labels need one
    list, which may have pods of other applications.
    """
    selectors = [
        {key: value for key, value in controller.selector.items() if key != request.label_key}
        or controller.selector for controller in controllers]
    common_labels = set.intersection(*(set(selector.items()) for selector in selectors))
    listed_selectors = [dict(sorted(common_labels))] if common_labels else selectors
    pods = {pod.name: pod for selector in listed_selectors for pod in list_pods(selector)}
    return [pod for pod in pods.values()
            if any(selector.items() <= pod.labels.items() for selector in selectors)]


@cache_last_call
def expected_successor(request: Request, primary: Controller) -> tuple[str, str]:
    """Return the name of the successor, and the value of its deployment label."""
    content = request.content(primary.template, primary.selector)
    value = identity.label_value(content, deployment_label(request, primary))
    return request.next_name or identity.successor_name(primary.name, value), value


def label_key_of(successor: Controller, primary_name: str, primary_selector: Json) -> str:
    """Return the key of the deployment label in the selector of a successor.

    primary_selector: {} if the primary no longer exists.
    """
    # The selector may also have the label of an earlier update with another key.
    keys = [key for key, value in successor.selector.items()
            if identity.is_label_value(value) and primary_selector.get(key) != value]
    return min(keys, default=DEPLOYMENT_LABEL, key=lambda key: (
        successor.name != identity.successor_name(primary_name, successor.selector[key]),
        key != DEPLOYMENT_LABEL))


def mismatch(request: Request, primary: Controller, controller: Controller) -> str:
    """Return why a controller is not the successor of the primary, or "".

    Any user with annotate permission can write annotations, so the controller must also have the
    name and the selector of a successor.
    """
    pairs = ((controller.partner, primary.name), (controller.partner_uid, primary.uid),
             (primary.partner, controller.name), (primary.partner_uid, controller.uid))
    is_contradicted = any(recorded not in (None, actual) for recorded, actual in pairs)
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
    if not controller.possible_label_values:
        return "its selector has no deployment label"
    if controller.name != request.next_name and not controller.is_named_for(primary.name):
        return ("its name is neither the next_name of this task, nor "
                f"{primary.name} plus the value of the deployment label")
    return ""


def _pick_successor(controllers: t.Mapping[str, Controller], request: Request,
                    primary: Controller | None, partners: list[Controller]) -> Controller | None:
    names = _possible_successor_names(controllers, request, primary, partners)
    return next((controllers[name] for name in names
                 if name and name in controllers and name != request.name), None)


def _possible_successor_names(controllers: t.Mapping[str, Controller], request: Request,
                              primary: Controller | None,
                              partners: list[Controller]) -> t.Iterator[str | None]:
    """Yield the possible names of the successor, the most certain first."""
    if primary:
        yield primary.takeover["next"] if primary.takeover else None
        yield primary.partner
        # The uid counts only if the other controller also names the primary.
        yield from (controller.name for controller in partners_of(controllers, primary.name)
                    if controller.uid == primary.partner_uid and not controller.owner)
    yield request.next_name
    if primary and not request.rolls_back_update and not primary.has_takeover:
        yield expected_successor(request, primary)[0]
    yield from (partner.name for partner in partners)


def _displaced_successors(primary: Controller | None,
                          partners: list[Controller]) -> tuple[Controller, ...]:
    """Return the unused successors: never scaled, and not named by the primary."""
    if primary is None or primary.partner is None:
        return ()
    return tuple(partner for partner in partners
                 if partner.name != primary.partner and partner.claims_to_be_successor
                 and partner.partner_uid == primary.uid and partner.generation == 1
                 and partner.replicas == 0 and partner.current == 0 and not partner.is_deleting)


def _kubectl_controllers(controllers: t.Mapping[str, Controller],
                         primary_name: str) -> tuple[Controller, ...]:
    """Return the other controllers of an interrupted `kubectl rolling-update` of the primary."""
    primary = controllers.get(primary_name)
    if primary is None:
        return tuple(sorted(
            (controller for controller in controllers.values()
             if object_meta.kubectl_source(controller.annotations)[0] == primary_name),
            key=lambda controller: controller.name))
    names = {object_meta.kubectl_next(primary.annotations)}
    if object_meta.kubectl_original(primary.annotations) is not None:
        source = (primary_name, primary.uid)
        names |= {controller.name for controller in controllers.values()
                  if object_meta.kubectl_source(controller.annotations) == source}
    return tuple(controllers[name] for name in sorted(filter(None, names - {primary_name}))
                 if name in controllers)

# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""OpenShift's DeploymentConfigs: which of their rollouts has the pods, and what of them a Deployment has and has not. Pure.

Each rollout is a ReplicationController NAME-N that the DeploymentConfig controls. The one that has the pods is the newest that is
complete, as OpenShift's own controller has it (ActiveDeployment in openshift/library-go, pkg/apps/appsutil).
"""

from __future__ import annotations

import json
import shlex
import typing as t

from ...model import marks
from ...model.by_server import DeploymentConfig
from ...model.fields import Json, mapping, number, objects, text, told, values
from ...model.identity import canonical
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.request import Request
from ...model.template import image_names, without_label
from ..flow import Cluster

#: Phases of a rollout that has ended.
COMPLETE, FAILED = "Complete", "Failed"
#: Annotation of a rollout's ReplicationController: the DeploymentConfig as it was then, in JSON.
_AT_THAT_TIME = "openshift.io/encoded-deployment-config"
#: What the server puts where nothing is said; the first two are seconds.
_DEFAULTS = {"updatePeriodSeconds": 1, "intervalSeconds": 1, "activeDeadlineSeconds": 21600}
_DEADLINE = 600


def rollouts_of(config: DeploymentConfig, cluster: Cluster) -> tuple[Controller, ...]:
    """The ReplicationControllers that it controls, the newest first."""
    known = [it for it in cluster.controllers(Kind.REPLICATION_CONTROLLER).values() if it.owner_uid == config.uid]
    name = f"{config.name}-{config.latest}"
    if config.latest and all(it.name != name for it in known):
        # News of the two kinds come on two ways: it may be there, and about to make pods.
        found = cluster.find(Kind.REPLICATION_CONTROLLER, name)
        known += [it for it in [Controller.from_api(found)] if it.owner_uid == config.uid] if found else []
    return tuple(sorted(known, key=config.number_of, reverse=True))


def active(config: DeploymentConfig, rollouts: t.Iterable[Controller]) -> Controller | None:
    """The one that has the pods."""
    return next((it for it in rollouts if config.number_of(it) and marks.rollout_phase(it.annotations) == COMPLETE), None)


def rolling(config: DeploymentConfig, rollouts: t.Sequence[Controller]) -> str:
    """The name of a rollout in progress, "" where there is none; one that is paused begins no other."""
    for it in rollouts:
        if marks.rollout_phase(it.annotations) not in (COMPLETE, FAILED):
            return it.name
    newest = max(map(config.number_of, rollouts), default=0)
    return f"{config.name}-{config.latest}" if config.latest > newest and not config.is_paused else ""


def without_marks(template: Json) -> Json:
    """The pod template of a rollout without the annotations that name it."""
    metadata = template.get("metadata") or {}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items()
                   if key not in (marks.ROLLOUT_OF, marks.ROLLOUT_NUMBER, marks.ROLLOUT_NAME)}
    kept = {field: value for field, value in metadata.items() if field != "annotations"}
    return {**template, "metadata": {**kept, **({"annotations": annotations} if annotations else {})}}


# What a Deployment has


def spec_of(config: DeploymentConfig | None) -> Json:
    """The fields of a Deployment's spec that say how it rolls, from those of a DeploymentConfig."""
    if config is None:
        return {}
    kind, params = _strategy(config)
    strategy: Json = {"type": "Recreate"} if kind == "Recreate" else {}
    if kind == "Rolling":
        pace = {field: params[field] for field in ("maxSurge", "maxUnavailable") if params.get(field) is not None}
        strategy = {"type": "RollingUpdate", **({"rollingUpdate": pace} if pace else {})}
    limit = config.spec.get("revisionHistoryLimit")
    deadline = number(params, "timeoutSeconds", _DEADLINE) + config.min_ready_seconds
    return {"progressDeadlineSeconds": deadline, **({"strategy": strategy} if strategy else {}),
            **({"revisionHistoryLimit": limit} if limit is not None else {})}


# What it has not


def lost(request: Request, config: DeploymentConfig, rollout: Controller) -> list[str]:
    """What the user should know before the first write, each in a sentence, with what to do about it."""
    return [*_triggers_lost(request, config), *_strategy_lost(config), *_differences(request, config, rollout)]


def _differences(request: Request, config: DeploymentConfig, rollout: Controller) -> t.Iterator[str]:
    name, is_test = config.name, config.spec.get("test")
    if is_test:
        yield (f"test: true has no counterpart in a Deployment: {name} has pods during a rollout only, and the Deployment keeps as "
               f"many as it is scaled to")
    if config.is_paused and not config.is_held:
        yield (f"{name} is paused, and the Deployment will not be: it rolls out each change of its template. "
               f"To pause it afterwards: {request.kubectl} rollout pause deployment {name}")
    if _has_changed(config, rollout):
        yield (f"the template of {name} has changes that were not rolled out ({image_names(config.images)}): the Deployment gets "
               f"the template of {rollout.name}, which its pods run ({image_names(rollout.images)})")
    if config.replicas != rollout.replicas and not is_test:
        yield f"{name} asks for {config.replicas} replicas, and {rollout.name} for {rollout.replicas}, which the Deployment gets"


def _triggers_lost(request: Request, config: DeploymentConfig) -> t.Iterator[str]:
    triggers = objects(config.spec, "triggers")
    for params in (mapping(it, "imageChangeParams") for it in triggers if it.get("type") == "ImageChange"):
        source = mapping(params, "from")
        image = f"{text(source, 'namespace') or request.namespace}/{text(source, 'name')}"
        containers = ",".join(each for each in values(params, "containerNames") if isinstance(each, str))
        command = ["set", "triggers", f"deployment/{config.name}", f"--from-image={image}", f"--containers={containers}",
                   *([] if params.get("automatic") else ["--manual"])]
        yield (f"a Deployment has no ImageChange trigger: new images of {told(image)} are not rolled out any more. To have that "
               f"again afterwards, by an annotation that OpenShift obeys: {request.oc} {told(shlex.join(command))}")
    # None at all, not even an empty list, stands for the default: ConfigChange.
    if config.spec.get("triggers") is not None and all(it.get("type") != "ConfigChange" for it in triggers):
        yield (f"{config.name} has no ConfigChange trigger, so that changes of its template wait for oc rollout latest: "
               f"a Deployment rolls them out at once")


def _strategy_lost(config: DeploymentConfig) -> t.Iterator[str]:
    kind, params = _strategy(config)
    hooks = [each for each in ("pre", "mid", "post") if params.get(each)]
    if hooks:
        plural = len(hooks) > 1
        yield (f"a Deployment has no lifecycle hooks: the {' and '.join(hooks)} hook{'s' if plural else ''} of {config.name} will "
               f"not run any more. Let an init container, a Job or the pipeline do what {'they do' if plural else 'it does'}")
    if kind == "Custom" or mapping(config.spec, "strategy", "customParams"):
        yield ("a Deployment has no custom strategy: what the image of customParams does is not done any more, and the Deployment "
               f"gets the strategy {'RollingUpdate' if kind == 'Custom' else text(mapping(spec_of(config), 'strategy'), 'type')}")
    given = {**params, **mapping(config.spec, "strategy")}
    others = [field for field in (*_DEFAULTS, "resources", "labels", "annotations") if given.get(field) and
              given[field] != _DEFAULTS.get(field)]
    if others:
        yield f"these fields of the strategy of {config.name} have no counterpart in a Deployment: {', '.join(others)}"


def _strategy(config: DeploymentConfig) -> tuple[str, Json]:
    """The name of its strategy, and the parameters."""
    strategy = mapping(config.spec, "strategy")
    kind = text(strategy, "type") or "Rolling"
    return kind, mapping(strategy, {"Rolling": "rollingParams", "Recreate": "recreateParams"}.get(kind, ""))


def _has_changed(config: DeploymentConfig, rollout: Controller) -> bool:
    """Whether its template has changed since that rollout, as OpenShift's own controller finds out (hasLatestPodTemplate)."""
    try:
        then = mapping(json.loads(rollout.annotations.get(_AT_THAT_TIME, "")), "spec", "template")
    except (ValueError, RecursionError):
        return config.images != rollout.images
    return canonical(without_label(then, "")) != canonical(without_label(config.template, ""))

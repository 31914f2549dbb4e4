# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DeploymentConfigs of OpenShift: their rollouts, and how their settings map to a Deployment.

Each rollout is a ReplicationController NAME-N that the DeploymentConfig controls. The active
rollout, which has the pods, is the newest complete rollout (ActiveDeployment in
openshift/library-go, pkg/apps/appsutil). I/O only through Cluster.
"""

from __future__ import annotations

import shlex
import typing as t

from ...model import object_meta
from ...model.annotation_values import json_object
from ...model.fields import Json, display_text, mapping, number, objects, text, values
from ...model.identity import canonical
from ...model.kinds import Kind
from ...model.observed import Controller
from ...model.request import Request
from ...model.server_driven import DeploymentConfig
from ...model.template import image_names, without_label
from ..flow import Cluster

#: The phases of an ended rollout (object_meta.rollout_phase).
COMPLETE, FAILED = "Complete", "Failed"
#: In this annotation of a ReplicationController, OpenShift stores the DeploymentConfig as JSON.
_ENCODED_CONFIG = "openshift.io/encoded-deployment-config"
#: Strategy fields without a counterpart in a Deployment, with the API server's defaults in seconds.
_UNSUPPORTED_FIELD_DEFAULTS = {"updatePeriodSeconds": 1, "intervalSeconds": 1,
                               "activeDeadlineSeconds": 21600}
#: The API server's default of timeoutSeconds.
_DEFAULT_TIMEOUT_SECONDS = 600


def rollouts_of(config: DeploymentConfig, cluster: Cluster) -> tuple[Controller, ...]:
    """Return the ReplicationControllers of a DeploymentConfig, newest first."""
    rollouts = [rollout for rollout in cluster.controllers(Kind.REPLICATION_CONTROLLER).values()
                if rollout.owner_uid == config.uid]
    name = f"{config.name}-{config.latest}"
    if config.latest and all(rollout.name != name for rollout in rollouts):
        # The two kinds have separate watches, so the cache may lack the newest rollout.
        item = cluster.find(Kind.REPLICATION_CONTROLLER, name)
        newest = Controller.from_api(item) if item else None
        if newest and newest.owner_uid == config.uid:
            rollouts.append(newest)
    return tuple(sorted(rollouts, key=config.rollout_number, reverse=True))


def active_rollout(config: DeploymentConfig, rollouts: t.Iterable[Controller]) -> Controller | None:
    """Return the active rollout, or None if no rollout is complete."""
    complete_rollouts = (rollout for rollout in rollouts
                         if object_meta.rollout_phase(rollout.annotations) == COMPLETE)
    return next((rollout for rollout in complete_rollouts if config.rollout_number(rollout)), None)


def rollout_in_progress(config: DeploymentConfig, rollouts: t.Sequence[Controller]) -> str:
    """Return the name of the rollout in progress, or "".

    If status.latestVersion exceeds the number of every rollout, OpenShift is about to start the
    rollout NAME-latestVersion, unless the DeploymentConfig is paused.
    """
    for rollout in rollouts:
        if object_meta.rollout_phase(rollout.annotations) not in (COMPLETE, FAILED):
            return rollout.name
    newest_number = max(map(config.rollout_number, rollouts), default=0)
    return (f"{config.name}-{config.latest}" if config.latest > newest_number
            and not config.is_paused else "")


def without_rollout_annotations(template: Json) -> Json:
    """Return the pod template without OpenShift's annotations about the rollout."""
    metadata = template.get("metadata") or {}
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items()
                   if key not in (object_meta.ROLLOUT_OF, object_meta.ROLLOUT_NUMBER,
                                  object_meta.ROLLOUT_NAME)}
    remaining = {field: value for field, value in metadata.items() if field != "annotations"}
    return {**template,
            "metadata": {**remaining, **({"annotations": annotations} if annotations else {})}}


# Fields with a counterpart in a Deployment


def deployment_fields(config: DeploymentConfig | None) -> Json:
    """Return fields for the spec of the Deployment; {} without a DeploymentConfig."""
    if config is None:
        return {}
    strategy_type, params = _strategy(config)
    strategy: Json = {"type": "Recreate"} if strategy_type == "Recreate" else {}
    if strategy_type == "Rolling":
        numbers = {field: params[field] for field in ("maxSurge", "maxUnavailable")
                   if params.get(field) is not None}
        strategy = {"type": "RollingUpdate", **({"rollingUpdate": numbers} if numbers else {})}
    limit = config.spec.get("revisionHistoryLimit")
    deadline = number(params, "timeoutSeconds", _DEFAULT_TIMEOUT_SECONDS) + config.min_ready_seconds
    return {"progressDeadlineSeconds": deadline, **({"strategy": strategy} if strategy else {}),
            **({"revisionHistoryLimit": limit} if limit is not None else {})}


# Fields without a counterpart


def lost_setting_warnings(request: Request, config: DeploymentConfig,
                          rollout: Controller) -> list[str]:
    """Return a warning for each setting that the Deployment will not have."""
    return [*_trigger_warnings(request, config), *_strategy_warnings(config),
            *_state_warnings(request, config, rollout)]


def _state_warnings(request: Request, config: DeploymentConfig,
                    rollout: Controller) -> t.Iterator[str]:
    """Yield warnings about test mode, a pause, and differences from the active rollout."""
    name, is_test = config.name, config.spec.get("test")
    if is_test:
        yield (f"test: true has no counterpart in a Deployment. {name} has pods only during a "
               f"rollout, but the Deployment keeps the size of {rollout.name}, which is "
               f"{rollout.replicas}")
    if config.is_paused and not config.is_paused_for_migration:
        yield (f"{name} is paused, and the Deployment will not be: it rolls out each change of its "
               "template. "
               f"To pause it afterwards: {request.kubectl} rollout pause deployment {name}")
    if _has_template_changed(config, rollout):
        yield (f"the template of {name} has changes that were not rolled out "
               f"({image_names(config.images)}): the Deployment gets the template of "
               f"{rollout.name}, which the existing pods have ({image_names(rollout.images)})")
    if config.replicas != rollout.replicas and not is_test:
        yield (f"{name} requests {config.replicas} replicas, but {rollout.name} has "
               f"{rollout.replicas}: the Deployment gets {rollout.replicas}")


def _trigger_warnings(request: Request, config: DeploymentConfig) -> t.Iterator[str]:
    triggers = objects(config.spec, "triggers")
    image_triggers = (trigger for trigger in triggers if trigger.get("type") == "ImageChange")
    for params in (mapping(trigger, "imageChangeParams") for trigger in image_triggers):
        source = mapping(params, "from")
        image = f"{text(source, 'namespace') or request.namespace}/{text(source, 'name')}"
        containers = ",".join(container for container in values(params, "containerNames")
                              if isinstance(container, str))
        command = ["set", "triggers", f"deployment/{config.name}", f"--from-image={image}",
                   f"--containers={containers}",
                   *([] if params.get("automatic") else ["--manual"])]
        yield (f"a Deployment has no ImageChange trigger: new images of "
               f"{display_text(image)} are not "
               "rolled out any more. After the migration, this command sets an annotation of "
               "OpenShift with the effect of the trigger: "
               f"{request.oc} {display_text(shlex.join(command))}")
    # ConfigChange is the default if the field `triggers` is missing. [] means no trigger.
    if (config.spec.get("triggers") is not None
            and all(trigger.get("type") != "ConfigChange" for trigger in triggers)):
        yield (f"{config.name} has no ConfigChange trigger, so changes of its template wait for "
               "`oc rollout latest`. A Deployment rolls them out at once")


def _strategy_warnings(config: DeploymentConfig) -> t.Iterator[str]:
    strategy_type, params = _strategy(config)
    hooks = [hook for hook in ("pre", "mid", "post") if params.get(hook)]
    if hooks:
        plural = len(hooks) > 1
        yield (f"a Deployment has no lifecycle hooks: the {' and '.join(hooks)} "
               f"hook{'s' if plural else ''} of {config.name} will not run any more. Move the work "
               f"of {'these hooks' if plural else 'this hook'} to an init container, a Job or the "
               "pipeline")
    if strategy_type == "Custom" or mapping(config.spec, "strategy", "customParams"):
        strategy = ("RollingUpdate" if strategy_type == "Custom"
                    else text(mapping(deployment_fields(config), "strategy"), "type"))
        yield ("a Deployment has no custom strategy: the image of customParams will not run any "
               "more, and the Deployment gets the strategy "
               f"{strategy}")
    fields = {**params, **mapping(config.spec, "strategy")}
    unsupported = [field for field in (*_UNSUPPORTED_FIELD_DEFAULTS, "resources", "labels",
                                       "annotations")
                   if fields.get(field) and fields[field] != _UNSUPPORTED_FIELD_DEFAULTS.get(field)]
    if unsupported:
        yield (f"these fields of the strategy of {config.name} have no counterpart in a "
               f"Deployment: {', '.join(unsupported)}")


def _strategy(config: DeploymentConfig) -> tuple[str, Json]:
    strategy = mapping(config.spec, "strategy")
    strategy_type = text(strategy, "type") or "Rolling"
    return strategy_type, mapping(strategy, {"Rolling": "rollingParams",
                                             "Recreate": "recreateParams"}.get(strategy_type, ""))


def _has_template_changed(config: DeploymentConfig, rollout: Controller) -> bool:
    """Return whether the template of the DeploymentConfig has changed since the rollout.

    Source: HasLatestPodTemplate (openshift/library-go, pkg/apps/appsutil).
    """
    decoded_config = json_object(rollout.annotations.get(_ENCODED_CONFIG))
    if decoded_config is None:
        return config.images != rollout.images
    template = mapping(decoded_config, "spec", "template")
    return canonical(without_label(template, "")) != canonical(without_label(config.template, ""))

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""List values that other clients may forge, and the requests that a task may send.

tests/unit/test_forgery.py fails if a key or field that the code reads has no entry here. The
integration tests replace UID.format(name) with the uid of the object.
"""

from __future__ import annotations

import json
import re
import typing as t

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import suspension
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.objects import SERVICE_NAME
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    SPLIT_OF,
    TRAFFIC_SELECTOR,
    TRAFFIC_SPLIT,
)

Json = dict[str, t.Any]

#: Controllers of other users: one with pods, and one without pods, like a new successor.
PAYMENTS, IDLE = "payments", "idle"
#: The uid of a controller in the unit tests, and its placeholder in the integration tests.
UID = "uid of {}"
#: Command that creates a file if a forged text is pasted or evaluated.
TRACE_COMMAND = "touch /tmp/forged"
#: A depth of JSON that no parser accepts, and a length that no message has.
DEPTH, LENGTH = 10_000, 100_000
#: A depth of JSON that Python parses, but encodes only for some callers.
ALLOWED_DEPTH = 900

NAMES = (PAYMENTS, IDLE, "foo", "absent")
PATHS = ("../secrets/db", "../../other/replicationcontrollers/x", "../services/http:x:80/proxy/y",
         "../pods/x/log?follow=true",
         "payments?dryRun=All", "..", ".", "payments/scale", "%2e%2e/secrets/db", "payments#x",
         "a" * 254)
NUMBERS = ("0", "1", "2", "7", "300", "1000000000", "2147483647", "2147483648", "-1", "1e9", "1_0",
           " 3", "3.0", "NaN", "Infinity",
           "\u0663", "9" * 5000)
JSON_TEXTS = ("", "null", "true", "[]", "{}", '"x"', '{"next":[]}', '{"next":{}}',
              "[" * DEPTH + "]" * DEPTH, '{"a":' * DEPTH + "1" + "}" * DEPTH,
              '{"a":' * ALLOWED_DEPTH + "1" + "}" * ALLOWED_DEPTH)
SUBSTITUTION = f"$({TRACE_COMMAND})"
#: Texts that are dangerous for a terminal, a shell, a template or a message.
DANGEROUS_TEXTS = ("\x1b]0;owned\x07\x1b[2J", "\u009b31mred",
                   "\x00\x08\x7f", "\u202egnp.exe\u2066\u200f",
                   "line\nNext:\n  rm -rf /", "carriage\rreturn", "\u2028separator\u0085",
                   SUBSTITUTION, f"`{TRACE_COMMAND}`", f"'; {TRACE_COMMAND}; '",
                   f"{{{{ lookup('pipe', '{TRACE_COMMAND}') }}}}", "{% raw %}", "x" * LENGTH,
                   "myimage:v9 name=payments state=rolled_back")
TEXTS = (*JSON_TEXTS, *DANGEROUS_TEXTS)
#: Names of clusters, as in kubeconfigs, that Ansible could read as a pattern of several hosts.
HOST_NAMES = ("arn:aws:eks:eu-west-1:42:cluster/canary", "default/api.example.com:6443/admin",
              "shop:prod", "shop:canary", "canary,prod", "canary prod", "a.prod", "aprod", "a*",
              "a?", "[ab]prod", "a[0]", "a[0:1]", "a]", "[", "!canary", "&canary", "~.*", "@file",
              "-i", "a^b", "a\\b", "(a", "a|b", "a$", "a{1}", "\u00e9:\u4e2d\U0001f600", "prod$\n",
              "canary", "lyon:22", "fe80::1", "_", *DANGEROUS_TEXTS)
HOSTILE_TEXTS = (*PATHS, *NUMBERS, *TEXTS, *NAMES)
INVALID_VALUES: tuple[t.Any, ...] = (None, True, 0, -1, 2**31 - 1, 10**9, 1.5, [], {}, [None], [[]],
                                     {"web": None}, {"web": []}, {"web": {}},
                                     ["web"], {"": ""}, [{"name": []}], *NAMES, *PATHS[:4],
                                     *TEXTS[:4],
                                     *DANGEROUS_TEXTS)

IMAGES = {"web": "myimage:v9"}
TEMPLATE = {"metadata": {"labels": {"app": "foo"}},
            "spec": {"containers": [{"name": "web", "image": "evil:v1"}]}}
#: A template that nests too deeply, as JSON.
DEEP_TEMPLATE = json.dumps({**TEMPLATE, "x": 0}).replace(
    ": 0", ": " + "[" * ALLOWED_DEPTH + "]" * ALLOWED_DEPTH)
#: Plausible documents by annotation. Forgeries change some of their fields.
DOCUMENTS: dict[str, Json] = {
    object_meta.TAKEOVER: {"next": PAYMENTS, "uid": UID.format(PAYMENTS),
                           "label": object_meta.DEPLOYMENT_LABEL, "replicas": 300,
                           "from": IMAGES, "request": "0123456789", "template": "0123456789",
                           "priorityClassName": "system-critical"},
    object_meta.LAST_ROLLOUT: {"outcome": "updating", "from": IMAGES, "to": {"web": "evil:v1"},
                               "time": "2026-11-21T10:00:00Z",
                               "who": "root@here", "request": "0123456789",
                               "template": "0123456789", "set": "payments-1", "revision": 1,
                               "to_revision": 1, "paused": 1,
                               "min_ready_seconds": {"from": 2**31 - 2, "to": 0},
                               "original": {"strategy": {"type": "Recreate"}, "paused": True,
                                            "minReadySeconds": 2**31 - 2,
                                            "progressDeadlineSeconds": 1},
                               "paced": {"strategy": {"type": "RollingUpdate"}, "paused": None}},
    object_meta.FROZEN: {"behavior": {"scaleUp": {"selectPolicy": "Max"}}, "minReplicas": 1000},
    object_meta.SOAK: {"template": "0123456789", "began": "1970-01-01T00:00:00Z", "passed": 1,
                       "seconds": 2**31 - 1,
                       "usual": ["Unhealthy"]},
    TRAFFIC_SPLIT: {"service": PAYMENTS, "id": "1", "restoring": True, "weights": [1],
                    "match": [{"headers": [{"name": "x", "type": "Exact", "value": "y"}]}]},
    TRAFFIC_SELECTOR: {"app": PAYMENTS},
}
#: The record of a StatefulSet. Its update changes other fields than that of a Deployment.
STATEFUL_SET_RECORD: Json = {
    **{field: value
       for field, value in DOCUMENTS[object_meta.LAST_ROLLOUT].items()
       if field not in ("who", "to_revision")},
    "original": {"updateStrategy": {"type": "RollingUpdate",
                                    "rollingUpdate": {"partition": 2**31 - 1,
                                                      "maxUnavailable": "100%"}},
                 "minReadySeconds": 2**31 - 2},
    "paced": {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
              "minReadySeconds": None}}
DAEMON_SET_RECORD: Json = {
    **STATEFUL_SET_RECORD,
    "original": {"updateStrategy": {"type": "RollingUpdate",
                                    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}},
    "paced": {"updateStrategy": {"type": "RollingUpdate",
                                 "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}}
OUTCOMES = ("updating", "rolling back", "updated", "rolled_back")


#: Fields of an autoscaler's scaleUp and scaleDown, and values of `policies` (the first is valid).
SCALING_RULE_FIELDS = ("policies", "selectPolicy", "stabilizationWindowSeconds", "tolerance")
POLICIES = tuple([{"type": "Pods", "value": 1, "periodSeconds": 1, **change}] for change in (
    {}, {"type": "evil"}, {"value": 0}, {"value": "1"}, {"periodSeconds": 1801}, {"other": 1}))


def forged_documents(document: Json) -> list[str]:
    """Return as JSON the document, and forgeries without a field or with a wrong value."""
    outcomes = OUTCOMES if "outcome" in document else ()
    forgeries: list[t.Any] = [document, *({**document, "outcome": outcome} for outcome in outcomes)]
    for field in document:
        forgeries.append({key: value for key, value in document.items() if key != field})
        forgeries += ({**document, field: wrong_value} for wrong_value in INVALID_VALUES)
        if field in ("from", "to"):
            forged_images = (images for text in TEXTS
                             for images in ({"web": text}, {text: "x:v1"}))
            forgeries += ({**document, "outcome": "updated", field: images}
                          for images in forged_images)
        if field == "behavior":
            forgeries += ({**document, field: {"scaleUp": {rule: wrong_value}}}
                          for rule in SCALING_RULE_FIELDS
                          for wrong_value in (*INVALID_VALUES, *POLICIES))
        if field in ("original", "paced"):
            setting, number_field = (("updateStrategy", "partition")
                                     if "updateStrategy" in document[field]
                                     else ("strategy", "maxSurge"))
            strategies = ({"type": kind, "rollingUpdate": {number_field: wrong_value,
                                                           "maxUnavailable": wrong_value}}
                          for wrong_value in INVALID_VALUES
                          for kind in (wrong_value, "RollingUpdate"))
            forgeries += ({**document, field: {**document[field], setting: wrong_value}}
                          for wrong_value in (*strategies, *INVALID_VALUES, {"type": "OnDelete"}))
    return [json.dumps(forgery) for forgery in forgeries]


#: The KEYS that are labels. All others are annotations.
LABELS = {SERVICE_NAME, object_meta.DEPLOYMENT_LABEL, object_meta.HASH_LABEL, object_meta.HISTORY,
          object_meta.MIGRATION, object_meta.POD_REVISION, object_meta.SERVER_HISTORY,
          object_meta.ROLLOUT_LABEL, gitops.ARGO_LABEL, gitops.INSTANCE_LABEL,
          gitops.MANAGED_BY_LABEL, *gitops.FLUX_KUSTOMIZATION, *gitops.FLUX_RELEASE}
_APPLICATION_NAMES = ("shop", "Helm", "-A", "team_shop_x", *PATHS[:4], *DANGEROUS_TEXTS)
#: Records of a rollback with to_revision=previous.
_RECORDS_OF_ROLLBACK_TO_PREVIOUS = tuple(
    json.dumps({**DOCUMENTS[object_meta.LAST_ROLLOUT], "outcome": outcome, "request": request})
    for outcome in ("updating", "rolling back", "updated", "rolled_back")
    for request in ("previous", "previous/0"))
KEYS: dict[str, tuple[str, ...]] = {
    object_meta.DEPLOYMENT_LABEL: HOSTILE_TEXTS,
    object_meta.DESIRED: HOSTILE_TEXTS,
    object_meta.ORIGINAL: HOSTILE_TEXTS,
    object_meta.PAUSED: HOSTILE_TEXTS,
    object_meta.PARTNER: HOSTILE_TEXTS,
    object_meta.PARTNER_UID: (*map(UID.format, NAMES), *HOSTILE_TEXTS),
    object_meta.SUCCESSOR_HASH: HOSTILE_TEXTS,
    object_meta.TAKEOVER: (*forged_documents(DOCUMENTS[object_meta.TAKEOVER]), *HOSTILE_TEXTS),
    object_meta.LAST_ROLLOUT: (*_RECORDS_OF_ROLLBACK_TO_PREVIOUS,
                               *forged_documents(DOCUMENTS[object_meta.LAST_ROLLOUT]),
                               *forged_documents(STATEFUL_SET_RECORD),
                               *forged_documents(DAEMON_SET_RECORD), *HOSTILE_TEXTS),
    object_meta.FROZEN: (*forged_documents(DOCUMENTS[object_meta.FROZEN]), *HOSTILE_TEXTS),
    object_meta.SOAK: (*forged_documents(DOCUMENTS[object_meta.SOAK]), *HOSTILE_TEXTS),
    TRAFFIC_SPLIT: (*forged_documents(DOCUMENTS[TRAFFIC_SPLIT]), *HOSTILE_TEXTS),
    TRAFFIC_SELECTOR: (*forged_documents(DOCUMENTS[TRAFFIC_SELECTOR]), *HOSTILE_TEXTS),
    SPLIT_OF: HOSTILE_TEXTS,
    object_meta.SUSPENDED_GITOPS: (gitops.FLUX_RECONCILE, f"{gitops.FLUX_RECONCILE},{SPLIT_OF}",
                                   object_meta.LAST_ROLLOUT, *HOSTILE_TEXTS),
    object_meta.TRAFFIC_ROUTES: (*(f"HTTPRoute/{name}" for name in (*NAMES, *PATHS)),
                                 "HTTPRoute/payments,GRPCRoute/payments", "Service/foo",
                                 "Service/payments", "Service/absent", *HOSTILE_TEXTS),
    SERVICE_NAME: HOSTILE_TEXTS,
    object_meta.RESTART: HOSTILE_TEXTS,
    object_meta.CHECKSUMS: ('{"configmap/shop": "0"}', '{"configmap/shop": 0}', *HOSTILE_TEXTS),
    object_meta.HISTORY: (*map(UID.format, NAMES), *HOSTILE_TEXTS),
    object_meta.MIGRATION: (*map(UID.format, NAMES), *HOSTILE_TEXTS),
    object_meta.HASH_LABEL: HOSTILE_TEXTS,
    object_meta.POD_REVISION: HOSTILE_TEXTS,
    object_meta.POD_GENERATION: HOSTILE_TEXTS,
    object_meta.TEMPLATE_GENERATION: ("0", "2", "7", str(2**63 - 1)),
    object_meta.SERVER_HISTORY: HOSTILE_TEXTS,
    object_meta.REVISION: HOSTILE_TEXTS,
    object_meta.FORMER_REVISIONS: ("1,2,3", "1," * LENGTH, "1,x", *HOSTILE_TEXTS),
    object_meta.SERVER_DESIRED: ("0", "1", *HOSTILE_TEXTS),
    object_meta.PAUSED_FOR_MIGRATION: ("true", *HOSTILE_TEXTS),
    object_meta.ROLLOUT_OF: HOSTILE_TEXTS,
    object_meta.ROLLOUT_NUMBER: HOSTILE_TEXTS,
    object_meta.ROLLOUT_NAME: HOSTILE_TEXTS,
    object_meta.ROLLOUT_PHASE: ("Complete", "Failed", *HOSTILE_TEXTS),
    object_meta.ROLLOUT_LABEL: HOSTILE_TEXTS,
    object_meta.HOLDER: ("boot.1/1/0/x", "/1/2/3", "///", "boot/1/2/3/4", *HOSTILE_TEXTS),
    object_meta.KUBECTL_NEXT: HOSTILE_TEXTS,
    object_meta.KUBECTL_SOURCE: (*(f"{name}:0123" for name in NAMES), *HOSTILE_TEXTS),
    "kubectl.kubernetes.io/original-replicas": HOSTILE_TEXTS,
    "kubectl.kubernetes.io/last-applied-configuration": HOSTILE_TEXTS,
    gitops.ARGO_TRACKING: ("shop:apps/Deployment:default/foo",
                           *(f"{name}:x/foo" for name in _APPLICATION_NAMES)),
    gitops.FLUX_RECONCILE: ("disabled", "Disabled", *HOSTILE_TEXTS),
    suspension.HELM_CONTROLLER.annotation: ("disabled", "Disabled", *HOSTILE_TEXTS),
    **dict.fromkeys((gitops.ARGO_LABEL, gitops.INSTANCE_LABEL, gitops.MANAGED_BY_LABEL,
                     *gitops.FLUX_KUSTOMIZATION, *gitops.FLUX_RELEASE,
                     *gitops.HELM_RELEASE), _APPLICATION_NAMES),
}

_TIMES = ("1970-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z",
          "2026-11-21T10:00:00.000000+14:00")
_MESSAGES = (*TEXTS, "exceeded quota: $(touch /tmp/forged), requested: pods=1",
             'error looking up service account x/y: '
             'serviceaccount "a; touch /tmp/forged" not found',
             "admission webhook \"{{ lookup('pipe', 'id') }}\" denied the request",
             "Failed to pull image \"x\": " + "a b " * (LENGTH // 4),
             "no PriorityClass with name `touch`" + "x" * LENGTH,
             "taint " * (LENGTH // 6), " ".join(["persistentvolumeclaim"] * 5000))
_COUNTS = (0, 1, -1, 2**31 - 1)
_NONNEGATIVE_COUNTS = (0, 1, 2**31 - 1)

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"

#: Forged values by kind and path, with the types that the API server requires.
FIELDS: dict[str, dict[str, tuple[t.Any, ...]]] = {
    "controller": {
        "status.conditions.message": _MESSAGES, "status.conditions.type": ("",),
        "status.conditions.status": ("True",),
        "status.replicas": _COUNTS, "status.readyReplicas": _COUNTS,
        "status.availableReplicas": _COUNTS,
        "status.updatedReplicas": _COUNTS, "status.observedGeneration": (0, 2**62),
        "spec.replicas": _COUNTS, "spec.selector": ({}, {"app": PAYMENTS}),
        "spec.minReadySeconds": _COUNTS,
        "spec.template": (TEMPLATE,), "spec.strategy": ({"type": "Recreate"},),
        "spec.paused": (True,),
        "spec.progressDeadlineSeconds": _COUNTS,
        "spec.updateStrategy": ({"type": "OnDelete"}, {"type": "RollingUpdate"}),
        "spec.updateStrategy.rollingUpdate.partition": _NONNEGATIVE_COUNTS,
        "spec.ordinals.start": _COUNTS, "spec.podManagementPolicy": ("Parallel",),
        "spec.volumeClaimTemplates": ([{"metadata": {"name": PATHS[0]}, "spec": {}}],),
        **{f"status.{field}": _COUNTS
           for field in ("desiredNumberScheduled", "currentNumberScheduled", "numberReady",
                         "numberAvailable", "updatedNumberScheduled", "numberMisscheduled")},
        "status.currentRevision": TEXTS, "status.updateRevision": TEXTS,
        "metadata.name": NAMES, "metadata.uid": tuple(map(UID.format, NAMES)),
        "metadata.ownerReferences": ([{"apiVersion": "v1", "kind": "x", "name": PATHS[0],
                                       "uid": "x",
                                       "controller": True}],),
        "metadata.ownerReferences.controller": (True, False),
        "metadata.managedFields.manager": ("argocd-controller", "kustomize-controller",
                                           "helm-controller", *DANGEROUS_TEXTS),
        "metadata.creationTimestamp": _TIMES, "metadata.deletionTimestamp": _TIMES,
        "metadata.finalizers": (["x/y"],),
    },
    "Lease": {"spec.holderIdentity": TEXTS, "spec.leaseDurationSeconds": (1, 15, 10**9, 2**31 - 1),
              "spec.renewTime": _TIMES,
              "spec.acquireTime": _TIMES, "spec.leaseTransitions": _COUNTS,
              "metadata.annotations": (KEYS[object_meta.HOLDER],)},
    "ControllerRevision": {"data.template": (json.dumps(TEMPLATE), DEEP_TEMPLATE, *TEXTS),
                           "data.hash": HOSTILE_TEXTS, "data.uid": HOSTILE_TEXTS,
                           "data.manifest": INVALID_VALUES,
                           "data.deployment": INVALID_VALUES,
                           "data.spec.template": (TEMPLATE, *INVALID_VALUES),
                           "data": INVALID_VALUES,
                           "revision": (0, 1, 2, 2**31, 2**63 - 1),
                           "metadata.labels": (KEYS[object_meta.HISTORY],),
                           "metadata.ownerReferences": ([],)},
    "Event": {"message": _MESSAGES, "reason": ("Failed", "Unhealthy", *TEXTS),
              "involvedObject.uid": tuple(map(UID.format, NAMES)),
              "involvedObject.fieldPath": ("spec.containers{web}", *TEXTS), "count": _COUNTS,
              "series.count": _COUNTS, "series.lastObservedTime": _TIMES,
              "lastTimestamp": _TIMES, "eventTime": _TIMES},
    "Pod": {"status.reason": TEXTS, "status.message": _MESSAGES,
            "status.phase": ("Failed", "Succeeded", "Pending"),
            "status.podIP": ("127.0.0.1",), "status.conditions.message": _MESSAGES,
            "status.conditions.reason": TEXTS,
            "status.conditions.type": ("Ready", "PodScheduled", "DisruptionTarget"),
            "status.conditions.status": ("True", "False"),
            "status.containerStatuses.name": ("web", *TEXTS),
            "status.containerStatuses.ready": (True, False),
            "status.containerStatuses.restartCount": _COUNTS,
            "status.containerStatuses.imageID": ("r@sha256:0", *TEXTS),
            "status.containerStatuses.state.waiting.reason": TEXTS,
            "status.containerStatuses.state.waiting.message": _MESSAGES,
            "status.containerStatuses.state.terminated.message": _MESSAGES,
            "status.containerStatuses.state.terminated.reason": TEXTS,
            "status.containerStatuses.state.terminated.exitCode": (0, 1, 127, 137, -1, 2**31 - 1),
            "status.containerStatuses.lastState.terminated.message": _MESSAGES,
            "status.containerStatuses.lastState.terminated.startedAt": _TIMES,
            "status.containerStatuses.lastState.terminated.finishedAt": _TIMES,
            "status.containerStatuses.state.running": ({},),
            "status.containerStatuses.state.running.startedAt": _TIMES,
            "status.conditions.lastTransitionTime": _TIMES, "status.initContainerStatuses": ([],),
            "spec.containers.image": TEXTS, "spec.containers.name": ("web",),
            "spec.initContainers": ([],),
            f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms.matchFields.key": (
                "metadata.name", *TEXTS),
            f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms.matchFields.values": (
                [], list(TEXTS)),
            "spec.nodeName": ("node", *TEXTS), "spec.restartPolicy": ("Always",),
            "spec.nodeSelector": ({"a": SUBSTITUTION},),
            "spec.schedulingGates.name": TEXTS,
            "spec.volumes.persistentVolumeClaim.claimName": TEXTS,
            "spec.containers.resources.limits.memory": TEXTS,
            "spec.containers.resources.requests.cpu": TEXTS,
            "spec.containers.startupProbe.failureThreshold": _COUNTS,
            "spec.containers.livenessProbe.periodSeconds": _COUNTS,
            "spec.containers.readinessProbe.httpGet.path": TEXTS,
            "spec.containers.readinessProbe.httpGet.port": TEXTS,
            "spec.containers.readinessProbe.tcpSocket.port": TEXTS,
            "spec.containers.readinessProbe.grpc.port": _COUNTS,
            "spec.containers.readinessProbe.exec.command": (list(TEXTS),),
            "metadata.namespace": ("default",),
            "metadata.deletionGracePeriodSeconds": (0,)},
    "DeploymentConfig": {"spec.triggers.type": ("ImageChange", *TEXTS),
                         "spec.triggers.imageChangeParams.from.name": TEXTS,
                         "spec.triggers.imageChangeParams.containerNames": (list(TEXTS),),
                         "spec.test": (True,),
                         "spec.triggers.imageChangeParams.automatic": (True,),
                         "spec.strategy.type": TEXTS,
                         "spec.strategy.customParams.image": TEXTS,
                         "spec.strategy.rollingParams.timeoutSeconds": _COUNTS,
                         "spec.revisionHistoryLimit": _COUNTS, "status.latestVersion": _COUNTS},
    "HorizontalPodAutoscaler": {"spec.scaleTargetRef.kind": ("ReplicationController",),
                                "spec.scaleTargetRef.name": NAMES,
                                "spec.scaleTargetRef.apiVersion": ("v1", "x/y/z"),
                                "spec.minReplicas": (1, 1000),
                                "spec.behavior": ({},), "spec.maxReplicas": (1, 2**31 - 1),
                                **{f"spec.behavior.scaleDown.{rule}": POLICIES
                                   for rule in SCALING_RULE_FIELDS}},
    "Rollout": {"metadata.name": NAMES, "spec.workloadRef.name": NAMES,
                "spec.workloadRef.kind": ("Deployment", "ReplicaSet", *TEXTS),
                "spec.workloadRef.apiVersion": ("apps/v1", "x/y/z", *TEXTS)},
    "PodDisruptionBudget": {"spec.minAvailable": (0, "100%", 2**31 - 1, "9" * 9 + "%"),
                            "spec.maxUnavailable": (0, "0%", "100%"),
                            "spec.selector.matchLabels": ({}, {"app": "foo"}),
                            "status.expectedPods": _COUNTS,
                            "spec.selector.matchExpressions.operator": ("In", "Exists"),
                            "spec.selector.matchExpressions.key": ("app",),
                            "spec.selector.matchExpressions.values": (["foo"],)},
    "ResourceQuota": {"status.hard": ({"pods": "0"}, {"pods": "9" * 300}),
                      "status.used": ({"pods": "1E18"},),
                      "spec.scopes": (["Terminating"],), "spec.scopeSelector": ({},)},
    **{kind: {
        "metadata.annotations": (KEYS[TRAFFIC_SPLIT],),
        "spec.rules.name": TEXTS, "spec.rules.matches.headers.name": TEXTS,
        "spec.rules.matches.queryParams.name": TEXTS,
        "spec.rules.backendRefs.group": ("", "core", "other", *TEXTS),
        "spec.rules.backendRefs.namespace": ("other", *TEXTS),
        "spec.rules.backendRefs.kind": ("Service", "Other"),
        "spec.rules.backendRefs.name": NAMES, "spec.rules.backendRefs.weight": _COUNTS,
        "spec.rules.filters.type": ("RequestMirror", *TEXTS),
        "spec.rules.filters.requestMirror.backendRef.name": NAMES,
        "spec.rules.filters.requestMirror.percent": _COUNTS,
        "spec.rules.filters.requestMirror.fraction.numerator": _COUNTS,
        "spec.rules.filters.requestMirror.fraction.denominator": _COUNTS,
        "spec.rules.sessionPersistence": ({}, {"sessionName": "s"}),
        "spec.parentRefs.kind": ("Gateway", *TEXTS), "spec.parentRefs.name": TEXTS,
        "spec.parentRefs.namespace": TEXTS, "spec.useDefaultGateways": ("All", *TEXTS),
        "spec.parentRefs.sectionName": TEXTS, "spec.parentRefs.port": (80,),
        "status.parents.parentRef.name": TEXTS, "status.parents.parentRef.port": (80,),
        "status.parents.parentRef.sectionName": TEXTS,
        "status.parents.conditions.type": ("Accepted", "ResolvedRefs"),
        "status.parents.conditions.status": ("True", "False", *TEXTS),
        "status.parents.conditions.reason": TEXTS, "status.parents.conditions.message": _MESSAGES,
        "status.parents.conditions.observedGeneration": (0, 2**62)}
       for kind in ("HTTPRoute", "GRPCRoute")},
    "GatewayClass": {"status.supportedFeatures.name": TEXTS},
    "Gateway": {"spec.gatewayClassName": NAMES, "status.listeners.name": TEXTS,
                "status.listeners.conditions.type": ("Programmed", "ResolvedRefs")},
    "Ingress": {"spec.defaultBackend.service.name": NAMES,
                "spec.rules.http.paths.backend.service.name": NAMES},
    "HTTPProxy": {"spec.routes.services.name": NAMES},
    "BackendTLSPolicy": {"spec.targetRefs.name": NAMES, "spec.targetRefs.sectionName": NAMES},
    "DestinationRule": {"spec.host": NAMES},
    "VirtualService": {"spec.http.route.destination.host": NAMES},
    "EndpointSlice": {"metadata.labels": (KEYS[SERVICE_NAME],),
                      "endpoints.targetRef.uid": (*map(UID.format, NAMES), *TEXTS),
                      "endpoints.conditions.ready": (True, False, None)},
    "Service": {"spec.selector": ({"app": "foo"},), "spec.type": ("ExternalName",),
                "spec.publishNotReadyAddresses": (True,), "spec.clusterIP": ("None",),
                "spec.ports.targetPort": (80, "web"), "spec.ports.port": (80,),
                "spec.ports.protocol": ("UDP",)},
    "template": {"spec.tolerations": ([],), "spec.terminationGracePeriodSeconds": _COUNTS,
                 "spec.readinessGates": ([],),
                 "spec.overhead": ({"cpu": "9" * 300},),
                 "spec.containers.ports.containerPort": (80,),
                 "spec.containers.ports.hostPort": (80, 65535), "spec.hostNetwork": (True, False),
                 "spec.containers.lifecycle.preStop.sleep.seconds": (0, 2**62),
                 "spec.containers.command": (["sleep", "9" * 5000],),
                 "spec.containers.env.valueFrom.secretKeyRef.name": NAMES,
                 "spec.containers.envFrom.configMapRef.optional": (True, False),
                 "spec.volumes.projected.sources.secret.name": NAMES,
                 "spec.volumes.secret.secretName": NAMES},
    "ConfigMap": {"data": INVALID_VALUES, "binaryData": INVALID_VALUES},
    "Secret": {"data": INVALID_VALUES},
    "Node": {"spec.taints.key": TEXTS, "spec.taints.value": TEXTS,
             "spec.taints.effect": ("NoSchedule",),
             "spec.unschedulable": (True,), "metadata.labels": ({},),
             "status.allocatable": ({"cpu": "0"},)},
}

#: Plausible combinations of forged annotations, by title and by object. "foo" is the task's
#: controller.
RECIPES: dict[str, dict[str, dict[str, str]]] = {
    "takeover with payments": {
        "foo": {object_meta.TAKEOVER: json.dumps(DOCUMENTS[object_meta.TAKEOVER])}},
    "partner with uid": {"foo": {object_meta.PARTNER: PAYMENTS,
                                 object_meta.PARTNER_UID: UID.format(PAYMENTS),
                                 object_meta.DESIRED: "3"}},
    "shrinking partner": {"foo": {object_meta.PARTNER: PAYMENTS,
                                  object_meta.PARTNER_UID: UID.format(PAYMENTS),
                                  object_meta.DESIRED: "0"}},
    "partner without pods": {"foo": {object_meta.PARTNER: IDLE,
                                     object_meta.PARTNER_UID: UID.format(IDLE),
                                     object_meta.DESIRED: "0"}},
    "payments as successor of foo": {
        PAYMENTS: {object_meta.PARTNER: "foo", object_meta.PARTNER_UID: UID.format("foo"),
                   object_meta.DESIRED: "3",
                   object_meta.LAST_ROLLOUT: json.dumps(
                       {**DOCUMENTS[object_meta.LAST_ROLLOUT], "outcome": "updating"})}},
    "controller without pods as successor of foo": {
        IDLE: {object_meta.PARTNER: "foo", object_meta.PARTNER_UID: UID.format("foo"),
               object_meta.DESIRED: "3",
               object_meta.LAST_ROLLOUT: json.dumps(
                   {**DOCUMENTS[object_meta.LAST_ROLLOUT], "outcome": "updating"})}},
    "controller without pods as successor of foo, while foo has another partner": {
        "foo": {object_meta.PARTNER: "absent"},
        IDLE: {object_meta.PARTNER: "foo", object_meta.PARTNER_UID: UID.format("foo"),
               object_meta.DESIRED: "3",
               object_meta.LAST_ROLLOUT: json.dumps(
                   {**DOCUMENTS[object_meta.LAST_ROLLOUT], "outcome": "updating"})}},
    "payments in a handover": {
        PAYMENTS: {object_meta.TAKEOVER: json.dumps({**DOCUMENTS[object_meta.TAKEOVER],
                                                     "next": "foo"}),
                   object_meta.PARTNER: "foo"}},
    "original size 300": {"foo": {object_meta.ORIGINAL: "300"}},
    "original size 300 and a deleted partner": {
        "foo": {object_meta.ORIGINAL: "300", object_meta.PARTNER: "absent"}},
    "original size 0": {"foo": {object_meta.ORIGINAL: "0"}},
    "original size 1": {"foo": {object_meta.ORIGINAL: "1"}},
    "original size 1000000000": {"foo": {object_meta.ORIGINAL: "1000000000"}},
    "kubectl rolling-update": {PAYMENTS: {object_meta.KUBECTL_SOURCE: "foo:0123"}},
    "update in progress with a forged strategy": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps(DOCUMENTS[object_meta.LAST_ROLLOUT])}},
    "update without fields": {"foo": {object_meta.LAST_ROLLOUT: '{"outcome":"updating"}'}},
    "update of a StatefulSet with maxUnavailable 100%": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps(STATEFUL_SET_RECORD)}},
    "rollback of a StatefulSet without settings": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps({
            **STATEFUL_SET_RECORD, "outcome": "rolling back", "original": {}, "paced": {}})}},
    "update of a DaemonSet with maxUnavailable 100%": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps(DAEMON_SET_RECORD)}},
    "rollback of a DaemonSet to a missing revision": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps({
            **DAEMON_SET_RECORD, "outcome": "rolling back", "set": "foo-nowhere", "original": {},
            "paced": {}})}},
    "rollback in progress": {
        "foo": {object_meta.LAST_ROLLOUT: json.dumps(
            {**DOCUMENTS[object_meta.LAST_ROLLOUT], "outcome": "rolling back"})}},
}

#: Paths that a task may request, in the namespace NS.
EXPECTED_PATHS = re.compile(
    r"/api/v1/namespaces/NS(/events|/services|/resourcequotas|/pods(/[a-z0-9.-]+(/log)?)?"
    r"|/replicationcontrollers(/[a-z0-9.-]+)?)?"
    r"|/apis/apps/v1/namespaces/NS/(replicasets|deployments|controllerrevisions|statefulsets"
    r"|daemonsets)(/[a-z0-9.-]+)?"
    r"|/apis/autoscaling/v2/namespaces/NS/horizontalpodautoscalers(/[a-z0-9.-]+)?"
    r"|/apis/policy/v1/namespaces/NS/poddisruptionbudgets"
    r"|/apis/coordination.k8s.io/v1/namespaces/NS/leases(/[a-z0-9.-]+)?"
    r"|/apis/argoproj.io/v1alpha1/namespaces/NS/rollouts"
    r"|/api/v1/nodes|/apis/authorization.k8s.io/v1/selfsubjectrulesreviews")

#: Characters that move the cursor, hide text, or change its direction.
_UNPRINTABLE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f"
                          "\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_MULTILINE_KEYS = ("msg", "why", "next_command", "suggestion")
MAX_LINE_LENGTH = 8192


def output_problems(output: t.Any, name: str = "") -> list[str]:
    """Return a phrase for each invalid text in a result."""
    if isinstance(output, dict):
        return [phrase for key, value in output.items()
                for phrase in (*output_problems(key, "a key"), *output_problems(value, str(key)))]
    if isinstance(output, (list, tuple)):
        return [phrase for value in output for phrase in output_problems(value, name)]
    if not isinstance(output, str):
        return []
    phrases = [f"{name} has {match[0]!r}" for match in [_UNPRINTABLE.search(output)] if match]
    if "\n" in output and name not in _MULTILINE_KEYS:
        phrases.append(f"{name} has a line break")
    lines = output.splitlines() or [""]
    if max(map(len, lines)) > MAX_LINE_LENGTH:
        phrases.append(f"{name} has a line of {max(map(len, lines))} characters")
    for line in map(str.strip, lines):
        if line.startswith(("ansible ", "kubectl ")) and re.search(r"\$\(|`|\{\{|\{%", line):
            phrases.append(f"{name} has a forged command: {line[:200]}")
        if line.startswith("rm -rf"):
            phrases.append(f"{name} has a forged line: {line}")
    return phrases

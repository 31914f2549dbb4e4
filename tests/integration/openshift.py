# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate OpenShift's DeploymentConfigs with a CustomResourceDefinition and simple controllers.

The controllers follow pkg/apps/deploymentconfig and pkg/apps/deployer of
openshift/openshift-controller-manager. docs/internals/migration.md lists the omissions.
"""

from __future__ import annotations

import contextlib
import json
import threading
import typing as t

from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import Json, eventually, manifest

GROUP = "apps.openshift.io"
CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/deploymentconfigs.{GROUP}"
#: Keys of annotations and labels (openshift/api, apps/v1/consts.go).
CONFIG, VERSION, PHASE = ("openshift.io/deployment-config.name",
                          "openshift.io/deployment-config.latest-version",
                          "openshift.io/deployment.phase")
ENCODED_CONFIG = "openshift.io/encoded-deployment-config"


def install_crd(namespace: Namespace) -> None:
    """Create the kind, and wait until the API server and the garbage collector know it."""
    any_object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1", "served": True, "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object",
                                       "properties": {"spec": any_object, "status": any_object}}},
        "subresources": {"status": {},
                         "scale": {"specReplicasPath": ".spec.replicas",
                                   "statusReplicasPath": ".status.replicas"}}}
    names = {"kind": "DeploymentConfig", "plural": "deploymentconfigs",
             "singular": "deploymentconfig", "shortNames": ["dc"]}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"deploymentconfigs.{GROUP}"},
            "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}}
    with contextlib.suppress(ApiException):  # already exists
        namespace.call("POST", CRD_PATH.rpartition("/")[0], body)
    eventually(lambda: http_status(namespace, api_path(namespace)) == 200,
               "the API of DeploymentConfigs")
    # The garbage collector discovers new kinds every 30 s. Until then, it ignores the dependents of
    # a deleted DeploymentConfig.
    path = api_path(namespace, "probe")
    namespace.call("POST", api_path(namespace), {
        "apiVersion": f"{GROUP}/v1", "kind": "DeploymentConfig", "metadata": {"name": "probe"},
        "spec": {}})
    namespace.call("DELETE", path, {"propagationPolicy": "Orphan"})
    eventually(lambda: http_status(namespace, path) == 404,
               "the discovery of DeploymentConfigs by the garbage collector")


def uninstall_crd(namespace: Namespace) -> None:
    with contextlib.suppress(ApiException):
        namespace.call("DELETE", CRD_PATH)
    eventually(lambda: http_status(namespace, api_path(namespace)) == 404,
               "the removal of the API of DeploymentConfigs")


def http_status(namespace: Namespace, path: str) -> int:
    try:
        namespace.call("GET", path)
    except ApiException as error:
        return error.status
    return 200


def api_path(namespace: Namespace, name: str = "") -> str:
    return (f"/apis/{GROUP}/v1/namespaces/{namespace.name}/deploymentconfigs"
            + (f"/{name}" if name else ""))


class OpenShift:
    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        #: Whether rollouts remain in the phase Running.
        self.blocks_rollouts = False
        self.size_changes: list[tuple[str, int]] = []
        self._stop, self._errors = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> OpenShift:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert exception[0] or not self._errors, self._errors

    # Helpers for tests

    def create_and_wait(self, replicas: int = 2, name: str = "foo", metadata: Json | None = None,
                        **spec: t.Any) -> Json:
        self.create(replicas, name, metadata, **spec)
        self.until_rolled_out(1, replicas, name)
        return t.cast(Json, self.config(name))

    def create(self, replicas: int = 2, name: str = "foo", metadata: Json | None = None,
               **spec: t.Any) -> Json:
        body = manifest(replicas, name=name)
        full_spec = {"triggers": [{"type": "ConfigChange"}], "strategy": {"type": "Rolling"},
                     "test": False,
                     "revisionHistoryLimit": 10, **body["spec"], **spec}
        return self.namespace.call("POST", api_path(self.namespace), {
            "apiVersion": f"{GROUP}/v1", "kind": "DeploymentConfig",
            "metadata": {"name": name, "labels": {"app": name}, **(metadata or {})},
            "spec": full_spec})

    def config(self, name: str = "foo") -> Json | None:
        try:
            return self.namespace.call("GET", api_path(self.namespace, name))
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def patch(self, body: Json, name: str = "foo", subresource: str = "") -> Json:
        return self.namespace.call("PATCH", api_path(self.namespace, name) + subresource, body,
                                   "application/merge-patch+json")

    def remove(self, name: str = "foo", policy: str = "Background") -> None:
        self.namespace.call("DELETE", api_path(self.namespace, name),
                            {"propagationPolicy": policy})

    def change_image(self, image: str, name: str = "foo") -> None:
        template = manifest(0, image, name)["spec"]["template"]
        self.patch({"spec": {"template": template}}, name)

    def until_rolled_out(self, number: int, replicas: int, name: str = "foo") -> None:
        self.wait_for_phase("Complete", number, name)
        self.namespace.until_available(f"{name}-{number}", replicas)

    def wait_for_phase(self, phase: str, number: int, name: str = "foo") -> None:
        def has_phase() -> bool:
            rc = self.namespace.rc(f"{name}-{number}") or {"metadata": {"annotations": {}}}
            return rc["metadata"]["annotations"].get(PHASE) == phase

        eventually(has_phase, f"the phase {phase} of rollout {number} of {name}", seconds=60)

    # The controllers

    def _work(self) -> None:
        while not self._stop.wait(0.05):
            try:
                for config in self.namespace.call("GET", api_path(self.namespace))["items"]:
                    self._handle(config)
            except ApiException as error:
                # 404, 409, 422: another client has changed an object, so retry
                if error.status not in (404, 409, 422):
                    self._errors.append(error)

    def _handle(self, config: Json) -> None:
        """Reconcile like DeploymentConfigController.Handle and DeploymentController.handle."""
        owned_controllers = self._claim(config)
        for rc in owned_controllers:
            if _phase(rc) not in ("Complete", "Failed"):
                # a pause does not stop a running rollout
                self._advance_rollout(config, rc, owned_controllers)
                owned_controllers = self._claim(config)
        if "deletionTimestamp" in config["metadata"] or config["spec"].get("paused"):
            self._update_status(config, owned_controllers)
            return
        latest_version = config.get("status", {}).get("latestVersion", 0)
        newest = owned_controllers[0] if owned_controllers else None
        has_latest_rc = newest is not None and _number(newest) == latest_version
        if ((newest and _number(newest) > latest_version)
                or self._is_triggered(config, newest if has_latest_rc else None, latest_version)):
            self._update_status(config, owned_controllers, latestVersion=latest_version + 1)
        elif has_latest_rc and _phase(t.cast(Json, newest)) in ("Complete", "Failed"):
            active = next((rc for rc in owned_controllers if _phase(rc) == "Complete"), None)
            for rc in owned_controllers:
                size = (config["spec"]["replicas"] if rc is active
                        and not config["spec"].get("test") else 0)
                self._scale(rc, size)
            self._update_status(config, owned_controllers)
        elif not has_latest_rc and latest_version:
            self._create_rollout(config, latest_version)

    def _claim(self, config: Json) -> list[Json]:
        """Adopt orphans, and return the ReplicationControllers of a DeploymentConfig, newest first.
        """
        name, uid = config["metadata"]["name"], config["metadata"]["uid"]
        owned_controllers = []
        for rc in self.namespace.call("GET",
                                      self.namespace.path("replicationcontrollers"))["items"]:
            owners = rc["metadata"].get("ownerReferences") or []
            if (not owners and rc["metadata"].get("labels", {}).get(CONFIG) == name
                    and self._may_adopt(config, rc)):
                rc = self.namespace.patch(rc["metadata"]["name"], {"metadata": {
                    "uid": rc["metadata"]["uid"], "ownerReferences": [_reference(config)]}})
                owners = rc["metadata"]["ownerReferences"]
            if any(ref["uid"] == uid for ref in owners):
                owned_controllers.append(rc)
        return sorted(owned_controllers, key=_number, reverse=True)

    def _may_adopt(self, config: Json, rc: Json) -> bool:
        """Return whether an adoption is allowed (RecheckDeletionTimestamp).

        A DeploymentConfig that is being deleted does not adopt the objects that the garbage
        collector orphans.
        """
        current = self.config(config["metadata"]["name"])
        return (current is not None and current["metadata"]["uid"] == config["metadata"]["uid"]
                and all("deletionTimestamp" not in item["metadata"] for item in (current, rc)))

    def _is_triggered(self, config: Json, newest: Json | None, latest_version: int) -> bool:
        if all(trigger["type"] != "ConfigChange" for trigger in config["spec"]["triggers"]):
            return False
        if latest_version == 0:
            return True
        if newest is None:
            return False
        stored_config = json.loads(newest["metadata"]["annotations"][ENCODED_CONFIG])
        return stored_config["spec"]["template"] != config["spec"]["template"]

    def _create_rollout(self, config: Json, number: int) -> None:
        """Create the ReplicationController like MakeDeployment of openshift/library-go."""
        name, spec = config["metadata"]["name"], config["spec"]
        rc_name = f"{name}-{number}"
        labels = {"deploymentconfig": name, "deployment": rc_name}
        template = json.loads(json.dumps(spec["template"]))
        template["metadata"].setdefault("labels", {}).update(labels)
        template["metadata"].setdefault("annotations", {}).update(
            {"openshift.io/deployment.name": rc_name, CONFIG: name, VERSION: str(number)})
        annotations = {CONFIG: name, ENCODED_CONFIG: json.dumps(config), PHASE: "New",
                       VERSION: str(number)}
        metadata = {"name": rc_name, "annotations": annotations,
                    "labels": {**config["metadata"].get("labels", {}), CONFIG: name},
                    "ownerReferences": [_reference(config)]}
        self.namespace.create("replicationcontrollers", {"metadata": metadata, "spec": {
            "replicas": 0, "selector": {**spec.get("selector", {}), **labels}, "template": template,
            "minReadySeconds": spec.get("minReadySeconds", 0)}})

    def _advance_rollout(self, config: Json, rc: Json, owned_controllers: list[Json]) -> None:
        if _phase(rc) == "New":
            self._set_phase(rc, "Running")
            return
        size = config["spec"]["replicas"]
        if self.blocks_rollouts:
            return
        if rc["spec"]["replicas"] != size:
            self._scale(rc, size)
        elif rc.get("status", {}).get("availableReplicas", 0) == size:
            for old in owned_controllers:
                if old is not rc:
                    self._scale(old, 0)
            if all(old.get("status", {}).get("replicas", 0) == 0
                   for old in owned_controllers if old is not rc):
                if config["spec"].get("test"):
                    self._scale(rc, 0)
                self._set_phase(rc, "Complete")

    def _set_phase(self, rc: Json, phase: str) -> None:
        self.namespace.patch(rc["metadata"]["name"],
                             {"metadata": {"uid": rc["metadata"]["uid"],
                                           "annotations": {PHASE: phase}}})

    def _scale(self, rc: Json, size: int) -> None:
        if rc["spec"]["replicas"] != size:
            self.size_changes.append((rc["metadata"]["name"], size))
            self.namespace.patch(rc["metadata"]["name"],
                                 {"metadata": {"uid": rc["metadata"]["uid"]},
                                  "spec": {"replicas": size}})

    def _update_status(self, config: Json, owned_controllers: list[Json], **changes: int) -> None:
        counts = {field: sum(rc.get("status", {}).get(field, 0) for rc in owned_controllers)
                  for field in ("replicas", "readyReplicas", "availableReplicas")}
        status = {"latestVersion": config.get("status", {}).get("latestVersion", 0), **counts,
                  "observedGeneration": config["metadata"]["generation"], **changes}
        if status != config.get("status"):
            self.namespace.call("PUT",
                                api_path(self.namespace, config["metadata"]["name"]) + "/status",
                                {**config, "status": status})


def _reference(config: Json) -> Json:
    return {"apiVersion": f"{GROUP}/v1", "kind": "DeploymentConfig",
            "name": config["metadata"]["name"],
            "uid": config["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def _phase(rc: Json) -> str:
    return rc["metadata"].get("annotations", {}).get(PHASE, "")


def _number(rc: Json) -> int:
    return int(rc["metadata"].get("annotations", {}).get(VERSION, -1))

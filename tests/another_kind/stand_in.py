# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate OpenKruise on a real API server: the CRD, and a controller of one CloneSet."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time

from kubernetes.client.exceptions import ApiException
from objects import is_ready, owner_uid

GROUP, VERSION = "apps.kruise.io", "v1alpha1"
HASH_LABEL = "controller-revision-hash"
DEFINITIONS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = {
    "metadata": {"name": f"clonesets.{GROUP}"},
    "spec": {
        "group": GROUP, "scope": "Namespaced",
        "names": {"kind": "CloneSet", "plural": "clonesets", "singular": "cloneset",
                  "shortNames": ["clone"]},
        "versions": [{
            "name": VERSION, "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                field: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                for field in ("spec", "status")}}},
            "subresources": {"status": {}, "scale": {
                "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
        }],
    },
}


class CloneSetController(threading.Thread):
    """A context manager that runs a controller of the CloneSet foo in a thread."""

    def __init__(self, namespace):
        super().__init__(daemon=True)
        self.call, self.stop_event, self.failure = namespace.call, threading.Event(), None
        self.collection_path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace.name}/clonesets"
        self.pods_path = namespace.path("pods")
        self.revisions_path = f"/apis/apps/v1/namespaces/{namespace.name}/controllerrevisions"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stop_event.set()
        self.join()
        assert self.failure is None, self.failure

    def run(self):
        while not self.stop_event.wait(0.05):
            try:
                self.sync(self.call("GET", f"{self.collection_path}/foo"))
            except ApiException as error:
                if error.status not in (404, 409):
                    self.failure = error
                    return

    def sync(self, clone_set):
        uid, spec = clone_set["metadata"]["uid"], clone_set["spec"]
        strategy, replicas = spec["updateStrategy"], spec["replicas"]
        update_revision, revision_names = self.ensure_revision(clone_set)
        pods = [pod for pod in self.call("GET", self.pods_path)["items"]
                if owner_uid(pod) == uid and "deletionTimestamp" not in pod["metadata"]]
        old_pods = [pod for pod in pods if pod["metadata"]["labels"][HASH_LABEL] != update_revision]
        partition = strategy.get("partition", 0)
        replace_count = 0 if strategy.get("paused") else max(0, len(old_pods) - partition)
        max_pods = replicas + min(strategy.get("maxSurge", 0), replace_count)
        ready_count = sum(map(is_ready, pods))
        for _number in range(max_pods - len(pods)):
            self.create_pod(clone_set, update_revision)
        # unready pods first, then old pods
        deletion_order = sorted(pods, key=lambda pod: (is_ready(pod), pod not in old_pods))
        pods_to_delete = deletion_order[:max(0, len(pods) - max_pods)]
        if not pods_to_delete and len(pods) == max_pods and replace_count:
            victim = next(pod for pod in deletion_order if pod in old_pods)
            if ready_count - is_ready(victim) >= replicas - strategy.get("maxUnavailable", 1):
                pods_to_delete = [victim]
        for pod in pods_to_delete:
            with contextlib.suppress(ApiException):
                self.call("DELETE", f"{self.pods_path}/{pod['metadata']['name']}", {})
        self.write_status(clone_set, pods, old_pods, update_revision, revision_names)

    def ensure_revision(self, clone_set):
        """Create or renumber the revision of the current template.

        Return the name of the revision, and the names of all revisions before the call.
        """
        metadata, template = clone_set["metadata"], clone_set["spec"]["template"]
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        name = f"foo-{digest}"
        stored_revisions = [revision for revision in self.call("GET", self.revisions_path)["items"]
                            if owner_uid(revision) == metadata["uid"]]
        newest_number = max((revision["revision"] for revision in stored_revisions), default=0)
        stored_revision = next((revision for revision in stored_revisions
                                if revision["metadata"]["name"] == name), None)
        if stored_revision is None:
            self.call("POST", self.revisions_path, {
                "apiVersion": "apps/v1", "kind": "ControllerRevision",
                "revision": newest_number + 1,
                "metadata": {"name": name, "ownerReferences": [_reference(clone_set)],
                             "labels": {**template["metadata"]["labels"],
                                        "controller.kubernetes.io/hash": digest}},
                "data": {"spec": {"template": {**template, "$patch": "replace"}}}})
        elif stored_revision["revision"] < newest_number:
            # The plugin recognizes a renumbered revision by a time in managedFields that is later
            # than creationTimestamp. Both are in whole seconds.
            time.sleep(1.1)
            # send .data as received: it is immutable, and the API server compares bytes
            self.call("PUT", f"{self.revisions_path}/{name}",
                      {**stored_revision, "revision": newest_number + 1})
        return name, {revision["metadata"]["name"] for revision in stored_revisions}

    def create_pod(self, clone_set, revision):
        template = clone_set["spec"]["template"]
        labels = {**template["metadata"]["labels"], HASH_LABEL: revision}
        self.call("POST", self.pods_path, {
            "metadata": {"generateName": "foo-", "labels": labels,
                         "ownerReferences": [_reference(clone_set)]}, "spec": template["spec"]})

    def write_status(self, clone_set, pods, old_pods, update_revision, revision_names):
        previous_status = clone_set.get("status") or {}
        current_revision = previous_status.get("currentRevision", update_revision)
        if not old_pods or current_revision not in revision_names:
            current_revision = update_revision
        ready_count = sum(map(is_ready, pods))
        new_ready_count = sum(is_ready(pod) for pod in pods if pod not in old_pods)
        status = {"observedGeneration": clone_set["metadata"]["generation"], "replicas": len(pods),
                  "readyReplicas": ready_count, "availableReplicas": ready_count,
                  "updatedReplicas": len(pods) - len(old_pods),
                  "updatedReadyReplicas": new_ready_count,
                  "updatedAvailableReplicas": new_ready_count,
                  "currentRevision": current_revision, "updateRevision": update_revision}
        if status != previous_status:
            self.call("PUT", f"{self.collection_path}/foo/status", {**clone_set, "status": status})


def _reference(clone_set):
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "CloneSet",
            "name": clone_set["metadata"]["name"], "uid": clone_set["metadata"]["uid"],
            "controller": True}

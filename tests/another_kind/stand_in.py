# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate OpenKruise on a real API server: the resource, and a controller of one CloneSet.

It implements ControllerRevisions, the label controller-revision-hash, partition, maxSurge,
maxUnavailable and the status.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time

from kubernetes.client.exceptions import ApiException
from objects import is_ready, owner_uid

GROUP, VERSION = "apps.kruise.io", "v1alpha1"
HASH = "controller-revision-hash"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
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
        self.call, self.stopped, self.failure = namespace.call, threading.Event(), None
        self.root = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace.name}/clonesets"
        self.pods = namespace.path("pods")
        self.revisions = f"/apis/apps/v1/namespaces/{namespace.name}/controllerrevisions"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.stopped.set()
        self.join()
        assert self.failure is None, self.failure

    def run(self):
        while not self.stopped.wait(0.05):
            try:
                self.sync(self.call("GET", f"{self.root}/foo"))
            except ApiException as error:
                if error.status not in (404, 409):
                    self.failure = error
                    return

    def sync(self, item):
        uid, spec = item["metadata"]["uid"], item["spec"]
        strategy, size = spec["updateStrategy"], spec["replicas"]
        update_revision, revisions = self.ensure_revision(item)
        pods = [pod for pod in self.call("GET", self.pods)["items"]
                if owner_uid(pod) == uid and "deletionTimestamp" not in pod["metadata"]]
        old = [pod for pod in pods if pod["metadata"]["labels"][HASH] != update_revision]
        partition = strategy.get("partition", 0)
        to_replace = 0 if strategy.get("paused") else max(0, len(old) - partition)
        max_pods = size + min(strategy.get("maxSurge", 0), to_replace)
        ready = sum(map(is_ready, pods))
        for _number in range(max_pods - len(pods)):
            self.create_pod(item, update_revision)
        # unready pods first, then old pods
        ordered = sorted(pods, key=lambda pod: (is_ready(pod), pod not in old))
        surplus = ordered[:max(0, len(pods) - max_pods)]
        if not surplus and len(pods) == max_pods and to_replace:
            victim = next(pod for pod in ordered if pod in old)
            if ready - is_ready(victim) >= size - strategy.get("maxUnavailable", 1):
                surplus = [victim]
        for pod in surplus:
            with contextlib.suppress(ApiException):
                self.call("DELETE", f"{self.pods}/{pod['metadata']['name']}", {})
        self.write_status(item, pods, old, update_revision, revisions)

    def ensure_revision(self, item):
        """Create the revision of the current template, or renumber it if it exists.

        Return the name of this revision, and the names of all revisions that existed before.
        """
        metadata, template = item["metadata"], item["spec"]["template"]
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        name = f"foo-{digest}"
        stored = [revision for revision in self.call("GET", self.revisions)["items"]
                  if owner_uid(revision) == metadata["uid"]]
        newest = max((revision["revision"] for revision in stored), default=0)
        current = next((revision for revision in stored if revision["metadata"]["name"] == name),
                       None)
        if current is None:
            self.call("POST", self.revisions, {
                "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": newest + 1,
                "metadata": {"name": name, "ownerReferences": [_reference(item)],
                             "labels": {**template["metadata"]["labels"],
                                        "controller.kubernetes.io/hash": digest}},
                "data": {"spec": {"template": {**template, "$patch": "replace"}}}})
        elif current["revision"] < newest:
            # The plugin recognizes a renumbered revision by a time in managedFields after its
            # creation, in whole seconds.
            time.sleep(1.1)
            # PUT the object as read: .data is immutable, and the API server compares its bytes
            self.call("PUT", f"{self.revisions}/{name}", {**current, "revision": newest + 1})
        return name, {revision["metadata"]["name"] for revision in stored}

    def create_pod(self, item, revision):
        template = item["spec"]["template"]
        labels = {**template["metadata"]["labels"], HASH: revision}
        self.call("POST", self.pods, {
            "metadata": {"generateName": "foo-", "labels": labels,
                         "ownerReferences": [_reference(item)]}, "spec": template["spec"]})

    def write_status(self, item, pods, old, update_revision, revisions):
        previous_status = item.get("status") or {}
        current = previous_status.get("currentRevision", update_revision)
        if not old or current not in revisions:
            current = update_revision
        ready = sum(map(is_ready, pods))
        new_ready = sum(is_ready(pod) for pod in pods if pod not in old)
        status = {"observedGeneration": item["metadata"]["generation"], "replicas": len(pods),
                  "readyReplicas": ready, "availableReplicas": ready,
                  "updatedReplicas": len(pods) - len(old), "updatedReadyReplicas": new_ready,
                  "updatedAvailableReplicas": new_ready,
                  "currentRevision": current, "updateRevision": update_revision}
        if status != previous_status:
            self.call("PUT", f"{self.root}/foo/status", {**item, "status": status})


def _reference(item):
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "CloneSet",
            "name": item["metadata"]["name"], "uid": item["metadata"]["uid"], "controller": True}

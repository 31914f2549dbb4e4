# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Simulate foo as a controller of each kind, with an autoscaler, to test the modules."""

from __future__ import annotations

from simulated import PodCountingCluster

from ansible_collections.baton.kubernetes.plugins.module_utils import task
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import autoscaler
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import (
    PreconditionFailed,
    apply_patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import AUTOSCALER
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

SIZE = 4
KINDS = ["ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet"]


class Cluster(PodCountingCluster):
    def __init__(self, kind, strategy=""):
        super().__init__(Kind(kind), SIZE)
        if strategy:
            self.cluster.items["foo"]["spec"]["updateStrategy"] = {"type": strategy}
            self.settle()
        target = {"apiVersion": Kind(kind).api_version, "kind": kind, "name": "foo"}
        self.scaler = {"metadata": {"name": "hpa", "uid": "uid of hpa"},
                       "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5}}

    def objects(self, resource):
        return [self.scaler] if resource == "horizontalpodautoscalers" else []

    def write(self, write):
        if write.kind == AUTOSCALER:
            try:
                self.scaler = apply_patch(self.scaler, write)
            except PreconditionFailed:
                return False
            return True
        return super().write(write)

    def info(self, request):
        (rollout,) = task._rollouts(choose(request), request, self, {"name": "foo"})
        return rollout

    def check_mode(self, request):
        return driver.simulate(choose(request), request, self)

    @property
    def is_frozen(self):
        return autoscaler.is_frozen(self.scaler)


def update_request(kind, **params):
    return parse_request({"name": "foo", "kind": kind, "image": "myimage:v2", **params})

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the objects of a traffic split, and model the API server that stores them."""

from __future__ import annotations

import copy
import dataclasses
import json

import pytest
from builders import rc

from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    TRAFFIC_ROUTES,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import (
    Controller,
    Pod,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.patches import (
    PreconditionFailed,
    apply_patch,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Delete,
    Done,
    Patch,
    Step,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.objects import (
    SERVICE_NAME,
    Objects,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.observed import Versions
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.planner import plan
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    TrafficRequest,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share

NAMESPACE, ROUTE_UID = "shop", "uid of the route"
KEY = "pod-template-hash"
LABELS = ({"app": "foo", KEY: "aaa"}, {"app": "foo", KEY: "bbb"})
VERSIONS = Versions(KEY, "aaa", "bbb", (), LABELS)
BEFORE_UPDATE = Versions(KEY, "aaa", "", (), LABELS[:1])
MATCH = ({"headers": [{"name": "x-tester", "type": "Exact", "value": "yes"}]},)
OPTIONS = {"name": "foo", "route": "edge"}
SPLIT = TrafficRequest("foo", NAMESPACE, "edge", share=Share(1, 100), options=OPTIONS)
MATCHING = dataclasses.replace(SPLIT, share=Share(10, 100), match=MATCH)
MIRRORING = dataclasses.replace(SPLIT, share=Share(0, 100), mirror=Share(10, 100))
#: Sends no requests to the new pods.
ZERO_SHARE = dataclasses.replace(SPLIT, share=Share(0, 100))
RESTORE = dataclasses.replace(SPLIT, share=Share(0, 100), restores=True)


def backend(name, weight=1, **fields):
    return {"group": "", "kind": "Service", "name": name, "port": 80, "weight": weight, **fields}


def rule(*backends, path="/", **fields):
    return {"matches": [{"path": {"type": "PathPrefix", "value": path}}],
            "backendRefs": list(backends), **fields}


def route(*rules, annotations=None, **metadata):
    return {"kind": "HTTPRoute", "metadata": {
        "name": "edge", "namespace": NAMESPACE, "uid": ROUTE_UID, "resourceVersion": "1",
        "generation": 1, **({"annotations": annotations} if annotations else {}), **metadata},
        "spec": {"parentRefs": [{"name": "gateway"}],
                 "rules": list(rules or [rule(backend("foo"))])},
        "status": {"parents": [parent(1)]}}


def parent(generation, **statuses):
    return {"parentRef": {"name": "gateway"}, "conditions": [
        {"type": kind, "status": statuses.get(kind, "True"), "observedGeneration": generation,
         "message": "no such backend"} for kind in ("Accepted", "ResolvedRefs")]}


def service(name="foo", selector=None, **fields):
    return {"kind": "Service",
            "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid of {name}",
                         "resourceVersion": "1", **fields.pop("metadata", {})},
            "spec": {"type": "ClusterIP", "clusterIP": "10.0.0.1",
                     "selector": {"app": "foo"} if selector is None else selector,
                     "ports": [{"name": "http", "port": 80, "protocol": "TCP",
                                "targetPort": 8080}], **fields}}


def pod(name, is_new=False, labels=None):
    return Pod(name, f"uid of {name}", LABELS[is_new] if labels is None else labels, "owner")


class World:
    """API server with a route and Services.

    Controllers act only in become_ready(), observe_route() and settle().
    """

    def __init__(self, *rules, services=(), versions=VERSIONS):
        self.route = route(*rules)
        #: The rules that the Gateway uses: those of its last observation.
        self.gateway_rules = self.rules
        items = [service(), service("bar", {"app": "bar"}), *services]
        self.services = {item["metadata"]["name"]: item for item in items}
        self.ready = {item["metadata"]["uid"] for item in items}
        self.versions = versions
        self.stores_mirror_share = True
        #: The controller; None after its deletion.
        self.controller = rc("foo")
        self.write_count = 1

    def copy(self):
        """Return a copy. It shares objects, because none changes in place."""
        world = copy.copy(self)
        world.services, world.ready = dict(self.services), set(self.ready)
        return world

    def key(self):
        """Return the state as text, without resourceVersions except in the route's record."""
        metadata = {**self.route["metadata"], "resourceVersion": ""}
        uids = {name: item["metadata"]["uid"] for name, item in self.services.items()}
        return json.dumps([{**self.route, "metadata": metadata}, self.gateway_rules, uids,
                           sorted(self.ready), self.annotation, self.versions.new], sort_keys=True)

    @property
    def annotation(self):
        """Return the routes in the controller's annotation, or None."""
        return self.controller and self.controller["metadata"]["annotations"].get(TRAFFIC_ROUTES)

    def read(self, restores=False):
        slices = [{"metadata": {"labels": {SERVICE_NAME: name},
                                "ownerReferences": [{"uid": item["metadata"]["uid"],
                                                     "controller": True}]},
                   "endpoints": [{"conditions": {
                       "ready": item["metadata"]["uid"] in self.ready}}]}
                  for name, item in self.services.items()]
        return Objects(self.route, tuple(self.services.values()), tuple(slices),
                       None if restores else self.versions, self.stores_mirror_share,
                       self.controller and Controller.from_api(self.controller))

    def observed(self, request, is_drained=True):
        return self.read(request.restores).observed(is_drained)

    def write(self, write):
        """Apply a write. Return False if a precondition fails."""
        self.write_count += 1
        is_applied = self._apply(write)
        self.write_count -= not is_applied
        return is_applied

    def _apply(self, write):
        if isinstance(write, Create):
            if write.name in self.services:
                return False
            metadata = {**write.manifest["metadata"], "uid": f"uid {self.write_count}",
                        "resourceVersion": str(self.write_count)}
            self.services[write.name] = {**write.manifest, "metadata": metadata}
            return True
        if isinstance(write, Delete):
            stored_metadata = self.services.get(write.name, {"metadata": {}})["metadata"]
            if write.preconditions != {
                    key: stored_metadata.get(key) for key in write.preconditions}:
                return False
            del self.services[write.name]
            return True
        assert isinstance(write, Patch)
        try:
            if write.kind == "Service":
                self.services = {**self.services,
                                 write.name: apply_patch(self.services[write.name], write)}
                return True
            if write.kind != "HTTPRoute":
                self.controller = apply_patch(self.controller, write)
                return True
            item = apply_patch(self.route, write)
        except PreconditionFailed:
            return False
        self._check_change(item["spec"]["rules"])
        self.put_route(item)
        return True

    def _check_change(self, rules):
        """Assert that a Gateway may apply backends and weights in any order."""
        names_before, names_after = map(_backend_names, (self.rules, rules))
        weighted_names_before, weighted_names_after = (
            _backend_names(rules_, excludes_weight_0=True) for rules_ in (self.rules, rules))
        assert weighted_names_after <= names_before, (
            f"some of {weighted_names_after} get requests before all Gateways know them")
        assert weighted_names_before & self.services.keys() <= names_after, (
            f"some of {weighted_names_before} are removed, but may still get requests")

    def put_route(self, item):
        """Store the route with a new resourceVersion, and a new generation if the spec changes."""
        metadata = {**item["metadata"], "resourceVersion": str(self.write_count)}
        if item["spec"] != self.route["spec"]:
            metadata["generation"] += 1
        self.route = {**item, "metadata": metadata}

    def annotate(self, annotations):
        self.write_count += 1
        metadata = {**self.route["metadata"], "annotations": annotations}
        self.put_route({**self.route, "metadata": metadata})

    def put_rules(self, rules):
        self.write_count += 1
        self.put_route({**self.route, "spec": {**self.route["spec"], "rules": rules}})

    @property
    def rules(self):
        return self.route["spec"]["rules"]

    def become_ready(self):
        self.ready |= {item["metadata"]["uid"] for item in self.services.values()}

    def observe_route(self):
        generation = self.route["metadata"]["generation"]
        self.route = {**self.route, "status": {"parents": [parent(generation)]}}
        self.gateway_rules = self.rules

    def settle(self):
        self.become_ready()
        self.observe_route()

    def service_names_in_rules(self, rules=None):
        """Return the names of the Services in the rules, including mirrors."""
        return [item["name"] for entry in rules or self.rules for item in (
            *entry["backendRefs"], *(part["requestMirror"]["backendRef"]
                                     for part in entry.get("filters", ())
                                     if "requestMirror" in part))]

    def check(self):
        """Assert that the route and the Gateway have only ready Services, and foo and bar exist."""
        for rules in (self.rules, self.gateway_rules):
            for name in self.service_names_in_rules(rules):
                assert name in self.services, f"the route names {name}, which does not exist"
                uid = self.services[name]["metadata"]["uid"]
                assert uid in self.ready, f"the route names {name}, which is not ready"
        assert {"foo", "bar"} <= self.services.keys()


def _backend_names(rules, excludes_weight_0=False):
    return {item["name"] for rule_ in rules for item in rule_["backendRefs"]
            if item["weight"] or not excludes_weight_0}


def run(world, request):
    """Run a task to its end. Controllers act after each turn."""
    for _turn in range(40):
        decision = plan(request, world.observed(request))
        if isinstance(decision, Done):
            return
        if isinstance(decision, Step):
            assert world.write(decision.write)
            world.check()
        world.settle()
    pytest.fail("the task does not end")

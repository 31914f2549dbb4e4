# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that related objects are read, without forbidden and unknown ones."""

from __future__ import annotations

import types

import pytest
from traffic_objects import NAMESPACE, SPLIT, World, parent, route

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.refused import Refused
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.observed import Route
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.reader import (
    ClusterReader,
    NoReader,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import (
    RESOURCES,
    GatewaysAndPods,
    Related,
)

GROUPS = {"groups": [{"name": group, "versions": [{"version": "v10"}, {"version": "v9"}]}
                     for group in {resource.group for resource in RESOURCES}]}


class Server:
    """API server with `lists` of objects by path. All other paths are refused."""

    def __init__(self, lists=(), rules=None, objects_by_key=(), groups=None, has_discovery=True):
        self.lists, self.granted_rules = dict(lists), rules
        self.groups, self.has_discovery = groups or GROUPS, has_discovery
        self.objects_by_key, self.paths = dict(objects_by_key), []
        self.http = self

    def rules(self):
        return self.granted_rules

    def collection_path(self, resource):
        return f"/api/v1/namespaces/shop/{resource}"

    def send(self, _method, path):
        assert path == "/apis"
        if not self.has_discovery:
            raise refusal(path)
        return self.groups

    def list_all(self, path, query):
        self.paths.append(path)
        if path not in self.lists:
            raise refusal(path, 404 if "/v10/" in path else 403)
        return self.lists[path], ""

    def get(self, path, kind, namespace, name):
        if (namespace, name) not in self.objects_by_key:
            raise refusal(path)
        return self.objects_by_key[namespace, name]


def refusal(path, status=403):
    return Refused("server", "GET", path, status, b"")


def test_served_and_permitted_objects_are_listed():
    path = "/apis/networking.k8s.io/v9/namespaces/shop/ingresses"
    rules = [{"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": ["list"]}]
    lists = {path: [{"metadata": {"name": "web"}}]}
    server = Server(lists, rules)
    assert [(resource.kind, item["metadata"]["name"])
            for resource, item in ClusterReader(server, "shop").related().items] == [
                ("Ingress", "web")]
    assert server.paths == [path.replace("v9", "v10"), path]
    server_without_groups = Server(lists, rules, groups={"groups": []})
    assert ClusterReader(server_without_groups, "shop").related() == Related()


@pytest.mark.parametrize("server", [Server(), Server(has_discovery=False), Server(rules=[])],
                         ids=["unknown rules", "no discovery", "no permission"])
def test_unreadable_objects_are_left_out(server):
    assert ClusterReader(server, "shop").related() == Related()
    assert (ClusterReader(server, "shop").gateways_and_pods(World().observed(SPLIT), ["foo"])
            == GatewaysAndPods())
    assert ClusterReader(server, "shop").features(World().observed(SPLIT)) == set()


def test_gateways_and_pods_are_read():
    pods, gateway = [{"metadata": {"name": "a"}}], types.MappingProxyType({"kind": "Gateway"})
    server = Server({"/api/v1/namespaces/shop/pods": pods},
                    objects_by_key={("shop", "gateway"): gateway})
    answer = ClusterReader(server, "shop").gateways_and_pods(World().observed(SPLIT), ["foo"])
    assert answer == GatewaysAndPods({"shop/gateway": gateway}, {"foo": tuple(pods)})
    server_without_gateway = Server(objects_by_key={("shop", "gateway"): None})
    reader = ClusterReader(server_without_gateway, "shop")
    assert (reader.gateways_and_pods(World().observed(SPLIT), [])
            == GatewaysAndPods({"shop/gateway": None}))


@pytest.mark.parametrize("gateway_class, features", [
    ({"status": {"supportedFeatures": [{"name": "A"}, {"name": "B"}]}}, {"A", "B"}),
    ({"status": {}}, set()), (None, set())])
def test_features_come_from_the_gateway_class(gateway_class, features):
    gateway = {"spec": {"gatewayClassName": "example"}}
    server = Server(objects_by_key={("shop", "gateway"): gateway, ("", "example"): gateway_class})
    assert ClusterReader(server, "shop").features(World().observed(SPLIT)) == features
    del server.objects_by_key["", "example"]
    assert ClusterReader(server, "shop").features(World().observed(SPLIT)) == set()


def test_missing_gateway_has_no_gateway_class():
    world = World()
    world.route["spec"]["parentRefs"].append({"name": "deleted"})
    gateway, gateway_class = ({"spec": {"gatewayClassName": "example"}},
                              {"status": {"supportedFeatures": [{"name": "A"}]}})
    server = Server(objects_by_key={("shop", "gateway"): gateway, ("shop", "deleted"): None,
                                    ("", "example"): gateway_class})
    assert ClusterReader(server, "shop").features(world.observed(SPLIT)) == {"A"}


def test_without_a_reader_nothing_is_read():
    assert NoReader().related() == Related()
    assert NoReader().features(World().observed(SPLIT)) == set()
    assert NoReader().gateways_and_pods(World().observed(SPLIT), ["foo"]) == GatewaysAndPods()


@pytest.mark.parametrize("reference, is_current", [
    ({"name": "removed"}, True), ({"name": "gateway", "namespace": "other"}, True),
    ({"name": "gateway", "kind": "Service"}, True),
    ({"name": "gateway", "namespace": NAMESPACE, "kind": "Gateway"}, False)])
def test_report_of_a_removed_gateway_is_ignored(reference, is_current):
    item = route(generation=5)
    item["status"]["parents"] = [{**parent(3), "parentRef": reference}]
    assert Route.from_api(item).is_current is is_current


@pytest.mark.parametrize("spec, references, is_current", [
    ({"sectionName": "https"}, [{"sectionName": "https"}, {"sectionName": "http"}], True),
    ({"port": 443}, [{"port": 443}, {"port": 80}], True),
    ({}, [{}, {"sectionName": "http"}], True),
    ({"sectionName": "https"}, [{"sectionName": "https"}, {"sectionName": "https"}], True),
    # A controller reports without the port.
    ({"port": 443}, [{"name": "other"}, {}], False)])
def test_outdated_report_of_a_removed_section_is_ignored(spec, references, is_current):
    item = route(generation=5)
    item["spec"]["parentRefs"] = [{"name": "gateway", **spec}]
    item["status"]["parents"] = [
        {**parent(generation), "parentRef": {"name": "gateway", **reference}}
        for generation, reference in zip((5, 3), references, strict=True)]
    assert Route.from_api(item).is_current is is_current


@pytest.mark.parametrize("generations, is_current", [
    # The report of a removed controller has no generation, or an earlier one.
    ((3, 5), True), ((None, 5), True), ((4, 3), False), ((None, 4), False), ((None, None), True)])
def test_newest_of_the_reports_about_one_parent_counts(generations, is_current):
    item = route(generation=5)
    item["status"]["parents"] = [{**parent(generation), "controllerName": f"example.com/{index}"}
                                 for index, generation in enumerate(generations)]
    assert Route.from_api(item).is_current is is_current
    assert Route.from_api({**item, "status": {}}).is_current


def test_each_of_several_reports_about_the_same_generation_counts():
    item = route(generation=5)
    item["status"]["parents"] = [parent(5), parent(5, Accepted="False"), parent(4)]
    assert [bool(report.problems) for report in Route.from_api(item).parents] == [False, True]


@pytest.mark.parametrize("value, is_current", [("All", False), ("None", True)])
def test_report_of_a_default_gateway_counts(value, is_current):
    item = route(generation=5)
    item["spec"]["useDefaultGateways"] = value
    item["status"]["parents"] = [parent(5), {**parent(3), "parentRef": {"name": "default"}}]
    assert Route.from_api(item).is_current is is_current

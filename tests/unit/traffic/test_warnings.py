# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check the warnings that a task gives before it begins a split."""

from __future__ import annotations

import dataclasses
import json
import shlex

import pytest
from forged import HOSTILE_TEXTS
from traffic_objects import (
    BEFORE_UPDATE,
    MATCHING,
    MIRRORING,
    NAMESPACE,
    RESTORE,
    SPLIT,
    VERSIONS,
    ZERO_SHARE,
    World,
    backend,
    rule,
    run,
    service,
)

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import gitops
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.fields import (
    MAX_IN_COMMAND,
    MAX_LISTED,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import is_name
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import warnings
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.related import (
    MIRROR_SHARE_FEATURE,
    RESOURCES,
    Related,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share

MIRROR = {"type": "RequestMirror", "requestMirror": {"backendRef": backend("foo")}}
SESSIONS = {"sessionPersistence": {"sessionName": "s"}}


def item_named(name, **spec):
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}


def related(**items):
    """Return a Related with these items, given as kind=object."""
    resources = {resource.kind: resource for resource in RESOURCES}
    return Related(tuple((resources[kind], item) for kind, item in items.items()))


def warnings_of(world=None, objects=None, request=SPLIT):
    world = world or World()
    return warnings.warnings(request, world.observed(request), objects or Related())


INGRESS = item_named("web", rules=[{"http": {"paths": [
    {"backend": {"service": {"name": "foo"}}}]}}])
DESTINATION = {"destination": {"host": "foo.shop.svc.cluster.local"}}


OBJECTS_NAMING_THE_SERVICE = [
    ("HTTPRoute", item_named("other", rules=[rule(backend("foo"))]),
     "the HTTPRoute other also sends requests to foo: these are not split, and reach all pods"),
    ("GRPCRoute", item_named("edge", rules=[rule(backend("foo"))]),
     "the GRPCRoute edge also sends"),
    ("Ingress", INGRESS, "the Ingress web also sends requests to foo"),
    ("Ingress", item_named("all", defaultBackend={"service": {"name": "foo"}}), "the Ingress all"),
    ("HTTPProxy", item_named("proxy", routes=[{"services": [{"name": "foo"}]}]), "HTTPProxy proxy"),
    ("VirtualService", item_named("mesh", http=[{"route": [DESTINATION]}]),
     "the mesh does not read the HTTPRoute edge, so these requests are not split"),
    ("DestinationRule", item_named("tls", host="foo"),
     "the DestinationRule tls applies to foo, but not to the two Services of the split"),
    ("DestinationRule", item_named("tls", host="foo.shop"),
     "the DestinationRule tls applies to foo"),
]


@pytest.mark.parametrize("kind, item, sentence", OBJECTS_NAMING_THE_SERVICE)
def test_warning_about_an_object_that_names_the_service(kind, item, sentence):
    (warning,) = warnings_of(objects=related(**{kind: item}))
    assert sentence in warning


@pytest.mark.parametrize("kind, item", [row[:2] for row in OBJECTS_NAMING_THE_SERVICE])
def test_many_objects_cause_few_warnings(kind, item):
    (resource,) = (resource for resource in RESOURCES if resource.kind == kind)
    items = [{**item, "metadata": {"name": f"web-{number}"}} for number in range(3000)]

    sentences = warnings_of(objects=Related(tuple((resource, item) for item in items)))

    assert [f" web-{number} " in sentence for number, sentence in enumerate(sentences)] == [
        *[True] * MAX_LISTED, False]
    assert sentences[-1] == "and 2995 more of this kind"


@pytest.mark.parametrize("fields", [
    {"filters": [MIRROR]}, SESSIONS, {"name": "main"}], ids=["mirrors", "sessions", "names"])
def test_many_rules_and_annotations_cause_few_warnings(fields):
    annotations = {f"haproxy.org/{number}": "" for number in range(3000)}
    world = World(*[rule(backend("foo"), path=f"/{number}", **fields) for number in range(3000)],
                  services=[service(metadata={"annotations": annotations})])

    sentences = warnings_of(world, request=MATCHING)

    assert len(sentences) == 2 * (MAX_LISTED + 1)
    assert sentences.count("and 2995 more of this kind") == 2


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=lambda text: f"{text[:20]!a}{hash(text)}")
def test_hostile_text_of_a_tls_policy_is_in_no_command(text):
    target = {"group": text, "kind": "Service", "name": "foo", "sectionName": text, "field": text}

    with pytest.raises(RolloutError, match="applies to foo, but not to foo-") as error:
        refuse_missing_policies(related(BackendTLSPolicy=item_named("tls", targetRefs=[target])))

    (command,) = error.value.commands
    assert command.isprintable() and len(command) < 1000
    *words, patch = shlex.split(command)
    assert shlex.join(words) == (
        "kubectl -n shop patch backendtlspolicies tls --type=json -p")
    for operation in json.loads(patch):
        name, section = (operation["value"].pop(key, "") for key in ("name", "sectionName"))
        assert name.startswith("foo-") and (not section or (section == text and is_name(text)))
        assert operation == {"op": "add", "path": "/spec/targetRefs/-",
                             "value": {"group": "", "kind": "Service"}}


def test_command_for_a_tls_policy_with_many_targets_is_short():
    """After the commands, the task shows the commands for the next targets."""
    targets = {policy: [{"group": "", "kind": "Service", "name": "foo", "sectionName": f"{port}"}
                        for port in range(60)] for policy in "ab"}
    resource = next(resource for resource in RESOURCES if resource.kind == warnings.TLS_POLICY)

    def objects():
        return Related(tuple((resource, item_named(policy, targetRefs=items))
                             for policy, items in targets.items()))

    for _task in range(3):
        with pytest.raises(RolloutError) as error:
            refuse_missing_policies(objects())
        for command in map(shlex.split, error.value.commands):
            added_targets = [operation["value"] for operation in json.loads(command[-1])]
            assert len(added_targets) <= MAX_IN_COMMAND
            targets[command[-4]] += added_targets
    refuse_missing_policies(objects())


def test_tls_policy_has_to_name_the_services_of_the_split():
    world = World()
    run(world, SPLIT)
    names = [name for name in world.services if name.startswith("foo-")]
    targets = [{"group": "", "kind": "Service", "name": name} for name in ("foo", *names)]
    all_targets, two_targets, only_foo = (
        related(BackendTLSPolicy=item_named("tls", targetRefs=items))
        for items in (targets, targets[:2], targets[:1]))
    assert len(names) == 2
    assert warnings_of(objects=all_targets) == warnings_of(objects=two_targets) == []
    refuse_missing_policies(all_targets)
    for objects, missing in ((two_targets, names[1:]), (only_foo, names)):
        with pytest.raises(RolloutError, match="the BackendTLSPolicy tls applies to foo, but not "
                           f"to {' and '.join(missing)}") as error:
            refuse_missing_policies(objects)
        program, *words, patch = shlex.split(error.value.commands[0])
        assert (program, words[-3:]) == ("kubectl", ["tls", "--type=json", "-p"])
        operations = json.loads(patch)
        assert [operation["value"] for operation in operations] == targets[-len(missing):]
        assert {(operation["op"], operation["path"]) for operation in operations} == {
            ("add", "/spec/targetRefs/-")}


@pytest.mark.parametrize("policies", [
    {"a": ["https"], "b": ["grpcs"]}, {"a": ["https", "grpcs"]}, {"a": [""], "b": ["grpcs"]},
], ids=["a policy for each port", "a policy for two ports", "a policy for all ports"])
def test_each_tls_policy_of_each_port_has_to_name_the_services_of_the_split(policies):
    """After each suggested command but the last, the task is refused again."""
    targets = {policy: [{"group": "", "kind": "Service", "name": "foo",
                         **({"sectionName": port} if port else {})} for port in ports]
               for policy, ports in policies.items()}
    targets["a"].insert(0, {"group": "x", "kind": "Other", "name": "foo"})

    def refuse():
        refuse_missing_policies(Related(tuple(
            (resource, item_named(policy, targetRefs=items)) for resource in RESOURCES
            if resource.kind == warnings.TLS_POLICY for policy, items in targets.items())))

    with pytest.raises(RolloutError, match="the BackendTLSPolicy a applies to foo") as error:
        refuse()
    commands = [shlex.split(line) for line in error.value.commands if "patch" in line]
    assert [command[-4] for command in commands] == [*policies]
    operations = [(command[-4], entry["value"]) for command in commands[::-1]
                  for entry in json.loads(command[-1])]
    for policy, target in operations:
        with pytest.raises(RolloutError, match="applies to foo, but not to foo-"):
            refuse()
        targets[policy].append(target)
    refuse()


def test_tls_policy_for_all_ports_of_the_services_of_the_split_is_sufficient():
    world = World()
    run(world, SPLIT)
    names = [name for name in world.services if name.startswith("foo-")]
    targets = [{"kind": "Service", "name": name} for name in names]
    targets.append({"kind": "Service", "name": "foo", "sectionName": "https"})
    refuse_missing_policies(related(BackendTLSPolicy=item_named("tls", targetRefs=targets)))


def test_policy_is_needed_for_each_service_that_a_task_adds():
    world = World(versions=BEFORE_UPDATE)
    targets = [{"group": "", "kind": "Service", "name": "foo"}]
    only_foo = related(BackendTLSPolicy=item_named("tls", targetRefs=targets))
    with pytest.raises(RolloutError, match="applies to foo, but not to foo-"):
        refuse_missing_policies(only_foo, world, ZERO_SHARE)
    run(world, ZERO_SHARE)
    refuse_missing_policies(only_foo, world, ZERO_SHARE)
    world.versions = VERSIONS
    refuse_missing_policies(only_foo, world, ZERO_SHARE)
    with pytest.raises(RolloutError, match="applies to foo, but not to foo-"):
        refuse_missing_policies(only_foo, world, SPLIT)


def refuse_missing_policies(objects, world=None, request=SPLIT):
    warnings.refuse_missing_policies(request, (world or World()).observed(request), objects)


@pytest.mark.parametrize("kind, item", [
    ("HTTPRoute", item_named("edge", rules=[rule(backend("foo"))])),
    ("HTTPRoute", item_named("other", rules=[rule(backend("foo", namespace="other"))])),
    ("Ingress", item_named("web", rules=[{}])),
    ("VirtualService",
     item_named("mesh", http=[{"route": [{"destination": {"host": "foo.other"}}]}])),
    ("DestinationRule", item_named("tls", host="foobar")),
    ("BackendTLSPolicy", item_named("tls", targetRefs=[{"kind": "Other", "name": "foo"}])),
])
def test_no_warning_about_the_route_itself_or_another_service(kind, item):
    assert warnings_of(objects=related(**{kind: item})) == []


@pytest.mark.parametrize("rules, request_, sentences", [
    ([rule(backend("bar"), filters=[MIRROR]), rule(backend("foo"))], SPLIT,
     ["rule 1 mirrors requests to foo: the copies are not split, and reach all pods"]),
    ([rule(backend("bar"), **SESSIONS), rule(backend("foo"), **SESSIONS)], SPLIT,
     ["rule 2 has session persistence: clients stay with their version, so the share applies "
      "only to new sessions"]),
    ([rule(backend("foo"), name="main")], MATCHING,
     ["rule 1 has the name main: a policy for this name does not apply to the requests that "
      "the option match selects"]),
    ([rule(backend("foo"), name="main")], SPLIT, []),
])
def test_warning_about_a_rule(rules, request_, sentences):
    assert warnings_of(World(*rules), request=request_) == sentences


@pytest.mark.parametrize("features, share, is_warned", [
    ((), Share(10, 100), True), ({MIRROR_SHARE_FEATURE}, Share(10, 100), False),
    ((), Share(100, 100), False), ({"HTTPRouteRequestMirror"}, Share(1, 1000), True)])
def test_warning_about_a_share_that_a_gateway_may_ignore(features, share, is_warned):
    mirroring = dataclasses.replace(MIRRORING, mirror=share)
    sentences = warnings_of(objects=Related(features=frozenset(features)), request=mirroring)
    assert sentences == [f"the GatewayClass does not report the feature {MIRROR_SHARE_FEATURE}: a "
                         f"Gateway without it ignores the share {share}, and copies all requests"
                         ] * is_warned


def test_warning_about_annotations_for_a_proxy():
    annotated_service = service(metadata={"annotations": {
        "projectcontour.io/upstream-protocol.h2c": "80", "example.com/other": ""}})
    assert warnings_of(World(services=[annotated_service])) == [
        "the annotation projectcontour.io/upstream-protocol.h2c of foo does not apply to the two "
        "Services of the split"]


def test_warning_about_gitops_tools_names_the_command():
    world = World()
    world.route["metadata"] |= {
        "annotations": {gitops.ARGO_TRACKING: "web:gateway.networking.k8s.io/HTTPRoute:shop/edge"},
        "managedFields": [{"manager": "kustomize-controller"}]}
    request = dataclasses.replace(SPLIT, connection={"context": "eu"})
    argo, flux = warnings_of(world, request=request)
    assert argo == ("Argo CD (application web) manages the HTTPRoute edge: at its next sync (with "
                    "self-heal, within seconds) it resets the rules to those of the manifest. "
                    "Before the split, stop automatic syncs: argocd app set web --sync-policy none")
    assert flux.startswith("Flux manages the HTTPRoute edge: at its next reconciliation")
    assert flux.endswith("exclude edge from the Kustomization: kubectl --context=eu -n shop "
                         "annotate httproute edge kustomize.toolkit.fluxcd.io/reconcile=disabled")


def test_no_warning_about_a_chart_or_a_restoration():
    world = World()
    world.route["metadata"]["labels"] = {gitops.MANAGED_BY_LABEL: "Helm"}
    world.annotate({gitops.HELM_RELEASE[0]: "web", gitops.HELM_RELEASE[1]: "shop"})
    assert warnings_of(world) == []
    run(world, SPLIT)
    assert warnings_of(world, related(Ingress=INGRESS), RESTORE) == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Validate the options of the module traffic_split, and the record of a split."""

from __future__ import annotations

import json

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from forged import KEYS
from traffic_objects import MATCH

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster import connection
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC as UPDATE_SPEC,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import (
    TRAFFIC_SELECTOR,
    TRAFFIC_SPLIT,
    Record,
    parse_record,
    parse_selector,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.request import (
    ARGUMENT_SPEC,
    parse_share,
    parse_traffic,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import Share

HEADER = {"name": "x-tester", "value": "yes"}


def parse(command_options=None, **options):
    validation = ArgumentSpecValidator(ARGUMENT_SPEC).validate(
        {"name": "foo", "route": "edge", "namespace": "shop", **options})
    assert not validation.error_messages
    return parse_traffic({**validation.validated_parameters, "default_namespace": "default"},
                         command_options or {})


def test_options_become_a_request():
    request = parse(weight="1%", match=[{"headers": [HEADER]}], timeout="2m", service="foo")

    assert request.share == Share(1, 100) and request.match == MATCH
    assert (request.timeout, request.service, request.route_kind) == (120, "foo", "HTTPRoute")
    assert parse(match=[{"headers": [HEADER]}]).share == Share(0, 100)
    mirroring = parse(mirror="0.5%")
    assert (mirroring.share, mirroring.mirror) == (Share(0, 100), Share(5, 1000))
    assert parse(weight="1", mirror="0").mirror is None
    restoration = parse(state="restored", weight="1", match=[{"headers": [HEADER]}], mirror="1")
    assert restoration.restores and restoration.match == () and restoration.mirror is None


@pytest.mark.parametrize("weight, share", [
    ("0", (0, 100)), ("1", (1, 100)), ("10%", (10, 100)), ("100 %", (100, 100)),
    ("0.5", (5, 1000)), ("12.50%", (125, 1000)), ("0.001", (1, 100000))])
def test_weight_is_a_percentage(weight, share):
    assert parse_share(weight) == share


@pytest.mark.parametrize("options, error", [
    ({}, "nothing to split: give weight, match or mirror"),
    ({"mirror": "0"}, "nothing to split: give weight, match or mirror"),
    ({"mirror": "half"}, "mirror must be a percentage such as 1, 0.5 or 10%, not half"),
    ({"mirror": "101"}, "mirror 101 is more than 100%"),
    ({"mirror": "1", "route_kind": "GRPCRoute"}, "only an HTTPRoute can mirror requests"),
    ({"weight": "a"}, "weight must be a percentage such as 1, 0.5 or 10%, not a"),
    ({"weight": "-1"}, "weight must be a percentage such as 1, 0.5 or 10%, not -1"),
    ({"weight": "0.0001"}, "must be a percentage"),
    ({"weight": "100.1"}, "weight 100.1 is more than 100%"),
    ({"weight": "1", "route": "../x"}, r"route \.\./x is not a valid name"),
    ({"weight": "1", "service": "a b"}, "service a b is not a valid name"),
    ({"match": [{"headers": []}]}, "an entry of match has neither headers nor query_params"),
    ({"match": [{"headers": [HEADER]}] * 65}, "match has too many entries"),
    ({"match": [{"headers": [{**HEADER, "value": "x" * 5000}]}]}, "or a text is too long"),
    ({"match": [{"query_params": [HEADER]}], "route_kind": "GRPCRoute"},
     "a GRPCRoute has no query parameters"),
    ({"weight": "0", "route": None}, "give route, or service for blue/green without a route"),
    ({"weight": "1", "route": None, "service": "foo"}, "a weight of 1% needs a route"),
    ({"mirror": "1", "route": None, "service": "foo"}, "match and mirror need a route"),
    ({"match": [{"headers": [HEADER]}], "route": None, "service": "foo"}, "need a route"),
    ({"weight": "1", "timeout": "soon"}, "timeout 'soon' is neither a number of seconds"),
    *(({"weight": "0", "update": {"image": "myimage:v2", option: "x"}},
       f"update cannot contain {option}: give options of rolling_update")
      for option in (*connection.ARGUMENT_SPEC, "cert_file", "key_file", "nonsense")),
    ({"weight": "0", "update": {1: 2, "host": "x"}}, "update cannot contain 1, host: give"),
])
def test_invalid_options_are_refused(options, error):
    with pytest.raises(RolloutError, match=error):
        parse(**options)


@pytest.mark.parametrize("option", [*UPDATE_SPEC, "wait_timeout", "resource_definition"])
def test_each_option_of_an_update_is_possible_in_update(option):
    assert parse(weight="0", update={option: "x"}).excludes_new_pods


def test_service_without_a_route_is_split_by_its_selector():
    for weight in ("0%", "100%"):
        request = parse(weight=weight, route=None, service="foo", deployment_label_key="version")
        assert request.changes_selector
        assert (request.route, request.route_kind) == ("foo", "Service")
        assert request.restore_command.endswith(
            "'name=foo service=foo namespace=shop deployment_label_key=version state=restored'")
    assert not parse(weight="1", service="foo").changes_selector


@pytest.mark.parametrize("text", KEYS[TRAFFIC_SELECTOR],
                         ids=lambda text: f"{text[:20]!a}{hash(text)}")
def test_forged_selector_is_a_mapping_of_labels_or_ignored(text):
    selector = parse_selector(text)

    assert selector is None or all(isinstance(value, str) for value in selector.values())


def test_command_restores_the_route_of_the_task():
    assert parse(weight="1", kind="Deployment", route_kind="GRPCRoute").restore_command == (
        "ansible localhost -m baton.kubernetes.traffic_split -a 'name=foo kind=Deployment "
        "route=edge namespace=shop route_kind=GRPCRoute state=restored'")
    assert parse({"kubeconfig": None}, weight="1").restore_command == (
        "run the same task again with state=restored")


def test_record_is_stored_and_parsed():
    record = Record("foo", "12", True, (3, 1), MATCH)

    assert parse_record(record.text) == record


@pytest.mark.parametrize("text", [None, 1, *KEYS[TRAFFIC_SPLIT]],
                         ids=lambda text: f"{str(text)[:20]!a}{hash(str(text))}")
def test_forged_record_is_valid_or_ignored(text):
    record = parse_record(text)

    assert record is None or parse_record(record.text) == record
    if record:
        assert len(record.weights) <= 16 and all(0 < item <= 10**6 for item in record.weights)


def test_record_with_another_field_is_ignored():
    document = json.loads(Record("foo", "1", match=MATCH).text)

    assert parse_record(json.dumps(document)) and not parse_record(json.dumps({**document, "x": 1}))
    assert not parse_record(json.dumps({**document, "match": [{"path": []}]}))

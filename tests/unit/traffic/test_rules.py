# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Split the rules of a route, and restore them."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traffic_objects import MATCH, NAMESPACE, backend, rule

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic import rules
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.record import Record
from ansible_collections.baton.kubernetes.plugins.module_utils.traffic.rules import (
    ServicePair,
    Share,
)

#: The Services of the old and of the new pods.
PAIR = ServicePair("foo-old", "foo-new")
OTHERS = st.sampled_from(["bar", "foo-1", "foobar"])
FOREIGN_MIRROR = {"type": "RequestMirror", "requestMirror": {
    "backendRef": {"group": "", "kind": "Service", "name": "bar", "port": 80}, "percent": 10}}
FIELDS = st.sampled_from([{}, {"filters": [{"type": "URLRewrite"}]}, {"filters": [FOREIGN_MIRROR]},
                          {"timeouts": {"request": "1s"}}, {"name": "main"}])
RULES = st.lists(st.builds(
    lambda name, weight, path, fields: rule(backend(name, weight), path=path, **fields),
    st.one_of(st.just("foo"), OTHERS), st.integers(1, 1_000_000), st.sampled_from("ab"), FIELDS),
    max_size=5)
ONE_PERCENT = Share(1, 100)
SHARES = st.builds(Share, st.integers(0, 100), st.just(100))
MIRRORS = st.one_of(st.none(), st.builds(Share, st.integers(1, 1000), st.just(1000)))
MATCHES = st.lists(st.sampled_from([*MATCH, {"queryParams": [
    {"name": "v", "type": "Exact", "value": "2"}]}]), max_size=2, unique_by=str)


def split_rules(plain, share=ONE_PERCENT, match=(), mirror=None):
    return rules.split(plain, "foo", NAMESPACE, PAIR, share, match, mirror)


def record(plain, match=()):
    return Record("foo", "1", weights=rules.weights_of(plain, "foo", NAMESPACE), match=tuple(match))


def restored_rules(split, stored=None):
    """Return the rules after a restoration. stored: the record, None if lost."""
    return rules.without_split(split, "foo", NAMESPACE, PAIR, stored)


@given(RULES, SHARES, MATCHES, MIRRORS)
def test_restoration_returns_the_rules_before_the_split(plain, share, match, mirror):
    before = copy.deepcopy(plain)
    split = split_rules(plain, share, match, mirror)

    assert restored_rules(split, record(plain, match)) == plain == before
    assert restored_rules(plain, record(plain, match)) == plain
    split_again = split_rules(restored_rules(split, record(plain, match)), Share(7, 1000), match)
    assert split_again == split_rules(plain, Share(7, 1000), match)


@given(RULES, MATCHES)
def test_only_backends_of_the_service_change(plain, match):
    split = split_rules(plain, match=match)
    other_rules = [entry for entry in plain if "foo" not in rules.services_of([entry], NAMESPACE)]

    assert [entry for entry in split
            if not {*PAIR} & {*rules.services_of([entry], NAMESPACE)}] == other_rules
    assert not any(rules.weights_of(split, "foo", NAMESPACE))
    assert all({**entry["backendRefs"][0], "name": "", "weight": 0}
               == {**item, "name": "", "weight": 0}
               for entry in split for item in entry["backendRefs"])


@given(RULES, MATCHES)
def test_restoration_without_a_record_gives_the_service_weight_1(plain, match):
    names = rules.services_of(restored_rules(split_rules(plain, match=match)), NAMESPACE)

    assert not {*PAIR} & {*names}
    assert set(rules.weights_of(restored_rules(split_rules(plain, match=match)), "foo",
                                NAMESPACE)) <= {1}


def test_weights_and_matches_of_a_split():
    (for_testers, for_all) = split_rules([rule(backend("foo", 3), name="main", filters=[1])],
                                         Share(125, 1000), MATCH)

    assert [(item["name"], item["weight"]) for item in for_all["backendRefs"]] == [
        ("foo", 0), ("foo-old", 875), ("foo-new", 125)]
    assert for_all["name"] == "main" and for_all["filters"] == for_testers["filters"] == [1]
    assert for_testers["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}, **MATCH[0]}]
    assert [(item["name"], item["weight"])
            for item in for_testers["backendRefs"]] == [("foo-new", 1)]
    assert "name" not in for_testers


@pytest.mark.parametrize("mirror, fields", [
    (Share(10, 100), {"percent": 10}), (Share(100, 1000), {"percent": 10}), (Share(100, 100), {}),
    (Share(5, 1000), {"fraction": {"numerator": 5, "denominator": 1000}}),
])
def test_mirror_copies_a_share_to_the_new_pods(mirror, fields):
    plain = [rule(backend("foo", 3), filters=[FOREIGN_MIRROR]), rule(backend("bar"))]
    for_testers, for_all, for_bar = split_rules(plain, match=MATCH, mirror=mirror)

    assert for_all["filters"] == [FOREIGN_MIRROR, {"type": "RequestMirror", "requestMirror": {
        "backendRef": {"group": "", "kind": "Service", "name": "foo-new", "port": 80}, **fields}}]
    assert for_testers["filters"] == [FOREIGN_MIRROR] and "filters" not in for_bar
    assert rules.describe([for_all], PAIR, NAMESPACE) == (
        f"foo-new 1, foo-old 99, mirror foo-new {mirror}")
    assert (rules.has_mirror_share([for_all], mirror)
            and restored_rules([for_all], record(plain)) == plain[:1])


def test_mirror_share_dropped_by_the_api_server_is_detected():
    """An API server with an older Gateway API drops the unknown field percent."""
    mirror = Share(20, 100)
    (first, second) = rules.mirror_probe([rule(backend("foo")), rule(backend("bar"))], mirror)
    assert rules.has_mirror_share([first], mirror) and "filters" not in second
    del first["filters"][0]["requestMirror"]["percent"]
    assert not rules.has_mirror_share([first], mirror)


def test_foreign_filter_that_mirrors_to_a_service_of_the_split_is_removed():
    """A route is invalid if a filter refers to a missing Service."""
    mirror = {**FOREIGN_MIRROR, "requestMirror": {"backendRef": backend("foo-new")}}
    plain = [rule(backend("bar"), filters=[FOREIGN_MIRROR])]

    assert restored_rules([{**plain[0], "filters": [FOREIGN_MIRROR, mirror]}]) == plain
    assert rules.mirror_targets([{**plain[0], "filters": [mirror]}], NAMESPACE) == ["foo-new"]


@given(RULES, SHARES, MATCHES, MIRRORS)
def test_backends_are_added_and_removed_with_weight_0(plain, share, match, mirror):
    """Envoy answers 503 as long as it does not know a backend."""
    prepared_rules = rules.add_pair(plain, "foo", NAMESPACE, PAIR)
    split = split_rules(plain, share, match, mirror)
    has_foo = "foo" in rules.services_of(plain, NAMESPACE)

    assert restored_rules(prepared_rules, record(plain)) == plain
    assert not rules.has_requests(prepared_rules, PAIR, NAMESPACE)
    assert rules.has_requests(split, PAIR, NAMESPACE) == has_foo
    assert rules.without_split(split, "foo", NAMESPACE, PAIR, record(plain, match),
                               retained=PAIR) == prepared_rules
    for before, after in ((prepared_rules, plain), (split, prepared_rules)):
        assert set(rules.services_of(after, NAMESPACE)) <= set(rules.services_of(before, NAMESPACE))


@given(RULES, SHARES, MIRRORS)
def test_backends_of_other_clients_are_kept_if_the_old_pods_get_all_requests(plain, share, mirror):
    added_rule, added_backend = rule(backend("foo", 5), backend("bar", 5)), backend("foobar", 9)
    split = [added_rule, *(
        {**entry, "backendRefs": [added_backend, *entry["backendRefs"]]}
        for entry in split_rules(plain, share, mirror=mirror))]
    stored = record(plain)

    result = rules.send_to_old(split, "foo", NAMESPACE, PAIR, stored, PAIR.old)
    assert rules.send_to_old(result, "foo", NAMESPACE, PAIR, stored, PAIR.old) == result
    assert not rules.has_requests(result, [PAIR.new], NAMESPACE)
    assert [sum(item["weight"] for item in entry["backendRefs"]) for entry in result] == [
        sum(item["weight"] for item in entry["backendRefs"]) for entry in split]
    assert restored_rules(result, stored) == restored_rules(split, stored) == [added_rule, *(
        {**entry, "backendRefs": [added_backend, *entry["backendRefs"]]} for entry in plain)]


@given(RULES, SHARES, MATCHES)
def test_old_pods_get_the_requests_of_the_rules_for_match(plain, share, match):
    split = split_rules(plain, share, match)

    def sent_to_old(stored):
        return rules.send_to_old(split, "foo", NAMESPACE, PAIR, stored, PAIR.old)

    assert sent_to_old(record(plain, match)) == split_rules(plain, Share(0, 100))
    # Without the record, the rules stay.
    assert len(sent_to_old(None)) == len(split)
    assert not rules.has_requests(sent_to_old(None), [PAIR.new], NAMESPACE)


def test_rule_that_another_client_has_changed_is_kept():
    plain = [rule(backend("foo", 3))]
    split = split_rules(plain, match=MATCH)
    split[0]["matches"][0]["path"] = {"type": "Exact", "value": "/other"}

    (edited_rule, other_rule) = restored_rules(split, record(plain, MATCH))
    assert edited_rule["matches"] == split[0]["matches"]
    assert edited_rule["backendRefs"] == [backend("foo", 1)]
    assert other_rule["backendRefs"] == [backend("foo", 1)]


def test_backend_that_another_client_has_added_is_kept():
    plain = [rule(backend("foo", 3))]
    split = split_rules(plain)
    split[0]["backendRefs"].append(backend("bar", 9))

    assert restored_rules(split, record(plain)) == [rule(backend("foo", 3), backend("bar", 9))]


def test_recorded_weight_is_not_restored_in_a_rule_of_another_client():
    plain = [rule(backend("foo", 3)), rule(backend("foo", 5), path="/two")]
    other_rule = rule(backend("foo", 0), backend("bar"), path="/three")
    split = [*split_rules(plain)[:1], other_rule]

    assert restored_rules(split, record(plain)) == [rule(backend("foo", 1)), other_rule]
    split = [other_rule, *split_rules(plain)]
    assert restored_rules(split, record(plain)) == [other_rule, *plain]


def test_services_of_other_kinds_and_namespaces_do_not_belong_to_the_split():
    others = [backend("foo", kind="Other"), backend("foo", group="x"),
              backend("foo", namespace="other")]

    assert rules.services_of([rule(*others)], NAMESPACE) == []
    assert split_rules([rule(item) for item in others]) == [rule(item) for item in others]
    assert rules.services_of([rule(backend("foo", namespace=NAMESPACE))], NAMESPACE) == ["foo"]


@pytest.mark.parametrize("backends, error", [
    ([backend("foo"), backend("bar")], "rule 2 sends requests to 2 backends"),
    ([backend("foo", 0)], "rule 2 sends no requests to foo: its weight is 0"),
])
def test_rules_that_cannot_be_split_are_refused(backends, error):
    with pytest.raises(RolloutError, match=error):
        rules.refuse_unsplittable_rules([rule(backend("foo")), rule(*backends)], "foo", NAMESPACE,
                                        "the route")


@pytest.mark.parametrize("plain, match, error", [
    ([rule(backend("foo"), path=str(number)) for number in range(9)], MATCH,
     "the route would have 18 rules, and Gateway API allows 16"),
    ([{**rule(backend("foo")), "matches": [{}] * 33}], MATCH * 2,
     "a rule would have 66 matches, and Gateway API allows 64"),
    ([{**rule(backend("foo")), "matches": [{}] * 32}] * 2 + [rule(backend("bar"))], MATCH,
     "the route would have 129 matches, and Gateway API allows 128"),
    ([{**rule(backend("foo")), "matches": [{"headers": [{"name": "X-Tester"}]}]}], MATCH,
     "the route already has a condition for a header or query parameter in match"),
])
def test_rules_beyond_the_limits_of_gateway_api_are_refused(plain, match, error):
    with pytest.raises(RolloutError, match=error):
        rules.refuse_exceeded_limits(split_rules(plain, match=match), "the route")
    rules.refuse_exceeded_limits(split_rules(plain), "the route")


def test_rules_that_cannot_be_mirrored_are_refused():
    to_foo = {**FOREIGN_MIRROR, "requestMirror": {"backendRef": backend("foo")}}
    plain = [rule(backend("bar"), filters=[to_foo]), rule(backend("foo"), filters=[FOREIGN_MIRROR])]
    rules.refuse_mirrors(plain, "foo", NAMESPACE, "the route")
    with pytest.raises(RolloutError, match="rule 2 already mirrors requests to foo"):
        rules.refuse_mirrors([plain[0], rule(backend("foo"), filters=[to_foo])], "foo", NAMESPACE,
                             "the route")
    full = split_rules([rule(backend("foo"), filters=[FOREIGN_MIRROR] * 16)], mirror=ONE_PERCENT)
    with pytest.raises(RolloutError, match="a rule would have 17 filters, and Gateway API allows"):
        rules.refuse_exceeded_limits(full, "the route")


def test_share_is_shown_in_percent():
    assert list(map(str, (Share(1, 100), Share(125, 1000), Share(100, 100)))) == [
        "1%", "12.5%", "100%"]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the hashes, the deployment labels and the names of successors."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from builders import UPDATE, rc, template
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.observed import (
    expected_successor,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import State
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
                    max_leaves=10)
LABEL_VALUES = st.from_regex(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", fullmatch=True)
#: Controller names with dots and dashes, also where a long name is cut.
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,3}",
                  fullmatch=True),
    st.builds(lambda head, middle, tail: f"{'a' * head}{middle}{'b' * tail}"[:253].rstrip("-."),
              st.integers(1, 250), st.sampled_from(["-", ".", "--", "-x-", ".x.", "------------"]),
              st.integers(1, 250)),
)


def successor_of(primary, request=UPDATE):
    """Return (name, deployment label) of the successor."""
    return expected_successor(request, Controller.from_api(primary))


def reversed_keys(value):
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(element) for element in value] if isinstance(value, list) else value


@given(JSON)
def test_hash_ignores_the_order_of_keys(value):
    assert identity.digest(value) == identity.digest(reversed_keys(value))


@given(JSON)
def test_canonical_text_is_json(value):
    assert json.loads(identity.canonical(value)) == value


@given(JSON, JSON)
def test_different_values_have_different_hashes(first, second):
    are_equal = identity.canonical(first) == identity.canonical(second)

    assert (identity.digest(first) == identity.digest(second)) == are_equal


@given(replicas=st.integers(0, 9), available=st.integers(0, 9), uid=st.text(), version=st.text(),
       label=LABEL_VALUES, annotation=st.text())
def test_name_ignores_size_status_uid_version_label_and_annotations(
        replicas, available, uid, version, label, annotation):
    primary = rc("foo", replicas, label=label, available=available,
                 annotations={"note": annotation}, uid=uid,
                 resourceVersion=version, creationTimestamp="2026-11-21T10:00:00Z")

    name, successor_label = successor_of(primary)

    assert (name, successor_label.partition("-")[0]) == (
        f"foo-{successor_label}", successor_of(rc())[1])


def test_name_ignores_an_empty_creation_timestamp():
    primary = rc()
    primary["spec"]["template"]["metadata"]["creationTimestamp"] = None

    assert successor_of(primary) == successor_of(rc())


def change_template(primary):
    primary["spec"]["template"]["spec"]["hostNetwork"] = True


def change_selector(primary):
    primary["spec"]["selector"]["tier"] = "front"


@pytest.mark.parametrize("change", [change_template, change_selector])
def test_template_and_selector_change_the_name(change):
    primary = rc()
    change(primary)

    assert successor_of(primary) != successor_of(rc())


@pytest.mark.parametrize("request_", [
    Request("foo", images={"": "myimage:v3"}),
    Request("foo", state=State.RESTARTED),
    Request("foo", template={"spec": {"hostNetwork": True}}),
    Request("foo", definition={"spec": {"template": template("myimage:v4")}}),
], ids=["image", "restarted", "template", "definition"])
def test_requested_template_changes_the_name(request_):
    assert successor_of(rc(), request_) != successor_of(rc())


@pytest.mark.parametrize("change", [
    {"images": {"web": "myimage:v2"}}, {"min_ready_seconds": 5}, {"progress_deadline": 5},
], ids=str)
def test_name_ignores_options_that_leave_the_template_unchanged(change):
    assert successor_of(rc(), dataclasses.replace(UPDATE, **change)) == successor_of(rc())


def test_next_name_does_not_change_the_label():
    assert successor_of(rc(), dataclasses.replace(UPDATE, next_name="bar")) == (
        "bar", successor_of(rc())[1])


@given(NAMES, JSON, LABEL_VALUES)
def test_names_and_labels_are_valid(name, content, used_label):
    for label in (identity.label_value(content, None), identity.label_value(content, used_label)):
        successor = identity.successor_name(name, label)

        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", label)
        assert len(successor) <= 253 and successor.endswith(f"-{label}") and successor != name
        assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", part)
                   for part in successor.split("."))


@given(JSON)
def test_label_differs_from_the_used_label_and_is_stable(content):
    used_label = identity.label_value(content, None)

    other_label = identity.label_value(content, used_label)

    assert other_label != used_label
    assert other_label == identity.label_value(content, used_label)
    assert identity.label_value(content, other_label) == used_label


@given(JSON, LABEL_VALUES)
def test_unused_label_depends_only_on_the_content(content, used_label):
    label = identity.label_value(content, None)

    assert identity.label_value(content, used_label if used_label != label else "another") == label


@pytest.mark.parametrize("name, names, suggestion", [
    ("shop-ap", ["shop-api", "shop"], "shop-api"), ("shop-aip", ["web", "shop-api"], "shop-api"),
    ("fooo", ["foo", "bar"], "foo"),
    ("foo", ["bar", "web"], ""), ("writer", ["worker"], ""), ("foo", [], ""),
])
def test_similar_name_is_suggested(name, names, suggestion):
    assert identity.did_you_mean(name, iter(names)) == (f"; did you mean {suggestion}?"
                                                        if suggestion else "")

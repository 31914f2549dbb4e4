# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Match label selectors like the API server."""

from __future__ import annotations

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.label_selectors import matches

LABELS = {"app": "foo", "tier": "web", "n": "7", "example.com/x": ""}


@pytest.mark.parametrize("selectors, expected", [
    ([], True), ([""], True), (["app=foo"], True), (["app==foo"], True), ([" app = foo "], True),
    (["app=bar"], False),
    (["app!=bar"], True), (["app!=foo"], False), (["absent!=foo"], True), (["absent=foo"], False),
    (["app"], True), (["absent"], False), (["!absent"], True), (["!app"], False),
    (["! app"], False),
    (["app in (foo, bar)"], True), (["app in (bar)"], False), (["app notin (bar,baz)"], True),
    (["app notin (foo)"], False),
    (["absent notin (foo)"], True), (["absent in (foo)"], False),
    (["app in (foo,bar),tier=web"], True),
    (["tier=web,app in (bar,baz)"], False), (["app=foo", "tier=web"], True),
    (["app=foo", "tier=db"], False),
    (["n>6"], True), (["n>7"], False), (["n<8"], True), (["app<8"], False), (["absent>1"], False),
    (["example.com/x"], True), (["example.com/x="], True), (["app="], False),
    (["app in foo"], False), (["!app=foo"], False), (["a b"], False), (["app=foo,"], False),
])
def test_labels_match(selectors, expected):
    assert matches(selectors, LABELS) is expected

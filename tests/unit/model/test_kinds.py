# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Parse the words that kubectl accepts for a kind."""

from __future__ import annotations

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import (
    KINDS,
    Module,
    State,
    kind_named,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import (
    ARGUMENT_SPEC,
    parse_kind,
    with_kinds,
)


@pytest.mark.parametrize("kind", KINDS)
def test_kind_in_any_case_and_in_the_plural(kind):
    words = (str(kind), kind.lower(), kind.upper(), kind.resource, f"{kind}s", f" {kind} ")
    assert {kind_named(word) for word in words} == {kind}


def test_short_names_of_kubectl():
    names = {word: str(kind_named(word)) for word in ("rc", "rs", "deploy", "sts", "ds", "dc")}
    assert names == {"rc": "ReplicationController", "rs": "ReplicaSet", "deploy": "Deployment",
                     "sts": "StatefulSet", "ds": "DaemonSet", "dc": "DeploymentConfig"}


@pytest.mark.parametrize("word", ["", "pod", "deployments.apps", "Deployment/foo", "rcs"])
def test_error_for_an_unknown_kind_lists_all_kinds(word):
    with pytest.raises(RolloutError, match=r"give one of ReplicationController \(rc\), "):
        parse_kind("kind", word)


def test_kinds_in_parameters_are_normalized():
    for kind in ("sts", ["sts"], ["StatefulSet", " sts "]):
        assert with_kinds({"kind": kind, "name": "foo"}) == {"kind": "StatefulSet", "name": "foo"}
    assert with_kinds({"kind": ["RC", "deploy"], "name": "foo"}) == {
        "kind": None, "name": "foo", "kinds": ["ReplicationController", "Deployment"]}
    for no_kind in (None, "", [], [""]):
        assert with_kinds({"kind": no_kind}) == {"kind": None}


def test_a_module_accepts_several_kinds_as_kubectl_does():
    validation = ArgumentSpecValidator(ARGUMENT_SPEC).validate({"kind": "deploy, sts"})

    assert with_kinds(validation.validated_parameters)["kinds"] == ["Deployment", "StatefulSet"]


@pytest.mark.parametrize("params", [
    {"kind": "rc", "api_version": "v1"}, {"kind": "deploy", "api_version": "apps/v1"},
    {"kind": ["sts", "ds"], "api_version": "apps/v1"}, {"api_version": ""},
    {"kind": "dc", "api_version": "apps.openshift.io/v1"},
])
def test_the_api_version_of_the_kind_is_accepted(params):
    assert with_kinds(params)["api_version"] == params["api_version"]


@pytest.mark.parametrize("params, what", [
    ({"kind": "Deployment", "api_version": "extensions/v1beta1"},
     "a Deployment has api_version apps/v1, not extensions/v1beta1: leave out api_version"),
    ({"kind": ["Deployment", "rc"], "api_version": "apps/v1"},
     "a ReplicationController has api_version v1, not apps/v1: leave out api_version"),
    ({"api_version": "apps/v1"}, "api_version apps/v1 does not determine the kind: set kind"),
])
def test_any_other_api_version_is_refused(params, what):
    with pytest.raises(RolloutError) as error:
        with_kinds(params)

    assert error.value.what == what


@pytest.mark.parametrize("module, word, message", [
    (Module.ROLLING_UPDATE, "dc", "a DeploymentConfig cannot be updated here: migrate it with the"),
    (Module.ROLLING_UPDATE, "job",
     r"'job' is not a kind that can be updated: give one of .* \(ds\)$"),
    (Module.MIGRATION, "sts", "'sts' is not a kind that can be migrated: give one of "
                              r"ReplicationController \(rc\), DeploymentConfig \(dc\)$"),
])
def test_a_kind_of_another_module_is_refused(module, word, message):
    for params in ({"kind": word}, {"kind": ["rc", word]}):
        with pytest.raises(RolloutError, match=message):
            with_kinds(params, module)


def test_each_kind_has_a_module():
    assert {kind for module in Module for kind in module.kinds} == set(KINDS)
    assert with_kinds({"kind": "dc"})["kind"] == "DeploymentConfig"


@pytest.mark.parametrize("module, state, expected", [
    (Module.ROLLING_UPDATE, State.MIGRATED, Module.MIGRATION),
    (Module.ROLLING_UPDATE, State.ROLLED_BACK, Module.ROLLING_UPDATE),
    (Module.MIGRATION, State.ROLLED_BACK, Module.MIGRATION),
    (Module.MIGRATION, State.UPDATED, Module.ROLLING_UPDATE),
])
def test_another_state_may_need_another_module(module, state, expected):
    assert module.module_for(state) is expected

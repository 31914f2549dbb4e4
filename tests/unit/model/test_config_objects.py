# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find ConfigMaps and Secrets in options and templates, and compute checksums of their data."""

from __future__ import annotations

import base64
import hashlib

import pytest
from forged import INVALID_VALUES, NAMES
from request_builders import V2, build_request, refusal

from ansible_collections.baton.kubernetes.plugins.module_utils.model.config_objects import (
    checksum,
    references_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.identity import (
    canonical,
    is_name,
)

INVALID_ENTRY = (
    "roll_on {!r} is neither auto nor the kind and the name of a ConfigMap or a Secret, such as "
    "configmap/shop or secret/shop-db")


@pytest.mark.parametrize(("value", "references"), [
    (["configmap/shop"], ["configmap/shop"]),
    (["ConfigMap/shop", "cm/shop", "configmaps/shop"], ["configmap/shop"]),
    (["secret/shop-db", "Secrets/other"], ["secret/shop-db", "secret/other"]),
    ([" auto "], ["auto"]),
    (["auto", "secret/read-by-api"], ["auto", "secret/read-by-api"]),
    ([], []),
])
def test_roll_on_accepts_the_kind_names_of_kubectl(value, references):
    assert list(map(str, build_request(**V2, roll_on=value).roll_on)) == references


@pytest.mark.parametrize("entry", ["shop", "pod/shop", "secret/", "secret/Shop", "secret/../x",
                                   "auto/shop", "secret/a b", "", "secret/" + "a" * 254])
def test_an_entry_that_names_no_object_is_refused(entry):
    assert refusal(**V2, roll_on=[entry]).what == INVALID_ENTRY.format(entry)


def test_too_many_objects_are_refused():
    roll_on = [f"configmap/c{number}" for number in range(101)]

    assert refusal(**V2, roll_on=roll_on).what == "roll_on has 101 entries: give at most 100"


def test_a_restart_refuses_roll_on():
    error = refusal(state="restarted", roll_on=["auto"])

    assert error.what.endswith("remove roll_on, or use state=updated")


def test_a_rollback_ignores_roll_on():
    assert build_request(state="rolled_back", roll_on=["auto"]).roll_on == ()


def spec_with_env(**value_from):
    return {"containers": [{"name": "web", "env": [{"name": "A", "valueFrom": value_from}]}]}


def spec_with_env_from(**source):
    return {"initContainers": [{"name": "init", "envFrom": [source]}]}


@pytest.mark.parametrize(("spec", "references"), [
    (spec_with_env(configMapKeyRef={"name": "shop", "key": "a"}), {"configmap/shop": True}),
    (spec_with_env(secretKeyRef={"name": "shop", "key": "a"}), {"secret/shop": True}),
    (spec_with_env(secretKeyRef={"name": "shop", "key": "a", "optional": True}),
     {"secret/shop": False}),
    (spec_with_env(fieldRef={"fieldPath": "metadata.name"}), {}),
    (spec_with_env_from(configMapRef={"name": "shop"}), {"configmap/shop": True}),
    (spec_with_env_from(secretRef={"name": "shop", "optional": True}), {"secret/shop": False}),
    ({"volumes": [{"name": "a", "configMap": {"name": "shop"}}]}, {"configmap/shop": True}),
    ({"volumes": [{"name": "a", "secret": {"secretName": "shop"}}]}, {"secret/shop": True}),
    ({"volumes": [{"name": "a", "secret": {"secretName": "shop", "optional": True}}]},
     {"secret/shop": False}),
    ({"volumes": [{"name": "a", "projected": {"sources": [
        {"configMap": {"name": "shop"}}, {"secret": {"name": "db"}},
        {"serviceAccountToken": {"path": "token"}}]}}]},
     {"configmap/shop": True, "secret/db": True}),
    ({"volumes": [{"name": "a", "secret": {"secretName": "shop", "optional": True}},
                  {"name": "b", "secret": {"secretName": "shop"}},
                  {"name": "c", "secret": {"secretName": "shop", "optional": True}}]},
     {"secret/shop": True}),
    # Only the kubelet reads these Secrets; the pods do not
    ({"imagePullSecrets": [{"name": "registry"}],
      "volumes": [{"name": "a", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}},
                  {"name": "b", "azureFile": {"secretName": "s", "shareName": "x"}}]}, {}),
    ({"volumes": [{"name": "a", "configMap": {"name": ""}}, {"name": "b", "emptyDir": {}}]}, {}),
    ({}, {}),
])
def test_references_of_a_template(spec, references):
    assert {str(reference): is_required for reference, is_required
            in references_of({"spec": spec}).items()} == references


@pytest.mark.parametrize("wrong", [*INVALID_VALUES, *NAMES])
@pytest.mark.parametrize("build", [
    lambda wrong: wrong, lambda wrong: {"volumes": wrong}, lambda wrong: {"volumes": [wrong]},
    lambda wrong: spec_with_env(secretKeyRef=wrong),
    lambda wrong: spec_with_env(secretKeyRef={"name": wrong}),
    lambda wrong: {"volumes": [{"projected": {"sources": wrong}}]},
])
def test_references_of_a_malformed_template_have_valid_names(build, wrong):
    assert all(is_name(reference.name) for reference in references_of({"spec": build(wrong)}))


@pytest.mark.parametrize("wrong", INVALID_VALUES)
def test_malformed_data_has_a_checksum(wrong):
    assert len(checksum(config_map(data=wrong))) == len(checksum(config_map(binaryData=wrong)))


def secret(password="hunter2", uid="3b7f", **metadata):
    data = {"password": base64.b64encode(password.encode()).decode()}
    return {"kind": "Secret", "metadata": {"uid": uid, **metadata}, "data": data}


def config_map(uid="1", **data):
    return {"kind": "ConfigMap", "metadata": {"uid": uid}, **data}


def test_a_checksum_depends_on_the_data_alone():
    assert checksum(secret()) == checksum(secret(resourceVersion="2", labels={"a": "b"}))
    assert checksum(secret()) != checksum(secret("hunter3"))
    assert checksum(config_map(data={"a": "1"})) == checksum(config_map("2", data={"a": "1"}))
    different_maps = [config_map(), config_map(data={"a": "1"}), config_map(data={"a": "2"}),
                      config_map(data={"b": "1"}), config_map(binaryData={"a": "1"})]
    assert len(set(map(checksum, different_maps))) == len(different_maps)


def test_the_checksum_of_a_secret_is_keyed_by_its_uid():
    """Without the uid, nobody can test a guess of the Secret's value."""
    data = canonical([secret()["data"], {}])

    assert checksum(secret()) != checksum(secret(uid="4c8a"))
    assert not hashlib.sha256(data.encode()).hexdigest().startswith(checksum(secret()))

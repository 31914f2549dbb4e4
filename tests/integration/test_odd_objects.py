# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test objects with maximum sizes, text in several scripts, and rare fields."""

from __future__ import annotations

import json

import pytest
from objects import eventually, manifest, uids
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

#: In bytes.
MAX_ANNOTATIONS_SIZE = 256 * 1024


def make(namespace, body):
    namespace.create("replicationcontrollers", body)
    namespace.until_available(body["metadata"]["name"], body["spec"]["replicas"])


def container(item):
    return item["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.full
def test_template_of_500_kilobytes_is_updated_and_rolled_back(namespace):
    """etcd limits objects to 1.5 MB, so no request may contain the template twice."""
    body = manifest(2)
    # Linux limits an environment variable to 128 KiB.
    container(body)["env"] = [{"name": f"BIG_{number}", "value": "x" * 100_000}
                              for number in range(5)]
    make(namespace, body)

    with namespace.observer() as observer:
        with pytest.raises(Killed):
            namespace.roll(fault=kill_at_write(6, after=True), image="myimage:v2")
        namespace.roll(state="rolled_back")
        namespace.roll(image="myimage:v2")

    assert (namespace.rc_names() == ["foo"] and observer.min_ready >= 2
            and uids(namespace.pods()) <= observer.new_pods)
    assert (container(namespace.rc())["env"] == container(body)["env"]
            and container(namespace.rc())["image"] == "myimage:v2")


def test_2_kilobytes_are_enough_for_the_annotations_of_an_update(namespace):
    """The successor has a copy of the user's annotations."""
    note = "x" * (MAX_ANNOTATIONS_SIZE - 2048)
    make(namespace, manifest(2, annotations={"note": note}))

    namespace.roll(image="myimage:v2")

    assert namespace.rc_names() == ["foo"]
    assert namespace.rc()["metadata"]["annotations"]["note"] == note


@pytest.mark.sample(1)
@pytest.mark.parametrize("free_bytes", [50, 500])
def test_full_annotations_are_refused_before_the_first_write(namespace, free_bytes):
    """The free space is enough only for some of the steps."""
    body = manifest(2, annotations={"note": "x" * (MAX_ANNOTATIONS_SIZE - free_bytes)})
    make(namespace, body)
    before = namespace.rc()

    with pytest.raises(RolloutError) as error:
        namespace.roll(image="myimage:v2")

    assert "its annotations leave no room for the annotations of the update" in error.value.what
    assert (namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
            and namespace.rc_names() == ["foo"])


@pytest.mark.full
@pytest.mark.parametrize("free_bytes", [400, 700])
def test_full_annotations_of_a_deployment_are_refused_before_the_first_write(
        namespace, free_bytes):
    """The Deployment controller copies the annotations to the ReplicaSet, and adds others."""
    namespace.make_deployment(1)
    note = "x" * (MAX_ANNOTATIONS_SIZE - free_bytes)
    namespace.patch_deployment({"metadata": {"annotations": {"note": note}}})
    before = namespace.deployment()["spec"]

    with pytest.raises(RolloutError) as error:
        namespace.roll(kind="Deployment", image="myimage:v2")

    assert ("its annotations leave no room for the annotations of the update" in error.value.what
            and namespace.deployment()["spec"] == before)


@pytest.mark.full
def test_2_kilobytes_are_enough_for_the_annotations_of_a_deployment(namespace):
    namespace.make_deployment(1)
    note = "x" * (MAX_ANNOTATIONS_SIZE - 2048)
    namespace.patch_deployment({"metadata": {"annotations": {"note": note}}})
    for request in ({"image": "myimage:v2", "pause_at": "1"}, {"state": "rolled_back"},
                    {"image": "myimage:v2"}):
        namespace.roll(kind="Deployment", **request)
    assert namespace.wait_for_rollout()


@pytest.mark.sample(1)
@pytest.mark.parametrize("next_name", [None, "b" * 253])
def test_controller_with_a_name_of_253_characters_is_updated(namespace, next_name):
    name = "f" * 253
    params = {
        "name": name,
        "image": "myimage:v2",
        **({"next_name": next_name} if next_name else {}),
    }
    make(namespace, manifest(2, name=name, labels={"app": "foo"}) | {"spec": manifest(2)["spec"]})

    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(6, after=True), **params)
    namespace.roll(**params)

    assert namespace.rc_names() == [next_name or name] and len(namespace.pods()) == 2


TEXT = ("Grüße, 世界, مرحبا, \U0001f680, e\u0301, \u2028, \"quoted\", back\\slash, ~0 ~1 /, tab\t, "
        "line\nend")


@pytest.mark.full
def test_text_in_several_scripts_is_retained(namespace):
    body = manifest(2, annotations={"example.com/note": TEXT})
    container(body)["env"] = [{"name": "TEXT", "value": TEXT}]
    body["spec"]["template"]["metadata"]["annotations"] = {"note": TEXT}
    make(namespace, body)

    namespace.roll(image="myimage:v2")
    change = {"metadata": {"annotations": {"other": TEXT}}}
    assert (namespace.roll(template=change)["changed"]
            and not namespace.roll(template=change)["changed"])

    after = namespace.rc()
    assert (after["metadata"]["annotations"]["example.com/note"] == TEXT
            and container(after)["env"][0]["value"] == TEXT)
    assert after["spec"]["template"]["metadata"]["annotations"] == {"note": TEXT, "other": TEXT}
    assert (json.loads(after["metadata"]["annotations"][object_meta.LAST_ROLLOUT])["outcome"]
            == "updated")


@pytest.mark.full
def test_invalid_unicode_is_refused(namespace):
    """YAML allows a lone surrogate, which UTF-8 cannot encode."""
    namespace.make_rc(1)

    with pytest.raises(RolloutError) as error:
        namespace.roll(template={"metadata": {"annotations": {"note": "\ud83d"}}})

    assert "cannot be sent to the API server" in error.value.what


RARE_FIELDS = {
    "hostUsers": False,
    "os": {"name": "linux"},
    "enableServiceLinks": False,
    "setHostnameAsFQDN": False,
    "shareProcessNamespace": True,
    "topologySpreadConstraints": [{"maxSkew": 5, "topologyKey": "kubernetes.io/hostname",
                                   "whenUnsatisfiable": "ScheduleAnyway",
                                   "labelSelector": {"matchLabels": {"app": "foo"}},
                                   "matchLabelKeys": ["app"]}],
    "tolerations": [{"key": "odd", "operator": "Exists", "effect": "NoExecute",
                     "tolerationSeconds": 7}],
    "dnsConfig": {"options": [{"name": "ndots", "value": "2"}]},
    "volumes": [{"name": "token",
                 "projected": {
                     "sources": [{"serviceAccountToken": {"path": "t", "audience": "odd"}}]}},
                {"name": "image", "image": {"reference": "myimage:data", "pullPolicy": "Never"}}],
}
RARE_CONTAINER_FIELDS = {
    "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"},
            {"name": "NODE", "valueFrom": {
                "fieldRef": {"fieldPath": "spec.nodeName"}}}],
    "lifecycle": {"preStop": {"sleep": {"seconds": 0}}},
    "volumeMounts": [{"name": "token", "mountPath": "/t", "readOnly": True,
                      "recursiveReadOnly": "IfPossible"}],
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
}


@pytest.mark.since("1.36", "older versions lack some of the fields")
def test_rare_fields_are_preserved(namespace):
    """The second update is a strategic merge patch."""
    body = manifest(0)
    body["spec"]["template"]["spec"] |= RARE_FIELDS
    container(body).update(RARE_CONTAINER_FIELDS)
    make(namespace, body)
    before = namespace.rc()["spec"]["template"]["spec"]
    assert set(RARE_FIELDS) <= set(before) and set(RARE_CONTAINER_FIELDS) <= set(
        before["containers"][0]
    )

    namespace.roll(image="myimage:v2")

    after = namespace.rc()["spec"]["template"]["spec"]
    assert after == {**before, "containers": [{**before["containers"][0], "image": "myimage:v2"}]}

    change = {"spec": {"containers": [{"name": "web",
                                       "resizePolicy": [{"resourceName": "memory",
                                                         "restartPolicy": "NotRequired"}],
                                       "env": [{"name": "A", "$patch": "delete"},
                                               {"name": "B", "value": "3"}]}],
                       "dnsConfig": None}}
    assert (namespace.roll(template=change)["changed"]
            and not namespace.roll(template=change)["changed"])

    merged_spec = namespace.rc()["spec"]["template"]["spec"]
    env = [{"name": "B", "value": "3"}, after["containers"][0]["env"][2]]
    expected = {key: value for key, value in after.items() if key != "dnsConfig"}
    assert merged_spec["containers"][0]["env"] == env and "dnsConfig" not in merged_spec
    assert {**merged_spec, "containers": []} == {**expected, "containers": []}
    unchanged_fields = {
        key: value
        for key, value in merged_spec["containers"][0].items()
        if key not in ("env", "resizePolicy")
    }
    assert (unchanged_fields
            == {key: value
                for key, value in after["containers"][0].items()
                if key not in ("env", "resizePolicy")})


#: Container fields with characters that JSON encoders escape differently.
SPECIAL_FIELDS = {"command": ["sh", "-c", "a && b > c < d || exit \"$?\""],
                  "env": [{"name": "GREETING", "value": "Grüße, 日本 \u2028 & <b>"}]}


@pytest.mark.sample(1)
@pytest.mark.fake_nodes("an image name that a kubelet rejects")
@pytest.mark.parametrize("kind", ["ReplicationController", "ReplicaSet", "Deployment"])
def test_special_characters_in_a_template_are_retained(namespace, kind):
    """The API server escapes `&` as `\\u0026`, but a `test` operation of a JSON patch compares
    values.
    """
    body = manifest(2, image="shop:<TAG>&more", annotations={"note": "für & <x>"})
    container(body).update(SPECIAL_FIELDS)
    body["spec"]["template"]["metadata"]["annotations"] = {"who": "Jürgen & Söhne <shop>"}
    get = {"ReplicationController": namespace.rc, "ReplicaSet": namespace.replica_set,
           "Deployment": namespace.deployment}[kind]
    namespace.create_controller(kind, body)
    eventually(lambda: len(namespace.pods()) == 2, "two pods")

    with pytest.raises(Killed):
        namespace.roll(fault=kill_at_write(1, after=True), kind=kind, image="myimage:v2")
    namespace.roll(kind=kind, state="rolled_back")
    namespace.roll(kind=kind, image="myimage:v2")
    result = namespace.roll(kind=kind, image="myimage:v2")

    assert not result["changed"]
    assert (
        container(get())["image"] == "myimage:v2"
        and {field: container(get())[field] for field in SPECIAL_FIELDS} == SPECIAL_FIELDS
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("partner",
                         ["../secrets/db", "../../../../api/v1/namespaces/kube-system/configmaps/x",
                          "../services/http:x:80/proxy/y"])
def test_path_in_a_partner_annotation_is_never_requested(namespace, partner):
    make(namespace,
         manifest(2, annotations={object_meta.PARTNER: partner, object_meta.PARTNER_UID: "x"}))
    paths = []

    def record_paths(gateway):
        send_once = gateway.http.send_once
        gateway.http.send_once = lambda method, path, *arguments, **options: (
            paths.append(path) or send_once(method, path, *arguments, **options)
        )

    namespace.roll(fault=record_paths, image="myimage:v2")

    assert namespace.rc_names() == ["foo"] and paths
    assert not [path
                for path in paths
                if any(word in path for word in ("secrets", "configmaps", "proxy"))]

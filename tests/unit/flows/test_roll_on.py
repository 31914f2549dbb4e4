# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update controllers of each kind after a change of their ConfigMaps or Secrets."""

from __future__ import annotations

import contextlib
import copy
import json

import pytest
from every_kind import KINDS, Cluster, update_request

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import roll_on
from ansible_collections.baton.kubernetes.plugins.module_utils.model.config_objects import checksum
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import CHECKSUMS

EXISTING_OBJECTS = ["configmap/shop", "secret/shop-db"]


class ClusterWithConfig(Cluster):
    """Cluster where foo reads a ConfigMap, a Secret, and an absent optional ConfigMap."""

    def __init__(self, kind):
        super().__init__(kind)
        self.reads = []
        self.data = {("ConfigMap", "shop"): {"color": "red"},
                     ("Secret", "shop-db"): {"password": "aHVudGVyMg=="}}
        item = copy.deepcopy(self.cluster.items["foo"])
        item["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [
            {"configMapRef": {"name": "shop"}}, {"secretRef": {"name": "shop-db"}},
            {"configMapRef": {"name": "absent", "optional": True}}]
        self.cluster.items["foo"] = item
        self.settle()

    def config_object(self, kind, name):
        self.reads.append((kind, name))
        data = self.data.get((kind, name))
        return None if data is None else {"kind": kind, "metadata": {"name": name, "uid": "1"},
                                          "data": data}

    def update(self, **params):
        request = update_request(str(self.kind), **{"image": None, "roll_on": ["auto"], **params})
        return self.run(request)

    @property
    def checksums(self):
        template = self.cluster.items["foo"]["spec"]["template"]
        annotations = template["metadata"].get("annotations") or {}
        return json.loads(annotations.get(CHECKSUMS, "{}"))


@pytest.fixture(params=KINDS)
def cluster(request):
    return ClusterWithConfig(request.param)


@pytest.mark.parametrize("options", [{"roll_on": ["auto"]}, {"roll_on": EXISTING_OBJECTS},
                                     {"image": "myimage:v2"}])
def test_pods_are_replaced_when_the_data_has_changed(cluster, options):
    first, second = (cluster.update(**options)["changed"] for _round in range(2))
    checksums_before = cluster.checksums
    cluster.data["Secret", "shop-db"] = {"password": "c2VjcmV0"}
    third, fourth = (cluster.update(**options)["changed"] for _round in range(2))

    assert [first, second, third, fourth] == [True, False, True, False]
    assert list(cluster.checksums) == EXISTING_OBJECTS
    assert checksums_before["configmap/shop"] == cluster.checksums["configmap/shop"]
    assert checksums_before["secret/shop-db"] != cluster.checksums["secret/shop-db"]


def test_check_mode_plans_the_update_and_writes_nothing(cluster):
    request = update_request(str(cluster.kind), image=None, roll_on=["auto"])

    plan = cluster.check_mode(request)
    assert plan["changed"] and not cluster.checksums

    cluster.run(request)
    assert not cluster.check_mode(request)["changed"]


def test_the_result_has_neither_the_data_nor_an_unkeyed_hash(cluster):
    result = json.dumps(cluster.update())
    secret_as_config_map = {"kind": "ConfigMap", "data": cluster.data["Secret", "shop-db"]}

    assert "aHVudGVyMg" not in result and "hunter2" not in result
    # the checksum of a ConfigMap is an unkeyed hash, unlike that of a Secret
    assert checksum(secret_as_config_map) not in result + json.dumps(cluster.checksums)


def test_data_changed_during_a_pause_is_rolled_out_by_a_later_task(cluster):
    cluster.update(pause_at="1")
    cluster.data["ConfigMap", "shop"] = {"color": "blue"}
    cluster.data["ConfigMap", "absent"] = {"color": "blue"}

    result = cluster.update()
    checksums_at_the_end = cluster.checksums

    assert result["rollout"]["phase"] == "complete"
    assert list(checksums_at_the_end) == EXISTING_OBJECTS
    assert ["the data of configmap/shop has changed since the update in progress began"
            in warning for warning in result["warnings"]].count(True) == 1
    assert cluster.update()["changed"] and len(cluster.checksums) == 3
    assert cluster.checksums["configmap/shop"] != checksums_at_the_end["configmap/shop"]


def test_another_image_during_a_pause_is_another_update(cluster):
    cluster.update(image="myimage:v2", pause_at="1")

    with pytest.raises(RolloutError) as error:
        cluster.update(image="myimage:v3")

    assert "another update is in progress" in error.value.what


def test_update_succeeds_after_an_interrupted_rollback(cluster):
    cluster.update(pause_at="1")
    cluster.data["ConfigMap", "shop"] = {"color": "blue"}

    def die_at_second_write(write):
        if len(cluster.writes) > write_count:
            raise KeyboardInterrupt
        return True

    write_count = len(cluster.writes)
    cluster.allow_write = die_at_second_write
    with pytest.raises(KeyboardInterrupt):
        cluster.update(state="rolled_back")
    cluster.allow_write = lambda write: True
    changes = [cluster.update()["changed"] for _round in range(3)]

    assert changes[0] and not changes[2] and list(cluster.checksums) == EXISTING_OBJECTS


def test_a_task_without_the_option_keeps_the_checksums(cluster):
    cluster.update()
    checksums_before = cluster.checksums
    cluster.update(roll_on=None, image="myimage:v2")

    assert cluster.checksums == checksums_before and checksums_before


def test_a_rollback_restores_the_previous_checksums(cluster):
    cluster.update()
    checksums_before = cluster.checksums
    cluster.data["ConfigMap", "shop"] = {"color": "blue"}
    cluster.update(pause_at="1")
    cluster.update(state="rolled_back")

    assert cluster.checksums == checksums_before


def test_an_update_completes_after_repeated_kills(cluster):
    def kill_after(count):
        remaining = [True] * count

        def allow(write):
            if not remaining:
                raise KeyboardInterrupt
            return remaining.pop()

        return allow

    for write_count in range(1, 40):
        cluster.allow_write = kill_after(write_count)
        with contextlib.suppress(KeyboardInterrupt):
            cluster.update()
            break
    cluster.settle()

    assert list(cluster.checksums) == EXISTING_OBJECTS
    cluster.allow_write = lambda write: True
    assert not cluster.update()["changed"]


@pytest.mark.parametrize(("options", "missing", "what"), [
    ({}, ("ConfigMap", "shop"), "there is no ConfigMap shop, which its pods need"),
    ({"roll_on": ["secret/other"]}, None, "there is no Secret other, which is listed in roll_on"),
    ({"roll_on": ["auto", "configmap/absent"]}, None,
     "there is no ConfigMap absent, which is listed in roll_on"),
])
def test_a_missing_object_is_an_error_before_the_first_write(cluster, options, missing, what):
    cluster.data.pop(missing, None)

    with pytest.raises(RolloutError) as error:
        cluster.update(**options)

    assert error.value.what == what and not cluster.attempts
    assert error.value.next_command.startswith(f"create the {what.split()[3]}, then:\n")


def test_creation_of_an_optional_object_causes_an_update(cluster):
    cluster.update()
    cluster.data["ConfigMap", "absent"] = {"a": "b"}

    assert cluster.update()["changed"] and "configmap/absent" in cluster.checksums


def test_too_many_objects_of_a_template_are_refused(cluster):
    item = copy.deepcopy(cluster.cluster.items["foo"])
    item["spec"]["template"]["spec"]["volumes"] = [
        {"name": f"v{number}", "configMap": {"name": f"c{number}"}} for number in range(100)]
    cluster.cluster.items["foo"] = item

    with pytest.raises(RolloutError) as error:
        cluster.update()

    assert "its pods read 103 ConfigMaps and Secrets" in error.value.what and not cluster.reads


def test_a_run_reads_each_object_before_and_after_taking_the_lease(cluster):
    cluster.update()
    assert sorted(cluster.reads) == sorted([("ConfigMap", "absent"), ("ConfigMap", "shop"),
                                            ("Secret", "shop-db")] * 2)
    cluster.reads.clear()
    cluster.update()
    assert len(cluster.reads) == 3


@pytest.mark.parametrize(("value", "resources"), [
    (["auto"], ["configmaps", "secrets"]), (["secret/a"], ["secrets"]),
    (["configmap/a", "configmap/b"], ["configmaps"]), (None, [])])
def test_needed_permissions(value, resources):
    request = update_request("Deployment", roll_on=value)

    assert roll_on.required_permissions(request) == tuple(
        ("", resource, ("get",)) for resource in resources)

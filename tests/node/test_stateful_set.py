# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that the volumes of a StatefulSet retain their data in updates and rollbacks."""

from __future__ import annotations

import http.client

import pytest
from objects import eventually, is_ready

DATA_FILE = "/data/starts"
KIND_OPTION = {"kind": "StatefulSet"}
BROKEN_IMAGE_PATCH = {
    "spec": {"template": {"spec": {"containers": [{"name": "web", "image": "localhost/none:v9"}]}}}
}


@pytest.fixture
def foo_namespace(namespace, tmp_path):
    for number in range(2):
        namespace.call(
            "POST",
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": f"{namespace.name}-{number}"},
                "spec": {
                    "capacity": {"storage": "1Mi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": namespace.name,
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {
                        "path": f"/var/lib/{namespace.name}-{number}",
                        "type": "DirectoryOrCreate",
                    },
                },
            },
        )
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": namespace.name,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    container = {
        "name": "web",
        "image": "localhost/web:v1",
        "env": [{"name": "DATA", "value": DATA_FILE}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": 1},
    }
    template = {
        "metadata": {"labels": {"app": "foo"}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
    }
    namespace.make_stateful_set(2, volumeClaimTemplates=[claim], template=template)
    yield namespace
    for number in range(2):
        namespace.call("DELETE", f"/api/v1/persistentvolumes/{namespace.name}-{number}")


def stored_versions(namespace):
    """Return the versions in each pod's volume, by pod name. Each start of a pod appends one."""
    versions = {}
    for pod in namespace.pods():
        connection = http.client.HTTPConnection(pod["status"]["podIP"], 8080, timeout=10)
        connection.request("GET", "/data")
        versions[pod["metadata"]["name"]] = connection.getresponse().read().decode().split()
        connection.close()
    return versions


def test_pods_retain_their_volumes_in_updates_and_in_the_rollback_of_a_stuck_update(foo_namespace):
    foo_namespace.roll(**KIND_OPTION, image="localhost/web:v2", pause_at="1")
    assert stored_versions(foo_namespace) == {"foo-0": ["v1"], "foo-1": ["v1", "v2"]}

    foo_namespace.roll(**KIND_OPTION, image="localhost/web:v2")
    assert stored_versions(foo_namespace) == {"foo-0": ["v1", "v2"], "foo-1": ["v1", "v2"]}

    foo_namespace.patch_stateful_set(BROKEN_IMAGE_PATCH)
    eventually(
        lambda: (
            [is_ready(pod)
             for pod in sorted(foo_namespace.pods(), key=lambda pod: pod["metadata"]["name"])]
            == [True, False]
        ),
        "an unready pod foo-1",
    )
    result = foo_namespace.roll(**KIND_OPTION, state="rolled_back")

    assert [step["name"] for step in result["steps"] if step["action"] == "delete"] == ["foo-1"]
    assert stored_versions(foo_namespace) == {"foo-0": ["v1", "v2"], "foo-1": ["v1", "v2", "v2"]}

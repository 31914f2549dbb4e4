# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update a CloneSet on a real API server, with cloneset.patch applied to the plugins."""

from __future__ import annotations

import contextlib
import os

import pytest
from kubernetes.client.exceptions import ApiException
from namespace import Namespace
from objects import as_kind, eventually, is_ready, manifest
from stand_in import DEFINITION, DEFINITIONS_PATH, GROUP, VERSION, CloneSetController

STRATEGY = {"type": "ReCreate", "partition": 0, "maxSurge": 1, "maxUnavailable": 0}


@pytest.fixture
def namespace():
    new_namespace = Namespace(os.environ["CLONESET_KUBECONFIG"], "clone-set")
    with contextlib.suppress(ApiException):  # if an earlier test has created the definition
        new_namespace.call("POST", DEFINITIONS_PATH, DEFINITION)
    eventually(lambda: _is_served(new_namespace), "the resource clonesets")
    new_namespace.allow([{"apiGroups": [GROUP], "resources": ["clonesets"],
                          "verbs": ["get", "list", "watch", "patch"]}], "clonesets")
    yield new_namespace
    new_namespace.call("DELETE", f"{DEFINITIONS_PATH}/{DEFINITION['metadata']['name']}")
    new_namespace.delete()


def _is_served(namespace):
    with contextlib.suppress(ApiException):
        return namespace.call("GET", f"/apis/{GROUP}/{VERSION}")["resources"]
    return False


def tags_of_ready_pods(namespace):
    return sorted(pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                  for pod in namespace.pods() if is_ready(pod))


def test_clone_set_is_updated_in_stages_and_rolled_back(namespace):
    clone_set = {**as_kind("CloneSet", manifest(4), updateStrategy=STRATEGY),
                 "apiVersion": f"{GROUP}/{VERSION}"}
    update = {"kind": "CloneSet", "image": "myimage:v2", "progress_deadline": 60}
    rollback = {"kind": "CloneSet", "state": "rolled_back", "progress_deadline": 60}
    with CloneSetController(namespace) as controller:
        namespace.call("POST", controller.collection_path, clone_set)
        eventually(lambda: tags_of_ready_pods(namespace) == ["v1"] * 4, "foo with four pods")
        assert namespace.check(**update)["changed"] and tags_of_ready_pods(namespace) == ["v1"] * 4

        paused_result = namespace.roll(pause_at="25%", **update)
        assert paused_result["rollout"]["phase"] == "paused"
        assert tags_of_ready_pods(namespace) == ["v1", "v1", "v1", "v2"]

        update_result = namespace.roll(**update)
        assert update_result["msg"] == "foo is updated to myimage:v2: 4 of 4 replicas available"
        assert tags_of_ready_pods(namespace) == ["v2"] * 4
        assert not namespace.roll(**update)["changed"]

        namespace.roll(**{**update, "image": "myimage:v3"}, pause_at="1")
        assert namespace.roll(**rollback)["changed"]
        assert tags_of_ready_pods(namespace) == ["v2"] * 4
        restored_clone_set = namespace.call("GET", f"{controller.collection_path}/foo")
        assert restored_clone_set["spec"]["updateStrategy"] == STRATEGY

        namespace.roll(**rollback, to_revision=1)
        assert tags_of_ready_pods(namespace) == ["v1"] * 4

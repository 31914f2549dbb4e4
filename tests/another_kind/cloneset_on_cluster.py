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
from stand_in import DEFINITION, DEFINITIONS, GROUP, VERSION, CloneSetController

STRATEGY = {"type": "ReCreate", "partition": 0, "maxSurge": 1, "maxUnavailable": 0}


@pytest.fixture
def namespace():
    provided = Namespace(os.environ["CLONESET_KUBECONFIG"], "clone-set")
    with contextlib.suppress(ApiException):  # an earlier test has created the definition
        provided.call("POST", DEFINITIONS, DEFINITION)
    eventually(lambda: _is_served(provided), "the resource clonesets")
    provided.allow([{"apiGroups": [GROUP], "resources": ["clonesets"],
                     "verbs": ["get", "list", "watch", "patch"]}], "clonesets")
    yield provided
    provided.call("DELETE", f"{DEFINITIONS}/{DEFINITION['metadata']['name']}")
    provided.delete()


def _is_served(namespace):
    with contextlib.suppress(ApiException):
        return namespace.call("GET", f"/apis/{GROUP}/{VERSION}")["resources"]
    return False


def tags_of_ready_pods(namespace):
    return sorted(pod["spec"]["containers"][0]["image"].removeprefix("myimage:")
                  for pod in namespace.pods() if is_ready(pod))


def test_clone_set_is_updated_by_stages_and_rolled_back(namespace):
    item = {**as_kind("CloneSet", manifest(4), updateStrategy=STRATEGY),
            "apiVersion": f"{GROUP}/{VERSION}"}
    update = {"kind": "CloneSet", "image": "myimage:v2", "progress_deadline": 60}
    rollback = {"kind": "CloneSet", "state": "rolled_back", "progress_deadline": 60}
    with CloneSetController(namespace) as controller:
        namespace.call("POST", controller.root, item)
        eventually(lambda: tags_of_ready_pods(namespace) == ["v1"] * 4, "foo with four pods")
        assert namespace.check(**update)["changed"] and tags_of_ready_pods(namespace) == ["v1"] * 4

        paused = namespace.roll(pause_at="25%", **update)
        assert paused["rollout"]["phase"] == "paused"
        assert tags_of_ready_pods(namespace) == ["v1", "v1", "v1", "v2"]

        updated = namespace.roll(**update)
        assert updated["msg"] == "foo is updated to myimage:v2: 4 of 4 replicas available"
        assert tags_of_ready_pods(namespace) == ["v2"] * 4
        assert not namespace.roll(**update)["changed"]

        namespace.roll(**{**update, "image": "myimage:v3"}, pause_at="1")
        assert namespace.roll(**rollback)["changed"]
        assert tags_of_ready_pods(namespace) == ["v2"] * 4
        stored = namespace.call("GET", f"{controller.root}/foo")
        assert stored["spec"]["updateStrategy"] == STRATEGY

        namespace.roll(**rollback, to_revision=1)
        assert tags_of_ready_pods(namespace) == ["v1"] * 4

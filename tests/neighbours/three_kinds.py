# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update three controllers (of different kinds) that Helm or Flux manages."""

from __future__ import annotations

import typing as t

import pytest
from namespace import Namespace
from objects import Json, as_kind, eventually, manifest, uids

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

RC, DEPLOYMENT, STATEFUL_SET = "ReplicationController", "Deployment", "StatefulSet"
NAMES = {RC: "cart", DEPLOYMENT: "shop", STATEFUL_SET: "db"}
REPLICAS = 4


def manifest_of(kind: str, image: str, mode: str = "a", note: str = "a") -> Json:
    """Return the manifest of a controller.

    mode: the container's environment variable MODE. note: the controller's annotation `note`.
    """
    body = manifest(REPLICAS, image, NAMES[kind], annotations={"note": note})
    body["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "MODE", "value": mode}]
    return as_kind(kind, body, **({"serviceName": "db"} if kind == STATEFUL_SET else {}))


class Controllers:
    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def wait_until_available(self) -> None:
        self.namespace.until_available(NAMES[RC], REPLICAS)
        eventually(lambda: self.namespace.is_rolled_out(NAMES[DEPLOYMENT]), "the Deployment")
        eventually(lambda: self.namespace.is_stateful_set_rolled_out(NAMES[STATEFUL_SET]),
                   "the StatefulSet")

    def path(self, kind: str) -> str:
        path = self.namespace.path if kind == RC else self.namespace.apps_path
        return path(f"{kind.lower()}s", NAMES[kind])

    def controller(self, kind: str) -> Json:
        return self.namespace.call("GET", self.path(kind))

    def notes(self) -> str:
        """Return the annotation `note` of the three controllers, such as "aab"."""
        return "".join(self.controller(kind)["metadata"]["annotations"]["note"] for kind in NAMES)

    def images(self) -> list[str]:
        """Return the image tag of each template, such as ["v1", "v2", "v2"]."""
        templates = [self.controller(kind)["spec"]["template"] for kind in NAMES]
        return [template["spec"]["containers"][0]["image"].partition(":")[2]
                for template in templates]

    def pods_of(self, kind: str) -> list[Json]:
        """Return the pods of a controller and of its successor."""
        return [pod for pod in self.namespace.pods()
                if pod["metadata"]["labels"]["app"] == NAMES[kind]]

    def pod_versions(self, kind: str) -> str:
        """Return the sorted image tags of a controller's pods, such as "v1 v1 v2 v2"."""
        return " ".join(sorted(pod["spec"]["containers"][0]["image"].partition(":")[2]
                               for pod in self.pods_of(kind)))

    def pod_uids(self) -> set[str]:
        return uids(self.namespace.pods())

    def wait_for_pods(self, kind: str, versions: str) -> None:
        eventually(lambda: self.pod_versions(kind) == versions,
                   f"the pods {versions} of the {kind}")

    def roll(self, kind: str, **task: t.Any) -> Json:
        return self.namespace.roll(name=NAMES[kind], kind=kind, **task)

    def roll_all(self, **task: t.Any) -> list[Json]:
        return [self.roll(kind, **task) for kind in NAMES]

    def pause(self, image: str = "myimage:v2") -> None:
        """Update each controller up to a pause at two new pods of four."""
        for result in self.roll_all(image=image, pause_at=2):
            assert result["rollout"]["phase"] == "paused"

    def assert_paused(self) -> None:
        for kind in NAMES:
            assert self.pod_versions(kind) == "v1 v1 v2 v2", kind
        assert self.images() == ["v1", "v2", "v2"]
        assert self.controller(RC)["spec"]["replicas"] == 2
        assert self.controller(DEPLOYMENT)["spec"]["paused"]

    def assert_reset_then_update_again(self) -> None:
        """Assert that another tool has reset the paused updates, and run the updates again.

        The update of the Deployment is refused until a task has rolled it back.
        """
        assert self.images() == ["v1"] * 3
        self.wait_for_pods(RC, "v1 v1 v1 v1 v2 v2")
        self.wait_for_pods(STATEFUL_SET, "v1 v1 v1 v1")
        self.wait_for_pods(DEPLOYMENT, "v1 v1 v2 v2")
        assert self.controller(DEPLOYMENT)["spec"]["paused"]

        for kind in (RC, STATEFUL_SET):
            assert self.roll(kind, image="myimage:v2")["changed"]
            assert self.pod_versions(kind) == "v2 v2 v2 v2"
        with pytest.raises(RolloutError) as error:
            self.roll(DEPLOYMENT, image="myimage:v2")
        assert "changed the template since the update to myimage:v2" in error.value.what
        assert "state=rolled_back" in error.value.next_command
        assert self.roll(DEPLOYMENT, state="rolled_back")["changed"]
        assert self.pod_versions(DEPLOYMENT) == "v1 v1 v1 v1"
        assert not self.controller(DEPLOYMENT)["spec"].get("paused")
        assert self.roll(DEPLOYMENT, image="myimage:v2")["changed"]
        assert self.pod_versions(DEPLOYMENT) == "v2 v2 v2 v2"

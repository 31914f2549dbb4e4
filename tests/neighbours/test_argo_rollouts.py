# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Update the ReplicaSet of a Rollout (Argo Rollouts), or the Deployment that a Rollout uses."""

from __future__ import annotations

import functools

import argo
import programs
import pytest
from objects import eventually, manifest, role_rules

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

TEMPLATE_IS_USED = ("Rollout/web of Argo Rollouts uses the template of this Deployment "
                    "(spec.workloadRef), and would itself start an update")


@pytest.fixture(scope="session")
def plugin():
    return programs.provide("kubectl-argo-rollouts")


@pytest.fixture
def rollout(namespace, tmp_path):
    """Run Argo Rollouts' controller, and yield a helper that creates the Rollout web."""
    argo.install_definitions(namespace)
    namespace.allow(role_rules("baton-argo-rollouts"), "baton-argo-rollouts")
    program = programs.provide("rollouts-controller")
    with argo.running_controller(program, namespace.admin_kubeconfig, tmp_path):
        yield argo.Rollout(namespace)


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def template(image="myimage:v1"):
    return manifest(1, image, "web")["spec"]["template"]


def refusal(namespace, **options):
    """Run a task that must be refused and change no object, and return its error."""
    before = namespace.end_state()
    with pytest.raises(RolloutError) as refused:
        namespace.roll(**{"image": "myimage:v2", **options})
    assert namespace.end_state() == before
    assert not refused.value.progress["changed"]
    return refused.value


def make_deployment_used_by_rollout(namespace, rollout, scale_down, replicas=3):
    namespace.make_deployment(replicas)
    rollout.create(replicas, workloadRef={"apiVersion": "apps/v1", "kind": "Deployment",
                                          "name": "foo", "scaleDown": scale_down})


@pytest.mark.parametrize("scale_down, pods_of_deployment", [
    ("never", 3), ("onsuccess", 0), ("progressively", 0)])
def test_deployment_used_by_a_rollout_is_refused(namespace, rollout, scale_down,
                                                 pods_of_deployment):
    make_deployment_used_by_rollout(namespace, rollout, scale_down)
    eventually(lambda: namespace.deployment()["spec"]["replicas"] == pods_of_deployment,
               "the size of the Deployment")
    namespace.wait_for_rollout()

    error = refusal(namespace, kind="Deployment")

    assert error.what == TEMPLATE_IS_USED
    assert error.next_command == (f"kubectl argo rollouts -n {namespace.name} set image web "
                                  "web=myimage:v2")


def test_rollout_is_not_detected_without_permission_to_list_rollouts(namespace, rollout):
    """Negative control: the task reports a complete update, although the Deployment has no pods."""
    make_deployment_used_by_rollout(namespace, rollout, "onsuccess")
    eventually(lambda: namespace.deployment()["spec"]["replicas"] == 0, "an empty Deployment")
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}/rolebindings"
    namespace.call("DELETE", f"{path}/baton-argo-rollouts")
    rules = role_rules("baton-argo-rollouts")
    eventually(lambda: not namespace.is_allowed(rules), "the end of the permission")

    result = namespace.roll(kind="Deployment", image="myimage:v2")

    assert result["changed"] and "0 of 0 replicas available" in result["msg"]
    eventually(lambda: images(namespace) == {"myimage:v2"}, "the update by Argo Rollouts")


@pytest.mark.parametrize("options, old_image, new_image", [
    ({"image": "myimage:v2"}, "myimage:v1", "myimage:v2"),
    ({"image": None, "state": "rolled_back"}, "myimage:v2", "myimage:v1"),
    ({"image": None, "state": "restarted"}, "myimage:v1", "myimage:v1")])
@pytest.mark.parametrize("has_workload_ref", [True, False], ids=["workloadRef", "owner"])
def test_suggested_command_updates_the_pods(namespace, rollout, plugin, has_workload_ref,
                                            options, old_image, new_image):
    if has_workload_ref:
        make_deployment_used_by_rollout(namespace, rollout, "onsuccess")
        eventually(lambda: {pod["metadata"]["name"].partition("-")[0]
                            for pod in namespace.pods()} == {"web"}, "the pods of the Rollout")
    else:
        rollout.create(3, selector={"matchLabels": {"app": "web"}}, template=template())
    run_command = functools.partial(argo.run_plugin_command, plugin,
                                    kubeconfig=namespace.admin_kubeconfig)
    if old_image == "myimage:v2":
        run_command(f"kubectl argo rollouts -n {namespace.name} set image web web=myimage:v2")
        eventually(lambda: images(namespace) == {old_image}, "the first update")
        rollout.wait_until("Healthy")
    old_pods = {pod["metadata"]["name"] for pod in namespace.pods()}
    replica_set_names = [item["metadata"]["name"] for item in namespace.replica_sets()
                         if item["metadata"]["ownerReferences"][0]["kind"] == "Rollout"
                         and item["spec"]["replicas"]]
    kind, name = ("Deployment", "foo") if has_workload_ref else ("ReplicaSet", replica_set_names[0])
    if has_workload_ref and options.get("state") == "rolled_back":
        options = {**options, "to_revision": "previous"}

    error = refusal(namespace, kind=kind, name=name, **options)
    run_command(error.next_command)

    assert error.what == (TEMPLATE_IS_USED if has_workload_ref else
                          "it is controlled by Rollout/web, which would undo every step")
    if options.get("state") == "restarted":
        # Argo Rollouts takes 30 seconds to restart a pod
        assert rollout.get()["spec"]["restartAt"]
        return
    eventually(lambda: images(namespace) == {new_image} and not old_pods & {
        pod["metadata"]["name"] for pod in namespace.pods()}, "the update by the command")


def test_update_that_began_before_the_rollout_was_created_is_rolled_back(namespace, rollout):
    namespace.make_deployment(3)
    namespace.roll(kind="Deployment", image="myimage:v2", pause_at=1)
    rollout.create(3, workloadRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "foo",
                                   "scaleDown": "never"})

    result = namespace.roll(kind="Deployment", state="rolled_back")

    assert result["rollout"]["phase"] == "complete"
    eventually(lambda: images(namespace) == {"myimage:v1"}, "the rollback by Argo Rollouts")

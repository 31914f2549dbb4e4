# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Refuse controllers that a Rollout of Argo Rollouts owns, or uses as its template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from every_kind import Cluster, update_request

from ansible_collections.baton.kubernetes.plugins.module_utils.flows import argo_rollouts
from ansible_collections.baton.kubernetes.plugins.module_utils.model import shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "compared.md"
KINDS = ("Deployment", "ReplicaSet")
#: Options of tasks, and the equivalent command of Argo Rollouts.
TASKS = [
    ({"image": "myimage:v2"}, "kubectl argo rollouts -n shop set image web web=myimage:v2"),
    ({"state": "restarted", "image": None}, "kubectl argo rollouts -n shop restart web"),
    ({"state": "rolled_back", "image": None}, "kubectl argo rollouts -n shop undo web"),
]
#: The Rollout has other revision numbers than the controller.
TO_REVISION = ({"state": "rolled_back", "image": None, "to_revision": 1},
               "find the revision of the Rollout with the template of revision 1, and give its "
               "number to undo, as --to-revision:\n"
               "kubectl argo rollouts -n shop get rollout web")


class ClusterWithRollouts(Cluster):
    """Cluster with Rollouts; by default, with one Rollout whose workloadRef names foo.

    verbs: what the user may do with Rollouts.
    reference: replaces fields of the workloadRef of the default Rollout.
    """

    def __init__(self, kind, *rollouts, verbs=("list",), reference=None):
        super().__init__(kind)
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": "foo", **(reference or {})}
        self.rollouts = list(rollouts) or [
            {"metadata": {"name": "web", "uid": "1"}, "spec": {"workloadRef": reference}}]
        self.granted_verbs, self.list_request_count = verbs, 0

    def rules(self):
        return [{"apiGroups": ["", "apps", "coordination.k8s.io"], "resources": ["*"],
                 "verbs": ["*"]},
                {"apiGroups": ["argoproj.io"], "resources": ["rollouts"],
                 "verbs": self.granted_verbs}]

    def objects(self, resource):
        if resource != "rollouts":
            return super().objects(resource)
        self.list_request_count += 1
        return self.rollouts

    def set_owner(self, group="argoproj.io", name="web"):
        self.cluster.items["foo"]["metadata"]["ownerReferences"] = [
            {"apiVersion": f"{group}/v1alpha1", "kind": "Rollout", "name": name, "uid": "1",
             "controller": True}]


def request_of(kind, **options):
    return update_request(kind, namespace="shop", **{"image": "myimage:v2", **options})


@pytest.mark.parametrize("options, command", [*TASKS, TO_REVISION])
@pytest.mark.parametrize("kind", KINDS)
def test_referenced_template_is_refused_before_the_first_change(kind, options, command):
    cluster = ClusterWithRollouts(kind)
    if options.get("state") == "rolled_back":
        # Before a Rollout uses foo, an update creates the revision to roll back to.
        options = {"to_revision": "previous", **options}
        cluster = ClusterWithRollouts(kind, {"metadata": {"name": "other"}, "spec": {}})
        cluster.run(request_of(kind))
        cluster.rollouts = ClusterWithRollouts(kind).rollouts

    with pytest.raises(RolloutError) as error:
        cluster.run(request_of(kind, **options))

    assert error.value.what == ("Rollout/web of Argo Rollouts uses the template of this "
                                f"{kind} (spec.workloadRef), and would itself start an update")
    assert error.value.next_command == command
    assert shell.is_command(command.splitlines()[-1])
    assert not error.value.progress["changed"]


@pytest.mark.parametrize("options, command", [*TASKS, TO_REVISION])
def test_error_names_the_owner_and_the_command(options, command):
    cluster = ClusterWithRollouts("ReplicaSet")
    cluster.set_owner()

    with pytest.raises(RolloutError) as error:
        cluster.run(request_of("ReplicaSet", **options))

    assert error.value.what == "it is controlled by Rollout/web, which would undo every step"
    assert error.value.next_command == command


@pytest.mark.parametrize("group, name", [("rollouts.kruise.io", "web"),
                                         ("argoproj.io", "web; touch x")])
def test_no_argo_command_for_a_rollout_with_another_group_or_an_invalid_name(group, name):
    cluster = ClusterWithRollouts("ReplicaSet")
    cluster.set_owner(group, name)

    with pytest.raises(RolloutError) as error:
        cluster.run(request_of("ReplicaSet"))

    assert error.value.next_command.startswith("update Rollout/web")


@pytest.mark.parametrize("kind, edited_object", [("Deployment", "deployment foo"),
                                                 ("ReplicaSet", "rs foo")])
def test_next_command_without_a_new_image_is_kubectl_edit(kind, edited_object):
    request = request_of(kind, roll_on=["configmap/shop"], image=None)
    cluster = ClusterWithRollouts(kind)
    cluster.config_object = lambda kind, name: {
        "kind": kind, "metadata": {"name": name, "uid": "1"}, "data": {}}
    cluster.cluster.items["foo"]["spec"]["template"]["spec"]["containers"][0]["envFrom"] = [
        {"configMapRef": {"name": "shop"}}]

    with pytest.raises(RolloutError) as error:
        cluster.run(request)

    assert error.value.next_command == f"kubectl -n shop edit {edited_object}"


@pytest.mark.parametrize("kind, reference", [
    ("Deployment", {"name": "bar"}), ("Deployment", {"kind": "ReplicaSet"}),
    ("Deployment", {"apiVersion": "example.com/v1"}), ("StatefulSet", {}),
    ("ReplicationController", {"apiVersion": "v1"})])
def test_controller_that_no_rollout_references_is_updated(kind, reference):
    cluster = ClusterWithRollouts(kind, reference=reference)

    assert cluster.run(request_of(kind))["changed"]
    assert cluster.list_request_count == (kind == "Deployment")


def test_rollouts_are_not_listed_without_permission():
    cluster = ClusterWithRollouts("Deployment", verbs=("get",))

    assert cluster.run(request_of("Deployment"))["changed"] and cluster.list_request_count == 0


@pytest.mark.parametrize("options", [{}, {"state": "rolled_back", "image": None}])
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_in_progress_is_finished_or_rolled_back(kind, options):
    cluster = ClusterWithRollouts(kind, {"metadata": {"name": "other"}, "spec": {}})
    cluster.run(request_of(kind, pause_at=1))
    cluster.rollouts = ClusterWithRollouts(kind).rollouts

    assert cluster.run(request_of(kind, **options))["rollout"]["phase"] == "complete"


def test_check_mode_refuses_a_referenced_template():
    with pytest.raises(RolloutError, match="Rollout/web of Argo Rollouts"):
        ClusterWithRollouts("Deployment").check_mode(request_of("Deployment"))


def test_documented_table_has_the_rows_of_the_code():
    section = PAGE.read_text("utf-8").partition("## Objects of Argo Rollouts\n")[2]
    lines = re.findall(r"^\|(.*)\|$", section.partition("\n## ")[0], re.MULTILINE)
    documented = [tuple(cell.strip() for cell in line.split(" | ")) for line in lines]

    assert documented[2:] == [(row.condition, row.example) for row in argo_rollouts.ROWS]

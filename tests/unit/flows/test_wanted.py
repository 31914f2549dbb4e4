# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which write tells what the API server would store."""

from __future__ import annotations

from builders import rc, rs, template

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment import look
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.stepped.look import dry_run_of
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller, Deployment
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import Create, Merge, Patch, put

PRIMARY = Controller.from_api(rc())
DEFINITION = {"metadata": {"name": "bar", "labels": {"a": "b"}, "annotations": {"c": "d"}},
              "spec": {"replicas": 9, "template": template()}}


def test_a_part_of_a_template_is_merged_into_the_controller():
    write = dry_run_of(Request("foo", template={"spec": {"hostNetwork": True}}), PRIMARY)

    assert write == Merge("foo", {"spec": {"template": {"spec": {"hostNetwork": True}}}}, Kind.REPLICATION_CONTROLLER)


def test_a_definition_is_completed_under_a_name_that_is_free_and_without_pods():
    write = dry_run_of(Request("foo", definition=DEFINITION), PRIMARY)

    assert write == Create({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": {"generateName": "foo-", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"replicas": 0, "selector": {"app": "foo"}, "template": template()}})
    assert write.name == "foo"


def test_a_replica_set_has_no_default_for_the_selector_that_a_definition_leaves_out():
    it = Controller.from_api(rs(), Kind.REPLICA_SET)

    write = dry_run_of(Request("foo", definition=DEFINITION, kind=Kind.REPLICA_SET), it)

    assert write.manifest["spec"]["selector"] == {"matchLabels": {"app": "foo"}}


def test_two_ports_of_one_number_are_not_merged_into_one():
    """Deployments and the others alike: what a strategic merge patch would lose is taken as it is written."""
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]
    partial = {"spec": {"containers": [{"name": "web", "ports": ports}]}}

    write = look.dry_run_of(Request("foo", template=partial, kind=Kind.DEPLOYMENT), Deployment.from_api(rs()))

    (container,) = write.patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "web", "ports": [{"$patch": "replace"}, *ports]}


def test_a_definition_without_labels_has_none():
    write = dry_run_of(Request("foo", definition={"metadata": {}, "spec": {"template": template()}}), PRIMARY)

    assert write.manifest["metadata"] == {"generateName": "foo-", "labels": {}, "annotations": {}}


def test_a_deployment_that_is_there_gets_the_template_of_its_definition():
    write = look.dry_run_of(Request("foo", definition=DEFINITION, kind=Kind.DEPLOYMENT), Deployment.from_api(rs()))

    assert write == Patch("foo", (put("/spec/template", template()),), Kind.DEPLOYMENT)

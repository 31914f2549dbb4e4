# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ask the API server by a dry run what it would store, and compare this with a record."""

from __future__ import annotations

import itertools

import pytest
from builders import UPDATE, final_record, rc, rs, template
from idle_gateway import IdleGateway

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.manifest import (
    write_for_dry_run,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.desired import dry_run_patch
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model import object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import Controller
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.server_driven import Deployment
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Merge,
    Patch,
    put,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import images_of

PRIMARY = Controller.from_api(rc())
DEFINITION = {"metadata": {"name": "bar", "labels": {"a": "b"}, "annotations": {"c": "d"}},
              "spec": {"replicas": 9, "template": template()}}


def test_partial_template_is_a_merge_patch():
    write = write_for_dry_run(Request("foo", template={"spec": {"hostNetwork": True}}), PRIMARY)

    assert write == Merge("foo", {"spec": {"template": {"spec": {"hostNetwork": True}}}},
                          Kind.REPLICATION_CONTROLLER)


def test_definition_is_created_with_a_generated_name_and_no_pods():
    write = write_for_dry_run(Request("foo", definition=DEFINITION), PRIMARY)

    assert write == Create({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": {"generateName": "foo-", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"replicas": 0, "selector": {"app": "foo"}, "template": template()}})
    assert write.name == "foo"


def test_definition_of_a_replica_set_without_selector():
    controller = Controller.from_api(rs(), Kind.REPLICA_SET)

    write = write_for_dry_run(Request("foo", definition=DEFINITION, kind=Kind.REPLICA_SET),
                              controller)

    assert write.manifest["spec"]["selector"] == {"matchLabels": {"app": "foo"}}


def test_ports_with_the_same_number_are_not_merged():
    """A strategic merge patch would merge ports with the same containerPort."""
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]
    partial = {"spec": {"containers": [{"name": "web", "ports": ports}]}}

    write = dry_run_patch(Request("foo", template=partial, kind=Kind.DEPLOYMENT),
                          Deployment.from_api(rs()))

    (container,) = write.patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "web", "ports": [{"$patch": "replace"}, *ports]}


def test_definition_without_labels():
    definition = {"metadata": {}, "spec": {"template": template()}}
    write = write_for_dry_run(Request("foo", definition=definition), PRIMARY)

    assert write.manifest["metadata"] == {"generateName": "foo-", "labels": {}, "annotations": {}}


def test_definition_of_an_existing_deployment():
    write = dry_run_patch(Request("foo", definition=DEFINITION, kind=Kind.DEPLOYMENT),
                          Deployment.from_api(rs()))

    assert write == Patch("foo", (put("/spec/template", template()),), Kind.DEPLOYMENT)


class MutatingGateway(IdleGateway):
    """Server whose admission changes templates: mutate(write, template) returns the stored one."""

    def __init__(self, item, mutate):
        self.item, self.mutate, self.dry_run_count = item, mutate, 0

    def controllers(self, kind=None):
        return {"foo": Controller.from_api(self.item)}

    def dry_run(self, write):
        self.dry_run_count += 1
        written_template = (write.manifest["spec"]["template"] if isinstance(write, Create)
                            else write.operations[0]["value"])
        return {"spec": {"template": self.mutate(write, written_template)}}


def with_mirror(_write, written_template):
    image = images_of(written_template)["web"].removeprefix("mirror/")
    return with_image(written_template, f"mirror/{image}")


def with_image(written_template, image):
    (container,) = written_template["spec"]["containers"]
    return {**written_template, "spec": {**written_template["spec"],
                                         "containers": [{**container, "image": image}]}}


def with_mirror_when_created(write, written_template):
    return with_mirror(write, written_template) if isinstance(write, Create) else written_template


def with_mirror_and_time(write, written_template,
                         time=itertools.count()):  # noqa: B008 - the count continues
    mirror_template = with_mirror(write, written_template)
    return {**mirror_template, "metadata": {**mirror_template["metadata"],
                                            "annotations": {"time": str(next(time))}}}


@pytest.mark.parametrize("mutate, current_image, expected", [
    (with_mirror, "mirror/myimage:v2", True),
    (with_mirror_and_time, "mirror/myimage:v2", True),
    (with_mirror_when_created, "mirror/myimage:v2", True),
    (lambda _write, written: written, "myimage:v1", False),
    (with_mirror, "mirror/myimage:v1", False),
    (with_mirror_and_time, "mirror/myimage:v1", False),
], ids=["mirror", "mirror and time", "mirror at creation", "forged", "forged, mirror",
        "forged, mirror and time"])
def test_recorded_result_is_confirmed_by_a_dry_run(mutate, current_image, expected):
    item = rc(image=current_image,
              annotations={object_meta.LAST_ROLLOUT: final_record(UPDATE, after=current_image)})
    cluster, memory = MutatingGateway(item, mutate), Memory()

    observation = choose(UPDATE).observe(UPDATE, cluster, memory)
    first_count = cluster.dry_run_count

    assert observation.is_confirmed is expected and 0 < first_count <= 4
    assert (choose(UPDATE).observe(UPDATE, cluster, memory).is_confirmed is expected
            and cluster.dry_run_count == first_count)


def test_no_dry_run_without_a_record():
    cluster = MutatingGateway(rc(), None)

    assert not choose(UPDATE).observe(UPDATE, cluster,
                                      Memory()).is_confirmed and cluster.dry_run_count == 0

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The dry run that returns the stored template, and the confirmation of a record by the server."""

from __future__ import annotations

import itertools

import pytest
from builders import UPDATE, ended, rc, rs, template
from idle_gateway import IdleGateway

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.client_driven.manifest import (
    dry_run_of,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.desired import changed_in_place
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


def test_a_part_of_a_template_is_merged_into_the_controller():
    write = dry_run_of(Request("foo", template={"spec": {"hostNetwork": True}}), PRIMARY)

    assert write == Merge("foo", {"spec": {"template": {"spec": {"hostNetwork": True}}}},
                          Kind.REPLICATION_CONTROLLER)


def test_a_definition_is_completed_under_a_name_that_is_free_and_without_pods():
    write = dry_run_of(Request("foo", definition=DEFINITION), PRIMARY)

    assert write == Create({
        "apiVersion": "v1", "kind": "ReplicationController",
        "metadata": {"generateName": "foo-", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {"replicas": 0, "selector": {"app": "foo"}, "template": template()}})
    assert write.name == "foo"


def test_a_replica_set_has_no_default_for_the_selector_that_a_definition_leaves_out():
    controller = Controller.from_api(rs(), Kind.REPLICA_SET)

    write = dry_run_of(Request("foo", definition=DEFINITION, kind=Kind.REPLICA_SET), controller)

    assert write.manifest["spec"]["selector"] == {"matchLabels": {"app": "foo"}}


def test_two_ports_of_one_number_are_not_merged_into_one():
    """Ports are taken as written for all kinds: a strategic merge patch would lose a port."""
    ports = [{"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"}]
    partial = {"spec": {"containers": [{"name": "web", "ports": ports}]}}

    write = changed_in_place(Request("foo", template=partial, kind=Kind.DEPLOYMENT),
                             Deployment.from_api(rs()))

    (container,) = write.patch["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "web", "ports": [{"$patch": "replace"}, *ports]}


def test_a_definition_without_labels_has_none():
    write = dry_run_of(Request("foo",
                               definition={"metadata": {}, "spec": {"template": template()}}),
                       PRIMARY)

    assert write.manifest["metadata"] == {"generateName": "foo-", "labels": {}, "annotations": {}}


def test_an_existing_deployment_gets_the_template_of_its_definition():
    write = changed_in_place(Request("foo", definition=DEFINITION, kind=Kind.DEPLOYMENT),
                             Deployment.from_api(rs()))

    assert write == Patch("foo", (put("/spec/template", template()),), Kind.DEPLOYMENT)


class Admission(IdleGateway):
    """A server whose admission changes templates, by a function of the write and the template."""

    def __init__(self, item, changes):
        self.item, self.changes, self.asked = item, changes, 0

    def controllers(self, kind=None):
        return {"foo": Controller.from_api(self.item)}

    def dry_run(self, write):
        self.asked += 1
        present = (write.manifest["spec"]["template"] if isinstance(write, Create)
                 else write.operations[0]["value"])
        return {"spec": {"template": self.changes(write, present)}}


def to_mirror(_write, present):
    return with_image(present, "mirror/" + images_of(present)["web"].removeprefix("mirror/"))


def with_image(present, image):
    (container,) = present["spec"]["containers"]
    return {**present, "spec": {**present["spec"], "containers": [{**container, "image": image}]}}


def to_mirror_when_created(write, present):
    return to_mirror(write, present) if isinstance(write, Create) else present


def to_mirror_with_time(write, present, time=itertools.count()):  # noqa: B008 - the count continues
    present = to_mirror(write, present)
    return {**present, "metadata": {**present["metadata"],
                                    "annotations": {"time": str(next(time))}}}


@pytest.mark.parametrize("changes, present, expected", [
    (to_mirror, "mirror/myimage:v2", True),
    (to_mirror_with_time, "mirror/myimage:v2", True),
    (to_mirror_when_created, "mirror/myimage:v2", True),
    (lambda _write, present: present, "myimage:v1", False),
    (to_mirror, "mirror/myimage:v1", False),
    (to_mirror_with_time, "mirror/myimage:v1", False),
], ids=["mirror", "mirror and time", "mirror, for what is created", "forged", "forged, mirror",
        "forged, mirror and time"])
def test_a_record_s_word_for_it_is_confirmed_by_the_server(changes, present, expected):
    """A user with annotate permission can record the present template as this request's result."""
    item = rc(image=present, annotations={object_meta.LAST_ROLLOUT: ended(UPDATE, after=present)})
    cluster, memory = Admission(item, changes), Memory()

    observation = choose(UPDATE).observe(UPDATE, cluster, memory)
    number = cluster.asked

    assert observation.is_confirmed is expected and 0 < number <= 4
    assert (choose(UPDATE).observe(UPDATE, cluster, memory).is_confirmed is expected
            and cluster.asked == number)


def test_no_dry_run_is_sent_without_a_record():
    cluster = Admission(rc(), None)

    assert not choose(UPDATE).observe(UPDATE, cluster, Memory()).is_confirmed and cluster.asked == 0

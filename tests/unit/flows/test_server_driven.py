# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""During a rollback of each server-driven kind, only the undone update may begin again."""

from __future__ import annotations

import dataclasses

import pytest
from builders import NOW, template
from every_kind import Cluster, update_request

from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.server_driven import recorded
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import (
    Revision,
    Rollout,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Action,
    Patch,
    Step,
    put,
)

KINDS = ["Deployment", "StatefulSet", "DaemonSet"]
#: Requests for three templates. Another request for the second template has the option images.
V2, V3 = {"image": "myimage:v2"}, {"image": "myimage:v3"}
V2_IN_IMAGES = {"image": None, "images": {"web": "myimage:v2"}}
V1, V1_IN_IMAGES = {"image": "myimage:v1"}, {"image": None, "images": {"web": "myimage:v1"}}


def request_for(kind, options, checksum=""):
    request = update_request(kind, **options)
    return dataclasses.replace(request, checksums={"foo": checksum}) if checksum else request


def rollback_request(kind):
    return update_request(kind, image=None, state="rolled_back")


def decide(request, cluster):
    flow, memory = choose(request), Memory(now=NOW, has_begun=True)
    request = flow.resolve_revision(request, cluster, memory)
    return flow.plan(request, flow.observe(request, cluster, memory))


def begin(request, cluster):
    for _step in range(5):
        step = decide(request, cluster)
        assert isinstance(step, Step) and cluster.write(step.write)
        if step.action is Action.UPDATE:
            return
    raise AssertionError("the update does not begin")


def let_server_move(cluster):
    cluster.cluster.make(cluster.cluster.moves()[0])


def finish(request, cluster):
    for _turn in range(20):
        step = decide(request, cluster)
        if not isinstance(step, Step):
            let_server_move(cluster)
            continue
        assert cluster.write(step.write)
        if step.ends_task:
            return
    raise AssertionError("the update does not end")


def is_begun_again(request, cluster):
    try:
        decision = decide(request, cluster)
    except RolloutError as error:
        assert "another update is being rolled back" in error.what
        return False
    assert isinstance(decision, Step) and decision.action is Action.UPDATE
    return True


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("undone, requested, expected", [
    ((V2, ""), (V2, ""), True),
    ((V2, ""), (V2_IN_IMAGES, ""), True),
    ((V2, ""), (V2, "1"), False),
    ((V2, ""), (V3, ""), False),
    ((V1, "1"), (V1_IN_IMAGES, "1"), True),
    ((V1, "1"), (V1, "2"), False),
    ((V1, "1"), (V2, ""), False)],
    ids=["same request", "same template", "other checksum", "other image",
         "same template of the previous image", "other checksum, same image", "new image"])
def test_only_the_undone_update_begins_again_during_a_rollback(kind, undone, requested, expected):
    cluster = Cluster(kind)
    begin(request_for(kind, *undone), cluster)
    cluster.settle()
    begin(rollback_request(kind), cluster)
    let_server_move(cluster)

    assert is_begun_again(request_for(kind, *requested), cluster) is expected


# Without a record, a Deployment shows no update to roll back.
@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet"])
def test_update_by_another_client_begins_again_during_its_rollback(kind):
    cluster, request = Cluster(kind), request_for(kind, V1, "1")
    desired_template = request.apply_to(cluster.controllers()["foo"].template)
    cluster.write(Patch("foo", (put("/spec/template", desired_template),), kind))
    let_server_move(cluster)
    let_server_move(cluster)
    begin(rollback_request(kind), cluster)
    let_server_move(cluster)

    assert is_begun_again(request, cluster)


@pytest.mark.parametrize("kind", KINDS)
def test_record_of_a_restoration_by_another_client_names_the_undone_update(kind):
    cluster = Cluster(kind)
    options = {"max_surge": "2", "max_unavailable": "0"} if kind == "Deployment" else {}
    begin(request_for(kind, {**V2, **options}), cluster)
    for _move in range(3):
        let_server_move(cluster)
    cluster.write(Patch("foo", (put("/spec/template", template("myimage:v1")),), kind))
    let_server_move(cluster)

    finish(rollback_request(kind), cluster)

    record = cluster.controllers()["foo"].last_rollout
    assert record["outcome"] == "rolled_back"
    assert (record["from"], record["to"]) == ({"web": "myimage:v2"}, {"web": "myimage:v1"})


@pytest.mark.parametrize("newest_other_revision, undone_name", [
    (Revision(3, {}, name="foo-v2"), "foo-v2"), (Revision(1, {}, name="foo-v0"), "foo-v1"),
    (None, "foo-v1")], ids=["undone revision", "revision from before the update", "unreadable"])
def test_undone_revision_of_a_restoration(newest_other_revision, undone_name):
    """The template of an update may be restored before the cluster has stored a revision."""
    record = Rollout(Rollout.UPDATING, {"web": "v1"}, {"web": "v2"}, NOW, "foo-v1", 2, {}, {}, "")

    restoration = recorded.restoration(record, newest_other_revision)

    assert (restoration.is_rolling_back and restoration.before == {"web": "v2"}
            and restoration.previous_name == undone_name)

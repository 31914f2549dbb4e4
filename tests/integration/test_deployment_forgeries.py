# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that a forged record of a Deployment causes only changes that a genuine one could."""

from __future__ import annotations

import json

import pytest
from objects import eventually
from writes import Killed, kill_at_write

from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.object_meta import HASH_LABEL
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import without_label

IMAGES = ("myimage:v1", "myimage:v2", "myimage:v3")
RECREATE = {"type": "Recreate"}
ALL_UNAVAILABLE = {
    "type": "RollingUpdate",
    "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"},
}


def run_task(namespace, **params):
    return namespace.roll(**{"kind": "Deployment", **params})


def annotate(namespace, record):
    """Write the record, and wait until the Deployment controller has observed it."""
    namespace.patch_deployment({"metadata": {"annotations": {object_meta.LAST_ROLLOUT: record}}})
    eventually(lambda: (item := namespace.deployment())["status"]["observedGeneration"]
               == item["metadata"]["generation"],
               "the observed generation")


def replica_set_name(namespace, image):
    return next(replica_set["metadata"]["name"] for replica_set in namespace.replica_sets()
                if replica_set["spec"]["template"]["spec"]["containers"][0]["image"] == image)


def forged_record(namespace, previous_image="myimage:v2", **changes):
    item = namespace.deployment()
    spec = item["spec"]
    request = parse_request({"name": "foo", "namespace": namespace.name, "kind": "Deployment",
                             "image": "myimage:v3"})
    return json.dumps(
        {
            "outcome": "updating",
            "from": {"web": previous_image},
            "to": {"web": "myimage:v3"},
            "time": "2026-01-01T00:00:00Z",
            "set": replica_set_name(namespace, previous_image),
            "revision": 2,
            "request": request.fingerprint,
            "template": identity.digest(without_label(spec["template"], HASH_LABEL)),
            "original": {"strategy": ALL_UNAVAILABLE},
            "paced": {"strategy": spec["strategy"]},
            **changes,
        }
    )


def deployment_spec(namespace):
    return namespace.deployment()["spec"]


FORGERIES = {
    "forged strategy": {},  # the default of forged_record()
    "Recreate": {"original": {"strategy": RECREATE}},
    "paused": {"original": {"paused": True}, "paused": 1},
    "rollback in progress": {"outcome": "rolling back"}, "no original settings": {"original": None},
    "another previous image": {"previous_image": "myimage:v1"},
}


def deployment_image(namespace):
    return deployment_spec(namespace)["template"]["spec"]["containers"][0]["image"]


def test_forged_record_after_an_update_causes_no_change(namespace):
    """A killed client may leave the same record, so a rollback to the previous revision is fine."""
    namespace.make_deployment(2)
    for image in IMAGES[1:]:
        run_task(namespace, image=image)
    before = deployment_spec(namespace)
    for forgery in FORGERIES.values():
        annotate(namespace, forged_record(namespace, **forgery))
        run_task(namespace, image="myimage:v3")
        assert deployment_spec(namespace) == before, forgery
        annotate(namespace, forged_record(namespace, **forgery))
        if forgery in (FORGERIES["forged strategy"], FORGERIES["rollback in progress"]):
            run_task(namespace, state="rolled_back")
            assert deployment_image(namespace) in ("myimage:v2", "myimage:v3")
            run_task(namespace, image="myimage:v3")
        else:
            with pytest.raises(RolloutError,
                               match=r"no update in progress to roll back; the previous revision "
                                     r"is \d+ .myimage:v2"):
                run_task(namespace, state="rolled_back")
        assert deployment_spec(namespace) == before, forgery

    annotate(namespace, forged_record(namespace))
    run_task(namespace, state="rolled_back", to_revision=1)
    assert deployment_image(namespace) == "myimage:v1"
    assert {**deployment_spec(namespace), "template": None} == {**before, "template": None}


def test_forged_record_during_a_pause_is_refused(namespace):
    namespace.make_deployment(2)
    run_task(namespace, image="myimage:v2")
    before = deployment_spec(namespace)
    run_task(namespace, image="myimage:v3", pause_at="1")
    genuine_record = namespace.deployment()["metadata"]["annotations"][object_meta.LAST_ROLLOUT]

    annotate(
        namespace,
        json.dumps(
            {**json.loads(genuine_record), "set": replica_set_name(namespace, "myimage:v1")}
        ),
    )
    with pytest.raises(RolloutError, match="is not of the previous revision"):
        run_task(namespace, state="rolled_back")
    annotate(
        namespace, json.dumps({**json.loads(genuine_record), "original": {"strategy": RECREATE}})
    )
    with pytest.raises(RolloutError,
                       match="of the Deployment foo were set by an update in progress, but its "
                             "record"):
        run_task(namespace, image="myimage:v3")

    annotate(namespace, genuine_record)
    run_task(namespace, state="rolled_back")
    assert deployment_spec(namespace) == before


@pytest.mark.parametrize("write_number, dies_after_write", [(1, True), (2, False)])
def test_rerun_after_a_kill_restores_the_strategy(namespace, write_number, dies_after_write):
    namespace.make_deployment(3)
    before = deployment_spec(namespace)
    with pytest.raises(Killed):
        run_task(namespace, image="myimage:v2", max_surge="2", max_unavailable="0",
                 fault=kill_at_write(write_number, dies_after_write))
    assert deployment_spec(namespace)["strategy"]["rollingUpdate"] == {
        "maxSurge": 2,
        "maxUnavailable": 0,
    }
    run_task(namespace, image="myimage:v2")
    assert {**deployment_spec(namespace), "template": None} == {**before, "template": None}

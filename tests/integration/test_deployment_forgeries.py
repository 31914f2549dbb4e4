# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A client that may only annotate a Deployment: no record makes a task change more than requested.
"""

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
RECKLESS = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}


def roll(namespace, **params):
    return namespace.roll(**{"kind": "Deployment", **params})


def annotate(namespace, text):
    namespace.patch_deployment({"metadata": {"annotations": {object_meta.LAST_ROLLOUT: text}}})
    eventually(lambda: (item := namespace.deployment())["status"]["observedGeneration"]
               == item["metadata"]["generation"],
               "the Deployment controller has seen it")


def set_of(namespace, image):
    return next(replica_set["metadata"]["name"] for replica_set in namespace.replica_sets()
                if replica_set["spec"]["template"]["spec"]["containers"][0]["image"] == image)


def forged(namespace, image="myimage:v2", **changes):
    """Return a record whose hashes are all right."""
    item = namespace.deployment()
    spec = item["spec"]
    request = parse_request({"name": "foo", "namespace": namespace.name, "kind": "Deployment",
                             "image": "myimage:v3"})
    return json.dumps({
        "outcome": "updating", "from": {"web": image}, "to": {"web": "myimage:v3"},
        "time": "2026-01-01T00:00:00Z",
        "set": set_of(namespace, image), "revision": 2, "request": request.fingerprint,
        "template": identity.digest(without_label(spec["template"], HASH_LABEL)),
        "original": {"strategy": RECKLESS}, "paced": {"strategy": spec["strategy"]}, **changes})


def spec_of(namespace):
    """Return the spec, without the sizes of the server's ReplicaSets."""
    return namespace.deployment()["spec"]


FORGERIES = {
    "a strategy": {}, "Recreate": {"original": {"strategy": RECREATE}},
    "paused": {"original": {"paused": True}, "paused": 1},
    "on its way back": {"outcome": "rolling back"}, "no original": {"original": None},
    "the first image": {"image": "myimage:v1"},
}


def image_of(namespace):
    return spec_of(namespace)["template"]["spec"]["containers"][0]["image"]


def test_forged_record_changes_nothing_after_an_update(namespace):
    """rolled_back trusts a record that a killed client may have written: back to the previous
    revision, no further.
    """
    namespace.make_deployment(2)
    for image in IMAGES[1:]:
        roll(namespace, image=image)
    before = spec_of(namespace)
    for forgery in FORGERIES.values():
        annotate(namespace, forged(namespace, **forgery))
        roll(namespace, image="myimage:v3")
        assert spec_of(namespace) == before, forgery
        annotate(namespace, forged(namespace, **forgery))
        if forgery in (FORGERIES["a strategy"], FORGERIES["on its way back"]):
            roll(namespace, state="rolled_back")
            assert image_of(namespace) in ("myimage:v2", "myimage:v3")
            roll(namespace, image="myimage:v3")
        else:
            with pytest.raises(RolloutError,
                               match=r"no update in progress to roll back; the previous revision "
                                     r"is \d+ .myimage:v2"):
                roll(namespace, state="rolled_back")
        assert spec_of(namespace) == before, forgery

    annotate(namespace, forged(namespace))
    roll(namespace, state="rolled_back", to_revision=1)
    assert image_of(namespace) == "myimage:v1"
    assert {**spec_of(namespace), "template": None} == {**before, "template": None}


def test_rollback_from_a_pause_ignores_a_forged_record(namespace):
    namespace.make_deployment(2)
    roll(namespace, image="myimage:v2")
    before = spec_of(namespace)
    roll(namespace, image="myimage:v3", pause_at="1")
    right = namespace.deployment()["metadata"]["annotations"][object_meta.LAST_ROLLOUT]

    annotate(namespace, json.dumps({**json.loads(right), "set": set_of(namespace, "myimage:v1")}))
    with pytest.raises(RolloutError, match="is not the one before the present one"):
        roll(namespace, state="rolled_back")
    annotate(namespace, json.dumps({**json.loads(right), "original": {"strategy": RECREATE}}))
    with pytest.raises(RolloutError,
                       match="of the Deployment foo were set by an update in progress, but its "
                             "record"):
        roll(namespace, image="myimage:v3")

    annotate(namespace, right)
    roll(namespace, state="rolled_back")
    assert spec_of(namespace) == before


@pytest.mark.parametrize("number, after", [(1, True), (2, False)])
def test_rerun_restores_the_baseline_settings(
        namespace, number, after):
    """The strategy's override is visible on the Deployment."""
    namespace.make_deployment(3)
    before = spec_of(namespace)
    with pytest.raises(Killed):
        roll(namespace, image="myimage:v2", max_surge="2", max_unavailable="0",
             fault=kill_at_write(number, after))
    assert spec_of(namespace)["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}
    roll(namespace, image="myimage:v2")
    assert {**spec_of(namespace), "template": None} == {**before, "template": None}

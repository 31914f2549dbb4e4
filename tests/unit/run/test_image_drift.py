# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check when a run compares the images of its new pods, and how it ends."""

from __future__ import annotations

import concurrent.futures

import pytest
from builders import SUCCESSOR, rc
from clusters import Cluster
from request_builders import V2, build_request

from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    RolloutError,
    RolloutFailed,
)

DIGEST_A, DIGEST_B = "a" * 64, "b" * 64


class DriftingCluster(Cluster):
    """Cluster where the tag of the new image moves during the update.

    The pod new-N runs the image with digests[N]; later pods run the image with the last digest.
    """

    def __init__(self, replicas, *digests):
        super().__init__(rc(replicas=replicas))
        self.digests, self.lacks_list_permission = digests, False
        #: The number of available new pods each time that the pods were listed.
        self.listed_sizes = []

    def all_pods(self, controller, excluded_revision=""):
        self.listed_sizes.append(controller.available)
        if self.lacks_list_permission:
            return None
        owner = [{"uid": controller.uid, "controller": True}]
        return [{"metadata": {"name": f"new-{number}", "uid": str(number),
                              "ownerReferences": owner, "labels": controller.selector},
                 "spec": {"containers": [{"name": "web", "image": "myimage:v2"}]},
                 "status": {"containerStatuses": [
                     {"name": "web", "imageID": f"r@{self.digest(number)}"}]}}
                for number in range(controller.available)]

    def revisions(self, uids):
        return list(self.cluster.stored_revisions.values())

    def digest(self, number):
        return self.digests[min(number, len(self.digests) - 1)]


def request(**options):
    return build_request(**V2, **options)


@pytest.mark.parametrize(("replicas", "options", "sizes"), [
    (1, {}, [1]), (2, {}, [2]), (4, {}, [2, 4]), (10, {}, [2, 5, 10]),
    (10, {"pause_at": "1"}, [1]), (10, {"pause_at": "3"}, [2, 3]),
    (10, {"image_drift": "ignore"}, []), (100, {"max_surge": "100%"}, [100]),
])
def test_the_new_pods_are_listed_at_most_three_times(replicas, options, sizes):
    cluster = DriftingCluster(replicas, DIGEST_A)

    cluster.run(request(**options))

    assert cluster.listed_sizes == sizes


def test_changed_pods_are_listed_again_at_the_end():
    """A restarted container changes the controller's resourceVersion."""
    cluster = DriftingCluster(2, DIGEST_A)
    list_pods = cluster.all_pods

    def all_pods(controller, excluded_revision=""):
        pods = list_pods(controller)
        if len(cluster.listed_sizes) == 1:
            cluster.cluster.items[SUCCESSOR]["metadata"]["resourceVersion"] = "2"
        return pods

    cluster.all_pods = all_pods
    result = cluster.run(request())

    assert cluster.listed_sizes == [2, 2] and not result["warnings"]


class Response(concurrent.futures.Future):
    """A future that does the work only when the update asks for the result."""

    def __init__(self, work):
        super().__init__()
        self.result = work


class SlowDriftingCluster(DriftingCluster):
    """Cluster that records the number of available pods at each wait for a list."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.sizes_at_waits = []

    def start_in_background(self, work):
        if getattr(work, "func", None) != self.all_pods:
            return None

        def response():
            self.sizes_at_waits.append(self.controllers()[SUCCESSOR].available)
            return work()

        return Response(response)


def test_update_waits_for_slow_lists_only_at_the_end():
    cluster = SlowDriftingCluster(10, DIGEST_A)

    cluster.run(request())

    assert (cluster.listed_sizes, cluster.sizes_at_waits) == ([2, 5, 10], [10, 10, 10])


def test_update_with_image_drift_fail_stops_at_the_end_on_a_slow_connection():
    cluster = SlowDriftingCluster(10, DIGEST_A, DIGEST_B)

    error = cluster.error(request(image_drift="fail"))

    assert error.what == "a tag has moved: the new pods run different versions of an image"
    assert error.progress["rollout"]["successor"]["available"] == 10


def test_a_warning_is_given_once():
    lines, cluster = [], DriftingCluster(10, DIGEST_A, DIGEST_B)

    result = cluster.run(request(), print_line=lines.append)

    warning = (f"a tag has moved: container web: myimage:v2 is {DIGEST_A} in 1 pod (new-0), "
               f"{DIGEST_B} in 1 pod (new-1)")
    assert result["warnings"] == [warning] and lines.count(f"warning: {warning}") == 1
    assert result["rollout"]["phase"] == "complete"


def test_update_with_image_drift_fail_stops_at_the_second_pod():
    cluster = DriftingCluster(10, DIGEST_A, DIGEST_B)

    error = cluster.error(request(image_drift="fail"))

    assert isinstance(error, RolloutFailed)
    assert error.what == "a tag has moved: the new pods run different versions of an image"
    assert error.progress["rollout"]["successor"]["available"] == 2
    assert error.causes[0]["kind"] == "image-drift"


def test_update_with_image_drift_fail_rolls_back_with_on_failure_rollback():
    cluster = DriftingCluster(4, DIGEST_A, DIGEST_A, DIGEST_A, DIGEST_B)

    error = cluster.error(request(image_drift="fail", on_failure="rollback"))

    assert "foo is rolled back to myimage:v1" in error.what
    assert {item["spec"]["template"]["spec"]["containers"][0]["image"]
            for item in cluster.items()} == {"myimage:v1"}


def test_next_run_compares_new_pods_with_the_canary_pod():
    cluster = DriftingCluster(4, DIGEST_A, DIGEST_B)
    cluster.run(request(image_drift="fail", pause_at="1"))

    with pytest.raises(RolloutFailed):
        cluster.run(request(image_drift="fail"))


def test_a_deleted_pod_still_counts_in_the_same_run():
    cluster = DriftingCluster(4, DIGEST_A)
    list_pods = cluster.all_pods

    def all_pods(controller, excluded_revision=""):
        pods = list_pods(controller)
        if len(cluster.listed_sizes) > 1:
            cluster.digests = (DIGEST_B,)
            return [{**pod, "metadata": {**pod["metadata"], "uid": f"later {number}"}}
                    for number, pod in enumerate(list_pods(controller))]
        return pods

    cluster.all_pods = all_pods

    assert len(cluster.run(request())["warnings"]) == 1


def test_missing_permission_is_an_error_only_with_image_drift_fail():
    cluster = DriftingCluster(2, DIGEST_A)
    cluster.lacks_list_permission = True
    assert cluster.run(request())["warnings"] == []

    cluster = DriftingCluster(2, DIGEST_A)
    cluster.lacks_list_permission = True
    with pytest.raises(RolloutError) as error:
        cluster.run(request(image_drift="fail"))
    assert (error.value.what
            == "its pods cannot be listed, and image_drift=fail needs to compare them")


def test_a_rollback_compares_nothing():
    cluster = DriftingCluster(4, DIGEST_A, DIGEST_B)
    cluster.run(request(pause_at="2", image_drift="ignore"))

    cluster.run(build_request(state="rolled_back", image_drift="fail"))

    assert cluster.listed_sizes == []

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run examples from the documentation of rolling_update."""

from __future__ import annotations

import pytest
import yaml
from objects import eventually, manifest, role_rules, uids
from plays import run_ad_hoc

from ansible_collections.baton.kubernetes.plugins.modules import rolling_update

EXAMPLES = {example["name"]: example.get("baton.kubernetes.rolling_update", {})
            for example in yaml.safe_load(rolling_update.EXAMPLES)}


def example_options(prefix):
    (options,) = (options for name, options in EXAMPLES.items() if name.startswith(prefix))
    return dict(options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("tag", ["v2", "v2-unready"])
def test_stateful_set_canary_is_rolled_back_only_if_unready(namespace, ansible_environment, tag):
    namespace.make_stateful_set(4)
    options = example_options("Update a canary of 10%")
    assert (options["kind"], options["soak"]) == ("StatefulSet", "10m")
    options |= {"soak": "1s", "image": f"myimage:{tag}", "progress_deadline": "5s"}

    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=tag == "v2", **options)

    images = [pod["spec"]["containers"][0]["image"] for pod in namespace.pods()]
    if tag == "v2":
        assert images.count("myimage:v2") == 1 and result["rollout"]["phase"] == "paused"
    else:
        assert images == ["myimage:v1"] * 4 and "rolled back" in result["msg"]


@pytest.mark.full
def test_update_by_label_stops_after_the_second_failure(
        namespace, ansible_environment):
    options = example_options("Update all controllers with a label")
    assert (options["concurrency"], options["max_failures"]) == (3, "1")
    options |= {"image": "myimage:v2-absent", "concurrency": 1, "failure_grace": "0"}
    for name in ("baton-stateful-sets", "baton-daemon-sets"):
        namespace.allow(role_rules(name), name)
    for number in range(4):
        body = manifest(1, "myimage:v1", f"foo-{number}")
        body["metadata"]["labels"]["app"] = "shop"
        kind = "Deployment" if number % 2 else "ReplicationController"
        namespace.create_controller(kind, body)
    eventually(lambda: len(namespace.pods()) == 4, "all pods")

    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=False, **options)

    assert [outcome["failed"] for outcome in result["results"]] == [True, True, False, False]
    assert [outcome["skipped"] for outcome in result["results"]] == [False, False, True, True]


def test_rollback_to_the_previous_revision(namespace, ansible_environment):
    namespace.make_deployment(2)
    namespace.roll(kind="Deployment", image="myimage:v2")

    result, _stderr = run_ad_hoc(namespace, ansible_environment,
                                 **example_options("Roll back to the previous revision"))

    assert result["msg"] == "foo is rolled back to myimage:v1: 2 of 2 replicas available"


@pytest.mark.full
def test_update_pauses_at_half_and_completes(namespace, ansible_environment):
    namespace.make_rc(4)

    paused_result, _stderr = run_ad_hoc(
        namespace, ansible_environment, **example_options("Pause the update"))
    completed_result, _stderr = run_ad_hoc(
        namespace, ansible_environment, **example_options("Update the rest"))

    assert paused_result["rollout"]["phase"] == "paused"
    assert paused_result["rollout"]["successor"]["replicas"] == 2
    assert completed_result["msg"] == "foo is updated to myimage:v2: 4 of 4 replicas available"


def test_restart_of_a_daemon_set_keeps_its_image(namespace, request, ansible_environment):
    request.addfinalizer(namespace.remove_nodes)
    namespace.add_nodes(2)
    namespace.make_daemon_set(2)
    before = uids(namespace.pods())

    run_ad_hoc(namespace, ansible_environment, **example_options("Restart the pods of a DaemonSet"))

    assert not before & uids(namespace.pods())
    assert {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {"myimage:v1"}

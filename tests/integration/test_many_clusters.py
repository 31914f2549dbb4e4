# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the playbook `regions` with three clusters, as docs/how-to/many-clusters.md describes."""

from __future__ import annotations

import contextlib
import json

import embedded
import pytest
from namespace import ADMISSION_PLUGINS, Namespace
from objects import pod_counts
from plays import CheckServer, Playbooks

REPLICAS = 2
REGIONS = {"canary": ["malmo"], "europe": ["lyon", "porto"]}
CLUSTER_NAMES = [cluster for clusters in REGIONS.values() for cluster in clusters]


@pytest.fixture
def clusters(monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with contextlib.ExitStack() as stack:
        namespaces = {}
        for name in CLUSTER_NAMES:
            cluster = stack.enter_context(embedded.up(embedded.checkout_cluster_name(name),
                                                      admission_plugins=ADMISSION_PLUGINS))
            namespaces[name] = Namespace(cluster.kubeconfig, name)
            stack.callback(namespaces[name].delete)
            namespaces[name].make_rc(REPLICAS)
        yield namespaces


@pytest.fixture
def inventory(clusters, tmp_path):
    """Provide an inventory with a host for each cluster, and a group for each region."""
    merged_config = {"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [],
                     "contexts": []}
    for name, namespace in clusters.items():
        config = namespace.kubeconfig_of({"token": namespace.token})
        for part in ("clusters", "users"):
            merged_config[part] += [{**config[part][0], "name": name}]
        merged_config["contexts"] += [{"name": name, "context": {"cluster": name, "user": name}}]
    (tmp_path / "kubeconfig").write_text(json.dumps(merged_config))
    groups = {region: {"hosts": {name: {"context": name,
                                        "controller_namespace": clusters[name].name}
                                 for name in names}}
              for region, names in REGIONS.items()}
    path = tmp_path / "clusters.yml"
    path.write_text(json.dumps({"all": {"vars": {"kubeconfig": str(tmp_path / "kubeconfig")},
                                        "children": groups}}))
    return path


@pytest.fixture
def playbooks(check_server, plain_environment, tmp_path):
    """Provide playbooks whose check requests a URL with the cluster's name instead of the stage."""
    playbooks = Playbooks(plain_environment, tmp_path, check_server)
    check = {"url": check_server.url + "{{ inventory_hostname }}"}
    playbooks.write(
        "smoke.yml", [{"name": "Request the check server", "ansible.builtin.uri": check}]
    )
    return playbooks


@pytest.fixture
def run_regions(clusters, inventory, check_server, playbooks):
    def run(image, *options, succeeds=True, **variables):
        check_server.requests.clear()
        return playbooks.run("regions", "-i", str(inventory), *options, succeeds=succeeds,
                             regions=list(REGIONS), image=image,
                             verify_tasks="smoke.yml", stages=["50%", "100%"], **variables)

    return run


@pytest.fixture
def check_server():
    with CheckServer() as check_server:
        yield check_server


def checked_clusters(check_server):
    return list(dict.fromkeys(cluster for (cluster,) in check_server.requests))


def new_pod_counts(clusters, names=CLUSTER_NAMES):
    return {name: pod_counts(clusters[name])[1] for name in names}


@pytest.mark.long
def test_regions_are_updated_in_order(clusters, run_regions, playbooks, check_server):
    check_server.failing_stages = {"malmo"}
    output = run_regions("myimage:v2", succeeds=False)
    assert new_pod_counts(clusters) == {"malmo": 0, "lyon": 0, "porto": 0}
    assert checked_clusters(check_server) == ["malmo"] and '"outcome": "rolled_back"' in output

    check_server.failing_stages = {"lyon"}
    run_regions("myimage:v2", succeeds=False, max_failed_clusters=50)
    assert new_pod_counts(clusters) == {"malmo": REPLICAS, "lyon": 0, "porto": REPLICAS}
    assert checked_clusters(check_server)[0] == "malmo"
    assert set(checked_clusters(check_server)) == {"malmo", "lyon", "porto"}

    check_server.failing_stages = set()
    output = run_regions("myimage:v2", report="rollout.html")
    pages = {"rollout.html", *(f"rollout-{name}.html" for name in CLUSTER_NAMES)}
    assert {path.name for path in playbooks.folder.glob("rollout*")} == pages
    assert new_pod_counts(clusters) == dict.fromkeys(CLUSTER_NAMES, REPLICAS)
    assert checked_clusters(check_server) == ["lyon"]
    stats = output.partition("CUSTOM STATS")[2]
    assert (all(f'"{name}": {{' in stats for name in CLUSTER_NAMES)
            and stats.count('"outcome": "updated"') == 3)


@pytest.mark.long
def test_unreachable_cluster_fails_the_playbook_after_the_others_succeed(
    clusters, inventory, run_regions, playbooks
):
    reachable = ["malmo", "lyon"]
    porto = embedded.find(embedded.checkout_cluster_name("porto"))

    def assert_only_porto_failed(output, outcome):
        stats = output.partition("CUSTOM STATS")[2]
        text_before_recap = " ".join(output.partition("PLAY RECAP")[0].split())
        assert ("fatal: [porto]" in output
                and f"the API server at {porto.server} cannot be reached" in text_before_recap)
        assert "for this cluster only" in text_before_recap and "--limit porto" in text_before_recap
        assert all(f"--limit {name}" not in text_before_recap for name in reachable)
        assert stats.count(outcome) == len(reachable) and '"porto": {' in stats

    porto.stop("kube-apiserver", kill=True)
    try:
        assert_only_porto_failed(run_regions("myimage:v2", succeeds=False, max_failed_clusters=50),
                                 '"outcome": "updated"')
        assert new_pod_counts(clusters, reachable) == dict.fromkeys(reachable, REPLICAS)

        assert_only_porto_failed(
            playbooks.run("status", "-i", str(inventory), succeeds=False), '"phase": "complete"'
        )

        rollback_variables = {"image": "myimage:v1", "controller": "", "label_selectors": "app=foo"}
        assert_only_porto_failed(
            playbooks.run("rollback", "-i", str(inventory), succeeds=False, **rollback_variables),
            '"outcome": "rolled_back"',
        )
        assert new_pod_counts(clusters, reachable) == dict.fromkeys(reachable, 0)
    finally:
        porto.start("kube-apiserver")

    run_regions("myimage:v2", "--limit", "porto", max_failed_clusters=50)
    assert new_pod_counts(clusters) == {**dict.fromkeys(reachable, 0), "porto": REPLICAS}

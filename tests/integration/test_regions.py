# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the order of regions, and the defaults of AWX's surveys for each kind.

Each host of the inventory stands for a cluster, but all controllers are in one namespace.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from objects import manifest, role_rules
from plays import CheckServer, Playbooks

ROOT = Path(__file__).parents[2]
#: The host b is in two groups, and its API server is unreachable.
REGIONS = {"canary": ["a", "b"], "europe": ["b", "c"], "asia": ["d"]}
KINDS = ["ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet"]


@pytest.fixture
def playbooks(ansible_environment, tmp_path):
    with CheckServer() as check_server:
        yield Playbooks(ansible_environment, tmp_path, check_server)


def write_inventory(playbooks, groups, hosts):
    children = {group: {"hosts": {name: hosts[name] for name in names}}
                for group, names in groups.items()}
    playbooks.write("clusters.yml", {"all": {"children": children}})


@pytest.fixture
def image_tags(namespace, playbooks):
    """Create the controllers. Provide a function that returns their image tags, by cluster."""
    kubeconfig = json.loads(Path(namespace.kubeconfig).read_text())
    context = kubeconfig["contexts"][0]["name"]
    unreachable_cluster = {"name": "dead", "cluster": {"server": "https://127.0.0.1:1"}}
    kubeconfig["clusters"].append(unreachable_cluster)
    kubeconfig["contexts"].append({"name": "dead",
                                   "context": {**kubeconfig["contexts"][0]["context"],
                                               "cluster": "dead"}})
    playbooks.write("kubeconfig", kubeconfig)
    reachable_hosts = ["a", "c", "d"]
    for name in reachable_hosts:
        namespace.create("replicationcontrollers", manifest(1, "myimage:v1", name))
    for name in reachable_hosts:
        namespace.until_available(name, 1)
    hosts = {name: {"kubeconfig": str(playbooks.folder / "kubeconfig"),
                    "context": context if name in reachable_hosts else "dead",
                    "controller": name, "controller_namespace": namespace.name}
             for name in [*reachable_hosts, "b"]}
    write_inventory(playbooks, REGIONS, hosts)
    return lambda: {
        name: namespace.rc(name)["spec"]["template"]["spec"]["containers"][0]["image"][-2:]
        for name in reachable_hosts}


@pytest.mark.full
def test_failed_region_stops_the_next_regions(playbooks, image_tags):
    def run_regions(*options):
        return playbooks.run_command("ansible-playbook", "-i", "clusters.yml",
                                     "baton.kubernetes.regions", "-e",
                                     "regions=canary,europe,asia image=myimage:v2", *options,
                                     succeeds=False)

    output = run_regions()
    assert image_tags() == {"a": "v2", "c": "v1", "d": "v1"}
    assert re.findall(r'"region": "(\w+)"', output) == ["canary", "europe", "asia"]
    assert ("c not started: 1 of 2 clusters in an earlier batch failed (b: failed), and at most 0% "
            "(never all) may fail." in output)

    output = run_regions("--limit", "!d", "-e", "max_failed_clusters=50 report=cab.html")
    assert image_tags() == {"a": "v2", "c": "v2", "d": "v1"} and "not started" not in output
    pages = {path.name: path.read_text(encoding="utf-8")
             for path in playbooks.folder.glob("*.html")}
    assert (set(pages) == {"cab.html", "cab-a.html", "cab-b.html", "cab-c.html"}
            and "canary" in pages["cab.html"])


@pytest.mark.full
def test_failed_region_stops_the_next_regions_of_the_documented_play(playbooks, image_tags):
    page = (ROOT / "docs" / "how-to" / "many-clusters.md").read_text(encoding="utf-8")
    (play,) = yaml.safe_load(re.findall(r"```yaml\n(- hosts: all.*?)```", page, re.DOTALL)[0])
    (role_entry,) = play["roles"]
    role_entry |= {"image_bump_name": "{{ controller }}",
                   "image_bump_namespace": "{{ controller_namespace }}",
                   "image_bump_image": "myimage:v2"}
    playbooks.write("smoke.yml", [{"ansible.builtin.debug": {}}])
    playbooks.write("play.yml", [play | {"serial": [2, "100%"]}])

    output = playbooks.run_command("ansible-playbook", "-i", "clusters.yml", "play.yml",
                                   succeeds=False)

    assert (image_tags() == {"a": "v2", "c": "v1", "d": "v1"}
            and "c, d not started: 1 of 2 clusters in an earlier batch failed (b: failed)"
            in output)


@pytest.fixture
def labels_and_images(namespace, playbooks):
    """Create each kind. Provide a function that returns the pairs (label, image) of the pods."""
    for name in ("baton-stateful-sets", "baton-daemon-sets"):
        namespace.allow(role_rules(name), name)
    namespace.add_nodes(2)
    try:
        for kind in KINDS[:-1]:
            namespace.create_controller(kind, manifest(2, name=kind.lower()),
                                        **({"serviceName": "foo"} if kind == "StatefulSet" else {}))
        namespace.make_daemon_set(2, name="daemonset")
        hosts = {kind: {"kubeconfig": namespace.kubeconfig, "controller": kind.lower(),
                        "kind": kind} for kind in KINDS}
        write_inventory(playbooks, {"all_kinds": KINDS}, hosts)
        yield lambda: {(pod["metadata"]["labels"]["app"], pod["spec"]["containers"][0]["image"])
                       for pod in namespace.pods()}
    finally:
        namespace.remove_nodes()


@pytest.mark.full
def test_survey_defaults_are_valid_for_each_kind(namespace, playbooks, labels_and_images):
    def launch(playbook, survey, **answers):
        spec = json.loads((ROOT / "examples" / "awx"
                           / f"{survey}.survey.json").read_text(encoding="utf-8"))["spec"]
        defaults = {question["variable"]: question["default"] for question in spec}
        variables = defaults | {"controller_namespace": namespace.name} | answers
        for variable in ("controller", "kind"):
            del variables[variable]
        playbooks.run_command("ansible-playbook", "-f", "5", "-i", "clusters.yml",
                              f"baton.kubernetes.{playbook}", "-e",
                              json.dumps(variables))

    launch("regions", "image_bump", image="myimage:v2")
    assert labels_and_images() == {(kind.lower(), "myimage:v2") for kind in KINDS}

    launch("rollback", "rollback", image="myimage:v1")
    assert labels_and_images() == {(kind.lower(), "myimage:v1") for kind in KINDS}

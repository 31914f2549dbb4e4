# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that playbooks change the clusters of the selected hosts, not the current context's.

Two namespaces of one cluster represent two clusters.
"""

from __future__ import annotations

import json

import html5lib
import pytest
from namespace import Namespace
from objects import pod_counts
from plays import CheckServer, Playbooks

from ansible_collections.baton.kubernetes.plugins.module_utils.release.batches import host_pattern

CLUSTERS = ["lyon", "porto"]
REGIONS = {"north": {"hosts": {"lyon": {}}}, "south": {"hosts": {"porto": {}}}}
HTML = "{http://www.w3.org/1999/xhtml}"


@pytest.fixture
def clusters(cluster, namespace):
    """Provide the namespaces by host.

    In both, and in the namespace of the current context, an update is paused.
    """
    namespaces = {name: Namespace(cluster.kubeconfig, name) for name in CLUSTERS}
    for target in (namespace, *namespaces.values()):
        target.make_rc(2)
        target.roll(image="myimage:v2", pause_at="1")
    yield namespaces
    for target in namespaces.values():
        target.delete()


@pytest.fixture
def playbooks(clusters, namespace, plain_environment, tmp_path):
    """Provide playbooks. The current context belongs to neither cluster.

    The hosts in machines.yml have no contexts.
    """
    kubeconfigs = {name: target.kubeconfig_of({"token": target.token})
                   for name, target in {"current": namespace, **clusters}.items()}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "current-context": "current",
                  **{part: [{**config[part][0], "name": name}
                            for name, config in kubeconfigs.items()]
                     for part in ("clusters", "users")},
                  "contexts": [{"name": name, "context": {"cluster": name, "user": name}}
                               for name in kubeconfigs]}
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    hosts = {name: {"context": name, "rollback_namespace": target.name,
                    "image_bump_namespace": target.name,
                    "controller_namespace": target.name}
             for name, target in clusters.items()}
    (tmp_path / "clusters.yml").write_text(json.dumps({"all": {"hosts": hosts}}))
    (tmp_path / "machines.yml").write_text(json.dumps({"all": {"hosts": {"web1": {}, "web2": {}}}}))
    with CheckServer() as check_server:
        yield Playbooks({**plain_environment, "K8S_AUTH_KUBECONFIG": str(tmp_path / "kubeconfig")},
                        tmp_path, check_server)


def new_pod_counts(*namespaces):
    """Return for each namespace 0 after a rollback, 1 at the pause, and 2 after the update."""
    return [pod_counts(namespace)[1] for namespace in namespaces]


@pytest.mark.full
def test_rollback_changes_all_selected_clusters(clusters, namespace, playbooks):
    lyon, porto = clusters.values()

    output = playbooks.run("rollback", "-i", "clusters.yml", "--limit", "lyon")
    assert new_pod_counts(lyon, porto, namespace) == [0, 1, 1]
    assert ('"lyon": {' in output.partition("CUSTOM STATS")[2]
            and '"outcome": "rolled_back"' in output)

    playbooks.run("rollback", "-i", "clusters.yml")
    assert new_pod_counts(lyon, porto, namespace) == [0, 0, 1]


@pytest.mark.sample(1)
@pytest.mark.parametrize("playbook", ["rollback", "status", "image_bump"])
def test_limit_that_selects_no_cluster_is_an_error(clusters, namespace, playbooks, playbook):
    for inventory in (["-i", "clusters.yml", "--limit", "nowhere"], ["--limit", "lyon"],
                      ["-i", "machines.yml", "--limit", "web1"]):
        playbooks.run(playbook, *inventory, succeeds=False, image="myimage:v2")

    assert new_pod_counts(namespace, *clusters.values()) == [1, 1, 1]


@pytest.mark.full
def test_regions_without_a_selected_cluster_are_an_error(clusters, namespace, playbooks):
    playbooks.write("regions.yml", REGIONS)

    for options in ([], ["--limit", "lyon"],
                    ["-i", "clusters.yml", "-i", "regions.yml", "--limit", "lyon"]):
        playbooks.run("regions", *options, succeeds=False, image="myimage:v2", regions=["south"])

    assert new_pod_counts(namespace, *clusters.values()) == [1, 1, 1]


@pytest.mark.full
@pytest.mark.parametrize("place", ["option", "import", "all", "north"])
def test_next_region_waits_wherever_the_regions_are_set(clusters, namespace, playbooks, place):
    """The keywords of a play see only -e and the variables of an import, but tasks see all."""
    variables = {"regions": list(REGIONS)}
    groups = {**REGIONS, "all": {}}
    if place in groups:
        groups[place] = {**groups[place], "vars": variables}
    playbooks.write("regions.yml", groups)
    playbooks.write("play.yml", [{"ansible.builtin.import_playbook": "baton.kubernetes.regions",
                                  "vars": variables if place == "import" else {}}])
    extra = {"controller": "foo", "image": "myimage:v2", "stages": "100%",
             "verify_tasks": ["fail.yml"], **(variables if place == "option" else {})}

    output = playbooks.run_command("ansible-playbook", "-i", "clusters.yml", "-i", "regions.yml",
                                   "play.yml", "-e", json.dumps(extra), succeeds=False)

    begins = place in ("option", "import")
    assert new_pod_counts(*clusters.values()) == [0 if begins else 1, 1]
    assert ("lyon, porto not started: " in output and "set regions with -e" in output) is not begins


@pytest.mark.full
def test_failure_after_an_earlier_update_stops_the_next_region(clusters, namespace, playbooks):
    playbooks.write("regions.yml", REGIONS)
    playbooks.write("play.yml", [
        {"hosts": "all", "connection": "local", "gather_facts": False, "tasks": [
            {"name": "Simulate an earlier import of the playbook",
             "ansible.builtin.set_fact": {"image_bump_outcome": "updated"}},
            {"name": "Fail in lyon", "ansible.builtin.fail": {"msg": "closed"},
             "when": "inventory_hostname == 'lyon'"}]},
        {"ansible.builtin.import_playbook": "baton.kubernetes.regions"}])

    output = playbooks.run_command(
        "ansible-playbook", "-i", "clusters.yml", "-i", "regions.yml", "play.yml", "-e",
        json.dumps({"controller": "foo", "image": "myimage:v2", "regions": list(REGIONS)}),
        succeeds=False)

    assert new_pod_counts(*clusters.values()) == [1, 1]
    assert "(lyon: updated, then failed)" in output


@pytest.mark.full
def test_names_that_ansible_reads_as_patterns_select_one_cluster(clusters, namespace, playbooks):
    lyon, porto = clusters.values()
    names = {"lyon": "arn:aws:south:1:cluster/lyon", "porto": "lyon:south"}
    inventory = json.loads((playbooks.folder / "clusters.yml").read_text())
    hosts = {names[name]: host for name, host in inventory["all"]["hosts"].items()}
    playbooks.write("clusters.yml", {
        "north": {"hosts": {names["lyon"]: hosts[names["lyon"]]}},
        "south": {"hosts": {names["porto"]: hosts[names["porto"]]}}})

    playbooks.run("regions", "-i", "clusters.yml", regions=["north"], image="myimage:v2")
    assert new_pod_counts(lyon, porto) == [2, 1]

    output = playbooks.run("status", "-i", "clusters.yml", "--limit", host_pattern("lyon:south"),
                           kind="DaemonSet", succeeds=False)
    assert "--limit '~lyon[:]south$'" in output and "cluster/lyon" not in output

    playbooks.run("regions", "-i", "clusters.yml", regions=["north", "south"], image="myimage:v2")
    assert new_pod_counts(lyon, porto) == [2, 2]


@pytest.mark.full
def test_cluster_with_an_invalid_variable_is_a_cluster(clusters, namespace, playbooks):
    playbooks.write("broken.yml", {"all": {"hosts": {"lyon": {
        "kubeconfig": "{{ lookup('ansible.builtin.file', '/nonexistent') }}"}}}})
    inventory = ["-i", "clusters.yml", "-i", "broken.yml"]

    output = playbooks.run("image_bump", *inventory, succeeds=False, image="myimage:v2")
    assert "baton.kubernetes.regions" in output
    assert new_pod_counts(*clusters.values()) == [1, 1]

    playbooks.run("rollback", *inventory, succeeds=False)
    assert new_pod_counts(*clusters.values()) == [1, 0]


@pytest.mark.full
def test_invalid_report_of_one_cluster_does_not_fail_the_update_of_another(clusters, playbooks):
    playbooks.write("reports.yml", {"all": {"hosts": {
        "lyon": {"report": "lyon.html"},
        "porto": {"report": "{{ lookup('ansible.builtin.file', '/nonexistent') }}"}}}})

    playbooks.run("regions", "-i", "clusters.yml", "-i", "reports.yml", succeeds=False,
                  image="myimage:v2")

    assert new_pod_counts(*clusters.values()) == [2, 1]
    assert (playbooks.folder / "lyon.html").exists()


@pytest.mark.full
def test_status_shows_all_clusters_of_the_inventory(clusters, playbooks):
    output = playbooks.run("status", "-i", "clusters.yml")

    stats = output.partition("CUSTOM STATS")[2]
    assert (all(f'"{name}": {{' in stats for name in CLUSTERS)
            and stats.count('"phase": "paused"') == 2)


def test_image_bump_refuses_several_clusters(clusters, namespace, playbooks):
    lyon, porto = clusters.values()

    output = playbooks.run("image_bump", "-i", "clusters.yml", succeeds=False, image="myimage:v2")
    assert "baton.kubernetes.regions" in output
    assert new_pod_counts(lyon, porto, namespace) == [1, 1, 1]

    playbooks.run("image_bump", "-i", "clusters.yml", "--limit", "porto", image="myimage:v2")
    assert new_pod_counts(lyon, porto, namespace) == [1, 2, 1]


@pytest.mark.full
@pytest.mark.parametrize(
    "inventory", [[], ["-i", "machines.yml"]], ids=["no inventory", "inventory of machines"]
)
def test_context_option_selects_the_cluster_without_an_inventory_of_clusters(
    clusters, namespace, playbooks, inventory
):
    lyon, porto = clusters.values()

    playbooks.run("rollback", *inventory, controller_namespace=namespace.name)
    playbooks.run("rollback", *inventory, controller_namespace=lyon.name, context="lyon")

    assert new_pod_counts(lyon, porto, namespace) == [0, 1, 0]


@pytest.mark.full
@pytest.mark.parametrize("fails", [False, True])
def test_one_report_covers_all_clusters(clusters, namespace, playbooks, fails):
    """The report includes clusters whose update did not start because another region failed."""
    playbooks.write("regions.yml", REGIONS)

    playbooks.run("regions", "-i", "clusters.yml", "-i", "regions.yml", succeeds=not fails,
                  regions=["north", "south"],
                  image="myimage:v2", report="rollout.html", stages="100%",
                  verify_tasks=["fail.yml"] if fails else "")

    pages = {path.name: path.read_text("utf-8") for path in playbooks.folder.glob("rollout*.html")}
    assert (set(pages)
            == {"rollout.html", "rollout-lyon.html",
                *(["rollout-porto.html"] if not fails else [])})
    tree = html5lib.HTMLParser(strict=True).parse(pages["rollout.html"])
    rows = {"".join(row[0].itertext()): " ".join(" ".join(row.itertext()).split())
            for row in tree.iter(f"{HTML}tr")}
    links = [link.get("href") for link in tree.iter(f"{HTML}a")]
    assert list(rows) == ["Cluster", "lyon north", "porto south"]
    if fails:
        assert ("rolled back" in rows["lyon north"] and "stock-taking" in rows["lyon north"]
                and "not known" in rows["porto south"])
        assert (links == ["./rollout-lyon.html"]
                and "0 of 2 clusters are updated" in pages["rollout.html"])
    else:
        assert all("2 of 2 replicas available" in rows[name]
                   for name in ("lyon north", "porto south"))
        assert (links == ["./rollout-lyon.html", "./rollout-porto.html"]
                and "2 of 2 clusters are updated" in pages["rollout.html"])


@pytest.mark.full
def test_report_shows_a_failed_and_a_successful_cluster(clusters, namespace, playbooks):
    """The first host writes the report although its update fails."""
    playbooks.write("fail-in-lyon.yml",
                    [{"name": "Fail in lyon", "ansible.builtin.fail": {"msg": "closed"},
                      "when": "inventory_hostname == 'lyon'"}])

    playbooks.run("regions", "-i", "clusters.yml", succeeds=False, image="myimage:v2",
                  report="rollout.html", stages="100%",
                  verify_tasks=["fail-in-lyon.yml"], max_failed_clusters=50)

    page = (playbooks.folder / "rollout.html").read_text("utf-8")
    assert ("1 of 2 clusters is updated" in page and page.count("./rollout-") == 2
            and "closed" in page)

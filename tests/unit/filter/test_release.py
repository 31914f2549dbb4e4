# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the filters of the roles, and that they report invalid input in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError, AnsibleUndefinedVariable
from releases import NOW, variables
from results import module_result, paused

from ansible_collections.baton.kubernetes.plugins.filter import release
from ansible_collections.baton.kubernetes.plugins.plugin_utils import analyses, pages

FILTERS = release.FilterModule().filters()


@pytest.mark.parametrize("value, splits_at_commas, entries", [
    ("", False, []), ([], True, []), (None, False, []),
    ("10%, 50%\n100%", True, ["10%", "50%", "100%"]),
    ("app=a,tier=b\n\n app=c ", False, ["app=a,tier=b", "app=c"]), (["10%", 3], True, ["10%", "3"]),
    (["a,b"], True, ["a", "b"]),
    (["a\nb"], False, ["a", "b"]), (3, True, ["3"]),
], ids=["empty text", "empty list", "None", "commas", "lines", "list", "commas in a list",
        "lines in a list", "number"])
def test_entries_of_a_list_or_a_text(value, splits_at_commas, entries):
    assert release.entries(value, splits_at_commas) == entries


@pytest.mark.parametrize("path",
                         ["/etc/x.yml", "../x.yml", "checks/../../x.yml", "~/x.yml", "~ada/x.yml"])
def test_survey_path_outside_the_project_is_refused(path):
    with pytest.raises(AnsibleFilterError, match="is not a path inside the project"):
        release.entries(f"smoke.yml\n{path}", inside=True)

    assert release.entries(path) == [path]
    assert release.entries("smoke.yml\nchecks/..x/a.yml", inside=True) == [
        "smoke.yml", "checks/..x/a.yml"]
    assert release.entries(".\n./", inside=True) == [".", "./"], (
        "release_request refuses a folder, with all other errors")


def test_release_turn_by_turn():
    """Call the filters as the tasks of the role call them."""
    request = variables(stages=["10%"], analyses=[{"count": 3}], approve_within="1h")
    first_turn = release.next_turn(request, {}, now=NOW)
    assert (first_turn["state"]["turn"]["title"] == "Update a to 10%"
            and first_turn["state"]["file"] == "turn.yml")
    assert release.turn_options(request, first_turn["state"])["pause_at"] == "10%"

    result = module_result(
        paused("a") | {"rollout": {"phase": "paused", "controller": {"replicas": 3}, "since": NOW}})
    analysis_turn = release.next_turn(request, first_turn["state"], result, {}, NOW)
    (controller_and_analysis,) = analysis_turn["state"]["turn"]["analyses"]
    assert release.analysis_options(
        request, analysis_turn["state"], controller_and_analysis, []) == {
        "count": 3, "name": "a", "namespace": "shop", "on_no_old_pods": "inconclusive"}
    results = [{"name": "a", "old_pods": ["x"], "msg": "fine", "metrics": [], "measurements": []}]

    show_turn = release.next_turn(request, analysis_turn["state"], {"results": results}, {}, NOW)
    approval_turn = release.next_turn(request, show_turn["state"], now=NOW)
    assert release.approval_answer(request, approval_turn["state"], None, NOW) == {
        "is_answered": False, "looks": 725}  # 1 h / 5 s, plus 5

    failure = release.failed_task({"msg": "no"}, "Wait")
    rollback_turn = release.next_turn(request, approval_turn["state"], {}, failure, NOW)
    assert (rollback_turn["state"]["turn"]["title"] == "Roll back a"
            and rollback_turn["facts"]["history"]["stages"][1]["outcome"] == "failed")
    artifacts = release.release_artifacts(request, rollback_turn["state"])
    host_artifacts = release.release_artifacts(request | {"host": "eu"}, rollback_turn["state"])
    text = json.dumps({"clusters": {"eu": artifacts}}).replace(
        "baton.kubernetes.rollback with", "baton.kubernetes.rollback on the host eu with")
    assert artifacts["controller"] == "a" and host_artifacts == json.loads(text)
    last_turn = release.next_turn(request, rollback_turn["state"],
                                  {"msg": "back", "changed": True}, {}, NOW)
    assert last_turn["state"]["file"] == "fail.yml"
    assert last_turn["facts"]["outcome"] == "rolled_back"


@pytest.mark.parametrize("analysis, message", [
    ({"metrics": [{"min": 1}], "prometheus_url": "http://x"}, None), ({}, None),
    ({"metrics": [{"min": "0.5"}], "count": "3"}, None),
    ({"metrics": [{"min": 1}], "prometheus_ca_cert": "/of/another/machine"}, None),
    ({"metrics": [{"type": "error_lines", "max": 1}]}, None),
    ({"metrics": [{"type": "error_lines", "max": 1, "pattern": "("}]},
     "is not a Python regular expression: missing )"),
    ({"metricz": []}, "metricz"), ({"metrics": [{"min": 1, "typ": "latency"}]}, "typ"),
    ({"count": "many"}, "count"),
    ({"metrics": [{"type": "latency"}]}, "metric latency has no threshold"),
    ({"metrics": [{"min": 1}], "failure_limit": 1}, "no metric could ever fail"),
    ({"prometheus_url": "http://u:s3cret/x@prom"},
     "prometheus_url 'http://prom' is not a valid address: it must look like"),
    ({"prometheus_url": "http://x", "prometheus_username": "me"}, "must be used together"),
    ({"prometheus_password": "s3cret", "window": "s3cret", "metrics": [{"min": 1}]},
     "window '********' is not a duration"),
])
def test_invalid_analysis_is_refused_before_the_release(analysis, message):
    errors = analyses.validate([{"metrics": [{"min": 1}]}, analysis])

    assert len(errors) == (message is not None)
    assert all(error.startswith("analysis 2: ") and message in error and "s3cret" not in error
               for error in errors), errors


def test_each_filter_is_documented_with_its_arguments():
    for name, function in FILTERS.items():
        documentation = yaml.safe_load((Path(release.__file__).parent
                                        / f"{name}.yml").read_text())["DOCUMENTATION"]
        _input, *arguments = function.__code__.co_varnames[:function.__code__.co_argcount]
        assert documentation["name"] == name
        assert set(documentation["options"]) == {"_input", *arguments}
        assert documentation.get("positional", "").replace(",", "").split() == arguments


@pytest.mark.parametrize("regions", ["canary,europe", "canary\neurope", ["canary", "europe"]])
def test_regions_as_text_or_list(regions):
    groups = {"all": ["a", "b"], "canary": ["b"], "europe": ["a"]}

    assert release.region_batches(groups, regions, ["a", "b"]) == {"canary": ["b"], "europe": ["a"]}
    assert release.region_batches(groups, "", ["a", "b"]) == {"all": ["a", "b"]}
    with pytest.raises(AnsibleFilterError, match="no group spare"):
        release.region_batches(groups, "spare", ["a"])


@pytest.mark.parametrize("percentage, starts_next_batch",
                         [(0, False), ("", False), ("50", True), ("50%", True), (50.0, True),
                          (49, False)])
def test_max_failed_clusters_is_a_percentage(percentage, starts_next_batch):
    assert (release.batch_gate(["a", "b", "c"], ["c"], ["a", "a", ""], ["failed", "updated", ""],
                               percentage) == "") is starts_next_batch


def test_batch_after_a_later_failure_is_refused():
    arguments = (["a", "b"], ["b"], ["a", ""], ["updated", ""])

    assert "a: updated, then failed" in release.batch_gate(*arguments, remaining=["b"])
    assert release.batch_gate(*arguments, remaining=["a", "b"]) == ""
    assert "regions are: none" in release.batch_gate(*arguments, regions={})


@pytest.mark.parametrize("percentage", ["half", -1, 101])
def test_invalid_max_failed_clusters_is_refused(percentage):
    with pytest.raises(AnsibleFilterError,
                       match="max_failed_clusters must be a percentage from 0 to 100"):
        release.batch_gate(["a"], ["a"], [""], [""], percentage)


@pytest.mark.parametrize("path, host, other_paths, page", [
    ("europe.html", "eu", ["europe.html"], "europe-eu.html"),
    ("rollout-lyon.html", "lyon", ["rollout-lyon.html"], "rollout-lyon-lyon.html"),
    ("rollout-lyon.html", "lyon", ["rollout-porto.html"], "rollout-lyon.html"),
    ("europe.html", "lyon", ["canary.html", "europe.html"], "europe-lyon.html"),
    ("canary.html", "malmo", ["europe.html", "europe.html"], "canary.html"),
    ("europe.html", "eu", [], "europe-eu.html"),
    ("out/r.html", "localhost", [], "out/r.html"), ("", "eu", [""], ""),
    ("/tmp/v1.2/report", "eu", ["/tmp/v1.2/report"], "/tmp/v1.2/report-eu"),
], ids=["file name contains the host by chance", "same path for all hosts", "path with the host",
        "path of a group", "path of a group with one host",
        "single host of an inventory", "no inventory", "no report", "no suffix"])
def test_path_of_the_page_of_a_cluster(path, host, other_paths, page):
    assert pages.host_page(path, host, [path, *other_paths]) == page


def test_path_of_an_unknown_variable_gets_the_host():
    assert pages.host_page("a.html", "eu", []) == "a-eu.html"
    assert pages.host_page("a.html", "eu", ["", ""]) == "a-eu.html"


def test_page_of_all_clusters():
    pages = release.report_overview(["eu", "us"], [{"a": 1}, {}], "/out/all.html",
                                    "/out/all-eu.html", {"canary": ["eu"]})

    assert pages == {"/out/all.html": {"clusters": {"eu": {"a": 1}, "us": {}},
                                       "regions": {"canary": ["eu"]}}}
    assert release.report_overview(["eu"], [{}], "/out/all.html", "/out/all-eu.html") == {}
    assert release.report_overview(["eu", "us"], [{}, {}], "/out/eu.html", "/out/eu.html") == {}
    assert release.report_overview(["eu", "us"], [{}, {}], "", "") == {}


def test_each_host_has_its_own_page():
    hosts = ["localhost", "eu", "europe", "a/b", "a-b", "a%2Fb", "a b", "../x",
             "arn:aws:eks:eu-1:42:cluster/shop"]
    paths = [pages.host_page("out/all.html", host, ["out/all.html"] * len(hosts), is_alone=False)
             for host in hosts]

    assert len(set(paths) | {"out/all.html"}) == len(hosts) + 1
    assert {str(Path(page).parent) for page in paths} == {"out"}
    assert pages.host_page("out/all.html", "localhost", []) == "out/all.html"


class Variables(dict):
    """Variables of a host that are evaluated at each access, as in `hostvars`."""

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if isinstance(value, Exception):
            raise value
        return value

    def get(self, name, default=None):
        try:
            return self[name]
        except KeyError:
            return default


INVALID = AnsibleUndefinedVariable("'cloud' is undefined")


@pytest.mark.parametrize("variables, local_variables, is_cluster", [
    ({}, {}, False), ({"context": "eu"}, {}, True), ({"kubeconfig": "eu"}, {}, True),
    ({"context": "eu"}, {"context": "eu"}, False), ({"context": "eu"}, {"context": "us"}, True),
    ({"kubeconfig": ""}, {"kubeconfig": None}, False), ({}, {"kubeconfig": "us"}, True),
    ({"kubeconfig": INVALID}, {}, True), ({"context": INVALID}, {"context": INVALID}, True),
    ({"report": INVALID}, {}, False),
])
def test_host_with_its_own_or_an_invalid_connection_is_a_cluster(variables, local_variables,
                                                                 is_cluster):
    hostvars = {"eu": Variables(variables), "localhost": Variables(local_variables)}

    assert release.is_cluster(hostvars, "eu") is is_cluster


@pytest.mark.parametrize("variables, is_cluster", [
    ({}, False), ({"kubeconfig": "eu", "context": "eu"}, False), ({"context": INVALID}, True)])
def test_localhost_is_a_cluster_only_with_an_invalid_connection(variables, is_cluster):
    hostvars = {"localhost": Variables(variables)}

    assert release.is_cluster(hostvars, "localhost") is is_cluster


def test_report_of_a_host_is_read_beside_missing_and_invalid_ones():
    reports = {"none": {}, "empty": {"report": None}, "text": {"report": "eu.html"},
               "list": {"report": ["us.html", "more.html"]}, "template": {"report": INVALID},
               "mapping": {"report": {"path": "eu.html"}}, "error": {"report": ValueError("no")}}
    hostvars = {host: Variables(variables) for host, variables in reports.items()}

    paths = release.report_paths(hostvars, list(reports))
    assert paths == ["", "", "eu.html", "us.html", "", "", ""]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The roles' filters: documented each, and an error in one sentence for what they cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from results import paused

from ansible_collections.baton.kubernetes.plugins.filter import outcomes

FILTERS = outcomes.FilterModule().filters()


@pytest.mark.parametrize("value, comma, entries", [
    ("", False, []), ([], True, []), (None, False, []), ("10%, 50%\n100%", True, ["10%", "50%", "100%"]),
    ("app=a,tier=b\n\n app=c ", False, ["app=a,tier=b", "app=c"]), (["10%", 3], True, ["10%", "3"]), (["a,b"], True, ["a", "b"]),
    (["a\nb"], False, ["a", "b"]), (3, True, ["3"]),
], ids=["empty", "no entries", "nothing", "commas", "lines", "list", "commas in a list", "lines in a list", "number"])
def test_a_list_may_be_a_text(value, comma, entries):
    assert outcomes.entries(value, comma) == entries


@pytest.mark.parametrize("path", ["/etc/x.yml", "../x.yml", "checks/../../x.yml", "~/x.yml", "~ada/x.yml"])
def test_a_path_that_leads_out_of_the_project_is_refused_where_a_survey_gives_it(path):
    with pytest.raises(AnsibleFilterError, match="is not a path inside the project"):
        outcomes.entries(f"smoke.yml\n{path}", inside=True)

    assert outcomes.entries(path) == [path]
    assert outcomes.entries("smoke.yml\nchecks/..x/a.yml", inside=True) == ["smoke.yml", "checks/..x/a.yml"]


def test_they_give_what_a_task_can_use():
    assert outcomes.rollout_summary(paused(), "shop")["in_progress"] == ["shop"]
    failed = outcomes.failed_task({"msg": "no"}, "Try")
    told = outcomes.rollout_failure({"what": "rollback", **failed})
    assert told == {"outcome": "failed", "message": "Try: no", "error": "Try: no"}
    assert outcomes.lead_elsewhere([{"name": "shop", "phase": "paused"}], "v1") == ["shop"]
    assert outcomes.workflow_artifacts({}, {})["outcome"] == "failed"


@pytest.mark.parametrize("given, said", [
    ({"metrics": [{"min": 1}], "prometheus_url": "http://x"}, None), ({}, None),
    ({"metrics": [{"min": "0.5"}], "count": "3"}, None),
    ({"metrics": [{"min": 1}], "prometheus_ca_cert": "/of/another/machine"}, None),
    ({"metrics": [{"type": "error_lines", "max": 1}]}, None),
    ({"metrics": [{"type": "error_lines", "max": 1, "pattern": "("}]}, "is not a regular expression of Python: missing )"),
    ({"metricz": []}, "metricz"), ({"metrics": [{"min": 1, "typ": "latency"}]}, "typ"), ({"count": "many"}, "count"),
    ({"metrics": [{"type": "latency"}]}, "metric latency has no threshold"),
    ({"metrics": [{"min": 1}], "failure_limit": 1}, "nothing could ever fail"),
    ({"prometheus_url": "http://u:s3cret/x@prom"}, "prometheus_url 'http://prom' is not a valid address: it must look like"),
    ({"prometheus_url": "http://x", "prometheus_username": "me"}, "need each other"),
    ({"prometheus_password": "s3cret", "window": "s3cret", "metrics": [{"min": 1}]}, "window '********' is not a duration"),
])
def test_what_is_wrong_with_an_analysis_is_known_before(given, said):
    found = outcomes.refused_analyses([{"metrics": [{"min": 1}]}, given])

    assert len(found) == (said is not None)
    assert all(each.startswith("analysis 2: ") and said in each and "s3cret" not in each for each in found), found


def test_an_approval_is_asked_for_with_a_duration():
    answer = outcomes.approval(None, paused(), "shop", "1h", "2026-11-21T10:00:00Z", "2026-11-21T10:00:01Z")

    assert (answer["outcome"], answer["deadline"], answer["left"]) == ("waiting", "2026-11-21T11:00:00Z", 3599)
    with pytest.raises(AnsibleFilterError, match="image_bump_approve_within 'soon' is neither a number of seconds nor a duration"):
        outcomes.approval(None, {}, within="soon")


@pytest.mark.parametrize("name", ["rollout_summary", "rollout_failure", "failed_task"])
def test_what_cannot_be_used_is_an_error(name):
    with pytest.raises(AnsibleFilterError, match="a dictionary is needed, not a str"):
        FILTERS[name]("text")


def test_an_incomplete_failure_is_an_error():
    with pytest.raises(AnsibleFilterError, match="rollout_failure"):
        outcomes.rollout_failure({"what": "check"})


def test_each_is_documented_with_its_arguments():
    for name, function in FILTERS.items():
        documented = yaml.safe_load((Path(outcomes.__file__).parent / f"{name}.yml").read_text())["DOCUMENTATION"]
        _input, *arguments = function.__code__.co_varnames[:function.__code__.co_argcount]
        assert documented["name"] == name and set(documented["options"]) == {"_input", *arguments}
        assert documented.get("positional", "").replace(",", "").split() == arguments


@pytest.mark.parametrize("regions", ["canary,europe", "canary\neurope", ["canary", "europe"]])
def test_regions_may_be_a_text(regions):
    groups = {"all": ["a", "b"], "canary": ["b"], "europe": ["a"]}

    assert outcomes.region_batches(groups, regions, ["a", "b"]) == {"canary": ["b"], "europe": ["a"]}
    assert outcomes.region_batches(groups, "", ["a", "b"]) == {"all": ["a", "b"]}
    with pytest.raises(AnsibleFilterError, match="no group spare"):
        outcomes.region_batches(groups, "spare", ["a"])


@pytest.mark.parametrize("share, begins", [(0, False), ("", False), ("50", True), ("50%", True), (50.0, True), (49, False)])
def test_the_share_of_clusters_that_may_fail_is_a_percentage(share, begins):
    assert (outcomes.batch_gate(["a", "b", "c"], ["c"], ["a", "a", ""], ["failed", "updated", ""], share) == "") is begins


@pytest.mark.parametrize("share", ["half", -1, 101])
def test_no_other_share_is_taken(share):
    with pytest.raises(AnsibleFilterError, match="max_failed_clusters must be a percentage from 0 to 100"):
        outcomes.batch_gate(["a"], ["a"], [""], [""], share)


@pytest.mark.parametrize("stages, are_checked, check_mode, pauses", [
    (["10%", "40%", "100%"], False, False, ["10%", "40%"]), (["10%", "40%", "100%"], True, False, ["10%", "40%", "100%"]),
    ("10%, 100%", False, False, ["10%"]), (["10%", "100%"], True, True, []), ("", True, False, ["100%"]), ("", False, False, []),
    (["40%", "10%"], False, False, ["40%", "10%"]),
])
def test_where_an_update_pauses(stages, are_checked, check_mode, pauses):
    assert outcomes.stage_pauses(stages, are_checked, check_mode) == pauses


@pytest.mark.parametrize("stage", ["1O%", "110%", "ten", "-1", "10.5%"])
def test_what_is_no_stage_is_known_before(stage):
    with pytest.raises(AnsibleFilterError, match=r"^image_bump_stages: .*Nothing has been changed\.$"):
        outcomes.stage_pauses(["10%", "40%", stage], check_mode=True)


@pytest.mark.parametrize("images", [{"web": "v1"}, '{"web": "v1"}', "web=v1"])
def test_images_may_be_a_text(images):
    rollouts = [{"name": "shop", "phase": "paused", "next": {"images": {"web": "v1"}}}]

    assert outcomes.lead_elsewhere(rollouts, images=images) == []
    with pytest.raises(AnsibleFilterError, match="images is neither a dictionary nor a text with one"):
        outcomes.lead_elsewhere(rollouts, images="v1")


def test_the_last_result_of_one_controller_has_the_name_of_its_history():
    history = [paused() | {"name": "shop"}]
    refused = {key: value for key, value in paused().items() if key != "name"} | {"failed": True, "changed": False}

    assert outcomes.to_roll_back(history, refused) == ["shop"] and outcomes.to_roll_back([], {}) == []


@pytest.mark.parametrize("path, host, other, page", [
    ("europe.html", "eu", "europe.html", "europe-eu.html"),
    ("rollout-lyon.html", "lyon", "rollout-lyon.html", "rollout-lyon-lyon.html"),
    ("rollout-lyon.html", "lyon", "rollout-porto.html", "rollout-lyon.html"), ("europe.html", "eu", None, "europe-eu.html"),
    ("out/r.html", "localhost", None, "out/r.html"), ("", "eu", "", ""),
    ("/tmp/v1.2/report", "eu", "/tmp/v1.2/report", "/tmp/v1.2/report-eu"),
], ids=["a part of the word", "typed for all", "a template names the host", "one host", "no inventory", "no report", "no suffix"])
def test_each_cluster_has_a_page_beside_the_one_on_all(path, host, other, page):
    assert outcomes.host_page(path, host, other) == page

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that the page is well-formed, readable and complete."""

from __future__ import annotations

import copy
import urllib.parse
from pathlib import Path

import html5lib
import pytest
from ansible.errors import AnsibleFilterError
from results import analysis, failed, paused, soaked, updated

from ansible_collections.baton.kubernetes.plugins.filter.rollout_report import rollout_report
from ansible_collections.baton.kubernetes.plugins.plugin_utils.report import sizes_chart

TEMPLATE = Path(__file__).parents[3] / "roles" / "image_bump" / "templates" / "report.html.j2"
HTML = "{http://www.w3.org/1999/xhtml}"
ATTACK = "<script>alert('x')</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}"

DATA = {
    "name": "shop", "namespace": "default", "image": "myimage:v2", "outcome": "updated",
    "message": "shop is updated",
    "started": "2026-11-21T10:00:00Z", "ended": "2026-11-21T10:01:15Z", "user": "ada",
    "host": "controller",
    "stages": [
        {"stage": "10%", "started": "2026-11-21T10:00:00Z", "ended": "2026-11-21T10:00:05Z",
         "outcome": "passed",
         "checks": [{"file": "http.yml", "outcome": "passed", "message": "200",
                     "at": "2026-11-21T10:00:04Z"}]},
        {"stage": "100%", "started": "2026-11-21T10:00:10Z", "outcome": "passed"}],
    "results": [paused(), updated(begin=10)],
}
FLEET = {"name": "app", "outcome": "failed",
         "results": [updated("app-1"), failed("app-2")]}
MEASURED = (DATA
            | {"stages": [{"stage": "10%", "outcome": "failed",
                           "checks": [analysis(), analysis(begin=10, outcome="failed")]}]})
SOAKED = DATA | {"results": [soaked(), updated(begin=10)]}
CLUSTERS = {"regions": {"canary": ["malmo"]}, "clusters": {
    "malmo": DATA | {"page": "rollout-malmo.html"},
    "lyon": MEASURED | {"page": "rollout lyon.html"}, "porto": {}}}
FAILED = DATA | {"outcome": "failed", "results": [failed()]}


def page(data):
    """Return the parsed page."""
    return html5lib.HTMLParser(strict=True).parse(rollout_report(data, str(TEMPLATE)))


def text(element):
    return " ".join(" ".join(element.itertext()).split())


def tables(tree):
    return {text(table.find(f"{HTML}caption")): table for table in tree.iter(f"{HTML}table")}


def test_header_of_the_page():
    header = text(page(DATA).find(f".//{HTML}header"))

    for words in ("default/shop updated", "shop is updated", "myimage:v2", "2026-11-21 10:00:00",
                  "1 min 15 s",
                  "ada on controller"):
        assert words in header


def test_page_lists_stages_and_checks():
    table = tables(page(DATA))["Checks after each stage"]

    rows = [text(row) for row in table.iter(f"{HTML}tr")]
    assert rows[1:] == ["10% the whole stage, 5 s passed 10:00:00",
                        "http.yml 200 passed 10:00:04",
                        "→ continued with 100% 10:00:05",
                        "100% the whole stage, not known passed 10:00:10",
                        "→ complete: all pods are new"]


def test_page_shows_the_share_of_the_requests_at_a_stage():
    stages = [DATA["stages"][0], DATA["stages"][0] | {"traffic": "1%"}]
    table = tables(page(DATA | {"stages": stages}))["Checks after each stage"]

    rows = [text(row) for row in table.iter(f"{HTML}tr")]
    assert rows[3:5] == ["→ continued with 10%, 1% of the requests 10:00:05",
                         "10%, 1% of the requests the whole stage, 5 s passed 10:00:00"]


def test_page_lists_soaks():
    rows = [text(row)
            for row in tables(page(SOAKED))["Checks after each stage"].iter(f"{HTML}tr")]

    assert rows[2] == "soak: 1 new pod watched for 2 s passed 10:00:03"
    tree = page(SOAKED | {"results": [soaked(has_failed=True)]})
    assert ("soak: 1 new pod watched for 2 s failed" in text(tree)
            and "soak: the new pods must stay healthy" in text(tree))
    assert [element for element in tree.iter()
            if element.get("class") == "soak" and element.get("role") != "img"]
    assert "soak:" not in text(page(DATA))


def test_page_of_many_clusters():
    tree = page(CLUSTERS)

    rows = {text(row.find(f"{HTML}th")): row
            for row in tables(tree)["3 clusters"].iter(f"{HTML}tr")}
    assert text(rows["malmo canary"]).startswith(
        "malmo canary updated 10:00:00 , 1 min 15 s 1 shop is updated")
    assert text(rows["porto"]).endswith(
        "No result: not started, interrupted, or the cluster cannot be reached.")
    assert "No task has reported" not in text(tree)
    assert text(tree.find(f".//{HTML}header")).startswith(
        "default/shop incomplete 2 of 3 clusters are updated.")
    assert [element.get("href") for element in tree.iter(f"{HTML}a")] == [
        "./rollout-malmo.html", "./rollout%20lyon.html"]


@pytest.mark.parametrize("outcomes, summary", [
    (["updated", "updated"], "updated 2 of 2 clusters are updated."),
    (["updated", "rolled_back"], "failed 1 of 2"),
    (["rolled_back", "rolled_back"], "rolled back 0 of 2"),
    (["updated", "paused"], "paused 1 of 2"),
    (["updated", ""], "incomplete 1 of 2"), (["failed", ""], "failed 0 of 2"),
    (["", ""], "incomplete 0 of 2"),
    (["rolled_back", ""], "failed 0 of 2"), (["paused", ""], "incomplete 0 of 2")])
def test_summary_of_the_outcomes_of_all_clusters(outcomes, summary):
    tree = page({"clusters": {f"c{number}": {"name": "shop", "outcome": outcome}
                              for number, outcome in enumerate(outcomes)}})

    assert summary in text(tree.find(f".//{HTML}header"))


def test_header_of_many_clusters_has_common_values_only():
    header = text(page({"clusters": {"eu": DATA,
                                     "us": DATA | {"image": "myimage:v3", "user": "bob"},
                                     "ap": {}}})
                  .find(f".//{HTML}header"))

    assert "default/shop" in header and "controller" in header
    assert not [words for words in ("myimage", "ada", "bob") if words in header]


CLUSTER_NAMES = ["eu", "europe", "localhost", "arn:aws:eks:eu-1:42:cluster/shop", "a b",
                 "<b>&amp;</b>",
                 "50%", "#1?", "../x"]


def test_each_cluster_has_a_row_and_a_link():
    clusters = {name: {"outcome": "updated", "page": f"rollout-{name}.html"}
                for name in CLUSTER_NAMES}
    tree = page({"clusters": clusters,
                 "regions": {"<i>": CLUSTER_NAMES[:2], "all": CLUSTER_NAMES[2:]}})

    rows = [row.find(f"{HTML}th")
            for row in tables(tree)[f"{len(CLUSTER_NAMES)} clusters"].iter(f"{HTML}tr")][1:]
    assert [text(row.find(f"{HTML}a")) for row in rows] == CLUSTER_NAMES
    links = [urllib.parse.urlsplit(row.find(f"{HTML}a").get("href")) for row in rows]
    assert [urllib.parse.unquote(link.path) for link in links] == [
        f"./rollout-{name}.html" for name in CLUSTER_NAMES]
    assert not [link for link in links if link.scheme or link.netloc or link.query or link.fragment]
    assert [text(row.find(f"{HTML}span")) for row in rows] == ["<i>"] * 2 + ["all"] * 7


@pytest.mark.parametrize("link", ["javascript:alert(1)", "//evil.example/", "/etc/passwd", "..//x"])
def test_link_stays_in_the_folder(link):
    (anchor,) = page({"clusters": {"malmo": {"page": link}}}).iter(f"{HTML}a")

    assert anchor.get("href").startswith("./") and ":" not in anchor.get("href")


def test_all_failures_of_a_large_fleet_are_listed():
    results = [{**(failed if number % 50 == 7 else updated)(f"app-{number}"), "kind": "ReplicaSet"}
               for number in range(1200)]
    tree = page({"outcome": "failed", "results": results})

    tables_by_caption = tables(tree)
    assert [len(list(tables_by_caption[name].iter(f"{HTML}tr")))
            for name in ("Controllers that need attention", "Other controllers")] == [
                1 + 24, 1 + 976]
    assert ("failed 24" in text(tree) and "updated 1176" in text(tree)
            and "200 more controllers are not shown." in text(tree))


def test_two_kinds_with_one_name_are_separate():
    kinds = ("ReplicaSet", "StatefulSet")
    checks = [analysis() for _kind in kinds]
    for kind, check in zip(kinds, checks, strict=True):
        check["measured"]["kind"] = kind
    tree = page({"results": [soaked() | {"kind": kind} for kind in kinds],
                 "stages": [DATA["stages"][0] | {"checks": checks}]})

    assert "shop ReplicaSet paused" in text(tree) and "soak of StatefulSet shop:" in text(tree)
    assert [text(element) for element in tree.iter(f"{HTML}h2")][-2:] == [
        "ReplicaSet shop paused", "StatefulSet shop paused"]
    assert [text(element) for element in tree.iter(f"{HTML}h3")][:4] == [
        f"{metric} of {kind} shop" for kind in kinds for metric in ("success_rate", "latency")]


def test_long_text_is_collapsed():
    tree = page(DATA | {"message": "\n".join(f"line {number}" for number in range(50))})

    (visible_lines,) = (text(paragraph) for paragraph in tree.find(f".//{HTML}header")
                        if paragraph.get("class") == "lines")
    assert (visible_lines.endswith("line 11")
            and text(tree.find(f".//{HTML}header//{HTML}pre")).startswith("line 12 line 13"))


def test_bidirectional_characters_are_visible():
    assert "a\\u202eb" in text(page(DATA | {"user": "a\u202eb"}))


def test_page_lists_steps_and_sizes():
    tables_by_caption = tables(page(DATA))

    assert "scale shop-1 0 → 4 replicas" in text(tables_by_caption["Changes in the cluster, in order"])
    (sizes,) = (table
                for caption, table in tables_by_caption.items()
                if caption.startswith("Sizes of shop and shop-1"))
    assert len(list(sizes.iter(f"{HTML}tr"))) == 2 + 9


def test_page_of_a_failure():
    content = text(page(FAILED))

    for words in ("the new pods cannot become available", "ImagePullBackOff", "no such image",
                  "the last words", "ansible ..."):
        assert words in content


def test_page_lists_measurements():
    tree = page(MEASURED)

    rows = [text(row)
            for row in tables(tree)["latency of shop, all measurements"].iter(f"{HTML}tr")]
    assert rows[1:3] == ["10:00:01 0.1 0.2 passed", "10:00:02 0.4 0.2 passed 0.4 is more than 0.3"]
    assert rows[4] == "10:00:12 0.4 0.2 failed 0.4 is more than 0.3"
    assert ("4 measurements in 11 s: 1 failed." in text(tree)
            and "4 measurements in 11 s: all passed." in text(tree))
    titles = [text(element.find(".//{http://www.w3.org/2000/svg}title")) for element in tree.iter()
              if element.get("role") == "img"]
    assert titles.count("latency of shop: new and old pods over time. 4 measurements in "
                        "11 s: 1 failed.") == 2
    assert "Measurements" not in text(page(DATA))


def test_page_of_a_fleet():
    tree = page(FLEET)

    (caption,) = (caption for caption in tables(tree) if caption.startswith("2 controllers"))
    links = [element.get("href") for element in tables(tree)[caption].iter(f"{HTML}a")]
    assert {link[1:] for link in links} == {element.get("id")
                                            for element in tree.iter(f"{HTML}h2")} - {"controllers"}


@pytest.mark.parametrize("data", [DATA, FLEET, FAILED, MEASURED, SOAKED, {}],
                         ids=["update", "fleet", "failure", "analysis", "soak", "no data"])
def test_page_is_accessible_and_self_contained(data):
    tree = page(data)

    assert tree.get("lang") == "en" and text(tree.find(f".//{HTML}title"))
    for table in tree.iter(f"{HTML}table"):
        assert (text(table.find(f"{HTML}caption"))
                and all(cell.get("scope") for cell in table.iter(f"{HTML}th")))
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert not [element for element in tree.iter()
                if element.get("src")
                or (element.get("href", "#")[0] != "#" and element.tag != f"{HTML}link")]
    assert "http" not in rollout_report(data, str(TEMPLATE)).replace("http-equiv", "").replace(
        "http.yml", "").replace(
        "http://www.w3.org/", "")


def with_attack(item):
    """Return a copy of the data with ATTACK in each text that others can set."""
    if isinstance(item, dict):
        trusted_keys = ("at", "phase", "started", "ended", "action",
                        *(["outcome"] if "metric" in item else []))
        return {key: {region + ATTACK: cluster_names for region, cluster_names in element.items()}
                if key == "regions"
                else element if key in trusted_keys else with_attack(element) for key,
                element in item.items()}
    if isinstance(item, list):
        return [with_attack(element) for element in item]
    return item + ATTACK if isinstance(item, str) else item


@pytest.mark.parametrize("data", [DATA, FLEET, FAILED, MEASURED, SOAKED, CLUSTERS],
                         ids=["update", "fleet", "failure", "analysis", "soak", "clusters"])
def test_data_of_the_cluster_is_escaped(data):
    tree, harmless = page(with_attack(data)), page(data)

    assert [element.tag for element in tree.iter()] == [element.tag for element in harmless.iter()]
    assert not list(tree.iter(f"{HTML}script")) and not list(tree.iter(f"{HTML}img"))
    assert ATTACK in "".join(tree.itertext())


#: Values of another type, and extreme values. test_extreme_data.py combines more of them.
DAMAGE = (None, 7, ["?"], {"?": "?"}, [[]], {"?": {}}, "\ud800", "\x1b\u202e", 10**400, 5e-324,
          "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")


def damaged_copies(item):
    """Yield copies of the data. Each lacks a part, or has a part of another type."""
    for key in item if isinstance(item, dict) else range(len(item[:1])) if isinstance(
            item, list) else ():
        for value in DAMAGE:
            changed = copy.copy(item)
            changed[key] = value
            yield changed
        if isinstance(item, dict):
            yield {name: element for name, element in item.items() if name != key}
        for changed in damaged_copies(item[key]):
            yield ({**item, key: changed} if isinstance(item, dict)
                   else [*item[:key], changed, *item[key + 1:]])


@pytest.mark.sample(1)
@pytest.mark.parametrize("data", [DATA, FLEET, FAILED, MEASURED, SOAKED, CLUSTERS],
                         ids=["update", "fleet", "failure", "analysis", "soak", "clusters"])
def test_missing_or_invalid_data_never_raises(data):
    """After an interrupted run, parts are missing. Other versions may use other types."""
    for number, changed in enumerate(damaged_copies(data)):
        rendered = rollout_report(changed, str(TEMPLATE))
        assert rendered.endswith("</html>") and rendered.replace("\n", "").isprintable(), number


def test_page_without_the_chart_library(monkeypatch):
    page_with_chart = page(DATA)
    monkeypatch.setattr(sizes_chart, "drawsvg", None)
    page_without_chart = page(DATA)

    assert "pip install drawsvg" in text(page_without_chart)
    assert "pip install drawsvg" not in text(page_with_chart)
    assert list(tables(page_without_chart)) == list(tables(page_with_chart))
    assert not [element for element in page_without_chart.iter() if element.get("role") == "img"]


@pytest.mark.parametrize("data, template", [("text", TEMPLATE), (DATA, "/nowhere/report.html.j2")],
                         ids=["no dictionary", "no template"])
def test_invalid_data_or_template_is_an_error(data, template):
    with pytest.raises(AnsibleFilterError, match="rollout_report"):
        rollout_report(data, str(template))

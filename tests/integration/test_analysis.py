# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test analyses that compare new and old pods by metrics of a real Prometheus."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import ansible_cli
import monitoring
import pytest
import yaml
from monitoring import RATE, WINDOW
from objects import cannot_run, pod_counts
from plays import CheckServer, Playbooks

from ansible_collections.baton.kubernetes.plugins.module_utils import task

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "analysis.md"
SUCCESS = {"type": "success_rate", "min": 0.99}
LATENCY = {"type": "latency", "quantile": 0.9, "max_ratio_to_old": 2}
#: bcrypt hash of "s3cret", for the web configuration file of Prometheus.
PASSWORD_HASH = "$2b$05$abcdefghijklmnopqrstuuLK7U1u6pVRmL7L1BBM2aS35PSZnDXlK"


@pytest.fixture(scope="session")
def prometheus_binary():
    return (monitoring.program_path()
            or cannot_run("prometheus is missing, and its Debian package cannot be downloaded"))


@pytest.fixture(scope="session")
def prometheus(prometheus_binary):
    with monitoring.running_with_metrics(prometheus_binary) as server:
        yield server


@pytest.fixture(autouse=True)
def _restore_signal_handlers():
    handlers = {number: signal.getsignal(number)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def export_pods(namespace, prometheus):
    def export_pods():
        prometheus.metrics_server.export(namespace.name, namespace.pods())
        time.sleep(1.4)

    yield export_pods
    prometheus.metrics_server.export(namespace.name, [])


@pytest.fixture
def run_analysis(namespace, prometheus):
    def run_analysis(*metrics, **options):
        defaults = {name: spec.get("default") for name, spec in task.ANALYSIS_OPTIONS.items()}
        metric_options = task.ANALYSIS_OPTIONS["metrics"]["options"]
        metrics = [{name: spec.get("default") for name, spec in metric_options.items()} | metric
                   for metric in metrics]
        params = {**defaults, "name": "foo", "namespace": namespace.name,
                  "kubeconfig": namespace.kubeconfig, "metrics": metrics,
                  "prometheus_url": prometheus.url, "window": WINDOW, "interval": 0.2, **options}
        return task.result_or_error(task.analysis, params, pytest.fail)

    return run_analysis


def test_good_version_passes_and_bad_versions_fail(namespace, export_pods, run_analysis):
    namespace.make_rc(4)
    namespace.roll(image="myimage:v2", pause_at=2)
    export_pods()

    for _run in range(5):
        success = run_analysis(SUCCESS, LATENCY, count=3)
        assert (success["outcome"] == "passed" and not success["changed"]
                and len(success["measurements"]) == 6)
    assert (len(success["new_pods"]) == len(success["old_pods"]) == 2
            and not set(success["new_pods"]) & set(success["old_pods"]))
    assert success["msg"].startswith("foo has passed the analysis: success_rate 0.99")

    for image, name in (("myimage:v3", "success_rate"), ("myimage:v4", "latency")):
        namespace.roll(image="myimage:v1", state="rolled_back")
        namespace.roll(image=image, pause_at=2)
        export_pods()
        failure = run_analysis({**SUCCESS, "min_samples": RATE}, LATENCY, count=3)
        assert failure["failed"] and failure["outcome"] == "failed"
        (reason,) = (measurement["reason"]
                     for measurement in failure["measurements"] if measurement["metric"] == name)
        assert failure["failure"]["what"] == f"the analysis has failed: {name}: {reason}"
        assert failure["failure"]["next_command"].startswith("ansible localhost -m "
                                                             "baton.kubernetes.rolling_update -a ")
        assert ([metric["outcome"] for metric in failure["metrics"]]
                == ["failed" if metric == name else "passed"
                    for metric in (
                        "success_rate", "latency")])
        assert len(failure["measurements"]) == 2, (
            "each of the two metrics must be measured only once")
    (value,) = (measurement["new"]
                for measurement in failure["measurements"] if measurement["metric"] == "latency")
    assert 0.5 < value <= 1.0


def query_metric(text, **thresholds):
    return {"query": text, **(thresholds or {"max": 1})}


NO_DATA = {"type": "success_rate", "requests_metric": "nothing_total", "min": 0.99}
#: Metrics, outcome and a part of the message. The outcome is None if a query does not return
#: exactly one number.
QUERIES = {
    "no data": ([NO_DATA], "inconclusive", "success_rate: no data for the new pods"),
    "no data with on_empty=fail": (
        [{**NO_DATA, "on_empty": "fail"}],
        "failed",
        "success_rate: no data for the new pods",
    ),
    "no data with on_empty=pass": (
        [{**NO_DATA, "on_empty": "pass"}],
        "passed",
        "success_rate no data",
    ),
    "no data with on_empty=zero": (
        [{**NO_DATA, "on_empty": "zero"}],
        "failed",
        "success_rate: 0 is less than 0.99 (min)",
    ),
    "too few samples": (
        [{**SUCCESS, "min_samples": 10_000}],
        "inconclusive",
        "samples of the new pods, fewer than 10000 (min_samples)",
    ),
    "enough samples": ([{**SUCCESS, "min_samples": RATE}], "passed", ""),
    "dollar sign in a regular expression": (
        [{**SUCCESS, "errors": "5..$", "min": 1}],
        "failed",
        "success_rate: 0.99",
    ),
    "NaN": (
        [query_metric('sum(up{pod=~"$pods"} or vector(0)) / 0')],
        "inconclusive",
        "query: NaN for the new pods",
    ),
    "Inf": (
        [query_metric('sum(up{pod=~"$pods"} or vector(1)) / 0')],
        "failed",
        "query: +Inf is more than 1 (max)",
    ),
    "several series": (
        [query_metric('queue_length{pod=~"$new_pods"}')],
        None,
        "the query returns 2 numbers",
    ),
    "a range vector": (
        [query_metric('queue_length{pod=~"$pods"}[1m]')],
        None,
        "the query returns a result of type matrix, not a number",
    ),
    "an invalid query": (
        [query_metric('sum(queue_length{pod=~"$pods"}')],
        None,
        "bad_data: invalid parameter",
    ),
    "an increase": (
        [query_metric('avg(queue_length{namespace="$namespace",pod=~"$pods"})', max_increase=1)],
        "passed",
        "query 1, old 1",
    ),
    "new and old pods in one query": (
        [
            query_metric(
                "count(queue_length{pod=~`{{ new_pods }}`}) / "
                "count(queue_length{pod=~'${old_pods}'})",
                min=1,
                max=1,
            )
        ],
        "passed",
        "query 1",
    ),
}


@pytest.mark.full
def test_outcome_of_each_query(namespace, export_pods, run_analysis):
    """The dot of the name foo.bar must be escaped in a regular expression."""
    namespace.make_rc(4, name="foo.bar")
    namespace.roll(name="foo.bar", image="myimage:v2", pause_at=2)
    export_pods()

    for title, (metrics, outcome, message) in QUERIES.items():
        result = run_analysis(*metrics, name="foo.bar")
        assert result.get("outcome") == outcome and message in result["msg"], (title, result)
        assert bool(result.get("failed")) is (outcome != "passed"), title
    inconclusive_result = run_analysis({**NO_DATA, "name": "nothing"}, SUCCESS, name="foo.bar",
                                       on_inconclusive="pass", count=2)
    assert (inconclusive_result["outcome"] == "inconclusive" and "failed" not in inconclusive_result
            and len(inconclusive_result["measurements"]) == 4)
    assert ("which counts as passed (on_inconclusive): nothing, measurement 2 of 2: no data"
            in inconclusive_result["msg"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_analysis_of_other_kinds(namespace, export_pods, run_analysis, kind):
    """Without an update, all pods are new pods."""
    {"Deployment": namespace.make_deployment, "StatefulSet": namespace.make_stateful_set}[kind](4)
    export_pods()

    result_without_update = run_analysis({**SUCCESS, "max_decrease": 0.01})
    assert (result_without_update["outcome"] == "inconclusive"
            and len(result_without_update["new_pods"]) == 4
            and result_without_update["old_pods"] == [])
    assert "there are no old pods to compare with" in result_without_update["msg"]
    passing_result = run_analysis({**SUCCESS, "max_decrease": 0.01}, on_no_old_pods="pass")
    assert passing_result["outcome"] == "passed"

    namespace.roll(kind=kind, image="myimage:v3", pause_at=1)
    export_pods()
    failure = run_analysis({"max_decrease": 0.01})
    assert (len(failure["new_pods"]) == 1 and len(failure["old_pods"]) == 3
            and failure["outcome"] == "failed")
    assert re.search(r"success_rate: 0\.9\d* is less than 0\.98\d* \(max_decrease 0\.01, old 0\.99",
                     failure["msg"]), failure["msg"]


def test_missing_controller_is_an_error(namespace, run_analysis):
    result = run_analysis(SUCCESS, name="missing")

    assert result["failure"]["what"] == "there is no such ReplicationController"


def test_prometheus_is_queried_with_tls_and_a_password(
        namespace, export_pods, run_analysis, prometheus_binary, tmp_path):
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                    "-subj", "/CN=prometheus",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    namespace.make_rc(1)
    with monitoring.running_with_metrics(prometheus_binary, str(certificate), str(key), "me",
                                         PASSWORD_HASH) as server:
        address = server.url.partition("://")[2]
        trusted_connection = {"prometheus_ca_cert": str(certificate), "prometheus_url": server.url}
        metric = query_metric('count(up{pod=~"$pods"}) or vector(1)')

        successes = [run_analysis(metric, **trusted_connection, prometheus_username="me",
                                  prometheus_password="s3cret"),
                     run_analysis(metric,
                                  **{**trusted_connection,
                                     "prometheus_url": f"https://me:s3cret@{address}"}),
                     run_analysis(metric, prometheus_url=f"https://me:s3cret@{address}",
                                  prometheus_validate_certs=False)]
        failures = [run_analysis(metric,
                                 **{**trusted_connection,
                                    "prometheus_url": f"https://me:wr0ng@{address}"}),
                    run_analysis(metric, **trusted_connection),
                    run_analysis(metric, prometheus_url=f"https://me:s3cret@{address}")]

    assert [result["outcome"] for result in successes] == ["passed"] * 3
    assert [result["failure"]["what"] for result in failures] == [
        *(["Prometheus does not accept the credentials (401)"] * 2),
        f"the certificate of Prometheus at https://{address} is not accepted"]
    assert failures[0]["failure"]["why"] == "Unauthorized"
    assert "s3cret" not in str([*successes, *failures]) and "wr0ng" not in str(failures)


# Ad-hoc commands and playbooks


@pytest.fixture
def playbooks(namespace, ansible_environment, tmp_path):
    with CheckServer(namespace) as check_server:
        yield Playbooks(ansible_environment, tmp_path, check_server)


@pytest.mark.full
def test_ad_hoc_command_shows_each_measurement_in_check_mode(
        namespace, export_pods, prometheus, ansible_environment):
    namespace.make_rc(4)
    namespace.roll(image="myimage:v2", pause_at=2)
    export_pods()
    address = prometheus.url.partition("://")[2]
    arguments = {"name": "foo", "namespace": namespace.name,
                 "prometheus_url": f"http://me:s3cret@{address}", "window": WINDOW,
                 "count": 2, "interval": 0.3, "metrics": [SUCCESS]}

    run = ansible_cli.run(["ansible", "localhost", "--check", "-vvv", "-m",
                           "baton.kubernetes.rollout_analysis", "-a",
                           json.dumps(arguments)], env=ansible_environment, capture_output=True,
                          text=True, timeout=120, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line for line in run.stderr.splitlines() if line.startswith("localhost | ")]
    prefix = f"localhost | {namespace.name} | "
    assert lines[0] == f"{prefix}analyze foo: 2 new and 2 old pods; 2 measurements, 0.3 s apart"
    assert ([line.partition(": ")[0] for line in lines[1:]]
            == [f"{prefix}measure foo {number}/2" for number in (1, 2)])
    assert re.fullmatch(r"success_rate 0\.99\d*, old 0\.99\d*: passed", lines[1].partition(": ")[2])
    assert ('"outcome": "passed"' in run.stdout
            and "s3cret" not in (run.stdout + run.stderr).replace(json.dumps(arguments), ""))


@pytest.mark.full
def test_role_analyzes_at_each_stage_and_rolls_back_after_a_failure(
        namespace, prometheus, playbooks):
    before = namespace.make_rc(4)
    (block,) = re.findall(r"```yaml\n# play.yml\n(.*?)```", PAGE.read_text(encoding="utf-8"),
                          re.DOTALL)
    (play,) = yaml.safe_load(block)
    role = play["roles"][0]
    (analysis,) = role["image_bump_analysis"]
    assert analysis["initial_delay"] == 60 and analysis["count"] == 5
    analysis |= {"prometheus_url": prometheus.url.replace("://", "://me:s3cret@"), "window": WINDOW,
                 "initial_delay": 1.4,
                 "count": 2, "interval": 0.2}
    hooks = {f"image_bump_{when}_tasks": ["write_report_data.yml"] for when in ("failure", "after")}
    role |= {"image_bump_namespace": namespace.name, "image_bump_report": "rollout.html", **hooks}

    def run(image, succeeds):
        playbooks.write("play.yml", [{**play, "roles": [{**role, "image_bump_image": image}]}])
        with prometheus.metrics_server.exporting(namespace):
            return playbooks.run_command("ansible-playbook", "play.yml", succeeds=succeeds)

    output = run("myimage:v3", succeeds=False)
    data = playbooks.report_data
    assert (pod_counts(namespace) == (4, 0) and namespace.rc()["spec"] == before["spec"]
            and data["outcome"] == "rolled_back")
    assert data["message"].startswith("The check rollout_analysis has failed at stage 25% of foo: ")
    error = output.partition("Fail with the reason")[2]
    assert "the analysis has failed: success_rate: 0.9" in error
    (stage,) = data["stages"]
    assert ([check["outcome"] for check in stage["checks"]] == ["failed"]
            and "is less than" in stage["checks"][0]["message"])
    assert ([measurement["outcome"]
             for measurement in stage["checks"][0]["measured"]["measurements"]]
            == ["failed", "passed"])
    page = (playbooks.folder / "rollout.html").read_text()
    assert "<h3>success_rate of foo</h3>" in page and 'class="dot-bad"' in page
    assert "s3cret" not in output

    output = run("myimage:v2", succeeds=True)
    data = playbooks.report_data
    assert pod_counts(namespace) == (0, 4) and data["outcome"] == "updated"
    assert ([(entry["stage"], [check["outcome"] for check in entry["checks"]])
             for entry in data["stages"]] == [
        ("25%", ["passed"]), ("100%", ["passed"])])
    assert data["stages"][0]["checks"][0]["message"].startswith("foo has passed the analysis: "
                                                                "success_rate 0.99")
    assert "s3cret" not in output and "unsafe" not in output


def playbook_with_analysis(namespace, analysis):
    return [{"hosts": "localhost", "connection": "local", "gather_facts": False, "roles": [{
        "role": "baton.kubernetes.image_bump", "image_bump_name": "foo",
        "image_bump_namespace": namespace.name,
        "image_bump_image": "myimage:v2", "image_bump_analysis": [analysis]}]}]


@pytest.mark.full
def test_role_rolls_back_if_the_analysis_has_no_old_pods(namespace, prometheus, playbooks):
    """At the stage 100%, no old pods exist."""
    namespace.make_rc(2)
    analysis = {"prometheus_url": prometheus.url, "window": WINDOW, "initial_delay": 1.4,
                "metrics": [{"max_decrease": 0.5}]}
    playbooks.write("play.yml", playbook_with_analysis(namespace, analysis))

    with prometheus.metrics_server.exporting(namespace):
        output = playbooks.run_command("ansible-playbook", "play.yml", succeeds=False)

    assert ("the analysis is inconclusive: success_rate: there are no old pods to compare with"
            in output)
    assert pod_counts(namespace) == (2, 0)


@pytest.mark.full
@pytest.mark.parametrize("extra_options", [[], ["--check"]], ids=["", "check mode"])
def test_role_refuses_an_invalid_analysis_before_the_first_write(
    namespace, playbooks, extra_options
):
    before = namespace.make_rc(2)
    playbooks.write("play.yml",
                    playbook_with_analysis(
                        namespace,
                        {"prometheus_url": "http://x", "metrics": [{"type": "latency"}]}))

    output = playbooks.run_command("ansible-playbook", "play.yml", *extra_options, succeeds=False)

    assert ("image_bump_analysis: analysis 1: metric latency has no threshold"
            in " ".join(output.split()))
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The roles and playbooks: stages with an HTTP check, hooks, rollback, and the state after a kill.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import pytest
import yaml
from objects import eventually
from plays import STAGES, CheckServer, Playbooks, kill_processes, versions

ROOT = Path(__file__).parents[2]
REPLICAS = 10
NO_REQUESTS: list = []


@pytest.fixture
def check_server(namespace):
    with CheckServer(namespace) as check_server:
        yield check_server


@pytest.fixture
def playbooks(ansible_environment, tmp_path, check_server):
    return Playbooks(ansible_environment, tmp_path, check_server)


def stages_of(report):
    """Return stage, outcome, and the outcomes of its checks."""
    return [(stage["stage"], stage["outcome"], [check["outcome"] for check in stage["checks"]])
            for stage in report["stages"]]


def error_of(output):
    """Return the role's final sentence, independent of Ansible's line breaks."""
    return output.partition("Fail with the reason")[2]


def test_staged_update_with_a_check_at_each_stage(namespace, playbooks, check_server):
    namespace.make_primary(REPLICAS)

    output = playbooks.image_bump()

    assert check_server.requests == [("10%", 9, 1), ("50%", 5, 5), ("100%", 0, 10)]
    assert namespace.rcs() == ["foo"] and versions(namespace) == (0, 10)
    data = playbooks.report_data
    assert (data["outcome"] == "updated"
            and data["message"] == "foo is updated to myimage:v2: 10 of 10 replicas available")
    assert stages_of(data) == [(stage, "passed", ["passed"]) for stage in STAGES]
    assert ([result["rollout"]["phase"] for result in data["results"]]
            == ["paused", "paused", "paused", "complete"])
    assert (data["previous_images"] == {"web": "myimage:v1"} and data["user"]
            and data["started"] < data["ended"])
    assert '"outcome": "updated"' in output.partition("CUSTOM STATS")[2]
    assert "unsafe" not in output  # Ansible's warning when a template passes a module's arguments

    check_server.requests.clear()
    assert (
        "changed=0" in playbooks.image_bump(after_tasks="") and check_server.requests == NO_REQUESTS
    )


def test_stages_run_in_order_without_checks(namespace, playbooks):
    namespace.make_primary(4)
    # in the order of a set of these stages, 50% is not the second
    playbooks.environment["PYTHONHASHSEED"] = "2"

    playbooks.image_bump(stages=["25%", "50%", "75%", "100%"], verify_tasks="")

    assert [stage["stage"] for stage in playbooks.report_data["stages"]] == [
        "25%",
        "50%",
        "75%",
        "100%",
    ]
    assert ([(result["rollout"]["successor"] or {}).get("replicas")
             for result in playbooks.report_data["results"]] == [1, 2, 3, None])


@pytest.mark.sample(1)
@pytest.mark.parametrize("stage, at_that_stage", [("50%", (5, 5)), ("100%", (0, 10))])
def test_failed_check_rolls_back_and_is_named(
    namespace, playbooks, check_server, stage, at_that_stage
):
    before = namespace.make_primary(REPLICAS)
    check_server.failing_stages = {stage}

    output = playbooks.image_bump(succeeds=False)

    assert check_server.requests[-1] == (stage, *at_that_stage)
    assert (namespace.rcs() == ["foo"] and namespace.rc()["spec"] == before["spec"]
            and versions(namespace) == (10, 0))
    data = playbooks.report_data
    assert data["outcome"] == "rolled_back" and stages_of(data)[-1] == (stage, "failed", ["failed"])
    sentence = (
        f"The check smoke.yml has failed at stage {stage} of foo: Request the check server: Status "
        f"code was 503"
    )
    assert data["message"].startswith(sentence) and sentence in error_of(output)
    assert data["message"].endswith("foo is rolled back to myimage:v1: 10 of 10 replicas "
                                    "available.")
    assert '"outcome": "rolled_back"' in output.partition("CUSTOM STATS")[2]


@pytest.mark.full
def test_commands_of_a_failed_check_resume_and_roll_back(namespace, playbooks, check_server):
    namespace.make_primary(2)
    for step in ("back", "on"):
        check_server.failing_stages = {"50%"}
        playbooks.image_bump(succeeds=False, on_failure="stop")
        assert versions(namespace) == (1, 1) and playbooks.report_data["outcome"] == "stopped"
        next_line = r"Next: run the same task again to resume, or run `(.*?)` to roll back"
        (back,) = re.findall(next_line, playbooks.report_data["message"])

        check_server.failing_stages = set()
        if step == "back":
            playbooks.command(*shlex.split(back))
        else:
            playbooks.image_bump(on_failure="stop")

        assert versions(namespace) == {"back": (2, 0), "on": (0, 2)}[step]


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_rerun_resumes_after_a_kill_at_each_stage(namespace, playbooks, check_server):
    """During a check, and while the module rolls; no new pod is created twice."""
    namespace.make_primary(REPLICAS)
    new = set()
    for stage, pods in (("10%", (9, 1)), ("50%", (5, 5)), ("100%", (0, 10))):
        check_server.requests.clear()
        check_server.unanswered_stages = {stage}
        process = playbooks.start("image_bump", image="myimage:v2-slow", stages=STAGES,
                                  verify_tasks="smoke.yml",
                                  max_surge="100%")
        eventually(
            lambda stage=stage: any(request[0] == stage for request in check_server.requests),
            f"the check at {stage}",
            seconds=120,
        )
        kill_processes(process)
        assert check_server.requests[-1] == (stage, *pods) == (stage, *versions(namespace))
        assert new <= (new := new_pods(namespace))

    check_server.unanswered_stages = set()
    playbooks.image_bump(image="myimage:v2-slow")

    assert namespace.rcs() == ["foo"] and new_pods(namespace) == new and len(new) == REPLICAS


@pytest.mark.fake_nodes("pods that take seconds to become ready")
@pytest.mark.long
def test_rerun_resumes_after_a_kill_between_two_stages(namespace, playbooks, check_server):
    namespace.make_primary(REPLICAS)
    process = playbooks.start("image_bump", image="myimage:v2-slow", stages=["10%", "100%"],
                              verify_tasks="smoke.yml")
    eventually(lambda: 2 < versions(namespace)[1] < REPLICAS, "the way to the second stage",
               seconds=120)
    kill_processes(process)
    new = new_pods(namespace)

    playbooks.image_bump(image="myimage:v2-slow", stages=["10%", "100%"])

    assert new <= new_pods(namespace) and versions(namespace) == (0, 10)


def new_pods(namespace):
    return {pod["metadata"]["uid"]
            for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] != "myimage:v1"}


@pytest.mark.long
def test_stages_below_all_leave_the_update_paused(namespace, playbooks, check_server):
    """For an approval in between; text is read as a list."""
    namespace.make_primary(REPLICAS)

    playbooks.image_bump(stages="1, 3")
    assert versions(namespace) == (7, 3) and playbooks.report_data["outcome"] == "paused"
    playbooks.image_bump(stages="")

    assert (versions(namespace) == (0, 10)
            and check_server.requests == [("1", 9, 1), ("3", 7, 3), ("100%", 0, 10)])


@pytest.mark.full
def test_update_without_checks_and_with_an_empty_survey_is_one_task(namespace, playbooks):
    namespace.make_primary(2)
    (task,) = yaml.safe_load((ROOT / "playbooks" / "tasks" / "image_bump.yml").read_text())
    empty = {name.removeprefix("image_bump_"): ""
             for name in task["vars"] if name.startswith("image_bump_")}

    playbooks.image_bump(**{**empty, "controller": "foo", "controller_namespace": namespace.name,
                            "image": "myimage:v2",
                            "after_tasks": "write_report_data.yml"})

    (result,) = playbooks.report_data["results"]
    assert (result["rollout"]["phase"] == "complete"
            and stages_of(playbooks.report_data) == [("100%", "passed", [])])


@pytest.mark.full
def test_no_reserved_names_are_needed_and_older_names_work(namespace, playbooks):
    """Variables named name, namespace or timeout cause a warning of Ansible."""
    namespace.make_primary(1)
    older = {"controller": "", "controller_namespace": "", "name": "foo",
             "namespace": namespace.name}

    outputs = [playbooks.run("image_bump", image="myimage:v2", time_limit=60),
               playbooks.run("rollback", image="myimage:v1"),
               playbooks.run("status")]
    assert (not [output for output in outputs if "reserved name" in output]
            and versions(namespace) == (1, 0))
    playbooks.run("image_bump", image="myimage:v2", **older)
    assert versions(namespace) == (0, 1)
    playbooks.run("rollback", image="myimage:v1", **older)
    assert versions(namespace) == (1, 0) and '"name": "foo"' in playbooks.run("status", **older)


@pytest.mark.full
def test_failure_before_the_update_changes_nothing(namespace, playbooks):
    before = namespace.make_primary(2)

    refused = playbooks.image_bump(before_tasks=["fail.yml"], succeeds=False)
    missing = playbooks.image_bump(verify_tasks=["nowhere.yml"], succeeds=False)
    assert ("stages: '1O%' is neither a number nor a percentage"
            in playbooks.image_bump(stages="50%,1O%", succeeds=False))

    assert ("fail.yml has failed before the update of foo, which was not started: Not today: the "
            "shop "
            "is closed" in error_of(refused))
    assert playbooks.report_data["outcome"] == "failed" and playbooks.report_data["results"] == []
    assert "nowhere.yml is not a file with a list of tasks" in missing
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.full
def test_failure_after_the_update_rolls_nothing_back(namespace, playbooks):
    namespace.make_primary(2)

    output = playbooks.image_bump(
        after_tasks=["fail.yml"],
        failure_tasks=["write_report_data.yml", "fail.yml"],
        stages=[],
        succeeds=False,
    )

    assert versions(namespace) == (0, 2) and playbooks.report_data["outcome"] == "failed"
    assert ("2 of 2 replicas available, but then fail.yml has failed: Not today: the shop is closed"
            in playbooks.report_data["message"])
    assert "Then fail.yml has failed too" in error_of(output)


@pytest.mark.full
@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_crashing_pods_are_rolled_back(namespace, playbooks, check_server):
    before = namespace.make_primary(2)

    playbooks.image_bump(image="myimage:v2-crash", failure_grace=1, succeeds=False)

    assert (namespace.rcs() == ["foo"] and namespace.rc()["spec"] == before["spec"]
            and check_server.requests == NO_REQUESTS)
    assert (playbooks.report_data["outcome"] == "rolled_back"
            and "CrashLoopBackOff" in playbooks.report_data["message"])
    assert playbooks.report_data["message"].startswith("Stage 10%: ")


@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_message_of_the_module_appears_once(namespace, playbooks):
    """The failing task shows the full message, the role's own error a summary."""
    namespace.make_primary(2)

    output = playbooks.image_bump(
        image="myimage:v2-crash", failure_grace=1, stages="", verify_tasks="", succeeds=False
    )

    what = "the new pods cannot become available; foo is rolled back to myimage:v1"
    error = error_of(output).partition("PLAY RECAP")[0]
    assert (f"Stage 100%: ReplicationController {namespace.name}/foo: {what}" in error
            and "at the failed task 'Update foo'." in error)
    assert (
        "CrashLoopBackOff" not in error and "CrashLoopBackOff" in playbooks.report_data["message"]
    )


def test_update_of_another_client_is_unchanged(namespace, playbooks, check_server):
    namespace.make_primary(4)
    namespace.roll(image="myimage:v3", pause_at="1")

    playbooks.image_bump(succeeds=False)

    assert versions(namespace) == (3, 1) and check_server.requests == NO_REQUESTS
    assert (playbooks.report_data["outcome"] == "failed"
            and "another update is in progress" in playbooks.report_data["message"])


def test_check_mode_plans_the_whole_update(namespace, playbooks, check_server):
    before = namespace.make_primary(2)

    output = playbooks.image_bump("--check", "-v", after_tasks=[])

    assert "takes over" in output or '"rename"' in output
    assert (namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
            and check_server.requests == NO_REQUESTS)


@pytest.mark.full
def test_rollback_from_a_pause_then_of_a_completed_update(namespace, playbooks):
    before = namespace.make_primary(2)
    namespace.roll(image="myimage:v2", pause_at="1")

    output = playbooks.run("rollback", before_tasks=["fail.yml"], succeeds=False)
    assert "the shop is closed" in error_of(output) and versions(namespace) == (1, 1)

    output = playbooks.run("rollback", image="myimage:v1")
    assert namespace.rc()["spec"] == before["spec"]
    assert "foo is rolled back to myimage:v1" in output.partition("CUSTOM STATS")[2]

    namespace.roll(image="myimage:v2")
    assert ("there is no update in progress to roll back"
            in playbooks.run("rollback", succeeds=False))
    # as passed on by a workflow
    playbooks.run("rollback", image="myimage:v2", previous_images={"web": "myimage:v1"})
    assert versions(namespace) == (2, 0)
    assert "changed=0" in playbooks.run("rollback", image="myimage:v1")


@pytest.mark.full
def test_several_controllers_are_rolled_back_by_labels_or_names(namespace, playbooks):
    """Finished updates are rolled back too if an image is given, among the controllers of the
    image's repository.
    """
    for name, image in (("foo", "myimage"), ("shop", "myimage"), ("other", "other")):
        namespace.make_primary(2, f"{image}:v1", name, labels={"tier": "web"})
        namespace.roll(name=name, image=f"{image}:v2",
                       **({} if name == "shop" else {"pause_at": 1}))

    for wrong in ({}, {"names": ["foo"], "label_selectors": "tier=web"}):
        output = playbooks.run("rollback", controller="", image="myimage:v1", succeeds=False,
                               **wrong)
        assert ("Give exactly one of controller, names and label_selectors"
                in " ".join(output.split()))
    assert (images(namespace)
            == {"foo": {"myimage:v1", "myimage:v2"}, "shop": {"myimage:v2"},
                "other": {"other:v1", "other:v2"}})

    output = playbooks.run("rollback", controller="", label_selectors="tier=web",
                           image="myimage:v1")
    assert (images(namespace)
            == {"foo": {"myimage:v1"}, "shop": {"myimage:v1"}, "other": {"other:v1", "other:v2"}})
    assert '"names": [' in output.partition("CUSTOM STATS")[2]

    # an error of one controller does not block the others
    playbooks.run("rollback", controller="", names="gone, foo, other", succeeds=False)
    assert images(namespace)["other"] == {"other:v1"}


def images(namespace):
    """Return the images of all pods by the name of their controller, according to the label."""
    by_controller = {}
    for pod in namespace.pods():
        by_controller.setdefault(pod["metadata"]["labels"]["app"],
                                 set()).add(pod["spec"]["containers"][0]["image"])
    return by_controller


def test_rollback_to_an_image_resumes_after_a_kill(namespace, playbooks):
    """Half-way, the rollback is an update in progress to the requested image, so there is no update
    to abort.
    """
    namespace.make_primary(4, image="myimage:v1")
    namespace.roll(image="myimage:v2")
    namespace.roll(image="myimage:v1", pause_at="50%")
    back = {pod["metadata"]["uid"]
            for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] == "myimage:v1"}

    playbooks.run("rollback", image="myimage:v1")

    assert (versions(namespace) == (4, 0)
            and back <= {pod["metadata"]["uid"] for pod in namespace.pods()})


@pytest.mark.full
@pytest.mark.parametrize("role, image", [("image_bump", "myimage:v2"), ("rollback", "myimage:v1")])
def test_examples_of_the_readme_run(namespace, playbooks, check_server, tmp_path, role, image):
    namespace.make_primary(2)
    if role == "rollback":
        namespace.roll(image="myimage:v2")
    readme = (ROOT / "roles" / role / "README.md").read_text()
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", readme, re.DOTALL):
        (tmp_path / name).write_text(text)

    output = playbooks.command("ansible-playbook", "play.yml", "-e",
                               f"{role}_namespace={namespace.name}",
                               "-e", f"shop_url={check_server.url}")

    assert ("failed=0" in output
            and {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {image})


@pytest.mark.full
def test_task_files_of_a_survey_belong_to_the_project(namespace, playbooks, tmp_path):
    """A survey must not choose other code; a playbook's author, or a user of the role's own names,
    may.
    """
    before = namespace.make_primary(2)

    for path in (str(tmp_path / "smoke.yml"), f"../{tmp_path.name}/smoke.yml"):
        for option in ("verify_tasks", "before_tasks", "after_tasks", "failure_tasks"):
            assert ("is not a path inside the project"
                    in playbooks.image_bump(**{option: path}, succeeds=False))
        assert ("is not a path inside the project"
                in playbooks.run("rollback", before_tasks=path, succeeds=False))
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    playbooks.image_bump(image_bump_verify_tasks=str(tmp_path / "smoke.yml"), verify_tasks="")
    assert versions(namespace) == (0, 2)


@pytest.mark.full
@pytest.mark.parametrize("last_rollout", [
    {"outcome": "updated", "from": {"web": "evil:v1"}, "to": {"web": "myimage:v1"}},
    {"outcome": "updated", "from": {"web": "evil:v1"}, "to": {"web": "myimage:v2"}},
], ids=["for what is there", "for what is wanted"])
def test_workflow_gets_observed_values_and_no_annotations(
        namespace, playbooks, last_rollout):
    namespace.make_primary(1)
    annotations = {"baton.kubernetes/last-rollout": json.dumps(last_rollout)}
    namespace.patch("foo", {"metadata": {"annotations": annotations}})

    playbooks.image_bump(image="myimage:v1", stages="", verify_tasks="")
    assert (
        playbooks.report_data["outcome"] == "updated"
        and playbooks.report_data["previous_images"] == {}
    )

    playbooks.image_bump(stages="", verify_tasks="")
    assert playbooks.report_data["previous_images"] == {"web": "myimage:v1"}


#: A user without an entry in /etc/passwd, like in a container of OpenShift; reads root's files, as
#: the interpreter does.
NOBODY = ["setpriv", "--reuid", "12345", "--clear-groups", "--inh-caps", "+dac_override",
          "--ambient-caps", "+dac_override"]


@pytest.fixture
def open_folder():
    """Provide a folder for all users, as the home of such a user."""
    with tempfile.TemporaryDirectory(prefix="baton-home-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"),
                    reason="only root can be another user")
def test_user_without_a_name_updates_like_other_users(namespace, ansible_environment, open_folder,
                                                      check_server):
    """The user only appears in the report."""
    namespace.make_primary(4)
    nameless = {key: value
                for key, value in ansible_environment.items()
                if key not in ("USER", "LOGNAME", "LNAME", "USERNAME")}
    home = {"HOME": str(open_folder), "ANSIBLE_HOME": str(open_folder / "ansible")}
    playbooks = Playbooks({**nameless, **home}, open_folder, check_server)
    variables = {
        "controller": "foo",
        "controller_namespace": namespace.name,
        "image": "myimage:v2",
        "stages": ["50%", "100%"],
        "verify_tasks": ["smoke.yml"],
        "after_tasks": ["write_report_data.yml"],
        "report": "page.html",
    }

    playbooks.command(*NOBODY, "ansible-playbook", "baton.kubernetes.image_bump", "-e",
                      json.dumps(variables))

    assert (versions(namespace) == (0, 4) and playbooks.report_data["outcome"] == "updated"
            and playbooks.report_data["user"] == "12345")
    assert (open_folder / "page.html").stat().st_uid == 12345


@pytest.mark.full
def test_several_controllers_run_through_the_stages_together(namespace, playbooks, check_server):
    names = ["foo", "fum"]
    for name in names:
        namespace.make_primary(4, name=name)
    check_server.failing_stages = {"100%"}
    variables = {"controller": "", "names": names, "stages": ["50%", "100%"]}

    playbooks.image_bump(succeeds=False, **variables)
    assert check_server.requests == [("50%", 4, 4), ("100%", 0, 8)] and versions(namespace) == (
        8,
        0,
    )
    assert (playbooks.report_data["outcome"] == "rolled_back"
            and "Rolled back: " in playbooks.report_data["message"])

    check_server.failing_stages = set()
    playbooks.image_bump(**variables)
    assert versions(namespace) == (0, 8) and namespace.rcs() == names
    assert [result["name"] for result in playbooks.report_data["results"]] == names * 3


@pytest.mark.full
def test_failure_rolls_back_or_names_each_of_several_controllers(
        namespace, playbooks, check_server):
    """Deleted between two stages: the others are rolled back instead of the next stage."""
    names = ["foo", "fox", "fum"]
    for name in names:
        namespace.make_primary(2, name=name)

    def delete():
        for name in namespace.rcs():
            if name.startswith("foo"):
                namespace.remove(name)
                namespace.wait_for_deletion(name)

    check_server.actions = {"50%": delete}
    output = playbooks.image_bump(
        succeeds=False,
        controller="",
        names=names,
        stages=["50%", "100%"],
        concurrency=1,
        timeout=600,
    )

    assert (namespace.rcs() == ["fox", "fum"]
            and images(namespace) == {name: {"myimage:v1"} for name in names[1:]})
    assert (playbooks.report_data["outcome"] == "failed"
            and "\nRolled back: fox, fum.\n" in playbooks.report_data["message"])
    assert ("foo is not rolled back: there is no such ReplicationController"
            in " ".join(error_of(output).split()))


def test_artifacts_of_several_controllers_roll_back_the_job(namespace, playbooks):
    for name, image in (("foo", "myimage:v1"), ("fox", "myimage:v2"), ("fum", "myimage:v1")):
        namespace.make_primary(1, image, name)

    output = playbooks.image_bump(
        controller="", names=["foo", "fox", "fum"], stages="", verify_tasks="", after_tasks=""
    )
    artifacts = json.JSONDecoder().raw_decode(output.partition("RUN: ")[2])[0]
    assert (artifacts["names"] == ["foo", "fum"]
            and artifacts["previous_images"] == {"web": "myimage:v1"})

    namespace.roll(name="foo", image="myimage:v3", pause_at="1")
    assert "failed=0" in playbooks.run("rollback", "--check", **artifacts)
    assert images(namespace)["foo"] == {"myimage:v3"}
    playbooks.run("rollback",
                  **artifacts | {"previous_images": json.dumps(artifacts["previous_images"])})
    assert (images(namespace)
            == {"foo": {"myimage:v1"}, "fox": {"myimage:v2"}, "fum": {"myimage:v1"}})


@pytest.mark.full
def test_deployment_runs_through_the_stages(namespace, playbooks, check_server):
    namespace.make_deployment(REPLICAS)

    playbooks.image_bump(kind="Deployment")

    assert check_server.requests == [("10%", 9, 1), ("50%", 5, 5), ("100%", 0, 10)]
    assert namespace.wait_for_rollout() and playbooks.report_data["outcome"] == "updated"
    assert stages_of(playbooks.report_data) == [(stage, "passed", ["passed"]) for stage in STAGES]
    assert playbooks.report_data["previous_images"] == {"web": "myimage:v1"}

    for _again in range(2):
        playbooks.run("rollback", kind="Deployment", to_revision="previous")
        assert namespace.wait_for_rollout() and versions(namespace) == (10, 0)


@pytest.mark.long
def test_deployment_is_rolled_back_after_a_failed_check(namespace, playbooks, check_server):
    before = namespace.make_deployment(REPLICAS)
    check_server.failing_stages = {"50%"}

    playbooks.image_bump(succeeds=False, kind="Deployment")

    assert check_server.requests[-1] == ("50%", 5, 5) and versions(namespace) == (10, 0)
    after = namespace.deployment()["spec"]
    assert {key: value for key, value in after.items() if key != "paused"} == before["spec"]
    assert playbooks.report_data["message"].endswith(
        "foo is rolled back to myimage:v1: 10 of 10 replicas available."
    )

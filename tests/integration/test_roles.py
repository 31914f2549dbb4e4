# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the roles and playbooks: stages with an HTTP check, hooks, rollbacks, and kills."""

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
from objects import eventually, pod_counts
from plays import STAGES, CheckServer, Playbooks, kill_processes

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
    return [(stage["stage"], stage["outcome"], [check["outcome"] for check in stage["checks"]])
            for stage in report["stages"]]


def error_of(output):
    return output.partition("Fail with the reason")[2]


@pytest.mark.full
def test_staged_update_with_a_check_at_each_stage(namespace, playbooks, check_server):
    namespace.make_rc(REPLICAS)

    output = playbooks.image_bump()

    assert check_server.requests == [("10%", 9, 1), ("50%", 5, 5), ("100%", 0, 10)]
    assert namespace.rc_names() == ["foo"] and pod_counts(namespace) == (0, 10)
    data = playbooks.report_data
    assert (data["outcome"] == "updated"
            and data["message"] == "foo is updated to myimage:v2: 10 of 10 replicas available")
    assert stages_of(data) == [(stage, "passed", ["passed"]) for stage in STAGES]
    assert ([result["rollout"]["phase"] for result in data["results"]]
            == ["paused", "paused", "paused", "complete"])
    assert (data["previous_images"] == {"web": "myimage:v1"} and data["user"]
            and data["started"] < data["ended"])
    assert '"outcome": "updated"' in output.partition("CUSTOM STATS")[2]
    assert "List the pods" not in output, "the task of the update lists the pods"
    assert "unsafe" not in output  # part of a warning of Ansible about templated arguments

    check_server.requests.clear()
    assert (
        "changed=0" in playbooks.image_bump(after_tasks="") and check_server.requests == NO_REQUESTS
    )


@pytest.mark.full
def test_stages_run_in_order_without_checks(namespace, playbooks):
    namespace.make_rc(4)
    # With this seed, a set of these stages has another order.
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
@pytest.mark.parametrize("stage, expected_counts", [("50%", (5, 5)), ("100%", (0, 10))])
def test_failed_check_is_named_and_the_update_is_rolled_back(
    namespace, playbooks, check_server, stage, expected_counts
):
    before = namespace.make_rc(REPLICAS)
    check_server.failing_stages = {stage}

    output = playbooks.image_bump(succeeds=False)

    assert check_server.requests[-1] == (stage, *expected_counts)
    assert (namespace.rc_names() == ["foo"] and namespace.rc()["spec"] == before["spec"]
            and pod_counts(namespace) == (10, 0))
    data = playbooks.report_data
    assert data["outcome"] == "rolled_back" and stages_of(data)[-1] == (stage, "failed", ["failed"])
    sentence = (
        f"The check smoke.yml has failed at stage {stage} of foo: Call the check server: Status "
        f"code was 503"
    )
    assert data["message"].startswith(sentence) and sentence in error_of(output)
    assert data["message"].endswith("foo is rolled back to myimage:v1: 10 of 10 replicas "
                                    "available.")
    assert '"outcome": "rolled_back"' in output.partition("CUSTOM STATS")[2]


@pytest.mark.full
def test_commands_after_a_failed_check_resume_and_roll_back(namespace, playbooks, check_server):
    namespace.make_rc(2)
    playbooks.write("write_commands.yml", [{"ansible.builtin.copy": {
        "content": "{{ image_bump_commands | to_json }}", "mode": "0600",
        "dest": str(playbooks.folder / "commands.json")}}])
    for step in ("rollback", "resume"):
        check_server.failing_stages = {"50%"}
        playbooks.image_bump(succeeds=False, on_failure="stop",
                             failure_tasks=["write_report_data.yml", "write_commands.yml"])
        assert pod_counts(namespace) == (1, 1) and playbooks.report_data["outcome"] == "stopped"
        resume_command, rollback_command = json.loads(
            (playbooks.folder / "commands.json").read_text())
        assert f"or run `{rollback_command}` to roll back" in playbooks.report_data["message"]

        check_server.failing_stages = set()
        command = rollback_command if step == "rollback" else resume_command
        playbooks.run_command(*shlex.split(command))

        assert pod_counts(namespace) == {"rollback": (2, 0), "resume": (0, 2)}[step]


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_rerun_resumes_after_a_kill_at_each_stage(namespace, playbooks, check_server):
    namespace.make_rc(REPLICAS)
    new_uids = set()
    for stage, counts in (("10%", (9, 1)), ("50%", (5, 5)), ("100%", (0, 10))):
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
        assert check_server.requests[-1] == (stage, *counts) == (stage, *pod_counts(namespace))
        assert new_uids <= (new_uids := new_pod_uids(namespace))

    check_server.unanswered_stages = set()
    playbooks.image_bump(image="myimage:v2-slow")

    assert namespace.rc_names() == ["foo"]
    assert new_pod_uids(namespace) == new_uids and len(new_uids) == REPLICAS


@pytest.mark.fake_nodes("pods that take seconds to become ready")
@pytest.mark.long
def test_rerun_resumes_after_a_kill_between_two_stages(namespace, playbooks, check_server):
    namespace.make_rc(REPLICAS)
    process = playbooks.start("image_bump", image="myimage:v2-slow", stages=["10%", "100%"],
                              verify_tasks="smoke.yml")
    eventually(lambda: 2 < pod_counts(namespace)[1] < REPLICAS, "new pods of the second stage",
               seconds=120)
    kill_processes(process)
    new_uids = new_pod_uids(namespace)

    playbooks.image_bump(image="myimage:v2-slow", stages=["10%", "100%"])

    assert new_uids <= new_pod_uids(namespace) and pod_counts(namespace) == (0, 10)


def new_pod_uids(namespace):
    return {pod["metadata"]["uid"]
            for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] != "myimage:v1"}


@pytest.mark.long
def test_update_pauses_if_the_last_stage_is_less_than_all_pods(namespace, playbooks, check_server):
    namespace.make_rc(REPLICAS)

    playbooks.image_bump(stages="1, 3")
    assert pod_counts(namespace) == (7, 3) and playbooks.report_data["outcome"] == "paused"
    playbooks.image_bump(stages="")

    assert (pod_counts(namespace) == (0, 10)
            and check_server.requests == [("1", 9, 1), ("3", 7, 3), ("100%", 0, 10)])


@pytest.mark.full
def test_update_with_empty_survey_answers_has_one_stage(namespace, playbooks):
    namespace.make_rc(2)
    *_tasks, task = yaml.safe_load((ROOT / "playbooks" / "tasks" / "image_bump.yml").read_text())
    empty_answers = {name.removeprefix("image_bump_"): ""
                     for name in task["vars"] if name.startswith("image_bump_")}

    playbooks.image_bump(**{**empty_answers, "controller": "foo",
                            "controller_namespace": namespace.name,
                            "image": "myimage:v2",
                            "after_tasks": "write_report_data.yml"})

    (result,) = playbooks.report_data["results"]
    assert (result["rollout"]["phase"] == "complete"
            and stages_of(playbooks.report_data) == [("100%", "passed", [])])


@pytest.mark.full
def test_former_variable_names_are_accepted(namespace, playbooks):
    """Ansible warns about the former names name, namespace and timeout, which are reserved."""
    namespace.make_rc(1)
    former_names = {"controller": "", "controller_namespace": "", "name": "foo",
                    "namespace": namespace.name}

    outputs = [playbooks.run("image_bump", image="myimage:v2", time_limit=60),
               playbooks.run("rollback", image="myimage:v1"),
               playbooks.run("status")]
    assert (not [output for output in outputs if "reserved name" in output]
            and pod_counts(namespace) == (1, 0))
    playbooks.run("image_bump", image="myimage:v2", **former_names)
    assert pod_counts(namespace) == (0, 1)
    playbooks.run("rollback", image="myimage:v1", **former_names)
    assert pod_counts(namespace) == (1, 0) and '"name": "foo"' in playbooks.run(
        "status", **former_names
    )


@pytest.mark.full
def test_failed_hook_before_the_update_changes_nothing(namespace, playbooks):
    before = namespace.make_rc(2)

    output_of_failed_hook = playbooks.image_bump(before_tasks=["fail.yml"], succeeds=False)
    output_without_file = playbooks.image_bump(verify_tasks=["missing.yml"], succeeds=False)
    assert ("stages: '1O%' is neither a number nor a percentage"
            in playbooks.image_bump(stages="50%,1O%", succeeds=False))

    assert ("fail.yml has failed before the update of foo, which was not started: Not today: the "
            "shop "
            "is closed" in error_of(output_of_failed_hook))
    assert playbooks.report_data["outcome"] == "failed" and playbooks.report_data["results"] == []
    assert "missing.yml is not a file with a list of tasks" in output_without_file
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


@pytest.mark.full
def test_failed_hook_after_the_update_does_not_roll_back(namespace, playbooks):
    namespace.make_rc(2)

    output = playbooks.image_bump(
        after_tasks=["fail.yml"],
        failure_tasks=["write_report_data.yml", "fail.yml"],
        stages=[],
        succeeds=False,
    )

    assert pod_counts(namespace) == (0, 2) and playbooks.report_data["outcome"] == "failed"
    assert ("2 of 2 replicas available, but then fail.yml has failed: Not today: the shop is closed"
            in playbooks.report_data["message"])
    assert "Then fail.yml has failed too" in error_of(output)


@pytest.mark.full
@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_crashing_pods_are_rolled_back(namespace, playbooks, check_server):
    before = namespace.make_rc(2)

    playbooks.image_bump(image="myimage:v2-crash", failure_grace=1, succeeds=False)

    assert (namespace.rc_names() == ["foo"] and namespace.rc()["spec"] == before["spec"]
            and check_server.requests == NO_REQUESTS)
    assert (playbooks.report_data["outcome"] == "rolled_back"
            and "CrashLoopBackOff" in playbooks.report_data["message"])
    assert playbooks.report_data["message"].startswith("Stage 10%: ")


@pytest.mark.full
@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_final_error_refers_to_the_failed_task(namespace, playbooks):
    namespace.make_rc(2)

    output = playbooks.image_bump(
        image="myimage:v2-crash", failure_grace=1, stages="", verify_tasks="", succeeds=False
    )

    failure_text = "the new pods cannot become available; foo is rolled back to myimage:v1"
    error = error_of(output).partition("PLAY RECAP")[0]
    assert (f"Stage 100%: ReplicationController {namespace.name}/foo: {failure_text}" in error
            and "at the failed task 'Update foo'." in error)
    assert (
        "CrashLoopBackOff" not in error and "CrashLoopBackOff" in playbooks.report_data["message"]
    )


@pytest.mark.full
def test_update_is_refused_during_an_update_of_another_client(namespace, playbooks, check_server):
    namespace.make_rc(4)
    namespace.roll(image="myimage:v3", pause_at="1")

    playbooks.image_bump(succeeds=False)

    assert pod_counts(namespace) == (3, 1) and check_server.requests == NO_REQUESTS
    assert (playbooks.report_data["outcome"] == "failed"
            and "another update is in progress" in playbooks.report_data["message"])


def test_check_mode_plans_the_whole_update(namespace, playbooks, check_server):
    before = namespace.make_rc(2)

    output = playbooks.image_bump("--check", "-v", after_tasks=[])

    assert "takes over" in output or '"rename"' in output
    assert (namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
            and check_server.requests == NO_REQUESTS)


@pytest.mark.sample(1)
@pytest.mark.parametrize("keyword, arguments", [(True, []), (False, ["--check"])])
def test_check_mode_is_that_of_the_keyword(namespace, playbooks, check_server, keyword, arguments):
    before = namespace.make_rc(2)
    options = {"name": "foo", "namespace": namespace.name, "image": "myimage:v2",
               "stages": ["50%"], "verify_tasks": ["smoke.yml"]}
    role = {"role": "baton.kubernetes.image_bump",
            **{f"image_bump_{option}": value for option, value in options.items()}}
    rollback = {"role": "baton.kubernetes.rollback", "rollback_name": "foo",
                "rollback_namespace": namespace.name, "rollback_image": "myimage:v0"}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False,
            "check_mode": keyword}
    playbooks.write("play.yml", [{**play, "roles": [role]}])
    playbooks.write("rollback.yml", [{**play, "check_mode": True, "roles": [rollback]}])

    output = playbooks.run_command("ansible-playbook", "play.yml", *arguments)

    assert ("Show the stages" in output) is keyword
    assert pod_counts(namespace) == ((2, 0) if keyword else (1, 1))
    assert (namespace.rc()["spec"] == before["spec"]) is keyword
    assert check_server.requests == ([] if keyword else [("50%", 1, 1)])
    output = playbooks.run_command("ansible-playbook", "rollback.yml")
    assert ("Show the remaining update" in output) is not keyword


@pytest.mark.full
def test_rollback_of_a_paused_update_and_of_a_completed_update(namespace, playbooks):
    before = namespace.make_rc(2)
    namespace.roll(image="myimage:v2", pause_at="1")

    output = playbooks.run("rollback", before_tasks=["fail.yml"], succeeds=False)
    assert "the shop is closed" in error_of(output) and pod_counts(namespace) == (1, 1)

    output = playbooks.run("rollback", image="myimage:v1")
    assert namespace.rc()["spec"] == before["spec"]
    assert "foo is rolled back to myimage:v1" in output.partition("CUSTOM STATS")[2]

    namespace.roll(image="myimage:v2")
    assert ("there is no update in progress to roll back"
            in playbooks.run("rollback", succeeds=False))
    # With the artifacts of the update, as in a workflow.
    playbooks.run("rollback", image="myimage:v2", previous_images={"web": "myimage:v1"})
    assert pod_counts(namespace) == (2, 0)
    assert "changed=0" in playbooks.run("rollback", image="myimage:v1")


@pytest.mark.full
def test_several_controllers_are_rolled_back_by_labels_or_names(namespace, playbooks):
    for name, image in (("foo", "myimage"), ("shop", "myimage"), ("other", "other")):
        namespace.make_rc(2, f"{image}:v1", name, labels={"tier": "web"})
        namespace.roll(name=name, image=f"{image}:v2",
                       **({} if name == "shop" else {"pause_at": 1}))

    for invalid_options in ({}, {"names": ["foo"], "label_selectors": "tier=web"}):
        output = playbooks.run("rollback", controller="", image="myimage:v1", succeeds=False,
                               **invalid_options)
        assert ("Give exactly one of controller, names and label_selectors"
                in " ".join(output.split()))
    assert (images_by_controller(namespace)
            == {"foo": {"myimage:v1", "myimage:v2"}, "shop": {"myimage:v2"},
                "other": {"other:v1", "other:v2"}})

    output = playbooks.run("rollback", controller="", label_selectors="tier=web",
                           image="myimage:v1")
    assert (images_by_controller(namespace)
            == {"foo": {"myimage:v1"}, "shop": {"myimage:v1"}, "other": {"other:v1", "other:v2"}})
    assert '"names": [' in output.partition("CUSTOM STATS")[2]

    # The error of one controller does not prevent the other rollbacks.
    playbooks.run("rollback", controller="", names="missing, foo, other", succeeds=False)
    assert images_by_controller(namespace)["other"] == {"other:v1"}


def images_by_controller(namespace):
    by_controller = {}
    for pod in namespace.pods():
        by_controller.setdefault(pod["metadata"]["labels"]["app"],
                                 set()).add(pod["spec"]["containers"][0]["image"])
    return by_controller


def test_rollback_to_an_image_keeps_pods_that_already_have_it(namespace, playbooks):
    namespace.make_rc(4, image="myimage:v1")
    namespace.roll(image="myimage:v2")
    namespace.roll(image="myimage:v1", pause_at="50%")
    restored_pods = {pod["metadata"]["uid"]
                     for pod in namespace.pods()
                     if pod["spec"]["containers"][0]["image"] == "myimage:v1"}

    playbooks.run("rollback", image="myimage:v1")

    assert (pod_counts(namespace) == (4, 0)
            and restored_pods <= {pod["metadata"]["uid"] for pod in namespace.pods()})


@pytest.mark.full
@pytest.mark.parametrize("role, image", [("image_bump", "myimage:v2"), ("rollback", "myimage:v1")])
def test_example_of_the_readme_succeeds(namespace, playbooks, check_server, tmp_path, role, image):
    namespace.make_rc(2)
    if role == "rollback":
        namespace.roll(image="myimage:v2")
    readme = (ROOT / "roles" / role / "README.md").read_text()
    for name, text in re.findall(r"```yaml\n# (\S+)\n(.*?)```", readme, re.DOTALL):
        (tmp_path / name).write_text(text)

    output = playbooks.run_command("ansible-playbook", "play.yml", "-e",
                                   f"{role}_namespace={namespace.name}",
                                   "-e", f"shop_url={check_server.url}")

    assert ("failed=0" in output
            and {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()} == {image})


@pytest.mark.full
def test_task_file_outside_the_project_is_refused(namespace, playbooks, tmp_path):
    """A survey sets unprefixed variables, so these must not select code outside the project."""
    before = namespace.make_rc(2)

    for path in (str(tmp_path / "smoke.yml"), f"../{tmp_path.name}/smoke.yml"):
        for option in ("verify_tasks", "before_tasks", "after_tasks", "failure_tasks"):
            assert ("is not a path inside the project"
                    in playbooks.image_bump(**{option: path}, succeeds=False))
        assert ("is not a path inside the project"
                in playbooks.run("rollback", before_tasks=path, succeeds=False))
    assert namespace.rc()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    playbooks.image_bump(image_bump_verify_tasks=str(tmp_path / "smoke.yml"), verify_tasks="")
    assert pod_counts(namespace) == (0, 2)


@pytest.mark.full
@pytest.mark.parametrize("last_rollout", [
    {"outcome": "updated", "from": {"web": "evil:v1"}, "to": {"web": "myimage:v1"}},
    {"outcome": "updated", "from": {"web": "evil:v1"}, "to": {"web": "myimage:v2"}},
], ids=["record of the current image", "record of the requested image"])
def test_artifacts_contain_observed_images_not_recorded_ones(
        namespace, playbooks, last_rollout):
    namespace.make_rc(1)
    annotations = {"baton.kubernetes/last-rollout": json.dumps(last_rollout)}
    namespace.patch("foo", {"metadata": {"annotations": annotations}})

    playbooks.image_bump(image="myimage:v1", stages="", verify_tasks="")
    assert (
        playbooks.report_data["outcome"] == "updated"
        and playbooks.report_data["previous_images"] == {}
    )

    playbooks.image_bump(stages="", verify_tasks="")
    assert playbooks.report_data["previous_images"] == {"web": "myimage:v1"}


#: Command prefix: run as a user without a name, as in OpenShift, who may read all files (the
#: interpreter may belong to root).
AS_UNNAMED_USER = ["setpriv", "--reuid", "12345", "--clear-groups", "--inh-caps", "+dac_override",
                   "--ambient-caps", "+dac_override"]


@pytest.fixture
def world_writable_folder():
    with tempfile.TemporaryDirectory(prefix="baton-home-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"),
                    reason="only root can change the user")
def test_role_works_for_a_user_without_a_name(namespace, ansible_environment, world_writable_folder,
                                              check_server):
    namespace.make_rc(4)
    environment_without_user = {key: value
                                for key, value in ansible_environment.items()
                                if key not in ("USER", "LOGNAME", "LNAME", "USERNAME")}
    home = {"HOME": str(world_writable_folder),
            "ANSIBLE_HOME": str(world_writable_folder / "ansible")}
    playbooks = Playbooks({**environment_without_user, **home}, world_writable_folder, check_server)
    variables = {
        "controller": "foo",
        "controller_namespace": namespace.name,
        "image": "myimage:v2",
        "stages": ["50%", "100%"],
        "verify_tasks": ["smoke.yml"],
        "after_tasks": ["write_report_data.yml"],
        "report": "page.html",
    }

    playbooks.run_command(*AS_UNNAMED_USER, "ansible-playbook", "baton.kubernetes.image_bump", "-e",
                          json.dumps(variables))

    assert (pod_counts(namespace) == (0, 4) and playbooks.report_data["outcome"] == "updated"
            and playbooks.report_data["user"] == "12345")
    assert (world_writable_folder / "page.html").stat().st_uid == 12345


@pytest.mark.full
def test_several_controllers_run_through_the_stages_together(namespace, playbooks, check_server):
    names = ["foo", "fum"]
    for name in names:
        namespace.make_rc(4, name=name)
    check_server.failing_stages = {"100%"}
    variables = {"controller": "", "names": names, "stages": ["50%", "100%"]}

    playbooks.image_bump(succeeds=False, **variables)
    assert check_server.requests == [("50%", 4, 4), ("100%", 0, 8)] and pod_counts(namespace) == (
        8,
        0,
    )
    assert (playbooks.report_data["outcome"] == "rolled_back"
            and "Rolled back: " in playbooks.report_data["message"])

    check_server.failing_stages = set()
    playbooks.image_bump(**variables)
    assert pod_counts(namespace) == (0, 8) and namespace.rc_names() == names
    assert [result["name"] for result in playbooks.report_data["results"]] == names * 3


@pytest.mark.full
def test_failure_rolls_back_the_existing_controllers_and_names_the_deleted_one(
        namespace, playbooks, check_server):
    names = ["foo", "fox", "fum"]
    for name in names:
        namespace.make_rc(2, name=name)

    def delete_foo():
        for name in namespace.rc_names():
            if name.startswith("foo"):
                namespace.remove(name)
                namespace.wait_for_deletion(name)

    check_server.actions = {"50%": delete_foo}
    output = playbooks.image_bump(
        succeeds=False,
        controller="",
        names=names,
        stages=["50%", "100%"],
        concurrency=1,
        timeout=600,
    )

    assert (namespace.rc_names() == ["fox", "fum"]
            and images_by_controller(namespace) == {name: {"myimage:v1"} for name in names[1:]})
    assert (playbooks.report_data["outcome"] == "failed"
            and "\nRolled back: fox, fum.\n" in playbooks.report_data["message"])
    assert ("foo is not rolled back: there is no such ReplicationController"
            in " ".join(error_of(output).split()))


@pytest.mark.full
def test_rollback_with_the_artifacts_of_a_job_undoes_the_job(namespace, playbooks):
    for name, image in (("foo", "myimage:v1"), ("fox", "myimage:v2"), ("fum", "myimage:v1")):
        namespace.make_rc(1, image, name)

    output = playbooks.image_bump(
        controller="", names=["foo", "fox", "fum"], stages="", verify_tasks="", after_tasks=""
    )
    artifacts = json.JSONDecoder().raw_decode(output.partition("RUN: ")[2])[0]
    assert (artifacts["names"] == ["foo", "fum"]
            and artifacts["previous_images"] == {"web": "myimage:v1"})

    namespace.roll(name="foo", image="myimage:v3", pause_at="1")
    assert "failed=0" in playbooks.run("rollback", "--check", **artifacts)
    assert images_by_controller(namespace)["foo"] == {"myimage:v3"}
    playbooks.run("rollback",
                  **artifacts | {"previous_images": json.dumps(artifacts["previous_images"])})
    assert (images_by_controller(namespace)
            == {"foo": {"myimage:v1"}, "fox": {"myimage:v2"}, "fum": {"myimage:v1"}})


@pytest.mark.full
def test_deployment_runs_through_the_stages(namespace, playbooks, check_server):
    namespace.make_deployment(REPLICAS)

    playbooks.image_bump(kind="Deployment")

    assert check_server.requests == [("10%", 9, 1), ("50%", 5, 5), ("100%", 0, 10)]
    assert namespace.wait_for_rollout() and playbooks.report_data["outcome"] == "updated"
    assert stages_of(playbooks.report_data) == [(stage, "passed", ["passed"]) for stage in STAGES]
    assert playbooks.report_data["previous_images"] == {"web": "myimage:v1"}

    for _run in range(2):
        playbooks.run("rollback", kind="Deployment", to_revision="previous")
        assert namespace.wait_for_rollout() and pod_counts(namespace) == (10, 0)


@pytest.mark.long
def test_deployment_is_rolled_back_after_a_failed_check(namespace, playbooks, check_server):
    before = namespace.make_deployment(REPLICAS)
    check_server.failing_stages = {"50%"}

    playbooks.image_bump(succeeds=False, kind="Deployment")

    assert check_server.requests[-1] == ("50%", 5, 5) and pod_counts(namespace) == (10, 0)
    after = namespace.deployment()["spec"]
    assert {key: value for key, value in after.items() if key != "paused"} == before["spec"]
    assert playbooks.report_data["message"].endswith(
        "foo is rolled back to myimage:v1: 10 of 10 replicas available."
    )

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test ad-hoc commands, playbooks, the installed collection, and killing Ansible."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import ansible_cli
import pytest
from objects import eventually, manifest, role_rules
from proc import descendants, is_alive

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(namespace, ansible_environment, tmp_path):
    def run(*command, environment=None, check=True):
        result = ansible_cli.run(command, cwd=tmp_path,
                                 env={**ansible_environment, **(environment or {})},
                                 capture_output=True, text=True, timeout=120, check=False)
        assert not check or result.returncode == 0, result.stdout + result.stderr
        return result

    return run


@pytest.fixture
def adhoc(namespace, run):
    def adhoc(arguments, module="rolling_update", flags=(), **options):
        return run("ansible", "localhost", "-m", f"baton.kubernetes.{module}", *flags, "-a",
                   f"namespace={namespace.name} {arguments}", **options)

    return adhoc


def result_of(process):
    return json.loads(process.stdout.partition("=>")[2])


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def test_ad_hoc_command_prints_progress_lines_and_rerun_changes_nothing(namespace, adhoc):
    namespace.make_rc(2)

    first, second = adhoc("name=foo image=myimage:v2"), adhoc("name=foo image=myimage:v2")

    assert result_of(first)["changed"] and not result_of(second)["changed"]
    lines = first.stderr.splitlines()
    steps = [line for line in lines if "waiting" not in line and line.startswith("localhost | ")]
    assert len(steps) == len(result_of(first)["steps"])
    assert f"localhost | {namespace.name} | scale foo: 2 -> 1 replicas" in steps
    assert "localhost |" not in second.stderr
    assert images(namespace) == {"myimage:v2"}


@pytest.mark.sample(1)
@pytest.mark.parametrize("arguments",
                         ["image=myimage:v1", "name=missing image=myimage:v1",
                          "image=myimage:v1 container=no",
                          "image=myimage:v1 max_surge=x", "image=myimage:v1 nonsense=1",
                          "state=rolled_back"])
def test_action_plugin_and_module_return_the_same_error(namespace, run, arguments):
    """The module runs in a new process if the Python interpreter differs."""
    namespace.make_rc(1)
    arguments = arguments if "name=" in arguments else f"name=foo {arguments}"

    another_python = ("-e", f"ansible_python_interpreter={ROOT}/.venv/bin/../bin/python3")
    in_process, in_module = (
        run("ansible", "localhost", "-vvv", "-m", "baton.kubernetes.rolling_update", *interpreter,
            "-a", f"namespace={namespace.name} {arguments}", check=False)
        for interpreter in ((), another_python))

    assert (("EXEC" in in_process.stdout, "EXEC" in in_module.stdout)
            == ("nonsense" in arguments, True))
    results = [result_of(process) for process in (in_process, in_module)]
    for result in results:
        result.pop("invocation", None)
    assert results[0] == results[1] and in_process.returncode == in_module.returncode


@pytest.mark.full
@pytest.mark.parametrize("module, arguments", [
    ("rolling_update", ["--check", "--diff", "-a", "name=foo image=myimage:v2"]),
    ("rolling_update_info", ["-a", "pods=true"]),
    ("rolling_update", ["-a", "name=foo image=myimage:v2 api_key={token}"])])
def test_action_plugin_and_module_return_the_same_result(
    namespace, run, cluster, module, arguments
):
    results = []
    for interpreter in ((), ("-e", f"ansible_python_interpreter={ROOT}/.venv/bin/../bin/python3")):
        if results:
            namespace.remove("foo")
            eventually(lambda: not namespace.pods(), "the deletion of all pods")
        namespace.make_rc(2)
        words = [f"namespace={namespace.name} {argument.format(token=cluster.token)}"
                 if "=" in argument else argument for argument in arguments]
        process = run("ansible", "localhost", "-vvv", "-m", f"baton.kubernetes.{module}",
                      *interpreter, *words)
        assert (("EXEC" in process.stdout) == bool(interpreter)
                and cluster.token not in process.stdout)
        results.append(result_of(process))
    in_process, in_module = results
    assert (in_process.keys() == in_module.keys()
            and in_process["invocation"] == in_module["invocation"]
            and in_process.get("msg") == in_module.get("msg"))
    assert ([step["action"] for step in in_process.get("steps", [])]
            == [step["action"] for step in in_module.get("steps", [])])
    assert (in_process.get("diff") == in_module.get("diff")
            and in_process["changed"] == in_module["changed"])


@pytest.mark.full
def test_migration_by_ad_hoc_commands_and_errors_for_removed_options(namespace, adhoc):
    namespace.allow(role_rules("baton-migration"), "baton-migration")
    namespace.make_rc(1)
    for removed_option in ("state=migrated", "to_kind=Deployment", "release_owner=true"):
        process = adhoc(f"name=foo {removed_option}", check=False)
        result = result_of(process)
        assert process.returncode and "-vvv" not in process.stderr
        name = removed_option if "state" in removed_option else removed_option.partition("=")[0]
        assert result["msg"] == (f"{name} was removed: use the module "
                                 "baton.kubernetes.migrate_to_deployment.")

    plan_process = adhoc("name=foo", module="migrate_to_deployment", flags=("--check",))
    first = adhoc("name=foo", module="migrate_to_deployment")
    second = adhoc("name=foo", module="migrate_to_deployment")

    assert result_of(plan_process)["changed"] and result_of(first)["changed"]
    assert "| create foo-migration: with myimage:v1" in first.stderr
    assert not result_of(second)["changed"] and "localhost |" not in second.stderr
    assert namespace.rc_names() == [] and len(namespace.deployments()) == 1


@pytest.mark.full
def test_playbook_shows_its_changes_in_check_and_diff_mode(namespace, run, tmp_path):
    namespace.make_rc(2)
    play = tmp_path / "play.yml"
    play.write_text(textwrap.dedent(f"""
        - hosts: localhost
          gather_facts: false
          module_defaults:
            group/baton.kubernetes.kubernetes:
              namespace: {namespace.name}
          tasks:
            - baton.kubernetes.rolling_update: {{name: foo, image: "myimage:v2", max_surge: 50%}}
              register: update
            - ansible.builtin.assert:
                that: update.steps | map(attribute='action') | unique | sort == expected
              vars: {{expected: [annotate, create, delete, hand over, keep, rename, scale]}}
            - baton.kubernetes.rolling_update_info: {{name: foo}}
              register: info
            - ansible.builtin.assert:
                that: info.rollouts[0].phase == 'complete'
        """))

    plan_process = run("ansible-playbook", play.name, "--check", "--diff")

    assert images(namespace) == {"myimage:v1"} and namespace.rc()["metadata"]["generation"] == 1
    changes = [line.split() for line in plan_process.stdout.splitlines()]
    assert (["-", '"image":', '"myimage:v1",'] in changes
            and ["+", '"image":', '"myimage:v2",'] in changes)
    run("ansible-playbook", play.name)
    assert images(namespace) == {"myimage:v2"}


def test_error_is_one_message_without_a_traceback(namespace, adhoc):
    process = adhoc("name=missing image=myimage:v2", check=False)

    result = result_of(process)
    assert process.returncode == 2 and not result["changed"]
    assert result["failure"]["what"] == "there is no such ReplicationController"
    assert "Traceback" not in process.stdout + process.stderr


@pytest.mark.full
@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_failed_update_is_rolled_back_and_explained(namespace, adhoc):
    before = namespace.make_rc(2)

    process = adhoc("name=foo image=myimage:v2-crash on_failure=rollback failure_grace=2 "
                    "timeout=60", check=False)

    print(process.stdout, process.stderr)
    result = result_of(process)
    assert process.returncode == 2 and result["changed"]
    (cause,) = result["failure"]["causes"]
    assert cause["kind"] == "crash" and cause["message"] in result["msg"]
    # The suggestion is omitted: the rollback has deleted the pod that it is about.
    assert not any(line in result["msg"] for line in cause["suggestion"].splitlines())
    assert (
        f"{cause['place']}: CrashLoopBackOff: exit code 3".replace("pod ", f"pod {namespace.name}/")
        in process.stderr)
    assert namespace.rc_names() == ["foo"] and namespace.rc()["spec"] == before["spec"]


@pytest.mark.full
@pytest.mark.fake_nodes("a pod that fails within 4 s")
def test_timeout_names_the_cause(namespace, adhoc):
    namespace.make_rc(2)

    process = adhoc("name=foo image=myimage:v2-absent timeout=4 failure_grace=60", check=False)

    print(process.stdout, process.stderr)
    result = result_of(process)
    assert (result["failure"]["what"] == "not finished within 4 s"
            and result["failure"]["causes"][0]["kind"] == "image")


@pytest.mark.sample(1)
@pytest.mark.parametrize("content, sentence", [
    (None, "there is no kubeconfig at"),
    ("", "the connection to Kubernetes cannot be set up"),
    ("token: s3cret\n: [", "the kubeconfig is not valid YAML"),
])
def test_unusable_kubeconfig_is_reported_without_its_content(
    namespace, adhoc, tmp_path, content, sentence
):
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)

    process = adhoc("name=foo image=myimage:v2", check=False,
                    environment={"K8S_AUTH_KUBECONFIG": str(path)})

    assert sentence in result_of(process)["msg"] and "s3cret" not in process.stdout + process.stderr
    assert "Traceback" not in process.stdout + process.stderr


def test_host_and_token_from_the_environment_are_used_and_never_shown(namespace, adhoc, cluster):
    """AWX sets these variables."""
    namespace.make_rc(1)
    token = namespace.token
    environment = {"K8S_AUTH_KUBECONFIG": "", "KUBECONFIG": "/nowhere",
                   "K8S_AUTH_HOST": cluster.server,
                   "K8S_AUTH_API_KEY": token,
                   "K8S_AUTH_SSL_CA_CERT": str(cluster.certificate_authority),
                   "K8S_AUTH_VERIFY_SSL": "True"}

    process = adhoc("name=foo image=myimage:v2", environment=environment)
    verbose_process = adhoc(f"name=foo image=myimage:v2 api_key={token}",
                            environment={**environment, "ANSIBLE_VERBOSITY": "3"})

    assert result_of(process)["changed"]
    assert (token
            not in process.stdout + process.stderr + verbose_process.stdout.replace("EXEC", "")
            + verbose_process.stderr)


@pytest.mark.full
def test_inline_kubeconfig_is_never_shown(namespace, run, tmp_path):
    namespace.make_rc(1)
    content = Path(namespace.kubeconfig).read_text(encoding="utf-8")
    play = [{"hosts": "localhost", "gather_facts": False,
             "tasks": [{"baton.kubernetes.rolling_update": {
                 "name": "foo", "namespace": namespace.name, "image": "myimage:v2",
                 "kubeconfig": json.loads(content)}}]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))

    process = run("ansible-playbook", "play.yml", "-vvv", environment={"K8S_AUTH_KUBECONFIG": ""})

    assert namespace.token not in process.stdout + process.stderr
    assert "changed=1" in process.stdout


@pytest.mark.full
def test_empty_option_is_treated_as_omitted(namespace, run):
    namespace.make_rc(1)
    empty = {"next_name": "", "container": "", "max_surge": ""}
    arguments = {"name": "foo", "namespace": namespace.name, "image": "myimage:v2", **empty}

    process = run("ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a",
                  json.dumps(arguments))

    assert result_of(process)["changed"]


def start_update(namespace, ansible_environment, tmp_path, *options, image="myimage:v2-slow"):
    return subprocess.Popen(
        ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a",
         f"namespace={namespace.name} name=foo image={image}", *options],
        cwd=tmp_path, env=ansible_environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True)


def successor_of(namespace):
    return next((name for name in namespace.rc_names() if name != "foo"), None)


def wait_for_new_pods(namespace):
    return eventually(
        lambda: successor_of(namespace)
        and (namespace.rc(successor_of(namespace)) or {}).get("spec", {}).get("replicas"),
        "new pods")


@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_update_resumes_after_a_kill_of_the_process_tree(namespace, ansible_environment, tmp_path,
                                                         adhoc):
    namespace.make_rc(3)
    process = start_update(namespace, ansible_environment, tmp_path)
    wait_for_new_pods(namespace)
    for pid in descendants(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    name = successor_of(namespace)

    info = result_of(adhoc("name=foo", module="rolling_update_info"))["rollouts"][0]
    assert (info["phase"] == "progressing" and info["direction"] == "forward"
            and info["successor"]["name"] == name)
    assert info["resume_command"] == "run the task that began it"
    assert info["rollback_command"].endswith(
        f"'name=foo namespace={namespace.name} state=rolled_back "
        f"kubeconfig={namespace.kubeconfig}'")

    result = result_of(adhoc("name=foo image=myimage:v2-slow"))

    assert (result["changed"] and namespace.rc_names() == ["foo"]
            and images(namespace) == {"myimage:v2-slow"})


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
@pytest.mark.parametrize("signal_title, interpreter", [
    ("SIGKILL of the process group", ""), ("SIGINT", ""), ("SIGTERM", ""),
    ("SIGKILL of the process group, with the module in a new process",
     f"ansible_python_interpreter={ROOT}/.venv/bin/../bin/python3")])
def test_update_stops_when_ansible_is_killed(
    namespace, ansible_environment, tmp_path, signal_title, interpreter
):
    """A kill of the process group does not end Ansible's workers, which have separate sessions. The
    action plugin notices the end of Ansible.
    """
    namespace.make_rc(3)
    process = start_update(namespace, ansible_environment, tmp_path,
                           *(["-e", interpreter] if interpreter else []))
    wait_for_new_pods(namespace)
    workers = descendants(process.pid)
    if signal_title.startswith("SIGKILL"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.send_signal(signal.Signals[signal_title])
    eventually(lambda: not any(is_alive(pid) for pid in workers), "the exit of all processes",
               seconds=15)
    process.communicate()
    generations = {name: namespace.rc(name)["metadata"]["generation"]
                   for name in namespace.rc_names()}
    time.sleep(4)
    assert generations == {name: namespace.rc(name)["metadata"]["generation"]
                           for name in namespace.rc_names()}
    assert len(generations) == 2


@pytest.mark.full
def test_built_and_installed_collection_runs_its_playbooks(namespace, run, tmp_path):
    namespace.make_rc(2)
    sources = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                             capture_output=True, check=True)
    tree = tmp_path / "tree"
    for name in sources.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    run("ansible-galaxy", "collection", "build", str(tree), "--output-path", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    environment = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "installed")}
    run("ansible-galaxy", "collection", "install", str(archive), "--offline", "-p",
        str(tmp_path / "installed"),
        environment=environment)

    extra = ["-e", "name=foo", "-e", f"namespace={namespace.name}"]
    run("ansible-playbook", "baton.kubernetes.image_bump", *extra, "-e", "image=myimage:v2",
        environment=environment)
    assert images(namespace) == {"myimage:v2"}
    failed_process = run("ansible-playbook", "baton.kubernetes.rollback", *extra,
                         environment=environment, check=False)
    assert "there is no update in progress to roll back" in failed_process.stdout
    status = run("ansible-playbook", "baton.kubernetes.status", *extra, environment=environment)
    assert "complete" in status.stdout


@pytest.mark.full
def test_info_lists_old_and_new_pods_at_a_pause(namespace, adhoc):
    namespace.make_rc(3)
    namespace.roll(image="myimage:v2", pause_at="1")

    (rollout,) = result_of(adhoc("name=foo pods=true", module="rolling_update_info"))["rollouts"]

    expected = {(pod["metadata"]["name"], pod["status"]["podIP"], pod["spec"]["nodeName"], True,
                 pod["spec"]["containers"][0]["image"] == "myimage:v2") for pod in namespace.pods()}
    assert ({(pod["name"], pod["ip"], pod["node"], pod["is_ready"], pod["is_new"])
             for pod in rollout["pods"]} == expected)
    assert len(expected) == 3 and sum(pod["is_new"] for pod in rollout["pods"]) == 1


@pytest.mark.full
def test_info_lists_all_controllers_of_a_namespace(namespace, adhoc):
    namespace.make_rc(1)
    namespace.create("replicationcontrollers", manifest(0, name="bar"))

    rollouts = result_of(adhoc("", module="rolling_update_info"))["rollouts"]

    assert ([(rollout["name"], rollout["phase"], rollout["resume_command"]) for rollout in rollouts]
            == [
        ("bar", "complete", None), ("foo", "complete", None)])

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the AWX project of examples/ with ansible-runner, as in AWX."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import ansible_runner
import html5lib
import pytest
import yaml
from objects import eventually

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples"
#: AWX's inventory without managed hosts.
LOCALHOST_INVENTORY = ("localhost ansible_connection=local ansible_python_interpreter=\"{{ "
                       "ansible_playbook_python }}\"\n")


class Jobs:
    def __init__(self, namespace, cluster, environment, folder):
        self.namespace, self.folder, self.count = namespace, folder, 0
        inherited_variables = ("ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_HOME", "PATH")
        self.environment = {key: environment[key] for key in inherited_variables} | {
            "K8S_AUTH_HOST": cluster.server, "K8S_AUTH_API_KEY": namespace.token,
            "K8S_AUTH_VERIFY_SSL": "True",
            "K8S_AUTH_SSL_CA_CERT": str(cluster.certificate_authority)}

    def create_data_dir(self, variables, files=None):
        self.count += 1
        folder = self.folder / f"job-{self.count}"
        shutil.copytree(PROJECT, folder / "project")
        playbooks = {f"project/{name}": json.dumps(plays) for name, plays in (files or {}).items()}
        for name, content in (*playbooks.items(), ("inventory/hosts", LOCALHOST_INVENTORY),
                              ("env/envvars", json.dumps(self.environment)),
                              ("env/extravars",
                               json.dumps({"controller_namespace": self.namespace.name,
                                           **variables}))):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        return folder

    def launch(self, playbook, is_canceled=lambda: False, files=None, **variables):
        runner = ansible_runner.run(private_data_dir=str(self.create_data_dir(variables, files)),
                                    playbook=playbook, quiet=True,
                                    cancel_callback=is_canceled)
        print(runner.status, runner.stdout.read())
        return runner


@pytest.fixture
def jobs(namespace, cluster, ansible_environment, tmp_path):
    return Jobs(namespace, cluster, ansible_environment, tmp_path)


class ContainerJob:
    """A job with the restrictions of an OpenShift container.

    The user id has no name, the home directory is read-only, and the group is root.
    """

    #: Prefix that runs a command as user 12345, who may read all files (such as an interpreter in
    #: root's home), but may write only their own.
    USER_PREFIX = ("setpriv", "--reuid", "12345", "--regid", "0", "--clear-groups", "--inh-caps",
                   "+dac_read_search", "--ambient-caps", "+dac_read_search")

    def __init__(self, jobs, playbook, **variables):
        self.folder = jobs.create_data_dir({"awx_job_id": jobs.count + 1, **variables})
        home = self.folder / "home"
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, 12345, 0)
        home.mkdir(mode=0o555)
        (self.folder / "env"
         / "envvars").write_text(json.dumps({**jobs.environment,
                                             "ANSIBLE_HOME": str(self.folder / "ansible")}))
        command = [*self.USER_PREFIX, sys.executable, "-m", "ansible_runner", "run",
                   str(self.folder), "-p", playbook]
        self.process = subprocess.Popen(command, cwd=self.folder,
                                        env={"PATH": os.environ["PATH"], "HOME": str(home)},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def cancel(self):
        self.process.terminate()

    @functools.cached_property
    def status(self):
        print(self.process.communicate(timeout=300)[0])
        return (self._artifacts / "status").read_text()

    @property
    def events(self):
        return [json.loads(path.read_text())
                for path in (self._artifacts / "job_events").glob("*.json")]

    @property
    def _artifacts(self):
        (folder,) = (self.folder / "artifacts").iterdir()
        return folder


@pytest.fixture
def open_folder():
    """Provide a folder that all users can read, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="baton-awx-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def artifacts(runner):
    (stats,) = (event["event_data"]
                for event in runner.events if event["event"] == "playbook_on_stats")
    return stats["artifact_data"]


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def survey_defaults(name):
    spec = json.loads((PROJECT / "awx" / f"{name}.survey.json").read_text())["spec"]
    return {question["variable"]: question["default"] for question in spec}


@pytest.mark.full
def test_workflow_updates_and_rolls_back(namespace, jobs):
    namespace.make_rc(4)

    answers = {"controller": "foo", "image": "myimage:v2", "controller_namespace": namespace.name}
    update = jobs.launch("image_bump.yml", **survey_defaults("image_bump") | answers)

    assert update.status == "successful" and images(namespace) == {"myimage:v2"}
    assert artifacts(update) == {
        "controller": "foo", "names": [], "controller_namespace": namespace.name,
        "kind": "ReplicationController",
        "image": "myimage:v2", "outcome": "updated", "previous_images": {"web": "myimage:v1"},
        "previous_images_by_name": {},
        "msg": "foo is updated to myimage:v2: 4 of 4 replicas available", "commands": []}

    rollback = jobs.launch("rollback.yml", **survey_defaults("rollback") | artifacts(update))

    assert rollback.status == "successful" and images(namespace) == {"myimage:v1"}
    assert not [job
                for job in (update, rollback)
                if "reserved name" in job.stdout.read()], "Ansible warns about a reserved name"
    assert (
        artifacts(rollback)["image"] == "myimage:v1"
        and artifacts(rollback)["outcome"] == "rolled_back"
    )
    status = artifacts(jobs.launch("status.yml"))
    assert (status["in_progress"] == []
            and [rollout["name"] for rollout in status["rollouts"]] == ["foo"])


def test_artifacts_of_a_job_are_those_of_its_last_playbook(namespace, jobs):
    for name in ("foo", "bar"):
        namespace.make_rc(1, name=name)
    plays = [{"import_playbook": f"baton.kubernetes.{playbook}", "vars": variables}
             for playbook, variables in (
                 ("status", {"controller": "foo"}),
                 ("image_bump", {"controller": "foo", "image": "myimage:v2"}),
                 ("image_bump", {"controller": "bar", "image": "myimage:v3"}))]

    job = jobs.launch("release.yml", files={"release.yml": plays})

    assert job.status == "successful"
    data = artifacts(job)
    assert (data["controller"], data["image"], data["outcome"], data["msg"]) == (
        "bar", "myimage:v3", "updated", "bar is updated to myimage:v3: 1 of 1 replicas available")
    assert data["previous_images"] == {"web": "myimage:v1"}


@pytest.mark.full
def test_workflow_rolls_back_a_deployment_to_a_revision(namespace, jobs):
    namespace.make_deployment(2)
    answers = {"controller": "foo", "image": "myimage:v2", "controller_namespace": namespace.name,
               "kind": "Deployment"}
    update = jobs.launch("image_bump.yml", **survey_defaults("image_bump") | answers)
    assert update.status == "successful" and artifacts(update)["kind"] == "Deployment"
    artifacts_of_update = {**artifacts(update), "previous_images": {}}

    rollback = jobs.launch(
        "rollback.yml",
        **survey_defaults("rollback") | artifacts_of_update | {"image": "", "to_revision": "1"},
    )

    assert rollback.status == "successful" and images(namespace) == {"myimage:v1"}


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"),
                    reason="SKIPPED: only root can change the user")
def test_job_runs_in_a_container_without_a_user_name_or_writable_home(namespace, jobs, open_folder):
    jobs.folder = open_folder
    namespace.make_rc(4)
    variables = {"controller": "foo", "image": "myimage:v2-slow", "report": "rollout.html"}
    canceled_job = ContainerJob(jobs, "image_bump.yml", **variables)
    new_pod_uids = eventually(lambda: uids_of_new_pods(namespace), "the first new pod", seconds=120)
    canceled_job.cancel()
    assert canceled_job.status == "canceled"
    eventually(lambda: stable_generations(namespace), "the end of all changes", seconds=60)

    relaunched_job = ContainerJob(jobs, "image_bump.yml", **variables)

    assert relaunched_job.status == "successful" and new_pod_uids <= uids_of_new_pods(namespace)
    data = artifacts(relaunched_job)
    page = " ".join(
        "".join(html5lib.HTMLParser(strict=True).parse(data["report_page"]).itertext()).split())
    assert (data["outcome"] == "updated" and "foo is updated to myimage:v2-slow" in page
            and "12345 on" in page)
    rollback = ContainerJob(jobs, "rollback.yml", **data)
    assert rollback.status == "successful" and images(namespace) == {"myimage:v1"}


@pytest.mark.full
@pytest.mark.parametrize("report", ["/tmp/page.html", "../page.html"])
def test_report_path_outside_the_project_is_refused(namespace, jobs, report):
    namespace.make_rc(1)

    job = jobs.launch("image_bump.yml", controller="foo", image="myimage:v2", report=report,
                      awx_job_id=7)

    assert (job.status == "failed"
            and "is not a path inside the project" in " ".join(job.stdout.read().split()))
    assert images(namespace) == {"myimage:v1"}


def test_requirements_of_the_project_install_the_collection_from_git(jobs, tmp_path):
    requirements = PROJECT / "collections" / "requirements.yml"
    (collection,) = yaml.safe_load(requirements.read_text())["collections"]
    repository = tmp_path / "repository"
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT,
                           capture_output=True, check=True)
    for name in filter(None, files.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, repository / name)
    author = ["-c", "user.name=tester", "-c", "user.email=tester@example.com"]
    for command in (["init", "-q", "-b", collection["version"]], ["add", "-A"],
                    [*author, "commit", "-qm", "all"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    (tmp_path / "requirements.yml").write_text(
        requirements.read_text().replace(collection["name"], f"file://{repository}"))

    checkout = tmp_path / "checkout"
    subprocess.run(["ansible-galaxy", "collection", "install", "-r", "requirements.yml", "-p",
                    str(checkout)], cwd=tmp_path,
                   env={**os.environ, **jobs.environment,
                        "ANSIBLE_COLLECTIONS_PATH": str(checkout)}, check=True, timeout=300)

    installed = checkout / "ansible_collections" / "baton" / "kubernetes"
    assert (installed / "playbooks" / "image_bump.yml").is_file()
    assert {path.name for path in (installed / "examples").glob("*.yml")} == {
        path.name for path in PROJECT.glob("*.yml")}


@pytest.mark.fake_nodes("a container that ends before its pod is ready")
@pytest.mark.full
def test_failed_job_shows_the_failure_in_its_artifacts(namespace, jobs):
    namespace.make_rc(2)

    job = jobs.launch("image_bump.yml", controller="foo", image="myimage:v2-crash", failure_grace=1)

    assert job.status == "failed" and images(namespace) == {"myimage:v1"}
    assert (artifacts(job)["outcome"] == "rolled_back"
            and "CrashLoopBackOff" in artifacts(job)["msg"])


@pytest.mark.full
@pytest.mark.fake_nodes("a container that ends before its pod is ready")
def test_failed_job_suggests_launching_jobs(namespace, jobs):
    namespace.make_rc(2)
    variables = {"awx_job_id": 7, "awx_job_template_name": "Update shop", "controller": "foo",
                 "image": "myimage:v2-crash", "failure_grace": 1}

    job = jobs.launch("image_bump.yml", on_failure="stop", **variables)

    relaunch = "relaunch the job, or launch the job template *Update shop* again"
    assert job.status == "failed" and artifacts(job)["commands"] == [
        relaunch, f"launch the job template *Rollback* with controller foo, controller_namespace "
        f"{namespace.name}, failure_grace 1"]
    options = {"name": "foo", "namespace": "{{ controller_namespace }}", "image": "{{ image }}",
               "failure_grace": 1}
    tasks = [{"baton.kubernetes.rolling_update": options, "register": "update",
              "ignore_errors": True, "check_mode": False},
             {"baton.kubernetes.rolling_update": {**options, "image": "myimage:v3"},
              "register": "other", "ignore_errors": True, "check_mode": True},
             {"baton.kubernetes.rolling_update_info": {"name": "foo", "namespace":
                                                       "{{ controller_namespace }}"},
              "register": "info"},
             {"ansible.builtin.set_stats": {"data": {
                 "commands": "{{ update.failure.commands }}", "msg": "{{ update.msg }}",
                 "other": "{{ other.failure.commands }}",
                 "rollback": "{{ info.rollouts[0].rollback_command }}"}}}]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    results = artifacts(jobs.launch("plain.yml", files={"plain.yml": [play]}, **variables))

    rollback = (f"launch a job that runs baton.kubernetes.rolling_update with name=foo "
                f"namespace={namespace.name} state=rolled_back")
    assert results["commands"][-2:] == [relaunch, f"{rollback} failure_grace=1"]
    assert results["rollback"] == rollback and results["other"] == [f"{rollback} failure_grace=1"]
    assert "ansible localhost" not in results["msg"]


def test_artifacts_do_not_contain_the_injected_token(namespace, jobs):
    namespace.make_rc(1)

    job = jobs.launch("image_bump.yml", controller="foo", image="myimage:v2")

    files = [path
             for path in Path(job.config.artifact_dir).rglob("*") if path.is_file()
             and path.name != "command"]
    assert job.status == "successful" and len(files) > 10
    assert not [path.name for path in files if namespace.token in path.read_text(errors="replace")]


@pytest.mark.full
@pytest.mark.fake_nodes("pods that take seconds to become ready")
def test_canceled_job_stops_and_its_relaunch_resumes(namespace, jobs):
    """AWX cancels a job by SIGKILL of the process group."""
    namespace.make_rc(4)
    canceled = threading.Event()
    variables = {"controller": "foo", "image": "myimage:v2-slow"}
    canceled_jobs = []
    thread = threading.Thread(
        target=lambda: canceled_jobs.append(
            jobs.launch("image_bump.yml", canceled.is_set, **variables)))
    thread.start()
    new_pod_uids = eventually(lambda: uids_of_new_pods(namespace), "the first new pod", seconds=120)
    canceled.set()
    thread.join(60)

    assert canceled_jobs[0].status == "canceled"
    generations = eventually(
        lambda: stable_generations(namespace), "the end of all changes", seconds=60
    )
    assert len(generations) == 2

    relaunched_job = jobs.launch("image_bump.yml", **variables)

    assert (relaunched_job.status == "successful"
            and artifacts(relaunched_job)["outcome"] == "updated")
    assert namespace.rc_names() == ["foo"] and new_pod_uids <= uids_of_new_pods(namespace)


def uids_of_new_pods(namespace):
    return {pod["metadata"]["uid"]
            for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] != "myimage:v1"}


def stable_generations(namespace):
    """Return generations(), or None if it changes within 4 s (slow pods become ready in 3 s)."""
    before = generations(namespace)
    threading.Event().wait(4)
    return before if before == generations(namespace) else None


def generations(namespace):
    return {name: namespace.rc(name)["metadata"]["generation"] for name in namespace.rc_names()}

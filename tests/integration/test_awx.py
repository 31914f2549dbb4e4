# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""As AWX runs jobs: the project of docs/awx through ansible-runner, with injected credentials, artifacts and cancelled jobs."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import ansible_runner
import pytest
from namespace import eventually

PROJECT = Path(__file__).parents[2] / "docs" / "awx" / "project"
#: What AWX's own inventory for jobs without machines says.
LOCALHOST = "localhost ansible_connection=local ansible_python_interpreter={{ ansible_playbook_python }}\n"


class Jobs:
    """Launches job templates, each in a private data dir of its own."""

    def __init__(self, namespace, cluster, environment, folder):
        self.namespace, self.folder, self.count = namespace, folder, 0
        kept = ("ANSIBLE_COLLECTIONS_PATH", "ANSIBLE_HOME", "PATH")
        self.environment = {key: environment[key] for key in kept} | {
            "K8S_AUTH_HOST": cluster.server, "K8S_AUTH_API_KEY": namespace.token, "K8S_AUTH_VERIFY_SSL": "True",
            "K8S_AUTH_SSL_CA_CERT": str(cluster.certificate_authority)}

    def data_dir(self, variables):
        self.count += 1
        folder = self.folder / f"job-{self.count}"
        shutil.copytree(PROJECT, folder / "project")
        for name, content in (("inventory/hosts", LOCALHOST), ("env/envvars", json.dumps(self.environment)),
                              ("env/extravars", json.dumps({"namespace": self.namespace.name, **variables}))):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)
        return folder

    def launch(self, playbook, cancelled=lambda: False, **variables):
        """Run a job to its end or until it is cancelled; the runner knows what has become of it."""
        runner = ansible_runner.run(private_data_dir=str(self.data_dir(variables)), playbook=playbook, quiet=True,
                                    cancel_callback=cancelled)
        print(runner.status, runner.stdout.read())
        return runner


@pytest.fixture
def jobs(namespace, cluster, ansible_environment, tmp_path):
    return Jobs(namespace, cluster, ansible_environment, tmp_path)


def artifacts(runner):
    """What AWX hands on to the next job of a workflow."""
    (stats,) = (event["event_data"] for event in runner.events if event["event"] == "playbook_on_stats")
    return stats["artifact_data"]


def images(namespace):
    return {pod["spec"]["containers"][0]["image"] for pod in namespace.pods()}


def survey(name):
    """The answers of somebody who accepts every default."""
    spec = json.loads((PROJECT.parent / f"{name}.survey.json").read_text())["spec"]
    return {question["variable"]: question["default"] for question in spec}


def test_a_workflow_that_updates_and_goes_back(namespace, jobs):
    """The second job gets the first one's artifacts as variables, over its own survey's."""
    namespace.make_primary(4)

    answers = {"name": "foo", "image": "myimage:v2", "namespace": namespace.name}
    update = jobs.launch("image_bump.yml", **survey("image_bump") | answers)

    assert update.status == "successful" and images(namespace) == {"myimage:v2"}
    assert artifacts(update) == {
        "name": "foo", "names": [], "namespace": namespace.name, "image": "myimage:v2", "outcome": "updated",
        "previous_images": {"web": "myimage:v1"}, "msg": "foo is updated to myimage:v2: 4 of 4 replicas available"}

    back = jobs.launch("rollback.yml", **survey("rollback") | artifacts(update))

    assert back.status == "successful" and images(namespace) == {"myimage:v1"}
    assert artifacts(back)["image"] == "myimage:v1" and artifacts(back)["outcome"] == "rolled_back"
    status = artifacts(jobs.launch("status.yml"))
    assert status["in_progress"] == [] and [each["name"] for each in status["rollouts"]] == ["foo"]


def test_a_job_that_fails_says_so_in_its_artifacts(namespace, jobs):
    namespace.make_primary(2)

    job = jobs.launch("image_bump.yml", name="foo", image="myimage:v2-crash", failure_grace=1)

    assert job.status == "failed" and images(namespace) == {"myimage:v1"}
    assert artifacts(job)["outcome"] == "rolled_back" and "CrashLoopBackOff" in artifacts(job)["msg"]


def test_the_injected_token_is_in_no_artifact(namespace, jobs):
    namespace.make_primary(1)

    job = jobs.launch("image_bump.yml", name="foo", image="myimage:v2")

    files = [path for path in Path(job.config.artifact_dir).rglob("*") if path.is_file() and path.name != "command"]
    assert job.status == "successful" and len(files) > 10
    assert not [path.name for path in files if namespace.token in path.read_text(errors="replace")]


def test_a_cancelled_job_stops_and_its_relaunch_goes_on(namespace, jobs):
    """AWX cancels with SIGKILL for the process group."""
    namespace.make_primary(4)
    cancelled = threading.Event()
    wanted = {"name": "foo", "image": "myimage:v2-slow"}
    job = []
    thread = threading.Thread(target=lambda: job.append(jobs.launch("image_bump.yml", cancelled.is_set, **wanted)))
    thread.start()
    new = eventually(lambda: new_pods(namespace), "the first new pod", seconds=120)
    cancelled.set()
    thread.join(60)

    assert job[0].status == "canceled"
    generations = eventually(lambda: rest(namespace), "the end of all its changes", seconds=60)
    assert len(generations) == 2

    relaunched = jobs.launch("image_bump.yml", **wanted)

    assert relaunched.status == "successful" and artifacts(relaunched)["outcome"] == "updated"
    assert namespace.rcs() == ["foo"] and new <= new_pods(namespace)


def new_pods(namespace):
    return {pod["metadata"]["uid"] for pod in namespace.pods() if pod["spec"]["containers"][0]["image"] != "myimage:v1"}


def rest(namespace):
    """The controllers' generations, when they have stayed the same for 4 seconds: longer than a slow pod takes."""
    before = generations(namespace)
    threading.Event().wait(4)
    return before if before == generations(namespace) else None


def generations(namespace):
    return {name: namespace.rc(name)["metadata"]["generation"] for name in namespace.rcs()}

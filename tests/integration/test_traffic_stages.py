# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test releases whose stages set the share of the requests that go to the new pods."""

from __future__ import annotations

import re
from pathlib import Path

import gateway_api
import pytest
import yaml
from objects import eventually, pod_counts, role_rules
from plays import CheckServer, Playbooks, kill_processes
from test_switch import SwitchedService
from test_traffic_split import Route, create_service, is_without_split

HOW_TO_FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
TRAFFIC_SPLIT_PAGE = HOW_TO_FOLDER / "traffic-split.md"
STAGES = ["10%", "20%", "25%", "50%", "100%"]


class Shop:
    """A controller with a route, and playbooks whose check records the weights."""

    def __init__(self, namespace, playbooks, server):
        self.namespace, self.playbooks, self.server = namespace, playbooks, server
        gateway_api.install(namespace)
        for name in ("baton-traffic", "baton-stateful-sets"):
            namespace.allow(role_rules(name), name)
        create_service(namespace)
        #: For each check: the weights of each rule, and the numbers of old and of new pods.
        self.checks = []
        server.actions = dict.fromkeys(STAGES, self.record)

    def create(self, kind, replicas=10):
        make = {"Deployment": self.namespace.make_deployment,
                "StatefulSet": self.namespace.make_stateful_set,
                "ReplicationController": self.namespace.make_rc}[kind]
        make(replicas)
        self.route = Route(self.namespace, kind)
        self.route.create()

    def record(self):
        weights = [[weight for _name, weight in rule] for rule in self.route.weights()]
        self.checks.append((weights, *pod_counts(self.namespace)))

    def release(self, **variables):
        surge = "" if self.route.kind == "StatefulSet" else "100%"
        return self.playbooks.image_bump(**{"kind": self.route.kind, "route": "edge",
                                            "max_surge": surge, **variables})


@pytest.fixture
def shop(namespace, ansible_environment, tmp_path):
    with CheckServer(namespace) as server:
        yield Shop(namespace, Playbooks(ansible_environment, tmp_path, server), server)


def documented_play(namespace):
    section = TRAFFIC_SPLIT_PAGE.read_text(encoding="utf-8").partition(
        "\n## A canary of requests\n")[2]
    (play,) = yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1])
    (variables,) = play["roles"]
    variables |= {"image_bump_name": "foo", "image_bump_namespace": namespace.name,
                  "image_bump_route": "edge", "image_bump_image": "myimage:v2",
                  "image_bump_max_surge": "100%"}
    return [play]


@pytest.mark.full
def test_canary_of_requests_by_the_playbook_of_the_documentation(shop, namespace):
    shop.create("Deployment")
    shop.playbooks.write("play.yml", documented_play(namespace))

    output = shop.playbooks.run_command("ansible-playbook", "play.yml")

    testers = [1]  # weights of the testers' rule
    assert shop.checks == [
        ([testers, [100, 0]], 9, 1), ([testers, [99, 1]], 9, 1), ([testers, [90, 10]], 8, 2),
        ([[3]], 5, 5), ([[3]], 0, 10)]
    assert is_without_split(shop.route) and pod_counts(namespace) == (0, 10)
    version = shop.route.get()["metadata"]["resourceVersion"]
    assert " changed=0 " in shop.playbooks.run_command("ansible-playbook", "play.yml")
    assert shop.route.get()["metadata"]["resourceVersion"] == version
    titles = ["Hold the requests for foo before the update to 10%", "Update foo to 10%",
              "Send 0% of the requests for foo to the new pods",
              "Send 1% of the requests for foo to the new pods"]
    positions = [output.index(f" : {title}]") for title in titles]
    assert positions == sorted(positions)


def yaml_blocks(page):
    blocks = re.findall(r"```yaml\n(.*?)```", (HOW_TO_FOLDER / page).read_text("utf-8"), re.DOTALL)
    return list(map(yaml.safe_load, blocks))


@pytest.mark.full
def test_blue_green_by_the_playbook_of_the_documentation(shop, namespace):
    shop.create("Deployment", 3)
    _tasks, [play], _service_tasks = yaml_blocks("blue-green.md")
    (variables,) = play["roles"]
    variables |= {"image_bump_name": "foo", "image_bump_namespace": namespace.name,
                  "image_bump_route": "edge", "image_bump_image": "myimage:v2",
                  "image_bump_keep_old_for": "2s"}
    shop.server.actions["100%"] = shop.record
    shop.playbooks.write("play.yml", [play])

    with namespace.observer() as observer:
        output = shop.playbooks.run_command("ansible-playbook", "play.yml")

    testers = [1]  # weights of the testers' rule
    assert shop.checks == [([testers, [100, 0]], 3, 3), *[([testers, [0, 100]], 3, 3)] * 2]
    assert is_without_split(shop.route) and pod_counts(namespace) == (0, 3)
    assert observer.min_ready >= 3 and observer.max_pods == 6
    titles = ["Hold the requests for foo before the update to 100%", "Update foo to 100%",
              "Send 100% of the requests for foo to the new pods",
              "Keep the old pods of foo for 2s", "Update foo]"]
    positions = [output.index(f" : {title}") for title in titles]
    assert positions == sorted(positions)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "ReplicationController"])
def test_failed_check_after_a_switch_returns_to_the_old_pods(shop, namespace, kind):
    shop.create(kind, 3)
    before = {pod["metadata"]["uid"] for pod in namespace.pods()}

    def record_and_fail_second_check():
        shop.record()
        if len(shop.checks) == 2:
            shop.server.failing_stages = {"100%"}

    shop.server.actions["100%"] = record_and_fail_second_check
    shop.release(succeeds=False, stages=["100%/0%", "100%/100%"], keep_old=True, max_surge="")

    assert [weights for weights, *_pods in shop.checks] == [[[100]], [[0, 100]]]
    assert is_without_split(shop.route) and pod_counts(namespace) == (3, 0)
    assert before == {pod["metadata"]["uid"] for pod in namespace.pods()}, "old pods were replaced"
    assert shop.playbooks.report_data["outcome"] == "rolled_back"


def run_documented_task(shop, namespace, task, **names):
    """Run a documented task with the names and the image of this test."""
    (module,) = task.keys() - {"name"}
    options = task[module] | {"name": "foo", "namespace": namespace.name}
    options |= {key: value for key, value in {**names, "image": "myimage:v2"}.items()
                if key in options}
    shop.playbooks.write("play.yml", [{
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "tasks": [{**task, module: options}]}])
    shop.playbooks.run_command("ansible-playbook", "play.yml")


@pytest.mark.full
def test_blue_green_by_the_tasks_of_the_documentation(shop, namespace):
    shop.create("Deployment", 3)
    tasks, _play, _service_tasks = yaml_blocks("blue-green.md")
    states = []
    for task in tasks:
        run_documented_task(shop, namespace, task, route="edge")
        weights = [[weight for _name, weight in rule] for rule in shop.route.weights()]
        states.append((weights, *pod_counts(namespace)))

    assert states == [([[100]], 3, 0), ([[100]], 3, 3), ([[1], [100, 0]], 3, 3),
                      ([[0, 100]], 3, 3), ([[3]], 0, 3)]
    assert is_without_split(shop.route)


@pytest.mark.full
@pytest.mark.parametrize("is_check_failing", [False, True], ids=["finish", "rollback"])
def test_blue_green_by_a_service_alone(shop, namespace, is_check_failing):
    """Switch the Service by the documented tasks first, and then by the role."""
    namespace.allow(role_rules("baton-traffic-service"), "traffic-service")
    shop.create("Deployment", 3)
    shop.route = SwitchedService(namespace)
    tasks = yaml_blocks("blue-green.md")[-1]
    images = []
    for task in tasks:
        run_documented_task(shop, namespace, task, service="foo")
        images.append(sorted(set(shop.route.endpoint_images())))
    assert images == [["myimage:v1"]] * 2 + [["myimage:v2"]] * 2 and shop.route.is_without_split()

    checks = []

    def record_and_fail_second_check():
        checks.append(sorted(set(shop.route.endpoint_images())))
        if is_check_failing and len(checks) == 2:
            shop.server.failing_stages = {"100%"}

    shop.server.actions["100%"] = record_and_fail_second_check
    shop.release(succeeds=not is_check_failing, stages=["100%/0%", "100%/100%"], keep_old=True,
                 max_surge="", route="", service="foo", image="myimage:v3")
    assert checks[:2] == [["myimage:v2"], ["myimage:v3"]]
    assert shop.route.is_without_split()
    assert set(shop.route.endpoint_images()) == {"myimage:v2" if is_check_failing else "myimage:v3"}


def test_update_that_cannot_begin_leaves_the_route_as_it_was(shop, namespace):
    shop.create("Deployment", 4)

    output = shop.release(succeeds=False, stages="25%/1%,100%", container="absent")

    assert "Hold the requests for foo before the update to 25%" in output
    assert "Restore the route of foo" in output
    assert is_without_split(shop.route) and pod_counts(namespace) == (4, 0)
    assert shop.playbooks.report_data["outcome"] == "failed"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Deployment", "ReplicationController", "StatefulSet"])
def test_failed_check_after_a_split_restores_the_route(shop, namespace, kind):
    shop.create(kind, 4)
    shop.server.failing_stages = {"50%"}

    shop.release(succeeds=False, stages=["25%/1%", "50%/10%", "100%"])

    assert shop.checks[-1][0] == [[90, 10]] and pod_counts(namespace) == (4, 0)
    assert is_without_split(shop.route)
    data = shop.playbooks.report_data
    assert data["outcome"] == "rolled_back"
    assert [(stage["stage"], stage["traffic"]) for stage in data["stages"]] == [
        ("25%", "1%"), ("50%", "10%")]


@pytest.mark.full
def test_killed_release_resumes_at_its_share(shop, namespace):
    shop.create("Deployment", 4)
    stages = ["25%/1%", "50%/40%", "100%"]
    shop.server.unanswered_stages = {"50%"}
    process = shop.playbooks.start(
        "image_bump", image="myimage:v2", kind="Deployment", route="edge", stages=stages,
        verify_tasks=["smoke.yml"])
    eventually(lambda: shop.checks and shop.checks[-1][0] == [[60, 40]], "the check at 50%")
    kill_processes(process)

    shop.server.unanswered_stages = set()
    earlier_check_count = len(shop.checks)
    shop.release(stages=stages)

    assert [weights for weights, *_pods in shop.checks[earlier_check_count:]] == [
        [[60, 40]]] * 2 + [[[3]]]
    assert is_without_split(shop.route) and pod_counts(namespace) == (0, 4)


@pytest.mark.full
def test_update_paused_after_a_split_is_completed_by_another_run(shop, namespace):
    shop.create("Deployment", 4)

    output = shop.release(stages="25%/5%")
    assert "5% of the requests for foo go to the new pods" in output
    assert shop.playbooks.report_data["outcome"] == "paused" and len(shop.route.services()) == 2
    shop.playbooks.image_bump(stages="100%", kind="Deployment")

    assert is_without_split(shop.route) and pod_counts(namespace) == (0, 4)


@pytest.mark.full
@pytest.mark.parametrize("variables, message", [
    ({"route": ""}, "stages: 25%/1% has a share of the requests: give route"),
    ({"controller": "", "names": ["foo"]}, "for only one controller: give controller"),
    ({"route": "absent"}, "The requests could not be held before stage 25% of foo: "),
], ids=["no route", "names", "missing route"])
def test_release_without_a_usable_route_changes_nothing(shop, namespace, variables, message):
    shop.create("Deployment", 4)
    before = {pod["metadata"]["uid"] for pod in namespace.pods()}

    output = shop.release(succeeds=False, stages="25%/1%,100%", **variables)

    assert message in " ".join(output.split())
    assert pod_counts(namespace) == (4, 0) and is_without_split(shop.route)
    assert before == {pod["metadata"]["uid"] for pod in namespace.pods()}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check that all features agree on which pods are new."""

from __future__ import annotations

import pytest
from builders import rc, template
from cluster_models import ClusterModel, DaemonSetModel, DeploymentModel, StatefulSetModel
from clusters import Cluster

from ansible_collections.baton.kubernetes.plugins.module_utils import overview, task
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis import spec as analysis_spec
from ansible_collections.baton.kubernetes.plugins.module_utils.analysis.outcome import Reading
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run.watched import WatchedPods

KINDS = ("ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet")
SPECS = {
    "ReplicaSet": {"replicas": 3},
    "Deployment": {"replicas": 3, "progressDeadlineSeconds": 600,
                   "strategy": {"type": "RollingUpdate",
                                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}},
    "StatefulSet": {"replicas": 3,
                    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}},
    "DaemonSet": {"updateStrategy": {"type": "RollingUpdate",
                                     "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
}


def model(kind):
    """Return a simulated cluster with foo and its three pods."""
    if kind == "ReplicationController":
        return ClusterModel([rc()])
    item = {"kind": kind,
            "metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, "template": template(),
                     **SPECS[kind]},
            "status": {"desiredNumberScheduled": 3}}
    model_factories = {"ReplicaSet": lambda: ClusterModel([item], Kind.REPLICA_SET),
                       "Deployment": lambda: DeploymentModel([item], []),
                       "StatefulSet": lambda: StatefulSetModel([item]),
                       "DaemonSet": lambda: DaemonSetModel([item])}
    return model_factories[kind]()


class World(Cluster):
    """Gateway to the simulated cluster."""

    http = None

    def __init__(self, kind):
        super().__init__()
        self.kind, self.cluster, self.hides_revisions = Kind(kind), model(kind), False
        self.unready_names = ()
        self.cluster.settle()
        self.on_wait = self.cluster.settle
        pod_model = getattr(self.cluster, "sets", self.cluster)
        self.live_pods, self.all_pods = pod_model.live_pods, getattr(
            self.cluster, "all_pods", lambda controller: [])

    def revisions(self, uids):
        return None if self.hides_revisions else self.cluster.revisions(uids)

    def pods(self, controller, labels=None):
        return [{"metadata": {"name": pod.name, "uid": pod.uid, "labels": pod.labels}, "spec": {},
                 "status": {"conditions": [{"type": "Ready",
                                            "status": str(pod.name not in self.unready_names)}]}}
                for pod in self.live_pods({**controller.selector, **(labels or {})})
                if pod.owner_uid == controller.uid]

    watched_pods = pods

    def close(self):
        """Close nothing."""

    def update(self, **params):
        self.run(parse_request({"name": "foo", "kind": str(self.kind), **params}))

    def begin_rollback(self):
        """Roll back, and stop the task after its first write."""
        write_count = len(self.writes)
        with pytest.raises(RolloutError, match="stopped"):
            self.run(
                parse_request({"name": "foo", "kind": str(self.kind), "state": "rolled_back"}),
                reason_to_stop=lambda: "enough" if len(self.writes) > write_count else "")


def info(world):
    return task.info({"namespace": "default", "name": "foo", "kind": str(world.kind), "pods": True})


def pods_of_info(world):
    (rollout,) = info(world)["rollouts"]
    return {pod["name"] for pod in rollout["pods"] if pod["is_new"]}, {
        pod["name"] for pod in rollout["pods"] if not pod["is_new"]}


def analysis(world, **changes):
    metric_options = task.ANALYSIS_OPTIONS["metrics"]["options"]
    metrics = [{option: spec.get("default") for option, spec in metric_options.items()}
               | {"min": 1, "query": "$pods"}]
    defaults = {option: spec.get("default") for option, spec in analysis_spec.ARGUMENT_SPEC.items()}
    return task.analysis({**{option: spec.get("default")
                             for option, spec in task.ANALYSIS_OPTIONS.items()}, **defaults,
                          "name": "foo", "kind": str(world.kind), "prometheus_url": "http://x",
                          "metrics": metrics, **changes})


def pods_of_analysis(world):
    result = analysis(world)
    return set(result["new_pods"]), set(result["old_pods"])


def pods_of_soak(world):
    request = parse_request({"name": "foo", "kind": str(world.kind), "state": "rolled_back"})
    flow = choose(request)
    pods = WatchedPods(world)
    pods.refresh(request,
                 flow.status(request,
                             flow.find(request, world, world.revisions(["uid of foo"]) or [])))
    return {pod["metadata"]["name"] for pod in pods.new.values()}, {
        pod["metadata"]["name"] for pod in pods.active_old.values()}


@pytest.fixture
def make_world(monkeypatch):
    def make(kind):
        world = World(kind)
        monkeypatch.setattr(task, "_gateway", lambda *args, **more: world)
        monkeypatch.setattr(task.prometheus.Prometheus, "query",
                            lambda self, query, stop: Reading(1.0))
        return world
    return make


#: Functions that return (names of new pods, names of old pods).
SOURCES = (pods_of_info, pods_of_analysis, pods_of_soak)


@pytest.mark.parametrize("kind", KINDS)
def test_info_analysis_and_soak_agree_on_new_pods(make_world, kind):
    world = make_world(kind)
    before, answers_during_update = [pods_of(world) for pods_of in SOURCES], []
    world.update(image="myimage:v2", pause_at="1")
    answers_during_update.append([pods_of(world) for pods_of in SOURCES])
    world.begin_rollback()
    answers_during_update.append([pods_of(world) for pods_of in SOURCES])
    world.update(state="rolled_back")

    for answers in (before, [pods_of(world) for pods_of in SOURCES]):
        assert [(len(new), old) for new, old in answers] == [(3, set())] * 3
    for answers in answers_during_update:
        assert (answers[0] == answers[1] == answers[2] and len(answers[0][0]) == 1
                and len(answers[0][1]) in (2, 3))
    assert answers_during_update[0] == answers_during_update[1], (
        "a rollback must not change which pods are new")


UPDATE, ROLLBACK = {"image": "myimage:v2", "pause_at": "1"}, {"state": "rolled_back"}
#: Whether an update is paused before the analysis, the actions of another client during the
#: analysis, and the error.
CONCURRENT_ACTIONS = {
    "none": (True, [], ""),
    "none without an update": (False, [], ""),
    "next pause of the update": (
        True, [lambda world: world.update(image="myimage:v2", pause_at="2")], ""),
    "rollback": (True, [World.begin_rollback], "another update or a rollback began"),
    "complete rollback": (True, [lambda world: world.update(**ROLLBACK)], "the update ended"),
    "rollback and another update": (
        True, [lambda world: world.update(**ROLLBACK),
               lambda world: world.update(image="myimage:v3", pause_at="1")],
        "another update or a rollback began"),
    "first update": (False, [lambda world: world.update(**UPDATE)],
                     "another update or a rollback began"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_update, actions, error", CONCURRENT_ACTIONS.values(),
                         ids=CONCURRENT_ACTIONS)
def test_analysis_measures_the_pods_of_one_update(make_world, monkeypatch, kind, has_update,
                                                  actions, error):
    def query(_prometheus, _query, _stop):
        while actions:
            actions.pop(0)(world)
        return Reading(1.0)

    world, actions = make_world(kind), [*actions]
    if has_update:
        world.update(**UPDATE)
    monkeypatch.setattr(task.prometheus.Prometheus, "query", query)
    options = {"count": 3, "interval": "0.01"}

    if error:
        with pytest.raises(RolloutError, match=f"{error} during the analysis"):
            analysis(world, **options)
    else:
        assert analysis(world, **options)["outcome"] == "passed"


@pytest.fixture(params=[False, True], ids=["update", "rollback"])
def daemon_set_world(make_world, request):
    """Return a world in which a DaemonSet is updated or rolled back."""
    world = make_world("DaemonSet")
    world.update(image="myimage:v2", pause_at="1")
    if request.param:
        world.begin_rollback()
    return world


def test_analysis_without_revisions_names_the_missing_permission(daemon_set_world):
    daemon_set_world.hides_revisions = True

    with pytest.raises(RolloutError, match="its history cannot be read") as error:
        pods_of_analysis(daemon_set_world)

    assert error.value.why == "not allowed: list on controllerrevisions (apps)"


def test_analysis_without_the_revision_of_the_new_pods_names_the_cause(daemon_set_world):
    hide_revision_of_new_pods(daemon_set_world)

    with pytest.raises(RolloutError, match="its new pods are unknown") as error:
        pods_of_analysis(daemon_set_world)

    assert error.value.why == "the ControllerRevision of the new pods does not exist"
    assert error.value.next_command.splitlines() == [
        "run the same task again", "or:", "ansible localhost -m baton.kubernetes.rolling_update -a "
        "'name=foo kind=DaemonSet state=rolled_back'"]


@pytest.mark.parametrize("kind", KINDS)
def test_limit_of_listed_pods_hides_no_new_pod_and_no_unready_pod(make_world, monkeypatch, kind):
    """A check of a release requires that all listed new pods are ready."""
    world = make_world(kind)
    world.update(image="myimage:v2", pause_at="2" if kind != "DaemonSet" else None)
    new_names, old_names = pods_of_info(world)
    monkeypatch.setattr(overview, "MAX_PODS", 1)
    for name in new_names:
        world.unready_names = (name,)

        listed_new_names, listed_old_names = pods_of_info(world)

        assert listed_new_names == {name} and len(listed_old_names) == min(1, len(old_names))
        request = parse_request({"name": "foo", "kind": kind, "image": "myimage:v2"})
        (rollout,) = overview.rollouts_with_new_pods(choose(request), request, world, ["foo"])
        assert [(pod["name"], pod["is_new"]) for pod in rollout["pods"]] == [(name, True)]


@pytest.mark.parametrize("hides_all", [True, False], ids=["all revisions", "one revision"])
def test_info_without_revisions_shows_that_new_pods_are_unknown(daemon_set_world, hides_all):
    if hides_all:
        daemon_set_world.hides_revisions = True
    else:
        hide_revision_of_new_pods(daemon_set_world)

    (rollout,) = info(daemon_set_world)["rollouts"]

    assert [pod["is_new"] for pod in rollout["pods"]] == [None] * 3


def hide_revision_of_new_pods(world):
    world.revisions = lambda uids: [
        item for item in world.cluster.revisions(uids)
        if item["data"]["spec"]["template"]["spec"]["containers"][0]["image"] == "myimage:v1"]

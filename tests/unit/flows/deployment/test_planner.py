# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plan each row of a Deployment's state table, and try actions in random order."""

from __future__ import annotations

import dataclasses
import functools
import json

import pytest
from builders import NOW, patch_tests, plan, run_to_end, template
from cluster_models import DeploymentModel, Move, foo_of, record
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.explain import report
from ansible_collections.baton.kubernetes.plugins.module_utils.flows import provenance
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.commands import RERUN
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.deployment.observed import find
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.flow import Memory
from ansible_collections.baton.kubernetes.plugins.module_utils.model import identity, object_meta
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import (
    NoSuchController,
    RolloutError,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind
from ansible_collections.baton.kubernetes.plugins.module_utils.model.observed import NEVER_AVAILABLE
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Done,
    Patch,
    Step,
    Wait,
    put,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.model.template import without_label
from ansible_collections.baton.kubernetes.plugins.module_utils.model.thresholds import Size

COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a 'name=foo kind=Deployment"
STRATEGY = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


def request_for(**params):
    return parse_request({"name": "foo", "kind": "Deployment", **params})


UPDATE, V3 = request_for(image="myimage:v2"), request_for(image="myimage:v3")
CANARY = request_for(image="myimage:v2", pause_at="1")
KEEP_OLD_ALL_NEW = request_for(image="myimage:v2", pause_at="100%", keep_old=True)
KEEP_OLD_ONE_NEW = request_for(image="myimage:v2", pause_at="1", keep_old=True)
NO_WAIT = request_for(image="myimage:v2", wait=False)
ROLLBACK, RESTART = request_for(state="rolled_back"), request_for(state="restarted")


def cluster(replicas=3, **spec):
    item = {"metadata": {"name": "foo", "uid": "uid of foo", "generation": 1, "annotations": {}},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "foo"}},
                     "template": template(),
                     "progressDeadlineSeconds": 600, "strategy": STRATEGY, **spec}}
    model = DeploymentModel([item], [])
    model.settle()
    return model


def decide(request, model, **facts):
    request = choose(request).resolve_revision(request, model, Memory())
    observation = dataclasses.replace(find(model.controllers().get("foo"),
                                           model.controllers(Kind.REPLICA_SET)), **facts)
    desired = (request.apply_to(observation.primary.template) if observation.primary
               and not request.rolls_back_update else None)
    return plan(request, dataclasses.replace(observation, desired_template=desired, now=NOW))


run_task = functools.partial(run_to_end, decide)


def sizes(model):
    """Return the replicas of each version, for example {"v1": 2, "v2": 1}."""
    return {replica_set.images["web"].partition(":")[2]: replica_set.replicas
            for replica_set in model.controllers(Kind.REPLICA_SET).values()}


# Rows of the state table


COPIED_REASON = "the Deployment controller copies them to its ReplicaSet"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@pytest.mark.parametrize("free_bytes, key, is_refused, reason", [
    (3000, "note", False, ""), (810, "note", True, COPIED_REASON), (600, "note", True, ""),
    (810, LAST_APPLIED, False, ""), (600, LAST_APPLIED, True, ""),
])
def test_record_above_the_size_limit_is_refused_before_the_first_write(free_bytes, key, is_refused,
                                                                       reason):
    """The limit also applies to the ReplicaSet, which has more annotations."""
    model = cluster()
    model.items["foo"]["metadata"]["annotations"] = {
        key: "x" * (256 * 1024 - free_bytes - len(key))}
    if not is_refused:
        assert isinstance(decide(UPDATE, model), Step)
        return
    with pytest.raises(RolloutError,
                       match="its annotations leave no room for the annotations of the update: the "
                             "total") as error:
        decide(UPDATE, model)
    assert error.value.why.startswith(reason) and bool(error.value.why) == bool(reason)


def test_no_such_deployment():
    with pytest.raises(NoSuchController, match="there is no such Deployment"):
        plan(UPDATE, find(None, {}))


def test_deployment_with_the_desired_template_is_unchanged():
    assert decide(request_for(image="myimage:v1"),
                  cluster()) == Done("foo already has the desired template")


def test_wait_for_pods_of_the_desired_template():
    model = cluster()
    model.items["foo"]["spec"]["template"] = template("myimage:v2")
    model.items["foo"]["metadata"]["generation"] = 2
    assert isinstance(decide(UPDATE, model), Wait)


def test_update_is_two_patches():
    model = cluster()
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 0, "v2": 3}
    assert record(model)["outcome"] == "updated" and record(model)["from"] == {"web": "myimage:v1"}
    assert isinstance(decide(UPDATE, model), Done)


def test_task_without_wait_ends_after_the_start():
    model = cluster()
    run_task(NO_WAIT, model, until="update")

    assert isinstance(decide(UPDATE, model), Wait)
    assert decide(NO_WAIT, model).message.startswith("the update of foo is already in progress: ")


def test_task_without_wait_ends_while_pods_of_the_desired_template_are_unavailable():
    model = cluster()
    item = model.items["foo"]
    item["spec"]["template"] = template("myimage:v2")
    item["metadata"]["generation"] += 1

    assert decide(UPDATE, model).is_idle
    assert decide(NO_WAIT, model).message.startswith("foo already has the desired template: ")


def test_task_without_wait_after_a_finished_update():
    model = cluster()
    run_task(NO_WAIT, model, until="update")
    model.settle()

    assert decide(NO_WAIT, model).completes_update
    assert decide(V3, model).after == {"web": "myimage:v3"}


def test_rerun_changes_nothing_before_the_end_of_the_update_is_observed():
    model = cluster()
    run_task(UPDATE, model)
    model.items["foo"]["metadata"]["generation"] += 1
    assert isinstance(decide(UPDATE, model), Done)


def test_preconditions_of_the_first_patch():
    decision = decide(UPDATE, cluster())
    assert decision.write.kind == Kind.DEPLOYMENT
    record_path = "/metadata/annotations/baton.kubernetes~1last-rollout"
    assert patch_tests(decision) == {"/metadata/uid": "uid of foo", "/metadata/generation": 1,
                                     record_path: None}


def test_pause_is_exact_and_resumable():
    model = cluster(10)
    pause_at_half = dataclasses.replace(CANARY, pause_at=Size(50, percent=True))
    assert run_task(CANARY, model) == ["update", "pace", "annotate"]
    assert (sizes(model) == {"v1": 9, "v2": 1} and foo_of(model).new_pods_at_pause == 1
            and foo_of(model).settings["paused"])
    assert "already paused" in decide(CANARY, model).message
    assert run_task(pause_at_half, model) == ["pace"] * 5 + ["annotate"]
    model.settle()
    assert sizes(model) == {"v1": 5, "v2": 5}
    assert run_task(UPDATE, model) == ["pace", "annotate"]
    assert sizes(model) == {"v1": 0, "v2": 10} and foo_of(model).settings["strategy"] == STRATEGY
    assert (foo_of(model).settings["minReadySeconds"] is None
            and foo_of(model).settings["progressDeadlineSeconds"] == 600)


def with_changed_replica_set(model, is_new, **changes):
    """Return the ReplicaSets as facts for decide(), with changes.

    is_new: whether to change the new ReplicaSet or all others.
    """
    observation = find(foo_of(model), model.controllers(Kind.REPLICA_SET))
    sets = {
        replica_set.name: dataclasses.replace(
            replica_set, **changes if (replica_set is observation.successor) is is_new else {})
        for replica_set in observation.replica_sets}
    return {"replica_sets": tuple(sets.values()), "successor": sets[observation.successor.name]}


@pytest.mark.parametrize("is_new, start", [(True, "2999-01-01T00:00:00Z"), (False, NOW)])
def test_update_began_no_earlier_than_the_creation_of_its_replica_set(is_new, start):
    """A user with annotate permission can forge the recorded time."""
    model = cluster(10)
    run_task(CANARY, model)
    observation = dataclasses.replace(
        find(foo_of(model), model.controllers(Kind.REPLICA_SET)),
        **with_changed_replica_set(model, is_new, created="2999-01-01T00:00:00Z"))

    assert report.rollout(choose(CANARY).status(CANARY, observation))["since"] == start


@pytest.mark.parametrize("field, value", [
    ("updated", 2), ("current", 4), ("available", 2), ("replicas", 4), ("is_observed", False)])
def test_update_waits_until_the_status_is_complete(field, value):
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    assert isinstance(decide(UPDATE, model,
                             primary=dataclasses.replace(foo_of(model), **{field: value})), Wait)
    assert decide(UPDATE, model).completes_update


@pytest.mark.parametrize("is_new, changes", [
    (True, {"available": 2}), (True, {"current": 4}),
    (True, {"replicas": 4, "current": 4, "available": 4}),
    (False, {"current": 1})], ids=["not available", "additional pod", "another size", "old pod"])
def test_update_waits_until_the_replica_sets_are_complete(is_new, changes):
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    assert isinstance(decide(UPDATE, model, **with_changed_replica_set(model, is_new, **changes)),
                      Wait)


@pytest.mark.parametrize("request_, until, decision_class, is_settled_by_old_size", [
    (CANARY, None, Done, {1: False, 2: True, 3: False}),
    (CANARY, "update", Step, {2: True, 3: True, 4: False})],
    ids=["pause", "in progress"])
def test_pause_and_update_wait_until_the_sizes_match(request_, until, decision_class,
                                                     is_settled_by_old_size):
    """During an update, the surge limits the old pods. At a pause, the total equals the size."""
    model = cluster()
    run_task(request_, model, until=until)
    model.settle()
    for size, is_settled in is_settled_by_old_size.items():
        decision = decide(request_, model,
                          **with_changed_replica_set(model, False, replicas=size, current=size,
                                                     available=size))
        assert isinstance(decision, decision_class if is_settled else Wait), size


def test_strategy_with_max_unavailable_stays_until_the_pause():
    model = cluster(4,
                    strategy={"type": "RollingUpdate",
                              "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}})
    pause_at_two = request_for(image="myimage:v2", pause_at="2")
    run_task(pause_at_two, model, until="update")
    model.settle()
    assert isinstance(decide(pause_at_two, model,
                             **with_changed_replica_set(model, True, replicas=1, current=1,
                                                        available=1)), Wait)
    assert isinstance(decide(pause_at_two, model), Step)


def test_edited_surge_does_not_end_the_pause():
    model = cluster(4)
    run_task(CANARY, model)
    model.items["foo"]["spec"]["strategy"] = PERCENT_STRATEGY
    model.items["foo"]["metadata"]["generation"] += 1
    model.settle()
    assert sizes(model) == {"v1": 5, "v2": 1}
    assert run_task(CANARY, model) == ["pace", "annotate"] and foo_of(model).settings["paused"]
    assert sizes(model) == {"v1": 3, "v2": 1}


def test_pause_is_limited_to_a_reduced_size():
    model = cluster(10)
    pause_at_five = request_for(image="myimage:v2", pause_at="5", max_surge="5")
    run_task(pause_at_five, model, until="update")
    model.settle()
    scale_by_other_client(model, v1=0, v2=3)
    run_task(pause_at_five, model)
    assert sizes(model) == {"v1": 0, "v2": 3} and foo_of(model).new_pods_at_pause == 3


def test_lower_pause_changes_nothing():
    model = cluster(10)
    run_task(dataclasses.replace(CANARY, pause_at=Size(4)), model)
    assert decide(CANARY,
                  model) == Done(f"foo is already paused: {name_of_successor(model)} has 4 of 10 "
                                 "replicas")


def name_of_successor(model):
    return find(model.controllers().get("foo"), model.controllers(Kind.REPLICA_SET)).successor.name


def test_pause_of_a_running_update_is_refused():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.settle()
    with pytest.raises(RolloutError, match="it is too late for pause_at"):
        decide(CANARY, model)


def test_rollback_in_progress_is_reversed_by_an_update():
    model = cluster()
    run_task(CANARY, model)
    assert run_task(ROLLBACK, model, until="update") == ["update"]
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 0, "v2": 3}
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(ROLLBACK, model)


def test_rollback_of_an_update_with_the_same_images_is_not_reversed_by_another_request():
    model = cluster()
    with_checksum = dataclasses.replace(request_for(image="myimage:v1"), checksums={"foo": "1"})
    run_task(RESTART, model, until="update")
    model.settle()
    run_task(ROLLBACK, model, until="update")
    model.make(model.moves()[0])

    assert isinstance(decide(RESTART, model), Step)
    for request in (with_checksum, V3):
        with pytest.raises(RolloutError, match="another update is being rolled back"):
            decide(request, model)


def test_second_rollback_changes_nothing():
    model = cluster()
    before = foo_of(model).settings
    run_task(CANARY, model)
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 0} and foo_of(model).settings == before
    assert decide(ROLLBACK, model) == Done("foo is already rolled back")


@pytest.mark.parametrize("request_, words", [
    (V3, "another update is in progress: to myimage:v2"),
    (RESTART, "another update is in progress: to myimage:v2"),
])
def test_other_update_in_progress_is_refused(request_, words):
    model = cluster()
    run_task(CANARY, model)
    with pytest.raises(RolloutError, match=words) as error:
        decide(request_, model)
    assert "Another client" not in error.value.what


def test_other_template_with_the_same_image_is_refused():
    model = cluster()
    run_task(CANARY, model)
    desired = template("myimage:v2")
    desired["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    model.items["foo"]["spec"] |= {"template": desired, "paused": None}
    model.items["foo"]["metadata"]["generation"] += 1
    model.settle()
    with pytest.raises(RolloutError,
                       match=r"to myimage:v2 .* Another client has changed the template "
                             r"since the update to myimage:v2"):
        decide(V3, model)


def test_template_edited_during_the_update_is_refused():
    model = cluster()
    run_task(CANARY, model)
    model.items["foo"]["spec"]["template"] = template("myimage:v9")
    model.items["foo"]["metadata"]["generation"] += 1
    model.settle()
    with pytest.raises(RolloutError,
                       match=r"to myimage:v9 .* Another client has changed the template "
                             r"since the update to myimage:v2"):
        decide(UPDATE, model)
    run_task(ROLLBACK, model)
    assert sizes(model)["v1"] == 3 and foo_of(model).settings["strategy"] == STRATEGY


def test_template_changed_by_admission_matches_the_request():
    model = cluster()
    run_task(UPDATE, model, until="update")
    model.items["foo"]["spec"]["template"] = template("registry.example.com/myimage:v2")
    model.settle()
    assert run_task(UPDATE, model, is_confirmed=True) == ["annotate"]
    assert isinstance(decide(UPDATE, model, is_confirmed=True), Done)


@pytest.mark.parametrize("is_ended", [False, True])
def test_forged_record_does_not_match_the_request(is_ended):
    model = cluster()
    run_task(UPDATE, model, until="end" if is_ended else "update")
    content = (record(model)
               | ({"request": provenance.record_entry(V3.fingerprint, foo_of(model),
                                                      object_meta.HASH_LABEL)} if is_ended else
                  {"request": V3.fingerprint}))
    model.items["foo"]["metadata"]["annotations"][object_meta.LAST_ROLLOUT] = json.dumps(content)

    if is_ended:
        assert (run_task(V3, model) == ["update", "annotate"]
                and foo_of(model).images == {"web": "myimage:v3"})
    else:
        with pytest.raises(RolloutError, match="another update is in progress: to myimage:v2"):
            decide(V3, model)


def test_interrupted_restart_is_resumed():
    model = cluster()
    run_task(RESTART, model, until="update")
    assert run_task(RESTART, model) == ["annotate"]
    assert len(model.sets.items) == 2


def test_deployment_paused_by_another_client_is_refused():
    with pytest.raises(RolloutError, match="it is paused, and not by this collection"):
        decide(UPDATE, cluster(paused=True))


REVISION_1 = request_for(state="rolled_back", to_revision=1)


@pytest.mark.parametrize("request_", [UPDATE, V3, CANARY],
                         ids=["update", "another update", "pause"])
def test_deployment_paused_by_another_client_during_an_update_is_refused(request_):
    model = cluster_paused_during_update()
    template_before = foo_of(model).template

    with pytest.raises(RolloutError) as error:
        run_task(request_, model)

    assert foo_of(model).template == template_before
    if request_ is V3:
        assert error.value.what.startswith("another update is in progress: to myimage:v2")
        return
    assert error.value.what == "it is paused, and not by this collection"
    assert error.value.commands[0] == RESUME


def cluster_paused_during_update():
    """Return a cluster whose Deployment another client has paused during an update to v2."""
    model = cluster()
    run_task(request_for(image="myimage:v2", max_surge=1), model, until="update")
    while not sizes(model).get("v2"):
        model.make(model.moves()[0])
    write_record_as_other_client(model, json.dumps(record(model)), paused=True)
    return model


def cluster_with_reset_pause():
    """Return a cluster with a paused update whose settings another client has reset."""
    model = cluster()
    run_task(CANARY, model)
    write_record_as_other_client(model, json.dumps(record(model)), minReadySeconds=0,
                                 progressDeadlineSeconds=600)
    model.settle()
    return model


@pytest.mark.parametrize("request_", [ROLLBACK, REVISION_1], ids=["rollback", "revision"])
@pytest.mark.parametrize("paused_cluster", [cluster_paused_during_update, cluster_with_reset_pause],
                         ids=["paused by another client", "reset by another client"])
def test_rollback_of_a_paused_deployment_restores_the_template_first(paused_cluster, request_):
    """Otherwise, the suggested resume would replace all old pods."""
    model = paused_cluster()

    with pytest.raises(RolloutError) as error:
        run_task(request_, model)

    assert error.value.what.startswith("it is paused: the earlier template is set")
    assert error.value.commands[0] == RESUME
    assert foo_of(model).images == {"web": "myimage:v1"} and foo_of(model).settings["paused"]
    model.items["foo"]["spec"].pop("paused")
    model.settle()
    assert sizes(model)["v1"] == 3 and sizes(model).get("v2", 0) == 0
    assert run_task(request_, model) == ["annotate"]


@pytest.mark.parametrize("request_", [UPDATE, CANARY, request_for(image="myimage:v2",
                                                                  pause_at="2")])
def test_resume_is_not_suggested_if_another_client_has_reset_a_pause(request_):
    """A resume would replace all old pods."""
    model = cluster_with_reset_pause()

    with pytest.raises(RolloutError) as error:
        run_task(request_, model)

    assert error.value.what.startswith("it is paused, but another client has reset")
    (command,) = error.value.commands
    assert "state=rolled_back" in command


RESUME = "kubectl -n default rollout resume deployment/foo"


def test_deployment_paused_after_all_pods_are_replaced_ends_its_update():
    model = cluster()
    run_task(request_for(image="myimage:v2", max_surge=1), model, until="update")
    model.settle()
    write_record_as_other_client(model, json.dumps(record(model)), paused=True)

    assert run_task(UPDATE, model) == ["annotate"]

    assert record(model)["outcome"] == "updated" and foo_of(model).settings["paused"] is True


LONG_REQUIRED_TIME = {"min_ready_seconds": 120, "image": "myimage:v2"}


@pytest.mark.parametrize("options", [{}, {"max_surge": 2}, {"pause_at": "1"}], ids=str)
def test_min_ready_seconds_above_the_deadline_of_the_deployment_are_refused(options):
    """The API server would accept the first patch, because an update raises the deadline."""
    model = cluster(progressDeadlineSeconds=120)

    with pytest.raises(RolloutError) as error:
        decide(request_for(**LONG_REQUIRED_TIME, **options), model)

    assert error.value.what == ("min_ready_seconds (120 s) must be less than "
                                "progressDeadlineSeconds of the Deployment (120 s)")
    assert "min_ready_seconds=119" in error.value.next_command
    run_task(request_for(**{**LONG_REQUIRED_TIME, **options, "min_ready_seconds": 119}), model)
    assert foo_of(model).images == {"web": "myimage:v2"}


@pytest.mark.parametrize("request_, image", [
    (CANARY, "myimage:v2"), (UPDATE, "myimage:v2"), (ROLLBACK, "myimage:v1")],
    ids=["pause", "update", "rollback"])
def test_long_min_ready_seconds_in_the_record_of_an_earlier_version_are_refused(request_, image):
    model = cluster(progressDeadlineSeconds=120)
    run_task(CANARY, model)
    stored_record = record(model)
    stored_record["original"]["minReadySeconds"] = 180
    write_record_as_other_client(model, json.dumps(stored_record))

    with pytest.raises(RolloutError, match=r"min_ready_seconds \(180 s\) must be less than"):
        decide(request_, model)

    run_task(dataclasses.replace(request_, min_ready_seconds=119), model)
    assert foo_of(model).images == {"web": image}


@pytest.mark.parametrize("options, until", [
    ({}, "update"), ({"max_surge": 2}, "update"), ({"pause_at": "1"}, "update"),
    ({"pause_at": "1"}, "end")], ids=str)
@pytest.mark.parametrize("seconds_before", [None, 10, 4000])
def test_rollback_restores_min_ready_seconds(options, until, seconds_before):
    """A ReplicaSet proves a value of more than an hour."""
    model = cluster(progressDeadlineSeconds=5000, minReadySeconds=seconds_before)
    run_task(request_for(image="myimage:v2", min_ready_seconds=30, **options), model, until=until)
    model.make(next(iter(model.moves()), Move("roll", "foo")))
    run_task(request_for(image="myimage:v2", wait=False), model, until="pace")

    run_task(ROLLBACK, model)

    assert foo_of(model).settings["minReadySeconds"] == seconds_before
    assert foo_of(model).images == {"web": "myimage:v1"}


@pytest.mark.parametrize("recorded, expected", [
    (None, 30), ({"from": 5, "to": 30}, 5), ({"from": 5, "to": 31}, 30),
    ({"from": 3600, "to": 30}, 3600), ({"from": 3601, "to": 30}, 30)])
def test_rollback_restores_only_plausible_min_ready_seconds(recorded, expected):
    """Another client may have changed minReadySeconds or the record during the update."""
    model = cluster(progressDeadlineSeconds=5000)
    run_task(request_for(image="myimage:v2", min_ready_seconds=30), model, until="update")
    model.make(next(move for move in model.moves() if move.verb == "roll"))
    write_record_as_other_client(model, json.dumps({**record(model),
                                                    "min_ready_seconds": recorded}))

    run_task(ROLLBACK, model)

    assert foo_of(model).settings["minReadySeconds"] == expected


@pytest.mark.parametrize("change", [
    5, [], {}, {"from": 5}, {"from": -1, "to": 30}, {"from": "5", "to": 30},
    {"from": 5, "to": 30, "by": 1}], ids=str)
def test_record_with_an_invalid_change_of_min_ready_seconds_is_not_readable(change):
    model = cluster()
    run_task(CANARY, model)
    write_record_as_other_client(model, json.dumps({**record(model),
                                                    "min_ready_seconds": change}))

    assert foo_of(model).rollout is None


def test_recreate_has_no_pause():
    model = cluster(strategy={"type": "Recreate"})
    with pytest.raises(RolloutError, match="the Deployment's strategy is Recreate"):
        decide(CANARY, model)
    assert run_task(UPDATE, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 0, "v2": 3}


def test_requested_strategy_holds_only_during_the_update():
    model = cluster(4)
    fast_update = request_for(image="myimage:v2", max_surge="100%", max_unavailable="50%",
                              min_ready_seconds=5)
    run_task(fast_update, model, until="update")
    assert foo_of(model).settings["strategy"]["rollingUpdate"] == {
        "maxSurge": "100%", "maxUnavailable": "50%"}
    run_task(fast_update, model)
    assert (foo_of(model).settings["strategy"] == STRATEGY
            and foo_of(model).settings["minReadySeconds"] == 5)


def test_no_pause_without_replicas():
    model = cluster(0)
    assert run_task(CANARY, model) == ["update", "annotate"]


def rollback_to_revision(number):
    return request_for(state="rolled_back", to_revision=number)


def test_rollback_to_a_revision():
    model = cluster()
    run_task(UPDATE, model)
    run_task(V3, model)
    assert run_task(rollback_to_revision(1), model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 0, "v3": 0} and record(model)["outcome"] == "rolled_back"
    assert (decide(rollback_to_revision(1), model)
            == Done("foo is already rolled back to revision 1"))
    assert (decide(rollback_to_revision(4), model)
            == Done("foo already has the template of revision 4"))


def test_rollback_to_a_revision_during_an_update():
    model = cluster()
    run_task(UPDATE, model)
    run_task(V3, model, until="update")
    run_task(rollback_to_revision(1), model, until="update")
    assert run_task(rollback_to_revision(1), model) == ["annotate"] and sizes(model)["v1"] == 3


def test_error_without_any_revision_has_a_valid_command():
    model = DeploymentModel(cluster().items.values())
    with pytest.raises(RolloutError, match="it has no revision 7") as error:
        decide(rollback_to_revision(7), model)
    assert error.value.why == "" and "to_revision=1" in error.value.next_command


def test_error_for_an_unknown_revision_lists_the_revisions():
    model = cluster()
    run_task(UPDATE, model)
    with pytest.raises(RolloutError) as error:
        decide(rollback_to_revision(7), model)
    assert (error.value.what == "it has no revision 7"
            and error.value.why == "it has: 2 (myimage:v2), 1 (myimage:v1)"
            and "to_revision=2" in error.value.next_command)
    with pytest.raises(RolloutError) as error:
        decide(ROLLBACK, model)
    assert (error.value.what.endswith("the previous revision is 1 (myimage:v1)")
            and "to_revision=1" in error.value.next_command)


def scaler(is_frozen=False):
    return {"metadata": {"name": "hpa", "uid": "u",
                         "annotations": {object_meta.FROZEN: "{}"} if is_frozen else {}},
            "spec": {"minReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "foo"}}}


def test_autoscaler_is_frozen_before_the_first_patch():
    model = cluster()
    observation = find(model.controllers().get("foo"), model.controllers(Kind.REPLICA_SET))
    observation = dataclasses.replace(observation, desired_template=template("myimage:v2"), now=NOW,
                                      autoscaler=scaler())
    assert str(plan(UPDATE, observation).action) == "freeze"


# Other clients


def write_record_as_other_client(model, text, **spec):
    item = model.items["foo"]
    metadata = {**item["metadata"],
                "annotations": {**item["metadata"]["annotations"],
                                object_meta.LAST_ROLLOUT: text}}
    model.items["foo"] = {**item, "metadata": metadata, "spec": {**item["spec"], **spec}}


def name_of_set(model, version):
    return next(replica_set.name for replica_set in model.controllers(Kind.REPLICA_SET).values()
                if replica_set.images["web"] == f"myimage:{version}")


# Settings that must not be restored from a forged record
RECREATE = {"type": "Recreate"}
RECKLESS = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}
SLOW = {"minReadySeconds": 600000, "progressDeadlineSeconds": 700000}


def forge_record(model, **changes):
    """Return a forged record of an update to the present template."""
    digest = identity.digest(without_label(foo_of(model).template, object_meta.HASH_LABEL))
    return {"outcome": "updating", "from": {"web": "myimage:v1"}, "to": foo_of(model).images,
            "time": NOW,
            "set": name_of_set(model, "v2"), "revision": 2,
            "original": {"strategy": RECKLESS, **SLOW},
            "paced": {field: foo_of(model).settings[field] for field in ("strategy", *SLOW)},
            "request": V3.fingerprint, "template": digest, **changes}


@pytest.mark.parametrize("original_seconds, recorded_seconds, expected", [
    (None, 600000, None), (None, NEVER_AVAILABLE - 1, None), (700000, 600000, 700000),
    (700000, 700000, 700000), (None, 5, 5),
    (30, NEVER_AVAILABLE - 1, 30)])
def test_large_min_ready_seconds_are_restored_only_from_replica_sets(
        original_seconds, recorded_seconds, expected):
    model = cluster(minReadySeconds=original_seconds, progressDeadlineSeconds=2**31 - 1)
    run_task(CANARY, model)
    stored_record = record(model)
    stored_record["original"]["minReadySeconds"] = recorded_seconds
    annotations = model.items["foo"]["metadata"]["annotations"]
    annotations[object_meta.LAST_ROLLOUT] = json.dumps(stored_record)

    run_task(UPDATE, model)

    assert foo_of(model).settings["minReadySeconds"] == expected
    assert record(model)["outcome"] == "updated" and foo_of(model).settings["strategy"] == STRATEGY


@pytest.mark.parametrize("sentinel",
                         [{"progressDeadlineSeconds": NEVER_AVAILABLE + 1},
                          {"minReadySeconds": NEVER_AVAILABLE}])
def test_values_set_by_an_update_are_not_restored(sentinel):
    model = cluster()
    run_task(CANARY, model)
    model.sets.items.clear()
    stored_record = record(model)
    stored_record["original"] |= sentinel
    annotations = model.items["foo"]["metadata"]["annotations"]
    annotations[object_meta.LAST_ROLLOUT] = json.dumps(stored_record)

    with pytest.raises(RolloutError, match="is missing or not readable"):
        decide(UPDATE, model)


FORGED_FIELDS = {
    "reckless strategy": {},
    "rolling back": {"outcome": "rolling back"},
    "another strategy": {"original": {"strategy": RECREATE}, "paced": {"strategy": STRATEGY}},
    "paused": {"original": {"paused": True}, "paced": {"paused": None}, "paused": 1},
    "no original": {"original": None},
    "no changed settings": {"original": {}, "paced": {}},
    "list as name of the ReplicaSet": {"set": ["x"]},
    "path as name of the ReplicaSet": {"set": "../../secrets/x"},
    "old ReplicaSet": {"set": "the first one", "revision": 0},
    "to_revision": {"to_revision": 1, "outcome": "rolling back"},
    "boolean as revision": {"revision": True},
    "huge to_revision": {"to_revision": 10**30},
    "lists as images": {"from": ["x"], "to": []},
}
TASKS = {
    "no-op": (V3, "myimage:v3"), "update": (request_for(image="myimage:v9"), "myimage:v9"),
    "rollback": (ROLLBACK, "myimage:v3"),
    "to_revision": (request_for(state="rolled_back", to_revision=1), "myimage:v1"),
}


@pytest.mark.parametrize("forgery", FORGED_FIELDS)
@pytest.mark.parametrize("task", TASKS)
def test_forged_record_of_an_ended_update_changes_no_settings(forgery, task):
    """A forged record can equal that of a killed task. If so, a rollback undoes the last update."""
    model = cluster()
    run_task(UPDATE, model)
    run_task(V3, model)
    settings_before = foo_of(model).settings
    changes = FORGED_FIELDS[forgery]
    if changes.get("set") == "the first one":
        changes = {**changes, "set": name_of_set(model, "v1")}
    write_record_as_other_client(model, json.dumps(forge_record(model, **changes)))
    request, image = TASKS[task]
    if (request is ROLLBACK
            and forgery in ("reckless strategy", "rolling back", "no changed settings",
                            "to_revision")):
        run_task(request, model)
        image = "myimage:v2"
    elif request is ROLLBACK:
        with pytest.raises(RolloutError,
                           match=r"no update in progress to roll back; the previous revision is 2 "
                                 r"\(myimage:v2\)"):
            decide(request, model)
    else:
        run_task(request, model)
    assert foo_of(model).images == {"web": image} and foo_of(model).settings == settings_before


RECORD_OF_STATEFUL_SET = json.dumps({
    "outcome": "updating", "from": {}, "to": {}, "revision": 0,
    "original": {"updateStrategy": {"type": "OnDelete"}},
    "paced": {"updateStrategy": {"type": "RollingUpdate"}}})


@pytest.mark.parametrize("text",
                         ["", "[]", "{}", "null", "[" * 100000, "9" * 5000,
                          '{"outcome":"updating"}', RECORD_OF_STATEFUL_SET])
def test_unreadable_record_during_an_update_is_reported(text):
    model = cluster()
    run_task(CANARY, model)
    write_record_as_other_client(model, text)
    for request in (UPDATE, CANARY, ROLLBACK, rollback_to_revision(1)):
        with pytest.raises(RolloutError,
                           match="of the Deployment foo were set by an update in progress, but its "
                                 "record"):
            decide(request, model)


@pytest.mark.parametrize("strategy",
                         [RECREATE, {"type": "RollingUpdate"},
                          {"type": "RollingUpdate", "rollingUpdate": {}},
                          {**STRATEGY, "rollingUpdate": {"maxSurge": -1, "maxUnavailable": 1}},
                          {**STRATEGY, "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}},
                          {**STRATEGY, "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "101%"}},
                          {**STRATEGY, "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "many"}}])
def test_strategy_that_no_update_could_have_replaced_is_not_restored(strategy):
    model = cluster()
    run_task(CANARY, model)
    stored_record = record(model)
    forged_record = {**stored_record,
                     "original": {**stored_record["original"], "strategy": strategy}}
    write_record_as_other_client(model, json.dumps(forged_record))
    with pytest.raises(RolloutError, match="is missing or not readable"):
        decide(UPDATE, model)


def test_rollback_uses_only_the_previous_replica_set():
    model = cluster()
    run_task(UPDATE, model)
    run_task(request_for(image="myimage:v3", pause_at="1"), model)
    correct_record = record(model)
    for name in (name_of_set(model, "v1"), name_of_set(model, "v3"), "another"):
        write_record_as_other_client(model, json.dumps({**correct_record, "set": name}))
        with pytest.raises(RolloutError,
                           match=r"is not of the previous revision.*previous revision is 2 "
                                 r"\(myimage:v2\)"):
            decide(ROLLBACK, model)
    write_record_as_other_client(model, json.dumps(correct_record))
    run_task(ROLLBACK, model)
    assert sizes(model) == {"v1": 0, "v2": 3, "v3": 0}


def test_replica_set_of_another_deployment_is_ignored():
    model = cluster()
    run_task(CANARY, model)
    (item,) = (replica_set for replica_set in model.sets.items.values()
               if replica_set["metadata"]["name"] == name_of_set(model, "v1"))
    item["metadata"]["ownerReferences"][0]["uid"] = "another"
    model.sets.settle()
    with pytest.raises(RolloutError, match="no longer exists"):
        decide(ROLLBACK, model)


@pytest.mark.parametrize("request_, until",
                         [(request_for(image="myimage:v2", pause_at="100%"), "end"),
                          (UPDATE, "update")],
                         ids=["paused", "killed client"])
def test_revision_history_limit_0_is_raised_during_the_update(request_, until):
    """Keep the old ReplicaSet: with 0, the server would delete it after an update or in a pause."""
    model = cluster(revisionHistoryLimit=0)
    run_task(request_, model, until=until)
    model.settle()
    assert (sizes(model) == {"v1": 0, "v2": 3}
            and foo_of(model).settings["revisionHistoryLimit"] == 1)

    run_task(ROLLBACK, model)

    assert (sizes(model) == {"v1": 3}
            and foo_of(model).settings
            == cluster(revisionHistoryLimit=0).controllers()["foo"].settings)
    run_task(UPDATE, model)
    assert sizes(model) == {"v2": 3} and foo_of(model).settings["revisionHistoryLimit"] == 0


@pytest.mark.parametrize("remaining_version, next_command", [
    ("",
     f"{RERUN}, with a higher pause_at or without pause_at\nthen:\n{COMMAND} "
     "image=THE-EARLIER-IMAGE'"),
    ("v1",
     f"{RERUN}, with a higher pause_at or without pause_at\nor:\n{COMMAND} state=rolled_back "
     "to_revision=1'"),
])
def test_update_is_finished_first_if_the_previous_replica_set_is_deleted(
        remaining_version, next_command):
    """During another update, a task with to_revision may begin, but not a task with an image."""
    model = cluster()
    if remaining_version:
        run_task(UPDATE, model)
    paused_update = request_for(image="myimage:v3", pause_at="100%")
    run_task(paused_update, model)
    del model.sets.items[name_of_set(model, "v2" if remaining_version else "v1")]

    with pytest.raises(RolloutError, match="no longer exists") as error:
        decide(ROLLBACK, model)

    assert error.value.next_command == next_command
    flow = choose(ROLLBACK)
    assert flow.commands(ROLLBACK,
                         flow.find(ROLLBACK,
                                   model)) == (f"{RERUN}, with a higher pause_at or without "
                                               "pause_at", None)
    if remaining_version:
        with pytest.raises(RolloutError, match="finish it or roll it back first") as error:
            decide(request_for(image="myimage:v4"), model)
        assert error.value.next_command == next_command
    else:
        with pytest.raises(RolloutError, match="another update is in progress"):
            decide(UPDATE, model)
        run_task(request_for(image="myimage:v3"), model)
    run_task(request_for(state="rolled_back", to_revision=1) if remaining_version else UPDATE,
             model)
    assert sizes(model)["v1" if remaining_version else "v2"] == 3


def test_forged_direction_of_an_update_is_ignored():
    model = cluster()
    run_task(UPDATE, model, until="update")
    write_record_as_other_client(model, json.dumps({**record(model), "outcome": "rolling back"}))
    model.make(model.moves()[0])
    run_task(ROLLBACK, model)
    assert sizes(model) == {"v1": 3, "v2": 0} and record(model)["outcome"] == "rolled_back"


def test_ended_rollback_is_checked_against_the_template():
    model = cluster()
    run_task(CANARY, model)
    run_task(ROLLBACK, model)
    model.items["foo"]["spec"]["template"] = template("myimage:v9")
    model.items["foo"]["metadata"]["generation"] += 1
    model.settle()
    with pytest.raises(RolloutError, match="there is no update in progress to roll back"):
        decide(ROLLBACK, model)


# Without a ReplicaSet of the new template


CREATION_FAILURE = ('Failed to create new replica set "foo-9": replicasets.apps "foo-9" is '
                    "forbidden: exceeded quota: sets, used: count/replicasets.apps=9")


def with_refused_replica_set(model, request):
    """Begin an update whose ReplicaSet cannot be created."""
    model.creation_failure = CREATION_FAILURE
    assert model.write(decide(request, model).write)
    model.settle()
    if foo_of(model).settings["strategy"] == RECREATE:  # the old pods are deleted first
        (name,) = model.sets.items
        model.sets.write(Patch(name, (put("/spec/replicas", 0),)))
        model.settle()
    assert "v2" not in sizes(model) and not foo_of(model).is_observed
    return model


@pytest.mark.parametrize("rollback", [ROLLBACK, REVISION_1], ids=["rollback", "revision"])
@pytest.mark.parametrize("update, strategy", [
    (UPDATE, STRATEGY), (CANARY, STRATEGY),
    (request_for(image="myimage:v2", max_surge="2"), STRATEGY), (UPDATE, RECREATE),
], ids=["update", "pause", "max_surge", "Recreate"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_update_without_a_replica_set_is_rolled_back(rollback, update, strategy, is_killed):
    model = with_refused_replica_set(cluster(strategy=strategy), update)

    if is_killed:
        run_task(rollback, model, until="update")
    run_task(rollback, model)

    assert sizes(model) == {"v1": 3} and record(model)["outcome"] == "rolled_back"
    assert foo_of(model).settings == cluster(strategy=strategy).controllers()["foo"].settings


def test_rollback_of_an_update_without_a_replica_set_is_reversed():
    model = with_refused_replica_set(cluster(), UPDATE)
    run_task(ROLLBACK, model, until="update")
    model.creation_failure = ""

    run_task(UPDATE, model)

    assert sizes(model) == {"v1": 0, "v2": 3} and record(model)["outcome"] == "updated"


def test_update_waits_for_its_replica_set():
    model = with_refused_replica_set(cluster(), UPDATE)

    assert isinstance(decide(UPDATE, model), Wait)
    with pytest.raises(RolloutError, match="another update is in progress"):
        decide(V3, model)


# keep_old


def test_keep_old_then_update():
    model = cluster()
    before = foo_of(model).settings
    assert run_task(KEEP_OLD_ALL_NEW, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 3}
    assert foo_of(model).new_pods_at_pause == 3 and foo_of(model).settings["paused"]
    assert "already paused" in decide(KEEP_OLD_ALL_NEW, model).message
    assert run_task(UPDATE, model) == ["pace", "annotate"]
    assert sizes(model) == {"v1": 0, "v2": 3} and foo_of(model).settings == before


@pytest.mark.parametrize("until", ["update", "annotate"])
def test_keep_old_then_rollback(until):
    model = cluster()
    before = foo_of(model).settings
    run_task(KEEP_OLD_ALL_NEW, model, until=until)
    model.settle()
    assert run_task(ROLLBACK, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 0} and foo_of(model).settings == before


@pytest.mark.parametrize("request_, surge_and_unavailable", [
    (KEEP_OLD_ALL_NEW, (3, 0)), (KEEP_OLD_ONE_NEW, (1, 0)), (CANARY, (2, 1)), (UPDATE, (2, 1)),
], ids=["keep_old", "keep_old with one new pod", "pause", "update"])
def test_status_has_the_surge_of_keep_old_or_of_the_strategy(request_, surge_and_unavailable):
    model = cluster(strategy={"type": "RollingUpdate",
                              "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 1}})
    flow = choose(request_)
    status = flow.status(request_, flow.find(request_, model))
    assert (status.surge, status.unavailable) == surge_and_unavailable


def test_stages_with_keep_old():
    model = cluster()
    assert run_task(KEEP_OLD_ONE_NEW, model) == ["update", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 1} and foo_of(model).new_pods_at_pause == 1
    assert run_task(KEEP_OLD_ALL_NEW, model) == ["pace", "annotate"]
    assert sizes(model) == {"v1": 3, "v2": 3} and foo_of(model).new_pods_at_pause == 3
    assert isinstance(decide(KEEP_OLD_ONE_NEW, model), Done), "a lower pause must remove no pod"


@pytest.mark.parametrize("request_", [CANARY, KEEP_OLD_ALL_NEW], ids=["pause", "keep_old"])
def test_rollback_resumes_a_deployment_after_a_kill_at_a_pause(request_):
    model = cluster()
    run_task(request_, model)
    model.items["foo"]["spec"]["progressDeadlineSeconds"] = 900
    model.items["foo"]["metadata"]["generation"] += 1
    model.settle()
    assert run_task(request_, model, until="pace") == ["pace"] and foo_of(model).settings["paused"]
    run_task(ROLLBACK, model)
    assert not foo_of(model).settings["paused"] and sizes(model) == {"v1": 3, "v2": 0}


@pytest.mark.parametrize("next_params", [
    {"image": "myimage:v2", "max_surge": "1"}, {"image": "myimage:v2"},
    {"image": "myimage:v2", "max_surge": "1", "pause_at": "1"}, {"state": "rolled_back"}],
    ids=["the same", "without the option", "pause", "rollback"])
def test_task_warns_once_that_the_strategy_is_not_restored(next_params):
    """progressDeadlineSeconds of the update is the proof of a recorded strategy."""
    half = {"maxSurge": "50%", "maxUnavailable": "50%"}
    model = cluster(strategy={"type": "RollingUpdate", "rollingUpdate": half})
    run_task(request_for(image="myimage:v2", max_surge="1"), model, until="update")
    model.items["foo"]["spec"]["progressDeadlineSeconds"] = 900
    model.items["foo"]["metadata"]["generation"] += 1
    warnings = []

    def decide_and_collect(request, model):
        decision = decide(request, model)
        warnings.append(getattr(decision, "warning", ""))
        return decision

    run_to_end(decide_and_collect, request_for(**next_params), model)

    assert [warning for warning in warnings if warning] == [
        "the Deployment foo keeps its current strategy (max_surge 1, max_unavailable 0): another "
        "client set progressDeadlineSeconds during the update, so the record of the previous "
        "strategy (an annotation) may be forged"]


def test_keep_old_after_a_pause_keeps_the_remaining_old_pods():
    model = cluster()
    run_task(CANARY, model)
    assert sizes(model) == {"v1": 2, "v2": 1}
    run_task(KEEP_OLD_ONE_NEW, model)
    assert sizes(model) == {"v1": 2, "v2": 1}
    run_task(KEEP_OLD_ALL_NEW, model)
    assert sizes(model) == {"v1": 2, "v2": 3}


@pytest.mark.parametrize("pause, old_size", [("2", 1), ("100%", 0)])
@pytest.mark.parametrize("first_request", [KEEP_OLD_ALL_NEW, KEEP_OLD_ONE_NEW], ids=["all", "one"])
def test_pause_after_keep_old_removes_old_pods(first_request, pause, old_size):
    model = cluster()
    run_task(first_request, model)
    run_task(request_for(image="myimage:v2", pause_at=pause), model)
    new = max(3 - old_size, sizes(model)["v2"])
    assert sizes(model) == {"v1": 3 - new, "v2": new} and foo_of(model).settings["paused"]


def test_scaling_during_keep_old_applies_to_both_versions():
    """The strategy of the pause has a percentage, which the server applies to the new size."""
    model = cluster()
    run_task(KEEP_OLD_ALL_NEW, model)
    rolling_update = foo_of(model).settings["strategy"]["rollingUpdate"]
    assert rolling_update == {"maxSurge": "100%", "maxUnavailable": 0}
    scale_by_other_client(model, v1=5, v2=5)
    model.items["foo"]["spec"]["replicas"] = 5  # not 10: with the surge, each ReplicaSet has 5
    assert run_task(KEEP_OLD_ALL_NEW, model) == ["annotate"] and sizes(model) == {"v1": 5, "v2": 5}


def scale_by_other_client(model, **replicas):
    """Change the size during a pause. The Deployment controller then scales both ReplicaSets.

    replicas: the resulting sizes by version.
    """
    model.items["foo"]["spec"]["replicas"] = sum(replicas.values())
    model.items["foo"]["metadata"]["generation"] += 1
    for version, size in replicas.items():
        model.sets.items[name_of_set(model, version)]["spec"]["replicas"] = size
    model.settle()
    model.items["foo"]["status"]["observedGeneration"] = model.items["foo"]["metadata"][
        "generation"]


@pytest.mark.parametrize("old_size, new_size, next_pause", [(10, 10, 15), (2, 3, 4), (1, 1, 2)])
def test_resume_after_scaling_during_a_pause(old_size, new_size, next_pause):
    model = cluster(10)
    pause_at_half = dataclasses.replace(CANARY, pause_at=Size(50, percent=True))
    run_task(pause_at_half, model)
    scale_by_other_client(model, v1=old_size, v2=new_size)
    run_task(pause_at_half, model)
    assert (sizes(model) == {"v1": old_size, "v2": new_size}
            and foo_of(model).new_pods_at_pause == new_size)
    assert "already paused" in decide(pause_at_half, model).message
    run_task(dataclasses.replace(CANARY, pause_at=Size(next_pause)), model)
    assert sizes(model) == {"v1": old_size + new_size - next_pause, "v2": next_pause}
    run_task(ROLLBACK, model)
    assert (sizes(model) == {"v1": old_size + new_size, "v2": 0}
            and foo_of(model).settings["strategy"] == STRATEGY)


PERCENT_STRATEGY = {"type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "25%"}}


@pytest.mark.parametrize("strategy", [PERCENT_STRATEGY, RECREATE], ids=["percentage", "Recreate"])
@pytest.mark.parametrize("request_", [UPDATE, ROLLBACK], ids=["update", "rollback"])
def test_strategy_changed_during_a_pause_is_retained(strategy, request_):
    model = cluster(4)
    run_task(CANARY, model)
    model.items["foo"]["spec"]["strategy"] = strategy
    run_task(request_, model)
    assert sizes(model)["v2" if request_ is UPDATE else "v1"] == 4
    assert foo_of(model).settings == {**cluster().controllers()["foo"].settings,
                                      "strategy": strategy}


def test_next_pause_after_an_edited_percentage():
    model = cluster(4)
    run_task(CANARY, model)
    model.items["foo"]["spec"]["strategy"] = PERCENT_STRATEGY
    run_task(dataclasses.replace(CANARY, pause_at=Size(2)), model)
    assert sizes(model) == {"v1": 2, "v2": 2}
    run_task(UPDATE, model)
    assert foo_of(model).settings["strategy"] == PERCENT_STRATEGY


def test_next_pause_after_an_edit_to_recreate_is_refused():
    model = cluster(4)
    run_task(CANARY, model)
    model.items["foo"]["spec"]["strategy"] = RECREATE
    with pytest.raises(RolloutError,
                       match=r"pause_at cannot .* because the Deployment's strategy is Recreate"):
        decide(CANARY, model)


# Budgets


def budget(**spec):
    return {"metadata": {"name": "pdb"},
            "spec": {"selector": {"matchLabels": {"app": "foo"}}, **spec}}


@pytest.mark.parametrize("spec, expected", [({"minAvailable": 4}, 0), ({"maxUnavailable": 1}, 1)])
def test_pod_disruption_budget_limits_unavailable_pods(spec, expected):
    model = cluster(4,
                    strategy={"type": "RollingUpdate",
                              "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "50%"}})
    before = foo_of(model).settings
    decision = decide(UPDATE, model, budgets=(budget(**spec),))
    assert model.write(decision.write)
    assert foo_of(model).settings["strategy"]["rollingUpdate"] == {
        "maxSurge": "25%", "maxUnavailable": expected}
    model.settle()
    while (isinstance(decision := decide(UPDATE, model, budgets=(budget(**spec),)), Step)
           and not decision.ends_task):
        assert model.write(decision.write)
        model.settle()
    assert decision.completes_update and model.write(decision.write)
    assert foo_of(model).settings == before


@pytest.mark.parametrize("request_", [UPDATE, CANARY])
def test_budget_without_allowed_disruptions_is_refused_without_a_surge(request_):
    model = cluster(4,
                    strategy={"type": "RollingUpdate",
                              "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}})
    with pytest.raises(RolloutError,
                       match="the PodDisruptionBudget pdb allows none of the controller's 4 "
                             "pods to be unavailable"):
        decide(request_, model, budgets=(budget(minAvailable="100%"),))


# Rollback to a revision


def test_pause_of_a_rollback_to_a_revision():
    model = cluster(4)
    run_task(UPDATE, model)
    paused_rollback = request_for(state="rolled_back", to_revision=1, pause_at="1")
    run_task(paused_rollback, model)
    assert sizes(model) == {"v1": 1, "v2": 3}
    assert "already paused" in decide(paused_rollback, model).message
    run_task(rollback_to_revision(1), model)
    assert sizes(model) == {"v1": 4, "v2": 0}


def test_interrupted_rollback_to_a_revision_is_rolled_back():
    model = cluster(4)
    run_task(UPDATE, model)
    run_task(rollback_to_revision(1), model, until="update")
    model.make(model.moves()[0])
    run_task(rollback_to_revision(1).rollback_request(), model)
    assert sizes(model) == {"v1": 0, "v2": 4}


def test_rollback_of_a_rollback_to_a_revision_during_an_update_is_refused():
    model = cluster(4)
    run_task(UPDATE, model)
    run_task(V3, model, until="update")
    model.make(model.moves()[0])
    run_task(rollback_to_revision(1), model, until="update")
    model.make(model.moves()[0])
    with pytest.raises(RolloutError,
                       match="with the previous template no longer exists, or is not of the "
                             "previous revision"):
        decide(ROLLBACK, model)


# Random order

REQUESTS = {
    "update": UPDATE,
    "fast": request_for(image="myimage:v2", max_surge="2", max_unavailable="1"),
    "a third": request_for(image="myimage:v2", pause_at="34%"),
    "two thirds": request_for(image="myimage:v2", pause_at="67%", max_surge="2",
                              max_unavailable="1"),
    "rollback": ROLLBACK,
}


def take_turn(request, model):
    """Take one turn of a client. Return whether it was a write."""
    try:
        decision = decide(request, model)
    except RolloutError:
        return False
    return isinstance(decision, Step) and model.write(decision.write)


WITH_KEEP_OLD = {"keep one": KEEP_OLD_ONE_NEW, "keep all": KEEP_OLD_ALL_NEW}


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=100)
@given(data=st.data())
def test_random_orders_with_keep_old_remove_no_old_pod(part, data):
    replicas = data.draw(st.sampled_from([1, 3, 4]))
    model = cluster(replicas)
    may_remove_old_pods = False
    for _stage in range(data.draw(st.integers(1, 3))):
        requests = WITH_KEEP_OLD | (REQUESTS if data.draw(st.booleans()) else {})
        name = data.draw(st.sampled_from(sorted(requests)))
        may_remove_old_pods = may_remove_old_pods or name not in WITH_KEEP_OLD
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves = model.moves()
            if choice and moves:
                model.make(moves[choice % len(moves)])
            else:
                take_turn(requests[name], model)
            assert sum(sizes(model).values()) <= 2 * replicas + 2
            if not may_remove_old_pods:
                old_set = next(replica_set for replica_set in model.sets.controllers().values()
                               if replica_set.images["web"] == "myimage:v1")
                assert old_set.replicas == old_set.available == replicas
                assert sum(pod.ready for pod in model.sets.pods
                           if pod.owner_uid == old_set.uid) == replicas
    while take_turn(ROLLBACK, model) or model.moves():
        model.settle()
    assert sizes(model)["v1"] == replicas or sizes(model)["v2"] == replicas
    assert foo_of(model).settings["strategy"] == STRATEGY and not foo_of(model).settings["paused"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("part", range(3))
@settings(max_examples=100)
@given(data=st.data())
def test_random_orders_respect_ceiling_and_pauses(part, data):
    """Start and kill clients with any requests. The server acts at any time.

    The minimum of available pods is not asserted: scaleDownOldReplicaSetsForRollingUpdate of the
    Deployment controller relies on a status that may be outdated.
    """
    replicas = data.draw(st.sampled_from([1, 3, 4]))
    model = cluster(replicas)
    for _stage in range(data.draw(st.integers(1, 3))):
        request = REQUESTS[data.draw(st.sampled_from(sorted(REQUESTS)))]
        for choice in data.draw(st.lists(st.integers(0, 20), max_size=25)):
            moves = model.moves()
            if choice and moves:
                model.make(moves[choice % len(moves)])
            else:
                take_turn(request, model)
            assert sum(sizes(model).values()) <= replicas + 2
            current_settings = foo_of(model).settings
            if current_settings["minReadySeconds"] == NEVER_AVAILABLE and foo_of(model).is_observed:
                rolling_update = current_settings["strategy"]["rollingUpdate"]
                assert sizes(model).get("v2", 0) <= max(
                    rolling_update["maxSurge"] + rolling_update["maxUnavailable"], 0)
    while take_turn(ROLLBACK, model) or model.moves():
        model.settle()
    assert sizes(model)["v1"] == replicas or sizes(model)["v2"] == replicas
    assert foo_of(model).settings["strategy"] == STRATEGY and not foo_of(model).settings["paused"]

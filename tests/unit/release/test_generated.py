# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run generated releases on models. The environment variable RELEASES sets their number."""

from __future__ import annotations

import copy
import itertools
import os

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from releases import Cluster, Controller, Killed, Run, variables

from ansible_collections.baton.kubernetes.plugins.module_utils.release.history import is_hold

SETTINGS = settings(max_examples=int(os.environ.get("RELEASES", "50")),
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
NAMES = ["a", "b", "c", "d", "e", "f"]
STAGES = ["10%", "25%", "40%", "70%", "100%"]
SHARES = ["0%", "1%", "20%", "60%"]
V2 = "myimage:v2"

controllers = st.builds(Controller, image=st.sampled_from(["myimage:v1", "myimage:v0", V2]),
                        breaks_at=st.sampled_from([101, 101, 101, 30, 100]))


@st.composite
def stages_of(draw, has_shares, keeps_old):
    """Draw stages in order, for example ["10%/1%", "10%/20%", "40%"].

    The second number is the share of the requests. A share at 100% needs keep_old.
    """
    stages = []
    for stage in sorted(draw(st.sets(st.sampled_from(STAGES), min_size=1)),
                        key=lambda stage: int(stage[:-1])):
        shares = (draw(st.lists(st.sampled_from(SHARES), max_size=2, unique=True))
                  if has_shares and (keeps_old or stage != "100%") else [])
        stages += [f"{stage}/{share}" for share in shares] or [stage]
    return stages


@st.composite
def requests(draw):
    """Draw (request, cluster): variables of a role, and all controllers."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    selection = {"name": names[0]} if draw(st.booleans()) else {"names": names}
    keeps_old = draw(st.sampled_from([False, False, True]))
    stages = draw(stages_of("name" in selection, keeps_old))
    request = variables(
        selection=selection, stages=stages, traffic={"route": "edge", "route_kind": "HTTPRoute"},
        analyses=[{}] * draw(st.integers(0, 2)),
        verify=draw(st.sampled_from([[], ["smoke.yml"], ["smoke.yml", "more.yml"]])),
        before=draw(st.sampled_from([[], ["b.yml"]])),
        after=draw(st.sampled_from([[], ["e.yml"]])),
        failure=draw(st.sampled_from([[], ["notify.yml"]])),
        approve_within=("" if stages[-1].startswith("100%")
                        else draw(st.sampled_from(["", "", "0s"]))),
        report=draw(st.sampled_from(["", "r.html"])), has_artifacts=True,
        check_mode=False,
        keep_old_for=draw(st.sampled_from(["", "15m"]))
        if keeps_old and stages[-1].startswith("100%") else "",
        options={**({"keep_old": True} if keeps_old else {}),
                 "on_failure": draw(st.sampled_from(["rollback", "rollback", "stop"])),
                 "max_failures": draw(st.sampled_from(["0", "100%"]))})
    cluster = Cluster(**{name: draw(controllers) for name in NAMES})
    return request, cluster


#: What happens while a file of the user runs: it fails, or another client makes a change.
EVENTS = ("nothing", "fails", "delete", "lock", "unlock", "finish", "undo", "other update",
          "delete route")


def apply_event(event, cluster, name):
    """Change the cluster, and return why the file fails, or ""."""
    controller = cluster.controllers[name]
    if event == "fails":
        return "503"
    if event == "delete":
        controller.is_deleted, controller.new_image, controller.new_percent = True, "", 0
    elif event == "delete route":
        controller.has_no_route, controller.share = True, ""
    elif event in ("lock", "unlock"):
        controller.is_locked = event == "lock"
    elif event == "finish" and controller.new_image:
        controller.image, controller.new_image, controller.new_percent = controller.new_image, "", 0
    elif event == "undo" and controller.new_image:
        controller.new_image, controller.new_percent, controller.was_rolled_back = "", 0, True
        cluster.undone_names.add(name)
    elif event == "other update" and controller.new_image:
        controller.new_image = "myimage:v3"
    return ""


@st.composite
def scenarios(draw):
    request, cluster = draw(requests())
    events = draw(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from(NAMES)),
                           max_size=8))
    return request, cluster, events


def files(events):
    """Return (files, answer) for a Run. Each applies the next event."""
    remaining = iter(events)

    def apply_next_event(cluster):
        event, name = next(remaining, ("nothing", "a"))
        return apply_event(event, cluster, name)

    return {**{file: apply_next_event
               for file in ("smoke.yml", "more.yml", "b.yml", "e.yml", "notify.yml")},
            **{f"analysis of {name}": apply_next_event for name in NAMES}}, apply_next_event


def run_release(request, cluster, events, killed_at=-1, run_class=Run):
    """Run a release until its end or its kill, and return the run. killed_at: as in Run.run()."""
    files_, answer = files(events)
    run = run_class(request, cluster, files_, answer, killed_at)
    try:
        return run.run()
    except Killed:
        return run


@SETTINGS
@given(scenarios())
def test_stages_run_in_order_and_stop_at_a_failure(scenario):
    request, cluster, events = scenario
    run = run_release(request, cluster, events)
    run_events = run.history.events

    updates = [event for event in run_events if event.turn.purpose == "update"]
    pauses = [event.turn.options["pause_at"] for event in updates
              if "pause_at" in event.turn.options]
    assert pauses == [stage.pods for stage in run.request.pauses[:len(pauses)]]
    failure_number = next((number for number, event in enumerate(run_events) if event.has_failed),
                          len(run_events))
    purposes = [event.turn.purpose for event in run_events[failure_number + 1:]]
    forbidden = {"before", "update", "traffic", "check", "ask", "approval", "after"} & set(purposes)
    assert not forbidden, purposes
    for earlier, later in itertools.pairwise(updates):
        events_between = run_events[run_events.index(earlier) + 1:run_events.index(later)]
        files_ = [event.turn.file for event in events_between if event.turn.do == "run"]
        if "pause_at" in earlier.turn.options:
            assert files_ == [file.typed for file in run.request.verify]
            assert sum(event.turn.do == "analyze"
                       for event in events_between) == bool(run.request.analyses)


@SETTINGS
@given(scenarios())
def test_plan_of_check_mode_has_the_waits_and_route_changes_of_the_run(scenario):
    request, cluster, _events = scenario
    for controller in cluster.controllers.values():
        controller.image, controller.breaks_at = "myimage:v1", 101
    plan = run_release(request | {"check_mode": True}, copy.deepcopy(cluster), [])
    run = run_release(request, cluster, [])

    lines = [line for event in plan.history.with_purpose("plan") for line in event.turn.lines]
    lines_of_both = ("Hold the requests", "Restore the route", "Keep the old pods",
                     "Wait for approval")
    assert [line for line in lines if line.startswith(lines_of_both)] == [
        title for title in run.turn_titles if title.startswith(lines_of_both)]


@SETTINGS
@given(scenarios())
def test_share_is_set_before_the_checks_of_its_stage(scenario):
    request, cluster, events = scenario
    run = run_release(request, cluster, events)

    for number, event in enumerate(run.history.events):
        if event.turn.purpose == "update" and event.turn.traffic and event.result.get("changed"):
            checks = [later.turn for later in run.history.events[number + 1:]
                      if later.turn.purpose in ("traffic", "check", "ask", "update")]
            assert not checks or checks[0].options == {"weight": event.turn.traffic}
    splits = [event.turn.options for event in run.history.events
              if event.turn.do == "split" and not is_hold(event.turn)]
    weights = [stage.traffic for stage in run.request.pauses if stage.traffic]
    set_weights = [options["weight"] for options in splits if "weight" in options]
    assert set_weights == weights[:len(set_weights)]
    if not events and run.ending.outcome != "paused":
        assert not any(controller.share for controller in cluster.controllers.values()
                       if not controller.new_image)


@SETTINGS
@given(scenarios())
def test_update_to_a_stage_begins_with_the_previous_share(scenario):
    """Before the first share, the new pods have 0%."""
    request, cluster, _events = scenario
    for controller in cluster.controllers.values():
        controller.image, controller.new_image, controller.share = "myimage:v1", "", ""
        controller.new_percent = 0
    shares = []

    class RecordingRun(Run):
        def _run_action(self, turn):
            if turn.purpose == "update" and turn.traffic:
                name = self.request.name
                shares.append((self.cluster.controllers[name].share, turn.traffic))
            return super()._run_action(turn)

    run_release(request, cluster, [], run_class=RecordingRun)
    assert all(share for share, _requested in shares)
    assert not shares or shares[0][0] == "0%"


class OldPodsRun(Run):
    """A run that records when a controller no longer has all old pods."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        #: (title of the turn, name of the controller).
        self.violations = []

    def _run_action(self, turn):
        result = super()._run_action(turn)
        is_final_update = turn.do == "update" and "pause_at" not in turn.options
        if "state" not in turn.options and not is_final_update:
            self.violations += [(turn.title, name)
                                for name, controller in self.cluster.controllers.items()
                                if controller.new_image == V2 and controller.old_percent < 100]
        return result


@SETTINGS
@given(scenarios(), st.integers(0, 40))
def test_keep_old_keeps_all_old_pods_until_the_last_update(scenario, half_turns):
    """keep_old also applies during keep_old_for, and in a repeated run after a kill."""
    request, cluster, events = scenario
    assume(request["options"].get("keep_old"))
    killed_run = run_release(request, cluster, events[:1], half_turns / 2, OldPodsRun)
    repeated_run = run_release(request, cluster, events[1:], run_class=OldPodsRun)

    assert not killed_run.violations + repeated_run.violations
    for run in (killed_run, repeated_run):
        turns = [event.turn for event in run.history.events if event.turn.purpose == "update"]
        pauses = [turn.options for turn in turns if "pause_at" in turn.options]
        if len(pauses) < len(turns) and run.history.failed_event is None:
            assert len(pauses) == len(run.request.pauses), (
                "the final update came before the last pause")
            assert not request["keep_old_for"] or pauses[-1]["soak"] == request["keep_old_for"]


def highest_load(cluster):
    """Return the highest load of a controller's old pods. 1.0: all requests to all old pods."""
    return max((100 - int(controller.share[:-1])) / controller.old_percent
               if controller.share else 1.0 for controller in cluster.controllers.values())


class LoadRecordingRun(Run):
    """A run that records the highest load at its checks."""

    max_load = 1.0

    def _run_action(self, turn):
        if turn.purpose == "check":
            self.max_load = max(self.max_load, highest_load(self.cluster))
        return super()._run_action(turn)


@SETTINGS
@given(scenarios(), st.integers(0, 40))
def test_repeated_run_does_not_increase_the_load_of_old_pods(scenario, half_turns):
    request, cluster, _events = scenario
    killed_cluster = copy.deepcopy(cluster)
    uninterrupted_run = run_release(request, cluster, [], run_class=LoadRecordingRun)
    run_release(request, killed_cluster, [], half_turns / 2)
    load_at_kill = highest_load(killed_cluster)
    repeated_run = run_release(request, killed_cluster, [], run_class=LoadRecordingRun)

    assert repeated_run.max_load <= max(uninterrupted_run.max_load, load_at_kill)


@SETTINGS
@given(scenarios())
def test_failed_release_rolls_back_or_names_each_controller(scenario):
    request, cluster, events = scenario
    controllers_before = copy.deepcopy(cluster.controllers)
    run = run_release(request, cluster, events)
    ending = run.ending

    assert ending.outcome in ("updated", "paused", "rolled_back", "stopped", "failed")
    has_failed = run.history.failed_event is not None
    assert ((ending.outcome in ("updated", "paused")) is not has_failed
            and bool(ending.error) is has_failed)
    purpose = run.history.failed_event.turn.purpose if has_failed else ""
    if (not has_failed or not run.request.rolls_back_on_failure
            or purpose not in ("update", "check", "approval")):
        return
    for name in cluster.changed_names:
        controller = cluster.controllers[name]
        is_back = not controller.new_image and controller.image == controllers_before[name].image
        may_be_changed_by_event = (controller.new_image == "myimage:v3" or controller.is_deleted
                                   or (controller.image == V2 and not controller.new_image))
        assert is_back or may_be_changed_by_event or name in ending.error, (name, controller,
                                                                            ending.error)
        if ending.outcome == "rolled_back":
            assert not controller.new_image or controller.new_image == "myimage:v3", (name,
                                                                                      controller)


@SETTINGS
@given(scenarios())
def test_update_that_another_client_has_rolled_back_does_not_begin_again(scenario):
    request, cluster, events = scenario
    run = run_release(request, cluster, events)

    for name in cluster.undone_names:
        controller = cluster.controllers[name]
        assert not controller.new_image and controller.image != V2, (run.turn_titles, controller)


@SETTINGS
@given(scenarios())
def test_failed_update_that_is_left_in_progress_has_the_outcome_stopped(scenario):
    request, cluster, events = scenario
    request["options"]["on_failure"] = "stop"
    run = run_release(request, cluster, events)
    event = run.history.failed_event
    assume(event and event.turn.purpose == "update")

    if any(cluster.controllers[name].new_image == V2 for name in cluster.changed_names):
        assert run.ending.outcome == "stopped", cluster.controllers
        assert "The update is still in progress." in run.ending.error


@SETTINGS
@given(scenarios())
def test_unselected_controllers_are_unchanged(scenario):
    request, cluster, events = scenario
    run_release(request, cluster, events)

    selected_names = request["selection"].get("names") or [request["selection"]["name"]]
    assert cluster.changed_names <= set(selected_names)


@SETTINGS
@given(scenarios(), st.integers(0, 40))
def test_repeated_run_after_a_kill_has_the_same_end(scenario, half_turns):
    request, cluster, _events = scenario
    killed_cluster = copy.deepcopy(cluster)
    uninterrupted_run = run_release(request, cluster, [])
    assume(uninterrupted_run.ending.outcome in ("updated", "paused"))

    run_release(request, killed_cluster, [], half_turns / 2)
    second_run = run_release(request, killed_cluster, [])

    assert (second_run.ending.outcome == uninterrupted_run.ending.outcome
            and killed_cluster.controllers == cluster.controllers)
    third_run = run_release(request, killed_cluster, [])
    assert not any(result.get("changed") for result in third_run.history.results)


@SETTINGS
@given(scenarios(), st.sampled_from(NAMES))
def test_rollback_with_the_artifacts_of_a_run_undoes_its_changes(scenario, busy_name):
    """Another client may work on another update of one of several controllers."""
    request, cluster, _events = scenario
    controllers_before = copy.deepcopy(cluster.controllers)
    for controller in cluster.controllers.values():
        controller.breaks_at = 101
    run = run_release(request, cluster, [])
    assume(run.ending.outcome == "updated" and run.stats)

    stats = run.stats
    # AWX adds the labels of the workflow's launch to the names of the artifacts.
    selection = ({"names": stats["names"], "label_selectors": ["app=shop"]} if stats["names"]
                 else {"name": stats["controller"]})
    options = {"on_failure": None, "image": None, "images": stats["previous_images"] or None,
               "max_failures": "100%"}
    changed_names = set(cluster.changed_names)
    if not changed_names:
        return
    previous = stats["previous_images_by_name"]
    is_one_busy = bool(stats["names"]) and busy_name in changed_names
    if is_one_busy:
        busy_controller = cluster.controllers[busy_name]
        busy_controller.new_image, busy_controller.is_locked = "myimage:v3", True
    rollback_run = Run(variables(role="rollback", selection=selection, options=options,
                                 previous=previous, gets_artifacts=True), cluster).run()

    assert rollback_run.ending.outcome == ("failed" if is_one_busy else "rolled_back"), (
        rollback_run.ending.error)
    assert not is_one_busy or f"Roll back {busy_name}: " in rollback_run.ending.error
    for name, controller in controllers_before.items():
        if not (is_one_busy and name == busy_name):
            assert (cluster.controllers[name].image == controller.image
                    and not cluster.controllers[name].new_image)


previous_images = st.dictionaries(
    st.sampled_from([*NAMES, "web"]),
    st.one_of(*[st.just({"web": image}) for image in ("myimage:v1", "myimage:v0", V2)],
              st.sampled_from([{"web": 7}, {}, "myimage:v1", None])), max_size=4)


@SETTINGS
@given(scenarios(), previous_images, st.sampled_from([None, "myimage:v0"]))
def test_rollback_with_any_artifacts_changes_only_selected_controllers(scenario, previous, image):
    """The artifacts of another run may have other controllers, or another form."""
    request, cluster, _events = scenario
    for number, controller in enumerate(cluster.controllers.values()):
        controller.breaks_at, controller.new_image = 101, "" if number % 2 else "myimage:v3"
    controllers_before = copy.deepcopy(cluster.controllers)
    run = run_release(variables(role="rollback", selection=request["selection"], previous=previous,
                                options={"on_failure": None, "image": image,
                                         "max_failures": "100%"}), cluster, [])

    selected_names = request["selection"].get("names") or [request["selection"]["name"]]
    assert cluster.changed_names <= set(selected_names)
    is_valid = all(isinstance(images, dict) and isinstance(images.get("web"), str)
                   for images in previous.values())
    assert is_valid or run.turn_titles == []
    for name in selected_names if previous and is_valid else ():
        controller = cluster.controllers[name]
        expected_image = previous.get(name, {"web": controllers_before[name].image})["web"]
        assert (controller.image, controller.new_image) == (expected_image, "")


@SETTINGS
@given(scenarios(), st.sampled_from(["stages", "approve_within", "selection", "errors"]))
def test_invalid_request_changes_nothing(scenario, field):
    request, cluster, events = scenario
    wrong = {"stages": [*request["stages"], "1O%"], "approve_within": "soon", "selection": {},
             "errors": ["no such choice"]}
    run = run_release(request | {field: wrong[field]}, cluster, events)

    assert (run.turn_titles == ["Pass the outcome to the workflow"] and not cluster.changed_names
            and "Nothing has been changed." in run.ending.error)

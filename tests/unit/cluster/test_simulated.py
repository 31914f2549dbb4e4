# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Check mode: writes change a model, and objects outside the model are read from the server."""

from __future__ import annotations

import dataclasses

from apiserver import (
    FREEZE,
    FROZEN,
    PRIMARY,
    SCALE_TO_2,
    always_continue,
    answer,
    hpa,
    rc_answer,
    reparent_to_bar,
    status,
)
from builders import rc, template

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.simulated import (
    SimulatedGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request
from ansible_collections.baton.kubernetes.plugins.module_utils.model.steps import (
    Create,
    Merge,
    Patch,
    put,
)


def simulated_gateway(real, advance_clock=lambda seconds: None):
    return SimulatedGateway(real, advance_clock, choose(Request("foo")).build_model(real))


def test_check_mode_changes_only_the_model(gateway, api):
    simulated = simulated_gateway(gateway)

    assert simulated.write(SCALE_TO_2)
    simulated.wait(1)
    assert (simulated.controllers()["foo"].is_settled
            and simulated.controllers()["foo"].replicas == 2)
    assert gateway.controllers()["foo"].replicas == 3
    assert api.sent == []


def test_check_mode_advances_the_clock_only_if_the_model_is_settled(gateway):
    advances = []
    simulated = simulated_gateway(gateway, advances.append)
    simulated.write(SCALE_TO_2)

    simulated.wait(1)
    assert advances == []
    simulated.wait(2)
    assert advances == [2]


def test_check_mode_reads_related_objects_from_the_server(gateway, api):
    api.answers += [rc_answer(), *[status(404)] * 6]
    simulated = simulated_gateway(gateway)

    assert simulated.dry_run(Merge("foo", {"spec": {}}))["spec"]["template"] == template()
    assert simulated.absence_reason("foo") == "there is no namespace default"
    assert (simulated.troubled_pods(PRIMARY) == []
            and len(simulated.live_pods({"app": "foo"})) == 3)
    assert simulated.look_up("foo") is None and len(api.sent) == 7


def test_check_mode_reparents_pods_of_the_model(gateway, api):
    simulated = simulated_gateway(gateway)

    assert simulated.hand_over(reparent_to_bar("0", "1"), always_continue) == 2
    assert sorted(pod.owner_uid for pod in simulated.live_pods({"app": "foo"})) == [
        "uid of bar", "uid of bar", "uid of foo"]
    assert simulated.hand_over(dataclasses.replace(reparent_to_bar("0"),
                                                   source_uid="uid of nobody"),
                               always_continue) == 0
    assert simulated.refuse_forbidden_handover(PRIMARY) is None and api.sent == []


def test_check_mode_freezes_a_copy_of_the_autoscaler(gateway, api):
    api.answers += [answer({"kind": "List", "items": [hpa()]})] * 3
    simulated = simulated_gateway(gateway)

    assert simulated.objects("horizontalpodautoscalers") == [hpa()]
    assert simulated.write(FREEZE)
    assert simulated.objects("horizontalpodautoscalers") == [FROZEN]
    assert {method for method, _path in api.sent} == {"GET"}


def test_check_mode_sends_no_request_for_a_created_controller(gateway, api):
    simulated = simulated_gateway(gateway)
    new_controller = rc("bar", 0)
    assert simulated.write(Create(new_controller))

    stored = simulated.dry_run(Patch("bar", (put("/spec/template", template("myimage:v2")),)))

    assert (stored["spec"]["template"] == template("myimage:v2")
            and new_controller["spec"]["template"] == template())
    assert api.sent == []

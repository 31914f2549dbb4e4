# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is missing is named before anything is written, and the Role in the documentation is enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.baton.kubernetes.plugins.module_utils.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.permissions import refuse_missing

PAGE = Path(__file__).parents[3] / "docs/permissions.md"
ROLE = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1])["rules"]
CONTROLLERS, *_OTHERS, LEASES = ROLE


def refusal(rules, lock=True):
    with pytest.raises(RolloutError) as error:
        refuse_missing(rules, "shop", lock)
    return error.value


@pytest.mark.parametrize("rules", [ROLE, [CONTROLLERS, LEASES], [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]])
def test_what_is_enough(rules):
    refuse_missing(rules, "shop", lock=True)


def test_leases_are_needed_for_the_lock_only():
    refuse_missing([CONTROLLERS], "shop", lock=False)

    error = refusal([CONTROLLERS])

    assert error.why == "not allowed: get, create, update, delete on leases (coordination.k8s.io)"
    assert "lock=false" in error.next_command


@pytest.mark.parametrize("verb", CONTROLLERS["verbs"])
def test_every_missing_verb_is_named(verb):
    rule = {**CONTROLLERS, "verbs": [each for each in CONTROLLERS["verbs"] if each != verb]}

    error = refusal([rule, LEASES])

    assert (error.where, error.why) == ("namespace shop", f"not allowed: {verb} on replicationcontrollers")
    assert "lock" not in error.next_command


def test_rules_of_other_groups_and_resources_do_not_count():
    rules = [{**CONTROLLERS, "apiGroups": ["apps"]}, {**CONTROLLERS, "resources": ["replicationcontrollers/scale"]}, LEASES]

    assert refusal(rules).why == "not allowed: get, list, watch, create, patch, delete on replicationcontrollers"


def test_rules_add_up():
    refuse_missing([{**CONTROLLERS, "verbs": [verb]} for verb in CONTROLLERS["verbs"]] + [LEASES], "shop", lock=True)

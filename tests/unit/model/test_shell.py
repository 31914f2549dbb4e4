# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Find the lines of an error that a user can paste unchanged."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baton.kubernetes.plugins.module_utils.model import shell
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.request import Request

UPDATE = "ansible localhost -m baton.kubernetes.rolling_update -a"


@pytest.mark.parametrize("line, expected", [
    (f"{UPDATE} 'name=foo image=a:1'", True),
    ("kubectl -n shop edit quota none", True),
    ("oc -n shop rollout latest dc/foo", True),
    (f"{UPDATE} 'name=foo image=ANOTHER-IMAGE'", False),
    (f"{UPDATE} 'name=foo image=THE-EARLIER-IMAGE'", False),
    ("kubectl --kubeconfig=KUBECONFIG-OF-THE-TASK -n shop get rc", False),
    ("kubectl uncordon NODE", False), ("kubectl taint nodes NODE a=b:NoSchedule-", False),
    ("kubectl -n shop describe pod POD", False), ("kubectl -n shop logs web -c CONTAINER", False),
    ("kubectl --context=NODE-1 -n shop get rc", True),
    ("env KUBECONFIG=/a:/b kubectl --context=lyon -n shop get rc", True),
    ("env 'KUBECONFIG=/my config:/b' oc rollout latest dc/foo", True),
    ("until kubectl -n shop get rc foo | grep -qx 4; do sleep 1; done", True),
    ("until kubectl uncordon NODE; do sleep 1; done", False), ("until the pods run", False),
    ("run the same task again with state=rolled_back", False),
    ("or:", False), ("kubectl", False), ("", False),
])
def test_only_a_whole_command_without_a_placeholder_can_be_pasted(line, expected):
    assert shell.is_command(line) is expected


@pytest.mark.parametrize("variables, flags", [
    ({"name": "foo", "namespace": "shop"}, "-e name=foo -e namespace=shop"),
    ({"names": ["foo"]}, "-e names=foo"), ({"names": []}, "-e names="),
    ({"name": "a,b"}, "-e name=a,b"),
    ({"names": ["foo", "bar"]}, """-e '{"names":["foo","bar"]}'"""),
    ({"name": "a b"}, """-e '{"name":"a b"}'"""),
    ({"options": {"a": 1}}, """-e '{"options":{"a":1}}'"""),
    ({"name": "{{ x }}"}, None),
], ids=["texts", "list of one text", "empty list", "comma", "list", "space", "mapping", "template"])
def test_variables_are_json_only_if_key_value_would_change_them(variables, flags):
    assert shell.extra_vars(variables) == flags


SEVERAL_FILES = {"context": "lyon", "kubeconfig": "/a:/my b"}


@pytest.mark.parametrize("command, expected", [
    (shell.kubectl(SEVERAL_FILES), "kubectl --context=lyon"),
    (shell.helm(SEVERAL_FILES, "shop"), "helm --kube-context=lyon -n shop"),
    (Request("foo", "shop", connection=SEVERAL_FILES).oc, "oc --context=lyon -n shop"),
    (shell.kubectl(SEVERAL_FILES, "shop", "kubectl argo rollouts"),
     "kubectl argo rollouts --context=lyon -n shop"),
], ids=["kubectl", "helm", "oc", "argo"])
def test_several_kubeconfig_files_become_a_variable(command, expected):
    """The flag --kubeconfig accepts only one file."""
    assert command == f"env 'KUBECONFIG=/a:/my b' {expected}"
    assert shell.is_command(f"{command} get pods")


def test_an_error_lists_its_commands_without_the_hints():
    update, rollback = (f"{UPDATE} 'name=foo image=a:1'", f"{UPDATE} 'name=foo state=rolled_back'")
    error = RolloutError("it failed", next_command=("raise the quota, then:", update, "or:",
                                                    "run the same task again"))
    assert error.commands == error.as_result()["failure"]["commands"] == [update]

    error.next_command += f"\nor:\n{rollback}"

    assert error.commands == [update, rollback]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats()
    | st.sampled_from(["a", "a b", "a'b", "{{ x }}", "#jinja2:", "\x1b", "\u202e", "\ud800"]),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from(["a", "{% b", "\u202e"]), inner, max_size=2))


@settings(max_examples=500)
@given(VALUES)
def test_any_value_has_a_safe_command_or_none(value):
    commands = [shell.ansible("rolling_update", {"x": value}), shell.extra_vars({"x": value}),
                shell.playbook("rollback", {"x": value}), shell.describe("x", value)]

    for command in filter(None, commands):
        assert command.isprintable() and "{{" not in command and "{%" not in command
    for command in filter(None, commands[:3]):
        shlex.split(command)

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Enforce the rules that import-linter cannot check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ansible_collections.baton.kubernetes.plugins.module_utils.model.kinds import Kind

MODULE_UTILS = Path(__file__).parents[2] / "plugins" / "module_utils"
FILES = {str(path.relative_to(MODULE_UTILS)): path for path in sorted(MODULE_UTILS.rglob("*.py"))}
KIND_COMPARING_PATHS = ("flows/", "model/kinds.py")
KIND_CLASSES = {"Deployment", "StatefulSet", "DaemonSet", "DeploymentConfig", "RevisionDriven",
                "ServerDriven"}
MAX_FILE_LINES, MAX_CLASS_LINES = 450, 200


def comparisons(tree):
    """Yield the lines that compare with a Kind or State, or check for a class of a kind.

    functools.singledispatch checks for a class, too: of the first argument.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            attributes = [part for operand in operands for part in ast.walk(operand)
                          if isinstance(part, ast.Attribute)]
            if any(isinstance(attribute.value, ast.Name) and attribute.value.id in ("Kind", "State")
                   for attribute in attributes):
                yield node.lineno
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            classes = {"isinstance": node.args[1:], "register": node.args[:1]}.get(name, [])
            if KIND_CLASSES & {part.id for argument in classes for part in ast.walk(argument)
                               if isinstance(part, ast.Name)}:
                yield node.lineno
        elif (isinstance(node, (ast.Attribute, ast.alias))
              and ast.unparse(node).rpartition(".")[2].startswith("singledispatch")):
            yield node.lineno


@pytest.mark.parametrize("name", [name for name in FILES
                                  if not name.startswith(KIND_COMPARING_PATHS)])
def test_only_flows_compare_kinds_and_states(name):
    assert list(comparisons(ast.parse(FILES[name].read_text("utf-8")))) == []


#: template.py defines same_template, and provenance.py compares with a request. The other files
#: look up a template in a history, or compare templates within a migration.
TEMPLATE_COMPARING_FILES = {
    "model/template.py", "flows/provenance.py", "flows/previous.py", "flows/deployment/observed.py",
    "flows/deployment/planner.py", "flows/daemonset/observed.py",
    "flows/controller_revisions/simulated.py", "flows/migration/flow.py",
    "flows/migration/manifests.py"}


def test_only_listed_files_compare_templates():
    assert {name for name, path in FILES.items()
            if "same_template(" in path.read_text("utf-8")} == TEMPLATE_COMPARING_FILES


KIND_FLAGS = {name for name, member in vars(Kind).items()
              if isinstance(member, property) and member.fget.__annotations__["return"] == "bool"}


@pytest.mark.parametrize("name", [name for name in FILES
                                  if not name.startswith(("flows/", "model/"))])
def test_only_flows_and_the_model_read_flags_of_a_kind(name):
    tree = ast.parse(FILES[name].read_text("utf-8"))

    assert "replaces_in_place" in KIND_FLAGS
    assert [node.lineno for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in KIND_FLAGS] == []


@pytest.mark.parametrize("code",
                         ["kind is Kind.DEPLOYMENT", "request.state != State.MIGRATED",
                          "kind in (Kind.REPLICA_SET,)",
                          "isinstance(primary, Deployment)",
                          "describe.register(StatefulSet)", "functools.singledispatch(describe)",
                          "from functools import singledispatchmethod"])
def test_comparisons_are_detected(code):
    assert list(comparisons(ast.parse(code))) == [1]


@pytest.mark.parametrize("name", FILES)
def test_files_and_classes_stay_below_the_size_limits(name):
    text = FILES[name].read_text("utf-8")
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]

    assert len(text.splitlines()) <= MAX_FILE_LINES
    assert all(node.end_lineno - node.lineno < MAX_CLASS_LINES for node in classes)

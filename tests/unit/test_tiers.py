# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What tests/run.py says of a tier that this machine cannot run, and that two checkouts do not share what they destroy."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEFAULT = "kindest/node:v1.36.1@sha256:" + "a" * 64
#: An engine that has one image, and gets no other.
DOCKER = """#!/bin/sh
case "$1 $2" in "version ") exit 0;; "image inspect") [ "$3" = "$HERE" ];; *) exit 1;; esac
"""
KIND = f"#!/bin/sh\nexit 0\n# The program has it somewhere: {DEFAULT}.\n"


@pytest.fixture
def runner(monkeypatch):
    spec = importlib.util.spec_from_file_location("tiers", ROOT / "tests" / "run.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("programs, here, image, told", [
    ({}, "", "", "`docker version` does not answer"),
    ({"docker": DOCKER}, "", "", "`kind version` does not answer"),
    ({"docker": DOCKER, "kind": KIND}, "", "", f"the node image {DEFAULT} is not here and cannot be pulled"),
    ({"docker": DOCKER, "kind": KIND}, DEFAULT, "", ""),
    ({"docker": DOCKER, "kind": KIND}, DEFAULT, "local/node:1", "the node image local/node:1 is not here"),
    ({"docker": DOCKER, "kind": KIND}, "local/node:1", "local/node:1", ""),
])
def test_what_kind_misses(runner, monkeypatch, tmp_path, programs, here, image, told):
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    for name, value in {"PATH": str(tmp_path), "HERE": here, "BATON_KIND_IMAGE": image}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(runner.engine.machine, "hindrance", lambda *_unused: "we may not make one")

    said = runner.no_kind()

    assert told in said and bool(told) == bool(said)
    assert not told or ("may not make one" in said) != ("has not the image local/node:1" in said)


@pytest.mark.parametrize("image, memory, why", [
    ("", 2**23, ""),
    ("", 2**21, "needs 4 GiB of memory, and 2.0 are free"),
    ("local/node:1", 2**23, "has not the image local/node:1 that BATON_KIND_IMAGE names"),  # it is not another one that is tried
])
def test_kind_needs_no_engine_where_one_can_be_made(runner, monkeypatch, tmp_path, image, memory, why):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BATON_KIND_IMAGE", image)
    monkeypatch.setattr(runner.engine.machine, "hindrance", lambda *_unused: "")
    monkeypatch.setattr(runner.engine, "_number", lambda *_unused: str(memory))

    said = runner.no_kind()

    assert why in said and bool(why) == bool(said)


@pytest.mark.parametrize("path", sorted((ROOT / "extensions" / "molecule").glob("*/*.yml")),
                         ids=lambda path: "/".join(path.parts[-2:]))
def test_a_scenario_names_its_cluster_after_the_checkout(path):
    assert set(re.findall(r"--name'?, *\W*(\w[\w-]*)", path.read_text("utf-8"))) <= {"cluster_name"}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test options in the style of kubernetes.core: `src`, `template` and the group of module_defaults.
"""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import threading
from pathlib import Path

import ansible_cli
import pytest
import yaml
from objects import as_kind, eventually, manifest
from plays import run_ad_hoc

ROOT = Path(__file__).parents[2]
PASSWORD = "swordfish-in-the-vault"
#: A stand-in for the module kubernetes.core.k8s.
MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"context": {}, "namespace": {}, "name": {}})
module.exit_json(**{"options": module.params})
"""


def deployment(name, image, **container):
    item = as_kind("Deployment", manifest(2, image, name))
    item["spec"]["template"]["spec"]["containers"][0] |= container
    return item


def run_playbook(namespace, folder, environment, plays, *arguments):
    (folder / "play.yml").write_text(json.dumps(plays))
    return ansible_cli.run(["ansible-playbook", "play.yml", *arguments], cwd=folder,
                           env=environment, capture_output=True, text=True, timeout=240,
                           check=False)


@pytest.fixture
def file_server_address(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_documented_playbook_succeeds(namespace, ansible_environment, tmp_path):
    """The output does not show the content of the encrypted file files/shop.yml."""
    page = (ROOT / "docs" / "reference" / "kubernetes-core.md").read_text("utf-8")
    plays = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    plays[0]["module_defaults"]["group/baton.kubernetes.kubernetes"]["namespace"] = namespace.name
    for name in ("shop", "canary"):
        namespace.call("POST", namespace.apps_path("deployments"),
                       deployment(name, "myimage:v1"))
    for name in ("shop", "canary"):
        eventually(functools.partial(namespace.is_rolled_out, name), name)
    for folder in ("files", "templates"):
        (tmp_path / folder).mkdir()
    secret = [{"name": "PASSWORD", "value": PASSWORD}]
    source = tmp_path / "files" / "shop.yml"
    source.write_text(json.dumps(deployment("shop", "myimage:v2", env=secret)))
    (tmp_path / "password").write_text("of the vault")
    vault = ["--vault-password-file", str(tmp_path / "password")]
    subprocess.run(["ansible-vault", "encrypt", *vault, str(source)], env=ansible_environment,
                   check=True, capture_output=True)
    template = json.dumps(deployment("shop", "myimage:{{ 'v' ~ 3 }}"))
    (tmp_path / "templates" / "shop.yml.j2").write_text(template)
    canary_spec = namespace.deployment("canary")["spec"]

    run = run_playbook(namespace, tmp_path, ansible_environment, plays, *vault, "-vvv")

    output = run.stdout + run.stderr
    assert run.returncode == 0, output
    assert "the update of shop to myimage:v2 is in progress" in output
    assert "shop is updated to myimage:v2: 2 of 2 replicas available" in output
    assert "shop is updated to myimage:v3: 2 of 2 replicas available" in output
    assert "shop is rolled back to myimage:v2: 2 of 2 replicas available" in output
    assert '"name": "canary"' not in output
    assert namespace.deployment("canary")["spec"] == canary_spec
    annotations = namespace.deployment("shop")["spec"]["template"]["metadata"]["annotations"]
    assert any("restart" in key for key in annotations)
    assert PASSWORD not in output


def test_src_may_be_a_url(namespace, ansible_environment, tmp_path, file_server_address):
    namespace.make_deployment(2)
    (tmp_path / "served" / "foo.yml").write_text(json.dumps(deployment("foo", "myimage:v2")))
    (tmp_path / "served" / "large.yml").write_text("#" * 2**21 + "\n")

    result, _stderr = run_ad_hoc(namespace, ansible_environment, name="foo", kind="Deployment",
                                 src=f"http://me:hush-hush@{file_server_address}/foo.yml")
    errors = [run_ad_hoc(namespace, ansible_environment, succeeds=False, name="foo",
                         kind="Deployment",
                         src=f"http://me:hush-hush@{file_server_address}/{path}")[0]
              for path in ("absent.yml", "large.yml")]

    assert result["msg"] == "foo is updated to myimage:v2: 2 of 2 replicas available"
    assert [error["failure"]["what"] for error in errors] == [
        f"src http://{file_server_address}/{path} cannot be read"
        for path in ("absent.yml", "large.yml")]
    assert "404" in errors[0]["failure"]["why"] and "larger" in errors[1]["failure"]["why"]
    assert "hush-hush" not in json.dumps([result, *errors])


@pytest.mark.parametrize("template", ["foo.yml.j2", {"path": "foo.yml.j2"}], ids=["path", "dict"])
def test_error_for_a_jinja_path_as_template_suggests_the_lookup(
        namespace, ansible_environment, template):
    result, _stderr = run_ad_hoc(namespace, ansible_environment, succeeds=False, name="foo",
                                 template=template)

    assert "not the path of a Jinja file" in result["msg"]
    assert "lookup('ansible.builtin.template'" in result["msg"]


def test_one_group_of_module_defaults_serves_both_collections(
        namespace, ansible_environment, tmp_path):
    collection = tmp_path / "collections" / "ansible_collections" / "kubernetes" / "core"
    for folder in ("meta", "plugins/modules"):
        (collection / folder).mkdir(parents=True)
    groups = {"action_groups": {"k8s": ["k8s"]}}
    (collection / "meta" / "runtime.yml").write_text(json.dumps(groups))
    (collection / "plugins" / "modules" / "k8s.py").write_text(MODULE)
    namespace.make_rc(1)
    defaults = {"group/baton.kubernetes.kubernetes": {"namespace": namespace.name}}
    tasks = [{"kubernetes.core.k8s": {"name": "foo"}, "register": "k8s_result"},
             {"baton.kubernetes.rolling_update": {"name": "foo", "image": "myimage:v2"}},
             {"ansible.builtin.assert": {
                 "that": f"k8s_result.options.namespace == '{namespace.name}'"}}]
    paths = f"{ansible_environment['ANSIBLE_COLLECTIONS_PATH']}:{tmp_path / 'collections'}"

    run = run_playbook(namespace, tmp_path,
                       {**ansible_environment, "ANSIBLE_COLLECTIONS_PATH": paths},
                       [{"hosts": "localhost", "gather_facts": False, "module_defaults": defaults,
                         "tasks": tasks}])

    assert run.returncode == 0, run.stdout + run.stderr
    assert namespace.rc()["spec"]["template"]["spec"]["containers"][0]["image"] == "myimage:v2"

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the playbook shop.yml of examples/ with its permissions, inventory and checks."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import threading
from pathlib import Path

import ansible_cli
import pytest
import yaml
from objects import eventually

EXAMPLES = Path(__file__).parents[2] / "examples"
RESOURCES = {"Role": "roles", "RoleBinding": "rolebindings"}


class ShopHandler(http.server.BaseHTTPRequestHandler):
    """Service that is healthy only at its first request."""

    request_count = 0

    def do_GET(self):
        ShopHandler.request_count += 1
        self.send_response(
            200 if self.path == "/health" and ShopHandler.request_count == 1 else 503)
        self.end_headers()

    def log_message(self, *_unused):
        """Discard the log."""


@pytest.fixture
def shop_url():
    ShopHandler.request_count = 0
    with http.server.HTTPServer(("127.0.0.1", 0), ShopHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def run_playbook(namespace, plain_environment, tmp_path, shop_url):
    """Provide a function that runs a playbook with the permissions of rbac.yml."""
    repository = tmp_path / "rollouts"
    shutil.copytree(EXAMPLES, repository)
    namespace.call("DELETE", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace.name}"
                             "/rolebindings/baton")
    items = yaml.safe_load((EXAMPLES / "rbac.yml").read_text())["items"]
    for item in items:
        if item["kind"] != "ServiceAccount":  # the namespace of the test already has one
            item["metadata"]["name"] = item.get("roleRef", item["metadata"])["name"] = "example"
            namespace.call("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"
                                   f"{namespace.name}/{RESOURCES[item['kind']]}", item)
    (rules,) = (item["rules"] for item in items if item["kind"] == "Role")
    eventually(lambda: namespace.is_allowed(rules), "the permissions of rbac.yml")

    def run_playbook(name, *options):
        command = ["ansible-playbook", "-i", "inventory/one.yml", name, *options]
        environment = {**plain_environment, "K8S_AUTH_KUBECONFIG": namespace.kubeconfig}
        return ansible_cli.run(command, cwd=repository, env=environment, capture_output=True,
                               text=True, timeout=240, check=False)

    return run_playbook


@pytest.mark.full
def test_failed_smoke_test_rolls_back_the_update(namespace, run_playbook, shop_url):
    namespace.make_deployment(4, name="shop")

    run = run_playbook("shop.yml", "-e", "image=myimage:v2",
                       "-e", f"shop_namespace={namespace.name}", "-e", f"shop_url={shop_url}")

    assert run.returncode != 0 and "smoke.yml" in run.stdout, run.stdout + run.stderr
    # One request at the first stage, and four attempts at the second stage.
    assert ShopHandler.request_count == 1 + 4
    assert {pod["spec"]["containers"][0]["image"]
            for pod in namespace.pods() if "deletionTimestamp" not in pod["metadata"]} == {
        "myimage:v1"}


def test_inventory_of_many_clusters_has_regions(plain_environment):
    output = subprocess.run(["ansible-inventory", "-i", "inventory/many.yml", "--list"],
                            cwd=EXAMPLES, env=plain_environment, capture_output=True, text=True,
                            check=True, timeout=60).stdout
    inventory = json.loads(output)

    assert inventory["canary"]["hosts"] == ["malmo"]
    assert inventory["europe"]["hosts"] == ["lyon", "porto"]
    assert {values["context"] for values in inventory["_meta"]["hostvars"].values()} == {
        "malmo", "lyon", "porto"}

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Implement `make pictures`: record updates on the embedded cluster, and draw README's pictures.

With --draw, draw the pictures from the recorded files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / ".venv/collections"), str(ROOT / "tests/cluster")]

import draw  # noqa: E402

RECORDED, PICTURES = Path(__file__).parent / "recorded", ROOT / "docs/pictures"
COMMAND = "ansible localhost -m baton.kubernetes.rolling_update -a 'name=foo image=myimage:v2'"
INTERRUPT_AT = re.compile(r"scale foo-\w+: 1 -> 2 replicas")
RESULT_LINE = re.compile(r'^localhost \| CHANGED => \{$|^    "msg": ')


def main() -> None:
    if "--draw" not in sys.argv:
        record()
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "rollout.svg").write_text(draw.terminal((RECORDED
                                                         / "rollout.txt").read_text("utf-8")),
                                          "utf-8")
    (PICTURES / "report.svg").write_text(
        draw.report(json.loads((RECORDED / "report.json").read_text("utf-8"))), "utf-8")


def record() -> None:
    import embedded
    import kubernetes

    os.environ.pop("KUBECONFIG", None)  # use the embedded cluster
    with (tempfile.TemporaryDirectory() as home,
          embedded.up(embedded.checkout_cluster_name("pictures")) as cluster):
        core = kubernetes.client.CoreV1Api(
            kubernetes.config.new_client_from_config(cluster.kubeconfig))
        inherited_variables = {key: text
                               for key, text in os.environ.items()
                               if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
        environment = {**inherited_variables, "K8S_AUTH_KUBECONFIG": cluster.kubeconfig,
                       "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
                       "ANSIBLE_HOME": home, "ANSIBLE_NOCOLOR": "1",
                       "ANSIBLE_CONFIG": str(ROOT / "tests/demo/ansible.cfg"),
                       "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
        recreate_foo(core, 4)
        lines = [f"$ {COMMAND}", *run(environment, INTERRUPT_AT), "",
                 f"$ {COMMAND}", *run(environment)]
        (RECORDED / "rollout.txt").write_text("\n".join(lines) + "\n", "utf-8")
        recreate_foo(core, 10)
        (RECORDED / "report.json").write_text(json.dumps(report_data(environment, Path(home)),
                                                         indent=1) + "\n", "utf-8")


def recreate_foo(core: object, replicas: int) -> None:
    """Recreate foo, whose pods have a readiness probe and a preStop hook."""
    core.delete_collection_namespaced_replication_controller("default")
    core.delete_collection_namespaced_pod("default")
    while core.list_namespaced_pod("default").items:
        time.sleep(0.1)
    labels = {"app": "foo"}
    core.create_namespaced_replication_controller("default", {
        "metadata": {"name": "foo"},
        "spec": {"replicas": replicas, "selector": labels, "template": {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 3, "containers": [
                {"name": "web", "image": "myimage:v1", "readinessProbe": {"httpGet": {"port": 80}},
                 "lifecycle": {"preStop": {"sleep": {"seconds": 2}}}}]}}}})
    while (core.read_namespaced_replication_controller("foo", "default").status.available_replicas
           != replicas):
        time.sleep(0.1)


def run(environment: dict[str, str], interrupt_at: re.Pattern[str] | None = None) -> list[str]:
    """Run the command, and return its progress lines and the lines of its result.

    interrupt_at: send Ctrl-C at the first line that matches this pattern.
    """
    command = ["ansible", *COMMAND.split(" ")[1:5], COMMAND.split("'")[1]]
    lines: list[str] = []
    has_interrupt = interrupt_at is not None
    with subprocess.Popen(command, env={**environment, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        for line in process.stdout or ():
            if RESULT_LINE.match(line) or (line.startswith("localhost | ") and "=>" not in line):
                lines.append(line.rstrip())
                if interrupt_at and interrupt_at.search(line):
                    os.killpg(process.pid, signal.SIGINT)
                    interrupt_at = None
            elif line.startswith("[ERROR]: User interrupted"):
                lines.append(f"^C{line.rstrip()}")
    if (process.returncode == 0) == has_interrupt:
        sys.exit(f"{command} has ended with {process.returncode}: {lines}")
    return lines


def report_data(environment: dict[str, str], folder: Path) -> dict:
    """Run a staged update with a soak and a check, and return the data of its report."""
    (folder / "write_data.yml").write_text(
        json.dumps(
            [
                {
                    "name": "Write the report data",
                    "ansible.builtin.copy": {
                        "content": "{{ image_bump_report_data | to_json }}",
                        "dest": str(folder / "report_data.json"),
                        "mode": "0600",
                    },
                }
            ]
        )
    )
    (folder / "smoke.yml").write_text(json.dumps([{"name": "Wait",
                                                   "ansible.builtin.pause": {"seconds": 3}}]))
    variables = {"controller": "foo", "image": "myimage:v2", "stages": ["10%", "50%", "100%"],
                 "soak": "8s",
                 "min_ready_seconds": 1, "max_surge": 1,
                 "verify_tasks": ["smoke.yml"], "after_tasks": ["write_data.yml"],
                 "report": str(folder / "page.html")}
    subprocess.run(["ansible-playbook", "baton.kubernetes.image_bump", "-e", json.dumps(variables)],
                   cwd=folder, env=environment,
                   check=True, stdin=subprocess.DEVNULL)
    data = json.loads((folder / "report_data.json").read_text("utf-8"))
    return {**data, "user": "ada", "host": "controller", "page": "rollout.html"}


if __name__ == "__main__":
    main()

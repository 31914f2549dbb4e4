# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""`make pictures`: README's pictures, of a real rollout on the embedded cluster.

recorded/ stores the output and the events, from which the pictures are drawn; --draw uses the
stored ones, without a cluster.
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
#: Where the first run is interrupted.
HALF_WAY = re.compile(r"scale foo-\w+: 1 -> 2 replicas")
CLOSING = re.compile(r'^localhost \| CHANGED => \{$|^    "msg": ')


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
    """Roll foo on a new cluster and store the output."""
    import embedded
    import kubernetes

    os.environ.pop("KUBECONFIG", None)  # the user's
    with (tempfile.TemporaryDirectory() as home,
          embedded.up(embedded.checkout_cluster_name("pictures")) as cluster):
        core = kubernetes.client.CoreV1Api(
            kubernetes.config.new_client_from_config(cluster.kubeconfig))
        inherited = {key: text
                     for key, text in os.environ.items()
                     if not key.startswith(("ANSIBLE_", "K8S_AUTH_"))}
        environment = {**inherited, "K8S_AUTH_KUBECONFIG": cluster.kubeconfig,
                       "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".venv/collections"),
                       "ANSIBLE_HOME": home, "ANSIBLE_NOCOLOR": "1",
                       "ANSIBLE_CONFIG": str(ROOT / "tests/demo/ansible.cfg"),
                       "PATH": f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"}
        create(core, 4)
        lines = [f"$ {COMMAND}", *run(environment, HALF_WAY), "", f"$ {COMMAND}", *run(environment)]
        (RECORDED / "rollout.txt").write_text("\n".join(lines) + "\n", "utf-8")
        create(core, 10)
        (RECORDED / "report.json").write_text(json.dumps(reported(environment, Path(home)),
                                                         indent=1) + "\n", "utf-8")


def create(core: object, replicas: int) -> None:
    """Create foo again, with pods that lose no request."""
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


def run(environment: dict[str, str], until: re.Pattern[str] | None = None) -> list[str]:
    """Return the command's progress lines and final lines; interrupt the command at a matching
    line, if given.
    """
    command = ["ansible", *COMMAND.split(" ")[1:5], COMMAND.split("'")[1]]
    lines: list[str] = []
    is_interrupted = until is not None
    with subprocess.Popen(command, env={**environment, "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
                          stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
        for line in process.stdout or ():
            if CLOSING.match(line) or (line.startswith("localhost | ") and "=>" not in line):
                lines.append(line.rstrip())
                if until and until.search(line):
                    os.killpg(process.pid, signal.SIGINT)
                    until = None
            elif line.startswith("[ERROR]: User interrupted"):
                lines.append(f"^C{line.rstrip()}")
    if (process.returncode == 0) == is_interrupted:
        sys.exit(f"{command} has ended with {process.returncode}: {lines}")
    return lines


def reported(environment: dict[str, str], folder: Path) -> dict:
    """Return the report data of the role, for an update in stages with a soak and a check."""
    (folder / "keep.yml").write_text(json.dumps([{"name": "Keep it", "ansible.builtin.copy": {
        "content": "{{ image_bump_report_data | to_json }}", "dest": str(folder / "kept.json"),
        "mode": "0600"}}]))
    (folder / "smoke.yml").write_text(json.dumps([{"name": "Look",
                                                   "ansible.builtin.pause": {"seconds": 3}}]))
    variables = {"controller": "foo", "image": "myimage:v2", "stages": ["10%", "50%", "100%"],
                 "soak": "8s",
                 "update_period": 1, "max_surge": 1,
                 "verify_tasks": ["smoke.yml"], "after_tasks": ["keep.yml"],
                 "report": str(folder / "page.html")}
    subprocess.run(["ansible-playbook", "baton.kubernetes.image_bump", "-e", json.dumps(variables)],
                   cwd=folder, env=environment,
                   check=True, stdin=subprocess.DEVNULL)
    data = json.loads((folder / "kept.json").read_text("utf-8"))
    return {**data, "user": "ada", "host": "controller", "page": "rollout.html"}


if __name__ == "__main__":
    main()

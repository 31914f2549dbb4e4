# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run Alertmanager, ansible-rulebook and a stand-in for the API of automation controller."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import subprocess
import threading
import typing as t
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from objects import eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TOKEN = "t0ken-of-the-test"
#: Sends requests without the proxies of the environment.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def post(url: str, body: t.Any, token: str = "") -> int:
    """Send JSON, and return the status of the response, or 0 without a response."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with OPENER.open(request, timeout=10) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@contextlib.contextmanager
def running(log: Path, command: t.Sequence[str], url: str, ready_status: int,
            environment: t.Mapping[str, str]) -> t.Iterator[None]:
    """Run a program until the end of the block.

    The block begins when an empty POST to the URL has the status `ready_status`.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=log.parent, stdout=output, stderr=output,
                                   env=dict(environment))

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return post(url, {}) == ready_status

    try:
        eventually(is_ready, f"{Path(command[0]).name} on {url}", seconds=120)
        yield
    finally:
        process.terminate()
        process.wait(30)
        print(log.read_text(errors="replace"))


def template_mount_prefix(program: str) -> list[str]:
    """Return a command prefix that mounts Alertmanager's templates from an unpacked package."""
    share = Path(program).parents[1] / "share"
    if share == Path("/usr/share"):
        return []
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t overlay -o ro,lowerdir={share}:/usr/share overlay /usr/share"
    return [*unshare, "sh", "-c", f'{mount} && exec "$@"', "sh"]


@contextlib.contextmanager
def alertmanager(program: str, folder: Path, receiver: str) -> t.Iterator[t.Callable[..., None]]:
    """Run Alertmanager as in examples/, and yield a function that sends alerts."""
    port = free_port()
    (folder / "token").write_text(TOKEN)
    config = (EXAMPLES / "monitoring/alertmanager.yml").read_text()
    config = config.replace("http://127.0.0.1:5050/", receiver)
    (folder / "alertmanager.yml").write_text(
        config.replace("/etc/alertmanager/alert-token", str(folder / "token")))
    command = [*template_mount_prefix(program), program, f"--config.file={folder}/alertmanager.yml",
               f"--storage.path={folder}/alertmanager", "--cluster.listen-address=",
               f"--web.listen-address=127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}/api/v2/alerts"

    def alert(**labels: str) -> None:
        assert post(url, [{"labels": {"alertname": "ShopFails", **labels}}]) == 200

    with running(folder / "alertmanager.log", command, url, 400, os.environ):
        yield alert


@contextlib.contextmanager
def rulebook(program_folder: Path, folder: Path, name: str, *options: str,
             environment: t.Mapping[str, str]) -> t.Iterator[str]:
    port = free_port()
    inventory = folder / "inventory.yml"
    inventory.write_text(yaml.safe_dump(
        {"all": {"hosts": {"localhost": {
            "ansible_connection": "local",
            "ansible_python_interpreter": "{{ ansible_playbook_python }}"}}}}))
    command = [str(program_folder / "ansible-rulebook"), "--rulebook", name, "--inventory",
               str(inventory), "--env-vars", "ALERT_TOKEN,alert_port", *options]
    url = f"http://127.0.0.1:{port}/"
    with running(folder / "rulebook.log", command, url, 401,
                 {**environment, "ALERT_TOKEN": TOKEN, "alert_port": str(port)}):
        yield url


class AutomationController(http.server.ThreadingHTTPServer):
    """A stand-in for automation controller, with the part of its API that ansible-rulebook uses."""

    daemon_threads = True
    PATH = "/api/controller/v2/"

    def __init__(self, playbook: str, environment: t.Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.playbook, self.environment = playbook, environment
        #: The body of each request that has launched a job.
        self.launches: list[t.Any] = []
        self.jobs: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.PATH.removesuffix('v2/')}"

    def launch(self, body: t.Any) -> None:
        self.launches.append(body)
        command = ["ansible-playbook", str(EXAMPLES / self.playbook), "-e",
                   json.dumps(body["extra_vars"])]
        self.jobs.append(subprocess.Popen(command, env=dict(self.environment)))

    def status(self) -> str:
        return {None: "running", 0: "successful"}.get(self.jobs[-1].poll(), "failed")

    @contextlib.contextmanager
    def serving(self) -> t.Iterator[AutomationController]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            for job in self.jobs:
                job.wait(60)


class _Api(http.server.BaseHTTPRequestHandler):
    server: AutomationController
    JOB_TEMPLATE: t.ClassVar = {
        "id": 7, "type": "job_template", "name": "Rollback",
        "related": {"launch": f"{AutomationController.PATH}job_templates/7/launch/"},
        "summary_fields": {"organization": {"name": "Default"}},
        **{f"ask_{name}_on_launch": False
           for name in ("limit", "labels", "inventory", "variables")}}

    def do_GET(self) -> None:
        job = {"id": 11, "status": self.server.status() if self.server.jobs else "new",
               "created": "2026-01-01T00:00:00Z"}
        self._answer({"config/": {"version": "4.7"},
                      "unified_job_templates/": {"results": [self.JOB_TEMPLATE]},
                      "jobs/11/": job})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == self.JOB_TEMPLATE["related"]["launch"]:
            self.server.launch(body)
        self._answer({"job_templates/7/launch/": {"url": f"{AutomationController.PATH}jobs/11/"}})

    def _answer(self, answers: dict[str, t.Any]) -> None:
        path = self.path.partition("?")[0].removeprefix(AutomationController.PATH)
        body = json.dumps(answers.get(path, {})).encode()
        self.send_response(200 if path in answers else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_unused: t.Any) -> None:
        """Print no log."""

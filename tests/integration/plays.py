# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run ad-hoc commands and the collection's playbooks, with an HTTP server for their checks."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading

import ansible_cli
from objects import pod_counts
from proc import descendants

STAGES = ["10%", "50%", "100%"]


def ad_hoc_command(namespace, module="rolling_update", **options):
    arguments = json.dumps({"namespace": namespace.name, **options})
    return ["ansible", "localhost", "-m", f"baton.kubernetes.{module}", "-a", arguments]


def run_ad_hoc(namespace, environment, succeeds=True, **options):
    process = ansible_cli.run(
        ad_hoc_command(namespace, **options),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (process.returncode == 0) == succeeds, process.stdout + process.stderr
    return json.loads(process.stdout.partition("=>")[2]), process.stderr


class CheckServer(http.server.ThreadingHTTPServer):
    """HTTP server of the checks: a check requests the path of its stage, such as /10%25."""

    daemon_threads = True

    def __init__(self, namespace=None):
        super().__init__(("127.0.0.1", 0), CheckHandler)
        self.namespace = namespace
        self.requests = []
        self.failing_stages = set()
        #: These stages get no answer until the server stops.
        self.unanswered_stages = set()
        #: Actions of another client before the answer to a check, by stage.
        self.actions = {}
        self.closing = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()
        return super().__enter__()

    def __exit__(self, *exception):
        self.closing.set()
        self.shutdown()
        self._thread.join()
        super().__exit__(*exception)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class CheckHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, stage = self.server, self.path.strip("/").replace("%25", "%")
        server.requests.append((stage, *(pod_counts(server.namespace) if server.namespace else ())))
        server.actions.get(stage, lambda: None)()
        if stage in server.unanswered_stages:
            server.closing.wait(60)
        with contextlib.suppress(OSError):  # the client may be dead
            self.send_response(503 if stage in server.failing_stages else 200)
            self.end_headers()

    def log_message(self, *_unused):
        pass


class Playbooks:
    def __init__(self, environment, folder, server):
        self.folder = folder
        self.default_variables = (
            {"controller_namespace": server.namespace.name} if server.namespace else {}
        )
        self.environment = {**environment, "ANSIBLE_SHOW_CUSTOM_STATS": "true"}
        conditions = ["image_bump_pods | length == image_bump_sizes.new > 0",
                      "image_bump_pods | map(attribute='ip') is all"]
        self.write("smoke.yml", [
            {"name": "Check the list of new pods", "ansible.builtin.assert": {"that": conditions}},
            {"name": "Call the check server",
             "ansible.builtin.uri": {"url": server.url + "{{ image_bump_stage | urlencode }}"}}])
        self.write(
            "write_report_data.yml",
            [
                {
                    "name": "Write the data of the report",
                    "ansible.builtin.copy": {
                        "content": "{{ image_bump_report_data | to_json }}",
                        "dest": str(folder / "report_data.json"),
                        "mode": "0600",
                    },
                }
            ],
        )
        self.write("fail.yml",
                   [{"name": "Not today",
                     "ansible.builtin.fail": {"msg": "the shop is closed for stock-taking"}}])

    def write(self, name, content):
        (self.folder / name).write_text(json.dumps(content))

    @property
    def report_data(self):
        return json.loads((self.folder / "report_data.json").read_text())

    def start(self, playbook, *options, **variables):
        extra = json.dumps({"controller": "foo", **self.default_variables, **variables})
        return self._start("ansible-playbook", f"baton.kubernetes.{playbook}", "-e", extra,
                           *options)

    def run(self, playbook, *options, succeeds=True, **variables):
        return self._wait(self.start(playbook, *options, **variables), succeeds)

    def run_command(self, *command, succeeds=True):
        return self._wait(self._start(*command), succeeds)

    def _start(self, *command):
        return ansible_cli.Popen(command, cwd=self.folder, env=self.environment,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, start_new_session=True)

    def _wait(self, process, succeeds):
        output, _none = process.communicate(timeout=300)
        print(output)  # pytest shows it if the test fails
        assert (process.returncode == 0) == succeeds
        return output

    def image_bump(self, *options, succeeds=True, **variables):
        defaults = {
            "image": "myimage:v2",
            "stages": STAGES,
            "verify_tasks": ["smoke.yml"],
            "max_surge": "100%",
            "after_tasks": ["write_report_data.yml"],
            "failure_tasks": ["write_report_data.yml"],
        }
        return self.run("image_bump", *options, succeeds=succeeds, **{**defaults, **variables})


def kill_processes(process):
    """Kill a process and all its descendants, which include Ansible's workers in separate sessions.
    """
    pids = descendants(process.pid)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()

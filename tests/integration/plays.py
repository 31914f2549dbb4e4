# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ad-hoc tasks and the collection's playbooks as processes, with task files, and a shop that
answers their HTTP checks.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import threading

from proc import descendants

#: The stages of an update, unless a test wants others.
STAGES = ["10%", "50%", "100%"]


def ad_hoc(namespace, **options):
    """The command of an ad-hoc task."""
    arguments = json.dumps({"namespace": namespace.name, **options})
    return ["ansible", "localhost", "-m", "baton.kubernetes.rolling_update", "-a", arguments]


def rolled(namespace, environment, succeeds=True, **options):
    """Return the result of an ad-hoc task, and its output."""
    process = subprocess.run(ad_hoc(namespace, **options), env=environment, capture_output=True,
                             text=True, timeout=300,
                             check=False)
    assert (process.returncode == 0) == succeeds, process.stdout + process.stderr
    return json.loads(process.stdout.partition("=>")[2]), process.stderr


class Shop(http.server.ThreadingHTTPServer):
    """Answers the checks (/10%25 etc.) and records each with the number of old and new pods in the
    namespace.
    """

    daemon_threads = True

    def __init__(self, namespace=None):
        super().__init__(("127.0.0.1", 0), Answer)
        self.namespace = namespace
        self.asked = []
        self.broken = set()
        #: Stages whose answer never comes.
        self.silent = set()
        #: Action of another client during the check of a stage, by stage.
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


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        shop, stage = self.server, self.path.strip("/").replace("%25", "%")
        shop.asked.append((stage, *(versions(shop.namespace) if shop.namespace else ())))
        shop.actions.get(stage, bool)()
        if stage in shop.silent:
            shop.closing.wait(60)
        with contextlib.suppress(OSError):  # the client may be dead
            self.send_response(503 if stage in shop.broken else 200)
            self.end_headers()

    def log_message(self, *_unused):
        pass


def versions(namespace):
    """How many pods run v1, and how many another image."""
    images = [pod["spec"]["containers"][0]["image"] for pod in namespace.pods()]
    return images.count("myimage:v1"), len(images) - images.count("myimage:v1")


class Playbooks:
    """Runs the collection's playbooks by their names, with task files beside them."""

    def __init__(self, environment, folder, shop):
        self.folder = folder
        #: Variables of every run.
        self.common = {"controller_namespace": shop.namespace.name} if shop.namespace else {}
        self.environment = {**environment, "ANSIBLE_SHOW_CUSTOM_STATS": "true"}
        pods = ["image_bump_pods | length == image_bump_sizes.new > 0",
                "image_bump_pods | map(attribute='ip') is all"]
        self.write("smoke.yml", [
            {"name": "The new pods are told", "ansible.builtin.assert": {"that": pods}},
            {"name": "The shop answers",
             "ansible.builtin.uri": {"url": shop.url + "{{ image_bump_stage | urlencode }}"}}])
        self.write("tell.yml", [{"name": "Write what is known", "ansible.builtin.copy": {
            "content": "{{ image_bump_report_data | to_json }}", "dest": str(folder / "told.json"),
            "mode": "0600"}}])
        self.write("no.yml",
                   [{"name": "Not today",
                     "ansible.builtin.fail": {"msg": "the shop is closed for stock-taking"}}])

    def write(self, name, content):
        (self.folder / name).write_text(json.dumps(content))

    @property
    def told(self):
        """Return the data for a report, written by a hook."""
        return json.loads((self.folder / "told.json").read_text())

    def start(self, playbook, *options, **variables):
        """Start a playbook of the collection in its own process group."""
        extra = json.dumps({"controller": "foo", **self.common, **variables})
        return self._start("ansible-playbook", f"baton.kubernetes.{playbook}", "-e", extra,
                           *options)

    def run(self, playbook, *options, succeeds=True, **variables):
        """Run a playbook of the collection and return its whole output."""
        return self._end(self.start(playbook, *options, **variables), succeeds)

    def command(self, *command, succeeds=True):
        """The output of any command."""
        return self._end(self._start(*command), succeeds)

    def _start(self, *command):
        return subprocess.Popen(command, cwd=self.folder, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, start_new_session=True)

    def _end(self, process, succeeds):
        output, _none = process.communicate(timeout=300)
        print(output)  # shown if the test fails
        assert (process.returncode == 0) == succeeds
        return output

    def bump(self, *options, succeeds=True, **variables):
        """In three stages with the HTTP check, unless told otherwise."""
        usual = {"image": "myimage:v2", "stages": STAGES, "verify_tasks": ["smoke.yml"],
                 "max_surge": "100%",
                 "after_tasks": ["tell.yml"], "failure_tasks": ["tell.yml"]}
        return self.run("image_bump", *options, succeeds=succeeds, **{**usual, **variables})


def kill(process):
    """SIGKILL, and not only for the process group: workers are sessions of their own."""
    family = descendants(process.pid)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()

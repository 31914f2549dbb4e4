# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test the recipes of docs/how-to/notifications.md with an HTTP receiver on this machine."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from pathlib import Path

import ansible_cli
import pytest
import yaml

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "notifications.md"
RECIPES = {block.split("\n", 1)[0].lstrip("# "): yaml.safe_load(block)
           for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"),
                                   re.DOTALL)}
SECRET, TOKEN = "T0secretB0secret", "s3cret-t0ken"


class Receiver(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, status=200):
        super().__init__(("127.0.0.1", 0), MessageHandler)
        self.status, self.messages, self.authorizations = status, {}, []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return super().__enter__()

    def __exit__(self, *exception):
        self.shutdown()
        super().__exit__(*exception)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class MessageHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.messages.setdefault(self.path, []).append(json.loads(body))
        self.server.authorizations.append(self.headers["Authorization"])
        with contextlib.suppress(OSError):
            self.send_response(self.server.status)
            self.end_headers()

    def log_message(self, *_unused):
        pass


@pytest.fixture
def run_play(namespace, ansible_environment, tmp_path):
    """Provide a function that runs the play of the page with -vvv, and returns its output."""
    for name in ("chat.yml", "webhook.yml"):
        (tmp_path / name).write_text(json.dumps(RECIPES[name]))

    def run_play(receiver_url, succeeds=True, **variables):
        (play,) = RECIPES["play.yml"]
        role = {**play["roles"][0], "image_bump_namespace": namespace.name, **variables}
        (tmp_path / "play.yml").write_text(json.dumps([{**play, "roles": [role]}]))
        environment = {**ansible_environment, "CHAT_WEBHOOK": f"{receiver_url}/{SECRET}",
                       "WEBHOOK_URL": f"{receiver_url}/hook",
                       "WEBHOOK_TOKEN": TOKEN}
        run = ansible_cli.run(["ansible-playbook", "-vvv", "play.yml"], cwd=tmp_path,
                              env=environment, capture_output=True,
                              text=True, timeout=240, check=False)
        output = run.stdout + run.stderr
        assert (run.returncode == 0) == succeeds, output
        assert SECRET not in output and TOKEN not in output
        return output

    return run_play


@pytest.mark.full
@pytest.mark.parametrize("stages, outcome, texts", [
    (["50%", "100%"], "updated", ["foo is updated to myimage:v2", ":white_check_mark:"]),
    (["50%"], "paused", ["foo is paused at 1 of 2", "waiting for approval", ":raised_hand:"])])
def test_notification_shows_the_outcome(namespace, run_play, stages, outcome, texts):
    namespace.make_rc(2)
    with Receiver() as receiver:
        output = run_play(receiver.url, image_bump_stages=stages)

    (chat,), (hook,) = receiver.messages[f"/{SECRET}"], receiver.messages["/hook"]
    assert all(text in chat["text"] for text in [*texts, f"*{namespace.name}/foo*: {outcome}"])
    assert (hook["outcome"] == outcome and hook["message"] in chat["text"]
            and hook["rollout"]["image"] == "myimage:v2")
    assert receiver.authorizations.count(f"Bearer {TOKEN}") == 1
    assert "Warning: the chat" not in output


@pytest.mark.full
@pytest.mark.fake_nodes("an image that cannot be pulled")
def test_notification_of_a_failure_shows_the_cause_and_escapes_mentions(
        namespace, run_play, tmp_path):
    namespace.make_rc(2)
    check = [{"name": "Fail",
              "ansible.builtin.fail": {"msg": '<!channel> said "no" & \\ [1, 2] 日本'}}]
    (tmp_path / "check.yml").write_text(json.dumps(check))
    with Receiver() as receiver:
        run_play(receiver.url, succeeds=False, image_bump_image="myimage:v2-absent",
                 image_bump_failure_grace=1)
        run_play(receiver.url, succeeds=False, image_bump_verify_tasks=["check.yml"])

    (image_chat, check_chat), (image_hook, check_hook) = (
        receiver.messages[f"/{SECRET}"],
        receiver.messages["/hook"],
    )
    assert (
        "rolled back" in image_chat["text"]
        and "myimage:v2-absent: not found" in image_chat["text"]
        and ":x:" in image_chat["text"]
    )
    assert (image_hook["outcome"] == check_hook["outcome"] == "rolled_back"
            and image_hook["stage"] == "50%")
    assert ('&lt;!channel&gt; said "no" &amp; \\ [1, 2] 日本' in check_chat["text"]
            and "<!channel>" not in check_chat["text"])
    assert '<!channel> said "no" & \\ [1, 2] 日本' in check_hook["message"]


@pytest.mark.full
@pytest.mark.parametrize("status", [None, 500], ids=["connection refused", "status 500"])
def test_failing_receiver_does_not_fail_the_update(namespace, run_play, status):
    namespace.make_rc(1)
    with Receiver(status or 200) as receiver:
        url = receiver.url if status else "http://127.0.0.1:9"
        output = run_play(url, image_bump_stages=["100%"])

    assert ("Warning: the chat was not notified" in output
            and "myimage:v2: 1 of 1 replicas available" in output)

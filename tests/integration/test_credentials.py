# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Test that an update survives expired credentials, and that secrets are never shown or stored."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import http.server
import json
import os
import re
import select
import socket
import socketserver
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import ansible_cli
import pytest
from credentials import PASSWORD, Case, credential_cases
from kubernetes.config import incluster_config
from objects import eventually
from writes import action_after_write

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import (
    USER_AGENT,
    Connection,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import (
    KubernetesGateway,
)
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import parse_request
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

#: Exec plugin that returns the token in TOKEN_FILE, and logs each call.
PLUGIN = """#!/bin/sh
echo asked >> "$0.log"
token=$(cat "$TOKEN_FILE")
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
echo ' "status": {"token": "'"$token"'"}}'
"""

# Expiring tokens


class Token:
    """A token in a file. It expires with the Secret to which it is bound."""

    def __init__(self, namespace, name):
        self.namespace, self.name, self.count = namespace, name, 0
        self.file = namespace.write_file(name, "")
        self.renew()

    def renew(self):
        self.count += 1
        secret = self.namespace.create("secrets",
                                       {"metadata": {"name": f"{self.name}-{self.count}"}})
        reference = {"kind": "Secret", "apiVersion": "v1", "name": secret["metadata"]["name"]}
        self.value = self.namespace.new_token(boundObjectRef=reference)
        Path(self.file).write_text(f"{self.value}\n", encoding="utf-8")

    def expire(self):
        """Delete the Secret, and wait for the API server, which caches tokens for 10 s."""
        self.namespace.remove(f"{self.name}-{self.count}", resource="secrets")
        gateway_with_old_token = KubernetesGateway(
            Connection({"kubeconfig": self.namespace.kubeconfig, "api_key": self.value}, {}), "none"
        )

        def is_refused():
            with pytest.raises(RolloutError) as error:
                gateway_with_old_token.items()
            return "401" in error.value.what

        eventually(is_refused, "the expiry of the token")


def update_with_expiring_token(namespace, name, token, kubeconfig):
    """Update a controller with a token that expires after the fifth write."""
    def expire():
        token.expire()
        token.renew()

    gateway = KubernetesGateway(Connection({"kubeconfig": kubeconfig}, {}), namespace.name)
    action_after_write(5, expire)(gateway)
    try:
        request = parse_request({"name": name, "namespace": namespace.name, "image": "myimage:v2"})
        return driver.run(choose(request), request, gateway, driver.Clock())
    except RolloutError as error:
        return error
    finally:
        gateway.close()


@pytest.mark.full
def test_expired_token_is_replaced_during_the_update(namespace, monkeypatch):
    """An inline token cannot be read again, so its task fails. A rerun with a new token
    resumes the update.
    """
    sources = ("plugin", "file", "pod", "inline")
    tokens = {}
    for source in sources:
        namespace.make_rc(2, name=source)
        tokens[source] = Token(namespace, source)
    script = namespace.write_file("script", PLUGIN)
    server = urlsplit(namespace.client.configuration.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", tokens["pod"].file)
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME",
                        namespace.client.configuration.ssl_ca_cert)
    kubeconfigs = {
        "plugin": namespace.kubeconfig_of({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [script],
            "interactiveMode": "Never",
            "env": [{"name": "TOKEN_FILE", "value": tokens["plugin"].file}]}}),
        "file": namespace.kubeconfig_of({"tokenFile": tokens["file"].file}),
        "pod": None,
        "inline": namespace.kubeconfig_of({"token": tokens["inline"].value}),
    }

    with concurrent.futures.ThreadPoolExecutor() as pool:
        outcomes = dict(
            zip(
                sources,
                pool.map(
                    lambda source: update_with_expiring_token(
                        namespace, source, tokens[source], kubeconfigs[source]
                    ),
                    sources,
                ),
                strict=True,
            )
        )

    for source in ("plugin", "file", "pod"):
        outcome = outcomes[source]
        assert not isinstance(outcome, RolloutError), (source, outcome.message)
        assert outcome["changed"] and outcome["rollout"]["phase"] == "complete", source
    assert Path(script + ".log").read_text().splitlines() == ["asked", "asked"]
    error = outcomes["inline"]
    assert ("does not accept the credentials (401)" in error.what
            and "renew the token" in error.next_command)
    assert error.progress["changed"] and error.progress["rollout"]["phase"] == "progressing"
    assert tokens["inline"].value not in repr(error.as_result())
    assert namespace.roll(name="inline", image="myimage:v2")["changed"]
    assert namespace.rc_names() == sorted(sources) and len(namespace.pods()) == 2 * len(sources)


# Secrets that must not be shown

class SecretScanner:
    """Searches all command lines of this machine, and all files in a folder, for secrets."""

    def __init__(self, folder: Path, secrets: list[str]) -> None:
        self.folder, self.secrets = folder, [secret.encode() for secret in secrets]
        self.findings: set[str] = set()
        self.scan_count = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._scan, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._stopped.set()
        self._thread.join()

    def _scan(self) -> None:
        while not self._stopped.wait(0.05):
            self.scan_count += 1
            files = [Path(folder, name) for folder, _folders, names in os.walk(self.folder)
                     for name in names]
            for path in (*files, *Path("/proc").glob("[0-9]*/cmdline")):
                with contextlib.suppress(OSError):
                    content = path.read_bytes()
                    if any(secret in content for secret in self.secrets):
                        self.findings.add(path.name if path in files
                                          else content.replace(b"\0",
                                                               b" ").decode(errors="replace")[:200])


class Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.requests = []


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self):
        self.server.requests.append(self.headers)
        if (self.headers["Proxy-Authorization"]
                != "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()):
            self.send_error(407)
            return
        host, _colon, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as server:
            self.send_response(200)
            self.end_headers()
            peers = {self.connection: server, server: self.connection}
            while True:
                for sender in select.select(list(peers), [], [])[0]:
                    if not (data := sender.recv(65536)):
                        return
                    peers[sender].sendall(data)

    def log_message(self, *_arguments):
        pass


@pytest.fixture
def proxy(monkeypatch):
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with Proxy() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05},
                         daemon=True).start()
        yield server
        server.shutdown()


def all_cases(namespace, proxy=""):
    configuration = namespace.client.configuration
    invalid_options = {"kubeconfig": namespace.kubeconfig, "proxy_headers": f"me:{PASSWORD}"}
    return {"proxy-headers-as-text": Case([PASSWORD], invalid_options,
                                          error_pattern="is not a mapping"),
            **credential_cases(configuration.host, configuration.ssl_ca_cert, namespace.token,
                               namespace.write_file, proxy)}


def test_proxy_credentials_are_sent_and_not_shown(namespace, proxy):
    namespace.make_rc(1)
    for options in ({"proxy": f"http://me:{PASSWORD}@{proxy.address}"},
                    {"proxy": f"http://{proxy.address}",
                     "proxy_headers": {"proxy_basic_auth": f"me:{PASSWORD}"}}):
        with contextlib.closing(namespace.gateway(**options)) as gateway:
            assert [item["metadata"]["name"] for item in gateway.items()] == ["foo"]
    assert (len(proxy.requests) >= 2
            and {headers["User-Agent"] for headers in proxy.requests} == {USER_AGENT})

    with pytest.raises(RolloutError) as error, contextlib.closing(
            namespace.gateway(proxy=f"http://me:wrong-{PASSWORD}@{proxy.address}")) as gateway:
        gateway.items()

    assert "407" in error.value.why and PASSWORD not in repr(error.value.as_result())


@pytest.mark.full
def test_secret_option_is_never_shown(namespace, ansible_environment, tmp_path, proxy):
    """Ansible runs with -vvvv and --diff."""
    cases = {name: case
             for name, case in all_cases(namespace, proxy.address).items()
             if not case.environment}

    output, scanner = play(namespace, ansible_environment, tmp_path, cases)

    assert scanner.scan_count > 50 and scanner.findings == set()
    for name, case in cases.items():
        assert re.search(case.error_pattern or f"{name} is updated to myimage:v2", output), (
            name, output)
    assert output.count("resume_command") >= sum(not case.error_pattern for case in cases.values())
    assert remaining_files(tmp_path) == []


@pytest.mark.full
@pytest.mark.parametrize("name",
                         ["api-key-variable", "kubeconfig-as-json-variable", "plugin-variable",
                          "proxy-headers-variable"])
def test_secret_of_the_environment_is_never_shown(namespace, ansible_environment, tmp_path, proxy,
                                                  name):
    """Pipelining is off, so Ansible writes the options to temporary files."""
    environment = {**ansible_environment, "K8S_AUTH_KUBECONFIG": "", "ANSIBLE_PIPELINING": "0"}

    output, scanner = play(namespace, environment, tmp_path,
                           {name: all_cases(namespace, proxy.address)[name]})

    assert scanner.scan_count > 5 and scanner.findings == set()
    assert f"{name} is updated to myimage:v2" in output
    assert remaining_files(tmp_path) == []


@pytest.mark.full
def test_secret_option_is_in_no_file_if_the_user_disables_pipelining(
        namespace, ansible_environment, tmp_path):
    cases = {"api-key": all_cases(namespace)["api-key"]}

    _output, scanner = play(namespace, {**ansible_environment, "ANSIBLE_PIPELINING": "0"}, tmp_path,
                            cases)

    assert scanner.findings == set() and remaining_files(tmp_path) == []


@pytest.mark.full
def test_kubeconfig_is_read_from_files_and_decrypted_in_memory(
        namespace, ansible_environment, tmp_path):
    """A relative path is searched for as in kubernetes.core."""
    files, role = tmp_path / "files", tmp_path / "roles" / "shop"
    for folder in (files, role / "files", role / "tasks", tmp_path / "temp"):
        folder.mkdir(parents=True)
    kubeconfig_text = Path(namespace.kubeconfig).read_text("utf-8")
    password_file = tmp_path / "password"
    (files / "plain.yml").write_text(kubeconfig_text)
    (role / "files" / "vault.yml").write_text(kubeconfig_text)
    password_file.write_text(PASSWORD)
    vault = ["--vault-password-file", str(password_file)]
    environment = {**ansible_environment, "K8S_AUTH_KUBECONFIG": "",
                   "ANSIBLE_HOME": str(tmp_path / "temp"),
                   "ANSIBLE_LOCAL_TEMP": str(tmp_path / "temp" / "local"),
                   "TMPDIR": str(tmp_path / "temp")}
    subprocess.run(["ansible-vault", "encrypt", *vault, str(role / "files" / "vault.yml")],
                   env=environment, check=True,
                   capture_output=True)

    def tasks(name, kubeconfig):
        namespace.make_rc(1, name=name)
        common = {"name": name, "namespace": namespace.name, "kubeconfig": kubeconfig}
        return [{"baton.kubernetes.rolling_update": {**common, "image": "myimage:v2"},
                 "ignore_errors": True},
                {"baton.kubernetes.rolling_update_info": common, "ignore_errors": True}]

    role_tasks = [*tasks("of-role", "vault.yml"), *tasks("two", f"vault.yml:{files}/plain.yml")]
    (role / "tasks" / "main.yml").write_text(json.dumps(role_tasks))
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "localhost", "gather_facts": False,
                                                    "roles": ["shop"],
                                                    "tasks": [*tasks("of-play", "plain.yml"),
                                                              *tasks("none", "not/found.yml")]}]))
    command = ["ansible-playbook", "-vvv", str(tmp_path / "play.yml")]
    with SecretScanner(tmp_path / "temp", [namespace.token]) as scanner:
        run = ansible_cli.run([*command, *vault], env=environment, capture_output=True, text=True,
                              timeout=240, check=False)
    run_without_password = ansible_cli.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )

    output = run.stdout + run.stderr + run_without_password.stdout + run_without_password.stderr
    for name in ("of-role", "of-play"):
        assert (f"{name} is updated to myimage:v2" in run.stdout
                and f'"name": "{name}"' in run.stdout), output
    assert run.stdout.count("there is no kubeconfig at not/found.yml") >= 2, output
    assert run.stdout.count("is encrypted: it cannot be combined with other files") >= 2, output
    assert ("vault secrets" in run_without_password.stdout + run_without_password.stderr
            and "of-play already has the desired template" in run_without_password.stdout)
    assert (scanner.scan_count > 20 and scanner.findings == set() and namespace.token not in output
            and "Traceback" not in output)


def play(namespace, environment, tmp_path, cases):
    tasks = []
    for name, case in cases.items():
        namespace.make_rc(1, name=name)
        environment = {**environment, **case.environment}
        update = {"name": name, "namespace": namespace.name, "image": "myimage:v2", **case.options}
        info = {"name": name, "namespace": namespace.name, **case.options}
        tasks += [{"baton.kubernetes.rolling_update": update, "ignore_errors": True},
                  {"baton.kubernetes.rolling_update_info": info, "ignore_errors": True}]
    file, temp = tmp_path / "play.yml", tmp_path / "temp"
    file.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]),
                    encoding="utf-8")
    temp.mkdir()
    folders = {"TMPDIR": str(temp), "ANSIBLE_HOME": str(temp),
               "ANSIBLE_REMOTE_TEMP": str(temp / "remote"),
               "ANSIBLE_LOCAL_TEMP": str(temp / "local")}
    with SecretScanner(temp,
                       sorted({line for case in cases.values() for secret in case.secrets
                               for line in secret.splitlines()})) as scanner:
        process = ansible_cli.run(["ansible-playbook", "-vvvv", "--diff", str(file)],
                                  env={"ANSIBLE_PIPELINING": "1", **environment, **folders},
                                  capture_output=True, text=True, timeout=600, check=False)
    output = process.stdout + process.stderr
    assert "Traceback" not in output
    secrets = [*scanner.secrets,
               *(argument.encode() for case in cases.values() for argument in case.arguments)]
    assert [secret for secret in secrets if secret.decode() in output] == []
    return output, scanner


def remaining_files(tmp_path):
    return [path
            for path in (tmp_path / "temp").rglob("*") if path.is_file()
            and path.name != "galaxy_token"]

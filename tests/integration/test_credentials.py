# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Credentials that expire in the middle of an update, and credentials that nobody may see."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import datetime
import json
import os
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kubernetes.config import incluster_config
from namespace import after_write, eventually

from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.connection import Connection
from ansible_collections.baton.kubernetes.plugins.module_utils.cluster.kubernetes import KubernetesGateway
from ansible_collections.baton.kubernetes.plugins.module_utils.flows.choice import choose
from ansible_collections.baton.kubernetes.plugins.module_utils.model.errors import RolloutError
from ansible_collections.baton.kubernetes.plugins.module_utils.model.options import request_from
from ansible_collections.baton.kubernetes.plugins.module_utils.run import driver

PLUGIN = """#!/bin/sh
echo asked >> "$0.log"
token=$(cat "$TOKEN_FILE")
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "'"$token"'"}}'
"""

# Tokens that expire


class Token:
    """A token in a file, of the code under test's ServiceAccount; it lives as long as the Secret that it is bound to."""

    def __init__(self, namespace, name):
        self.namespace, self.name, self.count = namespace, name, 0
        self.file = namespace.write(name, "")
        self.successor()

    def successor(self):
        """Put a new token into the file."""
        self.count += 1
        secret = self.namespace.create("secrets", {"metadata": {"name": f"{self.name}-{self.count}"}})
        reference = {"kind": "Secret", "apiVersion": "v1", "name": secret["metadata"]["name"]}
        self.value = self.namespace.new_token(boundObjectRef=reference)
        Path(self.file).write_text(f"{self.value}\n", encoding="utf-8")

    def expire(self):
        """Return when the API server refuses the token: it remembers for 10 s what it has accepted."""
        self.namespace.remove(f"{self.name}-{self.count}", resource="secrets")
        dead = KubernetesGateway(Connection({"kubeconfig": self.namespace.kubeconfig, "api_key": self.value}, {}), "none")

        def refused():
            with pytest.raises(RolloutError) as error:
                dead.items()
            return "401" in error.value.what

        eventually(refused, "the token's end")


def rolled(namespace, name, token, kubeconfig):
    """Roll a controller, and let the token expire after the fifth write, when there is another one in its place."""
    def expire():
        token.expire()
        token.successor()

    gateway = KubernetesGateway(Connection({"kubeconfig": kubeconfig}, {}), namespace.name)
    after_write(5, expire)(gateway)
    try:
        request = request_from({"name": name, "namespace": namespace.name, "image": "myimage:v2"})
        return driver.run(choose(request), request, gateway, driver.Clock())
    except RolloutError as error:
        return error
    finally:
        gateway.close()


def test_a_token_that_expires_in_the_middle(namespace, monkeypatch):
    """It is read again from where it came, once: a plugin, a file that a kubeconfig names, a pod's own file.

    Where it was given as such there is no other: the error says so, and the task goes on with a new one.
    All at once, because each has to wait until the API server forgets the old one.
    """
    ways = ("plugin", "file", "pod", "given")
    tokens = {}
    for way in ways:
        namespace.make_primary(2, name=way)
        tokens[way] = Token(namespace, way)
    script = namespace.write("script", PLUGIN)
    server = urlsplit(namespace.client.configuration.host)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", tokens["pod"].file)
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", namespace.client.configuration.ssl_ca_cert)
    kubeconfigs = {
        "plugin": namespace.kubeconfig_of({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [script], "interactiveMode": "Never",
            "env": [{"name": "TOKEN_FILE", "value": tokens["plugin"].file}]}}),
        "file": namespace.kubeconfig_of({"tokenFile": tokens["file"].file}),
        "pod": None,
        "given": namespace.kubeconfig_of({"token": tokens["given"].value}),
    }

    with concurrent.futures.ThreadPoolExecutor() as pool:
        ends = dict(zip(ways, pool.map(lambda way: rolled(namespace, way, tokens[way], kubeconfigs[way]), ways), strict=True))

    for way in ("plugin", "file", "pod"):
        assert not isinstance(ends[way], RolloutError), (way, ends[way].message)
        assert ends[way]["changed"] and ends[way]["rollout"]["phase"] == "complete", way
    assert Path(script + ".log").read_text().splitlines() == ["asked", "asked"]
    error = ends["given"]
    assert "does not accept the credentials (401)" in error.what and "renew the token" in error.next_command
    assert error.progress["changed"] and error.progress["rollout"]["phase"] == "progressing"
    assert tokens["given"].value not in repr(error.as_result())
    assert namespace.roll(name="given", image="myimage:v2")["changed"]
    assert namespace.rcs() == sorted(ways) and len(namespace.pods()) == 2 * len(ways)


# What nobody may see

ECHO = """#!/bin/sh
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "'"$TOKEN"'"}}'
"""


class Spy:
    """Looks for secrets in all command lines of this machine and in all files below a folder, as long as it is open."""

    def __init__(self, folder: Path, secrets: list[str]) -> None:
        self.folder, self.secrets = folder, [secret.encode() for secret in secrets]
        self.found: set[str] = set()
        self.looks = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.looks += 1
            files = [Path(folder, name) for folder, _folders, names in os.walk(self.folder) for name in names]
            for path in (*files, *Path("/proc").glob("[0-9]*/cmdline")):
                with contextlib.suppress(OSError):
                    content = path.read_bytes()
                    if any(secret in content for secret in self.secrets):
                        self.found.add(path.name if path in files else content.replace(b"\0", b" ").decode(errors="replace")[:200])


def certificate():
    """A certificate that signs itself, and its key, as PEM. The API server does not ask for it, but the client reads it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "me")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
              .not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256()))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return signed.public_bytes(serialization.Encoding.PEM), key.private_bytes(*form)


def credentials(namespace):
    """Ways to give credentials: options of the task, and what is secret of them; and the same for the environment."""
    token, configuration = namespace.token, namespace.client.configuration
    server = {"host": configuration.host, "ca_cert": configuration.ssl_ca_cert}
    signed, key = certificate()
    data = {"client-certificate-data": base64.b64encode(signed).decode(), "client-key-data": base64.b64encode(key).decode()}
    with_key = namespace.kubeconfig_of({"token": token, **data})
    of_key = [token, data["client-key-data"], key.decode().splitlines()[1]]
    plugin = namespace.kubeconfig_of({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [namespace.write("echo", ECHO)],
        "interactiveMode": "Never", "env": [{"name": "TOKEN", "value": token}]}})
    password = "correct-horse-battery-staple"
    of_password = [password, base64.b64encode(f"me:{password}".encode()).decode()]
    options = {
        "api-key": ({**server, "api_key": token}, [token]),
        "password": ({**server, "username": "me", "password": password}, of_password),
        "kubeconfig": ({"kubeconfig": with_key}, of_key),
        "kubeconfig-as-text": ({"kubeconfig": yaml.safe_dump(with_key, width=60)}, of_key),
        "kubeconfig-s-file": ({"kubeconfig": namespace.write("with-key", json.dumps(with_key))}, of_key),
        "plugin": ({"kubeconfig": plugin}, [token]),
    }
    environment = {
        "api-key": ({"K8S_AUTH_HOST": server["host"], "K8S_AUTH_CA_CERT": server["ca_cert"], "K8S_AUTH_API_KEY": token,
                     "K8S_AUTH_USERNAME": "me", "K8S_AUTH_PASSWORD": password}, [token, *of_password]),
        "kubeconfig": ({"K8S_AUTH_KUBECONFIG": json.dumps(with_key)}, of_key),
    }
    return options, environment


def test_a_secret_among_the_options_is_shown_nowhere(namespace, ansible_environment, tmp_path):
    """Not with -vvvv and --diff, in no temporary file and no list of processes while the tasks run, and left nowhere."""
    options, _environment = credentials(namespace)

    output, spy = play(namespace, ansible_environment, tmp_path, options)

    assert spy.looks > 50 and spy.found == set()
    assert [secret for secret in spy.secrets if secret.decode() in output] == []
    for way in options:
        expected = "system:anonymous" if way == "password" else f"{way} is updated to myimage:v2"
        assert expected in output, output
    assert left(tmp_path) == []


@pytest.mark.parametrize("way", ["api-key", "kubeconfig"])
def test_a_secret_in_the_environment_is_shown_nowhere(namespace, ansible_environment, tmp_path, way):
    """Nor is it written to a file where Ansible writes modules and their options to files, as it does unless it pipelines."""
    environment, secrets = credentials(namespace)[1][way]

    output, spy = play(namespace, {**ansible_environment, "K8S_AUTH_KUBECONFIG": "", **environment, "ANSIBLE_PIPELINING": "0"},
                       tmp_path, {way: ({}, secrets)})

    assert spy.looks > 15 and spy.found == set()
    assert [secret for secret in secrets if secret in output] == []
    assert f"{way} is updated to myimage:v2" in output
    assert left(tmp_path) == []


def test_a_secret_among_the_options_is_in_no_file_without_pipelining_either(namespace, ansible_environment, tmp_path):
    """Ansible would write a module and its options to a file; with a local connection the action plugin has it pipeline."""
    options = {"api-key": credentials(namespace)[0]["api-key"]}

    _output, spy = play(namespace, {**ansible_environment, "ANSIBLE_PIPELINING": "0"}, tmp_path, options)

    assert spy.found == set()


def play(namespace, environment, tmp_path, ways):
    """Run a task for each way, on a controller of its own, with a spy beside it; what Ansible has printed, and the spy."""
    tasks = []
    for name, (options, _secrets) in ways.items():
        namespace.make_primary(1, name=name)
        arguments = {"name": name, "namespace": namespace.name, "image": "myimage:v2", **options}
        tasks.append({"baton.kubernetes.rolling_update": arguments, "ignore_errors": True})
    file, temp = tmp_path / "play.yml", tmp_path / "temp"
    file.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]), encoding="utf-8")
    temp.mkdir()
    places = {"TMPDIR": str(temp), "ANSIBLE_HOME": str(temp), "ANSIBLE_REMOTE_TEMP": str(temp / "remote"),
              "ANSIBLE_LOCAL_TEMP": str(temp / "local")}
    with Spy(temp, sorted({secret for _options, secrets in ways.values() for secret in secrets})) as spy:
        process = subprocess.run(["ansible-playbook", "-vvvv", "--diff", str(file)],
                                 env={"ANSIBLE_PIPELINING": "1", **environment, **places},
                                 capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in process.stdout + process.stderr
    return process.stdout + process.stderr, spy


def left(tmp_path):
    """Temporary files that are there when Ansible has ended."""
    return [path for path in (tmp_path / "temp").rglob("*") if path.is_file() and path.name != "galaxy_token"]

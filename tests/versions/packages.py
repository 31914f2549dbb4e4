# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Rows for versions of the package kubernetes, and of the Python that runs the modules."""

from __future__ import annotations

import base64
import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import authority
import cores
from common import COLLECTIONS, PROGRAMS, ansible_environment, namespace_for
from embedded import Cluster
from environments import describe, find_python, provide_environment
from namespace import Namespace
from objects import manifest
from row import AnyCluster, Row

#: The package's last release of each major version, with a Python version that it supports.
PACKAGE_VERSIONS = {
    "24.2.0": "3.9", "25.3.0": "3.9", "26.1.0": "3.10", "27.2.0": "3.10", "28.1.0": "3.11",
    "29.0.0": "3.11", "30.1.0": "3.11",
    "31.0.0": "3.11", "32.0.1": "3.11", "33.1.0": "3.12", "34.1.0": "3.12", "35.0.0": "3.12",
    "36.0.3": "3.13", "37.0.2": "3.13",
}
#: What pip installs to get the package kubernetes, by Python version.
REQUIREMENTS = {"3.9": "kubernetes", "3.10": "kubernetes", "3.11": "kubernetes",
                "3.12": "kubernetes", "3.13": "kubernetes"}
TOO_OLD_PYTHONS = ("3.6", "3.8")
PACKAGE, MODULE_PYTHON = "kubernetes (Python package)", "Python of the module"

#: A credential plugin. Its first call prints its first argument, a token. Later calls print the
#: second argument, if any.
PLUGIN = """#!/bin/sh
echo called >> "$0.log"
token=$1
if [ -n "$2" ] && [ "$(wc -l < "$0.log")" -gt 1 ]; then token=$2; fi
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",' \\
     '"status": {"token": "'"$token"'"}}'
"""


def rows(is_sample: bool) -> list[Row]:
    package_rows = [
        Row(PACKAGE, version, functools.partial(check_package, python_version=python_version))
        for version, python_version in PACKAGE_VERSIONS.items()]
    if is_sample:
        return package_rows[:1]
    return [*package_rows,
            *(Row(MODULE_PYTHON, python_version, check_too_old_python)
              for python_version in TOO_OLD_PYTHONS),
            *(Row(MODULE_PYTHON, python_version,
                  functools.partial(check_module_python, requirement=requirement))
              for python_version, requirement in REQUIREMENTS.items())]


def check_package(row: Row, cluster: AnyCluster, python_version: str) -> None:
    folder = provide_environment(python_version, f"kubernetes=={row.version}")
    row.other_versions = describe(folder, python_version, "urllib3")
    with namespace_for(cluster) as namespace:
        sources = sources_of_credentials(namespace)
        if isinstance(cluster, Cluster):
            sources["client-certificate"] = client_certificate(namespace, cluster)
        else:
            row.skipped["client certificate"] = ("the test cannot issue a certificate for the "
                                                 "cluster that KUBECONFIG names")
        update_with_each_source(row, namespace, folder, sources)
        update_with_module(row, namespace, folder)


def check_module_python(row: Row, cluster: AnyCluster, requirement: str) -> None:
    folder = provide_environment(row.version, requirement)
    row.other_versions = describe(folder, row.version, "kubernetes")
    with namespace_for(cluster) as namespace:
        update_with_module(row, namespace, folder)
    with row.part("reports that kubernetes is missing"):
        assert_refused(str(provide_environment(row.version) / "bin" / "python"),
                       "Failed to import the required Python library (kubernetes)")


def check_too_old_python(row: Row, _cluster: AnyCluster) -> None:
    path, version = find_python(row.version)
    row.other_versions = f"Python {version}"
    with row.part("reports that it is too old"):
        # Newer versions of ansible-core refuse this Python themselves.
        programs = cores.core_environment(cores.CORES[0]) / "bin"
        assert_refused(path, "needs Python 3.9 or newer", programs)


def update_with_module(row: Row, namespace: Namespace, folder: Path) -> None:
    with (row.part("module"),
          ansible_environment(K8S_AUTH_KUBECONFIG=namespace.kubeconfig) as variables):
        namespace.make_rc(1, name="module")
        arguments = f"name=module namespace={namespace.name} image=myimage:v2"
        result = run_module("rolling_update", arguments, str(folder / "bin" / "python"), variables)
        assert result["changed"] and result["rollout"]["phase"] == "complete", result["msg"]


def assert_refused(interpreter: str, message: str, programs: Path = PROGRAMS) -> None:
    with ansible_environment(programs) as variables:
        for name, arguments in (("rolling_update", "name=foo image=myimage:v2"),
                                ("rolling_update_info", "name=foo")):
            result = run_module(name, arguments, interpreter, variables)
            assert result["failed"] and message in result["msg"], result


def run_module(name: str, arguments: str, interpreter: str,
               variables: dict[str, str]) -> dict[str, Any]:
    # Only a variable overrides the interpreter of localhost.
    extra_variable = f"ansible_python_interpreter={interpreter}"
    run = subprocess.run(["ansible", "localhost", "-e", extra_variable,
                          "-m", f"baton.kubernetes.{name}", "-a", arguments], env=variables,
                         capture_output=True, text=True, timeout=120, check=False)
    assert ("Traceback" not in run.stdout + run.stderr
            and "=>" in run.stdout), run.stdout + run.stderr
    return json.loads(run.stdout.partition("=>")[2]) | {"failed": run.returncode != 0}


def sources_of_credentials(namespace: Namespace) -> dict[str, dict[str, Any]]:
    configuration = namespace.client.configuration

    def plugin(name: str, *tokens: str) -> dict[str, Any]:
        return kubeconfig(namespace, {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "interactiveMode": "Never",
            "args": [namespace.write_file(name, PLUGIN), *tokens]}})

    return {"token": {"host": configuration.host, "api_key": namespace.token,
                      "ca_cert": configuration.ssl_ca_cert},
            "exec-plugin": plugin("plugin", namespace.token),
            "expired-token": plugin("expired", revoked_token(namespace), namespace.token),
            "in-cluster": {}}


def client_certificate(namespace: Namespace, cluster: Cluster) -> dict[str, Any]:
    user = f"system:serviceaccount:{namespace.name}:baton"
    certificate, key = (base64.b64encode(content).decode()
                        for content in authority.new_client_certificate(cluster, user))
    return kubeconfig(namespace, {"client-certificate-data": certificate, "client-key-data": key})


def kubeconfig(namespace: Namespace, user: dict[str, Any]) -> dict[str, Any]:
    content = namespace.kubeconfig_of(user)
    cluster = content["clusters"][0]["cluster"]
    if path := cluster.pop("certificate-authority", None):
        cluster["certificate-authority-data"] = base64.b64encode(Path(path).read_bytes()).decode()
    return {"kubeconfig": content}


def revoked_token(namespace: Namespace) -> str:
    """Return a token that is invalid, because its Secret is deleted."""
    secret = namespace.create("secrets", {"metadata": {"name": "bound"}})
    token = namespace.new_token(boundObjectRef={"kind": "Secret", "apiVersion": "v1",
                                                "name": secret["metadata"]["name"]})
    namespace.remove("bound", resource="secrets")
    return token


def update_with_each_source(row: Row, namespace: Namespace, folder: Path,
                            sources: dict[str, dict[str, Any]]) -> None:
    for name in sources:
        namespace.create("replicationcontrollers", manifest(1, "myimage:v1", name))
    configuration = namespace.client.configuration
    address = urlsplit(configuration.host)
    for name in sources:
        namespace.until_available(name, 1)
    in_cluster_files = [namespace.write_file("token", namespace.token), configuration.ssl_ca_cert]
    arguments = {"namespace": namespace.name, "sources": sources, "pod": in_cluster_files}
    variables = {"PYTHONPATH": str(COLLECTIONS), "KUBERNETES_SERVICE_HOST": str(address.hostname),
                 "KUBERNETES_SERVICE_PORT": str(address.port)}
    run = subprocess.run([folder / "bin" / "python", Path(__file__).with_name("probe.py")],
                         input=json.dumps(arguments), text=True,
                         env={**os.environ, **variables}, capture_output=True, timeout=180,
                         check=False)
    if run.returncode:
        raise RuntimeError(run.stderr)
    for name, error in json.loads(run.stdout).items():
        with row.part(name.replace("-", " ")):
            assert not error, error

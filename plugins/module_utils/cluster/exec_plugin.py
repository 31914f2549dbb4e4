# Copyright (c) baton.kubernetes contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Run the exec credential plugins of a kubeconfig.

The protocol is client.authentication.k8s.io (v1 and v1beta1), without interactive plugins. This
module replaces the code of the kubernetes package. The package runs a plugin without a timeout, and
only logs a failure.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import typing as t

from ..model.errors import RolloutError
from ..model.fields import Json, mapping, objects, text

#: Seconds.
TIMEOUT = 60.0
_CLUSTER_FIELDS = ("server", "tls-server-name", "insecure-skip-tls-verify",
                   "certificate-authority-data", "proxy-url", "disable-compression")
_EXTENSION = "client.authentication.k8s.io/exec"
#: Linux limits an environment variable, with its name, "=" and a null byte, to 128 KiB
#: (MAX_ARG_STRLEN).
_MAX_INFO_LENGTH = 128 * 1024 - len("KUBERNETES_EXEC_INFO=") - 1


class Credential(t.NamedTuple):
    """The status of an ExecCredential."""

    token: str
    #: The client certificate in PEM, or "".
    certificate: str
    #: The key of the certificate in PEM, or "".
    key: str
    #: A time in RFC 3339, or "".
    expiration_time: str


def run(plugin: Json, cluster: Json, folder: str, timeout: float) -> Credential:
    """Run a plugin, and return its credential. Raises RolloutError.

    plugin, cluster: the fields `exec` and `cluster` in a kubeconfig, with the absolute path
    of the certificate authority.
    folder: the folder of the kubeconfig file with the cluster, where the plugin runs; "" for inline
    content, where the plugin runs in the current folder.
    timeout: seconds.
    """
    try:
        return _request_credential(plugin, cluster, folder, timeout)
    except (OSError, ValueError, TypeError) as error:
        raise RolloutError(
            "the credential plugin in the kubeconfig failed", why=str(error),
            next_command="log in again, or run the plugin by hand to see what it waits for",
        ) from None


def _request_credential(plugin: Json, cluster: Json, folder: str, timeout: float) -> Credential:
    for key in ("command", "apiVersion"):
        if key not in plugin:
            raise ValueError(f"exec: malformed request. missing key '{key}'")
    spec: Json = {"interactive": False}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(cluster)
    info = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": spec}
    if len(json.dumps(info)) > _MAX_INFO_LENGTH:
        # client-go passes every bundle, so no plugin starts. Most plugins do not read the bundle.
        mapping(spec, "cluster").pop("certificate-authority-data", None)
    variables = {str(variable["name"]): str(variable.get("value", ""))
                 for variable in objects(plugin, "env") if variable.get("name")}
    environment = {**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    output = _run_command([plugin["command"], *(plugin.get("args") or ())], environment, folder,
                          timeout)
    try:
        response = json.loads(output)
    except ValueError as error:
        raise ValueError(f"exec: failed to decode process output: {error}") from None
    return _parse_credential(response, plugin["apiVersion"])


def _cluster_info(cluster: Json) -> Json:
    info = {field: cluster[field] for field in _CLUSTER_FIELDS if field in cluster}
    if "certificate-authority" in cluster and "certificate-authority-data" not in cluster:
        with open(cluster["certificate-authority"], "rb") as file:
            info["certificate-authority-data"] = base64.b64encode(file.read()).decode()
    for extension in objects(cluster, "extensions"):
        if extension.get("name") == _EXTENSION:
            info["config"] = extension.get("extension")
    return info


def _run_command(command: list[str], environment: t.Mapping[str, str], folder: str,
                 timeout: float) -> str:
    # Start a new session, so that os.killpg() kills the plugin together with its children.
    process = subprocess.Popen(  # pylint: disable=ansible-bad-function
        command, env=environment, cwd=folder or None, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True, errors="replace",
        start_new_session=True)
    with process:
        try:
            output, error_output = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{os.path.basename(command[0])} did not answer within "
                               f"{timeout:g} s and was killed") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        reason = f". {error_output.strip()}" if error_output.strip() else ""
        raise ValueError(f"exec: process returned {process.returncode}{reason}")
    return output


def _parse_credential(response: t.Any, api_version: str) -> Credential:
    for key in ("apiVersion", "kind", "status"):
        if not isinstance(response, dict) or key not in response:
            raise ValueError(f"exec: malformed response. missing key '{key}'")
    if response["apiVersion"] != api_version:
        raise ValueError(f"exec: plugin api version {response['apiVersion']} does not match "
                         f"{api_version}")
    status = mapping(response, "status")
    credential = Credential(text(status, "token"), text(status, "clientCertificateData"),
                            text(status, "clientKeyData"), text(status, "expirationTimestamp"))
    if not credential.token and not credential.certificate:
        raise ValueError("exec: missing token or clientCertificateData field in plugin output")
    if credential.certificate and not credential.key:
        raise ValueError("exec: missing clientKeyData field in plugin output")
    return credential

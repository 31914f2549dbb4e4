# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Use the cluster of KUBECONFIG in place of an embedded cluster."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from kubeapi import status_of
from workspace import ClusterError, clusters, say


def external_kubeconfig() -> Path | None:
    """Return the first file of KUBECONFIG. Return None if it belongs to an embedded cluster."""
    first = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    if not first:
        return None
    path = Path(first).absolute()
    return None if path.is_relative_to(clusters().absolute()) else path


class ExternalCluster:
    """The cluster of KUBECONFIG, with the interface of an embedded cluster."""

    name = "KUBECONFIG"

    def __init__(self, path: Path) -> None:
        """Read a kubeconfig. Raises ClusterError."""
        config = _read(path)
        context = _entry(config, "context", config.get("current-context"))
        cluster = _entry(config, "cluster", context.get("cluster"))
        self.kubeconfig = str(path)
        self.server: str = cluster.get("server") or ""
        self.token: str | None = _entry(config, "user", context.get("user")).get("token")
        self._authority_file = _temporary_file(cluster.get("certificate-authority-data"))
        authority = (
            self._authority_file.name
            if self._authority_file
            else cluster.get("certificate-authority")
        )
        self.certificate_authority = str(path.parent / authority) if authority else None

    # pylint: disable-next=unused-argument
    def up(
        self,
        controller_manager_qps: int,
        with_real_node: bool,
        admission_plugins: Sequence[str],
        kubernetes: str,
        feature_gates: Sequence[str],
    ) -> None:
        """Check that the API server answers, with any HTTP status. Raises ClusterError."""
        if with_real_node:
            raise ClusterError(
                f"external cluster, KUBECONFIG={self.kubeconfig}: its nodes cannot be changed"
            )
        if kubernetes:
            raise ClusterError(
                f"external cluster, KUBECONFIG={self.kubeconfig}: its version cannot be set to "
                f"{kubernetes}"
            )
        if not self._answers():
            raise ClusterError(
                f"external cluster, KUBECONFIG={self.kubeconfig}, "
                f"but {self.server!r} does not answer"
            )
        say(f"external cluster, KUBECONFIG={self.kubeconfig}, and it answers: {self.server}")

    def down(self) -> None:
        say(f"external cluster, KUBECONFIG={self.kubeconfig}: nothing to bring down")

    def stop(self, component: str, kill: bool = False) -> None:  # pylint: disable=unused-argument
        raise ClusterError(
            f"external cluster, KUBECONFIG={self.kubeconfig}: "
            f"its {component} cannot be stopped or started"
        )

    start = stop

    def status(self) -> dict[str, str]:
        return {"kube-apiserver": "healthy" if self._answers() else "unhealthy"}

    def _answers(self) -> bool:
        return (
            bool(self.server)
            and status_of(self.server.rstrip("/") + "/version", timeout=10) is not None
        )

    def __enter__(self) -> ExternalCluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.down()


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"KUBECONFIG={path} cannot be read: {error.strerror}") from error
    try:
        config = _parse(text)
    except ValueError as error:
        raise ClusterError(f"KUBECONFIG={path} is not YAML") from error
    return config if isinstance(config, dict) else {}


def _parse(text: str) -> object:
    """Parse JSON, or else YAML, which needs the package PyYAML. Raises ValueError."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        import yaml
    except ImportError as error:
        raise ClusterError(
            "a KUBECONFIG in YAML needs the package PyYAML, missing in this Python"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _temporary_file(data: str | None) -> IO[bytes] | None:
    if not data:
        return None
    file = tempfile.NamedTemporaryFile(prefix="baton-authority-")  # noqa: SIM115
    file.write(base64.b64decode(data))
    file.flush()
    return file


def _entry(config: dict[str, Any], kind: str, name: str | None) -> dict[str, Any]:
    """Return an entry of the kubeconfig, or {}. kind: such as "cluster"."""
    entries = config.get(f"{kind}s") or ()
    return next((entry.get(kind) or {} for entry in entries if entry.get("name") == name), {})

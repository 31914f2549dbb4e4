# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build container images of a single program, without a registry or a container engine."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The names of architectures in Go, by their names in Linux."""


@dataclass(frozen=True)
class Image:
    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)


def archive(program: Path, images: Iterable[Image]) -> bytes:
    """Return a tar file in the OCI image layout. All images share the layer of the program."""
    blobs: dict[str, bytes] = {}

    def store_blob(kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    image_platform = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
    }
    layer = store_blob("layer.v1.tar", _tar({program.name: program.read_bytes()}))
    manifests = []
    for image in images:
        settings = {
            "Entrypoint": image.command,
            "Env": [f"{key}={value}" for key, value in image.environment.items()],
        }
        root_filesystem = {"type": "layers", "diff_ids": [layer["digest"]]}
        config = store_blob(
            "config.v1+json",
            json.dumps({**image_platform, "config": settings, "rootfs": root_filesystem}).encode(),
        )
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
        descriptor = store_blob(
            "manifest.v1+json",
            json.dumps({**manifest, "config": config, "layers": [layer]}).encode(),
        )
        manifests.append(
            {
                **descriptor,
                "platform": image_platform,
                "annotations": {"io.containerd.image.name": image.name},
            }
        )
    return _tar(
        {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"schemaVersion": 2, "manifests": manifests}).encode(),
            **blobs,
        }
    )


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()

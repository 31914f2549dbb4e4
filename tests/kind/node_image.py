# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the image of a kind node from Debian packages, the embedded cluster and kind's files."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import binaries
import engine
import go_toolchain
import subtask
from images import Image, archive
from real_node import KERNEL_SETTINGS
from workspace import HERE as CLUSTER
from workspace import cache, locked

HERE = Path(__file__).resolve().parent
KUBERNETES = binaries.release(binaries.NEWEST)
NAME = f"baton/node:{KUBERNETES}"
PROGRAMS = ("etcd", *binaries.CONTROL_PLANE, "kubelet", "kubeadm", "kubectl", "web", "kind")

WEB_IMAGES = [
    "registry.example.com/shop:v2",
    *(
        f"docker.io/library/{name}"
        for name in ("nginx:1.28-alpine", "nginx:1.29-alpine", "myimage:by-hand", "myimage:evil")
    ),
    *(
        f"docker.io/{name}:v{number}"
        for number in range(10)
        for name in (
            "library/evil",
            "library/myimage",
            "library/other",
            "library/payments",
            "library/setup",
            "mirror/myimage",
        )
    ),
]
"""Images of the tests and the molecule scenarios, all with the web server of real_node.py."""


def provide(programs: dict[str, Path]) -> Path:
    """Build a tar file with the node's root file system if necessary, and return its path.

    Raises ClusterError.
    """
    digest = hashlib.sha256("".join(map(str, programs.values())).encode())
    for file in (HERE / "node-image", Path(__file__)):
        digest.update(file.read_bytes())
    node_file = cache() / "kind" / f"{digest.hexdigest()[:16]}.tar"
    with locked(node_file.with_suffix(".lock"), "the image of a kind node"):
        if not node_file.exists():
            folder = node_file.with_suffix(".new")
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, programs)
            # other processes never see an incomplete file
            (folder / "node.tar").rename(node_file)
            shutil.rmtree(folder)
    return node_file


def _build(folder: Path, programs: dict[str, Path]) -> None:
    for part in ("bin", "images", "kernel"):
        (folder / part).mkdir(parents=True)
    for name in ("kubelet", "kubeadm", "kubectl"):
        (folder / "bin" / name).symlink_to(programs[name])
    kind_files = _find_kind_files()
    for name, content in _images(programs, kind_files).items():
        (folder / "images" / f"{name}.tar").write_bytes(content)
    for path, value in KERNEL_SETTINGS.items():
        (folder / "kernel" / path.replace("/", ".")).write_text(f"{value}\n", "ascii")
    command = [
        *engine.isolation_prefix(),
        str(HERE / "node-image"),
        str(folder),
        str(kind_files),
        KUBERNETES,
    ]
    subtask.run("building the kind node image (first use only; cached afterwards)", command)


def _find_kind_files() -> Path:
    completed = subprocess.run(
        [str(go_toolchain.find_go()), "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kind"],
        cwd=CLUSTER / "kind",
        env=binaries.environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(completed.stdout.strip()) / "images/base/files"


def _images(programs: dict[str, Path], kind_files: Path) -> dict[str, bytes]:
    """Return the image archives of the control plane and of the web server by name."""
    required = subprocess.run(
        [str(programs["kubeadm"]), "config", "images", "list", "--kubernetes-version", KUBERNETES],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    images_by_program = {Path(image.partition(":")[0]).name: image for image in required}
    (sandbox,) = re.findall(
        r'sandbox_image = "(.*)"', (kind_files / "etc/containerd/config.toml").read_text("utf-8")
    )
    web_images = [
        Image(sandbox, ["/web", "pause"]),
        *(Image(name, ["/web"], {"VERSION": name.rpartition(":")[2]}) for name in WEB_IMAGES),
    ]
    return {"web": archive(programs["web"], web_images)} | {
        name: archive(programs[name], [Image(images_by_program[name], [f"/{name}"], {"PATH": "/"})])
        for name in ("etcd", *binaries.CONTROL_PLANE)
    }

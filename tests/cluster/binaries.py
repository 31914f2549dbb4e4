# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The programs of the embedded cluster: built from the Go modules beside this file, once per machine."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import subtask
from go_toolchain import find_go, version_of
from workspace import HERE, ClusterError, cache, locked, say

PACKAGES = {
    "etcd": ("kubernetes", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": ("kubernetes", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "web": ("web", "baton.test/cluster/web"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kubectl-1.17": ("kubectl-1.17", "k8s.io/kubernetes/cmd/kubectl"),
    "k6": ("k6", "go.k6.io/k6"),
}
"""Program: the folder of its go.mod, its package."""

OPTIONAL = ("kubectl", "kubectl-1.17", "k6", "kubelet", "kube-proxy", "web")
"""What no cluster with fake nodes needs; `build --with` adds it."""

NEEDED = tuple(name for name in PACKAGES if name not in OPTIONAL)

OF_A_REAL_NODE = ("kubelet", "kube-proxy", "web")
"""What a cluster with a real node needs in place of KWOK."""

KEPT_TOGETHER = (("kubernetes", "kwok"), ("kubectl-1.17",), ("web",), ("k6",))
"""Modules whose programs share a folder: another version of one of them builds all of these again."""


def needed(with_real_node: bool) -> tuple[str, ...]:
    """The programs of a cluster."""
    return (*(name for name in NEEDED if name != "kwok"), *OF_A_REAL_NODE) if with_real_node else NEEDED


def provide(names: Iterable[str] = NEEDED) -> dict[str, Path]:
    """The path of each program, prebuilt ones from KUBEBUILDER_ASSETS first, the others built where missing.

    Milliseconds when there is nothing to build. Raises ClusterError.
    """
    paths = {name: _prebuilt(name) for name in names}
    wanted = [name for name, path in paths.items() if path is None]
    if wanted:
        go = find_go()
        for modules in KEPT_TOGETHER:
            folder = cache() / "bin" / _key(go, modules)
            here = [name for name in wanted if PACKAGES[name][0] in modules]
            missing = [name for name in here if not (folder / name).exists()]
            if missing:
                _build(go, folder, missing)
            paths.update({name: folder / name for name in here})
    return paths


def _prebuilt(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    if not Path(assets).is_dir():
        raise ClusterError(f"KUBEBUILDER_ASSETS names no folder: {assets}")
    path = Path(assets).resolve() / name
    return path if os.access(path, os.X_OK) else None


def _key(go: Path, modules: Iterable[str]) -> str:
    """What decides the bytes of the programs: the pinned modules, sources of ours, and the Go that compiles them."""
    digest = hashlib.sha256(version_of(go).encode())
    for module in modules:
        for file in sorted((HERE / module).iterdir()):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(go: Path, folder: Path, names: list[str]) -> None:
    with locked(folder.with_suffix(".lock"), "the programs of the cluster"):
        names = [name for name in names if not (folder / name).exists()]  # somebody else may have built meanwhile
        if not names:
            return
        say(f"building {', '.join(names)}: once per machine, all of them take about 8 minutes on 2 cores from nothing")
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        for number, name in enumerate(names, 1):
            module, package = PACKAGES[name]
            draft = folder / f".{name}"
            subtask.run(
                f"building {name} ({number} of {len(names)})",
                [str(go), "build", "-v", "-trimpath", "-ldflags", _link_flags(module), "-o", str(draft), package],
                HERE / module,
                _environment(),
            )
            draft.rename(folder / name)  # at once: half a program is never found there
        say(f"built in {time.monotonic() - began:.0f} s: {folder}")


def _environment() -> dict[str, str]:
    """The user's, but for what would build something else: flags, a workspace file, a Go downloaded on the way."""
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}


def _link_flags(module: str) -> str:
    """Without symbols, and of Kubernetes with the version, which its own build scripts set at link time."""
    module = module if module != "kwok" else "kubernetes"
    requirement = re.search(r"k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)", (HERE / module / "go.mod").read_text("utf-8"))
    if not requirement:
        return "-s -w"
    version, major, minor = requirement.groups()
    values = {
        "k8s.io/component-base/version.gitVersion": version,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    return " ".join(["-s", "-w", *(f"-X {key}={value}" for key, value in values.items())])

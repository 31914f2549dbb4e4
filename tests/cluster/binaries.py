# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build the programs of the embedded cluster from Go modules, once per machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
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
    "kwok": ("kubernetes", "sigs.k8s.io/kwok/cmd/kwok"),
    "kubelet": ("kubernetes", "k8s.io/kubernetes/cmd/kubelet"),
    "kube-proxy": ("kubernetes", "k8s.io/kubernetes/cmd/kube-proxy"),
    "web": ("web", "baton.test/cluster/web"),
    "kubectl": ("kubernetes", "k8s.io/kubernetes/cmd/kubectl"),
    "kubectl-1.17": ("kubectl-1.17", "k8s.io/kubernetes/cmd/kubectl"),
    "k6": ("k6", "go.k6.io/k6"),
    "contour": ("contour", "github.com/projectcontour/contour/cmd/contour"),
    "helm": ("helm", "helm.sh/helm/v4/cmd/helm"),
    "kustomize-controller": ("kustomize-controller", "github.com/fluxcd/kustomize-controller"),
    "rollouts-controller": (
        "argo-rollouts",
        "github.com/argoproj/argo-rollouts/cmd/rollouts-controller",
    ),
    "kubectl-argo-rollouts": (
        "argo-rollouts",
        "github.com/argoproj/argo-rollouts/cmd/kubectl-argo-rollouts",
    ),
    "metrics-server": ("metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"),
    "kind": ("kind", "sigs.k8s.io/kind"),
    "kubeadm": ("kubeadm", "k8s.io/kubernetes/cmd/kubeadm"),
}
"""Program -> (folder with go.mod, Go package)."""

OPTIONAL = (
    "kubectl",
    "kubectl-1.17",
    "k6",
    "contour",
    "helm",
    "kustomize-controller",
    "rollouts-controller",
    "kubectl-argo-rollouts",
    "metrics-server",
    "kubelet",
    "kube-proxy",
    "web",
    "kind",
    "kubeadm",
)
"""Programs that a cluster with fake nodes does not need."""

NEEDED = tuple(name for name in PACKAGES if name not in OPTIONAL)

REAL_NODE_PROGRAMS = ("kubelet", "kube-proxy", "web")
"""Programs that a cluster with a real node runs instead of KWOK."""

CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
"""In a cluster with an older Kubernetes, only these programs have the older version."""

OLDER_MODULES = tuple(sorted(folder.name for folder in HERE.glob("kubernetes-*/")))
"""Names of folders, such as kubernetes-1.24."""

MODULES = tuple(
    dict.fromkeys(
        ("kubernetes", *OLDER_MODULES, *(module for module, _package in PACKAGES.values()))
    )
)
"""Names of folders. If a module changes, all its programs are built again."""


def _release_in_go_mod(module: str) -> str:
    """Return the Kubernetes release in a go.mod, such as "v1.36.3", or ""."""
    match = re.search(
        r"k8s\.io/kubernetes (v1\.\d+\.\d+)", (HERE / module / "go.mod").read_text("utf-8")
    )
    return match[1] if match else ""


NEWEST = _release_in_go_mod("kubernetes")[1:].rpartition(".")[0]

VERSIONS = (*(folder.partition("-")[2] for folder in OLDER_MODULES), NEWEST)
"""Oldest first."""


def release(version: str) -> str:
    """Return the full release: "v1.24.0" for "1.24"."""
    return _release_in_go_mod(_module("kube-apiserver", version))


def needed_programs(with_real_node: bool) -> tuple[str, ...]:
    return (
        (*(name for name in NEEDED if name != "kwok"), *REAL_NODE_PROGRAMS)
        if with_real_node
        else NEEDED
    )


def provide(names: Iterable[str] = NEEDED, kubernetes: str = NEWEST) -> dict[str, Path]:
    """Build the missing programs, and return the path of each program by name.

    Programs in KUBEBUILDER_ASSETS are not built. Raises ClusterError.
    """
    module_by_name = {name: _module(name, kubernetes) for name in names}
    paths = {
        name: None if module in OLDER_MODULES else _prebuilt(name)
        for name, module in module_by_name.items()
    }
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        go = find_go()
        for module in MODULES:
            folder = cache() / "bin" / _input_digest(go, module)
            names_of_module = [name for name in missing if module_by_name[name] == module]
            if not all((folder / name).exists() for name in names_of_module):
                _build(go, folder, module, names_of_module)
            paths.update({name: folder / name for name in names_of_module})
    return paths


def _module(name: str, kubernetes: str) -> str:
    """Return the folder of the program's go.mod. Raises ClusterError."""
    if kubernetes not in VERSIONS:
        raise ClusterError(
            f"Kubernetes {kubernetes!r} is not available; versions: {', '.join(VERSIONS)}"
        )
    return (
        f"kubernetes-{kubernetes}"
        if kubernetes != NEWEST and name in CONTROL_PLANE
        else PACKAGES[name][0]
    )


def _prebuilt(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        return None
    if not Path(assets).is_dir():
        raise ClusterError(f"KUBEBUILDER_ASSETS is not a folder: {assets}")
    path = Path(assets).resolve() / name
    return path if os.access(path, os.X_OK) else None


def _input_digest(go: Path, module: str) -> str:
    digest = hashlib.sha256(version_of(go).encode())
    digest.update(" ".join(_flags(module)).encode())
    for file in sorted((HERE / module).iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _build(go: Path, folder: Path, module: str, missing: Iterable[str]) -> None:
    with locked(folder.with_suffix(".lock"), "the programs of the cluster"):
        # another process may have built the programs while this process waited
        names = [name for name in missing if not (folder / name).exists()]
        if not names:
            return
        say(
            f"building {', '.join(names)}: once per machine, "
            "3 to 9 minutes on 2 cores for all programs of a cluster"
        )
        began = time.monotonic()
        progress = subtask.Progress(len(_packages_to_compile(go, module, names)))
        drafts = folder / ".drafts"
        shutil.rmtree(drafts, ignore_errors=True)  # left by a killed process
        drafts.mkdir(parents=True)
        command = [str(go), "build", "-v", *_flags(module), "-o", f"{drafts}/", *_packages(names)]
        subtask.run(f"building {', '.join(names)}", command, HERE / module, environment(), progress)
        for name in names:
            # other processes must not run an incomplete program
            (drafts / _go_build_name(name)).rename(folder / name)
        drafts.rmdir()
        say(f"built in {time.monotonic() - began:.0f} s: {folder}")


def _packages_to_compile(go: Path, module: str, programs: list[str]) -> list[str]:
    """Download the sources, and return "package PATH@VERSION" for each package to compile."""
    template = "{{if .Stale}}package {{.ImportPath}}{{with .Module}}@{{.Version}}{{end}}{{end}}"
    command = [str(go), "list", "-deps", *_flags(module), "-f", template, *_packages(programs)]
    lines = subtask.run(
        f"reading the sources of {', '.join(programs)}", command, HERE / module, environment()
    )
    return [line for line in lines if line.startswith("package ")]


def _packages(programs: Iterable[str]) -> list[str]:
    return [PACKAGES[name][1] for name in programs]


def _go_build_name(program: str) -> str:
    """Return the name that `go build` gives to the program, such as "server" for etcd."""
    return re.sub(r"/v\d+$", "", PACKAGES[program][1]).rpartition("/")[2]


def environment() -> dict[str, str]:
    """Return the environment for Go, without flags, workspace files and toolchain downloads.

    Less garbage collection saves a fifth of the build time.
    """
    memory = {"GOGC": "off", "GOMEMLIMIT": "600MiB"}
    return (
        os.environ
        | memory
        | {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    )


def _flags(module: str) -> list[str]:
    """Return the flags of compiler and linker.

    Older versions of Kubernetes link Go symbols that Go 1.23 and newer reject by default.
    """
    flags, link_flags = ["-trimpath", "-gcflags=all=-dwarf=false"], _link_flags(module)
    if module in OLDER_MODULES:
        return [*flags, "-tags", "providerless", "-ldflags", f"{link_flags} -checklinkname=0"]
    return [*flags, "-ldflags", link_flags]


def _link_flags(module: str) -> str:
    version = _release_in_go_mod(module)
    if not version:
        return "-s -w"
    major, minor, _patch = version[1:].split(".")
    values = {
        "k8s.io/component-base/version.gitVersion": version,
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": version,
    }
    return " ".join(["-s", "-w", *(f"-X {key}={value}" for key, value in values.items())])

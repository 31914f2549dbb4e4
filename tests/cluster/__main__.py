# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Manage the embedded clusters: `python3 tests/cluster --help`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable

import binaries
import embedded
import machine
from external import external_kubeconfig
from workspace import ClusterError, say

DESCRIPTION = """\
A Kubernetes control plane with fake nodes, for tests and demos: etcd, kube-apiserver,
kube-controller-manager, kube-scheduler and KWOK, built from pinned Go modules and run as processes
of the current user. Several clusters can run in parallel. With --real-node, the cluster has one
node that runs pods as containers (containerd, runc, kubelet, kube-proxy); this requires root.
"""

EPILOGUE = """\
environment:
  KUBECONFIG         an existing cluster to use instead: `up` only checks that its API server
                     answers, and `down` does nothing
  KUBEBUILDER_ASSETS folder with prebuilt programs; missing programs are built
  BATON_KUBERNETES   Kubernetes version of new clusters
  XDG_CACHE_HOME     parent of baton-kubernetes/, with clusters and programs (default: ~/.cache)

exit codes: 0 success, 1 failure (or an unhealthy cluster in `status`), 2 invalid usage,
  130 interrupted

  python3 tests/cluster up && export KUBECONFIG=$(python3 tests/cluster kubeconfig)
"""

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def main() -> int:
    options = _parser().parse_args()
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, _interrupt)
    try:
        return options.verb(options) or 0
    except (ClusterError, OSError) as error:  # OSError: for example, a full disk
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _interrupt(*_unused: object) -> None:
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, lambda *_unused: None)
    raise KeyboardInterrupt


def _up(options: argparse.Namespace) -> None:
    embedded.up(
        options.name,
        options.controller_manager_qps,
        options.real_node,
        kubernetes=options.kubernetes,
    )


def _down(options: argparse.Namespace) -> None:
    for cluster in (
        [*map(embedded.Cluster, embedded.names())] if options.all else [embedded.find(options.name)]
    ):
        cluster.down()


def _status(options: argparse.Namespace) -> int:
    name_or_kubeconfig = options.name or external_kubeconfig()
    clusters = (
        [embedded.find(options.name)]
        if name_or_kubeconfig
        else [*map(embedded.Cluster, embedded.names())]
    )
    are_healthy = bool(clusters)
    for cluster in clusters:
        components = cluster.status()
        are_healthy = are_healthy and set(components.values()) == {"healthy"}
        print(f"{cluster.name}: {cluster.server}")
        for component, health in components.items():
            print(f"  {component:24} {health}")
    if not clusters:
        print("no cluster")
    return 0 if are_healthy else 1


def _kubeconfig(options: argparse.Namespace) -> None:
    print(embedded.find(options.name).kubeconfig)


def _build(options: argparse.Namespace) -> None:
    if options.real_node:
        machine.install()
    programs = [*binaries.needed_programs(options.real_node), *options.extra]
    for name, path in binaries.provide(programs, options.kubernetes or binaries.NEWEST).items():
        print(f"{name} {path}")


def _stop(options: argparse.Namespace) -> None:
    embedded.find(options.name).stop(options.component, options.kill)


def _start(options: argparse.Namespace) -> None:
    embedded.find(options.name).start(options.component)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python3 tests/cluster",
        description=DESCRIPTION,
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add_verb(
        name: str, action: Callable[[argparse.Namespace], int | None], text: str
    ) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=text)
        verb.set_defaults(verb=action)
        return verb

    def add_named_verb(
        name: str, action: Callable[[argparse.Namespace], int | None], text: str
    ) -> argparse.ArgumentParser:
        verb = add_verb(name, action, text)
        verb.add_argument(
            "--name", default="default", help="name of the cluster (default: default)"
        )
        return verb

    up = add_named_verb("up", _up, "start the cluster, or check and repair a running cluster")
    up.add_argument(
        "--controller-manager-qps",
        type=_positive,
        default=2000,
        metavar="N",
        help="limit of the controller manager's requests per second "
        "(default: 2000; Kubernetes: 20)",
    )
    up.add_argument(
        "--real-node",
        action="store_true",
        help="one real node instead of the fake nodes; requires root",
    )
    down = add_named_verb("down", _down, "stop the cluster and remove its files")
    down.add_argument(
        "--all", action="store_true", help="stop all embedded clusters, even if KUBECONFIG is set"
    )
    add_verb(
        "status", _status, "show the state of all clusters; exit code 1 unless all are healthy"
    ).add_argument("--name", help="show only the cluster of this name")
    add_named_verb("kubeconfig", _kubeconfig, "print the path of the cluster's kubeconfig")
    build = add_verb("build", _build, "build the programs of a cluster and print their paths")
    build.add_argument(
        "--with",
        dest="extra",
        action="append",
        default=[],
        choices=binaries.OPTIONAL,
        help="also build this program",
    )
    build.add_argument(
        "--real-node",
        action="store_true",
        help="build the programs of a real node, and install its Debian packages",
    )
    for verb in up, build:
        verb.add_argument(
            "--kubernetes",
            default=os.environ.get(embedded.VERSION_VARIABLE, ""),
            metavar="VERSION",
            help=f"{', '.join(binaries.VERSIONS)} "
            f"(default: {embedded.VERSION_VARIABLE}, or the newest)",
        )
    stop = add_named_verb("stop", _stop, "stop one component of a running cluster")
    stop.add_argument("--kill", action="store_true", help="by SIGKILL instead of SIGTERM")
    for verb in stop, add_named_verb("start", _start, "start a stopped component"):
        verb.add_argument(
            "component",
            choices=embedded.COMPONENTS,
            metavar="COMPONENT",
            help=", ".join(embedded.COMPONENTS),
        )
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())

# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create the network of a real node: a bridge, and a veth pair to the node. Requires root."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workspace import ClusterError

MAX_NETWORKS = 100


@dataclass(frozen=True)
class Network:
    """A network that connects this machine directly with a node and its pods."""

    number: int

    @property
    def bridge(self) -> str:
        """Return the name of the bridge, which is kept when the node is killed."""
        return f"baton{self.number}"

    @property
    def host(self) -> str:
        """Return this machine's address, on which the API server listens."""
        return f"10.123.{self.number}.1"

    @property
    def node(self) -> str:
        return f"10.123.{self.number}.2"

    @property
    def pod_cidr(self) -> str:
        return f"10.124.{self.number}.0/24"

    @property
    def service_cidr(self) -> str:
        return f"10.125.{self.number}.0/24"

    @property
    def veth(self) -> str:
        return f"{self.bridge}-node"

    def up(self) -> None:
        if not _exists(self.bridge):
            run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "replace", f"{self.host}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for destination in (self.pod_cidr, self.service_cidr):
            run("ip", "route", "replace", destination, "via", self.node)

    def connect(self, pid: int) -> None:
        """Create the veth pair between the bridge and the network namespace of a process.

        First remove the pair of a killed node: open connections retain it for a minute.
        """
        _remove(self.veth)
        run(
            "ip",
            "link",
            "add",
            self.veth,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(pid),
        )
        run("ip", "link", "set", self.veth, "master", self.bridge, "up")

    def down(self) -> None:
        _remove(self.veth)
        _remove(self.bridge)


def claim_network() -> Network:
    """Reserve the first free network by creating its bridge. Raises ClusterError."""
    for number in range(MAX_NETWORKS):
        network = Network(number)
        if not _exists(network.bridge):
            with contextlib.suppress(ClusterError):  # another process has reserved the network
                run("ip", "link", "add", network.bridge, "type", "bridge")
                return network
    raise ClusterError(
        f"all {MAX_NETWORKS} networks of real nodes are in use: `down --all` stops their clusters"
    )


def run(*argv: str, stdin: bytes = b"") -> None:
    """Run a system program. Raises ClusterError with its output."""
    try:
        subprocess.run(
            argv,
            check=True,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
        )
    except subprocess.CalledProcessError as error:
        raise ClusterError(
            f"{' '.join(argv)} failed: {error.stdout.decode(errors='replace').strip()}"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{' '.join(argv)} failed: {error}") from error


def _remove(link: str) -> None:
    if _exists(link):
        with contextlib.suppress(ClusterError):  # the kernel may just have removed the link
            run("ip", "link", "delete", link)


def _exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()

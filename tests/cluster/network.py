# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The network of a real node: a bridge on this machine, connected to the node. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workspace import ClusterError

NETWORKS = 100
"""Maximum of clusters with a real node."""


@dataclass(frozen=True)
class Network:
    """Addresses of one cluster. Programs on this machine reach its pods and Services without a
    proxy.
    """

    number: int

    @property
    def bridge(self) -> str:
        """Name of the bridge, not of an end of the cable: the machine's address must outlive a
        killed node.
        """
        return f"baton{self.number}"

    @property
    def host(self) -> str:
        """This machine's address, where the control plane listens."""
        return f"10.123.{self.number}.1"

    @property
    def node(self) -> str:
        """The node's address."""
        return f"10.123.{self.number}.2"

    @property
    def pods(self) -> str:
        """The range of the pods' addresses."""
        return f"10.124.{self.number}.0/24"

    @property
    def services(self) -> str:
        """The range of the Services' addresses."""
        return f"10.125.{self.number}.0/24"

    @property
    def cable(self) -> str:
        """Name of this machine's end of the cable between the node and the bridge."""
        return f"{self.bridge}-node"

    def up(self) -> None:
        """Create what is missing, without changing the machine's settings: the node's packets are
        not forwarded.
        """
        if not _exists(self.bridge):
            run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "replace", f"{self.host}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for destination in (self.pods, self.services):
            run("ip", "route", "replace", destination, "via", self.node)

    def connect(self, pid: int) -> None:
        """Lay the cable, whose other end is eth0 in the network of process pid.

        A killed node's cable may still exist: open connections keep the node's network for a
        minute.
        """
        _remove(self.cable)
        run(
            "ip",
            "link",
            "add",
            self.cable,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            str(pid),
        )
        run("ip", "link", "set", self.cable, "master", self.bridge, "up")

    def down(self) -> None:
        """Remove the cable and the bridge, and with the bridge addresses and routes."""
        _remove(self.cable)
        _remove(self.bridge)


def claim_network() -> Network:
    """Claim the first free network, by creating its bridge. Raises ClusterError."""
    for number in range(NETWORKS):
        network = Network(number)
        if not _exists(network.bridge):
            with contextlib.suppress(ClusterError):  # another process was faster
                run("ip", "link", "add", network.bridge, "type", "bridge")
                return network
    raise ClusterError(
        f"all {NETWORKS} networks of real nodes are in use: `down --all` ends their clusters"
    )


def run(*argv: str, stdin: bytes = b"") -> None:
    """Run a program of the system. Raises ClusterError with the program's output."""
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
        with contextlib.suppress(ClusterError):  # just removed by the kernel
            run("ip", "link", "delete", link)


def _exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()

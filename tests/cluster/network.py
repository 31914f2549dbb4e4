# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The network of a real node: a bridge on this machine, to which the node is connected. Needs root."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path

from workspace import ClusterError

NETWORKS = 100
"""So many clusters with a real node can run side by side."""


@dataclass(frozen=True)
class Network:
    """The addresses of one cluster. Programs on this machine reach its pods and Services without a proxy."""

    number: int

    @property
    def bridge(self) -> str:
        """A bridge, and not one end of the cable: this machine's address must outlive a node that is cut off."""
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
        """This machine's end of what connects the node to the bridge."""
        return f"{self.bridge}-node"

    def up(self) -> None:
        """Create what is not there. The machine's own settings stay: nothing is forwarded out of the node."""
        if not _exists(self.bridge):
            run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "replace", f"{self.host}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for destination in (self.pods, self.services):
            run("ip", "route", "replace", destination, "via", self.node)

    def connect(self, pid: int) -> None:
        """Lay the cable; its other end is eth0 in that process's network.

        One of a node that was cut off may still be there: connections that were open keep its network for a minute.
        """
        _remove(self.cable)
        run("ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        run("ip", "link", "set", self.cable, "master", self.bridge, "up")

    def down(self) -> None:
        """Remove what there is: cable, bridge, and with it addresses and routes."""
        _remove(self.cable)
        _remove(self.bridge)


def claim_network() -> Network:
    """The first that no cluster has: whoever can create its bridge has it. Raises ClusterError."""
    for number in range(NETWORKS):
        network = Network(number)
        if not _exists(network.bridge):
            with contextlib.suppress(ClusterError):  # another one was faster
                run("ip", "link", "add", network.bridge, "type", "bridge")
                return network
    raise ClusterError(f"all {NETWORKS} networks of real nodes are in use: `down --all` ends their clusters")


def run(*argv: str, stdin: bytes = b"") -> None:
    """Run a program of the system. Raises ClusterError with what it has said."""
    try:
        subprocess.run(argv, check=True, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except subprocess.CalledProcessError as error:
        raise ClusterError(f"{' '.join(argv)} failed: {error.stdout.decode(errors='replace').strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(f"{' '.join(argv)} failed: {error}") from error


def _remove(link: str) -> None:
    if _exists(link):
        with contextlib.suppress(ClusterError):  # it went by itself just now
            run("ip", "link", "delete", link)


def _exists(link: str) -> bool:
    return Path("/sys/class/net", link).exists()

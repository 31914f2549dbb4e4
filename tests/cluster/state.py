# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Store the state of a cluster in state.json in the cluster's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from binaries import NEWEST
from components import Settings
from network import Network
from processes import Process
from workspace import write_private


@dataclass
class State:
    folder: Path
    first_port: int
    token: str
    controller_manager_qps: int
    kubernetes: str = NEWEST
    admission_plugins: list[str] = field(default_factory=list)
    """In addition to the defaults."""
    feature_gates: list[str] = field(default_factory=list)
    network: int | None = None
    """Number of the network; None with fake nodes."""
    processes: dict[str, Process] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> State | None:
        try:
            saved = json.loads((folder / "state.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        processes = {name: Process(*numbers) for name, numbers in saved.pop("processes").items()}
        return cls(folder, processes=processes, **saved)

    def save(self) -> None:
        saved = {name: value for name, value in vars(self).items() if name != "folder"}
        write_private(self.folder / "state.json", json.dumps(saved, indent=2))

    @property
    def settings(self) -> Settings:
        network = None if self.network is None else Network(self.network)
        plugins, gates = tuple(self.admission_plugins), tuple(self.feature_gates)
        return Settings(
            self.folder,
            self.first_port,
            self.controller_manager_qps,
            self.kubernetes,
            plugins,
            gates,
            network,
        )

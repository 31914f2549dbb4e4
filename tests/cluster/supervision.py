# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Start, check and stop the components of a cluster. The caller holds the cluster's lock."""

from __future__ import annotations

import signal
from pathlib import Path

from components import Component
from processes import Process
from state import State
from workspace import SYSTEM_PATH, ClusterError, last_lines, uninterrupted, wait_for

ENVIRONMENT = {"PATH": SYSTEM_PATH, "GOGC": "400"}
"""Environment without the user's settings (ETCD_*, ~/.kwok). GOGC trades memory for CPU time."""


def health(state: State, component: Component) -> str:
    """Return "healthy", "unhealthy" (the health endpoint fails) or "stopped"."""
    process = state.processes.get(component.name)
    if not process or not process.alive:
        return "stopped"
    return "healthy" if component.is_healthy(state.settings) else "unhealthy"


def start(state: State, components: list[Component], programs: dict[str, Path]) -> None:
    """Start the components, and wait until all are healthy. Raises ClusterError."""
    environment = ENVIRONMENT | {"HOME": str(state.folder)}
    for component in components:
        end(state, component.name, signal.SIGKILL)
        component.prepare(state.settings)
        argv = component.command(state.settings, programs, state.processes)
        with uninterrupted():
            state.processes[component.name] = Process.spawn(
                argv, environment, log_path(state, component), component.is_child
            )
            state.save()
    for component in components:
        _await_health(state, component)
        component.complete_start(state.settings, state.processes[component.name])


def log_path(state: State, component: Component) -> Path:
    return state.folder / "logs" / f"{component.name}.log"


def end(state: State, name: str, with_signal: signal.Signals = signal.SIGTERM) -> None:
    """Stop the component's process, if any, and remove it from the state."""
    if name in state.processes:
        state.processes[name].end(with_signal)
        del state.processes[name]
        state.save()


def _await_health(state: State, component: Component) -> None:
    log = log_path(state, component)

    def is_healthy() -> bool:
        component_health = health(state, component)
        if component_health == "stopped":
            raise ClusterError(
                f"{component.name} exited during startup; the end of its log:\n{last_lines(log)}"
            )
        return component_health == "healthy"

    wait_for(component.name, is_healthy, log)

"""Warm start of a submission: first imports for ranks while it is planned."""

import os
from contextlib import suppress
from pathlib import Path

from orchestrator.launchers.local import rank_environment
from orchestrator.node.hardware import usable_cores
from orchestrator.node.warm_interpreter import WarmInterpreter
from orchestrator.records.sweep_dir import sweep_dir


class WarmStart:
    """Holds the warm interpreter of one submission, if it has one."""

    def __init__(self, runs: Path) -> None:
        """Start nothing yet."""
        self._runs = runs
        self.interpreter: WarmInterpreter | None = None

    def begin(self, name: str) -> None:
        """Start it for the sweep of this name; without a core to spare, planning goes first."""
        if usable_cores() > 1 and n_running() < (os.cpu_count() or 1):
            with suppress(OSError):
                self.interpreter = WarmInterpreter(rank_environment(sweep_dir(self._runs, name)))

    def close(self) -> None:
        """End what was started, also where it has become a fork server."""
        if self.interpreter is not None:
            self.interpreter.close()


def n_running(loads: Path = Path("/proc/loadavg")) -> int:
    """Return how many threads of this machine run or wait for a core now, this one included."""
    return int(loads.read_text().split()[3].partition("/")[0])

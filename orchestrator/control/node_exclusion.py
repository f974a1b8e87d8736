"""Node exclusion after trials of several configurations failed on a node.

    runs/<sweep>/nodes/<node>.excluded.json    {"node", "since" (s since 1970), "why", "submission"}

A node is excluded once trials of several configurations have failed on it and none was done since.
Deleting the file readmits the node within a second; so does submitting again, which renews every
budget. The last node is never excluded: a node that fails often is better than none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.records.json_files import write_json
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node

MIN_CONFIGURATIONS = 3
"""Configurations that have to fail on a node before it is excluded."""
NODE_OUTCOMES = frozenset(
    {
        Outcome.GPU_OOM,
        Outcome.HOST_OOM,
        Outcome.HANG,
        Outcome.COMMUNICATION,
        Outcome.KILLED,
        Outcome.NODE_LOST,
        Outcome.STORAGE,
    }
)
"""Outcomes that a node may cause: foreign processes in its memory, a broken device, cable, driver
or mount."""


@dataclass
class FailureTracker:
    """Counts failures per node and configuration since a trial was last done there."""

    _failures: dict[str, dict[str, str]] = field(default_factory=dict)
    """Node -> configuration -> trial and outcome, for people."""

    def record(
        self, node: str, *, configuration: str, trial_id: str, outcome: Outcome
    ) -> str | None:
        """Record how an attempt on a node ended; return why to exclude the node, or None.

        Args:
            node: Its name.
            configuration: The same for trials that differ only in their seed.
            trial_id: Which trial.
            outcome: How its attempt ended.
        """
        if outcome is Outcome.DONE:
            self._failures.pop(node, None)
        if outcome not in NODE_OUTCOMES:
            return None
        failures = self._failures.setdefault(node, {})
        failures[configuration] = f"{trial_id} ({outcome.value})"
        counted = [text for key, text in failures.items() if not self._failed_elsewhere(node, key)]
        if len(counted) < MIN_CONFIGURATIONS:
            return None
        return (
            f"{len(counted)} trials of different kinds failed there and none was done since: "
            f"{', '.join(counted)}"
        )

    def _failed_elsewhere(self, node: str, configuration: str) -> bool:
        """Whether the configuration failed on other nodes too: then it is not the node."""
        return any(configuration in f for other, f in self._failures.items() if other != node)


def node_names(nodes: Sequence[Node]) -> dict[str, str]:
    """Return node id -> name: the host, and the start of the id where several nodes share it."""
    hosts = Counter(node.host for node in nodes)
    return {
        node.node_id: _file_name(
            node.host if hosts[node.host] == 1 else f"{node.host}-{node.node_id[:8]}"
        )
        for node in nodes
    }


def exclude(sweep: SweepDir, node: str, *, why: str, submission: int, now: float) -> None:
    """Exclude a node from now on."""
    record = {"node": node, "since": now, "why": why, "submission": submission}
    folder = sweep.path / "nodes"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{node}.excluded.json", record)


def readmit_all(files: Iterable[Path]) -> None:
    """Readmit every node.

    Args:
        files: As `SweepDir.excluded_nodes` returns them.
    """
    for file in files:
        file.unlink(missing_ok=True)


def excluded(records: Mapping[Path, Mapping[str, Any]]) -> dict[str, str]:
    """Return name -> sentence of excluded nodes: why, and how to readmit them.

    Args:
        records: As `SweepDir.excluded_nodes` returns them.
    """
    return {
        record["node"]: (
            f"node {record['node']} is left out: {record['why']}; "
            f"delete {file} to have it back, or submit again"
        )
        for file, record in records.items()
    }


def usable_nodes(nodes: Sequence[Node], excluded_names: Sequence[str]) -> list[Node]:
    """Return the nodes that are not excluded; all of them if none would remain."""
    names = node_names(nodes)
    return [node for node in nodes if names[node.node_id] not in excluded_names] or list(nodes)


def _file_name(name: str) -> str:
    """Return the name with characters that a file name may have; a host's name may have others."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "node"

"""Nodes that are left out, because trials fail there that have nothing in common but the node.

    runs/<sweep>/nodes/<node>.excluded.json    {"node", "since" (s since 1970), "why", "submission"}

Deleting the file has the node back within a second; so has submitting again, which gives every budget anew. The last
node is never left out: a node that fails much is better than none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.records.trial_dir import SweepDir, write_json
from orchestrator.records.trial_spec import Outcome
from orchestrator.scheduling.demand import Node

MIN_CONFIGURATIONS = 3
"""Trials of so many different kinds have to fail on a node."""
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
"""Endings that may be the node's doing: foreign processes in its memory, a broken device, cable, driver or mount."""


@dataclass(frozen=True, kw_only=True)
class NodeFailure:
    """One trial that failed on a node."""

    trial_id: str
    outcome: Outcome


@dataclass
class FailureTracker:
    """Failures per node, by kind of trial, since a trial was last done there."""

    _failures: dict[str, dict[str, NodeFailure]] = field(default_factory=dict)

    def record(self, node: str, *, kind: str, trial_id: str, outcome: Outcome) -> str | None:
        """Take in how an attempt on a node ended; return why the node is to be left out, None if it is not.

        Args:
            node: Its name.
            kind: What trials that differ only in their seed share.
            trial_id: Which trial.
            outcome: How its attempt ended.
        """
        if outcome is Outcome.DONE:
            self._failures.pop(node, None)
            return None
        if outcome not in NODE_OUTCOMES:
            return None
        self._failures.setdefault(node, {})[kind] = NodeFailure(trial_id=trial_id, outcome=outcome)
        counted = [f for k, f in self._failures[node].items() if not self._elsewhere(node, k)]
        if len(counted) < MIN_CONFIGURATIONS:
            return None
        told = ", ".join(f"{f.trial_id} ({f.outcome.value})" for f in counted)
        return (
            f"{len(counted)} trials of different kinds failed there and none was done since: {told}"
        )

    def _elsewhere(self, node: str, kind: str) -> bool:
        """Whether trials of this kind failed on other nodes too: then it is not the node."""
        return any(kind in kinds for other, kinds in self._failures.items() if other != node)


def node_names(nodes: Sequence[Node]) -> dict[str, str]:
    """Return node id -> name for people and files: the host, and a part of the id where several nodes share one."""
    hosts = Counter(node.host for node in nodes)
    return {
        node.node_id: _plain(
            node.host if hosts[node.host] == 1 else f"{node.host}-{node.node_id[:8]}"
        )
        for node in nodes
    }


def exclude(sweep: SweepDir, node: str, *, why: str, submission: int, now: float) -> None:
    """Leave a node out from now on."""
    record = {"node": node, "since": now, "why": why, "submission": submission}
    write_json(_file(sweep, node), record)


def readmit_all(files: Iterable[Path]) -> None:
    """Have every node back; `files` as `SweepDir.excluded_nodes` returns them."""
    for file in files:
        file.unlink(missing_ok=True)


def excluded(records: Mapping[Path, Mapping[str, Any]]) -> dict[str, str]:
    """Return why each excluded node is left out and how to have it back, a sentence by its name.

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


def usable_nodes(nodes: Sequence[Node], left_out: Sequence[str]) -> list[Node]:
    """Return the nodes that trials may start on; all of them if none would remain."""
    by_id = node_names(nodes)
    return [node for node in nodes if by_id[node.node_id] not in left_out] or list(nodes)


def _file(sweep: SweepDir, node: str) -> Path:
    return sweep.path / "nodes" / f"{node}.excluded.json"


def _plain(name: str) -> str:
    """Return the name as a file may be called; hosts say what they like of themselves."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".") or "node"

"""Supervisor of a node: starts ranks by its fork server, watches and ends them.

It runs inside Ray's actor or the controller itself. Nothing here waits for a rank: `poll` looks,
reports what ended, and puts an end to what should have ended by itself or makes no progress. Ranks
that it ends first write their stacks, which go into the log of the attempt.
"""

import logging
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.control.failure_classifier import AttemptExit
from orchestrator.control.launcher_port import Launch
from orchestrator.node import log_cap
from orchestrator.node.checkpoint_progress import CheckpointProgress
from orchestrator.node.fork_server_process import ForkServerProcess
from orchestrator.node.hang_detection import HangDetector
from orchestrator.node.hardware import (
    chosen_gpus,
    gpu_environment,
    gpu_memory_bytes,
    network_environment,
    visible_gpus,
)
from orchestrator.node.mps import MpsDaemon
from orchestrator.node.oom_detection import OomKillCounter
from orchestrator.node.progress_board import STACKS_SIGNAL, ProgressReader, innermost_call
from orchestrator.records import code_snapshot
from orchestrator.records.processes import ProcessId, kill_and_wait
from orchestrator.records.rank_registry import TRAIN

LOG = logging.getLogger(__name__)
AFTER_FAILURE_S = 10.0
"""How long the other ranks may outlive one that failed: they have no one to talk to."""
AFTER_DONE_S = 120.0
"""How long the other ranks may outlive one that finished."""
STOP_TIMEOUT_S = 60.0
"""How long ranks may take to leave after SIGTERM, and after they last wrote to a checkpoint."""
STOP_ELSEWHERE_S = 1800.0
"""The same where rank 0 runs on another node, for whose checkpoint these may wait. If it is stuck,
its supervisor ends it, and with it the attempt."""
STACKS_S = 5.0
"""How long ranks may take to write their stacks before they are killed. It takes milliseconds."""
IDLE_S = 5.0
"""How long a rank that is done waits for the next trial of its kind. It takes some 0.3 s to come;
meanwhile the rank keeps a context on its GPU."""
CHECK_S = 1.0
"""How often ranks are checked for progress."""


@dataclass(kw_only=True)
class _AttemptRanks:
    """The ranks of one attempt on this node."""

    launch: Launch
    hang_detector: HangDetector
    processes: dict[int, ProcessId] = field(default_factory=dict)
    readers: dict[int, ProgressReader] = field(default_factory=dict)
    exit_codes: dict[int, int] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    """Ranks that are ended here."""
    out_of_memory: set[int] = field(default_factory=set)
    deadline: float | None = None
    """When those that are left are ended."""
    checkpoints: list[CheckpointProgress] = field(default_factory=list)
    """Of ranks that were asked to stop: the deadline is put off while one is being written."""
    hang: str | None = None
    checked_at: float = -CHECK_S
    asked_at: float | None = None
    """When those that were left were asked for their stacks, after which they are killed."""
    stacks: dict[int, str] = field(default_factory=dict)
    """As far as they were written at the last look."""
    last_positions: dict[int, str] = field(default_factory=dict)
    """Where ranks were that are killed here."""

    @property
    def left(self) -> list[int]:
        return [rank for rank in self.launch.local_ranks if rank not in self.exit_codes]

    def limit(self, deadline: float) -> None:
        """Bring the deadline forward to this time; nothing puts it off any more."""
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        self.checkpoints = []

    def stop(self, now: float) -> None:
        """Let ranks that were asked to stop have their time."""
        self.limit(now + (STOP_TIMEOUT_S if 0 in self.launch.local_ranks else STOP_ELSEWHERE_S))
        self.checkpoints = [
            CheckpointProgress(self.processes[rank].pid, self.readers[rank])
            for rank in self.left
            if rank in self.processes
        ]

    def put_off(self, now: float) -> None:
        """Put the deadline off if a checkpoint is being written. Checks now and then only."""
        if self.checkpoints and self._check_is_due(now):
            # Of each, so that none is first looked at when the others are done.
            written = [checkpoint.goes_on() for checkpoint in self.checkpoints]
            if any(written):
                self.deadline = max(self.deadline or now, now + STOP_TIMEOUT_S)

    def hung(self, now: float) -> str | None:
        """Return the description of a hang, None while there is none. Checks now and then only."""
        if not self._check_is_due(now):
            return None
        progress = {rank: self.readers[rank].progress() for rank in self.left}
        return self.hang_detector.check(now, progress)

    def _check_is_due(self, now: float) -> bool:
        if now - self.checked_at < CHECK_S:
            return False
        self.checked_at = now
        return True

    def position(self, rank: int) -> str:
        """Return how far a rank was and where in its code."""
        progress = self.readers[rank].progress()
        how_far = "before its first step" if progress is None else str(progress)
        where = innermost_call(self.stacks[rank]) or self.readers[rank].unresponsive_reason()
        return f"{how_far}: {where or 'it did not say where'}"

    def cap_log(self) -> None:
        """Keep the log from growing without limit; of several nodes, that of rank 0 does it."""
        if 0 in self.launch.local_ranks:
            log_cap.cap(self.launch.folder.log)

    def write_stacks(self) -> None:
        """Append the stacks of all ranks to the log, one after another."""
        parts = [f"── {self.hang}: its ranks are ended\n"] if self.hang else []
        for rank, position in self.last_positions.items():
            pid = self.processes[rank].pid
            parts.append(f"── rank {rank} (pid {pid}) was ended {position}\n{self.stacks[rank]}")
        path = self.launch.folder.log
        try:
            with path.open("a", encoding="utf-8") as log:
                log.write("\n".join(parts) + "\n")
        except OSError as error:  # a full disk; the attempt's reason still says where they were
            LOG.warning("%s: stacks could not be written (%s)", path, error)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()


class NodeSupervisor:
    """Owns the fork server of a node and, through it, every rank there."""

    def __init__(
        self,
        *,
        log: str,
        environment: Mapping[str, str],
        job: str = TRAIN,
        own_group: bool = False,
        early: bytes | None = None,
        shares_gpus: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the fork server; it is ready when `wait_until_ready` has returned.

        Args:
            log: File for what the fork server prints; ranks write to the logs of their attempts.
            environment: Variables for the fork server and its ranks, beyond those of this process.
            job: The job function that ranks run; decides what the fork server imports.
            own_group: Put the fork server into a process group of its own, so that Ctrl-C reaches
                the controller only.
            early: Address of a fork server that was started for this one (`early_fork_server.py`).
            shares_gpus: Whether ranks are likely to share GPUs. MPS then starts while the fork
                server imports, otherwise with the first of them.
            clock: Monotonic seconds.
        """
        self._clock = clock
        self._shares_gpus = shares_gpus
        self._attempts: dict[str, _AttemptRanks] = {}
        self._exits: list[AttemptExit] = []
        self._oom = OomKillCounter(clock)
        self._capped_at = clock()
        self._mps = MpsDaemon()
        self._fork_server = ForkServerProcess(
            Path(log), environment=environment, job=job, own_group=own_group, early=early
        )

    def wait_until_ready(self) -> float:
        """Return the seconds that importing took.

        Raises:
            ExperimentError: If the fork server died; shows what it printed last.
        """
        if self._shares_gpus and (gpus := visible_gpus()):
            self._mps.environment(gpus[0])
        return self._fork_server.wait_until_ready()

    def describe(self) -> tuple[dict[str, Any], tuple[str, ...] | None]:
        """Return the ProcessId of this process, as JSON, and `chosen_gpus` of its node."""
        return ProcessId.own().to_json(), chosen_gpus()

    def installed(self) -> dict[str, str]:
        """Return the versions of Python and of packages that can change a result."""
        return code_snapshot.installed()

    def gpu_memory_bytes(self) -> float | None:
        """Return the memory of the smallest GPU it sees, None where NVML knows of none."""
        return gpu_memory_bytes(visible_gpus())

    def launch(self, launch: Launch, gpu_ids: Sequence[str]) -> None:
        """Fork the ranks of an attempt. A fork server that has died is replaced first."""
        if not self._fork_server.alive():
            self._take_events(0.0)
            self._fork_server.replace()
        self._fork_server.wait_until_ready()
        sees_all = len(launch.local_ranks) == launch.ranks
        attempt = self._attempts[launch.key] = _AttemptRanks(
            launch=launch, hang_detector=HangDetector(launch.hang_after_s, sees_all=sees_all)
        )
        for request in launch.rank_requests(gpu_ids):
            self._fork_server.send(
                {
                    "start": f"{launch.key}/{request.rank}",
                    "request": request.to_json(),
                    "env": {
                        **gpu_environment(request.gpus),
                        "OMP_NUM_THREADS": str(request.cpus),
                        **network_environment(launch.address),
                        **(self._mps.environment(request.gpus[0]) if launch.mps else {}),
                    },
                    "log": str(request.attempt_dir.log),
                    "cwd": str(Path.cwd()),
                    "alike": launch.alike,
                    "idle_s": IDLE_S,
                }
            )
        while len(attempt.processes.keys() | attempt.exit_codes.keys()) < len(launch.local_ranks):
            self._take_events(1.0)

    def poll(self) -> list[AttemptExit]:
        """Return the attempts that ended since the last call."""
        self._oom.update()
        self._take_events(0.0)
        now = self._clock()
        for attempt in self._attempts.values():
            if attempt.asked_at is not None:
                self._kill_when_dumped(attempt, now)
            elif attempt.deadline is not None:
                attempt.put_off(now)
                if now >= attempt.deadline:
                    self._end(attempt, now)
            elif hang := attempt.hung(now):
                attempt.hang = hang
                self._end(attempt, now)
        if now - self._capped_at >= CHECK_S:
            self._capped_at = now
            for attempt in self._attempts.values():
                attempt.cap_log()
        exits, self._exits = self._exits, []
        return exits

    def stop(self, key: str, *, hard: bool) -> None:
        """Stop the ranks of an attempt.

        SIGTERM, and SIGKILL if they take too long, but not while they write a checkpoint; if
        `hard`, SIGKILL once their stacks are there.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            return
        if hard:
            self._end(attempt, self._clock())
            return
        self._signal(attempt, signal.SIGTERM)
        attempt.stop(self._clock())

    def end_with(self, key: str, *, failed: bool) -> None:
        """Set the deadline of an attempt of which ranks on another node have ended."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            attempt.limit(self._clock() + (AFTER_FAILURE_S if failed else AFTER_DONE_S))

    def end_orphans(self, processes: Sequence[ProcessId]) -> list[ProcessId]:
        """SIGKILL processes of this node, wait until they are gone, return those that are not."""
        here = [process for process in processes if process.here]
        return kill_and_wait(here) + [process for process in processes if not process.here]

    def close(self) -> None:
        """End the fork server, with it every rank, then MPS; wait until all are gone."""
        ranks = [p for attempt in self._attempts.values() for p in attempt.processes.values()]
        self._fork_server.close()
        kill_and_wait(ranks)
        self._mps.close()
        for attempt in self._attempts.values():
            attempt.close()
        self._attempts.clear()

    def _take_events(self, timeout_s: float) -> None:
        self._account(self._fork_server.events(timeout_s))
        if not self._fork_server.alive():
            # It may have reported between our look and its end; a pipe outlives its writer.
            self._account(self._fork_server.events(0.0))
            self._fork_server_died()

    def _account(self, events: Sequence[Mapping[str, Any]]) -> None:
        for event in events:
            key, _, rank_text = str(event.get("started") or event.get("ended")).rpartition("/")
            attempt, rank = self._attempts.get(key), int(rank_text)
            if attempt is None:
                continue
            if "started" in event:
                attempt.processes[rank] = ProcessId.from_json(event["process"])
                attempt.readers[rank] = ProgressReader(attempt.processes[rank].pid)
            else:
                self._rank_ended(attempt, rank, int(event["code"]))

    def _rank_ended(self, attempt: _AttemptRanks, rank: int, code: int) -> None:
        attempt.exit_codes[rank] = code
        killed_by_others = code == -signal.SIGKILL and rank not in attempt.killed
        if killed_by_others and self._oom.just_killed():
            attempt.out_of_memory.add(rank)
        if attempt.left:
            attempt.limit(self._clock() + (AFTER_FAILURE_S if code else AFTER_DONE_S))
            return
        del self._attempts[attempt.launch.key]
        attempt.cap_log()
        attempt.close()
        self._exits.append(
            AttemptExit(
                trial_id=attempt.launch.trial_id,
                attempt=attempt.launch.attempt,
                exit_codes=dict(sorted(attempt.exit_codes.items())),
                killed_by_launcher=frozenset(attempt.killed),
                hang=attempt.hang,
                last_positions=attempt.last_positions,
                out_of_memory=frozenset(attempt.out_of_memory),
            )
        )

    def _end(self, attempt: _AttemptRanks, now: float) -> None:
        """Ask the ranks that are left for their stacks; they are killed when these are written."""
        if attempt.asked_at is None:
            attempt.asked_at = now
            attempt.killed.update(attempt.left)
            self._signal(attempt, STACKS_SIGNAL)

    def _kill_when_dumped(self, attempt: _AttemptRanks, now: float) -> None:
        stacks = {rank: attempt.readers[rank].stacks() for rank in attempt.left}
        # A dump has no end mark; one that has not grown since the last look is whole.
        whole = stacks == attempt.stacks and all(stacks.values())
        attempt.stacks = stacks
        assert attempt.asked_at is not None, "it was asked for the stacks"
        if not attempt.last_positions and (whole or now - attempt.asked_at >= STACKS_S):
            attempt.last_positions = {rank: attempt.position(rank) for rank in attempt.left}
            attempt.write_stacks()
            self._signal(attempt, signal.SIGKILL)

    def _signal(self, attempt: _AttemptRanks, number: signal.Signals) -> None:
        for rank in attempt.left:
            key = f"{attempt.launch.key}/{rank}"
            self._fork_server.send({"signal": key, "number": int(number)})

    def _fork_server_died(self) -> None:
        """Account for the ranks that went with it. The kernel has killed them; make sure."""
        for attempt in list(self._attempts.values()):
            kill_and_wait(
                [attempt.processes[rank] for rank in attempt.left if rank in attempt.processes]
            )
            for rank in attempt.left:
                self._rank_ended(attempt, rank, -int(signal.SIGKILL))

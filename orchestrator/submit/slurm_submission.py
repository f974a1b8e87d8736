"""Submission to Slurm: checks, records, jobs; then followed from this machine."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.control.status import SweepStatus, status_from_disk
from orchestrator.launchers.slurm import autoscaler, commands, job_records, submitit_adapter
from orchestrator.launchers.slurm.commands import Partition, SlurmError
from orchestrator.launchers.slurm.options import SlurmOptions
from orchestrator.records.code_snapshot import with_code
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.sweep_dir import SweepDir, sweep_dir
from orchestrator.records.trial_spec import Resources, TrialSpec
from orchestrator.scheduling.demand import Demand
from orchestrator.submit import slurm_direct, slurm_pilot
from orchestrator.submit.submission import Submission, SubmissionResult
from orchestrator.tracking.exporter_process import exporting

LOOK_S = 2.0
"""Seconds between two reads of the trial directories and the queue."""
CHOOSE_NODES = frozenset(("mincpus", "nodelist", "constraint"))
"""Options of sbatch by which users choose nodes themselves."""


@dataclass(frozen=True, kw_only=True)
class QueuedJobs:
    """Jobs that a submission put into the queue."""

    job_ids: Sequence[str]
    trials: int
    """To train."""
    queued_before: int
    """Of them: had a job of an earlier submission already."""
    refused: str = ""
    """What to know where Slurm refused some of the jobs; empty where it took all."""


@dataclass(frozen=True, kw_only=True)
class SlurmSubmission(Submission):
    """Options of `memscale submit --backend slurm`, and the plan to run."""

    request: SlurmOptions
    job: str = TRAIN
    """What ranks run; see `orchestrator.node.worker`."""

    @property
    def sweep(self) -> SweepDir:
        """The sweep's folder."""
        return sweep_dir(self.runs, self.plan.sweep.name)

    def send(self) -> QueuedJobs:
        """Write the records and submit the jobs; nothing is submitted twice.

        Raises:
            BusyError: If the sweep runs, or its pilot waits, already.
            SlurmError: If Slurm is not there or would not take such jobs; says what to change.
        """
        commands.require()
        submitit_adapter.require()
        submitit_adapter.refuse_placeholders(self.sweep.path)
        sweep, todo = self.sweep, [t.spec for t in self.plan.readable if t.status != "done"]
        partition = self._offered(commands.partition(self.request.partition), todo)
        self._check(partition, todo)
        if self.request.backend == "slurm-direct":
            return self._send_trials(sweep, partition, todo)
        if not todo:
            return QueuedJobs(job_ids=(), trials=0, queued_before=0)
        self._refuse_if_queued(sweep)
        gpus = self._gpus_per_node(partition, todo)
        with self.recorded(sweep) as record:
            ids = slurm_pilot.submit(
                slurm_pilot.HeadPilot(
                    sweep=str(sweep.path.absolute()),
                    submission=record["number"],
                    trial_ids=record["trial_ids"],
                    cache=str(self._cache),
                    request=self._on_large_nodes(partition, todo, gpus).to_json(),
                    gpus_per_node=gpus,
                    predicted_s=self._predicted_s,
                    job=self.job,
                ),
                code=_code(record),
            )
        return QueuedJobs(job_ids=ids, trials=len(todo), queued_before=0)

    def follow(self, on_update: Callable[[SweepStatus], None]) -> SubmissionResult:
        """Report progress and export metrics until no job is left; may be left at any time."""
        return follow(self.sweep, self.tracking_uri, on_update)

    def follow_in_background(self) -> Path:
        """Export from a process of its own; return the file that it prints into."""
        log = self.sweep.path / "controller.log"
        uri = {} if self.tracking_uri is None else {"MLFLOW_TRACKING_URI": self.tracking_uri}
        with log.open("ab") as output:
            subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "orchestrator.submit.slurm_submission",
                    str(self.sweep.path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=with_code(None, {**os.environ, **uri}),
            )
        return log

    @property
    def _cache(self) -> Path:
        return (self.runs / "cache").absolute()

    @property
    def _predicted_s(self) -> dict[str, float]:
        return {t.spec.trial_id: t.runtime.seconds for t in self.plan.trials}

    def _send_trials(
        self, sweep: SweepDir, partition: Partition, todo: Sequence[TrialSpec]
    ) -> QueuedJobs:
        self._refuse_if_queued(sweep)
        left = _without_jobs(sweep, todo)
        if not left:
            return QueuedJobs(job_ids=(), trials=len(todo), queued_before=len(todo))
        with self.recorded(sweep) as record:
            left = _without_jobs(sweep, todo)  # another submission may have come first
            refused = ""
            try:
                ids: Sequence[str] = (
                    ()
                    if not left
                    else slurm_direct.submit(
                        sweep,
                        left,
                        submission=record["number"],
                        code=_code(record),
                        request=self.request,
                        partition=partition,
                        array_size=commands.max_array_size(),
                        cache=self._cache,
                        predicted_s=self._predicted_s,
                        job=self.job,
                    )
                )
            except slurm_direct.PartlyRefusedError as error:
                ids, refused = error.job_ids, str(error)
        return QueuedJobs(
            job_ids=ids,
            trials=len(todo),
            queued_before=len(todo) - len(left),
            refused=refused,
        )

    def _refuse_if_begun(self, sweep: SweepDir) -> None:
        super()._refuse_if_begun(sweep)
        self._refuse_if_queued(sweep)

    def _refuse_if_queued(self, sweep: SweepDir) -> None:
        """Refuse beside jobs of a pilot; those of single trials refuse a pilot only."""
        trials = (job_records.TRIAL,) if self.request.backend == "slurm" else ()
        kinds = (job_records.HEAD, job_records.WORKER, *trials)
        job_records.refuse_if_queued(sweep, kinds=kinds)

    def _offered(self, partition: Partition, todo: Sequence[TrialSpec]) -> Partition:
        """Return what a partition offers, without GPUs of other types than the one asked for."""
        gpu_type = self.request.gpu_type
        if gpu_type is None:
            return partition
        offered = partition.with_gpu_type(gpu_type)
        if not offered.most_gpus and any(spec.resources.gpus for spec in todo):
            raise SlurmError(
                f"--slurm gres=gpu:{gpu_type}: {partition}; name a type that is there, or choose "
                "another --partition"
            )
        return offered

    def _check(self, partition: Partition, todo: Sequence[TrialSpec]) -> None:
        """Refuse what Slurm would let wait forever, or refuse with fewer words."""
        request = self.request
        if request.backend == "slurm-direct":
            for spec in todo:
                slurm_direct.job_size(spec, partition)
            return
        cpus, gpus = request.cpus or 0, request.gpus or 0
        given = " ".join(
            f"--{name} {number}" for name, number in (("cpus", cpus), ("gpus", gpus)) if number
        )
        fitting = partition.kinds_with(cpus=cpus, gpus=gpus)
        if not fitting:
            raise SlurmError(f"{given}: {partition}; lower it or choose another --partition")
        if request.min_nodes > sum(kind.nodes for kind in fitting):
            raise SlurmError(
                f"--nodes {request.min_nodes}{given and ' ' + given}: {partition}; "
                "lower it or choose another --partition"
            )
        if todo:
            gpus = self._gpus_per_node(partition, todo)
            for resources, spec in {spec.resources: spec for spec in todo}.items():
                self._check_pilots_hold(spec.trial_id, resources, partition, gpus)

    def _check_pilots_hold(
        self, trial_id: str, resources: Resources, partition: Partition, gpus: int
    ) -> None:
        there = self._capacities(partition, gpus)
        needed = {c: k for c, n in there.items() if (k := _nodes_needed(resources, c, n))}
        if any(n <= self.request.max_nodes for n in needed.values()):
            return
        capacity = min(needed, key=needed.__getitem__) if needed else next(iter(there))
        demand = autoscaler.demand_of(resources, capacity)
        raise SlurmError(
            f"trial {trial_id}: needs {demand} in {demand.gang_size} ranks; nodes have {capacity}; "
            + (
                f"it takes {needed[capacity]} of them: --nodes {needed[capacity]}, "
                f"or 1:{needed[capacity]}"
                if needed
                else f"choose another --partition, or lower resources ({partition})"
            )
        )

    def _capacities(self, partition: Partition, gpus: int) -> dict[Demand, int]:
        """Return what pilots may get of a node, most first, and how many nodes offer that much."""
        there: dict[Demand, int] = {}
        kinds = sorted(
            partition.kinds_with(cpus=self.request.cpus or 0, gpus=gpus), key=lambda k: -k.cpus
        )
        for n, kind in enumerate(kinds, start=1):
            capacity = Demand(cpus=self.request.cpus or kind.cpus, gpus=float(gpus))
            there[capacity] = sum(k.nodes for k in kinds[:n])
        return there

    def _on_large_nodes(
        self, partition: Partition, todo: Sequence[TrialSpec], gpus: int
    ) -> SlurmOptions:
        """Return the request, with `mincpus` where the smallest nodes do not hold the trials."""
        request = self.request
        if request.cpus is not None or CHOOSE_NODES & request.options.keys():
            return request
        there = self._capacities(partition, gpus)
        asked = {spec.resources for spec in todo}
        fitting = [
            capacity.cpus
            for capacity, nodes in there.items()
            if nodes >= request.min_nodes
            and all(_nodes_needed(one, capacity, min(nodes, request.max_nodes)) for one in asked)
        ]
        if not fitting or min(fitting) == min(capacity.cpus for capacity in there):
            return request
        return replace(request, options={**request.options, "mincpus": str(min(fitting))})

    def _gpus_per_node(self, partition: Partition, todo: Sequence[TrialSpec]) -> int:
        """Return how many GPUs a pilot asks of each node.

        Without --gpus that is what most nodes have, of those with GPUs that hold the trials.
        """
        if all(spec.resources.gpus == 0 for spec in todo):
            return 0
        if self.request.gpus is not None:
            return self.request.gpus
        asked = {spec.resources for spec in todo}
        cores = self.request.cpus or 0
        nodes: Counter[int] = Counter()
        for kind in partition.kinds_with(cpus=cores, gpus=1):
            capacity = Demand(cpus=cores or kind.cpus, gpus=float(kind.gpus))
            if all(_nodes_needed(one, capacity, self.request.max_nodes) for one in asked):
                nodes[kind.gpus] += kind.nodes
        most = max(kind.gpus for kind in partition.kinds_with(cpus=cores))
        return max(nodes, key=lambda n: (nodes[n], n), default=most)


def _nodes_needed(resources: Resources, capacity: Demand, most: int) -> int | None:
    """Return how many nodes of that capacity a trial takes, None if `most` do not hold it."""
    demand = autoscaler.demand_of(resources, capacity)
    return autoscaler.nodes_needed_for(demand, capacity, most=most)


def _without_jobs(sweep: SweepDir, trials: Sequence[TrialSpec]) -> list[TrialSpec]:
    """Return the trials that have no job in the queue."""
    queued = {job.trial_id for job in job_records.live_jobs(sweep)}
    return [spec for spec in trials if spec.trial_id not in queued]


def _code(record: Mapping[str, Any]) -> Path | None:
    """Return the code snapshot that a submission runs, None if it has none of its own."""
    code = record.get("run", {}).get("code")
    return None if code is None else Path(code)


def follow(
    sweep: SweepDir, tracking_uri: str | None, on_update: Callable[[SweepStatus], None]
) -> SubmissionResult:
    """Tell how a sweep on Slurm goes and export what is measured, until no job is left."""
    with exporting(sweep, tracking_uri) as exporter:
        while True:
            status = status_from_disk(sweep, ask_queue=job_records.queue_reasons)
            exporter.keep_alive()
            on_update(status)
            if not status.controller_alive:
                break
            time.sleep(LOOK_S)
    assert exporter.drained is not None, "the end of `exporting` drains"
    return SubmissionResult(status=status, interrupted=False, drained=exporter.drained)


if __name__ == "__main__":
    follow(SweepDir(Path(sys.argv[1])), os.environ.get("MLFLOW_TRACKING_URI"), lambda status: None)

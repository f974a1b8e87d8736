"""A sweep of three trials with its controller and ranks in this one process: python small_sweep.py SWEEP [GATE].

A trial takes five steps, in a journal and a result like those of a rank. With GATE they end only once that file is there.
"""

import sys
from pathlib import Path

from orchestrator.control.failure_classifier import EXIT_CODES, AttemptExit
from orchestrator.control.loop import Controller
from orchestrator.node.reporter import RankReporter
from orchestrator.node.worker import write_result
from orchestrator.records.locks import submitting
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.records.trial_spec import Outcome, Resources, TrialSpec
from orchestrator.scheduling.demand import Node

STEPS = 5


class InProcess:
    """A launcher whose ranks are calls."""

    def __init__(self, gate):
        self.gate, self.running, self.stopped = gate, {}, set()

    def start(self):
        """Nothing to start."""

    close = start

    def nodes(self):
        return (Node(node_id="n", host="h", cpus=4, gpus=()),)

    def launch(self, launch):
        self.running[launch.trial_id] = launch
        return ()

    def stop(self, trial_id, attempt, *, hard):
        self.stopped.add(trial_id)

    def end_orphans(self, processes):
        return []

    def poll(self):
        is_open = self.gate is None or self.gate.exists()
        return [self._end(i) for i in list(self.running) if is_open or i in self.stopped]

    def _end(self, trial_id):
        launch = self.running.pop(trial_id)
        code = EXIT_CODES[Outcome.INTERRUPTED]
        if trial_id not in self.stopped:
            (request,) = launch.rank_requests(())
            reporter = RankReporter(request)
            for step in range(1, STEPS + 1):
                reporter.progress(step, STEPS, "train", {})
                reporter.metrics(step, {"train/loss": 1.0 / step})
            reporter.close()
            write_result(request, request.trial.spec(), reporter, {"train/loss": 1.0 / STEPS})
            code = 0
        return AttemptExit(trial_id=trial_id, attempt=launch.attempt, exit_codes={0: code})


def specs():
    return [
        TrialSpec(
            sweep="s",
            data={"source": "x"},
            model={"architecture": "dense"},
            train={"tokens": 10 * STEPS, "batch_tokens": 10, "seq_len": 10},
            seed=seed,
            resources=Resources(gpus=0, time_limit_s=3600.0),
        )
        for seed in range(3)
    ]


def main():
    sweep = SweepDir(Path(sys.argv[1]))
    gate = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with submitting(sweep):
        for spec in specs():
            sweep.trial(spec.trial_id).create(spec, durable=False)
        ids = [spec.trial_id for spec in specs()]
        number = sweep.add_submission({"trial_ids": ids})
    controller = Controller(
        sweep,
        submission=number,
        trial_ids=ids,
        launcher=InProcess(gate),
        cache=sweep.path / "cache",
    )
    return 0 if controller.run().complete else 1


if __name__ == "__main__":
    sys.exit(main())

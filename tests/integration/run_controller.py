"""Run a sweep's controller as a process of its own, which tests may kill: python run_controller.py SWEEP SUBMISSION LAUNCHER [ADDRESS JOB [PRIORITY]].

Ctrl-C and SIGTERM stop it gracefully, as `memscale submit` does. Exits with 0 when every trial is done.
"""

import signal
import sys
from pathlib import Path

from orchestrator.control.loop import Controller
from orchestrator.launchers.local import ProcessLauncher
from orchestrator.records.rank_registry import TRAIN
from orchestrator.records.sweep_dir import SweepDir


def main() -> int:
    sweep, submission, kind = SweepDir(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    address, job, priority = (*sys.argv[4:], *(None, TRAIN, "0")[len(sys.argv) - 4 :])
    if kind == "ray":
        from orchestrator.launchers.ray import RayLauncher

        launcher = RayLauncher(sweep, cpus=2, address=address, job=job, priority=int(priority))
    else:
        launcher = ProcessLauncher(sweep, cpus=2)
    controller = Controller(
        sweep,
        submission=submission,
        trial_ids=[trial.trial_id for trial in sweep.trials()],
        launcher=launcher,
        cache=sweep.path / "cache",
        job=job,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.stop())
    return 0 if controller.run().complete else 1


if __name__ == "__main__":
    sys.exit(main())

"""One submission as a process: controller and exporter, as `memscale submit` runs them.

    submit.py SWEEP NUMBER LAUNCHER [TRACKING_URI]

LAUNCHER is `process`, or the address of a Ray cluster. Exits with 0 when every trial is done and
sent.
"""

import contextlib
import signal
import sys
from pathlib import Path

from orchestrator.control.loop import Controller
from orchestrator.records.sweep_dir import SweepDir
from orchestrator.tracking.exporter_process import exporting

JOB = f"{Path(__file__).with_name('job.py')}:run"


def main() -> int:
    sweep, number, where = SweepDir(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    if where == "process":
        from orchestrator.launchers.local import ProcessLauncher

        launcher = ProcessLauncher(sweep, cpus=8, job=JOB)
    else:
        from orchestrator.launchers.ray import RayLauncher

        launcher = RayLauncher(sweep, address=where, job=JOB)
    controller = Controller(
        sweep,
        submission=number,
        trial_ids=[trial.trial_id for trial in sweep.trials()],
        launcher=launcher,
        cache=sweep.path / "cache",
        job=JOB,
    )
    signal.signal(signal.SIGTERM, lambda *_: controller.stop())
    tracked = exporting(sweep, sys.argv[4]) if len(sys.argv) > 4 else contextlib.nullcontext()
    with tracked as exporter:
        status = controller.run(lambda status: None if exporter is None else exporter.keep_alive())
    sent = exporter is None or (exporter.drained is not None and exporter.drained.complete)
    return 0 if status.complete and sent else 1


if __name__ == "__main__":
    sys.exit(main())

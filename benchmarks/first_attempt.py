"""Seconds from `memscale submit` of many trials to the first attempt, and the core seconds of them.

    python benchmarks/first_attempt.py                    # 10,000 trials by Ray and by processes
    python benchmarks/first_attempt.py --trials 1000 --launchers process --repeats 3

Ten seeds of each configuration, on the CPU. Seconds depend on what else the machine does, core
seconds hardly. The attempt has begun when its folder is there; then the sweep is stopped.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

SWEEP = """
name: s
data: {{source: biographies, n_people: 100, style: compact}}
train: {{tokens: 8192, batch_tokens: 1024, seq_len: 64}}
model: {{architecture: dense, preset: d16}}
resources: {{gpus: 0}}
trials: [grid: {{train.lr: [{rates}]}}]
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""
LOOK_S = 0.1


def main() -> None:
    """Print a row for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--launchers", default="ray,process")
    parser.add_argument("--repeats", type=int, default=1)
    arguments = parser.parse_args()
    print("| launcher | trials | s | core s of the command | of what it started | load |")
    print("|---" * 6 + "|")
    for launcher in arguments.launchers.split(",") * arguments.repeats:
        with tempfile.TemporaryDirectory() as folder:
            cells = first_attempt(Path(folder), launcher, arguments.trials)
        print("| " + " | ".join((launcher, f"{arguments.trials:,}", *cells)) + " |", flush=True)


def first_attempt(folder: Path, launcher: str, n: int) -> list[str]:
    """Submit a sweep, wait for its first attempt, stop it; return what that took."""
    file, runs = folder / "s.yaml", folder / "runs"
    rates = ", ".join(f"{1e-3 * 1.0001**i:.8e}" for i in range(n // 10))
    file.write_text(SWEEP.format(rates=rates), encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(file), "--quiet"]
    begin = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = psutil.Popen(
            [*command, "--runs", str(runs), "--launcher", launcher], stdout=log, stderr=log
        )
    try:
        while not any((runs / "s").glob("trials/*/attempts/*")):
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(LOOK_S)
        seconds, load = time.monotonic() - begin, os.getloadavg()[0]
        own = core_seconds(process)
        others = sum(map(core_seconds, process.children(recursive=True)))
        return [f"{seconds:.1f}", f"{own:.1f}", f"{others:.1f}", f"{load:.1f}"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def core_seconds(process: psutil.Process) -> float:
    """Return what a process took of the cores until now; 0 if it is gone."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
